//! What is left over: deletions that were begun, volumes whose making was given up, objects without
//! a name, components that no record names.
//!
//! Invariant: nothing is removed because of a plain read of the directory, which may be old: a
//! transaction that writes has confirmed what was read.

use crate::event_log::{About, Severity};
use crate::host_board::Named;
use crate::node::Node;
use atoll_format::id::{ComponentId, Epoch, ObjectId};
use atoll_format::record::{self, ObjectRecord, ObjectState, RECORD_VERSION, ReapedRecord, key};
use atoll_format::units::iec;
use atoll_object::message::Request;
use atoll_world::directory::{Compare, Directory, KeyChange, Revision, Txn, TxnReply};
use atoll_world::{Components, Nanos, World, mutant, sometimes};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// How often left-over components are looked for.
const REAP_EVERY: Nanos = Nanos::from_secs(5);
/// A component that no record names is kept for this long: a rebuild makes the component before
/// it writes the record.
const ORPHAN_AFTER: Nanos = Nanos::from_secs(600);
/// An object that no name leads to is kept for this long.
const NAMELESS_AFTER: Nanos = Nanos::from_secs(60);
/// A volume that has been seen in the making for this long was given up by its maker.
const CREATING_MAX: Nanos = Nanos::from_secs(120);

const _: () = {
    // What is made outlives whoever has just made it: its record is written in that time.
    assert!(ORPHAN_AFTER.0 > CREATING_MAX.0 && CREATING_MAX.0 > REAP_EVERY.0);
    assert!(NAMELESS_AFTER.0 > 2 * REAP_EVERY.0);
};

/// What became of a component that no record names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Orphan {
    /// Nothing: a record may name it.
    Unknown,
    /// It may be newer than its volume's record.
    Kept,
    Removed,
}

impl<W: World, S: Components> Node<W, S> {
    /// Finishes deletions, and removes components that no record names.
    pub(crate) async fn reap(self) {
        let mut orphans: BTreeMap<ComponentId, Nanos> = BTreeMap::new();
        // By this host's own clock: wall clocks may be wrong.
        let mut in_the_making: BTreeMap<ObjectId, Nanos> = BTreeMap::new();
        let mut nameless: BTreeMap<ObjectId, Nanos> = BTreeMap::new();
        loop {
            self.world().sleep(REAP_EVERY).await;
            self.tidy_locks().await;
            let Some(objects) = self.0.view.objects() else { continue };
            let now = self.world().now();
            let mut named = BTreeSet::new();
            let mut epochs = BTreeMap::new();
            let before = std::mem::take(&mut in_the_making);
            for (record, modified) in &objects {
                named.extend(record.members().map(|(_, m)| m.component));
                epochs.insert(record.id, record.epoch);
                match record.state {
                    ObjectState::Deleting => self.finish_delete(record, *modified).await,
                    ObjectState::Creating => {
                        let since = before.get(&record.id).copied().unwrap_or(now);
                        in_the_making.insert(record.id, since);
                        if now.since(since) >= CREATING_MAX {
                            let of_old = |r: &ObjectRecord| r.state == ObjectState::Creating;
                            let _ = self.start_delete(record.id, &[], of_old).await;
                        }
                    }
                    ObjectState::Ready => {}
                }
            }
            if self.is_first() {
                self.go_on_with_removals().await;
                self.remove_nameless(&objects, &mut nameless).await;
            }
            if self.0.place.shards > 1 {
                let named = Named { components: named.clone(), epochs: epochs.clone() };
                self.0.place.board.set_named(named);
            }
            self.reap_orphans(&Named { components: named, epochs }, &mut orphans).await;
        }
    }

    /// A shard other than 0 looks after its own components only, by what shard 0 has seen.
    pub(crate) async fn reap_in_shard(self) {
        let mut orphans: BTreeMap<ComponentId, Nanos> = BTreeMap::new();
        loop {
            self.world().sleep(REAP_EVERY).await;
            self.drop_locks_that_are_gone().await;
            if let Some(named) = self.0.place.board.named() {
                self.reap_orphans(&named, &mut orphans).await;
            }
        }
    }

    /// Removes components of this shard that no record has named for long.
    async fn reap_orphans(&self, named: &Named, orphans: &mut BTreeMap<ComponentId, Nanos>) {
        let now = self.world().now();
        let members = self.0.objects.members();
        let here = members.components();
        orphans.retain(|id, _| here.iter().any(|(c, _)| c == id) && !named.components.contains(id));
        let mut nowhere = 0;
        let count = here.len();
        for (component, object) in here {
            if named.components.contains(&component) {
                continue;
            }
            nowhere += 1;
            let since = *orphans.entry(component).or_insert(now);
            assert!(since <= now, "{component} is named nowhere since {since}");
            if now.since(since) > ORPHAN_AFTER || mutant!("care.old_view_is_believed") {
                if self.remove_orphan(component, object).await == Orphan::Kept {
                    orphans.insert(component, now);
                }
                continue;
            }
            let epoch = named.epochs.get(&object);
            let is_ahead = epoch.is_some_and(|&is| members.fenced(component) > Some(is));
            if is_ahead && members.is_regarded(component) {
                self.disregard_orphan(component, object).await;
            }
        }
        // Who is named again, or gone, begins anew when it is seen without a record once more.
        assert_eq!(orphans.len(), nowhere, "of {count} components here none names");
    }

    /// Finds objects that no name leads to, which nobody can use or delete, says so, and has them
    /// deleted once they have been seen for [`NAMELESS_AFTER`]. Earlier releases left some when
    /// a volume was deleted while it was made.
    async fn remove_nameless(
        &self,
        objects: &[(Rc<ObjectRecord>, Revision)],
        seen: &mut BTreeMap<ObjectId, Nanos>,
    ) {
        let names = self.0.view.volumes();
        let named: BTreeSet<ObjectId> = names.values().map(|(volume, _)| volume.object).collect();
        let now = self.world().now();
        let before = std::mem::take(seen);
        for (record, _) in objects {
            if record.state == ObjectState::Deleting || named.contains(&record.id) {
                continue;
            }
            let since = before.get(&record.id).copied().unwrap_or(now);
            seen.insert(record.id, since);
            if now.since(since) < NAMELESS_AFTER {
                continue;
            }
            // Confirmed by a transaction: neither the object nor its name has moved.
            let name_key = key::volume(&record.name);
            let at = names.get(&name_key).map(|(_, modified)| *modified);
            let guard = Compare { key: name_key, modified: at.unwrap_or_default() };
            let as_seen = |r: &ObjectRecord| *r == **record;
            if self.start_delete(record.id, &[guard], as_seen).await.is_ok() {
                sometimes!("care.nameless_object_removed");
                let size = iec(record.size_bytes);
                let message = format!(
                    "an object of {size} that no volume's name led to any more (once of volume \
                     {}) is deleted",
                    record.name
                );
                let numbers = vec![("size_bytes", record.size_bytes)];
                let about = About { numbers, ..About::object(record.id) };
                self.note(Severity::Warning, "object-without-a-name", about, message);
            }
        }
    }

    /// Removes a component that no record has named for long. Not one that has promised more than
    /// its volume has reached: if the directory was put back to an older state (row 68 of
    /// `docs/faults.md`), that record knows nothing of the newest copies.
    async fn remove_orphan(&self, component: ComponentId, object: ObjectId) -> Orphan {
        let Some(epoch) = self.confirm_orphan(component, object).await else {
            return Orphan::Unknown;
        };
        let members = self.0.objects.members();
        let Some(fenced) = members.fenced(component) else { return Orphan::Unknown };
        let of = members.object_of(component);
        assert_eq!(of, Some(object), "{component} was confirmed to be left over of that object");
        if epoch > Epoch(0) && fenced > epoch {
            sometimes!("care.orphan_is_ahead_of_its_volume");
            let message = format!(
                "component {component} is no copy of its volume by the directory, and has promised \
                 epoch {}, while the volume is in epoch {}: it is kept, since it may be newer, if \
                 the directory was put back to an older state",
                fenced.0, epoch.0
            );
            let about = About { host: Some(self.0.config.host), ..About::object(object) };
            self.note(Severity::Warning, "copy-without-a-record", about, message);
            return Orphan::Kept;
        }
        sometimes!("care.orphan_removed");
        members.handle(self.0.config.host, Request::Delete { component, epoch: fenced }).await;
        Orphan::Removed
    }

    /// A component that no record names, on a disk that was put back or swapped, may have promised
    /// what nobody asked: an epoch that its object has not reached. Its owner would get no lease
    /// from this host for as long as that is there.
    async fn disregard_orphan(&self, component: ComponentId, object: ObjectId) {
        let members = self.0.objects.members();
        let fenced = members.fenced(component);
        if let Some(epoch) = self.confirm_orphan(component, object).await
            && fenced > Some(epoch)
        {
            members.disregard(component);
        }
    }

    /// Whether no record names a component: the epoch of its object then, 0 if there is none.
    /// Believed only after a transaction that writes has confirmed the record as it was read (a
    /// plain read may be stale).
    async fn confirm_orphan(&self, component: ComponentId, object: ObjectId) -> Option<Epoch> {
        let found = self.object_record(object).await.ok()?;
        // Peers may have deleted it meanwhile, and made it anew for another object.
        if self.0.objects.members().object_of(component).is_some_and(|of| of != object) {
            return None;
        }
        let names = |r: &ObjectRecord| r.members().any(|(_, m)| m.component == component);
        if found.as_ref().is_some_and(|(r, _)| names(r)) && !mutant!("care.old_view_is_believed") {
            return None;
        }
        let modified = found.as_ref().map_or(Revision(0), |&(_, revision)| revision);
        let reaped = ReapedRecord { version: RECORD_VERSION, component };
        let txn = Txn {
            compares: vec![Compare { key: key::object(object), modified }],
            changes: vec![KeyChange::Put(key::reaped(self.0.config.host), record::encode(&reaped))],
        };
        let done = self.world().directory().txn(txn).await;
        let is_confirmed = matches!(done, Ok(TxnReply::Done(_)));
        is_confirmed.then(|| found.map_or(Epoch(0), |(record, _)| record.epoch))
    }
}
