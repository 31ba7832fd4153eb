//! The one place where the log changes memory: [`State::apply`].
//!
//! A running store and its recovery apply the same descriptors in the same order with the same
//! function, so a restart arrives where the store was. No I/O, no waiting.
//!
//! Invariants: operations take effect in the order of the log; a promise is never taken back.

use super::State;
use super::capacity::{CapacityMap, Needs};
use super::chunk::{HotChunk, Pending, Whole, WholeContent};
use super::component::Component;
use super::log_index::DestageNote;
use super::table::is_present;
use atoll_format::chunk::NONE;
use atoll_format::id::{ClientId, ComponentId, Epoch, ObjectId, OpId, Seq, Session, Ticket};
use atoll_format::log::{
    Descriptor, FLAG_FORCED, FLAG_FORGET, FLAG_INCOMPLETE, FLAG_TOUCHED, LogKind,
};
use atoll_format::op::{BlockRange, BlockState, OpKind, OpRecord};
use atoll_format::units::{BLOCKS_PER_CHUNK, SEQ_MAX};
use atoll_world::components::ComponentSpec;
use atoll_world::{mutant, sometimes};

/// Where the payload of a batch and the batch itself lie, in blocks of the log device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchPlace {
    pub batch: u32,
    pub payload: u32,
    pub segment: u64,
}

/// CRCs of a descriptor's payload.
pub(crate) fn payload_crcs<'a>(
    op: &Descriptor,
    one: &'a mut [u32; 1],
    list: &'a [u32],
) -> &'a [u32] {
    match usize::from(op.blocks.get()) {
        1 => {
            one[0] = op.crc.get();
            one
        }
        n if op.kind == LogKind::Write as u8 || op.kind == LogKind::Placed as u8 => {
            let at = op.crc.get() as usize;
            &list[at..at + n]
        }
        _ => &[],
    }
}

impl State {
    /// Carries out one descriptor of a durable batch. `crcs` are those of its payload blocks.
    pub(crate) fn apply(&mut self, op: &Descriptor, crcs: &[u32], place: BatchPlace) {
        let local = op.component.get();
        let kind = LogKind::from_code(op.kind).expect("checked when it was decoded or made");
        match kind {
            LogKind::Create => return self.apply_create(op, place),
            LogKind::Delete => return self.apply_delete(local, place.segment),
            _ => {}
        }
        let Some(c) = self.components.get_mut(local) else {
            // Deleted, or its creation was lost with a part of the log.
            self.components.given_away_below(local.saturating_add(1));
            return;
        };
        if kind != LogKind::Committed || op.seq.get() > c.promise.committed.0 {
            c.unsaved_from.get_or_insert(place.segment);
        }
        assert!(
            c.unsaved_from.is_none_or(|first| first <= place.segment),
            "unsaved from segment {:?} on, and segment {} is being written",
            c.unsaved_from,
            place.segment
        );
        let before = c.promise;
        match kind {
            LogKind::Committed => {
                c.commit(Seq(op.seq.get()));
                c.committed_logged = c.committed_logged.max(Seq(op.seq.get()));
                let (logged, known) = (c.committed_logged, c.promise.committed);
                assert!(self.recovering || logged <= known, "{logged:?} logged, {known:?} known");
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
                return self.apply_blocks(kind, op, crcs, place);
            }
            _ => unreachable!("handled above or refused when decoded"),
        }
        let now = c.promise;
        assert!(
            now.fenced >= before.fenced
                && now.committed >= before.committed
                && now.newest >= before.newest,
            "a promise is taken back: {before:?}, now {now:?}"
        );
        assert!(
            c.queued_fence >= now.fenced && c.queued_session >= c.session,
            "operations are checked against {:?} and {:?}, promised are {:?} and {:?}",
            c.queued_fence,
            c.queued_session,
            now.fenced,
            c.session
        );
    }

    fn apply_create(&mut self, op: &Descriptor, place: BatchPlace) {
        let local = op.component.get();
        self.components.given_away_below(local + 1);
        if let Some(c) = self.components.get_mut(local) {
            let announced = !c.durable && c.id.0 == op.client.get() && c.device == op.column;
            assert!(self.recovering || announced, "number {local} is made twice");
            c.durable = true;
            c.unsaved_from.get_or_insert(place.segment);
            return;
        }
        assert!(self.recovering, "number {local} is made, and nobody asked for it");
        let spec = ComponentSpec {
            object: ObjectId(op.group.get()),
            leg: op.parts.get(),
            blocks: op.block.get(),
            epoch: Epoch(op.epoch.get()),
        };
        let id = ComponentId(op.client.get());
        let device = op.column;
        if usize::from(device) >= self.capacity.devices() {
            return;
        }
        let mut c = Component::new(local, id, spec, device);
        c.durable = true;
        c.unsaved_from = Some(place.segment);
        self.components.take(c);
    }

    fn apply_delete(&mut self, local: u32, segment: u64) {
        let Some(mut c) = self.components.remove(local) else { return };
        assert!(self.recovering || c.deleting, "{} is deleted, and nobody asked for it", c.id);
        if c.is_saved() {
            self.components.add_tombstone(segment, local);
        }
        let device = usize::from(c.device);
        self.capacity.entries_changed(c.table.len(), 0);
        let mut extra = Vec::new();
        for (chunk, mut hot) in std::mem::take(&mut c.hot) {
            extra.extend(hot.extra_slots(&c.table.get(chunk)));
            for (at, weight) in hot.in_log() {
                self.log.remove(at, weight, &mut c.log_share);
            }
            self.capacity.dirty_changed(device, hot.overlay.len(), 0);
            self.capacity.release(device, &mut hot.reserved, Needs::ALL);
        }
        assert_eq!(c.log_share.blocks(), 0, "blocks of {} in the log", c.id);
        if self.recovering {
            // The maps are built when all that is deleted is gone.
            return;
        }
        for slot in extra {
            self.capacity.free_slot(device, slot);
        }
        for (chunk, entry) in c.table.iter() {
            if entry.slot != NONE {
                self.capacity.free_slot(device, entry.slot);
            }
            if entry.page != NONE {
                self.capacity.free_page(device, entry.page);
                self.page_cache.remove((local, chunk));
            }
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
        assert!(range.is_valid(), "{range:?}");
        if state == BlockState::Raw {
            let (blocks, crcs) = (usize::from(range.count), crcs.len());
            assert!(blocks == crcs, "{blocks} blocks and {crcs} checksums");
        }
        let c = self.components.get_mut(local).expect("the caller has just found it");
        // What was queued has been checked; what recovery finds is what the log holds.
        if !self.recovering {
            let (end, blocks) = (range.end(), c.spec.blocks);
            assert!(end <= blocks, "a write up to {end} of a component of {blocks} blocks");
            assert!(seq.0 <= SEQ_MAX, "{seq:?} does not fit its 48 bits");
        }
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
                self.capacity.give_up_placing(usize::from(c.device), op.payload_at.get());
            }
            return;
        }
        let device = usize::from(c.device);
        let chunk = range.chunk();
        let entry = c.table.get(chunk);
        if kind == LogKind::Placed && !self.recovering {
            let slot = op.payload_at.get();
            let used = self.capacity.is_slot_used(device, slot);
            assert!(used && slot != entry.slot, "slot {slot} was not taken for chunk {chunk}");
        }
        let touched = is_present(&entry)
            || c.hot.get(&chunk).is_some_and(|h| {
                !h.pending.is_empty() || h.whole.is_some() || !h.overlay.is_empty()
            });
        // A discard of what no member has ever had leaves no trace. One that is copied does: who
        // was away has the bytes from before it, and learns from this copy what has changed since.
        let is_copied = op.flags.get() & FLAG_FORCED != 0 && seq > Seq(0);
        // What was there before it may have been trimmed from the log since, superseded by it.
        let was_touched = touched || op.flags.get() & FLAG_TOUCHED != 0;
        let leaves_trace = was_touched || state != BlockState::Absent || is_copied;
        if !leaves_trace || is_forgotten(state) {
            return;
        }
        if !c.bad.is_empty() {
            for block in range.start..range.end() {
                c.bad.remove(&block);
            }
        }
        let hot = c.hot.entry(chunk).or_default();
        hot.newest = hot.newest.max(seq);
        let (log, share) = (&mut self.log, &mut c.log_share);
        let gone = |at: u32, weight: u64| log.remove(at, weight, share);
        let covers = u32::from(range.count) == BLOCKS_PER_CHUNK;
        let content = match state {
            BlockState::Zero if covers => Some(WholeContent::Zero),
            BlockState::Absent if covers => Some(WholeContent::Absent),
            BlockState::Raw if kind == LogKind::Placed => {
                Some(WholeContent::Placed { slot: op.payload_at.get(), crcs: crcs.into() })
            }
            _ => None,
        };
        let mut at = place.batch;
        let added = if let Some(content) = content {
            let whole = Whole { content, seq, at: place.batch };
            let weight = whole.weight();
            if whole.slot().is_some() && !self.recovering {
                self.capacity.end_placing(device);
            }
            let superseded = hot.put_whole(whole, gone);
            // While the log is replayed the slot may have another owner already: who still has
            // one is sorted out at the end.
            if let Some(slot) = superseded.filter(|&slot| slot != entry.slot && !self.recovering) {
                spare_slot(&mut self.capacity, device, hot, slot);
            }
            weight
        } else {
            let first = (range.start % BLOCKS_PER_CHUNK) as u16;
            // What is no write has no payload, and says nothing that counts of where it is.
            let is_raw = state == BlockState::Raw;
            let payload = if is_raw { place.payload + op.payload_at.get() } else { place.batch };
            if is_raw {
                at = payload;
                let last = payload + u32::from(range.count) - 1;
                let ring = self.geometry.log;
                let together = ring.ring_index(last) == ring.ring_index(place.batch);
                assert!(self.recovering || together, "payload up to {last} in another segment");
            }
            let make = |i: u16| {
                let (at, crc) = match state {
                    BlockState::Raw => (payload + u32::from(i), crcs[usize::from(i)]),
                    _ => (payload, 0),
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
        self.log.add(place.batch, added, &mut c.log_share);
        assert!(
            hot.pending.len() <= BLOCKS_PER_CHUNK as usize && hot.newest <= c.promise.newest,
            "chunk {chunk}: {} blocks up to {:?}, the component is at {:?}",
            hot.pending.len(),
            hot.newest,
            c.promise.newest
        );
        self.log.note(place.batch, DestageNote { at, local, chunk });
    }

    /// From which segment on the loss of a component is not in the journal: before anything more
    /// is trimmed, as what it had in any segment is no longer kept.
    fn loss_noted_from(&self) -> u64 {
        if mutant!("state.loss_noted_late") {
            return self.log.head_segment();
        }
        self.log.trim_below()
    }

    /// A component's capacity device is gone, and with it the component: other members have the
    /// bytes. Drops its blocks from memory.
    pub(crate) fn lose(&mut self, local: u32) {
        let from = self.loss_noted_from();
        let Some(c) = self.components.get_mut(local) else { return };
        let device = usize::from(c.device);
        c.lose();
        c.unsaved_from = Some(c.unsaved_from.map_or(from, |segment| segment.min(from)));
        for (&chunk, hot) in &mut c.hot {
            for slot in hot.extra_slots(&c.table.get(chunk)) {
                self.capacity.free_slot(device, slot);
            }
            for (at, weight) in hot.in_log() {
                self.log.remove(at, weight, &mut c.log_share);
            }
            self.capacity.dirty_changed(device, hot.overlay.len(), 0);
            hot.spare.clear();
            hot.pending.clear();
            hot.whole = None;
            hot.overlay = Vec::new();
        }
        assert_eq!(c.log_share.blocks(), 0, "blocks of {} in the log", c.id);
        let chunks: Vec<u32> = c.hot.keys().copied().collect();
        for chunk in chunks {
            self.settle(local, chunk);
        }
    }
}

/// Whether the log's word that blocks became this is not carried out.
fn is_forgotten(state: BlockState) -> bool {
    mutant!("state.discard_marks_nothing") && state == BlockState::Absent
        || mutant!("state.zero_is_forgotten") && state == BlockState::Zero
}

/// The slot of a placed write that was superseded stays the chunk's until the journal knows that.
fn spare_slot(capacity: &mut CapacityMap, device: usize, hot: &mut HotChunk, slot: u32) {
    if mutant!("state.slot_freed_early") {
        return capacity.free_slot_now(device, slot);
    }
    hot.spare.push(slot);
}
