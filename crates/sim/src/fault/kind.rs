//! The kinds of faults there are, and sets of them.

use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// One kind of fault.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum FaultKind { $($(#[$doc])* $name,)* }

        impl FaultKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
            /// Its name in reports and options.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// A sector that cannot be read until it is written again.
    LatentSector = "latent-sector",
    /// A bit of the medium changed by itself.
    BitFlip = "bit-flip",
    /// A write went to another place.
    MisdirectedWrite = "misdirected-write",
    /// A read brought another place's bytes.
    MisdirectedRead = "misdirected-read",
    /// A write was acknowledged and never made.
    LostWrite = "lost-write",
    /// A write was acknowledged and made in part.
    TornWrite = "torn-write",
    /// An unflushed write was lost when the power went.
    UnflushedLost = "unflushed-lost",
    /// An unflushed write, or one in flight, was torn when the power went.
    UnflushedTorn = "unflushed-torn",
    /// A read failed.
    ReadError = "read-error",
    /// A write failed.
    WriteError = "write-error",
    /// A flush failed; what it covered is gone.
    FlushError = "flush-error",
    /// The device said that it is full.
    DiskFull = "disk-full",
    /// An operation that took 10 to 1000 times as long.
    DiskSlow = "disk-slow",
    /// A device that stopped answering.
    DiskHang = "disk-hang",
    /// A device that disappeared.
    DiskGone = "disk-gone",
    /// A device that went back to an older content.
    StaleDisk = "stale-disk",
    /// Two devices that changed places.
    SwappedDisks = "swapped-disks",
    /// A connection broke under traffic.
    ConnectionLost = "connection-lost",
    /// A frame that arrived damaged.
    FrameDamaged = "frame-damaged",
    /// A packet that waited on its way.
    PacketDelayed = "packet-delayed",
    /// A packet that met a partition.
    Partition = "partition",
    /// A packet on a link of a fraction of its rate.
    SlowLink = "slow-link",
    /// A process killed; its disks keep what they have.
    Kill = "kill",
    /// A process killed right after an arbitrary poll.
    KillAtAwait = "kill-at-await",
    /// A host without power: everything volatile is gone.
    PowerLoss = "power-loss",
    /// All hosts without power at once.
    ClusterPowerLoss = "cluster-power-loss",
    /// A process that was not scheduled for less than a lease.
    ShortPause = "short-pause",
    /// A process that was not scheduled for longer than a lease.
    LongPause = "long-pause",
    /// A host whose clock runs fast or slow.
    ClockRate = "clock-rate",
    /// A host whose cores are starved.
    CpuStarved = "cpu-starved",
    /// A call that the directory refused to take.
    DirectoryUnavailable = "directory-unavailable",
    /// A call that took long.
    DirectorySlow = "directory-slow",
    /// A transaction that was carried out, its answer lost.
    DirectoryAnswerLost = "directory-answer-lost",
    /// A transaction that was carried out after its caller had given up.
    DirectoryLate = "directory-late",
    /// A read of the directory that showed an older state.
    DirectoryStaleRead = "directory-stale-read",
    /// A watch event that came late, twice or never.
    WatchOdd = "watch-odd",
    /// A later unflushed write outlived a power loss, an earlier one did not.
    UnflushedReordered = "unflushed-reordered",
    /// An empty disk in the place of one that held something.
    DiskEmptied = "disk-emptied",
    /// A process killed, or its power lost, while it was starting.
    KillInRecovery = "kill-in-recovery",
    /// A connection broke right after a packet had arrived: what is asked again arrives twice.
    AnswerLost = "answer-lost",
    /// A packet that overtook one sent earlier on another connection.
    PacketOvertaken = "packet-overtaken",
    /// A host that nobody reached and that reached nobody.
    PartitionFull = "partition-full",
    /// A host that could not send to another one, but hear it.
    PartitionOneWay = "partition-one-way",
    /// Two hosts that could not talk, others between them could.
    PartitionPair = "partition-pair",
    /// A wall clock that jumped.
    ClockJump = "clock-jump",
    /// A partition that broke the connections under it at once, instead of leaving them silent.
    PartitionAbrupt = "partition-abrupt",
    /// One connection of two hosts stood still, others between them did not.
    LaneStalled = "lane-stalled",
    /// All hosts killed, or without power, at once, and all soon back: no copy is lost by that.
    ClusterRestart = "cluster-restart",
    /// A process killed, or its power lost, right after it had reached a rare state (`sometimes!`)
    /// for the first time in the run.
    KillAtMark = "kill-at-mark",
    /// A host that was stopped in order: it gives back what it owns, then its process ends.
    OrderlyStop = "orderly-stop",
    /// A host that started with another set of disks: in another order, or without one of them.
    DiskSet = "disk-set",
    /// A process killed, or its power lost, between two operations of its devices that were chosen
    /// beforehand: one had ended, one was under way.
    KillAtStep = "kill-at-step",
    /// One shard of a host whose thread was not scheduled, while its siblings' were.
    ShardStarved = "shard-starved",
    /// A watch that went back in time: it told events again, old ones first (etcd below 3.4.25).
    WatchRewound = "watch-rewound",
    /// A watch that a compaction overtook: it said so, or lost events, or only those of deleted
    /// keys, without a word (etcd below 3.4.36).
    WatchGap = "watch-gap",
    /// A name that was published as alive and is not seen so: its lease was revoked, and keeping
    /// it alive seemed to succeed (etcd below 3.4.38).
    HintOdd = "hint-odd",
    /// A directory that counted on from a lower revision, that of its newest key: what was written
    /// last had been deleted, and its history compacted (etcd below 3.4.32).
    DirectoryRevisionBack = "directory-revision-back",
}

/// How many kinds there were first. Each later one is drawn from a stream of its own, so that a
/// seed does what it did before there was another kind.
pub(super) const FIRST: usize = FaultKind::WatchOdd as usize + 1;

/// Kinds that are a way in which another kind shows; they are counted, not switched.
pub(super) const ASPECTS: &[FaultKind] = &[
    FaultKind::UnflushedReordered,
    FaultKind::PacketOvertaken,
    FaultKind::PartitionFull,
    FaultKind::PartitionOneWay,
    FaultKind::PartitionPair,
    FaultKind::ClockJump,
];

/// A set of kinds, as an option of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FaultSet(u64);

const _: () = assert!(FaultKind::ALL.len() <= 64);

impl FaultSet {
    /// Every kind.
    pub const ALL: Self = Self(u64::MAX);
    /// No kind.
    pub const NONE: Self = Self(0);
    /// What seeds did before 2026-11-22: for those that are kept since.
    pub const FIRST: Self =
        Self((1 << FIRST) - 1).without(FaultKind::StaleDisk).without(FaultKind::SwappedDisks);
    /// What they did on that day.
    pub const SECOND: Self =
        Self::THIRD.without(FaultKind::PartitionAbrupt).without(FaultKind::LaneStalled);
    /// And a little later, with [`Features::ALL`](crate::feature::Features::ALL) of then.
    pub const THIRD: Self = Self((1 << (FaultKind::LaneStalled as usize + 1)) - 1);
    /// What they did on 2026-11-26.
    pub const FOURTH: Self = Self((1 << (FaultKind::KillAtStep as usize + 1)) - 1);
    /// Whether it has that one.
    pub fn has(self, kind: FaultKind) -> bool {
        self.0 >> kind as u8 & 1 == 1
    }
    /// With that one too.
    #[must_use]
    pub const fn with(self, kind: FaultKind) -> Self {
        Self(self.0 | 1 << kind as u8)
    }
    /// Without that one.
    #[must_use]
    pub const fn without(self, kind: FaultKind) -> Self {
        Self(self.0 & !(1 << kind as u8))
    }
    /// The kinds in it.
    pub fn kinds(self) -> impl Iterator<Item = FaultKind> {
        FaultKind::ALL.iter().copied().filter(move |k| self.has(*k))
    }
    /// Reads a list of names: `kill,partition`; `all`; `none`; a leading `-` takes one out of all.
    ///
    /// # Errors
    /// A sentence that names what is unknown and what there is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut set = match text.split(',').next() {
            Some(first) if first.starts_with('-') => Self::ALL,
            _ => Self::NONE,
        };
        for name in text.split(',').map(str::trim).filter(|n| !n.is_empty()) {
            match name {
                "all" => set = Self::ALL,
                "none" => set = Self::NONE,
                _ => {
                    let (out, name) = match name.strip_prefix('-') {
                        Some(name) => (true, name),
                        None => (false, name),
                    };
                    let found = FaultKind::ALL.iter().find(|k| k.name() == name);
                    let Some(&kind) = found else {
                        let all: Vec<_> = FaultKind::ALL.iter().map(|k| k.name()).collect();
                        return Err(format!(
                            "no fault is called '{name}'; there are {}",
                            all.join(", ")
                        ));
                    };
                    set = if out { set.without(kind) } else { set.with(kind) };
                }
            }
        }
        Ok(set)
    }
}

impl fmt::Debug for FaultSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.kinds().map(FaultKind::name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::{FaultKind, FaultSet};

    #[test]
    fn lists_of_faults_are_read_and_unknown_ones_named() {
        assert_eq!(FaultSet::parse("kill"), Ok(FaultSet::NONE.with(FaultKind::Kill)));
        assert!(!FaultSet::parse("-kill").unwrap().has(FaultKind::Kill));
        assert!(FaultSet::parse("-kill").unwrap().has(FaultKind::Partition));
        assert!(FaultSet::parse("kil").unwrap_err().contains("kill-at-await"));
    }
}
