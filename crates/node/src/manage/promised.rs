//! What is promised to volumes in all, and the cluster's limit of that.

use crate::error::ManageError;
use crate::node::Node;
use crate::transaction::ATTEMPTS_MAX;
use atoll_format::id::ObjectId;
use atoll_format::record::{
    self, ClusterRecord, ObjectRecord, PROMISED_LIMIT_PERCENT, check_promised_limit, key,
};
use atoll_object::placement::HostView;
use atoll_object::promised::{self, Promised};
use atoll_world::directory::{Compare, Directory, Entry, KeyChange, Txn};
use atoll_world::{Components, World};
use futures_util::future::join;

/// What is promised, as the directory has it.
pub(crate) struct Promises {
    /// The records of all objects.
    records: Vec<ObjectRecord>,
    /// See [`Node::promised_limit`].
    limit_percent: u32,
}

impl<W: World, S: Components> Node<W, S> {
    /// The limit of what may be promised, in percent of the space that exists.
    pub async fn promised_limit(&self) -> Result<u32, ManageError> {
        let Some(entry) = self.entry(key::CLUSTER).await? else {
            return Ok(PROMISED_LIMIT_PERCENT);
        };
        let cluster: ClusterRecord =
            record::decode(key::CLUSTER, &entry.value).map_err(ManageError::Failed)?;
        Ok(cluster.promised_limit_percent)
    }

    /// Sets the limit of what may be promised, in percent of the space that exists: 100 to
    /// 1,000,000. It counts from the next volume on that is made or grown.
    ///
    /// # Errors
    /// It is out of range, or the directory gives no answer.
    pub async fn set_promised_limit(&self, percent: u32, dry_run: bool) -> Result<(), ManageError> {
        check_promised_limit(percent).map_err(ManageError::Invalid)?;
        for _ in 0..ATTEMPTS_MAX {
            let gone = || ManageError::Failed("the directory has no record of a cluster".into());
            let Entry { key, value, modified } =
                self.entry(key::CLUSTER).await?.ok_or_else(gone)?;
            let mut cluster: ClusterRecord =
                record::decode(&key, &value).map_err(ManageError::Failed)?;
            if dry_run || cluster.promised_limit_percent == percent {
                return Ok(());
            }
            cluster.promised_limit_percent = percent;
            let txn = Txn {
                compares: vec![Compare { key: key.clone(), modified }],
                changes: vec![KeyChange::Put(key, record::encode(&cluster))],
            };
            // Also a conflict is looked at again: it may be our own.
            if self.settle(txn, |_| false).await? {
                return Ok(());
            }
        }
        Err(ManageError::Conflict("cluster".into()))
    }

    /// What is promised now.
    pub(crate) async fn promises(&self) -> Result<Promises, ManageError> {
        let objects = self.world().directory().list(key::OBJECTS);
        let (listing, limit_percent) = join(objects, self.promised_limit()).await;
        let entries = listing.map_err(ManageError::Directory)?.entries;
        let decode = |entry: Entry| record::decode(&entry.key, &entry.value);
        let records: Result<_, String> = entries.into_iter().map(decode).collect();
        let records = records.map_err(ManageError::Failed)?;
        Ok(Promises { records, limit_percent: limit_percent? })
    }

    /// Refuses to promise so many bytes more.
    pub(crate) fn check_promise(&self, promises: &Promises, more: u64) -> Result<(), ManageError> {
        let hosts = self.0.hosts.borrow();
        let Promises { records, limit_percent } = promises;
        let promised = Promised::of(records.iter(), hosts.values(), *limit_percent);
        promised.check_more(more).map_err(ManageError::CannotPlace)
    }

    /// The hosts and their space without what is reserved for objects other than `but`.
    pub(crate) fn unreserved(&self, promises: &Promises, but: Option<ObjectId>) -> Vec<HostView> {
        let others = promises.records.iter().filter(|record| Some(record.id) != but);
        let reserved = promised::reserved(others, |id| self.0.objects.used_bytes(id));
        let mut hosts = self.0.objects.inventory();
        promised::set_aside(&mut hosts, &reserved);
        hosts
    }
}
