//! One host's worth of Atoll, wired for any world: object layer, members, membership of the
//! cluster, care of objects that nobody uses, and management.
//!
//! The same code runs in the daemon and in the simulator; it does not know which. It knows no
//! front end and no REST: those are given volumes and call the management functions.

mod admin;
mod audit;
mod care;
mod cluster;
mod manage;
mod scrub;
mod status;
mod twin;
mod volume_lock;

pub use admin::Manager;
pub use atoll_transport::CallError;
pub use manage::{CreateVolume, ManageError, PlacementView, Resize, VolumeView};
pub use status::{
    CopyStatus, EventMark, GroupStatus, HostStatus, NodeEvent, ObjectStatus, Severity,
};
pub use twin::{Before, OtherLife, before};
pub use volume_lock::{IDLE_MAX, ImportLock, export_name};

use atoll_format::id::{ClusterId, HostId, Incarnation, ObjectId};
use atoll_format::record::{GroupRecord, HostRecord};
use atoll_object::{ObjectVolume, Objects};
use atoll_world::directory::Revision;
use atoll_world::sync::{Notified, Notify};
use atoll_world::volume::{ExportName, Volumes};
use atoll_world::{Components, Nanos, VolumeError, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

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
}

/// One host. Clones are the same.
pub struct Node<W: World, S: Components>(Rc<Inner<W, S>>);

impl<W: World, S: Components> Clone for Node<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(crate) struct Inner<W: World, S: Components> {
    pub world: W,
    pub config: NodeConfig,
    pub incarnation: Incarnation,
    pub objects: Objects<W, S>,
    /// This host's disk groups, as published.
    pub groups: RefCell<Vec<GroupRecord>>,
    /// The cluster's hosts, as the directory last showed them.
    pub hosts: RefCell<BTreeMap<HostId, HostRecord>>,
    /// What each host last said of itself, and when.
    pub statuses: RefCell<BTreeMap<HostId, (Nanos, HostStatus)>>,
    /// Hosts that seemed to be reachable and gave no answer when they were last asked how they are.
    pub silent: RefCell<BTreeSet<HostId>>,
    pub events: RefCell<VecDeque<NodeEvent>>,
    pub next_event: Cell<u64>,
    pub event_notify: Notify,
    /// Names of volumes by their objects, for events: as of the last look through the objects.
    pub volume_names: RefCell<BTreeMap<ObjectId, String>>,
    /// Volumes that front ends of this host have open, with the number of clients.
    pub open_volumes: RefCell<BTreeMap<ObjectId, u32>>,
    /// Locks of volumes that this host was told of, its own included.
    pub locks: RefCell<BTreeMap<ObjectId, volume_lock::Noted>>,
    /// Imports through this host, by the token of their lock.
    pub imports: RefCell<BTreeMap<u64, Rc<volume_lock::Import<W, S>>>>,
    /// Tokens of the locks that this host has, or tries to get.
    pub own_locks: RefCell<BTreeSet<u64>>,
    /// Chunks with bad blocks, and when these are handed to their owner again.
    pub bad_chunks: RefCell<BTreeMap<(atoll_format::id::ComponentId, u32), care::Retry>>,
    pub publish_now: Notify,
    pub host_revision: Cell<Revision>,
    pub stopping: Cell<bool>,
    pub manager: RefCell<Option<Manager>>,
    /// A life of this host that has been asked for and did not answer.
    pub over: Cell<Option<Incarnation>>,
    /// Another life of this host, for which this one has ended.
    pub ended: RefCell<Option<OtherLife>>,
    pub ended_notify: Notify,
}

/// Events kept in memory.
pub(crate) const EVENTS_MAX: usize = 4096;

impl<W: World, S: Components> Node<W, S> {
    /// Starts the host: its members serve, its record is published, its cluster is watched.
    pub fn start(world: W, config: NodeConfig, groups: Vec<(S, GroupRecord)>) -> Self {
        let incarnation = Incarnation(world.random());
        let identity = twin::identity(&config, incarnation);
        let (stores, groups): (Vec<S>, Vec<GroupRecord>) = groups.into_iter().unzip();
        let objects = Objects::start(world.clone(), identity, stores);
        let node = Self(Rc::new(Inner {
            world: world.clone(),
            config,
            incarnation,
            objects,
            groups: RefCell::new(groups),
            hosts: RefCell::default(),
            statuses: RefCell::default(),
            silent: RefCell::default(),
            events: RefCell::default(),
            next_event: Cell::new(1),
            event_notify: Notify::default(),
            volume_names: RefCell::default(),
            open_volumes: RefCell::default(),
            locks: RefCell::default(),
            imports: RefCell::default(),
            own_locks: RefCell::default(),
            bad_chunks: RefCell::default(),
            publish_now: Notify::default(),
            host_revision: Cell::new(Revision(0)),
            stopping: Cell::new(false),
            manager: RefCell::default(),
            over: Cell::default(),
            ended: RefCell::default(),
            ended_notify: Notify::default(),
        }));
        node.0.objects.set_admin(node.admin_handler());
        world.spawn(node.clone().publish());
        world.spawn(node.clone().watch_hosts());
        world.spawn(node.clone().poll_statuses());
        world.spawn(node.clone().take_events());
        world.spawn(node.clone().care_for_objects());
        world.spawn(node.clone().reap());
        node
    }

    /// The object layer.
    pub fn objects(&self) -> &Objects<W, S> {
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

    /// Returns after the next event of this host; counted from this call, not the first poll.
    pub fn next_event(&self) -> Notified {
        self.0.event_notify.notified()
    }

    /// Takes one more disk group into use.
    pub fn add_group(&self, store: S, record: GroupRecord) {
        self.0.objects.members().add_store(store);
        self.0.groups.borrow_mut().push(record);
        self.0.publish_now.notify_all();
    }

    /// Hands over what this host owns, then stops serving. The caller ends the tasks.
    pub async fn stop(&self) {
        self.0.stopping.set(true);
        self.0.objects.release_all().await;
        // The front ends have ended before: it is true.
        if self.0.open_volumes.borrow().is_empty() {
            self.say_farewell().await;
        }
        self.0.objects.peers().stop();
    }

    /// Counts clients of a volume on this host: a volume in use is neither deleted nor shrunk.
    pub fn opened(&self, object: ObjectId) -> OpenVolume {
        *self.0.open_volumes.borrow_mut().entry(object).or_default() += 1;
        let node = self.0.clone();
        let close = Box::new(move || {
            let mut open = node.open_volumes.borrow_mut();
            let count = open.get_mut(&object).expect("it was counted when it was opened");
            *count -= 1;
            if *count == 0 {
                open.remove(&object);
            }
        });
        OpenVolume { close, also: None }
    }

    /// Breaks reference cycles, so that memory goes after a simulated crash.
    pub fn dissolve(&self) {
        self.0.imports.borrow_mut().clear();
        self.0.manager.take();
        self.0.objects.dissolve();
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

/// An object's volume together with the knowledge that it is in use.
pub struct CountedVolume<W: World, S: Components> {
    volume: ObjectVolume<W, S>,
    _open: Rc<OpenVolume>,
}

impl<W: World, S: Components> Clone for CountedVolume<W, S> {
    fn clone(&self) -> Self {
        Self { volume: self.volume.clone(), _open: self._open.clone() }
    }
}

impl<W: World, S: Components> std::ops::Deref for CountedVolume<W, S> {
    type Target = ObjectVolume<W, S>;
    fn deref(&self) -> &Self::Target {
        &self.volume
    }
}

impl<W: World, S: Components> atoll_world::Volume for CountedVolume<W, S> {
    fn info(&self) -> atoll_world::volume::VolumeInfo {
        self.volume.info()
    }
    async fn read(&self, at: u64, len: u32) -> Result<Vec<atoll_world::Buf>, VolumeError> {
        self.volume.read(at, len).await
    }
    async fn write(&self, at: u64, data: Vec<atoll_world::Buf>) -> Result<(), VolumeError> {
        self.volume.write(at, data).await
    }
    async fn flush(&self) -> Result<(), VolumeError> {
        self.volume.flush().await
    }
    async fn discard(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        self.volume.discard(at, len).await
    }
    async fn zero(
        &self,
        at: u64,
        len: u64,
        flags: atoll_world::volume::ZeroFlags,
    ) -> Result<(), VolumeError> {
        self.volume.zero(at, len, flags).await
    }
    async fn extents(
        &self,
        at: u64,
        len: u64,
        most: usize,
    ) -> Result<Vec<atoll_world::volume::Extent>, VolumeError> {
        self.volume.extents(at, len, most).await
    }
}

impl<W: World, S: Components> Volumes for Node<W, S> {
    type Volume = CountedVolume<W, S>;

    async fn open(&self, name: &str) -> Result<Self::Volume, VolumeError> {
        let (volume, open) = self.open_export(name).await?;
        Ok(CountedVolume { volume, _open: Rc::new(open) })
    }

    async fn list(&self, max: usize) -> Result<Vec<ExportName>, VolumeError> {
        let volumes = self.volumes().await;
        let volumes = volumes.map_err(|e| VolumeError::TimedOut(e.to_string()))?;
        let names = volumes.into_iter().take(max).map(|v| ExportName {
            description: format!(
                "{}, {} copies",
                atoll_format::units::iec(v.record.size_bytes),
                v.record.policy.members()
            ),
            name: v.name,
        });
        Ok(names.collect())
    }
}
