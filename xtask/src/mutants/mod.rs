//! `cargo xtask mutants`: how many small mistakes the tests and the simulator notice.
//!
//! Mutants are made by rule ([`rules`]), drawn at random, and put into one copy of the tree, each
//! behind a switch ([`tree`]); then each is tried by itself ([`trial`]). The score is that of a
//! fresh sample: no list of flaws can be tuned to.

mod rules;
mod tree;
mod trial;

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};
use tree::{Placed, Tree};
use trial::{End, Trial};

/// Crates that mutants are made of.
const CRATES: [&str; 6] = ["format", "directory", "store", "transport", "object", "node"];
/// Packages whose tests may catch them.
const PACKAGES: [&str; 7] = [
    "atoll-format",
    "atoll-directory",
    "atoll-store",
    "atoll-transport",
    "atoll-object",
    "atoll-node",
    "atoll-sim",
];
/// Mutants of which it was found that they change nothing that matters, each with the reason.
const HARMLESS: &str = "docs/harmless-mutants.txt";
/// Of a hundred drawn, about forty do not compile.
const OVERDRAWN: usize = 2;

/// The words of the command.
pub const USAGE: &str = "usage: cargo xtask mutants [--sample N] [--seed S] [--minutes M] \
                         [--jobs J] [--dir D] [--resume]";

struct Asked {
    sample: usize,
    seed: u64,
    minutes: u64,
    jobs: usize,
    dir: PathBuf,
    resume: bool,
}

/// Runs the command.
///
/// # Errors
/// A sentence: bad words, or what could not be read, built or run.
pub fn run(root: &Path, files: &[String], words: &[String]) -> Result<(), String> {
    let asked = Asked::read(root, words)?;
    let results = asked.dir.join("results.jsonl");
    std::fs::create_dir_all(asked.dir.join("logs")).map_err(|e| e.to_string())?;
    if !asked.resume && results.exists() {
        return Err(format!("{}: from an earlier run; --resume, or remove it", results.display()));
    }
    let done = read_results(&results)?;
    let seed = match done.first().and_then(|first| first["seed"].as_u64()) {
        Some(seed) => seed,
        None => asked.seed,
    };
    let (sample, all) = draw(root, files, asked.sample, seed)?;
    eprintln!("seed {seed}: {} of {all} mutants drawn", sample.len());
    let tree = Tree::new(root, &asked.dir, files)?;
    let mut sample = tree.settle(sample)?;
    sample.truncate(asked.sample);
    eprintln!("{} are tried; building", sample.len());
    let built = tree.build()?;
    let mut trial = Trial {
        built: &built,
        limit: Duration::from_secs(asked.minutes * 60),
        logs: asked.dir.join("logs"),
        seed: SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs()) * 1_000,
        usual: Vec::new(),
    };
    eprintln!("first everything without any");
    trial.measure()?;
    let tried: BTreeSet<u64> = done.iter().filter_map(|d| d["number"].as_u64()).collect();
    let left: Vec<&Placed> =
        sample.iter().filter(|p| !tried.contains(&u64::from(p.number))).collect();
    let out = std::fs::OpenOptions::new().create(true).append(true).open(&results);
    let out = Mutex::new(out.map_err(|e| format!("{}: {e}", results.display()))?);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(placed) = left.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (end, took) = trial.try_one(placed);
            let line = result(placed, &end, took, seed);
            eprintln!("{}", told(&line));
            let mut out = out.lock().expect("nobody panicked");
            writeln!(out, "{line}").expect("results can be written");
        }
    };
    std::thread::scope(|scope| (0..asked.jobs).for_each(|_| drop(scope.spawn(work))));
    summary(root, &read_results(&results)?)
}

impl Asked {
    fn read(root: &Path, words: &[String]) -> Result<Self, String> {
        let clock = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_secs());
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let dir = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
        let mut asked = Self {
            sample: 20,
            seed: clock,
            minutes: 10,
            jobs,
            dir: dir.join("mutants"),
            resume: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word == "--resume" {
                asked.resume = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{word} {value}: a number"));
            match word.as_str() {
                "--sample" => asked.sample = number()? as usize,
                "--seed" => asked.seed = number()?,
                "--minutes" => asked.minutes = number()?,
                "--jobs" => asked.jobs = number()?.max(1) as usize,
                "--dir" => asked.dir = value.into(),
                _ => return Err(format!("there is no option {word}\n{USAGE}")),
            }
        }
        asked.dir = std::path::absolute(&asked.dir).map_err(|e| e.to_string())?;
        Ok(asked)
    }
}

/// Draws more mutants than are wanted, no two of which overlap; and how many there are.
fn draw(
    root: &Path,
    files: &[String],
    sample: usize,
    seed: u64,
) -> Result<(Vec<Placed>, usize), String> {
    let mut all = Vec::new();
    for file in files.iter().filter(|file| is_source(file)) {
        let text = std::fs::read_to_string(root.join(file)).map_err(|e| format!("{file}: {e}"))?;
        let found = rules::find(&text).map_err(|e| format!("{file}: {e}"))?;
        all.extend(found.into_iter().map(|mutant| (file.clone(), mutant)));
    }
    let count = all.len();
    let mut state = seed;
    let mut chosen: Vec<Placed> = Vec::new();
    while chosen.len() < sample * OVERDRAWN && !all.is_empty() {
        let (file, mutant) = all.swap_remove((next(&mut state) % all.len() as u64) as usize);
        let meets = |other: &Placed| {
            let (a, b) = (&other.mutant.bytes, &mutant.bytes);
            other.file == file && a.start <= b.end && b.start <= a.end
        };
        if !chosen.iter().any(meets) {
            chosen.push(Placed { number: chosen.len() as u32 + 1, file, mutant });
        }
    }
    Ok((chosen, count))
}

fn is_source(file: &str) -> bool {
    let within = |name: &str| file.starts_with(&format!("crates/{name}/src/"));
    // A suite of tests that directories share is none of the product.
    let is_test = file.ends_with("/conformance.rs");
    file.ends_with(".rs") && !is_test && CRATES.iter().any(|name| within(name))
}

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn result(placed: &Placed, end: &End, took: Duration, seed: u64) -> Value {
    let mutant = &placed.mutant;
    let (by, what) = match end {
        End::Caught(by, what) => (*by, what.as_str()),
        End::Survived => ("", ""),
    };
    json!({
        "number": placed.number,
        "seed": seed,
        "file": placed.file,
        "line": mutant.line,
        "function": mutant.function,
        "rule": mutant.rule,
        "was": mutant.was,
        "caught_by": by,
        "said": what,
        "seconds": took.as_secs(),
    })
}

fn read_results(path: &Path) -> Result<Vec<Value>, String> {
    let Ok(text) = std::fs::read_to_string(path) else { return Ok(Vec::new()) };
    let read =
        |line: &str| serde_json::from_str(line).map_err(|e| format!("{}: {e}", path.display()));
    text.lines().map(read).collect()
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

/// One result in a line.
fn told(of: &Value) -> String {
    let end = match text(of, "caught_by") {
        "" => "SURVIVED".to_owned(),
        by => format!("caught by {by} ({})", text(of, "said")),
    };
    format!(
        "#{} {}:{} {} {} `{}`: {end}, {} s",
        of["number"],
        text(of, "file"),
        of["line"],
        text(of, "function"),
        text(of, "rule"),
        text(of, "was"),
        of["seconds"]
    )
}

/// The score, and the survivors.
fn summary(root: &Path, results: &[Value]) -> Result<(), String> {
    let list = std::fs::read_to_string(root.join(HARMLESS)).unwrap_or_default();
    let harmless = harmless(&list)?;
    let mut by: BTreeMap<&str, usize> = BTreeMap::new();
    let mut survivors = Vec::new();
    for of in results {
        let place = [text(of, "file"), text(of, "function"), text(of, "rule"), text(of, "was")];
        match (text(of, "caught_by"), harmless.get(&place.map(str::to_owned))) {
            ("", Some(why)) => {
                *by.entry("harmless").or_default() += 1;
                println!("harmless: {}: {why}", told(of));
            }
            ("", None) => survivors.push(told(of)),
            (by_what, _) => *by.entry(by_what).or_default() += 1,
        }
    }
    survivors.iter().for_each(|line| println!("{line}"));
    let count = |name: &str| by.get(name).copied().unwrap_or(0);
    let that_matter = results.len() - count("harmless");
    let caught = that_matter - survivors.len();
    println!(
        "{} tried: {caught} caught of {that_matter} that matter ({} %): {} by unit tests, {} by \
         seeds, {} by the simulator's tests; {} survived, {} are harmless",
        results.len(),
        caught * 100 / that_matter.max(1),
        count("unit test"),
        count("seed"),
        count("simulator's test"),
        survivors.len(),
        count("harmless"),
    );
    Ok(())
}

/// Lines of `file | function | rule | what was there | reason`.
fn harmless(list: &str) -> Result<BTreeMap<[String; 4], String>, String> {
    let mut all = BTreeMap::new();
    for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let parts: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let [file, function, rule, was, why] = parts[..] else {
            return Err(format!("{HARMLESS}: five parts with ' | ' between them: {line}"));
        };
        all.insert([file, function, rule, was].map(str::to_owned), why.to_owned());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::{harmless, next};

    #[test]
    fn a_list_with_a_reason_for_each_is_read() {
        let list = "# why\n\na.rs | f | compare | a < b || c | never equal\n";
        let read = harmless(list).expect("five parts");
        let key = ["a.rs", "f", "compare", "a < b || c"].map(str::to_owned);
        assert_eq!(read[&key], "never equal");
        assert!(harmless("a.rs | f | compare | a < b\n").is_err());
    }

    #[test]
    fn a_seed_draws_the_same_again() {
        let (mut a, mut b) = (7, 7);
        assert_eq!((0..9).map(|_| next(&mut a)).last(), (0..9).map(|_| next(&mut b)).last());
    }
}
