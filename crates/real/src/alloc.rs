//! The system's allocator behind lists of free memory per thread and size.
//!
//! A request allocates some thirty times, mostly futures of one to four KiB, which the system's
//! allocator cuts out of and merges back into its heap each time: a fifth of a host's CPU at
//! small blocks. Here the last one of that size is taken again.
//!
//! Only threads that ask for it keep lists: what an ending thread keeps would be lost. Every
//! thread allocates in the same sizes, so memory may be freed by another thread than its own.
//!
//! Invariants: a list holds at most [`LIST_BYTES_MAX`] of its size; memory in a list belongs to
//! nobody else.

#![allow(unsafe_code)]

use crate::limits::LIST_BYTES_MAX;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

/// Four sizes per power of two, from 32 bytes to 16 KiB.
const SIZES: usize = 40;
const SMALLEST: usize = 32;
const LARGEST: usize = 16 << 10;
/// What the system's allocator gives anyway.
const ALIGN: usize = 16;

/// See the file. Made to be a program's global allocator.
pub struct PooledAlloc;

#[derive(Clone, Copy)]
struct List {
    /// The first free piece; each begins with the address of the next.
    first: *mut u8,
    bytes: usize,
}

struct Lists {
    in_use: Cell<bool>,
    by_size: [Cell<List>; SIZES],
}

thread_local! {
    // Without a destructor and without allocation, so that an allocator may use it at any time.
    static LISTS: Lists = const {
        Lists {
            in_use: Cell::new(false),
            by_size: [const { Cell::new(List { first: ptr::null_mut(), bytes: 0 }) }; SIZES],
        }
    };
}

/// From now on this thread keeps what it frees. For threads that live as long as the program.
pub fn keep_on_this_thread() {
    LISTS.with(|lists| lists.in_use.set(true));
}

/// The list for that layout, and the layout that is allocated for all that go into it.
fn class(layout: Layout) -> Option<(usize, Layout)> {
    if layout.size() > LARGEST || layout.align() > ALIGN {
        return None;
    }
    let size = layout.size().max(SMALLEST);
    // The power of two below, and how many quarters of it are on top, rounded up.
    let mut power = size.ilog2();
    let mut quarters = (size - (1 << power)).div_ceil(1 << (power - 2));
    if quarters == 4 {
        (power, quarters) = (power + 1, 0);
    }
    let rounded = (1 << power) + quarters * (1 << (power - 2));
    let index = (power - SMALLEST.ilog2()) as usize * 4 + quarters;
    Some((index, Layout::from_size_align(rounded, ALIGN).ok()?))
}

/// A free piece of that list.
fn pop(index: usize, layout: Layout) -> Option<*mut u8> {
    LISTS
        .try_with(|lists| {
            let list = lists.by_size[index].get();
            if list.first.is_null() {
                return None;
            }
            // SAFETY: what is in a list is free memory of at least 32 bytes, aligned to 16, and
            // `push` has put the next one's address at its front.
            let next = unsafe { list.first.cast::<*mut u8>().read() };
            lists.by_size[index].set(List { first: next, bytes: list.bytes - layout.size() });
            Some(list.first)
        })
        .ok()
        .flatten()
}

/// Puts a piece that was freed in its list, if this thread keeps one and it is not full.
fn push(index: usize, layout: Layout, piece: *mut u8) -> bool {
    LISTS
        .try_with(|lists| {
            let list = lists.by_size[index].get();
            if !lists.in_use.get() || list.bytes + layout.size() > LIST_BYTES_MAX {
                return false;
            }
            // SAFETY: the piece was freed, so it is ours alone; its size and alignment hold an
            // address.
            unsafe { piece.cast::<*mut u8>().write(list.first) };
            lists.by_size[index].set(List { first: piece, bytes: list.bytes + layout.size() });
            true
        })
        .unwrap_or(false)
}

// SAFETY: every piece comes from `System` with the layout that `class` makes of the caller's, and
// goes back with the same one; between the two it is in at most one list, of one thread, from
// where it is given to one caller. Rounding up keeps size and alignment at least as asked for.
unsafe impl GlobalAlloc for PooledAlloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(layout) {
            Some((index, rounded)) => pop(index, rounded)
                // SAFETY: `rounded` is not empty.
                .unwrap_or_else(|| unsafe { System.alloc(rounded) }),
            // SAFETY: passed on as it came.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match class(layout) {
            Some((index, rounded)) => {
                if !push(index, rounded, piece) {
                    // SAFETY: allocated with this layout.
                    unsafe { System.dealloc(piece, rounded) }
                }
            }
            // SAFETY: passed on as it came.
            None => unsafe { System.dealloc(piece, layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if class(layout).is_none() {
            // Large memory comes zeroed from the system: nothing to do.
            // SAFETY: passed on as it came.
            return unsafe { System.alloc_zeroed(layout) };
        }
        // SAFETY: passed on as it came.
        let piece = unsafe { self.alloc(layout) };
        if !piece.is_null() {
            // SAFETY: just allocated with at least that size.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        match (class(layout), class(new)) {
            (Some((old, _)), Some((new, _))) if old == new => piece,
            // SAFETY: passed on as it came.
            (None, None) => unsafe { System.realloc(piece, layout, size) },
            _ => {
                // SAFETY: `new` is not empty: the caller promises it of `size`.
                let to = unsafe { self.alloc(new) };
                if !to.is_null() {
                    // SAFETY: both are that long, and the new one is nobody else's.
                    unsafe { to.copy_from_nonoverlapping(piece, layout.size().min(size)) };
                    // SAFETY: the caller gives the old one up.
                    unsafe { self.dealloc(piece, layout) };
                }
                to
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGEST, PooledAlloc, SIZES, class, keep_on_this_thread};
    use crate::limits::LIST_BYTES_MAX;
    use std::alloc::{GlobalAlloc, Layout};

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 8).unwrap()
    }

    #[test]
    fn sizes_hold_what_is_asked_for_and_waste_little() {
        let mut last = 0;
        for size in 1..=LARGEST {
            let (index, rounded) = class(layout(size)).expect("pooled");
            assert!(rounded.size() >= size && index < SIZES, "{size}");
            assert!(rounded.size() <= size.max(26) * 5 / 4 + 1, "{size}: {}", rounded.size());
            assert!(index == last || index == last + 1, "{size}");
            assert_eq!(class(rounded).map(|c| c.0), Some(index), "{size}");
            last = index;
        }
        assert!(class(layout(LARGEST + 1)).is_none());
        assert!(class(Layout::from_size_align(64, 4096).unwrap()).is_none());
    }

    #[test]
    fn freed_memory_is_used_again_and_nothing_is_given_out_twice() {
        keep_on_this_thread();
        let mut held: Vec<(*mut u8, usize)> = Vec::new();
        let mut seed = 1u64;
        for round in 0..20_000usize {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let size = 1 + (seed >> 33) as usize % (LARGEST + 4_000);
            // SAFETY: each is used within its size, and freed once with its own layout.
            unsafe {
                let at = PooledAlloc.alloc_zeroed(layout(size));
                assert!(!at.is_null() && (0..size).all(|i| *at.add(i) == 0));
                at.write_bytes(size as u8, size);
                held.push((at, size));
                if round % 3 == 0 {
                    let (at, size) = held.swap_remove((seed >> 40) as usize % held.len());
                    let other = 1 + (seed >> 20) as usize % (LARGEST + 4_000);
                    let now = PooledAlloc.realloc(at, layout(size), other);
                    assert!((0..size.min(other)).all(|i| *now.add(i) == size as u8));
                    now.write_bytes(other as u8, other);
                    held.push((now, other));
                }
                if held.len() > 100 {
                    let (at, size) = held.swap_remove((seed >> 50) as usize % held.len());
                    assert!((0..size).all(|i| *at.add(i) == size as u8));
                    PooledAlloc.dealloc(at, layout(size));
                }
            }
        }
        for (at, size) in held {
            // SAFETY: as above.
            unsafe { PooledAlloc.dealloc(at, layout(size)) };
        }
        super::LISTS.with(|lists| {
            assert!(lists.by_size.iter().all(|l| l.get().bytes <= LIST_BYTES_MAX));
            assert!(lists.by_size.iter().any(|l| l.get().bytes > 0));
        });
        // SAFETY: as above.
        unsafe {
            let a = PooledAlloc.alloc(layout(3_000));
            PooledAlloc.dealloc(a, layout(3_000));
            assert_eq!(PooledAlloc.alloc(layout(2_900)), a);
            PooledAlloc.dealloc(a, layout(2_900));
        }
    }
}
