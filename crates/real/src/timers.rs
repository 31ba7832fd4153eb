//! The timers of a shard.
//!
//! Nearly every timer is a deadline that is not reached: a read has three of them. They wait on a
//! wheel of the shard's own (Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", SOSP
//! 1987), which its thread alone touches: to begin and to drop one takes a few loads and stores,
//! whatever the number of timers. One task sleeps until the first, by an alarm of the kernel's. A
//! timer that goes away leaves that sleep as it is: it ends for nothing once, where the runtime's
//! own timers would take a lock for each and write to its eventfd whenever the new one is the
//! first.
//!
//! Invariants: a waker is called once `now` has reached its moment, never before; the task sleeps
//! no longer than to the first timer.

use crate::clock::now;
use atoll_world::Nanos;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A place on the wheel is this many bits of a moment: 17 ms.
const PLACE_BITS: u32 = 24;
/// Places: 17 s in all, more than a deadline of an I/O. What is later waits at the last one and
/// goes on from there.
const PLACES: u64 = 1024;
/// No timer.
const NONE: u32 = u32::MAX;

/// A timer on the wheel: one of a list for each place, or of the list of free ones.
struct Entry {
    at: Nanos,
    /// `NONE`: it is on no list, because it has been woken.
    place: u32,
    before: u32,
    after: u32,
    waker: Option<Waker>,
}

struct Wheel {
    entries: Vec<Entry>,
    /// The first entry that is free.
    free: u32,
    /// The first timer of each place.
    first: [u32; PLACES as usize],
    /// Which places have any.
    any: [u64; PLACES as usize / 64],
    /// All places before this one have been looked at: `at >> PLACE_BITS`, not modulo.
    turn: u64,
}

impl Wheel {
    const fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            first: [NONE; PLACES as usize],
            any: [0; PLACES as usize / 64],
            turn: 0,
        }
    }

    fn insert(&mut self, at: Nanos, waker: Waker) -> u32 {
        let entry = Entry { at, place: 0, before: NONE, after: NONE, waker: Some(waker) };
        let index = self.free;
        let index = match self.entries.get_mut(index as usize) {
            Some(free) => {
                self.free = free.after;
                *free = entry;
                index
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        self.link(index);
        index
    }

    /// Puts it where its moment belongs.
    fn link(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        let turn = (entry.at.0 >> PLACE_BITS).clamp(self.turn, self.turn + PLACES - 1);
        let place = (turn % PLACES) as usize;
        entry.place = place as u32;
        (entry.before, entry.after) = (NONE, self.first[place]);
        let after = std::mem::replace(&mut self.first[place], index);
        if let Some(after) = self.entries.get_mut(after as usize) {
            after.before = index;
        }
        self.any[place / 64] |= 1 << (place % 64);
    }

    fn unlink(&mut self, index: u32) {
        let Entry { before, after, .. } = self.entries[index as usize];
        let place = std::mem::replace(&mut self.entries[index as usize].place, NONE);
        match self.entries.get_mut(before as usize) {
            Some(before) => before.after = after,
            None => {
                self.first[place as usize] = after;
                if after == NONE {
                    self.any[place as usize / 64] &= !(1 << (place % 64));
                }
            }
        }
        if let Some(after) = self.entries.get_mut(after as usize) {
            after.before = before;
        }
    }

    /// Its timer has gone away.
    fn remove(&mut self, index: u32) -> Option<Waker> {
        if self.entries[index as usize].place != NONE {
            self.unlink(index);
        }
        let free = std::mem::replace(&mut self.free, index);
        let entry = &mut self.entries[index as usize];
        entry.after = free;
        entry.waker.take()
    }

    /// Who is to be woken now, in the order of their moments.
    fn take_due(&mut self, now: Nanos) -> Vec<(Nanos, Waker)> {
        let mut due = Vec::new();
        let present = now.0 >> PLACE_BITS;
        while let Some(turn) = self.next_place().filter(|&turn| turn <= present) {
            self.turn = turn;
            let mut next = self.first[(turn % PLACES) as usize];
            while let Some(entry) = self.entries.get_mut(next as usize) {
                let index = std::mem::replace(&mut next, entry.after);
                if entry.at <= now {
                    due.extend(entry.waker.take().map(|waker| (entry.at, waker)));
                    self.unlink(index);
                } else if entry.at.0 >> PLACE_BITS > turn {
                    self.unlink(index);
                    self.link(index);
                }
            }
            if turn == present {
                break;
            }
            self.turn = turn + 1;
        }
        self.turn = present;
        due.sort_by_key(|&(at, _)| at);
        due
    }

    /// When to look again: not after the first timer's moment.
    fn next(&self) -> Nanos {
        let Some(turn) = self.next_place() else { return Nanos::NEVER };
        let at = |index: u32| self.entries.get(index as usize);
        let first = at(self.first[(turn % PLACES) as usize]);
        let of_place = std::iter::successors(first, |entry| at(entry.after));
        // What waits for a later turn of the wheel goes on when this place is over.
        of_place.fold(Nanos((turn + 1) << PLACE_BITS), |next, entry| next.min(entry.at))
    }

    /// The first place that has timers.
    fn next_place(&self) -> Option<u64> {
        let mut turn = self.turn;
        while turn < self.turn + PLACES {
            let place = turn % PLACES;
            match self.any[place as usize / 64] >> (place % 64) {
                0 => turn += 64 - place % 64,
                bits => return Some(turn + u64::from(bits.trailing_zeros())),
            }
        }
        None
    }
}

struct Timers {
    wheel: RefCell<Wheel>,
    /// When the task looks next.
    looks_at: Cell<Nanos>,
    /// Of the task, while it sleeps.
    task: RefCell<Option<Waker>>,
}

thread_local! {
    static TIMERS: Timers = const { Timers {
        wheel: RefCell::new(Wheel::new()),
        looks_at: Cell::new(Nanos::ZERO),
        task: RefCell::new(None),
    } };
}

/// Returns at `at` or up to a few milliseconds later; inside `shard::run` only.
pub fn sleep_until(at: Nanos) -> impl Future<Output = ()> {
    Timer::at(at)
}

/// Ready at its moment or up to a few milliseconds later. Needs a shard: see `shard::run`.
pub(crate) struct Timer {
    at: Nanos,
    /// Its entry, of the wheel of the thread that polled it; `NONE`: it has none.
    entry: u32,
    /// Never on another thread: there the entry would be somebody else's.
    of_thread: PhantomData<Rc<()>>,
}

impl Timer {
    pub(crate) fn at(at: Nanos) -> Self {
        Self { at, entry: NONE, of_thread: PhantomData }
    }
}

impl Future for Timer {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        // Whoever asked for never selects on something else.
        if self.at == Nanos::NEVER {
            return Poll::Pending;
        }
        TIMERS.with(|timers| {
            if now() >= self.at {
                return Poll::Ready(());
            }
            let mut wheel = timers.wheel.borrow_mut();
            if self.entry != NONE {
                match &mut wheel.entries[self.entry as usize].waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                return Poll::Pending;
            }
            self.entry = wheel.insert(self.at, cx.waker().clone());
            if self.at < timers.looks_at.get() {
                timers.looks_at.set(self.at);
                let task = timers.task.borrow_mut().take();
                if let Some(task) = task {
                    task.wake();
                }
            }
            Poll::Pending
        })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if self.entry != NONE {
            // The thread may be ending, and its timers gone.
            let _ = TIMERS.try_with(|timers| timers.wheel.borrow_mut().remove(self.entry));
        }
    }
}

/// A timer of the kernel, whose end the runtime sees as it sees a socket's. The runtime's own
/// timers write to its eventfd whenever one is set that is the first: a system call more, and
/// another look at everything. This one also goes on while the machine is suspended.
pub(crate) struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// Inside a runtime only.
    ///
    /// # Errors
    /// No file descriptor is left.
    #[allow(deprecated, reason = "what replaces it is `unsafe`; an `OwnedFd` keeps its descriptor")]
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        Ok(Self(AsyncFd::with_interest(fd, Interest::READABLE)?))
    }

    /// From now on it ends at `at`, and not before.
    fn set(&self, at: Nanos) {
        // Zero means never to the kernel, and no moment since the machine's start is zero.
        let at = if at == Nanos::NEVER { 0 } else { at.0.max(1) };
        let it_value = Timespec {
            tv_sec: (at / 1_000_000_000).cast_signed(),
            tv_nsec: (at % 1_000_000_000).cast_signed(),
        };
        let time = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &time)
            .expect("it is a timer, and that is a time");
    }

    /// It has ended since it was set, or since before.
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        match ready!(self.0.poll_read_ready(cx)) {
            // Not read: setting it again does as much, and each end is told once.
            Ok(mut ended) => ended.clear_ready(),
            // The runtime is ending.
            Err(_) => return Poll::Pending,
        }
        Poll::Ready(())
    }
}

/// The task that wakes who waits. Never ends.
pub(crate) async fn keep(alarm: Alarm) {
    loop {
        let due = TIMERS.with(|timers| timers.wheel.borrow_mut().take_due(now()));
        due.into_iter().for_each(|(_, waker)| waker.wake());
        let first = TIMERS.with(|timers| {
            let first = timers.wheel.borrow().next();
            timers.looks_at.set(first);
            first
        });
        alarm.set(first);
        poll_fn(|cx| {
            let sooner = TIMERS.with(|timers| {
                *timers.task.borrow_mut() = Some(cx.waker().clone());
                timers.looks_at.get() < first
            });
            if sooner { Poll::Ready(()) } else { alarm.poll(cx) }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::{NONE, TIMERS, Timer, Wheel};
    use crate::clock::now;
    use crate::shard::run;
    use atoll_world::Nanos;
    use futures_util::future::join_all;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::task::Waker;

    fn queued() -> usize {
        TIMERS.with(|timers| {
            let wheel = timers.wheel.borrow();
            wheel
                .entries
                .iter()
                .filter(|entry| entry.place != NONE && entry.waker.is_some())
                .count()
        })
    }

    #[test]
    fn timers_end_in_their_order_whatever_the_order_in_which_they_begin() {
        run(async {
            let (begun, ended) = (now(), RefCell::new(Vec::new()));
            let after = [30u64, 10, 20, 10].map(Nanos::from_ms);
            join_all(after.map(async |span| {
                Timer::at(begun + span).await;
                assert!(now() >= begun + span, "too early");
                ended.borrow_mut().push(span);
            }))
            .await;
            assert_eq!(*ended.borrow(), [10, 10, 20, 30].map(Nanos::from_ms));
            assert_eq!(queued(), 0);
        })
        .unwrap();
    }

    #[test]
    fn one_that_is_dropped_leaves_nothing_and_holds_up_nobody() {
        run(async {
            let begun = now();
            let mut first = Box::pin(Timer::at(begun + Nanos::from_ms(5)));
            assert!(futures_util::poll!(&mut first).is_pending());
            let mut never = Box::pin(Timer::at(Nanos::NEVER));
            assert!(futures_util::poll!(&mut never).is_pending());
            assert_eq!(queued(), 1);
            tokio::task::yield_now().await;
            drop(first);
            assert_eq!(queued(), 0);
            Timer::at(begun + Nanos::from_ms(20)).await;
            assert!(now().since(begun) >= Nanos::from_ms(20));
        })
        .unwrap();
    }

    #[test]
    fn the_wheel_has_due_what_an_ordered_list_has() {
        let mut wheel = Wheel::new();
        let mut expected: BTreeMap<(Nanos, u32), ()> = BTreeMap::new();
        let mut fired: Vec<u32> = Vec::new();
        let (mut now, mut most) = (Nanos::from_secs(1_000), 0);
        let mut x = 7u64;
        let mut random = |below: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % below
        };
        for _ in 0..20_000 {
            match random(8) {
                // Some lie beyond the wheel's end, and some moments are the same.
                0..=3 => {
                    let span = [0, 1_000, 50_000, 3_000_000, 90_000_000][random(5) as usize];
                    let at = now + Nanos(1 + random(1 + span) * 1_000);
                    expected.insert((at, wheel.insert(at, Waker::noop().clone())), ());
                    most = most.max(expected.len() + fired.len());
                }
                4 => {
                    let pick = random(1 + expected.len() as u64) as usize;
                    if let Some(&(at, index)) = expected.keys().nth(pick) {
                        assert!(wheel.remove(index).is_some(), "it still waits");
                        expected.remove(&(at, index));
                    }
                }
                5 => fired.drain(..).for_each(|index| assert!(wheel.remove(index).is_none())),
                _ => {
                    let span = [1, 10_000, 20_000_000, 40_000_000_000][random(4) as usize];
                    now += Nanos(random(span));
                    let later = expected.split_off(&(Nanos(now.0 + 1), 0));
                    let due = std::mem::replace(&mut expected, later);
                    let woken = wheel.take_due(now);
                    let moments = woken.iter().map(|&(at, _)| at);
                    assert!(moments.eq(due.keys().map(|&(at, _)| at)), "at {now:?}");
                    fired.extend(due.keys().map(|&(_, index)| index));
                    assert!(due.keys().all(|&(_, i)| wheel.entries[i as usize].place == NONE));
                    let first = expected.keys().next().map_or(Nanos::NEVER, |&(at, _)| at);
                    assert!(wheel.next() > now && wheel.next() <= first, "the task sleeps well");
                }
            }
        }
        let waiting = wheel.entries.iter().filter(|entry| entry.place != NONE).count();
        assert_eq!(waiting, expected.len());
        assert_eq!(wheel.entries.len(), most, "entries are used again");
    }
}
