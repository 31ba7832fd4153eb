//! What was found once is not found again.

use atoll_sim::regressions;
use atoll_sim::run::run_one;

#[test]
fn what_was_found_once_is_not_found_again() {
    let mut wrong = Vec::new();
    for (seed, what, options) in regressions::all() {
        if let Some(violation) = run_one(seed, &options).violations.first() {
            wrong.push(format!("seed {seed} ({what}): {violation}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
