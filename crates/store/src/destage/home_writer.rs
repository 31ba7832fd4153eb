//! Writes the blocks of a round into their slots, in the order of these, and makes them durable.

use super::round_pace::{RoundTime, is_full_pace, keep_pace};
use super::task::DestageTask;
use crate::group::Group;
use crate::limits;
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::{Buf, Durability, World, mutant};
use futures_util::future::join_all;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Writes all bytes home and flushes.
pub(super) async fn write_home<W: World>(
    group: &Rc<Group<W>>,
    tasks: &[DestageTask],
    span: &RoundTime,
) -> Result<(), ()> {
    let mut writes: Vec<(usize, u64, Vec<Buf>)> = Vec::new();
    {
        let state = group.state.borrow();
        for task in tasks {
            let place = state.geometry.capacity[task.capacity];
            let slot = task.slot();
            for (pending, bytes) in task.pending.iter().zip(&task.bytes) {
                let Some(bytes) = bytes else { continue };
                assert!(task.keeps_slot, "bytes for slot {slot}, which is given up");
                assert!(bytes.len() == BLOCK_LEN, "a block of {} bytes", bytes.len());
                let block =
                    u64::from(slot) * u64::from(BLOCKS_PER_CHUNK) + u64::from(pending.block());
                let at = place.slots.at + block * BLOCK;
                assert!(at + BLOCK <= place.slots.end(), "slot {slot} lies outside its region");
                let before = writes.last().filter(|(device, ..)| *device == place.device);
                let free =
                    before.is_none_or(|(_, first, data)| *first + data.len() as u64 * BLOCK <= at);
                assert!(free, "two blocks are written to {at}");
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
    let wanted = tasks.iter().flat_map(|t| &t.bytes).flatten().count();
    assert!(bytes == wanted as u64 * BLOCK, "{bytes} bytes of {wanted} blocks are written");
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
    assert!(moved == wanted, "{moved} of {wanted} blocks were written");
    failed |= flush_home(group, devices).await.is_err();
    if failed {
        return Err(());
    }
    group.state.borrow_mut().counters.destaged_bytes += bytes;
    Ok(())
}

/// What was written home is durable on return.
async fn flush_home<W: World>(group: &Group<W>, devices: BTreeSet<usize>) -> Result<(), ()> {
    if mutant!("destage.home_not_flushed") {
        return Ok(());
    }
    let mut done = Ok(());
    for device in devices {
        if let Err(e) = group.devices[device].flush().await {
            group.device_failed(device, &e);
            done = Err(());
        }
    }
    done
}
