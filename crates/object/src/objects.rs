//! All objects of one host: its owners, its members, its leases, and the way to other hosts.

use crate::leg::{Member, Role};
use crate::limits::{
    CALL_DEADLINE, LEASE, REJOIN_PATIENCE, RENEW_EVERY, RETRY_EVERY, TAKEOVER_AFTER,
    TAKEOVER_PAUSE_FIRST, TAKEOVER_PAUSE_LAST, WATCH_EVERY,
};
use crate::member::Members;
use crate::mend::Trouble;
use crate::message::{ClientIo, ClientRequest, Reply, Request};
use crate::owner::{Fail, Owner, Stop};
use crate::placement::{self, HostView};
use crate::progress::CopyProgress;
use crate::read::Readiness;
use crate::resize::ResizeError;
use crate::takeover::{TakeoverError, load, take_over};
use atoll_format::id::{ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, Seq};
use atoll_format::op::OpKind;
use atoll_format::record::{ObjectRecord, OwnerRecord};
use atoll_format::units::CHUNK;
use atoll_transport::{Identity, Peers, Service};
use atoll_world::directory::Compare;
use atoll_world::sync::Notify;
use atoll_world::{Components, Lane, Nanos, StoreError, World, mutant, sometimes};
use futures_util::future::{LocalBoxFuture, select};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

/// Something that an administrator would want to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// This host begins to take the object over.
    TakingOver {
        /// Which.
        object: ObjectId,
        /// Its new epoch.
        epoch: Epoch,
    },
    /// This host owns the object.
    TookOver {
        /// Which.
        object: ObjectId,
        /// Its epoch.
        epoch: Epoch,
    },
    /// This host no longer owns the object.
    OwnerStopped {
        /// Which.
        object: ObjectId,
        /// The epoch that ended.
        epoch: Epoch,
    },
    /// A member was taken out of an object.
    MemberDropped {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
        /// Why, for people.
        why: String,
    },
    /// A member is being brought up to date.
    ResyncStarted {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
    },
    /// A member is up to date again.
    ResyncDone {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
    },
    /// A block whose checksum did not match was rewritten from a good copy.
    BlockRepaired {
        /// Which object.
        object: ObjectId,
        /// The member's host.
        host: HostId,
    },
    /// The last active copy has lost some of what it had acknowledged, or may have: it is what
    /// there is (R20).
    WritesLost {
        /// Which object.
        object: ObjectId,
        /// The copy's host.
        host: HostId,
    },
    /// A disk group had no room for new data of a client, for the first time in this episode.
    NoSpace {
        /// Which object.
        object: ObjectId,
        /// The host of the group.
        host: HostId,
        /// The group.
        group: GroupId,
    },
    /// The end of such an episode: there is room again.
    SpaceAgain {
        /// Which object.
        object: ObjectId,
    },
    /// No good copy of a block is left.
    BlockLost {
        /// Which object.
        object: ObjectId,
        /// First byte, in the object.
        at: u64,
    },
}

/// Events kept until they are taken; the oldest go first.
const EVENTS_MAX: usize = 1024;

/// An answer to a management request of another host.
pub type AdminHandler = Rc<dyn Fn(HostId, Vec<u8>) -> LocalBoxFuture<'static, Vec<u8>>>;

/// What an owner knows of its object.
#[derive(Clone, Debug)]
pub struct OwnedObject {
    /// The record, as the directory confirmed it.
    pub record: ObjectRecord,
    /// Copies that have begun to be brought up to date, and are not.
    pub resync: Vec<CopyProgress>,
    /// The disk group that has no room for new data of clients, if there is one.
    pub no_space: Option<(HostId, GroupId)>,
    /// Writes of clients that were refused for want of space, since this owner began.
    pub no_space_answers: u64,
    /// Reads and writes of guests since this owner began.
    pub guest_ops: u64,
}

/// All objects of one host. Clones are the same.
pub struct Objects<W: World, S: Components>(Rc<Ctx<W, S>>);

impl<W: World, S: Components> Clone for Objects<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What everything in this crate shares on one host.
pub(crate) struct Ctx<W: World, S: Components> {
    pub world: W,
    pub host: HostId,
    pub incarnation: Incarnation,
    /// When this life began.
    pub started: Nanos,
    peers: OnceCell<Peers<W, HostService<W, S>>>,
    pub members: Members<W, S>,
    owners: RefCell<BTreeMap<ObjectId, Owner<W, S>>>,
    /// Objects that this host is taking over at this moment.
    taking: RefCell<BTreeMap<ObjectId, Notify>>,
    /// Where owners were found: I/O asks the directory only when that has failed.
    routes: RefCell<BTreeMap<ObjectId, OwnerRecord>>,
    /// When an owner was first found out of reach.
    missed: RefCell<BTreeMap<ObjectId, Nanos>>,
    /// Since when the directory has not answered, and when it did again.
    directory_away: Cell<Option<Nanos>>,
    directory_back: Cell<Option<Nanos>>,
    /// Takeovers that failed: how long the last pause is, and until when; and why.
    pauses: RefCell<BTreeMap<ObjectId, (Nanos, Nanos, String)>>,
    /// Since when all copies that answer are known to lack something, while another may come; and
    /// the record's `seq_base` then.
    lacking: RefCell<BTreeMap<ObjectId, (Nanos, Seq)>>,
    pub readiness: Readiness,
    events: RefCell<VecDeque<(u64, Event)>>,
    inventory: RefCell<Vec<HostView>>,
    repair_delay_s: Cell<u32>,
    resync_paused: Cell<bool>,
    /// Bytes per second; 0: as fast as guests allow.
    resync_limit: Cell<u64>,
    /// When the limit lets the next copy go.
    resync_next: Cell<Nanos>,
    /// Bytes per second; 0: none.
    resync_floor: Cell<u64>,
    serial: Cell<u64>,
    renew_now: Notify,
    admin: RefCell<Option<AdminHandler>>,
    stopping: Cell<bool>,
}

impl<W: World, S: Components> Ctx<W, S> {
    pub fn peers(&self) -> &Peers<W, HostService<W, S>> {
        self.peers.get().expect("set before anything runs")
    }
    pub fn me(&self) -> OwnerRecord {
        OwnerRecord { host: self.host, incarnation: self.incarnation }
    }
    pub fn is_me(&self, record: &ObjectRecord) -> bool {
        record.owner == Some(self.me())
    }
    pub fn event(&self, event: Event) {
        let mut events = self.events.borrow_mut();
        if events.len() == EVENTS_MAX {
            events.pop_front();
        }
        events.push_back((self.world.unix_ms(), event));
    }
    pub fn host_name(&self, id: HostId) -> String {
        let inventory = self.inventory.borrow();
        inventory.iter().find(|h| h.id == id).map_or_else(|| id.to_string(), |h| h.name.clone())
    }
    pub fn repair_delay_s(&self) -> u32 {
        self.repair_delay_s.get()
    }
    /// Whether a takeover has to do with what answers, although it lacks something that it had
    /// acknowledged and an active copy that does not answer may have it: once that one counts as
    /// lost for good.
    pub fn may_settle_for_less(&self, record: &ObjectRecord) -> bool {
        let now = self.world.now();
        let mut lacking = self.lacking.borrow_mut();
        let (since, base) = lacking.entry(record.id).or_insert((now, record.seq_base));
        if *base != record.seq_base {
            // A takeover has gone well meanwhile, perhaps on another host: that was another time.
            (*since, *base) = (now, record.seq_base);
        }
        now.since(*since) >= Nanos::from_secs(u64::from(self.repair_delay_s()))
    }
    /// A takeover has gone well.
    pub fn lacks_nothing(&self, object: ObjectId) {
        self.lacking.borrow_mut().remove(&object);
    }
    pub fn resync_paused(&self) -> bool {
        self.resync_paused.get()
    }
    /// Sleeps as long as the limit says for that many bytes, and for those of all other copies that
    /// this host makes: the limit is the host's.
    pub async fn resync_pace(&self, bytes: u64) {
        let limit = self.resync_limit.get();
        if let Some(span) = bytes.saturating_mul(1_000_000_000).checked_div(limit) {
            let now = self.world.now();
            let until = self.resync_next.get().max(now) + Nanos(span);
            self.resync_next.set(until);
            self.world.sleep(until.since(now)).await;
        }
    }
    /// How long a resync may leave a chunk that took so long to guests, and keep its floor.
    pub fn resync_yield_max(&self, took: Nanos) -> Nanos {
        let chunk = CHUNK * 1_000_000_000;
        let span = chunk.checked_div(self.resync_floor.get()).map_or(Nanos(u64::MAX), Nanos);
        Nanos(span.0.saturating_sub(took.0))
    }
    /// Where a member that is gone can be rebuilt.
    pub fn replacement(
        &self,
        record: &ObjectRecord,
        leg: usize,
        gone: ComponentId,
    ) -> Option<(HostId, GroupId)> {
        placement::replacement(&self.inventory.borrow(), record, leg, gone).ok()
    }
    pub fn owner_stopped(&self, object: ObjectId, epoch: Epoch) {
        let mut owners = self.owners.borrow_mut();
        if owners.get(&object).is_some_and(|o| o.0.epoch == epoch) {
            owners.remove(&object);
        }
    }
    fn owner(&self, object: ObjectId) -> Option<Owner<W, S>> {
        self.owners.borrow().get(&object).filter(|o| !o.is_stopped()).cloned()
    }
}

/// The requests of other hosts, and of this one.
pub struct HostService<W: World, S: Components>(Weak<Ctx<W, S>>);

impl<W: World, S: Components> Clone for HostService<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: World, S: Components> Service for HostService<W, S> {
    type Request = Request;
    type Reply = Reply;
    fn handle(&self, from: HostId, request: Request) -> impl Future<Output = Reply> + 'static {
        let ctx = self.0.upgrade();
        async move {
            let Some(ctx) = ctx else { return Reply::NotOwner };
            match request {
                // Set apart: every request, and most are appends, takes as much memory as the
                // largest of those that are not.
                Request::Client(request) => {
                    let objects = Objects(ctx);
                    Box::pin(async move { objects.serve_client(request).await }).await
                }
                Request::Admin(json) => {
                    let handler = ctx.admin.borrow().clone();
                    match handler {
                        Some(handler) => Reply::Admin(handler(from, json).await),
                        None => Reply::NotOwner,
                    }
                }
                request => ctx.members.handle(from, request).await,
            }
        }
    }
}

/// Where an object's I/O goes.
pub(crate) enum Route<W: World, S: Components> {
    Local(Owner<W, S>),
    Remote(HostId),
}

impl<W: World, S: Components> Objects<W, S> {
    /// The object layer of a host that starts now.
    pub fn start(world: W, identity: Identity, stores: Vec<S>) -> Self {
        let ctx = Rc::new(Ctx {
            members: Members::new(world.clone(), stores),
            host: identity.host,
            incarnation: identity.incarnation,
            started: world.now(),
            peers: OnceCell::new(),
            owners: RefCell::default(),
            taking: RefCell::default(),
            routes: RefCell::default(),
            missed: RefCell::default(),
            directory_away: Cell::new(None),
            directory_back: Cell::new(None),
            pauses: RefCell::default(),
            lacking: RefCell::default(),
            readiness: Readiness::default(),
            events: RefCell::default(),
            inventory: RefCell::default(),
            repair_delay_s: Cell::new(3600),
            resync_paused: Cell::new(false),
            resync_limit: Cell::new(0),
            resync_next: Cell::new(Nanos::ZERO),
            resync_floor: Cell::new(0),
            serial: Cell::new(0),
            renew_now: Notify::default(),
            admin: RefCell::new(None),
            stopping: Cell::new(false),
            world: world.clone(),
        });
        let peers = Peers::start(world.clone(), identity, HostService(Rc::downgrade(&ctx)));
        assert!(ctx.peers.set(peers).is_ok(), "set once");
        let objects = Self(ctx);
        world.spawn(objects.clone().renew_leases());
        objects
    }

    pub(crate) fn ctx(&self) -> &Rc<Ctx<W, S>> {
        &self.0
    }

    /// This host's members.
    pub fn members(&self) -> &Members<W, S> {
        &self.0.members
    }

    /// The way to other hosts.
    pub fn peers(&self) -> &Peers<W, HostService<W, S>> {
        self.0.peers()
    }

    /// When this life began.
    pub fn started(&self) -> Nanos {
        self.0.started
    }

    /// Who answers management requests of other hosts.
    pub fn set_admin(&self, handler: AdminHandler) {
        *self.0.admin.borrow_mut() = Some(handler);
    }

    /// The hosts and their space, as known now: for rebuilding elsewhere and for names.
    pub fn set_inventory(&self, hosts: Vec<HostView>) {
        let room = |group: GroupId| {
            let mut groups = hosts.iter().flat_map(|host| &host.groups);
            groups.any(|g| g.id == group && g.healthy && g.free_bytes > 0)
        };
        // Nobody may write any more: the episode ends all the same.
        for owner in self.0.owners.borrow().values() {
            if owner.0.no_space.get().is_some_and(|(_, group)| room(group)) {
                owner.note_room();
            }
        }
        *self.0.inventory.borrow_mut() = hosts;
    }

    /// See [`set_inventory`](Self::set_inventory).
    pub fn inventory(&self) -> Vec<HostView> {
        self.0.inventory.borrow().clone()
    }

    /// Seconds that a member may be away before it is rebuilt elsewhere.
    pub fn set_repair_delay(&self, seconds: u32) {
        self.0.repair_delay_s.set(seconds);
    }

    /// Bytes per second that the resync of an object reaches however busy guests are, as far as
    /// disks and network can (0: none). What [`set_resync`](Self::set_resync) says goes first.
    pub fn set_resync_floor(&self, bytes_per_second: u64) {
        self.0.resync_floor.set(bytes_per_second);
    }

    /// Pauses or resumes resync on this host, and limits it to bytes per second (0: no limit).
    pub fn set_resync(&self, paused: bool, bytes_per_second: u64) {
        self.0.resync_paused.set(paused);
        self.0.resync_limit.set(bytes_per_second);
    }

    /// What [`set_resync`](Self::set_resync) has set.
    pub fn resync_settings(&self) -> (bool, u64) {
        (self.0.resync_paused.get(), self.0.resync_limit.get())
    }

    /// Takes the events that have come up, with the time in milliseconds since 1970.
    pub fn take_events(&self) -> Vec<(u64, Event)> {
        self.0.events.borrow_mut().drain(..).collect()
    }

    /// Objects that this host owns.
    pub fn owned(&self) -> Vec<OwnedObject> {
        let owners = self.0.owners.borrow();
        owners
            .values()
            .filter(|o| !o.is_stopped())
            .map(|o| OwnedObject {
                record: o.0.record.borrow().clone(),
                resync: {
                    let record = o.0.record.borrow();
                    let behind = |id| {
                        record.members().any(|(_, m)| m.component == id && !m.state.is_active())
                    };
                    o.0.resync.borrow().copies(self.0.world.now(), behind)
                },
                no_space: o.0.no_space.get(),
                no_space_answers: o.0.no_space_answers.get(),
                guest_ops: o.0.guest_ops.get(),
            })
            .collect()
    }

    /// Hands over what this host owns, and stops: in-flight I/O ends first (for at most a second),
    /// leases are given back, the record names no owner. Then the next owner need not wait.
    pub async fn release_all(&self) {
        self.0.stopping.set(true);
        let owners: Vec<_> = self.0.owners.borrow().values().cloned().collect();
        for owner in owners {
            let until = self.0.world.now() + Nanos::from_secs(1);
            while owner.legs().iter().any(|l| !l.is_idle()) && self.0.world.now() < until {
                self.0.world.sleep(RETRY_EVERY / 5).await;
            }
            let hosts: BTreeSet<HostId> = owner
                .legs()
                .iter()
                .flat_map(|l| l.members.borrow().iter().map(|m| m.host).collect::<Vec<_>>())
                .collect();
            // No read is answered after this, so the leases may go.
            owner.stop(Stop::Released);
            for host in hosts {
                let request = Request::GiveBack {
                    incarnation: self.0.incarnation,
                    serial: self.0.serial.get(),
                    objects: vec![owner.0.id],
                };
                let deadline = self.0.world.now() + CALL_DEADLINE / 6;
                let _ = self.0.peers().call(host, Lane::Control, request, deadline).await;
            }
        }
    }

    /// Whether an object that this host owns has that size, and could be shrunk now.
    ///
    /// # Errors
    /// Why not.
    pub async fn may_shrink(&self, object: ObjectId, from: u64) -> Result<(), ResizeError> {
        self.0.owner(object).ok_or(ResizeError::NotOwner)?.may_shrink(from).await
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
        self.0.owner(object).ok_or(ResizeError::NotOwner)?.shrink(from, size_bytes, lock).await
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
        self.0.owner(object).ok_or(ResizeError::NotOwner)?.grow(from, size_bytes).await
    }

    /// Whether anything but zeros is in an object that this host owns; when in doubt, or if that is
    /// not found out until `until`, it is.
    ///
    /// # Errors
    /// A sentence: this host is not its owner.
    pub async fn holds_data(&self, object: ObjectId, until: Nanos) -> Result<bool, ResizeError> {
        let owner = self.0.owner(object).ok_or(ResizeError::NotOwner)?;
        Ok(owner.holds_data(until).await)
    }

    /// A block of a component is bad: its object's owner, if it is here, repairs it.
    pub fn on_bad_block(&self, object: ObjectId, component: ComponentId, block: u32) -> bool {
        let Some(owner) = self.0.owner(object) else { return false };
        for leg in owner.legs() {
            let found = leg
                .members
                .borrow()
                .iter()
                .find(|m| m.component == component && matches!(m.role, Role::Active))
                .map(|m| m.slot);
            if let Some(slot) = found {
                owner.repair_later(&leg, slot, vec![block]);
            }
        }
        true
    }

    // ---- ownership -----------------------------------------------------------------------

    /// Whether this host owns the object and serves it.
    pub fn owns(&self, object: ObjectId) -> bool {
        self.0.owner(object).is_some()
    }

    /// Makes this host the owner if nobody else who can be reached is; for objects that need
    /// healing and have no client.
    pub async fn adopt(&self, object: ObjectId) -> Result<(), String> {
        // Who asks has just looked into the directory; where I/O went once may be a host that is
        // alive and not the owner any more.
        if !mutant!("objects.adopts_by_an_old_route") {
            self.forget_route(object);
        }
        match self.route(object).await {
            Ok(_) => Ok(()),
            Err(TakeoverError::NotNow(why)) => Err(why),
            Err(TakeoverError::Gone) => Err("there is no such object".into()),
            Err(TakeoverError::Lost) => Err("another host took it".into()),
        }
    }

    /// Where the object's I/O goes now; takes over if its owner is dead.
    pub(crate) async fn route(&self, object: ObjectId) -> Result<Route<W, S>, TakeoverError> {
        match self.0.owner(object) {
            Some(owner) => Ok(Route::Local(owner)),
            None => Box::pin(self.find_owner(object)).await,
        }
    }

    /// The same, when this host is not the owner.
    async fn find_owner(&self, object: ObjectId) -> Result<Route<W, S>, TakeoverError> {
        let taking = self.0.taking.borrow().get(&object).map(Notify::notified);
        if let Some(taking) = taking {
            taking.await;
            return match self.0.owner(object) {
                Some(owner) => Ok(Route::Local(owner)),
                None => Err(TakeoverError::NotNow("taking the volume over failed".into())),
            };
        }
        if self.0.stopping.get() {
            return Err(TakeoverError::Gone);
        }
        let known = self.0.routes.borrow().get(&object).copied();
        if let Some(owner) = known {
            let peer = self.0.peers().peer(owner.host);
            if peer.connected && peer.incarnation == Some(owner.incarnation) {
                return Ok(Route::Remote(owner.host));
            }
            self.forget_route(object);
        }
        let loaded = load(&self.0.world, object).await;
        self.note_directory(!matches!(loaded, Err(TakeoverError::NotNow(_))));
        let (record, revision) = loaded?;
        if let Some(owner) = record.owner
            && owner.host != self.0.host
        {
            let peer = self.0.peers().peer(owner.host);
            // A host that has restarted owns nothing any more (R5).
            let restarted = peer.incarnation.is_some_and(|i| i != owner.incarnation);
            if peer.connected && !restarted {
                self.0.missed.borrow_mut().remove(&object);
                self.0.routes.borrow_mut().insert(object, owner);
                return Ok(Route::Remote(owner.host));
            }
            let now = self.0.world.now();
            let since = *self.0.missed.borrow_mut().entry(object).or_insert(now);
            let rejoins = self.0.directory_back.get().is_some_and(|at| {
                now.since(at) < REJOIN_PATIENCE && !mutant!("objects.takes_over_as_it_rejoins")
            });
            if rejoins {
                sometimes!("objects.looks_around_after_it_was_cut_off");
            }
            if !restarted && (rejoins || now.since(since) < TAKEOVER_AFTER) {
                let host = self.0.host_name(owner.host);
                return Err(TakeoverError::NotNow(format!("its owner {host} cannot be reached")));
            }
        }
        self.take(object, (record, revision)).await
    }

    /// The directory answered, or did not.
    fn note_directory(&self, answered: bool) {
        let now = self.0.world.now();
        let away_since = self.0.directory_away.get();
        self.0.directory_away.set(if answered { None } else { away_since.or(Some(now)) });
        if answered && away_since.is_some_and(|since| now.since(since) > TAKEOVER_AFTER) {
            self.0.directory_back.set(Some(now));
        }
    }

    /// Asks a member whose disk group has failed, as its host has published, whether it is lost: an
    /// owner that asks it for nothing would not notice. The group may have more than one device.
    pub async fn look_at_member(&self, object: ObjectId, component: ComponentId) {
        let Some(owner) = self.0.owner(object) else { return };
        for leg in owner.legs() {
            let of_it = |m: &&Member| m.component == component && m.role.receives();
            let found = leg.members.borrow().iter().find(of_it).cloned();
            if let Some(member) = found.filter(|m| !m.mending)
                && owner.is_lost(&member).await
            {
                let failed = StoreError::Failed("its disk group has failed".into());
                owner.on_trouble(&leg, member.slot, member.session, Trouble::Store(failed));
            }
        }
    }

    /// The owner did not answer as one: the directory is asked the next time.
    pub(crate) fn forget_route(&self, object: ObjectId) {
        self.0.routes.borrow_mut().remove(&object);
    }

    /// Takes over, one attempt at a time.
    pub(crate) async fn take(
        &self,
        object: ObjectId,
        from: (ObjectRecord, atoll_world::directory::Revision),
    ) -> Result<Route<W, S>, TakeoverError> {
        if self.0.taking.borrow().contains_key(&object) || self.0.owner(object).is_some() {
            return Err(TakeoverError::NotNow("taking the volume over already".into()));
        }
        if let Some((_, until, why)) = self.0.pauses.borrow().get(&object)
            && self.0.world.now() < *until
        {
            return Err(TakeoverError::NotNow(why.clone()));
        }
        let done = Notify::default();
        self.0.taking.borrow_mut().insert(object, done.clone());
        // Spawned: a client that gives up does not leave a takeover half done.
        let (tell, told) = atoll_world::sync::oneshot();
        let this = self.clone();
        self.0.world.spawn(async move {
            let result = take_over(&this.0, from).await;
            let result = result.map(|owner| {
                this.serve(owner.clone());
                Route::Local(owner)
            });
            this.pause_after(object, result.as_ref().err());
            this.0.taking.borrow_mut().remove(&object);
            this.0.missed.borrow_mut().remove(&object);
            done.notify_all();
            tell.send(result);
        });
        match told.await {
            Ok(result) => result,
            Err(_) => Err(TakeoverError::NotNow("this host is stopping".into())),
        }
    }

    /// Each attempt costs an epoch and a change of the record: those that fail are spaced out, the
    /// further apart the more there were, with a little chance between hosts that compete.
    fn pause_after(&self, object: ObjectId, error: Option<&TakeoverError>) {
        let mut pauses = self.0.pauses.borrow_mut();
        let Some(TakeoverError::NotNow(why)) = error else {
            pauses.remove(&object);
            return;
        };
        let last = pauses.get(&object).map_or(Nanos::ZERO, |&(last, ..)| last);
        let pause = (last * 2).clamp(TAKEOVER_PAUSE_FIRST, TAKEOVER_PAUSE_LAST);
        let chance = Nanos(self.0.world.random() % (pause.0 / 4));
        let until = self.0.world.now() + pause + chance;
        pauses.insert(object, (pause, until, why.clone()));
    }

    fn serve(&self, owner: Owner<W, S>) {
        sometimes!("objects.serving");
        let old = self.0.owners.borrow_mut().insert(owner.0.id, owner.clone());
        if let Some(old) = old {
            old.stop(Stop::Superseded);
        }
        self.0.world.spawn(owner.clone().watch());
        self.0.world.spawn(owner.heal());
        self.0.renew_now.notify_all();
    }

    /// The owner that the directory names does not serve: forget how we got there, and take over
    /// ourselves.
    pub(crate) async fn take_from(&self, object: ObjectId, host: HostId) -> Option<TakeoverError> {
        let loaded = match load(&self.0.world, object).await {
            Ok(loaded) => loaded,
            Err(error) => return Some(error),
        };
        if loaded.0.owner.is_some_and(|o| o.host == host) {
            return self.take(object, loaded).await.err();
        }
        None
    }

    /// Whether this host is taking an object over at this moment.
    pub fn is_taking_over(&self) -> bool {
        !self.0.taking.borrow().is_empty()
    }

    // ---- leases --------------------------------------------------------------------------

    /// Renews leases with every host that holds members of objects owned here (R9).
    async fn renew_leases(self) {
        loop {
            let now = self.0.renew_now.notified();
            let mut per_host: BTreeMap<HostId, Vec<(ObjectId, Epoch)>> = BTreeMap::new();
            for owner in self.0.owners.borrow().values().filter(|o| !o.is_stopped()) {
                let mut hosts = BTreeSet::new();
                for leg in owner.legs() {
                    let members = leg.members.borrow();
                    hosts.extend(members.iter().filter(|m| m.role.receives()).map(|m| m.host));
                }
                for host in hosts {
                    per_host.entry(host).or_default().push((owner.0.id, owner.0.epoch));
                }
            }
            for (host, objects) in per_host {
                self.0.world.spawn(self.clone().renew_with(host, objects));
            }
            let tick = std::pin::pin!(self.0.world.sleep(RENEW_EVERY));
            select(now, tick).await;
        }
    }

    async fn renew_with(self, host: HostId, objects: Vec<(ObjectId, Epoch)>) {
        let serial = self.0.serial.get() + 1;
        self.0.serial.set(serial);
        let incarnation = self.0.incarnation;
        // Counted from before it is sent (R9).
        let until = self.0.world.now() + LEASE;
        let request = Request::Renew { incarnation, serial, objects: objects.clone() };
        let reply = self.0.peers().call(host, Lane::Control, request, until).await;
        let Ok(Reply::Granted { serial: answered, excluded }) = reply else { return };
        if answered != serial {
            return;
        }
        let from_here = mutant!("objects.lease_from_the_answer");
        let until = if from_here { self.0.world.now() + LEASE } else { until };
        for (object, epoch) in objects {
            let Some(owner) = self.0.owner(object).filter(|o| o.0.epoch == epoch) else { continue };
            if excluded.contains(&object) && !mutant!("objects.refused_lease_counts") {
                sometimes!("objects.lease_refused");
                let owner = owner.clone();
                self.0.world.spawn(async move { owner.verify().await });
                continue;
            }
            for leg in owner.legs() {
                for m in leg.members.borrow_mut().iter_mut().filter(|m| m.host == host) {
                    m.lease_until = m.lease_until.max(until);
                }
            }
            owner.0.lease_notify.notify_all();
        }
    }

    // ---- clients of other hosts ----------------------------------------------------------

    /// One piece of I/O of a client on another host.
    async fn serve_client(&self, request: ClientRequest) -> Reply {
        let ClientRequest { object, ticket, retry, at, admission, io } = request;
        let taking = self.0.taking.borrow().get(&object).map(Notify::notified);
        if let Some(taking) = taking {
            let until = self.0.world.now() + CALL_DEADLINE * 2;
            let _ = self.0.world.timeout_at(until, taking).await;
        }
        let Some(owner) = self.0.owner(object) else { return Reply::NotOwner };
        let admission =
            if mutant!("objects.any_admission") { owner.admission() } else { admission };
        if io.is_change() && admission != owner.admission() {
            sometimes!("objects.change_under_an_older_admission");
            return Reply::Admitted(owner.admission());
        }
        let result = match io {
            ClientIo::Admit => return Reply::Admitted(owner.admit()),
            ClientIo::Read { len } => match owner.read(at, u64::from(len)).await {
                Ok(data) => {
                    let crcs = crate::message::client_crcs(at, &data);
                    return Reply::Data { crcs, data };
                }
                Err(fail) => Err(fail),
            },
            ClientIo::Extents { len } => match owner.extents(at, len).await {
                Ok(extents) => return Reply::Extents(extents),
                Err(fail) => Err(fail),
            },
            ClientIo::Write { crcs, data } => {
                let work = owner.write(at, crcs, data, ticket);
                let work = owner.under(admission, work);
                owner.write_once(ticket, retry, at, work).await
            }
            ClientIo::Zero { len } => {
                let work = owner.clear(OpKind::Zero, at, u64::from(len), ticket);
                let work = owner.under(admission, work);
                owner.write_once(ticket, retry, at, work).await
            }
            ClientIo::Discard { len } => {
                let work = owner.clear(OpKind::Discard, at, u64::from(len), ticket);
                let work = owner.under(admission, work);
                owner.write_once(ticket, retry, at, work).await
            }
        };
        match result {
            Ok(()) => Reply::Done,
            Err(Fail::Stopped) => Reply::OwnerStopped,
            Err(Fail::Volume(error)) => Reply::VolumeFailed(error),
        }
    }

    /// Breaks the references that hold this layer together, so that its memory goes when its tasks
    /// have gone: for a simulated crash.
    pub fn dissolve(&self) {
        self.0.owners.borrow_mut().clear();
        *self.0.admin.borrow_mut() = None;
    }
}

const _: () = assert!(WATCH_EVERY.0 < RENEW_EVERY.0);
