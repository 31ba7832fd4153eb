//! Taking a lock and giving it back.

use crate::admin::message::AdminRequest;
use crate::error::ManageError;
use crate::node::Node;
use crate::volume_lock::table::Lock;
use crate::volume_view::VolumeView;
use atoll_format::id::HostId;
use atoll_format::record::{
    self, LockPurpose, LockRecord, ObjectState, RECORD_VERSION, VolumeRecord, key,
};
use atoll_world::directory::{Compare, Entry, KeyChange, Revision, Txn};
use atoll_world::{Components, Nanos, World, sometimes};

/// Attempts to take a lock against changes of what it is taken on.
const ATTEMPTS_MAX: usize = 20;
/// How long a lock for something that is soon over is waited for.
const LOCK_WAIT: Nanos = Nanos::from_secs(5);
/// How often that is looked at.
const LOCK_LOOK: Nanos = Nanos::from_ms(100);

const _: () = assert!(LOCK_LOOK.0 < LOCK_WAIT.0);

impl<W: World, S: Components> Node<W, S> {
    /// Has a volume to itself that nobody uses.
    ///
    /// # Errors
    /// Somebody uses it, or may; somebody else has it to himself. Then nothing is locked.
    pub(crate) async fn lock_unused(
        &self,
        view: &VolumeView,
        purpose: LockPurpose,
        force: bool,
    ) -> Result<Lock, ManageError> {
        let held = self.take_lock(view, purpose, force).await?;
        let unused = match self.refuse_if_in_use(view, Some(&held), false).await {
            Err(ManageError::MayBeInUse { .. }) if force => Ok(()),
            other => other,
        };
        match unused {
            Ok(()) => Ok(held),
            Err(error) => {
                self.let_go(held).await;
                Err(error)
            }
        }
    }

    /// Has a volume to itself, or says who has. Nobody was asked yet whether it is in use.
    /// `force`: also in place of a lock whose host does not answer.
    async fn take_lock(
        &self,
        view: &VolumeView,
        purpose: LockPurpose,
        force: bool,
    ) -> Result<Lock, ManageError> {
        let (id, name) = (view.record.id, view.name.clone());
        let not_found = || ManageError::NotFound { what: "volume", name: name.clone() };
        let record = LockRecord {
            version: RECORD_VERSION,
            object: id,
            name: name.clone(),
            host: self.0.config.host,
            incarnation: self.0.incarnation,
            token: self.world().random(),
            purpose,
            since_ms: self.world().unix_ms(),
        };
        let value = record::encode(&record);
        let lock = Lock::begin(self.0.locks.clone(), record);
        let (lock_key, name_key, object_key) = (key::lock(id), key::volume(&name), key::object(id));
        let until = self.world().now() + LOCK_WAIT;
        let mut attempts = 0;
        while attempts < ATTEMPTS_MAX {
            attempts += 1;
            let named = self.entry(&name_key).await?.ok_or_else(not_found)?;
            let volume: VolumeRecord =
                record::decode(&name_key, &named.value).map_err(ManageError::Failed)?;
            let (object, revision) = self.object_record(id).await?.ok_or_else(not_found)?;
            if volume.object != id || object.state != ObjectState::Ready {
                return Err(not_found());
            }
            let before = self.entry(&lock_key).await?;
            let mut compares = vec![
                Compare { key: name_key.clone(), modified: named.modified },
                Compare { key: object_key.clone(), modified: revision },
                Compare { key: lock_key.clone(), modified: Revision(0) },
            ];
            if let Some(before) = before {
                let other: LockRecord =
                    record::decode(&lock_key, &before.value).map_err(ManageError::Failed)?;
                if other.token == lock.record.token {
                    // Written at an earlier attempt, of which an old view showed nothing.
                    sometimes!("lock.own_lock_is_seen_late");
                    return Ok(lock.taken(before.modified));
                }
                let life = self.life_of_holder(&other).await?;
                if !(life.void || force && !self.is_alive(other.host)) {
                    // Deleting and shrinking are soon over; who repeats one of them waits for it.
                    if other.purpose == LockPurpose::Import || self.world().now() > until {
                        return Err(self.is_locked(&other));
                    }
                    sometimes!("lock.is_waited_for");
                    attempts -= 1;
                    self.world().sleep(LOCK_LOOK).await;
                    continue;
                }
                sometimes!("lock.void_lock_is_replaced");
                assert_eq!(compares[2].key, lock_key, "the lock that is replaced is compared");
                compares[2].modified = before.modified;
                compares.extend(life.seen);
            }
            let changes = vec![KeyChange::Put(lock_key.clone(), value.clone())];
            let mine = |found: &[(String, Option<Entry>)]| {
                found.iter().any(|(_, e)| e.as_ref().is_some_and(|e| e.value == value))
            };
            if self.settle(Txn { compares, changes }, mine).await? {
                // Written by nobody else: the revision that the value has is ours.
                let entry = self.entry(&lock_key).await?.filter(|entry| entry.value == value);
                let Some(entry) = entry else { continue };
                return Ok(lock.taken(entry.modified));
            }
        }
        Err(ManageError::Conflict(name))
    }

    /// Gives a lock back; if the directory does not answer, later.
    pub(crate) async fn let_go(&self, held: Lock) {
        let _ = self.give_back(&held).await;
    }

    /// Gives a lock back: afterwards nothing that compares it can be carried out any more. All
    /// hosts are told; one that is not finds out by itself.
    ///
    /// # Errors
    /// The directory does not say that it is gone.
    pub(crate) async fn give_back(&self, held: &Lock) -> Result<(), ManageError> {
        let txn = Txn {
            compares: vec![held.guard()],
            changes: vec![KeyChange::Delete(key::lock(held.record.object))],
        };
        // Gone already: somebody took it from us, as void.
        self.settle(txn, |_| true).await?;
        held.ended();
        let node = self.clone();
        let (object, token) = (held.record.object, held.record.token);
        self.world().spawn(async move {
            let hosts: Vec<HostId> = node.0.hosts.borrow().keys().copied().collect();
            let others = hosts.into_iter().filter(|&h| h != node.0.config.host);
            let told = others.filter(|&h| node.is_alive(h)).map(|host| {
                let node = node.clone();
                async move { node.ask(host, AdminRequest::Unlock { object, token }).await }
            });
            futures_util::future::join_all(told).await;
        });
        Ok(())
    }
}
