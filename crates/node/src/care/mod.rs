//! What a host does that nobody asks for: it hands damage to whoever repairs it, has objects healed
//! that have no client, removes what is left over, and scrubs its disk groups.

mod bad_blocks;
mod layer_events;
mod leftovers;
mod redundancy;
mod scrub;
