//! Episodes in which a disk group has no room for new chunks of an object. Pure.
//!
//! Invariant: an episode begins when a write is refused, and ends when a new chunk finds room, or
//! when the group has room again and nobody was refused of late.

use atoll_format::id::{GroupId, HostId};
use atoll_world::Nanos;
use std::cell::Cell;

/// An episode ends by itself when nobody was refused for so long.
const QUIET: Nanos = Nanos::from_secs(10);

/// The episodes of one object, as its present owner has seen them.
#[derive(Default)]
pub(crate) struct NoSpace {
    /// The group that had no room for the last new chunk; none: there is no episode.
    group: Cell<Option<(HostId, GroupId)>>,
    /// When a write was refused last.
    at: Cell<Nanos>,
    refused: Cell<u64>,
}

impl NoSpace {
    /// A write was refused, since that group has no room. True if an episode begins.
    pub fn refuse(&self, host: HostId, group: GroupId, now: Nanos) -> bool {
        self.refused.set(self.refused.get() + 1);
        self.at.set(now);
        self.group.replace(Some((host, group))).is_none()
    }

    /// There is room for new chunks. True if an episode ends.
    pub fn has_room(&self) -> bool {
        self.group.take().is_some()
    }

    /// Its host says that the group of the episode has room. True if the episode ends: not while
    /// writes are refused all the same, since a group may be out of more than bytes.
    pub fn group_has_room(&self, now: Nanos) -> bool {
        now.since(self.at.get()) >= QUIET && self.has_room()
    }

    /// The group without room, if there is an episode.
    pub fn group(&self) -> Option<(HostId, GroupId)> {
        self.group.get()
    }

    /// How many writes have been refused in all.
    pub fn refused(&self) -> u64 {
        self.refused.get()
    }
}

#[cfg(test)]
mod tests {
    use super::{NoSpace, QUIET};
    use atoll_format::id::{GroupId, HostId};
    use atoll_world::Nanos;

    #[test]
    fn an_episode_is_told_of_once_and_ends_with_room_or_in_silence() {
        let space = NoSpace::default();
        let (host, group, now) = (HostId(1), GroupId(2), Nanos::from_secs(100));
        assert!(!space.has_room(), "there was room all along");
        assert!(space.refuse(host, group, now));
        assert!(!space.refuse(host, group, now), "it goes on");
        assert_eq!((space.group(), space.refused()), (Some((host, group)), 2));
        assert!(space.has_room() && !space.has_room());
        assert!(space.refuse(host, group, now));
        assert!(!space.group_has_room(now + QUIET - Nanos(1)));
        assert!(space.group_has_room(now + QUIET));
        assert_eq!(space.group(), None);
    }
}
