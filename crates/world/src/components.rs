//! Between the object layer and the store: the components of one disk group.
//!
//! A store knows components and bytes, never objects, hosts or policies. It enforces the parts
//! of the mirror protocol that have to be durable: epochs (R1) and sessions (R2).

use crate::{Buf, Nanos};
use atoll_format::id::{ComponentId, Epoch, GroupId, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, BlockTag, OpKind, OpRecord, Promise};
use std::future::Future;

/// What a component is made with. Opaque to the store, but for `blocks`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ComponentSpec {
    /// The object it belongs to.
    pub object: atoll_format::id::ObjectId,
    /// Which leg of it.
    pub leg: u16,
    /// Its largest size, in blocks of 4 KiB.
    pub blocks: u32,
    /// The epoch it was made in: lower ones are refused from the start.
    pub epoch: Epoch,
}

/// One component as its store knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ComponentStatus {
    /// Its id.
    pub id: ComponentId,
    /// What it was made with.
    pub spec: ComponentSpec,
    /// Durable facts.
    pub promise: Promise,
    /// The session whose messages are accepted.
    pub session: Session,
    /// Bytes of capacity it uses.
    pub used_bytes: u64,
    /// Parts of it may be missing after damage that could not be told from a clean end: it must
    /// be compared with other members before it serves (S18 of `docs/store.md`).
    pub doubtful: bool,
    /// It is being brought up to date ([`Components::open_session`]): even if it has the
    /// newest operation, it may lack any above this one.
    pub incomplete: Option<Seq>,
    /// Its device or the whole group has failed: every call about its content is refused with
    /// [`StoreError::Failed`]. An empty answer would look like "nothing there".
    pub lost: bool,
}

/// One operation to append.
#[derive(Clone, Debug)]
pub struct ComponentOp {
    /// Its place in the object's order; rises strictly within a session.
    pub id: atoll_format::id::OpId,
    /// Whose it is.
    pub ticket: Ticket,
    /// What it does.
    pub kind: OpKind,
    /// Where; inside one chunk.
    pub range: BlockRange,
    /// Everything at or below is durable on every active member (rides along).
    pub committed: Seq,
    /// CRC-32C of each block; empty unless `kind` is `Write`.
    pub crcs: Vec<u32>,
    /// `crcs` were made from these bytes, or compared with them, in this process. The store does so
    /// itself where this is false, as it is of everything that came by the network.
    pub checked: bool,
    /// `range.count` blocks; empty unless `kind` is `Write`.
    pub payload: Vec<Buf>,
}

/// Blocks that were read and whose checksums match.
#[derive(Clone, Debug)]
pub struct ReadBlocks {
    /// One per block.
    pub tags: Vec<BlockTag>,
    /// All blocks, in order; those without bytes as zeros.
    pub payload: Vec<Buf>,
}

/// A block that another member supplies: resync, roll-forward, repair. Overwrites whatever is
/// there, also with a lower seq (R18).
#[derive(Clone, Debug)]
pub struct CopyBlock {
    /// Which.
    pub block: u32,
    /// Its tag on the source; `Raw` comes with bytes, other states without.
    pub tag: BlockTag,
    /// The bytes of a `Raw` block, 4 KiB.
    pub bytes: Option<Buf>,
}

/// Blocks of one chunk to put in.
#[derive(Clone, Debug)]
pub struct Copy {
    /// All blocks lie in this chunk.
    pub chunk: u32,
    /// At most 256, ascending.
    pub blocks: Vec<CopyBlock>,
    /// Put a block in only while its seq here is still this one (repair: never older, S17 of
    /// `docs/store.md`); without it, always.
    pub only_if: Option<Seq>,
    /// Operations that come, or go, with the blocks, in one step with them: a crash leaves both or
    /// neither (R21). At most [`COPY_TICKETS_MAX`]; none without blocks, or with `only_if`, which
    /// may put none in.
    pub tickets: SetTickets,
}

impl Copy {
    /// Whether a store may take its tickets.
    pub fn tickets_fit(&self) -> bool {
        let with_blocks = !self.blocks.is_empty() && self.only_if.is_none();
        self.tickets.is_empty() || with_blocks && self.tickets.len() <= COPY_TICKETS_MAX
    }
}

/// Most operations that one [`Copy`] names.
pub const COPY_TICKETS_MAX: usize = 256;
/// Most operations that one [`SetTickets`] names.
pub const SET_TICKETS_MAX: usize = 512;

/// Operations of clients to be remembered and forgotten (R21).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SetTickets {
    /// Are here, though they were not appended here.
    pub add: Vec<Ticket>,
    /// Were appended here and are here no more.
    pub forget: Vec<Ticket>,
}

impl SetTickets {
    /// How many it names.
    pub fn len(&self) -> usize {
        self.add.len() + self.forget.len()
    }
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// In parts that a store takes.
    pub fn parts(self) -> impl Iterator<Item = Self> {
        let part =
            |add: &[Ticket], forget: &[Ticket]| Self { add: add.to_vec(), forget: forget.to_vec() };
        let forgets: Vec<Self> =
            self.forget.chunks(SET_TICKETS_MAX).map(|forget| part(&[], forget)).collect();
        let adds: Vec<Self> = self.add.chunks(SET_TICKETS_MAX).map(|add| part(add, &[])).collect();
        forgets.into_iter().chain(adds)
    }
}

/// The space of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupSpace {
    /// Bytes that components may use in all.
    pub capacity_bytes: u64,
    /// Bytes that one component may use: all of the largest device that is in use.
    pub device_bytes: u64,
    /// Bytes of slots in use (whole chunks).
    pub used_bytes: u64,
    /// Bytes that new chunks can still take, the reserve left out.
    pub free_bytes: u64,
    /// Components that can still be made in it.
    pub free_components: u32,
    /// Size of the write log.
    pub log_bytes: u64,
    /// Part of it in use, 0 to 255: writers are slowed by the fullest member.
    pub log_fill: u8,
}

/// What a scrub has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubProgress {
    /// Blocks looked at.
    pub blocks_checked: u64,
    /// Blocks to look at in all: an estimate until the pass has come to its end, when it is what
    /// was looked at.
    pub blocks_total: u64,
    /// Blocks without good bytes here: newly found, and known from before.
    pub blocks_bad: u64,
    /// No pass is running.
    pub idle: bool,
    /// When the pass began, if there was one since the store was opened.
    pub began: Option<Nanos>,
    /// When it came to its end, or was stopped.
    pub ended: Option<Nanos>,
    /// It came to its end.
    pub whole: bool,
    /// When a pass over everything last came to its end.
    pub everything_at: Option<Nanos>,
}

/// What took a disk group out of use, as far as that decides what helps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FailureCause {
    /// What the device lies on has no room for it: its file system or a quota is full.
    NoRoom,
    /// The device must not be written.
    ReadOnly,
    /// Anything else: the device is broken, as far as is known.
    #[default]
    Broken,
}

impl From<&std::io::Error> for FailureCause {
    fn from(error: &std::io::Error) -> Self {
        use std::io::ErrorKind::{
            PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
        };
        match error.kind() {
            StorageFull | QuotaExceeded => Self::NoRoom,
            ReadOnlyFilesystem | PermissionDenied => Self::ReadOnly,
            _ => Self::Broken,
        }
    }
}

/// Something that an administrator would want to know; kept until taken, the oldest dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreEvent {
    /// A block's checksum did not match; it is marked until another member supplies it.
    BadBlock {
        /// Where.
        component: ComponentId,
        /// Which.
        block: u32,
    },
    /// A device had lost the page of checksums of a chunk, which memory has: it is written anew.
    PageRewritten {
        /// Where.
        component: ComponentId,
        /// Which.
        chunk: u32,
    },
    /// The group has failed for good: nothing is written any more.
    Failed {
        /// A clause.
        why: String,
        /// What helps depends on it.
        cause: FailureCause,
    },
    /// The log was damaged below its durable end; the blocks are marked bad.
    LogDamage(String),
    /// Writers are slowed: the log is nearly full.
    LogFull(String),
    /// A device answers much slower than it did.
    Slow(String),
}

/// Counters of one store, all since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreCounters {
    /// Operations appended.
    pub ops_written: u64,
    /// Payload bytes appended.
    pub bytes_written: u64,
    /// Batches of the log.
    pub log_batches: u64,
    /// Bytes written to the log, headers and padding included.
    pub log_bytes: u64,
    /// Blocks read for callers.
    pub blocks_read: u64,
    /// Of them those that had been read of the device before they were asked for.
    pub blocks_read_ahead: u64,
    /// Bytes moved from the log to capacity.
    pub destaged_bytes: u64,
    /// Bytes of metadata written (journal, pages, checkpoints).
    pub metadata_bytes: u64,
    /// Checksums that did not match.
    pub checksum_errors: u64,
    /// Blocks put in by other members.
    pub blocks_copied_in: u64,
    /// Errors of devices.
    pub device_errors: u64,
}

/// Why a store refuses or fails.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// No such component here.
    #[error("component {0} is not in this disk group")]
    NoComponent(ComponentId),
    /// No such component is open here, but a disk of this host cannot be used now and may have it.
    #[error("component {0} may be on a disk that cannot be used now")]
    NotOpen(ComponentId),
    /// Another shard of this host has it: ask that one.
    #[error("component {id} is on shard {shard} of its host")]
    OnShard {
        /// Which component.
        id: ComponentId,
        /// Which shard; below 256.
        shard: u16,
    },
    /// Another shard of this host may have it, and has not told yet: ask again.
    #[error("component {0} may be on a shard of its host that is starting")]
    Starting(ComponentId),
    /// It is there already, with another specification.
    #[error("component {0} exists already")]
    Exists(ComponentId),
    /// The message is of an older epoch (R1): its sender is no longer the owner.
    #[error("it takes nothing older than epoch {}", .fenced.0)]
    Fenced {
        /// The lowest epoch that is accepted.
        fenced: Epoch,
    },
    /// The message is of another session, or out of order within it (R2).
    #[error("another session is open: epoch {}, number {}", .open.epoch.0, .open.attach)]
    Session {
        /// The open one.
        open: Session,
    },
    /// The range, kind or payload of the request is malformed.
    #[error("malformed request: {0}")]
    Malformed(&'static str),
    /// The bytes do not match the CRC they came with.
    #[error("payload of block {block} arrived damaged")]
    Damaged {
        /// Which block.
        block: u32,
    },
    /// These blocks have no good bytes here; ask another member.
    #[error("no good copy here of {}", blocks(.0))]
    Bad(Vec<u32>),
    /// No slot is left; reads, overwrites of allocated chunks and deletes go on.
    #[error("the disk group is full")]
    Full,
    /// The disk group has failed and is out of use until it is replaced or its host restarts.
    #[error("the disk group has failed: {0}")]
    Failed(String),
}

/// `block 7`, or `12 blocks from 7 on`.
fn blocks(bad: &[u32]) -> String {
    match bad {
        [] => "its blocks".into(),
        [one] => format!("block {one}"),
        [first, ..] => format!("{} blocks from {first} on", bad.len()),
    }
}

/// The components of one disk group. Clones are the same store.
///
/// Order: calls that change a component take effect in the order in which their futures are first
/// polled.
pub trait Components: Clone + 'static {
    /// Which group this is.
    fn group(&self) -> GroupId;
    /// Its space.
    fn space(&self) -> GroupSpace;
    /// Its counters.
    fn counters(&self) -> StoreCounters;
    /// Takes the events that have come up.
    fn take_events(&self) -> Vec<StoreEvent>;
    /// All components, ascending by id.
    fn list(&self) -> Vec<ComponentStatus>;
    /// One component.
    fn status(&self, id: ComponentId) -> Result<ComponentStatus, StoreError>;

    /// Makes a component; durable on return; repeating it with the same spec does nothing.
    fn create(
        &self,
        id: ComponentId,
        spec: ComponentSpec,
    ) -> impl Future<Output = Result<(), StoreError>>;
    /// Removes a component and frees its space; durable on return; repeating it does nothing.
    fn delete(&self, id: ComponentId) -> impl Future<Output = Result<(), StoreError>>;
    /// Changes its largest size, only upwards: one that is as large already stays as it is; durable
    /// on return.
    fn grow(&self, id: ComponentId, blocks: u32) -> impl Future<Output = Result<(), StoreError>>;

    /// Durably promises to refuse lower epochs (R1); refuses if a higher one was promised.
    fn fence(
        &self,
        id: ComponentId,
        epoch: Epoch,
    ) -> impl Future<Output = Result<Promise, StoreError>>;
    /// Durably opens a session, higher than any before (R2); messages of others are refused. With
    /// `incomplete`, to bring the component up to date from that operation on: from then on,
    /// durably and whatever sessions come, it may lack any operation above the lowest that was
    /// said, until [`Components::complete`]. What is put back from the middle of that is known by
    /// it (S18): its newest operation is a maximum.
    fn open_session(
        &self,
        id: ComponentId,
        session: Session,
        incomplete: Option<Seq>,
    ) -> impl Future<Output = Result<Promise, StoreError>>;
    /// Opens a session to a component that is not brought up to date in it.
    fn attach(
        &self,
        id: ComponentId,
        session: Session,
    ) -> impl Future<Output = Result<Promise, StoreError>> {
        self.open_session(id, session, None)
    }
    /// Durably says that nothing is missing any more, and that every operation up to `up_to` has
    /// come: the newest one is at least that one, though it may be one of which a copy shows
    /// nothing (a discard of what was never written).
    fn complete(
        &self,
        id: ComponentId,
        session: Session,
        up_to: Seq,
    ) -> impl Future<Output = Result<(), StoreError>>;
    /// Sets a slot aside for a chunk that has none, so that the next append to it cannot be
    /// [`StoreError::Full`]. Kept in memory until that append or for at least ten seconds. The
    /// owner asks every member before its first write to a chunk: a full group is then seen
    /// before anything has been applied anywhere.
    fn reserve(&self, id: ComponentId, chunk: u32) -> Result<(), StoreError>;
    /// Appends one operation; durable on return. Atomic per 4 KiB block against crashes and reads.
    fn append(
        &self,
        id: ComponentId,
        session: Session,
        op: ComponentOp,
    ) -> impl Future<Output = Result<(), StoreError>>;
    /// Everything at or below `seq` is durable on every active member. A hint: not durable here
    /// until some later batch.
    fn committed(&self, id: ComponentId, seq: Seq);
    /// Operations above the highest committed seq it was told: may list too many after a
    /// restart, never too few (R7).
    fn uncommitted(&self, id: ComponentId) -> Result<Vec<OpRecord>, StoreError>;
    /// For each of that client's numbers not yet settled: whether the operation is here (R21).
    fn applied(&self, id: ComponentId, ticket: Ticket) -> Result<bool, StoreError>;
    /// Every client's operations that are here and not settled, ascending by client and number.
    fn tickets(&self, id: ComponentId) -> Result<Vec<Ticket>, StoreError>;
    /// Remembers operations of clients that came here as copies, and forgets those that copies
    /// undid; in order with appends, durable on return. At most [`SET_TICKETS_MAX`] together.
    fn set_tickets(
        &self,
        id: ComponentId,
        session: Session,
        set: SetTickets,
    ) -> impl Future<Output = Result<(), StoreError>>;

    /// Blocks `range`, checksums verified.
    ///
    /// # Errors
    /// [`StoreError::Bad`] names every block of the range that has no good bytes here.
    fn read(
        &self,
        id: ComponentId,
        range: BlockRange,
    ) -> impl Future<Output = Result<ReadBlocks, StoreError>>;
    /// The tags of all 256 blocks of a chunk.
    fn tags(
        &self,
        id: ComponentId,
        chunk: u32,
    ) -> impl Future<Output = Result<Vec<BlockTag>, StoreError>>;
    /// Chunks from `first` on whose newest seq is above `since`, ascending, at most `max`.
    fn chunks_since(
        &self,
        id: ComponentId,
        since: Seq,
        first: u32,
        max: usize,
    ) -> Result<Vec<(u32, Seq)>, StoreError>;
    /// Puts in blocks of another member; durable on return. Returns how many were put in.
    fn copy_in(
        &self,
        id: ComponentId,
        session: Session,
        copy: Copy,
    ) -> impl Future<Output = Result<u32, StoreError>>;

    /// Starts a pass over every block of every component (or of these), in the background; it
    /// takes the place of one that runs. Rate 0 stops that one and starts none.
    fn scrub(&self, only: Option<&[ComponentId]>, bytes_per_second: u64);
    /// How far it is.
    fn scrub_progress(&self) -> ScrubProgress;
}
