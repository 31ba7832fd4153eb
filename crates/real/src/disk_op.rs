//! What is asked of a device, and what comes of it: the words between a disk and its backends.

use atoll_world::{Buf, BufMut, Durability};
use std::io;

/// One operation, with the memory it works on.
pub(crate) enum Op {
    Read(BufMut),
    Write(Vec<Buf>, Durability),
    Flush,
    /// This many bytes.
    Discard(u64),
}

/// The bytes of a read, none of all others.
pub(crate) type Outcome = io::Result<Option<Buf>>;
