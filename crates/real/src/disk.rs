//! Disks: a raw block device or a regular file, opened for direct I/O and for us alone.
//!
//! What it never does: retry what a device has refused, or answer for bytes that it did not
//! transfer in full.
//!
//! Invariants: nothing goes through the page cache; a range outside the disk, or not in whole
//! 4 KiB blocks, is refused before the device sees it; buffers stay alive until the device is
//! done with them, whatever becomes of the future that waits.

use crate::busy_poll;
use crate::disk_op::{Op, Outcome};
use crate::limits::PIECES_MAX;
use crate::pool::Pool;
use crate::uring::Ring;
use atoll_world::buf::{join, total_len};
use atoll_world::sync::{Receiver, oneshot};
use atoll_world::{Buf, BufMut, Disk, Durability};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// The unit of a disk: offsets and lengths are multiples of it.
const UNIT: u64 = 4096;

/// Who moves the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Backend {
    /// The ring if the system allows one, else threads (and a line in the log that says why).
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// A pool of threads.
    Threads,
}

/// How to open a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    /// Who moves the bytes.
    pub backend: Backend,
    /// Writes and discards are refused.
    pub read_only: bool,
}

/// Why a disk cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refuses: no such file, no permission, read-only medium.
    #[error("disk '{path}' cannot be opened: {error}")]
    Open {
        /// Which disk.
        path: String,
        /// What the system says.
        error: io::Error,
    },
    /// Another process, a file system or this process itself uses it.
    #[error(
        "disk '{path}' is in use by another process, a mounted file system or another disk group"
    )]
    InUse {
        /// Which disk.
        path: String,
    },
    /// A directory, a character device or the like.
    #[error("'{path}' is neither a block device nor a regular file")]
    NotADisk {
        /// Which path.
        path: String,
    },
    /// It cannot be used past the page cache in blocks of 4 KiB.
    #[error(
        "disk '{path}' does not support direct I/O in blocks of 4096 bytes ({reason}); use a \
         block device, or a file on ext4, xfs or btrfs"
    )]
    NoDirectIo {
        /// Which disk.
        path: String,
        /// What shows it.
        reason: String,
    },
    /// It does not answer: whoever opens it waits until it does, or is taken away.
    #[error("disk '{path}' does not answer: opening it takes longer than {seconds} s")]
    Silent {
        /// Which disk.
        path: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// It does not answer: a request to it that this process has given up has not ended, and keeps
    /// it in use until then.
    #[error("disk '{path}' does not answer: an earlier request to it has not ended")]
    Unanswered {
        /// Which disk.
        path: String,
    },
    /// No ring, and no other backend was allowed.
    #[error("{0}")]
    Backend(String),
}

/// One disk. Belongs to the shard that opened it.
#[derive(Clone)]
pub struct RealDisk(Rc<OpenDisk>);

struct OpenDisk {
    path: PathBuf,
    file: Arc<File>,
    is_block_device: bool,
    read_only: bool,
    len: Cell<u64>,
    engine: Engine,
}

enum Engine {
    Ring(Rc<Ring>, crate::uring::Target),
    Pool(Rc<Pool>),
}

/// A device that was opened, which any thread may do: it can take for ever.
struct Opened {
    file: File,
    is_block_device: bool,
    len: u64,
}

impl Opened {
    fn new(path: &Path, read_only: bool) -> Result<Self, OpenError> {
        let named = || path.display().to_string();
        let refused = |error: Errno| match error {
            Errno::BUSY | Errno::WOULDBLOCK if is_left(path) => {
                OpenError::Unanswered { path: named() }
            }
            Errno::BUSY | Errno::WOULDBLOCK => OpenError::InUse { path: named() },
            error => OpenError::Open { path: named(), error: error.into() },
        };
        // Without O_DIRECT and O_EXCL first, only to see what it is: opening a FIFO must not
        // hang, and O_EXCL has a meaning for block devices only.
        let stat = rustix::fs::stat(path).map_err(refused)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_block_device = kind == FileType::BlockDevice;
        if !is_block_device && kind != FileType::RegularFile {
            return Err(OpenError::NotADisk { path: named() });
        }
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let exclusive = if is_block_device { OFlags::EXCL } else { OFlags::empty() };
        let flags = access | exclusive | OFlags::CLOEXEC;
        let file = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::INVAL) => {
                let reason = "O_DIRECT is refused".to_owned();
                return Err(OpenError::NoDirectIo { path: named(), reason });
            }
            Err(error) => return Err(refused(error)),
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(refused)?;
        if is_block_device {
            let sector = rustix::fs::ioctl_blksszget(&file).map_err(refused)?;
            if u64::from(sector) > UNIT {
                let reason = format!("its sectors have {sector} bytes");
                return Err(OpenError::NoDirectIo { path: named(), reason });
            }
        }
        let len = device_len(&file).map_err(refused)?;
        if len >= UNIT {
            let mut probe = BufMut::for_overwrite(UNIT as usize);
            match rustix::io::pread(&file, &mut probe[..], 0) {
                Err(Errno::INVAL) => {
                    let reason = "a read of 4096 bytes is refused".to_owned();
                    return Err(OpenError::NoDirectIo { path: named(), reason });
                }
                Err(error) => return Err(refused(error)),
                Ok(_) => {}
            }
        }
        Ok(Self { file, is_block_device, len })
    }
}

/// Devices that this process has let go of. Each stays open until the last request to it has ended.
static LEFT: Mutex<BTreeMap<PathBuf, Weak<File>>> = Mutex::new(BTreeMap::new());

/// Whether a device is open only for requests to it that nobody waits for any more.
fn is_left(path: &Path) -> bool {
    let left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.get(path).is_some_and(|file| file.strong_count() > 0)
}

impl Drop for OpenDisk {
    fn drop(&mut self) {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.insert(self.path.clone(), Arc::downgrade(&self.file));
    }
}

/// How often is looked whether an earlier attempt has ended.
const ATTEMPT_LOOK: Duration = Duration::from_millis(20);

/// Devices that are being opened by threads of this process.
static OPENING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// An attempt to open one: there is at most one of each.
struct Attempt(PathBuf);

impl Attempt {
    fn begin(path: &Path) -> Option<Self> {
        let mut opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        opening.insert(path.to_owned()).then(|| Self(path.to_owned()))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        OPENING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

impl RealDisk {
    /// The disk at `path`, for this process alone until the last clone is dropped. Must be called
    /// on a shard, which stands still meanwhile.
    ///
    /// # Errors
    /// See [`OpenError`]; nothing was changed.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        Self::open_with(path.as_ref(), options, Ring::of_this_shard)
    }

    /// As [`open`](Self::open), for a shard that has other things to do: a device that hangs keeps
    /// a thread, one a device, and not the shard.
    ///
    /// # Errors
    /// See [`OpenError`]; [`OpenError::Silent`] after `within`, also if all of it went by while an
    /// earlier attempt was under way.
    pub async fn open_within(
        path: impl AsRef<Path>,
        options: OpenOptions,
        within: Duration,
    ) -> Result<Self, OpenError> {
        let path = path.as_ref();
        let silent =
            || OpenError::Silent { path: path.display().to_string(), seconds: within.as_secs() };
        let until = tokio::time::Instant::now() + within;
        let attempt = loop {
            match Attempt::begin(path) {
                Some(attempt) => break attempt,
                None if tokio::time::Instant::now() >= until => return Err(silent()),
                None => tokio::time::sleep(ATTEMPT_LOOK).await,
            }
        };
        let (send, opened) = tokio::sync::oneshot::channel();
        let of_thread = path.to_owned();
        let thread = std::thread::Builder::new().name("disk-open".into()).spawn(move || {
            let opened = Opened::new(&of_thread, options.read_only);
            // Closed again if nobody waits any more.
            drop(send.send(opened));
            drop(attempt);
        });
        thread.map_err(|error| OpenError::Open { path: path.display().to_string(), error })?;
        match tokio::time::timeout_at(until, opened).await {
            Ok(Ok(opened)) => Self::of(opened?, path, options, Ring::of_this_shard),
            Ok(Err(_)) | Err(_) => Err(silent()),
        }
    }

    /// `ring` gives the ring of this shard, or says why there is none.
    fn open_with(
        path: &Path,
        options: OpenOptions,
        ring: impl FnOnce() -> Result<Rc<Ring>, String>,
    ) -> Result<Self, OpenError> {
        Self::of(Opened::new(path, options.read_only)?, path, options, ring)
    }

    fn of(
        opened: Opened,
        path: &Path,
        options: OpenOptions,
        ring: impl FnOnce() -> Result<Rc<Ring>, String>,
    ) -> Result<Self, OpenError> {
        let named = || path.display().to_string();
        let Opened { file, is_block_device, len } = opened;
        let file = Arc::new(file);
        let pool = || -> Result<Engine, OpenError> {
            let pool = Pool::of_this_shard();
            pool.map(Engine::Pool).map_err(|error| OpenError::Open { path: named(), error })
        };
        let engine = match options.backend {
            Backend::Threads => pool()?,
            Backend::Uring | Backend::Auto => match ring() {
                Ok(ring) => {
                    let target = ring.register(&file);
                    Engine::Ring(ring, target)
                }
                Err(why) if options.backend == Backend::Uring => {
                    return Err(OpenError::Backend(why));
                }
                Err(why) => {
                    tracing::warn!(disk = %path.display(), "{why}; using threads instead");
                    pool()?
                }
            },
        };
        Ok(Self(Rc::new(OpenDisk {
            path: path.to_owned(),
            file,
            is_block_device,
            read_only: options.read_only,
            len: Cell::new(len),
            engine,
        })))
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether it is a block device rather than a file.
    pub fn is_block_device(&self) -> bool {
        self.0.is_block_device
    }

    /// Who moves its bytes: `uring` or `threads`.
    pub fn backend(&self) -> &'static str {
        match self.0.engine {
            Engine::Ring(..) => "uring",
            Engine::Pool(_) => "threads",
        }
    }

    /// Asks the system for its size again: a device may have grown, or lost its end.
    fn refresh_len(&self) {
        if let Ok(len) = device_len(&self.0.file) {
            self.0.len.set(len);
        }
    }

    fn check(&self, at: u64, len: u64, writes: bool) -> io::Result<()> {
        let path = self.0.path.display();
        let refuse = |kind, text: String| Err(io::Error::new(kind, text));
        if !at.is_multiple_of(UNIT) || !len.is_multiple_of(UNIT) {
            let text = format!("{at}+{len} on '{path}' is not in whole blocks of 4096 bytes");
            return refuse(io::ErrorKind::InvalidInput, text);
        }
        // A write would make a file that was cut off whole again, with zeros in it.
        if writes && !self.0.is_block_device {
            self.refresh_len();
        }
        let inside = || at.checked_add(len).is_some_and(|end| end <= self.0.len.get());
        if !inside() {
            self.refresh_len();
        }
        if !inside() {
            let size = self.0.len.get();
            let text = format!("{at}+{len} is outside of '{path}', which has {size} bytes");
            return refuse(io::ErrorKind::InvalidInput, text);
        }
        if writes && self.0.read_only {
            let text = format!("'{path}' was opened read-only");
            return refuse(io::ErrorKind::PermissionDenied, text);
        }
        Ok(())
    }

    /// Queues the operation before it returns.
    fn begin(&self, at: u64, op: Op) -> Receiver<Outcome> {
        busy_poll::event();
        let (answer, receiver) = oneshot();
        match &self.0.engine {
            Engine::Ring(ring, target) => ring.begin(target, at, op, answer),
            Engine::Pool(pool) => pool.begin(self.0.file.clone(), at, op, answer),
        }
        receiver
    }

    async fn end(&self, receiver: Receiver<Outcome>) -> Outcome {
        let outcome = match receiver.await {
            Ok(outcome) => outcome,
            Err(_) => Err(io::Error::other("the shard of this disk is ending")),
        };
        busy_poll::event();
        if outcome.is_err() {
            // It may be the size that changed.
            self.refresh_len();
        }
        outcome
    }
}

/// By `lseek`, for files too: since Linux 6.13 the first write after an `fstat` dirties the inode
/// (the time of change was seen), and a durable one then has the file system write that as well.
fn device_len(file: &File) -> rustix::io::Result<u64> {
    Ok(rustix::fs::seek(file, SeekFrom::End(0))? / UNIT * UNIT)
}

impl Disk for RealDisk {
    fn len_bytes(&self) -> u64 {
        self.refresh_len();
        self.0.len.get()
    }

    async fn read(&self, at: u64, len: u32) -> io::Result<Buf> {
        self.check(at, u64::from(len), false)?;
        if len == 0 {
            return Ok(Buf::zeros(0));
        }
        let op = Op::Read(BufMut::for_overwrite(len as usize));
        let buf = self.end(self.begin(at, op)).await?;
        Ok(buf.expect("a read brings bytes"))
    }

    async fn write(&self, at: u64, mut data: Vec<Buf>, durability: Durability) -> io::Result<()> {
        let len = total_len(&data) as u64;
        self.check(at, len, true)?;
        data.retain(|piece| !piece.is_empty());
        if data.is_empty() {
            return Ok(());
        }
        if data.len() > PIECES_MAX || !data.iter().all(|b| b.len().is_multiple_of(UNIT as usize)) {
            data = vec![join(&data)];
        }
        for piece in data.iter_mut().filter(|piece| !piece.is_aligned()) {
            *piece = Buf::copy_from(piece);
        }
        self.end(self.begin(at, Op::Write(data, durability))).await.map(drop)
    }

    async fn flush(&self) -> io::Result<()> {
        if self.0.read_only {
            return Ok(());
        }
        self.end(self.begin(0, Op::Flush)).await.map(drop)
    }

    async fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        self.check(at, len, true)?;
        if len == 0 {
            return Ok(());
        }
        let done = if self.0.is_block_device {
            // An ioctl that blocks, and a rare one: to a thread of its own.
            let file = self.0.file.clone();
            let discarding = tokio::task::spawn_blocking(move || discard_device(&file, at, len));
            discarding.await.unwrap_or_else(|e| Err(io::Error::other(e)))
        } else {
            self.end(self.begin(at, Op::Discard(len))).await.map(drop)
        };
        match done {
            // Only a hint: a device that cannot is none the worse.
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
            done => done,
        }
    }
}

#[allow(unsafe_code)]
fn discard_device(file: &File, at: u64, len: u64) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    /// `_IO(0x12, 119)` of `linux/fs.h`.
    const BLKDISCARD: libc::c_ulong = 0x1277;
    let range = [at, len];
    // SAFETY: BLKDISCARD reads two u64 behind the pointer, which live until it returns.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD as _, range.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::{Attempt, Backend, OpenError, OpenOptions, RealDisk, Ring};
    use atoll_world::{Buf, Disk, Durability};
    use std::fs::File;
    use std::rc::Rc;
    use std::time::Duration;

    /// A file of two blocks, beside the build output: a file system with direct I/O.
    fn device() -> (tempfile::TempDir, std::path::PathBuf) {
        let here = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(here.parent().unwrap()).unwrap();
        let path = dir.path().join("disk");
        File::create(&path).unwrap().set_len(8192).unwrap();
        (dir, path)
    }

    #[test]
    fn without_a_ring_threads_move_the_bytes_unless_the_ring_was_asked_for() {
        let (_dir, path) = device();
        let open = |backend| {
            let options = OpenOptions { backend, read_only: false };
            let none = || -> Result<Rc<Ring>, String> { Err("no ring here".into()) };
            RealDisk::open_with(&path, options, none)
        };
        crate::shard::run(async {
            let why = open(Backend::Uring).err();
            assert!(matches!(why, Some(OpenError::Backend(why)) if why == "no ring here"));
            let disk = open(Backend::Auto).unwrap();
            assert_eq!(disk.backend(), "threads");
            let bytes = Buf::copy_from(&[7; 4096]);
            disk.write(4096, vec![bytes.clone()], Durability::Durable).await.unwrap();
            assert_eq!(disk.read(4096, 4096).await.unwrap(), bytes);
        })
        .unwrap();
    }

    #[test]
    fn a_device_that_is_still_being_opened_takes_no_second_thread() {
        let (_dir, path) = device();
        let open = |ms| {
            let within = Duration::from_millis(ms);
            RealDisk::open_within(&path, OpenOptions::default(), within)
        };
        crate::shard::run(async {
            let earlier = Attempt::begin(&path).unwrap();
            let why = open(100).await.err();
            assert!(matches!(why, Some(OpenError::Silent { .. })), "{why:?}");
            let ends = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                drop(earlier);
            };
            let (disk, ()) = tokio::join!(open(30_000), ends);
            let disk = disk.unwrap();
            assert!(matches!(open(30_000).await.err(), Some(OpenError::InUse { .. })));
            drop(disk);
            open(30_000).await.unwrap();
        })
        .unwrap();
    }

    #[test]
    fn a_device_with_a_request_that_does_not_end_does_not_answer() {
        let (_dir, path) = device();
        let open = |backend| {
            let options = OpenOptions { backend, read_only: false };
            RealDisk::open_within(&path, options, Duration::from_secs(30))
        };
        crate::shard::run(async {
            for backend in [Backend::Auto, Backend::Threads] {
                let disk = open(backend).await.unwrap();
                let why = open(backend).await.err();
                assert!(matches!(why, Some(OpenError::InUse { .. })), "{why:?}");
                // As a request holds it that the device does not end.
                let request = disk.0.file.clone();
                drop(disk);
                let why = open(backend).await.err();
                assert!(matches!(why, Some(OpenError::Unanswered { .. })), "{why:?}");
                drop(request);
                open(backend).await.unwrap();
                // Somebody else's lock is none of a request of this process.
                let other = File::open(&path).unwrap();
                rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
                let why = open(backend).await.err();
                assert!(matches!(why, Some(OpenError::InUse { .. })), "{why:?}");
            }
        })
        .unwrap();
    }
}
