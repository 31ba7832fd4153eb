//! Where the bytes of a block are. `State::resolve` finds it, and `block_reader` reads each place
//! for clients. Read-ahead, destage, the scrub and the checks read slots and the log by themselves.
//!
//! A block is in the log, in a slot of its chunk, or nowhere. Each place that is still to come is a
//! variant here, a branch of `resolve` and one of `block_reader`:
//! - **a packed slot**, which compressed or deduplicated blocks share: slot, offset and length come
//!   from the chunk's page, whose entries are larger then;
//! - **the parent**, for a block that was never written in a clone: the store can only say so (its
//!   state is absent), and the owner reads the object that the clone was made of;
//! - **the base of a parity row**, a version that is asked for by its seq: the slot holds it as
//!   long as newer ones stay in the log.
//!
//! A line of a hybrid group's cache is no place: it is a copy of a slot's bytes, tried first by
//! whoever reads the slot, as what was read ahead is.

use atoll_format::op::{BlockState, BlockTag};

/// See the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockPlace {
    /// In the write log: block of the log device.
    Log(u32),
    /// In a slot: block of the component's capacity device.
    Slot(u32),
    /// Nowhere: it has no bytes, and reads as zeros.
    Nowhere,
    /// Its bytes are not good: another member may have them.
    Damaged,
    /// Memory does not say: the chunk's page has to be read first.
    Unread,
}

impl BlockPlace {
    pub(crate) fn has_bytes(self) -> bool {
        matches!(self, Self::Log(_) | Self::Slot(_))
    }

    /// The block of the capacity device, if it is in a slot.
    pub(crate) fn slot_block(self) -> Option<u32> {
        match self {
            Self::Slot(at) => Some(at),
            _ => None,
        }
    }

    /// Where the block lies that is `n` blocks behind and in one run with this one.
    pub(crate) fn behind(self, n: u32) -> Self {
        match self {
            Self::Log(at) => Self::Log(at + n),
            Self::Slot(at) => Self::Slot(at + n),
            other => other,
        }
    }
}

/// A block, resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResolvedBlock {
    pub place: BlockPlace,
    pub tag: BlockTag,
}

impl ResolvedBlock {
    /// One that has no good bytes; of its tag only the seq counts.
    pub(crate) fn damaged(tag: BlockTag) -> Self {
        let tag = BlockTag { seq: tag.seq, state: BlockState::Bad, crc: 0 };
        Self { place: BlockPlace::Damaged, tag }
    }

    /// Whether memory says where it is.
    pub(crate) fn is_known(&self) -> bool {
        self.place != BlockPlace::Unread
    }
}
