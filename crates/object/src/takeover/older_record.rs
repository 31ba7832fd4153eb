//! A record that is older than its members: the directory was put back to an older state (row 68
//! of `docs/faults.md`).
//!
//! What members have proves it:
//!
//! - The directory reaches an epoch before any member is asked to promise it (R6). So none can have
//!   promised more than the directory has reached.
//! - In one epoch an absent member is attached only after the record has called it resyncing (R3),
//!   and the record says which session was the last when it was written. So none that is absent in
//!   the record has a later one.
//! - A member that is resyncing in the record is not complete.
//!
//! In one epoch the last two are not quite certain: a promotion may not have been confirmed, or a
//! drop while the directory did not answer for long. So they count only if the member has a newer
//! operation than an active one that answers. Then it has all that this one has (R2), and what
//! follows is right in any case.
//!
//! Then the record's states mean nothing: what it calls active may lack what was acknowledged
//! since. Among the members that have promised the highest epoch, and are complete, are those that
//! were active last. The others of these were dropped in it, and have a part of the operations of
//! its owner, from the beginning. So **those with the newest operation have all that was
//! acknowledged**. They are active again, and the others are compared with them whole. That is
//! believed when every member has answered, or the repair delay is over.

use super::error::TakeoverError;
use super::fence::first_endpoint;
use crate::ctx::{Ctx, Protocol};
use crate::events::Event;
use crate::limits::MEND;
use crate::member_client::{MemberClient, MemberError};
use atoll_format::id::{ComponentId, Epoch, HostId, Seq, Session};
use atoll_format::record::{LegRecord, MemberRecord, MemberState, ObjectRecord};
use atoll_transport::CallError;
use atoll_world::components::ComponentStatus;
use atoll_world::{StoreError, World, sometimes};
use std::collections::BTreeMap;
use std::rc::Rc;

/// What is known of a member, whatever the record says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// It is there.
    Here {
        /// The highest epoch that it has promised.
        fenced: Epoch,
        /// The last session that was opened.
        session: Session,
        /// Its newest operation.
        newest: Seq,
        /// It lacks nothing that it has acknowledged, and nothing from before its resync.
        complete: bool,
    },
    /// What it held is gone.
    Lost,
    /// It does not answer.
    Silent,
}

type Answers = BTreeMap<ComponentId, Known>;

/// The record to take over from: as it is, or, if it is older than its members, as they know it,
/// and what there is to tell once the directory has it. What was read may be old only here, and
/// members have promised what is in the directory: then the record has moved, and cannot be
/// written.
///
/// # Errors
/// Members have to be waited for.
pub(super) async fn reinstate_if_older<W: World, P: Protocol>(
    ctx: &Rc<Ctx<W, P>>,
    record: ObjectRecord,
) -> Result<(ObjectRecord, Option<Event>), TakeoverError> {
    let answers = ask_all(ctx, &record).await;
    let Some(promised) = older_than(&record, &answers) else { return Ok((record, None)) };
    sometimes!("takeover.record_is_older_than_its_members");
    if promised == record.epoch {
        sometimes!("takeover.record_is_older_in_its_epoch");
    }
    let settles = ctx.has_waited_for_members(&record);
    let next = reinstate(&record, &answers, settles, ctx.world.unix_ms()).map_err(|on| {
        sometimes!("takeover.waits_for_who_may_know_more");
        let mut on: Vec<String> = on.into_iter().map(|host| ctx.host_name(host)).collect();
        on.sort();
        on.dedup();
        TakeoverError::NotNow(format!(
            "the directory was put back to an older state, and what it says of the copies is not \
             true any more. The newest of them is not known before those on {} answer; they are \
             waited for, as long as the repair delay says",
            on.join(", ")
        ))
    })?;
    check_reinstated(&record, &next, &answers);
    let (object, epoch) = (record.id, record.epoch);
    Ok((next, Some(Event::RecordWasOlder { object, epoch, promised })))
}

/// Asks every member within reach, also those that the record calls absent. Not those that it calls
/// lost: an owner has served without what they had.
async fn ask_all<W: World, P: Protocol>(ctx: &Rc<Ctx<W, P>>, record: &ObjectRecord) -> Answers {
    let client = MemberClient::new(ctx.clone(), record.epoch);
    let ask = |member: MemberRecord| {
        let (client, to) = (&client, first_endpoint(record, &member));
        async move {
            let known = match member.state {
                MemberState::Absent { lost: true, .. } => Known::Lost,
                _ if !ctx.is_reachable(member.place()) => Known::Silent,
                _ => {
                    let mut answer = client.status(to, MEND).await;
                    // It may be on another shard than was thought, which is known now.
                    if answer == Err(MemberError::NoAnswer(CallError::Unreachable)) {
                        answer = client.status(to, MEND).await;
                    }
                    known(answer)
                }
            };
            (member.component, known)
        }
    };
    let calls = record.members().map(|(_, member)| ask(*member));
    futures_util::future::join_all(calls).await.into_iter().collect()
}

fn known(answer: Result<ComponentStatus, MemberError>) -> Known {
    match answer {
        Ok(status) if status.lost => Known::Lost,
        Ok(status) => Known::Here {
            fenced: status.promise.fenced,
            session: status.session,
            newest: status.promise.newest,
            complete: !status.doubtful && status.incomplete.is_none(),
        },
        Err(MemberError::Store(StoreError::NoComponent(_) | StoreError::Failed(_))) => Known::Lost,
        Err(_) => Known::Silent,
    }
}

/// The highest epoch that members have promised, if something proves that the record is older than
/// they are.
fn older_than(record: &ObjectRecord, answers: &Answers) -> Option<Epoch> {
    let promised = highest(answers);
    let is_older =
        promised > record.epoch || record.legs.iter().any(|leg| is_older_leg(record, leg, answers));
    is_older.then_some(promised)
}

/// Whether a member has what the active ones of the record lack, and was attached in the record's
/// epoch since the record was written.
fn is_older_leg(record: &ObjectRecord, leg: &LegRecord, answers: &Answers) -> bool {
    let newest = |m: &MemberRecord| match answers.get(&m.component) {
        Some(Known::Here { newest, .. }) => Some(*newest),
        _ => None,
    };
    let active = leg.members.iter().filter(|m| m.state.is_active()).filter_map(newest).max();
    // Without an answer nobody knows what it has: all that was acknowledged, as a rule.
    let Some(active) = active else { return false };
    leg.members.iter().any(|member| {
        let Some(Known::Here { session, complete, .. }) = answers.get(&member.component) else {
            return false;
        };
        let is_later = match member.state {
            MemberState::Active => false,
            MemberState::Absent { .. } => record.attached.is_some_and(|last| session.attach > last),
            MemberState::Resyncing { .. } => *complete,
        };
        is_later && session.epoch == record.epoch && newest(member) > Some(active)
    })
}

/// The highest epoch that any member has promised.
fn highest(answers: &Answers) -> Epoch {
    let fenced = |known: &Known| match known {
        Known::Here { fenced, .. } => Some(*fenced),
        Known::Lost | Known::Silent => None,
    };
    answers.values().filter_map(fenced).max().unwrap_or_default()
}

/// The record as its members know it, in the highest epoch that they have promised.
/// `settles`: others have been waited for long enough.
///
/// # Errors
/// The hosts whose members may know more, or all if nobody does who has answered.
fn reinstate(
    record: &ObjectRecord,
    answers: &Answers,
    settles: bool,
    at_ms: u64,
) -> Result<ObjectRecord, Vec<HostId>> {
    let mut next = record.clone();
    next.epoch = highest(answers);
    next.attached = None;
    for leg in &mut next.legs {
        let known = |m: &MemberRecord| answers.get(&m.component).copied().unwrap_or(Known::Silent);
        let silent = leg.members.iter().filter(|m| known(m) == Known::Silent);
        let silent: Vec<HostId> = silent.map(|m| m.host).collect();
        let complete = |m: &MemberRecord| match known(m) {
            Known::Here { fenced, newest, complete: true, .. } => Some((fenced, newest)),
            _ => None,
        };
        let best = leg.members.iter().filter_map(complete).max();
        // A leg whose members were all out of that epoch had others in it.
        let is_of_it = best.is_some_and(|(fenced, _)| fenced == next.epoch);
        let is_known = silent.is_empty() && is_of_it;
        let Some(best) = best.filter(|_| is_known || settles) else {
            let all = leg.members.iter().map(|m| m.host);
            return Err(if silent.is_empty() { all.collect() } else { silent });
        };
        for member in &mut leg.members {
            member.state = if complete(member) == Some(best) {
                MemberState::Active
            } else {
                let lost = known(member) == Known::Lost;
                MemberState::Absent { since: Seq(0), at_ms, lost }
            };
            if let Known::Here { newest, .. } = known(member) {
                next.seq_base = next.seq_base.max(newest);
            }
        }
    }
    Ok(next)
}

/// What a record that was reinstated keeps.
fn check_reinstated(before: &ObjectRecord, after: &ObjectRecord, answers: &Answers) {
    assert!(after.epoch >= before.epoch && after.seq_base >= before.seq_base, "it was older");
    assert_eq!((before.id, before.size_bytes), (after.id, after.size_bytes));
    for ((_, was), (_, now)) in before.members().zip(after.members()) {
        assert_eq!((was.component, was.place()), (now.component, now.place()));
        let answer = answers.get(&now.component);
        let is_complete = matches!(answer, Some(Known::Here { complete: true, .. }));
        assert!(is_complete || !now.state.is_active(), "{now:?} may not serve");
    }
}

#[cfg(test)]
mod tests {
    use super::super::settle::tests::record;
    use super::*;

    const ACTIVE: MemberState = MemberState::Active;

    /// Promised that epoch, was attached in it for the n-th time, and has that operation.
    fn here(fenced: u32, attach: u32, newest: u64) -> Known {
        let (fenced, newest) = (Epoch(fenced), Seq(newest));
        Known::Here { fenced, session: Session { epoch: fenced, attach }, newest, complete: true }
    }

    fn incomplete(known: Known) -> Known {
        match known {
            Known::Here { fenced, session, newest, .. } => {
                Known::Here { fenced, session, newest, complete: false }
            }
            other => other,
        }
    }

    fn absent(since: u64, lost: bool) -> MemberState {
        MemberState::Absent { since: Seq(since), at_ms: 77, lost }
    }

    fn answers(all: &[Known]) -> Answers {
        all.iter().enumerate().map(|(n, known)| (ComponentId(n as u64), *known)).collect()
    }

    #[test]
    fn what_members_have_proves_that_a_record_is_older() {
        // In epoch 3, when session 4 was the last.
        let older = |first: MemberState, known: Known| {
            let before = ObjectRecord { attached: Some(4), ..record(&[first, ACTIVE]) };
            older_than(&before, &answers(&[known, here(3, 1, 89)])).map(|epoch| epoch.0)
        };
        let resyncing = MemberState::Resyncing { from: Seq(40) };
        for (first, known, expected) in [
            (ACTIVE, here(3, 9, 90), None),
            (ACTIVE, here(4, 1, 90), Some(4)),
            (absent(40, false), here(2, 9, 90), None),
            (absent(40, false), here(3, 4, 90), None),
            (absent(40, false), here(3, 5, 90), Some(3)),
            (absent(40, false), here(3, 5, 89), None),
            (absent(40, false), incomplete(here(3, 5, 90)), Some(3)),
            (absent(40, false), here(4, 1, 90), Some(4)),
            (absent(40, false), Known::Silent, None),
            (absent(40, false), Known::Lost, None),
            (resyncing, incomplete(here(3, 9, 90)), None),
            (resyncing, here(2, 9, 90), None),
            (resyncing, here(3, 4, 90), Some(3)),
            (resyncing, here(3, 4, 89), None),
            (resyncing, incomplete(here(4, 4, 90)), Some(4)),
        ] {
            assert_eq!(older(first, known), expected, "{first:?} {known:?}");
        }
        // The active one has what was acknowledged, whatever the other has.
        for known in [Known::Silent, Known::Lost] {
            for state in [absent(40, false), resyncing] {
                let before = ObjectRecord { attached: Some(4), ..record(&[state, ACTIVE]) };
                assert_eq!(older_than(&before, &answers(&[here(3, 5, 90), known])), None);
            }
        }
        let unknown = record(&[absent(40, false), ACTIVE]);
        assert_eq!(older_than(&unknown, &answers(&[here(3, 5, 90), here(3, 1, 89)])), None);
    }

    /// The states that those members get, or who is waited for.
    fn states(known: &[Known], settles: bool) -> Result<Vec<MemberState>, Vec<HostId>> {
        // By the record, which is in epoch 3, the first has missed all that the others have.
        let mut states = vec![ACTIVE; known.len()];
        states[0] = absent(40, false);
        let (before, answers) = (record(&states), answers(known));
        let after = reinstate(&before, &answers, settles, 77)?;
        check_reinstated(&before, &after, &answers);
        assert_eq!(after.epoch, highest(&answers));
        assert!(after.seq_base >= Seq(500), "above all that was ever used (S7)");
        Ok(after.members().map(|(_, m)| m.state).collect())
    }

    #[test]
    fn who_has_the_newest_of_the_highest_epoch_is_active() {
        for (known, expected) in [
            ([here(7, 1, 500), here(3, 1, 900)], [ACTIVE, absent(0, false)]),
            ([here(7, 1, 500), here(7, 1, 500)], [ACTIVE, ACTIVE]),
            ([here(7, 1, 501), here(7, 2, 500)], [ACTIVE, absent(0, false)]),
            ([here(7, 1, 500), incomplete(here(7, 1, 501))], [ACTIVE, absent(0, false)]),
            ([here(2, 1, 500), here(7, 1, 500)], [absent(0, false), ACTIVE]),
            ([here(7, 1, 500), Known::Lost], [ACTIVE, absent(0, true)]),
        ] {
            assert_eq!(states(&known, false), Ok(expected.to_vec()), "{known:?}");
        }
    }

    #[test]
    fn who_may_know_more_is_waited_for_as_long_as_the_repair_delay_says() {
        let damaged = incomplete(here(7, 1, 500));
        for (known, on, at_last) in [
            ([here(7, 1, 500), Known::Silent], &[1][..], Some([ACTIVE, absent(0, false)])),
            ([Known::Silent, here(7, 1, 500)], &[0], Some([absent(0, false), ACTIVE])),
            // Who was active in epoch 7 is not in the record, or is damaged.
            ([damaged, here(3, 1, 400)], &[0, 1], Some([absent(0, false), ACTIVE])),
            ([damaged, Known::Silent], &[1], None),
        ] {
            let on: Vec<HostId> = on.iter().map(|&n| HostId(n)).collect();
            assert_eq!(states(&known, false), Err(on), "{known:?}");
            let settled = states(&known, true).ok();
            assert_eq!(settled, at_last.map(|s| s.to_vec()), "{known:?}");
        }
    }

    #[test]
    fn a_leg_without_anybody_of_the_last_epoch_is_not_decided_by_another_leg() {
        let mut two = record(&[ACTIVE]);
        let mut other = record(&[ACTIVE, ACTIVE]).legs.remove(0);
        other.members.remove(0);
        two.legs.push(other);
        let answers = answers(&[here(7, 1, 500), here(3, 1, 500)]);
        assert_eq!(reinstate(&two, &answers, false, 77), Err(vec![HostId(1)]));
    }
}
