//! A model of the mirror protocol and a checker that looks at every state it can get into.
//!
//! The model is `docs/mirror.md` in the small: one mirror leg, two blocks of one chunk, two or
//! three members, two hosts that may own the object, a directory with compare-and-swap, a network
//! that delays, reorders, duplicates and loses. [`check`] searches the whole bounded space breadth
//! first, so that a violation comes with a shortest trace; [`walk`] takes seeded random walks
//! through spaces too large for that. After every step: each block is linearizable, every member
//! that the directory calls active holds every acknowledged write, one owner process acknowledges
//! in an epoch, at least one member is active.
//!
//! Each rule can be switched off ([`Rules::without`]); `tests/protocol_rules.rs` shows that the
//! checker then finds the flaw that the rule is there for. What is not safety but progress has
//! models of its own: [`lease`] (R10) and [`ticket`] (R21); so has a restarted member's silence,
//! [`restart`] (R9).
//!
//! Limits: bounded budgets ([`Budget`]); first in, first out within a session is assumed of the
//! transport, for copies only where a configuration says so ([`Config::lanes`]); a member's
//! restart is one step; time is abstract (`step.rs`); visited states are
//! kept as 64-bit fingerprints, so that a state is missed with a chance of about n^2 / 2^65.

mod checker;
pub mod lease;
mod monitor;
pub mod restart;
mod rules;
mod start;
mod state;
mod step;
pub mod ticket;
mod trace;

pub use checker::{Outcome, Trace, check, walk};
pub use rules::{Rule, Rules};
pub use state::{Budget, Wrong};

/// Where a search begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// All members are active, host 0 owns the object in epoch 1.
    Healthy,
    /// The last member is resyncing and lacks nothing.
    Resyncing,
    /// The last member is resyncing and lacks an acknowledged write of block 0.
    Behind,
    /// The last member is absent and lacks nothing.
    Absent,
    /// The last member is absent and lacks an acknowledged write of block 0.
    AbsentBehind,
    /// The last member is absent and has a write that no other member has; host 1 owns the
    /// object in epoch 2.
    OwnPast,
}

/// One bounded space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Where it begins.
    pub start: Start,
    /// Members: 2 or 3.
    pub members: u8,
    /// The highest epoch that is claimed: 1 to 4.
    pub epochs: u8,
    /// Client writes, at most 3.
    pub writes: u8,
    /// The block of each write.
    pub blocks: [u8; 3],
    /// Acknowledgements are messages that can be late or lost; else they arrive at once.
    pub acks_travel: bool,
    /// Copies take no range lock (R17b).
    pub lock_free_copy: bool,
    /// Copies travel beside the session's operations, in no order with them.
    pub lanes: bool,
    /// Roll-forward gives operations new ids; else they keep theirs.
    pub new_ids: bool,
    /// How often each trouble may happen.
    pub budget: Budget,
}

impl Config {
    /// Two healthy members, one epoch, no trouble: to be extended.
    pub const QUIET: Self = Self {
        start: Start::Healthy,
        members: 2,
        epochs: 1,
        writes: 1,
        blocks: [0; 3],
        acks_travel: false,
        lock_free_copy: false,
        lanes: false,
        new_ids: false,
        budget: Budget {
            reads: 0,
            drops: 0,
            readmits: 0,
            promotes: 0,
            copies: 0,
            reattaches: 0,
            crashes: 0,
            restarts: 0,
            deaths: 0,
            overdue: 0,
            duplicates: 0,
            give_backs: 0,
        },
    };

    /// Blocks that reads look at.
    fn blocks_used(&self) -> u8 {
        self.blocks.iter().max().map_or(1, |b| b + 1)
    }
}
