//! The real world on Linux: what `atoll-world`'s traits become on an actual host. One thread and
//! one single-threaded runtime per shard, io_uring (or a thread pool) for disks, TCP for peers.
//!
//! It implements, it does not decide: no retry, no policy, no knowledge of objects or stores.

pub mod directory;
