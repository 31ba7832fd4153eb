//! Whether the audit log of a host is as it was written.

use super::line::{End, Line};
use super::{FILE_BYTES, FILES_MAX, directory, lines};
use crate::line_files::LineFiles;
use atoll_api::{Code, Problem};
use serde::Serialize;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// How often it is read anew because a file went away meanwhile.
const TRIES: u32 = 5;
/// Problems that are named one by one.
const PROBLEMS_MAX: usize = 20;

/// An entry that somebody has noted elsewhere: `NUMBER:SHA256`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Its number.
    pub number: u64,
    /// Its hash: 64 hexadecimal digits.
    pub sha256: String,
}

impl FromStr for Head {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("{text:?} is not NUMBER:SHA256, as 'atoll audit list -o json' has them");
        let (number, sha256) = text.split_once(':').ok_or_else(form)?;
        let digits = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
        let number = number.parse().ok().filter(|&number| digits && number > 0);
        Ok(Self { number: number.ok_or_else(form)?, sha256: sha256.to_ascii_lowercase() })
    }
}

/// What was found.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Verified {
    /// Where.
    pub directory: String,
    /// Entries that are there.
    pub entries: u64,
    /// Number of the first; 0: there is none.
    pub first: u64,
    /// Number of the last.
    pub last: u64,
    /// SHA-256 of the last: who notes it with the number can tell later whether entries were cut
    /// off.
    pub sha256: String,
    /// Entries of which the log says that they were not kept.
    pub left_out: u64,
    /// What is not as it was written: sentences. None: it is.
    pub problems: Vec<String>,
    /// Problems that are not named.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_problems: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Verified {
    fn wrong(&mut self, problem: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        } else {
            self.more_problems += 1;
        }
    }
}

/// Reads the audit log in a data directory from end to end; with `head`, that entry must be there.
/// It may be written meanwhile.
///
/// # Errors
/// [`Code::LocalFile`]: it cannot be read.
pub fn verify(data: &Path, head: Option<&Head>) -> Result<Verified, Problem> {
    let unreadable = |(path, e): (PathBuf, io::Error)| {
        Problem::new(Code::LocalFile, format!("{}: {e}", path.display()))
            .hint("root and the user of the daemon may read it; --data-dir names another one")
    };
    std::fs::metadata(data).map_err(|e| unreadable((data.to_path_buf(), e)))?;
    let mut tries = 1..TRIES;
    loop {
        match look(data, head) {
            // The oldest file has gone to make room since the files were listed.
            Err((_, e)) if e.kind() == ErrorKind::NotFound && tries.next().is_some() => {}
            looked => return looked.map_err(unreadable),
        }
    }
}

fn look(data: &Path, head: Option<&Head>) -> Result<Verified, (PathBuf, io::Error)> {
    let files = LineFiles::new(directory(data), FILES_MAX, FILE_BYTES);
    let numbers = files.numbers().map_err(|e| (files.directory().to_path_buf(), e))?;
    let mut found =
        Verified { directory: files.directory().display().to_string(), ..Verified::default() };
    let is_newest = |number| Some(&number) == numbers.last();
    for pair in numbers.windows(2) {
        if pair[1] != pair[0] + 1 {
            found.wrong(format!("files are missing between {} and {}", pair[0], pair[1]));
        }
    }
    let (oldest, count) = (numbers.first().copied().unwrap_or(1), numbers.len() as u64);
    // The oldest one goes before a new one is there.
    if oldest > 1 && count + 1 < FILES_MAX {
        found.wrong(format!("files are missing before {oldest}: only {count} are there"));
    }
    let mut end: Option<End> = (oldest == 1).then(End::default);
    let mut head_found = false;
    for &number in &numbers {
        let path = files.path(number);
        let bytes = files.read(number).map_err(|e| (path.clone(), e))?;
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        // The end of the newest may just be written, or a crash has left it.
        if whole < bytes.len() && !is_newest(number) {
            found.wrong(format!("{}: its last line is not whole", path.display()));
        }
        for (at, text) in lines(&bytes[..whole]).enumerate() {
            let place = format!("{}, line {}", path.display(), at + 1);
            let line = match Line::read(&text) {
                Ok(line) => line,
                Err(why) => {
                    found.wrong(format!("{place}: {why}"));
                    continue;
                }
            };
            match &end {
                Some(end) if line.number != end.number + 1 => {
                    let (is, last) = (line.number, end.number);
                    found.wrong(format!("{place}: entry {is} stands behind entry {last}"));
                }
                Some(end) if line.previous != end.sha256 => {
                    let (is, last) = (line.number, end.number);
                    found.wrong(format!(
                        "{place}: entry {is} was not written behind this entry {last}: one of them \
                         was changed"
                    ));
                }
                _ => {}
            }
            let next = End::of(line.number, &text);
            if let Some(head) = head.filter(|head| head.number == line.number) {
                head_found = true;
                if head.sha256 != next.sha256 {
                    found.wrong(format!("{place}: entry {} is not the one noted", line.number));
                }
            }
            found.entries += 1;
            found.left_out = found.left_out.saturating_add(line.left_out);
            if found.first == 0 {
                found.first = line.number;
            }
            (found.last, found.sha256) = (next.number, next.sha256.clone());
            end = Some(next);
        }
    }
    if let Some(head) = head.filter(|_| !head_found) {
        let (noted, first, last) = (head.number, found.first, found.last);
        found.wrong(match noted < first {
            true => format!(
                "entry {noted} was noted and is no longer kept, the first one is {first}: whether \
                 the log is the same one is not known"
            ),
            false => format!("entry {noted} was noted and is not there; the last one is {last}"),
        });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::line::tests::deed;
    use super::super::line::{End, Line};
    use super::{Head, verify};
    use std::path::Path;

    fn lines(count: u64) -> Vec<String> {
        let mut end = End::default();
        let mut lines = Vec::new();
        for n in 1..=count {
            let (text, next) = Line::behind(&end, deed(&format!("/{n}")), 0).text();
            lines.push(text + "\n");
            end = next;
        }
        lines
    }

    fn write(data: &Path, lines: &[String]) {
        std::fs::create_dir_all(data.join("audit")).unwrap();
        std::fs::write(data.join("audit/0000000000000001.jsonl"), lines.concat()).unwrap();
    }

    fn problems(data: &Path, head: Option<&Head>) -> Vec<String> {
        verify(data, head).unwrap().problems
    }

    #[test]
    fn every_change_to_what_was_written_shows() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path();
        assert_eq!(verify(data, None).unwrap().entries, 0);
        let good = lines(4);
        write(data, &good);
        assert_eq!(problems(data, None), [] as [String; 0]);
        let head = {
            let found = verify(data, None).unwrap();
            Head { number: found.last, sha256: found.sha256 }
        };
        assert_eq!(problems(data, Some(&head)), [] as [String; 0]);
        // Each byte of all but the last line; the head tells of the last one.
        let text = good.concat().into_bytes();
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] ^= 1;
            std::fs::write(data.join("audit/0000000000000001.jsonl"), &changed).unwrap();
            let is_last = at >= text.len() - good[3].len();
            let found = problems(data, is_last.then_some(&head));
            assert!(!found.is_empty(), "byte {at}");
        }
        // Left out, repeated, in another order; one that was made up, with the right number.
        let made_up = Line::behind(&End { number: 1, sha256: "0".repeat(64) }, deed("/x"), 0);
        let pick = |order: &[usize]| order.iter().map(|&at| good[at].clone()).collect::<Vec<_>>();
        for (what, lines) in [
            ("the first left out", pick(&[1, 2, 3])),
            ("one left out", pick(&[0, 2, 3])),
            ("one twice", pick(&[0, 1, 1, 2, 3])),
            ("another order", pick(&[0, 2, 1, 3])),
            (
                "one made up",
                vec![good[0].clone(), made_up.text().0 + "\n", good[2].clone(), good[3].clone()],
            ),
        ] {
            write(data, &lines);
            assert!(!problems(data, None).is_empty(), "{what}");
        }
        // The last ones cut off: only who has noted one of them can know.
        write(data, &good[..2]);
        assert_eq!(problems(data, None), [] as [String; 0]);
        let found = problems(data, Some(&head));
        assert_eq!(found, ["entry 4 was noted and is not there; the last one is 2"]);
        // One that was noted before all that is there, and no directory at all.
        let old = Head { number: 1, ..head.clone() };
        write(data, &good[1..]);
        assert!(problems(data, Some(&old)).last().unwrap().contains("is no longer kept"));
        assert!(verify(&data.join("nowhere"), None).is_err());
        // Half a line at the end is being written; in the midst it is not.
        write(data, &[good[0].clone(), good[1][..40].to_owned()]);
        assert_eq!(problems(data, None), [] as [String; 0]);
        std::fs::write(data.join("audit/0000000000000002.jsonl"), &good[1]).unwrap();
        assert!(problems(data, None)[0].ends_with("its last line is not whole"));
        std::fs::rename(
            data.join("audit/0000000000000002.jsonl"),
            data.join("audit/0000000000000003.jsonl"),
        )
        .unwrap();
        write(data, &good[..1]);
        assert!(problems(data, None)[0].starts_with("files are missing between"));
    }

    #[test]
    fn a_log_that_is_nothing_but_damage_names_a_few_problems_and_counts_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &vec!["rubbish\n".to_owned(); 100]);
        let found = verify(dir.path(), None).unwrap();
        assert_eq!((found.entries, found.problems.len(), found.more_problems), (0, 20, 80));
    }

    #[test]
    fn a_head_is_a_number_and_a_hash() {
        let hash = "aB".repeat(32);
        let head: Head = format!("7:{hash}").parse().unwrap();
        assert_eq!((head.number, head.sha256), (7, hash.to_ascii_lowercase()));
        for bad in ["", "7", "7:", ":ab", "0:", "x:", &format!("0:{hash}"), &format!("7:{hash}0")] {
            assert!(bad.parse::<Head>().is_err(), "{bad}");
        }
    }
}
