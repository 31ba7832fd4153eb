//! The switches of the mirror protocol: one for every part of every rule of `docs/mirror.md`
//! section 4 that can be taken out by itself.
//!
//! A switch that is off means the weakest literal reading of the design's text without that rule;
//! each one's line says which. With all of them on the protocol is the one that the object layer
//! implements.

/// Which rules hold. [`Rules::ALL`] is the protocol; [`Rules::without`] takes one out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules(u64);

/// One rule, or one part of a rule, that can be switched off.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Rule {
    /// Off: the fenced epoch is kept in memory only, and a restart forgets it (F3).
    R1FencedEpochDurable,
    /// Off: a member takes any message of an epoch that is not fenced, in any order, any number
    /// of times (F2).
    R2Sessions,
    /// Off: an acknowledgement counts whichever session it was given in (F8).
    R2AcksOfThisSession,
    /// Off: operations pending when a session opens are not sent again in it (F10).
    R2PendingSentAgain,
    /// Off: a new owner fences and attaches active members only (F4).
    R3AttachResyncing,
    /// Off: `since` is the last operation assigned (F11).
    R4SinceIsWatermark,
    /// Off: operations that got new ids in roll-forward hold W at these, not at the old ones.
    R4RolledHoldWatermark,
    /// Off: a resyncing member that fails gets a new `since` (F12).
    R4KeepFrom,
    /// Off: a restarted owner goes on with its epoch (F14).
    R5NewEpoch,
    /// Off: roll-forward begins when one active member has answered (F11).
    R6AllActiveAnswer,
    /// Off: a takeover drops members with `since` = start of its own epoch (F11).
    R6SinceFromAnswers,
    /// Off: a takeover drops members before any other has answered (F18).
    R6FenceBeforeDrop,
    /// Off: uncommitted operations are left as they are (F11).
    R7RollForward,
    /// Off: a block that is being rolled forward is already served (F1).
    R7BlockLocked,
    /// Off: a restarted member no longer lists its uncommitted operations (A20).
    R7DescriptorsDurable,
    /// Off: reads do not wait for writes in flight on their range (F1).
    R8ReadsWait,
    /// Off: a write that takes too long gives its range lock back before its fate is decided.
    R8LockUntilDecided,
    /// Off: the late reply of a read that was given up answers the next one.
    R8LateReplies,
    /// Off: a member that restarts forgets its grants and answers a fence at once (F5).
    R9RestartGrace,
    /// Off: a give-back ends whichever grant stands (F17).
    R9Serials,
    /// Off: a member's grace ends before the owner's lease does.
    R9GraceOutlivesLease,
    /// Off: a member that has restarted takes whoever served last for dead.
    R9OnlyDeadLives,
    /// Off: a life takes earlier ones of its host for dead, also those that had another lock.
    R9DeathIsProved,
    /// Off: the record calls an owner the last that served as soon as it has claimed its epoch.
    R9ServedIsSettled,
    /// Off: renewals to the old owner still cover an object that is being fenced (F18).
    R10LeaveOut,
    /// Off: the owner needs a lease only of the member that it reads from (F6).
    R11EveryLease,
    /// Off: leases are not looked at when a read is answered.
    R11CheckWhenAnswering,
    /// Off: a member is no longer awaited from the moment its drop is sent (F15).
    R12Confirmed,
    /// Off: changes compare the epoch, not the revision (F16).
    R12CompareRevision,
    /// Off: after a lost answer, a plain read of the record is believed (F7c).
    R12ResolveByWriting,
    /// Off: no lease is needed of a member whose promotion is under way (F7a).
    R13StricterOfBoth,
    /// Off: promotion does not wait for forwarded operations to be acknowledged (F8).
    R14OpsAcked,
    /// Off: promotion does not wait for chunks to be copied.
    R14ChunksCopied,
    /// Off: promotion does not wait for a copy that is under way (F10).
    R14NoCopyUnderWay,
    /// Off: new writes do not await a member whose promotion was sent (F7b).
    R15AwaitPromoted,
    /// Off: equal chunk ids are taken as proof that a chunk is in sync (F9).
    R16BehindMark,
    /// Off: copies take no range lock and overwrite what came meanwhile (F10).
    R17CopyLock,
    /// Off: a copy that takes too long gives its range lock back, with its session still open.
    R17LockUntilAcked,
    /// Off: only chunks that changed on the active side are copied (F13).
    R18OwnPast,
    /// Off: reads are also served from members that are not active.
    R19OnlyActiveServe,
    /// Off: the last active member may be dropped.
    R20KeepLastActive,
    /// Off: with no active member in reach, a takeover makes an absent one active (A18).
    R20DirectoryDecides,
    /// Off: an owner that meets a newer epoch refreshes its view and goes on.
    R21Stop,
    /// Off: operations carry no ticket of their client (F19).
    R21Tickets,
    /// Off: a ticket is forgotten as soon as its operation is committed (F19).
    R21TicketsUntilSettled,
    /// Off: only requests that say they are a repetition are looked up (F19).
    R21EveryRequest,
    /// Off: a request with a number that its client has settled is taken as new (F19).
    R21SettledRefused,
}

impl Rules {
    /// The protocol.
    pub const ALL: Self = Self(u64::MAX);

    /// The protocol without one rule.
    pub fn without(rule: Rule) -> Self {
        Self(Self::ALL.0 & !(1 << rule as u8))
    }

    /// Whether a rule holds.
    pub fn has(self, rule: Rule) -> bool {
        self.0 >> (rule as u8) & 1 == 1
    }
}
