//! An NBD server (fixed newstyle, structured replies, `base:allocation`).
//!
//! ```text
//! bytes -> inbox -> session -> Request -> run (Volume) -> Done -> reply -> outbox -> bytes
//!          '----- pure -----'            '- pump polls -'        '--- pure ---'
//! ```
//!
//! `codec` knows the numbers and layouts of the protocol, `inbox` the bytes that came and are not
//! yet understood, `session` what they mean and what may come next, `reply` how answers look,
//! and `pump` moves it all: it is the only part that waits. How many requests and how much data a
//! client may have under way is decided by [`admission`](crate::admission).
//!
//! A client connects where its host listens, and is served by the shard that serves its volume. A
//! connection whose client chooses an export of another shard is handed over to that shard:
//! `Server::serve` returns the stream and the session, and the other shard's `Server::resume` goes
//! on with them. A client cannot tell. A connection is handed over once at most.
//!
//! Invariants: every request that was understood is answered exactly once or the connection ends;
//! a write is applied only when its last byte is here; no answer is sent before the volume has
//! returned; what a connection holds stays within [`limits`](crate::limits).
//!
//! Absent: TLS and extended headers (refused as the protocol says), oldstyle, and caching.

mod codec;
mod inbox;
mod pump;
mod reply;
mod run;
mod session;

pub use pump::{Ended, HandOver, Served, Server, Stats, Suspended};

#[cfg(test)]
mod fuzz;
