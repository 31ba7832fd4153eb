//! Reads: resolve, fetch, verify, and look again if the place changed meanwhile.
//!
//! What has been read ahead ([`crate::ahead`]) is as good as the device and judged as its bytes
//! are. Nothing is returned that does not match its checksum. Contiguous blocks are one device
//! read and one buffer. When the chunk's page is not in memory, page and data are read at the same
//! time.

use crate::ahead;
use crate::checkpoint;
use crate::device::DeviceError;
use crate::group::Group;
use crate::limits;
use crate::state::{Found, Source};
use atoll_format::checksum::crc;
use atoll_format::chunk::NONE;
use atoll_format::id::ComponentId;
use atoll_format::op::{BlockRange, BlockTag};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::{ReadBlocks, StoreError};
use atoll_world::{Buf, World, mutant, sometimes};
use futures_util::future::join;
use futures_util::stream::{self, StreamExt};
use std::rc::Rc;

/// Blocks that lie together.
#[derive(Clone, Copy)]
struct Piece {
    /// First block, within the range.
    first: usize,
    count: usize,
    source: Source,
}

/// Keeps a segment of the log from being overwritten while it is read.
struct Lease<W: World> {
    group: Rc<Group<W>>,
    index: usize,
}

impl<W: World> Lease<W> {
    fn take(group: &Rc<Group<W>>, at: u32) -> Self {
        let mut state = group.state.borrow_mut();
        let index = state.geometry.ring_index(at);
        state.ring[index].readers += 1;
        Self { group: group.clone(), index }
    }
}

impl<W: World> Drop for Lease<W> {
    fn drop(&mut self) {
        let mut state = self.group.state.borrow_mut();
        state.ring[self.index].readers -= 1;
        let wake = state.ring[self.index].readers == 0 && state.head_waits;
        drop(state);
        if wake {
            self.group.trimmed.notify_all();
        }
    }
}

/// Who reads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    /// Wants bytes: from the device or from what was read of it before.
    Caller,
    /// Wants to know whether the device has them.
    Scrub,
}

/// Blocks `range` of a component.
pub(crate) async fn read<W: World>(
    group: &Rc<Group<W>>,
    id: ComponentId,
    range: BlockRange,
    reader: Reader,
) -> Result<ReadBlocks, StoreError> {
    let mut twice = false;
    for attempt in 0..limits::READ_RETRIES {
        let (local, found) = resolve(group, id, range)?;
        if attempt == 0
            && reader == Reader::Caller
            && let Some(blocks) = group.streams.borrow_mut().on_read(local, range)
        {
            ahead::begin(group, local, blocks, u32::from(range.count));
        }
        if found.iter().any(|f| f.source == Source::Page) {
            // Set apart, as are several pieces: else every request would take memory for these.
            if let Some(done) = Box::pin(read_with_page(group, id, local, range)).await? {
                if reader == Reader::Caller {
                    group.state.borrow_mut().counters.blocks_read += u64::from(range.count);
                }
                return Ok(done);
            }
            continue;
        }
        let bad = blocks_of(range, &found, |f| f.source == Source::Bad);
        if !bad.is_empty() {
            return Err(StoreError::Bad(bad));
        }
        let from_ahead = reader == Reader::Caller && !twice;
        let fetched = fetch(group, local, &pieces(&found), from_ahead).await;
        group.world.charge(limits::CPU_BLOCK * u64::from(range.count)).await;
        match judge(group, id, local, range, &found, fetched)? {
            Verdict::Good(payload) => {
                if reader == Reader::Caller {
                    group.state.borrow_mut().counters.blocks_read += u64::from(range.count);
                }
                return Ok(ReadBlocks { tags: found.iter().map(|f| f.tag).collect(), payload });
            }
            Verdict::Changed => sometimes!("store.read.place_changed"),
            // Once more: a transfer may fail where the medium is good.
            Verdict::Mismatch(_) if !twice => twice = true,
            Verdict::Mismatch(bad) => {
                let mut state = group.state.borrow_mut();
                for &block in &bad {
                    state.mark_bad(local, block);
                }
                return Err(StoreError::Bad(bad));
            }
            Verdict::Unreadable(bad) => return Err(StoreError::Bad(bad)),
        }
    }
    // The place changed so often that something is wrong with it; another member may serve it.
    Err(StoreError::Bad((range.start..range.end()).collect()))
}

enum Verdict {
    Good(Vec<Buf>),
    /// The place is no longer the block's: look again.
    Changed,
    /// The bytes do not match.
    Mismatch(Vec<u32>),
    /// The device gave no bytes.
    Unreadable(Vec<u32>),
}

fn blocks_of(range: BlockRange, found: &[Found], is: impl Fn(&Found) -> bool) -> Vec<u32> {
    (range.start..).zip(found).filter(|(_, f)| is(f)).map(|(b, _)| b).collect()
}

fn resolve<W: World>(
    group: &Group<W>,
    id: ComponentId,
    range: BlockRange,
) -> Result<(u32, Vec<Found>), StoreError> {
    if let Some(why) = &*group.failed.borrow() {
        return Err(StoreError::Failed(why.clone()));
    }
    let mut state = group.state.borrow_mut();
    let c = state.find(id)?;
    if !range.is_valid() || range.end() > c.spec.blocks {
        return Err(StoreError::Malformed("range of blocks"));
    }
    crate::store::check_lost(c)?;
    let local = c.local;
    Ok((local, (range.start..range.end()).map(|block| state.resolve(local, block)).collect()))
}

fn pieces(found: &[Found]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::with_capacity(1);
    for (i, f) in found.iter().enumerate() {
        if let Some(last) = pieces.last_mut() {
            let n = last.count as u32;
            let next = match last.source {
                Source::Log(at) => Source::Log(at + n),
                Source::Home(at) => Source::Home(at + n),
                other => other,
            };
            if next == f.source {
                last.count += 1;
                continue;
            }
        }
        pieces.push(Piece { first: i, count: 1, source: f.source });
    }
    pieces
}

/// The bytes of each piece, in order.
async fn fetch<W: World>(
    group: &Rc<Group<W>>,
    local: u32,
    pieces: &[Piece],
    from_ahead: bool,
) -> Vec<Result<Buf, DeviceError>> {
    // All before the first wait: what was just found stays where it is until it was read.
    let leases = pieces.iter().filter_map(|piece| match piece.source {
        Source::Log(at) => Some(Lease::take(group, at)),
        _ => None,
    });
    let _leases: Vec<Lease<W>> = leases.collect();
    if let [one] = pieces {
        return vec![fetch_one(group, local, *one, from_ahead).await];
    }
    let all = pieces.iter().map(|&piece| fetch_one(group, local, piece, from_ahead));
    Box::pin(stream::iter(all).buffered(limits::BACKGROUND_DEPTH).collect()).await
}

async fn fetch_one<W: World>(
    group: &Rc<Group<W>>,
    local: u32,
    piece: Piece,
    from_ahead: bool,
) -> Result<Buf, DeviceError> {
    let len = (piece.count * BLOCK_LEN) as u32;
    let (device, at) = match piece.source {
        Source::Zeros => return Ok(Buf::zeros(len as usize)),
        Source::Log(at) => {
            return read_device(group, 0, u64::from(at) * BLOCK, len).await;
        }
        Source::Home(at) => {
            let state = group.state.borrow();
            let device = state.components.get(&local).map_or(0, |c| c.device);
            (state.geometry.capacity[usize::from(device)].device, u64::from(at) * BLOCK)
        }
        Source::Bad | Source::Page => unreachable!("sorted out by the caller"),
    };
    if from_ahead && let Some(bytes) = group.devices[device].take_ahead(at, len).await? {
        sometimes!("store.ahead.found");
        group.state.borrow_mut().counters.blocks_read_ahead += piece.count as u64;
        return Ok(bytes);
    }
    read_device(group, device, at, len).await
}

pub(crate) async fn read_device<W: World>(
    group: &Rc<Group<W>>,
    device: usize,
    at: u64,
    len: u32,
) -> Result<Buf, DeviceError> {
    let result = group.devices[device].read(at, len).await;
    if let Err(e) = &result {
        group.device_failed(device, e);
    }
    result
}

/// Verifies what was fetched.
fn judge<W: World>(
    group: &Group<W>,
    id: ComponentId,
    local: u32,
    range: BlockRange,
    found: &[Found],
    fetched: Vec<Result<Buf, DeviceError>>,
) -> Result<Verdict, StoreError> {
    let pieces = pieces(found);
    let mut wrong = Vec::new();
    let mut unreadable = Vec::new();
    let mut payload = Vec::with_capacity(fetched.len());
    for (piece, result) in pieces.iter().zip(fetched) {
        let blocks = piece.first..piece.first + piece.count;
        match result {
            // Nobody knows whether a device that is out of use has good bytes.
            Err(DeviceError::Failed(why)) => return Err(StoreError::Failed(why)),
            Err(DeviceError::Read(_)) => unreadable.extend(blocks.map(|i| range.start + i as u32)),
            Ok(bytes) => {
                if piece.source != Source::Zeros && !mutant!("read.not_checked") {
                    let sums = bytes.chunks_exact(BLOCK_LEN).map(crc);
                    for (i, sum) in blocks.zip(sums) {
                        if sum != found[i].tag.crc {
                            wrong.push(range.start + i as u32);
                        }
                    }
                }
                payload.push(bytes);
            }
        }
    }
    if !unreadable.is_empty() {
        unreadable.extend(wrong);
        unreadable.sort_unstable();
        return Ok(Verdict::Unreadable(unreadable));
    }
    if wrong.is_empty() {
        return Ok(Verdict::Good(payload));
    }
    let mut state = group.state.borrow_mut();
    state.find(id)?;
    let changed =
        wrong.iter().any(|&b| state.resolve(local, b) != found[(b - range.start) as usize]);
    Ok(if changed { Verdict::Changed } else { Verdict::Mismatch(wrong) })
}

/// Reads the page and, at the same time, the bytes where they probably are.
async fn read_with_page<W: World>(
    group: &Rc<Group<W>>,
    id: ComponentId,
    local: u32,
    range: BlockRange,
) -> Result<Option<ReadBlocks>, StoreError> {
    let home = {
        let state = group.state.borrow();
        let c = state.find(id)?;
        let entry = c.table.get(range.chunk());
        let capacity = state.geometry.capacity[usize::from(c.device)];
        let in_chunk = range.start % BLOCKS_PER_CHUNK;
        (entry.slot != NONE).then(|| {
            let block = u64::from(entry.slot) * u64::from(BLOCKS_PER_CHUNK) + u64::from(in_chunk);
            ((capacity.slots.at / BLOCK + block) as u32, capacity.device)
        })
    };
    let data = async {
        let (at, device) = home?;
        let len = u32::from(range.count) * BLOCK as u32;
        Some((at, read_device(group, device, u64::from(at) * BLOCK, len).await.ok()?))
    };
    let page = checkpoint::load_page(group, local, range.chunk());
    let (page, data) = join(page, data).await;
    if page.is_none() {
        // The chunk has no page any more: look again.
        return Ok(None);
    }
    let Some((at, bytes)) = data else { return Ok(None) };
    let (_, found) = resolve(group, id, range)?;
    let all_home = (at..).zip(&found).all(|(at, f)| f.source == Source::Home(at));
    if !all_home || found.iter().any(|f| f.source == Source::Page) {
        return Ok(None);
    }
    let matches = bytes.chunks_exact(BLOCK_LEN).zip(&found).all(|(b, f)| crc(b) == f.tag.crc);
    if !matches && !mutant!("read.beside_a_page_not_checked") {
        return Ok(None);
    }
    let tags = found.iter().map(|f| f.tag).collect();
    Ok(Some(ReadBlocks { tags, payload: vec![bytes] }))
}

/// The tags of all blocks of a chunk.
pub(crate) async fn tags<W: World>(
    group: &Rc<Group<W>>,
    id: ComponentId,
    chunk: u32,
) -> Result<Vec<BlockTag>, StoreError> {
    let start = chunk.checked_mul(BLOCKS_PER_CHUNK).ok_or(StoreError::Malformed("chunk"))?;
    for _ in 0..limits::READ_RETRIES {
        let local = {
            if let Some(why) = &*group.failed.borrow() {
                return Err(StoreError::Failed(why.clone()));
            }
            let mut state = group.state.borrow_mut();
            let c = state.find(id)?;
            crate::store::check_lost(c)?;
            let local = c.local;
            if start >= c.spec.blocks.next_multiple_of(BLOCKS_PER_CHUNK) {
                return Err(StoreError::Malformed("chunk"));
            }
            let found: Vec<Found> =
                (start..start + BLOCKS_PER_CHUNK).map(|b| state.resolve(local, b)).collect();
            if found.iter().all(|f| f.source != Source::Page) {
                return Ok(found.into_iter().map(|f| f.tag).collect());
            }
            local
        };
        checkpoint::load_page(group, local, chunk).await;
    }
    Err(StoreError::Bad((start..start + BLOCKS_PER_CHUNK).collect()))
}
