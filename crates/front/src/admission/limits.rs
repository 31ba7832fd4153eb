//! Every bound of admission, with the arithmetic behind it.
//!
//! The rule above all: what one client can make the server hold is bounded, what all clients
//! together can make it hold is bounded (256 MiB of data a server), and no client's share is so
//! large that another cannot go on.

use atoll_world::Nanos;

/// The largest request of any front end, in bytes of data.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// The window of fair sharing: a busy shallow client is remembered for two of them at most.
pub const SHARE_WINDOW: Nanos = Nanos::from_ms(50);
/// Requests in one such window that make a client busy: 160 a second.
pub const SHALLOW_BUSY: usize = 8;
/// A client with at most this many requests under way at once is shallow.
pub const SHALLOW_MOST: usize = 4;
/// What [`AdmissionLimits::deep_requests_min`] grows to at most.
pub const DEEP_REQUESTS_MAX: usize = 256;
/// Larger ones are not counted: who copies a disk in large pieces, a few at a time, is in no hurry.
pub const SHALLOW_BYTES: usize = 64 << 10;
/// What one client may take of the reserve of a server: the size of request that copying
/// tools use, in bytes.
pub const RESERVE_EACH_BYTES: usize = 1 << 20;

/// What the clients of one server may have under way; an administrator or a test may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdmissionLimits {
    /// Requests of one client that are received and not yet answered.
    pub requests: usize,
    /// The same of a deep client while a shallow client is busy, at least (see
    /// `admission::fair_share`). More if that client does not suffer (see
    /// `admission::concurrency_limit`).
    pub deep_requests_min: usize,
    /// Bytes of data that one client's requests hold, until their answers are sent.
    pub client_bytes: usize,
    /// The same for all clients of the server. A client gets no more than what is left (dynamic
    /// thresholds, Choudhury and Hahne 1998): k greedy clients leave 1/(k+1) free.
    pub server_bytes: usize,
    /// What a client gets whatever the others hold: 256 x 256 KiB is 64 MiB more.
    pub guaranteed_bytes: usize,
}

impl AdmissionLimits {
    /// Bytes of [`AdmissionLimits::server_bytes`] that only clients which hold less than
    /// [`RESERVE_EACH_BYTES`] get: a quarter, 64 of 256 MiB, as long as the largest request fits
    /// next to it.
    pub fn reserved_bytes(&self) -> usize {
        let left = self.server_bytes.saturating_sub(REQUEST_BYTES_MAX as usize);
        left.min(self.server_bytes / 4)
    }
}

impl Default for AdmissionLimits {
    fn default() -> Self {
        Self {
            requests: 256,
            deep_requests_min: 2,
            client_bytes: 64 << 20,
            server_bytes: 256 << 20,
            guaranteed_bytes: 256 << 10,
        }
    }
}

// A request of the largest size must fit into an idle client's share, or it would wait for ever.
const _: () = assert!(REQUEST_BYTES_MAX as usize <= 64 << 20);
