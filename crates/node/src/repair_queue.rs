//! Chunks of this host's components that have bad blocks, and when these are handed to whoever
//! repairs them.
//!
//! Invariants: at most [`BAD_CHUNKS_MAX`] chunks (a scrub finds the others again); a chunk is
//! looked at again after a time that doubles from [`BAD_RETRY_FIRST`] to [`BAD_RETRY_LAST`].

use atoll_format::id::{ComponentId, HostId};
use atoll_world::Nanos;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// Chunks with bad blocks that are remembered until they are good; a scrub finds the others again.
const BAD_CHUNKS_MAX: usize = 4096;
/// After how long a bad block is handed over again, at first.
pub(crate) const BAD_RETRY_FIRST: Nanos = Nanos::from_secs(1);
/// The same, at most.
const BAD_RETRY_LAST: Nanos = Nanos::from_secs(30);

const _: () = assert!(BAD_RETRY_FIRST.0 <= BAD_RETRY_LAST.0);

/// When a chunk's bad blocks are handed over again.
#[derive(Debug)]
struct Retry {
    at: Nanos,
    after: Nanos,
}

/// See the file. Chunks are named by their component and their number in it.
#[derive(Default)]
pub(crate) struct RepairQueue {
    chunks: RefCell<BTreeMap<(ComponentId, u32), Retry>>,
}

impl RepairQueue {
    /// Takes a chunk in, to be looked at soon, unless it is there or there are too many.
    pub(crate) fn add(&self, component: ComponentId, chunk: u32) {
        let mut chunks = self.chunks.borrow_mut();
        if chunks.len() < BAD_CHUNKS_MAX {
            let soon = Retry { at: Nanos::ZERO, after: BAD_RETRY_FIRST };
            chunks.entry((component, chunk)).or_insert(soon);
        }
        assert!(chunks.len() <= BAD_CHUNKS_MAX, "{} chunks with bad blocks", chunks.len());
    }

    /// At most `max` chunks that are to be looked at now.
    pub(crate) fn due(&self, now: Nanos, max: usize) -> Vec<(ComponentId, u32)> {
        let chunks = self.chunks.borrow();
        let due = chunks.iter().filter(|(_, retry)| retry.at <= now);
        due.map(|(&key, _)| key).take(max).collect()
    }

    /// The chunk was looked at: if it is still there, it is looked at again later.
    pub(crate) fn postpone(&self, component: ComponentId, chunk: u32, now: Nanos) {
        if let Some(retry) = self.chunks.borrow_mut().get_mut(&(component, chunk)) {
            retry.at = now + retry.after;
            retry.after = (retry.after * 2).min(BAD_RETRY_LAST);
            let Retry { at, after } = *retry;
            assert!(at >= now + BAD_RETRY_FIRST, "{component} is looked at again at {at}");
            assert!((BAD_RETRY_FIRST..=BAD_RETRY_LAST).contains(&after), "then after {after}");
        }
    }

    /// The chunk is good, or nobody needs it.
    pub(crate) fn remove(&self, component: ComponentId, chunk: u32) {
        self.chunks.borrow_mut().remove(&(component, chunk));
    }

    /// What must hold at every moment, on host `me`.
    pub(crate) fn audit(&self, me: HostId) {
        let chunks = self.chunks.borrow();
        assert!(chunks.len() <= BAD_CHUNKS_MAX, "host {me}: {} bad chunks", chunks.len());
        for ((component, chunk), retry) in chunks.iter() {
            assert!(
                (BAD_RETRY_FIRST..=BAD_RETRY_LAST).contains(&retry.after),
                "host {me}: chunk {chunk} of {component} is looked at after {}",
                retry.after
            );
        }
    }
}
