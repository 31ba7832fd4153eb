//! Membership of the cluster: this host's record in the directory, everybody else's, and what hosts
//! say of themselves.

pub(crate) mod follow;
mod hosts;
pub(crate) mod join;
pub(crate) mod level;
mod own_status;
pub(crate) mod refusals;
pub(crate) mod removed;
pub(crate) mod shards;
mod statuses;
pub(crate) mod twin;
