//! Deleting an object, in two steps: a transaction takes its name away and marks it as being
//! deleted, which fences its owner off; then its components are deleted, and last its record.
//!
//! The first step decides. The second is repeated by whoever finds the mark, until it is done.

use crate::error::ManageError;
use crate::node::Node;
use crate::transaction::{ATTEMPTS_MAX, assert_guarded};
use atoll_format::id::{Epoch, ObjectId};
use atoll_format::record::{self, MemberState, ObjectRecord, ObjectState, VolumeRecord, key};
use atoll_object::message::{Reply, Request};
use atoll_world::directory::{Compare, Directory, Entry, KeyChange, Revision, Txn};
use atoll_world::{Components, Lane, Nanos, StoreError, World, sometimes};

impl<W: World, S: Components> Node<W, S> {
    /// Takes an object's name away and has its components deleted, if `still` holds of its record
    /// and nothing that `guards` compares has moved. Other objects' names stay.
    ///
    /// # Errors
    /// [`ManageError::NotFound`]: there is no such object; [`ManageError::Conflict`]: `still` or a
    /// guard does not hold, and nothing was changed; [`ManageError::Unknown`].
    pub(crate) async fn start_delete(
        &self,
        id: ObjectId,
        guards: &[Compare],
        still: impl Fn(&ObjectRecord) -> bool,
    ) -> Result<(), ManageError> {
        let object_key = key::object(id);
        let gone = || ManageError::NotFound { what: "volume", name: id.to_string() };
        for _ in 0..ATTEMPTS_MAX {
            let (mut record, modified) = self.object_record(id).await?.ok_or_else(gone)?;
            if record.state == ObjectState::Deleting {
                return Ok(());
            }
            if !still(&record) {
                return Err(ManageError::Conflict(record.name));
            }
            let name_key = key::volume(&record.name);
            let named = self.world().directory().get(&name_key).await;
            let named = named.map_err(ManageError::Directory)?;
            let leads_here = named.as_ref().is_some_and(|entry| {
                let volume = record::decode::<VolumeRecord>(&name_key, &entry.value);
                volume.is_ok_and(|volume| volume.object == id)
            });
            record.state = ObjectState::Deleting;
            // Fences its owner off, if it has one: nothing is written from here on.
            record.epoch.0 += 1;
            record.owner = None;
            record.nonce = self.world().random();
            let named_at = named.map_or(Revision(0), |entry| entry.modified);
            let mut compares = vec![
                Compare { key: object_key.clone(), modified },
                Compare { key: name_key.clone(), modified: named_at },
            ];
            compares.extend(guards.iter().cloned());
            let mut changes = vec![
                KeyChange::Put(object_key.clone(), record::encode(&record)),
                KeyChange::Delete(key::lock(id)),
            ];
            if leads_here {
                changes.push(KeyChange::Delete(name_key));
            }
            let nonce = record.nonce;
            let mine = |found: &[(String, Option<Entry>)]| {
                found.iter().any(|(key, e)| {
                    let record = e.as_ref().map(|e| record::decode::<ObjectRecord>(key, &e.value));
                    record.is_some_and(|r| r.is_ok_and(|r| r.nonce == nonce))
                })
            };
            if self.settle(Txn { compares, changes }, mine).await? {
                if let Ok(Some((record, revision))) = self.object_record(id).await
                    && record.state == ObjectState::Deleting
                {
                    self.finish_delete(&record, revision).await;
                }
                return Ok(());
            }
            for guard in guards {
                let now = self.world().directory().get(&guard.key).await;
                let now = now.map_err(ManageError::Directory)?;
                if now.map_or(Revision(0), |entry| entry.modified) != guard.modified {
                    return Err(ManageError::Conflict(record.name));
                }
            }
        }
        Err(ManageError::Conflict(id.to_string()))
    }

    /// Deletes the components of an object whose name is gone, then its record. Only one host
    /// does so at a time by choice; doing it twice does no harm.
    pub(crate) async fn finish_delete(&self, record: &ObjectRecord, revision: Revision) {
        assert_eq!(record.state, ObjectState::Deleting, "copies of {} are deleted", record.id);
        if !self.is_first() {
            return;
        }
        for (_, member) in record.members() {
            if !self.0.hosts.borrow().contains_key(&member.host) {
                continue;
            }
            let lost = matches!(member.state, MemberState::Absent { lost: true, .. });
            let request = Request::Delete { component: member.component, epoch: record.epoch };
            let deadline = self.world().now() + Nanos::from_secs(3);
            let peers = self.0.objects.peers();
            let at = self.0.objects.addr_of(member.host, member.group);
            let reply = peers.call(at, Lane::Control, request, deadline).await;
            match reply {
                Ok(Reply::Done) => {}
                _ if lost => {}
                Ok(Reply::Failed(StoreError::Fenced { fenced })) if fenced > record.epoch => {
                    return self.raise_deleted(record, revision, fenced).await;
                }
                _ => return,
            }
        }
        let key = key::object(record.id);
        let txn = Txn {
            compares: vec![Compare { key: key.clone(), modified: revision }],
            changes: vec![KeyChange::Delete(key)],
        };
        assert_guarded(&txn);
        let _ = self.world().directory().txn(txn).await;
    }

    /// A component has promised an epoch that its object has not reached: of a damaged log, or of
    /// before the directory was put back. Nobody raises the epoch of what is deleted but who
    /// deletes it, as a takeover does otherwise; the next turn deletes by that epoch.
    async fn raise_deleted(&self, record: &ObjectRecord, revision: Revision, fenced: Epoch) {
        assert!(fenced > record.epoch, "{} is at {:?} already", record.id, record.epoch);
        sometimes!("delete.raises_the_epoch");
        let key = key::object(record.id);
        let raised = ObjectRecord { epoch: fenced, ..record.clone() };
        let txn = Txn {
            compares: vec![Compare { key: key.clone(), modified: revision }],
            changes: vec![KeyChange::Put(key, record::encode(&raised))],
        };
        assert_guarded(&txn);
        let _ = self.world().directory().txn(txn).await;
    }
}
