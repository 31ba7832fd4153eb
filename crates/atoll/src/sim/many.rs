//! `atoll sim run --seeds A..B`: many seeds on all cores, for a time if need be.

use super::runs::{now, one, options, verdict};
use crate::cli::args::{SEEDS, SimRun};
use crate::cli::context::{Context, interrupted};
use crate::cli::out::{Format, Run, yaml};
use atoll_api::{Code, Problem};
use atoll_sim::activity::Activity;
use atoll_sim::fault::FaultKind;
use atoll_sim::reach::Reach;
use atoll_sim::run::Report;
use atoll_sim::step::POINTS;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often a person at a terminal hears how far it is, and everybody else.
const SAY_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
const POISON: &str = "nothing panics while it holds this";

/// The seed that a thread runs, and since when.
type UnderWay = Mutex<Option<(u64, Instant)>>;

pub(super) async fn run(context: &Context, asked: SimRun) -> Run {
    let options = options(&asked.make, &asked.part)?;
    let options = atoll_sim::run::Options { twice: asked.twice, ..options };
    let seeds = match (asked.seeds, asked.time) {
        (Some(seeds), _) => seeds,
        (None, None) => SEEDS,
        (None, Some(_)) => 0..u64::MAX,
    };
    if seeds.end == u64::MAX && asked.time.is_none() {
        let detail = format!("--seeds {}.. has no end", seeds.start);
        return Err(Problem::new(Code::Usage, detail).hint("add --time 10m, or an end").into());
    }
    let threads = match asked.threads {
        Some(threads) => usize::from(threads),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let words = options.words_of_all();
    let report = Arc::new(Mutex::new(Report { words, ..Report::default() }));
    let (stopped, shared, range) = (stop.clone(), report.clone(), seeds.clone());
    let under_way: Arc<Vec<UnderWay>> = Arc::new((0..threads).map(|_| Mutex::default()).collect());
    let slots = under_way.clone();
    let mut work = tokio::task::spawn_blocking(move || {
        // What has no end is no set of seeds that somebody wants, but time to be used well.
        let reach = (range.end == u64::MAX).then(Reach::default);
        let next = Mutex::new((range, reach));
        std::thread::scope(|scope| {
            for slot in slots.iter() {
                let (next, options, shared, stopped) = (&next, &options, &shared, &stopped);
                scope.spawn(move || {
                    while !stopped.load(Ordering::Relaxed) {
                        let seed = match &mut *next.lock().expect(POISON) {
                            (range, Some(reach)) => reach.next(range, options),
                            (range, None) => range.next(),
                        };
                        let Some(seed) = seed else { return };
                        *slot.lock().expect(POISON) = Some((seed, now()));
                        let outcome = one(seed, options);
                        *slot.lock().expect(POISON) = None;
                        shared.lock().expect(POISON).add(&outcome);
                        if let (_, Some(reach)) = &mut *next.lock().expect(POISON) {
                            reach.learn(&outcome, options);
                        }
                    }
                });
            }
        });
    });
    let began = now();
    let mut progress = Progress::new(context, asked.time);
    let mut tick = tokio::time::interval(SAY_EVERY.0);
    let mut was_interrupted = false;
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut work => break ended,
            () = context.interrupt.wait(), if !was_interrupted => {
                was_interrupted = true;
                stop.store(true, Ordering::Relaxed);
            }
            _ = tick.tick() => {
                let spent = now().duration_since(began);
                if asked.time.is_some_and(|limit| spent >= limit) {
                    stop.store(true, Ordering::Relaxed);
                }
                let report = report.lock().expect(POISON);
                if asked.fail_fast && !report.failed.is_empty() {
                    stop.store(true, Ordering::Relaxed);
                }
                progress.say(&report, &seeds, spent);
                let began = |slot: &Mutex<_>| *slot.lock().expect(POISON);
                let oldest = under_way.iter().filter_map(began).min_by_key(|&(_, since)| since);
                let (limit, now) = (asked.stuck, now());
                if let Some((seed, since)) = oldest
                    && now.duration_since(since) > limit
                {
                    stuck(seed, limit, &report.words);
                }
            }
        }
    };
    progress.end();
    ended.map_err(|_| Problem::new(Code::Failed, "a seed died; see above"))?;
    let mut report = report.lock().expect(POISON).clone();
    report.failed.sort();
    let spent = now().duration_since(began);
    print(context, &report, asked.report, spent.as_secs_f64(), threads)?;
    if was_interrupted {
        return Err(interrupted(None));
    }
    if seeds.end < u64::MAX && report.seeds < seeds.end - seeds.start {
        let (done, all) = (report.seeds, seeds.end - seeds.start);
        context.out.note(&format!("the time was up after {done} of {all} seeds"));
    }
    let hint = report.failed.first().map_or(String::new(), |(seed, _)| {
        let more: String = report.words.iter().map(|word| format!(" {word}")).collect();
        format!("atoll sim shrink --seed {seed}{more} looks for its fewest faults")
    });
    verdict(report.failed.len(), report.seeds, &hint)
}

/// Ends the program: a thread that does not end cannot be ended.
fn stuck(seed: u64, limit: Duration, words: &[String]) -> ! {
    use std::io::Write;
    let more: String = words.iter().map(|word| format!(" {word}")).collect();
    let _ = writeln!(
        std::io::stderr(),
        "error[E0001]: seed {seed} FAILED: it has not ended within {} s\n\
         hint: atoll sim run --seed {seed}{more} --trace shows where it is",
        limit.as_secs()
    );
    std::process::exit(1);
}

fn print(context: &Context, report: &Report, full: bool, seconds: f64, threads: usize) -> Run {
    let text = match context.out.format {
        Format::Json => format!("{}\n", value(report, seconds)),
        Format::Yaml => yaml(&value(report, seconds)),
        Format::Name => report.failed.iter().map(|(seed, _)| format!("{seed}\n")).collect(),
        Format::Table | Format::Wide => {
            let (faults, marks) = report.unreached();
            let mut text = String::new();
            if full || context.out.format == Format::Wide {
                text += &report.table();
            } else if !faults.is_empty() || !marks.is_empty() {
                let (faults, marks) = (faults.len(), marks.len());
                text += &format!(
                    "not reached: {faults} kinds of fault, {marks} marks (--report names them)\n"
                );
            }
            let pace = report.pace(seconds);
            format!("{text}{seconds:.0} s, threads: {threads}, {pace}\n{report}\n")
        }
    };
    context.out.data(&text)
}

fn value(report: &Report, seconds: f64) -> Value {
    let failed: Vec<Value> =
        report.failed.iter().map(|(seed, why)| json!({ "seed": seed, "violation": why })).collect();
    let faults: Map<String, Value> = FaultKind::ALL
        .iter()
        .zip(&report.faults)
        .map(|(kind, &n)| (kind.name().to_owned(), n.into()))
        .collect();
    let (faults_unreached, marks_unreached) = report.unreached();
    let columns = Activity::ALL.len();
    let row = |row: &[u64]| -> Map<String, Value> {
        let cells = Activity::ALL.iter().zip(row);
        cells.map(|(activity, &n)| (activity.name().to_owned(), n.into())).collect()
    };
    let rows = FaultKind::ALL.iter().zip(report.cells.chunks(columns));
    let matrix: Map<String, Value> =
        rows.map(|(kind, cells)| (kind.name().to_owned(), row(cells).into())).collect();
    let points = POINTS.iter().zip(report.cells.iter().skip(FaultKind::ALL.len() * columns));
    let points: Map<String, Value> = points
        .map(|((last, next), &n)| (format!("{} {}", last.name(), next.name()), n.into()))
        .collect();
    let virtual_seconds = report.virtual_time.as_secs_f64();
    let per_second = |n: f64| n / seconds.max(0.001);
    json!({
        "kind": "SimReport", "version": 1,
        "item": {
            "seeds": report.seeds, "failed": failed, "faults": faults, "during": matrix,
            "crashes_between": points,
            "faults_unreached": faults_unreached, "marks_unreached": marks_unreached,
            "operations": report.ops, "polls": report.polls,
            "virtual_seconds": virtual_seconds, "seconds": seconds,
            "virtual_hours_per_hour": per_second(virtual_seconds),
            "operations_per_second": per_second(report.ops as f64),
        },
    })
}

/// How far it is: one line at a terminal, a note now and then elsewhere.
struct Progress<'a> {
    context: &'a Context,
    line: Option<ProgressBar>,
    limit: Option<Duration>,
    said: Duration,
    known: usize,
}

impl<'a> Progress<'a> {
    fn new(context: &'a Context, limit: Option<Duration>) -> Self {
        let people = matches!(context.out.format, Format::Table | Format::Wide);
        let at_terminal = people && !context.out.quiet && std::io::stderr().is_terminal();
        let line = at_terminal.then(|| {
            let style = ProgressStyle::with_template("{wide_msg}").expect("a tested template");
            ProgressBar::no_length().with_style(style)
        });
        Self { context, line, limit, said: Duration::ZERO, known: 0 }
    }

    fn say(&mut self, report: &Report, seeds: &std::ops::Range<u64>, spent: Duration) {
        for (seed, why) in &report.failed[self.known..] {
            let why = why.lines().next().unwrap_or_default();
            self.note(&format!("seed {seed} FAILED: {why}"));
        }
        self.known = report.failed.len();
        if report.seeds == 0 || (self.line.is_none() && spent < self.said + SAY_EVERY.1) {
            return;
        }
        self.said = spent;
        let mut left = Vec::new();
        if seeds.end < u64::MAX {
            left.push(format!("{} seeds", seeds.end - seeds.start - report.seeds));
        }
        if let Some(limit) = self.limit {
            left.push(format!("{} s", limit.saturating_sub(spent).as_secs()));
        }
        let (done, failed) = (report.seeds, report.failed.len());
        let pace = report.pace(spent.as_secs_f64());
        let left = left.join(" or ");
        self.note_or_line(&format!("{done} seeds, {failed} failed, {pace}, {left} left"));
    }

    fn note(&self, text: &str) {
        match &self.line {
            Some(line) => line.println(text),
            None => self.context.out.note(text),
        }
    }

    fn note_or_line(&self, text: &str) {
        match &self.line {
            Some(line) => line.set_message(text.to_owned()),
            None => self.context.out.note(text),
        }
    }

    fn end(&self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}
