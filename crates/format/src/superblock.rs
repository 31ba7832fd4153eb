//! The label of a device: the first and the last thing that is read of it.
//!
//! Written twice, at byte 0 and 1 MiB before the end; each copy names its own place. It says
//! whose the device is, which part of its group it plays, and where everything else lies.
//! Frozen for every future version: the magic, the version, and the CRC in the last 4 bytes.
//!
//! Absent here: any state that changes while a store runs.

use crate::checksum::crc;
use crate::id::{ClusterId, DiskId, GroupId, HostId};
use crate::units::BLOCK_LEN;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of a label.
pub const MAGIC: u64 = u64::from_le_bytes(*b"ATOLLDSK");
/// The version of the structure that this program writes and reads.
pub const VERSION: u16 = 1;
/// The second copy lies this far before the end of the device.
pub const SECOND_FROM_END: u64 = 1 << 20;
/// Devices of one group at most: one for the log and seven for capacity.
pub const DEVICES_MAX: usize = 8;
/// Entries of the region table.
pub const REGIONS_MAX: usize = 32;
/// Feature bits that this program knows. A device with an unknown `incompat` bit is refused; with
/// an unknown `ro_compat` bit it may be read only; unknown `compat` bits change nothing.
pub const INCOMPAT_KNOWN: u64 = INCOMPAT_PLACED;
/// The log may hold `Placed` records.
pub const INCOMPAT_PLACED: u64 = 1;
/// See [`INCOMPAT_KNOWN`].
pub const RO_COMPAT_KNOWN: u64 = 0;

/// How the devices of a group share the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Shape {
    /// One device carries its own log and its own capacity.
    SingleTier = 1,
    /// Device 0 carries log and metadata, devices 1 to 7 the capacity; all flash.
    AllFlash = 2,
    /// As `AllFlash`, with a read cache on device 0 and disks that spin (later).
    Hybrid = 3,
}

impl Shape {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::SingleTier => "single-tier",
            Self::AllFlash => "all-flash",
            Self::Hybrid => "hybrid",
        }
    }

    fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::SingleTier,
            2 => Self::AllFlash,
            3 => Self::Hybrid,
            _ => return None,
        })
    }
}

/// What a region of a device is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum RegionKind {
    /// First copy of the checkpoint.
    CheckpointA = 1,
    /// Second copy of the checkpoint.
    CheckpointB = 2,
    /// Metadata journal.
    Journal = 3,
    /// Write log, whole segments; several runs are possible.
    Log = 4,
    /// Metadata pages of chunks.
    Pages = 5,
    /// Slots of 1 MiB.
    Slots = 6,
    /// Read cache of the hybrid shape (later).
    ReadCache = 7,
}

impl RegionKind {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::CheckpointA | Self::CheckpointB => "checkpoint",
            Self::Journal => "journal",
            Self::Log => "write log",
            Self::Pages => "metadata",
            Self::Slots => "capacity",
            Self::ReadCache => "read cache",
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::CheckpointA,
            2 => Self::CheckpointB,
            3 => Self::Journal,
            4 => Self::Log,
            5 => Self::Pages,
            6 => Self::Slots,
            7 => Self::ReadCache,
            _ => return None,
        })
    }
}

/// A part of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// What it is for.
    pub kind: RegionKind,
    /// First byte; a multiple of 4 KiB.
    pub at: u64,
    /// Length in bytes; a multiple of 4 KiB, not 0.
    pub len: u64,
}

impl Region {
    /// The byte after it.
    pub fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// The label, decoded. Every value has been checked against every other when it comes from
/// [`Superblock::decode`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Feature bits that change nothing for a program that does not know them.
    pub compat: u64,
    /// Feature bits that forbid writing to a program that does not know them.
    pub ro_compat: u64,
    /// Feature bits that forbid everything to a program that does not know them.
    pub incompat: u64,
    /// The cluster that owns the device.
    pub cluster: ClusterId,
    /// The host that formatted it; 0 if it was not said.
    pub host: HostId,
    /// The disk group it is part of.
    pub group: GroupId,
    /// The device itself.
    pub disk: DiskId,
    /// The shape of the group.
    pub shape: Shape,
    /// Which device of the group, 0 being the one with the log.
    pub index: u8,
    /// All devices of the group, in order.
    pub disks: Vec<DiskId>,
    /// Counts the writes of this label.
    pub generation: u64,
    /// Bytes of the device in use; the second label lies at `size_bytes - SECOND_FROM_END`.
    pub size_bytes: u64,
    /// Bytes of one segment of the log; 0 on devices without a log.
    pub segment_len: u32,
    /// Random; part of every structure of the log, so that no guest can forge one.
    pub salt: u64,
    /// When it was formatted, for people, in milliseconds since 1970.
    pub created_ms: u64,
    /// Entries the chunk table may have (on the device with the checkpoint).
    pub entries_max: u32,
    /// Components the group may have.
    pub components_max: u32,
    /// Where everything lies; ascending, without overlap.
    pub regions: Vec<Region>,
}

/// Why bytes are not a label that this program can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperblockError {
    /// No label at all.
    #[error("no Atoll label")]
    NoLabel,
    /// There is one, but its bytes changed.
    #[error("the label is damaged: checksum {stored:08x}, its bytes give {computed:08x}")]
    Crc {
        /// In the label.
        stored: u32,
        /// Of its bytes.
        computed: u32,
    },
    /// A program newer (or older) than this one wrote it.
    #[error("the label has format version {0}, this program knows {VERSION}")]
    Version(u16),
    /// It uses features that this program does not know.
    #[error("the label uses unknown features (incompat {incompat:#x}, ro_compat {ro_compat:#x})")]
    Features {
        /// Unknown bits among `incompat`.
        incompat: u64,
        /// Unknown bits among `ro_compat`.
        ro_compat: u64,
    },
    /// The checksum is right and the content is impossible.
    #[error("the label contradicts itself: {0}")]
    Absurd(&'static str),
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawRegion {
    kind: U32,
    reserved: U32,
    at: U64,
    len: U64,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Raw {
    magic: U64,
    version: U16,
    shape: u8,
    index: u8,
    devices: u8,
    reserved_a: [u8; 3],
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    cluster: U64,
    host: U64,
    group: U64,
    disk: U64,
    generation: U64,
    size_bytes: U64,
    at: U64,
    segment_len: U32,
    reserved_b: U32,
    salt: U64,
    created_ms: U64,
    entries_max: U32,
    components_max: U32,
    disks: [U64; DEVICES_MAX],
    regions: [RawRegion; REGIONS_MAX],
    reserved_c: [u8; 3132],
    crc: U32,
}

const _: () = {
    assert!(size_of::<RawRegion>() == 24);
    assert!(size_of::<Raw>() == BLOCK_LEN);
    assert!(std::mem::offset_of!(Raw, cluster) == 40);
    assert!(std::mem::offset_of!(Raw, at) == 88);
    assert!(std::mem::offset_of!(Raw, salt) == 104);
    assert!(std::mem::offset_of!(Raw, disks) == 128);
    assert!(std::mem::offset_of!(Raw, regions) == 192);
    assert!(std::mem::offset_of!(Raw, crc) == BLOCK_LEN - 4);
};

impl Superblock {
    /// Where the second copy lies.
    pub fn second_at(&self) -> u64 {
        self.size_bytes - SECOND_FROM_END
    }

    /// The only region of that kind.
    pub fn region(&self, kind: RegionKind) -> Option<Region> {
        self.regions.iter().copied().find(|r| r.kind == kind)
    }

    /// The 4 KiB that lie at byte `at` of the device.
    ///
    /// # Panics
    /// If it has more devices or regions than the format has room for.
    pub fn encode(&self, at: u64) -> [u8; BLOCK_LEN] {
        assert!(self.disks.len() <= DEVICES_MAX && self.regions.len() <= REGIONS_MAX);
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC.into();
        raw.version = VERSION.into();
        raw.shape = self.shape as u8;
        raw.index = self.index;
        raw.devices = self.disks.len() as u8;
        raw.compat = self.compat.into();
        raw.ro_compat = self.ro_compat.into();
        raw.incompat = self.incompat.into();
        raw.cluster = self.cluster.0.into();
        raw.host = self.host.0.into();
        raw.group = self.group.0.into();
        raw.disk = self.disk.0.into();
        raw.generation = self.generation.into();
        raw.size_bytes = self.size_bytes.into();
        raw.at = at.into();
        raw.segment_len = self.segment_len.into();
        raw.salt = self.salt.into();
        raw.created_ms = self.created_ms.into();
        raw.entries_max = self.entries_max.into();
        raw.components_max = self.components_max.into();
        for (to, from) in raw.disks.iter_mut().zip(&self.disks) {
            *to = from.0.into();
        }
        for (to, from) in raw.regions.iter_mut().zip(&self.regions) {
            to.kind = (from.kind as u32).into();
            to.at = from.at.into();
            to.len = from.len.into();
        }
        let sum = crc(&raw.as_bytes()[..BLOCK_LEN - 4]);
        raw.crc = sum.into();
        let mut block = [0; BLOCK_LEN];
        block.copy_from_slice(raw.as_bytes());
        block
    }

    /// Reads the label that lies at byte `at` (of the first copy: 0).
    ///
    /// # Errors
    /// See [`SuperblockError`]; nothing of a label that is refused may be used.
    pub fn decode(block: &[u8], at: u64) -> Result<Self, SuperblockError> {
        let raw = Raw::ref_from_bytes(block).map_err(|_| SuperblockError::NoLabel)?;
        if raw.magic.get() != MAGIC {
            return Err(SuperblockError::NoLabel);
        }
        let (stored, computed) = (raw.crc.get(), crc(&block[..BLOCK_LEN - 4]));
        if stored != computed {
            return Err(SuperblockError::Crc { stored, computed });
        }
        if raw.version.get() != VERSION {
            return Err(SuperblockError::Version(raw.version.get()));
        }
        let incompat = raw.incompat.get() & !INCOMPAT_KNOWN;
        let ro_compat = raw.ro_compat.get() & !RO_COMPAT_KNOWN;
        if incompat != 0 || ro_compat != 0 {
            return Err(SuperblockError::Features { incompat, ro_compat });
        }
        raw.check(at).map_err(SuperblockError::Absurd)
    }
}

impl Raw {
    fn check(&self, at: u64) -> Result<Superblock, &'static str> {
        let block = BLOCK_LEN as u64;
        if self.at.get() != at {
            return Err("it lies at another place than it says");
        }
        let size_bytes = self.size_bytes.get();
        if size_bytes < 4 * SECOND_FROM_END || !size_bytes.is_multiple_of(block) {
            return Err("size of the device");
        }
        let devices = usize::from(self.devices);
        if devices == 0 || devices > DEVICES_MAX || usize::from(self.index) >= devices {
            return Err("number of devices");
        }
        let disks: Vec<DiskId> = self.disks[..devices].iter().map(|d| DiskId(d.get())).collect();
        if disks[usize::from(self.index)].0 != self.disk.get() {
            return Err("place in the group");
        }
        let shape = Shape::from_code(self.shape).ok_or("shape of the group")?;
        if (shape == Shape::SingleTier) != (devices == 1) {
            return Err("number of devices for this shape");
        }
        let mut regions = Vec::new();
        let mut end = block;
        for raw in self.regions.iter().take_while(|r| r.kind.get() != 0) {
            let kind = RegionKind::from_code(raw.kind.get()).ok_or("kind of a region")?;
            let region = Region { kind, at: raw.at.get(), len: raw.len.get() };
            let fits = region
                .at
                .checked_add(region.len)
                .is_some_and(|end| end <= size_bytes - SECOND_FROM_END);
            if !fits || region.at < end || region.len == 0 {
                return Err("place of a region");
            }
            if !region.at.is_multiple_of(block) || !region.len.is_multiple_of(block) {
                return Err("alignment of a region");
            }
            end = region.end();
            regions.push(region);
        }
        Ok(Superblock {
            compat: self.compat.get(),
            ro_compat: self.ro_compat.get(),
            incompat: self.incompat.get(),
            cluster: ClusterId(self.cluster.get()),
            host: HostId(self.host.get()),
            group: GroupId(self.group.get()),
            disk: DiskId(self.disk.get()),
            shape,
            index: self.index,
            disks,
            generation: self.generation.get(),
            size_bytes,
            segment_len: self.segment_len.get(),
            salt: self.salt.get(),
            created_ms: self.created_ms.get(),
            entries_max: self.entries_max.get(),
            components_max: self.components_max.get(),
            regions,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Region, RegionKind, Shape, Superblock, SuperblockError};
    use crate::id::{ClusterId, DiskId, GroupId, HostId};

    fn sample() -> Superblock {
        Superblock {
            compat: 1 << 63,
            ro_compat: 0,
            incompat: 0,
            cluster: ClusterId(0x0101),
            host: HostId(0x0202),
            group: GroupId(0x0303),
            disk: DiskId(0x0404),
            shape: Shape::SingleTier,
            index: 0,
            disks: vec![DiskId(0x0404)],
            generation: 3,
            size_bytes: 1 << 30,
            segment_len: 4 << 20,
            salt: 0x5a5a_5a5a_1234_5678,
            created_ms: 1_763_640_000_000,
            entries_max: 70_000,
            components_max: 1_024,
            regions: vec![
                Region { kind: RegionKind::Journal, at: 1 << 20, len: 16 << 20 },
                Region { kind: RegionKind::Log, at: 17 << 20, len: 48 << 20 },
            ],
        }
    }

    #[test]
    fn a_label_reads_as_it_was_written() {
        assert_eq!(Superblock::decode(&sample().encode(0), 0), Ok(sample()));
    }

    #[test]
    fn any_flipped_bit_of_a_label_is_noticed() {
        let good = sample().encode(4096);
        for at in 0..good.len() {
            let mut bad = good;
            bad[at] ^= 1 << (at % 8);
            assert!(Superblock::decode(&bad, 4096).is_err(), "byte {at}");
        }
        assert!(Superblock::decode(&good[..4095], 4096).is_err());
    }

    #[test]
    fn a_label_at_another_place_or_with_unknown_features_is_refused() {
        assert!(matches!(
            Superblock::decode(&sample().encode(0), 8192),
            Err(SuperblockError::Absurd(_))
        ));
        let newer = Superblock { incompat: 4, ..sample() };
        assert_eq!(
            Superblock::decode(&newer.encode(0), 0),
            Err(SuperblockError::Features { incompat: 4, ro_compat: 0 })
        );
    }

    /// Each rule alone: the sum is right, and everything else.
    #[test]
    fn a_label_that_breaks_one_rule_is_refused_for_that_rule() {
        type Break = fn(&mut Superblock);
        let rules: [(&str, &[Break]); 6] = [
            (
                "size of the device",
                &[
                    |l| l.size_bytes += 512,
                    |l| l.size_bytes = 4 * super::SECOND_FROM_END - 4096,
                    |l| l.size_bytes = 0,
                ],
            ),
            (
                "number of devices",
                &[|l| l.disks.clear(), |l| (l.index, l.shape) = (1, Shape::Hybrid)],
            ),
            ("place in the group", &[|l| l.disk = DiskId(9), |l| l.disks[0] = DiskId(9)]),
            (
                "number of devices for this shape",
                &[|l| l.shape = Shape::Hybrid, |l| l.disks.push(DiskId(5))],
            ),
            (
                "place of a region",
                &[
                    |l| l.regions[0].at = 0,
                    |l| l.regions[0].len = 0,
                    |l| l.regions[0].len += 4096,
                    |l| l.regions[1].at -= 4096,
                    |l| l.regions[1].at = u64::MAX - 4095,
                    |l| l.regions[1].len = l.second_at() - l.regions[1].at + 4096,
                ],
            ),
            (
                "alignment of a region",
                &[
                    |l| l.regions[1].at += 512,
                    |l| l.regions[1].len += 512,
                    |l| l.regions[0].at += 1,
                    |l| l.regions[0].len -= 1,
                ],
            ),
        ];
        for (rule, breaks) in rules {
            for (number, one) in breaks.iter().enumerate() {
                let mut label = sample();
                one(&mut label);
                let read = Superblock::decode(&label.encode(0), 0);
                assert_eq!(read, Err(SuperblockError::Absurd(rule)), "{rule}, case {number}");
            }
        }
    }

    #[test]
    fn a_label_at_the_very_limits_is_read() {
        let mut full = sample();
        full.regions[0].at = 4096;
        full.regions[0].len = (17 << 20) - 4096;
        full.regions[1].len = full.second_at() - full.regions[1].at;
        assert_eq!(Superblock::decode(&full.encode(0), 0), Ok(full));
        let mut smallest = sample();
        smallest.size_bytes = 4 * super::SECOND_FROM_END;
        smallest.regions = vec![Region { kind: RegionKind::Log, at: 4096, len: 4096 }];
        assert_eq!(Superblock::decode(&smallest.encode(0), 0), Ok(smallest));
    }
}
