//! Front ends: the protocols by which clients use volumes. Each is a byte-level session without
//! I/O (what came in, what must happen next, what goes out) and a thin pump that moves its bytes.
//!
//! What is the same for every protocol, which requests are taken on and when, is `admission`.
//!
//! Absent here: objects, layouts, hosts, sockets, and any memory of a volume's content. A front
//! end is given [`Volumes`](atoll_world::volume::Volumes) and knows no more of them than that
//! trait says.

pub mod admission;
pub mod filter;
pub mod limits;
pub mod memory;
pub mod nbd;
