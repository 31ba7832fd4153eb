//! Proofs that accounting adds up: of a running store from its own state, and of closed devices
//! by recovering them without writing.

use crate::device::Device;
use crate::error::OpenError;
use crate::geometry::geometry;
use crate::limits;
use crate::open::{OpenSpec, memory, sort_out};
use crate::recover;
use crate::store::Store;
use atoll_format::checksum::{bind, crc};
use atoll_format::chunk::{BlockEntry, NONE, PAGE_LEN, page_entry};
use atoll_format::op::BlockState;
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK, CHUNK};
use atoll_world::World;
use atoll_world::sync::Notify;

/// What [`check`] has found on the devices of a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// Components.
    pub components: u64,
    /// Components among them whose capacity device failed: what they hold is not looked at.
    pub components_lost: u64,
    /// Slots that chunks refer to.
    pub slots_used: u64,
    /// Pages that chunks refer to.
    pub pages_used: u64,
    /// Blocks with bytes at home.
    pub blocks_home: u64,
    /// Blocks whose newest version lies in the log.
    pub blocks_log: u64,
    /// Blocks whose bytes do not match, or whose page is unreadable.
    pub blocks_bad: u64,
    /// What does not add up, for people; empty on a sound group.
    pub faults: Vec<String>,
}

/// Recovers a closed group in memory, writes nothing, reads every block, and compares everything
/// that is counted with what it counts.
///
/// # Errors
/// The group cannot be opened: see [`OpenError`].
pub async fn check<W: World>(world: &W, disks: Vec<W::Disk>) -> Result<CheckReport, OpenError> {
    let found = sort_out(disks, &OpenSpec::default()).await?;
    let labels: Vec<_> = found.iter().map(|f| f.label.clone()).collect();
    let geometry = geometry(&labels)?;
    let devices: Vec<Device<W>> = found
        .into_iter()
        .map(|f| {
            let name = format!("disk {}", f.label.disk);
            let deadline = limits::IO_DEADLINE;
            Device::new(world.clone(), f.disk, name, deadline, Notify::default())
        })
        .collect();
    let memory = memory(world, &geometry, &OpenSpec::default());
    let recovered = recover::recover(&devices, geometry, memory).await?;
    let state = recovered.state;
    let mut report =
        CheckReport { components: state.components.len() as u64, ..CheckReport::default() };
    report.faults.extend(state.audit().err());
    for c in state.components.values() {
        if c.is_lost() {
            report.components_lost += 1;
            continue;
        }
        for (chunk, entry) in c.table.iter() {
            let capacity = state.geometry.capacity[usize::from(c.device)];
            report.slots_used += u64::from(entry.slot != NONE);
            let mut page = None;
            if let Some(place) = state.page_place(c, chunk) {
                report.pages_used += 1;
                let bytes = devices[place.device].read(place.at, PAGE_LEN as u32).await;
                page = bytes.ok().filter(|bytes| place.is_of(bytes));
                if page.is_none() {
                    report.blocks_bad += u64::from(BLOCKS_PER_CHUNK);
                    continue;
                }
            }
            let mut bytes = None;
            if entry.slot != NONE {
                let len = BLOCKS_PER_CHUNK * BLOCK as u32;
                let at = capacity.slots.at + u64::from(entry.slot) * u64::from(len);
                bytes = devices[capacity.device].read(at, len).await.ok();
            }
            let hot = c.hot.get(&chunk);
            // Counted below.
            if hot.is_some_and(|h| h.extra_slot().is_some()) {
                continue;
            }
            for index in 0..=u8::MAX {
                if hot.is_some_and(|h| h.whole.is_some() || h.pending_at(index).is_some()) {
                    continue;
                }
                let home = hot.and_then(|h| h.overlay_at(index)).unwrap_or_else(|| match &page {
                    Some(page) => page_entry(page, usize::from(index)),
                    None => entry.base(),
                });
                if home.state != BlockState::Raw {
                    report.blocks_bad += u64::from(home.state == BlockState::Bad);
                    continue;
                }
                report.blocks_home += 1;
                if entry.slot == NONE {
                    report.faults.push(format!("block {index} of chunk {chunk} has no slot"));
                }
                let block = chunk * BLOCKS_PER_CHUNK + u32::from(index);
                let good = |home: BlockEntry, bytes: &[u8]| {
                    let from = usize::from(index) * BLOCK_LEN;
                    let sum = crc(&bytes[from..from + BLOCK_LEN]);
                    bind(sum, c.id, u64::from(block)) == home.crc
                };
                report.blocks_bad += u64::from(!bytes.as_ref().is_some_and(|b| good(home, b)));
            }
        }
        for (&chunk, hot) in &c.hot {
            let Some((whole, slot)) = hot.whole.as_ref().and_then(|w| Some((w, w.slot()?))) else {
                continue;
            };
            let capacity = state.geometry.capacity[usize::from(c.device)];
            let at = capacity.slots.at + u64::from(slot) * CHUNK;
            let bytes = devices[capacity.device].read(at, CHUNK as u32).await.ok();
            if c.table.get(chunk).slot != slot {
                report.slots_used += 1;
            }
            for index in (0..=u8::MAX).filter(|&i| hot.pending_at(i).is_none()) {
                report.blocks_home += 1;
                let from = usize::from(index) * BLOCK_LEN;
                let good = bytes
                    .as_ref()
                    .is_some_and(|b| crc(&b[from..from + BLOCK_LEN]) == whole.tag(index).crc);
                report.blocks_bad += u64::from(!good);
            }
        }
        report.blocks_log += c
            .hot
            .values()
            .map(|h| h.pending.iter().filter(|p| p.state() == BlockState::Raw).count() as u64)
            .sum::<u64>();
    }
    Ok(report)
}

impl<W: World> Store<W> {
    /// Compares everything the running store counts with what it counts.
    ///
    /// # Errors
    /// What does not add up.
    pub fn audit(&self) -> Result<(), String> {
        self.group.state.borrow().audit()
    }
}
