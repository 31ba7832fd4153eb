//! Reads: resolve, fetch, verify, and look again if the place changed meanwhile.
//!
//! What has been read ahead ([`crate::readahead`]) is as good as the device and judged as its bytes
//! are. Nothing is returned that does not match its checksum. Contiguous blocks are one device
//! read and one buffer. When the chunk's page is not in memory, page and data are read at the same
//! time.

use crate::block_reader::{fetch, home_of, runs};
use crate::device::DeviceError;
use crate::group::Group;
use crate::limits;
use crate::metadata::page_loader::load_page;
use crate::readahead::prefetch;
use crate::state::place::{BlockPlace, ResolvedBlock};
use atoll_format::checksum::crc;
use atoll_format::id::ComponentId;
use atoll_format::op::{BlockRange, BlockTag};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::{ReadBlocks, StoreError};
use atoll_world::{Buf, World, mutant, sometimes};
use futures_util::future::join;
use std::rc::Rc;

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
            prefetch::begin(group, local, blocks, u32::from(range.count));
        }
        if !found.iter().all(ResolvedBlock::is_known) {
            // Set apart, as are several pieces: else every request would take memory for these.
            if let Some(done) = Box::pin(read_with_page(group, id, local, range)).await? {
                if reader == Reader::Caller {
                    group.state.borrow_mut().counters.blocks_read += u64::from(range.count);
                }
                return Ok(done);
            }
            continue;
        }
        let bad = blocks_of(range, &found, |f| f.place == BlockPlace::Damaged);
        if !bad.is_empty() {
            return Err(StoreError::Bad(bad));
        }
        let from_ahead = reader == Reader::Caller && !twice;
        let fetched = fetch(group, local, &runs(&found), from_ahead).await;
        group.world.charge(limits::CPU_BLOCK * u64::from(range.count)).await;
        match judge(group, id, local, range, &found, fetched)? {
            ReadVerdict::Good(payload) => {
                if reader == Reader::Caller {
                    group.state.borrow_mut().counters.blocks_read += u64::from(range.count);
                }
                return Ok(ReadBlocks { tags: found.iter().map(|f| f.tag).collect(), payload });
            }
            ReadVerdict::Changed => sometimes!("store.read.place_changed"),
            // Once more: a transfer may fail where the medium is good.
            ReadVerdict::Mismatch(_) if !twice => twice = true,
            ReadVerdict::Mismatch(bad) => {
                let mut state = group.state.borrow_mut();
                for &block in &bad {
                    state.mark_bad(local, block);
                }
                return Err(StoreError::Bad(bad));
            }
            ReadVerdict::Unreadable(bad) => return Err(StoreError::Bad(bad)),
        }
    }
    // The place changed so often that something is wrong with it; another member may serve it.
    Err(StoreError::Bad((range.start..range.end()).collect()))
}

enum ReadVerdict {
    Good(Vec<Buf>),
    /// The place is no longer the block's: look again.
    Changed,
    /// The bytes do not match.
    Mismatch(Vec<u32>),
    /// The device gave no bytes.
    Unreadable(Vec<u32>),
}

fn blocks_of(
    range: BlockRange,
    found: &[ResolvedBlock],
    is: impl Fn(&ResolvedBlock) -> bool,
) -> Vec<u32> {
    (range.start..).zip(found).filter(|(_, f)| is(f)).map(|(b, _)| b).collect()
}

fn resolve<W: World>(
    group: &Group<W>,
    id: ComponentId,
    range: BlockRange,
) -> Result<(u32, Vec<ResolvedBlock>), StoreError> {
    if let Some(why) = &*group.failed.borrow() {
        return Err(StoreError::Failed(why.clone()));
    }
    let mut state = group.state.borrow_mut();
    let c = state.components.find(id)?;
    if !range.is_valid() || range.end() > c.spec.blocks {
        return Err(StoreError::Malformed("range of blocks"));
    }
    c.check_lost()?;
    let local = c.local;
    Ok((local, (range.start..range.end()).map(|block| state.resolve(local, block)).collect()))
}

/// Verifies what was fetched.
fn judge<W: World>(
    group: &Group<W>,
    id: ComponentId,
    local: u32,
    range: BlockRange,
    found: &[ResolvedBlock],
    fetched: Vec<Result<Buf, DeviceError>>,
) -> Result<ReadVerdict, StoreError> {
    let runs = runs(found);
    let (asked, got) = (runs.len(), fetched.len());
    assert!(asked == got, "{asked} runs were asked for, {got} came");
    let all = found.len() == usize::from(range.count);
    assert!(all, "{} of {range:?} were found", found.len());
    let mut wrong = Vec::new();
    let mut unreadable = Vec::new();
    let mut payload = Vec::with_capacity(fetched.len());
    for (run, result) in runs.iter().zip(fetched) {
        let blocks = run.first..run.first + run.count;
        match result {
            // Nobody knows whether a device that is out of use has good bytes.
            Err(DeviceError::Failed(why)) => return Err(StoreError::Failed(why)),
            Err(DeviceError::Read(_)) => unreadable.extend(blocks.map(|i| range.start + i as u32)),
            Ok(bytes) => {
                let (len, blocks_len) = (bytes.len(), run.count * BLOCK_LEN);
                assert!(len == blocks_len, "{len} bytes of {} blocks", run.count);
                if is_checked(run.place) {
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
        return Ok(ReadVerdict::Unreadable(unreadable));
    }
    if wrong.is_empty() {
        return Ok(ReadVerdict::Good(payload));
    }
    let mut state = group.state.borrow_mut();
    if state.components.find(id)?.local != local {
        // Deleted while it was read, and made again.
        return Ok(ReadVerdict::Changed);
    }
    let changed =
        wrong.iter().any(|&b| state.resolve(local, b) != found[(b - range.start) as usize]);
    Ok(if changed { ReadVerdict::Changed } else { ReadVerdict::Mismatch(wrong) })
}

/// Whether bytes from there are compared with their checksum.
fn is_checked(place: BlockPlace) -> bool {
    if mutant!("read.not_checked") {
        return false;
    }
    place.has_bytes()
}

/// Whether what was read while the page was under way is what the page says.
fn matches(bytes: &[u8], found: &[ResolvedBlock]) -> bool {
    if mutant!("read.beside_a_page_not_checked") {
        return true;
    }
    bytes.chunks_exact(BLOCK_LEN).zip(found).all(|(block, f)| crc(block) == f.tag.crc)
}

/// Reads the page and, at the same time, the bytes where they probably are.
async fn read_with_page<W: World>(
    group: &Rc<Group<W>>,
    id: ComponentId,
    local: u32,
    range: BlockRange,
) -> Result<Option<ReadBlocks>, StoreError> {
    let home = home_of(group, id, range)?;
    let data = async {
        let (at, device) = home?;
        let len = u32::from(range.count) * BLOCK as u32;
        Some((at, group.read(device, u64::from(at) * BLOCK, len).await.ok()?))
    };
    let page = load_page(group, local, range.chunk());
    let (page, data) = join(page, data).await;
    if page.is_none() {
        // The chunk has no page any more: look again.
        return Ok(None);
    }
    let Some((at, bytes)) = data else { return Ok(None) };
    let (_, found) = resolve(group, id, range)?;
    let (len, blocks) = (bytes.len(), found.len());
    assert!(len == blocks * BLOCK_LEN, "{len} bytes of {blocks} blocks");
    let all_home = (at..).zip(&found).all(|(at, f)| f.place.slot_block() == Some(at));
    if !all_home {
        return Ok(None);
    }
    if !matches(&bytes, &found) {
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
            let c = state.components.find(id)?;
            c.check_lost()?;
            let local = c.local;
            if start >= c.spec.blocks.next_multiple_of(BLOCKS_PER_CHUNK) {
                return Err(StoreError::Malformed("chunk"));
            }
            let found: Vec<ResolvedBlock> =
                (start..start + BLOCKS_PER_CHUNK).map(|b| state.resolve(local, b)).collect();
            if found.iter().all(ResolvedBlock::is_known) {
                return Ok(found.into_iter().map(|f| f.tag).collect());
            }
            local
        };
        load_page(group, local, chunk).await;
    }
    Err(StoreError::Bad((start..start + BLOCKS_PER_CHUNK).collect()))
}
