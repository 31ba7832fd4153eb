//! Free slots and pages of one capacity device, and what is promised of them.
//!
//! Nothing here is on disk: the maps are rebuilt from the chunk tables (`store.md` rule 22), so a
//! leak is never a loss. A slot is promised when an operation that will need it is queued, so
//! that everything acknowledged can be destaged.
//!
//! Invariants: `slots.used + slots_reserved <= slots.len - reserve`;
//! `live pages + pages_reserved <= pages.len - dirty_pages_max`.

use crate::limits;
use atoll_world::mutant;

/// One bit per unit.
#[derive(Debug)]
pub(crate) struct Bitmap {
    words: Vec<u64>,
    len: u32,
    used: u32,
    /// Where the last one was found: neighbours in time become neighbours in place.
    hint: u32,
    /// No word before this one has a free unit.
    low: usize,
}

impl Bitmap {
    pub(crate) fn new(len: u32) -> Self {
        let mut words = vec![0u64; (len as usize).div_ceil(64)];
        if let Some(last) = words.last_mut()
            && !len.is_multiple_of(64)
        {
            // Bits beyond the end count as taken.
            *last = u64::MAX << (len % 64);
        }
        Self { words, len, used: 0, hint: 0, low: 0 }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn is_used(&self, unit: u32) -> bool {
        self.words[(unit / 64) as usize] & (1 << (unit % 64)) != 0
    }

    /// Takes `unit`; false if it is outside or taken already.
    pub(crate) fn take(&mut self, unit: u32) -> bool {
        if unit >= self.len || self.is_used(unit) {
            return false;
        }
        self.words[(unit / 64) as usize] |= 1 << (unit % 64);
        self.used += 1;
        true
    }

    /// Takes the first free one: what was used before is used again, so that a file or a thin
    /// volume grows only with what is stored.
    pub(crate) fn allocate_first(&mut self) -> Option<u32> {
        let w = (self.low..self.words.len()).find(|&w| self.words[w] != u64::MAX)?;
        self.low = w;
        let unit = w as u32 * 64 + (!self.words[w]).trailing_zeros();
        self.take(unit);
        Some(unit)
    }

    /// Takes the next free one.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let count = self.words.len();
        let start = (self.hint / 64) as usize;
        for i in 0..=count {
            let w = (start + i) % count.max(1);
            let mut free = !*self.words.get(w)?;
            if i == 0 {
                free &= u64::MAX << (self.hint % 64);
            }
            if free != 0 {
                let unit = w as u32 * 64 + free.trailing_zeros();
                if !mutant!("space.slot_given_twice") {
                    self.take(unit);
                }
                self.hint = if unit + 1 < self.len { unit + 1 } else { 0 };
                return Some(unit);
            }
        }
        None
    }

    /// Gives `unit` back.
    ///
    /// # Panics
    /// If it was not taken: two owners of one slot would be corruption.
    pub(crate) fn free(&mut self, unit: u32) {
        assert!(unit < self.len && self.is_used(unit), "unit {unit} freed twice");
        self.words[(unit / 64) as usize] &= !(1 << (unit % 64));
        self.low = self.low.min((unit / 64) as usize);
        self.used -= 1;
    }
}

/// See the file.
#[derive(Debug)]
pub(crate) struct DeviceSpace {
    pub slots: Bitmap,
    pub slots_reserved: u32,
    pub pages: Bitmap,
    pub pages_reserved: u32,
    /// Slots that bytes are being written into which the log does not know yet.
    pub slots_placing: u32,
    /// Slots that are free once the round of destage that is under way has ended: it may still
    /// be writing into them.
    pub slots_later: Vec<u32>,
    /// Pages that only the checkpoint on disk refers to; free once a newer one is durable.
    pub retired_pages: Vec<u32>,
    pub dirty_pages_max: u32,
    reserve: u32,
}

impl DeviceSpace {
    pub(crate) fn new(slots: u32, pages: u32) -> Self {
        Self {
            slots: Bitmap::new(slots),
            slots_reserved: 0,
            pages: Bitmap::new(pages),
            pages_reserved: 0,
            slots_placing: 0,
            slots_later: Vec::new(),
            retired_pages: Vec::new(),
            dirty_pages_max: limits::dirty_pages_max(slots),
            reserve: limits::reserve_slots(slots),
        }
    }

    /// Slots that components may use in all.
    pub(crate) fn slots_usable(&self) -> u32 {
        self.slots.len() - self.reserve
    }

    /// Gives a slot back, `later` if a round of destage is under way.
    pub(crate) fn free_slot(&mut self, slot: u32, later: bool) {
        if later {
            self.slots_later.push(slot);
        } else {
            self.slots.free(slot);
        }
    }

    /// Slots that are neither in use nor promised.
    pub(crate) fn slots_free(&self) -> u32 {
        self.slots_usable().saturating_sub(self.slots.used() + self.slots_reserved)
    }

    /// Pages that can still be promised.
    pub(crate) fn pages_free(&self) -> u32 {
        let live = self.pages.used() - self.retired_pages.len() as u32;
        let usable = self.pages.len().saturating_sub(self.dirty_pages_max);
        usable.saturating_sub(live + self.pages_reserved)
    }
}

#[cfg(test)]
mod tests {
    use super::Bitmap;

    #[test]
    fn every_unit_is_given_out_once_and_found_again_when_freed() {
        for len in [1, 63, 64, 65, 130] {
            let mut map = Bitmap::new(len);
            let mut all: Vec<u32> = std::iter::from_fn(|| map.allocate()).collect();
            assert_eq!(map.used(), len);
            all.sort_unstable();
            assert_eq!(all, (0..len).collect::<Vec<_>>());
            map.free(len / 2);
            assert_eq!(map.allocate(), Some(len / 2));
            assert!(!map.take(len) && !map.take(0));
            (1..len).next_back().into_iter().chain([0]).for_each(|unit| map.free(unit));
            assert_eq!(map.allocate_first(), Some(0));
            assert_eq!(map.allocate_first(), (len > 1).then_some(len - 1));
            assert_eq!(map.allocate_first(), None);
        }
    }
}
