//! Proofs that accounting adds up: of a running store from its own state, and of closed devices
//! by recovering them without writing.

use crate::component::Component;
use crate::device::Device;
use crate::index::{Overlay, Pending};
use crate::limits;
use crate::open::{OpenError, OpenSpec, geometry, memory, sort_out};
use crate::recover;
use crate::state::State;
use crate::store::Store;
use crate::table::is_present;
use atoll_format::checksum::{bind, crc};
use atoll_format::chunk::{BlockEntry, NONE, PAGE_LEN, PageHead, check_page, page_entry};
use atoll_format::op::BlockState;
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK, CHUNK};
use atoll_world::World;
use atoll_world::sync::Notify;
use std::collections::{BTreeMap, BTreeSet};

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
            if entry.page != NONE {
                report.pages_used += 1;
                let head = PageHead {
                    group: state.geometry.group,
                    component: c.id,
                    chunk,
                    page: entry.page,
                    generation: entry.page_generation,
                };
                let at = capacity.pages.at + u64::from(entry.page) * BLOCK;
                let bytes = devices[capacity.device].read(at, PAGE_LEN as u32).await;
                page = bytes.ok().filter(|b| check_page(b, &head, entry.page_crc).is_ok());
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

impl State {
    /// See [`Store::audit`].
    pub(crate) fn audit(&self) -> Result<(), String> {
        let equal = |what: &str, counted: u64, said: u64| {
            if counted == said { Ok(()) } else { Err(format!("{what}: {said}, counted {counted}")) }
        };
        let mut live = vec![0u64; self.ring.len()];
        let (mut index, mut overlay, mut entries, mut entries_reserved) = (0, 0, 0, 0);
        for (device, space) in self.space.iter().enumerate() {
            let (mut slots, mut pages) = (BTreeSet::new(), BTreeSet::new());
            let (mut slots_reserved, mut pages_reserved, mut dirty) = (0, 0, 0);
            for c in self.components.values().filter(|c| usize::from(c.device) == device) {
                let (mut of_component, mut log_live) = (0, 0);
                for (chunk, entry) in c.table.iter() {
                    entries += 1;
                    if entry.slot != NONE {
                        of_component += 1;
                        if !slots.insert(entry.slot) || !space.slots.is_used(entry.slot) {
                            return Err(format!("slot {} of chunk {chunk}", entry.slot));
                        }
                    }
                    if entry.page != NONE
                        && (!pages.insert(entry.page) || !space.pages.is_used(entry.page))
                    {
                        return Err(format!("page {} of chunk {chunk}", entry.page));
                    }
                }
                for (&chunk, hot) in &c.hot {
                    let whole = hot.whole.iter().map(|w| (w.at, w.weight()));
                    for (at, weight) in hot.pending.iter().map(|p| (p.at, 1)).chain(whole) {
                        live[self.geometry.ring_index(at)] += weight;
                        index += weight;
                        log_live += weight;
                    }
                    for slot in hot.extra_slots(&c.table.get(chunk)) {
                        if !slots.insert(slot) || !space.slots.is_used(slot) {
                            return Err(format!("placed slot {slot} of chunk {chunk}"));
                        }
                    }
                    if !hot.spare.is_empty() && hot.whole.is_none() {
                        return Err(format!("chunk {chunk} of {} keeps a spare slot", c.id));
                    }
                    overlay += hot.overlay.len() as u64;
                    dirty += u64::from(!hot.overlay.is_empty());
                    slots_reserved += u64::from(hot.slot_reserved);
                    pages_reserved += u64::from(hot.page_reserved);
                    entries_reserved += u64::from(hot.entry_reserved);
                    let entry = c.table.get(chunk);
                    let raw = hot.pending.iter().any(|p| p.state() == BlockState::Raw);
                    let owns_slot = entry.slot != NONE || hot.extra_slot().is_some();
                    if raw && !owns_slot && !hot.slot_reserved && !self.round_under_way {
                        return Err(format!("chunk {chunk} of {} has no slot set aside", c.id));
                    }
                    let has_room = (is_present(&entry) || hot.entry_reserved)
                        && (entry.page != NONE || hot.page_reserved);
                    if raw && !has_room && !self.round_under_way {
                        return Err(format!("chunk {chunk} of {} has no page set aside", c.id));
                    }
                    if hot.is_settled() && hot.overlay.is_empty() {
                        return Err(format!("chunk {chunk} of {} should be forgotten", c.id));
                    }
                    if hot.entry_reserved && is_present(&entry) {
                        return Err(format!("chunk {chunk} of {} has an entry twice", c.id));
                    }
                }
                equal("slots of a component", of_component, u64::from(c.slots_used))?;
                equal("blocks of a component in the log", log_live, c.log_live)?;
            }
            if !self.round_under_way {
                let held = slots.len() as u64 + u64::from(space.slots_placing);
                equal("slots in use", held, u64::from(space.slots.used()))?;
                let retired = space.retired_pages.len();
                let held = pages.len() as u64 + retired as u64;
                equal("pages in use", held, u64::from(space.pages.used()))?;
            }
            equal("slots set aside", slots_reserved, u64::from(space.slots_reserved))?;
            equal("pages set aside", pages_reserved, u64::from(space.pages_reserved))?;
            equal("dirty chunks", dirty, u64::from(self.overlay_chunks[device]))?;
        }
        for (place, segment) in self.ring.iter().enumerate() {
            equal("live blocks of a segment", live[place], segment.live)?;
        }
        self.audit_log()?;
        for c in self.components.values() {
            c.audit().map_err(|why| format!("component {}: {why}", c.id))?;
        }
        for (id, local) in self.by_id.iter() {
            if self.components.get(local).is_none_or(|c| c.id != *id) {
                return Err(format!("component {id} is to be number {local}, and is not"));
            }
        }
        if !self.round_under_way {
            self.audit_laid()?;
        }
        equal("blocks in the log", index, self.index_blocks)?;
        equal("dirty blocks", overlay, self.overlay_blocks)?;
        equal("chunk entries", entries, self.entries_used)?;
        equal("chunk entries set aside", entries_reserved, self.entries_reserved)
    }

    /// Nothing lives where the log may be overwritten, and nothing that only the log says was said
    /// in a part of it that is free (`trim_below`).
    fn audit_log(&self) -> Result<(), String> {
        let (from, to, places) = (self.trim_below, self.head_segment, self.geometry.segments);
        if to < from || to - from >= places {
            return Err(format!("the log goes from {from} to {to}, and has {places} places"));
        }
        let held: BTreeSet<u64> = (from..=to).map(|segment| segment % places).collect();
        for (place, segment) in (0..).zip(&self.ring) {
            if segment.live > 0 && !held.contains(&place) {
                return Err(format!("{} blocks live in a free segment", segment.live));
            }
        }
        for c in self.components.values() {
            if c.unsaved_from.is_some_and(|segment| segment < from || segment > to) {
                let of = c.id;
                return Err(format!("what {of} promised in segment {:?} is gone", c.unsaved_from));
            }
        }
        match self.graves.iter().find(|(segment, _)| *segment < from) {
            Some((segment, local)) => Err(format!("number {local}, deleted in {segment}, is back")),
            None => Ok(()),
        }
    }

    /// Destage finds everything that lies in the log.
    fn audit_laid(&self) -> Result<(), String> {
        let mut laid: BTreeMap<(u32, u32), BTreeSet<u32>> = BTreeMap::new();
        for known in self.ring.iter().flat_map(|segment| &segment.laid) {
            laid.entry((known.local, known.chunk)).or_default().insert(known.at);
        }
        let none = BTreeSet::new();
        for c in self.components.values() {
            for (&chunk, hot) in &c.hot {
                let known = laid.get(&(c.local, chunk)).unwrap_or(&none);
                let whole = hot.whole.iter().map(|w| w.at);
                for at in hot.pending.iter().map(|p| p.at).chain(whole) {
                    let before = known.range(..=at).next_back();
                    if before.is_none_or(|&before| at - before >= limits::LAID_SPAN) {
                        let of = format!("of chunk {chunk} of {}", c.id);
                        return Err(format!("block {at} of the log, {of}, is lost to destage"));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Component {
    /// What it promises holds together.
    fn audit(&self) -> Result<(), String> {
        let holds = |what: &str, holds: bool| match holds {
            true => Ok(()),
            false => Err(format!("{what}: {self:?}")),
        };
        let (promise, first) = (&self.promise, self.uncommitted.first_key_value());
        let last = self.uncommitted.last_key_value();
        holds("committed and not", first.is_none_or(|(&seq, _)| seq > promise.committed))?;
        holds("newer than the newest", last.is_none_or(|(&seq, _)| seq <= promise.newest))?;
        holds("session above the fence", self.session.epoch <= promise.fenced)?;
        holds("fence not queued", self.queued_fence >= promise.fenced)?;
        holds("session not queued", self.queued_session >= self.session)?;
        holds("committed is more than was logged", self.committed_logged <= promise.committed)?;
        let chunks = self.spec.blocks.div_ceil(BLOCKS_PER_CHUNK);
        for (&chunk, hot) in &self.hot {
            holds("a chunk beyond its end", chunk < chunks)?;
            let newest =
                hot.pending.iter().map(|p| p.seq()).chain(hot.whole.as_ref().map(|w| w.seq));
            holds(
                "a block is newer than its chunk",
                newest.max().unwrap_or_default() <= hot.newest,
            )?;
            holds("a chunk is newer than all", hot.newest <= promise.newest)?;
            let sorted = |blocks: &[u8]| blocks.windows(2).all(|two| two[0] < two[1]);
            let pending: Vec<u8> = hot.pending.iter().map(Pending::block).collect();
            let overlay: Vec<u8> = hot.overlay.iter().map(Overlay::block).collect();
            holds("blocks twice or out of order", sorted(&pending) && sorted(&overlay))?;
        }
        Ok(())
    }
}
