//! What leases this host has granted, and when a fence may be answered (R9, R10). Pure.
//!
//! Invariant: from the arrival of a fence for an object no lease of a lower epoch is granted or
//! prolonged, so that the fence is answered after one grace at most.

use crate::limits::{GRACE, LEASE};
use atoll_format::id::{Addr, Epoch, HostId, Incarnation, ObjectId};
use atoll_format::record::ServedRecord;
use atoll_world::{Nanos, mutant, sometimes};
use std::collections::{BTreeMap, BTreeSet};

/// One host's promises to owners.
#[derive(Debug)]
pub struct Grants {
    host: HostId,
    /// Lives of it that have ended for certain.
    outlived: Vec<Incarnation>,
    /// Until then leases may be running that an earlier life of this host has granted.
    quiet_until: Nanos,
    /// But not of these objects: see [`Grants::is_quiet_over`].
    over: BTreeSet<ObjectId>,
    granted: BTreeMap<ObjectId, Grant>,
    fencing: BTreeMap<ObjectId, Epoch>,
}

/// Who fences an object, and what is known of the owners before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fencer {
    /// The new owner.
    pub addr: Addr,
    /// The life of its host.
    pub incarnation: Incarnation,
    /// Lives of its host that have ended for certain.
    pub outlived: Vec<Incarnation>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Who served the object last, as the record of that epoch says.
    pub served: Option<ServedRecord>,
}

#[derive(Debug)]
struct Grant {
    owner: Addr,
    incarnation: Incarnation,
    epoch: Epoch,
    serial: u64,
    until: Nanos,
}

impl Grants {
    /// Of a life of `host` that starts at `now`, and knows that those have ended.
    pub fn new(now: Nanos, host: HostId, outlived: Vec<Incarnation>) -> Self {
        let quiet = if mutant!("grants.nothing_before_the_start") { Nanos::ZERO } else { GRACE };
        Self {
            host,
            outlived,
            quiet_until: now + quiet,
            over: BTreeSet::new(),
            granted: BTreeMap::new(),
            fencing: BTreeMap::new(),
        }
    }

    /// Grants a lease on `object`, or refuses. `promised` is the highest epoch that a component
    /// of it here has been fenced to.
    pub fn renew(
        &mut self,
        now: Nanos,
        owner: Addr,
        incarnation: Incarnation,
        serial: u64,
        (object, epoch): (ObjectId, Epoch),
        promised: Option<Epoch>,
    ) -> bool {
        let fenced = self.fencing.get(&object).is_some_and(|&fencing| fencing > epoch);
        if (fenced || promised != Some(epoch)) && !mutant!("grants.renewed_while_fencing") {
            return false;
        }
        let until = now + if mutant!("grants.grace_below_the_lease") { GRACE / 8 } else { GRACE };
        // Its own older epoch binds nobody; see `is_over`.
        let own = |grant: &Grant| (grant.owner, grant.incarnation) == (owner, incarnation);
        let binds = |grant: &Grant| grant.until > now && !own(grant);
        let granted = match self.granted.get_mut(&object) {
            Some(grant) if grant.epoch == epoch && grant.incarnation == incarnation => {
                // A late renewal neither shortens nor restarts what a later one granted.
                if serial >= grant.serial {
                    grant.serial = serial;
                    grant.until = grant.until.max(until);
                    assert!(grant.until > now + LEASE, "a grant outlasts the lease it stands for");
                }
                assert!(grant.until <= now + GRACE, "{grant:?} binds for longer than any");
                true
            }
            Some(grant) if grant.epoch >= epoch => false,
            Some(grant) if binds(grant) => false,
            _ => {
                let grant = Grant { owner, incarnation, epoch, serial, until };
                assert!(now + LEASE < until && until <= now + GRACE, "{grant:?} at {now}");
                if let Some(old) = self.granted.insert(object, grant) {
                    assert!(old.epoch < epoch, "{old:?} is replaced by epoch {}", epoch.0);
                    assert!(!binds(&old), "{old:?} binds at {now}");
                }
                true
            }
        };
        if granted {
            // R10, and R1: nothing is granted below what was promised here.
            let fencing = self.fencing.get(&object).copied().unwrap_or_default();
            assert!(fencing <= epoch, "epoch {} while {} is fenced", epoch.0, fencing.0);
            assert_eq!(promised, Some(epoch), "a lease of an epoch that was not promised");
        }
        granted
    }

    /// The owner stopped serving; a later renewal than `serial` stands.
    pub fn give_back(&mut self, object: ObjectId, incarnation: Incarnation, serial: u64) {
        if let Some(grant) = self.granted.get_mut(&object)
            && grant.incarnation == incarnation
            && serial >= grant.serial
        {
            grant.until = Nanos::ZERO;
        }
    }

    /// A fence has arrived. `promised` is the highest epoch that a component of the object here had
    /// been fenced to before.
    pub fn fence(&mut self, object: ObjectId, fencer: &Fencer, promised: Option<Epoch>) {
        let fencing = self.fencing.entry(object).or_default();
        let before = *fencing;
        *fencing = (*fencing).max(fencer.epoch);
        assert!(*fencing >= fencer.epoch && *fencing >= before, "a fence is never lowered");
        if self.is_quiet_over(fencer, promised) {
            sometimes!("grants.who_served_last_is_dead");
            self.over.insert(object);
        }
        let is_over = self.granted.get(&object).is_some_and(|grant| self.is_over(grant, fencer));
        if let Some(grant) = self.granted.get_mut(&object).filter(|_| is_over) {
            // The next owner is granted at once, on whichever shard it is.
            grant.until = Nanos::ZERO;
        }
    }

    /// Whether who fences knows that nobody reads under that grant. A shard vouches for its own
    /// leases: it starts a takeover only when its own owner has stopped for good. It does not vouch
    /// for another shard of its life.
    fn is_over(&self, grant: &Grant, fencer: &Fencer) -> bool {
        let Grant { owner, incarnation, epoch, .. } = *grant;
        let own = (owner, incarnation) == (fencer.addr, fencer.incarnation);
        let is_dead = self.is_dead(owner.host, incarnation, fencer)
            && !mutant!("grants.own_older_life_binds");
        epoch < fencer.epoch && (own || is_dead)
    }

    /// From when on a fence for that epoch, which has arrived, may be answered.
    pub fn clear_at(&self, object: ObjectId, epoch: Epoch) -> Nanos {
        let granted = self.granted.get(&object).filter(|g| g.epoch < epoch);
        let quiet = if self.over.contains(&object) { Nanos::ZERO } else { self.quiet_until };
        quiet.max(granted.map_or(Nanos::ZERO, |g| g.until))
    }

    /// Whether nobody can read under a lease that an earlier life of this host has granted. All of
    /// them are of the epoch that was promised here, or of lower ones. If that is the epoch of the
    /// last owner that was settled, all owners before it were without leases when it was. So only
    /// its own are left, and it is dead. If the promise is another one, then the directory was put
    /// back, or the disk was, or a takeover has failed: nothing is known.
    ///
    /// That stays true for this life, which has to remember it: the promise is a new one from now
    /// on, also where the answer is lost.
    fn is_quiet_over(&self, fencer: &Fencer, promised: Option<Epoch>) -> bool {
        let Some(served) = fencer.served else { return false };
        let is_dead = self.is_dead(served.host, served.incarnation, fencer)
            || mutant!("grants.whoever_served_is_dead");
        is_dead && promised == Some(served.epoch)
    }

    /// Whether that life has ended for certain: its own host says so, this one or the one that
    /// fences.
    fn is_dead(&self, host: HostId, life: Incarnation, fencer: &Fencer) -> bool {
        (host == fencer.addr.host && fencer.outlived.contains(&life))
            || (host == self.host && self.outlived.contains(&life))
    }

    /// Forgets objects that have no component here any more.
    pub fn retain(&mut self, keep: impl Fn(ObjectId) -> bool) {
        self.over.retain(|&o| keep(o));
        self.granted.retain(|&o, _| keep(o));
        self.fencing.retain(|&o, _| keep(o));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OBJECT: ObjectId = ObjectId(7);
    const A: (Addr, Incarnation) = (Addr { host: HostId(1), shard: 0 }, Incarnation(11));
    const B: (Addr, Incarnation) = (Addr { host: HostId(2), shard: 0 }, Incarnation(22));

    fn renew(g: &mut Grants, now: u64, who: (Addr, Incarnation), serial: u64, epoch: u32) -> bool {
        let promised = Some(Epoch(epoch));
        g.renew(Nanos::from_ms(now), who.0, who.1, serial, (OBJECT, Epoch(epoch)), promised)
    }

    fn fencer(epoch: u32, (addr, incarnation): (Addr, Incarnation)) -> Fencer {
        // Life 12 knows that life 11 has ended.
        let outlived = if incarnation.0 == 12 { vec![Incarnation(11)] } else { Vec::new() };
        Fencer { addr, incarnation, outlived, epoch: Epoch(epoch), served: None }
    }

    fn fence(g: &mut Grants, epoch: u32, who: (Addr, Incarnation)) {
        g.fence(OBJECT, &fencer(epoch, who), Some(Epoch(epoch - 1)));
    }

    fn clear_at(g: &Grants, epoch: u32) -> u64 {
        g.clear_at(OBJECT, Epoch(epoch)).as_ms()
    }

    #[test]
    fn a_fence_waits_for_the_grace_of_the_last_grant_and_stops_renewals() {
        let mut g = Grants::new(Nanos::ZERO, HostId(9), vec![Incarnation(98)]);
        assert_eq!(clear_at(&g, 1), GRACE.as_ms(), "an earlier life may have granted");
        assert!(renew(&mut g, 10_000, A, 1, 1));
        assert!(renew(&mut g, 11_000, A, 2, 1));
        fence(&mut g, 2, B);
        assert!(!renew(&mut g, 11_500, A, 3, 1), "R10");
        assert_eq!(clear_at(&g, 2), 11_000 + GRACE.as_ms());
        assert!(!renew(&mut g, 12_000, B, 1, 2), "not before the old one has ended");
        assert!(renew(&mut g, 20_000, B, 2, 2));
    }

    /// An owner that restarts is granted at once, on whichever shard it is then: else its reads
    /// wait, and it drops the member.
    #[test]
    fn a_dead_life_of_the_same_host_is_replaced_at_once() {
        for shard in [0, 1] {
            let mut g = Grants::new(Nanos::ZERO, HostId(9), vec![Incarnation(98)]);
            assert!(renew(&mut g, 10_000, A, 1, 1));
            let restarted = (Addr { shard, ..A.0 }, Incarnation(12));
            fence(&mut g, 2, restarted);
            assert_eq!(clear_at(&g, 2), GRACE.as_ms(), "that of an earlier life here");
            assert!(renew(&mut g, 10_100, restarted, 1, 2), "on shard {shard}");
            assert!(!renew(&mut g, 10_200, A, 2, 1), "the old life is over");
            assert_eq!(clear_at(&g, 3), 10_100 + GRACE.as_ms());
        }
    }

    fn served(epoch: u32, host: u64, life: u64) -> Option<ServedRecord> {
        let (epoch, incarnation) = (Epoch(epoch), Incarnation(life));
        Some(ServedRecord { epoch, host: HostId(host), incarnation })
    }

    /// A host that restarts does not wait for leases that only a dead process can have.
    #[test]
    fn nothing_waits_for_the_last_owner_s_dead_life() {
        let waits = |who, served, promised| {
            let mut g = Grants::new(Nanos::ZERO, HostId(9), vec![Incarnation(98)]);
            let fencer = Fencer { served, ..fencer(6, who) };
            g.fence(OBJECT, &fencer, promised);
            clear_at(&g, 6) > 0
        };
        let restarted = (Addr { shard: 3, ..A.0 }, Incarnation(12));
        let five = Some(Epoch(5));
        assert!(!waits(restarted, served(5, 1, 11), five), "the fencing host's own earlier life");
        assert!(!waits(B, served(5, 9, 98), five), "this host's own earlier life");
        assert!(waits(B, served(5, 9, 99), five), "another shard of this life");
        assert!(waits(A, served(5, 1, 11), five), "another shard of the fencing life");
        assert!(waits(B, served(5, 1, 11), five), "a host that may live");
        let copy = (A.0, Incarnation(13));
        assert!(waits(copy, served(5, 1, 11), five), "a copy of a host that may live");
        assert!(waits(B, served(5, 9, 97), five), "this host's, on another machine");
        assert!(waits(restarted, None, five), "nobody knows");
        // Epoch 5 was fenced here and not settled, or the directory was put back.
        assert!(waits(restarted, served(4, 1, 11), five));
        // The disk was put back.
        assert!(waits(restarted, served(5, 1, 11), Some(Epoch(4))));
        assert!(waits(restarted, served(5, 1, 11), None));
    }

    /// Who fences asks again, after a lost answer or a failed takeover, and the promise is its own.
    #[test]
    fn what_is_over_once_stays_over_for_this_life() {
        let mut g = Grants::new(Nanos::ZERO, HostId(9), vec![Incarnation(98)]);
        let restarted = (A.0, Incarnation(12));
        let first = Fencer { served: served(5, 1, 11), ..fencer(6, restarted) };
        g.fence(OBJECT, &first, Some(Epoch(5)));
        g.fence(OBJECT, &first, Some(Epoch(6)));
        assert_eq!(clear_at(&g, 6), 0);
        let next = Fencer { epoch: Epoch(7), ..first };
        g.fence(OBJECT, &next, Some(Epoch(6)));
        assert_eq!(clear_at(&g, 7), 0);
        // What this life has granted since is another matter.
        assert!(renew(&mut g, 100, restarted, 1, 7));
        assert_eq!(clear_at(&g, 8), 100 + GRACE.as_ms());
        g.retain(|_| false);
        assert_eq!(clear_at(&g, 8), GRACE.as_ms(), "it may be another object's component");
    }

    /// The process that was granted the lease may be cut off, and a copy of it have started.
    #[test]
    fn a_fence_waits_for_a_life_of_its_host_that_nobody_has_seen_end() {
        let mut g = Grants::new(Nanos::ZERO, HostId(9), vec![Incarnation(98)]);
        assert!(renew(&mut g, 10_000, A, 1, 1));
        let copy = (A.0, Incarnation(13));
        fence(&mut g, 2, copy);
        assert_eq!(clear_at(&g, 2), 10_000 + GRACE.as_ms());
        assert!(!renew(&mut g, 10_100, copy, 1, 2));
        fence(&mut g, 2, (A.0, Incarnation(12)));
        assert_eq!(clear_at(&g, 2), GRACE.as_ms(), "one that has");
    }

    /// Another shard of the same host may still serve what it was granted.
    #[test]
    fn a_fence_waits_for_the_grant_of_another_shard_of_its_host() {
        let mut g = Grants::new(Nanos::ZERO, HostId(9), vec![Incarnation(98)]);
        let sibling = (Addr { shard: 1, ..A.0 }, A.1);
        assert!(renew(&mut g, 10_000, A, 1, 1));
        fence(&mut g, 2, sibling);
        assert_eq!(clear_at(&g, 2), 10_000 + GRACE.as_ms());
        assert!(!renew(&mut g, 10_100, sibling, 1, 2));
        fence(&mut g, 2, A);
        assert_eq!(clear_at(&g, 2), GRACE.as_ms(), "its own");
    }

    #[test]
    fn a_late_give_back_does_not_end_a_later_grant() {
        let mut g = Grants::new(Nanos::ZERO, HostId(9), vec![Incarnation(98)]);
        assert!(renew(&mut g, 10_000, A, 1, 1));
        assert!(renew(&mut g, 10_500, A, 2, 1));
        g.give_back(OBJECT, A.1, 1);
        assert_eq!(clear_at(&g, 2), 10_500 + GRACE.as_ms());
        g.give_back(OBJECT, A.1, 2);
        assert_eq!(clear_at(&g, 2), GRACE.as_ms());
    }

    #[test]
    fn nothing_is_granted_to_an_epoch_that_was_not_promised() {
        let mut g = Grants::new(Nanos::ZERO, HostId(9), vec![Incarnation(98)]);
        let now = Nanos::from_secs(10);
        for promised in [None, Some(Epoch(1)), Some(Epoch(3))] {
            assert!(!g.renew(now, A.0, A.1, 1, (OBJECT, Epoch(2)), promised));
        }
    }
}
