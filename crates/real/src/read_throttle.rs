//! How many operations a disk has at once.
//!
//! Some disks tell what they have done only when they have nothing left to do: a virtual disk may
//! raise one interrupt for all that it took in the meantime. If such a disk has all the requests
//! there are, it stands still while these are answered and the clients send their next ones. So
//! reads are held back, about as many as the disk needs time for until new ones come: then it has
//! work, while what it did is answered.
//!
//! A disk that ends its operations one by one is given all of them. Writes and flushes are never
//! held, nor are reads held for them: who goes first among these is the device's affair.
//!
//! Invariants: a disk that has nothing to do is given what is held; never is a read held back from
//! a disk that has fewer than [`THROTTLE_MIN`] of them.

use crate::limits::{DISK_OPS_MAX, THROTTLE_MIN};

/// Of one disk.
pub(crate) struct ReadThrottle {
    /// Operations that the disk has, or will have in this turn.
    taken: usize,
    /// Of these, reads.
    reads: usize,
    /// Reads are held back from here on.
    limit: usize,
}

impl Default for ReadThrottle {
    fn default() -> Self {
        Self { taken: 0, reads: 0, limit: DISK_OPS_MAX as usize }
    }
}

impl ReadThrottle {
    /// Whether one more read is for the disk; if not, it is held.
    pub(crate) fn has_room(&self) -> bool {
        self.reads < self.limit
    }

    /// The disk gets one more operation.
    pub(crate) fn begins(&mut self, is_read: bool) {
        self.taken += 1;
        self.reads += usize::from(is_read);
    }

    /// The disk is seen to have ended so many operations, more than none, so many of them reads,
    /// while so many reads are held.
    pub(crate) fn ended(&mut self, count: usize, reads: usize, held: usize) {
        self.taken -= count;
        self.reads -= reads;
        let all = reads + held;
        if self.taken == 0 && all > THROTTLE_MIN {
            // It stands still. The next time it shall have three of eight in store.
            self.limit = (all * 5 / 8).max(THROTTLE_MIN);
        } else if held > 0 {
            // It goes on: perhaps it could have done these, too.
            self.limit = (self.limit + reads.max(1)).min(DISK_OPS_MAX as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ReadThrottle;
    use crate::limits::THROTTLE_MIN;
    use std::collections::VecDeque;

    /// A disk and clients that want `all` reads done at any time, first while the disk ends all
    /// at once, then while it ends `at_once` of what it has. The most that it then has, and what
    /// is held beside.
    fn settle(all: usize, at_once: impl Fn(usize) -> usize) -> (usize, usize) {
        let mut throttle = ReadThrottle::default();
        let (mut held, mut new) = (0, all);
        let (mut most, mut left) = (0, 0);
        for round in 0..1000 {
            held += new;
            while held > 0 && throttle.has_room() {
                throttle.begins(true);
                held -= 1;
            }
            if round > 900 {
                (most, left) = (most.max(throttle.taken), held);
            }
            new = if round < 100 { throttle.taken } else { at_once(throttle.taken) };
            throttle.ended(new, new, held);
        }
        (most, left)
    }

    #[test]
    fn a_disk_that_ends_all_at_once_gets_a_part_of_them() {
        assert_eq!(settle(32, |taken| taken), (20, 12));
        assert_eq!(settle(128, |taken| taken), (80, 48));
    }

    #[test]
    fn a_disk_that_goes_on_gets_all_of_them() {
        assert_eq!(settle(128, |_| 1), (128, 0));
        assert_eq!(settle(200, |taken| taken.div_ceil(2)), (200, 0));
    }

    #[test]
    fn few_are_not_held_back() {
        for all in 1..=THROTTLE_MIN {
            assert_eq!(settle(all, |taken| taken), (all, 0));
        }
    }

    #[test]
    fn no_read_is_held_for_writes() {
        let mut throttle = ReadThrottle::default();
        (0..32).for_each(|_| throttle.begins(true));
        throttle.ended(32, 32, 0);
        (0..100).for_each(|_| throttle.begins(false));
        for _ in 0..20 {
            assert!(throttle.has_room());
            throttle.begins(true);
        }
        assert!(!throttle.has_room());
    }

    #[test]
    fn a_disk_with_nothing_to_do_has_room() {
        let mut throttle = ReadThrottle::default();
        let mut random = 12345u32;
        let mut ends = VecDeque::new();
        for _ in 0..10_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if random >> 31 == 0 && throttle.has_room() {
                let is_read = random >> 30 & 1 == 0;
                throttle.begins(is_read);
                ends.push_back(is_read);
            } else if !ends.is_empty() {
                let count = 1 + (random as usize >> 8) % ends.len();
                let reads = ends.drain(..count).filter(|is_read| *is_read).count();
                throttle.ended(count, reads, random as usize % 5);
            }
            assert!(!ends.is_empty() || throttle.has_room());
        }
    }
}
