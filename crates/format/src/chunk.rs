//! The metadata of the capacity tier: chunk table, pages, journal, checkpoint, component records.
//!
//! A chunk (1 MiB of a component) has a 32-byte entry in the chunk table; its 256 blocks have 12
//! bytes each in a page, apart from the data. The table and the components lie in the checkpoint,
//! twice; what changed since lies in the journal. A page is copy-on-write and named by place,
//! generation and checksum in its chunk's entry.

use crate::checksum::{crc, crc_append};
use crate::id::{ComponentId, Seq};
use crate::op::BlockState;
use crate::units::{BLOCK_LEN, BLOCKS_PER_CHUNK, SEQ_MAX};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First eight bytes of a page.
pub const PAGE_MAGIC: u64 = u64::from_le_bytes(*b"ATOLLPAG");
/// First eight bytes of a journal batch.
pub const JOURNAL_MAGIC: u64 = u64::from_le_bytes(*b"ATOLLJRN");
/// First eight bytes of a checkpoint.
pub const CHECKPOINT_MAGIC: u64 = u64::from_le_bytes(*b"ATOLLCKP");
/// The version of all structures of this file.
pub const VERSION: u16 = 1;
/// "No slot", "no page".
pub const NONE: u32 = u32::MAX;
/// Length of a page of class 0.
pub const PAGE_LEN: usize = BLOCK_LEN;

/// A number of 48 bits.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct U48([u8; 6]);

impl U48 {
    /// `value`, which must fit.
    ///
    /// # Panics
    /// If it does not.
    pub fn new(value: u64) -> Self {
        assert!(value <= SEQ_MAX, "{value} does not fit 48 bits");
        let b = value.to_le_bytes();
        Self([b[0], b[1], b[2], b[3], b[4], b[5]])
    }
    /// Its value.
    pub fn get(self) -> u64 {
        let b = self.0;
        u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], 0, 0])
    }
}

/// The chunk has no page: all its blocks have the state [`FLAG_ZERO`] says and the seq `base_seq`.
pub const FLAG_UNIFORM: u8 = 1;
/// The blocks of a uniform chunk are zero; without it they are absent.
pub const FLAG_ZERO: u8 = 2;
/// Reserved: the slot is shared with another chunk.
pub const FLAG_SHARED: u8 = 4;
/// Reserved: the pages lie on the cache device.
pub const FLAG_HYBRID_HOME: u8 = 8;
/// Reserved: some blocks lie in packed slots.
pub const FLAG_PACKED: u8 = 16;

/// One chunk in the chunk table, 32 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct RawChunkEntry {
    slot: U32,
    page: U32,
    class: u8,
    flags: u8,
    page_generation: U16,
    max_seq: U48,
    base_seq: U48,
    epoch: U32,
    page_crc: U32,
}

/// A chunk, decoded. Blocks that the overlay in memory does not name are in the page, or, without
/// one, as [`ChunkEntry::base`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkEntry {
    /// Where its bytes are: slot of the device, or [`NONE`].
    pub slot: u32,
    /// Where its page is: page of the device, or [`NONE`].
    pub page: u32,
    /// Generation of the page; wraps.
    pub page_generation: u16,
    /// `page_crc` of the page's header.
    pub page_crc: u32,
    /// Newest operation that ever touched the chunk, discards included.
    pub max_seq: Seq,
    /// Without a page: the seq of all blocks. With one: reserved for parity (`min-retired`), 0.
    pub base_seq: Seq,
    /// Without a page: the blocks are zero, else absent.
    pub base_zero: bool,
}

impl Default for ChunkEntry {
    fn default() -> Self {
        Self {
            slot: NONE,
            page: NONE,
            page_generation: 0,
            page_crc: 0,
            max_seq: Seq(0),
            base_seq: Seq(0),
            base_zero: false,
        }
    }
}

impl ChunkEntry {
    /// What a block is that neither overlay nor page name.
    pub fn base(&self) -> BlockEntry {
        let state = if self.base_zero { BlockState::Zero } else { BlockState::Absent };
        BlockEntry { crc: 0, seq: self.base_seq, state }
    }

    /// As on disk.
    pub fn encode(&self) -> RawChunkEntry {
        let mut flags = 0;
        if self.page == NONE {
            flags |= FLAG_UNIFORM;
        }
        if self.base_zero {
            flags |= FLAG_ZERO;
        }
        RawChunkEntry {
            slot: self.slot.into(),
            page: self.page.into(),
            class: 0,
            flags,
            page_generation: self.page_generation.into(),
            max_seq: U48::new(self.max_seq.0),
            base_seq: U48::new(self.base_seq.0),
            epoch: 0.into(),
            page_crc: self.page_crc.into(),
        }
    }
}

impl RawChunkEntry {
    /// The entry, if this program understands it.
    ///
    /// # Errors
    /// [`MetaError::Newer`] for page classes and flags of later versions, `Damaged` for
    /// contradictions.
    pub fn decode(&self) -> Result<ChunkEntry, MetaError> {
        if self.class != 0 {
            return Err(MetaError::Newer { what: "page class", value: u32::from(self.class) });
        }
        if self.flags & !(FLAG_UNIFORM | FLAG_ZERO) != 0 {
            return Err(MetaError::Newer { what: "chunk flags", value: u32::from(self.flags) });
        }
        if (self.page.get() == NONE) != (self.flags & FLAG_UNIFORM != 0) {
            return Err(MetaError::Damaged);
        }
        Ok(ChunkEntry {
            slot: self.slot.get(),
            page: self.page.get(),
            page_generation: self.page_generation.get(),
            page_crc: self.page_crc.get(),
            max_seq: Seq(self.max_seq.get()),
            base_seq: Seq(self.base_seq.get()),
            base_zero: self.flags & FLAG_ZERO != 0,
        })
    }
}

/// Why metadata is not usable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MetaError {
    /// No such structure here.
    #[error("nothing here")]
    Nothing,
    /// It is there; its checksum, place or content is wrong.
    #[error("damaged")]
    Damaged,
    /// A newer program wrote it.
    #[error("written by a newer version: {what} {value}")]
    Newer {
        /// Which field.
        what: &'static str,
        /// Its value.
        value: u32,
    },
}

fn known_version(version: U16) -> Result<(), MetaError> {
    if version.get() == VERSION {
        return Ok(());
    }
    Err(MetaError::Newer { what: "metadata version", value: u32::from(version.get()) })
}

/// One block in a page, 12 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawBlockEntry {
    crc: U32,
    seq: U48,
    state: u8,
    flags: u8,
}

/// One block, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockEntry {
    /// Checksum bound to (component, block); 0 unless the state is `Raw`.
    pub crc: u32,
    /// The operation that last changed it.
    pub seq: Seq,
    /// Its state: absent, zero, raw or bad.
    pub state: BlockState,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawPage {
    magic: U64,
    version: U16,
    class: u8,
    entry_len: u8,
    page_crc: U32,
    group: U64,
    component: U64,
    chunk: U32,
    page: U32,
    generation: U16,
    reserved: [u8; 22],
}

const PAGE_HEAD: usize = 64;
const _: () = {
    assert!(size_of::<U48>() == 6);
    assert!(size_of::<RawChunkEntry>() == 32);
    assert!(size_of::<RawBlockEntry>() == 12);
    assert!(size_of::<RawPage>() == PAGE_HEAD);
    assert!(std::mem::offset_of!(RawPage, page_crc) == 12);
    assert!(PAGE_HEAD + 256 * 12 <= PAGE_LEN);
};

/// What a page says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHead {
    /// The disk group.
    pub group: u64,
    /// Whose chunk.
    pub component: ComponentId,
    /// Which chunk.
    pub chunk: u32,
    /// Its own place.
    pub page: u32,
    /// Its generation.
    pub generation: u16,
}

/// Writes a page of class 0 into `to` (4 KiB) and returns its checksum.
///
/// # Panics
/// If `to` or `entries` has another length.
pub fn encode_page(head: &PageHead, entries: &[BlockEntry], to: &mut [u8]) -> u32 {
    assert!(to.len() == PAGE_LEN && entries.len() == BLOCKS_PER_CHUNK as usize);
    to.fill(0);
    let mut raw = RawPage::new_zeroed();
    raw.magic = PAGE_MAGIC.into();
    raw.version = VERSION.into();
    raw.entry_len = size_of::<RawBlockEntry>() as u8;
    raw.group = head.group.into();
    raw.component = head.component.0.into();
    raw.chunk = head.chunk.into();
    raw.page = head.page.into();
    raw.generation = head.generation.into();
    to[..PAGE_HEAD].copy_from_slice(raw.as_bytes());
    for (entry, to) in entries.iter().zip(to[PAGE_HEAD..].chunks_exact_mut(12)) {
        let raw = RawBlockEntry {
            crc: entry.crc.into(),
            seq: U48::new(entry.seq.0),
            state: entry.state as u8,
            flags: 0,
        };
        to.copy_from_slice(raw.as_bytes());
    }
    let sum = crc(to);
    to[12..16].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// Checks a page against what its chunk's entry says of it.
///
/// # Errors
/// `Damaged` if anything differs, `Newer` for other classes.
pub fn check_page(page: &[u8], head: &PageHead, page_crc: u32) -> Result<(), MetaError> {
    if page.len() != PAGE_LEN {
        return Err(MetaError::Damaged);
    }
    let (raw, _) = RawPage::ref_from_prefix(page).map_err(|_| MetaError::Damaged)?;
    let sum = crc_append(crc_append(crc(&page[..12]), &[0; 4]), &page[16..]);
    if raw.magic.get() != PAGE_MAGIC || sum != raw.page_crc.get() || sum != page_crc {
        return Err(MetaError::Damaged);
    }
    known_version(raw.version)?;
    if raw.class != 0 || usize::from(raw.entry_len) != size_of::<RawBlockEntry>() {
        return Err(MetaError::Newer { what: "page class", value: u32::from(raw.class) });
    }
    let same = raw.group.get() == head.group
        && raw.component.get() == head.component.0
        && raw.chunk.get() == head.chunk
        && raw.page.get() == head.page
        && raw.generation.get() == head.generation;
    if same { Ok(()) } else { Err(MetaError::Damaged) }
}

/// Block `index` of a page that [`check_page`] has accepted; a state that this program does not
/// know reads as bad, so that no byte of such a block is returned.
///
/// # Panics
/// If `index` is not below 256 or the page is short.
pub fn page_entry(page: &[u8], index: usize) -> BlockEntry {
    assert!(index < BLOCKS_PER_CHUNK as usize);
    let at = PAGE_HEAD + index * size_of::<RawBlockEntry>();
    let (raw, _) = RawBlockEntry::ref_from_prefix(&page[at..]).expect("inside the page");
    let state = match BlockState::from_code(raw.state) {
        Some(s @ (BlockState::Absent | BlockState::Zero | BlockState::Raw)) => s,
        _ => BlockState::Bad,
    };
    BlockEntry { crc: raw.crc.get(), seq: Seq(raw.seq.get()), state }
}

/// Kinds of journal records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum JournalKind {
    /// `count` blocks from `block` on now have `state`, `seq` and (if raw: `count` is 1) `crc`.
    Blocks = 1,
    /// Chunk `block` now has `slot`; its newest operation is `seq`.
    Chunk = 2,
    /// All blocks of chunk `block` now have `state` and `seq`; slot and page are free.
    Whole = 3,
    /// A component record of `block` bytes follows, rounded up to 32.
    Component = 4,
    /// The component is gone.
    Gone = 5,
}

/// One journal record, 32 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct JournalRecord {
    /// A [`JournalKind`].
    pub kind: u8,
    /// A `BlockState`.
    pub state: u8,
    /// How many blocks.
    pub count: U16,
    /// Local number of the component.
    pub component: U32,
    /// Block, chunk, or length.
    pub block: U32,
    /// Bound checksum of a raw block.
    pub crc: U32,
    /// Seq.
    pub seq: U64,
    /// Slot of the chunk.
    pub slot: U32,
    /// 0.
    pub reserved: U32,
}

/// Length of a journal record.
pub const JOURNAL_RECORD_LEN: usize = 32;
/// Length of a journal batch's head.
pub const JOURNAL_HEAD_LEN: usize = 128;
/// Largest journal batch, in bytes.
pub const JOURNAL_BATCH_MAX: usize = 4 << 20;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawJournal {
    magic: U64,
    version: U16,
    reserved: [u8; 2],
    crc: U32,
    salt: U64,
    seq: U64,
    at: U64,
    trim_below: U64,
    log_to: U64,
    prev_crc: U32,
    body_len: U32,
    next_local: U32,
    reserved_b: [u8; 60],
}

/// The head of a journal batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalHead {
    /// Of the group.
    pub salt: u64,
    /// Counts the journal batches over the life of the group, from 1.
    pub seq: u64,
    /// Its own place: byte of the device.
    pub at: u64,
    /// Segments below this one are no longer needed.
    pub trim_below: u64,
    /// The last batch of the log that was durable when this one was written.
    pub log_to: u64,
    /// Checksum of the journal batch before.
    pub prev_crc: u32,
    /// Bytes of records.
    pub body_len: u32,
    /// The next local number of a component.
    pub next_local: u32,
    /// Checksum of the batch.
    pub crc: u32,
}

impl JournalHead {
    /// Bytes of the whole batch on the device.
    pub fn len_bytes(&self) -> u64 {
        (JOURNAL_HEAD_LEN + self.body_len as usize).next_multiple_of(BLOCK_LEN) as u64
    }

    /// Fills in the head of `batch`, whose records are there already, and returns its checksum.
    ///
    /// # Panics
    /// If `batch` is not as long as the head says.
    pub fn seal(&self, batch: &mut [u8]) -> u32 {
        assert!(batch.len() as u64 == self.len_bytes(), "length of a journal batch");
        let mut raw = RawJournal::new_zeroed();
        raw.magic = JOURNAL_MAGIC.into();
        raw.version = VERSION.into();
        raw.salt = self.salt.into();
        raw.seq = self.seq.into();
        raw.at = self.at.into();
        raw.trim_below = self.trim_below.into();
        raw.log_to = self.log_to.into();
        raw.prev_crc = self.prev_crc.into();
        raw.body_len = self.body_len.into();
        raw.next_local = self.next_local.into();
        batch[..JOURNAL_HEAD_LEN].copy_from_slice(raw.as_bytes());
        let sum = crc(batch);
        batch[12..16].copy_from_slice(&sum.to_le_bytes());
        sum
    }

    /// Reads only the head, to learn how long the batch is.
    ///
    /// # Errors
    /// `Nothing` if there is no batch of this group that says it lies here.
    pub fn peek(bytes: &[u8], at: u64, salt: u64) -> Result<Self, MetaError> {
        let (raw, _) = RawJournal::ref_from_prefix(bytes).map_err(|_| MetaError::Nothing)?;
        if raw.magic.get() != JOURNAL_MAGIC || raw.salt.get() != salt || raw.at.get() != at {
            return Err(MetaError::Nothing);
        }
        let head = Self {
            salt,
            seq: raw.seq.get(),
            at,
            trim_below: raw.trim_below.get(),
            log_to: raw.log_to.get(),
            prev_crc: raw.prev_crc.get(),
            body_len: raw.body_len.get(),
            next_local: raw.next_local.get(),
            crc: raw.crc.get(),
        };
        let len = head.body_len as usize;
        if len > JOURNAL_BATCH_MAX || !len.is_multiple_of(JOURNAL_RECORD_LEN) {
            return Err(MetaError::Damaged);
        }
        Ok(head)
    }

    /// Checks a whole batch; its records follow the head.
    ///
    /// # Errors
    /// See [`MetaError`].
    pub fn decode(bytes: &[u8], at: u64, salt: u64) -> Result<(Self, &[u8]), MetaError> {
        let head = Self::peek(bytes, at, salt)?;
        let batch = bytes.get(..head.len_bytes() as usize).ok_or(MetaError::Damaged)?;
        let sum = crc_append(crc_append(crc(&batch[..12]), &[0; 4]), &batch[16..]);
        if sum != head.crc {
            return Err(MetaError::Damaged);
        }
        let (raw, _) = RawJournal::ref_from_prefix(bytes).map_err(|_| MetaError::Damaged)?;
        known_version(raw.version)?;
        Ok((head, &batch[JOURNAL_HEAD_LEN..JOURNAL_HEAD_LEN + head.body_len as usize]))
    }
}

/// The first block of a checkpoint region; the body follows in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointHead {
    /// Of the group.
    pub salt: u64,
    /// Counts the checkpoints over the life of the group, from 1.
    pub generation: u64,
    /// Its own place: byte of the device.
    pub at: u64,
    /// Seq of the first journal batch that is not in it.
    pub journal_seq: u64,
    /// Where that batch lies: byte of the device.
    pub journal_at: u64,
    /// Checksum of the journal batch before.
    pub journal_crc: u32,
    /// Segments of the log below this one are no longer needed.
    pub trim_below: u64,
    /// The last batch of the log that was durable when this was written.
    pub log_to: u64,
    /// Everything that batches up to this one did is in the checkpoint: they need not be repeated.
    pub replay_after: u64,
    /// The next local number of a component.
    pub next_local: u32,
    /// Components in the body.
    pub components: u32,
    /// Bytes of the body.
    pub body_len: u64,
    /// Checksum of the body.
    pub body_crc: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawCheckpoint {
    magic: U64,
    version: U16,
    reserved: [u8; 2],
    crc: U32,
    salt: U64,
    generation: U64,
    at: U64,
    journal_seq: U64,
    journal_at: U64,
    trim_below: U64,
    log_to: U64,
    replay_after: U64,
    body_len: U64,
    journal_crc: U32,
    body_crc: U32,
    next_local: U32,
    components: U32,
}

const _: () = {
    assert!(size_of::<JournalRecord>() == JOURNAL_RECORD_LEN);
    assert!(size_of::<RawJournal>() == JOURNAL_HEAD_LEN);
    assert!(std::mem::offset_of!(RawJournal, crc) == 12);
    assert!(size_of::<RawCheckpoint>() == 104);
};

impl CheckpointHead {
    /// The block to write.
    pub fn encode(&self) -> [u8; BLOCK_LEN] {
        let mut raw = RawCheckpoint::new_zeroed();
        raw.magic = CHECKPOINT_MAGIC.into();
        raw.version = VERSION.into();
        raw.salt = self.salt.into();
        raw.generation = self.generation.into();
        raw.at = self.at.into();
        raw.journal_seq = self.journal_seq.into();
        raw.journal_at = self.journal_at.into();
        raw.trim_below = self.trim_below.into();
        raw.log_to = self.log_to.into();
        raw.replay_after = self.replay_after.into();
        raw.body_len = self.body_len.into();
        raw.journal_crc = self.journal_crc.into();
        raw.body_crc = self.body_crc.into();
        raw.next_local = self.next_local.into();
        raw.components = self.components.into();
        raw.crc = crc(raw.as_bytes()).into();
        let mut block = [0; BLOCK_LEN];
        block[..size_of::<RawCheckpoint>()].copy_from_slice(raw.as_bytes());
        block
    }

    /// Reads the head that lies at byte `at`.
    ///
    /// # Errors
    /// See [`MetaError`].
    pub fn decode(block: &[u8], at: u64, salt: u64) -> Result<Self, MetaError> {
        let (raw, _) = RawCheckpoint::ref_from_prefix(block).map_err(|_| MetaError::Nothing)?;
        if raw.magic.get() != CHECKPOINT_MAGIC || raw.salt.get() != salt {
            return Err(MetaError::Nothing);
        }
        let mut zeroed = *raw;
        zeroed.crc = 0.into();
        if crc(zeroed.as_bytes()) != raw.crc.get() || raw.at.get() != at {
            return Err(MetaError::Damaged);
        }
        known_version(raw.version)?;
        // Both count from 1, and go on from here.
        if raw.journal_seq.get() == 0 || raw.generation.get() == u64::MAX {
            return Err(MetaError::Damaged);
        }
        Ok(Self {
            salt,
            generation: raw.generation.get(),
            at,
            journal_seq: raw.journal_seq.get(),
            journal_at: raw.journal_at.get(),
            journal_crc: raw.journal_crc.get(),
            trim_below: raw.trim_below.get(),
            log_to: raw.log_to.get(),
            replay_after: raw.replay_after.get(),
            next_local: raw.next_local.get(),
            components: raw.components.get(),
            body_len: raw.body_len.get(),
            body_crc: raw.body_crc.get(),
        })
    }
}

/// The fixed part of a component record, in the checkpoint and in the journal. Followed, if it is
/// incomplete, by the seq above which it may lack operations (u64); by
/// `clients` times ([`RawClient`] and its bitmap) and `uncommitted` times a [`RawListed`]; in the
/// checkpoint then by `runs` times ([`RawRun`] and its entries).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawComponent {
    /// Local number.
    pub local: U32,
    /// Which capacity device.
    pub device: u8,
    /// Bit 0: frozen (later, refused); bit 1: doubtful; bit 2: incomplete.
    pub flags: u8,
    /// Leg of the object.
    pub leg: U16,
    /// Its id.
    pub id: U64,
    /// Its object.
    pub object: U64,
    /// Its largest size.
    pub blocks: U32,
    /// The epoch it was made in.
    pub epoch: U32,
    /// The lowest epoch it accepts.
    pub fenced: U32,
    /// Epoch of the open session.
    pub session_epoch: U32,
    /// Attach number of the open session.
    pub session_attach: U32,
    /// Reserved for the layout of parity legs: data and parity members, rotation; 1, 0, 0.
    pub layout: [u8; 4],
    /// Committed seq.
    pub committed: U64,
    /// Newest seq.
    pub newest: U64,
    /// Doubtful until this seq is committed.
    pub doubt_until: U64,
    /// Reserved: the parent object and the op id it was frozen at; 0.
    pub parent: [U64; 2],
    /// Reserved: the key of an encrypted component; 0.
    pub key: U64,
    /// Client tables that follow.
    pub clients: U32,
    /// Operations above `committed` that follow.
    pub uncommitted: U32,
    /// Runs of chunk entries that follow (0 in the journal).
    pub runs: U32,
    /// 0.
    pub reserved: U32,
}

/// [`RawComponent::flags`]: parts may be missing after damage.
pub const COMPONENT_DOUBTFUL: u8 = 2;
/// [`RawComponent::flags`]: it is being brought up to date.
pub const COMPONENT_INCOMPLETE: u8 = 4;

/// What is remembered of one client of a component.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawClient {
    /// Which.
    pub client: U64,
    /// Counts uses, to find the one used longest ago.
    pub used: U64,
    /// Every number below is settled.
    pub settled_below: U32,
    /// Words of 64 bits of bitmap that follow: bit i is number `settled_below` + i.
    pub words: U32,
}

/// An operation above `committed`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawListed {
    /// Seq.
    pub seq: U64,
    /// The client.
    pub client: U64,
    /// Epoch.
    pub epoch: U32,
    /// The client's number.
    pub number: U32,
    /// Settled at that time.
    pub settled_below: U32,
    /// First block.
    pub block: U32,
    /// How many.
    pub blocks: U16,
    /// An `OpKind`.
    pub kind: u8,
    /// 0.
    pub reserved: [u8; 5],
}

/// Chunks `first` to `first + count - 1`; so many [`RawChunkEntry`] follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawRun {
    /// First chunk.
    pub first: U32,
    /// How many.
    pub count: U32,
}

const _: () = {
    assert!(size_of::<RawComponent>() == 112);
    assert!(std::mem::offset_of!(RawComponent, committed) == 48);
    assert!(size_of::<RawClient>() == 24);
    assert!(size_of::<RawListed>() == 40);
    assert!(size_of::<RawRun>() == 8);
};
