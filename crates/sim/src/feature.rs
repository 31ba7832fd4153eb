//! What some seeds do and others do not, beside the faults: each by a stream of chance of its own,
//! so that a new one leaves what older seeds did as it was.

use crate::rng::Rng;

/// A set of features.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features(u32);

impl Features {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// An administrator makes, resizes, verifies and deletes volumes meanwhile.
    pub const ADMINISTRATOR: Self = Self(1);
    /// Blocks move home as soon as the log holds some.
    pub const DESTAGE: Self = Self(2);
    /// The journal is kept short by a checkpoint after every few batches of it.
    pub const CHECKPOINT: Self = Self(4);
    /// Each host has a client that only reads, and often: it sees what an owner says that should no
    /// longer say anything, while clients that write wait for an answer.
    pub const READERS: Self = Self(8);
    /// All clients do small operations in the same few blocks, without much of a pause.
    pub const CROWD: Self = Self(16);
    /// What happens to the media of a host happens to them sixteen times as often.
    pub const HARSH: Self = Self(32);
    /// One client reads stretches in order, a little at a time.
    pub const IN_ORDER: Self = Self(64);
    /// Pages, pieces and rounds are small: a boundary is met at every step.
    pub const SMALL: Self = Self(128);
    /// A client of each volume asks which parts of it are zeros.
    pub const LOOKERS: Self = Self(256);
    /// Volumes do not end where a chunk does.
    pub const ODD_SIZES: Self = Self(512);
    /// In the end all volumes are deleted, in half of the seeds that have it: every disk group is
    /// as empty as a new one.
    pub const EMPTIED: Self = Self(1024);
    /// One volume has a single copy, where nothing damages media: no other one hides what a store
    /// has lost.
    pub const SINGLE: Self = Self(2048);
    /// A host whose disks cannot be opened serves without them, as the program does, until it is
    /// started again; in other seeds it tries again and again.
    pub const DISKLESS: Self = Self(4096);
    /// In an eighth of the seeds nothing goes wrong: nobody waits, and nothing is to be told.
    pub const CALM: Self = Self(8192);
    /// Hosts have up to three shards, another number in each of their lives; the disk group is on
    /// any of them, and so are clients.
    pub const SHARDS: Self = Self(16384);
    /// The administrator's volumes are larger than a disk group: what is used of them lies far
    /// apart.
    pub const THIN: Self = Self(32768);
    /// Hosts of two releases, and an administrator who raises the feature level.
    pub const UPGRADED: Self = Self(65536);
    /// How many there are.
    pub const COUNT: usize = 17;
    /// Those there were first.
    pub const FIRST: Self = Self::ADMINISTRATOR.and(Self::DESTAGE);
    /// All.
    pub const ALL: Self = Self::FIRST
        .and(Self::CHECKPOINT)
        .and(Self::READERS)
        .and(Self::CROWD)
        .and(Self::HARSH)
        .and(Self::IN_ORDER)
        .and(Self::SMALL)
        .and(Self::LOOKERS)
        .and(Self::ODD_SIZES)
        .and(Self::EMPTIED)
        .and(Self::SINGLE)
        .and(Self::DISKLESS)
        .and(Self::CALM)
        .and(Self::SHARDS)
        .and(Self::THIN)
        .and(Self::UPGRADED);

    /// These and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// One bit for each.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether `feature` is one of them.
    pub const fn has(self, feature: Self) -> bool {
        self.0 & feature.0 != 0
    }

    /// Whether half of the seeds, of which this may be one, have `feature`; the stream goes on.
    pub fn draw(self, feature: Self, rng: &mut Rng) -> bool {
        rng.below(2) == 0 && self.has(feature)
    }
}
