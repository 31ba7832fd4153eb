//! The same scenario with its fault at one moment after another: what a single one meets by luck.

use std::fmt::Write;

/// Plays a scenario; a violation fails the test. Returns what was told.
fn play(what: &str, scenario: &str) -> String {
    let told = atoll_sim::scenario::play(scenario).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(!told.contains("VIOLATION"), "{what}:\n{scenario}----\n{told}");
    told
}

/// How often a fault had its effect, where a scenario says so with `tell`.
fn told_of(told: &str, fault: &str) -> u64 {
    let line = told.lines().rfind(|l| l.contains(&format!("{fault}: "))).expect("told");
    let count = line.rsplit(": ").next().and_then(|n| n.strip_suffix(" times"));
    count.and_then(|n| n.parse().ok()).expect("a number")
}

/// How often an event was told: what was told again and again stands in one line, with a count.
fn times_told(told: &str, event: &str) -> u64 {
    let lines = told.lines().filter(|l| l.contains(event));
    let more = |l: &str| l.rsplit_once(" (")?.1.strip_suffix(" more)")?.parse::<u64>().ok();
    lines.map(|l| 1 + more(l).unwrap_or(0)).sum()
}

#[test]
fn what_is_told_again_and_again_counts_as_often() {
    let told = "+1s h0 node resync-started: copy on h1 (13 more)\n+9s h0 node resync-started: (it)";
    assert_eq!(times_told(told, "resync-started"), 15);
}

const START: &str = "
    volume v0 size=4MiB on=h0,h1
    write v0 via=h0 at=0 len=64KiB
    write v0 via=h1 at=0 len=4KiB
    write v0 via=h2 at=1MiB len=64KiB";

/// Kills `victim` after so many steps of its program, every second time with its power, while
/// `during` happens, and lets it come back.
fn crash_sweep(state: &str, victim: &str, before: &str, during: &str, polls: &[u64]) {
    let mut reached = 0;
    for (i, n) in polls.iter().enumerate() {
        let power = if i % 2 == 1 { "power=yes" } else { "" };
        let scenario = format!(
            "cluster hosts=3 seed={n}
            {START}
            {before}
            trap {victim} polls={n} {power}
            {during}
            run 8s
            tell kill-at-await
            start all
            read v0 via=h2 at=0 len=128KiB within=30s
            write v0 via=h1 at=8KiB len=4KiB within=10s
            healthy within=60s"
        );
        let told = play(&format!("{state}: {victim} dies after {n} steps"), &scenario);
        reached += told_of(&told, "kill-at-await");
    }
    assert!(reached * 4 >= polls.len() as u64 * 3, "{state}: only {reached} of {}", polls.len());
}

/// From the first step on, at first each of them, then further apart.
fn steps(count: usize, by: f64) -> Vec<u64> {
    let mut steps = vec![1.0f64];
    while steps.len() < count {
        let last = steps[steps.len() - 1];
        steps.push((last + 1.0).max(last * by));
    }
    steps.into_iter().map(|n| n as u64).collect()
}

const WRITES: &str = "
    begin write v0 via=h2 at=0 len=4KiB
    begin write v0 via=h2 at=4KiB len=64KiB
    begin discard v0 via=h2 at=1MiB len=4KiB
    begin write v0 via=h2 at=1028KiB len=256KiB";

#[test]
fn a_crash_of_the_owner_at_any_step_of_a_write_loses_nothing() {
    crash_sweep("W", "h0", "", WRITES, &steps(24, 1.25));
}

#[test]
fn a_crash_of_a_copy_at_any_step_of_a_write_loses_nothing() {
    crash_sweep("W", "h1", "", WRITES, &steps(20, 1.25));
}

#[test]
fn a_crash_at_any_step_of_destage_loses_nothing() {
    let writes = "write v0 via=h0 at=16KiB len=512KiB\nrun 1500ms";
    crash_sweep("D", "h1", writes, "run 2s", &steps(20, 1.4));
}

#[test]
fn a_crash_of_the_next_owner_at_any_step_of_its_takeover_loses_nothing() {
    let before = "begin write v0 via=h2 at=0 len=16KiB\nkill h0";
    crash_sweep("O", "h2", before, "begin write v0 via=h2 at=4KiB len=4KiB", &steps(20, 1.4));
}

#[test]
fn a_crash_of_the_owner_at_any_step_of_a_change_of_its_members_loses_nothing() {
    let away = "kill h1\nwrite v0 via=h2 at=0 len=4KiB\nwrite v0 via=h2 at=1MiB len=8KiB";
    let back = "start h1\nrun 1s\nbegin write v0 via=h2 at=4KiB len=4KiB";
    crash_sweep("G", "h0", away, back, &steps(20, 1.4));
}

/// Under load, at many moments, and a second time while the hosts recover.
#[test]
fn a_power_loss_of_all_hosts_at_any_moment_and_again_in_recovery_loses_nothing() {
    let mut lost = 0;
    for n in 0..24u64 {
        let scenario = format!(
            "cluster hosts=3 seed={n}
            {START}
            load v0 via=h0 pause_ms=2
            load v0 via=h2 pause_ms=2
            slow h0 x=100
            slow h1 x=100
            run {}ms
            power all
            run 1s
            start all
            run {}ms
            power all
            run 100ms
            start h{}
            run 700ms
            start all
            read v0 via=h1 at=0 len=1MiB within=60s
            write v0 via=h1 at=8KiB len=4KiB within=10s
            healthy within=60s
            tell unflushed-lost",
            100 + n * 397 + n * n,
            5 + n * n * 17,
            n % 3,
        );
        let told = play(&format!("moment {n}"), &scenario);
        lost += told_of(&told, "unflushed-lost");
    }
    assert!(lost > 0, "no unflushed write was lost");
}

/// An owner under load that was not scheduled goes on with its writes after another has taken over
/// (row 10): whatever it was about, the members refuse it, and every write is made once.
#[test]
fn writes_of_an_old_owner_are_refused_by_the_members() {
    let refused = || {
        let marks = atoll_world::mark::reached();
        marks.get("store.refuses_an_old_epoch").copied().unwrap_or(0)
    };
    let before = refused();
    for seed in 0..16u64 {
        let scenario = format!(
            "cluster hosts=3 seed={seed}
            {START}
            load v0 via=h0 pause_ms=1
            run 1s
            pause h0
            write v0 via=h2 at=0 len=4KiB within=15s
            resume h0
            expect h0 owner-stopped within=10s
            healthy within=60s"
        );
        play(&format!("seed {seed}"), &scenario);
    }
    assert!(refused() > before, "no write of the old owner came to a member");
}

/// A random host dies every 3 s: I/O goes on between, and no copy is copied over and over.
#[test]
fn a_crash_loop_leaves_room_for_progress() {
    let mut resyncs = 0;
    for seed in 0..4u64 {
        let mut scenario = format!(
            "cluster hosts=3 seed={seed}
            {START}
            load v0 via=h2"
        );
        const KILLS: u64 = 20;
        for n in 0..KILLS {
            let host = (seed * 7 + n * n * 5 + n) % 3;
            let (down, other) = (200 + n * 40 % 800, (host + 1) % 3);
            write!(
                scenario,
                "
                kill h{host}
                begin write v0 via=h{other} at={}KiB len=4KiB within=10s
                run {down}ms
                start h{host}
                run 2200ms",
                n * 4
            )
            .expect("to a string");
        }
        scenario += "\nhealthy within=60s\nread v0 via=h0 at=0 len=1MiB within=2s";
        let told = play(&format!("seed {seed}"), &scenario);
        let done = told.lines().filter(|l| l.contains("begin") || l.contains(": done")).count();
        assert!(done > 5, "seed {seed}: no progress between the kills\n{told}");
        let copies = times_told(&told, "resync-started");
        assert!(copies <= KILLS, "seed {seed}: {copies} resyncs\n{told}");
        resyncs += copies;
    }
    // Most are back before their copies are left out.
    assert!(resyncs > 0, "no copy was left out");
}
