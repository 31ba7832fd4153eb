//! Every byte that outlives memory: ids, units, checksums, disk structures, wire frames and
//! directory values. No I/O, no clocks, no async.
//!
//! Invariants: everything is little-endian; every structure that reaches a disk or a wire carries
//! a magic number, a version, its own place and a checksum, and is checked before it is believed.

pub mod checksum;
pub mod chunk;
pub mod frame;
pub mod id;
pub mod level;
pub mod log;
pub mod op;
pub mod record;
pub mod superblock;
pub mod units;
