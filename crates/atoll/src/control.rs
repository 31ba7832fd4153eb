//! What the REST server asks of the engine: one method per operation, in the words of the
//! interface. The real one is a bridge to the shard's thread; tests bring one that is made up.
//!
//! Invariants: names are checked before a method is called; a method that is given
//! `dry_run = true` checks everything and changes nothing; every method ends by itself (the
//! server adds a deadline, and a call that is dropped there goes on).

use crate::audit::Deed;
use atoll_api::Problem;
use atoll_api::envelope::Missing;
use atoll_api::routes::Role;
use atoll_api::types::{
    AuditEntry, Cluster, ClusterPatch, Disk, DiskWipe, DiskWipeRequest, Event, Group, GroupCreate,
    Health, Host, HostJoin, HostJoined, HostRemoval, JoinTokenCreate, Placement, Policy,
    PolicyCheck, Profile, Resync, ResyncPatch, Scrub, ScrubStart, Session, Status, Task, Token,
    TokenCreate, Upgrade, Volume, VolumeCreate, VolumeLock, VolumeLockRequest, VolumePatch,
};
use atoll_format::id::{ClusterId, HostId};
use atoll_node::EventMark;
use atoll_trust::TokenSecret;
use std::collections::BTreeMap;
use std::future::Future;

/// Who does what is asked for, and whose knowledge the answer is made of: the
/// [`Place`](atoll_api::routes::Place) of the operation, with what the request names.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Scope {
    /// Every host that answers is asked.
    #[default]
    Cluster,
    /// Only this host.
    Local,
    /// The host of that name or id, this one or another.
    Host(String),
    /// The host with the disk group of that id; the answer is made of what all know.
    Group(String),
}

/// How a change is made: the same options for every operation that changes something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangeOptions {
    /// Check everything, change nothing.
    pub dry_run: bool,
    /// Also where a host that does not answer may have clients of it.
    pub force: bool,
    /// `revision` that the volume must still have.
    pub if_revision: Option<u64>,
}

/// How far the events of each host have been read.
pub type EventMarks = BTreeMap<HostId, EventMark>;

/// Events, and how far they have been read with them.
#[derive(Clone, Debug, Default)]
pub struct EventsRead {
    /// The oldest first, by the clocks of those who saw them; of each, whose it is and its mark.
    pub events: Vec<(Event, HostId, EventMark)>,
    /// How far each host had been read before them.
    pub begun: EventMarks,
    /// There are more.
    pub more: bool,
}

impl EventsRead {
    /// How far each host has been read with them: for the next call.
    pub fn read(&self) -> EventMarks {
        let mut read = self.begun.clone();
        read.extend(self.events.iter().map(|&(_, host, mark)| (host, mark)));
        read
    }
}

/// One number of the metrics page.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// `atoll_` and what it is; ends in its unit, counters in `_total`.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Names and values.
    pub labels: Vec<(&'static str, String)>,
    /// The number.
    pub value: Value,
}

/// What a [`Sample`] says; the same kind for all of one name.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Rises and falls.
    Gauge(f64),
    /// Rises only.
    Counter(f64),
    /// How often something was how large.
    Histogram {
        /// Rising bounds, and how often it was at most that: each has what is in those before it.
        at_most: Vec<(f64, u64)>,
        /// All of it together.
        sum: f64,
        /// How often it was anything.
        count: u64,
    },
}

/// What was collected from several hosts, and those that it is without.
#[derive(Clone, PartialEq, Debug)]
pub struct Told<T> {
    /// The answer.
    pub what: T,
    /// Hosts that were to tell something of it and did not, by name.
    pub missing: Vec<Missing>,
}

impl<T> Told<T> {
    /// Nobody is missing.
    pub fn whole(what: T) -> Self {
        Self { what, missing: Vec::new() }
    }

    /// The same, also without those hosts.
    #[must_use]
    pub fn and(mut self, missing: Vec<Missing>) -> Self {
        self.missing.extend(missing);
        self.missing.sort();
        self.missing.dedup_by(|a, b| a.host == b.host);
        self
    }

    /// Another answer, of the same hosts.
    pub fn map<U>(self, other: impl FnOnce(T) -> U) -> Told<U> {
        Told { what: other(self.what), missing: self.missing }
    }
}

/// Who asks: what was proved of him by the way that he came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Name of his token; none: he has shown none, and the way that he came says what he may.
    pub token: Option<String>,
    /// What he may do.
    pub role: Role,
}

/// A token for joining that was made, but for its secret.
#[derive(Clone, Debug)]
pub struct JoinMade {
    /// What it is.
    pub token: Token,
    /// Where the new host reaches hosts of the cluster.
    pub addresses: Vec<String>,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// What it knows the cluster's authority by.
    pub authority_sha256: String,
}

/// What an operation returns.
type ControlResult<T> = Result<T, Problem>;
/// Collected from several hosts, unless the scope is the local one.
type Collected<T> = Result<Told<T>, Problem>;

/// The engine, as seen by the interface.
#[allow(missing_docs, reason = "each method is the operation of the same name in api::routes")]
pub trait Control: Clone + Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn unix_ms(&self) -> u64;
    /// Whether this host serves volumes now; if not, why.
    fn ready(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// Whose token that is, by its hash.
    ///
    /// # Errors
    /// [`Code::NotAuthenticated`](atoll_api::Code::NotAuthenticated): nobody's, or it has expired.
    fn caller(&self, sha256: String) -> impl Future<Output = ControlResult<Caller>> + Send;
    /// Tells that somebody was refused, in a sentence.
    fn refused(&self, message: String) -> impl Future<Output = ()> + Send;
    /// Writes down what somebody has done; what it returns ends once that is durable, or cannot be.
    fn record(&self, deed: Deed) -> impl Future<Output = ()> + Send + use<Self>;
    /// Numbers for Prometheus, of this host alone.
    fn metrics(&self) -> impl Future<Output = ControlResult<Vec<Sample>>> + Send;

    fn status(&self, scope: Scope) -> impl Future<Output = Collected<Status>> + Send;
    fn cluster(&self) -> impl Future<Output = ControlResult<Cluster>> + Send;
    fn cluster_patch(
        &self,
        patch: ClusterPatch,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<Cluster>> + Send;
    fn upgrade(&self) -> impl Future<Output = ControlResult<Upgrade>> + Send;
    fn cluster_upgrade(
        &self,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<Upgrade>> + Send;
    fn health(&self, scope: Scope) -> impl Future<Output = Collected<Health>> + Send;
    fn hosts(&self, scope: Scope) -> impl Future<Output = Collected<Vec<Host>>> + Send;
    /// Removes a host for good; `lost`: with what it holds.
    fn host_remove(
        &self,
        host: &str,
        lost: bool,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<HostRemoval>> + Send;
    fn disks(&self, scope: Scope) -> impl Future<Output = ControlResult<Vec<Disk>>> + Send;
    fn disk_wipe(
        &self,
        scope: Scope,
        request: DiskWipeRequest,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<DiskWipe>> + Send;
    fn groups(&self, scope: Scope) -> impl Future<Output = Collected<Vec<Group>>> + Send;
    fn group_create(
        &self,
        scope: Scope,
        request: GroupCreate,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<Group>> + Send;
    fn policies(&self) -> impl Future<Output = ControlResult<Vec<Policy>>> + Send;
    fn policy_create(
        &self,
        policy: Policy,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<Policy>> + Send;
    fn policy_delete(
        &self,
        name: &str,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<()>> + Send;
    fn policy_check(
        &self,
        name: &str,
        size_bytes: u64,
    ) -> impl Future<Output = ControlResult<PolicyCheck>> + Send;
    fn volumes(&self, scope: Scope) -> impl Future<Output = Collected<Vec<Volume>>> + Send;
    fn volume(&self, name: &str, scope: Scope) -> impl Future<Output = Collected<Volume>> + Send;
    fn volume_create(
        &self,
        request: VolumeCreate,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<Volume>> + Send;
    fn volume_patch(
        &self,
        name: &str,
        patch: VolumePatch,
        scope: Scope,
        change: ChangeOptions,
    ) -> impl Future<Output = Collected<Volume>> + Send;
    fn volume_delete(
        &self,
        name: &str,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<()>> + Send;
    fn volume_lock(
        &self,
        name: &str,
        request: VolumeLockRequest,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<VolumeLock>> + Send;
    fn volume_unlock(
        &self,
        name: &str,
        token: u64,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<()>> + Send;
    fn placement(&self, name: &str) -> impl Future<Output = ControlResult<Placement>> + Send;
    fn resync(&self, scope: Scope) -> impl Future<Output = Collected<Resync>> + Send;
    fn resync_patch(
        &self,
        patch: ResyncPatch,
        change: ChangeOptions,
    ) -> impl Future<Output = Collected<Resync>> + Send;
    fn scrubs(&self, scope: Scope) -> impl Future<Output = Collected<Vec<Scrub>>> + Send;
    fn scrub_start(
        &self,
        request: ScrubStart,
        scope: Scope,
        change: ChangeOptions,
    ) -> impl Future<Output = Collected<Vec<Scrub>>> + Send;
    /// Stops the scrub of that group, or of all; how they are then.
    fn scrub_stop(
        &self,
        group: Option<&str>,
        scope: Scope,
        change: ChangeOptions,
    ) -> impl Future<Output = Collected<Vec<Scrub>>> + Send;
    fn tasks(&self, scope: Scope) -> impl Future<Output = Collected<Vec<Task>>> + Send;
    /// Events that are still kept and were not read, at most `max` (1 to 1,000), the oldest first:
    /// of hosts that nothing was read of, from the first on with an id above `since`.
    fn events(
        &self,
        scope: Scope,
        since: u64,
        read: EventMarks,
        max: usize,
    ) -> impl Future<Output = Collected<EventsRead>> + Send;
    fn sessions(
        &self,
        scope: Scope,
        volume: Option<&str>,
    ) -> impl Future<Output = Collected<Vec<Session>>> + Send;
    /// Of every host of the cluster, those included that did not tell.
    fn profiles(&self, scope: Scope) -> impl Future<Output = Collected<Vec<Profile>>> + Send;
    fn tokens(&self) -> impl Future<Output = ControlResult<Vec<Token>>> + Send;
    /// Makes a token that is known by that hash.
    fn token_create(
        &self,
        request: TokenCreate,
        sha256: String,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<Token>> + Send;
    /// Makes a token for joining that is known by that hash.
    fn join_token_create(
        &self,
        request: JoinTokenCreate,
        sha256: String,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<JoinMade>> + Send;
    /// Gives a new host its certificate; none: it has shown no token.
    fn host_join(
        &self,
        request: HostJoin,
        token: Option<TokenSecret>,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<HostJoined>> + Send;
    fn token_remove(
        &self,
        name: &str,
        change: ChangeOptions,
    ) -> impl Future<Output = ControlResult<()>> + Send;
    /// What was written down, the newest of each host.
    fn audit(&self, scope: Scope) -> impl Future<Output = Collected<Vec<AuditEntry>>> + Send;
}
