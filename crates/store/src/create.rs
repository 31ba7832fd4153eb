//! Formatting: one disk group out of empty devices.
//!
//! Everything but the labels is written and flushed first, the labels last, the one of device 0
//! at the very end: an interrupted format leaves devices that can be formatted again after a wipe,
//! never a group that half exists. The log, journal and checkpoint areas are written with zeros,
//! so that on a file their later durable writes change no file-system metadata.

use crate::geometry::geometry;
use crate::label::{Inspection, inspect};
use crate::limits;
use atoll_format::chunk::CheckpointHead;
use atoll_format::id::{ClusterId, DiskId, GroupId, HostId};
use atoll_format::log::SegmentHeader;
use atoll_format::superblock::{
    DEVICES_MAX, INCOMPAT_PLACED, Region, RegionKind, SECOND_FROM_END, Shape, Superblock,
};
use atoll_format::units::{BLOCK, CHUNK, iec};
use atoll_world::{Buf, Disk, Durability, World};

/// What to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormatSpec {
    /// The cluster that will own it.
    pub cluster: ClusterId,
    /// The host that formats it.
    pub host: HostId,
    /// The new group.
    pub group: GroupId,
    /// Its shape: one device for [`Shape::SingleTier`], the log's device and one to seven of
    /// capacity for [`Shape::AllFlash`].
    pub shape: Shape,
    /// Bytes of write log; none: 5 % of a single-tier device, all of an all-flash log device, at
    /// most 32 GiB.
    pub log_bytes: Option<u64>,
}

/// The labels that were written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupLabel {
    /// One per device, in order.
    pub disks: Vec<Superblock>,
}

/// Why a group was not made. Nothing was written unless it is `Io`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    /// The shape needs another number of devices, or does not exist yet.
    #[error("a disk group of this shape ({}) cannot be made of {devices} devices", shape.name())]
    Devices {
        /// What was asked for.
        shape: Shape,
        /// How many were given.
        devices: usize,
    },
    /// Too small to hold log, metadata and data.
    #[error(
        "device {device} is too small: {}, at least {} are needed",
        iec(*.len_bytes),
        iec(*.min_bytes)
    )]
    TooSmall {
        /// Which, by its place in the list.
        device: usize,
        /// Its size.
        len_bytes: u64,
        /// The smallest size.
        min_bytes: u64,
    },
    /// Its blocks have no numbers.
    #[error(
        "device {device} has {}, a disk of a group has less than {}",
        iec(*.len_bytes),
        iec(limits::DEVICE_END)
    )]
    TooLarge {
        /// Which, by its place in the list.
        device: usize,
        /// Its size.
        len_bytes: u64,
    },
    /// The log does not fit, or has fewer than four segments.
    #[error(
        "a log of {} does not fit: between {} and {} are possible",
        iec(*.log_bytes),
        iec(*.min_bytes),
        iec(*.max_bytes)
    )]
    LogSize {
        /// What was asked for.
        log_bytes: u64,
        /// Smallest.
        min_bytes: u64,
        /// Largest.
        max_bytes: u64,
    },
    /// It carries a label of ours.
    #[error(
        "device {device} already belongs to group {group} of cluster {cluster}; \
         `atoll disk wipe` erases it"
    )]
    Ours {
        /// Which device.
        device: usize,
        /// Whose.
        cluster: ClusterId,
        /// Of which group.
        group: GroupId,
    },
    /// It carries a damaged or newer label of ours.
    #[error("device {device} carries an Atoll label: {why}; `atoll disk wipe` erases it")]
    OursUnusable {
        /// Which device.
        device: usize,
        /// What is wrong with it.
        why: String,
    },
    /// It carries somebody else's signature.
    #[error("device {device} carries a {what}; `atoll disk wipe` erases it")]
    Foreign {
        /// Which device.
        device: usize,
        /// What it carries.
        what: &'static str,
    },
    /// Two of the devices are the same one.
    #[error("devices {a} and {b} are the same disk")]
    Twice {
        /// One.
        a: usize,
        /// The other.
        b: usize,
    },
    /// The device answered with an error, or lost what was written.
    #[error("device {device}: {why}")]
    Io {
        /// Which.
        device: usize,
        /// What it said.
        why: String,
    },
}

/// Makes a disk group; durable on return.
///
/// # Errors
/// See [`FormatError`].
pub async fn format_group<W: World>(
    world: &W,
    disks: &[W::Disk],
    spec: FormatSpec,
) -> Result<GroupLabel, FormatError> {
    let fits = match spec.shape {
        Shape::SingleTier => disks.len() == 1,
        Shape::AllFlash => (2..=DEVICES_MAX).contains(&disks.len()),
        Shape::Hybrid => false,
    };
    if !fits {
        return Err(FormatError::Devices { shape: spec.shape, devices: disks.len() });
    }
    for (device, disk) in disks.iter().enumerate() {
        refuse_unfit(device, disk).await?;
    }
    let labels = plan(world, disks, &spec)?;
    let opens = geometry(&labels).map(drop);
    assert!(opens.is_ok(), "a group is made that could not be opened: {opens:?}");
    refuse_same(disks, &labels).await?;
    for (device, (disk, label)) in disks.iter().zip(&labels).enumerate() {
        let io = |e: std::io::Error| FormatError::Io { device, why: e.to_string() };
        write_areas(disk, label).await.map_err(io)?;
        disk.flush().await.map_err(io)?;
    }
    for (device, (disk, label)) in disks.iter().zip(&labels).enumerate().rev() {
        write_labels(disk, label)
            .await
            .map_err(|e| FormatError::Io { device, why: e.to_string() })?;
    }
    Ok(GroupLabel { disks: labels })
}

fn refuse_len(device: usize, len_bytes: u64) -> Result<(), FormatError> {
    if len_bytes < limits::DEVICE_MIN {
        let min_bytes = limits::DEVICE_MIN;
        return Err(FormatError::TooSmall { device, len_bytes, min_bytes });
    }
    if len_bytes >= limits::DEVICE_END {
        return Err(FormatError::TooLarge { device, len_bytes });
    }
    Ok(())
}

async fn refuse_unfit<D: Disk>(device: usize, disk: &D) -> Result<(), FormatError> {
    refuse_len(device, disk.len_bytes())?;
    let found = inspect(disk).await.map_err(|e| FormatError::Io { device, why: e.to_string() })?;
    match found {
        Inspection::Empty => Ok(()),
        Inspection::Ours { superblock, .. } => {
            Err(FormatError::Ours { device, cluster: superblock.cluster, group: superblock.group })
        }
        Inspection::Foreign { what } => Err(FormatError::Foreign { device, what }),
        Inspection::Unsupported(e) | Inspection::Damaged(e) => {
            Err(FormatError::OursUnusable { device, why: e.to_string() })
        }
    }
}

/// Writes a mark on each device and looks for it on the others.
async fn refuse_same<D: Disk>(disks: &[D], labels: &[Superblock]) -> Result<(), FormatError> {
    if disks.len() == 1 {
        return Ok(());
    }
    // In the area of zeros between the first label and the first region.
    let at = BLOCK;
    for (a, disk) in disks.iter().enumerate() {
        let io =
            |device: usize| move |e: std::io::Error| FormatError::Io { device, why: e.to_string() };
        let mut mark = atoll_world::BufMut::zeroed(BLOCK as usize);
        mark[..8].copy_from_slice(&labels[a].disk.0.to_le_bytes());
        disk.write(at, vec![mark.freeze()], Durability::Durable).await.map_err(io(a))?;
        for (b, earlier) in disks.iter().enumerate().take(a) {
            let block = earlier.read(at, BLOCK as u32).await.map_err(io(b))?;
            if block[..8] == labels[a].disk.0.to_le_bytes() {
                return Err(FormatError::Twice { a: b, b: a });
            }
        }
    }
    Ok(())
}

/// Where everything goes.
fn plan<W: World>(
    world: &W,
    disks: &[W::Disk],
    spec: &FormatSpec,
) -> Result<Vec<Superblock>, FormatError> {
    let ids: Vec<DiskId> = disks.iter().map(|_| DiskId(world.random())).collect();
    let salt = world.random();
    let single = spec.shape == Shape::SingleTier;
    let lens: Vec<u64> = disks.iter().map(|d| d.len_bytes() / CHUNK * CHUNK).collect();
    // It may have grown or shrunk since it was looked at.
    for (device, &len) in lens.iter().enumerate() {
        refuse_len(device, len)?;
    }
    let capacity_bytes: u64 = if single { lens[0] } else { lens[1..].iter().sum() };
    let slots_bound = capacity_bytes / CHUNK;
    let entries_max = limits::entries_for(slots_bound).min(u64::from(u32::MAX)) as u32;
    let components_max = (slots_bound / 4).clamp(256, u64::from(limits::COMPONENTS_MAX)) as u32;

    let mut labels = Vec::new();
    for (device, &len) in lens.iter().enumerate() {
        let mut layout = Layout { at: CHUNK, regions: Vec::new() };
        let mut segment_len = 0;
        if device == 0 {
            let body = u64::from(entries_max) * (32 + 8)
                + u64::from(components_max) * limits::COMPONENT_RECORD_BYTES;
            let checkpoint = (BLOCK + body).next_multiple_of(CHUNK);
            layout.add(RegionKind::CheckpointA, checkpoint);
            layout.add(RegionKind::CheckpointB, checkpoint);
            layout.add(RegionKind::Journal, journal_bytes(capacity_bytes));
            let (segment, log) = log_size(spec, len, layout.at, single)?;
            segment_len = segment as u32;
            layout.add(RegionKind::Log, log);
        }
        if single || device > 0 {
            let end = len - SECOND_FROM_END;
            let slots = slots_in(end.saturating_sub(layout.at));
            if slots < 64 {
                let min_bytes = layout.at + 128 * CHUNK;
                return Err(FormatError::TooSmall { device, len_bytes: len, min_bytes });
            }
            let pages = u64::from(limits::pages_for(slots)) * BLOCK;
            layout.add(RegionKind::Pages, pages.next_multiple_of(CHUNK));
            layout.add(RegionKind::Slots, u64::from(slots) * CHUNK);
        }
        let end = len - SECOND_FROM_END;
        assert!(layout.at <= end, "the regions end at {}, the second label is at {end}", layout.at);
        labels.push(Superblock {
            compat: 0,
            ro_compat: 0,
            incompat: INCOMPAT_PLACED,
            cluster: spec.cluster,
            host: spec.host,
            group: spec.group,
            disk: ids[device],
            shape: spec.shape,
            index: device as u8,
            disks: ids.clone(),
            generation: 1,
            size_bytes: len,
            segment_len,
            salt,
            created_ms: world.unix_ms(),
            entries_max,
            components_max,
            regions: layout.regions,
        });
    }
    Ok(labels)
}

struct Layout {
    at: u64,
    regions: Vec<Region>,
}

impl Layout {
    fn add(&mut self, kind: RegionKind, len: u64) {
        assert!(len > 0 && len.is_multiple_of(CHUNK), "a {} of {len} bytes", kind.name());
        let behind = self.regions.last().is_none_or(|last| last.end() <= self.at);
        assert!(behind && self.at >= CHUNK, "the {} lies over what is before it", kind.name());
        self.regions.push(Region { kind, at: self.at, len });
        self.at = (self.at + len).next_multiple_of(CHUNK);
    }
}

fn journal_bytes(capacity_bytes: u64) -> u64 {
    let min =
        if capacity_bytes >= 16 << 30 { limits::JOURNAL_MIN_LARGE } else { limits::JOURNAL_MIN };
    let by_size = ((u128::from(capacity_bytes) * u128::from(limits::JOURNAL_PER_TIB)) >> 40) as u64;
    by_size.max(min).next_multiple_of(CHUNK)
}

/// Slots that fit into so many bytes beside their pages.
fn slots_in(bytes: u64) -> u32 {
    let mut slots = (bytes / CHUNK).min(u64::from(u32::MAX / 2)) as u32;
    while slots > 0 {
        let pages = u64::from(limits::pages_for(slots)) * BLOCK;
        if pages.next_multiple_of(CHUNK) + u64::from(slots) * CHUNK <= bytes {
            break;
        }
        // The pages of a slot are less than 1 % of it: a few steps.
        slots -= (slots / 1_000).max(1);
    }
    slots
}

/// Segment length and log length.
fn log_size(
    spec: &FormatSpec,
    len: u64,
    used: u64,
    single: bool,
) -> Result<(u64, u64), FormatError> {
    let rest = (len - SECOND_FROM_END).saturating_sub(used);
    let max_bytes =
        if single { rest / 2 } else { rest } / limits::SEGMENT_MIN * limits::SEGMENT_MIN;
    let min_bytes = limits::SEGMENTS_MIN * limits::SEGMENT_MIN;
    let default = (if single { len / 20 } else { rest }).min(limits::LOG_MAX_DEFAULT);
    let log_bytes = spec.log_bytes.unwrap_or(default.max(min_bytes).min(max_bytes));
    if log_bytes < min_bytes || log_bytes > max_bytes {
        return Err(FormatError::LogSize { log_bytes, min_bytes, max_bytes });
    }
    let wanted = log_bytes / limits::SEGMENTS_WANTED;
    let mut segment = limits::SEGMENT_MAX;
    while segment > limits::SEGMENT_MIN && segment > wanted {
        segment /= 2;
    }
    let segments = log_bytes / segment;
    assert!(segments >= limits::SEGMENTS_MIN, "a log of {segments} segments of {segment}");
    Ok((segment, log_bytes / segment * segment))
}

async fn write_areas<D: Disk>(disk: &D, label: &Superblock) -> std::io::Result<()> {
    for region in &label.regions {
        let prewritten = matches!(
            region.kind,
            RegionKind::CheckpointA
                | RegionKind::CheckpointB
                | RegionKind::Journal
                | RegionKind::Log
        );
        if !prewritten {
            continue;
        }
        assert!(region.end() <= label.second_at(), "{region:?} covers the second label");
        let mut at = region.at;
        while at < region.end() {
            let len = CHUNK.min(region.end() - at);
            disk.write(at, vec![Buf::zeros(len as usize)], Durability::Volatile).await?;
            at += len;
        }
        assert!(at == region.end(), "zeros up to {at} of {region:?}");
    }
    let Some(log) = label.region(RegionKind::Log) else { return Ok(()) };
    // Segment 0 is never written, so that 0 can mean "before the first": the first is 1.
    let at = log.at + u64::from(label.segment_len);
    let header = SegmentHeader {
        salt: label.salt,
        generation: 0,
        segment: 1,
        at,
        journal_to: 0,
        first_batch: 1,
    };
    disk.write(at, vec![Buf::copy_from(&header.encode())], Durability::Volatile).await?;
    let journal = label.region(RegionKind::Journal).expect("beside the log");
    for kind in [RegionKind::CheckpointA, RegionKind::CheckpointB] {
        let region = label.region(kind).expect("beside the log");
        let head = CheckpointHead {
            salt: label.salt,
            generation: 1,
            at: region.at,
            journal_seq: 1,
            journal_at: journal.at,
            journal_crc: 0,
            trim_below: 1,
            log_to: 0,
            replay_after: 0,
            next_local: 1,
            components: 0,
            body_len: 0,
            body_crc: 0,
        };
        disk.write(region.at, vec![Buf::copy_from(&head.encode())], Durability::Volatile).await?;
    }
    Ok(())
}

/// Writes both copies of a label, the second one first: whoever finds the first finds both.
pub(crate) async fn write_labels<D: Disk>(disk: &D, label: &Superblock) -> std::io::Result<()> {
    for at in [label.second_at(), 0] {
        let again = Superblock::decode(&label.encode(at), at);
        assert!(again.as_ref() == Ok(label), "a label is written that cannot be read: {again:?}");
        disk.write(at, vec![Buf::copy_from(&label.encode(at))], Durability::Durable).await?;
    }
    disk.flush().await
}

#[cfg(test)]
mod tests {
    use super::slots_in;
    use crate::limits;
    use atoll_format::units::{BLOCK, CHUNK};

    #[test]
    fn slots_and_their_pages_fit_and_leave_little() {
        for mib in [200u64, 900, 10_000, 1_000_000, 16_000_000] {
            let bytes = mib * CHUNK;
            let slots = slots_in(bytes);
            let used = u64::from(slots) * CHUNK + u64::from(limits::pages_for(slots)) * BLOCK;
            assert!(used <= bytes, "{mib} MiB");
            assert!(bytes - used < bytes / 50, "{mib} MiB: {slots} slots");
        }
    }
}
