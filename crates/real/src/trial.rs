//! Whether looking for events pays on this machine, with what it is doing: found out by trying.
//!
//! What a wake-up costs differs a hundredfold between machines, and what looking costs depends on
//! who else wants the processors: where wakes are cheap it wins nothing, and keeps a client that
//! reads from the processor that its data is on. So a shard that might look does so in some slices
//! of its time and not in others, compares how many requests ended, and does for a while what was
//! better; looking has to be better by [`PAYS_PERCENT`], since it costs a processor.
//!
//! Slices are chosen by chance: hosts whose requests wait for each other try at the same time.
//! Medians are compared: what a hypervisor stops for a while says nothing of either.

use atoll_world::Nanos;

/// A slice lasts so long, and until so many requests have ended.
const SLICE: Nanos = Nanos::from_ms(10);
const REQUESTS: u64 = 16;
/// One that lasted longer was idle in between.
const SLICE_MOST: Nanos = Nanos::from_ms(100);
/// Slices of each kind in a trial.
const SLICES: usize = 9;
/// How long its verdict counts.
const VERDICT: Nanos = Nanos::from_secs(3);
/// So much more has to end with looking than without, in hundredths.
const PAYS_PERCENT: u64 = 105;

pub(crate) struct Trial {
    looks: bool,
    decided: bool,
    /// Of this slice, or of the verdict.
    began: Nanos,
    /// Requests that have ended since.
    ended: u64,
    /// Nobody would have looked in this slice anyway.
    spoilt: bool,
    /// Requests a second in the slices of this trial: without looking, and with.
    rates: [Vec<u64>; 2],
}

impl Trial {
    pub(crate) const fn new() -> Self {
        Self {
            looks: true,
            decided: false,
            began: Nanos::ZERO,
            ended: 0,
            spoilt: true,
            rates: [Vec::new(), Vec::new()],
        }
    }

    /// Whether to look now.
    pub(crate) fn looks(&self) -> bool {
        self.looks
    }

    /// More is under way than anybody looks beside.
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
            self.rates[usize::from(self.looks)].push(self.ended * 1_000_000_000 / took.0);
        }
        (self.began, self.ended, self.spoilt) = (now, 0, false);
        let [without, with] = &self.rates;
        self.looks = match (without.len() < SLICES, with.len() < SLICES) {
            (true, true) => is_odd(now),
            (wants_without, wants_with) if wants_without || wants_with => wants_with,
            _ => {
                self.decided = true;
                let [without, with] = self.rates.each_mut().map(median_of);
                with * 100 > without * PAYS_PERCENT
            }
        };
    }
}

/// Chance enough: the last bits of when something happened.
fn is_odd(now: Nanos) -> bool {
    now.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1
}

/// Leaves none of them.
fn median_of(rates: &mut Vec<u64>) -> u64 {
    rates.sort_unstable();
    let median = rates[rates.len() / 2];
    rates.clear();
    median
}

#[cfg(test)]
mod tests {
    use super::{SLICE_MOST, Trial, VERDICT};
    use atoll_world::Nanos;

    /// One request after the other, each as long as `takes` says, for three verdicts' time. Which
    /// part of the last one it looked.
    fn share_of(trial: &mut Trial, mut takes: impl FnMut(bool, Nanos) -> Nanos) -> f64 {
        let (mut now, mut looked, mut all) = (trial.began, 0.0, 0.0);
        let last = now + VERDICT * 2;
        while now < last + VERDICT {
            let looks = trial.looks();
            let took = takes(looks, now);
            now += took;
            trial.ends(now);
            if now > last {
                all += took.0 as f64;
                looked += if looks { took.0 as f64 } else { 0.0 };
            }
        }
        looked / all
    }

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    #[test]
    fn it_looks_where_that_is_faster_and_only_there() {
        for (without, with, pays) in [
            (300, 200, true),
            (40, 36, true),
            (200, 200, false),
            (34, 37, false),
            (200, 196, false),
        ] {
            let share = share_of(&mut Trial::new(), |looks, now| {
                // Up to a fifth more, in no order.
                let chance = (now.0 / 1000).wrapping_mul(0x9E37_79B9) % 64;
                us(if looks { with } else { without }) * (320 + chance) / 320
            });
            let right = if pays { share } else { 1.0 - share };
            assert!(right > 0.9, "{without} us without, {with} with: {share}");
        }
    }

    #[test]
    fn what_stops_everybody_now_and_then_changes_nothing() {
        let mut at = us(0);
        let share = share_of(&mut Trial::new(), |looks, now| {
            if now > at + us(50_000) {
                at = now;
                return us(20_000);
            }
            us(if looks { 138 } else { 158 })
        });
        assert!(share > 0.9, "{share}");
    }

    #[test]
    fn it_changes_its_mind_when_the_work_changes() {
        let mut trial = Trial::new();
        assert!(share_of(&mut trial, |looks, _| us(if looks { 40 } else { 30 })) < 0.1);
        assert!(share_of(&mut trial, |looks, _| us(if looks { 140 } else { 160 })) > 0.9);
    }

    #[test]
    fn slices_that_say_nothing_decide_nothing() {
        let (mut trial, mut now) = (Trial::new(), Nanos::ZERO);
        for _ in 0..10_000 {
            now += us(100);
            trial.spoil();
            trial.ends(now);
        }
        for _ in 0..100 {
            now += SLICE_MOST + us(1);
            trial.ends(now);
        }
        assert!(!trial.decided && trial.rates.iter().all(Vec::is_empty));
    }
}
