//! The owner's write path: an operation takes its place in the order, goes to every member that
//! receives, and is acknowledged when every awaited one has it.
//!
//! Invariants:
//! - between the moment an operation gets its sequence number and the last send nothing waits: the
//!   order of sequence numbers is the order in every session (R2);
//! - what has been submitted is followed to its end, whether or not its client still waits.

use super::{Owner, covering, whole_blocks};
use crate::ctx::Protocol;
use crate::events::Event;
use crate::failure::{Fail, Stop};
use crate::leg::{Leg, Member, MemberEvent};
use crate::member_client::MemberError;
use crate::operation::{AppendAnswer, AppendCalls, Op};
use crate::ranges::RangeGuard;
use atoll_format::checksum::block_crcs;
use atoll_format::id::{GroupId, Incarnation, OpId, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, OpKind};
use atoll_format::units::{BLOCK, BLOCK_LEN};
use atoll_world::sync::{Notified, Notify, Permit};
use atoll_world::{
    Buf, BufMut, Nanos, Stage, StoreError, VolumeError, World, buf, mutant, sometimes,
};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;

impl<W: World, P: Protocol> Owner<W, P> {
    /// Carries out a write of a client; see [`ClientRequest`](crate::message::ClientRequest).
    pub async fn write(
        &self,
        at: u64,
        crcs: Vec<u32>,
        data: Vec<Buf>,
        ticket: Ticket,
    ) -> Result<(), Fail> {
        let begun = self.world().stage(Stage::Queue);
        let len = buf::total_len(&data) as u64;
        let (leg, place) = self.place(at, len)?;
        let (op, bytes) = self.permits(len as usize).await;
        let range = covering(place.offset, len);
        let merges = !whole_blocks(place.offset, len);
        // Locks of a leg that is not there are nobody's.
        let of =
            if mutant!("owner.merges_without_lock") && merges { 999 } else { leg.index as u16 };
        let guard = self.0.locks.lock_exclusive(of, range).await;
        let (crcs, data) = if whole_blocks(place.offset, len) {
            // A front end may cut its pieces anywhere; a store takes whole blocks.
            let cut = data.iter().any(|b| !b.len().is_multiple_of(BLOCK_LEN) || !b.is_aligned());
            (crcs, if cut { vec![Buf::copy_all(&data)] } else { data })
        } else {
            sometimes!("owner.read_modify_write");
            let whole = Box::pin(self.merge(&leg, place.offset, range, &data)).await?;
            (block_crcs(&whole).collect(), vec![whole])
        };
        self.count_guest();
        let content = (OpKind::Write, range, crcs, data);
        self.submit(&leg, content, ticket, (guard, op, bytes), begun).await
    }

    /// Whole blocks made of what is stored and `data` over it; the range is locked.
    async fn merge(
        &self,
        leg: &Rc<Leg>,
        offset: u64,
        range: BlockRange,
        data: &[Buf],
    ) -> Result<Buf, Fail> {
        let start = u64::from(range.start) * BLOCK;
        let mut whole = BufMut::zeroed(usize::from(range.count) * BLOCK_LEN);
        let len = buf::total_len(data);
        let head = (offset - start) as usize;
        // No block of the range is written without need: it would be read for that.
        assert!(
            head < BLOCK_LEN && head + len <= whole.len(),
            "{len} bytes at {offset}: {range:?}"
        );
        assert!(whole.len() - (head + len) < BLOCK_LEN, "{len} bytes at {offset}: {range:?}");
        let mut edges = Vec::new();
        if head > 0 {
            edges.push(range.start);
        }
        let is_read_already = edges.len() == 1 && range.count == 1;
        if !is_read_already && !(head + len).is_multiple_of(BLOCK_LEN) {
            edges.push(range.end() - 1);
        }
        for block in edges {
            assert!((range.start..range.end()).contains(&block), "{block} of {range:?}");
            let old = self.read_blocks(leg, BlockRange { start: block, count: 1 }).await?;
            let at = (block - range.start) as usize * BLOCK_LEN;
            whole[at..at + BLOCK_LEN].copy_from_slice(&buf::join(&old.payload));
        }
        let mut to = head;
        for piece in data {
            whole[to..to + piece.len()].copy_from_slice(piece);
            to += piece.len();
        }
        Ok(whole.freeze())
    }

    /// Zeroes or discards a piece. Parts of a block are zeroed by a write.
    pub async fn clear(&self, kind: OpKind, at: u64, len: u64, ticket: Ticket) -> Result<(), Fail> {
        let (leg, place) = self.place(at, len)?;
        if !whole_blocks(place.offset, len) {
            // One operation, so that the ticket names one: the piece is at most one strip.
            let data = Buf::zeros(len as usize);
            return self.write(at, Vec::new(), vec![data], ticket).await;
        }
        let permits = self.permits(0).await;
        let range = covering(place.offset, len);
        let guard = self.0.locks.lock_exclusive(leg.index as u16, range).await;
        self.count_guest();
        let content = (kind, range, Vec::new(), Vec::new());
        self.submit(&leg, content, ticket, (guard, permits.0, permits.1), None).await
    }

    /// Zeroes or discards whole blocks that are locked, in the name of no client.
    pub(super) async fn change_no_client(
        &self,
        leg: &Rc<Leg>,
        kind: OpKind,
        range: BlockRange,
        guard: RangeGuard,
        (op, bytes): (Permit, Permit),
    ) -> Result<(), Fail> {
        assert_ne!(kind, OpKind::Write, "a write has a payload");
        let content = (kind, range, Vec::new(), Vec::new());
        self.submit(leg, content, Ticket::default(), (guard, op, bytes), None).await
    }

    /// Queues `op` for the member of that slot, behind everything sent to it before. What it cannot
    /// get in this session comes first in the next one.
    fn send(&self, leg: &Leg, slot: u8, op: &Op, calls: &mut AppendCalls) {
        assert!(!op.decided.get(), "{:?} is decided: it need not be sent", op.id);
        assert!(leg.committed() < op.id.seq, "{:?} is sent, and was committed", op.id);
        let Some(to) = leg.with_member(slot, |m| {
            m.on(MemberEvent::Sent(op.id.seq));
            assert!(
                m.is_broken() || m.session().epoch == op.id.epoch,
                "{:?} in {:?}",
                op.id,
                m.session()
            );
            (!m.is_broken()).then(|| m.endpoint())
        }) else {
            return;
        };
        let Some(to) = to else {
            sometimes!("owner.nothing_is_sent_in_a_broken_session");
            return;
        };
        let call = self.members().append(to, op.to_component_op(leg.committed()));
        calls.push(call.map(move |answer| (slot, to.session, answer)).boxed_local());
    }

    /// A session has been opened to a member: everything in flight is sent to it again at once and
    /// in order, before anything new can be (R2).
    pub(crate) fn on_attached(
        &self,
        leg: &Leg,
        slot: u8,
        session: Session,
        life: Option<Incarnation>,
    ) {
        for op in leg.on_attached(slot, session, life) {
            let mut calls = AppendCalls::default();
            self.send(leg, slot, &op, &mut calls);
            op.fresh.borrow_mut().append(&mut calls);
        }
        leg.poke_all();
    }

    /// Replicates one operation whose range is locked; returns when it is decided.
    async fn submit(
        &self,
        leg: &Rc<Leg>,
        content: (OpKind, BlockRange, Vec<u32>, Vec<Buf>),
        ticket: Ticket,
        guard: (RangeGuard, Permit, Permit),
        begun: Option<Nanos>,
    ) -> Result<(), Fail> {
        let (kind, range, crcs, payload) = content;
        if kind == OpKind::Write && !leg.is_reserved(range.chunk()) {
            // Once per chunk: not in the memory of every write.
            Box::pin(self.reserve(leg, range.chunk())).await?;
        }
        if self.is_stopped() {
            return Err(Fail::Stopped);
        }
        if kind == OpKind::Discard {
            leg.set_reserved(range.chunk(), false);
        }
        let blocks = if kind == OpKind::Write { usize::from(range.count) } else { 0 };
        assert_eq!(crcs.len(), blocks, "checksums of {kind:?} {range:?}");
        assert_eq!(buf::total_len(&payload), blocks * BLOCK_LEN, "bytes of {kind:?} {range:?}");
        if self.world().audits() && blocks > 0 {
            let found = block_crcs(&buf::join(&payload)).eq(crcs.iter().copied());
            assert!(found, "checksums that are not those of the bytes of {range:?}");
        }
        // No await from here until everything is queued: the order of sequence numbers is the
        // order in every session (R2).
        let seq = self.0.next_seq.get();
        self.0.next_seq.set(Seq(seq.0 + 1));
        let op = Rc::new(Op {
            id: OpId { epoch: self.0.epoch, seq },
            ticket,
            kind,
            range,
            crcs,
            payload,
            started: self.now(),
            acked: Cell::new(0),
            decided: Cell::new(false),
            poke: Notify::default(),
            fresh: Default::default(),
        });
        leg.begin(op.clone());
        assert!(leg.last() < self.next_seq(), "{:?} was given out before", leg.last());
        self.audit("when a change began");
        self.audit_members();
        let mut calls = AppendCalls::default();
        let here = self.0.ctx.host;
        let mut slots: Vec<(bool, u8)> = leg
            .members
            .borrow()
            .iter()
            .filter(|m| m.role().receives() && leg.layout.gets(m.slot, op.range))
            .filter(|m| m.role().is_awaited() || !mutant!("owner.resyncing_gets_nothing"))
            .map(|m| (m.host == here, m.slot))
            .collect();
        // Remote members first: their round trip runs beside the local write.
        slots.sort_unstable();
        for (_, slot) in slots {
            self.send(leg, slot, &op, &mut calls);
        }
        self.world().end_stage(Stage::Queue, begun);
        // Its fate does not depend on whether its client still waits.
        let driven = self.clone().drive(leg.clone(), op, calls, guard);
        self.world().persist(driven).await
    }

    /// Follows one operation until it is decided.
    async fn drive(
        self,
        leg: Rc<Leg>,
        op: Rc<Op>,
        mut calls: AppendCalls,
        guard: (RangeGuard, Permit, Permit),
    ) -> Result<(), Fail> {
        loop {
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            let poked = op.poke.notified();
            calls.append(&mut op.fresh.borrow_mut());
            if leg.decide(&op) {
                self.audit("when a change was decided");
                break;
            }
            self.next_answer(&leg, &op, &mut calls, poked).await;
        }
        // The next overlapping operation may start.
        drop(guard);
        if !calls.is_empty() {
            self.world().spawn(self.clone().see_off(leg, op, calls));
        }
        Ok(())
    }

    /// Waits for the answers of members that an operation was sent to and that were not awaited.
    async fn see_off(self, leg: Rc<Leg>, op: Rc<Op>, mut calls: AppendCalls) {
        loop {
            let poked = op.poke.notified();
            calls.append(&mut op.fresh.borrow_mut());
            if self.is_stopped() || calls.is_empty() {
                return;
            }
            self.next_answer(&leg, &op, &mut calls, poked).await;
        }
    }

    /// Until a member has answered, or something else about the operation has changed.
    async fn next_answer(&self, leg: &Rc<Leg>, op: &Op, calls: &mut AppendCalls, poked: Notified) {
        if calls.is_empty() {
            return poked.await;
        }
        let answer = pin!(calls.next());
        if let Either::Left((answer, _)) = select(answer, poked).await {
            self.on_answer(leg, op, answer);
        }
    }

    fn on_answer(&self, leg: &Rc<Leg>, op: &Op, (slot, session, answer): AppendAnswer) {
        match answer {
            Ok(()) => leg.on_ack(op, slot, session),
            Err(MemberError::Superseded(_)) => {
                sometimes!("owner.fenced_off");
                self.stop(Stop::Superseded);
            }
            Err(error) => self.on_fault(leg, slot, session, error.fault()),
        }
    }

    /// Asks every member for a slot, so that a full one is seen before anything is applied.
    async fn reserve(&self, leg: &Rc<Leg>, chunk: u32) -> Result<(), Fail> {
        let awaited: Vec<Member> =
            leg.members.borrow().iter().filter(|m| m.role().is_awaited()).cloned().collect();
        let calls: Vec<_> =
            awaited.iter().map(|m| self.members().reserve(m.endpoint(), chunk)).collect();
        let mut all = true;
        let replies = futures_util::future::join_all(calls).await;
        assert!(!awaited.is_empty() && replies.len() == awaited.len(), "every member is asked");
        for (member, reply) in awaited.iter().zip(replies) {
            match reply {
                Ok(()) => {}
                Err(MemberError::Store(StoreError::Full)) => {
                    sometimes!("owner.no_space");
                    if self.0.no_space.refuse(member.host, member.group, self.now()) {
                        let (object, host, group) = (self.0.id, member.host, member.group);
                        self.0.ctx.event(Event::NoSpace { object, host, group });
                    }
                    return Err(VolumeError::NoSpace(format!(
                        "disk group {} of host {} is full",
                        member.group,
                        self.0.ctx.host_name(member.host)
                    ))
                    .into());
                }
                // Whatever else is wrong with the member shows when the operation is sent.
                Err(_) => all = false,
            }
        }
        leg.set_reserved(chunk, all);
        if self.0.no_space.has_room() {
            self.0.ctx.event(Event::SpaceAgain { object: self.0.id });
        }
        Ok(())
    }

    /// The hosts have said anew which disk groups have room. The end of an episode, also when
    /// nobody writes any more.
    pub(crate) fn on_inventory(&self, has_room: impl Fn(GroupId) -> bool) {
        let group = self.0.no_space.group().map(|(_, group)| group);
        if group.is_some_and(has_room) && self.0.no_space.group_has_room(self.now()) {
            self.0.ctx.event(Event::SpaceAgain { object: self.0.id });
        }
    }
}
