//! The engine on this machine: the real world, and what runs in it.

use super::directory::HostDirectory;
use atoll_node::Node;
use atoll_real::RealWorld;
use atoll_store::Store;

/// The world of the daemon.
pub type HostWorld = RealWorld<HostDirectory>;
/// A disk group of the daemon.
pub type HostStore = Store<HostWorld>;
/// The daemon's host.
pub type HostNode = Node<HostWorld, HostStore>;
