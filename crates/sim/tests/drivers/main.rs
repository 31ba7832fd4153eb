//! The drivers of the object layer, each by itself: what an owner, a member and a host's objects
//! ask of stores, in which order, and what they do when a store holds, refuses or forgets. No load
//! and no chance in here; those are the sweeps.

mod growth;
mod host_objects;
mod hosts;
mod member_recovery;
mod resync;
mod takeover;
