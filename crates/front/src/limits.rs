//! Every bound of the front ends, with the arithmetic behind it.
//!
//! The rule above all: what one client can make the server hold is bounded, what all clients
//! together can make it hold is bounded (256 MiB of data a server), and no client's share is so
//! large that another cannot go on.

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
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
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
/// How long a client that was busy with few requests at once is remembered: twice this at most.
pub const CROWD_WINDOW: Nanos = Nanos::from_ms(50);
/// Requests in one such window that make a client busy: 160 a second.
pub const SHALLOW_BUSY: usize = 8;
/// Requests under way at once that are few.
pub const SHALLOW_MOST: usize = 4;
/// What [`Limits::requests_beside`] grows to at most.
pub const BESIDE_MOST: usize = 256;
/// Larger ones are not counted: who copies a disk in large pieces, a few at a time, is in no hurry.
pub const SHALLOW_BYTES: usize = 64 << 10;
/// Parts of one request, split at the volume's `max_len`, that run at once.
pub const SPLIT_PARALLEL: usize = 4;

/// What one connection may take of the reserve of a server: the size of request that copying
/// tools use, in bytes.
pub const RESERVE_EACH_BYTES: usize = 1 << 20;

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
    /// Requests of one connection that are received and not yet answered.
    pub requests: usize,
    /// The same, at least, of a connection that has many under way, while another client, with few
    /// small requests at once, is busy: see `nbd::crowd`. More if that one does not feel it: see
    /// `nbd::beside`.
    pub requests_beside: usize,
    /// Bytes of data that one connection's requests hold, until their answers are sent.
    pub connection_bytes: usize,
    /// The same for all connections of the server. A connection gets no more than what is left
    /// (dynamic thresholds, Choudhury and Hahne 1998): k greedy clients leave 1/(k+1) free.
    pub server_bytes: usize,
    /// What a connection gets whatever the others hold: 256 x 256 KiB is 64 MiB more.
    pub guaranteed_bytes: usize,
    /// A client that takes no [`WRITE_STEP_BYTES`] in this long is disconnected, as is one that
    /// does not finish the data of a write.
    pub stall: Nanos,
    /// How long requests in flight may go on after the server was told to stop.
    pub stop: Nanos,
}

impl Limits {
    /// Bytes of [`Limits::server_bytes`] that only connections which hold less than
    /// [`RESERVE_EACH_BYTES`] get: a quarter, 64 of 256 MiB, as long as the largest request fits
    /// beside it.
    pub fn reserved_bytes(&self) -> usize {
        let beside = self.server_bytes.saturating_sub(PAYLOAD_BYTES_MAX as usize);
        beside.min(self.server_bytes / 4)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            handshake: Nanos::from_secs(10),
            options: 16 << 10,
            requests: 256,
            requests_beside: 2,
            connection_bytes: 64 << 20,
            server_bytes: 256 << 20,
            guaranteed_bytes: 256 << 10,
            stall: Nanos::from_secs(60),
            stop: Nanos::from_secs(10),
        }
    }
}

const _: () = {
    // A request of the largest size must fit into an idle connection, or it would wait for ever.
    assert!(PAYLOAD_BYTES_MAX as usize <= 64 << 20);
    // An option must fit into the receive buffer whole, with its head.
    assert!(OPTION_BYTES_MAX as usize + 64 <= RECEIVE_BYTES);
    assert!(NAME_BYTES_MAX < OPTION_BYTES_MAX as usize);
    assert!(PIECE_BYTES.is_multiple_of(4096) && DIRECT_BYTES_MIN <= PIECE_BYTES);
};
