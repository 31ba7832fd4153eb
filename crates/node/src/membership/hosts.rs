//! This host's record in the directory, and the list of all hosts.
//!
//! Invariant: a host publishes itself in a cluster at a level that its release knows only, because
//! that compares the cluster's record; and whoever raises the level has seen all hosts, because a
//! new host writes that record again, as it is.

use crate::directory_view::Seen;
use crate::membership::follow::RETRY_EVERY;
use crate::node::Node;
use crate::transaction::assert_guarded;
use atoll_format::id::HostId;
use atoll_format::record::{self, GroupRecord, HostRecord, LevelsRecord, RECORD_VERSION, key};
use atoll_world::directory::{Compare, Directory, Entry, KeyChange, Revision, Txn, TxnReply};
use atoll_world::{Components, World};
use std::collections::BTreeMap;

impl<W: World, S: Components> Node<W, S> {
    fn record(&self, of_others: Vec<GroupRecord>) -> HostRecord {
        let config = &self.0.config;
        let mut groups = self.0.groups.borrow().clone();
        groups.extend(of_others);
        HostRecord {
            version: RECORD_VERSION,
            id: config.host,
            name: config.name.clone(),
            fault_domain: config.fault_domain.clone(),
            incarnation: self.0.incarnation,
            peers: config.peers.clone(),
            api: config.api.clone(),
            groups,
            release: config.release.clone(),
        }
    }

    /// Keeps this host's record in the directory true, whenever it changes.
    pub(crate) async fn publish(self) {
        let (key, removed) = (key::host(self.0.config.host), key::removed(self.0.config.host));
        let levels = LevelsRecord::new(self.0.incarnation, self.0.config.levels);
        let levels = KeyChange::Put(key::levels(self.0.config.host), record::encode(&levels));
        let (mut revision, mut cluster) = (Revision(0), None::<Entry>);
        loop {
            let changed = self.0.publish_now.notified();
            // A record without some disk groups would say that they are gone.
            let Some(of_others) = self.0.place.board.groups(self.0.place.shards) else {
                changed.await;
                continue;
            };
            let own = KeyChange::Put(key.clone(), record::encode(&self.record(of_others)));
            let mut changes = vec![own, levels.clone()];
            if let Some(Entry { key, value, .. }) = cluster.as_ref().filter(|_| revision.0 == 0) {
                changes.push(KeyChange::Put(key.clone(), value.clone()));
            }
            let of_cluster = cluster.as_ref().map_or(Revision(0), |entry| entry.modified);
            let compares = vec![
                Compare { key: key.clone(), modified: revision },
                Compare { key: removed.clone(), modified: Revision(0) },
                Compare { key: key::CLUSTER.into(), modified: of_cluster },
            ];
            let txn = Txn { compares, changes };
            assert_guarded(&txn);
            match self.world().directory().txn(txn).await {
                Ok(TxnReply::Done(at)) => {
                    if let Some(cluster) = cluster.as_mut().filter(|_| revision.0 == 0) {
                        cluster.modified = at;
                    }
                    revision = at;
                    self.0.host_revision.set(at);
                    changed.await;
                }
                // An earlier life's record, an attempt whose answer was lost, or another life; or
                // the cluster has changed.
                Ok(TxnReply::Conflict(mut found)) => {
                    let mut of = |key: &str| {
                        let found = found.iter_mut().find(|(of, _)| of == key);
                        found.and_then(|(_, entry)| entry.take())
                    };
                    if let Some(Entry { key, value, .. }) = of(&removed) {
                        return self.was_removed(record::decode(&key, &value).ok().as_ref());
                    }
                    cluster = of(key::CLUSTER);
                    let level = cluster.as_ref().and_then(|e| record::cluster_level(&e.value));
                    if level.is_some_and(|level| self.take_level(level).is_err()) {
                        return;
                    }
                    let entry = of(&key);
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

    /// These are the hosts, and those that were removed.
    pub(crate) fn take_hosts(&self, Seen { hosts, removed, level, .. }: &Seen) {
        // Whoever does not know the level has ended.
        let _ = self.take_level(*level);
        // First: who is removed and still among the hosts is not connected to again.
        self.take_removed(removed);
        for (record, modified) in hosts.iter().filter(|(h, _)| h.id == self.0.config.host) {
            self.check_own(record, *modified);
        }
        self.set_hosts(hosts.iter().map(|(record, _)| HostRecord::clone(record)).collect());
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
        if self.is_first_shard() {
            self.refresh_inventory();
        }
    }
}
