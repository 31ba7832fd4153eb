//! Hosts with two shards each, below management: members and owners that are asked at a shard, over
//! restarts after which a disk group is on another shard than before.

use atoll_format::id::{
    Addr, ClusterId, ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, Seq,
};
use atoll_format::record::{
    self, LegRecord, MemberRecord, MemberState, ObjectRecord, ObjectState, Policy, RECORD_VERSION,
    key,
};
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_object::message::{Reply, Request};
use atoll_object::placement::{GroupView, HostView};
use atoll_object::{HostComponents, HostObjects, ObjectVolume};
use atoll_sim::disk::DiskProfile;
use atoll_sim::executor::LifeId;
use atoll_sim::fault::FaultKind;
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::reference_store::ReferenceStore;
use atoll_sim::rng::Rng;
use atoll_sim::run::{Options, Setup, run_one};
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_transport::Identity;
use atoll_world::components::ComponentSpec;
use atoll_world::directory::{KeyChange, Txn};
use atoll_world::sync::oneshot;
use atoll_world::volume::Volume;
use atoll_world::{Buf, Lane, Nanos, buf};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

const HOSTS: u16 = 3;
const SHARDS: u8 = 2;
const TEST_MAX: Nanos = Nanos::from_secs(3_600);
const OBJECT: ObjectId = ObjectId(7);
const SIZE: u64 = 8 << 20;

type Shard = HostObjects<SimWorld, ReferenceStore>;

#[derive(Clone)]
struct Hosts {
    machines: Machines,
    shards: Rc<RefCell<BTreeMap<(u16, u8), Shard>>>,
    /// The shard that runs each host's disk group in its present life.
    group_on: Rc<RefCell<Vec<u8>>>,
    lives: Rc<Cell<u64>>,
    /// The present life of each host.
    incarnations: Rc<RefCell<Vec<Incarnation>>>,
}

fn host_id(host: u16) -> HostId {
    HostId(100 + u64::from(host))
}

fn group_id(host: u16) -> GroupId {
    GroupId(200 + u64::from(host))
}

impl Hosts {
    fn new(seed: u64) -> Self {
        let spec = Hardware {
            hosts: HOSTS,
            cores: SHARDS,
            disks: 1,
            disk_bytes: 1 << 30,
            disk: DiskProfile::NVME,
            net: NetProfile::GBIT_25,
        };
        let machines = Machines::new(seed, spec, Trace::of(&[]));
        let store = |host: u16| {
            let rng = Rng::named(seed, &format!("store {host}"));
            ReferenceStore::new(machines.executor(), group_id(host), 1 << 30, rng)
        };
        let stores: Vec<ReferenceStore> = (0..HOSTS).map(store).collect();
        let hosts = Self {
            machines: machines.clone(),
            shards: Rc::default(),
            group_on: Rc::new(RefCell::new(vec![0; usize::from(HOSTS)])),
            lives: Rc::default(),
            incarnations: Rc::new(RefCell::new(vec![Incarnation(0); usize::from(HOSTS)])),
        };
        let booted = hosts.clone();
        machines.set_boot(move |host, _, world| {
            booted.lives.set(booted.lives.get() + 1);
            let incarnation = Incarnation(booted.lives.get());
            booted.incarnations.borrow_mut()[usize::from(host)] = incarnation;
            let outlived = booted.machines.begin_life(host, incarnation).outlived;
            let of_host = HostComponents::of(SHARDS);
            let next = booted.machines.next_shard(&world);
            for (shard, world) in (0..).zip([world, next]) {
                let identity = Identity {
                    cluster: ClusterId(1),
                    host: host_id(host),
                    shard,
                    shards: SHARDS,
                    incarnation,
                    name: format!("h{host}"),
                };
                let has_group = booted.group_on.borrow()[usize::from(host)] == shard;
                let own = has_group.then(|| stores[usize::from(host)].clone());
                let stores = own.into_iter().collect();
                let outlived = outlived.clone();
                let objects =
                    HostObjects::start(world, identity, outlived, stores, of_host.clone());
                for other in 0..HOSTS {
                    objects.peers().set_peer(host_id(other), vec![format!("h{other}")]);
                }
                booted.shards.borrow_mut().insert((host, shard), objects);
            }
            booted.tell_inventory();
        });
        let died = hosts.clone();
        machines.set_death(move |host| {
            for shard in 0..SHARDS {
                if let Some(objects) = died.shards.borrow_mut().remove(&(host, shard)) {
                    objects.dissolve();
                }
            }
        });
        hosts
    }

    /// Every shard learns where each disk group is.
    fn tell_inventory(&self) {
        let group = |host: u16| GroupView {
            id: group_id(host),
            healthy: true,
            capacity_bytes: 1 << 30,
            device_bytes: 1 << 30,
            free_bytes: 1 << 29,
            unwritten_bytes: 0,
            free_components: 100,
            shard: self.group_on.borrow()[usize::from(host)],
        };
        let view = |host: u16| HostView {
            id: host_id(host),
            name: format!("h{host}"),
            fault_domain: format!("h{host}"),
            alive: true,
            incarnation: self.incarnations.borrow()[usize::from(host)],
            groups: vec![group(host)],
        };
        for objects in self.shards.borrow().values() {
            objects.set_inventory((0..HOSTS).map(view).collect(), BTreeMap::new());
        }
    }

    fn shard(&self, host: u16, shard: u8) -> Shard {
        self.shards.borrow()[&(host, shard)].clone()
    }

    async fn wait(&self, span: Nanos) {
        let executor = self.machines.executor();
        executor.sleep_until(executor.now() + span).await;
    }

    fn record(&self) -> ObjectRecord {
        let entry = self.machines.directory().state().get(&key::object(OBJECT)).unwrap().unwrap();
        record::decode(&entry.key, &entry.value).unwrap()
    }

    /// An object with a copy on hosts 0 and 1.
    async fn make(&self) {
        let member = |host: u16| MemberRecord {
            component: ComponentId(300 + u64::from(host)),
            host: host_id(host),
            group: group_id(host),
            state: MemberState::Active,
        };
        let object = ObjectRecord {
            version: RECORD_VERSION,
            id: OBJECT,
            name: "v".into(),
            state: ObjectState::Ready,
            size_bytes: SIZE,
            policy: Policy::DEFAULT,
            epoch: Epoch(1),
            owner: None,
            seq_base: Seq(0),
            legs: vec![LegRecord { members: vec![member(0), member(1)] }],
            attached: None,
            served: None,
            nonce: 0,
        };
        for (leg, m) in object.members() {
            let blocks = object.leg_chunks(leg) * BLOCKS_PER_CHUNK;
            let spec = ComponentSpec { object: OBJECT, leg: 0, blocks, epoch: Epoch(1) };
            let host = (m.host.0 - 100) as u16;
            let at = Addr { host: m.host, shard: self.group_on.borrow()[usize::from(host)] };
            let create = Request::Create { group: m.group, component: m.component, spec };
            let from = self.shard(2, 0);
            let until = self.machines.executor().now() + Nanos::from_secs(1_000_000);
            let made = from.peers().call(at, Lane::Control, create, until).await;
            assert!(matches!(made, Ok(Reply::Done)), "{at}: {made:?}");
        }
        let put = KeyChange::Put(key::object(OBJECT), record::encode(&object));
        self.machines.directory().apply(&Txn { compares: vec![], changes: vec![put] }).unwrap();
    }

    async fn open(&self, host: u16, shard: u8) -> ObjectVolume<SimWorld, ReferenceStore> {
        ObjectVolume::open(self.shard(host, shard), OBJECT).await.expect("it is there")
    }

    async fn until(&self, what: &str, is_so: impl Fn(&ObjectRecord) -> bool) {
        let give_up = self.machines.executor().now() + Nanos::from_secs(120);
        while !is_so(&self.record()) {
            assert!(self.machines.executor().now() < give_up, "{what}: {:?}", self.record());
            self.wait(Nanos::from_ms(50)).await;
        }
    }
}

fn block(n: u8) -> Vec<Buf> {
    vec![Buf::copy_from(&[n; 4096])]
}

async fn reads(volume: &impl Volume, n: u8) {
    let data = volume.read(0, 4096).await.expect("it can be read");
    assert_eq!(buf::join(&data)[..], [n; 4096], "block {n}");
}

fn with<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Hosts) -> F + 'static) {
    let hosts = Hosts::new(seed);
    *hosts.group_on.borrow_mut() = vec![0, 1, 0];
    for host in 0..HOSTS {
        hosts.machines.start(host);
    }
    let main = test(hosts.clone());
    hosts.machines.executor().block_on(TEST_MAX, main).expect("comes to its end");
    hosts.machines.shutdown();
}

#[test]
fn every_shard_reaches_an_owner_on_any_shard_and_members_on_any() {
    with(1, |hosts| async move {
        hosts.wait(Nanos::from_secs(5)).await;
        hosts.make().await;
        let first = hosts.open(2, 1).await;
        first.write(0, block(1)).await.expect("two copies take it");
        let owner = hosts.record().owner.expect("who wrote owns it");
        assert_eq!(owner.addr(), Addr { host: host_id(2), shard: 1 });
        let mut last = 1;
        for host in 0..HOSTS {
            for shard in 0..SHARDS {
                let volume = hosts.open(host, shard).await;
                reads(&volume, last).await;
                last += 1;
                volume.write(0, block(last)).await.expect("the owner takes it");
            }
        }
        reads(&first, last).await;
        assert_eq!(hosts.record().owner, Some(owner), "nobody took it over");
        assert!(hosts.record().members().all(|(_, m)| m.state.is_active()));
    });
}

#[test]
fn an_owner_goes_with_all_shards_of_its_host_and_comes_back_on_any() {
    with(2, |hosts| async move {
        hosts.wait(Nanos::from_secs(5)).await;
        hosts.make().await;
        let before = hosts.open(2, 1).await;
        before.write(0, block(1)).await.expect("two copies take it");
        let owner = hosts.record().owner;
        drop(before);
        hosts.machines.kill(2, false);
        hosts.machines.start(2);
        hosts.wait(Nanos::from_ms(100)).await;
        // Its earlier life is over, whichever shard it was.
        let began = hosts.machines.executor().now();
        let after = hosts.open(2, 0).await;
        reads(&after, 1).await;
        assert_eq!(hosts.record().owner.map(|o| o.shard), Some(0));
        assert_ne!(hosts.record().owner, owner);
        let took = hosts.machines.executor().now().since(began);
        assert!(took < Nanos::from_ms(300), "{took}");
        after.write(0, block(2)).await.expect("two copies take it");
        // Members have granted leases to another shard, whose life is over.
        hosts.wait(Nanos::from_secs(4)).await;
        assert!(hosts.record().members().all(|(_, m)| m.state.is_active()), "{:?}", hosts.record());
        reads(&hosts.open(1, 1).await, 2).await;
    });
}

#[test]
fn a_disk_group_on_another_shard_is_not_lost() {
    with(3, |hosts| async move {
        hosts.wait(Nanos::from_secs(5)).await;
        hosts.make().await;
        let volume = hosts.open(2, 1).await;
        volume.write(0, block(1)).await.expect("two copies take it");
        let components =
            |r: &ObjectRecord| r.members().map(|(_, m)| m.component).collect::<Vec<_>>();
        let made = components(&hosts.record());
        for (n, on) in [(2, 1), (3, 0)] {
            hosts.machines.kill(0, false);
            volume.write(0, block(n)).await.expect("one copy takes it");
            hosts.group_on.borrow_mut()[0] = on;
            let told = hosts.shards.borrow().values().next().expect("some run").inventory();
            hosts.machines.start(0);
            // The others have not heard of it: they ask the shard of before.
            for objects in hosts.shards.borrow().values() {
                objects.set_inventory(told.clone(), BTreeMap::new());
            }
            hosts.wait(Nanos::from_secs(8)).await;
            let is_lost = |(_, m): (usize, &MemberRecord)| match m.state {
                MemberState::Absent { lost, .. } => lost,
                _ => false,
            };
            assert!(!hosts.record().members().any(is_lost), "{:?}", hosts.record());
            hosts.tell_inventory();
            let whole = |r: &ObjectRecord| r.members().all(|(_, m)| m.state.is_active());
            hosts.until("both copies are back", whole).await;
            assert_eq!(components(&hosts.record()), made, "the copies that were there");
            hosts.machines.kill(1, false);
            reads(&volume, n).await;
            hosts.machines.start(1);
            hosts.until("both copies are back", whole).await;
        }
    });
}

/// The host's record of before is repeated for seconds: it must not be believed again and again.
#[test]
fn a_takeover_finds_a_disk_group_that_has_just_moved_to_another_shard() {
    for phase in 0..3 {
        with(5, move |hosts| async move {
            hosts.wait(Nanos::from_secs(5)).await;
            hosts.make().await;
            let volume = hosts.open(2, 0).await;
            volume.write(0, block(1)).await.expect("two copies take it");
            drop(volume);
            let told = hosts.shard(2, 0).inventory();
            let before = hosts.record().epoch;
            hosts.group_on.borrow_mut()[0] = 1;
            for host in [0, 2] {
                hosts.machines.kill(host, false);
                hosts.machines.start(host);
            }
            hosts.shard(2, 0).set_inventory(told.clone(), BTreeMap::new());
            let repeats = hosts.clone();
            let until = hosts.machines.executor().now() + Nanos::from_secs(10);
            hosts.machines.executor().spawn(LifeId::HARNESS, async move {
                while repeats.machines.executor().now() < until {
                    repeats.shard(2, 0).set_inventory(told.clone(), BTreeMap::new());
                    repeats.wait(Nanos::from_us(50)).await;
                }
            });
            hosts.wait(Nanos::from_ms(50 + phase * 7)).await;
            let after = hosts.open(2, 0).await;
            reads(&after, 1).await;
            let now = hosts.record();
            assert_eq!(now.owner.map(|o| o.host), Some(host_id(2)));
            assert!(now.epoch > before, "it was taken over");
            assert!(now.members().all(|(_, m)| m.state.is_active()), "{phase}: {now:?}");
            hosts.wait(Nanos::from_secs(11)).await;
            // A life with one shard less: what the one before it has said is over.
            hosts.machines.kill(0, false);
            after.write(0, block(2)).await.expect("one copy takes it");
            hosts.group_on.borrow_mut()[0] = 0;
            hosts.machines.start(0);
            hosts.tell_inventory();
            let addr = hosts.shard(2, 0).addr_of(host_id(0), group_id(0));
            assert_eq!(addr, Addr { host: host_id(0), shard: 0 });
            let whole = |r: &ObjectRecord| r.members().all(|(_, m)| m.state.is_active());
            hosts.until("both copies are back", whole).await;
        });
    }
}

#[test]
fn an_owner_moves_to_another_shard_under_load() {
    with(4, |hosts| async move {
        hosts.wait(Nanos::from_secs(5)).await;
        hosts.make().await;
        let volume = hosts.open(2, 0).await;
        volume.write(0, block(1)).await.expect("two copies take it");
        let (over, written) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(1)));
        let (done, last) = (over.clone(), written.clone());
        let (ends, ended) = oneshot();
        // Three writers of other blocks, so that the owner is never idle, and one of the first.
        for n in 1..4 {
            let (volume, over) = (volume.clone(), over.clone());
            hosts.machines.executor().spawn(LifeId::HARNESS, async move {
                while !over.get() {
                    volume.write(n * 4096, block(7)).await.expect("it is served all the time");
                }
            });
        }
        let first = volume.clone();
        hosts.machines.executor().spawn(LifeId::HARNESS, async move {
            while !done.get() {
                let next = last.get() % 200 + 1;
                first.write(0, block(next)).await.expect("it is served all the time");
                last.set(next);
                reads(&first, next).await;
            }
            ends.send(());
        });
        for to in [1, 0, 1] {
            hosts.wait(Nanos::from_ms(500)).await;
            let (epoch, from) = (hosts.record().epoch, hosts.record().owner.expect("it is owned"));
            assert_eq!(from.addr(), Addr { host: host_id(2), shard: 1 - to });
            hosts.shard(2, to).connect_to_copies(OBJECT, Nanos::from_ms(500)).await;
            let began = hosts.machines.executor().now();
            hosts.shard(2, 1 - to).release(OBJECT).await;
            let taken = hosts.shard(2, to).take_released(OBJECT, from.addr()).await;
            let took = hosts.machines.executor().now().since(began);
            assert!(took < Nanos::from_ms(1_500), "{took}");
            let now = hosts.record();
            assert_eq!(taken, Ok(()), "{now:?}");
            assert_eq!(now.owner.map(|owner| owner.shard), Some(to));
            assert!(now.epoch > epoch, "{now:?}");
            assert!(hosts.shard(2, 1 - to).owned().is_empty());
        }
        over.set(true);
        ended.await.expect("the writer ends");
        reads(&hosts.open(0, 1).await, written.get()).await;
        assert!(hosts.record().members().all(|(_, m)| m.state.is_active()));
    });
}

/// Writes to `volume` for `span`, ten times a second, each within `most`; returns the last one.
async fn serves(
    hosts: &Hosts,
    volume: &impl Volume,
    (mut n, span, most): (u8, Nanos, Nanos),
) -> u8 {
    let executor = hosts.machines.executor();
    let until = executor.now() + span;
    while executor.now() < until {
        let began = executor.now();
        n = n.wrapping_add(1);
        volume.write(0, block(n)).await.expect("the owner takes it");
        reads(volume, n).await;
        let took = executor.now().since(began);
        assert!(took < most, "write and read {n} took {took}");
        hosts.wait(Nanos::from_ms(100)).await;
    }
    n
}

#[test]
fn siblings_of_a_starved_shard_go_on_serving() {
    with(4, |hosts| async move {
        let (soon, starved) = (Nanos::from_ms(5), Nanos::from_secs(20));
        hosts.wait(Nanos::from_secs(5)).await;
        hosts.make().await;
        // The owner and its copy are on shard 0 of their host, the other copy on shard 1 of its.
        let volume = hosts.open(0, 0).await;
        let elsewhere = hosts.open(1, 0).await;
        let mut last = serves(&hosts, &volume, (0, Nanos::from_secs(1), soon)).await;
        let before = hosts.record();
        for (host, shard) in [(0, 1), (1, 0)] {
            hosts.machines.pause_shard(host, shard);
            last = serves(&hosts, &volume, (last, starved, soon)).await;
            assert_eq!(hosts.record(), before, "nobody is left out, nobody takes over");
            hosts.machines.resume_shard(host, shard);
            hosts.wait(Nanos::from_secs(5)).await;
        }
        // The shard of a copy: it is left out, and its sibling is served by the owner.
        hosts.machines.pause_shard(1, 1);
        last = serves(&hosts, &volume, (last, Nanos::from_secs(1), Nanos::from_secs(4))).await;
        let left_out = |r: &ObjectRecord| r.members().any(|(_, m)| !m.state.is_active());
        assert!(left_out(&hosts.record()), "{:?}", hosts.record());
        last = serves(&hosts, &elsewhere, (last, starved, soon)).await;
        assert_eq!(hosts.record().owner, before.owner, "nobody takes over");
        hosts.machines.resume_shard(1, 1);
        hosts.until("both copies are back", |r| !left_out(r)).await;
        hosts.machines.kill(0, false);
        reads(&elsewhere, last).await;
    });
}

#[test]
fn seeds_whose_hosts_have_several_shards_starve_one() {
    let options = Options::default();
    let starves = |seed: &u64| {
        let Setup { plan, cluster, .. } = Setup::of_seed(*seed, &options);
        let starves = plan.events.contains(&FaultKind::ShardStarved);
        assert!(!starves || cluster.shards.most() > 1, "seed {seed}");
        starves
    };
    let mut reached = 0;
    for seed in (0..1_000).filter(starves).take(5) {
        let outcome = run_one(seed, &options);
        assert_eq!(outcome.violations, [""; 0], "seed {seed}");
        reached += outcome.faults[FaultKind::ShardStarved as usize];
    }
    assert!(reached > 0, "none had its effect");
}
