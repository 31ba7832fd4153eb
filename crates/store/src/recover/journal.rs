//! Reads the journal behind the checkpoint, and does again what its records say.
//!
//! Invariant: a batch counts only if it follows the one before by number and checksum.

use super::tolerant_read::{meta, read};
use crate::device::Device;
use crate::error::OpenError;
use crate::metadata::journal::JournalPosition;
use crate::state::State;
use crate::state::chunk::Overlay;
use crate::state::component::Component;
use crate::state::component_record;
use crate::state::home::ChunkHome;
use atoll_format::chunk::{
    BlockEntry, JOURNAL_HEAD_LEN, JournalHead, JournalKind, JournalRecord, MetaError, NONE,
};
use atoll_format::id::Seq;
use atoll_format::op::BlockState;
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, SEQ_MAX};
use atoll_world::{Buf, World, mutant};
use zerocopy::FromBytes;

pub(super) async fn replay_journal<W: World>(
    device: &Device<W>,
    state: &mut State,
    position: &mut JournalPosition,
    log_to: &mut u64,
) -> Result<(), OpenError> {
    let region = state.geometry.journal;
    if position.at < region.at || position.at > region.end() {
        return Err(OpenError::Metadata("the checkpoint points outside the journal".into()));
    }
    loop {
        let mut found = None;
        // Behind the one before, or, if it did not fit there, at the start of the ring.
        let behind = (position.at + BLOCK <= region.end()).then_some(position.at);
        for at in behind.into_iter().chain([region.at]) {
            if let Some((head, bytes)) = journal_batch(device, state, position, at).await? {
                found = Some((head, bytes));
                break;
            }
        }
        let Some((head, bytes)) = found else { return Ok(()) };
        let skipped = if head.at >= position.at { 0 } else { region.end() - position.at };
        position.used += skipped + head.len_bytes();
        position.at = head.at + head.len_bytes();
        position.seq = head.seq + 1;
        position.durable_seq = head.seq;
        position.prev_crc = head.crc;
        let at = position.at;
        assert!((region.at..=region.end()).contains(&at), "the journal goes on at {at}");
        state.log.trimmed_before(head.trim_below);
        state.components.given_away_below(head.next_local);
        *log_to = (*log_to).max(head.log_to);
        let body = &bytes[JOURNAL_HEAD_LEN..JOURNAL_HEAD_LEN + head.body_len as usize];
        replay_records(state, body)?;
    }
}

/// The journal batch at `at`, if it is the next one.
async fn journal_batch<W: World>(
    device: &Device<W>,
    state: &State,
    position: &JournalPosition,
    at: u64,
) -> Result<Option<(JournalHead, Buf)>, OpenError> {
    let region = state.geometry.journal;
    let salt = state.geometry.salt;
    let Some(block) = read(device, at, BLOCK).await? else { return Ok(None) };
    let Ok(head) = JournalHead::peek(&block, at, salt) else { return Ok(None) };
    if head.seq != position.seq || at + head.len_bytes() > region.end() {
        return Ok(None);
    }
    let Some(bytes) = read(device, at, head.len_bytes()).await? else { return Ok(None) };
    match JournalHead::decode(&bytes, at, salt) {
        Ok((head, _)) if head.prev_crc == position.prev_crc => Ok(Some((head, bytes))),
        Ok(_) | Err(MetaError::Nothing | MetaError::Damaged) => Ok(None),
        Err(MetaError::Newer { what, value }) => Err(OpenError::Newer(format!("{what} {value}"))),
    }
}

/// Carries out the records of one journal batch. Its checksum was right, so contradictions mean a
/// program error or a newer format: refused.
fn replay_records(state: &mut State, body: &[u8]) -> Result<(), OpenError> {
    let bad = |what: &str| OpenError::Metadata(format!("a journal record: {what}"));
    let mut rest = body;
    while !rest.is_empty() {
        let (record, after) = JournalRecord::ref_from_prefix(rest).map_err(|_| bad("cut short"))?;
        rest = after;
        let local = record.component.get();
        let chunk_of = |block: u32| block / BLOCKS_PER_CHUNK;
        match record.kind {
            k if k == JournalKind::Component as u8 => {
                let len = record.block.get() as usize;
                let padded = len.next_multiple_of(32);
                let mut bytes = rest.get(..len).ok_or_else(|| bad("component cut short"))?;
                rest = rest.get(padded..).ok_or_else(|| bad("component cut short"))?;
                let (c, _) = component_record::decode(&mut bytes)
                    .map_err(|e| meta("a journaled component", e))?;
                restore(state, local, c)?;
            }
            k if k == JournalKind::Gone as u8 => {
                // It may have been made again, under another number, before it was forgotten.
                if let Some(c) = state.components.remove(local) {
                    let device = usize::from(c.device);
                    state.capacity.entries_changed(c.table.len(), 0);
                    for hot in c.hot.values() {
                        state.capacity.dirty_changed(device, hot.overlay.len(), 0);
                    }
                }
            }
            k => {
                let Some(c) = state.components.get(local) else {
                    return Err(bad("unknown component"));
                };
                let chunks = c.spec.blocks.div_ceil(BLOCKS_PER_CHUNK);
                let block_state =
                    BlockState::from_code(record.state).ok_or_else(|| bad("state"))?;
                if record.seq.get() > SEQ_MAX {
                    return Err(bad("seq"));
                }
                let seq = Seq(record.seq.get());
                let chunk = if k == JournalKind::Blocks as u8 {
                    chunk_of(record.block.get())
                } else {
                    record.block.get()
                };
                if chunk >= chunks {
                    return Err(bad("chunk outside the component"));
                }
                let entry = c.table.get(chunk);
                let mut home = ChunkHome {
                    whole: None,
                    slot: entry.slot,
                    newest: entry.max_seq,
                    overlay: &[],
                };
                let mut overlay = Vec::new();
                match k {
                    k if k == JournalKind::Whole as u8 => {
                        home.slot = NONE;
                        home.newest = home.newest.max(seq);
                        home.whole = Some(BlockEntry { crc: 0, seq, state: block_state });
                    }
                    k if k == JournalKind::Chunk as u8 => {
                        home.slot = record.slot.get();
                        home.newest = home.newest.max(seq);
                    }
                    k if k == JournalKind::Blocks as u8 => {
                        let first = record.block.get() % BLOCKS_PER_CHUNK;
                        let count = u32::from(record.count.get());
                        if count == 0 || first + count > BLOCKS_PER_CHUNK {
                            return Err(bad("range"));
                        }
                        let crc = record.crc.get();
                        let entry = BlockEntry { crc, seq, state: block_state };
                        overlay
                            .extend((first..first + count).map(|b| Overlay::new(b as u8, entry)));
                        home.overlay = believed(&overlay);
                    }
                    k => return Err(OpenError::Newer(format!("journal record {k}"))),
                }
                state.set_home(local, chunk, &home);
            }
        }
    }
    Ok(())
}

/// What is taken of the blocks of a journal record.
fn believed(overlay: &[Overlay]) -> &[Overlay] {
    if mutant!("recover.block_records_skipped") {
        return &[];
    }
    overlay
}

fn restore(state: &mut State, local: u32, c: Component) -> Result<(), OpenError> {
    let is_last = local == u32::MAX;
    if is_last || c.local != local || usize::from(c.device) >= state.capacity.devices() {
        return Err(OpenError::Metadata("a journaled component contradicts itself".into()));
    }
    state.components.given_away_below(local + 1);
    match state.components.get_mut(local) {
        Some(known) => known.restore(c),
        None => state.components.take(c),
    }
    Ok(())
}
