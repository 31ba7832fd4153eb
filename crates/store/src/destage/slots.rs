//! Which chunks of a round get a slot, keep theirs, or give it up.

use super::task::DestageTask;
use crate::group::Group;
use crate::metadata::page_loader::load_page;
use crate::state::State;
use crate::state::chunk::Pending;
use crate::state::page_cache::Page;
use atoll_format::chunk::NONE;
use atoll_format::op::BlockState;
use atoll_world::components::FailureCause;
use atoll_world::{World, mutant};
use std::rc::Rc;

/// Finds out which chunks have no bytes left and free their slots.
pub(super) async fn decide_slots<W: World>(group: &Rc<Group<W>>, tasks: &mut [DestageTask]) {
    for task in tasks.iter_mut() {
        let placed = task.whole.as_ref().is_some_and(|w| w.slot().is_some());
        let any_bytes = placed || task.bytes.iter().any(Option::is_some);
        let removes = task.whole.is_some() || task.bytes.iter().any(Option::is_none);
        if any_bytes || task.home == NONE || !removes {
            task.keeps_slot = any_bytes || task.home != NONE;
            continue;
        }
        if task.whole.is_some() {
            task.keeps_slot = false;
            continue;
        }
        let page = load_page(group, task.local, task.chunk).await;
        task.keeps_slot = any_block_stays(&group.state.borrow(), task, page.as_ref());
    }
}

/// Whether a block that the round does not take has bytes in the slot.
fn any_block_stays(state: &State, task: &DestageTask, page: Option<&Page>) -> bool {
    if mutant!("destage.slot_given_up") {
        return false;
    }
    let hot = state.components.get(task.local).and_then(|c| c.hot.get(&task.chunk));
    let stays = |block: u8| {
        if task.pending.binary_search_by_key(&block, Pending::block).is_ok() {
            return false;
        }
        let entry = hot
            .and_then(|h| h.overlay_at(block))
            .or_else(|| page.map(|p| p.entry(block)))
            .unwrap_or_else(|| task.entry.base());
        entry.state == BlockState::Raw
    };
    (0..=u8::MAX).any(stays)
}

/// Takes the slots that were set aside for new chunks.
pub(super) fn take_slots<W: World>(
    group: &Rc<Group<W>>,
    tasks: &mut [DestageTask],
) -> Result<(), ()> {
    let mut state_guard = group.state.borrow_mut();
    for task in tasks.iter_mut() {
        if !task.keeps_slot || task.home != NONE {
            continue;
        }
        assert!(task.new_slot.is_none(), "a second slot for chunk {}", task.chunk);
        let state = &mut *state_guard;
        let hot = state.components.get_mut(task.local).and_then(|c| c.hot.get_mut(&task.chunk));
        let reserved = hot.map(|hot| &mut hot.reserved);
        task.new_slot = state.capacity.take_slot(task.capacity, reserved);
        if task.new_slot.is_none() {
            drop(state_guard);
            let why = "no slot for data that was accepted: space accounting is wrong";
            group.fail(why, FailureCause::Broken);
            return Err(());
        }
    }
    Ok(())
}
