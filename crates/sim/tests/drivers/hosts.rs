//! Four hosts with a store each that does what a test says, and one object.

use atoll_format::id::{
    ClusterId, ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, OpId, Seq, Session,
    Ticket,
};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpKind, OpRecord, Promise};
use atoll_format::record::{
    self, LegRecord, MemberRecord, MemberState, ObjectRecord, ObjectState, Policy, RECORD_VERSION,
    key,
};
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_object::message::{Reply, Request};
use atoll_object::placement::{GroupView, HostView};
use atoll_object::{Event, HostComponents, HostObjects, ObjectVolume};
use atoll_sim::disk::DiskProfile;
use atoll_sim::executor::{Executor, LifeId};
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::reference_store::{Kept, ReferenceStore};
use atoll_sim::rng::Rng;
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_transport::Identity;
use atoll_world::components::{
    ComponentOp, ComponentSpec, ComponentStatus, Copy, CopyBlock, GroupSpace, ReadBlocks,
    ScrubProgress, SetTickets, StoreCounters, StoreEvent,
};
use atoll_world::directory::{KeyChange, Txn};
use atoll_world::sync::{Notify, Receiver, oneshot};
use atoll_world::{Buf, Components, Nanos, StoreError, Volume, buf};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

pub const HOSTS: u16 = 4;
pub const OBJECT: ObjectId = ObjectId(7);
pub const MIB: u64 = 1 << 20;
/// Of the object, unless a test says otherwise.
pub const SIZE: u64 = 8 * MIB;
/// The longest test, in virtual time.
const TEST_MAX: Nanos = Nanos::from_secs(3_600);
/// What a test waits for comes sooner.
const WAIT_MAX: Nanos = Nanos::from_secs(120);

pub fn host_id(host: u16) -> HostId {
    HostId(100 + u64::from(host))
}

fn group_id(host: u16) -> GroupId {
    GroupId(200 + u64::from(host))
}

/// The copy on a host.
pub fn component(host: u16) -> ComponentId {
    ComponentId(300 + u64::from(host))
}

/// What a store is asked for, as far as tests tell it apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum What {
    Fence,
    Open,
    Append,
    CopyIn,
    Complete,
    Read,
    Tags,
}

/// What a store has done, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Done {
    Opened(Session, Option<Seq>),
    Appended(Session, Seq, BlockRange),
    /// Those blocks were put in.
    CopiedIn(Vec<u32>),
    Completed,
    /// The tags of that chunk were told.
    Tags(u32),
}

#[derive(Default)]
struct Script {
    done: RefCell<Vec<Done>>,
    /// How often each was asked for, whatever came of it.
    asked: RefCell<BTreeMap<What, u32>>,
    held: RefCell<BTreeSet<What>>,
    changed: Notify,
    /// Those that wait, by their turn: what is held keeps its order.
    turns: RefCell<BTreeSet<(What, u64)>>,
    next_turn: Cell<u64>,
    refused: RefCell<BTreeMap<What, (StoreError, u32)>>,
    unreadable: RefCell<BTreeSet<u32>>,
    doubtful: RefCell<BTreeSet<ComponentId>>,
}

/// A store that does what a test says.
#[derive(Clone)]
pub struct Scripted {
    inner: ReferenceStore,
    script: Rc<Script>,
}

/// One that waits; it may go away meanwhile.
struct Turn<'a>(&'a Script, (What, u64));

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turns.borrow_mut().remove(&self.1);
        self.0.changed.notify_all();
    }
}

impl Scripted {
    /// Nothing of that kind is done from now on.
    pub fn hold(&self, what: What) {
        self.script.held.borrow_mut().insert(what);
    }

    /// It goes on.
    pub fn release(&self, what: What) {
        self.script.held.borrow_mut().remove(&what);
        self.script.changed.notify_all();
    }

    /// The next so many of that kind are refused.
    pub fn refuse(&self, what: What, error: StoreError, times: u32) {
        self.script.refused.borrow_mut().insert(what, (error, times));
    }

    /// A block that cannot be read any more, though its tag is there.
    pub fn lose_block(&self, block: u32) {
        self.script.unreadable.borrow_mut().insert(block);
    }

    pub fn asked(&self, what: What) -> u32 {
        self.script.asked.borrow().get(&what).copied().unwrap_or(0)
    }

    pub fn done(&self) -> Vec<Done> {
        self.script.done.borrow().clone()
    }

    /// What was done before does not count.
    pub fn forget_done(&self) {
        self.script.done.borrow_mut().clear();
        self.script.asked.borrow_mut().clear();
    }

    /// Every block that was put in since.
    pub fn copied_in(&self) -> BTreeSet<u32> {
        let copied = |done| match done {
            Done::CopiedIn(blocks) => blocks,
            _ => Vec::new(),
        };
        self.done().into_iter().flat_map(copied).collect()
    }

    pub fn keep(&self) -> Kept {
        self.inner.keep()
    }

    /// Its disk is back as it was then, and does not say so.
    pub fn put_back(&self, kept: &Kept) {
        self.inner.put_back(kept);
    }

    /// The same, and its log says that it was damaged: it may lack anything.
    pub fn lose_all_since(&self, kept: &Kept, id: ComponentId) {
        self.inner.put_back(kept);
        self.script.doubtful.borrow_mut().insert(id);
    }

    async fn may(&self, what: What) -> Result<(), StoreError> {
        let script = &self.script;
        *script.asked.borrow_mut().entry(what).or_default() += 1;
        script.changed.notify_all();
        let number = script.next_turn.get();
        script.next_turn.set(number + 1);
        script.turns.borrow_mut().insert((what, number));
        let turn = Turn(script, (what, number));
        loop {
            let changed = script.changed.notified();
            let first = script.turns.borrow().range((what, 0)..).next().copied();
            if first == Some((what, number)) && !script.held.borrow().contains(&what) {
                break;
            }
            changed.await;
        }
        drop(turn);
        match script.refused.borrow_mut().get_mut(&what) {
            Some((error, times)) if *times > 0 => {
                *times -= 1;
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }

    fn note(&self, done: Done) {
        self.script.done.borrow_mut().push(done);
    }
}

impl Components for Scripted {
    fn group(&self) -> GroupId {
        self.inner.group()
    }
    fn space(&self) -> GroupSpace {
        self.inner.space()
    }
    fn counters(&self) -> StoreCounters {
        self.inner.counters()
    }
    fn take_events(&self) -> Vec<StoreEvent> {
        self.inner.take_events()
    }
    fn list(&self) -> Vec<ComponentStatus> {
        self.inner.list().into_iter().filter_map(|c| self.status(c.id).ok()).collect()
    }
    fn status(&self, id: ComponentId) -> Result<ComponentStatus, StoreError> {
        let doubtful = self.script.doubtful.borrow().contains(&id);
        self.inner.status(id).map(|status| ComponentStatus { doubtful, ..status })
    }
    async fn create(&self, id: ComponentId, spec: ComponentSpec) -> Result<(), StoreError> {
        self.inner.create(id, spec).await
    }
    async fn delete(&self, id: ComponentId) -> Result<(), StoreError> {
        self.inner.delete(id).await
    }
    async fn grow(&self, id: ComponentId, blocks: u32) -> Result<(), StoreError> {
        self.inner.grow(id, blocks).await
    }
    async fn fence(&self, id: ComponentId, epoch: Epoch) -> Result<Promise, StoreError> {
        self.may(What::Fence).await?;
        self.inner.fence(id, epoch).await
    }
    async fn open_session(
        &self,
        id: ComponentId,
        session: Session,
        incomplete: Option<Seq>,
    ) -> Result<Promise, StoreError> {
        self.may(What::Open).await?;
        let promise = self.inner.open_session(id, session, incomplete).await?;
        self.note(Done::Opened(session, incomplete));
        Ok(promise)
    }
    async fn complete(
        &self,
        id: ComponentId,
        session: Session,
        up_to: Seq,
    ) -> Result<(), StoreError> {
        self.may(What::Complete).await?;
        self.inner.complete(id, session, up_to).await?;
        self.script.doubtful.borrow_mut().remove(&id);
        self.note(Done::Completed);
        Ok(())
    }
    fn reserve(&self, id: ComponentId, chunk: u32) -> Result<(), StoreError> {
        self.inner.reserve(id, chunk)
    }
    async fn append(
        &self,
        id: ComponentId,
        session: Session,
        op: ComponentOp,
    ) -> Result<(), StoreError> {
        self.may(What::Append).await?;
        let done = Done::Appended(session, op.id.seq, op.range);
        self.inner.append(id, session, op).await?;
        self.note(done);
        Ok(())
    }
    fn committed(&self, id: ComponentId, seq: Seq) {
        self.inner.committed(id, seq);
    }
    fn uncommitted(&self, id: ComponentId) -> Result<Vec<OpRecord>, StoreError> {
        self.inner.uncommitted(id)
    }
    fn applied(&self, id: ComponentId, ticket: Ticket) -> Result<bool, StoreError> {
        self.inner.applied(id, ticket)
    }
    fn tickets(&self, id: ComponentId) -> Result<Vec<Ticket>, StoreError> {
        self.inner.tickets(id)
    }
    async fn set_tickets(
        &self,
        id: ComponentId,
        session: Session,
        set: SetTickets,
    ) -> Result<(), StoreError> {
        self.inner.set_tickets(id, session, set).await
    }
    async fn read(&self, id: ComponentId, range: BlockRange) -> Result<ReadBlocks, StoreError> {
        self.may(What::Read).await?;
        let lost: Vec<u32> = {
            let unreadable = self.script.unreadable.borrow();
            unreadable.range(range.start..range.end()).copied().collect()
        };
        if lost.is_empty() { self.inner.read(id, range).await } else { Err(StoreError::Bad(lost)) }
    }
    async fn tags(&self, id: ComponentId, chunk: u32) -> Result<Vec<BlockTag>, StoreError> {
        self.may(What::Tags).await?;
        let tags = self.inner.tags(id, chunk).await?;
        self.note(Done::Tags(chunk));
        Ok(tags)
    }
    fn chunks_since(
        &self,
        id: ComponentId,
        since: Seq,
        first: u32,
        max: usize,
    ) -> Result<Vec<(u32, Seq)>, StoreError> {
        self.inner.chunks_since(id, since, first, max)
    }
    async fn copy_in(
        &self,
        id: ComponentId,
        session: Session,
        copy: Copy,
    ) -> Result<u32, StoreError> {
        self.may(What::CopyIn).await?;
        let blocks = copy.blocks.iter().map(|b| b.block).collect();
        let put = self.inner.copy_in(id, session, copy).await?;
        self.note(Done::CopiedIn(blocks));
        Ok(put)
    }
    fn scrub(&self, only: Option<&[ComponentId]>, bytes_per_second: u64) {
        self.inner.scrub(only, bytes_per_second);
    }
    fn scrub_progress(&self) -> ScrubProgress {
        self.inner.scrub_progress()
    }
}

pub type Objects = HostObjects<SimWorld, Scripted>;
pub type Open = ObjectVolume<SimWorld, Scripted>;

#[derive(Clone)]
pub struct Hosts {
    pub machines: Machines,
    objects: Rc<RefCell<BTreeMap<u16, Objects>>>,
    stores: Rc<Vec<Scripted>>,
    lives: Rc<Cell<u64>>,
}

impl Hosts {
    fn new(seed: u64) -> Self {
        let hardware = Hardware {
            hosts: HOSTS,
            cores: 1,
            disks: 1,
            disk_bytes: 1 << 30,
            disk: DiskProfile::NVME,
            net: NetProfile::GBIT_25,
        };
        let machines = Machines::new(seed, hardware, Trace::of(&[]));
        let store = |host: u16| {
            let rng = Rng::named(seed, &format!("store {host}"));
            let inner = ReferenceStore::new(machines.executor(), group_id(host), 1 << 30, rng);
            Scripted { inner, script: Rc::default() }
        };
        let stores = Rc::new((0..HOSTS).map(store).collect::<Vec<_>>());
        let hosts = Self {
            machines: machines.clone(),
            objects: Rc::default(),
            stores,
            lives: Rc::default(),
        };
        let booted = hosts.clone();
        machines.set_boot(move |host, _, world| booted.boot(host, world));
        let died = hosts.clone();
        machines.set_death(move |host| {
            let objects = died.objects.borrow_mut().remove(&host);
            objects.expect("it ran").dissolve();
        });
        hosts
    }

    fn boot(&self, host: u16, world: SimWorld) {
        self.lives.set(self.lives.get() + 1);
        let identity = Identity {
            cluster: ClusterId(1),
            host: host_id(host),
            shard: 0,
            shards: 1,
            incarnation: Incarnation(self.lives.get()),
            name: format!("h{host}"),
        };
        let store = self.store(host).clone();
        store.inner.reopen();
        let outlived = self.machines.begin_life(host, identity.incarnation).outlived;
        let of_host = HostComponents::of(1);
        let objects = HostObjects::start(world, identity, outlived, vec![store], of_host);
        for other in 0..HOSTS {
            objects.peers().set_peer(host_id(other), vec![format!("h{other}")]);
        }
        let view = |host: u16| HostView {
            id: host_id(host),
            name: format!("h{host}"),
            fault_domain: format!("h{host}"),
            alive: true,
            incarnation: Incarnation(1),
            groups: vec![GroupView {
                id: group_id(host),
                healthy: true,
                capacity_bytes: 1 << 30,
                device_bytes: 1 << 30,
                free_bytes: 1 << 29,
                unwritten_bytes: 0,
                free_components: 100,
                shard: 0,
            }],
        };
        objects.set_inventory((0..HOSTS).map(view).collect(), BTreeMap::new());
        self.objects.borrow_mut().insert(host, objects);
    }

    pub fn store(&self, host: u16) -> &Scripted {
        &self.stores[usize::from(host)]
    }

    pub fn objects(&self, host: u16) -> Objects {
        self.objects.borrow()[&host].clone()
    }

    pub fn now(&self) -> Nanos {
        self.machines.executor().now()
    }

    pub fn executor(&self) -> Executor {
        self.machines.executor().clone()
    }

    pub async fn wait(&self, span: Nanos) {
        self.machines.executor().sleep_until(self.now() + span).await;
    }

    pub async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let give_up = self.now() + WAIT_MAX;
        while !is_so() {
            assert!(self.now() < give_up, "{what}: {:?}", self.record());
            self.wait(Nanos::from_ms(10)).await;
        }
    }

    /// Until the store of a host has been asked for that, so often.
    pub async fn until_asked(&self, host: u16, what: What, least: u32) {
        let text = format!("{what:?} of h{host}");
        self.until(&text, || self.store(host).asked(what) >= least).await;
    }

    /// Runs beside the test; the answer comes when it is there.
    pub fn begin<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> Begun<T> {
        let (tell, told) = oneshot();
        let is_done = Rc::new(Cell::new(false));
        let done = is_done.clone();
        self.machines.executor().spawn(LifeId::HARNESS, async move {
            let result = task.await;
            done.set(true);
            tell.send(result);
        });
        Begun { told, is_done }
    }

    pub fn record(&self) -> ObjectRecord {
        let entry = self.machines.directory().state().get(&key::object(OBJECT)).unwrap().unwrap();
        record::decode(&entry.key, &entry.value).unwrap()
    }

    pub fn set_record(&self, object: &ObjectRecord) {
        let put = KeyChange::Put(key::object(OBJECT), record::encode(object));
        self.machines.directory().apply(&Txn { compares: vec![], changes: vec![put] }).unwrap();
    }

    /// The state of the copy on a host, by the record.
    pub fn state(&self, host: u16) -> MemberState {
        let record = self.record();
        let found = record.members().find(|(_, m)| m.component == component(host));
        found.expect("a copy is there").1.state
    }

    pub fn is_active(&self, host: u16) -> bool {
        self.state(host).is_active()
    }

    pub async fn until_healthy(&self) {
        let healthy = || self.record().members().all(|(_, m)| m.state.is_active());
        self.until("all copies are up to date", healthy).await;
    }

    /// An object with copies on those hosts, each in that state, and of components that are as
    /// large as [`SIZE`] at least.
    pub async fn make(&self, size_bytes: u64, copies: &[(u16, MemberState)]) {
        let member = |&(host, state): &(u16, MemberState)| MemberRecord {
            component: component(host),
            host: host_id(host),
            group: group_id(host),
            state,
        };
        let object = ObjectRecord {
            version: RECORD_VERSION,
            id: OBJECT,
            name: "v".into(),
            state: ObjectState::Ready,
            size_bytes,
            policy: Policy { failures_to_tolerate: copies.len() as u8 - 1, ..Policy::DEFAULT },
            epoch: Epoch(1),
            owner: None,
            seq_base: Seq(1000),
            legs: vec![LegRecord { members: copies.iter().map(member).collect() }],
            attached: None,
            served: None,
            nonce: 0,
        };
        for &(host, _) in copies {
            let blocks = size_bytes.max(SIZE).div_ceil(MIB) as u32 * BLOCKS_PER_CHUNK;
            let spec = ComponentSpec { object: OBJECT, leg: 0, blocks, epoch: Epoch(1) };
            let create =
                Request::Create { group: group_id(host), component: component(host), spec };
            let made = self.objects(host).members().handle(host_id(host), create).await;
            assert!(matches!(made, Reply::Done), "h{host}: {made:?}");
            let session = Session { epoch: Epoch(1), attach: 1 };
            self.store(host).inner.attach(component(host), session).await.expect("a session");
        }
        self.set_record(&object);
    }

    /// The copy of a host is made anew, with so many chunks.
    pub async fn make_anew(&self, host: u16, chunks: u32) {
        let members = self.objects(host).members().clone();
        let (component, epoch) = (component(host), Epoch(1));
        let delete = Request::Delete { component, epoch };
        assert!(matches!(members.handle(host_id(host), delete).await, Reply::Done));
        let blocks = chunks * BLOCKS_PER_CHUNK;
        let spec = ComponentSpec { object: OBJECT, leg: 0, blocks, epoch };
        let create = Request::Create { group: group_id(host), component, spec };
        assert!(matches!(members.handle(host_id(host), create).await, Reply::Done));
    }

    /// The same, with active copies.
    pub async fn make_on(&self, hosts: &[u16]) {
        let copies: Vec<_> = hosts.iter().map(|&host| (host, MemberState::Active)).collect();
        self.make(SIZE, &copies).await;
    }

    /// Before anybody owns the object: an operation of an owner that is gone is in that copy only.
    pub async fn append(&self, host: u16, seq: u64, kind: OpKind, block: u32, n: u8) {
        let session = Session { epoch: Epoch(1), attach: 1 };
        let bytes = Buf::copy_from(&[n; 4096]);
        let is_write = kind == OpKind::Write;
        let op = ComponentOp {
            id: OpId { epoch: Epoch(1), seq: Seq(seq) },
            ticket: Ticket::default(),
            kind,
            range: BlockRange { start: block, count: 1 },
            committed: Seq(0),
            crcs: if is_write { vec![atoll_format::checksum::crc(&bytes)] } else { vec![] },
            checked: true,
            payload: if is_write { vec![bytes] } else { vec![] },
        };
        self.store(host).inner.append(component(host), session, op).await.expect("appended");
    }

    /// The same for what that copy has had for long.
    pub async fn put(&self, host: u16, seq: u64, block: u32, n: u8) {
        let session = Session { epoch: Epoch(1), attach: 1 };
        let bytes = Buf::copy_from(&[n; 4096]);
        let crc = atoll_format::checksum::crc(&bytes);
        let tag = BlockTag { seq: Seq(seq), state: BlockState::Raw, crc };
        let blocks = vec![CopyBlock { block, tag, bytes: Some(bytes) }];
        let chunk = block / BLOCKS_PER_CHUNK;
        let copy = Copy { chunk, blocks, only_if: None, tickets: SetTickets::default() };
        self.store(host).inner.copy_in(component(host), session, copy).await.expect("put in");
    }

    /// The tag of a block in the copy of a host.
    pub async fn tag(&self, host: u16, block: u32) -> BlockTag {
        let chunk = block / BLOCKS_PER_CHUNK;
        let tags = self.store(host).inner.tags(component(host), chunk).await.expect("tags");
        tags[(block % BLOCKS_PER_CHUNK) as usize]
    }

    /// Two copies have the same in every block, and nothing beyond the object's end.
    pub async fn assert_equal(&self, a: u16, b: u16) {
        self.assert_equal_inside(a, b).await;
        let end = self.record().leg_chunks(0) * BLOCKS_PER_CHUNK;
        for block in end..(SIZE / 4096) as u32 {
            for host in [a, b] {
                let tag = self.tag(host, block).await;
                assert!(tag.state.reads_as_zero(), "block {block} on h{host}: {tag:?}");
            }
        }
    }

    /// Two copies have the same in every block of the object.
    pub async fn assert_equal_inside(&self, a: u16, b: u16) {
        for chunk in 0..self.record().leg_chunks(0) {
            let of = |host: u16| self.store(host).inner.tags(component(host), chunk);
            let (one, other) = (of(a).await.expect("tags"), of(b).await.expect("tags"));
            for (i, (x, y)) in one.iter().zip(&other).enumerate() {
                assert_eq!(x, y, "block {i} of chunk {chunk} on h{a} and on h{b}");
            }
        }
    }

    pub async fn open(&self, host: u16) -> Open {
        ObjectVolume::open(self.objects(host), OBJECT).await.expect("it is there")
    }

    pub fn kill(&self, host: u16) {
        self.machines.kill(host, false);
    }

    pub fn start(&self, host: u16) {
        self.machines.start(host);
    }

    /// What owners on a host have told since they were asked last.
    pub fn events(&self, host: u16) -> Vec<Event> {
        self.objects(host).take_events().into_iter().map(|(_, event)| event).collect()
    }
}

/// See [`Hosts::begin`].
pub struct Begun<T> {
    told: Receiver<T>,
    is_done: Rc<Cell<bool>>,
}

impl<T> Begun<T> {
    pub fn is_done(&self) -> bool {
        self.is_done.get()
    }

    pub async fn end(self) -> T {
        self.told.await.expect("it comes to its end")
    }
}

pub fn block(n: u8) -> Vec<Buf> {
    vec![Buf::copy_from(&[n; 4096])]
}

/// Writes a block of `n`.
pub async fn write(volume: &Open, at: u64, n: u8) {
    volume.write(at, block(n)).await.expect("it can be written");
}

/// What a block is full of.
pub async fn read(volume: &Open, at: u64) -> u8 {
    let data = buf::join(&volume.read(at, 4096).await.expect("it can be read"));
    assert!(data.iter().all(|&byte| byte == data[0]), "one block, one write");
    data[0]
}

/// Runs a test on hosts that have been up for a while: no lease of an earlier life may be left.
pub fn with<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Hosts) -> F + 'static) {
    let hosts = Hosts::new(seed);
    (0..HOSTS).for_each(|host| hosts.start(host));
    let (all, executor) = (hosts.clone(), hosts.executor());
    let main = async move {
        all.wait(Nanos::from_secs(7)).await;
        test(all).await;
    };
    executor.block_on(TEST_MAX, main).expect("comes to its end");
    hosts.machines.shutdown();
}
