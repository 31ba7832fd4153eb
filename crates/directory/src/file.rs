//! The durable image of the directory: one redb file.
//!
//! A commit is durable when it returns (two-phase: both the pages and the switch to them are
//! synced, so that a crash leaves exactly the last commit, never the one before it). Opening
//! reads everything once and believes nothing: redb's page checksums, a CRC per entry, and over
//! all of them a count and a digest that are written with every commit, so that a lost page or an
//! old root is damage and not a smaller directory. The head of the file, which says which commit
//! is the last, is kept twice (`head.rs`).
//!
//! It never makes a directory of an existing file, not even of an empty one: an emptied file is a
//! loss that must be seen. It never repairs by going back to an older state.
//!
//! Tables, all integers little-endian:
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `entries` | the key | CRC-32C of key, `modified` and value (4) - `modified` (8) - value |
//! | `meta` | `format`, `identity`, `revision`, `entries`, `digest` | a number |

use crate::head::{HeadError, Headed};
use crate::limits::{KEY_MAX, VALUE_MAX};
use crate::state::{Batch, DirectoryState, Stored};
use atoll_format::checksum;
use atoll_world::directory::Revision;
use redb::backends::FileBackend;
use redb::{
    BackendError, CommitError, Database, DatabaseError, Durability, ReadableDatabase,
    ReadableTable, StorageBackend, StorageError, TableDefinition, TableError, TransactionError,
};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// The format this program writes and the only one it reads.
pub const FILE_FORMAT: u64 = 1;
/// Memory that redb may use for pages, in bytes; reads come from memory anyway.
const CACHE_BYTES: usize = 8 << 20;

const ENTRIES: TableDefinition<&str, &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
/// CRC and revision before the value.
const HEAD: usize = 12;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Another process has it open.
    #[error("directory file {} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The operating system refuses.
    #[error("directory file {}: {source}", .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// It is not a directory file, or was written by a newer program.
    #[error("{} is not a directory file that this program can read: {what}", .path.display())]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// It is one, and its contents are damaged.
    #[error(
        "directory file {} is damaged: {what}; restore it from a copy",
        .path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
}

impl FileError {
    /// Whether there is only no room: nothing is wrong with what is there.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        ))
    }
}

/// What redb says, before it is told apart.
enum Trouble {
    Locked,
    Io(io::Error),
    Foreign(String),
    Damaged(String),
}

impl Trouble {
    fn at(self, path: &Path) -> FileError {
        let path = path.to_owned();
        match self {
            Self::Locked => FileError::Locked(path),
            Self::Io(source) => FileError::Io { path, source },
            Self::Foreign(what) => FileError::Foreign { path, what },
            Self::Damaged(what) => FileError::Damaged { path, what },
        }
    }
}

impl From<HeadError> for Trouble {
    fn from(error: HeadError) -> Self {
        match error {
            HeadError::Locked => Self::Locked,
            HeadError::Io(error) => Self::Io(error),
            HeadError::Foreign => Self::Foreign("it does not begin as one".into()),
            HeadError::Version(version) => Self::Foreign(format!(
                "its head is of version {version}, this program reads version 1"
            )),
            HeadError::Damaged => Self::Damaged("both copies of its head".into()),
        }
    }
}
impl From<StorageError> for Trouble {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Damaged("it is shorter than it was".into())
            }
            StorageError::Io(error) => Self::Io(error),
            StorageError::PreviousIo => Self::Io(io::Error::other("an earlier I/O error")),
            other => Self::Damaged(other.to_string()),
        }
    }
}
impl From<DatabaseError> for Trouble {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::Locked,
            DatabaseError::Storage(StorageError::Io(error))
                if error.kind() == io::ErrorKind::InvalidData =>
            {
                Self::Foreign(error.to_string())
            }
            DatabaseError::Storage(error) => error.into(),
            other => Self::Foreign(other.to_string()),
        }
    }
}
impl From<TableError> for Trouble {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => error.into(),
            other => Self::Foreign(other.to_string()),
        }
    }
}
impl From<TransactionError> for Trouble {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Storage(error) => error.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
}
impl From<CommitError> for Trouble {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Storage(error) => error.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// A file that grows only by space that it really gets: a full disk is noticed when the file would
/// grow, and never when a page inside it is written, so that freed pages can be used again.
#[derive(Debug)]
struct Backed {
    file: File,
    inner: FileBackend,
}

impl Backed {
    fn new(file: File) -> Result<Self, Trouble> {
        let inner = FileBackend::new(file.try_clone().map_err(Trouble::Io)?)?;
        Ok(Self { file, inner })
    }
}

impl StorageBackend for Backed {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        let now = self.len()?;
        if len > now {
            match fallocate(&self.file, FallocateFlags::KEEP_SIZE, now, len - now) {
                // A file system that cannot promise space: it is as good as it is.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.inner.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.inner.write(offset, data)
    }
    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.inner.try_lock_range(start, end)
    }
    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.inner.unlock_range(start, end)
    }
}

/// The facts that hold over all entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sum {
    entries: u64,
    digest: u64,
}

impl Sum {
    /// The order of entries does not matter, so that a change needs no pass over the others.
    fn add(&mut self, record: &[u8]) {
        self.entries += 1;
        self.digest = self.digest.wrapping_add(fingerprint(record));
    }
    fn remove(&mut self, record: &[u8]) {
        self.entries -= 1;
        self.digest = self.digest.wrapping_sub(fingerprint(record));
    }
}

/// An open directory file, locked against other processes.
pub struct DirectoryFile {
    path: PathBuf,
    database: Database,
    identity: u64,
    revision: Revision,
    sum: Sum,
}

impl fmt::Debug for DirectoryFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryFile({}, revision {})", self.path.display(), self.revision.0)
    }
}

impl DirectoryFile {
    /// Opens the file with everything that is in it; makes an empty directory if there is no such
    /// file, with `new_identity` (random: clients tell directories apart by it).
    ///
    /// # Errors
    /// See [`FileError`]; nothing was changed then.
    pub fn open(path: &Path, new_identity: u64) -> Result<(Self, DirectoryState), FileError> {
        let io = |source| FileError::Io { path: path.to_owned(), source };
        match std::fs::metadata(path) {
            Ok(meta) if !meta.is_file() => {
                let what = "not a regular file".into();
                return Err(FileError::Foreign { path: path.to_owned(), what });
            }
            Ok(meta) if meta.len() == 0 => {
                let what = "it is empty (an emptied file is not made a new directory: remove it \
                            first if that is what you want)";
                return Err(FileError::Damaged { path: path.to_owned(), what: what.into() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create_new(path, new_identity)?;
            }
            Err(error) => return Err(io(error)),
        }
        let file = File::options().read(true).write(true).open(path).map_err(io)?;
        Self::open_backend(path, Backed::new(file).map_err(|t| t.at(path))?)
    }

    /// Opens a directory that is kept in `backend`; `path` names it in errors.
    ///
    /// # Errors
    /// See [`FileError`].
    pub fn open_backend(
        path: &Path,
        backend: impl StorageBackend,
    ) -> Result<(Self, DirectoryState), FileError> {
        guarded(path, || load(backend))
            .map(|loaded| {
                let Loaded { database, identity, revision, sum, entries } = loaded;
                let file = Self { path: path.to_owned(), database, identity, revision, sum };
                (file, DirectoryState::restore(revision, entries))
            })
            .map_err(|trouble| trouble.at(path))
    }

    /// Makes an empty directory in an empty `backend`; durable on return.
    ///
    /// # Errors
    /// `Io`.
    pub fn create_backend(
        path: &Path,
        backend: impl StorageBackend,
        identity: u64,
    ) -> Result<(), FileError> {
        create(backend, identity).map_err(|trouble| trouble.at(path))
    }

    /// Which directory this is.
    pub fn identity(&self) -> u64 {
        self.identity
    }

    /// Writes a batch; durable on return.
    ///
    /// # Errors
    /// The batch may or may not be there: this value is of no more use, open the file again.
    ///
    /// # Panics
    /// If the batch was not staged on the state that was opened and committed so far.
    pub fn commit(&mut self, batch: &Batch) -> Result<(), FileError> {
        assert!(batch.revision() > self.revision, "a batch is committed once, in order");
        let sum = write(&self.database, self.sum, batch).map_err(|t| t.at(&self.path))?;
        (self.sum, self.revision) = (sum, batch.revision());
        Ok(())
    }
}

/// Makes the file under another name first, so that a crash never leaves half of one under its
/// own; `hard_link` refuses if somebody else was faster.
fn create_new(path: &Path, identity: u64) -> Result<(), FileError> {
    let io = |source| FileError::Io { path: path.to_owned(), source };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let draft = folder.join(format!(".{name}.{identity:016x}.new"));
    let made = (|| {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&draft).map_err(io)?;
        Backed::new(file)
            .and_then(|backend| create(backend, identity))
            .map_err(|trouble| trouble.at(path))?;
        match std::fs::hard_link(&draft, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(io(error)),
            _ => Ok(()),
        }
    })();
    let removed = std::fs::remove_file(&draft);
    made?;
    removed.map_err(io)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io)
}

fn create(backend: impl StorageBackend, identity: u64) -> Result<(), Trouble> {
    let backend = Headed::create(backend);
    let database = Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?;
    let mut txn = database.begin_write()?;
    txn.set_durability(Durability::Immediate).map_err(|e| Trouble::Damaged(e.to_string()))?;
    txn.set_two_phase_commit(true);
    {
        txn.open_table(ENTRIES)?;
        let mut meta = txn.open_table(META)?;
        for (name, value) in [
            ("format", FILE_FORMAT),
            ("identity", identity),
            ("revision", 0),
            ("entries", 0),
            ("digest", 0),
        ] {
            meta.insert(name, value)?;
        }
    }
    txn.commit()?;
    Ok(())
}

/// What `read` returns; a panic in it is damage.
///
/// redb believes some of what it reads before it checks it, and panics at a page that was
/// flipped (4.4.0, found by the tests beside this crate). That must reach the administrator as
/// what it is. Where panics unwind it becomes an error; where they abort (the release profile)
/// the process ends here with the same sentence and exit code 1, which is what the caller of a
/// directory that cannot be opened does anyway.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, Trouble>) -> Result<T, Trouble> {
    if cfg!(panic = "abort") {
        let before = std::sync::Arc::new(std::panic::take_hook());
        let (path, this, usual) = (path.to_owned(), std::thread::current().id(), before.clone());
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().id() != this {
                return usual(panic);
            }
            say_or_go_on(format!("error: {}\n", unreadable(panic.payload()).at(&path)));
            std::process::exit(1);
        }));
        let result = read();
        std::panic::set_hook(Box::new(move |panic| before(panic)));
        return result;
    }
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read))
        .unwrap_or_else(|payload| Err(unreadable(&*payload)))
}

/// Says it on stderr, unless that takes nothing for a second (a pipe that nobody reads).
fn say_or_go_on(text: String) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stderr = rustix::stdio::stderr();
    let mut ready = [PollFd::from_borrowed_fd(stderr, PollFlags::OUT)];
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    // A pipe that is ready takes a line of less than a page whole.
    if poll(&mut ready, Some(&second)) == Ok(1) {
        let _ = rustix::io::write(stderr, &text.as_bytes()[..text.len().min(4096)]);
    }
}

fn unreadable(payload: &(dyn std::any::Any + Send)) -> Trouble {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no reason");
    Trouble::Damaged(format!("its pages cannot be read ({text})"))
}

struct Loaded {
    database: Database,
    identity: u64,
    revision: Revision,
    sum: Sum,
    entries: Vec<(String, Stored)>,
}

fn load(backend: impl StorageBackend) -> Result<Loaded, Trouble> {
    // redb would make a new database of an empty file.
    if backend.len().map_err(Trouble::Io)? == 0 {
        return Err(Trouble::Damaged("it is empty".into()));
    }
    let backend = Headed::open(backend)?;
    let mut database =
        Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(backend)?;
    // Reads every page that is in use; false means that only free space was misaccounted, since
    // all commits are two-phase.
    database.check_integrity()?;
    let txn = database.begin_read()?;
    let meta = match txn.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => {
            return Err(Trouble::Damaged("its tables are missing".into()));
        }
        other => other?,
    };
    let number = |name: &str| -> Result<u64, Trouble> {
        let found = meta.get(name)?.map(|value| value.value());
        found.ok_or_else(|| Trouble::Damaged(format!("'{name}' is missing")))
    };
    let format = number("format")?;
    if format != FILE_FORMAT {
        return Err(Trouble::Foreign(format!(
            "its format is {format}, this program reads format {FILE_FORMAT}"
        )));
    }
    let revision = Revision(number("revision")?);
    let stored_sum = Sum { entries: number("entries")?, digest: number("digest")? };

    let mut sum = Sum::default();
    let mut entries = Vec::new();
    for item in txn.open_table(ENTRIES)?.iter()? {
        let (key, record) = item?;
        let (key, record) = (key.value(), record.value());
        let stored = decode(key, record).map_err(Trouble::Damaged)?;
        if stored.modified > revision {
            return Err(Trouble::Damaged(format!(
                "key '{key}' has revision {}, the directory only {}",
                stored.modified.0, revision.0
            )));
        }
        sum.add(record);
        entries.push((key.to_owned(), stored));
    }
    if sum != stored_sum {
        return Err(Trouble::Damaged(format!(
            "it holds {} entries with digest {:016x}, written were {} with {:016x}",
            sum.entries, sum.digest, stored_sum.entries, stored_sum.digest
        )));
    }
    let identity = number("identity")?;
    drop(meta);
    txn.close()?;
    Ok(Loaded { database, identity, revision, sum, entries })
}

fn write(database: &Database, mut sum: Sum, batch: &Batch) -> Result<Sum, Trouble> {
    let mut txn = database.begin_write()?;
    txn.set_durability(Durability::Immediate).map_err(|e| Trouble::Damaged(e.to_string()))?;
    txn.set_two_phase_commit(true);
    {
        let mut entries = txn.open_table(ENTRIES)?;
        for (key, stored) in batch.changes() {
            let old = match stored {
                Some(stored) => {
                    let record = encode(key, stored);
                    sum.add(&record);
                    entries.insert(key, record.as_slice())?
                }
                None => entries.remove(key)?,
            };
            if let Some(old) = old {
                sum.remove(old.value());
            }
        }
        let mut meta = txn.open_table(META)?;
        meta.insert("revision", batch.revision().0)?;
        meta.insert("entries", sum.entries)?;
        meta.insert("digest", sum.digest)?;
    }
    txn.commit()?;
    Ok(sum)
}

fn encode(key: &str, stored: &Stored) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD + stored.value.len());
    record.extend_from_slice(&[0; 4]);
    record.extend_from_slice(&stored.modified.0.to_le_bytes());
    record.extend_from_slice(&stored.value);
    let crc = checksum::crc_append(checksum::crc(key.as_bytes()), &record[4..]);
    record[..4].copy_from_slice(&crc.to_le_bytes());
    record
}

fn decode(key: &str, record: &[u8]) -> Result<Stored, String> {
    if key.is_empty() || key.len() > KEY_MAX {
        return Err(format!("a key is {} bytes", key.len()));
    }
    let Some((head, value)) = record.split_first_chunk::<HEAD>() else {
        return Err(format!("the record of key '{key}' is {} bytes", record.len()));
    };
    if value.len() > VALUE_MAX {
        return Err(format!("the value of key '{key}' is {} bytes", value.len()));
    }
    let (crc, modified) = head.split_first_chunk::<4>().expect("12 bytes");
    let stored = u32::from_le_bytes(*crc);
    let computed = checksum::crc_append(checksum::crc(key.as_bytes()), &record[4..]);
    if stored != computed {
        return Err(format!(
            "the checksum of key '{key}' is {computed:08x}, written was {stored:08x}"
        ));
    }
    let modified = Revision(u64::from_le_bytes(modified.try_into().expect("8 bytes")));
    Ok(Stored { value: value.into(), modified })
}

/// 64 bits of a record's CRC and revision; CRCs alone would cancel out too easily in a sum.
fn fingerprint(record: &[u8]) -> u64 {
    let word = |range: std::ops::Range<usize>| {
        record.get(range).map_or(0, |b| b.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)))
    };
    // splitmix64's finaliser.
    let mut x = word(0..4) ^ word(4..HEAD).rotate_left(32);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::{Stored, decode, encode};
    use crate::limits::{KEY_MAX, VALUE_MAX};
    use atoll_world::directory::Revision;

    #[test]
    fn what_may_be_written_can_be_read_and_nothing_larger() {
        let stored = |len| Stored { value: vec![7; len].into(), modified: Revision(9) };
        let read = |key_len: usize, len| {
            let key = "k".repeat(key_len);
            decode(&key, &encode(&key, &stored(len))).map(|read| read.value.len())
        };
        assert_eq!(read(1, 0), Ok(0));
        assert_eq!(read(KEY_MAX, VALUE_MAX), Ok(VALUE_MAX));
        for (key_len, len) in [(0, 1), (KEY_MAX + 1, 1), (1, VALUE_MAX + 1)] {
            assert!(read(key_len, len).is_err(), "a key of {key_len} bytes and a value of {len}");
        }
    }
}
