//! Management of this host, on the shard: asks the node, and says what it says in the words of the
//! interface.

use super::disks::GroupSlot;
use super::items::{check_item, resync_item, space_item, state_item, task_item, upgrade_item};
use super::meter::{Figures, SessionFigures, Totals};
use super::{Engine, Running, Shard, disks, seconds};
use crate::control::{ChangeOptions, EventMarks, EventsRead, Sample, Scope, Told, Value};
use crate::trust::{Protection, now_s};
use atoll_api::envelope::{Missing, rfc3339};
use atoll_api::types::{
    Cluster, ClusterPatch, Disk, DiskWipe, DiskWipeRequest, Event, Group, GroupCreate, GroupShape,
    GroupState, HealthCheck, Host, HostRemoval, HostRemovalState, Level, LockPurpose, Member,
    MemberState, Method, Placement, Policy, PolicyCheck, Resync, Scrub, Session, Space, Task,
    Upgrade, Volume, VolumeCreate, VolumeLock, VolumeLockRequest, VolumePatch,
};
use atoll_api::uri::Nbd;
use atoll_api::{Code, Problem};
use atoll_format::id::{GroupId, HostId, ObjectId};
use atoll_format::record;
use atoll_format::units::BLOCK;
use atoll_node::{
    About, Check, ClusterFacts, CreateVolume, HostStatus, KnownHost, ManageError, NodeEvent,
    RemoveHost, Resize, Severity, VolumeView, host_name, merge_events,
};
use atoll_object::placement::{Refusal, Remedy};
use atoll_world::{Nanos, World};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Bytes per second and disk group of a scrub that names no rate: a disk of 4 TB in 11 hours.
const SCRUB_RATE: u64 = 100 << 20;
/// How long the metrics wait for the list of volumes.
const LIST_WAIT: std::time::Duration = std::time::Duration::from_secs(1);
/// How long whoever has made a disk group waits for it to be published.
const PUBLISH_WAIT: Nanos = Nanos::from_secs(3);
/// Why a host is missing from an answer.
pub const SILENT: &str = "does not answer";

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
        ManageError::HostHolds { ref next, .. } => {
            let next = next.clone();
            Problem::new(Code::InUse, detail).hint(next)
        }
        ManageError::NotUpgraded { .. } => Problem::new(Code::Conflict, detail).hint(
            "install the newer release there and restart the host; 'atoll cluster upgrade' shows \
             all hosts",
        ),
        ManageError::LastCopies { .. } => Problem::new(Code::WouldRiskData, detail).hint(
            "bring the hosts with their other copies back, and wait until the volumes are in sync \
             ('atoll volume list'); 'atoll volume delete VOLUME --force' gives a volume up",
        ),
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

/// Those of the cluster's hosts that do not tell.
pub fn missing(hosts: &[KnownHost]) -> Vec<Missing> {
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

impl Engine {
    /// The cluster at this moment.
    ///
    /// # Errors
    /// The directory does not answer, or the host does not serve yet.
    pub async fn facts(&self) -> Result<ClusterFacts, Problem> {
        self.running()?.node.facts().await.map_err(problem)
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
            level: node.level().0,
        })
    }

    /// Which feature level the cluster is at, and which its hosts know.
    pub async fn upgrade(&self) -> Result<Upgrade, Problem> {
        Ok(upgrade_item(self.running()?.node.upgrade().await.map_err(problem)?, false))
    }

    /// Raises the cluster to the newest feature level that all hosts know.
    pub async fn cluster_upgrade(&self, dry_run: bool) -> Result<Upgrade, Problem> {
        let mut upgrade = self.running()?.node.raise_level(dry_run).await.map_err(problem)?;
        let raised = !dry_run && upgrade.next > upgrade.level;
        if raised {
            upgrade.level = upgrade.next;
        }
        Ok(upgrade_item(upgrade, raised))
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
        let unused = self.slots.iter().filter(|slot| slot.running().is_none());
        let check = |slot: &GroupSlot| {
            let (disks, why) = (slot.paths().join(", "), slot.trouble());
            check_item(Check::disk_unused(&self.config.host_name, &disks, &why))
        };
        let trust = self.trust.iter();
        let trust = trust.filter_map(|trust| trust.check(&self.config.host_name, now_s()));
        unused.map(check).chain(trust).chain(self.audit_check()).collect()
    }

    /// That the audit log of this host takes no entries, if so.
    fn audit_check(&self) -> Option<HealthCheck> {
        let why = self.audit.trouble()?;
        let (host, lost) = (&self.config.host_name, self.audit.lost());
        Some(HealthCheck {
            name: "audit-not-kept".into(),
            level: Level::Warning,
            message: format!(
                "host {host} does not write down who changes what, {lost} entries are lost: {why}"
            ),
            remedy: "make room on the file system of host.data_dir, or make it writable".into(),
        })
    }

    /// How this host's connections with others are protected.
    pub fn protection(&self) -> Protection {
        let until = self.trust.as_ref().map(|trust| rfc3339(trust.validity().until_s * 1000));
        Protection { tls: until.is_some(), certificate_until: until }
    }

    /// What clients of this host have open, and do.
    ///
    /// # Errors
    /// A shard does not tell.
    pub async fn figures(&self) -> Result<Figures, Problem> {
        Ok(self.shards.figures().await?.used)
    }

    /// Asks every host how it is, if the cluster is meant; those that do not tell.
    ///
    /// # Errors
    /// The host does not serve yet, or has not read yet which hosts there are.
    pub async fn look(&self, scope: &Scope) -> Result<Vec<Missing>, Problem> {
        let node = &self.running()?.node;
        if *scope == Scope::Local {
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
    pub async fn hosts(&self) -> Result<Vec<Host>, Problem> {
        let hosts = self.running()?.node.hosts();
        let load = self.figures().await?.io();
        let own = self.protection();
        let all = hosts.into_iter().map(|(record, up, status)| Host {
            tls: (record.id == self.host).then_some(own.tls),
            certificate_until: own.certificate_until.clone().filter(|_| record.id == self.host),
            up,
            groups: record.groups.len() as u32,
            owned_volumes: status.as_ref().map(|s| s.objects.len() as u32),
            space: status.as_ref().map(|status| space_item(status.space())),
            io: (record.id == self.host).then_some(load),
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
        for slot in self.slots.iter() {
            let group = slot.running();
            let record = mine.and_then(|(record, ..)| {
                record.groups.iter().find(|record| Some(record.id) == group)
            });
            let (name, identity) = (&self.config.host_name, self.identity(&running.cluster));
            all.extend(disks::describe(slot, name, identity, self.config.backend, record).await);
        }
        Ok(all)
    }

    /// Removes a host for good.
    pub async fn host_remove(
        &self,
        host: &str,
        lost: bool,
        dry_run: bool,
    ) -> Result<HostRemoval, Problem> {
        self.may_lose_member(host).await?;
        let remove = RemoveHost { lost, dry_run };
        let removal = self.running()?.node.remove_host(host, remove).await.map_err(problem)?;
        let state = match removal.is_done {
            true => HostRemovalState::Removed,
            false if dry_run => HostRemovalState::Possible,
            false => HostRemovalState::Removing,
        };
        let (host, id) = (removal.name, removal.host.to_string());
        Ok(HostRemoval { host, id, state, waits_for: removal.waits_for })
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
            let node = &self.running()?.node;
            let disks = vec![wiped.path.clone()];
            let about = About { disks, ..About::host(node.id()) };
            node.note(Severity::Warning, "disk-wiped", about, message);
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
        let group = Group {
            id: GroupId::default().to_string(),
            host: self.config.host_name.clone(),
            shape: match slot.config.all_flash {
                true => GroupShape::AllFlash,
                false => GroupShape::SingleTier,
            },
            disks: slot.paths(),
            state: GroupState::Healthy,
            healthy: true,
            failure: String::new(),
            space: None,
            log_bytes: None,
            log_fill_percent: None,
            components: None,
        };
        let identity = self.identity(&running.cluster);
        let create = move |shard: Rc<Shard>| async move {
            shard.create_group(group, identity, dry_run).await
        };
        let group = self.shards.on(slot.shard, create).await?;
        if let (Some(id), false) = (slot.running(), dry_run) {
            self.wait_until_published(id).await;
        }
        Ok(group)
    }

    /// Returns when this host's record, as it is read here, has that group: whoever lists groups or
    /// disks then finds it. Not without end: the directory may be away.
    async fn wait_until_published(&self, group: GroupId) {
        let Ok(running) = self.running() else { return };
        let until = running.world.now() + PUBLISH_WAIT;
        let is_there = || {
            let hosts = running.node.hosts();
            let own = hosts.iter().find(|(record, ..)| record.id == self.host);
            own.is_some_and(|(record, ..)| record.groups.iter().any(|g| g.id == group))
        };
        while !is_there() && running.world.now() < until {
            running.world.sleep(Nanos::from_ms(20)).await;
        }
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

    fn volume_item(&self, view: &VolumeView, facts: &ClusterFacts, used: &Figures) -> Volume {
        let name = &view.name;
        let (io, sessions) = used.of(name);
        Volume {
            name: name.clone(),
            id: view.record.id.to_string(),
            size_bytes: view.record.size_bytes,
            used_bytes: view.used_bytes,
            guest_bytes: view.guest_bytes,
            policy: view.policy.clone(),
            failures_to_tolerate: view.record.policy.failures_to_tolerate,
            iops_limit: view.record.policy.iops_limit,
            state: state_item(facts.state(view)),
            owner: view.record.owner.map(|owner| host_name(&facts.hosts, owner.host)),
            epoch: view.record.epoch.0,
            sessions,
            created_at: rfc3339(view.created_ms),
            revision: view.revision,
            io,
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
        let (facts, used) = (self.facts().await?, self.figures().await?);
        Ok(facts.volumes.iter().map(|volume| self.volume_item(volume, &facts, &used)).collect())
    }

    async fn one(&self, running: &Running, volume: VolumeView) -> Result<Volume, Problem> {
        let facts = ClusterFacts { hosts: running.node.hosts(), ..ClusterFacts::default() };
        Ok(self.volume_item(&volume, &facts, &self.figures().await?))
    }

    /// One volume, by name or id.
    pub async fn volume(&self, name: &str) -> Result<Volume, Problem> {
        let running = self.running()?;
        let volume = running.node.volume(&self.name_of(name).await?).await.map_err(problem)?;
        self.one(running, volume).await
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
        self.one(running, volume).await
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
            self.shards.own().forget_figures(&name);
            let forget = move |shard: Rc<Shard>| async move {
                shard.forget_figures(&name);
                Ok(())
            };
            // What a shard that does not answer has counted is forgotten later.
            self.shards.on_others(forget).await;
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
        let mut resync = resync_item(&self.facts().await?);
        // Hosts tell every two seconds; what was just set is known already.
        resync.paused = paused;
        resync.limit_bytes_per_second = limit;
        Ok(Told { what: resync, missing: self.silent(&silent)? })
    }

    /// Scrubs of this host's disk groups.
    pub fn scrubs(&self) -> Result<Vec<Scrub>, Problem> {
        let groups = self.running()?.node.host_status().groups.into_iter();
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

    /// Starts the scrub of one of this host's disk groups; rate 0 stops it.
    pub async fn scrub_group(&self, group: &str, rate: Option<u64>) -> Result<(), Problem> {
        self.running()?;
        let not_found = || Problem::not_found("group", group);
        let id: GroupId = group.parse().map_err(|_| not_found())?;
        let slot = self.slots.of_group(id).ok_or_else(not_found)?;
        let rate = rate.unwrap_or(SCRUB_RATE);
        self.shards.on(slot.shard, move |shard| async move { shard.scrub(id, rate) }).await
    }

    /// Starts scrubs on all hosts, of one volume if one is named; rate 0 stops them. Those hosts
    /// that did not hear of it.
    pub async fn scrub_all(
        &self,
        volume: Option<&str>,
        rate: Option<u64>,
    ) -> Result<Vec<Missing>, Problem> {
        let volume = match volume {
            Some(volume) => Some(self.name_of(volume).await?),
            None => None,
        };
        let rate = rate.unwrap_or(SCRUB_RATE);
        let silent = self.running()?.node.scrub(volume.as_deref(), rate).await.map_err(problem)?;
        self.silent(&silent)
    }

    /// Whether there may be tasks that go on, or whose end has not been seen.
    pub fn may_have_tasks(&self) -> bool {
        let Ok(running) = self.running() else { return false };
        let statuses = running.node.hosts();
        self.tasks.borrow().is_busy()
            || running.node.host_status().is_busy()
            || statuses.iter().any(|(.., s)| s.as_ref().is_some_and(HostStatus::is_busy))
    }

    /// Resyncs and scrubs: those that go on, and how the last ones ended.
    pub async fn tasks(&self) -> Result<Vec<Task>, Problem> {
        let facts = self.facts().await?;
        let mut book = self.tasks.borrow_mut();
        book.enter(self.running()?.world.unix_ms(), &facts);
        Ok(book.tasks().map(task_item).collect())
    }

    /// Events that were not read, of this host alone or of all that answer; see
    /// [`Control::events`](crate::control::Control::events).
    pub async fn events(
        &self,
        scope: &Scope,
        since: u64,
        read: EventMarks,
        max: usize,
    ) -> Result<Told<EventsRead>, Problem> {
        let node = &self.running()?.node;
        let (found, silent) = if *scope == Scope::Local {
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
    pub async fn sessions(&self, volume: Option<&str>) -> Result<Vec<Session>, Problem> {
        let sessions = self.figures().await?.sessions.into_iter();
        let wanted = sessions.filter(|s| volume.is_none_or(|volume| s.volume == volume));
        let sessions = wanted.map(|session| {
            let SessionFigures { id, volume, peer, since_ms, totals, in_flight } = session;
            Session {
                id,
                volume,
                host: self.config.host_name.clone(),
                protocol: "nbd".into(),
                peer,
                since: rfc3339(since_ms),
                reads: totals.reads,
                writes: totals.writes,
                in_flight,
            }
        });
        Ok(sessions.collect())
    }

    /// Forgets the load of volumes that are gone, whoever has deleted them. What cannot be found
    /// out in a second stays.
    pub async fn forget_gone(&self) {
        let Ok(running) = self.running() else { return };
        let listed = tokio::time::timeout(LIST_WAIT, running.node.volumes()).await;
        if let Ok(Ok(volumes)) = listed {
            let names: BTreeSet<String> = volumes.into_iter().map(|volume| volume.name).collect();
            self.shards.own().keep_figures(|name| names.contains(name));
            let keep = move |shard: Rc<Shard>| async move {
                shard.keep_figures(|name| names.contains(name));
                Ok(())
            };
            self.shards.on_others(keep).await;
        }
    }

    /// Numbers for Prometheus, of this host.
    ///
    /// # Errors
    /// A shard does not tell: without its part, counters would seem to fall.
    pub async fn metrics(&self) -> Result<Vec<Sample>, Problem> {
        let figures = self.shards.figures().await?;
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
        for (name, (totals, _)) in &figures.used.volumes {
            let labels = [("host", host), ("volume", name.as_str())];
            for (name, help, value) in volume_samples(totals) {
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
        let help = "Entries of the audit log that the file system of host.data_dir did not take.";
        let lost = self.audit.lost() as f64;
        put("atoll_audit_entries_lost_total", help, true, &[("host", host)], lost);
        if let Some(trust) = &self.trust {
            let help = "When the certificate of this host expires, in seconds since 1970.";
            let until = trust.validity().until_s as f64;
            put("atoll_certificate_expires_seconds", help, false, &[("host", host)], until);
        }
        let Ok(running) = serving else { return Ok(samples) };
        let status = running.node.host_status();
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
        put(
            "atoll_promised_bytes",
            "What the owned volumes may take on disks, all copies, if written in full.",
            false,
            &own,
            figures.promised_bytes as f64,
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
        let nbd = figures.nbd;
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
            (
                "atoll_nbd_resumed_total",
                "Connections taken over from the shard that accepted them.",
                nbd.resumed,
            ),
            ("atoll_nbd_refused_total", "Connections refused.", nbd.refused),
            ("atoll_nbd_violations_total", "Clients that broke the protocol.", nbd.violations),
            ("atoll_nbd_requests_total", "Requests carried out.", nbd.requests),
            ("atoll_nbd_failures_total", "Requests that the volume failed.", nbd.failures),
            ("atoll_nbd_invalid_total", "Requests that were refused.", nbd.invalid),
        ];
        for (name, help, value) in counters {
            put(name, help, true, &own, value as f64);
        }
        samples.extend(self.stage_samples(&figures.stages));
        Ok(samples)
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
}
