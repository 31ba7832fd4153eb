//! The copy of the source tree in which the chosen mutants are, all at once: each is switched on by
//! a number in the environment, so that one build serves all of them.

use super::rules::Mutant;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable of the environment that chooses a mutant.
pub const VARIABLE: &str = "ATOLL_MUTANT";
/// Rounds of leaving out what does not compile.
const ROUNDS_MAX: usize = 40;
/// An error this many lines from a mutant, and from no nearer one, is taken for its.
const NEAR_LINES: usize = 40;

const SWITCH: &str = r#"
#[doc(hidden)]
pub(crate) mod mutated {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);
    #[inline]
    pub(crate) fn on(number: u32) -> bool {
        let mut chosen = CHOSEN.load(Ordering::Relaxed);
        if chosen == u32::MAX {
            let text = std::env::var("ATOLL_MUTANT").unwrap_or_default();
            chosen = text.parse().unwrap_or(0);
            CHOSEN.store(chosen, Ordering::Relaxed);
        }
        chosen == number
    }
}
"#;

/// A mutant with its number (from 1) and the file it is in.
#[derive(Clone, Debug)]
pub struct Placed {
    /// What chooses it.
    pub number: u32,
    /// Relative to the root.
    pub file: String,
    /// What it is.
    pub mutant: Mutant,
}

/// What was built.
pub struct Built {
    /// Test programs by the name of their package.
    pub tests: BTreeMap<String, Vec<PathBuf>>,
    /// Runs seeds.
    pub simulator: PathBuf,
}

/// A copy in a directory of its own, with its own builds.
pub struct Tree {
    root: PathBuf,
    tree: PathBuf,
    target: PathBuf,
    files: Vec<String>,
}

impl Tree {
    /// Copies `files` from `root` to below `dir`.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn new(root: &Path, dir: &Path, files: &[String]) -> Result<Self, String> {
        let tree = dir.join("tree");
        let made =
            Self { root: root.into(), tree, target: dir.join("target"), files: files.to_vec() };
        for file in files {
            made.put(file, &made.read(file)?)?;
        }
        Ok(made)
    }

    fn read(&self, file: &str) -> Result<Vec<u8>, String> {
        std::fs::read(self.root.join(file)).map_err(|e| format!("{file}: {e}"))
    }

    /// Writes a file of the copy if it differs: else nothing is built anew.
    fn put(&self, file: &str, content: &[u8]) -> Result<(), String> {
        let path = self.tree.join(file);
        if std::fs::read(&path).is_ok_and(|there| there == content) {
            return Ok(());
        }
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        std::fs::create_dir_all(path.parent().expect("below the tree")).map_err(failed)?;
        std::fs::write(&path, content).map_err(failed)?;
        let mode = std::fs::metadata(self.root.join(file)).map_err(failed)?.permissions();
        std::fs::set_permissions(&path, mode).map_err(failed)
    }

    /// Puts the mutants in, leaves out those that do not compile, and returns the others.
    ///
    /// # Errors
    /// The tree does not compile for a reason that no mutant explains.
    pub fn settle(&self, mut all: Vec<Placed>) -> Result<Vec<Placed>, String> {
        for round in 1..=ROUNDS_MAX {
            let places = self.write(&all)?;
            let mut words = vec!["check", "--locked", "--all-targets", "--keep-going"];
            words.extend(super::PACKAGES.iter().flat_map(|name| ["--package", name]));
            let (good, messages) = self.cargo(&words)?;
            if good {
                return Ok(all);
            }
            let mut bad = BTreeSet::new();
            let mut unexplained = String::new();
            for error in messages.iter().filter_map(error_of) {
                match whose(error, &places) {
                    Some(number) => drop(bad.insert(number)),
                    None => unexplained = error["rendered"].as_str().unwrap_or_default().into(),
                }
            }
            if bad.is_empty() {
                return Err(format!("the copy does not compile: {unexplained}"));
            }
            eprintln!("round {round}: {} of {} do not compile", bad.len(), all.len());
            all.retain(|placed| !bad.contains(&placed.number));
        }
        Err(format!("after {ROUNDS_MAX} rounds something still does not compile"))
    }

    /// Writes the files that mutants are in; where they are there now.
    fn write(&self, all: &[Placed]) -> Result<Vec<Place>, String> {
        let mut by_file: BTreeMap<&str, Vec<&Placed>> = BTreeMap::new();
        for placed in all {
            by_file.entry(&placed.file).or_default().push(placed);
        }
        let mut places = Vec::new();
        for file in self.files.iter().filter(|file| file.ends_with(".rs")) {
            let mut text =
                String::from_utf8(self.read(file)?).map_err(|e| format!("{file}: {e}"))?;
            let mut there = by_file.remove(file.as_str()).unwrap_or_default();
            there.sort_by_key(|placed| placed.mutant.bytes.start);
            let mut out = String::with_capacity(text.len());
            let mut done = 0;
            for placed in there {
                let bytes = &placed.mutant.bytes;
                out += &text[done..bytes.start];
                let on = format!("crate::mutated::on({})", placed.number);
                let start = out.len();
                out += &placed.mutant.becomes.replace("{on}", &on);
                let place = start..out.len();
                places.push(Place {
                    number: placed.number,
                    file: file.clone(),
                    bytes: place,
                    line: placed.mutant.line,
                });
                done = bytes.end;
            }
            out += &text[done..];
            text = out;
            if super::CRATES.iter().any(|name| *file == format!("crates/{name}/src/lib.rs")) {
                text += SWITCH;
            }
            self.put(file, text.as_bytes())?;
        }
        Ok(places)
    }

    /// Builds the tests and the simulator, without what takes the linker long.
    ///
    /// # Errors
    /// They cannot be built.
    pub fn build(&self) -> Result<Built, String> {
        let mut words = vec!["test", "--no-run", "--locked"];
        words.extend(super::PACKAGES.iter().flat_map(|name| ["--package", name]));
        let (good, messages) = self.cargo(&words)?;
        if !good {
            return Err("the tests cannot be built".into());
        }
        let mut tests: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
        for message in &messages {
            let is_test = message["profile"]["test"].as_bool() == Some(true);
            let Some(program) = message["executable"].as_str().filter(|_| is_test) else {
                continue;
            };
            let manifest = message["manifest_path"].as_str().unwrap_or_default();
            let name = Path::new(manifest).parent().and_then(Path::file_name).unwrap_or_default();
            tests.entry(name.to_string_lossy().into_owned()).or_default().push(program.into());
        }
        let words =
            ["build", "--release", "--locked", "--package", "atoll-sim", "--example", "sim"];
        let (good, _) = self.cargo(&words)?;
        if !good {
            return Err("the simulator cannot be built".into());
        }
        Ok(Built { tests, simulator: self.target.join("release/examples/sim") })
    }

    fn cargo(&self, words: &[&str]) -> Result<(bool, Vec<Value>), String> {
        let out = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(words)
            .args(["--message-format", "json", "--quiet"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("RUSTFLAGS", "-Awarnings")
            // Tests run once a mutant, and are built once.
            .env("CARGO_PROFILE_TEST_OPT_LEVEL", "2")
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
            .stderr(std::process::Stdio::inherit())
            .output()
            .map_err(|e| format!("cargo does not start: {e}"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok((out.status.success(), messages))
    }
}

struct Place {
    number: u32,
    file: String,
    bytes: Range<usize>,
    line: usize,
}

/// The error in a message of cargo, if it is one.
fn error_of(message: &Value) -> Option<&Value> {
    let error = &message["message"];
    let is_error =
        error["level"] == "error" && error["spans"].as_array().is_some_and(|s| !s.is_empty());
    is_error.then_some(error)
}

/// The mutant that an error comes from: it is where the compiler points, or near there.
fn whose(error: &Value, places: &[Place]) -> Option<u32> {
    let mut spans: Vec<&Value> = error["spans"].as_array()?.iter().collect();
    for child in error["children"].as_array().into_iter().flatten() {
        spans.extend(child["spans"].as_array().into_iter().flatten());
    }
    spans.sort_by_key(|span| span["is_primary"] != true);
    let here = |span: &Value, place: &Place| {
        let number = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
        let (start, end) = (number("byte_start"), number("byte_end"));
        span["file_name"] == place.file.as_str()
            && start < place.bytes.end.max(place.bytes.start + 1)
            && place.bytes.start < end.max(start + 1)
    };
    for span in &spans {
        // Of several, the one that is no larger than what the compiler points at.
        if let Some(place) = places.iter().filter(|p| here(span, p)).min_by_key(|p| p.bytes.len()) {
            return Some(place.number);
        }
    }
    let (line, file) = (spans[0]["line_start"].as_u64()? as usize, &spans[0]["file_name"]);
    let distance = |place: &&Place| place.line.abs_diff(line);
    let near = places.iter().filter(|place| *file == place.file.as_str());
    near.min_by_key(distance).filter(|p| distance(p) <= NEAR_LINES).map(|place| place.number)
}
