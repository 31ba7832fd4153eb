//! One host's worth of Atoll, wired for any world: object layer, members, membership of the
//! cluster, care of objects that nobody uses, and management.
//!
//! The same code runs in the daemon and in the simulator; it does not know which. It knows no
//! front end and no REST: those are given volumes and call the management functions.
//!
//! From the ground up:
//! - `status`, `event_kinds`, `event_log`, `event_lines`, `error`, `repair_queue`,
//!   `volume_lock::table`, `directory_view`, `host_board`: data without a host;
//! - `node`: the state of a host that all its tasks share;
//! - `admin::{message, client}`, `transaction`: asking other hosts, and the directory;
//! - `membership`: who is in the cluster, and how each is;
//! - `volume_view`, `object_delete`, `volume_lock`: volumes, and having one to oneself;
//! - `manage`: what people ask for; `care`: what nobody asks for;
//! - `client_shard`, `admin::server`, `export`, `start`: what others ask of this host, its life.

mod admin;
mod care;
mod client_shard;
mod directory_view;
mod error;
mod event_kinds;
mod event_lines;
mod event_log;
mod export;
mod facts;
mod host_board;
mod manage;
mod membership;
mod node;
mod object_delete;
mod repair_queue;
mod start;
mod status;
mod transaction;
mod volume_lock;
mod volume_view;

pub use atoll_transport::CallError;
pub use error::ManageError;
pub use event_lines::{EVENT_LINE_MAX, EventLines, event_line, read_event_lines};
pub use event_log::{
    About, EVENTS_MAX, EventMark, EventSink, EventsKept, HostEvents, NodeEvent, Severity,
    merge_events,
};
pub use export::CountedVolume;
pub use facts::checks::{Check, CheckKind, CheckLevel};
pub use facts::resync::{ResyncCopy, ResyncFacts};
pub use facts::tasks::{Outcome, TaskBook, TaskFacts, Work};
pub use facts::{ClusterFacts, KnownHost, SpaceSum, VolumeState, host_name, volume_state};
pub use manage::create::CreateVolume;
pub use manage::remove_host::{HostRemoval, RemoveHost};
pub use manage::resize::Resize;
pub use manage::tokens::{TokenChange, joins_by};
pub use manage::upgrade::{HostLevels, Upgrade};
pub use membership::join::{JoinError, check_belongs, check_host_name, find_or_found};
pub use membership::twin::{Before, before};
pub use node::{Ended, Manager, Node, NodeConfig, OpenVolume, OtherLife, RemovedHost};
pub use start::{FirstShard, Life};
pub use status::{CopyStatus, FailureKind, GroupStatus, HostStatus, ObjectStatus};
pub use volume_lock::import::{IDLE_MAX, ImportLock};
pub use volume_lock::table::export_name;
pub use volume_view::{PlacementView, VolumeView};
