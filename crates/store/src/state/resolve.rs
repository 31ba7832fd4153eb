//! Where a block is, from what memory knows.
//!
//! The order is: the log, a whole chunk that one operation made, what was destaged since the last
//! checkpoint, the chunk's page, the base of the chunk's entry.

use super::State;
use super::place::{BlockPlace, ResolvedBlock};
use atoll_format::chunk::NONE;
use atoll_format::op::{BlockState, BlockTag};
use atoll_format::units::BLOCKS_PER_CHUNK;

impl State {
    /// Where block `block` of a component is, which exists.
    pub(crate) fn resolve(&mut self, local: u32, block: u32) -> ResolvedBlock {
        let c = self.components.get(local).expect("the caller has just found it");
        let (chunk, index) = (block / BLOCKS_PER_CHUNK, (block % BLOCKS_PER_CHUNK) as u8);
        if c.is_lost() {
            return ResolvedBlock::damaged(BlockTag::default());
        }
        let entry = match c.hot.get(&chunk) {
            None => None,
            Some(hot) => {
                if let Some(p) = hot.pending_at(index) {
                    let state = p.state();
                    let tag = BlockTag { seq: p.seq(), state, crc: p.crc };
                    if c.bad.contains(&block) {
                        return ResolvedBlock::damaged(tag);
                    }
                    let place = match state {
                        BlockState::Raw => BlockPlace::Log(p.at),
                        BlockState::Absent | BlockState::Zero => BlockPlace::Nowhere,
                        _ => BlockPlace::Damaged,
                    };
                    return ResolvedBlock { place, tag };
                }
                match &hot.whole {
                    Some(whole) => match whole.slot() {
                        Some(slot) => {
                            let tag = whole.tag(index);
                            if c.bad.contains(&block) {
                                return ResolvedBlock::damaged(tag);
                            }
                            let at = self.geometry.home_block(c.device, slot, index);
                            return ResolvedBlock { place: BlockPlace::Slot(at), tag };
                        }
                        None => whole.uniform(),
                    },
                    None => hot.overlay_at(index),
                }
            }
        };
        let chunk_entry = c.table.get(chunk);
        let entry = match entry {
            Some(entry) => entry,
            None if chunk_entry.page == NONE => chunk_entry.base(),
            None => match self.page_cache.get((local, chunk)) {
                Some(page) => page.entry(index),
                None => {
                    return ResolvedBlock { place: BlockPlace::Unread, tag: BlockTag::default() };
                }
            },
        };
        let tag = c.tag(block, entry);
        if c.bad.contains(&block) {
            return ResolvedBlock::damaged(tag);
        }
        let place = match entry.state {
            BlockState::Absent | BlockState::Zero => BlockPlace::Nowhere,
            BlockState::Raw if chunk_entry.slot != NONE => {
                BlockPlace::Slot(self.geometry.home_block(c.device, chunk_entry.slot, index))
            }
            _ => return ResolvedBlock::damaged(tag),
        };
        ResolvedBlock { place, tag }
    }
}
