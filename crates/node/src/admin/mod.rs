//! Management between hosts: JSON requests on the control lane. Small, rare, versioned by name.

pub(crate) mod client;
pub(crate) mod message;
pub(crate) mod server;
