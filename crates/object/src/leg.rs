//! One leg as its owner sees it: members, operations in flight, the committed watermark.
//! Decisions only: no waiting, no messages.
//!
//! Invariants:
//! - an operation is decided when every awaited member has acknowledged it in its open session;
//! - `committed` is the highest seq such that it and every lower one of this leg are decided (R4);
//! - there is always at least one active member (R20).

use crate::limits::LATE;
use crate::owner::Calls;
use crate::tickets::{Key, key};
use atoll_format::id::{ComponentId, GroupId, HostId, Incarnation, OpId, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, OpKind};
use atoll_world::components::ComponentOp;
use atoll_world::sync::Notify;
use atoll_world::{Buf, FixedSet, Nanos, mutant};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

/// What a member is to the owner at this moment. A change that the directory has not confirmed
/// shows as the stricter of both outcomes (R13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// Awaited, read from. Also while it is being dropped.
    Active,
    /// Receives operations; not awaited, not read from.
    Resyncing {
        /// It has everything at or below.
        from: Seq,
    },
    /// Its promotion has been sent: awaited for acknowledgements and leases, not read from (R15).
    Promoting,
    /// Gone.
    Absent {
        /// It has everything at or below.
        since: Seq,
    },
}

impl Role {
    /// Whether an operation needs its acknowledgement.
    pub fn is_awaited(self) -> bool {
        self == Self::Active || self == Self::Promoting && !mutant!("leg.promoting_is_not_awaited")
    }
    /// Whether operations are sent to it.
    pub fn receives(self) -> bool {
        !matches!(self, Self::Absent { .. })
    }
}

/// One member.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Its bit in [`Op::acked`].
    pub slot: u8,
    pub component: ComponentId,
    pub host: HostId,
    pub group: GroupId,
    pub role: Role,
    /// The open session; acknowledgements of others do not count (R2).
    pub session: Session,
    /// The life of its host in which the session was opened, if that is known.
    pub life: Option<Incarnation>,
    /// Something sent in that session may not have arrived, or was refused: nothing more is sent
    /// in it, which would leave a gap (R2).
    pub broken: bool,
    /// Somebody is bringing it back or dropping it.
    pub mending: bool,
    /// How often in a row it has refused what it was sent.
    pub refusals: u32,
    /// The owner may trust this member's lease until then (R11).
    pub lease_until: Nanos,
    /// Operations sent in this session and not acknowledged, while it is not yet active.
    pub unacked: BTreeSet<Seq>,
}

/// One operation in flight.
#[derive(Debug)]
pub(crate) struct Op {
    pub id: OpId,
    pub ticket: Ticket,
    pub kind: OpKind,
    pub range: BlockRange,
    pub crcs: Vec<u32>,
    pub payload: Vec<Buf>,
    pub started: Nanos,
    /// One bit per member slot.
    pub acked: Cell<u32>,
    pub decided: Cell<bool>,
    /// Wakes the task that drives it: membership or session changed.
    pub poke: Notify,
    /// Calls that were made for it elsewhere, for the task that drives it.
    pub fresh: RefCell<Calls>,
}

impl Op {
    pub fn to_component_op(&self, committed: Seq) -> ComponentOp {
        ComponentOp {
            id: self.id,
            ticket: self.ticket,
            kind: self.kind,
            range: self.range,
            committed,
            crcs: self.crcs.clone(),
            checked: true,
            payload: self.payload.clone(),
        }
    }
}

/// One leg.
#[derive(Debug)]
pub(crate) struct Leg {
    pub index: usize,
    pub members: RefCell<Vec<Member>>,
    /// Operations not all of whose predecessors are decided, in order.
    order: RefCell<VecDeque<Rc<Op>>>,
    committed: Cell<Seq>,
    /// The highest seq decided: those between may not be yet.
    decided: Cell<Seq>,
    /// The highest seq assigned in this leg.
    last: Cell<Seq>,
    /// Told to members so far.
    pub committed_told: Cell<Seq>,
    /// Chunks for which every member has a slot.
    reserved: RefCell<FixedSet<u32>>,
    /// Those who want to know what begins.
    watched: RefCell<Vec<Weak<RefCell<BTreeSet<Key>>>>>,
}

impl Leg {
    pub fn new(index: usize, members: Vec<Member>, committed: Seq) -> Self {
        Self {
            index,
            members: RefCell::new(members),
            order: RefCell::default(),
            committed: Cell::new(committed),
            decided: Cell::new(committed),
            last: Cell::new(committed),
            committed_told: Cell::new(Seq(0)),
            reserved: RefCell::default(),
            watched: RefCell::default(),
        }
    }

    /// Everything at or below is decided.
    pub fn committed(&self) -> Seq {
        self.committed.get()
    }

    /// The highest seq that every awaited member has acknowledged: one that has less than that has
    /// lost what it had.
    pub fn decided(&self) -> Seq {
        self.decided.get()
    }

    /// Everything at or below is on every active member: roll-forward is over.
    pub fn start_from(&self, committed: Seq) {
        assert!(self.is_idle(), "nothing is in flight before the owner serves");
        self.committed.set(committed);
        self.decided.set(committed);
        self.last.set(committed);
    }

    /// The highest seq assigned so far.
    pub fn last(&self) -> Seq {
        self.last.get()
    }

    /// A new operation; it is last in the order.
    pub fn begin(&self, op: Rc<Op>) {
        assert!(op.id.seq > self.last.get(), "sequence numbers rise");
        self.last.set(op.id.seq);
        for begun in self.watched.borrow().iter().filter_map(Weak::upgrade) {
            begun.borrow_mut().insert(key(op.ticket));
        }
        self.order.borrow_mut().push_back(op);
    }

    /// Operations in flight, oldest first.
    pub fn in_flight(&self) -> Vec<Rc<Op>> {
        self.order.borrow().iter().filter(|op| !op.decided.get()).cloned().collect()
    }

    /// Operations not all of whose predecessors are decided, in order.
    pub fn order(&self) -> Vec<Rc<Op>> {
        self.order.borrow().iter().cloned().collect()
    }

    /// What is in flight and all that begins, for as long as somebody has the answer.
    pub fn watch_begun(&self) -> Rc<RefCell<BTreeSet<Key>>> {
        let in_flight = self.in_flight().iter().map(|op| key(op.ticket)).collect();
        let begun = Rc::new(RefCell::new(in_flight));
        let mut watched = self.watched.borrow_mut();
        watched.retain(|begun| begun.strong_count() > 0);
        watched.push(Rc::downgrade(&begun));
        begun
    }

    /// Whether none is in flight.
    pub fn is_idle(&self) -> bool {
        self.order.borrow().is_empty()
    }

    /// An acknowledgement has come. Ignored unless it is of the member's open session.
    pub fn on_ack(&self, op: &Op, slot: u8, session: Session) {
        let mut members = self.members.borrow_mut();
        let Some(member) = members.iter_mut().find(|m| m.slot == slot) else { return };
        if member.session == session {
            op.acked.set(op.acked.get() | 1 << slot);
            member.refusals = 0;
            member.unacked.remove(&op.id.seq);
        }
    }

    /// Decides the operation if every awaited member has it. True once, when it becomes so.
    pub fn decide(&self, op: &Op) -> bool {
        if op.decided.get() {
            return false;
        }
        let members = self.members.borrow();
        let mut awaited = members.iter().filter(|m| m.role.is_awaited()).peekable();
        assert!(awaited.peek().is_some(), "a leg always has an active member");
        let has = |m: &Member| op.acked.get() & (1 << m.slot) != 0;
        if !(awaited.all(has) || mutant!("leg.one_ack_is_enough") && members.iter().any(has)) {
            return false;
        }
        op.decided.set(true);
        self.decided.set(self.decided.get().max(op.id.seq));
        let mut order = self.order.borrow_mut();
        while order.front().is_some_and(|op| op.decided.get()) {
            let first = order.pop_front().expect("just looked at");
            self.committed.set(first.id.seq);
        }
        true
    }

    /// Wakes every operation in flight: something changed that it may depend on.
    pub fn poke_all(&self) {
        for op in self.order.borrow().iter() {
            op.poke.notify_all();
        }
    }

    /// A session has been opened to a member: what was acknowledged in another no longer counts
    /// (R2, F10). Returns what is to be sent again in this one, in order.
    #[must_use]
    pub fn on_attached(
        &self,
        slot: u8,
        session: Session,
        life: Option<Incarnation>,
    ) -> Vec<Rc<Op>> {
        let attached = self.with_member(slot, |member| {
            member.session = session;
            member.broken = false;
            member.life = life;
            member.unacked.clear();
        });
        if attached.is_none() || mutant!("leg.nothing_is_sent_again") {
            return Vec::new();
        }
        let again = self.in_flight();
        for op in &again {
            op.acked.set(op.acked.get() & !(1 << slot));
        }
        again
    }

    /// The member of that slot.
    pub fn member(&self, slot: u8) -> Option<Member> {
        self.members.borrow().iter().find(|m| m.slot == slot).cloned()
    }

    /// Changes the member of that slot, if it is still there.
    pub fn with_member<R>(&self, slot: u8, change: impl FnOnce(&mut Member) -> R) -> Option<R> {
        self.members.borrow_mut().iter_mut().find(|m| m.slot == slot).map(change)
    }

    /// Adds a member; its slot is free in every operation in flight.
    pub fn add_member(&self, mut member: Member) -> u8 {
        let mut members = self.members.borrow_mut();
        let free = (0..32).find(|&slot| members.iter().all(|m| m.slot != slot));
        member.slot = free.expect("a leg has at most five members");
        for op in self.order.borrow().iter() {
            op.acked.set(op.acked.get() & !(1 << member.slot));
        }
        let slot = member.slot;
        members.push(member);
        slot
    }

    /// Removes the member of that component.
    pub fn remove_member(&self, component: ComponentId) {
        self.members.borrow_mut().retain(|m| m.component != component);
    }

    /// Whether another member than that one is active: it alone may not be dropped (R20).
    pub fn has_other_active(&self, slot: u8) -> bool {
        self.members.borrow().iter().any(|m| m.slot != slot && m.role == Role::Active)
    }

    /// Whether another member than that one is active and has an open session: one that may have
    /// lost what it had, or cannot be reached, is not what a drop leaves behind.
    pub fn has_other_open(&self, slot: u8) -> bool {
        let members = self.members.borrow();
        members.iter().any(|m| m.slot != slot && m.role == Role::Active && !m.broken)
    }

    /// Until when reads may be answered: the earliest end of the leases of all awaited members.
    pub fn lease_until(&self) -> Nanos {
        let members = self.members.borrow();
        let awaited = members.iter().filter(|m| m.role.is_awaited());
        let until = awaited.map(|m| m.lease_until);
        let until = if mutant!("leg.lease_of_one_member") { until.max() } else { until.min() };
        until.unwrap_or(Nanos::ZERO)
    }

    /// Awaited members that have not acknowledged an operation in time while another one has.
    pub fn late(&self, now: Nanos) -> Vec<(u8, Session)> {
        let mut late = Vec::new();
        let members = self.members.borrow();
        for op in self.order.borrow().iter().filter(|op| !op.decided.get()) {
            if op.started + LATE > now {
                break;
            }
            if op.acked.get() == 0 {
                continue;
            }
            for m in members.iter().filter(|m| m.role.is_awaited() && !m.mending) {
                if op.acked.get() & (1 << m.slot) == 0 && !late.contains(&(m.slot, m.session)) {
                    late.push((m.slot, m.session));
                }
            }
        }
        late
    }

    /// From when on that member is late with what is in flight, if another has acknowledged it;
    /// never: it owes nothing.
    pub fn late_at(&self, slot: u8) -> Nanos {
        let acked = |op: &Op| op.acked.get() != 0 && op.acked.get() & (1 << slot) == 0;
        let order = self.order.borrow();
        let first = order.iter().find(|op| !op.decided.get() && acked(op));
        first.map_or(Nanos::NEVER, |op| op.started + LATE)
    }

    /// Whether every member has been asked for a slot for that chunk.
    pub fn is_reserved(&self, chunk: u32) -> bool {
        self.reserved.borrow().contains(&chunk)
    }

    /// Every member has a slot for that chunk, or may no longer have.
    pub fn set_reserved(&self, chunk: u32, reserved: bool) {
        if reserved {
            self.reserved.borrow_mut().insert(chunk);
        } else {
            self.reserved.borrow_mut().remove(&chunk);
        }
    }

    /// A new member has none of the slots.
    pub fn forget_reserved(&self) {
        self.reserved.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_format::id::{ClientId, Epoch};

    fn member(slot: u8, role: Role) -> Member {
        Member {
            slot,
            component: ComponentId(u64::from(slot)),
            host: HostId(u64::from(slot)),
            group: GroupId(0),
            role,
            session: Session { epoch: Epoch(1), attach: 1 },
            life: None,
            broken: false,
            mending: false,
            refusals: 0,
            lease_until: Nanos::ZERO,
            unacked: BTreeSet::new(),
        }
    }

    fn op(seq: u64) -> Rc<Op> {
        Rc::new(Op {
            id: OpId { epoch: Epoch(1), seq: Seq(seq) },
            ticket: Ticket::default(),
            kind: OpKind::Zero,
            range: BlockRange { start: 0, count: 1 },
            crcs: vec![],
            payload: vec![],
            started: Nanos::ZERO,
            acked: Cell::new(0),
            decided: Cell::new(false),
            poke: Notify::default(),
            fresh: RefCell::default(),
        })
    }

    #[test]
    fn the_watermark_rises_only_over_decided_operations() {
        let leg = Leg::new(0, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let session = leg.member(0).expect("there").session;
        let ops = [op(11), op(12), op(13)];
        for op in &ops {
            leg.begin(op.clone());
        }
        for op in &ops[1..] {
            leg.on_ack(op, 0, session);
            assert!(!leg.decide(op));
            leg.on_ack(op, 1, session);
            assert!(leg.decide(op));
        }
        assert_eq!(leg.committed(), Seq(0), "11 is missing");
        leg.on_ack(&ops[0], 0, session);
        leg.on_ack(&ops[0], 1, session);
        assert!(leg.decide(&ops[0]));
        assert_eq!(leg.committed(), Seq(13));
    }

    #[test]
    fn acknowledgements_of_an_older_session_do_not_count() {
        let leg = Leg::new(0, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let old = leg.member(0).expect("there").session;
        let op = op(1);
        leg.begin(op.clone());
        leg.on_ack(&op, 0, old);
        leg.on_ack(&op, 1, old);
        let new = Session { attach: 2, ..old };
        let again = leg.on_attached(1, new, None);
        assert!(!leg.decide(&op), "member 1 has to acknowledge again");
        leg.on_ack(&op, 1, old);
        assert!(!leg.decide(&op));
        leg.on_ack(&op, 1, new);
        assert!(leg.decide(&op));
        assert_eq!(again.iter().map(|op| op.id.seq).collect::<Vec<_>>(), [Seq(1)]);
    }

    #[test]
    fn what_is_in_flight_or_begins_is_told_to_who_watches_also_when_it_has_ended() {
        let leg = Leg::new(0, vec![member(0, Role::Active)], Seq(0));
        let session = leg.member(0).expect("there").session;
        let of = |seq| {
            let op = Rc::into_inner(op(seq)).expect("one");
            let ticket = Ticket { client: ClientId(7), number: seq as u32, settled_below: 1 };
            Rc::new(Op { ticket, ..op })
        };
        let end = |op: &Rc<Op>| {
            leg.on_ack(op, 0, session);
            assert!(leg.decide(op));
        };
        let ops = [of(1), of(2), of(3)];
        leg.begin(ops[0].clone());
        end(&ops[0]);
        leg.begin(ops[1].clone());
        let (one, other) = (leg.watch_begun(), leg.watch_begun());
        drop(other);
        leg.begin(ops[2].clone());
        ops[1..].iter().for_each(end);
        assert_eq!(*one.borrow(), BTreeSet::from([key(ops[1].ticket), key(ops[2].ticket)]));
    }

    #[test]
    fn everything_in_flight_is_sent_again_in_order_and_nothing_else() {
        let leg = Leg::new(0, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let session = leg.member(0).expect("there").session;
        let ops = [op(1), op(2), op(3), op(4)];
        for op in &ops {
            leg.begin(op.clone());
        }
        for slot in [0, 1] {
            leg.on_ack(&ops[1], slot, session);
        }
        assert!(leg.decide(&ops[1]));
        let again = leg.on_attached(1, Session { attach: 2, ..session }, None);
        assert_eq!(again.iter().map(|op| op.id.seq.0).collect::<Vec<_>>(), [1, 3, 4]);
        let nobody = leg.on_attached(7, session, None);
        assert!(nobody.is_empty(), "there is no such member");
    }

    #[test]
    fn a_member_being_promoted_is_awaited_but_a_resyncing_one_is_not() {
        let resyncing = member(1, Role::Resyncing { from: Seq(0) });
        let leg = Leg::new(0, vec![member(0, Role::Active), resyncing], Seq(0));
        let session = leg.member(0).expect("there").session;
        let (a, b) = (op(1), op(2));
        leg.begin(a.clone());
        leg.on_ack(&a, 0, session);
        assert!(leg.decide(&a));
        leg.with_member(1, |m| m.role = Role::Promoting);
        leg.begin(b.clone());
        leg.on_ack(&b, 0, session);
        assert!(!leg.decide(&b));
        leg.on_ack(&b, 1, session);
        assert!(leg.decide(&b));
    }

    #[test]
    fn nobody_is_late_while_all_are() {
        let leg = Leg::new(0, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let session = leg.member(0).expect("there").session;
        let op = op(1);
        leg.begin(op.clone());
        assert!(leg.late(LATE * 2).is_empty(), "the whole machine stalls");
        leg.on_ack(&op, 0, session);
        assert_eq!(leg.late(LATE * 2), vec![(1, session)]);
        assert!(leg.late(LATE / 2).is_empty());
    }

    #[test]
    fn the_audit_finds_what_does_not_hold() {
        let leg = || Leg::new(0, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let good = leg();
        good.begin(op(1));
        assert_eq!(good.check(Seq(2)), Ok(()));
        assert!(good.check(Seq(1)).unwrap_err().contains("do not rise"));
        good.begin(op(2));
        assert!(good.check(Seq(3)).unwrap_err().contains("overlap"));
        let kept = leg();
        kept.begin(op(1));
        kept.order()[0].decided.set(true);
        assert!(kept.check(Seq(2)).unwrap_err().contains("is kept"));
        let early = leg();
        early.committed.set(Seq(1));
        assert!(early.check(Seq(2)).unwrap_err().contains("do not rise"));
        let told = leg();
        told.committed_told.set(Seq(1));
        assert!(told.check(Seq(2)).unwrap_err().contains("was told"));
        let owes = leg();
        owes.with_member(0, |m| m.unacked.insert(Seq(1)));
        assert!(owes.check(Seq(2)).unwrap_err().contains("owes"));
        let twice = leg();
        twice.members.borrow_mut()[1].slot = 0;
        assert!(twice.check(Seq(2)).unwrap_err().contains("twice"));
        let none = leg();
        none.members.borrow_mut().iter_mut().for_each(|m| m.role = Role::Promoting);
        assert!(none.check(Seq(2)).unwrap_err().contains("active"));
    }
}
