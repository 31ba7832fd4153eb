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

use crate::audit::audit;
use crate::group::Group;
use crate::limits;
use crate::log::queue::{Effect, LogQueue, PlacedBytes, QueuedOp};
use crate::state::State;
use crate::state::apply::{BatchPlace, payload_crcs};
use atoll_format::checksum::crc;
use atoll_format::log::{
    BATCH_BLOCKS_MAX, BATCH_CRCS_MAX, BATCH_OPS_MAX, BatchHead, DESCRIPTOR_LEN, Descriptor,
    FLAG_FORCED, FLAG_FORGET, FLAG_INCOMPLETE, FLAG_TOUCHED, FooterBuilder, HEAD_LEN, LogKind,
    SegmentHeader, decode_batch, header_blocks, seal_batch,
};
use atoll_format::op::{BlockState, OpKind};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK, CHUNK, SEQ_MAX};
use atoll_world::buf::total_len;
use atoll_world::components::{ComponentOp, SetTickets};
use atoll_world::{Buf, BufMut, Durability, Nanos, Stage, World, mutant, sometimes};
use std::cell::Cell;
use std::rc::Rc;
use zerocopy::{FromZeros, IntoBytes};

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

enum LogStep {
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
            LogStep::End => break,
            LogStep::Wait(None) => wake.await,
            LogStep::Wait(Some(until)) => {
                // Whichever comes first; both only mean "look again".
                let _ = group.world.timeout_at(until, wake).await;
            }
            LogStep::IndexFull => {
                // Ends when a round of destage is done; each has deadlines.
                let trimmed = group.trimmed.notified();
                group.state.borrow_mut().pace.set_head_waits(true);
                group.mover_work.notify_all();
                trimmed.await;
                group.state.borrow_mut().pace.set_head_waits(false);
            }
            LogStep::Seal => {
                if seal(&group).await.is_err() {
                    break;
                }
            }
            LogStep::Write(batch) => {
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
            LogStep::Seal => seal(group).await?,
            LogStep::Write(batch) => return write(group, batch).await,
            LogStep::Wait(_) | LogStep::IndexFull | LogStep::End => {
                unreachable!("a marker always has a batch to write")
            }
        }
    }
}

fn next<W: World>(group: &Group<W>, marker: bool) -> LogStep {
    let mut state = group.state.borrow_mut();
    let mut queue = group.queue.borrow_mut();
    let now = group.world.now();
    drop_lost(&mut state, &mut queue);
    let ready = queue.items.front().is_some_and(QueuedOp::is_ready);
    if !ready && !marker {
        let covers = queue.uncovered || !state.components.hints().is_empty();
        if group.closing.get() {
            if !queue.items.is_empty() {
                return LogStep::Wait(None);
            }
            if !covers {
                return LogStep::End;
            }
        } else if !covers {
            return LogStep::Wait(None);
        } else if now < state.pace.last_write() + limits::MARKER_AFTER {
            return LogStep::Wait(Some(state.pace.last_write() + limits::MARKER_AFTER));
        }
    } else if !marker && state.log.is_full() {
        return LogStep::IndexFull;
    }
    let most = group.world.bound(limits::BATCH_OPS as usize, 3) as u32;
    build(&mut state, &mut queue, group.journal.borrow().durable_seq, most)
}

/// Takes out operations whose bytes were lost: their senders' end is the answer.
fn drop_lost(state: &mut State, queue: &mut LogQueue) {
    while queue.items.front().is_some_and(QueuedOp::is_lost) {
        let Some(item) = queue.items.pop_front() else { break };
        let Effect::Place { local, op, slot, bytes } = item.effect else { continue };
        assert!(bytes.get() == PlacedBytes::Lost, "an operation is dropped, its bytes: {bytes:?}");
        if let Some(c) = state.components.get(local) {
            state.capacity.give_up_placing(usize::from(c.device), slot);
        }
        state.unqueue(local, op.range.chunk());
    }
}

/// At most `most` operations, if one is no more than that.
fn build(state: &mut State, queue: &mut LogQueue, journal_to: u64, most: u32) -> LogStep {
    let geometry = &state.geometry;
    let (mut ops, mut crcs, mut blocks) = (0, 0, 0);
    let room = state.log.room();
    let hints = state.components.hints().len().min(limits::BATCH_HINTS) as u32;
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
    let nothing_fits = if !queue.items.front().is_some_and(QueuedOp::is_ready) {
        empty + queue.footer.len_after(hints, 0) > room
    } else {
        take == 0
    };
    if nothing_fits {
        return LogStep::Seal;
    }
    let batch = assemble(state, queue, take, journal_to);
    let head = &batch.head;
    assert!(
        (head.crc_count, head.payload_blocks) == (crcs, blocks)
            && (ops..=ops + hints).contains(&head.ops),
        "a batch was to have {ops} operations, {crcs} checksums, {blocks} blocks: {head:?}"
    );
    LogStep::Write(batch)
}

fn assemble(state: &mut State, queue: &mut LogQueue, take: usize, journal_to: u64) -> Batch {
    let mut ops = std::mem::take(&mut queue.ops);
    let mut crcs = std::mem::take(&mut queue.crcs);
    let mut data = vec![Buf::zeros(0)];
    let mut payload_blocks = 0;
    assert!(ops.is_empty() && crcs.is_empty(), "left from the batch before");
    assert!(queue.in_flight.is_empty(), "two batches are in flight");
    queue.in_flight.extend(queue.items.drain(..take));
    for item in &queue.in_flight {
        encode(item, &mut ops, &mut crcs, &mut data, &mut payload_blocks);
    }
    for _ in 0..limits::BATCH_HINTS {
        let Some((local, committed)) = state.components.take_hint() else { break };
        if let Some(committed) = committed {
            let mut op = descriptor(LogKind::Committed, local);
            op.seq = committed.0.into();
            ops.push(op);
        }
    }
    let bytes = total_len(&data);
    assert!(bytes == payload_blocks as usize * BLOCK_LEN, "{bytes} bytes, {payload_blocks} blocks");
    let geometry = &state.geometry;
    state.log.assert_range();
    let at = state.log.head_at();
    let (n, c) = (ops.len() as u32, crcs.len() as u32);
    let mut head = BatchHead {
        salt: geometry.salt,
        generation: queue.generation,
        seq: queue.next_seq,
        at,
        segment: state.log.head_segment(),
        durable_to: queue.next_seq - 1,
        journal_to,
        prev_crc: queue.prev_crc,
        ops: n,
        crc_count: c,
        header_blocks: header_blocks(n, c),
        payload_blocks,
        head_crc: 0,
    };
    let end = state.log.head_offset()
        + (u64::from(head.header_blocks) + u64::from(payload_blocks)) * BLOCK;
    let end = end + queue.footer.len_after(n, c);
    assert!(
        end <= geometry.log.segment_len,
        "a batch and the footer behind it stay in their segment"
    );
    assert!(
        n <= BATCH_OPS_MAX && c <= BATCH_CRCS_MAX && payload_blocks <= BATCH_BLOCKS_MAX,
        "no recovery reads a batch of {n} operations, {c} checksums, {payload_blocks} blocks"
    );
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
    let (own, wanted) = (geometry.log.ring_index(place.batch), geometry.log.place_of(head.segment));
    assert!(own == wanted, "a batch of segment {} lies at place {own}", head.segment);
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
    item: &QueuedOp,
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
            let (blocks, sums) = (u32::from(op.range.count), op.crcs.len());
            assert!(
                blocks == BLOCKS_PER_CHUNK && sums == blocks as usize && op.kind == OpKind::Write,
                "{blocks} blocks and {sums} checksums of a whole chunk"
            );
            crcs.extend_from_slice(&op.crcs);
            ops.push(d);
        }
        Effect::Append { local, op, leaves_trace } => {
            let kind = match op.kind {
                OpKind::Write => LogKind::Write,
                OpKind::Zero => LogKind::Zero,
                OpKind::Discard => LogKind::Discard,
            };
            let mut d = of_operation(kind, *local, op);
            assert!(op.range.is_valid() && op.id.seq.0 <= SEQ_MAX, "{:?}, {:?}", op.range, op.id);
            if op.kind == OpKind::Write {
                let (blocks, sums) = (usize::from(op.range.count), op.crcs.len());
                assert!(blocks == sums, "{blocks} blocks and {sums} checksums");
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
            if op.kind == OpKind::Discard && *leaves_trace {
                d.flags = FLAG_TOUCHED.into();
            }
            ops.push(d);
        }
        Effect::CopyIn { local, chunk, blocks, tickets } => {
            encode_tickets(*local, tickets, ops);
            for block in blocks {
                let (b, state) = (block.block, block.tag.state);
                assert!(b / BLOCKS_PER_CHUNK == *chunk, "block {b} is copied with chunk {chunk}");
                let is_raw = state == BlockState::Raw;
                assert!(block.bytes.is_some() == is_raw, "block {b} is copied as {state:?}");
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

/// Makes the bytes of a placed write durable where they stay, then lets the log go on. A task of
/// its own: the slot must not be given to another while the device still writes to it.
pub(crate) async fn place<W: World>(
    group: Rc<Group<W>>,
    (device, at): (usize, u64),
    payload: Vec<Buf>,
    bytes: Rc<Cell<PlacedBytes>>,
) {
    let len = total_len(&payload) as u64;
    assert!(len == CHUNK && at.is_multiple_of(BLOCK), "{len} bytes at {at} for a whole chunk");
    group.world.charge(limits::CPU_BLOCK * u64::from(BLOCKS_PER_CHUNK)).await;
    let done = group.devices[device].write(at, payload, placed_durability()).await;
    assert!(bytes.get() == PlacedBytes::UnderWay, "a placed write ends twice: {bytes:?}");
    match done {
        Ok(()) => bytes.set(PlacedBytes::Durable),
        Err(e) => {
            group.device_failed(device, &e);
            bytes.set(PlacedBytes::Lost);
        }
    }
    group.log_work.notify_all();
}

async fn write<W: World>(group: &Rc<Group<W>>, batch: Batch) -> Result<(), ()> {
    let Batch { at, data, place, head, mut ops, mut crcs, header } = batch;
    let work = u64::from(head.ops.max(head.payload_blocks));
    group.world.charge(limits::CPU_BATCH + limits::CPU_BLOCK * work).await;
    answer_early(group);
    if group.world.audits() {
        audit_batch(&head, &header, &data[1..], &ops, &crcs);
    }
    let begun = group.world.stage(Stage::LogWrite);
    if let (Some(stages), Some(now)) = (group.world.stages(), begun) {
        for queued in group.queue.borrow().in_flight.iter().filter_map(|item| item.begun) {
            stages.note(Stage::LogQueue, now.since(queued));
        }
    }
    if let Err(e) = group.log_device().write(at, data, batch_durability()).await {
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
        let now = state.log.head_at();
        assert!(
            now == at && state.log.head_segment() == head.segment && queue.next_seq == head.seq,
            "a batch went to {at}, and the log goes on at {now}: {head:?}"
        );
        for op in &ops {
            let mut one = [0];
            let crcs = payload_crcs(op, &mut one, &crcs);
            state.apply(op, crcs, place);
        }
        state.log.advance(head.len_bytes());
        queue.footer.push(&head, &header);
        queue.prev_crc = head.head_crc;
        queue.next_seq += 1;
        let done = std::mem::take(&mut queue.in_flight);
        queue.uncovered = !done.is_empty();
        state.pace.wrote(group.world.now());
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
    audit(group, "after a batch of the log");
    let state = group.state.borrow();
    if state.pace.is_to_wake_mover(state.log.fill()) {
        drop(state);
        group.mover_work.notify_all();
    }
    Ok(())
}

fn count(state: &mut State, item: &QueuedOp) {
    match &item.effect {
        Effect::Place { local, op, .. } => {
            sometimes!("store.log.placed");
            state.counters.ops_written += 1;
            state.counters.bytes_written += u64::from(op.range.count) * BLOCK;
            state.unqueue(*local, op.range.chunk());
        }
        Effect::Append { local, op, .. } => {
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
    {
        let geometry = &group.state.borrow().geometry;
        let end = at + footer.len() as u64;
        let ends = (end - geometry.log.at).is_multiple_of(geometry.log.segment_len);
        assert!(ends && !footer.is_empty(), "a footer from {at} to {end}, within a segment");
    }
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
    assert!(group.writes_footer.get(), "two footers were being written");
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
        let end = state.geometry.log.segment_at(state.log.head_segment())
            + state.geometry.log.segment_len;
        let footer = queue.footer.encode(state.geometry.salt, state.log.head_segment(), end);
        let at = end - footer.len() as u64;
        let room = at - state.geometry.log.segment_at(state.log.head_segment());
        assert!(room >= BLOCK && footer.len() >= BLOCK_LEN, "a footer {room} bytes into a segment");
        (Buf::copy_from(&footer), at, state.log.head_segment() + 1)
    };
    assert!(!group.writes_footer.get(), "a footer is being written already");
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
            if state.log.is_free(next) {
                state.log.clear(next);
                break;
            }
            sometimes!("store.log.full");
            // The journal has to learn what is free.
            state.pace.set_head_waits(true);
        }
        group.mover_work.notify_all();
        wake.await;
    }
    let (at, block) = {
        let mut state = group.state.borrow_mut();
        let queue = group.queue.borrow();
        state.pace.set_head_waits(false);
        let at = state.geometry.log.segment_at(next);
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
    begin_segment_early(group, next);
    if let Err(e) = group.log_device().write(at, vec![block], Durability::Durable).await {
        group.device_failed(0, &e);
        return Err(());
    }
    // Only now: all before the head may be trimmed, and a log that holds nothing any more says by
    // this header where it goes on.
    let mut state = group.state.borrow_mut();
    state.log.begin_segment(next);
    group.queue.borrow_mut().footer = FooterBuilder::default();
    Ok(())
}

fn placed_durability() -> Durability {
    if mutant!("log.placed_not_durable") {
        return Durability::Volatile;
    }
    Durability::Durable
}

fn batch_durability() -> Durability {
    if mutant!("log.batch_not_durable") {
        return Durability::Volatile;
    }
    Durability::Durable
}

/// The flaw of a log that answers before its batch is durable.
fn answer_early<W: World>(group: &Group<W>) {
    if mutant!("log.answers_before_the_write") {
        let mut queue = group.queue.borrow_mut();
        let replies = queue.in_flight.iter_mut().filter_map(|item| item.reply.take());
        replies.for_each(|reply| reply.send(()));
    }
}

/// The flaw of a log that goes on in a segment before its header is durable.
fn begin_segment_early<W: World>(group: &Group<W>, next: u64) {
    if mutant!("log.head_before_its_header") {
        group.state.borrow_mut().log.begin_segment(next);
    }
}

/// A batch that is about to be written is what recovery would read.
fn audit_batch(head: &BatchHead, header: &[u8], payload: &[Buf], ops: &[Descriptor], crcs: &[u32]) {
    let view = decode_batch(header, head.at, head.salt).expect("a batch that was just made");
    assert_eq!(view.head, *head);
    assert!(view.ops.as_bytes() == ops.as_bytes(), "operations of {head:?}");
    let sums: Vec<u32> =
        payload.iter().flat_map(|bytes| bytes.chunks_exact(BLOCK_LEN)).map(crc).collect();
    let mut used = 0;
    for op in ops {
        let mut one = [0];
        let crcs = payload_crcs(op, &mut one, crcs);
        let is_write = op.kind == LogKind::Write as u8;
        if is_write || op.kind == LogKind::Placed as u8 {
            assert!(view.crcs(op).eq(crcs.iter().copied()), "checksums of {op:?}");
        }
        if is_write {
            let at = op.payload_at.get() as usize;
            assert_eq!(at, used, "the payload of {op:?} lies elsewhere");
            used += crcs.len();
            assert_eq!(sums.get(at..used), Some(crcs), "the payload of {op:?} is another");
        }
    }
    assert_eq!(used, sums.len(), "payload of no operation in {head:?}");
}
