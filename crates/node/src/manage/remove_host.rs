//! Removing a host for good.
//!
//! One transaction decides: it writes `removed/HOST`, if the host's record is as it was when it was
//! looked at. From then on the host can neither publish itself nor be given a copy (both compare
//! that key), whoever sees it refuses the host, and a host that lives ends as soon as it sees it.
//! Owners record its copies as lost, and volumes without an owner are taken over for that. Once no
//! record names one that is not lost, the host's own record goes. If it turns out instead that a
//! volume has no other complete copy, the removal is taken back.
//!
//! Whoever sees a removal that was begun goes on with it: nothing depends on who began it.
//!
//! Invariant: what is believed of the objects' records is not older than the removal's beginning.

use crate::error::ManageError;
use crate::event_log::{About, Severity};
use crate::manage::host_removal::{
    Leaving, Progress, may_leave, progress, room_for_another, some_of,
};
use crate::node::Node;
use crate::transaction::assert_guarded;
use atoll_format::id::HostId;
use atoll_format::record::{
    self, HostRecord, MemberRecord, ObjectRecord, RECORD_VERSION, RemovedRecord, key,
};
use atoll_world::directory::{Compare, Directory, Entry, KeyChange, Revision, Txn, TxnReply};
use atoll_world::{Components, Nanos, World, sometimes};

/// How long whoever asks for a removal waits for its end.
const REMOVAL_WAIT: Nanos = Nanos::from_secs(20);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Nanos = Nanos::from_ms(500);

const _: () = assert!(LOOK_EVERY.0 < REMOVAL_WAIT.0);

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoveHost {
    /// The host does not answer and will not come back: what it holds is given up.
    pub lost: bool,
    /// Nothing is changed.
    pub dry_run: bool,
}

/// How far a removal has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostRemoval {
    /// Which host.
    pub host: HostId,
    /// What it is called.
    pub name: String,
    /// Volumes whose copy there is not recorded as lost yet; none: it is removed.
    pub waits_for: Vec<String>,
    /// Whether its own record is gone.
    pub is_done: bool,
}

/// What one look at a removal has found.
enum Step {
    Done,
    /// For these volumes.
    Waits(Vec<String>),
    /// It was taken back now, for these.
    TakenBack(Vec<String>),
    /// There is none, as of that revision.
    None(Revision),
}

/// What the directory has of a host that was removed.
struct Removed {
    host: HostId,
    record: Option<RemovedRecord>,
    modified: Revision,
}

impl<W: World, S: Components> Node<W, S> {
    /// Removes a host, by name or id, from the cluster for good. Asking again goes on with a
    /// removal that was begun, and finds one that has ended.
    ///
    /// # Errors
    /// [`ManageError::HostHolds`], [`ManageError::LastCopies`]: nothing was changed, or it was
    /// taken back. [`ManageError::Conflict`]: the host has just started again.
    pub async fn remove_host(
        &self,
        called: &str,
        remove: RemoveHost,
    ) -> Result<HostRemoval, ManageError> {
        let removed = self.removed_hosts().await?;
        let Some((host, modified)) = self.host_called(called).await? else {
            let is_it = |r: &&Removed| {
                let name = r.record.as_ref().map(|record| record.name.as_str());
                name == Some(called) || r.host.to_string() == called
            };
            let found = removed.iter().find(is_it);
            let gone = || ManageError::NotFound { what: "host", name: called.into() };
            let found = found.ok_or_else(gone)?;
            let name = found.record.as_ref().map(|record| record.name.clone());
            let name = name.unwrap_or_else(|| found.host.to_string());
            return Ok(HostRemoval {
                host: found.host,
                name,
                waits_for: Vec::new(),
                is_done: true,
            });
        };
        let (id, name) = (host.id, host.name.clone());
        if id == self.0.config.host {
            let what = "it is the host that is asked".into();
            let next = "ask another host (--endpoint)".into();
            return Err(ManageError::HostHolds { host: name, what, next });
        }
        let removal = |waits_for: Vec<String>, is_done: bool| {
            assert!(!is_done || waits_for.is_empty(), "{id} is removed, and {waits_for:?} wait");
            HostRemoval { host: id, name: name.clone(), waits_for, is_done }
        };
        let mut begun = removed.iter().find(|r| r.host == id).map(|r| r.modified);
        if begun.is_none() {
            let txn = self.removal(&host, modified, &removed, remove).await?;
            if !remove.dry_run {
                self.begin_removal(&host, txn, remove.lost).await?;
            }
        }
        if remove.dry_run {
            return Ok(removal(Vec::new(), false));
        }
        let until = self.world().now() + REMOVAL_WAIT;
        loop {
            let waits_for = match self.go_on_with_removal(id, &mut begun).await {
                Ok(Step::Done) => return Ok(removal(Vec::new(), true)),
                Ok(Step::TakenBack(volumes)) => {
                    return Err(ManageError::LastCopies { host: name, volumes: some_of(&volumes) });
                }
                Ok(Step::None(at)) if begun.is_some_and(|begun| begun < at) => {
                    let volumes = "some (see event host-removal-taken-back)".into();
                    return Err(ManageError::LastCopies { host: name, volumes });
                }
                Ok(Step::Waits(volumes)) => volumes,
                Ok(Step::None(_)) | Err(ManageError::Directory(_)) => Vec::new(),
                Err(error) => return Err(error),
            };
            if self.world().now() >= until {
                return Ok(removal(waits_for, false));
            }
            self.world().sleep(LOOK_EVERY).await;
        }
    }

    /// Goes on with every removal that was begun; by choice one host does.
    pub(crate) async fn go_on_with_removals(&self) {
        let begun: Vec<HostId> = {
            let (hosts, removed) = (self.0.hosts.borrow(), self.0.removed.borrow());
            let others = removed.keys().copied().filter(|&id| id != self.0.config.host);
            others.filter(|id| hosts.contains_key(id)).collect()
        };
        for host in begun {
            // What could not be read or done now is looked at again.
            let _ = self.go_on_with_removal(host, &mut None).await;
        }
    }

    /// The host of that name or id.
    async fn host_called(
        &self,
        called: &str,
    ) -> Result<Option<(HostRecord, Revision)>, ManageError> {
        let listing = self.world().directory().list(key::HOSTS).await;
        for Entry { key, value, modified } in listing.map_err(ManageError::Directory)?.entries {
            let host: HostRecord = record::decode(&key, &value).map_err(ManageError::Failed)?;
            if host.name == called || host.id.to_string() == called {
                return Ok(Some((host, modified)));
            }
        }
        Ok(None)
    }

    async fn removed_hosts(&self) -> Result<Vec<Removed>, ManageError> {
        let listing = self.world().directory().list(key::REMOVED).await;
        let entries = listing.map_err(ManageError::Directory)?.entries.into_iter();
        let read = |Entry { key, value, modified }: Entry| {
            let record = record::decode(&key, &value).ok();
            key::removed_host(&key).map(|host| Removed { host, record, modified })
        };
        Ok(entries.filter_map(read).collect())
    }

    /// The records of all objects, by name, and of which revision they are at least.
    async fn all_objects(&self) -> Result<(Vec<ObjectRecord>, Revision), ManageError> {
        let listing = self.world().directory().list(key::OBJECTS).await;
        let listing = listing.map_err(ManageError::Directory)?;
        let decode = |entry: &Entry| record::decode(&entry.key, &entry.value);
        let records: Result<Vec<ObjectRecord>, String> =
            listing.entries.iter().map(decode).collect();
        let mut records = records.map_err(ManageError::Failed)?;
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok((records, listing.revision))
    }

    /// The transaction that begins a removal, if there may be one.
    async fn removal(
        &self,
        host: &HostRecord,
        modified: Revision,
        removed: &[Removed],
        remove: RemoveHost,
    ) -> Result<Txn, ManageError> {
        // Whom they reach at this moment, not a while ago.
        self.refresh_statuses().await;
        let (records, _) = self.all_objects().await?;
        let reached_by = match self.is_alive(host.id) {
            true => Some(self.0.config.name.clone()),
            false => {
                let hosts = self.hosts().into_iter();
                let says = hosts.filter_map(|(h, _, status)| status.map(|status| (h, status)));
                let mut says = says.filter(|(h, _)| h.id != host.id);
                says.find(|(_, status)| status.reaches.contains(&host.id)).map(|(h, _)| h.name)
            }
        };
        let status = self.hosts().into_iter().find(|(h, ..)| h.id == host.id);
        let leaving = Leaving {
            host: host.id,
            name: &host.name,
            lost: remove.lost,
            reached_by,
            status: status.and_then(|(.., status)| status),
            repair_delay_s: self.0.objects.settings().repair_delay_s,
        };
        may_leave(&leaving, &records, |member| self.is_usable(member))?;
        let times: Vec<(HostId, u64)> = removed
            .iter()
            .map(|r| (r.host, r.record.as_ref().map_or(u64::MAX, |record| record.at_ms)))
            .collect();
        let at_ms = self.world().unix_ms();
        let forgotten = room_for_another(&times, at_ms)?;
        let record = RemovedRecord {
            version: RECORD_VERSION,
            name: host.name.clone(),
            incarnation: host.incarnation,
            lost: remove.lost,
            at_ms,
        };
        let own = key::removed(host.id);
        let mut compares = vec![
            // It has not started again since it was looked at.
            Compare { key: key::host(host.id), modified },
            Compare { key: own.clone(), modified: Revision(0) },
        ];
        let mut changes = vec![KeyChange::Put(own, record::encode(&record))];
        for old in removed.iter().filter(|r| forgotten.contains(&r.host)) {
            let key = key::removed(old.host);
            compares.push(Compare { key: key.clone(), modified: old.modified });
            changes.push(KeyChange::Delete(key));
        }
        assert!(!forgotten.contains(&host.id), "{} was removed, and is to be", host.id);
        assert_eq!(compares.len(), changes.len() + 1, "all that changes, and the host's record");
        Ok(Txn { compares, changes })
    }

    /// Whether a copy can be read now: its host answers, and its disk group is in use.
    fn is_usable(&self, member: &MemberRecord) -> bool {
        let hosts = self.0.hosts.borrow();
        let group = hosts.get(&member.host).and_then(|host| {
            host.groups.iter().find(|group| group.id == member.group && group.healthy)
        });
        group.is_some() && self.answers(member.host)
    }

    async fn begin_removal(
        &self,
        host: &HostRecord,
        txn: Txn,
        lost: bool,
    ) -> Result<(), ManageError> {
        assert_ne!(host.id, self.0.config.host, "a host removes itself");
        let own = key::removed(host.id);
        // Whoever else has begun it meanwhile wants the same.
        let is_begun =
            |found: &[(String, Option<Entry>)]| found.iter().any(|(k, e)| *k == own && e.is_some());
        if !self.settle(txn, is_begun).await? {
            return Err(ManageError::Conflict(host.name.clone()));
        }
        sometimes!("removal.begins");
        let how = if lost { "as lost, with what it holds" } else { "for good" };
        let message = format!("host {} is removed {how}: no host speaks with it", host.name);
        self.note(Severity::Warning, "host-removal", About::host(host.id), message);
        Ok(())
    }

    /// One look at a removal, and what follows from it. `begun`: when it was begun, once that was
    /// seen.
    async fn go_on_with_removal(
        &self,
        host: HostId,
        begun: &mut Option<Revision>,
    ) -> Result<Step, ManageError> {
        assert_ne!(host, self.0.config.host, "a host goes on with its own removal");
        let directory = self.world().directory();
        let (own, host_key) = (key::removed(host), key::host(host));
        let list = async |prefix: &str| {
            let listing = directory.list(prefix).await.map_err(ManageError::Directory)?;
            let entry = listing.entries.into_iter().find(|entry| entry.key == prefix);
            Ok::<_, ManageError>((entry, listing.revision))
        };
        let (removed, seen_at) = list(&own).await?;
        let Some(removed) = removed else { return Ok(Step::None(seen_at)) };
        *begun = Some(removed.modified);
        let (lives, seen_at) = list(&host_key).await?;
        let (records, objects_at) = self.all_objects().await?;
        // Of before it began, they prove nothing (R1 of docs/directory.md).
        if seen_at < removed.modified || objects_at < removed.modified {
            sometimes!("removal.sees_what_was_before");
            return Ok(Step::Waits(Vec::new()));
        }
        assert!(objects_at >= removed.modified, "what decides is of before the removal");
        let Some(lives) = lives else { return Ok(Step::Done) };
        let name = record::decode::<HostRecord>(&host_key, &lives.value);
        let name = name.map_or_else(|_| self.host_name(host), |record| record.name);
        let mut compares = vec![Compare { key: own.clone(), modified: removed.modified }];
        match progress(host, &records) {
            Progress::Waits(volumes) => Ok(Step::Waits(volumes)),
            Progress::LastCopies(volumes) => {
                assert!(!volumes.is_empty(), "{host} has the last copy of nothing");
                let changes = vec![KeyChange::Delete(own)];
                if !self.is_carried_out(Txn { compares, changes }).await? {
                    return Ok(Step::Waits(volumes));
                }
                sometimes!("removal.is_taken_back");
                let message = format!(
                    "the removal of host {name} was taken back: volume {} has no other complete \
                     copy",
                    some_of(&volumes)
                );
                let about = About::host(host);
                self.note(Severity::Error, "host-removal-taken-back", about, message);
                Ok(Step::TakenBack(volumes))
            }
            Progress::Free => {
                compares.push(Compare { key: host_key.clone(), modified: lives.modified });
                let mut changes = [host_key, key::levels(host), key::stopped(host)]
                    .map(KeyChange::Delete)
                    .to_vec();
                let reaped = key::reaped(host);
                if let Some(entry) = self.entry(&reaped).await? {
                    compares.push(Compare { key: reaped.clone(), modified: entry.modified });
                    changes.push(KeyChange::Delete(reaped));
                }
                if !self.is_carried_out(Txn { compares, changes }).await? {
                    return Ok(Step::Waits(Vec::new()));
                }
                sometimes!("removal.is_done");
                let message = format!("host {name} was removed");
                self.note(Severity::Info, "host-removed", About::host(host), message);
                Ok(Step::Done)
            }
        }
    }

    /// One attempt: somebody else may have been faster, which the next look shows.
    async fn is_carried_out(&self, txn: Txn) -> Result<bool, ManageError> {
        assert_guarded(&txn);
        let reply = self.world().directory().txn(txn).await.map_err(ManageError::Directory)?;
        Ok(matches!(reply, TxnReply::Done(_)))
    }
}
