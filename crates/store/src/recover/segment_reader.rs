//! Reads a segment of the log from its first block to its last, however much of it is unreadable.

use super::tolerant_read::{newer, read};
use crate::device::Device;
use crate::error::OpenError;
use atoll_format::log::{BatchHead, decode_batch, peek_batch};
use atoll_format::units::{BLOCK, BLOCK_LEN};
use atoll_world::{Buf, BufMut, World};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// So much is read at once.
const PIECE: u64 = 1 << 20;
/// How often what was read of a segment's end is doubted: a device that brings something else each
/// time does not keep a host from starting.
pub(super) const LOOKS_MAX: u32 = 3;

/// The bytes of one segment, a MiB at a time; what cannot be read is zeros.
pub(super) struct SegmentReader<'a, W: World> {
    device: &'a Device<W>,
    start: u64,
    end: u64,
    pieces: BTreeMap<u64, Buf>,
    /// Places of blocks that the device does not give.
    unreadable: BTreeSet<u64>,
}

impl<'a, W: World> SegmentReader<'a, W> {
    pub(super) fn new(device: &'a Device<W>, start: u64, end: u64) -> Self {
        Self { device, start, end, pieces: BTreeMap::new(), unreadable: BTreeSet::new() }
    }

    /// Whether part of what was read there is not what the device holds, but zeros.
    pub(super) fn is_unreadable(&self, range: Range<u64>) -> bool {
        self.unreadable.range(range).next().is_some()
    }

    pub(super) async fn bytes(&mut self, at: u64, len: usize) -> Result<Vec<u8>, OpenError> {
        let mut out = Vec::with_capacity(len);
        let mut pos = at;
        while out.len() < len && pos < self.end {
            let piece = (pos - self.start) / PIECE;
            let piece_at = self.start + piece * PIECE;
            if !self.pieces.contains_key(&piece) {
                let piece_len = PIECE.min(self.end - piece_at);
                let bytes = match read(self.device, piece_at, piece_len).await? {
                    Some(bytes) => bytes,
                    None => self.blocks(piece_at, piece_len).await?,
                };
                // Batches are walked forwards: older pieces are not needed again soon.
                if self.pieces.len() >= 8 {
                    self.pieces.pop_first();
                }
                self.pieces.insert(piece, bytes);
            }
            let bytes = &self.pieces[&piece];
            let from = (pos - piece_at) as usize;
            let take = (len - out.len()).min(bytes.len() - from);
            assert!(take > 0, "nothing is left of the piece at {piece_at} behind {pos}");
            out.extend_from_slice(&bytes[from..from + take]);
            pos += take as u64;
        }
        out.resize(len, 0);
        Ok(out)
    }

    /// Whether a batch that may follow begins at `at` after all: the block is read once more. A
    /// read may bring what lies elsewhere, and hide every batch of a piece; what was read of the
    /// segment from there on is then forgotten.
    pub(super) async fn has_more_at(
        &mut self,
        at: u64,
        may_follow: impl Fn(&[u8]) -> bool,
    ) -> Result<bool, OpenError> {
        if at + BLOCK > self.end {
            return Ok(false);
        }
        let Some(again) = read(self.device, at, BLOCK).await? else { return Ok(false) };
        if !may_follow(&again) || self.bytes(at, BLOCK_LEN).await?[..] == again[..] {
            return Ok(false);
        }
        let piece = (at - self.start) / PIECE;
        _ = self.pieces.split_off(&piece);
        _ = self.unreadable.split_off(&(self.start + piece * PIECE));
        Ok(true)
    }

    /// Block by block, because a larger read failed.
    async fn blocks(&mut self, at: u64, len: u64) -> Result<Buf, OpenError> {
        let mut out = BufMut::zeroed(len as usize);
        for offset in (0..len).step_by(BLOCK_LEN) {
            match read(self.device, at + offset, BLOCK).await? {
                Some(block) => {
                    out[offset as usize..offset as usize + BLOCK_LEN].copy_from_slice(&block);
                }
                None => _ = self.unreadable.insert(at + offset),
            }
        }
        Ok(out.freeze())
    }
}

/// What a batch of the log may follow: the last one that is believed.
#[derive(Clone, Copy)]
pub(super) struct After {
    pub seq: u64,
    /// Which opening of the group wrote it. What an earlier one wrote and this one did not see was
    /// cut off then, and may lie behind what this one has written over it.
    pub generation: u64,
}

impl After {
    /// Whether a batch of a segment may come next in it.
    pub(super) fn may_precede(self, head: &BatchHead, segment: u64) -> bool {
        let is_cut_off = head.generation < self.generation;
        head.segment == segment && head.seq > self.seq && !is_cut_off
    }
}

/// The first batch at or after `at` that belongs to the segment and may follow.
pub(super) async fn next_batch<W: World>(
    window: &mut SegmentReader<'_, W>,
    mut at: u64,
    salt: u64,
    segment: u64,
    after: After,
) -> Result<Option<(BatchHead, Vec<u8>)>, OpenError> {
    while at + BLOCK <= window.end {
        let first = window.bytes(at, BLOCK_LEN).await?;
        if let Ok(head) = peek_batch(&first, at, salt)
            && after.may_precede(&head, segment)
            && at + head.len_bytes() <= window.end
        {
            let batch = window.bytes(at, head.len_bytes() as usize).await?;
            match decode_batch(&batch, at, salt) {
                Ok(_) => return Ok(Some((head, batch))),
                Err(e) => {
                    if let Some(e) = newer(e) {
                        return Err(e);
                    }
                }
            }
        }
        at += BLOCK;
    }
    Ok(None)
}
