//! Which operations of a client were applied, so that one that is sent again is not applied again.

use crate::limits;
use std::collections::VecDeque;

/// What is remembered of one client: which numbers above its settled ones were applied.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct ClientHistory {
    pub(super) used: u64,
    pub(super) settled_below: u32,
    /// Bit i of the words is number `settled_below + i`.
    pub(super) words: VecDeque<u64>,
}

impl ClientHistory {
    pub(super) fn settle(&mut self, below: u32) {
        if below <= self.settled_below {
            return;
        }
        let probes = [below, below.saturating_add(1), below.saturating_add(70)];
        let before = probes.map(|number| self.has(number));
        let shift = below - self.settled_below;
        self.settled_below = below;
        for _ in 0..(shift / 64).min(self.words.len() as u32) {
            self.words.pop_front();
        }
        let shift = shift % 64;
        if shift > 0 {
            for i in 0..self.words.len() {
                let next = self.words.get(i + 1).copied().unwrap_or(0);
                self.words[i] = (self.words[i] >> shift) | (next << (64 - shift));
            }
        }
        while self.words.back() == Some(&0) {
            self.words.pop_back();
        }
        let after = probes.map(|number| self.has(number));
        assert!(before == after, "settling below {below} changed {probes:?} to {after:?}");
    }

    pub(super) fn mark(&mut self, number: u32) {
        let Some(bit) = number.checked_sub(self.settled_below) else { return };
        if bit >= limits::CLIENT_NUMBERS_MAX {
            return;
        }
        let word = (bit / 64) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (bit % 64);
        assert!(self.has(number), "{number} is not remembered");
        let words = self.words.len();
        assert!(words <= limits::CLIENT_NUMBERS_MAX as usize / 64, "{words} words of a client");
    }

    pub(super) fn forget(&mut self, number: u32) {
        let Some(bit) = number.checked_sub(self.settled_below) else { return };
        if let Some(word) = self.words.get_mut((bit / 64) as usize) {
            *word &= !(1 << (bit % 64));
        }
        assert!(!self.has(number), "{number} is not forgotten");
        while self.words.back() == Some(&0) {
            self.words.pop_back();
        }
    }

    /// Those not settled.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u32> {
        let bits = (0u32..).zip(&self.words).flat_map(|(i, word)| {
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| i * 64 + bit)
        });
        bits.map(|bit| self.settled_below + bit)
    }

    pub(super) fn has(&self, number: u32) -> bool {
        let Some(bit) = number.checked_sub(self.settled_below) else { return true };
        self.words.get((bit / 64) as usize).is_some_and(|w| w & (1 << (bit % 64)) != 0)
    }
}
