//! Futures that run at once in one task, such as the requests of a connection.
//!
//! A [`TaskSet`] does what `FuturesUnordered` does, for a data path: a slot and its waker are used
//! again, so that a future costs no allocation of its own; a new future can be polled in order
//! where it is put; and the task that polls the set is woken only when a future of it was woken.
//! (`FuturesUnordered` also wakes its task when it has polled all futures, or when two have woken
//! themselves meanwhile. A set within a set always has that: a batch of requests was cut into
//! pairs.)
//!
//! Invariants: a slot is in the queue of those to poll at most once; a future is polled only if it
//! is new or was woken; the queue is served in the order of the wakings.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Free slots whose memory is kept for the next future.
const SPARE_MAX: usize = 64;

/// See the file. One task polls it; dropping it drops its futures.
pub struct TaskSet<F> {
    slots: Vec<TaskSlot<F>>,
    free: Vec<usize>,
    queue: Arc<Mutex<WakeQueue>>,
}

/// The place of one future, and how it is woken.
struct TaskSlot<F> {
    /// The box stays when the future has ended, for the next one.
    future: Option<Pin<Box<Option<F>>>>,
    task_waker: Arc<TaskWaker>,
    /// The same, for the future.
    waker: Waker,
}

/// The slots that were woken. Wakers may go to any thread, so this is locked; the lock is never
/// contended on a shard.
#[derive(Default)]
struct WakeQueue {
    slots: VecDeque<usize>,
    /// Of the task that polls the set, until it is woken.
    task: Option<Waker>,
}

/// Puts its slot into the queue and wakes the task that polls the set.
struct TaskWaker {
    slot: usize,
    /// The slot is in the queue.
    queued: AtomicBool,
    queue: Arc<Mutex<WakeQueue>>,
}

fn lock(queue: &Mutex<WakeQueue>) -> std::sync::MutexGuard<'_, WakeQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let task = {
            let mut queue = lock(&self.queue);
            queue.slots.push_back(self.slot);
            queue.task.take()
        };
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F> Default for TaskSet<F> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), queue: Arc::default() }
    }
}

impl<F: Future> TaskSet<F> {
    /// How many have not ended.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether all have ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes a future that the next [`TaskSet::poll_next`] polls, behind those woken before. Wakes
    /// nobody: call it where that comes next.
    pub fn push(&mut self, future: F) {
        let slot = self.put(future);
        let task_waker = &self.slots[slot].task_waker;
        if !task_waker.queued.swap(true, Ordering::AcqRel) {
            lock(&self.queue).slots.push_back(slot);
        }
    }

    /// Takes a future and polls it at once; it stays only if it has not ended. Wakes nobody, like
    /// [`TaskSet::push`].
    pub fn push_polled(&mut self, future: F) -> Poll<F::Output> {
        let slot = self.put(future);
        self.poll_slot(slot)
    }

    /// The next that has ended; ready without one: there are none. Wakes the task when one that it
    /// would poll is woken.
    pub fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Option<F::Output>> {
        // One that wakes itself has to wait for the task's next turn.
        let mut turns = None;
        loop {
            let slot = {
                let mut queue = lock(&self.queue);
                let turns = turns.get_or_insert(queue.slots.len());
                if *turns == 0 && !queue.slots.is_empty() {
                    // Woken since, and the task with them.
                    return Poll::Pending;
                }
                *turns = turns.saturating_sub(1);
                match &mut queue.task {
                    Some(task) => task.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                queue.slots.pop_front()
            };
            let Some(slot) = slot else {
                return if self.is_empty() { Poll::Ready(None) } else { Poll::Pending };
            };
            if let Poll::Ready(output) = self.poll_slot(slot) {
                return Poll::Ready(Some(output));
            }
        }
    }

    /// Drops them all.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn put(&mut self, future: F) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            let (slot, queue) = (self.slots.len(), self.queue.clone());
            let task_waker = Arc::new(TaskWaker { slot, queued: AtomicBool::new(false), queue });
            let waker = Waker::from(task_waker.clone());
            self.slots.push(TaskSlot { future: None, task_waker, waker });
            slot
        });
        match &mut self.slots[slot].future {
            Some(memory) => memory.as_mut().set(Some(future)),
            none => *none = Some(Box::pin(Some(future))),
        }
        slot
    }

    /// Pending, too, if the future of that slot ended before it was woken.
    fn poll_slot(&mut self, slot: usize) -> Poll<F::Output> {
        let TaskSlot { future, task_waker, waker } = &mut self.slots[slot];
        task_waker.queued.store(false, Ordering::Release);
        let Some(memory) = future else { return Poll::Pending };
        let Some(running) = memory.as_mut().as_pin_mut() else { return Poll::Pending };
        let done = running.poll(&mut Context::from_waker(waker));
        if done.is_ready() {
            memory.as_mut().set(None);
            if self.free.len() >= SPARE_MAX {
                *future = None;
            }
            self.free.push(slot);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::TaskSet;
    use crate::sync::{Notify, Sender, oneshot};
    use futures_util::future::{FutureExt, LocalBoxFuture};
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Bench {
        set: TaskSet<LocalBoxFuture<'static, u32>>,
        wakings: Arc<Count>,
        waker: Waker,
        polls: Rc<RefCell<Vec<u32>>>,
    }

    impl Bench {
        fn new() -> Self {
            let wakings = Arc::<Count>::default();
            let waker = wakings.clone().into();
            Self { set: TaskSet::default(), wakings, waker, polls: Rc::default() }
        }
        /// Ends with its number once the sender says so; notes when it is polled.
        fn waits(&self, number: u32) -> (LocalBoxFuture<'static, u32>, Sender<()>) {
            let (end, ends) = oneshot();
            let (polls, mut ends) = (self.polls.clone(), ends);
            let future = std::future::poll_fn(move |cx| {
                polls.borrow_mut().push(number);
                ends.poll_unpin(cx).map(|_| number)
            });
            (future.boxed_local(), end)
        }
        fn next(&mut self) -> Poll<Option<u32>> {
            self.set.poll_next(&Context::from_waker(&self.waker))
        }
        fn woken(&self) -> usize {
            self.wakings.0.swap(0, Ordering::Relaxed)
        }
        fn polled(&self) -> Vec<u32> {
            self.polls.take()
        }
    }

    #[test]
    fn each_is_polled_when_new_and_when_woken_and_the_task_is_woken_once() {
        let mut b = Bench::new();
        assert_eq!(b.next(), Poll::Ready(None));
        let ends: Vec<_> = (0..4)
            .map(|n| {
                let (future, end) = b.waits(n);
                b.set.push(future);
                end
            })
            .collect();
        assert_eq!((b.polled(), b.set.len()), (vec![], 4));
        assert_eq!(b.next(), Poll::Pending);
        assert_eq!((b.polled(), b.woken()), (vec![0, 1, 2, 3], 0), "not for having polled all");
        let mut ends: Vec<_> = ends.into_iter().map(Some).collect();
        for n in [2, 0, 3] {
            ends[n].take().unwrap().send(());
        }
        assert_eq!(b.woken(), 1);
        for n in [2, 0, 3] {
            assert_eq!(b.next(), Poll::Ready(Some(n)));
        }
        assert_eq!((b.next(), b.polled(), b.set.len()), (Poll::Pending, vec![2, 0, 3], 1));
        drop(ends);
        assert_eq!((b.woken(), b.next()), (1, Poll::Ready(Some(1))));
        assert_eq!(b.next(), Poll::Ready(None));
    }

    #[test]
    fn one_that_is_polled_where_it_is_put_is_not_polled_for_nothing() {
        let mut b = Bench::new();
        assert_eq!(b.set.push_polled(async { 9 }.boxed_local()), Poll::Ready(9));
        let (future, end) = b.waits(1);
        assert_eq!(b.set.push_polled(future), Poll::Pending);
        assert_eq!((b.next(), b.polled(), b.woken()), (Poll::Pending, vec![1], 0));
        end.send(());
        assert_eq!((b.woken(), b.next()), (1, Poll::Ready(Some(1))));
        // Its slot is used again; a late word of who was there before is no harm.
        let notify = Notify::default();
        let (there, late) = (notify.notified(), notify.clone());
        let all = [there, notify.notified()].map(|n| n.map(|()| 5).boxed_local());
        let either = futures_util::future::select_all(all).map(|(n, _, _)| n).boxed_local();
        assert_eq!(b.set.push_polled(either), Poll::Pending);
        late.notify_all();
        assert_eq!(b.next(), Poll::Ready(Some(5)));
        let (future, _end) = b.waits(2);
        assert_eq!(b.set.push_polled(future), Poll::Pending);
        assert_eq!((b.next(), b.set.len()), (Poll::Pending, 1));
    }

    #[test]
    fn one_that_wakes_itself_leaves_turns_to_others() {
        let mut b = Bench::new();
        let turns = Rc::new(Cell::new(0));
        let seen = turns.clone();
        let busy = std::future::poll_fn(move |cx| {
            seen.set(seen.get() + 1);
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        b.set.push(busy.boxed_local());
        for turn in 1..4 {
            assert_eq!((b.next(), b.woken(), turns.get()), (Poll::Pending, 1, turn));
        }
        b.set.clear();
        assert!(b.set.is_empty());
        assert_eq!(b.next(), Poll::Ready(None));
    }

    #[test]
    fn what_ended_is_dropped_at_once() {
        let mut b = Bench::new();
        let held = Rc::new(());
        for _ in 0..super::SPARE_MAX * 2 {
            let held = held.clone();
            b.set.push(
                async move {
                    drop(held);
                    1
                }
                .boxed_local(),
            );
        }
        while let Poll::Ready(Some(1)) = b.next() {}
        assert_eq!((Rc::strong_count(&held), b.set.len()), (1, 0));
    }
}
