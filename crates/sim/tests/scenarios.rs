//! Every story in `scenarios/` goes as it is told there. `ATOLL_REGENERATE=1` writes what happens
//! now below the line; the change is then read in review. `ATOLL_STORY=disk` plays those whose
//! names contain it.

#![allow(clippy::disallowed_methods, reason = "a test that reads files")]

use std::path::Path;

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
/// ... and how a story shows that something did.
const SHOWS: &[&str] = &["reached", "passed", "expect"];

#[test]
fn stories_go_as_they_are_told() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = std::fs::read_dir(&dir)
        .expect("there")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.is_file())
        .collect();
    files.sort();
    assert!(files.len() >= 5, "{} stories", files.len());
    let regenerate = std::env::var_os("ATOLL_REGENERATE").is_some();
    if let Ok(part) = std::env::var("ATOLL_STORY") {
        files.retain(|f| f.to_string_lossy().contains(&part));
    }
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_name().expect("a file").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&file).expect("text");
        let told = atoll_sim::scenario::play(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        if told.contains("VIOLATION") {
            wrong.push(format!("{name} goes wrong:\n{told}"));
            continue;
        }
        let commands = text.split("\n----").next().expect("a first part").trim_end();
        let words = |all: &[&str]| {
            commands.lines().any(|l| l.split(' ').next().is_some_and(|w| all.contains(&w)))
        };
        if words(MAY_MISS) && !words(SHOWS) {
            wrong.push(format!("{name}: nothing shows that its fault took effect"));
        }
        let whole = format!("{commands}\n----\n{told}");
        if regenerate {
            std::fs::write(&file, &whole).expect("writable");
        } else if whole != text {
            wrong.push(format!("{name} goes differently now:\n{told}"));
        }
    }
    assert!(wrong.is_empty(), "{}\n(ATOLL_REGENERATE=1 accepts)", wrong.join("\n"));
}
