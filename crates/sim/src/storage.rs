//! What a simulated host keeps its components on.

use crate::cluster::{Storage, group_id};
use crate::disk::SimDisk;
use crate::executor::Executor;
use crate::ideal::IdealStore;
use crate::rng::Rng;
use crate::world::SimWorld;
use atoll_format::record::{GroupRecord, GroupShape};
use std::rc::Rc;

/// The ideal store of each host, which no disk fault reaches.
#[derive(Clone)]
pub struct IdealStorage(Rc<Vec<IdealStore>>);

impl IdealStorage {
    /// One empty store a host.
    pub fn new(executor: &Executor, hosts: u16, seed: u64) -> Self {
        let store = |h: u16| {
            let rng = Rng::named(seed, &format!("ideal store {h}"));
            IdealStore::new(executor, group_id(h), 1 << 34, rng)
        };
        Self(Rc::new((0..hosts).map(store).collect()))
    }
}

impl Storage for IdealStorage {
    type Store = IdealStore;

    async fn open(
        &self,
        host: u16,
        _disks: Vec<SimDisk>,
        _world: SimWorld,
    ) -> Result<Vec<(IdealStore, GroupRecord)>, String> {
        let store = self.0[usize::from(host)].clone();
        store.reopen();
        let record = GroupRecord {
            id: group_id(host),
            shape: GroupShape::SingleTier,
            disks: vec![],
            capacity_bytes: 1 << 34,
            healthy: true,
            failure: String::new(),
        };
        Ok(vec![(store, record)])
    }

    async fn check(&self, _store: &IdealStore) -> Result<(), String> {
        Ok(())
    }
}
