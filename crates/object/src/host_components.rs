//! Which shard of a host has which component: what the shards of one process tell each other.
//!
//! A shard that is asked for a component which it does not have must not take it for lost: another
//! shard of its host may have it, or may not have opened its disks yet. Looked at only then, and
//! changed when a component comes or goes: never on the way of an operation.

use atoll_format::id::ComponentId;
use atoll_world::StoreError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

/// The components of one host, over all its shards. Clones are the same.
#[derive(Clone, Debug)]
pub struct HostComponents(Arc<Mutex<Table>>);

#[derive(Debug)]
struct Table {
    shards: u8,
    /// Shards that have told of all that they have.
    opened: BTreeSet<u8>,
    /// Shards with a disk that cannot be used now.
    lack_disks: BTreeSet<u8>,
    components: BTreeMap<ComponentId, u8>,
}

impl HostComponents {
    /// Of a process with so many shards, none of which has opened its disks.
    ///
    /// # Panics
    /// `shards` is 0.
    pub fn of(shards: u8) -> Self {
        assert!(shards > 0, "every host has shard 0");
        Self(Arc::new(Mutex::new(Table {
            shards,
            opened: BTreeSet::new(),
            lack_disks: BTreeSet::new(),
            components: BTreeMap::new(),
        })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("nothing panics while it holds the lock")
    }

    /// That shard has told of all that it has.
    pub fn opened(&self, shard: u8) {
        let mut table = self.table();
        assert!(shard < table.shards, "shard {shard} of {}", table.shards);
        table.opened.insert(shard);
    }

    /// Whether a disk of that shard cannot be used now.
    pub fn set_lacks_disks(&self, shard: u8, lacks: bool) {
        let mut table = self.table();
        match lacks {
            true => table.lack_disks.insert(shard),
            false => table.lack_disks.remove(&shard),
        };
    }

    /// That shard has a component.
    pub fn enter(&self, shard: u8, id: ComponentId) {
        self.table().components.insert(id, shard);
    }

    /// That shard has a component no more.
    pub fn leave(&self, shard: u8, id: ComponentId) {
        let mut table = self.table();
        if table.components.get(&id) == Some(&shard) {
            table.components.remove(&id);
        }
    }

    /// What a shard answers that does not have a component: which other shard does, or may; or
    /// that it is lost.
    pub fn instead(&self, shard: u8, id: ComponentId) -> StoreError {
        let table = self.table();
        let elsewhere = table.components.get(&id).filter(|&&has| has != shard);
        if let Some(&shard) = elsewhere {
            return StoreError::OnShard { id, shard: shard.into() };
        }
        if table.opened.len() < usize::from(table.shards) {
            return StoreError::Starting(id);
        }
        match table.lack_disks.is_empty() {
            true => StoreError::NoComponent(id),
            false => StoreError::NotOpen(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ComponentId, HostComponents, StoreError};

    #[test]
    fn only_what_no_shard_can_have_is_not_here() {
        let host = HostComponents::of(2);
        let (a, b) = (ComponentId(1), ComponentId(2));
        host.enter(0, a);
        host.opened(0);
        assert_eq!(host.instead(0, b), StoreError::Starting(b));
        assert_eq!(host.instead(1, a), StoreError::OnShard { id: a, shard: 0 });
        host.opened(1);
        assert_eq!(host.instead(0, b), StoreError::NoComponent(b));
        assert_eq!(host.instead(1, b), StoreError::NoComponent(b));
        host.set_lacks_disks(1, true);
        assert_eq!(host.instead(0, b), StoreError::NotOpen(b));
        host.set_lacks_disks(1, false);
        host.enter(1, b);
        host.leave(0, b);
        let there = StoreError::OnShard { id: b, shard: 1 };
        assert_eq!(host.instead(0, b), there, "only who has it can lose it");
        host.leave(1, b);
        assert_eq!(host.instead(0, b), StoreError::NoComponent(b));
    }
}
