//! Opening a group: labels, checkpoint, journal, log, in that order; nothing is served before.
//!
//! What is told apart: the torn end of the log (never acknowledged: dropped whole), damage below
//! an end that the log, the journal or a checkpoint itself proves durable (the blocks are marked
//! bad where it is known which, else the components are doubtful), and metadata that is gone (the
//! group is refused; its peers rebuild it). The last batch without such a proof counts as torn:
//! whether it was acknowledged is settled by comparing with other members (`store.md` rule 18).

use crate::component::{self, Component};
use crate::destage::{Home, set_home};
use crate::device::{Device, DeviceError};
use crate::index::{Overlay, Pending, Whole};
use crate::journal::JournalPosition;
use crate::log::crcs_of;
use crate::open::OpenError;
use crate::pages::PageCache;
use crate::space::DeviceSpace;
use crate::state::{BatchPlace, Geometry, Incoming, Segment, State};
use atoll_format::checksum::{crc, crc_append};
use atoll_format::chunk::{
    BlockEntry, CheckpointHead, JOURNAL_HEAD_LEN, JournalHead, JournalKind, JournalRecord,
    MetaError, NONE, RawChunkEntry, RawRun,
};
use atoll_format::id::Seq;
use atoll_format::log::{
    BatchHead, BatchView, Descriptor, Footer, FooterBuilder, LogError, LogKind, SegmentHeader,
    decode_batch, peek_batch,
};
use atoll_format::op::BlockState;
use atoll_format::superblock::Region;
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK, OPS_IN_FLIGHT_MAX, SEQ_MAX};
use atoll_world::components::{ScrubProgress, StoreCounters, StoreEvent};
use atoll_world::{Buf, FixedMap, World, mutant, sometimes};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use zerocopy::FromBytes;

/// What recovery hands to the running store.
pub(crate) struct Recovered {
    pub state: State,
    pub journal: JournalPosition,
    pub generation: u64,
    pub next_seq: u64,
    pub prev_crc: u32,
    pub footer: FooterBuilder,
    /// A checkpoint has to be taken before anything is served.
    pub checkpoint_now: bool,
}

/// Memory that caches may take.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub cache_bytes: u64,
    pub overlay_blocks: u64,
    pub index_blocks: u64,
}

/// Reads everything that is needed to go on.
pub(crate) async fn recover<W: World>(
    devices: &[Device<W>],
    geometry: Geometry,
    memory: Memory,
) -> Result<Recovered, OpenError> {
    let device = &devices[0];
    let mut state = empty(geometry, memory);
    let (head, older, generations_differ) = load_checkpoint(device, &mut state).await?;
    let mut journal = JournalPosition {
        at: head.journal_at,
        seq: head.journal_seq,
        prev_crc: head.journal_crc,
        used: 0,
        durable_seq: head.journal_seq - 1,
        generation: head.generation,
        older,
    };
    state.trim_below = head.trim_below;
    state.next_local = head.next_local.max(1);
    let mut log_to = head.log_to;
    replay_journal(device, &mut state, &mut journal, &mut log_to).await?;
    let mut scan = Scan { log_to, replay_after: head.replay_after, ..Scan::default() };
    replay_log(device, &mut state, &mut scan).await?;
    if scan.journal_to > journal.durable_seq {
        return Err(OpenError::Metadata(format!(
            "the journal ends at batch {}, the log knows of batch {}",
            journal.durable_seq, scan.journal_to
        )));
    }
    // Only now: a slot of a component that the log deletes may have a new owner in the journal.
    build_space(&mut state)?;
    claim_placed(&mut state);
    state.recovering = false;
    if !scan.damage.is_empty() {
        mark_damage(devices, &mut state, &scan).await;
    }
    state.reserve_again();
    let chunks: Vec<(u32, u32)> = state
        .components
        .values()
        .flat_map(|c| c.hot.keys().map(|&chunk| (c.local, chunk)).collect::<Vec<_>>())
        .collect();
    for (local, chunk) in chunks {
        state.settle(local, chunk);
    }
    let checkpoint_now = generations_differ || !scan.damage.is_empty();
    Ok(Recovered {
        state,
        journal,
        generation: scan.generation + 1,
        next_seq: scan.last_seq + 1,
        prev_crc: scan.prev_crc,
        footer: scan.footer,
        checkpoint_now,
    })
}

fn empty(geometry: Geometry, memory: Memory) -> State {
    let space: Vec<DeviceSpace> = geometry
        .capacity
        .iter()
        .map(|c| {
            let slots = c.slots.len / atoll_format::units::CHUNK;
            DeviceSpace::new(slots as u32, (c.pages.len / BLOCK) as u32)
        })
        .collect();
    let ring = vec![Segment::default(); geometry.segments as usize];
    State {
        components: BTreeMap::new(),
        by_id: FixedMap::default(),
        next_local: 1,
        graves: VecDeque::new(),
        capacity_failed: vec![false; space.len()],
        overlay_chunks: vec![0; space.len()],
        space,
        entries_used: 0,
        entries_reserved: 0,
        holds: VecDeque::new(),
        cache: PageCache::new(memory.cache_bytes),
        ring,
        trim_below: 1,
        head_segment: 1,
        head_offset: BLOCK,
        index_blocks: 0,
        index_max: memory.index_blocks,
        overlay_blocks: 0,
        overlay_max: memory.overlay_blocks,
        hints: BTreeSet::new(),
        counters: StoreCounters::default(),
        events: VecDeque::new(),
        record_bytes: 0,
        scrub: ScrubProgress { idle: true, ..ScrubProgress::default() },
        last_write: atoll_world::Nanos::ZERO,
        incoming: Incoming::default(),
        recovering: true,
        round_under_way: false,
        head_waits: false,
        mover_asleep: false,
        wake_at_fill: 0,
        geometry,
    }
}

/// A read that is tried twice; what stays unreadable is none.
async fn read<W: World>(device: &Device<W>, at: u64, len: u64) -> Result<Option<Buf>, OpenError> {
    for _ in 0..2 {
        match device.read(at, len as u32).await {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(DeviceError::Read(_)) => {}
            Err(DeviceError::Failed(why)) => return Err(OpenError::Io(why)),
        }
    }
    Ok(None)
}

fn meta(what: &str, error: MetaError) -> OpenError {
    match error {
        MetaError::Newer { what, value } => OpenError::Newer(format!("{what} {value}")),
        _ => OpenError::Metadata(what.to_string()),
    }
}

// ---- checkpoint ----

async fn load_checkpoint<W: World>(
    device: &Device<W>,
    state: &mut State,
) -> Result<(CheckpointHead, usize, bool), OpenError> {
    let mut heads = Vec::new();
    for (copy, region) in state.geometry.checkpoints.into_iter().enumerate() {
        let Some(block) = read(device, region.at, BLOCK).await? else { continue };
        match CheckpointHead::decode(&block, region.at, state.geometry.salt) {
            Ok(head) => heads.push((copy, region, head)),
            Err(MetaError::Newer { what, value }) => {
                return Err(OpenError::Newer(format!("{what} {value}")));
            }
            Err(_) => {}
        }
    }
    heads.sort_by_key(|(copy, _, head)| (std::cmp::Reverse(head.generation), *copy));
    let both_same = heads.len() == 2 && heads[0].2.generation == heads[1].2.generation;
    for (i, &(copy, region, head)) in heads.iter().enumerate() {
        match load_body(device, state, region, &head).await {
            Ok(()) => {
                if i > 0 || !both_same {
                    sometimes!("store.recover.one_checkpoint");
                }
                return Ok((head, 1 - copy, i > 0 || !both_same));
            }
            Err(e @ OpenError::Io(_)) => return Err(e),
            // What a crash has left of two versions of a body can look like anything.
            Err(e @ OpenError::Newer(_)) if is_whole(device, region, &head).await? => {
                return Err(e);
            }
            Err(_) => {
                state.components.clear();
                state.by_id.clear();
                state.entries_used = 0;
            }
        }
    }
    Err(OpenError::Metadata("both copies of the checkpoint are damaged".into()))
}

/// Whether the body of a checkpoint is the one that its head was written for.
async fn is_whole<W: World>(
    device: &Device<W>,
    region: Region,
    head: &CheckpointHead,
) -> Result<bool, OpenError> {
    let mut body = Body::new(device, region, head);
    while body.left > 0 {
        body.used = body.bytes.len();
        match body.need(1).await {
            Ok(()) => {}
            Err(OpenError::Metadata(_)) => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(body.crc == head.body_crc)
}

/// Reads a body of bytes that lie in whole blocks, piece by piece.
struct Body<'a, W: World> {
    device: &'a Device<W>,
    at: u64,
    left: u64,
    crc: u32,
    bytes: Vec<u8>,
    used: usize,
}

impl<'a, W: World> Body<'a, W> {
    fn new(device: &'a Device<W>, region: Region, head: &CheckpointHead) -> Self {
        let at = region.at + BLOCK;
        Self { device, at, left: head.body_len, crc: 0, bytes: Vec::new(), used: 0 }
    }

    /// Makes `n` bytes available.
    async fn need(&mut self, n: usize) -> Result<(), OpenError> {
        let short = || OpenError::Metadata("the checkpoint is cut short".into());
        while self.bytes.len() - self.used < n {
            if self.left == 0 {
                return Err(short());
            }
            self.bytes.drain(..self.used);
            self.used = 0;
            let take = self.left.min(1 << 20);
            let len = take.next_multiple_of(BLOCK);
            let piece = read(self.device, self.at, len).await?.ok_or_else(short)?;
            let piece = &piece[..take as usize];
            self.crc = crc_append(self.crc, piece);
            self.bytes.extend_from_slice(piece);
            self.at += len;
            self.left -= take;
        }
        Ok(())
    }

    /// As much as there is, up to a MiB more than `n`.
    fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }
}

async fn load_body<W: World>(
    device: &Device<W>,
    state: &mut State,
    region: Region,
    head: &CheckpointHead,
) -> Result<(), OpenError> {
    let damaged = || OpenError::Metadata("the checkpoint contradicts itself".into());
    if head.body_len > region.len - BLOCK {
        return Err(damaged());
    }
    let mut body = Body::new(device, region, head);
    for _ in 0..head.components {
        let (mut c, runs) = next_component(&mut body).await?;
        for _ in 0..runs {
            body.need(size_of::<RawRun>()).await?;
            let (run, _) = RawRun::ref_from_prefix(body.rest()).map_err(|_| damaged())?;
            let (first, count) = (run.first.get(), run.count.get());
            body.used += size_of::<RawRun>();
            let chunks = c.spec.blocks.div_ceil(BLOCKS_PER_CHUNK);
            if u64::from(first) + u64::from(count) > u64::from(chunks) {
                return Err(damaged());
            }
            for chunk in first..first + count {
                body.need(size_of::<RawChunkEntry>()).await?;
                let (raw, _) =
                    RawChunkEntry::ref_from_prefix(body.rest()).map_err(|_| damaged())?;
                let entry = raw.decode().map_err(|e| meta("a chunk entry", e))?;
                body.used += size_of::<RawChunkEntry>();
                c.slots_used += u32::from(entry.slot != NONE);
                c.table.set(chunk, entry);
            }
        }
        if usize::from(c.device) >= state.space.len() || state.components.contains_key(&c.local) {
            return Err(damaged());
        }
        // An id may be there twice: deleted and made again while the checkpoint was taken. The
        // later number is the present one, and the log deletes the other.
        state.entries_used += u64::from(c.table.len());
        state.by_id.insert(c.id, c.local);
        state.components.insert(c.local, c);
    }
    if body.left != 0 || body.crc != head.body_crc || !body.rest().is_empty() {
        return Err(damaged());
    }
    Ok(())
}

/// One component record, whose length is known only when it has been read.
async fn next_component<W: World>(body: &mut Body<'_, W>) -> Result<(Component, u32), OpenError> {
    loop {
        let mut bytes = body.rest();
        let before = bytes.len();
        match component::decode(&mut bytes) {
            Ok(done) => {
                body.used += before - bytes.len();
                return Ok(done);
            }
            // Possibly only too short: with more bytes it becomes clear.
            Err(MetaError::Damaged) if body.left > 0 => body.need(before + 1).await?,
            Err(e) => return Err(meta("a component of the checkpoint", e)),
        }
    }
}

// ---- journal ----

async fn replay_journal<W: World>(
    device: &Device<W>,
    state: &mut State,
    position: &mut JournalPosition,
    log_to: &mut u64,
) -> Result<(), OpenError> {
    let region = state.geometry.journal;
    if position.at < region.at || position.at > region.end() {
        return Err(OpenError::Metadata("the checkpoint points outside the journal".into()));
    }
    loop {
        let mut found = None;
        // Behind the one before, or, if it did not fit there, at the start of the ring.
        let behind = (position.at + BLOCK <= region.end()).then_some(position.at);
        for at in behind.into_iter().chain([region.at]) {
            if let Some((head, bytes)) = journal_batch(device, state, position, at).await? {
                found = Some((head, bytes));
                break;
            }
        }
        let Some((head, bytes)) = found else { return Ok(()) };
        let skipped = if head.at >= position.at { 0 } else { region.end() - position.at };
        position.used += skipped + head.len_bytes();
        position.at = head.at + head.len_bytes();
        position.seq = head.seq + 1;
        position.durable_seq = head.seq;
        position.prev_crc = head.crc;
        state.trim_below = state.trim_below.max(head.trim_below);
        state.next_local = state.next_local.max(head.next_local);
        *log_to = (*log_to).max(head.log_to);
        let body = &bytes[JOURNAL_HEAD_LEN..JOURNAL_HEAD_LEN + head.body_len as usize];
        replay_records(state, body)?;
    }
}

/// The journal batch at `at`, if it is the next one.
async fn journal_batch<W: World>(
    device: &Device<W>,
    state: &State,
    position: &JournalPosition,
    at: u64,
) -> Result<Option<(JournalHead, Buf)>, OpenError> {
    let region = state.geometry.journal;
    let salt = state.geometry.salt;
    let Some(block) = read(device, at, BLOCK).await? else { return Ok(None) };
    let Ok(head) = JournalHead::peek(&block, at, salt) else { return Ok(None) };
    if head.seq != position.seq || at + head.len_bytes() > region.end() {
        return Ok(None);
    }
    let Some(bytes) = read(device, at, head.len_bytes()).await? else { return Ok(None) };
    match JournalHead::decode(&bytes, at, salt) {
        Ok((head, _)) if head.prev_crc == position.prev_crc => Ok(Some((head, bytes))),
        Ok(_) | Err(MetaError::Nothing | MetaError::Damaged) => Ok(None),
        Err(MetaError::Newer { what, value }) => Err(OpenError::Newer(format!("{what} {value}"))),
    }
}

/// Carries out the records of one journal batch. Its checksum was right, so contradictions mean a
/// program error or a newer format: refused.
pub(crate) fn replay_records(state: &mut State, body: &[u8]) -> Result<(), OpenError> {
    let bad = |what: &str| OpenError::Metadata(format!("a journal record: {what}"));
    let mut rest = body;
    while !rest.is_empty() {
        let (record, after) = JournalRecord::ref_from_prefix(rest).map_err(|_| bad("cut short"))?;
        rest = after;
        let local = record.component.get();
        let chunk_of = |block: u32| block / BLOCKS_PER_CHUNK;
        match record.kind {
            k if k == JournalKind::Component as u8 => {
                let len = record.block.get() as usize;
                let padded = len.next_multiple_of(32);
                let mut bytes = rest.get(..len).ok_or_else(|| bad("component cut short"))?;
                rest = rest.get(padded..).ok_or_else(|| bad("component cut short"))?;
                let (c, _) =
                    component::decode(&mut bytes).map_err(|e| meta("a journaled component", e))?;
                restore(state, local, c)?;
            }
            k if k == JournalKind::Gone as u8 => {
                if let Some(c) = state.components.remove(&local) {
                    state.entries_used -= u64::from(c.table.len());
                    // It may have been made again, under another number, before it was forgotten.
                    if state.by_id.get(&c.id) == Some(&local) {
                        state.by_id.remove(&c.id);
                    }
                    for hot in c.hot.values() {
                        state.overlay_blocks -= hot.overlay.len() as u64;
                        state.overlay_chunks[usize::from(c.device)] -=
                            u32::from(!hot.overlay.is_empty());
                    }
                }
            }
            k => {
                let Some(c) = state.components.get(&local) else {
                    return Err(bad("unknown component"));
                };
                let chunks = c.spec.blocks.div_ceil(BLOCKS_PER_CHUNK);
                let block_state =
                    BlockState::from_code(record.state).ok_or_else(|| bad("state"))?;
                if record.seq.get() > SEQ_MAX {
                    return Err(bad("seq"));
                }
                let seq = Seq(record.seq.get());
                let chunk = if k == JournalKind::Blocks as u8 {
                    chunk_of(record.block.get())
                } else {
                    record.block.get()
                };
                if chunk >= chunks {
                    return Err(bad("chunk outside the component"));
                }
                let entry = c.table.get(chunk);
                let mut home =
                    Home { whole: None, slot: entry.slot, newest: entry.max_seq, overlay: &[] };
                let mut overlay = Vec::new();
                match k {
                    k if k == JournalKind::Whole as u8 => {
                        home.slot = NONE;
                        home.newest = home.newest.max(seq);
                        home.whole = Some(BlockEntry { crc: 0, seq, state: block_state });
                    }
                    k if k == JournalKind::Chunk as u8 => {
                        home.slot = record.slot.get();
                        home.newest = home.newest.max(seq);
                    }
                    k if k == JournalKind::Blocks as u8 => {
                        let first = record.block.get() % BLOCKS_PER_CHUNK;
                        let count = u32::from(record.count.get());
                        if count == 0 || first + count > BLOCKS_PER_CHUNK {
                            return Err(bad("range"));
                        }
                        let crc = record.crc.get();
                        let entry = BlockEntry { crc, seq, state: block_state };
                        overlay
                            .extend((first..first + count).map(|b| Overlay::new(b as u8, entry)));
                        if !mutant!("recover.block_records_skipped") {
                            home.overlay = &overlay;
                        }
                    }
                    k => return Err(OpenError::Newer(format!("journal record {k}"))),
                }
                set_home(state, local, chunk, &home);
            }
        }
    }
    Ok(())
}

fn restore(state: &mut State, local: u32, c: Component) -> Result<(), OpenError> {
    if c.local != local || usize::from(c.device) >= state.space.len() {
        return Err(OpenError::Metadata("a journaled component contradicts itself".into()));
    }
    state.next_local = state.next_local.max(local + 1);
    match state.components.get_mut(&local) {
        Some(known) => known.restore(c),
        None => {
            let known = state.by_id.get(&c.id).copied().unwrap_or(0);
            state.by_id.insert(c.id, known.max(local));
            state.components.insert(local, c);
        }
    }
    Ok(())
}

/// Marks slots and pages that chunks refer to as taken.
fn build_space(state: &mut State) -> Result<(), OpenError> {
    for c in state.components.values() {
        let space = &mut state.space[usize::from(c.device)];
        for (chunk, entry) in c.table.iter() {
            if entry.slot != NONE && !space.slots.take(entry.slot) {
                return Err(OpenError::Metadata(format!(
                    "slot {} of chunk {chunk} of {} has two owners or lies outside",
                    entry.slot, c.id
                )));
            }
            if entry.page != NONE && !space.pages.take(entry.page) {
                return Err(OpenError::Metadata(format!(
                    "page {} of chunk {chunk} of {} has two owners or lies outside",
                    entry.page, c.id
                )));
            }
        }
    }
    Ok(())
}

/// Takes the slots of placed chunks that the journal does not know yet. A slot with two owners
/// means that the record which gave it up was lost with a part of the log: the chunk that claimed
/// it first in the log, or only in the log, has no bytes there any more.
fn claim_placed(state: &mut State) {
    if mutant!("recover.placed_not_claimed") {
        return;
    }
    let mut claims: Vec<(u64, u32, u32, u32)> = Vec::new();
    for c in state.components.values() {
        for (&chunk, hot) in &c.hot {
            let Some(whole) = hot.whole.as_ref().filter(|w| w.slot().is_some()) else { continue };
            // Segments take turns at their places: the newest ones come last.
            let place = state.geometry.ring_index(whole.at) as u64;
            let n = state.geometry.segments;
            let age = (place + n - state.trim_below % n) % n;
            claims.push((age, whole.at, c.local, chunk));
        }
    }
    claims.sort_unstable();
    for (_, _, local, chunk) in claims.into_iter().rev() {
        let Some(c) = state.components.get_mut(&local) else { continue };
        let Some(hot) = c.hot.get_mut(&chunk) else { continue };
        let Some(slot) = hot.whole.as_ref().and_then(Whole::slot) else { continue };
        let known = c.table.get(chunk).slot == slot;
        if known || state.space[usize::from(c.device)].slots.take(slot) {
            continue;
        }
        sometimes!("store.recover.placed_slot_has_two_owners");
        let Some(whole) = hot.whole.take() else { continue };
        let mut blocks: Vec<Pending> = (0..=u8::MAX)
            .filter(|&b| hot.pending_at(b).is_none())
            .map(|b| Pending::new(b, BlockState::Bad, whole.seq, whole.at, 0))
            .collect();
        let (added, lost) = (blocks.len() as u64, whole.weight());
        blocks.append(&mut hot.pending);
        blocks.sort_by_key(Pending::block);
        hot.pending = blocks;
        let live = &mut state.ring[state.geometry.ring_index(whole.at)].live;
        for count in [live, &mut state.index_blocks, &mut c.log_live] {
            *count = *count + added - lost;
        }
    }
}

// ---- log ----

/// What the walk over the log has learnt.
#[derive(Default)]
struct Scan {
    /// The last batch that anything proves durable.
    log_to: u64,
    /// Batches up to this one are in the checkpoint.
    replay_after: u64,
    last_seq: u64,
    prev_crc: u32,
    generation: u64,
    journal_to: u64,
    footer: FooterBuilder,
    /// What is damaged, for people; not empty: some operations are unknown or blocks bad.
    damage: Vec<String>,
    /// Operations are missing of which nothing is known.
    unknown: bool,
}

fn newer(e: LogError) -> Option<OpenError> {
    match e {
        LogError::Newer { what, value } => Some(OpenError::Newer(format!("{what} {value}"))),
        _ => None,
    }
}

async fn replay_log<W: World>(
    device: &Device<W>,
    state: &mut State,
    scan: &mut Scan,
) -> Result<(), OpenError> {
    let salt = state.geometry.salt;
    // Which segment lies at each place of the ring.
    let mut headers: BTreeMap<u64, SegmentHeader> = BTreeMap::new();
    for place in 0..state.geometry.segments {
        let at = state.geometry.log_at + place * state.geometry.segment_len;
        let Some(block) = read(device, at, BLOCK).await? else { continue };
        match SegmentHeader::decode(&block, at, salt) {
            Ok(h) if h.segment % state.geometry.segments == place => {
                headers.insert(h.segment, h);
            }
            Ok(_) | Err(LogError::Nothing | LogError::Damaged) => {}
            Err(e) => return Err(newer(e).expect("the other variants are above")),
        }
    }
    let oldest = state.trim_below;
    let newest = headers.keys().next_back().copied().unwrap_or(0).max(oldest);
    if newest >= oldest + state.geometry.segments {
        return Err(OpenError::Metadata("the log has more segments than places".into()));
    }
    scan.journal_to = headers.values().map(|h| h.journal_to).max().unwrap_or(0);
    scan.generation = headers.values().map(|h| h.generation).max().unwrap_or(0);
    // A segment is begun when what was written before it is durable.
    let begun = headers.values().map(|h| h.first_batch.saturating_sub(1)).max().unwrap_or(0);
    scan.log_to = scan.log_to.max(begun);
    let mut expected = headers.get(&oldest).map(|h| h.first_batch);
    let mut segment = oldest;
    loop {
        let index = (segment % state.geometry.segments) as usize;
        state.ring[index] = Segment::default();
        if let Some(h) = headers.get(&segment) {
            if expected.is_some_and(|e| e != h.first_batch) {
                lose(scan, format!("batches before {} are missing", h.first_batch));
            }
            expected = Some(h.first_batch);
        } else if segment < newest {
            scan.damage.push(format!("the header of segment {segment} is unreadable"));
        }
        let is_last = segment >= newest;
        let sealed = if is_last {
            false
        } else {
            let next = headers.get(&(segment + 1)).map(|h| h.first_batch);
            replay_sealed(device, state, scan, segment, next, &mut expected).await?
        };
        if !sealed {
            if !is_last {
                sometimes!("store.recover.no_footer");
            }
            replay_open(device, state, scan, segment, &mut expected).await?;
        }
        if is_last {
            // A segment whose header was lost may still follow.
            let next = segment + 1;
            let room = next - oldest < state.geometry.segments;
            if !room || !has_batches(device, state, next, scan.last_seq).await? {
                break;
            }
            scan.damage.push(format!("the header of segment {next} is unreadable"));
        }
        segment += 1;
        scan.footer = FooterBuilder::default();
        state.head_segment = segment;
        state.head_offset = BLOCK;
    }
    let first = headers.get(&oldest).map_or(1, |h| h.first_batch);
    scan.last_seq = scan.last_seq.max(first - 1);
    if scan.last_seq < scan.log_to {
        let (last, to) = (scan.last_seq, scan.log_to);
        lose(scan, format!("the log ends at batch {last}, batch {to} was durable"));
        scan.last_seq = scan.log_to;
    }
    state.head_segment = segment;
    Ok(())
}

fn lose(scan: &mut Scan, what: String) {
    scan.unknown = true;
    scan.damage.push(what);
}

/// Applies a sealed segment from its footer; false if the footer is not usable. `next` is the first
/// batch of the segment behind it, if that is known.
async fn replay_sealed<W: World>(
    device: &Device<W>,
    state: &mut State,
    scan: &mut Scan,
    segment: u64,
    next: Option<u64>,
    expected: &mut Option<u64>,
) -> Result<bool, OpenError> {
    let geometry = &state.geometry;
    let end = geometry.segment_at(segment) + geometry.segment_len;
    let salt = geometry.salt;
    let Some(last) = read(device, end - BLOCK, BLOCK).await? else { return Ok(false) };
    let footer = match Footer::decode(&last, end - BLOCK, salt) {
        Ok(f) if f.segment == segment => f,
        Ok(_) | Err(LogError::Nothing | LogError::Damaged) => return Ok(false),
        Err(e) => return Err(newer(e).expect("the other variants are above")),
    };
    let body_len = u64::from(footer.body_len).next_multiple_of(BLOCK);
    if body_len + 2 * BLOCK > geometry.segment_len {
        return Ok(false);
    }
    let body = if body_len == 0 {
        Some(Buf::zeros(0))
    } else {
        read(device, end - BLOCK - body_len, body_len).await?
    };
    let Some(body) = body else { return Ok(false) };
    let batches = match footer.batches(&body, salt) {
        Ok(batches) => batches,
        Err(e) => return newer(e).map_or(Ok(false), Err),
    };
    for view in &batches {
        if view.head.segment != segment {
            return Ok(false);
        }
    }
    // After a crash while it was being written the log may have gone on in this segment, and have
    // begun the next before the footer was written again.
    let ends_at = batches.last().map(|view| view.head.seq + 1);
    if next.is_some() && next != ends_at {
        sometimes!("store.recover.old_footer");
        return Ok(false);
    }
    for view in batches {
        follow(scan, &view.head, expected);
        apply_view(state, scan, &view, None);
    }
    Ok(true)
}

/// Notes that a batch comes next, and whether one before it is missing.
fn follow(scan: &mut Scan, head: &BatchHead, expected: &mut Option<u64>) {
    if expected.is_some_and(|e| e != head.seq) {
        lose(scan, format!("batches before {} are missing", head.seq));
    } else if scan.last_seq + 1 == head.seq && scan.prev_crc != head.prev_crc && scan.last_seq > 0 {
        lose(scan, format!("batch {} is not the one that {} followed", scan.last_seq, head.seq));
    }
    *expected = Some(head.seq + 1);
    scan.last_seq = head.seq;
    scan.prev_crc = head.head_crc;
    scan.log_to = scan.log_to.max(head.durable_to);
    scan.journal_to = scan.journal_to.max(head.journal_to);
    scan.generation = scan.generation.max(head.generation);
}

/// Applies all descriptors of a batch. `payload` is checked if it is at hand; blocks that do not
/// match are marked bad.
fn apply_view(state: &mut State, scan: &mut Scan, view: &BatchView<'_>, payload: Option<&[u8]>) {
    if view.head.seq <= scan.replay_after {
        return;
    }
    let place = BatchPlace {
        batch: (view.head.at / BLOCK) as u32,
        payload: (view.head.payload_at() / BLOCK) as u32,
        segment: view.head.segment,
    };
    let mut list = Vec::new();
    for op in view.ops {
        if mutant!("recover.discards_forgotten") && op.kind == LogKind::Discard as u8 {
            continue;
        }
        list.clear();
        let is_write = op.kind == LogKind::Write as u8;
        if is_write || op.kind == LogKind::Placed as u8 {
            list.extend(view.crcs(op));
        }
        let mut copy = *op;
        if op.blocks.get() != 1 {
            copy.crc = 0.into();
        }
        let mut one = [0];
        let crcs = crcs_of(&copy, &mut one, &list);
        state.apply(&copy, crcs, place);
        if is_write && let Some(payload) = payload {
            check_payload(state, scan, op, &list, payload);
        }
    }
}

fn check_payload(
    state: &mut State,
    scan: &mut Scan,
    op: &Descriptor,
    crcs: &[u32],
    payload: &[u8],
) {
    for (i, &sum) in crcs.iter().enumerate() {
        let at = (op.payload_at.get() as usize + i) * BLOCK_LEN;
        let good = payload.get(at..at + BLOCK_LEN).is_some_and(|b| crc(b) == sum);
        if !good {
            let block = op.block.get() + i as u32;
            scan.damage.push(format!("block {block} of component {}", op.component.get()));
            state.mark_bad(op.component.get(), block);
        }
    }
}

/// The bytes of one segment, a MiB at a time; what cannot be read is zeros.
struct Window<'a, W: World> {
    device: &'a Device<W>,
    start: u64,
    end: u64,
    pieces: BTreeMap<u64, Buf>,
}

impl<W: World> Window<'_, W> {
    async fn bytes(&mut self, at: u64, len: usize) -> Result<Vec<u8>, OpenError> {
        const PIECE: u64 = 1 << 20;
        let mut out = Vec::with_capacity(len);
        let mut pos = at;
        while out.len() < len && pos < self.end {
            let piece = (pos - self.start) / PIECE;
            let piece_at = self.start + piece * PIECE;
            if !self.pieces.contains_key(&piece) {
                let piece_len = PIECE.min(self.end - piece_at);
                let bytes = match read(self.device, piece_at, piece_len).await? {
                    Some(bytes) => bytes,
                    None => self.blocks(piece_at, piece_len).await?,
                };
                // Batches are walked forwards: older pieces are not needed again soon.
                if self.pieces.len() >= 8 {
                    self.pieces.pop_first();
                }
                self.pieces.insert(piece, bytes);
            }
            let bytes = &self.pieces[&piece];
            let from = (pos - piece_at) as usize;
            let take = (len - out.len()).min(bytes.len() - from);
            out.extend_from_slice(&bytes[from..from + take]);
            pos += take as u64;
        }
        out.resize(len, 0);
        Ok(out)
    }

    /// Block by block, because a larger read failed.
    async fn blocks(&self, at: u64, len: u64) -> Result<Buf, OpenError> {
        let mut out = atoll_world::BufMut::zeroed(len as usize);
        for offset in (0..len).step_by(BLOCK_LEN) {
            if let Some(block) = read(self.device, at + offset, BLOCK).await? {
                out[offset as usize..offset as usize + BLOCK_LEN].copy_from_slice(&block);
            }
        }
        Ok(out.freeze())
    }
}

/// Walks the batches of a segment by their headers.
async fn replay_open<W: World>(
    device: &Device<W>,
    state: &mut State,
    scan: &mut Scan,
    segment: u64,
    expected: &mut Option<u64>,
) -> Result<(), OpenError> {
    let start = state.geometry.segment_at(segment);
    let end = start + state.geometry.segment_len;
    let salt = state.geometry.salt;
    let mut window = Window { device, start, end, pieces: BTreeMap::new() };
    let mut at = start + BLOCK;
    // A batch is applied when the next is found, which proves it durable; the last one, when its
    // payload matches.
    let mut held: Option<(BatchHead, Vec<u8>)> = None;
    while let Some((head, batch)) =
        next_batch(&mut window, at, salt, segment, scan.last_seq.max(held_seq(&held))).await?
    {
        if let Some(batch) = held.take() {
            accept(state, scan, batch, expected)?;
        }
        at = head.at + head.len_bytes();
        held = Some((head, batch));
    }
    if let Some((head, batch)) = held {
        let proven = scan.log_to.max(head.durable_to) >= head.seq;
        let whole = payload_matches(&head, &batch)? && !mutant!("recover.last_batch_dropped");
        if proven || whole || mutant!("recover.torn_batch_counts") {
            accept(state, scan, (head, batch), expected)?;
        } else {
            sometimes!("store.recover.torn_batch");
        }
    }
    Ok(())
}

fn held_seq(held: &Option<(BatchHead, Vec<u8>)>) -> u64 {
    held.as_ref().map_or(0, |(head, _)| head.seq)
}

/// The first batch at or after `at` that belongs to the segment and follows `after`.
async fn next_batch<W: World>(
    window: &mut Window<'_, W>,
    mut at: u64,
    salt: u64,
    segment: u64,
    after: u64,
) -> Result<Option<(BatchHead, Vec<u8>)>, OpenError> {
    while at + BLOCK <= window.end {
        let first = window.bytes(at, BLOCK_LEN).await?;
        if let Ok(head) = peek_batch(&first, at, salt)
            && head.segment == segment
            && head.seq > after
            && at + head.len_bytes() <= window.end
        {
            let batch = window.bytes(at, head.len_bytes() as usize).await?;
            match decode_batch(&batch, at, salt) {
                Ok(_) => return Ok(Some((head, batch))),
                Err(e) => {
                    if let Some(e) = newer(e) {
                        return Err(e);
                    }
                }
            }
        }
        at += BLOCK;
    }
    Ok(None)
}

fn accept(
    state: &mut State,
    scan: &mut Scan,
    (head, batch): (BatchHead, Vec<u8>),
    expected: &mut Option<u64>,
) -> Result<(), OpenError> {
    let header_len = head.header_blocks as usize * BLOCK_LEN;
    let view = decode_batch(&batch, head.at, head.salt)
        .map_err(|e| newer(e).unwrap_or(OpenError::Metadata("a log batch".into())))?;
    follow(scan, &head, expected);
    apply_view(state, scan, &view, Some(&batch[header_len..]));
    scan.footer.push(&head, &batch[..header_len]);
    state.head_offset = head.at + head.len_bytes() - state.geometry.segment_at(head.segment);
    Ok(())
}

fn payload_matches(head: &BatchHead, batch: &[u8]) -> Result<bool, OpenError> {
    let view = decode_batch(batch, head.at, head.salt)
        .map_err(|e| newer(e).unwrap_or(OpenError::Metadata("a log batch".into())))?;
    let payload = &batch[head.header_blocks as usize * BLOCK_LEN..];
    Ok(view.ops.iter().filter(|op| op.kind == LogKind::Write as u8).all(|op| {
        let from = op.payload_at.get() as usize * BLOCK_LEN;
        let len = usize::from(op.blocks.get()) * BLOCK_LEN;
        payload[from..from + len]
            .chunks_exact(BLOCK_LEN)
            .zip(view.crcs(op))
            .all(|(block, sum)| crc(block) == sum)
    }))
}

/// Whether a segment without a readable header has batches after `after`.
async fn has_batches<W: World>(
    device: &Device<W>,
    state: &State,
    segment: u64,
    after: u64,
) -> Result<bool, OpenError> {
    // Its first batch lies right behind its header, and was written after it.
    let at = state.geometry.segment_at(segment) + BLOCK;
    let salt = state.geometry.salt;
    let Some(first) = read(device, at, BLOCK).await? else { return Ok(false) };
    let Ok(head) = peek_batch(&first, at, salt) else { return Ok(false) };
    if head.segment != segment || head.seq <= after {
        return Ok(false);
    }
    let len = u64::from(head.header_blocks) * BLOCK;
    let Some(header) = read(device, at, len).await? else { return Ok(false) };
    Ok(decode_batch(&header, at, salt).is_ok())
}

/// More local numbers than a damaged part of the log can have given away.
const LOCALS_SKIPPED: u32 = 1 << 14;

/// Damage was found: says so, marks what may be missing, and lets older records of the log not
/// win over what was destaged later.
async fn mark_damage<W: World>(devices: &[Device<W>], state: &mut State, scan: &Scan) {
    sometimes!("store.recover.log_damage");
    for what in &scan.damage {
        state.event(StoreEvent::LogDamage(what.clone()));
    }
    if !scan.unknown {
        return;
    }
    // Creations may be among what is missing: their local numbers are not used again, or records of
    // two components would meet under one should the log be readable again.
    state.next_local = state.next_local.saturating_add(LOCALS_SKIPPED);
    for c in state.components.values_mut() {
        let until = Seq((c.promise.newest.0 + OPS_IN_FLIGHT_MAX).min(SEQ_MAX - 1));
        if !mutant!("recover.no_doubt") {
            c.doubt_until = c.doubt_until.max(until);
        }
    }
    drop_superseded(devices, state).await;
}

/// A record that was newer than what the log now shows may have been destaged before it was lost:
/// per block the greater of log seq and page seq wins (`store.md` rule 12).
async fn drop_superseded<W: World>(devices: &[Device<W>], state: &mut State) {
    use atoll_format::chunk::{PAGE_LEN, PageHead, check_page, page_entry};
    let hot: Vec<(u32, u32)> = state
        .components
        .values()
        .flat_map(|c| c.hot.keys().map(|&chunk| (c.local, chunk)).collect::<Vec<_>>())
        .collect();
    for (local, chunk) in hot {
        let Some(c) = state.components.get(&local) else { continue };
        let entry = c.table.get(chunk);
        let capacity = state.geometry.capacity[usize::from(c.device)];
        let head = PageHead {
            group: state.geometry.group,
            component: c.id,
            chunk,
            page: entry.page,
            generation: entry.page_generation,
        };
        let mut page = None;
        if entry.page != NONE {
            let at = capacity.pages.at + u64::from(entry.page) * BLOCK;
            page = devices[capacity.device]
                .read(at, PAGE_LEN as u32)
                .await
                .ok()
                .filter(|bytes| check_page(bytes, &head, entry.page_crc).is_ok());
        }
        let ring = &mut state.ring;
        let Some(c) = state.components.get_mut(&local) else { continue };
        let Some(hot) = c.hot.get_mut(&chunk) else { continue };
        let overlay: BTreeMap<u8, BlockEntry> =
            hot.overlay.iter().map(|o| (o.block(), o.entry())).collect();
        let home_seq = |block: u8| match (overlay.get(&block), &page) {
            (Some(e), _) => e.seq,
            (None, Some(page)) => page_entry(page, usize::from(block)).seq,
            (None, None) => entry.base().seq,
        };
        let geometry = &state.geometry;
        let mut dropped = Vec::new();
        hot.pending.retain(|p| {
            let keep = p.seq() > home_seq(p.block());
            if !keep {
                dropped.push((p.at, 1));
            }
            keep
        });
        if let Some(slot) = hot.whole.as_ref().and_then(Whole::slot)
            && let Some(whole) = hot.whole.take_if(|w| (0..=u8::MAX).any(|b| home_seq(b) >= w.seq))
        {
            // Blocks at home are as new: it was destaged, or superseded by what was.
            dropped.push((whole.at, whole.weight()));
            if slot != entry.slot {
                state.space[usize::from(c.device)].slots.free(slot);
            }
        }
        if let Some(whole) = hot.whole.clone()
            && let Some(uniform) = whole.uniform()
            && (0..=u8::MAX).any(|b| home_seq(b) > whole.seq)
        {
            // Some blocks are newer than the discard: it is kept for the others only.
            hot.whole = None;
            dropped.push((whole.at, 1));
            let left: Vec<Pending> = (0..=u8::MAX)
                .filter(|&b| home_seq(b) < whole.seq && hot.pending_at(b).is_none())
                .map(|b| Pending::new(b, uniform.state, whole.seq, whole.at, 0))
                .collect();
            ring[geometry.ring_index(whole.at)].live += left.len() as u64;
            state.index_blocks += left.len() as u64;
            c.log_live += left.len() as u64;
            let mut merged: Vec<_> = hot.pending.iter().copied().chain(left).collect();
            merged.sort_by_key(Pending::block);
            hot.pending = merged;
        }
        for (at, weight) in dropped {
            ring[geometry.ring_index(at)].live -= weight;
            state.index_blocks -= weight;
            c.log_live -= weight;
        }
    }
}
