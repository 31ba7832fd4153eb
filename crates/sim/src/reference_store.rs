//! A store without a disk: what [`Components`] promises, in the plainest way that keeps it.
//!
//! The cluster simulation can run on it, so that a violation tells whose it is; and the real store
//! is compared with it, operation by operation.
//!
//! Invariants: operations take effect one after the other in the order in which they were asked
//! for; a crash keeps a prefix of those that had no answer yet.

use crate::executor::Executor;
use crate::rng::Rng;
use atoll_format::id::{ClientId, ComponentId, Epoch, GroupId, OpId, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpKind, OpRecord, Promise};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK, CHUNK};
use atoll_world::components::{
    ComponentOp, ComponentSpec, ComponentStatus, Components, Copy, GroupSpace, ReadBlocks,
    ScrubProgress, SetTickets, StoreCounters, StoreError, StoreEvent,
};
use atoll_world::sync::oneshot;
use atoll_world::{Buf, Nanos, buf};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Time an operation takes, least and most.
const LATENCY: (u64, u64) = (20_000, 120_000);

#[derive(Clone, Default)]
struct Applied {
    settled_below: u32,
    numbers: BTreeSet<u32>,
}

#[derive(Clone)]
struct Component {
    spec: ComponentSpec,
    promise: Promise,
    session: Session,
    session_seq: Seq,
    incomplete: Option<Seq>,
    blocks: BTreeMap<u32, (BlockTag, Option<Buf>)>,
    uncommitted: BTreeMap<OpId, OpRecord>,
    clients: BTreeMap<ClientId, Applied>,
}

impl Component {
    fn tag(&self, block: u32) -> BlockTag {
        self.blocks.get(&block).map_or_else(BlockTag::default, |(tag, _)| *tag)
    }

    fn commit(&mut self, seq: Seq) {
        self.promise.committed = self.promise.committed.max(seq);
        let committed = self.promise.committed;
        self.uncommitted.retain(|id, _| id.seq > committed);
    }
}

impl Component {
    fn set_tickets(&mut self, set: &SetTickets) {
        for ticket in &set.forget {
            if let Some(client) = self.clients.get_mut(&ticket.client) {
                client.numbers.remove(&ticket.number);
            }
        }
        set.add.iter().for_each(|&ticket| self.note_ticket(ticket));
    }

    fn note_ticket(&mut self, ticket: Ticket) {
        if ticket.number > 0 {
            let applied = self.clients.entry(ticket.client).or_default();
            applied.settled_below = applied.settled_below.max(ticket.settled_below);
            applied.numbers.insert(ticket.number);
            let below = applied.settled_below;
            applied.numbers.retain(|n| *n >= below);
        }
    }
}

type Effect = Box<dyn FnOnce(&mut Medium)>;

#[derive(Clone, Default)]
struct Medium {
    components: BTreeMap<ComponentId, Component>,
    counters: StoreCounters,
}

struct Inner {
    executor: Executor,
    group: GroupId,
    capacity: u64,
    rng: RefCell<Rng>,
    medium: RefCell<Medium>,
    queue: RefCell<VecDeque<(u64, Effect)>>,
    next: Cell<u64>,
    last: Cell<Nanos>,
}

/// All that a store held at some moment.
#[derive(Clone)]
pub struct Kept(Medium);

/// A disk group that keeps everything in memory that outlives its host.
#[derive(Clone)]
pub struct ReferenceStore(Rc<Inner>);

impl ReferenceStore {
    /// An empty one.
    pub fn new(executor: &Executor, group: GroupId, capacity: u64, rng: Rng) -> Self {
        Self(Rc::new(Inner {
            executor: executor.clone(),
            group,
            capacity,
            rng: RefCell::new(rng),
            medium: RefCell::default(),
            queue: RefCell::default(),
            next: Cell::new(0),
            last: Cell::default(),
        }))
    }

    /// After a crash: of what had no answer, a prefix has happened.
    pub fn reopen(&self) {
        let mut queue = self.0.queue.take();
        let kept = self.0.rng.borrow_mut().below(queue.len() as u64 + 1) as usize;
        for (_, effect) in queue.drain(..kept) {
            effect(&mut self.0.medium.borrow_mut());
        }
        self.0.last.set(Nanos::ZERO);
    }

    /// What it holds at this moment; operations under way have not happened.
    pub fn keep(&self) -> Kept {
        Kept(self.0.medium.borrow().clone())
    }

    /// Its disk is put back to an earlier state, while no host has it open.
    pub fn put_back(&self, kept: &Kept) {
        self.0.queue.borrow_mut().clear();
        *self.0.medium.borrow_mut() = kept.0.clone();
    }

    async fn in_turn<T: 'static>(
        &self,
        effect: impl FnOnce(&mut Medium) -> Result<T, StoreError> + 'static,
    ) -> Result<T, StoreError> {
        let inner = &self.0;
        let (reply, wait) = oneshot();
        let effect: Effect = Box::new(move |medium| reply.send(effect(medium)));
        let number = inner.next.get();
        inner.next.set(number + 1);
        inner.queue.borrow_mut().push_back((number, effect));
        let took = Nanos(inner.rng.borrow_mut().within(LATENCY.0, LATENCY.1));
        let at = (inner.executor.now() + took).max(inner.last.get());
        inner.last.set(at);
        let me = inner.clone();
        inner.executor.call_at(at, move || {
            // Everything before it has the same time or an earlier one; after a crash it is gone.
            let mine = me.queue.borrow().front().is_some_and(|(n, _)| *n == number);
            if mine {
                let (_, effect) = me.queue.borrow_mut().pop_front().expect("just seen");
                effect(&mut me.medium.borrow_mut());
            }
        });
        wait.await.unwrap_or_else(|_| Err(StoreError::Failed("the host has died".into())))
    }
}

impl Medium {
    fn get(&mut self, id: ComponentId) -> Result<&mut Component, StoreError> {
        self.components.get_mut(&id).ok_or(StoreError::NoComponent(id))
    }

    /// The component, if `session` is its open one (R1, R2).
    fn in_session(
        &mut self,
        id: ComponentId,
        session: Session,
    ) -> Result<&mut Component, StoreError> {
        let c = self.get(id)?;
        if session.epoch < c.promise.fenced {
            return Err(StoreError::Fenced { fenced: c.promise.fenced });
        }
        if session != c.session {
            return Err(StoreError::Session { open: c.session });
        }
        Ok(c)
    }

    fn append(
        &mut self,
        id: ComponentId,
        session: Session,
        op: &ComponentOp,
    ) -> Result<(), StoreError> {
        self.counters.ops_written += 1;
        let c = self.in_session(id, session)?;
        if op.id.seq <= c.session_seq {
            return Err(StoreError::Session { open: c.session });
        }
        if !op.range.is_valid() || op.range.end() > c.spec.blocks {
            return Err(StoreError::Malformed("range"));
        }
        let bytes = buf::join(&op.payload);
        if op.kind == OpKind::Write {
            if bytes.len() != usize::from(op.range.count) * BLOCK_LEN
                || op.crcs.len() != usize::from(op.range.count)
            {
                return Err(StoreError::Malformed("payload"));
            }
            for (i, block) in bytes.chunks_exact(BLOCK_LEN).enumerate() {
                if atoll_format::checksum::crc(block) != op.crcs[i] {
                    return Err(StoreError::Damaged { block: op.range.start + i as u32 });
                }
            }
        } else if !bytes.is_empty() {
            return Err(StoreError::Malformed("payload"));
        }
        c.session_seq = op.id.seq;
        let seq = op.id.seq;
        for (i, block) in (op.range.start..op.range.end()).enumerate() {
            let new = match op.kind {
                OpKind::Write => {
                    let tag = BlockTag { seq, state: BlockState::Raw, crc: op.crcs[i] };
                    // A copy of its own: slices of a large buffer would keep all of it.
                    let from = i * BLOCK_LEN;
                    (tag, Some(Buf::copy_from(&bytes[from..from + BLOCK_LEN])))
                }
                OpKind::Zero => (BlockTag { seq, state: BlockState::Zero, crc: 0 }, None),
                OpKind::Discard => (BlockTag { seq, state: BlockState::Absent, crc: 0 }, None),
            };
            c.blocks.insert(block, new);
        }
        c.promise.newest = c.promise.newest.max(seq);
        let record = OpRecord { id: op.id, ticket: op.ticket, kind: op.kind, range: op.range };
        c.uncommitted.insert(op.id, record);
        c.commit(op.committed);
        c.note_ticket(op.ticket);
        Ok(())
    }

    fn copy_in(
        &mut self,
        id: ComponentId,
        session: Session,
        copy: &Copy,
    ) -> Result<u32, StoreError> {
        let c = self.in_session(id, session)?;
        if !copy.tickets_fit() {
            return Err(StoreError::Malformed("tickets of a copy"));
        }
        let mut put = 0;
        for b in &copy.blocks {
            if b.block / BLOCKS_PER_CHUNK != copy.chunk || b.block >= c.spec.blocks {
                return Err(StoreError::Malformed("copy"));
            }
            let here = c.tag(b.block);
            if copy.only_if.is_some_and(|seq| seq != here.seq) {
                continue;
            }
            let bytes = match (b.tag.state, &b.bytes) {
                (BlockState::Raw, Some(bytes)) if bytes.len() == BLOCK_LEN => {
                    if atoll_format::checksum::crc(bytes) != b.tag.crc {
                        return Err(StoreError::Damaged { block: b.block });
                    }
                    Some(Buf::copy_from(bytes))
                }
                (BlockState::Raw, _) => return Err(StoreError::Malformed("copy without bytes")),
                _ => None,
            };
            c.blocks.insert(b.block, (b.tag, bytes));
            c.promise.newest = c.promise.newest.max(b.tag.seq);
            put += 1;
        }
        c.set_tickets(&copy.tickets);
        self.counters.blocks_copied_in += u64::from(put);
        Ok(put)
    }
}

impl Components for ReferenceStore {
    fn group(&self) -> GroupId {
        self.0.group
    }

    fn space(&self) -> GroupSpace {
        let used: u64 = self.list().iter().map(|c| c.used_bytes).sum();
        GroupSpace {
            capacity_bytes: self.0.capacity,
            device_bytes: self.0.capacity,
            used_bytes: used,
            free_bytes: self.0.capacity - used.min(self.0.capacity),
            free_components: u32::MAX,
            log_bytes: 1 << 30,
            log_fill: 0,
        }
    }

    fn counters(&self) -> StoreCounters {
        self.0.medium.borrow().counters
    }

    fn take_events(&self) -> Vec<StoreEvent> {
        Vec::new()
    }

    fn list(&self) -> Vec<ComponentStatus> {
        let ids: Vec<_> = self.0.medium.borrow().components.keys().copied().collect();
        ids.into_iter().filter_map(|id| self.status(id).ok()).collect()
    }

    fn status(&self, id: ComponentId) -> Result<ComponentStatus, StoreError> {
        let mut medium = self.0.medium.borrow_mut();
        let c = medium.get(id)?;
        let raw = c.blocks.iter().filter(|(_, (tag, _))| tag.state == BlockState::Raw);
        let chunks: BTreeSet<u32> = raw.map(|(block, _)| block / BLOCKS_PER_CHUNK).collect();
        Ok(ComponentStatus {
            id,
            spec: c.spec,
            promise: c.promise,
            session: c.session,
            used_bytes: chunks.len() as u64 * CHUNK,
            doubtful: false,
            incomplete: c.incomplete,
            lost: false,
        })
    }

    async fn create(&self, id: ComponentId, spec: ComponentSpec) -> Result<(), StoreError> {
        self.in_turn(move |medium| {
            if let Some(c) = medium.components.get(&id) {
                return if c.spec == spec { Ok(()) } else { Err(StoreError::Exists(id)) };
            }
            let promise = Promise { fenced: spec.epoch, ..Promise::default() };
            let component = Component {
                spec,
                promise,
                session: Session::default(),
                session_seq: Seq(0),
                incomplete: None,
                blocks: BTreeMap::new(),
                uncommitted: BTreeMap::new(),
                clients: BTreeMap::new(),
            };
            medium.components.insert(id, component);
            Ok(())
        })
        .await
    }

    async fn delete(&self, id: ComponentId) -> Result<(), StoreError> {
        self.in_turn(move |medium| {
            medium.components.remove(&id);
            Ok(())
        })
        .await
    }

    async fn grow(&self, id: ComponentId, blocks: u32) -> Result<(), StoreError> {
        self.in_turn(move |medium| {
            let c = medium.get(id)?;
            c.spec.blocks = c.spec.blocks.max(blocks);
            Ok(())
        })
        .await
    }

    async fn fence(&self, id: ComponentId, epoch: Epoch) -> Result<Promise, StoreError> {
        self.in_turn(move |medium| {
            let c = medium.get(id)?;
            if epoch < c.promise.fenced {
                return Err(StoreError::Fenced { fenced: c.promise.fenced });
            }
            c.promise.fenced = epoch;
            Ok(c.promise)
        })
        .await
    }

    async fn open_session(
        &self,
        id: ComponentId,
        session: Session,
        incomplete: Option<Seq>,
    ) -> Result<Promise, StoreError> {
        self.in_turn(move |medium| {
            let c = medium.get(id)?;
            if session.epoch < c.promise.fenced {
                return Err(StoreError::Fenced { fenced: c.promise.fenced });
            }
            if session <= c.session {
                return Err(StoreError::Session { open: c.session });
            }
            c.promise.fenced = session.epoch;
            c.session = session;
            c.session_seq = Seq(0);
            let noted = [c.incomplete, incomplete].into_iter().flatten();
            c.incomplete = noted.min();
            Ok(c.promise)
        })
        .await
    }

    async fn complete(
        &self,
        id: ComponentId,
        session: Session,
        up_to: Seq,
    ) -> Result<(), StoreError> {
        self.in_turn(move |medium| {
            let c = medium.in_session(id, session)?;
            c.incomplete = None;
            c.promise.newest = c.promise.newest.max(up_to);
            Ok(())
        })
        .await
    }

    fn reserve(&self, id: ComponentId, _chunk: u32) -> Result<(), StoreError> {
        self.0.medium.borrow_mut().get(id).map(|_| ())
    }

    async fn append(
        &self,
        id: ComponentId,
        session: Session,
        op: ComponentOp,
    ) -> Result<(), StoreError> {
        self.in_turn(move |medium| medium.append(id, session, &op)).await
    }

    fn committed(&self, id: ComponentId, seq: Seq) {
        if let Ok(c) = self.0.medium.borrow_mut().get(id) {
            c.commit(seq);
        }
    }

    fn uncommitted(&self, id: ComponentId) -> Result<Vec<OpRecord>, StoreError> {
        Ok(self.0.medium.borrow_mut().get(id)?.uncommitted.values().copied().collect())
    }

    fn applied(&self, id: ComponentId, ticket: Ticket) -> Result<bool, StoreError> {
        let mut medium = self.0.medium.borrow_mut();
        let client = medium.get(id)?.clients.get(&ticket.client);
        Ok(client
            .is_some_and(|a| ticket.number < a.settled_below || a.numbers.contains(&ticket.number)))
    }

    fn tickets(&self, id: ComponentId) -> Result<Vec<Ticket>, StoreError> {
        let mut medium = self.0.medium.borrow_mut();
        let of = |(&client, a): (&ClientId, &Applied)| {
            let settled_below = a.settled_below;
            let ticket = |&number: &u32| Ticket { client, number, settled_below };
            a.numbers.iter().map(ticket).collect::<Vec<_>>()
        };
        Ok(medium.get(id)?.clients.iter().flat_map(of).collect())
    }

    async fn set_tickets(
        &self,
        id: ComponentId,
        session: Session,
        set: SetTickets,
    ) -> Result<(), StoreError> {
        self.0.medium.borrow_mut().in_session(id, session)?;
        let effect = move |medium: &mut Medium| {
            medium.in_session(id, session)?.set_tickets(&set);
            Ok(())
        };
        self.in_turn(effect).await
    }

    async fn read(&self, id: ComponentId, range: BlockRange) -> Result<ReadBlocks, StoreError> {
        self.in_turn(move |medium| {
            medium.counters.blocks_read += u64::from(range.count);
            let c = medium.get(id)?;
            if !range.is_valid() || range.end() > c.spec.blocks {
                return Err(StoreError::Malformed("range"));
            }
            let mut out = ReadBlocks { tags: Vec::new(), payload: Vec::new() };
            let mut bad = Vec::new();
            for block in range.start..range.end() {
                let tag = c.tag(block);
                if tag.state == BlockState::Bad {
                    bad.push(block);
                }
                let bytes = c.blocks.get(&block).and_then(|(_, bytes)| bytes.clone());
                out.tags.push(tag);
                out.payload.push(bytes.unwrap_or_else(|| Buf::zeros(BLOCK as usize)));
            }
            if bad.is_empty() { Ok(out) } else { Err(StoreError::Bad(bad)) }
        })
        .await
    }

    async fn tags(&self, id: ComponentId, chunk: u32) -> Result<Vec<BlockTag>, StoreError> {
        self.in_turn(move |medium| {
            let c = medium.get(id)?;
            let first = chunk * BLOCKS_PER_CHUNK;
            Ok((first..first + BLOCKS_PER_CHUNK).map(|b| c.tag(b)).collect())
        })
        .await
    }

    fn chunks_since(
        &self,
        id: ComponentId,
        since: Seq,
        first: u32,
        max: usize,
    ) -> Result<Vec<(u32, Seq)>, StoreError> {
        let mut medium = self.0.medium.borrow_mut();
        let mut newest: BTreeMap<u32, Seq> = BTreeMap::new();
        for (block, (tag, _)) in medium.get(id)?.blocks.range(first * BLOCKS_PER_CHUNK..) {
            let seq = newest.entry(block / BLOCKS_PER_CHUNK).or_default();
            *seq = (*seq).max(tag.seq);
        }
        Ok(newest.into_iter().filter(|(_, seq)| *seq > since).take(max).collect())
    }

    async fn copy_in(
        &self,
        id: ComponentId,
        session: Session,
        copy: Copy,
    ) -> Result<u32, StoreError> {
        self.in_turn(move |medium| medium.copy_in(id, session, &copy)).await
    }

    fn scrub(&self, _only: Option<&[ComponentId]>, _bytes_per_second: u64) {}

    fn scrub_progress(&self) -> ScrubProgress {
        ScrubProgress { idle: true, ..ScrubProgress::default() }
    }
}
