//! Every bound of this crate, with the arithmetic behind it.

use atoll_world::Nanos;
use std::time::Duration;

/// Operations of one shard that the ring (or the pool) works on at once; more wait in order.
/// An NVMe drive is saturated by far less; a disk group's store issues a few dozen.
pub const DISK_OPS_MAX: u32 = 256;
/// Operations that are submitted at once, or answered before others get their turn. While one part
/// of 32 requests is with the client, the next ones are with the device: with all of them at once
/// the three wait for each other in turns. Of 4, 6, 8 and 12 this was the best.
pub const PIECE: usize = 8;
/// Operations that a disk is given in any case: more than a shallow client and what deep ones may
/// have beside it (`front`'s `deep_requests_min`), so that its reads are never held for theirs.
pub const THROTTLE_MIN: usize = 12;
/// Threads of the pool that stands in for the ring, per shard.
pub const POOL_THREADS: usize = 8;
/// Disks of one shard whose file is registered with the ring; further ones work without.
pub const REGISTERED_FILES: u32 = 64;
/// How long a device may take over the next completion when its shard ends. What it has not
/// ended by then keeps its memory for ever.
pub const LAST_WAIT: Duration = Duration::from_secs(2);
/// Pieces of one device write; more are joined first (`IOV_MAX`).
pub const PIECES_MAX: usize = 1024;

/// A shard to which nothing has happened for that long sleeps. Round trips to peers and flushes of
/// flash drives are shorter; with 1 ms a member of a busy cluster looked all the time, a third of
/// the daemons' work of mixed reads and writes, for no operation more.
pub const BUSY_POLL_MAX: Nanos = Nanos::from_us(300);
/// The shortest time that it stays awake, if at all: to sleep and be woken takes about as long.
pub const BUSY_POLL_MIN: Nanos = Nanos::from_us(50);
/// A shard that works on more than this sleeps as soon as it can: 16 requests of 4 KiB, one of
/// 64 KiB. Each counts for its bytes of data and [`BUSY_POLL_EACH`].
pub const BUSY_POLL_BYTES: usize = 128 << 10;
/// What the work on a request is in the bytes that could be moved instead.
pub const BUSY_POLL_EACH: usize = 4 << 10;

/// A shard is busy when this many events come within [`BUSY_WITHIN`]: some 500 requests a second of
/// one client that waits for each.
pub const BUSY_EVENTS: u32 = 16;
/// See [`BUSY_EVENTS`].
pub const BUSY_WITHIN: Nanos = Nanos::from_ms(10);
/// And busy no longer when that was so long ago. It costs a system call and an interrupt for each
/// processor, ten times a second at most.
pub const CALM_AFTER: Nanos = Nanos::from_ms(100);
/// In microseconds, what it may take meanwhile to wake a processor of a bare machine: the light
/// states (C1, C1E) are below, those that empty its caches take over a hundred.
pub const WAKE_BOUND_US: i32 = 10;

/// Connections that wait to be accepted by a shard of this process, of peers and of its other
/// shards: as many as there may be handshakes under way.
pub const ARRIVALS_MAX: usize = 256;
/// The stream buffer of a connection, in bytes: 60 frames with a 4 KiB payload in one read.
pub const STREAM_BUFFER: usize = 256 << 10;
/// Payloads up to this length are taken out of the stream buffer; of longer ones, what is not in
/// it yet is read to where it stays.
pub const COPIED_PAYLOAD_MAX: usize = 16 << 10;
/// Pieces that one vectored write takes (`IOV_MAX`).
pub const WRITE_PIECES_MAX: usize = 1024;
/// Bytes that one vectored write takes: a connection with a long queue lets others go first.
pub const WRITE_BYTES_MAX: usize = 4 << 20;
/// Bytes of packets that are encrypted ahead of what the system takes, beside the packet that
/// reaches this.
pub const TLS_AHEAD: usize = 256 << 10;
/// Data that is not acknowledged for that long breaks its connection, in milliseconds. Longer
/// than `transport` takes to find a peer silent, so it ends only what that cannot see: one lane
/// of several that is stuck.
pub const TCP_UNACKED_MS: u32 = 5000;
/// Connections that may wait to be accepted.
pub const BACKLOG: u32 = 1024;

const _: () = assert!(COPIED_PAYLOAD_MAX < STREAM_BUFFER && DISK_OPS_MAX.is_power_of_two());
