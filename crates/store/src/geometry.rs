//! Where everything of a group lies: what the labels of its devices say, checked before it is
//! believed.

use crate::error::OpenError;
use crate::limits;
use atoll_format::superblock::{INCOMPAT_PLACED, Region, RegionKind, Shape, Superblock};
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, CHUNK};

/// Where everything lies: the labels, made handy. Never changes while a store runs.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub group: u64,
    pub salt: u64,
    pub checkpoints: [Region; 2],
    pub journal: Region,
    pub log: LogGeometry,
    pub entries_max: u32,
    pub components_max: u32,
    /// Capacity devices, in order.
    pub capacity: Vec<Capacity>,
    pub batch_blocks: u32,
    /// Whole chunks may be written past the log.
    pub places: bool,
}

/// One capacity device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// Its index in the group.
    pub device: usize,
    pub pages: Region,
    pub slots: Region,
}

impl Capacity {
    pub(crate) fn slot_count(&self) -> u32 {
        (self.slots.len / CHUNK) as u32
    }

    pub(crate) fn page_count(&self) -> u32 {
        (self.pages.len / BLOCK) as u32
    }
}

/// The ring of segments of the write log, on its device. Segments take turns at its places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogGeometry {
    /// Byte of the device where the ring begins.
    pub at: u64,
    /// Bytes of a segment.
    pub segment_len: u64,
    /// Places of the ring.
    pub segments: u64,
}

impl LogGeometry {
    /// The place of the ring where segment `segment` lies.
    pub(crate) fn place_of(&self, segment: u64) -> usize {
        (segment % self.segments) as usize
    }

    /// Byte of the device where segment `segment` begins.
    pub(crate) fn segment_at(&self, segment: u64) -> u64 {
        self.at + (segment % self.segments) * self.segment_len
    }

    /// The place of the ring where block `at` of the device lies.
    pub(crate) fn ring_index(&self, at: u32) -> usize {
        let index = (u64::from(at) * BLOCK - self.at) / self.segment_len;
        assert!(index < self.segments, "block {at} lies behind the log");
        index as usize
    }

    /// Bytes of all segments.
    pub(crate) fn bytes(&self) -> u64 {
        self.segment_len * self.segments
    }
}

impl Geometry {
    /// The block of capacity device `device` where block `index` of that slot lies.
    pub(crate) fn home_block(&self, device: u8, slot: u32, index: u8) -> u32 {
        let slots = self.capacity[usize::from(device)].slots;
        assert!(u64::from(slot) < slots.len / CHUNK, "slot {slot} lies outside its region");
        let at = slots.at / BLOCK;
        (at + u64::from(slot) * u64::from(BLOCKS_PER_CHUNK) + u64::from(index)) as u32
    }
}

/// What the labels of a group say.
///
/// # Errors
/// They contradict each other or themselves, or need a newer version of the program.
pub(crate) fn geometry(labels: &[Superblock]) -> Result<Geometry, OpenError> {
    let log = &labels[0];
    let bad = |what: &str| OpenError::Metadata(format!("the label: {what}"));
    let region = |label: &Superblock, kind: RegionKind| -> Result<Region, OpenError> {
        label.region(kind).ok_or_else(|| bad(&format!("its {} is missing", kind.name())))
    };
    if log.shape == Shape::Hybrid {
        return Err(OpenError::Newer("hybrid disk group".into()));
    }
    if labels.iter().any(|l| l.disks != log.disks || l.salt != log.salt) {
        return Err(bad("the devices disagree about their group"));
    }
    let log_region = region(log, RegionKind::Log)?;
    let segment_len = u64::from(log.segment_len);
    if !(limits::SEGMENT_MIN..=limits::SEGMENT_MAX).contains(&segment_len)
        || !segment_len.is_power_of_two()
        || !log_region.len.is_multiple_of(segment_len)
        || log_region.len / segment_len < limits::SEGMENTS_MIN
    {
        return Err(bad("segments"));
    }
    let carriers: Vec<usize> =
        if log.shape == Shape::SingleTier { vec![0] } else { (1..labels.len()).collect() };
    let mut capacity = Vec::new();
    for device in carriers {
        let pages = region(&labels[device], RegionKind::Pages)?;
        let slots = region(&labels[device], RegionKind::Slots)?;
        if slots.len / CHUNK >= u64::from(u32::MAX) || pages.len / BLOCK >= u64::from(u32::MAX) {
            return Err(bad("more slots than numbers"));
        }
        let wanted = limits::pages_for((slots.len / CHUNK) as u32);
        if pages.len / BLOCK < u64::from(wanted) {
            return Err(bad("too few pages"));
        }
        capacity.push(Capacity { device, pages, slots });
    }
    if labels.iter().any(|l| l.size_bytes >= limits::DEVICE_END) {
        return Err(bad("a device of 16 TiB or more"));
    }
    let journal = region(log, RegionKind::Journal)?;
    if journal.len < limits::JOURNAL_MIN {
        return Err(bad("journal"));
    }
    Ok(Geometry {
        group: log.group.0,
        salt: log.salt,
        checkpoints: [region(log, RegionKind::CheckpointA)?, region(log, RegionKind::CheckpointB)?],
        journal,
        log: LogGeometry { at: log_region.at, segment_len, segments: log_region.len / segment_len },
        entries_max: log.entries_max,
        components_max: log.components_max,
        capacity,
        places: log.incompat & INCOMPAT_PLACED != 0,
        batch_blocks: limits::BATCH_BLOCKS.min((segment_len / 4 / BLOCK) as u32),
    })
}
