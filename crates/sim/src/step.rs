//! Where a crash comes: between which two operations of a device, by what they were for.
//!
//! A store writes in an order on which its recovery relies, so that each point between an operation
//! that is done and one that is under way is another case for it.

use atoll_format::superblock::{Region, RegionKind};

/// What an operation of a device is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Step {
    /// A label.
    Label,
    /// A checkpoint.
    Checkpoint,
    /// The metadata journal.
    Journal,
    /// The log.
    Log,
    /// A page of block states and checksums.
    Page,
    /// A slot: blocks at home.
    Slot,
    /// A flush.
    Flush,
}

impl Step {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Label,
        Self::Checkpoint,
        Self::Journal,
        Self::Log,
        Self::Page,
        Self::Slot,
        Self::Flush,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Checkpoint => "checkpoint",
            Self::Journal => "journal",
            Self::Log => "log",
            Self::Page => "page",
            Self::Slot => "slot",
            Self::Flush => "flush",
        }
    }

    /// What a write at that place of a device with these regions is for.
    pub fn of_write(regions: &[Region], at: u64) -> Self {
        let region = regions.iter().find(|r| (r.at..r.at + r.len).contains(&at));
        match region.map(|r| r.kind) {
            None => Self::Label,
            Some(RegionKind::CheckpointA | RegionKind::CheckpointB) => Self::Checkpoint,
            Some(RegionKind::Journal) => Self::Journal,
            Some(RegionKind::Log) => Self::Log,
            Some(RegionKind::Pages) => Self::Page,
            Some(RegionKind::Slots | RegionKind::ReadCache) => Self::Slot,
        }
    }
}

/// What devices of a host end one after the other in seeds, in order.
pub const POINTS: [(Step, Step); 42] = [
    (Step::Label, Step::Label),
    (Step::Label, Step::Checkpoint),
    (Step::Label, Step::Flush),
    (Step::Checkpoint, Step::Label),
    (Step::Checkpoint, Step::Checkpoint),
    (Step::Checkpoint, Step::Journal),
    (Step::Checkpoint, Step::Log),
    (Step::Checkpoint, Step::Slot),
    (Step::Checkpoint, Step::Flush),
    (Step::Journal, Step::Label),
    (Step::Journal, Step::Checkpoint),
    (Step::Journal, Step::Journal),
    (Step::Journal, Step::Log),
    (Step::Journal, Step::Page),
    (Step::Journal, Step::Slot),
    (Step::Journal, Step::Flush),
    (Step::Log, Step::Label),
    (Step::Log, Step::Checkpoint),
    (Step::Log, Step::Journal),
    (Step::Log, Step::Log),
    (Step::Log, Step::Page),
    (Step::Log, Step::Slot),
    (Step::Log, Step::Flush),
    (Step::Page, Step::Checkpoint),
    (Step::Page, Step::Log),
    (Step::Page, Step::Page),
    (Step::Page, Step::Slot),
    (Step::Page, Step::Flush),
    (Step::Slot, Step::Label),
    (Step::Slot, Step::Checkpoint),
    (Step::Slot, Step::Journal),
    (Step::Slot, Step::Log),
    (Step::Slot, Step::Page),
    (Step::Slot, Step::Slot),
    (Step::Slot, Step::Flush),
    (Step::Flush, Step::Label),
    (Step::Flush, Step::Checkpoint),
    (Step::Flush, Step::Journal),
    (Step::Flush, Step::Log),
    (Step::Flush, Step::Page),
    (Step::Flush, Step::Slot),
    (Step::Flush, Step::Flush),
];

#[cfg(test)]
mod tests {
    use super::POINTS;

    #[test]
    fn points_are_in_order_so_that_they_are_found() {
        assert!(POINTS.is_sorted());
    }
}
