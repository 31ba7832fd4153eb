//! What `atoll sim scale` says of clusters agrees with what their hardware can do.

use atoll_sim::scale::{
    Bound, CORES_MAX, CpuPerIo, DiskKind, Network, Place, Point, Row, Scale, Workload,
};
use atoll_world::Nanos;

fn scale(seed: u64) -> Scale {
    Scale::new(seed, 400, CpuPerIo::SMALL, CpuPerIo::LARGE)
}

fn measure(scale: &Scale, point: Point, workload: Workload) -> Row {
    let row = scale.measure(point, workload).unwrap();
    // Little's law: what is under way is what was put under way.
    let under_way = row.iops() * row.mean.as_secs_f64();
    let depth = f64::from(point.volumes) * workload.depth() as f64;
    assert!((under_way / depth - 1.0).abs() < 0.1, "{point}: {under_way} of {depth}");
    row
}

#[test]
fn throughput_follows_the_hardware_and_the_busiest_part_is_named() {
    let scale = scale(0);
    let of = |hosts| Point { hosts, volumes: hosts, ..Point::DEFAULT };
    // What was measured of the daemons is what a point spends.
    let writes = measure(&scale, of(2), Workload::RandomWrite);
    let (owner, member) = (CpuPerIo::SMALL.write_owner, CpuPerIo::SMALL.write_member);
    let off = writes.cpu_per_io.0 as f64 / (owner + member).0 as f64;
    assert!((0.9..1.1).contains(&off), "{:?} a write", writes.cpu_per_io);
    let reads = measure(&scale, of(2), Workload::RandomRead);
    let off = reads.cpu_per_io.0 as f64 / CpuPerIo::SMALL.read.0 as f64;
    assert!((0.9..1.1).contains(&off), "{:?} a read", reads.cpu_per_io);
    // More hosts do more, in proportion: each brings a core.
    let more = measure(&scale, of(5), Workload::RandomWrite);
    let times = more.iops() / writes.iops();
    assert!((2.2..2.8).contains(&times), "{times} times with 5 hosts instead of 2");
    assert_eq!((writes.bound(), more.bound()), (Bound::Cpu, Bound::Cpu));
    // A volume that has the cluster to itself is one owner's work, however many hosts there are.
    let alone = measure(&scale, Point { volumes: 1, ..of(5) }, Workload::RandomWrite);
    assert!(alone.iops() < more.iops() / 2.0, "{alone:?}");
    // Slower disks are slower, and are what binds.
    for workload in [Workload::RandomRead, Workload::RandomWrite] {
        let disks = [DiskKind::Nvme, DiskKind::Ssd, DiskKind::Hdd];
        let iops = disks.map(|disk| measure(&scale, Point { disk, ..of(2) }, workload).iops());
        assert!(iops[0] >= iops[1] && iops[1] > 2.0 * iops[2], "{workload:?}: {iops:?}");
    }
    let hdd = measure(&scale, Point { disk: DiskKind::Hdd, ..of(2) }, Workload::RandomRead);
    assert_eq!(hdd.bound(), Bound::Disk);
}

#[test]
fn a_slow_network_binds_where_cores_and_disks_do_not() {
    let scale = scale(0);
    let [slow, fast] = [Network::Gbit10, Network::Gbit100].map(|net| {
        let point = Point { net, place: Place::Apart, core_speed: 16, ..Point::DEFAULT };
        measure(&scale, point, Workload::SequentialRead)
    });
    assert_eq!(slow.bound(), Bound::Nic, "{slow:?}");
    assert_ne!(fast.bound(), Bound::Nic, "{fast:?}");
    assert!(fast.iops() > 1.5 * slow.iops(), "{} after {}", fast.iops(), slow.iops());
    // Four NICs of 1,250 MB/s.
    assert!((4_000.0..=5_000.0).contains(&slow.mb_per_s()), "{} MB/s", slow.mb_per_s());
}

#[test]
fn a_seed_gives_the_same_row_and_another_one_another() {
    let row = |seed| {
        let scale = scale(seed);
        measure(&scale, Point { hosts: 3, volumes: 2, ..Point::DEFAULT }, Workload::RandomWrite)
    };
    let first = row(1);
    assert_eq!(first, row(1));
    assert_ne!(first, row(2));
}

#[test]
fn a_cluster_that_cannot_be_is_refused() {
    let scale = scale(0);
    for point in [
        Point { hosts: 0, ..Point::DEFAULT },
        Point { volumes: 0, ..Point::DEFAULT },
        Point { core_speed: 0, ..Point::DEFAULT },
        Point { cores: 0, ..Point::DEFAULT },
        Point { cores: CORES_MAX + 1, ..Point::DEFAULT },
        Point { hosts: 2, place: Place::Apart, ..Point::DEFAULT },
    ] {
        let why = scale.measure(point, Workload::RandomRead).unwrap_err();
        assert!(why.contains("are needed"), "{why}");
    }
}

#[test]
fn costs_that_the_model_cannot_reach_are_refused_not_rounded() {
    // An owner does nearly what a member does: it cannot take a thirtieth.
    let costs = CpuPerIo { write_owner: Nanos::from_us(1), ..CpuPerIo::SMALL };
    let scale = Scale::new(0, 400, costs, CpuPerIo::LARGE);
    let why = scale.measure(Point::DEFAULT, Workload::RandomWrite).unwrap_err();
    assert!(why.contains("they are off by"), "{why}");
}

#[test]
fn cores_with_a_disk_group_each_do_more_in_proportion() {
    let scale = scale(0);
    for workload in [Workload::RandomWrite, Workload::RandomRead] {
        let of = |cores| Point { hosts: 1, cores, volumes: 4, ..Point::DEFAULT };
        let [one, four] = [1, 4].map(|cores| measure(&scale, of(cores), workload));
        let times = four.iops() / one.iops();
        assert!(times >= 3.4, "{times} times with 4 cores: {one:?}, {four:?}");
        assert_eq!((one.bound(), four.bound()), (Bound::Cpu, Bound::Cpu));
        // A volume has one owner, and that is on one of them.
        let alone = measure(&scale, Point { volumes: 1, ..of(4) }, workload);
        assert!(alone.iops() < 1.2 * one.iops(), "{alone:?}, {one:?}");
    }
}
