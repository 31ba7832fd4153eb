//! An NBD server (fixed newstyle, structured replies, `base:allocation`).
//!
//! ```text
//! bytes -> inbox -> session -> Request -> run (Volume) -> Done -> reply -> outbox -> bytes
//!          '----- pure -----'            '- pump polls -'        '--- pure ---'
//! ```
//!
//! `codec` knows the numbers and layouts of the protocol, `inbox` the bytes that came and are not
//! yet understood, `session` what they mean and what may come next, `reply` how answers look,
//! `fence` which writes are under way, `crowd` who asks beside whom, and `pump` moves it all: it
//! is the only part that waits.
//!
//! Invariants: every request that was understood is answered exactly once or the connection ends;
//! a write is applied only when its last byte is here; no answer is sent before the volume has
//! returned; what a connection holds stays within [`limits`](crate::limits).
//!
//! Absent: TLS and extended headers (refused as the protocol says), oldstyle, and caching.

mod beside;
mod codec;
mod crowd;
mod fence;
mod inbox;
mod pump;
mod reply;
mod run;
mod session;

pub use pump::{Ended, Server, Stats};

#[cfg(test)]
mod fuzz;
