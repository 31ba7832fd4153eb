//! Opening and closing a store: the labels of its devices, recovery, its background tasks.

use crate::create::write_labels;
use crate::device::{Device, DeviceError};
use crate::group::Group;
use crate::label::{Inspection, inspect};
use crate::limits;
use crate::log::LogQueue;
use crate::recover::{self, Memory};
use crate::state::{Capacity, Geometry};
use crate::store::Store;
use crate::{checkpoint, destage, log, sizes};
use atoll_format::id::{ClusterId, DiskId, GroupId};
use atoll_format::superblock::{
    INCOMPAT_PLACED, Region, RegionKind, Shape, Superblock, SuperblockError,
};
use atoll_format::units::{BLOCK, CHUNK, iec};
use atoll_world::sync::Notify;
use atoll_world::{Disk, Nanos, World, mutant, sometimes};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// How to open a store. The defaults are what `docs/formats.md` states per TiB.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenSpec {
    /// Only a group of this cluster; none: any.
    pub cluster: Option<ClusterId>,
    /// Bytes of the page cache; none: 128 MiB per TiB.
    pub cache_bytes: Option<u64>,
    /// Bytes of dirty metadata; none: 64 MiB per TiB.
    pub dirty_bytes: Option<u64>,
    /// After how long without an answer a device has failed; none: 5 s.
    pub io_deadline: Option<Nanos>,
    /// How full the log may be, in 1/256, before blocks move home while guests write; at most
    /// [`limits::FILL_URGENT`]; none: [`limits::FILL_DESTAGE`].
    pub destage_at: Option<u8>,
    /// After how long without a write they move home anyway; none: 2 s.
    pub idle_destage: Option<Nanos>,
    /// How many bytes the journal may hold before a checkpoint is taken, at most half of it; none:
    /// half of it.
    pub checkpoint_at: Option<u64>,
}

/// Why a store could not be opened. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no label: the device is new, or not the right one.
    #[error("device {device} carries no Atoll label")]
    Empty {
        /// Its place in the list.
        device: usize,
    },
    /// Somebody else's.
    #[error("device {device} carries a {what}")]
    Foreign {
        /// Its place in the list.
        device: usize,
        /// What it carries.
        what: &'static str,
    },
    /// Its label is damaged in both places.
    #[error(
        "device {device}: {why}; `atoll disk wipe` gives it up, other hosts rebuild what it held"
    )]
    Label {
        /// Its place in the list.
        device: usize,
        /// What is wrong.
        why: SuperblockError,
    },
    /// Written by a newer version of the program, or with features this one does not know.
    #[error("written by another version of Atoll: {0}")]
    Newer(String),
    /// It belongs to another cluster.
    #[error("device {device} belongs to cluster {theirs}, not to {ours}")]
    OtherCluster {
        /// Its place in the list.
        device: usize,
        /// Whose it is.
        theirs: ClusterId,
        /// Who asked.
        ours: ClusterId,
    },
    /// The devices are not all of one group.
    #[error("device {device} belongs to disk group {theirs}, device 0 to {ours}")]
    OtherGroup {
        /// Its place in the list.
        device: usize,
        /// Its group.
        theirs: GroupId,
        /// The group of the first.
        ours: GroupId,
    },
    /// The same device, or a copy of it, twice.
    #[error("devices {a} and {b} are both disk {disk}")]
    Twice {
        /// One.
        a: usize,
        /// The other.
        b: usize,
        /// The disk.
        disk: DiskId,
    },
    /// A device of the group was not given.
    #[error("disk {disk} (number {index} of {devices}) of the group is missing")]
    Missing {
        /// Which.
        disk: DiskId,
        /// Its place in the group.
        index: usize,
        /// How many there are.
        devices: usize,
    },
    /// The device is smaller than when it was formatted.
    #[error("device {device} has shrunk: {} of {} are left", iec(*.len_bytes), iec(*.size_bytes))]
    Shrunk {
        /// Its place in the list.
        device: usize,
        /// Its size now.
        len_bytes: u64,
        /// Its size by its label.
        size_bytes: u64,
    },
    /// Metadata that nothing can replace is gone: wipe the group, its peers rebuild it.
    #[error("metadata of the group is damaged: {0}")]
    Metadata(String),
    /// A device does not work.
    #[error("{0}")]
    Io(String),
}

impl<W: World> Store<W> {
    /// Opens the group whose devices these are, in any order, after whatever happened to it:
    /// returns once it is recovered and serves. Starts its background tasks.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(world: W, disks: Vec<W::Disk>, spec: OpenSpec) -> Result<Self, OpenError> {
        let deadline = spec.io_deadline.unwrap_or(limits::IO_DEADLINE);
        let labels = async {
            let mut found = sort_out(disks, &spec).await?;
            for one in &mut found {
                one.repair_label().await.map_err(|e| OpenError::Io(e.to_string()))?;
            }
            Ok::<_, OpenError>(found)
        };
        // A handful of small requests: more than one of them may take long.
        let labels = world.timeout_at(world.now() + deadline * 2, labels).await;
        let silent = || OpenError::Io(format!("its labels did not return in {}", deadline * 2));
        let found = labels.map_err(|_| silent())??;
        let (disks, labels): (Vec<W::Disk>, Vec<Superblock>) =
            found.into_iter().map(|f| (f.disk, f.label)).unzip();
        let geometry = geometry(&labels)?;
        let health = Notify::default();
        let devices: Vec<Device<W>> = disks
            .iter()
            .zip(&labels)
            .map(|(disk, label)| {
                let name = format!("disk {}", label.disk);
                Device::new(world.clone(), disk.clone(), name, deadline, health.clone())
            })
            .collect();
        let memory = memory(&world, &geometry, &spec);
        let half_a_journal = geometry.journal.len / 2;
        let found = recover::recover(&devices, geometry, memory).await?;
        // What it has read may be in a device's cache only: a write that failed, say, or one of a
        // process that died. What comes now builds on it, and must not outlive it.
        for device in devices.iter().filter(|_| !mutant!("open.cache_is_believed")) {
            device.flush().await.map_err(|error| match error {
                DeviceError::Read(why) | DeviceError::Failed(why) => OpenError::Io(why),
            })?;
        }
        let group = Rc::new(Group {
            id: labels[0].group,
            devices,
            queue: RefCell::new(LogQueue::new(
                found.generation,
                found.next_seq,
                found.prev_crc,
                found.footer,
            )),
            state: RefCell::new(found.state),
            streams: RefCell::default(),
            journal: RefCell::new(found.journal),
            failed: RefCell::new(None),
            health,
            log_work: Notify::default(),
            mover_work: Notify::default(),
            trimmed: Notify::default(),
            ended: Notify::default(),
            destage_at: spec
                .destage_at
                .unwrap_or(limits::FILL_DESTAGE)
                .min(limits::FILL_URGENT - 1),
            idle_destage: spec.idle_destage.unwrap_or(limits::IDLE_DESTAGE),
            checkpoint_at: spec.checkpoint_at.unwrap_or(u64::MAX).min(half_a_journal),
            closing: Cell::new(false),
            slowed_at: Cell::new(None),
            writes_footer: Cell::new(false),
            footer_written: Notify::default(),
            log_ended: Cell::new(false),
            mover_ended: Cell::new(false),
            world: world.clone(),
        });
        group.state.borrow_mut().last_write = world.now();
        start(&group, found.checkpoint_now).await?;
        let sizes_bytes = labels.iter().map(|l| l.size_bytes).collect();
        world.spawn(sizes::watch(world.clone(), Rc::downgrade(&group), sizes_bytes));
        Ok(Self { group, labels: Rc::new(labels), scrub_turn: Rc::default() })
    }

    /// Ends in order: waits for what is queued, takes a checkpoint, stops the background tasks. A
    /// store that is not closed loses nothing; it only starts more slowly.
    pub async fn close(&self) {
        let group = &self.group;
        group.closing.set(true);
        group.log_work.notify_all();
        loop {
            // Both tasks end by themselves: the log when its queue is empty, the mover after its
            // checkpoint; every request to a device on the way has a deadline.
            let wait = group.ended.notified();
            group.mover_work.notify_all();
            if group.log_ended.get() && group.mover_ended.get() {
                return;
            }
            wait.await;
        }
    }
}

/// Recovery is done: the first durable write under the new generation, then the tasks.
async fn start<W: World>(group: &Rc<Group<W>>, checkpoint_now: bool) -> Result<(), OpenError> {
    let gone = |group: &Group<W>| {
        let why = group.failed.borrow().clone();
        OpenError::Io(why.unwrap_or_else(|| "the log cannot be written".into()))
    };
    let world = group.world.clone();
    if checkpoint_now && checkpoint::take(group).await.is_err() {
        return Err(gone(group));
    }
    // The mover first: a log that was full needs it to free a segment.
    world.spawn(destage::run(group.clone()));
    if log::write_marker(group).await.is_err() {
        return Err(gone(group));
    }
    world.spawn(log::run(group.clone()));
    Ok(())
}

/// A device of the group and its label.
pub(crate) struct Member<D> {
    pub disk: D,
    pub label: Superblock,
    /// One of the two copies of the label is not good.
    damaged: bool,
}

impl<D: Disk> Member<D> {
    async fn repair_label(&mut self) -> std::io::Result<()> {
        if !self.damaged {
            return Ok(());
        }
        sometimes!("store.label.repaired");
        self.label.generation += 1;
        write_labels(&self.disk, &self.label).await
    }
}

/// Reads and checks the labels; returns the devices in the group's order.
pub(crate) async fn sort_out<D: Disk>(
    disks: Vec<D>,
    spec: &OpenSpec,
) -> Result<Vec<Member<D>>, OpenError> {
    let mut found: Vec<Member<D>> = Vec::new();
    for (device, disk) in disks.into_iter().enumerate() {
        let inspection = inspect(&disk).await.map_err(|e| OpenError::Io(e.to_string()))?;
        let (label, damaged) = match inspection {
            Inspection::Ours { superblock, first_damaged } => (*superblock, first_damaged),
            Inspection::Empty => return Err(OpenError::Empty { device }),
            Inspection::Foreign { what } => return Err(OpenError::Foreign { device, what }),
            Inspection::Damaged(why) => return Err(OpenError::Label { device, why }),
            Inspection::Unsupported(e) => return Err(OpenError::Newer(e.to_string())),
        };
        check(device, &disk, &label, &found, spec)?;
        found.push(Member { disk, label, damaged });
    }
    let Some(first) = found.first() else {
        return Err(OpenError::Io("no device was given".into()));
    };
    let wanted = first.label.disks.clone();
    for (index, &disk) in wanted.iter().enumerate() {
        if !found.iter().any(|f| f.label.disk == disk) {
            return Err(OpenError::Missing { disk, index, devices: wanted.len() });
        }
    }
    found.sort_by_key(|f| f.label.index);
    for member in &mut found {
        let at = member.label.second_at();
        let second = member.disk.read(at, BLOCK as u32).await.ok();
        let good = second.is_some_and(|b| Superblock::decode(&b, at).as_ref() == Ok(&member.label));
        member.damaged |= !good;
    }
    Ok(found)
}

fn check<D: Disk>(
    device: usize,
    disk: &D,
    label: &Superblock,
    found: &[Member<D>],
    spec: &OpenSpec,
) -> Result<(), OpenError> {
    if let Some(ours) = spec.cluster
        && ours != label.cluster
    {
        return Err(OpenError::OtherCluster { device, theirs: label.cluster, ours });
    }
    if let Some(first) = found.first()
        && first.label.group != label.group
    {
        let (theirs, ours) = (label.group, first.label.group);
        return Err(OpenError::OtherGroup { device, theirs, ours });
    }
    if let Some(a) = found.iter().position(|other| other.label.disk == label.disk) {
        return Err(OpenError::Twice { a, b: device, disk: label.disk });
    }
    let len_bytes = disk.len_bytes();
    if len_bytes < label.size_bytes {
        return Err(OpenError::Shrunk { device, len_bytes, size_bytes: label.size_bytes });
    }
    Ok(())
}

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
        log_at: log_region.at,
        segment_len,
        segments: log_region.len / segment_len,
        entries_max: log.entries_max,
        components_max: log.components_max,
        capacity,
        places: log.incompat & INCOMPAT_PLACED != 0,
        batch_blocks: limits::BATCH_BLOCKS.min((segment_len / 4 / BLOCK) as u32),
    })
}

pub(crate) fn memory<W: World>(world: &W, geometry: &Geometry, spec: &OpenSpec) -> Memory {
    let least = |usual: u64, small| world.bound(usual as usize, small) as u64;
    let capacity: u64 = geometry.capacity.iter().map(|c| c.slots.len).sum();
    let per_tib = |amount: u64| ((u128::from(amount) * u128::from(capacity)) >> 40) as u64;
    let cache_bytes = spec.cache_bytes.unwrap_or(
        per_tib(limits::CACHE_PER_TIB).max(least(limits::CACHE_DEFAULT_MIN, limits::CACHE_SMALL)),
    );
    let cache_bytes = cache_bytes.max(least(limits::CACHE_MIN, limits::CACHE_SMALL));
    let overlay_blocks = spec
        .dirty_bytes
        .map_or(per_tib(limits::OVERLAY_PER_TIB), |b| b / limits::OVERLAY_ENTRY_BYTES)
        .max(least(limits::OVERLAY_MIN, limits::OVERLAY_SMALL));
    // As many blocks as the log can hold payload; records without payload count the same.
    let index_blocks = geometry.log_bytes() / BLOCK;
    Memory { cache_bytes, overlay_blocks, index_blocks }
}
