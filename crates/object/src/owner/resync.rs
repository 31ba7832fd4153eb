//! Bringing members up to date: a returning one from its watermark on, a new one from nothing.
//!
//! The proof of equality is always the exact seq of every 4 KiB block, compared after the member
//! has been attached and while the chunk's range is locked (R16-R18). What has to
//! be compared follows from the durable `from` alone, so a resync that is interrupted anywhere
//! starts again without trusting anybody's memory, and blocks that are equal by then cost no copy.

use super::Owner;
use super::record_cas::state_of;
use crate::ctx::Protocol;
use crate::events::Event;
use crate::failure::{Fail, Interrupted, MemberFault};
use crate::leg::{Leg, Member, MemberEvent, Role};
use crate::limits::{CALL_DEADLINE, READ_DEADLINE, RETRY_EVERY};
use crate::member_client::{Attached, Endpoint, MemberError};
use atoll_format::checksum::crc;
use atoll_format::id::{ComponentId, Epoch, HostId, Seq};
use atoll_format::op::{BlockRange, BlockState, BlockTag};
use atoll_format::record::{MemberRecord, MemberState, key};
use atoll_format::units::{BLOCK, BLOCK_LEN, BLOCKS_PER_CHUNK};
use atoll_world::components::{ComponentSpec, Copy, CopyBlock, SetTickets};
use atoll_world::directory::{Compare, Revision};
use atoll_world::{Lane, Nanos, StoreError, VolumeError, World, buf, mutant, sometimes};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Blocks per message: keeps a copy's payload at half a chunk.
const COPY_BLOCKS_MAX: usize = 128;

/// Where an absent member's component is.
enum Found {
    Here,
    /// Its host cannot be asked.
    Away,
    /// Its host has lost it.
    Lost,
    /// It has promised this higher epoch.
    Ahead(Epoch),
}

/// What heals a leg, one after the other; if none of it was to be done, a rebuild elsewhere.
#[derive(Debug)]
enum HealStep {
    /// A member too many: a rebuild was overtaken by the return of the member it was to replace.
    Remove(Member),
    /// What it lacks is copied, from there on.
    Resync(Member, Seq),
    /// It is taken in again, if its component is there.
    Readmit(Member),
}

/// What to do for a leg of these members that is to have `wanted`. `put_off`: members whose resync
/// failed a short while ago. Pure.
fn heal_steps(
    members: &[Member],
    wanted: usize,
    here: HostId,
    put_off: impl Fn(&Member) -> bool,
) -> Vec<HealStep> {
    let free = || members.iter().filter(|m| !m.is_recovering());
    let active = members.iter().filter(|m| m.role() == Role::Active).count();
    if active >= wanted && members.len() > wanted {
        // Those that are not active first; of the active ones not this host's.
        let spare = free().filter(|m| m.role() != Role::Promoting);
        let surplus = spare.max_by_key(|m| (m.role() != Role::Active, m.host != here));
        if let Some(surplus) = surplus {
            return vec![HealStep::Remove(surplus.clone())];
        }
    }
    let mut steps = Vec::new();
    for member in free() {
        match member.role() {
            Role::Resyncing { from } => {
                steps.push(HealStep::Resync(member.clone(), from));
                break;
            }
            Role::Absent { .. } if !put_off(member) => {
                steps.push(HealStep::Readmit(member.clone()));
            }
            _ => {}
        }
    }
    steps
}

/// How long a resync that yields to guests sleeps at most per chunk: its floor.
const YIELD_MAX: Nanos = Nanos::from_ms(40);

impl<W: World, P: Protocol> Owner<W, P> {
    /// Heals this object until the owner stops.
    pub async fn heal(self) {
        while !self.is_stopped() {
            let changed = self.0.ctx.peers.changed().notified();
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
        let members = leg.members.borrow().clone();
        // A pause is about copying, and a host is removed once this is recorded.
        for member in members.iter().filter(|m| matches!(m.role(), Role::Absent { .. })) {
            let is_gone = self.0.ctx.peers.is_removed(member.host);
            if is_gone && self.record_loss(member.component).await {
                sometimes!("resync.copy_of_a_removed_host_is_lost");
            }
        }
        if self.0.ctx.resync_paused.get() {
            return false;
        }
        let wanted = leg.layout.members();
        let (here, now) = (self.0.ctx.host, self.now());
        let put_off = |m: &Member| self.0.next_try.borrow().is_put_off(m.component, now);
        for step in heal_steps(&members, wanted, here, put_off) {
            match step {
                HealStep::Remove(member) => return self.remove(leg, member).await,
                HealStep::Resync(member, from) => {
                    if self.resync(leg, member.slot, from).await.is_err() && !self.is_stopped() {
                        self.0.next_try.borrow_mut().put_off(member.component, self.now());
                        self.on_fault(leg, member.slot, member.session(), MemberFault::Link);
                        self.world().sleep(RETRY_EVERY).await;
                    }
                    return true;
                }
                HealStep::Readmit(member) => match self.look_for(&member).await {
                    // Each attempt is two changes of the record: none in vain.
                    Found::Here if !self.has_source(leg) => {
                        sometimes!("resync.waits_for_a_source");
                    }
                    Found::Here => return self.readmit(leg, &member).await,
                    Found::Lost => {
                        self.record_loss(member.component).await;
                    }
                    Found::Ahead(promised) => self.give_up(&member, promised).await,
                    Found::Away => {}
                },
            }
        }
        self.rebuild_elsewhere(leg, &members).await
    }

    /// Whether there is a member to copy from, on a host that can be reached.
    fn has_source(&self, leg: &Leg) -> bool {
        self.any_active(leg).is_some_and(|m| self.0.ctx.is_reachable(m.place()))
    }

    /// Takes a member out of the record for good; its component is removed as left over.
    async fn remove(&self, leg: &Rc<Leg>, member: Member) -> bool {
        let wanted = leg.layout.members();
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
        if self.0.ctx.peers.is_removed(member.host) {
            return Found::Lost;
        }
        if !self.0.ctx.is_reachable(member.place()) {
            return Found::Away;
        }
        match self.members().status(member.endpoint(), CALL_DEADLINE).await {
            Ok(status) if status.lost => Found::Lost,
            Ok(status) if status.promise.fenced > self.0.epoch => {
                Found::Ahead(status.promise.fenced)
            }
            Ok(_) => Found::Here,
            Err(MemberError::Store(StoreError::NoComponent(_) | StoreError::Failed(_))) => {
                Found::Lost
            }
            Err(_) => Found::Away,
        }
    }

    /// Whether a member's host is there and says that its component is lost.
    pub(crate) async fn is_lost(&self, member: &Member) -> bool {
        matches!(self.look_for(member).await, Found::Lost | Found::Ahead(_))
    }

    /// It refuses everything of this epoch. If there is a later owner, the record says so now. If
    /// not, what the member knows is of a damaged log, or the directory was put back to an older
    /// state and this owner has served since: then both have what the other has not. What is served
    /// stays, and the member is made anew elsewhere.
    async fn give_up(&self, member: &Member, promised: Epoch) {
        sometimes!("resync.member_knows_a_later_epoch");
        if self.record_loss(member.component).await {
            let (object, host) = (self.0.id, member.host);
            self.0.ctx.event(Event::MemberWasAhead { object, host, promised });
        }
    }

    /// Its host is there and does not have it any more: no reason to wait for the repair delay.
    /// Whether that was not recorded before.
    async fn record_loss(&self, component: ComponentId) -> bool {
        let is_news = Cell::new(false);
        let changed = self.change(|record| match state_of(record, component) {
            Some(MemberState::Absent { lost, .. }) if !*lost => {
                *lost = true;
                is_news.set(true);
                true
            }
            _ => false,
        });
        changed.await.is_ok() && is_news.get()
    }

    /// absent -> resyncing, confirmed; then the member is attached, and receives (R3).
    async fn readmit(&self, leg: &Rc<Leg>, member: &Member) -> bool {
        // Whoever removes the host has seen it as absent in all records, and relies on that.
        let belongs = belongs(member.host);
        let changed = self
            .change_while(Some(&belongs), |record| {
                let Some(state) = state_of(record, member.component) else { return false };
                // As it is now: more may be in doubt than when the member was looked at (R4, R20).
                let MemberState::Absent { since, .. } = *state else { return false };
                *state = MemberState::Resyncing { from: since };
                true
            })
            .await;
        match self.recorded_from(member.component) {
            Some(from) if changed.is_ok() => self.start_resyncing(leg, member.slot, from).await,
            _ => false,
        }
    }

    /// Up to where a resyncing member has everything, by the record.
    fn recorded_from(&self, component: ComponentId) -> Option<Seq> {
        match state_of(&mut self.0.record.borrow_mut(), component) {
            Some(MemberState::Resyncing { from }) => Some(*from),
            _ => None,
        }
    }

    async fn start_resyncing(&self, leg: &Rc<Leg>, slot: u8, from: Seq) -> bool {
        // Not receiving yet: a message of no session would only be refused.
        let until = self.now() + CALL_DEADLINE;
        let attached = self.attach_absent(leg, slot, from, until).await;
        if !attached && !self.is_stopped() {
            // In the record it is resyncing: take that back.
            leg.tell(slot, MemberEvent::NotAttached(from));
            if let Some(m) = leg.member(slot) {
                self.on_fault(leg, slot, m.session(), MemberFault::Link);
            }
        }
        attached
    }

    /// Attaches a member that does not receive yet. The role changes in the same turn in which
    /// everything in flight is queued for it, so that it misses no operation (R14).
    async fn attach_absent(&self, leg: &Rc<Leg>, slot: u8, from: Seq, until: Nanos) -> bool {
        let Some(member) = leg.member(slot) else { return false };
        let mut from = from;
        let (session, life) = loop {
            let session = self.next_session();
            let to = Endpoint { session, ..member.endpoint() };
            let attached = self.members().attach(to, Some(from), until).await;
            let Ok(Attached { promise, doubtful }) = attached else { return false };
            let lost_some = doubtful || promise.newest < from;
            if from == Seq(0) || !lost_some || mutant!("resync.lost_end_unnoticed") {
                break (session, self.0.ctx.life_of(member.place()));
            }
            // It had everything up to `from`, and has it no more (rows 28 and 50 of
            // `docs/faults.md`).
            sometimes!("resync.returning_member_lost_what_it_had");
            from = Seq(0);
            let changed = self.change(|record| {
                let Some(state) = state_of(record, member.component) else { return false };
                let is_resyncing = state.is_resyncing();
                if is_resyncing {
                    *state = MemberState::Resyncing { from };
                }
                is_resyncing
            });
            if changed.await.is_err() {
                return false;
            }
            // Attached again, so that it notes that it may lack anything.
            if mutant!("resync.whole_is_not_noted") {
                break (session, self.0.ctx.life_of(member.place()));
            }
        };
        // It may be back as it was before the object grew: nothing beyond its end could be copied.
        let blocks = self.0.record.borrow().leg_chunks(leg.index) * BLOCKS_PER_CHUNK;
        let until = until.max(self.now() + RETRY_EVERY);
        if !mutant!("resync.stays_small")
            && self.members().grow(member.endpoint(), blocks, until).await.is_err()
        {
            return false;
        }
        if self.is_stopped() {
            return false;
        }
        // The last copy may have come back with less meanwhile: then this one is compared with it
        // whole, and has to note that it may lack anything (R20).
        if self.recorded_from(member.component) != Some(from) {
            sometimes!("resync.more_is_in_doubt_than_was_noted");
            return false;
        }
        leg.tell(slot, MemberEvent::Readmitted(from));
        self.on_attached(leg, slot, session, life);
        true
    }

    /// Copies what the member lacks, then promotes it.
    async fn resync(&self, leg: &Rc<Leg>, slot: u8, from: Seq) -> Result<(), Interrupted> {
        let member = leg.member(slot).ok_or(Interrupted)?;
        let target = member.endpoint();
        // Both lists after the attach (R18): what others have past `from`, and what it has itself.
        let mut chunks = self.chunks_since(leg, target, from).await?;
        if mutant!("resync.own_past_stays") {
            chunks.clear();
        }
        let source = self.any_active(leg).ok_or(Interrupted)?.endpoint();
        chunks.extend(self.chunks_since(leg, source, from).await?);
        // It may be back as it was before the object shrank, which left nothing beyond the end:
        // also if the discards of that are past `from`, of which only what is in the object is
        // compared.
        let end = self.0.record.borrow().leg_chunks(leg.index);
        chunks.extend(self.members().chunks_since(target, Seq(0), end..u32::MAX).await?);
        if !self.is_source(leg, source) {
            return Err(Interrupted);
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
        self.members().complete(target, up_to).await?;
        self.promote(leg, &member).await
    }

    async fn resync_chunks(
        &self,
        leg: &Rc<Leg>,
        slot: u8,
        component: ComponentId,
        chunks: &BTreeSet<u32>,
    ) -> Result<(), Interrupted> {
        for &chunk in chunks {
            let began = self.now();
            let guests = self.0.guest_ops.get();
            let copied = {
                let range = BlockRange::of_chunk(chunk);
                let of = if mutant!("resync.without_lock") { 999 } else { leg.index as u16 };
                let _guard = self.0.locks.lock_exclusive(of, range).await;
                loop {
                    // Chosen under the lock: while it was waited for, an operation of this chunk
                    // may have been decided without the one that would have been the source.
                    let (Some(member), Some(source)) = (leg.member(slot), self.any_active(leg))
                    else {
                        return Err(Interrupted);
                    };
                    if self.is_stopped() || !member.role().receives() || member.is_recovering() {
                        return Err(Interrupted);
                    }
                    let ends = [source.endpoint(), member.endpoint()];
                    // Under the lock: the object may have grown over it.
                    if chunk >= self.0.record.borrow().leg_chunks(leg.index) {
                        if self.clear_chunk_beyond_the_end(ends[1], chunk).await? {
                            sometimes!("resync.clears_what_is_beyond_the_end");
                        }
                        break 0;
                    }
                    // Copies lower seqs: what is active, or awaited, gets none in a resync.
                    let role = member.role();
                    assert!(matches!(role, Role::Resyncing { .. }), "{role:?} of {component:?}");
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
        let active = members.iter().filter(|m| m.role() == Role::Active && !m.is_recovering());
        active.min_by_key(|m| (m.host != here, !self.0.ctx.is_reachable(m.place()))).cloned()
    }

    /// All chunks of a member with operations past `since`.
    pub async fn chunks_since(
        &self,
        leg: &Leg,
        of: Endpoint,
        since: Seq,
    ) -> Result<BTreeSet<u32>, MemberError> {
        let size = self.0.record.borrow().leg_chunks(leg.index);
        self.members().chunks_since(of, since, 0..size).await
    }

    /// Whether what that end has just said can be taken for the object's content: it is active, and
    /// has not restarted since it was chosen.
    pub(crate) fn is_source(&self, leg: &Leg, end: Endpoint) -> bool {
        leg.members.borrow().iter().any(|m| {
            let same = m.component == end.component && m.session() == end.session;
            same && m.role() == Role::Active && !m.is_recovering()
        })
    }

    /// Makes one chunk of the second end equal to the first, whose range is locked. Returns the
    /// bytes copied, or none if the first is no source any more.
    async fn copy_chunk(
        &self,
        leg: &Rc<Leg>,
        chunk: u32,
        ends: [Endpoint; 2],
    ) -> Result<Option<u64>, Interrupted> {
        let [source, target] = ends;
        assert_ne!(source.component, target.component, "it would be copied to itself");
        if self.world().audits() {
            let range = BlockRange::of_chunk(chunk);
            let is_alone = self.0.locks.is_exclusive(leg.index as u16, range);
            assert!(is_alone, "chunk {chunk} is copied, and is not locked (R17)");
        }
        let tags = |of| self.members().tags(Lane::Bulk, of, chunk);
        let (a, c) = futures_util::future::join(tags(source), tags(target)).await;
        if !self.is_source(leg, source) {
            return Ok(None);
        }
        let (a, c) = (a?, c?);
        let behind: Vec<(u32, BlockTag)> = (0..BLOCKS_PER_CHUNK)
            .filter(|&i| {
                let (a, c) = (a[i as usize], c[i as usize]);
                let differ = if mutant!("resync.newer_wins") {
                    a.seq > c.seq
                } else {
                    a.seq != c.seq || is_of_another_history(a, c)
                };
                differ || (c.state == BlockState::Bad && a.state != BlockState::Bad)
            })
            .map(|i| (chunk * BLOCKS_PER_CHUNK + i, a[i as usize]))
            .collect();
        let mut copied = 0;
        for part in behind.chunks(self.world().bound(COPY_BLOCKS_MAX, 3)) {
            copied += self.copy_blocks(leg, chunk, part, target).await?;
        }
        assert!(copied <= behind.len() as u64 * BLOCK, "{copied} bytes of {}", behind.len());
        Ok(Some(copied))
    }

    /// Makes a chunk beyond the object's end hold nothing at one end; whether it held something.
    pub(crate) async fn clear_chunk_beyond_the_end(
        &self,
        end: Endpoint,
        chunk: u32,
    ) -> Result<bool, Interrupted> {
        let tags = self.members().tags(Lane::Bulk, end, chunk).await?;
        let holds_something = !tags.iter().all(|tag| tag.state.reads_as_zero());
        if holds_something {
            self.make_absent(end, chunk).await?;
        }
        Ok(holds_something)
    }

    /// Makes a locked chunk of one end hold nothing.
    pub(crate) async fn make_absent(&self, end: Endpoint, chunk: u32) -> Result<(), Interrupted> {
        let start = chunk * BLOCKS_PER_CHUNK;
        let absent = |block| CopyBlock { block, tag: BlockTag::default(), bytes: None };
        let blocks = (start..start + BLOCKS_PER_CHUNK).map(absent).collect();
        let copy = Copy { chunk, blocks, only_if: None, tickets: SetTickets::default() };
        self.members().copy_in(end, copy, CALL_DEADLINE).await?;
        Ok(())
    }

    /// Copies blocks of a locked chunk to `target`: bytes come from any active member that has
    /// them; a block that no member has is marked, never zero-filled (fault 35).
    async fn copy_blocks(
        &self,
        leg: &Rc<Leg>,
        chunk: u32,
        part: &[(u32, BlockTag)],
        target: Endpoint,
    ) -> Result<u64, Interrupted> {
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
            assert!(range.is_valid() && range.chunk() == chunk, "{range:?} of chunk {chunk}");
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
                Err(_) => return Err(Interrupted),
            }
            i += run;
        }
        assert_eq!(blocks.len(), part.len(), "each block that is behind is copied");
        let asked = part.iter().map(|&(block, _)| block);
        assert!(blocks.iter().map(|b| b.block).eq(asked), "others than those that are behind");
        if self.world().audits() {
            for b in blocks.iter().filter(|b| b.tag.state == BlockState::Raw) {
                let crc = b.bytes.as_ref().map(|bytes| crc(bytes));
                assert_eq!(crc, Some(b.tag.crc), "bytes of block {}", b.block);
            }
        }
        let bytes = blocks.iter().filter(|b| b.bytes.is_some()).count() as u64 * BLOCK;
        let copy = Copy { chunk, blocks, only_if: None, tickets: SetTickets::default() };
        self.members().copy_in(target, copy, READ_DEADLINE * 2).await?;
        Ok(bytes)
    }

    async fn good_or_bad(
        &self,
        leg: &Rc<Leg>,
        block: u32,
        tag: BlockTag,
    ) -> Result<CopyBlock, Interrupted> {
        match self.read_blocks(leg, BlockRange { start: block, count: 1 }).await {
            Ok(read) => {
                let tag = read.tags[0];
                let bytes = (tag.state == BlockState::Raw).then(|| buf::join(&read.payload));
                Ok(CopyBlock { block, tag, bytes })
            }
            Err(Fail::Volume(VolumeError::Io(_))) => Ok(bad_block(block, tag)),
            Err(_) => Err(Interrupted),
        }
    }

    /// resyncing -> active, behind the barrier of R14 and by the rule of R15.
    async fn promote(&self, leg: &Rc<Leg>, complete: &Member) -> Result<(), Interrupted> {
        let slot = complete.slot;
        // In another session it may have noted that it lacks something.
        let member = leg.member(slot).filter(|m| m.session() == complete.session());
        let member = member.ok_or(Interrupted)?;
        let Role::Resyncing { from } = member.role() else { return Err(Interrupted) };
        // From here on every acknowledgement awaits this member too (R15).
        leg.tell(slot, MemberEvent::Promoting);
        if let Err(fail) = self.has_acked(leg, &member).await {
            leg.tell(slot, MemberEvent::PromotionFailed(from));
            leg.poke_all();
            return Err(fail);
        }
        let replaced = self.replaced_by(leg, slot);
        self.change(|record| {
            let Some(state) = state_of(record, member.component) else { return false };
            // What is in doubt of it since has to be looked at first (R4, R14, R20).
            if *state != (MemberState::Resyncing { from }) {
                return false;
            }
            *state = MemberState::Active;
            if let Some(old) = replaced {
                record.legs[leg.index].members.retain(|m| m.component != old);
            }
            true
        })
        .await?;
        // The directory says who is active (R20).
        let recorded = state_of(&mut self.0.record.borrow_mut(), member.component).copied();
        if recorded != Some(MemberState::Active) {
            sometimes!("resync.more_is_in_doubt_than_was_copied");
            leg.tell(slot, MemberEvent::PromotionFailed(from));
            leg.poke_all();
            return Err(Interrupted);
        }
        leg.tell(slot, MemberEvent::Promoted);
        if from == Seq(0) && !mutant!("resync.doubt_stays") {
            self.end_doubt();
        }
        leg.forget_reserved();
        self.0.resync.borrow_mut().done(member.component);
        self.0.next_try.borrow_mut().forget(member.component);
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
    async fn has_acked(&self, leg: &Leg, member: &Member) -> Result<Seq, Interrupted> {
        let barrier = leg.last();
        let until = self.now() + READ_DEADLINE;
        loop {
            let now = leg.member(member.slot);
            let now = now.filter(|m| m.session() == member.session() && !m.is_recovering());
            let Some(now) = now else { return Err(Interrupted) };
            let behind = now.unacked().first().is_some_and(|&seq| seq <= barrier);
            let behind = behind && !mutant!("resync.no_barrier");
            if !behind && now.lease_until() > self.now() {
                return Ok(barrier);
            }
            if self.is_stopped() || self.now() > until {
                return Err(Interrupted);
            }
            self.world().sleep(RETRY_EVERY / 5).await;
        }
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
        let wanted = leg.layout.members();
        let members = leg.members.borrow();
        if members.len() <= wanted {
            return None;
        }
        let absent = |m: &&Member| m.slot != slot && matches!(m.role(), Role::Absent { .. });
        members.iter().find(absent).map(|m| m.component)
    }

    /// A member that has been absent for the repair delay, or is known to be lost.
    fn due_for_repair(&self, leg: &Leg) -> Option<ComponentId> {
        let delay_ms = u64::from(self.0.ctx.repair_delay_s.get()) * 1000;
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
        let wanted = leg.layout.members();
        if members.len() > wanted {
            return self.forget_lost(leg).await;
        }
        let Some(gone) = self.due_for_repair(leg) else { return false };
        let record = self.0.record.borrow().clone();
        let (host, group) = match self.0.ctx.replacement(&record, leg.index, gone) {
            Ok(place) => {
                self.0.without_place.borrow_mut().remove(&gone);
                place
            }
            Err(refusal) => {
                if self.0.without_place.borrow_mut().insert(gone) {
                    let why = refusal.to_string();
                    self.0.ctx.event(Event::NoPlace { object: self.0.id, why });
                }
                return false;
            }
        };
        sometimes!("resync.rebuild_elsewhere");
        let here = record.legs[leg.index].members.iter();
        let alone = here.filter(|m| m.component != gone).all(|m| m.host != host);
        assert!(alone, "two members of leg {} on host {host}", leg.index);
        let component = ComponentId(self.world().random());
        let blocks = record.leg_chunks(leg.index) * BLOCKS_PER_CHUNK;
        let spec =
            ComponentSpec { object: self.0.id, leg: leg.index as u16, blocks, epoch: self.0.epoch };
        if self.members().create((host, group), component, spec).await.is_err() {
            self.world().sleep(RETRY_EVERY * 10).await;
            return false;
        }
        let from = Seq(0);
        let state = MemberState::Resyncing { from };
        let entry = MemberRecord { component, host, group, state };
        let changed = self
            .change_while(Some(&belongs(host)), |record| {
                let members = &mut record.legs[leg.index].members;
                if members.iter().any(|m| m.component == component) {
                    return false;
                }
                members.push(entry);
                true
            })
            .await;
        if !matches!(changed, Ok(true)) {
            return false;
        }
        let role = Role::Absent { since: from };
        let slot = leg.add_member(Member::new(0, component, (host, group), role));
        self.start_resyncing(leg, slot, from).await
    }
}

/// Holds as long as a host has not been removed from the cluster.
fn belongs(host: HostId) -> Compare {
    Compare { key: key::removed(host), modified: Revision(0) }
}

/// Whether blocks of the same operation have different content: after the directory was put back to
/// an older state, two owners may have given out the same numbers.
fn is_of_another_history(a: BlockTag, c: BlockTag) -> bool {
    let is_bad = |tag: BlockTag| tag.state == BlockState::Bad;
    let content = |tag: BlockTag| (tag.state == BlockState::Raw, tag.crc);
    !is_bad(a) && !is_bad(c) && content(a) != content(c)
}

fn bad_block(block: u32, tag: BlockTag) -> CopyBlock {
    sometimes!("resync.block_without_a_good_copy");
    let zeros = mutant!("resync.bad_becomes_zeros");
    let state = if zeros { BlockState::Zero } else { BlockState::Bad };
    CopyBlock { block, tag: BlockTag { seq: tag.seq, state, crc: 0 }, bytes: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leg::MemberEvent;
    use atoll_format::id::{GroupId, Session};

    const HERE: HostId = HostId(0);
    const BEHIND: Role = Role::Resyncing { from: Seq(4) };
    const AWAY: Role = Role::Absent { since: Seq(4) };

    fn members(roles: &[Role]) -> Vec<Member> {
        let member = |(n, &role): (usize, &Role)| {
            let id = n as u64;
            Member::new(n as u8, ComponentId(id), (HostId(id), GroupId(id)), role)
        };
        roles.iter().enumerate().map(member).collect()
    }

    /// The steps in short: what, and which member.
    fn short(members: &[Member], put_off: &[u8]) -> Vec<(char, u8)> {
        let steps = heal_steps(members, 2, HERE, |m| put_off.contains(&m.slot));
        let short = |step| match step {
            HealStep::Remove(m) => ('-', m.slot),
            HealStep::Resync(m, _) => ('~', m.slot),
            HealStep::Readmit(m) => ('+', m.slot),
        };
        steps.into_iter().map(short).collect()
    }

    #[test]
    fn a_leg_is_healed_step_by_step() {
        let active = Role::Active;
        for (roles, put_off, expected) in [
            (vec![active, active], vec![], vec![]),
            (vec![active, BEHIND], vec![], vec![('~', 1)]),
            (vec![active, AWAY], vec![], vec![('+', 1)]),
            (vec![active, AWAY], vec![1], vec![]),
            // One that cannot be taken in does not hold up another, and one resync is enough.
            (vec![active, AWAY, BEHIND], vec![], vec![('+', 1), ('~', 2)]),
            (vec![active, BEHIND, AWAY], vec![], vec![('~', 1)]),
            (vec![active, Role::Promoting, AWAY], vec![], vec![('+', 2)]),
            // One too many: first who is not active, then who is not here.
            (vec![active, active, AWAY], vec![], vec![('-', 2)]),
            (vec![active, active, active], vec![], vec![('-', 2)]),
            (vec![active, active, Role::Promoting], vec![], vec![('-', 1)]),
            (vec![active, BEHIND, active], vec![], vec![('-', 1)]),
        ] {
            assert_eq!(short(&members(&roles), &put_off), expected, "{roles:?} {put_off:?}");
        }
    }

    #[test]
    fn who_is_being_recovered_is_left_alone() {
        let mut all = members(&[Role::Active, BEHIND]);
        let _ = all[1].on(MemberEvent::Fault(Session::default(), &MemberFault::Link));
        assert!(short(&all, &[]).is_empty());
    }
}
