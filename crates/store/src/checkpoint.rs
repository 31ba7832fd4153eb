//! Checkpoints: dirty pages go home, then the chunk table and all components are written twice.
//!
//! Order: pages (copy-on-write) -> flush -> older copy's body -> flush -> its head -> the other
//! copy the same way -> journal and retired pages are free. A crash anywhere leaves one complete
//! checkpoint and the journal since it. The mover takes checkpoints, so no block changes its home
//! meanwhile; components may come, change and go, which the log repeats after a crash.

use crate::device::DeviceError;
use crate::group::Group;
use crate::limits;
use crate::pages::Page;
use crate::state::State;
use atoll_format::checksum::crc_append;
use atoll_format::chunk::{
    BlockEntry, CheckpointHead, NONE, PAGE_LEN, PageHead, RawRun, check_page, encode_page,
};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::{Buf, BufMut, Durability, World, mutant, sometimes};
use futures_util::StreamExt;
use futures_util::stream;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// Pages written back together.
const PAGES_TOGETHER: usize = 64;
/// Bytes of a body written together.
const PIECE: usize = 1 << 20;

/// The page of a chunk, from the cache or its device; none if the chunk has none.
pub(crate) async fn load_page<W: World>(
    group: &Rc<Group<W>>,
    local: u32,
    chunk: u32,
) -> Option<Page> {
    let (entry, head, device, at) = {
        let mut state = group.state.borrow_mut();
        let c = state.components.get(&local)?;
        let entry = c.table.get(chunk);
        if entry.page == NONE {
            return None;
        }
        let (id, device) = (c.id, usize::from(c.device));
        if let Some(page) = state.cache.get((local, chunk)) {
            return Some(page.clone());
        }
        let capacity = state.geometry.capacity[device];
        let head = PageHead {
            group: state.geometry.group,
            component: id,
            chunk,
            page: entry.page,
            generation: entry.page_generation,
        };
        let at = capacity.pages.at + u64::from(entry.page) * BLOCK;
        (entry, head, capacity.device, at)
    };
    let mut page = Page::Damaged(entry.max_seq);
    // Twice: a transfer may fail where the medium is good.
    for _ in 0..2 {
        match group.devices[device].read(at, PAGE_LEN as u32).await {
            Ok(bytes)
                if check_page(&bytes, &head, entry.page_crc).is_ok()
                    || mutant!("checkpoint.page_not_checked") =>
            {
                page = Page::Good(bytes);
                break;
            }
            Ok(_) => group.state.borrow_mut().counters.checksum_errors += 1,
            Err(e @ DeviceError::Failed(_)) => {
                // Says nothing about the page: the caller finds the group or component failed.
                group.device_failed(device, &e);
                return Some(page);
            }
            Err(DeviceError::Read(_)) => {}
        }
    }
    let mut state = group.state.borrow_mut();
    let unchanged = state.components.get(&local).is_some_and(|c| c.table.get(chunk) == entry);
    if unchanged {
        if matches!(page, Page::Damaged(_)) {
            sometimes!("store.page.damaged");
            let component = head.component;
            state.event(atoll_world::components::StoreEvent::BadBlock {
                component,
                block: chunk * BLOCKS_PER_CHUNK,
            });
        }
        state.cache.insert((local, chunk), page.clone());
    }
    Some(page)
}

/// Takes a checkpoint; durable on return.
pub(crate) async fn take<W: World>(group: &Rc<Group<W>>) -> Result<(), ()> {
    sometimes!("store.checkpoint");
    write_back(group).await?;
    let graves = group.state.borrow().graves.len();
    let retired: Vec<usize> =
        group.state.borrow().space.iter().map(|s| s.retired_pages.len()).collect();
    let (generation, first) = {
        let position = group.journal.borrow();
        (position.generation + 1, position.older)
    };
    // Recovery takes either of the two: what only the second one holds is not saved.
    for (copy, saves) in [(first, true), (1 - first, mutant!("checkpoint.second_copy_saves"))] {
        write_copy(group, copy, generation, saves).await?;
    }
    let mut position = group.journal.borrow_mut();
    position.generation = generation;
    position.older = 0;
    position.used = 0;
    let mut state = group.state.borrow_mut();
    state.graves.drain(..graves);
    for (device, count) in retired.into_iter().enumerate() {
        let space = &mut state.space[device];
        let free: Vec<u32> = space.retired_pages.drain(..count).collect();
        for page in free {
            space.pages.free(page);
        }
    }
    Ok(())
}

/// Writes every chunk with an overlay into a new page.
async fn write_back<W: World>(group: &Rc<Group<W>>) -> Result<(), ()> {
    let dirty: Vec<(u32, u32)> = {
        let state = group.state.borrow();
        let of = |c: &crate::component::Component| {
            let chunks = c.hot.iter().filter(|(_, h)| !h.overlay.is_empty());
            chunks.map(|(&chunk, _)| (c.local, chunk)).collect::<Vec<_>>()
        };
        state.components.values().flat_map(of).collect()
    };
    let mut touched = vec![false; group.devices.len()];
    for some in dirty.chunks(group.world.bound(PAGES_TOGETHER, 2)) {
        let loads = some.iter().map(|&(local, chunk)| async move {
            let full = group.state.borrow().components.get(&local).is_none_or(|c| {
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
    for (device, touched) in touched.into_iter().enumerate() {
        if touched
            && !mutant!("checkpoint.pages_not_flushed")
            && let Err(e) = group.devices[device].flush().await
        {
            group.device_failed(device, &e);
        }
    }
    if group.failed.borrow().is_some() { Err(()) } else { Ok(()) }
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
    let c = state.components.get(&local)?;
    let entry = c.table.get(chunk);
    let hot = c.hot.get(&chunk)?;
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
    let page = state.space[capacity].pages.allocate().expect("dirty pages are bounded");
    let place = state.geometry.capacity[capacity];
    let generation = entry.page_generation.wrapping_add(1);
    let head = PageHead { group: state.geometry.group, component: id, chunk, page, generation };
    let mut bytes = BufMut::for_overwrite(PAGE_LEN);
    let crc = encode_page(&head, &blocks, &mut bytes);
    Some(NewPage {
        local,
        chunk,
        capacity,
        device: place.device,
        at: place.pages.at + u64::from(page) * BLOCK,
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
    runs
}

fn install(state: &mut State, new: NewPage) {
    state.counters.metadata_bytes += PAGE_LEN as u64;
    let Some(c) = state.components.get_mut(&new.local).filter(|c| !c.is_lost()) else {
        // Deleted or lost meanwhile.
        state.space[new.capacity].pages.free(new.page);
        return;
    };
    let mut entry = c.table.get(new.chunk);
    let old = entry.page;
    entry.page = new.page;
    entry.page_generation = new.generation;
    entry.page_crc = new.crc;
    entry.base_seq = Default::default();
    entry.base_zero = false;
    if let Some(hot) = c.hot.get_mut(&new.chunk) {
        state.overlay_blocks -= hot.overlay.len() as u64;
        state.overlay_chunks[new.capacity] -= 1;
        hot.overlay = Vec::new();
    }
    if old != NONE {
        state.space[new.capacity].retired_pages.push(old);
    }
    state.set_entry(new.local, new.chunk, entry);
    state.cache.insert((new.local, new.chunk), Page::Good(new.bytes));
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
    // With nothing left in the log's index, chunks are where the table says, and the records that
    // follow hold all small state: the batches so far have nothing more to say.
    let replay_after = {
        let settled = group.state.borrow().index_blocks == 0 || mutant!("checkpoint.ends_the_log");
        if settled { group.queue.borrow().next_seq - 1 } else { 0 }
    };
    let (mut body_len, mut body_crc, mut components) = (0u64, 0u32, 0u32);
    let mut bytes: Vec<u8> = Vec::new();
    let mut next = Some(0);
    while let Some(from) = next {
        next = {
            let mut state = group.state.borrow_mut();
            let found = state.components.range_mut(from..).find(|(_, c)| c.durable);
            found.map(|(&local, c)| {
                encode_component(c, &mut bytes);
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
            let summed = len - usize::from(mutant!("checkpoint.sum_forgets_a_byte"));
            body_crc = crc_append(body_crc, &part[..summed]);
            let mut piece = BufMut::zeroed(len.next_multiple_of(BLOCK_LEN));
            piece[..len].copy_from_slice(part);
            if body_len + piece.len() as u64 > room {
                group.fail("the checkpoint does not fit its region");
                return Err(());
            }
            let at = region.at + BLOCK + body_len;
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
    if !mutant!("checkpoint.body_not_flushed")
        && let Err(e) = group.log_device().flush().await
    {
        group.device_failed(0, &e);
        return Err(());
    }
    let head = {
        let mut state = group.state.borrow_mut();
        state.counters.metadata_bytes += body_len + BLOCK;
        let position = group.journal.borrow();
        CheckpointHead {
            salt: state.geometry.salt,
            generation,
            at: region.at,
            journal_seq: position.seq,
            journal_at: position.at,
            journal_crc: position.prev_crc,
            trim_below: state.trim_below,
            log_to: group.queue.borrow().next_seq - 1,
            replay_after,
            next_local: state.next_local,
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

/// A component's record and its chunk entries, in runs.
pub(crate) fn encode_component(c: &crate::component::Component, to: &mut Vec<u8>) {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for (chunk, _) in c.table.iter() {
        match runs.last_mut() {
            Some((first, count)) if *first + *count == chunk => *count += 1,
            _ => runs.push((chunk, 1)),
        }
    }
    c.encode(runs.len() as u32, to);
    for (first, count) in runs {
        let run = RawRun { first: first.into(), count: count.into() };
        to.extend_from_slice(run.as_bytes());
        for chunk in first..first + count {
            to.extend_from_slice(c.table.get(chunk).encode().as_bytes());
        }
    }
}
