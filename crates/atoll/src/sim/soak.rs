//! `atoll sim soak`: fresh seeds for hours, over and over again, and a corpus of those that were
//! the first to come by something, or failed.
//!
//! Seeds run in workers, a process each (`worker`). What is known is one file, replaced as a whole.
//!
//! Invariants: a seed is counted once, also where a soak was killed in the middle of it; a state
//! file that cannot be read is never written over.

use super::runs::{now, verdict};
use super::worker::SeedResult;
use crate::cli::args::SimSoak;
use crate::cli::context::{Context, interrupted};
use crate::cli::out::{Failure, Format, Run, yaml};
use crate::lock::DataDir;
use atoll_api::{Code, Problem};
use atoll_sim::activity::cell_names;
use atoll_sim::fault::FaultKind;
use atoll_sim::run::{Report, marks};
use atoll_world::Nanos;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// Of the state file.
const VERSION: u32 = 2;
const STATE: &str = "soak.json";
/// How often the state is written, and how often a person hears of it.
const SAVE_EVERY: Duration = Duration::from_secs(10);
const SAY_EVERY: Duration = Duration::from_secs(60);
/// Bytes of a dead worker's last words that are kept.
const LAST_WORDS: u64 = 4096;
const POISON: &str = "nothing panics while it holds this";

/// What all soaks in one directory have come to.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    version: u32,
    /// The first seed, and the next.
    first: u64,
    next: u64,
    /// Begun and not ended when this was written: they come first when a soak goes on.
    running: BTreeSet<u64>,
    seeds: u64,
    seconds: f64,
    virtual_ns: u64,
    operations: u64,
    polls: u64,
    /// Effects by kind of fault.
    faults: BTreeMap<String, u64>,
    /// And by kind and activity.
    cells: BTreeMap<String, u64>,
    corpus: BTreeMap<u64, Kept>,
}

/// Why a seed is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// What it was the first to come by.
    reached: BTreeSet<String>,
    /// The first thing that was wrong.
    violation: Option<String>,
    /// Which is not so any more.
    mended: bool,
}

impl State {
    fn new(first: u64) -> Self {
        Self {
            version: VERSION,
            first,
            next: first,
            running: BTreeSet::new(),
            seeds: 0,
            seconds: 0.0,
            virtual_ns: 0,
            operations: 0,
            polls: 0,
            faults: BTreeMap::new(),
            cells: BTreeMap::new(),
            corpus: BTreeMap::new(),
        }
    }

    /// What is kept in `path`; none: nothing yet.
    fn read(path: &Path) -> Result<Option<Self>, Problem> {
        let shown = path.display();
        let bad = |why: String| {
            Problem::new(Code::LocalFile, format!("the state of the soak, {shown}: {why}"))
                .hint("it is left as it is; move it away to begin anew, or name another --dir")
        };
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(bad(e.to_string())),
        };
        let value: Value = serde_json::from_str(&text).map_err(|e| bad(format!("damaged: {e}")))?;
        match value.get("version").and_then(Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                return Err(bad(format!(
                    "it has version {version}, this program reads version {VERSION}"
                )));
            }
            None => return Err(bad("damaged: it has no version".into())),
        }
        serde_json::from_value(value).map(Some).map_err(|e| bad(format!("damaged: {e}")))
    }

    /// Durable when this returns; whoever reads `path` meanwhile sees the old state or this one.
    fn write(&self, path: &Path) -> Result<(), Problem> {
        let text = serde_json::to_string_pretty(self).expect("plain fields");
        let store = || -> std::io::Result<()> {
            let draft = path.with_extension("new");
            let mut file = File::create(&draft)?;
            writeln!(file, "{text}")?;
            file.sync_all()?;
            std::fs::rename(&draft, path)?;
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        };
        store().map_err(|e| {
            Problem::new(Code::LocalFile, format!("cannot write {}: {e}", path.display()))
                .hint("the soak stops; what it had written is whole")
        })
    }

    /// Everything that some seed has come by.
    fn reached(&self) -> BTreeSet<&str> {
        self.corpus.values().flat_map(|k| &k.reached).map(String::as_str).collect()
    }

    /// Cells of the matrix, and marks.
    fn unreached(&self) -> (Vec<String>, Vec<&'static str>) {
        let reached = self.reached();
        let missed = |what: &str, name: &str| !reached.contains(format!("{what} {name}").as_str());
        let cells = cell_names().filter(|name| missed("cell", name));
        (cells.collect(), marks().filter(|n| missed("mark", n)).collect())
    }

    /// Counts a fresh seed; returns what it is the first to come by.
    fn add(&mut self, answer: &SeedResult) -> Vec<String> {
        self.seeds += 1;
        self.virtual_ns += answer.virtual_ns;
        self.operations += answer.operations;
        self.polls += answer.polls;
        for (kind, n) in FaultKind::ALL.iter().zip(&answer.faults) {
            *self.faults.entry(kind.name().to_owned()).or_default() += n;
        }
        for (name, n) in cell_names().zip(&answer.cells) {
            *self.cells.entry(name).or_default() += n;
        }
        let known = self.reached();
        let new = answer.reached.iter().filter(|name| !known.contains(name.as_str()));
        let new: Vec<String> = new.cloned().collect();
        let violation = answer.violations.first().cloned();
        if !new.is_empty() || violation.is_some() {
            let kept = self.corpus.entry(answer.seed).or_default();
            kept.reached.extend(new.iter().cloned());
            kept.violation = violation;
        }
        new
    }

    /// Takes up what a seed of the corpus does today; returns what it no longer comes by.
    fn again(&mut self, answer: &SeedResult) -> Vec<String> {
        let Some(kept) = self.corpus.get_mut(&answer.seed) else { return Vec::new() };
        let lost: Vec<String> =
            kept.reached.iter().filter(|name| !answer.reached.contains(name)).cloned().collect();
        // Somebody else may be the first to come by it again.
        kept.reached.retain(|name| !lost.contains(name));
        kept.mended = kept.violation.is_some() && answer.violations.is_empty();
        if let Some(violation) = answer.violations.first() {
            kept.violation = Some(violation.clone());
        }
        if kept.reached.is_empty() && kept.violation.is_none() {
            self.corpus.remove(&answer.seed);
        }
        lost
    }

    /// All of it as the report of a run.
    fn report(&self) -> Report {
        let failed = self.corpus.iter().filter(|(_, kept)| !kept.mended);
        let failed = failed.filter_map(|(seed, kept)| Some((*seed, kept.violation.clone()?)));
        let count = |kind: &FaultKind| self.faults.get(kind.name()).copied().unwrap_or(0);
        Report {
            seeds: self.seeds,
            failed: failed.collect(),
            faults: FaultKind::ALL.iter().map(count).collect(),
            cells: cell_names().map(|c| self.cells.get(&c).copied().unwrap_or(0)).collect(),
            virtual_time: Nanos(self.virtual_ns),
            ops: self.operations,
            polls: self.polls,
            words: Vec::new(),
        }
    }
}

/// A soak under way, as its jobs share it.
struct Soak {
    state: State,
    /// Seeds to run before any fresh one.
    todo: VecDeque<u64>,
    /// The corpus once more, and nothing else.
    corpus_only: bool,
    stop: bool,
    /// Of this soak alone.
    report: Report,
    /// To be told.
    notes: Vec<String>,
}

impl Soak {
    fn next(&mut self) -> Option<u64> {
        if self.stop {
            return None;
        }
        if let Some(seed) = self.todo.pop_front() {
            return Some(seed);
        }
        if self.corpus_only {
            return None;
        }
        let seed = self.state.next;
        self.state.next += 1;
        self.state.running.insert(seed);
        Some(seed)
    }

    fn ended(&mut self, answer: &SeedResult) {
        let seed = answer.seed;
        self.report.seeds += 1;
        self.report.virtual_time += Nanos(answer.virtual_ns);
        self.report.ops += answer.operations;
        self.report.polls += answer.polls;
        self.report.faults.resize(FaultKind::ALL.len(), 0);
        for (sum, n) in self.report.faults.iter_mut().zip(&answer.faults) {
            *sum += n;
        }
        if let Some(why) = answer.violations.first() {
            let first = why.lines().next().unwrap_or_default();
            self.notes.push(format!("seed {seed} FAILED: {first}"));
            self.report.failed.push((seed, why.clone()));
        }
        if self.corpus_only {
            for name in self.state.again(answer) {
                self.notes.push(format!("seed {seed} no longer comes by {name}"));
            }
        } else {
            self.state.running.remove(&seed);
            self.state.add(answer);
        }
    }
}

/// A process that runs seeds.
struct Worker {
    child: Child,
    seeds: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(program: &Path) -> std::io::Result<Self> {
        let mut child = Command::new(program)
            .args(["sim", "worker"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let seeds = child.stdin.take().expect("piped");
        let answers = BufReader::new(child.stdout.take().expect("piped")).lines();
        Ok(Self { child, seeds, answers })
    }

    /// Runs a seed; the error is how the worker ended instead.
    async fn ask(&mut self, seed: u64) -> Result<SeedResult, String> {
        let line = format!("{seed}\n");
        if self.seeds.write_all(line.as_bytes()).await.is_ok()
            && let Ok(Some(line)) = self.answers.next_line().await
        {
            return serde_json::from_str(&line).map_err(|e| format!("it answered '{line}': {e}"));
        }
        let mut words = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(LAST_WORDS).read_to_end(&mut words).await;
        }
        let status = self.child.wait().await.map_or_else(|e| e.to_string(), |s| s.to_string());
        let words = String::from_utf8_lossy(&words);
        Err(format!("{status}: {}", words.lines().last().unwrap_or("without a word")))
    }
}

/// Runs seeds, one after the other, until there are no more.
async fn job(program: PathBuf, soak: Arc<Mutex<Soak>>) -> Result<(), Problem> {
    let start = || {
        Worker::start(&program).map_err(|e| {
            Problem::new(Code::Failed, format!("cannot start {}: {e}", program.display()))
        })
    };
    let mut worker = start()?;
    loop {
        let next = soak.lock().expect(POISON).next();
        let Some(seed) = next else { return Ok(()) };
        let answer = worker.ask(seed).await.unwrap_or_else(|why| SeedResult {
            seed,
            is_last: true,
            violations: vec![format!("the program died, {why}")],
            faults: Vec::new(),
            cells: Vec::new(),
            virtual_ns: 0,
            operations: 0,
            polls: 0,
            reached: Vec::new(),
        });
        soak.lock().expect(POISON).ended(&answer);
        if answer.is_last {
            worker = start()?;
        }
    }
}

pub(super) async fn run(context: &Context, asked: SimSoak) -> Run {
    let failed = |why: String| Failure::from(Problem::new(Code::Failed, why));
    let _lock = DataDir::lock(&asked.dir).map_err(|e| {
        Problem::new(e.code, e.detail).hint("a soak has its directory for itself: --dir names it")
    })?;
    let path = asked.dir.join(STATE);
    let known = State::read(&path)?;
    if known.is_none() && asked.corpus {
        let detail = format!("there is no corpus in {}", asked.dir.display());
        return Err(Problem::new(Code::Usage, detail)
            .hint("a soak without --corpus makes it")
            .into());
    }
    let state = known.unwrap_or_else(|| State::new(asked.first.unwrap_or_else(fresh)));
    let todo: VecDeque<u64> = match asked.corpus {
        true => state.corpus.keys().copied().collect(),
        false => state.running.iter().copied().collect(),
    };
    if !asked.corpus && state.seeds > 0 {
        let (seeds, next, kept) = (state.seeds, state.next, state.corpus.len());
        let note = format!("goes on at seed {next}, after {seeds} seeds; {kept} are kept");
        context.out.note(&note);
    }
    let before = state.seconds;
    let soak = Arc::new(Mutex::new(Soak {
        state,
        todo,
        corpus_only: asked.corpus,
        stop: false,
        report: Report::default(),
        notes: Vec::new(),
    }));
    let program = std::env::current_exe()
        .map_err(|e| failed(format!("cannot find this program's own file: {e}")))?;
    let jobs = match asked.jobs {
        Some(jobs) => usize::from(jobs),
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..jobs {
        running.spawn(job(program.clone(), soak.clone()));
    }
    let began = now();
    let (mut saved, mut said) = (Duration::ZERO, Duration::ZERO);
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    let mut was_interrupted = false;
    let mut trouble = None;
    loop {
        tokio::select! {
            biased;
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok(Ok(()))) => {}
                Some(Ok(Err(problem))) => {
                    soak.lock().expect(POISON).stop = true;
                    trouble = trouble.or(Some(problem));
                }
                Some(Err(e)) => return Err(failed(e.to_string())),
            },
            () = context.interrupt.wait(), if !was_interrupted => {
                was_interrupted = true;
                soak.lock().expect(POISON).stop = true;
            }
            _ = tick.tick() => {
                let spent = began.elapsed();
                let mut soak = soak.lock().expect(POISON);
                soak.state.seconds = before + if asked.corpus { 0.0 } else { spent.as_secs_f64() };
                for note in soak.notes.drain(..) {
                    context.out.note(&note);
                }
                if !asked.corpus && spent >= asked.time {
                    soak.stop = true;
                }
                if spent >= said + SAY_EVERY {
                    said = spent;
                    context.out.note(&progress(&soak, spent, asked.time));
                }
                if spent >= saved + SAVE_EVERY {
                    saved = spent;
                    if let Err(problem) = soak.state.write(&path) {
                        soak.stop = true;
                        trouble = trouble.or(Some(problem));
                    }
                }
            }
        }
    }
    let mut soak = soak.lock().expect(POISON);
    for note in soak.notes.drain(..) {
        context.out.note(&note);
    }
    let spent = began.elapsed().as_secs_f64();
    if !asked.corpus {
        soak.state.seconds = before + spent;
    }
    if let Some(problem) = trouble {
        return Err(problem.into());
    }
    soak.state.write(&path)?;
    soak.report.failed.sort();
    // Of the corpus, what it showed this time; otherwise, all that was ever found.
    let report = if asked.corpus { soak.report.clone() } else { soak.state.report() };
    let text = tell(context.out.format, &soak, &report, spent, jobs);
    context.out.data(&text)?;
    if was_interrupted {
        return Err(interrupted(Some("the same command goes on from here")));
    }
    let hint = report.failed.first().map_or(String::new(), |(seed, _)| {
        format!("atoll sim shrink --seed {seed} looks for its fewest faults")
    });
    verdict(report.failed.len(), report.seeds, &hint)
}

fn progress(soak: &Soak, spent: Duration, limit: Duration) -> String {
    let Report { seeds, failed, .. } = &soak.report;
    let (kept, failed) = (soak.state.corpus.len(), failed.len());
    let pace = soak.report.pace(spent.as_secs_f64());
    let left = match soak.corpus_only {
        true => format!("{} seeds", soak.todo.len()),
        false => format!("{} min", limit.saturating_sub(spent).as_secs().div_ceil(60)),
    };
    format!("{seeds} seeds, {failed} failed, {kept} kept, {pace}, {left} left")
}

fn tell(format: Format, soak: &Soak, report: &Report, spent: f64, jobs: usize) -> String {
    let state = &soak.state;
    let (cells, marks) = state.unreached();
    match format {
        Format::Json | Format::Yaml => {
            let kept = |(seed, kept): (&u64, &Kept)| {
                json!({
                    "seed": seed, "reached": kept.reached,
                    "violation": kept.violation, "mended": kept.mended,
                })
            };
            let value = json!({
                "kind": "SimSoak", "version": 1,
                "item": {
                    "seeds": state.seeds, "next": state.next, "seconds": state.seconds,
                    "virtual_seconds": Nanos(state.virtual_ns).as_secs_f64(),
                    "operations": state.operations, "faults": state.faults,
                    "cells": state.cells, "cells_unreached": cells, "marks_unreached": marks,
                    "corpus": state.corpus.iter().map(kept).collect::<Vec<_>>(),
                },
            });
            if format == Format::Yaml { yaml(&value) } else { format!("{value}\n") }
        }
        Format::Name => report.failed.iter().map(|(seed, _)| format!("{seed}\n")).collect(),
        Format::Table | Format::Wide => {
            let mut text = String::new();
            if !cells.is_empty() {
                text += &format!("cells not reached: {}\n", cells.join(", "));
            }
            if !marks.is_empty() {
                text += &format!("marks not reached: {}\n", marks.join(", "));
            }
            let (kept, pace) = (state.corpus.len(), soak.report.pace(spent));
            let seeds = soak.report.seeds;
            text += &format!("{seeds} seeds in {spent:.0} s, jobs: {jobs}, {pace}; {kept} kept\n");
            if !soak.corpus_only {
                text += &format!("since seed {}, in {:.0} s:\n", state.first, state.seconds);
            }
            format!("{text}{report}\n")
        }
    }
}

/// Seeds that nobody has run.
#[allow(clippy::disallowed_methods, reason = "only here does chance come into it")]
fn fresh() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |s| s.as_secs() * 1000)
}

#[cfg(test)]
mod tests {
    use super::{Kept, SeedResult, State};

    fn answer(seed: u64, reached: &[&str], violations: &[&str]) -> SeedResult {
        SeedResult {
            seed,
            is_last: false,
            violations: violations.iter().map(|v| (*v).to_owned()).collect(),
            faults: vec![2, 3],
            cells: vec![1, 4],
            virtual_ns: 10,
            operations: 5,
            polls: 7,
            reached: reached.iter().map(|r| (*r).to_owned()).collect(),
        }
    }

    #[test]
    fn only_seeds_that_show_something_new_are_kept() {
        let mut state = State::new(100);
        let kill = "cell kill x write";
        assert!(state.unreached().0.iter().any(|name| *name == kill[5..]));
        assert_eq!(state.add(&answer(100, &[kill, "mark a"], &[])).len(), 2);
        assert!(state.add(&answer(101, &["mark a"], &[])).is_empty());
        assert_eq!(state.add(&answer(102, &["mark a", "mark b"], &[])), ["mark b"]);
        state.add(&answer(103, &[], &["lost"]));
        assert_eq!(state.corpus.keys().copied().collect::<Vec<_>>(), [100, 102, 103]);
        assert_eq!((state.seeds, state.report().failed.len()), (4, 1));
        assert_eq!(state.report().faults[..2], [8, 12]);
        assert_eq!(state.report().cells[..3], [4, 16, 0]);
        assert!(!state.unreached().0.iter().any(|name| *name == kill[5..]));
        // A newer program: one is mended, one no longer comes by what it was kept for.
        assert!(state.again(&answer(103, &[], &[])).is_empty());
        assert_eq!(state.again(&answer(102, &["mark a"], &[])), ["mark b"]);
        assert_eq!(state.corpus.keys().copied().collect::<Vec<_>>(), [100, 103]);
        assert!(state.report().failed.is_empty());
        assert_eq!(state.add(&answer(104, &["mark b"], &[])), ["mark b"]);
    }

    #[test]
    fn a_state_reads_back_and_a_damaged_one_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("soak.json");
        assert_eq!(State::read(&path).unwrap(), None);
        let mut state = State::new(7);
        state.running.insert(9);
        state.corpus.insert(8, Kept { violation: Some("x".into()), ..Kept::default() });
        state.write(&path).unwrap();
        assert_eq!(State::read(&path).unwrap(), Some(state));
        let whole = std::fs::read_to_string(&path).unwrap();
        let newer = whole.replace("\"version\": 2", "\"version\": 3");
        for (text, why) in [
            (&whole[..whole.len() / 2], "damaged: EOF"),
            ("{}", "it has no version"),
            (&newer, "it has version 3, this program reads version 2"),
            (&whole.replace("polls", "pools"), "unknown field `pools`"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = State::read(&path).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("soak.json"), "{error}");
            assert!(error.contains("hint: it is left as it is"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }
}
