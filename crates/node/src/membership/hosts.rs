//! This host's record in the directory, and the list of all hosts.

use crate::node::Node;
use crate::transaction::assert_guarded;
use atoll_format::id::HostId;
use atoll_format::record::{self, GroupRecord, HostRecord, RECORD_VERSION, key};
use atoll_world::directory::{Compare, Directory, KeyChange, Revision, Txn, TxnReply, Watch};
use atoll_world::{Components, Nanos, World};
use std::collections::BTreeMap;

/// Between attempts to reach the directory.
const RETRY_EVERY: Nanos = Nanos::from_ms(500);
/// A watch that says nothing for this long is doubted: list again.
const RELIST_EVERY: Nanos = Nanos::from_secs(5);

const _: () = assert!(RETRY_EVERY.0 < RELIST_EVERY.0);

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
        let key = key::host(self.0.config.host);
        let mut revision = Revision(0);
        loop {
            let changed = self.0.publish_now.notified();
            // A record without some disk groups would say that they are gone.
            let Some(of_others) = self.0.place.board.groups(self.0.place.shards) else {
                changed.await;
                continue;
            };
            let txn = Txn {
                compares: vec![Compare { key: key.clone(), modified: revision }],
                changes: vec![KeyChange::Put(key.clone(), record::encode(&self.record(of_others)))],
            };
            assert_guarded(&txn);
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
        if self.is_first_shard() {
            self.refresh_inventory();
        }
    }
}
