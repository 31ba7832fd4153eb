//! Locks that nobody has any more, in memory and in the directory.

use crate::directory_view::Dated;
use crate::event_log::{About, Severity};
use crate::node::Node;
use crate::transaction::assert_guarded;
use crate::volume_lock::holder::HolderLife;
use crate::volume_lock::table::NotedLock;
use atoll_format::record::{self, LockRecord, key};
use atoll_world::directory::{Compare, Directory, KeyChange, Revision, Txn, TxnReply};
use atoll_world::{Components, World, sometimes};
use std::sync::Arc;

impl<W: World, S: Components> Node<W, S> {
    /// Drops what is known of locks that are gone from the directory.
    pub(crate) async fn drop_locks_that_are_gone(&self) {
        let Some(seen) = self.0.place.board.seen() else { return };
        let is_there = |noted: &NotedLock, locks: &[Dated<LockRecord>], at: Revision| {
            noted.revision > at || locks.iter().any(|(lock, _)| **lock == noted.record)
        };
        if self.0.locks.all(|noted| is_there(noted, &seen.locks, seen.revision)) {
            return;
        }
        // A watch may have lost that it was taken.
        let Ok(listing) = self.world().directory().list(key::LOCKS).await else { return };
        let mut locks = Vec::new();
        for entry in listing.entries {
            if let Ok(lock) = record::decode::<LockRecord>(&entry.key, &entry.value) {
                locks.push((Arc::new(lock), entry.modified));
            }
        }
        let is_kept = |noted: &NotedLock| is_there(noted, &locks, listing.revision);
        self.0.locks.retain(is_kept);
        assert!(self.0.locks.all(is_kept), "a lock that is gone is kept in mind");
    }

    /// Drops what is known of locks that are gone from the directory, and removes from it what
    /// nobody has any more: of this host's, what it was interrupted with; of ended lives, all.
    /// Always looked for: an attempt to take a lock may arrive after a later one was given back.
    pub(crate) async fn tidy_locks(&self) {
        self.drop_locks_that_are_gone().await;
        let Some(seen) = self.0.place.board.seen().filter(|_| self.0.view.answers()) else {
            return;
        };
        for (lock, modified) in seen.locks.iter().map(|(lock, modified)| (&**lock, *modified)) {
            let (host, incarnation) = (self.0.config.host, self.0.incarnation);
            let seen = if (lock.host, lock.incarnation) == (host, incarnation) {
                if self.0.locks.is_own(lock.token) {
                    continue;
                }
                None
            } else {
                match self.life_of_holder(lock).await {
                    Ok(HolderLife { void: true, seen }) if self.is_first() => seen,
                    _ => continue,
                }
            };
            let is_held = self.0.locks.is_own(lock.token);
            assert!(!is_held, "the lock of {} is in use here and counts as left over", lock.object);
            let lock_key = key::lock(lock.object);
            let own = Compare { key: lock_key.clone(), modified };
            let compares = std::iter::once(own).chain(seen).collect();
            let txn = Txn { compares, changes: vec![KeyChange::Delete(lock_key)] };
            assert_guarded(&txn);
            if let Ok(TxnReply::Done(_)) = self.world().directory().txn(txn).await {
                sometimes!("lock.left_over_is_removed");
                let by = self.host_name(lock.host);
                let message =
                    format!("a lock for {} by host {by} was left over and is gone", lock.purpose);
                let about = About { host: Some(lock.host), ..About::object(lock.object) };
                self.note(Severity::Info, "lock-removed", about, message);
            }
        }
    }
}
