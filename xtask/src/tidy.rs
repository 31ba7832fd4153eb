//! The checks of `cargo xtask tidy`, each a line of complaint with file and line.

use crate::{circles, citations, manifest, source};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// Columns of a line of Rust.
const COLUMNS: usize = 100;
/// Files and functions that are listed as the longest.
const LONGEST: usize = 10;
/// Crates that run in both worlds: time, chance, tasks and bytes come through `World`.
const LOGIC: &[&str] =
    &["format", "world", "directory", "store", "transport", "object", "node", "front", "sim"];
/// Where the operating system may be asked directly.
const SYSTEM: &[&str] = &["crates/real/", "crates/atoll/", "xtask/"];
/// Where `unsafe` may stand.
const UNSAFE: &[&str] = &["crates/real/", "crates/world/src/buf.rs"];
/// Where a map that iterates in random order may be named.
const RANDOM_ORDER: &[&str] =
    &["crates/real/", "crates/atoll/", "xtask/", "crates/world/src/lib.rs"];
/// Every file whose bytes outlive memory, and the document that describes it.
const FORMATS: &[(&str, &str)] = &[
    ("crates/format/src/superblock.rs", "docs/formats.md"),
    ("crates/format/src/log.rs", "docs/formats.md"),
    ("crates/format/src/chunk.rs", "docs/formats.md"),
    ("crates/format/src/record.rs", "docs/formats.md"),
    ("crates/directory/src/head.rs", "docs/formats.md"),
    ("crates/directory/src/codec.rs", "docs/formats.md"),
    ("crates/format/src/frame.rs", "docs/protocol.md"),
    ("crates/object/src/message.rs", "docs/protocol.md"),
];
/// The marks that the simulator can reach, one a line: it says which no seed has reached.
const MARKS: &str = "crates/sim/marks.txt";
/// Marks of unfinished work, in pieces so that this file does not contain them.
const UNFINISHED: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimpl", "emented!"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
/// No file that people wrote is larger, in bytes; what was built or downloaded usually is.
const FILE_MAX: usize = 512 << 10;
/// Paths of one machine, in pieces for the same reason.
const MACHINE: &[&str] = &[concat!("/wo", "rk/")];
/// Says why we depend on what we did not write: a table row `| \`name\` | why |` each.
const REASONS: &str = "docs/dependencies.md";

/// Crates in which a wrong value writes wrong bytes: at least [`ASSERTIONS`] a hundred lines.
const ASSERTING: &[&str] = &["object", "store", "node", "transport"];
/// Assertions a hundred lines, tests and their assertions left out.
const ASSERTIONS: usize = 2;

/// What was found.
pub struct Report {
    /// One line each.
    pub complaints: Vec<String>,
    /// The longest files and functions, to be looked at in review.
    pub longest: String,
}

/// Checks `files` (relative to `root`); with `bless` writes the present format hashes first.
pub fn run(root: &Path, files: &[String], bless: bool) -> Report {
    let mut tidy = Tidy::default();
    for name in files {
        let Ok(bytes) = std::fs::read(root.join(name)) else {
            tidy.complain(name, 0, "cannot be read");
            continue;
        };
        tidy.size(name, bytes.len());
        // Binary files (golden bytes, pictures) are none of tidy's business otherwise.
        let Ok(text) = String::from_utf8(bytes) else { continue };
        tidy.any(name, &text);
        if name.ends_with(".rs") {
            tidy.rust(name, &text);
            if name.starts_with("crates/") {
                for (what, lines) in citations::cited(&text) {
                    tidy.cited.extend(lines.iter().map(|n| (what.clone(), format!("{name}:{n}"))));
                }
            }
            if let Some((folder, file)) = in_crate(name) {
                tidy.sources
                    .entry(folder.to_owned())
                    .or_default()
                    .insert(file.to_owned(), text.clone());
            }
        } else if name.ends_with(".md") {
            tidy.markdown(name, &text);
            for (kind, _) in citations::RULES.iter().filter(|(_, document)| document == name) {
                tidy.rules.extend(citations::defined(*kind, &text));
            }
            tidy.hashes(root, name, &text, bless);
        } else if let Some(folder) = crate_folder(name).filter(|_| name.ends_with("/Cargo.toml")) {
            tidy.complaints.extend(manifest::check(folder, &text));
        }
        if name.ends_with("Cargo.toml") {
            let outside = manifest::all_dependencies(&text).into_iter();
            tidy.outside.extend(outside.filter(|name| !name.starts_with("atoll-")));
            let offered = manifest::offered(&text).into_iter();
            tidy.offered.extend(offered.filter(|name| !name.starts_with("atoll-")));
        } else if name == REASONS {
            let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
            tidy.explained.extend(rows.map(str::to_owned));
        }
    }
    for (format, document) in FORMATS {
        if !tidy.hashed.contains(&((*format).to_owned(), (*document).to_owned())) {
            let line = format!("<!-- hash {format} 00000000 -->");
            tidy.complain(document, 0, &format!("lacks the line `{line}` (then --bless)"));
        }
    }
    for name in tidy.outside.difference(&tidy.explained) {
        tidy.complaints.push(format!("{REASONS}: does not say why we depend on {name}"));
    }
    for name in tidy.explained.difference(&tidy.outside) {
        tidy.complaints.push(format!("{REASONS}: nothing depends on {name} any more"));
    }
    for name in tidy.offered.difference(&tidy.outside) {
        tidy.complaints.push(format!("Cargo.toml: offers {name}, which no crate takes"));
    }
    tidy.sources();
    tidy.citations(files);
    tidy.list_marks(root, bless);
    for (mark, places) in std::mem::take(&mut tidy.marks) {
        if let [first, rest @ ..] = &places[..] {
            for place in rest {
                let text = format!("{place}: the mark \"{mark}\" is also at {first}");
                tidy.complaints.push(text);
            }
        }
    }
    let longest = tidy.longest();
    Report { complaints: tidy.complaints, longest }
}

/// The crate and the name from its `src/` on of a file of a crate.
fn in_crate(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("crates/")?.split_once("/src/")
}

/// Lines of these files before their tests, and assertions in them.
fn assertions<'a>(texts: impl Iterator<Item = &'a String>) -> (usize, usize) {
    let before_tests = |text: &'a String| text.split("#[cfg(test)]").next().unwrap_or_default();
    texts.map(before_tests).fold((0, 0), |(lines, asserts), text| {
        let code = source::code_only(text);
        let found = ["assert!(", "assert_eq!(", "assert_ne!("].map(|a| code.matches(a).count());
        (lines + code.lines().count(), asserts + found.iter().sum::<usize>())
    })
}

fn crate_folder(name: &str) -> Option<&str> {
    name.strip_prefix("crates/")?.split('/').next()
}

fn within(name: &str, places: &[&str]) -> bool {
    places.iter().any(|place| name.starts_with(place))
}

/// FNV-1a, folded to 32 bits: tells versions of a file apart, nothing more.
fn hash(bytes: &[u8]) -> u32 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for &byte in bytes {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    (hash ^ hash >> 32) as u32
}

#[derive(Default)]
struct Tidy {
    complaints: Vec<String>,
    /// (format file, document) pairs with a hash line.
    hashed: Vec<(String, String)>,
    /// Name of every coverage mark, with its places.
    marks: BTreeMap<String, Vec<String>>,
    /// Crates of others that some crate depends on, and those with a reason.
    outside: BTreeSet<String>,
    explained: BTreeSet<String>,
    /// Those that the root manifest offers.
    offered: BTreeSet<String>,
    /// Rules that documents define.
    rules: BTreeSet<String>,
    /// What sources cite, and where.
    cited: Vec<(String, String)>,
    /// By crate, the files of its `src/` with their text.
    sources: BTreeMap<String, BTreeMap<String, String>>,
    file_lines: Vec<(usize, String)>,
    function_lines: Vec<(usize, String)>,
}

impl Tidy {
    fn sources(&mut self) {
        for (folder, sources) in std::mem::take(&mut self.sources) {
            let place = format!("crates/{folder}/src");
            let (lines, asserts) = assertions(sources.values());
            if ASSERTING.contains(&folder.as_str()) && asserts * 100 < lines * ASSERTIONS {
                let text = format!("{asserts} assertions in {lines} lines: {ASSERTIONS} a hundred");
                self.complain(&place, 0, &text);
            }
            match circles::find(&sources) {
                Err(why) => self.complain(&place, 0, &why),
                Ok(found) => {
                    for circle in found {
                        let takes = |(file, from): (&String, &BTreeSet<String>)| {
                            let from = from.iter().cloned().collect::<Vec<_>>().join(", ");
                            format!("{file} from {from}")
                        };
                        let takes = circle.iter().map(takes).collect::<Vec<_>>().join("; ");
                        let text = format!("files import each other in a circle: {takes}");
                        self.complain(&place, 0, &text);
                    }
                }
            }
        }
    }

    /// Rules and documents that sources cite are in the project.
    fn citations(&mut self, files: &[String]) {
        for (what, place) in std::mem::take(&mut self.cited) {
            let kind = citations::RULES.iter().find(|(kind, _)| what.starts_with(*kind));
            let is_there = match kind {
                Some(_) if !what.ends_with(".md") => self.rules.contains(&what),
                _ => files.contains(&what),
            };
            if !is_there {
                let of = kind.map_or("the project", |(_, document)| document);
                self.complaints.push(format!("{place}: cites {what}, which {of} has not"));
            }
        }
    }

    fn complain(&mut self, name: &str, line: usize, what: &str) {
        let place = if line == 0 { name.to_owned() } else { format!("{name}:{line}") };
        self.complaints.push(format!("{place}: {what}"));
    }

    fn size(&mut self, name: &str, len: usize) {
        if len > FILE_MAX {
            let what =
                format!("has {len} bytes, more than {FILE_MAX}: was it built, or downloaded?");
            self.complain(name, 0, &what);
        }
    }

    /// What holds for every text.
    fn any(&mut self, name: &str, text: &str) {
        for (number, line) in text.lines().enumerate() {
            if let Some(path) = MACHINE.iter().find(|path| line.contains(**path)) {
                self.complain(name, number + 1, &format!("names a path of one machine: {path}"));
            }
        }
    }

    fn rust(&mut self, name: &str, text: &str) {
        if !text.starts_with("//!") {
            self.complain(name, 1, "opens without `//!`: what it is, what it never does");
        }
        for (number, line) in text.lines().enumerate() {
            if !line.is_ascii() {
                self.complain(name, number + 1, "is not ASCII");
            }
            if line.chars().count() > COLUMNS {
                self.complain(name, number + 1, &format!("is longer than {COLUMNS} columns"));
            }
            for word in UNFINISHED {
                if !source::lines_with_word(line, word).is_empty() {
                    self.complain(name, number + 1, &format!("{word} marks unfinished work"));
                }
            }
        }
        let code = source::code_only(text);
        let mut ban = |word: &str, why: &str| {
            for line in source::lines_with_word(&code, word) {
                self.complaints.push(format!("{name}:{line}: {word}: {why}"));
            }
        };
        if !within(name, SYSTEM) {
            ban("std::time::Instant", "ask World::now");
            ban("SystemTime", "ask World::unix_ms");
            ban("thread::spawn", "ask World::spawn");
            ban("thread::sleep", "ask World::sleep_until");
        }
        if !within(name, RANDOM_ORDER) {
            for word in ["HashMap", "HashSet"] {
                ban(word, "iteration order is random: BTreeMap, BTreeSet or world::FixedMap");
            }
        }
        if !within(name, UNSAFE) {
            ban("unsafe", "only in crates/real and world::buf");
        }
        let logic = crate_folder(name).is_some_and(|folder| LOGIC.contains(&folder));
        if logic && name.contains("/src/") && !is_test_module(name) {
            ban("tokio::", "this crate runs in both worlds");
        }
        self.find_marks(name, text, &code);
        self.file_lines.push((text.lines().count(), name.to_owned()));
        for (function, line, lines) in source::functions(&code) {
            self.function_lines.push((lines, format!("{name}:{line} {function}")));
        }
    }

    fn find_marks(&mut self, name: &str, text: &str, code: &str) {
        for (at, call) in code.match_indices("sometimes!(") {
            // The name itself is a string: blank in `code`, at the same place in `text`.
            let rest = &text[at + call.len()..];
            let Some(inside) = rest.trim_start().strip_prefix('"') else { continue };
            let Some(end) = inside.find('"') else { continue };
            let line = text[..at].matches('\n').count() + 1;
            let places = self.marks.entry(inside[..end].to_owned()).or_default();
            places.push(format!("{name}:{line}"));
        }
    }

    /// Marks in the crates that run in both worlds, against the list.
    fn list_marks(&mut self, root: &Path, bless: bool) {
        let simulated = |place: &String| {
            crate_folder(place).is_some_and(|c| LOGIC.contains(&c) && c != "front")
        };
        let marks = self.marks.iter().filter(|(_, places)| places.iter().any(simulated));
        let list: String = marks.map(|(mark, _)| format!("{mark}\n")).collect();
        let known = std::fs::read_to_string(root.join(MARKS)).unwrap_or_default();
        if bless {
            if let Err(why) = std::fs::write(root.join(MARKS), list) {
                self.complain(MARKS, 0, &why.to_string());
            }
        } else if known != list {
            self.complain(MARKS, 0, "is not the list of all marks: `cargo xtask tidy --bless`");
        }
    }

    fn markdown(&mut self, name: &str, text: &str) {
        let mut fenced = false;
        let mut titles = 0;
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            }
            titles += usize::from(!fenced && line.starts_with("# "));
        }
        if titles != 1 {
            self.complain(name, 1, &format!("has {titles} titles, and must have one"));
        }
    }

    /// Compares `<!-- hash FILE 1234abcd -->` with the file.
    fn hashes(&mut self, root: &Path, name: &str, text: &str, bless: bool) {
        let mut fresh = String::with_capacity(text.len());
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["<!--", "hash", file, stored, "-->"] = words[..] else {
                let _ = writeln!(fresh, "{line}");
                continue;
            };
            match std::fs::read(root.join(file)) {
                Ok(bytes) => {
                    let computed = format!("{:08x}", hash(&bytes));
                    if computed != stored && !bless {
                        let what = format!(
                            "{file} has hash {computed}, written here is {stored}: bring the \
                             text up to date, then `cargo xtask tidy --bless`"
                        );
                        self.complain(name, number + 1, &what);
                    }
                    let _ = writeln!(fresh, "<!-- hash {file} {computed} -->");
                }
                Err(why) => {
                    self.complain(name, number + 1, &format!("{file}: {why}"));
                    let _ = writeln!(fresh, "{line}");
                }
            }
            self.hashed.push((file.to_owned(), name.to_owned()));
        }
        if bless
            && fresh != text
            && let Err(why) = std::fs::write(root.join(name), fresh)
        {
            self.complain(name, 0, &format!("cannot be written: {why}"));
        }
    }

    fn longest(&mut self) -> String {
        let mut out = String::new();
        for (what, list) in
            [("files", &mut self.file_lines), ("functions", &mut self.function_lines)]
        {
            list.sort_by(|a, b| b.cmp(a));
            let _ = writeln!(out, "longest {what}:");
            for (lines, name) in list.iter().take(LONGEST) {
                let _ = writeln!(out, "{lines:6}  {name}");
            }
        }
        out
    }
}

/// Unit tests in a file of their own beside the code.
fn is_test_module(name: &str) -> bool {
    name.ends_with("/tests.rs") || name.contains("/tests/")
}

#[cfg(test)]
mod tests {
    use super::Tidy;

    fn complaints(name: &str, text: &str) -> Vec<String> {
        let mut tidy = Tidy::default();
        tidy.any(name, text);
        if name.ends_with(".rs") {
            tidy.rust(name, text);
        } else {
            tidy.markdown(name, text);
        }
        tidy.complaints
    }

    #[test]
    fn a_clean_file_passes() {
        assert!(complaints("crates/store/src/x.rs", "//! X.\nfn f() {}\n").is_empty());
        assert!(complaints("docs/x.md", "# X\n```\n# no title\n```\n").is_empty());
    }

    #[test]
    fn each_breach_is_named_with_its_line() {
        for bad in [
            "fn f() {}\n".to_owned(),
            "//! X.\nlet t = std::time::Instant::now();\n".to_owned(),
            "//! X.\nuse std::collections::HashMap;\n".to_owned(),
            "//! X.\nunsafe { f() }\n".to_owned(),
            "//! X.\ntokio::spawn(f());\n".to_owned(),
            "//! X.\nstd::thread::spawn(f);\n".to_owned(),
            "//! X \u{e9}.\n".to_owned(),
            format!("//! X.\n//{}\n", "-".repeat(100)),
            format!("//! X.\n{}()\n", super::UNFINISHED[0]),
            format!("//! X.\n// {}: later\n", super::UNFINISHED[2]),
            format!("//! X.\n// {}y\n", super::MACHINE[0]),
        ] {
            let found = complaints("crates/store/src/x.rs", &bad);
            assert_eq!(found.len(), 1, "{bad:?}: {found:?}");
            assert!(found[0].starts_with("crates/store/src/x.rs:"), "{found:?}");
        }
        assert_eq!(complaints("docs/x.md", "# X\n# Y\n").len(), 1);
        assert_eq!(complaints("docs/x.md", "X\n").len(), 1);
    }

    #[test]
    fn assertions_of_tests_and_of_comments_do_not_count() {
        let text = "// assert!(a)\nassert!(a);\nassert_eq!(a, b);\n#[cfg(test)]\nassert!(a);\n";
        assert_eq!(super::assertions([text.to_owned()].iter()), (3, 2));
    }

    #[test]
    fn what_nobody_wrote_by_hand_is_too_large() {
        let mut tidy = Tidy::default();
        tidy.size("docs/x.svg", super::FILE_MAX);
        assert!(tidy.complaints.is_empty());
        tidy.size("x.whl", super::FILE_MAX + 1);
        assert!(
            tidy.complaints[0].starts_with("x.whl: has 524289 bytes"),
            "{tidy:?}",
            tidy = tidy.complaints
        );
    }

    #[test]
    fn what_one_place_may_another_may_not() {
        let text = "//! X.\nunsafe { std::time::Instant::now() }\n";
        assert!(complaints("crates/real/src/x.rs", text).is_empty());
        assert_eq!(complaints("crates/node/src/x.rs", text).len(), 2);
    }

    #[test]
    fn marks_are_found_by_name() {
        let mut tidy = Tidy::default();
        let text = "//! X.\nsometimes!(\"a.b\");\n// sometimes!(\"no\");\nsometimes!(\"a.b\");\n";
        tidy.rust("crates/store/src/x.rs", text);
        assert_eq!(tidy.marks.len(), 1);
        assert_eq!(tidy.marks["a.b"].len(), 2);
    }
}
