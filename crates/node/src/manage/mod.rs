//! Management: volumes, hosts, policies, scrubs and resync, as functions. REST and the simulator
//! call them; whatever changes the cluster is a transaction of the directory.

pub(crate) mod all_hosts;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod host_removal;
pub(crate) mod limit;
mod policies;
mod promised;
pub(crate) mod remove_host;
pub(crate) mod resize;
pub(crate) mod tokens;
pub(crate) mod upgrade;
