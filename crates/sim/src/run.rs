//! One seed, one run; many seeds, one report.
//!
//! Knows neither clocks nor threads nor files: whoever calls decides when to stop and what to
//! print.

use crate::cluster::{Cluster, ClusterSpec, Storage};
use crate::disk::DiskProfile;
use crate::executor::Stuck;
use crate::fault::{FaultKind, FaultSet, Plan};
use crate::net::NetProfile;
use crate::rig::{Rig, RigSpec};
use crate::rng::Rng;
use crate::storage::{IdealStorage, RealStorage};
use crate::trace::{Line, Trace};
use atoll_world::{Nanos, mark};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A run that has not ended by then never will.
const VIRTUAL_MAX: Nanos = Nanos::from_secs(900);

/// Polls of one run: thirty times what the busiest sound one takes.
const POLLS_MAX: u64 = 6_000_000;

/// How many hosts there are, by chance.
const HOSTS: &[u16] = &[3, 3, 3, 4];

/// Every mark in the code that runs here, one a line; `cargo xtask tidy` keeps the list.
const MARKS: &str = include_str!("../marks.txt");

/// How runs are made.
#[derive(Clone, Debug)]
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
    /// On the ideal store: whatever is found then is not the store's.
    pub ideal_store: bool,
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
            ideal_store: false,
        }
    }
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
    /// Virtual time that passed.
    pub virtual_time: Nanos,
    /// Operations of clients, and how many of them were answered.
    pub ops: (u64, u64),
    /// Polls of tasks.
    pub polls: u64,
    /// The trace, if it was asked for.
    pub lines: Vec<Line>,
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
    *Rng::named(seed, "rig").pick(HOSTS)
}

fn once(seed: u64, options: &Options) -> Outcome {
    let trace = Trace::new(options.trace);
    let mut rng = Rng::named(seed, "rig");
    let hosts = options.hosts.unwrap_or(*rng.pick(HOSTS));
    let spec = RigSpec {
        hosts,
        disks: if options.ideal_store { 1 } else { *rng.pick(&[1, 1, 1, 3]) },
        disk_bytes: 1 << 30,
        disk: *rng.pick(&[DiskProfile::NVME, DiskProfile::NVME, DiskProfile::SATA]),
        net: *rng.pick(&[NetProfile::GBIT_25, NetProfile::GBIT_25, NetProfile::GBIT_1]),
    };
    let rig = Rig::new(seed, spec, trace.clone());
    rig.executor().set_polls_max(options.polls_max);
    let plan = Plan::of_seed(seed, hosts, options.faults);
    trace.fact(Nanos::ZERO, None, "plan", format!("{spec:?} {plan:?}"));
    let cluster = ClusterSpec::of_seed(seed, hosts, options.ops);
    trace.fact(Nanos::ZERO, None, "plan", format!("{cluster:?}"));
    let (violations, ops) = if options.ideal_store {
        let storage = IdealStorage::new(rig.executor(), hosts, seed);
        drive(&rig, plan, cluster, storage)
    } else {
        let log_bytes = *rng.pick(&[16 << 20, 16 << 20, 32 << 20, 64 << 20]);
        drive(&rig, plan, cluster, RealStorage::new(log_bytes))
    };
    let outcome = Outcome {
        seed,
        hash: trace.hash(),
        violations,
        faults: rig.faults().counts(),
        virtual_time: rig.executor().now(),
        ops,
        polls: rig.executor().polls(),
        lines: trace.take_lines(),
    };
    rig.shutdown();
    outcome
}

fn drive<T: Storage>(
    rig: &Rig,
    plan: Plan,
    spec: ClusterSpec,
    storage: T,
) -> (Vec<String>, (u64, u64)) {
    let cluster = Cluster::new(rig.clone(), spec, storage);
    let run = AssertUnwindSafe(|| {
        let end = rig.executor().block_on(VIRTUAL_MAX, cluster.clone().run(plan));
        cluster.judge();
        end
    });
    let mut violations = Vec::new();
    match catch_unwind(run) {
        Ok(Ok(())) => {}
        Ok(Err(Stuck::Idle)) => violations.push("everything waits for ever".into()),
        Ok(Err(Stuck::Deadline)) => violations.push("the run does not end".into()),
        Ok(Err(Stuck::Busy)) => {
            let at = rig.executor().now();
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
    (violations, (ops, answered))
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
    /// Virtual time.
    pub virtual_time: Nanos,
    /// Operations of clients.
    pub ops: u64,
    /// Polls.
    pub polls: u64,
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
        self.virtual_time += outcome.virtual_time;
        self.ops += outcome.ops.0;
        self.polls += outcome.polls;
    }

    /// Kinds of fault that had no effect, and marks that this process has not come by: what these
    /// seeds say nothing about.
    pub fn unreached(&self) -> (Vec<&'static str>, Vec<&'static str>) {
        let idle = FaultKind::ALL.iter().zip(&self.faults).filter(|&(_, &n)| n == 0);
        let reached = mark::reached();
        let missed = MARKS.lines().filter(|name| !reached.contains_key(name));
        (idle.map(|(kind, _)| kind.name()).collect(), missed.collect())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, n) in FaultKind::ALL.iter().zip(&self.faults) {
            writeln!(f, "  {:<22} {n:>10}", kind.name())?;
        }
        let (faults, marks) = self.unreached();
        for (what, names) in [("faults", faults), ("marks", marks)] {
            if !names.is_empty() {
                writeln!(f, "  {what} not reached: {}", names.join(", "))?;
            }
        }
        for (seed, why) in &self.failed {
            writeln!(f, "seed {seed} FAILED: {}", why.lines().next().unwrap_or_default())?;
            writeln!(f, "  replay: atoll sim run --seed {seed} --trace")?;
        }
        write!(
            f,
            "{} seeds, {} faults, {:.1} virtual hours, {} operations, {} violations",
            self.seeds,
            self.faults.iter().sum::<u64>(),
            self.virtual_time.as_secs_f64() / 3600.0,
            self.ops,
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
    let mut report = Report::default();
    for seed in seeds {
        let outcome = run_one(seed, options);
        report.add(&outcome);
        if !progress(&outcome) {
            break;
        }
    }
    report
}
