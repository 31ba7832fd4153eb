//! What is known of the cluster at one moment, and what follows from it: how volumes are, which
//! checks do not pass, how far resync is, what became of tasks. Pure functions: nothing here asks
//! anybody, and none of it is the ground of a decision about data.

pub(crate) mod checks;
pub(crate) mod resync;
pub(crate) mod shard_balance;
pub(crate) mod tasks;

use crate::error::ManageError;
use crate::node::Node;
use crate::status::HostStatus;
use crate::volume_view::VolumeView;
use atoll_format::id::HostId;
use atoll_format::level::Level;
use atoll_format::record::{
    HostRecord, MemberRecord, ObjectRecord, ObjectState, PROMISED_LIMIT_PERCENT,
};
use atoll_object::promised::Promised;
use atoll_world::{Components, World};
use std::collections::BTreeSet;

/// A host's record, whether it answers, and what it last said if it answers and that is fresh.
pub type KnownHost = (HostRecord, bool, Option<HostStatus>);

/// Everything about the hosts and volumes of the cluster at one moment, as one host knows it.
#[derive(Clone, Debug)]
pub struct ClusterFacts {
    /// All hosts of the cluster.
    pub hosts: Vec<KnownHost>,
    /// Volumes, by name.
    pub volumes: Vec<VolumeView>,
    /// Hosts among them that are being removed.
    pub leaving: BTreeSet<HostId>,
    /// What may be promised, in percent of the space that exists.
    pub promised_limit_percent: u32,
    /// The cluster's feature level.
    pub level: Level,
    /// The newest that all hosts know, as this host sees it; never below `level`.
    pub next_level: Level,
}

/// How a volume is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeState {
    /// It is being made.
    Creating,
    /// It is being deleted.
    Deleting,
    /// A leg has no copy that can be used.
    Inaccessible,
    /// A copy is brought up to date.
    Resyncing,
    /// It has fewer copies than its policy says.
    Degraded,
    /// All copies are there.
    Healthy,
}

/// Space of disk groups, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceSum {
    /// In all.
    pub capacity_bytes: u64,
    /// In use.
    pub used_bytes: u64,
    /// Left for new data.
    pub free_bytes: u64,
}

impl SpaceSum {
    /// Part in use of what can be used at all, in percent: reserves are neither.
    fn percent_used(self) -> u64 {
        let all = u128::from(self.used_bytes) + u128::from(self.free_bytes);
        let percent = (u128::from(self.used_bytes) * 100).checked_div(all).unwrap_or(0) as u64;
        assert!(percent <= 100, "{percent} % of {self:?} are in use");
        percent
    }
}

impl HostStatus {
    /// The space of its disk groups; one that has failed has no room for anybody.
    pub fn space(&self) -> SpaceSum {
        let mut space = SpaceSum::default();
        for group in self.groups.iter().filter(|group| group.failure.is_empty()) {
            space.capacity_bytes += group.capacity_bytes;
            space.used_bytes += group.used_bytes;
            space.free_bytes += group.free_bytes;
        }
        space
    }
}

/// The name of a host; its id if it is not known.
pub fn host_name(hosts: &[KnownHost], id: HostId) -> String {
    let found = hosts.iter().find(|(record, ..)| record.id == id);
    found.map_or_else(|| id.to_string(), |(record, ..)| record.name.clone())
}

/// How a volume is, by its record and by which of its copies can be used.
pub fn volume_state(
    record: &ObjectRecord,
    is_there: impl Fn(&MemberRecord) -> bool,
) -> VolumeState {
    match record.state {
        ObjectState::Creating => return VolumeState::Creating,
        ObjectState::Deleting => return VolumeState::Deleting,
        ObjectState::Ready => {}
    }
    let wanted = record.policy.members();
    assert!(wanted > 0, "{} is to have no copy", record.id);
    let (mut degraded, mut resyncing) = (false, false);
    for leg in &record.legs {
        let usable = |m: &&MemberRecord| m.state.is_active() && is_there(m);
        let active = leg.members.iter().filter(usable).count();
        if active == 0 {
            return VolumeState::Inaccessible;
        }
        degraded |= active < wanted;
        resyncing |= leg.members.iter().any(|m| m.state.is_resyncing());
    }
    match (resyncing, degraded) {
        (true, _) => VolumeState::Resyncing,
        (false, true) => VolumeState::Degraded,
        (false, false) => VolumeState::Healthy,
    }
}

impl Default for ClusterFacts {
    /// Nothing is known, and no limit has been set.
    fn default() -> Self {
        let promised_limit_percent = PROMISED_LIMIT_PERCENT;
        let (hosts, volumes, leaving) = (Vec::new(), Vec::new(), BTreeSet::new());
        let (level, next_level) = (Level::FIRST, Level::FIRST);
        Self { hosts, volumes, leaving, promised_limit_percent, level, next_level }
    }
}

impl ClusterFacts {
    /// Whether a host answers.
    pub fn answers(&self, id: HostId) -> bool {
        self.hosts.iter().any(|(record, answers, _)| record.id == id && *answers)
    }

    /// Whether a copy can be used: its host answers, and the disk group that has it is in use.
    fn is_there(&self, member: &MemberRecord) -> bool {
        self.hosts.iter().any(|(record, answers, _)| {
            let runs = || record.groups.iter().any(|g| g.id == member.group && g.healthy);
            record.id == member.host && *answers && runs()
        })
    }

    /// How a volume is.
    pub fn state(&self, volume: &VolumeView) -> VolumeState {
        volume_state(&volume.record, |member| self.is_there(member))
    }

    /// All space that answers; none if no host has told.
    pub fn space(&self) -> Option<SpaceSum> {
        let told = self.hosts.iter().filter_map(|(.., status)| status.as_ref());
        told.map(HostStatus::space).reduce(|sum, space| SpaceSum {
            capacity_bytes: sum.capacity_bytes + space.capacity_bytes,
            used_bytes: sum.used_bytes + space.used_bytes,
            free_bytes: sum.free_bytes + space.free_bytes,
        })
    }

    /// What all volumes could take on disks, all copies together, and what there is.
    pub fn promised(&self) -> Promised {
        let records = self.volumes.iter().map(|volume| &volume.record);
        let hosts = self.hosts.iter().map(|(record, ..)| record);
        Promised::of(records, hosts, self.promised_limit_percent)
    }

    /// Checksums that did not match, on all hosts that answer.
    pub fn checksum_errors(&self) -> u64 {
        let statuses = self.hosts.iter().filter_map(|(.., status)| status.as_ref());
        statuses.flat_map(|status| &status.groups).map(|group| group.checksum_errors).sum()
    }
}

impl<W: World, S: Components> Node<W, S> {
    /// The cluster at this moment, as this host knows it; of itself, as it is now.
    ///
    /// # Errors
    /// The directory does not answer, or what it holds cannot be read.
    pub async fn facts(&self) -> Result<ClusterFacts, ManageError> {
        let volumes = self.volumes().await?;
        let promised_limit_percent = self.promised_limit().await?;
        let mut hosts = self.hosts();
        let me = self.0.config.host;
        for (record, answers, status) in &mut hosts {
            assert!(*answers || record.id != me, "{} does not answer itself", record.name);
            assert!(*answers || status.is_none(), "{} is silent, and tells", record.name);
            if record.id == me {
                *status = Some(self.status());
            }
        }
        let ids = hosts.iter().map(|(record, ..)| record.id);
        let leaving: BTreeSet<HostId> = ids.filter(|&id| self.is_removed(id)).collect();
        let stay = hosts.iter().filter(|(record, ..)| !leaving.contains(&record.id));
        let levels = stay.map(|(record, ..)| self.0.view.levels(record.id, record.incarnation));
        let level = self.level();
        let next_level = self.next_level(level, levels);
        Ok(ClusterFacts { hosts, volumes, leaving, promised_limit_percent, level, next_level })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::status::{CopyStatus, GroupStatus, ObjectStatus};
    use atoll_format::id::{ComponentId, DiskId, Epoch, GroupId, Incarnation, ObjectId, Seq};
    use atoll_format::record::{
        DiskRecord, GroupRecord, GroupShape, LegRecord, MemberState, OwnerRecord, Policy,
        RECORD_VERSION,
    };
    use std::collections::BTreeMap;

    /// A host with one disk group of 1 GiB, of the same number.
    pub fn host(id: u64) -> HostRecord {
        HostRecord {
            version: RECORD_VERSION,
            id: HostId(id),
            name: format!("h{id}"),
            fault_domain: format!("h{id}"),
            incarnation: Incarnation(1),
            peers: Vec::new(),
            api: String::new(),
            groups: vec![GroupRecord {
                id: GroupId(id),
                shape: GroupShape::SingleTier,
                healthy: true,
                capacity_bytes: 1 << 30,
                disks: vec![DiskRecord {
                    id: DiskId(id),
                    path: format!("/dev/d{id}"),
                    size_bytes: 1 << 30,
                }],
                failure: String::new(),
                shard: 0,
            }],
            release: String::new(),
        }
    }

    /// What it says: a tenth of its space is in use.
    pub fn status(id: u64) -> HostStatus {
        HostStatus {
            id: HostId(id),
            groups: vec![GroupStatus {
                id: GroupId(id),
                capacity_bytes: 1 << 30,
                used_bytes: 100 << 20,
                free_bytes: 900 << 20,
                ..GroupStatus::default()
            }],
            objects: Vec::new(),
            components: BTreeMap::new(),
            open_volumes: BTreeMap::new(),
            reaches: BTreeSet::new(),
            resync_paused: false,
            resync_limit: 0,
            uptime_s: 1.0,
        }
    }

    /// A volume of 64 MiB with a copy on each of those hosts.
    pub fn volume(hosts: &[u64]) -> VolumeView {
        let members = hosts.iter().map(|&id| MemberRecord {
            component: ComponentId(id),
            host: HostId(id),
            group: GroupId(id),
            state: MemberState::Active,
        });
        VolumeView {
            name: "v".into(),
            policy: "default".into(),
            created_ms: 0,
            record: ObjectRecord {
                version: RECORD_VERSION,
                id: ObjectId(7),
                name: "v".into(),
                state: ObjectState::Ready,
                size_bytes: 64 << 20,
                policy: Policy { failures_to_tolerate: hosts.len() as u8 - 1, ..Policy::DEFAULT },
                epoch: Epoch(1),
                owner: Some(OwnerRecord { host: HostId(1), shard: 0, incarnation: Incarnation(1) }),
                seq_base: Seq(0),
                legs: vec![LegRecord { members: members.collect() }],
                attached: None,
                served: None,
                nonce: 0,
            },
            revision: 1,
            used_bytes: None,
            guest_bytes: None,
            open_on: Vec::new(),
            owner: Some(ObjectStatus {
                id: ObjectId(7),
                epoch: Epoch(1),
                resyncing: false,
                resync_bytes_left: 0,
                running_copy: None,
                copies: Vec::new(),
                no_space: None,
                no_space_answers: 0,
                guest_ops: 0,
            }),
        }
    }

    /// The cluster of those hosts and volumes; all hosts answer, and say how they are.
    pub fn cluster(hosts: u64, volumes: Vec<VolumeView>) -> ClusterFacts {
        ClusterFacts {
            hosts: (1..=hosts).map(|id| (host(id), true, Some(status(id)))).collect(),
            volumes,
            leaving: BTreeSet::new(),
            promised_limit_percent: 1_000,
            ..ClusterFacts::default()
        }
    }

    /// A volume of three copies: the first is up to date, the third is being copied, the second
    /// waits for its turn.
    pub fn resyncing_twice() -> VolumeView {
        let mut volume = volume(&[1, 2, 3]);
        for member in &mut volume.record.legs[0].members[1..] {
            member.state = MemberState::Resyncing { from: Seq(1) };
        }
        let owner = volume.owner.as_mut().expect("it has one");
        owner.resyncing = true;
        owner.copies = vec![CopyStatus {
            component: ComponentId(3),
            running: true,
            bytes_left: 30,
            bytes_done: 10,
            bytes_copied: 5,
            done_per_second: 5,
            copied_per_second: 2,
            seconds: 2.0,
        }];
        volume
    }

    #[test]
    fn a_volume_is_as_its_copies_are() {
        let absent = MemberState::Absent { since: Seq(1), at_ms: 0, lost: false };
        let behind = MemberState::Resyncing { from: Seq(1) };
        let active = MemberState::Active;
        for (states, away, expected) in [
            ([active, active], 0, VolumeState::Healthy),
            ([active, absent], 0, VolumeState::Degraded),
            ([active, behind], 0, VolumeState::Resyncing),
            ([active, active], 2, VolumeState::Degraded),
            ([active, active], 3, VolumeState::Degraded),
            ([active, behind], 1, VolumeState::Inaccessible),
            ([absent, absent], 0, VolumeState::Inaccessible),
        ] {
            let mut volume = volume(&[1, 2]);
            for (member, state) in volume.record.legs[0].members.iter_mut().zip(states) {
                member.state = state;
            }
            let mut facts = cluster(2, vec![volume.clone()]);
            match away {
                0 => {}
                // Its host is there, and its disk group is not.
                3 => facts.hosts[1].0.groups[0].healthy = false,
                host => facts.hosts[host - 1].1 = false,
            }
            assert_eq!(facts.state(&volume), expected, "{states:?}, {away} away");
        }
        let mut made = volume(&[1, 2]);
        made.record.state = ObjectState::Creating;
        assert_eq!(cluster(0, Vec::new()).state(&made), VolumeState::Creating);
    }

    #[test]
    fn space_is_that_of_groups_that_run_on_hosts_that_tell() {
        let mut facts = cluster(3, Vec::new());
        facts.hosts[0].2 = None;
        let failed = &mut facts.hosts[1].2.as_mut().expect("it told").groups[0];
        failed.failure = "it broke".into();
        let one =
            SpaceSum { capacity_bytes: 1 << 30, used_bytes: 100 << 20, free_bytes: 900 << 20 };
        assert_eq!(facts.space(), Some(one));
        assert_eq!(one.percent_used(), 10);
        facts.hosts.iter_mut().for_each(|(.., status)| *status = None);
        assert_eq!(facts.space(), None, "unknown is not 0");
    }
}
