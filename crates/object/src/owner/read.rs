//! The owner's read path: which member is asked, what happens when its answer is late or bad, and
//! what the volume's map of used blocks is.

use super::{Owner, covering, whole_blocks};
use crate::ctx::Protocol;
use crate::events::Event;
use crate::failure::{Fail, MemberFault, Stop};
use crate::leg::{Leg, Member, Role};
use crate::limits::{HOLD, LEASE, READ_DEADLINE, RETRY_EVERY};
use crate::member_client::MemberError;
use atoll_format::id::ComponentId;
use atoll_format::op::{BlockRange, BlockState, BlockTag};
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, CHUNK};
use atoll_world::components::{Copy, CopyBlock, ReadBlocks, SetTickets};
use atoll_world::volume::{Extent, ExtentKind};
use atoll_world::{Buf, Lane, StoreError, VolumeError, World, buf, mutant, sometimes};
use futures_util::future::{Either, select};
use std::rc::Rc;

impl<W: World, P: Protocol> Owner<W, P> {
    /// Carries out a read of a client.
    pub async fn read(&self, at: u64, len: u64) -> Result<Vec<Buf>, Fail> {
        let (leg, place) = self.place(at, len)?;
        let range = covering(place.offset, len);
        let of = if mutant!("read.without_lock") { 999 } else { leg.index as u16 };
        let guard = self.0.locks.lock_shared(of, range).await;
        self.count_guest();
        let blocks = self.read_blocks(&leg, range).await?;
        self.await_lease(&leg).await?;
        assert!(!self.is_stopped(), "a stopped owner answers nothing (R21)");
        if self.world().audits() {
            let bytes = usize::from(range.count) * BLOCK as usize;
            assert_eq!(buf::total_len(&blocks.payload), bytes, "bytes of {range:?}");
            self.audit_read(&leg, range);
        }
        drop(guard);
        if whole_blocks(place.offset, len) {
            return Ok(blocks.payload);
        }
        let head = (place.offset % BLOCK) as usize;
        Ok(vec![buf::join(&blocks.payload).slice(head..head + len as usize)])
    }

    /// What has just been read, and is still locked, no change in flight overlaps (R8).
    fn audit_read(&self, leg: &Leg, range: BlockRange) {
        // In reality a lease may end between two looks at the clock.
        if !self.world().audits() {
            return;
        }
        for op in leg.in_flight() {
            let apart = op.range.end() <= range.start || range.end() <= op.range.start;
            assert!(apart, "{:?} changes {:?} while {range:?} is read", op.id, op.range);
        }
        let now = self.now();
        for m in leg.members.borrow().iter().filter(|m| m.role() == Role::Active) {
            assert!(m.lease_until() > now, "{:?} gives no lease (R11)", m.component);
        }
    }

    /// Returns once this owner may answer reads of that leg (R11).
    pub(crate) async fn await_lease(&self, leg: &Leg) -> Result<(), Fail> {
        let held_since = self.now();
        loop {
            let renewed = self.0.lease_notify.notified();
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            let now = self.now();
            let until = leg.lease_until();
            assert!(until <= now + LEASE, "leases until {until} at {now}: longer than any");
            if now < until || mutant!("read.without_lease") {
                return Ok(());
            }
            sometimes!("owner.read_waits_for_a_lease");
            if now.since(held_since) > HOLD {
                let why = "no lease from the members of this object".to_string();
                return Err(VolumeError::TimedOut(why).into());
            }
            let tick = self.world().sleep_until(now + RETRY_EVERY * 5);
            select(renewed, std::pin::pin!(tick)).await;
        }
    }

    /// Good bytes of `range` from whichever active member has them; the range is locked.
    /// A member whose bytes are bad is repaired in the background.
    pub async fn read_blocks(&self, leg: &Rc<Leg>, range: BlockRange) -> Result<ReadBlocks, Fail> {
        let held_since = self.now();
        loop {
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            let readers = self.readers(leg, range);
            let mut bad = Vec::new();
            // One that is being brought back may have what no other has: it is waited for, until
            // it is here again or dropped.
            let mut unreachable = leg
                .members
                .borrow()
                .iter()
                .any(|m| m.role() == Role::Active && readers.iter().all(|r| r.slot != m.slot));
            let mut i = 0;
            while i < readers.len() {
                let (answer, used) = self.read_hedged(&readers[i..], range).await;
                let reader = &readers[i + used];
                match answer {
                    Ok(blocks) => {
                        for (slot, blocks_bad) in bad {
                            self.repair_later(leg, slot, blocks_bad);
                        }
                        return Ok(blocks);
                    }
                    Err(MemberError::Store(StoreError::Bad(_))) if mutant!("read.bad_is_zeros") => {
                        let count = usize::from(range.count);
                        let tags = vec![BlockTag::default(); count];
                        return Ok(ReadBlocks {
                            tags,
                            payload: vec![Buf::zeros(count * BLOCK as usize)],
                        });
                    }
                    Err(MemberError::Store(StoreError::Bad(blocks))) => {
                        bad.push((reader.slot, blocks));
                    }
                    Err(MemberError::Superseded(_)) => {
                        self.stop(Stop::Superseded);
                        return Err(Fail::Stopped);
                    }
                    Err(error) => {
                        unreachable = true;
                        self.on_reader_of_an_earlier_life(leg, reader, error);
                    }
                }
                i += 1;
            }
            if !bad.is_empty()
                && !unreachable
                && let Some(blocks) =
                    Box::pin(self.read_block_by_block(leg, range, &readers)).await?
            {
                return Ok(blocks);
            }
            if self.now().since(held_since) > HOLD {
                let members = leg.members.borrow();
                let active = members.iter().filter(|m| m.role() == Role::Active);
                let hosts: Vec<_> = active.map(|m| self.0.ctx.host_name(m.host)).collect();
                let why =
                    format!("no copy can be read: that on {} does not answer", hosts.join(", "));
                return Err(VolumeError::TimedOut(why).into());
            }
            self.world().sleep(RETRY_EVERY).await;
        }
    }

    /// A member that has restarted serves once a session of this life is open.
    fn on_reader_of_an_earlier_life(&self, leg: &Rc<Leg>, reader: &Member, error: MemberError) {
        if let MemberError::Store(StoreError::Session { .. }) = error {
            self.on_fault(leg, reader.slot, reader.session(), error.fault());
        }
    }

    /// Active members in the order in which to ask them: this host's, else spread by strip; slow
    /// ones last. Not those without an open session: what one of them may have lost is being found
    /// out, or it has lost something and is on its way out (S18).
    fn readers(&self, leg: &Leg, range: BlockRange) -> Vec<Member> {
        let is_sound = |m: &&Member| {
            let is_open = !m.is_broken() || mutant!("read.from_a_broken_session");
            m.role() == Role::Active && is_open && leg.layout.serves(m.slot, range)
        };
        let mut readers: Vec<Member> =
            leg.members.borrow().iter().filter(is_sound).cloned().collect();
        if mutant!("read.from_the_resyncing") {
            readers =
                leg.members.borrow().iter().filter(|m| m.role().receives()).cloned().collect();
        }
        if !readers.is_empty() {
            let turn = range.chunk() as usize % readers.len();
            readers.rotate_left(turn);
        }
        let (here, now, hedge) = (self.0.ctx.host, self.now(), &self.0.ctx.hedge);
        let last = |group| hedge.is_overtaken(group, now);
        readers.sort_by_key(|m| (m.is_recovering(), last(m.group), m.host != here));
        // R19, S18.
        let sound = readers.iter().all(|m| m.role() == Role::Active && !m.is_broken());
        assert!(sound, "not all of these may be read: {readers:?}");
        readers
    }

    /// Asks the first reader, and the second too if the first is slow. Returns the answer and the
    /// index of who gave it.
    async fn read_hedged(
        &self,
        readers: &[Member],
        range: BlockRange,
    ) -> (Result<ReadBlocks, MemberError>, usize) {
        let ask = |m: &Member| self.members().read(Lane::Data, m.endpoint(), range);
        let first = std::pin::pin!(ask(&readers[0]));
        let Some(second) = readers.get(1) else { return (first.await, 0) };
        let (hedge, group, begun) = (&self.0.ctx.hedge, readers[0].group, self.now());
        let slow = std::pin::pin!(self.world().sleep(hedge.patience(group)));
        match select(first, slow).await {
            Either::Left((answer, _)) => {
                // A refusal says nothing about the disk.
                if answer.is_ok() {
                    hedge.took(group, self.now().since(begun));
                }
                (answer, 0)
            }
            Either::Right(((), first)) => {
                sometimes!("owner.hedged_read");
                let second = std::pin::pin!(ask(second));
                match select(first, second).await {
                    Either::Left((Ok(blocks), _)) => {
                        hedge.took(group, self.now().since(begun));
                        (Ok(blocks), 0)
                    }
                    Either::Right((Ok(blocks), _)) => {
                        hedge.overtook(group, self.now());
                        (Ok(blocks), 1)
                    }
                    // The faster one has no good bytes: whatever the other says counts.
                    Either::Left((_, second)) => (second.await, 1),
                    Either::Right((_, first)) => (first.await, 0),
                }
            }
        }
    }

    /// Every member has some bad block of the range: take each block from whoever has it. None: the
    /// one that may have a good copy does not answer now.
    async fn read_block_by_block(
        &self,
        leg: &Rc<Leg>,
        range: BlockRange,
        readers: &[Member],
    ) -> Result<Option<ReadBlocks>, Fail> {
        sometimes!("owner.read_block_by_block");
        let mut all = ReadBlocks { tags: Vec::new(), payload: Vec::new() };
        for block in range.start..range.end() {
            let one = BlockRange { start: block, count: 1 };
            let mut bad = Vec::new();
            let mut found = None;
            let mut unreachable = false;
            for m in readers {
                match self.members().read(Lane::Data, m.endpoint(), one).await {
                    Ok(blocks) => {
                        found = Some(blocks);
                        break;
                    }
                    Err(MemberError::Store(StoreError::Bad(blocks))) => bad.push((m.slot, blocks)),
                    Err(MemberError::Superseded(_)) => {
                        self.stop(Stop::Superseded);
                        return Err(Fail::Stopped);
                    }
                    Err(error) => {
                        unreachable = true;
                        self.on_reader_of_an_earlier_life(leg, m, error);
                    }
                }
            }
            if found.is_none() && unreachable {
                sometimes!("owner.good_copy_is_away");
                return Ok(None);
            }
            let Some(blocks) = found else {
                let record = self.0.record.borrow();
                let chunk = block / BLOCKS_PER_CHUNK;
                let at = record.object_offset(leg.index, chunk)
                    + u64::from(block % BLOCKS_PER_CHUNK) * BLOCK;
                self.0.ctx.event(Event::BlockLost { object: self.0.id, at });
                let why = format!("no good copy of the 4 KiB block at byte {at} is left");
                return Err(VolumeError::Io(why).into());
            };
            for (slot, blocks) in bad {
                self.repair_later(leg, slot, blocks);
            }
            all.tags.extend(blocks.tags);
            all.payload.extend(blocks.payload);
        }
        Ok(Some(all))
    }

    /// The host of a component has found a bad block in it: repaired if it is an active member.
    pub fn repair_reported(&self, component: ComponentId, block: u32) {
        for leg in self.legs() {
            let is_it = |m: &&Member| m.component == component && m.role() == Role::Active;
            let slot = leg.members.borrow().iter().find(is_it).map(|m| m.slot);
            if let Some(slot) = slot {
                self.repair_later(&leg, slot, vec![block]);
            }
        }
    }

    /// Rewrites bad blocks of a member from another one, in the background.
    fn repair_later(&self, leg: &Rc<Leg>, slot: u8, blocks: Vec<u32>) {
        let (owner, leg) = (self.clone(), leg.clone());
        self.world().spawn(async move {
            for block in blocks {
                if mutant!("read.repairs_nothing") {
                    return;
                }
                if owner.repair(&leg, slot, block).await {
                    let object = owner.0.id;
                    let host = leg.member(slot).map(|m| m.host).unwrap_or_default();
                    owner.0.ctx.event(Event::BlockRepaired { object, host });
                }
            }
        });
    }

    /// Puts a good copy of one block into the member of that slot. The range lock keeps the copy
    /// from racing a write; a seq that changed meanwhile would make it a no-op.
    async fn repair(&self, leg: &Rc<Leg>, slot: u8, block: u32) -> bool {
        let range = BlockRange { start: block, count: 1 };
        // As a member has named it.
        if !range.is_valid() {
            return false;
        }
        let of = if mutant!("read.repairs_without_lock") { 999 } else { leg.index as u16 };
        let _guard = self.0.locks.lock_exclusive(of, range).await;
        let Some(target) = leg.member(slot) else { return false };
        // Nobody reads what a shrink has left beyond the end, and no other copy need have it.
        let is_beyond = range.chunk() >= self.0.record.borrow().leg_chunks(leg.index);
        let good = match is_beyond {
            true => Some((BlockTag::default(), None)),
            false => self.good_copy(leg, slot, range).await,
        };
        let Some((tag, bytes)) = good else { return false };
        let copy = Copy {
            chunk: range.chunk(),
            blocks: vec![CopyBlock { block, tag, bytes }],
            only_if: None,
            tickets: SetTickets::default(),
        };
        let answer = self.members().copy_in(target.endpoint(), copy, READ_DEADLINE).await;
        let is_unknown = matches!(answer, Err(MemberError::NoAnswer(_)));
        if is_unknown && !mutant!("read.late_repair_counts") {
            // The copy may still arrive, and would then undo a newer write: the range stays
            // locked until the member is in another session, or out (R17).
            self.outdate(leg, &target).await;
        }
        answer == Ok(1)
    }

    /// One block as a member of another slot has it.
    async fn good_copy(
        &self,
        leg: &Rc<Leg>,
        slot: u8,
        range: BlockRange,
    ) -> Option<(BlockTag, Option<Buf>)> {
        for source in self.readers(leg, range) {
            if source.slot == slot {
                continue;
            }
            let answer = self.members().read(Lane::Bulk, source.endpoint(), range).await;
            let Ok(blocks) = answer else { continue };
            let &[tag] = &blocks.tags[..] else { continue };
            return Some((tag, (tag.state == BlockState::Raw).then(|| buf::join(&blocks.payload))));
        }
        None
    }

    /// Returns once messages of the member's present session are refused, or the owner has stopped.
    async fn outdate(&self, leg: &Rc<Leg>, member: &Member) {
        sometimes!("owner.repair_without_an_answer");
        loop {
            let same = leg.member(member.slot).is_some_and(|m| {
                m.component == member.component
                    && m.session() == member.session()
                    && m.role().receives()
            });
            if !same || self.is_stopped() {
                return;
            }
            self.on_fault(leg, member.slot, member.session(), MemberFault::Link);
            self.world().sleep(RETRY_EVERY).await;
        }
    }

    /// What the range holds, from the tags of one active member; stops at a strip's end.
    pub async fn extents(&self, at: u64, len: u64) -> Result<Vec<Extent>, Fail> {
        let strip_left = CHUNK - at % CHUNK;
        let len = len.min(strip_left);
        let (leg, place) = self.place(at, len)?;
        let range = covering(place.offset, len);
        let guard = self.0.locks.lock_shared(leg.index as u16, range).await;
        let tags = self.tags(&leg, range.chunk()).await?;
        self.await_lease(&leg).await?;
        drop(guard);
        let mut extents: Vec<Extent> = Vec::new();
        let (mut at, end) = (place.offset, place.offset + len);
        while at < end {
            let block = (at / BLOCK) as u32;
            let here = ((u64::from(block) + 1) * BLOCK).min(end) - at;
            let kind = match tags[(block % BLOCKS_PER_CHUNK) as usize].state {
                BlockState::Absent => ExtentKind::Hole,
                BlockState::Zero => ExtentKind::Zero,
                _ => ExtentKind::Data,
            };
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.len += here,
                _ => extents.push(Extent { len: here, kind }),
            }
            at += here;
        }
        assert_eq!(extents.iter().map(|x| x.len).sum::<u64>(), len, "extents of {range:?}");
        assert!(extents.is_sorted_by(|a, b| a.kind != b.kind), "neighbours are of two kinds");
        Ok(extents)
    }

    async fn tags(&self, leg: &Rc<Leg>, chunk: u32) -> Result<Vec<BlockTag>, Fail> {
        let held_since = self.now();
        loop {
            for m in self.readers(leg, BlockRange::of_chunk(chunk)) {
                match self.members().tags(Lane::Data, m.endpoint(), chunk).await {
                    Ok(tags) => return Ok(tags),
                    Err(MemberError::Superseded(_)) => {
                        self.stop(Stop::Superseded);
                        return Err(Fail::Stopped);
                    }
                    Err(error) => self.on_reader_of_an_earlier_life(leg, &m, error),
                }
            }
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            if self.now().since(held_since) > HOLD {
                return Err(VolumeError::TimedOut("no member can be read".into()).into());
            }
            self.world().sleep(RETRY_EVERY).await;
        }
    }
}
