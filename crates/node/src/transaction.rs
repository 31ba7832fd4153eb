//! Reading and changing the directory: what holds of every transaction, and how one whose outcome
//! is unknown is brought to an end.

use crate::error::ManageError;
use crate::node::Node;
use atoll_format::id::ObjectId;
use atoll_format::record::{self, ObjectRecord, ObjectState, key};
use atoll_world::directory::{Directory, Entry, KeyChange, Revision, Txn, TxnReply};
use atoll_world::{Components, DirectoryError, Nanos, World};

/// Attempts of a transaction whose outcome is unknown, or that others were faster than.
pub(crate) const ATTEMPTS_MAX: usize = 20;

/// What holds of every transaction that changes the cluster: nothing is written twice, nor over
/// what was not compared (R12), and an object has no owner before it is ready or once it is
/// deleted.
pub(crate) fn assert_guarded(txn: &Txn) {
    assert!(!txn.changes.is_empty(), "a transaction that changes nothing");
    for (i, change) in txn.changes.iter().enumerate() {
        let (KeyChange::Put(key, _) | KeyChange::Delete(key)) = change;
        let again = txn.changes[i + 1..].iter().any(|other| {
            let (KeyChange::Put(other, _) | KeyChange::Delete(other)) = other;
            other == key
        });
        assert!(!again, "{key} is changed twice by one transaction");
        // What a host's release knows is written along with the host's record.
        let of_host = key.strip_prefix(key::LEVELS).map(|host| format!("{}{host}", key::HOSTS));
        let guard = of_host.as_ref().unwrap_or(key);
        let compared = txn.compares.iter().find(|compare| compare.key == *guard);
        let is_hint = match change {
            KeyChange::Put(..) => false,
            KeyChange::Delete(_) => key.starts_with(key::LOCKS) || key.starts_with(key::STOPPED),
        };
        assert!(compared.is_some() || is_hint, "{key} is changed whatever it is (R12)");
        let KeyChange::Put(_, value) = change else { continue };
        if !key.starts_with(key::OBJECTS) {
            continue;
        }
        let record: ObjectRecord = record::decode(key, value).expect("it was just encoded");
        let is_new = compared.is_some_and(|compare| compare.modified == Revision(0));
        assert_eq!(is_new, record.state == ObjectState::Creating, "{key} as {:?}", record.state);
        let is_owned = record.owner.is_some();
        assert!(!is_owned || record.state == ObjectState::Ready, "{key} with {:?}", record.owner);
        assert!(!is_new || *key == key::object(record.id), "{key} is of {}", record.id);
    }
}

impl<W: World, S: Components> Node<W, S> {
    pub(crate) async fn entry(&self, key: &str) -> Result<Option<Entry>, ManageError> {
        self.world().directory().get(key).await.map_err(ManageError::Directory)
    }

    pub(crate) async fn object_record(
        &self,
        id: ObjectId,
    ) -> Result<Option<(ObjectRecord, Revision)>, ManageError> {
        let key = key::object(id);
        let entry = self.world().directory().get(&key).await.map_err(ManageError::Directory)?;
        let Some(entry) = entry else { return Ok(None) };
        let record = record::decode(&key, &entry.value).map_err(ManageError::Failed)?;
        Ok(Some((record, entry.modified)))
    }

    /// Carries out a transaction; repeats it while its outcome is unknown. `is_mine` tells from a
    /// conflict whether an earlier attempt had been applied.
    ///
    /// # Errors
    /// [`ManageError::Unknown`] if it may have been applied, or may yet be; else it was not.
    pub(crate) async fn settle(
        &self,
        txn: Txn,
        is_mine: impl Fn(&[(String, Option<Entry>)]) -> bool,
    ) -> Result<bool, ManageError> {
        assert_guarded(&txn);
        let mut unknown = false;
        let mut last = DirectoryError::Unavailable("not asked".into());
        for _ in 0..ATTEMPTS_MAX {
            match self.world().directory().txn(txn.clone()).await {
                Ok(TxnReply::Done(_)) => return Ok(true),
                Ok(TxnReply::Conflict(found)) => return Ok(unknown && is_mine(&found)),
                Err(error @ (DirectoryError::Unknown(_) | DirectoryError::Unavailable(_))) => {
                    unknown |= matches!(error, DirectoryError::Unknown(_));
                    last = error;
                    self.world().sleep(Nanos::from_ms(250)).await;
                }
                Err(error) => return Err(ManageError::Directory(error)),
            }
        }
        Err(match unknown {
            true => ManageError::Unknown(last.to_string()),
            false => ManageError::Directory(last),
        })
    }
}
