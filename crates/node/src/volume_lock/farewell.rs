//! Hosts that stop in order say so: nobody has to wait until they count as away.

use crate::node::Node;
use atoll_format::id::HostId;
use atoll_format::record::{self, HostRecord, RECORD_VERSION, StoppedRecord, key};
use atoll_world::directory::{Directory, Entry, KeyChange, Txn};
use atoll_world::{Components, Nanos, World, sometimes};
use std::collections::BTreeSet;

/// Between attempts of a host that starts to take that back.
const ARRIVE_AGAIN: Nanos = Nanos::from_ms(500);
/// How long a host that stops tries to say so.
const FAREWELL: Nanos = Nanos::from_secs(1);

impl<W: World, S: Components> Node<W, S> {
    /// Says that this life of the host has no clients any more, and gets none.
    pub(crate) async fn say_farewell(&self) {
        let open = self.0.open_volumes.borrow().len();
        assert!(self.0.stopping.get() && open == 0, "this host says farewell with {open} open");
        let stopped = StoppedRecord { version: RECORD_VERSION, incarnation: self.0.incarnation };
        let put = KeyChange::Put(key::stopped(self.0.config.host), record::encode(&stopped));
        let txn = Txn { compares: vec![], changes: vec![put] };
        let until = self.world().now() + FAREWELL;
        let _ = self.world().timeout_at(until, self.world().directory().txn(txn)).await;
    }

    /// Takes back what an earlier life said when it went. Before this one has clients: nobody is to
    /// take them for none because this life's record is not written yet. Returns once the directory
    /// has confirmed it.
    pub async fn arrive(&self) {
        let gone = KeyChange::Delete(key::stopped(self.0.config.host));
        while self
            .settle(Txn { compares: vec![], changes: vec![gone.clone()] }, |_| true)
            .await
            .is_err()
        {
            self.world().sleep(ARRIVE_AGAIN).await;
        }
    }

    /// Those hosts whose present life has stopped in order. In doubt, none.
    pub(crate) async fn stopped_in_order(&self, hosts: &[HostId]) -> BTreeSet<HostId> {
        let mut stopped = BTreeSet::new();
        for &host in hosts {
            let (stopped_key, host_key) = (key::stopped(host), key::host(host));
            let directory = self.world().directory();
            // Whether it has begun another life since is read last, and not from an older view.
            let Ok(farewell) = directory.list(&stopped_key).await else { continue };
            let Ok(lives) = directory.list(&host_key).await else { continue };
            let of = |entries: Vec<Entry>, key: &str| entries.into_iter().find(|e| e.key == key);
            let Some(farewell) = of(farewell.entries, &stopped_key) else { continue };
            if lives.revision < farewell.modified {
                continue;
            }
            let Some(life) = of(lives.entries, &host_key) else { continue };
            let said = record::decode::<StoppedRecord>(&stopped_key, &farewell.value);
            let lives = record::decode::<HostRecord>(&host_key, &life.value);
            if let (Ok(said), Ok(lives)) = (said, lives)
                && said.incarnation == lives.incarnation
            {
                sometimes!("lock.host_has_stopped_in_order");
                stopped.insert(host);
            }
        }
        stopped
    }
}
