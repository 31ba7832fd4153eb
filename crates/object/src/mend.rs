//! Members that fail: brought back in a new session if that is quick, else dropped by a change of
//! the record before anything is acknowledged without them.

use crate::leg::{Leg, Member, Role};
use crate::limits::{CALL_DEADLINE, MEND, RETRY_EVERY, WATCH_EVERY};
use crate::message::{Reply, Request};
use crate::objects::Event;
use crate::owner::{Fail, Owner, Stop};
use atoll_format::id::{ComponentId, HostId, Incarnation, Seq, Session};
use atoll_format::record::{MemberState, ObjectRecord};
use atoll_world::{Components, Lane, Nanos, StoreError, World, mutant, sometimes};
use futures_util::future::{Either, select};
use std::pin::pin;
use std::rc::Rc;

/// A member that refuses in so many sessions in a row is dropped.
const REFUSALS_MAX: u32 = 3;

/// What is wrong with a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Trouble {
    /// Its connection broke, or it answered nonsense.
    Link,
    /// It has not acknowledged in time while another member has.
    Late,
    /// It lacks what it had acknowledged: its disk lied, was put back, or is damaged (rows 28, 50).
    Stale,
    /// Its store refuses or has failed.
    Store(StoreError),
}

impl Trouble {
    /// Whether a new session may help.
    fn may_pass(&self) -> bool {
        match self {
            Self::Link => true,
            Self::Late | Self::Stale => false,
            Self::Store(error) => matches!(
                error,
                StoreError::Session { .. } | StoreError::Damaged { .. } | StoreError::Malformed(_)
            ),
        }
    }
    /// Whether its data is known to be gone: no reason to wait before rebuilding it elsewhere.
    fn is_lost(&self) -> bool {
        matches!(self, Self::Store(StoreError::Failed(_) | StoreError::NoComponent(_)))
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Link => write!(f, "its host cannot be reached"),
            Self::Late => write!(f, "it did not acknowledge in time"),
            Self::Stale => write!(f, "it has lost what it had acknowledged"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

/// The member of `component` in a record.
pub(crate) fn state_of(
    record: &mut ObjectRecord,
    component: ComponentId,
) -> Option<&mut MemberState> {
    let members = record.legs.iter_mut().flat_map(|leg| leg.members.iter_mut());
    members.filter(|m| m.component == component).map(|m| &mut m.state).next()
}

impl<W: World, S: Components> Owner<W, S> {
    /// Something is wrong with the member of that slot, as seen in `session`.
    pub fn on_trouble(&self, leg: &Rc<Leg>, slot: u8, session: Session, trouble: Trouble) {
        let mine = leg.with_member(slot, |m| {
            let first = m.session == session && !m.mending && m.role.receives();
            m.mending |= first;
            // One that is late has lost nothing: it may catch up before it is dropped.
            let lossless = trouble == Trouble::Late || mutant!("mend.gaps_in_a_session");
            m.broken |= m.session == session && !lossless;
            if first && matches!(trouble, Trouble::Store(_)) {
                m.refusals += 1;
            }
            first
        });
        if mine == Some(true) && !self.is_stopped() {
            self.world().spawn(self.clone().mend(leg.clone(), slot, trouble));
        }
    }

    async fn mend(self, leg: Rc<Leg>, slot: u8, mut trouble: Trouble) {
        let give_up = self.now() + MEND;
        // A new session that is refused like the last one does not help.
        let refusals = leg.member(slot).map_or(0, |m| m.refusals);
        if refusals > 1 {
            sometimes!("mend.member_refuses_again");
            self.world().sleep(RETRY_EVERY / 2).await;
        }
        loop {
            if self.is_stopped() {
                return;
            }
            match leg.member(slot).map(|m| m.role) {
                Some(Role::Active) => {}
                // Behind on purpose: it starts over from where it certainly was (A2, F12).
                Some(Role::Resyncing { .. }) => break self.drop_resyncing(&leg, slot).await,
                // R15: the promotion is resolved first, then this member is active and dropped.
                Some(Role::Promoting) => {
                    self.world().sleep(RETRY_EVERY).await;
                    continue;
                }
                Some(Role::Absent { .. }) | None => break,
            }
            // Trouble upon trouble does not add up: what is in flight waits no longer for this than
            // for a member that is only slow.
            let give_up = give_up.min(leg.late_at(slot));
            let last = !leg.has_other_open(slot) && !mutant!("mend.drops_the_last");
            let may_pass = trouble.may_pass() && refusals <= REFUSALS_MAX;
            if last || (may_pass && self.now() < give_up) {
                match self.attach(&leg, slot, give_up).await {
                    Ok(()) => {
                        sometimes!("mend.member_came_back_in_a_new_session");
                        break;
                    }
                    Err(Trouble::Link) if !trouble.may_pass() => {}
                    Err(worse) => trouble = worse,
                }
            } else {
                let dropped = pin!(self.drop_active(&leg, slot, &trouble));
                let reopened = pin!(self.keep_open(&leg, slot, &trouble));
                let done = match select(dropped, reopened).await {
                    Either::Left((done, _)) => done,
                    Either::Right(((), dropped)) => dropped.await,
                };
                if done.is_ok() {
                    break;
                }
            }
            self.world().sleep(RETRY_EVERY / 2).await;
        }
        leg.with_member(slot, |m| m.mending = false);
        leg.poke_all();
    }

    /// Opens a new session to a member and sends it everything that is in flight.
    ///
    /// # Errors
    /// What is wrong with the member.
    async fn attach(&self, leg: &Rc<Leg>, slot: u8, until: Nanos) -> Result<(), Trouble> {
        let Some(member) = leg.member(slot) else { return Err(Trouble::Link) };
        // From here on it may answer reads whatever it has lost.
        leg.with_member(slot, |m| m.broken = true);
        let session = self.next_session();
        let request = Request::Attach { component: member.component, session, incomplete: None };
        let deadline = until.max(self.now() + RETRY_EVERY).min(self.now() + CALL_DEADLINE);
        let reply = self.0.ctx.peers().call(member.host, Lane::Control, request, deadline).await;
        let gaps = mutant!("mend.gaps_in_a_session");
        let acknowledged = if gaps { leg.committed() } else { leg.decided() };
        match reply {
            // Everything decided was acknowledged by this member, in order; what is still in flight
            // comes again. The last active member is what there is (R20).
            Ok(Reply::Promise { promise, doubtful })
                if (doubtful || promise.newest < acknowledged)
                    && leg.has_other_active(slot)
                    && !mutant!("mend.lost_end_unnoticed") =>
            {
                sometimes!("mend.member_lost_what_it_acknowledged");
                Err(Trouble::Stale)
            }
            Ok(Reply::Promise { promise, doubtful }) => {
                // Once in each of its lives: a connection that blinks loses nothing.
                let has_restarted =
                    member.life.is_none() || member.life != self.life_of(member.host);
                if has_restarted && (doubtful || promise.newest < acknowledged) {
                    self.accept_what_is_left(leg, &member).await.map_err(|_| Trouble::Link)?;
                    if doubtful {
                        // Not again in its next life. Without an answer it will be.
                        let member = Member { session, ..member.clone() };
                        self.complete(&member, leg.committed()).await;
                    }
                }
                self.on_attached(leg, slot, session, self.life_of(member.host));
                Ok(())
            }
            Ok(Reply::Failed(StoreError::Fenced { fenced })) if fenced > self.0.epoch => {
                self.stop(Stop::Superseded);
                Err(Trouble::Link)
            }
            Ok(Reply::Failed(error)) => Err(Trouble::Store(error)),
            Ok(_) | Err(_) => Err(Trouble::Link),
        }
    }

    /// The last active member lacks some of what it had acknowledged, and is what there is (R20):
    /// the others are compared with it whole, so that all are the same in the end.
    async fn accept_what_is_left(&self, leg: &Rc<Leg>, left: &Member) -> Result<(), Fail> {
        sometimes!("mend.last_copy_lacks_something");
        let (object, host) = (self.0.id, left.host);
        self.0.ctx.event(Event::WritesLost { object, host });
        self.change(|record| {
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
        })
        .await?;
        let mut again = Vec::new();
        for member in leg.members.borrow_mut().iter_mut() {
            match &mut member.role {
                Role::Absent { since } => *since = Seq(0),
                // From the start, with what there is now.
                Role::Resyncing { .. } => again.push((member.slot, member.session)),
                Role::Active | Role::Promoting => {}
            }
        }
        for (slot, session) in again {
            self.on_trouble(leg, slot, session, Trouble::Link);
        }
        Ok(())
    }

    /// As long as the directory does not confirm that a member is dropped, it is awaited: if it can
    /// be reached meanwhile, it gets what it is awaited for. Returns if it is of no use.
    async fn keep_open(&self, leg: &Rc<Leg>, slot: u8, trouble: &Trouble) {
        let mut stale = *trouble == Trouble::Stale;
        while !stale {
            self.world().sleep(RETRY_EVERY).await;
            let Some(member) = leg.member(slot) else { return };
            let connected = self.0.ctx.peers().peer(member.host).connected;
            if member.broken && member.role == Role::Active && connected {
                sometimes!("mend.reopened_while_it_is_dropped");
                let until = self.now() + RETRY_EVERY;
                stale = self.attach(leg, slot, until).await == Err(Trouble::Stale);
            }
        }
    }

    /// Takes an active member out of the record; until that is confirmed it is awaited (R12).
    async fn drop_active(&self, leg: &Rc<Leg>, slot: u8, trouble: &Trouble) -> Result<(), Fail> {
        let Some(member) = leg.member(slot) else { return Ok(()) };
        let lost = trouble.is_lost();
        let at_ms = self.world().unix_ms();
        if mutant!("mend.acks_before_the_change") && leg.has_other_active(slot) {
            leg.with_member(slot, |m| m.role = Role::Absent { since: leg.committed() });
            leg.poke_all();
        }
        self.change(|record| {
            // Decided again at each attempt: another member may have gone meanwhile (R20).
            if !leg.has_other_open(slot) && !mutant!("mend.drops_the_last") {
                return false;
            }
            // W at the moment of the change (R4): neither assigned nor acknowledged ids will do.
            let since = if *trouble == Trouble::Stale { Seq(0) } else { leg.committed() };
            let Some(state) = state_of(record, member.component) else { return false };
            *state = MemberState::Absent { since, at_ms, lost };
            true
        })
        .await?;
        let confirmed =
            state_of(&mut self.0.record.borrow_mut(), member.component).map(|state| *state);
        let Some(MemberState::Absent { since, .. }) = confirmed else {
            return Err(Fail::Stopped);
        };
        sometimes!("mend.member_dropped");
        leg.with_member(slot, |m| m.role = Role::Absent { since });
        leg.poke_all();
        self.0.ctx.event(Event::MemberDropped {
            object: self.0.id,
            host: member.host,
            why: trouble.to_string(),
        });
        Ok(())
    }

    /// A resyncing member failed: it keeps its `from` (R4, F12).
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
            leg.with_member(slot, |m| m.role = Role::Absent { since });
            leg.poke_all();
        }
    }

    /// Looks for late operations and lost leases until the owner stops.
    pub async fn watch(self) {
        let mut ticks = 0u64;
        let serving_since = self.now();
        while !self.is_stopped() {
            self.world().sleep(WATCH_EVERY).await;
            ticks += 1;
            let now = self.now();
            for leg in self.legs() {
                for (slot, session) in leg.late(now) {
                    sometimes!("watch.member_is_late");
                    self.on_trouble(&leg, slot, session, Trouble::Late);
                }
                self.watch_leases(&leg, serving_since, now);
                self.watch_lives(&leg);
                if ticks.is_multiple_of(2) {
                    self.tell_committed(&leg);
                }
            }
        }
    }

    /// The present life of a host, if it is known.
    pub(crate) fn life_of(&self, host: HostId) -> Option<Incarnation> {
        self.0.ctx.peers().peer(host).incarnation
    }

    /// A member whose host has restarted gets a new session at once, also when nothing is asked of
    /// it: what it may have lost must be known before it is the only one left (`store.md` S7).
    fn watch_lives(&self, leg: &Rc<Leg>) {
        let has_restarted = |m: &&Member| {
            let now = self.life_of(m.host);
            m.role.receives() && !m.mending && m.life.is_some() && now.is_some() && now != m.life
        };
        let restarted: Vec<(u8, Session)> = {
            let members = leg.members.borrow();
            members.iter().filter(has_restarted).map(|m| (m.slot, m.session)).collect()
        };
        for (slot, session) in restarted {
            sometimes!("watch.member_has_restarted");
            self.on_trouble(leg, slot, session, Trouble::Link);
        }
    }

    /// A member that gives no lease blocks every read: it is brought back or dropped. It attached
    /// when the takeover began, so its first lease may take as long as a broken connection.
    fn watch_leases(&self, leg: &Rc<Leg>, serving_since: Nanos, now: Nanos) {
        let overdue = |m: &&Member| m.lease_until.max(serving_since + MEND) < now;
        let overdue: Vec<(u8, Session)> = leg
            .members
            .borrow()
            .iter()
            .filter(|m| m.role == Role::Active && !m.mending)
            .filter(overdue)
            .map(|m| (m.slot, m.session))
            .collect();
        let all =
            overdue.len() == leg.members.borrow().iter().filter(|m| m.role == Role::Active).count();
        // All at once: this host was paused or is cut off; the next renewal tells.
        if all && leg.members.borrow().len() > 1 {
            return;
        }
        for (slot, session) in overdue {
            sometimes!("watch.lease_overdue");
            self.on_trouble(leg, slot, session, Trouble::Late);
        }
    }

    /// Members forget what is committed only when told; idle objects are told here.
    fn tell_committed(&self, leg: &Rc<Leg>) {
        let seq = leg.committed();
        if leg.committed_told.get() >= seq {
            return;
        }
        leg.committed_told.set(seq);
        let members: Vec<_> = leg
            .members
            .borrow()
            .iter()
            .filter(|m| m.role.receives())
            .map(|m| (m.host, m.component))
            .collect();
        for (host, component) in members {
            let request = Request::Committed { component, epoch: self.0.epoch, seq };
            let call = self.call(host, Lane::Data, request, CALL_DEADLINE);
            self.world().spawn(async move {
                let _ = call.await;
            });
        }
    }
}
