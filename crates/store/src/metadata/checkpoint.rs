//! Checkpoints: dirty pages go home, then the chunk table and all components are written twice.
//!
//! Order: pages (copy-on-write) -> flush -> older copy's body -> flush -> its head -> the other
//! copy the same way -> journal and retired pages are free. A crash anywhere leaves one complete
//! checkpoint and the journal since it. The mover takes checkpoints, so no block changes its home
//! meanwhile; components may come, change and go, which the log repeats after a crash.

use crate::group::Group;
use crate::limits;
use crate::metadata::page_loader::load_page;
use crate::state::State;
use crate::state::component::Component;
use crate::state::component_record::{audit_record, encode_component};
use crate::state::page_cache::Page;
use atoll_format::checksum::crc_append;
use atoll_format::chunk::{BlockEntry, CheckpointHead, NONE, PAGE_LEN, PageHead, encode_page};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::FailureCause;
use atoll_world::{Buf, BufMut, Durability, World, mutant, sometimes};
use futures_util::StreamExt;
use futures_util::stream;
use std::rc::Rc;

/// Pages written back together.
const PAGES_TOGETHER: usize = 64;
/// Bytes of a body written together.
const PIECE: usize = 1 << 20;

/// Takes a checkpoint; durable on return.
pub(crate) async fn take<W: World>(group: &Rc<Group<W>>) -> Result<(), ()> {
    sometimes!("store.checkpoint");
    write_back(group).await?;
    let before = *group.journal.borrow();
    let (tombstones, retired) = {
        let state = group.state.borrow();
        (state.components.tombstones().len(), state.capacity.pages_retired())
    };
    let (generation, first) = {
        let position = group.journal.borrow();
        (position.generation + 1, position.older)
    };
    for (copy, saves) in [(first, true), (1 - first, second_copy_saves())] {
        write_copy(group, copy, generation, saves).await?;
    }
    let mut position = group.journal.borrow_mut();
    assert!(*position == before, "the journal went on behind a checkpoint: {position:?}");
    position.generation = generation;
    position.older = 0;
    position.used = 0;
    let mut state = group.state.borrow_mut();
    state.components.forget_tombstones(tombstones);
    state.capacity.free_retired_pages(&retired);
    Ok(())
}

/// Writes every chunk with an overlay into a new page.
async fn write_back<W: World>(group: &Rc<Group<W>>) -> Result<(), ()> {
    let dirty: Vec<(u32, u32)> = {
        let state = group.state.borrow();
        let of = |c: &Component| {
            let chunks = c.hot.iter().filter(|(_, h)| !h.overlay.is_empty());
            chunks.map(|(&chunk, _)| (c.local, chunk)).collect::<Vec<_>>()
        };
        state.components.values().flat_map(of).collect()
    };
    let mut touched = vec![false; group.devices.len()];
    for some in dirty.chunks(group.world.bound(PAGES_TOGETHER, 2)) {
        let loads = some.iter().map(|&(local, chunk)| async move {
            let full = group.state.borrow().components.get(local).is_none_or(|c| {
                c.hot.get(&chunk).is_none_or(|h| h.overlay.len() == BLOCKS_PER_CHUNK as usize)
            });
            let base = if full { None } else { load_page(group, local, chunk).await };
            (local, chunk, base)
        });
        let loaded: Vec<_> = stream::iter(loads).buffered(limits::BACKGROUND_DEPTH).collect().await;
        let built: Vec<_> = {
            let mut state = group.state.borrow_mut();
            loaded.into_iter().filter_map(|(l, c, base)| build(&mut state, l, c, base)).collect()
        };
        let runs = adjacent(&built);
        for run in &runs {
            touched[run.0] = true;
        }
        let writes = runs.into_iter().map(|(device, at, data)| async move {
            (device, group.devices[device].write(at, data, Durability::Volatile).await)
        });
        let done: Vec<_> = stream::iter(writes).buffered(limits::BACKGROUND_DEPTH).collect().await;
        for (device, result) in done {
            if let Err(e) = result {
                group.device_failed(device, &e);
            }
        }
        if group.failed.borrow().is_some() {
            return Err(());
        }
        let mut state = group.state.borrow_mut();
        for page in built {
            install(&mut state, page);
        }
    }
    flush_pages(group, &touched).await;
    if group.failed.borrow().is_some() { Err(()) } else { Ok(()) }
}

async fn flush_pages<W: World>(group: &Group<W>, touched: &[bool]) {
    if mutant!("checkpoint.pages_not_flushed") {
        return;
    }
    for (device, _) in touched.iter().enumerate().filter(|(_, touched)| **touched) {
        if let Err(e) = group.devices[device].flush().await {
            group.device_failed(device, &e);
        }
    }
}

/// A page that is being written.
struct NewPage {
    local: u32,
    chunk: u32,
    capacity: usize,
    device: usize,
    at: u64,
    page: u32,
    generation: u16,
    crc: u32,
    bytes: Buf,
}

fn build(state: &mut State, local: u32, chunk: u32, base: Option<Page>) -> Option<NewPage> {
    let c = state.components.get(local)?;
    let entry = c.table.get(chunk);
    let hot = c.hot.get(&chunk)?;
    if !c.is_lost() {
        let dirty = hot.overlay.len();
        assert!(dirty > 0, "chunk {chunk} of {} is not dirty", c.id);
        let known = entry.page == NONE || base.is_some() || dirty == BLOCKS_PER_CHUNK as usize;
        assert!(known, "chunk {chunk} of {}: what is not dirty would be forgotten", c.id);
    }
    let capacity = usize::from(c.device);
    let mut blocks = [BlockEntry::default(); BLOCKS_PER_CHUNK as usize];
    for (i, to) in blocks.iter_mut().enumerate() {
        *to = match &base {
            Some(page) => page.entry(i as u8),
            None => entry.base(),
        };
    }
    for o in &hot.overlay {
        blocks[usize::from(o.block())] = o.entry();
    }
    let id = c.id;
    let page = state.capacity.take_page(capacity);
    let place = state.geometry.capacity[capacity];
    let generation = entry.page_generation.wrapping_add(1);
    let head = PageHead { group: state.geometry.group, component: id, chunk, page, generation };
    let mut bytes = BufMut::for_overwrite(PAGE_LEN);
    let crc = encode_page(&head, &blocks, &mut bytes);
    let at = place.pages.at + u64::from(page) * BLOCK;
    assert!(at + BLOCK <= place.pages.end(), "page {page} lies outside its region");
    assert!(page != entry.page, "page {page} of chunk {chunk} of {id} is written in place");
    Some(NewPage {
        local,
        chunk,
        capacity,
        device: place.device,
        at,
        page,
        generation,
        crc,
        bytes: bytes.freeze(),
    })
}

/// Joins pages that lie side by side into one write each.
fn adjacent(pages: &[NewPage]) -> Vec<(usize, u64, Vec<Buf>)> {
    let mut runs: Vec<(usize, u64, Vec<Buf>)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((device, at, data))
                if *device == page.device && *at + data.len() as u64 * BLOCK == page.at =>
            {
                data.push(page.bytes.clone());
            }
            _ => runs.push((page.device, page.at, vec![page.bytes.clone()])),
        }
    }
    let (joined, all) = (runs.iter().map(|(_, _, data)| data.len()).sum::<usize>(), pages.len());
    assert!(joined == all, "{joined} of {all} pages are written");
    runs
}

fn install(state: &mut State, new: NewPage) {
    state.counters.metadata_bytes += PAGE_LEN as u64;
    let Some(c) = state.components.get(new.local).filter(|c| !c.is_lost()) else {
        // Deleted or lost meanwhile.
        state.capacity.free_page(new.capacity, new.page);
        return;
    };
    let mut entry = c.table.get(new.chunk);
    let old = entry.page;
    let follows = new.generation == entry.page_generation.wrapping_add(1);
    assert!(follows && new.page != old, "another page of chunk {} came first", new.chunk);
    entry.page = new.page;
    entry.page_generation = new.generation;
    entry.page_crc = new.crc;
    entry.base_seq = Default::default();
    entry.base_zero = false;
    if old != NONE {
        state.capacity.retire_page(new.capacity, old);
    }
    state.set_page(new.local, new.chunk, entry);
    state.page_cache.insert((new.local, new.chunk), Page::Good(new.bytes));
    state.settle(new.local, new.chunk);
}

/// Writes one copy: body, flush, head. If it saves, its components count as known from here on.
async fn write_copy<W: World>(
    group: &Rc<Group<W>>,
    copy: usize,
    generation: u64,
    saves: bool,
) -> Result<(), ()> {
    let region = group.state.borrow().geometry.checkpoints[copy];
    let room = region.len - BLOCK;
    let replay_after = if ends_the_log(group) { group.queue.borrow().next_seq - 1 } else { 0 };
    let (mut body_len, mut body_crc, mut components) = (0u64, 0u32, 0u32);
    let mut bytes: Vec<u8> = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        next = {
            let mut state = group.state.borrow_mut();
            let found = state.components.range_mut(from..).find(|(_, c)| c.durable);
            found.map(|(&local, c)| {
                let from = bytes.len();
                encode_component(c, &mut bytes);
                if group.world.audits() {
                    audit_record(c, &bytes[from..]);
                }
                components += 1;
                if saves {
                    c.saved_blocks = c.spec.blocks;
                    c.unsaved_from = None;
                }
                local + 1
            })
        };
        let mut written = 0;
        let piece_len = group.world.bound(PIECE, 4 * BLOCK_LEN);
        while bytes.len() - written >= piece_len || (next.is_none() && written < bytes.len()) {
            let part = &bytes[written..bytes.len().min(written + piece_len)];
            let len = part.len();
            body_crc = add_to_sum(body_crc, part);
            let mut piece = BufMut::zeroed(len.next_multiple_of(BLOCK_LEN));
            piece[..len].copy_from_slice(part);
            if body_len + piece.len() as u64 > room {
                group.fail("the checkpoint does not fit its region", FailureCause::Broken);
                return Err(());
            }
            let at = region.at + BLOCK + body_len;
            assert!(body_len.is_multiple_of(BLOCK), "a piece goes on within a block: {body_len}");
            body_len += len as u64;
            written += len;
            let data = vec![piece.freeze()];
            if let Err(e) = group.log_device().write(at, data, Durability::Volatile).await {
                group.device_failed(0, &e);
                return Err(());
            }
        }
        bytes.drain(..written);
    }
    assert!(bytes.is_empty(), "{} bytes of the checkpoint were not written", bytes.len());
    assert!(body_len <= room, "the checkpoint has {body_len} bytes, its region {room}");
    flush_body(group).await?;
    let head = {
        let mut state = group.state.borrow_mut();
        state.counters.metadata_bytes += body_len + BLOCK;
        let position = group.journal.borrow();
        let (trim, log) = (state.log.trim_below(), state.log.head_segment());
        assert!(trim <= log, "a log that begins at {trim} and ends at {log}");
        let next = state.components.next_local();
        assert!(components < next, "{components} components with numbers below {next}");
        let journal = state.geometry.journal;
        assert!(
            (journal.at..=journal.end()).contains(&position.at),
            "the journal goes on at {}, it lies at {journal:?}",
            position.at
        );
        CheckpointHead {
            salt: state.geometry.salt,
            generation,
            at: region.at,
            journal_seq: position.seq,
            journal_at: position.at,
            journal_crc: position.prev_crc,
            trim_below: state.log.trim_below(),
            log_to: group.queue.borrow().next_seq - 1,
            replay_after,
            next_local: state.components.next_local(),
            components,
            body_len,
            body_crc,
        }
    };
    let block = Buf::copy_from(&head.encode());
    if let Err(e) = group.log_device().write(region.at, vec![block], Durability::Durable).await {
        group.device_failed(0, &e);
        return Err(());
    }
    Ok(())
}

/// Recovery takes either of the two copies: what only the second one holds is not saved.
fn second_copy_saves() -> bool {
    mutant!("checkpoint.second_copy_saves")
}

/// With nothing left in the log's index, chunks are where the table says, and the records that
/// follow hold all small state: the batches so far have nothing more to say.
fn ends_the_log<W: World>(group: &Group<W>) -> bool {
    if mutant!("checkpoint.ends_the_log") {
        return true;
    }
    group.state.borrow().log.blocks() == 0
}

fn add_to_sum(sum: u32, part: &[u8]) -> u32 {
    if mutant!("checkpoint.sum_forgets_a_byte") {
        return crc_append(sum, &part[..part.len() - 1]);
    }
    crc_append(sum, part)
}

async fn flush_body<W: World>(group: &Group<W>) -> Result<(), ()> {
    if mutant!("checkpoint.body_not_flushed") {
        return Ok(());
    }
    group.log_device().flush().await.map_err(|e| group.device_failed(0, &e))
}
