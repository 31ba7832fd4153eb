//! Busy polling: a shard looks for the next event before it sleeps.
//!
//! A processor that goes to sleep and is woken costs tens of microseconds, on a virtual machine
//! a hundred, and a single write waits for six of these one after the other. So a shard
//! polls for a while after each event, if that paid lately. How long follows the rule by which KVM
//! polls before it halts (`Documentation/virt/kvm/halt-polling.rst`): longer after a short sleep,
//! shorter after a long one. The shard yields the processor to every other thread that wants it.
//!
//! A shard with many requests, or large ones, does not poll: each wake-up then serves several of
//! them or is little beside the copying, and their clients can use the processor. Nor does one for
//! which polling does not pay: see `poll_tuner`.
//!
//! Invariants: a shard with no event for longer than the window sleeps. It does not poll when
//! events are further apart than the longest window, when peers have nothing for a disk, or with
//! more than [`BUSY_POLL_BYTES`] under way.

use crate::clock::now;
use crate::limits::{BUSY_POLL_BYTES, BUSY_POLL_EACH, BUSY_POLL_MAX, BUSY_POLL_MIN};
use crate::poll_tuner::PollTuner;
use crate::{cpu_latency, uring};
use atoll_world::Nanos;
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

struct BusyPoll {
    /// The last event.
    last: Cell<Nanos>,
    /// How long to poll after it.
    window: Cell<Nanos>,
    /// The longest that `window` may be.
    max: Cell<Nanos>,
    /// Of the task, while it sleeps.
    asleep: Cell<Option<Waker>>,
    /// What is under way, in bytes.
    load: Cell<usize>,
    /// How long it has polled in vain.
    polled: Cell<Nanos>,
    tuner: RefCell<PollTuner>,
}

impl BusyPoll {
    fn is_wanted(&self) -> bool {
        self.window.get() > Nanos::ZERO
            && self.load.get() <= BUSY_POLL_BYTES
            && self.tuner.borrow().polls()
    }
}

thread_local! {
    static BUSY_POLL: BusyPoll = const { BusyPoll {
        last: Cell::new(Nanos::ZERO),
        window: Cell::new(Nanos::ZERO),
        max: Cell::new(BUSY_POLL_MAX),
        asleep: Cell::new(None),
        load: Cell::new(0),
        polled: Cell::new(Nanos::ZERO),
        tuner: RefCell::new(PollTuner::new()),
    } };
}

/// The window after a sleep that ended `quiet` after the event before.
fn next_window(window: Nanos, quiet: Nanos, max: Nanos) -> Nanos {
    if quiet <= max {
        return (window * 2).max(BUSY_POLL_MIN).min(max);
    }
    let less = window / 2;
    if less < BUSY_POLL_MIN { Nanos::ZERO } else { less }
}

/// The longest that this shard polls for the next event before it sleeps; zero: not at all.
/// Unless set [`BUSY_POLL_MAX`].
pub fn set_busy_poll_max(max: Nanos) {
    BUSY_POLL.with(|poll| poll.max.set(max));
}

/// A client or a disk has work: bytes of a client came, an operation of a disk begins or ends. Not
/// what peers say: the heartbeats of a large cluster alone would keep all of it awake.
pub(crate) fn event() {
    BUSY_POLL.with(|poll| {
        let now = now();
        let quiet = now.since(poll.last.replace(now));
        cpu_latency::event(now);
        let Some(sleeper) = poll.asleep.take() else { return };
        poll.window.set(next_window(poll.window.get(), quiet, poll.max.get()));
        if poll.is_wanted() {
            sleeper.wake();
        } else {
            poll.asleep.set(Some(sleeper));
        }
    });
}

/// One more request, of so many bytes, is under way.
pub(crate) fn request_begins(bytes: usize) {
    BUSY_POLL.with(|poll| {
        let load = poll.load.get() + bytes + BUSY_POLL_EACH;
        poll.load.set(load);
        if load > BUSY_POLL_BYTES {
            poll.tuner.borrow_mut().spoil();
        }
    });
}

/// One of so many has ended.
pub(crate) fn request_ends(bytes: usize) {
    // The thread may be ending, and its state gone.
    let _ = BUSY_POLL.try_with(|poll| {
        poll.load.set(poll.load.get().saturating_sub(bytes + BUSY_POLL_EACH));
        poll.tuner.borrow_mut().ends(poll.last.get());
    });
}

/// The processor time of this thread, less what it has polled in vain.
pub(crate) fn core_time() -> Nanos {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    let spent = Nanos::from_secs(spent.tv_sec as u64) + Nanos(spent.tv_nsec as u64);
    spent.since(BUSY_POLL.with(|poll| poll.polled.get()))
}

/// The task that keeps its shard awake. Never ends.
pub(crate) async fn keep() {
    loop {
        let (mut seen, mut polls_since) = (None, None);
        loop {
            let (last, window, is_wanted) =
                BUSY_POLL.with(|poll| (poll.last.get(), poll.window.get(), poll.is_wanted()));
            // Others first, as soon as there is nothing to do.
            if seen.replace(last) == Some(last) {
                if !is_wanted {
                    break;
                }
                let now = now();
                let polled = now.since(polls_since.replace(now).unwrap_or(now));
                BUSY_POLL.with(|poll| poll.polled.set(poll.polled.get() + polled));
                if now.since(last) >= window {
                    break;
                }
                rustix::thread::sched_yield();
            } else {
                polls_since = None;
            }
            uring::look();
            // The runtime looks at its sockets before it comes back.
            tokio::task::yield_now().await;
        }
        let mut slept = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut slept, true) {
                return Poll::Ready(());
            }
            BUSY_POLL.with(|poll| poll.asleep.set(Some(cx.waker().clone())));
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::{BUSY_POLL, core_time, event, next_window, request_begins, request_ends};
    use super::{BUSY_POLL_MAX, BUSY_POLL_MIN};
    use super::{ClockId, clock_gettime};
    use crate::clock::now;
    use crate::shard::run;
    use crate::timers::sleep_until;
    use atoll_world::Nanos;

    #[test]
    fn short_sleeps_lengthen_the_window_and_long_ones_end_it() {
        let mut window = Nanos::ZERO;
        for _ in 0..10 {
            window = next_window(window, BUSY_POLL_MAX / 2, BUSY_POLL_MAX);
            assert!((BUSY_POLL_MIN..=BUSY_POLL_MAX).contains(&window));
        }
        assert_eq!(window, BUSY_POLL_MAX);
        for _ in 0..10 {
            window = next_window(window, BUSY_POLL_MAX * 2, BUSY_POLL_MAX);
        }
        assert_eq!(window, Nanos::ZERO);
        assert_eq!(next_window(window, Nanos::ZERO, Nanos::ZERO), Nanos::ZERO);
    }

    fn cpu() -> f64 {
        let t = clock_gettime(ClockId::ThreadCPUTime);
        t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
    }

    /// Which part of the time this thread runs while events come `gap` apart.
    fn cpu_share(gap: Nanos) -> f64 {
        run(async {
            let (start, cpu_before) = (now(), cpu());
            while now().since(start) < Nanos::from_ms(300) {
                event();
                sleep_until(now() + gap).await;
            }
            (cpu() - cpu_before) / 0.3
        })
        .unwrap()
    }

    #[test]
    fn a_shard_with_many_or_large_requests_does_not_poll() {
        BUSY_POLL.with(|poll| {
            poll.window.set(BUSY_POLL_MAX);
            for (bytes, most) in [(4 << 10, 16), (64 << 10, 1), (1 << 20, 0)] {
                (0..most).for_each(|_| request_begins(bytes));
                assert!(poll.is_wanted());
                request_begins(bytes);
                assert!(!poll.is_wanted());
                request_ends(bytes);
                assert!(poll.is_wanted());
                (0..most).for_each(|_| request_ends(bytes));
                assert_eq!(poll.load.get(), 0);
            }
            poll.window.set(Nanos::ZERO);
            assert!(!poll.is_wanted());
        });
    }

    #[test]
    fn what_was_polled_in_vain_is_no_work() {
        run(async {
            BUSY_POLL.with(|poll| poll.window.set(BUSY_POLL_MAX));
            let (worked_before, cpu_before, start) = (core_time(), cpu(), now());
            while now().since(start) < Nanos::from_ms(300) {
                event();
                BUSY_POLL.with(|poll| poll.window.set(BUSY_POLL_MAX));
                tokio::task::yield_now().await;
                sleep_until(now() + BUSY_POLL_MAX / 2).await;
            }
            let spent = cpu() - cpu_before;
            let worked = core_time().since(worked_before).as_secs_f64();
            assert!(worked < 0.7 * spent, "{worked} of {spent} s were work");
        })
        .unwrap();
        // And what is work counts in full.
        run(async {
            let (worked_before, cpu_before) = (core_time(), cpu());
            while cpu() - cpu_before < 0.05 {}
            assert!(core_time().since(worked_before).as_secs_f64() > 0.045);
        })
        .unwrap();
    }

    #[test]
    fn rare_events_are_not_polled_for() {
        let share = cpu_share(Nanos::from_ms(10));
        assert!(share < 0.3, "asleep between events, yet {share} of the time on a processor");
    }
}
