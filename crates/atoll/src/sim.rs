//! `atoll sim run`: seeds of the simulator on all cores, and the replay of one.
//!
//! Invariants: a seed gives the same result on whatever thread it runs; a panic names its seed,
//! also where it ends the program.

use crate::cli::args::{SimCommand, SimRun};
use crate::cli::out::{Failure, Format, Run};
use crate::cli::{Context, interrupted};
use atoll_api::{Code, Problem};
use atoll_sim::fault::{FaultKind, FaultSet};
use atoll_sim::run::{Options, Outcome, Report, run_one};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often people hear how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);

thread_local! {
    /// The seed that this thread runs.
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `atoll sim`.
///
/// # Errors
/// [`Code::Failed`]: a seed found a violation.
pub async fn run(context: &Context, command: SimCommand) -> Run {
    let SimCommand::Run(asked) = command;
    let faults = match &asked.faults {
        None => FaultSet::ALL,
        Some(list) => FaultSet::parse(list)
            .map_err(|why| Problem::new(Code::Usage, format!("--faults: {why}")))?,
    };
    let defaults = Options::default();
    let options = Options {
        faults,
        hosts: asked.hosts,
        ops: asked.ops.unwrap_or(defaults.ops),
        trace: asked.trace,
        twice: asked.twice,
        ideal_store: asked.ideal_store,
        ..defaults
    };
    name_seeds_of_panics();
    match asked.seed {
        Some(seed) => replay(context, seed, options).await,
        None => many(context, &asked, options).await,
    }
}

/// A panic that ends the program (as in a release build) still says which seed it was.
fn name_seeds_of_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(seed) = SEED.get() {
            use std::io::Write;
            let _ = writeln!(
                std::io::stderr(),
                "seed {seed} panicked; replay: atoll sim run --seed {seed} --trace"
            );
        }
        before(panic);
    }));
}

fn one(seed: u64, options: &Options) -> Outcome {
    SEED.set(Some(seed));
    let outcome = run_one(seed, options);
    SEED.set(None);
    outcome
}

async fn replay(context: &Context, seed: u64, options: Options) -> Run {
    let work = tokio::task::spawn_blocking(move || one(seed, &options));
    let outcome = tokio::select! {
        biased;
        () = context.interrupt.wait() => return Err(interrupted(None)),
        outcome = work => outcome,
    };
    let died = |_| Failure::from(Problem::new(Code::Failed, format!("seed {seed} died")));
    let outcome = outcome.map_err(died)?;
    let mut text = String::new();
    for line in &outcome.lines {
        text += &format!("{line}\n");
    }
    for violation in &outcome.violations {
        text += &format!("VIOLATION: {violation}\n");
    }
    text += &format!(
        "seed {seed}: hash {:016x}, {:?} virtual, {} of {} operations answered, {} polls\n",
        outcome.hash, outcome.virtual_time, outcome.ops.1, outcome.ops.0, outcome.polls
    );
    context.out.data(&text)?;
    failed(outcome.violations.len(), 1)
}

fn failed(failures: usize, seeds: u64) -> Run {
    if failures == 0 {
        return Ok(());
    }
    let detail = format!("{failures} violations in {seeds} seeds");
    Err(Problem::new(Code::Failed, detail).hint("atoll sim run --seed SEED --trace").into())
}

async fn many(context: &Context, asked: &SimRun, options: Options) -> Run {
    let seeds = asked.seeds.clone();
    let threads = match asked.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let report = Arc::new(Mutex::new(Report::default()));
    let (stopped, shared, range) = (stop.clone(), report.clone(), seeds.clone());
    let mut work = tokio::task::spawn_blocking(move || {
        let next = AtomicU64::new(range.start);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    while !stopped.load(Ordering::Relaxed) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= range.end {
                            return;
                        }
                        let outcome = one(seed, &options);
                        shared.lock().expect("nothing panics while it holds this").add(&outcome);
                    }
                });
            }
        });
    });
    let began = now();
    let limit = asked.max_seconds.map(Duration::from_secs);
    let mut say = tokio::time::interval(SAY_EVERY);
    let mut known = 0;
    let mut was_interrupted = false;
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut work => break ended,
            () = context.interrupt.wait(), if !was_interrupted => {
                was_interrupted = true;
                stop.store(true, Ordering::Relaxed);
            }
            _ = say.tick() => {
                let report = report.lock().expect("nothing panics while it holds this");
                for (seed, why) in &report.failed[known..] {
                    context.out.note(&format!("seed {seed} FAILED: {why}"));
                }
                known = report.failed.len();
                let left = seeds.end - seeds.start - report.seeds;
                context.out.note(&format!("{} seeds done, {left} left", report.seeds));
                if limit.is_some_and(|limit| now().duration_since(began) > limit) {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    ended.map_err(|_| Problem::new(Code::Failed, "a seed died; see above"))?;
    let mut report = report.lock().expect("nothing panics while it holds this").clone();
    report.failed.sort();
    let seconds = now().duration_since(began).as_secs_f64();
    match context.out.format {
        Format::Json | Format::Yaml => {
            let failed: Vec<serde_json::Value> = report
                .failed
                .iter()
                .map(|(seed, why)| serde_json::json!({ "seed": seed, "violation": why }))
                .collect();
            let faults: serde_json::Map<String, serde_json::Value> = FaultKind::ALL
                .iter()
                .zip(&report.faults)
                .map(|(kind, &n)| (kind.name().to_owned(), n.into()))
                .collect();
            let (faults_unreached, marks_unreached) = report.unreached();
            let value = serde_json::json!({
                "kind": "SimReport", "version": 1,
                "item": {
                    "seeds": report.seeds, "failed": failed, "faults": faults,
                    "faults_unreached": faults_unreached, "marks_unreached": marks_unreached,
                    "operations": report.ops, "polls": report.polls,
                    "virtual_seconds": report.virtual_time.as_secs_f64(), "seconds": seconds,
                },
            });
            let text = match context.out.format {
                Format::Yaml => crate::cli::out::yaml(&value),
                _ => format!("{value}\n"),
            };
            context.out.data(&text)?;
        }
        Format::Name => {
            let seeds: String = report.failed.iter().map(|(seed, _)| format!("{seed}\n")).collect();
            context.out.data(&seeds)?;
        }
        Format::Table | Format::Wide => {
            context.out.data(&format!("{report}\n{seconds:.0} s on {threads} threads\n"))?;
        }
    }
    if was_interrupted {
        return Err(interrupted(None));
    }
    if report.seeds < seeds.end - seeds.start {
        let (done, all) = (report.seeds, seeds.end - seeds.start);
        context.out.note(&format!("the time was up after {done} of {all} seeds"));
    }
    failed(report.failed.len(), report.seeds)
}

#[allow(clippy::disallowed_methods, reason = "measures the simulator, is not part of it")]
fn now() -> Instant {
    Instant::now()
}
