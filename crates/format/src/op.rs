//! What one operation on a component is, and what a component knows of one block: the words
//! shared by the store, the wire and the object layer.

use crate::id::{Epoch, OpId, Seq, Ticket};

/// What an operation does to its blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum OpKind {
    /// Stores a payload.
    Write = 1,
    /// The blocks read as zeros and keep their place in the address space.
    Zero = 2,
    /// The blocks read as zeros and hold no space; a tombstone keeps the op id.
    Discard = 3,
}

impl OpKind {
    /// The kind of that code, if it is known.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Write,
            2 => Self::Zero,
            3 => Self::Discard,
            _ => return None,
        })
    }
}

/// The state of one 4 KiB block of a component (`docs/formats.md`). The numbers are on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum BlockState {
    /// Never written, or discarded: zeros, unless a parent has it.
    #[default]
    Absent = 0,
    /// Zeros, and not the parent's.
    Zero = 1,
    /// 4 KiB in the block's home (or in the write log).
    Raw = 2,
    /// Compressed in its home (later).
    Lz4 = 3,
    /// In a packed slot (later).
    Packed = 4,
    /// Known to be damaged here; another member has to supply it.
    Bad = 5,
}

impl BlockState {
    /// The state of that code, if it is known.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Absent,
            1 => Self::Zero,
            2 => Self::Raw,
            3 => Self::Lz4,
            4 => Self::Packed,
            5 => Self::Bad,
            _ => return None,
        })
    }

    /// Whether a read of the block gives zeros without touching a device (no parent considered).
    pub fn reads_as_zero(self) -> bool {
        matches!(self, Self::Absent | Self::Zero)
    }
}

/// What a component knows of one block without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockTag {
    /// The operation that last changed the block; `Seq(0)`: none ever did.
    pub seq: Seq,
    /// What kind of content it has.
    pub state: BlockState,
    /// CRC-32C of the payload, not bound to a place; 0 unless `state` is `Raw`.
    pub crc: u32,
}

/// A run of blocks inside one component. Never crosses a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockRange {
    /// First block, counted from the start of the component.
    pub start: u32,
    /// How many, 1..=256.
    pub count: u16,
}

impl BlockRange {
    /// A whole chunk.
    pub fn of_chunk(chunk: u32) -> Self {
        let count = crate::units::BLOCKS_PER_CHUNK;
        Self { start: chunk * count, count: count as u16 }
    }

    /// The block after the last.
    pub fn end(self) -> u32 {
        self.start + u32::from(self.count)
    }

    /// Whether both share a block.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// The chunk it lies in.
    pub fn chunk(self) -> u32 {
        self.start / crate::units::BLOCKS_PER_CHUNK
    }

    /// Whether it lies inside one chunk and is not empty.
    pub fn is_valid(self) -> bool {
        self.count >= 1
            && self
                .start
                .checked_add(u32::from(self.count))
                .is_some_and(|end| (end - 1) / crate::units::BLOCKS_PER_CHUNK == self.chunk())
    }
}

/// What a component remembers of an operation that may not be committed (R7 of `docs/mirror.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpRecord {
    /// Its place in the order.
    pub id: OpId,
    /// Whose it was.
    pub ticket: Ticket,
    /// What it did.
    pub kind: OpKind,
    /// Where.
    pub range: BlockRange,
}

/// Facts about a component that its store holds durably.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promise {
    /// Messages of a lower epoch are refused (R1).
    pub fenced: Epoch,
    /// Everything at or below is durable on every active member, as far as this one was told.
    pub committed: Seq,
    /// The highest operation it holds.
    pub newest: Seq,
}
