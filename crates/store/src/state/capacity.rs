//! The capacity map: slots and pages of every capacity device, entries of the chunk tables and
//! dirty blocks; how many of each are in use, and how many are set aside for what was accepted.
//!
//! Nothing here is on disk: the maps are rebuilt from the chunk tables (`docs/formats.md`), so a
//! leak is never a loss. A slot is set aside when an operation that will need it is queued, so that
//! everything acknowledged can be destaged. Only this file changes the counts.
//!
//! Invariants, of each device whenever something is set aside or a whole chunk gets its slot:
//! slots in use and set aside are no more than all less the reserve; pages in use (without those
//! that a checkpoint gives up) and set aside are no more than all less those that may be dirty,
//! and so twice on the device; entries in use and set aside are no more than the table holds.

use super::bitmap::Bitmap;
use crate::limits;
use atoll_format::units::{BLOCKS_PER_CHUNK, CHUNK};
use atoll_world::components::GroupSpace;
use atoll_world::sometimes;

/// What an operation needs beyond what its chunk has.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Needs {
    pub slot: bool,
    pub page: bool,
    /// An entry of the chunk table.
    pub entry: bool,
}

impl Needs {
    /// Everything that can be set aside.
    pub(crate) const ALL: Self = Self { slot: true, page: true, entry: true };
}

/// What is set aside for one chunk. Only [`CapacityMap`] changes it.
#[derive(Default, Debug)]
pub(crate) struct Reservation {
    slot: bool,
    /// A round has taken a slot for it that is not yet its entry's.
    slot_taken: bool,
    page: bool,
    entry: bool,
}

impl Reservation {
    pub(crate) fn has_slot(&self) -> bool {
        self.slot
    }

    /// Whether a round of destage has taken a slot for the chunk that is not yet its entry's.
    pub(crate) fn is_slot_taken(&self) -> bool {
        self.slot_taken
    }

    pub(crate) fn has_page(&self) -> bool {
        self.page
    }

    pub(crate) fn has_entry(&self) -> bool {
        self.entry
    }

    /// Nothing is counted for it.
    pub(crate) fn is_empty(&self) -> bool {
        !self.slot && !self.page && !self.entry
    }
}

/// What was counted of one device, to be compared with its map.
#[derive(Default)]
pub(crate) struct DeviceCounts {
    /// Slots that chunks refer to.
    pub slots: u64,
    /// Pages that chunks refer to.
    pub pages: u64,
    pub slots_reserved: u64,
    pub pages_reserved: u64,
    /// Chunks with dirty blocks.
    pub dirty_chunks: u64,
}

/// Slots and pages of one device.
#[derive(Debug)]
struct DeviceMap {
    slots: Bitmap,
    slots_reserved: u32,
    /// Slots that bytes are being written into which the log does not know yet.
    slots_placing: u32,
    /// Slots that are free once the round of destage that is under way has ended: it may still
    /// be writing into them.
    slots_later: Vec<u32>,
    /// Slots kept back when the group is full.
    slots_kept: u32,
    pages: Bitmap,
    pages_reserved: u32,
    /// Pages that only the checkpoint on disk refers to; free once a newer one is durable.
    pages_retired: Vec<u32>,
    /// Chunks that have dirty blocks, and so will get a new page beside the one they have.
    dirty_chunks: u32,
    dirty_pages_max: u32,
    /// It refused a write: nothing more is put on it.
    failed: bool,
}

impl DeviceMap {
    fn new(slots: u32, pages: u32) -> Self {
        Self {
            slots: Bitmap::new(slots),
            slots_reserved: 0,
            slots_placing: 0,
            slots_later: Vec::new(),
            slots_kept: limits::reserve_slots(slots),
            pages: Bitmap::new(pages),
            pages_reserved: 0,
            pages_retired: Vec::new(),
            dirty_chunks: 0,
            dirty_pages_max: limits::dirty_pages_max(slots),
            failed: false,
        }
    }

    fn slots_usable(&self) -> u32 {
        let (placing, used) = (self.slots_placing, self.slots.used());
        assert!(placing <= used, "{placing} slots are being written, {used} are used");
        self.slots.len() - self.slots_kept
    }

    /// Slots that are neither in use nor set aside.
    fn slots_free(&self) -> u32 {
        self.slots_usable().saturating_sub(self.slots.used() + self.slots_reserved)
    }

    /// Pages that can still be set aside.
    fn pages_free(&self) -> u32 {
        let (used, retired) = (self.pages.used(), self.pages_retired.len());
        assert!(retired <= used as usize, "{retired} pages to be freed, {used} used");
        let live = used - retired as u32;
        let usable = self.pages.len().saturating_sub(self.dirty_pages_max);
        usable.saturating_sub(live + self.pages_reserved)
    }
}

/// See the file.
#[derive(Debug)]
pub(crate) struct CapacityMap {
    devices: Vec<DeviceMap>,
    entries_used: u64,
    entries_reserved: u64,
    entries_max: u64,
    /// Blocks that were destaged since the last checkpoint, and how many there may be.
    dirty_blocks: u64,
    dirty_blocks_max: u64,
    /// Destage holds slots that no chunk refers to yet.
    round_under_way: bool,
}

impl CapacityMap {
    /// Empty maps for devices with so many slots and pages each.
    pub(crate) fn new(
        devices: impl Iterator<Item = (u32, u32)>,
        entries_max: u64,
        dirty_blocks_max: u64,
    ) -> Self {
        Self {
            devices: devices.map(|(slots, pages)| DeviceMap::new(slots, pages)).collect(),
            entries_used: 0,
            entries_reserved: 0,
            entries_max,
            dirty_blocks: 0,
            dirty_blocks_max,
            round_under_way: false,
        }
    }

    /// Capacity devices of the group.
    pub(crate) fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Takes a device out of use; false if it was already.
    pub(crate) fn fail(&mut self, device: usize) -> bool {
        !std::mem::replace(&mut self.devices[device].failed, true)
    }

    pub(crate) fn has_failed(&self, device: usize) -> bool {
        self.devices[device].failed
    }

    // ---- what is set aside ----

    /// Whether so much can be set aside.
    pub(crate) fn has_room(&self, device: usize, needs: Needs) -> bool {
        let map = &self.devices[device];
        let entries = self.entries_used + self.entries_reserved;
        (!needs.entry || entries < self.entries_max)
            && (!needs.page || map.pages_free() > 0)
            && (!needs.slot || map.slots_free() > 0)
    }

    /// Sets aside what there is room for.
    pub(crate) fn reserve(&mut self, device: usize, to: &mut Reservation, needs: Needs) {
        assert!(self.has_room(device, needs), "{needs:?} are set aside, and nothing is left");
        self.reserve_given_up(device, to, needs);
    }

    /// Sets aside what was the chunk's own until now, or was set aside for it before a restart: the
    /// room is there, because nobody else could have it.
    pub(crate) fn reserve_given_up(&mut self, device: usize, to: &mut Reservation, needs: Needs) {
        let twice = needs.slot && to.slot || needs.page && to.page || needs.entry && to.entry;
        assert!(!twice, "{needs:?} are set aside twice: {to:?}");
        let map = &mut self.devices[device];
        map.slots_reserved += u32::from(needs.slot);
        map.pages_reserved += u32::from(needs.page);
        self.entries_reserved += u64::from(needs.entry);
        to.slot |= needs.slot;
        to.page |= needs.page;
        to.entry |= needs.entry;
    }

    /// Gives back what of it is set aside.
    pub(crate) fn release(&mut self, device: usize, from: &mut Reservation, what: Needs) {
        let map = &mut self.devices[device];
        map.slots_reserved -= u32::from(what.slot && from.slot);
        map.pages_reserved -= u32::from(what.page && from.page);
        self.entries_reserved -= u64::from(what.entry && from.entry);
        from.slot &= !what.slot;
        from.page &= !what.page;
        from.entry &= !what.entry;
    }

    // ---- slots ----

    /// Slots of a device that components may use in all.
    pub(crate) fn slots_usable(&self, device: usize) -> u32 {
        self.devices[device].slots_usable()
    }

    pub(crate) fn is_slot_used(&self, device: usize, slot: u32) -> bool {
        self.devices[device].slots.is_used(slot)
    }

    /// A chunk that recovery has found has that slot; false if it is another's, or lies outside.
    pub(crate) fn claim_slot(&mut self, device: usize, slot: u32) -> bool {
        self.devices[device].slots.take(slot)
    }

    /// Takes a slot, if one is to spare, for a whole chunk that is written past the log.
    pub(crate) fn begin_placing(&mut self, device: usize) -> Option<u32> {
        let map = &mut self.devices[device];
        if map.failed {
            return None;
        }
        if map.slots_free() == 0 {
            sometimes!("store.place.no_room");
            return None;
        }
        let slot = map.slots.allocate_first()?;
        map.slots_placing += 1;
        let (used, usable) = (map.slots.used() + map.slots_reserved, map.slots_usable());
        assert!(used <= usable, "{used} slots are used or set aside, of {usable}");
        Some(slot)
    }

    /// The log knows whose that slot is.
    pub(crate) fn end_placing(&mut self, device: usize) {
        let map = &mut self.devices[device];
        assert!(map.slots_placing > 0, "more slots were written than were being written");
        map.slots_placing -= 1;
    }

    /// What was to be in that slot never gets into the log.
    pub(crate) fn give_up_placing(&mut self, device: usize, slot: u32) {
        self.end_placing(device);
        self.free_slot_now(device, slot);
    }

    /// Takes the slot that was set aside for a chunk; without a reservation its component was
    /// deleted or lost meanwhile. None: there is none, and so the accounting is wrong.
    pub(crate) fn take_slot(
        &mut self,
        device: usize,
        reserved: Option<&mut Reservation>,
    ) -> Option<u32> {
        let map = &mut self.devices[device];
        let slot = map.slots.allocate();
        if let Some(reserved) = reserved {
            // From here on the slot itself is what was set aside.
            map.slots_reserved -= u32::from(std::mem::take(&mut reserved.slot));
            reserved.slot_taken = slot.is_some();
        }
        slot
    }

    /// The slot that a round had taken for a chunk is its entry's, or is given back.
    pub(crate) fn end_taking(&mut self, reserved: &mut Reservation) {
        assert!(self.round_under_way, "a slot was taken without a round: {reserved:?}");
        reserved.slot_taken = false;
    }

    /// Gives a slot back; to be used again when the round of destage that may be under way has
    /// ended.
    pub(crate) fn free_slot(&mut self, device: usize, slot: u32) {
        let map = &mut self.devices[device];
        assert!(map.slots.is_used(slot), "slot {slot} is given back, and nobody has it");
        if self.round_under_way {
            map.slots_later.push(slot);
        } else {
            map.slots.free(slot);
        }
    }

    /// Gives a slot back that no round writes into.
    pub(crate) fn free_slot_now(&mut self, device: usize, slot: u32) {
        self.devices[device].slots.free(slot);
    }

    /// Destage, or a checkpoint, begins: slots that are freed meanwhile stay taken.
    pub(crate) fn begin_round(&mut self) {
        assert!(!self.round_under_way, "two rounds are under way");
        self.round_under_way = true;
    }

    /// It has ended: slots that were freed meanwhile are free.
    pub(crate) fn end_round(&mut self) {
        assert!(self.round_under_way, "a round ends that did not begin");
        self.round_under_way = false;
        for map in &mut self.devices {
            for slot in std::mem::take(&mut map.slots_later) {
                map.slots.free(slot);
            }
        }
    }

    pub(crate) fn is_round_under_way(&self) -> bool {
        self.round_under_way
    }

    // ---- pages ----

    pub(crate) fn is_page_used(&self, device: usize, page: u32) -> bool {
        self.devices[device].pages.is_used(page)
    }

    /// A chunk that recovery has found has that page; false if it is another's, or lies outside.
    pub(crate) fn claim_page(&mut self, device: usize, page: u32) -> bool {
        self.devices[device].pages.take(page)
    }

    /// Takes a page for a chunk that is dirty. There is one: dirty pages are bounded.
    pub(crate) fn take_page(&mut self, device: usize) -> u32 {
        self.devices[device].pages.allocate().expect("dirty pages are bounded")
    }

    pub(crate) fn free_page(&mut self, device: usize, page: u32) {
        self.devices[device].pages.free(page);
    }

    /// A page that no chunk refers to any more; the checkpoint on disk may.
    pub(crate) fn retire_page(&mut self, device: usize, page: u32) {
        self.devices[device].pages_retired.push(page);
    }

    /// Retired pages of each device.
    pub(crate) fn pages_retired(&self) -> Vec<usize> {
        self.devices.iter().map(|map| map.pages_retired.len()).collect()
    }

    /// A checkpoint is durable that was begun with so many retired pages of each device.
    pub(crate) fn free_retired_pages(&mut self, retired: &[usize]) {
        for (map, &count) in self.devices.iter_mut().zip(retired) {
            let now = map.pages_retired.len();
            assert!(now == count, "{count} pages were to be freed by a checkpoint, {now} are");
            for page in std::mem::take(&mut map.pages_retired) {
                map.pages.free(page);
            }
        }
    }

    // ---- entries ----

    /// A component's chunk table had `before` entries, and has `after`.
    pub(crate) fn entries_changed(&mut self, before: u32, after: u32) {
        let all = self.entries_used;
        assert!(u64::from(before) <= all, "{before} entries of one component, {all} of all");
        self.entries_used = all + u64::from(after) - u64::from(before);
    }

    // ---- dirty blocks ----

    /// A chunk had `before` dirty blocks, and has `after`.
    pub(crate) fn dirty_changed(&mut self, device: usize, before: usize, after: usize) {
        let (all, chunks) = (self.dirty_blocks, &mut self.devices[device].dirty_chunks);
        assert!(before as u64 <= all, "{before} dirty blocks of one chunk, {all} of all");
        self.dirty_blocks = all + after as u64 - before as u64;
        *chunks = *chunks + u32::from(after > 0) - u32::from(before > 0);
    }

    pub(crate) fn dirty_blocks(&self) -> u64 {
        self.dirty_blocks
    }

    pub(crate) fn dirty_chunks(&self, device: usize) -> u32 {
        self.devices[device].dirty_chunks
    }

    /// Whether another chunk may become dirty beside those of a round that may be under way.
    pub(crate) fn takes_dirty_chunk(&self, device: usize) -> bool {
        let (map, round) = (&self.devices[device], self.round_chunks());
        let chunks = map.dirty_chunks as usize + 1 + round;
        self.dirty_blocks + u64::from(BLOCKS_PER_CHUNK) <= self.dirty_blocks_max * 3 / 4
            && chunks <= map.dirty_pages_max as usize
    }

    /// Whether a checkpoint is due, so that another round finds memory and pages for its blocks.
    pub(crate) fn is_too_dirty(&self) -> bool {
        let round = self.round_chunks();
        self.dirty_blocks > self.dirty_blocks_max * 3 / 4
            || self
                .devices
                .iter()
                .any(|map| map.dirty_chunks as usize + round > map.dirty_pages_max as usize)
    }

    /// Chunks of one round: at most half of what may be dirty between checkpoints.
    pub(crate) fn round_chunks(&self) -> usize {
        let dirty = self.devices.iter().map(|map| map.dirty_pages_max as usize / 2).min();
        limits::ROUND_CHUNKS.min(dirty.unwrap_or(0))
    }

    // ---- numbers ----

    /// Adds the bytes of all devices in use.
    pub(crate) fn add_to(&self, space: &mut GroupSpace) {
        for map in self.devices.iter().filter(|map| !map.failed) {
            let usable = u64::from(map.slots_usable()) * CHUNK;
            space.capacity_bytes += usable;
            space.device_bytes = usable.max(space.device_bytes);
            space.used_bytes += u64::from(map.slots.used() + map.slots_reserved) * CHUNK;
            space.free_bytes += u64::from(map.slots_free()) * CHUNK;
        }
    }

    /// Bytes of memory for maps and dirty blocks.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let of = |map: &DeviceMap| {
            let units = u64::from(map.slots.len() + map.pages.len());
            units / 8 + map.pages_retired.len() as u64 * 4
        };
        let maps: u64 = self.devices.iter().map(of).sum();
        maps + self.dirty_blocks * limits::OVERLAY_ENTRY_BYTES
    }

    /// Nothing is set aside.
    pub(crate) fn is_nothing_reserved(&self) -> bool {
        let none = |map: &DeviceMap| map.slots_reserved == 0 && map.pages_reserved == 0;
        self.entries_reserved == 0 && self.devices.iter().all(none)
    }

    /// Slots that are being written and that the log does not know yet.
    pub(crate) fn slots_placing(&self, device: usize) -> u32 {
        self.devices[device].slots_placing
    }

    /// Compares the map of a device with what was counted.
    ///
    /// # Errors
    /// What does not add up.
    pub(crate) fn audit(&self, device: usize, counted: &DeviceCounts) -> Result<(), String> {
        let map = &self.devices[device];
        if !self.round_under_way {
            let held = counted.slots + u64::from(map.slots_placing);
            equal("slots in use", held, u64::from(map.slots.used()))?;
            let held = counted.pages + map.pages_retired.len() as u64;
            equal("pages in use", held, u64::from(map.pages.used()))?;
        }
        equal("slots set aside", counted.slots_reserved, u64::from(map.slots_reserved))?;
        equal("pages set aside", counted.pages_reserved, u64::from(map.pages_reserved))?;
        equal("dirty chunks", counted.dirty_chunks, u64::from(map.dirty_chunks))
    }

    /// Compares what is counted for all devices together.
    ///
    /// # Errors
    /// What does not add up.
    pub(crate) fn audit_all(
        &self,
        entries: u64,
        entries_reserved: u64,
        dirty_blocks: u64,
    ) -> Result<(), String> {
        equal("dirty blocks", dirty_blocks, self.dirty_blocks)?;
        equal("chunk entries", entries, self.entries_used)?;
        equal("chunk entries set aside", entries_reserved, self.entries_reserved)
    }
}

/// Whether `said` is what was `counted`.
///
/// # Errors
/// Both numbers.
pub(crate) fn equal(what: &str, counted: u64, said: u64) -> Result<(), String> {
    if counted == said { Ok(()) } else { Err(format!("{what}: {said}, counted {counted}")) }
}

#[cfg(test)]
mod tests {
    use super::{CapacityMap, DeviceCounts, Needs, Reservation};
    use crate::limits;

    const SLOT: Needs = Needs { slot: true, page: false, entry: false };

    /// One device with 100 slots, and a table for three entries.
    fn map() -> CapacityMap {
        CapacityMap::new([(100, 10_000)].into_iter(), 3, 1_000)
    }

    #[test]
    fn what_is_set_aside_cannot_be_had_by_others() {
        let mut map = map();
        let usable = 100 - limits::reserve_slots(100);
        assert_eq!(map.slots_usable(0), usable);
        let mut chunks: Vec<Reservation> = Vec::new();
        while map.has_room(0, SLOT) {
            let mut chunk = Reservation::default();
            map.reserve(0, &mut chunk, SLOT);
            chunks.push(chunk);
        }
        assert_eq!(chunks.len(), usable as usize);
        assert_eq!(map.begin_placing(0), None, "all are set aside");
        map.release(0, &mut chunks[0], SLOT);
        assert!(chunks[0].is_empty());
        let placed = map.begin_placing(0).expect("one was given back");
        map.begin_round();
        let slot = map.take_slot(0, Some(&mut chunks[1])).expect("set aside");
        assert!(chunks[1].is_slot_taken() && !chunks[1].has_slot() && slot != placed);
        map.end_taking(&mut chunks[1]);
        map.give_up_placing(0, placed);
        map.free_slot(0, slot);
        assert!(map.is_slot_used(0, slot), "the round may still write into it");
        map.end_round();
        assert!(!map.is_slot_used(0, slot) && map.has_room(0, SLOT));
        let left = chunks.iter().filter(|chunk| chunk.has_slot()).count() as u64;
        let counted = DeviceCounts { slots_reserved: left, ..DeviceCounts::default() };
        assert_eq!(map.audit(0, &counted), Ok(()));
    }

    #[test]
    fn entries_in_use_and_set_aside_are_bounded_together() {
        let mut map = map();
        let entry = Needs { entry: true, ..Needs::default() };
        map.entries_changed(0, 2);
        let mut chunk = Reservation::default();
        map.reserve(0, &mut chunk, entry);
        assert!(chunk.has_entry() && !map.has_room(0, entry));
        map.entries_changed(2, 1);
        assert!(map.has_room(0, entry));
        assert_eq!(map.audit_all(1, 1, 0), Ok(()));
    }

    #[test]
    fn a_chunk_is_dirty_as_long_as_it_has_dirty_blocks() {
        let mut map = map();
        map.dirty_changed(0, 0, 5);
        map.dirty_changed(0, 5, 7);
        assert_eq!((map.dirty_blocks(), map.dirty_chunks(0)), (7, 1));
        map.dirty_changed(0, 0, 744);
        assert!(map.is_too_dirty());
        map.dirty_changed(0, 744, 0);
        map.dirty_changed(0, 7, 0);
        assert_eq!((map.dirty_blocks(), map.dirty_chunks(0)), (0, 0));
    }
}
