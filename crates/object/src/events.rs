//! What an administrator is told: kept until it is taken, and no more than [`EVENTS_MAX`].

use atoll_format::id::{Epoch, GroupId, HostId, ObjectId};
use std::cell::RefCell;
use std::collections::VecDeque;

/// Something that an administrator would want to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// This host begins to take the object over.
    TakingOver {
        /// Which.
        object: ObjectId,
        /// Its new epoch.
        epoch: Epoch,
    },
    /// This host owns the object.
    TookOver {
        /// Which.
        object: ObjectId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// This host no longer owns the object.
    OwnerStopped {
        /// Which.
        object: ObjectId,
        /// The epoch that ended.
        epoch: Epoch,
    },
    /// The directory was put back to an older state: members had promised more than its record
    /// had reached. Those that know most are its active ones again.
    RecordWasOlder {
        /// Which object's.
        object: ObjectId,
        /// Up to where its record was.
        epoch: Epoch,
        /// What a member had promised.
        promised: Epoch,
    },
    /// An absent member had promised more than the directory has reached, and its owner has served
    /// since: what the member alone had is given up, and it is made anew.
    MemberWasAhead {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
        /// What it had promised.
        promised: Epoch,
    },
    /// A member was taken out of an object.
    MemberDropped {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
        /// Why, for people.
        why: String,
    },
    /// A member is being brought up to date.
    ResyncStarted {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
    },
    /// A member is up to date again.
    ResyncDone {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
    },
    /// A member is due to be rebuilt elsewhere, and there is no place: told once, tried on.
    NoPlace {
        /// Which object.
        object: ObjectId,
        /// Why, for people.
        why: String,
    },
    /// A block whose checksum did not match was rewritten from a good copy.
    BlockRepaired {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
    },
    /// The last active copy has lost some of what it had acknowledged, or may have: it is what
    /// there is (R20).
    WritesLost {
        /// Which object.
        object: ObjectId,
        /// The copy's host.
        host: HostId,
    },
    /// A disk group had no room for new data of a client, for the first time in this episode.
    NoSpace {
        /// Which object.
        object: ObjectId,
        /// The host of the group.
        host: HostId,
        /// The group.
        group: GroupId,
    },
    /// The end of such an episode: there is room again.
    SpaceAgain {
        /// Which object.
        object: ObjectId,
    },
    /// No good copy of a block is left.
    BlockLost {
        /// Which object.
        object: ObjectId,
        /// First byte, in the object.
        at: u64,
    },
}

/// Events kept until they are taken; the oldest go first.
const EVENTS_MAX: usize = 1024;

/// The events of one host that nobody has taken yet.
#[derive(Default)]
pub(crate) struct EventLog(RefCell<VecDeque<(u64, Event)>>);

impl EventLog {
    /// One more, at a time in milliseconds since 1970.
    pub fn push(&self, unix_ms: u64, event: Event) {
        let mut events = self.0.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back((unix_ms, event));
        assert!(events.len() <= EVENTS_MAX, "{} events are kept", events.len());
    }

    /// Takes all of them, oldest first.
    pub fn take(&self) -> Vec<(u64, Event)> {
        self.0.borrow_mut().drain(..).collect()
    }
}
