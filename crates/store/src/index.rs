//! What memory knows of one chunk beyond the chunk table: blocks whose newest version lies in the
//! write log, and blocks that were destaged since the last checkpoint.
//!
//! A block is looked up in this order: `pending`, `whole`, `overlay`, then page or base of the
//! chunk's entry. `pending` and `whole` are rebuilt from the log, `overlay` from the journal.
//!
//! Invariants: `pending` and `overlay` are sorted by block without repetition; every `Pending` is
//! counted once as live in the segment it lies in.

use atoll_format::chunk::BlockEntry;
use atoll_format::id::Seq;
use atoll_format::op::BlockState;
use atoll_world::Nanos;

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

/// All 256 blocks were zeroed or discarded by one operation in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Whole {
    pub zero: bool,
    pub seq: Seq,
    /// Block of the log device where its batch lies.
    pub at: u32,
}

impl Whole {
    pub(crate) fn entry(&self) -> BlockEntry {
        let state = if self.zero { BlockState::Zero } else { BlockState::Absent };
        BlockEntry { crc: 0, seq: self.seq, state }
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
#[derive(Clone, Default, Debug)]
pub(crate) struct Hot {
    pub pending: Vec<Pending>,
    pub whole: Option<Whole>,
    pub overlay: Vec<Overlay>,
    /// Newest operation that touched the chunk and is not yet in its entry.
    pub newest: Seq,
    /// Operations on the chunk that wait for the log.
    pub queued: u32,
    /// Not 0: what is set aside is kept for an append that was announced, until then.
    pub held_until: Nanos,
    /// A slot is set aside, so that what was acknowledged can be destaged.
    pub slot_reserved: bool,
    /// A page is set aside.
    pub page_reserved: bool,
    /// An entry of the chunk table is set aside.
    pub entry_reserved: bool,
}

impl Hot {
    pub(crate) fn pending_at(&self, block: u8) -> Option<&Pending> {
        let i = self.pending.binary_search_by_key(&block, Pending::block).ok()?;
        Some(&self.pending[i])
    }

    pub(crate) fn overlay_at(&self, block: u8) -> Option<BlockEntry> {
        let i = self.overlay.binary_search_by_key(&block, Overlay::block).ok()?;
        Some(self.overlay[i].entry())
    }

    /// Nothing of the chunk lies in the log or is on its way there.
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty()
            && self.whole.is_none()
            && self.queued == 0
            && self.held_until == Nanos::ZERO
    }

    /// Puts in blocks, ascending and adjacent; `gone` is told where each replaced one lay.
    pub(crate) fn put(&mut self, new: &[Pending], mut gone: impl FnMut(u32)) {
        let (Some(first), Some(last)) = (new.first(), new.last()) else { return };
        let from = self.pending.partition_point(|p| p.block() < first.block());
        let to = self.pending.partition_point(|p| p.block() <= last.block());
        for old in &self.pending[from..to] {
            gone(old.at);
        }
        if to - from == new.len() {
            self.pending[from..to].copy_from_slice(new);
        } else {
            self.pending.splice(from..to, new.iter().copied());
        }
    }

    /// One operation covers the chunk: everything older is superseded.
    pub(crate) fn put_whole(&mut self, whole: Whole, mut gone: impl FnMut(u32)) {
        for old in self.pending.drain(..) {
            gone(old.at);
        }
        if let Some(old) = self.whole.replace(whole) {
            gone(old.at);
        }
        self.pending.shrink_to_fit();
    }

    /// Sets destaged blocks, ascending without repetition. Returns by how much the overlay grew.
    pub(crate) fn put_overlay(&mut self, new: &[Overlay]) -> usize {
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
        self.overlay.len() - before
    }
}

#[cfg(test)]
mod tests {
    use super::{Hot, Overlay, Pending, Whole};
    use atoll_format::chunk::BlockEntry;
    use atoll_format::id::Seq;
    use atoll_format::op::BlockState;

    fn p(block: u8, seq: u64, at: u32) -> Pending {
        Pending::new(block, BlockState::Raw, Seq(seq), at, 7)
    }

    #[test]
    fn newer_blocks_replace_older_ones_and_say_where_those_lay() {
        let mut hot = Hot::default();
        let mut gone = Vec::new();
        hot.put(&[p(3, 1, 10), p(4, 1, 11), p(5, 1, 12)], |at| gone.push(at));
        hot.put(&[p(4, 2, 20)], |at| gone.push(at));
        hot.put(&[p(5, 3, 30), p(6, 3, 31)], |at| gone.push(at));
        assert_eq!(gone, [11, 12]);
        let seqs: Vec<_> = hot.pending.iter().map(|p| (p.block(), p.seq().0)).collect();
        assert_eq!(seqs, [(3, 1), (4, 2), (5, 3), (6, 3)]);
        hot.put_whole(Whole { zero: true, seq: Seq(9), at: 40 }, |at| gone.push(at));
        assert_eq!(gone, [11, 12, 10, 20, 30, 31]);
        assert!(hot.pending_at(3).is_none() && hot.whole.is_some());
    }

    #[test]
    fn the_overlay_keeps_the_newest_of_each_block() {
        let entry = |seq| BlockEntry { crc: 1, seq: Seq(seq), state: BlockState::Raw };
        let mut hot = Hot::default();
        assert_eq!(hot.put_overlay(&[Overlay::new(2, entry(1)), Overlay::new(9, entry(1))]), 2);
        assert_eq!(hot.put_overlay(&[Overlay::new(2, entry(4)), Overlay::new(5, entry(4))]), 1);
        let all: Vec<_> = hot.overlay.iter().map(|o| (o.block(), o.entry().seq.0)).collect();
        assert_eq!(all, [(2, 4), (5, 4), (9, 1)]);
    }

    #[test]
    fn an_entry_is_as_small_as_the_limits_say() {
        assert_eq!(size_of::<Pending>() as u64, crate::limits::INDEX_ENTRY_BYTES);
        assert_eq!(size_of::<Overlay>() as u64, crate::limits::OVERLAY_ENTRY_BYTES);
    }
}
