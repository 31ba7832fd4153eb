//! Frames on their way out and in: every frame of a peer passes [`TransportState::checked`] before
//! anything is read from it.

use crate::message::Service;
use crate::state::{ConnOf, TransportState};
use atoll_format::frame::{FrameHead, FrameKind, TEXT_MAX, VERSION_HANDSHAKE};
use atoll_world::buf::total_len;
use atoll_world::{Buf, Conn, Packet, World, mutant};

impl<W: World, S: Service> TransportState<W, S> {
    /// Sends a frame; whether the connection is broken shows when it is read.
    pub(crate) fn send(
        &self,
        conn: &ConnOf<W>,
        mut head: FrameHead,
        body: Vec<u8>,
        payload: Vec<Buf>,
    ) {
        head.load = self.load();
        let lens = (body.len(), total_len(&payload));
        assert_eq!(lens, (head.body_len as usize, head.payload_len as usize), "of another frame");
        if self.world.audits() {
            let matches = head.verify(&body, payload.iter().map(|p| &p[..]));
            assert_eq!(matches, Ok(()), "a {:?} that its receiver will not take", head.kind);
        }
        let bytes = (head.encode().len() + lens.0 + lens.1) as u64;
        let sent = conn.send(Packet { head: head.encode(), body, payload });
        if sent.is_ok() {
            self.count(|c| {
                c.frames_sent += 1;
                c.bytes_sent += bytes;
            });
        }
    }

    /// Sends a frame without body or payload, or with a text.
    pub(crate) fn send_text(
        &self,
        conn: &ConnOf<W>,
        version: u16,
        kind: FrameKind,
        id: u64,
        text: &str,
    ) {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let version = if kind.is_handshake() { VERSION_HANDSHAKE } else { version };
        let body = text.as_bytes()[..end].to_vec();
        self.send(conn, FrameHead::new(version, kind, id, &body), body, Vec::new());
    }

    /// The head of a packet that is what it says it is; every frame of a peer passes here.
    pub(crate) fn checked(&self, packet: &Packet) -> Option<FrameHead> {
        let payload = packet.payload.iter().map(|p| &p[..]);
        let checked = FrameHead::decode(&packet.head).and_then(|head| {
            match head.verify(&packet.body, payload) {
                Err(_) if mutant!("peers.frames_not_checked") => Ok(head),
                verified => verified.map(|()| head),
            }
        });
        match checked {
            Ok(head) => {
                let bytes = u64::from(head.body_len) + u64::from(head.payload_len);
                self.count(|c| {
                    c.frames_received += 1;
                    c.bytes_received += packet.head.len() as u64 + bytes;
                });
                Some(head)
            }
            Err(_) => {
                self.count(|c| c.frames_bad += 1);
                None
            }
        }
    }
}
