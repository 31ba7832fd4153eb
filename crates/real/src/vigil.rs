//! Staying awake while the next event is near.
//!
//! A processor that goes to sleep and is woken costs tens of microseconds, on a virtual machine
//! a hundred, and a single write waits for six of these one after the other. So a shard to which
//! something happened goes on looking for a while, if that was worth it lately. How long follows
//! the rule by which KVM polls before it halts (`Documentation/virt/kvm/halt-polling.rst`):
//! longer after a sleep that was short, shorter after a long one. Who else wants the processor
//! gets it first.
//!
//! A shard that works on many requests, or large ones, sleeps as soon as it has nothing to do:
//! each waking then serves several of them or is little beside the copying, and whoever they are
//! for can use the processor. So does one for which looking does not pay: see `trial`.
//!
//! Invariants: nothing to do for longer than the window means asleep; events further apart than
//! the longest window, peers that have nothing for a disk, and more than [`AWAKE_BYTES`] under way
//! keep nobody awake.

use crate::limits::{AWAKE_BYTES, AWAKE_EACH, AWAKE_MAX, AWAKE_MIN};
use crate::trial::Trial;
use crate::{idle, now, uring};
use atoll_world::Nanos;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

struct Vigil {
    /// The last event.
    last: Cell<Nanos>,
    /// How long to stay awake after it.
    window: Cell<Nanos>,
    /// The longest that `window` may be.
    max: Cell<Nanos>,
    /// Of the task, while it sleeps.
    asleep: Cell<Option<Waker>>,
    /// What is under way, in bytes.
    load: Cell<usize>,
    trial: RefCell<Trial>,
}

impl Vigil {
    fn is_wanted(&self) -> bool {
        self.window.get() > Nanos::ZERO
            && self.load.get() <= AWAKE_BYTES
            && self.trial.borrow().looks()
    }
}

thread_local! {
    static VIGIL: Vigil = const { Vigil {
        last: Cell::new(Nanos::ZERO),
        window: Cell::new(Nanos::ZERO),
        max: Cell::new(AWAKE_MAX),
        asleep: Cell::new(None),
        load: Cell::new(0),
        trial: RefCell::new(Trial::new()),
    } };
}

/// The window after a sleep that ended `quiet` after the event before.
fn next_window(window: Nanos, quiet: Nanos, max: Nanos) -> Nanos {
    if quiet <= max {
        return (window * 2).max(AWAKE_MIN).min(max);
    }
    let less = window / 2;
    if less < AWAKE_MIN { Nanos::ZERO } else { less }
}

/// How long at most this shard looks for the next event before it sleeps; zero: not at all.
/// Without a word [`AWAKE_MAX`].
pub fn stay_awake(max: Nanos) {
    VIGIL.with(|vigil| vigil.max.set(max));
}

/// A client or a disk has work: bytes of a client came, an operation of a disk begins or ends. Not
/// what peers say: the heartbeats of a large cluster alone would keep all of it awake.
pub(crate) fn stir() {
    VIGIL.with(|vigil| {
        let now = now();
        let quiet = now.since(vigil.last.replace(now));
        idle::event(now);
        let Some(sleeper) = vigil.asleep.take() else { return };
        vigil.window.set(next_window(vigil.window.get(), quiet, vigil.max.get()));
        if vigil.is_wanted() {
            sleeper.wake();
        } else {
            vigil.asleep.set(Some(sleeper));
        }
    });
}

/// One more request, of so many bytes, is under way.
pub(crate) fn request_begins(bytes: usize) {
    VIGIL.with(|vigil| {
        let load = vigil.load.get() + bytes + AWAKE_EACH;
        vigil.load.set(load);
        if load > AWAKE_BYTES {
            vigil.trial.borrow_mut().spoil();
        }
    });
}

/// One of so many has ended.
pub(crate) fn request_ends(bytes: usize) {
    // The thread may be ending, and its vigil gone.
    let _ = VIGIL.try_with(|vigil| {
        vigil.load.set(vigil.load.get().saturating_sub(bytes + AWAKE_EACH));
        vigil.trial.borrow_mut().ends(vigil.last.get());
    });
}

/// The task that keeps its shard awake. Never ends.
pub(crate) async fn keep() {
    loop {
        let mut seen = None;
        loop {
            let (last, window, is_wanted) =
                VIGIL.with(|vigil| (vigil.last.get(), vigil.window.get(), vigil.is_wanted()));
            // Others first, as soon as there is nothing to do.
            if seen.replace(last) == Some(last) {
                if !is_wanted || now().since(last) >= window {
                    break;
                }
                rustix::thread::sched_yield();
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
            VIGIL.with(|vigil| vigil.asleep.set(Some(cx.waker().clone())));
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::{AWAKE_MAX, AWAKE_MIN};
    use super::{VIGIL, next_window, request_begins, request_ends, stir};
    use crate::{now, run, sleep_until};
    use atoll_world::Nanos;
    use rustix::time::{ClockId, clock_gettime};

    #[test]
    fn short_sleeps_lengthen_the_window_and_long_ones_end_it() {
        let mut window = Nanos::ZERO;
        for _ in 0..10 {
            window = next_window(window, AWAKE_MAX / 2, AWAKE_MAX);
            assert!((AWAKE_MIN..=AWAKE_MAX).contains(&window));
        }
        assert_eq!(window, AWAKE_MAX);
        for _ in 0..10 {
            window = next_window(window, AWAKE_MAX * 2, AWAKE_MAX);
        }
        assert_eq!(window, Nanos::ZERO);
        assert_eq!(next_window(window, Nanos::ZERO, Nanos::ZERO), Nanos::ZERO);
    }

    /// Which part of the time this thread runs while events come `gap` apart.
    fn cpu_share(gap: Nanos) -> f64 {
        let cpu = || {
            let t = clock_gettime(ClockId::ThreadCPUTime);
            t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
        };
        run(async {
            let (start, cpu_before) = (now(), cpu());
            while now().since(start) < Nanos::from_ms(300) {
                stir();
                sleep_until(now() + gap).await;
            }
            (cpu() - cpu_before) / 0.3
        })
        .unwrap()
    }

    #[test]
    fn a_shard_with_many_or_large_requests_does_not_look() {
        VIGIL.with(|vigil| {
            vigil.window.set(AWAKE_MAX);
            for (bytes, most) in [(4 << 10, 16), (64 << 10, 1), (1 << 20, 0)] {
                (0..most).for_each(|_| request_begins(bytes));
                assert!(vigil.is_wanted());
                request_begins(bytes);
                assert!(!vigil.is_wanted());
                request_ends(bytes);
                assert!(vigil.is_wanted());
                (0..most).for_each(|_| request_ends(bytes));
                assert_eq!(vigil.load.get(), 0);
            }
            vigil.window.set(Nanos::ZERO);
            assert!(!vigil.is_wanted());
        });
    }

    #[test]
    fn rare_events_keep_nobody_awake() {
        let share = cpu_share(Nanos::from_ms(10));
        assert!(share < 0.3, "asleep between events, yet {share} of the time on a processor");
    }
}
