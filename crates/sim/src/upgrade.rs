//! Hosts of two releases in one run: each life of a host has the newer one or the older one, an
//! administrator raises the cluster's feature level whenever that is possible, and in the end all
//! have the newer one.
//!
//! The older release is this one, told that it knows fewer levels.

use crate::cluster::{CLUSTER, Cluster, Storage};
use crate::executor::LifeId;
use crate::rng::Rng;
use crate::world::SimWorld;
use atoll_format::level::{Level, Levels};
use atoll_format::record::{self, HostRecord, LevelsRecord, key};
use atoll_node::{Ended, JoinError, ManageError, Node, find_or_found};
use atoll_world::directory::Entry;
use atoll_world::{Nanos, World, sometimes};

/// How often a program that waits for the directory asks it again.
const RETRY_EVERY: Nanos = Nanos::from_ms(500);
/// Once all hosts have the newer release, and nothing goes wrong, the level is raised within this.
const RAISED_WITHIN: Nanos = Nanos::from_secs(120);

impl<T: Storage> Cluster<T> {
    /// The level of the cluster when a run begins.
    pub(crate) fn first_level(&self) -> Level {
        if self.spec().upgraded { Level::FIRST } else { Levels::KNOWN.newest }
    }

    /// What the release knows with which a host begins a life, once that may go on: the older one
    /// asks the directory first, as the program does.
    pub(crate) async fn release(&self, host: u16, world: &SimWorld) -> Levels {
        if !self.spec().upgraded {
            return Levels::KNOWN;
        }
        let releases = self.releases();
        releases.old.borrow_mut().remove(&host);
        let is_new = self.machines().has_healed() || releases.refused.borrow().contains(&host);
        if is_new || world.random().is_multiple_of(2) {
            return Levels::KNOWN;
        }
        loop {
            match find_or_found(world, Some(CLUSTER), Levels::BEFORE).await {
                Ok(_) => break,
                Err(JoinError::Level { .. }) => {
                    sometimes!("level.older_release_does_not_start");
                    releases.refused.borrow_mut().insert(host);
                    return Levels::KNOWN;
                }
                Err(_) => world.sleep(RETRY_EVERY).await,
            }
        }
        releases.old.borrow_mut().insert(host);
        Levels::BEFORE
    }

    /// Has a host started with the newer release when its present life has ended because it does
    /// not know the level: it has read an older state of the directory before.
    pub(crate) async fn watch_release(self, host: u16, node: Node<SimWorld, T::Store>) {
        if !matches!(node.ended().await, Ended::Level(_)) {
            return;
        }
        self.releases().refused.borrow_mut().insert(host);
        let life = self.machines().life(host);
        let machines = self.machines().clone();
        self.machines().executor().spawn(LifeId::HARNESS, async move {
            if machines.life(host) == life {
                machines.kill(host, false);
                machines.start(host);
            }
        });
    }

    /// Raises the level, or tries to, until everything heals.
    pub(crate) async fn raise_levels(self, mut rng: Rng) {
        while !self.machines().has_healed() {
            self.wait(rng.span(Nanos::from_ms(5), Nanos::from_secs(4))).await;
            let host = rng.below(u64::from(self.machines().hosts())) as u16;
            let _ = self.raise_level(host).await;
        }
    }

    async fn raise_level(&self, host: u16) -> Option<Level> {
        let (node, life) = self.program(host)?;
        let raised = self.patiently(life, async move { node.raise_level(false).await }).await?;
        self.say(Some(host), format!("raise level: {raised:?}"));
        match raised {
            Ok(upgrade) => Some(upgrade.next),
            Err(ManageError::NotUpgraded { .. }) => {
                sometimes!("level.is_held_back");
                None
            }
            Err(_) => None,
        }
    }

    /// Installs the newer release everywhere, which makes the newest level possible.
    pub(crate) async fn complete_upgrade(&self) -> Result<(), String> {
        let (newest, limit) =
            (Levels::KNOWN.newest, self.machines().executor().now() + RAISED_WITHIN);
        for host in (0..self.machines().hosts()).cycle() {
            // One that was starting is among them later.
            let old = std::mem::take(&mut *self.releases().old.borrow_mut());
            old.into_iter().for_each(|host| self.restart(host));
            let is_known = self.nodes().all(|node| node.is_some_and(|node| node.level() == newest));
            if self.raise_level(host).await == Some(newest) && is_known {
                return Ok(());
            }
            if self.machines().executor().now() > limit {
                let levels: Vec<_> =
                    self.nodes().map(|node| node.map(|node| node.level())).collect();
                return Err(format!("level {newest} is not reached: hosts know of {levels:?}"));
            }
            self.wait(Nanos::from_ms(200)).await;
        }
        unreachable!("hosts are asked in turn for ever")
    }

    fn nodes(&self) -> impl Iterator<Item = Option<Node<SimWorld, T::Store>>> + use<'_, T> {
        (0..self.machines().hosts()).map(|host| self.node(host))
    }

    /// What holds in the directory at every moment: the level does not fall, and every host that
    /// has published itself knows it.
    pub(crate) fn check_levels(&self) {
        let directory = self.machines().directory();
        let list = |prefix| directory.state().list(prefix).expect("a short prefix").entries;
        let clusters = list(key::CLUSTER);
        let cluster = clusters.first().expect("it is there from the beginning");
        let level = record::cluster_level(&cluster.value).expect("simulated hosts write one");
        let before = self.releases().level.replace(level);
        if level < before {
            self.violated(format!("the cluster's level has fallen from {before} to {level}"));
        }
        let known = list(key::LEVELS);
        for Entry { key, value, .. } in list(key::HOSTS) {
            let host: HostRecord = record::decode(&key, &value).expect("simulated hosts write it");
            let levels = known.iter().find(|entry| entry.key == key::levels(host.id));
            let levels = levels.map(|entry| entry.value.as_slice());
            let levels = LevelsRecord::read(levels, host.incarnation);
            if !levels.has(level) {
                self.violated(format!(
                    "{} is in a cluster at level {level}, and knows {levels}",
                    host.name
                ));
            }
        }
    }
}
