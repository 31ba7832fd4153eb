//! The locks of volumes that this host was told of, and those that it has or tries to get.
//!
//! Invariants: of two locks of one volume the newer is kept in mind; a lock that is dropped without
//! being given back counts as this host's no longer, so that it is removed from the directory as
//! left over.

use atoll_format::id::{HostId, ObjectId};
use atoll_format::record::{LockRecord, key};
use atoll_world::Nanos;
use atoll_world::directory::{Compare, Revision};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Locks of volumes, as far as this host knows of them.
#[derive(Default)]
pub(crate) struct LockTable {
    /// The locks that this host was told of, its own included.
    noted: RefCell<BTreeMap<ObjectId, NotedLock>>,
    /// Tokens of the locks that this host has, or tries to get.
    own: RefCell<BTreeSet<u64>>,
}

/// A lock that this host was told of, or has itself.
#[derive(Clone, Debug)]
pub(crate) struct NotedLock {
    pub record: LockRecord,
    pub revision: Revision,
}

impl LockTable {
    /// Keeps a lock in mind; its holder's clients are counted as everybody's are.
    pub(crate) fn note(&self, lock: &LockRecord, revision: Revision) {
        let mut noted = self.noted.borrow_mut();
        let newer = noted.get(&lock.object).is_some_and(|noted| noted.revision > revision);
        if !newer {
            noted.insert(lock.object, NotedLock { record: lock.clone(), revision });
        }
        let known = noted.get(&lock.object).map(|noted| noted.revision);
        assert!(known >= Some(revision), "the lock of {revision:?} is forgotten for {known:?}");
    }

    /// That lock is gone.
    pub(crate) fn forget(&self, object: ObjectId, token: u64) {
        let mut noted = self.noted.borrow_mut();
        if noted.get(&object).is_some_and(|noted| noted.record.token == token) {
            noted.remove(&object);
        }
    }

    /// The lock of a volume, if this host was told of one.
    pub(crate) fn noted(&self, object: ObjectId) -> Option<NotedLock> {
        self.noted.borrow().get(&object).cloned()
    }

    /// Whether all locks that this host was told of are like that.
    pub(crate) fn all(&self, is_so: impl Fn(&NotedLock) -> bool) -> bool {
        self.noted.borrow().values().all(is_so)
    }

    /// Forgets all locks but those.
    pub(crate) fn retain(&self, is_kept: impl Fn(&NotedLock) -> bool) {
        self.noted.borrow_mut().retain(|_, noted| is_kept(noted));
    }

    /// Whether this host has the lock with that token, or tries to get it.
    pub(crate) fn is_own(&self, token: u64) -> bool {
        self.own.borrow().contains(&token)
    }

    /// What must hold at every moment, on host `me`.
    pub(crate) fn audit(&self, me: HostId) {
        for (&object, noted) in self.noted.borrow().iter() {
            assert_eq!(noted.record.object, object, "host {me}: the lock of another volume");
            assert!(noted.revision > Revision(0), "host {me}: a lock of {object} never taken");
        }
    }
}

/// A lock that this host has, or tries to get. Dropped without being given back (whoever waited
/// for what it is held for has gone), it is removed from the directory a little later.
pub(crate) struct Lock {
    table: Rc<LockTable>,
    pub record: LockRecord,
    revision: Cell<Revision>,
}

impl Lock {
    /// A lock that this host begins to take.
    pub(crate) fn begin(table: Rc<LockTable>, record: LockRecord) -> Self {
        table.own.borrow_mut().insert(record.token);
        Self { table, record, revision: Cell::default() }
    }

    /// The lock is in the directory, and is this host's.
    pub(crate) fn taken(self, revision: Revision) -> Self {
        // Else who tidies up takes it for left over.
        let is_kept = self.table.is_own(self.record.token);
        assert!(is_kept, "the lock of {} is nobody's", self.record.name);
        self.revision.set(revision);
        self.table.note(&self.record, revision);
        self
    }

    /// The lock is gone from the directory.
    pub(crate) fn ended(&self) {
        self.table.own.borrow_mut().remove(&self.record.token);
        self.table.forget(self.record.object, self.record.token);
    }

    /// The transaction that took it.
    pub(crate) fn revision(&self) -> Revision {
        self.revision.get()
    }

    /// Holds as long as the lock does.
    pub(crate) fn guard(&self) -> Compare {
        // Revision 0 holds as long as there is no lock at all.
        assert!(self.revision() > Revision(0), "a lock of {} never taken", self.record.object);
        Compare { key: key::lock(self.record.object), modified: self.revision() }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.table.is_own(self.record.token) {
            self.ended();
        }
    }
}

/// An import into a volume: its lock, and who uses it.
pub(crate) struct Import {
    pub lock: Lock,
    pub clients: Cell<u32>,
    pub idle_since: Cell<Nanos>,
}

/// The name by which the holder of a lock opens the volume.
pub fn export_name(name: &str, token: u64) -> String {
    format!("{name}:{token:016x}")
}

/// The volume's name and the token, if a name of an export has one. Names of volumes have no `:`.
pub(crate) fn split_export(export: &str) -> Option<(&str, u64)> {
    let (name, token) = export.split_once(':')?;
    let digits = token.len() == 16 && token.bytes().all(|b| b.is_ascii_hexdigit());
    Some((name, u64::from_str_radix(token, 16).ok().filter(|_| digits)?))
}

#[cfg(test)]
mod tests {
    use super::{export_name, split_export};

    #[test]
    fn the_name_of_an_export_says_which_lock_is_meant() {
        assert_eq!(split_export(&export_name("vm1", 0xfeed)), Some(("vm1", 0xfeed)));
        let long = format!("vm1:{:017x}", 1);
        for other in ["vm1", "vm1:", "vm1:feed", "vm1:+00000000000feed", &long] {
            assert_eq!(split_export(other), None, "{other}");
        }
    }
}
