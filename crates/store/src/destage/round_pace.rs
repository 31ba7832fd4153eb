//! Lets a round take as long as guests need it to: the pauses between its writes.

use crate::group::Group;
use crate::limits;
use crate::state::pace::DestageRate;
use atoll_world::{Nanos, World, sometimes};
use std::cell::Cell;

/// A round under way, as a span of time.
pub(super) struct RoundTime {
    begun: Nanos,
    /// How much of it were pauses.
    paused: Cell<Nanos>,
}

impl RoundTime {
    pub(super) fn begin(now: Nanos) -> Self {
        Self { begun: now, paused: Cell::new(Nanos::ZERO) }
    }
}

/// How fast destage is to move now.
fn rate<W: World>(group: &Group<W>, now: Nanos) -> DestageRate {
    let mut state = group.state.borrow_mut();
    let (fill, written) = (state.log.fill(), state.log_blocks_written());
    state.pace.rate(group.destage_start, fill, written, group.closing.get(), now)
}

pub(super) fn is_full_pace<W: World>(group: &Group<W>) -> bool {
    matches!(rate(group, group.world.now()), DestageRate::Full)
}

/// When a round that began then may have moved so many blocks.
fn due<W: World>(group: &Group<W>, begun: Nanos, blocks: usize) -> Nanos {
    let now = group.world.now();
    match rate(group, now) {
        DestageRate::Full | DestageRate::Readers => Nanos::ZERO,
        DestageRate::PerSecond(rate) => begun + Nanos(blocks as u64 * 1_000_000_000 / rate),
    }
}

/// Waits until the round may have moved so many blocks; looks again whenever writers may have
/// become faster.
pub(super) async fn keep_pace<W: World>(group: &Group<W>, span: &RoundTime, blocks: usize) {
    let from = group.world.now();
    loop {
        let wake = group.mover_work.notified();
        let (now, due) = (group.world.now(), due(group, span.begun, blocks));
        if now >= due || group.failed.borrow().is_some() {
            span.paused.set(span.paused.get() + now.since(from));
            return;
        }
        sometimes!("store.destage.keeps_pace");
        let until = due.min(now + limits::PACE_LOOK);
        {
            let mut state = group.state.borrow_mut();
            state.pace.wake_mover_at(limits::FILL_URGENT);
            state.pace.mover_sleeps();
        }
        // Whichever comes first; both only mean "look again".
        let _ = group.world.timeout_at(until, wake).await;
        group.state.borrow_mut().pace.mover_is_awake();
    }
}

/// When the next round begins.
pub(super) fn rest_until_after<W: World>(group: &Group<W>, span: &RoundTime) -> Nanos {
    let now = group.world.now();
    match rate(group, now) {
        DestageRate::Readers => now + (now.since(span.begun) - span.paused.get()),
        // The pauses were in the round.
        DestageRate::Full | DestageRate::PerSecond(_) => now,
    }
}
