//! All objects of one host: those that it owns, its members, and what it knows of other owners.
//!
//! This file is what the layers above call, and the service that other hosts call. `ownership`
//! finds an object's owner, or makes one; `leases` renews what owners need from members;
//! `remote_clients` carries out I/O of other hosts' clients.
//!
//! Invariant: of one object this host has at most one owner that has not stopped.

mod leases;
mod object_table;
mod ownership;
mod remote_clients;

pub(crate) use ownership::Route;

use object_table::{ObjectTable, Serving};

use crate::ctx::{Ctx, Settings};
use crate::events::Event;
use crate::failure::Stop;
use crate::host_components::HostComponents;
use crate::limits::{CALL_DEADLINE, HAND_OVER_MAX, RETRY_EVERY};
use crate::member::Members;
use crate::message::{Reply, Request};
use crate::owner::{OwnedObject, Owner, ResizeError};
use crate::placement::HostView;
use atoll_format::id::{Addr, ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId};
use atoll_transport::{Identity, Peers, Service};
use atoll_world::directory::Compare;
use atoll_world::sync::Notify;
use atoll_world::{Components, Lane, Nanos, World};
use futures_util::future::{LocalBoxFuture, join_all};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

/// An answer to a management request of another host.
pub type AdminHandler = Rc<dyn Fn(Addr, Vec<u8>) -> LocalBoxFuture<'static, Vec<u8>>>;

/// All objects of one host. Clones are the same.
pub struct HostObjects<W: World, S: Components>(Rc<HostState<W, S>>);

impl<W: World, S: Components> Clone for HostObjects<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// An owner on this host.
type HostOwner<W, S> = Owner<W, HostService<W, S>>;

impl<W: World, S: Components> Serving for HostOwner<W, S> {
    fn serves(&self) -> (ObjectId, Epoch) {
        (self.0.id, self.0.epoch)
    }
    fn is_stopped(&self) -> bool {
        Owner::is_stopped(self)
    }
    fn is_same(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

struct HostState<W: World, S: Components> {
    ctx: Rc<Ctx<W, HostService<W, S>>>,
    members: Members<W, S>,
    /// What is known of each object.
    table: ObjectTable<HostOwner<W, S>>,
    /// Since when the directory has not answered, and when it did again.
    directory_away: Cell<Option<Nanos>>,
    directory_back: Cell<Option<Nanos>>,
    /// Of the last renewal of leases.
    serial: Cell<u64>,
    renew_now: Notify,
    admin: RefCell<Option<AdminHandler>>,
    stopping: Cell<bool>,
}

/// The requests of other hosts, and of this one.
pub struct HostService<W: World, S: Components>(Weak<HostState<W, S>>);

impl<W: World, S: Components> Clone for HostService<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: World, S: Components> Service for HostService<W, S> {
    type Request = Request;
    type Reply = Reply;
    fn handle(&self, from: Addr, request: Request) -> impl Future<Output = Reply> + 'static {
        let host = self.0.upgrade();
        async move {
            let Some(host) = host else { return Reply::NotOwner };
            match request {
                // Set apart: every request, and most are appends, takes as much memory as the
                // largest of those that are not.
                Request::Client(request) => {
                    let objects = HostObjects(host);
                    Box::pin(async move { objects.serve_client(request).await }).await
                }
                Request::Admin(json) => {
                    let handler = host.admin.borrow().clone();
                    match handler {
                        Some(handler) => Reply::Admin(handler(from, json).await),
                        None => Reply::NotOwner,
                    }
                }
                request => host.members.handle(from, request).await,
            }
        }
    }
}

impl<W: World, S: Components> HostObjects<W, S> {
    /// The object layer of a shard that starts now; `of_host` is what all shards of its host have.
    /// `outlived`: lives of its host that have ended for certain, wherever they ran: a shard waits
    /// for no lease of theirs, and what two lives do at once is not found out here.
    pub fn start(
        world: W,
        identity: Identity,
        outlived: Vec<Incarnation>,
        stores: Vec<S>,
        of_host: HostComponents,
    ) -> Self {
        assert!(!outlived.contains(&identity.incarnation), "a life does not outlive itself");
        let me = identity.addr();
        let members = Members::new(world.clone(), me, outlived.clone(), stores, of_host);
        let objects = Self(Rc::new_cyclic(|host| HostState {
            ctx: Rc::new(Ctx::start(world.clone(), identity, outlived, HostService(host.clone()))),
            members,
            table: ObjectTable::default(),
            directory_away: Cell::new(None),
            directory_back: Cell::new(None),
            serial: Cell::new(0),
            renew_now: Notify::default(),
            admin: RefCell::new(None),
            stopping: Cell::new(false),
        }));
        world.spawn(objects.clone().renew_leases());
        objects
    }

    pub(crate) fn world(&self) -> &W {
        &self.0.ctx.world
    }

    fn owner(&self, object: ObjectId) -> Option<HostOwner<W, S>> {
        self.0.table.owner(object)
    }

    /// The owners on this host that serve.
    fn owners(&self) -> Vec<HostOwner<W, S>> {
        self.0.table.owners()
    }

    /// This host's members.
    pub fn members(&self) -> &Members<W, S> {
        &self.0.members
    }

    /// The way to other hosts.
    pub fn peers(&self) -> &Peers<W, HostService<W, S>> {
        &self.0.ctx.peers
    }

    /// When this life began.
    pub fn started(&self) -> Nanos {
        self.0.ctx.started
    }

    /// Who answers management requests of other hosts.
    pub fn set_admin(&self, handler: AdminHandler) {
        *self.0.admin.borrow_mut() = Some(handler);
    }

    /// The hosts and their space, and what each component uses in bytes, as known now: for
    /// rebuilding elsewhere and for names.
    pub fn set_inventory(&self, hosts: Vec<HostView>, used: BTreeMap<ComponentId, u64>) {
        let room = |group: GroupId| {
            let mut groups = hosts.iter().flat_map(|host| &host.groups);
            groups.any(|g| g.id == group && g.healthy && g.free_bytes > 0)
        };
        for owner in self.owners() {
            owner.on_inventory(room);
        }
        self.0.ctx.set_inventory(hosts, used);
    }

    /// Where a disk group of a host is asked, as far as is known.
    pub fn addr_of(&self, host: HostId, group: GroupId) -> Addr {
        self.0.ctx.addr_of((host, group))
    }

    /// See [`set_inventory`](Self::set_inventory).
    pub fn inventory(&self) -> Vec<HostView> {
        self.0.ctx.inventory.borrow().clone()
    }

    /// Bytes that a component uses, if that is known.
    pub fn used_bytes(&self, component: ComponentId) -> Option<u64> {
        self.0.ctx.used_bytes.borrow().get(&component).copied()
    }

    /// Seconds that a member may be away before it is rebuilt elsewhere.
    pub fn set_repair_delay(&self, seconds: u32) {
        self.0.ctx.repair_delay_s.set(seconds);
    }

    /// Bytes per second that the resync of an object reaches however busy guests are, as far as
    /// disks and network can (0: none). What [`set_resync`](Self::set_resync) says goes first.
    pub fn set_resync_floor(&self, bytes_per_second: u64) {
        self.0.ctx.resync_floor.set(bytes_per_second);
    }

    /// Pauses or resumes resync on this host, and limits it to bytes per second (0: no limit).
    pub fn set_resync(&self, paused: bool, bytes_per_second: u64) {
        self.0.ctx.resync_paused.set(paused);
        self.0.ctx.resync_limit.set(bytes_per_second);
    }

    /// What [`set_resync`](Self::set_resync) has set.
    pub fn resync_settings(&self) -> (bool, u64) {
        (self.0.ctx.resync_paused.get(), self.0.ctx.resync_limit.get())
    }

    /// All that was set.
    pub fn settings(&self) -> Settings {
        let ctx = &self.0.ctx;
        Settings {
            repair_delay_s: ctx.repair_delay_s.get(),
            resync_paused: ctx.resync_paused.get(),
            resync_limit: ctx.resync_limit.get(),
            resync_floor: ctx.resync_floor.get(),
        }
    }

    /// Sets all of it.
    pub fn set_settings(&self, settings: Settings) {
        self.set_repair_delay(settings.repair_delay_s);
        self.set_resync(settings.resync_paused, settings.resync_limit);
        self.set_resync_floor(settings.resync_floor);
    }

    /// Takes the events that have come up, with the time in milliseconds since 1970.
    pub fn take_events(&self) -> Vec<(u64, Event)> {
        self.0.ctx.events.take()
    }

    /// Objects that this host owns.
    pub fn owned(&self) -> Vec<OwnedObject> {
        self.owners().iter().map(Owner::describe).collect()
    }

    /// Hands over what this host owns, and stops: all of it at once, so that no client waits for
    /// the owners of others.
    pub async fn release_all(&self) {
        self.0.stopping.set(true);
        let owners = self.owners();
        join_all(owners.iter().map(|owner| self.wait_until_idle(owner))).await;
        self.stop_owners(&owners).await;
    }

    /// Gives up an object, if this shard owns it, for another that is to take it: this one does not
    /// take it again for [`HAND_OVER_MAX`], unless the other has.
    pub async fn release(&self, object: ObjectId) {
        let Some(owner) = self.owner(object) else { return };
        self.wait_until_idle(&owner).await;
        if owner.is_stopped() {
            // Another host was faster; this one may be taking it back already.
            return;
        }
        let until = self.world().now() + HAND_OVER_MAX;
        self.0.table.pause(object, until, "its owner moves to another shard".into());
        self.stop_owners(&[owner]).await;
    }

    /// In-flight I/O ends first, for at most a second.
    async fn wait_until_idle(&self, owner: &HostOwner<W, S>) {
        let world = self.world();
        let until = world.now() + Nanos::from_secs(1);
        while !owner.is_idle() && world.now() < until {
            world.sleep(RETRY_EVERY / 5).await;
        }
    }

    /// Leases are given back: then the next owner, which takes a new epoch, need not wait for them.
    async fn stop_owners(&self, owners: &[HostOwner<W, S>]) {
        let mut held: BTreeMap<Addr, Vec<ObjectId>> = BTreeMap::new();
        for owner in owners {
            for addr in owner.member_addrs() {
                held.entry(addr).or_default().push(owner.0.id);
            }
            // No read is answered after this, so the leases may go.
            owner.stop(Stop::Released);
        }
        let (incarnation, serial) = (self.0.ctx.incarnation, self.0.serial.get());
        let deadline = self.world().now() + CALL_DEADLINE / 6;
        let calls = held.into_iter().map(|(addr, objects)| {
            let request = Request::GiveBack { incarnation, serial, objects };
            self.peers().call(addr, Lane::Control, request, deadline)
        });
        join_all(calls).await;
    }

    /// Whether an object that this host owns has that size, and could be shrunk now.
    ///
    /// # Errors
    /// Why not.
    pub async fn may_shrink(&self, object: ObjectId, from: u64) -> Result<(), ResizeError> {
        self.owner(object).ok_or(ResizeError::NotOwner)?.may_shrink(from).await
    }

    /// Shrinks an object that this host owns from one size to another, in bytes; the caller has
    /// discarded what lies between.
    ///
    /// # Errors
    /// A sentence.
    pub async fn shrink(
        &self,
        object: ObjectId,
        from: u64,
        size_bytes: u64,
        lock: &Compare,
    ) -> Result<(), ResizeError> {
        self.owner(object).ok_or(ResizeError::NotOwner)?.shrink(from, size_bytes, lock).await
    }

    /// Grows an object that this host owns (in place: the same legs).
    ///
    /// # Errors
    /// A sentence.
    pub async fn grow(
        &self,
        object: ObjectId,
        from: u64,
        size_bytes: u64,
    ) -> Result<(), ResizeError> {
        self.owner(object).ok_or(ResizeError::NotOwner)?.grow(from, size_bytes).await
    }

    /// Sets the ceiling of an object that this host owns, in I/Os per second; 0: none.
    ///
    /// # Errors
    /// A sentence.
    pub async fn set_iops_limit(&self, object: ObjectId, limit: u32) -> Result<(), ResizeError> {
        self.owner(object).ok_or(ResizeError::NotOwner)?.set_iops_limit(limit).await
    }

    /// Whether anything but zeros is in an object that this host owns; when in doubt, or if that is
    /// not found out until `until`, it is.
    ///
    /// # Errors
    /// A sentence: this host is not its owner.
    pub async fn holds_data(&self, object: ObjectId, until: Nanos) -> Result<bool, ResizeError> {
        let owner = self.owner(object).ok_or(ResizeError::NotOwner)?;
        Ok(owner.holds_data(until).await)
    }

    /// A block of a component is bad: its object's owner, if it is here, repairs it.
    pub fn on_bad_block(&self, object: ObjectId, component: ComponentId, block: u32) -> bool {
        let Some(owner) = self.owner(object) else { return false };
        owner.repair_reported(component, block);
        true
    }

    /// Whether this host owns the object and serves it.
    pub fn owns(&self, object: ObjectId) -> bool {
        self.owner(object).is_some()
    }

    /// Whether this host is taking an object over at this moment.
    pub fn is_taking_over(&self) -> bool {
        self.0.table.is_taking_any()
    }

    /// Asks a member whose disk group has failed, as its host has published, whether it is lost: an
    /// owner that asks it for nothing would not notice. The group may have more than one device.
    pub async fn look_at_member(&self, object: ObjectId, component: ComponentId) {
        if let Some(owner) = self.owner(object) {
            owner.look_at_member(component).await;
        }
    }

    /// Breaks the circles of references, through the layer above and through owners, so that the
    /// memory of all goes when their tasks have gone: for a simulated crash.
    pub fn dissolve(&self) {
        *self.0.admin.borrow_mut() = None;
        // An operation in flight may hold a call to this very host.
        self.0.table.clear();
    }
}
