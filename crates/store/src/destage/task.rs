//! The chunks of a round, and what of them lay in the log when it began.

use crate::limits;
use crate::state::State;
use crate::state::chunk::{Pending, Whole};
use crate::state::component::Component;
use crate::state::home::home_entry;
use crate::state::log_index::DestageNote;
use atoll_format::chunk::{BlockEntry, ChunkEntry, NONE};
use atoll_format::id::Seq;
use atoll_format::op::BlockState;
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_world::{Buf, mutant};
use std::collections::BTreeMap;

/// One chunk of a round: what of it lay in the log when the round began.
pub(super) struct DestageTask {
    pub local: u32,
    pub chunk: u32,
    pub capacity: usize,
    /// Where in the ring its blocks lie.
    pub place: usize,
    pub pending: Vec<Pending>,
    pub whole: Option<Whole>,
    pub newest: Seq,
    pub entry: ChunkEntry,
    /// The slot that it has; `NONE`: none.
    pub home: u32,
    /// Slots that it has beside that of its entry, `home` among them if it is not the entry's.
    pub extra: Vec<u32>,
    /// A slot that the round has taken for it.
    pub new_slot: Option<u32>,
    /// Its bytes, by index into `pending`; none: damaged or without bytes.
    pub bytes: Vec<Option<Buf>>,
    /// Whether any block of it will have bytes at home.
    pub keeps_slot: bool,
}

impl DestageTask {
    pub(super) fn slot(&self) -> u32 {
        self.new_slot.unwrap_or(self.home)
    }

    /// The slot that it has from now on, or `NONE`.
    pub(super) fn final_slot(&self) -> u32 {
        if self.keeps_slot { self.slot() } else { NONE }
    }

    /// What its blocks are at home from now on: those that lay in the log, and all of a chunk
    /// that was placed. Ascending.
    pub(super) fn entries(&self, c: &Component) -> Vec<(u8, BlockEntry)> {
        let logged = self.pending.iter().zip(&self.bytes).map(|(p, bytes)| {
            let block = self.chunk * BLOCKS_PER_CHUNK + u32::from(p.block());
            let good = bytes.is_some() || p.state() != BlockState::Raw;
            (p.block(), home_entry(c, block, p, good))
        });
        assert!(self.pending.len() == self.bytes.len(), "bytes of other blocks");
        let Some(whole) = self.whole.as_ref().filter(|w| w.slot().is_some()) else {
            return logged.collect();
        };
        let mut logged = logged.peekable();
        let entry = |i: u8| {
            logged.next_if(|(block, _)| *block == i).unwrap_or_else(|| {
                let tag = whole.tag(i);
                let block = self.chunk * BLOCKS_PER_CHUNK + u32::from(i);
                let crc = atoll_format::checksum::bind(tag.crc, c.id, u64::from(block));
                (i, BlockEntry { crc, seq: tag.seq, state: tag.state })
            })
        };
        (0..=u8::MAX).map(entry).collect()
    }
}

pub(super) fn select(state: &mut State, bound: impl Fn(usize, usize) -> usize) -> Vec<DestageTask> {
    let mut tasks: Vec<DestageTask> = Vec::new();
    // With the window that each was taken from.
    let mut seen = BTreeMap::new();
    let mut blocks = 0;
    let chunks_max = state.capacity.round_chunks().min(bound(limits::ROUND_CHUNKS, 3));
    let blocks_max = bound(limits::ROUND_BLOCKS, BLOCKS_PER_CHUNK as usize);
    for segment in state.log.trim_below()..=state.log.head_segment() {
        let index = state.geometry.log.place_of(segment);
        let mut next_time = Vec::new();
        let mut window = 0;
        while blocks < blocks_max && tasks.len() < chunks_max {
            let Some(note) = state.log.take_note(index) else { break };
            let DestageNote { at, local, chunk } = note;
            if at >= window {
                if blocks >= blocks_max / 2 {
                    state.log.put_back_note(index, note);
                    break;
                }
                window = at.saturating_add(limits::ROUND_SPAN);
            }
            match seen.get(&(local, chunk)) {
                Some(&before) if before == (segment, window) => continue,
                // A chunk is in a round once: what it has here comes with another.
                Some(_) => {
                    next_time.push(note);
                    continue;
                }
                None => seen.insert((local, chunk), (segment, window)),
            };
            let Some(c) = state.components.get(local) else { continue };
            let Some(hot) = c.hot.get(&chunk) else { continue };
            // Only what lies together: a few large reads, where the blocks of one chunk are
            // scattered over the whole log. Behind the window, so that nothing is left of what
            // was noted within.
            let end = window.saturating_add(limits::NOTE_SPAN);
            let lies_here = |at: u32| state.geometry.log.ring_index(at) == index && at < end;
            let pending: Vec<Pending> =
                hot.pending.iter().filter(|p| lies_here(p.at)).copied().collect();
            if pending.is_empty() && !hot.whole.as_ref().is_some_and(|w| lies_here(w.at)) {
                seen.remove(&(local, chunk));
                continue;
            }
            assert!(!c.is_lost(), "chunk {chunk} of {}, which is lost, lies in the log", c.id);
            let entry = c.table.get(chunk);
            let placed = hot.whole.as_ref().and_then(Whole::slot);
            blocks += pending.len().max(1);
            blocks += if placed.is_some() { limits::PLACED_BLOCKS } else { 0 };
            let has = if entry.slot != NONE { Some(entry.slot) } else { hot.extra_slot() };
            let device = usize::from(c.device);
            let owned = placed.or(has).is_none_or(|slot| state.capacity.is_slot_used(device, slot));
            assert!(owned, "the slot of chunk {chunk} of {} is free", c.id);
            assert!(
                !hot.reserved.is_slot_taken(),
                "chunk {chunk} of {} is in a round already",
                c.id
            );
            tasks.push(DestageTask {
                local,
                chunk,
                capacity: device,
                place: index,
                bytes: vec![None; pending.len()],
                pending,
                whole: hot.whole.clone(),
                newest: hot.newest,
                entry,
                home: placed.or(has).unwrap_or(NONE),
                extra: hot.extra_slots(&entry),
                new_slot: None,
                keeps_slot: true,
            });
        }
        keep_for_next_round(state, index, next_time);
    }
    tasks
}

/// What a round left behind, oldest first, is what the next one begins with.
fn keep_for_next_round(state: &mut State, place: usize, notes: Vec<DestageNote>) {
    if mutant!("destage.rest_forgotten") {
        return;
    }
    for note in notes.into_iter().rev() {
        state.log.put_back_note(place, note);
    }
}
