//! Which seeds are worth a run: those that promise what has rarely been reached.
//!
//! Before it runs, of a seed only its *traits* are known: the kinds of fault that it may meet, its
//! features and its hardware. After a run, what it reached (*goals*: cells of the matrix fault x
//! activity, and marks) counts for every pair of its traits. Of a few fresh seeds that one is run
//! whose pairs of traits promise most of the goals that are rare so far. What no run has reached
//! promises nothing, so every fourth seed is taken as it comes.
//!
//! Nothing here changes what a seed does.

use crate::activity::cell_count;
use crate::disk::DiskProfile;
use crate::feature::Features;
use crate::net::NetProfile;
use crate::run::{Options, Outcome, Setup, marks};
use std::ops::Range;

/// Of so many seeds one is chosen.
const CANDIDATES: u64 = 32;
/// One seed of so many is taken as it comes.
const AS_IT_COMES: u64 = 4;
/// A goal that was reached more often than in one run of so many is nothing special.
const RARE: u32 = 16;
/// Of those that are special the rarest so many are looked for: choosing is to cost little.
const GOALS: usize = 48;
/// Kinds of fault, features, and those of [`traits`] that are about hardware.
const TRAITS: usize = 64 + Features::COUNT + 5;

/// What has been reached so far, and by which traits.
pub struct Reach {
    runs: u32,
    marks: Vec<&'static str>,
    /// Runs that reached it, by goal.
    reached: Vec<u32>,
    /// By pair of traits.
    of_pair: Vec<OfPair>,
    taken: u64,
}

#[derive(Clone, Default)]
struct OfPair {
    runs: u32,
    /// Of them, those that reached a goal; empty before the first run.
    reached: Vec<u32>,
}

impl Default for Reach {
    fn default() -> Self {
        let mut marks: Vec<_> = marks().collect();
        marks.sort_unstable();
        let goals = cell_count() + marks.len();
        Self {
            runs: 0,
            marks,
            reached: vec![0; goals],
            of_pair: vec![OfPair::default(); TRAITS * TRAITS],
            taken: 0,
        }
    }
}

impl Reach {
    /// Takes the next seed to run out of `seeds`, and leaves out those that promise less.
    pub fn next(&mut self, seeds: &mut Range<u64>, options: &Options) -> Option<u64> {
        self.taken += 1;
        let few = if self.taken.is_multiple_of(AS_IT_COMES) { 1 } else { CANDIDATES };
        let candidates = seeds.start..seeds.end.min(seeds.start.saturating_add(few));
        seeds.start = candidates.end;
        if few == 1 {
            return candidates.last();
        }
        let goals = self.rarest();
        let promise = |seed| {
            let traits = traits(&Setup::of_seed(seed, options), seed, options);
            (self.promise(&goals, &traits), seed)
        };
        // Of equals the first.
        candidates.rev().map(promise).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, seed)| seed)
    }

    /// The goals that are worth most, and how many runs have reached each.
    fn rarest(&self) -> Vec<(usize, u32)> {
        let all = self.reached.iter().copied().enumerate();
        let mut rare: Vec<_> = all.filter(|&(_, n)| n > 0 && n * RARE <= self.runs).collect();
        rare.sort_by_key(|&(_, n)| n);
        rare.truncate(GOALS);
        rare
    }

    /// Counts a run.
    pub fn learn(&mut self, outcome: &Outcome, options: &Options) {
        let cells = outcome.cells.iter().enumerate().filter(|(_, n)| **n > 0).map(|(at, _)| at);
        let first = outcome.cells.len();
        let of_marks = outcome.marks.iter().filter_map(|name| self.marks.binary_search(name).ok());
        let goals: Vec<usize> = cells.chain(of_marks.map(|at| first + at)).collect();
        self.runs += 1;
        goals.iter().for_each(|&goal| self.reached[goal] += 1);
        let all = self.reached.len();
        for pair in pairs(&traits(&Setup::of_seed(outcome.seed, options), outcome.seed, options)) {
            let of_pair = &mut self.of_pair[pair];
            of_pair.runs += 1;
            of_pair.reached.resize(all, 0);
            goals.iter().for_each(|&goal| of_pair.reached[goal] += 1);
        }
    }

    /// How many of some goals a seed with these traits may be expected to reach, each by how rare
    /// it is.
    fn promise(&self, goals: &[(usize, u32)], traits: &[usize]) -> f64 {
        let mut likely = vec![0.0; goals.len()];
        for of_pair in pairs(traits).map(|pair| &self.of_pair[pair]).filter(|of| of.runs > 0) {
            // Of a pair that was hardly tried little is known.
            let tried = f64::from(of_pair.runs + 4);
            for (likely, (goal, _)) in likely.iter_mut().zip(goals) {
                *likely = f64::max(*likely, f64::from(of_pair.reached[*goal]) / tried);
            }
        }
        likely.iter().zip(goals).map(|(likely, (_, n))| likely / f64::from(*n)).sum()
    }

    /// Goals that at most `most` runs reached, and all.
    pub fn rare(&self, most: u32) -> (usize, usize) {
        (self.reached.iter().filter(|n| **n <= most).count(), self.reached.len())
    }
}

/// What is known of a seed before it runs, each below [`TRAITS`].
fn traits(setup: &Setup, seed: u64, options: &Options) -> Vec<usize> {
    let hardware = &setup.hardware;
    let mut traits: Vec<usize> = setup.kinds(seed, options).kinds().map(|k| k as usize).collect();
    let has = |bit: &usize| setup.features.bits() >> bit & 1 == 1;
    traits.extend((0..Features::COUNT).filter(has).map(|bit| 64 + bit));
    let of_machines = [
        hardware.hosts > 3,
        hardware.disks > 1,
        hardware.disk == DiskProfile::SATA,
        hardware.net == NetProfile::GBIT_1,
        setup.plan.victim.is_some(),
    ];
    let of_machines = of_machines.iter().enumerate().filter(|(_, has)| **has);
    traits.extend(of_machines.map(|(at, _)| 64 + Features::COUNT + at));
    traits
}

/// Two traits at a time, and each by itself.
fn pairs(traits: &[usize]) -> impl Iterator<Item = usize> {
    traits.iter().enumerate().flat_map(|(n, a)| traits[n..].iter().map(move |b| a * TRAITS + b))
}

#[cfg(test)]
mod tests {
    use super::{AS_IT_COMES, CANDIDATES, Reach};
    use crate::fault::FaultKind;
    use crate::run::{Options, Outcome, Setup, run_one};

    #[test]
    fn seeds_that_promise_what_is_rare_come_first_and_every_fourth_as_it_comes() {
        let options = Options { ops: 10, ..Options::default() };
        let mut reach = Reach::default();
        let example = run_one(7, &options);
        let kind = FaultKind::StaleDisk;
        let may = |seed: u64| Setup::of_seed(seed, &options).kinds(seed, &options).has(kind);
        // In these runs whoever could meet a stale disk came by the mark, which few could.
        for seed in (0..400).filter(|seed| !may(*seed) || seed % 8 == 0) {
            let marks = if may(seed) { vec!["scrub.by_itself"] } else { Vec::new() };
            let cells = vec![0; example.cells.len()];
            reach.learn(&Outcome { seed, marks, cells, ..example.clone() }, &options);
        }
        let (mut seeds, mut chosen) = (1_000..9_000, 0);
        for n in 1..=20 {
            let from = seeds.start;
            let best = reach.next(&mut seeds, &options).expect("there are more");
            if n % AS_IT_COMES == 0 {
                assert_eq!((best, seeds.start), (from, from + 1), "as it comes");
                continue;
            }
            assert_eq!(seeds.start, from + CANDIDATES);
            assert!(may(best) || !(from..from + CANDIDATES).any(may), "{best} of {from}..");
            chosen += u32::from(may(best));
        }
        assert!(chosen > 10, "{chosen} of 15");
        let mut left = 5..6;
        assert_eq!(reach.next(&mut left, &options), Some(5));
        assert_eq!(reach.next(&mut left, &options), None);
    }
}
