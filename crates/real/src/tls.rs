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
            // Behind the other end's last word nothing is taken any more.
            if self.connection.read_tls(&mut rest)? == 0 {
                break;
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_trust::{Authority, HOST_VALID_S};

    fn end(authority: &Authority, host: u64) -> PeerTls {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        let credentials = authority.equip(HostId(host), now, HOST_VALID_S).expect("signed");
        PeerTls::new(&credentials).expect("usable")
    }

    /// What one end has to send.
    fn take(from: &mut TlsEnd) -> Vec<u8> {
        let mut sent = Vec::new();
        while from.wants_write() {
            from.write_to(|slices| {
                sent.extend(slices.iter().flat_map(|slice| slice.iter()));
                Ok(slices.iter().map(|slice| slice.len()).sum())
            })
            .expect("to memory");
        }
        sent
    }

    /// It gets to the other end. Returns what that takes out of it.
    fn give(to: &mut TlsEnd, bytes: &[u8]) -> Vec<u8> {
        let mut came = Vec::new();
        to.room()[..bytes.len()].copy_from_slice(bytes);
        to.came(bytes.len(), |plain| came.extend_from_slice(plain)).expect("understood");
        came
    }

    #[test]
    fn nothing_behind_the_last_word_is_taken() {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        let authority = Authority::create(ClusterId(7), "test", now).expect("made");
        let mut a = TlsEnd::connect(&end(&authority, 1)).expect("begins");
        let mut b = TlsEnd::accept(&end(&authority, 2)).expect("begins");
        while a.proven().is_none() || b.proven().is_none() || a.wants_write() || b.wants_write() {
            let sent = take(&mut a);
            give(&mut b, &sent);
            let sent = take(&mut b);
            give(&mut a, &sent);
        }
        a.encrypt(&[IoSlice::new(b"word")]).expect("taken");
        a.connection.send_close_notify();
        let mut sent = take(&mut a);
        // More than is read at once.
        sent.extend([23; 64 << 10]);
        assert_eq!(give(&mut b, &sent), b"word");
        assert!(b.is_over());
        assert_eq!(give(&mut b, &[23; 64 << 10]), b"");
    }
}
