//! Whether busy polling pays on this machine, with what it is doing: measured.
//!
//! The cost of a wake-up differs a hundredfold between machines, and the cost of polling depends on
//! who else wants the processors: where wake-ups are cheap polling wins nothing, and keeps a client
//! that reads from the processor that has its data. So a shard polls in some slices of its time and
//! not in others, compares how many requests ended, and does for a while what was better. Polling
//! must be better by [`PAYS_PERCENT`], since it costs a processor.
//!
//! Slices are long, and the first after a change does not count: the kernel takes some time to find
//! the processors for two that wake each other, and a hypervisor stops those that use more than
//! they should once in a tenth of a second.

use atoll_world::Nanos;

/// A slice lasts so long, and until so many requests have ended.
const SLICE: Nanos = Nanos::from_ms(100);
const REQUESTS: u64 = 16;
/// One that lasted longer was idle in between.
const SLICE_MOST: Nanos = Nanos::from_ms(300);
/// Slices of each kind in a trial.
const SLICES: u64 = 3;
/// How long its verdict counts.
const VERDICT: Nanos = Nanos::from_secs(6);
/// Requests that must end with polling, of those that end without, in hundredths.
const PAYS_PERCENT: u64 = 110;

pub(crate) struct PollTuner {
    polls: bool,
    decided: bool,
    /// Of this slice, or of the verdict.
    began: Nanos,
    /// Requests that have ended since.
    ended: u64,
    /// No shard would have polled in this slice anyway, or it is the first after a change.
    spoilt: bool,
    /// Of this trial: without polling, and with.
    tried: [Tried; 2],
}

#[derive(Clone, Copy)]
struct Tried {
    slices: u64,
    /// Of the slices, summed up.
    ended: u64,
    took: Nanos,
}

impl PollTuner {
    pub(crate) const fn new() -> Self {
        Self {
            polls: true,
            decided: false,
            began: Nanos::ZERO,
            ended: 0,
            spoilt: true,
            tried: [Tried::NOTHING; 2],
        }
    }

    /// Whether to poll now.
    pub(crate) fn polls(&self) -> bool {
        self.polls
    }

    /// More is under way than a shard polls with.
    pub(crate) fn spoil(&mut self) {
        self.spoilt = true;
    }

    /// A request has ended.
    pub(crate) fn ends(&mut self, now: Nanos) {
        self.ended += 1;
        let took = now.since(self.began);
        let over = if self.decided {
            took >= VERDICT
        } else {
            took >= SLICE && self.ended >= REQUESTS || took > SLICE_MOST
        };
        if !over {
            return;
        }
        if self.decided {
            self.decided = false;
        } else if !self.spoilt && took <= SLICE_MOST {
            let tried = &mut self.tried[usize::from(self.polls)];
            tried.slices += 1;
            tried.ended += self.ended;
            tried.took += took;
        }
        let [without, with] = self.tried;
        let polled = self.polls;
        self.polls = match (without.slices < SLICES, with.slices < SLICES) {
            (true, true) => polled,
            (false, false) => {
                self.decided = true;
                self.tried = [Tried::NOTHING; 2];
                with.rate() * 100 > without.rate() * PAYS_PERCENT
            }
            (_, wants_with) => wants_with,
        };
        (self.began, self.ended, self.spoilt) = (now, 0, self.polls != polled);
    }
}

impl Tried {
    const NOTHING: Self = Self { slices: 0, ended: 0, took: Nanos::ZERO };

    /// Requests a second.
    fn rate(&self) -> u64 {
        self.ended * 1_000_000_000 / self.took.0
    }
}

#[cfg(test)]
mod tests {
    use super::{PollTuner, SLICE, SLICE_MOST, VERDICT};
    use atoll_world::Nanos;

    /// One request after the other, each as long as `takes` says, for three verdicts' time. Which
    /// part of the last one it polled.
    fn share_of(tuner: &mut PollTuner, mut takes: impl FnMut(bool, Nanos) -> Nanos) -> f64 {
        let (mut now, mut polled, mut all) = (tuner.began, 0.0, 0.0);
        let last = now + VERDICT * 2;
        while now < last + VERDICT {
            let polls = tuner.polls();
            let took = takes(polls, now);
            now += took;
            tuner.ends(now);
            if now > last {
                all += took.0 as f64;
                polled += if polls { took.0 as f64 } else { 0.0 };
            }
        }
        polled / all
    }

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    #[test]
    fn it_polls_where_that_is_faster_and_only_there() {
        for (without, with, pays) in [
            (300, 200, true),
            (40, 36, true),
            (200, 200, false),
            (34, 37, false),
            (200, 196, false),
        ] {
            let share = share_of(&mut PollTuner::new(), |polls, now| {
                // Up to a fifth more, in no order.
                let chance = (now.0 / 1000).wrapping_mul(0x9E37_79B9) % 64;
                us(if polls { with } else { without }) * (320 + chance) / 320
            });
            let right = if pays { share } else { 1.0 - share };
            assert!(right > 0.9, "{without} us without, {with} with: {share}");
        }
    }

    #[test]
    fn who_is_stopped_because_it_polls_does_not() {
        let mut polled_since = None;
        let share = share_of(&mut PollTuner::new(), |polls, now| {
            if !polls {
                polled_since = None;
                return us(36);
            }
            if now > *polled_since.get_or_insert(now) + us(50_000) {
                polled_since = None;
                return us(10_000);
            }
            us(34)
        });
        assert!(share < 0.1, "{share}");
    }

    #[test]
    fn what_a_change_costs_at_first_is_not_counted() {
        let (mut before, mut since) = (true, Nanos::ZERO);
        let share = share_of(&mut PollTuner::new(), |polls, now| {
            if std::mem::replace(&mut before, polls) != polls {
                since = now;
            }
            let fresh = now.since(since) < SLICE;
            us(if polls {
                36
            } else if fresh {
                60
            } else {
                34
            })
        });
        assert!(share < 0.1, "{share}");
    }

    #[test]
    fn it_changes_its_mind_when_the_work_changes() {
        let mut tuner = PollTuner::new();
        assert!(share_of(&mut tuner, |polls, _| us(if polls { 40 } else { 30 })) < 0.1);
        assert!(share_of(&mut tuner, |polls, _| us(if polls { 140 } else { 160 })) > 0.9);
    }

    #[test]
    fn slices_that_say_nothing_decide_nothing() {
        let (mut tuner, mut now) = (PollTuner::new(), Nanos::ZERO);
        for _ in 0..10_000 {
            now += us(100);
            tuner.spoil();
            tuner.ends(now);
        }
        for _ in 0..100 {
            now += SLICE_MOST + us(1);
            tuner.ends(now);
        }
        assert!(!tuner.decided && tuner.tried.iter().all(|tried| tried.slices == 0));
    }
}
