//! What goes wrong: with an operation of a client ([`Fail`]), with an owner ([`Stop`]), with a
//! member ([`MemberFault`]), while members are made equal ([`Interrupted`]).

use atoll_world::{StoreError, VolumeError};

/// Why an owner gives no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fail {
    /// It is no longer the owner; a write's outcome is unknown.
    Stopped,
    /// Another client was admitted since it was asked for, or its client has had its answer: this
    /// request is not carried out; whether another one was is unknown.
    Outdated,
    /// The operation failed.
    Volume(VolumeError),
}

impl From<VolumeError> for Fail {
    fn from(error: VolumeError) -> Self {
        Self::Volume(error)
    }
}

/// Why an owner has stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// A newer epoch exists.
    Superseded,
    /// The object is being deleted.
    Deleted,
    /// Handed over on purpose.
    Released,
}

/// What is wrong with a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MemberFault {
    /// Its connection broke, or it answered nonsense.
    Link,
    /// It has not acknowledged in time while another member has.
    Late,
    /// It lacks what it had acknowledged: its disk lied, was put back, or is damaged (rows 28 and
    /// 50 of `docs/faults.md`).
    Stale,
    /// Its store refuses or has failed.
    Store(StoreError),
}

impl MemberFault {
    /// Whether a new session may help.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Link => true,
            Self::Late | Self::Stale => false,
            Self::Store(error) => matches!(
                error,
                StoreError::Session { .. } | StoreError::Damaged { .. } | StoreError::Malformed(_)
            ),
        }
    }
    /// Whether its data is known to be gone: no reason to wait before rebuilding it elsewhere.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Store(StoreError::Failed(_) | StoreError::NoComponent(_)))
    }
}

impl std::fmt::Display for MemberFault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Link => write!(f, "its host cannot be reached"),
            Self::Late => write!(f, "it did not acknowledge in time"),
            Self::Stale => write!(f, "it has lost what it had acknowledged"),
            Self::Store(error) => write!(f, "{error}"),
        }
    }
}

/// Members were not made equal: one of them has failed, or is another one by now, or the owner has
/// stopped. What was done so far stays; who wanted it begins anew, or leaves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Interrupted;

impl From<Fail> for Interrupted {
    fn from(_: Fail) -> Self {
        Self
    }
}
