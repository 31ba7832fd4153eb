//! Why a group of devices cannot be opened. Whoever opens reads these texts: each says what was
//! found, on which device, and what to do where something can be done.

use atoll_format::id::{ClusterId, DiskId, GroupId};
use atoll_format::superblock::SuperblockError;
use atoll_format::units::iec;
use atoll_world::Nanos;

/// Why a store could not be opened. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no label: the device is new, or not the right one.
    #[error("device {device} carries no Atoll label")]
    Empty {
        /// Its place in the list.
        device: usize,
    },
    /// Somebody else's.
    #[error("device {device} carries a {what}")]
    Foreign {
        /// Its place in the list.
        device: usize,
        /// What it carries.
        what: &'static str,
    },
    /// Its label is damaged in both places.
    #[error(
        "device {device}: {why}; `atoll disk wipe` gives it up, other hosts rebuild what it held"
    )]
    Label {
        /// Its place in the list.
        device: usize,
        /// What is wrong.
        why: SuperblockError,
    },
    /// Written by a newer version of the program, or with features this one does not know.
    #[error("written by another version of Atoll: {0}")]
    Newer(String),
    /// It belongs to another cluster.
    #[error("device {device} belongs to cluster {theirs}, not to {ours}")]
    OtherCluster {
        /// Its place in the list.
        device: usize,
        /// Whose it is.
        theirs: ClusterId,
        /// Who asked.
        ours: ClusterId,
    },
    /// The devices are not all of one group.
    #[error("device {device} belongs to disk group {theirs}, device 0 to {ours}")]
    OtherGroup {
        /// Its place in the list.
        device: usize,
        /// Its group.
        theirs: GroupId,
        /// The group of the first.
        ours: GroupId,
    },
    /// The same device, or a copy of it, twice.
    #[error("devices {a} and {b} are both disk {disk}")]
    Twice {
        /// One.
        a: usize,
        /// The other.
        b: usize,
        /// The disk.
        disk: DiskId,
    },
    /// A device of the group was not given.
    #[error("disk {disk} (number {index} of {devices}) of the group is missing")]
    Missing {
        /// Which.
        disk: DiskId,
        /// Its place in the group.
        index: usize,
        /// How many there are.
        devices: usize,
    },
    /// The device is smaller than when it was formatted.
    #[error("device {device} has shrunk: {} of {} are left", iec(*.len_bytes), iec(*.size_bytes))]
    Shrunk {
        /// Its place in the list.
        device: usize,
        /// Its size now.
        len_bytes: u64,
        /// Its size by its label.
        size_bytes: u64,
    },
    /// Metadata that nothing can replace is gone: wipe the group, its peers rebuild it.
    #[error("metadata of the group is damaged: {0}")]
    Metadata(String),
    /// A device does not answer; its requests may still end.
    #[error("a device does not answer: the labels were not read in {within}")]
    Silent {
        /// How long they were waited for.
        within: Nanos,
    },
    /// A device does not work.
    #[error("{0}")]
    Io(String),
}
