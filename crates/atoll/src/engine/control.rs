//! The engine behind the REST server: most questions go to this host's shard; what only another
//! host knows (its disks, its clients, its load) is asked of that host's own interface; what only
//! another host can do goes over the peers' connections (`far`).
//!
//! Invariants: a question to another host is asked with `scope=local` or names that host, so that
//! it is never passed on twice; requests between hosts over REST only read; a host that does not answer in time is left out, and is shown as
//! such by the health checks.

use super::Engine;
use super::admin::View;
use super::far::Far;
use super::meter::add;
use crate::bridge::Bridge;
use crate::control::{Change, Control, Sample, Scope};
use atoll_api::client::Call;
use atoll_api::envelope::{List, Named};
use atoll_api::routes::PREFIX;
use atoll_api::types::{
    Cluster, Disk, DiskWipe, DiskWipeRequest, Event, Group, GroupCreate, Health, HealthCheck, Host,
    Io, Level, Placement, Policy, PolicyCheck, Profile, Resync, ResyncPatch, Scrub, ScrubStart,
    Session, Status, Task, Volume, VolumeCreate, VolumeLock, VolumeLockRequest, VolumePatch,
    VolumeState,
};
use atoll_api::uri::escape;
use atoll_api::{Client, Code, Endpoint, Problem};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;

/// How long another host may take to tell what it knows.
const ASK_WAIT: Duration = Duration::from_secs(2);

type Answer<T> = Result<T, Problem>;

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

    async fn local_hosts(&self) -> Answer<Vec<Host>> {
        self.bridge.call(|engine| async move { engine.hosts() }).await
    }

    /// Asks every other host, all at once, for a list of what only it knows: the list, or why the
    /// host does not tell.
    async fn ask_each<T>(&self, path: &str) -> Answer<Vec<(Host, Answer<Vec<T>>)>>
    where
        T: DeserializeOwned + Named + Send + 'static,
    {
        let mut asked = JoinSet::new();
        let mut all = Vec::new();
        for host in self.local_hosts().await?.into_iter().filter(|host| host.id != self.id) {
            match self.client_of(&host, ASK_WAIT) {
                Some(client) if host.up => {
                    let call = Call::get(format!("{PREFIX}{path}"));
                    asked.spawn(async move {
                        let said = client.list::<T>(call).await.map(|List { items, .. }| items);
                        (host, said)
                    });
                }
                _ => {
                    let why = silence(&host);
                    all.push((host, Err(why)));
                }
            }
        }
        while let Some(answer) = asked.join_next().await {
            all.extend(answer);
        }
        all.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        Ok(all)
    }

    /// The same, of those alone that tell.
    async fn ask_all<T>(&self, path: &str) -> Answer<Vec<(String, Vec<T>)>>
    where
        T: DeserializeOwned + Named + Send + 'static,
    {
        let each = self.ask_each(path).await?.into_iter();
        Ok(each.filter_map(|(host, said)| Some((host.name, said.ok()?))).collect())
    }

    /// Adds load and clients on every other host that answers.
    async fn add_others(&self, volumes: &mut [Volume]) -> Answer<()> {
        for (_, theirs) in self.ask_all::<Volume>("/volumes?scope=local").await? {
            let theirs: BTreeMap<&str, &Volume> = theirs.iter().map(|v| (&*v.id, v)).collect();
            for volume in &mut *volumes {
                if let Some(there) = theirs.get(&*volume.id) {
                    volume.io = add(volume.io, there.io);
                    volume.sessions += there.sessions;
                }
            }
        }
        Ok(())
    }

    /// A volume with load and clients of all hosts, not of this one alone.
    async fn in_all(&self, volume: Volume) -> Answer<Volume> {
        let mut volumes = [volume];
        self.add_others(&mut volumes).await?;
        let [volume] = volumes;
        Ok(volume)
    }

    /// Load, clients and troubles of every other host that answers.
    async fn others(&self) -> Answer<BTreeMap<String, Said>> {
        let mut asked = JoinSet::new();
        for host in self.local_hosts().await? {
            if let Some(client) = self.client_of(&host, ASK_WAIT).filter(|_| host.up) {
                asked.spawn(async move {
                    let volumes = Call::get(format!("{PREFIX}/volumes?scope=local"));
                    let health = Call::get(format!("{PREFIX}/health?scope=local"));
                    let (volumes, health) =
                        tokio::join!(client.list::<Volume>(volumes), client.item::<Health>(health));
                    let volumes = volumes.map(|list| list.items).unwrap_or_default();
                    let checks = health.map(|health| health.item.checks).unwrap_or_default();
                    (host.name, Said { volumes, checks })
                });
            }
        }
        let mut all = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            if let Ok((name, said)) = answer {
                all.insert(name, said);
            }
        }
        Ok(all)
    }

    /// A client of another host; none if it is this one, or has no interface.
    fn client_of(&self, host: &Host, timeout: Duration) -> Option<Client> {
        let other = host.id != self.id && !host.api.is_empty();
        other.then(|| Client::new(Endpoint::Tcp(host.api.clone()), timeout))
    }

    /// The host that is meant: none for this one.
    async fn other(&self, host: &str) -> Answer<Option<Host>> {
        if host == self.name || host == self.id {
            return Ok(None);
        }
        let hosts = self.local_hosts().await?;
        let found = hosts.into_iter().find(|h| h.name == host || h.id == host);
        let found = found.ok_or_else(|| Problem::not_found("host", host))?;
        if found.up { Ok(Some(found)) } else { Err(silence(&found).hint("atoll host list")) }
    }

    /// Has another host do something.
    async fn at<T: DeserializeOwned + Send + 'static>(&self, host: Host, what: Far) -> Answer<T> {
        let id = host.id.parse().map_err(|why: String| Problem::new(Code::Failed, why))?;
        self.bridge.call(move |engine| async move { engine.at(id, &host.name, what).await }).await
    }

    async fn everything(&self, scope: Scope) -> Answer<(Status, BTreeMap<String, Said>)> {
        let said = match scope {
            Scope::Local => BTreeMap::new(),
            Scope::Cluster => self.others().await?,
        };
        let mut status = self
            .bridge
            .call(move |engine| async move {
                let cluster = engine.cluster()?;
                let view = engine.view().await?;
                let mut checks = engine.local_checks();
                if scope == Scope::Cluster {
                    checks.extend(view.checks());
                }
                Ok(summary(cluster, &view, engine.local_io(), checks))
            })
            .await?;
        for said in said.values() {
            status.io = said.volumes.iter().map(|volume| volume.io).fold(status.io, add);
            status.health.checks.extend(said.checks.iter().cloned());
        }
        status.health.checks.sort_by(|a, b| b.level.cmp(&a.level).then(a.name.cmp(&b.name)));
        status.health.level =
            status.health.checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
        Ok((status, said))
    }
}

/// Why a host cannot be asked.
fn silence(host: &Host) -> Problem {
    let why = if host.up { "has no network.api to be asked at" } else { "does not answer" };
    Problem::new(Code::Unavailable, format!("host {} {why}", host.name))
}

/// What is said of a host that told no profile.
fn untold(host: Host, why: Problem) -> Profile {
    let detail = match why.code {
        Code::NoRoute => format!("its release {} has no profiles", host.release),
        _ => why.detail,
    };
    Profile { host: host.name, detail, ..Profile::default() }
}

fn summary(cluster: Cluster, view: &View, io: Io, checks: Vec<HealthCheck>) -> Status {
    let states: Vec<VolumeState> = view.volumes.iter().map(|volume| view.state(volume)).collect();
    let count = |wanted: &[VolumeState]| {
        states.iter().filter(|state| wanted.contains(state)).count() as u32
    };
    let resync = view.resync();
    Status {
        cluster,
        health: Health { level: Level::Ok, checks },
        space: view.space(),
        io,
        hosts_up: view.hosts.iter().filter(|(_, alive, _)| *alive).count() as u32,
        hosts: view.hosts.len() as u32,
        volumes: states.len() as u32,
        volumes_degraded: count(&[VolumeState::Degraded, VolumeState::Resyncing]),
        volumes_inaccessible: count(&[VolumeState::Inaccessible]),
        resync_bytes_left: resync.bytes_left,
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
            if running.node.is_published() {
                return Ok(());
            }
            Err(Problem::new(Code::Unavailable, "this host is not known to the cluster yet"))
        });
        ready.await.map_err(|problem| problem.detail)
    }

    async fn metrics(&self) -> Answer<Vec<Sample>> {
        self.bridge.call(|engine| async move { Ok(engine.metrics()) }).await
    }

    async fn status(&self, scope: Scope) -> Answer<Status> {
        self.everything(scope).await.map(|(status, _)| status)
    }

    async fn cluster(&self) -> Answer<Cluster> {
        self.bridge.call(|engine| async move { engine.cluster() }).await
    }

    async fn health(&self, scope: Scope) -> Answer<Health> {
        self.everything(scope).await.map(|(status, _)| status.health)
    }

    async fn hosts(&self, scope: Scope) -> Answer<Vec<Host>> {
        let mut hosts = self.local_hosts().await?;
        if scope == Scope::Cluster {
            for (name, volumes) in self.ask_all::<Volume>("/volumes?scope=local").await? {
                if let Some(host) = hosts.iter_mut().find(|host| host.name == name) {
                    host.io = volumes.iter().map(|volume| volume.io).fold(Io::default(), add);
                }
            }
        }
        Ok(hosts)
    }

    async fn disks(&self, host: &str) -> Answer<Vec<Disk>> {
        match self.other(host).await? {
            None => self.bridge.call(|engine| async move { engine.disks().await }).await,
            Some(host) => {
                let client = self.client_of(&host, ASK_WAIT).ok_or_else(|| silence(&host))?;
                let path = format!("{PREFIX}/hosts/{}/disks", escape(&host.name));
                Ok(client.list::<Disk>(Call::get(path)).await?.items)
            }
        }
    }

    async fn disk_wipe(
        &self,
        host: &str,
        request: DiskWipeRequest,
        change: Change,
    ) -> Answer<DiskWipe> {
        match self.other(host).await? {
            None => {
                let wipe = move |engine: std::rc::Rc<Engine>| async move {
                    engine.disk_wipe(request, change.dry_run).await
                };
                self.bridge.call(wipe).await
            }
            Some(host) => self.at(host, Far::DiskWipe { request, dry_run: change.dry_run }).await,
        }
    }

    async fn groups(&self, _scope: Scope) -> Answer<Vec<Group>> {
        self.bridge.call(|engine| async move { engine.groups() }).await
    }

    async fn group_create(&self, mut request: GroupCreate, change: Change) -> Answer<Group> {
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
                self.at(host, Far::GroupCreate { request, dry_run: change.dry_run }).await
            }
        }
    }

    async fn policies(&self) -> Answer<Vec<Policy>> {
        self.bridge.call(|engine| async move { engine.policies().await }).await
    }

    async fn policy_create(&self, policy: Policy, change: Change) -> Answer<Policy> {
        let dry_run = change.dry_run;
        self.bridge
            .call(move |engine| async move { engine.policy_create(policy, dry_run).await })
            .await
    }

    async fn policy_delete(&self, name: &str, change: Change) -> Answer<()> {
        let (name, dry_run) = (name.to_owned(), change.dry_run);
        self.bridge
            .call(move |engine| async move { engine.policy_delete(&name, dry_run).await })
            .await
    }

    async fn policy_check(&self, name: &str, size_bytes: u64) -> Answer<PolicyCheck> {
        let name = name.to_owned();
        self.bridge
            .call(move |engine| async move { engine.policy_check(&name, size_bytes).await })
            .await
    }

    async fn volumes(&self, scope: Scope) -> Answer<Vec<Volume>> {
        let mut volumes = self.bridge.call(|engine| async move { engine.volumes().await }).await?;
        if scope == Scope::Cluster {
            self.add_others(&mut volumes).await?;
        }
        Ok(volumes)
    }

    async fn volume(&self, name: &str) -> Answer<Volume> {
        let name = name.to_owned();
        let volume = self.bridge.call(move |engine| async move { engine.volume(&name).await });
        self.in_all(volume.await?).await
    }

    async fn volume_create(&self, request: VolumeCreate, change: Change) -> Answer<Volume> {
        let dry_run = change.dry_run;
        self.bridge
            .call(move |engine| async move { engine.volume_create(request, dry_run).await })
            .await
    }

    async fn volume_patch(&self, name: &str, patch: VolumePatch, change: Change) -> Answer<Volume> {
        let name = name.to_owned();
        let Change { dry_run, if_revision, .. } = change;
        let patch = move |engine: std::rc::Rc<Engine>| async move {
            engine.volume_patch(&name, patch, if_revision, dry_run).await
        };
        self.in_all(self.bridge.call(patch).await?).await
    }

    async fn volume_delete(&self, name: &str, change: Change) -> Answer<()> {
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
        change: Change,
    ) -> Answer<VolumeLock> {
        let name = name.to_owned();
        let lock = move |engine: std::rc::Rc<Engine>| async move {
            engine.volume_lock(&name, request, change.dry_run).await
        };
        self.bridge.call(lock).await
    }

    async fn volume_unlock(&self, name: &str, token: u64, change: Change) -> Answer<()> {
        let name = name.to_owned();
        let unlock = move |engine: std::rc::Rc<Engine>| async move {
            engine.volume_unlock(&name, token, change.dry_run).await
        };
        self.bridge.call(unlock).await
    }

    async fn placement(&self, name: &str) -> Answer<Placement> {
        let name = name.to_owned();
        self.bridge.call(move |engine| async move { engine.placement(&name).await }).await
    }

    async fn resync(&self, _scope: Scope) -> Answer<Resync> {
        self.bridge.call(|engine| async move { Ok(engine.view().await?.resync()) }).await
    }

    async fn resync_patch(&self, patch: ResyncPatch, change: Change) -> Answer<Resync> {
        let ResyncPatch { paused, limit_bytes_per_second } = patch;
        let dry_run = change.dry_run;
        let patch = move |engine: std::rc::Rc<Engine>| async move {
            engine.resync_patch(paused, limit_bytes_per_second, dry_run).await
        };
        self.bridge.call(patch).await
    }

    async fn scrubs(&self, scope: Scope) -> Answer<Vec<Scrub>> {
        let mut scrubs = self.bridge.call(|engine| async move { engine.scrubs() }).await?;
        let own = self.name.clone();
        match scope {
            Scope::Local => scrubs.retain(|scrub| scrub.host == own),
            Scope::Cluster => {
                // Exact, where the host answers; else what it last said.
                for (host, theirs) in self.ask_all::<Scrub>("/scrubs?scope=local").await? {
                    scrubs.retain(|scrub| scrub.host != host);
                    scrubs.extend(theirs);
                }
            }
        }
        Ok(scrubs)
    }

    async fn scrub_start(
        &self,
        request: ScrubStart,
        scope: Scope,
        change: Change,
    ) -> Answer<Vec<Scrub>> {
        if request.bytes_per_second == Some(0) {
            return Err(Problem::new(Code::BadValue, "bytes_per_second must not be 0")
                .hint("DELETE /api/v1/scrubs stops scrubs")
                .field("bytes_per_second"));
        }
        if !change.dry_run {
            let rate = request.bytes_per_second;
            self.scrub(request.group, request.volume, rate, scope).await?;
        }
        self.scrubs(scope).await
    }

    async fn scrub_stop(&self, group: Option<&str>, scope: Scope, change: Change) -> Answer<()> {
        if change.dry_run {
            return Ok(());
        }
        self.scrub(group.map(str::to_owned), None, Some(0), scope).await
    }

    async fn tasks(&self, _scope: Scope) -> Answer<Vec<Task>> {
        self.bridge.call(|engine| async move { engine.tasks().await }).await
    }

    async fn events(&self, scope: Scope, since: u64) -> Answer<Vec<Event>> {
        let local = scope == Scope::Local;
        self.bridge.call(move |engine| async move { engine.events(local, since).await }).await
    }

    async fn sessions(&self, scope: Scope, volume: Option<&str>) -> Answer<Vec<Session>> {
        let wanted = volume.map(str::to_owned);
        let mine = move |engine: std::rc::Rc<Engine>| async move {
            Ok(engine.sessions(wanted.as_deref()))
        };
        let mut sessions = self.bridge.call(mine).await?;
        if scope == Scope::Cluster {
            let filter = volume.map(|volume| format!("&volume={}", escape(volume)));
            let path = format!("/sessions?scope=local{}", filter.unwrap_or_default());
            for (_, theirs) in self.ask_all::<Session>(&path).await? {
                sessions.extend(theirs);
            }
        }
        Ok(sessions)
    }

    async fn profiles(&self, scope: Scope) -> Answer<Vec<Profile>> {
        let own = self.bridge.call(|engine| async move { engine.profile() }).await?;
        let mut profiles = vec![own];
        if scope == Scope::Cluster {
            for (host, said) in self.ask_each::<Profile>("/profiles?scope=local").await? {
                match said {
                    Ok(theirs) => profiles.extend(theirs),
                    Err(why) => profiles.push(untold(host, why)),
                }
            }
        }
        Ok(profiles)
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
    ) -> Answer<()> {
        if let (Some(id), Scope::Cluster) = (&group, scope) {
            let groups = self.groups(Scope::Cluster).await?;
            let found = groups.iter().find(|group| group.id == *id);
            let host = &found.ok_or_else(|| Problem::not_found("group", id))?.host;
            if let Some(host) = self.other(host).await? {
                return self.at(host, Far::Scrub { group: id.clone(), rate }).await;
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
    fn a_host_that_tells_no_profile_is_named_with_the_reason() {
        let host = |up| Host {
            id: "1".into(),
            name: "h".into(),
            up,
            fault_domain: String::new(),
            api: String::new(),
            peers: Vec::new(),
            release: "0.0.9".into(),
            groups: 0,
            owned_volumes: 0,
            space: atoll_api::types::Space::default(),
            io: Io::default(),
        };
        let older = Problem::new(Code::NoRoute, "there is no route '/api/v1/profiles'");
        for (up, why, says) in [
            (true, older, "its release 0.0.9 has no profiles"),
            (true, silence(&host(true)), "host h has no network.api to be asked at"),
            (false, silence(&host(false)), "host h does not answer"),
        ] {
            let profile = untold(host(up), why);
            assert_eq!((profile.host.as_str(), profile.detail.as_str()), ("h", says));
            assert!(profile.stages.is_empty());
        }
    }
}
