//! One daemon per data directory: an advisory lock that the kernel drops with the process.
//!
//! Invariant: while a [`DataDir`] lives, no other process of this machine holds one for the same
//! directory; a crash leaves nothing to clean up.

use atoll_api::{Code, Problem};
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

/// A data directory that this process alone uses.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
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
        Ok(Self { path: path.into(), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
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

#[cfg(test)]
mod tests {
    use super::DataDir;
    use atoll_api::Code;
    use atoll_format::id::HostId;

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
