//! What a run did: a running hash of every step, and the lines themselves when asked for.
//!
//! Invariants: two runs of one seed have one hash; recording lines does not change the hash, so a
//! failure found without a trace is the failure that the trace shows.

use atoll_world::Nanos;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// One line: something that happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// When, in the simulator's time.
    pub at: Nanos,
    /// On which host; none: everywhere, or outside.
    pub host: Option<u16>,
    /// Who says so.
    pub layer: &'static str,
    /// What.
    pub text: String,
}

/// The lines that one run may record; older ones go first.
const LINES_MAX: usize = 2_000_000;

struct Inner {
    hash: Cell<u64>,
    recording: Cell<bool>,
    /// Only lines of these are kept, if there are any.
    layers: &'static [&'static str],
    lines: RefCell<Vec<Line>>,
    dropped: Cell<u64>,
}

/// The trace of one run; clones are the same.
#[derive(Clone)]
pub struct Trace(Rc<Inner>);

impl Trace {
    /// An empty one; lines are kept only if `recording`.
    pub fn new(recording: bool) -> Self {
        Self::made(recording, &[])
    }

    /// An empty one that keeps the lines of these layers.
    pub fn of(layers: &'static [&'static str]) -> Self {
        Self::made(true, layers)
    }

    fn made(recording: bool, layers: &'static [&'static str]) -> Self {
        Self(Rc::new(Inner {
            hash: Cell::new(0xcbf2_9ce4_8422_2325),
            recording: Cell::new(recording),
            layers,
            lines: RefCell::default(),
            dropped: Cell::new(0),
        }))
    }

    /// Mixes a fact into the hash: cheap enough for every poll.
    pub fn mix(&self, fact: u64) {
        let h = (self.0.hash.get() ^ fact).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0.hash.set(h ^ (h >> 29));
    }

    /// Something frequent: `fact` goes into the hash, the text is made only when recording.
    pub fn event(
        &self,
        at: Nanos,
        host: Option<u16>,
        layer: &'static str,
        fact: u64,
        text: impl FnOnce() -> String,
    ) {
        self.mix(at.0);
        self.mix(fact);
        if self.keeps(layer) {
            self.keep(Line { at, host, layer, text: text() });
        }
    }

    /// Something rare: its text goes into the hash.
    pub fn fact(&self, at: Nanos, host: Option<u16>, layer: &'static str, text: String) {
        self.mix(at.0);
        self.mix(u64::from(host.unwrap_or(u16::MAX)));
        for piece in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.mix(u64::from_le_bytes(word));
        }
        if self.keeps(layer) {
            self.keep(Line { at, host, layer, text });
        }
    }

    fn keeps(&self, layer: &str) -> bool {
        let layers = self.0.layers;
        self.0.recording.get() && (layers.is_empty() || layers.contains(&layer))
    }

    fn keep(&self, line: Line) {
        let mut lines = self.0.lines.borrow_mut();
        if lines.len() >= LINES_MAX {
            lines.drain(..LINES_MAX / 2);
            self.0.dropped.set(self.0.dropped.get() + LINES_MAX as u64 / 2);
        }
        lines.push(line);
    }

    /// Whether lines are kept.
    pub fn is_recording(&self) -> bool {
        self.0.recording.get()
    }

    /// The hash of everything up to now.
    pub fn hash(&self) -> u64 {
        self.0.hash.get()
    }

    /// How many of the lines kept so far are as wanted.
    pub fn count(&self, wanted: impl Fn(&Line) -> bool) -> usize {
        self.0.lines.borrow().iter().filter(|line| wanted(line)).count()
    }

    /// Takes the lines kept so far.
    pub fn take_lines(&self) -> Vec<Line> {
        self.0.lines.take()
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = format!("+{}.{:03}us", self.at.0 / 1000, self.at.0 % 1000);
        match self.host {
            Some(host) => write!(f, "{at:<16} h{host:<2} {:<9} {}", self.layer, self.text),
            None => write!(f, "{at:<16} -   {:<9} {}", self.layer, self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Nanos, Trace};

    #[test]
    fn recording_does_not_change_the_hash_and_every_step_does() {
        let run = |recording| {
            let t = Trace::new(recording);
            t.event(Nanos(5), Some(1), "net", 7, || "seven".into());
            t.fact(Nanos(6), None, "fault", "crash h1".into());
            (t.hash(), t.take_lines().len())
        };
        assert_eq!(run(true).0, run(false).0);
        assert_eq!((run(true).1, run(false).1), (2, 0));
        let t = Trace::new(false);
        t.fact(Nanos(6), None, "fault", "crash h2".into());
        let a = t.hash();
        t.mix(0);
        assert_ne!(a, t.hash());
    }
}
