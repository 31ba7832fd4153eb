//! Whether the host that took a lock still lives: a lock is void once that life of its host has
//! ended, or nobody has heard of it for longer than any I/O is held.

use crate::error::ManageError;
use crate::node::Node;
use atoll_format::id::HostId;
use atoll_format::record::{self, HostRecord, LockRecord, key};
use atoll_object::limits::{HOLD, LEASE};
use atoll_world::directory::{Compare, Revision};
use atoll_world::{Components, Nanos, World};

/// How long a host has been away before its clients count as gone: no I/O of theirs is held longer.
pub(crate) const AWAY_MIN: Nanos = Nanos(HOLD.0 + LEASE.0);

/// What is known of the life of a host that took a lock.
pub(crate) struct HolderLife {
    /// It has ended, or nobody has heard of it for long.
    pub void: bool,
    /// A lock is removed only if that is still so.
    pub seen: Option<Compare>,
}

impl<W: World, S: Components> Node<W, S> {
    /// Whether the life of a host that took a lock has ended, and what that was seen by.
    pub(crate) async fn life_of_holder(
        &self,
        lock: &LockRecord,
    ) -> Result<HolderLife, ManageError> {
        // Whatever else its record says: others write that, too.
        let is_ours = self.0.locks.is_own(lock.token);
        if is_ours || lock.host == self.0.config.host {
            // Else of an earlier life, or of somebody here who was interrupted.
            return Ok(HolderLife { void: !is_ours, seen: None });
        }
        let host_key = key::host(lock.host);
        let entry = self.entry(&host_key).await?;
        let modified = entry.as_ref().map_or(Revision(0), |e| e.modified);
        let seen = Some(Compare { key: host_key.clone(), modified });
        let Some(entry) = entry else { return Ok(HolderLife { void: true, seen }) };
        let host: HostRecord =
            record::decode(&host_key, &entry.value).map_err(ManageError::Failed)?;
        let gone = host.incarnation != lock.incarnation || self.is_long_away(lock.host);
        Ok(HolderLife { void: gone, seen })
    }

    /// Not heard of for longer than any I/O of its clients is held. A host that hears of nobody
    /// is the one that is away, unless there are only two.
    fn is_long_away(&self, host: HostId) -> bool {
        let hosts = self.0.hosts.borrow();
        let hears = hosts.keys().filter(|&&id| self.is_alive(id)).count();
        let hears_some = hosts.len() <= 2 || hears > 1;
        hears_some && !self.is_alive(host) && self.away_for(host) >= AWAY_MIN
    }

    /// Since when neither this host has heard of that one, nor one that this host hears of. What
    /// was never heard of in this life counts from its beginning.
    pub(crate) fn away_for(&self, host: HostId) -> Nanos {
        let statuses = self.0.statuses.borrow();
        let heard =
            statuses.iter().filter(|(id, (_, s))| **id == host || s.reaches.contains(&host));
        let last = heard.map(|(_, (at, _))| *at).max();
        self.world().now().since(last.unwrap_or(self.0.objects.started()))
    }

    pub(crate) fn is_locked(&self, lock: &LockRecord) -> ManageError {
        ManageError::Locked {
            name: lock.name.clone(),
            host: self.host_name(lock.host),
            purpose: lock.purpose,
        }
    }
}
