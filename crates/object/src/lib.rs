//! Objects: a virtual block device made of mirrored legs, ordered by one owner at a time.
//!
//! The mirror protocol (rules R1-R22, `docs/mirror.md`) is here. Read from the ground up:
//!
//! - `limits`, `ranges`, `message`, `record_rules`, `placement`, `promised`: bounds, range
//!   locks, what goes over the wire, what a record keeps, where components go, how much in all;
//! - `events`, `hedge`, `ctx`, `failure`: what the owners of one host share, and what goes wrong;
//! - `grants`, `host_components`, `member`: the members' half, which serves;
//! - `member_client`: what members are asked, typed;
//! - `operation`, `leg`: what is in flight, and who has it; decisions without waiting;
//! - `owner`: the owner's half; `takeover` makes an owner;
//! - `host_objects`: all objects of one host; `client`: the front end's half, which asks.
//!
//! Knows components, never disks: even its own host's store is reached through `transport`.

pub mod client;
mod ctx;
mod events;
mod failure;
pub mod grants;
mod hedge;
mod host_components;
mod host_objects;
mod iops_limit;
mod layout;
mod leg;
pub mod limits;
pub mod member;
mod member_client;
pub mod message;
mod operation;
mod owner;
pub mod placement;
pub mod promised;
pub mod ranges;
mod record_rules;
mod takeover;

pub use client::ObjectVolume;
pub use ctx::Settings;
pub use events::Event;
pub use host_components::HostComponents;
pub use host_objects::{AdminHandler, HostObjects, HostService};
pub use owner::{CopyProgress, OwnedObject, ResizeError};
