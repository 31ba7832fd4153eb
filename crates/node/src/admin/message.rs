//! What hosts ask each other, and answer. The names are on the wire: a variant keeps its name.

use crate::event_log::{EventMark, HostEvents};
use crate::status::HostStatus;
use atoll_format::id::{ComponentId, HostId, ObjectId};
use atoll_format::record::LockRecord;
use atoll_object::ResizeError;
use atoll_world::Nanos;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How long another host may take to answer.
pub(crate) const ADMIN_DEADLINE: Nanos = Nanos::from_secs(3);
/// How long an owner may look for data in a volume; then it is taken to hold some.
pub(crate) const LOOK_FOR_DATA: Nanos = Nanos::from_ms(2_000);

/// How long another shard of the same host may take to answer.
pub(crate) const SIBLING_WAIT: Nanos = Nanos::from_ms(1_500);

const _: () = {
    // Whoever has asked the host waits for its shards.
    assert!(SIBLING_WAIT.0 < ADMIN_DEADLINE.0);
    // An owner says what it has found before who asked gives up.
    assert!(LOOK_FOR_DATA.0 < ADMIN_DEADLINE.0);
};

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "do")]
pub(crate) enum AdminRequest {
    /// [`HostStatus`].
    Status,
    /// Events of that host after that mark; from the beginning, those of a higher id than that.
    Events { after: EventMark, since: u64 },
    /// Whether the host has clients of an object.
    InUse { object: ObjectId },
    /// The same, and to open it for nobody but the holder of this lock from now on.
    Lock { lock: Box<LockRecord>, revision: u64 },
    /// That lock is gone.
    Unlock { object: ObjectId, token: u64 },
    /// Whether anything but zeros is in an object that the host owns.
    HoldsData { object: ObjectId },
    /// Grow an object that the host owns, if it has that size.
    Grow { object: ObjectId, from: u64, size_bytes: u64 },
    /// Set the ceiling in I/Os per second of an object that the host owns; 0: none.
    LimitIops { object: ObjectId, limit: u32 },
    /// Whether an object that the host owns has that size, and could be shrunk now.
    MayShrink { object: ObjectId, from: u64 },
    /// Shrink an object that the host owns, if it has that size, as long as its lock is at that
    /// revision.
    Shrink { object: ObjectId, from: u64, size_bytes: u64, lock: u64 },
    /// Start (or with rate 0 stop) a scrub of all its disk groups, or of one object's components.
    Scrub { object: Option<ObjectId>, bytes_per_second: u64 },
    /// Pause or limit resync.
    Resync { paused: bool, bytes_per_second: u64 },
    /// Become the owner if nobody else is: the object needs care.
    Adopt { object: ObjectId },
    /// Give up an object that the shard owns: another shard of its host is to take it.
    Release { object: ObjectId },
    /// Become the owner of an object in the place of that shard of the same host.
    TakeReleased { object: ObjectId, from: u8 },
    /// A block of a member on the asking host is damaged; the owner repairs it.
    BadBlock { object: ObjectId, component: ComponentId, block: u32 },
    /// Whether a copy of an object that the shard owns is lost: its disk group has failed.
    LookAtMember { object: ObjectId, component: ComponentId },
    /// What only the program around the node understands: for its [`Manager`].
    Manage { request: String },
}

/// An answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub(crate) enum AdminReply {
    Status {
        status: Box<HostStatus>,
    },
    Events {
        told: HostEvents,
    },
    Clients {
        clients: u32,
        reaches: BTreeSet<HostId>,
    },
    HoldsData {
        holds: bool,
    },
    /// Another host owns the object by now.
    NotOwner,
    /// It is not as it was when that was asked for; nothing was done.
    Changed,
    Done,
    Failed {
        why: String,
    },
    Managed {
        reply: String,
    },
}

impl From<ResizeError> for AdminReply {
    fn from(error: ResizeError) -> Self {
        match error {
            ResizeError::NotOwner => Self::NotOwner,
            ResizeError::Changed => Self::Changed,
            ResizeError::Refused(why) => Self::Failed { why },
        }
    }
}

/// Who asked reads what was answered.
pub(crate) fn audit_reply(answer: &AdminReply, json: &[u8]) {
    let read: AdminReply = serde_json::from_slice(json).expect("an answer that nobody reads");
    // Text keeps a fraction to its last digit but one.
    let has_fractions = matches!(answer, AdminReply::Status { .. });
    assert!(has_fractions || read == *answer, "{read:?} is read where {answer:?} was said");
    if let (AdminReply::Status { status }, AdminReply::Status { status: read }) = (answer, &read) {
        assert_eq!(status.components, read.components, "bytes of the copies of {}", status.id);
        assert_eq!(status.open_volumes, read.open_volumes, "clients on {}", status.id);
        assert_eq!(status.reaches, read.reaches, "hosts that {} reaches", status.id);
    }
}
