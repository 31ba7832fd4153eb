//! The directory is put back to an older state at a random moment, after any history, and nothing
//! that was acknowledged is lost as long as a copy that has it can be reached (row 68 of
//! `docs/faults.md`). Each history is a scenario; one that fails is printed.

use atoll_sim::rng::Rng;
use atoll_sim::scenario::play;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const HISTORIES: u64 = 48;
/// Of which the directory had an older record at the end.
const OLDER_AT_LEAST: usize = 4;

/// A volume with copies on all hosts but the last, and what happens to it.
struct History {
    rng: Rng,
    copies: u64,
    text: String,
}

impl History {
    fn of_seed(seed: u64) -> String {
        let mut rng = Rng::named(seed, "put_back");
        let copies = 2 + rng.below(2);
        let mut history = Self { rng, copies, text: String::new() };
        let on: Vec<String> = (0..copies).map(|n| format!("h{n}")).collect();
        let hosts = copies + 1;
        history.say(format_args!("cluster hosts={hosts} seed={seed} repair=3600s"));
        history.say(format_args!("volume v0 size=16MiB on={}", on.join(",")));
        history.write();
        let kept_in = history.rng.below(3);
        for round in 0..3 {
            history.one_is_away(round == kept_in);
        }
        history.put_back();
        history.text
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("to a string");
    }

    /// So many milliseconds pass, at least, and up to as many more.
    fn run(&mut self, least_ms: u64) {
        let ms = least_ms + self.rng.below(least_ms);
        self.say(format_args!("run {ms}ms"));
    }

    fn chance(&mut self) -> bool {
        self.rng.below(2) == 0
    }

    fn write(&mut self) {
        let via = self.copies;
        let (at, times) = (4 * self.rng.below(64), 1 + self.rng.below(12));
        self.say(format_args!(
            "write v0 via=h{via} at={at}KiB len=4KiB times={times} step=1MiB within=30s"
        ));
    }

    fn keep_if(&mut self, kept: bool) {
        if kept {
            self.say(format_args!("directory keep"));
        }
    }

    /// One host is away while the others write; the directory is kept at some moment of it.
    fn one_is_away(&mut self, kept: bool) {
        let moment = if kept { self.rng.below(4) } else { 4 };
        self.keep_if(moment == 0);
        let away = self.rng.below(self.copies);
        self.say(format_args!("kill h{away}"));
        self.write();
        self.keep_if(moment == 1);
        if self.chance() {
            self.run(2_000);
            self.write();
        }
        self.keep_if(moment == 2);
        self.say(format_args!("start h{away}"));
        self.say(format_args!("healthy within=60s"));
        self.keep_if(moment == 3);
        self.write();
    }

    /// One host is away while the others write on, and the owner dies: by the state that is put
    /// back, it may be one of the active ones, or the only one.
    fn put_back(&mut self) {
        let away = self.rng.below(self.copies);
        self.say(format_args!("kill h{away}"));
        self.write();
        self.run(2_000);
        self.write();
        let before = self.chance();
        if before {
            self.say(format_args!("directory restore"));
        }
        self.say(format_args!("start h{away}"));
        if !before {
            self.say(format_args!("directory restore"));
        }
        self.run(700);
        // The client's host is the owner, mostly; a copy that has everything stays.
        for _ in 0..=self.rng.below(2) {
            let dies = if self.copies > 2 { self.rng.below(self.copies + 1) } else { self.copies };
            self.say(format_args!("kill h{dies}"));
            self.say(format_args!("start h{dies}"));
            self.run(2_500);
        }
        self.write();
        let via = self.copies;
        self.say(format_args!("load v0 via=h{via}"));
        self.say(format_args!("run 5s"));
        self.say(format_args!("healthy within=120s"));
        self.write();
    }
}

#[test]
fn nothing_is_lost_with_an_older_directory_while_a_newest_copy_answers() {
    let next = AtomicU64::new(0);
    let (wrong, older) = (Mutex::new(Vec::new()), Mutex::new(0));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= HISTORIES {
                break;
            }
            let text = History::of_seed(seed);
            let told = play(&text).unwrap_or_else(|error| format!("VIOLATION: {error}"));
            if told.contains("VIOLATION") {
                wrong.lock().expect("nobody panicked").push(format!("{text}----\n{told}"));
            }
            if told.contains("directory-was-put-back") {
                *older.lock().expect("nobody panicked") += 1;
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().expect("nobody panicked");
    assert!(wrong.is_empty(), "{} go wrong:\n{}", wrong.len(), wrong[0]);
    let older = older.into_inner().expect("nobody panicked");
    assert!(older >= OLDER_AT_LEAST, "{older} of {HISTORIES} had an older record");
}
