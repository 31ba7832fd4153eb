//! Checks of the source tree that the compiler cannot make: `cargo xtask tidy`.
//!
//! Reads what git tracks (or would), decides nothing about behaviour, takes well under two seconds.
//! Never writes, except `--bless`, which brings the format hashes in `docs/` and the simulator's
//! list of marks up to date. And how much the tests notice: `cargo xtask mutants`.

#![allow(clippy::disallowed_methods, reason = "runs programs, and waits for them")]

mod circles;
mod citations;
mod manifest;
mod mutants;
mod source;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = match listed(&root) {
        Ok(files) => files,
        Err(why) => return failed(&why),
    };
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => check(&root, &files, false),
        ["tidy", "--bless"] => check(&root, &files, true),
        ["mutants", ..] => match mutants::run(&root, &files, &words[1..]) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => failed(&why),
        },
        _ => {
            eprintln!("usage: cargo xtask tidy [--bless]\n{}", mutants::USAGE);
            ExitCode::from(2)
        }
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("xtask: {why}");
    ExitCode::FAILURE
}

fn check(root: &Path, files: &[String], bless: bool) -> ExitCode {
    let report = tidy::run(root, files, bless);
    print!("{}", report.longest);
    for complaint in &report.complaints {
        eprintln!("tidy: {complaint}");
    }
    if report.complaints.is_empty() {
        println!("tidy: {} files, nothing to complain about", files.len());
        ExitCode::SUCCESS
    } else {
        eprintln!("tidy: {} complaints", report.complaints.len());
        ExitCode::FAILURE
    }
}

/// Files that git tracks or would track, relative to the root, sorted.
fn listed(root: &PathBuf) -> Result<Vec<String>, String> {
    let out = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("git does not start: {e}"))?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    let mut files: Vec<String> = String::from_utf8_lossy(&out.stdout)
        .split('\0')
        .filter(|name| !name.is_empty() && root.join(name).is_file())
        .map(str::to_owned)
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}
