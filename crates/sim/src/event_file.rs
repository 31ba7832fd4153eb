//! What a host's events are kept in: one file, written as the real ones are, which loses its end
//! with the power.
//!
//! Invariant: what was written a second before the power went is there, and so is all that was
//! written when only the process ends.

use crate::executor::Executor;
use crate::rng::Rng;
use atoll_format::id::HostId;
use atoll_node::{EventSink, EventsKept, NodeEvent, event_line, read_event_lines};
use atoll_world::Nanos;
use std::cell::RefCell;
use std::rc::Rc;

/// How often the file is made durable, at most.
const SYNC_EVERY: Nanos = Nanos::from_secs(1);

struct Inner {
    bytes: Vec<u8>,
    /// So many of them survive the loss of power.
    durable: usize,
    synced_at: Option<Nanos>,
    rng: Rng,
}

/// The file of one host's events. It outlives the host's lives; clones are the same.
#[derive(Clone)]
pub struct EventFile {
    inner: Rc<RefCell<Inner>>,
    executor: Executor,
}

impl EventFile {
    /// An empty one. How much of its end is lost is drawn from the seed.
    pub fn new(executor: &Executor, seed: u64, host: u16) -> Self {
        let rng = Rng::named(seed, &format!("events of host {host}"));
        let inner = Inner { bytes: Vec::new(), durable: 0, synced_at: None, rng };
        Self { inner: Rc::new(RefCell::new(inner)), executor: executor.clone() }
    }

    /// What a host begins a life with: what does not end well is cut off.
    pub fn open(&self, host: HostId) -> EventsKept {
        let mut inner = self.inner.borrow_mut();
        let found = read_event_lines(host, 0, &inner.bytes);
        inner.bytes.truncate(found.good_bytes);
        inner.durable = found.good_bytes;
        inner.synced_at = None;
        EventsKept { events: found.events, sink: Rc::new(self.clone()) }
    }

    /// The power goes, now: what is not durable may be lost, from any byte on.
    pub fn power_lost(&self) {
        let (mut inner, now) = (self.inner.borrow_mut(), self.executor.now());
        if inner.synced_at.is_none_or(|at| now.since(at) >= SYNC_EVERY) {
            inner.durable = inner.bytes.len();
        }
        let tail = (inner.bytes.len() - inner.durable) as u64;
        let kept = inner.durable + inner.rng.below(tail + 1) as usize;
        inner.bytes.truncate(kept);
    }
}

impl EventSink for EventFile {
    fn keep(&self, event: &NodeEvent) {
        let (mut inner, now) = (self.inner.borrow_mut(), self.executor.now());
        inner.bytes.extend_from_slice(event_line(event).as_bytes());
        if inner.synced_at.is_none_or(|at| now.since(at) >= SYNC_EVERY) {
            inner.durable = inner.bytes.len();
            inner.synced_at = Some(now);
        }
    }
}
