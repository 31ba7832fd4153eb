//! Who has shown tokens that were no good: how often an address may try, and what of it is told.
//!
//! Nobody guesses a token. What is bounded here is the work that tries make, and the events that
//! they would fill.
//!
//! Invariants: at most [`ADDRESSES_MAX`] addresses are remembered; an address fails at most
//! [`FAILURES_MAX`] times in [`WINDOW`]; of one address one event is told in [`TELL_EVERY`], and of
//! all together [`TOLD_MAX`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use tokio::time::Instant;

/// How often an address may fail in [`WINDOW`] before it is not listened to.
pub const FAILURES_MAX: u32 = 10;
/// See [`FAILURES_MAX`].
pub const WINDOW: Duration = Duration::from_secs(60);
/// Addresses that are remembered.
pub const ADDRESSES_MAX: usize = 1_024;
/// How often an address is told of.
pub const TELL_EVERY: Duration = Duration::from_secs(600);
/// How many are told of in [`TELL_EVERY`].
pub const TOLD_MAX: u32 = 20;

struct Failed {
    /// When its window began.
    since: Instant,
    /// How often, in it.
    times: u32,
    /// When it was told of.
    told: Option<Instant>,
}

/// See the module.
#[derive(Default)]
pub struct Failures {
    addresses: BTreeMap<IpAddr, Failed>,
    /// Told of, since when.
    told: Option<(u32, Instant)>,
}

/// One host can have all addresses of a /64.
fn whose(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
        v4 @ IpAddr::V4(_) => v4,
    }
}

impl Failures {
    /// Whether that address is to be listened to.
    ///
    /// # Errors
    /// Not for so long.
    pub fn admit(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let Some(failed) = self.addresses.get(&whose(address)) else { return Ok(()) };
        let over = failed.since + WINDOW;
        if failed.times < FAILURES_MAX || now >= over { Ok(()) } else { Err(over - now) }
    }

    /// It has shown a token that is no good: whether that is to be told.
    pub fn note(&mut self, address: IpAddr, now: Instant) -> bool {
        let address = whose(address);
        if !self.addresses.contains_key(&address) {
            self.make_room(now);
        }
        let new = || Failed { since: now, times: 0, told: None };
        let failed = self.addresses.entry(address).or_insert_with(new);
        if now >= failed.since + WINDOW {
            (failed.since, failed.times) = (now, 0);
        }
        failed.times += 1;
        if failed.told.is_some_and(|told| now < told + TELL_EVERY) {
            return false;
        }
        let (told, since) = match self.told {
            Some((told, since)) if now < since + TELL_EVERY => (told, since),
            _ => (0, now),
        };
        if told >= TOLD_MAX {
            return false;
        }
        self.told = Some((told + 1, since));
        failed.told = Some(now);
        true
    }

    /// For one more: without those that nothing depends on any more, else without the oldest.
    fn make_room(&mut self, now: Instant) {
        if self.addresses.len() < ADDRESSES_MAX {
            return;
        }
        self.addresses.retain(|_, failed| {
            let is_told = failed.told.is_some_and(|told| now < told + TELL_EVERY);
            is_told || now < failed.since + WINDOW
        });
        if self.addresses.len() < ADDRESSES_MAX {
            return;
        }
        let oldest = self.addresses.iter().min_by_key(|(_, failed)| failed.since);
        if let Some(address) = oldest.map(|(address, _)| *address) {
            self.addresses.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_that_fails_too_often_waits_and_others_do_not() {
        let begin = Instant::now();
        let at = |s: u64| begin + Duration::from_secs(s);
        let mut failures = Failures::default();
        for n in 0..FAILURES_MAX {
            assert_eq!(failures.admit(ip("10.0.0.1"), at(1)), Ok(()), "{n}");
            failures.note(ip("10.0.0.1"), at(1));
        }
        assert_eq!(failures.admit(ip("10.0.0.1"), at(21)), Err(Duration::from_secs(40)));
        assert_eq!(failures.admit(ip("::ffff:10.0.0.1"), at(21)), Err(Duration::from_secs(40)));
        assert_eq!(failures.admit(ip("10.0.0.2"), at(21)), Ok(()));
        assert_eq!(failures.admit(ip("10.0.0.1"), at(61)), Ok(()));
        failures.note(ip("10.0.0.1"), at(61));
        assert_eq!(failures.admit(ip("10.0.0.1"), at(61)), Ok(()), "a new window");
        // A host has a /64.
        for n in 0..FAILURES_MAX {
            failures.note(ip(&format!("2001:db8::{n}")), at(1));
        }
        assert!(failures.admit(ip("2001:db8::ffff"), at(2)).is_err());
        assert_eq!(failures.admit(ip("2001:db8:0:1::1"), at(2)), Ok(()));
    }

    #[test]
    fn each_address_is_told_of_once_in_a_while_and_few_in_all() {
        let begin = Instant::now();
        let at = |s: u64| begin + Duration::from_secs(s);
        let mut failures = Failures::default();
        let mut note = |n: u32, s| failures.note(IpAddr::V4(n.into()), at(s));
        assert!(note(1, 0));
        assert!(!note(1, 0) && !note(1, 599));
        assert!(note(1, 600));
        let told = (2..100).filter(|&n| note(n, 601)).count();
        assert_eq!(told as u32, TOLD_MAX - 1);
        assert!(!note(100, 1199));
        assert!(note(100, 1200));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
        let begin = Instant::now();
        let at = |s: u64| begin + Duration::from_secs(s);
        let mut failures = Failures::default();
        let address = |n: u32| IpAddr::V4(n.into());
        for n in 0..2 * ADDRESSES_MAX as u32 {
            for _ in 0..FAILURES_MAX {
                failures.note(address(n), at(u64::from(n) / 100));
            }
            assert!(failures.addresses.len() <= ADDRESSES_MAX);
        }
        let now = at(2 * ADDRESSES_MAX as u64 / 100);
        assert_eq!(failures.admit(address(0), now), Ok(()), "forgotten");
        assert!(failures.admit(address(2 * ADDRESSES_MAX as u32 - 1), now).is_err());
        // All at once, when their time is over.
        failures.note(address(u32::MAX), at(10_000));
        assert_eq!(failures.addresses.len(), 1);
    }
}
