//! Policies: what volumes are made with.

use crate::error::ManageError;
use crate::node::Node;
use crate::transaction::ATTEMPTS_MAX;
use atoll_format::record::{self, Policy, PolicyRecord, RECORD_VERSION, VolumeRecord, key};
use atoll_object::placement;
use atoll_world::directory::{Compare, Directory, Entry, KeyChange, Revision, Txn};
use atoll_world::{Components, World};
use std::collections::BTreeMap;

/// The policy of volumes that name none.
pub const DEFAULT_POLICY: &str = "default";

impl<W: World, S: Components> Node<W, S> {
    /// All policies; `default` is always there.
    pub async fn policies(&self) -> Result<BTreeMap<String, Policy>, ManageError> {
        let listing = self.world().directory().list(key::POLICIES).await;
        let listing = listing.map_err(ManageError::Directory)?;
        let mut all = BTreeMap::from([(DEFAULT_POLICY.to_string(), Policy::DEFAULT)]);
        for entry in listing.entries {
            let record: PolicyRecord =
                record::decode(&entry.key, &entry.value).map_err(ManageError::Failed)?;
            all.insert(record.name, record.policy);
        }
        Ok(all)
    }

    /// One policy.
    pub async fn policy(&self, name: &str) -> Result<Policy, ManageError> {
        let not_found = || ManageError::NotFound { what: "policy", name: name.into() };
        self.policies().await?.remove(name).ok_or_else(not_found)
    }

    /// Makes a policy.
    pub async fn create_policy(&self, name: &str, policy: Policy) -> Result<(), ManageError> {
        policy.check().map_err(ManageError::Invalid)?;
        let exists = || ManageError::Exists { what: "policy", name: name.into() };
        if name == DEFAULT_POLICY {
            return Err(exists());
        }
        let key = key::policy(name);
        let record = PolicyRecord { version: RECORD_VERSION, name: name.into(), policy };
        let value = record::encode(&record);
        let txn = Txn {
            compares: vec![Compare { key: key.clone(), modified: Revision(0) }],
            changes: vec![KeyChange::Put(key, value.clone())],
        };
        let mine = |found: &[(String, Option<Entry>)]| {
            found.iter().any(|(_, e)| e.as_ref().is_some_and(|e| e.value == value))
        };
        if self.settle(txn, mine).await? { Ok(()) } else { Err(exists()) }
    }

    /// Deletes a policy that no volume uses.
    pub async fn delete_policy(&self, name: &str) -> Result<(), ManageError> {
        if name == DEFAULT_POLICY {
            return Err(ManageError::Invalid("the default policy cannot be deleted".into()));
        }
        let key = key::policy(name);
        for _ in 0..ATTEMPTS_MAX {
            let entry = self.world().directory().get(&key).await.map_err(ManageError::Directory)?;
            let not_found = || ManageError::NotFound { what: "policy", name: name.into() };
            let modified = entry.ok_or_else(not_found)?.modified;
            // Every volume that is made with it writes it again, so that a view that is as new as
            // its revision shows all of them.
            let listing = self.world().directory().list(key::VOLUMES).await;
            let listing = listing.map_err(ManageError::Directory)?;
            if listing.revision < modified {
                continue;
            }
            for entry in &listing.entries {
                let volume: VolumeRecord =
                    record::decode(&entry.key, &entry.value).map_err(ManageError::Failed)?;
                if volume.policy == name {
                    let volume = entry.key[key::VOLUMES.len()..].to_string();
                    return Err(ManageError::PolicyInUse { policy: name.into(), volume });
                }
            }
            let txn = Txn {
                compares: vec![Compare { key: key.clone(), modified }],
                changes: vec![KeyChange::Delete(key.clone())],
            };
            let gone = |found: &[(String, Option<Entry>)]| found.iter().all(|(_, e)| e.is_none());
            if self.settle(txn, gone).await? {
                return Ok(());
            }
        }
        Err(ManageError::Conflict(name.into()))
    }

    /// Whether a volume of that size could be placed now.
    ///
    /// # Errors
    /// [`ManageError::CannotPlace`]: it could not. Others: it is not known.
    pub async fn check_policy(&self, policy: &Policy, size_bytes: u64) -> Result<(), ManageError> {
        let promises = self.promises().await?;
        let (hosts, here) = (self.unreserved(&promises, None), Some(self.0.config.host));
        let plan = placement::place(&hosts, policy, size_bytes, here, 1);
        let copies = plan.map_err(ManageError::CannotPlace)?.policy.members();
        self.check_promise(&promises, size_bytes.saturating_mul(copies as u64))
    }
}
