//! What hosts tell each other about themselves: facts for people and for placement, refreshed
//! every two seconds, never the ground of a decision about data.

use atoll_format::id::{ComponentId, Epoch, GroupId, HostId, ObjectId};
use atoll_world::components::FailureCause;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What took a disk group out of use: [`FailureCause`] as hosts tell it to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "as there")]
pub enum FailureKind {
    NoRoom,
    ReadOnly,
    Broken,
}

impl From<FailureCause> for FailureKind {
    fn from(cause: FailureCause) -> Self {
        match cause {
            FailureCause::NoRoom => Self::NoRoom,
            FailureCause::ReadOnly => Self::ReadOnly,
            FailureCause::Broken => Self::Broken,
        }
    }
}

/// One disk group now.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct GroupStatus {
    /// Which.
    pub id: GroupId,
    /// Bytes in all.
    pub capacity_bytes: u64,
    /// The most that one component can take, in bytes; none if the host is too old to say.
    #[serde(default)]
    pub device_bytes: Option<u64>,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes left.
    pub free_bytes: u64,
    /// Bytes that its components may take yet, if they are written in full.
    #[serde(default)]
    pub unwritten_bytes: u64,
    /// Size of the write log.
    pub log_bytes: u64,
    /// Part of the log in use, 0 to 1.
    pub log_fill: f64,
    /// Empty unless it has failed.
    pub failure: String,
    /// What kind of failure; none if it has not failed, or the host is too old to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<FailureKind>,
    /// Checksums that did not match since the host started.
    pub checksum_errors: u64,
    /// Errors of its devices since the host started.
    pub device_errors: u64,
    /// Operations appended since the host started.
    pub ops_written: u64,
    /// Payload bytes appended since the host started.
    pub bytes_written: u64,
    /// Blocks read for callers since the host started.
    pub blocks_read: u64,
    /// Of them those that had been read ahead.
    #[serde(default)]
    pub blocks_read_ahead: u64,
    /// Log batches written since the host started.
    pub log_batches: u64,
    /// Bytes written to the log, headers included.
    pub log_bytes_written: u64,
    /// Bytes moved to capacity.
    pub destaged_bytes: u64,
    /// Bytes of metadata written.
    pub metadata_bytes: u64,
    /// Blocks put in by resync and repair.
    pub blocks_copied_in: u64,
    /// Components in it.
    #[serde(default)]
    pub components: u32,
    /// Components that can still be made in it; none if the host is too old to say.
    #[serde(default)]
    pub free_components: Option<u32>,
    /// Scrub: blocks looked at in this pass.
    pub scrub_checked: u64,
    /// Scrub: blocks to look at.
    pub scrub_total: u64,
    /// Scrub: blocks that did not match.
    pub scrub_bad: u64,
    /// Scrub: a pass is running.
    pub scrub_running: bool,
    /// Scrub: when the pass began, in milliseconds since 1970; 0: none has.
    #[serde(default)]
    pub scrub_began_ms: u64,
    /// Scrub: when it ended or was stopped, if it has.
    #[serde(default)]
    pub scrub_ended_ms: Option<u64>,
    /// Scrub: it came to its end.
    #[serde(default)]
    pub scrub_whole: bool,
}

/// A copy that is behind, as its object's owner sees it: one that has begun to be brought up to
/// date, over all attempts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CopyStatus {
    /// Which.
    pub component: ComponentId,
    /// An attempt is under way.
    pub running: bool,
    /// Upper bound of the bytes left to compare or copy.
    pub bytes_left: u64,
    /// Bytes compared or copied.
    pub bytes_done: u64,
    /// Bytes copied.
    pub bytes_copied: u64,
    /// Bytes compared or copied per second of late; 0: unknown, or nothing moves.
    pub done_per_second: u64,
    /// Bytes copied per second of late; as above.
    pub copied_per_second: u64,
    /// Seconds since the first attempt began.
    pub seconds: f64,
}

/// The copy that is brought up to date now; others wait for their turn.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunningCopy {
    /// Compared or copied so far of it.
    pub resync_bytes_done: u64,
    /// Which; none: none is.
    #[serde(default)]
    pub resync_component: Option<ComponentId>,
    /// Copied so far of it.
    pub resync_bytes_copied: u64,
    /// Seconds since it was begun.
    pub resync_seconds: f64,
}

/// One object as its owner sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ObjectStatus {
    /// Which.
    pub id: ObjectId,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// A member is being brought up to date.
    pub resyncing: bool,
    /// Upper bound of what is left, in bytes, of the copies that have been begun.
    pub resync_bytes_left: u64,
    /// For hosts of older releases, which do not know `copies`: left out from
    /// [`Level::COPIES_ONLY`](atoll_format::level::Level::COPIES_ONLY) on.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub running_copy: Option<RunningCopy>,
    /// Copies that have been begun, and are not up to date.
    #[serde(default)]
    pub copies: Vec<CopyStatus>,
    /// The host and disk group that have no room for new data of its clients, if there are any.
    #[serde(default)]
    pub no_space: Option<(HostId, GroupId)>,
    /// Writes of clients that were refused for want of space, since this owner began.
    #[serde(default)]
    pub no_space_answers: u64,
    /// Reads and writes of guests since this owner began.
    pub guest_ops: u64,
}

/// One host now.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HostStatus {
    /// Which.
    pub id: HostId,
    /// Its disk groups.
    pub groups: Vec<GroupStatus>,
    /// Objects it owns.
    pub objects: Vec<ObjectStatus>,
    /// Bytes of capacity that each of its components uses.
    pub components: BTreeMap<ComponentId, u64>,
    /// Volumes that its front ends have open, with the number of clients.
    pub open_volumes: BTreeMap<ObjectId, u32>,
    /// Hosts that it is connected to, itself included.
    #[serde(default)]
    pub reaches: BTreeSet<HostId>,
    /// Resync is paused on it.
    pub resync_paused: bool,
    /// Bytes per second that resync may use; 0: no limit.
    pub resync_limit: u64,
    /// Seconds since it started.
    pub uptime_s: f64,
}

/// The most that the figures of one host come to, all together: 64 PiB is more than a host can
/// have. The sum over 255 hosts fits into 64 bits, and so does a hundred times those of one host.
const FIGURES_MAX: u128 = 1 << 56;

impl HostStatus {
    /// Whether one can reckon with what another host says of itself. All figures that are added
    /// up, or multiplied by 100, are looked at; times, rates that are only shown, and what its
    /// components may take yet are not.
    pub(crate) fn is_plausible(&self) -> bool {
        let of_group = |g: &GroupStatus| {
            let space = [g.capacity_bytes, g.used_bytes, g.free_bytes];
            let counts = [g.checksum_errors, g.scrub_checked, g.scrub_total, g.scrub_bad];
            sum(space) + sum(counts)
        };
        let of_copy = |c: &CopyStatus| {
            sum([c.bytes_left, c.bytes_done, c.bytes_copied, c.done_per_second])
                + sum([c.copied_per_second])
        };
        let of_object = |o: &ObjectStatus| {
            let copies: u128 = o.copies.iter().map(of_copy).sum();
            copies + sum([o.resync_bytes_left, o.no_space_answers])
        };
        let groups: u128 = self.groups.iter().map(of_group).sum();
        let objects: u128 = self.objects.iter().map(of_object).sum();
        let clients = sum(self.open_volumes.values().map(|&clients| u64::from(clients)));
        groups + objects + clients + sum(self.components.values().copied()) <= FIGURES_MAX
    }
}

fn sum(figures: impl IntoIterator<Item = u64>) -> u128 {
    figures.into_iter().map(u128::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::status;

    #[test]
    fn what_older_releases_need_is_left_out_where_there_are_none() {
        let object = |running_copy| ObjectStatus {
            id: ObjectId(1),
            epoch: Epoch(1),
            resyncing: false,
            resync_bytes_left: 0,
            running_copy,
            copies: Vec::new(),
            no_space: None,
            no_space_answers: 0,
            guest_ops: 0,
        };
        let old = RunningCopy {
            resync_bytes_done: 1,
            resync_component: Some(ComponentId(2)),
            resync_bytes_copied: 3,
            resync_seconds: 4.5,
        };
        for object in [object(Some(old)), object(None)] {
            let json = serde_json::to_string(&object).unwrap();
            let fields = ["bytes_done", "component", "bytes_copied", "seconds"];
            for field in fields.map(|field| format!("\"resync_{field}\"")) {
                assert_eq!(json.contains(&field), object.running_copy.is_some(), "{json}");
            }
            assert_eq!(serde_json::from_str::<ObjectStatus>(&json).unwrap(), object);
        }
    }

    #[test]
    fn a_host_with_figures_that_cannot_be_is_not_believed() {
        type Change<'a> = &'a dyn Fn(&mut HostStatus, u64);
        let copy = CopyStatus {
            component: ComponentId(1),
            running: true,
            bytes_left: 0,
            bytes_done: 0,
            bytes_copied: 0,
            done_per_second: 0,
            copied_per_second: 0,
            seconds: 1.0,
        };
        let object = ObjectStatus {
            id: ObjectId(1),
            epoch: Epoch(1),
            resyncing: true,
            resync_bytes_left: 0,
            running_copy: None,
            copies: vec![copy],
            no_space: None,
            no_space_answers: 0,
            guest_ops: 0,
        };
        let with = |change: Change<'_>, figure| {
            let mut status = status(1);
            status.objects = vec![object.clone()];
            change(&mut status, figure);
            status
        };
        let changes: [Change<'_>; 17] = [
            &|s, n| s.groups[0].capacity_bytes = n,
            &|s, n| s.groups[0].used_bytes = n,
            &|s, n| s.groups[0].free_bytes = n,
            &|s, n| s.groups[0].checksum_errors = n,
            &|s, n| s.groups[0].scrub_checked = n,
            &|s, n| s.groups[0].scrub_total = n,
            &|s, n| s.groups[0].scrub_bad = n,
            &|s, n| s.objects[0].resync_bytes_left = n,
            &|s, n| s.objects[0].no_space_answers = n,
            &|s, n| s.objects[0].copies[0].bytes_left = n,
            &|s, n| s.objects[0].copies[0].bytes_done = n,
            &|s, n| s.objects[0].copies[0].bytes_copied = n,
            &|s, n| s.objects[0].copies[0].done_per_second = n,
            &|s, n| s.objects[0].copies[0].copied_per_second = n,
            &|s, n| s.components = BTreeMap::from([(ComponentId(1), n)]),
            // Each of them is possible, together they are not.
            &|s, n| {
                s.groups = vec![GroupStatus { free_bytes: n / 256, ..s.groups[0].clone() }; 512]
            },
            &|s, n| {
                let some = |id| (ComponentId(id), n / 256);
                s.components = (0..512).map(some).collect();
            },
        ];
        for (i, change) in changes.into_iter().enumerate() {
            assert!(with(change, 1 << 50).is_plausible(), "change {i}");
            assert!(!with(change, u64::MAX).is_plausible(), "change {i}");
        }
    }
}
