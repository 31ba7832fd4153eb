//! Block devices and files: aligned, asynchronous, owned buffers.

use crate::Buf;
use std::future::Future;
use std::io;

/// When a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// The device has it; power loss may take it until a flush that starts later has returned.
    Volatile,
    /// On stable media on return (`RWF_DSYNC`: FUA, or write and flush).
    Durable,
}

/// One device. Offsets, lengths and buffers are multiples of 4 KiB. Writes in flight at once are
/// not ordered. Buffers are owned, because a ring may still be using them when a future is dropped.
///
/// After any error of `write` or `flush` nothing is known of unflushed data; a caller never
/// retries a flush: it may succeed although what was cached is lost.
pub trait Disk: Clone + 'static {
    /// Its size now, in bytes, rounded down to 4 KiB.
    fn len_bytes(&self) -> u64;
    /// `len` bytes from `at`.
    fn read(&self, at: u64, len: u32) -> impl Future<Output = io::Result<Buf>>;
    /// Stores the pieces one after the other from `at` on; one device write.
    fn write(
        &self,
        at: u64,
        data: Vec<Buf>,
        durability: Durability,
    ) -> impl Future<Output = io::Result<()>>;
    /// Everything whose write had returned when this was called is durable once this returns.
    fn flush(&self) -> impl Future<Output = io::Result<()>>;
    /// The bytes are no longer needed: a hint, they may read as anything afterwards.
    fn discard(&self, at: u64, len: u64) -> impl Future<Output = io::Result<()>>;
}
