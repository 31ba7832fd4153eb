//! How long I/O is interrupted when the host of an owner restarts, or is lost: what a guest feels.
//! Twenty clusters each; the interruption begins at another phase of the leases in each.

use atoll_sim::scenario::play;

const TIMES: u64 = 20;

/// Milliseconds, to 100, from the end of the owner's process to the answer to a write that began
/// then, in ascending order. `then`: what happens after it has ended. `owner`: the host that owned
/// the volume.
fn interruptions(end: &str, then: &str, via: u8, owner: u8) -> Vec<u64> {
    let once = |seed: u64| {
        let (run, seed) = (6_000 + seed * 137 % 1_000, 7_000 + seed);
        let told = play(&format!(
            "cluster hosts=3 seed={seed}\nvolume v0 size=4MiB on=h0,h1\n\
             write v0 via=h{owner} at=0 len=4KiB\nwrite v0 via=h{via} at=0 len=4KiB\nrun {run}ms\n\
             {end} h0\n{then}write v0 via=h{via} at=4KiB len=4KiB within=10s\n"
        ));
        let told = told.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(!told.contains("VIOLATION"), "{told}");
        let at = |what: &str, nth: usize| {
            let line = told.lines().filter(|line| line.contains(what)).nth(nth);
            let line = line.unwrap_or_else(|| panic!("no {what}:\n{told}"));
            let seconds = line.trim_start_matches('+').split('s').next().expect("a time");
            (seconds.parse::<f64>().expect("seconds") * 1000.0).round() as u64
        };
        let ended = if end == "power" { "power lost" } else { "killed" };
        at("at=4KiB len=4KiB within=10s: done", 0) - at(ended, 0)
    };
    let mut all: Vec<u64> = (0..TIMES).map(once).collect();
    all.sort_unstable();
    all
}

fn median_and_worst(what: &str, all: &[u64]) -> (u64, u64) {
    let (median, worst) = (all[all.len() / 2], all[all.len() - 1]);
    println!("{what}: median {median} ms, worst {worst} ms, best {} ms", all[0]);
    (median, worst)
}

/// Without proof that the earlier life is over, leases of it are waited for: the machine has
/// started again. With it, nothing is.
#[test]
fn a_restart_of_an_owner_costs_less_than_a_second() {
    for (via, whose) in [(0, "its own client"), (1, "a client beside a copy"), (2, "another")] {
        let what = format!("process restarts, {whose}");
        let (_, worst) = median_and_worst(&what, &interruptions("kill", "start h0\n", via, 0));
        assert!(worst < 1_000, "{what}: {worst} ms");
    }
    let what = "machine restarts at once, its own client";
    let (median, _) = median_and_worst(what, &interruptions("power", "start h0\n", 0, 0));
    assert!(median > 1_000, "{what}: {median} ms; what does this measure?");
}

/// A client elsewhere goes on with another owner, and nobody waits for the copy that has gone: that
/// of the new owner's takeover, and that of an owner that stays.
#[test]
fn a_stop_in_order_costs_less_than_a_third_of_a_second() {
    for (via, whose) in [(1, "a client beside a copy"), (2, "another")] {
        for owner in [0, via] {
            let what = format!("stop in order, {whose}, owned by h{owner}");
            let all = interruptions("stop", "", via, owner);
            let (_, worst) = median_and_worst(&what, &all);
            assert!(worst < 300, "{what}: {worst} ms");
        }
    }
}

#[test]
fn a_lost_host_is_replaced_within_three_seconds() {
    for (via, whose) in [(1, "a client beside a copy"), (2, "another")] {
        let what = format!("host lost, {whose}");
        let (median, worst) = median_and_worst(&what, &interruptions("kill", "", via, 0));
        assert!(median < 3_000 && worst < 5_000, "{what}: median {median} ms, worst {worst} ms");
    }
}
