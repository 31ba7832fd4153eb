//! Atoll in virtual time: the shipped store, transport, object layer and node on modelled disks,
//! NICs, cores and a directory that fail in every way in which real ones do.
//!
//! One seed is one run: it chooses the cluster, the load, the faults and their moments, and which
//! of the tasks that are ready is polled next. The same seed makes the same run, to the bit; the
//! trace hash says so.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`executor`] | tasks, timers, lives of hosts |
//! | [`clock`], [`cpu`], [`disk`], [`net`], [`directory`] | the modelled hardware and services |
//! | [`event_file`] | where a host's events last |
//! | [`world`] | one life of a host as the product sees it |
//! | [`fault`] | the faults there are, and which of them a seed switches on |
//! | [`machines`] | the machines of a cluster and what befalls them |
//! | [`workload`], [`pattern`], [`checker`] | clients, what they write, whether it was one disk |
//! | [`trace`] | what happened, and its hash |
//! | [`activity`] | what the cluster is at when a fault has its effect |
//! | [`cluster`] | the real node on those machines, its volumes and what must hold of them |
//! | [`storage`], [`reference_store`] | what a host keeps its components on |
//! | [`scenario`] | one scenario, told in a text file with its expected trace |
//! | [`run`] | one seed, many seeds, the report |
//! | `releases`, `upgrade` | hosts of two releases in one run |
//! | [`reach`] | which of many seeds are worth a run |
//! | [`scale`] | without faults: what a cluster of given hardware does, and what binds it |
//! | [`fault::subset`], [`shrink`] | a part of what a seed does; the least that still fails |
//! | [`timeline`] | a run as a page to look at |
//! | [`model`] | the mirror protocol in the small, explored exhaustively |
//! | [`mutants`] | deliberate flaws of all that, each of which must be found |
//!
//! Absent here: the operating system's clock, entropy, threads and files.

pub mod activity;
mod admin;
mod administrator;
pub mod checker;
pub mod clock;
pub mod cluster;
pub mod cpu;
pub mod directory;
pub mod disk;
pub mod event_file;
pub mod executor;
pub mod fault;
pub mod feature;
mod figures;
pub mod machines;
pub mod model;
pub mod mutants;
pub mod net;
pub mod pattern;
pub mod reach;
pub mod reference_store;
pub mod regressions;
mod releases;
pub mod rng;
pub mod run;
pub mod scale;
pub mod scenario;
pub mod shrink;
mod spread_volume;
pub mod step;
pub mod storage;
pub mod timeline;
pub mod trace;
mod upgrade;
pub mod workload;
pub mod world;
