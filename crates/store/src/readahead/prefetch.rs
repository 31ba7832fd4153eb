//! Reads the next blocks of a component for somebody who reads it in order. Only blocks that lie at
//! home are read: what is in the log is new, and read soon or never.

use crate::group::Group;
use crate::limits;
use crate::metadata::page_loader::load_page;
use crate::state::State;
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK};
use atoll_world::World;
use futures_util::future::join_all;
use std::ops::Range;
use std::rc::Rc;

/// Begins to read blocks of a component ahead, for one whose requests are `count` blocks long.
pub(crate) fn begin<W: World>(group: &Rc<Group<W>>, local: u32, blocks: Range<u32>, count: u32) {
    let mut from = blocks.start;
    while from < blocks.end {
        let to = blocks.end.min((from / BLOCKS_PER_CHUNK + 1) * BLOCKS_PER_CHUNK);
        group.world.spawn(read_chunk(group.clone(), local, from..to, count));
        from = to;
    }
}

/// The part of it that lies in one chunk.
async fn read_chunk<W: World>(group: Rc<Group<W>>, local: u32, blocks: Range<u32>, count: u32) {
    // The reader would wait for the page too.
    load_page(&group, local, blocks.start / BLOCKS_PER_CHUNK).await;
    let (device, pieces) = {
        let mut state = group.state.borrow_mut();
        let Some(c) = state.components.get(local) else { return };
        let (end, device) = (c.spec.blocks, usize::from(c.device));
        let device = state.geometry.capacity[device].device;
        (device, at_home(&mut state, local, blocks.start..blocks.end.min(end), count))
    };
    let requests = pieces.into_iter().map(async |(first, n)| {
        let (at, len) = (u64::from(first) * BLOCK, n * BLOCK as u32);
        let Some(name) = group.devices[device].readahead().begin(at, len) else { return };
        let bytes = group.read(device, at, len).await.ok();
        group.devices[device].readahead().end(name, bytes);
    });
    join_all(requests).await;
}

/// What lies together at home, as blocks of the device: first and number. In pieces that hold whole
/// requests of the reader's.
fn at_home(state: &mut State, local: u32, blocks: Range<u32>, count: u32) -> Vec<(u32, u32)> {
    assert!(
        (1..=limits::READAHEAD_REQUEST).contains(&count),
        "requests of {count} blocks are helped"
    );
    let longest = limits::READAHEAD_REQUEST / count * count;
    let mut pieces: Vec<(u32, u32)> = Vec::new();
    for (i, block) in (0..).zip(blocks) {
        let Some(at) = state.resolve(local, block).place.slot_block() else { continue };
        match pieces.last_mut() {
            Some((first, n)) if *first + *n == at && i % longest != 0 => *n += 1,
            _ => pieces.push((at, 1)),
        }
    }
    let most = pieces.iter().map(|&(_, n)| n).max().unwrap_or(0);
    assert!(most <= longest, "{most} blocks in one request, {longest} are the most");
    pieces
}
