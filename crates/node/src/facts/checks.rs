//! What is not as it should be, with what to do about it.
//!
//! Invariant: a check says what is so at this moment, never what it was: it is gone when the reason
//! is.

use super::{ClusterFacts, SpaceSum, VolumeState, host_name};
use crate::status::{FailureKind, GroupStatus};
use crate::volume_view::VolumeView;
use atoll_format::record::{HostRecord, MemberRecord, MemberState};
use atoll_format::units::iec;

/// Space in use, in percent, from which on there is a warning, and worse.
const FULL_WARNING: u64 = 80;
/// See [`FULL_WARNING`].
const FULL_CRITICAL: u64 = 95;
/// Space in use, in percent, from which on there is a warning if more is promised than there is.
const PROMISED_WARNING: u64 = 60;
/// Part of the limit of what may be promised, in percent, from which on there is a warning.
const LIMIT_WARNING: u64 = 90;
/// Part of a write log in use, from which on writers may wait for it.
const LOG_WARNING: f64 = 0.95;

const MORE_ROOM: &str = "delete volumes, discard what guests do not need, or add disks or hosts";

/// What is checked. Each has a row in `docs/operations.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs, reason = "each is described by its row")]
pub enum CheckKind {
    HostDown,
    HostLeaving,
    HostUnknown,
    HostUntold,
    GroupFailed,
    NoDisks,
    DiskUnused,
    NearlyFull,
    PromisedMore,
    PromisedLimit,
    GroupNearlyFull,
    GroupCrowded,
    LogFull,
    NoSpace,
    VolumeInaccessible,
    VolumeDegraded,
    VolumeResyncing,
    ChecksumErrors,
    UpgradePossible,
}

impl CheckKind {
    /// As the interface calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostDown => "host-down",
            Self::HostLeaving => "host-leaving",
            Self::HostUnknown => "host-unknown",
            Self::HostUntold => "host-untold",
            Self::GroupFailed => "group-failed",
            Self::NoDisks => "no-disks",
            Self::DiskUnused => "disk-unused",
            Self::NearlyFull => "nearly-full",
            Self::PromisedMore => "promised-more",
            Self::PromisedLimit => "promised-limit",
            Self::GroupNearlyFull => "group-nearly-full",
            Self::GroupCrowded => "group-crowded",
            Self::LogFull => "log-full",
            Self::NoSpace => "no-space",
            Self::VolumeInaccessible => "volume-inaccessible",
            Self::VolumeDegraded => "volume-degraded",
            Self::VolumeResyncing => "volume-resyncing",
            Self::ChecksumErrors => "checksum-errors",
            Self::UpgradePossible => "upgrade-possible",
        }
    }
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CheckLevel {
    /// It gets worse, or takes something away that is not needed now.
    Warning,
    /// Clients have errors, or wait, or will soon.
    Critical,
}

/// One check that did not pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Check {
    /// Which.
    pub kind: CheckKind,
    /// How bad it is.
    pub level: CheckLevel,
    /// A sentence.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Check {
    fn warning(kind: CheckKind, message: String, remedy: &str) -> Self {
        Self { kind, level: CheckLevel::Warning, message, remedy: remedy.into() }
    }

    fn critical(kind: CheckKind, message: String, remedy: &str) -> Self {
        Self { level: CheckLevel::Critical, ..Self::warning(kind, message, remedy) }
    }

    /// A host does not use disks that it is configured to use; `why` is a clause.
    pub fn disk_unused(host: &str, disks: &str, why: &str) -> Self {
        let message = format!("host {host} does not use {disks}: {why}");
        Self::warning(CheckKind::DiskUnused, message, &format!("atoll disk list --host {host}"))
    }
}

/// What to do about a disk group that has failed: replacing a disk that only has no room, or may
/// not be written, would throw a good copy away.
fn remedy_of(cause: Option<FailureKind>) -> &'static str {
    match cause {
        Some(FailureKind::NoRoom) => {
            "make room where the disk's file lies, then restart the host: its copies are still good"
        }
        Some(FailureKind::ReadOnly) => {
            "make the disk writable again, then restart the host: its copies are still good"
        }
        Some(FailureKind::Broken) => "replace the disk, restart the host, atoll group create",
        // Its host does not answer, or is of an older release.
        None => "if the disk is broken: replace it, restart the host, atoll group create",
    }
}

/// How bad it is that so much is in use.
fn fill_level(percent: u64) -> Option<CheckLevel> {
    assert!(percent <= 100, "{percent} % are in use");
    match percent {
        FULL_CRITICAL.. => Some(CheckLevel::Critical),
        FULL_WARNING.. => Some(CheckLevel::Warning),
        _ => None,
    }
}

impl ClusterFacts {
    /// Checks of the whole cluster that did not pass.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = Vec::new();
        self.check_hosts(&mut checks);
        self.check_space(&mut checks);
        for (record, _, status) in &self.hosts {
            for group in status.iter().flat_map(|status| &status.groups) {
                check_group(record, group, &mut checks);
            }
        }
        for volume in &self.volumes {
            self.check_volume(volume, &mut checks);
        }
        let wrong = self.checksum_errors();
        if wrong > 0 {
            let message = format!("{wrong} checksums did not match since the hosts started");
            let remedy = "repaired from other copies; 'atoll events' names the disks";
            checks.push(Check::warning(CheckKind::ChecksumErrors, message, remedy));
        }
        if self.next_level > self.level {
            let message = format!(
                "the cluster is at feature level {}, and the releases on all hosts know {}",
                self.level, self.next_level
            );
            let remedy = "atoll cluster upgrade --commit, once no older release is to run again";
            checks.push(Check::warning(CheckKind::UpgradePossible, message, remedy));
        }
        let is_said = |check: &Check| !check.message.is_empty() && !check.remedy.is_empty();
        assert!(checks.iter().all(is_said), "a check without words: {checks:?}");
        checks
    }

    /// The check of a host that did not tell what only it knows, for that reason; none if another
    /// one is about it already.
    pub fn untold(&self, host: &str, why: &str) -> Option<Check> {
        let mut hosts = self.hosts.iter();
        // Alive, and yet it does not tell: what it alone knows may be anything.
        hosts.find(|(record, answers, status)| {
            record.name == host && *answers && status.is_some()
        })?;
        let message = format!("host {host} {why}: its disks and clients are not known");
        Some(Check::warning(CheckKind::HostUntold, message, "atoll host list"))
    }

    fn check_hosts(&self, checks: &mut Vec<Check>) {
        for (record, answers, status) in &self.hosts {
            if self.leaving.contains(&record.id) {
                let is_there = |volume: &&VolumeView| {
                    let lost = |m: &MemberRecord| {
                        matches!(m.state, MemberState::Absent { lost: true, .. })
                    };
                    volume.record.members().any(|(_, m)| m.host == record.id && !lost(m))
                };
                let count = self.volumes.iter().filter(is_there).count();
                let message = format!(
                    "host {} is being removed: its copies of {count} volumes are not recorded as \
                     lost yet",
                    record.name
                );
                let remedy = "it goes on by itself as soon as each of these volumes is served";
                checks.push(Check::warning(CheckKind::HostLeaving, message, remedy));
            } else if !answers {
                let message = format!("host {} does not answer", record.name);
                let remedy = "start its daemon, or look at its log";
                checks.push(Check::warning(CheckKind::HostDown, message, remedy));
            } else if status.is_none() {
                let message = format!("host {} has not told yet how it is", record.name);
                let remedy = "it is asked every two seconds";
                checks.push(Check::warning(CheckKind::HostUnknown, message, remedy));
            }
            for group in record.groups.iter().filter(|group| !group.healthy) {
                let message = format!(
                    "disk group {} on host {} has failed: {}",
                    group.id, record.name, group.failure
                );
                let mut said = status.iter().flat_map(|status| &status.groups);
                let cause = said.find(|said| said.id == group.id).and_then(|said| said.cause);
                checks.push(Check::critical(CheckKind::GroupFailed, message, remedy_of(cause)));
            }
        }
        if self.hosts.iter().all(|(record, ..)| record.groups.is_empty()) {
            let message = "no disk group has been created".into();
            let remedy = "atoll disk list; atoll group create DISK";
            checks.push(Check::warning(CheckKind::NoDisks, message, remedy));
        }
    }

    fn check_space(&self, checks: &mut Vec<Check>) {
        let percent = self.space().unwrap_or_default().percent_used();
        if let Some(level) = fill_level(percent) {
            let message = format!("{percent} % of the space are in use");
            let check = Check::warning(CheckKind::NearlyFull, message, MORE_ROOM);
            checks.push(Check { level, ..check });
        }
        let promised = self.promised();
        let is_more = promised.promised_bytes > promised.exist_bytes;
        if is_more && (PROMISED_WARNING..FULL_WARNING).contains(&percent) {
            let message = format!(
                "volumes may grow to {} on disks, there are {}, and {percent} % are in use",
                iec(promised.promised_bytes),
                iec(promised.exist_bytes)
            );
            checks.push(Check::warning(CheckKind::PromisedMore, message, MORE_ROOM));
        }
        let (part, limit) = (promised.percent().unwrap_or(0), promised.limit_percent);
        if part * 100 >= u64::from(limit) * LIMIT_WARNING {
            let message = format!(
                "volumes may grow to {} on disks, {part} % of the {} that exist: beyond {limit} % \
                 no volume can be made or grown",
                iec(promised.promised_bytes),
                iec(promised.exist_bytes)
            );
            let remedy = "add disk groups, delete volumes, or raise the limit: 'atoll cluster set \
                          --promised-limit'";
            checks.push(Check::warning(CheckKind::PromisedLimit, message, remedy));
        }
    }

    fn check_volume(&self, volume: &VolumeView, checks: &mut Vec<Check>) {
        let name = &volume.name;
        if let Some((host, group)) = volume.owner.as_ref().and_then(|owner| owner.no_space) {
            let host = host_name(&self.hosts, host);
            let message = format!(
                "writes of volume {name} are refused for want of space: disk group {group} on host \
                 {host} is full"
            );
            checks.push(Check::critical(CheckKind::NoSpace, message, MORE_ROOM));
        }
        match self.state(volume) {
            VolumeState::Inaccessible => {
                let wanted = volume.record.members().map(|(_, member)| member);
                let wanted = wanted.filter(|m| m.state.is_active() && !self.is_there(m));
                let missing: Vec<String> = wanted
                    .map(|m| match (self.answers(m.host), host_name(&self.hosts, m.host)) {
                        (true, host) => format!("disk group {} on host {host}", m.group),
                        (false, host) => format!("host {host}"),
                    })
                    .collect();
                let message = match missing.is_empty() {
                    true => format!("volume {name} has no copy that is in sync"),
                    false => format!("volume {name} waits for {}", missing.join(", ")),
                };
                let remedy = "bring what it waits for back; 'atoll disk list' has the reasons";
                checks.push(Check::critical(CheckKind::VolumeInaccessible, message, remedy));
            }
            VolumeState::Degraded => {
                let message = format!("volume {name} has lost a copy");
                let remedy = "it is restored by itself";
                checks.push(Check::warning(CheckKind::VolumeDegraded, message, remedy));
            }
            VolumeState::Resyncing => {
                let message = format!("a copy of volume {name} is brought up to date");
                let remedy = "atoll resync show";
                checks.push(Check::warning(CheckKind::VolumeResyncing, message, remedy));
            }
            VolumeState::Creating | VolumeState::Deleting | VolumeState::Healthy => {}
        }
    }
}

/// One full group stops the volumes that it holds, however much room the others have.
fn check_group(host: &HostRecord, group: &GroupStatus, checks: &mut Vec<Check>) {
    let of = host.groups.iter().find(|of| of.id == group.id);
    let paths: Vec<&str> =
        of.iter().flat_map(|of| &of.disks).map(|disk| disk.path.as_str()).collect();
    let name = format!("{} ({}) on host {}", group.id, paths.join(", "), host.name);
    let (used_bytes, free_bytes) = (group.used_bytes, group.free_bytes);
    let space = SpaceSum { used_bytes, free_bytes, ..SpaceSum::default() };
    let percent = space.percent_used();
    if let Some(level) = fill_level(percent).filter(|_| group.failure.is_empty()) {
        let message = format!("{percent} % of disk group {name} are in use");
        let check = Check::warning(CheckKind::GroupNearlyFull, message, MORE_ROOM);
        checks.push(Check { level, ..check });
    }
    if group.free_components == Some(0) {
        let message = format!(
            "disk group {name} holds {} components, as many as it can: no volume can be made or \
             rebuilt there",
            group.components
        );
        let remedy = "delete volumes that are not needed, or add disk groups";
        checks.push(Check::warning(CheckKind::GroupCrowded, message, remedy));
    }
    if group.log_fill >= LOG_WARNING {
        let part = (group.log_fill * 100.0) as u64;
        let message = format!("the write log of disk group {name} is {part} % full");
        let remedy = "writers wait for its disks; 'atoll events' says which are slow";
        checks.push(Check::warning(CheckKind::LogFull, message, remedy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::{cluster, volume};
    use atoll_format::id::{GroupId, HostId, Seq};
    use atoll_format::level::Level;
    use atoll_format::record::MemberState;

    /// Names and levels of the checks of a cluster of two hosts with a volume, after a change.
    fn found(change: impl Fn(&mut ClusterFacts)) -> Vec<(&'static str, CheckLevel)> {
        let mut facts = cluster(2, vec![volume(&[1, 2])]);
        change(&mut facts);
        facts.checks().iter().map(|check| (check.kind.name(), check.level)).collect()
    }

    fn group(facts: &mut ClusterFacts, host: usize) -> &mut GroupStatus {
        &mut facts.hosts[host].2.as_mut().expect("it told").groups[0]
    }

    fn fill(facts: &mut ClusterFacts, host: usize, used: u64) {
        let group = group(facts, host);
        (group.used_bytes, group.free_bytes) = (used << 20, (1_000 - used) << 20);
    }

    #[test]
    fn what_is_wrong_is_found_and_nothing_else() {
        use CheckLevel::{Critical, Warning};
        assert_eq!(found(|_| ()), []);
        let only = |name, level| vec![(name, level)];
        assert_eq!(found(|c| c.hosts[1].2 = None), only("host-unknown", Warning));
        let down = found(|c| (c.hosts[1].1, c.hosts[1].2) = (false, None));
        assert_eq!(down, [("host-down", Warning), ("volume-degraded", Warning)]);
        let leaving = found(|c| {
            (c.hosts[1].1, c.hosts[1].2) = (false, None);
            c.leaving.insert(HostId(2));
        });
        assert_eq!(leaving, [("host-leaving", Warning), ("volume-degraded", Warning)]);
        let failed = found(|c| c.hosts[0].0.groups[0].healthy = false);
        assert_eq!(failed, [("group-failed", Critical), ("volume-degraded", Warning)]);
        let raised = |level, next| found(|c| (c.level, c.next_level) = (Level(level), Level(next)));
        assert_eq!(raised(2, 3), only("upgrade-possible", Warning));
        assert_eq!(raised(3, 3), []);
        let bare = found(|c| {
            c.hosts.iter_mut().for_each(|(record, ..)| record.groups.clear());
            c.volumes.clear();
        });
        assert_eq!(bare, only("no-disks", Warning));
        let state = |state| {
            move |c: &mut ClusterFacts| c.volumes[0].record.legs[0].members[1].state = state
        };
        let absent = MemberState::Absent { since: Seq(1), at_ms: 0, lost: true };
        assert_eq!(found(state(absent)), only("volume-degraded", Warning));
        let behind = MemberState::Resyncing { from: Seq(1) };
        assert_eq!(found(state(behind)), only("volume-resyncing", Warning));
        let none = found(|c| {
            state(absent)(c);
            c.volumes[0].record.legs[0].members[0].state = absent;
        });
        assert_eq!(none, only("volume-inaccessible", Critical));
        let refused = found(|c| {
            let owner = c.volumes[0].owner.as_mut().expect("it has one");
            owner.no_space = Some((HostId(1), GroupId(1)));
        });
        assert_eq!(refused, only("no-space", Critical));
        let wrong = found(|c| group(c, 0).checksum_errors = 1);
        assert_eq!(wrong, only("checksum-errors", Warning));
        let crowded = |free| found(move |c| group(c, 0).free_components = Some(free));
        assert_eq!(crowded(0), only("group-crowded", Warning));
        assert_eq!(crowded(1), []);
        let log = |fill| found(move |c| group(c, 0).log_fill = fill);
        assert_eq!(log(0.95), only("log-full", Warning));
        assert_eq!(log(0.94), []);
    }

    #[test]
    fn thresholds_of_space() {
        use CheckLevel::{Critical, Warning};
        // The volume may take 128 MiB of 2 GiB: 7 %.
        for (used, limit, gib, expected) in [
            ([100, 100], 1_000, 0, &[][..]),
            ([800, 100], 1_000, 0, &[("group-nearly-full", Warning)]),
            ([799, 100], 1_000, 0, &[]),
            ([950, 100], 1_000, 0, &[("group-nearly-full", Critical)]),
            (
                [800, 800],
                1_000,
                0,
                &[
                    ("nearly-full", Warning),
                    ("group-nearly-full", Warning),
                    ("group-nearly-full", Warning),
                ],
            ),
            (
                [950, 960],
                1_000,
                0,
                &[
                    ("nearly-full", Critical),
                    ("group-nearly-full", Critical),
                    ("group-nearly-full", Critical),
                ],
            ),
            // 4 GiB are promised of 2: 200 %.
            ([600, 600], 1_000, 2, &[("promised-more", Warning)]),
            ([599, 599], 1_000, 2, &[]),
            ([100, 100], 222, 2, &[("promised-limit", Warning)]),
            ([100, 100], 223, 2, &[]),
            ([600, 600], 1_000, 1, &[]),
        ] {
            let found = found(|c| {
                fill(c, 0, used[0]);
                fill(c, 1, used[1]);
                c.promised_limit_percent = limit;
                if gib > 0 {
                    c.volumes[0].record.size_bytes = gib << 30;
                }
            });
            assert_eq!(found, expected, "{used:?}, {limit}, {gib}");
        }
        // A group that has failed has no room for anybody, and is not nearly full.
        let failed = found(|c| {
            fill(c, 0, 990);
            group(c, 0).failure = "it broke".into();
            c.hosts[0].0.groups[0].healthy = false;
        });
        assert_eq!(failed, [("group-failed", Critical), ("volume-degraded", Warning)]);
    }

    #[test]
    fn a_disk_is_to_be_replaced_only_if_it_may_be_broken() {
        let remedy = |cause| {
            let mut facts = cluster(2, Vec::new());
            facts.hosts[0].0.groups[0].healthy = false;
            group(&mut facts, 0).cause = cause;
            facts.checks().swap_remove(0).remedy
        };
        assert!(remedy(Some(FailureKind::NoRoom)).starts_with("make room"));
        assert!(remedy(Some(FailureKind::ReadOnly)).starts_with("make the disk writable"));
        assert!(remedy(Some(FailureKind::Broken)).starts_with("replace the disk"));
        assert!(remedy(None).starts_with("if the disk is broken"));
    }

    #[test]
    fn a_volume_names_what_it_waits_for() {
        let mut facts = cluster(2, vec![volume(&[1, 2])]);
        (facts.hosts[0].1, facts.hosts[0].2) = (false, None);
        facts.hosts[1].0.groups[0].healthy = false;
        let checks = facts.checks();
        let inaccessible = checks.iter().find(|c| c.kind == CheckKind::VolumeInaccessible);
        assert_eq!(
            inaccessible.expect("it is").message,
            "volume v waits for host h1, disk group 0000000000000002 on host h2"
        );
    }

    #[test]
    fn who_does_not_tell_is_said_once() {
        let mut facts = cluster(3, Vec::new());
        facts.hosts[1].1 = false;
        facts.hosts[2].2 = None;
        let untold = |host| facts.untold(host, "does not answer").map(|check| check.message);
        let said = "host h1 does not answer: its disks and clients are not known";
        assert_eq!(untold("h1").as_deref(), Some(said));
        for host in ["h2", "h3", "unknown"] {
            assert_eq!(untold(host), None, "{host} has another check, or none");
        }
    }
}
