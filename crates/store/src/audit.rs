//! Now and then, in simulation: what does not add up ends the run where it began.

use crate::group::Group;
use crate::log::queue::Effect;
use atoll_format::id::Seq;
use atoll_world::World;
use std::collections::BTreeMap;

/// Compares all that is counted with what it counts, if this world wants that.
///
/// # Panics
/// Something does not add up; `moment` says when it was looked at.
pub(crate) fn audit<W: World>(group: &Group<W>, moment: &str) {
    if !group.world.audits() {
        return;
    }
    if let Err(why) = group.state.borrow().audit() {
        panic!("{moment}: {why}");
    }
    audit_queue(group, moment);
}

/// What waits for the log is what was set aside and counted for it.
fn audit_queue<W: World>(group: &Group<W>, moment: &str) {
    if group.failed.borrow().is_some() {
        // What waited was dropped, and what was counted for it is of no use any more.
        return;
    }
    let (state, queue) = (group.state.borrow(), group.queue.borrow());
    let mut queued: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    let mut placing = vec![0; state.capacity.devices()];
    let mut newest: BTreeMap<u32, Seq> = BTreeMap::new();
    for item in queue.in_flight.iter().chain(&queue.items) {
        let (local, chunk) = match &item.effect {
            Effect::Nothing => continue,
            Effect::Append { local, op, .. } | Effect::Place { local, op, .. } => {
                let before = newest.insert(*local, op.id.seq).unwrap_or_default();
                assert!(before < op.id.seq, "{moment}: {:?} behind {before:?}", op.id);
                (*local, Some(op.range.chunk()))
            }
            Effect::CopyIn { local, chunk, .. } => (*local, Some(*chunk)),
            Effect::Attach { local, .. } => {
                newest.remove(local);
                (*local, None)
            }
            Effect::Fence { local, .. }
            | Effect::Complete { local, .. }
            | Effect::SetTickets { local, .. }
            | Effect::Create { local, .. }
            | Effect::Delete { local }
            | Effect::Grow { local, .. } => (*local, None),
        };
        let Some(c) = state.components.get(local) else {
            panic!("{moment}: something waits for number {local}, which does not exist");
        };
        if let Some(chunk) = chunk {
            *queued.entry((local, chunk)).or_default() += 1;
        }
        match &item.effect {
            Effect::Place { slot, .. } => {
                placing[usize::from(c.device)] += 1;
                let used = state.capacity.is_slot_used(usize::from(c.device), *slot);
                assert!(used, "{moment}: slot {slot} is written, and free");
            }
            Effect::Fence { epoch, .. } => {
                assert!(*epoch <= c.queued_fence, "{moment}: fence of {} is forgotten", c.id);
            }
            Effect::Attach { session, .. } => {
                let known = session.epoch <= c.queued_fence && *session <= c.queued_session;
                assert!(known, "{moment}: {session:?} of {} is forgotten", c.id);
            }
            Effect::Delete { .. } => assert!(c.deleting, "{moment}: {} is in use", c.id),
            Effect::Create { .. } => assert!(!c.durable, "{moment}: {} is made twice", c.id),
            _ => {}
        }
    }
    for c in state.components.values() {
        for (&chunk, hot) in &c.hot {
            let waits = queued.remove(&(c.local, chunk)).unwrap_or(0);
            let said = hot.queued;
            let of = c.id;
            assert!(waits == said, "{moment}: {waits} wait for {chunk} of {of}, not {said}");
        }
        let last = newest.get(&c.local).copied().unwrap_or_default();
        let accepted = c.session_seq;
        assert!(last <= accepted, "{moment}: {last:?} of {} above {accepted:?}", c.id);
    }
    assert!(queued.is_empty(), "{moment}: waiting, and not counted: {queued:?}");
    for (device, placing) in placing.into_iter().enumerate() {
        let said = state.capacity.slots_placing(device);
        assert!(said == placing, "{moment}: {placing} slots are written, not {said}");
    }
    for &local in state.components.hints() {
        assert!(state.components.get(local).is_some(), "{moment}: hint of {local}, deleted");
    }
    let (journal, region) = (group.journal.borrow(), state.geometry.journal);
    assert!(journal.used <= region.len, "{moment}: {journal:?} in {region:?}");
    assert!(journal.durable_seq + 1 == journal.seq, "{moment}: {journal:?}");
    let len = state.geometry.log.segment_len;
    let ends_at = state.geometry.log.segment_at(state.log.head_segment()) + len;
    let footer = queue.footer.encode(state.geometry.salt, state.log.head_segment(), ends_at);
    let end = state.log.head_offset() + footer.len() as u64;
    assert!(end <= len, "{moment}: the footer would lie over batches: {end} of {len}");
}
