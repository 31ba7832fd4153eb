//! Everything that one state of the modelled mirror leg holds, small enough to keep a million.
//!
//! An op id is `epoch * 8 + seq`, 0 is older than all. Masks have one bit a member. Nothing here
//! decides: the steps are in `step.rs`.

use super::monitor::Monitor;

/// Members at most: A, B, C.
pub const MEMBERS: usize = 3;
/// Hosts that may own the object.
pub const OWNERS: usize = 2;
/// Blocks, all in one chunk.
pub const BLOCKS: usize = 2;
/// Operations that an owner keeps at a time.
pub const OPS: usize = 4;
/// Messages under way at a time.
pub const NET: usize = 16;
/// Sequence numbers of one epoch.
pub const SEQS: u8 = 8;
/// Epochs at most (the array of who acknowledged is indexed by them).
pub const EPOCHS: usize = 5;
/// The value of a block that is out of date at the start; no history may show it.
pub const STALE: u8 = 7;

/// One version of one block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Version {
    pub id: u8,
    pub value: u8,
}

/// The order of sessions: (epoch, attach number).
pub type Session = (u8, u8);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Member {
    /// Lower epochs are refused (R1).
    pub fenced: u8,
    /// The open session (R2); durable.
    pub session: Session,
    /// The number that the next message of the session must have.
    pub next: u8,
    /// False after a restart where the model says that sessions end with the process.
    pub open: bool,
    pub blocks: [Version; BLOCKS],
    /// The newest op id of the chunk.
    pub chunk: u8,
    /// The highest W it was told; forgotten by a restart.
    pub told: u8,
    /// The durable mark of R16.
    pub behind: bool,
    /// Blocks that ops of this session wrote (R17b).
    pub touched: u8,
    /// Serial of the last grant.
    pub serial: u8,
    /// It knows of no grant: a fence is answered without waiting for anyone's lease to end.
    pub no_grant: bool,
    /// It lost the list of its uncommitted operations (only with R7's part switched off).
    pub no_list: bool,
}

/// The record of the object in the directory, or an owner's view of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Record {
    pub revision: u8,
    pub epoch: u8,
    pub owner: u8,
    pub state: [u8; MEMBERS],
    pub since: [u8; MEMBERS],
}

pub const ACTIVE: u8 = 1;
pub const ABSENT: u8 = 2;
pub const RESYNCING: u8 = 3;

impl Record {
    /// The members in that state.
    pub fn mask(&self, state: u8) -> u8 {
        let mut mask = 0;
        for m in 0..MEMBERS {
            if self.state[m] == state {
                mask |= 1 << m;
            }
        }
        mask
    }
}

/// What an owner is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Phase {
    #[default]
    Idle,
    /// Its claim is on the way to the directory.
    Claiming,
    /// It waits for the fences to be answered.
    Fencing,
    /// Blocks that are not locked are served.
    Serving,
}

/// One operation at its owner; `id` 0: the slot is free.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Op {
    pub id: u8,
    /// The id it had before roll-forward gave it a new one; W stays below this (R4).
    pub was: u8,
    pub block: u8,
    pub value: u8,
    /// Members it was sent to in their present session.
    pub sent: u8,
    /// Members whose acknowledgement counts.
    pub acked: u8,
    /// A client waits for it; else it is rolled forward.
    pub client: bool,
    /// All that were awaited have it; kept while a resyncing member still owes its own.
    pub decided: bool,
}

impl Op {
    pub fn is_pending(&self) -> bool {
        self.id != 0 && !self.decided
    }
}

/// A change of the directory that an owner has under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Change {
    #[default]
    Claim,
    Drop,
    Readmit,
    Promote,
    /// R12: the record is written once more as it is.
    Again,
    /// Only with R20 switched off.
    Revive,
}

/// How far that change is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Cas {
    #[default]
    None,
    Sent,
    /// Its answer is overdue.
    Unknown,
    /// R12's second write was sent.
    Resolving,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Owner {
    pub phase: Phase,
    pub epoch: u8,
    pub incarnation: u8,
    pub view: Record,
    /// The last sequence number used.
    pub seq: u8,
    /// The highest W known from fences.
    pub told: u8,
    /// Attach number of each member's session; 0: none in this epoch.
    pub attach: [u8; MEMBERS],
    /// Number of the next message in each session.
    pub next: [u8; MEMBERS],
    /// Members that answered the fence of this epoch.
    pub answered: u8,
    /// Members whose lease is held.
    pub leases: u8,
    pub cas: Cas,
    pub change: Change,
    pub subject: u8,
    /// Tells answers of the directory apart.
    pub tag: u8,
    /// Resyncing members whose list of chunks was made in this session.
    pub planned: u8,
    /// Of these, the ones that need the chunk.
    pub needs: u8,
    /// A copy to them is under way.
    pub copying: u8,
    /// The number of that copy: a late answer to another one does not count.
    pub copy: [u8; MEMBERS],
    pub ops: [Op; OPS],
}

/// The client's read; one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Read {
    /// 0: none; 1: sent to the member; 2: its data came; [`LATE`].
    pub stage: u8,
    pub owner: u8,
    pub block: u8,
    pub member: u8,
    pub value: u8,
}

/// The client has given up; the reply may still come (only with R8's part switched off).
pub const LATE: u8 = 3;

impl Read {
    /// Whether a client waits for it at that owner, and its range is locked.
    pub fn is_open_at(&self, owner: u8) -> bool {
        matches!(self.stage, 1 | 2) && self.owner == owner
    }
}

/// How often each trouble may still happen; what keeps the space finite.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Budget {
    /// Client reads.
    pub reads: u8,
    /// Drops of a member.
    pub drops: u8,
    /// Absent members taken back.
    pub readmits: u8,
    /// Promotions sent.
    pub promotes: u8,
    /// Copies of the chunk.
    pub copies: u8,
    /// Sessions opened again for suspected loss.
    pub reattaches: u8,
    /// Owner processes that die.
    pub crashes: u8,
    /// Members that restart.
    pub restarts: u8,
    /// Members that die for good.
    pub deaths: u8,
    /// Directory answers that an owner stops waiting for.
    pub overdue: u8,
    /// Messages that the network delivers and keeps.
    pub duplicates: u8,
    /// Leases handed back.
    pub give_backs: u8,
}

/// Messages under way, sorted: the order in which they were sent is no part of the state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Net {
    pub len: u8,
    pub slots: [u64; NET],
}

impl Net {
    /// Puts one in; false if there is no room.
    pub fn add(&mut self, message: u64) -> bool {
        let len = usize::from(self.len);
        if len == NET {
            return false;
        }
        let at = self.slots[..len].partition_point(|&other| other < message);
        self.slots.copy_within(at..len, at + 1);
        self.slots[at] = message;
        self.len += 1;
        true
    }

    /// Takes one out.
    pub fn remove(&mut self, at: usize) -> u64 {
        let len = usize::from(self.len);
        let message = self.slots[..len][at];
        self.slots.copy_within(at + 1..len, at);
        self.slots[len - 1] = 0;
        self.len -= 1;
        message
    }

    pub fn all(&self) -> &[u64] {
        &self.slots[..usize::from(self.len)]
    }
}

/// What was found wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Wrong {
    #[default]
    Nothing,
    /// No order of the operations explains what clients saw.
    NotLinearizable,
    /// The directory calls a member active that lacks an acknowledged write.
    ActiveLacksAcknowledged,
    /// Two owner processes acknowledged in one epoch.
    TwoOwnersInOneEpoch,
    /// The directory calls no member active.
    NoActiveMember,
    /// The object cannot be served though a living member holds everything and nobody could have
    /// acknowledged without it.
    NeedlesslyInaccessible,
    /// A fence was answered while the old owner still held its lease ([`super::lease`]).
    LeaseOutlivesFence,
    /// A fence waited longer than one grace ([`super::lease`]).
    FenceWaitsTooLong,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct State {
    pub members: [Member; MEMBERS],
    pub owners: [Owner; OWNERS],
    pub directory: Record,
    pub net: Net,
    pub read: Read,
    pub monitors: [Monitor; BLOCKS],
    /// The newest acknowledged op of each block.
    pub acked: [u8; BLOCKS],
    /// Who acknowledged in each epoch: 0 nobody, else 1 + slot + 2 * incarnation.
    pub ackers: [u8; EPOCHS],
    /// Writes that clients have begun.
    pub writes: u8,
    /// Members that died for good.
    pub dead: u8,
    /// The last drop was made while no other active member had answered the fence.
    pub blind_drop: bool,
    pub left: Budget,
    pub wrong: Wrong,
    /// A message found no room: the successor is not explored.
    pub overflow: bool,
}

/// Copies with this number or a higher one are in no order with their session's operations.
pub const UNORDERED: u8 = 16;

/// A message, unpacked. `Op` and `Copy` are numbered inside their session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Message {
    Cas {
        owner: u8,
        incarnation: u8,
        tag: u8,
        change: Change,
        subject: u8,
        expect: (u8, u8),
        new: Packed,
        blind: bool,
    },
    Answer {
        owner: u8,
        incarnation: u8,
        tag: u8,
        done: bool,
        revision: u8,
        new: Packed,
    },
    Attach {
        member: u8,
        session: Session,
    },
    Op {
        member: u8,
        session: Session,
        number: u8,
        block: u8,
        version: (u8, u8),
        told: u8,
    },
    Copy {
        member: u8,
        session: Session,
        number: u8,
        versions: [(u8, u8); BLOCKS],
    },
    AckOp {
        member: u8,
        session: Session,
        id: u8,
    },
    AckCopy {
        member: u8,
        session: Session,
        number: u8,
    },
    GiveBack {
        member: u8,
        serial: u8,
    },
}

/// A record without its revision: epoch 3, owner 2, states 2 each, sinces 6 each: 29 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed(pub u32);

impl Record {
    pub fn pack(&self) -> Packed {
        let mut bits = u32::from(self.epoch) | u32::from(self.owner) << 3;
        for m in 0..MEMBERS {
            bits |=
                u32::from(self.state[m]) << (5 + 8 * m) | u32::from(self.since[m]) << (7 + 8 * m);
        }
        Packed(bits)
    }
}

impl Packed {
    pub fn unpack(self, revision: u8) -> Record {
        let mut record = Record {
            revision,
            epoch: (self.0 & 7) as u8,
            owner: (self.0 >> 3 & 3) as u8,
            ..Record::default()
        };
        for m in 0..MEMBERS {
            record.state[m] = (self.0 >> (5 + 8 * m) & 3) as u8;
            record.since[m] = (self.0 >> (7 + 8 * m) & 63) as u8;
        }
        record
    }
}

/// Writes and reads the fields of a message, lowest bits first.
struct Bits {
    word: u64,
    at: u32,
}

impl Bits {
    fn put(mut self, width: u32, value: impl Into<u64>) -> Self {
        let value = value.into();
        assert!(value >> width == 0, "{value} does not fit {width} bits");
        self.word |= value << self.at;
        self.at += width;
        assert!(self.at <= 64, "a message is one word");
        self
    }

    fn get(&mut self, width: u32) -> u8 {
        self.wide(width) as u8
    }

    fn wide(&mut self, width: u32) -> u64 {
        let value = self.word >> self.at & ((1 << width) - 1);
        self.at += width;
        value
    }
}

const CHANGES: [Change; 6] =
    [Change::Claim, Change::Drop, Change::Readmit, Change::Promote, Change::Again, Change::Revive];

impl Message {
    pub fn pack(self) -> u64 {
        let kind = |k: u8| Bits { word: 0, at: 0 }.put(3, k);
        match self {
            Self::Cas { owner, incarnation, tag, change, subject, expect, new, blind } => kind(0)
                .put(1, owner)
                .put(5, incarnation)
                .put(4, tag)
                .put(3, change as u8)
                .put(2, subject)
                .put(5, expect.0)
                .put(3, expect.1)
                .put(29, new.0)
                .put(1, blind),
            Self::Answer { owner, incarnation, tag, done, revision, new } => kind(1)
                .put(1, owner)
                .put(5, incarnation)
                .put(4, tag)
                .put(1, done)
                .put(5, revision)
                .put(29, new.0),
            Self::Attach { member, session } => {
                kind(2).put(2, member).put(3, session.0).put(4, session.1)
            }
            Self::Op { member, session, number, block, version, told } => kind(3)
                .put(2, member)
                .put(3, session.0)
                .put(4, session.1)
                .put(4, number)
                .put(1, block)
                .put(6, version.0)
                .put(3, version.1)
                .put(6, told),
            Self::Copy { member, session, number, versions } => kind(4)
                .put(2, member)
                .put(3, session.0)
                .put(4, session.1)
                .put(5, number)
                .put(6, versions[0].0)
                .put(3, versions[0].1)
                .put(6, versions[1].0)
                .put(3, versions[1].1),
            Self::AckOp { member, session, id } => {
                kind(5).put(2, member).put(3, session.0).put(4, session.1).put(6, id)
            }
            Self::AckCopy { member, session, number } => {
                kind(6).put(2, member).put(3, session.0).put(4, session.1).put(5, number)
            }
            Self::GiveBack { member, serial } => kind(7).put(2, member).put(4, serial),
        }
        .word
    }

    pub fn unpack(word: u64) -> Self {
        let mut b = Bits { word, at: 0 };
        match b.get(3) {
            0 => Self::Cas {
                owner: b.get(1),
                incarnation: b.get(5),
                tag: b.get(4),
                change: CHANGES[usize::from(b.get(3))],
                subject: b.get(2),
                expect: (b.get(5), b.get(3)),
                new: Packed(b.wide(29) as u32),
                blind: b.get(1) == 1,
            },
            1 => Self::Answer {
                owner: b.get(1),
                incarnation: b.get(5),
                tag: b.get(4),
                done: b.get(1) == 1,
                revision: b.get(5),
                new: Packed(b.wide(29) as u32),
            },
            2 => Self::Attach { member: b.get(2), session: (b.get(3), b.get(4)) },
            3 => Self::Op {
                member: b.get(2),
                session: (b.get(3), b.get(4)),
                number: b.get(4),
                block: b.get(1),
                version: (b.get(6), b.get(3)),
                told: b.get(6),
            },
            4 => Self::Copy {
                member: b.get(2),
                session: (b.get(3), b.get(4)),
                number: b.get(5),
                versions: [(b.get(6), b.get(3)), (b.get(6), b.get(3))],
            },
            5 => Self::AckOp { member: b.get(2), session: (b.get(3), b.get(4)), id: b.get(6) },
            6 => {
                Self::AckCopy { member: b.get(2), session: (b.get(3), b.get(4)), number: b.get(5) }
            }
            _ => Self::GiveBack { member: b.get(2), serial: b.get(4) },
        }
    }
}
