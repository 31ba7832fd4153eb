//! What the hosts of the cluster last said of themselves, and what placement knows from that.
//!
//! A host that did not answer when it was last asked is silent: it is asked for a short time only,
//! and nothing that it said before counts as known.

use crate::admin::client::LOOK_AGAIN_WAIT;
use crate::admin::message::{ADMIN_DEADLINE, AdminReply, AdminRequest};
use crate::host_board::Known;
use crate::node::Node;
use crate::status::HostStatus;
use atoll_format::id::HostId;
use atoll_format::level::Level;
use atoll_format::record::HostRecord;
use atoll_object::placement::{GroupView, HostView};
use atoll_world::{Components, Nanos, World};
use futures_util::future::select;

/// How often hosts are asked how they are.
const POLL_EVERY: Nanos = Nanos::from_secs(2);
/// How long a host may take to say how it is, when somebody waits for that.
const LOOK_WAIT: Nanos = Nanos::from_secs(2);
/// A status this young need not be asked for again.
const LOOK_FRESH: Nanos = Nanos::from_ms(500);
/// A status older than this says nothing about now.
const STATUS_FRESH: Nanos = Nanos::from_secs(8);

const _: () = {
    // Who answers has been asked again, and has told, before what it said is no longer believed.
    assert!(POLL_EVERY.0 + POLL_EVERY.0 / 20 + ADMIN_DEADLINE.0 < STATUS_FRESH.0);
    assert!(LOOK_FRESH.0 < POLL_EVERY.0 && LOOK_AGAIN_WAIT.0 < LOOK_WAIT.0);
    assert!(LOOK_WAIT.0 <= ADMIN_DEADLINE.0);
};

impl<W: World, S: Components> Node<W, S> {
    /// Asks every host how it is, again and again.
    pub(crate) async fn poll_statuses(self) {
        loop {
            self.refresh_statuses().await;
            let changed = self.0.objects.peers().changed().notified();
            let tick = std::pin::pin!(self.world().sleep(POLL_EVERY));
            select(changed, tick).await;
            // Many changes at once are one reason to ask.
            self.world().sleep(POLL_EVERY / 20).await;
        }
    }

    /// Asks every host that can be reached how it is, and knows its space from then on.
    pub(crate) async fn refresh_statuses(&self) {
        self.ask_statuses(Nanos::ZERO, |_| ADMIN_DEADLINE).await;
    }

    /// Knows of every host how it is at this moment, or that it does not tell: within two seconds.
    /// See [`hosts`](Self::hosts).
    pub async fn look(&self) {
        let silent = self.0.silent.borrow().clone();
        let wait = |id| if silent.contains(&id) { LOOK_AGAIN_WAIT } else { LOOK_WAIT };
        self.ask_statuses(LOOK_FRESH, wait).await;
    }

    /// Asks every host that can be reached and has said nothing for `fresh`, all at once.
    async fn ask_statuses(&self, fresh: Nanos, wait: impl Fn(HostId) -> Nanos) {
        let now = self.world().now();
        let mut ids: Vec<HostId> = self.0.hosts.borrow().keys().copied().collect();
        if !ids.contains(&self.0.config.host) {
            ids.push(self.0.config.host);
        }
        ids.retain(|&id| {
            let statuses = self.0.statuses.borrow();
            let known = statuses.get(&id).is_some_and(|(at, _)| now.since(*at) < fresh);
            let known = known && !self.0.silent.borrow().contains(&id);
            self.is_alive(id) && !(known && id != self.0.config.host)
        });
        // Where its own volumes go depends on it.
        assert!(ids.contains(&self.0.config.host), "this host does not ask itself: {ids:?}");
        let asks = ids.iter().map(|&id| {
            let wait = wait(id);
            async move { (id, self_ask(self, id, wait).await) }
        });
        for (id, status) in futures_util::future::join_all(asks).await {
            // It may have been removed meanwhile.
            if id != self.0.config.host && !self.0.hosts.borrow().contains_key(&id) {
                continue;
            }
            match status {
                Some(status) => {
                    self.check_readable(id, &status);
                    self.0.silent.borrow_mut().remove(&id);
                    let now = self.world().now();
                    self.0.statuses.borrow_mut().insert(id, (now, status));
                }
                None => {
                    self.0.silent.borrow_mut().insert(id);
                }
            }
        }
        self.refresh_inventory();
    }

    /// In simulation: what hosts write to one whose release knows fewer levels, that could read.
    fn check_readable(&self, from: HostId, status: &HostStatus) {
        if !self.world().audits() || !self.is_published() {
            return;
        }
        let (me, levels) = (self.0.config.host, self.0.config.levels);
        let needs_old = levels.newest < Level::COPIES_ONLY;
        let has_old = status.objects.iter().all(|object| object.running_copy.is_some());
        assert!(!needs_old || has_old, "host {me}, of levels {levels}, cannot read {from}");
    }

    pub(crate) fn refresh_inventory(&self) {
        let now = self.world().now();
        let statuses = self.0.statuses.borrow();
        let hosts = self.0.hosts.borrow();
        let views = hosts.values().map(|h| {
            let status = statuses.get(&h.id).filter(|(at, _)| now.since(*at) < STATUS_FRESH);
            let groups = h.groups.iter().map(|g| {
                let said = status.and_then(|(_, s)| s.groups.iter().find(|s| s.id == g.id));
                GroupView {
                    id: g.id,
                    healthy: g.healthy,
                    capacity_bytes: said.map_or(g.capacity_bytes, |s| s.capacity_bytes),
                    device_bytes: said.and_then(|s| s.device_bytes).unwrap_or(g.capacity_bytes),
                    // Unknown space is no space: nothing is placed on a guess.
                    free_bytes: said.map_or(0, |s| s.free_bytes),
                    unwritten_bytes: said.map_or(0, |s| s.unwritten_bytes),
                    free_components: said.and_then(|s| s.free_components).unwrap_or(u32::MAX),
                    shard: g.shard,
                }
            });
            HostView {
                id: h.id,
                name: h.name.clone(),
                fault_domain: h.fault_domain.clone(),
                alive: self.is_alive(h.id),
                incarnation: h.incarnation,
                groups: groups.collect(),
            }
        });
        let views: Vec<HostView> = views.collect();
        let fresh = statuses.values().filter(|(at, _)| now.since(*at) < STATUS_FRESH);
        let used = fresh.flat_map(|(_, s)| s.components.iter().map(|(&id, &bytes)| (id, bytes)));
        let known = Known { hosts: views, used: used.collect() };
        if self.0.place.shards > 1 {
            self.0.place.board.set_known(known.clone());
        }
        self.0.objects.set_inventory(known.hosts, known.used);
    }

    /// The cluster's hosts: record, whether it answers, and what it last said if that is fresh. A
    /// host that answers and has said nothing is one that has just come.
    pub fn hosts(&self) -> Vec<(HostRecord, bool, Option<HostStatus>)> {
        let now = self.world().now();
        let statuses = self.0.statuses.borrow();
        let hosts = self.0.hosts.borrow();
        let all = hosts.values().map(|h| {
            let status = statuses.get(&h.id).filter(|(at, _)| now.since(*at) < STATUS_FRESH);
            let answers = self.answers(h.id);
            (h.clone(), answers, status.filter(|_| answers).map(|(_, s)| s.clone()))
        });
        all.collect()
    }
}

async fn self_ask<W: World, S: Components>(
    node: &Node<W, S>,
    id: HostId,
    wait: Nanos,
) -> Option<HostStatus> {
    if id == node.0.config.host {
        return Some(node.host_status());
    }
    match node.ask_within(id, AdminRequest::Status, wait).await {
        // What is added up ends no host, whatever another one says.
        Ok(AdminReply::Status { status }) if status.is_plausible() => Some(*status),
        _ => None,
    }
}
