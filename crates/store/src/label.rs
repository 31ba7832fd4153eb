//! What is on a device: our label, someone else's signature, or nothing; and wiping it.
//!
//! Invariant: a device on which anything is recognised, or whose first or last MiB holds anything
//! at all, is never formatted; an administrator has to wipe it first, by name.

use atoll_format::superblock::{MAGIC, SECOND_FROM_END, Superblock, SuperblockError};
use atoll_format::units::{BLOCK, BLOCK_LEN, CHUNK};
use atoll_world::buf::is_zero;
use atoll_world::{Buf, Disk, Durability};
use std::io;

/// What was found on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inspection {
    /// Zeros in the first and in the last MiB, as a new or a wiped device has.
    Empty,
    /// A good label of ours.
    Ours {
        /// The label.
        superblock: Box<Superblock>,
        /// The copy at the start is damaged, this is the second one; opening the store repairs it.
        first_damaged: bool,
    },
    /// Somebody else's.
    Foreign {
        /// What it is, for people: "ext4 file system".
        what: &'static str,
    },
    /// Ours, of a version or with features that this program does not know.
    Unsupported(SuperblockError),
    /// Ours, and neither copy of the label is good.
    Damaged(SuperblockError),
}

/// How much is read from the start: the farthest signature lies at 132 KiB (ZFS), and nothing of
/// ours but the label lies in the first MiB.
const HEAD: u64 = 1 << 20;
/// How much is read from the end: two labels of ZFS lie in the last 512 KiB.
const TAIL: u64 = 1 << 20;
/// What is on a device that holds something and nothing that is recognised.
const UNKNOWN: &str = "data of an unknown kind";

/// Looks at a device; changes nothing.
///
/// # Errors
/// The device cannot be read.
pub async fn inspect<D: Disk>(disk: &D) -> io::Result<Inspection> {
    let len = disk.len_bytes();
    if len < BLOCK {
        return Ok(Inspection::Empty);
    }
    // Each label by itself first: one unreadable sector elsewhere must not hide a group.
    let first = match read_to(disk, 0, BLOCK).await {
        Ok(block) => Superblock::decode(&block, 0),
        Err(_) => Err(SuperblockError::NoLabel),
    };
    if let Ok(label) = first {
        return Ok(ours(label, false));
    }
    let mut second = Err(SuperblockError::NoLabel);
    if len >= 2 * SECOND_FROM_END {
        let at = len / CHUNK * CHUNK - SECOND_FROM_END;
        if let Ok(block) = read_to(disk, at, BLOCK).await {
            second = Superblock::decode(&block, at);
        }
    }
    // Somebody else may have taken the device since: their signature counts more than our second
    // label, and what cannot be looked at may hold one.
    let looked = async {
        let head = read_to(disk, 0, HEAD.min(len)).await?;
        let tail_at = len.saturating_sub(TAIL) / BLOCK * BLOCK;
        Ok((head, read_to(disk, tail_at, len - tail_at).await?))
    };
    let holds_something = match (looked.await, second) {
        (Ok((head, tail)), _) if foreign(&head, &tail).is_some() => {
            let what = foreign(&head, &tail).expect("just found");
            return Ok(Inspection::Foreign { what });
        }
        (_, Ok(label)) => return Ok(ours(label, true)),
        (Err(e), _) => return Err(e),
        (Ok((head, tail)), Err(e)) => {
            second = Err(e);
            !is_zero(&head) || !is_zero(&tail)
        }
    };
    let worse = |e: &SuperblockError| {
        matches!(e, SuperblockError::Version(_) | SuperblockError::Features { .. })
    };
    let errors: Vec<SuperblockError> = [first.err(), second.err()].into_iter().flatten().collect();
    if let Some(e) = errors.iter().find(|e| worse(e)) {
        return Ok(Inspection::Unsupported(*e));
    }
    if let Some(e) = errors.iter().find(|e| **e != SuperblockError::NoLabel) {
        return Ok(Inspection::Damaged(*e));
    }
    Ok(if holds_something { Inspection::Foreign { what: UNKNOWN } } else { Inspection::Empty })
}

fn ours(label: Superblock, first_damaged: bool) -> Inspection {
    Inspection::Ours { superblock: Box::new(label), first_damaged }
}

async fn read_to<D: Disk>(disk: &D, at: u64, len: u64) -> io::Result<Buf> {
    let bytes = disk.read(at, len as u32).await?;
    if bytes.len() as u64 != len {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "short read"));
    }
    Ok(bytes)
}

/// Erases every label and signature: the first and the last 2 MiB become zeros (a label counts its
/// MiB from the last whole one). What lies between cannot be found again.
///
/// # Errors
/// The device cannot be written.
pub async fn wipe<D: Disk>(disk: &D) -> io::Result<()> {
    let len = disk.len_bytes();
    let piece = (2 * SECOND_FROM_END).min(len) / BLOCK * BLOCK;
    for at in [len - piece, 0] {
        disk.write(at, vec![Buf::zeros(piece as usize)], Durability::Durable).await?;
    }
    disk.flush().await
}

/// One signature: so many bytes from the start of the device, exactly these.
const HEAD_SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, b"XFSB", "XFS file system"),
    (0x10040, b"_BHRfS_M", "btrfs file system"),
    (0, b"LUKS\xba\xbe", "LUKS encrypted volume"),
    (0x4000, b"SKUL\xba\xbe", "LUKS encrypted volume"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "bcache device"),
    (3, b"NTFS    ", "NTFS file system"),
    (3, b"EXFAT   ", "exFAT file system"),
    (54, b"FAT12   ", "FAT file system"),
    (54, b"FAT16   ", "FAT file system"),
    (82, b"FAT32   ", "FAT file system"),
    (0x8001, b"CD001", "ISO 9660 image"),
    (0x8001, b"NSR0", "UDF file system"),
    (0, b"QFI\xfb", "qcow2 image"),
    (0, b"KDMV", "VMDK image"),
    (0, b"COWD", "VMDK image"),
    (0, b"vhdxfile", "VHDX image"),
    (0, b"conectix", "VHD image"),
    (64, b"\x7f\x10\xda\xbe", "VDI image"),
    (0, b"bluestore block device", "Ceph OSD"),
    (1024, b"\x10\x20\xf5\xf2", "F2FS file system"),
    (1024, b"\xe2\xe1\xf5\xe0", "EROFS image"),
    (0, b"hsqs", "squashfs image"),
    (0x10034, b"ReIsErFs", "ReiserFS file system"),
    (0x10034, b"ReIsEr2Fs", "ReiserFS file system"),
    (0x10034, b"ReIsEr3Fs", "ReiserFS file system"),
    (0x8000, b"JFS1", "JFS file system"),
    (1024 + 6, b"\x34\x34", "NILFS2 file system"),
    (1024, b"H+\x00\x04", "HFS+ file system"),
    (1024, b"HX\x00\x05", "HFSX file system"),
    (32, b"NXSB", "APFS container"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "Linux RAID member"),
    (0, b"\xfc\x4e\x2b\xa9", "Linux RAID member"),
    (512, b"EFI PART", "GPT partition table"),
    (4096, b"EFI PART", "GPT partition table"),
    (0x10000 - 10, b"SWAPSPACE2", "swap space"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (0xff6, b"SWAP-SPACE", "swap space"),
    (0, b"\xeb\x3c\x90", "boot sector"),
];

fn has(bytes: &[u8], at: usize, signature: &[u8]) -> bool {
    bytes.get(at..at + signature.len()) == Some(signature)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Somebody else's signature in the first bytes (`head`) or the last (`tail`) of a device.
pub(crate) fn foreign(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    if u16_at(head, 0x438) == Some(0xef53) {
        return Some(ext_name(head));
    }
    if let Some((_, _, what)) = HEAD_SIGNATURES.iter().find(|(at, sig, _)| has(head, *at, sig)) {
        return Some(what);
    }
    if (0..4).any(|sector| has(head, sector * 512, b"LABELONE")) {
        return Some("LVM physical volume");
    }
    // ZFS: uberblocks of 1 KiB from 128 KiB on, in either byte order.
    let zfs = [0x00ba_b10c_u64.to_le_bytes(), 0x00ba_b10c_u64.to_be_bytes()];
    if (128 << 10..head.len()).step_by(1024).any(|at| zfs.iter().any(|z| has(head, at, z))) {
        return Some("ZFS pool member");
    }
    if let Some(what) = foreign_tail(tail) {
        return Some(what);
    }
    // Last, because boot code of many file systems ends the same way.
    if u16_at(head, 510) == Some(0xaa55) {
        let partitions = (0..4).any(|i| head.get(446 + 16 * i + 4).is_some_and(|&t| t != 0));
        return Some(if partitions { "MBR partition table" } else { "boot sector" });
    }
    None
}

fn ext_name(head: &[u8]) -> &'static str {
    let compat = u32_at(head, 0x45c).unwrap_or(0);
    let incompat = u32_at(head, 0x460).unwrap_or(0);
    // Extents, 64 bit or flexible groups: ext4; a journal: ext3.
    if incompat & (0x40 | 0x80 | 0x200) != 0 {
        "ext4 file system"
    } else if compat & 4 != 0 {
        "ext3 file system"
    } else {
        "ext2 file system"
    }
}

fn foreign_tail(tail: &[u8]) -> Option<&'static str> {
    let from_end = |bytes: usize| tail.len().checked_sub(bytes);
    let md = [0xfc, 0x4e, 0x2b, 0xa9];
    // mdraid 1.0: 8 to 12 KiB before the end, 4 KiB-aligned; 0.90: 64 KiB-aligned, 64 to 128 KiB.
    if [8 << 10, 12 << 10].iter().any(|&b| from_end(b).is_some_and(|at| has(tail, at, &md))) {
        return Some("Linux RAID member");
    }
    if (64 << 10..=128 << 10)
        .step_by(4096)
        .any(|b| from_end(b).is_some_and(|at| has(tail, at, &md)))
    {
        return Some("Linux RAID member");
    }
    if from_end(512).is_some_and(|at| has(tail, at, b"EFI PART")) {
        return Some("GPT partition table");
    }
    // DRBD internal metadata: the last 4 KiB, magic at 60 (version 8.4, 9), big-endian.
    let drbd = [[0x83, 0x74, 0x02, 0x6b], [0x83, 0x74, 0x02, 0x6c], [0x83, 0x74, 0x02, 0x6d]];
    if from_end(BLOCK_LEN).is_some_and(|at| drbd.iter().any(|d| has(tail, at + 60, d))) {
        return Some("DRBD device");
    }
    if from_end(512).is_some_and(|at| has(tail, at, b"conectix")) {
        return Some("VHD image");
    }
    None
}

/// What lies behind what is read would never be found.
const _: () = {
    let mut i = 0;
    while i < HEAD_SIGNATURES.len() {
        let (at, signature, _) = HEAD_SIGNATURES[i];
        assert!(!signature.is_empty() && at + signature.len() <= HEAD as usize);
        i += 1;
    }
    assert!(TAIL >= 128 << 10);
};
const _: () = assert!(MAGIC != 0 && TAIL.is_multiple_of(BLOCK) && HEAD.is_multiple_of(BLOCK));

#[cfg(test)]
mod tests {
    use super::{HEAD, HEAD_SIGNATURES, TAIL, foreign};

    #[test]
    fn every_signature_is_found_and_zeros_are_nothing() {
        let zeros = vec![0; HEAD as usize];
        let tail = vec![0; TAIL as usize];
        assert_eq!(foreign(&zeros, &tail), None);
        for (at, signature, what) in HEAD_SIGNATURES {
            let mut head = zeros.clone();
            head[*at..at + signature.len()].copy_from_slice(signature);
            assert_eq!(foreign(&head, &tail), Some(*what));
        }
        let mut ext = zeros.clone();
        ext[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(foreign(&ext, &tail), Some("ext2 file system"));
        ext[0x45c] = 4;
        assert_eq!(foreign(&ext, &tail), Some("ext3 file system"));
        ext[0x460] = 0x40;
        assert_eq!(foreign(&ext, &tail), Some("ext4 file system"));
        let mut lvm = zeros.clone();
        lvm[512..520].copy_from_slice(b"LABELONE");
        assert_eq!(foreign(&lvm, &tail), Some("LVM physical volume"));
        let mut zfs = zeros.clone();
        zfs[(131 << 10)..(131 << 10) + 8].copy_from_slice(&0x00ba_b10c_u64.to_be_bytes());
        assert_eq!(foreign(&zfs, &tail), Some("ZFS pool member"));
        let mut mbr = zeros.clone();
        mbr[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(foreign(&mbr, &tail), Some("boot sector"));
        mbr[450] = 0x83;
        assert_eq!(foreign(&mbr, &tail), Some("MBR partition table"));
        for (before, signature, what) in [
            (8 << 10, &[0xfc, 0x4e, 0x2b, 0xa9][..], "Linux RAID member"),
            (64 << 10, &[0xfc, 0x4e, 0x2b, 0xa9], "Linux RAID member"),
            (512, b"EFI PART", "GPT partition table"),
            (4096 - 60, &[0x83, 0x74, 0x02, 0x6d], "DRBD device"),
        ] {
            let mut end = tail.clone();
            let at = end.len() - before;
            end[at..at + signature.len()].copy_from_slice(signature);
            assert_eq!(foreign(&zeros, &end), Some(what));
        }
    }
}
