//! Waiting for each other within one shard: no atomics, no locks, deterministic order.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// The sender went away without a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dropped;

struct One<T> {
    value: Option<T>,
    waker: Option<Waker>,
    closed: bool,
}

/// Gives one value to a [`Receiver`].
pub struct Sender<T>(Rc<RefCell<One<T>>>);
/// Waits for one value.
pub struct Receiver<T>(Rc<RefCell<One<T>>>);

/// A pair for one value.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let one = Rc::new(RefCell::new(One { value: None, waker: None, closed: false }));
    (Sender(one.clone()), Receiver(one))
}

impl<T> Sender<T> {
    /// Hands over the value; it is lost if nobody waits any more.
    pub fn send(self, value: T) {
        self.0.borrow_mut().value = Some(value);
    }
    /// Nobody waits for it any more.
    pub fn is_abandoned(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut one = self.0.borrow_mut();
            one.closed = true;
            one.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Receiver<T> {
    type Output = Result<T, Dropped>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut one = self.0.borrow_mut();
        if let Some(value) = one.value.take() {
            return Poll::Ready(Ok(value));
        }
        if one.closed {
            return Poll::Ready(Err(Dropped));
        }
        match &mut one.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

/// Wakes waiters when something has changed. A waiter that starts after a `notify` waits for the
/// next one, so: take [`Notify::notified`], check the condition, then await it.
#[derive(Clone, Default)]
pub struct Notify(Rc<NotifyInner>);

#[derive(Default)]
struct NotifyInner {
    round: Cell<u64>,
    next: Cell<u64>,
    /// By ascending number.
    wakers: RefCell<Vec<(u64, Waker)>>,
}

impl Notify {
    /// Wakes everyone who waits now.
    pub fn notify_all(&self) {
        self.0.round.set(self.0.round.get() + 1);
        let mut wakers = self.0.wakers.take();
        for (_, waker) in wakers.drain(..) {
            waker.wake();
        }
        // Wakers only mark tasks, but nothing is lost if one of them has waited again.
        let mut waiting = self.0.wakers.borrow_mut();
        if waiting.is_empty() {
            *waiting = wakers;
        }
    }

    /// Returns after the next [`Notify::notify_all`]; counted from this call, not the first poll.
    pub fn notified(&self) -> Notified {
        Notified { of: self.0.clone(), from: self.0.round.get(), key: None }
    }
}

impl std::fmt::Debug for Notify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Notify(round {})", self.0.round.get())
    }
}

/// See [`Notify::notified`]. Dropping it leaves nothing behind.
pub struct Notified {
    of: Rc<NotifyInner>,
    from: u64,
    key: Option<u64>,
}

impl Future for Notified {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.of.round.get() != self.from {
            return Poll::Ready(());
        }
        let key = self.key.unwrap_or_else(|| self.of.next.replace(self.of.next.get() + 1));
        self.key = Some(key);
        let mut wakers = self.of.wakers.borrow_mut();
        match wakers.binary_search_by_key(&key, |&(key, _)| key) {
            Ok(at) => wakers[at].1.clone_from(cx.waker()),
            Err(at) => wakers.insert(at, (key, cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Notified {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut wakers = self.of.wakers.borrow_mut();
        if let Ok(at) = wakers.binary_search_by_key(&key, |&(key, _)| key) {
            wakers.remove(at);
        }
    }
}

/// A bounded number of permits, given out first come, first served.
#[derive(Clone)]
pub struct Semaphore(Rc<RefCell<Permits>>);

struct Permits {
    free: usize,
    limit: usize,
    waiting: VecDeque<(usize, Sender<()>)>,
}

/// Held permits; returned when dropped.
pub struct Permit {
    of: Semaphore,
    count: usize,
}

impl Semaphore {
    /// `limit` permits.
    pub fn new(limit: usize) -> Self {
        Self(Rc::new(RefCell::new(Permits { free: limit, limit, waiting: VecDeque::new() })))
    }

    /// Waits for `count` permits; more than there are counts as all of them.
    pub async fn acquire(&self, count: usize) -> Permit {
        let (count, turn) = {
            let mut permits = self.0.borrow_mut();
            let count = count.min(permits.limit);
            if permits.waiting.is_empty() && permits.free >= count {
                permits.free -= count;
                (count, None)
            } else {
                let (mine, turn) = oneshot();
                permits.waiting.push_back((count, mine));
                (count, Some(turn))
            }
        };
        // Made before waiting: if this future is dropped after its turn came, nothing leaks.
        if let Some(turn) = turn {
            let guard = Turn { of: self, count, turn: Some(turn) };
            guard.wait().await;
        }
        Permit { of: self.clone(), count }
    }

    /// Permits nobody holds.
    pub fn free(&self) -> usize {
        self.0.borrow().free
    }

    fn give(&self, count: usize) {
        let mut permits = self.0.borrow_mut();
        permits.free += count;
        while let Some(&(want, _)) = permits.waiting.front() {
            if permits.waiting.front().is_some_and(|(_, s)| s.is_abandoned()) {
                permits.waiting.pop_front();
                continue;
            }
            if permits.free < want {
                break;
            }
            permits.free -= want;
            let (_, turn) = permits.waiting.pop_front().expect("just looked at");
            turn.send(());
        }
    }
}

struct Turn<'a> {
    of: &'a Semaphore,
    count: usize,
    turn: Option<Receiver<()>>,
}

impl Turn<'_> {
    async fn wait(mut self) {
        let turn = self.turn.as_mut().expect("taken only below");
        turn.await.expect("a semaphore never drops a waiter that still waits");
        self.turn = None;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(turn) = self.turn.take() {
            let granted = turn.0.borrow().value.is_some();
            drop(turn);
            // Granted but never taken: pass it on. Not granted: the queue skips us, but whoever
            // waits behind us may fit now.
            self.of.give(if granted { self.count } else { 0 });
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.of.give(self.count);
    }
}

/// A queue without a bound of its own: what is put in must be bounded by the caller.
pub struct Queue<T>(Rc<QueueInner<T>>);

struct QueueInner<T> {
    items: RefCell<VecDeque<T>>,
    waker: RefCell<Option<Waker>>,
    closed: Cell<bool>,
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(Rc::new(QueueInner {
            items: RefCell::new(VecDeque::new()),
            waker: RefCell::new(None),
            closed: Cell::new(false),
        }))
    }
}

impl<T> Queue<T> {
    /// Puts `item` last.
    pub fn push(&self, item: T) {
        self.0.items.borrow_mut().push_back(item);
        self.wake();
    }
    /// The first item, if there is one.
    pub fn try_pop(&self) -> Option<T> {
        self.0.items.borrow_mut().pop_front()
    }
    /// The first item; none once the queue is closed and empty. One task waits at a time.
    pub fn pop(&self) -> impl Future<Output = Option<T>> + use<T> {
        let inner = self.0.clone();
        poll_fn(move |cx| {
            if let Some(item) = inner.items.borrow_mut().pop_front() {
                return Poll::Ready(Some(item));
            }
            if inner.closed.get() {
                return Poll::Ready(None);
            }
            *inner.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
    }
    /// No more items will come.
    pub fn close(&self) {
        self.0.closed.set(true);
        self.wake();
    }
    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.0.closed.get()
    }
    /// Items in it.
    pub fn len(&self) -> usize {
        self.0.items.borrow().len()
    }
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn wake(&self) {
        let waker = self.0.waker.borrow_mut().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Notify, Queue, Semaphore, oneshot};
    use futures_util::FutureExt;

    #[test]
    fn a_dropped_waiter_keeps_no_permit() {
        let s = Semaphore::new(2);
        let held = s.acquire(2).now_or_never().expect("free");
        let mut a = Box::pin(s.acquire(1));
        let mut b = Box::pin(s.acquire(2));
        assert!((&mut a).now_or_never().is_none());
        assert!((&mut b).now_or_never().is_none());
        drop(held);
        drop(a);
        assert!(b.now_or_never().is_some());
        assert_eq!(s.free(), 2);
    }

    #[test]
    fn a_waiter_sees_only_what_comes_after_it() {
        let n = Notify::default();
        n.notify_all();
        let mut w = Box::pin(n.notified());
        assert!((&mut w).now_or_never().is_none());
        n.notify_all();
        assert!(w.now_or_never().is_some());
    }

    #[test]
    fn values_arrive_and_ends_are_seen() {
        let (s, r) = oneshot();
        s.send(5);
        assert_eq!(r.now_or_never(), Some(Ok(5)));
        let (s, r) = oneshot::<u8>();
        drop(s);
        assert!(r.now_or_never().expect("ready").is_err());
        let q = Queue::default();
        q.push(1);
        q.close();
        assert_eq!(q.pop().now_or_never(), Some(Some(1)));
        assert_eq!(q.pop().now_or_never(), Some(None));
    }
}
