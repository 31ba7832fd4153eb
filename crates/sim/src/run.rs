//! One seed, one run; many seeds, one report.
//!
//! Knows neither clocks nor threads nor files: whoever calls decides when to stop and what to
//! print.

use crate::activity;
use crate::checker::{Fate, Kind};
use crate::cluster::{Cluster, ClusterSpec, Shards, Storage};
use crate::disk::DiskProfile;
use crate::executor::Stuck;
use crate::fault::FaultSubset;
use crate::fault::{FaultKind, FaultSet, Plan};
use crate::feature::Features;
use crate::machines::{Befallen, Hardware, Machines};
use crate::net::NetProfile;
use crate::rng::Rng;
use crate::storage::{RealStorage, ReferenceStorage};
use crate::trace::{Line, Trace};
use atoll_world::{Nanos, mark};
use std::cell::{Cell, RefCell};
use std::fmt::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// A run that has not ended by then never will.
const VIRTUAL_MAX: Nanos = Nanos::from_secs(900);

/// Polls of one run: thirty times what the busiest sound one takes.
const POLLS_MAX: u64 = 6_000_000;

/// Effects of faults whose moments one run keeps.
const EFFECTS_MAX: usize = 20_000;

/// See [`Features::HARSH`].
const HARSHER: u32 = 16;

/// Shards of a host, at most, where it has several.
const SHARDS_MAX: u8 = 3;

/// A host that there is not: of clients that are left out.
const NOWHERE: u16 = u16::MAX;

/// How many hosts there are, by chance.
const HOSTS: &[u16] = &[3, 3, 3, 4];

/// Every mark in the code that runs here, one a line; `cargo xtask tidy` keeps the list.
const MARKS: &str = include_str!("../marks.txt");

/// How runs are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Faults that seeds may switch on.
    pub faults: FaultSet,
    /// Hosts; none: 3 or 4, by seed.
    pub hosts: Option<u16>,
    /// Operations of each volume's clients.
    pub ops: u64,
    /// Polls of one run, at most.
    pub polls_max: u64,
    /// Keep the lines of the trace.
    pub trace: bool,
    /// Run each seed twice and compare the trace hashes.
    pub twice: bool,
    /// What seeds may do, each by chance.
    pub features: Features,
    /// Media of all hosts are damaged: what is left is "refuses, never lies".
    pub beyond: bool,
    /// On the reference store: whatever is found then is not the store's.
    pub reference_store: bool,
    /// What of the seed's plan is carried out.
    pub part: FaultSubset,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            faults: FaultSet::ALL,
            hosts: None,
            ops: 400,
            polls_max: POLLS_MAX,
            trace: false,
            twice: false,
            features: Features::ALL,
            beyond: false,
            reference_store: false,
            part: FaultSubset::default(),
        }
    }
}

impl Options {
    /// The words behind `atoll sim run` that make this run of a seed.
    pub fn words(&self, seed: u64) -> Vec<String> {
        let mut words = vec!["--seed".to_owned(), seed.to_string()];
        words.extend(self.words_of_all());
        words.extend(self.part.words(Setup::of_seed(seed, self).kinds(seed, self)));
        words
    }

    /// Those of them that are the same for every seed.
    pub fn words_of_all(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
        if self.faults != FaultSet::ALL {
            let names: Vec<_> = self.faults.kinds().map(FaultKind::name).collect();
            option("--faults", if names.is_empty() { "none".into() } else { names.join(",") });
        }
        if let Some(hosts) = self.hosts {
            option("--hosts", hosts.to_string());
        }
        if self.ops != Self::default().ops {
            option("--ops", self.ops.to_string());
        }
        for (said, word) in [
            (self.reference_store, "--reference-store"),
            (self.beyond, "--beyond"),
            (self.features == Features::NONE, "--no-features"),
        ] {
            if said {
                words.push(word.into());
            }
        }
        words
    }
}

/// What a seed and the options of a run make, before anything has happened.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The hardware.
    pub hardware: Hardware,
    /// What befalls them.
    pub plan: Plan,
    /// What runs on them.
    pub cluster: ClusterSpec,
    /// Bytes of each store's log.
    pub log_bytes: u64,
    /// Those of the features that this seed has.
    pub features: Features,
}

impl Setup {
    /// Of a seed.
    pub fn of_seed(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::named(seed, "machines");
        let hosts = options.hosts.unwrap_or(*rng.pick(HOSTS));
        let mut hardware = Hardware {
            hosts,
            cores: 1,
            disks: if options.reference_store { 1 } else { *rng.pick(&[1, 1, 1, 3]) },
            disk_bytes: 1 << 30,
            disk: *rng.pick(&[DiskProfile::NVME, DiskProfile::NVME, DiskProfile::SATA]),
            net: *rng.pick(&[NetProfile::GBIT_25, NetProfile::GBIT_25, NetProfile::GBIT_1]),
        };
        let mut plan = match options.beyond {
            true => Plan { part: options.part.clone(), ..Plan::beyond(seed) },
            false => Plan::of_part(seed, hosts, options.faults, &options.part),
        };
        let mut cluster = ClusterSpec::of_seed(seed, hosts, options.ops);
        let is_calm = Rng::named(seed, "calm").below(8) == 0;
        cluster.calm = is_calm && options.features.has(Features::CALM) && !options.beyond;
        if cluster.calm {
            plan = Plan { part: options.part.clone(), ..Plan::calm() };
            cluster.hurry();
        }
        let features = Cell::new(Features::NONE);
        let draw = |feature, stream| {
            let has = options.features.draw(feature, &mut Rng::named(seed, stream));
            features.set(if has { features.get().and(feature) } else { features.get() });
            has
        };
        if draw(Features::HARSH, "harsh") {
            plan.make_harsher(HARSHER);
        }
        cluster.administered = draw(Features::ADMINISTRATOR, "administered") && !options.beyond;
        if draw(Features::THIN, "thin") {
            cluster.stride = *Rng::named(seed, "stride").pick(&[40, 100, 300]);
        }
        if draw(Features::SHARDS, "shards") {
            cluster.shards = Shards::UpTo(SHARDS_MAX);
        }
        hardware.cores = cluster.shards.most();
        plan.of_shards(hardware.cores);
        if draw(Features::CROWD, "crowd") {
            cluster.crowd();
        }
        if draw(Features::READERS, "readers") {
            cluster.add_readers(hosts);
        }
        if draw(Features::IN_ORDER, "in order") {
            cluster.add_in_order(hosts);
        }
        if draw(Features::LOOKERS, "lookers") {
            cluster.add_lookers(hosts);
        }
        if draw(Features::ODD_SIZES, "odd sizes") {
            cluster.make_sizes_odd(&mut Rng::named(seed, "sizes"));
        }
        if draw(Features::SINGLE, "single copy") && plan.victim.is_none() && !options.beyond {
            cluster.make_single();
        }
        // Whoever upgrades stops hosts, which is not calm.
        let upgraded = draw(Features::UPGRADED, "upgraded");
        cluster.upgraded = upgraded && !options.beyond && !cluster.calm;
        cluster.diskless = draw(Features::DISKLESS, "diskless");
        // What is left of half-made copies is kept for long: a quarter of the seeds is enough.
        let emptied =
            draw(Features::EMPTIED, "emptied") && draw(Features::EMPTIED, "and waited for");
        cluster.emptied = emptied && !options.beyond;
        for (n, client) in cluster.clients.iter_mut().enumerate() {
            if !options.part.has_client(n) {
                client.0 = NOWHERE;
            }
        }
        let log_bytes = *rng.pick(&[16 << 20, 16 << 20, 32 << 20, 64 << 20]);
        // The rest of these streams is used where a run begins.
        for (feature, stream) in [
            (Features::SMALL, "small"),
            (Features::DESTAGE, "pace"),
            (Features::CHECKPOINT, "checkpoints"),
        ] {
            draw(feature, stream);
        }
        let features = features.get();
        Self { hardware, plan, cluster, log_bytes, features }
    }

    /// The kinds that can happen by themselves if nothing is left out: as an event, or at a rate.
    pub fn kinds(&self, seed: u64, options: &Options) -> FaultSet {
        let (hosts, allowed) = (self.hardware.hosts, options.faults);
        let mut kinds = FaultSet::NONE;
        for kind in self.plan.on.kinds() {
            let timed = self.plan.events.contains(&kind) || self.plan.later_events.contains(&kind);
            if timed || Plan::has_rate(seed, hosts, allowed, kind) {
                kinds = kinds.with(kind);
            }
        }
        kinds
    }
}

/// One operation of a client, as people see it.
#[derive(Clone, Debug)]
pub struct ClientOp {
    /// Of which volume.
    pub volume: usize,
    /// Whose.
    pub client: u32,
    /// `read`, `write 12` (its tag) or `zero`.
    pub what: String,
    /// First sector, and how many.
    pub range: (u64, u32),
    /// When it was called and, if it was, answered.
    pub span: (Nanos, Option<Nanos>),
    /// How it ended.
    pub fate: Fate,
}

/// What came of one seed.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which.
    pub seed: u64,
    /// Of everything that happened.
    pub hash: u64,
    /// What was found wrong; empty: nothing.
    pub violations: Vec<String>,
    /// How often each fault had its effect, in order of [`FaultKind::ALL`].
    pub faults: Vec<u64>,
    /// And during which activity: see [`crate::activity::table`].
    pub cells: Vec<u64>,
    /// Marks that it came by, in order of name.
    pub marks: Vec<&'static str>,
    /// Virtual time that passed.
    pub virtual_time: Nanos,
    /// Operations of clients, and how many of them were answered.
    pub ops: (u64, u64),
    /// Polls of tasks.
    pub polls: u64,
    /// The plan's events that took place.
    pub events: Vec<Befallen>,
    /// Effects of faults, the first 20,000.
    pub effects: Vec<(Nanos, FaultKind)>,
    /// The trace, if it was asked for.
    pub lines: Vec<Line>,
    /// The clients' operations, if the trace was asked for.
    pub client_ops: Vec<ClientOp>,
}

/// Runs one seed.
pub fn run_one(seed: u64, options: &Options) -> Outcome {
    let mut outcome = once(seed, options);
    if options.twice {
        let again = once(seed, &Options { trace: false, ..options.clone() });
        if again.hash != outcome.hash {
            outcome.violations.push(format!(
                "not deterministic: trace hash {:016x}, then {:016x}",
                outcome.hash, again.hash
            ));
        }
    }
    outcome
}

/// Hosts of a seed's cluster, if its options do not say.
pub fn hosts_of_seed(seed: u64) -> u16 {
    *Rng::named(seed, "machines").pick(HOSTS)
}

fn once(seed: u64, options: &Options) -> Outcome {
    let trace = Trace::new(options.trace);
    let Setup { hardware, plan, cluster, log_bytes, features } = Setup::of_seed(seed, options);
    let machines = Machines::new(seed, hardware, trace.clone());
    machines.executor().set_polls_max(options.polls_max);
    if features.has(Features::SMALL) {
        machines.executor().set_small();
    }
    let effects = Rc::new(RefCell::new(Vec::new()));
    let (seen, executor) = (effects.clone(), machines.executor().clone());
    machines.faults().observe(move |kind| {
        let now = executor.now();
        executor.trace().event(now, None, "reached", kind as u64, || kind.name().into());
        let mut seen = seen.borrow_mut();
        if seen.len() < EFFECTS_MAX {
            seen.push((now, kind));
        }
    });
    UNDER_WAY.set(Some(UnderWay { seed, machines: machines.clone(), effects: effects.clone() }));
    trace.fact(Nanos::ZERO, None, "plan", format!("{hardware:?} {plan:?}"));
    trace.fact(Nanos::ZERO, None, "plan", format!("{cluster:?}"));
    let found = if options.reference_store {
        let storage = ReferenceStorage::new(machines.executor(), hardware.hosts, seed);
        drive(&machines, plan, cluster, storage)
    } else {
        let mut storage = RealStorage::new(log_bytes);
        let mut pace = Rng::named(seed, "pace");
        if options.features.draw(Features::DESTAGE, &mut pace) {
            let idle = pace.span(Nanos::from_ms(1), Nanos::from_ms(500));
            storage = storage.destaging(pace.below(24) as u8, idle);
        }
        let mut pace = Rng::named(seed, "checkpoints");
        if options.features.draw(Features::CHECKPOINT, &mut pace) {
            storage = storage.checkpointing(pace.within(0, 16) << 12);
        }
        drive(&machines, plan, cluster, storage)
    };
    // A panic that was caught may have been told of already.
    let under_way =
        UNDER_WAY.take().unwrap_or(UnderWay { seed, machines: machines.clone(), effects });
    let outcome = Outcome {
        violations: found.violations,
        ops: found.ops,
        client_ops: found.client_ops,
        ..under_way.so_far()
    };
    machines.shutdown();
    outcome
}

thread_local! {
    static UNDER_WAY: RefCell<Option<UnderWay>> = const { RefCell::new(None) };
}

/// A run that has begun.
struct UnderWay {
    seed: u64,
    machines: Machines,
    effects: Rc<RefCell<Vec<(Nanos, FaultKind)>>>,
}

impl UnderWay {
    /// What has come of it so far, its violations and operations left out.
    fn so_far(&self) -> Outcome {
        let (machines, trace) = (&self.machines, self.machines.executor().trace());
        Outcome {
            seed: self.seed,
            hash: trace.hash(),
            violations: Vec::new(),
            faults: machines.faults().counts(),
            cells: machines.faults().cells(),
            marks: machines.marks(),
            virtual_time: machines.executor().now(),
            ops: (0, 0),
            polls: machines.executor().polls(),
            events: machines.befallen(),
            effects: self.effects.take(),
            lines: trace.take_lines(),
            client_ops: Vec::new(),
        }
    }
}

/// What has come so far of the run in which this thread is, its violations and operations left
/// out: the last words of a program that a panic ends.
pub fn under_way() -> Option<Outcome> {
    UNDER_WAY.take().map(|run| run.so_far())
}

struct Found {
    violations: Vec<String>,
    ops: (u64, u64),
    client_ops: Vec<ClientOp>,
}

fn drive<T: Storage>(machines: &Machines, plan: Plan, spec: ClusterSpec, storage: T) -> Found {
    let cluster = Cluster::new(machines.clone(), spec, storage);
    let run = AssertUnwindSafe(|| {
        let end = machines.executor().block_on(VIRTUAL_MAX, cluster.clone().run(plan));
        cluster.judge();
        end
    });
    let mut violations = Vec::new();
    match catch_unwind(run) {
        Ok(Ok(())) => {}
        Ok(Err(Stuck::Idle)) => violations.push("everything waits for ever".into()),
        Ok(Err(Stuck::Deadline)) => violations.push("the run does not end".into()),
        Ok(Err(Stuck::Busy)) => {
            let at = machines.executor().now();
            violations.push(format!("too busy: something is done again and again at {at:?}"));
        }
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
                .unwrap_or_else(|| "a panic without text".into());
            violations.push(format!("panic: {text}"));
        }
    }
    violations.extend(cluster.violations());
    let ops = cluster.books().iter().map(|b| b.history().len() as u64).sum();
    let answered = cluster.books().iter().map(|b| b.history().answered() as u64).sum();
    let mut client_ops = Vec::new();
    if machines.executor().trace().is_recording() {
        for (volume, book) in cluster.books().iter().enumerate() {
            for op in book.history().ops() {
                let what = match &op.kind {
                    Kind::Write(tag) => format!("write {tag}"),
                    Kind::Zero => "zero".into(),
                    Kind::Read(_) => "read".into(),
                };
                let (from, to) = op.span_ns();
                client_ops.push(ClientOp {
                    volume,
                    client: op.client,
                    what,
                    range: (op.first, op.sectors),
                    span: (Nanos(from), to.map(Nanos)),
                    fate: op.fate(),
                });
            }
        }
    }
    Found { violations, ops: (ops, answered), client_ops }
}

/// Every mark in the code that runs here.
pub fn marks() -> impl Iterator<Item = &'static str> {
    MARKS.lines()
}

/// What came of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds run.
    pub seeds: u64,
    /// Seeds that failed, with the first thing found.
    pub failed: Vec<(u64, String)>,
    /// Faults that had their effect, by kind.
    pub faults: Vec<u64>,
    /// The same, by kind and activity.
    pub cells: Vec<u64>,
    /// Virtual time.
    pub virtual_time: Nanos,
    /// Operations of clients.
    pub ops: u64,
    /// Polls.
    pub polls: u64,
    /// What else is to be said to run one of them again; see [`Options::words_of_all`].
    pub words: Vec<String>,
}

impl Report {
    /// Counts one more seed.
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        if let Some(first) = outcome.violations.first() {
            self.failed.push((outcome.seed, first.clone()));
        }
        self.faults.resize(FaultKind::ALL.len(), 0);
        for (sum, n) in self.faults.iter_mut().zip(&outcome.faults) {
            *sum += n;
        }
        self.cells.resize(outcome.cells.len(), 0);
        for (sum, n) in self.cells.iter_mut().zip(&outcome.cells) {
            *sum += n;
        }
        self.virtual_time += outcome.virtual_time;
        self.ops += outcome.ops.0;
        self.polls += outcome.polls;
    }

    /// Kinds of fault that had no effect, and marks that this process has not come by: what these
    /// seeds say nothing about.
    pub fn unreached(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let idle = FaultKind::ALL.iter().zip(&self.faults).filter(|&(_, &n)| n == 0);
        let reached = mark::reached();
        let missed = marks().filter(|name| !reached.contains_key(name));
        (idle.map(|(kind, _)| kind.name()).collect(), missed.collect())
    }

    /// The count of every kind of fault, and by name what was not reached.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (kind, n) in FaultKind::ALL.iter().zip(&self.faults) {
            let _ = writeln!(text, "  {:<22} {n:>10}", kind.name());
        }
        if !self.cells.is_empty() {
            let empty = activity::empty_cells(&self.cells).len();
            text += &activity::table(&self.cells);
            text += &activity::points_table(&self.cells);
            let _ = writeln!(text, "  {empty} cells are empty");
        }
        let (faults, marks) = self.unreached();
        for (what, names) in [("faults", faults), ("marks", marks)] {
            if !names.is_empty() {
                let _ = writeln!(text, "  {what} not reached: {}", names.join(", "));
            }
        }
        text
    }

    /// How fast virtual time and operations went, in that many seconds of ours.
    pub fn pace(&self, seconds: f64) -> String {
        let seconds = seconds.max(0.001);
        format!(
            "{:.0} virtual hours an hour, {:.0} operations a second",
            self.virtual_time.as_secs_f64() / seconds,
            self.ops as f64 / seconds
        )
    }
}

/// Ends with the line that counts.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (seed, why) in &self.failed {
            writeln!(f, "seed {seed} FAILED: {}", why.lines().next().unwrap_or_default())?;
            let more: String = self.words.iter().map(|word| format!(" {word}")).collect();
            writeln!(f, "  replay: atoll sim run --seed {seed}{more} --trace")?;
        }
        write!(
            f,
            "{} seeds, {} faults, {:.1} virtual hours, {} violations",
            self.seeds,
            self.faults.iter().sum::<u64>(),
            self.virtual_time.as_secs_f64() / 3600.0,
            self.failed.len()
        )
    }
}

/// Runs the seeds one after the other until they are used up or `progress` says false.
pub fn run_seeds(
    seeds: impl IntoIterator<Item = u64>,
    options: &Options,
    progress: &mut dyn FnMut(&Outcome) -> bool,
) -> Report {
    let mut report = Report { words: options.words_of_all(), ..Report::default() };
    for seed in seeds {
        let outcome = run_one(seed, options);
        report.add(&outcome);
        if !progress(&outcome) {
            break;
        }
    }
    report
}
