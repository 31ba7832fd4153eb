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
//! | `label`, `create`, `open` | what is on a device; making, opening and closing a group |
//! | `store` | the calls, their checks and their order |
//! | `state`, `component`, `index`, `table`, `pages`, `space` | what memory knows |
//! | `log`, `destage`, `journal`, `checkpoint` | what is written, and in which order |
//! | `recover` | reading it back after any crash |
//! | `read`, `ahead`, `scrub`, `check` | looking at it |
//! | `device`, `sizes`, `group`, `limits` | devices and their deadlines, what is shared, bounds |

mod ahead;
mod check;
mod checkpoint;
mod component;
mod create;
mod destage;
mod device;
mod group;
mod index;
mod journal;
mod label;
pub mod limits;
mod log;
mod open;
mod pages;
mod read;
mod recover;
mod scrub;
mod sizes;
mod space;
mod state;
mod store;
mod table;

pub use check::{CheckReport, check};
pub use create::{FormatError, FormatSpec, GroupLabel, format_group};
pub use label::{Inspection, inspect, wipe};
pub use open::{OpenError, OpenSpec};
pub use store::Store;
