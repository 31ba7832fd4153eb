//! Volumes in memory: for tests, for trying out a client, and for measuring what a front end
//! costs by itself. Sparse; everything is lost when the last clone is dropped.
//!
//! Invariant: a chunk that is absent reads as zeros; chunks are [`CHUNK`] bytes long.

use atoll_world::volume::{
    ExportName, Extent, ExtentKind, Volume, VolumeError, VolumeInfo, Volumes, ZeroFlags,
};
use atoll_world::{Buf, BufMut, FixedMap};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The unit in which memory is taken and given back, in bytes.
const CHUNK: u64 = 64 << 10;
const MIN_BLOCK: u32 = 512;

/// A volume in memory.
#[derive(Clone)]
pub struct MemoryVolume(Rc<VolumeContent>);

struct VolumeContent {
    info: Cell<VolumeInfo>,
    chunks: RefCell<FixedMap<u64, BufMut>>,
}

impl MemoryVolume {
    /// Zeros; `size_bytes` is rounded down to 512.
    pub fn new(size_bytes: u64) -> Self {
        Self(Rc::new(VolumeContent {
            info: Cell::new(VolumeInfo {
                size_bytes: size_bytes / u64::from(MIN_BLOCK) * u64::from(MIN_BLOCK),
                min_block: MIN_BLOCK,
                preferred_block: 4096,
                max_len: 4 << 20,
                read_only: false,
            }),
            chunks: RefCell::default(),
        }))
    }

    /// The same volume, for which the caller changes some facts: it grows, or becomes read-only.
    pub fn set_info(&self, info: VolumeInfo) {
        self.0.info.set(info);
    }

    /// Bytes of memory that hold its content.
    pub fn held_bytes(&self) -> u64 {
        self.0.chunks.borrow().len() as u64 * CHUNK
    }

    fn check(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        let info = self.0.info.get();
        let block = u64::from(info.min_block);
        let inside = at.checked_add(len).is_some_and(|end| end <= info.size_bytes);
        if !inside || !at.is_multiple_of(block) || !len.is_multiple_of(block) {
            return Err(VolumeError::OutOfRange { at, len });
        }
        Ok(())
    }

    fn check_write(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        if self.0.info.get().read_only { Err(VolumeError::ReadOnly) } else { self.check(at, len) }
    }

    fn clear(&self, at: u64, len: u64, may_unmap: bool) {
        let mut chunks = self.0.chunks.borrow_mut();
        for part in parts(at, len) {
            if part.len() as u64 == CHUNK && may_unmap {
                chunks.remove(&part.chunk);
            } else if let Some(chunk) = chunks.get_mut(&part.chunk) {
                chunk[part.from..part.to].fill(0);
            } else if !may_unmap {
                chunks.insert(part.chunk, BufMut::zeroed(CHUNK as usize));
            }
        }
    }
}

/// The part of a range that lies in one chunk.
struct Part {
    chunk: u64,
    from: usize,
    to: usize,
}

impl Part {
    fn len(&self) -> usize {
        self.to - self.from
    }
}

fn parts(at: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = at + len;
    (at / CHUNK..end.div_ceil(CHUNK)).map(move |chunk| {
        let start = chunk * CHUNK;
        let from = at.max(start) - start;
        let to = end.min(start + CHUNK) - start;
        Part { chunk, from: from as usize, to: to as usize }
    })
}

impl Volume for MemoryVolume {
    fn info(&self) -> VolumeInfo {
        self.0.info.get()
    }

    async fn read(&self, at: u64, len: u32) -> Result<Vec<Buf>, VolumeError> {
        self.check(at, u64::from(len))?;
        let chunks = self.0.chunks.borrow();
        let mut data = BufMut::for_overwrite(len as usize);
        let mut done = 0;
        for part in parts(at, u64::from(len)) {
            let into = &mut data[done..done + part.len()];
            match chunks.get(&part.chunk) {
                Some(chunk) => into.copy_from_slice(&chunk[part.from..part.to]),
                None => into.fill(0),
            }
            done += part.len();
        }
        Ok(vec![data.freeze()])
    }

    async fn write(&self, at: u64, data: Vec<Buf>) -> Result<(), VolumeError> {
        self.check_write(at, atoll_world::buf::total_len(&data) as u64)?;
        let mut chunks = self.0.chunks.borrow_mut();
        let mut at = at;
        for piece in data {
            let mut done = 0;
            for part in parts(at, piece.len() as u64) {
                let chunk =
                    chunks.entry(part.chunk).or_insert_with(|| BufMut::zeroed(CHUNK as usize));
                chunk[part.from..part.to].copy_from_slice(&piece[done..done + part.len()]);
                done += part.len();
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn discard(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        self.check_write(at, len)?;
        self.clear(at, len, true);
        Ok(())
    }

    async fn zero(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), VolumeError> {
        self.check_write(at, len)?;
        // Clearing memory is no faster than writing it.
        if flags.fast_only && !flags.may_unmap {
            return Err(VolumeError::Unsupported);
        }
        self.clear(at, len, flags.may_unmap);
        Ok(())
    }

    async fn extents(&self, at: u64, len: u64, _most: usize) -> Result<Vec<Extent>, VolumeError> {
        self.check(at, len)?;
        let chunks = self.0.chunks.borrow();
        let mut extents: Vec<Extent> = Vec::new();
        for part in parts(at, len) {
            let held = chunks.contains_key(&part.chunk);
            let kind = if held { ExtentKind::Data } else { ExtentKind::Hole };
            let len = part.len() as u64;
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.len += len,
                _ => extents.push(Extent { len, kind }),
            }
        }
        Ok(extents)
    }
}

/// Volumes by name, all present from the beginning.
#[derive(Clone)]
pub struct Fixed<V>(Rc<BTreeMap<String, (V, String)>>);

impl<V> Fixed<V> {
    /// Of (name, volume, description).
    pub fn new(volumes: impl IntoIterator<Item = (String, V, String)>) -> Self {
        let named = |(name, volume, description)| (name, (volume, description));
        Self(Rc::new(volumes.into_iter().map(named).collect()))
    }
}

impl<V: Volume> Volumes for Fixed<V> {
    type Volume = V;

    async fn open(&self, name: &str) -> Result<V, VolumeError> {
        self.0.get(name).map(|(volume, _)| volume.clone()).ok_or(VolumeError::Gone)
    }

    async fn list(&self, max: usize) -> Result<Vec<ExportName>, VolumeError> {
        let exports = self.0.iter().take(max).map(|(name, (_, description))| ExportName {
            name: name.clone(),
            description: description.clone(),
        });
        Ok(exports.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, MemoryVolume};
    use atoll_world::Buf;
    use atoll_world::buf::join;
    use atoll_world::volume::{Volume, ZeroFlags};
    use futures_util::FutureExt;
    use proptest::prelude::{any, proptest};

    fn now<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("memory never waits")
    }

    proptest! {
        /// Writes, zeros and discards against a plain vector.
        #[test]
        fn it_reads_what_was_written(
            steps in proptest::collection::vec(
                (0u64..512, 1u64..300, any::<u8>(), 0u8..4), 1..40),
        ) {
            let volume = MemoryVolume::new(8 * CHUNK);
            let mut model = vec![0; 8 * CHUNK as usize];
            for (block, blocks, byte, kind) in steps {
                let at = block * 512;
                let len = blocks * 512;
                let range = at as usize..(at + len) as usize;
                match kind {
                    0 => now(volume.discard(at, len)),
                    1 => now(volume.zero(at, len, ZeroFlags::default())),
                    _ => now(volume.write(at, vec![Buf::copy_from(&vec![byte; len as usize])])),
                }.expect("inside");
                model[range].fill(if kind < 2 { 0 } else { byte });
            }
            let len = model.len() as u32;
            assert!(*join(&now(volume.read(0, len)).expect("inside")) == model[..]);
            let extents = now(volume.extents(0, u64::from(len), 1)).expect("inside");
            assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), u64::from(len));
        }
    }
}
