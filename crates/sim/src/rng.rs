//! Chance from a seed: one stream per concern, so that drawing more for one never shifts another.
//!
//! SplitMix64: eight bytes of state, good enough for choosing faults, never for secrets.

use atoll_world::Nanos;

/// A rate with this bit is drawn as it would be without, and what was drawn never happens: what
/// else the stream decides stays what it is.
pub const MUTED: u32 = 1 << 31;

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of that name under that seed.
    pub fn named(seed: u64, name: &str) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in name.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Self(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ mix(hash))
    }

    /// A stream of its own.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "it never ends, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Less than `n`.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "nothing is below zero");
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// From `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True in `ppm` of a million cases, never if it is [`MUTED`]; draws nothing when it is 0.
    pub fn happens(&mut self, ppm: u32) -> bool {
        let rate = ppm & !MUTED;
        rate > 0 && self.below(1_000_000) < u64::from(rate) && rate == ppm
    }

    /// One of them.
    ///
    /// # Panics
    /// If there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// A span between the two with every order of magnitude equally likely.
    pub fn span(&mut self, low: Nanos, high: Nanos) -> Nanos {
        let (low, high) = (low.0.max(1), high.0.max(2));
        let doublings = (high / low).max(1).ilog2();
        let floor = low << self.below(u64::from(doublings) + 1);
        Nanos(self.within(floor, (floor * 2).min(high).max(floor)))
    }
}

#[cfg(test)]
mod tests {
    use super::{MUTED, Nanos, Rng};

    #[test]
    fn streams_repeat_differ_by_name_and_stay_in_range() {
        let draw = |name| {
            let mut r = Rng::named(7, name);
            [r.next(), r.next()]
        };
        assert_eq!(draw("a"), draw("a"));
        assert_ne!(draw("a"), draw("b"));
        let mut r = Rng::named(1, "x");
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[r.below(5) as usize] = true;
            let s = r.span(Nanos(10), Nanos(1000));
            assert!((10..=1000).contains(&s.0), "{s:?}");
        }
        assert_eq!(seen, [true; 5]);
        assert!(!r.happens(0) && r.happens(1_000_000));
    }

    #[test]
    fn what_is_muted_is_drawn_and_never_happens() {
        let (mut loud, mut quiet) = (Rng::named(3, "x"), Rng::named(3, "x"));
        let heard = (0..100).filter(|_| loud.happens(500_000)).count();
        assert!((30..70).contains(&heard), "{heard}");
        assert!((0..100).all(|_| !quiet.happens(500_000 | MUTED)));
        assert_eq!(loud.next(), quiet.next());
    }
}
