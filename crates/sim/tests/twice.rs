//! The same seed makes the same run, to the bit: on the shipped store, with all faults.

use atoll_sim::fault::FaultKind;
use atoll_sim::run::{Options, run_one};

const SEEDS: u64 = 6;

#[test]
fn a_seed_run_twice_gives_the_same_trace() {
    let options = Options { twice: true, ..Options::default() };
    let mut hashes = std::collections::BTreeSet::new();
    let mut faults = vec![0; FaultKind::ALL.len()];
    for seed in 0..SEEDS {
        let outcome = run_one(seed, &options);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
        hashes.insert(outcome.hash);
        faults.iter_mut().zip(&outcome.faults).for_each(|(sum, n)| *sum += n);
    }
    // The hash tells runs apart, and the runs were not calm ones.
    assert_eq!(hashes.len() as u64, SEEDS);
    let met = faults.iter().filter(|&&n| n > 0).count();
    assert!(met >= 10, "{met} kinds of fault: {faults:?}");
}
