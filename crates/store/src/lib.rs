//! The store: components on the devices of one disk group.
//!
//! Writes go to a log, one durable batch at a time, and are acknowledged then; in the background
//! their blocks move to 1 MiB slots, with checksum, seq and state of every block kept apart from
//! the data. `docs/formats.md` has every byte and every crash rule.
//!
//! Absent here: objects, hosts, policies, other members. The store knows components and bytes;
//! whether a component is current is decided by whoever can compare it with its peers.
//!
//! | file | idea |
//! | --- | --- |
//! | `limits`, `error`, `geometry`, `label` | bounds; what is on a device, and where |
//! | `readahead` | finding the next bytes in memory |
//! | `device` | requests to one device, with a deadline |
//! | `state` | what memory knows, without I/O |
//! | `log::queue`, `metadata::journal`, `group` | what the tasks of a store share |
//! | `audit` | proof, in simulation, that the numbers are right |
//! | `metadata`, `log`, `destage` | what is written, and in which order |
//! | `block_reader`, `read`, `scrub`, `sizes` | looking at it |
//! | `store` | the calls, their checks and their order |
//! | `create`, `recover`, `open`, `check` | making, recovering, opening and checking a group |

mod audit;
mod block_reader;
mod check;
mod create;
mod destage;
mod device;
mod error;
mod geometry;
mod group;
mod label;
pub mod limits;
mod log;
mod metadata;
mod open;
mod read;
mod readahead;
mod recover;
mod scrub;
mod sizes;
mod state;
mod store;

pub use check::{CheckReport, check};
pub use create::{FormatError, FormatSpec, GroupLabel, format_group};
pub use error::OpenError;
pub use label::{Inspection, inspect, wipe};
pub use open::OpenSpec;
pub use store::Store;
