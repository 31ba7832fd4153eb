//! What hosts ask of the directory, by the number of hosts and objects: at rest nothing that grows
//! with the objects, and while copies are made anew what changes, once for each host.
//!
//! The points of the table in `docs/directory.md` are named by `ATOLL_DIRECTORY_LOAD`, hosts and
//! objects each (`3x100,64x10000`); the table is printed.

use atoll_format::id::{ClusterId, ComponentId, HostId, Incarnation, ObjectId};
use atoll_format::level::Levels;
use atoll_format::record::{
    self, ClusterRecord, HostRecord, MemberState, ObjectRecord, PROMISED_LIMIT_PERCENT,
    RECORD_VERSION, VolumeRecord, key,
};
use atoll_node::{CreateVolume, Node};
use atoll_sim::cluster::{Storage, host_id, node_config};
use atoll_sim::directory::Traffic;
use atoll_sim::disk::DiskProfile;
use atoll_sim::fault::{DirectoryRates, FaultKind};
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::storage::RealStorage;
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_store::Store;
use atoll_world::directory::{KeyChange, Txn};
use atoll_world::volume::Volumes;
use atoll_world::{Buf, Nanos, Volume, World};
use std::cell::RefCell;
use std::rc::Rc;

const MIB: u64 = 1 << 20;
/// How long is counted.
const SPAN: Nanos = Nanos::from_secs(120);
/// The longest test, in virtual time.
const TEST_MAX: Nanos = Nanos::from_secs(3600);
/// After a loss a copy is made anew elsewhere.
const REPAIR_DELAY_S: u32 = 5;

type Host = Node<SimWorld, Store<SimWorld>>;

#[derive(Clone)]
struct Hosts {
    machines: Machines,
    nodes: Rc<RefCell<Vec<Option<Host>>>>,
}

impl Hosts {
    fn node(&self, host: u16) -> Host {
        self.nodes.borrow()[usize::from(host)].clone().expect("runs")
    }

    async fn wait(&self, span: Nanos) {
        let executor = self.machines.executor();
        executor.sleep_until(executor.now() + span).await;
    }

    fn put(&self, changes: impl IntoIterator<Item = KeyChange>) {
        let changes: Vec<_> = changes.into_iter().collect();
        for part in changes.chunks(100) {
            let txn = Txn { compares: vec![], changes: part.to_vec() };
            self.machines.directory().apply(&txn).expect("within the limits");
        }
    }

    async fn make(&self, name: &str) {
        let name = name.into();
        let volume =
            CreateVolume { name, size_bytes: 4 * MIB, policy: None, prefer: None, dry_run: false };
        self.node(0).create_volume(volume).await.expect("there is room");
    }

    fn records(&self) -> Vec<ObjectRecord> {
        let listing = self.machines.directory().state().list(key::OBJECTS).expect("a good prefix");
        let records = listing.entries.iter().map(|e| record::decode(&e.key, &e.value));
        records.map(|record| record.expect("a record")).collect()
    }

    /// As many objects as that are there from now on, with names. All are as one that was made, and
    /// nobody uses them.
    fn fill(&self, objects: u64) {
        let like = self.records().remove(0);
        self.put((1..objects).flat_map(|i| {
            let name = format!("v{i:05}");
            let id = ObjectId(1_000_000 + i);
            let mut record = ObjectRecord { id, name, owner: None, ..like.clone() };
            for (n, member) in record.legs.iter_mut().flat_map(|leg| &mut leg.members).enumerate() {
                member.component = ComponentId(1_000_000 + 100 * i + n as u64);
            }
            let volume = VolumeRecord {
                version: RECORD_VERSION,
                object: record.id,
                policy: "mirror".into(),
                created_ms: 0,
            };
            [
                KeyChange::Put(key::volume(&record.name), record::encode(&volume)),
                KeyChange::Put(key::object(record.id), record::encode(&record)),
            ]
        }));
    }

    /// What is asked and told while `meanwhile` runs, and how long that takes.
    async fn count(&self, meanwhile: impl Future<Output = ()>) -> (Traffic, f64) {
        let (now, before) = (self.machines.executor().now(), self.machines.directory().traffic());
        meanwhile.await;
        let after = self.machines.directory().traffic();
        let traffic = Traffic {
            requests: after.requests - before.requests,
            told: after.told - before.told,
            bytes: after.bytes - before.bytes,
        };
        (traffic, self.machines.executor().now().since(now).0 as f64 / 1e9)
    }
}

/// Runs a test in a cluster that is up, and has one volume `v`.
fn with<F: Future<Output = ()> + 'static>(count: u16, test: impl FnOnce(Hosts) -> F + 'static) {
    let spec = Hardware {
        hosts: count,
        cores: 1,
        disks: 1,
        disk_bytes: 1 << 30,
        disk: DiskProfile::NVME,
        net: NetProfile::GBIT_25,
    };
    let machines = Machines::new(1, spec, Trace::of(&[]));
    let nodes: Rc<RefCell<Vec<Option<Host>>>> =
        Rc::new(RefCell::new((0..count).map(|_| None).collect()));
    let hosts = Hosts { machines: machines.clone(), nodes: nodes.clone() };
    let (storage, rigs, all) = (RealStorage::new(16 << 20), machines.clone(), nodes.clone());
    machines.set_boot(move |host, disks, world| {
        let (storage, all, inner) = (storage.clone(), all.clone(), world.clone());
        let rigs = rigs.clone();
        let kept = rigs.events(host).open(host_id(host));
        world.spawn(async move {
            let group = storage.open(host, 0, disks, inner.clone()).await.expect("opens");
            let life = rigs.begin_life(host, Incarnation(inner.random()));
            let node = Node::start(inner, node_config(host), life, vec![group], kept);
            node.objects().set_repair_delay(REPAIR_DELAY_S);
            all.borrow_mut()[usize::from(host)] = Some(node);
        });
    });
    machines.set_death(move |host| {
        if let Some(node) = nodes.borrow_mut()[usize::from(host)].take() {
            node.dissolve();
        }
    });
    let main = async move {
        let cluster = ClusterRecord {
            version: RECORD_VERSION,
            id: ClusterId(1),
            name: "test".into(),
            repair_delay_s: REPAIR_DELAY_S,
            resync_floor_bytes: 0,
            promised_limit_percent: PROMISED_LIMIT_PERCENT,
            level: Levels::KNOWN.newest,
        };
        hosts.put([KeyChange::Put(key::CLUSTER.into(), record::encode(&cluster))]);
        (0..count).for_each(|host| hosts.machines.start(host));
        hosts.wait(Nanos::from_secs(10)).await;
        hosts.make("v").await;
        test(hosts).await;
    };
    machines.executor().clone().block_on(TEST_MAX, main).expect("it ends");
    machines.shutdown();
}

/// At rest, for each second: requests, and bytes that are answered and told.
fn at_rest(hosts: u16, objects: u64) -> (f64, f64) {
    let found = Rc::new(RefCell::new((0.0, 0.0)));
    let result = found.clone();
    with(hosts, move |hosts| async move {
        hosts.fill(objects);
        hosts.wait(Nanos::from_secs(90)).await;
        let (traffic, seconds) = hosts.count(hosts.wait(SPAN)).await;
        assert_eq!(hosts.records().len() as u64, objects);
        *result.borrow_mut() = (traffic.requests as f64 / seconds, traffic.bytes as f64 / seconds);
    });
    found.take()
}

#[test]
fn at_rest_a_host_asks_twelve_times_a_minute_however_many_objects_there_are() {
    for objects in [10, 500] {
        let (requests, bytes) = at_rest(3, objects);
        // The answer is the record of the cluster.
        assert!(requests <= 3.0 * 12.5 / 60.0, "{objects} objects: {requests} requests a second");
        assert!(requests > 3.0 * 11.0 / 60.0, "{objects} objects: {requests} requests a second");
        assert!(bytes < 3.0 * 50.0, "{objects} objects: {bytes} bytes a second");
    }
}

#[test]
fn a_change_is_told_to_each_host_once_and_makes_nobody_list() {
    with(3, |hosts| async move {
        hosts.fill(500);
        hosts.wait(Nanos::from_secs(90)).await;
        let changes = async {
            for i in 0..100_u64 {
                let mut record = hosts.records().swap_remove(usize::try_from(i).unwrap() + 1);
                record.nonce += 1;
                let size = record::encode(&record);
                hosts.put([KeyChange::Put(key::object(record.id), size)]);
                hosts.wait(Nanos::from_secs(1)).await;
            }
        };
        let (traffic, seconds) = hosts.count(changes).await;
        assert_eq!(traffic.told, 300, "each of three hosts is told each of a hundred changes");
        // Looks, and what has changed since the last proof, twice or three times.
        let looks = (seconds / 5.0).ceil() as u64 + 1;
        assert!(traffic.requests <= 3 * (looks + 3), "{traffic:?}");
        let record = record::encode(&hosts.records()[1]).len() as u64 + 40;
        // Told once, and once more for the proof.
        assert!(traffic.bytes < 2 * 300 * record + 3 * looks * 200, "{traffic:?}");
    });
}

#[test]
fn while_copies_are_made_anew_hosts_are_told_what_changes_and_list_nothing() {
    const VOLUMES: u64 = 8;
    with(4, |hosts| async move {
        hosts.fill(300);
        for i in 1..VOLUMES {
            hosts.make(&format!("w{i}")).await;
        }
        let names: Vec<String> =
            std::iter::once("v".into()).chain((1..VOLUMES).map(|i| format!("w{i}"))).collect();
        let write = async |names: &[String]| {
            for name in names {
                let volume = hosts.node(0).open(name).await.expect("opens");
                volume.write(0, vec![Buf::copy_from(&[7; 4096])]).await.expect("written");
            }
        };
        write(&names).await;
        hosts.wait(Nanos::from_secs(70)).await;
        let ids: Vec<ObjectId> = hosts.records().iter().map(|r| r.id).collect();
        let used = |r: &ObjectRecord| r.owner.is_some();
        let on = |r: &ObjectRecord, host| r.members().any(|(_, m)| m.host == host_id(host));
        let copies = |h| hosts.records().iter().filter(|r| used(r) && on(r, h)).count() as u64;
        let (lost, dies) = (1..4).map(|host| (copies(host), host)).max().expect("three");
        assert!(lost > 1, "the host that dies has copies");
        let transactions = hosts.machines.directory().transactions();
        let (traffic, seconds) = hosts
            .count(async {
                hosts.machines.kill(dies, false);
                write(&names).await;
                let healed = |r: &ObjectRecord| {
                    let whole = r.members().all(|(_, m)| m.state == MemberState::Active);
                    whole && !on(r, dies)
                };
                while !hosts.records().iter().filter(|r| used(r)).all(healed) {
                    hosts.wait(Nanos::from_secs(1)).await;
                }
            })
            .await;
        assert_eq!(hosts.records().len(), ids.len());
        let transactions = hosts.machines.directory().transactions() - transactions;
        println!(
            "rebuild of {lost} copies, 3 hosts, {} objects: {seconds:.0} s, {transactions} \
             transactions, {traffic:?}",
            ids.len()
        );
        let record = record::encode(&hosts.records()[0]).len() as u64 + 40;
        let all = ids.len() as u64 * record;
        // As much as one list for one host at most.
        assert!(traffic.bytes < all, "{} bytes of {all}", traffic.bytes);
        // To open a volume takes up to five: its name, locks and record.
        let (others, looks) = (traffic.requests - transactions, seconds / 5.0 + 3.0);
        assert!(others as f64 <= 3.0 * looks + (5 * VOLUMES) as f64, "{traffic:?}");
    });
}

#[test]
fn events_that_a_watch_loses_are_missed_within_eight_seconds() {
    with(3, |hosts| async move {
        let directory = hosts.machines.directory();
        directory.set_rates(DirectoryRates { gap: 1_000_000, ..DirectoryRates::default() });
        let entry = directory.state().get(&key::host(host_id(0))).expect("a good key");
        let like: HostRecord =
            record::decode("h0", &entry.expect("there").value).expect("a record");
        for n in 0..20 {
            let id = HostId(0x9000 + n);
            let record = HostRecord { id, name: format!("new{n}"), ..like.clone() };
            hosts.put([KeyChange::Put(key::host(id), record::encode(&record))]);
            hosts.wait(Nanos::from_secs(8)).await;
            let knows = |host| hosts.node(host).hosts().iter().any(|(record, ..)| record.id == id);
            assert!((0..3).all(knows), "{n}: that it came");
            hosts.put([KeyChange::Delete(key::host(id))]);
            hosts.wait(Nanos::from_secs(8)).await;
            assert!(!(0..3).any(knows), "{n}: that it went");
        }
        assert!(hosts.machines.faults().count(FaultKind::WatchGap) > 20);
    });
}

#[test]
fn table() {
    let points = std::env::var("ATOLL_DIRECTORY_LOAD").unwrap_or_else(|_| "3x100".into());
    println!("| hosts | objects | requests /s | kB/s |");
    println!("| --- | --- | --- | --- |");
    for point in points.split(',') {
        let (hosts, objects) = point.split_once('x').expect("hosts x objects");
        let (hosts, objects) = (hosts.parse().expect("hosts"), objects.parse().expect("objects"));
        let (requests, bytes) = at_rest(hosts, objects);
        println!("| {hosts} | {objects} | {requests:.1} | {:.2} |", bytes / 1000.0);
        assert!(requests <= f64::from(hosts) * 0.21, "{requests} requests a second");
    }
}
