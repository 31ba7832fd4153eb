//! Sockets of the REST server, and its connections.
//!
//! Invariants: a taken address is refused by name; a socket file that a crash has left is
//! replaced, one that answers never; at most [`CONNECTIONS_MAX`](limits::CONNECTIONS_MAX)
//! connections are served at once; on stop, requests in flight are finished for a while.

use super::Rest;
use super::door::{Access, Door};
use super::guard::Guard;
use crate::control::Control;
use atoll_api::{Code, Problem, limits};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};

/// Of the sockets of a host: its group manages it.
const SOCKET_MODE: u32 = 0o660;
/// How long a stop waits for requests in flight.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// How long to rest when a connection cannot be accepted (no file descriptors).
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Bound sockets, not served yet.
#[derive(Debug)]
pub struct Listeners {
    tcp: Option<TcpListener>,
    unix: Option<(UnixListener, PathBuf)>,
    connections: usize,
}

impl Listeners {
    /// Binds both. Inside a tokio runtime.
    ///
    /// # Errors
    /// [`Code::AddressInUse`], [`Code::LocalFile`]: each names the address and its key.
    pub async fn bind(tcp: Option<SocketAddr>, unix: Option<&Path>) -> Result<Self, Problem> {
        let tcp = match tcp {
            None => None,
            Some(address) => Some(
                TcpListener::bind(address)
                    .await
                    .map_err(|e| cannot_bind(&e, &address.to_string(), "network.api"))?,
            ),
        };
        let unix = match unix {
            None => None,
            Some(path) => Some((bind_unix(path, "network.api_socket")?, path.to_owned())),
        };
        Ok(Self { tcp, unix, connections: limits::CONNECTIONS_MAX })
    }

    /// Serves at most so many connections at once; others wait in the kernel's queue.
    pub fn at_most(self, connections: usize) -> Self {
        Self { connections, ..self }
    }

    /// The TCP address that was bound.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }

    /// Serves until `stop` becomes true, finishes what is in flight, and removes the socket.
    pub async fn serve<C: Control>(self, control: C, access: Access, stop: watch::Receiver<bool>) {
        let rest = Arc::new(Rest::new(control, access, stop.clone()));
        let slots = Arc::new(Semaphore::new(self.connections));
        loop {
            let mut stopped = stop.clone();
            let slot = tokio::select! {
                biased;
                _ = stopped.wait_for(|stop| *stop) => break,
                slot = slots.clone().acquire_owned() => slot.expect("never closed"),
            };
            let accepted = tokio::select! {
                biased;
                _ = stopped.wait_for(|stop| *stop) => break,
                accepted = accept_tcp(self.tcp.as_ref()) => accepted,
                accepted = accept_unix(self.unix.as_ref()) => accepted,
            };
            match accepted {
                Ok((stream, door)) => {
                    let (rest, stop) = (rest.clone(), stop.clone());
                    // Ends with the connection, or soon after `stop`.
                    tokio::spawn(async move {
                        connection(stream, door, rest, stop).await;
                        drop(slot);
                    });
                }
                Err(e) => {
                    tracing::warn!("cannot accept a connection of the API: {e}");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
        if let Some((listener, path)) = self.unix {
            drop(listener);
            let _ = std::fs::remove_file(path);
        }
        drop(self.tcp);
        let all = u32::try_from(self.connections).expect("a small number");
        let _ = tokio::time::timeout(STOP_WAIT, slots.acquire_many(all)).await;
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

type Accepted = io::Result<(Box<dyn Stream>, Door)>;

async fn accept_tcp(listener: Option<&TcpListener>) -> Accepted {
    match listener {
        Some(listener) => {
            let (stream, _) = listener.accept().await?;
            let _ = stream.set_nodelay(true);
            let (bound, local) = (listener.local_addr()?, stream.local_addr()?);
            Ok((Box::new(stream), Door::Tcp { bound, local }))
        }
        None => std::future::pending().await,
    }
}

async fn accept_unix(listener: Option<&(UnixListener, PathBuf)>) -> Accepted {
    match listener {
        Some((listener, _)) => Ok((Box::new(listener.accept().await?.0), Door::Unix)),
        None => std::future::pending().await,
    }
}

async fn connection<C: Control>(
    stream: Box<dyn Stream>,
    door: Door,
    rest: Arc<Rest<C>>,
    mut stop: watch::Receiver<bool>,
) {
    let service = service_fn(move |request| {
        let rest = rest.clone();
        async move { Ok::<_, Infallible>(rest.answer(door, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEAD_TIMEOUT)
        .max_headers(limits::HEADERS_MAX)
        .max_buf_size(limits::HEAD_MAX)
        .writev(false)
        .serve_connection(TokioIo::new(Guard::new(stream)), service);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        biased;
        done = connection.as_mut() => {
            if let Err(e) = done {
                tracing::debug!("a connection of the API ended: {e}");
            }
            return;
        }
        _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
    }
    let _ = tokio::time::timeout(STOP_WAIT, connection).await;
}

/// Binds a Unix socket, mode 0660; replaces a file that nobody listens on any more.
///
/// # Errors
/// [`Code::AddressInUse`]: somebody answers there, or it is not a socket.
pub fn bind_unix(path: &Path, key: &str) -> Result<UnixListener, Problem> {
    atoll_real::listen_unix(path, SOCKET_MODE)
        .and_then(UnixListener::from_std)
        .map_err(|e| cannot_bind(&e, &path.display().to_string(), key))
}

/// Why an address cannot be listened on, and what to do.
pub fn cannot_bind(error: &io::Error, address: &str, key: &str) -> Problem {
    let detail = |why: &str| format!("cannot listen on {address} ({key}): {why}");
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            Problem::new(Code::AddressInUse, detail("another process listens there"))
                .hint(format!("'ss -lpn | grep {address}' names it"))
        }
        io::ErrorKind::AlreadyExists => {
            let detail = format!("{address} exists and is not a socket ({key})");
            Problem::new(Code::AddressInUse, detail).hint("remove it, or change the configuration")
        }
        io::ErrorKind::AddrNotAvailable => {
            Problem::new(Code::AddressInUse, detail("this machine has no such address"))
                .hint("'ip address' lists its addresses")
        }
        _ => Problem::new(Code::LocalFile, detail(&error.to_string())),
    }
}
