//! Raising the cluster's feature level, once the releases of all hosts know the next one.
//!
//! One transaction decides: it writes the level into the cluster's record, if the records of all
//! hosts are as they were when they were looked at. A host that starts meanwhile writes its own
//! record, and one that is new the cluster's, too: either is a conflict. So no host is in a cluster
//! at a level that its release does not know.
//!
//! A host that does not run counts with what its last life knew. If an older release is started on
//! it later, that ends as soon as it has read the cluster's record.

use crate::error::ManageError;
use crate::event_log::{About, Severity};
use crate::manage::host_removal::some_of;
use crate::node::Node;
use crate::transaction::ATTEMPTS_MAX;
use atoll_format::id::HostId;
use atoll_format::level::{Level, Levels, next_level};
use atoll_format::record::{self, ClusterRecord, HostRecord, LevelsRecord, key};
use atoll_world::directory::{Compare, Directory, Entry, KeyChange, Revision, Txn};
use atoll_world::{Components, Nanos, World, sometimes};
use std::collections::BTreeMap;

/// How long until the directory is looked at again that has shown an older state.
const LOOK_AGAIN: Nanos = Nanos::from_ms(250);

/// What the release of one host knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostLevels {
    /// Which host.
    pub host: HostId,
    /// What it is called.
    pub name: String,
    /// Its program version.
    pub release: String,
    /// Whether it answers; if not, this is of its last life.
    pub is_up: bool,
    /// The feature levels.
    pub levels: Levels,
}

/// How far an upgrade of the cluster is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upgrade {
    /// The level that the cluster is at.
    pub level: Level,
    /// The newest that all hosts know; never below `level`.
    pub next: Level,
    /// The newest that the host that was asked knows.
    pub newest: Level,
    /// The hosts, by id, without those that were removed.
    pub hosts: Vec<HostLevels>,
}

impl Upgrade {
    /// The hosts that know fewer levels than the one that was asked: they keep the cluster from
    /// being raised to its newest.
    pub fn behind(&self) -> impl Iterator<Item = &HostLevels> {
        self.hosts.iter().filter(|host| host.levels.newest < self.newest)
    }
}

/// What one look has found, and what has to be so still when the level is raised.
struct Look {
    upgrade: Upgrade,
    cluster: ClusterRecord,
    compares: Vec<Compare>,
    /// The hosts are not older than the cluster's record, which each new one has written: none is
    /// missing (R1 of docs/directory.md).
    is_whole: bool,
}

impl<W: World, S: Components> Node<W, S> {
    /// Which feature level the cluster is at, and which the releases of its hosts know.
    ///
    /// # Errors
    /// The directory gives no answer, or what it holds cannot be read.
    pub async fn upgrade(&self) -> Result<Upgrade, ManageError> {
        Ok(self.look_at_levels().await?.upgrade)
    }

    /// Raises the cluster to the newest level that all of its hosts know. What was found is told;
    /// its `level` is the one from before.
    ///
    /// # Errors
    /// [`ManageError::NotUpgraded`]: a host does not know the next level; nothing was changed.
    pub async fn raise_level(&self, dry_run: bool) -> Result<Upgrade, ManageError> {
        for _ in 0..ATTEMPTS_MAX {
            let Look { upgrade, cluster, compares, is_whole } = self.look_at_levels().await?;
            if !is_whole {
                sometimes!("level.hosts_are_seen_as_they_were_before");
                self.world().sleep(LOOK_AGAIN).await;
                continue;
            }
            let (before, next) = (upgrade.level, upgrade.next);
            if before == next {
                let behind: Vec<String> = upgrade.behind().map(|host| host.name.clone()).collect();
                return match behind.is_empty() {
                    true => Ok(upgrade),
                    false => {
                        let (hosts, next) = (some_of(&behind), before.above());
                        Err(ManageError::NotUpgraded { hosts, next })
                    }
                };
            }
            if dry_run {
                return Ok(upgrade);
            }
            assert!(next > before, "a level falls from {before} to {next}");
            let cluster = ClusterRecord { level: next, ..cluster };
            let changes = vec![KeyChange::Put(key::CLUSTER.into(), record::encode(&cluster))];
            // Also a conflict is looked at again: it may be our own.
            if self.settle(Txn { compares, changes }, |_| false).await? {
                sometimes!("level.is_raised");
                let message = format!("the cluster was raised to feature level {next}");
                let about = About::host(self.0.config.host);
                self.note(Severity::Info, "level-raised", about, message);
                return Ok(upgrade);
            }
            sometimes!("level.is_contended");
        }
        Err(ManageError::Conflict("cluster".into()))
    }

    /// The level that all hosts know, this one among them, above the cluster's or the same.
    pub(crate) fn next_level(&self, level: Level, hosts: impl Iterator<Item = Levels>) -> Level {
        next_level(level, hosts.chain([self.0.config.levels]))
    }

    async fn look_at_levels(&self) -> Result<Look, ManageError> {
        let directory = self.world().directory();
        // First: a host that comes after it has written this record.
        let gone = || ManageError::Failed("the directory has no record of a cluster".into());
        let of_cluster = self.entry(key::CLUSTER).await?.ok_or_else(gone)?;
        let cluster: ClusterRecord =
            record::decode(key::CLUSTER, &of_cluster.value).map_err(ManageError::Failed)?;
        let list = async |prefix: &str| {
            let listing = directory.list(prefix).await.map_err(ManageError::Directory)?;
            let entries = listing.entries.into_iter().map(|entry| (entry.key.clone(), entry));
            Ok::<(BTreeMap<_, _>, Revision), ManageError>((entries.collect(), listing.revision))
        };
        let (entries, seen_at) = list(key::HOSTS).await?;
        // What these show of before is about an earlier life of a host, or a host that is compared.
        let (levels, removed) = (list(key::LEVELS).await?.0, list(key::REMOVED).await?.0);
        let mut compares =
            vec![Compare { key: key::CLUSTER.into(), modified: of_cluster.modified }];
        let mut hosts = Vec::new();
        for Entry { key, value, modified } in entries.into_values() {
            let host: HostRecord = record::decode(&key, &value).map_err(ManageError::Failed)?;
            assert!(modified > Revision(0), "{key} was never written");
            compares.push(Compare { key, modified });
            // One that was removed never runs again, unless that is taken back.
            if let Some(Entry { key, modified, .. }) = removed.get(&key::removed(host.id)) {
                compares.push(Compare { key: key.clone(), modified: *modified });
                continue;
            }
            let levels = levels.get(&key::levels(host.id)).map(|entry| entry.value.as_slice());
            hosts.push(HostLevels {
                host: host.id,
                is_up: self.answers(host.id),
                levels: LevelsRecord::read(levels, host.incarnation),
                name: host.name,
                release: host.release,
            });
        }
        let level = cluster.level;
        let next = self.next_level(level, hosts.iter().map(|host| host.levels));
        let upgrade = Upgrade { level, next, newest: self.0.config.levels.newest, hosts };
        assert!(next >= level, "a level falls from {level} to {next}");
        assert!(compares.len() > upgrade.hosts.len(), "a host that is not compared");
        let is_whole = seen_at >= of_cluster.modified;
        Ok(Look { upgrade, cluster, compares, is_whole })
    }
}
