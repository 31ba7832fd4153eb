//! This machine, as `atoll host prepare --check` and a support bundle see it: facts, and what
//! follows from them.
//!
//! Invariants: nothing is changed; what cannot be looked at (for
//! lack of a permission or a program) is a fact of its own, with the reason, and hides no other.

pub mod disks;
pub mod facts;
pub mod findings;
mod firewall;
pub mod program;
