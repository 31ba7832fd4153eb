//! Connections between hosts. Below `transport`, which makes calls, credits and deadlines of them.

use crate::Buf;
use atoll_format::id::{ClusterId, HostId};
use std::future::Future;
use std::io;

/// Which of the connections between two hosts: heartbeats and fences never queue behind data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Lane {
    /// Leases, fences, membership, small calls.
    Control = 0,
    /// Guest I/O.
    Data = 1,
    /// Resync, rebuild, repair.
    Bulk = 2,
}

impl Lane {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Control, Self::Data, Self::Bulk];
    /// The lane of that code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// One frame: a fixed head (`format::frame::FrameHead`, which carries both lengths and
/// checksums), a small body, and a payload of aligned buffers.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The encoded head.
    pub head: [u8; 64],
    /// Small and structured.
    pub body: Vec<u8>,
    /// Large and opaque; received into one 4 KiB-aligned buffer.
    pub payload: Vec<Buf>,
}

/// This host's end of the network.
pub trait Net: Clone + 'static {
    /// An established connection.
    type Conn: Conn;
    /// Opens a connection to `endpoint` (`10.0.0.11:8461`; the simulator's own names there).
    fn connect(&self, endpoint: &str, lane: Lane) -> impl Future<Output = io::Result<Self::Conn>>;
    /// Opens a connection to another shard of this process.
    ///
    /// # Errors
    /// There is no such shard, or it has ended.
    fn connect_shard(&self, shard: u8, lane: Lane) -> impl Future<Output = io::Result<Self::Conn>>;
    /// Gives a connection that was accepted here, and its first packet, which was read already, to
    /// another shard of this process: it is accepted there as if it had come there, and is not
    /// used here any more.
    ///
    /// # Errors
    /// There is no such shard, or it takes no more.
    fn hand_over(&self, conn: &Self::Conn, first: Packet, shard: u8) -> io::Result<()>;
    /// The next connection that a peer opened, to this shard.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Conn>>;
}

/// A connection: ordered and reliable until it breaks; then it never comes back. Clones are the
/// same connection; it closes when `close` is called or the last clone is dropped.
pub trait Conn: Clone + 'static {
    /// Puts the packet behind all earlier ones, at once and without waiting; packets queued in
    /// one turn leave together. The caller bounds what is queued (`transport`'s credits).
    ///
    /// # Errors
    /// The connection is broken.
    fn send(&self, packet: Packet) -> io::Result<()>;
    /// The next packet. Its head and lengths have been checked by the real world before memory
    /// was set aside; checksums of body and payload are the receiver's to check.
    ///
    /// # Errors
    /// The connection is broken (`UnexpectedEof` when the peer closed it, `InvalidData` when
    /// what came is not a frame, `PermissionDenied` when one end does not believe the other).
    fn recv(&self) -> impl Future<Output = io::Result<Packet>>;
    /// Breaks it: the peer and every waiting `recv` see an error.
    fn close(&self);
    /// The other end, for messages to people.
    fn peer(&self) -> String;
    /// Who has proved to be at the other end; none: nobody was asked to. Known from the first
    /// packet on that is received.
    fn proven(&self) -> Option<(ClusterId, HostId)>;
}
