//! Byte streams of clients: TCP and Unix sockets, and where to listen for them.

use atoll_world::stream::{ByteRead, ByteStream, ByteWrite, Piece};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, tcp, unix};

use crate::busy_poll;
use crate::limits::WRITE_PIECES_MAX;
use crate::unix::listen_unix;

/// A connected client.
pub struct RealStream {
    socket: Socket,
    peer: String,
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The receiving half; the socket closes with the last of both.
pub struct StreamRead {
    half: ReadHalf,
    /// Of the stream: for when it is united again.
    peer: String,
}

enum ReadHalf {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
}

/// The sending half.
pub struct StreamWrite(WriteHalf);

enum WriteHalf {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

/// A connected client on its way from one shard to another; it is disconnected if it is dropped.
pub struct DetachedStream {
    socket: DetachedSocket,
    peer: String,
}

/// Sockets that do not block, as the next runtime needs them.
enum DetachedSocket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl RealStream {
    /// A client over TCP.
    ///
    /// # Errors
    /// It has gone already.
    pub fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?.to_string();
        Ok(Self { socket: Socket::Tcp(stream), peer })
    }

    /// A client over a Unix socket.
    pub fn unix(stream: UnixStream) -> Self {
        let pid = stream.peer_cred().ok().and_then(|c| c.pid());
        let peer = pid.map_or("unix".to_owned(), |pid| format!("unix, process {pid}"));
        Self { socket: Socket::Unix(stream), peer }
    }

    /// Takes it from this thread's runtime. Bytes that have come and were not read stay in it.
    ///
    /// # Errors
    /// The system refuses; the client is disconnected.
    pub fn detach(self) -> io::Result<DetachedStream> {
        let socket = match self.socket {
            Socket::Tcp(stream) => DetachedSocket::Tcp(stream.into_std()?),
            Socket::Unix(stream) => DetachedSocket::Unix(stream.into_std()?),
        };
        Ok(DetachedStream { socket, peer: self.peer })
    }

    /// Gives it to this thread's runtime.
    ///
    /// # Errors
    /// The system refuses; the client is disconnected.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn attach(stream: DetachedStream) -> io::Result<Self> {
        let socket = match stream.socket {
            DetachedSocket::Tcp(socket) => Socket::Tcp(TcpStream::from_std(socket)?),
            DetachedSocket::Unix(socket) => Socket::Unix(UnixStream::from_std(socket)?),
        };
        Ok(Self { socket, peer: stream.peer })
    }
}

impl ByteStream for RealStream {
    type Read = StreamRead;
    type Write = StreamWrite;
    fn split(self) -> (StreamRead, StreamWrite) {
        let (half, write) = match self.socket {
            Socket::Tcp(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Tcp(read), WriteHalf::Tcp(write))
            }
            Socket::Unix(stream) => {
                let (read, write) = stream.into_split();
                (ReadHalf::Unix(read), WriteHalf::Unix(write))
            }
        };
        (StreamRead { half, peer: self.peer }, StreamWrite(write))
    }
    fn unite(read: StreamRead, write: StreamWrite) -> Self {
        let socket = match (read.half, write.0) {
            (ReadHalf::Tcp(read), WriteHalf::Tcp(write)) => {
                read.reunite(write).ok().map(Socket::Tcp)
            }
            (ReadHalf::Unix(read), WriteHalf::Unix(write)) => {
                read.reunite(write).ok().map(Socket::Unix)
            }
            _ => None,
        };
        Self { socket: socket.expect("two halves of one stream"), peer: read.peer }
    }
    fn peer(&self) -> String {
        self.peer.clone()
    }
}

impl ByteRead for StreamRead {
    /// A read that fills less than was offered is known to be the last for now: no second call
    /// only to be told so.
    async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut into = ReadBuf::new(into);
        poll_fn(|cx| match &mut self.half {
            ReadHalf::Tcp(half) => Pin::new(half).poll_read(cx, &mut into),
            ReadHalf::Unix(half) => Pin::new(half).poll_read(cx, &mut into),
        })
        .await?;
        busy_poll::event();
        Ok(into.filled().len())
    }
}

impl StreamWrite {
    fn try_write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.0 {
            WriteHalf::Tcp(half) => half.try_write_vectored(slices),
            WriteHalf::Unix(half) => half.try_write_vectored(slices),
        }
    }
    async fn writable(&self) -> io::Result<()> {
        match &self.0 {
            WriteHalf::Tcp(half) => half.writable().await,
            WriteHalf::Unix(half) => half.writable().await,
        }
    }
}

impl ByteWrite for StreamWrite {
    async fn write_all(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        let mut slices: Vec<_> = pieces.iter().map(|p| IoSlice::new(p.as_slice())).collect();
        let mut rest = &mut slices[..];
        // An empty piece at the front would look like the end of the stream.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match self.try_write(&rest[..rest.len().min(WRITE_PIECES_MAX)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut rest, n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.writable().await?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Where clients connect. A Unix socket's file is removed when it is dropped.
pub struct StreamListener(Listener);

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl StreamListener {
    /// Listens at a TCP address.
    ///
    /// # Errors
    /// The address is taken or not ours; names it.
    pub async fn tcp(address: SocketAddr) -> io::Result<Self> {
        match TcpListener::bind(address).await {
            Ok(listener) => Ok(Self(Listener::Tcp(listener))),
            Err(e) => Err(io::Error::new(e.kind(), format!("cannot listen at {address}: {e}"))),
        }
    }

    /// Listens at a Unix socket of mode 0660; takes the place of a socket that nobody listens at,
    /// and of nothing else.
    ///
    /// # Errors
    /// `AddrInUse`: somebody listens there. `AlreadyExists`: it is no socket. Others: the system
    /// refuses. Each names the path.
    pub fn unix(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let named = |e: io::Error| {
            io::Error::new(e.kind(), format!("cannot listen at '{}': {e}", path.display()))
        };
        let listener = listen_unix(path, 0o660).and_then(UnixListener::from_std).map_err(named)?;
        Ok(Self(Listener::Unix(listener, path.to_owned())))
    }

    /// The TCP address, with the port that the system chose for port 0; none for a Unix socket.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.0 {
            Listener::Tcp(listener) => listener.local_addr().ok(),
            Listener::Unix(..) => None,
        }
    }

    /// The next client.
    ///
    /// # Errors
    /// This one was not to be had (gone again, no file descriptors left): pause, then go on.
    pub async fn accept(&self) -> io::Result<RealStream> {
        match &self.0 {
            Listener::Tcp(listener) => RealStream::tcp(listener.accept().await?.0),
            Listener::Unix(listener, _) => Ok(RealStream::unix(listener.accept().await?.0)),
        }
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = &self.0 {
            // Whoever removed it before was right too.
            let _ = std::fs::remove_file(path);
        }
    }
}
