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
//! Nothing is served before the end; any failure on the way starts over with a higher epoch.

use crate::change::{Swapped, swap};
use crate::leg::{Leg, Member, Role};
use crate::limits::{
    CALL_DEADLINE, DIRECTORY_DEADLINE, FENCE_DEADLINE, MEND, READ_DEADLINE, RECONCILE_AT_ONCE,
    RETRY_EVERY, START_PATIENCE,
};
use crate::mend::Trouble;
use crate::message::{Reply, Request};
use crate::objects::{Ctx, Event};
use crate::owner::{Fail, Owner};
use crate::resync::End;
use crate::tickets::{Key, Tables, key};
use atoll_format::id::{ComponentId, Incarnation, ObjectId, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpRecord, Promise};
use atoll_format::record::{
    self, LegRecord, MemberRecord, MemberState, ObjectRecord, ObjectState, key,
};
use atoll_format::units::{BLOCKS_PER_CHUNK, SEQ_EPOCH_GAP};
use atoll_world::components::{Copy, CopyBlock};
use atoll_world::directory::Revision;
use atoll_world::{
    Buf, Components, Directory, DirectoryError, Lane, Nanos, StoreError, World, mutant, sometimes,
};
use futures_util::StreamExt;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Why there is no owner here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum TakeoverError {
    /// There is no such object, or it is being deleted.
    Gone,
    /// Another host was faster.
    Lost,
    /// Not now: try again. A sentence for people.
    NotNow(String),
}

/// What one active member answered.
#[derive(Clone, Copy, Debug)]
struct Fenced {
    promise: Promise,
    doubtful: bool,
    session: Session,
    /// Of its host, as it answered.
    life: Option<Incarnation>,
}

/// The directory's record of an object, possibly stale.
pub(crate) async fn load<W: World>(
    world: &W,
    object: ObjectId,
) -> Result<(ObjectRecord, Revision), TakeoverError> {
    let key = key::object(object);
    let deadline = world.now() + DIRECTORY_DEADLINE;
    let got = world
        .timeout_at(deadline, world.directory().get(&key))
        .await
        .unwrap_or_else(|_| Err(DirectoryError::Unavailable("no answer in time".into())));
    let entry = got.map_err(|e| TakeoverError::NotNow(e.to_string()))?;
    let entry = entry.ok_or(TakeoverError::Gone)?;
    let record: ObjectRecord = record::decode(&key, &entry.value).map_err(TakeoverError::NotNow)?;
    match record.state {
        ObjectState::Ready => Ok((record, entry.modified)),
        ObjectState::Creating | ObjectState::Deleting => Err(TakeoverError::Gone),
    }
}

/// Confirms `edit` of the record in the directory; only this host's own later writes may have
/// happened meanwhile.
async fn confirm<W: World>(
    world: &W,
    mut record: ObjectRecord,
    revision: Revision,
) -> Result<(ObjectRecord, Revision), TakeoverError> {
    let until = world.now() + DIRECTORY_DEADLINE * 2;
    let mut nonces = Vec::new();
    loop {
        record.nonce = world.random();
        let swapped = swap(world, revision, &record, &nonces, None).await;
        nonces.push(record.nonce);
        match swapped {
            Ok(Swapped::Done(revision)) => return Ok((record, revision)),
            Ok(Swapped::Earlier(record, revision)) => return Ok((*record, revision)),
            Ok(Swapped::Other(..) | Swapped::GuardGone) => return Err(TakeoverError::Lost),
            Ok(Swapped::Gone) => return Err(TakeoverError::Gone),
            Err(error) if world.now() > until => {
                return Err(TakeoverError::NotNow(error.to_string()));
            }
            Err(_) => world.sleep(RETRY_EVERY).await,
        }
    }
}

/// Says which copies a takeover has left out, and why.
fn tell_of_dropped<W: World, S: Components>(
    ctx: &Rc<Ctx<W, S>>,
    before: &ObjectRecord,
    now: &ObjectRecord,
    fenced: &Answers,
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
            true => Trouble::Stale.to_string(),
            false => Trouble::Link.to_string(),
        };
        ctx.event(Event::MemberDropped { object: now.id, host: member.host, why });
    }
}

/// Makes this host the owner of `object`.
pub(crate) async fn take_over<W: World, S: Components>(
    ctx: &Rc<Ctx<W, S>>,
    (record, revision): (ObjectRecord, Revision),
) -> Result<Owner<W, S>, TakeoverError> {
    let world = &ctx.world;
    // An epoch that nobody can use would only end the present owner's.
    for (leg, members) in record.legs.iter().enumerate() {
        let reaches = |host| host == ctx.host || ctx.peers().peer(host).connected;
        let mut active = members.members.iter().filter(|m| m.state.is_active());
        if !active.any(|m| reaches(m.host)) && !mutant!("takeover.epoch_for_nothing") {
            sometimes!("takeover.no_copy_within_reach");
            return Err(inaccessible(ctx, leg, members));
        }
    }
    let mut next = record;
    next.epoch.0 += u32::from(!mutant!("takeover.epoch_stays"));
    next.owner = Some(ctx.me());
    let (record, revision) = confirm(world, next, revision).await?;
    ctx.event(Event::TakingOver { object: record.id, epoch: record.epoch });

    let (fenced, lost) = fence_all(ctx, &record).await?;
    let resyncing = attach_resyncing(ctx, &record).await;
    let before = record.clone();
    let (record, committed) = settle(ctx, record, &fenced, &lost, &resyncing);
    let (record, revision) = confirm(world, record, revision).await?;
    tell_of_dropped(ctx, &before, &record, &fenced, &lost);
    for (leg, &watermark) in record.legs.iter().zip(&committed) {
        for member in leg.members.iter().filter(|m| m.state.is_active()) {
            let lacks = |a: &Fenced| a.doubtful || a.promise.newest < watermark;
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

impl<W: World, S: Components> Owner<W, S> {
    /// What lacked something and is all there is lacks nothing any more. One that does not answer
    /// says the same again in its next life.
    async fn end_incompleteness(&self, fenced: &Answers) {
        for leg in self.legs() {
            let members = leg.members.borrow().clone();
            for member in members.iter().filter(|m| m.role == Role::Active) {
                if fenced.get(&member.component).is_some_and(|a| a.doubtful) {
                    self.complete(member, leg.committed()).await;
                }
            }
        }
    }
}

fn inaccessible<W: World, S: Components>(
    ctx: &Rc<Ctx<W, S>>,
    leg: usize,
    members: &LegRecord,
) -> TakeoverError {
    let active = members.members.iter().filter(|m| m.state.is_active());
    let hosts: Vec<String> = active.map(|m| ctx.host_name(m.host)).collect();
    TakeoverError::NotNow(format!(
        "no active copy of leg {leg} can be reached; it is on {}",
        hosts.join(", ")
    ))
}

type Answers = BTreeMap<ComponentId, Fenced>;

/// Fences and attaches every active member. Returns when all have answered, or when the rest
/// cannot be reached and every leg has one.
async fn fence_all<W: World, S: Components>(
    ctx: &Rc<Ctx<W, S>>,
    record: &ObjectRecord,
) -> Result<(Answers, BTreeSet<ComponentId>), TakeoverError> {
    let active: Vec<(usize, MemberRecord)> =
        record.members().filter(|(_, m)| m.state.is_active()).map(|(leg, m)| (leg, *m)).collect();
    let calls = active.iter().map(|(_, member)| fence_one(ctx, record, *member));
    let answers = futures_util::future::join_all(calls).await;
    let mut fenced = Answers::new();
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
    for (leg, members) in record.legs.iter().enumerate() {
        let any = members.members.iter().any(|m| fenced.contains_key(&m.component));
        if !any && !mutant!("takeover.drops_all") {
            sometimes!("takeover.inaccessible");
            return Err(inaccessible(ctx, leg, members));
        }
        // What was acknowledged may be on one that is not up yet (S18): a damaged log must not win
        // because its host started first.
        let sound = |m: &MemberRecord| fenced.get(&m.component).is_some_and(|a| !a.doubtful);
        let may_come = |m: &&MemberRecord| {
            m.state.is_active()
                && !fenced.contains_key(&m.component)
                && !lost.contains(&m.component)
        };
        let better: Vec<String> =
            members.members.iter().filter(may_come).map(|m| ctx.host_name(m.host)).collect();
        if any
            && !better.is_empty()
            && !members.members.iter().any(sound)
            && !mutant!("takeover.settles_for_less")
            && !ctx.may_settle_for_less(record)
        {
            sometimes!("takeover.waits_for_a_better_copy");
            return Err(TakeoverError::NotNow(format!(
                "the copies of leg {leg} that answer have lost some of what they had acknowledged; \
                 the one on {} is waited for, as long as the repair delay says",
                better.join(", ")
            )));
        }
    }
    Ok((fenced, lost))
}

enum Refusal {
    /// A higher epoch was promised.
    Newer,
    /// No answer in time.
    Unreachable,
    /// Its disk group has failed or does not have it.
    Lost,
}

async fn fence_one<W: World, S: Components>(
    ctx: &Rc<Ctx<W, S>>,
    record: &ObjectRecord,
    member: MemberRecord,
) -> Result<Fenced, Refusal> {
    let world = &ctx.world;
    let (component, epoch) = (member.component, record.epoch);
    let fence = || Request::Fence { object: record.id, component, epoch };
    // A host that cannot be reached gets a moment to come up, not the whole wait of a lease. But
    // one that has just started itself may not know yet where the others are: without patience it
    // would drop every copy but its own.
    let reach_until = (world.now() + MEND).max(ctx.started + START_PATIENCE);
    while !mutant!("takeover.does_not_fence") {
        let until = world.now() + FENCE_DEADLINE;
        match ctx.peers().call(member.host, Lane::Control, fence(), until).await {
            Ok(Reply::Promise { .. }) => break,
            Ok(Reply::Failed(StoreError::Fenced { fenced })) if fenced > epoch => {
                return Err(Refusal::Newer);
            }
            Ok(Reply::Failed(StoreError::NoComponent(_) | StoreError::Failed(_))) => {
                return Err(Refusal::Lost);
            }
            Ok(Reply::Failed(_)) => return Err(Refusal::Unreachable),
            _ if world.now() > reach_until => return Err(Refusal::Unreachable),
            _ => world.sleep(RETRY_EVERY).await,
        }
    }
    let session = Session { epoch, attach: 1 };
    let deadline = world.now() + CALL_DEADLINE;
    let request = Request::Attach { component, session, incomplete: None };
    match ctx.peers().call(member.host, Lane::Control, request, deadline).await {
        Ok(Reply::Promise { promise, doubtful }) => {
            let life = ctx.peers().peer(member.host).incarnation;
            Ok(Fenced { promise, doubtful, session, life })
        }
        Ok(Reply::Failed(StoreError::Fenced { fenced })) if fenced > epoch => Err(Refusal::Newer),
        // Somebody had this very epoch before: of a directory that was put back, say.
        Ok(Reply::Failed(StoreError::Session { .. })) => {
            sometimes!("takeover.epoch_was_used");
            Err(Refusal::Newer)
        }
        _ => Err(Refusal::Unreachable),
    }
}

/// Attaches members that were resyncing under the old owner, so that its late messages cannot
/// reach them (F4). Those that do not answer become absent again.
async fn attach_resyncing<W: World, S: Components>(
    ctx: &Rc<Ctx<W, S>>,
    record: &ObjectRecord,
) -> Answers {
    let resyncing = |(_, m): (usize, &MemberRecord)| match m.state {
        MemberState::Resyncing { from } => Some((*m, from)),
        _ => None,
    };
    let members: Vec<(MemberRecord, Seq)> = record.members().filter_map(resyncing).collect();
    let session = Session { epoch: record.epoch, attach: 1 };
    let deadline = ctx.world.now() + CALL_DEADLINE;
    let calls = members.iter().map(|(m, from)| {
        let incomplete = Some(*from);
        let request = Request::Attach { component: m.component, session, incomplete };
        ctx.peers().call(m.host, Lane::Control, request, deadline)
    });
    let replies = futures_util::future::join_all(calls).await;
    let attached = members.iter().zip(replies).filter_map(|((m, _), reply)| match reply {
        Ok(Reply::Promise { promise, doubtful }) => {
            let life = ctx.peers().peer(m.host).incarnation;
            Some((m.component, Fenced { promise, doubtful, session, life }))
        }
        _ => None,
    });
    attached.collect()
}

/// Decides who stays active, and the record that says so. Returns each leg's watermark too.
/// Pure.
fn settle<W: World, S: Components>(
    ctx: &Rc<Ctx<W, S>>,
    mut record: ObjectRecord,
    fenced: &Answers,
    lost: &BTreeSet<ComponentId>,
    resyncing: &Answers,
) -> (ObjectRecord, Vec<Seq>) {
    let at_ms = ctx.world.unix_ms();
    let mut newest = record.seq_base;
    let mut committed = Vec::new();
    for leg in &mut record.legs {
        let answers = || leg.members.iter().filter_map(|m| fenced.get(&m.component));
        // The highest watermark that any fenced member knows, before roll-forward (R4, A1).
        let mut watermark = answers().map(|a| a.promise.committed).max().unwrap_or_default();
        if mutant!("takeover.since_the_newest") {
            watermark = answers().map(|a| a.promise.newest).max().unwrap_or_default();
        }
        newest = newest.max(answers().map(|a| a.promise.newest).max().unwrap_or_default());
        let doubtful = |a: &Fenced| a.doubtful && !mutant!("takeover.doubt_is_ignored");
        let sound = |a: &Fenced| !doubtful(a) && a.promise.newest >= watermark;
        let any_sound = answers().any(sound);
        // Without one, what is left is what there is: others are compared with it whole.
        let none_sound = !any_sound && answers().next().is_some();
        let behind = |since: Seq| if none_sound { Seq(0) } else { since };
        for member in &mut leg.members {
            let lost = lost.contains(&member.component);
            match (member.state, fenced.get(&member.component)) {
                (MemberState::Active, None) => {
                    sometimes!("takeover.drops_an_unreachable_member");
                    member.state = MemberState::Absent { since: behind(watermark), at_ms, lost };
                }
                (MemberState::Absent { since, at_ms, lost }, _) => {
                    member.state = MemberState::Absent { since: behind(since), at_ms, lost };
                }
                // It lacks what is known to be committed: its disk has lost the end of what it had
                // acknowledged, and has all below what it knows to be committed itself. One that
                // is doubtful may lack anything.
                (MemberState::Active, Some(a)) if !sound(a) && any_sound => {
                    sometimes!("takeover.drops_a_stale_member");
                    let own = a.promise.committed.min(a.promise.newest);
                    let since = if doubtful(a) { Seq(0) } else { own };
                    member.state = MemberState::Absent { since, at_ms, lost };
                }
                (MemberState::Resyncing { from }, _) => match resyncing.get(&member.component) {
                    None => {
                        member.state = MemberState::Absent { since: behind(from), at_ms, lost };
                    }
                    Some(_) if mutant!("takeover.resyncing_is_active") => {
                        member.state = MemberState::Active;
                    }
                    // Not with this session: in it the member has noted that it lacks only what is
                    // newer than `from`.
                    Some(a)
                        if from > Seq(0)
                            && (doubtful(a) || a.promise.newest < from || none_sound) =>
                    {
                        member.state = MemberState::Absent { since: Seq(0), at_ms, lost };
                    }
                    Some(_) => {}
                },
                _ => {}
            }
        }
        committed.push(watermark);
    }
    for answer in resyncing.values() {
        newest = newest.max(answer.promise.newest);
    }
    // Never below what any earlier epoch can have used, also towards members that are away now
    // (`store.md` rule 7).
    let gap = if mutant!("takeover.seqs_come_again") { 0 } else { SEQ_EPOCH_GAP };
    record.seq_base = if gap == 0 { record.seq_base } else { Seq(newest.0 + gap) };
    (record, committed)
}

fn build<W: World, S: Components>(
    ctx: &Rc<Ctx<W, S>>,
    record: ObjectRecord,
    revision: Revision,
    fenced: &Answers,
    resyncing: &Answers,
    committed: &[Seq],
) -> Owner<W, S> {
    let mut legs = Vec::new();
    for (index, leg) in record.legs.iter().enumerate() {
        let members = leg.members.iter().enumerate().map(|(slot, m)| {
            let answer = fenced.get(&m.component).or_else(|| resyncing.get(&m.component));
            Member {
                slot: slot as u8,
                component: m.component,
                host: m.host,
                group: m.group,
                role: match m.state {
                    MemberState::Active => Role::Active,
                    MemberState::Absent { since, .. } => Role::Absent { since },
                    MemberState::Resyncing { from } => Role::Resyncing { from },
                },
                session: answer.map(|a| a.session).unwrap_or_default(),
                life: answer.and_then(|a| a.life),
                broken: false,
                mending: false,
                refusals: 0,
                // Not before the first renewal (R11).
                lease_until: Nanos::ZERO,
                unacked: BTreeSet::new(),
            }
        });
        legs.push(Rc::new(Leg::new(index, members.collect(), committed[index])));
    }
    Owner::new(ctx.clone(), record, revision, legs, 1)
}

/// Brings every operation above the watermark to all active members.
async fn roll_forward<W: World, S: Components>(
    owner: &Owner<W, S>,
    fenced: &Answers,
) -> Result<(), Fail> {
    for leg in owner.legs() {
        let active: Vec<Member> =
            leg.members.borrow().iter().filter(|m| m.role == Role::Active).cloned().collect();
        let mut chunks = BTreeSet::new();
        let mut ops: BTreeMap<u32, BTreeMap<Seq, Ticket>> = BTreeMap::new();
        // A shrink has discarded what lies beyond; a copy that was made since ends there, and is
        // not to be asked for it. Growing again clears it on all.
        let end = owner.0.record.borrow().leg_chunks(leg.index);
        for member in &active {
            let answer = fenced.get(&member.component).ok_or(Fail::Stopped)?;
            // What this member knows as committed may be less than others know: listing more
            // than needed is only work.
            for op in uncommitted(owner, &End::of(member)).await? {
                if op.range.chunk() >= end {
                    sometimes!("takeover.leaves_what_is_beyond_the_end");
                    continue;
                }
                chunks.insert(op.range.chunk());
                if op.ticket.number != 0 {
                    ops.entry(op.range.chunk()).or_default().insert(op.id.seq, op.ticket);
                }
            }
            if answer.doubtful && !mutant!("takeover.doubt_is_ignored") {
                for other in &active {
                    chunks.extend(owner.chunks_since(&End::of(other), Seq(0)).await?);
                }
            }
        }
        if mutant!("takeover.rolls_nothing_forward") {
            chunks.clear();
        }
        let trusted: Vec<bool> =
            active.iter().map(|m| fenced.get(&m.component).is_some_and(|a| !a.doubtful)).collect();
        let ends: Vec<End> = active.iter().map(End::of).collect();
        let (ends, trusted, none) = (&ends, &trusted, &BTreeMap::new());
        let tables = &owner.tables_of(ends).await?;
        let work = futures_util::stream::iter(chunks)
            .map(|chunk| {
                let ops = ops.get(&chunk).unwrap_or(none);
                reconcile(owner, chunk, (ends, trusted), (tables, ops))
            })
            .buffer_unordered(owner.world().bound(RECONCILE_AT_ONCE, 1));
        let mut work = std::pin::pin!(work);
        let mut rolled_back = BTreeSet::new();
        while let Some(result) = work.next().await {
            rolled_back.extend(result?);
        }
        owner.agree_on_tickets(ends, &rolled_back).await?;
        // Now every active member has the same. The watermark is one that all of them hold, so
        // that a member that falls behind it later is known to have lost something.
        let mut watermark = None;
        for end in ends {
            let request = Request::Status { component: end.component };
            match owner.call(end.host, Lane::Control, request, CALL_DEADLINE).await {
                Ok(Reply::Status(s)) => {
                    let newest = s.promise.newest;
                    watermark = Some(watermark.map_or(newest, |w: Seq| w.min(newest)));
                }
                _ => return Err(Fail::Stopped),
            }
        }
        leg.start_from(watermark.unwrap_or_default());
    }
    Ok(())
}

async fn uncommitted<W: World, S: Components>(
    owner: &Owner<W, S>,
    end: &End,
) -> Result<Vec<OpRecord>, Fail> {
    let mut all: Vec<OpRecord> = Vec::new();
    loop {
        let after = all.last().map(|op| op.id.seq).unwrap_or_default();
        let (component, epoch) = (end.component, owner.0.epoch);
        let request = Request::Uncommitted { component, epoch, after };
        match owner.call(end.host, Lane::Control, request, READ_DEADLINE).await {
            Ok(Reply::Ops { ops, more }) => {
                let done = !more || ops.is_empty();
                all.extend(ops);
                if done {
                    return Ok(all);
                }
            }
            _ => return Err(Fail::Stopped),
        }
    }
}

/// Makes one chunk equal on all active members: per block the highest seq wins (R7). `ops` are
/// those that wrote it. Returns which of them had to be rolled back instead.
async fn reconcile<W: World, S: Components>(
    owner: &Owner<W, S>,
    chunk: u32,
    (ends, trusted): (&[End], &[bool]),
    (tables, ops): (&Tables, &BTreeMap<Seq, Ticket>),
) -> Result<Vec<Key>, Fail> {
    let mut rolled_back = BTreeSet::new();
    let mut tags = Vec::new();
    for end in ends {
        let request = Request::Tags { component: end.component, epoch: owner.0.epoch, chunk };
        match owner.call(end.host, Lane::Bulk, request, READ_DEADLINE).await {
            Ok(Reply::Tags(t)) if t.len() == BLOCKS_PER_CHUNK as usize => tags.push(t),
            _ => return Err(Fail::Stopped),
        }
    }
    let mut wanted: Vec<Vec<CopyBlock>> = vec![Vec::new(); ends.len()];
    for i in 0..BLOCKS_PER_CHUNK as usize {
        let here: Vec<BlockTag> = tags.iter().map(|t| t[i]).collect();
        let highest = here.iter().map(|t| t.seq).max().unwrap_or_default();
        if here.iter().all(|t| t.seq == highest && t.state != BlockState::Bad) {
            continue;
        }
        let block = chunk * BLOCKS_PER_CHUNK + i as u32;
        let (tag, bytes) = best(owner, block, &here, ends, trusted).await?;
        rolled_back.extend(here.iter().map(|t| t.seq).filter(|&seq| seq > tag.seq));
        for (n, t) in here.iter().enumerate() {
            if t.seq != tag.seq || (t.state == BlockState::Bad && tag.state != BlockState::Bad) {
                wanted[n].push(CopyBlock { block, tag, bytes: bytes.clone() });
            }
        }
    }
    for (place, (end, blocks)) in ends.iter().zip(wanted).enumerate() {
        if blocks.is_empty() {
            continue;
        }
        sometimes!("takeover.rolled_forward");
        let tickets = tables.with_copy(place, ops, &rolled_back);
        let copy = Copy { chunk, blocks, only_if: None, tickets };
        let request = Request::CopyIn { component: end.component, session: end.session, copy };
        match owner.call(end.host, Lane::Bulk, request, READ_DEADLINE * 2).await {
            Ok(Reply::Copied(_)) => {}
            _ => return Err(Fail::Stopped),
        }
    }
    Ok(rolled_back.iter().filter_map(|seq| ops.get(seq)).copied().map(key).collect())
}

/// The version of a block that all members are to have, with its bytes.
async fn best<W: World, S: Components>(
    owner: &Owner<W, S>,
    block: u32,
    here: &[BlockTag],
    ends: &[End],
    trusted: &[bool],
) -> Result<(BlockTag, Option<Buf>), Fail> {
    let mut seqs: Vec<Seq> = here.iter().map(|t| t.seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    while let Some(seq) = seqs.pop() {
        for (tag, end) in here.iter().zip(ends) {
            if tag.seq != seq || tag.state == BlockState::Bad {
                continue;
            }
            if tag.state.reads_as_zero() {
                return Ok((*tag, None));
            }
            let range = BlockRange { start: block, count: 1 };
            let (component, epoch) = (end.component, owner.0.epoch);
            let request = Request::Read { component, epoch, range };
            match owner.call(end.host, Lane::Bulk, request, READ_DEADLINE).await {
                Ok(Reply::Blocks(b)) if b.tags.first().is_some_and(|t| t.seq == seq) => {
                    return Ok((b.tags[0], b.payload.into_iter().next()));
                }
                Ok(Reply::Failed(StoreError::Bad(_))) => {}
                _ => return Err(Fail::Stopped),
            }
        }
        // Nobody has good bytes of it. If a member that has lost nothing lacks it, it was never
        // acknowledged, and the version before it stands. Else it was, and must not be papered
        // over: the block is marked on all.
        let never_acknowledged =
            here.iter().zip(trusted).any(|(t, &trusted)| trusted && t.seq < seq);
        if !never_acknowledged {
            sometimes!("takeover.block_without_a_good_copy");
            return Ok((BlockTag { seq, state: BlockState::Bad, crc: 0 }, None));
        }
        sometimes!("takeover.damaged_operation_rolled_back");
    }
    Ok((BlockTag::default(), None))
}
