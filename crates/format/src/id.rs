//! Names of things. Newtypes, so that two integers of different meaning cannot be swapped.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// Random, never reused; written as 16 hexadecimal digits.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:016x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:016x})"), self.0)
            }
        }
        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                if text.len() != 16 {
                    return Err(format!("'{text}' is not an id of 16 hexadecimal digits"));
                }
                u64::from_str_radix(text, 16)
                    .map(Self)
                    .map_err(|_| format!("'{text}' is not an id of 16 hexadecimal digits"))
            }
        }
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = String::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_id!(
    /// One Atoll cluster: written into every disk label.
    ClusterId
);
hex_id!(
    /// One host of a cluster, for the life of its membership.
    HostId
);
hex_id!(
    /// One device that carries an Atoll label.
    DiskId
);
hex_id!(
    /// One disk group: the devices that one store runs.
    GroupId
);
hex_id!(
    /// One object (volume).
    ObjectId
);
hex_id!(
    /// One component: the part of a leg that one disk group keeps.
    ComponentId
);
hex_id!(
    /// One life of a host process; a restart is a new one (R5 of `docs/mirror.md`).
    Incarnation
);
hex_id!(
    /// One life of one client of one object: the namespace of its operation numbers (R21).
    ClientId
);

/// Where messages go: one shard of one host.
///
/// A shard is a thread of a host's process that has its own disk groups, and owners of objects.
/// All shards of a process are one life ([`Incarnation`]). Written as the host's id, with
/// `.3` behind it for shard 3 and nothing for shard 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Addr {
    /// The host.
    pub host: HostId,
    /// Which of its shards, from 0 on. Every host has shard 0.
    pub shard: u8,
}

impl From<HostId> for Addr {
    /// Shard 0 of the host: the one that speaks for all of it.
    fn from(host: HostId) -> Self {
        Self { host, shard: 0 }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shard {
            0 => write!(f, "{}", self.host),
            shard => write!(f, "{}.{shard}", self.host),
        }
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Addr({self})")
    }
}

/// Counts the owners of an object. A member refuses messages of a lower epoch (R1).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub u32);

/// Orders the operations of one object over all its epochs; 48 bits, 0 means "none yet".
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

/// Identifies one operation of an object (R5: never reused).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OpId {
    /// The owner's epoch.
    pub epoch: Epoch,
    /// The place in the object's order.
    pub seq: Seq,
}

/// The conversation in which an owner may write to a component (R2). Ordered: a later one wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Session {
    /// The owner's epoch.
    pub epoch: Epoch,
    /// Counts the `Attach` messages of that epoch to that component, from 1.
    pub attach: u32,
}

/// Names a client's operation so that a retry is recognised (R21).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket {
    /// Who asked.
    pub client: ClientId,
    /// Counts that client's operations from 1; 0 means "no client" (repair, roll-forward).
    pub number: u32,
    /// Every number below this one has been answered to the client: it will not be retried.
    pub settled_below: u32,
}
