//! Who this host says it is, and what is known of hosts that live twice.

use atoll_format::frame::{FEATURES, Hello, VERSION_MAX, VERSION_MIN};
use atoll_format::id::{ClusterId, HostId, Incarnation};
use atoll_world::Lane;

/// Who this host is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Peers of another cluster are refused.
    pub cluster: ClusterId,
    /// Its id.
    pub host: HostId,
    /// This life of its process.
    pub incarnation: Incarnation,
    /// For people, in messages.
    pub name: String,
}

impl Identity {
    /// What this host says of itself to `to`.
    pub(crate) fn hello(&self, to: HostId, lane: Lane) -> Hello {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            lane: lane as u8,
            cluster: self.cluster,
            from: self.host,
            to,
            incarnation: self.incarnation,
            features: FEATURES,
            window_requests: 0,
            window_bytes: 0,
            name: self.name.clone(),
        }
    }
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
