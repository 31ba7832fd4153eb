//! What must hold of an owner at every moment, checked now and then in simulation (see
//! [`World::audits`]): a run ends where it first does not, and not where a client notices.

use super::Owner;
use crate::ctx::Protocol;
use crate::leg::Role;
use crate::limits::{LEASE, OPS_FEW, OPS_MAX};
use atoll_format::id::Session;
use atoll_format::record::{MemberRecord, MemberState};
use atoll_world::World;

impl<W: World, P: Protocol> Owner<W, P> {
    /// # Panics
    /// Something does not hold.
    pub(crate) fn audit(&self, moment: &str) {
        if self.world().audits()
            && !self.is_stopped()
            && let Err(why) = self.check()
        {
            panic!("owner of {} {moment}: {why}", self.0.id);
        }
    }

    /// What its members are to it is what the record says, or the stricter of both (R13): whenever
    /// no change of the record has just been confirmed.
    ///
    /// # Panics
    /// It is not.
    pub(crate) fn audit_members(&self) {
        if !self.world().audits() || self.is_stopped() {
            return;
        }
        let record = self.0.record.borrow();
        for (leg, recorded) in self.legs().iter().zip(&record.legs) {
            let members = leg.members.borrow();
            assert_eq!(members.len(), recorded.members.len(), "{members:?}, {recorded:?}");
            for m in members.iter() {
                let of_it = |r: &&MemberRecord| r.component == m.component;
                let r = recorded.members.iter().find(of_it).expect("it is in the record");
                assert_eq!((m.host, m.group), (r.host, r.group), "{:?} is elsewhere", m.component);
                let is_so = match (m.role(), r.state) {
                    (Role::Active, MemberState::Active)
                    | (Role::Promoting, MemberState::Resyncing { .. })
                    | (Role::Absent { .. }, MemberState::Resyncing { .. }) => true,
                    // Where more is in doubt than when it began, it begins again.
                    (Role::Resyncing { from }, MemberState::Resyncing { from: recorded }) => {
                        from <= recorded || m.is_recovering()
                    }
                    (Role::Absent { since }, MemberState::Absent { since: recorded, .. }) => {
                        since == recorded
                    }
                    _ => false,
                };
                assert!(is_so, "{:?} is {:?}, recorded {:?}", m.component, m.role(), r.state);
            }
        }
    }

    fn check(&self) -> Result<(), String> {
        let now = self.now();
        let record = self.0.record.borrow();
        if record.epoch != self.0.epoch {
            return Err(format!(
                "it is of epoch {}, its record of {}",
                self.0.epoch.0, record.epoch.0
            ));
        }
        let legs = self.legs();
        assert_eq!(legs.len(), record.legs.len(), "legs of {}", self.0.id);
        assert!(record.seq_base < self.next_seq(), "{:?} was stored too late", record.seq_base);
        self.0.locks.audit();
        let in_flight: usize = legs.iter().map(|leg| leg.in_flight().len()).sum();
        let held = self.world().bound(OPS_MAX, OPS_FEW) - self.ops_free();
        assert!(in_flight <= held, "{in_flight} operations in flight, {held} were let in");
        for (leg, recorded) in legs.iter().zip(&record.legs) {
            leg.check(self.next_seq()).map_err(|why| format!("leg {}: {why}", leg.index))?;
            for op in leg.in_flight() {
                if op.id.epoch != self.0.epoch {
                    return Err(format!("{:?} is of another epoch", op.id));
                }
                // R8: until its fate is decided, nobody reads or writes there.
                let is_alone = self.0.locks.is_exclusive(leg.index as u16, op.range);
                assert!(is_alone, "{:?} is in flight, and {:?} is not locked", op.id, op.range);
            }
            let members = leg.members.borrow();
            for m in members.iter() {
                let is_ours =
                    m.session().epoch == self.0.epoch || m.session() == Session::default();
                assert!(is_ours, "{:?} is in session {:?}", m.component, m.session());
                assert!(
                    m.session().attach < self.next_attach(),
                    "session {:?} of {:?} was never given out",
                    m.session(),
                    m.component
                );
                assert!(
                    m.session() != Session::default() || !m.role().is_awaited(),
                    "{:?} is awaited, and was never attached (R3)",
                    m.component
                );
                // A member promises for longer than the owner trusts (R10, R11).
                if m.lease_until() > now + LEASE {
                    return Err(format!("the lease of {:?} is longer than any", m.component));
                }
            }
            // What the directory calls active a later owner may take over from: no write is
            // acknowledged without it (R13).
            for active in recorded.members.iter().filter(|m| m.state.is_active()) {
                let ours = members.iter().find(|m| m.component == active.component);
                if !ours.is_some_and(|m| m.role().is_awaited()) {
                    return Err(format!("{:?} is active and not awaited", active.component));
                }
            }
        }
        Ok(())
    }
}
