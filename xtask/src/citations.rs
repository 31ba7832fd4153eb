//! What comments cite: numbered rules and documents, which must be in the project.

use std::collections::{BTreeMap, BTreeSet};

/// Where each kind of rule is defined: rows of a table whose first cell begins with its number.
pub const RULES: &[(char, &str)] =
    &[('R', "docs/mirror.md"), ('S', "docs/store.md"), ('P', "docs/invariants.md")];

/// The rules that a document defines, e.g. `R14`: those in the first cells of its tables.
pub fn defined(kind: char, text: &str) -> BTreeSet<String> {
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    cells.flat_map(words).filter(|word| is_rule(word, kind)).map(str::to_owned).collect()
}

/// Rules and documents that a source cites, each with its lines.
pub fn cited(text: &str) -> BTreeMap<String, Vec<usize>> {
    let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let is_rule = |word: &&str| RULES.iter().any(|&(kind, _)| is_rule(word, kind));
        let rules = words(line).filter(is_rule);
        let comment = line.split_once("//").map_or("", |(_, comment)| comment);
        let documents = comment.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".md"));
        for what in rules.chain(documents) {
            found.entry(what.to_owned()).or_default().push(number + 1);
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// Promises have one digit: P50 and P99 are percentiles.
fn is_rule(word: &str, kind: char) -> bool {
    let number = word.strip_prefix(kind).unwrap_or_default();
    let digits_max = if kind == 'P' { 1 } else { 2 };
    (1..=digits_max).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::{cited, defined};

    #[test]
    fn rules_and_documents_are_found_where_they_are_cited_and_defined() {
        let source = "/// As the model has it (R14-R16, S7 of `docs/store.md`).\nlet RX = R_1;\n";
        let found: Vec<_> = cited(source).into_iter().collect();
        let expected = ["R14", "R16", "S7", "docs/store.md"].map(|w| (w.to_owned(), vec![1]));
        assert_eq!(found, expected);
        let table = "R9 is not defined here.\n| R1 | as R2 says |\n| R14, R15 | both |\n";
        assert_eq!(defined('R', table).into_iter().collect::<Vec<_>>(), ["R1", "R14", "R15"]);
    }
}
