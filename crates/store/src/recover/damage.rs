//! What recovery makes of a damaged log: who may lack what.
//!
//! Invariant: no older record of the log wins over what was destaged later.

use super::log_batch::LogScan;
use crate::device::Device;
use crate::state::State;
use crate::state::chunk::{Pending, Whole};
use crate::state::component::Component;
use atoll_format::chunk::{BlockEntry, PAGE_LEN, page_entry};
use atoll_format::id::Seq;
use atoll_format::units::{OPS_IN_FLIGHT_MAX, SEQ_MAX};
use atoll_world::components::StoreEvent;
use atoll_world::{World, mutant, sometimes};
use std::collections::BTreeMap;

/// More local numbers than a damaged part of the log can have given away.
const LOCALS_SKIPPED: u32 = 1 << 14;

/// Damage was found: says so, marks what may be missing, and lets older records of the log not
/// win over what was destaged later.
pub(super) async fn mark_damage<W: World>(
    devices: &[Device<W>],
    state: &mut State,
    scan: &LogScan,
) {
    sometimes!("store.recover.log_damage");
    for what in &scan.damage {
        state.event(StoreEvent::LogDamage(what.clone()));
    }
    if !scan.unknown {
        return;
    }
    // Creations may be among what is missing: their local numbers are not used again, or records of
    // two components would meet under one should the log be readable again.
    let next_local = state.components.next_local();
    state.components.given_away_below(next_local.saturating_add(LOCALS_SKIPPED));
    for c in state.components.values_mut() {
        let until = Seq((c.promise.newest.0 + OPS_IN_FLIGHT_MAX).min(SEQ_MAX - 1));
        assert!(until.0 < SEQ_MAX, "{} would count as lost for good", c.id);
        doubt(c, until);
    }
    drop_superseded(devices, state).await;
}

/// A component may lack operations: it counts for no answer until `until` is committed.
fn doubt(c: &mut Component, until: Seq) {
    if mutant!("recover.no_doubt") {
        return;
    }
    c.doubt_until = c.doubt_until.max(until);
}

/// A record that was newer than what the log now shows may have been destaged before it was lost:
/// per block the greater of log seq and page seq wins.
async fn drop_superseded<W: World>(devices: &[Device<W>], state: &mut State) {
    let hot: Vec<(u32, u32)> = state
        .components
        .values()
        .flat_map(|c| c.hot.keys().map(|&chunk| (c.local, chunk)).collect::<Vec<_>>())
        .collect();
    for (local, chunk) in hot {
        let Some(c) = state.components.get(local) else { continue };
        let entry = c.table.get(chunk);
        let mut page = None;
        if let Some(place) = state.page_place(c, chunk) {
            let read = devices[place.device].read_patiently(place.at, PAGE_LEN as u32).await;
            page = read.ok().flatten().filter(|bytes| place.is_of(bytes));
        }
        let Some(c) = state.components.get_mut(local) else { continue };
        let Some(hot) = c.hot.get_mut(&chunk) else { continue };
        let overlay: BTreeMap<u8, BlockEntry> =
            hot.overlay.iter().map(|o| (o.block(), o.entry())).collect();
        let home_seq = |block: u8| match (overlay.get(&block), &page) {
            (Some(e), _) => e.seq,
            (None, Some(page)) => page_entry(page, usize::from(block)).seq,
            (None, None) => entry.base().seq,
        };
        let mut dropped = Vec::new();
        hot.pending.retain(|p| {
            let keep = p.seq() > home_seq(p.block());
            if !keep {
                dropped.push((p.at, 1));
            }
            keep
        });
        if let Some(slot) = hot.whole.as_ref().and_then(Whole::slot)
            && let Some(whole) = hot.whole.take_if(|w| (0..=u8::MAX).any(|b| home_seq(b) >= w.seq))
        {
            // Blocks at home are as new: it was destaged, or superseded by what was.
            dropped.push((whole.at, whole.weight()));
            if slot != entry.slot {
                state.capacity.free_slot_now(usize::from(c.device), slot);
            }
        }
        if let Some(whole) = hot.whole.clone()
            && let Some(uniform) = whole.uniform()
            && (0..=u8::MAX).any(|b| home_seq(b) > whole.seq)
        {
            // Some blocks are newer than the discard: it is kept for the others only.
            hot.whole = None;
            dropped.push((whole.at, 1));
            let left: Vec<Pending> = (0..=u8::MAX)
                .filter(|&b| home_seq(b) < whole.seq && hot.pending_at(b).is_none())
                .map(|b| Pending::new(b, uniform.state, whole.seq, whole.at, 0))
                .collect();
            state.log.add(whole.at, left.len() as u64, &mut c.log_share);
            let mut merged: Vec<_> = hot.pending.iter().copied().chain(left).collect();
            merged.sort_by_key(Pending::block);
            let rises = merged.is_sorted_by(|a, b| a.block() < b.block());
            assert!(rises, "blocks of chunk {chunk} twice: {merged:?}");
            hot.pending = merged;
        }
        let newest = hot.pending.iter().map(|p| p.seq()).max();
        assert!(newest.is_none_or(|newest| newest <= hot.newest), "{newest:?} in {:?}", hot.newest);
        for (at, weight) in dropped {
            state.log.remove(at, weight, &mut c.log_share);
        }
    }
}
