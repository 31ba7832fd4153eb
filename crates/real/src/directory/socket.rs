//! A Unix socket that one process owns: made with its final permissions, put in place in one
//! step, and taken over from a process that died.
//!
//! Beside the socket lies `<socket>.lock`, locked for as long as the server lives: that, and not
//! the socket file, says whether somebody serves. It is left behind on purpose; removing a lock
//! file races with the next one who locks it.

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Why the socket cannot be had.
#[derive(Debug)]
pub enum ListenError {
    /// Another process serves there.
    Taken(PathBuf),
    /// Something else has that name.
    NotASocket(PathBuf),
    /// The operating system allows fewer bytes.
    TooLong(PathBuf),
    /// The operating system refuses.
    Io(PathBuf, io::Error),
}

impl std::fmt::Display for ListenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Taken(path) => {
                write!(f, "directory socket {} is served by another process", path.display())
            }
            Self::NotASocket(path) => {
                write!(f, "{} exists and is not a socket", path.display())
            }
            Self::TooLong(path) => write!(
                f,
                "directory socket {} is too long a path: use one of at most 80 bytes",
                path.display()
            ),
            Self::Io(path, error) => write!(f, "directory socket {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, error) => Some(error),
            _ => None,
        }
    }
}

/// A listening socket; its file is removed when this is dropped.
pub(super) struct OwnedSocket {
    path: PathBuf,
    identity: (u64, u64),
    _lock: File,
}

impl Drop for OwnedSocket {
    fn drop(&mut self) {
        // Only what we made: an administrator may have put something else there.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.identity)
        {
            // Nobody is left to tell, and a socket that stays is taken over by the next server.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens at `path`, for this user only.
pub(super) fn listen(
    path: &Path,
) -> Result<(OwnedSocket, std::os::unix::net::UnixListener), ListenError> {
    let io = |error: io::Error| ListenError::Io(path.to_owned(), error);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path.with_file_name(format!("{name}.lock")))
        .map_err(io)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(ListenError::Taken(path.to_owned())),
        Err(TryLockError::Error(error)) => return Err(io(error)),
    }
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        // A program that knows nothing of the lock may live there.
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            return Err(ListenError::Taken(path.to_owned()));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }

    // Under a draft name first: nobody can connect before the permissions are right, and the
    // rename replaces a dead socket without a moment in which there is none.
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let draft = path.with_file_name(format!(
        ".{:x}.{:x}",
        std::process::id(),
        DRAFTS.fetch_add(1, Ordering::Relaxed)
    ));
    let address =
        |path: &Path| SocketAddrUnix::new(path).map_err(|_| ListenError::TooLong(path.to_owned()));
    address(path)?;
    let draft_address = address(&draft).map_err(|_| ListenError::TooLong(path.to_owned()))?;
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
    .map_err(|e| io(e.into()))?;
    rustix::net::bind(&socket, &draft_address).map_err(|e| io(e.into()))?;
    let placed = std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| rustix::net::listen(&socket, 128).map_err(io::Error::from))
        .and_then(|()| std::fs::symlink_metadata(&draft))
        .and_then(|meta| std::fs::rename(&draft, path).map(|()| (meta.dev(), meta.ino())));
    match placed {
        Ok(identity) => {
            let owned = OwnedSocket { path: path.to_owned(), identity, _lock: lock };
            Ok((owned, socket.into()))
        }
        Err(error) => {
            // The draft is ours alone; the first error is the one to tell.
            let _ = std::fs::remove_file(&draft);
            Err(io(error))
        }
    }
}
