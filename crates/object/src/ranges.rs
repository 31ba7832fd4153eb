//! Range locks: what orders overlapping operations of one object.
//!
//! Locks live in (leg, chunk), since no operation crosses a chunk. Fair: a lock is granted when it
//! conflicts neither with one that is held nor with one that came before it. The place in the
//! queue is taken when `lock_*` is called, not when its future is first polled.
//!
//! Invariant: two held locks that overlap are both shared.

use atoll_format::op::BlockRange;
use atoll_world::sync::{Receiver, Sender, oneshot};
use atoll_world::{FixedMap, mutant};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// Chunks whose memory is kept for the next lock: as many as a deep queue locks at once.
const SPARE_MAX: usize = 64;

/// All locks of one object. Clones are the same.
#[derive(Clone, Default)]
pub struct RangeLocks(Rc<RefCell<Chunks>>);

type Key = (u16, u32);

#[derive(Default)]
struct Chunks {
    next: u64,
    chunks: FixedMap<Key, Chunk>,
    /// Of chunks that nobody locks any more: their memory is used again.
    spare: Vec<Chunk>,
}

#[derive(Default)]
struct Chunk {
    held: Vec<Lock>,
    waiting: VecDeque<(Lock, Sender<()>)>,
}

#[derive(Clone, Copy, Debug)]
struct Lock {
    id: u64,
    range: BlockRange,
    exclusive: bool,
}

impl Lock {
    fn conflicts(&self, other: &Self) -> bool {
        (self.exclusive || other.exclusive) && self.range.overlaps(other.range)
    }
}

impl Chunk {
    /// Grants whatever has become possible, in order.
    fn grant(&mut self) {
        let before = self.len();
        let mut still: VecDeque<(Lock, Sender<()>)> = VecDeque::new();
        for (lock, turn) in self.waiting.drain(..) {
            let blocked = self.held.iter().any(|h| h.conflicts(&lock))
                || still.iter().any(|(w, _)| w.conflicts(&lock));
            if blocked {
                still.push_back((lock, turn));
            } else {
                self.held.push(lock);
                turn.send(());
            }
        }
        self.waiting = still;
        assert_eq!(self.len(), before, "a lock is held or awaited, whoever else lets go");
        assert!(
            !self.held.is_empty() || self.waiting.is_empty(),
            "{} wait for a chunk that nobody holds",
            self.waiting.len()
        );
    }

    /// Locks held and awaited.
    fn len(&self) -> usize {
        self.held.len() + self.waiting.len()
    }
}

/// A held or awaited lock; given up when dropped.
#[must_use = "the lock is held as long as this lives"]
pub struct RangeGuard {
    of: RangeLocks,
    key: Key,
    id: u64,
}

impl RangeLocks {
    /// No locks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Shared with other shared ones: reads.
    pub fn lock_shared(
        &self,
        leg: u16,
        range: BlockRange,
    ) -> impl Future<Output = RangeGuard> + use<> {
        self.lock(leg, range, false)
    }

    /// Alone on its range: writes, and copies of whole chunks.
    pub fn lock_exclusive(
        &self,
        leg: u16,
        range: BlockRange,
    ) -> impl Future<Output = RangeGuard> + use<> {
        self.lock(leg, range, !mutant!("ranges.exclusive_is_shared"))
    }

    fn lock(
        &self,
        leg: u16,
        range: BlockRange,
        exclusive: bool,
    ) -> impl Future<Output = RangeGuard> + use<> {
        assert!(range.is_valid(), "a lock lies inside one chunk");
        let key = (leg, range.chunk());
        let (id, turn) = {
            let Chunks { next, chunks, spare } = &mut *self.0.borrow_mut();
            *next += 1;
            let lock = Lock { id: *next, range, exclusive };
            let chunk = chunks.entry(key).or_insert_with(|| spare.pop().unwrap_or_default());
            let blocked = chunk.held.iter().any(|h| h.conflicts(&lock))
                || chunk.waiting.iter().any(|(w, _)| w.conflicts(&lock));
            if blocked {
                let (mine, turn): (Sender<()>, Receiver<()>) = oneshot();
                chunk.waiting.push_back((lock, mine));
                (lock.id, Some(turn))
            } else {
                chunk.held.push(lock);
                (lock.id, None)
            }
        };
        // Made before waiting, so that a future that is dropped leaves the queue.
        let guard = RangeGuard { of: self.clone(), key, id };
        async move {
            if let Some(turn) = turn {
                turn.await.expect("a waiter leaves the queue only with its guard");
            }
            guard
        }
    }

    /// Whether nothing is held or awaited.
    pub fn is_free(&self) -> bool {
        self.0.borrow().chunks.is_empty()
    }

    /// Whether somebody holds all of that range alone.
    pub(crate) fn is_exclusive(&self, leg: u16, range: BlockRange) -> bool {
        let all = self.0.borrow();
        let covers = |l: &Lock| l.range.start <= range.start && range.end() <= l.range.end();
        let chunk = all.chunks.get(&(leg, range.chunk()));
        chunk.is_some_and(|chunk| chunk.held.iter().any(|l| l.exclusive && covers(l)))
    }

    /// # Panics
    /// Something does not hold.
    pub(crate) fn audit(&self) {
        let all = self.0.borrow();
        assert!(all.spare.len() <= SPARE_MAX, "{} spare chunks", all.spare.len());
        assert!(all.spare.iter().all(|chunk| chunk.len() == 0), "a spare chunk has locks");
        for (key, chunk) in &all.chunks {
            assert!(!chunk.held.is_empty(), "chunk {key:?} is kept, and nobody holds it");
            let waiting: Vec<&Lock> = chunk.waiting.iter().map(|(lock, _)| lock).collect();
            for lock in chunk.held.iter().chain(waiting.iter().copied()) {
                assert!(lock.id <= all.next, "lock {} was never given out", lock.id);
                assert_eq!(lock.range.chunk(), key.1, "a lock of another chunk");
            }
            // Said in other words than `conflicts` does.
            let apart = |a: &Lock, b: &Lock| {
                let (a_end, b_end) = (a.range.end(), b.range.end());
                a_end <= b.range.start || b_end <= a.range.start || !a.exclusive && !b.exclusive
            };
            for (i, a) in chunk.held.iter().enumerate() {
                for b in &chunk.held[i + 1..] {
                    assert!(a.id != b.id && apart(a, b), "held at once in {key:?}: {a:?}, {b:?}");
                }
            }
            for (i, lock) in waiting.iter().enumerate() {
                assert!(
                    chunk.held.iter().chain(waiting[..i].iter().copied()).any(|o| !apart(o, lock)),
                    "{lock:?} waits in {key:?} for nobody"
                );
                assert!(i == 0 || waiting[i - 1].id < lock.id, "{lock:?} is out of its turn");
            }
        }
    }
}

impl Drop for RangeGuard {
    fn drop(&mut self) {
        let mut all = self.of.0.borrow_mut();
        let Some(chunk) = all.chunks.get_mut(&self.key) else { return };
        let before = chunk.len();
        chunk.held.retain(|l| l.id != self.id);
        chunk.waiting.retain(|(l, _)| l.id != self.id);
        assert_eq!(chunk.len() + 1, before, "a guard is of one lock");
        if !chunk.waiting.is_empty() {
            chunk.grant();
        } else if chunk.held.is_empty() {
            let chunk = all.chunks.remove(&self.key);
            if all.spare.len() < SPARE_MAX {
                all.spare.extend(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RangeLocks;
    use atoll_format::op::BlockRange;
    use futures_util::FutureExt;

    fn range(start: u32, count: u16) -> BlockRange {
        BlockRange { start, count }
    }

    #[test]
    fn a_reader_waits_behind_a_writer_that_came_first() {
        let locks = RangeLocks::new();
        let reading = locks.lock_shared(0, range(0, 4)).now_or_never().expect("free");
        let mut writer = Box::pin(locks.lock_exclusive(0, range(3, 2)));
        assert!((&mut writer).now_or_never().is_none());
        let mut late = Box::pin(locks.lock_shared(0, range(4, 1)));
        assert!((&mut late).now_or_never().is_none(), "overlaps the waiting writer");
        assert!(locks.lock_shared(0, range(5, 1)).now_or_never().is_some());
        assert!(locks.lock_exclusive(1, range(3, 2)).now_or_never().is_some(), "another leg");
        drop(reading);
        let writing = (&mut writer).now_or_never().expect("first in the queue");
        assert!((&mut late).now_or_never().is_none());
        drop(writing);
        drop((&mut late).now_or_never().expect("free"));
        drop((writer, late));
        assert!(locks.is_free());
    }

    #[test]
    fn the_audit_knows_who_is_alone_and_who_waits() {
        let locks = RangeLocks::new();
        let held = locks.lock_exclusive(0, range(8, 4)).now_or_never().expect("free");
        let reading = locks.lock_shared(0, range(0, 8)).now_or_never().expect("free");
        let waiting = locks.lock_exclusive(0, range(4, 8));
        locks.audit();
        assert!(locks.is_exclusive(0, range(9, 3)) && !locks.is_exclusive(0, range(9, 4)));
        assert!(!locks.is_exclusive(0, range(0, 8)), "it is shared");
        assert!(!locks.is_exclusive(1, range(8, 4)), "another leg");
        drop(held);
        locks.audit();
        assert!(!locks.is_exclusive(0, range(8, 4)), "who waits for the rest of it has none of it");
        drop(reading);
        locks.audit();
        assert!(locks.is_exclusive(0, range(8, 4)));
        drop(waiting);
        locks.audit();
        assert!(locks.is_free());
    }

    #[test]
    fn a_dropped_waiter_blocks_nobody() {
        let locks = RangeLocks::new();
        let held = locks.lock_exclusive(0, range(0, 1)).now_or_never().expect("free");
        let dropped = locks.lock_exclusive(0, range(0, 256));
        let mut last = Box::pin(locks.lock_shared(0, range(9, 1)));
        assert!((&mut last).now_or_never().is_none());
        drop(dropped);
        drop((&mut last).now_or_never().expect("only the dropped one was in the way"));
        drop((held, last));
        assert!(locks.is_free());
    }

    #[test]
    fn conflicting_locks_are_never_held_together() {
        // A small deterministic walk against the definition.
        let locks = RangeLocks::new();
        let mut held: Vec<(BlockRange, bool, super::RangeGuard)> = Vec::new();
        let mut waiting = Vec::new();
        let mut x = 9u64;
        for _ in 0..5_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = (x >> 33) as u32;
            if pick.is_multiple_of(3) && !held.is_empty() {
                drop(held.swap_remove((pick as usize / 3) % held.len()));
            } else {
                let r = range(pick % 13, (pick / 13 % 4 + 1) as u16);
                let exclusive = (pick / 64).is_multiple_of(2);
                let lock = locks.lock(0, r, exclusive);
                waiting.push((r, exclusive, Box::pin(lock)));
            }
            let mut i = 0;
            while i < waiting.len() {
                let (r, exclusive, lock) = &mut waiting[i];
                if let Some(guard) = lock.now_or_never() {
                    for (other, x, _) in &held {
                        assert!(!r.overlaps(*other) || (!*exclusive && !x), "{r:?} {other:?}");
                    }
                    held.push((*r, *exclusive, guard));
                    drop(waiting.remove(i));
                } else {
                    i += 1;
                }
            }
        }
        held.clear();
        while !waiting.is_empty() {
            let before = waiting.len();
            waiting.retain_mut(|(_, _, lock)| lock.now_or_never().is_none());
            assert!(waiting.len() < before, "somebody is always next");
        }
        assert!(locks.is_free());
    }
}
