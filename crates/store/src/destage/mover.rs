//! The background task that decides what comes next: a round, a checkpoint, or nothing yet.

use super::round::round;
use super::round_pace::{RoundTime, rest_until_after};
use crate::audit::audit;
use crate::group::Group;
use crate::limits;
use crate::metadata::checkpoint;
use atoll_format::chunk::JOURNAL_BATCH_MAX;
use atoll_world::components::StoreEvent;
use atoll_world::{Nanos, World};
use std::collections::BTreeMap;
use std::rc::Rc;

enum MoverStep {
    Wait(Option<Nanos>),
    Round,
    Checkpoint,
    End,
}

/// Moves until the store fails or is closed.
pub(crate) async fn run<W: World>(group: Rc<Group<W>>) {
    let mut rest_until = Nanos::ZERO;
    loop {
        let wake = group.mover_work.notified();
        let begun = group.world.now();
        let rewrite_at = group.state.borrow().rewrite_at;
        match sooner(next(&group, rest_until), rewrite_at, begun) {
            MoverStep::End => break,
            MoverStep::Wait(None) => {
                group.state.borrow_mut().pace.mover_sleeps();
                wake.await;
            }
            MoverStep::Wait(Some(until)) => {
                group.state.borrow_mut().pace.mover_sleeps();
                // Whichever comes first; both only mean "look again".
                let _ = group.world.timeout_at(until, wake).await;
            }
            MoverStep::Checkpoint => {
                {
                    let mut state = group.state.borrow_mut();
                    state.capacity.begin_round();
                    state.rewrite_at = None;
                }
                let done = checkpoint::take(&group).await;
                group.state.borrow_mut().capacity.end_round();
                if done.is_err() {
                    break;
                }
                audit(&group, "after a checkpoint");
            }
            MoverStep::Round => {
                group.state.borrow_mut().capacity.begin_round();
                let span = RoundTime::begin(begun);
                let done = round(&group, &span).await;
                group.state.borrow_mut().capacity.end_round();
                if done.is_err() && group.failed.borrow().is_some() {
                    break;
                }
                audit(&group, "after a round of destage");
                group.trimmed.notify_all();
                rest_until = rest_until_after(&group, &span);
            }
        }
        group.state.borrow_mut().pace.mover_is_awake();
    }
    group.mover_ended.set(true);
    group.ended.notify_all();
}

/// What comes next, where a checkpoint is due at that time.
fn sooner(step: MoverStep, checkpoint_at: Option<Nanos>, now: Nanos) -> MoverStep {
    match (step, checkpoint_at) {
        (MoverStep::Wait(_) | MoverStep::Round, Some(at)) if at <= now => MoverStep::Checkpoint,
        (MoverStep::Wait(until), Some(at)) => {
            MoverStep::Wait(Some(until.map_or(at, |until| until.min(at))))
        }
        (step, _) => step,
    }
}

fn next<W: World>(group: &Group<W>, rest_until: Nanos) -> MoverStep {
    if group.failed.borrow().is_some() {
        return MoverStep::End;
    }
    let mut state = group.state.borrow_mut();
    let position = *group.journal.borrow();
    for device in &group.devices {
        if let Some(news) = device.slow_news() {
            state.event(StoreEvent::Slow(news));
        }
    }
    if group.closing.get() {
        // The log has ended first, so nothing is in flight.
        if !group.log_ended.get() {
            return MoverStep::Wait(None);
        }
        let unsaved = state.components.values().any(|c| c.unsaved_from.is_some() || !c.is_saved());
        let clean = position.used == 0 && state.capacity.dirty_blocks() == 0 && !unsaved;
        return if clean && state.components.tombstones().is_empty() {
            MoverStep::End
        } else {
            MoverStep::Checkpoint
        };
    }
    let small_state: usize = state
        .components
        .values()
        .filter(|c| c.unsaved_from.is_some_and(|s| s < state.log.head_segment()) || !c.is_saved())
        .map(|c| c.encoded_len() + 64)
        .sum();
    if position.used > group.checkpoint_at
        || small_state > JOURNAL_BATCH_MAX / 2
        || state.capacity.is_too_dirty()
    {
        return MoverStep::Checkpoint;
    }
    let now = group.world.now();
    let fill = state.log.fill();
    let has_blocks = state.log.blocks() > 0;
    let can_trim = state.log.trim_to(&BTreeMap::new()) > state.log.trim_below();
    let idle_at = state.pace.last_write() + group.destage_start.idle;
    let urgent = state.pace.is_urgent(fill);
    state.pace.wake_mover_at(group.destage_start.fill);
    if has_blocks || can_trim {
        if urgent {
            return MoverStep::Round;
        }
        if fill >= group.destage_start.fill || now >= idle_at {
            if now < rest_until {
                state.pace.wake_mover_at(limits::FILL_URGENT);
                return MoverStep::Wait(Some(rest_until));
            }
            return MoverStep::Round;
        }
        return MoverStep::Wait(Some(idle_at));
    }
    state.pace.wake_mover_at(0);
    let checkpoint_at = state.pace.last_write() + limits::IDLE_CHECKPOINT;
    if position.used > 0 {
        if now >= checkpoint_at {
            return MoverStep::Checkpoint;
        }
        return MoverStep::Wait(Some(checkpoint_at));
    }
    MoverStep::Wait(None)
}
