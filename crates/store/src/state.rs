//! All of a group's state in memory, and the one function that changes blocks: [`State::apply`].
//!
//! A running store and its recovery apply the same descriptors in the same order with the same
//! function, so a restart arrives where the store was. No I/O, no waiting.
//!
//! Invariants: operations take effect in the order of the log; the newest record of a block in the
//! log is at least as new as its home; a segment's `live` counts the blocks whose newest version
//! lies in it.

use crate::component::Component;
use crate::index::{Content, Pending, Whole};
use crate::limits;
use crate::pages::PageCache;
use crate::space::DeviceSpace;
use crate::table::is_present;
use atoll_format::chunk::{BlockEntry, NONE};
use atoll_format::id::{ClientId, ComponentId, Epoch, ObjectId, OpId, Seq, Session, Ticket};
use atoll_format::log::{Descriptor, FLAG_FORCED, FLAG_FORGET, FLAG_INCOMPLETE, LogKind};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpKind, OpRecord};
use atoll_format::superblock::Region;
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, CHUNK};
use atoll_world::components::{
    ComponentSpec, GroupSpace, ScrubProgress, StoreCounters, StoreError, StoreEvent,
};
use atoll_world::{FixedMap, Nanos, mutant, sometimes};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where everything lies: the labels, made handy. Never changes while a store runs.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    pub group: u64,
    pub salt: u64,
    pub checkpoints: [Region; 2],
    pub journal: Region,
    pub log_at: u64,
    pub segment_len: u64,
    pub segments: u64,
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

impl Geometry {
    /// Where segment `segment` lies. Segments take turns.
    pub(crate) fn segment_at(&self, segment: u64) -> u64 {
        self.log_at + (segment % self.segments) * self.segment_len
    }
    /// Which place of the ring a block of the log device belongs to.
    pub(crate) fn ring_index(&self, at: u32) -> usize {
        ((u64::from(at) * BLOCK - self.log_at) / self.segment_len) as usize
    }
    pub(crate) fn log_bytes(&self) -> u64 {
        self.segment_len * self.segments
    }
    /// The block of capacity device `device` where block `index` of that slot lies.
    pub(crate) fn home_block(&self, device: u8, slot: u32, index: u8) -> u32 {
        let at = self.capacity[usize::from(device)].slots.at / BLOCK;
        (at + u64::from(slot) * u64::from(BLOCKS_PER_CHUNK) + u64::from(index)) as u32
    }
}

/// One place of the ring of segments.
#[derive(Clone, Default, Debug)]
pub(crate) struct Segment {
    /// Blocks whose newest version lies in it.
    pub live: u64,
    /// Reads of it under way: it is not overwritten before they end.
    pub readers: u32,
    /// What was put into it, in the order of the log; emptied as it is destaged. Whatever of a
    /// chunk lies in the segment lies less than [`limits::LAID_SPAN`] blocks behind one of these.
    pub laid: VecDeque<Laid>,
}

/// From here on, and not much further, the log has blocks of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laid {
    /// Block of the log device.
    pub at: u32,
    pub local: u32,
    pub chunk: u32,
}

impl Segment {
    /// Blocks of a chunk, no more than one operation has, begin at that block of the log device.
    fn lay(&mut self, laid: Laid) {
        let known = self.laid.back().is_some_and(|last| {
            let behind = laid.at.checked_sub(last.at);
            (last.local, last.chunk) == (laid.local, laid.chunk)
                && behind.is_some_and(|n| n < limits::LAID_SPAN - BLOCKS_PER_CHUNK)
        });
        if !known {
            self.laid.push_back(laid);
        }
    }
}

/// Where the payload of a batch and the batch itself lie, in blocks of the log device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPlace {
    pub batch: u32,
    pub payload: u32,
    pub segment: u64,
}

/// How fast writers fill the log, lately.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Incoming {
    /// Where the window begins.
    since: Nanos,
    blocks: u64,
    /// Smoothed over the windows before.
    per_second: u64,
}

impl Incoming {
    /// Blocks per second; `blocks`: of the log, ever.
    pub(crate) fn per_second(&mut self, blocks: u64, now: Nanos) -> u64 {
        let span = now.since(self.since);
        if span >= limits::INCOMING_WINDOW {
            let last = (blocks - self.blocks).saturating_mul(1_000_000_000) / span.0;
            // What began in this window counts at once, what ended fades: a burst must not wait.
            self.per_second = last.max((self.per_second * 3 + last) / 4);
            (self.since, self.blocks) = (now, blocks);
        }
        self.per_second
    }
}

/// See the file.
pub(crate) struct State {
    pub geometry: Geometry,
    pub components: BTreeMap<u32, Component>,
    pub by_id: FixedMap<ComponentId, u32>,
    pub next_local: u32,
    /// Components deleted in the log whose end the journal does not know yet: segment, number.
    pub graves: VecDeque<(u64, u32)>,
    pub space: Vec<DeviceSpace>,
    pub capacity_failed: Vec<bool>,
    pub entries_used: u64,
    pub entries_reserved: u64,
    /// Chunks for which an append was announced, in the order in which that ends.
    pub holds: VecDeque<(Nanos, u32, u32)>,
    pub cache: PageCache,

    pub ring: Vec<Segment>,
    /// Segments below are free: the journal says so.
    pub trim_below: u64,
    /// The segment that is being written, and how far, in bytes.
    pub head_segment: u64,
    pub head_offset: u64,
    /// Blocks in the log's index and how many there may be.
    pub index_blocks: u64,
    pub index_max: u64,
    /// Block records in overlays, how many there may be, and chunks that have any.
    pub overlay_blocks: u64,
    pub overlay_max: u64,
    pub overlay_chunks: Vec<u32>,
    /// Components whose committed seq is newer than the log says.
    pub hints: BTreeSet<u32>,

    /// Upper bound of the bytes that component records take in a checkpoint.
    pub record_bytes: u64,
    pub counters: StoreCounters,
    pub events: VecDeque<StoreEvent>,
    pub scrub: ScrubProgress,
    pub last_write: Nanos,
    pub incoming: Incoming,
    /// The maps of slots and pages are not built yet.
    pub recovering: bool,
    /// Destage holds slots that no chunk refers to yet.
    pub round_under_way: bool,
    /// The log cannot go on before a segment is free.
    pub head_waits: bool,
    /// Destage waits for something to do, and is to be woken when the log is so full.
    pub mover_asleep: bool,
    pub wake_at_fill: u8,
}

/// Where a block is to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// In the log: block of the log device.
    Log(u32),
    /// In a slot.
    Home(u32),
    /// No bytes: zeros.
    Zeros,
    /// No good bytes.
    Bad,
    /// The chunk's page has to be read first.
    Page,
}

/// A block, resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub source: Source,
    pub tag: BlockTag,
}

impl State {
    /// The component, if it exists and is not being deleted.
    pub(crate) fn find(&self, id: ComponentId) -> Result<&Component, StoreError> {
        let found = self.by_id.get(&id).and_then(|local| self.components.get(local));
        found.filter(|c| !c.deleting).ok_or(StoreError::NoComponent(id))
    }

    pub(crate) fn find_mut(&mut self, id: ComponentId) -> Result<&mut Component, StoreError> {
        let found = self.by_id.get(&id).and_then(|local| self.components.get_mut(local));
        found.filter(|c| !c.deleting).ok_or(StoreError::NoComponent(id))
    }

    pub(crate) fn event(&mut self, event: StoreEvent) {
        if self.events.len() >= limits::EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// A block's bytes do not match: remembered, counted, reported once.
    pub(crate) fn mark_bad(&mut self, local: u32, block: u32) {
        let Some(c) = self.components.get_mut(&local) else { return };
        if c.bad.contains(&block) {
            return;
        }
        if c.bad.len() < limits::BAD_BLOCKS_MAX {
            c.bad.insert(block);
        }
        let component = c.id;
        self.counters.checksum_errors += 1;
        self.event(StoreEvent::BadBlock { component, block });
    }

    /// How full the log is, 0 to 255: the larger of its bytes and its index.
    pub(crate) fn log_fill(&self) -> u8 {
        let held = self.head_segment.saturating_sub(self.trim_below);
        let bytes = held * self.geometry.segment_len + self.head_offset;
        let by_bytes = bytes * 255 / self.geometry.log_bytes();
        let by_index = self.index_blocks * 255 / self.index_max.max(1);
        by_bytes.max(by_index).min(255) as u8
    }

    pub(crate) fn group_space(&self) -> GroupSpace {
        let components = u32::try_from(self.components.len()).unwrap_or(u32::MAX);
        let mut space = GroupSpace {
            free_components: self.geometry.components_max.saturating_sub(components),
            log_bytes: self.geometry.log_bytes(),
            log_fill: self.log_fill(),
            ..GroupSpace::default()
        };
        for (device, failed) in self.space.iter().zip(&self.capacity_failed) {
            if *failed {
                continue;
            }
            space.capacity_bytes += u64::from(device.slots_usable()) * CHUNK;
            space.used_bytes += u64::from(device.slots.used() + device.slots_reserved) * CHUNK;
            space.free_bytes += u64::from(device.slots_free()) * CHUNK;
        }
        space
    }

    /// Where block `block` of component `c` is. `page` is asked only when nothing in memory says.
    pub(crate) fn resolve(&mut self, local: u32, block: u32) -> Found {
        let c = self.components.get(&local).expect("the caller has just found it");
        let (chunk, index) = (block / BLOCKS_PER_CHUNK, (block % BLOCKS_PER_CHUNK) as u8);
        if c.is_lost() {
            return Found { source: Source::Bad, tag: bad(BlockTag::default()) };
        }
        let entry = match c.hot.get(&chunk) {
            None => None,
            Some(hot) => {
                if let Some(p) = hot.pending_at(index) {
                    let state = p.state();
                    let tag = BlockTag { seq: p.seq(), state, crc: p.crc };
                    if c.bad.contains(&block) {
                        return Found { source: Source::Bad, tag: bad(tag) };
                    }
                    let source = match state {
                        BlockState::Raw => Source::Log(p.at),
                        BlockState::Absent | BlockState::Zero => Source::Zeros,
                        _ => Source::Bad,
                    };
                    return Found { source, tag };
                }
                match &hot.whole {
                    Some(whole) => match whole.slot() {
                        Some(slot) => {
                            let tag = whole.tag(index);
                            if c.bad.contains(&block) {
                                return Found { source: Source::Bad, tag: bad(tag) };
                            }
                            let at = self.geometry.home_block(c.device, slot, index);
                            return Found { source: Source::Home(at), tag };
                        }
                        None => whole.uniform(),
                    },
                    None => hot.overlay_at(index),
                }
            }
        };
        let chunk_entry = c.table.get(chunk);
        let entry = match entry {
            Some(entry) => entry,
            None if chunk_entry.page == NONE => chunk_entry.base(),
            None => match self.cache.get((local, chunk)) {
                Some(page) => page.entry(index),
                None => return Found { source: Source::Page, tag: BlockTag::default() },
            },
        };
        let tag = c.tag(block, entry);
        if c.bad.contains(&block) {
            return Found { source: Source::Bad, tag: bad(tag) };
        }
        let source = match entry.state {
            BlockState::Absent | BlockState::Zero => Source::Zeros,
            BlockState::Raw if chunk_entry.slot != NONE => {
                Source::Home(self.geometry.home_block(c.device, chunk_entry.slot, index))
            }
            _ => return Found { source: Source::Bad, tag: bad(tag) },
        };
        Found { source, tag }
    }

    /// Sets aside what an operation on `range` may need at its destage, and notes that it is
    /// queued.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was changed.
    pub(crate) fn reserve(
        &mut self,
        local: u32,
        range: BlockRange,
        writes: bool,
        discards: bool,
    ) -> Result<(), StoreError> {
        let c = self.components.get_mut(&local).expect("the caller has just found it");
        let chunk = range.chunk();
        let entry = c.table.get(chunk);
        let known = c.hot.get(&chunk);
        let untouched = !is_present(&entry) && known.is_none();
        let (has_entry, has_page, has_slot) = known.map_or((false, false, false), |h| {
            (h.entry_reserved, h.page_reserved, h.slot_reserved)
        });
        let partial = u32::from(range.count) < BLOCKS_PER_CHUNK;
        // A discard of what was never written leaves no trace.
        let leaves_trace = !(discards && untouched);
        let wants_entry = leaves_trace && !is_present(&entry) && !has_entry;
        let wants_page = leaves_trace && (partial || writes) && entry.page == NONE && !has_page;
        let owns_slot =
            entry.slot != NONE || known.is_some_and(|h| h.slot_taken || h.extra_slot().is_some());
        if writes && known.is_some_and(|h| h.slot_taken) {
            sometimes!("store.append.while_its_slot_is_taken");
        }
        let wants_slot = writes && !owns_slot && !has_slot;
        let space = &mut self.space[usize::from(c.device)];
        let entries_max = u64::from(self.geometry.entries_max);
        if (wants_entry && self.entries_used + self.entries_reserved >= entries_max)
            || (wants_page && space.pages_free() == 0)
            || (wants_slot && space.slots_free() == 0)
        {
            return Err(StoreError::Full);
        }
        let hot = c.hot.entry(chunk).or_default();
        hot.queued += 1;
        hot.held_until = Nanos::ZERO;
        if wants_entry {
            hot.entry_reserved = true;
            self.entries_reserved += 1;
        }
        if wants_page {
            hot.page_reserved = true;
            space.pages_reserved += 1;
        }
        if wants_slot {
            hot.slot_reserved = true;
            space.slots_reserved += 1;
        }
        Ok(())
    }

    /// Takes a slot for a whole chunk that is written past the log: its number, device and place.
    pub(crate) fn place(&mut self, local: u32) -> Option<(u32, usize, u64)> {
        let device = usize::from(self.components.get(&local)?.device);
        if !self.geometry.places || self.capacity_failed[device] {
            return None;
        }
        let space = &mut self.space[device];
        if space.slots_free() == 0 {
            sometimes!("store.place.no_room");
            return None;
        }
        let slot = space.slots.allocate_first()?;
        space.slots_placing += 1;
        let place = self.geometry.capacity[device];
        Some((slot, place.device, place.slots.at + u64::from(slot) * CHUNK))
    }

    /// Sets aside what the next append to a chunk may need, until `until`.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was changed.
    pub(crate) fn hold(&mut self, local: u32, chunk: u32, until: Nanos) -> Result<(), StoreError> {
        let range = BlockRange { start: chunk * BLOCKS_PER_CHUNK, count: 1 };
        let held = |state: &Self| {
            let hot = state.components.get(&local).and_then(|c| c.hot.get(&chunk));
            hot.is_some_and(|h| h.held_until > Nanos::ZERO)
        };
        let listed = held(self);
        self.reserve(local, range, true, false)?;
        let c = self.components.get_mut(&local).expect("it was there a line above");
        let hot = c.hot.get_mut(&chunk).expect("made by `reserve`");
        hot.queued -= 1;
        hot.held_until = until;
        if !listed {
            self.holds.push_back((until, local, chunk));
        }
        Ok(())
    }

    /// Gives back what was set aside for appends that did not come.
    pub(crate) fn expire_holds(&mut self, now: Nanos) {
        while let Some(&(until, local, chunk)) = self.holds.front()
            && until <= now
        {
            self.holds.pop_front();
            let hot = self.components.get_mut(&local).and_then(|c| c.hot.get_mut(&chunk));
            match hot {
                Some(hot) if hot.held_until > now => {
                    let until = hot.held_until;
                    self.holds.push_back((until, local, chunk));
                }
                Some(hot) => {
                    hot.held_until = Nanos::ZERO;
                    self.settle(local, chunk);
                }
                None => {}
            }
        }
    }

    /// Sets aside, after a restart, what the blocks in the log will need; the space is there,
    /// because it was set aside when they were accepted.
    pub(crate) fn reserve_again(&mut self) {
        for c in self.components.values_mut() {
            let space = &mut self.space[usize::from(c.device)];
            for (&chunk, hot) in &mut c.hot {
                let entry = c.table.get(chunk);
                let raw = hot.pending.iter().any(|p| p.state() == BlockState::Raw);
                let placed = hot.extra_slot().is_some();
                if raw && entry.slot == NONE && !placed {
                    hot.slot_reserved = true;
                    space.slots_reserved += 1;
                }
                let partial = !hot.pending.is_empty() || !hot.overlay.is_empty() || placed;
                if entry.page == NONE && partial {
                    hot.page_reserved = true;
                    space.pages_reserved += 1;
                }
                if !is_present(&entry) {
                    hot.entry_reserved = true;
                    self.entries_reserved += 1;
                }
            }
        }
    }

    /// Gives back what a chunk no longer needs; forgets a chunk that has nothing in memory.
    pub(crate) fn settle(&mut self, local: u32, chunk: u32) {
        let Some(c) = self.components.get_mut(&local) else { return };
        let Some(hot) = c.hot.get_mut(&chunk) else { return };
        let space = &mut self.space[usize::from(c.device)];
        let entry = c.table.get(chunk);
        let settled = hot.is_settled();
        let owns_slot = entry.slot != NONE || hot.extra_slot().is_some();
        if hot.slot_reserved && (settled || owns_slot) {
            hot.slot_reserved = false;
            space.slots_reserved -= 1;
        }
        let may_need_page = entry.page == NONE && !(settled && hot.overlay.is_empty());
        if hot.page_reserved && !may_need_page {
            hot.page_reserved = false;
            space.pages_reserved -= 1;
        }
        if hot.entry_reserved && (is_present(&entry) || settled) {
            hot.entry_reserved = false;
            self.entries_reserved -= 1;
        }
        if settled && hot.overlay.is_empty() {
            c.hot.remove(&chunk);
        }
    }

    /// Changes a chunk's entry and keeps the count of entries.
    pub(crate) fn set_entry(
        &mut self,
        local: u32,
        chunk: u32,
        entry: atoll_format::chunk::ChunkEntry,
    ) {
        let Some(c) = self.components.get_mut(&local) else { return };
        let before = c.table.len();
        c.table.set(chunk, entry);
        self.entries_used = self.entries_used + u64::from(c.table.len()) - u64::from(before);
    }

    /// Carries out one descriptor of a durable batch. `crcs` are those of its payload blocks.
    pub(crate) fn apply(&mut self, op: &Descriptor, crcs: &[u32], place: BatchPlace) {
        let local = op.component.get();
        let kind = LogKind::from_code(op.kind).expect("checked when it was decoded or made");
        match kind {
            LogKind::Create => return self.apply_create(op, place),
            LogKind::Delete => return self.apply_delete(local, place.segment),
            _ => {}
        }
        let Some(c) = self.components.get_mut(&local) else {
            // Deleted, or its creation was lost with a part of the log.
            self.next_local = self.next_local.max(local.saturating_add(1));
            return;
        };
        if kind != LogKind::Committed || op.seq.get() > c.promise.committed.0 {
            c.unsaved_from.get_or_insert(place.segment);
        }
        match kind {
            LogKind::Committed => {
                c.commit(Seq(op.seq.get()));
                c.committed_logged = c.committed_logged.max(Seq(op.seq.get()));
            }
            LogKind::Fence => {
                c.promise.fenced = c.promise.fenced.max(Epoch(op.epoch.get()));
                c.queued_fence = c.queued_fence.max(c.promise.fenced);
            }
            LogKind::Attach => {
                let session = Session { epoch: Epoch(op.epoch.get()), attach: op.number.get() };
                c.promise.fenced = c.promise.fenced.max(session.epoch);
                c.session = c.session.max(session);
                if op.flags.get() & FLAG_INCOMPLETE != 0 {
                    c.lacks_above(Seq(op.seq.get()));
                }
                c.queued_fence = c.queued_fence.max(c.promise.fenced);
                c.queued_session = c.queued_session.max(c.session);
            }
            LogKind::Complete => {
                c.incomplete = None;
                c.promise.newest = c.promise.newest.max(Seq(op.seq.get()));
            }
            LogKind::Grow => {
                let blocks = op.block.get().max(c.spec.blocks);
                c.spec.blocks = blocks;
            }
            LogKind::Ticket => {
                let ticket = Ticket {
                    client: ClientId(op.client.get()),
                    number: op.number.get(),
                    settled_below: op.settled_below.get(),
                };
                if op.flags.get() & FLAG_FORGET == 0 {
                    c.note_ticket(ticket);
                } else {
                    c.forget_ticket(ticket);
                }
            }
            LogKind::Write | LogKind::Zero | LogKind::Discard | LogKind::Bad | LogKind::Placed => {
                self.apply_blocks(kind, op, crcs, place);
            }
            _ => unreachable!("handled above or refused when decoded"),
        }
    }

    fn apply_create(&mut self, op: &Descriptor, place: BatchPlace) {
        let local = op.component.get();
        self.next_local = self.next_local.max(local + 1);
        if let Some(c) = self.components.get_mut(&local) {
            c.durable = true;
            c.unsaved_from.get_or_insert(place.segment);
            return;
        }
        let spec = ComponentSpec {
            object: ObjectId(op.group.get()),
            leg: op.parts.get(),
            blocks: op.block.get(),
            epoch: Epoch(op.epoch.get()),
        };
        let id = ComponentId(op.client.get());
        let device = op.column;
        if usize::from(device) >= self.space.len() {
            return;
        }
        let mut c = Component::new(local, id, spec, device);
        c.durable = true;
        c.unsaved_from = Some(place.segment);
        // The log may repeat the making of one that was deleted and made again: the later counts.
        let known = self.by_id.get(&id).copied().unwrap_or(0);
        self.by_id.insert(id, known.max(local));
        self.components.insert(local, c);
    }

    pub(crate) fn apply_delete(&mut self, local: u32, segment: u64) {
        let Some(mut c) = self.components.remove(&local) else { return };
        if self.by_id.get(&c.id) == Some(&local) {
            self.by_id.remove(&c.id);
        }
        self.hints.remove(&local);
        if c.is_saved() {
            self.graves.push_back((segment, local));
        }
        self.entries_used -= u64::from(c.table.len());
        let mut extra = Vec::new();
        for (chunk, hot) in std::mem::take(&mut c.hot) {
            extra.extend(hot.extra_slots(&c.table.get(chunk)));
            let pending = hot.pending.iter().map(|p| (p.at, 1));
            for (at, weight) in pending.chain(hot.whole.iter().map(|w| (w.at, w.weight()))) {
                let index = self.geometry.ring_index(at);
                self.ring[index].live -= weight;
                self.index_blocks -= weight;
            }
            self.overlay_blocks -= hot.overlay.len() as u64;
            self.overlay_chunks[usize::from(c.device)] -= u32::from(!hot.overlay.is_empty());
            let space = &mut self.space[usize::from(c.device)];
            space.slots_reserved -= u32::from(hot.slot_reserved);
            space.pages_reserved -= u32::from(hot.page_reserved);
            self.entries_reserved -= u64::from(hot.entry_reserved);
        }
        if self.recovering {
            // The maps are built when all that is deleted is gone.
            return;
        }
        let later = self.round_under_way;
        let space = &mut self.space[usize::from(c.device)];
        for slot in extra {
            space.free_slot(slot, later);
        }
        let mut pages = Vec::new();
        for (chunk, entry) in c.table.iter() {
            if entry.slot != NONE {
                space.free_slot(entry.slot, later);
            }
            if entry.page != NONE {
                space.pages.free(entry.page);
                pages.push(chunk);
            }
        }
        for chunk in pages {
            self.cache.remove((local, chunk));
        }
    }

    fn apply_blocks(&mut self, kind: LogKind, op: &Descriptor, crcs: &[u32], place: BatchPlace) {
        let local = op.component.get();
        let range = BlockRange { start: op.block.get(), count: op.blocks.get() };
        let seq = Seq(op.seq.get());
        let state = match kind {
            LogKind::Write | LogKind::Placed => BlockState::Raw,
            LogKind::Zero => BlockState::Zero,
            LogKind::Discard => BlockState::Absent,
            _ => BlockState::Bad,
        };
        let c = self.components.get_mut(&local).expect("the caller has just found it");
        // Its growth was in a part of the log that is lost: what was written beyond the end counts.
        if range.end() > c.spec.blocks {
            sometimes!("store.recover.growth_was_lost");
            c.spec.blocks = range.end().next_multiple_of(BLOCKS_PER_CHUNK);
        }
        if op.flags.get() & FLAG_FORCED == 0 {
            let op_kind = match kind {
                LogKind::Placed => OpKind::Write,
                _ => OpKind::from_code(op.kind).expect("Bad is always forced"),
            };
            c.remember(OpRecord {
                id: OpId { epoch: Epoch(op.epoch.get()), seq },
                ticket: Ticket {
                    client: ClientId(op.client.get()),
                    number: op.number.get(),
                    settled_below: op.settled_below.get(),
                },
                kind: op_kind,
                range,
            });
        } else {
            c.promise.newest = c.promise.newest.max(seq);
        }
        if c.is_lost() {
            if kind == LogKind::Placed && !self.recovering {
                let space = &mut self.space[usize::from(c.device)];
                space.slots_placing -= 1;
                space.slots.free(op.payload_at.get());
            }
            return;
        }
        let chunk = range.chunk();
        let entry = c.table.get(chunk);
        let touched = is_present(&entry)
            || c.hot.get(&chunk).is_some_and(|h| {
                !h.pending.is_empty() || h.whole.is_some() || !h.overlay.is_empty()
            });
        let forgotten = mutant!("state.discard_marks_nothing") && state == BlockState::Absent
            || mutant!("state.zero_is_forgotten") && state == BlockState::Zero;
        if !touched && state == BlockState::Absent || forgotten {
            return;
        }
        if !c.bad.is_empty() {
            for block in range.start..range.end() {
                c.bad.remove(&block);
            }
        }
        let hot = c.hot.entry(chunk).or_default();
        hot.newest = hot.newest.max(seq);
        let (ring, geometry) = (&mut self.ring, &self.geometry);
        let (index_blocks, log_live) = (&mut self.index_blocks, &mut c.log_live);
        let gone = |at: u32, weight: u64| {
            ring[geometry.ring_index(at)].live -= weight;
            *index_blocks -= weight;
            *log_live -= weight;
        };
        let covers = u32::from(range.count) == BLOCKS_PER_CHUNK;
        let content = match state {
            BlockState::Zero if covers => Some(Content::Zero),
            BlockState::Absent if covers => Some(Content::Absent),
            BlockState::Raw if kind == LogKind::Placed => {
                Some(Content::Placed { slot: op.payload_at.get(), crcs: crcs.into() })
            }
            _ => None,
        };
        let mut at = place.batch;
        let added = if let Some(content) = content {
            let whole = Whole { content, seq, at: place.batch };
            let weight = whole.weight();
            if whole.slot().is_some() && !self.recovering {
                self.space[usize::from(c.device)].slots_placing -= 1;
            }
            let superseded = hot.put_whole(whole, gone);
            // While the log is replayed the slot may have another owner already: who still has
            // one is sorted out at the end.
            if let Some(slot) = superseded.filter(|&slot| slot != entry.slot && !self.recovering) {
                if mutant!("state.slot_freed_early") {
                    self.space[usize::from(c.device)].slots.free(slot);
                } else {
                    hot.spare.push(slot);
                }
            }
            weight
        } else {
            let first = (range.start % BLOCKS_PER_CHUNK) as u16;
            let payload = place.payload + op.payload_at.get();
            if state == BlockState::Raw {
                at = payload;
            }
            let make = |i: u16| {
                let (at, crc) = match state {
                    BlockState::Raw => (payload + u32::from(i), crcs[usize::from(i)]),
                    _ => (place.batch, 0),
                };
                Pending::new((first + i) as u8, state, seq, at, crc)
            };
            if range.count == 1 {
                hot.put(&[make(0)], gone);
            } else {
                hot.put(&(0..range.count).map(make).collect::<Vec<_>>(), gone);
            }
            u64::from(range.count)
        };
        self.index_blocks += added;
        c.log_live += added;
        let segment = &mut self.ring[self.geometry.ring_index(place.batch)];
        segment.live += added;
        segment.lay(Laid { at, local, chunk });
    }

    /// An operation on that chunk is no longer queued.
    pub(crate) fn unqueue(&mut self, local: u32, chunk: u32) {
        if let Some(c) = self.components.get_mut(&local)
            && let Some(hot) = c.hot.get_mut(&chunk)
        {
            hot.queued = hot.queued.saturating_sub(1);
            self.settle(local, chunk);
        }
    }

    /// Bytes of memory in use or promised to caches, the formula of `docs/formats.md`.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let tables: u64 = self.components.values().map(|c| c.table.memory_bytes()).sum();
        let maps: u64 = self
            .space
            .iter()
            .map(|s| {
                u64::from(s.slots.len() + s.pages.len()) / 8 + s.retired_pages.len() as u64 * 4
            })
            .sum();
        let hot: u64 = self.components.values().map(|c| c.hot.len() as u64).sum();
        let laid: usize = self.ring.iter().map(|s| s.laid.len()).sum();
        tables
            + maps
            + hot * limits::HOT_CHUNK_BYTES
            + self.index_blocks * limits::INDEX_BLOCK_BYTES
            + laid as u64 * limits::LAID_BYTES
            + self.overlay_blocks * limits::OVERLAY_ENTRY_BYTES
            + self.cache.memory_max()
    }
}

fn bad(tag: BlockTag) -> BlockTag {
    BlockTag { seq: tag.seq, state: BlockState::Bad, crc: 0 }
}

/// The entry of a destaged block.
pub(crate) fn home_entry(c: &Component, block: u32, p: &Pending, good: bool) -> BlockEntry {
    let state = if good { p.state() } else { BlockState::Bad };
    let crc = match state {
        BlockState::Raw => atoll_format::checksum::bind(p.crc, c.id, u64::from(block)),
        _ => 0,
    };
    BlockEntry { crc, seq: p.seq(), state }
}

impl State {
    /// A component's capacity device is gone, and with it the component: other members have the
    /// bytes. Drops its blocks from memory.
    pub(crate) fn lose(&mut self, local: u32) {
        // Known before anything more is trimmed: what it had in any segment is no longer kept.
        let from =
            if mutant!("state.loss_noted_late") { self.head_segment } else { self.trim_below };
        let Some(c) = self.components.get_mut(&local) else { return };
        c.lose();
        c.unsaved_from = Some(c.unsaved_from.map_or(from, |segment| segment.min(from)));
        for (&chunk, hot) in &mut c.hot {
            for slot in hot.extra_slots(&c.table.get(chunk)) {
                self.space[usize::from(c.device)].free_slot(slot, self.round_under_way);
            }
            hot.spare.clear();
            let whole = hot.whole.take().map(|w| (w.at, w.weight()));
            for (at, weight) in hot.pending.drain(..).map(|p| (p.at, 1)).chain(whole) {
                self.ring[self.geometry.ring_index(at)].live -= weight;
                self.index_blocks -= weight;
            }
            self.overlay_blocks -= hot.overlay.len() as u64;
            self.overlay_chunks[usize::from(c.device)] -= u32::from(!hot.overlay.is_empty());
            hot.overlay = Vec::new();
        }
        c.log_live = 0;
        let chunks: Vec<u32> = c.hot.keys().copied().collect();
        for chunk in chunks {
            self.settle(local, chunk);
        }
    }

    /// Counts the bytes that all component records take in a checkpoint.
    fn count_records(&mut self) -> u64 {
        self.record_bytes = self.components.values().map(|c| c.encoded_len() as u64).sum();
        self.record_bytes
    }

    /// Whether one more operation can be remembered until it is committed.
    pub(crate) fn record_fits(&mut self) -> bool {
        let max = u64::from(self.geometry.components_max) * limits::COMPONENT_RECORD_BYTES * 3 / 4;
        self.record_bytes += limits::RECORD_GROWTH;
        // The sum only grows here, so it is an upper bound; it is counted anew when it matters.
        self.record_bytes < max || self.count_records() < max
    }
}
