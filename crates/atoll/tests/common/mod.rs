//! A made-up engine and a server in front of it, for tests of the REST server and the commands.
//!
//! The engine keeps volumes and policies in memory and follows the rules that its callers rely on
//! (names taken, revisions, in use); nothing in it knows storage.

#![allow(dead_code, reason = "each test program uses its own part of this")]
#![allow(clippy::disallowed_methods, reason = "tests start threads")]

use atoll::audit::Deed;
use atoll::control::{
    Caller, ChangeOptions, Control, EventMarks, EventsRead, JoinMade, Sample, Scope, Told, Value,
};
use atoll::rest::door::Access;
use atoll::rest::listen::Listeners;
use atoll_api::envelope::Missing;
use atoll_api::routes::Role;
use atoll_api::types::*;
use atoll_api::{Code, Problem};
use atoll_format::id::{ClusterId, HostId, Incarnation};
use atoll_node::EventMark;
use atoll_trust::{Authority, TokenSecret};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// The time of the made-up world: 2026-11-20T12:00:00Z.
pub const NOW_MS: u64 = 1_795_176_000_000;

/// A good member of etcd.
fn member(endpoint: &str, leads: bool) -> DirectoryMember {
    DirectoryMember {
        endpoint: endpoint.into(),
        used: leads,
        leads,
        version: "3.6.9".into(),
        db_bytes: 20 << 10,
        trouble: String::new(),
    }
}

#[derive(Default)]
pub struct State {
    pub volumes: BTreeMap<String, Volume>,
    pub policies: BTreeMap<String, Policy>,
    pub events: Vec<Event>,
    /// Volumes with a client.
    pub used: Vec<String>,
    pub revision: u64,
    pub paused: bool,
    pub limit: u64,
    pub promised_limit: Option<u32>,
    /// The cluster was raised to level 2.
    pub raised: bool,
    /// Volumes made, deleted ones included.
    pub made: u32,
    pub level: Option<Level>,
    /// Every call waits for so long.
    pub delay: std::time::Duration,
    /// Hosts that do not answer.
    pub silent: Vec<String>,
    /// How often profiles were asked for: every time, a second has passed.
    pub looks: u64,
    /// Who was meant by the last call that says so.
    pub scope: Option<Scope>,
    /// Tokens, with the hashes that they are known by.
    pub tokens: BTreeMap<String, (Token, String)>,
    /// Who signs for hosts that join, if anybody does.
    pub authority: Option<Authority>,
    /// What tokens for joining say of it, and where hosts are.
    pub authority_sha256: String,
    pub addresses: Vec<String>,
    /// Who signed the certificates of etcd.
    pub etcd_ca: Option<String>,
    /// The clock by which it signs, seconds since 1970.
    pub now_s: u64,
    /// Names of machines that have joined, or asked whether they might.
    pub joined: Vec<String>,
    /// Who was said to be refused.
    pub refused: Vec<String>,
    /// What was written down.
    pub deeds: Vec<Deed>,
}

/// The made-up engine. Clones are the same.
#[derive(Clone, Default)]
pub struct Fake(pub Arc<Mutex<State>>);

impl Fake {
    pub fn new() -> Self {
        let fake = Self::default();
        let policy = Policy {
            name: "default".into(),
            failures_to_tolerate: 1,
            method: Method::Mirror,
            stripe_width: 1,
            iops_limit: 0,
            reserve_percent: 0,
        };
        fake.0.lock().unwrap().policies.insert("default".into(), policy);
        fake
    }

    /// An answer that is collected.
    fn told<T>(&self, what: T) -> Collected<T> {
        let missing = |host: &String| Missing { host: host.clone(), why: "does not answer".into() };
        Ok(Told { what, missing: self.0.lock().unwrap().silent.iter().map(missing).collect() })
    }

    /// Who is meant by a call.
    fn meant(&self, scope: Scope) {
        self.0.lock().unwrap().scope = Some(scope);
    }

    async fn wait(&self) {
        let delay = self.0.lock().unwrap().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    pub fn event(&self, kind: &str, message: &str) {
        self.event_at(NOW_MS, kind, message);
    }

    /// One of a host whose clock shows that.
    pub fn event_at(&self, at_ms: u64, kind: &str, message: &str) {
        let mut state = self.0.lock().unwrap();
        let state_number = state.events.len() as u64 + 1;
        let id = at_ms * 1_000 + state_number;
        state.events.push(Event {
            id,
            at: atoll_api::envelope::rfc3339(at_ms),
            host: "host1".into(),
            level: Level::Warning,
            kind: kind.into(),
            subject: "vm1".into(),
            message: message.into(),
            number: state_number,
            object: None,
            of_host: None,
            group: None,
            disks: Vec::new(),
            numbers: BTreeMap::new(),
            cause: None,
            next_step: None,
        });
    }
}

type ControlResult<T> = Result<T, Problem>;
type Collected<T> = Result<Told<T>, Problem>;

fn used(name: &str) -> Problem {
    Problem::new(Code::InUse, format!("volume {name} is in use on host1"))
        .hint(format!("atoll session list --volume {name}"))
}

/// The name of the one host that is meant; the made-up engine is host1.
fn host_of(scope: Scope) -> String {
    match scope {
        Scope::Host(host) => host,
        _ => "host1".into(),
    }
}

/// The volume of that name or id.
fn called<'a>(state: &'a State, name: &str) -> ControlResult<&'a Volume> {
    let by_id = || state.volumes.values().find(|volume| volume.id == name);
    let found = state.volumes.get(name).or_else(by_id);
    found.ok_or_else(|| Problem::not_found("volume", name))
}

impl Control for Fake {
    fn unix_ms(&self) -> u64 {
        NOW_MS
    }
    async fn ready(&self) -> Result<(), String> {
        Ok(())
    }
    async fn metrics(&self) -> ControlResult<Vec<Sample>> {
        let labels = vec![("host", "host1".to_owned())];
        Ok(vec![Sample { name: "atoll_up", help: "One.", labels, value: Value::Gauge(1.0) }])
    }
    async fn status(&self, scope: Scope) -> Collected<Status> {
        let health = self.health(scope).await?.what;
        let volumes = self.0.lock().unwrap().volumes.len() as u32;
        let cluster = self.cluster().await?;
        self.told(Status {
            cluster,
            health,
            directory: Some(Directory {
                kind: "etcd".into(),
                has_leader: Some(true),
                members: vec![member("10.0.0.1:2379", true), member("10.0.0.2:2379", false)],
            }),
            space: Some(Space {
                capacity_bytes: 24 << 30,
                used_bytes: 12 << 30,
                free_bytes: 11 << 30,
            }),
            promised_bytes: 36 << 30,
            exist_bytes: 24 << 30,
            io: Io {
                write_iops: 800,
                write_bytes_per_second: 3_300_000,
                write_latency_us: 1_500,
                ..Io::default()
            },
            hosts_up: 3,
            hosts: 3,
            volumes,
            volumes_degraded: 0,
            volumes_inaccessible: 0,
            resync_bytes_left: 3 << 29,
            resync_copies: 1,
            resync_seconds_left: Some(3_900),
            checksum_errors: 0,
        })
    }
    async fn cluster(&self) -> ControlResult<Cluster> {
        self.wait().await;
        let state = self.0.lock().unwrap();
        Ok(Cluster {
            id: "00000000000000c1".into(),
            name: "demo".into(),
            release: "0.1.0".into(),
            answered_by: "host1".into(),
            repair_delay_s: 3_600,
            resync_floor_bytes: 1 << 20,
            promised_limit_percent: state.promised_limit.unwrap_or(1000),
            level: 1 + u16::from(state.raised),
        })
    }
    async fn upgrade(&self) -> ControlResult<Upgrade> {
        let host = |name: &str, newest| UpgradeHost {
            id: format!("{:016x}", 9),
            name: name.into(),
            release: "0.1.0".into(),
            up: newest > 1,
            oldest: 1,
            newest,
        };
        let level = 1 + u16::from(self.0.lock().unwrap().raised);
        let (hosts, obstacles) = (
            vec![host("host1", 3), host("host2", 2)],
            vec!["host host2 ran release 0.1.0, which knows levels 1 to 2".into()],
        );
        Ok(Upgrade { level, next: 2, newest: 3, raised: false, hosts, obstacles })
    }
    async fn cluster_upgrade(&self, change: ChangeOptions) -> ControlResult<Upgrade> {
        let raised = !change.dry_run && !self.0.lock().unwrap().raised;
        self.0.lock().unwrap().raised |= raised;
        Ok(Upgrade { raised, ..self.upgrade().await? })
    }
    async fn cluster_patch(&self, patch: ClusterPatch, _: ChangeOptions) -> ControlResult<Cluster> {
        self.0.lock().unwrap().promised_limit = patch.promised_limit_percent;
        self.cluster().await
    }
    async fn health(&self, scope: Scope) -> Collected<Health> {
        self.meant(scope);
        let level = self.0.lock().unwrap().level;
        match level {
            None => self.told(Health { level: Level::Ok, checks: vec![] }),
            Some(level) => self.told(Health {
                level,
                checks: vec![HealthCheck {
                    name: "host-down".into(),
                    level,
                    message: "host host2 does not answer".into(),
                    remedy: "start its daemon".into(),
                }],
            }),
        }
    }
    async fn hosts(&self, scope: Scope) -> Collected<Vec<Host>> {
        self.meant(scope);
        let host = |number: u32| Host {
            id: format!("{number:016x}"),
            name: format!("host{number}"),
            up: number != 3,
            fault_domain: format!("rack{number}"),
            api: format!("127.0.0.{}:8460", number + 1),
            peers: vec![format!("127.0.0.{}:8461", number + 1)],
            release: "0.1.0".into(),
            groups: 1,
            owned_volumes: (number != 3).then_some(0),
            space: (number != 3).then(Space::default),
            io: (number != 3).then(Io::default),
            tls: (number != 3).then_some(number == 1),
            certificate_until: (number == 1).then(|| "2027-02-26T09:10:35.000Z".into()),
        };
        self.told((1..=3).map(host).collect())
    }
    async fn disks(&self, scope: Scope) -> ControlResult<Vec<Disk>> {
        self.meant(scope.clone());
        let host = host_of(scope);
        if host != "host1" {
            return Err(Problem::not_found("host", &host));
        }
        Ok(vec![Disk {
            host: "host1".into(),
            path: "/dev/a".into(),
            id: None,
            size_bytes: 8 << 30,
            state: DiskState::Foreign,
            group: None,
            detail: "ext4 file system".into(),
        }])
    }
    async fn host_remove(
        &self,
        host: &str,
        lost: bool,
        change: ChangeOptions,
    ) -> ControlResult<HostRemoval> {
        let state = match (change.dry_run, lost) {
            (true, _) => HostRemovalState::Possible,
            (false, true) => HostRemovalState::Removing,
            (false, false) => HostRemovalState::Removed,
        };
        let waits_for = if lost { vec!["vm1".into()] } else { vec![] };
        Ok(HostRemoval { host: host.into(), id: format!("{:016x}", 9), state, waits_for })
    }
    async fn disk_wipe(
        &self,
        scope: Scope,
        request: DiskWipeRequest,
        _: ChangeOptions,
    ) -> ControlResult<DiskWipe> {
        self.meant(scope.clone());
        let erased = "ext4 file system".into();
        Ok(DiskWipe { host: host_of(scope), path: request.path, erased })
    }
    async fn groups(&self, scope: Scope) -> Collected<Vec<Group>> {
        self.meant(scope);
        let silent = self.0.lock().unwrap().silent.clone();
        let group = |number: u32| {
            let host = format!("host{number}");
            let tells = !silent.contains(&host);
            Group {
                id: format!("{:016x}", 0xbb + number),
                host,
                shape: GroupShape::SingleTier,
                disks: vec!["/dev/a".into()],
                state: if tells { GroupState::Healthy } else { GroupState::Unknown },
                healthy: tells,
                failure: String::new(),
                space: tells.then(Space::default),
                log_bytes: tells.then_some(1 << 30),
                log_fill_percent: tells.then_some(1),
                components: tells.then_some(4),
            }
        };
        self.told((1..=2).map(group).collect())
    }
    async fn group_create(
        &self,
        scope: Scope,
        request: GroupCreate,
        _: ChangeOptions,
    ) -> ControlResult<Group> {
        self.meant(scope);
        let disk = &request.disks[0];
        Err(Problem::new(Code::ForeignDisk, format!("disk '{disk}' holds foreign data: XFS"))
            .hint(format!("atoll disk wipe {disk} erases it")))
    }
    async fn policies(&self) -> ControlResult<Vec<Policy>> {
        Ok(self.0.lock().unwrap().policies.values().cloned().collect())
    }
    async fn policy_create(&self, policy: Policy, change: ChangeOptions) -> ControlResult<Policy> {
        let mut state = self.0.lock().unwrap();
        if state.policies.contains_key(&policy.name) {
            return Err(Problem::new(Code::Exists, format!("policy {} exists", policy.name)));
        }
        if !change.dry_run {
            state.policies.insert(policy.name.clone(), policy.clone());
        }
        Ok(policy)
    }
    async fn policy_delete(&self, name: &str, _: ChangeOptions) -> ControlResult<()> {
        let removed = self.0.lock().unwrap().policies.remove(name);
        removed.map(drop).ok_or_else(|| Problem::not_found("policy", name))
    }
    async fn policy_check(&self, name: &str, size_bytes: u64) -> ControlResult<PolicyCheck> {
        let fits = size_bytes <= 10 << 30;
        let why = if fits { "2 copies have room" } else { "2 hosts are needed, 1 has room" };
        Ok(PolicyCheck {
            policy: name.into(),
            size_bytes,
            fits,
            raw_bytes: size_bytes * 2,
            reasons: vec![why.into()],
        })
    }
    async fn volumes(&self, scope: Scope) -> Collected<Vec<Volume>> {
        self.meant(scope);
        self.wait().await;
        let volumes = self.0.lock().unwrap().volumes.values().cloned().collect();
        self.told(volumes)
    }
    async fn volume(&self, name: &str, scope: Scope) -> Collected<Volume> {
        self.meant(scope);
        let found = self.0.lock().unwrap().volumes.get(name).cloned();
        self.told(found.ok_or_else(|| Problem::not_found("volume", name))?)
    }
    async fn volume_create(
        &self,
        request: VolumeCreate,
        change: ChangeOptions,
    ) -> ControlResult<Volume> {
        self.wait().await;
        let policy = request.policy.unwrap_or_else(|| "default".into());
        let mut state = self.0.lock().unwrap();
        if !state.policies.contains_key(&policy) {
            return Err(Problem::not_found("policy", &policy));
        }
        if state.volumes.contains_key(&request.name) {
            let detail = format!("a volume named '{}' exists already", request.name);
            return Err(Problem::new(Code::Exists, detail).hint("atoll volume list"));
        }
        if request.size_bytes > 10 << 40 {
            let detail = "policy default needs 2 hosts with room, 0 have it";
            return Err(Problem::new(Code::CannotPlace, detail).hint("add 2 hosts"));
        }
        state.revision += 1;
        let volume = Volume {
            name: request.name.clone(),
            id: format!("{:016x}", state.revision),
            size_bytes: request.size_bytes,
            used_bytes: Some(0),
            guest_bytes: Some(0),
            policy,
            failures_to_tolerate: 1,
            iops_limit: 0,
            state: VolumeState::Healthy,
            owner: Some("host1".into()),
            epoch: 1,
            sessions: 0,
            created_at: atoll_api::envelope::rfc3339(NOW_MS),
            revision: state.revision,
            io: Io::default(),
            exports: vec![],
        };
        if !change.dry_run {
            state.made += 1;
            state.volumes.insert(request.name, volume.clone());
        }
        Ok(volume)
    }
    async fn volume_patch(
        &self,
        name: &str,
        patch: VolumePatch,
        scope: Scope,
        change: ChangeOptions,
    ) -> Collected<Volume> {
        self.meant(scope);
        let mut state = self.0.lock().unwrap();
        state.revision += 1;
        let revision = state.revision;
        let volume =
            state.volumes.get_mut(name).ok_or_else(|| Problem::not_found("volume", name))?;
        if change.if_revision.is_some_and(|wanted| wanted != volume.revision) {
            return Err(Problem::new(Code::Changed, format!("volume {name} has changed")));
        }
        let size = patch.size_bytes.expect("the server checks it");
        if size < volume.size_bytes && !patch.shrink {
            return Err(Problem::new(Code::WouldRiskData, "the new size is below the present one")
                .hint("--shrink"));
        }
        let mut changed = volume.clone();
        changed.size_bytes = size;
        changed.revision = revision;
        if !change.dry_run {
            *volume = changed.clone();
        }
        Ok(Told::whole(changed))
    }
    async fn volume_lock(
        &self,
        name: &str,
        request: VolumeLockRequest,
        _: ChangeOptions,
    ) -> ControlResult<VolumeLock> {
        let state = self.0.lock().unwrap();
        let volume = called(&state, name)?;
        if state.used.contains(&volume.name) {
            return Err(used(&volume.name));
        }
        if volume.size_bytes < request.min_size_bytes {
            let detail = format!("volume '{}' has {} bytes", volume.name, volume.size_bytes);
            return Err(Problem::new(Code::BadSize, detail));
        }
        if volume.used_bytes != Some(0) && !request.replace {
            let detail = format!("volume '{name}' holds data");
            return Err(Problem::new(Code::WouldRiskData, detail).hint("--yes"));
        }
        Ok(VolumeLock {
            volume: volume.name.clone(),
            id: volume.id.clone(),
            size_bytes: volume.size_bytes,
            token: format!("{:016x}", 7),
            exports: vec![],
        })
    }
    async fn volume_unlock(&self, name: &str, token: u64, _: ChangeOptions) -> ControlResult<()> {
        let found = called(&self.0.lock().unwrap(), name).is_ok() && token == 7;
        found.then_some(()).ok_or_else(|| Problem::not_found("import lock", name))
    }
    async fn volume_delete(&self, name: &str, change: ChangeOptions) -> ControlResult<()> {
        let mut state = self.0.lock().unwrap();
        let volume = called(&state, name)?.clone();
        let name = &volume.name;
        if change.if_revision.is_some_and(|wanted| wanted != volume.revision) {
            return Err(Problem::new(Code::Changed, format!("volume {name} has changed")));
        }
        if state.used.iter().any(|used| used == name) {
            return Err(used(name));
        }
        if !change.dry_run {
            state.volumes.remove(name);
        }
        Ok(())
    }
    async fn placement(&self, name: &str) -> ControlResult<Placement> {
        let volume = called(&self.0.lock().unwrap(), name)?.clone();
        Ok(Placement {
            volume: volume.name,
            object: volume.id,
            size_bytes: volume.size_bytes,
            owner: volume.owner,
            epoch: 1,
            members: vec![Member {
                leg: 0,
                component: "00000000000000aa".into(),
                host: "host1".into(),
                group: "00000000000000bb".into(),
                fault_domain: "rack1".into(),
                state: MemberState::Active,
                absent_since: None,
                rebuild_at: None,
            }],
            reasons: vec!["leg 0: the host that uses it is here".into()],
        })
    }
    async fn resync(&self, scope: Scope) -> Collected<Resync> {
        self.meant(scope);
        let (paused, limit_bytes_per_second) = {
            let state = self.0.lock().unwrap();
            (state.paused, state.limit)
        };
        self.told(Resync {
            paused,
            limit_bytes_per_second,
            bytes_left: 1 << 30,
            bytes_per_second: 100_000_000,
            seconds_left: Some(10),
            items: vec![],
        })
    }
    async fn resync_patch(&self, patch: ResyncPatch, _: ChangeOptions) -> Collected<Resync> {
        {
            let mut state = self.0.lock().unwrap();
            state.paused = patch.paused.unwrap_or(state.paused);
            state.limit = patch.limit_bytes_per_second.unwrap_or(state.limit);
        }
        self.resync(Scope::Cluster).await
    }
    async fn scrubs(&self, scope: Scope) -> Collected<Vec<Scrub>> {
        self.meant(scope);
        self.told(vec![Scrub {
            group: "00000000000000bb".into(),
            host: "host1".into(),
            running: true,
            blocks_checked: 50,
            blocks_total: 200,
            blocks_bad: 0,
        }])
    }
    async fn scrub_start(
        &self,
        _: ScrubStart,
        scope: Scope,
        _: ChangeOptions,
    ) -> Collected<Vec<Scrub>> {
        self.scrubs(scope).await
    }
    async fn scrub_stop(
        &self,
        _: Option<&str>,
        scope: Scope,
        _: ChangeOptions,
    ) -> Collected<Vec<Scrub>> {
        self.scrubs(scope).await
    }
    async fn tasks(&self, scope: Scope) -> Collected<Vec<Task>> {
        self.meant(scope);
        let task = |id: &str, state, percent| Task {
            id: id.into(),
            kind: "resync".into(),
            subject: "vm1".into(),
            state,
            percent,
            message: "it said so".into(),
            started_at: atoll_api::envelope::rfc3339(NOW_MS),
            ended_at: None,
        };
        self.told(vec![
            task("bad", TaskState::Failed, 20),
            task("good", TaskState::Done, 100),
            task("long", TaskState::Running, 50),
        ])
    }
    async fn events(
        &self,
        scope: Scope,
        since: u64,
        read: EventMarks,
        max: usize,
    ) -> Collected<EventsRead> {
        self.meant(scope);
        let events = self.0.lock().unwrap().events.clone();
        let mark = |number: usize| EventMark { life: Incarnation(1), number: number as u64 };
        let begin = match read.get(&HostId(1)) {
            Some(mark) => mark.number as usize,
            None => events.iter().take_while(|event| event.id <= since).count(),
        };
        let more = events.len() - begin > max;
        let new = events.into_iter().enumerate().skip(begin).take(max);
        let new = new.map(|(at, event)| (event, HostId(1), mark(at + 1))).collect();
        self.told(EventsRead { events: new, begun: [(HostId(1), mark(begin))].into(), more })
    }
    async fn sessions(&self, scope: Scope, volume: Option<&str>) -> Collected<Vec<Session>> {
        self.meant(scope);
        let used = self.0.lock().unwrap().used.clone();
        let wanted = used.iter().filter(|name| volume.is_none_or(|volume| volume == *name));
        let session = |name: &String| Session {
            id: 1,
            volume: name.clone(),
            host: "host1".into(),
            protocol: "nbd".into(),
            peer: "unix".into(),
            since: atoll_api::envelope::rfc3339(NOW_MS),
            reads: 1,
            writes: 2,
            in_flight: 0,
        };
        self.told(wanted.map(session).collect())
    }
    async fn profiles(&self, scope: Scope) -> Collected<Vec<Profile>> {
        self.meant(scope);
        let looks = {
            let mut state = self.0.lock().unwrap();
            state.looks += 1;
            state.looks
        };
        let stage = |name: &str, sampled: u64, buckets: &[(u64, u64)], mean_ns: u64| {
            let bucket = |&(ns, count): &(u64, u64)| ProfileBucket {
                below_ns: Some(ns),
                count: count * looks,
            };
            let noted = looks * buckets.iter().map(|(_, count)| count).sum::<u64>();
            ProfileStage {
                stage: name.into(),
                about: format!("about {name}"),
                count: noted * sampled,
                sampled,
                noted,
                noted_ns: noted * mean_ns,
                mean_ns,
                buckets: buckets.iter().map(bucket).collect(),
            }
        };
        let host = |number: u32, detail: &str, stages| Profile {
            host: format!("host{number}"),
            uptime_ms: 1_000 * looks,
            stages,
            detail: detail.into(),
        };
        let owner = vec![
            stage("write", 1, &[(2_000_000, 1_582), (8_000_000, 18)], 1_500_000),
            stage("peer", 16, &[(1_000_000, 99), (4_000_000, 1)], 900_000),
        ];
        let member = vec![stage("serve", 16, &[(500_000, 100)], 300_000)];
        let away = host(3, "host host3 does not answer", Vec::new());
        self.told(vec![host(1, "", owner), host(2, "", member), away])
    }
    async fn caller(&self, sha256: String) -> ControlResult<Caller> {
        let state = self.0.lock().unwrap();
        let known = state.tokens.values().find(|(_, known)| *known == sha256);
        let refused = |why: String| Err(Problem::new(Code::NotAuthenticated, why));
        match known {
            None => refused("the token is none of this cluster".into()),
            Some((token, _)) if token.expired => {
                refused(format!("token {} has expired", token.name))
            }
            Some((token, _)) => Ok(Caller { token: Some(token.name.clone()), role: token.role }),
        }
    }
    async fn refused(&self, message: String) {
        self.0.lock().unwrap().refused.push(message);
    }
    fn record(&self, deed: Deed) -> impl Future<Output = ()> + Send + use<> {
        self.0.lock().unwrap().deeds.push(deed);
        std::future::ready(())
    }
    async fn audit(&self, scope: Scope) -> Collected<Vec<AuditEntry>> {
        self.meant(scope);
        let deeds = self.0.lock().unwrap().deeds.clone();
        let entry = |(number, deed): (usize, Deed)| AuditEntry {
            host: "host1".into(),
            number: number as u64 + 1,
            at: atoll_api::envelope::rfc3339(deed.at_ms),
            who: deed.who,
            role: deed.role,
            from: deed.from,
            operation: deed.operation,
            target: deed.target,
            body: deed.body,
            status: deed.status,
            code: Some(deed.code).filter(|code| !code.is_empty()),
            detail: Some(deed.detail).filter(|detail| !detail.is_empty()),
            left_out: 0,
            sha256: "0".repeat(64),
        };
        self.told(deeds.into_iter().enumerate().map(entry).collect())
    }
    async fn tokens(&self) -> ControlResult<Vec<Token>> {
        Ok(self.0.lock().unwrap().tokens.values().map(|(token, _)| token.clone()).collect())
    }
    async fn token_create(
        &self,
        request: TokenCreate,
        sha256: String,
        change: ChangeOptions,
    ) -> ControlResult<Token> {
        let mut state = self.0.lock().unwrap();
        if state.tokens.contains_key(&request.name) {
            return Err(Problem::new(Code::Exists, format!("token {} exists", request.name)));
        }
        let at = |ms| atoll_api::envelope::rfc3339(ms);
        let token = Token {
            name: request.name.clone(),
            role: request.role,
            created: at(NOW_MS),
            expires: request.valid_s.map(|valid| at(NOW_MS + valid * 1000)),
            expired: false,
            used_by: None,
        };
        if !change.dry_run {
            state.tokens.insert(request.name, (token.clone(), sha256));
        }
        Ok(token)
    }
    async fn join_token_create(
        &self,
        request: JoinTokenCreate,
        sha256: String,
        change: ChangeOptions,
    ) -> ControlResult<JoinMade> {
        let name = request.name.unwrap_or_else(|| format!("join-{}", &sha256[..8]));
        let create = TokenCreate { name, role: Role::Join, valid_s: request.valid_s.or(Some(900)) };
        let token = self.token_create(create, sha256, change).await?;
        let state = self.0.lock().unwrap();
        let authority_sha256 = state.authority_sha256.clone();
        let addresses = state.addresses.clone();
        Ok(JoinMade { token, addresses, cluster: ClusterId(0xc), authority_sha256 })
    }
    async fn host_join(
        &self,
        request: HostJoin,
        token: Option<TokenSecret>,
        change: ChangeOptions,
    ) -> ControlResult<HostJoined> {
        let mut state = self.0.lock().unwrap();
        let (mut id, mut certificate) = (None, None);
        if let (Some(authority), Some(secret), false) = (&state.authority, token, change.dry_run) {
            let host = HostId(7);
            let issued = authority.issue(&request.request, host, state.now_s, 3600);
            let issued = issued.map_err(|e| Problem::new(Code::BadValue, e.to_string()))?;
            (id, certificate) = (Some(host.to_string()), Some(issued));
            state.tokens.retain(|_, (_, sha256)| *sha256 != secret.sha256());
        }
        state.joined.push(request.name);
        Ok(HostJoined {
            id,
            cluster: "000000000000000c".into(),
            certificate,
            authority: state.authority.as_ref().map(|a| a.certificate().into()).unwrap_or_default(),
            directory: JoinDirectory {
                endpoints: vec!["10.0.0.1:2379".into()],
                prefix: "/atoll".into(),
                ca: state.etcd_ca.clone(),
                client: EtcdClient::Host,
                managed: false,
            },
        })
    }
    async fn token_remove(&self, name: &str, change: ChangeOptions) -> ControlResult<()> {
        let mut state = self.0.lock().unwrap();
        if !state.tokens.contains_key(name) {
            return Err(Problem::not_found("token", name));
        }
        if !change.dry_run {
            state.tokens.remove(name);
        }
        Ok(())
    }
}

/// A running server; it stops when this is dropped.
pub struct TestServer {
    pub fake: Fake,
    pub tcp: SocketAddr,
    pub socket: PathBuf,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
    _dir: tempfile::TempDir,
}

impl TestServer {
    /// One that takes changes over TCP, too, and is also called `test`.
    pub fn start() -> Self {
        Self::with(Access {
            names: vec!["test:80".into(), "t:80".into()],
            writable: true,
            ..Access::default()
        })
    }

    pub fn with(access: Access) -> Self {
        let fake = Fake::new();
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("api.sock");
        let (stop, stopped) = watch::channel(false);
        let (sender, receiver) = std::sync::mpsc::channel();
        let (control, path) = (fake.clone(), socket.clone());
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let any = "127.0.0.1:0".parse().unwrap();
                let listeners = Listeners::bind(Some(any), Some(&path)).await.unwrap();
                sender.send(listeners.tcp_address().unwrap()).unwrap();
                listeners.serve(control, access, stopped).await;
            });
        });
        let tcp = receiver.recv().unwrap();
        Self { fake, tcp, socket, stop, thread: Some(thread), _dir: dir }
    }

    pub fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.fake.0.lock().unwrap()
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
        }
    }
}
