//! Sockets of the REST server, and its connections.
//!
//! Invariants: a taken address is refused by name; a socket file that a crash has left is
//! replaced, one that answers never; at most [`CONNECTIONS_MAX`](limits::CONNECTIONS_MAX)
//! connections are served at once, and never all of them for the network; on stop, requests in
//! flight are finished for a while.

use super::Rest;
use super::door::{Access, Door};
use super::guard::Guard;
use crate::control::Control;
use atoll_api::{Code, Problem, limits};
use atoll_trust::PeerTls;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// Of the sockets of a host: its group manages it.
const SOCKET_MODE: u32 = 0o660;
/// How long a stop waits for requests in flight.
const STOP_WAIT: Duration = Duration::from_secs(5);
/// How long to rest when a connection cannot be accepted (no file descriptors).
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The first byte of a connection with TLS: of the record with its first message.
const TLS_FIRST: u8 = 22;
/// What is read of a request that came without TLS, so that its answer arrives.
const PLAIN_MAX: u64 = 64 << 10;
/// For how long.
const PLAIN_WAIT: Duration = Duration::from_secs(1);

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
        // Whoever fills those of the network does not keep the administrator of the host out.
        let of_network = Arc::new(Semaphore::new((self.connections * 3 / 4).max(1)));
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
                accepted = accept_unix(self.unix.as_ref()) => accepted,
                accepted = accept_tcp(self.tcp.as_ref(), &of_network) => accepted,
            };
            match accepted {
                Ok(Accepted { socket, door, of_network }) => {
                    let (rest, stop) = (rest.clone(), stop.clone());
                    // Ends with the connection, or soon after `stop`.
                    tokio::spawn(async move {
                        let tls = rest.access.tls.as_ref().map(PeerTls::api);
                        match (socket, tls) {
                            (Socket::Unix(stream), _) => connection(stream, door, rest, stop).await,
                            (Socket::Tcp(stream), None) => {
                                connection(stream, door, rest, stop).await;
                            }
                            (Socket::Tcp(stream), Some(tls)) => {
                                if let Some(stream) = secure(stream, tls).await {
                                    connection(stream, door, rest, stop).await;
                                }
                            }
                        }
                        drop((slot, of_network));
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

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A connection, and its place among those of the network.
struct Accepted {
    socket: Socket,
    door: Door,
    of_network: Option<OwnedSemaphorePermit>,
}

async fn accept_tcp(
    listener: Option<&TcpListener>,
    places: &Arc<Semaphore>,
) -> io::Result<Accepted> {
    let Some(listener) = listener else { return std::future::pending().await };
    let place = places.clone().acquire_owned().await.expect("never closed");
    let (stream, peer) = listener.accept().await?;
    let _ = stream.set_nodelay(true);
    let (bound, local) = (listener.local_addr()?, stream.local_addr()?);
    let door = Door::Tcp { bound, local, peer: peer.ip().to_canonical() };
    Ok(Accepted { socket: Socket::Tcp(stream), door, of_network: Some(place) })
}

async fn accept_unix(listener: Option<&(UnixListener, PathBuf)>) -> io::Result<Accepted> {
    let Some((listener, _)) = listener else { return std::future::pending().await };
    let (stream, _) = listener.accept().await?;
    let uid = stream.peer_cred().ok().map(|user| user.uid());
    Ok(Accepted { socket: Socket::Unix(stream), door: Door::Unix { uid }, of_network: None })
}

/// The connection inside TLS; none if the other end speaks none, or goes away.
async fn secure(stream: TcpStream, tls: Arc<ServerConfig>) -> Option<TlsStream<TcpStream>> {
    let secured = async {
        let mut first = [0];
        if stream.peek(&mut first).await? == 1 && first[0] != TLS_FIRST {
            refuse_plain(stream).await?;
            return Err(io::Error::other("it does not speak TLS"));
        }
        TlsAcceptor::from(tls).accept(stream).await
    };
    match tokio::time::timeout(limits::HEAD_TIMEOUT, secured).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(e)) => {
            tracing::debug!("a connection of the API ended before its first request: {e}");
            None
        }
        Err(_) => None,
    }
}

/// Says to who speaks HTTP without TLS that this is not possible here.
async fn refuse_plain(mut stream: TcpStream) -> io::Result<()> {
    let problem =
        Problem::new(Code::BadRequest, "this address speaks TLS, and HTTP came without it")
            .hint("https://, with the cluster's authority and a token (docs/security.md)");
    let body = serde_json::to_string(&problem).expect("a problem has string keys");
    let reply = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(reply.as_bytes()).await?;
    stream.shutdown().await?;
    // Closed with something unread, the answer would be lost on its way.
    let rest = async {
        let mut rest = (&mut stream).take(PLAIN_MAX);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(PLAIN_WAIT, rest).await;
    Ok(())
}

async fn connection<C: Control>(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
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
