//! A barrier between the writes of one export, over all its connections.
//!
//! A client that lost its connection repeats the unanswered requests on a new one. If an old write
//! were still under way then, it could overwrite a newer one. So a new connection is let in only
//! when every write that was under way when it asked has ended: [`WriteBarrier::wait_for_earlier`].
//!
//! Invariant: generation `first + i` has `running[i]` writes; `running` is never empty, and only
//! the last generation takes new ones.

use atoll_world::sync::Notify;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// The writes of each export, by its name.
#[derive(Default)]
pub(crate) struct WriteBarriers(RefCell<BTreeMap<String, WriteBarrier>>);

impl WriteBarriers {
    /// The barrier of an export, the same for all its connections.
    pub(crate) fn of(&self, export: &str) -> WriteBarrier {
        let mut barriers = self.0.borrow_mut();
        barriers.entry(export.to_owned()).or_insert_with(WriteBarrier::new).clone()
    }

    /// Forgets the exports that have no connection and no write under way.
    pub(crate) fn forget_unused(&self) {
        self.0.borrow_mut().retain(|_, barrier| !barrier.is_unused());
    }
}

/// The writes of one export.
#[derive(Clone)]
pub(crate) struct WriteBarrier(Rc<BarrierState>);

struct BarrierState {
    generations: RefCell<Generations>,
    ended: Notify,
}

struct Generations {
    first: u64,
    running: VecDeque<usize>,
}

/// One write under way, until it is dropped.
pub(crate) struct WriteUnderWay {
    barrier: Rc<BarrierState>,
    generation: u64,
}

impl WriteBarrier {
    fn new() -> Self {
        let running = VecDeque::from([0]);
        Self(Rc::new(BarrierState {
            generations: RefCell::new(Generations { first: 0, running }),
            ended: Notify::default(),
        }))
    }

    /// Counts a write until the result is dropped.
    pub(crate) fn enter(&self) -> WriteUnderWay {
        let mut generations = self.0.generations.borrow_mut();
        *generations.running.back_mut().expect("never empty") += 1;
        let generation = generations.first + generations.running.len() as u64 - 1;
        WriteUnderWay { barrier: self.0.clone(), generation }
    }

    /// Returns once every write that is under way now has ended (the handshake's deadline ends
    /// the wait). Later writes are not waited for.
    pub(crate) async fn wait_for_earlier(&self) {
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
    fn is_unused(&self) -> bool {
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

impl Drop for WriteUnderWay {
    fn drop(&mut self) {
        let settled = {
            let mut generations = self.barrier.generations.borrow_mut();
            let index = usize::try_from(self.generation - generations.first)
                .expect("a generation with a write under way is kept");
            generations.running[index] -= 1;
            generations.settle()
        };
        if settled {
            self.barrier.ended.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WriteBarrier;
    use futures_util::FutureExt;

    #[test]
    fn a_newcomer_waits_for_earlier_writes_and_for_no_later_ones() {
        let barrier = WriteBarrier::new();
        assert!(barrier.wait_for_earlier().now_or_never().is_some());
        let old = barrier.enter();
        let mut first = Box::pin(barrier.wait_for_earlier());
        assert!((&mut first).now_or_never().is_none());
        let newer = barrier.enter();
        let mut second = Box::pin(barrier.wait_for_earlier());
        assert!((&mut second).now_or_never().is_none());
        drop(old);
        assert!(first.now_or_never().is_some());
        assert!((&mut second).now_or_never().is_none());
        let newest = barrier.enter();
        drop(newer);
        assert!(second.now_or_never().is_some());
        drop(newest);
        assert!(barrier.is_unused());
    }

    #[test]
    fn a_later_generation_that_ends_first_lets_nobody_through() {
        let barrier = WriteBarrier::new();
        let old = barrier.enter();
        let mut first = Box::pin(barrier.wait_for_earlier());
        assert!((&mut first).now_or_never().is_none());
        let newer = barrier.enter();
        let mut second = Box::pin(barrier.wait_for_earlier());
        assert!((&mut second).now_or_never().is_none());
        drop(newer);
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        drop(old);
        assert!(first.now_or_never().is_some() && second.now_or_never().is_some());
    }
}
