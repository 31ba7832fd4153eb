//! What a seed switches on, and how often.
//!
//! Invariant: the [`Plan`] of a seed stays within what the policy promises to survive. Damage to
//! the medium is confined to the disks of one host (the *victim*), and in such a run nothing may
//! push another host's copies out: that all hosts restart at once and are soon back does not. The
//! other runs may do anything to any host that keeps what a medium has accepted as durable.

use super::kind::{ASPECTS, FIRST, FaultKind, FaultSet};
use super::subset::FaultSubset;
use crate::rng::{MUTED, Rng};
use atoll_world::Nanos;

/// How often the operations of one disk go wrong, in parts per million of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskRates {
    /// A read fails.
    pub read_error: u32,
    /// A write fails.
    pub write_error: u32,
    /// A flush fails.
    pub flush_error: u32,
    /// The device says that it is full.
    pub full: u32,
    /// A write is acknowledged and not made.
    pub lost: u32,
    /// A write is acknowledged and made in part.
    pub torn: u32,
    /// A write goes elsewhere.
    pub misdirected_write: u32,
    /// A read comes from elsewhere.
    pub misdirected_read: u32,
    /// An operation takes 10 to 1000 times as long.
    pub slow: u32,
}

/// How often packets go wrong, in parts per million of packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetRates {
    /// The connection breaks.
    pub lost: u32,
    /// A bit of the frame is flipped.
    pub damaged: u32,
    /// It waits 1 to 1000 ms on its way, and what is behind it with it.
    pub delayed: u32,
    /// The connection breaks right after it has arrived.
    pub answer_lost: u32,
}

/// How often calls of the directory go wrong, in parts per million of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DirectoryRates {
    /// It is refused.
    pub unavailable: u32,
    /// It takes 10 to 1000 times as long.
    pub slow: u32,
    /// It is carried out, the answer lost.
    pub answer_lost: u32,
    /// It is carried out up to 10 s after its caller was told that the outcome is unknown.
    pub late: u32,
    /// A read shows an older state.
    pub stale: u32,
    /// A watch event comes late, twice or never.
    pub watch: u32,
    /// A watch tells old events again.
    pub rewound: u32,
    /// A watch cannot go on, or tells not all of what has happened.
    pub gap: u32,
    /// A name is not seen as alive.
    pub hint: u32,
    /// Of those transactions behind which no key has the newest revision: the directory goes on
    /// from the newest revision that a key has.
    pub revision_back: u32,
}

/// What a seed does to a cluster.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kinds that this seed switches on.
    pub on: FaultSet,
    /// The one host whose media may be damaged; then nothing drops another host's copies.
    pub victim: Option<u16>,
    /// For the victim's disks.
    pub medium: DiskRates,
    /// For every disk.
    pub disk: DiskRates,
    /// For every connection.
    pub net: NetRates,
    /// For the directory.
    pub directory: DirectoryRates,
    /// Mean time between timed events (crashes, pauses, partitions, ...).
    pub event_every: Nanos,
    /// Kinds of timed events, to pick from; empty: none.
    pub events: Vec<FaultKind>,
    /// Those that came later, with a stream of chance of their own.
    pub later_events: Vec<FaultKind>,
    /// More is damaged than the policy promises to survive: what is left is "refuses, never lies".
    pub beyond: bool,
    /// What of all that is carried out.
    pub part: FaultSubset,
    /// What the rates become, and when: a part may have a kind for a while only.
    pub later: Vec<(Nanos, Plan)>,
}

/// Kinds that damage what a medium had accepted.
pub const MEDIUM: &[FaultKind] = &[
    FaultKind::LatentSector,
    FaultKind::BitFlip,
    FaultKind::MisdirectedWrite,
    FaultKind::MisdirectedRead,
    FaultKind::LostWrite,
    FaultKind::TornWrite,
];

/// Kinds that happen at a moment, to the cluster, rather than to an operation.
pub const TIMED: &[FaultKind] = &[
    FaultKind::Kill,
    FaultKind::KillAtAwait,
    FaultKind::PowerLoss,
    FaultKind::ClusterPowerLoss,
    FaultKind::ShortPause,
    FaultKind::LongPause,
    FaultKind::Partition,
    FaultKind::SlowLink,
    FaultKind::ClockRate,
    FaultKind::CpuStarved,
    FaultKind::DiskHang,
    FaultKind::DiskGone,
    FaultKind::DiskSlow,
    FaultKind::DirectoryUnavailable,
];

impl Plan {
    /// No fault at all.
    pub fn calm() -> Self {
        Self {
            on: FaultSet::NONE,
            victim: None,
            medium: DiskRates::default(),
            disk: DiskRates::default(),
            net: NetRates::default(),
            directory: DirectoryRates::default(),
            event_every: Nanos::NEVER,
            events: Vec::new(),
            later_events: Vec::new(),
            beyond: false,
            part: FaultSubset::default(),
            later: Vec::new(),
        }
    }

    /// What `seed` does to `hosts` hosts, of the kinds in `allowed`: each is on with probability
    /// one half, with a rate of its own, so that over many seeds every combination is met, also
    /// those in which a frequent fault would hide a rare one.
    pub fn of_seed(seed: u64, hosts: u16, allowed: FaultSet) -> Self {
        Self::of_seed_muting(seed, hosts, allowed, FaultSet::NONE)
    }

    /// The same with the rates of the kinds in `muted` [`MUTED`].
    pub(crate) fn of_seed_muting(
        seed: u64,
        hosts: u16,
        allowed: FaultSet,
        muted: FaultSet,
    ) -> Self {
        let mut rng = Rng::named(seed, "faults");
        let mut on = FaultSet::NONE;
        for &kind in &FaultKind::ALL[..FIRST] {
            if rng.below(2) == 0 && allowed.has(kind) {
                on = on.with(kind);
            }
        }
        // One run in three damages media; the others do everything else.
        let damages = rng.below(3) == 0 && MEDIUM.iter().any(|k| on.has(*k));
        let drawn = on;
        let victim = damages.then(|| rng.below(u64::from(hosts)) as u16);
        for kind in FaultKind::ALL {
            let medium = MEDIUM.contains(kind);
            // What is harmless to other hosts' copies while one host's are damaged.
            let quiet = matches!(
                kind,
                FaultKind::DirectoryStaleRead
                    | FaultKind::WatchOdd
                    | FaultKind::ClockRate
                    | FaultKind::DirectorySlow
                    | FaultKind::ReadError
                    // On the victim's disks only.
                    | FaultKind::WriteError
                    | FaultKind::FlushError
                    | FaultKind::DiskFull
                    // Of the victim itself only, see `Machines::befall`.
                    | FaultKind::Kill
                    | FaultKind::KillAtAwait
                    | FaultKind::PowerLoss
            );
            if (medium && !damages) || (damages && !medium && !quiet) {
                on = on.without(*kind);
            }
        }
        let mut rate = |kind: FaultKind, most: u64| {
            let ppm = rng.span(Nanos(20), Nanos(most)).0 as u32;
            match (on.has(kind), muted.has(kind)) {
                (true, true) => ppm | MUTED,
                (true, false) => ppm,
                (false, _) => 0,
            }
        };
        let medium = DiskRates {
            read_error: rate(FaultKind::ReadError, 5_000),
            write_error: if damages { rate(FaultKind::WriteError, 300) } else { 0 },
            flush_error: if damages { rate(FaultKind::FlushError, 300_000) } else { 0 },
            full: if damages { rate(FaultKind::DiskFull, 200) } else { 0 },
            lost: rate(FaultKind::LostWrite, 5_000),
            torn: rate(FaultKind::TornWrite, 5_000),
            misdirected_write: rate(FaultKind::MisdirectedWrite, 5_000),
            misdirected_read: rate(FaultKind::MisdirectedRead, 5_000),
            ..DiskRates::default()
        };
        let disk = DiskRates {
            read_error: if damages { 0 } else { rate(FaultKind::ReadError, 2_000) },
            write_error: if damages { 0 } else { rate(FaultKind::WriteError, 300) },
            flush_error: if damages { 0 } else { rate(FaultKind::FlushError, 300_000) },
            full: if damages { 0 } else { rate(FaultKind::DiskFull, 200) },
            slow: rate(FaultKind::DiskSlow, 5_000),
            ..DiskRates::default()
        };
        let net = NetRates {
            lost: rate(FaultKind::ConnectionLost, 3_000),
            damaged: rate(FaultKind::FrameDamaged, 2_000),
            delayed: rate(FaultKind::PacketDelayed, 5_000),
            ..NetRates::default()
        };
        let directory = DirectoryRates {
            unavailable: rate(FaultKind::DirectoryUnavailable, 100_000),
            slow: rate(FaultKind::DirectorySlow, 200_000),
            answer_lost: rate(FaultKind::DirectoryAnswerLost, 100_000),
            late: rate(FaultKind::DirectoryLate, 100_000),
            stale: rate(FaultKind::DirectoryStaleRead, 300_000),
            watch: rate(FaultKind::WatchOdd, 300_000),
            // Drawn below, each from its own stream.
            ..DirectoryRates::default()
        };
        let timed = |k: &FaultKind| TIMED.contains(k) && on.has(*k);
        let mut events: Vec<FaultKind> = FaultKind::ALL.iter().copied().filter(timed).collect();
        for kind in [FaultKind::LatentSector, FaultKind::BitFlip] {
            if on.has(kind) {
                events.push(kind);
            }
        }
        let event_every = rng.span(Nanos::from_ms(100), Nanos::from_secs(8));
        let later_events = Vec::new();
        let mut plan = Self {
            on,
            victim,
            medium,
            disk,
            net,
            directory,
            event_every,
            events,
            later_events,
            beyond: false,
            part: FaultSubset::default(),
            later: Vec::new(),
        };
        for &kind in &FaultKind::ALL[FIRST..] {
            if allowed.has(kind) && !ASPECTS.contains(&kind) {
                plan.add_later(kind, muted.has(kind), &mut Rng::named(seed, kind.name()));
            }
        }
        // An older content is damage; disks in each other's place lose nothing.
        for (kind, fits) in [(FaultKind::StaleDisk, damages), (FaultKind::SwappedDisks, true)] {
            plan.on = plan.on.without(kind);
            if drawn.has(kind) && fits {
                plan.on = plan.on.with(kind);
                plan.later_events.push(kind);
            }
        }
        plan
    }

    /// Perhaps switches a kind on that came later.
    fn add_later(&mut self, kind: FaultKind, muted: bool, rng: &mut Rng) {
        // Those that cost the victim its disk or push other hosts' copies out have their runs.
        let fits = match kind {
            FaultKind::DiskEmptied => self.victim.is_some(),
            FaultKind::AnswerLost
            | FaultKind::LaneStalled
            | FaultKind::OrderlyStop
            | FaultKind::ShardStarved
            | FaultKind::DirectoryRevisionBack => self.victim.is_none(),
            FaultKind::PartitionAbrupt => self.on.has(FaultKind::Partition),
            _ => true,
        };
        if rng.below(2) == 0 || !fits {
            return;
        }
        self.on = self.on.with(kind);
        let mut rate = |most: u64| {
            let ppm = rng.span(Nanos(20), Nanos(most)).0 as u32;
            if muted { ppm | MUTED } else { ppm }
        };
        match kind {
            FaultKind::AnswerLost => self.net.answer_lost = rate(3_000),
            FaultKind::WatchRewound => self.directory.rewound = rate(300_000),
            FaultKind::WatchGap => self.directory.gap = rate(300_000),
            FaultKind::HintOdd => self.directory.hint = rate(500_000),
            FaultKind::DirectoryRevisionBack => self.directory.revision_back = rate(1_000_000),
            // A way in which the partitions of this seed begin; what has moments of its own.
            FaultKind::PartitionAbrupt | FaultKind::KillAtMark | FaultKind::KillAtStep => {}
            // See `Plan::of_shards`.
            FaultKind::ShardStarved => {}
            _ => self.later_events.push(kind),
        }
    }

    /// Hosts have up to so many shards: what can befall one of several does, or cannot.
    pub(crate) fn of_shards(&mut self, shards: u8) {
        if shards == 1 {
            self.on = self.on.without(FaultKind::ShardStarved);
        } else if self.on.has(FaultKind::ShardStarved) {
            self.events.push(FaultKind::ShardStarved);
        }
    }

    /// Operations of the victim's disks go wrong so many times as often.
    pub(crate) fn make_harsher(&mut self, times: u32) {
        let medium = &mut self.medium;
        for rate in [
            &mut medium.lost,
            &mut medium.torn,
            &mut medium.misdirected_write,
            &mut medium.misdirected_read,
        ] {
            *rate = ((*rate & !MUTED) * times) | (*rate & MUTED);
        }
        self.later.iter_mut().for_each(|(_, plan)| plan.make_harsher(times));
    }

    /// Media of all hosts damaged, and nothing else that could hide it: beyond any promise but
    /// that what is returned is right. Only damage that leaves a trace: what every copy of a block
    /// has lost without one, nobody can know of.
    pub fn beyond(seed: u64) -> Self {
        let mut rng = Rng::named(seed, "beyond");
        let mut plan = Self { beyond: true, ..Self::calm() };
        for kind in [FaultKind::BitFlip, FaultKind::LatentSector] {
            plan.on = plan.on.with(kind);
            plan.events.push(kind);
        }
        plan.disk.read_error = rng.below(20_000) as u32;
        plan.disk.misdirected_read = rng.below(5_000) as u32;
        for kind in [FaultKind::DiskHang, FaultKind::ShortPause, FaultKind::LongPause] {
            if rng.below(2) == 0 {
                plan.on = plan.on.with(kind);
                plan.events.push(kind);
            }
        }
        plan.event_every = rng.span(Nanos::from_ms(20), Nanos::from_secs(1));
        plan
    }

    /// What `seed` does, of the kinds in `allowed`, and of that a part.
    pub fn of_part(seed: u64, hosts: u16, allowed: FaultSet, part: &FaultSubset) -> Self {
        let at = |moment| Self::of_seed_muting(seed, hosts, allowed, part.muted_at(moment));
        let mut moments: Vec<Nanos> = part.windows.iter().flat_map(|w| [w.1, w.2]).collect();
        moments.retain(|m| *m > Nanos::ZERO && *m < Nanos::NEVER);
        moments.sort();
        moments.dedup();
        let mut plan = at(Nanos::ZERO);
        plan.later = moments.into_iter().map(|moment| (moment, at(moment))).collect();
        plan.part = part.clone();
        plan
    }

    /// Whether operations, packets or calls go wrong in this way at some rate.
    pub fn has_rate(seed: u64, hosts: u16, allowed: FaultSet, kind: FaultKind) -> bool {
        let muting = |muted| {
            let plan = Self::of_seed_muting(seed, hosts, allowed, muted);
            (plan.medium, plan.disk, plan.net, plan.directory)
        };
        muting(FaultSet::NONE) != muting(FaultSet::NONE.with(kind))
    }
}

#[cfg(test)]
mod tests {
    use super::{ASPECTS, FaultKind, FaultSet, FaultSubset, MEDIUM, MUTED, Nanos, Plan};

    #[test]
    fn plans_keep_damage_apart_from_everything_that_drops_copies() {
        let mut reached = FaultSet::NONE;
        let mut damaging = 0;
        for seed in 0..2000 {
            let plan = Plan::of_seed(seed, 3, FaultSet::ALL);
            let medium = plan.on.kinds().any(|k| MEDIUM.contains(&k));
            assert_eq!(medium, plan.victim.is_some(), "seed {seed}");
            if medium {
                damaging += 1;
                assert!(!plan.on.has(FaultKind::Partition) && plan.disk.write_error == 0);
            }
            for kind in plan.on.kinds() {
                reached = reached.with(kind);
            }
        }
        assert!((400..900).contains(&damaging), "{damaging}");
        assert_eq!(reached.kinds().count(), FaultKind::ALL.len() - ASPECTS.len());
    }
    #[test]
    fn a_shard_is_starved_where_there_are_several() {
        let kind = FaultKind::ShardStarved;
        let starves = |shards| {
            let plans = (0..400).map(|seed| Plan::of_seed(seed, 3, FaultSet::ALL));
            let starves = |mut plan: Plan| {
                plan.of_shards(shards);
                assert_eq!(plan.on.has(kind), plan.events.contains(&kind));
                assert!(!plan.on.has(kind) || plan.victim.is_none());
                plan.on.has(kind)
            };
            plans.map(starves).filter(|starves| *starves).count()
        };
        assert_eq!(starves(1), 0);
        assert!((80..200).contains(&starves(3)));
    }
    #[test]
    fn a_part_has_the_same_plan_with_something_muted() {
        let all = FaultSet::ALL;
        let seed = (0..).find(|s| Plan::of_seed(*s, 3, all).net.delayed > 0).unwrap();
        let whole = Plan::of_part(seed, 3, all, &FaultSubset::default());
        let delayed = FaultKind::PacketDelayed;
        let without =
            FaultSubset { without: FaultSet::NONE.with(delayed), ..FaultSubset::default() };
        let less = Plan::of_part(seed, 3, all, &without);
        assert_eq!(less.net.delayed, whole.net.delayed | MUTED);
        assert_eq!((less.net.lost, &less.events), (whole.net.lost, &whole.events));
        // On for a while: muted, then not, then muted.
        let part = FaultSubset::default().with_window(delayed, Nanos(5), Nanos(9));
        let plan = Plan::of_part(seed, 3, all, &part);
        let is_muted = |p: &Plan| p.net.delayed & MUTED > 0;
        assert!(is_muted(&plan));
        let later: Vec<_> = plan.later.iter().map(|(at, p)| (at.0, is_muted(p))).collect();
        assert_eq!(later, [(5, false), (9, true)]);
        assert!(Plan::has_rate(seed, 3, all, delayed));
        assert!(!Plan::has_rate(seed, 3, all, FaultKind::Kill));
    }
}
