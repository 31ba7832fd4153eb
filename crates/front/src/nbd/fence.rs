//! Writes under way on one export, over all its connections.
//!
//! A client that lost its connection repeats, on a new one, what was not answered. Were an old
//! write still under way then, it could land behind a newer one. So a new connection is let in
//! only when every write that was under way as it asked has ended: [`Fence::wait_for_earlier`].
//!
//! Invariant: generation `first + i` has `running[i]` writes; `running` is never empty, and only
//! the last generation takes new ones.

use atoll_world::sync::Notify;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The writes of one export.
#[derive(Clone)]
pub(super) struct Fence(Rc<Inner>);

struct Inner {
    generations: RefCell<Generations>,
    ended: Notify,
}

struct Generations {
    first: u64,
    running: VecDeque<usize>,
}

/// One write under way, until it is dropped.
pub(super) struct Running {
    fence: Rc<Inner>,
    generation: u64,
}

impl Fence {
    pub(super) fn new() -> Self {
        let running = VecDeque::from([0]);
        Self(Rc::new(Inner {
            generations: RefCell::new(Generations { first: 0, running }),
            ended: Notify::default(),
        }))
    }

    /// Counts a write until the result is dropped.
    pub(super) fn enter(&self) -> Running {
        let mut generations = self.0.generations.borrow_mut();
        *generations.running.back_mut().expect("never empty") += 1;
        let generation = generations.first + generations.running.len() as u64 - 1;
        Running { fence: self.0.clone(), generation }
    }

    /// Returns once every write that is under way now has ended (the handshake's deadline ends
    /// the wait). Later writes are not waited for.
    pub(super) async fn wait_for_earlier(&self) {
        let last = {
            let mut generations = self.0.generations.borrow_mut();
            generations.running.push_back(0);
            generations.settle();
            generations.first + generations.running.len() as u64 - 1
        };
        loop {
            let ended = self.0.ended.notified();
            if self.0.generations.borrow().first >= last {
                return;
            }
            ended.await;
        }
    }

    /// Whether nobody but the caller refers to it: no connection, no write.
    pub(super) fn is_unused(&self) -> bool {
        Rc::strong_count(&self.0) == 1
    }
}

impl Generations {
    /// Forgets generations that have ended. True: there was one.
    fn settle(&mut self) -> bool {
        let before = self.first;
        while self.running.len() > 1 && self.running[0] == 0 {
            self.running.pop_front();
            self.first += 1;
        }
        self.first != before
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let settled = {
            let mut generations = self.fence.generations.borrow_mut();
            let index = usize::try_from(self.generation - generations.first)
                .expect("a generation with a write under way is kept");
            generations.running[index] -= 1;
            generations.settle()
        };
        if settled {
            self.fence.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Fence;
    use futures_util::FutureExt;

    #[test]
    fn a_newcomer_waits_for_earlier_writes_and_for_no_later_ones() {
        let fence = Fence::new();
        assert!(fence.wait_for_earlier().now_or_never().is_some());
        let old = fence.enter();
        let mut first = Box::pin(fence.wait_for_earlier());
        assert!((&mut first).now_or_never().is_none());
        let newer = fence.enter();
        let mut second = Box::pin(fence.wait_for_earlier());
        assert!((&mut second).now_or_never().is_none());
        drop(old);
        assert!(first.now_or_never().is_some());
        assert!((&mut second).now_or_never().is_none());
        let newest = fence.enter();
        drop(newer);
        assert!(second.now_or_never().is_some());
        drop(newest);
        assert!(fence.is_unused());
    }

    #[test]
    fn a_later_generation_that_ends_first_lets_nobody_through() {
        let fence = Fence::new();
        let old = fence.enter();
        let mut first = Box::pin(fence.wait_for_earlier());
        assert!((&mut first).now_or_never().is_none());
        let newer = fence.enter();
        let mut second = Box::pin(fence.wait_for_earlier());
        assert!((&mut second).now_or_never().is_none());
        drop(newer);
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        drop(old);
        assert!(first.now_or_never().is_some() && second.now_or_never().is_some());
    }
}
