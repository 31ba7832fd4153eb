//! Checks of the source tree that the compiler cannot make: `cargo xtask tidy`.
//!
//! Reads what git tracks (or would), decides nothing about behaviour, needs nothing but the
//! standard library, takes well under two seconds. Never writes, except `--bless`, which brings
//! the format hashes in `docs/` and the simulator's list of marks up to date.

mod manifest;
mod source;
mod tidy;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask tidy [--bless]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let bless = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => false,
        ["tidy", "--bless"] => true,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = match listed(&root) {
        Ok(files) => files,
        Err(why) => {
            eprintln!("xtask: {why}");
            return ExitCode::FAILURE;
        }
    };
    let report = tidy::run(&root, &files, bless);
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
