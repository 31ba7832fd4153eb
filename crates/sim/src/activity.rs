//! What a cluster is at when a fault has its effect: the columns of the matrix fault x activity.
//!
//! Looked at from outside, every [`LOOK_EVERY`] of virtual time: what is over sooner may be missed,
//! nothing is made up.

use crate::fault::FaultKind;
use crate::step::{self, Step};
use atoll_world::Nanos;
use std::fmt::Write;

/// How often a run looks at what its cluster is at.
pub const LOOK_EVERY: Nanos = Nanos::from_ms(5);

/// Something that a cluster is at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Activity {
    /// Nothing of what follows.
    Idle,
    /// A client's write is under way.
    Write,
    /// A client's discard or write of zeros is under way.
    Discard,
    /// A copy is brought up to date.
    Resync,
    /// A copy is made anew in another place.
    Rebuild,
    /// Blocks move from a log to their home.
    Destage,
    /// A host takes an object over.
    Takeover,
    /// The record of an object has changed just now: members left out, taken back, replaced.
    Membership,
    /// A store verifies what it holds.
    Scrub,
    /// A volume grows or shrinks.
    Resize,
    /// A volume is being deleted.
    Delete,
    /// A host is starting and recovers its disk group.
    Recovery,
}

impl Activity {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Idle,
        Self::Write,
        Self::Discard,
        Self::Resync,
        Self::Rebuild,
        Self::Destage,
        Self::Takeover,
        Self::Membership,
        Self::Scrub,
        Self::Resize,
        Self::Delete,
        Self::Recovery,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::Resync => "resync",
            Self::Rebuild => "rebuild",
            Self::Destage => "destage",
            Self::Takeover => "takeover",
            Self::Membership => "member",
            Self::Scrub => "scrub",
            Self::Resize => "resize",
            Self::Delete => "delete",
            Self::Recovery => "recovery",
        }
    }
}

/// A set of activities.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Activities(u16);

impl Activities {
    /// With that one, if it is going on.
    pub fn add(&mut self, activity: Activity, going_on: bool) {
        self.0 |= u16::from(going_on) << activity as u8;
    }

    /// Those in it; [`Activity::Idle`] if it is empty.
    pub fn list(self) -> impl Iterator<Item = Activity> {
        let bits = if self.0 == 0 { 1 << Activity::Idle as u8 } else { self.0 };
        Activity::ALL.iter().copied().filter(move |a| bits >> *a as u8 & 1 == 1)
    }
}

/// How often each kind of fault had its effect during each activity, row by row.
pub fn table(cells: &[u64]) -> String {
    let mut text = format!("  {:<22}", "fault x activity");
    for activity in Activity::ALL {
        let _ = write!(text, " {:>8}", activity.name());
    }
    text.push('\n');
    for (kind, row) in FaultKind::ALL.iter().zip(cells.chunks(Activity::ALL.len())) {
        let _ = write!(text, "  {:<22}", kind.name());
        for count in row {
            let _ = write!(text, " {count:>8}");
        }
        text.push('\n');
    }
    text
}

/// How often hosts crashed after one operation of their devices and during another, row by row;
/// `-`: devices do not end these one after the other.
pub fn points_table(cells: &[u64]) -> String {
    let mut text = format!("  {:<22}", "crash after x during");
    for step in Step::ALL {
        let _ = write!(text, " {:>10}", step.name());
    }
    text.push('\n');
    let counts = &cells[FaultKind::ALL.len() * Activity::ALL.len()..];
    for last in Step::ALL {
        let _ = write!(text, "  {:<22}", last.name());
        for next in Step::ALL {
            let point = step::POINTS.binary_search(&(last, next));
            let count = point.map_or("-".into(), |at| counts[at].to_string());
            let _ = write!(text, " {count:>10}");
        }
        text.push('\n');
    }
    text
}

/// The names of all cells in their order: those of the matrix, `fault x activity`, then those of
/// crashes, `crash between step and step`.
pub fn cell_names() -> impl Iterator<Item = String> {
    let matrix = FaultKind::ALL.iter().flat_map(|kind| {
        Activity::ALL.iter().map(|activity| format!("{} x {}", kind.name(), activity.name()))
    });
    let points = step::POINTS.iter();
    matrix.chain(points.map(|(a, b)| format!("crash between {} and {}", a.name(), b.name())))
}

/// How many cells there are.
pub fn cell_count() -> usize {
    FaultKind::ALL.len() * Activity::ALL.len() + step::POINTS.len()
}

/// Those of them that nothing has reached.
pub fn empty_cells(cells: &[u64]) -> Vec<String> {
    cell_names().zip(cells).filter(|(_, count)| **count == 0).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::{Activities, Activity, empty_cells, table};
    use crate::fault::{FaultKind, Faults};

    #[test]
    fn a_fault_counts_in_the_column_of_everything_that_goes_on_and_else_as_idle() {
        let faults = Faults::default();
        faults.reached(FaultKind::Kill);
        let mut now = Activities::default();
        now.add(Activity::Write, true);
        now.add(Activity::Scrub, true);
        now.add(Activity::Resync, false);
        faults.set_activities(now);
        faults.reached(FaultKind::Kill);
        let cells = faults.cells();
        let columns = Activity::ALL.len();
        let row = &cells[FaultKind::Kill as usize * columns..][..columns];
        let of = |a: Activity| row[a as usize];
        assert_eq!(
            [Activity::Idle, Activity::Write, Activity::Scrub, Activity::Resync].map(of),
            [1, 1, 1, 0]
        );
        assert_eq!(empty_cells(&cells).len(), cells.len() - 3);
        assert!(empty_cells(&cells).contains(&"kill x resync".to_owned()));
        assert_eq!(table(&cells).lines().count(), 1 + FaultKind::ALL.len());
    }
}
