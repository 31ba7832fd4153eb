//! Compares everything that the state counts with what it counts.

use super::State;
use super::capacity::{DeviceCounts, equal};
use super::chunk::{HotChunk, Overlay, Pending};
use super::component::Component;
use super::table::is_present;
use crate::limits;
use atoll_format::chunk::NONE;
use atoll_format::units::BLOCKS_PER_CHUNK;
use std::collections::{BTreeMap, BTreeSet};

/// What was counted of all devices together.
struct GroupCounts {
    /// Live blocks at each place of the ring of the log.
    live: Vec<u64>,
    dirty_blocks: u64,
    entries: u64,
    entries_reserved: u64,
}

impl State {
    /// Compares everything that is counted with what it counts.
    ///
    /// # Errors
    /// What does not add up.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut all = GroupCounts {
            live: vec![0; self.geometry.log.segments as usize],
            dirty_blocks: 0,
            entries: 0,
            entries_reserved: 0,
        };
        for device in 0..self.capacity.devices() {
            let counted = self.count_device(device, &mut all)?;
            self.capacity.audit(device, &counted)?;
        }
        self.log.audit(&all.live)?;
        self.audit_unsaved()?;
        for c in self.components.values() {
            c.audit().map_err(|why| format!("component {}: {why}", c.id))?;
        }
        self.components.audit()?;
        if !self.capacity.is_round_under_way() {
            self.audit_notes()?;
        }
        self.capacity.audit_all(all.entries, all.entries_reserved, all.dirty_blocks)
    }

    fn count_device(&self, device: usize, all: &mut GroupCounts) -> Result<DeviceCounts, String> {
        let mut counts = DeviceCounts::default();
        let (mut slots, mut pages) = (BTreeSet::new(), BTreeSet::new());
        for c in self.components.values().filter(|c| usize::from(c.device) == device) {
            let (mut of_component, mut share) = (0, 0);
            for (chunk, entry) in c.table.iter() {
                all.entries += 1;
                if entry.slot != NONE {
                    of_component += 1;
                    let used = self.capacity.is_slot_used(device, entry.slot);
                    if !slots.insert(entry.slot) || !used {
                        return Err(format!("slot {} of chunk {chunk}", entry.slot));
                    }
                }
                if entry.page != NONE
                    && (!pages.insert(entry.page)
                        || !self.capacity.is_page_used(device, entry.page))
                {
                    return Err(format!("page {} of chunk {chunk}", entry.page));
                }
            }
            for (&chunk, hot) in &c.hot {
                for (at, weight) in hot.in_log() {
                    all.live[self.geometry.log.ring_index(at)] += weight;
                    share += weight;
                }
                for slot in hot.extra_slots(&c.table.get(chunk)) {
                    if !slots.insert(slot) || !self.capacity.is_slot_used(device, slot) {
                        return Err(format!("placed slot {slot} of chunk {chunk}"));
                    }
                }
                all.dirty_blocks += hot.overlay.len() as u64;
                all.entries_reserved += u64::from(hot.reserved.has_entry());
                counts.dirty_chunks += u64::from(!hot.overlay.is_empty());
                counts.slots_reserved += u64::from(hot.reserved.has_slot());
                counts.pages_reserved += u64::from(hot.reserved.has_page());
                self.audit_chunk(c, chunk, hot)?;
            }
            equal("slots of a component", of_component, u64::from(c.table.slots_used()))?;
            equal("blocks of a component in the log", share, c.log_share.blocks())?;
        }
        (counts.slots, counts.pages) = (slots.len() as u64, pages.len() as u64);
        Ok(counts)
    }

    /// A chunk has what it needs, and nothing twice.
    fn audit_chunk(&self, c: &Component, chunk: u32, hot: &HotChunk) -> Result<(), String> {
        let entry = c.table.get(chunk);
        let fault = |what: &str| Err(format!("chunk {chunk} of {} {what}", c.id));
        if !hot.spare.is_empty() && hot.whole.is_none() {
            return fault("keeps a spare slot");
        }
        // A round has taken slots that no chunk refers to yet.
        let waits = hot.has_bytes_in_log() && !self.capacity.is_round_under_way();
        let owns_slot = entry.slot != NONE || hot.extra_slot().is_some();
        if waits && !owns_slot && !hot.reserved.has_slot() {
            return fault("has no slot set aside");
        }
        let has_room = (is_present(&entry) || hot.reserved.has_entry())
            && (entry.page != NONE || hot.reserved.has_page());
        if waits && !has_room {
            return fault("has no page set aside");
        }
        if hot.is_settled() && hot.overlay.is_empty() {
            return fault("should be forgotten");
        }
        if hot.reserved.has_entry() && is_present(&entry) {
            return fault("has an entry twice");
        }
        Ok(())
    }

    /// Nothing that only the log says was said in a part of it that is free.
    fn audit_unsaved(&self) -> Result<(), String> {
        let (from, to) = (self.log.trim_below(), self.log.head_segment());
        for c in self.components.values() {
            if c.unsaved_from.is_some_and(|segment| segment < from || segment > to) {
                let of = c.id;
                return Err(format!("what {of} promised in segment {:?} is gone", c.unsaved_from));
            }
        }
        match self.components.tombstones().iter().find(|(segment, _)| *segment < from) {
            Some((segment, local)) => Err(format!("number {local}, deleted in {segment}, is back")),
            None => Ok(()),
        }
    }

    /// Destage finds everything that lies in the log.
    fn audit_notes(&self) -> Result<(), String> {
        let mut notes: BTreeMap<(u32, u32), BTreeSet<u32>> = BTreeMap::new();
        for note in self.log.notes() {
            notes.entry((note.local, note.chunk)).or_default().insert(note.at);
        }
        let none = BTreeSet::new();
        for c in self.components.values() {
            for (&chunk, hot) in &c.hot {
                let known = notes.get(&(c.local, chunk)).unwrap_or(&none);
                for (at, _) in hot.in_log() {
                    let before = known.range(..=at).next_back();
                    if before.is_none_or(|&before| at - before >= limits::NOTE_SPAN) {
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
        holds("too many clients", self.clients.len() <= limits::CLIENTS_MAX)?;
        let in_log = |hot: &HotChunk| !hot.pending.is_empty() || hot.whole.is_some();
        holds("lost, and in the log", !self.is_lost() || !self.hot.values().any(in_log))?;
        let is_dirty = |hot: &HotChunk| !hot.overlay.is_empty();
        holds("lost, and dirty", !self.is_lost() || !self.hot.values().any(is_dirty))?;
        let listed = self.uncommitted.iter().all(|(&seq, op)| seq == op.id.seq);
        holds("listed under another number", listed)?;
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
