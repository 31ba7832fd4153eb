//! Connections over TCP.
//!
//! Sending puts a packet in a queue; one task per connection writes all that is queued with one
//! vectored write, after everything else of that turn has run. Receiving reads into one large
//! stream buffer and takes packets out of it; of a long payload, what has not come yet is read to
//! where it stays.
//!
//! Invariants: no memory is set aside for a frame before its head has passed every check; a
//! payload lies in one 4 KiB-aligned buffer; a `recv` that is dropped loses nothing.

use crate::limits::{
    COPIED_PAYLOAD_MAX, STREAM_BUFFER, TCP_UNACKED_MS, TLS_AHEAD, WRITE_BYTES_MAX, WRITE_PIECES_MAX,
};
use crate::tls::TlsEnd;
use atoll_format::frame::{FrameHead, HEAD_LEN};
use atoll_format::id::{ClusterId, HostId};
use atoll_world::buf::total_len;
use atoll_world::{BufMut, Packet};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A connection to a peer.
#[derive(Clone)]
pub(crate) struct TcpConn(Rc<Handle>);

/// What all clones share; its end lets the writer finish and close.
struct Handle(Rc<Shared>);

struct Shared {
    peer: String,
    outgoing: RefCell<Outgoing>,
    incoming: RefCell<Incoming>,
    stream: TcpStream,
    /// None: what is sent and comes is not encrypted.
    tls: RefCell<Option<TlsEnd>>,
    /// The task that writes.
    writer: RefCell<Option<Waker>>,
    /// Who waits in `recv`.
    reader: RefCell<Option<Waker>>,
    /// No more packets will be queued: the last handle is gone.
    finished: Cell<bool>,
    /// It is of no use any more.
    broken: Cell<bool>,
}

impl TcpConn {
    pub fn new(stream: TcpStream, tls: Option<TlsEnd>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        rustix::net::sockopt::set_tcp_user_timeout(&stream, TCP_UNACKED_MS)?;
        let peer = stream.peer_addr()?.to_string();
        let shared = Rc::new(Shared {
            peer,
            outgoing: RefCell::default(),
            incoming: RefCell::new(Incoming::new()),
            stream,
            tls: RefCell::new(tls),
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
            let mut tls = self.tls.borrow_mut();
            let may_write = match &*tls {
                Some(tls) => tls.wants_write() || tls.wants_plain() && !outgoing.packets.is_empty(),
                None => !outgoing.packets.is_empty(),
            };
            if !may_write || self.broken.get() {
                // Packets may wait for the end of a handshake yet.
                if self.finished.get() || self.broken.get() {
                    return Poll::Ready(Ok(()));
                }
                *self.writer.borrow_mut() = Some(cx.waker().clone());
                return Poll::Pending;
            }
            ready!(self.stream.poll_write_ready(cx))?;
            let written = match &mut *tls {
                Some(tls) => outgoing.write_tls(tls, &self.stream),
                None => outgoing.write(&self.stream),
            };
            match written {
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
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
        wake(&self.writer);
        wake(&self.reader);
    }
}

impl TcpConn {
    pub fn send(&self, packet: Packet) -> io::Result<()> {
        let shared = &self.0.0;
        if shared.broken.get() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        shared.outgoing.borrow_mut().packets.push_back(packet);
        wake(&shared.writer);
        Ok(())
    }

    pub fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<io::Result<Packet>> {
        let shared = &self.0.0;
        if shared.broken.get() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let mut incoming = shared.incoming.borrow_mut();
        let next = match &mut *shared.tls.borrow_mut() {
            None => incoming.poll_next(&shared.stream, cx),
            Some(tls) => {
                let was_proven = tls.proven().is_some();
                let next = incoming.poll_next_tls(tls, &shared.stream, cx);
                // The handshake goes on, or is over.
                if tls.wants_write() || !was_proven && tls.proven().is_some() {
                    wake(&shared.writer);
                }
                if let Poll::Ready(Err(_)) = next {
                    // Why, if the system takes it at once.
                    let _ = tls.write_to(|slices| shared.stream.try_write_vectored(slices));
                }
                next
            }
        };
        if next.is_pending() {
            // The socket wakes it too; this is for `close`.
            *shared.reader.borrow_mut() = Some(cx.waker().clone());
        }
        next
    }

    pub fn close(&self) {
        let shared = &self.0.0;
        if shared.broken.get() {
            return;
        }
        // A last word may be queued: it goes if the system takes it at once.
        let mut outgoing = shared.outgoing.borrow_mut();
        if !outgoing.packets.is_empty() {
            let _ = match &mut *shared.tls.borrow_mut() {
                Some(tls) => outgoing.write_tls(tls, &shared.stream),
                None => outgoing.write(&shared.stream),
            };
        }
        drop(outgoing);
        shared.break_off();
    }

    pub fn peer(&self) -> String {
        self.0.0.peer.clone()
    }

    pub fn proven(&self) -> Option<(ClusterId, HostId)> {
        self.0.0.tls.borrow().as_ref()?.proven()
    }

    /// The socket, and the end of TLS over it, for another thread, which goes on behind the packet
    /// that was taken last. This end is of no use any more.
    ///
    /// # Errors
    /// The peer has sent more than that packet, or there are no file descriptors left.
    pub fn hand_over(&self) -> io::Result<(std::net::TcpStream, Option<TlsEnd>)> {
        let shared = &self.0.0;
        let incoming = shared.incoming.borrow();
        if incoming.start != incoming.end || incoming.frame.is_some() || shared.broken.get() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let socket = shared.stream.as_fd().try_clone_to_owned()?;
        // Not `break_off`: the socket lives on.
        shared.broken.set(true);
        wake(&shared.writer);
        Ok((socket.into(), shared.tls.take()))
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
    /// Encrypts some of it, and writes of what is encrypted as much as it takes.
    fn write_tls(&mut self, tls: &mut TlsEnd, to: &TcpStream) -> io::Result<()> {
        if tls.wants_plain() && !self.packets.is_empty() {
            let (mut slices, mut bytes, mut count) = (Vec::new(), 0, 0);
            for packet in &self.packets {
                if bytes >= TLS_AHEAD {
                    break;
                }
                let payload = packet.payload.iter().map(|p| &p[..]);
                for piece in [&packet.head[..], &packet.body].into_iter().chain(payload) {
                    bytes += piece.len();
                    slices.push(IoSlice::new(piece));
                }
                count += 1;
            }
            tls.encrypt(&slices)?;
            self.packets.drain(..count);
        }
        tls.write_to(|slices| to.try_write_vectored(slices))
    }

    /// One vectored write of as much as it takes.
    fn write(&mut self, to: &TcpStream) -> io::Result<()> {
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

/// One read. What came did not fill `into`: there is nothing more, and no second system call asks.
fn read_some(from: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    let len = into.len();
    let mut read = Err(io::ErrorKind::WouldBlock.into());
    let _ = from.try_io(Interest::READABLE, || {
        read = rustix::io::read(from, into).map_err(io::Error::from);
        match &read {
            Ok(n) if *n > 0 && *n < len => Err(io::ErrorKind::WouldBlock.into()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            _ => Ok(()),
        }
    });
    read
}

fn speaks_tls() -> io::Error {
    io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it speaks TLS, and network.tls is false on this host",
    )
}

/// What has been read and not been taken.
struct Incoming {
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
    fn new() -> Self {
        Self { buffer: vec![0; STREAM_BUFFER], start: 0, end: 0, frame: None }
    }

    fn poll_next(&mut self, from: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<Packet>> {
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
            ready!(from.poll_read_ready(cx))?;
            match read_some(from, into) {
                Ok(0) => return Poll::Ready(Err(self.ended())),
                Ok(n) => *count += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    /// The same over TLS. A record goes where its bytes stay, but for what is behind the frame that
    /// it completes.
    fn poll_next_tls(
        &mut self,
        tls: &mut TlsEnd,
        from: &TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Packet>> {
        loop {
            if let Some(packet) = self.take()? {
                return Poll::Ready(Ok(packet));
            }
            if tls.is_over() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            ready!(from.poll_read_ready(cx))?;
            let room = tls.room();
            match read_some(from, room) {
                // Whoever connects may be anybody who looks for open ports, and goes again.
                Ok(0) if tls.proven().is_none() && tls.connects() => {
                    return Poll::Ready(Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "it closed the connection in the TLS handshake: its log says why, or it \
                         does not use TLS",
                    )));
                }
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => tls.came(n, |plain| self.put(plain))?,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    /// Whether what is unread begins as a greeting or a refusal of TLS does, and no frame does.
    fn speaks_tls(&self) -> bool {
        const ALERT: u8 = 21;
        const HANDSHAKE: u8 = 22;
        matches!(self.buffer[self.start..self.end], [ALERT | HANDSHAKE, 3, ..])
    }

    /// Why nothing more comes.
    fn ended(&self) -> io::Error {
        if self.speaks_tls() { speaks_tls() } else { io::ErrorKind::UnexpectedEof.into() }
    }

    /// Puts plaintext behind what is unread.
    fn put(&mut self, mut plain: &[u8]) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if let Some(frame) = self.frame.as_mut().filter(|f| f.body.len() == f.body_len) {
                let (payload, rest) =
                    plain.split_at(plain.len().min(frame.payload.len() - frame.filled));
                frame.payload[frame.filled..][..payload.len()].copy_from_slice(payload);
                frame.filled += payload.len();
                plain = rest;
            }
        }
        if self.end + plain.len() > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end + plain.len() > self.buffer.len() {
            // Records of one read: at most as much as the buffer holds, and what was left.
            self.buffer.resize(self.end + plain.len(), 0);
        }
        self.buffer[self.end..][..plain.len()].copy_from_slice(plain);
        self.end += plain.len();
    }

    /// Takes the next packet out of what was read, if it is complete.
    fn take(&mut self) -> io::Result<Option<Packet>> {
        let mut unread = &self.buffer[self.start..self.end];
        if self.frame.is_none() {
            let Some((head, rest)) = unread.split_first_chunk::<HEAD_LEN>() else {
                return Ok(None);
            };
            let lens = FrameHead::decode(head).map_err(|e| match self.speaks_tls() {
                true => speaks_tls(),
                false => io::Error::new(io::ErrorKind::InvalidData, e),
            })?;
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
