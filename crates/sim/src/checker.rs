//! Was it one disk? A history of overlapping reads, writes and discards is judged sector by sector:
//! is there one order of the operations, each at one moment between its call and its return, in
//! which every read shows the last write?
//!
//! An operation without an outcome (its host died, or the answer was an error) may have happened at
//! any one moment after its call, or never; never twice.
//!
//! How: for each sector, calls and returns are gone through in time. A set of *configurations* is
//! kept: the sector's value, and which of the operations in progress have already happened. An
//! operation is made to happen only when a return demands it (just-in-time linearization, Lowe
//! 2017), a read as soon as it may, and a write without outcome only right before a read that shows
//! it: any order that explains the history can be rearranged into one of these. As values are
//! unique but for zeros, few configurations ever coexist and the cost is close to linear. Sectors
//! between two neighbouring ends of operations have the same calls and returns, and those that also
//! had the same reads are judged once.
//!
//! Beside that: an aligned block of 4 KiB never shows a mixture of two writes that both covered it
//! whole.
//!
//! Invariant: the empty set of configurations means that no order exists: no violation is reported
//! that is none, and none is missed.

use crate::pattern::Tag;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Sectors of a block.
const BLOCK_SECTORS: u64 = 8;
/// Operations of one sector in progress at once.
const PENDING_MAX: usize = 64;
/// Writes without outcome that one sector's reads can show.
const UNKNOWN_MAX: usize = 128;

/// What an operation was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Writes of that tag.
    Write(Tag),
    /// Zeros, written or discarded.
    Zero,
    /// A read; what it showed, a tag a sector, once it has returned.
    Read(Vec<Tag>),
}

impl Kind {
    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Write(_) => "write",
            Self::Zero => "zero",
            Self::Read(_) => "read",
        }
    }
}

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It has not, or nobody knows.
    Unknown,
    /// At that moment, as asked.
    Done(u64),
    /// It surely had no effect.
    Nothing,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Op {
    /// Whose.
    pub client: u32,
    /// What.
    pub kind: Kind,
    /// First sector.
    pub first: u64,
    /// How many.
    pub sectors: u32,
    called: u64,
    end: End,
    /// True times, for people.
    at_ns: (u64, u64),
}

/// What became of an operation, for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It was answered.
    Done,
    /// It was answered with an error; a change may have happened all the same.
    Failed,
    /// It surely had no effect.
    Refused,
    /// Nobody ever heard.
    Unknown,
}

impl Op {
    /// When it was called and, if it was, answered.
    pub fn span_ns(&self) -> (u64, Option<u64>) {
        (self.at_ns.0, Some(self.at_ns.1).filter(|end| *end < u64::MAX))
    }

    /// What became of it.
    pub fn fate(&self) -> Fate {
        match (self.end, self.span_ns().1) {
            (End::Done(_), _) => Fate::Done,
            (End::Nothing, _) => Fate::Refused,
            (End::Unknown, Some(_)) => Fate::Failed,
            (End::Unknown, None) => Fate::Unknown,
        }
    }
}

/// Names an operation of a history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OpIndex(usize);

/// Everything that clients did to one volume.
#[derive(Default)]
pub struct History {
    ops: Vec<Op>,
    moment: u64,
}

/// Why no order exists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// What happened, with the operations around it.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What a check went through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Operations.
    pub ops: usize,
    /// Sectors touched.
    pub sectors: u64,
    /// Sectors that had to be judged by themselves.
    pub judged: u64,
    /// Writes without outcome.
    pub unknown: usize,
}

impl History {
    /// A client calls.
    ///
    /// # Panics
    /// If `sectors` is 0.
    pub fn call(
        &mut self,
        client: u32,
        kind: Kind,
        first: u64,
        sectors: u32,
        now_ns: u64,
    ) -> OpIndex {
        assert!(sectors > 0, "an operation on nothing");
        self.moment += 1;
        let called = self.moment;
        let at_ns = (now_ns, u64::MAX);
        self.ops.push(Op { client, kind, first, sectors, called, end: End::Unknown, at_ns });
        OpIndex(self.ops.len() - 1)
    }

    /// A write, discard or write of zeros has returned without an error.
    pub fn done(&mut self, op: OpIndex, now_ns: u64) {
        self.moment += 1;
        let op = &mut self.ops[op.0];
        op.end = End::Done(self.moment);
        op.at_ns.1 = now_ns;
    }

    /// A read has returned, with these tags.
    pub fn read(&mut self, op: OpIndex, tags: Vec<Tag>, now_ns: u64) {
        assert_eq!(tags.len(), self.ops[op.0].sectors as usize, "a tag a sector");
        self.ops[op.0].kind = Kind::Read(tags);
        self.done(op, now_ns);
    }

    /// It had surely no effect.
    pub fn refused(&mut self, op: OpIndex) {
        self.ops[op.0].end = End::Nothing;
    }

    /// It was answered with an error, which says nothing about what happened.
    pub fn failed(&mut self, op: OpIndex, now_ns: u64) {
        self.ops[op.0].at_ns.1 = now_ns;
    }

    /// All operations, in order of their calls.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Operations so far.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether nobody has called yet.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Operations with an answer.
    pub fn answered(&self) -> usize {
        self.ops.iter().filter(|o| matches!(o.end, End::Done(_))).count()
    }

    /// Searches for an order that explains everything.
    ///
    /// # Errors
    /// The first sector that has none.
    pub fn check(&self) -> Result<Checked, Violation> {
        let mut checked = Checked { ops: self.ops.len(), ..Checked::default() };
        // Reads without an answer and operations without effect say nothing.
        let counts = |o: &Op| match (&o.kind, o.end) {
            (_, End::Nothing) | (Kind::Read(_), End::Unknown) => false,
            (_, End::Done(_) | End::Unknown) => true,
        };
        let is_unknown = |o: &Op| !matches!(o.kind, Kind::Read(_)) && o.end == End::Unknown;
        checked.unknown = self.ops.iter().filter(|o| is_unknown(o)).count();
        let mut ends: BTreeMap<u64, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (i, op) in self.ops.iter().enumerate().filter(|(_, o)| counts(o)) {
            ends.entry(op.first).or_default().0.push(i);
            ends.entry(op.first + u64::from(op.sectors)).or_default().1.push(i);
        }
        let mut here: BTreeSet<usize> = BTreeSet::new();
        let mut from = 0;
        for (at, (begin, end)) in ends {
            if !here.is_empty() {
                self.check_run(&here, from, at, &mut checked)?;
            }
            for i in end {
                here.remove(&i);
            }
            here.extend(begin);
            from = at;
        }
        self.check_blocks()?;
        Ok(checked)
    }

    /// Judges the sectors `from..to`, which have the same operations.
    fn check_run(
        &self,
        ops: &BTreeSet<usize>,
        from: u64,
        to: u64,
        checked: &mut Checked,
    ) -> Result<(), Violation> {
        let mut events: Vec<(u64, usize, bool)> = Vec::with_capacity(ops.len() * 2);
        for &i in ops {
            events.push((self.ops[i].called, i, false));
            if let End::Done(at) = self.ops[i].end {
                events.push((at, i, true));
            }
        }
        events.sort_unstable();
        let reads: Vec<usize> =
            ops.iter().copied().filter(|&i| matches!(self.ops[i].kind, Kind::Read(_))).collect();
        let mut last: Option<Vec<Tag>> = None;
        for sector in from..to {
            checked.sectors += 1;
            let shown: Vec<Tag> = reads.iter().map(|&i| self.value(i, sector)).collect();
            if last.as_ref() == Some(&shown) {
                continue;
            }
            checked.judged += 1;
            self.judge(sector, &events, &shown)?;
            last = Some(shown);
        }
        Ok(())
    }

    /// What an operation writes to, or shows of, a sector.
    fn value(&self, op: usize, sector: u64) -> Tag {
        let op = &self.ops[op];
        match &op.kind {
            Kind::Write(tag) => *tag,
            Kind::Zero => 0,
            Kind::Read(tags) => tags[(sector - op.first) as usize],
        }
    }

    fn judge(
        &self,
        sector: u64,
        events: &[(u64, usize, bool)],
        shown: &[Tag],
    ) -> Result<(), Violation> {
        let mut judge = Judge::default();
        let mut slots: BTreeMap<usize, usize> = BTreeMap::new();
        for &(_, i, is_return) in events {
            let op = &self.ops[i];
            let is_read = matches!(op.kind, Kind::Read(_));
            let value = self.value(i, sector);
            if is_return {
                let slot = slots.remove(&i).expect("it was called first");
                if judge.returns(slot) {
                    continue;
                }
                return Err(self.explain(sector, i, events));
            }
            if op.end == End::Unknown {
                // One that nobody ever saw here need not have happened here.
                if shown.contains(&value) && !judge.unknown(value) {
                    let text = format!("sector {sector}: too many writes without outcome to judge");
                    return Err(Violation { text });
                }
                continue;
            }
            let Some(slot) = judge.calls(is_read, value) else {
                let text = format!("sector {sector}: more than {PENDING_MAX} operations at once");
                return Err(Violation { text });
            };
            slots.insert(i, slot);
        }
        Ok(())
    }

    fn describe(&self, i: usize, sector: u64) -> String {
        let op = &self.ops[i];
        let what = match &op.kind {
            Kind::Write(tag) => format!("writes {tag}"),
            Kind::Zero => "writes 0".into(),
            Kind::Read(_) => format!("reads {}", self.value(i, sector)),
        };
        let end = match op.end {
            End::Done(at) => format!("#{at} (+{:.3} ms)", op.at_ns.1 as f64 / 1e6),
            End::Unknown => "outcome unknown".into(),
            End::Nothing => "no effect".into(),
        };
        format!(
            "client {:<4} {what:<14} #{} (+{:.3} ms) to {end}, sectors {}+{}",
            op.client,
            op.called,
            op.at_ns.0 as f64 / 1e6,
            op.first,
            op.sectors
        )
    }

    fn explain(&self, sector: u64, culprit: usize, events: &[(u64, usize, bool)]) -> Violation {
        let End::Done(at) = self.ops[culprit].end else { unreachable!("only returns fail") };
        let mut text = format!(
            "sector {sector} (byte {}): no order explains this operation:\n    {}\n  among these:",
            sector * 512,
            self.describe(culprit, sector)
        );
        let value = self.value(culprit, sector);
        let mut around: Vec<usize> =
            events.iter().filter(|(t, _, r)| !r && *t < at).map(|(_, i, _)| *i).collect();
        let cut = around.len().saturating_sub(24);
        let writer = around[..cut].iter().copied().filter(|&i| self.value(i, sector) == value);
        let writer: Vec<usize> = writer.collect();
        around.drain(..cut);
        for i in writer.into_iter().rev().take(6).rev().chain(around) {
            text += &format!("\n    {}", self.describe(i, sector));
        }
        Violation { text }
    }

    fn check_blocks(&self) -> Result<(), Violation> {
        let mut writers: BTreeMap<Tag, usize> = BTreeMap::new();
        for (i, op) in self.ops.iter().enumerate() {
            if let Kind::Write(tag) = op.kind {
                assert!(writers.insert(tag, i).is_none(), "tag {tag} was written twice");
            }
        }
        let covers = |tag: Tag, block: u64| {
            writers.get(&tag).is_some_and(|&i| {
                let op = &self.ops[i];
                let first = block * BLOCK_SECTORS;
                op.first <= first && first + BLOCK_SECTORS <= op.first + u64::from(op.sectors)
            })
        };
        for (i, op) in self.ops.iter().enumerate() {
            let (Kind::Read(tags), End::Done(_)) = (&op.kind, op.end) else { continue };
            let last = op.first + u64::from(op.sectors);
            let mut block = op.first.div_ceil(BLOCK_SECTORS);
            while (block + 1) * BLOCK_SECTORS <= last {
                let from = (block * BLOCK_SECTORS - op.first) as usize;
                let mut seen = tags[from..from + BLOCK_SECTORS as usize].to_vec();
                seen.sort_unstable();
                seen.dedup();
                if seen.len() > 1 {
                    let whole: Vec<Tag> =
                        seen.iter().copied().filter(|&t| covers(t, block)).collect();
                    if whole.len() > 1 {
                        let text = format!(
                            "block {block} shows a mixture of writes {whole:?}, each of which \
                             covered it whole:\n    {}",
                            self.describe(i, block * BLOCK_SECTORS)
                        );
                        return Err(Violation { text });
                    }
                }
                block += 1;
            }
        }
        Ok(())
    }
}

/// One way in which things may stand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Configuration {
    value: Tag,
    /// Operations in progress (by slot) that have happened.
    happened: u64,
    /// Writes without outcome that have happened.
    used: u128,
}

#[derive(Clone, Copy)]
struct Pending {
    is_read: bool,
    value: Tag,
}

struct Judge {
    configurations: Vec<Configuration>,
    pending: [Option<Pending>; PENDING_MAX],
    unknown: Vec<Tag>,
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            configurations: vec![Configuration { value: 0, happened: 0, used: 0 }],
            pending: [None; PENDING_MAX],
            unknown: Vec::new(),
        }
    }
}

impl Judge {
    fn calls(&mut self, is_read: bool, value: Tag) -> Option<usize> {
        let slot = self.pending.iter().position(Option::is_none)?;
        self.pending[slot] = Some(Pending { is_read, value });
        if is_read {
            for c in &mut self.configurations {
                if c.value == value {
                    c.happened |= 1 << slot;
                }
            }
        }
        Some(slot)
    }

    fn unknown(&mut self, value: Tag) -> bool {
        self.unknown.push(value);
        self.unknown.len() <= UNKNOWN_MAX
    }

    /// Reads happen as soon as they may: that never spoils anything.
    fn settle(&self, mut c: Configuration) -> Configuration {
        for (slot, p) in self.pending.iter().enumerate() {
            if matches!(p, Some(p) if p.is_read && p.value == c.value) {
                c.happened |= 1 << slot;
            }
        }
        c
    }

    /// False: no configuration lets it return.
    fn returns(&mut self, slot: usize) -> bool {
        let bit = 1 << slot;
        let mut next = Vec::new();
        let mut seen = BTreeSet::new();
        let mut work = std::mem::take(&mut self.configurations);
        while let Some(c) = work.pop() {
            if c.happened & bit != 0 {
                next.push(Configuration { happened: c.happened & !bit, ..c });
                continue;
            }
            if !seen.insert(c) {
                continue;
            }
            for (other, p) in self.pending.iter().enumerate() {
                let Some(p) = p else { continue };
                if p.is_read || c.happened & (1 << other) != 0 {
                    continue;
                }
                let happened = c.happened | 1 << other;
                work.push(self.settle(Configuration { value: p.value, happened, ..c }));
            }
            for (n, value) in self.unknown.iter().enumerate() {
                let wanted = |(slot, p): (usize, &Option<Pending>)| {
                    matches!(p, Some(p) if p.is_read && p.value == *value)
                        && c.happened & (1 << slot) == 0
                };
                if c.used & (1 << n) == 0 && self.pending.iter().enumerate().any(wanted) {
                    let used = c.used | 1 << n;
                    work.push(self.settle(Configuration { value: *value, used, ..c }));
                }
            }
        }
        self.pending[slot] = None;
        next.sort_unstable();
        next.dedup();
        self.configurations = next;
        !self.configurations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Kind};
    use crate::rng::Rng;

    /// A tiny language: `w1( )w1` call and return of a write of 1; `r5=1( ... )r5`; `z1(`, `)z1`;
    /// `w1?` makes its outcome unknown by never returning.
    fn check(script: &str) -> Result<(), String> {
        let mut h = History::default();
        let mut open = std::collections::BTreeMap::new();
        for word in script.split_whitespace() {
            if let Some(call) = word.strip_suffix('(') {
                let (name, value) = call.split_once('=').unwrap_or((call, ""));
                let kind = match &name[..1] {
                    "w" => Kind::Write(name[1..].parse().unwrap()),
                    "z" => Kind::Zero,
                    "r" => Kind::Read(vec![]),
                    _ => panic!("{word}"),
                };
                let op = h.call(0, kind, 3, 1, 0);
                open.insert(name.to_owned(), (op, value.to_owned()));
            } else if let Some(name) = word.strip_prefix(')') {
                let (op, value) = open.remove(name).unwrap();
                match &name[..1] {
                    "r" => h.read(op, vec![value.parse().unwrap()], 0),
                    _ => h.done(op, 0),
                }
            } else {
                panic!("{word}");
            }
        }
        h.check().map(|_| ()).map_err(|v| v.text)
    }

    #[test]
    fn histories_of_one_disk_are_accepted() {
        for good in [
            "",
            "r1=0( )r1",
            "w1( )w1 r1=1( )r1",
            // Concurrent: either value, but in one order.
            "w1( r1=1( )r1 r2=1( )r2 )w1",
            "w1( r1=0( )r1 r2=1( )r2 )w1",
            "w1( w2( )w1 )w2 r1=1( )r1",
            "w1( w2( )w1 )w2 r1=2( )r1",
            // Unknown outcome: at any later time, or never.
            "w1( r1=0( )r1 r2=1( )r2",
            "w1( r1=0( )r1 r2=0( )r2",
            "w1( w2( )w2 r1=2( )r1 r2=1( )r2",
            // Zeros are not unique.
            "w1( )w1 z1( )z1 r1=0( )r1 w2( )w2 z2( )z2 r2=0( )r2",
            "w1( )w1 z1( r1=1( )r1 r2=0( )r2",
            // A read that began before the write may still show the old value after another.
            "r1=0( w1( )w1 )r1 r2=1( )r2",
            // Two overlapping reads of a concurrent write in either order of return.
            "w1( r1=1( r2=0( )r2 )r1 )w1",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn histories_of_no_disk_are_refused() {
        for bad in [
            // Stale read.
            "w1( )w1 w2( )w2 r1=1( )r1",
            // Lost write.
            "w1( )w1 r1=0( )r1",
            // Never written.
            "r1=7( )r1",
            // From the future.
            "r1=1( )r1 w1( )w1",
            // Appears and vanishes.
            "w1( r1=1( )r1 r2=0( )r2 )w1",
            // The same, of a write without outcome.
            "w1( r1=1( )r1 r2=0( )r2",
            // v1 v2 v1, of a write that was applied twice.
            "w1( )w1 r1=1( )r1 w2( )w2 r2=2( )r2 r3=1( )r3",
            "w1( r1=1( )r1 w2( )w2 r2=2( )r2 r3=1( )r3",
            // Concurrent writes seen in two orders.
            "w1( w2( )w1 )w2 r1=1( )r1 r2=2( )r2 r3=1( )r3",
            // A discard without outcome that happens, unhappens.
            "w1( )w1 z1( r1=0( )r1 r2=1( )r2",
            // A zero that nobody wrote any more.
            "w1( )w1 z1( )z1 w2( )w2 r1=0( )r1",
            // One discard without outcome explains zeros once only.
            "w1( )w1 z1( r1=0( )r1 w2( )w2 r2=2( )r2 r3=0( )r3",
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_violation_tells_where_and_what() {
        let told = check("w1( )w1 w2( )w2 r1=1( )r1").unwrap_err();
        assert!(told.contains("sector 3") && told.contains("reads 1"), "{told}");
        assert!(told.contains("writes 2"), "{told}");
    }

    #[test]
    fn a_block_is_never_a_mixture_of_two_whole_writes() {
        let mut h = History::default();
        let w1 = h.call(0, Kind::Write(1), 0, 16, 0);
        let w2 = h.call(1, Kind::Write(2), 8, 8, 0);
        let r = h.call(2, Kind::Read(vec![]), 8, 8, 0);
        // Each sector by itself is fine while both are in progress.
        h.read(r, vec![1, 1, 2, 2, 1, 1, 1, 1], 0);
        h.done(w1, 0);
        h.done(w2, 0);
        assert!(h.check().unwrap_err().text.contains("mixture"));
        // A write of part of a block may show in part of it.
        let mut h = History::default();
        let w1 = h.call(0, Kind::Write(1), 0, 8, 0);
        h.done(w1, 0);
        let w2 = h.call(0, Kind::Write(2), 3, 1, 0);
        h.done(w2, 0);
        let r = h.call(2, Kind::Read(vec![]), 0, 8, 0);
        h.read(r, vec![1, 1, 1, 2, 1, 1, 1, 1], 0);
        assert!(h.check().is_ok());
    }

    #[test]
    fn random_histories_of_a_real_register_pass_and_a_changed_read_is_found() {
        let mut found = 0;
        for seed in 0..300 {
            let mut rng = Rng::named(seed, "register");
            let mut h = History::default();
            let (mut value, mut next) = ([0u32; 8], 1);
            // Each operation has a call, an effect and a return, mixed with those of others.
            type Running = (super::OpIndex, Kind, u64, u32, Option<Vec<u32>>, bool);
            let mut running: Vec<Running> = vec![];
            for _ in 0..120 {
                if running.len() < 5 && rng.below(2) == 0 {
                    let first = rng.below(8);
                    let sectors = rng.within(1, 8 - first) as u32;
                    let kind = match rng.below(10) {
                        0 => Kind::Zero,
                        1..5 => {
                            next += 1;
                            Kind::Write(next)
                        }
                        _ => Kind::Read(vec![]),
                    };
                    let op = h.call(running.len() as u32, kind.clone(), first, sectors, 0);
                    running.push((op, kind, first, sectors, None, false));
                } else if !running.is_empty() {
                    let i = rng.below(running.len() as u64) as usize;
                    let (op, kind, first, sectors, seen, happened) = &mut running[i];
                    let range = *first as usize..*first as usize + *sectors as usize;
                    if !*happened {
                        *happened = true;
                        match kind {
                            Kind::Write(tag) => value[range].fill(*tag),
                            Kind::Zero => value[range].fill(0),
                            Kind::Read(_) => *seen = Some(value[range].to_vec()),
                        }
                        continue;
                    }
                    let op = *op;
                    match seen.take() {
                        Some(tags) => h.read(op, tags, 0),
                        // One in ten answers is lost.
                        None if rng.below(10) > 0 => h.done(op, 0),
                        None => {}
                    }
                    running.remove(i);
                }
            }
            h.check().unwrap_or_else(|v| panic!("seed {seed}: {v}"));
            // Another value in one read: nearly always impossible.
            let reads: Vec<usize> = (0..h.ops.len())
                .filter(|&i| matches!(&h.ops[i].kind, Kind::Read(t) if !t.is_empty()))
                .collect();
            let i = *rng.pick(&reads);
            if let Kind::Read(tags) = &mut h.ops[i].kind {
                tags[0] = if tags[0] > 1 { tags[0] - 1 } else { next + 1 };
            }
            found += u32::from(h.check().is_err());
        }
        assert!(found > 250, "{found} of 300");
    }
}
