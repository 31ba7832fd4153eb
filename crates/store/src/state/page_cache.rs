//! The cache of metadata pages: bounded, clean pages only, second chance.

use atoll_format::chunk::{BlockEntry, PAGE_LEN, page_entry};
use atoll_format::id::Seq;
use atoll_format::op::BlockState;
use atoll_world::{Buf, FixedMap};

/// A page that was checked, or the verdict that it is damaged.
#[derive(Clone, Debug)]
pub(crate) enum Page {
    /// Its bytes.
    Good(Buf),
    /// Unreadable: every block of it counts as bad, with this seq.
    Damaged(Seq),
}

impl Page {
    pub(crate) fn entry(&self, block: u8) -> BlockEntry {
        match self {
            Self::Good(bytes) => page_entry(bytes, usize::from(block)),
            Self::Damaged(seq) => BlockEntry { crc: 0, seq: *seq, state: BlockState::Bad },
        }
    }
}

struct CachedPage {
    key: (u32, u32),
    page: Page,
    used: bool,
}

/// Pages by (local component, chunk).
pub(crate) struct PageCache {
    slots: Vec<CachedPage>,
    by_key: FixedMap<(u32, u32), u32>,
    hand: usize,
    pages_max: usize,
    pub hits: u64,
    pub misses: u64,
}

impl PageCache {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let pages_max = (bytes_max / PAGE_LEN as u64).max(64) as usize;
        let by_key = FixedMap::default();
        Self { slots: Vec::new(), by_key, hand: 0, pages_max, hits: 0, misses: 0 }
    }

    pub(crate) fn get(&mut self, key: (u32, u32)) -> Option<&Page> {
        match self.by_key.get(&key) {
            Some(&i) => {
                self.hits += 1;
                let slot = &mut self.slots[i as usize];
                assert!(slot.key == key, "the page of {:?} is found for {key:?}", slot.key);
                slot.used = true;
                Some(&slot.page)
            }
            None => {
                self.misses += 1;
                None
            }
        }
    }

    pub(crate) fn insert(&mut self, key: (u32, u32), page: Page) {
        if let Page::Good(bytes) = &page {
            assert!(bytes.len() == PAGE_LEN, "a page of {} bytes", bytes.len());
        }
        if let Some(&i) = self.by_key.get(&key) {
            let slot = &mut self.slots[i as usize];
            assert!(slot.key == key, "the page of {:?} is replaced by {key:?}", slot.key);
            slot.page = page;
            return;
        }
        let slot = CachedPage { key, page, used: false };
        if self.slots.len() < self.pages_max {
            self.by_key.insert(key, self.slots.len() as u32);
            self.slots.push(slot);
            return;
        }
        while std::mem::take(&mut self.slots[self.hand].used) {
            self.hand = (self.hand + 1) % self.slots.len();
        }
        let gone = self.by_key.remove(&self.slots[self.hand].key);
        assert!(gone == Some(self.hand as u32), "the page that goes was found at {gone:?}");
        self.by_key.insert(key, self.hand as u32);
        self.slots[self.hand] = slot;
        let (pages, keys) = (self.slots.len(), self.by_key.len());
        assert!(pages == keys && pages <= self.pages_max, "{pages} pages and {keys} keys");
        self.hand = (self.hand + 1) % self.slots.len();
    }

    pub(crate) fn remove(&mut self, key: (u32, u32)) {
        let Some(i) = self.by_key.remove(&key) else { return };
        let gone = self.slots.swap_remove(i as usize);
        assert!(gone.key == key, "the page of {:?} goes for {key:?}", gone.key);
        if let Some(moved) = self.slots.get(i as usize) {
            self.by_key.insert(moved.key, i);
        }
        if self.hand >= self.slots.len() {
            self.hand = 0;
        }
        let (pages, keys) = (self.slots.len(), self.by_key.len());
        assert!(pages == keys, "{pages} pages and {keys} keys");
    }

    /// Bytes that it may take.
    pub(crate) fn memory_max(&self) -> u64 {
        self.pages_max as u64 * (PAGE_LEN + 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::{Page, PageCache};
    use atoll_format::id::Seq;

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let mut cache = PageCache::new(0);
        for chunk in 0..1_000 {
            cache.insert((1, chunk), Page::Damaged(Seq(u64::from(chunk))));
            assert!(cache.get((1, 0)).is_some(), "in use at {chunk}");
        }
        assert_eq!(cache.slots.len(), 64);
        assert_eq!(cache.by_key.len(), 64);
        cache.remove((1, 0));
        cache.remove((1, 999));
        assert!(cache.get((1, 0)).is_none());
        for slot in 0..cache.slots.len() {
            assert_eq!(cache.by_key[&cache.slots[slot].key] as usize, slot);
        }
    }
}
