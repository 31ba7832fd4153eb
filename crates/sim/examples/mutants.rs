//! `mutants [--only NAME[,NAME]] [--seconds 600] [--jobs 2] [--first-seed N] [--no-scenarios]`:
//! switches on one deliberate flaw after the other and runs seeds in order until something is
//! found; when the seconds are used up, the scenarios, and the seeds that once found something.
//! Ends with the table of `docs/simulation.md`, and with an error if a flaw was not found.
//! `mutants --play FILE [--only NAME]` plays one scenario with that flaw, and names the marks that
//! it passed.
//!
//! Each flaw has a process of its own: one that panics or hangs is found as well.

#![allow(clippy::disallowed_methods, reason = "a program, not the simulator")]

use atoll_sim::mutants::{ALL, Mutant};
use atoll_sim::regressions;
use atoll_sim::run::{Options, run_one};
use atoll_sim::scenario;
use atoll_world::mutant::switch_on;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// As in `atoll`; the C library's gives large buffers back to the kernel again and again.
#[global_allocator]
static ALLOC: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A single run that takes so long hangs.
const RUN_MAX: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Args {
    only: Vec<String>,
    seconds: u64,
    jobs: usize,
    first_seed: u64,
    clean: u64,
    child: Option<String>,
    count: u64,
    scenarios: bool,
    play: Option<String>,
}

fn main() {
    let mut args = Args {
        only: Vec::new(),
        seconds: 600,
        jobs: 2,
        first_seed: 0,
        clean: 50,
        child: None,
        count: u64::MAX,
        scenarios: true,
        play: None,
    };
    let mut scenario_child = false;
    let mut given = std::env::args().skip(1);
    while let Some(arg) = given.next() {
        let mut value = || given.next().unwrap_or_else(|| fail(&format!("{arg} needs a value")));
        match arg.as_str() {
            "--only" => args.only = value().split(',').map(str::to_owned).collect(),
            "--seconds" => args.seconds = number(&value()),
            "--jobs" => args.jobs = number(&value()).max(1) as usize,
            "--first-seed" => args.first_seed = number(&value()),
            "--clean" => args.clean = number(&value()),
            "--child" => args.child = Some(value()),
            "--count" => args.count = number(&value()),
            "--scenarios" => scenario_child = true,
            "--play" => args.play = Some(value()),
            "--no-scenarios" => args.scenarios = false,
            other => fail(&format!("unknown argument {other}")),
        }
    }
    match args.child.clone() {
        _ if args.play.is_some() => play(&args),
        Some(name) => {
            args.scenarios = scenario_child;
            child(&name, &args);
        }
        None => parent(&args),
    }
}

/// Plays one scenario with the flaws that are asked for.
fn play(args: &Args) {
    let file = args.play.as_deref().expect("asked for");
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| fail(&format!("{file}: {e}")));
    for name in &args.only {
        let mutant = ALL.iter().find(|m| m.name == name);
        switch_on(mutant.unwrap_or_else(|| fail(&format!("no flaw is called {name}"))).name);
    }
    print!("{}", scenario::play(&text).unwrap_or_else(|why| fail(&why)));
    let passed: Vec<_> = atoll_world::mark::reached().into_keys().collect();
    println!("passed {}", passed.join(" "));
}

// ---- one flaw, in a process of its own ---------------------------------------------------------

/// Says what it begins with, and what it has found: a line each.
fn child(name: &str, args: &Args) {
    let mutant = ALL.iter().find(|m| m.name == name);
    switch_on(mutant.map_or("", |m| m.name));
    std::panic::set_hook(Box::new(|panic| {
        println!("found panic: {}", one_line(&panic.to_string()));
        std::process::exit(1)
    }));
    if args.scenarios {
        for (scenario, text) in scenarios() {
            println!("run {scenario}");
            let told = scenario::play(&text).unwrap_or_else(|why| format!("VIOLATION: {why}"));
            if let Some(line) = told.lines().find(|line| line.contains("VIOLATION")) {
                println!("found {}", one_line(line));
                std::process::exit(1);
            }
        }
        for (seed, _, options) in regressions::all() {
            println!("run regressions.rs, seed {seed}");
            if let Some(first) = run_one(seed, &options).violations.first() {
                println!("found {}", one_line(first));
                std::process::exit(1);
            }
        }
        return;
    }
    let began = Instant::now();
    for seed in (args.first_seed..).take(usize::try_from(args.count).unwrap_or(usize::MAX)) {
        if began.elapsed().as_secs() >= args.seconds {
            return;
        }
        if mutant.is_some_and(|m| !m.may_show_in(seed)) {
            continue;
        }
        println!("run {seed}");
        let outcome = run_one(seed, &Options::default());
        if let Some(first) = outcome.violations.first() {
            println!("found {}", one_line(first));
            std::process::exit(1);
        }
    }
}

fn scenarios() -> BTreeMap<String, String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = std::fs::read_dir(dir).expect("the scenarios are there");
    let files = files.map(|entry| entry.expect("readable").path()).filter(|path| path.is_file());
    let scenario = |path: std::path::PathBuf| {
        let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(&path).expect("text"))
    };
    files.map(scenario).collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

// ---- all flaws ---------------------------------------------------------------------------------

/// What came of one child.
struct Ran {
    /// Runs begun, and the last of them.
    runs: u64,
    last: String,
    found: Option<String>,
}

fn spawn(name: &str, more: &[String]) -> Ran {
    let me = std::env::current_exe().expect("a program has a path");
    let mut command = Command::new(me);
    command.args(["--child", name]).args(more);
    // A run frees its disks; giving the memory back each time costs a third of the time.
    command.env("MALLOC_TRIM_THRESHOLD_", "4000000000").env("MALLOC_MMAP_THRESHOLD_", "4000000000");
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().expect("this program can be run");
    let out = process.stdout.take().expect("piped above");
    let (tell, told) = channel();
    let mut ran = Ran { runs: 0, last: String::new(), found: None };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        loop {
            match told.recv_timeout(RUN_MAX) {
                Ok(line) => match line.split_once(' ') {
                    Some(("run", which)) => {
                        ran.runs += 1;
                        ran.last = which.to_owned();
                    }
                    Some(("found", what)) => ran.found = Some(what.to_owned()),
                    _ => {}
                },
                Err(RecvTimeoutError::Timeout) => {
                    ran.found = Some("hangs: does something for ever".into());
                    // Its end closes the pipe, and so ends the reader.
                    let _ = process.kill();
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    let status = process.wait().expect("it was started");
    if ran.found.is_none() && !status.success() {
        ran.found = Some(format!("ends with {status}"));
    }
    ran
}

fn seeds(first: u64, count: u64, seconds: u64) -> Vec<String> {
    let pairs = [("--first-seed", first), ("--count", count), ("--seconds", seconds)];
    pairs.into_iter().flat_map(|(name, n)| [name.to_owned(), n.to_string()]).collect()
}

/// How one flaw was found.
struct Found {
    mutant: &'static Mutant,
    by: Option<String>,
    runs: u64,
    seconds: f64,
    what: String,
}

fn try_one(mutant: &'static Mutant, args: &Args) -> Found {
    let began = Instant::now();
    let (mut first, mut runs) = (args.first_seed, 0);
    loop {
        let left = args.seconds.saturating_sub(began.elapsed().as_secs());
        let ran = spawn(mutant.name, &seeds(first, u64::MAX, left));
        runs += ran.runs;
        let seconds = began.elapsed().as_secs_f64();
        let Some(what) = ran.found else { break };
        // What is found without the flaw too is none of its.
        let seed = number(&ran.last);
        if spawn("", &seeds(seed, 1, 600)).found.is_none() {
            return Found { mutant, by: Some(seed.to_string()), runs, seconds, what };
        }
        println!("seed {seed} finds something without any flaw: {what}");
        first = seed + 1;
    }
    if !args.scenarios {
        let seconds = began.elapsed().as_secs_f64();
        return Found { mutant, by: None, runs, seconds, what: String::new() };
    }
    let told = spawn(mutant.name, &["--scenarios".to_owned()]);
    let seconds = began.elapsed().as_secs_f64();
    let by = told.found.as_ref().map(|_| told.last.clone());
    Found { mutant, by, runs, seconds, what: told.found.unwrap_or_default() }
}

fn parent(args: &Args) {
    let chosen: Vec<&'static Mutant> = ALL
        .iter()
        .filter(|m| args.only.is_empty() || args.only.iter().any(|name| m.name.contains(name)))
        .collect();
    if chosen.is_empty() {
        fail("no flaw is called so");
    }
    let clean = spawn("", &seeds(args.first_seed, args.clean, u64::MAX));
    if let Some(what) = clean.found {
        fail(&format!("without any flaw seed {} finds: {what}", clean.last));
    }
    let queue = Mutex::new(chosen.into_iter());
    let results = Mutex::new(Vec::new());
    let work = || {
        while let Some(mutant) = {
            let next = queue.lock().expect("nobody panics with it").next();
            next
        } {
            let result = try_one(mutant, args);
            let by = result.by.as_deref().unwrap_or("NOTHING");
            let what: String = result.what.chars().take(150).collect();
            println!(
                "{}: found by {by} after {} seeds, {:.1} s: {what}",
                mutant.name, result.runs, result.seconds
            );
            results.lock().expect("nobody panics with it").push(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..args.jobs {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().expect("nobody panics with it");
    results.sort_by_key(|r| ALL.iter().position(|m| m == r.mutant));
    println!("\n| flaw | what is wrong | rule | found by | seeds | s |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for r in &results {
        let by = match &r.by {
            Some(by) if by.parse::<u64>().is_ok() => format!("seed {by}"),
            Some(seed) if seed.starts_with("regressions") => format!("`{seed}`"),
            Some(scenario) => format!("scenario {scenario}"),
            None => "nothing".into(),
        };
        let Mutant { name, rule, broken, .. } = r.mutant;
        println!("| `{name}` | {broken} | {rule} | {by} | {} | {:.1} |", r.runs, r.seconds);
    }
    let survive = results.iter().filter(|r| r.by.is_none()).count();
    let slowest = results.iter().map(|r| r.seconds).fold(0.0, f64::max);
    println!("{} flaws, {survive} not found, the slowest in {slowest:.0} s", results.len());
    std::process::exit(i32::from(survive > 0));
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| fail(&format!("'{text}' is not a number")))
}

fn fail(why: &str) -> ! {
    eprintln!("mutants: {why}");
    std::process::exit(2)
}
