//! Files of certificates and keys.
//!
//! Invariants: what a name stands for is the old text or the new one, whole; a key is never
//! readable by others, not even while it is written.

use crate::TrustError;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// The mode of what everybody may read.
pub(crate) const PUBLIC: u32 = 0o644;
/// The mode of what only its owner may read.
pub(crate) const SECRET: u32 = 0o600;
/// The mode of a directory of them.
const DIRECTORY: u32 = 0o700;
/// No certificate or key is longer, in bytes.
const FILE_MAX: u64 = 64 << 10;

/// Writes a file that everybody may read into a directory, as keys and certificates are: durably,
/// whole, and without following what is in its place.
///
/// # Errors
/// The file system refuses.
pub fn write_public(dir: &Path, name: &str, text: &str) -> Result<(), TrustError> {
    write(dir, &[(name, text, PUBLIC)])
}

/// The text of a file.
pub(crate) fn read(path: &Path) -> Result<String, TrustError> {
    let read = || {
        let file = File::open(path)?;
        if file.metadata()?.len() > FILE_MAX {
            return Err(io::Error::other(format!("it is longer than {FILE_MAX} bytes")));
        }
        io::read_to_string(file)
    };
    read().map_err(|e| failed(path, &e))
}

/// The text of a file that nobody but its owner may read.
pub(crate) fn read_secret(path: &Path) -> Result<String, TrustError> {
    let mode = std::fs::metadata(path).map_err(|e| failed(path, &e))?.permissions().mode();
    if mode & 0o077 != 0 {
        let why = format!("others may read it (mode {:o}): chmod 600 it", mode & 0o777);
        return Err(TrustError::File { path: path.to_owned(), why });
    }
    read(path)
}

/// Writes files (name, text, mode) into a directory, in that order, durably; the directory is made
/// if it is not there.
pub(crate) fn write(dir: &Path, files: &[(&str, &str, u32)]) -> Result<(), TrustError> {
    let made = DirBuilder::new().recursive(true).mode(DIRECTORY).create(dir);
    made.map_err(|e| failed(dir, &e))?;
    for (name, text, mode) in files {
        let (path, new) = (dir.join(name), dir.join(format!("{name}.new")));
        let write = || {
            let _ = std::fs::remove_file(&new);
            let mut out = OpenOptions::new().write(true).create_new(true).mode(*mode).open(&new)?;
            // Whatever the umask has taken from it.
            out.set_permissions(Permissions::from_mode(*mode))?;
            out.write_all(text.as_bytes())?;
            out.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|e| failed(&path, &e))?;
    }
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|e| failed(dir, &e))
}

fn failed(path: &Path, e: &io::Error) -> TrustError {
    TrustError::File { path: path.to_owned(), why: e.to_string() }
}
