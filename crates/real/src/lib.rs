//! The real world on Linux: what `atoll-world`'s traits become on an actual host. One thread and
//! one single-threaded runtime per shard, io_uring (or a thread pool) for disks, TCP for peers.
//!
//! It implements, it does not decide: no retry, no policy, no knowledge of objects or stores.

mod busy_poll;
mod clock;
mod cpu_latency;
pub mod directory;
mod disk;
mod disk_op;
pub mod limits;
mod net;
mod poll_tuner;
mod pool;
mod read_throttle;
mod shard;
mod siblings;
mod stream;
mod tcp;
mod timers;
mod unix;
mod uring;

pub use busy_poll::set_busy_poll_max;
pub use clock::{now, unix_ms};
pub use cpu_latency::limit_cpu_latency;
pub use disk::{Backend, OpenError, OpenOptions, RealDisk};
pub use net::{RealConn, RealNet};
pub use shard::{RealWorld, Shard, run};
pub use siblings::Siblings;
pub use stream::{DetachedStream, RealStream, StreamListener, StreamRead, StreamWrite};
pub use timers::sleep_until;
pub use unix::listen_unix;
pub use uring::try_uring;
