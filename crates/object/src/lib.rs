//! Objects: a virtual block device made of mirrored legs, ordered by one owner at a time.
//!
//! Knows components, never disks: even its own host's store is reached through `transport`.

pub mod placement;
