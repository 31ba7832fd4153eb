//! What commands print: data on stdout, everything else on stderr.
//!
//! Invariants: nothing here panics, whatever happens to the streams; a reader that goes away
//! (`| head`) ends the command quietly; machine output is the envelope, whole.

use atoll_api::envelope::{Item, List, Missing};
use atoll_api::{Code, Problem};
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// How data is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// Columns for people.
    Table,
    /// More columns.
    Wide,
    /// The versioned envelope.
    Json,
    /// The same as YAML.
    Yaml,
    /// Names alone, for loops.
    Name,
}

/// When to colour.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Why a command ends early.
#[derive(Debug)]
pub enum Failure {
    /// With an error.
    Problem(Box<Problem>),
    /// With an exit code, everything being said.
    Exit(u8),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

/// The end of a command.
pub type Run = Result<(), Failure>;

/// What a shell reports for a program that wrote into a closed pipe.
const EXIT_PIPE: u8 = 141;

/// How one command prints.
#[derive(Clone, Debug)]
pub struct Out {
    /// Of data.
    pub format: Format,
    /// Tables have a first line with titles.
    pub header: bool,
    /// Of tables.
    pub color: bool,
    /// No progress and no notes.
    pub quiet: bool,
    /// Requests are shown.
    pub verbose: bool,
}

/// A thing as a line of a table.
pub trait Row {
    /// Titles of the columns.
    const HEAD: &'static [&'static str];
    /// Titles of the columns that only `-o wide` has.
    const WIDE: &'static [&'static str] = &[];
    /// The columns.
    fn cells(&self) -> Vec<String>;
    /// The further columns.
    fn wide(&self) -> Vec<String> {
        Vec::new()
    }
    /// What `-o name` prints.
    fn name(&self) -> String;
}

impl Out {
    /// Whether colours are wanted on stdout.
    pub fn wants_color(color: Color) -> bool {
        match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Writes data.
    ///
    /// # Errors
    /// [`Code::Output`]; a closed pipe is [`Failure::Exit`].
    pub fn data(&self, text: &str) -> Run {
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(cannot_write)
    }

    /// Says something to a person, unless `-q`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            crate::log::say(text);
        }
    }

    /// Says which hosts an answer is without, also with `-q`: half an answer must not look like a
    /// whole one. JSON and YAML have them in the envelope.
    pub fn without(&self, missing: &[Missing]) {
        if matches!(self.format, Format::Json | Format::Yaml) {
            return;
        }
        for missing in missing {
            let _ =
                writeln!(io::stderr(), "warning: host {missing}: what it alone knows is not shown");
        }
    }

    /// Prints a list.
    ///
    /// # Errors
    /// As [`Out::data`].
    pub fn list<T: Row + Serialize>(&self, list: &List<T>) -> Run {
        self.without(&list.missing);
        match self.format {
            Format::Json | Format::Yaml => self.value(list),
            Format::Name => {
                self.data(&list.items.iter().map(|i| i.name() + "\n").collect::<String>())
            }
            Format::Table | Format::Wide => {
                let wide = self.format == Format::Wide;
                let mut head: Vec<String> = T::HEAD.iter().map(|t| (*t).to_owned()).collect();
                if wide {
                    head.extend(T::WIDE.iter().map(|t| (*t).to_owned()));
                }
                let mut rows = Vec::new();
                for item in &list.items {
                    let mut cells = item.cells();
                    if wide {
                        cells.extend(item.wide());
                    }
                    rows.push(cells);
                }
                self.data(&self.table(&head, &rows))
            }
        }
    }

    /// Prints a list whose lines are not its items: as its envelope, its names, or by `text`.
    ///
    /// # Errors
    /// As [`Out::data`].
    pub fn whole<T: Serialize>(
        &self,
        list: &List<T>,
        name: impl Fn(&T) -> String,
        text: impl FnOnce(&[T]) -> String,
    ) -> Run {
        match self.format {
            Format::Json | Format::Yaml => self.value(list),
            Format::Name => {
                self.data(&list.items.iter().map(|i| name(i) + "\n").collect::<String>())
            }
            Format::Table | Format::Wide => self.data(&text(&list.items)),
        }
    }

    /// Prints one thing: as its envelope, its name, or by `text`.
    ///
    /// # Errors
    /// As [`Out::data`].
    pub fn item<T: Serialize>(
        &self,
        item: &Item<T>,
        name: impl FnOnce(&T) -> String,
        text: impl FnOnce(&T) -> String,
    ) -> Run {
        self.without(&item.missing);
        match self.format {
            Format::Json | Format::Yaml => self.value(item),
            Format::Name => self.data(&(name(&item.item) + "\n")),
            Format::Table | Format::Wide => self.data(&text(&item.item)),
        }
    }

    /// Prints one thing as a table of one line.
    ///
    /// # Errors
    /// As [`Out::data`].
    pub fn one<T: Row + Serialize>(&self, item: &Item<T>) -> Run {
        self.item(item, Row::name, |thing| {
            let mut pairs = Vec::new();
            let head = T::HEAD.iter().chain(T::WIDE);
            for (title, cell) in head.zip(thing.cells().into_iter().chain(thing.wide())) {
                pairs.push((title.to_ascii_lowercase(), cell));
            }
            self.pairs(&pairs)
        })
    }

    fn value(&self, value: &impl Serialize) -> Run {
        const KEYS: &str = "interface types have string keys";
        if self.format == Format::Yaml {
            return self.data(&yaml(&serde_json::to_value(value).expect(KEYS)));
        }
        self.data(&(serde_json::to_string_pretty(value).expect(KEYS) + "\n"))
    }

    /// Left-aligned columns, two spaces apart.
    pub fn table(&self, head: &[String], rows: &[Vec<String>]) -> String {
        let mut width: Vec<usize> = head.iter().map(|title| title.chars().count()).collect();
        for row in rows {
            for (i, cell) in row.iter().enumerate() {
                width[i] = width[i].max(cell.chars().count());
            }
        }
        let mut text = String::new();
        let mut line = |cells: &[String], paint: bool| {
            for (i, cell) in cells.iter().enumerate() {
                let code = if paint { color_of(cell) } else { None };
                match code {
                    Some(code) => {
                        let _ = write!(text, "\x1b[{code}m{cell}\x1b[0m");
                    }
                    None => text.push_str(cell),
                }
                if i + 1 < cells.len() {
                    let pad = width[i] - cell.chars().count() + 2;
                    text.extend(std::iter::repeat_n(' ', pad));
                }
            }
            text.truncate(text.trim_end_matches(' ').len());
            text.push('\n');
        };
        if self.header {
            line(head, false);
        }
        for row in rows {
            line(row, self.color);
        }
        text
    }

    /// `title  value` lines.
    pub fn pairs(&self, pairs: &[(String, String)]) -> String {
        let rows: Vec<Vec<String>> =
            pairs.iter().map(|(title, cell)| vec![title.clone(), cell.clone()]).collect();
        Self { header: false, ..self.clone() }.table(&[String::new(), String::new()], &rows)
    }
}

fn cannot_write(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::Exit(EXIT_PIPE);
    }
    Problem::new(Code::Output, format!("cannot write to standard output: {error}")).into()
}

/// Green, yellow or red for words that are good or bad news.
fn color_of(cell: &str) -> Option<u8> {
    Some(match cell {
        "ok" | "up" | "healthy" | "active" | "in-use" | "done" => 32,
        "warning" | "degraded" | "resyncing" | "absent" | "idle" | "foreign" => 33,
        "critical" | "down" | "inaccessible" | "failed" | "missing" | "unusable" => 31,
        "unknown" | "waiting" => 33,
        _ => return None,
    })
}

/// YAML of a JSON value: block style, strings quoted where they could be taken for something
/// else. Every JSON string is a YAML double-quoted one.
pub fn yaml(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => block(value, 0, &mut text),
        Value::Array(items) if !items.is_empty() => block(value, 0, &mut text),
        _ => {
            scalar(value, &mut text);
            text.push('\n');
        }
    }
    text
}

fn block(value: &Value, indent: usize, text: &mut String) {
    let pad = " ".repeat(indent);
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                text.push_str(&pad);
                scalar(&Value::String(key.clone()), text);
                text.push(':');
                nested(inner, indent + 2, text);
            }
        }
        Value::Array(items) => {
            for inner in items {
                text.push_str(&pad);
                text.push('-');
                let mut below = String::new();
                nested(inner, indent + 2, &mut below);
                // The first line of a block goes behind the dash.
                match below.strip_prefix('\n') {
                    Some(block) => {
                        text.push(' ');
                        text.push_str(block.trim_start_matches(' '));
                    }
                    None => text.push_str(&below),
                }
            }
        }
        _ => unreachable!("scalars are written by their parent"),
    }
}

fn nested(value: &Value, indent: usize, text: &mut String) {
    let empty = match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => true,
    };
    if empty {
        text.push(' ');
        scalar(value, text);
        text.push('\n');
    } else {
        text.push('\n');
        block(value, indent, text);
    }
}

fn scalar(value: &Value, text: &mut String) {
    if let Value::String(string) = value {
        let plain = string.starts_with(|c: char| c.is_ascii_alphabetic())
            && string.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/'))
            && !matches!(
                string.to_ascii_lowercase().as_str(),
                "true" | "false" | "yes" | "no" | "on" | "off" | "null" | "y" | "n"
            );
        if plain {
            text.push_str(string);
            return;
        }
    }
    let _ = write!(text, "{value}");
}

#[cfg(test)]
mod tests {
    use super::{Format, Out, yaml};
    use serde_json::json;

    fn out(color: bool) -> Out {
        Out { format: Format::Table, header: true, color, quiet: false, verbose: false }
    }

    #[test]
    fn tables_align_whatever_the_colour() {
        let head = ["NAME".to_owned(), "STATE".to_owned()];
        let rows = [vec!["a".to_owned(), "ok".to_owned()], vec!["longer".into(), "x".into()]];
        assert_eq!(out(false).table(&head, &rows), "NAME    STATE\na       ok\nlonger  x\n");
        let colored = out(true).table(&head, &rows);
        assert!(colored.contains("a       \x1b[32mok\x1b[0m\n"), "{colored:?}");
    }

    #[test]
    fn yaml_reads_back_as_the_same_value() {
        let value = json!({
            "kind": "VolumeList", "n": 3, "ratio": 0.5, "none": null, "yes": true,
            "texts": ["no", "1.5", "", "a: b", "line\nbreak", "x"],
            "items": [{"name": "a", "deep": {"list": [1, [2, 3]], "empty": {}}}, {"name": "b"}],
            "nothing": [],
        });
        let text = yaml(&value);
        assert_eq!(
            text,
            "items:\n  - deep:\n      empty: {}\n      list:\n        - 1\n        - - 2\n\
             \x20         - 3\n    name: a\n  - name: b\nkind: VolumeList\n\"n\": 3\nnone: null\n\
             nothing: []\nratio: 0.5\ntexts:\n  - \"no\"\n  - \"1.5\"\n  - \"\"\n  - \"a: b\"\n  - \
             \"line\\nbreak\"\n  - x\n\"yes\": true\n"
        );
    }
}
