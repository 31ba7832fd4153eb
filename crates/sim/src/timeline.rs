//! A run as one page to look at: hosts as lanes, virtual time from left to right, on it what went
//! wrong, who owned what, which copies were good, and what clients did.
//!
//! Everything comes from the trace and the clients' books of one outcome; nothing is fetched, and
//! the page works without a network. What the page draws is bounded; it says what it leaves out.
//!
//! Invariant: no text of the run reaches the page unescaped.

use crate::checker::Fate;
use crate::cluster::host_id;
use crate::fault::FaultKind;
use crate::run::{Options, Outcome, Setup};
use crate::trace::Line;
use atoll_format::record::{self, MemberState, ObjectRecord, key};
use atoll_world::Nanos;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The page without its facts.
const PAGE: &str = include_str!("timeline.html");
/// Things drawn in one row.
const ROW_MAX: usize = 2_500;
/// Lines of the list under the drawing.
const LINES_MAX: usize = 1_500;
/// Characters of one text.
const TEXT_MAX: usize = 240;
/// Rows that one volume's clients take: more operations at once are drawn over each other.
const CLIENT_ROWS: usize = 12;
/// An operation of which nobody heard is drawn that long.
const UNHEARD: Nanos = Nanos::from_ms(20);

/// What is checked of a run, with the beginnings of what is said where it does not hold.
const CHECKS: &[(&str, &[&str])] = &[
    ("the run comes to an end and does not panic", &["panic", "everything waits", "the run does"]),
    ("nothing is done again and again", &["too busy"]),
    ("all clients of a volume saw one disk", &["sector", "block"]),
    ("no wrong byte is returned", &["read a wrong byte"]),
    ("an epoch of an object has one owner", &["has two owners"]),
    ("every leg has an active member", &["has a leg without"]),
    ("once all is healed, all I/O ends", &["I/O of"]),
    ("then all objects become healthy", &["not healthy", "is not up in the end"]),
    ("every host and every copy shows the same", &["read back", "copy on", "no record"]),
    ("stores count right, none has failed", &["accounting of", "the disk group of"]),
    ("the disks hold no bad block", &["bad blocks", "disks of", "the disks of"]),
];
/// Checks that come after the one in which a run stopped early are not made.
const LATER: &[usize] = &[6, 7];

/// Something drawn: a bar, or a mark where it begins and ends at once.
struct Item {
    from: Nanos,
    to: Nanos,
    /// Of the style sheet.
    class: &'static str,
    /// Shown when pointed at.
    text: String,
    /// Written on it where there is room.
    label: String,
}

struct Row {
    name: String,
    items: Vec<Item>,
}

struct Lane {
    name: String,
    rows: Vec<Row>,
}

/// The page of a run whose trace was recorded.
pub fn page(options: &Options, outcome: &Outcome) -> String {
    let setup = Setup::of_seed(outcome.seed, options);
    let mut drawing = Drawing::new(&setup, outcome);
    drawing.lines(&outcome.lines);
    drawing.clients(outcome);
    drawing.verdict(outcome);
    let left_out = drawing.close();
    let seed = outcome.seed;
    let verdict = match outcome.violations.len() {
        0 => "no violation".to_owned(),
        1 => "1 violation".to_owned(),
        n => format!("{n} violations"),
    };
    let mut summary = String::new();
    for (title, text) in facts(&setup, options, outcome, &left_out) {
        let _ = writeln!(summary, "<dt>{}</dt><dd>{}</dd>", html(&title), html(&text));
    }
    let pieces = [
        ("@TITLE@", html(&format!("seed {seed}: {verdict}"))),
        ("@VERDICT@", if outcome.violations.is_empty() { "pass" } else { "fail" }.to_owned()),
        ("@FACTS@", summary),
        ("@CHECKS@", checks(outcome)),
        ("@FAULTS@", faults(outcome)),
        ("@LANES@", drawing.names()),
        ("@LINES@", list(&outcome.lines)),
        ("@DATA@", drawing.data()),
    ];
    let mut page = String::new();
    let mut rest = PAGE;
    // One pass: what a piece contains is not looked into.
    while let Some((at, piece)) = pieces
        .iter()
        .filter_map(|(mark, _)| rest.find(mark))
        .min()
        .and_then(|at| Some((at, pieces.iter().find(|(m, _)| rest[at..].starts_with(m))?)))
    {
        page += &rest[..at];
        page += &piece.1;
        rest = &rest[at + piece.0.len()..];
    }
    page + rest
}

/// A text that means nothing to a browser.
fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\n' | '\t' | ' '..='\u{7e}' => out.push(c),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A string of a script's data: also `</script>` is harmless in it.
fn json(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '<' | '>' | '&' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c if c.is_control() || c == '\u{2028}' || c == '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out + "\""
}

/// Not longer than [`TEXT_MAX`].
fn short(text: &str) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_owned(),
    }
}

fn seconds(at: Nanos) -> String {
    format!("+{:.6} s", at.as_secs_f64())
}

/// The plan of the run, in words.
fn facts(
    setup: &Setup,
    options: &Options,
    outcome: &Outcome,
    left_out: &[String],
) -> Vec<(String, String)> {
    let plan = &setup.plan;
    let hardware = &setup.hardware;
    let names = |kinds: &mut dyn Iterator<Item = FaultKind>| {
        let names: Vec<_> = kinds.map(FaultKind::name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let volumes = setup.cluster.volumes.iter().enumerate().map(|(v, (bytes, policy))| {
        let (copies, width) = (policy.members(), policy.stripe_width);
        format!("v{v}: {} MiB, {copies} copies, stripe width {width}", bytes >> 20)
    });
    let at_work = (0..setup.cluster.clients.len()).filter(|c| options.part.has_client(*c)).count();
    let switched_on = setup.kinds(outcome.seed, options);
    let mut facts = vec![
        (
            "machines".to_owned(),
            format!(
                "{} hosts, disks in each: {}, log of {} MiB",
                hardware.hosts,
                hardware.disks,
                setup.log_bytes >> 20
            ),
        ),
        ("volumes".into(), volumes.collect::<Vec<_>>().join("; ")),
        (
            "clients".into(),
            format!("{at_work}, {} operations, {} of them answered", outcome.ops.0, outcome.ops.1),
        ),
        (
            "faults switched on".into(),
            names(&mut switched_on.kinds().filter(|k| !options.part.without.has(*k))),
        ),
        (
            "damaged media".into(),
            plan.victim.map_or("none".to_owned(), |host| format!("of h{host} only")),
        ),
        ("virtual time".into(), format!("{:.3} s", outcome.virtual_time.as_secs_f64())),
        ("trace hash".into(), format!("{:016x}", outcome.hash)),
        (
            "replay".into(),
            format!("atoll sim run {} --trace", options.words(outcome.seed).join(" ")),
        ),
    ];
    if !left_out.is_empty() {
        facts.push(("not drawn".into(), left_out.join("; ")));
    }
    facts
}

/// The rows of the table of what was checked.
fn checks(outcome: &Outcome) -> String {
    let of = |violation: &str| {
        if violation.starts_with("panic") {
            return 0;
        }
        // `volume v0: copy on h1 of sector ...`: the most telling words win, not the first ones.
        let found = CHECKS.iter().rposition(|(_, says)| says.iter().any(|s| violation.contains(s)));
        found.unwrap_or(CHECKS.len())
    };
    let mut failed: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for violation in &outcome.violations {
        failed.entry(of(violation)).or_default().push(violation);
    }
    let stopped = LATER.iter().find(|i| failed.contains_key(i)).copied();
    let ended = !failed.contains_key(&0) && !failed.contains_key(&1);
    let mut rows = String::new();
    let all = CHECKS.iter().map(|(what, _)| *what).chain(["everything else"]);
    for (i, what) in all.enumerate() {
        let (class, verdict, why) = match failed.get(&i) {
            Some(found) => ("fail", "violated", short(found[0].lines().next().unwrap_or_default())),
            None if i == CHECKS.len() => continue,
            None if i > 5 && (!ended || stopped.is_some_and(|s| i > s)) => {
                ("none", "not reached", String::new())
            }
            None => ("pass", "holds", String::new()),
        };
        let _ = writeln!(
            rows,
            "<tr><td class=\"{class}\">{verdict}</td><td>{}</td><td>{}</td></tr>",
            html(what),
            html(&why)
        );
    }
    rows
}

/// The rows of the table of what went wrong.
fn faults(outcome: &Outcome) -> String {
    let mut rows = String::new();
    for (kind, count) in FaultKind::ALL.iter().zip(&outcome.faults) {
        let events = outcome.events.iter().filter(|e| e.kind == *kind).count();
        if *count > 0 || events > 0 {
            let name = kind.name();
            let _ = writeln!(rows, "<tr><td>{name}</td><td>{events}</td><td>{count}</td></tr>");
        }
    }
    rows
}

/// Lines that tell what happened, not every packet of it.
fn is_told(line: &Line) -> bool {
    matches!(line.layer, "fault" | "cluster" | "node" | "checker" | "client")
}

fn list(lines: &[Line]) -> String {
    let mut rows = String::new();
    for line in lines.iter().filter(|l| is_told(l)).take(LINES_MAX) {
        let host = line.host.map_or("-".to_owned(), |h| format!("h{h}"));
        let _ = writeln!(
            rows,
            "<tr data-t=\"{}\"><td>{}</td><td>{host}</td><td>{}</td><td>{}</td></tr>",
            line.at.0 / 1000,
            seconds(line.at),
            html(line.layer),
            html(&short(&line.text))
        );
    }
    let more = lines.iter().filter(|l| is_told(l)).count().saturating_sub(LINES_MAX);
    if more > 0 {
        let _ = writeln!(rows, "<tr><td></td><td></td><td></td><td>{more} more lines</td></tr>");
    }
    rows
}

/// The line that ends what a line begins: `isolated`, `no longer isolated`.
fn end_of(begin: &str) -> Option<String> {
    if begin == "isolated" {
        return Some("no longer isolated".into());
    }
    if begin == "directory down" {
        return Some("directory up".into());
    }
    if begin == "cannot reach the directory" {
        return Some("can reach the directory again".into());
    }
    if let Some(other) = begin.strip_prefix("cannot send to ") {
        return Some(format!("can send to {other} again"));
    }
    if let Some(pair) = begin.strip_suffix(" cannot talk") {
        return Some(format!("{pair} can talk again"));
    }
    if let Some(what) = begin.strip_suffix(" times as slow") {
        let (what, _factor) = what.rsplit_once(' ')?;
        return Some(format!("{what} as fast as before"));
    }
    if let Some(shard) = begin.strip_suffix(" paused") {
        return Some(format!("{shard} resumed"));
    }
    if let Some(disk) = begin.strip_suffix(" hangs") {
        return Some(format!("{disk} answers again"));
    }
    let disk = begin.strip_suffix(" disappears")?;
    Some(format!("{disk} is back"))
}

struct Drawing {
    lanes: Vec<Lane>,
    end: Nanos,
    /// Trouble under way: host and the line that ends it; when it began, what it was.
    troubles: BTreeMap<(Option<u16>, String), (Nanos, String)>,
    past_troubles: BTreeMap<Option<u16>, Vec<Item>>,
    /// What a host's program does, and since when.
    lives: BTreeMap<u16, (Nanos, &'static str, String)>,
    /// Bands under way, by what they are about: lane and row, since when, class, text, label.
    bands: BTreeMap<String, Band>,
    left_out: BTreeMap<String, usize>,
}

#[derive(Clone, PartialEq)]
struct Band {
    place: (String, String),
    since: Nanos,
    class: &'static str,
    text: String,
    label: String,
}

impl Drawing {
    fn new(setup: &Setup, outcome: &Outcome) -> Self {
        let mut names = vec!["run".to_owned(), "directory".into(), "network".into()];
        names.extend((0..setup.hardware.hosts).map(|h| format!("h{h}")));
        names.extend((0..setup.cluster.volumes.len()).map(|v| format!("clients of v{v}")));
        let lanes = names.into_iter().map(|name| Lane { name, rows: Vec::new() }).collect();
        Self {
            lanes,
            end: outcome.virtual_time,
            troubles: BTreeMap::new(),
            past_troubles: BTreeMap::new(),
            lives: BTreeMap::new(),
            bands: BTreeMap::new(),
            left_out: BTreeMap::new(),
        }
    }

    fn put(&mut self, lane: &str, row: &str, item: Item) {
        let Some(lane) = self.lanes.iter_mut().find(|l| l.name == lane) else { return };
        let at = lane.rows.iter().position(|r| r.name == row).unwrap_or_else(|| {
            lane.rows.push(Row { name: row.to_owned(), items: Vec::new() });
            lane.rows.len() - 1
        });
        let items = &mut lane.rows[at].items;
        if items.len() < ROW_MAX {
            items.push(item);
        } else {
            *self.left_out.entry(format!("{} {row}", lane.name)).or_default() += 1;
        }
    }

    fn mark(&mut self, lane: &str, row: &str, at: Nanos, class: &'static str, text: String) {
        self.put(lane, row, Item { from: at, to: at, class, text, label: String::new() });
    }

    fn lines(&mut self, lines: &[Line]) {
        for (i, line) in lines.iter().enumerate() {
            let lane = line.host.map_or("run".to_owned(), |h| format!("h{h}"));
            match line.layer {
                "fault" => self.fault(line, &lane),
                "cluster" if line.text.starts_with("VIOLATION") => {
                    self.mark("run", "violations", line.at, "violation", short(&line.text));
                }
                "cluster" => self.mark(&lane, "events", line.at, "event", short(&line.text)),
                "checker" => {
                    self.mark("run", "violations", line.at, "violation", short(&line.text))
                }
                "node" => self.mark(&lane, "events", line.at, "event", short(&line.text)),
                "directory" => self.change(line),
                "reached" => {
                    let (lane, text) =
                        place(lines, i).unwrap_or_else(|| self.of_trouble(&line.text));
                    self.mark(&lane, "faults", line.at, "fault", text);
                }
                _ => {}
            }
        }
    }

    fn fault(&mut self, line: &Line, lane: &str) {
        let (at, text) = (line.at, line.text.clone());
        if let Some(host) = line.host {
            let life = match text.as_str() {
                "killed" | "power lost" => Some("down"),
                "paused" => Some("paused"),
                "resumed" => Some("up"),
                _ if text.starts_with("start, life") => Some("up"),
                _ => None,
            };
            if let Some(class) = life {
                return self.life(host, at, Some((class, text)));
            }
        }
        if text == "everything heals" {
            self.mark("run", "events", at, "heal", text);
            let open: Vec<_> = self.troubles.keys().cloned().collect();
            for (host, end) in open {
                self.trouble_over(host, &end, at);
            }
            return;
        }
        if text.starts_with("event ") {
            let text = format!("{text}, {lane}");
            return self.mark("run", "plan", at, "plan", text);
        }
        if let Some(end) = end_of(&text) {
            self.troubles.entry((line.host, end)).or_insert((at, text));
        } else if !self.trouble_over(line.host, &text, at) {
            self.mark(lane, "faults", at, "fault", short(&text));
        }
    }

    fn trouble_over(&mut self, host: Option<u16>, end: &str, at: Nanos) -> bool {
        let Some((from, what)) = self.troubles.remove(&(host, end.to_owned())) else {
            return false;
        };
        let class = if what.contains("slow") { "slow" } else { "cut" };
        let label = what.clone();
        self.past_troubles.entry(host).or_default().push(Item {
            from,
            to: at,
            class,
            text: what,
            label,
        });
        true
    }

    /// A host's program does something else from now on; none: the run is over.
    fn life(&mut self, host: u16, at: Nanos, next: Option<(&'static str, String)>) {
        let before = match next {
            Some((class, text)) => self.lives.insert(host, (at, class, text)),
            None => self.lives.remove(&host),
        };
        if let Some((from, class, text)) = before {
            let label = if class == "up" { String::new() } else { text.clone() };
            self.put(&format!("h{host}"), "program", Item { from, to: at, class, text, label });
        }
    }

    /// Of effects beside which the trace says nothing: whose they are if only one host has a disk
    /// in trouble.
    fn of_trouble(&self, kind: &str) -> (String, String) {
        let on_disk = |host: u16, end: &str| end.starts_with(&format!("h{host}d"));
        let hosts = self.troubles.keys().filter_map(|(h, end)| h.filter(|h| on_disk(*h, end)));
        let hosts: std::collections::BTreeSet<u16> = hosts.collect();
        match (kind.starts_with("disk-"), hosts.first()) {
            (true, Some(host)) if hosts.len() == 1 => (format!("h{host}"), kind.to_owned()),
            _ => ("run".into(), kind.to_owned()),
        }
    }

    /// A change of the directory: who owns what, and how members stand.
    fn change(&mut self, line: &Line) {
        self.mark("directory", "changes", line.at, "change", short(&line.text));
        let Some((_, changes)) = line.text.split_once(": ") else { return };
        for change in changes.split("; ").filter(|c| c.starts_with(key::OBJECTS)) {
            let Some((name, value)) = change.split_once(" = ") else { continue };
            if let Ok(object) = record::decode::<ObjectRecord>(name, value.as_bytes()) {
                self.object(line.at, &object);
            }
        }
    }

    fn object(&mut self, at: Nanos, object: &ObjectRecord) {
        let lane = |host: u64| format!("h{}", host.wrapping_sub(host_id(0).0));
        let name = &object.name;
        let mut bands = BTreeMap::new();
        if let Some(owner) = object.owner {
            let (lane, epoch) = (lane(owner.host.0), object.epoch.0);
            bands.insert(
                format!("{name} owner"),
                Band {
                    text: format!("{lane} owns {name} in epoch {epoch}"),
                    place: (lane, format!("owns {name}")),
                    since: at,
                    class: "own",
                    label: format!("epoch {epoch}"),
                },
            );
        }
        for (leg, member) in object.members() {
            let lane = lane(member.host.0);
            let (class, state) = match member.state {
                MemberState::Active => ("active", "active".to_owned()),
                MemberState::Resyncing { from } => {
                    ("resyncing", format!("resyncing from {}", from.0))
                }
                MemberState::Absent { since, lost: true, .. } => {
                    ("lost", format!("lost, absent since {}", since.0))
                }
                MemberState::Absent { since, .. } => {
                    ("absent", format!("absent since {}", since.0))
                }
            };
            let text = format!("copy of {name} leg {leg} on {lane}: {state}");
            bands.insert(
                format!("{name} copy {:?}", member.component),
                Band {
                    place: (lane, format!("{name} leg {leg}")),
                    since: at,
                    class,
                    text,
                    label: state,
                },
            );
        }
        // What is as it was goes on; what is not ends here.
        let ours = format!("{name} ");
        let of_object: Vec<String> =
            self.bands.keys().filter(|k| k.starts_with(&ours)).cloned().collect();
        for what in of_object {
            let same = |b: &Band| bands.get(&what).is_some_and(|n| n.text == b.text);
            if same(&self.bands[&what]) {
                bands.remove(&what);
            } else {
                self.band_over(&what, at);
            }
        }
        self.bands.extend(bands);
    }

    fn band_over(&mut self, what: &str, at: Nanos) {
        if let Some(Band { place: (lane, row), since, class, text, label }) =
            self.bands.remove(what)
        {
            self.put(&lane, &row, Item { from: since, to: at, class, text, label });
        }
    }

    /// Bars in as many rows as there are at once, up to `rows`.
    fn pack(&mut self, lane: &str, row: &str, mut items: Vec<Item>, rows: usize) {
        items.sort_by_key(|i| (i.from, i.to));
        let mut ends: Vec<Nanos> = Vec::new();
        for item in items {
            let free = ends.iter().position(|end| *end <= item.from);
            let at = free.unwrap_or_else(|| {
                if ends.len() < rows {
                    ends.push(Nanos::ZERO);
                }
                ends.len() - 1
            });
            ends[at] = ends[at].max(item.to);
            // Rows with one name follow each other; only the first shows it.
            self.put(lane, &format!("{row}\u{0}{at:02}"), item);
        }
    }

    fn clients(&mut self, outcome: &Outcome) {
        let mut volumes: BTreeMap<usize, Vec<Item>> = BTreeMap::new();
        for op in &outcome.client_ops {
            let (class, ended) = match op.fate {
                Fate::Done if op.what == "read" => ("read", "done"),
                Fate::Done => ("write", "done"),
                Fate::Failed => ("failed", "failed"),
                Fate::Refused => ("failed", "refused"),
                Fate::Unknown => ("unheard", "no answer"),
            };
            let (from, to) = (op.span.0, op.span.1.unwrap_or(op.span.0 + UNHEARD));
            let (first, sectors) = op.range;
            let text =
                format!("client {}: {} of sectors {first}+{sectors}, {ended}", op.client, op.what);
            let item =
                Item { from, to: to.max(from + Nanos(1)), class, text, label: String::new() };
            volumes.entry(op.volume).or_default().push(item);
        }
        for (v, items) in volumes {
            self.pack(&format!("clients of v{v}"), "", items, CLIENT_ROWS);
        }
    }

    fn verdict(&mut self, outcome: &Outcome) {
        for violation in &outcome.violations {
            self.mark("run", "violations", self.end, "violation", short(violation));
        }
    }

    /// Ends what is under way; says what was left out.
    fn close(&mut self) -> Vec<String> {
        let end = self.end;
        let open: Vec<_> = self.troubles.keys().cloned().collect();
        for (host, what) in open {
            self.trouble_over(host, &what, end);
        }
        for (host, items) in std::mem::take(&mut self.past_troubles) {
            let lane = host.map_or("directory".to_owned(), |h| format!("h{h}"));
            self.pack(&lane, "trouble", items, 4);
        }
        let hosts: Vec<u16> = self.lives.keys().copied().collect();
        for host in hosts {
            self.life(host, end, None);
        }
        let bands: Vec<String> = self.bands.keys().cloned().collect();
        for what in bands {
            self.band_over(&what, end);
        }
        // What a host is comes before what it has.
        let rank = |name: &str| match name.split(['\u{0}', ' ']).next() {
            Some("plan") => 0,
            Some("program" | "violations" | "") => 1,
            Some("trouble") => 2,
            Some("faults") => 3,
            Some("events" | "changes") => 4,
            Some("owns") => 5,
            _ => 6,
        };
        for lane in &mut self.lanes {
            lane.rows.sort_by(|a, b| (rank(&a.name), &a.name).cmp(&(rank(&b.name), &b.name)));
        }
        let say = |(place, n): (&String, &usize)| {
            format!("{n} of {}", place.split('\u{0}').next().unwrap_or_default().trim())
        };
        self.left_out.iter().map(say).collect()
    }

    /// The lanes by name, for those who do not see the drawing.
    fn names(&self) -> String {
        let count = |lane: &Lane| lane.rows.iter().map(|r| r.items.len()).sum::<usize>();
        let mut rows = String::new();
        for lane in &self.lanes {
            let (name, n) = (html(&lane.name), count(lane));
            let _ = writeln!(rows, "<tr data-lane=\"{name}\"><td>{name}</td><td>{n}</td></tr>");
        }
        rows
    }

    /// Everything drawn: `[name, [[row, [[from, to, class, text, label], ...]], ...]], ...`, times
    /// in microseconds.
    fn data(&self) -> String {
        let mut classes: Vec<&'static str> = Vec::new();
        let mut lanes = Vec::new();
        for lane in &self.lanes {
            let mut rows = Vec::new();
            for row in &lane.rows {
                let mut items = Vec::new();
                for item in &row.items {
                    let class = classes.iter().position(|c| *c == item.class);
                    let class = class.unwrap_or_else(|| {
                        classes.push(item.class);
                        classes.len() - 1
                    });
                    let (from, to) = (item.from.0 as f64 / 1e3, item.to.0 as f64 / 1e3);
                    let (text, label) = (json(&item.text), json(&item.label));
                    items.push(format!("[{from},{to},{class},{text},{label}]"));
                }
                let name = row.name.split('\u{0}').next().unwrap_or_default();
                rows.push(format!("[{},[{}]]", json(name), items.join(",")));
            }
            lanes.push(format!("[{},[{}]]", json(&lane.name), rows.join(",\n")));
        }
        let classes: Vec<_> = classes.iter().map(|c| json(c)).collect();
        format!(
            "{{\"end\":{},\"classes\":[{}],\"lanes\":[{}]}}",
            self.end.0 as f64 / 1e3,
            classes.join(","),
            lanes.join(",\n")
        )
    }
}

/// In which lane the effect of a fault is drawn, and what is said of it: the line of the trace that
/// it stands beside says where it was.
fn place(lines: &[Line], i: usize) -> Option<(String, String)> {
    let line = &lines[i];
    let kind = line.text.as_str();
    if kind.starts_with("directory-") || kind == "watch-odd" {
        return Some(("directory".into(), kind.to_owned()));
    }
    const NETWORK: &[&str] =
        &["connection-lost", "frame-damaged", "packet-delayed", "partition", "slow-link"];
    if NETWORK.contains(&kind) {
        return Some(("network".into(), kind.to_owned()));
    }
    let told =
        |l: &&Line| l.at == line.at && l.host.is_some() && matches!(l.layer, "disk" | "fault");
    let after = lines[i + 1..].iter().take(2).find(told);
    let beside = after.or_else(|| lines[..i].iter().rev().take(4).find(told));
    let (host, text) = beside.and_then(|b| Some((b.host?, &b.text)))?;
    Some((format!("h{host}"), format!("{kind}: {}", short(text))))
}

#[cfg(test)]
mod tests {
    use super::{end_of, html, json};

    #[test]
    fn no_text_can_do_anything_to_the_page() {
        assert_eq!(html("<b a='1'>&\u{7}"), "&lt;b a=&#39;1&#39;&gt;&amp; ");
        assert_eq!(json("</script>\"\\\n"), "\"\\u003c/script\\u003e\\\"\\\\\\u000a\"");
    }

    #[test]
    fn what_begins_knows_its_end() {
        assert_eq!(end_of("isolated").unwrap(), "no longer isolated");
        assert_eq!(end_of("cannot send to h2").unwrap(), "can send to h2 again");
        assert_eq!(end_of("and h1 cannot talk").unwrap(), "and h1 can talk again");
        assert_eq!(end_of("link to h0 17 times as slow").unwrap(), "link to h0 as fast as before");
        assert_eq!(end_of("h1d0 hangs").unwrap(), "h1d0 answers again");
        assert_eq!(end_of("shard 1 paused").unwrap(), "shard 1 resumed");
        assert_eq!(end_of("killed"), None);
    }
}
