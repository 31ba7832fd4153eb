//! How fast guests write, how fast destage follows, and how long writers wait for it.
//!
//! Destage goes as fast as the log fills, so that guests find the same disk at every moment: not at
//! all below [`DestageStart::fill`] while they write; above that, moving home a part of what they
//! bring that grows with the log's fill, as much as they bring at half way to
//! [`limits::FILL_URGENT`]; from there on without a pause; and through to the end when they rest.
//!
//! Invariant: the mover sleeps only while somebody knows at which fill to wake it.

use crate::limits;
use atoll_world::Nanos;

/// When destage begins while guests write. See [`crate::OpenSpec`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct DestageStart {
    /// How full the log is then, of 255.
    pub fill: u8,
    /// After how long without a write it begins anyway.
    pub idle: Nanos,
}

/// How much of the time guests have for themselves.
pub(crate) enum DestageRate {
    /// Nothing else is to be done than to move.
    Full,
    /// Nobody writes: as long as a round took, readers have the disks after it.
    Readers,
    /// Writers bring so many blocks a second that this many are to be moved.
    PerSecond(u64),
}

/// How fast writers fill the log, lately.
#[derive(Clone, Copy, Default, Debug)]
struct WriteRate {
    /// Where the window begins.
    since: Nanos,
    blocks: u64,
    /// Smoothed over the windows before.
    per_second: u64,
}

impl WriteRate {
    /// Blocks per second; `blocks`: of the log, ever.
    fn per_second(&mut self, blocks: u64, now: Nanos) -> u64 {
        let span = now.since(self.since);
        if span >= limits::INCOMING_WINDOW {
            let last = (blocks - self.blocks).saturating_mul(1_000_000_000) / span.0;
            // What began in this window counts at once, what ended fades: a burst must not wait.
            self.per_second = last.max((self.per_second * 3 + last) / 4);
            (self.since, self.blocks) = (now, blocks);
        }
        self.per_second
    }
}

/// See the file.
#[derive(Default, Debug)]
pub(crate) struct Pace {
    last_write: Nanos,
    writes: WriteRate,
    /// The log cannot go on before a segment is free.
    head_waits: bool,
    /// Destage waits for something to do, and is to be woken when the log is so full.
    mover_sleeps: bool,
    wake_at_fill: u8,
}

impl Pace {
    /// When the log was written last.
    pub(crate) fn last_write(&self) -> Nanos {
        self.last_write
    }

    pub(crate) fn wrote(&mut self, now: Nanos) {
        assert!(now >= self.last_write, "a write at {now} behind one at {}", self.last_write);
        self.last_write = now;
    }

    pub(crate) fn head_waits(&self) -> bool {
        self.head_waits
    }

    /// The log cannot go on before destage has freed some of it, or can go on again.
    pub(crate) fn set_head_waits(&mut self, waits: bool) {
        self.head_waits = waits;
    }

    /// The mover begins to wait for something to do.
    pub(crate) fn mover_sleeps(&mut self) {
        self.mover_sleeps = true;
    }

    pub(crate) fn mover_is_awake(&mut self) {
        self.mover_sleeps = false;
    }

    /// How full the log is to be when the mover is woken.
    pub(crate) fn wake_mover_at(&mut self, fill: u8) {
        self.wake_at_fill = fill;
    }

    /// Whether the mover is to be woken, now that the log is so full.
    pub(crate) fn is_to_wake_mover(&self, fill: u8) -> bool {
        self.mover_sleeps && fill >= self.wake_at_fill
    }

    /// Whether destage may not pause.
    pub(crate) fn is_urgent(&self, fill: u8) -> bool {
        self.head_waits || fill >= limits::FILL_URGENT
    }

    /// How fast destage is to move. `fill`: of the log, of 255; `log_blocks`: written to it, ever.
    pub(crate) fn rate(
        &mut self,
        start: DestageStart,
        fill: u8,
        log_blocks: u64,
        closing: bool,
        now: Nanos,
    ) -> DestageRate {
        let brought = self.writes.per_second(log_blocks, now);
        if self.is_urgent(fill) || closing {
            return DestageRate::Full;
        }
        if now >= self.last_write + start.idle {
            return DestageRate::Readers;
        }
        let above = u64::from(fill.saturating_sub(start.fill)) + 1;
        let range = u64::from(limits::FILL_URGENT.saturating_sub(start.fill)).max(1);
        let rate = (brought * 2 * above / range).max(limits::DESTAGE_PER_SECOND_MIN);
        DestageRate::PerSecond(rate)
    }
}

/// Back-pressure: how long the answer to a write waits, by how full the log is (of 255), how many
/// blocks in it are this component's, and how many would be fair.
pub(crate) fn write_delay(fill: u8, mine: u64, fair: u64) -> Nanos {
    if fill < limits::FILL_SLOW {
        return Nanos::ZERO;
    }
    let over = u64::from(fill - limits::FILL_SLOW) + 1;
    let range = u64::from(u8::MAX - limits::FILL_SLOW) + 1;
    let full = limits::DELAY_MAX.0 * over * over / (range * range);
    // Who holds less than a fair share waits less, down to an eighth.
    let delay = Nanos(full * (mine * 8 / fair.max(1)).clamp(1, 8) / 8);
    assert!(delay <= limits::DELAY_MAX, "an answer waits for {delay}");
    delay
}

#[cfg(test)]
mod tests {
    use super::{DestageRate, DestageStart, Pace, write_delay};
    use crate::limits;
    use atoll_world::Nanos;

    #[test]
    fn destage_follows_the_writers_and_does_not_pause_when_the_log_is_nearly_full() {
        let start = DestageStart { fill: limits::FILL_DESTAGE, idle: limits::IDLE_DESTAGE };
        let mut pace = Pace::default();
        let now = Nanos::from_secs(10);
        pace.wrote(now);
        let half_way = u8::midpoint(limits::FILL_DESTAGE, limits::FILL_URGENT);
        // 100,000 blocks in ten seconds.
        let rate = pace.rate(start, half_way, 100_000, false, now);
        let DestageRate::PerSecond(rate) = rate else { panic!("guests write") };
        assert!((10_000..12_000).contains(&rate), "{rate}");
        let full = |rate| matches!(rate, DestageRate::Full);
        assert!(full(pace.rate(start, limits::FILL_URGENT, 100_000, false, now)));
        assert!(full(pace.rate(start, 0, 100_000, true, now)));
        let later = now + limits::IDLE_DESTAGE;
        assert!(matches!(pace.rate(start, 0, 100_000, false, later), DestageRate::Readers));
    }

    #[test]
    fn writers_wait_longer_the_fuller_the_log_is() {
        assert_eq!(write_delay(limits::FILL_SLOW - 1, 100, 100), Nanos::ZERO);
        assert_eq!(write_delay(u8::MAX, 100, 100), limits::DELAY_MAX);
        assert_eq!(write_delay(u8::MAX, 0, 100).0, limits::DELAY_MAX.0 / 8);
        assert!(write_delay(limits::FILL_SLOW, 100, 100) < Nanos::from_ms(1));
    }
}
