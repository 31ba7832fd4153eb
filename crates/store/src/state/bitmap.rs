//! Which of many units are used: one bit each.
//!
//! Invariant: a unit that is used is not given out again before it was freed.

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
        assert!(self.used <= self.len, "{} of {} units are used", self.used, self.len);
        true
    }

    /// Takes the first free one: what was used before is used again, so that a file or a thin
    /// volume grows only with what is stored.
    pub(crate) fn allocate_first(&mut self) -> Option<u32> {
        let found = (self.low..self.words.len()).find(|&w| self.words[w] != u64::MAX);
        let Some(w) = found else {
            assert!(
                self.used == self.len,
                "none of {} units is found, {} used",
                self.len,
                self.used
            );
            return None;
        };
        self.low = w;
        let unit = w as u32 * 64 + (!self.words[w]).trailing_zeros();
        self.give(unit);
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
                self.give_next(unit);
                self.hint = if unit + 1 < self.len { unit + 1 } else { 0 };
                return Some(unit);
            }
        }
        assert!(self.used == self.len, "none of {} units is found, {} used", self.len, self.used);
        None
    }

    fn give_next(&mut self, unit: u32) {
        if mutant!("space.slot_given_twice") {
            return;
        }
        self.give(unit);
    }

    fn give(&mut self, unit: u32) {
        let taken = self.take(unit);
        assert!(taken, "unit {unit} is given out twice, or lies outside");
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
