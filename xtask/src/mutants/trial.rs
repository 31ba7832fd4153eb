//! Trying one mutant: a few fresh seeds, the tests of its crate, everything else that the simulator
//! has, then fresh seeds until its time is over.

use super::tree::{Built, Placed, VARIABLE};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long fresh seeds run before any test does: what they find needs no test of that function.
const SEEDS_FIRST: Duration = Duration::from_secs(45);
/// Seeds that are one mutant's: more than its time is enough for.
const SEEDS: u64 = 1_000_000;
/// How often it is looked whether a program has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How much longer than unchanged a program may take: a hang is a way to be caught.
const SLACK: (u32, Duration) = (4, Duration::from_secs(30));
/// And how much memory it may take, in bytes: so is a leak.
const MEMORY_MAX: u64 = 4 << 30;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// By what kind of thing, and what it said.
    Caught(&'static str, String),
    /// By nothing.
    Survived,
}

/// How to try mutants.
pub struct Trial<'a> {
    /// What was built.
    pub built: &'a Built,
    /// For each.
    pub limit: Duration,
    /// Where what programs say is kept.
    pub logs: PathBuf,
    /// The first fresh seed.
    pub seed: u64,
    /// How long each test program takes with no mutant chosen.
    pub usual: Vec<(PathBuf, Duration)>,
}

impl Trial<'_> {
    /// Runs everything with no mutant chosen, and notes how long it takes.
    ///
    /// # Errors
    /// Something fails: then nothing could be caught by it.
    pub fn measure(&mut self) -> Result<(), String> {
        for program in self.built.tests.values().flatten() {
            let begun = Instant::now();
            let mut command = Command::new(program);
            command.args(["--test-threads", "2"]);
            let said = self.run(0, command, program, Duration::from_secs(1_800));
            said.map_err(|why| format!("with no mutant, {}: {why}", program.display()))?;
            self.usual.push((program.clone(), begun.elapsed()));
        }
        self.seeds(0, 0, Duration::from_secs(30)).map_err(|why| format!("with no mutant: {why}"))
    }

    /// Tries one.
    pub fn try_one(&self, placed: &Placed) -> (End, Duration) {
        let begun = Instant::now();
        let package = placed.file.split('/').nth(1).unwrap_or_default();
        let left = || self.limit.saturating_sub(begun.elapsed());
        let caught = |by, what: Result<(), String>| what.err().map(|why| End::Caught(by, why));
        let tests = |name: &str| {
            for program in self.built.tests.get(name).into_iter().flatten() {
                self.test(placed.number, program)?;
            }
            Ok(())
        };
        let end = caught("seed", self.seeds(placed.number, 0, left().min(SEEDS_FIRST)))
            .or_else(|| caught("unit test", tests(package)))
            .or_else(|| caught("simulator's test", tests("sim")))
            .or_else(|| caught("seed", self.seeds(placed.number, SEEDS / 2, left())));
        (end.unwrap_or(End::Survived), begun.elapsed())
    }

    fn test(&self, number: u32, program: &Path) -> Result<(), String> {
        let usual = self.usual.iter().find(|(p, _)| p == program).map_or(SLACK.1, |(_, t)| *t);
        let mut command = Command::new(program);
        command.args(["--test-threads", "1"]);
        self.run(number, command, program, usual * SLACK.0 + SLACK.1)
    }

    /// Fresh seeds, from `from` on of those that are this mutant's.
    fn seeds(&self, number: u32, from: u64, time: Duration) -> Result<(), String> {
        if time < Duration::from_secs(5) {
            return Ok(());
        }
        let mut command = Command::new(&self.built.simulator);
        let first = self.seed + u64::from(number) * SEEDS + from;
        let (seeds, time_s) =
            (format!("{first}..{}", first + SEEDS / 2), time.as_secs().to_string());
        command.args(["--fail-fast", "--choose", "--seeds", &seeds, "--time", &time_s]);
        self.run(number, command, Path::new("seeds"), time + 2 * SLACK.1)
    }

    fn run(
        &self,
        number: u32,
        program: Command,
        what: &Path,
        limit: Duration,
    ) -> Result<(), String> {
        let name = what.file_name().unwrap_or_default().to_string_lossy();
        let log = self.logs.join(format!("{number}-{name}.log"));
        let failed = |e: std::io::Error| format!("{}: {e}", log.display());
        let out = File::create(&log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        // It must not go on when this one is ended.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program.get_program());
        command.args(program.get_args());
        command.env(VARIABLE, number.to_string()).stdin(Stdio::null()).stdout(out).stderr(err);
        command.env("PROPTEST_FAILURE_PERSISTENCE", "off");
        let mut child = command.spawn().map_err(failed)?;
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                break status;
            }
            let too_long = begun.elapsed() > limit;
            if too_long || resident(child.id()) > MEMORY_MAX {
                let _ = child.kill();
                let _ = child.wait();
                return Err(match too_long {
                    true => format!("{name} did not end within {} s", limit.as_secs()),
                    false => format!("{name} took more than {} GiB", MEMORY_MAX >> 30),
                });
            }
            std::thread::sleep(LOOK);
        };
        if status.success() {
            let _ = std::fs::remove_file(&log);
            return Ok(());
        }
        let text = String::from_utf8_lossy(&std::fs::read(&log).map_err(failed)?).into_owned();
        Err(format!("{name}: {}", reason(&text)))
    }
}

/// Bytes of memory that a process has in use; none if it has ended.
fn resident(process: u32) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// The line that says best what was found.
fn reason(text: &str) -> String {
    let finds: [fn(&str) -> bool; 4] = [
        |line| line.starts_with("seed ") && line.contains(": "),
        |line| line.starts_with("seed ") && line.contains("panicked"),
        |line| line.starts_with("test ") && line.ends_with("FAILED"),
        |line| line.contains("panicked at"),
    ];
    let found = finds.iter().find_map(|find| text.lines().find(|line| find(line)));
    found.or_else(|| text.lines().last()).unwrap_or("it said nothing").chars().take(160).collect()
}
