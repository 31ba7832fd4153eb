//! Shrinking, with a violation that the test makes up: what is left is what it was made of.

use atoll_sim::fault::FaultSubset;
use atoll_sim::fault::{FaultKind, FaultSet};
use atoll_sim::run::{Options, Outcome, run_one};
use atoll_sim::shrink::{faults_of, shrink};

/// Small runs on the store without disks: the shrinking is what is tested.
fn options() -> Options {
    Options { ops: 40, reference_store: true, ..Options::default() }
}

/// The same run with a violation if that is so.
fn with(outcome: Outcome, wrong: impl Fn(&Outcome) -> bool) -> Outcome {
    let mut outcome = outcome;
    outcome.violations.clear();
    if wrong(&outcome) {
        outcome.violations.push(format!("made up after {} polls", outcome.polls));
    }
    outcome
}

/// The first seed from `from` on of which that is so.
fn seed(from: u64, wrong: impl Fn(&Outcome) -> bool) -> u64 {
    (from..from + 200).find(|s| wrong(&run_one(*s, &options()))).expect("faults are not rare")
}

#[test]
fn a_violation_of_one_event_shrinks_to_that_event() {
    let paused = |o: &Outcome| o.events.iter().any(|e| e.kind == FaultKind::LongPause);
    let busy = |o: &Outcome| paused(o) && o.events.len() > 5;
    let seed = seed(0, busy);
    let mut runs = 0;
    let mut run = |o: &Options| {
        runs += 1;
        Some(with(run_one(seed, o), paused))
    };
    let least = shrink(seed, &options(), 500, &mut run).unwrap();
    assert!(least.is_least, "{runs} runs");
    let kinds: Vec<_> = least.outcome.events.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [FaultKind::LongPause]);
    assert!(least.outcome.effects.iter().all(|(_, k)| *k == FaultKind::LongPause));
    assert!(least.options.ops < 40 && least.options.part.clients == Some(vec![]));
    assert!(least.whole.events.len() > 5 && least.runs == runs);
    // What is printed to replay it does replay it.
    let again = run_one(seed, &least.options);
    assert_eq!(again.hash, least.outcome.hash);
    let words = least.options.words(seed).join(" ");
    let number = least.outcome.events[0].number;
    assert!(words.contains(&format!(" --only long-pause --events {number}")), "{words}");
    assert!(faults_of(&again)[0].contains(": long-pause, h"), "{:?}", faults_of(&again));
}

#[test]
fn a_violation_of_one_packet_shrinks_to_its_moment() {
    let delayed = |o: &Outcome| o.faults[FaultKind::PacketDelayed as usize] > 0;
    let often = |o: &Outcome| o.faults[FaultKind::PacketDelayed as usize] > 3;
    let seed = seed(0, often);
    let mut run = |o: &Options| Some(with(run_one(seed, o), delayed));
    let least = shrink(seed, &options(), 500, &mut run).unwrap();
    assert!(least.is_least);
    // Packets overtake each other in any run, and one that waits is overtaken by more.
    let counts = least.outcome.effects.iter().filter(|e| e.1 != FaultKind::PacketOvertaken);
    let effects: Vec<_> = counts.collect();
    assert_eq!(effects.len(), 1, "{effects:?}");
    let (at, _) = *effects[0];
    assert_eq!(
        least.options.part.window(FaultKind::PacketDelayed),
        (at, at + atoll_world::Nanos(1))
    );
}

#[test]
fn a_violation_that_takes_two_keeps_both() {
    let two = |o: &Outcome| {
        let n = |kind| o.events.iter().filter(|e| e.kind == kind).count();
        n(FaultKind::Kill) > 0 && n(FaultKind::Partition) > 0
    };
    let seed = seed(0, two);
    let mut run = |o: &Options| Some(with(run_one(seed, o), two));
    let least = shrink(seed, &options(), 500, &mut run).unwrap();
    let mut kinds: Vec<_> = least.outcome.events.iter().map(|e| e.kind).collect();
    kinds.sort();
    assert_eq!(kinds, [FaultKind::Partition, FaultKind::Kill]);
}

#[test]
fn what_does_not_fail_is_not_shrunk_and_patience_has_an_end() {
    let run = |o: &Options| Some(with(run_one(1, o), |_| false));
    let none = shrink(1, &options(), 500, &mut { run });
    assert!(none.unwrap_err().contains("nothing to shrink"));
    let mut run = |o: &Options| Some(with(run_one(1, o), |_| true));
    let some = shrink(1, &options(), 3, &mut run).unwrap();
    assert!(!some.is_least && some.runs == 3);
}

/// The seed goes the way that it went, up to the first thing that was left out.
#[test]
fn what_is_left_out_does_not_shift_what_stays() {
    let paused = |o: &Outcome| o.events.iter().any(|e| e.kind == FaultKind::LongPause);
    let seed = seed(0, |o| paused(o) && o.events.len() > 5);
    let whole = run_one(seed, &options());
    let without = FaultSet::NONE.with(FaultKind::LongPause);
    let part = FaultSubset { without, ..FaultSubset::default() };
    let less = run_one(seed, &Options { part, ..options() });
    let left = whole.events.iter().filter(|e| e.kind != FaultKind::LongPause);
    for (a, b) in left.zip(&less.events) {
        assert_eq!((a.number, a.kind, a.host, a.at), (b.number, b.kind, b.host, b.at));
    }
    assert_eq!(whole.hash, run_one(seed, &options()).hash);
    let muted = run_one(
        seed,
        &Options {
            part: FaultSubset { until: whole.effects[0].0, ..FaultSubset::default() },
            ..options()
        },
    );
    assert!(muted.virtual_time < whole.virtual_time);
}
