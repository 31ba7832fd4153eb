//! The write log's writer: operations in, durable batches out, one batch in flight.
//!
//! While a batch is in flight later operations queue; the next batch takes all it can hold. The
//! payload goes from the caller's buffers to the device without a copy. A batch that was written
//! is applied to the state, and only then are its operations answered.
//!
//! A write of a whole chunk goes past the log: its bytes are made durable in a slot of their own
//! first, then the batch takes only its descriptor and CRCs. It keeps its turn in the queue:
//! operations behind it wait for its bytes, so that the order of the queue is that of the log.
//!
//! Invariants: batches are numbered without gaps; `durable_to` of a batch is the number before
//! its own; a segment is overwritten only when the journal says it is free, and no read is under
//! way in it; after a failed write nothing is ever written again.

use crate::group::Group;
use crate::limits;
use crate::state::{BatchPlace, State};
use atoll_format::id::{ComponentId, Epoch, Seq, Session};
use atoll_format::log::{
    BatchHead, DESCRIPTOR_LEN, Descriptor, FLAG_FORCED, FLAG_FORGET, FLAG_INCOMPLETE,
    FooterBuilder, HEAD_LEN, LogKind, SegmentHeader, header_blocks, seal_batch,
};
use atoll_format::op::{BlockState, OpKind};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::{ComponentOp, ComponentSpec, CopyBlock, SetTickets};
use atoll_world::sync::Sender;
use atoll_world::{Buf, BufMut, Durability, Nanos, Stage, World, mutant, sometimes};
use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use zerocopy::{FromZeros, IntoBytes};

/// What a queued operation does.
pub(crate) enum Effect {
    /// Nothing: it waits for what was queued before.
    Nothing,
    Append {
        local: u32,
        op: ComponentOp,
    },
    /// A write whose bytes go, or have gone, to a slot.
    Place {
        local: u32,
        op: ComponentOp,
        slot: u32,
        bytes: Rc<Cell<Bytes>>,
    },
    CopyIn {
        local: u32,
        chunk: u32,
        blocks: Vec<CopyBlock>,
        tickets: SetTickets,
    },
    Fence {
        local: u32,
        epoch: Epoch,
    },
    Attach {
        local: u32,
        session: Session,
        /// It may lack any operation above this one.
        incomplete: Option<Seq>,
    },
    Complete {
        local: u32,
        /// It has every operation up to this one.
        up_to: Seq,
    },
    SetTickets {
        local: u32,
        set: SetTickets,
    },
    Create {
        local: u32,
        id: ComponentId,
        spec: ComponentSpec,
        device: u8,
    },
    Delete {
        local: u32,
    },
    Grow {
        local: u32,
        blocks: u32,
    },
}

/// How far the bytes of a placed write are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bytes {
    UnderWay,
    Durable,
    /// The device failed: the operation never reaches the log.
    Lost,
}

/// A queued operation and whoever waits for it.
pub(crate) struct Item {
    pub effect: Effect,
    pub reply: Option<Sender<()>>,
    /// Of its stage, if that is noted.
    pub begun: Option<Nanos>,
}

impl Item {
    /// Descriptors, CRCs in the list, payload blocks.
    fn weight(&self) -> (u32, u32, u32) {
        match &self.effect {
            Effect::Nothing => (0, 0, 0),
            Effect::Append { op, .. } if op.kind == OpKind::Write => {
                let n = u32::from(op.range.count);
                (1, if n > 1 { n } else { 0 }, n)
            }
            Effect::Place { .. } => (1, BLOCKS_PER_CHUNK, 0),
            Effect::CopyIn { blocks, tickets, .. } => {
                let raw = blocks.iter().filter(|b| b.bytes.is_some()).count();
                ((blocks.len() + tickets.len()) as u32, 0, raw as u32)
            }
            Effect::SetTickets { set, .. } => (set.len() as u32, 0, 0),
            _ => (1, 0, 0),
        }
    }

    /// Whether it can never go into a batch.
    fn is_lost(&self) -> bool {
        match &self.effect {
            Effect::Place { bytes, .. } => bytes.get() == Bytes::Lost,
            _ => false,
        }
    }

    /// Whether it may go into a batch.
    fn is_ready(&self) -> bool {
        match &self.effect {
            Effect::Place { bytes, .. } if mutant!("log.placed_not_awaited") => {
                bytes.get() != Bytes::Lost
            }
            Effect::Place { bytes, .. } => bytes.get() == Bytes::Durable,
            _ => true,
        }
    }
}

/// The queue and where the log's head is.
pub(crate) struct LogQueue {
    pub items: VecDeque<Item>,
    /// Those of the batch in flight.
    pub in_flight: Vec<Item>,
    pub generation: u64,
    /// Seq of the next batch; the one before is durable.
    pub next_seq: u64,
    pub prev_crc: u32,
    pub footer: FooterBuilder,
    /// The last batch with operations is not covered by a later one.
    pub uncovered: bool,
    /// Between batches the vectors are empty and keep their memory.
    ops: Vec<Descriptor>,
    crcs: Vec<u32>,
}

impl LogQueue {
    pub(crate) fn new(
        generation: u64,
        next_seq: u64,
        prev_crc: u32,
        footer: FooterBuilder,
    ) -> Self {
        Self {
            items: VecDeque::new(),
            in_flight: Vec::new(),
            generation,
            next_seq,
            prev_crc,
            footer,
            uncovered: false,
            ops: Vec::new(),
            crcs: Vec::new(),
        }
    }

    /// Everything that waits.
    pub(crate) fn clear(&mut self) -> (VecDeque<Item>, Vec<Item>) {
        (std::mem::take(&mut self.items), std::mem::take(&mut self.in_flight))
    }

    /// Whether an operation that is not durable yet touches block `block` of a component.
    pub(crate) fn touches(&self, of: u32, block: u32) -> bool {
        self.items.iter().chain(&self.in_flight).any(|item| match &item.effect {
            Effect::Append { local, op } | Effect::Place { local, op, .. } => {
                *local == of && op.range.start <= block && block < op.range.end()
            }
            Effect::CopyIn { local, blocks, .. } => {
                *local == of && blocks.iter().any(|b| b.block == block)
            }
            _ => false,
        })
    }
}

/// A batch that is ready to be written.
struct Batch {
    at: u64,
    data: Vec<Buf>,
    place: BatchPlace,
    head: BatchHead,
    ops: Vec<Descriptor>,
    crcs: Vec<u32>,
    header: Buf,
}

enum Next {
    /// Nothing to do until something is queued, or until then.
    Wait(Option<Nanos>),
    /// The index holds as many blocks as it may.
    IndexFull,
    /// The segment is full: seal it and begin the next.
    Seal,
    Write(Batch),
    End,
}

/// Writes batches until the store fails or is closed.
pub(crate) async fn run<W: World>(group: Rc<Group<W>>) {
    loop {
        if group.failed.borrow().is_some() {
            break;
        }
        let wake = group.log_work.notified();
        match next(&group, false) {
            Next::End => break,
            Next::Wait(None) => wake.await,
            Next::Wait(Some(until)) => {
                // Whichever comes first; both only mean "look again".
                let _ = group.world.timeout_at(until, wake).await;
            }
            Next::IndexFull => {
                // Ends when a round of destage is done; each has deadlines.
                let trimmed = group.trimmed.notified();
                group.state.borrow_mut().head_waits = true;
                group.mover_work.notify_all();
                trimmed.await;
                group.state.borrow_mut().head_waits = false;
            }
            Next::Seal => {
                if seal(&group).await.is_err() {
                    break;
                }
            }
            Next::Write(batch) => {
                if write(&group, batch).await.is_err() {
                    break;
                }
            }
        }
    }
    footer_written(&group).await;
    group.log_ended.set(true);
    group.ended.notify_all();
}

/// Writes a batch without operations, so that the log goes on from here under this generation.
pub(crate) async fn write_marker<W: World>(group: &Rc<Group<W>>) -> Result<(), ()> {
    loop {
        match next(group, true) {
            Next::Seal => seal(group).await?,
            Next::Write(batch) => return write(group, batch).await,
            Next::Wait(_) | Next::IndexFull | Next::End => {
                unreachable!("a marker always has a batch to write")
            }
        }
    }
}

fn next<W: World>(group: &Group<W>, marker: bool) -> Next {
    let mut state = group.state.borrow_mut();
    let mut queue = group.queue.borrow_mut();
    let now = group.world.now();
    drop_lost(&mut state, &mut queue);
    let ready = queue.items.front().is_some_and(Item::is_ready);
    if !ready && !marker {
        let covers = queue.uncovered || !state.hints.is_empty();
        if group.closing.get() {
            if !queue.items.is_empty() {
                return Next::Wait(None);
            }
            if !covers {
                return Next::End;
            }
        } else if !covers {
            return Next::Wait(None);
        } else if now < state.last_write + limits::MARKER_AFTER {
            return Next::Wait(Some(state.last_write + limits::MARKER_AFTER));
        }
    } else if !marker && state.index_blocks >= state.index_max {
        return Next::IndexFull;
    }
    let most = group.world.bound(limits::BATCH_OPS as usize, 3) as u32;
    build(&mut state, &mut queue, group.journal.borrow().durable_seq, most)
}

/// Takes out operations whose bytes were lost: their senders' end is the answer.
fn drop_lost(state: &mut State, queue: &mut LogQueue) {
    while queue.items.front().is_some_and(Item::is_lost) {
        let Some(item) = queue.items.pop_front() else { break };
        let Effect::Place { local, op, slot, .. } = item.effect else { continue };
        if let Some(c) = state.components.get(&local) {
            let space = &mut state.space[usize::from(c.device)];
            space.slots_placing -= 1;
            space.slots.free(slot);
        }
        state.unqueue(local, op.range.chunk());
    }
}

/// At most `most` operations, if one is no more than that.
fn build(state: &mut State, queue: &mut LogQueue, journal_to: u64, most: u32) -> Next {
    let geometry = &state.geometry;
    let (mut ops, mut crcs, mut blocks) = (0, 0, 0);
    let room = geometry.segment_len - state.head_offset;
    let hints = state.hints.len().min(limits::BATCH_HINTS) as u32;
    let mut take = 0;
    for item in queue.items.iter().take_while(|item| item.is_ready()) {
        let (o, c, b) = item.weight();
        let (o, c, b) = (ops + o, crcs + c, blocks + b);
        let len = (u64::from(header_blocks(o + hints, c)) + u64::from(b)) * BLOCK;
        if o > limits::BATCH_OPS
            || take > 0 && o > most
            || c > limits::BATCH_CRCS
            || b > geometry.batch_blocks
            || len + queue.footer.len_after(o + hints, c) > room
        {
            break;
        }
        (ops, crcs, blocks) = (o, c, b);
        take += 1;
    }
    let empty = (u64::from(header_blocks(hints, 0))) * BLOCK;
    let nothing_fits = if !queue.items.front().is_some_and(Item::is_ready) {
        empty + queue.footer.len_after(hints, 0) > room
    } else {
        take == 0
    };
    if nothing_fits {
        return Next::Seal;
    }
    Next::Write(assemble(state, queue, take, journal_to))
}

fn assemble(state: &mut State, queue: &mut LogQueue, take: usize, journal_to: u64) -> Batch {
    let mut ops = std::mem::take(&mut queue.ops);
    let mut crcs = std::mem::take(&mut queue.crcs);
    let mut data = vec![Buf::zeros(0)];
    let mut payload_blocks = 0;
    queue.in_flight.extend(queue.items.drain(..take));
    for item in &queue.in_flight {
        encode(item, &mut ops, &mut crcs, &mut data, &mut payload_blocks);
    }
    for _ in 0..limits::BATCH_HINTS {
        let Some(local) = state.hints.pop_first() else { break };
        if let Some(c) = state.components.get(&local).filter(|c| c.durable) {
            let mut op = descriptor(LogKind::Committed, local);
            op.seq = c.promise.committed.0.into();
            ops.push(op);
        }
    }
    let geometry = &state.geometry;
    let at = geometry.segment_at(state.head_segment) + state.head_offset;
    let (n, c) = (ops.len() as u32, crcs.len() as u32);
    let mut head = BatchHead {
        salt: geometry.salt,
        generation: queue.generation,
        seq: queue.next_seq,
        at,
        segment: state.head_segment,
        durable_to: queue.next_seq - 1,
        journal_to,
        prev_crc: queue.prev_crc,
        ops: n,
        crc_count: c,
        header_blocks: header_blocks(n, c),
        payload_blocks,
        head_crc: 0,
    };
    let end =
        state.head_offset + (u64::from(head.header_blocks) + u64::from(payload_blocks)) * BLOCK;
    let end = end + queue.footer.len_after(n, c);
    assert!(end <= geometry.segment_len, "a batch and the footer behind it stay in their segment");
    let mut header = BufMut::for_overwrite(head.header_blocks as usize * BLOCK_LEN);
    let list = HEAD_LEN + ops.len() * DESCRIPTOR_LEN;
    header[HEAD_LEN..list].copy_from_slice(ops.as_bytes());
    for (to, crc) in header[list..].chunks_exact_mut(4).zip(&crcs) {
        to.copy_from_slice(&crc.to_le_bytes());
    }
    header[list + 4 * crcs.len()..].fill(0);
    head.head_crc = seal_batch(&head, &mut header);
    let header = header.freeze();
    data[0] = header.clone();
    let place = BatchPlace {
        batch: (at / BLOCK) as u32,
        payload: (head.payload_at() / BLOCK) as u32,
        segment: head.segment,
    };
    Batch { at, data, place, head, ops, crcs, header }
}

fn descriptor(kind: LogKind, local: u32) -> Descriptor {
    let mut op = Descriptor::new_zeroed();
    op.kind = kind as u8;
    op.component = local.into();
    op
}

fn of_operation(kind: LogKind, local: u32, op: &ComponentOp) -> Descriptor {
    let mut d = descriptor(kind, local);
    d.block = op.range.start.into();
    d.blocks = op.range.count.into();
    d.epoch = op.id.epoch.0.into();
    d.seq = op.id.seq.0.into();
    d.number = op.ticket.number.into();
    d.client = op.ticket.client.0.into();
    d.settled_below = op.ticket.settled_below.into();
    d
}

/// Turns an item into descriptors, CRCs and payload.
fn encode(
    item: &Item,
    ops: &mut Vec<Descriptor>,
    crcs: &mut Vec<u32>,
    data: &mut Vec<Buf>,
    payload_blocks: &mut u32,
) {
    match &item.effect {
        Effect::Nothing => {}
        Effect::Place { local, op, slot, .. } => {
            let mut d = of_operation(LogKind::Placed, *local, op);
            d.payload_at = (*slot).into();
            d.crc = (crcs.len() as u32).into();
            crcs.extend_from_slice(&op.crcs);
            ops.push(d);
        }
        Effect::Append { local, op } => {
            let kind = match op.kind {
                OpKind::Write => LogKind::Write,
                OpKind::Zero => LogKind::Zero,
                OpKind::Discard => LogKind::Discard,
            };
            let mut d = of_operation(kind, *local, op);
            if op.kind == OpKind::Write {
                d.payload_at = (*payload_blocks).into();
                if op.crcs.len() == 1 {
                    d.crc = op.crcs[0].into();
                } else {
                    d.crc = (crcs.len() as u32).into();
                    crcs.extend_from_slice(&op.crcs);
                }
                data.extend(op.payload.iter().cloned());
                *payload_blocks += u32::from(op.range.count);
            }
            ops.push(d);
        }
        Effect::CopyIn { local, blocks, tickets, .. } => {
            encode_tickets(*local, tickets, ops);
            for block in blocks {
                let kind = match block.tag.state {
                    BlockState::Raw => LogKind::Write,
                    BlockState::Zero => LogKind::Zero,
                    BlockState::Absent => LogKind::Discard,
                    _ => LogKind::Bad,
                };
                let mut d = descriptor(kind, *local);
                d.flags = FLAG_FORCED.into();
                d.block = block.block.into();
                d.blocks = 1.into();
                d.seq = block.tag.seq.0.into();
                if let Some(bytes) = &block.bytes {
                    d.crc = block.tag.crc.into();
                    d.payload_at = (*payload_blocks).into();
                    data.push(bytes.clone());
                    *payload_blocks += 1;
                }
                ops.push(d);
            }
        }
        Effect::Fence { local, epoch } => {
            let mut d = descriptor(LogKind::Fence, *local);
            d.epoch = epoch.0.into();
            ops.push(d);
        }
        Effect::Complete { local, up_to } => {
            let mut d = descriptor(LogKind::Complete, *local);
            d.seq = up_to.0.into();
            ops.push(d);
        }
        Effect::Attach { local, session, incomplete } => {
            let mut d = descriptor(LogKind::Attach, *local);
            if let Some(above) = incomplete {
                d.flags = FLAG_INCOMPLETE.into();
                d.seq = above.0.into();
            }
            d.epoch = session.epoch.0.into();
            d.number = session.attach.into();
            ops.push(d);
        }
        Effect::Create { local, id, spec, device } => {
            let mut d = descriptor(LogKind::Create, *local);
            d.client = id.0.into();
            d.group = spec.object.0.into();
            d.parts = spec.leg.into();
            d.block = spec.blocks.into();
            d.epoch = spec.epoch.0.into();
            d.column = *device;
            ops.push(d);
        }
        Effect::SetTickets { local, set } => encode_tickets(*local, set, ops),
        Effect::Delete { local } => ops.push(descriptor(LogKind::Delete, *local)),
        Effect::Grow { local, blocks } => {
            let mut d = descriptor(LogKind::Grow, *local);
            d.block = (*blocks).into();
            ops.push(d);
        }
    }
}

fn encode_tickets(local: u32, set: &SetTickets, ops: &mut Vec<Descriptor>) {
    let forget = set.forget.iter().map(|ticket| (ticket, FLAG_FORGET));
    let add = set.add.iter().map(|ticket| (ticket, 0));
    ops.extend(forget.chain(add).map(|(ticket, flags)| {
        let mut d = descriptor(LogKind::Ticket, local);
        d.flags = flags.into();
        d.number = ticket.number.into();
        d.client = ticket.client.0.into();
        d.settled_below = ticket.settled_below.into();
        d
    }));
}

/// CRCs of a descriptor's payload.
pub(crate) fn crcs_of<'a>(op: &Descriptor, one: &'a mut [u32; 1], list: &'a [u32]) -> &'a [u32] {
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

/// Makes the bytes of a placed write durable where they stay, then lets the log go on. A task of
/// its own: the slot must not be given to another while the device still writes to it.
pub(crate) async fn place<W: World>(
    group: Rc<Group<W>>,
    (device, at): (usize, u64),
    payload: Vec<Buf>,
    bytes: Rc<Cell<Bytes>>,
) {
    group.world.charge(limits::CPU_BLOCK * u64::from(BLOCKS_PER_CHUNK)).await;
    let volatile = mutant!("log.placed_not_durable");
    let durability = if volatile { Durability::Volatile } else { Durability::Durable };
    match group.devices[device].write(at, payload, durability).await {
        Ok(()) => bytes.set(Bytes::Durable),
        Err(e) => {
            group.device_failed(device, &e);
            bytes.set(Bytes::Lost);
        }
    }
    group.log_work.notify_all();
}

async fn write<W: World>(group: &Rc<Group<W>>, batch: Batch) -> Result<(), ()> {
    let Batch { at, data, place, head, mut ops, mut crcs, header } = batch;
    let work = u64::from(head.ops.max(head.payload_blocks));
    group.world.charge(limits::CPU_BATCH + limits::CPU_BLOCK * work).await;
    if mutant!("log.answers_before_the_write") {
        let mut queue = group.queue.borrow_mut();
        let replies = queue.in_flight.iter_mut().filter_map(|item| item.reply.take());
        replies.for_each(|reply| reply.send(()));
    }
    let volatile = mutant!("log.batch_not_durable");
    let durability = if volatile { Durability::Volatile } else { Durability::Durable };
    let begun = group.world.stage(Stage::LogWrite);
    if let (Some(stages), Some(now)) = (group.world.stages(), begun) {
        for queued in group.queue.borrow().in_flight.iter().filter_map(|item| item.begun) {
            stages.note(Stage::LogQueue, now.since(queued));
        }
    }
    if let Err(e) = group.log_device().write(at, data, durability).await {
        group.device_failed(0, &e);
        return Err(());
    }
    group.world.end_stage(Stage::LogWrite, begun);
    if group.failed.borrow().is_some() {
        return Err(());
    }
    let done = {
        let mut state = group.state.borrow_mut();
        let mut queue = group.queue.borrow_mut();
        for op in &ops {
            let mut one = [0];
            let crcs = crcs_of(op, &mut one, &crcs);
            state.apply(op, crcs, place);
        }
        state.head_offset += head.len_bytes();
        queue.footer.push(&head, &header);
        queue.prev_crc = head.head_crc;
        queue.next_seq += 1;
        let done = std::mem::take(&mut queue.in_flight);
        queue.uncovered = !done.is_empty();
        state.last_write = group.world.now();
        state.counters.log_batches += 1;
        state.counters.log_bytes += head.len_bytes();
        for item in &done {
            count(&mut state, item);
        }
        ops.clear();
        crcs.clear();
        queue.ops = ops;
        queue.crcs = crcs;
        done
    };
    if done.len() > 1 {
        sometimes!("store.log.group_commit");
    }
    let mut done = done;
    for item in done.drain(..) {
        if let Some(reply) = item.reply {
            reply.send(());
        }
    }
    group.queue.borrow_mut().in_flight = done;
    group.audit("after a batch of the log");
    let state = group.state.borrow();
    if state.mover_asleep && state.log_fill() >= state.wake_at_fill {
        drop(state);
        group.mover_work.notify_all();
    }
    Ok(())
}

fn count(state: &mut State, item: &Item) {
    match &item.effect {
        Effect::Place { local, op, .. } => {
            sometimes!("store.log.placed");
            state.counters.ops_written += 1;
            state.counters.bytes_written += u64::from(op.range.count) * BLOCK;
            state.unqueue(*local, op.range.chunk());
        }
        Effect::Append { local, op } => {
            state.counters.ops_written += 1;
            if op.kind == OpKind::Write {
                state.counters.bytes_written += u64::from(op.range.count) * BLOCK;
            }
            state.unqueue(*local, op.range.chunk());
        }
        Effect::CopyIn { local, chunk, blocks, .. } => {
            state.counters.blocks_copied_in += blocks.len() as u64;
            state.unqueue(*local, *chunk);
        }
        _ => {}
    }
}

/// Writes the footer of a full segment while the log goes on in the next: without a footer
/// recovery walks the batches, so nobody has to wait for it.
async fn write_footer<W: World>(group: Rc<Group<W>>, at: u64, footer: Buf) {
    let device = group.log_device();
    let done = async {
        let most = group.world.bound(limits::FOOTER_PIECE, 2 * BLOCK_LEN);
        for from in (0..footer.len()).step_by(most) {
            let piece = footer.slice(from..footer.len().min(from + most));
            device.write(at + from as u64, vec![piece], Durability::Volatile).await?;
        }
        device.flush().await
    };
    if let Err(e) = done.await {
        group.device_failed(0, &e);
    }
    group.writes_footer.set(false);
    group.footer_written.notify_all();
}

/// Waits until no footer is being written; each request of a device has a deadline.
async fn footer_written<W: World>(group: &Group<W>) {
    loop {
        let written = group.footer_written.notified();
        if !group.writes_footer.get() {
            return;
        }
        written.await;
    }
}

/// Begins the footer of the segment, and writes the header of the next once that is free.
async fn seal<W: World>(group: &Rc<Group<W>>) -> Result<(), ()> {
    // That of the segment before: it was begun a whole segment ago.
    footer_written(group).await;
    let (footer, at, next) = {
        let state = group.state.borrow();
        let queue = group.queue.borrow();
        let end = state.geometry.segment_at(state.head_segment) + state.geometry.segment_len;
        let footer = queue.footer.encode(state.geometry.salt, state.head_segment, end);
        let at = end - footer.len() as u64;
        (Buf::copy_from(&footer), at, state.head_segment + 1)
    };
    group.writes_footer.set(true);
    group.world.spawn(write_footer(group.clone(), at, footer));
    // Ends when destage has freed a segment: all that was acknowledged has its slot set aside,
    // and every request of destage has a deadline.
    loop {
        if group.failed.borrow().is_some() {
            return Err(());
        }
        let wake = group.trimmed.notified();
        {
            let mut state = group.state.borrow_mut();
            let free = next - state.trim_below < state.geometry.segments
                || mutant!("log.overwrites_what_is_needed");
            let ring = (next % state.geometry.segments) as usize;
            if free && state.ring[ring].readers == 0 {
                state.ring[ring] = crate::state::Segment::default();
                break;
            }
            sometimes!("store.log.full");
            // The journal has to learn what is free.
            state.head_waits = true;
        }
        group.mover_work.notify_all();
        wake.await;
    }
    let (at, block) = {
        let mut state = group.state.borrow_mut();
        let queue = group.queue.borrow();
        state.head_waits = false;
        let at = state.geometry.segment_at(next);
        let header = SegmentHeader {
            salt: state.geometry.salt,
            generation: queue.generation,
            segment: next,
            at,
            journal_to: group.journal.borrow().durable_seq,
            first_batch: queue.next_seq,
        };
        (at, Buf::copy_from(&header.encode()))
    };
    if mutant!("log.head_before_its_header") {
        group.state.borrow_mut().head_segment = next;
    }
    if let Err(e) = group.log_device().write(at, vec![block], Durability::Durable).await {
        group.device_failed(0, &e);
        return Err(());
    }
    // Only now: all before the head may be trimmed, and a log that holds nothing any more says by
    // this header where it goes on.
    let mut state = group.state.borrow_mut();
    state.head_segment = next;
    state.head_offset = BLOCK;
    group.queue.borrow_mut().footer = FooterBuilder::default();
    Ok(())
}
