//! The timers of a shard.
//!
//! Nearly every timer is a deadline that is not reached: an I/O has four of them. They wait in a
//! queue of the shard's own, which its thread alone touches, and one task sleeps by the runtime's
//! clock until the first. A timer that goes away leaves that sleep as it is: it ends for nothing
//! once, where the runtime's own timers would take a lock for each and write to its eventfd
//! whenever the new one is the first.
//!
//! Invariants: a waker is called once `now` has reached its moment, never before; the task sleeps
//! no longer than to the first timer.

use crate::now;
use atoll_world::Nanos;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// The runtime's timers stop while the machine is suspended. A long sleep looks at the right
/// clock at least that often, so it ends at most this late.
const SLEEP_MAX: Nanos = Nanos::from_secs(10);

struct Timers {
    /// Who waits, by moment and number.
    queue: RefCell<BTreeMap<(Nanos, u64), Waker>>,
    next: Cell<u64>,
    /// When the task looks next.
    looks_at: Cell<Nanos>,
    /// Of the task, while it sleeps.
    task: RefCell<Option<Waker>>,
}

thread_local! {
    static TIMERS: Timers = const { Timers {
        queue: RefCell::new(BTreeMap::new()),
        next: Cell::new(0),
        looks_at: Cell::new(Nanos::ZERO),
        task: RefCell::new(None),
    } };
}

/// Ready at its moment or up to a few milliseconds later. Needs a shard: see [`crate::run`].
pub(crate) struct Timer {
    at: Nanos,
    /// Its number in the queue, while it is there.
    queued: Option<u64>,
}

impl Timer {
    pub(crate) fn at(at: Nanos) -> Self {
        Self { at, queued: None }
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
            let number = *self.queued.get_or_insert_with(|| {
                timers.next.set(timers.next.get() + 1);
                timers.next.get()
            });
            let mut queue = timers.queue.borrow_mut();
            match queue.get_mut(&(self.at, number)) {
                Some(waker) => waker.clone_from(cx.waker()),
                None => _ = queue.insert((self.at, number), cx.waker().clone()),
            }
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
        let Some(number) = self.queued else { return };
        // The thread may be ending, and its timers gone.
        let _ = TIMERS.try_with(|timers| timers.queue.borrow_mut().remove(&(self.at, number)));
    }
}

/// The task that wakes who waits. Never ends.
pub(crate) async fn keep() {
    loop {
        let due = TIMERS.with(|timers| {
            let mut queue = timers.queue.borrow_mut();
            let now = now();
            let later = queue.split_off(&(Nanos(now.0 + 1), 0));
            std::mem::replace(&mut *queue, later)
        });
        due.into_values().for_each(Waker::wake);
        let first = TIMERS.with(|timers| {
            let first = timers.queue.borrow().keys().next().map_or(Nanos::NEVER, |&(at, _)| at);
            timers.looks_at.set(first);
            first
        });
        let span = first.since(now()).min(SLEEP_MAX);
        let mut sleep = pin!(tokio::time::sleep(Duration::from_nanos(span.0)));
        poll_fn(|cx| {
            let sooner = TIMERS.with(|timers| {
                *timers.task.borrow_mut() = Some(cx.waker().clone());
                timers.looks_at.get() < first
            });
            if sooner { Poll::Ready(()) } else { sleep.as_mut().poll(cx) }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::{TIMERS, Timer};
    use crate::{now, run};
    use atoll_world::Nanos;
    use futures_util::future::join_all;
    use std::cell::RefCell;

    fn queued() -> usize {
        TIMERS.with(|timers| timers.queue.borrow().len())
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
}
