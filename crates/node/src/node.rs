//! One host: who it is, what it holds in memory, and what every part of this crate asks of it.
//!
//! The state is shared by all tasks of the host, which run on one thread. Nothing here asks another
//! host or the directory.
//!
//! Invariants (checked in simulation, see [`World::audits`]): each disk group that
//! runs is published once; a volume counts as open as long as it has a client.

use crate::directory_view::{DirectoryView, Removed};
use crate::event_log::{About, EventLog, EventMark, EventsKept, HostEvents, NodeEvent, Severity};
use crate::host_board::{Chosen, HostBoard, Noted};
use crate::membership::refusals::Refusals;
use crate::repair_queue::RepairQueue;
use crate::status::HostStatus;
use crate::volume_lock::table::{Import, LockTable};
use atoll_format::id::{Addr, ClusterId, ComponentId, GroupId, HostId, Incarnation, ObjectId};
use atoll_format::level::{Level, Levels};
use atoll_format::record::{GroupRecord, HostRecord, LockPurpose};
use atoll_object::HostObjects;
use atoll_world::components::FailureCause;
use atoll_world::directory::Revision;
use atoll_world::sync::{Notified, Notify};
use atoll_world::{Components, Nanos, World};
use futures_util::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// Who this host is.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The cluster.
    pub cluster: ClusterId,
    /// This host.
    pub host: HostId,
    /// For people; unique in the cluster.
    pub name: String,
    /// Members of one leg are in different ones.
    pub fault_domain: String,
    /// Where peers reach it.
    pub peers: Vec<String>,
    /// Where its REST API is.
    pub api: String,
    /// Program version.
    pub release: String,
    /// The feature levels that it knows.
    pub levels: Levels,
}

/// Another process that lives as this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherLife {
    /// What the host is called.
    pub name: String,
    /// Where it was found, or says that it listens.
    pub endpoint: String,
}

/// Why a life of a host has ended that nobody stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Another process lives as this host.
    Twin(OtherLife),
    /// The host was removed from the cluster.
    Removed(RemovedHost),
    /// The cluster was raised to this feature level, which the host's release does not know.
    Level(Level),
}

/// A host that was removed from the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemovedHost {
    /// What it is called.
    pub name: String,
    /// Milliseconds since 1970 when it was removed; 0: not known.
    pub at_ms: u64,
}

/// Answers what another host's [`Node::manage_at`] asks of the program around this node; with TLS,
/// that host has proved who it is.
pub type Manager = Rc<dyn Fn(HostId, String) -> LocalBoxFuture<'static, String>>;

/// One host. Clones are the same.
pub struct Node<W: World, S: Components>(pub(crate) Rc<NodeState<W, S>>);

impl<W: World, S: Components> Clone for Node<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Which shard of its host a node is.
#[derive(Clone)]
pub(crate) struct ShardPlace {
    /// Its number; shard 0 speaks for the host.
    pub shard: u8,
    /// How many there are.
    pub shards: u8,
    /// Where they tell each other about themselves.
    pub board: HostBoard,
}

/// What all tasks of a shard share.
pub(crate) struct NodeState<W: World, S: Components> {
    pub world: W,
    pub config: NodeConfig,
    pub place: ShardPlace,
    pub incarnation: Incarnation,
    pub objects: HostObjects<W, S>,
    /// This shard's disk groups, as published.
    pub groups: RefCell<Vec<GroupRecord>>,
    /// What took those of them out of use that have failed.
    pub failure_causes: RefCell<BTreeMap<GroupId, FailureCause>>,
    /// The directory, as shard 0 last saw it; empty on the others.
    pub view: DirectoryView,
    /// The cluster's hosts, as the directory last showed them.
    pub hosts: RefCell<BTreeMap<HostId, HostRecord>>,
    /// The cluster's feature level, the highest that this life has seen.
    pub level: Cell<Level>,
    /// Those that were removed from it.
    pub removed: RefCell<Arc<Removed>>,
    /// What each host last said of itself, and when.
    pub statuses: RefCell<BTreeMap<HostId, (Nanos, HostStatus)>>,
    /// Hosts that seemed to be reachable and gave no answer when they were last asked how they are.
    pub silent: RefCell<BTreeSet<HostId>>,
    pub events: EventLog,
    /// Names of volumes by their objects, for events: as of the last look through the objects.
    pub volume_names: RefCell<BTreeMap<ObjectId, String>>,
    /// Volumes that front ends of this host have open, with the number of clients.
    pub open_volumes: RefCell<BTreeMap<ObjectId, u32>>,
    /// Shards that were chosen for clients.
    pub chosen: RefCell<Chosen>,
    /// Locks of volumes that this host was told of, has or tries to get.
    pub locks: Rc<LockTable>,
    /// Imports through this host, by the token of their lock.
    pub imports: RefCell<BTreeMap<u64, Rc<Import>>>,
    /// Chunks with bad blocks, and when these are handed to their owner again.
    pub repairs: RepairQueue,
    /// This host's record in the directory is to be written anew.
    pub publish_now: Notify,
    /// Of this host's record, as this life wrote it last; 0: it has not yet.
    pub host_revision: Cell<Revision>,
    /// It stops in order, or its life has ended.
    pub stopping: Cell<bool>,
    /// Who answers for the program around this node, once it is set.
    pub manager: RefCell<Option<Manager>>,
    /// A life of this host that has been asked for and did not answer.
    pub over: Cell<Option<Incarnation>>,
    /// Why this life has ended, unless it was stopped.
    pub ended: RefCell<Option<Ended>>,
    /// Connections that are refused again and again.
    pub refusals: RefCell<Refusals>,
    pub ended_notify: Notify,
}

impl<W: World, S: Components> NodeState<W, S> {
    /// A host before its tasks begin, with the disk groups that it publishes.
    pub(crate) fn new(
        world: W,
        config: NodeConfig,
        place: ShardPlace,
        incarnation: Incarnation,
        objects: HostObjects<W, S>,
        groups: Vec<GroupRecord>,
        kept: EventsKept,
    ) -> Self {
        Self {
            world,
            place,
            events: EventLog::new(config.host, incarnation, kept),
            config,
            incarnation,
            objects,
            groups: RefCell::new(groups),
            failure_causes: RefCell::default(),
            view: DirectoryView::default(),
            hosts: RefCell::default(),
            level: Cell::default(),
            removed: RefCell::default(),
            statuses: RefCell::default(),
            silent: RefCell::default(),
            volume_names: RefCell::default(),
            open_volumes: RefCell::default(),
            chosen: RefCell::default(),
            locks: Rc::default(),
            imports: RefCell::default(),
            repairs: RepairQueue::default(),
            publish_now: Notify::default(),
            host_revision: Cell::new(Revision(0)),
            stopping: Cell::new(false),
            manager: RefCell::default(),
            over: Cell::default(),
            ended: RefCell::default(),
            refusals: RefCell::default(),
            ended_notify: Notify::default(),
        }
    }
}

impl<W: World, S: Components> Node<W, S> {
    /// The object layer.
    pub fn objects(&self) -> &HostObjects<W, S> {
        &self.0.objects
    }

    /// Who this host is.
    pub fn config(&self) -> &NodeConfig {
        &self.0.config
    }

    /// This life of it.
    pub fn incarnation(&self) -> Incarnation {
        self.0.incarnation
    }

    pub(crate) fn world(&self) -> &W {
        &self.0.world
    }

    /// Whether this is the shard that speaks for its host.
    pub(crate) fn is_first_shard(&self) -> bool {
        self.0.place.shard == 0
    }

    /// The other shards of this host.
    pub(crate) fn siblings(&self) -> impl Iterator<Item = Addr> + use<W, S> {
        let (host, own) = (self.0.config.host, self.0.place.shard);
        (0..self.0.place.shards).filter(move |&s| s != own).map(move |shard| Addr { host, shard })
    }

    /// This host.
    pub fn id(&self) -> HostId {
        self.0.config.host
    }

    /// Records an event of this host, with what it is about.
    pub fn note(&self, severity: Severity, kind: &str, about: About, message: impl Into<String>) {
        let message = message.into();
        if !self.is_first_shard() {
            let kind = kind.to_owned();
            return self.0.place.board.note(Noted { severity, kind, about, message });
        }
        let volume = about.object.and_then(|id| self.0.volume_names.borrow().get(&id).cloned());
        let (at_ms, volume) = (self.world().unix_ms(), volume.unwrap_or_default());
        self.0.events.push(at_ms, severity, kind, volume, about, message);
        self.audit();
        self.0.events.wake_readers();
    }

    /// Returns after the next event of this host; counted from this call, not the first poll.
    pub fn next_event(&self) -> Notified {
        self.0.events.added()
    }

    /// Events of this host after that mark, oldest first, at most `max`, with those of earlier
    /// lives that are kept; `events-lost` stands for those that are not.
    pub fn local_events(&self, after: EventMark, max: usize) -> Vec<NodeEvent> {
        self.events_here(after, 0, max).events
    }

    /// The same; whoever has read nothing begins with the first of a higher id than `since`.
    pub fn events_here(&self, after: EventMark, since: u64, max: usize) -> HostEvents {
        self.0.events.after(after, since, max)
    }

    /// The mark of the last event of this host.
    pub fn events_end(&self) -> EventMark {
        self.0.events.end()
    }

    /// Whether this host's record has been written in this life.
    pub fn is_published(&self) -> bool {
        self.0.host_revision.get() > Revision(0)
    }

    /// Whether a host can be reached now.
    pub fn is_alive(&self, host: HostId) -> bool {
        host == self.0.config.host || self.0.objects.peers().peer(host).connected
    }

    /// Whether that life of a host can be reached now.
    pub(crate) fn is_alive_life(&self, host: HostId, incarnation: Incarnation) -> bool {
        if host == self.0.config.host {
            return incarnation == self.0.incarnation;
        }
        let peer = self.0.objects.peers().peer(host);
        peer.connected && peer.incarnation.is_none_or(|i| i == incarnation)
    }

    /// Whether a host can be reached, and has answered when it was last asked how it is.
    pub(crate) fn answers(&self, host: HostId) -> bool {
        self.is_alive(host) && !self.0.silent.borrow().contains(&host)
    }

    /// The name of a host; its id if the directory has shown none.
    pub(crate) fn host_name(&self, id: HostId) -> String {
        if let Some(host) = self.0.hosts.borrow().get(&id) {
            return host.name.clone();
        }
        let removed = self.0.removed.borrow();
        let record = removed.get(&id).and_then(|(record, _)| record.as_deref());
        record.map_or_else(|| id.to_string(), |record| record.name.clone())
    }

    /// Hosts of the cluster that can be reached now.
    pub(crate) fn reached(&self) -> BTreeSet<HostId> {
        let hosts = self.0.hosts.borrow();
        hosts.keys().copied().filter(|&host| self.is_alive(host)).collect()
    }

    /// Whether this host is the one that does what one host is to do: by choice, not by right.
    pub(crate) fn is_first(&self) -> bool {
        let first = self.0.hosts.borrow().keys().copied().find(|&id| self.is_alive(id));
        first.is_none_or(|id| id == self.0.config.host)
    }

    /// Counts clients of a volume on this host: a volume in use is neither deleted nor shrunk.
    pub fn opened(&self, object: ObjectId) -> OpenVolume {
        *self.0.open_volumes.borrow_mut().entry(object).or_default() += 1;
        let node = self.0.clone();
        let close = Box::new(move || {
            let mut open = node.open_volumes.borrow_mut();
            let count = open.get_mut(&object).expect("it was counted when it was opened");
            assert!(*count > 0, "{object} is closed more often than it was opened");
            *count -= 1;
            if *count == 0 {
                open.remove(&object);
            }
        });
        OpenVolume { close, also: None }
    }

    /// Clients of a volume on this host.
    pub(crate) fn clients_of(&self, object: ObjectId) -> u32 {
        self.0.open_volumes.borrow().get(&object).copied().unwrap_or(0)
    }

    /// Checks what must hold of this host's tables at every moment, in simulation only (see
    /// [`World::audits`]): a run ends where it first does not, and not where somebody notices.
    ///
    /// # Panics
    /// Something does not hold.
    pub(crate) fn audit(&self) {
        if self.world().audits() {
            self.audit_cluster();
            self.audit_disks();
            self.audit_clients();
            self.0.view.audit();
            self.0.events.audit();
        }
    }

    /// What is known of hosts.
    fn audit_cluster(&self) {
        let (state, now) = (&self.0, self.world().now());
        let me = state.config.host;
        for (&id, (at, status)) in state.statuses.borrow().iter() {
            assert_eq!(id, status.id, "host {me}: the figures of another host");
            assert!(*at <= now, "host {me}: the figures of {id} are from {at}, and it is {now}");
        }
        for (&id, record) in state.hosts.borrow().iter() {
            assert_eq!(id, record.id, "host {me}: the record of another host");
        }
        assert!(!state.silent.borrow().contains(&me), "host {me} does not answer itself");
        let peers = state.objects.peers();
        assert!(!peers.is_removed(me), "host {me} refuses itself");
        for &id in state.removed.borrow().keys().filter(|&&id| id != me) {
            assert!(peers.is_removed(id), "host {me} speaks with {id}, which was removed");
        }
        let ended = state.ended.borrow();
        let goes_on = ended.is_some() && !state.stopping.get();
        assert!(!goes_on, "host {me} goes on beside {ended:?}");
    }

    /// What this host keeps.
    fn audit_disks(&self) {
        let (state, me) = (&self.0, self.0.config.host);
        let groups = state.groups.borrow();
        let published: BTreeSet<GroupId> = groups.iter().map(|group| group.id).collect();
        assert_eq!(published.len(), groups.len(), "host {me}: a disk group twice: {published:?}");
        let stores = state.objects.members().stores();
        assert_eq!(stores.len(), published.len(), "host {me}: disk groups that run, of published");
        let mut kept: BTreeSet<ComponentId> = BTreeSet::new();
        for component in stores.iter().flat_map(|store| store.list()) {
            let is_new = kept.insert(component.id);
            assert!(is_new, "host {me}: two disk groups keep {}", component.id);
        }
        state.repairs.audit(me);
    }

    /// Volumes in use, and locks.
    fn audit_clients(&self) {
        let (state, now) = (&self.0, self.world().now());
        let me = state.config.host;
        let open = state.open_volumes.borrow();
        for (object, &count) in open.iter() {
            assert!(count > 0, "host {me}: {object} is open and has no client");
        }
        for (&token, import) in state.imports.borrow().iter() {
            let (lock, object) = (&import.lock.record, import.lock.record.object);
            // Whoever looks for left-over locks must not take away one that an import holds.
            assert!(
                state.locks.is_own(token),
                "host {me}: the lock of an import counts as left over"
            );
            assert_eq!(lock.token, token, "host {me}: an import under another one's token");
            assert_eq!(lock.purpose, LockPurpose::Import, "host {me}: an import of {object}");
            let holder = (lock.host, lock.incarnation);
            assert_eq!(holder, (me, state.incarnation), "host {me}: another one's import");
            assert!(import.lock.revision() > Revision(0), "host {me}: an import without a lock");
            assert!(import.idle_since.get() <= now, "host {me}: an import is idle from later on");
            let (clients, counted) = (import.clients.get(), open.get(&object).copied());
            assert!(
                clients <= counted.unwrap_or(0),
                "host {me}: {clients} clients of an import, {counted:?} of {object}"
            );
        }
        state.locks.audit(me);
    }
}

/// A client has a volume open until this is dropped.
pub struct OpenVolume {
    close: Box<dyn Fn()>,
    /// Goes with it.
    also: Option<Box<dyn std::any::Any>>,
}

impl OpenVolume {
    pub(crate) fn with(&mut self, also: Box<dyn std::any::Any>) {
        self.also = Some(also);
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        (self.close)();
    }
}
