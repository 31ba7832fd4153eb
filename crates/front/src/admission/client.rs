//! One client's part of a server's admission: what it holds, and what its next request may take.
//!
//! Invariant: the bytes held for a client are among those held for all; dropping this gives them
//! back.

use super::control::AdmissionControl;
use super::fair_share::ClientActivity;
use super::limits::RESERVE_EACH_BYTES;
use atoll_world::Nanos;
use std::cell::Cell;

/// How much may be taken on now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Requests.
    pub requests: usize,
    /// Bytes of data.
    pub bytes: usize,
}

/// See the file.
pub(crate) struct ClientAdmission<'a> {
    control: &'a AdmissionControl,
    /// Data held for its requests.
    bytes: Cell<usize>,
    /// What it has asked for of late.
    activity: ClientActivity,
    /// How many requests it may have that are taken on and not yet answered.
    share: Cell<usize>,
}

impl<'a> ClientAdmission<'a> {
    /// A client that has asked for nothing yet.
    pub(crate) fn new(control: &'a AdmissionControl) -> Self {
        let share = Cell::new(control.limits.requests);
        Self { control, bytes: Cell::new(0), activity: ClientActivity::default(), share }
    }

    /// Finds out anew how many requests it may have, of which `under_way` are under way.
    pub(crate) fn renew_share(&self, now: Nanos, under_way: usize) {
        let most = self.control.limits.requests;
        let bound = self.control.fair_share.share(now, &self.activity, under_way);
        self.share.set(bound.map_or(most, |bound| bound.min(most)));
    }

    /// Whether [`AdmissionControl::took`] is to be told how long its small requests take.
    pub(crate) fn wants_times(&self) -> bool {
        self.control.fair_share.wants_times(&self.activity)
    }

    /// It has begun a request of so many bytes; `under_way` are under way with it.
    pub(crate) fn begins(&self, bytes: usize, under_way: usize) {
        self.activity.begins(bytes, under_way, self.share.get());
    }

    /// What the next request may take, if `requests` are taken on and not yet answered.
    pub(crate) fn room(&self, requests: usize) -> Room {
        Room { requests: self.share.get().saturating_sub(requests), bytes: self.bytes_left() }
    }

    /// What the next request may take. Never less than the guarantee, and an idle server takes
    /// the largest request, so whoever waits will be let in. Large requests leave a reserve: those
    /// whose clients take no answer must not keep everybody else waiting until they are
    /// disconnected.
    fn bytes_left(&self) -> usize {
        let limits = &self.control.limits;
        let mine = self.bytes.get();
        let left = limits.server_bytes.saturating_sub(self.control.bytes.get());
        let free = left.saturating_sub(limits.reserved_bytes());
        let fair = free.saturating_sub(mine).min(limits.client_bytes.saturating_sub(mine));
        // The first request of an idle client gets all that is left, not half of it.
        let first = if mine == 0 { free.min(limits.client_bytes) } else { 0 };
        let small = left.min(RESERVE_EACH_BYTES.saturating_sub(mine));
        fair.max(first).max(small).max(limits.guaranteed_bytes.saturating_sub(mine))
    }

    /// So many bytes more are held for it.
    pub(crate) fn hold(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
        self.control.bytes.set(self.control.bytes.get() + bytes);
    }

    /// So many bytes less are held for it.
    pub(crate) fn release(&self, bytes: usize) {
        if bytes > 0 {
            self.bytes.set(self.bytes.get() - bytes);
            self.control.bytes.set(self.control.bytes.get() - bytes);
            self.control.has_freed();
        }
    }
}

impl Drop for ClientAdmission<'_> {
    fn drop(&mut self) {
        self.release(self.bytes.get());
    }
}
