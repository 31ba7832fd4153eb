//! The store of one disk group as its callers see it: checks, order, answers.
//!
//! A call that changes something is checked and queued when its future is first polled, without
//! waiting in between, so calls take effect in that order. Its answer comes when the log has it.

use crate::group::Group;
use crate::limits;
use crate::log::queue::{Effect, PlacedBytes, QueuedOp};
use crate::log::writer;
use crate::read;
use crate::scrub::{self, ScrubTurn};
use crate::state::capacity::Needs;
use crate::state::component::Component;
use crate::state::place::ResolvedBlock;
use atoll_format::checksum::crc;
use atoll_format::id::{ComponentId, Epoch, GroupId, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpKind, OpRecord, Promise};
use atoll_format::superblock::Superblock;
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK, CHUNK, COMPONENT_MAX, SEQ_MAX};
use atoll_world::buf::total_len;
use atoll_world::components::{
    ComponentOp, ComponentSpec, ComponentStatus, Components, Copy, CopyBlock, GroupSpace,
    ReadBlocks, SET_TICKETS_MAX, ScrubProgress, SetTickets, StoreCounters, StoreError, StoreEvent,
};
use atoll_world::sync::{Receiver, oneshot};
use atoll_world::{Nanos, Stage, World, mutant, sometimes};
use std::cell::Cell;
use std::rc::Rc;

/// One disk group in use. Clones are the same store.
pub struct Store<W: World> {
    pub(crate) group: Rc<Group<W>>,
    pub(crate) labels: Rc<Vec<Superblock>>,
    pub(crate) scrub_turn: Rc<ScrubTurn>,
}

impl<W: World> Clone for Store<W> {
    fn clone(&self) -> Self {
        Self {
            group: self.group.clone(),
            labels: self.labels.clone(),
            scrub_turn: self.scrub_turn.clone(),
        }
    }
}

impl<W: World> Store<W> {
    /// Why the group is out of use, if it is; for good, until its host restarts.
    pub fn failed(&self) -> Option<String> {
        self.group.failed.borrow().clone()
    }

    /// The labels of its devices, in order.
    pub fn labels(&self) -> &[Superblock] {
        &self.labels
    }

    /// Bytes of memory that its metadata takes, caches counted full (`docs/formats.md` has the
    /// formula).
    pub fn memory_bytes(&self) -> u64 {
        self.group.state.borrow().memory_bytes()
    }

    /// Look-ups of metadata pages that memory could answer, and that it could not.
    pub fn page_cache_hits(&self) -> (u64, u64) {
        let state = self.group.state.borrow();
        (state.page_cache.hits, state.page_cache.misses)
    }

    fn queue(&self, effect: Effect) -> Result<Receiver<()>, StoreError> {
        let (reply, wait) = oneshot();
        let mut queue = self.group.queue.borrow_mut();
        let begun = self.group.world.stage(Stage::LogQueue);
        queue.items.push_back(QueuedOp { effect, reply: Some(reply), begun });
        drop(queue);
        self.group.log_work.notify_all();
        Ok(wait)
    }

    /// Room in the queue; callers bound what is in flight, so this is the last resort.
    fn admit(&self) -> Result<(), StoreError> {
        self.group.usable()?;
        if self.group.queue.borrow().items.len() >= limits::QUEUE_OPS_MAX {
            return Err(StoreError::Malformed("too many operations in flight"));
        }
        Ok(())
    }

    /// Waits until the operation is durable: the log answers, or drops it when the group fails.
    async fn durable(&self, wait: Receiver<()>) -> Result<(), StoreError> {
        wait.await.map_err(|_| self.group.gone())
    }

    fn queue_create(&self, id: ComponentId, spec: ComponentSpec) -> Result<Effect, StoreError> {
        self.admit()?;
        if spec.blocks == 0 || u64::from(spec.blocks) * BLOCK > COMPONENT_MAX {
            return Err(StoreError::Malformed("size of a component"));
        }
        let mut state = self.group.state.borrow_mut();
        match state.components.find(id) {
            Ok(c) if c.spec == spec => return Ok(Effect::Nothing),
            Ok(_) => return Err(StoreError::Exists(id)),
            Err(_) => {}
        }
        if state.components.len() >= state.geometry.components_max as usize {
            return Err(StoreError::Full);
        }
        let devices = 0..state.capacity.devices();
        let usable = |device| i64::from(state.capacity.slots_usable(device));
        let mut room: Vec<i64> = devices.clone().map(usable).collect();
        for c in state.components.values() {
            room[usize::from(c.device)] -= i64::from(c.spec.blocks.div_ceil(BLOCKS_PER_CHUNK));
        }
        let in_use = devices.filter(|&index| !state.capacity.has_failed(index));
        let rooms = in_use.map(|index| DeviceRoom {
            index,
            usable: usable(index),
            is_open: state.capacity.has_room(index, Needs::ALL),
            room: room[index],
        });
        let device = best_device(rooms, i64::from(spec.blocks.div_ceil(BLOCKS_PER_CHUNK)))
            .ok_or_else(|| StoreError::Failed("no capacity device is left".into()))?;
        let device = device as u8;
        let local = state.components.make(id, spec, device);
        Ok(Effect::Create { local, id, spec, device })
    }

    fn queue_append(
        &self,
        id: ComponentId,
        session: Session,
        op: ComponentOp,
    ) -> Result<(u32, Receiver<()>), StoreError> {
        self.admit()?;
        let mut state = self.group.state.borrow_mut();
        let c = state.components.find_mut(id)?;
        check_session(c, session)?;
        check_order(c, op.id.seq)?;
        check_range(c, op.range)?;
        if op.id.seq.0 == 0 || op.id.seq.0 > SEQ_MAX || op.committed.0 > SEQ_MAX {
            return Err(StoreError::Malformed("seq"));
        }
        if !c.ticket_fits(op.ticket) {
            return Err(StoreError::Malformed("number of a client too far above its settled ones"));
        }
        if c.uncommitted.len() >= limits::UNCOMMITTED_MAX {
            return Err(StoreError::Malformed("too many operations above committed"));
        }
        check_payload(&op)?;
        c.check_lost()?;
        let local = c.local;
        let components_max = state.geometry.components_max;
        if !state.components.record_fits(components_max) {
            return Err(StoreError::Malformed("too many operations above committed in the group"));
        }
        let writes = op.kind == OpKind::Write;
        state.expire_holds(self.group.world.now());
        let discards = op.kind == OpKind::Discard;
        let leaves_trace = state.reserve(local, op.range, writes, discards)?;
        // A whole chunk into a new slot, if there is one to spare: half the bytes (S14).
        let place = (writes && u32::from(op.range.count) == BLOCKS_PER_CHUNK)
            .then(|| state.place(local))
            .flatten();
        let c = state.components.get_mut(local).expect("just found");
        let queued = c.hot.get(&op.range.chunk()).map_or(0, |hot| hot.queued);
        assert!(queued > 0, "nothing is set aside for {:?}", op.range);
        c.session_seq = op.id.seq;
        let before = c.promise.committed;
        c.commit(committed_by(&op));
        let now = c.promise.committed;
        assert!(now >= before && now >= op.committed, "{before:?} was committed, now {now:?}");
        let hinted = c.promise.committed > before;
        if hinted {
            state.components.hint(local);
        }
        drop(state);
        let Some((slot, device, at)) = place else {
            return Ok((local, self.queue(Effect::Append { local, op, leaves_trace })?));
        };
        let mut op = op;
        let payload = std::mem::take(&mut op.payload);
        let bytes = Rc::new(Cell::new(PlacedBytes::UnderWay));
        let wait = self.queue(Effect::Place { local, op, slot, bytes: bytes.clone() })?;
        let group = self.group.clone();
        self.group.world.spawn(writer::place(group, (device, at), payload, bytes));
        Ok((local, wait))
    }

    /// Where the blocks of a copy stand, once that can be said without reading; loads pages.
    async fn blocks_to_copy(
        &self,
        id: ComponentId,
        session: Session,
        copy: &Copy,
    ) -> Result<Vec<CopyBlock>, StoreError> {
        let Some(only_if) = copy.only_if else { return Ok(copy.blocks.clone()) };
        for _ in 0..limits::READ_RETRIES {
            {
                let mut state = self.group.state.borrow_mut();
                let c = state.components.find(id)?;
                check_session(c, session)?;
                let local = c.local;
                let queue = self.group.queue.borrow();
                let found: Vec<_> =
                    copy.blocks.iter().map(|b| state.resolve(local, b.block)).collect();
                if found.iter().all(ResolvedBlock::is_known) {
                    let same =
                        copy.blocks.iter().zip(found).filter(|(b, f)| {
                            f.tag.seq == only_if && !queue.touches(local, b.block)
                        });
                    return Ok(same.map(|(b, _)| b.clone()).collect());
                }
            }
            // Only to bring the page into memory.
            read::tags(&self.group, id, copy.chunk).await?;
        }
        Ok(Vec::new())
    }

    fn queue_copy(
        &self,
        id: ComponentId,
        session: Session,
        chunk: u32,
        blocks: Vec<CopyBlock>,
        tickets: SetTickets,
    ) -> Result<Receiver<()>, StoreError> {
        self.admit()?;
        let mut state = self.group.state.borrow_mut();
        let c = state.components.find(id)?;
        check_session(c, session)?;
        c.check_lost()?;
        // While a page was read the component may have been deleted, and made again, smaller.
        if blocks.last().is_some_and(|b| b.block >= c.spec.blocks) {
            return Err(StoreError::Malformed("blocks of a copy"));
        }
        let local = c.local;
        let ends = [blocks.first(), blocks.last()].map(|b| b.map(|b| b.block / BLOCKS_PER_CHUNK));
        assert!(ends == [Some(chunk); 2], "a copy of chunk {chunk} has blocks of {ends:?}");
        let writes = blocks.iter().any(|b| b.tag.state == BlockState::Raw);
        // A copied discard leaves a trace, unlike a guest's (`State::apply`).
        let discards = blocks.iter().all(|b| b.tag == BlockTag::default());
        // As one range, so that what is set aside covers each of its blocks.
        let range = BlockRange { start: chunk * BLOCKS_PER_CHUNK, count: 1 };
        state.reserve(local, range, writes, discards)?;
        drop(state);
        self.queue(Effect::CopyIn { local, chunk, blocks, tickets })
    }
}

/// What a capacity device that is in use has for a new component, in chunks.
struct DeviceRoom {
    index: usize,
    /// What components may use in all.
    usable: i64,
    /// Something more can be written now.
    is_open: bool,
    /// What is left if every component on it grew to its full size: below 0 where more is promised
    /// than there is.
    room: i64,
}

/// The device for a component of so many chunks: one that is as large, is not full, and has most
/// room. A component stays on its device.
fn best_device(devices: impl Iterator<Item = DeviceRoom>, chunks: i64) -> Option<usize> {
    let rank = |d: &DeviceRoom| (d.usable >= chunks, d.is_open, d.room, std::cmp::Reverse(d.index));
    devices.max_by_key(rank).map(|device| device.index)
}

/// What the sender of a message of an older epoch is told (R1).
fn older(c: &Component) -> StoreError {
    sometimes!("store.refuses_an_old_epoch");
    StoreError::Fenced { fenced: c.queued_fence }
}

fn check_session(c: &Component, session: Session) -> Result<(), StoreError> {
    if mutant!("store.session_not_checked") {
        return Ok(());
    }
    if session.epoch < c.queued_fence {
        return Err(older(c));
    }
    if session != c.queued_session {
        return Err(StoreError::Session { open: c.queued_session });
    }
    Ok(())
}

/// Operations of a session come in the order of their seqs.
fn check_order(c: &Component, seq: Seq) -> Result<(), StoreError> {
    if mutant!("store.session_not_checked") {
        return Ok(());
    }
    if seq <= c.session_seq {
        return Err(StoreError::Session { open: c.queued_session });
    }
    Ok(())
}

/// What an operation says is committed.
fn committed_by(op: &ComponentOp) -> Seq {
    if mutant!("store.commits_too_much") {
        return op.id.seq;
    }
    op.committed
}

/// What a member that is brought up to date may lack: anything above that.
fn noted_incomplete(above: Option<Seq>) -> Option<Seq> {
    if mutant!("store.not_incomplete") {
        return None;
    }
    above
}

/// The flaw of a promise that is given before it is durable.
fn is_only_in_memory(c: &mut Component, fenced: Epoch, session: Option<Session>) -> bool {
    if !mutant!("store.fence_not_durable") {
        return false;
    }
    c.promise.fenced = fenced;
    c.session = session.unwrap_or(c.session);
    true
}

fn check_range(c: &Component, range: BlockRange) -> Result<(), StoreError> {
    if !range.is_valid() || range.end() > c.spec.blocks {
        return Err(StoreError::Malformed("range of blocks"));
    }
    Ok(())
}

fn check_payload(op: &ComponentOp) -> Result<(), StoreError> {
    if op.kind != OpKind::Write {
        if !op.payload.is_empty() || !op.crcs.is_empty() {
            return Err(StoreError::Malformed("payload of an operation without one"));
        }
        return Ok(());
    }
    let count = usize::from(op.range.count);
    if op.crcs.len() != count
        || total_len(&op.payload) != count * BLOCK_LEN
        || op.payload.iter().any(|b| !b.len().is_multiple_of(BLOCK_LEN))
    {
        return Err(StoreError::Malformed("length of the payload"));
    }
    if op.checked {
        return Ok(());
    }
    let sums = op.payload.iter().flat_map(|b| b.chunks_exact(BLOCK_LEN)).map(crc);
    for (block, (sum, said)) in (op.range.start..).zip(sums.zip(&op.crcs)) {
        if sum != *said {
            return Err(StoreError::Damaged { block });
        }
    }
    Ok(())
}

fn check_copy(c: &Component, copy: &Copy) -> Result<(), StoreError> {
    let chunks = c.spec.blocks.div_ceil(BLOCKS_PER_CHUNK);
    if copy.chunk >= chunks || copy.blocks.len() > BLOCKS_PER_CHUNK as usize {
        return Err(StoreError::Malformed("chunk of a copy"));
    }
    if !copy.tickets_fit() {
        return Err(StoreError::Malformed("tickets of a copy"));
    }
    let start = copy.chunk * BLOCKS_PER_CHUNK;
    let mut next = start;
    for b in &copy.blocks {
        let inside = b.block < start + BLOCKS_PER_CHUNK && b.block < c.spec.blocks;
        if b.block < next || !inside || b.tag.seq.0 > SEQ_MAX {
            return Err(StoreError::Malformed("blocks of a copy"));
        }
        next = b.block + 1;
        match (&b.bytes, b.tag.state) {
            (Some(bytes), BlockState::Raw) if bytes.len() == BLOCK_LEN => {
                if crc(bytes) != b.tag.crc {
                    return Err(StoreError::Damaged { block: b.block });
                }
            }
            (None, BlockState::Absent | BlockState::Zero | BlockState::Bad) => {}
            _ => return Err(StoreError::Malformed("state of a copied block")),
        }
    }
    Ok(())
}

impl<W: World> Components for Store<W> {
    fn group(&self) -> GroupId {
        self.group.id
    }

    fn space(&self) -> GroupSpace {
        let mut state = self.group.state.borrow_mut();
        state.expire_holds(self.group.world.now());
        state.group_space()
    }

    fn counters(&self) -> StoreCounters {
        let mut counters = self.group.state.borrow().counters;
        counters.device_errors = self.group.devices.iter().map(|d| d.errors()).sum();
        counters
    }

    fn take_events(&self) -> Vec<StoreEvent> {
        self.group.state.borrow_mut().events.drain(..).collect()
    }

    fn list(&self) -> Vec<ComponentStatus> {
        let state = self.group.state.borrow();
        let mut all: Vec<ComponentStatus> = state
            .components
            .values()
            .filter(|c| c.durable && !c.deleting)
            .map(|c| c.status(used_bytes(c)))
            .collect();
        all.sort_by_key(|status| status.id);
        all
    }

    fn status(&self, id: ComponentId) -> Result<ComponentStatus, StoreError> {
        let state = self.group.state.borrow();
        let c = state.components.find(id)?;
        let mut status = c.status(used_bytes(c));
        status.lost |= self.group.failed.borrow().is_some();
        Ok(status)
    }

    async fn create(&self, id: ComponentId, spec: ComponentSpec) -> Result<(), StoreError> {
        let effect = self.queue_create(id, spec)?;
        let wait = self.queue(effect)?;
        self.durable(wait).await
    }

    async fn delete(&self, id: ComponentId) -> Result<(), StoreError> {
        self.admit()?;
        let effect = {
            let mut state = self.group.state.borrow_mut();
            match state.components.find_mut(id) {
                Ok(c) => {
                    c.deleting = true;
                    Effect::Delete { local: c.local }
                }
                // Perhaps a deletion is queued: wait for it.
                Err(_) => Effect::Nothing,
            }
        };
        let wait = self.queue(effect)?;
        self.durable(wait).await
    }

    async fn grow(&self, id: ComponentId, blocks: u32) -> Result<(), StoreError> {
        self.admit()?;
        let local = {
            let state = self.group.state.borrow();
            let c = state.components.find(id)?;
            if u64::from(blocks) * BLOCK > COMPONENT_MAX {
                return Err(StoreError::Malformed("size of a component"));
            }
            // Its object was shrunk before: the room is there.
            if blocks <= c.spec.blocks {
                return Ok(());
            }
            c.local
        };
        let wait = self.queue(Effect::Grow { local, blocks })?;
        self.durable(wait).await
    }

    async fn fence(&self, id: ComponentId, epoch: Epoch) -> Result<Promise, StoreError> {
        self.admit()?;
        let (local, effect) = {
            let mut state = self.group.state.borrow_mut();
            let c = state.components.find_mut(id)?;
            c.check_lost()?;
            if epoch < c.queued_fence {
                return Err(StoreError::Fenced { fenced: c.queued_fence });
            }
            c.queued_fence = epoch;
            if is_only_in_memory(c, epoch, None) {
                return Ok(c.promise);
            }
            (c.local, Effect::Fence { local: c.local, epoch })
        };
        let wait = self.queue(effect)?;
        self.durable(wait).await?;
        let state = self.group.state.borrow();
        let c = state.components.find(id)?;
        let (promised, is_same) = (c.promise.fenced, c.local == local);
        assert!(!is_same || promised >= epoch, "{promised:?} is promised, {epoch:?} was asked for");
        Ok(c.promise)
    }

    async fn open_session(
        &self,
        id: ComponentId,
        session: Session,
        incomplete: Option<Seq>,
    ) -> Result<Promise, StoreError> {
        let incomplete = noted_incomplete(incomplete);
        self.admit()?;
        let (local, effect) = {
            let mut state = self.group.state.borrow_mut();
            let c = state.components.find_mut(id)?;
            c.check_lost()?;
            if session.epoch < c.queued_fence {
                return Err(older(c));
            }
            if session <= c.queued_session {
                return Err(StoreError::Session { open: c.queued_session });
            }
            c.queued_fence = session.epoch;
            c.queued_session = session;
            c.session_seq = Seq(0);
            if is_only_in_memory(c, session.epoch, Some(session)) {
                return Ok(c.promise);
            }
            (c.local, Effect::Attach { local: c.local, session, incomplete })
        };
        let wait = self.queue(effect)?;
        self.durable(wait).await?;
        let state = self.group.state.borrow();
        let c = state.components.find(id)?;
        let holds = c.session >= session && c.promise.fenced >= session.epoch;
        assert!(c.local != local || holds, "{session:?} was opened, {:?} is", c.session);
        Ok(c.promise)
    }

    async fn complete(
        &self,
        id: ComponentId,
        session: Session,
        up_to: Seq,
    ) -> Result<(), StoreError> {
        self.admit()?;
        if up_to.0 > SEQ_MAX {
            return Err(StoreError::Malformed("seq"));
        }
        let local = {
            let state = self.group.state.borrow();
            let c = state.components.find(id)?;
            check_session(c, session)?;
            c.check_lost()?;
            c.local
        };
        let wait = self.queue(Effect::Complete { local, up_to })?;
        self.durable(wait).await
    }

    fn reserve(&self, id: ComponentId, chunk: u32) -> Result<(), StoreError> {
        self.admit()?;
        let now = self.group.world.now();
        let mut state = self.group.state.borrow_mut();
        state.expire_holds(now);
        let c = state.components.find(id)?;
        if chunk >= c.spec.blocks.div_ceil(BLOCKS_PER_CHUNK) {
            return Err(StoreError::Malformed("chunk"));
        }
        c.check_lost()?;
        let local = c.local;
        state.hold(local, chunk, now + limits::HOLD)
    }

    async fn append(
        &self,
        id: ComponentId,
        session: Session,
        op: ComponentOp,
    ) -> Result<(), StoreError> {
        let (local, wait) = self.queue_append(id, session, op)?;
        self.durable(wait).await?;
        let delay = self.group.state.borrow().write_delay(local);
        if delay > Nanos::ZERO {
            self.group.slowed();
            self.group.world.sleep(delay).await;
        }
        Ok(())
    }

    fn committed(&self, id: ComponentId, seq: Seq) {
        let mut state = self.group.state.borrow_mut();
        let Ok(c) = state.components.find_mut(id) else { return };
        let before = c.promise.committed;
        c.commit(seq);
        let local = c.local;
        if c.promise.committed > before && state.components.hint(local) {
            drop(state);
            self.group.log_work.notify_all();
        }
    }

    fn uncommitted(&self, id: ComponentId) -> Result<Vec<OpRecord>, StoreError> {
        self.group.usable()?;
        let state = self.group.state.borrow();
        let c = state.components.find(id)?;
        c.check_lost()?;
        Ok(c.uncommitted.values().copied().collect())
    }

    fn applied(&self, id: ComponentId, ticket: Ticket) -> Result<bool, StoreError> {
        self.group.usable()?;
        let state = self.group.state.borrow();
        let c = state.components.find(id)?;
        c.check_lost()?;
        Ok(c.applied(ticket))
    }

    fn tickets(&self, id: ComponentId) -> Result<Vec<Ticket>, StoreError> {
        self.group.usable()?;
        let state = self.group.state.borrow();
        let c = state.components.find(id)?;
        c.check_lost()?;
        Ok(c.tickets())
    }

    async fn set_tickets(
        &self,
        id: ComponentId,
        session: Session,
        set: SetTickets,
    ) -> Result<(), StoreError> {
        self.admit()?;
        if set.len() > SET_TICKETS_MAX {
            return Err(StoreError::Malformed("too many tickets at once"));
        }
        let local = {
            let state = self.group.state.borrow();
            let c = state.components.find(id)?;
            check_session(c, session)?;
            c.check_lost()?;
            c.local
        };
        let wait = self.queue(Effect::SetTickets { local, set })?;
        self.durable(wait).await
    }

    async fn read(&self, id: ComponentId, range: BlockRange) -> Result<ReadBlocks, StoreError> {
        read::read(&self.group, id, range, read::Reader::Caller).await
    }

    async fn tags(&self, id: ComponentId, chunk: u32) -> Result<Vec<BlockTag>, StoreError> {
        read::tags(&self.group, id, chunk).await
    }

    fn chunks_since(
        &self,
        id: ComponentId,
        since: Seq,
        first: u32,
        max: usize,
    ) -> Result<Vec<(u32, Seq)>, StoreError> {
        self.group.usable()?;
        let state = self.group.state.borrow();
        let c = state.components.find(id)?;
        c.check_lost()?;
        let mut found = Vec::new();
        let mut from = first;
        while found.len() < max
            && let Some(chunk) = c.next_chunk(from)
        {
            let newest = c.chunk_newest(chunk);
            if newest > since {
                found.push((chunk, newest));
            }
            from = chunk + 1;
        }
        let rises = found.is_sorted_by(|a, b| a.0 < b.0) && found.len() <= max;
        assert!(rises, "{} chunks, {max} were asked for, or not in order", found.len());
        Ok(found)
    }

    async fn copy_in(
        &self,
        id: ComponentId,
        session: Session,
        copy: Copy,
    ) -> Result<u32, StoreError> {
        self.admit()?;
        {
            let state = self.group.state.borrow();
            let c = state.components.find(id)?;
            check_session(c, session)?;
            check_copy(c, &copy)?;
        }
        // Without `only_if` nothing is awaited between here and the queue.
        let blocks = self.blocks_to_copy(id, session, &copy).await?;
        if blocks.is_empty() {
            return Ok(0);
        }
        let count = blocks.len() as u32;
        let wait = self.queue_copy(id, session, copy.chunk, blocks, copy.tickets)?;
        self.durable(wait).await?;
        Ok(count)
    }

    fn scrub(&self, only: Option<&[ComponentId]>, bytes_per_second: u64) {
        scrub::start(&self.group, &self.scrub_turn, only, bytes_per_second);
    }

    fn scrub_progress(&self) -> ScrubProgress {
        self.group.state.borrow().scrub
    }
}

/// Slots in use.
fn used_bytes(c: &Component) -> u64 {
    u64::from(c.table.slots_used()) * CHUNK
}

#[cfg(test)]
mod tests {
    use super::{DeviceRoom, best_device};

    #[test]
    fn a_component_goes_to_a_device_that_is_as_large_and_not_full() {
        let best =
            |devices: &[(i64, bool, i64)], chunks| {
                let room = |(index, &(usable, is_open, room)): (usize, &(i64, bool, i64))| {
                    DeviceRoom { index, usable, is_open, room }
                };
                best_device(devices.iter().enumerate().map(room), chunks)
            };
        for (devices, chunks, expected) in [
            (&[][..], 1, None),
            (&[(9, true, 4), (9, true, 5), (9, true, 5)], 3, Some(1)),
            // Twice what there is: the least is promised of the last.
            (&[(9, true, -20), (9, true, -19), (9, true, -18)], 9, Some(2)),
            (&[(90, true, -50), (40, true, 40)], 50, Some(0)),
            (&[(90, true, -50), (40, true, 40)], 40, Some(1)),
            (&[(90, false, 10), (90, true, -5)], 9, Some(1)),
            (&[(90, false, 10), (40, true, 40)], 50, Some(0)),
            (&[(30, true, 30), (40, true, 20)], 50, Some(0)),
        ] {
            assert_eq!(best(devices, chunks), expected, "{devices:?} and {chunks}");
        }
    }
}
