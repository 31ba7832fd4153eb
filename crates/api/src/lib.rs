//! The management interface as data: REST types, envelopes, errors, the table of operations and the
//! OpenAPI document made from it, and a client.
//!
//! Absent here: the server (in `atoll`), and everything that decides. Types of other crates are
//! repeated here on purpose, so that the interface can stay still while they move.
//!
//! Invariants: within `/api/v1` fields and routes are only ever added; sizes are bytes and times
//! are RFC 3339 UTC, in numbers and strings that never change their unit; a request with an
//! unknown field is refused, a reply with one is accepted (the server may be newer).

pub mod client;
pub mod envelope;
pub mod limits;
pub mod name;
pub mod openapi;
pub mod problem;
pub mod routes;
pub mod shell;
pub mod types;
pub mod uri;

pub use client::{Client, Endpoint};
pub use envelope::{Item, List, Named};
pub use problem::{Code, Problem};
