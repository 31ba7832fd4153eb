//! Admission: how many requests, and how much data, each client of a server may have under way.
//!
//! Every front end uses it; it knows no protocol. A front end has one [`control::AdmissionControl`]
//! a server and one [`client::ClientAdmission`] a client. It asks for [`client::Room`] before it
//! takes on a request, and reads nothing from a client without room: that is the back-pressure.
//!
//! From the ground up: `limits`; `concurrency_limit` and `fair_share` (how many requests a client
//! may have next to others); `write_barrier` (a client that comes back waits for its old writes);
//! `control` (what the clients of a server share); `client`.
//!
//! Invariants: data held for one client and for all clients stays within [`limits`]; a client that
//! holds nothing is let in sooner or later, whatever the others hold.

pub(crate) mod client;
mod concurrency_limit;
pub(crate) mod control;
mod fair_share;
pub mod limits;
pub(crate) mod write_barrier;
