//! Asks the members of an object for a takeover: every active one promises to refuse older epochs
//! (R6) and is attached, those under resync are attached (R3).

use super::error::{TakeoverError, inaccessible};
use super::settle::{FenceAnswer, FenceAnswers, NotEnough, are_enough};
use crate::ctx::{Ctx, Protocol};
use crate::limits::{CALL_DEADLINE, GRACE, MEND, RETRY_EVERY, START_PATIENCE};
use crate::member_client::{Attached, Endpoint, MemberClient, MemberError};
use atoll_format::id::{ComponentId, Seq, Session};
use atoll_format::record::{MemberRecord, MemberState, ObjectRecord};
use atoll_transport::CallError;
use atoll_world::{StoreError, World, mutant, sometimes};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Fences and attaches every active member. Returns when all have answered, or when the rest
/// cannot be reached and every leg has one.
pub(super) async fn fence_all<W: World, P: Protocol>(
    ctx: &Rc<Ctx<W, P>>,
    members: &MemberClient<W, P>,
    record: &ObjectRecord,
) -> Result<(FenceAnswers, BTreeSet<ComponentId>), TakeoverError> {
    let active: Vec<(usize, MemberRecord)> =
        record.members().filter(|(_, m)| m.state.is_active()).map(|(leg, m)| (leg, *m)).collect();
    let calls = active.iter().map(|(_, member)| fence_one(ctx, members, record, *member));
    let answers = futures_util::future::join_all(calls).await;
    let mut fenced = FenceAnswers::new();
    let mut lost = BTreeSet::new();
    for ((_, member), answer) in active.iter().zip(answers) {
        match answer {
            Ok(answer) => {
                fenced.insert(member.component, answer);
            }
            Err(Refusal::Newer) => return Err(TakeoverError::Lost),
            Err(Refusal::Unreachable) => {}
            Err(Refusal::Lost) => {
                lost.insert(member.component);
            }
        }
    }
    match are_enough(record, &fenced, &lost, ctx.may_settle_for_less(record)) {
        Ok(()) => Ok((fenced, lost)),
        Err(NotEnough::NoneAnswered { leg }) => Err(inaccessible(ctx, record, leg)),
        Err(NotEnough::OthersMayCome { leg, on }) => {
            let on: Vec<String> = on.into_iter().map(|host| ctx.host_name(host)).collect();
            Err(TakeoverError::NotNow(format!(
                "the copies of leg {leg} that answer have lost some of what they had acknowledged; \
                 the one on {} is waited for, as long as the repair delay says",
                on.join(", ")
            )))
        }
    }
}

enum Refusal {
    /// A higher epoch was promised.
    Newer,
    /// No answer in time.
    Unreachable,
    /// Its disk group has failed or does not have it.
    Lost,
}

async fn fence_one<W: World, P: Protocol>(
    ctx: &Rc<Ctx<W, P>>,
    members: &MemberClient<W, P>,
    record: &ObjectRecord,
    member: MemberRecord,
) -> Result<FenceAnswer, Refusal> {
    let world = &ctx.world;
    let to = first_endpoint(record, &member);
    // A host that cannot be reached gets a moment to come up, not the whole wait of a lease. But
    // one that has just started itself may not know yet where the others are: without patience it
    // would drop every copy but its own. One that has said that it stops gets none.
    let reach_until = (world.now() + MEND).max(ctx.started + START_PATIENCE);
    let mut held_until = None;
    while !mutant!("takeover.does_not_fence") {
        match members.fence(to, record.id, record.served, world.now() + CALL_DEADLINE).await {
            Ok(None) => break,
            // Leases end by themselves: their renewals have stopped. Short steps, since one may be
            // given back. One that is held up for longer than it said has restarted: in a crash
            // loop it would never promise anything, so it has the same moment to come up.
            Ok(Some(wait)) => {
                let (now, wait) = (world.now(), wait.min(GRACE));
                if held_until.is_none() || now <= reach_until {
                    held_until = held_until.max(Some(now + wait + wait / 8 + RETRY_EVERY));
                }
                if held_until < Some(now) {
                    sometimes!("takeover.member_is_held_up_again");
                    return Err(Refusal::Unreachable);
                }
                world.sleep(wait.min(RETRY_EVERY)).await;
            }
            Err(MemberError::Superseded(_)) => return Err(Refusal::Newer),
            Err(MemberError::Store(StoreError::NoComponent(_) | StoreError::Failed(_))) => {
                return Err(Refusal::Lost);
            }
            Err(MemberError::Store(_)) => return Err(Refusal::Unreachable),
            Err(MemberError::NotUnderstood | MemberError::NoAnswer(_)) => {
                let has_left = ctx.has_left(member.place());
                if has_left {
                    sometimes!("takeover.member_has_left");
                }
                if world.now() > reach_until || has_left {
                    return Err(Refusal::Unreachable);
                }
                world.sleep(RETRY_EVERY).await;
            }
        }
    }
    let attached = loop {
        match members.attach(to, None, world.now() + CALL_DEADLINE).await {
            // Nothing was done: it may be on another shard by now, or connect again.
            Err(MemberError::NoAnswer(CallError::Unreachable))
                if world.now() <= reach_until && !ctx.has_left(member.place()) =>
            {
                world.sleep(RETRY_EVERY).await;
            }
            answer => break answer,
        }
    };
    match attached {
        Ok(Attached { promise, doubtful }) => {
            let life = ctx.life_of(member.place());
            Ok(FenceAnswer { promise, doubtful, session: to.session, life })
        }
        Err(MemberError::Superseded(_)) => Err(Refusal::Newer),
        // Somebody had this very epoch before: of a directory that was put back, say.
        Err(MemberError::Store(StoreError::Session { .. })) => {
            sometimes!("takeover.epoch_was_used");
            Err(Refusal::Newer)
        }
        Err(_) => Err(Refusal::Unreachable),
    }
}

/// Where a member is, and the first session of the record's epoch.
pub(super) fn first_endpoint(record: &ObjectRecord, member: &MemberRecord) -> Endpoint {
    let session = Session { epoch: record.epoch, attach: 1 };
    let MemberRecord { host, group, component, .. } = *member;
    Endpoint { host, group, component, session }
}

/// Attaches members that were resyncing under the old owner, so that its late messages cannot
/// reach them (R3). Those that do not answer become absent again.
pub(super) async fn attach_resyncing<W: World, P: Protocol>(
    ctx: &Rc<Ctx<W, P>>,
    client: &MemberClient<W, P>,
    record: &ObjectRecord,
) -> FenceAnswers {
    let resyncing = |(_, m): (usize, &MemberRecord)| match m.state {
        MemberState::Resyncing { from } => Some((*m, from)),
        _ => None,
    };
    let members: Vec<(MemberRecord, Seq)> = record.members().filter_map(resyncing).collect();
    let deadline = ctx.world.now() + CALL_DEADLINE;
    let to = |m: &MemberRecord| first_endpoint(record, m);
    let calls = members.iter().map(|(m, from)| client.attach(to(m), Some(*from), deadline));
    let answers = futures_util::future::join_all(calls).await;
    let attached = members.iter().zip(answers).filter_map(|((m, _), answer)| {
        let Attached { promise, doubtful } = answer.ok()?;
        let (session, life) = (to(m).session, ctx.life_of(m.place()));
        Some((m.component, FenceAnswer { promise, doubtful, session, life }))
    });
    attached.collect()
}
