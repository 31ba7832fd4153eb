//! Builds the maps of slots and pages from what chunks refer to.
//!
//! Invariant: a slot has one owner; of two chunks that claim it the later one in the log has it.

use crate::error::OpenError;
use crate::state::State;
use crate::state::chunk::{Pending, Whole};
use atoll_format::chunk::NONE;
use atoll_format::op::BlockState;
use atoll_world::{mutant, sometimes};

/// Marks slots and pages that chunks refer to as taken.
pub(super) fn build_space(state: &mut State) -> Result<(), OpenError> {
    for c in state.components.values() {
        let device = usize::from(c.device);
        for (chunk, entry) in c.table.iter() {
            if entry.slot != NONE && !state.capacity.claim_slot(device, entry.slot) {
                return Err(OpenError::Metadata(format!(
                    "slot {} of chunk {chunk} of {} has two owners or lies outside",
                    entry.slot, c.id
                )));
            }
            if entry.page != NONE && !state.capacity.claim_page(device, entry.page) {
                return Err(OpenError::Metadata(format!(
                    "page {} of chunk {chunk} of {} has two owners or lies outside",
                    entry.page, c.id
                )));
            }
        }
    }
    Ok(())
}

/// Takes the slots of placed chunks that the journal does not know yet. A slot with two owners
/// means that the record which gave it up was lost with a part of the log: the chunk that claimed
/// it first in the log, or only in the log, has no bytes there any more.
pub(super) fn claim_placed(state: &mut State) {
    if mutant!("recover.placed_not_claimed") {
        return;
    }
    let mut claims: Vec<(u64, u32, u32, u32)> = Vec::new();
    for c in state.components.values() {
        for (&chunk, hot) in &c.hot {
            let Some(whole) = hot.whole.as_ref().filter(|w| w.slot().is_some()) else { continue };
            // Segments take turns at their places: the newest ones come last.
            let place = state.geometry.log.ring_index(whole.at) as u64;
            let n = state.geometry.log.segments;
            let age = (place + n - state.log.trim_below() % n) % n;
            let held = state.log.head_segment() - state.log.trim_below();
            assert!(age <= held, "chunk {chunk} of {} lies {age} segments into {held}", c.id);
            assert!(hot.spare.is_empty(), "{:?} were spared while the log was read", hot.spare);
            claims.push((age, whole.at, c.local, chunk));
        }
    }
    claims.sort_unstable();
    for (_, _, local, chunk) in claims.into_iter().rev() {
        let Some(c) = state.components.get_mut(local) else { continue };
        let Some(hot) = c.hot.get_mut(&chunk) else { continue };
        let Some(slot) = hot.whole.as_ref().and_then(Whole::slot) else { continue };
        let known = c.table.get(chunk).slot == slot;
        if known || state.capacity.claim_slot(usize::from(c.device), slot) {
            continue;
        }
        sometimes!("store.recover.placed_slot_has_two_owners");
        let Some(whole) = hot.whole.take() else { continue };
        let mut blocks: Vec<Pending> = (0..=u8::MAX)
            .filter(|&b| hot.pending_at(b).is_none())
            .map(|b| Pending::new(b, BlockState::Bad, whole.seq, whole.at, 0))
            .collect();
        let (added, lost) = (blocks.len() as u64, whole.weight());
        blocks.append(&mut hot.pending);
        blocks.sort_by_key(Pending::block);
        let each = (0..=u8::MAX).eq(blocks.iter().map(Pending::block));
        assert!(each, "{} blocks of chunk {chunk} in the place of all", blocks.len());
        hot.pending = blocks;
        state.log.add(whole.at, added, &mut c.log_share);
        state.log.remove(whole.at, lost, &mut c.log_share);
    }
}
