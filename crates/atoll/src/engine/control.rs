//! The engine behind the REST server: every operation runs on the shard that this host's bridge
//! leads to.

use super::Engine;
use super::host_request::HostRequest;
use super::items::resync_item;
use crate::audit::{AuditLog, Deed};
use crate::bridge::Bridge;
use crate::control::{
    Caller, ChangeOptions, Control, EventMarks, EventsRead, JoinMade, Sample, Scope, Told,
};
use atoll_api::types::{
    AuditEntry, Cluster, ClusterPatch, Disk, DiskWipe, DiskWipeRequest, Group, GroupCreate, Health,
    Host, HostJoin, HostJoined, HostRemoval, JoinTokenCreate, Placement, Policy, PolicyCheck,
    Profile, Resync, ResyncPatch, Scrub, ScrubStart, Session, Status, Task, Token, TokenCreate,
    Upgrade, Volume, VolumeCreate, VolumeLock, VolumeLockRequest, VolumePatch,
};
use atoll_api::{Code, Problem};
use atoll_trust::TokenSecret;
use std::rc::Rc;
use std::sync::Arc;

type ControlResult<T> = Result<T, Problem>;
type Collected<T> = Result<Told<T>, Problem>;

/// The engine, from any thread. Clones are the same.
#[derive(Clone)]
pub struct EngineControl {
    bridge: Bridge<Engine>,
    audit: Arc<AuditLog>,
}

impl EngineControl {
    /// In front of the shard at the other end of `bridge`; what is done goes into that log.
    pub fn new(bridge: Bridge<Engine>, audit: Arc<AuditLog>) -> Self {
        Self { bridge, audit }
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

    async fn caller(&self, sha256: String) -> ControlResult<Caller> {
        self.bridge.call(move |engine| async move { engine.caller(&sha256) }).await
    }

    async fn refused(&self, message: String) {
        // A host that does not serve yet tells nobody.
        let _ = self.bridge.call(|engine| async move { engine.refused(message) }).await;
    }

    fn record(&self, deed: Deed) -> impl Future<Output = ()> + Send + use<> {
        // Whatever the engine is at.
        self.audit.keep(deed)
    }

    async fn metrics(&self) -> ControlResult<Vec<Sample>> {
        let samples = |engine: Rc<Engine>| async move {
            engine.forget_gone().await;
            engine.metrics().await
        };
        self.bridge.call(samples).await
    }

    async fn status(&self, scope: Scope) -> Collected<Status> {
        self.bridge.call(move |engine| async move { engine.status(&scope).await }).await
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

    async fn upgrade(&self) -> ControlResult<Upgrade> {
        self.bridge.call(|engine| async move { engine.upgrade().await }).await
    }

    async fn cluster_upgrade(&self, change: ChangeOptions) -> ControlResult<Upgrade> {
        let dry_run = change.dry_run;
        self.bridge.call(move |engine| async move { engine.cluster_upgrade(dry_run).await }).await
    }

    async fn health(&self, scope: Scope) -> Collected<Health> {
        Ok(self.status(scope).await?.map(|status| status.health))
    }

    async fn hosts(&self, scope: Scope) -> Collected<Vec<Host>> {
        self.bridge.call(move |engine| async move { engine.all_hosts(&scope).await }).await
    }

    async fn disks(&self, scope: Scope) -> ControlResult<Vec<Disk>> {
        self.bridge.call(move |engine| async move { engine.disks_at(&scope).await }).await
    }

    async fn host_remove(
        &self,
        host: &str,
        lost: bool,
        change: ChangeOptions,
    ) -> ControlResult<HostRemoval> {
        let (host, dry_run) = (host.to_owned(), change.dry_run);
        let remove =
            move |engine: Rc<Engine>| async move { engine.host_remove(&host, lost, dry_run).await };
        self.bridge.call(remove).await
    }

    async fn disk_wipe(
        &self,
        scope: Scope,
        request: DiskWipeRequest,
        change: ChangeOptions,
    ) -> ControlResult<DiskWipe> {
        let wipe = HostRequest::DiskWipe { request, dry_run: change.dry_run };
        self.bridge.call(move |engine| async move { engine.done_at(&scope, wipe).await }).await
    }

    async fn groups(&self, scope: Scope) -> Collected<Vec<Group>> {
        let groups = move |engine: Rc<Engine>| async move {
            let missing = engine.look(&scope).await?;
            Ok(Told { what: engine.groups()?, missing })
        };
        self.bridge.call(groups).await
    }

    async fn group_create(
        &self,
        scope: Scope,
        request: GroupCreate,
        change: ChangeOptions,
    ) -> ControlResult<Group> {
        let create = HostRequest::GroupCreate { request, dry_run: change.dry_run };
        self.bridge.call(move |engine| async move { engine.done_at(&scope, create).await }).await
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
        self.bridge.call(move |engine| async move { engine.all_volumes(&scope).await }).await
    }

    async fn volume(&self, name: &str, scope: Scope) -> Collected<Volume> {
        let name = name.to_owned();
        let volume = move |engine: Rc<Engine>| async move {
            engine.in_all(engine.volume(&name).await?, &scope).await
        };
        self.bridge.call(volume).await
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
        scope: Scope,
        change: ChangeOptions,
    ) -> Collected<Volume> {
        let name = name.to_owned();
        let ChangeOptions { dry_run, if_revision, .. } = change;
        let patch = move |engine: Rc<Engine>| async move {
            let volume = engine.volume_patch(&name, patch, if_revision, dry_run).await?;
            engine.in_all(volume, &scope).await
        };
        self.bridge.call(patch).await
    }

    async fn volume_delete(&self, name: &str, change: ChangeOptions) -> ControlResult<()> {
        let name = name.to_owned();
        let delete =
            move |engine: Rc<Engine>| async move { engine.volume_delete(&name, change).await };
        self.bridge.call(delete).await
    }

    async fn volume_lock(
        &self,
        name: &str,
        request: VolumeLockRequest,
        change: ChangeOptions,
    ) -> ControlResult<VolumeLock> {
        let name = name.to_owned();
        let lock = move |engine: Rc<Engine>| async move {
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
        let unlock = move |engine: Rc<Engine>| async move {
            engine.volume_unlock(&name, token, change.dry_run).await
        };
        self.bridge.call(unlock).await
    }

    async fn placement(&self, name: &str) -> ControlResult<Placement> {
        let name = name.to_owned();
        self.bridge.call(move |engine| async move { engine.placement(&name).await }).await
    }

    async fn resync(&self, scope: Scope) -> Collected<Resync> {
        let resync = move |engine: Rc<Engine>| async move {
            let missing = engine.look(&scope).await?;
            Ok(Told { what: resync_item(&engine.facts().await?), missing })
        };
        self.bridge.call(resync).await
    }

    async fn resync_patch(&self, patch: ResyncPatch, change: ChangeOptions) -> Collected<Resync> {
        let ResyncPatch { paused, limit_bytes_per_second } = patch;
        let dry_run = change.dry_run;
        let patch = move |engine: Rc<Engine>| async move {
            engine.resync_patch(paused, limit_bytes_per_second, dry_run).await
        };
        self.bridge.call(patch).await
    }

    async fn scrubs(&self, scope: Scope) -> Collected<Vec<Scrub>> {
        self.bridge.call(move |engine| async move { engine.all_scrubs(&scope).await }).await
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
        let start = move |engine: Rc<Engine>| async move {
            engine.set_scrubs(request, &scope, change.dry_run).await
        };
        self.bridge.call(start).await
    }

    async fn scrub_stop(
        &self,
        group: Option<&str>,
        scope: Scope,
        change: ChangeOptions,
    ) -> Collected<Vec<Scrub>> {
        let group = group.map(str::to_owned);
        let stop = ScrubStart { group, volume: None, bytes_per_second: Some(0) };
        let stop = move |engine: Rc<Engine>| async move {
            engine.set_scrubs(stop, &scope, change.dry_run).await
        };
        self.bridge.call(stop).await
    }

    async fn tasks(&self, scope: Scope) -> Collected<Vec<Task>> {
        let tasks = move |engine: Rc<Engine>| async move {
            let missing = engine.look(&scope).await?;
            Ok(Told { what: engine.tasks().await?, missing })
        };
        self.bridge.call(tasks).await
    }

    async fn events(
        &self,
        scope: Scope,
        since: u64,
        read: EventMarks,
        max: usize,
    ) -> Collected<EventsRead> {
        let ask =
            move |engine: Rc<Engine>| async move { engine.events(&scope, since, read, max).await };
        self.bridge.call(ask).await
    }

    async fn sessions(&self, scope: Scope, volume: Option<&str>) -> Collected<Vec<Session>> {
        let volume = volume.map(str::to_owned);
        let sessions =
            move |engine: Rc<Engine>| async move { engine.all_sessions(&scope, volume).await };
        self.bridge.call(sessions).await
    }

    async fn profiles(&self, scope: Scope) -> Collected<Vec<Profile>> {
        self.bridge.call(move |engine| async move { engine.all_profiles(&scope).await }).await
    }

    async fn tokens(&self) -> ControlResult<Vec<Token>> {
        self.bridge.call(|engine| async move { engine.tokens().await }).await
    }

    async fn token_create(
        &self,
        request: TokenCreate,
        sha256: String,
        change: ChangeOptions,
    ) -> ControlResult<Token> {
        let create = move |engine: Rc<Engine>| async move {
            engine.token_create(request, sha256, change.dry_run).await
        };
        self.bridge.call(create).await
    }

    async fn join_token_create(
        &self,
        request: JoinTokenCreate,
        sha256: String,
        change: ChangeOptions,
    ) -> ControlResult<JoinMade> {
        let create = move |engine: Rc<Engine>| async move {
            engine.join_token_create(request, sha256, change.dry_run).await
        };
        self.bridge.call(create).await
    }

    async fn host_join(
        &self,
        request: HostJoin,
        token: Option<TokenSecret>,
        change: ChangeOptions,
    ) -> ControlResult<HostJoined> {
        let join = move |engine: Rc<Engine>| async move {
            engine.host_join(request, token, change.dry_run).await
        };
        self.bridge.call(join).await
    }

    async fn token_remove(&self, name: &str, change: ChangeOptions) -> ControlResult<()> {
        let name = name.to_owned();
        let remove = move |engine: Rc<Engine>| async move {
            engine.token_remove(&name, change.dry_run).await
        };
        self.bridge.call(remove).await
    }

    async fn audit(&self, scope: Scope) -> Collected<Vec<AuditEntry>> {
        self.bridge.call(move |engine| async move { engine.all_audit(&scope).await }).await
    }
}
