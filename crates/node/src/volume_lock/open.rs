//! Opening a volume for a client: by its name, unless somebody has it to himself, or by the name
//! that the holder of an import's lock was given.

use crate::error::ManageError;
use crate::node::{Node, OpenVolume};
use crate::volume_lock::holder::HolderLife;
use crate::volume_lock::table::{Import, split_export};
use atoll_format::id::ObjectId;
use atoll_format::record::{self, LockRecord, key};
use atoll_object::ObjectVolume;
use atoll_world::directory::{Compare, Directory, Entry, KeyChange, Revision, Txn};
use atoll_world::{Components, DirectoryError, VolumeError, World, sometimes};
use std::rc::Rc;

/// Counts a client of an import.
struct ImportClient<W: World, S: Components> {
    node: Node<W, S>,
    import: Rc<Import>,
}

impl<W: World, S: Components> Drop for ImportClient<W, S> {
    fn drop(&mut self) {
        assert!(self.import.clients.get() > 0, "a client of an import leaves twice");
        self.import.clients.set(self.import.clients.get() - 1);
        self.import.idle_since.set(self.node.world().now());
    }
}

impl<W: World, S: Components> Node<W, S> {
    /// Opens a volume for a client, by its name or by an export's of this host.
    pub(crate) async fn open_export(
        &self,
        export: &str,
    ) -> Result<(ObjectVolume<W, S>, OpenVolume), VolumeError> {
        if let Some((name, token)) = split_export(export) {
            return self.open_import(name, token).await;
        }
        let object = self.find_volume(export).await?;
        // Counted first: who locks the volume from here on hears of it.
        let open = self.opened(object);
        self.refuse_if_locked(object).await?;
        let volume = ObjectVolume::open(self.0.objects.clone(), object).await?;
        Ok((volume, open))
    }

    async fn refuse_if_locked(&self, object: ObjectId) -> Result<(), VolumeError> {
        let unknown = |e: DirectoryError| VolumeError::TimedOut(e.to_string());
        let lock_key = key::lock(object);
        let listing = self.world().directory().list(&lock_key).await.map_err(unknown)?;
        let noted = self.0.locks.noted(object);
        let there = listing.entries.iter().find(|entry| entry.key == lock_key);
        let (lock, revision) = match (there, noted) {
            // The directory's view may be older than what we were told.
            (_, Some(noted)) if noted.revision > listing.revision => (noted.record, noted.revision),
            (Some(entry), _) => {
                let lock = record::decode::<LockRecord>(&lock_key, &entry.value);
                (lock.map_err(VolumeError::TimedOut)?, entry.modified)
            }
            (None, noted) => {
                if let Some(noted) = noted {
                    self.0.locks.forget(object, noted.record.token);
                }
                return Ok(());
            }
        };
        let unknown = |e: ManageError| VolumeError::TimedOut(e.to_string());
        if !self.remove_if_void(&lock, revision).await.map_err(unknown)? {
            sometimes!("lock.keeps_a_client_out");
            return Err(VolumeError::Locked(self.is_locked(&lock).to_string()));
        }
        Ok(())
    }

    /// Removes a lock whose holder is gone. Before anybody opens the volume: what is still under
    /// way for that holder (a shrink that its owner was asked for) compares the lock, and must not
    /// be carried out over what is written from now on.
    async fn remove_if_void(
        &self,
        lock: &LockRecord,
        revision: Revision,
    ) -> Result<bool, ManageError> {
        let HolderLife { void: true, seen } = self.life_of_holder(lock).await? else {
            return Ok(false);
        };
        // A view of the holder's host may be older than the lock: its record is compared, too.
        let lock_key = key::lock(lock.object);
        let own = Compare { key: lock_key.clone(), modified: revision };
        let compares = std::iter::once(own).chain(seen).collect();
        let txn = Txn { compares, changes: vec![KeyChange::Delete(lock_key.clone())] };
        let is_gone = |found: &[(String, Option<Entry>)]| {
            found.iter().any(|(key, entry)| *key == lock_key && entry.is_none())
        };
        let removed = self.settle(txn, is_gone).await?;
        let is_held = self.0.locks.is_own(lock.token);
        assert!(!is_held, "the lock of {} is in use here and counts as void", lock.object);
        if removed {
            sometimes!("lock.left_over_is_removed_before_opening");
            self.0.locks.forget(lock.object, lock.token);
        }
        Ok(removed)
    }

    async fn open_import(
        &self,
        name: &str,
        token: u64,
    ) -> Result<(ObjectVolume<W, S>, OpenVolume), VolumeError> {
        let import = self.0.imports.borrow().get(&token).cloned();
        let import = import.filter(|i| i.lock.record.name == name).ok_or(VolumeError::Gone)?;
        let object = import.lock.record.object;
        import.clients.set(import.clients.get() + 1);
        let mut open = self.opened(object);
        let (clients, counted) = (import.clients.get(), self.clients_of(object));
        assert!(clients <= counted, "{clients} clients of an import, {counted} of {object}");
        let revision = import.lock.revision();
        open.with(Box::new(ImportClient { node: self.clone(), import }));
        // Others take the lock of a host that they have not heard of for long.
        let unknown = |e: DirectoryError| VolumeError::TimedOut(e.to_string());
        let listing = self.world().directory().list(&key::lock(object)).await.map_err(unknown)?;
        if listing.revision >= revision && !listing.entries.iter().any(|e| e.modified == revision) {
            sometimes!("lock.import_has_lost_its_lock");
            return Err(VolumeError::Gone);
        }
        let volume = ObjectVolume::open(self.0.objects.clone(), object).await?;
        Ok((volume, open))
    }
}
