//! The ceiling of a volume in I/Os per second: one bucket at its owner, from which every open
//! handle, on whatever host, draws turns; so four clients together get what one would get alone.
//!
//! A handle asks for turns only while somebody waits for one, one question at a time, and gets at
//! most [`GRANT`]'s worth: clients take turns, however deep their queues are. Turns are waited for
//! before an I/O gets its number and its deadline: a low ceiling makes I/O slow, and fails none.
//!
//! Decisions only: who asks, and sleeps, is `client`.

use atoll_world::Nanos;
use std::cell::Cell;

/// Turns that were not taken are kept for this long: a burst.
const BURST: Nanos = Nanos::from_ms(50);
/// What one handle is given at once.
const GRANT: Nanos = Nanos::from_ms(100);
/// The longest wait that is told; who waits so long is given turns then, and asks again.
pub(crate) const WAIT_MAX: Nanos = Nanos::from_secs(600);
/// How long the owner's answer is waited for.
pub(crate) const ASK_MAX: Nanos = Nanos::from_ms(500);
/// A handle without a ceiling asks whether there is one after so much time with I/O.
const KNOWN_FOR: Nanos = Nanos::from_secs(5);

fn step(limit: u32) -> Nanos {
    Nanos(1_000_000_000 / u64::from(limit.max(1)))
}

/// Turns given to one handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turns {
    /// The ceiling; 0: there is none, and the rest means nothing.
    pub limit: u32,
    /// How many; at least 1 if some were wanted.
    pub count: u32,
    /// Nanoseconds from now until the first of them, at most 600 s.
    pub wait_ns: u64,
}

impl Turns {
    /// Whether they are what was asked for: who waits and is given none would ask for ever.
    pub(crate) fn answers(self, want: u32) -> bool {
        self.limit == 0 || (want.min(1)..=want).contains(&self.count)
    }
}

/// The owner's side.
#[derive(Default)]
pub(crate) struct IopsBucket {
    /// When the next turn is, under the ceiling of the last one.
    next: Cell<Nanos>,
    limit: Cell<u32>,
}

impl IopsBucket {
    /// Gives up to `want` turns under that ceiling.
    pub fn take(&self, limit: u32, want: u32, now: Nanos) -> Turns {
        // Under another ceiling the turns that were given would be at other times.
        if self.limit.replace(limit) != limit {
            self.next.set(Nanos::ZERO);
        }
        if limit == 0 || want == 0 {
            return Turns { limit, count: want, wait_ns: 0 };
        }
        let at_once = (GRANT.0 / step(limit).0).clamp(1, u64::from(u32::MAX)) as u32;
        let count = want.min(at_once);
        let start = self.next.get().max(now - BURST);
        assert!(start >= self.next.get(), "nobody starts before those that came first");
        self.next.set(start + step(limit) * u64::from(count));
        Turns { limit, count, wait_ns: start.since(now).0.min(WAIT_MAX.0) }
    }
}

/// A handle's side.
pub(crate) struct IopsTurns {
    limit: Cell<u32>,
    /// When the ceiling was last asked for.
    known_at: Cell<Nanos>,
    next: Cell<Nanos>,
    left: Cell<u32>,
    /// Until then the owner, which did not answer, is not asked again.
    alone_until: Cell<Nanos>,
}

/// What a handle does before an I/O.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// Nothing: there is no ceiling.
    Free,
    /// Nothing either, but it is time to ask whether there is one.
    FreeAndAsk,
    /// It starts at that moment.
    At(Nanos),
    /// It asks the owner for turns.
    Ask,
}

impl IopsTurns {
    /// Of a volume that was opened now, with that ceiling.
    pub fn new(limit: u32, now: Nanos) -> Self {
        let (next, left) = (Cell::new(Nanos::ZERO), Cell::new(0));
        let alone_until = Cell::new(Nanos::ZERO);
        Self { limit: Cell::new(limit), known_at: Cell::new(now), next, left, alone_until }
    }

    /// What to do before the next I/O; takes a turn, if one is left.
    pub fn take(&self, now: Nanos) -> Turn {
        if self.limit.get() == 0 {
            if now.since(self.known_at.get()) < KNOWN_FOR {
                return Turn::Free;
            }
            self.known_at.set(now);
            return Turn::FreeAndAsk;
        }
        if self.left.get() == 0 && now >= self.alone_until.get() {
            return Turn::Ask;
        }
        self.left.set(self.left.get().saturating_sub(1));
        let is_alone = now < self.alone_until.get();
        let start = self.next.get().max(if is_alone { now - BURST } else { Nanos::ZERO });
        self.next.set(start + step(self.limit.get()));
        Turn::At(start)
    }

    /// The owner has given turns.
    pub fn given(&self, turns: Turns, now: Nanos) {
        self.limit.set(turns.limit);
        self.known_at.set(now);
        self.next.set(now + Nanos(turns.wait_ns));
        self.left.set(if turns.limit == 0 { 0 } else { turns.count });
        self.alone_until.set(Nanos::ZERO);
    }

    /// The owner does not answer: the ceiling that was known holds, for this handle alone, until
    /// it is asked again. Nobody waits for it longer than once.
    pub fn not_answered(&self, now: Nanos) {
        self.left.set(0);
        self.alone_until.set(now + KNOWN_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_secs(100);

    /// Handles that all want as much as they can get; I/Os of each in one second.
    fn run(limit: u32, handles: usize, want: u32) -> Vec<u64> {
        let bucket = IopsBucket::default();
        let turns: Vec<_> = (0..handles).map(|_| IopsTurns::new(limit, START)).collect();
        let mut done = vec![0; handles];
        let mut free_at = vec![START; handles];
        let end = START + Nanos::from_secs(1);
        let mut now = START;
        while now < end {
            for (n, handle) in turns.iter().enumerate() {
                if free_at[n] > now {
                    continue;
                }
                match handle.take(now) {
                    Turn::Ask => handle.given(bucket.take(limit, want, now), now),
                    Turn::At(at) => {
                        free_at[n] = at;
                        done[n] += u64::from(at < end);
                    }
                    other => panic!("{other:?} under a ceiling"),
                }
            }
            now += Nanos::from_us(50);
        }
        done
    }

    #[test]
    fn handles_share_one_ceiling_evenly_however_much_they_want() {
        for (limit, handles) in [(1000, 1), (1000, 4), (200, 3), (20, 4)] {
            let done = run(limit, handles, 128);
            let all: u64 = done.iter().sum();
            let limit = u64::from(limit);
            // What a burst adds, and what was begun at the end.
            let most = limit + limit / 20 + 1;
            assert!(all >= limit * 9 / 10 && all <= most, "{done:?} of {limit}");
            let (least, largest) = (done.iter().min(), done.iter().max());
            let apart = largest.unwrap() - least.unwrap();
            assert!(apart <= (limit / 10).max(1) + limit / 20, "{done:?} of {limit}");
        }
    }

    #[test]
    fn an_answer_gives_something_and_no_more_than_was_asked_for() {
        let turns = |limit, count| Turns { limit, count, wait_ns: 0 };
        for (want, count, good) in [(0, 0, true), (0, 1, false), (3, 0, false), (3, 1, true)] {
            assert_eq!(turns(10, count).answers(want), good, "{count} of {want}");
            assert!(turns(0, count).answers(want), "without a ceiling the rest means nothing");
        }
        assert!(turns(10, 3).answers(3) && !turns(10, 4).answers(3));
    }

    #[test]
    fn a_deep_queue_is_given_no_more_than_a_tenth_of_a_second() {
        let bucket = IopsBucket::default();
        let first = bucket.take(1000, 1 << 20, START);
        assert_eq!(first, Turns { limit: 1000, count: 100, wait_ns: 0 });
        let second = bucket.take(1000, 1, START);
        assert_eq!((second.count, second.wait_ns), (1, 50_000_000), "100 turns less the burst");
        assert_eq!(bucket.take(3, 128, START + Nanos::from_secs(5)).count, 1, "at least one");
    }

    #[test]
    fn a_ceiling_may_come_change_and_go() {
        let bucket = IopsBucket::default();
        let handle = IopsTurns::new(0, START);
        assert_eq!(handle.take(START), Turn::Free);
        let later = START + KNOWN_FOR;
        assert_eq!(handle.take(later), Turn::FreeAndAsk);
        assert_eq!(handle.take(later), Turn::Free, "asked once");
        handle.given(bucket.take(10, 0, later), later);
        assert_eq!(handle.take(later), Turn::Ask);
        handle.given(bucket.take(10, 5, later), later);
        assert_eq!(handle.take(later), Turn::At(later));
        assert_eq!(handle.take(later), Turn::Ask, "one turn of a tenth of a second each");
        handle.given(bucket.take(0, 1, later), later);
        assert_eq!(handle.take(later), Turn::Free);
        // Many wait for their turns, each a second after the other; then there is more.
        for n in 0..100 {
            let turns = bucket.take(1, 1, later);
            assert!(turns.wait_ns.abs_diff(n * 1_000_000_000) <= BURST.0, "{turns:?}");
        }
        assert_eq!(bucket.take(100, 1, later), Turns { limit: 100, count: 1, wait_ns: 0 });
    }

    #[test]
    fn without_an_answer_the_known_ceiling_holds() {
        let handle = IopsTurns::new(10, START);
        let mut now = START;
        assert_eq!(handle.take(now), Turn::Ask);
        handle.not_answered(now);
        for n in 0..20u64 {
            let Turn::At(at) = handle.take(now) else { panic!("a turn was given") };
            assert!(at.since(START) + Nanos::from_ms(51) >= Nanos::from_ms(100) * n, "{n}: {at}");
            now = now.max(at);
        }
        assert_eq!(handle.take(START + KNOWN_FOR), Turn::Ask, "it is asked again");
    }
}
