//! Why a management call fails: what its caller does differently is a variant of its own.

use atoll_format::level::Level;
use atoll_format::record::LockPurpose;
use atoll_object::placement::Refusal;
use atoll_world::DirectoryError;

/// Why a management call failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ManageError {
    /// There is no such thing.
    #[error("there is no {what} named '{name}'")]
    NotFound {
        /// `volume`, `policy`, ...
        what: &'static str,
        /// As asked for.
        name: String,
    },
    /// The name is taken.
    #[error("a {what} named '{name}' exists already")]
    Exists {
        /// `volume`, `policy`, ...
        what: &'static str,
        /// As asked for.
        name: String,
    },
    /// A value is out of range; a sentence.
    #[error("{0}")]
    Invalid(String),
    /// The policy cannot be met now.
    #[error("{0}")]
    CannotPlace(Refusal),
    /// Clients have it open; names the hosts.
    #[error("volume '{name}' is in use on {hosts}")]
    InUse {
        /// Which volume.
        name: String,
        /// Where.
        hosts: String,
    },
    /// A host that cannot be asked may have clients of it.
    #[error("volume '{name}' may be in use on host {host}, which does not answer: {why}")]
    MayBeInUse {
        /// Which volume.
        name: String,
        /// Where.
        host: String,
        /// Why that cannot be ruled out.
        why: String,
    },
    /// Another host has it to itself.
    #[error("volume '{name}' is locked: host {host} has it to itself for {purpose}")]
    Locked {
        /// Which volume.
        name: String,
        /// By whom.
        host: String,
        /// For what.
        purpose: LockPurpose,
    },
    /// It holds data, or may; nobody said that this is to be replaced.
    #[error("volume '{name}' holds data")]
    HoldsData {
        /// Which volume.
        name: String,
    },
    /// It is smaller than what is to be put in.
    #[error("volume '{name}' has {size} bytes, {wanted} are needed")]
    TooSmall {
        /// Which volume.
        name: String,
        /// Its size in bytes.
        size: u64,
        /// The size that is needed, in bytes.
        wanted: u64,
    },
    /// It would shrink, and nobody said that what lies beyond may be lost.
    #[error(
        "the new size of volume {name}, {size} bytes, is below the present one, {before}: what \
         lies beyond would be lost"
    )]
    WouldShrink {
        /// Which volume.
        name: String,
        /// The size that was asked for, in bytes.
        size: u64,
        /// Its size now, in bytes.
        before: u64,
    },
    /// A host that is to be removed holds something, or is the wrong one to remove.
    #[error("host {host} cannot be removed: {what}")]
    HostHolds {
        /// Which host.
        host: String,
        /// A clause.
        what: String,
        /// What to do about it.
        next: String,
    },
    /// Releases on hosts do not know the next feature level.
    #[error(
        "the cluster cannot be raised to feature level {next}: the release on {hosts} does not \
         know it"
    )]
    NotUpgraded {
        /// Which hosts.
        hosts: String,
        /// The level.
        next: Level,
    },
    /// A host that is to be given up has what nobody else has.
    #[error(
        "host {host} cannot be given up: no other complete copy can be read now of volume {volumes}"
    )]
    LastCopies {
        /// Which host.
        host: String,
        /// Names of volumes.
        volumes: String,
    },
    /// A policy that a volume was made with.
    #[error("policy {policy} is used by volume {volume}")]
    PolicyInUse {
        /// Which policy.
        policy: String,
        /// Of which volume.
        volume: String,
    },
    /// Somebody changed it meanwhile.
    #[error("'{0}' was changed by somebody else meanwhile")]
    Conflict(String),
    /// It may have been done, or may yet be; a sentence.
    #[error("{0}")]
    Unknown(String),
    /// The directory gives no answer.
    #[error("{0}")]
    Directory(DirectoryError),
    /// A host cannot be reached: it was asked for nothing.
    #[error("host {0} cannot be reached")]
    Unreachable(String),
    /// A host was asked and gives no answer: it may do what it was asked for.
    #[error("host {0} does not answer")]
    NoAnswer(String),
    /// Something else; a sentence.
    #[error("{0}")]
    Failed(String),
}
