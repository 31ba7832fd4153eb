//! Hosts that are removed for good, in virtual time: under load, by a host that dies meanwhile, and
//! while the removed one comes back at any moment of it. And a host that comes back changed, with
//! another release too.

use atoll_format::id::{ClusterId, Incarnation};
use atoll_format::level::{Level, Levels};
use atoll_format::record::{
    self, ClusterRecord, MemberState, PROMISED_LIMIT_PERCENT, Policy, RECORD_VERSION,
    RemovedRecord, key,
};
use atoll_node::{
    CheckKind, CreateVolume, Ended, EventMark, HostRemoval, JoinError, ManageError, Node,
    NodeConfig, RemoveHost, Upgrade, VolumeState, check_belongs,
};
use atoll_sim::cluster::{Storage, host_id, node_config};
use atoll_sim::disk::DiskProfile;
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::storage::RealStorage;
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_store::Store;
use atoll_world::directory::{KeyChange, Txn};
use atoll_world::volume::Volumes;
use atoll_world::{Buf, Nanos, Volume, World, buf};
use futures_util::FutureExt;
use futures_util::future::join;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// The longest test, in virtual time; far below the repair delay.
const TEST_MAX: Nanos = Nanos::from_secs(1_200);
const REPAIR_DELAY_S: u32 = 3_600;
const LOST: RemoveHost = RemoveHost { lost: true, dry_run: false };
const EMPTY: RemoveHost = RemoveHost { lost: false, dry_run: false };
/// The host that goes, in all tests.
const GOES: u16 = 3;

type Host = Node<SimWorld, Store<SimWorld>>;
/// A host that runs, and its world.
type Running = Option<(Host, SimWorld)>;

#[derive(Clone)]
struct Hosts {
    machines: Machines,
    nodes: Rc<RefCell<Vec<Running>>>,
    /// What the host that goes is from its next start on.
    changed: Rc<RefCell<NodeConfig>>,
}

impl Hosts {
    fn new(seed: u64) -> Self {
        let spec = Hardware {
            hosts: GOES + 1,
            cores: 1,
            disks: 1,
            disk_bytes: 1 << 30,
            disk: DiskProfile::NVME,
            net: NetProfile::GBIT_25,
        };
        let machines = Machines::new(seed, spec, Trace::of(&[]));
        let nodes = Rc::new(RefCell::new(vec![Running::None; usize::from(GOES) + 1]));
        let (storage, all, rigs) = (RealStorage::new(16 << 20), nodes.clone(), machines.clone());
        let changed = Rc::new(RefCell::new(node_config(GOES)));
        let of_goes = changed.clone();
        machines.set_boot(move |host, disks, world| {
            let (storage, all, rigs) = (storage.clone(), all.clone(), rigs.clone());
            let inner = world.clone();
            let kept = rigs.events(host).open(host_id(host));
            let config = if host == GOES { of_goes.borrow().clone() } else { node_config(host) };
            world.spawn(async move {
                let group = storage.open(host, 0, disks, inner.clone()).await.expect("opens");
                let life = rigs.begin_life(host, Incarnation(inner.random()));
                let node = Node::start(inner.clone(), config, life, vec![group], kept);
                all.borrow_mut()[usize::from(host)] = Some((node, inner));
            });
        });
        let all = nodes.clone();
        machines.set_death(move |host| {
            if let Some((node, _)) = all.borrow_mut()[usize::from(host)].take() {
                node.dissolve();
            }
        });
        Self { machines, nodes, changed }
    }

    fn node(&self, host: u16) -> Host {
        self.nodes.borrow()[usize::from(host)].clone().expect("runs").0
    }

    /// What is spawned there ends with the host.
    fn world(&self, host: u16) -> SimWorld {
        self.nodes.borrow()[usize::from(host)].clone().expect("runs").1
    }

    async fn wait(&self, span: Nanos) {
        let executor = self.machines.executor();
        executor.sleep_until(executor.now() + span).await;
    }

    async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let executor = self.machines.executor();
        let give_up = executor.now() + Nanos::from_secs(120);
        while !condition() {
            assert!(executor.now() < give_up, "it never came: {what}");
            self.wait(Nanos::from_ms(10)).await;
        }
    }

    fn put(&self, changes: Vec<KeyChange>) {
        self.machines.directory().apply(&Txn { compares: vec![], changes }).expect("done");
    }

    fn value(&self, key: &str) -> Vec<u8> {
        let listing = self.machines.directory().state().list(key).expect("a good prefix");
        let entry = listing.entries.into_iter().find(|entry| entry.key == key);
        entry.expect("it is there").value
    }

    fn has(&self, key: &str) -> bool {
        let listing = self.machines.directory().state().list(key).expect("a good prefix");
        listing.entries.iter().any(|entry| entry.key == key)
    }

    /// Everything runs and knows everything.
    async fn up(&self) {
        let cluster = ClusterRecord {
            version: RECORD_VERSION,
            id: ClusterId(1),
            name: "test".into(),
            repair_delay_s: REPAIR_DELAY_S,
            resync_floor_bytes: 0,
            promised_limit_percent: PROMISED_LIMIT_PERCENT,
            level: Levels::KNOWN.newest,
        };
        self.put(vec![KeyChange::Put(key::CLUSTER.into(), record::encode(&cluster))]);
        (0..=GOES).for_each(|host| self.machines.start(host));
        self.wait(Nanos::from_secs(10)).await;
    }

    /// Kills a host, and lets the others notice.
    async fn kill(&self, host: u16) {
        self.machines.kill(host, false);
        self.wait(Nanos::from_secs(4)).await;
    }

    async fn remove(&self, by: u16, how: RemoveHost) -> Result<HostRemoval, ManageError> {
        self.node(by).remove_host(&node_config(GOES).name, how).await
    }

    /// A volume with a copy on the host that goes.
    async fn make(&self, name: &str, copies: u8) {
        let failures_to_tolerate = copies - 1;
        let policy = Policy { failures_to_tolerate, ..Policy::DEFAULT };
        let of = format!("copies-{copies}");
        match self.node(0).create_policy(&of, policy).await {
            Ok(()) | Err(ManageError::Exists { .. }) => {}
            other => panic!("{other:?}"),
        }
        let create = CreateVolume {
            name: name.into(),
            size_bytes: 2 * MIB,
            policy: Some(of),
            prefer: Some(host_id(GOES)),
            dry_run: false,
        };
        self.node(0).create_volume(create).await.expect("made");
    }

    /// Whether a record names the host that goes, other than as lost.
    async fn is_named(&self) -> bool {
        let volumes = self.node(0).volumes().await.expect("listed");
        let lost = |state| matches!(state, MemberState::Absent { lost: true, .. });
        volumes.iter().any(|volume| {
            volume.record.members().any(|(_, m)| m.host == host_id(GOES) && !lost(m.state))
        })
    }

    /// Which host has the copy that is not on the one that goes.
    async fn other_copy(&self, name: &str) -> u16 {
        let view = self.node(0).volume(name).await.expect("there");
        let has = |h: &u16| view.record.members().any(|(_, m)| m.host == host_id(*h));
        (0..GOES).find(has).expect("two copies")
    }

    /// All volumes have all their copies, none of them on a host that was removed.
    async fn is_whole(&self, by: u16) -> bool {
        let facts = self.node(by).facts().await.expect("read");
        let is_good = |volume| facts.state(volume) == VolumeState::Healthy;
        facts.volumes.iter().all(is_good)
    }

    async fn becomes_whole(&self, by: u16) {
        let give_up = self.machines.executor().now() + Nanos::from_secs(300);
        while !self.is_whole(by).await {
            let facts = self.node(by).facts().await.expect("read");
            assert!(self.machines.executor().now() < give_up, "{:?}", facts.checks());
            self.wait(Nanos::from_ms(500)).await;
        }
    }

    fn said(&self, host: u16, kind: &str) -> bool {
        self.node(host).local_events(EventMark::default(), 10_000).iter().any(|e| e.kind == kind)
    }

    fn has_ended(&self, host: u16) -> bool {
        matches!(self.node(host).ended().now_or_never(), Some(Ended::Removed(_)))
    }
}

fn with<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Hosts) -> F + 'static) {
    let hosts = Hosts::new(seed);
    let main = {
        let hosts = hosts.clone();
        async move {
            hosts.up().await;
            test(hosts).await;
        }
    };
    hosts.machines.executor().block_on(TEST_MAX, main).expect("comes to its end");
    hosts.machines.shutdown();
}

async fn write(node: &Host, name: &str, at: u64, byte: u8) {
    let volume = node.open(name).await.expect("opens");
    volume.write(at, vec![Buf::copy_from(&[byte; BLOCK as usize])]).await.expect("written");
}

async fn read(node: &Host, name: &str, at: u64) -> u8 {
    let volume = node.open(name).await.expect("opens");
    let bytes = buf::join(&volume.read(at, BLOCK as u32).await.expect("read"));
    assert!(bytes.iter().all(|&byte| byte == bytes[0]));
    bytes[0]
}

/// A client that writes all the time: what it last wrote into the first block of its volume.
struct Load {
    stop: Rc<Cell<bool>>,
    last: Rc<Cell<u8>>,
    ended: Rc<Cell<bool>>,
}

impl Load {
    fn begin(hosts: &Hosts, by: u16, name: &'static str) -> Self {
        let load =
            Self { stop: Rc::default(), last: Rc::default(), ended: Rc::new(Cell::new(false)) };
        let (stop, last, ended) = (load.stop.clone(), load.last.clone(), load.ended.clone());
        let (node, world) = (hosts.node(by), hosts.world(by));
        world.clone().spawn(async move {
            let volume = node.open(name).await.expect("opens");
            while !stop.get() {
                let byte = last.get().wrapping_add(1);
                let bytes = vec![Buf::copy_from(&[byte; BLOCK as usize])];
                volume.write(0, bytes).await.expect("written: it is held at worst");
                last.set(byte);
                world.sleep(Nanos::from_ms(5)).await;
            }
            ended.set(true);
        });
        load
    }

    /// Ends it; what the block holds.
    async fn end(&self, hosts: &Hosts) -> u8 {
        self.stop.set(true);
        hosts.until("the client ends", || self.ended.get()).await;
        self.last.get()
    }
}

fn holds(result: Result<HostRemoval, ManageError>) -> (String, String) {
    match result {
        Err(ManageError::HostHolds { what, next, .. }) => (what, next),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_host_goes_under_load_and_its_copies_are_made_anew_at_once() {
    with(1, |hosts| async move {
        hosts.make("busy", 2).await;
        // Nobody uses it: it has no owner, or one that has gone.
        hosts.make("idle", 2).await;
        write(&hosts.node(GOES), "idle", 0, 7).await;
        hosts.make("never", 2).await;
        let load = Load::begin(&hosts, 0, "busy");
        hosts.wait(Nanos::from_secs(2)).await;
        let (what, next) = holds(hosts.remove(1, LOST).await);
        assert!(what.contains("not lost") && next.contains("stop it"), "{what}: {next}");
        hosts.kill(GOES).await;
        let (what, next) = holds(hosts.remove(1, EMPTY).await);
        assert!(what.contains("busy, idle, never") && next.contains("--lost"), "{what}: {next}");
        let rehearsed = hosts.remove(1, RemoveHost { dry_run: true, ..LOST }).await.expect("may");
        assert!(!rehearsed.is_done && !hosts.has(&key::removed(host_id(GOES))), "it is rehearsed");

        let removal = hosts.remove(1, LOST).await.expect("removed");
        assert!(removal.is_done && removal.host == host_id(GOES), "{removal:?}");
        assert!(!hosts.has(&key::host(host_id(GOES))) && hosts.has(&key::removed(host_id(GOES))));
        assert!(!hosts.is_named().await, "a copy of it is not recorded as lost");
        hosts.becomes_whole(0).await;
        let byte = load.end(&hosts).await;
        for by in [0, 1, 2] {
            assert_eq!(read(&hosts.node(by), "busy", 0).await, byte);
            assert_eq!(read(&hosts.node(by), "idle", 0).await, 7);
        }
        assert!(hosts.said(1, "host-removal"));
        assert!((0..3).any(|host| hosts.said(host, "host-removed")), "nobody says so");
        // Again: it is done. Another one has never been there.
        assert!(hosts.remove(2, EMPTY).await.expect("done before").is_done);
        let unknown = hosts.node(0).remove_host("nobody", LOST).await;
        assert!(matches!(unknown, Err(ManageError::NotFound { .. })), "{unknown:?}");
    });
}

#[test]
fn a_host_with_the_last_copy_is_not_given_up() {
    with(2, |hosts| async move {
        hosts.make("single", 1).await;
        hosts.make("double", 2).await;
        hosts.kill(GOES).await;
        let refused = hosts.remove(0, LOST).await;
        let Err(ManageError::LastCopies { volumes, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(volumes, "single");
        assert!(!hosts.has(&key::removed(host_id(GOES))), "nothing has happened");
        // It comes back as if nothing had been asked.
        hosts.machines.start(GOES);
        hosts.becomes_whole(0).await;
    });
}

#[test]
fn an_empty_host_is_removed_while_it_lives_and_ends() {
    with(3, |hosts| async move {
        let own = hosts.node(GOES).remove_host(&node_config(GOES).name, EMPTY).await;
        assert!(holds(own).1.contains("another host"));
        assert!(hosts.remove(0, EMPTY).await.expect("removed").is_done);
        hosts.until("it ends", || hosts.has_ended(GOES)).await;
        assert!(hosts.said(GOES, "host-was-removed"));
        // Whatever starts it again.
        for _ in 0..2 {
            hosts.machines.kill(GOES, false);
            hosts.machines.start(GOES);
            hosts.wait(Nanos::from_secs(8)).await;
            assert!(hosts.has_ended(GOES) && !hosts.node(GOES).is_published());
            assert!(!hosts.has(&key::host(host_id(GOES))), "it has come back");
        }
        let world = hosts.world(GOES);
        let name = node_config(GOES).name;
        let start = check_belongs(&world, host_id(GOES), &name).await;
        assert!(matches!(&start, Err(JoinError::Removed(host)) if host.name == name), "{start:?}");
        assert_eq!(check_belongs(&world, host_id(0), "h").await, Ok(()));
        assert!(!hosts.node(0).hosts().iter().any(|(h, ..)| h.id == host_id(GOES)));
    });
}

/// The host comes back before, while and after it is removed: either it was there in time, and
/// nothing was changed, or it is refused. No write is lost, and no old copy is believed.
#[test]
fn a_host_that_comes_back_at_any_moment_of_its_removal_is_in_or_out() {
    let (stays, goes) = (Rc::new(Cell::new(0u32)), Rc::new(Cell::new(0u32)));
    for step in 0..40u64 {
        let counts = (stays.clone(), goes.clone());
        with(100 + step, move |hosts| async move {
            hosts.make("busy", 2).await;
            hosts.make("idle", 3).await;
            write(&hosts.node(GOES), "idle", 0, 7).await;
            let load = Load::begin(&hosts, 0, "busy");
            hosts.wait(Nanos::from_secs(1)).await;
            hosts.kill(GOES).await;
            write(&hosts.node(1), "idle", 0, 8).await;
            // From well before it is looked at to well after it has gone.
            let comes_back = async {
                hosts.wait(Nanos::from_ms(step * 40)).await;
                hosts.machines.start(GOES);
            };
            let asks = async {
                hosts.wait(Nanos::from_ms(400)).await;
                hosts.remove(1, LOST).await
            };
            let (_, removal) = join(comes_back, asks).await;
            hosts.until("it runs", || hosts.nodes.borrow()[usize::from(GOES)].is_some()).await;
            match removal {
                Ok(HostRemoval { is_done: true, .. }) => {
                    counts.1.set(counts.1.get() + 1);
                    hosts.until("it ends", || hosts.has_ended(GOES)).await;
                    assert!(!hosts.has(&key::host(host_id(GOES))), "it has come back");
                    assert!(!hosts.is_named().await, "it has copies");
                    assert!(!hosts.node(0).is_alive(host_id(GOES)), "somebody speaks with it");
                }
                Err(ManageError::HostHolds { .. } | ManageError::Conflict(_)) => {
                    counts.0.set(counts.0.get() + 1);
                    hosts.until("it is back", || hosts.node(0).is_alive(host_id(GOES))).await;
                    assert!(!hosts.has(&key::removed(host_id(GOES))), "it is half removed");
                }
                other => panic!("step {step}: {other:?}"),
            }
            hosts.becomes_whole(0).await;
            let byte = load.end(&hosts).await;
            for by in 0..GOES {
                assert_eq!(read(&hosts.node(by), "busy", 0).await, byte, "step {step}");
                assert_eq!(read(&hosts.node(by), "idle", 0).await, 8, "step {step}");
            }
        });
    }
    assert!(stays.get() > 3 && goes.get() > 3, "{} stay, {} go", stays.get(), goes.get());
}

#[test]
fn a_removal_goes_on_without_the_host_that_began_it() {
    for step in 0..10u64 {
        with(200 + step, move |hosts| async move {
            hosts.make("v", 2).await;
            write(&hosts.node(GOES), "v", 0, 5).await;
            let other = hosts.other_copy("v").await;
            let by = (0..GOES).find(|&h| h != other).expect("more hosts");
            hosts.kill(GOES).await;
            let node = hosts.node(by);
            hosts.world(by).spawn(async move {
                let _ = node.remove_host(&node_config(GOES).name, LOST).await;
            });
            hosts.until("it begins", || hosts.has(&key::removed(host_id(GOES)))).await;
            hosts.wait(Nanos::from_ms(step * 70)).await;
            hosts.machines.kill(by, step % 2 == 0);
            hosts.until("its record goes", || !hosts.has(&key::host(host_id(GOES)))).await;
            hosts.machines.start(by);
            hosts.becomes_whole(other).await;
            assert_eq!(read(&hosts.node(other), "v", 0).await, 5);
        });
    }
}

/// What is looked at may be old by the time that the removal is written.
#[test]
fn a_removal_that_would_lose_the_last_copy_after_all_is_taken_back() {
    with(4, |hosts| async move {
        hosts.make("single", 1).await;
        write(&hosts.node(GOES), "single", 0, 9).await;
        let removed = RemovedRecord {
            version: RECORD_VERSION,
            name: node_config(GOES).name,
            incarnation: hosts.node(GOES).incarnation(),
            lost: true,
            at_ms: 1,
        };
        let own = key::removed(host_id(GOES));
        hosts.put(vec![KeyChange::Put(own.clone(), record::encode(&removed))]);
        hosts.until("it ends", || hosts.has_ended(GOES)).await;
        hosts.until("it is taken back", || !hosts.has(&own)).await;
        assert!((0..GOES).any(|host| hosts.said(host, "host-removal-taken-back")));
        hosts.machines.kill(GOES, false);
        hosts.machines.start(GOES);
        hosts.becomes_whole(0).await;
        assert_eq!(read(&hosts.node(0), "single", 0).await, 9);
    });
}

/// It sees neither the directory nor that it was removed: the others say so to it, and it serves
/// nobody.
#[test]
fn a_removed_host_that_does_not_see_the_directory_is_refused_by_all() {
    with(5, |hosts| async move {
        hosts.make("v", 2).await;
        write(&hosts.node(GOES), "v", 0, 1).await;
        let old = hosts.node(GOES).open("v").await.expect("opens");
        hosts.machines.isolate(GOES, true);
        hosts.wait(Nanos::from_secs(4)).await;
        assert!(hosts.remove(0, LOST).await.expect("removed").is_done);
        write(&hosts.node(0), "v", 0, 2).await;
        hosts.machines.isolate(GOES, false);
        hosts.machines.directory().set_cut(GOES, true);
        hosts.wait(Nanos::from_secs(10)).await;
        let reached = |host: u16| hosts.node(host).is_alive(host_id(GOES));
        assert!(!(0..GOES).any(reached) && !hosts.node(GOES).is_alive(host_id(0)));
        hosts.until("it is told", || hosts.said(GOES, "peer-refused")).await;
        assert!(!hosts.has_ended(GOES), "it has not seen the directory");
        let world = hosts.world(0);
        let stale =
            world.timeout_at(world.now() + Nanos::from_secs(60), old.read(0, BLOCK as u32)).await;
        assert!(!matches!(stale, Ok(Ok(_))), "it has read what it has no right to");
        hosts.machines.directory().set_cut(GOES, false);
        hosts.until("it ends", || hosts.has_ended(GOES)).await;
        hosts.becomes_whole(0).await;
        assert_eq!(read(&hosts.node(1), "v", 0).await, 2);
    });
}

/// While it cannot end, the health says for what it waits; it ends once that is back.
#[test]
fn a_removal_that_waits_is_told_and_ends_by_itself() {
    with(6, |hosts| async move {
        hosts.make("v", 2).await;
        let other = hosts.other_copy("v").await;
        let by = (0..GOES).find(|&h| h != other).expect("more hosts");
        hosts.kill(GOES).await;
        let node = hosts.node(by);
        let asked = async { node.remove_host(&node_config(GOES).name, LOST).await };
        let dies = async {
            hosts.until("it begins", || hosts.has(&key::removed(host_id(GOES)))).await;
            hosts.machines.kill(other, false);
        };
        let (removal, ()) = join(asked, dies).await;
        let removal = removal.expect("begun");
        if !removal.is_done {
            assert_eq!(removal.waits_for, ["v"]);
            let checks = hosts.node(by).facts().await.expect("read").checks();
            let told = checks.iter().find(|check| check.kind == CheckKind::HostLeaving);
            assert!(told.is_some_and(|check| check.message.contains("1 volumes")), "{checks:?}");
        }
        hosts.machines.start(other);
        hosts.until("its record goes", || !hosts.has(&key::host(host_id(GOES)))).await;
        hosts.becomes_whole(by).await;
    });
}

/// Another name, another interface, and addresses of which nobody answers at the preferred ones.
#[test]
fn a_host_that_comes_back_changed_is_found_and_io_goes_on() {
    with(7, |hosts| async move {
        hosts.make("v", 2).await;
        let load = Load::begin(&hosts, 0, "v");
        hosts.wait(Nanos::from_secs(1)).await;
        hosts.kill(GOES).await;
        let before = node_config(GOES);
        let nowhere = ["nowhere".to_owned(), "nowhere else".to_owned()];
        let peers = nowhere.into_iter().chain(before.peers).collect();
        let (name, api) = ("renamed".to_owned(), "elsewhere".to_owned());
        *hosts.changed.borrow_mut() = NodeConfig { name, api, peers, ..node_config(GOES) };
        hosts.machines.start(GOES);
        hosts.until("it is found", || hosts.node(0).is_alive(host_id(GOES))).await;
        hosts.becomes_whole(0).await;
        let known = hosts.node(1).hosts();
        let host = known.iter().find(|(h, ..)| h.id == host_id(GOES)).expect("it is known");
        assert_eq!((&*host.0.name, &*host.0.api, host.0.peers.len()), ("renamed", "elsewhere", 3));
        assert_eq!(known.len(), usize::from(GOES) + 1, "a host too many");
        let byte = load.end(&hosts).await;
        assert_eq!(read(&hosts.node(GOES), "v", 0).await, byte);
    });
}

/// Hosts know one level, but for one whose release knows fewer; its release is the present one
/// later, and then an older one again.
#[test]
fn the_level_is_raised_once_all_hosts_know_it_and_an_older_release_runs_no_more() {
    with(9, |hosts| async move {
        let newest = Levels::KNOWN.newest;
        let set_levels = |levels| hosts.changed.borrow_mut().levels = levels;
        let raise = async |dry_run| hosts.node(0).raise_level(dry_run).await;
        let at = |level: Level| (0..=GOES).all(|host| hosts.node(host).level() == level);
        let levels_of_goes = async || {
            let upgrade = hosts.node(0).upgrade().await.expect("told");
            let host = upgrade.hosts.into_iter().find(|host| host.host == host_id(GOES));
            host.map(|host| (host.levels, host.is_up))
        };
        assert!(at(newest), "a new cluster is at the newest level");
        assert_eq!(raise(false).await.expect("nothing to do").next, newest);
        // As it was before there were levels.
        (0..=GOES).for_each(|host| hosts.machines.kill(host, false));
        let record = hosts.value(key::CLUSTER);
        let mut record: ClusterRecord = record::decode(key::CLUSTER, &record).expect("written");
        record.level = Level::FIRST;
        hosts.put(vec![KeyChange::Put(key::CLUSTER.into(), record::encode(&record))]);
        set_levels(Levels::BEFORE);
        (0..=GOES).for_each(|host| hosts.machines.start(host));
        hosts.wait(Nanos::from_secs(10)).await;
        assert!(at(Level::FIRST));
        let is_held_back = |raised: Result<Upgrade, ManageError>| {
            let hosts = node_config(GOES).name;
            assert_eq!(raised, Err(ManageError::NotUpgraded { hosts, next: Level(2) }));
        };
        is_held_back(raise(false).await);
        assert_eq!(levels_of_goes().await, Some((Levels::BEFORE, true)));
        // It counts with what it knew when it last ran.
        hosts.kill(GOES).await;
        assert_eq!(levels_of_goes().await, Some((Levels::BEFORE, false)));
        is_held_back(raise(false).await);
        set_levels(Levels::KNOWN);
        hosts.machines.start(GOES);
        hosts.until("it is found", || hosts.node(0).is_alive(host_id(GOES))).await;
        assert_eq!(raise(true).await.expect("it could be").next, newest);
        hosts.wait(Nanos::from_secs(2)).await;
        assert!(at(Level::FIRST), "a dry run raises nothing");
        let upgrade = raise(false).await.expect("all know it");
        assert_eq!((upgrade.level, upgrade.next), (Level::FIRST, newest));
        hosts.until("all hear of it", || at(newest)).await;
        assert!(hosts.said(0, "level-raised"));
        // Read by hand, whether it was refused before or not: it never comes into the cluster.
        hosts.kill(GOES).await;
        let before = hosts.value(&key::host(host_id(GOES)));
        set_levels(Levels::BEFORE);
        hosts.machines.start(GOES);
        let node = loop {
            let running = hosts.nodes.borrow()[usize::from(GOES)].clone();
            if let Some((node, _)) = running {
                break node;
            }
            hosts.wait(Nanos::from_ms(1)).await;
        };
        assert_eq!(node.ended().await, Ended::Level(newest));
        assert_eq!(hosts.value(&key::host(host_id(GOES))), before, "it has published itself");
    });
}
