//! Every bound of the management interface.

use std::time::Duration;

/// The largest request body, in bytes: the largest real one (a group of eight paths of 4,096
/// bytes) needs 33 KiB.
pub const BODY_MAX: u64 = 256 << 10;
/// The largest request head, in bytes, and so the longest URL.
pub const HEAD_MAX: usize = 64 << 10;
/// Header fields of one request. A browser sends about 20.
pub const HEADERS_MAX: usize = 100;
/// Connections that the server holds at once; others wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 256;
/// Requests in flight towards the engine at once: one per connection, and some to spare.
pub const CALLS_MAX: usize = 512;
/// How long a client may take to send a request head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to send a request body.
pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one call may take before its client hears that it goes on without an answer.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Items of one page when the client does not say.
pub const PAGE_DEFAULT: usize = 200;
/// Items of one page at most.
pub const PAGE_MAX: usize = 1_000;
/// The largest reply that a client reads, in bytes: a page of the longest items.
pub const REPLY_MAX: u64 = 16 << 20;
/// Idempotency keys that a server remembers, and for how long.
pub const IDEMPOTENCY_KEYS_MAX: usize = 1_024;
/// See [`IDEMPOTENCY_KEYS_MAX`].
pub const IDEMPOTENCY_TIME: Duration = Duration::from_secs(24 * 3600);
/// The longest idempotency key, in bytes.
pub const IDEMPOTENCY_KEY_MAX: usize = 128;
/// Followers of the event stream at once.
pub const FOLLOWERS_MAX: usize = 32;

// A body is refused by its announced length before a byte of it is stored, so that all
// connections together hold at most this much (64 MiB).
const _: () = assert!(BODY_MAX * CONNECTIONS_MAX as u64 <= 64 << 20);
const _: () = assert!(CALLS_MAX >= CONNECTIONS_MAX && PAGE_DEFAULT <= PAGE_MAX);
