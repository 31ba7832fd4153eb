//! How a host comes into a cluster: the cluster is what the directory holds, and the first host
//! that finds none there founds it.
//!
//! Invariants: a directory holds one cluster, however many hosts found it at once; a host goes no
//! further under a name that another host has, or once it was removed, or if its release does not
//! know the cluster's feature level.

use crate::node::RemovedHost;
use atoll_format::id::{ClusterId, HostId};
use atoll_format::level::{Level, Levels};
use atoll_format::record::{
    self, ClusterRecord, HostRecord, PROMISED_LIMIT_PERCENT, RECORD_VERSION, RemovedRecord, key,
};
use atoll_world::World;
use atoll_world::directory::{
    Compare, Directory, DirectoryError, KeyChange, Revision, Txn, TxnReply,
};

/// Seconds that a member may be absent before it is rebuilt elsewhere, in a new cluster.
const REPAIR_DELAY_S: u32 = 3_600;
/// Floor of the resync rate of a new cluster, bytes per second and host.
const RESYNC_FLOOR: u64 = 16 << 20;

/// Why a host cannot come into the cluster.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum JoinError {
    /// The directory gives no answer: later it may.
    #[error("{0}")]
    Directory(DirectoryError),
    /// What the directory holds cannot be read; a sentence.
    #[error("{0}")]
    Unreadable(String),
    /// The cluster is at another feature level than this host's release knows.
    #[error("the cluster is at feature level {level}, and this host's release knows {known}")]
    Level {
        /// The cluster's.
        level: Level,
        /// This release's.
        known: Levels,
    },
    /// The host was removed from the cluster.
    #[error("host {} was removed from the cluster", .0.name)]
    Removed(RemovedHost),
    /// Another host has the name.
    #[error("host name {name} is taken by host {host}")]
    NameTaken {
        /// The name.
        name: String,
        /// Who has it.
        host: HostId,
    },
}

impl From<DirectoryError> for JoinError {
    fn from(error: DirectoryError) -> Self {
        Self::Directory(error)
    }
}

/// The cluster of the directory, and whether this call has founded it: as `wanted`, if this host
/// knows already to which one it is to belong, and at the newest level that is `known`. A cluster
/// that is there may be another one.
///
/// # Errors
/// [`JoinError::Directory`]: it may have been founded all the same. [`JoinError::Unreadable`],
/// [`JoinError::Level`].
pub async fn find_or_found<W: World>(
    world: &W,
    wanted: Option<ClusterId>,
    known: Levels,
) -> Result<(ClusterRecord, bool), JoinError> {
    let directory = world.directory();
    let read = |bytes: &[u8]| -> Result<ClusterRecord, JoinError> {
        // First: a newer release may have written what this one cannot read.
        check_level(bytes, known)?;
        record::decode(key::CLUSTER, bytes).map_err(JoinError::Unreadable)
    };
    if let Some(entry) = directory.get(key::CLUSTER).await? {
        return Ok((read(&entry.value)?, false));
    }
    let cluster = ClusterRecord {
        version: RECORD_VERSION,
        id: wanted.unwrap_or_else(|| ClusterId(world.random())),
        name: "atoll".into(),
        repair_delay_s: REPAIR_DELAY_S,
        resync_floor_bytes: RESYNC_FLOOR,
        promised_limit_percent: PROMISED_LIMIT_PERCENT,
        level: known.newest,
    };
    let absent = Compare { key: key::CLUSTER.into(), modified: Revision(0) };
    let changes = vec![KeyChange::Put(key::CLUSTER.into(), record::encode(&cluster))];
    match directory.txn(Txn { compares: vec![absent], changes }).await? {
        TxnReply::Done(_) => Ok((cluster, true)),
        TxnReply::Conflict(found) => {
            let entry = found.into_iter().find_map(|(_, entry)| entry);
            let gone = || JoinError::Unreadable("the cluster record was there, and is gone".into());
            let found = read(&entry.ok_or_else(gone)?.value)?;
            let is_same = found.id == cluster.id && wanted.is_none();
            assert!(!is_same, "cluster {} is founded twice", found.id);
            Ok((found, false))
        }
    }
}

/// Whether a release that knows those levels can serve the cluster of that record. A record that
/// says no level is none of a newer release.
///
/// # Errors
/// [`JoinError::Level`].
pub(crate) fn check_level(cluster: &[u8], known: Levels) -> Result<(), JoinError> {
    match record::cluster_level(cluster) {
        Some(level) if !known.has(level) => Err(JoinError::Level { level, known }),
        _ => Ok(()),
    }
}

/// Whether a host has not been removed from the cluster: `name` is what it is called, if the
/// directory does not say. A plain read may be older than that; publishing it compares.
///
/// # Errors
/// [`JoinError::Removed`], [`JoinError::Directory`].
pub async fn check_belongs<W: World>(world: &W, host: HostId, name: &str) -> Result<(), JoinError> {
    assert!(!name.is_empty(), "host {host} has no name");
    let key = key::removed(host);
    let Some(entry) = world.directory().get(&key).await? else { return Ok(()) };
    let removed = record::decode::<RemovedRecord>(&key, &entry.value).ok();
    let known = removed.map(|record| RemovedHost { name: record.name, at_ms: record.at_ms });
    Err(JoinError::Removed(known.unwrap_or_else(|| RemovedHost { name: name.into(), at_ms: 0 })))
}

/// Whether a host may have that name: no other host has it.
///
/// # Errors
/// See [`JoinError`].
pub async fn check_host_name<W: World>(
    world: &W,
    host: HostId,
    name: &str,
) -> Result<(), JoinError> {
    assert!(!name.is_empty(), "host {host} has no name");
    for entry in world.directory().list(key::HOSTS).await?.entries {
        let other: HostRecord =
            record::decode(&entry.key, &entry.value).map_err(JoinError::Unreadable)?;
        if other.name == name && other.id != host {
            return Err(JoinError::NameTaken { name: other.name, host: other.id });
        }
    }
    Ok(())
}
