//! Opening a group: labels, checkpoint, journal, log, in that order; nothing is served before.
//!
//! What is told apart: the torn end of the log (never acknowledged: dropped whole), damage below
//! an end that the log, the journal or a checkpoint itself proves durable (the blocks are marked
//! bad where it is known which, else the components are doubtful), and metadata that is gone (the
//! group is refused; its peers rebuild it). The last batch without such a proof counts as torn:
//! whether it was acknowledged is settled by comparing with other members (`docs/formats.md`).

mod checkpoint;
mod damage;
mod journal;
mod log;
mod log_batch;
mod segment_reader;
mod space;
mod tolerant_read;

use crate::device::Device;
use crate::error::OpenError;
use crate::geometry::Geometry;
use crate::metadata::journal::JournalPosition;
use crate::state::State;
use crate::state::component::Component;
use atoll_format::log::FooterBuilder;
use atoll_world::World;
use checkpoint::load_checkpoint;
use damage::mark_damage;
use journal::replay_journal;
use log::replay_log;
use log_batch::LogScan;
use space::{build_space, claim_placed};

/// What recovery hands to the running store.
pub(crate) struct Recovered {
    pub state: State,
    pub journal: JournalPosition,
    pub generation: u64,
    pub next_seq: u64,
    pub prev_crc: u32,
    pub footer: FooterBuilder,
    /// A checkpoint has to be taken before anything is served.
    pub checkpoint_now: bool,
}

/// How much memory the caches and the index may take.
#[derive(Clone, Copy)]
pub(crate) struct MemoryBudget {
    pub cache_bytes: u64,
    pub overlay_blocks: u64,
    pub index_blocks: u64,
}

/// Reads everything that is needed to go on.
pub(crate) async fn recover<W: World>(
    devices: &[Device<W>],
    geometry: Geometry,
    memory: MemoryBudget,
) -> Result<Recovered, OpenError> {
    let device = &devices[0];
    let MemoryBudget { cache_bytes, overlay_blocks, index_blocks } = memory;
    let mut state = State::new(geometry, cache_bytes, overlay_blocks, index_blocks);
    let (head, older, generations_differ) = load_checkpoint(device, &mut state).await?;
    let mut journal = JournalPosition {
        at: head.journal_at,
        seq: head.journal_seq,
        prev_crc: head.journal_crc,
        used: 0,
        durable_seq: head.journal_seq - 1,
        generation: head.generation,
        older,
    };
    state.log.trimmed_before(head.trim_below);
    state.components.given_away_below(head.next_local.max(1));
    let mut log_to = head.log_to;
    replay_journal(device, &mut state, &mut journal, &mut log_to).await?;
    let mut scan = LogScan { log_to, replay_after: head.replay_after, ..LogScan::default() };
    replay_log(device, &mut state, &mut scan).await?;
    if scan.journal_to > journal.durable_seq {
        return Err(OpenError::Metadata(format!(
            "the journal ends at batch {}, the log knows of batch {}",
            journal.durable_seq, scan.journal_to
        )));
    }
    state.log.assert_range();
    state.log.assert_head();
    let (last, durable) = (scan.last_seq, scan.log_to);
    assert!(last >= durable, "batches go on behind {last}, {durable} was durable");
    let (next, durable) = (journal.seq, journal.durable_seq);
    assert!(next == durable + 1, "the journal goes on with {next}, {durable} is durable");
    // Only now: a slot of a component that the log deletes may have a new owner in the journal.
    build_space(&mut state)?;
    claim_placed(&mut state);
    state.recovering = false;
    // The journal may have said more of a lost component than the loss left in memory.
    let is_lost = |c: &&Component| c.is_lost();
    let lost: Vec<u32> = state.components.values().filter(is_lost).map(|c| c.local).collect();
    lost.into_iter().for_each(|local| state.lose(local));
    if !scan.damage.is_empty() {
        mark_damage(devices, &mut state, &scan).await;
    }
    state.reserve_again();
    let chunks: Vec<(u32, u32)> = state
        .components
        .values()
        .flat_map(|c| c.hot.keys().map(|&chunk| (c.local, chunk)).collect::<Vec<_>>())
        .collect();
    for (local, chunk) in chunks {
        state.settle(local, chunk);
    }
    let checkpoint_now = generations_differ || !scan.damage.is_empty();
    let next = |counter: u64| {
        let at_its_end = || OpenError::Metadata("a counter of the log is at its end".into());
        counter.checked_add(1).ok_or_else(at_its_end)
    };
    Ok(Recovered {
        state,
        journal,
        generation: next(scan.generation)?,
        next_seq: next(scan.last_seq)?,
        prev_crc: scan.prev_crc,
        footer: scan.footer,
        checkpoint_now,
    })
}
