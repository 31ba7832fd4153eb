//! Files that are neither a raw disk nor a qcow2 image, told by their first and last bytes: packed
//! files, archives, other formats of disks. Taken for raw they would become disks full of rubbish.
//!
//! Invariant: content decides, never a file's name.

use atoll_api::shell::quote;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// As many bytes from a file's beginning are looked at.
pub const HEAD: usize = 4096;
/// As many bytes from its end.
pub const TAIL: usize = 512;

/// What a file is instead of a disk.
#[derive(Debug, PartialEq, Eq)]
pub struct Foreign {
    /// "it is packed by xz".
    pub why: String,
    /// A command that makes a disk image of it; `FILE` and `FILE.x` stand for names, see [`line`].
    pub way: String,
}

/// How a disk comes out of it.
enum Way {
    /// The program unpacks `FILE` to a name without the ending, or to its output.
    Unpack(&'static str, &'static [&'static str]),
    /// An archive, and the command that unpacks it.
    Extract(&'static str),
    /// A format of disks that `qemu-img` knows by that name.
    Convert(&'static str),
}

use Way::{Convert, Extract, Unpack};

/// At that offset, those bytes: that name.
const HEADS: &[(usize, &[u8], &str, Way)] = &[
    (0, b"\xfd7zXZ\0", "xz", Unpack("xz", &[".xz", ".txz"])),
    (0, b"\x1f\x8b\x08", "gzip", Unpack("gzip", &[".gz", ".tgz"])),
    (0, b"\x28\xb5\x2f\xfd", "zstd", Unpack("zstd", &[".zst", ".tzst"])),
    (0, b"BZh", "bzip2", Unpack("bzip2", &[".bz2", ".tbz2"])), // and a block, see below
    (0, b"LZIP", "lzip", Unpack("lzip", &[".lz", ".tlz"])),
    (0, b"\x04\x22\x4d\x18", "lz4", Unpack("lz4", &[".lz4"])),
    (0, b"\x02\x21\x4c\x18", "lz4", Unpack("lz4", &[".lz4"])),
    (0, b"\x89LZO\0\r\n\x1a\n", "lzop", Unpack("lzop", &[".lzo"])),
    (0, b"PK\x03\x04", "zip", Extract("unzip FILE")),
    (0, b"PK\x05\x06", "zip", Extract("unzip FILE")),
    (0, b"7z\xbc\xaf\x27\x1c", "7z", Extract("7z x FILE")),
    (0, b"Rar!\x1a\x07", "rar", Extract("7z x FILE")),
    (0, b"MSWIM\0\0\0", "WIM", Extract("7z x FILE")),
    (0, b"MSCF\0\0\0\0", "cab", Extract("7z x FILE")),
    (257, b"ustar", "tar (OVA)", Extract("tar -xvf - < FILE")),
    (0, b"070701", "cpio", Extract("cpio -idv < FILE")),
    (0, b"070702", "cpio", Extract("cpio -idv < FILE")),
    (0, b"070707", "cpio", Extract("cpio -idv < FILE")),
    (0, b"!<arch>\n", "ar", Extract("ar xv FILE")),
    (0, b"VMA\0", "VMA", Extract("vma extract FILE FILE.d")),
    (0, b"\x3a\xff\x26\xed", "Android sparse", Extract("simg2img FILE FILE.raw")),
    (0, b"KDMV", "VMDK", Convert("vmdk")),
    (0, b"COWD", "VMDK", Convert("vmdk")),
    (0, b"conectix", "VHD", Convert("vpc")),
    (0, b"vhdxfile", "VHDX", Convert("vhdx")),
    (64, b"\x7f\x10\xda\xbe", "VDI", Convert("vdi")),
    (0, b"QED\0", "QED", Convert("qed")),
    (0, b"QFI\xfb\0\0\0\x01", "QCOW (version 1)", Convert("qcow")),
    (0, b"WithoutFreeSpace", "Parallels", Convert("parallels")),
    (0, b"WithouFreSpacExt", "Parallels", Convert("parallels")),
    (0, b"Bochs Virtual HD Image", "Bochs", Convert("bochs")),
    (0, b"#!/bin/sh\n#V2.0 Format\n", "cloop", Convert("cloop")),
];

/// The same of the last 512 bytes.
const TAILS: &[(&[u8], &str, Way)] = &[
    (b"conectix", "VHD (fixed, with its footer of 512 bytes)", Convert("vpc")),
    (b"koly", "DMG", Convert("dmg")),
];

/// What a file with that beginning (up to [`HEAD`] bytes) and end ([`TAIL`]) is, if not a raw disk.
pub fn recognise(head: &[u8], tail: &[u8], file: &Path) -> Option<Foreign> {
    if let Some(named) = vmdk_descriptor(head) {
        return Some(Foreign {
            why: match named {
                Some(named) => format!(
                    "it is a VMDK descriptor, which names other files, the first {}",
                    quote(&named)
                ),
                None => "it is a VMDK descriptor, which names other files".into(),
            },
            way: "qemu-img convert -f vmdk -O qcow2 FILE FILE.qcow2".into(),
        });
    }
    let headed = HEADS.iter().find(|(at, bytes, name, _)| {
        let rest = head.get(*at..).unwrap_or_default();
        let block = || matches!(rest.get(4..10), Some(b"1AY&SY" | b"\x17rE8P\x90"));
        rest.starts_with(bytes) && (*name != "bzip2" || block())
    });
    let tailed = || TAILS.iter().find(|(bytes, ..)| tail.starts_with(bytes));
    let (name, way) = match headed {
        Some((_, _, name, way)) => (name, way),
        None => tailed().map(|(_, name, way)| (name, way))?,
    };
    let name_bytes = file.as_os_str().as_bytes();
    let (why, way) = match way {
        Unpack(program, endings) => (
            format!("it is packed by {name}"),
            if endings.iter().any(|ending| name_bytes.ends_with(ending.as_bytes())) {
                format!("{program} -dk -- FILE")
            } else {
                format!("{program} -dc < FILE > FILE.raw")
            },
        ),
        Extract(command) => (format!("it is an archive, {name}"), (*command).to_owned()),
        Convert(format) => (
            format!("it is an image of format {name}, not raw or qcow2"),
            format!("qemu-img convert -f {format} -O qcow2 FILE FILE.qcow2"),
        ),
    };
    Some(Foreign { why, way })
}

/// Whether it is a text that describes a VMDK image, and the first file that it names.
fn vmdk_descriptor(head: &[u8]) -> Option<Option<String>> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.lines().map(str::trim);
    if !head.starts_with(b"# Disk DescriptorFile") {
        // QEMU takes every text for one whose first line that is not a comment says this.
        let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
        if !matches!(first, "version=1" | "version=2" | "version=3") {
            return None;
        }
    }
    let extent = lines
        .find(|line| ["RW ", "RDONLY ", "NOACCESS "].iter().any(|access| line.starts_with(access)));
    Some(extent.and_then(|line| line.split('"').nth(1).map(str::to_owned)))
}

/// A command line in which the words `FILE` and `FILE.x` stand for the name of `file`, quoted.
pub fn line(way: &str, file: &Path) -> String {
    let words = way.split(' ').map(|word| match word.strip_prefix("FILE") {
        Some(ending) => {
            let mut name = OsString::from(plain(file));
            name.push(ending);
            quote(name)
        }
        None => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A path that every program takes for a file, whatever it is called (`a:b`, `-x`).
pub fn plain(path: &Path) -> PathBuf {
    let bytes = path.as_os_str().as_bytes();
    let odd = bytes.starts_with(b"-") || bytes.contains(&b':');
    if path.is_relative() && odd { Path::new(".").join(path) } else { path.into() }
}

#[cfg(test)]
mod tests {
    use super::{HEAD, HEADS, TAIL, line, recognise};
    use std::path::Path;

    fn told(head: &[u8], tail: &[u8], file: &str) -> Option<String> {
        let foreign = recognise(head, tail, Path::new(file))?;
        Some(format!("{}: {}", foreign.why, line(&foreign.way, Path::new(file))))
    }

    #[test]
    fn a_foreign_file_is_named_with_the_command_that_unpacks_it() {
        for (head, file, said) in [
            (
                &b"\xfd7zXZ\0..."[..],
                "debian 12.raw.xz",
                "it is packed by xz: xz -dk -- 'debian 12.raw.xz'",
            ),
            (b"\xfd7zXZ\0...", "d", "it is packed by xz: xz -dc < d > d.raw"),
            (b"BZh91AY&SY", "-d.bz2", "it is packed by bzip2: bzip2 -dk -- ./-d.bz2"),
            (b"PK\x03\x04", "it's.zip", "it is an archive, zip: unzip 'it'\\''s.zip'"),
            (
                b"KDMV",
                "a:b.vmdk",
                "it is an image of format VMDK, not raw or qcow2: qemu-img convert -f vmdk -O \
                 qcow2 ./a:b.vmdk ./a:b.vmdk.qcow2",
            ),
        ] {
            assert_eq!(told(head, &[], file).as_deref(), Some(said));
        }
        let mut tail = [0; TAIL];
        tail[..8].copy_from_slice(b"conectix");
        let said = told(&[0; HEAD], &tail, "/a/b.vhd").unwrap();
        assert!(said.contains("VHD (fixed") && said.contains("-f vpc"), "{said}");
        let text = b"# Disk DescriptorFile\nversion=1\n\nRW 8 FLAT \"secret\" 0\n";
        let said = told(text, &[], "x.raw").unwrap();
        assert!(said.contains("names other files, the first secret"), "{said}");
        let said = told(b"# my own\n\nversion=3\nRDONLY 1 FLAT \"s\"", &[], "x.raw").unwrap();
        assert!(said.contains("the first s"), "{said}");
    }

    #[test]
    fn each_signature_is_found_at_its_place_alone() {
        for (at, bytes, name, _) in HEADS {
            let mut head = vec![0; HEAD];
            head[*at..*at + bytes.len()].copy_from_slice(bytes);
            if *name == "bzip2" {
                head[4..10].copy_from_slice(b"1AY&SY");
            }
            let said = told(&head, &[0; TAIL], "f").unwrap();
            assert!(said.contains(name), "{said}");
            head.rotate_right(1);
            assert_eq!(told(&head, &[0; TAIL], "f"), None, "{name}");
            assert_eq!(told(&bytes[..bytes.len() - 1], &[], "f"), None, "{name} cut short");
        }
    }

    #[test]
    fn disks_are_not_foreign() {
        let mut boot = vec![0; HEAD];
        boot[..3].copy_from_slice(b"\xeb\x63\x90");
        boot[510..512].copy_from_slice(b"\x55\xaa");
        let mut luks = vec![0; HEAD];
        luks[..6].copy_from_slice(b"LUKS\xba\xbe");
        for head in [&boot[..], &luks, &[0; HEAD], &[7; HEAD], &[], b"hsqs", b"BZh9"] {
            assert_eq!(recognise(head, &[0; TAIL], Path::new("foo.raw.xz")), None);
        }
    }
}
