//! Feature levels: what the hosts of a cluster may write.
//!
//! A release knows a range of levels. A cluster is at one of them, which its record in the
//! directory names. A host writes nothing that is above the cluster's level, so that hosts of two
//! releases can run side by side, and a release can be taken back. An administrator raises the
//! level once every host knows the next one; it never falls. `docs/formats.md` has what each level
//! brings.

use serde::{Deserialize, Serialize};

/// A feature level. The first is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Level(pub u16);

impl Level {
    /// What every release can read: clusters from before there were levels are at it.
    pub const FIRST: Self = Self(1);
    /// A host that tells how far its copies are tells it for each copy, and not once more for the
    /// one that is copied now.
    pub const COPIES_ONLY: Self = Self(2);

    /// The next one.
    pub fn above(self) -> Self {
        Self(self.0.checked_add(1).expect("a level fits into 16 bits"))
    }

    pub(crate) fn is_first(&self) -> bool {
        *self == Self::FIRST
    }
}

impl Default for Level {
    fn default() -> Self {
        Self::FIRST
    }
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The levels that a release knows: `oldest` to `newest`, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Levels {
    /// Below it are clusters that this release can no longer serve.
    pub oldest: Level,
    /// Above it are clusters that this release cannot serve yet.
    pub newest: Level,
}

impl Levels {
    /// Those of this release.
    pub const KNOWN: Self = Self { oldest: Level::FIRST, newest: Level::COPIES_ONLY };
    /// Those of releases from before there were levels.
    pub const BEFORE: Self = Self { oldest: Level::FIRST, newest: Level::FIRST };

    /// Whether a host that knows these can belong to a cluster at that level.
    pub fn has(&self, level: Level) -> bool {
        self.oldest <= level && level <= self.newest
    }
}

impl std::fmt::Display for Levels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "{}", self.newest),
            false => write!(f, "{} to {}", self.oldest, self.newest),
        }
    }
}

/// The level to which a cluster at `level` can be raised: the newest that all hosts know; `level`
/// if there is none above. `hosts`: what each of them knows.
pub fn next_level(level: Level, hosts: impl IntoIterator<Item = Levels>) -> Level {
    let (mut oldest, mut newest) = (Level::FIRST, None::<Level>);
    for levels in hosts {
        oldest = oldest.max(levels.oldest);
        newest = Some(newest.map_or(levels.newest, |newest| newest.min(levels.newest)));
    }
    // One that knows only levels above those that another knows holds the cluster where it is.
    let next = newest.filter(|newest| *newest >= oldest).unwrap_or(level).max(level);
    assert!(next >= level, "a level falls from {level} to {next}");
    next
}

const _: () =
    assert!(Levels::KNOWN.oldest.0 >= 1 && Levels::KNOWN.oldest.0 <= Levels::KNOWN.newest.0);

#[cfg(test)]
mod tests {
    use super::{Level, Levels, next_level};

    fn levels(oldest: u16, newest: u16) -> Levels {
        Levels { oldest: Level(oldest), newest: Level(newest) }
    }

    #[test]
    fn a_cluster_is_raised_to_what_all_hosts_know_and_never_lowered() {
        let next = |level, hosts: &[Levels]| next_level(Level(level), hosts.iter().copied()).0;
        assert_eq!(next(1, &[levels(1, 2), levels(1, 2)]), 2);
        assert_eq!(next(1, &[levels(1, 2), levels(1, 1), levels(1, 3)]), 1);
        assert_eq!(next(1, &[levels(1, 4), levels(2, 3)]), 3);
        // A host of an older release has come back: the level stays.
        assert_eq!(next(2, &[levels(1, 1), levels(1, 3)]), 2);
        // No level that both know.
        assert_eq!(next(1, &[levels(1, 1), levels(2, 3)]), 1);
        assert_eq!(next(3, &[]), 3);
    }

    #[test]
    fn a_release_belongs_to_clusters_at_its_levels_only() {
        let known = levels(2, 3);
        assert_eq!([1, 2, 3, 4].map(|level| known.has(Level(level))), [false, true, true, false]);
        assert_eq!(known.to_string(), "2 to 3");
        assert_eq!(levels(2, 2).to_string(), "2");
    }
}
