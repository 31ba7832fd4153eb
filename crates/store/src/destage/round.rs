//! One round: its steps, in the order that a crash may interrupt.

use super::home_writer::write_home;
use super::log_reader::read_log;
use super::outcome::{describe, install, leaving, put_back};
use super::round_pace::RoundTime;
use super::slots::{decide_slots, take_slots};
use super::task::select;
use crate::group::Group;
use crate::metadata::journal_writer;
use atoll_world::World;
use std::rc::Rc;

/// One round; an error means that a device failed.
pub(super) async fn round<W: World>(group: &Rc<Group<W>>, span: &RoundTime) -> Result<(), ()> {
    let bound = |usual, small| group.world.bound(usual, small);
    let mut tasks = select(&mut group.state.borrow_mut(), bound);
    read_log(group, &mut tasks).await;
    decide_slots(group, &mut tasks).await;
    if group.failed.borrow().is_some() {
        // Then what was found above may come from a device that gave no answer.
        put_back(group, &tasks);
        return Err(());
    }
    take_slots(group, &mut tasks)?;
    tasks.sort_by_key(|t| (t.capacity, t.slot(), t.local, t.chunk));
    if write_home(group, &tasks, span).await.is_err() {
        put_back(group, &tasks);
        return Err(());
    }
    let (records, trim_below) = {
        let mut state = group.state.borrow_mut();
        let less = leaving(&state, &tasks);
        let trim_below = state.log.trim_to(&less);
        if tasks.is_empty() && trim_below == state.log.trim_below() {
            return Ok(());
        }
        (describe(&mut state, &tasks, trim_below), trim_below)
    };
    let region = group.state.borrow().geometry.journal;
    assert!(
        group.journal.borrow().has_room(region, records.body.len()),
        "a checkpoint is taken while half of the journal is free"
    );
    journal_writer::write(group, records, trim_below).await?;
    let mut state = group.state.borrow_mut();
    for task in &tasks {
        install(&mut state, task);
    }
    state.log.trim(trim_below);
    state.components.forget_tombstones_below(trim_below);
    Ok(())
}
