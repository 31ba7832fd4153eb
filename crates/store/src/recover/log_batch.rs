//! Carries out one batch of the log that recovery believes, and notes what the chain of batches
//! lacks.

use super::segment_reader::After;
use crate::error::OpenError;
use crate::state::State;
use crate::state::apply::{BatchPlace, payload_crcs};
use atoll_format::checksum::crc;
use atoll_format::log::{BatchHead, BatchView, Descriptor, FooterBuilder, LogKind};
use atoll_format::units::{BLOCK, BLOCK_LEN, COMPONENT_MAX, SEQ_MAX};
use atoll_world::mutant;

/// What the walk over the log has learnt.
#[derive(Default)]
pub(super) struct LogScan {
    /// The last batch that anything proves durable.
    pub log_to: u64,
    /// Batches up to this one are in the checkpoint.
    pub replay_after: u64,
    pub last_seq: u64,
    pub prev_crc: u32,
    /// The newest that anything was written in.
    pub generation: u64,
    /// The one that the last batch was written in, or the header of its segment.
    pub life: u64,
    pub journal_to: u64,
    pub footer: FooterBuilder,
    /// What is damaged, for people; not empty: some operations are unknown or blocks bad.
    pub damage: Vec<String>,
    /// Operations are missing of which nothing is known.
    pub unknown: bool,
}

impl LogScan {
    /// Where the log ends as far as it has been walked.
    pub(super) fn end(&self) -> After {
        After { seq: self.last_seq, generation: self.life }
    }
}

pub(super) fn lose(scan: &mut LogScan, what: String) {
    scan.unknown = true;
    scan.damage.push(what);
}

/// Notes that a batch comes next, and whether one before it is missing.
pub(super) fn follow(scan: &mut LogScan, head: &BatchHead, expected: &mut Option<u64>) {
    if expected.is_some_and(|e| e != head.seq) {
        lose(scan, format!("batches before {} are missing", head.seq));
    } else if scan.last_seq + 1 == head.seq && scan.prev_crc != head.prev_crc && scan.last_seq > 0 {
        lose(scan, format!("batch {} is not the one that {} followed", scan.last_seq, head.seq));
    }
    *expected = Some(head.seq + 1);
    scan.last_seq = head.seq;
    scan.prev_crc = head.head_crc;
    scan.log_to = scan.log_to.max(head.durable_to);
    scan.journal_to = scan.journal_to.max(head.journal_to);
    scan.generation = scan.generation.max(head.generation);
    scan.life = scan.life.max(head.generation);
}

/// Refuses what no store writes and no checkpoint can hold. The checksum of the batch was right, so
/// it means a program error: see `replay_records`.
fn check_op(op: &Descriptor) -> Result<(), OpenError> {
    let bad = |what: &str| Err(OpenError::Metadata(format!("a record of the log: {what}")));
    let blocks_max = COMPONENT_MAX / BLOCK;
    let end = u64::from(op.block.get()) + u64::from(op.blocks.get());
    match LogKind::from_code(op.kind) {
        Some(LogKind::Create) if op.component.get() == u32::MAX => bad("number of a component"),
        Some(LogKind::Create | LogKind::Grow)
            if op.block.get() == 0 || u64::from(op.block.get()) > blocks_max =>
        {
            bad("size of a component")
        }
        Some(LogKind::Committed | LogKind::Complete) if op.seq.get() > SEQ_MAX => bad("seq"),
        Some(kind) if kind.has_range() && op.seq.get() > SEQ_MAX => bad("seq"),
        Some(kind) if kind.has_range() && end > blocks_max => bad("range"),
        _ => Ok(()),
    }
}

/// The flaw of a recovery that knows no discards.
fn is_forgotten(op: &Descriptor) -> bool {
    mutant!("recover.discards_forgotten") && op.kind == LogKind::Discard as u8
}

/// Applies all descriptors of a batch. `payload` is checked if it is at hand; blocks that do not
/// match are marked bad.
pub(super) fn apply_view(
    state: &mut State,
    scan: &mut LogScan,
    view: &BatchView<'_>,
    payload: Option<&[u8]>,
) -> Result<(), OpenError> {
    if view.head.seq <= scan.replay_after {
        return Ok(());
    }
    let place = BatchPlace {
        batch: (view.head.at / BLOCK) as u32,
        payload: (view.head.payload_at() / BLOCK) as u32,
        segment: view.head.segment,
    };
    let mut list = Vec::new();
    for op in view.ops {
        if is_forgotten(op) {
            continue;
        }
        check_op(op)?;
        list.clear();
        let is_write = op.kind == LogKind::Write as u8;
        if is_write || op.kind == LogKind::Placed as u8 {
            list.extend(view.crcs(op));
        }
        let mut copy = *op;
        if op.blocks.get() != 1 {
            copy.crc = 0.into();
        }
        let mut one = [0];
        let crcs = payload_crcs(&copy, &mut one, &list);
        state.apply(&copy, crcs, place);
        if is_write && let Some(payload) = payload {
            check_payload(state, scan, op, &list, payload);
        }
    }
    Ok(())
}

fn check_payload(
    state: &mut State,
    scan: &mut LogScan,
    op: &Descriptor,
    crcs: &[u32],
    payload: &[u8],
) {
    for (i, &sum) in crcs.iter().enumerate() {
        let at = (op.payload_at.get() as usize + i) * BLOCK_LEN;
        let good = payload.get(at..at + BLOCK_LEN).is_some_and(|b| crc(b) == sum);
        if !good {
            let block = op.block.get() + i as u32;
            scan.damage.push(format!("block {block} of component {}", op.component.get()));
            state.mark_bad(op.component.get(), block);
        }
    }
}
