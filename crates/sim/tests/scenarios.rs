//! Every scenario in `scenarios/` goes as it is told there. `ATOLL_REGENERATE=1` writes what
//! happens now below the line; the change is then read in review. `ATOLL_SCENARIO=disk` plays
//! those whose names contain it.

#![allow(clippy::disallowed_methods, reason = "a test that reads files")]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Faults that take effect only when something comes to them...
const MAY_MISS: &[&str] = &[
    "rot",
    "unreadable",
    "flip",
    "hang",
    "gone",
    "slow",
    "truncate",
    "restore",
    "swap",
    "wipe",
    "fault",
    "isolate",
    "cut",
    "cut1",
    "directory",
    "trap",
];
/// ... and how a scenario shows that something did.
const SHOWS: &[&str] = &["reached", "passed", "expect"];

#[test]
fn scenarios_go_as_they_are_told() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .expect("there")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.is_file())
        .collect();
    files.sort();
    assert!(files.len() >= 5, "{} scenarios", files.len());
    let regenerate = std::env::var_os("ATOLL_REGENERATE").is_some();
    if let Ok(part) = std::env::var("ATOLL_SCENARIO") {
        files.retain(|f| f.to_string_lossy().contains(&part));
    }
    // Each is a world of its own; together they are the longest test there is.
    let next = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let work = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            // Played before the lock is taken: under it, they would go one after the other.
            let found = goes_wrong(file, regenerate);
            wrong.lock().expect("nobody panicked").extend(found);
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    let wrong = wrong.into_inner().expect("nobody panicked");
    assert!(wrong.is_empty(), "{}\n(ATOLL_REGENERATE=1 accepts)", wrong.join("\n"));
}

/// What is wrong with a scenario, if anything is.
fn goes_wrong(file: &Path, regenerate: bool) -> Option<String> {
    let name = file.file_name().expect("a file").to_string_lossy().into_owned();
    let text = std::fs::read_to_string(file).expect("text");
    let told = match atoll_sim::scenario::play(&text) {
        Ok(told) => told,
        Err(e) => return Some(format!("{name}: {e}")),
    };
    if told.contains("VIOLATION") {
        return Some(format!("{name} goes wrong:\n{told}"));
    }
    let commands = text.split("\n----").next().expect("a first part").trim_end();
    let words = |all: &[&str]| {
        commands.lines().any(|l| l.split(' ').next().is_some_and(|w| all.contains(&w)))
    };
    if words(MAY_MISS) && !words(SHOWS) {
        return Some(format!("{name}: nothing shows that its fault took effect"));
    }
    let whole = format!("{commands}\n----\n{told}");
    if regenerate {
        std::fs::write(file, &whole).expect("writable");
    } else if whole != text {
        return Some(format!("{name} goes differently now:\n{told}"));
    }
    None
}
