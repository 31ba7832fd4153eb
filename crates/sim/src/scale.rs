//! What a cluster of given hardware does under a closed loop of clients, without faults, and which
//! resource is busiest: the shipped engine on modelled disks, NICs and cores, in virtual time.
//!
//! A core costs what was measured, not what the product charges: the product knows proportions (a
//! frame, a batch, a KiB), the bench of the real daemons the sum of an I/O, with what the kernel
//! does for it. Before the first point a cluster of two hosts is run until the sums agree.
//!
//! Invariants: the same seed, points and costs give the same rows; a row is of the time between two
//! completions, after a warm-up; an I/O that fails fails the point.

use crate::cluster::{Cluster, ClusterSpec, Home, Shards, volume_name};
use crate::cpu::AS_CHARGED;
use crate::disk::DiskProfile;
use crate::executor::{Executor, LifeId};
use crate::machines::{Hardware, Machines};
use crate::net::NetProfile;
use crate::rng::Rng;
use crate::storage::RealStorage;
use crate::trace::Trace;
use atoll_format::record::Policy;
use atoll_format::units::{BLOCK, CHUNK};
use atoll_transport::limits::CPU_PER_KIB;
use atoll_world::sync::Notify;
use atoll_world::volume::{Volume, Volumes};
use atoll_world::{Buf, Nanos};
use futures_util::future::try_join_all;
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;

/// Size of each volume: large enough that of 32 random blocks hardly two are the same.
const VOLUME_BYTES: u64 = 16 * CHUNK;
/// Between writing a volume in full and the load: stores have moved everything home, owners are
/// known, members have granted their leases.
const SETTLE: Nanos = Nanos::from_secs(5);
/// A point that has not ended by then never will: a hundred times what the slowest one takes.
const VIRTUAL_MAX: Nanos = Nanos::from_secs(100_000);
/// Of the I/Os that are measured, so many go before: one in.
const WARM_UP: u64 = 4;
/// So many small I/Os stand for one large one.
const LARGE_COUNTS: u64 = 16;
/// Costs are taken when they are off by less: batches are longer where work costs more, so that
/// they are found step by step.
const CALIBRATED: f64 = 0.02;
/// And after so many steps those that came closest, unless they are off by more than that.
const CALIBRATED_MAX: f64 = 0.1;
/// See [`CALIBRATED_MAX`].
const CALIBRATIONS_MAX: u32 = 8;
/// I/Os of a volume in each of these steps.
const CALIBRATION_OPS: u64 = 500;
/// From here on a resource is what binds.
const BINDS: f64 = 0.85;
/// Logs are multiples of this: three times what is written to them, because a burst ends when three
/// eighths are full, and no more, because a new one is filled with zeros.
const LOG_STEP: u64 = 16 << 20;
/// Cores of a host, at most.
pub const CORES_MAX: u16 = 64;
/// Smallest disk: what a store accepts.
const DISK_MIN: u64 = 1 << 30;
/// Bytes of log that a block takes at most, its share of a batch's head included.
const LOG_BYTES_PER_BLOCK: u64 = 2 * BLOCK;

/// What all clients do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Random writes of 4 KiB, 32 at once a volume.
    RandomWrite,
    /// Random reads of 4 KiB, 32 at once a volume.
    RandomRead,
    /// Writes of 1 MiB one after the other, 8 at once a volume.
    SequentialWrite,
    /// Reads of 1 MiB one after the other, 8 at once a volume.
    SequentialRead,
}

impl Workload {
    /// All of them.
    pub const ALL: &[Self] =
        &[Self::RandomWrite, Self::RandomRead, Self::SequentialWrite, Self::SequentialRead];

    /// As the bench calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::RandomWrite => "rw4k",
            Self::RandomRead => "rr4k",
            Self::SequentialWrite => "sw1m",
            Self::SequentialRead => "sr1m",
        }
    }

    /// Bytes of an I/O.
    pub fn bytes(self) -> u64 {
        if self.is_large() { CHUNK } else { BLOCK }
    }

    /// I/Os of a volume that are under way at once.
    pub fn depth(self) -> u64 {
        if self.is_large() { 8 } else { 32 }
    }

    fn is_large(self) -> bool {
        matches!(self, Self::SequentialWrite | Self::SequentialRead)
    }

    fn writes(self) -> bool {
        matches!(self, Self::RandomWrite | Self::SequentialWrite)
    }
}

/// The disks of each host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskKind {
    /// [`DiskProfile::NVME`].
    Nvme,
    /// [`DiskProfile::SATA`].
    Ssd,
    /// [`DiskProfile::HDD`].
    Hdd,
}

impl DiskKind {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Nvme, Self::Ssd, Self::Hdd];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvme => "nvme",
            Self::Ssd => "ssd",
            Self::Hdd => "hdd",
        }
    }

    fn profile(self) -> DiskProfile {
        match self {
            Self::Nvme => DiskProfile::NVME,
            Self::Ssd => DiskProfile::SATA,
            Self::Hdd => DiskProfile::HDD,
        }
    }
}

/// The NIC of each host, and the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Network {
    /// [`NetProfile::GBIT_10`].
    Gbit10,
    /// [`NetProfile::GBIT_25`].
    Gbit25,
    /// [`NetProfile::GBIT_100`].
    Gbit100,
}

impl Network {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Gbit10, Self::Gbit25, Self::Gbit100];

    /// Its rate in Gbit/s.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gbit10 => "10",
            Self::Gbit25 => "25",
            Self::Gbit100 => "100",
        }
    }

    fn profile(self) -> NetProfile {
        match self {
            Self::Gbit10 => NetProfile::GBIT_10,
            Self::Gbit25 => NetProfile::GBIT_25,
            Self::Gbit100 => NetProfile::GBIT_100,
        }
    }
}

/// Where the client of a volume is: its host is the volume's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On a host that has a copy: reads stay there.
    WithCopy,
    /// On one that has none: every byte goes over the network.
    Apart,
}

impl Place {
    /// All of them.
    pub const ALL: &[Self] = &[Self::WithCopy, Self::Apart];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::WithCopy => "with-copy",
            Self::Apart => "apart",
        }
    }
}

/// A cluster and its load. Volume `v` has its client on host `v`, beginning anew after the last
/// host, and its two copies on that host and the next, or on the next two; a single host has one
/// copy. The volumes of a host have their clients on its shards in turn. The first copy is in the
/// group of the shard with the same number as the client's, the second in that of the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Hosts: one NIC each.
    pub hosts: u16,
    /// Cores of each, at most [`CORES_MAX`]. Each runs a shard, whose disk group is one disk.
    pub cores: u16,
    /// Volumes.
    pub volumes: u16,
    /// Their disks.
    pub disk: DiskKind,
    /// Their NICs.
    pub net: Network,
    /// Where clients are.
    pub place: Place,
    /// How many times as fast as the core that costs were measured on theirs are.
    pub core_speed: u16,
}

impl Point {
    /// Four hosts of an NVMe disk on 25 GbE, a volume each, its client beside a copy.
    pub const DEFAULT: Self = Self {
        hosts: 4,
        cores: 1,
        volumes: 4,
        disk: DiskKind::Nvme,
        net: Network::Gbit25,
        place: Place::WithCopy,
        core_speed: 1,
    };

    /// Host and shard of the client of a volume.
    fn client(&self, volume: u16) -> Home {
        (volume % self.hosts, volume / self.hosts % self.cores)
    }

    /// Where the copies of a volume are.
    fn copies(&self, volume: u16) -> Vec<Home> {
        let (host, shard) = self.client(volume);
        let first = host + u16::from(self.place == Place::Apart);
        let copy = |n| ((first + n) % self.hosts, (shard + n) % self.cores);
        (0..self.copies_each()).map(copy).collect()
    }

    fn copies_each(&self) -> u16 {
        self.hosts.min(2)
    }

    fn check(&self) -> Result<(), String> {
        let least = if self.place == Place::Apart { 3 } else { 1 };
        if self.hosts < least || self.volumes == 0 || self.core_speed == 0 {
            return Err(format!(
                "{} hosts, {} volumes, core speed {}: at least {least}, 1 and 1 are needed",
                self.hosts, self.volumes, self.core_speed
            ));
        }
        if !(1..=CORES_MAX).contains(&self.cores) {
            return Err(format!("{} cores: 1 to {CORES_MAX} are needed", self.cores));
        }
        Ok(())
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (disk, net, place) = (self.disk.name(), self.net.name(), self.place.name());
        let Self { hosts, cores, volumes, core_speed, .. } = self;
        write!(
            f,
            "hosts {hosts}, cores {cores}, volumes {volumes}, {disk}, {net} GbE, \
             clients {place}, core speed {core_speed}"
        )
    }
}

/// Points that are looked at together.
#[derive(Clone, Debug)]
pub struct Sheet {
    /// What for.
    pub title: &'static str,
    /// The points.
    pub points: Vec<Point>,
    /// What is run at each.
    pub workloads: Vec<Workload>,
}

/// The sheets that are measured when nothing is asked for.
pub fn sheets() -> Vec<Sheet> {
    let small = vec![Workload::RandomWrite, Workload::RandomRead];
    let default = Point::DEFAULT;
    // A host's cores are compared under the same load: eight volumes of each host, or sixteen where
    // sixteen cores are to be kept busy.
    let cores = [1, 4].into_iter().flat_map(|hosts| {
        let each = [(1, 8), (2, 8), (4, 8), (8, 8), (1, 16), (16, 16)];
        each.map(|(cores, volumes)| Point {
            hosts,
            cores,
            volumes: hosts * volumes,
            net: Network::Gbit100,
            ..default
        })
    });
    let hosts = DiskKind::ALL.iter().flat_map(|&disk| {
        (1..=10).map(move |hosts| Point { hosts, volumes: hosts, disk, ..default })
    });
    let volumes = [1, 2, 4, 8].map(|volumes| Point { volumes, ..default });
    let networks = [1, 4].into_iter().flat_map(|core_speed| {
        Network::ALL.iter().map(move |&net| Point {
            net,
            core_speed,
            place: Place::Apart,
            ..default
        })
    });
    vec![
        Sheet { title: "Hosts, a volume each", points: hosts.collect(), workloads: small.clone() },
        Sheet { title: "Volumes", points: volumes.to_vec(), workloads: small.clone() },
        Sheet { title: "Cores, a group each", points: cores.collect(), workloads: small },
        Sheet {
            title: "Networks",
            points: networks.collect(),
            workloads: vec![
                Workload::RandomRead,
                Workload::SequentialWrite,
                Workload::SequentialRead,
            ],
        },
    ]
}

/// Time that one I/O takes of the cores of the hosts in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuPerIo {
    /// Of the owner, for a write; the client is on its host, and it has a copy.
    pub write_owner: Nanos,
    /// Of each other host with a copy, for a write.
    pub write_member: Nanos,
    /// Of the owner, for a read of its own copy.
    pub read: Nanos,
}

impl CpuPerIo {
    /// Of 4 KiB at depth 32: what the daemons took in the bench, on a machine of two slow virtual
    /// cores where the same read of a file costs 10 us. A quarter of it is looking for more work.
    pub const SMALL: Self = Self {
        write_owner: Nanos::from_us(38),
        write_member: Nanos::from_us(30),
        read: Nanos::from_us(27),
    };
    /// Of 1 MiB at depth 8: of the 2.9 and 0.9 ms of the bench, what is left without the client.
    pub const LARGE: Self = Self {
        write_owner: Nanos::from_us(1_500),
        write_member: Nanos::from_us(1_100),
        read: Nanos::from_us(700),
    };
}

/// By what a modelled core gets to a [`CpuPerIo`].
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Of what the product charges.
    per_mille: u64,
    /// What a front end takes on top, per write and per read.
    request: (Nanos, Nanos),
}

impl Costs {
    fn at_speed(self, speed: u16) -> Self {
        let speed = u64::from(speed);
        let (write, read) = self.request;
        Self { per_mille: self.per_mille / speed, request: (write / speed, read / speed) }
    }

    fn of_request(&self, workload: Workload) -> Nanos {
        if workload.writes() { self.request.0 } else { self.request.1 }
    }
}

/// What limits a point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// A core of a host.
    Cpu,
    /// A disk of a host.
    Disk,
    /// One direction of a host's NIC.
    Nic,
    /// None of them is busy: more I/Os at once would do more.
    Depth,
}

impl Bound {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Disk => "disk",
            Self::Nic => "nic",
            Self::Depth => "depth",
        }
    }
}

/// What was measured of a workload at a point.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// Where.
    pub point: Point,
    /// Of what.
    pub workload: Workload,
    /// I/Os that were measured.
    pub ops: u64,
    /// In how much virtual time.
    pub span: Nanos,
    /// Mean latency, the front end's time included.
    pub mean: Nanos,
    /// The latency that 99 of 100 do not exceed.
    pub p99: Nanos,
    /// Time of all hosts' cores per I/O.
    pub cpu_per_io: Nanos,
    /// Use of the busiest core, 0 to 1.
    pub cpu: f64,
    /// Use of the busiest disk: of its channels or its bus.
    pub disk: f64,
    /// Use of the busiest direction of the busiest host's NIC.
    pub nic: f64,
}

impl Row {
    /// I/Os per second of all volumes together.
    pub fn iops(&self) -> f64 {
        self.ops as f64 / self.span.as_secs_f64()
    }

    /// Megabytes (10^6) per second.
    pub fn mb_per_s(&self) -> f64 {
        self.iops() * self.workload.bytes() as f64 / 1e6
    }

    /// What limits it.
    pub fn bound(&self) -> Bound {
        let (busiest, used) = self.busiest();
        if used < BINDS { Bound::Depth } else { busiest }
    }

    /// The resource that is used most, and how much.
    pub fn busiest(&self) -> (Bound, f64) {
        let all = [(Bound::Cpu, self.cpu), (Bound::Disk, self.disk), (Bound::Nic, self.nic)];
        all.into_iter().fold((Bound::Depth, 0.0), |a, b| if b.1 > a.1 { b } else { a })
    }
}

/// A model whose cores cost what was measured.
pub struct Scale {
    seed: u64,
    /// I/Os of 4 KiB per volume that are measured.
    ops: u64,
    small: (CpuPerIo, OnceCell<Costs>),
    large: (CpuPerIo, OnceCell<Costs>),
}

impl Scale {
    /// A model in which an I/O of 4 KiB costs `small` and one of 1 MiB `large` of the cores, where
    /// the hosts are as busy as they were when that was measured; `ops` of 4 KiB are measured a
    /// volume, and a sixteenth as many of 1 MiB.
    pub fn new(seed: u64, ops: u64, small: CpuPerIo, large: CpuPerIo) -> Self {
        Self { seed, ops, small: (small, OnceCell::new()), large: (large, OnceCell::new()) }
    }

    /// Those of a workload, calibrated at their first use.
    fn costs(&self, workload: Workload) -> Result<Costs, String> {
        let ((target, costs), pair) = match workload.is_large() {
            true => (&self.large, [Workload::SequentialWrite, Workload::SequentialRead]),
            false => (&self.small, [Workload::RandomWrite, Workload::RandomRead]),
        };
        if let Some(costs) = costs.get() {
            return Ok(*costs);
        }
        let found = calibrate(self.seed, pair, *target)?;
        Ok(*costs.get_or_init(|| found))
    }

    /// Runs a workload at a point.
    ///
    /// # Errors
    /// A sentence: there is no such cluster, or an I/O failed.
    pub fn measure(&self, point: Point, workload: Workload) -> Result<Row, String> {
        point.check()?;
        let each = if workload.is_large() { (self.ops / LARGE_COUNTS).max(1) } else { self.ops };
        let costs = self.costs(workload)?.at_speed(point.core_speed);
        let seen = observe(self.seed, point, workload, costs, each)
            .map_err(|why| format!("{point}: {}: {why}", workload.name()))?;
        let used = |kinds: &[usize]| {
            let all = seen.work.iter().flat_map(|of| kinds.iter().map(|&kind| of[kind]));
            let most = all.max().unwrap_or_default();
            (most.as_secs_f64() / seen.span.as_secs_f64()).min(1.0)
        };
        let cpu_per_io = seen.cpu_per_io();
        let mut latencies = seen.latencies;
        latencies.sort_unstable();
        let ops = latencies.len() as u64;
        let sum = latencies.iter().fold(Nanos::ZERO, |sum, one| sum + *one);
        Ok(Row {
            point,
            workload,
            ops,
            span: seen.span,
            mean: sum / ops,
            p99: latencies[(latencies.len() * 99).div_ceil(100) - 1],
            cpu_per_io,
            cpu: used(&[CORE]),
            disk: used(&[CHANNELS, BUS]),
            nic: used(&[SENDING, RECEIVING]),
        })
    }
}

/// By how much charges must be scaled, and what of a request is missing, for `target`.
///
/// Two hosts own a volume each and have the other's copy, so that both cores are busy and batches
/// as long as they are then. What a write charges at its member is more than at its owner by the
/// payload that comes in, and otherwise the same.
fn calibrate(seed: u64, [write, read]: [Workload; 2], target: CpuPerIo) -> Result<Costs, String> {
    let point = Point { hosts: 2, volumes: 2, ..Point::DEFAULT };
    let each = CALIBRATION_OPS / if write.is_large() { LARGE_COUNTS } else { 1 };
    let payload = CPU_PER_KIB * (write.bytes() >> 10);
    let mut costs = Costs { per_mille: AS_CHARGED, request: (Nanos::ZERO, Nanos::ZERO) };
    let mut best = (f64::MAX, costs);
    for _ in 0..CALIBRATIONS_MAX {
        let spent = |workload| observe(seed, point, workload, costs, each).map(|s| s.cpu_per_io());
        let (writes, reads) = (spent(write)?, spent(read)?);
        let off = |spent: Nanos, target: Nanos| (spent.0 as f64 / target.0 as f64 - 1.0).abs();
        let error =
            off(writes, target.write_owner + target.write_member).max(off(reads, target.read));
        if error < best.0 {
            best = (error, costs);
        }
        if error < CALIBRATED {
            break;
        }
        let charged = |spent: Nanos, request| (spent - request) * AS_CHARGED / costs.per_mille;
        let (writes, reads) = (charged(writes, costs.request.0), charged(reads, costs.request.1));
        let member = (writes + payload) / 2;
        let per_mille = (target.write_member.0 * AS_CHARGED / member.0.max(1)).max(1);
        let scaled = |charged: Nanos| charged * per_mille / AS_CHARGED;
        let write_request = target.write_owner - scaled(writes - member);
        costs = Costs { per_mille, request: (write_request, target.read - scaled(reads)) };
    }
    if best.0 > CALIBRATED_MAX {
        let CpuPerIo { write_owner, write_member, read } = target;
        return Err(format!(
            "modelled cores cannot be made to take {write_owner:?} and {write_member:?} for a \
             write and {read:?} for a read: they are off by {:.0} %; give costs whose proportions \
             are closer to the defaults",
            best.0 * 100.0
        ));
    }
    Ok(best.1)
}

/// Kinds of work of a shard, its disk, and the NIC of its host.
const KINDS: usize = 5;
const CORE: usize = 0;
const CHANNELS: usize = 1;
const BUS: usize = 2;
const SENDING: usize = 3;
const RECEIVING: usize = 4;

/// What each shard of each host has done so far, by kind.
fn work(machines: &Machines) -> Vec<[Nanos; KINDS]> {
    let of_host = |host: u16| {
        let (sending, receiving) = machines.fabric().busy(host);
        let shards = machines.cores(host).iter().zip(machines.disks(host));
        shards.map(move |(core, disk)| {
            let (channels, bus) = disk.busy();
            [core.busy(machines.executor().now()), channels, bus, sending, receiving]
        })
    };
    (0..machines.hosts()).flat_map(of_host).collect()
}

/// What was seen between two moments.
struct Seen {
    span: Nanos,
    latencies: Vec<Nanos>,
    work: Vec<[Nanos; KINDS]>,
}

impl Seen {
    /// Time of all cores.
    fn cpu_per_io(&self) -> Nanos {
        let cores = self.work.iter().fold(Nanos::ZERO, |sum, shard| sum + shard[CORE]);
        cores / self.latencies.len() as u64
    }
}

/// What all clients of a run share with whoever waits for its end.
struct Meter {
    machines: Machines,
    workload: Workload,
    request: Nanos,
    /// I/Os of all volumes before it is measured, and of the measurement.
    warm_up: u64,
    ops: u64,
    done: Cell<u64>,
    latencies: RefCell<Vec<Nanos>>,
    begun: RefCell<Option<(Nanos, Vec<[Nanos; KINDS]>)>>,
    result: RefCell<Option<Result<Seen, String>>>,
    over: Cell<bool>,
    ended: Notify,
}

impl Meter {
    fn executor(&self) -> &Executor {
        self.machines.executor()
    }

    fn end(&self, result: Result<Seen, String>) {
        if !self.over.replace(true) {
            *self.result.borrow_mut() = Some(result);
            self.ended.notify_all();
        }
    }

    /// One more I/O is done.
    fn count(&self, latency: Nanos) {
        let done = self.done.get() + 1;
        self.done.set(done);
        if done > self.warm_up {
            self.latencies.borrow_mut().push(latency);
        }
        let now = self.executor().now();
        if done == self.warm_up {
            *self.begun.borrow_mut() = Some((now, work(&self.machines)));
        }
        if done == self.warm_up + self.ops {
            let (from, before) = self.begun.take().expect("the warm-up was counted");
            let mut spent = work(&self.machines);
            for (after, before) in spent.iter_mut().flatten().zip(before.iter().flatten()) {
                *after = *after - *before;
            }
            let (span, latencies) = (now.since(from), self.latencies.take());
            self.end(Ok(Seen { span, latencies, work: spent }));
        }
    }

    /// One of the I/Os that are under way at once, again and again.
    async fn client<V: Volume>(
        self: Rc<Self>,
        volume: V,
        (host, shard): Home,
        next: Rc<Cell<u64>>,
        rng: Rng,
    ) {
        let (bytes, mut rng) = (self.workload.bytes(), rng);
        let places = VOLUME_BYTES / bytes;
        let data = Buf::zeros(bytes as usize);
        while !self.over.get() {
            let place = match self.workload.is_large() {
                true => next.replace((next.get() + 1) % places),
                false => rng.below(places),
            };
            let ex = self.executor();
            let from = ex.now();
            let core = &self.machines.cores(host)[usize::from(shard)];
            ex.sleep_until(core.spend(from, self.request)).await;
            let done = match self.workload.writes() {
                true => volume.write(place * bytes, vec![data.clone()]).await,
                false => volume.read(place * bytes, bytes as u32).await.map(|_| ()),
            };
            match done {
                Ok(()) => self.count(ex.now().since(from)),
                Err(error) => self.end(Err(error.to_string())),
            }
        }
    }
}

/// A cluster as a point says, whose cores take so many thousandths of what the product charges.
fn cluster(
    seed: u64,
    point: Point,
    log_bytes: u64,
    per_mille: u64,
) -> (Cluster<RealStorage>, Machines) {
    let copies = u64::from(point.volumes) * u64::from(point.copies_each());
    let hardware = Hardware {
        hosts: point.hosts,
        cores: point.cores as u8,
        disks: point.cores,
        // Free places for chunks that are written anew; what holds nothing costs nothing.
        disk_bytes: DISK_MIN + 2 * log_bytes + 4 * copies * VOLUME_BYTES,
        disk: point.disk.profile(),
        net: point.net.profile(),
    };
    let machines = Machines::new(seed, hardware, Trace::new(false));
    let cores = (0..point.hosts).flat_map(|host| machines.cores(host));
    cores.for_each(|core| core.set_cost(per_mille));
    let policy = Policy { failures_to_tolerate: point.copies_each() as u8 - 1, ..Policy::DEFAULT };
    let spec = ClusterSpec {
        volumes: vec![(VOLUME_BYTES, policy); usize::from(point.volumes)],
        clients: Vec::new(),
        placement: Some((0..point.volumes).map(|v| vec![point.copies(v)]).collect()),
        ops: 0,
        repair_delay_s: 3600,
        administered: false,
        stride: 1,
        calm: false,
        diskless: false,
        upgraded: false,
        emptied: false,
        shards: Shards::DiskEach(point.cores as u8),
        history: None,
    };
    let cluster = Cluster::new(machines.clone(), spec, RealStorage::new(log_bytes));
    (cluster, machines)
}

/// Runs `workload` at `point`: `each` I/Os a volume, after a quarter as many.
fn observe(
    seed: u64,
    point: Point,
    workload: Workload,
    costs: Costs,
    each: u64,
) -> Result<Seen, String> {
    let volumes = u64::from(point.volumes);
    let (ops, warm_up) = (each * volumes, (each * volumes).div_ceil(WARM_UP));
    let copies = volumes * u64::from(point.copies_each());
    // Whole chunks go past the log.
    let logged =
        if workload == Workload::RandomWrite { (ops + warm_up).div_ceil(volumes) } else { 0 };
    let groups = u64::from(point.hosts) * u64::from(point.cores);
    let logged = logged * copies.div_ceil(groups) * LOG_BYTES_PER_BLOCK;
    let log_bytes = (logged * 3).max(1).next_multiple_of(LOG_STEP);
    let (cluster, machines) = cluster(seed, point, log_bytes, costs.per_mille);
    let meter = Rc::new(Meter {
        machines: machines.clone(),
        workload,
        request: costs.of_request(workload),
        warm_up,
        ops,
        done: Cell::new(0),
        latencies: RefCell::default(),
        begun: RefCell::default(),
        result: RefCell::default(),
        over: Cell::new(false),
        ended: Notify::default(),
    });
    let run = run(seed, point, cluster, meter);
    let end = machines.executor().block_on(VIRTUAL_MAX, run);
    machines.shutdown();
    end.map_err(|stuck| format!("it does not end: {stuck:?}"))?
}

async fn run(
    seed: u64,
    point: Point,
    cluster: Cluster<RealStorage>,
    meter: Rc<Meter>,
) -> Result<Seen, String> {
    cluster.set_up().await?;
    let mut volumes = Vec::new();
    for v in 0..point.volumes {
        let (host, shard) = point.client(v);
        let shards = cluster.shards(host);
        let node = shards.get(usize::from(shard)).ok_or_else(|| format!("h{host} is not up"))?;
        let volume = node.open(&volume_name(usize::from(v))).await.map_err(|e| e.to_string())?;
        volumes.push(((host, shard), volume));
    }
    // Zeros are data to the product, and take no memory on a modelled disk.
    let chunk = Buf::zeros(CHUNK as usize);
    try_join_all(volumes.iter().map(|(_, volume)| {
        let chunk = &chunk;
        async move {
            for at in (0..VOLUME_BYTES).step_by(CHUNK as usize) {
                volume.write(at, vec![chunk.clone()]).await.map_err(|e| e.to_string())?;
            }
            Ok::<(), String>(())
        }
    }))
    .await?;
    cluster.wait(SETTLE).await;
    let ended = meter.ended.notified();
    for (v, (at, volume)) in volumes.into_iter().enumerate() {
        let next = Rc::new(Cell::new(0));
        for client in 0..meter.workload.depth() {
            let rng = Rng::named(seed, &format!("load {v} {client}"));
            let client = meter.clone().client(volume.clone(), at, next.clone(), rng);
            meter.executor().spawn(LifeId::HARNESS, client);
        }
    }
    ended.await;
    meter.result.take().expect("it has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loop that looks at the shards, on cores that have really been used.
    #[test]
    fn owners_move_from_a_shard_that_is_full_to_one_that_is_not() {
        let point = Point { hosts: 1, volumes: 4, cores: 2, ..Point::DEFAULT };
        // Slow cores: eight writes at once fill one.
        let (cluster, machines) = cluster(0, point, 64 << 20, 400_000);
        let executor = machines.executor().clone();
        let test = async move {
            cluster.set_up().await.expect("nothing goes wrong");
            let node = cluster.shards(0)[0].clone();
            // Their copies are on the first shard, too: the second has nothing to do.
            for v in [0, 2] {
                let volume = node.open(&volume_name(v)).await.expect("it is there");
                for client in 0..4 {
                    let volume = volume.clone();
                    executor.spawn(LifeId::HARNESS, async move {
                        loop {
                            let data = vec![Buf::zeros(BLOCK as usize)];
                            if volume.write(client * BLOCK, data).await.is_err() {
                                return;
                            }
                        }
                    });
                }
            }
            let on_second = |cluster: &Cluster<RealStorage>| {
                let owners = cluster.objects().into_iter().filter_map(|object| object.owner);
                owners.filter(|owner| owner.shard == 1).count()
            };
            cluster.wait(Nanos::from_secs(4)).await;
            assert_eq!(on_second(&cluster), 0, "clients and owners are on the first shard");
            cluster.wait(Nanos::from_secs(26)).await;
            assert_eq!(on_second(&cluster), 1, "one has moved, and the rest waits for its effect");
        };
        machines.executor().block_on(VIRTUAL_MAX, test).expect("it ends");
        machines.shutdown();
    }
}
