//! What a front end is given: a virtual block device. Capabilities are asked for before use.

use crate::Buf;
use std::future::Future;

/// Facts about a volume; `size_bytes` may grow while it is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Its size.
    pub size_bytes: u64,
    /// The smallest unit of I/O, in bytes.
    pub min_block: u32,
    /// The unit at which I/O costs no read-modify-write, in bytes.
    pub preferred_block: u32,
    /// The largest read or write, in bytes.
    pub max_len: u32,
    /// Writes are refused.
    pub read_only: bool,
}

/// How zeros are to be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZeroFlags {
    /// The space may be freed.
    pub may_unmap: bool,
    /// Fail with [`VolumeError::Unsupported`] if it would be slower than that: never here.
    pub fast_only: bool,
}

/// What a range of a volume holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExtentKind {
    /// Bytes.
    Data,
    /// Zeros that keep their space.
    Zero,
    /// Zeros without space.
    Hole,
}

/// A run of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Its length in bytes.
    pub len: u64,
    /// Its kind.
    pub kind: ExtentKind,
}

/// Why an operation on a volume failed. In every case nothing was applied, or (for `Io` and
/// `TimedOut` of a write) the outcome is unknown, as with a disk.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VolumeError {
    /// The range is not inside the volume, or not aligned to `min_block`.
    #[error("range {at}+{len} is not inside the volume or not aligned")]
    OutOfRange {
        /// First byte.
        at: u64,
        /// Bytes.
        len: u64,
    },
    /// No space is left in the cluster for this write.
    #[error("no space left: {0}")]
    NoSpace(String),
    /// The volume may not be written.
    #[error("the volume is read-only")]
    ReadOnly,
    /// No good copy of the data can be reached; names the block.
    #[error("I/O error: {0}")]
    Io(String),
    /// Held for as long as allowed while too few copies or no owner could be reached.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// Deleted, or its host is stopping.
    #[error("the volume is gone")]
    Gone,
    /// Somebody has it to itself for now; says who, and for what.
    #[error("{0}")]
    Locked(String),
    /// Not in this volume's capabilities.
    #[error("not supported")]
    Unsupported,
}

/// A virtual block device. Clones are the same device; operations run concurrently, overlapping
/// ones in some order; each is durable when it returns.
pub trait Volume: Clone + 'static {
    /// Facts as of now.
    fn info(&self) -> VolumeInfo;
    /// `len` bytes from `at` (multiples of `min_block`), as pieces in order.
    fn read(&self, at: u64, len: u32) -> impl Future<Output = Result<Vec<Buf>, VolumeError>>;
    /// Stores the pieces one after the other from `at` on (multiples of `min_block`).
    fn write(&self, at: u64, data: Vec<Buf>) -> impl Future<Output = Result<(), VolumeError>>;
    /// Everything acknowledged before is durable: true already, so this only orders.
    fn flush(&self) -> impl Future<Output = Result<(), VolumeError>>;
    /// The range reads as zeros (whole blocks) and its space is freed. Parts of a block are zeroed.
    fn discard(&self, at: u64, len: u64) -> impl Future<Output = Result<(), VolumeError>>;
    /// The range reads as zeros.
    fn zero(
        &self,
        at: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> impl Future<Output = Result<(), VolumeError>>;
    /// What the range holds, in order, merged. Covers at least one block, and may stop early; looks
    /// no further than it must once it has found more than `most`.
    fn extents(
        &self,
        at: u64,
        len: u64,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Extent>, VolumeError>>;
}

/// A name in the list of exports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportName {
    /// The name a client asks for.
    pub name: String,
    /// For people.
    pub description: String,
}

/// Where a front end finds volumes by name.
pub trait Volumes: Clone + 'static {
    /// What opening gives.
    type Volume: Volume;
    /// The volume of that name, ready for I/O.
    ///
    /// # Errors
    /// [`VolumeError::Gone`]: there is none; others: try again later.
    fn open(&self, name: &str) -> impl Future<Output = Result<Self::Volume, VolumeError>>;
    /// All names, sorted, at most `max`.
    ///
    /// # Errors
    /// The names are not known now: that is not the same as none.
    fn list(&self, max: usize) -> impl Future<Output = Result<Vec<ExportName>, VolumeError>>;
    /// Another shard of this process that is to serve clients of that volume; none: this one is,
    /// or there is no such volume. Only advice: [`Volumes::open`] works here all the same.
    fn elsewhere(&self, _name: &str) -> impl Future<Output = Option<u8>> {
        async { None }
    }
}
