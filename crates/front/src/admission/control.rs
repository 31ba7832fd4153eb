//! What the clients of one server share: the data held for them, the fair shares of each, and the
//! writes under way on each export.

use super::fair_share::FairShare;
use super::limits::{AdmissionLimits, REQUEST_BYTES_MAX};
use super::write_barrier::WriteBarriers;
use atoll_world::Nanos;
use atoll_world::sync::{Notified, Notify};
use std::cell::Cell;

/// See the file. One for all clients of a server.
pub(crate) struct AdmissionControl {
    pub(super) limits: AdmissionLimits,
    /// Data held for clients, all together.
    pub(super) bytes: Cell<usize>,
    /// There is more room than before.
    freed: Notify,
    pub(super) fair_share: FairShare,
    /// Writes under way, by export.
    pub(crate) barriers: WriteBarriers,
}

impl AdmissionControl {
    /// Without clients.
    ///
    /// # Panics
    /// If a request of the largest size would not fit into `limits` and wait for ever.
    pub(crate) fn new(limits: AdmissionLimits) -> Self {
        let least = limits.requests.min(limits.deep_requests_min).min(limits.guaranteed_bytes);
        assert!(least > 0, "or nothing could go on");
        let least = limits.client_bytes.min(limits.server_bytes);
        assert!(least >= REQUEST_BYTES_MAX as usize, "the largest request must fit");
        Self {
            limits,
            bytes: Cell::new(0),
            freed: Notify::default(),
            fair_share: FairShare::new(limits.deep_requests_min),
            barriers: WriteBarriers::default(),
        }
    }

    /// Bytes of data held for all clients.
    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes.get()
    }

    /// Returns once there is more room for requests than at this call.
    pub(crate) fn freed(&self) -> Notified {
        self.freed.notified()
    }

    /// There is more room: an answer has left, or data was given back.
    pub(crate) fn has_freed(&self) {
        self.freed.notify_all();
    }

    /// A small request, a write or a read, of a client that wants times has ended: see
    /// [`ClientAdmission::wants_times`](super::client::ClientAdmission::wants_times).
    pub(crate) fn took(&self, begun: Nanos, now: Nanos, writes: bool) {
        self.fair_share.took(begun, now, writes);
    }
}
