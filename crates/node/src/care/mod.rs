//! What a host does that nobody asks for: it hands damage to whoever repairs it, has objects healed
//! that have no client, removes what is left over, scrubs its disk groups, and evens out what its
//! shards have to do.

mod bad_blocks;
mod layer_events;
mod leftovers;
mod redundancy;
mod scrub;
mod shard_balance;
