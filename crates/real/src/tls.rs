//! TLS over the bytes of a connection: what came is decrypted, what is to go is encrypted. Sockets
//! are elsewhere.
//!
//! Invariants: nothing is encrypted before the other end has proved who it is; what was decrypted
//! is delivered at once, so nothing but the packets' own bounds holds it.

use crate::limits::{STREAM_BUFFER, TLS_AHEAD};
use atoll_format::id::{ClusterId, HostId};
use atoll_trust::{PeerTls, refusal};
use rustls::Connection;
use std::io::{self, BufRead, IoSlice, Write};

/// One end.
pub(crate) struct TlsEnd {
    connection: Box<Connection>,
    /// What comes.
    incoming: Vec<u8>,
    /// Who is at the other end, once that is proved.
    proven: Option<(ClusterId, HostId)>,
    /// The other end has said that nothing follows.
    is_over: bool,
}

impl TlsEnd {
    /// The end that connects; its greeting is to be sent.
    pub fn connect(tls: &PeerTls) -> io::Result<Self> {
        tls.connect().map(Self::new).map_err(io::Error::other)
    }

    /// The end that is connected to.
    pub fn accept(tls: &PeerTls) -> io::Result<Self> {
        tls.accept().map(Self::new).map_err(io::Error::other)
    }

    fn new(mut connection: Connection) -> Self {
        // Bounded by who gives it something.
        connection.set_buffer_limit(None);
        let connection = Box::new(connection);
        Self { connection, incoming: vec![0; STREAM_BUFFER], proven: None, is_over: false }
    }

    /// Who has proved to be at the other end; none: the handshake is not over.
    pub fn proven(&self) -> Option<(ClusterId, HostId)> {
        self.proven
    }

    /// Whether it is the end that connects.
    pub fn connects(&self) -> bool {
        matches!(*self.connection, Connection::Client(_))
    }

    /// Whether the other end has said that nothing follows.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Where what comes is put.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.incoming
    }

    /// So many bytes were put into [`Self::room`]; `deliver` gets what they say, in order.
    ///
    /// # Errors
    /// `PermissionDenied`: one end does not believe the other. `InvalidData`: what came was changed
    /// on its way. Either way there is a last word to be sent.
    pub fn came(&mut self, count: usize, mut deliver: impl FnMut(&[u8])) -> io::Result<()> {
        let mut rest = &self.incoming[..count];
        while !rest.is_empty() {
            self.connection.read_tls(&mut rest)?;
            let state = self.connection.process_new_packets().map_err(|e| {
                // In a handshake, whatever goes wrong means that. What refuses the certificate of
                // the end that connects comes when that has proved the other one already.
                let kind = match (&self.proven, &e) {
                    (None, _) | (_, rustls::Error::AlertReceived(_)) => {
                        io::ErrorKind::PermissionDenied
                    }
                    (Some(_), _) => io::ErrorKind::InvalidData,
                };
                io::Error::new(kind, refusal(&e))
            })?;
            self.is_over |= state.peer_has_closed();
            if self.proven.is_none() && !self.connection.is_handshaking() {
                let peer = PeerTls::peer(&self.connection)
                    .map_err(|e| io::Error::new(io::ErrorKind::PermissionDenied, e))?;
                self.proven = Some((peer.cluster, peer.host));
            }
            let mut left = state.plaintext_bytes_to_read();
            let mut reader = self.connection.reader();
            while left > 0 {
                let plain = reader.fill_buf()?;
                assert!(!plain.is_empty() && plain.len() <= left, "{left} bytes were announced");
                deliver(plain);
                let len = plain.len();
                left -= len;
                reader.consume(len);
            }
        }
        Ok(())
    }

    /// Whether there is something to be sent that is encrypted, or part of the handshake.
    pub fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    /// Whether [`Self::encrypt`] is to be given something.
    pub fn wants_plain(&self) -> bool {
        self.proven.is_some() && !self.wants_write()
    }

    /// Encrypts the pieces, which are about [`TLS_AHEAD`] bytes at most.
    ///
    /// # Panics
    /// See [`Self::wants_plain`].
    pub fn encrypt(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        assert!(self.wants_plain(), "nothing is said to nobody, and not too far ahead");
        let len: usize = pieces.iter().map(|p| p.len()).sum();
        let taken = self.connection.writer().write_vectored(pieces)?;
        assert!(taken == len, "{taken} of {len} bytes were taken without a limit");
        Ok(())
    }

    /// Gives the next of it to `write`, once.
    pub fn write_to(
        &mut self,
        write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.connection.write_tls(&mut VectoredWrite(write)).map(|_| ())
    }
}

const _: () = assert!(TLS_AHEAD >= 1 << 16);

/// What writes slices, as the standard library has it.
struct VectoredWrite<F>(F);

impl<F: FnMut(&[IoSlice<'_>]) -> io::Result<usize>> Write for VectoredWrite<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0(&[IoSlice::new(bytes)])
    }
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0(slices)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
