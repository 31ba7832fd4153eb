//! Aligned, shared, pooled byte buffers: what disks, connections and front ends pass along
//! without copying. The only place outside the device layer with `unsafe`.
//!
//! Invariants: memory is 4 KiB-aligned and always initialised; a [`BufMut`] is the only handle to
//! its memory; a [`Buf`] is never written again.

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

const ALIGN: usize = 4096;
/// Free memory kept per thread and size class, in bytes: enough for a full queue of 1 MiB I/O.
const POOL_BYTES_MAX: usize = 32 << 20;
/// Classes are powers of two from 4 KiB to 4 MiB; larger ones are not pooled.
const CLASSES: usize = 11;

thread_local! {
    static POOL: RefCell<[Vec<Memory>; CLASSES]> =
        const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

/// Owned, zero-initialised at birth, 4 KiB-aligned memory.
struct Memory {
    at: NonNull<u8>,
    capacity: usize,
}

// SAFETY: plain owned memory without thread affinity.
unsafe impl Send for Memory {}
// SAFETY: shared access is read-only (`Buf`); writing takes `&mut` (`BufMut`).
unsafe impl Sync for Memory {}

fn class(capacity: usize) -> usize {
    (capacity / ALIGN).trailing_zeros() as usize
}

impl Memory {
    fn take(len: usize) -> Self {
        let capacity = len.max(ALIGN).next_power_of_two();
        let class = class(capacity);
        if class < CLASSES
            && let Some(memory) = POOL.with_borrow_mut(|pool| pool[class].pop())
        {
            return memory;
        }
        let layout = Layout::from_size_align(capacity, ALIGN).expect("a power of two fits");
        // SAFETY: `capacity` is at least 4096, so the layout is not empty.
        let at = unsafe { alloc_zeroed(layout) };
        let Some(at) = NonNull::new(at) else { handle_alloc_error(layout) };
        Self { at, capacity }
    }
}

/// Returns its memory to the thread's pool when dropped.
struct Pooled(Option<Memory>);

impl Pooled {
    fn memory(&self) -> &Memory {
        self.0.as_ref().expect("only drop takes it")
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let memory = self.0.take().expect("only drop takes it");
        let class = class(memory.capacity);
        let mut left = Some(memory);
        if class < CLASSES {
            // A thread that is ending has no pool any more: then the memory is freed below.
            let _ = POOL.try_with(|pool| {
                if let Ok(mut pool) = pool.try_borrow_mut() {
                    let capacity = left.as_ref().map_or(0, |m| m.capacity);
                    if (pool[class].len() + 1) * capacity <= POOL_BYTES_MAX {
                        pool[class].extend(left.take());
                    }
                }
            });
        }
        drop(left);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let layout = Layout::from_size_align(self.capacity, ALIGN).expect("as when allocated");
        // SAFETY: allocated in `take` with this layout, and owned by this value alone.
        unsafe { dealloc(self.at.as_ptr(), layout) }
    }
}

/// Memory being filled: the only handle to it.
pub struct BufMut {
    memory: Pooled,
    len: usize,
}

impl BufMut {
    /// `len` bytes of unspecified (but initialised) content, to be overwritten.
    pub fn for_overwrite(len: usize) -> Self {
        Self { memory: Pooled(Some(Memory::take(len))), len }
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buf = Self::for_overwrite(len);
        buf.fill(0);
        buf
    }

    /// Shortens it.
    ///
    /// # Panics
    /// If `len` is longer than it is.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "truncate may not grow");
        self.len = len;
    }

    /// Shared and read-only from now on.
    pub fn freeze(self) -> Buf {
        Buf { len: self.len, at: 0, memory: Arc::new(self.memory) }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` never exceeds the capacity, and the memory was initialised at birth.
        unsafe { std::slice::from_raw_parts(self.memory.memory().at.as_ptr(), self.len) }
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; `&mut self` is the only handle.
        unsafe { std::slice::from_raw_parts_mut(self.memory.memory().at.as_ptr(), self.len) }
    }
}

/// Shared read-only bytes; clones and slices share the memory.
#[derive(Clone)]
pub struct Buf {
    memory: Arc<Pooled>,
    at: usize,
    len: usize,
}

impl Buf {
    /// A copy of `bytes` in aligned memory.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buf = BufMut::for_overwrite(bytes.len());
        buf.copy_from_slice(bytes);
        buf.freeze()
    }

    /// A copy of all the pieces, one after the other, in one aligned buffer.
    pub fn copy_all(pieces: &[Self]) -> Self {
        let mut all = BufMut::for_overwrite(total_len(pieces));
        let mut at = 0;
        for piece in pieces {
            all[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        all.freeze()
    }

    /// `len` zero bytes; up to 1 MiB they share one allocation per thread.
    pub fn zeros(len: usize) -> Self {
        const SHARED: usize = 1 << 20;
        thread_local! {
            static ZEROS: Buf = BufMut::zeroed(SHARED).freeze();
        }
        if len <= SHARED {
            ZEROS.with(|zeros| zeros.slice(..len))
        } else {
            BufMut::zeroed(len).freeze()
        }
    }

    /// Part of it, sharing the memory.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n + 1,
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len,
        };
        assert!(start <= end && end <= self.len, "slice {start}..{end} of {}", self.len);
        Self { memory: self.memory.clone(), at: self.at + start, len: end - start }
    }

    /// Whether its first byte is 4 KiB-aligned, as direct I/O wants it.
    pub fn is_aligned(&self) -> bool {
        (self.as_ptr() as usize).is_multiple_of(ALIGN)
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `at + len` never exceeds the capacity; initialised at birth; never written
        // while shared.
        unsafe {
            std::slice::from_raw_parts(self.memory.memory().at.as_ptr().add(self.at), self.len)
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}
impl fmt::Debug for BufMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufMut({} bytes)", self.len)
    }
}
impl PartialEq for Buf {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}
impl Eq for Buf {}

/// Length of all pieces together.
pub fn total_len(pieces: &[Buf]) -> usize {
    pieces.iter().map(|b| b.len()).sum()
}

/// The pieces as one buffer: the piece itself if there is one, else a copy.
pub fn join(pieces: &[Buf]) -> Buf {
    if let [one] = pieces {
        return one.clone();
    }
    Buf::copy_all(pieces)
}

/// Whether all are zero. Ends at the first that are not: costs nothing for data.
pub fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|part| part.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::{Buf, BufMut, join};

    #[test]
    fn buffers_are_aligned_zeroed_and_reused_without_old_bytes_showing() {
        for len in [1, 4096, 5000, 1 << 20, 9 << 20] {
            let mut b = BufMut::zeroed(len);
            assert!(b.iter().all(|&x| x == 0));
            b.fill(7);
            let b = b.freeze();
            assert!(b.is_aligned());
            drop(b);
            assert!(BufMut::zeroed(len).iter().all(|&x| x == 0));
        }
    }

    #[test]
    fn slices_share_and_join_copies() {
        let b = Buf::copy_from(&[1, 2, 3, 4]);
        let s = b.slice(1..3);
        assert_eq!(&*s, &[2, 3]);
        assert_eq!(&*join(&[s.clone(), s.slice(1..)]), &[2, 3, 3]);
        assert_eq!(&*Buf::zeros(3), &[0, 0, 0]);
    }
}
