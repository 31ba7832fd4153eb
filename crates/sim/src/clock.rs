//! A host's clock: boot time that starts anywhere and runs a little fast or slow, and wall-clock
//! time that may jump.
//!
//! Invariant: boot time never goes back.

use atoll_world::Nanos;
use std::cell::Cell;

/// One host's clock.
#[derive(Debug)]
pub struct Clock {
    base_true: Cell<u64>,
    base_host: Cell<u64>,
    ppm: Cell<i64>,
    wall_ms: Cell<u64>,
}

/// Milliseconds since 1970 at the beginning of every run.
const WALL_START_MS: u64 = 1_780_000_000_000;

impl Clock {
    /// Shows `offset` at the beginning.
    pub fn new(offset: Nanos) -> Self {
        Self {
            base_true: Cell::new(0),
            base_host: Cell::new(offset.0),
            ppm: Cell::new(0),
            wall_ms: Cell::new(WALL_START_MS),
        }
    }

    /// What it shows at the true time `at`.
    pub fn show(&self, at: Nanos) -> Nanos {
        let elapsed = at.0 - self.base_true.get();
        let scaled = match self.ppm.get() {
            0 => elapsed,
            ppm => (i128::from(elapsed) * (1_000_000 + i128::from(ppm)) / 1_000_000) as u64,
        };
        Nanos(self.base_host.get() + scaled)
    }

    /// The first true time at which it shows `host` or more, at the rate of now.
    pub fn when(&self, host: Nanos) -> Nanos {
        let Some(ahead) = host.0.checked_sub(self.base_host.get()) else {
            return Nanos(self.base_true.get());
        };
        let ahead = match self.ppm.get() {
            0 => i128::from(ahead),
            ppm => {
                let rate = 1_000_000 + i128::from(ppm);
                (i128::from(ahead) * 1_000_000 + rate - 1) / rate
            }
        };
        Nanos(u64::try_from(i128::from(self.base_true.get()) + ahead).unwrap_or(u64::MAX))
    }

    /// From the true time `at` on it runs `ppm` parts per million fast (or slow, if negative).
    pub fn set_rate(&self, at: Nanos, ppm: i64) {
        self.base_host.set(self.show(at).0);
        self.base_true.set(at.0);
        self.ppm.set(ppm);
    }

    /// The machine has booted: boot time begins again at `offset`.
    pub fn reboot(&self, at: Nanos, offset: Nanos) {
        self.base_host.set(offset.0);
        self.base_true.set(at.0);
    }

    /// Wall-clock time jumps.
    pub fn jump_wall(&self, ms: i64) {
        self.wall_ms.set(self.wall_ms.get().saturating_add_signed(ms));
    }

    /// Wall-clock time at the true time `at`.
    pub fn wall_ms(&self, at: Nanos) -> u64 {
        self.wall_ms.get() + at.as_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, Nanos};

    #[test]
    fn a_clock_is_its_own_inverse_at_any_rate_and_never_goes_back() {
        let c = Clock::new(Nanos(1_000));
        let mut last = Nanos::ZERO;
        for (at, ppm) in [(0, 0), (5_000_000, 200), (9_000_000, -50_000), (20_000_000, 50_000)] {
            c.set_rate(Nanos(at), ppm);
            assert!(c.show(Nanos(at)) >= last);
            for t in [at, at + 1, at + 777_777] {
                last = c.show(Nanos(t));
                let back = c.when(last);
                assert!(back <= Nanos(t) && c.show(back) >= last, "{ppm} {t}");
            }
        }
        assert!(c.when(Nanos::NEVER).0 > 1 << 60);
    }
}
