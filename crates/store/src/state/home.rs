//! What chunks are at home: their slots, bases and destaged blocks. A round of destage changes it,
//! and recovery, which reads in the journal what rounds did.

use super::State;
use super::chunk::{HotChunk, Overlay, Pending};
use super::component::Component;
use atoll_format::chunk::{BlockEntry, ChunkEntry, NONE, PageHead, check_page, page_entry};
use atoll_format::id::Seq;
use atoll_format::op::BlockState;
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK};

/// What a round, or the journal, says of a chunk.
pub(crate) struct ChunkHome<'a> {
    /// All blocks first became this.
    pub whole: Option<BlockEntry>,
    pub slot: u32,
    pub newest: Seq,
    pub overlay: &'a [Overlay],
}

/// Where the page of a chunk is, and what it must say of itself.
#[derive(Clone, Copy)]
pub(crate) struct PagePlace {
    /// Of the group's devices.
    pub device: usize,
    /// In bytes.
    pub at: u64,
    pub head: PageHead,
    crc: u32,
}

impl PagePlace {
    /// Whether these are the bytes of that page.
    pub(crate) fn is_of(&self, bytes: &[u8]) -> bool {
        check_page(bytes, &self.head, self.crc).is_ok()
    }
}

/// What a chunk no longer needs.
#[derive(Default)]
pub(crate) struct GivenUp {
    pub slot: Option<u32>,
    pub page: Option<u32>,
}

impl State {
    /// None: the chunk has no page.
    pub(crate) fn page_place(&self, c: &Component, chunk: u32) -> Option<PagePlace> {
        let ChunkEntry { page, page_generation: generation, page_crc: crc, .. } =
            c.table.get(chunk);
        if page == NONE {
            return None;
        }
        let capacity = self.geometry.capacity[usize::from(c.device)];
        let group = self.geometry.group;
        let head = PageHead { group, component: c.id, chunk, page, generation };
        let at = capacity.pages.at + u64::from(page) * BLOCK;
        Some(PagePlace { device: capacity.device, at, head, crc })
    }

    /// Changes a chunk's home in memory.
    pub(crate) fn set_home(&mut self, local: u32, chunk: u32, home: &ChunkHome<'_>) -> GivenUp {
        let Some(c) = self.components.get_mut(local) else { return GivenUp::default() };
        let mut entry = c.table.get(chunk);
        let hot = c.hot.entry(chunk).or_default();
        let dirty = hot.overlay.len();
        let mut page = None;
        if let Some(base) = home.whole {
            hot.overlay = Vec::new();
            page = (entry.page != NONE).then_some(entry.page);
            entry.page = NONE;
            entry.page_crc = 0;
            entry.base_seq = base.seq;
            entry.base_zero = base.state == BlockState::Zero;
        }
        hot.put_overlay(home.overlay);
        self.capacity.dirty_changed(usize::from(c.device), dirty, hot.overlay.len());
        let slot = (entry.slot != NONE && entry.slot != home.slot).then_some(entry.slot);
        entry.slot = home.slot;
        entry.max_seq = entry.max_seq.max(home.newest);
        self.set_entry(local, chunk, entry);
        GivenUp { slot, page }
    }

    /// The device has lost the page of a chunk, these bytes of which memory has: the next
    /// checkpoint writes them into a new one. False: not now, too much is dirty; none: the page is
    /// of no use any more.
    pub(crate) fn make_dirty(&mut self, local: u32, chunk: u32, page: &[u8]) -> Option<bool> {
        let c = self.components.get_mut(local).filter(|c| !c.is_lost())?;
        let is_replaced = |hot: &HotChunk| hot.whole.is_some();
        if c.table.get(chunk).page == NONE || c.hot.get(&chunk).is_some_and(is_replaced) {
            return None;
        }
        let device = usize::from(c.device);
        if !self.capacity.takes_dirty_chunk(device) {
            return Some(false);
        }
        let hot = c.hot.entry(chunk).or_default();
        let dirty = hot.overlay.len();
        let entry = |block| hot.overlay_at(block).unwrap_or(page_entry(page, block.into()));
        let all: Vec<_> = (0..=u8::MAX).map(|block| Overlay::new(block, entry(block))).collect();
        hot.put_overlay(&all);
        self.capacity.dirty_changed(device, dirty, all.len());
        Some(true)
    }

    /// A page holds what was dirty of a chunk, and its entry names that page.
    pub(crate) fn set_page(&mut self, local: u32, chunk: u32, entry: ChunkEntry) {
        if let Some(c) = self.components.get_mut(local)
            && let Some(hot) = c.hot.get_mut(&chunk)
        {
            assert!(!hot.overlay.is_empty(), "chunk {chunk} of {} is not dirty any more", c.id);
            self.capacity.dirty_changed(usize::from(c.device), hot.overlay.len(), 0);
            hot.overlay = Vec::new();
        }
        self.set_entry(local, chunk, entry);
    }

    fn set_entry(&mut self, local: u32, chunk: u32, entry: ChunkEntry) {
        let Some(c) = self.components.get_mut(local) else { return };
        let before = c.table.len();
        c.table.set(chunk, entry);
        self.capacity.entries_changed(before, c.table.len());
    }
}

/// The entry of a destaged block.
pub(crate) fn home_entry(c: &Component, block: u32, p: &Pending, good: bool) -> BlockEntry {
    assert!(block % BLOCKS_PER_CHUNK == u32::from(p.block()), "{p:?} becomes block {block}");
    let state = if good { p.state() } else { BlockState::Bad };
    let crc = match state {
        BlockState::Raw => atoll_format::checksum::bind(p.crc, c.id, u64::from(block)),
        _ => 0,
    };
    BlockEntry { crc, seq: p.seq(), state }
}
