//! Calls between hosts: typed requests and replies over framed, checksummed connections, with
//! credits and deadlines. A call to this host's own service takes the same door and no wire.
//!
//! Between two hosts there are three lanes (control, data, bulk), and on each a connection in each
//! direction: who opened it asks, who accepted it answers. So heartbeats and fences never queue
//! behind data, and a reply never queues behind a request.
//!
//! From the ground up: `error`, `limits`, `message`, `identity`; `outgoing` (the calls of one lane,
//! pure); `state` (what all tasks share); `frames`, `connections`, `calls` (what is done with it);
//! `heartbeat`, `dial`, `serve` (the tasks); `peers` (what users of the crate see) and `probe`.
//!
//! What it never does: look into a message, retry a call, or decide what the loss of a peer means.
//!
//! Invariants:
//! - requests of one (peer, lane) are first handled in the order in which they were called;
//! - a request is acted upon only on a connection whose handshake named the right cluster, the
//!   right host and a version both speak;
//! - unanswered requests of a connection <= its window, in number and in bytes;
//! - [`CallError::Unreachable`] and [`CallError::TooLarge`] mean that the request was never sent;
//! - a handler that was started runs to its end, whatever becomes of its caller.

mod calls;
mod connections;
mod dial;
mod error;
mod frames;
mod heartbeat;
mod identity;
pub mod limits;
mod message;
mod outgoing;
mod peers;
mod probe;
mod serve;
mod state;

pub use error::{CallError, PeerState, TransportCounters};
pub use identity::{Identity, Refusal, Twin};
pub use message::{BadMessage, Encoded, Message, Service};
pub use peers::Peers;
pub use probe::probe;
