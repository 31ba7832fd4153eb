//! What memory knows of one chunk beyond the chunk table: blocks whose newest version lies in the
//! write log, and blocks that were destaged since the last checkpoint.
//!
//! A block is looked up in this order: `pending`, `whole`, `overlay`, then page or base of the
//! chunk's entry. `pending` and `whole` are rebuilt from the log, `overlay` from the journal.
//!
//! Invariants: `pending` and `overlay` are sorted by block without repetition; every `Pending` is
//! counted once as live in the segment it lies in.

use super::capacity::Reservation;
use crate::limits::{HOT_CHUNK_BYTES, PLACED_WEIGHT};
use atoll_format::chunk::{BlockEntry, ChunkEntry};
use atoll_format::id::Seq;
use atoll_format::op::{BlockState, BlockTag};
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_world::Nanos;
use std::rc::Rc;

/// One block whose newest version lies in the log: 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    /// seq (48 bits), block in the chunk (8), state (8).
    packed: u64,
    /// Block of the log device: its payload; for states without bytes, its batch.
    pub at: u32,
    /// CRC-32C of the payload, not bound.
    pub crc: u32,
}

impl Pending {
    pub(crate) fn new(block: u8, state: BlockState, seq: Seq, at: u32, crc: u32) -> Self {
        Self { packed: (seq.0 << 16) | (u64::from(block) << 8) | state as u64, at, crc }
    }
    pub(crate) fn block(&self) -> u8 {
        (self.packed >> 8) as u8
    }
    pub(crate) fn seq(&self) -> Seq {
        Seq(self.packed >> 16)
    }
    pub(crate) fn state(&self) -> BlockState {
        BlockState::from_code(self.packed as u8).expect("made from a state")
    }
}

/// What one operation made of all 256 blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum WholeContent {
    Absent,
    Zero,
    /// Their bytes lie in a slot that belongs to the chunk, beside that of its entry.
    Placed {
        slot: u32,
        /// CRC-32C of each payload, not bound.
        crcs: Rc<[u32]>,
    },
}

/// All 256 blocks were zeroed, discarded or written elsewhere by one operation in the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Whole {
    pub content: WholeContent,
    pub seq: Seq,
    /// Block of the log device where its batch lies.
    pub at: u32,
}

impl Whole {
    /// State and seq of every block, and the CRC of that one, not bound.
    pub(crate) fn tag(&self, block: u8) -> BlockTag {
        let (state, crc) = match &self.content {
            WholeContent::Absent => (BlockState::Absent, 0),
            WholeContent::Zero => (BlockState::Zero, 0),
            WholeContent::Placed { crcs, .. } => (BlockState::Raw, crcs[usize::from(block)]),
        };
        BlockTag { seq: self.seq, state, crc }
    }

    /// The entry of every block alike; none if they differ.
    pub(crate) fn uniform(&self) -> Option<BlockEntry> {
        let BlockTag { seq, state, .. } = self.tag(0);
        (state != BlockState::Raw).then_some(BlockEntry { crc: 0, seq, state })
    }

    /// The slot where the bytes are, if it has any.
    pub(crate) fn slot(&self) -> Option<u32> {
        match self.content {
            WholeContent::Placed { slot, .. } => Some(slot),
            WholeContent::Absent | WholeContent::Zero => None,
        }
    }

    /// What it counts for in the index of the log, by its memory.
    pub(crate) fn weight(&self) -> u64 {
        if self.slot().is_some() { PLACED_WEIGHT } else { 1 }
    }
}

/// One block that was destaged since the last checkpoint: 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overlay {
    packed: u64,
    crc: u32,
}

impl Overlay {
    pub(crate) fn new(block: u8, entry: BlockEntry) -> Self {
        let packed = (entry.seq.0 << 16) | (u64::from(block) << 8) | entry.state as u64;
        Self { packed, crc: entry.crc }
    }
    pub(crate) fn block(&self) -> u8 {
        (self.packed >> 8) as u8
    }
    pub(crate) fn entry(&self) -> BlockEntry {
        let state = BlockState::from_code(self.packed as u8).expect("made from a state");
        BlockEntry { crc: self.crc, seq: Seq(self.packed >> 16), state }
    }
}

/// See the file.
#[derive(Default, Debug)]
pub(crate) struct HotChunk {
    pub pending: Vec<Pending>,
    pub whole: Option<Whole>,
    /// Slots of placed writes that were superseded before the journal knew of them: the chunk's
    /// until it knows. Not empty only beside a `whole`.
    pub spare: Vec<u32>,
    pub overlay: Vec<Overlay>,
    /// Newest operation that touched the chunk and is not yet in its entry.
    pub newest: Seq,
    /// Operations on the chunk that wait for the log.
    pub queued: u32,
    /// Not 0: what is set aside is kept for an append that was announced, until then.
    pub held_until: Nanos,
    /// Set aside, so that what was acknowledged can be destaged.
    pub reserved: Reservation,
}

// Nodes of the tree hold 6 to 11 entries.
const _: () = assert!((size_of::<HotChunk>() as u64 + 4) * 11 / 6 <= HOT_CHUNK_BYTES);

impl HotChunk {
    pub(crate) fn pending_at(&self, block: u8) -> Option<&Pending> {
        let i = self.pending.binary_search_by_key(&block, Pending::block).ok()?;
        Some(&self.pending[i])
    }

    pub(crate) fn overlay_at(&self, block: u8) -> Option<BlockEntry> {
        let i = self.overlay.binary_search_by_key(&block, Overlay::block).ok()?;
        Some(self.overlay[i].entry())
    }

    /// A slot of the chunk that its entry does not name yet.
    pub(crate) fn extra_slot(&self) -> Option<u32> {
        self.whole.as_ref().and_then(Whole::slot).or(self.spare.first().copied())
    }

    /// Every slot of the chunk that its entry does not name.
    pub(crate) fn extra_slots(&self, entry: &ChunkEntry) -> Vec<u32> {
        assert!(self.spare.is_empty() || self.whole.is_some(), "spare slots of no placed chunk");
        let placed = self.whole.as_ref().and_then(Whole::slot);
        let all = self.spare.iter().copied().chain(placed);
        all.filter(|&slot| slot != entry.slot).collect()
    }

    /// What of the chunk lies in the log: block of the log device, and what it counts for there.
    pub(crate) fn in_log(&self) -> impl Iterator<Item = (u32, u64)> {
        let whole = self.whole.iter().map(|w| (w.at, w.weight()));
        self.pending.iter().map(|p| (p.at, 1)).chain(whole)
    }

    /// Whether a block has bytes in the log that need a slot.
    pub(crate) fn has_bytes_in_log(&self) -> bool {
        self.pending.iter().any(|p| p.state() == BlockState::Raw)
    }

    /// Nothing of the chunk lies in the log or is on its way there.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty()
            && self.whole.is_none()
            && self.queued == 0
            && self.held_until == Nanos::ZERO
    }

    /// Puts in blocks, ascending and adjacent; `gone` is told where each replaced one lay, and
    /// what it counted for.
    pub(crate) fn put(&mut self, new: &[Pending], mut gone: impl FnMut(u32, u64)) {
        let (Some(first), Some(last)) = (new.first(), new.last()) else { return };
        assert!(
            usize::from(last.block() - first.block()) + 1 == new.len(),
            "{} blocks from {first:?} to {last:?}",
            new.len()
        );
        let before = self.pending.len();
        let from = self.pending.partition_point(|p| p.block() < first.block());
        let old = self.pending[from..].iter().take(new.len());
        let to = from + old.take_while(|p| p.block() <= last.block()).count();
        for old in &self.pending[from..to] {
            gone(old.at, 1);
        }
        if self.pending.is_empty() {
            // Exactly: of most chunks no other block comes before they are destaged.
            self.pending = new.to_vec();
        } else if to - from == new.len() {
            self.pending[from..to].copy_from_slice(new);
        } else if let [one] = new {
            self.pending.insert(from, *one);
        } else {
            self.pending.splice(from..to, new.iter().copied());
        }
        let (end, len) = (from + new.len(), self.pending.len());
        assert!(len + (to - from) == before + new.len(), "{before} blocks became {len}");
        assert!(
            self.pending[from] == *first && self.pending[end - 1] == *last,
            "what was put in lies elsewhere"
        );
        assert!(
            (from == 0 || self.pending[from - 1].block() < first.block())
                && self.pending.get(end).is_none_or(|next| next.block() > last.block()),
            "blocks twice or out of order beside {first:?} to {last:?}"
        );
    }

    /// One operation covers the chunk: everything older is superseded. Returns the slot that is
    /// superseded with it.
    pub(crate) fn put_whole(
        &mut self,
        whole: Whole,
        mut gone: impl FnMut(u32, u64),
    ) -> Option<u32> {
        if let WholeContent::Placed { crcs, .. } = &whole.content {
            let sums = crcs.len();
            assert!(sums == BLOCKS_PER_CHUNK as usize, "{sums} checksums of a whole chunk");
        }
        for old in self.pending.drain(..) {
            gone(old.at, 1);
        }
        self.pending.shrink_to_fit();
        let old = self.whole.replace(whole)?;
        gone(old.at, old.weight());
        old.slot()
    }

    /// Sets destaged blocks, ascending without repetition.
    pub(crate) fn put_overlay(&mut self, new: &[Overlay]) {
        let rises = new.is_sorted_by(|a, b| a.block() < b.block());
        assert!(rises, "destaged blocks twice or out of order");
        let before = self.overlay.len();
        let mut merged = Vec::with_capacity(before + new.len());
        let mut old = self.overlay.iter().copied().peekable();
        for &n in new {
            while let Some(o) = old.next_if(|o| o.block() < n.block()) {
                merged.push(o);
            }
            old.next_if(|o| o.block() == n.block());
            merged.push(n);
        }
        merged.extend(old);
        self.overlay = merged;
        let after = self.overlay.len();
        assert!(
            (before.max(new.len())..=before + new.len()).contains(&after)
                && after <= BLOCKS_PER_CHUNK as usize,
            "{before} dirty blocks and {} more became {after}",
            new.len()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::{HotChunk, Overlay, Pending, Whole, WholeContent};
    use atoll_format::chunk::BlockEntry;
    use atoll_format::id::Seq;
    use atoll_format::op::BlockState;

    fn p(block: u8, seq: u64, at: u32) -> Pending {
        Pending::new(block, BlockState::Raw, Seq(seq), at, 7)
    }

    #[test]
    fn newer_blocks_replace_older_ones_and_say_where_those_lay() {
        let mut hot = HotChunk::default();
        let mut gone = Vec::new();
        hot.put(&[p(3, 1, 10), p(4, 1, 11), p(5, 1, 12)], |at, _| gone.push(at));
        hot.put(&[p(4, 2, 20)], |at, _| gone.push(at));
        hot.put(&[p(5, 3, 30), p(6, 3, 31)], |at, _| gone.push(at));
        assert_eq!(gone, [11, 12]);
        let seqs: Vec<_> = hot.pending.iter().map(|p| (p.block(), p.seq().0)).collect();
        assert_eq!(seqs, [(3, 1), (4, 2), (5, 3), (6, 3)]);
        let whole = Whole { content: WholeContent::Zero, seq: Seq(9), at: 40 };
        assert_eq!(hot.put_whole(whole, |at, _| gone.push(at)), None);
        assert_eq!(gone, [11, 12, 10, 20, 30, 31]);
        assert!(hot.pending_at(3).is_none() && hot.whole.is_some());
    }

    #[test]
    fn the_overlay_keeps_the_newest_of_each_block() {
        let entry = |seq| BlockEntry { crc: 1, seq: Seq(seq), state: BlockState::Raw };
        let mut hot = HotChunk::default();
        hot.put_overlay(&[Overlay::new(2, entry(1)), Overlay::new(9, entry(1))]);
        hot.put_overlay(&[Overlay::new(2, entry(4)), Overlay::new(5, entry(4))]);
        let all: Vec<_> = hot.overlay.iter().map(|o| (o.block(), o.entry().seq.0)).collect();
        assert_eq!(all, [(2, 4), (5, 4), (9, 1)]);
    }

    #[test]
    fn an_entry_is_as_small_as_the_limits_say() {
        assert_eq!(size_of::<Pending>() as u64, crate::limits::INDEX_ENTRY_BYTES);
        assert_eq!(size_of::<Overlay>() as u64, crate::limits::OVERLAY_ENTRY_BYTES);
    }
}
