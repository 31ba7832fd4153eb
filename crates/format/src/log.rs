//! The write log: segments, batches, descriptors, footers.
//!
//! A segment is a header block, batches, and, once it is sealed, a footer in its last blocks that
//! repeats every descriptor. A batch is one durable device write: header blocks (fixed part,
//! descriptors, CRC list), then payload blocks. Batches are numbered over the life of the group;
//! each names its place, the checksum of the one before, and the last one known durable when it
//! was written. Nothing here is believed before its checksum, its place and the salt of the group
//! match: payload is guest data and may look like anything.
//!
//! Kinds 16 to 31 are reserved for parity and snapshots; a program that meets a kind it does not
//! know refuses the log ([`LogError::Newer`]).

use crate::checksum::{crc, crc_append};
use crate::op::BlockRange;
use crate::units::{BLOCK_LEN, BLOCKS_PER_CHUNK};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of a segment.
pub const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"ATOLLSEG");
/// First eight bytes of a batch.
pub const BATCH_MAGIC: u64 = u64::from_le_bytes(*b"ATOLLBAT");
/// First eight bytes of the last block of a sealed segment.
pub const FOOTER_MAGIC: u64 = u64::from_le_bytes(*b"ATOLLFOO");
/// The version of all structures of the log.
pub const VERSION: u16 = 1;
/// Length of the fixed part of a batch header.
pub const HEAD_LEN: usize = 256;
/// Length of one descriptor.
pub const DESCRIPTOR_LEN: usize = 64;
/// Most descriptors in one batch.
pub const BATCH_OPS_MAX: u32 = 1024;
/// Most payload blocks in one batch: 4 MiB.
pub const BATCH_BLOCKS_MAX: u32 = 1024;
/// Most CRCs in one batch: those of the payload and of 32 chunks that were placed.
pub const BATCH_CRCS_MAX: u32 = BATCH_BLOCKS_MAX + 32 * 256;

/// Why bytes are not a part of this log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogError {
    /// No such structure here.
    #[error("nothing here")]
    Nothing,
    /// The head is there; its checksum or its place is wrong.
    #[error("damaged")]
    Damaged,
    /// A newer program wrote it: version or kind unknown.
    #[error("written by a newer version: {what} {value}")]
    Newer {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
}

/// What a descriptor says. The numbers are on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum LogKind {
    /// Stores blocks of the payload.
    Write = 1,
    /// Zeros the blocks.
    Zero = 2,
    /// Discards the blocks.
    Discard = 3,
    /// The blocks are known to be damaged on every source.
    Bad = 4,
    /// Stores a whole chunk whose bytes were durable in slot `payload_at` before this was written.
    Placed = 5,
    /// Everything at or below `seq` is durable on every active member.
    Committed = 6,
    /// Promises to refuse epochs below `epoch`.
    Fence = 7,
    /// Opens session (`epoch`, `number`); with [`FLAG_INCOMPLETE`], to bring the component up to
    /// date.
    Attach = 8,
    /// Makes a component: `component` local number, `client` its id, `group` its object, `parts`
    /// its leg, `block` its size in blocks, `epoch` its first epoch.
    Create = 9,
    /// Removes it.
    Delete = 10,
    /// Changes its size to `block` blocks.
    Grow = 11,
    /// The operation `number` of `client` is here though it was not appended here, as a copy; or,
    /// with [`FLAG_FORGET`], a copy undid it.
    Ticket = 12,
    /// Nothing is missing any more that an [`LogKind::Attach`] said is, and every operation up to
    /// `seq` has come.
    Complete = 13,
    /// Reserved: a slice of a full parity stripe.
    Group = 16,
    /// Reserved: the stripe is committed.
    GroupCommit = 17,
    /// Reserved: the stripe is revoked.
    GroupRevoke = 18,
    /// Reserved: new parity and its vector.
    Fold = 19,
    /// Reserved: the target of a fold becomes the base.
    Retire = 20,
    /// Reserved: a fold is forgotten.
    Finalise = 21,
    /// Reserved: the consistent point of a snapshot.
    Barrier = 22,
    /// Reserved: a block pulled from a parent.
    Pull = 23,
    /// Reserved: the component is frozen.
    Freeze = 24,
}

impl LogKind {
    /// The kinds that this program writes and reads.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Write,
            2 => Self::Zero,
            3 => Self::Discard,
            4 => Self::Bad,
            5 => Self::Placed,
            6 => Self::Committed,
            7 => Self::Fence,
            8 => Self::Attach,
            9 => Self::Create,
            10 => Self::Delete,
            11 => Self::Grow,
            12 => Self::Ticket,
            13 => Self::Complete,
            _ => return None,
        })
    }

    /// Whether it changes blocks, and so has a range.
    pub fn has_range(self) -> bool {
        matches!(self, Self::Write | Self::Zero | Self::Discard | Self::Bad | Self::Placed)
    }
}

/// Set on a block record that another member supplied: it overwrites whatever is there, also with
/// a lower seq, and is neither listed as uncommitted nor remembered as a client's operation.
pub const FLAG_FORCED: u16 = 1;

/// Set on a [`LogKind::Ticket`] that takes one away.
pub const FLAG_FORGET: u16 = 2;

/// Set on a [`LogKind::Attach`]: until a [`LogKind::Complete`] the component may lack any operation
/// above `seq`.
pub const FLAG_INCOMPLETE: u16 = 4;

/// Set on a [`LogKind::Discard`] of a chunk that had been touched, or was about to be: that it was
/// discarded must not be forgotten, also where nothing else of the chunk is left in the log.
pub const FLAG_TOUCHED: u16 = 8;

/// One operation in a batch, 64 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct Descriptor {
    /// Local number of the component.
    pub component: U32,
    /// A [`LogKind`].
    pub kind: u8,
    /// Column of a parity leg, 0 in a mirror; in `Create` the capacity device.
    pub column: u8,
    /// [`FLAG_FORCED`] and the others.
    pub flags: U16,
    /// First block.
    pub block: U32,
    /// How many blocks.
    pub blocks: U16,
    /// Leg, in `Create`; else 0.
    pub parts: U16,
    /// Epoch of the operation.
    pub epoch: U32,
    /// First block of its payload, counted from the start of the batch's payload; the slot, in
    /// `Placed`.
    pub payload_at: U32,
    /// Seq of the operation.
    pub seq: U64,
    /// CRC-32C of a payload of one block; else the index of its first in the batch's CRC list.
    pub crc: U32,
    /// Number of the client's operation.
    pub number: U32,
    /// The client.
    pub client: U64,
    /// Fold or group id; 0 in a mirror.
    pub group: U64,
    /// Every number of the client below this one is settled.
    pub settled_below: U32,
    /// Key epoch of an encrypted payload; 0.
    pub key_epoch: U16,
    /// 0.
    pub reserved: U16,
}

/// First block of a segment; the rest of the block is zero.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawSegment {
    magic: U64,
    version: U16,
    reserved: [u8; 6],
    salt: U64,
    generation: U64,
    segment: U64,
    at: U64,
    journal_to: U64,
    first_batch: U64,
    crc: U32,
    reserved_b: U32,
}

/// The fixed part of a batch header.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawHead {
    magic: U64,
    version: U16,
    flags: U16,
    ops: U32,
    salt: U64,
    generation: U64,
    seq: U64,
    at: U64,
    segment: U64,
    durable_to: U64,
    journal_to: U64,
    prev_crc: U32,
    crc_count: U32,
    header_blocks: U32,
    payload_blocks: U32,
    reserved: [u8; 164],
    head_crc: U32,
}

/// Last block of a sealed segment; the rest of the block is zero, the body lies before it.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawFooter {
    magic: U64,
    version: U16,
    reserved: [u8; 6],
    salt: U64,
    segment: U64,
    at: U64,
    body_len: U32,
    body_crc: U32,
    batches: U32,
    crc: U32,
}

const _: () = {
    assert!(size_of::<Descriptor>() == DESCRIPTOR_LEN);
    assert!(std::mem::offset_of!(Descriptor, seq) == 24);
    assert!(std::mem::offset_of!(Descriptor, client) == 40);
    assert!(std::mem::offset_of!(Descriptor, settled_below) == 56);
    assert!(size_of::<RawHead>() == HEAD_LEN);
    assert!(std::mem::offset_of!(RawHead, prev_crc) == 72);
    assert!(std::mem::offset_of!(RawHead, head_crc) == 252);
    assert!(size_of::<RawSegment>() == 72);
    assert!(size_of::<RawFooter>() == 56);
};

/// A segment's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// Of the group.
    pub salt: u64,
    /// Which opening of the group wrote it.
    pub generation: u64,
    /// Counts the segments over the life of the group, from 1.
    pub segment: u64,
    /// Its own place: byte of the device.
    pub at: u64,
    /// The last journal batch that was durable when the segment was begun: the one that let its
    /// old content be overwritten, or a later one.
    pub journal_to: u64,
    /// Seq of its first batch.
    pub first_batch: u64,
}

impl SegmentHeader {
    /// The block to write.
    pub fn encode(&self) -> [u8; BLOCK_LEN] {
        let mut raw = RawSegment::new_zeroed();
        raw.magic = SEGMENT_MAGIC.into();
        raw.version = VERSION.into();
        raw.salt = self.salt.into();
        raw.generation = self.generation.into();
        raw.segment = self.segment.into();
        raw.at = self.at.into();
        raw.journal_to = self.journal_to.into();
        raw.first_batch = self.first_batch.into();
        raw.crc = crc(raw.as_bytes()).into();
        let mut block = [0; BLOCK_LEN];
        block[..size_of::<RawSegment>()].copy_from_slice(raw.as_bytes());
        block
    }

    /// Reads the header of a segment that lies at byte `at`.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn decode(block: &[u8], at: u64, salt: u64) -> Result<Self, LogError> {
        let (raw, _) = RawSegment::ref_from_prefix(block).map_err(|_| LogError::Nothing)?;
        if raw.magic.get() != SEGMENT_MAGIC || raw.salt.get() != salt {
            return Err(LogError::Nothing);
        }
        let mut zeroed = *raw;
        zeroed.crc = 0.into();
        if crc(zeroed.as_bytes()) != raw.crc.get() || raw.at.get() != at {
            return Err(LogError::Damaged);
        }
        known_version(raw.version)?;
        Ok(Self {
            salt,
            generation: raw.generation.get(),
            segment: raw.segment.get(),
            at,
            journal_to: raw.journal_to.get(),
            first_batch: raw.first_batch.get(),
        })
    }
}

fn known_version(version: U16) -> Result<(), LogError> {
    if version.get() == VERSION {
        return Ok(());
    }
    Err(LogError::Newer { what: "log version", value: u32::from(version.get()) })
}

/// The fixed part of a batch header, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHead {
    /// Of the group.
    pub salt: u64,
    /// Which opening of the group wrote it.
    pub generation: u64,
    /// Counts the batches over the life of the group, from 1.
    pub seq: u64,
    /// Its own place: byte of the device.
    pub at: u64,
    /// The segment it lies in.
    pub segment: u64,
    /// The last batch that was durable when this one was written.
    pub durable_to: u64,
    /// The last journal batch that was durable when this one was written.
    pub journal_to: u64,
    /// `head_crc` of the batch before; 0 for the first of a group.
    pub prev_crc: u32,
    /// Number of descriptors.
    pub ops: u32,
    /// Length of the CRC list.
    pub crc_count: u32,
    /// Blocks of header.
    pub header_blocks: u32,
    /// Blocks of payload.
    pub payload_blocks: u32,
    /// Checksum of the header.
    pub head_crc: u32,
}

impl BatchHead {
    /// Bytes of the whole batch on the device.
    pub fn len_bytes(&self) -> u64 {
        (u64::from(self.header_blocks) + u64::from(self.payload_blocks)) * BLOCK_LEN as u64
    }
    /// Byte of the device where the payload begins.
    pub fn payload_at(&self) -> u64 {
        self.at + u64::from(self.header_blocks) * BLOCK_LEN as u64
    }
    /// Bytes of fixed part, descriptors and CRC list, without padding.
    pub fn used_len(&self) -> usize {
        used_len(self.ops, self.crc_count)
    }
}

/// Bytes of fixed part, descriptors and CRC list, without padding.
pub fn used_len(ops: u32, crc_count: u32) -> usize {
    HEAD_LEN + ops as usize * DESCRIPTOR_LEN + crc_count as usize * 4
}

/// Blocks of a header with so many descriptors and CRCs.
pub fn header_blocks(ops: u32, crc_count: u32) -> u32 {
    used_len(ops, crc_count).div_ceil(BLOCK_LEN) as u32
}

/// A batch header, checked: its parts are inside it and inside the batch.
#[derive(Clone, Debug)]
pub struct BatchView<'a> {
    /// The fixed part.
    pub head: BatchHead,
    /// The descriptors.
    pub ops: &'a [Descriptor],
    crcs: &'a [U32],
}

impl BatchView<'_> {
    /// CRC-32C of each payload block of descriptor `op`.
    pub fn crcs(&self, op: &Descriptor) -> impl Iterator<Item = u32> + '_ {
        let (one, list) = if op.blocks.get() == 1 {
            (Some(op.crc.get()), &self.crcs[..0])
        } else {
            let at = op.crc.get() as usize;
            (None, &self.crcs[at..at + usize::from(op.blocks.get())])
        };
        one.into_iter().chain(list.iter().map(|c| c.get()))
    }
}

/// Fills in the fixed part of a header whose descriptors and CRC list are there already, and
/// returns its checksum. `header` is padded with zeros to `head.header_blocks` blocks.
///
/// # Panics
/// If `header` is not as long as `head` says.
pub fn seal_batch(head: &BatchHead, header: &mut [u8]) -> u32 {
    assert!(header.len() == head.header_blocks as usize * BLOCK_LEN, "length of a batch header");
    assert!(head.used_len() <= header.len(), "descriptors beyond the header");
    let mut raw = RawHead::new_zeroed();
    raw.magic = BATCH_MAGIC.into();
    raw.version = VERSION.into();
    raw.ops = head.ops.into();
    raw.salt = head.salt.into();
    raw.generation = head.generation.into();
    raw.seq = head.seq.into();
    raw.at = head.at.into();
    raw.segment = head.segment.into();
    raw.durable_to = head.durable_to.into();
    raw.journal_to = head.journal_to.into();
    raw.prev_crc = head.prev_crc.into();
    raw.crc_count = head.crc_count.into();
    raw.header_blocks = head.header_blocks.into();
    raw.payload_blocks = head.payload_blocks.into();
    header[..HEAD_LEN].copy_from_slice(raw.as_bytes());
    let sum = crc(header);
    header[HEAD_LEN - 4..HEAD_LEN].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// Reads only the fixed part, to learn how long the header is; nothing but the lengths may be
/// used before [`decode_batch`] has seen the whole header.
///
/// # Errors
/// [`LogError::Nothing`] if there is no batch of this group that says it lies here.
pub fn peek_batch(bytes: &[u8], at: u64, salt: u64) -> Result<BatchHead, LogError> {
    let (raw, _) = RawHead::ref_from_prefix(bytes).map_err(|_| LogError::Nothing)?;
    if raw.magic.get() != BATCH_MAGIC || raw.salt.get() != salt || raw.at.get() != at {
        return Err(LogError::Nothing);
    }
    let head = BatchHead {
        salt,
        generation: raw.generation.get(),
        seq: raw.seq.get(),
        at,
        segment: raw.segment.get(),
        durable_to: raw.durable_to.get(),
        journal_to: raw.journal_to.get(),
        prev_crc: raw.prev_crc.get(),
        ops: raw.ops.get(),
        crc_count: raw.crc_count.get(),
        header_blocks: raw.header_blocks.get(),
        payload_blocks: raw.payload_blocks.get(),
        head_crc: raw.head_crc.get(),
    };
    let absurd = head.ops > BATCH_OPS_MAX
        || head.payload_blocks > BATCH_BLOCKS_MAX
        || head.crc_count > BATCH_CRCS_MAX
        || head.header_blocks != header_blocks(head.ops, head.crc_count);
    if absurd {
        return Err(LogError::Damaged);
    }
    Ok(head)
}

/// Reads a whole batch header that lies at byte `at`.
///
/// # Errors
/// See [`LogError`]; `Damaged` also when `bytes` is shorter than the header.
pub fn decode_batch(bytes: &[u8], at: u64, salt: u64) -> Result<BatchView<'_>, LogError> {
    let head = peek_batch(bytes, at, salt)?;
    let len = head.header_blocks as usize * BLOCK_LEN;
    let header = bytes.get(..len).ok_or(LogError::Damaged)?;
    let sum = crc_append(crc(&header[..HEAD_LEN - 4]), &[0; 4]);
    if crc_append(sum, &header[HEAD_LEN..]) != head.head_crc {
        return Err(LogError::Damaged);
    }
    view(head, &header[..head.used_len()])
}

fn view(head: BatchHead, used: &[u8]) -> Result<BatchView<'_>, LogError> {
    let (raw, _) = RawHead::ref_from_prefix(used).map_err(|_| LogError::Damaged)?;
    known_version(raw.version)?;
    let body = used.get(HEAD_LEN..).ok_or(LogError::Damaged)?;
    let (ops, list) = <[Descriptor]>::ref_from_prefix_with_elems(body, head.ops as usize)
        .map_err(|_| LogError::Damaged)?;
    let (crcs, _) = <[U32]>::ref_from_prefix_with_elems(list, head.crc_count as usize)
        .map_err(|_| LogError::Damaged)?;
    for op in ops {
        let kind = LogKind::from_code(op.kind)
            .ok_or(LogError::Newer { what: "kind of log record", value: u32::from(op.kind) })?;
        let range = BlockRange { start: op.block.get(), count: op.blocks.get() };
        if kind.has_range() && !range.is_valid() {
            return Err(LogError::Damaged);
        }
        let blocks = u64::from(op.blocks.get());
        if kind == LogKind::Write {
            let payload_end = u64::from(op.payload_at.get()) + blocks;
            let list_end = u64::from(op.crc.get()) + blocks;
            if payload_end > u64::from(head.payload_blocks)
                || (blocks > 1 && list_end > u64::from(head.crc_count))
            {
                return Err(LogError::Damaged);
            }
        }
        if kind == LogKind::Placed {
            let list_end = u64::from(op.crc.get()) + blocks;
            if blocks != u64::from(BLOCKS_PER_CHUNK) || list_end > u64::from(head.crc_count) {
                return Err(LogError::Damaged);
            }
        }
    }
    Ok(BatchView { head, ops, crcs })
}

/// Collects the headers of a segment's batches for its footer.
#[derive(Default, Debug)]
pub struct FooterBuilder {
    body: Vec<u8>,
    batches: u32,
}

impl FooterBuilder {
    /// Adds a batch, whose whole header is `header`.
    pub fn push(&mut self, head: &BatchHead, header: &[u8]) {
        self.body.extend_from_slice(&header[..head.used_len()]);
        self.batches += 1;
    }

    /// Bytes that the footer will take after one more batch with so many descriptors and CRCs.
    pub fn len_after(&self, ops: u32, crc_count: u32) -> u64 {
        let body = self.body.len() + used_len(ops, crc_count);
        (body.next_multiple_of(BLOCK_LEN) + BLOCK_LEN) as u64
    }

    /// The footer of the segment that ends at byte `end`: what to write in its last blocks.
    pub fn encode(&self, salt: u64, segment: u64, end: u64) -> Vec<u8> {
        let mut bytes = self.body.clone();
        bytes.resize(self.body.len().next_multiple_of(BLOCK_LEN), 0);
        let mut raw = RawFooter::new_zeroed();
        raw.magic = FOOTER_MAGIC.into();
        raw.version = VERSION.into();
        raw.salt = salt.into();
        raw.segment = segment.into();
        raw.at = (end - BLOCK_LEN as u64).into();
        raw.body_len = (self.body.len() as u32).into();
        raw.body_crc = crc(&self.body).into();
        raw.batches = self.batches.into();
        raw.crc = crc(raw.as_bytes()).into();
        bytes.extend_from_slice(raw.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(BLOCK_LEN), 0);
        bytes
    }
}

/// What the last block of a sealed segment says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// Which segment it seals.
    pub segment: u64,
    /// Bytes of its body; the body begins that many bytes, rounded up to blocks, before the block.
    pub body_len: u32,
    /// Checksum of the body.
    pub body_crc: u32,
    /// Batches in it.
    pub batches: u32,
}

impl Footer {
    /// Reads the last block of a segment, which lies at byte `at`.
    ///
    /// # Errors
    /// See [`LogError`].
    pub fn decode(block: &[u8], at: u64, salt: u64) -> Result<Self, LogError> {
        let (raw, _) = RawFooter::ref_from_prefix(block).map_err(|_| LogError::Nothing)?;
        if raw.magic.get() != FOOTER_MAGIC || raw.salt.get() != salt {
            return Err(LogError::Nothing);
        }
        let mut zeroed = *raw;
        zeroed.crc = 0.into();
        if crc(zeroed.as_bytes()) != raw.crc.get() || raw.at.get() != at {
            return Err(LogError::Damaged);
        }
        known_version(raw.version)?;
        Ok(Self {
            segment: raw.segment.get(),
            body_len: raw.body_len.get(),
            body_crc: raw.body_crc.get(),
            batches: raw.batches.get(),
        })
    }

    /// The batches that `body` lists, in order.
    ///
    /// # Errors
    /// `Damaged` if its checksum does not match or a part of it lies outside.
    pub fn batches<'a>(&self, body: &'a [u8], salt: u64) -> Result<Vec<BatchView<'a>>, LogError> {
        let mut rest = body.get(..self.body_len as usize).ok_or(LogError::Damaged)?;
        if crc(rest) != self.body_crc {
            return Err(LogError::Damaged);
        }
        let mut batches = Vec::new();
        for _ in 0..self.batches {
            let (raw, _) = RawHead::ref_from_prefix(rest).map_err(|_| LogError::Damaged)?;
            let head = peek_batch(rest, raw.at.get(), salt)?;
            let used = rest.get(..head.used_len()).ok_or(LogError::Damaged)?;
            batches.push(view(head, used)?);
            rest = &rest[head.used_len()..];
        }
        Ok(batches)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        BatchHead, Descriptor, Footer, FooterBuilder, LogError, LogKind, SegmentHeader,
        decode_batch, header_blocks, seal_batch,
    };
    use crate::units::BLOCK_LEN;
    use zerocopy::{FromZeros, IntoBytes};

    fn batch(ops: &[Descriptor], crcs: &[u32], payload_blocks: u32) -> (BatchHead, Vec<u8>) {
        let (n, c) = (ops.len() as u32, crcs.len() as u32);
        let mut head = BatchHead {
            salt: 9,
            generation: 2,
            seq: 77,
            at: 8192,
            segment: 3,
            durable_to: 76,
            journal_to: 5,
            prev_crc: 0xabcd,
            ops: n,
            crc_count: c,
            header_blocks: header_blocks(n, c),
            payload_blocks,
            head_crc: 0,
        };
        let mut bytes = vec![0; head.header_blocks as usize * BLOCK_LEN];
        let list = super::HEAD_LEN + ops.len() * super::DESCRIPTOR_LEN;
        bytes[super::HEAD_LEN..list].copy_from_slice(ops.as_bytes());
        for (i, c) in crcs.iter().enumerate() {
            bytes[list + 4 * i..list + 4 * i + 4].copy_from_slice(&c.to_le_bytes());
        }
        head.head_crc = seal_batch(&head, &mut bytes);
        (head, bytes)
    }

    fn write(block: u32, blocks: u16, payload_at: u32, crc: u32) -> Descriptor {
        let mut op = Descriptor::new_zeroed();
        op.kind = LogKind::Write as u8;
        op.block = block.into();
        op.blocks = blocks.into();
        op.payload_at = payload_at.into();
        op.crc = crc.into();
        op
    }

    #[test]
    fn a_batch_reads_as_it_was_written_and_its_footer_repeats_it() {
        let (head, bytes) = batch(&[write(1, 1, 0, 11), write(8, 3, 1, 0)], &[21, 22, 23], 4);
        let view = decode_batch(&bytes, 8192, 9).expect("valid");
        assert_eq!(view.head, head);
        assert_eq!(view.crcs(&view.ops[0]).collect::<Vec<_>>(), [11]);
        assert_eq!(view.crcs(&view.ops[1]).collect::<Vec<_>>(), [21, 22, 23]);

        let mut builder = FooterBuilder::default();
        builder.push(&head, &bytes);
        builder.push(&head, &bytes);
        let footer = builder.encode(9, 3, 1 << 20);
        let (body, last) = footer.split_at(footer.len() - BLOCK_LEN);
        let footer = Footer::decode(last, (1 << 20) - BLOCK_LEN as u64, 9).expect("valid");
        let again = footer.batches(body, 9).expect("valid");
        assert_eq!(again.len(), 2);
        assert_eq!(again[1].head, head);
        assert_eq!(again[1].crcs(&again[1].ops[1]).collect::<Vec<_>>(), [21, 22, 23]);
    }

    #[test]
    fn a_batch_at_another_place_of_another_group_or_with_a_flipped_bit_is_refused() {
        let (_, bytes) = batch(&[write(1, 1, 0, 11)], &[], 1);
        assert_eq!(decode_batch(&bytes, 4096, 9).err(), Some(LogError::Nothing));
        assert_eq!(decode_batch(&bytes, 8192, 8).err(), Some(LogError::Nothing));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(decode_batch(&bad, 8192, 9).is_err(), "byte {at}");
        }
    }

    #[test]
    fn ranges_outside_the_batch_are_refused_although_the_checksum_matches() {
        for op in [write(1, 1, 1, 0), write(1, 2, 0, 0), write(255, 2, 0, 0), write(1, 0, 0, 0)] {
            let (_, bytes) = batch(&[op], &[], 1);
            assert_eq!(decode_batch(&bytes, 8192, 9).err(), Some(LogError::Damaged));
        }
        let placed = |blocks, crc| {
            let mut op = write(0, blocks, 7, crc);
            op.kind = LogKind::Placed as u8;
            op
        };
        let list = [1; 256];
        let (_, bytes) = batch(&[placed(256, 0)], &list, 0);
        let view = decode_batch(&bytes, 8192, 9).expect("valid");
        assert_eq!(view.crcs(&view.ops[0]).count(), 256);
        for op in [placed(256, 1), placed(255, 0), placed(1, 0)] {
            let (_, bytes) = batch(&[op], &list, 0);
            assert_eq!(decode_batch(&bytes, 8192, 9).err(), Some(LogError::Damaged));
        }
        let mut later = write(1, 1, 0, 0);
        later.kind = LogKind::Fold as u8;
        let (_, bytes) = batch(&[later], &[], 1);
        assert!(matches!(decode_batch(&bytes, 8192, 9), Err(LogError::Newer { value: 19, .. })));
    }

    #[test]
    fn a_segment_header_reads_as_it_was_written() {
        let header = SegmentHeader {
            salt: 1,
            generation: 2,
            segment: 3,
            at: 4096,
            journal_to: 5,
            first_batch: 6,
        };
        assert_eq!(SegmentHeader::decode(&header.encode(), 4096, 1), Ok(header));
        assert_eq!(SegmentHeader::decode(&header.encode(), 0, 1), Err(LogError::Damaged));
        assert_eq!(SegmentHeader::decode(&header.encode(), 4096, 2), Err(LogError::Nothing));
    }
}
