//! What the owners and takeovers of one host share: its world, its way to other hosts, what it
//! knows of them, and the settings of its administrator.
//!
//! Relies on nothing above it: which service answers at the other end of a call is a type
//! parameter, so that the owner's side does not know the side that serves.

use crate::events::{Event, EventLog};
use crate::hedge::HedgePolicy;
use crate::limits::TOLD_MAX;
use crate::message::{Reply, Request};
use crate::placement::{self, HostView, Refusal};
use atoll_format::id::{Addr, ComponentId, GroupId, HostId, Incarnation, ObjectId};
use atoll_format::record::{ObjectRecord, OwnerRecord};
use atoll_format::units::CHUNK;
use atoll_transport::{Identity, Peers, Service};
use atoll_world::{FixedMap, Nanos, World};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// A service that speaks the messages of this crate.
pub(crate) trait Protocol: Service<Request = Request, Reply = Reply> {}

impl<T: Service<Request = Request, Reply = Reply>> Protocol for T {}

/// What an administrator has set, for the owners of one host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Seconds that a member may be away before it is rebuilt elsewhere.
    pub repair_delay_s: u32,
    /// Nothing is resynced.
    pub resync_paused: bool,
    /// Bytes per second; 0: as fast as guests allow.
    pub resync_limit: u64,
    /// Bytes per second that a resync reaches however busy guests are; 0: none.
    pub resync_floor: u64,
}

/// Objects that are waited for: since when, and the state of their record then.
type Waiting = BTreeMap<ObjectId, (Nanos, u64)>;

/// A disk group that is on another shard of its host than the inventory says.
struct ToldShard {
    host: HostId,
    shard: u8,
    /// The life that the inventory spoke of then: it is older than the one that answered.
    older: Option<Incarnation>,
    at: Nanos,
}

impl ToldShard {
    /// Whether it outweighs an inventory that speaks of that life of its host.
    fn outweighs(&self, life: Option<Incarnation>, now: Nanos) -> bool {
        life == self.older && now.since(self.at) < TOLD_MAX
    }
}

/// What is shared on one host.
pub(crate) struct Ctx<W: World, P: Protocol> {
    pub world: W,
    pub host: HostId,
    /// Where this shard of it is asked.
    pub addr: Addr,
    pub incarnation: Incarnation,
    /// Lives of this host that have ended for certain.
    pub outlived: Vec<Incarnation>,
    /// When this life began.
    pub started: Nanos,
    /// The way to other hosts.
    pub peers: Peers<W, P>,
    /// Whom to read from, and when to ask another member too.
    pub hedge: HedgePolicy,
    pub events: EventLog,
    /// The hosts and their space, as known now.
    pub inventory: RefCell<Vec<HostView>>,
    /// Disk groups that are not on the first shard of their host: on which.
    shards: RefCell<FixedMap<GroupId, (HostId, u8)>>,
    /// Where shards have said that disk groups are, against what the inventory says.
    told: RefCell<BTreeMap<GroupId, ToldShard>>,
    /// Bytes that components use, of all that are known.
    pub used_bytes: RefCell<BTreeMap<ComponentId, u64>>,
    /// Seconds that a member may be away before it is rebuilt elsewhere.
    pub repair_delay_s: Cell<u32>,
    pub resync_paused: Cell<bool>,
    /// Bytes per second; 0: as fast as guests allow.
    pub resync_limit: Cell<u64>,
    /// When the limit lets the next copy go.
    resync_next: Cell<Nanos>,
    /// Bytes per second; 0: none.
    pub resync_floor: Cell<u64>,
    /// Since when all copies that answer are known to lack something, while another may come; and
    /// the record's `seq_base` then.
    lacking: RefCell<Waiting>,
    /// Objects whose record is older than their members, since when, and its nonce.
    older: RefCell<Waiting>,
}

impl<W: World, P: Protocol> Ctx<W, P> {
    /// Of a host that starts now; its requests are answered by `service` from here on.
    pub fn start(world: W, identity: Identity, outlived: Vec<Incarnation>, service: P) -> Self {
        Self {
            host: identity.host,
            addr: identity.addr(),
            incarnation: identity.incarnation,
            outlived,
            started: world.now(),
            peers: Peers::start(world.clone(), identity, service),
            hedge: HedgePolicy::default(),
            events: EventLog::default(),
            inventory: RefCell::default(),
            shards: RefCell::default(),
            told: RefCell::default(),
            used_bytes: RefCell::default(),
            repair_delay_s: Cell::new(3600),
            resync_paused: Cell::new(false),
            resync_limit: Cell::new(0),
            resync_next: Cell::new(Nanos::ZERO),
            resync_floor: Cell::new(0),
            lacking: RefCell::default(),
            older: RefCell::default(),
            world,
        }
    }
    /// This life of this host, as the owner that a record names.
    pub fn me(&self) -> OwnerRecord {
        let Addr { host, shard } = self.addr;
        OwnerRecord { host, shard, incarnation: self.incarnation }
    }
    pub fn is_me(&self, record: &ObjectRecord) -> bool {
        record.owner == Some(self.me())
    }
    pub fn event(&self, event: Event) {
        self.events.push(self.world.unix_ms(), event);
    }
    /// For people.
    pub fn host_name(&self, id: HostId) -> String {
        let inventory = self.inventory.borrow();
        inventory.iter().find(|h| h.id == id).map_or_else(|| id.to_string(), |h| h.name.clone())
    }
    /// Where a disk group is asked: the shard that runs it in the present life of its host, as far
    /// as is known.
    pub fn addr_of(&self, (host, group): (HostId, GroupId)) -> Addr {
        let shards = self.shards.borrow();
        let shard = shards.get(&group).filter(|(of, _)| *of == host).map_or(0, |&(_, shard)| shard);
        Addr { host, shard }
    }
    /// That shard runs a disk group, as another one of its host has said: until the inventory
    /// speaks of another life of that host than now, or [`TOLD_MAX`] is over. What it says now may
    /// be repeated for seconds after the host has restarted.
    pub fn is_on_shard(&self, (host, group): (HostId, GroupId), shard: u8) {
        let older = life_of(&self.inventory.borrow(), host);
        let told = ToldShard { host, shard, older, at: self.world.now() };
        self.told.borrow_mut().insert(group, told);
        self.shards.borrow_mut().insert(group, (host, shard));
    }
    /// Whether a call to that disk group has a chance.
    pub fn is_reachable(&self, at: (HostId, GroupId)) -> bool {
        let addr = self.addr_of(at);
        addr == self.addr || self.peers.peer(addr).connected
    }
    /// The shard that runs it has said that it stops: nothing comes of asking it, until its host
    /// lives again.
    pub fn has_left(&self, at: (HostId, GroupId)) -> bool {
        self.peers.peer(self.addr_of(at)).left
    }
    /// The present life of the host of a disk group, if it is known.
    pub fn life_of(&self, at: (HostId, GroupId)) -> Option<Incarnation> {
        self.peers.peer(self.addr_of(at)).incarnation
    }
    /// What is known of the hosts and their space from now on.
    pub fn set_inventory(&self, hosts: Vec<HostView>, used: BTreeMap<ComponentId, u64>) {
        let groups = hosts.iter().flat_map(|h| h.groups.iter().map(|g| (g.id, (h.id, g.shard))));
        // Most hosts have one shard: nothing is looked up then.
        let mut shards: FixedMap<GroupId, (HostId, u8)> =
            groups.filter(|&(_, (_, shard))| shard != 0).collect();
        let mut told = self.told.borrow_mut();
        told.retain(|_, t| t.outweighs(life_of(&hosts, t.host), self.world.now()));
        shards.extend(told.iter().map(|(&group, t)| (group, (t.host, t.shard))));
        *self.shards.borrow_mut() = shards;
        *self.inventory.borrow_mut() = hosts;
        *self.used_bytes.borrow_mut() = used;
    }
    /// Whether a takeover has to do with what answers, although it lacks something that it had
    /// acknowledged and an active copy that does not answer may have it: once that one counts as
    /// lost for good.
    pub fn may_settle_for_less(&self, record: &ObjectRecord) -> bool {
        // A takeover that goes well raises it, perhaps on another host: what is lacking then is
        // waited for anew.
        self.has_waited(&self.lacking, record.id, record.seq_base.0)
    }
    /// Whether members that an older record does not know of have been waited for long enough: for
    /// the repair delay, while nobody has changed that record.
    pub fn has_waited_for_members(&self, record: &ObjectRecord) -> bool {
        self.has_waited(&self.older, record.id, record.nonce)
    }
    /// Whether that object has been waited for as long as the repair delay says, from the first
    /// question on in which its record is in that state.
    fn has_waited(&self, waiting: &RefCell<Waiting>, object: ObjectId, state: u64) -> bool {
        let now = self.world.now();
        let mut waiting = waiting.borrow_mut();
        let entry = waiting.entry(object).or_insert((now, state));
        if entry.1 != state {
            *entry = (now, state);
        }
        let (since, _) = *entry;
        assert!(since <= now, "{object} is waited for since {since}: {now}");
        now.since(since) >= Nanos::from_secs(u64::from(self.repair_delay_s.get()))
    }
    /// A takeover has gone well.
    pub fn lacks_nothing(&self, object: ObjectId) {
        self.lacking.borrow_mut().remove(&object);
        self.older.borrow_mut().remove(&object);
    }
    /// Sleeps as long as the limit says for that many bytes, and for those of all other copies that
    /// this host makes: the limit is the host's.
    pub async fn resync_pace(&self, bytes: u64) {
        let limit = self.resync_limit.get();
        if let Some(span) = bytes.saturating_mul(1_000_000_000).checked_div(limit) {
            let now = self.world.now();
            let until = self.resync_next.get().max(now) + Nanos(span);
            assert!(until >= now && until >= self.resync_next.get(), "the limit is the host's");
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
    ) -> Result<(HostId, GroupId), Refusal> {
        let used = |component| self.used_bytes.borrow().get(&component).copied();
        placement::replacement(&self.inventory.borrow(), record, leg, gone, used)
    }
}

/// The life that an inventory speaks of.
fn life_of(hosts: &[HostView], host: HostId) -> Option<Incarnation> {
    hosts.iter().find(|h| h.id == host).map(|h| h.incarnation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shard_has_said_outweighs_an_older_inventory_and_not_for_ever() {
        let (one, two) = (Some(Incarnation(1)), Some(Incarnation(2)));
        let told = ToldShard { host: HostId(1), shard: 1, older: one, at: Nanos::from_secs(5) };
        let soon = Nanos::from_secs(34);
        assert!(told.outweighs(one, soon), "what was known then is told again");
        assert!(!told.outweighs(two, soon), "a later life has said where it is");
        assert!(!told.outweighs(None, soon), "the host was removed");
        assert!(!told.outweighs(one, Nanos::from_secs(35)), "it may have been a late answer");
    }
}
