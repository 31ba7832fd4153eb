//! The faults that a run can meet: kinds, what a seed plans, the part of it that is carried out,
//! and what was really reached.

mod counts;
mod kind;
mod plan;
pub mod subset;

pub use counts::Faults;
pub use kind::{FaultKind, FaultSet};
pub use plan::{DirectoryRates, DiskRates, MEDIUM, NetRates, Plan, TIMED};
pub use subset::FaultSubset;
