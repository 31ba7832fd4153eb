//! Peers: typed calls between hosts, with credits and deadlines.
