//! Byte streams of clients (NBD, iSCSI, NFS): what a front end's pump reads and writes.

use crate::Buf;
use std::future::Future;
use std::io;

/// A connected client. Split, so that replies do not wait for requests.
pub trait ByteStream: Sized + 'static {
    /// The receiving half.
    type Read: ByteRead;
    /// The sending half.
    type Write: ByteWrite;
    /// Both halves; the stream closes when both are dropped.
    fn split(self) -> (Self::Read, Self::Write);
    /// The stream again, of both its halves: as it was but for what was read and written.
    ///
    /// # Panics
    /// If these are halves of two streams.
    fn unite(read: Self::Read, write: Self::Write) -> Self;
    /// Who it is, for messages to people.
    fn peer(&self) -> String;
}

/// The receiving half.
pub trait ByteRead: 'static {
    /// At least one byte into `into`, or 0 at the end of the stream. Dropping the future loses
    /// nothing.
    fn read(&mut self, into: &mut [u8]) -> impl Future<Output = io::Result<usize>>;
}

/// A piece of what is sent.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Small: headers.
    Bytes(Vec<u8>),
    /// Large: data, not copied.
    Buf(Buf),
}

impl Piece {
    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Buf(buf) => buf,
        }
    }
}

/// The sending half.
pub trait ByteWrite: 'static {
    /// All the pieces, in order, with as few system calls as possible.
    fn write_all(&mut self, pieces: Vec<Piece>) -> impl Future<Output = io::Result<()>>;
}
