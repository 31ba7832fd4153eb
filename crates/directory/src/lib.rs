//! The embedded directory: a linearizable key-value store for the hosts of one machine (or of a
//! simulation), kept in one file.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`state`] | the pure state machine: transactions, events, hints |
//! | [`memory`] | the state machine as an [`atoll_world::Directory`], for simulations and tests |
//! | [`file`](mod@file) | the durable image of the state: one redb file |
//! | [`codec`] | the frames between clients and the server on a Unix socket |
//! | [`conformance`] | the suite that every implementation of the trait must pass |
//! | [`limits`] | every bound |
//!
//! Absent here: sockets and threads (`real`), and any knowledge of what keys and values mean.

pub mod codec;
pub mod conformance;
pub mod file;
mod head;
pub mod limits;
pub mod memory;
pub mod state;

pub use file::{DirectoryFile, FileError};
pub use memory::MemoryDirectory;
pub use state::{Batch, DirectoryState, Events, Stored};
