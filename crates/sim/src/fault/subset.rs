//! Which part of what a seed does is carried out: what shrinking is left with, and what a replay of
//! it asks for.
//!
//! Invariant: whatever is left out was drawn all the same, so what stays is what it was, until the
//! cluster itself goes another way.

use super::kind::{FaultKind, FaultSet};
use atoll_world::Nanos;
use std::fmt::Write;

/// A part of a seed's plan; the default is the whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultSubset {
    /// Kinds that the seed may switch on and that do not happen.
    pub without: FaultSet,
    /// Operations, packets and calls go wrong in this way only from the one moment to the other.
    pub windows: Vec<(FaultKind, Nanos, Nanos)>,
    /// Numbers of the timed events that take place; none: all.
    pub events: Option<Vec<u32>>,
    /// Everything heals then at the latest.
    pub until: Nanos,
    /// Places of the clients that work, in the list of the seed; none: all.
    pub clients: Option<Vec<usize>>,
}

impl Default for FaultSubset {
    fn default() -> Self {
        Self {
            without: FaultSet::NONE,
            windows: Vec::new(),
            events: None,
            until: Nanos::NEVER,
            clients: None,
        }
    }
}

impl FaultSubset {
    /// Whether an event takes place.
    pub fn has_event(&self, number: u32, kind: FaultKind) -> bool {
        !self.without.has(kind) && self.events.as_ref().is_none_or(|e| e.contains(&number))
    }

    /// Whether a client works.
    pub fn has_client(&self, client: usize) -> bool {
        self.clients.as_ref().is_none_or(|c| c.contains(&client))
    }

    /// The window of a kind; without one, always.
    pub fn window(&self, kind: FaultKind) -> (Nanos, Nanos) {
        let found = self.windows.iter().find(|(k, ..)| *k == kind);
        found.map_or((Nanos::ZERO, Nanos::NEVER), |(_, from, to)| (*from, *to))
    }

    /// With another window for a kind.
    #[must_use]
    pub fn with_window(&self, kind: FaultKind, from: Nanos, to: Nanos) -> Self {
        let mut part = self.clone();
        part.windows.retain(|(k, ..)| *k != kind);
        part.windows.push((kind, from, to));
        part.windows.sort();
        part
    }

    /// Kinds whose rates are muted at a moment.
    pub(super) fn muted_at(&self, at: Nanos) -> FaultSet {
        let mut muted = self.without;
        for (kind, from, to) in &self.windows {
            if at < *from || at >= *to {
                muted = muted.with(*kind);
            }
        }
        muted
    }

    /// The options of `atoll sim run` that ask for it; `on`: the kinds that the seed switches on.
    pub fn words(&self, on: FaultSet) -> Vec<String> {
        let mut words = Vec::new();
        let names = |kinds: Vec<FaultKind>| match kinds.is_empty() {
            true => "none".to_owned(),
            false => kinds.iter().map(|k| k.name()).collect::<Vec<_>>().join(","),
        };
        let (out, left): (Vec<_>, Vec<_>) = on.kinds().partition(|k| self.without.has(*k));
        if !out.is_empty() {
            // The shorter of two ways to say it.
            let (option, kinds) =
                if out.len() <= left.len() { ("--without", out) } else { ("--only", left) };
            words.extend([option.to_owned(), names(kinds)]);
        }
        for (kind, from, to) in &self.windows {
            words.extend(["--window".into(), format!("{}={}", kind.name(), range(*from, *to))]);
        }
        if let Some(events) = &self.events {
            words.extend(["--events".into(), list(events)]);
        }
        if let Some(clients) = &self.clients {
            words.extend(["--clients".into(), list(clients)]);
        }
        if self.until < Nanos::NEVER {
            words.extend(["--until".into(), show(self.until)]);
        }
        words
    }
}

/// `3,7`, or `none`.
fn list<T: ToString>(numbers: &[T]) -> String {
    if numbers.is_empty() {
        return "none".into();
    }
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// `12s..13.5s`; an end that is open is left out.
fn range(from: Nanos, to: Nanos) -> String {
    let from = if from == Nanos::ZERO { String::new() } else { show(from) };
    let to = if to == Nanos::NEVER { String::new() } else { show(to) };
    format!("{from}..{to}")
}

/// A moment of a run as options take it, exact: `12.5s`.
pub fn show(at: Nanos) -> String {
    let mut text = (at.0 / 1_000_000_000).to_string();
    let rest = at.0 % 1_000_000_000;
    if rest > 0 {
        let _ = write!(text, ".{rest:09}");
        text.truncate(text.trim_end_matches('0').len());
    }
    text + "s"
}

/// Reads a moment: `41s`, `12.5s`, `300ms`, `7us`, `12ns`.
pub fn moment(text: &str) -> Option<Nanos> {
    let end = text.find(|c: char| c.is_ascii_alphabetic())?;
    let unit: u64 = match &text[end..] {
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" => 1_000,
        "ns" => 1,
        _ => return None,
    };
    let (whole, part) = text[..end].split_once('.').unwrap_or((&text[..end], ""));
    let mut nanos = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut worth = unit;
    for digit in part.chars() {
        worth /= 10;
        nanos = nanos.checked_add(u64::from(digit.to_digit(10)?) * worth)?;
    }
    Some(Nanos(nanos))
}

/// Reads a window: `kind=12s..13s`; either end may be left out.
///
/// # Errors
/// A sentence with an example.
pub fn window(text: &str) -> Result<(FaultKind, Nanos, Nanos), String> {
    let bad = || format!("'{text}' is not a window (example: lost-write=12s..13.5s)");
    let (name, range) = text.split_once('=').ok_or_else(bad)?;
    let kind = FaultSet::parse(name)?.kinds().next().ok_or_else(bad)?;
    let (from, to) = range.split_once("..").ok_or_else(bad)?;
    let end = |text: &str, open| match text {
        "" => Ok(open),
        text => moment(text).ok_or_else(bad),
    };
    let (from, to) = (end(from, Nanos::ZERO)?, end(to, Nanos::NEVER)?);
    if from < to { Ok((kind, from, to)) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::{FaultKind, FaultSet, FaultSubset, Nanos, moment, show, window};

    #[test]
    fn moments_and_windows_read_back() {
        for nanos in [0, 1, 41_000_000_000, 12_345_678_901, 500_000_000, 12_000_000_001] {
            assert_eq!(moment(&show(Nanos(nanos))), Some(Nanos(nanos)));
        }
        assert_eq!(moment("1.5ms"), Some(Nanos(1_500_000)));
        for bad in ["", "s", "12", "1.x s", "-1s", "1h", "99999999999999s"] {
            assert_eq!(moment(bad), None, "{bad}");
        }
        let lost = FaultKind::LostWrite;
        assert_eq!(
            window("lost-write=1s..2s"),
            Ok((lost, Nanos(10u64.pow(9)), Nanos(2 * 10u64.pow(9))))
        );
        assert_eq!(window("lost-write=..2ns"), Ok((lost, Nanos::ZERO, Nanos(2))));
        assert!(window("lost-write=2s..1s").is_err() && window("gremlin=1s..2s").is_err());
    }

    #[test]
    fn the_words_say_it_the_shorter_way() {
        let on = FaultSet::parse("kill,partition,lost-write").unwrap();
        let mut part =
            FaultSubset { without: FaultSet::parse("kill").unwrap(), ..FaultSubset::default() };
        assert_eq!(part.words(on), ["--without", "kill"]);
        part.without = FaultSet::parse("kill,lost-write").unwrap();
        part.events = Some(vec![3, 7]);
        part.until = Nanos(41_500_000_000);
        let part = part.with_window(FaultKind::Partition, Nanos::ZERO, Nanos(1_000_000_000));
        assert_eq!(
            part.words(on).join(" "),
            "--only partition --window partition=..1s --events 3,7 --until 41.5s"
        );
        part_of_none(on);
    }

    fn part_of_none(on: FaultSet) {
        let part =
            FaultSubset { without: FaultSet::ALL, events: Some(vec![]), ..FaultSubset::default() };
        assert_eq!(part.words(on), ["--only", "none", "--events", "none"]);
    }
}
