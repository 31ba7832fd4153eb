//! The machines of a simulated cluster, without any program: hosts with disks, clocks and cores, a
//! network, a directory, and the events that befall them.
//!
//! A *boot* function, given once, starts the program of a host in a fresh life; everything else
//! that happens to hosts (crash, pause, partition, ...) is here and knows nothing of the program.
//!
//! Invariants: a host has at most one life; what outlives it is its disks, its clock and what it
//! has sent; [`Machines::heal`] ends every ailment, so that what then goes wrong is the program's.

use crate::clock::Clock;
use crate::cpu::Cpu;
use crate::directory::DirectoryService;
use crate::disk::{DiskProfile, SimDisk};
use crate::event_file::EventFile;
use crate::executor::{Executor, LifeId};
use crate::fault::{DiskRates, FaultKind, Faults, NetRates, Plan};
use crate::net::{Fabric, NetProfile};
use crate::rng::Rng;
use crate::step::{POINTS, Step};
use crate::trace::Trace;
use crate::world::SimWorld;
use atoll_format::id::Incarnation;
use atoll_node::Life;
use atoll_world::net::Lane;
use atoll_world::{Nanos, mark};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::rc::Rc;

/// Clocks of two hosts drift apart by at most twice that: what leases are made for is 5 %.
const DRIFT_PPM_MAX: u64 = 20_000;
/// Shorter than this, a pause is shorter than a lease.
const SHORT_PAUSE: (Nanos, Nanos) = (Nanos::from_ms(5), Nanos::from_ms(1_500));
/// And this is longer than one.
const LONG_PAUSE: (Nanos, Nanos) = (Nanos::from_secs(3), Nanos::from_secs(20));
/// When all hosts go down at once, they are back by then: before anybody is left out, which takes
/// the others six seconds after their own start.
const BACK_SOON: Nanos = Nanos::from_secs(2);

/// Events that came later count from here on.
const LATER_EVENTS: u32 = 1_000;
/// The numbers of those at marks.
const MARK_EVENTS: u32 = 2_000;
/// One first visit of a mark in so many ends its host.
const MARK_ODDS: u32 = 4;
/// So many times a run.
const MARK_KILLS_MAX: u32 = 4;
/// The numbers of those at steps.
const STEP_EVENTS: u32 = 3_000;
/// So many points between two operations of devices are chosen a run.
const STEP_KILLS: usize = 6;
/// The longest that a host is down that was killed at a mark or a step.
const MARK_DOWN: Nanos = Nanos::from_secs(4);
/// The longest that a stop in order takes.
const STOP_MAX: Nanos = Nanos::from_secs(10);

/// What machines are made of.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// Hosts.
    pub hosts: u16,
    /// Disks in each.
    pub disks: u16,
    /// Cores of each: a shard of its program has one to itself.
    pub cores: u8,
    /// Size of each disk, in bytes.
    pub disk_bytes: u64,
    /// What each disk can do.
    pub disk: DiskProfile,
    /// What the network can do.
    pub net: NetProfile,
}

/// An event of the plan that took place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Befallen {
    /// Counts the seed's events from 1, those left out included.
    pub number: u32,
    /// When.
    pub at: Nanos,
    /// What.
    pub kind: FaultKind,
    /// On which host, if it is about one.
    pub host: u16,
}

/// Told of a host whose program has ended: its number.
type Death = dyn Fn(u16);
/// What a host does before it ends in order.
pub type Farewell = Pin<Box<dyn Future<Output = ()>>>;
type SayFarewell = dyn Fn(u16) -> Farewell;

/// Starts the program of a host: its number, its disks, its world.
pub type Boot = dyn Fn(u16, Vec<SimDisk>, SimWorld);

struct HostRig {
    disks: Vec<SimDisk>,
    events: EventFile,
    /// Of the programs of this machine since its power came: what the lock of a data directory
    /// proves.
    begun: RefCell<Vec<Incarnation>>,
    clock: Rc<Clock>,
    cores: Vec<Rc<Cpu>>,
    life: Cell<Option<LifeId>>,
    lives: Cell<u32>,
    /// Of its present life.
    shards: Cell<u8>,
}

/// A point between two operations of devices at which a host is to be killed.
struct Target {
    number: u32,
    /// What has ended, and what is under way.
    point: (Step, Step),
    /// The so manieth time from now on.
    visits: u64,
    power: bool,
    down: Nanos,
}

/// When some host or shard was paused, or starved.
#[derive(Default)]
struct Stalls {
    paused: BTreeSet<u16>,
    paused_shards: BTreeSet<(u16, u8)>,
    starved: BTreeSet<u16>,
    since: Option<Nanos>,
    over: Vec<(Nanos, Nanos)>,
}

impl Stalls {
    fn change(&mut self, now: Nanos, change: impl FnOnce(&mut Self)) {
        change(self);
        let hosts = self.paused.len() + self.starved.len();
        let any = hosts + self.paused_shards.len() > 0;
        match self.since {
            None if any => self.since = Some(now),
            Some(since) if !any => {
                self.over.push((since, now));
                self.since = None;
            }
            _ => {}
        }
    }

    fn within(&self, from: Nanos, to: Nanos) -> Nanos {
        let open = self.since.map(|since| (since, to));
        let of = |&(a, b): &(Nanos, Nanos)| b.min(to).since(a.max(from));
        self.over.iter().chain(&open).map(of).fold(Nanos::ZERO, |sum, n| sum + n)
    }
}

struct Inner {
    seed: u64,
    executor: Executor,
    faults: Faults,
    fabric: Fabric,
    directory: DirectoryService,
    hosts: Vec<HostRig>,
    boot: RefCell<Option<Rc<Boot>>>,
    death: RefCell<Option<Rc<Death>>>,
    farewell: RefCell<Option<Rc<SayFarewell>>>,
    rng: RefCell<Rng>,
    /// No more events: what is still planned does nothing.
    healed: Cell<bool>,
    /// Moments of damage to a medium that are left: a disk that is nothing but damage says little.
    damages: Cell<u32>,
    /// Partitions break connections at once.
    abrupt: Cell<bool>,
    /// Hosts that start with other disks than all in order: the numbers of those they get.
    sets: RefCell<BTreeMap<u16, Vec<usize>>>,
    /// Disks in each other's place, by host and number.
    swapped: RefCell<Vec<[(u16, usize); 2]>>,
    befallen: RefCell<Vec<Befallen>>,
    /// Times in which some program was not scheduled as it should be.
    stalls: RefCell<Stalls>,
    /// What the programs have come by.
    marks: RefCell<BTreeSet<&'static str>>,
}

/// The machines; clones are the same.
#[derive(Clone)]
pub struct Machines(Rc<Inner>);

impl Machines {
    /// Machines that are switched off.
    pub fn new(seed: u64, spec: Hardware, trace: Trace) -> Self {
        let executor = Executor::new(seed, trace);
        let faults = Faults::default();
        let stream = |name: &str| Rng::named(seed, name);
        let fabric = Fabric::new(&executor, spec.hosts, spec.net, stream("net"), faults.clone());
        let directory =
            DirectoryService::new(&executor, spec.hosts, stream("directory"), faults.clone());
        let mut offsets = stream("clocks");
        let host = |h: u16| HostRig {
            disks: (0..spec.disks)
                .map(|d| {
                    let name = format!("h{h}d{d}");
                    let rng = stream(&format!("disk {name}"));
                    let bytes = spec.disk_bytes;
                    SimDisk::new(&executor, h, &name, spec.disk, bytes, rng, faults.clone())
                })
                .collect(),
            events: EventFile::new(&executor, seed, h),
            begun: RefCell::default(),
            clock: Rc::new(Clock::new(offsets.span(Nanos::from_secs(1), Nanos::from_secs(90_000)))),
            cores: (0..spec.cores).map(|_| Rc::default()).collect(),
            life: Cell::new(None),
            lives: Cell::new(0),
            shards: Cell::new(0),
        };
        let hosts = (0..spec.hosts).map(host).collect();
        Self(Rc::new(Inner {
            seed,
            executor,
            faults,
            fabric,
            directory,
            hosts,
            boot: RefCell::new(None),
            death: RefCell::new(None),
            farewell: RefCell::new(None),
            rng: RefCell::new(stream("events")),
            healed: Cell::new(false),
            damages: Cell::new(stream("damages").within(1, 12) as u32),
            abrupt: Cell::new(false),
            sets: RefCell::default(),
            swapped: RefCell::default(),
            befallen: RefCell::default(),
            stalls: RefCell::default(),
            marks: RefCell::default(),
        }))
    }

    /// What [`Machines::start`] runs.
    pub fn set_boot(&self, boot: impl Fn(u16, Vec<SimDisk>, SimWorld) + 'static) {
        *self.0.boot.borrow_mut() = Some(Rc::new(boot));
    }

    /// Runs whenever a host's life has ended and its tasks are gone: to free what is left.
    pub fn set_death(&self, death: impl Fn(u16) + 'static) {
        *self.0.death.borrow_mut() = Some(Rc::new(death));
    }

    /// How a host gives back what it owns before its process ends.
    pub fn set_farewell(&self, farewell: impl Fn(u16) -> Farewell + 'static) {
        *self.0.farewell.borrow_mut() = Some(Rc::new(farewell));
    }

    /// The executor.
    pub fn executor(&self) -> &Executor {
        &self.0.executor
    }
    /// Where all chance comes from.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }
    /// What was reached.
    pub fn faults(&self) -> &Faults {
        &self.0.faults
    }
    /// The network.
    pub fn fabric(&self) -> &Fabric {
        &self.0.fabric
    }
    /// The directory.
    pub fn directory(&self) -> &DirectoryService {
        &self.0.directory
    }
    /// How many hosts.
    pub fn hosts(&self) -> u16 {
        self.0.hosts.len() as u16
    }
    /// A host's disks.
    pub fn disks(&self, host: u16) -> &[SimDisk] {
        &self.0.hosts[usize::from(host)].disks
    }
    /// A life of a host's program begins, and none before it on this machine goes on.
    pub fn begin_life(&self, host: u16, incarnation: Incarnation) -> Life {
        let mut begun = self.0.hosts[usize::from(host)].begun.borrow_mut();
        let outlived = begun.clone();
        begun.push(incarnation);
        Life { incarnation, outlived }
    }

    /// Where a host's events last.
    pub fn events(&self, host: u16) -> &EventFile {
        &self.0.hosts[usize::from(host)].events
    }
    /// A host's cores; shard `n` is on core `n`.
    pub fn cores(&self, host: u16) -> &[Rc<Cpu>] {
        &self.0.hosts[usize::from(host)].cores
    }
    /// How many shards its program has; 0 while it is down.
    pub fn shards(&self, host: u16) -> u8 {
        self.0.hosts[usize::from(host)].shards.get()
    }
    /// Its life, if it is up.
    pub fn life(&self, host: u16) -> Option<LifeId> {
        self.0.hosts[usize::from(host)].life.get()
    }
    /// Whether it is up.
    pub fn is_up(&self, host: u16) -> bool {
        self.life(host).is_some()
    }

    fn say(&self, host: Option<u16>, text: String) {
        self.0.executor.trace().fact(self.0.executor.now(), host, "fault", text);
    }

    async fn wait(&self, span: Nanos) {
        let ex = &self.0.executor;
        ex.sleep_until(ex.now() + span).await;
    }

    /// Starts the program of a host, unless it is up.
    pub fn start(&self, host: u16) {
        let machines = &self.0.hosts[usize::from(host)];
        if machines.life.get().is_some() {
            return;
        }
        let life = self.0.executor.new_life(host);
        machines.life.set(Some(life));
        machines.lives.set(machines.lives.get() + 1);
        machines.shards.set(1);
        self.say(Some(host), format!("start, life {}", machines.lives.get()));
        let world = self.world(host, life);
        let boot = self.0.boot.borrow().clone().expect("set before any host starts");
        let disks = match self.0.sets.borrow().get(&host) {
            Some(set) => set.iter().map(|&n| machines.disks[n].clone()).collect(),
            None => machines.disks.clone(),
        };
        boot(host, disks, world);
    }

    fn world(&self, host: u16, life: LifeId) -> SimWorld {
        let machines = &self.0.hosts[usize::from(host)];
        SimWorld::new(
            &self.0.executor,
            life,
            machines.clock.clone(),
            machines.cores[0].clone(),
            Rng::named(self.0.seed, &format!("host {host} life {}", machines.lives.get())),
            self.0.fabric.attach(host),
            self.0.directory.client(host),
        )
    }

    /// The world of one more shard of the process that runs in `first`, on the host's next core.
    pub fn next_shard(&self, first: &SimWorld) -> SimWorld {
        let machines = &self.0.hosts[usize::from(self.0.executor.host_of(first.life()))];
        assert_eq!(machines.life.get(), Some(first.life()), "its process has ended");
        let shard = machines.shards.get();
        machines.shards.set(shard + 1);
        let core = machines.cores.get(usize::from(shard)).expect("a core for each shard");
        first.of_next_shard(shard, core.clone())
    }

    /// A world on the machine of a host that is down, for the harness to look at its disks.
    pub fn harness_world(&self, host: u16) -> SimWorld {
        assert!(!self.is_up(host), "its program is running");
        self.world(host, LifeId::HARNESS)
    }

    /// Ends the program of a host, or the power of the whole host with all that is volatile.
    /// Must not be called from a task of that host.
    pub fn kill(&self, host: u16, power_lost: bool) {
        let machines = &self.0.hosts[usize::from(host)];
        let Some(life) = machines.life.take() else { return };
        self.say(Some(host), if power_lost { "power lost" } else { "killed" }.into());
        machines.shards.set(0);
        self.stalls(|stalls| {
            stalls.paused.remove(&host);
            stalls.paused_shards.retain(|(of, _)| *of != host);
        });
        self.0.fabric.detaching(host, power_lost);
        self.0.executor.kill(life);
        self.0.fabric.detached(host);
        let death = self.0.death.borrow().clone();
        if let Some(death) = death {
            death(host);
        }
        for disk in &machines.disks {
            if power_lost {
                disk.power_lost();
            } else {
                disk.process_died();
            }
        }
        machines.cores.iter().for_each(|core| core.reset());
        if power_lost {
            machines.events.power_lost();
            machines.begun.borrow_mut().clear();
            let uptime = self.0.rng.borrow_mut().span(Nanos::from_secs(1), Nanos::from_secs(60));
            machines.clock.reboot(self.0.executor.now(), uptime);
        }
    }

    /// Stops scheduling a host's program.
    pub fn pause(&self, host: u16) {
        if let Some(life) = self.life(host) {
            self.say(Some(host), "paused".into());
            self.stalls(|stalls| _ = stalls.paused.insert(host));
            self.0.executor.pause(life);
        }
    }

    /// Schedules it again.
    pub fn resume(&self, host: u16) {
        if let Some(life) = self.life(host)
            && self.0.executor.is_paused(life)
        {
            self.say(Some(host), "resumed".into());
            self.stalls(|stalls| _ = stalls.paused.remove(&host));
            self.0.executor.resume(life);
        }
    }

    /// Stops scheduling one shard of a host's program: its core does nothing, the others go on.
    pub fn pause_shard(&self, host: u16, shard: u8) {
        if let Some(life) = self.life(host) {
            assert!(shard < self.shards(host), "h{host} has no shard {shard}");
            self.say(Some(host), format!("shard {shard} paused"));
            self.stalls(|stalls| _ = stalls.paused_shards.insert((host, shard)));
            self.0.executor.pause_shard(life, shard);
        }
    }

    /// Schedules it again.
    pub fn resume_shard(&self, host: u16, shard: u8) {
        let is_paused = self.0.stalls.borrow().paused_shards.contains(&(host, shard));
        if let Some(life) = self.life(host).filter(|_| is_paused) {
            self.say(Some(host), format!("shard {shard} resumed"));
            self.stalls(|stalls| _ = stalls.paused_shards.remove(&(host, shard)));
            self.0.executor.resume_shard(life, shard);
        }
    }

    /// Cuts everything between a host and the others, and its way to the directory.
    pub fn isolate(&self, host: u16, cut: bool) {
        for other in (0..self.hosts()).filter(|o| *o != host) {
            self.0.fabric.set_cut(host, other, cut);
            self.0.fabric.set_cut(other, host, cut);
        }
        self.0.directory.set_cut(host, cut);
    }

    /// From now on a host's clock is that much fast, in parts per million, and its wall clock has
    /// jumped by so many milliseconds.
    pub fn set_clock(&self, host: u16, ppm: i64, jump_ms: i64) {
        self.say(Some(host), format!("clock {ppm} ppm fast, wall clock {jump_ms} ms off"));
        let clock = &self.0.hosts[usize::from(host)].clock;
        clock.set_rate(self.0.executor.now(), ppm);
        clock.jump_wall(jump_ms);
    }

    /// A host's cores are so many times as slow; 1: as fast as ever.
    pub fn starve(&self, host: u16, factor: u64) {
        self.say(Some(host), format!("core {factor} times as slow"));
        self.stalls(|stalls| {
            _ = if factor > 1 { stalls.starved.insert(host) } else { stalls.starved.remove(&host) };
        });
        self.cores(host).iter().for_each(|core| core.set_starved(factor));
    }

    fn stalls(&self, change: impl FnOnce(&mut Stalls)) {
        self.0.stalls.borrow_mut().change(self.0.executor.now(), change);
    }

    /// For how long between two moments some host or shard was paused, or starved of its core:
    /// nobody can be in time then.
    pub fn stalled(&self, from: Nanos, to: Nanos) -> Nanos {
        self.0.stalls.borrow().within(from, to)
    }

    /// Switches the faults of operations on.
    pub fn set_rates(&self, plan: &Plan) {
        self.0.abrupt.set(plan.on.has(FaultKind::PartitionAbrupt));
        self.0.fabric.set_rates(plan.net);
        self.0.directory.set_rates(plan.directory);
        // What two disks exchanged have keeps its faults: stores find it in the other place.
        let swapped = self.0.swapped.borrow();
        let holds = |place| {
            let pair = swapped.iter().find(|pair| pair.contains(&place));
            pair.map_or(place, |&[a, b]| if a == place { b } else { a })
        };
        for (h, host) in self.0.hosts.iter().enumerate() {
            for (n, disk) in host.disks.iter().enumerate() {
                let (h, n) = holds((h as u16, n));
                let damaged = plan.victim == Some(h);
                let mut rates = plan.disk;
                // A capacity device that refuses writes is given up with what it holds: within the
                // promise only where nothing drops another host's copies.
                if n > 0 {
                    (rates.write_error, rates.flush_error, rates.full) = (0, 0, 0);
                }
                if damaged {
                    rates = DiskRates { slow: rates.slow, ..plan.medium };
                }
                disk.set_rates(rates);
            }
        }
    }

    /// The plan's events that took place.
    pub fn befallen(&self) -> Vec<Befallen> {
        self.0.befallen.borrow().clone()
    }

    /// Changes the rates at the plan's moments, before anything else that happens then, until
    /// [`Machines::heal`].
    pub fn change_rates(&self, plan: &Plan) {
        for (at, later) in plan.later.clone() {
            let machines = self.clone();
            self.0.executor.call_at(at, move || {
                if !machines.0.healed.get() {
                    machines.set_rates(&later);
                }
            });
        }
    }

    /// Lets the plan's events happen until [`Machines::heal`].
    pub async fn befall(self, plan: Plan) {
        if plan.events.is_empty() {
            return;
        }
        let mut rng = Rng::named(self.0.seed, "what befalls");
        let mut number = 0;
        while !self.0.healed.get() {
            let next = rng.span(plan.event_every / 8, plan.event_every * 2);
            self.wait(next).await;
            number += 1;
            let Some((kind, host, of_it)) = self.next_event(&plan, &plan.events, number, &mut rng)
            else {
                continue;
            };
            let event = self.clone().event(kind, host, plan.victim, of_it);
            self.0.executor.spawn(LifeId::HARNESS, event);
        }
    }

    /// Event `number`, one of `kinds`: what, to whom, and its stream of chance; none if it is left
    /// out, or everything has healed.
    fn next_event(
        &self,
        plan: &Plan,
        kinds: &[FaultKind],
        number: u32,
        rng: &mut Rng,
    ) -> Option<(FaultKind, u16, Rng)> {
        if self.0.healed.get() {
            return None;
        }
        let kind = *rng.pick(kinds);
        let any = rng.below(u64::from(self.hosts())) as u16;
        // One failure at a time is promised: it is the host with the damaged disks that dies.
        let host = plan.victim.unwrap_or(any);
        let of_it = Rng::named(rng.next(), "one event");
        if !plan.part.has_event(number, kind) {
            return None;
        }
        let at = self.0.executor.now();
        self.0.befallen.borrow_mut().push(Befallen { number, at, kind, host });
        self.say(Some(host), format!("event {number}: {}", kind.name()));
        Some((kind, host, of_it))
    }

    /// Lets those of the plan's events happen that came later; see [`Machines::befall`].
    pub async fn befall_later(self, plan: Plan) {
        if plan.later_events.is_empty() {
            return;
        }
        let mut rng = Rng::named(self.0.seed, "what befalls later");
        let mut left = self.0.damages.get().min(4);
        let mut number = LATER_EVENTS;
        while !self.0.healed.get() && left > 0 {
            let next = rng.span(plan.event_every / 4, plan.event_every * 4);
            self.wait(next).await;
            left -= 1;
            number += 1;
            let found = self.next_event(&plan, &plan.later_events, number, &mut rng);
            let Some((kind, host, mut rng)) = found else { continue };
            match kind {
                FaultKind::StaleDisk => self.put_clone_back(host, &mut rng).await,
                FaultKind::DiskEmptied => self.empty_disks(host, &mut rng).await,
                FaultKind::SwappedDisks => {
                    self.swap_disks(host, plan.victim.is_none(), &mut rng).await;
                }
                FaultKind::KillInRecovery => self.kill_in_recovery(host, &mut rng).await,
                FaultKind::LaneStalled => self.stall_lane(host, &mut rng).await,
                FaultKind::ClusterRestart => self.restart_all(&mut rng).await,
                FaultKind::OrderlyStop => self.stop_for_a_while(host, &mut rng).await,
                FaultKind::DiskSet => self.change_disk_set(host, &mut rng).await,
                _ => {}
            }
        }
    }

    /// Its disks are cloned while it runs; later the clones are in their place.
    async fn put_clone_back(&self, host: u16, rng: &mut Rng) {
        let disks = self.disks(host);
        let wipes: u32 = disks.iter().map(SimDisk::wipes).sum();
        let clones: Vec<_> = disks.iter().map(SimDisk::image).collect();
        self.wait(rng.span(Nanos::from_ms(20), Nanos::from_secs(8))).await;
        if self.0.healed.get() || disks.iter().map(SimDisk::wipes).sum::<u32>() != wipes {
            return;
        }
        self.kill(host, false);
        self.say(Some(host), "an older clone of its disks is put in".into());
        for (disk, clone) in disks.iter().zip(clones) {
            disk.restore(clone);
        }
        self.wait(rng.span(Nanos::from_ms(5), Nanos::from_secs(5))).await;
        self.start_unless_healed(host);
    }

    async fn empty_disks(&self, host: u16, rng: &mut Rng) {
        self.kill(host, true);
        self.say(Some(host), "empty disks are put in".into());
        self.disks(host).iter().for_each(SimDisk::wipe);
        self.reached(FaultKind::DiskEmptied);
        self.wait(rng.span(Nanos::from_ms(5), Nanos::from_secs(5))).await;
        self.start_unless_healed(host);
    }

    /// It starts with its disks in another order or without one of them, later with all.
    async fn change_disk_set(&self, host: u16, rng: &mut Rng) {
        let count = self.disks(host).len();
        let first = rng.below(count as u64) as usize;
        let mut set: Vec<usize> = (0..count).map(|n| (first + n) % count).collect();
        if rng.below(2) == 0 {
            set.pop();
        }
        self.kill(host, rng.below(2) == 0);
        self.wait(rng.span(Nanos::from_ms(5), Nanos::from_secs(2))).await;
        if self.0.healed.get() {
            return;
        }
        self.say(Some(host), format!("its disks are now {set:?} of {count}"));
        self.reached(FaultKind::DiskSet);
        self.0.sets.borrow_mut().insert(host, set);
        self.start(host);
        self.wait(rng.span(Nanos::from_ms(100), Nanos::from_secs(12))).await;
        if self.0.sets.borrow_mut().remove(&host).is_some() {
            self.kill(host, false);
            self.start_unless_healed(host);
        }
    }

    /// Two disks of one host change places, or (with one disk a host, if `across` is allowed) two
    /// hosts get each other's; later they are put right.
    async fn swap_disks(&self, host: u16, across: bool, rng: &mut Rng) {
        let count = self.disks(host).len();
        let pair = if count > 1 {
            let first = rng.below(count as u64) as usize;
            [(host, first), (host, (first + 1) % count)]
        } else if across {
            [(host, 0), ((host + 1) % self.hosts(), 0)]
        } else {
            return;
        };
        if pair.iter().any(|&(h, d)| self.disks(h)[d].is_misplaced()) {
            return;
        }
        self.exchange(pair);
        self.0.swapped.borrow_mut().push(pair);
        for (h, _) in pair {
            self.start(h);
        }
        self.wait(rng.span(Nanos::from_ms(50), Nanos::from_secs(10))).await;
        if !self.0.healed.get() {
            self.put_right();
            for (h, _) in pair {
                self.start(h);
            }
        }
    }

    /// Marks that the programs have come by since [`Machines::watch_marks`], in order of name.
    pub fn marks(&self) -> Vec<&'static str> {
        self.0.marks.borrow().iter().copied().collect()
    }

    /// Keeps which marks are reached; kills hosts right after their first visit of one, now and
    /// then, if the plan says so.
    pub fn watch_marks(&self, plan: &Plan) {
        let (machines, plan) = (self.clone(), plan.clone());
        let (rng, killed) = (RefCell::new(Rng::named(self.0.seed, "at marks")), Cell::new(0));
        mark::observe(Some(Rc::new(move |name| {
            let is_first = machines.0.marks.borrow_mut().insert(name);
            if !plan.on.has(FaultKind::KillAtMark) || machines.0.healed.get() || !is_first {
                return;
            }
            let number = MARK_EVENTS + machines.0.marks.borrow().len() as u32;
            let life = machines.0.executor.polled();
            let Some(host) = (0..machines.hosts()).find(|&host| machines.life(host) == Some(life))
            else {
                return;
            };
            let mut rng = rng.borrow_mut();
            // What the dice say does not depend on who is spared.
            let (dice, polls) = (rng.below(u64::from(MARK_ODDS)), rng.span(Nanos(1), Nanos(64)).0);
            let (power, down) = (rng.below(2) == 0, rng.span(Nanos::from_ms(5), MARK_DOWN));
            let spared = plan.victim.is_some_and(|victim| victim != host);
            if dice > 0 || spared || killed.get() == MARK_KILLS_MAX {
                return;
            }
            if !plan.part.has_event(number, FaultKind::KillAtMark) {
                return;
            }
            killed.set(killed.get() + 1);
            let of_it = (host, life, power, down);
            machines.clone().kill_at_mark(number, name, polls, of_it);
        })));
    }

    fn kill_at_mark(
        self,
        number: u32,
        name: &'static str,
        polls: u64,
        (host, life, power, down): (u16, LifeId, bool, Nanos),
    ) {
        let (at, kind) = (self.0.executor.now(), FaultKind::KillAtMark);
        self.0.befallen.borrow_mut().push(Befallen { number, at, kind, host });
        self.say(Some(host), format!("event {number}: {} {name}", kind.name()));
        let machines = self.clone();
        self.0.executor.trap(life, polls, move || {
            if machines.0.healed.get() || machines.life(host) != Some(life) {
                return;
            }
            machines.reached(FaultKind::KillAtMark);
            machines.kill(host, power);
            let again = machines.clone();
            machines.0.executor.spawn(LifeId::HARNESS, async move {
                again.wait(down).await;
                again.start_unless_healed(host);
            });
        });
    }

    /// Kills hosts at points between two operations of their devices, if the plan says so: each the
    /// so manieth time that any host comes by it.
    pub fn watch_steps(&self, plan: &Plan) {
        if !plan.on.has(FaultKind::KillAtStep) {
            return;
        }
        let mut rng = Rng::named(self.0.seed, "at steps");
        let mut targets: Vec<_> = (0..STEP_KILLS)
            .map(|n| {
                let visits = 1 << rng.below(6);
                Target {
                    number: STEP_EVENTS + n as u32,
                    point: *rng.pick(&POINTS),
                    visits: rng.span(Nanos(1), Nanos(visits)).0,
                    power: rng.below(2) == 0,
                    down: rng.span(Nanos::from_ms(5), MARK_DOWN),
                }
            })
            .collect();
        targets.retain(|target| plan.part.has_event(target.number, FaultKind::KillAtStep));
        let (victim, targets) = (plan.victim, RefCell::new(targets));
        // It is kept by what the machines keeps.
        let machines = Rc::downgrade(&self.0);
        self.0.faults.observe_steps(move |host, point| {
            let Some(machines) = machines.upgrade().map(Self) else { return false };
            let spared = victim.is_some_and(|victim| victim != host);
            if spared || machines.0.healed.get() || !machines.is_up(host) {
                return false;
            }
            let mut targets = targets.borrow_mut();
            let mut due = None;
            for (at, target) in targets.iter_mut().enumerate().filter(|(_, t)| t.point == point) {
                target.visits = target.visits.saturating_sub(1);
                due = due.or((target.visits == 0).then_some(at));
            }
            let Some(due) = due else { return false };
            let target = targets.remove(due);
            drop(targets);
            machines.kill_at_step(host, &target);
            true
        });
    }

    fn kill_at_step(&self, host: u16, target: &Target) {
        let Target { number, point: (last, next), power, down, .. } = *target;
        let (at, kind) = (self.0.executor.now(), FaultKind::KillAtStep);
        self.0.befallen.borrow_mut().push(Befallen { number, at, kind, host });
        let (last, next) = (last.name(), next.name());
        self.say(Some(host), format!("event {number}: {} {last}, {next}", kind.name()));
        self.reached(kind);
        self.kill(host, power);
        let machines = self.clone();
        self.0.executor.spawn(LifeId::HARNESS, async move {
            machines.wait(down).await;
            machines.start_unless_healed(host);
        });
    }

    /// A stop in order, with clients and all, as an administrator does it. False: it was down, or
    /// something else has ended it.
    pub async fn stop_in_order(&self, host: u16) -> bool {
        let (Some(life), Some(farewell)) = (self.life(host), self.0.farewell.borrow().clone())
        else {
            return false;
        };
        self.say(Some(host), "stops in order".into());
        let until = self.0.executor.now() + STOP_MAX;
        // Not beyond the end of all trouble: nobody is to die while the cluster is judged.
        let limit = std::pin::pin!(async {
            while !self.0.healed.get() && self.0.executor.now() < until {
                self.wait(Nanos::from_ms(20)).await;
            }
        });
        futures_util::future::select(farewell(host), limit).await;
        let came_to_its_end = !self.0.healed.get() && self.life(host) == Some(life);
        self.kill(host, false);
        came_to_its_end
    }

    async fn stop_for_a_while(&self, host: u16, rng: &mut Rng) {
        let down = rng.span(Nanos::from_ms(5), Nanos::from_secs(12));
        if self.life(host).is_none() || self.0.farewell.borrow().is_none() {
            return;
        }
        self.reached(FaultKind::OrderlyStop);
        if self.stop_in_order(host).await {
            self.wait(down).await;
            self.start_unless_healed(host);
        } else {
            // It may have been on its way out.
            self.start(host);
        }
    }

    /// All hosts at once, and all back before anybody is left out.
    async fn restart_all(&self, rng: &mut Rng) {
        self.reached(FaultKind::ClusterRestart);
        let power = rng.below(2) == 0;
        (0..self.hosts()).for_each(|host| self.kill(host, power));
        let mut hosts: Vec<(Nanos, u16)> =
            (0..self.hosts()).map(|host| (rng.span(Nanos::from_ms(5), BACK_SOON), host)).collect();
        hosts.sort();
        let mut waited = Nanos::ZERO;
        for (after, host) in hosts {
            self.wait(after.since(waited)).await;
            waited = after;
            self.start_unless_healed(host);
        }
    }

    fn exchange(&self, [a, b]: [(u16, usize); 2]) {
        for (host, _) in [a, b] {
            self.kill(host, true);
        }
        self.say(Some(a.0), format!("its disk {} and disk {} of h{} change places", a.1, b.1, b.0));
        self.disks(a.0)[a.1].swap(&self.disks(b.0)[b.1]);
    }

    fn put_right(&self) {
        for (host, _) in self.0.sets.take() {
            self.kill(host, false);
        }
        for pair in self.0.swapped.take() {
            self.exchange(pair);
        }
    }

    /// What is on the way in one lane to another host waits, perhaps in both directions.
    async fn stall_lane(&self, host: u16, rng: &mut Rng) {
        let other = (host + 1 + rng.below(u64::from(self.hosts()) - 1) as u16) % self.hosts();
        let (lane, both) = (*rng.pick(&Lane::ALL), rng.below(2) == 0);
        let set = |cut| {
            self.0.fabric.set_lane_cut(host, other, lane, cut);
            if both {
                self.0.fabric.set_lane_cut(other, host, lane, cut);
            }
        };
        self.say(Some(host), format!("{lane:?} to h{other} stands still, both ways: {both}"));
        set(true);
        self.wait(rng.span(Nanos::from_ms(20), Nanos::from_secs(10))).await;
        self.say(Some(host), format!("{lane:?} to h{other} moves again"));
        set(false);
    }

    /// Again and again, before it is up.
    async fn kill_in_recovery(&self, host: u16, rng: &mut Rng) {
        let power = rng.below(2) == 0;
        self.kill(host, power);
        for _ in 0..rng.within(1, 4) {
            self.wait(rng.span(Nanos::from_ms(1), Nanos::from_ms(500))).await;
            self.start_unless_healed(host);
            let Some(life) = self.life(host) else { return };
            let (machines, power) = (self.clone(), rng.below(2) == 0);
            let polls = rng.span(Nanos(1), Nanos(400)).0;
            self.0.executor.trap(life, polls, move || {
                if !machines.0.healed.get() && machines.life(host) == Some(life) {
                    machines.reached(FaultKind::KillInRecovery);
                    machines.kill(host, power);
                }
            });
            self.wait(rng.span(Nanos::from_ms(10), Nanos::from_secs(1))).await;
        }
        self.start_unless_healed(host);
    }

    fn reached(&self, kind: FaultKind) {
        self.0.faults.reached(kind);
    }

    async fn event(self, kind: FaultKind, host: u16, victim: Option<u16>, mut rng: Rng) {
        let down = rng.span(Nanos::from_ms(5), Nanos::from_secs(12));
        let other =
            (host + 1 + rng.below(u64::from(self.hosts()).max(2) - 1) as u16) % self.hosts();
        match kind {
            FaultKind::Kill | FaultKind::PowerLoss if self.is_up(host) => {
                self.reached(kind);
                self.kill(host, kind == FaultKind::PowerLoss);
                self.wait(down).await;
                self.start_unless_healed(host);
            }
            FaultKind::KillAtAwait => {
                let Some(life) = self.life(host) else { return };
                let polls = rng.span(Nanos(1), Nanos(5_000)).0;
                let power = rng.below(2) == 0;
                let machines = self.clone();
                self.0.executor.trap(life, polls, move || {
                    if !machines.0.healed.get() && machines.life(host) == Some(life) {
                        machines.reached(FaultKind::KillAtAwait);
                        machines.kill(host, power);
                    }
                });
                self.wait(down).await;
                self.start_unless_healed(host);
            }
            FaultKind::ClusterPowerLoss => {
                self.reached(kind);
                for h in 0..self.hosts() {
                    self.kill(h, true);
                }
                for h in 0..self.hosts() {
                    let (machines, after) =
                        (self.clone(), rng.span(Nanos::from_ms(5), Nanos::from_secs(12)));
                    self.0.executor.spawn(LifeId::HARNESS, async move {
                        machines.wait(after).await;
                        machines.start_unless_healed(h);
                    });
                }
            }
            FaultKind::ShortPause | FaultKind::LongPause => {
                let Some(life) = self.life(host) else { return };
                let range = if kind == FaultKind::ShortPause { SHORT_PAUSE } else { LONG_PAUSE };
                self.reached(kind);
                self.pause(host);
                let span = rng.span(range.0, range.1);
                self.wait(span).await;
                if self.life(host) == Some(life) {
                    self.resume(host);
                }
            }
            FaultKind::ShardStarved => {
                let Some(life) = self.life(host) else { return };
                let shard = rng.below(u64::from(self.shards(host))) as u8;
                // Of a program with one shard it is a pause.
                if self.shards(host) == 1 {
                    return;
                }
                let range = if rng.below(2) == 0 { SHORT_PAUSE } else { LONG_PAUSE };
                self.reached(kind);
                self.pause_shard(host, shard);
                self.wait(rng.span(range.0, range.1)).await;
                if self.life(host) == Some(life) {
                    self.resume_shard(host, shard);
                }
            }
            FaultKind::Partition => self.partition(host, other, &mut rng).await,
            FaultKind::SlowLink => {
                let factor = rng.span(Nanos(10), Nanos(2_000)).0;
                self.say(Some(host), format!("link to h{other} {factor} times as slow"));
                self.0.fabric.set_slow(host, other, factor);
                if rng.below(2) == 0 {
                    self.0.fabric.set_slow(other, host, factor);
                }
                self.wait(down).await;
                self.0.fabric.set_slow(host, other, 1);
                self.0.fabric.set_slow(other, host, 1);
                self.say(Some(host), format!("link to h{other} as fast as before"));
            }
            FaultKind::ClockRate => {
                self.reached(kind);
                let ppm = rng.below(2 * DRIFT_PPM_MAX + 1) as i64 - DRIFT_PPM_MAX as i64;
                let jump = rng.below(7_200_000) as i64 - 3_600_000;
                self.set_clock(host, ppm, jump);
                self.reached(FaultKind::ClockJump);
            }
            FaultKind::CpuStarved => {
                self.reached(kind);
                let factor = rng.span(Nanos(10), Nanos(1_000)).0;
                self.starve(host, factor);
                self.wait(down).await;
                self.starve(host, 1);
            }
            FaultKind::DiskHang | FaultKind::DiskGone | FaultKind::DiskSlow => {
                let disk = rng.pick(self.disks(host)).clone();
                match kind {
                    FaultKind::DiskHang => {
                        self.say(Some(host), format!("{} hangs", disk.name()));
                        disk.set_hung(true);
                        let span = rng.span(Nanos::from_ms(10), Nanos::from_secs(30));
                        self.wait(span).await;
                        self.say(Some(host), format!("{} answers again", disk.name()));
                        disk.set_hung(false);
                    }
                    FaultKind::DiskGone => {
                        self.say(Some(host), format!("{} disappears", disk.name()));
                        disk.set_gone(true);
                        self.wait(down).await;
                        self.say(Some(host), format!("{} is back", disk.name()));
                        disk.set_gone(false);
                        if !self.0.healed.get() && rng.below(2) == 0 {
                            self.kill(host, false);
                            let span = rng.span(Nanos::from_ms(5), Nanos::from_secs(2));
                            self.wait(span).await;
                            self.start_unless_healed(host);
                        }
                    }
                    _ => {
                        let factor = rng.span(Nanos(10), Nanos(1_000)).0;
                        self.say(Some(host), format!("{} {factor} times as slow", disk.name()));
                        disk.set_slow(factor);
                        self.wait(down).await;
                        self.say(Some(host), format!("{} as fast as before", disk.name()));
                        disk.set_slow(1);
                    }
                }
            }
            FaultKind::DirectoryUnavailable => {
                self.say(None, "directory down".into());
                self.0.directory.set_down(true);
                self.wait(down).await;
                self.say(None, "directory up".into());
                self.0.directory.set_down(false);
            }
            FaultKind::BitFlip | FaultKind::LatentSector => {
                // Without one, no host's media are spared: beyond the promise.
                let victim = victim.unwrap_or(host);
                if self.0.damages.get() == 0 {
                    return;
                }
                self.0.damages.set(self.0.damages.get() - 1);
                let disk = rng.pick(self.disks(victim)).clone();
                for _ in 0..rng.within(1, 4) {
                    if kind == FaultKind::BitFlip {
                        disk.flip();
                    } else {
                        disk.make_latent();
                    }
                }
            }
            _ => {}
        }
    }

    async fn partition(&self, host: u16, other: u16, rng: &mut Rng) {
        if host == other {
            return;
        }
        let span = rng.span(Nanos::from_ms(50), Nanos::from_secs(20));
        match rng.below(4) {
            0 => {
                self.reached(FaultKind::PartitionFull);
                self.say(Some(host), "isolated".into());
                self.isolate(host, true);
                for other in (0..self.hosts()).filter(|o| *o != host) {
                    self.break_if_abrupt(host, other);
                }
                self.wait(span).await;
                self.say(Some(host), "no longer isolated".into());
                self.isolate(host, false);
            }
            1 => {
                self.reached(FaultKind::PartitionOneWay);
                self.say(Some(host), format!("cannot send to h{other}"));
                self.0.fabric.set_cut(host, other, true);
                self.wait(span).await;
                self.say(Some(host), format!("can send to h{other} again"));
                self.0.fabric.set_cut(host, other, false);
            }
            2 => {
                self.say(Some(host), "cannot reach the directory".into());
                self.0.directory.set_cut(host, true);
                self.wait(span).await;
                self.say(Some(host), "can reach the directory again".into());
                self.0.directory.set_cut(host, false);
            }
            _ => {
                self.reached(FaultKind::PartitionPair);
                self.say(Some(host), format!("and h{other} cannot talk"));
                for cut in [true, false] {
                    self.0.fabric.set_cut(host, other, cut);
                    self.0.fabric.set_cut(other, host, cut);
                    if cut {
                        self.break_if_abrupt(host, other);
                        self.wait(span).await;
                    }
                }
                self.say(Some(host), format!("and h{other} can talk again"));
            }
        }
    }

    fn break_if_abrupt(&self, host: u16, other: u16) {
        if self.0.abrupt.get() {
            self.reached(FaultKind::PartitionAbrupt);
            self.0.fabric.break_now(host, other);
        }
    }

    fn start_unless_healed(&self, host: u16) {
        if !self.0.healed.get() {
            self.start(host);
        }
    }

    /// Whether everything has healed.
    pub fn has_healed(&self) -> bool {
        self.0.healed.get()
    }

    /// Ends every ailment: all hosts up, all links whole, all disks as they should be, no more
    /// events.
    pub fn heal(&self) {
        self.say(None, "everything heals".into());
        self.0.healed.set(true);
        self.0.fabric.set_rates(NetRates::default());
        self.0.directory.set_rates(Default::default());
        self.0.directory.set_down(false);
        self.put_right();
        for host in 0..self.hosts() {
            self.isolate(host, false);
            for other in 0..self.hosts() {
                self.0.fabric.set_slow(host, other, 1);
            }
            if self.0.stalls.borrow().starved.contains(&host) {
                self.starve(host, 1);
            }
            for disk in self.disks(host) {
                disk.heal();
            }
            self.resume(host);
            (0..self.shards(host)).for_each(|shard| self.resume_shard(host, shard));
            self.start(host);
        }
    }

    /// Frees everything: tasks and devices refer to each other.
    pub fn shutdown(&self) {
        for host in 0..self.hosts() {
            self.kill(host, true);
        }
        mark::observe(None);
        self.0.farewell.borrow_mut().take();
        self.0.boot.borrow_mut().take();
        self.0.death.borrow_mut().take();
        self.0.executor.shutdown();
    }
}
