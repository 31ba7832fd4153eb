//! Management of a cluster in virtual time: what an administrator asks for is what happens, also
//! while a host is away. No load and no chance in here; those are the sweeps.

use atoll_format::id::ObjectId;
use atoll_format::record::Policy;
use atoll_node::{CreateVolume, ManageError, Node};
use atoll_sim::cluster::{Storage, host_id, node_config};
use atoll_sim::disk::DiskProfile;
use atoll_sim::net::NetProfile;
use atoll_sim::rig::{Rig, RigSpec};
use atoll_sim::storage::RealStorage;
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_store::Store;
use atoll_world::volume::Volumes;
use atoll_world::{Buf, Components, Nanos, Volume, World, buf};
use std::cell::RefCell;
use std::rc::Rc;

const MIB: u64 = 1 << 20;
/// The longest test, in virtual time.
const TEST_MAX: Nanos = Nanos::from_secs(86_400);

type Host = Node<SimWorld, Store<SimWorld>>;

/// Hosts with real stores on modelled disks.
#[derive(Clone)]
struct Hosts {
    rig: Rig,
    nodes: Rc<RefCell<Vec<Option<Host>>>>,
}

impl Hosts {
    fn new(count: u16) -> Self {
        let spec = RigSpec {
            hosts: count,
            disks: 1,
            disk_bytes: 1 << 30,
            disk: DiskProfile::NVME,
            net: NetProfile::GBIT_25,
        };
        let rig = Rig::new(1, spec, Trace::of(&[]));
        let nodes: Rc<RefCell<Vec<Option<Host>>>> =
            Rc::new(RefCell::new((0..count).map(|_| None).collect()));
        let (storage, all) = (RealStorage::new(16 << 20), nodes.clone());
        rig.set_boot(move |host, disks, world| {
            let (storage, all, inner) = (storage.clone(), all.clone(), world.clone());
            world.spawn(async move {
                let groups = storage.open(host, disks, inner.clone()).await.expect("opens");
                let node = Node::start(inner, node_config(host), groups);
                all.borrow_mut()[usize::from(host)] = Some(node);
            });
        });
        let all = nodes.clone();
        rig.set_death(move |host| {
            if let Some(node) = all.borrow_mut()[usize::from(host)].take() {
                node.dissolve();
            }
        });
        Self { rig, nodes }
    }

    fn node(&self, host: usize) -> Host {
        self.nodes.borrow()[host].clone().expect("runs")
    }

    async fn wait(&self, span: Nanos) {
        let executor = self.rig.executor();
        executor.sleep_until(executor.now() + span).await;
    }

    /// Everything runs and knows everything.
    async fn up(&self) {
        (0..self.rig.hosts()).for_each(|host| self.rig.start(host));
        self.wait(Nanos::from_secs(10)).await;
    }

    /// Kills a host, and lets the others notice.
    async fn kill(&self, host: u16) {
        self.rig.kill(host, false);
        self.wait(Nanos::from_secs(3)).await;
    }
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
    hosts.rig.executor().block_on(TEST_MAX, main).expect("comes to its end");
    hosts.rig.shutdown();
}

async fn make(node: &Host, name: &str, size_bytes: u64) -> ObjectId {
    let create =
        CreateVolume { name: name.into(), size_bytes, policy: None, prefer: None, dry_run: false };
    node.create_volume(create).await.expect("made").record.id
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
        hosts.rig.start(1);
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
            let done = node.resize_volume("v", bytes, None, false).await.expect("resized");
            assert_eq!(done.record.size_bytes, bytes);
            let open = hosts.node(2).open("v").await.expect("opens");
            assert_eq!(open.info().size_bytes, bytes);
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
/// whose disk is as before that, with the block: a resync has looked inside the size only.
async fn shrunk_with_an_old_copy(hosts: &Hosts, node: &Host) -> u16 {
    make(node, "v", 10 * MIB).await;
    write(node, "v", MIB, 9).await;
    write(node, "v", 7 * MIB, 2).await;
    let other = other_copy(node, "v").await;
    // At home, not in the log.
    hosts.wait(Nanos::from_secs(30)).await;
    let disk = hosts.rig.disks(other)[0].clone();
    let before = disk.image();
    node.resize_volume("v", 5 * MIB, None, false).await.expect("shrunk");
    hosts.kill(other).await;
    disk.restore(before);
    write(node, "v", MIB, 1).await;
    hosts.rig.start(other);
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
fn what_an_old_copy_kept_beyond_the_end_is_not_shown_when_the_volume_grows() {
    with(3, |hosts| async move {
        let node = hosts.node(0);
        let other = shrunk_with_an_old_copy(&hosts, &node).await;
        node.resize_volume("v", 10 * MIB, None, false).await.expect("grown");
        assert_eq!(read(&node, "v", 7 * MIB).await, 0);
        shows_what_was_written_since(&hosts, other, 1).await;
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
            hosts.rig.fabric().set_cut(0, other, cut);
            hosts.rig.fabric().set_cut(other, 0, cut);
        };
        cut(true);
        hosts.wait(Nanos::from_secs(10)).await;
        write(&node, "v", MIB, 3).await;
        cut(false);
        let mut tries = 0;
        while let Err(why) = node.resize_volume("v", 10 * MIB, None, false).await {
            let why = why.to_string();
            assert!(why.contains("when all copies are"), "{why}");
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
        let refused = node.resize_volume("v", 5 * MIB, None, false).await.expect_err("refused");
        assert!(refused.to_string().contains("is not up to date"), "{refused}");
        assert_eq!(node.volume("v").await.expect("there").record.size_bytes, 10 * MIB);
        hosts.rig.start(away);
        hosts.wait(Nanos::from_secs(30)).await;
        node.resize_volume("v", 5 * MIB, None, false).await.expect("all copies are up");
        node.resize_volume("v", 10 * MIB, None, false).await.expect("grown");
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
        hosts.rig.fabric().set_cut(0, 1, true);
        hosts.rig.fabric().set_cut(1, 0, true);
        hosts.wait(Nanos::from_secs(60)).await;
        let refused = node.delete_volume("v", None, false, false).await.expect_err("perhaps");
        let says = refused.to_string();
        assert!(says.contains("may be in use on host h1") && says.contains("h2 reaches"), "{says}");
        hosts.rig.fabric().set_cut(0, 1, false);
        hosts.rig.fabric().set_cut(1, 0, false);
        hosts.wait(Nanos::from_secs(10)).await;
        drop(user);
        write(&other, "w", 0, 1).await;
        hosts.kill(1).await;
        for force in [false, true] {
            let refused = node.resize_volume("w", 4096, None, false).await.expect_err("perhaps");
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
            assert_eq!(hosts.node(host).status().groups[0].components, 4);
        }
    });
}
