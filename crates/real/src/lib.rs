//! The real world on Linux: what `atoll-world`'s traits become on an actual host. One thread and
//! one single-threaded runtime per shard, io_uring (or a thread pool) for disks, TCP for peers.
//!
//! It implements, it does not decide: no retry, no policy, no knowledge of objects or stores.

mod depth;
pub mod directory;
mod disk;
mod idle;
pub mod limits;
mod pool;
mod shard;
mod stream;
mod tcp;
mod timers;
mod trial;
mod unix;
mod uring;
mod vigil;

pub use disk::{Backend, OpenError, OpenOptions, RealDisk};
pub use idle::wake_quickly;
pub use shard::{RealWorld, Shard, now, run, sleep_until, unix_ms};
pub use stream::{RealStream, StreamListener, StreamRead, StreamWrite};
pub use tcp::{RealConn, RealNet};
pub use unix::listen_unix;
pub use vigil::stay_awake;
