//! Background scrub: reads and verifies every block that has bytes, in the log and at home, and
//! every page, also those that memory has.
//!
//! What does not match is marked, counted and reported; what was marked before, or lies under tags
//! that cannot be read, is counted too. Repair comes from another member. The rate is bounded; a
//! new pass replaces the one that runs, and rate 0 stops it.

use crate::group::Group;
use crate::metadata::page_loader::verify_cached;
use crate::read::{self, Reader};
use atoll_format::chunk::NONE;
use atoll_format::id::ComponentId;
use atoll_format::op::{BlockRange, BlockState, BlockTag};
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK};
use atoll_world::components::{ScrubProgress, StoreError, StoreEvent};
use atoll_world::{Nanos, World};
use std::cell::Cell;
use std::rc::Rc;

/// Blocks verified by one read.
const STEP: u16 = 64;

/// Which pass is the present one.
#[derive(Default)]
pub(crate) struct ScrubTurn(Cell<u64>);

/// Starts a pass; with rate 0 stops the one that runs, whose numbers stay.
pub(crate) fn start<W: World>(
    group: &Rc<Group<W>>,
    turn: &Rc<ScrubTurn>,
    only: Option<&[ComponentId]>,
    bytes_per_second: u64,
) {
    let mine = turn.0.get() + 1;
    turn.0.set(mine);
    let now = group.world.now();
    if bytes_per_second == 0 {
        let scrub = &mut group.state.borrow_mut().scrub;
        if !scrub.idle {
            scrub.ended = Some(now);
        }
        scrub.idle = true;
        return;
    }
    let todo: Vec<ComponentId> = {
        let mut state = group.state.borrow_mut();
        let some: Vec<_> = state
            .components
            .values()
            .filter(|c| c.durable && !c.deleting && only.is_none_or(|ids| ids.contains(&c.id)))
            .map(|c| {
                (
                    c.id,
                    u64::from(c.table.slots_used()) * u64::from(BLOCKS_PER_CHUNK)
                        + c.log_share.blocks(),
                )
            })
            .collect();
        let blocks_total = some.iter().map(|(_, blocks)| blocks).sum();
        state.scrub = ScrubProgress {
            blocks_total,
            began: Some(now),
            everything_at: state.scrub.everything_at,
            ..ScrubProgress::default()
        };
        some.into_iter().map(|(id, _)| id).collect()
    };
    let everything = only.is_none();
    let (group, turn) = (group.clone(), turn.clone());
    group.world.clone().spawn(async move {
        let whole = pass(&group, &turn, mine, todo, bytes_per_second.max(BLOCK)).await;
        // A newer pass has begun to count anew.
        if turn.0.get() == mine {
            let scrub = &mut group.state.borrow_mut().scrub;
            scrub.idle = true;
            scrub.ended = Some(group.world.now());
            scrub.whole = whole;
            if whole {
                if everything {
                    scrub.everything_at = scrub.ended;
                }
                // The total was an estimate by whole chunks.
                scrub.blocks_total = scrub.blocks_checked;
            }
        }
    });
}

/// Returns whether it came to its end.
async fn pass<W: World>(
    group: &Rc<Group<W>>,
    turn: &ScrubTurn,
    mine: u64,
    todo: Vec<ComponentId>,
    bytes_per_second: u64,
) -> bool {
    let stop = || turn.0.get() != mine || group.closing.get() || group.failed.borrow().is_some();
    assert!(bytes_per_second > 0, "a pass that would never end");
    let mut due = group.world.now();
    for id in todo {
        let mut next = 0;
        while let Some(chunk) = next_chunk(group, id, next) {
            next = chunk + 1;
            verify_cached(group, id, chunk).await;
            let tags = read::tags(group, id, chunk).await;
            if stop() {
                return false;
            }
            let known_bad = match &tags {
                Ok(tags) => bad_blocks(chunk, tags),
                Err(StoreError::Bad(blocks)) => blocks.clone(),
                // Its device has failed: nothing of it has good bytes here, and that was told.
                Err(StoreError::Failed(_)) => {
                    count(group, u64::from(BLOCKS_PER_CHUNK), u64::from(BLOCKS_PER_CHUNK));
                    continue;
                }
                // Deleted meanwhile.
                Err(_) => break,
            };
            // Known to be bad since long, perhaps told to somebody who could not mend it then.
            if let Some(&block) = known_bad.first() {
                group.state.borrow_mut().event(StoreEvent::BadBlock { component: id, block });
                count(group, known_bad.len() as u64, known_bad.len() as u64);
            }
            let tags = tags.unwrap_or_default();
            let raw: Vec<bool> = tags.iter().map(|t| t.state == BlockState::Raw).collect();
            for (first, count) in runs(&raw) {
                if stop() {
                    return false;
                }
                let start = chunk * BLOCKS_PER_CHUNK + first;
                verify(group, id, BlockRange { start, count }).await;
                let bytes = u64::from(count) * BLOCK;
                due = due.max(group.world.now())
                    + Nanos(bytes.saturating_mul(1_000_000_000) / bytes_per_second);
                if due > group.world.now() {
                    group.world.sleep_until(due).await;
                }
            }
        }
    }
    !stop()
}

/// The blocks of a chunk that are marked, or whose tags cannot be read.
fn bad_blocks(chunk: u32, tags: &[BlockTag]) -> Vec<u32> {
    let blocks = (chunk * BLOCKS_PER_CHUNK..).zip(tags);
    blocks.filter(|(_, tag)| tag.state == BlockState::Bad).map(|(block, _)| block).collect()
}

fn count<W: World>(group: &Group<W>, checked: u64, bad: u64) {
    assert!(bad <= checked, "{bad} of {checked} blocks are bad");
    let scrub = &mut group.state.borrow_mut().scrub;
    scrub.blocks_checked += checked;
    scrub.blocks_bad += bad;
    scrub.blocks_total = scrub.blocks_total.max(scrub.blocks_checked);
}

fn next_chunk<W: World>(group: &Group<W>, id: ComponentId, from: u32) -> Option<u32> {
    let state = group.state.borrow();
    let c = state.components.find(id).ok()?;
    let mut from = from;
    loop {
        let chunk = c.next_chunk(from)?;
        let in_log =
            c.hot.get(&chunk).is_some_and(|h| !h.pending.is_empty() || h.extra_slot().is_some());
        if in_log || c.table.get(chunk).slot != NONE {
            return Some(chunk);
        }
        from = chunk + 1;
    }
}

/// Runs of blocks with bytes, at most [`STEP`] long.
fn runs(raw: &[bool]) -> Vec<(u32, u16)> {
    let mut runs: Vec<(u32, u16)> = Vec::new();
    for (i, _) in raw.iter().enumerate().filter(|(_, raw)| **raw) {
        match runs.last_mut() {
            Some((first, count)) if *first + u32::from(*count) == i as u32 && *count < STEP => {
                *count += 1;
            }
            _ => runs.push((i as u32, 1)),
        }
    }
    let (found, all) = (runs.iter().map(|&(_, n)| usize::from(n)).sum::<usize>(), raw.len());
    let wanted = raw.iter().filter(|raw| **raw).count();
    assert!(found == wanted, "{found} of {all} blocks are looked at, {wanted} have bytes");
    runs
}

async fn verify<W: World>(group: &Rc<Group<W>>, id: ComponentId, range: BlockRange) {
    assert!(range.is_valid() && range.count <= STEP, "{range:?}");
    let result = read::read(group, id, range, Reader::Scrub).await;
    let mut bad = 0;
    let mut first = None;
    if let Err(StoreError::Bad(_)) = result {
        // One bad block hides the others of the range: each alone.
        for block in range.start..range.end() {
            let one = BlockRange { start: block, count: 1 };
            match read::read(group, id, one, Reader::Scrub).await {
                Ok(_) => {}
                Err(StoreError::Bad(_)) => {
                    bad += 1;
                    first.get_or_insert(block);
                }
                // The group has failed meanwhile, or the component is gone.
                Err(_) => break,
            }
        }
    }
    let mut state = group.state.borrow_mut();
    // What the medium does not give is not marked, it may read well the next time; what is marked
    // has been told.
    let told = |block| state.components.find(id).is_ok_and(|c| c.bad.contains(&block));
    if let Some(block) = first.filter(|&block| !told(block)) {
        state.event(StoreEvent::BadBlock { component: id, block });
    }
    drop(state);
    count(group, u64::from(range.count), bad);
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn runs_cover_what_has_bytes_and_are_short() {
        let mut raw = vec![true; 130];
        raw[3] = false;
        assert_eq!(runs(&raw), [(0, 3), (4, 64), (68, 62)]);
    }
}
