//! Where the components of an object go, and why: pure functions of (inventory, policy, seed).
