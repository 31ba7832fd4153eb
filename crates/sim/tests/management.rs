//! Management of a cluster in virtual time: what an administrator asks for is what happens, also
//! while a host is away. No load and no chance in here; those are the sweeps.

use atoll_format::id::{ClusterId, ComponentId, Epoch, HostId, Incarnation, ObjectId};
use atoll_format::level::Levels;
use atoll_format::record::{
    self, ClusterRecord, MemberState, ObjectState, PROMISED_LIMIT_PERCENT, Policy, RECORD_VERSION,
    key,
};
use atoll_node::{
    About, CheckKind, CreateVolume, EventMark, IDLE_MAX, JoinError, ManageError, Node, Outcome,
    Resize, Severity, TaskBook, TaskFacts, VolumeView, Work, check_host_name, export_name,
    find_or_found, merge_events,
};
use atoll_object::message::{Reply, Request};
use atoll_sim::cluster::{Storage, host_id, node_config};

use atoll_sim::disk::DiskProfile;
use atoll_sim::fault::DirectoryRates;
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::storage::RealStorage;
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_store::Store;
use atoll_world::components::ComponentSpec;
use atoll_world::directory::{KeyChange, Txn};
use atoll_world::volume::{VolumeInfo, Volumes};
use atoll_world::{Buf, Components, Nanos, Volume, World, buf};
use futures_util::future::{Either, join_all, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::rc::Rc;

const MIB: u64 = 1 << 20;
/// The longest test, in virtual time.
const TEST_MAX: Nanos = Nanos::from_secs(86_400);

type Host = Node<SimWorld, Store<SimWorld>>;

/// Hosts with real stores on modelled disks.
#[derive(Clone)]
struct Hosts {
    machines: Machines,
    nodes: Rc<RefCell<Vec<Option<Host>>>>,
    /// A host that starts without its disks, and whether they may come back: a new one will not.
    without_disks: Rc<Cell<Option<(u16, bool)>>>,
}

impl Hosts {
    fn new(count: u16) -> Self {
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
        let (storage, all) = (RealStorage::new(16 << 20), nodes.clone());
        let rigs = machines.clone();
        let without_disks = Rc::new(Cell::new(None));
        let lost = without_disks.clone();
        machines.set_boot(move |host, disks, world| {
            let (storage, all, inner) = (storage.clone(), all.clone(), world.clone());
            let rigs = rigs.clone();
            let lost = lost.get().filter(|(of, _)| *of == host);
            let kept = rigs.events(host).open(host_id(host));
            world.spawn(async move {
                let group = storage.open(host, 0, disks, inner.clone()).await.expect("opens");
                let mut groups = vec![group];
                if lost.is_some() {
                    groups.clear();
                }
                let life = rigs.begin_life(host, Incarnation(inner.random()));
                let node = Node::start(inner, node_config(host), life, groups, kept);
                node.objects()
                    .members()
                    .set_lacks_disks(lost.is_some_and(|(_, may_come_back)| may_come_back));
                all.borrow_mut()[usize::from(host)] = Some(node);
            });
        });
        let all = nodes.clone();
        machines.set_death(move |host| {
            if let Some(node) = all.borrow_mut()[usize::from(host)].take() {
                node.dissolve();
            }
        });
        Self { machines, nodes, without_disks }
    }

    fn node(&self, host: usize) -> Host {
        self.nodes.borrow()[host].clone().expect("runs")
    }

    async fn wait(&self, span: Nanos) {
        let executor = self.machines.executor();
        executor.sleep_until(executor.now() + span).await;
    }

    fn free(&self, host: usize) -> u64 {
        let stores = self.node(host).objects().members().stores();
        stores.iter().map(|store| store.space().free_bytes).sum()
    }

    /// Keys of the directory as it is.
    fn keys(&self, prefix: &str) -> Vec<String> {
        let listing = self.machines.directory().state().list(prefix).expect("a good prefix");
        listing.entries.into_iter().map(|entry| entry.key).collect()
    }

    /// Takes a volume's name away, and nothing else.
    fn unname(&self, name: &str) {
        let changes = vec![KeyChange::Delete(key::volume(name))];
        self.machines.directory().apply(&Txn { compares: vec![], changes }).expect("done");
    }

    /// Everything runs and knows everything.
    async fn up(&self) {
        let cluster = ClusterRecord {
            version: RECORD_VERSION,
            id: ClusterId(1),
            name: "test".into(),
            repair_delay_s: 3600,
            resync_floor_bytes: 0,
            promised_limit_percent: PROMISED_LIMIT_PERCENT,
            level: Levels::KNOWN.newest,
        };
        let changes = vec![KeyChange::Put(key::CLUSTER.into(), record::encode(&cluster))];
        self.machines.directory().apply(&Txn { compares: vec![], changes }).expect("done");
        (0..self.machines.hosts()).for_each(|host| self.machines.start(host));
        self.wait(Nanos::from_secs(10)).await;
    }

    /// Cuts what two hosts say to each other, or lets it through again.
    fn cut(&self, a: u16, b: u16, cut: bool) {
        self.machines.fabric().set_cut(a, b, cut);
        self.machines.fabric().set_cut(b, a, cut);
    }

    /// Kills a host, and lets the others notice.
    async fn kill(&self, host: u16) {
        self.machines.kill(host, false);
        self.wait(Nanos::from_secs(3)).await;
    }
}

async fn try_volume(node: &Host, name: &str, size_bytes: u64) -> Result<VolumeView, ManageError> {
    let name = name.to_owned();
    node.create_volume(CreateVolume {
        name,
        size_bytes,
        policy: None,
        prefer: None,
        dry_run: false,
    })
    .await
}

/// Runs a test in a cluster that is up.
fn with<F: Future<Output = ()> + 'static>(count: u16, test: impl FnOnce(Hosts) -> F + 'static) {
    let hosts = Hosts::new(count);
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

async fn make(node: &Host, name: &str, size_bytes: u64) -> ObjectId {
    try_volume(node, name, size_bytes).await.expect("made").record.id
}

/// To that size, whether that is more or less.
async fn resize(node: &Host, name: &str, size_bytes: u64) -> Result<VolumeView, ManageError> {
    let resize = Resize { size_bytes, may_shrink: true, dry_run: false };
    node.resize_volume(name, resize, None).await
}

async fn write(node: &Host, name: &str, at: u64, byte: u8) {
    let volume = node.open(name).await.expect("opens");
    volume.write(at, vec![Buf::copy_from(&[byte; 4096])]).await.expect("written");
}

/// The host that has the volume's other copy, beside the first host.
async fn other_copy(node: &Host, name: &str) -> u16 {
    let view = node.volume(name).await.expect("there");
    let other = view.record.members().map(|(_, m)| m.host).find(|&host| host != host_id(0));
    (other.expect("two copies").0 - host_id(0).0) as u16
}

/// What every byte of that block is.
async fn read(node: &Host, name: &str, at: u64) -> u8 {
    let volume = node.open(name).await.expect("opens");
    let bytes = buf::join(&volume.read(at, 4096).await.expect("read"));
    assert!(bytes.iter().all(|&byte| byte == bytes[0]));
    bytes[0]
}

/// What a host says of its space comes every two seconds; nobody who makes a volume waits for it.
#[test]
fn a_volume_is_made_as_soon_as_the_hosts_for_it_are_there() {
    with(2, |hosts| async move {
        let node = hosts.node(0);
        hosts.kill(1).await;
        hosts.wait(Nanos::from_secs(60)).await;
        hosts.machines.start(1);
        while !node.hosts().iter().all(|(_, alive, _)| *alive) {
            hosts.wait(Nanos::from_ms(1)).await;
        }
        assert!(node.hosts().iter().any(|(_, _, status)| status.is_none()), "all is known already");
        make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
    });
}

#[test]
fn a_volume_that_was_shrunk_grows_again_and_shows_zeros() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 10 * MIB).await;
        // An owner that lives, on another host than the one that is asked below.
        write(&hosts.node(1), "v", MIB, 1).await;
        write(&hosts.node(1), "v", 7 * MIB, 2).await;
        let size = async |bytes| {
            let done = resize(&node, "v", bytes).await.expect("resized");
            assert_eq!(done.record.size_bytes, bytes);
            let open = hosts.node(2).open("v").await.expect("opens");
            let info = VolumeInfo {
                size_bytes: bytes,
                min_block: 512,
                preferred_block: 4096,
                max_len: 32 << 20,
                read_only: false,
            };
            assert_eq!(open.info(), info);
        };
        size(5 * MIB).await;
        size(8 * MIB).await;
        assert_eq!(read(&node, "v", 7 * MIB).await, 0);
        write(&node, "v", 8 * MIB - 4096, 3).await;
        size(10 * MIB).await;
        for (at, byte) in [(MIB, 1), (7 * MIB, 0), (8 * MIB - 4096, 3), (10 * MIB - 4096, 0)] {
            assert_eq!(read(&node, "v", at).await, byte, "at {at}");
        }
        write(&node, "v", 10 * MIB - 4096, 4).await;
        size(12 * MIB).await;
        assert_eq!(read(&node, "v", 10 * MIB - 4096).await, 4);
    });
}

/// A volume of 10 MiB with a block at 7 MiB, shrunk to 5 MiB; and the host of its second copy,
/// whose disk was put back as before that, with the block, and which has been brought up to date.
async fn shrunk_with_an_old_copy(hosts: &Hosts, node: &Host) -> u16 {
    make(node, "v", 10 * MIB).await;
    write(node, "v", MIB, 9).await;
    write(node, "v", 7 * MIB, 2).await;
    let other = other_copy(node, "v").await;
    // At home, not in the log.
    hosts.wait(Nanos::from_secs(30)).await;
    let disk = hosts.machines.disks(other)[0].clone();
    let before = disk.image();
    resize(node, "v", 5 * MIB).await.expect("shrunk");
    hosts.kill(other).await;
    disk.restore(before);
    write(node, "v", MIB, 1).await;
    hosts.machines.start(other);
    hosts.wait(Nanos::from_secs(60)).await;
    other
}

/// What a volume of 10 MiB shows when only that copy of it is left.
async fn shows_what_was_written_since(hosts: &Hosts, other: u16, byte: u8) {
    hosts.kill(0).await;
    let left = hosts.node(usize::from(other));
    assert_eq!(read(&left, "v", MIB).await, byte);
    assert_eq!(read(&left, "v", 7 * MIB).await, 0);
}

#[test]
fn what_an_old_copy_kept_beyond_the_end_takes_no_space() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        let other = shrunk_with_an_old_copy(&hosts, &node).await;
        let used = |host: u16| {
            let stores = hosts.node(usize::from(host)).objects().members().stores();
            stores.iter().flat_map(|s| s.list()).map(|c| c.used_bytes).sum::<u64>()
        };
        assert_eq!((used(0), used(other)), (MIB, MIB));
    });
}

#[test]
fn what_an_old_copy_kept_beyond_the_end_is_not_shown_when_the_volume_grows() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        let other = shrunk_with_an_old_copy(&hosts, &node).await;
        resize(&node, "v", 10 * MIB).await.expect("grown");
        assert_eq!(read(&node, "v", 7 * MIB).await, 0);
        shows_what_was_written_since(&hosts, other, 1).await;
    });
}

/// The copy without it is not there to say so: the old one is all there is, and the other one is
/// made like it.
#[test]
fn what_the_only_copy_kept_beyond_the_end_is_not_shown_when_the_volume_grows() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 10 * MIB).await;
        write(&node, "v", 7 * MIB, 2).await;
        let other = other_copy(&node, "v").await;
        hosts.wait(Nanos::from_secs(30)).await;
        let disk = hosts.machines.disks(other)[0].clone();
        let before = disk.image();
        resize(&node, "v", 5 * MIB).await.expect("shrunk");
        hosts.machines.kill(other, false);
        hosts.machines.kill(0, false);
        disk.restore(before);
        hosts.machines.start(other);
        hosts.wait(Nanos::from_secs(20)).await;
        write(&hosts.node(usize::from(other)), "v", MIB, 3).await;
        hosts.machines.start(0);
        hosts.wait(Nanos::from_secs(60)).await;
        let node = hosts.node(0);
        resize(&node, "v", 10 * MIB).await.expect("grown");
        assert_eq!(read(&node, "v", 7 * MIB).await, 0);
        assert_eq!(read(&node, "v", MIB).await, 3);
    });
}

/// That copy is left out once more when the volume grows.
#[test]
fn a_volume_does_not_grow_over_what_a_copy_keeps_that_is_left_out() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        let other = shrunk_with_an_old_copy(&hosts, &node).await;
        // Left out without a restart: its host answers as soon as it is reached again.
        let cut = |cut| {
            hosts.cut(0, other, cut);
        };
        cut(true);
        hosts.wait(Nanos::from_secs(10)).await;
        write(&node, "v", MIB, 3).await;
        cut(false);
        let mut tries = 0;
        while let Err(why) = resize(&node, "v", 10 * MIB).await {
            let why = why.to_string();
            let is_left_out = why.contains("when all copies are") || why.contains("is down");
            assert!(is_left_out, "{why}");
            hosts.wait(Nanos::from_ms(5)).await;
            tries += 1;
            assert!(tries < 10_000, "{why}");
        }
        assert!(tries > 0, "it was not left out");
        hosts.wait(Nanos::from_secs(30)).await;
        shows_what_was_written_since(&hosts, other, 3).await;
    });
}

/// Who asks for one extent at a time of a large range does not make all of it be looked at.
#[test]
fn extents_are_looked_for_as_far_as_they_are_asked_for() {
    with(2, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 40 * MIB).await;
        for chunk in 0..40 {
            write(&node, "v", chunk * MIB + 8_192, 1).await;
        }
        let volume = node.open("v").await.expect("opens");
        let covered = async |at, most| {
            let extents = volume.extents(at, 40 * MIB - at, most).await.expect("known");
            extents.iter().map(|extent| extent.len).sum::<u64>()
        };
        assert_eq!(covered(0, 1).await, MIB);
        assert_eq!(covered(5 * MIB + 8_192, 1).await, MIB - 8_192);
        assert_eq!(covered(0, 1_000).await, 40 * MIB);
        // One extent over many strips is one.
        volume.discard(0, 40 * MIB).await.expect("discarded");
        assert_eq!(covered(0, 1).await, 40 * MIB);
    });
}

/// I/Os a second of clients on every host, each of which keeps `depth` of them in flight.
async fn rate(hosts: &Hosts, name: &str, clients: usize, depth: usize) -> Vec<u64> {
    let seconds = 4;
    let executor = hosts.machines.executor().clone();
    let until = executor.now() + Nanos::from_secs(seconds);
    let client = async |n: usize| {
        let volume = hosts.node(n % 3).open(name).await.expect("opens");
        let (volume, until, executor) = (&volume, until, &executor);
        let one = |_| async move {
            let mut done = 0;
            loop {
                volume.read(0, 4096).await.expect("read");
                if executor.now() > until {
                    return done;
                }
                done += 1;
            }
        };
        join_all((0..depth).map(one)).await.iter().sum::<u64>() / seconds
    };
    join_all((0..clients).map(client)).await
}

/// Four clients on three hosts get together what one would get, each its share, whatever its depth;
/// a ceiling that is set while they run holds for all of them within seconds, also after another
/// host has taken over.
#[test]
fn a_ceiling_is_the_volumes_and_may_be_changed_while_it_is_used() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
        let is_about = |rates: &[u64], limit: u64| {
            let all: u64 = rates.iter().sum();
            assert!(all * 10 > limit * 9 && all * 10 < limit * 11, "{rates:?} under {limit}");
            let share = limit / rates.len() as u64;
            let fair = rates.iter().all(|rate| rate * 10 > share * 8 && rate * 10 < share * 12);
            assert!(fair, "{rates:?} under {limit}");
        };
        let free: u64 = rate(&hosts, "v", 4, 4).await.iter().sum();
        assert!(free > 10_000, "{free} without a ceiling");
        node.limit_iops("v", 1_000, None, false).await.expect("set");
        is_about(&rate(&hosts, "v", 4, 16).await, 1_000);
        is_about(&rate(&hosts, "v", 1, 1).await, 1_000);
        is_about(&rate(&hosts, "v", 4, 16).await, 1_000);

        // Handles that were opened before: without one, and with another one.
        let early = hosts.node(1).open("v").await.expect("opens");
        let reads = async |span| {
            let executor = hosts.machines.executor().clone();
            let (until, mut done) = (executor.now() + Nanos::from_secs(span), 0);
            while executor.now() < until {
                early.read(0, 4096).await.expect("read");
                done += 1;
            }
            done / span
        };
        node.limit_iops("v", 50, None, false).await.expect("set");
        reads(1).await;
        assert!((45..=55).contains(&reads(4).await), "the new ceiling");
        node.limit_iops("v", 0, None, false).await.expect("set");
        reads(1).await;
        assert!(reads(1).await > 1_000, "no ceiling any more");
        node.limit_iops("v", 50, None, false).await.expect("set");
        reads(6).await;
        assert!((45..=55).contains(&reads(4).await), "a ceiling, of which it had to learn");

        // The record keeps it.
        let view = node.volume("v").await.expect("there");
        let owner = view.record.owner.expect("one").host;
        hosts.kill((owner.0 - host_id(0).0) as u16).await;
        let left = (0..3).find(|n| host_id(*n) != owner).expect("two are left");
        let volume = hosts.node(usize::from(left)).open("v").await.expect("opens");
        volume.read(0, 4096).await.expect("taken over");
        let view = hosts.node(usize::from(left)).volume("v").await.expect("there");
        assert_eq!(view.record.policy.iops_limit, 50);
        let bad = hosts.node(usize::from(left)).limit_iops("w", 1, None, false).await;
        assert!(matches!(bad, Err(ManageError::NotFound { .. })), "{bad:?}");
    });
}

/// What was seen of a volume before it grew is not all that there is to discard.
#[test]
fn a_volume_is_not_shrunk_by_a_view_of_before() {
    with(2, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 3 * MIB).await;
        let (mut done, mut refused) = (0, 0);
        for _ in 0..30 {
            resize(&node, "v", 6 * MIB).await.expect("grown");
            write(&node, "v", 5 * MIB, 1).await;
            let directory = hosts.machines.directory();
            directory.set_rates(DirectoryRates { stale: 500_000, ..DirectoryRates::default() });
            let shrunk = resize(&node, "v", MIB).await;
            directory.set_rates(DirectoryRates::default());
            let size = node.volume("v").await.expect("there").record.size_bytes;
            if size == MIB {
                done += 1;
                for store in (0..2).flat_map(|h| hosts.node(h).objects().members().stores()) {
                    let id = store.list()[0].id;
                    let tags = store.tags(id, 5).await.expect("read");
                    assert!(tags.iter().all(|tag| tag.state.reads_as_zero()), "kept");
                }
            } else {
                let why = shrunk.expect_err("it has its size");
                if !matches!(why, ManageError::Conflict(_)) {
                    // Cut off behind the discards, by a view that shows no owner: to be repeated.
                    continue;
                }
                assert_eq!((size, read(&node, "v", 5 * MIB).await), (6 * MIB, 1));
                refused += 1;
            }
        }
        assert!(done > 0 && refused > 0, "{done} {refused}");
    });
}

#[test]
fn a_volume_is_not_shrunk_while_a_copy_is_behind() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 10 * MIB).await;
        write(&node, "v", 7 * MIB, 2).await;
        let away = other_copy(&node, "v").await;
        hosts.kill(away).await;
        write(&node, "v", MIB, 1).await;
        // Longer than its clients count as clients.
        hosts.wait(Nanos::from_secs(60)).await;
        let refused = resize(&node, "v", 5 * MIB).await.expect_err("refused");
        assert!(refused.to_string().contains("is not up to date"), "{refused}");
        assert_eq!(node.volume("v").await.expect("there").record.size_bytes, 10 * MIB);
        hosts.machines.start(away);
        hosts.wait(Nanos::from_secs(30)).await;
        resize(&node, "v", 5 * MIB).await.expect("all copies are up");
        resize(&node, "v", 10 * MIB).await.expect("grown");
        assert_eq!(read(&node, "v", 7 * MIB).await, 0);
    });
}

#[test]
fn a_volume_that_an_unreachable_host_may_use_is_not_deleted() {
    with(3, |hosts| async move {
        let (node, other) = (hosts.node(0), hosts.node(1));
        for name in ["v", "w", "x"] {
            make(&node, name, MIB).await;
        }
        write(&node, "v", 0, 1).await;
        let user = other.open("v").await.expect("opens");
        let refused = node.delete_volume("v", None, false, false).await.expect_err("in use");
        assert!(matches!(refused, ManageError::InUse { .. }), "{refused}");
        // One side hears nothing of it, the other does: its client goes on.
        hosts.cut(0, 1, true);
        hosts.wait(Nanos::from_secs(60)).await;
        let refused = node.delete_volume("v", None, false, false).await.expect_err("perhaps");
        let says = refused.to_string();
        assert!(says.contains("may be in use on host h1") && says.contains("h2 reaches"), "{says}");
        hosts.cut(0, 1, false);
        hosts.wait(Nanos::from_secs(10)).await;
        drop(user);
        write(&other, "w", 0, 1).await;
        hosts.kill(1).await;
        for force in [false, true] {
            let refused = resize(&node, "w", 4096).await.expect_err("perhaps");
            assert!(matches!(refused, ManageError::MayBeInUse { .. }), "{refused}");
            let deleted = node.delete_volume("x", None, force, false).await;
            assert_eq!(deleted.is_ok(), force, "{deleted:?}");
        }
        hosts.wait(Nanos::from_secs(35)).await;
        // Away for longer than any I/O is held: a dead host does not keep volumes for ever. Of w
        // it was the owner, and is fenced off first.
        for name in ["v", "w"] {
            node.delete_volume(name, None, false, false).await.expect("deleted");
        }
    });
}

/// Connections that broke are not there again in the moment in which they can be.
#[test]
fn a_host_that_can_be_reached_again_is_asked_again_before_anything_is_refused() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
        hosts.cut(0, 1, true);
        hosts.wait(Nanos::from_secs(60)).await;
        let refused = node.delete_volume("v", None, false, false).await.expect_err("perhaps");
        assert!(refused.to_string().contains("h2 reaches it"), "{refused}");
        hosts.cut(0, 1, false);
        node.delete_volume("v", None, false, false).await.expect("h1 says that nobody uses it");
    });
}

/// A host that was paused has lost its connections to all the others.
#[test]
fn a_host_that_nobody_reached_a_moment_ago_is_asked_again_before_anything_is_refused() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", MIB).await;
        let cut = |cut| {
            for other in [0, 2] {
                hosts.cut(other, 1, cut);
            }
        };
        cut(true);
        hosts.wait(Nanos::from_secs(8)).await;
        let refused = node.delete_volume("v", None, false, false).await.expect_err("perhaps");
        assert!(refused.to_string().contains("try again in"), "{refused}");
        cut(false);
        node.delete_volume("v", None, false, false).await.expect("h2 says that nobody uses it");
    });
}

#[test]
fn every_group_is_scrubbed_by_itself_within_the_interval_and_again() {
    with(2, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 6 * MIB).await;
        write(&node, "v", MIB, 1).await;
        let every = Nanos::from_secs(7_200);
        node.schedule_scrubs(every, 1 << 20);
        hosts.node(1).schedule_scrubs(Nanos::ZERO, 1 << 20);
        let progress = async |host: usize| {
            let stores = hosts.node(host).objects().members().stores();
            stores[0].scrub_progress()
        };
        hosts.wait(every + Nanos::from_secs(120)).await;
        let first = progress(0).await;
        assert!(first.whole && first.blocks_checked == 1, "{first:?}");
        assert_eq!(progress(1).await.began, None, "0 is never");
        hosts.wait(every + Nanos::from_secs(120)).await;
        let second = progress(0).await;
        assert!(second.began > first.ended && second.whole, "{second:?}");
        assert!(second.began.expect("begun").since(first.ended.expect("ended")) >= every);
        // A pass that is stopped is not begun again at once.
        write(&node, "v", 2 * MIB, 1).await;
        let store = node.objects().members().stores()[0].clone();
        store.scrub(None, 4096);
        store.scrub(None, 0);
        hosts.wait(every / 2).await;
        assert!(!progress(0).await.whole, "stopped");
    });
}

#[test]
fn a_scrub_of_a_volume_looks_at_all_its_components() {
    with(2, |hosts| async move {
        let node = hosts.node(0);
        let wide = Policy { stripe_width: 3, ..Policy::DEFAULT };
        node.create_policy("wide", wide).await.expect("made");
        let create = CreateVolume {
            name: "v".into(),
            size_bytes: 6 * MIB,
            policy: Some("wide".into()),
            prefer: None,
            dry_run: false,
        };
        node.create_volume(create).await.expect("made");
        make(&node, "other", 6 * MIB).await;
        for strip in 0..6 {
            write(&node, "v", strip * MIB, 1).await;
            write(&node, "other", strip * MIB, 1).await;
        }
        node.scrub(Some("v"), 1 << 30).await.expect("begun");
        hosts.wait(Nanos::from_secs(2)).await;
        for host in 0..2 {
            let stores = hosts.node(host).objects().members().stores();
            let progress = stores[0].scrub_progress();
            assert!(progress.idle && progress.blocks_checked == 6, "h{host}: {progress:?}");
            assert_eq!(hosts.node(host).host_status().groups[0].components, 4);
        }
    });
}

/// Whoever locks a volume hears of its clients, or they of the lock.
#[test]
fn a_volume_that_is_locked_for_an_import_is_opened_by_its_holder_alone() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 4 * MIB).await;
        write(&hosts.node(1), "v", MIB, 1).await;
        let user = hosts.node(2).open("v").await.expect("opens");
        let refused = node.lock_for_import("v", true, 0, false).await.expect_err("in use");
        assert!(matches!(refused, ManageError::InUse { .. }), "{refused}");
        drop(user);
        // Written a moment ago, and no figure of space shows it yet: the owner is asked.
        let refused = node.lock_for_import("v", false, 0, false).await.expect_err("holds data");
        assert!(matches!(refused, ManageError::HoldsData { .. }), "{refused}");
        assert_eq!(read(&node, "v", MIB).await, 1);
        let small = node.lock_for_import("v", true, 5 * MIB, false).await.expect_err("too small");
        assert!(matches!(small, ManageError::TooSmall { .. }), "{small}");
        let lock = node.lock_for_import("v", true, MIB, false).await.expect("locked");
        for host in 0..3 {
            let node = hosts.node(host);
            for name in ["v", &export_name("v", lock.token ^ 1), &export_name("w", lock.token)] {
                assert!(node.open(name).await.is_err(), "opened as {name} on host {host}");
            }
            let other = node.lock_for_import("v", true, 0, false).await.expect_err("locked");
            assert!(matches!(other, ManageError::Locked { .. }), "{other}");
            let other = node.delete_volume("v", None, true, false).await.expect_err("locked");
            assert!(matches!(other, ManageError::Locked { .. }), "{other}");
        }
        // What it held is gone, also behind the end of a smaller image.
        assert_eq!(read(&node, &lock.export, MIB).await, 0);
        write(&node, &lock.export, 0, 7).await;
        node.unlock_import("v", lock.token).await.expect("given back");
        assert_eq!(read(&hosts.node(2), "v", 0).await, 7);
        assert!(node.open(&lock.export).await.is_err(), "the export is still there");
        node.delete_volume("v", None, false, false).await.expect("deleted");
    });
}

/// Nobody is left to give the lock back.
#[test]
fn an_import_that_nobody_goes_on_with_does_not_keep_its_volume() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", MIB).await;
        let lock = node.lock_for_import("v", false, 0, false).await.expect("empty");
        let client = node.open(&lock.export).await.expect("opens");
        // Idle for as long as it likes while its client is there.
        hosts.wait(IDLE_MAX * 3).await;
        assert!(hosts.node(1).open("v").await.is_err(), "opened beside an import");
        drop(client);
        hosts.wait(IDLE_MAX + Nanos::from_secs(10)).await;
        write(&hosts.node(1), "v", 0, 1).await;
        assert!(node.open(&lock.export).await.is_err(), "the export is still there");
        // And the whole host goes.
        let lock = hosts.node(2).lock_for_import("v", true, 0, false).await.expect("locked");
        hosts.kill(2).await;
        assert!(node.open("v").await.is_err(), "opened though its holder may be alive");
        hosts.machines.start(2);
        hosts.wait(Nanos::from_secs(10)).await;
        write(&node, "v", 0, 2).await;
        assert!(hosts.node(2).open(&lock.export).await.is_err(), "the export outlived its host");
        // Or never comes back.
        hosts.node(2).lock_for_import("v", true, 0, false).await.expect("locked");
        hosts.kill(2).await;
        hosts.wait(Nanos::from_secs(60)).await;
        write(&node, "v", 0, 3).await;
    });
}

/// A discard of what was never written is an operation that no copy shows.
#[test]
fn a_copy_that_was_brought_up_to_date_with_a_discard_lacks_nothing_at_the_next_takeover() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 8 * MIB).await;
        write(&node, "v", 0, 1).await;
        let away = other_copy(&node, "v").await;
        let third = usize::from(3 - away);
        hosts.kill(away).await;
        write(&node, "v", 0, 2).await;
        let volume = node.open("v").await.expect("opens");
        volume.discard(4 * MIB, MIB).await.expect("discarded");
        hosts.machines.start(away);
        hosts.wait(Nanos::from_secs(30)).await;
        volume.flush().await.expect("flushed");
        hosts.wait(Nanos::from_secs(5)).await;
        hosts.kill(0).await;
        assert_eq!(read(&hosts.node(third), "v", 0).await, 2);
        hosts.wait(Nanos::from_secs(5)).await;
        let at = [third, usize::from(away)];
        let told = at.map(|h| hosts.node(h).local_events(EventMark::default(), 10_000));
        let told: Vec<_> = told.iter().flatten().map(|e| &e.kind[..]).collect();
        assert!(told.contains(&"took-over") && !told.contains(&"writes-lost"), "{told:?}");
    });
}

/// A host that one other cannot reach is not away: what it has locked stays locked.
#[test]
fn a_lock_of_a_host_that_another_one_reaches_stays() {
    with(3, |hosts| async move {
        make(&hosts.node(0), "v", MIB).await;
        let lock = hosts.node(2).lock_for_import("v", false, 0, false).await.expect("empty");
        let client = hosts.node(2).open(&lock.export).await.expect("opens");
        // The first host is the one that removes what is left over.
        hosts.cut(0, 2, true);
        hosts.wait(Nanos::from_secs(90)).await;
        let refused = hosts.node(0).delete_volume("v", None, false, false).await;
        assert!(matches!(refused, Err(ManageError::Locked { .. })), "{refused:?}");
        assert!(hosts.node(1).open("v").await.is_err(), "opened beside an import");
        drop(client);
    });
}

/// Nor is every other host away for one that can reach nobody but the directory.
#[test]
fn a_host_that_reaches_nobody_takes_no_locks_away() {
    with(3, |hosts| async move {
        make(&hosts.node(0), "v", MIB).await;
        let lock = hosts.node(2).lock_for_import("v", false, 0, false).await.expect("empty");
        let client = hosts.node(2).open(&lock.export).await.expect("opens");
        for other in [1, 2] {
            hosts.cut(0, other, true);
        }
        hosts.wait(Nanos::from_secs(90)).await;
        let refused = hosts.node(1).open("v").await.map(|_| ()).expect_err("locked");
        assert!(refused.to_string().contains("import"), "{refused}");
        drop(client);
    });
}

/// An owner that stands still carries nothing out later that was given up meanwhile.
#[test]
fn a_shrink_without_an_answer_is_not_carried_out_later() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", 8 * MIB).await;
        write(&hosts.node(1), "v", MIB, 1).await;
        for (round, stall) in (0..20).map(|n| (n, Nanos::from_ms(5 * n))) {
            let name = format!("s{round}");
            make(&hosts.node(1), &name, 8 * MIB).await;
            write(&hosts.node(1), &name, 6 * MIB, 1).await;
            hosts.wait(Nanos::from_secs(3)).await;
            let shrink = {
                let (node, name) = (node.clone(), name.clone());
                async move { resize(&node, &name, 4 * MIB).await }
            };
            let pause = {
                let hosts = hosts.clone();
                async move {
                    hosts.wait(stall).await;
                    hosts.machines.pause(1);
                    hosts.wait(Nanos::from_secs(4)).await;
                }
            };
            let (shrunk, ()) = futures_util::future::join(shrink, pause).await;
            let size = node.volume(&name).await.expect("there").record.size_bytes;
            match &shrunk {
                Ok(view) => assert_eq!(view.record.size_bytes, 4 * MIB),
                Err(ManageError::Unknown(_) | ManageError::NoAnswer(_)) => {}
                Err(_) => assert_eq!(size, 8 * MIB, "{shrunk:?}, and it was done"),
            }
            hosts.machines.resume(1);
            hosts.wait(Nanos::from_secs(20)).await;
            let now = node.volume(&name).await.expect("there").record.size_bytes;
            if !matches!(shrunk, Err(ManageError::Unknown(_))) {
                assert_eq!(now, size, "{shrunk:?}, and done later");
            }
            if now == 8 * MIB {
                write(&node, &name, 6 * MIB, 9).await;
                hosts.wait(Nanos::from_secs(20)).await;
                assert_eq!(read(&hosts.node(2), &name, 6 * MIB).await, 9);
            }
            hosts.wait(Nanos::from_secs(10)).await;
            node.delete_volume(&name, None, false, false).await.expect("deleted");
        }
    });
}

/// The first attempt to take a lock was taken for lost, the second one took it, and it was given
/// back: then the first one arrives. Its host lives, and is not the one that tidies for others.
#[test]
fn a_lock_that_is_taken_late_goes_again() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        let id = make(&node, "v", 8 * MIB).await;
        let holder = hosts.node(2);
        let lock = holder.lock_for_import("v", false, 0, false).await.expect("locked");
        let late =
            hosts.machines.directory().state().list(&key::lock(id)).expect("a good prefix").entries;
        holder.unlock_import("v", lock.token).await.expect("free");
        let changes = late.into_iter().map(|e| KeyChange::Put(e.key, e.value)).collect();
        hosts.machines.directory().apply(&Txn { compares: vec![], changes }).expect("done");
        let deleted = node.delete_volume("v", None, false, false).await;
        assert!(matches!(deleted, Err(ManageError::Locked { .. })), "{deleted:?}");
        hosts.wait(Nanos::from_secs(12)).await;
        node.delete_volume("v", None, false, false).await.expect("free again");
    });
}

/// Who makes a volume and who deletes one of that name do not meet by accident.
#[test]
fn volumes_that_are_made_and_deleted_by_several_hosts_leave_nothing_behind() {
    with(3, |hosts| async move {
        let before: Vec<u64> = (0..3).map(|h| hosts.free(h)).collect();
        let work = (0..6).map(|n: usize| {
            let hosts = hosts.clone();
            async move {
                for round in 0..40u64 {
                    let node = hosts.node(n % 3);
                    hosts.wait(Nanos::from_us((round * 7 + n as u64 * 13) * 997 % 5_000)).await;
                    let create = CreateVolume {
                        name: "x".into(),
                        size_bytes: MIB,
                        policy: None,
                        prefer: None,
                        dry_run: false,
                    };
                    match (n + round as usize) % 2 {
                        0 => match node.create_volume(create).await {
                            Ok(view) => assert_eq!(view.name, "x"),
                            Err(ManageError::Exists { .. } | ManageError::Conflict(_)) => {}
                            Err(other) => panic!("create: {other}"),
                        },
                        _ => match node.delete_volume("x", None, false, false).await {
                            Ok(())
                            | Err(
                                ManageError::NotFound { .. }
                                | ManageError::Conflict(_)
                                | ManageError::Locked { .. }
                                | ManageError::InUse { .. },
                            ) => {}
                            Err(other) => panic!("delete: {other}"),
                        },
                    }
                }
            }
        });
        join_all(work).await;
        hosts.wait(Nanos::from_secs(20)).await;
        let node = hosts.node(1);
        if node.volume("x").await.is_ok() {
            node.delete_volume("x", None, false, false).await.expect("deleted");
        }
        hosts.wait(Nanos::from_secs(20)).await;
        let keys = hosts.keys("objects/");
        assert!(keys.is_empty(), "left over: {keys:?}");
        assert!(hosts.keys("locks/").is_empty());
        for (host, &before) in before.iter().enumerate() {
            assert!(hosts.node(host).objects().members().components().is_empty());
            assert_eq!(hosts.free(host), before, "space of host {host}");
        }
    });
}

/// As releases before left them: no name leads there, so nobody can delete it.
#[test]
fn an_object_without_a_name_is_found_told_and_removed() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        let id = make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
        let kept = make(&node, "w", MIB).await;
        hosts.unname("v");
        // A new volume has the name by now.
        let new = make(&hosts.node(2), "v", MIB).await;
        hosts.wait(Nanos::from_secs(120)).await;
        let left = hosts.keys("objects/");
        assert_eq!(left.len(), 2, "{left:?}");
        assert!(
            left.iter()
                .all(|key| key.ends_with(&kept.to_string()) || key.ends_with(&new.to_string()))
        );
        let told = (0..3).flat_map(|h| hosts.node(h).local_events(EventMark::default(), 10_000));
        assert!(
            told.into_iter().any(|e| e.kind == "object-without-a-name" && e.object == Some(id))
        );
    });
}

/// A host that has said that it goes has no clients: nobody waits until it may have none.
#[test]
fn a_host_that_stopped_in_order_does_not_keep_volumes() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        for name in ["v", "w"] {
            make(&node, name, MIB).await;
            write(&hosts.node(2), name, 0, 1).await;
        }
        hosts.node(2).stop().await;
        hosts.kill(2).await;
        let began = hosts.machines.executor().now();
        node.delete_volume("v", None, false, false).await.expect("deleted");
        let took = hosts.machines.executor().now().since(began);
        assert!(took < Nanos::from_secs(2), "it was waited for: {took}");
        // It is there again, and dies without a word.
        assert_eq!(hosts.keys("stopped/").len(), 1);
        hosts.machines.start(2);
        hosts.wait(Nanos::from_secs(10)).await;
        hosts.node(2).arrive().await;
        assert!(hosts.keys("stopped/").is_empty());
        hosts.kill(2).await;
        let refused = node.delete_volume("w", None, false, false).await.expect_err("perhaps");
        assert!(matches!(refused, ManageError::MayBeInUse { .. }), "{refused}");
    });
}

/// A disk that cannot be used now may come back, and what was on it is waited for.
#[test]
fn copies_on_a_disk_that_is_missing_are_waited_for() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
        let other = other_copy(&node, "v").await;
        hosts.without_disks.set(Some((other, true)));
        hosts.kill(other).await;
        hosts.machines.start(other);
        write(&node, "v", 0, 2).await;
        hosts.wait(Nanos::from_secs(120)).await;
        let record = node.volume("v").await.expect("there").record;
        let lost = record
            .members()
            .any(|(_, m)| matches!(m.state, MemberState::Absent { lost: true, .. }));
        assert!(!lost && record.members().count() == 2, "rebuilt at once: {record:?}");
    });
}

/// What nobody uses is looked after too: the loss of a copy does not wait for the next client.
#[test]
fn a_disk_that_is_a_new_one_is_noticed_though_nobody_uses_its_volumes() {
    for owns in [true, false] {
        with(3, move |hosts| async move {
            let id = make(&hosts.node(0), "v", MIB).await;
            write(&hosts.node(0), "v", 0, 1).await;
            let other = other_copy(&hosts.node(0), "v").await;
            let lost = if owns { 0 } else { other };
            let group = hosts.node(usize::from(lost)).objects().members().stores()[0].group();
            hosts.without_disks.set(Some((lost, false)));
            hosts.kill(lost).await;
            hosts.machines.start(lost);
            hosts.wait(Nanos::from_secs(60)).await;
            let witness = hosts.node(usize::from(if owns { other } else { 0 }));
            let record = witness.volume("v").await.expect("there").record;
            assert_eq!(record.id, id);
            let whole = record.members().filter(|(_, m)| m.state.is_active());
            assert!(record.members().all(|(_, m)| m.group != group), "{owns}: {record:?}");
            assert_eq!(whole.count(), 2, "{owns}: {record:?}");
            assert_eq!(read(&witness, "v", 0).await, 1);
        });
    }
}

/// A disk that was put back, or swapped, may have a copy that no record names any more, with a
/// promise to an owner that never was. Nobody waits for it.
#[test]
fn a_copy_that_is_left_over_keeps_no_owner_from_its_lease() {
    with(2, |hosts| async move {
        let node = hosts.node(0);
        let id = make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
        let other = hosts.node(usize::from(other_copy(&node, "v").await));
        let members = other.objects().members();
        let group = members.stores()[0].group();
        let spec = ComponentSpec { object: id, leg: 0, blocks: 256, epoch: Epoch(9) };
        let left_over = ComponentId(77);
        let create = Request::Create { group, component: left_over, spec };
        assert!(matches!(members.handle(host_id(0), create).await, Reply::Done));
        assert_eq!(members.fenced(left_over), Some(Epoch(9)));
        hosts.wait(Nanos::from_secs(15)).await;
        let volume = node.open("v").await.expect("opens");
        let (read, limit) = (volume.read(0, 4096), hosts.wait(Nanos::from_ms(100)));
        let Either::Left((read, _)) = select(pin!(read), pin!(limit)).await else {
            panic!("waits for a lease");
        };
        assert_eq!(buf::join(&read.expect("read"))[0], 1);
        let record = node.volume("v").await.expect("there").record;
        assert!(record.members().all(|(_, m)| m.state.is_active()), "{record:?}");
        assert!(members.fenced(left_over).is_some(), "it may be of a record that comes back");
        // As soon as somebody fences it, that counts.
        let fence = Request::Fence {
            object: id,
            component: left_over,
            epoch: Epoch(9),
            incarnation: Incarnation(1),
            outlived: Vec::new(),
            served: None,
        };
        members.handle(host_id(0), fence).await;
        assert!(members.is_regarded(left_over));
    });
}

/// The directory was put back to before a copy was made that is the newest by now, say.
#[test]
fn a_copy_without_a_record_is_kept_while_it_may_be_newer_than_its_volume() {
    with(2, |hosts| async move {
        let node = hosts.node(0);
        let id = make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
        let epoch = node.volume("v").await.expect("there").record.epoch;
        let members = node.objects().members();
        let group = members.stores()[0].group();
        let (newer, older) = (ComponentId(77), ComponentId(78));
        for (component, epoch) in [(newer, Epoch(epoch.0 + 3)), (older, epoch)] {
            let spec = ComponentSpec { object: id, leg: 0, blocks: 256, epoch };
            let create = Request::Create { group, component, spec };
            assert!(matches!(members.handle(host_id(0), create).await, Reply::Done));
        }
        hosts.wait(Nanos::from_secs(1_500)).await;
        assert!(members.fenced(newer).is_some(), "it may be newer");
        assert!(members.fenced(older).is_none(), "no record names it");
        // Its volume gets there in the end.
        for _ in 0..4 {
            hosts.kill(0).await;
            hosts.machines.start(0);
            hosts.wait(Nanos::from_secs(20)).await;
            assert_eq!(read(&hosts.node(0), "v", 0).await, 1);
        }
        hosts.wait(Nanos::from_secs(1_500)).await;
        let node = hosts.node(0);
        assert!(node.volume("v").await.expect("there").record.epoch >= Epoch(epoch.0 + 3));
        assert!(node.objects().members().fenced(newer).is_none(), "no record names it");
    });
}

/// A damaged log, or a directory that was put back, leaves a copy with a promise that its volume
/// has not reached. The volume has no owner any more that could get there.
#[test]
fn a_copy_that_has_promised_more_than_its_volume_is_deleted_with_it() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        let id = make(&node, "v", MIB).await;
        let record = node.volume("v").await.expect("there").record;
        for (epoch, (_, member)) in (7..).zip(record.members()) {
            let at = (0..3).find(|&host| host_id(host) == member.host).expect("one of the hosts");
            let holder = hosts.node(usize::from(at));
            let members = holder.objects().members();
            let component = member.component;
            let fence = Request::Fence {
                object: id,
                component,
                epoch: Epoch(epoch),
                incarnation: Incarnation(1),
                outlived: Vec::new(),
                served: None,
            };
            members.handle(host_id(0), fence).await;
            assert_eq!(members.fenced(component), Some(Epoch(epoch)));
        }
        node.delete_volume("v", None, false, false).await.expect("deleted");
        hosts.wait(Nanos::from_secs(15)).await;
        assert_eq!(hosts.keys("objects/"), Vec::<String>::new());
        for host in 0..3 {
            assert!(hosts.node(host).objects().members().components().is_empty(), "on {host}");
        }
    });
}

/// A shrink under way for a life that has ended is not carried out over what is written since.
#[test]
fn what_a_host_asked_for_before_it_died_ends_before_its_volume_is_opened() {
    with(3, |hosts| async move {
        for round in 0..30u64 {
            let name = format!("s{round}");
            make(&hosts.node(1), &name, 8 * MIB).await;
            write(&hosts.node(1), &name, 6 * MIB, 1).await;
            let (node, wanted) = (hosts.node(0), name.clone());
            let shrink = async move {
                let _ = resize(&node, &wanted, 4 * MIB).await;
            };
            let life = {
                let (hosts, name) = (hosts.clone(), name.clone());
                async move {
                    hosts.wait(Nanos::from_us(300 * round)).await;
                    hosts.machines.pause(1);
                    hosts.wait(Nanos::from_ms(200)).await;
                    hosts.machines.kill(0, false);
                    hosts.machines.start(0);
                    hosts.wait(Nanos::from_ms(300)).await;
                    hosts.machines.resume(1);
                    hosts.wait(Nanos::from_ms(50)).await;
                    let node = hosts.node(0);
                    let mut tries = 0;
                    let volume = loop {
                        match node.open(&name).await {
                            Ok(volume) => break volume,
                            Err(why) => assert!(tries < 1000, "{why}"),
                        }
                        tries += 1;
                        hosts.wait(Nanos::from_ms(20)).await;
                    };
                    volume.write(6 * MIB, vec![Buf::copy_from(&[9; 4096])]).await
                }
            };
            // Nobody waits for the shrink: its host is dead.
            let written = match select(Box::pin(life), Box::pin(shrink)).await {
                Either::Left((written, _)) => written,
                Either::Right(((), life)) => life.await,
            };
            hosts.wait(Nanos::from_secs(20)).await;
            let size = hosts.node(2).volume(&name).await.expect("there").record.size_bytes;
            if written.is_ok() {
                assert_eq!(size, 8 * MIB, "round {round}: shrunk over an acknowledged write");
                assert_eq!(read(&hosts.node(2), &name, 6 * MIB).await, 9);
            }
            hosts.node(2).delete_volume(&name, None, false, false).await.expect("deleted");
        }
    });
}

#[test]
fn volumes_made_at_once_with_one_policy_are_all_made() {
    with(3, async |hosts| {
        hosts.node(0).create_policy("p", Policy::DEFAULT).await.expect("made");
        let make = async |n: usize| {
            let create = CreateVolume {
                name: format!("v{n}"),
                size_bytes: MIB,
                policy: Some("p".into()),
                prefer: None,
                dry_run: false,
            };
            hosts.node(n % 3).create_volume(create).await.map(drop)
        };
        let made = join_all((0..24).map(make)).await;
        assert_eq!(made, vec![Ok(()); 24]);
        assert_eq!(hosts.node(1).volumes().await.expect("a list").len(), 24);
        assert!(matches!(
            hosts.node(2).delete_policy("p").await,
            Err(ManageError::PolicyInUse { .. })
        ));
    });
}

#[test]
fn a_volume_is_made_where_hosts_answer() {
    with(3, async |hosts| {
        // The others take it for alive for a while.
        hosts.machines.kill(1, false);
        let make = async |n: usize| try_volume(&hosts.node(0), &format!("v{n}"), MIB).await;
        for made in join_all((0..8).map(make)).await {
            let made = made.expect("there is room on two hosts that answer");
            assert!(made.record.members().all(|(_, m)| m.host != host_id(1)));
        }
        assert_eq!(hosts.keys(key::VOLUMES).len(), 8);
        // With one host left there is no place, and nothing stays.
        hosts.machines.kill(2, false);
        let refused = try_volume(&hosts.node(0), "w", MIB).await.expect_err("no place");
        assert!(matches!(refused, ManageError::CannotPlace(_)), "{refused}");
        assert_eq!(hosts.keys(key::VOLUMES).len(), 8);
        hosts.machines.start(1);
        hosts.machines.start(2);
        hosts.wait(Nanos::from_secs(60)).await;
        assert_eq!(hosts.keys(key::OBJECTS).len(), 8);
    });
}

#[test]
fn a_group_that_holds_as_many_components_as_it_can_is_no_place() {
    with(2, async |hosts| {
        let node = hosts.node(0);
        let free = |host: usize| -> u32 {
            let stores = hosts.node(host).objects().members().stores();
            stores.iter().map(|store| store.space().free_components).sum()
        };
        let most = free(0);
        assert!((256..=4096).contains(&most), "{most}");
        for n in 0..most {
            try_volume(&node, &format!("v{n}"), MIB).await.expect("there is room");
        }
        assert_eq!((free(0), free(1)), (0, 0));
        // Known from the groups, and, before they have told, from their refusal.
        for _ in 0..2 {
            let refused = try_volume(&node, "more", MIB).await.expect_err("no place");
            assert!(matches!(refused, ManageError::CannotPlace(_)), "{refused}");
            let told = refused.to_string();
            assert!(told.contains("holds as many components as its disk groups can"), "{told}");
            assert!(told.contains("delete volumes that are not needed"), "{told}");
            hosts.wait(Nanos::from_secs(10)).await;
        }
        assert_eq!(hosts.keys(key::VOLUMES).len(), most as usize);
        // What is there can grow all the same.
        resize(&node, "v1", 8 * MIB).await.expect("grows");
        node.delete_volume("v0", None, false, false).await.expect("deleted");
        hosts.wait(Nanos::from_secs(10)).await;
        try_volume(&node, "more", MIB).await.expect("there is room again");
    });
}

/// Events are read on from a mark; no clock decides what is new.
#[test]
fn no_event_is_missed_whatever_a_clock_shows() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        let hour = 3_600_000;
        hosts.machines.set_clock(1, 0, -hour);
        hosts.machines.set_clock(2, 0, hour);
        let id = make(&node, "gone", MIB).await;
        hosts.wait(Nanos::from_secs(3)).await;
        let told = async |marks: &mut BTreeMap<HostId, EventMark>| {
            let (each, silent) = hosts.node(0).events_of_each(marks, 0).await;
            assert_eq!(silent, []);
            // Small in some seeds: what is left comes with the next.
            let (events, _) = merge_events(each, usize::MAX);
            for event in &events {
                let seen = marks.insert(event.host, event.mark());
                let next = seen.map_or(1, |seen| seen.number + 1);
                assert_eq!(event.number, next, "after {seen:?}");
            }
            let of_test = events.into_iter().filter(|event| event.kind == "test");
            of_test.map(|event| (event.host, event.message)).collect::<BTreeSet<_>>()
        };
        let all = |message: &str| (0..3).map(|h| (host_id(h), message.to_owned())).collect();
        let say = |host: usize, message: &str| {
            hosts.node(host).note(Severity::Info, "test", About::object(id), message);
        };
        let mut marks = BTreeMap::new();
        (0..3).for_each(|host| say(host, "first"));
        assert_eq!(told(&mut marks).await, all("first"));
        // A clock is put right, or wrong, and one host begins another life: what it had seen and
        // nobody had read is not lost with the first.
        hosts.machines.set_clock(2, 0, -2 * hour);
        say(1, "before the end");
        hosts.kill(1).await;
        hosts.machines.start(1);
        hosts.wait(Nanos::from_secs(10)).await;
        (0..3).for_each(|host| say(host, "second"));
        let mut both: BTreeSet<_> = all("second");
        both.insert((host_id(1), "before the end".into()));
        assert_eq!(told(&mut marks).await, both);
        assert_eq!(told(&mut marks).await, BTreeSet::new());
        // A volume that is no more had a name.
        node.delete_volume("gone", None, false, false).await.expect("deleted");
        say(0, "third");
        let (each, _) = node.events_of_each(&marks, 0).await;
        let third = each
            .iter()
            .flat_map(|host| &host.events)
            .find(|event| event.message == "third")
            .expect("told");
        assert_eq!(third.volume, "gone");
    });
}

/// A volume whose maker died before it was ready does not stay for ever, and takes no other along.
#[test]
fn what_a_host_began_to_make_before_it_died_is_removed() {
    with(3, |hosts| async move {
        let kept = make(&hosts.node(1), "kept", MIB).await;
        let mut half_made = 0;
        for round in 0..40u64 {
            let (node, name) = (hosts.node(0), format!("v{round}"));
            let making = async move { try_volume(&node, &name, MIB).await.is_ok() };
            let end = async {
                hosts.wait(Nanos::from_us(100 * round)).await;
                hosts.machines.kill(0, false);
            };
            // Nobody waits for what a dead host does.
            let made = match select(Box::pin(making), Box::pin(end)).await {
                Either::Left((made, end)) => {
                    end.await;
                    made
                }
                Either::Right(((), _)) => false,
            };
            half_made += u32::from(!made && hosts.keys("objects/").len() > 1);
            hosts.machines.start(0);
            hosts.wait(Nanos::from_secs(150)).await;
            let node = hosts.node(1);
            for volume in node.volumes().await.expect("listed") {
                assert_eq!(volume.record.state, ObjectState::Ready, "round {round}");
                if volume.name != "kept" {
                    node.delete_volume(&volume.name, None, false, false).await.expect("deleted");
                }
            }
            hosts.wait(Nanos::from_secs(20)).await;
            let left = hosts.keys("objects/");
            assert_eq!(left, [key::object(kept)], "round {round}");
        }
        assert!(half_made >= 5, "only {half_made} were caught in the making");
        hosts.wait(Nanos::from_secs(900)).await;
        for host in 0..3 {
            let here = hosts.node(host).objects().members().components();
            assert!(here.iter().all(|(_, object)| *object == kept), "{here:?}");
        }
    });
}

const GIB: u64 = 1 << 30;

/// More is promised than there is, also to one volume; up to the limit, which may be raised.
#[test]
fn volumes_are_thin_up_to_the_limit_of_what_is_promised() {
    with(3, async |hosts| {
        let node = hosts.node(0);
        let exist: u64 = (0..3).map(|host| hosts.free(host)).sum();
        assert!(exist < 3 * GIB, "{exist}");
        let large = try_volume(&node, "large", 4 * GIB).await.expect("thin");
        assert!(large.record.legs.len() > 4, "its components fit on the disks");
        assert_eq!(large.record.policy.stripe_width as usize, large.record.legs.len());
        for at in [0, 2 * GIB, 4 * GIB - 4096] {
            write(&node, "large", at, 7).await;
            assert_eq!(read(&hosts.node(2), "large", at).await, 7);
        }
        let mut promised = 2 * 4 * GIB;
        let mut count = 0;
        let refused = loop {
            match try_volume(&node, &format!("v{count}"), GIB).await {
                Ok(_) => (count, promised) = (count + 1, promised + 2 * GIB),
                Err(refused) => break refused.to_string(),
            }
        };
        assert!(promised <= 10 * exist && promised + 2 * GIB > 10 * exist, "{promised} of {exist}");
        assert!(refused.contains("the limit is 1000 % of that"), "{refused}");
        assert!(refused.contains("'atoll cluster set --promised-limit"), "{refused}");
        let policy = node.policy("default").await.expect("always there");
        let checked = node.check_policy(&policy, GIB).await.expect_err("no more");
        assert_eq!(checked.to_string(), refused);
        let grown = resize(&node, "v0", 2 * GIB - 4096).await.expect_err("neither");
        assert!(grown.to_string().contains("the limit is 1000 % of that"), "{grown}");
        // What exists is not less because a host is down.
        hosts.kill(2).await;
        try_volume(&node, "small", MIB).await.expect("below the limit");
        hosts.machines.start(2);
        hosts.wait(Nanos::from_secs(10)).await;
        assert!(node.set_promised_limit(99, false).await.is_err());
        node.set_promised_limit(1200, true).await.expect("it could be");
        assert_eq!(hosts.node(1).promised_limit().await, Ok(1000));
        node.set_promised_limit(1200, false).await.expect("set");
        assert_eq!(hosts.node(1).promised_limit().await, Ok(1200));
        try_volume(&hosts.node(1), "more", GIB).await.expect("made by another host");
        // A lower limit takes nothing away; what is deleted is not promised any more.
        node.set_promised_limit(500, false).await.expect("set");
        assert_eq!(read(&node, "large", 4 * GIB - 4096).await, 7);
        for n in 0..count {
            node.delete_volume(&format!("v{n}"), None, false, false).await.expect("deleted");
        }
        try_volume(&node, "again", GIB).await.expect("below the limit again");
    });
}

/// What a policy reserves must be free, and is free to nobody else who makes or grows a volume.
#[test]
fn a_policy_reserves_room() {
    with(2, async |hosts| {
        let node = hosts.node(0);
        let of = |reserve_percent| Policy { reserve_percent, ..Policy::DEFAULT };
        assert!(node.create_policy("more", of(101)).await.is_err());
        node.create_policy("half", of(50)).await.expect("made");
        node.create_policy("all", of(100)).await.expect("made");
        let make = async |name: &str, size_bytes, policy: &str| {
            let (name, policy) = (name.to_owned(), Some(policy.to_owned()));
            let create = CreateVolume { name, size_bytes, policy, prefer: None, dry_run: false };
            node.create_volume(create).await
        };
        let free = hosts.free(0).min(hosts.free(1));
        assert!((800 * MIB..GIB).contains(&free), "{free}");
        make("a", 800 * MIB, "half").await.expect("400 MiB of each");
        let left = (free - 400 * MIB) / MIB * MIB;
        let refused = make("b", left + MIB, "all").await.expect_err("reserved").to_string();
        assert!(refused.contains("2 fault domains with") && refused.contains("add"), "{refused}");
        make("b", left - 100 * MIB, "all").await.expect("not reserved");
        // 100 MiB are left to all others, whatever they are promised.
        make("c", 800 * MIB, "default").await.expect("thin");
        make("d", 101 * MIB, "all").await.expect_err("100 are left");
        resize(&node, "a", 800 * MIB + 202 * MIB).await.expect_err("100 are left");
        // What is written counts as free no more, and as reserved neither.
        for chunk in 0..50 {
            write(&node, "a", chunk * MIB, 1).await;
        }
        hosts.wait(Nanos::from_secs(10)).await;
        make("d", 101 * MIB, "all").await.expect_err("100 are left");
        make("d", 100 * MIB, "all").await.expect("exactly that");
        make("e", MIB, "default").await.expect_err("all is reserved");
        node.delete_volume("d", None, false, false).await.expect("deleted");
        hosts.wait(Nanos::from_secs(10)).await;
        make("e", 100 * MIB, "half").await.expect("room again");
    });
}

/// A copy is rebuilt where what it holds fits, though all of it would not.
#[test]
fn a_lost_copy_needs_the_room_of_what_it_holds() {
    with(3, async |hosts| {
        let node = hosts.node(0);
        node.create_policy("one", Policy { failures_to_tolerate: 0, ..Policy::DEFAULT })
            .await
            .expect("made");
        let create = CreateVolume {
            name: "filler".into(),
            size_bytes: 600 * MIB,
            policy: Some("one".into()),
            prefer: Some(host_id(2)),
            dry_run: false,
        };
        let filler = node.create_volume(create).await.expect("made");
        assert!(filler.record.members().all(|(_, m)| m.host == host_id(2)));
        for chunk in 0..300 {
            write(&node, "filler", chunk * MIB, 1).await;
        }
        hosts.wait(Nanos::from_secs(10)).await;
        let view = try_volume(&node, "v", 800 * MIB).await.expect("made");
        let on = |view: &VolumeView| -> BTreeSet<HostId> {
            view.record.members().map(|(_, m)| m.host).collect()
        };
        assert_eq!(on(&view), BTreeSet::from([host_id(0), host_id(1)]), "in full there alone");
        assert!(hosts.free(2) < 800 * MIB);
        for chunk in 0..40 {
            write(&node, "v", chunk * 20 * MIB, 2).await;
        }
        hosts.kill(1).await;
        hosts.wait(Nanos::from_secs(3700)).await;
        let view = node.volume("v").await.expect("there");
        assert_eq!(on(&view), BTreeSet::from([host_id(0), host_id(2)]));
        assert!(view.record.members().all(|(_, m)| m.state == MemberState::Active));
        assert_eq!(read(&hosts.node(2), "v", 780 * MIB).await, 2);
    });
}

/// Why a lost copy is not rebuilt is told once.
#[test]
fn a_lost_copy_without_a_place_is_told() {
    with(2, async |hosts| {
        let node = hosts.node(0);
        make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
        hosts.kill(1).await;
        write(&node, "v", 0, 2).await;
        hosts.wait(Nanos::from_secs(3500)).await;
        let told = || {
            let events = node.local_events(EventMark::default(), usize::MAX);
            let of = events.into_iter().filter(|event| event.kind == "no-place");
            of.map(|event| event.message).collect::<Vec<_>>()
        };
        assert_eq!(told(), Vec::<String>::new(), "it may come back");
        hosts.wait(Nanos::from_secs(1000)).await;
        let told = told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("h1 is down; bring back h1, or add a host"), "{told:?}");
    });
}

/// Names of the checks that do not pass, as a host sees them.
async fn checks(node: &Host) -> Vec<CheckKind> {
    node.look().await;
    let facts = node.facts().await.expect("the directory answers");
    facts.checks().iter().map(|check| check.kind).collect()
}

#[test]
fn what_is_wrong_is_found_by_its_check_and_nothing_of_a_healthy_cluster() {
    with(3, async |hosts| {
        let node = hosts.node(0);
        make(&node, "v", MIB).await;
        write(&node, "v", 0, 1).await;
        assert_eq!(checks(&node).await, []);
        let other = other_copy(&node, "v").await;
        hosts.kill(other).await;
        // The owner has noticed when it has written without the copy.
        write(&node, "v", 0, 2).await;
        assert_eq!(checks(&node).await, [CheckKind::HostDown, CheckKind::VolumeDegraded]);
        // One that is back has nothing to say once its copy is up to date.
        hosts.machines.start(other);
        hosts.wait(Nanos::from_secs(20)).await;
        assert_eq!(checks(&node).await, []);
        // Its disk goes, it does not: the copy is rebuilt elsewhere.
        hosts.machines.disks(other)[0].set_gone(true);
        hosts.wait(Nanos::from_secs(60)).await;
        write(&node, "v", 0, 3).await;
        hosts.wait(Nanos::from_secs(60)).await;
        let found = checks(&node).await;
        assert!(found.contains(&CheckKind::GroupFailed), "{found:?}");
        let known =
            |kind: &CheckKind| [CheckKind::GroupFailed, CheckKind::VolumeDegraded].contains(kind);
        assert!(found.iter().all(known), "{found:?}");
        let facts = node.facts().await.expect("the directory answers");
        let failed = facts.checks().into_iter().find(|c| c.kind == CheckKind::GroupFailed);
        assert!(failed.expect("it is there").remedy.starts_with("replace the disk"));
        // Without any other host, the last copy is waited for.
        (1..3).filter(|&host| hosts.machines.is_up(host)).for_each(|host| {
            hosts.machines.kill(host, false);
        });
        hosts.wait(Nanos::from_secs(3)).await;
        let down = checks(&node).await;
        assert_eq!(down.iter().filter(|kind| **kind == CheckKind::HostDown).count(), 2);
    });
}

#[test]
fn a_group_without_room_is_found_by_its_check() {
    with(2, async |hosts| {
        let node = hosts.node(0);
        make(&node, "v", 1024 * MIB).await;
        let volume = node.open("v").await.expect("opens");
        let full = |kinds: &[CheckKind]| {
            [CheckKind::GroupNearlyFull, CheckKind::NearlyFull].iter().all(|k| kinds.contains(k))
        };
        let capacity: u64 = {
            let stores = node.objects().members().stores();
            stores.iter().map(|store| store.space().capacity_bytes).sum()
        };
        let mut written = 0;
        let fill = async |written: &mut u64, until: u64| {
            while *written < until {
                let data = vec![Buf::copy_from(&[7; MIB as usize])];
                volume.write(*written, data).await.expect("there is room");
                *written += MIB;
            }
        };
        fill(&mut written, capacity * 70 / 100).await;
        hosts.wait(Nanos::from_secs(10)).await;
        assert!(!full(&checks(&node).await), "{written} of {capacity}");
        fill(&mut written, capacity * 88 / 100).await;
        hosts.wait(Nanos::from_secs(10)).await;
        let found = checks(&node).await;
        assert!(full(&found), "{written} of {capacity}: {found:?}");
        volume.discard(0, written).await.expect("discarded");
        hosts.wait(Nanos::from_secs(60)).await;
        assert_eq!(checks(&node).await, []);
    });
}

#[test]
fn a_resync_is_a_task_that_ends_as_it_ended() {
    with(2, async |hosts| {
        let node = hosts.node(0);
        let object = make(&node, "v", 64 * MIB).await;
        let mut book = TaskBook::default();
        let mut now_ms = 0;
        let mut look = async |book: &mut TaskBook| {
            node.look().await;
            now_ms += 1;
            book.enter(now_ms, &node.facts().await.expect("the directory answers"));
            let tasks: Vec<TaskFacts> = book.tasks().cloned().collect();
            assert!(tasks.iter().all(|task| task.work == Work::Resync(object)), "{tasks:?}");
            tasks.first().map(|task| task.ended.map(|(_, outcome)| outcome))
        };
        assert_eq!(look(&mut book).await, None, "nothing goes on");
        hosts.kill(1).await;
        for at in 0..48 {
            write(&node, "v", at * MIB, 2).await;
        }
        assert_eq!(look(&mut book).await, None, "nobody is there to be brought up to date");
        hosts.machines.start(1);
        let mut seen = Vec::new();
        for _ in 0..400 {
            hosts.wait(Nanos::from_ms(50)).await;
            let state = look(&mut book).await;
            if seen.last() != Some(&state) {
                seen.push(state);
            }
        }
        // The host may be back, and its copy on its way, within the first 50 ms.
        let seen: Vec<_> = seen.into_iter().skip_while(Option::is_none).collect();
        assert_eq!(seen, [Some(None), Some(Some(Outcome::Done))]);
    });
}

#[test]
fn hosts_that_found_a_cluster_at_once_found_one() {
    with(3, async |hosts| {
        hosts.machines.kill(2, false);
        let world = hosts.machines.harness_world(2);
        let change = |changes| {
            hosts.machines.directory().apply(&Txn { compares: vec![], changes }).expect("done");
        };
        change(vec![KeyChange::Delete(key::CLUSTER.into())]);
        let found: Vec<(ClusterRecord, bool)> =
            join_all((0..3).map(|_| find_or_found(&world, None, Levels::KNOWN)))
                .await
                .into_iter()
                .flatten()
                .collect();
        assert_eq!(found.len(), 3);
        assert_eq!(found.iter().filter(|(_, is_new)| *is_new).count(), 1, "{found:?}");
        assert!(found.iter().all(|(cluster, _)| *cluster == found[0].0), "{found:?}");
        let later =
            find_or_found(&world, None, Levels::KNOWN).await.expect("the directory answers");
        assert_eq!(later, (found[0].0.clone(), false));
        // A name belongs to the host that has it, whoever comes later.
        let (mine, other) = (node_config(2), node_config(1));
        let name = |name: &str| {
            let (world, name) = (&world, name.to_owned());
            async move { check_host_name(world, mine.host, &name).await }
        };
        assert_eq!(name(&node_config(2).name).await, Ok(()));
        assert_eq!(name("new").await, Ok(()));
        let taken = JoinError::NameTaken { name: other.name.clone(), host: other.host };
        assert_eq!(name(&other.name).await, Err(taken));
        change(vec![KeyChange::Put(key::CLUSTER.into(), b"{}".to_vec())]);
        let odd = find_or_found(&world, None, Levels::KNOWN).await;
        assert!(matches!(odd, Err(JoinError::Unreadable(_))), "{odd:?}");
    });
}

#[test]
fn a_volume_that_two_hosts_grow_at_once_has_the_size_that_one_of_them_was_told() {
    // From the same moment on to one after the other.
    for step in 0..8 {
        with(3, move |hosts| async move {
            make(&hosts.node(0), "v", 2 * MIB).await;
            write(&hosts.node(0), "v", MIB, 1).await;
            let grow = |host: usize, size_bytes, later| {
                let hosts = hosts.clone();
                async move {
                    hosts.wait(later).await;
                    let grown = resize(&hosts.node(host), "v", size_bytes).await;
                    if grown.is_ok() {
                        // To what it was told that there is.
                        write(&hosts.node(host), "v", size_bytes - 4096, host as u8).await;
                    }
                    (size_bytes, host as u8, grown.map(|view| view.record.size_bytes))
                }
            };
            let one = grow(1, 4 * MIB, Nanos::ZERO);
            let other = grow(2, 6 * MIB, Nanos::from_ms(step));
            let answers: [_; 2] = futures_util::future::join(one, other).await.into();
            let record = hosts.node(0).volume("v").await.expect("there").record;
            let done = answers.iter().filter(|(.., grown)| grown.is_ok());
            let most = done.clone().map(|&(size, ..)| size).max();
            assert_eq!(most, Some(record.size_bytes), "{answers:?}");
            let blocks = record.leg_chunks(0) * 256;
            for (_, member) in record.members() {
                let store = &hosts.node((member.host.0 - host_id(0).0) as usize);
                let stores = store.objects().members().stores();
                let status = stores[0].status(member.component).expect("its copy");
                assert!(status.spec.blocks >= blocks, "{status:?} of {} bytes", record.size_bytes);
            }
            let volume = hosts.node(0).open("v").await.expect("opens");
            let last = |size| volume.read(size - 4096, 4096);
            for &(size, host, _) in done {
                let bytes = buf::join(&last(size).await.expect("it is in the volume"));
                assert_eq!(bytes[..], [host; 4096], "{answers:?}");
            }
            assert_eq!(buf::join(&last(2 * MIB).await.expect("read"))[0], 0);
            let first = buf::join(&volume.read(MIB, 4096).await.expect("read"));
            assert_eq!(first[..], [1; 4096], "what was there before");
        });
    }
}
