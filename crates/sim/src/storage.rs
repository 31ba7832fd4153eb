//! What a simulated host keeps its components on.

use crate::cluster::{CLUSTER, Home, Storage, group_id, host_id};
use crate::disk::SimDisk;
use crate::executor::Executor;
use crate::reference_store::ReferenceStore;
use crate::rng::Rng;
use crate::world::SimWorld;
use atoll_format::id::GroupId;
use atoll_format::record::{DiskRecord, GroupRecord, GroupShape};
use atoll_format::superblock::Shape;
use atoll_store::{FormatSpec, OpenError, OpenSpec, Store, check, format_group};
use atoll_world::{Components, Disk, Nanos, World};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// The reference store of each host, which no disk fault reaches.
#[derive(Clone)]
pub struct ReferenceStorage(Rc<Vec<ReferenceStore>>);

impl ReferenceStorage {
    /// One empty store a host.
    pub fn new(executor: &Executor, hosts: u16, seed: u64) -> Self {
        let store = |h: u16| {
            let rng = Rng::named(seed, &format!("reference store {h}"));
            ReferenceStore::new(executor, group_id((h, 0)), 1 << 34, rng)
        };
        Self(Rc::new((0..hosts).map(store).collect()))
    }
}

impl Storage for ReferenceStorage {
    type Store = ReferenceStore;

    async fn open(
        &self,
        host: u16,
        group: u16,
        _disks: Vec<SimDisk>,
        _world: SimWorld,
    ) -> Result<(ReferenceStore, GroupRecord), String> {
        assert_eq!(group, 0, "a host has one reference store");
        let store = self.0[usize::from(host)].clone();
        store.reopen();
        let record = GroupRecord {
            id: group_id((host, group)),
            shape: GroupShape::SingleTier,
            disks: vec![],
            capacity_bytes: 1 << 34,
            healthy: true,
            failure: String::new(),
            shard: 0,
        };
        Ok((store, record))
    }

    fn replaced(&self) -> Vec<u16> {
        Vec::new()
    }

    fn failed(&self, _store: &ReferenceStore) -> Option<String> {
        None
    }

    fn audit(&self, _store: &ReferenceStore) -> Result<(), String> {
        Ok(())
    }

    async fn check(&self, _disks: Vec<SimDisk>, _world: SimWorld) -> Result<u64, String> {
        Ok(0)
    }
}

/// The real store on the host's modelled disks.
#[derive(Clone)]
pub struct RealStorage {
    log_bytes: u64,
    spec: OpenSpec,
    groups: Rc<RefCell<BTreeMap<Home, GroupState>>>,
}

#[derive(Clone, Copy, Default)]
struct GroupState {
    /// With how many disks; 0: not at all.
    formatted: usize,
    /// How often in a row it could not be opened.
    refused: u32,
    /// How often its disks were replaced by empty ones.
    replaced: u64,
}

/// Attempts to open a group before its disks are given up. One counts once more for each second
/// that it takes.
const ATTEMPTS_MAX: u32 = 30;

impl RealStorage {
    /// Disk groups with that much log, formatted when their hosts start for the first time.
    pub fn new(log_bytes: u64) -> Self {
        let spec = OpenSpec { cluster: Some(CLUSTER), ..OpenSpec::default() };
        Self { log_bytes, spec, groups: Rc::default() }
    }

    /// With blocks that move home early: when the log is so full (in 1/256), and when nothing was
    /// written for so long.
    #[must_use]
    pub fn destaging(mut self, destage_at: u8, idle: Nanos) -> Self {
        self.spec.destage_at = Some(destage_at);
        self.spec.idle_destage = Some(idle);
        self
    }

    /// With a checkpoint as soon as the journal holds more than so many bytes.
    #[must_use]
    pub fn checkpointing(mut self, at: u64) -> Self {
        self.spec.checkpoint_at = Some(at);
        self
    }
}

impl Storage for RealStorage {
    type Store = Store<SimWorld>;

    async fn open(
        &self,
        host: u16,
        group: u16,
        disks: Vec<SimDisk>,
        world: SimWorld,
    ) -> Result<(Store<SimWorld>, GroupRecord), String> {
        let home = (host, group);
        let (shape, published) = match disks.len() {
            0 => return Err("there is no disk".into()),
            1 => (Shape::SingleTier, GroupShape::SingleTier),
            _ => (Shape::AllFlash, GroupShape::AllFlash),
        };
        let mut state = self.groups.borrow().get(&home).copied().unwrap_or_default();
        let is_elsewhere = |disk: &SimDisk| disk.is_gone() || disk.is_misplaced();
        let some_elsewhere = disks.iter().any(is_elsewhere) || disks.len() < state.formatted;
        if state.refused >= ATTEMPTS_MAX && !some_elsewhere {
            // What an administrator does: other hosts have everything.
            disks.iter().for_each(SimDisk::wipe);
            let replaced = state.replaced + 1;
            state = GroupState { formatted: 0, refused: 0, replaced };
            self.groups.borrow_mut().insert(home, state);
        }
        let group = GroupId(group_id(home).0 + 0x100 * state.replaced);
        if state.formatted == 0 {
            let spec = FormatSpec {
                cluster: CLUSTER,
                host: host_id(host),
                group,
                shape,
                log_bytes: Some(self.log_bytes),
            };
            if let Err(why) = format_group(&world, &disks, spec).await {
                // An attempt that did not come to its end may have left a label: `atoll disk wipe`.
                if !disks.iter().any(is_elsewhere) {
                    disks.iter().for_each(SimDisk::wipe);
                }
                return Err(why.to_string());
            }
            state.formatted = disks.len();
            self.groups.borrow_mut().insert(home, state);
        }
        let (clock, began) = (world.clone(), world.now());
        let opened = Store::open(world, disks.clone(), self.spec.clone()).await;
        let took = clock.now().since(began).as_secs_f64() as u32;
        // A device that hangs or is away is waited for.
        let hangs = opened.as_ref().is_err_and(|why| match why {
            OpenError::Silent { .. } => true,
            why => why.to_string().contains("did not return"),
        });
        // One that went away in the meantime, and may be back, says nothing of what is on it.
        let away = some_elsewhere || hangs || disks.iter().any(SimDisk::is_lost);
        state.refused = match &opened {
            Ok(_) => 0,
            Err(_) => state.refused + u32::from(!away) * (1 + took),
        };
        self.groups.borrow_mut().insert(home, state);
        let store = opened.map_err(|why| why.to_string())?;
        disks.iter().for_each(SimDisk::look_at_label);
        let record = |label: &atoll_format::superblock::Superblock, disk: &SimDisk| DiskRecord {
            id: label.disk,
            path: disk.name(),
            size_bytes: disk.len_bytes(),
        };
        let record = GroupRecord {
            id: group,
            shape: published,
            disks: store.labels().iter().zip(&disks).map(|(l, d)| record(l, d)).collect(),
            capacity_bytes: store.space().capacity_bytes,
            healthy: true,
            failure: String::new(),
            shard: 0,
        };
        Ok((store, record))
    }

    fn replaced(&self) -> Vec<u16> {
        let groups = self.groups.borrow();
        groups.iter().filter(|(_, g)| g.replaced > 0).map(|((host, _), _)| *host).collect()
    }

    fn failed(&self, store: &Store<SimWorld>) -> Option<String> {
        store.failed()
    }

    fn audit(&self, store: &Store<SimWorld>) -> Result<(), String> {
        store.audit()
    }

    async fn check(&self, disks: Vec<SimDisk>, world: SimWorld) -> Result<u64, String> {
        let report = check(&world, disks).await.map_err(|e| e.to_string())?;
        match report.faults.first() {
            None => Ok(report.blocks_bad),
            Some(_) => Err(report.faults.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ATTEMPTS_MAX, RealStorage, Storage};
    use crate::disk::{DiskProfile, SimDisk};
    use crate::machines::{Hardware, Machines};
    use crate::net::NetProfile;
    use crate::trace::Trace;
    use atoll_world::{Nanos, World};

    /// Simulator seed 1795893492951: the disk had hung for most of an attempt, had gone away, and
    /// was back by its end. Its harness wiped it.
    #[test]
    fn a_disk_that_was_away_for_a_moment_is_not_given_up() {
        let hardware = Hardware {
            hosts: 1,
            disks: 1,
            cores: 1,
            disk_bytes: 1 << 30,
            disk: DiskProfile::NVME,
            net: NetProfile::GBIT_10,
        };
        let machines = Machines::new(1, hardware, Trace::of(&[]));
        let (storage, world) = (RealStorage::new(64 << 20), machines.harness_world(0));
        let disk = machines.disks(0)[0].clone();
        let opened = |disk: &SimDisk| vec![disk.opened()];
        let test = async move {
            let (first, group) =
                storage.open(0, 0, opened(&disk), world.clone()).await.expect("a new group");
            drop(first);
            for _ in 0..ATTEMPTS_MAX {
                disk.set_hung(true);
                let (back, clock) = (disk.clone(), world.clone());
                world.spawn(async move {
                    clock.sleep(Nanos::from_secs(2)).await;
                    back.set_gone(true);
                    back.set_gone(false);
                    back.set_hung(false);
                });
                let away = storage.open(0, 0, opened(&disk), world.clone()).await;
                let why = away.err().expect("its disk went away");
                assert!(why.contains("No such device"), "{why}");
            }
            let (_, again) = storage.open(0, 0, opened(&disk), world).await.expect("the same");
            assert_eq!((again, disk.wipes()), (group, 0));
        };
        machines.executor().block_on(Nanos::from_secs(600), test).expect("it ends");
        machines.executor().shutdown();
    }
}
