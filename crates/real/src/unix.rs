//! Unix sockets to listen at.

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens at a Unix socket of that mode, whatever the umask; takes the place of a socket that
/// nobody listens at any more, and of nothing else. Directories above it are made where they are
/// missing (0755 less the umask). The listener does not block.
///
/// # Errors
/// `AddrInUse`: somebody listens there. `AlreadyExists`: it is no socket. Others: the system
/// refuses.
pub fn listen_unix(path: &Path, mode: u32) -> io::Result<UnixListener> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is another file"));
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => {
                let why = "another process listens there";
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            Err(e) => return Err(e),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The file that `bind` makes has the socket's own mode less the umask: it is at no time open
    // to more than it will be.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::listen_unix;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_mode_is_as_asked_and_only_dead_sockets_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/socket");
        let first = listen_unix(&path, 0o660).unwrap();
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(), 0o660);
        let taken = listen_unix(&path, 0o600).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
        drop(first);
        let again = listen_unix(&path, 0o600).unwrap();
        assert_eq!(mode(), 0o600);
        assert!(again.accept().is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
        let file = dir.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        let refused = listen_unix(&file, 0o660).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::AlreadyExists);
    }
}
