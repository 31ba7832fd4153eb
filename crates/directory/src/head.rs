//! The head of the directory file, twice and with a checksum.
//!
//! redb keeps, at the start of its file, one byte that says which of the last two commits counts;
//! a flipped bit there would silently take back a transaction that was acknowledged. This storage
//! backend stands between redb and the file and keeps the first 512 bytes in two places, written
//! one after the other; a reader takes the newest that is whole. Everything else is passed on,
//! 4 KiB further back.
//!
//! | file offset | size | content |
//! | --- | --- | --- |
//! | 0 | 512 | first copy of the head |
//! | 4096 | 512 | second copy of the head |
//! | 4608 | - | redb's bytes from 512 on |
//!
//! A copy is one sector: magic `ATOLLDIR` (8), version (4), zeros (4), count of head writes (8),
//! redb's bytes 0-479 (480), zeros (4), CRC-32C of bytes 0-507 (4); little-endian. redb's own head
//! is 320 bytes, the rest of its first page is zeros.
//!
//! Invariant: a cut between or in the two writes leaves one whole copy, either the one before
//! (as if the write had not begun, which no sync has promised otherwise) or the one after.

use atoll_format::checksum::crc;
use redb::{BackendError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};

const MAGIC: [u8; 8] = *b"ATOLLDIR";
const VERSION: u32 = 1;
const SECTOR: usize = 512;
/// Bytes of redb's first page that are kept in the copies.
const KEPT: usize = 480;
/// Where the copies are; also how much further back redb's bytes lie.
const COPIES: [u64; 2] = [0, SHIFT];
const SHIFT: u64 = 4096;
const WHOLE: (Bound<u64>, Bound<u64>) = (Bound::Unbounded, Bound::Unbounded);

/// What the copies of the head say of the file.
#[derive(Debug)]
pub enum HeadError {
    /// Another process has it open.
    Locked,
    /// Reading failed.
    Io(io::Error),
    /// No copy begins as ours do.
    Foreign,
    /// A whole copy is of another version.
    Version(u32),
    /// Both copies are damaged.
    Damaged,
}

#[derive(Debug, Clone)]
struct Kept {
    writes: u64,
    bytes: [u8; KEPT],
}

/// A storage backend with a safe head.
#[derive(Debug)]
pub struct Headed<B> {
    inner: B,
    kept: Mutex<Kept>,
}

impl<B: StorageBackend> Headed<B> {
    /// An empty one.
    pub fn create(inner: B) -> Self {
        Self { inner, kept: Mutex::new(Kept { writes: 0, bytes: [0; KEPT] }) }
    }

    /// One that is there. Locks it first: a head read before another process wrote its last
    /// would be used after.
    ///
    /// # Errors
    /// See [`HeadError`]; nothing was changed.
    pub fn open(inner: B) -> Result<Self, HeadError> {
        match inner.try_lock_range(WHOLE.0, WHOLE.1) {
            Ok(true) => {}
            Ok(false) => return Err(HeadError::Locked),
            Err(error) => return Err(HeadError::Io(error.into())),
        }
        let mut kept: Option<Kept> = None;
        let mut error = HeadError::Foreign;
        for at in COPIES {
            let mut sector = [0; SECTOR];
            match inner.read(at, &mut sector) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => continue,
                other => other.map_err(HeadError::Io)?,
            }
            match decode(&sector) {
                Ok(copy) if kept.as_ref().is_none_or(|k| k.writes < copy.writes) => {
                    kept = Some(copy);
                }
                Ok(_) | Err(HeadError::Foreign) => {}
                Err(other) => error = other,
            }
        }
        Ok(Self { inner, kept: Mutex::new(kept.ok_or(error)?) })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("nothing panics while it holds the head")
    }
}

fn encode(kept: &Kept) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    sector[..8].copy_from_slice(&MAGIC);
    sector[8..12].copy_from_slice(&VERSION.to_le_bytes());
    sector[16..24].copy_from_slice(&kept.writes.to_le_bytes());
    sector[24..24 + KEPT].copy_from_slice(&kept.bytes);
    let sum = crc(&sector[..SECTOR - 4]);
    sector[SECTOR - 4..].copy_from_slice(&sum.to_le_bytes());
    sector
}

fn decode(sector: &[u8; SECTOR]) -> Result<Kept, HeadError> {
    let (body, sum) = sector.split_last_chunk::<4>().expect("512 bytes");
    if crc(body) != u32::from_le_bytes(*sum) {
        return Err(if body.starts_with(&MAGIC) { HeadError::Damaged } else { HeadError::Foreign });
    }
    if !body.starts_with(&MAGIC) {
        return Err(HeadError::Foreign);
    }
    let version = u32::from_le_bytes(body[8..12].try_into().expect("4 bytes"));
    if version != VERSION {
        return Err(HeadError::Version(version));
    }
    let writes = u64::from_le_bytes(body[16..24].try_into().expect("8 bytes"));
    Ok(Kept { writes, bytes: body[24..24 + KEPT].try_into().expect("480 bytes") })
}

/// How many of `len` bytes at `offset` lie in the kept head.
fn in_head(offset: u64, len: usize) -> usize {
    let kept = KEPT as u64;
    if offset >= kept { 0 } else { len.min((kept - offset) as usize) }
}

impl<B: StorageBackend> StorageBackend for Headed<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.inner.len()?.saturating_sub(SHIFT))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(if len == 0 { 0 } else { len + SHIFT })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > self.len().unwrap_or(0)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (head, rest) = out.split_at_mut(in_head(offset, out.len()));
        if !head.is_empty() {
            head.copy_from_slice(&self.kept().bytes[offset as usize..][..head.len()]);
        }
        if !rest.is_empty() {
            self.inner.read(offset + head.len() as u64 + SHIFT, rest)?;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (head, rest) = data.split_at(in_head(offset, data.len()));
        if !rest.is_empty() {
            self.inner.write(offset + head.len() as u64 + SHIFT, rest)?;
        }
        if !head.is_empty() {
            let mut kept = self.kept();
            kept.bytes[offset as usize..][..head.len()].copy_from_slice(head);
            kept.writes += 1;
            let sector = encode(&kept);
            for at in COPIES {
                self.inner.write(at, &sector)?;
            }
        }
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }

    // The whole is locked from `open` until the file is closed; a draft that is being created has
    // a name that nobody else knows.
    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(true)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn query_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, BackendError> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_version_1_never_change() {
        let bytes = std::array::from_fn(|i| i as u8);
        let sector = encode(&Kept { writes: 0x0102_0304_0506_0708, bytes });
        let line = |line: &[u8]| line.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n";
        let now: String = sector.chunks(32).map(line).collect();
        assert!(now == include_str!("../golden/head.v1.hex"), "they are now:\n{now}");
        let again = decode(&sector).expect("whole");
        assert_eq!((again.writes, again.bytes), (0x0102_0304_0506_0708, bytes));
    }
}
