//! Which releases of etcd are good enough. The floor is where the data of members may differ; the
//! releases that users are warned of have defects that Atoll works around (`docs/operations.md`).

use std::fmt;

/// A release of etcd.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Version(u32, u32, u32);

/// What Atoll makes of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It has no defect that matters here.
    Good,
    /// It works, and another release is better.
    Defective,
    /// Members may hold different data: it is not used.
    Refused,
}

/// Releases below have members with different data.
const FLOOR: Version = Version(3, 4, 22);
/// The first good release of each line that still has one; newer lines are good.
const GOOD: [Version; 2] = [Version(3, 5, 28), Version(3, 6, 9)];

/// What people are told to install.
pub const RECOMMENDED: &str = "3.6.9 or newer, or 3.5.28 or newer of that line";

impl Version {
    /// Reads `3.4.23`, also with something behind it (`-rc.1`, `+git`); none if it is no version.
    pub fn parse(text: &str) -> Option<Self> {
        let numbers = text.split(['-', '+']).next()?;
        let mut parts = numbers.split('.').map(|part| part.parse().ok());
        let version = Self(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    /// Whether it is of that line, or of a newer one.
    pub fn is_at_least(self, major: u32, minor: u32) -> bool {
        (self.0, self.1) >= (major, minor)
    }

    /// What Atoll makes of it.
    pub fn verdict(self) -> Verdict {
        let of_line = |good: &&Version| (good.0, good.1) == (self.0, self.1);
        let first_good = GOOD.iter().find(of_line).copied().unwrap_or(GOOD[GOOD.len() - 1]);
        match self {
            old if old < FLOOR => Verdict::Refused,
            middling if middling < first_good => Verdict::Defective,
            _ => Verdict::Good,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// The oldest release that is used, as people read it.
pub fn floor() -> Version {
    FLOOR
}

#[cfg(test)]
mod tests {
    use super::{Verdict, Version};

    #[test]
    fn releases_below_the_floor_are_refused_and_defective_ones_are_told_from_good_ones() {
        for (text, verdict) in [
            ("3.3.27", Verdict::Refused),
            ("3.4.21", Verdict::Refused),
            ("3.4.22", Verdict::Defective),
            ("3.4.23", Verdict::Defective),
            ("3.4.99", Verdict::Defective),
            ("3.5.0", Verdict::Defective),
            ("3.5.27", Verdict::Defective),
            ("3.5.28", Verdict::Good),
            ("3.6.0-rc.3", Verdict::Defective),
            ("3.6.8", Verdict::Defective),
            ("3.6.9", Verdict::Good),
            ("3.7.1+git", Verdict::Good),
            ("4.0.0", Verdict::Good),
        ] {
            assert_eq!(Version::parse(text).expect("a version").verdict(), verdict, "{text}");
        }
        for text in ["", "3", "3.4", "3.4.x", "3.4.23.1", "etcd", "-3.4.23"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }
}
