//! The searches: every state once, breadth first; and seeded random walks.

use super::start::start;
use super::state::{State, Wrong};
use super::step::{Action, Steps};
use super::{Config, Rules, trace};
use std::collections::BTreeSet;
use std::fmt;
use std::hash::{Hash, Hasher};

/// How a violation comes about.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What is wrong in the end.
    pub wrong: Wrong,
    /// Each step in words.
    pub steps: Vec<String>,
    /// What the members and the directory then hold.
    pub end: String,
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:3}. {step}", i + 1)?;
        }
        writeln!(f, "  => {:?}: {}", self.wrong, self.end)
    }
}

/// What a search found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// States that were looked at (steps, for walks).
    pub states: u64,
    /// The whole bounded space was searched.
    pub complete: bool,
    /// Steps that were left out because the modelled network was full.
    pub overflows: u64,
    /// The first violation; a shortest one if the search was breadth first.
    pub violation: Option<Trace>,
}

/// Mixes words of eight bytes by multiplying to 128 bits and folding.
struct Fingerprint {
    hash: u64,
    word: u64,
    filled: u32,
}

impl Fingerprint {
    const SALT: u64 = 0x9e37_79b9_7f4a_7c15;

    fn of(s: &State) -> u64 {
        let mut f = Self { hash: 0x243f_6a88_85a3_08d3, word: 0, filled: 0 };
        s.hash(&mut f);
        f.fold(f.word ^ u64::from(f.filled) << 56);
        f.fold(0);
        f.hash
    }

    fn fold(&mut self, word: u64) {
        let wide = u128::from(self.hash ^ word) * u128::from(Self::SALT);
        // The additive term keeps a product of zero from erasing what came before.
        self.hash = (wide as u64 ^ (wide >> 64) as u64).wrapping_add(word.rotate_left(32));
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.hash
    }
    fn write(&mut self, bytes: &[u8]) {
        for &b in bytes {
            self.write_u8(b);
        }
    }
    fn write_u8(&mut self, byte: u8) {
        self.word = self.word << 8 | u64::from(byte);
        self.filled += 1;
        if self.filled == 8 {
            let word = self.word;
            self.fold(word);
            self.word = 0;
            self.filled = 0;
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.fold(word);
    }
    fn write_u128(&mut self, wide: u128) {
        self.fold(wide as u64);
        self.fold((wide >> 64) as u64);
    }
    fn write_usize(&mut self, n: usize) {
        self.fold(n as u64);
    }
    fn write_isize(&mut self, n: isize) {
        // Discriminants of the small enums of a state.
        self.write_u8(n as u8);
    }
}

/// A set of fingerprints: open addressing, never full.
struct Seen {
    slots: Vec<u64>,
    len: usize,
}

impl Seen {
    fn new() -> Self {
        Self { slots: vec![0; 1 << 16], len: 0 }
    }

    /// Puts it in; false if it was there.
    fn insert(&mut self, fingerprint: u64) -> bool {
        if self.len * 2 >= self.slots.len() {
            let old = std::mem::take(&mut self.slots);
            self.slots = vec![0; old.len() * 2];
            self.len = 0;
            for f in old.into_iter().filter(|&f| f != 0) {
                self.insert(f);
            }
        }
        // 0 marks a free slot.
        let fingerprint = fingerprint.max(1);
        let mask = self.slots.len() - 1;
        let mut at = fingerprint as usize & mask;
        while self.slots[at] != 0 {
            if self.slots[at] == fingerprint {
                return false;
            }
            at = (at + 1) & mask;
        }
        self.slots[at] = fingerprint;
        self.len += 1;
        true
    }
}

/// Searches every state that can be reached, nearest first, until one is wrong or `limit` states
/// were seen.
pub fn check(config: Config, rules: Rules, limit: u64) -> Outcome {
    let steps = Steps { config, rules };
    let first = start(&config);
    let mut seen = Seen::new();
    seen.insert(Fingerprint::of(&first));
    // How each state was reached: its parent and which of the parent's actions.
    let mut parents: Vec<(u32, u16)> = vec![(u32::MAX, 0)];
    let mut level: Vec<(u32, State)> = vec![(0, first)];
    let mut next: Vec<(u32, State)> = Vec::new();
    let mut actions = Vec::new();
    let mut outcome = Outcome { states: 1, complete: true, overflows: 0, violation: None };
    while !level.is_empty() {
        for (index, s) in level.drain(..) {
            steps.actions(&s, &mut actions);
            for (choice, &action) in actions.iter().enumerate() {
                let after = steps.apply(&s, action);
                if after.overflow {
                    outcome.overflows += 1;
                    continue;
                }
                if !seen.insert(Fingerprint::of(&after)) {
                    continue;
                }
                let child = parents.len() as u32;
                parents.push((index, choice as u16));
                outcome.states += 1;
                if after.wrong != Wrong::Nothing {
                    outcome.complete = false;
                    outcome.violation = Some(retrace(&steps, &parents, child));
                    return outcome;
                }
                next.push((child, after));
            }
            if outcome.states >= limit {
                outcome.complete = false;
                return outcome;
            }
        }
        std::mem::swap(&mut level, &mut next);
    }
    outcome
}

fn retrace(steps: &Steps, parents: &[(u32, u16)], mut at: u32) -> Trace {
    let mut choices = Vec::new();
    while parents[at as usize].0 != u32::MAX {
        choices.push(parents[at as usize].1);
        at = parents[at as usize].0;
    }
    let mut actions = Vec::new();
    let mut s = start(&steps.config);
    let mut path = Vec::new();
    for choice in choices.into_iter().rev() {
        steps.actions(&s, &mut actions);
        let action = actions[usize::from(choice)];
        path.push(action);
        s = steps.apply(&s, action);
    }
    tell(steps, &path)
}

fn tell(steps: &Steps, path: &[Action]) -> Trace {
    let mut s = start(&steps.config);
    let mut words = Vec::new();
    for &action in path {
        words.push(trace::step(&s, action));
        s = steps.apply(&s, action);
    }
    Trace { wrong: s.wrong, steps: words, end: trace::picture(&s) }
}

/// Takes `walks` random walks of at most `length` steps each.
pub fn walk(config: Config, rules: Rules, seed: u64, walks: u64, length: usize) -> Outcome {
    let steps = Steps { config, rules };
    let mut outcome = Outcome { states: 0, complete: false, overflows: 0, violation: None };
    let mut state = seed;
    // SplitMix64: each walk's choices depend on nothing but the seed.
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    let mut actions = Vec::new();
    let mut path = Vec::new();
    for _ in 0..walks {
        let mut s = start(&config);
        path.clear();
        for _ in 0..length {
            steps.actions(&s, &mut actions);
            if actions.is_empty() {
                break;
            }
            let action = actions[(random() % actions.len() as u64) as usize];
            path.push(action);
            s = steps.apply(&s, action);
            outcome.states += 1;
            if s.overflow {
                outcome.overflows += 1;
                break;
            }
            if s.wrong != Wrong::Nothing {
                outcome.violation = Some(tell(&steps, &path));
                return outcome;
            }
        }
    }
    outcome
}

/// Searches a small space whose steps and checks are given: for the models beside the main one.
pub(super) fn explore<S: Copy + Ord>(
    first: S,
    steps: impl Fn(&S, &mut Vec<(String, S)>),
    wrong: impl Fn(&S) -> Option<(Wrong, String)>,
) -> Outcome {
    // Each state with its parent and the step that led to it, in the order of discovery.
    let mut found: Vec<(S, usize, String)> = vec![(first, 0, String::new())];
    let mut seen = BTreeSet::from([first]);
    let mut next = Vec::new();
    let mut at = 0;
    while at < found.len() {
        steps(&found[at].0, &mut next);
        for (words, after) in next.drain(..) {
            if !seen.insert(after) {
                continue;
            }
            found.push((after, at, words));
            let Some((wrong, end)) = wrong(&after) else { continue };
            let mut path = Vec::new();
            let mut back = found.len() - 1;
            while back != 0 {
                path.push(found[back].2.clone());
                back = found[back].1;
            }
            path.reverse();
            return Outcome {
                states: found.len() as u64,
                complete: false,
                overflows: 0,
                violation: Some(Trace { wrong, steps: path, end }),
            };
        }
        at += 1;
    }
    Outcome { states: found.len() as u64, complete: true, overflows: 0, violation: None }
}
