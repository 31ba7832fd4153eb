//! The mover: takes blocks from the log to their slots, trims the log, takes checkpoints.
//!
//! One round: the chunks of the oldest segments, each with its pending blocks there; read from the
//! log, verified, written in place in the order of their slots; flush; one journal batch; then the
//! index forgets them and the log is trimmed. The crash order is data -> flush -> journal -> trim
//! (`store.md` rule 11): until the journal batch is durable the log still has everything, and doing
//! a round again changes nothing.
//!
//! It goes as fast as the log fills, so that guests find the same disk at every moment: not at all
//! below [`limits::FILL_DESTAGE`] while they write; above that, moving home a part of what they
//! bring that grows with the log's fill, as much as they bring at half way to
//! [`limits::FILL_URGENT`]; from there on without a pause; and through to the end when they rest.
//! The pauses lie between the writes of a round, not behind it.

use crate::checkpoint;
use crate::component::Component;
use crate::group::Group;
use crate::index::{Overlay, Pending, Whole};
use crate::journal::{self, Records};
use crate::limits;
use crate::pages::Page;
use crate::state::{Laid, State, home_entry};
use atoll_format::checksum::crc;
use atoll_format::chunk::{BlockEntry, ChunkEntry, JournalKind, NONE};
use atoll_format::id::Seq;
use atoll_format::op::BlockState;
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::StoreEvent;
use atoll_world::{Buf, Durability, FixedMap, Nanos, World, mutant, sometimes};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

enum Next {
    Wait(Option<Nanos>),
    Round,
    Checkpoint,
    End,
}

/// Moves until the store fails or is closed.
pub(crate) async fn run<W: World>(group: Rc<Group<W>>) {
    let mut rest_until = Nanos::ZERO;
    loop {
        let wake = group.mover_work.notified();
        let begun = group.world.now();
        match next(&group, rest_until) {
            Next::End => break,
            Next::Wait(None) => {
                group.state.borrow_mut().mover_asleep = true;
                wake.await;
            }
            Next::Wait(Some(until)) => {
                group.state.borrow_mut().mover_asleep = true;
                // Whichever comes first; both only mean "look again".
                let _ = group.world.timeout_at(until, wake).await;
            }
            Next::Checkpoint => {
                group.state.borrow_mut().round_under_way = true;
                let done = checkpoint::take(&group).await;
                end_round(&mut group.state.borrow_mut());
                if done.is_err() {
                    break;
                }
                group.audit("after a checkpoint");
            }
            Next::Round => {
                group.state.borrow_mut().round_under_way = true;
                let span = Span::begin(begun);
                let done = round(&group, &span).await;
                end_round(&mut group.state.borrow_mut());
                if done.is_err() && group.failed.borrow().is_some() {
                    break;
                }
                group.audit("after a round of destage");
                group.trimmed.notify_all();
                rest_until = rest_until_after(&group, &span);
            }
        }
        group.state.borrow_mut().mover_asleep = false;
    }
    group.mover_ended.set(true);
    group.ended.notify_all();
}

fn end_round(state: &mut State) {
    state.round_under_way = false;
    for space in &mut state.space {
        for slot in std::mem::take(&mut space.slots_later) {
            space.slots.free(slot);
        }
    }
}

/// A round under way, as a span of time.
struct Span {
    begun: Nanos,
    /// How much of it were pauses.
    paused: Cell<Nanos>,
}

impl Span {
    fn begin(now: Nanos) -> Self {
        Self { begun: now, paused: Cell::new(Nanos::ZERO) }
    }
}

/// How much of the time guests have for themselves.
enum Pace {
    /// Nothing else is to be done than to move.
    Full,
    /// Nobody writes: as long as a round took, readers have the disks after it.
    Readers,
    /// Writers bring so many blocks a second that this many are to be moved.
    PerSecond(u64),
}

fn pace<W: World>(group: &Group<W>, state: &mut State, now: Nanos) -> Pace {
    let fill = state.log_fill();
    let brought = state.incoming.per_second(state.counters.log_bytes / BLOCK, now);
    if state.head_waits || fill >= limits::FILL_URGENT || group.closing.get() {
        return Pace::Full;
    }
    if now >= state.last_write + group.idle_destage {
        return Pace::Readers;
    }
    let above = u64::from(fill.saturating_sub(group.destage_at)) + 1;
    let range = u64::from(limits::FILL_URGENT.saturating_sub(group.destage_at)).max(1);
    Pace::PerSecond((brought * 2 * above / range).max(limits::DESTAGE_PER_SECOND_MIN))
}

fn is_full_pace<W: World>(group: &Group<W>) -> bool {
    let now = group.world.now();
    matches!(pace(group, &mut group.state.borrow_mut(), now), Pace::Full)
}

/// When a round that began then may have moved so many blocks.
fn due<W: World>(group: &Group<W>, begun: Nanos, blocks: usize) -> Nanos {
    let now = group.world.now();
    match pace(group, &mut group.state.borrow_mut(), now) {
        Pace::Full | Pace::Readers => Nanos::ZERO,
        Pace::PerSecond(rate) => begun + Nanos(blocks as u64 * 1_000_000_000 / rate),
    }
}

/// Waits until the round may have moved so many blocks; looks again whenever writers may have
/// become faster.
async fn keep_pace<W: World>(group: &Group<W>, span: &Span, blocks: usize) {
    let from = group.world.now();
    loop {
        let wake = group.mover_work.notified();
        let (now, due) = (group.world.now(), due(group, span.begun, blocks));
        if now >= due || group.failed.borrow().is_some() {
            span.paused.set(span.paused.get() + now.since(from));
            return;
        }
        sometimes!("store.destage.keeps_pace");
        let until = due.min(now + limits::PACE_LOOK);
        {
            let mut state = group.state.borrow_mut();
            (state.mover_asleep, state.wake_at_fill) = (true, limits::FILL_URGENT);
        }
        // Whichever comes first; both only mean "look again".
        let _ = group.world.timeout_at(until, wake).await;
        group.state.borrow_mut().mover_asleep = false;
    }
}

/// When the next round begins.
fn rest_until_after<W: World>(group: &Group<W>, span: &Span) -> Nanos {
    let now = group.world.now();
    match pace(group, &mut group.state.borrow_mut(), now) {
        Pace::Readers => now + (now.since(span.begun) - span.paused.get()),
        // The pauses were in the round.
        Pace::Full | Pace::PerSecond(_) => now,
    }
}

fn next<W: World>(group: &Group<W>, rest_until: Nanos) -> Next {
    if group.failed.borrow().is_some() {
        return Next::End;
    }
    let mut state = group.state.borrow_mut();
    let position = *group.journal.borrow();
    for device in &group.devices {
        if let Some(news) = device.slow_news() {
            state.event(StoreEvent::Slow(news));
        }
    }
    if group.closing.get() {
        // The log has ended first, so nothing is in flight.
        if !group.log_ended.get() {
            return Next::Wait(None);
        }
        let unsaved = state.components.values().any(|c| c.unsaved_from.is_some() || !c.is_saved());
        let clean = position.used == 0 && state.overlay_blocks == 0 && !unsaved;
        return if clean && state.graves.is_empty() { Next::End } else { Next::Checkpoint };
    }
    let small_state: usize = state
        .components
        .values()
        .filter(|c| c.unsaved_from.is_some_and(|s| s < state.head_segment) || !c.is_saved())
        .map(|c| c.encoded_len() + 64)
        .sum();
    let too_dirty = |i: usize| {
        let max = state.space[i].dirty_pages_max;
        state.overlay_chunks[i] as usize + round_chunks(&state) > max as usize
    };
    if position.used > group.checkpoint_at
        || state.overlay_blocks > state.overlay_max * 3 / 4
        || small_state > atoll_format::chunk::JOURNAL_BATCH_MAX / 2
        || (0..state.space.len()).any(too_dirty)
    {
        return Next::Checkpoint;
    }
    let now = group.world.now();
    let fill = state.log_fill();
    let has_blocks = state.index_blocks > 0;
    let can_trim = trim_to(&state, &BTreeMap::new()) > state.trim_below;
    let idle_at = state.last_write + group.idle_destage;
    let urgent = state.head_waits || fill >= limits::FILL_URGENT;
    state.wake_at_fill = group.destage_at;
    if has_blocks || can_trim {
        if urgent {
            return Next::Round;
        }
        if fill >= group.destage_at || now >= idle_at {
            if now < rest_until {
                state.wake_at_fill = limits::FILL_URGENT;
                return Next::Wait(Some(rest_until));
            }
            return Next::Round;
        }
        return Next::Wait(Some(idle_at));
    }
    state.wake_at_fill = 0;
    let checkpoint_at = state.last_write + limits::IDLE_CHECKPOINT;
    if position.used > 0 {
        if now >= checkpoint_at {
            return Next::Checkpoint;
        }
        return Next::Wait(Some(checkpoint_at));
    }
    Next::Wait(None)
}

/// The first segment that is still needed once `less` (live blocks by place in the ring) are gone.
fn trim_to(state: &State, less: &BTreeMap<usize, u64>) -> u64 {
    let mut segment = state.trim_below;
    while segment < state.head_segment {
        let index = (segment % state.geometry.segments) as usize;
        let leaves = less.get(&index).copied().unwrap_or(0);
        if state.ring[index].live > leaves && !mutant!("destage.trims_too_far") {
            break;
        }
        segment += 1;
    }
    segment
}

/// One chunk of a round: what of it lay in the log when the round began.
struct Task {
    local: u32,
    chunk: u32,
    capacity: usize,
    /// Where in the ring its blocks lie.
    place: usize,
    pending: Vec<Pending>,
    whole: Option<Whole>,
    newest: Seq,
    entry: ChunkEntry,
    /// The slot that it has; `NONE`: none.
    home: u32,
    /// Slots that it has beside that of its entry, `home` among them if it is not the entry's.
    extra: Vec<u32>,
    /// A slot that the round has taken for it.
    new_slot: Option<u32>,
    /// Its bytes, by index into `pending`; none: damaged or without bytes.
    bytes: Vec<Option<Buf>>,
    /// Whether any block of it will have bytes at home.
    keeps_slot: bool,
}

impl Task {
    fn slot(&self) -> u32 {
        self.new_slot.unwrap_or(self.home)
    }

    /// The slot that it has from now on, or `NONE`.
    fn final_slot(&self) -> u32 {
        if self.keeps_slot { self.slot() } else { NONE }
    }

    /// What its blocks are at home from now on: those that lay in the log, and all of a chunk
    /// that was placed. Ascending.
    fn entries(&self, c: &Component) -> Vec<(u8, BlockEntry)> {
        let logged = self.pending.iter().zip(&self.bytes).map(|(p, bytes)| {
            let block = self.chunk * BLOCKS_PER_CHUNK + u32::from(p.block());
            let good = bytes.is_some() || p.state() != BlockState::Raw;
            (p.block(), home_entry(c, block, p, good))
        });
        let Some(whole) = self.whole.as_ref().filter(|w| w.slot().is_some()) else {
            return logged.collect();
        };
        let mut logged = logged.peekable();
        let entry = |i: u8| {
            logged.next_if(|(block, _)| *block == i).unwrap_or_else(|| {
                let tag = whole.tag(i);
                let block = self.chunk * BLOCKS_PER_CHUNK + u32::from(i);
                let crc = atoll_format::checksum::bind(tag.crc, c.id, u64::from(block));
                (i, BlockEntry { crc, seq: tag.seq, state: tag.state })
            })
        };
        (0..=u8::MAX).map(entry).collect()
    }
}

fn select(state: &mut State, bound: impl Fn(usize, usize) -> usize) -> Vec<Task> {
    let mut tasks: Vec<Task> = Vec::new();
    // With the window that each was taken from.
    let mut seen = BTreeMap::new();
    let mut blocks = 0;
    let chunks_max = round_chunks(state).min(bound(limits::ROUND_CHUNKS, 3));
    let blocks_max = bound(limits::ROUND_BLOCKS, BLOCKS_PER_CHUNK as usize);
    for segment in state.trim_below..=state.head_segment {
        let index = (segment % state.geometry.segments) as usize;
        let mut next_time = Vec::new();
        let mut window = 0;
        while blocks < blocks_max && tasks.len() < chunks_max {
            let Some(laid) = state.ring[index].laid.pop_front() else { break };
            let Laid { at, local, chunk } = laid;
            if at >= window {
                if blocks >= blocks_max / 2 {
                    state.ring[index].laid.push_front(laid);
                    break;
                }
                window = at.saturating_add(limits::ROUND_SPAN);
            }
            match seen.get(&(local, chunk)) {
                Some(&before) if before == (segment, window) => continue,
                // A chunk is in a round once: what it has here comes with another.
                Some(_) => {
                    if !mutant!("destage.rest_forgotten") {
                        next_time.push(laid);
                    }
                    continue;
                }
                None => seen.insert((local, chunk), (segment, window)),
            };
            let Some(c) = state.components.get(&local) else { continue };
            let Some(hot) = c.hot.get(&chunk) else { continue };
            // Only what lies together: a few large reads, where the blocks of one chunk are
            // scattered over the whole log. Behind the window, so that nothing is left of what
            // was noted within.
            let end = window.saturating_add(limits::LAID_SPAN);
            let lies_here = |at: u32| state.geometry.ring_index(at) == index && at < end;
            let pending: Vec<Pending> =
                hot.pending.iter().filter(|p| lies_here(p.at)).copied().collect();
            if pending.is_empty() && !hot.whole.as_ref().is_some_and(|w| lies_here(w.at)) {
                seen.remove(&(local, chunk));
                continue;
            }
            let entry = c.table.get(chunk);
            let placed = hot.whole.as_ref().and_then(Whole::slot);
            blocks += pending.len().max(1);
            blocks += if placed.is_some() { limits::PLACED_BLOCKS } else { 0 };
            let has = if entry.slot != NONE { Some(entry.slot) } else { hot.extra_slot() };
            tasks.push(Task {
                local,
                chunk,
                capacity: usize::from(c.device),
                place: index,
                bytes: vec![None; pending.len()],
                pending,
                whole: hot.whole.clone(),
                newest: hot.newest,
                entry,
                home: placed.or(has).unwrap_or(NONE),
                extra: hot.extra_slots(&entry),
                new_slot: None,
                keeps_slot: true,
            });
        }
        for laid in next_time.into_iter().rev() {
            state.ring[index].laid.push_front(laid);
        }
    }
    tasks
}

/// Chunks of one round: at most half of what may be dirty between checkpoints.
fn round_chunks(state: &State) -> usize {
    let dirty = state.space.iter().map(|s| s.dirty_pages_max as usize / 2).min();
    limits::ROUND_CHUNKS.min(dirty.unwrap_or(0))
}

/// One round; an error means that a device failed.
async fn round<W: World>(group: &Rc<Group<W>>, span: &Span) -> Result<(), ()> {
    let bound = |usual, small| group.world.bound(usual, small);
    let mut tasks = select(&mut group.state.borrow_mut(), bound);
    read_log(group, &mut tasks).await;
    decide_slots(group, &mut tasks).await;
    if group.failed.borrow().is_some() {
        // Then what was found above may come from a device that gave no answer.
        put_back(group, &tasks);
        return Err(());
    }
    take_slots(group, &mut tasks)?;
    tasks.sort_by_key(|t| (t.capacity, t.slot(), t.local, t.chunk));
    if write_home(group, &tasks, span).await.is_err() {
        put_back(group, &tasks);
        return Err(());
    }
    let (records, trim_below) = {
        let mut state = group.state.borrow_mut();
        let less = leaving(&state, &tasks);
        let trim_below = trim_to(&state, &less);
        if tasks.is_empty() && trim_below == state.trim_below {
            return Ok(());
        }
        (describe(&mut state, &tasks, trim_below), trim_below)
    };
    let region = group.state.borrow().geometry.journal;
    assert!(
        group.journal.borrow().has_room(region, records.body.len()),
        "a checkpoint is taken while half of the journal is free"
    );
    journal::write(group, records, trim_below).await?;
    let mut state = group.state.borrow_mut();
    for task in &tasks {
        install(&mut state, task);
    }
    state.trim_below = trim_below;
    while state.graves.front().is_some_and(|&(segment, _)| segment < trim_below) {
        state.graves.pop_front();
    }
    Ok(())
}

/// Reads the payload of all tasks, joined where it lies together.
async fn read_log<W: World>(group: &Rc<Group<W>>, tasks: &mut [Task]) {
    let mut wanted: Vec<(u32, usize, usize)> = Vec::new();
    for (t, task) in tasks.iter().enumerate() {
        for (p, pending) in task.pending.iter().enumerate() {
            if pending.state() == BlockState::Raw {
                wanted.push((pending.at, t, p));
            }
        }
    }
    wanted.sort_unstable();
    // First block, length, how many of it are wanted.
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for &(at, _, _) in &wanted {
        match runs.last_mut() {
            Some((first, len, blocks))
                if at < *first + *len + limits::READ_GAP_BLOCKS
                    && at - *first
                        < limits::READ_BLOCKS.min(limits::READ_WASTE * (*blocks + 1)) =>
            {
                *len = at - *first + 1;
                *blocks += 1;
            }
            _ => runs.push((at, 1, 1)),
        }
    }
    let depth = if is_full_pace(group) { limits::BACKGROUND_DEPTH } else { limits::PACED_DEPTH };
    let reads = runs.into_iter().map(|(first, count, _)| async move {
        let at = u64::from(first) * BLOCK;
        (first, count, group.log_device().read(at, count * BLOCK as u32).await)
    });
    let mut reads = stream::iter(reads).buffered(depth);
    let mut next = 0;
    while let Some((first, count, result)) = reads.next().await {
        if let Err(e) = &result {
            group.device_failed(0, e);
        }
        while let Some(&(at, t, p)) = wanted.get(next)
            && at < first + count
        {
            next += 1;
            let pending = tasks[t].pending[p];
            let mut good = None;
            if let Ok(bytes) = &result {
                let from = (at - first) as usize * BLOCK_LEN;
                let block = bytes.slice(from..from + BLOCK_LEN);
                good = (crc(&block) == pending.crc).then_some(block);
            }
            if good.is_none() {
                // Once more, alone: a transfer may fail where the medium is good.
                if let Ok(block) =
                    group.log_device().read(u64::from(at) * BLOCK, BLOCK as u32).await
                {
                    good = (crc(&block) == pending.crc).then_some(block);
                }
            }
            // A device that gives no answer says nothing about its blocks.
            if good.is_none() && group.failed.borrow().is_none() {
                sometimes!("store.destage.bad_log_block");
                let block = tasks[t].chunk * BLOCKS_PER_CHUNK + u32::from(pending.block());
                group.state.borrow_mut().mark_bad(tasks[t].local, block);
            }
            tasks[t].bytes[p] = good;
        }
    }
}

/// Finds out which chunks have no bytes left and free their slots.
async fn decide_slots<W: World>(group: &Rc<Group<W>>, tasks: &mut [Task]) {
    for task in tasks.iter_mut() {
        let placed = task.whole.as_ref().is_some_and(|w| w.slot().is_some());
        let any_bytes = placed || task.bytes.iter().any(Option::is_some);
        let removes = task.whole.is_some() || task.bytes.iter().any(Option::is_none);
        if any_bytes || task.home == NONE || !removes {
            task.keeps_slot = any_bytes || task.home != NONE;
            continue;
        }
        if task.whole.is_some() {
            task.keeps_slot = false;
            continue;
        }
        let page = checkpoint::load_page(group, task.local, task.chunk).await;
        let state = group.state.borrow();
        let hot = state.components.get(&task.local).and_then(|c| c.hot.get(&task.chunk));
        let stays = |block: u8| {
            if task.pending.binary_search_by_key(&block, Pending::block).is_ok() {
                return false;
            }
            let entry = hot
                .and_then(|h| h.overlay_at(block))
                .or_else(|| page.as_ref().map(|p: &Page| p.entry(block)))
                .unwrap_or_else(|| task.entry.base());
            entry.state == BlockState::Raw
        };
        task.keeps_slot = (0..=u8::MAX).any(stays) && !mutant!("destage.slot_given_up");
    }
}

/// Takes the slots that were set aside for new chunks.
fn take_slots<W: World>(group: &Rc<Group<W>>, tasks: &mut [Task]) -> Result<(), ()> {
    let mut state_guard = group.state.borrow_mut();
    for task in tasks.iter_mut() {
        if !task.keeps_slot || task.home != NONE {
            continue;
        }
        let state = &mut *state_guard;
        let space = &mut state.space[task.capacity];
        task.new_slot = space.slots.allocate();
        // The promise is kept by the slot itself from here on.
        let hot = state.components.get_mut(&task.local).and_then(|c| c.hot.get_mut(&task.chunk));
        if let Some(hot) = hot {
            hot.slot_taken = task.new_slot.is_some();
            space.slots_reserved -= u32::from(std::mem::take(&mut hot.slot_reserved));
        }
        if task.new_slot.is_none() {
            drop(state_guard);
            group.fail("no slot for data that was accepted: space accounting is wrong");
            return Err(());
        }
    }
    Ok(())
}

/// Writes all bytes home and flushes.
async fn write_home<W: World>(group: &Rc<Group<W>>, tasks: &[Task], span: &Span) -> Result<(), ()> {
    let mut writes: Vec<(usize, u64, Vec<Buf>)> = Vec::new();
    {
        let state = group.state.borrow();
        for task in tasks {
            let place = state.geometry.capacity[task.capacity];
            let slot = task.slot();
            for (pending, bytes) in task.pending.iter().zip(&task.bytes) {
                let Some(bytes) = bytes else { continue };
                let block =
                    u64::from(slot) * u64::from(BLOCKS_PER_CHUNK) + u64::from(pending.block());
                let at = place.slots.at + block * BLOCK;
                match writes.last_mut() {
                    Some((device, first, data))
                        if *device == place.device
                            && *first + data.len() as u64 * BLOCK == at
                            && data.len() < BLOCKS_PER_CHUNK as usize =>
                    {
                        data.push(bytes.clone());
                    }
                    _ => writes.push((place.device, at, vec![bytes.clone()])),
                }
            }
        }
    }
    let devices: BTreeSet<usize> = writes.iter().map(|w| w.0).collect();
    let bytes: u64 = writes.iter().map(|w| w.2.len() as u64 * BLOCK).sum();
    let mut failed = false;
    let mut moved = 0;
    let mut writes = writes.into_iter();
    while writes.len() > 0 {
        // Together, not one for each that ends: one submission, one kick of the device.
        let together =
            if is_full_pace(group) { limits::BACKGROUND_WRITES } else { limits::PACED_WRITES };
        let some = writes.by_ref().take(together).map(|(device, at, data)| async move {
            let blocks = data.len();
            (device, blocks, group.devices[device].write(at, data, Durability::Volatile).await)
        });
        for (device, blocks, result) in join_all(some).await {
            moved += blocks;
            if let Err(e) = result {
                group.device_failed(device, &e);
                failed = true;
            }
        }
        keep_pace(group, span, moved).await;
    }
    for device in devices {
        if mutant!("destage.home_not_flushed") {
            break;
        }
        if let Err(e) = group.devices[device].flush().await {
            group.device_failed(device, &e);
            failed = true;
        }
    }
    if failed {
        return Err(());
    }
    group.state.borrow_mut().counters.destaged_bytes += bytes;
    Ok(())
}

/// A device failed in the middle: what the other devices were to get is left for the next round.
fn put_back<W: World>(group: &Rc<Group<W>>, tasks: &[Task]) {
    sometimes!("store.destage.put_back");
    let mut state = group.state.borrow_mut();
    for task in tasks.iter().rev() {
        if let Some(slot) = task.new_slot {
            state.space[task.capacity].slots.free(slot);
            let c = state.components.get_mut(&task.local);
            if let Some(hot) = c.and_then(|c| c.hot.get_mut(&task.chunk)) {
                hot.slot_taken = false;
            }
            promise(&mut state, task.local, task.chunk);
        }
        let State { ring, geometry, .. } = &mut *state;
        let here = |&at: &u32| geometry.ring_index(at) == task.place;
        let whole = task.whole.iter().map(|w| w.at).filter(here);
        let laid = &mut ring[task.place].laid;
        for at in whole.chain(task.pending.iter().map(|p| p.at)) {
            laid.push_front(Laid { at, local: task.local, chunk: task.chunk });
        }
    }
}

/// Live blocks that a round takes from each segment: those that are still the newest.
fn leaving(state: &State, tasks: &[Task]) -> BTreeMap<usize, u64> {
    let mut less = BTreeMap::new();
    for task in tasks {
        let Some(hot) = state.components.get(&task.local).and_then(|c| c.hot.get(&task.chunk))
        else {
            continue;
        };
        let pending = task.pending.iter().filter(|p| hot.pending_at(p.block()) == Some(p));
        let whole = task.whole.as_ref().filter(|w| hot.whole.as_ref() == Some(*w));
        let whole = whole.map(|w| (w.at, w.weight()));
        for (at, weight) in pending.map(|p| (p.at, 1)).chain(whole) {
            *less.entry(state.geometry.ring_index(at)).or_insert(0) += weight;
        }
    }
    less
}

/// The journal records of a round.
fn describe(state: &mut State, tasks: &[Task], trim_below: u64) -> Records {
    let mut records = Records::default();
    let in_round: BTreeSet<u32> = tasks.iter().map(|t| t.local).collect();
    let mut bytes = Vec::new();
    for c in state.components.values_mut() {
        let trimmed = c.unsaved_from.is_some_and(|s| s < trim_below);
        let is_known = match mutant!("destage.growth_not_recorded") {
            true => c.is_saved(),
            false => c.saved_blocks == c.spec.blocks,
        };
        let unknown = !is_known && in_round.contains(&c.local);
        if c.durable && (trimmed || unknown) {
            bytes.clear();
            c.encode(0, &mut bytes);
            records.push_component(c.local, &bytes);
            c.saved_blocks = c.spec.blocks;
            c.unsaved_from = None;
            c.committed_logged = c.promise.committed;
        }
    }
    for &(segment, local) in &state.graves {
        if segment < trim_below {
            records.push(JournalKind::Gone, |r| r.component = local.into());
        }
    }
    for task in tasks {
        let Some(c) = state.components.get(&task.local) else { continue };
        if let Some(whole) = task.whole.as_ref().and_then(Whole::uniform)
            && !mutant!("destage.whole_not_recorded")
        {
            records.push(JournalKind::Whole, |r| {
                r.component = task.local.into();
                r.block = task.chunk.into();
                r.state = whole.state as u8;
                r.seq = whole.seq.0.into();
            });
        }
        let slot = task.final_slot();
        records.push(JournalKind::Chunk, |r| {
            r.component = task.local.into();
            r.block = task.chunk.into();
            r.slot = slot.into();
            r.seq = task.newest.0.into();
        });
        let mut run: Option<(u32, u16, BlockEntry)> = None;
        let mut push = |first: u32, count: u16, entry: BlockEntry| {
            records.push(JournalKind::Blocks, |r| {
                r.component = task.local.into();
                r.block = first.into();
                r.count = count.into();
                r.state = entry.state as u8;
                r.seq = entry.seq.0.into();
                r.crc = entry.crc.into();
            });
        };
        for (block, entry) in task.entries(c) {
            let block = task.chunk * BLOCKS_PER_CHUNK + u32::from(block);
            match &mut run {
                Some((first, count, same))
                    if *same == entry
                        && entry.state != BlockState::Raw
                        && *first + u32::from(*count) == block =>
                {
                    *count += 1;
                }
                _ => {
                    if let Some((first, count, entry)) = run.replace((block, 1, entry)) {
                        push(first, count, entry);
                    }
                }
            }
        }
        if let Some((first, count, entry)) = run {
            push(first, count, entry);
        }
    }
    records
}

/// The journal has it: the chunk's home is what the task made of it.
fn install(state: &mut State, task: &Task) {
    let Some(c) = state.components.get_mut(&task.local).filter(|c| !c.is_lost()) else {
        // Deleted or lost meanwhile: its slots are free again, this one was not yet among them.
        if let Some(slot) = task.new_slot {
            state.space[task.capacity].slots.free(slot);
        }
        return;
    };
    let overlay: Vec<Overlay> =
        task.entries(c).into_iter().map(|(block, entry)| Overlay::new(block, entry)).collect();
    let hot = c.hot.entry(task.chunk).or_default();
    hot.slot_taken = false;
    let snapshot: FixedMap<u8, Pending> = task.pending.iter().map(|p| (p.block(), *p)).collect();
    let mut left = Vec::new();
    hot.pending.retain(|p| {
        let known = snapshot.get(&p.block());
        let same = known == Some(p) || known.is_some() && mutant!("destage.the_older_wins");
        if same {
            left.push((p.at, 1));
        }
        !same
    });
    hot.pending.shrink_to_fit();
    if let Some(whole) = &task.whole
        && hot.whole.as_ref() == Some(whole)
    {
        hot.whole = None;
        left.push((whole.at, whole.weight()));
    }
    // What was superseded when the round began is no longer needed: the journal knows it. Its
    // own slot is the entry's from here on, also if it was superseded meanwhile.
    hot.spare.retain(|slot| !task.extra.contains(slot));
    c.log_live -= left.iter().map(|(_, weight)| weight).sum::<u64>();
    let home = Home {
        whole: task.whole.as_ref().and_then(Whole::uniform),
        slot: task.final_slot(),
        newest: task.newest,
        overlay: &overlay,
    };
    let (slot, page) = set_home(state, task.local, task.chunk, &home);
    let space = &mut state.space[task.capacity];
    let extra = task.extra.iter().copied().filter(|&extra| extra != home.slot);
    for slot in slot.into_iter().chain(extra) {
        space.slots.free(slot);
    }
    space.retired_pages.extend(page);
    if page.is_some() {
        state.cache.remove((task.local, task.chunk));
    }
    promise(state, task.local, task.chunk);
    for (at, weight) in left {
        let index = state.geometry.ring_index(at);
        state.ring[index].live -= weight;
        state.index_blocks -= weight;
    }
    state.settle(task.local, task.chunk);
}

/// What a round, or the journal, says of a chunk.
pub(crate) struct Home<'a> {
    /// All blocks first became this.
    pub whole: Option<BlockEntry>,
    pub slot: u32,
    pub newest: Seq,
    pub overlay: &'a [Overlay],
}

/// Changes a chunk's home in memory; returns the slot and the page that it no longer needs.
pub(crate) fn set_home(
    state: &mut State,
    local: u32,
    chunk: u32,
    home: &Home<'_>,
) -> (Option<u32>, Option<u32>) {
    let Some(c) = state.components.get_mut(&local) else { return (None, None) };
    let device = usize::from(c.device);
    let mut entry = c.table.get(chunk);
    let hot = c.hot.entry(chunk).or_default();
    let mut old_page = None;
    if let Some(base) = home.whole {
        state.overlay_blocks -= hot.overlay.len() as u64;
        state.overlay_chunks[device] -= u32::from(!hot.overlay.is_empty());
        hot.overlay = Vec::new();
        old_page = (entry.page != NONE).then_some(entry.page);
        entry.page = NONE;
        entry.page_crc = 0;
        entry.base_seq = base.seq;
        entry.base_zero = base.state == BlockState::Zero;
    }
    state.overlay_chunks[device] += u32::from(hot.overlay.is_empty() && !home.overlay.is_empty());
    state.overlay_blocks += hot.put_overlay(home.overlay) as u64;
    let old_slot = (entry.slot != NONE && entry.slot != home.slot).then_some(entry.slot);
    c.slots_used -= u32::from(entry.slot != NONE);
    c.slots_used += u32::from(home.slot != NONE);
    entry.slot = home.slot;
    entry.max_seq = entry.max_seq.max(home.newest);
    state.set_entry(local, chunk, entry);
    (old_slot, old_page)
}

/// Sets aside slot and page for what is still in the log or queued, when the chunk has just lost
/// its own: the space is there, because it was in use until now.
fn promise(state: &mut State, local: u32, chunk: u32) {
    let Some(c) = state.components.get_mut(&local) else { return };
    let Some(hot) = c.hot.get_mut(&chunk) else { return };
    let entry = c.table.get(chunk);
    let space = &mut state.space[usize::from(c.device)];
    let raw = hot.pending.iter().any(|p| p.state() == BlockState::Raw);
    let owns_slot = entry.slot != NONE || hot.extra_slot().is_some();
    if !owns_slot && !hot.slot_reserved && (raw || hot.queued > 0) {
        hot.slot_reserved = true;
        space.slots_reserved += 1;
    }
    let placed = hot.extra_slot().is_some();
    let partial = !hot.pending.is_empty() || !hot.overlay.is_empty() || hot.queued > 0 || placed;
    if entry.page == NONE && !hot.page_reserved && partial {
        hot.page_reserved = true;
        space.pages_reserved += 1;
    }
}
