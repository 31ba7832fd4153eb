//! The directory of a real cluster: etcd, behind the trait that the embedded directory has, too.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`client`](EtcdDirectory) | transactions, reads, hints: what each asks of etcd |
//! | `members` | which member is asked, how one that is dead or cut off is noticed and left |
//! | `watch` | events, in order and each once, whatever etcd sends |
//! | `membership` | which members there are, and changing it |
//! | `survey` | how every member is, for people |
//! | [`version`] | which releases are refused, and of which users are warned |
//! | `error` | what etcd's errors say about the outcome of a request |
//!
//! A crate of its own, because `real` and all that is tested with it need none of the hundred
//! crates below `etcd-client`, nor the compiler of its messages.
//!
//! Absent here: any knowledge of what a key means; a cache; decisions. What the directory's rules
//! ask of those who read it (a list whenever in doubt) is theirs, so that the simulator tests it.

mod client;
mod error;
mod members;
mod membership;
mod survey;
pub mod version;
mod watch;

pub use client::EtcdDirectory;
pub use members::{Endpoints, EtcdConfig, TlsFiles};
pub use membership::{Member, MemberClient};
pub use survey::{MemberHealth, MemberReport, Survey};
pub use watch::EtcdWatch;
