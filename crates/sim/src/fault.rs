//! The faults that a run can meet, what was really reached, and which a seed switches on.
//!
//! A fault counts when it has had its effect (a write was really lost, a packet really damaged),
//! not when it was planned.
//!
//! Invariant: the [`Plan`] of a seed stays within what the policy promises to survive. Damage to
//! the medium is confined to the disks of one host (the *victim*), and in such a run nothing may
//! push another host's copies out: that all hosts restart at once and are soon back does not. The
//! other runs may do anything to any host that keeps what a medium has accepted as durable.

use crate::activity::{Activities, Activity, cell_count};
use crate::part::Part;
use crate::rng::{MUTED, Rng};
use crate::step::{self, Step};
use atoll_world::Nanos;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// One kind of fault.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum FaultKind { $($(#[$doc])* $name,)* }

        impl FaultKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            /// Its name in reports and options.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// A sector that cannot be read until it is written again.
    LatentSector = "latent-sector",
    /// A bit of the medium changed by itself.
    BitFlip = "bit-flip",
    /// A write went to another place.
    MisdirectedWrite = "misdirected-write",
    /// A read brought another place's bytes.
    MisdirectedRead = "misdirected-read",
    /// A write was acknowledged and never made.
    LostWrite = "lost-write",
    /// A write was acknowledged and made in part.
    TornWrite = "torn-write",
    /// An unflushed write was lost when the power went.
    UnflushedLost = "unflushed-lost",
    /// An unflushed write, or one in flight, was torn when the power went.
    UnflushedTorn = "unflushed-torn",
    /// A read failed.
    ReadError = "read-error",
    /// A write failed.
    WriteError = "write-error",
    /// A flush failed; what it covered is gone.
    FlushError = "flush-error",
    /// The device said that it is full.
    DiskFull = "disk-full",
    /// An operation that took 10 to 1000 times as long.
    DiskSlow = "disk-slow",
    /// A device that stopped answering.
    DiskHang = "disk-hang",
    /// A device that disappeared.
    DiskGone = "disk-gone",
    /// A device that went back to an older content.
    StaleDisk = "stale-disk",
    /// Two devices that changed places.
    SwappedDisks = "swapped-disks",
    /// A connection broke under traffic.
    ConnectionLost = "connection-lost",
    /// A frame that arrived damaged.
    FrameDamaged = "frame-damaged",
    /// A packet that waited on its way.
    PacketDelayed = "packet-delayed",
    /// A packet that met a partition.
    Partition = "partition",
    /// A packet on a link of a fraction of its rate.
    SlowLink = "slow-link",
    /// A process killed; its disks keep what they have.
    Kill = "kill",
    /// A process killed right after an arbitrary poll.
    KillAtAwait = "kill-at-await",
    /// A host without power: everything volatile is gone.
    PowerLoss = "power-loss",
    /// All hosts without power at once.
    ClusterPowerLoss = "cluster-power-loss",
    /// A process that was not scheduled for less than a lease.
    ShortPause = "short-pause",
    /// A process that was not scheduled for longer than a lease.
    LongPause = "long-pause",
    /// A host whose clock runs fast or slow.
    ClockRate = "clock-rate",
    /// A host whose cores are starved.
    CpuStarved = "cpu-starved",
    /// A call that the directory refused to take.
    DirectoryUnavailable = "directory-unavailable",
    /// A call that took long.
    DirectorySlow = "directory-slow",
    /// A transaction that was carried out, its answer lost.
    DirectoryAnswerLost = "directory-answer-lost",
    /// A transaction that was carried out after its caller had given up.
    DirectoryLate = "directory-late",
    /// A read of the directory that showed an older state.
    DirectoryStaleRead = "directory-stale-read",
    /// A watch event that came late, twice or never.
    WatchOdd = "watch-odd",
    /// A later unflushed write outlived a power loss, an earlier one did not.
    UnflushedReordered = "unflushed-reordered",
    /// An empty disk in the place of one that held something.
    DiskEmptied = "disk-emptied",
    /// A process killed, or its power lost, while it was starting.
    KillInRecovery = "kill-in-recovery",
    /// A connection broke right after a packet had arrived: what is asked again arrives twice.
    AnswerLost = "answer-lost",
    /// A packet that overtook one sent earlier on another connection.
    PacketOvertaken = "packet-overtaken",
    /// A host that nobody reached and that reached nobody.
    PartitionFull = "partition-full",
    /// A host that could not send to another one, but hear it.
    PartitionOneWay = "partition-one-way",
    /// Two hosts that could not talk, others between them could.
    PartitionPair = "partition-pair",
    /// A wall clock that jumped.
    ClockJump = "clock-jump",
    /// A partition that broke the connections under it at once, instead of leaving them silent.
    PartitionAbrupt = "partition-abrupt",
    /// One connection of two hosts stood still, others between them did not.
    LaneStalled = "lane-stalled",
    /// All hosts killed, or without power, at once, and all soon back: no copy is lost by that.
    ClusterRestart = "cluster-restart",
    /// A process killed, or its power lost, right after it had reached a rare state (`sometimes!`)
    /// for the first time in the run.
    KillAtMark = "kill-at-mark",
    /// A host that was stopped in order: it gives back what it owns, then its process ends.
    OrderlyStop = "orderly-stop",
    /// A host that started with another set of disks: in another order, or without one of them.
    DiskSet = "disk-set",
    /// A process killed, or its power lost, between two operations of its devices that were chosen
    /// beforehand: one had ended, one was under way.
    KillAtStep = "kill-at-step",
}

/// How many kinds there were first. Each later one is drawn from a stream of its own, so that a
/// seed does what it did before there was another kind.
const FIRST: usize = FaultKind::WatchOdd as usize + 1;

/// Kinds that are a way in which another kind shows; they are counted, not switched.
const ASPECTS: &[FaultKind] = &[
    FaultKind::UnflushedReordered,
    FaultKind::PacketOvertaken,
    FaultKind::PartitionFull,
    FaultKind::PartitionOneWay,
    FaultKind::PartitionPair,
    FaultKind::ClockJump,
];
/// Hears of each fault that has its effect.
type Observer = dyn Fn(FaultKind);
/// Hears that a device of a host is about to end one operation, and after which one the host's
/// devices have ended last; whether that host's devices are to end none any more, since it crashed.
type StepObserver = dyn Fn(u16, (Step, Step)) -> bool;

struct Inner {
    /// See [`cell_names`](crate::activity::cell_names).
    cells: Vec<Cell<u64>>,
    counts: Vec<Cell<u64>>,
    now: Cell<Activities>,
    /// What the devices of each host have ended last.
    last: RefCell<BTreeMap<u16, Step>>,
    observer: RefCell<Option<Rc<Observer>>>,
    at_steps: RefCell<Option<Rc<StepObserver>>>,
}

/// How often each fault had its effect; clones are the same.
#[derive(Clone)]
pub struct Faults(Rc<Inner>);

impl Default for Faults {
    fn default() -> Self {
        let kinds = FaultKind::ALL.len();
        Self(Rc::new(Inner {
            cells: vec![Cell::new(0); cell_count()],
            counts: vec![Cell::new(0); kinds],
            now: Cell::default(),
            last: RefCell::default(),
            observer: RefCell::default(),
            at_steps: RefCell::default(),
        }))
    }
}

impl Faults {
    /// Counts one.
    pub fn reached(&self, kind: FaultKind) {
        let count = &self.0.counts[kind as usize];
        count.set(count.get() + 1);
        for activity in self.0.now.get().list() {
            let cell = &self.0.cells[kind as usize * Activity::ALL.len() + activity as usize];
            cell.set(cell.get() + 1);
        }
        if let Some(observer) = &*self.0.observer.borrow() {
            observer(kind);
        }
    }
    /// A device of that host is about to end an operation. Whether the host crashes first, and has
    /// crashed when this returns.
    pub fn crashes_before(&self, host: u16, step: Step) -> bool {
        let last = self.0.last.borrow().get(&host).copied();
        let observer = self.0.at_steps.borrow().clone();
        let crashes = last.zip(observer).is_some_and(|(last, ask)| ask(host, (last, step)));
        if !crashes {
            self.0.last.borrow_mut().insert(host, step);
        }
        crashes
    }
    /// A host crashes while its devices are at an operation. Counts if the cluster is at anything.
    pub fn crashed_before(&self, host: u16, step: Step) {
        let last = self.0.last.borrow().get(&host).copied();
        let point = last.and_then(|last| step::POINTS.binary_search(&(last, step)).ok());
        if let Some(point) = point.filter(|_| self.0.now.get() != Activities::default()) {
            let cell = &self.0.cells[FaultKind::ALL.len() * Activity::ALL.len() + point];
            cell.set(cell.get() + 1);
        }
    }
    /// Asks that at every step of a host whether it crashes there. Who says so has crashed it.
    pub fn observe_steps(&self, observer: impl Fn(u16, (Step, Step)) -> bool + 'static) {
        *self.0.at_steps.borrow_mut() = Some(Rc::new(observer));
    }
    /// What the cluster is at from now on.
    pub fn set_activities(&self, now: Activities) {
        self.0.now.set(now);
    }
    /// How often each kind had its effect during each activity, and crashes by what they came
    /// between, in order of [`cell_names`](crate::activity::cell_names).
    pub fn cells(&self) -> Vec<u64> {
        self.0.cells.iter().map(Cell::get).collect()
    }
    /// Calls that at every fault from now on. It must not reach a fault itself.
    pub fn observe(&self, observer: impl Fn(FaultKind) + 'static) {
        *self.0.observer.borrow_mut() = Some(Rc::new(observer));
    }
    /// How often.
    pub fn count(&self, kind: FaultKind) -> u64 {
        self.0.counts[kind as usize].get()
    }
    /// All of them in order of kind.
    pub fn counts(&self) -> Vec<u64> {
        self.0.counts.iter().map(Cell::get).collect()
    }
    /// Their sum.
    pub fn total(&self) -> u64 {
        self.0.counts.iter().map(Cell::get).sum()
    }
}

/// A set of kinds, as an option of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FaultSet(u64);

const _: () = assert!(FaultKind::ALL.len() <= 64);

impl FaultSet {
    /// Every kind.
    pub const ALL: Self = Self(u64::MAX);
    /// No kind.
    pub const NONE: Self = Self(0);
    /// What seeds did before 2026-11-22: for those that are kept since.
    pub const FIRST: Self =
        Self((1 << FIRST) - 1).without(FaultKind::StaleDisk).without(FaultKind::SwappedDisks);
    /// What they did on that day.
    pub const SECOND: Self =
        Self::THIRD.without(FaultKind::PartitionAbrupt).without(FaultKind::LaneStalled);
    /// And a little later, with [`Features::ALL`](crate::feature::Features::ALL) of then.
    pub const THIRD: Self = Self((1 << (FaultKind::LaneStalled as usize + 1)) - 1);
    /// What they did on 2026-11-26.
    pub const FOURTH: Self = Self((1 << (FaultKind::KillAtStep as usize + 1)) - 1);
    /// Whether it has that one.
    pub fn has(self, kind: FaultKind) -> bool {
        self.0 >> kind as u8 & 1 == 1
    }
    /// With that one too.
    #[must_use]
    pub const fn with(self, kind: FaultKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }
    /// Without that one.
    #[must_use]
    pub const fn without(self, kind: FaultKind) -> Self {
        Self(self.0 & !(1 << kind as u8))
    }
    /// The kinds in it.
    pub fn kinds(self) -> impl Iterator<Item = FaultKind> {
        FaultKind::ALL.iter().copied().filter(move |k| self.has(*k))
    }
    /// Reads a list of names: `kill,partition`; `all`; `none`; a leading `-` takes one out of all.
    ///
    /// # Errors
    /// A sentence that names what is unknown and what there is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut set = match text.split(',').next() {
            Some(first) if first.starts_with('-') => Self::ALL,
            _ => Self::NONE,
        };
        for name in text.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            match name {
                "all" => set = Self::ALL,
                "none" => set = Self::NONE,
                _ => {
                    let (out, name) = match name.strip_prefix('-') {
                        Some(name) => (true, name),
                        None => (false, name),
                    };
                    let found = FaultKind::ALL.iter().find(|k| k.name() == name);
                    let Some(&kind) = found else {
                        let all: Vec<_> = FaultKind::ALL.iter().map(|k| k.name()).collect();
                        return Err(format!(
                            "no fault is called '{name}'; there are {}",
                            all.join(", ")
                        ));
                    };
                    set = if out { set.without(kind) } else { set.with(kind) };
                }
            }
        }
        Ok(set)
    }
}

impl fmt::Debug for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kinds().map(FaultKind::name)).finish()
    }
}

/// How often the operations of one disk go wrong, in parts per million of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskRates {
    /// A read fails.
    pub read_error: u32,
    /// A write fails.
    pub write_error: u32,
    /// A flush fails.
    pub flush_error: u32,
    /// The device says that it is full.
    pub full: u32,
    /// A write is acknowledged and not made.
    pub lost: u32,
    /// A write is acknowledged and made in part.
    pub torn: u32,
    /// A write goes elsewhere.
    pub misdirected_write: u32,
    /// A read comes from elsewhere.
    pub misdirected_read: u32,
    /// An operation takes 10 to 1000 times as long.
    pub slow: u32,
}

/// How often packets go wrong, in parts per million of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetRates {
    /// The connection breaks.
    pub lost: u32,
    /// A bit of the frame is flipped.
    pub damaged: u32,
    /// It waits 1 to 1000 ms on its way, and what is behind it with it.
    pub delayed: u32,
    /// The connection breaks right after it has arrived.
    pub answer_lost: u32,
}

/// How often calls of the directory go wrong, in parts per million of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectoryRates {
    /// It is refused.
    pub unavailable: u32,
    /// It takes 10 to 1000 times as long.
    pub slow: u32,
    /// It is carried out, the answer lost.
    pub answer_lost: u32,
    /// It is carried out up to 10 s after its caller was told that the outcome is unknown.
    pub late: u32,
    /// A read shows an older state.
    pub stale: u32,
    /// A watch event comes late, twice or never.
    pub watch: u32,
}

/// What a seed does to a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kinds that this seed switches on.
    pub on: FaultSet,
    /// The one host whose media may be damaged; then nothing drops another host's copies.
    pub victim: Option<u16>,
    /// For the victim's disks.
    pub medium: DiskRates,
    /// For every disk.
    pub disk: DiskRates,
    /// For every connection.
    pub net: NetRates,
    /// For the directory.
    pub directory: DirectoryRates,
    /// Mean time between timed events (crashes, pauses, partitions, ...).
    pub event_every: Nanos,
    /// Kinds of timed events, to pick from; empty: none.
    pub events: Vec<FaultKind>,
    /// Those that came later, with a stream of chance of their own.
    pub later_events: Vec<FaultKind>,
    /// More is damaged than the policy promises to survive: what is left is "refuses, never lies".
    pub beyond: bool,
    /// What of all that is carried out.
    pub part: Part,
    /// What the rates become, and when: a part may have a kind for a while only.
    pub later: Vec<(Nanos, Plan)>,
}

/// Kinds that damage what a medium had accepted.
pub const MEDIUM: &[FaultKind] = &[
    FaultKind::LatentSector,
    FaultKind::BitFlip,
    FaultKind::MisdirectedWrite,
    FaultKind::MisdirectedRead,
    FaultKind::LostWrite,
    FaultKind::TornWrite,
];

/// Kinds that happen at a moment, to the cluster, rather than to an operation.
pub const TIMED: &[FaultKind] = &[
    FaultKind::Kill,
    FaultKind::KillAtAwait,
    FaultKind::PowerLoss,
    FaultKind::ClusterPowerLoss,
    FaultKind::ShortPause,
    FaultKind::LongPause,
    FaultKind::Partition,
    FaultKind::SlowLink,
    FaultKind::ClockRate,
    FaultKind::CpuStarved,
    FaultKind::DiskHang,
    FaultKind::DiskGone,
    FaultKind::DiskSlow,
    FaultKind::DirectoryUnavailable,
];

impl Plan {
    /// No fault at all.
    pub fn calm() -> Self {
        Self {
            on: FaultSet::NONE,
            victim: None,
            medium: DiskRates::default(),
            disk: DiskRates::default(),
            net: NetRates::default(),
            directory: DirectoryRates::default(),
            event_every: Nanos::NEVER,
            events: Vec::new(),
            later_events: Vec::new(),
            beyond: false,
            part: Part::default(),
            later: Vec::new(),
        }
    }

    /// What `seed` does to `hosts` hosts, of the kinds in `allowed`: each is on with probability
    /// one half, with a rate of its own, so that over many seeds every combination is met, also
    /// those in which a frequent fault would hide a rare one.
    pub fn of_seed(seed: u64, hosts: u16, allowed: FaultSet) -> Self {
        Self::of_seed_muting(seed, hosts, allowed, FaultSet::NONE)
    }

    /// The same with the rates of the kinds in `muted` [`MUTED`].
    pub(crate) fn of_seed_muting(
        seed: u64,
        hosts: u16,
        allowed: FaultSet,
        muted: FaultSet,
    ) -> Self {
        let mut rng = Rng::named(seed, "faults");
        let mut on = FaultSet::NONE;
        for &kind in &FaultKind::ALL[..FIRST] {
            if rng.below(2) == 0 && allowed.has(kind) {
                on = on.with(kind);
            }
        }
        // One run in three damages media; the others do everything else.
        let damages = rng.below(3) == 0 && MEDIUM.iter().any(|k| on.has(*k));
        let drawn = on;
        let victim = damages.then(|| rng.below(u64::from(hosts)) as u16);
        for kind in FaultKind::ALL {
            let medium = MEDIUM.contains(kind);
            // What is harmless to other hosts' copies while one host's are damaged.
            let quiet = matches!(
                kind,
                FaultKind::DirectoryStaleRead
                    | FaultKind::WatchOdd
                    | FaultKind::ClockRate
                    | FaultKind::DirectorySlow
                    | FaultKind::ReadError
                    // On the victim's disks only.
                    | FaultKind::WriteError
                    | FaultKind::FlushError
                    | FaultKind::DiskFull
                    // Of the victim itself only, see `Rig::befall`.
                    | FaultKind::Kill
                    | FaultKind::KillAtAwait
                    | FaultKind::PowerLoss
            );
            if (medium && !damages) || (damages && !medium && !quiet) {
                on = on.without(*kind);
            }
        }
        let mut rate = |kind: FaultKind, most: u64| {
            let ppm = rng.span(Nanos(20), Nanos(most)).0 as u32;
            match (on.has(kind), muted.has(kind)) {
                (true, true) => ppm | MUTED,
                (true, false) => ppm,
                (false, _) => 0,
            }
        };
        let medium = DiskRates {
            read_error: rate(FaultKind::ReadError, 5_000),
            write_error: if damages { rate(FaultKind::WriteError, 300) } else { 0 },
            flush_error: if damages { rate(FaultKind::FlushError, 300_000) } else { 0 },
            full: if damages { rate(FaultKind::DiskFull, 200) } else { 0 },
            lost: rate(FaultKind::LostWrite, 5_000),
            torn: rate(FaultKind::TornWrite, 5_000),
            misdirected_write: rate(FaultKind::MisdirectedWrite, 5_000),
            misdirected_read: rate(FaultKind::MisdirectedRead, 5_000),
            ..DiskRates::default()
        };
        let disk = DiskRates {
            read_error: if damages { 0 } else { rate(FaultKind::ReadError, 2_000) },
            write_error: if damages { 0 } else { rate(FaultKind::WriteError, 300) },
            flush_error: if damages { 0 } else { rate(FaultKind::FlushError, 300_000) },
            full: if damages { 0 } else { rate(FaultKind::DiskFull, 200) },
            slow: rate(FaultKind::DiskSlow, 5_000),
            ..DiskRates::default()
        };
        let net = NetRates {
            lost: rate(FaultKind::ConnectionLost, 3_000),
            damaged: rate(FaultKind::FrameDamaged, 2_000),
            delayed: rate(FaultKind::PacketDelayed, 5_000),
            ..NetRates::default()
        };
        let directory = DirectoryRates {
            unavailable: rate(FaultKind::DirectoryUnavailable, 100_000),
            slow: rate(FaultKind::DirectorySlow, 200_000),
            answer_lost: rate(FaultKind::DirectoryAnswerLost, 100_000),
            late: rate(FaultKind::DirectoryLate, 100_000),
            stale: rate(FaultKind::DirectoryStaleRead, 300_000),
            watch: rate(FaultKind::WatchOdd, 300_000),
        };
        let timed = |k: &FaultKind| TIMED.contains(k) && on.has(*k);
        let mut events: Vec<FaultKind> = FaultKind::ALL.iter().copied().filter(timed).collect();
        for kind in [FaultKind::LatentSector, FaultKind::BitFlip] {
            if on.has(kind) {
                events.push(kind);
            }
        }
        let event_every = rng.span(Nanos::from_ms(100), Nanos::from_secs(8));
        let later_events = Vec::new();
        let mut plan = Self {
            on,
            victim,
            medium,
            disk,
            net,
            directory,
            event_every,
            events,
            later_events,
            beyond: false,
            part: Part::default(),
            later: Vec::new(),
        };
        for &kind in &FaultKind::ALL[FIRST..] {
            if allowed.has(kind) && !ASPECTS.contains(&kind) {
                plan.add_later(kind, muted.has(kind), &mut Rng::named(seed, kind.name()));
            }
        }
        // An older content is damage; disks in each other's place lose nothing.
        for (kind, fits) in [(FaultKind::StaleDisk, damages), (FaultKind::SwappedDisks, true)] {
            plan.on = plan.on.without(kind);
            if drawn.has(kind) && fits {
                plan.on = plan.on.with(kind);
                plan.later_events.push(kind);
            }
        }
        plan
    }

    /// Perhaps switches a kind on that came later.
    fn add_later(&mut self, kind: FaultKind, muted: bool, rng: &mut Rng) {
        // Those that cost the victim its disk or push other hosts' copies out have their runs.
        let fits = match kind {
            FaultKind::DiskEmptied => self.victim.is_some(),
            FaultKind::AnswerLost | FaultKind::LaneStalled | FaultKind::OrderlyStop => {
                self.victim.is_none()
            }
            FaultKind::PartitionAbrupt => self.on.has(FaultKind::Partition),
            _ => true,
        };
        if rng.below(2) == 0 || !fits {
            return;
        }
        self.on = self.on.with(kind);
        let rate = |rng: &mut Rng, most: u64| rng.span(Nanos(20), Nanos(most)).0 as u32;
        match kind {
            FaultKind::AnswerLost => {
                let ppm = rate(rng, 3_000);
                self.net.answer_lost = if muted { ppm | MUTED } else { ppm };
            }
            // A way in which the partitions of this seed begin; what has moments of its own.
            FaultKind::PartitionAbrupt | FaultKind::KillAtMark | FaultKind::KillAtStep => {}
            _ => self.later_events.push(kind),
        }
    }

    /// Operations of the victim's disks go wrong so many times as often.
    pub(crate) fn make_harsher(&mut self, times: u32) {
        let medium = &mut self.medium;
        for rate in [
            &mut medium.lost,
            &mut medium.torn,
            &mut medium.misdirected_write,
            &mut medium.misdirected_read,
        ] {
            *rate = ((*rate & !MUTED) * times) | (*rate & MUTED);
        }
        self.later.iter_mut().for_each(|(_, plan)| plan.make_harsher(times));
    }

    /// Media of all hosts damaged, and nothing else that could hide it: beyond any promise but
    /// that what is returned is right. Only damage that leaves a trace: what every copy of a block
    /// has lost without one, nobody can know of.
    pub fn beyond(seed: u64) -> Self {
        let mut rng = Rng::named(seed, "beyond");
        let mut plan = Self { beyond: true, ..Self::calm() };
        for kind in [FaultKind::BitFlip, FaultKind::LatentSector] {
            plan.on = plan.on.with(kind);
            plan.events.push(kind);
        }
        plan.disk.read_error = rng.below(20_000) as u32;
        plan.disk.misdirected_read = rng.below(5_000) as u32;
        for kind in [FaultKind::DiskHang, FaultKind::ShortPause, FaultKind::LongPause] {
            if rng.below(2) == 0 {
                plan.on = plan.on.with(kind);
                plan.events.push(kind);
            }
        }
        plan.event_every = rng.span(Nanos::from_ms(20), Nanos::from_secs(1));
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::{ASPECTS, FaultKind, FaultSet, MEDIUM, Plan};

    #[test]
    fn plans_keep_damage_apart_from_everything_that_drops_copies() {
        let mut reached = FaultSet::NONE;
        let mut damaging = 0;
        for seed in 0..2000 {
            let plan = Plan::of_seed(seed, 3, FaultSet::ALL);
            let medium = plan.on.kinds().any(|k| MEDIUM.contains(&k));
            assert_eq!(medium, plan.victim.is_some(), "seed {seed}");
            if medium {
                damaging += 1;
                assert!(!plan.on.has(FaultKind::Partition) && plan.disk.write_error == 0);
            }
            for kind in plan.on.kinds() {
                reached = reached.with(kind);
            }
        }
        assert!((400..900).contains(&damaging), "{damaging}");
        assert_eq!(reached.kinds().count(), FaultKind::ALL.len() - ASPECTS.len());
    }

    #[test]
    fn lists_of_faults_are_read_and_unknown_ones_named() {
        assert_eq!(FaultSet::parse("kill"), Ok(FaultSet::NONE.with(FaultKind::Kill)));
        assert!(!FaultSet::parse("-kill").unwrap().has(FaultKind::Kill));
        assert!(FaultSet::parse("-kill").unwrap().has(FaultKind::Partition));
        assert!(FaultSet::parse("kil").unwrap_err().contains("kill-at-await"));
    }
}
