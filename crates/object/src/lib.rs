//! Objects: a virtual block device made of mirrored legs, ordered by one owner at a time.
//!
//! The mirror protocol (rules R1-R22, `docs/protocol.md`) is here: the owner's half in `owner`,
//! `read`, `change`, `mend`, `resize`, `resync` and `takeover`, the members' half in `member` and
//! `grants`, the front end's half in `client`. `leg`, `grants`, `ranges` and `placement` decide
//! without waiting.
//!
//! Knows components, never disks: even its own host's store is reached through `transport`.

mod audit;
mod change;
pub mod client;
mod codec;
pub mod grants;
mod leg;
pub mod limits;
pub mod member;
mod mend;
pub mod message;
pub mod objects;
mod owner;
pub mod placement;
mod progress;
pub mod ranges;
mod read;
mod resize;
pub mod resync;
mod takeover;
mod tickets;

pub use client::ObjectVolume;
pub use objects::{Event, Objects};
pub use progress::CopyProgress;
pub use resize::ResizeError;
