//! The owner's read path: which member is asked, what happens when its answer is late or bad, and
//! what the volume's map of used blocks is.

use crate::leg::{Leg, Member, Role};
use crate::limits::{AVOID, HEDGE, HEDGE_MAX, HOLD, READ_DEADLINE, RETRY_EVERY};
use crate::message::{Reply, Request};
use crate::objects::Event;
use crate::owner::{Fail, Owner, Stop, covering, whole_blocks};
use atoll_format::id::GroupId;
use atoll_format::op::{BlockRange, BlockState, BlockTag};
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, CHUNK};
use atoll_transport::CallError;
use atoll_world::components::{Copy, CopyBlock, ReadBlocks, SetTickets};
use atoll_world::volume::{Extent, ExtentKind};
use atoll_world::{
    Buf, Components, Lane, Nanos, StoreError, VolumeError, World, buf, mutant, sometimes,
};
use futures_util::future::{Either, select};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How disk groups answer reads: a slow disk costs one read a hedge now and then, not every read,
/// and where all disks are slow because they have much to do, nobody asks twice.
#[derive(Default)]
pub(crate) struct Readiness {
    /// Groups that another copy overtook lately, and until when they are asked last.
    overtaken: RefCell<BTreeMap<GroupId, Nanos>>,
    /// Smoothed time until an answer; of groups that take long.
    usual: RefCell<BTreeMap<GroupId, Nanos>>,
}

impl Readiness {
    fn overtook(&self, group: GroupId, now: Nanos) {
        let mut until = self.overtaken.borrow_mut();
        until.retain(|_, &mut until| until > now);
        until.insert(group, now + AVOID);
    }

    fn is_overtaken(&self, group: GroupId, now: Nanos) -> bool {
        self.overtaken.borrow().get(&group).is_some_and(|&until| until > now)
    }

    /// A read of that group that nobody overtook took so long.
    fn took(&self, group: GroupId, span: Nanos) {
        let mut usual = self.usual.borrow_mut();
        let before = usual.get(&group).copied().unwrap_or_default();
        let smoothed = (before * 7 + span) / 8;
        if smoothed >= HEDGE / 32 {
            usual.insert(group, smoothed);
        } else if before > Nanos::ZERO {
            usual.remove(&group);
        }
    }

    /// After how long another copy is asked too.
    fn patience(&self, group: GroupId) -> Nanos {
        let usual = self.usual.borrow().get(&group).copied().unwrap_or_default();
        let patience = (usual * 4).max(HEDGE).min(HEDGE_MAX);
        if patience > HEDGE {
            sometimes!("owner.patient_with_a_busy_group");
        }
        patience
    }
}

impl<W: World, S: Components> Owner<W, S> {
    /// Carries out a read of a client.
    pub async fn read(&self, at: u64, len: u64) -> Result<Vec<Buf>, Fail> {
        let (leg, place) = self.place(at, len)?;
        let range = covering(place.offset, len);
        let of = if mutant!("read.without_lock") { 999 } else { leg.index as u16 };
        let guard = self.0.locks.lock_shared(of, range).await;
        self.count_guest();
        let blocks = self.read_blocks(&leg, range).await?;
        self.await_lease(&leg).await?;
        drop(guard);
        if whole_blocks(place.offset, len) {
            return Ok(blocks.payload);
        }
        let head = (place.offset % BLOCK) as usize;
        Ok(vec![buf::join(&blocks.payload).slice(head..head + len as usize)])
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
            if now < leg.lease_until() || mutant!("read.without_lease") {
                return Ok(());
            }
            sometimes!("owner.read_waits_for_a_lease");
            if now.since(held_since) > HOLD {
                let why = "no lease from the members of this object".to_string();
                return Err(VolumeError::TimedOut(why).into());
            }
            let tick = self.0.ctx.world.sleep_until(now + RETRY_EVERY * 5);
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
            let readers = self.readers(leg, range.chunk());
            let mut bad = Vec::new();
            let mut unreachable = false;
            let mut i = 0;
            while i < readers.len() {
                let (reply, used) = self.read_hedged(&readers[i..], range).await;
                let reader = &readers[i + used];
                match reply {
                    Ok(Reply::Blocks(blocks)) if blocks.tags.len() == usize::from(range.count) => {
                        for (slot, blocks_bad) in bad {
                            self.repair_later(leg, slot, blocks_bad);
                        }
                        return Ok(blocks);
                    }
                    Ok(Reply::Failed(StoreError::Bad(_))) if mutant!("read.bad_is_zeros") => {
                        let count = usize::from(range.count);
                        let tags = vec![BlockTag::default(); count];
                        return Ok(ReadBlocks {
                            tags,
                            payload: vec![Buf::zeros(count * BLOCK as usize)],
                        });
                    }
                    Ok(Reply::Failed(StoreError::Bad(blocks))) => bad.push((reader.slot, blocks)),
                    Ok(Reply::Failed(StoreError::Fenced { fenced })) if fenced > self.0.epoch => {
                        self.stop(Stop::Superseded);
                        return Err(Fail::Stopped);
                    }
                    reply => {
                        unreachable = true;
                        self.on_reader_of_an_earlier_life(leg, reader, reply);
                    }
                }
                i += 1;
            }
            if !bad.is_empty() && !unreachable {
                return Box::pin(self.read_block_by_block(leg, range, &readers)).await;
            }
            if self.now().since(held_since) > HOLD {
                let members = leg.members.borrow();
                let active = members.iter().filter(|m| m.role == Role::Active);
                let hosts: Vec<_> = active.map(|m| self.0.ctx.host_name(m.host)).collect();
                let why =
                    format!("no copy can be read: that on {} does not answer", hosts.join(", "));
                return Err(VolumeError::TimedOut(why).into());
            }
            self.0.ctx.world.sleep(RETRY_EVERY).await;
        }
    }

    /// A member that has restarted serves once a session of this life is open.
    fn on_reader_of_an_earlier_life(
        &self,
        leg: &Rc<Leg>,
        reader: &Member,
        reply: Result<Reply, CallError>,
    ) {
        if let Ok(Reply::Failed(error @ StoreError::Session { .. })) = reply {
            let trouble = crate::mend::Trouble::Store(error);
            self.on_trouble(leg, reader.slot, reader.session, trouble);
        }
    }

    /// Active members in the order in which to ask them: this host's, else spread by strip; slow
    /// ones last. Not those without an open session: what one of them may have lost is being found
    /// out, or it has lost something and is on its way out (S18).
    fn readers(&self, leg: &Leg, chunk: u32) -> Vec<Member> {
        let is_sound = |m: &&Member| {
            m.role == Role::Active && (!m.broken || mutant!("read.from_a_broken_session"))
        };
        let mut readers: Vec<Member> =
            leg.members.borrow().iter().filter(is_sound).cloned().collect();
        if mutant!("read.from_the_resyncing") {
            readers = leg.members.borrow().iter().filter(|m| m.role.receives()).cloned().collect();
        }
        if !readers.is_empty() {
            let turn = chunk as usize % readers.len();
            readers.rotate_left(turn);
        }
        let (here, now, readiness) = (self.0.ctx.host, self.now(), &self.0.ctx.readiness);
        let last = |group| readiness.is_overtaken(group, now);
        readers.sort_by_key(|m| (m.mending, last(m.group), m.host != here));
        readers
    }

    /// Asks the first reader, and the second too if the first is slow. Returns the answer and the
    /// index of who gave it.
    async fn read_hedged(
        &self,
        readers: &[Member],
        range: BlockRange,
    ) -> (Result<Reply, CallError>, usize) {
        let ask = |m: &Member| {
            let request = Request::Read { component: m.component, epoch: self.0.epoch, range };
            self.call(m.host, Lane::Data, request, READ_DEADLINE)
        };
        let first = std::pin::pin!(ask(&readers[0]));
        let Some(second) = readers.get(1) else { return (first.await, 0) };
        let (readiness, group, begun) = (&self.0.ctx.readiness, readers[0].group, self.now());
        let slow = std::pin::pin!(self.0.ctx.world.sleep(readiness.patience(group)));
        match select(first, slow).await {
            Either::Left((reply, _)) => {
                // A refusal says nothing about the disk.
                if let Ok(Reply::Blocks(_)) = reply {
                    readiness.took(group, self.now().since(begun));
                }
                (reply, 0)
            }
            Either::Right(((), first)) => {
                sometimes!("owner.hedged_read");
                let second = std::pin::pin!(ask(second));
                match select(first, second).await {
                    Either::Left((Ok(Reply::Blocks(b)), _)) => {
                        readiness.took(group, self.now().since(begun));
                        (Ok(Reply::Blocks(b)), 0)
                    }
                    Either::Right((Ok(Reply::Blocks(b)), _)) => {
                        readiness.overtook(group, self.now());
                        (Ok(Reply::Blocks(b)), 1)
                    }
                    // The faster one has no good bytes: whatever the other says counts.
                    Either::Left((_, second)) => (second.await, 1),
                    Either::Right((_, first)) => (first.await, 0),
                }
            }
        }
    }

    /// Every member has some bad block of the range: take each block from whoever has it.
    async fn read_block_by_block(
        &self,
        leg: &Rc<Leg>,
        range: BlockRange,
        readers: &[Member],
    ) -> Result<ReadBlocks, Fail> {
        sometimes!("owner.read_block_by_block");
        let mut all = ReadBlocks { tags: Vec::new(), payload: Vec::new() };
        for block in range.start..range.end() {
            let one = BlockRange { start: block, count: 1 };
            let mut bad = Vec::new();
            let mut found = None;
            let mut unreachable = false;
            for m in readers {
                let request =
                    Request::Read { component: m.component, epoch: self.0.epoch, range: one };
                match self.call(m.host, Lane::Data, request, READ_DEADLINE).await {
                    Ok(Reply::Blocks(blocks)) => {
                        found = Some(blocks);
                        break;
                    }
                    Ok(Reply::Failed(StoreError::Bad(blocks))) => bad.push((m.slot, blocks)),
                    _ => unreachable = true,
                }
            }
            if found.is_none() && unreachable {
                let why = "the copy that may be good cannot be read now";
                return Err(VolumeError::TimedOut(why.into()).into());
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
        Ok(all)
    }

    /// Rewrites bad blocks of a member from another one, in the background.
    pub fn repair_later(&self, leg: &Rc<Leg>, slot: u8, blocks: Vec<u32>) {
        let (owner, leg) = (self.clone(), leg.clone());
        self.0.ctx.world.spawn(async move {
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
        let (component, session) = (target.component, target.session);
        let request = Request::CopyIn { component, session, copy };
        let reply = self.call(target.host, Lane::Bulk, request, READ_DEADLINE).await;
        if reply.is_err() && !mutant!("read.late_repair_counts") {
            // The copy may still arrive, and would then undo a newer write: the range stays
            // locked until the member is in another session, or out (F10).
            self.outdate(leg, &target).await;
        }
        matches!(reply, Ok(Reply::Copied(1)))
    }

    /// One block as a member of another slot has it.
    async fn good_copy(
        &self,
        leg: &Rc<Leg>,
        slot: u8,
        range: BlockRange,
    ) -> Option<(BlockTag, Option<Buf>)> {
        for source in self.readers(leg, range.chunk()) {
            if source.slot == slot {
                continue;
            }
            let request = Request::Read { component: source.component, epoch: self.0.epoch, range };
            let reply = self.call(source.host, Lane::Bulk, request, READ_DEADLINE).await;
            let Ok(Reply::Blocks(blocks)) = reply else { continue };
            let Some(&tag) = blocks.tags.first() else { continue };
            return Some((tag, (tag.state == BlockState::Raw).then(|| buf::join(&blocks.payload))));
        }
        None
    }

    /// Returns once messages of the member's present session are refused, or the owner has stopped.
    async fn outdate(&self, leg: &Rc<Leg>, member: &Member) {
        sometimes!("owner.repair_without_an_answer");
        loop {
            let same = leg.member(member.slot).is_some_and(|m| {
                m.component == member.component && m.session == member.session && m.role.receives()
            });
            if !same || self.is_stopped() {
                return;
            }
            self.on_trouble(leg, member.slot, member.session, crate::mend::Trouble::Link);
            self.0.ctx.world.sleep(RETRY_EVERY).await;
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
        Ok(extents)
    }

    async fn tags(&self, leg: &Rc<Leg>, chunk: u32) -> Result<Vec<BlockTag>, Fail> {
        let held_since = self.now();
        loop {
            for m in self.readers(leg, chunk) {
                let request = Request::Tags { component: m.component, epoch: self.0.epoch, chunk };
                match self.call(m.host, Lane::Data, request, READ_DEADLINE).await {
                    Ok(Reply::Tags(tags)) if tags.len() == BLOCKS_PER_CHUNK as usize => {
                        return Ok(tags);
                    }
                    reply => self.on_reader_of_an_earlier_life(leg, &m, reply),
                }
            }
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            if self.now().since(held_since) > HOLD {
                return Err(VolumeError::TimedOut("no member can be read".into()).into());
            }
            self.0.ctx.world.sleep(RETRY_EVERY).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Readiness;
    use crate::limits::{HEDGE, HEDGE_MAX};
    use atoll_format::id::GroupId;
    use atoll_world::Nanos;

    #[test]
    fn where_reads_usually_take_long_nobody_asks_twice_and_not_much_later_when_they_no_longer_do() {
        let readiness = Readiness::default();
        let (busy, other) = (GroupId(1), GroupId(2));
        readiness.took(busy, Nanos::from_us(200));
        assert_eq!(readiness.patience(busy), HEDGE);
        for _ in 0..50 {
            readiness.took(busy, Nanos::from_ms(120));
        }
        assert!(readiness.patience(busy) > Nanos::from_ms(400));
        assert_eq!(readiness.patience(other), HEDGE);
        for _ in 0..50 {
            readiness.took(busy, Nanos::from_secs(3));
        }
        assert_eq!(readiness.patience(busy), HEDGE_MAX, "one that hangs is not waited for longer");
        for _ in 0..60 {
            readiness.took(busy, Nanos::from_us(200));
        }
        assert_eq!(readiness.patience(busy), HEDGE);
        assert!(readiness.usual.borrow().is_empty());
    }
}
