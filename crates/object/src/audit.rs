//! What must hold of an owner at every moment, checked now and then in simulation (see
//! [`World::audits`]): a run ends where it first does not, and not where a client notices.

use crate::leg::{Leg, Role};
use crate::limits::LEASE;
use crate::owner::Owner;
use atoll_format::id::Seq;
use atoll_world::{Components, World};
use std::collections::BTreeSet;

/// Members of a leg: three copies, one that takes the place of another, one that is let go.
const MEMBERS_MAX: usize = 5;

impl<W: World, S: Components> Owner<W, S> {
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

    fn check(&self) -> Result<(), String> {
        let now = self.now();
        let record = self.0.record.borrow();
        if record.epoch != self.0.epoch {
            return Err(format!(
                "it is of epoch {}, its record of {}",
                self.0.epoch.0, record.epoch.0
            ));
        }
        for (leg, recorded) in self.legs().iter().zip(&record.legs) {
            leg.check(self.next_seq()).map_err(|why| format!("leg {}: {why}", leg.index))?;
            for op in leg.in_flight() {
                if op.id.epoch != self.0.epoch {
                    return Err(format!("{:?} is of another epoch", op.id));
                }
            }
            let members = leg.members.borrow();
            for m in members.iter() {
                // A member promises for longer than the owner trusts (R10, R11).
                if m.lease_until > now + LEASE {
                    return Err(format!("the lease of {:?} is longer than any", m.component));
                }
            }
            // What the directory calls active a later owner may take over from: no write is
            // acknowledged without it (R13).
            for active in recorded.members.iter().filter(|m| m.state.is_active()) {
                let ours = members.iter().find(|m| m.component == active.component);
                if !ours.is_some_and(|m| m.role.is_awaited()) {
                    return Err(format!("{:?} is active and not awaited", active.component));
                }
            }
        }
        Ok(())
    }
}

impl Leg {
    /// `next`: the owner's next seq.
    pub(crate) fn check(&self, next: Seq) -> Result<(), String> {
        let members = self.members.borrow();
        let slots: BTreeSet<u8> = members.iter().map(|m| m.slot).collect();
        let components: BTreeSet<_> = members.iter().map(|m| m.component).collect();
        if slots.len() != members.len() || components.len() != members.len() {
            return Err(format!("a member twice: {members:?}"));
        }
        if members.len() > MEMBERS_MAX || !members.iter().any(|m| m.role == Role::Active) {
            return Err(format!("too many members, or none that is active: {members:?}"));
        }
        for m in members.iter() {
            let last = m.unacked.last().copied().unwrap_or_default();
            if last > self.last() || m.role == Role::Active && last > Seq(0) {
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
