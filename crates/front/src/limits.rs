//! Every bound of the front ends, with the arithmetic behind it.
//!
//! The rule above all: what one client can make the server hold is bounded, what all clients
//! together can make it hold is bounded (256 MiB of data a server), and no client's share is so
//! large that another cannot go on.

use crate::admission::limits::{AdmissionLimits, REQUEST_BYTES_MAX};
use atoll_world::Nanos;

/// Bytes of an export's name and of any string of the protocol (NBD: `NBD_MAX_STRING`).
pub const NAME_BYTES_MAX: usize = 4096;
/// Bytes of one option's data: a name, and room for meta context queries and info requests.
pub const OPTION_BYTES_MAX: u32 = 16 << 10;
/// A refused option's data is read and dropped up to here; beyond it the connection ends.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;
/// Exports listed by one `LIST`.
pub const LIST_EXPORTS_MAX: usize = 4096;
/// Bytes of the answer to one `LIST`: sent before the next option is read.
pub const LIST_BYTES_MAX: usize = 1 << 20;

/// The largest read or write that is offered, in bytes (the protocol's default).
pub const PAYLOAD_BYTES_MAX: u32 = REQUEST_BYTES_MAX;
/// A refused write's data is read and dropped up to here; beyond it the connection ends.
pub const PAYLOAD_SKIP_BYTES_MAX: u32 = 64 << 20;
/// Bytes that one `CACHE` reads ahead at most; the rest of the hint is ignored.
pub const CACHE_BYTES_MAX: u64 = 32 << 20;
/// Extents in one answer to `BLOCK_STATUS`: 8 KiB of answer.
pub const EXTENTS_MAX: usize = 1024;
/// Bytes of a message to people inside an error.
pub const MESSAGE_BYTES_MAX: usize = 512;

/// Bytes of a connection's receive buffer: 60 requests of 4 KiB with their data in one read.
pub const RECEIVE_BYTES: usize = 256 << 10;
/// Data of a write is kept in pieces of at most this, so that its memory comes from the pool.
pub const PIECE_BYTES: usize = 1 << 20;
/// From this many missing bytes on, a write's data is read straight into its own memory; below,
/// one read takes it together with the requests behind it.
pub const DIRECT_BYTES_MIN: usize = 8 << 10;
/// Bytes handed to one `write_all`: the step in which a slow reader's progress is seen.
pub const WRITE_STEP_BYTES: usize = 1 << 20;
/// Parts of one request, split at the volume's `max_len`, that run at once.
pub const SPLIT_PARALLEL: usize = 4;

/// The bounds that an administrator or a test may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections of one server; the next one is closed at once.
    pub connections: usize,
    /// From the connection to the choice of an export, all together.
    pub handshake: Nanos,
    /// Options of one handshake: tools that list exports ask for each of [`LIST_EXPORTS_MAX`] with
    /// two, and [`Limits::handshake`] bounds them all.
    pub options: u32,
    /// Requests and data under way.
    pub admission: AdmissionLimits,
    /// A client that takes no [`WRITE_STEP_BYTES`] in this long is disconnected, as is one that
    /// does not finish the data of a write.
    pub stall: Nanos,
    /// How long requests in flight may go on after the server was told to stop.
    pub stop: Nanos,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            handshake: Nanos::from_secs(10),
            options: 16 << 10,
            admission: AdmissionLimits::default(),
            stall: Nanos::from_secs(60),
            stop: Nanos::from_secs(10),
        }
    }
}

const _: () = {
    // An option must fit into the receive buffer whole, with its head.
    assert!(OPTION_BYTES_MAX as usize + 64 <= RECEIVE_BYTES);
    assert!(NAME_BYTES_MAX < OPTION_BYTES_MAX as usize);
    assert!(PIECE_BYTES.is_multiple_of(4096) && DIRECT_BYTES_MIN <= PIECE_BYTES);
};
