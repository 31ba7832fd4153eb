//! Management of this host, on the shard: asks the node, and says what it says in the words of the
//! interface.

use super::meter::{Totals, add};
use super::tasks::Seen;
use super::{Engine, Running, disks, seconds};
use crate::control::{ChangeOptions, EventMarks, EventsRead, Sample, Scope, Told, Value};
use atoll_api::envelope::{Missing, rfc3339};
use atoll_api::types::{
    Cluster, ClusterPatch, Disk, DiskWipe, DiskWipeRequest, Event, Group, GroupCreate, GroupShape,
    GroupState, HealthCheck, Host, Io, Level, LockPurpose, Member, MemberState, Method, Placement,
    Policy, PolicyCheck, Resync, ResyncItem, Scrub, Session, Space, Task, TaskState, Volume,
    VolumeCreate, VolumeLock, VolumeLockRequest, VolumePatch, VolumeState,
};
use atoll_api::uri::Nbd;
use atoll_api::{Code, Problem};
use atoll_format::id::{GroupId, HostId, ObjectId};
use atoll_format::record::{self, HostRecord, ObjectRecord, ObjectState};
use atoll_format::units::{BLOCK, iec};
use atoll_node::{
    CreateVolume, GroupStatus, HostStatus, ManageError, NodeEvent, Resize, Severity, VolumeView,
    merge_events,
};
use atoll_object::placement::{Refusal, Remedy};
use atoll_object::promised::{Promised, promised_bytes};
use atoll_world::{Components, Nanos, World};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes per second and disk group of a scrub that names no rate: a disk of 4 TB in 11 hours.
const SCRUB_RATE: u64 = 100 << 20;
/// Space in use, in percent, from which on there is a warning, and worse.
const FULL_WARNING: u64 = 80;
/// See [`FULL_WARNING`].
const FULL_CRITICAL: u64 = 95;
/// Space in use, in percent, from which on there is a warning if more is promised than there is.
const PROMISED_WARNING: u64 = 60;
/// Part of the limit of what may be promised, in percent, from which on there is a warning.
const LIMIT_WARNING: u64 = 90;
/// Part of a write log in use, in percent, from which on writers may wait for it.
const LOG_WARNING: f64 = 0.95;
/// How long the metrics wait for the list of volumes.
const LIST_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Why a host is missing from an answer.
pub const SILENT: &str = "does not answer";

/// Everything about the hosts and volumes of the cluster at one moment, as this host knows it.
pub struct View {
    /// Record, whether it answers, what it last said.
    pub hosts: Vec<(HostRecord, bool, Option<HostStatus>)>,
    /// Volumes, by name.
    pub volumes: Vec<VolumeView>,
    /// What may be promised, in percent of the space that exists.
    pub promised_limit_percent: u32,
}

/// Says a failure of the node in the words of the interface.
pub fn problem(error: ManageError) -> Problem {
    let detail = error.to_string();
    match error {
        ManageError::NotFound { what, name } => Problem::not_found(what, &name),
        ManageError::Exists { what, .. } => {
            Problem::new(Code::Exists, detail).hint(format!("atoll {what} list"))
        }
        ManageError::Invalid(_) => Problem::new(Code::BadValue, detail),
        ManageError::CannotPlace(refusal) => cannot_place(&refusal),
        ManageError::InUse { name, .. } => Problem::new(Code::InUse, detail)
            .hint(format!("'atoll session list --volume {name}' names its clients")),
        ManageError::MayBeInUse { host, .. } => Problem::new(Code::InUse, detail)
            .hint(format!("start {host}; one that stays away is waited for half a minute")),
        ManageError::Locked { host, .. } => Problem::new(Code::InUse, detail).hint(format!(
            "it is over soon; an import that was given up, within a minute: 'atoll volume list' \
             on host {host}"
        )),
        ManageError::HoldsData { .. } => Problem::new(Code::WouldRiskData, detail)
            .hint("--yes replaces what it holds")
            .field("replace"),
        ManageError::TooSmall { name, wanted, .. } => Problem::new(Code::BadSize, detail)
            .hint(format!("atoll volume resize {name} {}", wanted.next_multiple_of(BLOCK))),
        ManageError::WouldShrink { name, size, .. } => Problem::new(Code::WouldRiskData, detail)
            .hint(format!("atoll volume resize {name} {size} --shrink"))
            .field("size_bytes"),
        ManageError::PolicyInUse { .. } => Problem::new(Code::InUse, detail),
        ManageError::Unknown(_) => {
            Problem::new(Code::TimedOut, detail).hint("atoll volume list; atoll events")
        }
        ManageError::NoAnswer(_) => {
            Problem::new(Code::TimedOut, format!("{detail}: whether it was done is not known"))
                .hint("atoll host list; then look before trying again")
        }
        ManageError::Conflict(_) => Problem::new(Code::Changed, detail).hint("look again"),
        ManageError::Directory(_) => Problem::new(
            Code::Unavailable,
            format!("the cluster's state cannot be read or changed: {detail}"),
        )
        .hint("running volumes go on; is the directory running?"),
        ManageError::Unreachable(_) => {
            Problem::new(Code::Unavailable, detail).hint("atoll host list")
        }
        ManageError::Failed(_) => Problem::new(Code::Failed, detail),
    }
}

fn cannot_place(refusal: &Refusal) -> Problem {
    let rule = Refusal { remedies: Vec::new(), ..refusal.clone() };
    let problem = Problem::new(Code::CannotPlace, rule.to_string());
    let remedies: Vec<String> = refusal.remedies.iter().map(Remedy::to_string).collect();
    if remedies.is_empty() { problem } else { problem.hint(remedies.join(", or ")) }
}

fn host_name(hosts: &[(HostRecord, bool, Option<HostStatus>)], id: HostId) -> String {
    let found = hosts.iter().find(|(record, ..)| record.id == id);
    found.map_or_else(|| id.to_string(), |(record, ..)| record.name.clone())
}

fn space_of(status: &HostStatus) -> Space {
    let mut space = Space::default();
    // A group that has failed has no room for anybody.
    for group in status.groups.iter().filter(|group| group.failure.is_empty()) {
        space.capacity_bytes += group.capacity_bytes;
        space.used_bytes += group.used_bytes;
        space.free_bytes += group.free_bytes;
    }
    space
}

/// What to do about a disk group that has failed: replacing a disk that only has no room, or may
/// not be written, would throw a good copy away.
fn remedy_of(failure: &str) -> &'static str {
    let is = |error: Errno| failure.contains(&format!("os error {})", error.raw_os_error()));
    if is(Errno::NOSPC) || is(Errno::DQUOT) {
        "make room where the disk's file lies, then restart the host: its copies are still good"
    } else if is(Errno::ROFS) || is(Errno::PERM) {
        "make the disk writable again, then restart the host: its copies are still good"
    } else {
        "replace the disk, restart the host, atoll group create"
    }
}

/// Part in use of what can be used at all, in percent: reserves are neither.
fn fill(used_bytes: u64, free_bytes: u64) -> u64 {
    let all = u128::from(used_bytes) + u128::from(free_bytes);
    (u128::from(used_bytes) * 100).checked_div(all).unwrap_or(0) as u64
}

/// How bad that is.
fn fill_level(percent: u64) -> Option<Level> {
    match percent {
        FULL_CRITICAL.. => Some(Level::Critical),
        FULL_WARNING.. => Some(Level::Warning),
        _ => None,
    }
}

/// Those of the cluster's hosts that do not tell.
pub fn missing(hosts: &[(HostRecord, bool, Option<HostStatus>)]) -> Vec<Missing> {
    let untold = hosts.iter().filter(|(_, answers, status)| !answers || status.is_none());
    let mut missing: Vec<Missing> = untold
        .map(|(record, answers, _)| Missing {
            host: record.name.clone(),
            why: if *answers { "has not told yet" } else { SILENT }.into(),
        })
        .collect();
    missing.sort();
    missing
}

/// How a volume is, by its record and by which of its copies can be used.
pub fn volume_state(
    record: &ObjectRecord,
    is_there: impl Fn(&record::MemberRecord) -> bool,
) -> VolumeState {
    match record.state {
        ObjectState::Creating => return VolumeState::Creating,
        ObjectState::Deleting => return VolumeState::Deleting,
        ObjectState::Ready => {}
    }
    let wanted = record.policy.members();
    let (mut degraded, mut resyncing) = (false, false);
    for leg in &record.legs {
        let usable = |m: &&record::MemberRecord| m.state.is_active() && is_there(m);
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

impl View {
    /// Of a cluster that has set no limit.
    fn of(hosts: Vec<(HostRecord, bool, Option<HostStatus>)>, volumes: Vec<VolumeView>) -> Self {
        Self { hosts, volumes, promised_limit_percent: record::PROMISED_LIMIT_PERCENT }
    }

    /// Whether a host answers.
    pub fn alive(&self, id: HostId) -> bool {
        self.hosts.iter().any(|(record, alive, _)| record.id == id && *alive)
    }

    /// Whether a host of that name answers, and has told how it is.
    pub fn tells(&self, name: &str) -> bool {
        let mut hosts = self.hosts.iter();
        hosts.any(|(record, answers, status)| record.name == name && *answers && status.is_some())
    }

    /// Whether a copy can be used: its host answers, and the disk group that has it is in use.
    fn is_there(&self, member: &record::MemberRecord) -> bool {
        self.hosts.iter().any(|(record, alive, _)| {
            let runs = || record.groups.iter().any(|g| g.id == member.group && g.healthy);
            record.id == member.host && *alive && runs()
        })
    }

    /// How a volume is.
    pub fn state(&self, volume: &VolumeView) -> VolumeState {
        volume_state(&volume.record, |member| self.is_there(member))
    }

    /// All space that answers; none if no host has told.
    pub fn space(&self) -> Option<Space> {
        let spaces = self.hosts.iter().filter_map(|(.., status)| status.as_ref()).map(space_of);
        spaces.reduce(|sum, space| Space {
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

    /// What is being brought up to date.
    pub fn resync(&self) -> Resync {
        let mut resync = Resync {
            paused: self.hosts.iter().any(|(.., s)| s.as_ref().is_some_and(|s| s.resync_paused)),
            limit_bytes_per_second: self
                .hosts
                .iter()
                .filter_map(|(.., status)| status.as_ref().map(|s| s.resync_limit))
                .max()
                .unwrap_or(0),
            bytes_left: 0,
            bytes_per_second: 0,
            seconds_left: None,
            items: Vec::new(),
        };
        let (mut slowest, mut done_per_second) = (0, 0);
        for volume in &self.volumes {
            let (mut left, mut rate) = (0, 0);
            for (leg, member) in volume.record.members() {
                let copies = volume.owner.iter().flat_map(|owner| &owner.copies);
                let copy = copies.into_iter().find(|copy| copy.component == member.component);
                // One that was begun is behind until it is done, whether an attempt runs or not.
                if !member.state.is_resyncing() && copy.is_none() {
                    continue;
                }
                resync.items.push(ResyncItem {
                    volume: volume.name.clone(),
                    leg: leg as u32,
                    component: member.component.to_string(),
                    host: host_name(&self.hosts, member.host),
                    running: copy.is_some_and(|copy| copy.running),
                    bytes_left: copy.map(|copy| copy.bytes_left),
                    bytes_done: copy.map_or(0, |copy| copy.bytes_copied),
                });
                left += copy.map_or(0, |copy| copy.bytes_left);
                rate += copy.map_or(0, |copy| copy.done_per_second);
                resync.bytes_per_second += copy.map_or(0, |copy| copy.copied_per_second);
            }
            resync.bytes_left += left;
            done_per_second += rate;
            slowest = slowest.max(left.checked_div(rate).unwrap_or(0));
        }
        if resync.bytes_left > 0 && done_per_second > 0 && !resync.paused {
            resync.seconds_left = Some((resync.bytes_left / done_per_second).max(slowest));
        }
        resync
    }

    /// Checks of the whole cluster that did not pass.
    pub fn checks(&self) -> Vec<HealthCheck> {
        let mut checks = Vec::new();
        let mut check = |name: &str, level, message: String, remedy: &str| {
            checks.push(HealthCheck { name: name.into(), level, message, remedy: remedy.into() });
        };
        for (record, answers, status) in &self.hosts {
            if !answers {
                let message = format!("host {} does not answer", record.name);
                check("host-down", Level::Warning, message, "start its daemon, or look at its log");
            } else if status.is_none() {
                let message = format!("host {} has not told yet how it is", record.name);
                check("host-unknown", Level::Warning, message, "it is asked every two seconds");
            }
            for group in record.groups.iter().filter(|group| !group.healthy) {
                let message = format!(
                    "disk group {} on host {} has failed: {}",
                    group.id, record.name, group.failure
                );
                let remedy = remedy_of(&group.failure);
                check("group-failed", Level::Critical, message, remedy);
            }
        }
        if self.hosts.iter().all(|(record, ..)| record.groups.is_empty()) {
            let remedy = "atoll disk list; atoll group create DISK";
            check("no-disks", Level::Warning, "no disk group has been created".into(), remedy);
        }
        let more_room = "delete volumes, discard what guests do not need, or add disks or hosts";
        let space = self.space().unwrap_or_default();
        let percent = fill(space.used_bytes, space.free_bytes);
        if let Some(level) = fill_level(percent) {
            check("nearly-full", level, format!("{percent} % of the space are in use"), more_room);
        }
        let promised = self.promised();
        let is_more = promised.promised_bytes > promised.exist_bytes;
        if is_more && (PROMISED_WARNING..FULL_WARNING).contains(&percent) {
            let message = format!(
                "volumes may grow to {} on disks, there are {}, and {percent} % are in use",
                iec(promised.promised_bytes),
                iec(promised.exist_bytes)
            );
            check("promised-more", Level::Warning, message, more_room);
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
            check("promised-limit", Level::Warning, message, remedy);
        }
        // One full group stops the volumes that it holds, however much room the others have.
        for (record, _, status) in &self.hosts {
            for group in status.iter().flat_map(|status| &status.groups) {
                let of = record.groups.iter().find(|of| of.id == group.id);
                let paths: Vec<&str> =
                    of.iter().flat_map(|of| &of.disks).map(|disk| disk.path.as_str()).collect();
                let name = format!("{} ({}) on host {}", group.id, paths.join(", "), record.name);
                let percent = fill(group.used_bytes, group.free_bytes);
                if let Some(level) = fill_level(percent).filter(|_| group.failure.is_empty()) {
                    let message = format!("{percent} % of disk group {name} are in use");
                    check("group-nearly-full", level, message, more_room);
                }
                if group.free_components == Some(0) {
                    let message = format!(
                        "disk group {name} holds {} components, as many as it can: no volume can \
                         be made or rebuilt there",
                        group.components
                    );
                    let remedy = "delete volumes that are not needed, or add disk groups";
                    check("group-crowded", Level::Warning, message, remedy);
                }
                if group.log_fill >= LOG_WARNING {
                    let part = (group.log_fill * 100.0) as u64;
                    let message = format!("the write log of disk group {name} is {part} % full");
                    let remedy = "writers wait for its disks; 'atoll events' says which are slow";
                    check("log-full", Level::Warning, message, remedy);
                }
            }
        }
        for volume in &self.volumes {
            let owner = volume.owner.as_ref();
            if let Some((host, group)) = owner.and_then(|owner| owner.no_space) {
                let message = format!(
                    "writes of volume {} are refused for want of space: disk group {group} on host \
                     {} is full",
                    volume.name,
                    host_name(&self.hosts, host)
                );
                check("no-space", Level::Critical, message, more_room);
            }
        }
        for volume in &self.volumes {
            let name = &volume.name;
            match self.state(volume) {
                VolumeState::Inaccessible => {
                    let missing: Vec<String> = volume
                        .record
                        .members()
                        .filter(|(_, m)| m.state.is_active() && !self.is_there(m))
                        .map(|(_, m)| match self.alive(m.host) {
                            true => format!(
                                "disk group {} on host {}",
                                m.group,
                                host_name(&self.hosts, m.host)
                            ),
                            false => format!("host {}", host_name(&self.hosts, m.host)),
                        })
                        .collect();
                    let message = match missing.is_empty() {
                        true => format!("volume {name} has no copy that is in sync"),
                        false => {
                            format!("volume {name} waits for {}", missing.join(", "))
                        }
                    };
                    let remedy = "bring what it waits for back; 'atoll disk list' has the reasons";
                    check("volume-inaccessible", Level::Critical, message, remedy);
                }
                VolumeState::Degraded => {
                    let message = format!("volume {name} has lost a copy");
                    check("volume-degraded", Level::Warning, message, "it is restored by itself");
                }
                VolumeState::Resyncing => {
                    let message = format!("a copy of volume {name} is brought up to date");
                    check("volume-resyncing", Level::Warning, message, "atoll resync show");
                }
                _ => {}
            }
        }
        let wrong = self.checksum_errors();
        if wrong > 0 {
            let message = format!("{wrong} checksums did not match since the hosts started");
            let remedy = "repaired from other copies; 'atoll events' names the disks";
            check("checksum-errors", Level::Warning, message, remedy);
        }
        checks
    }
}

impl Engine {
    /// The cluster at this moment.
    ///
    /// # Errors
    /// The directory does not answer, or the host does not serve yet.
    pub async fn view(&self) -> Result<View, Problem> {
        let running = self.running()?;
        let volumes = running.node.volumes().await.map_err(problem)?;
        let promised_limit_percent = running.node.promised_limit().await.map_err(problem)?;
        Ok(View { promised_limit_percent, ..View::of(running.node.hosts(), volumes) })
    }

    /// The cluster and its settings: as this host found them where the directory does not answer.
    pub async fn cluster(&self) -> Result<Cluster, Problem> {
        let Running { cluster: record, node, .. } = self.running()?;
        let limit = node.promised_limit().await;
        Ok(Cluster {
            id: record.id.to_string(),
            name: record.name.clone(),
            release: env!("CARGO_PKG_VERSION").into(),
            answered_by: self.config.host_name.clone(),
            repair_delay_s: record.repair_delay_s,
            resync_floor_bytes: record.resync_floor_bytes,
            promised_limit_percent: limit.unwrap_or(record.promised_limit_percent),
        })
    }

    /// Changes the cluster's settings.
    pub async fn cluster_patch(
        &self,
        patch: ClusterPatch,
        dry_run: bool,
    ) -> Result<Cluster, Problem> {
        if let Some(percent) = patch.promised_limit_percent {
            let set = self.running()?.node.set_promised_limit(percent, dry_run).await;
            set.map_err(|error| problem(error).field("promised_limit_percent"))?;
        }
        self.cluster().await
    }

    /// Checks of this host alone that did not pass.
    pub fn local_checks(&self) -> Vec<HealthCheck> {
        let unused = self.slots.iter().filter(|slot| slot.running.borrow().is_none());
        let checks = unused.map(|slot| HealthCheck {
            name: "disk-unused".into(),
            level: Level::Warning,
            message: format!(
                "host {} does not use {}: {}",
                self.config.host_name,
                slot.paths().join(", "),
                slot.trouble.borrow()
            ),
            remedy: format!("atoll disk list --host {}", self.config.host_name),
        });
        checks.collect()
    }

    /// This host's load, all volumes together.
    pub fn local_io(&self) -> Io {
        let totals = self.meter.totals();
        totals.iter().map(|(name, _)| self.meter.rate(name)).fold(Io::default(), add)
    }

    /// Asks every host how it is, if the cluster is meant; those that do not tell.
    ///
    /// # Errors
    /// The host does not serve yet, or has not read yet which hosts there are.
    pub async fn look(&self, scope: Scope) -> Result<Vec<Missing>, Problem> {
        let node = &self.running()?.node;
        if scope == Scope::Local {
            return Ok(Vec::new());
        }
        node.look().await;
        let hosts = node.hosts();
        if !hosts.iter().any(|(record, ..)| record.id == self.host) {
            let detail = "this host has not read yet which hosts the cluster has";
            return Err(Problem::new(Code::Unavailable, detail).hint("try again in a second"));
        }
        Ok(missing(&hosts))
    }

    /// All hosts; the load of this one only.
    pub fn hosts(&self) -> Result<Vec<Host>, Problem> {
        let hosts = self.running()?.node.hosts();
        let all = hosts.into_iter().map(|(record, up, status)| Host {
            up,
            groups: record.groups.len() as u32,
            owned_volumes: status.as_ref().map(|s| s.objects.len() as u32),
            space: status.as_ref().map(space_of),
            io: (record.id == self.host).then(|| self.local_io()),
            id: record.id.to_string(),
            name: record.name,
            fault_domain: record.fault_domain,
            api: record.api,
            peers: record.peers,
            release: record.release,
        });
        Ok(all.collect())
    }

    /// All disk groups, as their hosts last said.
    pub fn groups(&self) -> Result<Vec<Group>, Problem> {
        let mut groups = Vec::new();
        for (record, answers, status) in self.running()?.node.hosts() {
            for group in record.groups {
                // What is published of a host that does not answer is of the past.
                let state = match (answers, group.healthy) {
                    (false, _) => GroupState::Unknown,
                    (true, true) => GroupState::Healthy,
                    (true, false) => GroupState::Failed,
                };
                let said = status.as_ref().and_then(|s| s.groups.iter().find(|g| g.id == group.id));
                groups.push(Group {
                    id: group.id.to_string(),
                    host: record.name.clone(),
                    shape: match group.shape {
                        record::GroupShape::SingleTier => GroupShape::SingleTier,
                        record::GroupShape::AllFlash => GroupShape::AllFlash,
                    },
                    disks: group.disks.into_iter().map(|disk| disk.path).collect(),
                    state,
                    healthy: state == GroupState::Healthy,
                    failure: group.failure,
                    space: said.map(|g| Space {
                        capacity_bytes: g.capacity_bytes,
                        used_bytes: g.used_bytes,
                        free_bytes: g.free_bytes,
                    }),
                    log_bytes: said.map(|g| g.log_bytes),
                    log_fill_percent: said.map(|g| (g.log_fill * 100.0).round() as u8),
                    components: said.map(|g| g.components),
                });
            }
        }
        Ok(groups)
    }

    /// This host's disks.
    pub async fn disks(&self) -> Result<Vec<Disk>, Problem> {
        let running = self.running()?;
        let hosts = running.node.hosts();
        let mine = hosts.iter().find(|(record, ..)| record.id == self.host);
        let mut all = Vec::new();
        for slot in &self.slots {
            let group = *slot.running.borrow();
            let record = mine.and_then(|(record, ..)| {
                record.groups.iter().find(|record| Some(record.id) == group)
            });
            let (name, identity) = (&self.config.host_name, self.identity(&running.cluster));
            all.extend(disks::describe(slot, name, identity, self.config.backend, record).await);
        }
        Ok(all)
    }

    /// Erases one of this host's disks.
    pub async fn disk_wipe(
        &self,
        request: DiskWipeRequest,
        dry_run: bool,
    ) -> Result<DiskWipe, Problem> {
        let identity = self.identity(&self.running()?.cluster);
        let (name, backend) = (&self.config.host_name, self.config.backend);
        let wiped = disks::erase(&self.slots, name, identity, backend, &request, dry_run).await?;
        if !dry_run {
            let message = format!("{} was wiped: {}", wiped.path, wiped.erased);
            self.running()?.node.note(Severity::Warning, "disk-wiped", None, message);
        }
        Ok(wiped)
    }

    /// Makes a disk group of empty disks of this host.
    pub async fn group_create(
        &self,
        request: GroupCreate,
        dry_run: bool,
    ) -> Result<Group, Problem> {
        let running = self.running()?;
        let slot =
            self.slots.iter().find(|slot| slot.paths() == request.disks).ok_or_else(|| {
                let listed: Vec<String> = self.slots.iter().map(|s| s.paths().join(" ")).collect();
                let hint = match listed.is_empty() {
                    true => "its configuration has no [[group]]".into(),
                    false => format!("its [[group]]s are: {}", listed.join("; ")),
                };
                let shown = atoll_api::name::show(&request.disks.join(" "));
                let detail = format!("host {} has no [[group]] of {shown}", self.config.host_name);
                Problem::new(Code::NotFound, detail).hint(hint).field("disks")
            })?;
        let (identity, backend) = (self.identity(&running.cluster), self.config.backend);
        let made = disks::create(&running.world, slot, identity, backend, dry_run).await?;
        let shape =
            if slot.config.all_flash { GroupShape::AllFlash } else { GroupShape::SingleTier };
        let mut group = Group {
            id: GroupId::default().to_string(),
            host: self.config.host_name.clone(),
            shape,
            disks: slot.paths(),
            state: GroupState::Healthy,
            healthy: true,
            failure: String::new(),
            space: None,
            log_bytes: None,
            log_fill_percent: None,
            components: None,
        };
        if let Some((store, record)) = made {
            let space = store.space();
            group.id = record.id.to_string();
            group.log_bytes = Some(space.log_bytes);
            group.log_fill_percent = Some(0);
            group.components = Some(0);
            group.space = Some(Space {
                capacity_bytes: space.capacity_bytes,
                used_bytes: space.used_bytes,
                free_bytes: space.free_bytes,
            });
            let message = format!("disk group {} on {}", record.id, slot.paths().join(", "));
            running.node.add_group(store, record);
            running.node.note(Severity::Info, "group-created", None, message);
        }
        Ok(group)
    }

    /// All policies.
    pub async fn policies(&self) -> Result<Vec<Policy>, Problem> {
        let all = self.running()?.node.policies().await.map_err(problem)?;
        Ok(all.into_iter().map(|(name, policy)| policy_item(name, &policy)).collect())
    }

    /// Makes a policy.
    pub async fn policy_create(&self, policy: Policy, dry_run: bool) -> Result<Policy, Problem> {
        let node = &self.running()?.node;
        let wanted = record::Policy {
            failures_to_tolerate: policy.failures_to_tolerate,
            method: match policy.method {
                Method::Mirror => record::Method::Mirror,
            },
            stripe_width: policy.stripe_width,
            iops_limit: policy.iops_limit,
            reserve_percent: policy.reserve_percent,
        };
        wanted.check().map_err(|why| Problem::new(Code::BadValue, why))?;
        if dry_run {
            if node.policies().await.map_err(problem)?.contains_key(&policy.name) {
                let name = policy.name;
                return Err(problem(ManageError::Exists { what: "policy", name }));
            }
            return Ok(policy);
        }
        node.create_policy(&policy.name, wanted).await.map_err(problem)?;
        Ok(policy)
    }

    /// Deletes a policy.
    pub async fn policy_delete(&self, name: &str, dry_run: bool) -> Result<(), Problem> {
        let node = &self.running()?.node;
        if !dry_run {
            return node.delete_policy(name).await.map_err(problem);
        }
        node.policy(name).await.map_err(problem)?;
        let used = node.volumes().await.map_err(problem)?;
        match used.iter().find(|volume| volume.policy == name) {
            Some(user) => {
                let detail = format!("policy {name} is used by volume {}", user.name);
                Err(Problem::new(Code::InUse, detail))
            }
            None => Ok(()),
        }
    }

    /// Whether a volume could be placed now.
    pub async fn policy_check(&self, name: &str, size_bytes: u64) -> Result<PolicyCheck, Problem> {
        let node = &self.running()?.node;
        let policy = node.policy(name).await.map_err(problem)?;
        let verdict = match node.check_policy(&policy, size_bytes).await {
            Ok(()) => Ok(()),
            Err(ManageError::CannotPlace(refusal)) => Err(refusal),
            Err(error) => return Err(problem(error)),
        };
        let mut reasons = Vec::new();
        match &verdict {
            Ok(()) => {
                let members = policy.members();
                reasons.push(format!("{members} copies in {members} fault domains have room"));
            }
            Err(refusal) => {
                let problem = cannot_place(refusal);
                reasons.push(problem.detail);
                reasons.extend(problem.hint.map(|hint| format!("possible: {hint}")));
            }
        }
        Ok(PolicyCheck {
            policy: name.to_owned(),
            size_bytes,
            fits: verdict.is_ok(),
            raw_bytes: size_bytes.saturating_mul(policy.members() as u64),
            reasons,
        })
    }

    fn volume_item(&self, view: &VolumeView, cluster: &View) -> Volume {
        let name = &view.name;
        let sessions = self.meter.sessions().iter().filter(|s| s.volume == *name).count();
        Volume {
            name: name.clone(),
            id: view.record.id.to_string(),
            size_bytes: view.record.size_bytes,
            used_bytes: view.used_bytes,
            guest_bytes: view.guest_bytes,
            policy: view.policy.clone(),
            failures_to_tolerate: view.record.policy.failures_to_tolerate,
            iops_limit: view.record.policy.iops_limit,
            state: cluster.state(view),
            owner: view.record.owner.map(|owner| host_name(&cluster.hosts, owner.host)),
            epoch: view.record.epoch.0,
            sessions: sessions as u32,
            created_at: rfc3339(view.created_ms),
            revision: view.revision,
            io: self.meter.rate(name),
            exports: self.exports(name),
        }
    }

    /// Where clients of this host reach an export.
    fn exports(&self, name: &str) -> Vec<String> {
        let mut exports = Vec::new();
        if let Some(socket) = &self.config.nbd_socket {
            exports.push(Nbd::unix(name, socket).to_string());
        }
        if let Some(address) = self.config.nbd_tcp {
            exports.push(Nbd::tcp(name, address).to_string());
        }
        exports
    }

    /// Has a volume to itself for an import.
    pub async fn volume_lock(
        &self,
        name: &str,
        request: VolumeLockRequest,
        dry_run: bool,
    ) -> Result<VolumeLock, Problem> {
        let VolumeLockRequest { purpose: LockPurpose::Import, replace, min_size_bytes } = request;
        let node = &self.running()?.node;
        let name = self.name_of(name).await?;
        let lock = node.lock_for_import(&name, replace, min_size_bytes, dry_run).await;
        let lock = lock.map_err(problem)?;
        Ok(VolumeLock {
            volume: lock.volume.name,
            id: lock.volume.record.id.to_string(),
            size_bytes: lock.volume.record.size_bytes,
            token: format!("{:016x}", lock.token),
            exports: self.exports(&lock.export),
        })
    }

    /// Gives an import's lock back.
    pub async fn volume_unlock(
        &self,
        name: &str,
        token: u64,
        dry_run: bool,
    ) -> Result<(), Problem> {
        let node = &self.running()?.node;
        let name = self.name_of(name).await?;
        if dry_run {
            return Ok(());
        }
        node.unlock_import(&name, token).await.map_err(problem)
    }

    /// All volumes; load and clients of this host only.
    pub async fn volumes(&self) -> Result<Vec<Volume>, Problem> {
        let view = self.view().await?;
        Ok(view.volumes.iter().map(|volume| self.volume_item(volume, &view)).collect())
    }

    fn one(&self, running: &Running, volume: VolumeView) -> Volume {
        let view = View::of(running.node.hosts(), Vec::new());
        self.volume_item(&volume, &view)
    }

    /// One volume, by name or id.
    pub async fn volume(&self, name: &str) -> Result<Volume, Problem> {
        let running = self.running()?;
        let volume = running.node.volume(&self.name_of(name).await?).await.map_err(problem)?;
        Ok(self.one(running, volume))
    }

    /// The name of the volume that is called so, or whose object has that id.
    async fn name_of(&self, name: &str) -> Result<String, Problem> {
        let node = &self.running()?.node;
        match (node.volume(name).await, name.parse::<ObjectId>()) {
            (Err(ManageError::NotFound { .. }), Ok(id)) => {
                let volumes = node.volumes().await.map_err(problem)?;
                let found = volumes.into_iter().find(|volume| volume.record.id == id);
                found.map(|volume| volume.name).ok_or_else(|| Problem::not_found("volume", name))
            }
            (Err(error), _) => Err(problem(error)),
            (Ok(volume), _) => Ok(volume.name),
        }
    }

    /// Makes a volume.
    pub async fn volume_create(
        &self,
        request: VolumeCreate,
        dry_run: bool,
    ) -> Result<Volume, Problem> {
        let running = self.running()?;
        let VolumeCreate { name, size_bytes, policy } = request;
        let create = CreateVolume { name, size_bytes, policy, prefer: None, dry_run };
        let volume = running.node.create_volume(create).await.map_err(problem)?;
        Ok(self.one(running, volume))
    }

    /// Changes a volume.
    pub async fn volume_patch(
        &self,
        name: &str,
        patch: VolumePatch,
        if_revision: Option<u64>,
        dry_run: bool,
    ) -> Result<Volume, Problem> {
        let running = self.running()?;
        let node = &running.node;
        let name = self.name_of(name).await?;
        // The revision is the one before both changes; the one that may be refused comes first.
        let mut expected = if_revision;
        if let Some(size) = patch.size_bytes {
            let resize = Resize { size_bytes: size, may_shrink: patch.shrink, dry_run };
            node.resize_volume(&name, resize, expected).await.map_err(problem)?;
            expected = None;
        }
        if let Some(limit) = patch.iops_limit {
            let limited = node.limit_iops(&name, limit, expected, dry_run).await;
            limited.map_err(problem)?;
        }
        self.volume(&name).await
    }

    /// Deletes a volume.
    pub async fn volume_delete(&self, name: &str, change: ChangeOptions) -> Result<(), Problem> {
        let ChangeOptions { dry_run, force, if_revision } = change;
        let name = self.name_of(name).await?;
        let node = &self.running()?.node;
        node.delete_volume(&name, if_revision, force, dry_run).await.map_err(not_deleted)?;
        if !dry_run {
            self.meter.forget(&name);
        }
        Ok(())
    }

    /// Where a volume is, and why.
    pub async fn placement(&self, name: &str) -> Result<Placement, Problem> {
        let running = self.running()?;
        let found = running.node.placement(&self.name_of(name).await?).await.map_err(problem)?;
        let hosts = running.node.hosts();
        let record = &found.volume.record;
        let delay_ms = u64::from(running.cluster.repair_delay_s) * 1_000;
        let members = record.members().map(|(leg, member)| {
            let host = hosts.iter().find(|(host, ..)| host.id == member.host);
            let (state, absent_since, rebuild_at) = match member.state {
                record::MemberState::Active => (MemberState::Active, None, None),
                record::MemberState::Resyncing { .. } => (MemberState::Resyncing, None, None),
                record::MemberState::Absent { at_ms, lost, .. } => {
                    let delay = if lost { 0 } else { delay_ms };
                    (MemberState::Absent, Some(rfc3339(at_ms)), Some(rfc3339(at_ms + delay)))
                }
            };
            Member {
                leg: leg as u32,
                component: member.component.to_string(),
                host: host_name(&hosts, member.host),
                group: member.group.to_string(),
                fault_domain: host.map(|(h, ..)| h.fault_domain.clone()).unwrap_or_default(),
                state,
                absent_since,
                rebuild_at,
            }
        });
        Ok(Placement {
            volume: found.volume.name.clone(),
            object: record.id.to_string(),
            size_bytes: record.size_bytes,
            owner: record.owner.map(|owner| host_name(&hosts, owner.host)),
            epoch: record.epoch.0,
            members: members.collect(),
            reasons: found.explanation.sentences(),
        })
    }

    /// Changes resync on all hosts that answer.
    pub async fn resync_patch(
        &self,
        paused: Option<bool>,
        limit: Option<u64>,
        dry_run: bool,
    ) -> Result<Told<Resync>, Problem> {
        let running = self.running()?;
        let (was_paused, was_limit) = running.node.objects().resync_settings();
        let (paused, limit) = (paused.unwrap_or(was_paused), limit.unwrap_or(was_limit));
        let mut silent = Vec::new();
        if !dry_run {
            silent = running.node.set_resync(paused, limit).await.map_err(problem)?;
        }
        let mut resync = self.view().await?.resync();
        // Hosts tell every two seconds; what was just set is known already.
        resync.paused = paused;
        resync.limit_bytes_per_second = limit;
        Ok(Told { what: resync, missing: self.silent(&silent)? })
    }

    /// Scrubs of this host's disk groups.
    pub fn scrubs(&self) -> Result<Vec<Scrub>, Problem> {
        let groups = self.running()?.node.status().groups.into_iter();
        let scrubs = groups.map(|group| Scrub {
            group: group.id.to_string(),
            host: self.config.host_name.clone(),
            running: group.scrub_running,
            blocks_checked: group.scrub_checked,
            blocks_total: group.scrub_total,
            blocks_bad: group.scrub_bad,
        });
        Ok(scrubs.collect())
    }

    /// Hosts that did not answer, in the words of the interface.
    fn silent(&self, hosts: &[HostId]) -> Result<Vec<Missing>, Problem> {
        let known = self.running()?.node.hosts();
        let missing = |&id: &HostId| Missing { host: host_name(&known, id), why: SILENT.into() };
        let mut silent: Vec<Missing> = hosts.iter().map(missing).collect();
        silent.sort();
        Ok(silent)
    }

    /// Starts scrubs; rate 0 stops them. Of all, of one volume, or of one group of this host. Those
    /// hosts that did not hear of it.
    pub async fn scrub(
        &self,
        group: Option<&str>,
        volume: Option<&str>,
        rate: Option<u64>,
    ) -> Result<Vec<Missing>, Problem> {
        let node = &self.running()?.node;
        let rate = rate.unwrap_or(SCRUB_RATE);
        let Some(group) = group else {
            let volume = match volume {
                Some(volume) => Some(self.name_of(volume).await?),
                None => None,
            };
            let silent = node.scrub(volume.as_deref(), rate).await.map_err(problem)?;
            return self.silent(&silent);
        };
        let stores = node.objects().members().stores();
        let store = stores.iter().find(|store| store.group().to_string() == group);
        store.ok_or_else(|| Problem::not_found("group", group))?.scrub(None, rate);
        Ok(Vec::new())
    }

    /// Whether there may be tasks that go on, or whose end has not been seen.
    pub fn may_have_tasks(&self) -> bool {
        let Ok(running) = self.running() else { return false };
        let busy = |status: &HostStatus| {
            status.objects.iter().any(|object| object.resyncing || !object.copies.is_empty())
                || status.groups.iter().any(|group| group.scrub_running)
        };
        let statuses = running.node.hosts();
        self.tasks.borrow().is_busy()
            || busy(&running.node.status())
            || statuses.iter().filter_map(|(.., status)| status.as_ref()).any(busy)
    }

    /// Resyncs and scrubs: those that go on, and how the last ones ended.
    pub async fn tasks(&self) -> Result<Vec<Task>, Problem> {
        let running = self.running()?;
        let volumes = running.node.volumes().await.map_err(problem)?;
        let now = running.world.unix_ms();
        let hosts = running.node.hosts();
        let silent: BTreeSet<String> = missing(&hosts).into_iter().map(|m| m.host).collect();
        let mut seen: Vec<Seen> =
            volumes.iter().filter_map(|v| resync_task(v, &hosts, now)).collect();
        for (record, _, status) in hosts {
            let mine = record.id == self.host;
            let status = if mine { Some(running.node.status()) } else { status };
            let groups = status.into_iter().flat_map(|status| status.groups);
            seen.extend(groups.filter_map(|group| scrub_task(&group, &record.name)));
        }
        let mut book = self.tasks.borrow_mut();
        book.enter(now, seen, &silent, |task| fate(task, &volumes));
        Ok(book.tasks())
    }

    /// Events that were not read, of this host alone or of all that answer; see
    /// [`Control::events`](crate::control::Control::events).
    pub async fn events(
        &self,
        scope: Scope,
        since: u64,
        read: EventMarks,
        max: usize,
    ) -> Result<Told<EventsRead>, Problem> {
        let node = &self.running()?.node;
        let (found, silent) = if scope == Scope::Local {
            let known = read.get(&self.host).copied();
            let since = if known.is_some() { 0 } else { since };
            (vec![node.events_here(known.unwrap_or_default(), since, max)], Vec::new())
        } else {
            node.events_of_each(&read, since).await
        };
        let mut begun = read;
        begun.extend(found.iter().map(|told| (told.host, told.begun)));
        let missing = self.silent(&silent)?;
        let (found, more) = merge_events(found, max);
        if found.is_empty() {
            return Ok(Told { what: EventsRead { events: Vec::new(), begun, more }, missing });
        }
        let hosts = node.hosts();
        // A volume has the name that it has now, else the one that it had.
        let volumes = node.volumes().await.unwrap_or_default();
        let names: BTreeMap<ObjectId, String> =
            volumes.into_iter().map(|volume| (volume.record.id, volume.name)).collect();
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let shown = |event: NodeEvent| Event {
            id: event.id(),
            at: rfc3339(event.at_ms),
            host: host_name(&hosts, event.host),
            level: match event.severity {
                Severity::Info => Level::Ok,
                Severity::Warning => Level::Warning,
                Severity::Error => Level::Critical,
            },
            kind: event.kind,
            subject: match event.object {
                None => String::new(),
                Some(id) => match names.get(&id) {
                    Some(name) => name.clone(),
                    None if event.volume.is_empty() => id.to_string(),
                    None => event.volume,
                },
            },
            message: event.message,
            number: event.number,
            object: event.object.map(|id| id.to_string()),
            of_host: event.of_host.map(|id| host_name(&hosts, id)),
            group: event.group.map(|id| id.to_string()),
            disks: event.disks,
            numbers: event.numbers,
            cause: some(event.cause),
            next_step: some(event.next_step),
        };
        let of = |event: NodeEvent| {
            let (host, mark) = (event.host, event.mark());
            (shown(event), host, mark)
        };
        let events = found.into_iter().map(of).collect();
        Ok(Told { what: EventsRead { events, begun, more }, missing })
    }

    /// Clients of this host.
    pub fn sessions(&self, volume: Option<&str>) -> Vec<Session> {
        let sessions = self.meter.sessions().into_iter();
        let wanted = sessions.filter(|s| volume.is_none_or(|volume| s.volume == volume));
        let sessions = wanted.map(|session| {
            let totals = session.totals();
            Session {
                id: session.id,
                volume: session.volume.clone(),
                host: self.config.host_name.clone(),
                protocol: "nbd".into(),
                peer: session.peer.to_string(),
                since: rfc3339(session.since_ms),
                reads: totals.reads,
                writes: totals.writes,
                in_flight: session.in_flight(),
            }
        });
        sessions.collect()
    }

    /// Forgets the load of volumes that are gone, whoever has deleted them. What cannot be found
    /// out in a second stays.
    pub async fn forget_gone(&self) {
        let Ok(running) = self.running() else { return };
        let listed = tokio::time::timeout(LIST_WAIT, running.node.volumes()).await;
        if let Ok(Ok(volumes)) = listed {
            let names: BTreeSet<&str> = volumes.iter().map(|volume| &*volume.name).collect();
            self.meter.keep(|name| names.contains(name));
        }
    }

    /// Numbers for Prometheus, of this host.
    pub fn metrics(&self) -> Vec<Sample> {
        let mut samples = Vec::new();
        let mut put = |name, help, counter, labels: &[(&'static str, &str)], value: f64| {
            let labels = labels.iter().map(|&(label, text)| (label, text.to_owned())).collect();
            let value = if counter { Value::Counter(value) } else { Value::Gauge(value) };
            samples.push(Sample { name, help, labels, value });
        };
        let host = self.config.host_name.as_str();
        let version = env!("CARGO_PKG_VERSION");
        put("atoll_info", "Constant 1.", false, &[("host", host), ("version", version)], 1.0);
        let serving = self.running();
        let up = f64::from(u8::from(serving.is_ok()));
        put("atoll_serving", "1 while this host serves volumes.", false, &[("host", host)], up);
        let dropped = "Lines of log that stderr did not take.";
        let lines = crate::log::dropped() as f64;
        put("atoll_log_lines_dropped_total", dropped, true, &[("host", host)], lines);
        for (name, totals) in self.meter.totals() {
            let labels = [("host", host), ("volume", name.as_str())];
            for (name, help, value) in volume_samples(&totals) {
                put(name, help, true, &labels, value);
            }
        }
        if let Some(files) = self.events.get() {
            let help = "Events that were not kept on the file system of host.data_dir.";
            put(
                "atoll_events_dropped_total",
                help,
                true,
                &[("host", host)],
                files.dropped() as f64,
            );
        }
        let Ok(running) = serving else { return samples };
        let status = running.node.status();
        for group in &status.groups {
            let id = group.id.to_string();
            let labels = [("host", host), ("group", id.as_str())];
            let gauges = [
                ("atoll_group_capacity_bytes", "Space of the group.", group.capacity_bytes),
                ("atoll_group_used_bytes", "Space in use.", group.used_bytes),
                ("atoll_group_free_bytes", "Space for new data.", group.free_bytes),
                ("atoll_group_log_bytes", "Size of the write log.", group.log_bytes),
            ];
            for (name, help, value) in gauges {
                put(name, help, false, &labels, value as f64);
            }
            if let Some(free) = group.free_components {
                let help = "Components that can still be made in the group.";
                put("atoll_group_free_components", help, false, &labels, f64::from(free));
            }
            let fill = "Part of the write log in use.";
            put("atoll_group_log_fill_ratio", fill, false, &labels, group.log_fill);
            let healthy = f64::from(u8::from(group.failure.is_empty()));
            put("atoll_group_healthy", "0 once it has failed.", false, &labels, healthy);
            let counters = [
                (
                    "atoll_group_checksum_errors_total",
                    "Checksums that did not match.",
                    group.checksum_errors,
                ),
                ("atoll_group_device_errors_total", "Errors of its devices.", group.device_errors),
                ("atoll_group_ops_written_total", "Operations appended.", group.ops_written),
                ("atoll_group_written_bytes_total", "Payload appended.", group.bytes_written),
                ("atoll_group_blocks_read_total", "Blocks read for callers.", group.blocks_read),
                (
                    "atoll_group_blocks_read_ahead_total",
                    "Blocks of these that had been read ahead.",
                    group.blocks_read_ahead,
                ),
                ("atoll_group_log_batches_total", "Batches of the log.", group.log_batches),
                (
                    "atoll_group_log_written_bytes_total",
                    "Bytes written to the log.",
                    group.log_bytes_written,
                ),
                (
                    "atoll_group_destaged_bytes_total",
                    "Bytes moved to capacity.",
                    group.destaged_bytes,
                ),
                ("atoll_group_metadata_bytes_total", "Metadata written.", group.metadata_bytes),
                (
                    "atoll_group_blocks_copied_in_total",
                    "Blocks put in by resync and repair.",
                    group.blocks_copied_in,
                ),
            ];
            for (name, help, value) in counters {
                put(name, help, true, &labels, value as f64);
            }
        }
        let own = [("host", host)];
        let left: u64 = status.objects.iter().map(|object| object.resync_bytes_left).sum();
        put(
            "atoll_resync_left_bytes",
            "Left to look at, of what this host owns.",
            false,
            &own,
            left as f64,
        );
        let refused: u64 = status.objects.iter().map(|object| object.no_space_answers).sum();
        put(
            "atoll_no_space_answers",
            "Writes refused for want of space, of the volumes that this host owns, since it does.",
            false,
            &own,
            refused as f64,
        );
        let without = status.objects.iter().filter(|object| object.no_space.is_some()).count();
        put(
            "atoll_no_space_volumes",
            "Owned volumes whose new data finds no room at present.",
            false,
            &own,
            without as f64,
        );
        let owned = running.node.objects().owned();
        let promised = owned.iter().map(|object| promised_bytes(&object.record)).sum::<u64>();
        put(
            "atoll_promised_bytes",
            "What the owned volumes may take on disks, all copies, if written in full.",
            false,
            &own,
            promised as f64,
        );
        let owned = status.objects.len() as f64;
        put("atoll_owned_volumes", "Volumes whose I/O this host orders.", false, &own, owned);
        let up = running.node.hosts().iter().filter(|(_, alive, _)| *alive).count();
        put(
            "atoll_hosts_up",
            "Hosts that this one reaches, itself included.",
            false,
            &own,
            up as f64,
        );
        put(
            "atoll_uptime_seconds",
            "Since the host began.",
            false,
            &own,
            seconds(Nanos((status.uptime_s * 1e9) as u64)) as f64,
        );
        let nbd = running.nbd.stats();
        put("atoll_nbd_connections", "NBD clients.", false, &own, nbd.connections as f64);
        put(
            "atoll_nbd_held_bytes",
            "Data held for NBD clients.",
            false,
            &own,
            nbd.held_bytes as f64,
        );
        let counters = [
            ("atoll_nbd_accepted_total", "Connections accepted.", nbd.accepted),
            ("atoll_nbd_refused_total", "Connections refused.", nbd.refused),
            ("atoll_nbd_violations_total", "Clients that broke the protocol.", nbd.violations),
            ("atoll_nbd_requests_total", "Requests carried out.", nbd.requests),
            ("atoll_nbd_failures_total", "Requests that the volume failed.", nbd.failures),
            ("atoll_nbd_invalid_total", "Requests that were refused.", nbd.invalid),
        ];
        for (name, help, value) in counters {
            put(name, help, true, &own, value as f64);
        }
        samples.extend(self.stage_samples());
        samples
    }
}

/// As [`problem`]; only who wanted to delete a volume is told how to insist on that.
fn not_deleted(error: ManageError) -> Problem {
    match &error {
        ManageError::MayBeInUse { name, host, .. } => {
            let hint =
                format!("start {host}; if it is dead for good: atoll volume delete {name} --force");
            problem(error).hint(hint)
        }
        _ => problem(error),
    }
}

fn resync_id(volume: &VolumeView) -> String {
    format!("resync-{}", volume.record.id)
}

/// The resync of a volume, if there is one.
fn resync_task(
    volume: &VolumeView,
    hosts: &[(HostRecord, bool, Option<HostStatus>)],
    now_ms: u64,
) -> Option<Seen> {
    let copies = volume.owner.as_ref().map_or(&[][..], |owner| &owner.copies);
    let behind = volume.record.members().any(|(_, member)| member.state.is_resyncing());
    if !behind && copies.is_empty() {
        return None;
    }
    let done: u64 = copies.iter().map(|copy| copy.bytes_done).sum();
    let left: u64 = copies.iter().map(|copy| copy.bytes_left).sum();
    let percent = (done * 100).checked_div(done + left).unwrap_or(0);
    let seconds = copies.iter().map(|copy| copy.seconds).fold(0.0, f64::max);
    let since_ms = (seconds * 1e3) as u64;
    let left = iec(left);
    Some(Seen {
        id: resync_id(volume),
        kind: "resync",
        subject: volume.name.clone(),
        host: volume.record.owner.map(|owner| host_name(hosts, owner.host)).unwrap_or_default(),
        percent: percent as u8,
        message: match (copies.is_empty(), copies.iter().any(|copy| copy.running)) {
            (true, _) => "waits".into(),
            (false, true) => format!("{left} left"),
            (false, false) => format!("{left} left, waits for the next attempt"),
        },
        began_ms: now_ms.saturating_sub(since_ms),
        ended: None,
    })
}

/// The last scrub of a group, if there was one.
fn scrub_task(group: &GroupStatus, host: &str) -> Option<Seen> {
    if group.scrub_began_ms == 0 {
        return None;
    }
    let percent = (group.scrub_checked * 100).checked_div(group.scrub_total).unwrap_or(0);
    let (state, what) = match (group.scrub_running, group.scrub_whole) {
        (true, _) => (TaskState::Running, ""),
        (false, true) => (TaskState::Done, ""),
        (false, false) => (TaskState::Failed, "stopped before its end: "),
    };
    Some(Seen {
        id: format!("scrub-{}", group.id),
        kind: "scrub",
        subject: format!("{} on {host}", group.id),
        host: host.to_owned(),
        percent: percent.min(100) as u8,
        message: format!("{what}{} bad blocks", group.scrub_bad),
        began_ms: group.scrub_began_ms,
        ended: group.scrub_ended_ms.map(|at| (at, state)),
    })
}

/// How a task has ended that is seen no more.
fn fate(task: &Seen, volumes: &[VolumeView]) -> (TaskState, String) {
    if task.kind == "scrub" {
        return (TaskState::Failed, "its host has restarted".into());
    }
    match volumes.iter().find(|volume| resync_id(volume) == task.id) {
        None => (TaskState::Failed, "the volume was deleted".into()),
        Some(volume) if volume.record.members().all(|(_, m)| m.state.is_active()) => {
            (TaskState::Done, "all copies are up to date".into())
        }
        Some(_) => (TaskState::Failed, "a copy went away before it was up to date".into()),
    }
}

fn policy_item(name: String, policy: &record::Policy) -> Policy {
    Policy {
        name,
        failures_to_tolerate: policy.failures_to_tolerate,
        method: match policy.method {
            record::Method::Mirror => Method::Mirror,
        },
        stripe_width: policy.stripe_width,
        iops_limit: policy.iops_limit,
        reserve_percent: policy.reserve_percent,
    }
}

fn volume_samples(totals: &Totals) -> [(&'static str, &'static str, f64); 7] {
    [
        ("atoll_volume_reads_total", "Reads of clients.", totals.reads as f64),
        ("atoll_volume_writes_total", "Writes of clients.", totals.writes as f64),
        ("atoll_volume_read_bytes_total", "Bytes read.", totals.read_bytes as f64),
        ("atoll_volume_written_bytes_total", "Bytes written.", totals.write_bytes as f64),
        ("atoll_volume_read_seconds_total", "Time of reads.", totals.read_ns as f64 / 1e9),
        ("atoll_volume_write_seconds_total", "Time of writes.", totals.write_ns as f64 / 1e9),
        ("atoll_volume_errors_total", "Operations that failed.", totals.errors as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_format::id::{ComponentId, Epoch, Incarnation, Seq};
    use atoll_format::record::{
        LegRecord, MemberRecord, MemberState, OwnerRecord, Policy, RECORD_VERSION,
    };
    use atoll_node::{CopyStatus, ObjectStatus};

    fn resyncing_twice() -> VolumeView {
        let member = |n: u64, state| MemberRecord {
            component: ComponentId(n),
            host: HostId(n),
            group: GroupId(n),
            state,
        };
        let behind = MemberState::Resyncing { from: Seq(1) };
        let members = vec![member(1, MemberState::Active), member(2, behind), member(3, behind)];
        let owner = OwnerRecord { host: HostId(1), incarnation: Incarnation(1) };
        VolumeView {
            name: "v".into(),
            policy: "default".into(),
            created_ms: 0,
            record: ObjectRecord {
                version: RECORD_VERSION,
                id: ObjectId(7),
                name: "v".into(),
                state: ObjectState::Ready,
                size_bytes: 1 << 30,
                policy: Policy { failures_to_tolerate: 2, ..Policy::DEFAULT },
                epoch: Epoch(1),
                owner: Some(owner),
                seq_base: Seq(0),
                legs: vec![LegRecord { members }],
                nonce: 0,
            },
            revision: 1,
            used_bytes: None,
            guest_bytes: None,
            open_on: Vec::new(),
            owner: Some(ObjectStatus {
                id: ObjectId(7),
                epoch: Epoch(1),
                resyncing: true,
                resync_bytes_left: 30,
                resync_bytes_done: 10,
                resync_component: Some(ComponentId(3)),
                resync_bytes_copied: 5,
                resync_seconds: 2.0,
                copies: vec![CopyStatus {
                    component: ComponentId(3),
                    running: true,
                    bytes_left: 30,
                    bytes_done: 10,
                    bytes_copied: 5,
                    done_per_second: 5,
                    copied_per_second: 2,
                    seconds: 2.0,
                }],
                no_space: None,
                no_space_answers: 0,
                guest_ops: 0,
            }),
        }
    }

    #[test]
    fn bytes_of_a_resync_are_shown_once_at_the_copy_that_is_written() {
        let view = View::of(Vec::new(), vec![resyncing_twice()]);
        let resync = view.resync();
        let bytes: Vec<(Option<u64>, u64)> =
            resync.items.iter().map(|item| (item.bytes_left, item.bytes_done)).collect();
        assert_eq!(bytes, [(None, 0), (Some(30), 5)], "the first waits, and is not counted yet");
        assert_eq!((resync.bytes_left, resync.bytes_per_second), (30, 2));
        assert_eq!(resync.seconds_left, Some(6), "what is left falls by 5 a second");
    }

    #[test]
    fn each_group_counts_and_refused_writes_and_what_is_promised() {
        use atoll_format::record::{DiskRecord, GroupRecord, GroupShape};
        let group = |id: u64| GroupRecord {
            id: GroupId(id),
            shape: GroupShape::SingleTier,
            healthy: true,
            capacity_bytes: 1 << 30,
            disks: vec![DiskRecord {
                id: atoll_format::id::DiskId(id),
                path: format!("/dev/d{id}"),
                size_bytes: 1 << 30,
            }],
            failure: String::new(),
        };
        let record = HostRecord {
            version: RECORD_VERSION,
            id: HostId(1),
            name: "h".into(),
            fault_domain: "h".into(),
            incarnation: Incarnation(1),
            peers: Vec::new(),
            api: String::new(),
            groups: vec![group(1), group(2)],
            release: String::new(),
        };
        let said = |id: u64, used: u64, free: u64| GroupStatus {
            id: GroupId(id),
            capacity_bytes: 1 << 30,
            used_bytes: used << 20,
            free_bytes: free << 20,
            ..GroupStatus::default()
        };
        let mut status = HostStatus {
            id: HostId(1),
            groups: vec![said(1, 100, 900), said(2, 100, 900)],
            objects: Vec::new(),
            components: BTreeMap::new(),
            open_volumes: BTreeMap::new(),
            reaches: BTreeSet::new(),
            resync_paused: false,
            resync_limit: 0,
            uptime_s: 1.0,
        };
        let mut volume = resyncing_twice();
        for member in &mut volume.record.legs[0].members {
            (member.host, member.group) = (HostId(1), GroupId(1));
            member.state = MemberState::Active;
        }
        volume.owner.as_mut().expect("it has one").copies.clear();
        let limit = std::cell::Cell::new(1000);
        let names = |status: Option<&HostStatus>, volume: &VolumeView| -> Vec<(String, Level)> {
            let hosts = vec![(record.clone(), true, status.cloned())];
            let view = View::of(hosts, vec![volume.clone()]);
            let checks = View { promised_limit_percent: limit.get(), ..view }.checks();
            checks.into_iter().map(|check| (check.name, check.level)).collect()
        };
        let one = |name: &str, level| vec![(name.to_owned(), level)];
        assert_eq!(names(Some(&status), &volume), []);
        // 3 GiB are promised, of 2: 150 %, and 166 % are nine tenths of the limit.
        limit.set(166);
        assert_eq!(names(Some(&status), &volume), one("promised-limit", Level::Warning));
        limit.set(167);
        assert_eq!(names(Some(&status), &volume), []);
        assert_eq!(names(None, &volume), one("host-unknown", Level::Warning));
        // 50 % of the space in use, and one of two groups full.
        status.groups[1] = said(2, 990, 10);
        assert_eq!(names(Some(&status), &volume), one("group-nearly-full", Level::Critical));
        status.groups[1] = said(2, 850, 150);
        assert_eq!(names(Some(&status), &volume), one("group-nearly-full", Level::Warning));
        // 3 GiB are promised, there are 2.
        (status.groups[0], status.groups[1]) = (said(1, 650, 350), said(2, 650, 350));
        assert_eq!(names(Some(&status), &volume), one("promised-more", Level::Warning));
        (status.groups[0], status.groups[1]) = (said(1, 100, 900), said(2, 100, 900));
        status.groups[0].log_fill = 0.99;
        assert_eq!(names(Some(&status), &volume), one("log-full", Level::Warning));
        status.groups[0].log_fill = 0.5;
        status.groups[0].free_components = Some(0);
        assert_eq!(names(Some(&status), &volume), one("group-crowded", Level::Warning));
        status.groups[0].free_components = Some(1);
        volume.owner.as_mut().expect("it has one").no_space = Some((HostId(1), GroupId(2)));
        assert_eq!(names(Some(&status), &volume), one("no-space", Level::Critical));
    }

    #[test]
    fn only_who_deletes_a_volume_is_told_how_to_insist() {
        let doubt = || ManageError::MayBeInUse {
            name: "v".into(),
            host: "h".into(),
            why: "it is away".into(),
        };
        let hint = |problem: Problem| problem.hint.expect("a next step");
        assert!(hint(not_deleted(doubt())).contains("atoll volume delete v --force"));
        let other = hint(problem(doubt()));
        assert!(other.starts_with("start h") && !other.contains("delete"), "{other}");
    }

    #[test]
    fn a_resync_that_is_seen_no_more_has_ended_as_the_record_says() {
        let mut volume = resyncing_twice();
        let task = resync_task(&volume, &[], 10_000).expect("it resyncs");
        assert_eq!((task.percent, task.began_ms), (25, 8_000));
        let state = |volumes: &[VolumeView]| fate(&task, volumes).0;
        assert_eq!(state(&[]), TaskState::Failed);
        volume.record.legs[0].members[1].state = MemberState::Active;
        let away = MemberState::Absent { since: Seq(1), at_ms: 0, lost: false };
        volume.record.legs[0].members[2].state = away;
        // Between two attempts the copy is as far as it was, and so is the task.
        let mut between = volume.clone();
        let owner = between.owner.as_mut().expect("it has one");
        (owner.resyncing, owner.copies[0].running) = (false, false);
        let view = View::of(Vec::new(), vec![between.clone()]);
        let resync = view.resync();
        assert_eq!((resync.items.len(), resync.bytes_left), (1, 30));
        let waits = resync_task(&between, &[], 10_000).expect("it goes on");
        assert_eq!(
            (waits.percent, waits.message.as_str()),
            (25, "30 B left, waits for the next attempt")
        );
        volume.owner = None;
        assert_eq!(resync_task(&volume, &[], 10_000), None);
        assert_eq!(state(std::slice::from_ref(&volume)), TaskState::Failed);
        volume.record.legs[0].members[2].state = MemberState::Active;
        assert_eq!(state(&[volume]), TaskState::Done);
    }
}
