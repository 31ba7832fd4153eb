//! The list of deliberate flaws is that of the code.

#![allow(clippy::disallowed_methods, reason = "a test that reads files")]

use atoll_sim::mutants::ALL;
use std::collections::BTreeSet;
use std::path::Path;

fn names_in(dir: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).expect("a folder of the repository") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            names_in(&path, names);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).expect("text");
            let named = text.split("mutant!(\"").skip(1);
            names.extend(named.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
}

#[test]
fn every_flaw_in_the_code_is_listed_and_the_other_way_round() {
    let mut found = BTreeSet::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("crates");
    for entry in std::fs::read_dir(crates).expect("crates") {
        names_in(&entry.expect("readable").path().join("src"), &mut found);
    }
    // The example in the documentation of the macro.
    found.remove("area.name");
    let listed: BTreeSet<String> = ALL.iter().map(|m| m.name.to_owned()).collect();
    assert_eq!(listed.len(), ALL.len(), "one name twice");
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
        a.difference(b).cloned().collect::<Vec<String>>().join(", ")
    };
    assert_eq!(only(&found, &listed), "", "in the code only");
    assert_eq!(only(&listed, &found), "", "in the list only");
    assert!(ALL.len() >= 40);
}
