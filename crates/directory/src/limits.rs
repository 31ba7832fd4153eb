//! Every bound of the directory in one place, with the arithmetic that relates them.
//!
//! A cluster of 64 hosts and 20,000 volumes needs about 20,000 x (1 KiB object + 0.2 KiB name)
//! = 24 MiB; the largest object record, of 62 TiB, is `VALUE_MAX`.

use atoll_world::Nanos;

/// Longest key or prefix, in bytes.
pub const KEY_MAX: usize = 1 << 10;
/// Largest value, in bytes.
pub const VALUE_MAX: usize = atoll_format::record::VALUE_MAX;
/// Most changes in one transaction.
pub const CHANGES_MAX: usize = 128;
/// Most comparisons in one transaction; bounds the answer of a conflict.
pub const COMPARES_MAX: usize = 32;
/// Keys and values of one transaction together, in bytes.
pub const TXN_BYTES_MAX: usize = 4 << 20;
/// All keys and values together, in bytes: above it no new key is taken. What exists may still be
/// replaced (a member failure must be recordable on a full directory), up to twice this.
pub const TOTAL_BYTES_MAX: usize = 128 << 20;
/// What an entry costs besides its key and value, in bytes, as accounted.
pub const ENTRY_OVERHEAD: usize = 128;
/// Most events kept for watches.
pub const HISTORY_EVENTS_MAX: usize = 8192;
/// Keys and values of the events kept for watches, in bytes.
pub const HISTORY_BYTES_MAX: usize = 16 << 20;
/// Events in one answer to a watch stop at the first whole revision past this many bytes.
pub const EVENTS_BYTES: usize = 1 << 20;
/// Entries in one part of a listing stop past this many bytes.
pub const LIST_PART_BYTES: usize = 1 << 20;
/// Most names alive at once.
pub const HINTS_MAX: usize = 1024;
/// Most transactions that share one write to the disk.
pub const BATCH_TXNS_MAX: usize = 256;

/// Largest body of a frame, in bytes: a conflict over `COMPARES_MAX` keys of the largest size.
pub const FRAME_BODY_MAX: usize = 9 << 20;
/// Most connections of one server: 64 hosts' processes and as many commands.
pub const CONNECTIONS_MAX: usize = 128;
/// Most requests of one connection that are being answered, watches included.
pub const REQUESTS_MAX: usize = 256;
/// Memory that requests and answers of one connection may take at once, in bytes.
pub const CONNECTION_BYTES_MAX: usize = 16 << 20;
/// Most requests a client holds before it refuses more.
pub const CLIENT_REQUESTS_MAX: usize = 192;

/// A request without an answer for this long has failed.
pub const REQUEST_DEADLINE: Nanos = Nanos::from_secs(5);
/// A watch without events is answered after this long, so that a dead server is noticed.
pub const POLL_WAIT: Nanos = Nanos::from_secs(10);
/// A peer that takes nothing for this long is disconnected.
pub const WRITE_DEADLINE: Nanos = Nanos::from_secs(10);
/// First and longest wait between two attempts to connect.
pub const RECONNECT_MIN: Nanos = Nanos::from_ms(10);
/// See [`RECONNECT_MIN`].
pub const RECONNECT_MAX: Nanos = Nanos::from_ms(500);

/// What a frame spends on one entry or event besides key and value: lengths and revision.
const WIRE_OVERHEAD: usize = 32;

const _: () = {
    assert!(COMPARES_MAX * (KEY_MAX + VALUE_MAX + WIRE_OVERHEAD) + 64 <= FRAME_BODY_MAX);
    assert!(TXN_BYTES_MAX + (CHANGES_MAX + COMPARES_MAX) * WIRE_OVERHEAD <= FRAME_BODY_MAX);
    assert!(EVENTS_BYTES + TXN_BYTES_MAX + HISTORY_EVENTS_MAX * WIRE_OVERHEAD <= FRAME_BODY_MAX);
    assert!(LIST_PART_BYTES + KEY_MAX + VALUE_MAX + LIST_PART_BYTES <= FRAME_BODY_MAX);
    assert!(HISTORY_BYTES_MAX >= TXN_BYTES_MAX && HISTORY_EVENTS_MAX >= CHANGES_MAX);
    assert!(CLIENT_REQUESTS_MAX < REQUESTS_MAX && FRAME_BODY_MAX <= CONNECTION_BYTES_MAX);
    assert!(HINTS_MAX * (KEY_MAX + WIRE_OVERHEAD) <= FRAME_BODY_MAX);
    assert!(RECONNECT_MAX.0 < REQUEST_DEADLINE.0);
};
