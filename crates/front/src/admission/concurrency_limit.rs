//! How many requests a deep client may have under way while a shallow one is busy.
//!
//! The limit is the largest at which the shallow client's latency does not suffer. That depends on
//! the disks and processors: two requests on a machine of two cores, dozens where the disk answers
//! many at once. So the limit is found by trying. At the least limit the mean latency of reads and
//! of writes is measured. From there the limit grows, step by step, as long as hardly any request
//! of shallow clients takes more than [`HARM_TENTHS`] tenths of that mean. When more do, the limit
//! is halved and left alone for a pause, which doubles each time, so that the trying does no harm
//! either. Every [`MEAN_LASTS`] the measurement is repeated.
//!
//! The idea is that of congestion control by delay (TCP Vegas, Brakmo and Peterson 1995; the
//! measurements at a low limit are those of BBR, Cardwell et al. 2016).
//!
//! Invariant: `least <= bound`.

use super::limits::DEEP_REQUESTS_MAX;
use atoll_world::Nanos;

/// Requests that are looked at for each decision.
const SAMPLES: u32 = 300;
/// Fewer requests of one kind give no mean.
const SAMPLES_LEAST: u32 = SAMPLES / 10;
/// A request that takes more than this many tenths of the mean was disturbed.
const HARM_TENTHS: u64 = 25;
/// Disturbed requests that do not count as harm: one in so many, and a few.
const RARE: u32 = 100;
const FEW: u32 = 2;
/// How long requests that were under way before a change of the limit can still be noticed.
const SETTLE: Nanos = Nanos::from_ms(10);
/// How long the limit is left alone after it did harm: at first, and at most.
const PAUSE: (Nanos, Nanos) = (Nanos::from_secs(1), Nanos::from_secs(32));
/// How long a measured mean is valid.
const MEAN_LASTS: Nanos = Nanos::from_secs(10);
/// After this long without a request of a shallow client, what was found is forgotten.
const FORGET: Nanos = Nanos::from_secs(1);

/// See the file.
pub(super) struct ConcurrencyLimit {
    least: usize,
    bound: usize,
    phase: Phase,
    /// Requests that began earlier do not count: they met another bound.
    since: Nanos,
    /// Reads and writes of this phase.
    seen: [Seen; 2],
    slow: u32,
    /// Requests of a kind that has no mean.
    unknown: u32,
    /// The mean of each at the least bound, if it is known, and until when it counts.
    means: [Option<Nanos>; 2],
    mean_until: Nanos,
    /// The last bound that did harm.
    failed: usize,
    pause: Nanos,
    /// When the last request ended.
    last: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The means are measured at the least bound; then this one is tried.
    Mean {
        then: usize,
    },
    Try,
    Pause {
        until: Nanos,
    },
}

#[derive(Clone, Copy, Default)]
struct Seen {
    requests: u32,
    took: Nanos,
}

impl ConcurrencyLimit {
    /// Begins with the least bound.
    pub(super) fn new(least: usize) -> Self {
        Self {
            least,
            bound: least,
            phase: Phase::Mean { then: least + 1 },
            since: Nanos::ZERO,
            seen: Default::default(),
            slow: 0,
            unknown: 0,
            means: [None; 2],
            mean_until: Nanos::ZERO,
            failed: 0,
            pause: PAUSE.0,
            last: Nanos::ZERO,
        }
    }

    /// How many requests a deep client may have under way now.
    pub(super) fn bound(&self) -> usize {
        self.bound
    }

    /// A request of a shallow client, a write or a read, has ended while a deep one was held back.
    pub(super) fn ended(&mut self, begun: Nanos, now: Nanos, writes: bool) {
        if now.since(self.last) > FORGET {
            *self = Self { since: now, ..Self::new(self.least) };
        }
        self.last = now;
        if begun < self.since {
            return;
        }
        let took = now.since(begun);
        let kind = usize::from(writes);
        if let Phase::Mean { then } = self.phase {
            self.note(kind, took);
            if self.requests() >= SAMPLES {
                self.means = self.seen.map(Seen::mean);
                self.mean_until = now + MEAN_LASTS;
                self.go(now, Phase::Try, then);
            }
            return;
        }
        let Some(mean) = self.means[kind] else {
            self.unknown += 1;
            if self.unknown > 2 * SAMPLES_LEAST {
                // They do something else now.
                self.measure(now);
            }
            return;
        };
        self.note(kind, took);
        self.slow += u32::from(took.0 * 10 > mean.0 * HARM_TENTHS);
        if self.slow > FEW + self.requests() / RARE {
            self.harmed(now);
        } else if self.requests() >= SAMPLES {
            self.unharmed(now);
        }
    }

    fn harmed(&mut self, now: Nanos) {
        let phase = match self.phase {
            // Not even the half is little enough; or others are in the way.
            Phase::Pause { until } => Phase::Pause { until },
            _ => {
                self.failed = self.bound;
                let until = now + self.pause;
                self.pause = (self.pause * 2).min(PAUSE.1);
                Phase::Pause { until }
            }
        };
        self.go(now, phase, self.bound / 2);
    }

    fn unharmed(&mut self, now: Nanos) {
        match self.phase {
            Phase::Pause { until } if now < until => self.count_anew(),
            Phase::Try if now < self.mean_until => {
                if self.bound > self.failed {
                    self.pause = PAUSE.0;
                }
                self.go(now, Phase::Try, self.bound + (self.bound / 4).max(1));
            }
            _ => self.measure(now),
        }
    }

    fn measure(&mut self, now: Nanos) {
        let then = self.bound.max(self.least + 1);
        self.go(now, Phase::Mean { then }, self.least);
    }

    fn go(&mut self, now: Nanos, phase: Phase, bound: usize) {
        (self.phase, self.since) = (phase, now + SETTLE);
        self.bound = bound.clamp(self.least, self.least.max(DEEP_REQUESTS_MAX));
        self.count_anew();
    }

    fn count_anew(&mut self) {
        (self.seen, self.slow, self.unknown) = Default::default();
    }

    fn note(&mut self, kind: usize, took: Nanos) {
        self.seen[kind].requests += 1;
        self.seen[kind].took += took;
    }

    fn requests(&self) -> u32 {
        self.seen.iter().map(|seen| seen.requests).sum()
    }
}

impl Seen {
    fn mean(self) -> Option<Nanos> {
        (self.requests >= SAMPLES_LEAST).then(|| self.took / u64::from(self.requests))
    }
}

#[cfg(test)]
mod tests {
    use super::{ConcurrencyLimit, DEEP_REQUESTS_MAX, FORGET};
    use atoll_world::Nanos;

    const LEAST: usize = 2;

    struct Machine {
        limit: ConcurrencyLimit,
        now: Nanos,
        random: u64,
    }

    impl Machine {
        fn new() -> Self {
            let now = Nanos::from_secs(100);
            Self { limit: ConcurrencyLimit::new(LEAST), now, random: 1 }
        }

        /// A shallow client that waits for each request, for so long; what a request takes depends
        /// on the bound and on chance, from 0 to 999. The bounds that its requests met, sorted.
        fn runs(&mut self, seconds: u64, takes_us: impl Fn(u64, u64) -> u64) -> Vec<usize> {
            self.runs_kind(seconds, false, takes_us)
        }

        fn runs_kind(
            &mut self,
            seconds: u64,
            writes: bool,
            takes_us: impl Fn(u64, u64) -> u64,
        ) -> Vec<usize> {
            let end = self.now + Nanos::from_secs(seconds);
            let mut bounds = Vec::new();
            while self.now < end {
                self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (begun, bound) = (self.now, self.limit.bound());
                let takes = takes_us(bound as u64, (self.random >> 33) % 1000);
                self.now += Nanos::from_us(takes);
                self.limit.ended(begun, self.now, writes);
                bounds.push(bound);
            }
            bounds.sort_unstable();
            bounds
        }
    }

    fn part(sorted: &[usize], percent: usize) -> usize {
        sorted[(sorted.len() - 1) * percent / 100]
    }

    /// One at a time, in any order.
    fn one_at_a_time(bound: u64, chance: u64) -> u64 {
        30 + bound * chance / 10
    }

    /// Up to 32 at once take as long as one.
    fn many_at_once(bound: u64, chance: u64) -> u64 {
        80 + chance / 20 + if bound > 32 { (bound - 32) * 20 } else { 0 }
    }

    #[test]
    fn where_each_request_is_felt_it_stays_at_the_least() {
        let bounds = Machine::new().runs(60, |bound, chance| one_at_a_time(3 * bound - 4, chance));
        assert_eq!((part(&bounds, 0), part(&bounds, 98)), (LEAST, LEAST));
    }

    #[test]
    fn where_many_are_not_felt_they_are_allowed() {
        let mut machine = Machine::new();
        machine.runs(3, many_at_once);
        let bounds = machine.runs(60, many_at_once);
        assert!(part(&bounds, 10) >= 16, "{}", part(&bounds, 10));
        assert!(part(&bounds, 99) <= 64, "{}", part(&bounds, 99));
        // Until it did harm it grew all the time.
        let bounds = Machine::new().runs(20, |_, chance| 100 + chance / 50);
        assert_eq!(part(&bounds, 80), DEEP_REQUESTS_MAX);
    }

    #[test]
    fn what_stops_a_request_now_and_then_is_not_taken_for_harm() {
        let mut machine = Machine::new();
        machine.runs(3, many_at_once);
        let rare = |bound, chance| if chance < 3 { 20_000 } else { many_at_once(bound, chance) };
        let bounds = machine.runs(60, rare);
        assert!(part(&bounds, 50) >= 8, "{}", part(&bounds, 50));
    }

    #[test]
    fn when_it_begins_to_be_felt_it_falls_at_once() {
        let mut machine = Machine::new();
        let bounds = machine.runs(5, many_at_once);
        assert!(part(&bounds, 90) >= 16);
        machine.runs(1, |bound, chance| 80 + bound * chance / 10);
        let bounds = machine.runs(1, |bound, chance| 80 + bound * chance / 10);
        assert!(part(&bounds, 90) <= 4, "{}", part(&bounds, 90));
    }

    #[test]
    fn writes_are_looked_after_when_there_were_only_reads_before() {
        let mut machine = Machine::new();
        machine.runs(5, many_at_once);
        assert!(machine.limit.bound() >= 8);
        machine.runs_kind(1, true, |bound, chance| 80 + bound * chance / 10);
        let bounds = machine.runs_kind(1, true, |bound, chance| 80 + bound * chance / 10);
        assert!(part(&bounds, 90) <= 4, "{}", part(&bounds, 90));
    }

    #[test]
    fn after_a_silence_it_begins_anew() {
        let mut machine = Machine::new();
        machine.runs(5, many_at_once);
        assert!(machine.limit.bound() > LEAST);
        machine.now += FORGET + Nanos(1);
        machine.limit.ended(machine.now, machine.now + Nanos(1), true);
        assert_eq!(machine.limit.bound(), LEAST);
    }

    #[test]
    fn reads_are_not_compared_with_writes() {
        let mut machine = Machine::new();
        // Writes take five times as long; what half of them take is no harm.
        let mut at = 0;
        for _ in 0..20_000 {
            at += 1;
            let (begun, writes) = (machine.now, at % 2 == 0);
            machine.now += Nanos::from_us(if writes { 500 } else { 100 });
            machine.limit.ended(begun, machine.now, writes);
        }
        assert!(machine.limit.bound() > 16);
    }
}
