//! Bringing members up to date: a returning one from its watermark on, a new one from nothing.
//!
//! The proof of equality is always the exact seq of every 4 KiB block, compared after the member
//! has been attached and while the chunk's range is locked (R16-R18, `store.md` F11). What has to
//! be compared follows from the durable `from` alone, so a resync that is interrupted anywhere
//! starts again without trusting anybody's memory, and blocks that are equal by then cost no copy.

use crate::leg::{Leg, Member, Role};
use crate::limits::{CALL_DEADLINE, READ_DEADLINE, READMIT_FIRST, READMIT_LAST, RETRY_EVERY};
use crate::mend::{Trouble, state_of};
use crate::message::{Reply, Request};
use crate::objects::Event;
use crate::owner::{Fail, Owner};
use atoll_format::id::{ComponentId, HostId, Seq, Session};
use atoll_format::op::{BlockRange, BlockState, BlockTag};
use atoll_format::record::{MemberRecord, MemberState};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::{ComponentSpec, Copy, CopyBlock, SetTickets};
use atoll_world::{
    Components, Lane, Nanos, StoreError, VolumeError, World, buf, mutant, sometimes,
};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub host: HostId,
    pub component: ComponentId,
    pub session: Session,
}

impl End {
    pub fn of(m: &Member) -> Self {
        Self { host: m.host, component: m.component, session: m.session }
    }
}

/// Blocks per message: keeps a copy's payload at half a chunk.
const COPY_BLOCKS_MAX: usize = 128;

/// A resync that failed: when the member is tried again, and how long it waits after the next
/// failure.
#[derive(Clone, Copy)]
pub(crate) struct Readmission {
    at: Nanos,
    after: Nanos,
}

/// Where an absent member's component is.
enum Found {
    Here,
    /// Its host cannot be asked.
    Away,
    /// Its host has lost it.
    Lost,
}

/// How long a resync that yields to guests sleeps at most per chunk: its floor.
const YIELD_MAX: Nanos = Nanos::from_ms(40);

impl<W: World, S: Components> Owner<W, S> {
    /// Heals this object until the owner stops.
    pub async fn heal(self) {
        while !self.is_stopped() {
            let changed = self.0.ctx.peers().changed().notified();
            let mut worked = false;
            for leg in self.legs() {
                worked |= self.heal_leg(&leg).await;
            }
            if worked || self.is_stopped() {
                continue;
            }
            let tick = self.world().sleep(RETRY_EVERY * 5);
            futures_util::future::select(changed, std::pin::pin!(tick)).await;
        }
    }

    /// One step for one leg; whether anything was done.
    async fn heal_leg(&self, leg: &Rc<Leg>) -> bool {
        if self.0.ctx.resync_paused() {
            return false;
        }
        let members = leg.members.borrow().clone();
        if let Some(surplus) = self.surplus(&members) {
            return self.remove(leg, surplus).await;
        }
        for member in members.iter().filter(|m| !m.mending) {
            match member.role {
                Role::Resyncing { from } => {
                    if self.resync(leg, member.slot, from).await.is_err() && !self.is_stopped() {
                        self.put_off(member.component);
                        self.on_trouble(leg, member.slot, member.session, Trouble::Link);
                        self.world().sleep(RETRY_EVERY).await;
                    }
                    return true;
                }
                Role::Absent { since } => {
                    let next_try = self.0.next_try.borrow().get(&member.component).copied();
                    if next_try.is_some_and(|next| self.now() < next.at) {
                        continue;
                    }
                    match self.look_for(member).await {
                        // Each attempt is two changes of the record: none in vain.
                        Found::Here if !self.has_source(leg) => {
                            sometimes!("resync.waits_for_a_source");
                        }
                        Found::Here => return self.readmit(leg, member, since).await,
                        Found::Lost => self.record_loss(member.component).await,
                        Found::Away => {}
                    }
                }
                _ => {}
            }
        }
        self.rebuild_elsewhere(leg, &members).await
    }

    /// Not at once again: a full disk group, or a source that fails, refuses for a while.
    fn put_off(&self, component: ComponentId) {
        let mut all = self.0.next_try.borrow_mut();
        let now = self.now();
        let after = all.get(&component).map_or(READMIT_FIRST, |last| last.after);
        let next = Readmission { at: now + after, after: (after * 2).min(READMIT_LAST) };
        all.insert(component, next);
    }

    /// Whether there is a member to copy from, on a host that can be reached.
    fn has_source(&self, leg: &Leg) -> bool {
        self.any_active(leg).is_some_and(|m| self.is_reachable(m.host))
    }

    fn is_reachable(&self, host: HostId) -> bool {
        host == self.0.ctx.host || self.0.ctx.peers().peer(host).connected
    }

    /// A member too many: a rebuild was overtaken by the return of the member it was to replace.
    fn surplus(&self, members: &[Member]) -> Option<Member> {
        let wanted = self.0.record.borrow().policy.members();
        let active = members.iter().filter(|m| m.role == Role::Active).count();
        if active < wanted || members.len() <= wanted {
            return None;
        }
        let here = self.0.ctx.host;
        let spare = members.iter().filter(|m| !m.mending && m.role != Role::Promoting);
        // Those that are not active first; of the active ones not this host's.
        spare.max_by_key(|m| (m.role != Role::Active, m.host != here)).cloned()
    }

    /// Takes a member out of the record for good; its component is removed as left over.
    async fn remove(&self, leg: &Rc<Leg>, member: Member) -> bool {
        let wanted = self.0.record.borrow().policy.members();
        let changed = self
            .change(|record| {
                let members = &mut record.legs[leg.index].members;
                let others = members.iter().filter(|m| m.component != member.component);
                if others.filter(|m| m.state.is_active()).count() < wanted {
                    return false;
                }
                members.retain(|m| m.component != member.component);
                true
            })
            .await;
        let gone = !self.0.record.borrow().legs[leg.index]
            .members
            .iter()
            .any(|m| m.component == member.component);
        if changed.is_ok() && gone {
            sometimes!("resync.surplus_member_removed");
            leg.remove_member(member.component);
            leg.poke_all();
        }
        changed.is_ok() && gone
    }

    /// Whether an absent member's component can be used again.
    async fn look_for(&self, member: &Member) -> Found {
        if !self.is_reachable(member.host) {
            return Found::Away;
        }
        let request = Request::Status { component: member.component };
        match self.call(member.host, Lane::Control, request, CALL_DEADLINE).await {
            Ok(Reply::Status(status)) if status.lost => Found::Lost,
            // It refuses everything of this epoch. If there is a later owner, the record says so
            // when it is to be changed; if not, what the member knows is of a damaged log.
            Ok(Reply::Status(status)) if status.promise.fenced > self.0.epoch => {
                sometimes!("resync.member_knows_a_later_epoch");
                Found::Lost
            }
            Ok(Reply::Status(_)) => Found::Here,
            Ok(Reply::Failed(StoreError::NoComponent(_) | StoreError::Failed(_))) => Found::Lost,
            _ => Found::Away,
        }
    }

    /// Whether a member's host is there and says that its component is lost.
    pub(crate) async fn is_lost(&self, member: &Member) -> bool {
        matches!(self.look_for(member).await, Found::Lost)
    }

    /// Its host is there and does not have it any more: no reason to wait for the repair delay.
    async fn record_loss(&self, component: ComponentId) {
        let _ = self
            .change(|record| match state_of(record, component) {
                Some(MemberState::Absent { lost, .. }) if !*lost => {
                    *lost = true;
                    true
                }
                _ => false,
            })
            .await;
    }

    /// absent -> resyncing, confirmed; then the member is attached, and receives (R3).
    async fn readmit(&self, leg: &Rc<Leg>, member: &Member, from: Seq) -> bool {
        let changed = self
            .change(|record| {
                let Some(state) = state_of(record, member.component) else { return false };
                if !matches!(state, MemberState::Absent { .. }) {
                    return false;
                }
                *state = MemberState::Resyncing { from };
                true
            })
            .await;
        if changed.is_err() {
            return false;
        }
        self.start_resyncing(leg, member.slot, from).await
    }

    async fn start_resyncing(&self, leg: &Rc<Leg>, slot: u8, from: Seq) -> bool {
        // Not receiving yet: a message of no session would only be refused.
        let until = self.now() + CALL_DEADLINE;
        let attached = self.attach_absent(leg, slot, from, until).await;
        if !attached && !self.is_stopped() {
            // In the record it is resyncing: take that back.
            leg.with_member(slot, |m| {
                m.role = Role::Resyncing { from };
            });
            if let Some(m) = leg.member(slot) {
                self.on_trouble(leg, slot, m.session, Trouble::Link);
            }
        }
        attached
    }

    /// Attaches a member that does not receive yet. The role changes in the same turn in which
    /// everything in flight is queued for it, so that it misses no operation (F10).
    async fn attach_absent(&self, leg: &Rc<Leg>, slot: u8, from: Seq, until: Nanos) -> bool {
        let Some(member) = leg.member(slot) else { return false };
        let mut from = from;
        let (session, life) = loop {
            let session = self.next_session();
            let incomplete = Some(from);
            let request = Request::Attach { component: member.component, session, incomplete };
            let call = self.0.ctx.peers().call(member.host, Lane::Control, request, until);
            let Ok(Reply::Promise { promise, doubtful }) = call.await else { return false };
            let lost_some = doubtful || promise.newest < from;
            if from == Seq(0) || !lost_some || mutant!("resync.lost_end_unnoticed") {
                break (session, self.life_of(member.host));
            }
            // It had everything up to `from`, and has it no more (rows 28, 50).
            sometimes!("resync.returning_member_lost_what_it_had");
            from = Seq(0);
            let changed = self.change(|record| {
                let Some(state) = state_of(record, member.component) else { return false };
                *state = MemberState::Resyncing { from };
                true
            });
            if changed.await.is_err() {
                return false;
            }
            // Attached again, so that it notes that it may lack anything.
            if mutant!("resync.whole_is_not_noted") {
                break (session, self.life_of(member.host));
            }
        };
        // It may be back as it was before the object grew: nothing beyond its end could be copied.
        let blocks = self.0.record.borrow().leg_chunks(leg.index) * BLOCKS_PER_CHUNK;
        let (component, epoch) = (member.component, self.0.epoch);
        let grow = Request::Grow { component, epoch, blocks };
        let until = until.max(self.now() + RETRY_EVERY);
        if !mutant!("resync.stays_small") {
            let grown = self.0.ctx.peers().call(member.host, Lane::Control, grow, until).await;
            if !matches!(grown, Ok(Reply::Done)) {
                return false;
            }
        }
        if self.is_stopped() {
            return false;
        }
        leg.with_member(slot, |m| m.role = Role::Resyncing { from });
        self.on_attached(leg, slot, session, life);
        true
    }

    /// Copies what the member lacks, then promotes it.
    async fn resync(&self, leg: &Rc<Leg>, slot: u8, from: Seq) -> Result<(), Fail> {
        let member = leg.member(slot).ok_or(Fail::Stopped)?;
        let target = End::of(&member);
        // Both lists after the attach (R18): what others have past `from`, and what it has itself.
        let mut chunks = self.chunks_since(&target, from).await?;
        if mutant!("resync.own_past_stays") {
            chunks.clear();
        }
        let source = End::of(&self.any_active(leg).ok_or(Fail::Stopped)?);
        chunks.extend(self.chunks_since(&source, from).await?);
        // It may be back as it was before the object shrank, which left nothing beyond the end. One
        // that has all up to `from` has those discards too: no shrink goes on without it.
        if from == Seq(0) {
            let end = self.0.record.borrow().leg_chunks(leg.index);
            chunks.extend(self.list_chunks(&target, from, end..u32::MAX).await?);
        }
        if !self.is_source(leg, &source) {
            return Err(Fail::Stopped);
        }
        if mutant!("resync.copies_nothing") {
            chunks.clear();
        }
        // Only now: both ends have answered, so this is not an attempt that had no source.
        self.0.ctx.event(Event::ResyncStarted { object: self.0.id, host: member.host });
        self.0.resync.borrow_mut().begin(member.component, chunks.len(), self.now());
        let result = self.resync_chunks(leg, slot, member.component, &chunks).await;
        self.0.resync.borrow_mut().pause(member.component);
        result?;
        self.bring_tickets(leg, slot).await?;
        // Copies have raised its newest operation above some that were on their way. With those it
        // has everything so far, also what its source shows nothing of; what begins later comes in
        // order, and is missed if it does not. Before the promotion, so that whatever is active is
        // complete, and nothing awaits it yet.
        let up_to = self.has_acked(leg, &member).await?;
        if !self.complete(&member, up_to).await {
            return Err(Fail::Stopped);
        }
        self.promote(leg, &member).await
    }

    async fn resync_chunks(
        &self,
        leg: &Rc<Leg>,
        slot: u8,
        component: ComponentId,
        chunks: &BTreeSet<u32>,
    ) -> Result<(), Fail> {
        for &chunk in chunks {
            let began = self.now();
            let guests = self.0.guest_ops.get();
            let copied = {
                let range =
                    BlockRange { start: chunk * BLOCKS_PER_CHUNK, count: BLOCKS_PER_CHUNK as u16 };
                let of = if mutant!("resync.without_lock") { 999 } else { leg.index as u16 };
                let _guard = self.0.locks.lock_exclusive(of, range).await;
                loop {
                    // Chosen under the lock: while it was waited for, an operation of this chunk
                    // may have been decided without the one that would have been the source.
                    let (Some(member), Some(source)) = (leg.member(slot), self.any_active(leg))
                    else {
                        return Err(Fail::Stopped);
                    };
                    if self.is_stopped() || !member.role.receives() || member.mending {
                        return Err(Fail::Stopped);
                    }
                    let ends = [End::of(&source), End::of(&member)];
                    // Under the lock: the object may have grown over it.
                    if chunk >= self.0.record.borrow().leg_chunks(leg.index) {
                        let tags = self.tags_of(&ends[1], chunk).await?;
                        if !tags.iter().all(|tag| tag.state.reads_as_zero()) {
                            sometimes!("resync.clears_what_is_beyond_the_end");
                            self.make_absent(&ends[1], chunk).await?;
                        }
                        break 0;
                    }
                    if let Some(copied) = self.copy_chunk(leg, chunk, ends).await? {
                        break copied;
                    }
                    sometimes!("resync.source_changed");
                }
            };
            self.0.resync.borrow_mut().step(component, copied, self.now());
            // Yield to guests: as long again as the work took, twice that when they are busy, but
            // never so long that the resync does not end.
            if self.0.guest_ops.get() != guests {
                let took = self.now().since(began);
                let most = self.0.ctx.resync_yield_max(took).min(YIELD_MAX);
                self.world().sleep((took * 2).min(most)).await;
            }
            self.0.ctx.resync_pace(copied).await;
        }
        Ok(())
    }

    pub(crate) fn any_active(&self, leg: &Leg) -> Option<Member> {
        let here = self.0.ctx.host;
        let members = leg.members.borrow();
        let active = members.iter().filter(|m| m.role == Role::Active && !m.mending);
        active.min_by_key(|m| (m.host != here, !self.is_reachable(m.host))).cloned()
    }

    /// All chunks of a component with operations past `since`.
    pub async fn chunks_since(&self, end: &End, since: Seq) -> Result<BTreeSet<u32>, Fail> {
        let size = {
            let record = self.0.record.borrow();
            let of = record.members().find(|(_, m)| m.component == end.component);
            of.map_or(0, |(leg, _)| record.leg_chunks(leg))
        };
        self.list_chunks(end, since, 0..size).await
    }

    /// Those of some chunks of a component that have operations past `since`.
    pub async fn list_chunks(
        &self,
        end: &End,
        since: Seq,
        of: Range<u32>,
    ) -> Result<BTreeSet<u32>, Fail> {
        let mut all = BTreeSet::new();
        let mut first = of.start;
        loop {
            let (component, epoch) = (end.component, self.0.epoch);
            let request = Request::ChunksSince { component, epoch, since, first };
            match self.call(end.host, Lane::Bulk, request, READ_DEADLINE).await {
                Ok(Reply::Chunks { chunks, more }) => {
                    // A member whose log was damaged may list chunks of what had its place before.
                    let inside = chunks.iter().filter(|(chunk, _)| of.contains(chunk));
                    all.extend(inside.map(|&(chunk, _)| chunk));
                    match chunks.last() {
                        Some(&(last, _)) if more => first = last + 1,
                        _ => return Ok(all),
                    }
                }
                _ => return Err(Fail::Stopped),
            }
        }
    }

    pub async fn tags_of(&self, end: &End, chunk: u32) -> Result<Vec<BlockTag>, Fail> {
        let request = Request::Tags { component: end.component, epoch: self.0.epoch, chunk };
        match self.call(end.host, Lane::Bulk, request, READ_DEADLINE).await {
            Ok(Reply::Tags(tags)) if tags.len() == BLOCKS_PER_CHUNK as usize => Ok(tags),
            _ => Err(Fail::Stopped),
        }
    }

    /// Whether what that end has just said can be taken for the object's content: it is active, and
    /// has not restarted since it was chosen.
    pub(crate) fn is_source(&self, leg: &Leg, end: &End) -> bool {
        leg.members.borrow().iter().any(|m| {
            let same = m.component == end.component && m.session == end.session;
            same && m.role == Role::Active && !m.mending
        })
    }

    /// Makes one chunk of the second end equal to the first, whose range is locked. Returns the
    /// bytes copied, or none if the first is no source any more.
    async fn copy_chunk(
        &self,
        leg: &Rc<Leg>,
        chunk: u32,
        ends: [End; 2],
    ) -> Result<Option<u64>, Fail> {
        let [source, target] = ends;
        let (a, c) =
            futures_util::future::join(self.tags_of(&source, chunk), self.tags_of(&target, chunk))
                .await;
        if !self.is_source(leg, &source) {
            return Ok(None);
        }
        let (a, c) = (a?, c?);
        let behind: Vec<(u32, BlockTag)> = (0..BLOCKS_PER_CHUNK)
            .filter(|&i| {
                let (a, c) = (a[i as usize], c[i as usize]);
                let differ =
                    if mutant!("resync.newer_wins") { a.seq > c.seq } else { a.seq != c.seq };
                differ || (c.state == BlockState::Bad && a.state != BlockState::Bad)
            })
            .map(|i| (chunk * BLOCKS_PER_CHUNK + i, a[i as usize]))
            .collect();
        let mut copied = 0;
        for part in behind.chunks(self.world().bound(COPY_BLOCKS_MAX, 3)) {
            copied += self.copy_blocks(leg, chunk, part, target).await?;
        }
        Ok(Some(copied))
    }

    /// Makes a locked chunk of one end hold nothing.
    pub(crate) async fn make_absent(&self, end: &End, chunk: u32) -> Result<(), Fail> {
        let start = chunk * BLOCKS_PER_CHUNK;
        let absent = |block| CopyBlock { block, tag: BlockTag::default(), bytes: None };
        let blocks = (start..start + BLOCKS_PER_CHUNK).map(absent).collect();
        let copy = Copy { chunk, blocks, only_if: None, tickets: SetTickets::default() };
        let request = Request::CopyIn { component: end.component, session: end.session, copy };
        match self.call(end.host, Lane::Bulk, request, CALL_DEADLINE).await {
            Ok(Reply::Copied(_)) => Ok(()),
            _ => Err(Fail::Stopped),
        }
    }

    /// Copies blocks of a locked chunk to `target`: bytes come from any active member that has
    /// them; a block that no member has is marked, never zero-filled (fault 35).
    async fn copy_blocks(
        &self,
        leg: &Rc<Leg>,
        chunk: u32,
        part: &[(u32, BlockTag)],
        target: End,
    ) -> Result<u64, Fail> {
        let mut blocks = Vec::with_capacity(part.len());
        let mut i = 0;
        while i < part.len() {
            let (block, tag) = part[i];
            if tag.state.reads_as_zero() && mutant!("resync.discards_stay_behind") {
                i += 1;
                continue;
            }
            if tag.state.reads_as_zero() {
                blocks.push(CopyBlock { block, tag: BlockTag { crc: 0, ..tag }, bytes: None });
                i += 1;
                continue;
            }
            // A run of neighbours is one read.
            let run = part[i..]
                .iter()
                .enumerate()
                .take_while(|&(n, &(b, t))| b == block + n as u32 && !t.state.reads_as_zero())
                .count();
            let range = BlockRange { start: block, count: run as u16 };
            match self.read_blocks(leg, range).await {
                Ok(read) => {
                    let payload = buf::join(&read.payload);
                    for (n, &tag) in read.tags.iter().enumerate() {
                        let bytes = (tag.state == BlockState::Raw)
                            .then(|| payload.slice(n * BLOCK_LEN..(n + 1) * BLOCK_LEN));
                        blocks.push(CopyBlock { block: block + n as u32, tag, bytes });
                    }
                }
                Err(Fail::Volume(VolumeError::Io(_))) if run > 1 => {
                    for &(b, t) in &part[i..i + run] {
                        blocks.push(self.good_or_bad(leg, b, t).await?);
                    }
                }
                Err(Fail::Volume(VolumeError::Io(_))) => blocks.push(bad_block(block, tag)),
                // Out of reach is not damaged: nothing is marked for that.
                Err(_) => return Err(Fail::Stopped),
            }
            i += run;
        }
        let bytes = blocks.iter().filter(|b| b.bytes.is_some()).count() as u64 * BLOCK;
        let copy = Copy { chunk, blocks, only_if: None, tickets: SetTickets::default() };
        let request =
            Request::CopyIn { component: target.component, session: target.session, copy };
        match self.call(target.host, Lane::Bulk, request, READ_DEADLINE * 2).await {
            Ok(Reply::Copied(_)) => Ok(bytes),
            _ => Err(Fail::Stopped),
        }
    }

    async fn good_or_bad(
        &self,
        leg: &Rc<Leg>,
        block: u32,
        tag: BlockTag,
    ) -> Result<CopyBlock, Fail> {
        match self.read_blocks(leg, BlockRange { start: block, count: 1 }).await {
            Ok(read) => {
                let tag = read.tags[0];
                let bytes = (tag.state == BlockState::Raw).then(|| buf::join(&read.payload));
                Ok(CopyBlock { block, tag, bytes })
            }
            Err(Fail::Volume(VolumeError::Io(_))) => Ok(bad_block(block, tag)),
            Err(_) => Err(Fail::Stopped),
        }
    }

    /// resyncing -> active, behind the barrier of R14 and by the rule of R15.
    async fn promote(&self, leg: &Rc<Leg>, complete: &Member) -> Result<(), Fail> {
        let slot = complete.slot;
        // In another session it may have noted that it lacks something.
        let member = leg.member(slot).filter(|m| m.session == complete.session);
        let member = member.ok_or(Fail::Stopped)?;
        let Role::Resyncing { from } = member.role else { return Err(Fail::Stopped) };
        // From here on every acknowledgement awaits this member too (R15).
        leg.with_member(slot, |m| m.role = Role::Promoting);
        if let Err(fail) = self.has_acked(leg, &member).await {
            leg.with_member(slot, |m| m.role = Role::Resyncing { from });
            leg.poke_all();
            return Err(fail);
        }
        let replaced = self.replaced_by(leg, slot);
        self.change(|record| {
            let Some(state) = state_of(record, member.component) else { return false };
            *state = MemberState::Active;
            if let Some(old) = replaced {
                record.legs[leg.index].members.retain(|m| m.component != old);
            }
            true
        })
        .await?;
        leg.with_member(slot, |m| {
            m.role = Role::Active;
            m.unacked.clear();
        });
        if from == Seq(0) && !mutant!("resync.doubt_stays") {
            self.end_doubt();
        }
        leg.forget_reserved();
        self.0.resync.borrow_mut().done(member.component);
        self.0.next_try.borrow_mut().remove(&member.component);
        if let Some(old) = replaced {
            leg.remove_member(old);
        }
        leg.poke_all();
        sometimes!("resync.member_promoted");
        self.0.ctx.event(Event::ResyncDone { object: self.0.id, host: member.host });
        Ok(())
    }

    /// Waits until a member has acknowledged every operation that has begun so far and is sent to
    /// it, and holds a lease (R14). Returns the last of them.
    async fn has_acked(&self, leg: &Leg, member: &Member) -> Result<Seq, Fail> {
        let barrier = leg.last();
        let until = self.now() + READ_DEADLINE;
        loop {
            let now = leg.member(member.slot);
            let now = now.filter(|m| m.session == member.session && !m.mending);
            let Some(now) = now else { return Err(Fail::Stopped) };
            let behind = now.unacked.first().is_some_and(|&seq| seq <= barrier);
            let behind = behind && !mutant!("resync.no_barrier");
            if !behind && now.lease_until > self.now() {
                return Ok(barrier);
            }
            if self.is_stopped() || self.now() > until {
                return Err(Fail::Stopped);
            }
            self.world().sleep(RETRY_EVERY / 5).await;
        }
    }

    /// Tells a member that it lacks nothing any more, and has everything up to an operation;
    /// durable if so.
    pub(crate) async fn complete(&self, member: &Member, up_to: Seq) -> bool {
        let (component, session) = (member.component, member.session);
        let request = Request::Complete { component, session, up_to };
        let reply = self.call(member.host, Lane::Control, request, CALL_DEADLINE).await;
        matches!(reply, Ok(Reply::Done))
    }

    /// A rebuild whose own place was lost too: one of the lost members is enough to say that a copy
    /// is missing.
    async fn forget_lost(&self, leg: &Rc<Leg>) -> bool {
        let is_absent = |m: &MemberRecord| matches!(m.state, MemberState::Absent { .. });
        let lost = {
            let record = self.0.record.borrow();
            let members = &record.legs[leg.index].members;
            let lost = members
                .iter()
                .find(|m| matches!(m.state, MemberState::Absent { lost, .. } if lost));
            lost.filter(|_| members.iter().filter(|m| is_absent(m)).count() > 1)
                .map(|m| m.component)
        };
        let Some(lost) = lost else { return false };
        let changed = self
            .change(|record| {
                let members = &mut record.legs[leg.index].members;
                let before = members.len();
                members.retain(|m| m.component != lost || !is_absent(m));
                members.len() < before
            })
            .await;
        let members = &self.0.record.borrow().legs[leg.index].members;
        let gone = changed.is_ok() && members.iter().all(|m| m.component != lost);
        if gone {
            sometimes!("resync.lost_member_forgotten");
            leg.remove_member(lost);
        }
        gone
    }

    /// The absent member whose place this one takes, if the leg has one member too many.
    fn replaced_by(&self, leg: &Leg, slot: u8) -> Option<ComponentId> {
        let wanted = self.0.record.borrow().policy.members();
        let members = leg.members.borrow();
        if members.len() <= wanted {
            return None;
        }
        let absent = |m: &&Member| m.slot != slot && matches!(m.role, Role::Absent { .. });
        members.iter().find(absent).map(|m| m.component)
    }

    /// A member that has been absent for the repair delay, or is known to be lost.
    fn due_for_repair(&self, leg: &Leg) -> Option<ComponentId> {
        let delay_ms = u64::from(self.0.ctx.repair_delay_s()) * 1000;
        let (now, now_ms) = (self.now(), self.world().unix_ms());
        let record = self.0.record.borrow();
        let mut due = BTreeSet::new();
        let mut known = self.0.absent_since.borrow_mut();
        for m in &record.legs[leg.index].members {
            let MemberState::Absent { at_ms, lost, .. } = m.state else {
                known.remove(&m.component);
                continue;
            };
            // By the record's time, which outlives owners, or by this owner's clock: a wall clock
            // that was put back does not put the repair off.
            let known_ms = now.since(*known.entry(m.component).or_insert(now)).as_ms();
            if lost || known_ms.max(now_ms.saturating_sub(at_ms)) >= delay_ms {
                due.insert(m.component);
            }
        }
        due.pop_first()
    }

    /// A member away for longer than the repair delay, or known to be lost, is rebuilt on another
    /// disk group. It stays in the record until the new one is active.
    async fn rebuild_elsewhere(&self, leg: &Rc<Leg>, members: &[Member]) -> bool {
        let wanted = self.0.record.borrow().policy.members();
        if members.len() > wanted {
            return self.forget_lost(leg).await;
        }
        let Some(gone) = self.due_for_repair(leg) else { return false };
        let record = self.0.record.borrow().clone();
        let Some((host, group)) = self.0.ctx.replacement(&record, leg.index, gone) else {
            return false;
        };
        sometimes!("resync.rebuild_elsewhere");
        let component = ComponentId(self.world().random());
        let blocks = record.leg_chunks(leg.index) * BLOCKS_PER_CHUNK;
        let spec =
            ComponentSpec { object: self.0.id, leg: leg.index as u16, blocks, epoch: self.0.epoch };
        let request = Request::Create { group, component, spec };
        if !matches!(self.call(host, Lane::Control, request, CALL_DEADLINE).await, Ok(Reply::Done))
        {
            self.world().sleep(RETRY_EVERY * 10).await;
            return false;
        }
        let from = Seq(0);
        let state = MemberState::Resyncing { from };
        let entry = MemberRecord { component, host, group, state };
        let changed = self
            .change(|record| {
                let members = &mut record.legs[leg.index].members;
                if members.iter().any(|m| m.component == component) {
                    return false;
                }
                members.push(entry);
                true
            })
            .await;
        if changed.is_err() {
            return false;
        }
        let slot = leg.add_member(Member {
            slot: 0,
            component,
            host,
            group,
            role: Role::Absent { since: from },
            session: Session::default(),
            life: None,
            broken: false,
            mending: false,
            refusals: 0,
            lease_until: Nanos::ZERO,
            unacked: BTreeSet::new(),
        });
        self.start_resyncing(leg, slot, from).await
    }
}

fn bad_block(block: u32, tag: BlockTag) -> CopyBlock {
    sometimes!("resync.block_without_a_good_copy");
    let zeros = mutant!("resync.bad_becomes_zeros");
    let state = if zeros { BlockState::Zero } else { BlockState::Bad };
    CopyBlock { block, tag: BlockTag { seq: tag.seq, state, crc: 0 }, bytes: None }
}
