//! One daemon per data directory: an advisory lock that the kernel drops with the process.
//!
//! Invariant: while a [`DataDir`] lives, no other process of this machine holds one for the same
//! directory; a crash leaves nothing to clean up.

use atoll_api::{Code, Problem};
use atoll_format::id::Incarnation;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Lives of a host that its next one knows to have ended: more than start within one lease.
const LIVES_MAX: usize = 16;

/// A data directory that this process alone uses.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
}

impl DataDir {
    /// Creates the directory if it is missing, and locks it.
    ///
    /// # Errors
    /// [`Code::DataDirInUse`] names the process that has it; [`Code::LocalFile`]: it cannot be
    /// made, read or written.
    pub fn lock(path: &Path) -> Result<Self, Problem> {
        let shown = path.display();
        let failed = |e: std::io::Error| {
            Problem::new(Code::LocalFile, format!("data directory {shown}: {e}"))
                .hint("host.data_dir in the configuration names it; it must be writable")
        };
        std::fs::create_dir_all(path).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(path.join("lock")).map_err(failed)?;
        if let Err(e) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if e != rustix::io::Errno::WOULDBLOCK {
                return Err(failed(e.into()));
            }
            let mut pid = String::new();
            let _ = lock.read_to_string(&mut pid);
            let pid = pid.trim();
            let who =
                if pid.is_empty() { "another process".into() } else { format!("process {pid}") };
            return Err(Problem::new(
                Code::DataDirInUse,
                format!("data directory {shown} is in use by {who}"),
            )
            .hint("one daemon per data directory: stop that one, or give this one its own"));
        }
        lock.set_len(0).map_err(failed)?;
        lock.rewind().map_err(failed)?;
        writeln!(lock, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { path: path.into(), lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes that a life of the host begins, and returns earlier ones that have ended for certain,
    /// the latest [`LIVES_MAX`]: those that had the lock of this very file under this very kernel,
    /// which has dropped it. A life on another machine, or on a copy of the directory, is not among
    /// them, whether it has ended or not. Nor is one that could not be noted.
    pub fn begin_life(&self, life: Incarnation) -> Vec<Incarnation> {
        let path = self.path.join("lives");
        let lock = match self.lock_name() {
            Ok(lock) => lock,
            Err(e) => {
                tracing::warn!("which kernel this is cannot be read: {e}; a restart takes longer");
                return Vec::new();
            }
        };
        let outlived = lives_under(&lock, &std::fs::read_to_string(&path).unwrap_or_default());
        let kept = outlived.len().min(LIVES_MAX - 1);
        let lives = outlived[outlived.len() - kept..].iter().chain([&life]);
        let text: String = lives.map(|life| format!("{life}\n")).collect();
        let new = self.path.join("lives.new");
        let noted = std::fs::write(&new, format!("{lock}\n{text}"));
        if let Err(e) = noted.and_then(|()| std::fs::rename(&new, &path)) {
            tracing::warn!("{}: {e}; the next start takes some seconds longer", path.display());
        }
        outlived
    }

    /// What no other lock has while this one is held: which kernel since which start, which file.
    fn lock_name(&self) -> std::io::Result<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let file = self.lock.metadata()?;
        Ok(format!("{} {:x} {}", boot.trim(), file.dev(), file.ino()))
    }

    /// The identity kept in `name`, if one was made before.
    ///
    /// # Errors
    /// [`Code::LocalFile`]: it cannot be read, or is no identity.
    pub fn known<T>(&self, name: &str) -> Result<Option<T>, Problem>
    where
        T: std::str::FromStr<Err = String>,
    {
        let path = self.path.join(name);
        let failed =
            |why: String| Problem::new(Code::LocalFile, format!("{}: {why}", path.display()));
        match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map(Some).map_err(failed),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(e.to_string())),
        }
    }

    /// The identity kept in `name`: made by `make` and durable before this returns, the first
    /// time; the same ever after.
    ///
    /// # Errors
    /// [`Code::LocalFile`]: it cannot be read or written, or is not what `make` makes.
    pub fn identity<T>(&self, name: &str, make: impl FnOnce() -> T) -> Result<T, Problem>
    where
        T: std::fmt::Display + std::str::FromStr<Err = String>,
    {
        let path = self.path.join(name);
        let failed =
            |why: String| Problem::new(Code::LocalFile, format!("{}: {why}", path.display()));
        if let Some(known) = self.known(name)? {
            return Ok(known);
        }
        let value = make();
        let store = || {
            let new = self.path.join(format!("{name}.new"));
            let mut file = File::create(&new)?;
            writeln!(file, "{value}")?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.path)?.sync_all()
        };
        store().map_err(|e| failed(e.to_string()))?;
        Ok(value)
    }
}

/// The lives that were noted under that lock. None, if the text is of another one, or damaged.
fn lives_under(lock: &str, text: &str) -> Vec<Incarnation> {
    let Some(lives) = text.strip_prefix(lock).and_then(|rest| rest.strip_prefix('\n')) else {
        return Vec::new();
    };
    lives.lines().map(str::parse).collect::<Result<_, _>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{DataDir, LIVES_MAX};
    use atoll_api::Code;
    use atoll_format::id::{HostId, Incarnation};

    #[test]
    fn a_life_outlives_only_those_that_had_its_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (path, copy) = (dir.path().join("data"), dir.path().join("copy"));
        let begin = |path, life| DataDir::lock(path).unwrap().begin_life(Incarnation(life));
        assert_eq!(begin(&path, 1), []);
        assert_eq!(begin(&path, 2), [Incarnation(1)]);
        // The original may live on: its lock is another file.
        std::fs::create_dir(&copy).unwrap();
        for name in ["lock", "lives"] {
            std::fs::copy(path.join(name), copy.join(name)).unwrap();
        }
        assert_eq!(begin(&copy, 3), []);
        assert_eq!(begin(&copy, 4), [Incarnation(3)]);
        // Also where somebody has removed the lock's file under a process that lives.
        let living = DataDir::lock(&path).unwrap();
        assert_eq!(living.begin_life(Incarnation(5)), [Incarnation(1), Incarnation(2)]);
        std::fs::remove_file(path.join("lock")).unwrap();
        assert_eq!(begin(&path, 6), []);
        // And after the machine has started again: another kernel wrote this.
        let lives = std::fs::read_to_string(path.join("lives")).unwrap();
        assert_eq!(lives.lines().count(), 2, "{lives}");
        std::fs::write(path.join("lives"), format!("0{lives}")).unwrap();
        assert_eq!(begin(&path, 7), []);
        std::fs::write(path.join("lives"), "rubbish").unwrap();
        assert_eq!(begin(&path, 8), []);
        std::fs::remove_file(path.join("lives")).unwrap();
        std::fs::create_dir(path.join("lives")).unwrap();
        assert_eq!(begin(&path, 9), [], "what cannot be noted keeps no host from starting");
    }

    #[test]
    fn the_latest_lives_are_known() {
        let dir = tempfile::tempdir().unwrap();
        for life in 1..=30 {
            let outlived = DataDir::lock(dir.path()).unwrap().begin_life(Incarnation(life));
            assert_eq!(outlived.len() as u64, (life - 1).min(LIVES_MAX as u64), "{outlived:?}");
            assert!(life == 1 || outlived.last() == Some(&Incarnation(life - 1)));
        }
    }

    #[test]
    fn a_second_daemon_is_refused_and_told_whose_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/data");
        let first = DataDir::lock(&path).unwrap();
        let error = DataDir::lock(&path).unwrap_err();
        assert_eq!(error.code, Code::DataDirInUse);
        assert!(error.detail.contains(&format!("process {}", std::process::id())), "{error}");
        drop(first);
        DataDir::lock(&path).unwrap();
    }

    #[test]
    fn an_identity_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::lock(dir.path()).unwrap();
        assert_eq!(data.known::<HostId>("host-id").unwrap(), None);
        assert_eq!(data.identity("host-id", || HostId(7)).unwrap(), HostId(7));
        assert_eq!(data.known("host-id").unwrap(), Some(HostId(7)));
        assert_eq!(data.identity("host-id", || HostId(8)).unwrap(), HostId(7));
        std::fs::write(dir.path().join("host-id"), "rubbish\n").unwrap();
        let error = data.identity("host-id", || HostId(9)).unwrap_err();
        assert!(error.detail.contains("'rubbish' is not an id"), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = DataDir::lock(&dir.path().join("file/data")).unwrap_err();
        assert!(error.detail.contains("file/data: Not a directory"), "{error}");
    }
}
