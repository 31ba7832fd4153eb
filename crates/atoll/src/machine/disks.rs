//! Disks of this machine and what lies on them, from `lsblk` and from our own labels.
//!
//! Invariants: disks are opened read-only, shared and unlocked, so that neither a daemon nor a
//! file system notices; a disk that does not answer costs [`LOOK_MAX`] and a thread, no more.

use atoll_store::{Inspection, inspect};
use atoll_world::{Buf, BufMut, Disk, Durability};
use serde_json::Value;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// A fact, or why it could not be looked at.
pub type Known<T> = Result<T, String>;

/// A disk.
#[derive(Debug)]
pub struct DiskFact {
    pub path: PathBuf,
    pub size_bytes: u64,
    /// Of one logical sector.
    pub sector_bytes: u64,
    pub is_read_only: bool,
    /// A `[[group]]` of the configuration lists it.
    pub is_configured: bool,
    /// What the system knows to lie on it.
    pub lies: Vec<Lies>,
    /// What our own eyes see on it.
    pub label: Known<Inspection>,
}

/// Something that lies on a disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lies {
    /// A partition table.
    Partitions { table: String, parts: usize },
    /// A file system, swap, a member of a volume group or an array, on the disk or a part of it.
    Data { what: String, at: String },
    /// It is in use as a file system or swap.
    Mounted { at: String, on: String },
    /// A device is made of it: `lvm`, `raid1`, `crypt`.
    PartOf { kind: String, path: String },
}

/// How long a disk may take until its labels are read.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// What `lsblk` is asked for.
pub const LSBLK: &[&str] = &[
    "lsblk",
    "-J",
    "-b",
    "-o",
    "PATH,TYPE,SIZE,RO,ROTA,LOG-SEC,FSTYPE,PTTYPE,MOUNTPOINTS,MODEL,SERIAL",
];

/// The disks of a machine by what [`LSBLK`] prints: without what is empty by nature (a drive
/// without a medium) and without loop devices, memory and the like.
///
/// # Errors
/// It is not what `lsblk` prints.
pub fn of_lsblk(json: &[u8]) -> Known<Vec<DiskFact>> {
    let odd = |why: &str| format!("lsblk: {why}");
    let whole: Value = serde_json::from_slice(json).map_err(|e| odd(&e.to_string()))?;
    let devices = whole["blockdevices"].as_array().ok_or_else(|| odd("it lists no devices"))?;
    let is_disk = |device: &&Value| {
        let path = device["path"].as_str().unwrap_or_default();
        let memory = ["/dev/zram", "/dev/ram"].iter().any(|memory| path.starts_with(memory));
        device["type"] == "disk" && !memory && device["size"].as_u64() > Some(0)
    };
    Ok(devices.iter().filter(is_disk).map(of_device).collect())
}

fn of_device(device: &Value) -> DiskFact {
    let mut lies = Vec::new();
    if let Some(table) = device["pttype"].as_str() {
        let parts = device["children"].as_array().map_or(0, Vec::len);
        lies.push(Lies::Partitions { table: table.into(), parts });
    }
    found(device, &mut lies);
    DiskFact {
        path: device["path"].as_str().unwrap_or_default().into(),
        size_bytes: device["size"].as_u64().unwrap_or(0),
        sector_bytes: device["log-sec"].as_u64().unwrap_or(512),
        is_read_only: device["ro"] == true,
        is_configured: false,
        lies,
        label: Err("not looked at".into()),
    }
}

/// What lies on a device and on everything that is made of it.
fn found(device: &Value, lies: &mut Vec<Lies>) {
    let path = device["path"].as_str().unwrap_or_default().to_owned();
    if let Some(what) = device["fstype"].as_str() {
        lies.push(Lies::Data { what: what.into(), at: path.clone() });
    }
    for mount in device["mountpoints"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        lies.push(Lies::Mounted { at: path.clone(), on: mount.into() });
    }
    for inner in device["children"].as_array().into_iter().flatten() {
        match inner["type"].as_str() {
            Some("part") | None => {}
            Some(kind) => lies.push(Lies::PartOf {
                kind: kind.into(),
                path: inner["path"].as_str().unwrap_or_default().into(),
            }),
        }
        found(inner, lies);
    }
}

/// What our own eyes see on a disk or a file: its size and its labels.
///
/// # Errors
/// Why it cannot be looked at.
pub async fn look(path: &Path) -> Known<(u64, Inspection)> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let of_thread = path.to_owned();
    let thread = std::thread::Builder::new().name("disk-look".into()).spawn(move || {
        // Nobody waits any more: it has taken too long.
        let _ = sender.send(look_now(&of_thread));
    });
    thread.map_err(|e| e.to_string())?;
    match tokio::time::timeout(LOOK_MAX, receiver).await {
        Ok(Ok(looked)) => looked,
        Ok(Err(_)) => Err("its inspection died".into()),
        Err(_) => Err(format!("it does not answer within {} s", LOOK_MAX.as_secs())),
    }
}

fn look_now(path: &Path) -> Known<(u64, Inspection)> {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let (runtime, disk) = (runtime.map_err(|e| e.to_string())?, ReadOnly::open(path)?);
    let found = runtime.block_on(inspect(&disk));
    found.map(|found| (disk.len_bytes(), found)).map_err(|e| e.to_string())
}

/// A disk that is only read, through the page cache.
#[derive(Clone)]
struct ReadOnly(Rc<(File, u64)>);

impl ReadOnly {
    fn open(path: &Path) -> Known<Self> {
        let named = |e: io::Error| e.to_string();
        // A FIFO would keep whoever opens it waiting.
        let kind = std::fs::metadata(path).map_err(named)?.file_type();
        use std::os::unix::fs::FileTypeExt;
        if !kind.is_file() && !kind.is_block_device() {
            return Err("it is neither a block device nor a regular file".into());
        }
        let mut file = File::open(path).map_err(named)?;
        let len = io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(named)?;
        Ok(Self(Rc::new((file, len / 4096 * 4096))))
    }
}

impl Disk for ReadOnly {
    fn len_bytes(&self) -> u64 {
        self.0.1
    }
    async fn read(&self, at: u64, len: u32) -> io::Result<Buf> {
        let mut buf = BufMut::zeroed(len as usize);
        self.0.0.read_exact_at(&mut buf[..], at)?;
        Ok(buf.freeze())
    }
    async fn write(&self, _: u64, _: Vec<Buf>, _: Durability) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
    async fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    async fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// One name for a device that has several.
pub fn same(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Lies, look, of_lsblk};
    use atoll_store::Inspection;

    #[test]
    fn what_lies_on_a_disk_is_found_on_its_parts_too() {
        let printed = br#"{"blockdevices": [
            {"path":"/dev/zram0","type":"disk","size":4096,"mountpoints":[null]},
            {"path":"/dev/loop0","type":"loop","size":4096,"mountpoints":["/snap"]},
            {"path":"/dev/sr0","type":"rom","size":4096},
            {"path":"/dev/sdz","type":"disk","size":0},
            {"path":"/dev/sda","type":"disk","size":274877906944,"ro":false,"log-sec":512,
             "fstype":null,"pttype":"gpt","mountpoints":[null],"children":[
                {"path":"/dev/sda1","type":"part","fstype":"vfat","mountpoints":["/boot/efi"]},
                {"path":"/dev/sda2","type":"part","fstype":"LVM2_member","mountpoints":[null],
                 "children":[{"path":"/dev/mapper/vg-root","type":"lvm","fstype":"ext4",
                              "mountpoints":["/", null]}]}]},
            {"path":"/dev/nvme0n1","type":"disk","size":1099511627776,"ro":true,"log-sec":4096,
             "fstype":null,"pttype":null,"mountpoints":[null]}]}"#;
        let disks = of_lsblk(printed).unwrap();
        let paths: Vec<_> = disks.iter().map(|disk| disk.path.display().to_string()).collect();
        assert_eq!(paths, ["/dev/sda", "/dev/nvme0n1"]);
        let data = |what: &str, at: &str| Lies::Data { what: what.into(), at: at.into() };
        let mounted = |at: &str, on: &str| Lies::Mounted { at: at.into(), on: on.into() };
        let lies = [
            Lies::Partitions { table: "gpt".into(), parts: 2 },
            data("vfat", "/dev/sda1"),
            mounted("/dev/sda1", "/boot/efi"),
            data("LVM2_member", "/dev/sda2"),
            Lies::PartOf { kind: "lvm".into(), path: "/dev/mapper/vg-root".into() },
            data("ext4", "/dev/mapper/vg-root"),
            mounted("/dev/mapper/vg-root", "/"),
        ];
        assert_eq!(disks[0].lies, lies);
        assert_eq!((disks[1].sector_bytes, disks[1].is_read_only), (4096, true));
        assert!(disks[1].lies.is_empty());
        assert!(of_lsblk(b"{}").is_err() && of_lsblk(b"lsblk: no").is_err());
    }

    #[tokio::test]
    async fn our_own_eyes_see_empty_files_and_foreign_ones_and_leave_them_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::File::create(&path).unwrap().set_len(2 << 30).unwrap();
        assert_eq!(look(&path).await, Ok((2 << 30, Inspection::Empty)));
        let mut bytes = vec![0; 4 << 20];
        bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
        std::fs::write(&path, &bytes).unwrap();
        let Ok((_, Inspection::Foreign { what })) = look(&path).await else { panic!("not seen") };
        assert!(what.contains("ext"), "{what}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert!(look(&dir.path().join("none")).await.unwrap_err().contains("No such file"));
        let odd = look(std::path::Path::new("/dev/null")).await.unwrap_err();
        assert_eq!(odd, "it is neither a block device nor a regular file");
    }
}
