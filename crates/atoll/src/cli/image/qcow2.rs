//! The head and the tables of a qcow2 image, as far as they say what else the image needs and where
//! its file has to end. QEMU takes what lies behind the end of a file for zeros: an image that was
//! cut short looks whole to it. (The format: docs/interop/qcow2.rst of QEMU.)
//!
//! Invariants: nothing but the file itself is opened; at most [`TABLES_MAX`] bytes of tables are
//! read; a value that cannot be is refused, never used.

use super::deflate;
use atoll_api::shell::quote;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// The first bytes.
pub const MAGIC: &[u8; 4] = b"QFI\xfb";
/// The largest table of first level, and of reference counts, that QEMU accepts, in bytes.
const TABLE_MAX: u64 = 32 << 20;
/// All tables of an image at most: those of 62 TiB in clusters of 64 KiB have 8 GiB.
const TABLES_MAX: u64 = 16 << 30;
/// Where an entry of a table points to.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;

/// Why an image is refused, and what to do; `FILE` stands for its name.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub why: String,
    pub way: &'static str,
}

/// What the head says.
#[derive(Debug)]
pub struct Header {
    /// Of the disk, in bytes.
    pub size: u64,
    /// In bytes.
    cluster: u64,
    l1_offset: u64,
    l1_entries: u64,
    refcounts_offset: u64,
    refcounts_clusters: u64,
    /// Entries of second level have a bitmap of 32 subclusters.
    extended: bool,
    zstd: bool,
}

fn refused(why: impl Into<String>, way: &'static str) -> Refused {
    Refused { why: why.into(), way }
}

fn damaged(why: impl Into<String>) -> Refused {
    refused(why, "fetch it again")
}

fn be32(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes")))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

impl Header {
    /// Reads the head of an image; `head` is its first 4096 bytes, or all there are.
    ///
    /// # Errors
    /// Damage; another file is needed; something in it is not known.
    pub fn read(head: &[u8]) -> Result<Self, Refused> {
        const MERGE: &str = "qemu-img convert -f qcow2 -O qcow2 FILE FILE.qcow2";
        const REPAIR: &str = "qemu-img check -r all FILE";
        if !head.starts_with(MAGIC) {
            return Err(refused("it is not a qcow2 image", "--format raw takes it byte for byte"));
        }
        if head.len() < 112 {
            return Err(damaged("it is cut short within its head"));
        }
        let version = be32(head, 4);
        if !matches!(version, 2 | 3) {
            return Err(refused(format!("qcow2 version {version} is not known"), MERGE));
        }
        let (incompatible, length) =
            if version == 3 { (be64(head, 72), be32(head, 100)) } else { (0, 72) };
        // Which other files it needs comes first: they are not even looked at.
        let (backing, name) = (be64(head, 8), be32(head, 16));
        if backing != 0 {
            let name = text(head, backing, name);
            return Err(refused(format!("it needs another file, {name}"), MERGE));
        }
        if incompatible & 4 != 0 {
            let name = extension(head, length, 0x4441_5441).unwrap_or("of its own".into());
            return Err(refused(format!("its data is in another file, {name}"), MERGE));
        }
        if be32(head, 32) != 0 {
            let way = "qemu-img convert decrypts it: --object secret and --image-opts";
            return Err(refused("it is encrypted", way));
        }
        if incompatible & 2 != 0 {
            return Err(refused("it is marked as corrupt", REPAIR));
        }
        if incompatible & 1 != 0 {
            return Err(refused("it was not closed (its reference counts are not right)", REPAIR));
        }
        let unknown = incompatible & !0b1_1111;
        if unknown != 0 {
            let bit = unknown.trailing_zeros();
            return Err(refused(format!("it needs feature {bit} of qcow2, not known here"), MERGE));
        }
        let compression = if length > 104 { head[104] } else { 0 };
        if compression > 1 {
            return Err(refused(format!("compression {compression} of qcow2 is not known"), MERGE));
        }
        let bits = be32(head, 20);
        let order = if version == 3 { be32(head, 96) } else { 4 };
        if !(9..=21).contains(&bits) || order > 6 || (version == 3 && length < 104) {
            return Err(damaged("its head is damaged"));
        }
        let header = Self {
            size: be64(head, 24),
            cluster: 1 << bits,
            l1_offset: be64(head, 40),
            l1_entries: be32(head, 36),
            refcounts_offset: be64(head, 48),
            refcounts_clusters: be32(head, 56),
            extended: incompatible & 16 != 0,
            zstd: compression == 1,
        };
        let per_table = header.cluster / header.entry() * header.cluster;
        if header.l1_entries * 8 > TABLE_MAX
            || header.refcounts_clusters * header.cluster > TABLE_MAX
            || !header.l1_offset.is_multiple_of(header.cluster)
            || !header.refcounts_offset.is_multiple_of(header.cluster)
            || header.l1_entries < header.size.div_ceil(per_table)
        {
            return Err(damaged("its tables are damaged"));
        }
        Ok(header)
    }

    /// The length of an entry of second level, in bytes.
    fn entry(&self) -> u64 {
        if self.extended { 16 } else { 8 }
    }

    /// Whether everything the disk's content needs lies in the file, which is `len` bytes long.
    ///
    /// # Errors
    /// The file cannot be read, or ([`Refused`]) it is cut short or damaged.
    pub fn check_whole(&self, file: &File, len: u64) -> io::Result<Result<(), Refused>> {
        let mut extent = Extent { file, len, needed: 0, read: 0 };
        let looked = self.look(&mut extent)?;
        let missing = extent.needed.saturating_sub(len);
        if missing > 0 {
            let why = format!("it is cut short: {missing} bytes are missing at its end");
            return Ok(Err(damaged(why)));
        }
        Ok(looked)
    }

    fn look(&self, extent: &mut Extent<'_>) -> io::Result<Result<(), Refused>> {
        let counts = self.refcounts_clusters * self.cluster;
        for at in extent.table(self.refcounts_offset, counts)? {
            if at & OFFSET != 0 {
                extent.need(at & OFFSET, self.cluster);
            }
        }
        let per_table = self.cluster / self.entry() * self.cluster;
        let tables = self.size.div_ceil(per_table);
        // Compressed clusters that end in the last, incomplete sector of the file.
        let mut at_end = BTreeSet::new();
        for (index, at) in extent.table(self.l1_offset, tables * 8)?.into_iter().enumerate() {
            if at & OFFSET == 0 {
                continue;
            }
            let entries = extent.table(at & OFFSET, self.cluster)?;
            let guest = index as u64 * per_table;
            for (number, entry) in entries.chunks(self.entry() as usize / 8).enumerate() {
                let guest = guest + number as u64 * self.cluster;
                if guest >= self.size {
                    break;
                }
                if entry[0] >> 62 & 1 == 1 {
                    let (at, end) = self.compressed(entry[0]);
                    if end > extent.len && end - extent.len < 512 {
                        at_end.insert(at);
                    } else {
                        extent.need(at, end - at);
                    }
                } else if let (at, bytes @ 1..) = self.standard(entry, self.size - guest) {
                    extent.need(at, bytes);
                }
            }
        }
        if extent.read > TABLES_MAX {
            return Ok(Err(damaged("its tables are damaged")));
        }
        // Their lengths are known in sectors alone: whether one is whole, only its content says.
        for &at in &at_end {
            let mut bytes = vec![0; (extent.len.saturating_sub(at)).min(2 << 21) as usize];
            extent.file.read_exact_at(&mut bytes, at)?;
            if !(if self.zstd { is_whole_zstd(&bytes) } else { deflate::is_whole(&bytes) }) {
                return Ok(Err(damaged("it is cut short: its last cluster ends too early")));
            }
        }
        Ok(Ok(()))
    }

    /// Where a compressed cluster begins, and the end of its last sector.
    fn compressed(&self, entry: u64) -> (u64, u64) {
        let shift = 62 - (self.cluster.trailing_zeros() - 8);
        let at = entry & ((1 << shift) - 1);
        let sectors = (entry & ((1 << 62) - 1)) >> shift;
        (at, (at / 512 + sectors + 1) * 512)
    }

    /// Where a plain cluster begins, and how many bytes of it count; 0: it is zeros, or nowhere.
    fn standard(&self, entry: &[u64], guest_left: u64) -> (u64, u64) {
        let at = entry[0] & OFFSET;
        let used = if let [_, bitmap] = entry {
            let allocated = (bitmap & !(bitmap >> 32)) as u32;
            u64::from(32 - allocated.leading_zeros()) * (self.cluster / 32)
        } else if entry[0] & 1 == 1 {
            0
        } else {
            self.cluster
        };
        (at, if at == 0 { 0 } else { used.min(guest_left) })
    }
}

/// The file, and how far it has to reach.
struct Extent<'a> {
    file: &'a File,
    len: u64,
    needed: u64,
    read: u64,
}

impl Extent<'_> {
    fn need(&mut self, at: u64, bytes: u64) {
        self.needed = self.needed.max(at.saturating_add(bytes));
    }

    /// The numbers of a table; none if it is not whole.
    fn table(&mut self, at: u64, bytes: u64) -> io::Result<Vec<u64>> {
        self.need(at, bytes);
        self.read = self.read.saturating_add(bytes);
        if self.needed > self.len || self.read > TABLES_MAX {
            return Ok(Vec::new());
        }
        let mut table = vec![0; bytes as usize];
        self.file.read_exact_at(&mut table, at)?;
        Ok(table.chunks_exact(8).map(|entry| be64(entry, 0)).collect())
    }
}

/// A name in the head, for people.
fn text(head: &[u8], at: u64, len: u64) -> String {
    let bytes = usize::try_from(at).ok().and_then(|at| head.get(at..)?.get(..len as usize));
    match bytes {
        Some(bytes) => quote(OsStr::from_bytes(bytes)),
        None => "without a name".into(),
    }
}

/// The text of an extension of the head.
fn extension(head: &[u8], mut at: u64, wanted: u64) -> Option<String> {
    loop {
        let fields = head.get(usize::try_from(at).ok()?..)?.get(..8)?;
        let (kind, len) = (be32(fields, 0), be32(fields, 4));
        match kind {
            0 => return None,
            kind if kind == wanted => return Some(text(head, at + 8, len)),
            _ => at += 8 + len.next_multiple_of(8),
        }
    }
}

/// Whether a frame of zstd (RFC 8878) that begins with `bytes` ends within them.
fn is_whole_zstd(bytes: &[u8]) -> bool {
    let walk = || {
        let mut at = 5;
        if !bytes.starts_with(b"\x28\xb5\x2f\xfd") {
            return None;
        }
        let descriptor = bytes.get(4)?;
        let single = descriptor >> 5 & 1;
        at += usize::from(1 - single);
        at += [0, 1, 2, 4][usize::from(descriptor & 3)];
        at += [usize::from(single), 2, 4, 8][usize::from(descriptor >> 6)];
        loop {
            let header = bytes.get(at..at + 3)?;
            let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
            let len = header >> 3;
            // A block of one byte that is repeated has just that byte.
            at += 3 + if header >> 1 & 3 == 1 { 1 } else { len as usize };
            if header & 1 == 1 {
                break;
            }
        }
        at += usize::from(descriptor >> 2 & 1) * 4;
        (at <= bytes.len()).then_some(())
    };
    walk().is_some()
}

#[cfg(test)]
mod tests {
    use super::{Header, is_whole_zstd};
    use proptest::prelude::*;
    use std::io::Write;

    /// A head as QEMU writes it, 64 MiB in clusters of 64 KiB.
    fn head() -> Vec<u8> {
        let mut head = vec![0; 4096];
        head[..4].copy_from_slice(super::MAGIC);
        head[7] = 3;
        head[23] = 16;
        head[24..32].copy_from_slice(&(64_u64 << 20).to_be_bytes());
        head[39] = 1; // entries of first level
        head[40..48].copy_from_slice(&(3_u64 << 16).to_be_bytes());
        head[48..56].copy_from_slice(&(1_u64 << 16).to_be_bytes());
        head[59] = 1; // clusters of reference counts
        head[99] = 4;
        head[103] = 112;
        head
    }

    #[test]
    fn heads_that_cannot_be_used_are_refused_with_the_reason() {
        assert_eq!(Header::read(&head()).unwrap().size, 64 << 20);
        let refused = |change: &dyn Fn(&mut [u8])| {
            let mut head = head();
            change(&mut head);
            let refused = Header::read(&head).unwrap_err();
            format!("{} ({})", refused.why, refused.way)
        };
        for (said, change) in [
            ("is not a qcow2 image", &(|h: &mut [u8]| h[0] = b'x') as &dyn Fn(&mut [u8])),
            ("version 4 is not known", &|h| h[7] = 4),
            ("feature 7 of qcow2", &|h| h[79] = 0x80),
            ("feature 63 of qcow2", &|h| h[72] = 0x80),
            ("was not closed", &|h| h[79] = 1),
            ("qemu-img check -r all FILE", &|h| h[79] = 2),
            ("is encrypted", &|h| h[35] = 2),
            ("compression 2", &|h| h[104] = 2),
            ("head is damaged", &|h| h[23] = 30),
            ("head is damaged", &|h| h[99] = 7),
            ("tables are damaged", &|h| h[36] = 0xff),
            ("tables are damaged", &|h| h[39] = 0),
            ("tables are damaged", &|h| h[47] = 1),
            ("tables are damaged", &|h| h[56] = 0xff),
            ("another file, secret", &|h| {
                h[8..20].copy_from_slice(b"\0\0\0\0\0\0\x02\0\0\0\0\x06");
                h[512..518].copy_from_slice(b"secret");
            }),
            ("another file, without a name", &|h| h[8] = 1),
            ("in another file, da", &|h| {
                h[79] = 4;
                h[112..130].copy_from_slice(b"\0\0\0\x01\0\0\0\0DATA\0\0\0\x02da");
            }),
        ] {
            let why = refused(change);
            assert!(why.contains(said), "{said}: {why}");
        }
        assert!(Header::read(&head()[..100]).unwrap_err().why.contains("within its head"));
    }

    #[test]
    fn a_frame_of_zstd_is_whole_with_its_last_byte() {
        // `printf hello | zstd -c --no-check` and the same with a checksum.
        let plain = b"\x28\xb5\x2f\xfd\x04\x58\x29\x00\x00hello";
        let plain = [&plain[..4], b"\x00\x58", &plain[6..]].concat();
        let checked = [b"\x28\xb5\x2f\xfd\x04\x58\x29\x00\x00hello", &b"\x01\x02\x03\x04"[..]];
        for whole in [plain, checked.concat()] {
            assert!(is_whole_zstd(&whole));
            assert!((0..whole.len()).all(|len| !is_whole_zstd(&whole[..len])));
        }
    }

    proptest! {
        #[test]
        fn nothing_in_a_file_makes_it_fail(
            patches in prop::collection::vec((0..0x4_0000_usize, any::<u64>()), 0..40),
            len in 112..0x4_0000_usize,
        ) {
            let mut bytes = vec![0; 0x4_0008];
            bytes[..4096].copy_from_slice(&head());
            for (at, value) in patches {
                bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
            }
            bytes[..4].copy_from_slice(super::MAGIC);
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes[..len]).unwrap();
            if let Ok(header) = Header::read(&bytes[..len.min(4096)]) {
                let _ = header.check_whole(&file, len as u64).unwrap();
            }
        }
    }
}
