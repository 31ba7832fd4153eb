//! Membership: this host's record in the directory, everybody else's, and what they say.

use crate::admin::{ADMIN_DEADLINE, Answer, Ask};
use crate::{Node, status::HostStatus};
use atoll_format::id::HostId;
use atoll_format::record::{self, HostRecord, RECORD_VERSION, key};
use atoll_object::placement::{GroupView, HostView};
use atoll_world::directory::{Change, Compare, Directory, Revision, Txn, TxnReply, Watch};
use atoll_world::{Components, Nanos, World};
use futures_util::future::select;
use std::collections::BTreeMap;

/// Between attempts to reach the directory.
const RETRY_EVERY: Nanos = Nanos::from_ms(500);
/// A watch that says nothing for this long is doubted: list again.
const RELIST_EVERY: Nanos = Nanos::from_secs(5);
/// How often hosts are asked how they are.
const POLL_EVERY: Nanos = Nanos::from_secs(2);
/// How long a host may take to say how it is, when somebody waits for that.
const LOOK_WAIT: Nanos = Nanos::from_secs(2);
/// The same of one that did not answer the last time.
pub(crate) const LOOK_AGAIN_WAIT: Nanos = Nanos::from_ms(500);
/// A status this young need not be asked for again.
const LOOK_FRESH: Nanos = Nanos::from_ms(500);
/// A status older than this says nothing about now.
const STATUS_FRESH: Nanos = Nanos::from_secs(8);

impl<W: World, S: Components> Node<W, S> {
    fn record(&self) -> HostRecord {
        let config = &self.0.config;
        HostRecord {
            version: RECORD_VERSION,
            id: config.host,
            name: config.name.clone(),
            fault_domain: config.fault_domain.clone(),
            incarnation: self.0.incarnation,
            peers: config.peers.clone(),
            api: config.api.clone(),
            groups: self.0.groups.borrow().clone(),
            release: config.release.clone(),
        }
    }

    /// Keeps this host's record in the directory true, whenever it changes.
    pub(crate) async fn publish(self) {
        let key = key::host(self.0.config.host);
        let mut revision = Revision(0);
        loop {
            let changed = self.0.publish_now.notified();
            let txn = Txn {
                compares: vec![Compare { key: key.clone(), modified: revision }],
                changes: vec![Change::Put(key.clone(), record::encode(&self.record()))],
            };
            match self.world().directory().txn(txn).await {
                Ok(TxnReply::Done(at)) => {
                    revision = at;
                    self.0.host_revision.set(at);
                    changed.await;
                }
                // An earlier life's record, an attempt whose answer was lost, or another life.
                Ok(TxnReply::Conflict(found)) => {
                    let entry = found.into_iter().next().and_then(|(_, entry)| entry);
                    revision = entry.as_ref().map_or(Revision(0), |e| e.modified);
                    if let Some(entry) = entry
                        && !self.may_overwrite(&entry.value, entry.modified).await
                    {
                        return;
                    }
                }
                Err(_) => self.world().sleep(RETRY_EVERY).await,
            }
        }
    }

    /// Whether this host's record has been written in this life.
    pub fn is_published(&self) -> bool {
        self.0.host_revision.get() > Revision(0)
    }

    /// Keeps the list of hosts up to date: a watch, and a fresh list whenever in doubt.
    pub(crate) async fn watch_hosts(self) {
        loop {
            let Ok(listing) = self.world().directory().list(key::HOSTS).await else {
                self.world().sleep(RETRY_EVERY).await;
                continue;
            };
            let mut hosts: Vec<HostRecord> = Vec::new();
            for entry in &listing.entries {
                let Ok(record) = record::decode::<HostRecord>(&entry.key, &entry.value) else {
                    continue;
                };
                if record.id == self.0.config.host {
                    self.check_own(&record, entry.modified);
                }
                hosts.push(record);
            }
            self.set_hosts(hosts);
            let Ok(mut watch) = self.world().directory().watch(key::HOSTS, listing.revision).await
            else {
                self.world().sleep(RETRY_EVERY).await;
                continue;
            };
            // A change only says that a new list is worth while: late, double or lost events do
            // no harm.
            let until = self.world().now() + RELIST_EVERY;
            if let Ok(Err(_)) = self.world().timeout_at(until, watch.next()).await {
                self.world().sleep(RETRY_EVERY).await;
            }
        }
    }

    fn set_hosts(&self, records: Vec<HostRecord>) {
        let peers = self.0.objects.peers();
        let mut hosts = BTreeMap::new();
        for record in records {
            if record.id != self.0.config.host {
                peers.set_peer(record.id, record.peers.clone());
            }
            hosts.insert(record.id, record);
        }
        let gone: Vec<HostId> =
            self.0.hosts.borrow().keys().filter(|id| !hosts.contains_key(id)).copied().collect();
        for id in gone {
            peers.remove_peer(id);
            self.0.silent.borrow_mut().remove(&id);
            self.0.statuses.borrow_mut().remove(&id);
        }
        *self.0.hosts.borrow_mut() = hosts;
        self.refresh_inventory();
    }

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
        let asks = ids.iter().map(|&id| {
            let wait = wait(id);
            async move { (id, self_ask(self, id, wait).await) }
        });
        for (id, status) in futures_util::future::join_all(asks).await {
            match status {
                Some(status) => {
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

    /// Whether a host can be reached, and has answered when it was last asked how it is.
    pub(crate) fn answers(&self, host: HostId) -> bool {
        self.is_alive(host) && !self.0.silent.borrow().contains(&host)
    }

    /// Whether a host can be reached now.
    pub fn is_alive(&self, host: HostId) -> bool {
        host == self.0.config.host || self.0.objects.peers().peer(host).connected
    }

    fn refresh_inventory(&self) {
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
                    // Unknown space is no space: nothing is placed on a guess.
                    free_bytes: said.map_or(0, |s| s.free_bytes),
                    free_components: said.and_then(|s| s.free_components).unwrap_or(u32::MAX),
                }
            });
            HostView {
                id: h.id,
                name: h.name.clone(),
                fault_domain: h.fault_domain.clone(),
                alive: self.is_alive(h.id),
                groups: groups.collect(),
            }
        });
        let views = views.collect();
        self.0.objects.set_inventory(views);
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

    pub(crate) fn host_name(&self, id: HostId) -> String {
        self.0.hosts.borrow().get(&id).map_or_else(|| id.to_string(), |h| h.name.clone())
    }
}

async fn self_ask<W: World, S: Components>(
    node: &Node<W, S>,
    id: HostId,
    wait: Nanos,
) -> Option<HostStatus> {
    if id == node.0.config.host {
        return Some(node.status());
    }
    match node.ask_within(id, Ask::Status, wait).await {
        Ok(Answer::Status { status }) => Some(*status),
        _ => None,
    }
}
