//! From a seed that fails to the least of it that fails in the same way: fewest kinds of fault,
//! then fewest events, the shortest time in which operations go wrong, an early end, few
//! operations and clients.
//!
//! It does not run anything itself: whoever calls does, in a process of its own if a panic is what
//! is looked into.
//!
//! Invariants: what is kept has failed in the run that it was kept for; the same runs give the same
//! result. It is a local least: no one piece can be left out, two together perhaps can.

use crate::fault::subset::show;
use crate::fault::{FaultKind, FaultSet, Plan};
use crate::run::{Options, Outcome, Setup};
use atoll_world::Nanos;
use std::collections::BTreeMap;

/// Words of a violation that tell its kind; numbers and names count as equal.
const WORDS: usize = 5;
/// Rounds through all that can be left out: each may make room for the next.
const ROUNDS: u32 = 3;
/// Finer than this, the moment of healing is not looked for.
const UNTIL_GRAIN: Nanos = Nanos::from_ms(100);

/// The least that still fails.
#[derive(Clone, Debug)]
pub struct Shrunk {
    /// How it is run.
    pub options: Options,
    /// What came of it.
    pub outcome: Outcome,
    /// What came of the whole.
    pub whole: Outcome,
    /// Runs that it took.
    pub runs: u32,
    /// Nothing more can be left out; otherwise the runs or the caller's patience were used up.
    pub is_least: bool,
}

/// What of a violation does not change with the numbers in it.
pub fn kind_of(violation: &str) -> String {
    let words = violation.split_whitespace().take(WORDS);
    let plain = |word: &str| match word.contains(|c: char| c.is_ascii_digit()) {
        true => "#".to_owned(),
        false => word.to_owned(),
    };
    words.map(plain).collect::<Vec<_>>().join(" ")
}

/// Shrinks a seed. `run` runs it, and says `None` when it is enough.
///
/// # Errors
/// The seed does not fail, or could not be run at all.
pub fn shrink(
    seed: u64,
    options: &Options,
    runs_max: u32,
    run: &mut dyn FnMut(&Options) -> Option<Outcome>,
) -> Result<Shrunk, String> {
    let options = Options { trace: false, twice: false, ..options.clone() };
    let whole = run(&options).ok_or("stopped before the first run had ended")?;
    let Some(first) = whole.violations.first() else {
        return Err(format!("seed {seed} finds no violation: there is nothing to shrink"));
    };
    let mut search = Search {
        seed,
        wanted: kind_of(first),
        setup: Setup::of_seed(seed, &options),
        options,
        outcome: whole.clone(),
        runs: 1,
        runs_max,
        run,
        enough: false,
    };
    let mut is_least = false;
    for _ in 0..ROUNDS {
        let before = search.options.clone();
        search.kinds();
        search.events();
        search.windows();
        search.until();
        search.ops();
        search.clients();
        is_least = search.options == before && !search.enough;
        if is_least || search.enough {
            break;
        }
    }
    let Search { options, outcome, runs, .. } = search;
    Ok(Shrunk { options, outcome, whole, runs, is_least })
}

struct Search<'a> {
    seed: u64,
    wanted: String,
    setup: Setup,
    /// The least so far, and what came of it.
    options: Options,
    outcome: Outcome,
    runs: u32,
    runs_max: u32,
    run: &'a mut dyn FnMut(&Options) -> Option<Outcome>,
    enough: bool,
}

impl Search<'_> {
    /// Whether it still fails in the same way with these; then they are the least so far.
    fn fails(&mut self, options: Options) -> bool {
        if options == self.options {
            return true;
        }
        if self.enough || self.runs >= self.runs_max {
            self.enough = true;
            return false;
        }
        let Some(outcome) = (self.run)(&options) else {
            self.enough = true;
            return false;
        };
        self.runs += 1;
        let same = outcome.violations.iter().any(|v| kind_of(v) == self.wanted);
        if same {
            (self.options, self.outcome) = (options, outcome);
        }
        same
    }

    /// With another part of what it was.
    fn with(&self, change: impl FnOnce(&mut Options)) -> Options {
        let mut options = self.options.clone();
        change(&mut options);
        options
    }

    /// A subset of `items` of which no single one can be left out.
    ///
    /// # Source
    /// Zeller, Hildebrandt: Simplifying and Isolating Failure-Inducing Input (2002), ddmin by
    /// complements.
    fn subset<T: Copy>(&mut self, mut items: Vec<T>, keep: impl Fn(&mut Options, &[T])) {
        let none = self.with(|o| keep(o, &[]));
        if items.is_empty() || self.fails(none) {
            return;
        }
        let mut pieces = 2;
        while items.len() >= 2 && !self.enough {
            let len = items.len().div_ceil(pieces);
            let smaller = (0..items.len()).step_by(len).find_map(|from| {
                let mut rest = items.clone();
                rest.drain(from..(from + len).min(items.len()));
                let options = self.with(|o| keep(o, &rest));
                self.fails(options).then_some(rest)
            });
            match smaller {
                Some(rest) => {
                    items = rest;
                    pieces = (pieces - 1).max(2);
                }
                None if pieces >= items.len() => return,
                None => pieces = (pieces * 2).min(items.len()),
            }
        }
    }

    fn kinds(&mut self) {
        let all = self.setup.kinds(self.seed, &self.options);
        let without = |kept: &[FaultKind]| {
            all.kinds().filter(|k| !kept.contains(k)).fold(FaultSet::NONE, FaultSet::with)
        };
        let mut kinds: Vec<FaultKind> =
            all.kinds().filter(|k| !self.options.part.without.has(*k)).collect();
        // What did nothing goes first, all at once.
        let busy = |k: &FaultKind| {
            self.outcome.faults[*k as usize] > 0 || self.outcome.events.iter().any(|e| e.kind == *k)
        };
        let busy: Vec<FaultKind> = kinds.iter().copied().filter(busy).collect();
        let options = self.with(|o| o.part.without = without(&busy));
        if self.fails(options) {
            kinds = busy;
        }
        self.subset(kinds, |o, kept| o.part.without = without(kept));
    }

    fn events(&mut self) {
        let numbers: Vec<u32> = self.outcome.events.iter().map(|e| e.number).collect();
        // What is left out of a plan without events needs no saying.
        if !numbers.is_empty() {
            let all = numbers.clone();
            let options = self.with(|o| o.part.events = Some(all));
            if self.fails(options) {
                self.subset(numbers, |o, kept| o.part.events = Some(kept.to_vec()));
            }
        }
    }

    /// For each kind that goes by a rate, the shortest time in which it is on.
    fn windows(&mut self) {
        let (hosts, allowed) = (self.setup.hardware.hosts, self.options.faults);
        for kind in self.setup.kinds(self.seed, &self.options).kinds() {
            if self.options.part.without.has(kind)
                || !Plan::has_rate(self.seed, hosts, allowed, kind)
            {
                continue;
            }
            // By halves as long as one of them fails, then by ever smaller pieces of either end.
            let mut share = 2;
            while !self.enough {
                let moments = self.moments(kind);
                let piece = (moments.len() / share).max(1);
                let (from, to) = self.options.part.window(kind);
                let (Some(first), Some(last)) = (moments.first(), moments.last()) else { break };
                let tight = self.options.part.with_window(kind, *first, *last + Nanos(1));
                let tight = self.with(|o| o.part = tight);
                if moments.len() == 1 {
                    self.fails(tight);
                    break;
                }
                let tail = self.options.part.with_window(kind, moments[piece], to);
                let head =
                    self.options.part.with_window(kind, from, moments[moments.len() - piece]);
                let (tail, head) = (self.with(|o| o.part = tail), self.with(|o| o.part = head));
                let shorter = self.fails(tail) || self.fails(head);
                if !shorter || self.moments(kind).len() == moments.len() {
                    if piece == 1 {
                        // No end can be left out any more.
                        self.fails(tight);
                        break;
                    }
                    share *= 2;
                }
            }
        }
    }

    /// When that kind had its effect, each moment once.
    fn moments(&self, kind: FaultKind) -> Vec<Nanos> {
        let of_kind = self.outcome.effects.iter().filter(|(_, k)| *k == kind);
        let mut moments: Vec<Nanos> = of_kind.map(|(at, _)| *at).collect();
        moments.sort();
        moments.dedup();
        moments
    }

    fn until(&mut self) {
        let mut high = self.options.part.until.min(self.outcome.virtual_time);
        let mut low = Nanos::ZERO;
        while high.0 - low.0 > UNTIL_GRAIN.0 && !self.enough {
            let middle = (low.0 + (high.0 - low.0) / 2) / 1_000_000 * 1_000_000;
            let options = self.with(|o| o.part.until = Nanos(middle));
            if self.fails(options) { high = Nanos(middle) } else { low = Nanos(middle) }
        }
    }

    fn ops(&mut self) {
        let (mut low, mut high) = (0, self.options.ops);
        // To a twentieth: one operation more or less says nothing.
        while high - low > 1 + high / 20 && !self.enough {
            let middle = low + (high - low) / 2;
            let options = self.with(|o| o.ops = middle);
            if self.fails(options) { high = middle } else { low = middle }
        }
    }

    fn clients(&mut self) {
        let all = (0..self.setup.cluster.clients.len()).collect::<Vec<_>>();
        let some: Vec<usize> =
            all.into_iter().filter(|c| self.options.part.has_client(*c)).collect();
        self.subset(some, |o, kept| o.part.clients = Some(kept.to_vec()));
    }
}

/// What went wrong in a run, with its moments: a line an event, and one for each kind of effect.
pub fn faults_of(outcome: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    for event in &outcome.events {
        let text = format!("event {}: {}, h{}", event.number, event.kind.name(), event.host);
        lines.push((event.at, show(event.at), text));
    }
    let mut effects: BTreeMap<FaultKind, (u64, Nanos, Nanos)> = BTreeMap::new();
    for (at, kind) in &outcome.effects {
        let entry = effects.entry(*kind).or_insert((0, *at, *at));
        (entry.0, entry.2) = (entry.0 + 1, *at);
    }
    for (kind, (count, first, last)) in effects {
        let when =
            if first == last { show(first) } else { format!("{} to {}", show(first), show(last)) };
        let often = if count == 1 { "once".into() } else { format!("{count} times") };
        lines.push((first, when, format!("{}, {often}", kind.name())));
    }
    lines.sort();
    lines.into_iter().map(|(_, when, what)| format!("{when:<30} {what}")).collect()
}

#[cfg(test)]
mod tests {
    use super::kind_of;

    #[test]
    fn violations_are_of_one_kind_whatever_their_numbers() {
        let a = "volume v0: sector 12: client 3 read write 7";
        let b = "volume v1: sector 9001: client 4 read write 8";
        assert_eq!(kind_of(a), kind_of(b));
        assert_ne!(kind_of(a), kind_of("volume v1: copy on h1 of sector 3"));
    }
}
