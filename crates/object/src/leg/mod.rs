//! One leg as its owner sees it: members, operations in flight, the committed watermark.
//! Decisions only: no waiting, no messages.
//!
//! Invariants:
//! - an operation is decided when every awaited member has acknowledged it in its open session;
//! - `committed` is the highest seq such that it and every lower one of this leg are decided (R4);
//! - there is always at least one active member (R20).

mod member;

pub(crate) use member::{Member, MemberEvent, MemberNext, Role};

use crate::layout::Layout;
use crate::limits::{LATE, MEMBERS_MAX};
use crate::operation::{Op, TicketKey, key};
use atoll_format::id::{ComponentId, GroupId, HostId, Incarnation, Seq, Session};
use atoll_world::{FixedSet, Nanos, mutant};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

/// Bits of [`Op::acked`].
const SLOTS: usize = 32;
const _: () = assert!(MEMBERS_MAX <= SLOTS);

/// One leg.
#[derive(Debug)]
pub(crate) struct Leg {
    pub index: usize,
    /// Who gets what, and how many may be missing.
    pub layout: Layout,
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
    watched: RefCell<Vec<Weak<RefCell<BTreeSet<TicketKey>>>>>,
}

impl Leg {
    pub fn new(index: usize, layout: Layout, members: Vec<Member>, committed: Seq) -> Self {
        assert!(members.len() <= MEMBERS_MAX, "{} members", members.len());
        assert!(members.iter().any(|m| m.role() == Role::Active), "no active member (R20)");
        for (i, m) in members.iter().enumerate() {
            assert!(usize::from(m.slot) < SLOTS, "slot {} has no bit", m.slot);
            assert!(
                members[..i].iter().all(|o| o.slot != m.slot && o.component != m.component),
                "a member twice: {members:?}"
            );
        }
        Self {
            index,
            layout,
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
        assert!(op.acked.get() == 0 && !op.decided.get(), "{:?} has begun before", op.id);
        assert!(op.range.is_valid(), "{:?} crosses a chunk: {:?}", op.id, op.range);
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
    pub fn watch_begun(&self) -> Rc<RefCell<BTreeSet<TicketKey>>> {
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
        if member.session() == session {
            assert!(op.id.seq <= self.last.get(), "{:?} has not begun", op.id);
            assert!(
                op.acked.get() & 1 << slot == 0,
                "{:?} is acknowledged twice in {session:?} of slot {slot}",
                op.id
            );
            op.acked.set(op.acked.get() | 1 << slot);
            member.on(MemberEvent::Acked(op.id.seq));
        }
    }

    /// Decides the operation if every awaited member has it. True once, when it becomes so.
    pub fn decide(&self, op: &Op) -> bool {
        if op.decided.get() {
            return false;
        }
        let members = self.members.borrow();
        let gets = |m: &&Member| self.layout.gets(m.slot, op.range);
        let bits = |mask, m: &Member| mask | 1u32 << m.slot;
        let awaited = members.iter().filter(|m| m.role().is_awaited());
        let awaited = awaited.filter(gets).fold(0, bits);
        assert!(awaited != 0, "a leg always has an active member");
        let acked = op.acked.get();
        if !(self.layout.is_durable(awaited, acked)
            || mutant!("leg.one_ack_is_enough") && acked != 0)
        {
            return false;
        }
        // R13, R15, in other words.
        let owed = |m: &&Member| matches!(m.role(), Role::Active | Role::Promoting);
        let owed = members.iter().filter(owed).filter(gets).fold(0, bits);
        assert_eq!(acked & owed, owed, "{:?} is decided without a member", op.id);
        assert!(op.id.seq > self.committed.get(), "{:?} was committed undecided", op.id);
        op.decided.set(true);
        self.decided.set(self.decided.get().max(op.id.seq));
        let mut order = self.order.borrow_mut();
        while order.front().is_some_and(|op| op.decided.get()) {
            let first = order.pop_front().expect("just looked at");
            assert!(first.id.seq > self.committed.get(), "the watermark rises");
            self.committed.set(first.id.seq);
        }
        // R4: the watermark is below every operation that is not decided.
        let (committed, decided) = (self.committed.get(), self.decided.get());
        assert!(order.front().is_none_or(|first| committed < first.id.seq));
        assert!(committed <= decided && decided >= op.id.seq, "{committed:?}, {decided:?}");
        assert!(decided <= self.last.get(), "{decided:?} has not begun");
        true
    }

    /// Wakes every operation in flight: something changed that it may depend on.
    pub fn poke_all(&self) {
        for op in self.order.borrow().iter() {
            op.poke.notify_all();
        }
    }

    /// A session has been opened to a member: what was acknowledged in another no longer counts
    /// (R2). Returns what is to be sent again in this one, in order.
    #[must_use]
    pub fn on_attached(
        &self,
        slot: u8,
        session: Session,
        life: Option<Incarnation>,
    ) -> Vec<Rc<Op>> {
        let attached = self.tell(slot, MemberEvent::Attached(session, life));
        if attached.is_none() || mutant!("leg.nothing_is_sent_again") {
            return Vec::new();
        }
        let again = self.in_flight();
        for op in &again {
            op.acked.set(op.acked.get() & !(1 << slot));
        }
        assert!(again.is_sorted_by(|a, b| a.id.seq < b.id.seq), "in order, in every session (R2)");
        assert!(again.iter().all(|op| op.id.seq > self.committed.get()));
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

    /// Something happens to the member of that slot, if it is still there.
    pub fn tell(&self, slot: u8, event: MemberEvent<'_>) -> Option<MemberNext> {
        self.with_member(slot, |member| member.on(event))
    }

    /// The disk groups of members in such roles.
    pub fn places(&self, is_meant: impl Fn(Role) -> bool) -> Vec<(HostId, GroupId)> {
        let members = self.members.borrow();
        members.iter().filter(|m| is_meant(m.role())).map(Member::place).collect()
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
        assert!(members.iter().all(|m| m.component != member.component), "a member twice");
        assert!(!member.role().is_awaited(), "a new member has nothing yet");
        members.push(member);
        assert!(members.len() <= MEMBERS_MAX, "{} members", members.len());
        slot
    }

    /// Removes the member of that component.
    pub fn remove_member(&self, component: ComponentId) {
        let mut members = self.members.borrow_mut();
        let before = members.len();
        members.retain(|m| m.component != component);
        assert_eq!(members.len() + 1, before, "{component:?} is one member");
        assert!(members.iter().any(|m| m.role() == Role::Active), "the last active stays (R20)");
    }

    /// Whether the active members without that one have everything: else it may not be dropped
    /// (R20).
    pub fn is_enough_without(&self, slot: u8) -> bool {
        let members = self.members.borrow();
        let others = members.iter().filter(|m| m.slot != slot && m.role() == Role::Active);
        self.layout.is_enough(others.count())
    }

    /// The same of those that have an open session: one that may have lost what it had, or cannot
    /// be reached, is not what a drop leaves behind.
    pub fn is_open_without(&self, slot: u8) -> bool {
        let members = self.members.borrow();
        let others = members.iter().filter(|m| m.slot != slot && m.is_open());
        self.layout.is_enough(others.count())
    }

    /// Until when reads may be answered: the earliest end of the leases of all awaited members.
    pub fn lease_until(&self) -> Nanos {
        let members = self.members.borrow();
        let awaited = members.iter().filter(|m| m.role().is_awaited());
        let until = awaited.map(|m| m.lease_until());
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
            for m in members.iter().filter(|m| m.role().is_awaited() && !m.is_recovering()) {
                let gets = self.layout.gets(m.slot, op.range);
                if gets
                    && op.acked.get() & (1 << m.slot) == 0
                    && !late.contains(&(m.slot, m.session()))
                {
                    late.push((m.slot, m.session()));
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

    /// What must hold of the leg at every moment. `next`: the seq that the owner gives out next.
    ///
    /// # Errors
    /// What does not hold.
    pub(crate) fn check(&self, next: Seq) -> Result<(), String> {
        let members = self.members.borrow();
        let slots: BTreeSet<u8> = members.iter().map(|m| m.slot).collect();
        let components: BTreeSet<_> = members.iter().map(|m| m.component).collect();
        if slots.len() != members.len() || components.len() != members.len() {
            return Err(format!("a member twice: {members:?}"));
        }
        if members.len() > MEMBERS_MAX || !members.iter().any(|m| m.role() == Role::Active) {
            return Err(format!("too many members, or none that is active: {members:?}"));
        }
        for m in members.iter() {
            let last = m.unacked().last().copied().unwrap_or_default();
            if last > self.last() || m.role() == Role::Active && last > Seq(0) {
                return Err(format!("{:?} owes an answer to {last:?}", m.component));
            }
        }
        let (committed, decided, last) = (self.committed(), self.decided(), self.last());
        if committed > decided || decided > last || last >= next {
            return Err(format!("{committed:?}, {decided:?}, {last:?}, {next:?} do not rise"));
        }
        if self.committed_told.get() > committed {
            return Err(format!("{:?} was told, {committed:?} is", self.committed_told.get()));
        }
        // R4: everything at or below `committed` is decided, and the first above it is not.
        let order = self.order();
        match order.first() {
            None if committed != decided => {
                return Err(format!("{committed:?}, {decided:?} with nothing in flight"));
            }
            Some(first) if first.decided.get() || first.id.seq <= committed => {
                return Err(format!("{:?} is kept, {committed:?} is committed", first.id));
            }
            _ => {}
        }
        if !order.is_sorted_by(|a, b| a.id.seq < b.id.seq) {
            return Err("operations are out of order".into());
        }
        // R8: nothing overlaps a change that is not decided.
        let open: Vec<_> = order.iter().filter(|op| !op.decided.get()).collect();
        for (i, a) in open.iter().enumerate() {
            let b = open[i + 1..]
                .iter()
                .find(|b| a.range.start < b.range.end() && b.range.start < a.range.end());
            if let Some(b) = b {
                return Err(format!("{:?} and {:?} overlap", a.id, b.id));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_format::id::{ClientId, Epoch, GroupId, OpId, Ticket};
    use atoll_format::op::{BlockRange, OpKind};
    use atoll_world::sync::Notify;

    const MIRROR: Layout = Layout::Mirror { members: 2 };

    fn member(slot: u8, role: Role) -> Member {
        let (component, host) = (ComponentId(u64::from(slot)), HostId(u64::from(slot)));
        let session = Session { epoch: Epoch(1), attach: 1 };
        Member::new(slot, component, (host, GroupId(0)), role).attached(session, None)
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
        let leg =
            Leg::new(0, MIRROR, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let session = leg.member(0).expect("there").session();
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
        let leg =
            Leg::new(0, MIRROR, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let old = leg.member(0).expect("there").session();
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
        let leg = Leg::new(0, MIRROR, vec![member(0, Role::Active)], Seq(0));
        let session = leg.member(0).expect("there").session();
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
        let leg =
            Leg::new(0, MIRROR, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let session = leg.member(0).expect("there").session();
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
        let leg = Leg::new(0, MIRROR, vec![member(0, Role::Active), resyncing], Seq(0));
        let session = leg.member(0).expect("there").session();
        let (a, b) = (op(1), op(2));
        leg.begin(a.clone());
        leg.on_ack(&a, 0, session);
        assert!(leg.decide(&a));
        leg.tell(1, MemberEvent::Promoting);
        leg.begin(b.clone());
        leg.on_ack(&b, 0, session);
        assert!(!leg.decide(&b));
        leg.on_ack(&b, 1, session);
        assert!(leg.decide(&b));
    }

    #[test]
    fn nobody_is_late_while_all_are() {
        let leg =
            Leg::new(0, MIRROR, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
        let session = leg.member(0).expect("there").session();
        let op = op(1);
        leg.begin(op.clone());
        assert!(leg.late(LATE * 2).is_empty(), "the whole machine stalls");
        leg.on_ack(&op, 0, session);
        assert_eq!(leg.late(LATE * 2), vec![(1, session)]);
        assert!(leg.late(LATE / 2).is_empty());
    }

    #[test]
    fn the_audit_finds_what_does_not_hold() {
        let leg =
            || Leg::new(0, MIRROR, vec![member(0, Role::Active), member(1, Role::Active)], Seq(0));
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
        let slot = owes.add_member(member(2, Role::Resyncing { from: Seq(0) }));
        owes.tell(slot, MemberEvent::Sent(Seq(1)));
        assert!(owes.check(Seq(2)).unwrap_err().contains("owes"));
        let twice = leg();
        twice.members.borrow_mut()[1].slot = 0;
        assert!(twice.check(Seq(2)).unwrap_err().contains("twice"));
        let none = leg();
        none.members.borrow_mut().iter_mut().for_each(|m| *m = member(m.slot, Role::Promoting));
        assert!(none.check(Seq(2)).unwrap_err().contains("active"));
    }
}
