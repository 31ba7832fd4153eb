//! The same history shows the same, whatever the cluster is made of: hosts, copies, legs, kinds of
//! store, and one host that fails again and again.

use atoll_format::record::Policy;
use atoll_format::units::CHUNK;
use atoll_sim::checker::{Fate, Kind};
use atoll_sim::cluster::{Cluster, ClusterSpec, Shards, Storage};
use atoll_sim::disk::DiskProfile;
use atoll_sim::fault::{FaultKind, NetRates, Plan};
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::storage::{RealStorage, ReferenceStorage};
use atoll_sim::trace::Trace;
use atoll_sim::workload::Mix;
use atoll_world::Nanos;

const HISTORIES: u64 = 6;
const CHUNKS: u64 = 4;
const OPS: u64 = 300;
/// The host of the only client; it has no copy, and nothing befalls it.
const CLIENT: u16 = 3;
/// The host that fails.
const VICTIM: u16 = 0;

#[derive(Clone, Copy, Debug)]
struct Made {
    hosts: u16,
    copies: u16,
    legs: u8,
    disks: u16,
    faults: bool,
    on_reference: bool,
}

const PLAIN: Made =
    Made { hosts: 4, copies: 1, legs: 1, disks: 1, faults: false, on_reference: true };
const SHIPPED: Made = Made { on_reference: false, ..PLAIN };

/// The first is the simplest there is: one copy on the reference store.
const MADE: &[Made] = &[
    PLAIN,
    SHIPPED,
    Made { copies: 2, ..SHIPPED },
    Made { copies: 3, disks: 3, ..SHIPPED },
    Made { copies: 3, legs: 3, ..SHIPPED },
    Made { copies: 2, hosts: 7, ..SHIPPED },
    Made { copies: 2, faults: true, ..SHIPPED },
    Made { copies: 3, legs: 2, faults: true, ..SHIPPED },
    Made { copies: 3, hosts: 6, disks: 3, faults: true, ..SHIPPED },
];

/// One operation and what came of it.
type Seen = (Kind, u64, u32, Fate);

/// What the client of a history saw, and how many faults had an effect.
fn play(history: u64, made: Made) -> (Vec<Seen>, u64) {
    let hardware = Hardware {
        hosts: made.hosts,
        cores: 1,
        disks: made.disks,
        disk_bytes: 1 << 30,
        disk: DiskProfile::NVME,
        net: NetProfile::GBIT_25,
    };
    let machines = Machines::new(history, hardware, Trace::new(false));
    let found = if made.on_reference {
        let storage = ReferenceStorage::new(machines.executor(), made.hosts, history);
        play_on(&machines, history, made, storage)
    } else {
        let storage = RealStorage::new(16 << 20).destaging(0, Nanos::from_ms(20));
        play_on(&machines, history, made, storage.checkpointing(16 << 10))
    };
    let faults = machines.faults().total();
    machines.shutdown();
    (found, faults)
}

fn play_on<T: Storage>(machines: &Machines, history: u64, made: Made, storage: T) -> Vec<Seen> {
    let policy = Policy {
        failures_to_tolerate: made.copies as u8 - 1,
        stripe_width: made.legs,
        ..Policy::DEFAULT
    };
    let mix = Mix {
        write: 45,
        discard: 5,
        zero: 5,
        hot: 30,
        hot_at: (1984, 2304),
        len_max: 1 << 20,
        pause: (Nanos::from_us(50), Nanos::from_ms(100)),
        instead: None,
    };
    let leg: Vec<_> = (0..made.copies).map(|host| (host, 0)).collect();
    let spec = ClusterSpec {
        volumes: vec![(CHUNKS * CHUNK, policy)],
        clients: vec![(CLIENT, 0, mix)],
        placement: Some(vec![vec![leg; usize::from(made.legs)]]),
        ops: OPS,
        repair_delay_s: 3600,
        administered: false,
        stride: 1,
        calm: false,
        diskless: false,
        upgraded: false,
        emptied: false,
        shards: Shards::UpTo(1),
        history: Some(history),
    };
    let mut plan = Plan { victim: Some(VICTIM), ..Plan::calm() };
    if made.faults {
        let kinds =
            [FaultKind::Kill, FaultKind::PowerLoss, FaultKind::LongPause, FaultKind::DiskSlow];
        plan.events = kinds.to_vec();
        plan.on = kinds.into_iter().fold(plan.on, |on, kind| on.with(kind));
        plan.event_every = Nanos::from_secs(2);
        plan.net = NetRates { lost: 300, delayed: 1_000, ..NetRates::default() };
    }
    let cluster = Cluster::new(machines.clone(), spec, storage);
    let limit = Nanos::from_secs(600);
    machines.executor().block_on(limit, cluster.clone().run(plan)).expect("it ends");
    cluster.judge();
    assert_eq!(cluster.violations(), [""; 0], "history {history}, {made:?}");
    let book = &cluster.books()[0];
    let ops = book.history();
    // The client's, and the whole volume as the first host reads it back.
    let wanted = ops.ops().iter().filter(|op| op.client == 0 || op.client == 1_000_000);
    wanted.map(|op| (op.kind.clone(), op.first, op.sectors, op.fate())).collect()
}

#[test]
fn a_history_shows_the_same_on_every_kind_of_cluster() {
    let mut faults = 0;
    for history in 0..HISTORIES {
        let (expected, _) = play(history, MADE[0]);
        assert_eq!(expected.len() as u64, OPS + 1);
        let reads =
            |seen: &Seen| matches!(&seen.0, Kind::Read(tags) if tags.iter().any(|&t| t > 0));
        assert!(expected.iter().filter(|seen| reads(seen)).count() > 20, "it reads what it wrote");
        for &made in &MADE[1..] {
            let (seen, reached) = play(history, made);
            faults += reached;
            for (n, (seen, expected)) in seen.iter().zip(&expected).enumerate() {
                assert_eq!(seen, expected, "history {history}, operation {n}, {made:?}");
            }
            assert_eq!(seen.len(), expected.len(), "history {history}, {made:?}");
        }
    }
    assert!(faults > 100, "only {faults} faults had an effect");
}
