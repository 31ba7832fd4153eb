//! How far copies are that are brought up to date. Progress belongs to the copy, not to an attempt:
//! what an interrupted attempt had looked at is looked at again, and counts once.
//!
//! Invariants: what is done never falls and what is left never rises because an attempt ended; both
//! together are what the present attempt has to look at, or less; a rate is of what it names, and
//! only of time in which the copy got further.

use atoll_format::id::ComponentId;
use atoll_format::units::CHUNK;
use atoll_world::Nanos;
use std::collections::BTreeMap;

/// Over how much time rates are smoothed.
const SMOOTH: Nanos = Nanos::from_secs(5);
/// Rates are known from so much time on.
const KNOWN_AFTER: Nanos = Nanos::from_ms(1_000);
/// Rates change at most so often.
const SAMPLE: Nanos = Nanos::from_ms(250);

/// How far one copy is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CopyProgress {
    /// Which.
    pub component: ComponentId,
    /// An attempt is under way.
    pub running: bool,
    /// Upper bound of the bytes still to compare or copy.
    pub bytes_left: u64,
    /// Bytes compared or copied, over all attempts.
    pub bytes_done: u64,
    /// Bytes copied, over all attempts.
    pub bytes_copied: u64,
    /// How fast `bytes_done` rises, in bytes per second; 0 while that is unknown, or nothing moves.
    pub done_per_second: u64,
    /// How fast `bytes_copied` rises, in bytes per second; as above.
    pub copied_per_second: u64,
    /// Time since the first attempt began.
    pub since: Nanos,
}

#[derive(Default)]
struct Copy {
    running: bool,
    began: Nanos,
    total: u64,
    /// Of this attempt.
    looked_at: u64,
    /// The furthest of all attempts.
    furthest: u64,
    copied: u64,
    last: Nanos,
    rates: Rates,
}

/// The copies of one object, as its present owner brings them up to date.
#[derive(Default)]
pub(crate) struct Progress(BTreeMap<ComponentId, Copy>);

impl Progress {
    /// An attempt begins, with so many chunks to look at.
    pub fn begin(&mut self, component: ComponentId, chunks: usize, now: Nanos) {
        let copy =
            self.0.entry(component).or_insert_with(|| Copy { began: now, ..Copy::default() });
        copy.running = true;
        copy.total = chunks as u64 * CHUNK;
        copy.looked_at = 0;
        copy.last = now;
    }

    /// One chunk more was looked at, and `copied` bytes of it were copied.
    pub fn step(&mut self, component: ComponentId, copied: u64, now: Nanos) {
        let Some(copy) = self.0.get_mut(&component) else { return };
        let took = now.since(copy.last);
        copy.last = now;
        copy.looked_at += CHUNK;
        copy.copied += copied;
        assert!(copied <= CHUNK, "{copied} bytes of one chunk");
        assert!(
            copy.looked_at <= copy.total,
            "{} bytes looked at of {}",
            copy.looked_at,
            copy.total
        );
        // Up to where an earlier attempt came, it gets no further.
        if copy.looked_at > copy.furthest {
            copy.furthest = copy.looked_at;
            copy.rates.add(CHUNK, copied, took);
        }
        assert!(copy.looked_at <= copy.furthest, "what is done never falls");
    }

    /// The attempt has ended, one way or the other.
    pub fn pause(&mut self, component: ComponentId) {
        if let Some(copy) = self.0.get_mut(&component) {
            copy.running = false;
        }
    }

    /// The copy is up to date.
    pub fn done(&mut self, component: ComponentId) {
        self.0.remove(&component);
    }

    /// All copies that have been begun and are not done, and are still `wanted`.
    pub fn copies(&self, now: Nanos, wanted: impl Fn(ComponentId) -> bool) -> Vec<CopyProgress> {
        let wanted = self.0.iter().filter(|(component, _)| wanted(**component));
        let copies = wanted.map(|(&component, copy)| {
            let (done, copied) = match copy.running {
                true => copy.rates.now(now.since(copy.last)),
                false => (0, 0),
            };
            let shown = CopyProgress {
                component,
                running: copy.running,
                bytes_left: copy.total.saturating_sub(copy.furthest),
                bytes_done: copy.furthest.min(copy.total),
                bytes_copied: copy.copied,
                done_per_second: done,
                copied_per_second: copied,
                since: now.since(copy.began),
            };
            assert_eq!(shown.bytes_done + shown.bytes_left, copy.total, "{shown:?}");
            shown
        });
        copies.collect()
    }
}

/// Two rates over the same time: means at first, then smoothed.
#[derive(Default)]
struct Rates {
    done: f64,
    copied: f64,
    spent: f64,
    /// Not in the rates yet: bytes, bytes, seconds.
    waiting: (u64, u64, f64),
}

impl Rates {
    fn add(&mut self, done: u64, copied: u64, took: Nanos) {
        let (d, c, t) = &mut self.waiting;
        (*d, *c, *t) = (*d + done, *c + copied, *t + took.as_secs_f64());
        if *t < SAMPLE.as_secs_f64() {
            return;
        }
        let (d, c, t) = std::mem::take(&mut self.waiting);
        self.spent += t;
        let part = (t / (t + SMOOTH.as_secs_f64())).max(t / self.spent);
        assert!(part > 0.0 && part <= 1.0, "{t} s of {} s are a part of {part}", self.spent);
        self.done += (d as f64 / t - self.done) * part;
        self.copied += (c as f64 / t - self.copied) * part;
        assert!(self.done >= 0.0 && self.copied >= 0.0, "a rate is never negative");
    }

    /// When nothing has moved for `idle`.
    fn now(&self, idle: Nanos) -> (u64, u64) {
        if self.spent < KNOWN_AFTER.as_secs_f64() {
            return (0, 0);
        }
        let idle = idle.as_secs_f64() - KNOWN_AFTER.as_secs_f64();
        let smooth = SMOOTH.as_secs_f64();
        let left = if idle > 0.0 { smooth / (smooth + idle) } else { 1.0 };
        assert!(left > 0.0 && left <= 1.0, "a rate falls while nothing moves: {left}");
        ((self.done * left) as u64, (self.copied * left) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: ComponentId = ComponentId(7);

    fn one(progress: &Progress, now: Nanos) -> CopyProgress {
        progress.copies(now, |_| true)[0]
    }

    #[test]
    fn an_attempt_that_ends_takes_nothing_back() {
        let (mut progress, mut now) = (Progress::default(), Nanos::ZERO);
        let total = 100 * CHUNK;
        let mut before = 0;
        for attempt in 1..=4u64 {
            progress.begin(C, 100, now);
            for step in 1..=20 * attempt {
                // 10 MiB/s of copies; what was copied before is only compared, 100 times as fast.
                let again = attempt > 1 && step <= 20 * (attempt - 1);
                now += Nanos(if again { 1_000_000 } else { 100_000_000 });
                progress.step(C, if again { 0 } else { CHUNK }, now);
                let shown = one(&progress, now);
                assert!(shown.bytes_done >= before, "{shown:?}");
                assert_eq!(shown.bytes_done + shown.bytes_left, total);
                before = shown.bytes_done;
                if shown.done_per_second > 0 {
                    let mib = [shown.done_per_second, shown.copied_per_second].map(|r| r >> 20);
                    assert!(mib.iter().all(|r| (9..=10).contains(r)), "{shown:?}");
                }
            }
            progress.pause(C);
            now += Nanos::from_secs(30);
            let shown = one(&progress, now);
            assert_eq!((shown.running, shown.bytes_done), (false, before));
            assert_eq!((shown.bytes_left, shown.copied_per_second), (total - before, 0));
        }
        // Less to look at than before: never above the whole.
        progress.begin(C, 50, now);
        let shown = one(&progress, now);
        assert_eq!((shown.bytes_left, shown.bytes_done), (0, 50 * CHUNK));
        assert!(progress.copies(now, |_| false).is_empty());
        progress.done(C);
        assert!(progress.copies(now, |_| true).is_empty());
    }

    #[test]
    fn rates_follow_what_happens_and_fall_when_nothing_does() {
        let (mut progress, mut now) = (Progress::default(), Nanos::ZERO);
        progress.begin(C, 10_000, now);
        progress.step(C, CHUNK, now + Nanos::from_ms(100));
        assert_eq!(one(&progress, now).done_per_second, 0, "too early to tell");
        // Equal blocks: 1,000 chunks a second, nothing copied. Then 20 a second, all copied.
        for (steps, ms, copied) in [(3_000, 1, 0), (600, 50, CHUNK)] {
            for _ in 0..steps {
                now += Nanos::from_ms(ms);
                progress.step(C, copied, now);
            }
        }
        let shown = one(&progress, now);
        assert!((20..=22).contains(&(shown.done_per_second >> 20)), "{shown:?}");
        assert!((19..=20).contains(&(shown.copied_per_second >> 20)), "{shown:?}");
        let later = one(&progress, now + Nanos::from_secs(60));
        assert!(later.copied_per_second < shown.copied_per_second / 10, "{later:?}");
    }
}
