//! The only program of Atoll: the host daemon (`atoll serve`), a whole cluster on one machine for
//! development (`atoll dev`), and the command line that manages both over REST.
//!
//! It parses, wires and prints; a decision found here is in the wrong crate. A library only so
//! that tests can run the server and the commands against a made-up engine.

pub mod audit;
pub mod bridge;
pub mod cli;
pub mod config;
pub mod control;
pub mod descriptors;
pub mod dev;
pub mod engine;
pub mod etcd_member;
pub mod line_files;
pub mod lock;
pub mod log;
pub mod machine;
pub mod metrics;
pub mod rest;
pub mod serve;
pub mod service;
pub mod sim;
pub mod support;
pub mod trust;
