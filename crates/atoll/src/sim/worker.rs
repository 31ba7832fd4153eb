//! `atoll sim worker`: runs the seeds that standard input names, one a line, and answers each with
//! a line of JSON. A soak has one for each of its jobs: a panic costs one seed.

use super::runs::one_or;
use crate::cli::out::Run;
use atoll_sim::activity::cell_names;
use atoll_sim::run::{Options, Outcome};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// What came of a seed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeedResult {
    pub(super) seed: u64,
    /// A panic: the worker has ended with it.
    pub(super) is_last: bool,
    pub(super) violations: Vec<String>,
    /// Effects by kind of fault, in their order.
    pub(super) faults: Vec<u64>,
    /// And by activity: see [`cell_names`].
    pub(super) cells: Vec<u64>,
    pub(super) virtual_ns: u64,
    pub(super) operations: u64,
    pub(super) polls: u64,
    /// What this seed came by, by name.
    pub(super) reached: Vec<String>,
}

fn answer(outcome: &Outcome) -> SeedResult {
    let cells = cell_names().zip(&outcome.cells).filter(|(_, n)| **n > 0);
    let mut reached: Vec<String> = cells.map(|(name, _)| format!("cell {name}")).collect();
    reached.extend(outcome.marks.iter().map(|name| format!("mark {name}")));
    SeedResult {
        seed: outcome.seed,
        is_last: false,
        violations: outcome.violations.clone(),
        faults: outcome.faults.clone(),
        cells: outcome.cells.clone(),
        virtual_ns: outcome.virtual_time.0,
        operations: outcome.ops.0,
        polls: outcome.polls,
        reached,
    }
}

fn say(answer: &SeedResult) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let line = serde_json::to_string(answer).expect("plain fields");
    writeln!(out, "{line}").and_then(|()| out.flush())
}

pub(super) fn run() -> Run {
    for line in std::io::stdin().lock().lines() {
        let Some(seed) = line.ok().and_then(|l| l.trim().parse().ok()) else { break };
        let outcome = one_or(seed, &Options::default(), move |outcome| {
            let _ = say(&SeedResult { is_last: true, ..answer(outcome) });
            std::process::exit(1);
        });
        // Whoever asked has gone.
        if say(&answer(&outcome)).is_err() {
            break;
        }
    }
    Ok(())
}
