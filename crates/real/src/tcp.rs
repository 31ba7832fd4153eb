//! Peers over TCP.
//!
//! Sending puts a packet in a queue; one task per connection writes all that is queued with one
//! vectored write, after everything else of that turn has run. Receiving reads into one large
//! stream buffer and takes packets out of it; of a long payload, what has not come yet is read to
//! where it stays.
//!
//! Invariants: no memory is set aside for a frame before its head has passed every check; a
//! payload lies in one 4 KiB-aligned buffer; a `recv` that is dropped loses nothing.

use crate::limits::{
    BACKLOG, COPIED_PAYLOAD_MAX, STREAM_BUFFER, TCP_UNACKED_MS, WRITE_BYTES_MAX, WRITE_PIECES_MAX,
};
use atoll_format::frame::{FrameHead, HEAD_LEN};
use atoll_world::buf::total_len;
use atoll_world::{BufMut, Conn, Lane, Net, Packet};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// This host's end of the network. Clones are the same.
#[derive(Clone)]
pub struct RealNet(Rc<Listeners>);

struct Listeners {
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
}

impl RealNet {
    /// Listens at all of `addresses`, so that peers can connect when this returns. Connections out
    /// come from the same IP address as one of them, if that is a definite one.
    ///
    /// # Errors
    /// One of them cannot be listened at; names it.
    pub fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut listeners = Vec::new();
        for &address in addresses {
            let listen = || {
                let socket = socket_for(address)?;
                // A restart must not wait for the connections of the last run to time out.
                socket.set_reuseaddr(true)?;
                socket.bind(address)?;
                socket.listen(BACKLOG)
            };
            let listener = listen().map_err(|e| {
                io::Error::new(e.kind(), format!("cannot listen for peers at {address}: {e}"))
            })?;
            listeners.push(listener);
        }
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?;
        Ok(Self(Rc::new(Listeners { listeners, addresses })))
    }

    /// Where it listens, with the ports that the system chose for port 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.0.addresses
    }

    /// The address that connections to `to` come from.
    fn source(&self, to: SocketAddr) -> Option<IpAddr> {
        let mine = self.0.addresses.iter().map(SocketAddr::ip);
        let mut fitting = mine.filter(|ip| ip.is_ipv4() == to.is_ipv4() && !ip.is_unspecified());
        fitting.find(|ip| ip.is_loopback() == to.ip().is_loopback())
    }

    async fn connect_to(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = socket_for(to)?;
        if let Some(ip) = self.source(to) {
            socket.bind(SocketAddr::new(ip, 0))?;
        }
        socket.connect(to).await
    }
}

fn socket_for(address: SocketAddr) -> io::Result<TcpSocket> {
    if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

/// Processes have one shard.
fn no_shard(shard: u8) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("this process has no shard {shard}"))
}

impl Net for RealNet {
    type Conn = RealConn;

    async fn connect(&self, endpoint: &str, _lane: Lane) -> io::Result<RealConn> {
        let mut last = io::Error::new(
            io::ErrorKind::NotFound,
            format!("'{endpoint}' is the name of no host and port"),
        );
        for to in tokio::net::lookup_host(endpoint).await? {
            match self.connect_to(to).await {
                Ok(stream) => return RealConn::new(stream),
                Err(e) => last = io::Error::new(e.kind(), format!("{to}: {e}")),
            }
        }
        Err(last)
    }

    async fn connect_shard(&self, shard: u8, _lane: Lane) -> io::Result<RealConn> {
        Err(no_shard(shard))
    }

    fn hand_over(&self, _conn: &RealConn, _first: Packet, shard: u8) -> io::Result<()> {
        Err(no_shard(shard))
    }

    async fn accept(&self) -> io::Result<RealConn> {
        let (stream, _) = poll_fn(|cx| {
            for listener in &self.0.listeners {
                if let Poll::Ready(accepted) = listener.poll_accept(cx) {
                    return Poll::Ready(accepted);
                }
            }
            Poll::Pending
        })
        .await
        .inspect_err(|e| tracing::warn!("cannot accept a connection of a peer: {e}"))?;
        RealConn::new(stream)
    }
}

/// A connection to a peer.
#[derive(Clone)]
pub struct RealConn(Rc<Handle>);

/// What all clones share; its end lets the writer finish and close.
struct Handle(Rc<Shared>);

struct Shared {
    peer: String,
    outgoing: RefCell<Outgoing>,
    incoming: RefCell<Incoming>,
    write: OwnedWriteHalf,
    /// The task that writes.
    writer: RefCell<Option<Waker>>,
    /// Who waits in `recv`.
    reader: RefCell<Option<Waker>>,
    /// No more packets will be queued: the last handle is gone.
    finished: Cell<bool>,
    /// It is of no use any more.
    broken: Cell<bool>,
}

impl RealConn {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_tcp_user_timeout(&stream, TCP_UNACKED_MS)?;
        let peer = stream.peer_addr()?.to_string();
        let (read, write) = stream.into_split();
        let shared = Rc::new(Shared {
            peer,
            outgoing: RefCell::default(),
            incoming: RefCell::new(Incoming::new(read)),
            write,
            writer: RefCell::default(),
            reader: RefCell::default(),
            finished: Cell::new(false),
            broken: Cell::new(false),
        });
        let writing = shared.clone();
        tokio::task::spawn_local(async move {
            if poll_fn(|cx| writing.poll_write(cx)).await.is_err() {
                writing.break_off();
            }
        });
        Ok(Self(Rc::new(Handle(shared))))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.finished.set(true);
        wake(&self.0.writer);
    }
}

fn wake(waker: &RefCell<Option<Waker>>) {
    let waker = waker.borrow_mut().take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Shared {
    /// Writes what is queued; ready when nothing will be any more. `TCP_UNACKED_MS` ends it if
    /// the peer takes nothing.
    fn poll_write(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut outgoing = self.outgoing.borrow_mut();
            if outgoing.packets.is_empty() || self.broken.get() {
                if self.finished.get() || self.broken.get() {
                    return Poll::Ready(Ok(()));
                }
                *self.writer.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            }
            ready!(self.write.as_ref().poll_write_ready(cx))?;
            match outgoing.write(&self.write) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    fn break_off(&self) {
        self.broken.set(true);
        self.outgoing.borrow_mut().packets.clear();
        // The peer sees the end after what was already given to the system. An error only says
        // that it knows already.
        let _ = rustix::net::shutdown(self.write.as_ref(), rustix::net::Shutdown::Both);
        wake(&self.writer);
        wake(&self.reader);
    }
}

impl Conn for RealConn {
    fn send(&self, packet: Packet) -> io::Result<()> {
        let shared = &self.0.0;
        if shared.broken.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        shared.outgoing.borrow_mut().packets.push_back(packet);
        wake(&shared.writer);
        Ok(())
    }

    async fn recv(&self) -> io::Result<Packet> {
        let shared = &self.0.0;
        poll_fn(|cx| {
            if shared.broken.get() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let next = shared.incoming.borrow_mut().poll_next(cx);
            if next.is_pending() {
                // The socket wakes it too; this is for `close`.
                *shared.reader.borrow_mut() = Some(cx.waker().clone());
            }
            next
        })
        .await
    }

    fn close(&self) {
        let shared = &self.0.0;
        if shared.broken.get() {
            return;
        }
        // A last word may be queued: it goes if the system takes it at once.
        let mut outgoing = shared.outgoing.borrow_mut();
        if !outgoing.packets.is_empty() {
            let _ = outgoing.write(&shared.write);
        }
        drop(outgoing);
        shared.break_off();
    }

    fn peer(&self) -> String {
        self.0.0.peer.clone()
    }
}

/// What is to be written.
#[derive(Default)]
struct Outgoing {
    packets: VecDeque<Packet>,
    /// Bytes of the first packet that are written already.
    done: usize,
}

impl Outgoing {
    /// One vectored write of as much as it takes.
    fn write(&mut self, to: &OwnedWriteHalf) -> io::Result<()> {
        let mut slices = Vec::with_capacity(WRITE_PIECES_MAX.min(3 * self.packets.len()));
        let (mut skip, mut bytes) = (self.done, 0);
        'full: for packet in &self.packets {
            let payload = packet.payload.iter().map(|p| &p[..]);
            for piece in [&packet.head[..], &packet.body].into_iter().chain(payload) {
                let rest = &piece[skip.min(piece.len())..];
                skip -= skip.min(piece.len());
                if rest.is_empty() {
                    continue;
                }
                if slices.len() == WRITE_PIECES_MAX || bytes > WRITE_BYTES_MAX {
                    break 'full;
                }
                bytes += rest.len();
                slices.push(IoSlice::new(rest));
            }
        }
        let written = to.try_write_vectored(&slices)?;
        self.done += written;
        while let Some(first) = self.packets.front() {
            let len = HEAD_LEN + first.body.len() + total_len(&first.payload);
            if self.done < len {
                break;
            }
            self.done -= len;
            self.packets.pop_front();
        }
        Ok(())
    }
}

/// What has been read and not been taken.
struct Incoming {
    from: OwnedReadHalf,
    /// The stream; the bytes of `start..end` are unread. Pages that are never reached cost nothing.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    frame: Option<Frame>,
}

/// A frame whose head has arrived.
struct Frame {
    head: [u8; HEAD_LEN],
    body: Vec<u8>,
    body_len: usize,
    payload: BufMut,
    /// Bytes of `payload` that have arrived.
    filled: usize,
}

impl Incoming {
    fn new(from: OwnedReadHalf) -> Self {
        Self { from, buffer: vec![0; STREAM_BUFFER], start: 0, end: 0, frame: None }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Packet>> {
        loop {
            if let Some(packet) = self.take()? {
                return Poll::Ready(Ok(packet));
            }
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if self.end == self.buffer.len() {
                self.buffer.copy_within(self.start.., 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            // The stream buffer is empty while a frame is incomplete: `take` has used it up.
            let long = self.frame.as_mut().filter(|f| {
                f.body.len() == f.body_len && f.payload.len() - f.filled > COPIED_PAYLOAD_MAX
            });
            let (into, count) = match long {
                Some(frame) => (&mut frame.payload[frame.filled..], &mut frame.filled),
                None => (&mut self.buffer[self.end..], &mut self.end),
            };
            let mut into = ReadBuf::new(into);
            ready!(Pin::new(&mut self.from).poll_read(cx, &mut into))?;
            match into.filled().len() {
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                n => *count += n,
            }
        }
    }

    /// Takes the next packet out of what was read, if it is complete.
    fn take(&mut self) -> io::Result<Option<Packet>> {
        let mut unread = &self.buffer[self.start..self.end];
        if self.frame.is_none() {
            let Some((head, rest)) = unread.split_first_chunk::<HEAD_LEN>() else {
                return Ok(None);
            };
            let lens = FrameHead::decode(head)
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            unread = rest;
            let body_len = lens.body_len as usize;
            self.frame = Some(Frame {
                head: *head,
                body: Vec::with_capacity(body_len),
                body_len,
                payload: BufMut::for_overwrite(lens.payload_len as usize),
                filled: 0,
            });
        }
        let frame = self.frame.as_mut().expect("just made if there was none");
        let (body, rest) = unread.split_at(unread.len().min(frame.body_len - frame.body.len()));
        frame.body.extend_from_slice(body);
        let (payload, rest) = rest.split_at(rest.len().min(frame.payload.len() - frame.filled));
        frame.payload[frame.filled..][..payload.len()].copy_from_slice(payload);
        frame.filled += payload.len();
        self.start = self.end - rest.len();
        if frame.body.len() < frame.body_len || frame.filled < frame.payload.len() {
            return Ok(None);
        }
        let Frame { head, body, payload, .. } = self.frame.take().expect("just used");
        let payload = if payload.is_empty() { Vec::new() } else { vec![payload.freeze()] };
        Ok(Some(Packet { head, body, payload }))
    }
}
