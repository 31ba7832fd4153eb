//! Leases of the owners on this host (R9): one renewal for each shard that holds members of their
//! objects.
//!
//! Invariant: an owner counts a lease from before it was asked for.

use super::HostObjects;
use crate::limits::{LEASE, RENEW_EVERY, WATCH_EVERY};
use crate::message::{Reply, Request};
use atoll_format::id::{Addr, Epoch, ObjectId};
use atoll_world::{Components, Lane, World, mutant, sometimes};
use futures_util::future::select;
use std::collections::BTreeMap;

const _: () = assert!(WATCH_EVERY.0 < RENEW_EVERY.0);

impl<W: World, S: Components> HostObjects<W, S> {
    /// Renews leases with every shard that holds members of objects owned here (R9).
    pub(super) async fn renew_leases(self) {
        loop {
            let now = self.0.renew_now.notified();
            let mut wanted: BTreeMap<Addr, Vec<(ObjectId, Epoch)>> = BTreeMap::new();
            for owner in self.owners() {
                for addr in owner.receiving_addrs() {
                    wanted.entry(addr).or_default().push((owner.0.id, owner.0.epoch));
                }
            }
            for (addr, objects) in wanted {
                assert!(objects.is_sorted_by(|a, b| a.0 < b.0), "each object once to {addr}");
                self.world().spawn(self.clone().renew_with(addr, objects));
            }
            let tick = std::pin::pin!(self.world().sleep(RENEW_EVERY));
            select(now, tick).await;
        }
    }

    async fn renew_with(self, addr: Addr, objects: Vec<(ObjectId, Epoch)>) {
        let serial = self.0.serial.get() + 1;
        self.0.serial.set(serial);
        let asked = self.world().now();
        let incarnation = self.0.ctx.incarnation;
        // Counted from before it is sent (R9).
        let until = asked + LEASE;
        let request = Request::Renew { incarnation, serial, objects: objects.clone() };
        let reply = self.peers().call(addr, Lane::Control, request, until).await;
        let Ok(Reply::Granted { serial: answered, excluded }) = reply else { return };
        if answered != serial {
            return;
        }
        let from_here = mutant!("objects.lease_from_the_answer");
        let until = if from_here { self.world().now() + LEASE } else { until };
        // R9: the member counts its grace from when it was asked, or later.
        assert!(until <= asked + LEASE, "a lease until {until}, asked for at {asked}");
        assert!(serial <= self.0.serial.get(), "serials rise");
        for (object, epoch) in objects {
            let Some(owner) = self.owner(object).filter(|o| o.0.epoch == epoch) else { continue };
            if excluded.contains(&object) && !mutant!("objects.refused_lease_counts") {
                sometimes!("objects.lease_refused");
                let owner = owner.clone();
                self.world().spawn(async move { owner.verify().await });
                continue;
            }
            owner.on_lease(addr, until);
        }
    }
}
