//! Who this host says it is, and what is known of hosts that live twice.

use atoll_format::frame::{FEATURES, Hello, VERSION_MAX, VERSION_MIN};
use atoll_format::id::{Addr, ClusterId, HostId, Incarnation};
use atoll_world::Lane;

/// Who this host is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Peers of another cluster are refused.
    pub cluster: ClusterId,
    /// Its id.
    pub host: HostId,
    /// Which shard of it this one is.
    pub shard: u8,
    /// How many shards it has, at least 1.
    pub shards: u8,
    /// This life of its process.
    pub incarnation: Incarnation,
    /// For people, in messages.
    pub name: String,
}

impl Identity {
    /// Where this shard is asked.
    pub fn addr(&self) -> Addr {
        Addr { host: self.host, shard: self.shard }
    }

    /// Whether that is another shard of this process.
    pub(crate) fn is_sibling(&self, addr: Addr) -> bool {
        addr.host == self.host && addr.shard != self.shard && addr.shard < self.shards
    }

    /// What this host says of itself to `to`.
    pub(crate) fn hello(&self, to: Addr, lane: Lane) -> Hello {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            lane: lane as u8,
            cluster: self.cluster,
            from: self.addr(),
            to,
            incarnation: self.incarnation,
            features: FEATURES,
            window_requests: 0,
            window_bytes: 0,
            name: self.name.clone(),
        }
    }
}

/// A connection that was not made: one end does not believe the other, or they do not fit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Refusal {
    /// Where the other end is, as far as is known: an endpoint, or whence it connected, without
    /// the port that it had by chance.
    pub with: String,
    /// A clause; names both ends where they are known.
    pub why: String,
}

/// A host that lives twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Twin {
    /// A process with this host's own identity connected, and was told that this host lives.
    Refused {
        /// What it is called.
        name: String,
        /// Where it came from.
        from: String,
    },
    /// Two lives of another host connect in turn.
    Alternates {
        /// Which.
        host: HostId,
    },
}
