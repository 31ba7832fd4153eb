//! The embedded directory on a Unix socket: one server per machine, many client processes.
//!
//! The rules are those of `atoll_directory` (state, file, frames); here are only the socket, the
//! thread that waits for the disk, and the deadlines.

mod client;
mod server;
mod socket;

pub use client::{DirectoryClient, DirectoryWatch};
pub use server::{DirectoryServer, ListeningDirectory, ServeError};
pub use socket::ListenError;

use atoll_directory::codec::{FrameError, HEAD, Head, decode_head};
use atoll_world::Nanos;
use std::io;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::OwnedReadHalf;

/// The next head; none when the peer closed between two frames.
async fn read_head(from: &mut OwnedReadHalf) -> io::Result<Option<Head>> {
    let mut bytes = [0; HEAD];
    if from.read(&mut bytes[..1]).await? == 0 {
        return Ok(None);
    }
    from.read_exact(&mut bytes[1..]).await?;
    decode_head(&bytes).map(Some).map_err(malformed)
}

/// The body that follows `head`; its checksum is not yet looked at.
async fn read_body(from: &mut OwnedReadHalf, head: &Head) -> io::Result<Vec<u8>> {
    let mut body = vec![0; head.body_len];
    from.read_exact(&mut body).await?;
    Ok(body)
}

fn malformed(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn span(nanos: Nanos) -> Duration {
    Duration::from_nanos(nanos.0)
}
