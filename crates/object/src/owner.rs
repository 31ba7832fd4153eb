//! The owner of one object: orders its I/O, keeps its members in step, answers its clients.
//!
//! This file holds the owner's state and its write path. `read` is the read path, `takeover` makes
//! an owner, `change` alters the directory's record, `mend` deals with members that fail, `resync`
//! brings them back.
//!
//! Invariants:
//! - a write is acknowledged when every awaited member has it durable, never earlier;
//! - no read overlaps a write in flight (R8), and none is answered without a lease from every
//!   awaited member of its leg, looked at after the data was there (R11);
//! - a stopped owner answers nothing and changes nothing (R21).

use crate::leg::{Leg, Member, Op, Role};
use crate::limits::{
    APPEND_DEADLINE, BYTES_MAX, CALL_DEADLINE, HOLD, OPS_MAX, RESERVE_DEADLINE, RETRY_EVERY,
};
use crate::message::{Reply, Request};
use crate::objects::{Ctx, Event};
use crate::ranges::{RangeGuard, RangeLocks};
use crate::resync::Readmission;
use atoll_format::checksum::block_crcs;
use atoll_format::id::{
    ClientId, ComponentId, Epoch, GroupId, HostId, Incarnation, ObjectId, OpId, Seq, Session,
    Ticket,
};
use atoll_format::op::{BlockRange, OpKind};
use atoll_format::record::{ObjectRecord, Place};
use atoll_format::units::{BLOCK, BLOCK_LEN, CHUNK, OPS_IN_FLIGHT_MAX, SECTOR};
use atoll_transport::CallError;
use atoll_world::directory::Revision;
use atoll_world::sync::{Notified, Notify, Permit, Semaphore};
use atoll_world::{
    Buf, BufMut, Components, Lane, Nanos, Stage, StoreError, VolumeError, World, buf, mutant,
    sometimes,
};
use futures_util::FutureExt;
use futures_util::future::{Either, LocalBoxFuture, select};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// Why an owner gives no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fail {
    /// It is no longer the owner; a write's outcome is unknown.
    Stopped,
    /// The operation failed.
    Volume(VolumeError),
}

impl From<VolumeError> for Fail {
    fn from(error: VolumeError) -> Self {
        Self::Volume(error)
    }
}

/// Why an owner has stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// A newer epoch exists.
    Superseded,
    /// The object is being deleted.
    Deleted,
    /// Handed over on purpose.
    Released,
}

/// The owner of one object on this host.
pub(crate) struct Owner<W: World, S: Components>(pub(crate) Rc<Inner<W, S>>);

impl<W: World, S: Components> Clone for Owner<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(crate) struct Inner<W: World, S: Components> {
    pub ctx: Rc<Ctx<W, S>>,
    pub id: ObjectId,
    pub epoch: Epoch,
    pub record: RefCell<ObjectRecord>,
    pub revision: Cell<Revision>,
    /// One change of the record at a time (R12).
    pub changing: Semaphore,
    pub legs: RefCell<Vec<Rc<Leg>>>,
    pub locks: RangeLocks,
    next_seq: Cell<Seq>,
    /// How many clients this owner has admitted; in the upper half its epoch, so that what an
    /// older owner admitted is older.
    admission: Cell<u64>,
    next_attach: Cell<u32>,
    ops: Semaphore,
    bytes: Semaphore,
    stopped: RefCell<Option<Stop>>,
    pub stop_notify: Notify,
    /// A lease was renewed.
    pub lease_notify: Notify,
    /// What clients of other hosts have asked for, so that nothing is carried out twice (R21).
    clients: RefCell<BTreeMap<ClientId, ClientLog>>,
    /// I/O of guests, for resync to yield to.
    pub guest_ops: Cell<u64>,
    pub resync: RefCell<crate::progress::Progress>,
    /// The disk group that had no room for the last new chunk, until one finds room again.
    pub no_space: Cell<Option<(HostId, GroupId)>>,
    /// When that was the last time.
    no_space_at: Cell<Nanos>,
    /// Writes that were refused for want of space.
    pub no_space_answers: Cell<u64>,
    /// When a member whose resync failed may be tried again.
    pub next_try: RefCell<BTreeMap<ComponentId, Readmission>>,
    /// Since when this owner has known members as absent.
    pub absent_since: RefCell<BTreeMap<ComponentId, Nanos>>,
}

/// The changes of one client that may still arrive again.
#[derive(Default)]
struct ClientLog {
    /// Everything below has been answered to the client: a request that comes now is an old one.
    settled_below: u32,
    open: BTreeMap<u32, Attempt>,
    /// When it last asked; the client that has been quiet for longest is forgotten first.
    used: Nanos,
}

/// What has become of a client's change.
enum Attempt {
    InFlight(Notify),
    CarriedOut,
}

impl Attempt {
    fn in_flight(&self) -> Option<&Notify> {
        match self {
            Self::InFlight(ended) => Some(ended),
            Self::CarriedOut => None,
        }
    }
}

/// Ends a client's change in its log: one that was not carried out may come again.
struct Ended<'a, W: World, S: Components> {
    owner: &'a Owner<W, S>,
    ticket: Ticket,
    ended: Notify,
}

impl<W: World, S: Components> Drop for Ended<'_, W, S> {
    fn drop(&mut self) {
        if let Some(log) = self.owner.0.clients.borrow_mut().get_mut(&self.ticket.client)
            && log.open.get(&self.ticket.number).is_some_and(|a| a.in_flight().is_some())
        {
            log.open.remove(&self.ticket.number);
        }
        self.ended.notify_all();
    }
}

/// An episode without space ends by itself when nobody was refused for so long.
const NO_SPACE_QUIET: Nanos = Nanos::from_secs(10);
/// Clients of other hosts that an owner remembers.
const CLIENTS_MAX: usize = 1024;

/// The answer of one member to one append.
pub(crate) type Answer = (u8, Session, Result<Reply, CallError>);

/// Calls in flight of one operation: one a member, so that all are looked at when one has ended.
#[derive(Default)]
pub(crate) struct Calls(Vec<LocalBoxFuture<'static, Answer>>);

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Calls({})", self.0.len())
    }
}

impl Calls {
    /// The next answer; there must be a call.
    async fn next(&mut self) -> Answer {
        poll_fn(|cx| {
            for i in 0..self.0.len() {
                if let Poll::Ready(answer) = self.0[i].as_mut().poll(cx) {
                    // In the order in which they were made: the others keep theirs.
                    drop(self.0.remove(i));
                    return Poll::Ready(answer);
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl<W: World, S: Components> Owner<W, S> {
    /// An owner whose epoch the directory has confirmed and whose members are attached.
    pub fn new(
        ctx: Rc<Ctx<W, S>>,
        record: ObjectRecord,
        revision: Revision,
        legs: Vec<Rc<Leg>>,
        attach: u32,
    ) -> Self {
        let most = |usual, small| ctx.world.bound(usual, small);
        let (ops, bytes) = (most(OPS_MAX, 3), most(BYTES_MAX, 2 << 20));
        Self(Rc::new(Inner {
            ctx,
            id: record.id,
            epoch: record.epoch,
            admission: Cell::new(u64::from(record.epoch.0) << 32),
            next_seq: Cell::new(Seq(record.seq_base.0 + 1)),
            record: RefCell::new(record),
            revision: Cell::new(revision),
            changing: Semaphore::new(1),
            legs: RefCell::new(legs),
            locks: RangeLocks::new(),
            next_attach: Cell::new(attach + 1),
            ops: Semaphore::new(ops),
            bytes: Semaphore::new(bytes),
            stopped: RefCell::new(None),
            stop_notify: Notify::default(),
            lease_notify: Notify::default(),
            clients: RefCell::default(),
            guest_ops: Cell::new(0),
            resync: RefCell::default(),
            no_space: Cell::new(None),
            no_space_at: Cell::new(Nanos::ZERO),
            no_space_answers: Cell::new(0),
            next_try: RefCell::default(),
            absent_since: RefCell::default(),
        }))
    }

    pub fn world(&self) -> &W {
        &self.0.ctx.world
    }

    pub fn now(&self) -> Nanos {
        self.0.ctx.world.now()
    }

    pub fn leg(&self, index: usize) -> Rc<Leg> {
        self.0.legs.borrow()[index].clone()
    }

    pub fn legs(&self) -> Vec<Rc<Leg>> {
        self.0.legs.borrow().clone()
    }

    pub fn is_stopped(&self) -> bool {
        self.0.stopped.borrow().is_some()
    }

    /// Stops for good: no acknowledgement, no answer, no change from here on (R21).
    pub fn stop(&self, why: Stop) {
        if self.is_stopped() || mutant!("owner.superseded_goes_on") && why == Stop::Superseded {
            return;
        }
        self.0.ctx.event(Event::OwnerStopped { object: self.0.id, epoch: self.0.epoch });
        *self.0.stopped.borrow_mut() = Some(why);
        self.0.stop_notify.notify_all();
        self.0.lease_notify.notify_all();
        for leg in self.legs() {
            leg.poke_all();
        }
        self.0.ctx.owner_stopped(self.0.id, self.0.epoch);
    }

    /// The seq that the next change gets.
    pub(crate) fn next_seq(&self) -> Seq {
        self.0.next_seq.get()
    }

    /// The next session of any member in this epoch.
    pub fn next_session(&self) -> Session {
        let attach = self.0.next_attach.get();
        self.0.next_attach.set(attach + 1);
        Session { epoch: self.0.epoch, attach }
    }

    pub fn call(
        &self,
        host: HostId,
        lane: Lane,
        request: Request,
        span: Nanos,
    ) -> impl Future<Output = Result<Reply, CallError>> + 'static {
        self.0.ctx.peers().call(host, lane, request, self.now() + span)
    }

    // ---- writing -------------------------------------------------------------------------

    /// A member has been compared whole: the next operation's seq is beyond everything that anybody
    /// can be in doubt of, so that the doubt ends when it is committed. Not further from what the
    /// next owner will know than an epoch's gap, however often.
    pub(crate) fn end_doubt(&self) {
        let committed = self.legs().iter().map(|leg| leg.committed()).max().unwrap_or_default();
        let known = committed.max(self.0.record.borrow().seq_base);
        let beyond = Seq(known.0 + OPS_IN_FLIGHT_MAX + 1);
        self.0.next_seq.set(self.0.next_seq.get().max(beyond));
    }

    /// Queues `op` for the member of that slot, behind everything sent to it before. What it cannot
    /// get in this session comes first in the next one.
    fn send(&self, leg: &Leg, slot: u8, op: &Op, calls: &mut Calls) {
        let Some(to) = leg.with_member(slot, |m| {
            if m.role.receives() && !m.role.is_awaited() || m.role == Role::Promoting {
                m.unacked.insert(op.id.seq);
            }
            (!m.broken).then_some((m.host, m.component, m.session))
        }) else {
            return;
        };
        let Some((host, component, session)) = to else {
            sometimes!("owner.nothing_is_sent_in_a_broken_session");
            return;
        };
        let op = op.to_component_op(leg.committed());
        let request = Request::Append { component, session, op };
        let call = self.call(host, Lane::Data, request, APPEND_DEADLINE);
        calls.0.push(call.map(move |reply| (slot, session, reply)).boxed_local());
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
            let mut calls = Calls::default();
            self.send(leg, slot, &op, &mut calls);
            op.fresh.borrow_mut().0.append(&mut calls.0);
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
        self.audit("when a change began");
        let mut calls = Calls::default();
        let here = self.0.ctx.host;
        let mut slots: Vec<(bool, u8)> = leg
            .members
            .borrow()
            .iter()
            .filter(|m| m.role.receives())
            .filter(|m| m.role.is_awaited() || !mutant!("owner.resyncing_gets_nothing"))
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
        mut calls: Calls,
        guard: (RangeGuard, Permit, Permit),
    ) -> Result<(), Fail> {
        loop {
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            let poked = op.poke.notified();
            calls.0.append(&mut op.fresh.borrow_mut().0);
            if leg.decide(&op) {
                self.audit("when a change was decided");
                break;
            }
            self.next_answer(&leg, &op, &mut calls, poked).await;
        }
        // The next overlapping operation may start.
        drop(guard);
        if !calls.0.is_empty() {
            self.world().spawn(self.clone().see_off(leg, op, calls));
        }
        Ok(())
    }

    /// Waits for the answers of members that an operation was sent to and that were not awaited.
    async fn see_off(self, leg: Rc<Leg>, op: Rc<Op>, mut calls: Calls) {
        loop {
            let poked = op.poke.notified();
            calls.0.append(&mut op.fresh.borrow_mut().0);
            if self.is_stopped() || calls.0.is_empty() {
                return;
            }
            self.next_answer(&leg, &op, &mut calls, poked).await;
        }
    }

    /// Until a member has answered, or something else about the operation has changed.
    async fn next_answer(&self, leg: &Rc<Leg>, op: &Op, calls: &mut Calls, poked: Notified) {
        if calls.0.is_empty() {
            return poked.await;
        }
        let answer = pin!(calls.next());
        if let Either::Left(((slot, session, reply), _)) = select(answer, poked).await {
            self.on_answer(leg, op, slot, session, reply);
        }
    }

    fn on_answer(
        &self,
        leg: &Rc<Leg>,
        op: &Op,
        slot: u8,
        session: Session,
        reply: Result<Reply, CallError>,
    ) {
        match reply {
            Ok(Reply::Done) => leg.on_ack(op, slot, session),
            Ok(Reply::Failed(StoreError::Fenced { fenced })) if fenced > self.0.epoch => {
                sometimes!("owner.fenced_off");
                self.stop(Stop::Superseded);
            }
            Ok(Reply::Failed(error)) => {
                self.on_trouble(leg, slot, session, crate::mend::Trouble::Store(error));
            }
            Ok(_) => self.on_trouble(leg, slot, session, crate::mend::Trouble::Link),
            Err(_) => self.on_trouble(leg, slot, session, crate::mend::Trouble::Link),
        }
    }

    /// Asks every member for a slot, so that a full one is seen before anything is applied.
    async fn reserve(&self, leg: &Rc<Leg>, chunk: u32) -> Result<(), Fail> {
        let awaited: Vec<Member> =
            leg.members.borrow().iter().filter(|m| m.role.is_awaited()).cloned().collect();
        let calls: Vec<_> = awaited
            .iter()
            .map(|m| {
                let epoch = self.0.epoch;
                let request = Request::Reserve { component: m.component, epoch, chunk };
                self.call(m.host, Lane::Data, request, RESERVE_DEADLINE)
            })
            .collect();
        let mut all = true;
        for (member, reply) in awaited.iter().zip(futures_util::future::join_all(calls).await) {
            match reply {
                Ok(Reply::Done) => {}
                Ok(Reply::Failed(StoreError::Full)) => {
                    sometimes!("owner.no_space");
                    self.note_no_space(member.host, member.group);
                    return Err(VolumeError::NoSpace(format!(
                        "disk group {} of host {} is full",
                        member.group,
                        self.0.ctx.host_name(member.host)
                    ))
                    .into());
                }
                // Whatever else is wrong with the member shows when the operation is sent.
                _ => all = false,
            }
        }
        leg.set_reserved(chunk, all);
        self.note_space();
        Ok(())
    }

    /// A client is told that there is no space: an event once per episode, which lasts until a new
    /// chunk finds room again.
    fn note_no_space(&self, host: HostId, group: GroupId) {
        self.0.no_space_answers.set(self.0.no_space_answers.get() + 1);
        self.0.no_space_at.set(self.now());
        if self.0.no_space.replace(Some((host, group))).is_none() {
            self.0.ctx.event(Event::NoSpace { object: self.0.id, host, group });
        }
    }

    /// The group of an episode has room, as its host says: the end, if nobody was refused of late
    /// (a group may be out of more than bytes).
    pub(crate) fn note_room(&self) {
        if self.now().since(self.0.no_space_at.get()) >= NO_SPACE_QUIET {
            self.note_space();
        }
    }

    /// A new chunk has found room.
    fn note_space(&self) {
        if self.0.no_space.take().is_some() {
            self.0.ctx.event(Event::SpaceAgain { object: self.0.id });
        }
    }

    /// The leg and blocks of a piece of the object that lies inside one strip.
    pub(crate) fn place(&self, at: u64, len: u64) -> Result<(Rc<Leg>, Place), VolumeError> {
        let record = self.0.record.borrow();
        let end = at.checked_add(len).filter(|&end| end <= record.size_bytes);
        let one_strip = len > 0 && at / CHUNK == (at + (len.max(1) - 1)) / CHUNK;
        if end.is_none() || !one_strip || !at.is_multiple_of(SECTOR) || !len.is_multiple_of(SECTOR)
        {
            return Err(VolumeError::OutOfRange { at, len });
        }
        let place = record.locate(at);
        Ok((self.leg(place.leg), place))
    }

    pub(crate) async fn permits(&self, bytes: usize) -> (Permit, Permit) {
        let op = self.0.ops.acquire(1).await;
        (op, self.0.bytes.acquire(bytes).await)
    }

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
        let mut edges = Vec::new();
        if head > 0 {
            edges.push(range.start);
        }
        let is_read_already = edges.len() == 1 && range.count == 1;
        if !is_read_already && !(head + len).is_multiple_of(BLOCK_LEN) {
            edges.push(range.end() - 1);
        }
        for block in edges {
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

    /// The newest admission of a client.
    pub fn admission(&self) -> u64 {
        self.0.admission.get()
    }

    /// Admits a client: changes under older admissions are refused from here on.
    pub fn admit(&self) -> u64 {
        self.0.admission.set(self.admission() + 1);
        self.admission()
    }

    /// `work`, unless a client has been admitted since: it was asked for before, and what that
    /// client has changed by now is newer.
    pub async fn under(
        &self,
        admission: u64,
        work: impl Future<Output = Result<(), Fail>>,
    ) -> Result<(), Fail> {
        if self.admission() != admission { Err(Fail::Stopped) } else { work.await }
    }

    /// Carries out a change of another host's client, once: a request may come again after a lost
    /// answer, and the first one may even come after its retry has been answered (R21).
    pub async fn write_once(
        &self,
        ticket: Ticket,
        retry: bool,
        at: u64,
        work: impl Future<Output = Result<(), Fail>>,
    ) -> Result<(), Fail> {
        let ended = Notify::default();
        loop {
            let first = {
                let mut clients = self.0.clients.borrow_mut();
                let log = clients.entry(ticket.client).or_default();
                log.used = self.now();
                if ticket.number < log.settled_below {
                    sometimes!("owner.late_request_of_a_settled_operation");
                    return Err(Fail::Stopped);
                }
                log.settled_below = log.settled_below.max(ticket.settled_below);
                let settled_below = log.settled_below;
                log.open.retain(|&n, a| n >= settled_below || a.in_flight().is_some());
                match log.open.get(&ticket.number).filter(|_| !mutant!("owner.retry_joins_nothing"))
                {
                    Some(Attempt::InFlight(first)) => first.notified(),
                    Some(Attempt::CarriedOut) => return Ok(()),
                    None => {
                        log.open.insert(ticket.number, Attempt::InFlight(ended.clone()));
                        break;
                    }
                }
            };
            sometimes!("owner.retry_joins_its_first_attempt");
            first.await;
        }
        // Also when the caller goes away: nobody waits for ever for what has no end.
        let _ended = Ended { owner: self, ticket, ended };
        let result = async {
            if retry && !mutant!("owner.retry_is_applied") && self.was_applied(ticket, at).await? {
                sometimes!("owner.retry_was_applied");
                return Ok(());
            }
            work.await
        }
        .await;
        let mut clients = self.0.clients.borrow_mut();
        if let Some(log) = clients.get_mut(&ticket.client)
            && result.is_ok()
        {
            log.open.insert(ticket.number, Attempt::CarriedOut);
        }
        if clients.len() > self.world().bound(CLIENTS_MAX, 2) {
            let quiet = clients
                .iter()
                .filter(|(_, log)| log.open.values().all(|a| a.in_flight().is_none()));
            let oldest = quiet.min_by_key(|(_, log)| log.used).map(|(&client, _)| client);
            oldest.map(|client| clients.remove(&client));
        }
        result
    }

    /// Whether an operation of that ticket has been applied.
    async fn was_applied(&self, ticket: Ticket, at: u64) -> Result<bool, Fail> {
        let (leg, _) = self.place(at, SECTOR)?;
        let until = self.now() + HOLD;
        loop {
            if self.is_stopped() {
                return Err(Fail::Stopped);
            }
            let awaited: Vec<Member> =
                leg.members.borrow().iter().filter(|m| m.role.is_awaited()).cloned().collect();
            let calls = awaited.iter().map(|m| {
                let (component, epoch) = (m.component, self.0.epoch);
                let request = Request::Applied { component, epoch, ticket };
                self.call(m.host, Lane::Control, request, CALL_DEADLINE)
            });
            let replies = futures_util::future::join_all(calls).await;
            // One that remembers it is enough; that nobody does must be every member's word.
            if replies.iter().any(|r| matches!(r, Ok(Reply::Yes(true)))) {
                return Ok(true);
            }
            if replies.iter().all(|r| matches!(r, Ok(Reply::Yes(false)))) {
                return Ok(false);
            }
            if self.now() > until {
                let why = "the members could not be asked about an earlier attempt".into();
                return Err(VolumeError::TimedOut(why).into());
            }
            self.0.ctx.world.sleep(RETRY_EVERY).await;
        }
    }

    pub(crate) fn count_guest(&self) {
        self.0.guest_ops.set(self.0.guest_ops.get() + 1);
    }
}

/// The blocks that cover `len` bytes at `offset` of a component.
pub(crate) fn covering(offset: u64, len: u64) -> BlockRange {
    let start = offset / BLOCK;
    let end = (offset + len).div_ceil(BLOCK);
    BlockRange {
        start: u32::try_from(start).expect("a component has fewer than 2^32 blocks"),
        count: u16::try_from(end - start).expect("a piece lies inside one chunk"),
    }
}

pub(crate) fn whole_blocks(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::{Answer, Calls};
    use crate::message::Reply;
    use atoll_format::id::Session;
    use atoll_world::sync::oneshot;
    use futures_util::FutureExt;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Poll, Wake};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request that wakes itself for nothing lets the answers and packets of a batch leave alone.
    #[test]
    fn waiting_for_answers_wakes_nobody_until_there_is_one() {
        let mut calls = Calls::default();
        let mut ends: Vec<_> = (0..3u8)
            .map(|slot| {
                let (end, ends) = oneshot::<()>();
                let answer = move |_| -> Answer { (slot, Session::default(), Ok(Reply::Done)) };
                calls.0.push(ends.map(answer).boxed_local());
                Some(end)
            })
            .collect();
        let wakings = Arc::<Count>::default();
        let waker = wakings.clone().into();
        for (turn, slot) in [1u8, 0, 2].into_iter().enumerate() {
            let mut next = pin!(calls.next());
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(wakings.0.load(Ordering::Relaxed), turn as u32);
            drop(ends[usize::from(slot)].take());
            let Poll::Ready((from, ..)) = next.poll(&mut Context::from_waker(&waker)) else {
                panic!("its answer is there");
            };
            assert_eq!(from, slot);
        }
    }
}
