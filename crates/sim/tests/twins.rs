//! Two processes with the identity of one host: one of them ends, whoever came first and whatever
//! kept them from seeing each other. Machine 2 runs on a copy of machine 1's state, with an
//! address of its own.

use atoll_format::id::Incarnation;
use atoll_node::{Ended, EventMark, Node, NodeConfig, OtherLife};
use atoll_sim::cluster::{host_id, node_config};
use atoll_sim::disk::DiskProfile;
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::rng::Rng;
use atoll_sim::trace::Trace;
use atoll_sim::world::SimWorld;
use atoll_store::Store;
use atoll_world::{Nanos, World};
use futures_util::FutureExt;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

const TEST_MAX: Nanos = Nanos::from_secs(86_400);
/// Longer than a look at the hosts' records, and than all that a newcomer waits for an answer.
const SETTLED: Nanos = Nanos::from_secs(30);

type Host = Node<SimWorld, Store<SimWorld>>;

#[derive(Clone)]
struct Hosts {
    machines: Machines,
    nodes: Rc<RefCell<Vec<Option<Host>>>>,
}

fn config(machine: u16) -> NodeConfig {
    NodeConfig { peers: vec![format!("h{machine}")], ..node_config(machine.min(1)) }
}

impl Hosts {
    fn new(seed: u64) -> Self {
        let spec = Hardware {
            hosts: 3,
            cores: 1,
            disks: 1,
            disk_bytes: 1 << 30,
            disk: DiskProfile::NVME,
            net: NetProfile::GBIT_25,
        };
        let machines = Machines::new(seed, spec, Trace::of(&[]));
        let nodes: Rc<RefCell<Vec<Option<Host>>>> = Rc::new(RefCell::new(vec![None, None, None]));
        let all = nodes.clone();
        let rigs = machines.clone();
        machines.set_boot(move |machine, _, world| {
            let kept = rigs.events(machine).open(host_id(machine.min(1)));
            let life = rigs.begin_life(machine, Incarnation(world.random()));
            let node = Node::start(world, config(machine), life, Vec::new(), kept);
            all.borrow_mut()[usize::from(machine)] = Some(node);
        });
        let all = nodes.clone();
        machines.set_death(move |machine| {
            if let Some(node) = all.borrow_mut()[usize::from(machine)].take() {
                node.dissolve();
            }
        });
        Self { machines, nodes }
    }

    fn node(&self, machine: usize) -> Host {
        self.nodes.borrow()[machine].clone().expect("runs")
    }

    fn has_ended(&self, machine: usize) -> bool {
        self.node(machine).ended().now_or_never().is_some()
    }

    fn said(&self, machine: usize, kind: &str) -> bool {
        self.node(machine).local_events(EventMark::default(), 1000).iter().any(|e| e.kind == kind)
    }

    async fn wait(&self, span: Nanos) {
        let executor = self.machines.executor();
        executor.sleep_until(executor.now() + span).await;
    }

    async fn start(&self, machine: u16) {
        self.machines.start(machine);
        self.wait(SETTLED).await;
    }
}

fn with<F: Future<Output = ()> + 'static>(seed: u64, test: impl FnOnce(Hosts) -> F + 'static) {
    let hosts = Hosts::new(seed);
    let main = test(hosts.clone());
    hosts.machines.executor().block_on(TEST_MAX, main).expect("comes to its end");
    hosts.machines.shutdown();
}

#[test]
fn a_copy_is_refused_while_the_host_lives_and_both_are_told() {
    with(1, |hosts| async move {
        for machine in 0..3 {
            hosts.start(machine).await;
        }
        assert!(hosts.has_ended(2) && !hosts.node(2).is_published(), "the copy lives");
        let ended = hosts.node(2).ended().now_or_never();
        let is_of_1 = |other: &OtherLife| other.endpoint == "h1";
        assert!(matches!(&ended, Some(Ended::Twin(other)) if is_of_1(other)), "{ended:?}");
        assert!(!hosts.has_ended(1), "the copy has ended the host");
        assert!(hosts.said(1, "copy-refused") && hosts.said(2, "host-twice"));
        // It is tried again, as a service manager does.
        hosts.machines.kill(2, false);
        hosts.start(2).await;
        assert!(hosts.has_ended(2) && !hosts.has_ended(1));
        assert!(hosts.node(0).is_alive(host_id(1)));
    });
}

#[test]
fn the_later_one_has_the_identity_of_a_host_that_cannot_be_reached() {
    for paused in [true, false] {
        with(2, move |hosts| async move {
            hosts.start(0).await;
            hosts.start(1).await;
            let (machines, directory) =
                (hosts.machines.clone(), hosts.machines.directory().clone());
            if paused {
                machines.pause(1);
            } else {
                machines.isolate(1, true);
                directory.set_cut(1, true);
            }
            hosts.start(2).await;
            assert!(hosts.node(2).is_published() && hosts.said(2, "host-moved"));
            if paused {
                machines.resume(1);
            } else {
                machines.isolate(1, false);
                directory.set_cut(1, false);
            }
            hosts.wait(SETTLED).await;
            assert!(hosts.has_ended(1), "two processes live as one host (paused: {paused})");
            assert!(!hosts.has_ended(2), "nobody lives as the host (paused: {paused})");
            // What was first is the newcomer now.
            machines.kill(1, false);
            hosts.start(1).await;
            assert!(hosts.has_ended(1) && !hosts.has_ended(2));
        });
    }
}

#[test]
fn a_restart_is_no_other_life_and_takes_no_time() {
    with(3, |hosts| async move {
        hosts.start(0).await;
        hosts.start(1).await;
        for power_lost in [false, true] {
            hosts.machines.kill(1, power_lost);
            hosts.machines.start(1);
            hosts.wait(Nanos::from_secs(1)).await;
            assert!(hosts.node(1).is_published() && !hosts.has_ended(1));
            assert!(!hosts.said(1, "host-moved"));
        }
        hosts.wait(SETTLED).await;
        assert!(!hosts.has_ended(1) && !hosts.said(0, "host-twice"));
    });
}

#[test]
fn two_that_cannot_see_each_other_are_told_by_a_third() {
    with(4, |hosts| async move {
        hosts.start(0).await;
        hosts.start(1).await;
        let (machines, directory) = (hosts.machines.clone(), hosts.machines.directory().clone());
        directory.set_cut(1, true);
        for (from, to) in [(1, 2), (2, 1)] {
            machines.fabric().set_cut(from, to, true);
        }
        hosts.start(2).await;
        assert!(!hosts.has_ended(1) && !hosts.has_ended(2), "neither can know");
        assert!(hosts.said(0, "host-twice"), "the third one talks with both in turn");
        directory.set_cut(1, false);
        hosts.wait(SETTLED).await;
        assert!(hosts.has_ended(1) && !hosts.has_ended(2));
    });
}

#[test]
fn whatever_happens_at_most_one_of_two_goes_on() {
    for seed in 0..40 {
        with(seed, move |hosts| async move {
            let mut rng = Rng::named(seed, "twins");
            let (machines, directory) =
                (hosts.machines.clone(), hosts.machines.directory().clone());
            (0..3).for_each(|machine| machines.start(machine));
            for _ in 0..30 {
                let machine = 1 + (rng.next() % 2) as u16;
                match rng.next() % 7 {
                    0 => machines.kill(machine, rng.next().is_multiple_of(2)),
                    1 => machines.pause(machine),
                    2 => machines.isolate(machine, true),
                    3 => directory.set_cut(machine, true),
                    4 => directory.set_down(rng.next().is_multiple_of(2)),
                    5 => machines.resume(machine),
                    _ => {
                        machines.isolate(machine, false);
                        directory.set_cut(machine, false);
                    }
                }
                if !machines.is_up(machine) {
                    machines.start(machine);
                }
                hosts.wait(Nanos::from_ms(rng.next() % 8_000)).await;
            }
            directory.set_down(false);
            for machine in 1..3 {
                machines.isolate(machine, false);
                directory.set_cut(machine, false);
                machines.resume(machine);
            }
            hosts.wait(SETTLED).await;
            let live = (1..3).filter(|&machine| !hosts.has_ended(machine)).count();
            assert!(live <= 1, "seed {seed}: two processes live as one host");
            // Whoever is started now finds one that lives, or is the only one.
            for machine in 1..3 {
                if hosts.has_ended(usize::from(machine)) {
                    machines.kill(machine, false);
                    hosts.start(machine).await;
                }
            }
            let live = (1..3).filter(|&machine| !hosts.has_ended(machine)).count();
            assert_eq!(live, 1, "seed {seed}: nobody lives as the host");
        });
    }
}
