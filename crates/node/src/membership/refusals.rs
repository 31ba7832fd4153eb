//! Tells of connections that are refused again and again: hosts that do not believe each other.
//!
//! One refusal is no news: a host that stops refuses as well, and whoever scans ports. What lasts
//! is told once, and again when it has lasted for ten minutes more.

use atoll_transport::Refusal;
use atoll_world::Nanos;
use std::collections::BTreeMap;

/// From when on it lasts.
const LASTS: Nanos = Nanos::from_secs(3);
/// Not seen for that long, it is forgotten; told, it is not told again before.
const KEPT: Nanos = Nanos::from_secs(600);
/// Refusals that are known at once: who has as many certificates or addresses makes no more
/// events than this in ten minutes.
const KNOWN_MAX: usize = 32;

/// Refusals by who and why.
#[derive(Default)]
pub(crate) struct Refusals(BTreeMap<Refusal, Known>);

struct Known {
    first: Nanos,
    last: Nanos,
    told: bool,
}

impl Refusals {
    /// Whether it is to be told now.
    pub fn saw(&mut self, refusal: Refusal, now: Nanos) -> bool {
        self.0.retain(|_, known| {
            let since = if known.told { known.first } else { known.last };
            now.since(since) < KEPT
        });
        if self.0.len() == KNOWN_MAX && !self.0.contains_key(&refusal) {
            return false;
        }
        let fresh = Known { first: now, last: now, told: false };
        let known = self.0.entry(refusal).or_insert(fresh);
        assert!(known.last <= now, "seen later than now");
        known.last = now;
        let lasts = now.since(known.first) >= LASTS && !known.told;
        known.told |= lasts;
        assert!(self.0.len() <= KNOWN_MAX, "{} refusals are known", self.0.len());
        lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_once_in_ten_minutes_and_not_by_everybody_at_once() {
        let refusal = |with: usize| Refusal { with: format!("h{with}"), why: "no".into() };
        let mut refusals = Refusals::default();
        let start = Nanos::from_secs(1_000);
        let mut saw = |with, s| refusals.saw(refusal(with), start + Nanos::from_secs(s));
        assert_eq!([saw(1, 0), saw(1, 2), saw(1, 3), saw(1, 4)], [false, false, true, false]);
        // Another one is news of its own.
        assert_eq!([saw(2, 4), saw(2, 7)], [false, true]);
        assert_eq!([saw(1, 599), saw(1, 600), saw(1, 603)], [false, false, true]);
        // Somebody who comes from everywhere: those that are known fill the room.
        let told = (10..1_000).filter(|&with| saw(with, 604) | saw(with, 608)).count();
        assert!((1..=KNOWN_MAX).contains(&told), "{told}");
        // Seen once, it is forgotten.
        assert_eq!([saw(5_000, 2_000), saw(5_000, 2_601), saw(5_000, 2_604)], [false, false, true]);
    }
}
