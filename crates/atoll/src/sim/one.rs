//! One seed: its replay, the least of it that still fails, its picture.

use super::runs::{now, one_or, options, verdict};
use crate::cli::args::{SimRun, SimShrink, SimTimeline};
use crate::cli::context::{Context, interrupted};
use crate::cli::out::{Failure, Format, Run, yaml};
use atoll_api::{Code, Problem};
use atoll_sim::fault::FaultKind;
use atoll_sim::machines::Befallen;
use atoll_sim::run::{Options, Outcome};
use atoll_sim::shrink::{self, Shrunk, faults_of};
use atoll_sim::timeline;
use atoll_world::Nanos;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) async fn replay(context: &Context, seed: u64, asked: SimRun) -> Run {
    let options = options(&asked.make, &asked.part)?;
    let options = Options { trace: asked.trace, twice: asked.twice, ..options };
    let format = context.out.format;
    let work = tokio::task::spawn_blocking(move || {
        one_or(seed, &options, move |outcome| {
            let _ = std::io::stdout().write_all(show(format, outcome).as_bytes());
            std::process::exit(1);
        })
    });
    let outcome = tokio::select! {
        biased;
        () = context.interrupt.wait() => return Err(interrupted(None)),
        outcome = work => outcome,
    };
    let died = |_| Failure::from(Problem::new(Code::Failed, format!("seed {seed} died")));
    let outcome = outcome.map_err(died)?;
    context.out.data(&show(format, &outcome))?;
    let hint = format!("atoll sim shrink --seed {seed} looks for its fewest faults");
    verdict(outcome.violations.len(), 1, &hint)
}

fn show(format: Format, outcome: &Outcome) -> String {
    match format {
        Format::Json => format!("{}\n", value(outcome)),
        Format::Yaml => yaml(&value(outcome)),
        Format::Name if outcome.violations.is_empty() => String::new(),
        Format::Name => format!("{}\n", outcome.seed),
        Format::Table | Format::Wide => {
            let mut text = String::new();
            for line in &outcome.lines {
                let _ = writeln!(text, "{line}");
            }
            for violation in &outcome.violations {
                let _ = writeln!(text, "VIOLATION: {violation}");
            }
            let _ = writeln!(
                text,
                "seed {}: hash {:016x}, {:?} virtual, {} of {} operations answered, {} polls",
                outcome.seed,
                outcome.hash,
                outcome.virtual_time,
                outcome.ops.1,
                outcome.ops.0,
                outcome.polls
            );
            text
        }
    }
}

/// An outcome as others read it.
fn value(outcome: &Outcome) -> Value {
    let faults: Map<String, Value> = FaultKind::ALL
        .iter()
        .zip(&outcome.faults)
        .map(|(kind, &n)| (kind.name().to_owned(), n.into()))
        .collect();
    let events = outcome.events.iter().map(
        |e| json!({ "number": e.number, "at_ns": e.at.0, "kind": e.kind.name(), "host": e.host }),
    );
    let effects = outcome.effects.iter().map(|(at, k)| json!({ "at_ns": at.0, "kind": k.name() }));
    let mut item = json!({
        "seed": outcome.seed, "hash": format!("{:016x}", outcome.hash),
        "violations": outcome.violations, "faults": faults,
        "virtual_ns": outcome.virtual_time.0, "polls": outcome.polls,
        "operations": outcome.ops.0, "answered": outcome.ops.1,
        "events": events.collect::<Vec<_>>(), "effects": effects.collect::<Vec<_>>(),
    });
    if !outcome.lines.is_empty() {
        item["trace"] = outcome.lines.iter().map(ToString::to_string).collect();
    }
    json!({ "kind": "SimOutcome", "version": 1, "item": item })
}

/// Reads what [`value`] makes, all that shrinking asks for.
fn outcome_of(text: &str) -> Option<Outcome> {
    let kind = |name: &Value| FaultKind::ALL.iter().find(|k| Some(k.name()) == name.as_str());
    let whole: Value = serde_json::from_str(text).ok()?;
    let item = whole.get("item")?;
    let number = |of: &Value, name: &str| of.get(name)?.as_u64();
    let mut events = Vec::new();
    for event in item.get("events")?.as_array()? {
        events.push(Befallen {
            number: u32::try_from(number(event, "number")?).ok()?,
            at: Nanos(number(event, "at_ns")?),
            kind: *kind(event.get("kind")?)?,
            host: u16::try_from(number(event, "host")?).ok()?,
        });
    }
    let mut effects = Vec::new();
    for effect in item.get("effects")?.as_array()? {
        effects.push((Nanos(number(effect, "at_ns")?), *kind(effect.get("kind")?)?));
    }
    let violations = item.get("violations")?.as_array()?.iter();
    let faults = item.get("faults")?;
    Some(Outcome {
        seed: number(item, "seed")?,
        hash: u64::from_str_radix(item.get("hash")?.as_str()?, 16).ok()?,
        violations: violations.map(|v| v.as_str().unwrap_or_default().to_owned()).collect(),
        faults: FaultKind::ALL.iter().map(|k| number(faults, k.name()).unwrap_or(0)).collect(),
        cells: Vec::new(),
        marks: Vec::new(),
        virtual_time: Nanos(number(item, "virtual_ns")?),
        ops: (number(item, "operations")?, number(item, "answered")?),
        polls: number(item, "polls")?,
        events,
        effects,
        lines: Vec::new(),
        client_ops: Vec::new(),
    })
}

/// Runs a seed in a process of its own: a panic is an outcome then, not the end of the search.
fn apart(program: &Path, seed: u64, options: &Options) -> Result<Outcome, String> {
    let mut command = Command::new(program);
    command.args(["sim", "run", "-o", "json", "-q"]).args(options.words(seed));
    let output = command.output().map_err(|e| format!("{}: {e}", program.display()))?;
    outcome_of(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("nothing was said");
        format!("a run of seed {seed} ended without an outcome ({}): {last}", output.status)
    })
}

pub(super) async fn shrink(context: &Context, asked: SimShrink) -> Run {
    let seed = asked.seed;
    let options = options(&asked.make, &asked.part)?;
    let failed = |why: String| Failure::from(Problem::new(Code::Failed, why));
    let program = std::env::current_exe()
        .map_err(|e| failed(format!("cannot find this program's own file: {e}")))?;
    let people = matches!(context.out.format, Format::Table | Format::Wide);
    let line = (people && !context.out.quiet && std::io::stderr().is_terminal()).then(|| {
        let style = ProgressStyle::with_template("{wide_msg}").expect("a tested template");
        ProgressBar::no_length().with_style(style)
    });
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, began, runs_max) = (stop.clone(), now(), asked.runs);
    let mut work = tokio::task::spawn_blocking(move || {
        let mut trouble = None;
        let mut runs = 0;
        let mut run = |options: &Options| {
            let late = asked.time.is_some_and(|limit| began.elapsed() >= limit);
            if late || stopped.load(Ordering::Relaxed) {
                return None;
            }
            runs += 1;
            if let Some(line) = &line {
                line.set_message(format!("run {runs}: {}", options.words(seed).join(" ")));
            }
            match apart(&program, seed, options) {
                Ok(outcome) => Some(outcome),
                Err(why) => {
                    trouble = Some(why);
                    None
                }
            }
        };
        let shrunk = shrink::shrink(seed, &options, runs_max, &mut run);
        if let Some(line) = &line {
            line.finish_and_clear();
        }
        (shrunk, trouble)
    });
    let mut was_interrupted = false;
    let (shrunk, trouble) = loop {
        tokio::select! {
            biased;
            done = &mut work => break done.map_err(|e| failed(e.to_string()))?,
            () = context.interrupt.wait(), if !was_interrupted => {
                was_interrupted = true;
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    if let (Some(why), false) = (trouble, was_interrupted) {
        return Err(failed(why));
    }
    let shrunk = match shrunk {
        Ok(shrunk) => shrunk,
        Err(_) if was_interrupted => return Err(interrupted(None)),
        Err(why) => {
            let hint = "give it the options that the failing run had, --ops and --faults included";
            return Err(Problem::new(Code::Failed, why).hint(hint).into());
        }
    };
    context.out.data(&tell(context.out.format, seed, &shrunk))?;
    if was_interrupted {
        return Err(interrupted(Some("what was found until then is above")));
    }
    if !shrunk.is_least {
        context.out.note("the search was cut short: --runs N and --time let it go on for longer");
    }
    Ok(())
}

fn tell(format: Format, seed: u64, shrunk: &Shrunk) -> String {
    let words = shrunk.options.words(seed).join(" ");
    let replay = format!("atoll sim run {words} --trace");
    match format {
        Format::Json | Format::Yaml => {
            let value = json!({
                "kind": "SimShrunk", "version": 1,
                "item": {
                    "replay": replay, "runs": shrunk.runs, "is_least": shrunk.is_least,
                    "outcome": value(&shrunk.outcome)["item"],
                },
            });
            if format == Format::Yaml { yaml(&value) } else { format!("{value}\n") }
        }
        Format::Name => format!("{replay}\n"),
        Format::Table | Format::Wide => {
            let size = |o: &Outcome| {
                let kinds = o.faults.iter().filter(|n| **n > 0).count();
                let (events, effects) = (o.events.len(), o.faults.iter().sum::<u64>());
                format!(
                    "{events} events, {effects} effects of {kinds} kinds of fault, {} operations",
                    o.ops.0
                )
            };
            let violation = shrunk.outcome.violations.first().map_or("", |v| v.as_str());
            let mut text = format!("seed {seed}: {}\n", violation.lines().next().unwrap_or(""));
            let _ = writeln!(text, "  whole: {}", size(&shrunk.whole));
            let _ = writeln!(text, "  least: {}", size(&shrunk.outcome));
            let _ = writeln!(text, "  after {} runs", shrunk.runs);
            let faults = faults_of(&shrunk.outcome);
            for line in &faults {
                let _ = writeln!(text, "    {line}");
            }
            if faults.is_empty() {
                text += "    no fault: it fails without any\n";
            }
            text + &format!("replay: {replay}\n")
        }
    }
}

pub(super) async fn timeline(context: &Context, asked: SimTimeline) -> Run {
    let (seed, out) = (asked.seed, asked.out);
    let options = Options { trace: true, ..options(&asked.make, &asked.part)? };
    let write = |path: &Path, page: &str| {
        std::fs::write(path, page).map_err(|e| {
            Problem::new(Code::LocalFile, format!("cannot write {}: {e}", path.display()))
                .hint("--out names the page's file; its directory must exist")
        })
    };
    // Before the run: it takes seconds, and the directory is there or not.
    write(&out, "")?;
    let (path, of_panic) = (out.clone(), options.clone());
    let work = tokio::task::spawn_blocking(move || {
        let panicked = move |outcome: &mut Outcome| {
            let _ = write(&path, &timeline::page(&of_panic, outcome));
            let _ = writeln!(std::io::stderr(), "{}: up to the panic", path.display());
            std::process::exit(1);
        };
        let outcome = one_or(seed, &options, panicked);
        let page = timeline::page(&options, &outcome);
        (outcome, page)
    });
    let done = tokio::select! {
        biased;
        () = context.interrupt.wait() => return Err(interrupted(None)),
        done = work => done,
    };
    let died = |_| Failure::from(Problem::new(Code::Failed, format!("seed {seed} died")));
    let (outcome, page) = done.map_err(died)?;
    write(&out, &page)?;
    let (path, kib, found) = (out.display(), page.len() / 1024, outcome.violations.len());
    context.out.note(&format!("{path}: {kib} KiB, seed {seed}, {found} violations"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{outcome_of, value};
    use atoll_sim::run::{Options, run_one};

    #[test]
    fn an_outcome_reads_back() {
        let options = Options { ops: 40, reference_store: true, ..Options::default() };
        let mut outcome = run_one(3, &options);
        outcome.violations.push("made up: \"quoted\"\nin two lines".into());
        let back = outcome_of(&value(&outcome).to_string()).unwrap();
        assert_eq!(value(&back), value(&outcome));
        assert!(outcome_of("{}").is_none() && outcome_of("").is_none());
    }
}
