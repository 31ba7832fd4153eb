//! Opening and closing a store: the labels of its devices, recovery, its background tasks.

use crate::audit::audit;
use crate::create::write_labels;
use crate::destage::mover;
use crate::device::{Device, DeviceError};
use crate::error::OpenError;
use crate::geometry::{Geometry, geometry};
use crate::group::Group;
use crate::label::{Inspection, inspect};
use crate::limits;
use crate::log::queue::LogQueue;
use crate::log::writer;
use crate::metadata::checkpoint;
use crate::recover::{self, MemoryBudget};
use crate::sizes;
use crate::state::pace::DestageStart;
use crate::store::Store;
use atoll_format::id::ClusterId;
use atoll_format::superblock::Superblock;
use atoll_format::units::BLOCK;
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
        let found = labels.map_err(|_| OpenError::Silent { within: deadline * 2 })??;
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
        flush_all(&devices).await?;
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
            destage_start: DestageStart {
                fill: spec.destage_at.unwrap_or(limits::FILL_DESTAGE).min(limits::FILL_URGENT - 1),
                idle: spec.idle_destage.unwrap_or(limits::IDLE_DESTAGE),
            },
            checkpoint_at: spec.checkpoint_at.unwrap_or(u64::MAX).min(half_a_journal),
            closing: Cell::new(false),
            slowed_at: Cell::new(None),
            writes_footer: Cell::new(false),
            footer_written: Notify::default(),
            log_ended: Cell::new(false),
            mover_ended: Cell::new(false),
            world: world.clone(),
        });
        group.state.borrow_mut().pace.wrote(world.now());
        audit(&group, "after it was recovered");
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
                if group.failed.borrow().is_none() {
                    group.assert_at_rest();
                }
                return;
            }
            wait.await;
        }
    }
}

/// Makes everything durable that was read.
async fn flush_all<W: World>(devices: &[Device<W>]) -> Result<(), OpenError> {
    if mutant!("open.cache_is_believed") {
        return Ok(());
    }
    for device in devices {
        device.flush().await.map_err(|error| match error {
            DeviceError::Read(why) | DeviceError::Failed(why) => OpenError::Io(why),
        })?;
    }
    Ok(())
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
    world.spawn(mover::run(group.clone()));
    if writer::write_marker(group).await.is_err() {
        return Err(gone(group));
    }
    world.spawn(writer::run(group.clone()));
    Ok(())
}

/// A device of the group and its label.
pub(crate) struct LabelledDisk<D> {
    pub disk: D,
    pub label: Superblock,
    /// One of the two copies of the label is not good.
    damaged: bool,
}

impl<D: Disk> LabelledDisk<D> {
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
) -> Result<Vec<LabelledDisk<D>>, OpenError> {
    let mut found: Vec<LabelledDisk<D>> = Vec::new();
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
        found.push(LabelledDisk { disk, label, damaged });
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
    found: &[LabelledDisk<D>],
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

pub(crate) fn memory<W: World>(world: &W, geometry: &Geometry, spec: &OpenSpec) -> MemoryBudget {
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
    let index_blocks = geometry.log.bytes() / BLOCK;
    MemoryBudget { cache_bytes, overlay_blocks, index_blocks }
}
