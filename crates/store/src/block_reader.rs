//! Reads blocks where they are. The one file that knows how each [`BlockPlace`] is read.
//!
//! Nothing is judged here: the caller compares checksums, and looks whether the place changed.
//!
//! Invariant: a segment of the log is not overwritten while it is read.

use crate::device::DeviceError;
use crate::group::Group;
use crate::limits;
use crate::state::place::{BlockPlace, ResolvedBlock};
use atoll_format::chunk::NONE;
use atoll_format::id::ComponentId;
use atoll_format::op::BlockRange;
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::StoreError;
use atoll_world::{Buf, World, sometimes};
use futures_util::stream::{self, StreamExt};
use std::rc::Rc;

/// Blocks that lie together, or are alike.
#[derive(Clone, Copy)]
pub(crate) struct BlockRun {
    /// First block, within the range.
    pub first: usize,
    pub count: usize,
    /// Of the first block.
    pub place: BlockPlace,
}

/// Keeps a segment of the log from being overwritten while it is read.
struct SegmentLease<W: World> {
    group: Rc<Group<W>>,
    place: usize,
}

impl<W: World> SegmentLease<W> {
    fn take(group: &Rc<Group<W>>, at: u32) -> Self {
        let mut state = group.state.borrow_mut();
        let place = state.log.begin_read(at);
        Self { group: group.clone(), place }
    }
}

impl<W: World> Drop for SegmentLease<W> {
    fn drop(&mut self) {
        let mut state = self.group.state.borrow_mut();
        let wake = state.log.end_read(self.place) && state.pace.head_waits();
        drop(state);
        if wake {
            self.group.trimmed.notify_all();
        }
    }
}

/// Joins resolved blocks that one request can read.
pub(crate) fn runs(found: &[ResolvedBlock]) -> Vec<BlockRun> {
    let mut runs: Vec<BlockRun> = Vec::with_capacity(1);
    for (i, f) in found.iter().enumerate() {
        match runs.last_mut() {
            Some(last) if last.place.behind(last.count as u32) == f.place => last.count += 1,
            _ => runs.push(BlockRun { first: i, count: 1, place: f.place }),
        }
    }
    let (end, all) = (runs.last().map_or(0, |last| last.first + last.count), found.len());
    assert!(end == all, "runs up to block {end} of {all}");
    runs
}

/// The bytes of each run, in order. With `from_ahead` they may come from what was read ahead.
pub(crate) async fn fetch<W: World>(
    group: &Rc<Group<W>>,
    local: u32,
    runs: &[BlockRun],
    from_ahead: bool,
) -> Vec<Result<Buf, DeviceError>> {
    // All before the first wait: what was just found stays where it is until it was read.
    let leases = runs.iter().filter_map(|run| match run.place {
        BlockPlace::Log(at) => Some(SegmentLease::take(group, at)),
        _ => None,
    });
    let _leases: Vec<SegmentLease<W>> = leases.collect();
    if let [one] = runs {
        return vec![fetch_one(group, local, *one, from_ahead).await];
    }
    let all = runs.iter().map(|&run| fetch_one(group, local, run, from_ahead));
    Box::pin(stream::iter(all).buffered(limits::BACKGROUND_DEPTH).collect()).await
}

async fn fetch_one<W: World>(
    group: &Rc<Group<W>>,
    local: u32,
    run: BlockRun,
    from_ahead: bool,
) -> Result<Buf, DeviceError> {
    let len = (run.count * BLOCK_LEN) as u32;
    assert!((1..=BLOCKS_PER_CHUNK as usize).contains(&run.count), "{} blocks", run.count);
    let (device, at) = match run.place {
        BlockPlace::Nowhere => return Ok(Buf::zeros(len as usize)),
        BlockPlace::Log(at) => {
            return group.read(0, u64::from(at) * BLOCK, len).await;
        }
        BlockPlace::Slot(at) => {
            let state = group.state.borrow();
            let device = state.components.get(local).map_or(0, |c| c.device);
            (state.geometry.capacity[usize::from(device)].device, u64::from(at) * BLOCK)
        }
        BlockPlace::Damaged | BlockPlace::Unread => unreachable!("sorted out by the caller"),
    };
    if from_ahead && let Some(bytes) = group.devices[device].take_readahead(at, len).await? {
        sometimes!("store.ahead.found");
        group.state.borrow_mut().counters.blocks_read_ahead += run.count as u64;
        return Ok(bytes);
    }
    group.read(device, at, len).await
}

/// Where a range lies if all of it is in the slot of its chunk: first block, and the device of the
/// group. None: the chunk has no slot.
///
/// # Errors
/// The component is gone.
pub(crate) fn home_of<W: World>(
    group: &Group<W>,
    id: ComponentId,
    range: BlockRange,
) -> Result<Option<(u32, usize)>, StoreError> {
    let state = group.state.borrow();
    let c = state.components.find(id)?;
    let entry = c.table.get(range.chunk());
    let in_chunk = range.start % BLOCKS_PER_CHUNK;
    let end = in_chunk + u32::from(range.count);
    assert!(end <= BLOCKS_PER_CHUNK, "{range:?} reaches into the next slot");
    if entry.slot == NONE {
        return Ok(None);
    }
    let at = state.geometry.home_block(c.device, entry.slot, in_chunk as u8);
    Ok(Some((at, state.geometry.capacity[usize::from(c.device)].device)))
}
