//! Becoming the owner of an object (R5, R6, R7).
//!
//! 1. Raise the epoch in the directory, by compare-and-swap on the whole record.
//! 2. Fence every active member: it promises to refuse lower epochs, and answers when no lease of
//!    an older owner can be running. Attach active and resyncing members (R3).
//! 3. Members that cannot be reached are dropped, once one active member per leg has answered;
//!    members that lack what another one knows to be committed are stale, and dropped too.
//! 4. Store the base of this epoch's sequence numbers in the directory, with the drops.
//! 5. Roll forward: whatever operation any active member holds above the watermark is brought to
//!    all of them; per block the highest seq wins.
//!
//! Nothing is served before the end; any failure on the way starts over with a higher epoch. Before
//! all that, `older_record` looks whether the directory is the newest that there is.
//!
//! `settle` decides, without asking anybody; `fence` and `roll_forward` ask; this file drives.

mod directory;
mod error;
mod fence;
mod older_record;
mod roll_forward;
mod settle;

use directory::confirm;
pub(crate) use directory::load;
pub(crate) use error::TakeoverError;
use error::inaccessible;
use fence::{attach_resyncing, fence_all};
use older_record::reinstate_if_older;
use roll_forward::roll_forward;
use settle::{FenceAnswer, FenceAnswers, check_settled, settle};

use crate::ctx::{Ctx, Protocol};
use crate::events::Event;
use crate::failure::MemberFault;
use crate::layout::Layout;
use crate::leg::{Leg, Member, Role};
use crate::member_client::MemberClient;
use crate::owner::Owner;
use atoll_format::id::{ComponentId, Seq};
use atoll_format::record::{MemberRecord, MemberState, ObjectRecord};
use atoll_world::directory::Revision;
use atoll_world::{World, mutant, sometimes};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Says which copies a takeover has left out, and why.
fn tell_of_dropped<W: World, P: Protocol>(
    ctx: &Rc<Ctx<W, P>>,
    before: &ObjectRecord,
    now: &ObjectRecord,
    fenced: &FenceAnswers,
    lost: &BTreeSet<ComponentId>,
) {
    let is_active = |m: &MemberRecord| m.state.is_active();
    let left: BTreeSet<_> =
        now.members().filter(|(_, m)| is_active(m)).map(|(_, m)| m.component).collect();
    for (_, member) in before.members().filter(|(_, m)| is_active(m)) {
        if left.contains(&member.component) {
            continue;
        }
        let why = match fenced.contains_key(&member.component) {
            _ if lost.contains(&member.component) => "what it held is gone".into(),
            true => MemberFault::Stale.to_string(),
            false => MemberFault::Link.to_string(),
        };
        ctx.event(Event::MemberDropped { object: now.id, host: member.host, why });
    }
}

/// Makes this host the owner of `object`.
pub(crate) async fn take_over<W: World, P: Protocol>(
    ctx: &Rc<Ctx<W, P>>,
    (record, revision): (ObjectRecord, Revision),
) -> Result<Owner<W, P>, TakeoverError> {
    let world = &ctx.world;
    let (record, was_older) = reinstate_if_older(ctx, record).await?;
    // An epoch that nobody can use would only end the present owner's.
    let layout = Layout::of(&record.policy);
    for (leg, members) in record.legs.iter().enumerate() {
        let active = members.members.iter().filter(|m| m.state.is_active());
        let within_reach = active.filter(|m| ctx.is_reachable(m.place())).count();
        if !layout.is_enough(within_reach) && !mutant!("takeover.epoch_for_nothing") {
            sometimes!("takeover.no_copy_within_reach");
            return Err(inaccessible(ctx, &record, leg));
        }
    }
    let epoch_before = record.epoch;
    let mut next = record;
    next.epoch.0 += u32::from(!mutant!("takeover.epoch_stays"));
    next.owner = Some(ctx.me());
    next.attached = Some(0);
    let (record, revision) = confirm(world, next, revision).await?;
    assert!(record.epoch > epoch_before, "every owner takes a new epoch (R5)");
    assert!(ctx.is_me(&record), "{:?} owns {}", record.owner, record.id);
    if let Some(event) = was_older {
        ctx.event(event);
    }
    ctx.event(Event::TakingOver { object: record.id, epoch: record.epoch });

    let members = MemberClient::new(ctx.clone(), record.epoch);
    let (fenced, lost) = fence_all(ctx, &members, &record).await?;
    let resyncing = attach_resyncing(ctx, &members, &record).await;
    let before = record.clone();
    let (record, committed) = settle(record, &fenced, &lost, &resyncing, world.unix_ms());
    check_settled(&before, &record, &fenced, &resyncing);
    assert_eq!(committed.len(), record.legs.len(), "one watermark a leg");
    let (record, revision) = confirm(world, record, revision).await?;
    assert_eq!(record.epoch, before.epoch, "the epoch in which its members were fenced");
    tell_of_dropped(ctx, &before, &record, &fenced, &lost);
    for (leg, &watermark) in record.legs.iter().zip(&committed) {
        for member in leg.members.iter().filter(|m| m.state.is_active()) {
            let lacks = |a: &FenceAnswer| a.doubtful || a.promise.newest < watermark;
            if fenced.get(&member.component).is_some_and(lacks) {
                sometimes!("takeover.last_copy_lacks_something");
                ctx.event(Event::WritesLost { object: record.id, host: member.host });
            }
        }
    }

    let owner = build(ctx, record, revision, &fenced, &resyncing, &committed);
    match roll_forward(&owner, &fenced).await {
        Ok(()) => {
            owner.end_incompleteness(&fenced).await;
            sometimes!("takeover.done");
            ctx.lacks_nothing(owner.0.id);
            ctx.event(Event::TookOver { object: owner.0.id, epoch: owner.0.epoch });
            Ok(owner)
        }
        Err(_) => Err(TakeoverError::NotNow("a member failed during roll-forward".into())),
    }
}

impl<W: World, P: Protocol> Owner<W, P> {
    /// What lacked something and is all there is lacks nothing any more. One that does not answer
    /// says the same again in its next life.
    async fn end_incompleteness(&self, fenced: &FenceAnswers) {
        for leg in self.legs() {
            let members = leg.members.borrow().clone();
            for member in members.iter().filter(|m| m.role() == Role::Active) {
                if fenced.get(&member.component).is_some_and(|a| a.doubtful) {
                    let _ = self.members().complete(member.endpoint(), leg.committed()).await;
                }
            }
        }
    }
}

fn build<W: World, P: Protocol>(
    ctx: &Rc<Ctx<W, P>>,
    record: ObjectRecord,
    revision: Revision,
    fenced: &FenceAnswers,
    resyncing: &FenceAnswers,
    committed: &[Seq],
) -> Owner<W, P> {
    let layout = Layout::of(&record.policy);
    let mut legs = Vec::new();
    for (index, leg) in record.legs.iter().enumerate() {
        let members = leg.members.iter().enumerate().map(|(slot, m)| {
            let answer = fenced.get(&m.component).or_else(|| resyncing.get(&m.component));
            let is_away = matches!(m.state, MemberState::Absent { .. });
            assert!(is_away || answer.is_some(), "{m:?} is sent operations in no session");
            let role = match m.state {
                MemberState::Active => Role::Active,
                MemberState::Absent { since, .. } => Role::Absent { since },
                MemberState::Resyncing { from } => Role::Resyncing { from },
            };
            let member = Member::new(slot as u8, m.component, (m.host, m.group), role);
            match answer {
                Some(answer) => member.attached(answer.session, answer.life),
                None => member,
            }
        });
        legs.push(Rc::new(Leg::new(index, layout, members.collect(), committed[index])));
    }
    Owner::new(ctx.clone(), record, revision, legs, 1)
}
