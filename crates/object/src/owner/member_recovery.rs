//! Members that fail: brought back in a new session if that is quick, else dropped by a change of
//! the record before anything is acknowledged without them.

use super::Owner;
use super::record_cas::state_of;
use crate::ctx::Protocol;
use crate::events::Event;
use crate::failure::{Fail, MemberFault, Stop};
use crate::leg::{Leg, Member, MemberEvent, MemberNext, Role};
use crate::limits::{CALL_DEADLINE, MEND, RETRY_EVERY, WATCH_EVERY};
use crate::member_client::{Attached, Endpoint, MemberError};
use atoll_format::id::{ComponentId, Seq, Session};
use atoll_format::record::{MemberState, ObjectRecord};
use atoll_world::{Nanos, StoreError, World, mutant, sometimes};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::rc::Rc;

/// A member that refuses in so many sessions in a row is dropped.
const REFUSALS_MAX: u32 = 3;

/// What a recovery does next with a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Opens a new session to it.
    Reopen,
    /// Takes it out of the record.
    Drop,
    /// The same, behind on purpose: it starts over from where it certainly was (R4).
    DropResyncing,
    /// R15: the promotion is resolved first, then this member is active and dropped.
    AwaitPromotion,
    /// Nothing: it is out.
    End,
}

/// What to do with a member of that role. `is_last`: no other is active and open (R20).
/// `has_time`: a new session may still come in time. Pure.
fn next(role: Role, fault: &MemberFault, refusals: u32, is_last: bool, has_time: bool) -> Next {
    match role {
        Role::Absent { .. } => Next::End,
        Role::Resyncing { .. } => Next::DropResyncing,
        Role::Promoting => Next::AwaitPromotion,
        Role::Active if is_last => Next::Reopen,
        Role::Active if fault.may_pass() && refusals <= REFUSALS_MAX && has_time => Next::Reopen,
        Role::Active => Next::Drop,
    }
}

impl<W: World, P: Protocol> Owner<W, P> {
    /// Something is wrong with the member of that slot, as seen in `session`.
    pub fn on_fault(&self, leg: &Rc<Leg>, slot: u8, session: Session, fault: MemberFault) {
        let next = leg.tell(slot, MemberEvent::Fault(session, &fault));
        if next == Some(MemberNext::Recover) && !self.is_stopped() {
            self.world().spawn(self.clone().recover(leg.clone(), slot, fault));
        }
    }

    async fn recover(self, leg: Rc<Leg>, slot: u8, mut fault: MemberFault) {
        let give_up = self.now() + MEND;
        // A new session that is refused like the last one does not help.
        let Some(member) = leg.member(slot) else { return };
        let (component, refusals, place) = (member.component, member.refusals(), member.place());
        // Its slot may be that of another by the time.
        let role = || leg.member(slot).filter(|m| m.component == component).map(|m| m.role());
        if refusals > 1 {
            sometimes!("mend.member_refuses_again");
            self.world().sleep(RETRY_EVERY / 2).await;
        }
        loop {
            if self.is_stopped() {
                return;
            }
            let Some(role) = role() else { return };
            // Faults do not add up: what is in flight waits no longer for this than
            // for a member that is only slow.
            let late_at = leg.late_at(slot);
            let give_up = give_up.min(late_at);
            // Its host has said that it stops. Without I/O it keeps its place for as long as any
            // other: all hosts may be about to stop, or this one to start again.
            let is_of_no_use = late_at != Nanos::NEVER && self.0.ctx.has_left(place);
            if is_of_no_use {
                sometimes!("mend.member_has_left");
            }
            let has_time = self.now() < give_up && !is_of_no_use;
            let is_last = !leg.is_open_without(slot) && !mutant!("mend.drops_the_last");
            match next(role, &fault, refusals, is_last, has_time) {
                Next::End => break,
                Next::DropResyncing => break self.drop_resyncing(&leg, slot).await,
                Next::AwaitPromotion => {
                    self.world().sleep(RETRY_EVERY).await;
                    continue;
                }
                Next::Reopen => match self.attach(&leg, slot, give_up).await {
                    Ok(()) => {
                        sometimes!("mend.member_came_back_in_a_new_session");
                        break;
                    }
                    Err(MemberFault::Link) if !fault.may_pass() => {}
                    Err(worse) => fault = worse,
                },
                Next::Drop => {
                    let dropped = pin!(self.drop_active(&leg, slot, &fault));
                    let reopened = pin!(self.keep_open(&leg, slot, &fault));
                    let done = match select(dropped, reopened).await {
                        Either::Left((done, _)) => done,
                        Either::Right(((), dropped)) => dropped.await,
                    };
                    if done {
                        break;
                    }
                }
            }
            self.world().sleep(RETRY_EVERY / 2).await;
        }
        if role().is_some() {
            leg.tell(slot, MemberEvent::RecoveryEnded);
        }
        leg.poke_all();
    }

    /// Opens a new session to a member and sends it everything that is in flight.
    ///
    /// # Errors
    /// What is wrong with the member.
    async fn attach(&self, leg: &Rc<Leg>, slot: u8, until: Nanos) -> Result<(), MemberFault> {
        let Some(member) = leg.member(slot) else { return Err(MemberFault::Link) };
        // From here on it may answer reads whatever it has lost.
        leg.tell(slot, MemberEvent::Reopening);
        let session = self.next_session();
        let to = Endpoint { session, ..member.endpoint() };
        let deadline = until.max(self.now() + RETRY_EVERY).min(self.now() + CALL_DEADLINE);
        let answer = self.members().attach(to, None, deadline).await;
        let gaps = mutant!("mend.gaps_in_a_session");
        let acknowledged = if gaps { leg.committed() } else { leg.decided() };
        match answer {
            // Everything decided was acknowledged by this member, in order; what is still in flight
            // comes again. The last active member is what there is (R20).
            Ok(Attached { promise, doubtful })
                if (doubtful || promise.newest < acknowledged)
                    && leg.is_enough_without(slot)
                    && !mutant!("mend.lost_end_unnoticed") =>
            {
                sometimes!("mend.member_lost_what_it_acknowledged");
                Err(MemberFault::Stale)
            }
            Ok(Attached { promise, doubtful }) => {
                // Once in each of its lives: a connection that blinks loses nothing.
                let has_restarted =
                    member.life().is_none() || member.life() != self.0.ctx.life_of(member.place());
                if has_restarted && (doubtful || promise.newest < acknowledged) {
                    let is_left = self.accept_what_is_left(leg, &member).await;
                    if !is_left.map_err(|_| MemberFault::Link)? {
                        sometimes!("mend.another_copy_was_completed");
                        return Err(MemberFault::Stale);
                    }
                    if doubtful {
                        // Not again in its next life. Without an answer it will be.
                        let _ = self.members().complete(to, leg.committed()).await;
                    }
                }
                // Its slot may be that of another by now.
                let is_here = |m: Member| m.component == member.component && m.role().receives();
                if !leg.member(slot).is_some_and(is_here) {
                    return Err(MemberFault::Link);
                }
                self.on_attached(leg, slot, session, self.0.ctx.life_of(member.place()));
                Ok(())
            }
            Err(MemberError::Superseded(_)) => {
                self.stop(Stop::Superseded);
                Err(MemberFault::Link)
            }
            Err(error) => Err(error.fault()),
        }
    }

    /// The last active member lacks some of what it had acknowledged, and is what there is (R20):
    /// the others are compared with it whole, so that all are the same in the end. False: it is not
    /// the last any more, another was made active meanwhile.
    async fn accept_what_is_left(&self, leg: &Rc<Leg>, left: &Member) -> Result<bool, Fail> {
        let is_last = |record: &ObjectRecord| {
            let members = &record.legs[leg.index].members;
            !members.iter().any(|m| m.component != left.component && m.state.is_active())
        };
        let changed = self.change(|record| {
            // Decided again at each attempt (R20).
            if !is_last(record) {
                return false;
            }
            let mut changed = false;
            for member in &mut record.legs[leg.index].members {
                if let MemberState::Absent { since: seq, .. }
                | MemberState::Resyncing { from: seq } = &mut member.state
                {
                    changed |= *seq > Seq(0);
                    *seq = Seq(0);
                }
            }
            changed
        });
        let changed = changed.await;
        if changed.is_ok() && !is_last(&self.0.record.borrow()) {
            return Ok(false);
        }
        sometimes!("mend.last_copy_lacks_something");
        let (object, host) = (self.0.id, left.host);
        self.0.ctx.event(Event::WritesLost { object, host });
        changed?;
        let mut again = Vec::new();
        for member in leg.members.borrow_mut().iter_mut() {
            member.on(MemberEvent::AllInDoubt);
            // From the start, with what there is now.
            if matches!(member.role(), Role::Resyncing { .. }) {
                again.push((member.slot, member.session()));
            }
        }
        for (slot, session) in again {
            self.on_fault(leg, slot, session, MemberFault::Link);
        }
        Ok(true)
    }

    /// As long as the directory does not confirm that a member is dropped, it is awaited: if it can
    /// be reached meanwhile, it gets what it is awaited for. Returns if it is of no use.
    async fn keep_open(&self, leg: &Rc<Leg>, slot: u8, fault: &MemberFault) {
        let mut stale = *fault == MemberFault::Stale;
        while !stale {
            self.world().sleep(RETRY_EVERY).await;
            let Some(member) = leg.member(slot) else { return };
            let connected = self.0.ctx.peers.peer(member.host).connected;
            if member.is_broken() && member.role() == Role::Active && connected {
                sometimes!("mend.reopened_while_it_is_dropped");
                let until = self.now() + RETRY_EVERY;
                stale = self.attach(leg, slot, until).await == Err(MemberFault::Stale);
            }
        }
    }

    /// Takes an active member out of the record; until that is confirmed it is awaited (R12).
    /// False: it is still in there.
    async fn drop_active(&self, leg: &Rc<Leg>, slot: u8, fault: &MemberFault) -> bool {
        let Some(member) = leg.member(slot) else { return true };
        let lost = fault.is_lost();
        let at_ms = self.world().unix_ms();
        if mutant!("mend.acks_before_the_change") && leg.is_enough_without(slot) {
            leg.tell(slot, MemberEvent::Dropped(leg.committed()));
            leg.poke_all();
        }
        let changed = self.change(|record| {
            // Decided again at each attempt: another member may have gone meanwhile (R20).
            if !leg.is_open_without(slot) && !mutant!("mend.drops_the_last") {
                return false;
            }
            // W at the moment of the change (R4): neither assigned nor acknowledged ids will do.
            let since = if *fault == MemberFault::Stale { Seq(0) } else { leg.committed() };
            let Some(state) = state_of(record, member.component) else { return false };
            // Dropped already, by an attempt so long ago that its nonce is forgotten.
            if !state.is_active() {
                return false;
            }
            *state = MemberState::Absent { since, at_ms, lost };
            true
        });
        if changed.await.is_err() {
            return false;
        }
        let confirmed =
            state_of(&mut self.0.record.borrow_mut(), member.component).map(|state| *state);
        let Some(MemberState::Absent { since, .. }) = confirmed else {
            return false;
        };
        sometimes!("mend.member_dropped");
        assert!(since <= leg.committed(), "{since:?} is above the watermark (R4)");
        assert!(leg.is_enough_without(slot), "the last active member stays (R20)");
        leg.with_member(slot, |m| {
            assert_eq!(m.role(), Role::Active, "awaited until its drop is confirmed (R13)");
            m.on(MemberEvent::Dropped(since));
        });
        leg.poke_all();
        self.0.ctx.event(Event::MemberDropped {
            object: self.0.id,
            host: member.host,
            why: fault.to_string(),
        });
        true
    }

    /// A resyncing member failed: it keeps its `from` (R4).
    async fn drop_resyncing(&self, leg: &Rc<Leg>, slot: u8) {
        let Some(member) = leg.member(slot) else { return };
        let at_ms = self.world().unix_ms();
        let changed = self
            .change(|record| {
                let Some(state) = state_of(record, member.component) else { return false };
                let MemberState::Resyncing { from } = *state else { return false };
                let since = if mutant!("mend.from_rises") { leg.committed() } else { from };
                *state = MemberState::Absent { since, at_ms, lost: false };
                true
            })
            .await;
        let confirmed =
            state_of(&mut self.0.record.borrow_mut(), member.component).map(|state| *state);
        if let (Ok(()), Some(MemberState::Absent { since, .. })) = (changed, confirmed) {
            sometimes!("mend.resyncing_member_dropped");
            leg.tell(slot, MemberEvent::Dropped(since));
            leg.poke_all();
        }
    }

    /// The disk group of a member has failed, as its host has published: asks whether the member is
    /// lost. An owner that asks it for nothing would not notice. A group may have more than one
    /// device.
    pub async fn look_at_member(&self, component: ComponentId) {
        for leg in self.legs() {
            let of_it = |m: &&Member| m.component == component && m.role().receives();
            let found = leg.members.borrow().iter().find(of_it).cloned();
            if let Some(member) = found.filter(|m| !m.is_recovering())
                && self.is_lost(&member).await
            {
                let failed = StoreError::Failed("its disk group has failed".into());
                self.on_fault(&leg, member.slot, member.session(), MemberFault::Store(failed));
            }
        }
    }

    /// Looks for late operations and lost leases until the owner stops.
    pub async fn watch(&self) {
        let mut ticks = 0u64;
        let serving_since = self.now();
        while !self.is_stopped() {
            self.world().sleep(WATCH_EVERY).await;
            ticks += 1;
            let now = self.now();
            for leg in self.legs() {
                for (slot, session) in leg.late(now) {
                    sometimes!("watch.member_is_late");
                    self.on_fault(&leg, slot, session, MemberFault::Late);
                }
                self.watch_leases(&leg, serving_since, now);
                self.watch_lives(&leg);
                if ticks.is_multiple_of(2) {
                    self.tell_committed(&leg);
                }
            }
        }
    }

    /// A member whose host has restarted gets a new session at once, also when nothing is asked of
    /// it: what it may have lost must be known before it is the only one left (S18).
    fn watch_lives(&self, leg: &Rc<Leg>) {
        let has_restarted = |m: &&Member| {
            let now = self.0.ctx.life_of(m.place());
            m.role().receives()
                && !m.is_recovering()
                && m.life().is_some()
                && now.is_some()
                && now != m.life()
        };
        let restarted: Vec<(u8, Session)> = {
            let members = leg.members.borrow();
            members.iter().filter(has_restarted).map(|m| (m.slot, m.session())).collect()
        };
        for (slot, session) in restarted {
            sometimes!("watch.member_has_restarted");
            self.on_fault(leg, slot, session, MemberFault::Link);
        }
    }

    /// A member that gives no lease blocks every read: it is brought back or dropped. It attached
    /// when the takeover began, so its first lease may take as long as a broken connection.
    fn watch_leases(&self, leg: &Rc<Leg>, serving_since: Nanos, now: Nanos) {
        let overdue = |m: &&Member| m.lease_until().max(serving_since + MEND) < now;
        let overdue: Vec<(u8, Session)> = leg
            .members
            .borrow()
            .iter()
            .filter(|m| m.role() == Role::Active && !m.is_recovering())
            .filter(overdue)
            .map(|m| (m.slot, m.session()))
            .collect();
        let all = overdue.len()
            == leg.members.borrow().iter().filter(|m| m.role() == Role::Active).count();
        // All at once: this host was paused or is cut off; the next renewal tells.
        if all && leg.members.borrow().len() > 1 {
            return;
        }
        for (slot, session) in overdue {
            sometimes!("watch.lease_overdue");
            self.on_fault(leg, slot, session, MemberFault::Late);
        }
    }

    /// Members forget what is committed only when told; idle objects are told here.
    fn tell_committed(&self, leg: &Rc<Leg>) {
        let seq = leg.committed();
        if leg.committed_told.get() >= seq {
            return;
        }
        assert!(seq <= leg.decided() && seq <= leg.last(), "{seq:?} is told, and is not so");
        leg.committed_told.set(seq);
        let members = leg.members.borrow().clone();
        for member in members.iter().filter(|m| m.role().receives()) {
            let call = self.members().committed(member.endpoint(), seq);
            self.world().spawn(async move {
                let _ = call.await;
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_dropped_when_a_new_session_does_not_help_and_another_is_open() {
        let full = MemberFault::Store(StoreError::Full);
        let session = MemberFault::Store(StoreError::Damaged { block: 1 });
        let (link, late, stale) = (MemberFault::Link, MemberFault::Late, MemberFault::Stale);
        for (fault, refusals, has_time, expected) in [
            (&link, 0, true, Next::Reopen),
            (&link, 0, false, Next::Drop),
            (&session, REFUSALS_MAX, true, Next::Reopen),
            (&session, REFUSALS_MAX + 1, true, Next::Drop),
            (&late, 0, true, Next::Drop),
            (&stale, 0, true, Next::Drop),
            (&full, 0, true, Next::Drop),
        ] {
            let at = format!("{fault:?} {refusals} {has_time}");
            assert_eq!(next(Role::Active, fault, refusals, false, has_time), expected, "{at}");
            // R20, whatever is wrong with it.
            assert_eq!(next(Role::Active, fault, refusals, true, has_time), Next::Reopen, "{at}");
            for (role, expected) in [
                (Role::Resyncing { from: Seq(4) }, Next::DropResyncing),
                (Role::Promoting, Next::AwaitPromotion),
                (Role::Absent { since: Seq(4) }, Next::End),
            ] {
                for is_last in [false, true] {
                    assert_eq!(next(role, fault, refusals, is_last, has_time), expected, "{at}");
                }
            }
        }
    }
}
