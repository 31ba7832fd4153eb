//! Reads and verifies the blocks of a round where they lie in the log.

use super::round_pace::is_full_pace;
use super::task::DestageTask;
use crate::device::DeviceError;
use crate::group::Group;
use crate::limits;
use atoll_format::checksum::crc;
use atoll_format::op::BlockState;
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::{World, sometimes};
use futures_util::{StreamExt, stream};
use std::rc::Rc;

/// Reads the payload of all tasks, joined where it lies together.
pub(super) async fn read_log<W: World>(group: &Rc<Group<W>>, tasks: &mut [DestageTask]) {
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
    {
        let geometry = &group.state.borrow().geometry;
        let end = geometry.log.at + geometry.log.bytes();
        let inside = |&(first, len, _): &(u32, u32, u32)| {
            let at = u64::from(first) * BLOCK;
            geometry.log.at <= at && at + u64::from(len) * BLOCK <= end
        };
        assert!(runs.iter().all(inside), "a read beyond the log");
        let most = runs.iter().map(|&(_, len, _)| len).max().unwrap_or(0);
        assert!(most <= limits::READ_BLOCKS, "{most} blocks are read together");
    }
    let depth = if is_full_pace(group) { limits::BACKGROUND_DEPTH } else { limits::PACED_DEPTH };
    let reads = runs.into_iter().map(|(first, count, _)| async move {
        let at = u64::from(first) * BLOCK;
        (first, count, group.log_device().read(at, count * BLOCK as u32).await)
    });
    let mut reads = stream::iter(reads).buffered(depth);
    let mut next = 0;
    let mut again = Vec::new();
    while let Some((first, count, result)) = reads.next().await {
        if let Err(e) = &result {
            group.device_failed(0, e);
        }
        while let Some(&(at, t, p)) = wanted.get(next)
            && at < first + count
        {
            next += 1;
            let from = (at - first) as usize * BLOCK_LEN;
            let block = result.as_ref().map(|bytes| bytes.slice(from..from + BLOCK_LEN));
            let good = block.ok().filter(|block| crc(block) == tasks[t].pending[p].crc);
            if good.is_none() {
                again.push((at, t, p));
            }
            tasks[t].bytes[p] = good;
        }
    }
    let all = wanted.len();
    assert!(next == all, "{next} of {all} blocks were read from the log");
    drop(reads);
    read_again(group, tasks, again).await;
}

/// Reads blocks that were not good among others once more, alone: a transfer may fail where the
/// medium is good. What does not match then is bad. What the device did not give at all it may
/// give a moment later, and is asked for a few times: what counts as bad here is lost, perhaps
/// the last copy of it, as soon as the log is trimmed.
async fn read_again<W: World>(
    group: &Rc<Group<W>>,
    tasks: &mut [DestageTask],
    mut again: Vec<(u32, usize, usize)>,
) {
    let mut bad = Vec::new();
    for attempt in 0..limits::READ_TRIES {
        if attempt > 0 && !again.is_empty() {
            sometimes!("store.destage.log_block_not_given");
            group.world.sleep(limits::READ_PAUSE).await;
        }
        for (at, t, p) in std::mem::take(&mut again) {
            match group.log_device().read(u64::from(at) * BLOCK, BLOCK as u32).await {
                Ok(block) if crc(&block) == tasks[t].pending[p].crc => {
                    tasks[t].bytes[p] = Some(block);
                }
                Ok(_) => bad.push((t, p)),
                Err(DeviceError::Read(_)) => again.push((at, t, p)),
                // A device that gives no answer says nothing about its blocks.
                Err(e @ DeviceError::Failed(_)) => return group.device_failed(0, &e),
            }
        }
    }
    bad.extend(again.into_iter().map(|(_, t, p)| (t, p)));
    for (t, p) in bad {
        sometimes!("store.destage.bad_log_block");
        let (task, pending) = (&tasks[t], tasks[t].pending[p]);
        let mut state = group.state.borrow_mut();
        let hot = state.components.get(task.local).and_then(|c| c.hot.get(&task.chunk));
        // It may have been written anew during the pauses: that is good.
        if hot.is_some_and(|hot| hot.pending_at(pending.block()) == Some(&pending)) {
            let block = task.chunk * BLOCKS_PER_CHUNK + u32::from(pending.block());
            state.mark_bad(task.local, block);
        }
    }
}
