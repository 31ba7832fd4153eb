//! A simulated cluster of the real node: its storage, its volumes, its clients, its end.
//!
//! Invariants that are checked of every run: no wrong byte is returned; the history of every volume
//! is that of one disk; once everything has healed all clients' I/O ends, and all objects become
//! healthy, within [`SETTLE_MAX`]; then every byte reads the same from every host and from every
//! active copy; no epoch of an object ever had two owners.

use crate::activity::{Activities, Activity, LOOK_EVERY};
use crate::admin::Admin;
use crate::checker::Op;
use crate::disk::SimDisk;
use crate::executor::Executor;
use crate::fault::{FaultKind, Plan};
use crate::machines::Machines;
use crate::pattern::{self, SECTOR};
use crate::releases::Releases;
use crate::rng::Rng;
use crate::workload::{Book, Instead, Mix};
use crate::world::SimWorld;
use atoll_format::id::{
    ClusterId, ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, Seq,
};
use atoll_format::level::Levels;
use atoll_format::op::BlockRange;
use atoll_format::record::{
    self, ClusterRecord, GroupRecord, LegRecord, MemberRecord, MemberState, ObjectRecord,
    ObjectState, OwnerRecord, Policy, RECORD_VERSION, VolumeRecord, key, legs_needed,
};
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, CHUNK};
use atoll_node::{EventMark, Node, NodeConfig, NodeEvent, Severity};
use atoll_object::message::{Reply, Request};
use atoll_world::components::Components;
use atoll_world::directory::{KeyChange, Txn};
use atoll_world::volume::{VolumeError, Volumes};
use atoll_world::{Nanos, World};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::rc::Rc;

/// What keeps a host's components.
pub trait Storage: Clone + 'static {
    /// A disk group's store.
    type Store: Components;
    /// Opens (at the first start: makes) a disk group of a host, which has that number there.
    fn open(
        &self,
        host: u16,
        group: u16,
        disks: Vec<SimDisk>,
        world: SimWorld,
    ) -> impl Future<Output = Result<(Self::Store, GroupRecord), String>>;
    /// Hosts whose disks an administrator has had to replace, because nothing could be made of
    /// them any more.
    fn replaced(&self) -> Vec<u16>;
    /// Why a store is out of use, if it is.
    fn failed(&self, store: &Self::Store) -> Option<String>;
    /// Compares everything that a running store counts with what it counts.
    fn audit(&self, store: &Self::Store) -> Result<(), String>;
    /// Walks the disks of a group of a host that is down; returns how many blocks are bad.
    fn check(
        &self,
        disks: Vec<SimDisk>,
        world: SimWorld,
    ) -> impl Future<Output = Result<u64, String>>;
}

/// After healing, the time within which all I/O ends and all objects become healthy: the longest
/// hold of a client, a takeover, and a resync of everything.
pub const SETTLE_MAX: Nanos = Nanos::from_secs(180);
/// The longest that a client waits for an answer, whatever happens to others: 30 s for which it is
/// held, 4 s of the last attempt, and the drift of its clock.
const ANSWERED_WITHIN: Nanos = Nanos::from_secs(36);
/// The same where nothing goes wrong, on the slowest machines and with the smallest limits: for
/// 2.75 s after a host's start the leases of its earlier life may be running.
const ANSWERED_SOON: Nanos = Nanos::from_secs(4);
/// Time within which an owner that lives on tells what it did to a record: its change may be on the
/// way for twice 5 s, and it looks for events now and then.
const TOLD_WITHIN: Nanos = Nanos::from_secs(15);
/// Time within which nothing is left of deleted volumes: what no record names is kept for ten
/// minutes.
const EMPTY_MAX: Nanos = Nanos::from_secs(1200);
/// Time within which a damaged block is made good once it is found.
const MEND_MAX: Nanos = Nanos::from_secs(90);
/// Time after which what a host lost by a restart shows in the record.
const NOTICED_AFTER: Nanos = Nanos::from_secs(5);
/// For how long after it a change of members counts as going on.
const MEMBERSHIP_LASTS: Nanos = Nanos::from_ms(20);
/// Time in which things go wrong, at most.
const TROUBLE_MAX: Nanos = Nanos::from_secs(60);
/// How often a disk that is in use is looked at again.
const IN_USE_RETRY: Nanos = Nanos::from_ms(100);
/// Id of host 0.
const HOST_ID: u64 = 0x1000;

/// How many shards hosts have, and which of them have disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shards {
    /// Up to so many, by chance in each of a host's lives. Its disks are one group, which is on any
    /// of them.
    UpTo(u8),
    /// So many, and as many disks. Each shard has one of them, a group of its own.
    DiskEach(u8),
}

impl Shards {
    /// The most that a host has.
    pub fn most(self) -> u8 {
        let (Self::UpTo(most) | Self::DiskEach(most)) = self;
        most
    }

    /// Disks by the group that they are.
    fn groups(self, disks: Vec<SimDisk>) -> Vec<Vec<SimDisk>> {
        match self {
            Self::UpTo(_) => vec![disks],
            Self::DiskEach(_) => disks.into_iter().map(|disk| vec![disk]).collect(),
        }
    }
}

/// Where a copy is: a host, and the number of a disk group there.
pub type Home = (u16, u16);

/// What a cluster is made of, and what its clients do.
#[derive(Clone, Debug)]
pub struct ClusterSpec {
    /// Volumes: size and policy of each.
    pub volumes: Vec<(u64, Policy)>,
    /// Clients: host, volume and mix of each.
    pub clients: Vec<(u16, usize, Mix)>,
    /// Where the members of each leg of each volume are; none: by chance.
    pub placement: Option<Vec<Vec<Vec<Home>>>>,
    /// Operations of each volume's clients, in all.
    pub ops: u64,
    /// Seconds before a lost member is rebuilt elsewhere.
    pub repair_delay_s: u32,
    /// An administrator makes, resizes and deletes volumes meanwhile.
    pub administered: bool,
    /// Of so many chunks of such a volume its clients use one.
    pub stride: u64,
    /// Nothing goes wrong: every operation is answered soon, and nothing is to be told.
    pub calm: bool,
    /// A host whose disks cannot be opened serves without them.
    pub diskless: bool,
    /// Hosts have two releases; see [`Features::UPGRADED`](crate::feature::Features::UPGRADED).
    pub upgraded: bool,
    /// In the end all volumes are deleted, and nothing may be left of them.
    pub emptied: bool,
    /// Those of each host.
    pub shards: Shards,
    /// What clients do comes from this number alone, whatever the cluster is and does; none: from
    /// the seed and the life of their host.
    pub history: Option<u64>,
}

impl ClusterSpec {
    /// By chance, for `hosts` hosts.
    pub fn of_seed(seed: u64, hosts: u16, ops: u64) -> Self {
        let mut rng = Rng::named(seed, "cluster");
        let policy = |rng: &mut Rng, chunks: u64| {
            let copies = match rng.below(10) {
                0..8 => 2,
                _ => 3.min(hosts),
            };
            Policy {
                failures_to_tolerate: (copies - 1) as u8,
                stripe_width: rng.within(1, 3).min(chunks) as u8,
                ..Policy::DEFAULT
            }
        };
        let count = rng.within(1, 2) as usize;
        // A stream of its own: all else stays what it was without a ceiling.
        let mut ceilings = Rng::named(seed, "ceilings");
        let mut volumes = Vec::new();
        for _ in 0..count {
            let chunks = rng.within(1, 6);
            let mut policy = policy(&mut rng, chunks);
            if ceilings.below(8) == 0 {
                policy.iops_limit = ceilings.within(100, 1_000) as u32;
            }
            volumes.push((chunks * CHUNK, policy));
        }
        let mut clients = Vec::new();
        for volume in 0..count {
            let mix = Mix::of(&mut rng);
            for _ in 0..rng.within(2, 5) {
                clients.push((rng.below(u64::from(hosts)) as u16, volume, mix));
            }
        }
        let repair_delay_s = *rng.pick(&[5, 60, 3600]);
        Self {
            volumes,
            clients,
            placement: None,
            ops,
            repair_delay_s,
            administered: false,
            stride: 1,
            calm: false,
            diskless: false,
            upgraded: false,
            emptied: false,
            shards: Shards::UpTo(1),
            history: None,
        }
    }

    /// Everybody is at the same few blocks of each volume; see [`Features::CROWD`].
    ///
    /// [`Features::CROWD`]: crate::feature::Features::CROWD
    pub fn crowd(&mut self) {
        for (_, _, mix) in &mut self.clients {
            mix.crowd();
        }
    }

    /// As many clients again, and no pauses: what is full is full all the time.
    pub fn hurry(&mut self) {
        self.clients.extend(self.clients.clone());
        let short = (Nanos::from_us(5), Nanos::from_us(50));
        self.clients.iter_mut().for_each(|(_, _, mix)| mix.pause = short);
    }

    /// A client on each host that only reads the first volume. Their operations come on top.
    pub fn add_readers(&mut self, hosts: u16) {
        let like = self.clients[0].2;
        self.clients.extend((0..hosts).map(|host| (host, 0, Mix::reader(like))));
        self.ops *= 2;
    }

    /// A client of the first volume that reads stretches of it in order. Its operations come on
    /// top.
    pub fn add_in_order(&mut self, hosts: u16) {
        let (host, volume, mix) = self.clients[0];
        self.clients.push((host % hosts, volume, Mix::instead(mix, Instead::InOrder)));
    }

    /// A client of each volume that asks which parts of it are zeros. On another host than its
    /// first one: an owner answers others too.
    pub fn add_lookers(&mut self, hosts: u16) {
        for volume in 0..self.volumes.len() {
            let like = self.clients.iter().find(|(_, of, _)| *of == volume);
            let &(host, _, mix) = like.expect("each has clients");
            self.clients.push(((host + 1) % hosts, volume, Mix::instead(mix, Instead::Looks)));
        }
    }

    /// The last volume has one copy.
    pub fn make_single(&mut self) {
        let (_, policy) = self.volumes.last_mut().expect("there is one");
        policy.failures_to_tolerate = 0;
    }

    /// Volumes end within a chunk, at any block.
    pub fn make_sizes_odd(&mut self, rng: &mut Rng) {
        for (size, _) in &mut self.volumes {
            *size -= rng.below(CHUNK / BLOCK) * BLOCK;
        }
    }
}

/// A host's node while the host is up.
type Running<T> = Option<Node<SimWorld, <T as Storage>::Store>>;
/// What runs on each shard of one host.
type Nodes<T> = Vec<Node<SimWorld, <T as Storage>::Store>>;

struct Inner<T: Storage> {
    machines: Machines,
    spec: ClusterSpec,
    storage: T,
    /// Hosts that said that they stop.
    stopped: RefCell<BTreeSet<u16>>,
    /// Shard 0 of each host, and its other shards.
    nodes: RefCell<Vec<Running<T>>>,
    others: RefCell<Vec<Nodes<T>>>,
    /// The disks of each host as its life has opened them.
    opened: RefCell<Vec<Vec<SimDisk>>>,
    books: Vec<Book>,
    clients_on: Cell<bool>,
    /// What this seed does to the cluster, from when it begins; a scenario says so itself.
    plan: OnceCell<Plan>,
    violations: RefCell<Vec<String>>,
    owners: RefCell<BTreeMap<(ObjectId, Epoch), OwnerRecord>>,
    admin: Admin,
    releases: Releases,
    /// When the record of an object changed last.
    changed_at: Cell<Nanos>,
    /// When the harness restarted a host last.
    restarted_at: Cell<Option<Nanos>>,
    /// Whether a copy is brought up to date, and whether one is made anew.
    copies: Cell<(bool, bool)>,
    /// Events about objects: when they were seen, whose, of what, which.
    told: RefCell<Vec<(Nanos, u16, ObjectId, String)>>,
    /// How far the events of each host were read.
    seen: RefCell<Vec<EventMark>>,
}

/// A cluster; clones are the same.
pub struct Cluster<T: Storage>(Rc<Inner<T>>);

impl<T: Storage> Clone for Cluster<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// How a host is known to the others; each is a fault domain of its own.
pub fn node_config(host: u16) -> NodeConfig {
    let name = format!("h{host}");
    NodeConfig {
        cluster: CLUSTER,
        host: host_id(host),
        fault_domain: name.clone(),
        peers: vec![name.clone()],
        name,
        api: String::new(),
        release: "sim".into(),
        levels: Levels::KNOWN,
    }
}

/// The id of a host.
pub fn host_id(host: u16) -> HostId {
    HostId(HOST_ID + u64::from(host))
}

/// The id that a disk group of a host has at first.
pub fn group_id((host, group): Home) -> GroupId {
    GroupId(0x2000 + u64::from(host) + (u64::from(group) << 16))
}

/// The cluster that all simulated hosts belong to.
pub const CLUSTER: ClusterId = ClusterId(0x000a_7011);

/// The first groups of any hosts, in any order.
fn some_hosts(rng: &mut Rng, hosts: u16, count: usize) -> Vec<Home> {
    let mut all: Vec<Home> = (0..hosts).map(|host| (host, 0)).collect();
    (0..count).map(|_| all.swap_remove(rng.below(all.len() as u64) as usize)).collect()
}

/// Whether media give all that they took: a block that was not given twice counts as bad.
fn gives_all(plan: &Plan) -> bool {
    !plan.on.has(FaultKind::ReadError) && !plan.beyond
}

pub(crate) fn volume_name(volume: usize) -> String {
    format!("v{volume}")
}

impl<T: Storage> Cluster<T> {
    /// Machines with programs, switched off.
    pub fn new(machines: Machines, spec: ClusterSpec, storage: T) -> Self {
        let book = |(size, _): &(u64, Policy)| Book::new(machines.executor(), *size, spec.ops);
        let books = spec.volumes.iter().map(book).collect();
        let nodes: Vec<_> = (0..machines.hosts()).map(|_| None).collect();
        let cluster = Self(Rc::new(Inner {
            machines: machines.clone(),
            spec,
            storage,
            opened: RefCell::new(vec![Vec::new(); nodes.len()]),
            stopped: RefCell::default(),
            others: RefCell::new(vec![Vec::new(); nodes.len()]),
            nodes: RefCell::new(nodes),
            books,
            clients_on: Cell::new(false),
            plan: OnceCell::new(),
            violations: RefCell::default(),
            owners: RefCell::default(),
            admin: Admin::default(),
            releases: Releases::default(),
            changed_at: Cell::new(Nanos::ZERO),
            restarted_at: Cell::new(None),
            told: RefCell::default(),
            seen: RefCell::new(vec![EventMark::default(); usize::from(machines.hosts())]),
            copies: Cell::default(),
        }));
        let this = cluster.clone();
        machines.set_boot(move |host, disks, world| {
            world.clone().spawn(this.clone().run_host(host, disks, world));
        });
        let this = cluster.clone();
        machines.set_farewell(move |host| {
            let this = this.clone();
            Box::pin(async move {
                let Some(node) = this.node(host) else { return };
                this.0.stopped.borrow_mut().insert(host);
                let others = this.0.others.borrow()[usize::from(host)].clone();
                for other in others {
                    other.stop().await;
                }
                node.stop().await;
            })
        });
        let this = cluster.clone();
        machines.set_death(move |host| {
            let node = this.0.nodes.borrow_mut()[usize::from(host)].take();
            let others = std::mem::take(&mut this.0.others.borrow_mut()[usize::from(host)]);
            for node in node.into_iter().chain(others) {
                node.dissolve();
            }
        });
        cluster
    }

    fn executor(&self) -> &Executor {
        self.0.machines.executor()
    }

    pub(crate) fn machines(&self) -> &Machines {
        &self.0.machines
    }

    pub(crate) fn spec(&self) -> &ClusterSpec {
        &self.0.spec
    }

    pub(crate) fn admin(&self) -> &Admin {
        &self.0.admin
    }

    pub(crate) fn releases(&self) -> &Releases {
        &self.0.releases
    }

    pub(crate) fn say(&self, host: Option<u16>, text: String) {
        self.executor().trace().fact(self.executor().now(), host, "cluster", text);
    }

    pub(crate) fn violated(&self, text: String) {
        self.say(None, format!("VIOLATION: {text}"));
        self.0.violations.borrow_mut().push(text);
    }

    /// What was found wrong.
    pub fn violations(&self) -> Vec<String> {
        self.0.violations.borrow().clone()
    }

    /// The clients' books, one a volume.
    pub fn books(&self) -> &[Book] {
        &self.0.books
    }

    /// The program of a host.
    async fn run_host(self, host: u16, disks: Vec<SimDisk>, first: SimWorld) {
        let shards = match self.0.spec.shards {
            Shards::UpTo(1) => 1,
            Shards::UpTo(most) => first.random() % u64::from(most) + 1,
            Shards::DiskEach(shards) => u64::from(shards),
        };
        let levels = self.release(host, &first).await;
        let mut worlds = vec![first.clone()];
        while (worlds.len() as u64) < shards {
            worlds.push(self.0.machines.next_shard(&first));
        }
        // Which shard has the first disk group: another one in each life.
        let offset = match self.0.spec.shards {
            Shards::UpTo(_) if shards > 1 => (first.random() % shards) as usize,
            _ => 0,
        };
        // By shard that has disks.
        let mut groups = BTreeMap::new();
        self.0.opened.borrow_mut()[usize::from(host)].clear();
        for (number, disks) in self.0.spec.shards.groups(disks).into_iter().enumerate() {
            let (shard, number) = (offset + number, number as u16);
            groups.insert(shard, self.open_group(host, number, disks, &worlds[shard]).await);
        }
        let kept = self.0.machines.events(host).open(host_id(host));
        let lacks_disks: BTreeMap<_, _> = groups.iter().map(|(s, g)| (*s, g.is_none())).collect();
        let mut of_shard = |shard| groups.remove(&shard).flatten().into_iter().collect();
        let life = self.0.machines.begin_life(host, Incarnation(first.random()));
        let (config, own) = (NodeConfig { levels, ..node_config(host) }, of_shard(0));
        let (node, seed) = Node::start_first(first.clone(), config, life, shards as u8, own, kept);
        let others = worlds.iter().enumerate().skip(1).map(|(shard, world)| {
            Node::start_shard(world.clone(), &seed, shard as u8, of_shard(shard))
        });
        let others: Vec<_> = others.collect();
        let all: Vec<_> = std::iter::once(&node).chain(&others).cloned().collect();
        for (shard, lacks_disks) in lacks_disks {
            all[shard].objects().members().set_lacks_disks(lacks_disks);
        }
        node.objects().set_repair_delay(self.0.spec.repair_delay_s);
        if self.0.stopped.borrow().contains(&host) {
            node.arrive().await;
            self.0.stopped.borrow_mut().remove(&host);
        }
        self.0.others.borrow_mut()[usize::from(host)] = others;
        self.0.nodes.borrow_mut()[usize::from(host)] = Some(node.clone());
        let world = first;
        world.spawn(self.clone().tell_events(host, node.clone(), world.clone()));
        if self.0.spec.upgraded {
            world.spawn(self.clone().watch_release(host, node.clone()));
        }
        while !self.0.clients_on.get() {
            world.sleep(Nanos::from_ms(10)).await;
        }
        if shards > 1 {
            world.spawn(self.clone().move_owners(all.clone(), world.clone()));
        }
        for (client, (on, volume, mix)) in self.0.spec.clients.iter().copied().enumerate() {
            if on == host {
                let number = self.0.spec.history.unwrap_or_else(|| world.random());
                let rng = Rng::named(number, &format!("client {client}"));
                // On any shard, as a connection may be served by any: every other one where its
                // host would have it.
                let at = if shards == 1 { 0 } else { (world.random() % (2 * shards)) as usize };
                let at = if at < all.len() { Some(at) } else { None };
                let client = (volume, mix, rng);
                world.spawn(self.clone().run_client(all.clone(), worlds.clone(), at, client));
            }
        }
    }

    /// Moves owners from shard to shard of a host, as that does when one is full, at any moment
    /// until everything heals: each move writes to the logs of members, which move their blocks
    /// home when nobody writes.
    async fn move_owners(self, shards: Vec<Node<SimWorld, T::Store>>, world: SimWorld) {
        while !self.0.machines.has_healed() {
            world.sleep(Nanos::from_ms(200 + world.random() % 4_000)).await;
            let owned = shards.iter().enumerate().flat_map(|(shard, node)| {
                let owned = node.objects().owned().into_iter();
                owned.map(move |object| (object.record.id, shard))
            });
            let owned: Vec<_> = owned.collect();
            if owned.is_empty() {
                continue;
            }
            let (object, from) = owned[(world.random() % owned.len() as u64) as usize];
            let step = 1 + world.random() % (shards.len() as u64 - 1);
            let to = (from + step as usize) % shards.len();
            shards[0].move_owner(object, from as u8, to as u8).await;
        }
    }

    /// Opens a disk group of a host, in the shard of `world`; none: the host serves without it.
    async fn open_group(
        &self,
        host: u16,
        number: u16,
        disks: Vec<SimDisk>,
        world: &SimWorld,
    ) -> Option<(T::Store, GroupRecord)> {
        let before = self.0.opened.borrow()[usize::from(host)].len();
        loop {
            let fresh: Vec<_> = disks.iter().map(SimDisk::opened).collect();
            {
                let opened = &mut self.0.opened.borrow_mut()[usize::from(host)];
                opened.truncate(before);
                opened.extend(fresh.iter().cloned());
            }
            match self.0.storage.open(host, number, fresh, world.clone()).await {
                Ok(group) => return Some(group),
                Err(why) => {
                    self.say(Some(host), format!("cannot open its disk group: {why}"));
                    if self.0.spec.diskless && self.0.clients_on.get() {
                        return None;
                    }
                    world.sleep(Nanos::from_secs(1)).await;
                    // What this attempt has left under way would end after the next one's writes.
                    while disks.iter().any(SimDisk::is_in_use) {
                        world.sleep(IN_USE_RETRY).await;
                    }
                }
            }
        }
    }

    async fn tell_events(self, host: u16, node: Node<SimWorld, T::Store>, world: SimWorld) {
        let own = usize::from(host);
        loop {
            // Whoever follows goes on over the restarts of a host: no event is told twice, and none
            // is missed but what went with the power.
            let seen = self.0.seen.borrow()[own];
            for event in node.local_events(seen, usize::MAX) {
                let seen = std::mem::replace(&mut self.0.seen.borrow_mut()[own], event.mark());
                let (told, next) = (event.number, seen.number + 1);
                let is_next = match seen.life == event.life {
                    true => told == next,
                    false => told <= next,
                };
                if !is_next {
                    self.violated(format!(
                        "h{host} tells event {told} of {}, not {next}",
                        event.kind
                    ));
                }
                self.judge_event(host, &event);
                if let Some(object) = event.object {
                    let told = (self.executor().now(), host, object, event.kind.clone());
                    self.0.told.borrow_mut().push(told);
                }
                let ex = self.executor();
                ex.trace().event(ex.now(), Some(host), "node", 0, || {
                    format!("{}: {}", event.kind, event.message)
                });
            }
            world.sleep(Nanos::from_ms(200)).await;
        }
    }

    /// What must not be told: damage that no fault made, and loss within what is promised.
    fn judge_event(&self, host: u16, event: &NodeEvent) {
        let message = &event.message;
        // Clients that never pause may be faster than what empties a log.
        let is_load = event.kind == "log-full";
        if self.0.spec.calm && event.severity > Severity::Info && !is_load {
            self.violated(format!("h{host} tells of {} without any fault: {message}", event.kind));
        }
        let of_damage = ["bad-block", "log-damage", "page-rewritten"].contains(&&event.kind[..]);
        if of_damage && self.is_sound(host) {
            self.violated(format!("h{host} finds damage that no fault made: {message}"));
        }
        let breaks_promise = match &event.kind[..] {
            "block-lost" | "writes-lost" => self.0.plan.get().is_some_and(gives_all),
            "no-space" | "host-twice" => self.0.plan.get().is_some(),
            _ => false,
        };
        if breaks_promise {
            self.violated(format!(
                "h{host} tells of {}, within what is promised: {message}",
                event.kind
            ));
        }
        let object = event.object.and_then(|id| self.objects().into_iter().find(|o| o.id == id));
        if let Some(object) = object
            && ![&object.name[..], ""].contains(&&event.volume[..])
        {
            self.violated(format!(
                "h{host} calls {} by the name {} in its event {}",
                object.name, event.volume, event.kind
            ));
        }
    }

    /// Whether every block of that host must be good: what its media took they kept, and gave.
    fn is_sound(&self, host: u16) -> bool {
        self.0.plan.get().is_some_and(|plan| gives_all(plan) && plan.victim != Some(host))
    }

    /// A client of a host with those shards, on one of them or where the host would have it.
    async fn run_client(
        self,
        shards: Vec<Node<SimWorld, T::Store>>,
        worlds: Vec<SimWorld>,
        at: Option<usize>,
        (volume, mix, rng): (usize, Mix, Rng),
    ) {
        let (book, name) = (self.0.books[volume].clone(), volume_name(volume));
        while !book.is_over() {
            let at = match at {
                Some(at) => at,
                None => shards[0].elsewhere(&name).await.unwrap_or(0).into(),
            };
            match shards[at].open(&name).await {
                Ok(open) if at == 0 => return book.client(open, mix, rng).await,
                Ok(open) => {
                    return worlds[at].spawn(async move { book.client(open, mix, rng).await });
                }
                Err(_) => worlds[at].sleep(Nanos::from_ms(200)).await,
            }
        }
    }

    /// Starts the hosts and makes the volumes, with nothing going wrong.
    pub(crate) async fn set_up(&self) -> Result<(), String> {
        let machines = &self.0.machines;
        let mut rng = Rng::named(machines.seed(), "placement");
        let record = ClusterRecord {
            version: RECORD_VERSION,
            id: CLUSTER,
            name: "sim".into(),
            repair_delay_s: self.0.spec.repair_delay_s,
            resync_floor_bytes: 4 << 20,
            promised_limit_percent: record::PROMISED_LIMIT_PERCENT,
            level: self.first_level(),
        };
        self.put(vec![(key::CLUSTER.to_owned(), record::encode(&record))]);
        for host in 0..machines.hosts() {
            machines.start(host);
        }
        let limit = self.executor().now() + Nanos::from_secs(30);
        while self.0.nodes.borrow().iter().any(Option::is_none) {
            if self.executor().now() > limit {
                return Err("hosts do not start".into());
            }
            self.wait(Nanos::from_ms(10)).await;
        }
        for (v, (size_bytes, policy)) in self.0.spec.volumes.iter().enumerate() {
            let id = ObjectId(rng.next());
            let mut legs = Vec::new();
            for leg in 0..legs_needed(policy, *size_bytes) {
                let homes = match &self.0.spec.placement {
                    Some(placement) => placement[v][leg].clone(),
                    None => some_hosts(&mut rng, machines.hosts(), policy.members()),
                };
                let mut members = Vec::new();
                for home in homes {
                    members.push(MemberRecord {
                        component: ComponentId(rng.next()),
                        host: host_id(home.0),
                        group: group_id(home),
                        state: MemberState::Active,
                    });
                }
                legs.push(LegRecord { members });
            }
            let object = ObjectRecord {
                version: RECORD_VERSION,
                id,
                name: volume_name(v),
                state: ObjectState::Ready,
                size_bytes: *size_bytes,
                policy: policy.clone(),
                epoch: Epoch(1),
                owner: None,
                seq_base: Seq(0),
                legs,
                attached: None,
                served: None,
                nonce: 0,
            };
            for (leg, member) in object.members() {
                let host = (member.host.0 - HOST_ID) as u16;
                let spec = atoll_world::components::ComponentSpec {
                    object: id,
                    leg: leg as u16,
                    blocks: object.leg_chunks(leg) * BLOCKS_PER_CHUNK,
                    epoch: Epoch(1),
                };
                let shards = self.shards(host);
                let has_group = |node: &&Node<SimWorld, T::Store>| {
                    node.objects().members().stores().iter().any(|s| s.group() == member.group)
                };
                let node = shards.iter().find(has_group).ok_or("a host stopped by itself")?;
                let create =
                    Request::Create { group: member.group, component: member.component, spec };
                match node.objects().members().handle(member.host, create).await {
                    Reply::Done => {}
                    other => return Err(format!("h{host} makes no component: {other:?}")),
                }
            }
            let volume = VolumeRecord {
                version: RECORD_VERSION,
                object: id,
                policy: "default".into(),
                created_ms: 0,
            };
            self.put(vec![
                (key::object(id), record::encode(&object)),
                (key::volume(&volume_name(v)), record::encode(&volume)),
            ]);
        }
        Ok(())
    }

    fn put(&self, pairs: Vec<(String, Vec<u8>)>) {
        let changes = pairs.into_iter().map(|(key, value)| KeyChange::Put(key, value)).collect();
        let txn = Txn { compares: vec![], changes };
        self.0.machines.directory().apply(&txn).expect("small values");
    }

    pub(crate) fn node(&self, host: u16) -> Option<Node<SimWorld, T::Store>> {
        self.0.nodes.borrow()[usize::from(host)].clone()
    }

    /// All shards of a host, shard 0 first; none if it is down.
    pub(crate) fn shards(&self, host: u16) -> Nodes<T> {
        let others = self.0.others.borrow()[usize::from(host)].clone();
        self.node(host).into_iter().chain(others).collect()
    }

    /// The stores of a host, on whichever shard they are.
    pub(crate) fn stores(&self, host: u16) -> Vec<T::Store> {
        let shards = self.shards(host);
        shards.iter().flat_map(|node| node.objects().members().stores()).collect()
    }

    pub(crate) async fn wait(&self, span: Nanos) {
        let ex = self.executor();
        ex.sleep_until(ex.now() + span).await;
    }

    /// All objects as the directory has them.
    pub(crate) fn objects(&self) -> Vec<ObjectRecord> {
        let listing =
            self.0.machines.directory().state().list(key::OBJECTS).expect("a short prefix");
        let decode = |e: &atoll_world::directory::Entry| {
            record::decode(&e.key, &e.value).expect("only records are written")
        };
        listing.entries.iter().map(decode).collect()
    }

    /// Looks at what the cluster is at, for the faults that have their effect meanwhile.
    async fn watch_activities(self) {
        let machines = &self.0.machines;
        let mut destaged = vec![0; usize::from(machines.hosts())];
        loop {
            let mut now = Activities::default();
            for (_, book) in self.0.admin.books() {
                book.add_to(&mut now);
            }
            self.0.books.iter().for_each(|book| book.add_to(&mut now));
            self.0.admin.add_to(&mut now);
            for (h, destaged) in destaged.iter_mut().enumerate() {
                let shards = self.shards(h as u16);
                if shards.is_empty() {
                    now.add(Activity::Recovery, machines.is_up(h as u16));
                    continue;
                }
                let takes = shards.iter().any(|node| node.objects().is_taking_over());
                now.add(Activity::Takeover, takes);
                for store in self.stores(h as u16) {
                    let bytes = store.counters().destaged_bytes;
                    now.add(Activity::Destage, bytes != *destaged);
                    *destaged = bytes;
                    now.add(Activity::Scrub, !store.scrub_progress().idle);
                }
            }
            let copies = self.0.copies.get();
            now.add(Activity::Resync, copies.0);
            now.add(Activity::Rebuild, copies.1);
            let since_change = self.executor().now().since(self.0.changed_at.get());
            now.add(Activity::Membership, since_change < MEMBERSHIP_LASTS);
            machines.faults().set_activities(now);
            self.wait(LOOK_EVERY).await;
        }
    }

    /// Watches the directory for what must never be there.
    async fn watch_owners(self) {
        let mut before = Vec::new();
        loop {
            let changed = self.0.machines.directory().changed();
            self.check_levels();
            let objects = self.objects();
            let states: Vec<_> = objects
                .iter()
                .map(|o| o.members().map(|(_, m)| (m.component, m.state)).collect::<Vec<_>>())
                .collect();
            if states != before {
                self.expect_events(&objects, &before);
                before = states;
                self.0.changed_at.set(self.executor().now());
            }
            let mut copies = (false, false);
            for (object, leg) in objects.iter().flat_map(|o| o.legs.iter().map(move |l| (o, l))) {
                let resyncs = |m: &MemberRecord| matches!(m.state, MemberState::Resyncing { .. });
                let resyncs = leg.members.iter().any(resyncs);
                let rebuilds = leg.members.len() > object.policy.members();
                copies.0 |= resyncs && !rebuilds;
                copies.1 |= resyncs && rebuilds;
            }
            self.0.copies.set(copies);
            for object in objects {
                let Some(owner) = object.owner else { continue };
                let before =
                    *self.0.owners.borrow_mut().entry((object.id, object.epoch)).or_insert(owner);
                if before != owner {
                    self.violated(format!(
                        "object {} has two owners in epoch {}: {before:?} and {owner:?}",
                        object.id, object.epoch.0
                    ));
                }
                if object.legs.iter().any(|l| !l.members.iter().any(|m| m.state.is_active())) {
                    self.violated(format!("object {} has a leg without active member", object.id));
                }
            }
            changed.await;
        }
    }

    /// What must be told: an owner has left a copy out, or has it back.
    fn expect_events(&self, objects: &[ObjectRecord], before: &[Vec<(ComponentId, MemberState)>]) {
        let was = |id| before.iter().flatten().find(|(c, _)| *c == id).map(|(_, state)| *state);
        for object in objects.iter().filter(|o| o.state == ObjectState::Ready) {
            let Some(owner) = object.owner else { continue };
            let host = (owner.host.0 - HOST_ID) as u16;
            // What an ended life had asked the directory for may come late.
            let node = self.0.nodes.borrow()[usize::from(host)].clone();
            if node.is_none_or(|node| node.incarnation() != owner.incarnation) {
                continue;
            }
            for (_, member) in object.members() {
                let kind = match (was(member.component), member.state) {
                    (Some(MemberState::Active), MemberState::Absent { .. }) => "member-dropped",
                    (Some(MemberState::Resyncing { .. }), MemberState::Active) => "resync-done",
                    _ => continue,
                };
                let expected = self.clone().expect_event(host, object.id, object.epoch, kind);
                self.executor().spawn(crate::executor::LifeId::HARNESS, expected);
            }
        }
    }

    /// Waits for an event of a host which has just changed the record, unless its life or its
    /// ownership ends first, or it may be slow.
    async fn expect_event(self, host: u16, object: ObjectId, epoch: Epoch, kind: &'static str) {
        let (from, life) = (self.executor().now(), self.0.machines.life(host));
        self.wait(TOLD_WITHIN).await;
        let now = self.executor().now();
        let same = self.objects().iter().any(|o| o.id == object && o.epoch == epoch);
        let stalled = self.0.machines.stalled(from, now) > Nanos::ZERO;
        if life.is_none() || self.0.machines.life(host) != life || !same || stalled {
            return;
        }
        let since = from - Nanos::from_secs(1);
        let told = self.0.told.borrow().iter().rev().any(|(at, by, of, what)| {
            *at >= since && (*by, *of, &what[..]) == (host, object, kind)
        });
        if !told {
            let (at, epoch) = (from.as_ms(), epoch.0);
            self.violated(format!(
                "h{host} does not tell of {kind} of {object} in epoch {epoch} at {at} ms"
            ));
        }
    }

    pub(crate) fn unhealthy(&self) -> Option<String> {
        let now = self.executor().now();
        if self.0.restarted_at.get().is_some_and(|at| now.since(at) < NOTICED_AFTER) {
            return Some("owners have not looked at what a restarted host has left".into());
        }
        if let Some(host) = self.0.nodes.borrow().iter().position(Option::is_none) {
            return Some(format!("h{host} does not come up"));
        }
        for object in self.objects() {
            match object.state {
                ObjectState::Ready => {}
                ObjectState::Creating => continue,
                ObjectState::Deleting => return Some(format!("{} is not deleted", object.name)),
            }
            for (i, leg) in object.legs.iter().enumerate() {
                let active = leg.members.iter().filter(|m| m.state.is_active()).count();
                if active != object.policy.members() || active != leg.members.len() {
                    return Some(format!(
                        "object {} leg {i}: {:?}, epoch {}, owner {:?}",
                        object.name,
                        leg.members.iter().map(|m| (m.host, m.state)).collect::<Vec<_>>(),
                        object.epoch.0,
                        object.owner.map(|o| o.host),
                    ));
                }
            }
        }
        None
    }

    /// The whole run: set up, trouble, healing, judgement.
    pub async fn run(self, plan: Plan) {
        if let Err(why) = self.set_up().await {
            return self.violated(format!("set-up: {why}"));
        }
        let machines = &self.0.machines;
        let harness = crate::executor::LifeId::HARNESS;
        self.executor().spawn(harness, self.clone().watch_owners());
        self.executor().spawn(harness, self.clone().watch_activities());
        self.0.clients_on.set(true);
        let is_first = self.0.plan.set(plan.clone()).is_ok();
        assert!(is_first, "a cluster has one plan");
        machines.set_rates(&plan);
        self.executor().spawn(harness, machines.clone().befall(plan.clone()));
        self.executor().spawn(harness, machines.clone().befall_later(plan.clone()));
        machines.watch_marks(&plan);
        machines.watch_steps(&plan);
        if self.0.spec.administered {
            let rng = Rng::named(machines.seed(), "administrator");
            self.executor().spawn(harness, self.clone().administer(rng));
        }
        if self.0.spec.upgraded {
            let rng = Rng::named(machines.seed(), "upgrade");
            self.executor().spawn(harness, self.clone().raise_levels(rng));
        }
        machines.change_rates(&plan);
        let calm_at = (self.executor().now() + TROUBLE_MAX).min(plan.part.until);
        while self.executor().now() < calm_at && self.0.books.iter().any(|b| !b.is_over()) {
            self.wait(Nanos::from_ms(50)).await;
        }
        machines.heal();
        if plan.beyond {
            return self.finish_beyond().await;
        }
        // Damage that only a start meets: it must be over when the disks are walked.
        if let Some(victim) = plan.victim {
            self.restart(victim);
        }
        if self.0.spec.upgraded
            && let Err(why) = self.complete_upgrade().await
        {
            return self.violated(why);
        }
        self.finish(plan.victim).await;
        if !gives_all(&plan) {
            return;
        }
        for (v, lost) in self.0.books.iter().map(Book::losses).enumerate().filter(|b| b.1 > 0) {
            self.violated(format!("volume v{v}: {lost} operations were told that data is lost"));
        }
    }

    /// After more than the policy survives: whatever is still given is right, the rest is refused
    /// in time. [`Self::judge`] looks at what was given.
    async fn finish_beyond(&self) {
        let limit = self.executor().now() + SETTLE_MAX;
        self.0.books.iter().for_each(Book::stop);
        while self.0.books.iter().any(|b| b.running() > 0) {
            if self.executor().now() > limit {
                return self.violated("I/O is neither done nor refused".into());
            }
            self.wait(Nanos::from_ms(50)).await;
        }
        for (v, (size, _)) in self.0.spec.volumes.iter().enumerate() {
            for host in 0..self.0.machines.hosts() {
                let Some(node) = self.node(host) else { continue };
                let Ok(volume) = node.open(&volume_name(v)).await else { continue };
                let client = 1_000_000 + u32::from(host);
                // Piece by piece: a block that is lost says nothing about its neighbours.
                for first in (0..size / SECTOR as u64).step_by(8) {
                    if let Err(error) = self.0.books[v].read(&volume, client, first, 8).await {
                        self.say(Some(host), format!("v{v} sector {first}: {error}"));
                        // Held for as long as allowed; the others would be, too.
                        if matches!(error, VolumeError::TimedOut(_)) {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// After everything has healed: waits for what must end, and looks at everything.
    pub(crate) async fn finish(&self, victim: Option<u16>) {
        let machines = &self.0.machines;
        let limit = self.executor().now() + SETTLE_MAX;
        self.0.books.iter().for_each(Book::stop);
        while self.0.books.iter().any(|b| b.running() > 0) || self.0.admin.is_at_work() {
            self.restart_failed();
            if self.executor().now() > limit {
                let running: u32 = self.0.books.iter().map(Book::running).sum();
                return self.violated(format!("I/O of {running} clients does not end"));
            }
            self.wait(Nanos::from_ms(50)).await;
        }
        // What was under way when everything healed has failed by now, if it does.
        self.wait(Nanos::from_secs(1)).await;
        loop {
            self.restart_failed();
            let Some(why) = self.unhealthy() else { break };
            if self.executor().now() > limit {
                return self.violated(format!("not healthy in time: {why}"));
            }
            self.wait(Nanos::from_ms(100)).await;
        }
        self.say(None, "all objects are healthy".into());
        for v in 0..self.0.books.len() {
            if let Err(why) = self.read_back(v).await {
                self.violated(format!("volume v{v}: {why}"));
            }
        }
        if let Err(why) = self.read_back_side_volume().await {
            self.violated(why);
        }
        if let Err(why) = self.judge_figures().await {
            self.violated(why);
        }
        for host in 0..machines.hosts() {
            if self.node(host).is_none() {
                self.violated(format!("h{host} is not up in the end"));
                continue;
            }
            for store in self.stores(host) {
                if let Some(why) = self.0.storage.failed(&store) {
                    self.violated(format!(
                        "the disk group of h{host} has failed in the end: {why}"
                    ));
                }
                let bad = store.counters().checksum_errors;
                if bad > 0 && self.is_sound(host) {
                    self.violated(format!("h{host} found {bad} bad blocks that no fault made"));
                }
                if let Err(why) = self.0.storage.audit(&store) {
                    self.violated(format!("accounting of h{host}: {why}"));
                }
            }
        }
        for host in self.0.storage.replaced() {
            if victim != Some(host) {
                self.violated(format!("the disks of h{host} had to be replaced, undamaged"));
            }
        }
        if self.0.spec.emptied
            && let Err(why) = self.empty().await
        {
            self.violated(why);
        }
        self.walk_disks(victim).await;
    }

    /// Deletes all volumes; every disk group must be as empty as a new one then.
    async fn empty(&self) -> Result<(), String> {
        self.say(None, "all volumes are deleted".into());
        let node = self.node(0).ok_or("h0 is not up")?;
        let limit = self.executor().now() + EMPTY_MAX;
        loop {
            let mut why = None;
            match node.volumes().await {
                Err(error) => why = Some(error.to_string()),
                Ok(volumes) => {
                    for volume in volumes {
                        let deleted = node.delete_volume(&volume.name, None, false, false).await;
                        why = deleted.err().map(|e| format!("{}: {e}", volume.name)).or(why);
                    }
                }
            }
            let objects = self.objects().len();
            for host in 0..self.0.machines.hosts() {
                self.node(host).ok_or_else(|| format!("h{host} is not up"))?;
                for store in self.stores(host) {
                    let (space, components) = (store.space(), store.list().len());
                    if space.used_bytes > 0 || components > 0 {
                        let used = space.used_bytes;
                        let left = format!("{components} components and {used} bytes on h{host}");
                        why = why.or(Some(left));
                    }
                }
            }
            let why = why.or((objects > 0).then(|| format!("{objects} records")));
            let Some(why) = why else { return Ok(()) };
            if self.executor().now() > limit {
                return Err(format!("after all volumes were deleted there is still: {why}"));
            }
            self.wait(Nanos::from_ms(500)).await;
        }
    }

    /// Restarts the hosts that serve without their disks, and those whose disk group has failed, or
    /// will as soon as it asks its disk, which went and came, for anything; and no other: as an
    /// administrator does who has put the disk right.
    fn restart_failed(&self) {
        for host in 0..self.0.machines.hosts() {
            if self.node(host).is_none() {
                continue;
            }
            let stores = self.stores(host);
            let gone = self.0.opened.borrow()[usize::from(host)].iter().any(SimDisk::is_lost);
            if gone
                || stores.is_empty()
                || stores.iter().any(|store| self.0.storage.failed(store).is_some())
            {
                self.restart(host);
            }
        }
    }

    pub(crate) fn restart(&self, host: u16) {
        self.0.machines.kill(host, false);
        self.0.machines.start(host);
        self.0.restarted_at.set(Some(self.executor().now()));
    }

    /// Ends all hosts and looks at what their disks hold.
    async fn walk_disks(&self, victim: Option<u16>) {
        let machines = &self.0.machines;
        for host in 0..machines.hosts() {
            machines.kill(host, false);
        }
        for host in 0..machines.hosts() {
            let world = machines.harness_world(host);
            for disks in self.0.spec.shards.groups(machines.disks(host).to_vec()) {
                match self.0.storage.check(disks, world.clone()).await {
                    Ok(bad) if bad > 0 && victim != Some(host) => {
                        self.violated(format!("{bad} bad blocks on the disks of h{host}"));
                    }
                    Ok(_) => {}
                    Err(why) => self.violated(format!("disks of h{host}: {why}")),
                }
            }
        }
    }

    /// Reads a volume through every host, and from every active copy.
    pub(crate) async fn read_back(&self, v: usize) -> Result<(), String> {
        let book = &self.0.books[v];
        let (size, _) = self.0.spec.volumes[v];
        let sectors = (size / SECTOR as u64) as u32;
        let mut tags = Vec::new();
        for host in 0..self.0.machines.hosts() {
            let node = self.node(host).ok_or_else(|| format!("h{host} is not up"))?;
            let volume = node.open(&volume_name(v)).await.map_err(|e| e.to_string())?;
            let client = 1_000_000 + u32::from(host);
            let read = book.read(&volume, client, 0, sectors).await;
            tags = read.map_err(|e| format!("read back through h{host}: {e}"))?;
        }
        // A damaged or lost copy is made good once it is found.
        let limit = self.executor().now() + MEND_MAX;
        let name = volume_name(v);
        let legs = self.objects().iter().find(|o| o.name == name).ok_or("no record")?.legs.len();
        for leg in 0..legs {
            let mut slot = 0;
            loop {
                let objects = self.objects();
                let object = objects.iter().find(|o| o.name == name).ok_or("no record")?;
                let Some(member) = object.legs[leg].members.get(slot) else { break };
                let found = match self.unhealthy() {
                    Some(why) => Err(why),
                    None => self.read_copy(object, leg, member, &tags).await?,
                };
                match found {
                    Ok(()) => slot += 1,
                    Err(_) if self.executor().now() < limit => {
                        self.restart_failed();
                        self.wait(Nanos::from_secs(3)).await;
                    }
                    Err(why) => return Err(why),
                }
            }
        }
        Ok(())
    }

    /// Compares one copy with what the volume shows. The outer error: it shows something else; the
    /// inner one: it cannot be read.
    async fn read_copy(
        &self,
        object: &ObjectRecord,
        leg: usize,
        member: &MemberRecord,
        tags: &[pattern::Tag],
    ) -> Result<Result<(), String>, String> {
        let host = (member.host.0 - HOST_ID) as u16;
        if self.node(host).is_none() {
            return Ok(Err(format!("h{host} is not up")));
        }
        let stores = self.stores(host);
        let Some(store) = stores.iter().find(|s| s.group() == member.group) else {
            return Ok(Err(format!("h{host} has lost its disk group")));
        };
        for chunk in 0..object.leg_chunks(leg) {
            let offset = object.object_offset(leg, chunk);
            if offset >= object.size_bytes {
                continue;
            }
            let blocks = ((object.size_bytes - offset).min(CHUNK) / BLOCK) as u16;
            let range = BlockRange { start: chunk * BLOCKS_PER_CHUNK, count: blocks };
            let read = match store.read(member.component, range).await {
                Ok(read) => read,
                Err(error) => {
                    // What clients never read, a scrub finds.
                    store.scrub(Some(&[member.component]), 1 << 30);
                    return Ok(Err(format!("copy on h{host}, chunk {chunk}: {error}")));
                }
            };
            let bytes = atoll_world::buf::join(&read.payload);
            for (i, sector) in bytes.chunks_exact(SECTOR).enumerate() {
                let at = offset / SECTOR as u64 + i as u64;
                let found = pattern::tag(sector, at);
                if found != Ok(tags[at as usize]) {
                    return Err(format!(
                        "copy on h{host} of sector {at} is of write {found:?}, the volume shows \
                         write {}; tag {:?}",
                        tags[at as usize],
                        read.tags[i / 8]
                    ));
                }
            }
        }
        Ok(Ok(()))
    }

    /// Judges the histories.
    pub fn judge(&self) {
        let volumes =
            self.0.books.iter().enumerate().map(|(v, book)| (volume_name(v), book.clone()));
        for (name, book) in volumes.chain(self.0.admin.books()) {
            for wrong in book.wrong() {
                self.0.violations.borrow_mut().push(format!("volume {name}: {wrong}"));
            }
            if let Err(violation) = book.history().check() {
                self.0.violations.borrow_mut().push(format!("volume {name}: {violation}"));
            }
            if let Some(late) = self.latest(&book) {
                self.0.violations.borrow_mut().push(format!("volume {name}: {late}"));
            }
        }
    }

    /// The operation that was answered latest, if that was later than promised: nobody waits behind
    /// others without bound.
    fn latest(&self, book: &Book) -> Option<String> {
        let history = book.history();
        let took = |op: &Op| {
            let (from, to) = op.span_ns();
            let (from, to) = (Nanos(from), Nanos(to?));
            Some(to.since(from).since(self.0.machines.stalled(from, to)))
        };
        let (took, op) =
            history.ops().iter().filter_map(|op| Some((took(op)?, op))).max_by_key(|(t, _)| *t)?;
        let within = if self.0.spec.calm { ANSWERED_SOON } else { ANSWERED_WITHIN };
        (took > within).then(|| {
            let (kind, ms) = (op.kind.name(), took.as_ms());
            format!("client {} waited {ms} ms for the answer to a {kind}", op.client)
        })
    }
}
