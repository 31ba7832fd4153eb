//! The engine behind the REST server: most questions go to this host's shard; what only another
//! host knows (its disks, its clients, its load) is asked of that host's own interface; what only
//! another host can do goes over the peers' connections (`far`).
//!
//! Invariants: a question to another host is asked with `scope=local` or names that host, so that
//! it is never passed on twice; requests between hosts over REST only read; every answer that is
//! collected from several hosts names those that it is without ([`Told`]), and is there within five
//! seconds, whoever is silent.

use super::Engine;
use super::admin::{SILENT, View};
use super::host_request::HostRequest;
use super::meter::add;
use crate::bridge::Bridge;
use crate::control::{ChangeOptions, Control, EventMarks, EventsRead, Sample, Scope, Told};
use atoll_api::client::Call;
use atoll_api::envelope::{Missing, Named};
use atoll_api::routes::PREFIX;
use atoll_api::types::{
    Cluster, ClusterPatch, Disk, DiskWipe, DiskWipeRequest, Group, GroupCreate, Health,
    HealthCheck, Host, Io, Level, Placement, Policy, PolicyCheck, Profile, Resync, ResyncPatch,
    Scrub, ScrubStart, Session, Status, Task, Volume, VolumeCreate, VolumeLock, VolumeLockRequest,
    VolumePatch, VolumeState,
};
use atoll_api::uri::escape;
use atoll_api::{Client, Code, Endpoint, Problem};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long another host may take to tell what it knows.
const ASK_WAIT: Duration = Duration::from_secs(2);

type ControlResult<T> = Result<T, Problem>;
type Collected<T> = Result<Told<T>, Problem>;

/// The engine, from any thread. Clones are the same.
#[derive(Clone)]
pub struct EngineControl {
    bridge: Bridge<Engine>,
    name: String,
    id: String,
}

/// What another host says of itself.
#[derive(Default)]
struct Said {
    volumes: Vec<Volume>,
    checks: Vec<HealthCheck>,
}

impl EngineControl {
    /// In front of the shard at the other end of `bridge`; `name` and `id` are this host's.
    pub fn new(bridge: Bridge<Engine>, name: String, id: String) -> Self {
        Self { bridge, name, id }
    }

    async fn local_hosts(&self) -> ControlResult<Vec<Host>> {
        self.bridge.call(|engine| async move { engine.hosts() }).await
    }

    /// Learns how every host is at this moment, if the cluster is meant; those that do not tell.
    async fn look(&self, scope: Scope) -> ControlResult<Vec<Missing>> {
        self.bridge.call(move |engine| async move { engine.look(scope).await }).await
    }

    /// Asks every other host, all at once, for what only it knows: what each tells, and those that
    /// do not.
    async fn ask_each<T, F>(&self, ask: impl Fn(Client) -> F) -> Collected<Vec<(Host, T)>>
    where
        F: Future<Output = ControlResult<T>> + Send + 'static,
        T: Send + 'static,
    {
        self.look(Scope::Cluster).await?;
        let mut asked = JoinSet::new();
        let (mut told, mut missing) = (Vec::new(), Vec::new());
        for host in self.local_hosts().await?.into_iter().filter(|host| host.id != self.id) {
            match self.client_of(&host, ASK_WAIT) {
                Some(client) if host.up => {
                    let answer = ask(client);
                    asked.spawn(async move { (host, answer.await) });
                }
                _ => missing.push(Missing { why: silence(&host).into(), host: host.name }),
            }
        }
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((host, Ok(what))) => told.push((host, what)),
                Ok((host, Err(problem))) => {
                    missing.push(Missing { why: why(&host, problem), host: host.name });
                }
                // The runtime ends.
                Err(_) => {}
            }
        }
        told.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        missing.sort();
        Ok(Told { what: told, missing })
    }

    /// The same, for a list.
    async fn list_each<T>(&self, path: &str) -> Collected<Vec<(Host, Vec<T>)>>
    where
        T: DeserializeOwned + Named + Send + 'static,
    {
        let path = format!("{PREFIX}{path}");
        self.ask_each(|client| {
            let call = Call::get(path.clone());
            async move { client.list::<T>(call).await.map(|list| list.items) }
        })
        .await
    }

    /// Load and clients of the volumes on every other host, by the volume's id.
    async fn used_elsewhere(&self) -> Collected<BTreeMap<String, (Io, u32)>> {
        let each = self.list_each::<Volume>("/volumes?scope=local").await?;
        Ok(each.map(|hosts| {
            let mut all: BTreeMap<String, (Io, u32)> = BTreeMap::new();
            for volume in hosts.into_iter().flat_map(|(_, volumes)| volumes) {
                let (io, sessions) = all.entry(volume.id).or_default();
                (*io, *sessions) = (add(*io, volume.io), *sessions + volume.sessions);
            }
            all
        }))
    }

    /// A volume with load and clients of all hosts, not of this one alone.
    async fn in_all(&self, mut volume: Volume) -> Collected<Volume> {
        let elsewhere = self.used_elsewhere().await?;
        add_use(&mut volume, &elsewhere.what);
        Ok(elsewhere.map(|_| volume))
    }

    /// Load and troubles of every other host.
    async fn others(&self) -> Collected<Vec<Said>> {
        let each = self.ask_each(|client| async move {
            let volumes = Call::get(format!("{PREFIX}/volumes?scope=local"));
            let health = Call::get(format!("{PREFIX}/health?scope=local"));
            let (volumes, health) =
                tokio::join!(client.list::<Volume>(volumes), client.item::<Health>(health));
            Ok(Said { volumes: volumes?.items, checks: health?.item.checks })
        });
        Ok(each.await?.map(|hosts| hosts.into_iter().map(|(_, said)| said).collect()))
    }

    /// A client of another host; none if it is this one, or has no interface.
    fn client_of(&self, host: &Host, timeout: Duration) -> Option<Client> {
        let other = host.id != self.id && !host.api.is_empty();
        other.then(|| Client::new(Endpoint::Tcp(host.api.clone()), timeout))
    }

    /// The host that is meant: none for this one.
    async fn other(&self, host: &str) -> ControlResult<Option<Host>> {
        if host == self.name || host == self.id {
            return Ok(None);
        }
        let hosts = self.local_hosts().await?;
        let found = hosts.into_iter().find(|h| h.name == host || h.id == host);
        let found = found.ok_or_else(|| Problem::not_found("host", host))?;
        if found.up {
            return Ok(Some(found));
        }
        let detail = format!("host {} {}", found.name, silence(&found));
        Err(Problem::new(Code::Unavailable, detail).hint("atoll host list"))
    }

    /// Has another host do something.
    async fn at<T: DeserializeOwned + Send + 'static>(
        &self,
        host: Host,
        what: HostRequest,
    ) -> ControlResult<T> {
        let id = host.id.parse().map_err(|why: String| Problem::new(Code::Failed, why))?;
        self.bridge.call(move |engine| async move { engine.at(id, &host.name, what).await }).await
    }

    async fn everything(&self, scope: Scope) -> Collected<Status> {
        let Told { what: said, missing } = match scope {
            Scope::Local => Told::whole(Vec::new()),
            Scope::Cluster => self.others().await?,
        };
        let mut status = self
            .bridge
            .call(move |engine| async move {
                let cluster = engine.cluster().await?;
                let view = engine.view().await?;
                let mut checks = engine.local_checks();
                if scope == Scope::Cluster {
                    checks.extend(view.checks());
                }
                Ok(summary(cluster, &view, engine.local_io(), checks))
            })
            .await?;
        for said in said {
            status.io = said.volumes.iter().map(|volume| volume.io).fold(status.io, add);
            status.health.checks.extend(said.checks);
        }
        let checks = &mut status.health.checks;
        let known = |host: &str| {
            let about = format!("host {host} ");
            checks.iter().any(|c| c.name.starts_with("host-") && c.message.starts_with(&about))
        };
        // Alive, and yet not asked: what it alone knows may be anything.
        let untold: Vec<HealthCheck> =
            missing.iter().filter(|m| !known(&m.host)).map(untold_check).collect();
        checks.extend(untold);
        checks.sort_by(|a, b| b.level.cmp(&a.level).then(a.name.cmp(&b.name)));
        status.health.level = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
        Ok(Told { what: status, missing })
    }
}

/// Why a host is not asked.
fn silence(host: &Host) -> &'static str {
    if host.up { "has no network.api to be asked at" } else { SILENT }
}

/// Why a host that was asked does not tell.
fn why(host: &Host, problem: Problem) -> String {
    match problem.code {
        Code::NoRoute => format!("its release {} does not know of it", host.release),
        Code::TimedOut => SILENT.into(),
        _ => problem.detail,
    }
}

/// A host that seems to be up and does not tell what it knows.
fn untold_check(missing: &Missing) -> HealthCheck {
    HealthCheck {
        name: "host-untold".into(),
        level: Level::Warning,
        message: format!(
            "host {} {}: its disks and clients are not known",
            missing.host, missing.why
        ),
        remedy: "atoll host list".into(),
    }
}

/// Adds what is done with a volume on other hosts.
fn add_use(volume: &mut Volume, elsewhere: &BTreeMap<String, (Io, u32)>) {
    if let Some((io, sessions)) = elsewhere.get(&volume.id) {
        volume.io = add(volume.io, *io);
        volume.sessions += sessions;
    }
}

/// A profile of a host that told none.
fn untold(missing: &Missing) -> Profile {
    let detail = format!("host {} {}", missing.host, missing.why);
    Profile { host: missing.host.clone(), detail, ..Profile::default() }
}

fn summary(cluster: Cluster, view: &View, io: Io, checks: Vec<HealthCheck>) -> Status {
    let states: Vec<VolumeState> = view.volumes.iter().map(|volume| view.state(volume)).collect();
    let count = |wanted: &[VolumeState]| {
        states.iter().filter(|state| wanted.contains(state)).count() as u32
    };
    let (resync, promised) = (view.resync(), view.promised());
    Status {
        cluster,
        health: Health { level: Level::Ok, checks },
        space: view.space(),
        promised_bytes: promised.promised_bytes,
        exist_bytes: promised.exist_bytes,
        io,
        hosts_up: view.hosts.iter().filter(|(_, alive, _)| *alive).count() as u32,
        hosts: view.hosts.len() as u32,
        volumes: states.len() as u32,
        volumes_degraded: count(&[VolumeState::Degraded, VolumeState::Resyncing]),
        volumes_inaccessible: count(&[VolumeState::Inaccessible]),
        resync_bytes_left: resync.bytes_left,
        resync_copies: resync.items.len() as u32,
        resync_seconds_left: resync.seconds_left,
        checksum_errors: view.checksum_errors(),
    }
}

impl Control for EngineControl {
    fn unix_ms(&self) -> u64 {
        atoll_real::unix_ms()
    }

    async fn ready(&self) -> Result<(), String> {
        let ready = self.bridge.call(|engine| async move {
            let running = engine.running()?;
            let listed = running.node.hosts().iter().any(|(record, ..)| record.id == engine.host);
            if running.node.is_published() && listed {
                return Ok(());
            }
            Err(Problem::new(Code::Unavailable, "this host is not known to the cluster yet"))
        });
        ready.await.map_err(|problem| problem.detail)
    }

    async fn metrics(&self) -> ControlResult<Vec<Sample>> {
        let samples = |engine: std::rc::Rc<Engine>| async move {
            engine.forget_gone().await;
            Ok(engine.metrics())
        };
        self.bridge.call(samples).await
    }

    async fn status(&self, scope: Scope) -> Collected<Status> {
        self.everything(scope).await
    }

    async fn cluster(&self) -> ControlResult<Cluster> {
        self.bridge.call(|engine| async move { engine.cluster().await }).await
    }

    async fn cluster_patch(
        &self,
        patch: ClusterPatch,
        change: ChangeOptions,
    ) -> ControlResult<Cluster> {
        let dry_run = change.dry_run;
        self.bridge
            .call(move |engine| async move { engine.cluster_patch(patch, dry_run).await })
            .await
    }

    async fn health(&self, scope: Scope) -> Collected<Health> {
        Ok(self.everything(scope).await?.map(|status| status.health))
    }

    async fn hosts(&self, scope: Scope) -> Collected<Vec<Host>> {
        if scope == Scope::Local {
            return self.local_hosts().await.map(Told::whole);
        }
        let each = self.list_each::<Volume>("/volumes?scope=local").await?;
        let mut hosts = self.local_hosts().await?;
        Ok(each.map(|each| {
            for (there, volumes) in each {
                if let Some(host) = hosts.iter_mut().find(|host| host.id == there.id) {
                    let io = volumes.iter().map(|volume| volume.io);
                    host.io = Some(io.fold(Io::default(), add));
                }
            }
            hosts
        }))
    }

    async fn disks(&self, host: &str) -> ControlResult<Vec<Disk>> {
        match self.other(host).await? {
            None => self.bridge.call(|engine| async move { engine.disks().await }).await,
            Some(host) => {
                // One that is paused must not hold up who lists the disks of all.
                let silent = || {
                    let detail = format!("host {} {}", host.name, silence(&host));
                    Problem::new(Code::Unavailable, detail)
                };
                let client = self.client_of(&host, ASK_WAIT).ok_or_else(silent)?;
                let path = format!("{PREFIX}/hosts/{}/disks", escape(&host.name));
                Ok(client.list::<Disk>(Call::get(path)).await?.items)
            }
        }
    }

    async fn disk_wipe(
        &self,
        host: &str,
        request: DiskWipeRequest,
        change: ChangeOptions,
    ) -> ControlResult<DiskWipe> {
        match self.other(host).await? {
            None => {
                let wipe = move |engine: std::rc::Rc<Engine>| async move {
                    engine.disk_wipe(request, change.dry_run).await
                };
                self.bridge.call(wipe).await
            }
            Some(host) => {
                self.at(host, HostRequest::DiskWipe { request, dry_run: change.dry_run }).await
            }
        }
    }

    async fn groups(&self, scope: Scope) -> Collected<Vec<Group>> {
        let missing = self.look(scope).await?;
        let what = self.bridge.call(|engine| async move { engine.groups() }).await?;
        Ok(Told { what, missing })
    }

    async fn group_create(
        &self,
        mut request: GroupCreate,
        change: ChangeOptions,
    ) -> ControlResult<Group> {
        let host = request.host.take();
        let other = match host {
            Some(host) => self.other(&host).await?,
            None => None,
        };
        match other {
            None => {
                let create = move |engine: std::rc::Rc<Engine>| async move {
                    engine.group_create(request, change.dry_run).await
                };
                self.bridge.call(create).await
            }
            Some(host) => {
                self.at(host, HostRequest::GroupCreate { request, dry_run: change.dry_run }).await
            }
        }
    }

    async fn policies(&self) -> ControlResult<Vec<Policy>> {
        self.bridge.call(|engine| async move { engine.policies().await }).await
    }

    async fn policy_create(&self, policy: Policy, change: ChangeOptions) -> ControlResult<Policy> {
        let dry_run = change.dry_run;
        self.bridge
            .call(move |engine| async move { engine.policy_create(policy, dry_run).await })
            .await
    }

    async fn policy_delete(&self, name: &str, change: ChangeOptions) -> ControlResult<()> {
        let (name, dry_run) = (name.to_owned(), change.dry_run);
        self.bridge
            .call(move |engine| async move { engine.policy_delete(&name, dry_run).await })
            .await
    }

    async fn policy_check(&self, name: &str, size_bytes: u64) -> ControlResult<PolicyCheck> {
        let name = name.to_owned();
        self.bridge
            .call(move |engine| async move { engine.policy_check(&name, size_bytes).await })
            .await
    }

    async fn volumes(&self, scope: Scope) -> Collected<Vec<Volume>> {
        let elsewhere = match scope {
            Scope::Local => Told::whole(BTreeMap::new()),
            Scope::Cluster => self.used_elsewhere().await?,
        };
        let mut volumes = self.bridge.call(|engine| async move { engine.volumes().await }).await?;
        volumes.iter_mut().for_each(|volume| add_use(volume, &elsewhere.what));
        Ok(elsewhere.map(|_| volumes))
    }

    async fn volume(&self, name: &str) -> Collected<Volume> {
        let name = name.to_owned();
        let volume = self.bridge.call(move |engine| async move { engine.volume(&name).await });
        self.in_all(volume.await?).await
    }

    async fn volume_create(
        &self,
        request: VolumeCreate,
        change: ChangeOptions,
    ) -> ControlResult<Volume> {
        let dry_run = change.dry_run;
        self.bridge
            .call(move |engine| async move { engine.volume_create(request, dry_run).await })
            .await
    }

    async fn volume_patch(
        &self,
        name: &str,
        patch: VolumePatch,
        change: ChangeOptions,
    ) -> Collected<Volume> {
        let name = name.to_owned();
        let ChangeOptions { dry_run, if_revision, .. } = change;
        let patch = move |engine: std::rc::Rc<Engine>| async move {
            engine.volume_patch(&name, patch, if_revision, dry_run).await
        };
        self.in_all(self.bridge.call(patch).await?).await
    }

    async fn volume_delete(&self, name: &str, change: ChangeOptions) -> ControlResult<()> {
        let name = name.to_owned();
        let delete = move |engine: std::rc::Rc<Engine>| async move {
            engine.volume_delete(&name, change).await
        };
        self.bridge.call(delete).await
    }

    async fn volume_lock(
        &self,
        name: &str,
        request: VolumeLockRequest,
        change: ChangeOptions,
    ) -> ControlResult<VolumeLock> {
        let name = name.to_owned();
        let lock = move |engine: std::rc::Rc<Engine>| async move {
            engine.volume_lock(&name, request, change.dry_run).await
        };
        self.bridge.call(lock).await
    }

    async fn volume_unlock(
        &self,
        name: &str,
        token: u64,
        change: ChangeOptions,
    ) -> ControlResult<()> {
        let name = name.to_owned();
        let unlock = move |engine: std::rc::Rc<Engine>| async move {
            engine.volume_unlock(&name, token, change.dry_run).await
        };
        self.bridge.call(unlock).await
    }

    async fn placement(&self, name: &str) -> ControlResult<Placement> {
        let name = name.to_owned();
        self.bridge.call(move |engine| async move { engine.placement(&name).await }).await
    }

    async fn resync(&self, scope: Scope) -> Collected<Resync> {
        let missing = self.look(scope).await?;
        let resync = |engine: std::rc::Rc<Engine>| async move { Ok(engine.view().await?.resync()) };
        Ok(Told { what: self.bridge.call(resync).await?, missing })
    }

    async fn resync_patch(&self, patch: ResyncPatch, change: ChangeOptions) -> Collected<Resync> {
        let ResyncPatch { paused, limit_bytes_per_second } = patch;
        let dry_run = change.dry_run;
        let patch = move |engine: std::rc::Rc<Engine>| async move {
            engine.resync_patch(paused, limit_bytes_per_second, dry_run).await
        };
        self.bridge.call(patch).await
    }

    async fn scrubs(&self, scope: Scope) -> Collected<Vec<Scrub>> {
        let each = match scope {
            Scope::Local => Told::whole(Vec::new()),
            Scope::Cluster => self.list_each::<Scrub>("/scrubs?scope=local").await?,
        };
        let mut scrubs = self.bridge.call(|engine| async move { engine.scrubs() }).await?;
        scrubs.retain(|scrub| scrub.host == self.name);
        Ok(each.map(|each| {
            scrubs.extend(each.into_iter().flat_map(|(_, theirs)| theirs));
            scrubs
        }))
    }

    async fn scrub_start(
        &self,
        request: ScrubStart,
        scope: Scope,
        change: ChangeOptions,
    ) -> Collected<Vec<Scrub>> {
        if request.bytes_per_second == Some(0) {
            return Err(Problem::new(Code::BadValue, "bytes_per_second must not be 0")
                .hint("DELETE /api/v1/scrubs stops scrubs")
                .field("bytes_per_second"));
        }
        let mut deaf = Vec::new();
        if !change.dry_run {
            let rate = request.bytes_per_second;
            deaf = self.scrub(request.group, request.volume, rate, scope).await?;
        }
        Ok(self.scrubs(scope).await?.and(deaf))
    }

    async fn scrub_stop(
        &self,
        group: Option<&str>,
        scope: Scope,
        change: ChangeOptions,
    ) -> Collected<Vec<Scrub>> {
        let mut deaf = Vec::new();
        if !change.dry_run {
            deaf = self.scrub(group.map(str::to_owned), None, Some(0), scope).await?;
        }
        Ok(self.scrubs(scope).await?.and(deaf))
    }

    async fn tasks(&self, scope: Scope) -> Collected<Vec<Task>> {
        let missing = self.look(scope).await?;
        let what = self.bridge.call(|engine| async move { engine.tasks().await }).await?;
        Ok(Told { what, missing })
    }

    async fn events(
        &self,
        scope: Scope,
        since: u64,
        read: EventMarks,
        max: usize,
    ) -> Collected<EventsRead> {
        let ask = move |engine: std::rc::Rc<Engine>| async move {
            engine.events(scope, since, read, max).await
        };
        self.bridge.call(ask).await
    }

    async fn sessions(&self, scope: Scope, volume: Option<&str>) -> Collected<Vec<Session>> {
        // None of a volume that there is not would look like a good answer.
        if let (Scope::Cluster, Some(name)) = (scope, volume.map(str::to_owned)) {
            self.bridge.call(move |engine| async move { engine.volume(&name).await }).await?;
        }
        let wanted = volume.map(str::to_owned);
        let mine = move |engine: std::rc::Rc<Engine>| async move {
            Ok(engine.sessions(wanted.as_deref()))
        };
        let mut sessions = self.bridge.call(mine).await?;
        let mut missing = Vec::new();
        if scope == Scope::Cluster {
            let filter = volume.map(|volume| format!("&volume={}", escape(volume)));
            let path = format!("/sessions?scope=local{}", filter.unwrap_or_default());
            let each = self.list_each::<Session>(&path).await?;
            sessions.extend(each.what.into_iter().flat_map(|(_, theirs)| theirs));
            missing = each.missing;
        }
        Ok(Told { what: sessions, missing })
    }

    async fn profiles(&self, scope: Scope) -> Collected<Vec<Profile>> {
        let own = self.bridge.call(|engine| async move { engine.profile() }).await?;
        let mut profiles = vec![own];
        let mut missing = Vec::new();
        if scope == Scope::Cluster {
            let each = self.list_each::<Profile>("/profiles?scope=local").await?;
            profiles.extend(each.what.into_iter().flat_map(|(_, theirs)| theirs));
            profiles.extend(each.missing.iter().map(untold));
            missing = each.missing;
        }
        Ok(Told { what: profiles, missing })
    }
}

impl EngineControl {
    /// Starts (or with rate 0 stops) scrubs, on the host that has the group if one is named.
    async fn scrub(
        &self,
        group: Option<String>,
        volume: Option<String>,
        rate: Option<u64>,
        scope: Scope,
    ) -> ControlResult<Vec<Missing>> {
        if let (Some(id), Scope::Cluster) = (&group, scope) {
            let groups = self.groups(Scope::Cluster).await?.what;
            let found = groups.iter().find(|group| group.id == *id);
            let host = &found.ok_or_else(|| Problem::not_found("group", id))?.host;
            if let Some(host) = self.other(host).await? {
                self.at::<()>(host, HostRequest::Scrub { group: id.clone(), rate }).await?;
                return Ok(Vec::new());
            }
        }
        let scrub = move |engine: std::rc::Rc<Engine>| async move {
            engine.scrub(group.as_deref(), volume.as_deref(), rate).await
        };
        self.bridge.call(scrub).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_tell_is_named_with_the_reason() {
        let host = |up| Host {
            id: "1".into(),
            name: "h".into(),
            up,
            fault_domain: String::new(),
            api: String::new(),
            peers: Vec::new(),
            release: "0.0.9".into(),
            groups: 0,
            owned_volumes: None,
            space: None,
            io: None,
        };
        let older = Problem::new(Code::NoRoute, "there is no route '/api/v1/profiles'");
        let late = Problem::new(Code::TimedOut, "no answer from http://127.0.0.2:1 within 2 s");
        for (why, says) in [
            (why(&host(true), older), "its release 0.0.9 does not know of it"),
            (why(&host(true), late), "does not answer"),
            (silence(&host(true)).into(), "has no network.api to be asked at"),
            (silence(&host(false)).into(), "does not answer"),
        ] {
            assert_eq!(why, says);
            let profile = untold(&Missing { host: "h".into(), why });
            assert_eq!((profile.host, profile.detail), ("h".into(), format!("host h {says}")));
            assert!(profile.stages.is_empty());
        }
    }
}
