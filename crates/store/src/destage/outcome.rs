//! What a round leads to: its records for the journal, and, once these are durable, its changes in
//! memory; or that it is undone.

use super::task::DestageTask;
use crate::group::Group;
use crate::metadata::journal::JournalRecords;
use crate::state::State;
use crate::state::chunk::{Overlay, Pending, Whole};
use crate::state::component::Component;
use crate::state::home::{ChunkHome, GivenUp};
use crate::state::log_index::DestageNote;
use atoll_format::chunk::{BlockEntry, JournalKind, NONE};
use atoll_format::op::BlockState;
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_world::{FixedMap, World, mutant, sometimes};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A device failed in the middle: what the other devices were to get is left for the next round.
pub(super) fn put_back<W: World>(group: &Rc<Group<W>>, tasks: &[DestageTask]) {
    sometimes!("store.destage.put_back");
    let mut state = group.state.borrow_mut();
    for task in tasks.iter().rev() {
        if let Some(slot) = task.new_slot {
            assert!(task.home == NONE, "chunk {} had slot {}", task.chunk, task.home);
            let State { components, capacity, .. } = &mut *state;
            capacity.free_slot_now(task.capacity, slot);
            let c = components.get_mut(task.local);
            if let Some(hot) = c.and_then(|c| c.hot.get_mut(&task.chunk)) {
                capacity.end_taking(&mut hot.reserved);
            }
            state.reserve_lost(task.local, task.chunk);
        }
        let ring = state.geometry.log;
        let here = |&at: &u32| ring.ring_index(at) == task.place;
        let whole = task.whole.iter().map(|w| w.at).filter(here);
        for at in whole.chain(task.pending.iter().map(|p| p.at)) {
            let note = DestageNote { at, local: task.local, chunk: task.chunk };
            state.log.put_back_note(task.place, note);
        }
    }
}

/// Live blocks that a round takes from each segment: those that are still the newest.
pub(super) fn leaving(state: &State, tasks: &[DestageTask]) -> BTreeMap<usize, u64> {
    let mut less = BTreeMap::new();
    for task in tasks {
        let Some(hot) = state.components.get(task.local).and_then(|c| c.hot.get(&task.chunk))
        else {
            continue;
        };
        let pending = task.pending.iter().filter(|p| hot.pending_at(p.block()) == Some(p));
        let whole = task.whole.as_ref().filter(|w| hot.whole.as_ref() == Some(*w));
        let whole = whole.map(|w| (w.at, w.weight()));
        for (at, weight) in pending.map(|p| (p.at, 1)).chain(whole) {
            *less.entry(state.geometry.log.ring_index(at)).or_insert(0) += weight;
        }
    }
    less
}

/// The journal records of a round.
pub(super) fn describe(
    state: &mut State,
    tasks: &[DestageTask],
    trim_below: u64,
) -> JournalRecords {
    let mut records = JournalRecords::default();
    let in_round: BTreeSet<u32> = tasks.iter().map(|t| t.local).collect();
    let mut bytes = Vec::new();
    for c in state.components.values_mut() {
        let trimmed = c.unsaved_from.is_some_and(|s| s < trim_below);
        let unknown = !is_size_saved(c) && in_round.contains(&c.local);
        if c.durable && (trimmed || unknown) {
            bytes.clear();
            c.encode(0, &mut bytes);
            records.push_component(c.local, &bytes);
            c.saved_blocks = c.spec.blocks;
            c.unsaved_from = None;
            c.committed_logged = c.promise.committed;
        }
    }
    for &(segment, local) in state.components.tombstones() {
        if segment < trim_below {
            records.push(JournalKind::Gone, |r| r.component = local.into());
        }
    }
    for task in tasks {
        let Some(c) = state.components.get(task.local) else { continue };
        if let Some(whole) = recorded_whole(task) {
            records.push(JournalKind::Whole, |r| {
                r.component = task.local.into();
                r.block = task.chunk.into();
                r.state = whole.state as u8;
                r.seq = whole.seq.0.into();
            });
        }
        let slot = task.final_slot();
        let (known, chunk) = (c.saved_blocks.div_ceil(BLOCKS_PER_CHUNK), task.chunk);
        assert!(c.is_lost() || chunk < known, "chunk {chunk} of {}, known are {known}", c.id);
        assert!((slot != NONE) == task.keeps_slot, "chunk {chunk} of {}: slot {slot}", c.id);
        records.push(JournalKind::Chunk, |r| {
            r.component = task.local.into();
            r.block = task.chunk.into();
            r.slot = slot.into();
            r.seq = task.newest.0.into();
        });
        let mut run: Option<(u32, u16, BlockEntry)> = None;
        let mut push = |first: u32, count: u16, entry: BlockEntry| {
            records.push(JournalKind::Blocks, |r| {
                r.component = task.local.into();
                r.block = first.into();
                r.count = count.into();
                r.state = entry.state as u8;
                r.seq = entry.seq.0.into();
                r.crc = entry.crc.into();
            });
        };
        for (block, entry) in task.entries(c) {
            let homeless = entry.state == BlockState::Raw && slot == NONE;
            assert!(!homeless, "block {block} of chunk {chunk} of {} has no slot", c.id);
            let newest = task.newest;
            assert!(entry.seq <= newest, "block {block}: {:?} in {newest:?}", entry.seq);
            let block = task.chunk * BLOCKS_PER_CHUNK + u32::from(block);
            match &mut run {
                Some((first, count, same))
                    if *same == entry
                        && entry.state != BlockState::Raw
                        && *first + u32::from(*count) == block =>
                {
                    *count += 1;
                }
                _ => {
                    if let Some((first, count, entry)) = run.replace((block, 1, entry)) {
                        push(first, count, entry);
                    }
                }
            }
        }
        if let Some((first, count, entry)) = run {
            push(first, count, entry);
        }
    }
    records
}

/// Whether the journal knows the component, and at its present size.
fn is_size_saved(c: &Component) -> bool {
    if mutant!("destage.growth_not_recorded") {
        return c.is_saved();
    }
    c.saved_blocks == c.spec.blocks
}

/// What all blocks of the chunk became, if they became the same.
fn recorded_whole(task: &DestageTask) -> Option<BlockEntry> {
    if mutant!("destage.whole_not_recorded") {
        return None;
    }
    task.whole.as_ref().and_then(Whole::uniform)
}

/// Whether what lies in the log of a block is what the round has moved.
fn is_home_now(p: &Pending, moved: Option<&Pending>) -> bool {
    if mutant!("destage.the_older_wins") {
        return moved.is_some();
    }
    moved == Some(p)
}

/// The journal has it: the chunk's home is what the task made of it.
pub(super) fn install(state: &mut State, task: &DestageTask) {
    let Some(c) = state.components.get_mut(task.local).filter(|c| !c.is_lost()) else {
        // Deleted or lost meanwhile: its slots are free again, this one was not yet among them.
        if let Some(slot) = task.new_slot {
            state.capacity.free_slot_now(task.capacity, slot);
        }
        return;
    };
    let overlay: Vec<Overlay> =
        task.entries(c).into_iter().map(|(block, entry)| Overlay::new(block, entry)).collect();
    let (id, chunk, entry) = (c.id, task.chunk, c.table.get(task.chunk));
    assert!(entry == task.entry, "chunk {chunk} of {id} got another home during its round");
    let hot = c.hot.entry(task.chunk).or_default();
    let (taken, new) = (hot.reserved.is_slot_taken(), task.new_slot);
    assert!(taken == new.is_some(), "chunk {chunk} of {id}: {new:?} is its new slot");
    state.capacity.end_taking(&mut hot.reserved);
    let snapshot: FixedMap<u8, Pending> = task.pending.iter().map(|p| (p.block(), *p)).collect();
    let mut left = Vec::new();
    hot.pending.retain(|p| {
        let known = snapshot.get(&p.block());
        let same = is_home_now(p, known);
        if same {
            left.push((p.at, 1));
        }
        !same
    });
    let (before, stay) = (snapshot.len(), hot.pending.len());
    assert!(left.len() <= before, "{} of {before} blocks leave, {stay} stay", left.len());
    hot.pending.shrink_to_fit();
    if let Some(whole) = &task.whole
        && hot.whole.as_ref() == Some(whole)
    {
        hot.whole = None;
        left.push((whole.at, whole.weight()));
    }
    // What was superseded when the round began is no longer needed: the journal knows it. Its
    // own slot is the entry's from here on, also if it was superseded meanwhile.
    hot.spare.retain(|slot| !task.extra.contains(slot));
    for (at, weight) in left {
        state.log.remove(at, weight, &mut c.log_share);
    }
    let home = ChunkHome {
        whole: task.whole.as_ref().and_then(Whole::uniform),
        slot: task.final_slot(),
        newest: task.newest,
        overlay: &overlay,
    };
    let owned = home.slot == NONE || state.capacity.is_slot_used(task.capacity, home.slot);
    assert!(owned, "chunk {chunk} of {id} goes to slot {}, which is free", home.slot);
    let GivenUp { slot, page } = state.set_home(task.local, task.chunk, &home);
    assert!(slot.is_none_or(|slot| slot == task.entry.slot), "chunk {chunk} gives up {slot:?}");
    let extra = task.extra.iter().copied().filter(|&extra| extra != home.slot);
    for slot in slot.into_iter().chain(extra) {
        state.capacity.free_slot_now(task.capacity, slot);
    }
    if let Some(page) = page {
        state.capacity.retire_page(task.capacity, page);
        state.page_cache.remove((task.local, task.chunk));
    }
    state.reserve_lost(task.local, task.chunk);
    state.settle(task.local, task.chunk);
}
