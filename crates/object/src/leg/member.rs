//! One member of a leg, as its owner sees it: what it is to the owner, its session, and whether
//! somebody is at work on it. A state machine: nothing but [`Member::on`] changes it.
//!
//! ```text
//!              Readmitted              Promoting             Promoted
//!    Absent ---------------> Resyncing ---------> Promoting ----------> Active
//!      ^                       |   ^                  |                   |
//!      |        Dropped        |   | PromotionFailed  |                   |
//!      +-----------------------+   +------------------+                   |
//!      |                          Dropped                                 |
//!      +------------------------------------------------------------------+
//! ```
//!
//! The table of every role and event is in `docs/mirror.md`; a test writes and compares it.

use crate::failure::MemberFault;
use crate::member_client::Endpoint;
use atoll_format::id::{ComponentId, GroupId, HostId, Incarnation, Seq, Session};
use atoll_world::{Nanos, mutant};
use std::collections::BTreeSet;

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
    /// Whether what it owes is kept: until it is active, a barrier may wait for that (R14).
    fn owes(self) -> bool {
        matches!(self, Self::Resyncing { .. } | Self::Promoting)
    }
}

/// What happens to a member.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum MemberEvent<'a> {
    /// A session to it is open, in this life of its host.
    Attached(Session, Option<Incarnation>),
    /// A new session to it is asked for: from here on it may answer reads whatever it has lost.
    Reopening,
    /// Something is wrong with it, as seen in that session.
    Fault(Session, &'a MemberFault),
    /// Whoever recovered it is done with it.
    RecoveryEnded,
    /// An operation is sent to it.
    Sent(Seq),
    /// It has acknowledged an operation in its open session.
    Acked(Seq),
    /// It grants a lease until then.
    Lease(Nanos),
    /// The directory has confirmed that it is out; it has everything at or below (R4).
    Dropped(Seq),
    /// The directory has confirmed that it is brought up to date, from there on (R14).
    Readmitted(Seq),
    /// It is being brought up to date in the record, and no session to it could be opened.
    NotAttached(Seq),
    /// Its promotion is about to be sent (R15).
    Promoting,
    /// It was not promoted: it is brought up to date from there on, as before.
    PromotionFailed(Seq),
    /// The directory has confirmed its promotion.
    Promoted,
    /// What it was compared with has lost some: whatever it has is to be compared (R20).
    AllInDoubt,
}

/// What follows from an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemberNext {
    /// Nothing.
    Nothing,
    /// Somebody has to recover it, from now on until [`MemberEvent::RecoveryEnded`].
    Recover,
}

/// One member.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Its bit in [`Op::acked`](crate::operation::Op::acked).
    pub slot: u8,
    pub component: ComponentId,
    pub host: HostId,
    pub group: GroupId,
    role: Role,
    session: Session,
    life: Option<Incarnation>,
    is_broken: bool,
    is_recovering: bool,
    refusals: u32,
    lease_until: Nanos,
    unacked: BTreeSet<Seq>,
}

impl Member {
    /// One to which no session is open, and whose lease nobody has (R11).
    pub fn new(
        slot: u8,
        component: ComponentId,
        (host, group): (HostId, GroupId),
        role: Role,
    ) -> Self {
        Self {
            slot,
            component,
            host,
            group,
            role,
            session: Session::default(),
            life: None,
            is_broken: false,
            is_recovering: false,
            refusals: 0,
            lease_until: Nanos::ZERO,
            unacked: BTreeSet::new(),
        }
    }

    /// One to which a takeover has opened a session, in that life of its host.
    pub fn attached(self, session: Session, life: Option<Incarnation>) -> Self {
        Self { session, life, ..self }
    }

    /// What it is to the owner.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The open session; acknowledgements of others do not count (R2).
    pub fn session(&self) -> Session {
        self.session
    }

    /// The life of its host in which the session was opened, if that is known.
    pub fn life(&self) -> Option<Incarnation> {
        self.life
    }

    /// Something sent in that session may not have arrived, or was refused: nothing more is sent
    /// in it, which would leave a gap (R2).
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Somebody is bringing it back or dropping it.
    pub fn is_recovering(&self) -> bool {
        self.is_recovering
    }

    /// How often in a row it has refused what it was sent.
    pub fn refusals(&self) -> u32 {
        self.refusals
    }

    /// The owner may trust this member's lease until then (R11).
    pub fn lease_until(&self) -> Nanos {
        self.lease_until
    }

    /// Operations sent in this session and not acknowledged, while it is not yet active.
    pub fn unacked(&self) -> &BTreeSet<Seq> {
        &self.unacked
    }

    /// The disk group that has it.
    pub fn place(&self) -> (HostId, GroupId) {
        (self.host, self.group)
    }

    /// Where it is, and its open session.
    pub fn endpoint(&self) -> Endpoint {
        let Self { host, group, component, session, .. } = *self;
        Endpoint { host, group, component, session }
    }

    /// Whether it is active and its session has no gap: one that may have lost what it had, or
    /// cannot be reached, is not.
    pub fn is_open(&self) -> bool {
        self.role == Role::Active && !self.is_broken
    }

    /// The only way in which its state changes.
    ///
    /// # Panics
    /// If this cannot happen to a member of its role: the owner's own mistake, whatever a member
    /// or the directory says.
    pub fn on(&mut self, event: MemberEvent<'_>) -> MemberNext {
        use MemberEvent as E;
        match (self.role, event) {
            (_, E::Lease(until)) => self.lease_until = self.lease_until.max(until),
            (_, E::RecoveryEnded) => self.is_recovering = false,
            (_, E::Acked(seq)) => {
                self.refusals = 0;
                self.unacked.remove(&seq);
            }
            (role, E::Sent(seq)) if role.receives() => {
                if role.owes() {
                    let last = self.unacked.last();
                    assert!(last.is_none_or(|&last| last < seq), "{seq:?} after {last:?} (R2)");
                    self.unacked.insert(seq);
                }
            }
            (role, E::Fault(session, fault)) => {
                if session != self.session {
                    return MemberNext::Nothing;
                }
                // One that is late has lost nothing: it may catch up before it is dropped.
                let lossless = *fault == MemberFault::Late || mutant!("mend.gaps_in_a_session");
                self.is_broken |= !lossless;
                if self.is_recovering || !role.receives() {
                    return MemberNext::Nothing;
                }
                self.is_recovering = true;
                self.refusals += u32::from(matches!(fault, MemberFault::Store(_)));
                return MemberNext::Recover;
            }
            (Role::Active, E::Reopening) => self.is_broken = true,
            (role, E::Attached(session, life)) if role.receives() => {
                assert!(session > self.session, "{session:?} after {:?} (R2)", self.session);
                self.session = session;
                self.life = life;
                self.is_broken = false;
                self.unacked.clear();
            }
            (Role::Active, E::Dropped(since)) => self.role = Role::Absent { since },
            (Role::Resyncing { from }, E::Dropped(since)) => {
                assert!(
                    since <= from,
                    "{since:?}, and it was brought up to date from {from:?} (R4)"
                );
                self.role = Role::Absent { since };
            }
            (Role::Absent { since }, E::Readmitted(from)) => {
                // It was never known to have more, and there may be more in doubt since.
                assert!(from <= since, "from {from:?}, and it was absent since {since:?} (R4)");
                self.role = Role::Resyncing { from };
            }
            (Role::Absent { .. }, E::NotAttached(from)) => {
                self.role = Role::Resyncing { from };
            }
            (Role::Resyncing { .. }, E::Promoting) => self.role = Role::Promoting,
            (Role::Promoting, E::PromotionFailed(from)) => self.role = Role::Resyncing { from },
            (Role::Promoting, E::Promoted) => {
                self.role = Role::Active;
                self.unacked.clear();
            }
            (Role::Absent { .. }, E::AllInDoubt) => self.role = Role::Absent { since: Seq(0) },
            // A resync from there on ends without a promotion: the record says more is in doubt.
            (Role::Active | Role::Resyncing { .. } | Role::Promoting, E::AllInDoubt) => {}
            (role, event) => panic!("{event:?} of {:?}, which is {role:?}", self.component),
        }
        MemberNext::Nothing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_format::id::Epoch;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const HAS: Seq = Seq(5);
    const SESSION: Session = Session { epoch: Epoch(1), attach: 1 };
    const NEXT: Session = Session { epoch: Epoch(1), attach: 2 };
    const LIFE: Option<Incarnation> = Some(Incarnation(1));

    const ROLES: [(&str, Role); 4] = [
        ("active", Role::Active),
        ("resyncing", Role::Resyncing { from: HAS }),
        ("promoting", Role::Promoting),
        ("absent", Role::Absent { since: HAS }),
    ];

    fn events() -> Vec<(&'static str, MemberEvent<'static>)> {
        use MemberEvent as E;
        let refused = Box::leak(Box::new(MemberFault::Store(atoll_world::StoreError::Full)));
        vec![
            ("a session is open", E::Attached(NEXT, LIFE)),
            ("a new session is asked for", E::Reopening),
            ("its link is broken", E::Fault(SESSION, &MemberFault::Link)),
            ("it is late", E::Fault(SESSION, &MemberFault::Late)),
            ("it has lost something", E::Fault(SESSION, &MemberFault::Stale)),
            ("its store refuses", E::Fault(SESSION, refused)),
            ("a fault of another session", E::Fault(NEXT, &MemberFault::Link)),
            ("its recovery has ended", E::RecoveryEnded),
            ("an operation is sent", E::Sent(Seq(9))),
            ("an operation is acknowledged", E::Acked(Seq(8))),
            ("it grants a lease", E::Lease(Nanos(7))),
            ("its drop is confirmed", E::Dropped(Seq(4))),
            ("its readmission is confirmed", E::Readmitted(Seq(4))),
            ("readmitted, but no session", E::NotAttached(Seq(4))),
            ("its promotion is sent", E::Promoting),
            ("its promotion has failed", E::PromotionFailed(Seq(4))),
            ("its promotion is confirmed", E::Promoted),
            ("all is in doubt", E::AllInDoubt),
        ]
    }

    fn member(role: Role, is_broken: bool, is_recovering: bool) -> Member {
        let new = Member::new(0, ComponentId(1), (HostId(1), GroupId(1)), role);
        let unacked = if role.owes() { BTreeSet::from([Seq(8)]) } else { BTreeSet::new() };
        Member { is_broken, is_recovering, unacked, refusals: 2, ..new.attached(SESSION, None) }
    }

    /// What an event does to a member, in words; none: it cannot happen.
    fn effect(before: &Member, event: &MemberEvent<'_>) -> Option<(Member, MemberNext, String)> {
        let mut m = before.clone();
        let next = catch_unwind(AssertUnwindSafe(|| m.on(event.clone()))).ok()?;
        let mut words: Vec<String> = Vec::new();
        match m.role {
            role if role == before.role => {}
            Role::Active => words.push("**active**".into()),
            Role::Resyncing { from } => words.push(format!("**resyncing** from {}", from.0)),
            Role::Promoting => words.push("**promoting**".into()),
            Role::Absent { since } => words.push(format!("**absent** since {}", since.0)),
        }
        let mut say = |is_so: bool, what: &str| words.extend(is_so.then(|| what.to_string()));
        say(m.session != before.session, "new session");
        say(m.is_broken && !before.is_broken, "broken");
        say(before.is_broken && !m.is_broken, "open");
        say(next == MemberNext::Recover, "recover");
        say(m.refusals > before.refusals, "refused once more");
        say(m.refusals < before.refusals, "refusals 0");
        say(m.unacked.len() > before.unacked.len(), "owes it");
        say(m.unacked.len() < before.unacked.len(), "owes less");
        say(m.lease_until > before.lease_until, "lease");
        say(before.is_recovering && !m.is_recovering, "recovery ends");
        Some((m, next, if words.is_empty() { "=".into() } else { words.join(", ") }))
    }

    /// Each role, session and recovery with each event.
    #[test]
    fn every_pair_of_state_and_event_keeps_the_rules() {
        for (name, role) in ROLES {
            for (is_broken, is_recovering) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                let before = member(role, is_broken, is_recovering);
                for (what, event) in events() {
                    let at = format!("{name}, broken {is_broken}, {is_recovering}: {what}");
                    let Some((after, next, _)) = effect(&before, &event) else { continue };
                    // R3: whoever receives has been attached or keeps a session that is known.
                    let opens = matches!(event, MemberEvent::Attached(..));
                    assert_eq!(after.session != before.session, opens, "{at}");
                    // R2: a session with a gap stays one until the next.
                    assert!(after.is_broken || !before.is_broken || opens, "{at}");
                    // One recovery at a time, and never of who receives nothing.
                    if next == MemberNext::Recover {
                        assert!(!before.is_recovering && after.is_recovering, "{at}");
                        assert!(role.receives(), "{at}");
                    }
                    // R20: an active member becomes absent and nothing else; one becomes active
                    // by way of promoting.
                    match (before.role, after.role) {
                        (a, b) if a == b => {}
                        (Role::Active | Role::Resyncing { .. }, Role::Absent { since }) => {
                            assert!(since <= HAS, "{at}");
                        }
                        (Role::Absent { .. }, Role::Absent { since: Seq(0) })
                        | (Role::Absent { .. } | Role::Promoting, Role::Resyncing { .. })
                        | (Role::Resyncing { .. }, Role::Promoting)
                        | (Role::Promoting, Role::Active) => {}
                        (a, b) => panic!("{at}: {a:?} became {b:?}"),
                    }
                    // What an active member owes is counted by the operations themselves.
                    assert!(after.role != Role::Active || after.unacked.is_empty(), "{at}");
                    assert!(after.lease_until >= before.lease_until, "{at}");
                }
            }
        }
    }

    #[test]
    fn what_a_member_had_is_never_taken_for_more() {
        for (role, event) in [
            (Role::Resyncing { from: HAS }, MemberEvent::Dropped(Seq(6))),
            (Role::Absent { since: HAS }, MemberEvent::Readmitted(Seq(6))),
            (Role::Active, MemberEvent::Attached(SESSION, LIFE)),
            (Role::Resyncing { from: HAS }, MemberEvent::Sent(Seq(8))),
        ] {
            assert!(effect(&member(role, false, false), &event).is_none(), "{role:?} {event:?}");
        }
    }

    /// The table of a member whose session is open and that nobody recovers.
    #[test]
    fn the_document_shows_every_role_and_event() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mirror.md");
        let old = std::fs::read_to_string(path).expect("docs/mirror.md");
        let mut table = String::from("| event | active | resyncing | promoting | absent |\n");
        table.push_str("| --- | --- | --- | --- | --- |\n");
        for (what, event) in events() {
            table.push_str(&format!("| {what} |"));
            for (_, role) in ROLES {
                let words = effect(&member(role, false, false), &event).map(|(.., words)| words);
                table.push_str(&format!(" {} |", words.unwrap_or("-".into())));
            }
            table.push('\n');
        }
        let mark = "<!-- states of crates/object/src/leg/member.rs -->\n";
        let (before, rest) = old.split_once(mark).expect("the table's mark");
        let end = rest.find("\n\n").expect("the table's end") + 1;
        let text = format!("{before}{mark}{table}{}", &rest[end..]);
        if std::env::var_os("ATOLL_REGENERATE").is_some() {
            std::fs::write(path, &text).expect("docs/mirror.md");
        } else {
            assert!(text == old, "docs/mirror.md is not what the code does: ATOLL_REGENERATE=1");
        }
    }
}
