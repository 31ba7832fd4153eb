//! The index of the write log: which segments of its ring are in use, how many blocks of each are
//! still the newest version, and where destage has to look.
//!
//! The blocks themselves are found in their chunks ([`super::chunk`]); here they are counted. Only
//! this file changes the counts.
//!
//! Invariants: the segments from `trim_below` to `head_segment` are in use, fewer than the ring has
//! places; `blocks` is the sum of the live blocks of all places, and of the shares of all
//! components; a place is written anew only if no block lives in it and nobody reads it.

use crate::geometry::LogGeometry;
use crate::limits;
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK};
use atoll_world::mutant;
use std::collections::{BTreeMap, VecDeque};

/// What is known of the segment at one place of the ring.
#[derive(Clone, Default, Debug)]
struct Segment {
    /// Blocks whose newest version lies in it.
    live: u64,
    /// Reads of it under way: it is not overwritten before they end.
    readers: u32,
    /// What was put into it, in the order of the log; emptied as it is destaged. Whatever of a
    /// chunk lies in the segment lies less than [`limits::NOTE_SPAN`] blocks behind one of these.
    notes: VecDeque<DestageNote>,
}

/// From here on, and not much further, the log has blocks of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DestageNote {
    /// Block of the log device.
    pub at: u32,
    /// The component, by its local number.
    pub local: u32,
    pub chunk: u32,
}

/// How many blocks in the log are those of one component. Only [`LogIndex`] changes it.
#[derive(Default, Debug)]
pub(crate) struct LogShare(u64);

impl LogShare {
    pub(crate) fn blocks(&self) -> u64 {
        self.0
    }
}

/// See the file.
#[derive(Debug)]
pub(crate) struct LogIndex {
    geometry: LogGeometry,
    ring: Vec<Segment>,
    /// Segments below are free: the journal says so.
    trim_below: u64,
    /// The segment that is being written, and how far, in bytes.
    head_segment: u64,
    head_offset: u64,
    /// Live blocks of all segments, and how many there may be.
    blocks: u64,
    blocks_max: u64,
}

impl LogIndex {
    /// That of a log which has not been read yet.
    pub(crate) fn new(geometry: LogGeometry, blocks_max: u64) -> Self {
        Self {
            geometry,
            ring: vec![Segment::default(); geometry.segments as usize],
            trim_below: 1,
            head_segment: 1,
            head_offset: BLOCK,
            blocks: 0,
            blocks_max,
        }
    }

    pub(crate) fn trim_below(&self) -> u64 {
        self.trim_below
    }

    pub(crate) fn head_segment(&self) -> u64 {
        self.head_segment
    }

    pub(crate) fn head_offset(&self) -> u64 {
        self.head_offset
    }

    /// Byte of the log device where the next batch goes.
    pub(crate) fn head_at(&self) -> u64 {
        self.geometry.segment_at(self.head_segment) + self.head_offset
    }

    /// Bytes left in the segment that is being written.
    pub(crate) fn room(&self) -> u64 {
        self.assert_head();
        self.geometry.segment_len - self.head_offset
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether as many blocks are in the log as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.blocks >= self.blocks_max
    }

    /// How full the log is, 0 to 255: the larger of its bytes and its index.
    pub(crate) fn fill(&self) -> u8 {
        let held = self.head_segment.saturating_sub(self.trim_below);
        let bytes = held * self.geometry.segment_len + self.head_offset;
        let by_bytes = bytes * 255 / self.geometry.bytes();
        let by_index = self.blocks * 255 / self.blocks_max.max(1);
        by_bytes.max(by_index).min(255) as u8
    }

    /// The segments in use are fewer than the ring has places.
    pub(crate) fn assert_range(&self) {
        let (from, to) = (self.trim_below, self.head_segment);
        assert!(from <= to && to - from < self.geometry.segments, "a log from {from} to {to}");
    }

    /// The log goes on at a whole block within its segment.
    pub(crate) fn assert_head(&self) {
        let (offset, len) = (self.head_offset, self.geometry.segment_len);
        assert!(
            (BLOCK..=len).contains(&offset) && offset.is_multiple_of(BLOCK),
            "the log goes on at {offset} of a segment of {len} bytes"
        );
    }

    // ---- blocks ----

    /// `weight` blocks of a component whose newest version lies where block `at` of the log device
    /// does.
    pub(crate) fn add(&mut self, at: u32, weight: u64, share: &mut LogShare) {
        let segment = &mut self.ring[self.geometry.ring_index(at)];
        segment.live += weight;
        self.blocks += weight;
        share.0 += weight;
        let (live, here, all) = (segment.live, share.0, self.blocks);
        assert!(here <= all, "{here} blocks of one component in the log, {all} of all");
        assert!(live <= all, "{live} blocks live in a segment, {all} in all");
    }

    /// `weight` blocks there are no longer the newest version, or went home.
    pub(crate) fn remove(&mut self, at: u32, weight: u64, share: &mut LogShare) {
        let segment = &mut self.ring[self.geometry.ring_index(at)];
        let (live, here, all) = (segment.live, share.0, self.blocks);
        assert!(weight <= live, "{weight} of {live} live blocks leave a segment");
        assert!(weight <= here && here <= all, "{weight} blocks leave, of {here} and {all}");
        segment.live -= weight;
        self.blocks -= weight;
        share.0 -= weight;
    }

    // ---- notes for destage ----

    /// Notes that blocks of a chunk, no more than one operation has, begin at `note.at`, in the
    /// segment of the batch at block `batch`.
    pub(crate) fn note(&mut self, batch: u32, note: DestageNote) {
        let notes = &mut self.ring[self.geometry.ring_index(batch)].notes;
        let known = notes.back().is_some_and(|last| {
            let behind = note.at.checked_sub(last.at);
            (last.local, last.chunk) == (note.local, note.chunk)
                && behind.is_some_and(|n| n < limits::NOTE_SPAN - BLOCKS_PER_CHUNK)
        });
        if !known {
            notes.push_back(note);
        }
    }

    /// Takes the oldest note of the segment at that place of the ring.
    pub(crate) fn take_note(&mut self, place: usize) -> Option<DestageNote> {
        self.ring[place].notes.pop_front()
    }

    /// Makes a note the oldest of its place again.
    pub(crate) fn put_back_note(&mut self, place: usize, note: DestageNote) {
        self.ring[place].notes.push_front(note);
    }

    pub(crate) fn notes(&self) -> impl Iterator<Item = &DestageNote> {
        self.ring.iter().flat_map(|segment| &segment.notes)
    }

    // ---- readers ----

    /// A read of block `at` of the log device begins. Returns its place of the ring.
    pub(crate) fn begin_read(&mut self, at: u32) -> usize {
        let place = self.geometry.ring_index(at);
        self.ring[place].readers += 1;
        place
    }

    /// A read of that place has ended; whether it was the last one.
    pub(crate) fn end_read(&mut self, place: usize) -> bool {
        let readers = &mut self.ring[place].readers;
        assert!(*readers > 0, "more reads end than began");
        *readers -= 1;
        *readers == 0
    }

    // ---- the head ----

    /// A batch of so many bytes is durable.
    pub(crate) fn advance(&mut self, len_bytes: u64) {
        self.head_offset += len_bytes;
        self.assert_head();
    }

    /// Whether segment `next` may be written: its place is free, and nobody reads it.
    pub(crate) fn is_free(&self, next: u64) -> bool {
        if mutant!("log.overwrites_what_is_needed") {
            return self.ring[self.geometry.place_of(next)].readers == 0;
        }
        next - self.trim_below < self.geometry.segments
            && self.ring[self.geometry.place_of(next)].readers == 0
    }

    /// The place of segment `next` is about to be written.
    pub(crate) fn clear(&mut self, next: u64) {
        let segment = &mut self.ring[self.geometry.place_of(next)];
        let live = segment.live;
        assert!(live == 0, "{live} blocks live where segment {next} is to be written");
        *segment = Segment::default();
    }

    /// The header of segment `next` is durable: the log goes on there.
    pub(crate) fn begin_segment(&mut self, next: u64) {
        let before = self.head_segment;
        assert!(before + 1 == next, "segment {next} begins behind {before}");
        self.head_segment = next;
        self.head_offset = BLOCK;
    }

    // ---- trimming ----

    /// The first segment that is still needed once `less` (live blocks by place of the ring) are
    /// gone.
    pub(crate) fn trim_to(&self, less: &BTreeMap<usize, u64>) -> u64 {
        self.assert_range();
        let needed = |segment: &u64| {
            let place = self.geometry.place_of(*segment);
            let (live, leaves) = (self.ring[place].live, less.get(&place).copied().unwrap_or(0));
            assert!(leaves <= live, "{leaves} of {live} live blocks leave segment {segment}");
            live > leaves
        };
        if mutant!("destage.trims_too_far") {
            return self.head_segment;
        }
        (self.trim_below..self.head_segment).find(needed).unwrap_or(self.head_segment)
    }

    /// Segments below are free from here on: the journal says so.
    pub(crate) fn trim(&mut self, below: u64) {
        let (from, to) = (self.trim_below, self.head_segment);
        assert!((from..=to).contains(&below), "a log from {from} to {to} is trimmed to {below}");
        for segment in from..below {
            let live = self.ring[self.geometry.place_of(segment)].live;
            assert!(live == 0, "{live} blocks live in segment {segment}, which is trimmed");
        }
        self.trim_below = below;
    }

    // ---- recovery ----

    /// A checkpoint or a journal batch says that segments below are free.
    pub(crate) fn trimmed_before(&mut self, below: u64) {
        self.trim_below = self.trim_below.max(below);
    }

    /// Segment `segment` is about to be read: nothing is known of it.
    pub(crate) fn begin_replay(&mut self, segment: u64) {
        self.ring[self.geometry.place_of(segment)] = Segment::default();
    }

    /// The log was read up to there.
    pub(crate) fn replayed_to(&mut self, segment: u64, offset: u64) {
        let len = self.geometry.segment_len;
        assert!(offset <= len, "a batch ends at {offset} of a segment of {len} bytes");
        (self.head_segment, self.head_offset) = (segment, offset);
    }

    // ---- numbers ----

    /// Bytes of memory for so many blocks and notes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let notes: usize = self.ring.iter().map(|segment| segment.notes.len()).sum();
        self.blocks * limits::INDEX_BLOCK_BYTES + notes as u64 * limits::NOTE_BYTES
    }

    /// Compares the counts with `live`, the blocks that were counted at each place of the ring, and
    /// finds blocks where the log may be overwritten.
    ///
    /// # Errors
    /// What does not add up.
    pub(crate) fn audit(&self, live: &[u64]) -> Result<(), String> {
        let (from, to, places) = (self.trim_below, self.head_segment, self.geometry.segments);
        if to < from || to - from >= places {
            return Err(format!("the log goes from {from} to {to}, and has {places} places"));
        }
        for (place, (segment, &counted)) in self.ring.iter().zip(live).enumerate() {
            let said = segment.live;
            if said != counted {
                return Err(format!("live blocks of a segment: {said}, counted {counted}"));
            }
            let in_use = (from..=to).any(|segment| self.geometry.place_of(segment) == place);
            if said > 0 && !in_use {
                return Err(format!("{said} blocks live in a free segment"));
            }
        }
        let (said, counted) = (self.blocks, live.iter().sum::<u64>());
        if said != counted {
            return Err(format!("blocks in the log: {said}, counted {counted}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{DestageNote, LogIndex, LogShare};
    use crate::geometry::LogGeometry;
    use atoll_format::units::BLOCK;
    use std::collections::BTreeMap;

    /// Four segments of four blocks, the first at block 8.
    fn index() -> LogIndex {
        let geometry = LogGeometry { at: 8 * BLOCK, segment_len: 4 * BLOCK, segments: 4 };
        LogIndex::new(geometry, 100)
    }

    #[test]
    fn a_segment_is_trimmed_when_nothing_lives_in_it() {
        let (mut log, mut share) = (index(), LogShare::default());
        log.advance(3 * BLOCK);
        // Segment 1 lies at the second place of the ring.
        log.add(13, 2, &mut share);
        log.clear(2);
        log.begin_segment(2);
        assert_eq!(log.trim_to(&BTreeMap::new()), 1);
        assert_eq!(log.trim_to(&BTreeMap::from([(1, 2)])), 2);
        log.remove(14, 2, &mut share);
        assert_eq!((log.blocks(), share.blocks()), (0, 0));
        log.trim(2);
        assert!(log.audit(&[0; 4]).is_ok());
        assert!(log.is_free(4) && log.is_free(5) && !log.is_free(6));
        let place = log.begin_read(8);
        assert!(!log.is_free(4), "it is being read");
        assert!(log.end_read(place) && log.is_free(4));
    }

    #[test]
    fn what_lies_close_together_is_noted_once() {
        let mut log = index();
        for (at, chunk) in [(12, 0), (13, 0), (14, 1), (15, 0)] {
            log.note(12, DestageNote { at, local: 1, chunk });
        }
        let noted: Vec<_> = log.notes().map(|note| (note.at, note.chunk)).collect();
        assert_eq!(noted, [(12, 0), (14, 1), (15, 0)]);
        let first = log.take_note(1).expect("three");
        log.put_back_note(1, first);
        assert_eq!(log.notes().count(), 3);
        assert_eq!(size_of::<DestageNote>() as u64, crate::limits::NOTE_BYTES);
    }
}
