//! The directory as this host last saw it: filled by a list, kept by a watch, proven by looks.
//!
//! It may be old, and after lost events it is wrong, as every read of the directory may be. So it
//! only says where to look: whoever decides does so by a transaction that compares revisions, or
//! lists again.
//!
//! Invariants: nothing that was told before is told again; `proven` <= `sure` <= `told`.

use atoll_format::id::{HostId, Incarnation};
use atoll_format::level::{Level, Levels};
use atoll_format::record::{
    self, HostRecord, LevelsRecord, LockRecord, ObjectRecord, RemovedRecord, TokensRecord,
    VolumeRecord, key,
};
use atoll_world::directory::{Changes, Entry, Listing, Revision, WatchEvent};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A record, with the transaction that wrote it.
pub(crate) type Dated<T> = (Arc<T>, Revision);

/// Hosts that were removed from the cluster, with what is known of that, if it can be read.
pub(crate) type Removed = BTreeMap<HostId, (Option<Arc<RemovedRecord>>, Revision)>;

/// What every shard of a host has to know of the directory.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    /// The hosts.
    pub hosts: Arc<Vec<Dated<HostRecord>>>,
    /// The locks.
    pub locks: Arc<Vec<Dated<LockRecord>>>,
    /// The hosts that were removed.
    pub removed: Arc<Removed>,
    /// The cluster's feature level.
    pub level: Level,
    /// Every change up to here is in it, unless a watch has told less than it said.
    pub revision: Revision,
}

#[derive(Clone)]
enum Record {
    Host(Arc<HostRecord>),
    Lock(Arc<LockRecord>),
    Removed(Arc<RemovedRecord>),
    Object(Rc<ObjectRecord>),
    Volume(VolumeRecord),
    Tokens(Rc<TokensRecord>),
    /// Of the cluster's record, which a newer release may have written.
    Level(Level),
    Levels(LevelsRecord),
    /// Nobody looks for it here, or it cannot be read.
    Other,
}

impl Record {
    fn read(key: &str, value: &[u8]) -> Self {
        fn read<T: for<'de> serde::Deserialize<'de>>(key: &str, value: &[u8]) -> Option<T> {
            record::decode(key, value).ok()
        }
        let found = match key {
            _ if key.starts_with(key::HOSTS) => read(key, value).map(Arc::new).map(Self::Host),
            _ if key.starts_with(key::LOCKS) => read(key, value).map(Arc::new).map(Self::Lock),
            _ if key.starts_with(key::REMOVED) => read(key, value).map(Arc::new).map(Self::Removed),
            _ if key.starts_with(key::OBJECTS) => read(key, value).map(Rc::new).map(Self::Object),
            _ if key.starts_with(key::VOLUMES) => read(key, value).map(Self::Volume),
            _ if key.starts_with(key::LEVELS) => read(key, value).map(Self::Levels),
            key::CLUSTER => record::cluster_level(value).map(Self::Level),
            key::TOKENS => read(key, value).map(Rc::new).map(Self::Tokens),
            _ => None,
        };
        found.unwrap_or(Self::Other)
    }
}

/// What a look at the directory says of this view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Doubt {
    /// It is as the directory is.
    None,
    /// Something may have been told that did not come.
    Changes,
    /// The directory is older than this view, or another one.
    All,
}

/// See the module.
#[derive(Default)]
pub(crate) struct DirectoryView {
    entries: RefCell<BTreeMap<String, (Record, Revision)>>,
    /// Up to here it was compared with the directory.
    proven: Cell<Revision>,
    /// Up to here each revision was told.
    sure: Cell<Revision>,
    /// The last one that was told.
    told: Cell<Revision>,
    /// Whether the directory answered when it was last asked.
    answers: Cell<bool>,
}

impl DirectoryView {
    /// The directory is this.
    pub(crate) fn replace(&self, listing: &Listing) {
        let read = |e: &Entry| (e.key.clone(), (Record::read(&e.key, &e.value), e.modified));
        *self.entries.borrow_mut() = listing.entries.iter().map(read).collect();
        self.prove(listing.revision);
        self.answers.set(true);
    }

    fn prove(&self, revision: Revision) {
        self.proven.set(revision);
        self.sure.set(revision);
        self.told.set(revision);
    }

    /// Takes over what a watch tells; whether hosts or locks are among it.
    pub(crate) fn apply(&self, events: &[WatchEvent]) -> bool {
        let (before, mut is_shared) = (self.told.get(), false);
        let mut entries = self.entries.borrow_mut();
        // A batch holds whole revisions, but watches of old releases tell some of them again.
        for event in events.iter().filter(|event| event.revision > before) {
            // A list may show more than its revision.
            let is_news = entries.get(&event.key).is_none_or(|(_, at)| *at < event.revision);
            match &event.value {
                Some(value) if is_news => {
                    let record = Record::read(&event.key, value);
                    entries.insert(event.key.clone(), (record, event.revision));
                }
                None if is_news => _ = entries.remove(&event.key),
                _ => {}
            }
            is_shared |= is_shared_key(&event.key);
            if event.revision.0 == self.sure.get().0 + 1 {
                self.sure.set(event.revision);
            }
            self.told.set(self.told.get().max(event.revision));
        }
        assert!(self.told.get() >= before, "what was told is told no more");
        is_shared
    }

    /// What to make of a directory that was at `revision` some time ago. `is_proof_due`: of one
    /// that changes, all that was told is doubted.
    pub(crate) fn doubt(&self, revision: Revision, is_proof_due: bool) -> Doubt {
        if revision < self.proven.get() {
            return Doubt::All;
        }
        let is_told = revision <= self.sure.get() && !is_proof_due;
        if is_told || revision == self.proven.get() { Doubt::None } else { Doubt::Changes }
    }

    /// The revision from which [`Directory::changes`](atoll_world::Directory::changes) proves it.
    pub(crate) fn proven(&self) -> Revision {
        self.proven.get()
    }

    /// Takes over what has changed since [`proven`](Self::proven): whether hosts or locks are among
    /// it; none if that does not lead to what the directory is, so that it has to be listed.
    pub(crate) fn settle(&self, changes: &Changes) -> Option<bool> {
        if changes.revision < self.told.get() {
            return None;
        }
        let mut entries = self.entries.borrow_mut();
        let new = changes.entries.iter().filter(|entry| !entries.contains_key(&entry.key)).count();
        // What changed is there, and what did not was there before: more are those that went.
        if (entries.len() + new) as u64 != changes.keys {
            return None;
        }
        let mut is_shared = false;
        for entry in &changes.entries {
            if entries.get(&entry.key).is_none_or(|(_, modified)| *modified != entry.modified) {
                let record = Record::read(&entry.key, &entry.value);
                entries.insert(entry.key.clone(), (record, entry.modified));
                is_shared |= is_shared_key(&entry.key);
            }
        }
        assert!(changes.revision >= self.proven.get(), "a proof of the past");
        self.prove(changes.revision);
        Some(is_shared)
    }

    /// It gives no answer.
    pub(crate) fn is_silent(&self) {
        self.answers.set(false);
    }

    /// Whether the directory answered when it was last asked.
    pub(crate) fn answers(&self) -> bool {
        self.answers.get()
    }

    /// Every change up to here is in it.
    pub(crate) fn revision(&self) -> Revision {
        self.sure.get()
    }

    fn all<T>(&self, prefix: &str, take: impl Fn(&str, &Record, Revision) -> Option<T>) -> Vec<T> {
        let entries = self.entries.borrow();
        let below = entries.range(prefix.to_owned()..).take_while(|(k, _)| k.starts_with(prefix));
        below.filter_map(|(key, (record, modified))| take(key, record, *modified)).collect()
    }

    /// The records of all objects; none while the directory does not answer.
    pub(crate) fn objects(&self) -> Option<Vec<(Rc<ObjectRecord>, Revision)>> {
        let all = || {
            self.all(key::OBJECTS, |_, record, modified| match record {
                Record::Object(object) => Some((object.clone(), modified)),
                _ => None,
            })
        };
        self.answers().then(all)
    }

    /// All names of volumes: by their keys.
    pub(crate) fn volumes(&self) -> BTreeMap<String, (VolumeRecord, Revision)> {
        let all = self.all(key::VOLUMES, |key, record, modified| match record {
            Record::Volume(volume) => Some((key.to_owned(), (volume.clone(), modified))),
            _ => None,
        });
        all.into_iter().collect()
    }

    /// Who may ask over a network: none while no directory has been read, or what it holds cannot
    /// be.
    pub(crate) fn tokens(&self) -> Option<Rc<TokensRecord>> {
        let entries = self.entries.borrow();
        match entries.get(key::TOKENS) {
            Some((Record::Tokens(tokens), _)) => Some(tokens.clone()),
            _ => None,
        }
    }

    /// The cluster's feature level: the first, if nothing that can be read says another.
    fn level(&self) -> Level {
        let entries = self.entries.borrow();
        match entries.get(key::CLUSTER) {
            Some((Record::Level(level), _)) => *level,
            _ => Level::FIRST,
        }
    }

    /// The feature levels that the release knows which runs that life of a host.
    pub(crate) fn levels(&self, host: HostId, incarnation: Incarnation) -> Levels {
        let record = match self.entries.borrow().get(&key::levels(host)) {
            Some((Record::Levels(record), _)) => Some(*record),
            _ => None,
        };
        LevelsRecord::of(record, incarnation)
    }

    /// What the other shards have to know.
    pub(crate) fn seen(&self) -> Seen {
        let hosts = self.all(key::HOSTS, |_, record, modified| match record {
            Record::Host(host) => Some((host.clone(), modified)),
            _ => None,
        });
        let locks = self.all(key::LOCKS, |_, record, modified| match record {
            Record::Lock(lock) => Some((lock.clone(), modified)),
            _ => None,
        });
        // What a newer release has written is said by the key.
        let removed = self.all(key::REMOVED, |key, record, modified| {
            let record = match record {
                Record::Removed(record) => Some(record.clone()),
                _ => None,
            };
            key::removed_host(key).map(|host| (host, (record, modified)))
        });
        Seen {
            hosts: Arc::new(hosts),
            locks: Arc::new(locks),
            removed: Arc::new(removed.into_iter().collect()),
            level: self.level(),
            revision: self.revision(),
        }
    }

    /// What must hold at every moment.
    pub(crate) fn audit(&self) {
        let (proven, sure, told) = (self.proven.get(), self.sure.get(), self.told.get());
        assert!(proven <= sure && sure <= told, "{proven:?} {sure:?} {told:?}");
    }
}

fn is_shared_key(key: &str) -> bool {
    key == key::CLUSTER
        || [key::HOSTS, key::LOCKS, key::REMOVED].iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::{DirectoryView, Doubt};
    use atoll_format::id::HostId;
    use atoll_world::directory::{Changes, Entry, Listing, Revision, WatchEvent};

    fn entry(key: &str, revision: u64) -> Entry {
        Entry { key: key.into(), value: b"{}".to_vec(), modified: Revision(revision) }
    }

    fn put(key: &str, revision: u64) -> WatchEvent {
        WatchEvent { revision: Revision(revision), key: key.into(), value: Some(b"{}".to_vec()) }
    }

    fn delete(key: &str, revision: u64) -> WatchEvent {
        WatchEvent { value: None, ..put(key, revision) }
    }

    /// `a` and `b`, as of revision 10.
    fn view() -> DirectoryView {
        let view = DirectoryView::default();
        let entries = vec![entry("a", 3), entry("b", 7)];
        view.replace(&Listing { entries, revision: Revision(10) });
        view
    }

    #[test]
    fn a_list_that_shows_more_than_its_revision_is_not_taken_back() {
        let view = DirectoryView::default();
        view.replace(&Listing { entries: vec![entry("a", 12)], revision: Revision(10) });
        view.apply(&[put("a", 11)]);
        assert_eq!(shown(&view), of(&[("a", 12)]));
        view.apply(&[put("a", 12), delete("a", 13)]);
        assert_eq!(shown(&view), []);
    }

    fn shown(view: &DirectoryView) -> Vec<(String, u64)> {
        view.audit();
        let entries = view.entries.borrow();
        entries.iter().map(|(key, (_, modified))| (key.clone(), modified.0)).collect()
    }

    fn of(all: &[(&str, u64)]) -> Vec<(String, u64)> {
        all.iter().map(|&(key, revision)| (key.to_owned(), revision)).collect()
    }

    #[test]
    fn who_was_told_each_revision_has_no_doubt_until_a_proof_is_due() {
        let view = view();
        assert_eq!(view.doubt(Revision(10), true), Doubt::None, "nothing has happened since");
        view.apply(&[put("c", 11), delete("a", 12), put("d", 12)]);
        assert_eq!(shown(&view), of(&[("b", 7), ("c", 11), ("d", 12)]));
        assert_eq!(view.doubt(Revision(12), false), Doubt::None);
        assert_eq!(view.doubt(Revision(12), true), Doubt::Changes);
        assert_eq!(view.doubt(Revision(13), false), Doubt::Changes, "13 was not told");
        assert_eq!(view.doubt(Revision(9), false), Doubt::All, "it went back");
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let view = view();
        view.apply(&[put("c", 11), delete("c", 12)]);
        view.apply(&[put("c", 11), delete("b", 6), put("e", 13)]);
        assert_eq!(shown(&view), of(&[("a", 3), ("b", 7), ("e", 13)]));
    }

    #[test]
    fn a_lost_revision_is_doubted_and_the_changes_bring_it() {
        let view = view();
        view.apply(&[put("c", 12)]);
        assert_eq!(
            (view.revision(), view.doubt(Revision(12), false)),
            (Revision(10), Doubt::Changes)
        );
        let entries = vec![entry("a", 11), entry("c", 12)];
        let changes = Changes { entries, keys: 3, revision: Revision(12) };
        assert_eq!(view.settle(&changes), Some(false));
        assert_eq!(shown(&view), of(&[("a", 11), ("b", 7), ("c", 12)]));
        assert_eq!(view.doubt(Revision(12), true), Doubt::None);
        view.apply(&[put("hosts/1", 13)]);
        assert_eq!(view.revision(), Revision(13), "told without a gap from there on");
    }

    #[test]
    fn a_lost_delete_shows_in_the_number_of_keys() {
        let view = view();
        // 11 was a delete of `b`.
        view.apply(&[put("c", 12)]);
        let changes = Changes { entries: vec![entry("c", 12)], keys: 2, revision: Revision(12) };
        assert_eq!(view.settle(&changes), None, "it has to be listed");
        let changes = Changes { entries: vec![entry("d", 13)], ..changes };
        let changes = Changes { keys: 3, revision: Revision(13), ..changes };
        assert_eq!(view.settle(&changes), None);
        assert_eq!(shown(&view), of(&[("a", 3), ("b", 7), ("c", 12)]), "until then as it was");
    }

    #[test]
    fn changes_that_are_older_than_what_was_told_prove_nothing() {
        let view = view();
        view.apply(&[put("c", 11)]);
        let changes = Changes { entries: vec![], keys: 2, revision: Revision(10) };
        assert_eq!(view.settle(&changes), None);
        assert_eq!(shown(&view), of(&[("a", 3), ("b", 7), ("c", 11)]));
    }

    #[test]
    fn hosts_and_locks_are_shared_with_other_shards() {
        let view = view();
        assert!(!view.apply(&[put("objects/1", 11)]));
        assert!(view.apply(&[put("hosts/1", 12)]));
        assert!(view.apply(&[delete("locks/1", 13)]));
        assert!(view.apply(&[put("removed/000000000000000a", 14), put("removed/x", 14)]));
        let removed = view.seen().removed;
        assert_eq!(removed.keys().copied().collect::<Vec<_>>(), [HostId(10)], "read or not");
    }
}
