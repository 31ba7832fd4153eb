//! Bytes that have come and are not yet understood: one receive buffer, read in place, and the
//! memory of the write whose data is arriving.
//!
//! Invariants: at most one write's data is under way; while it is, or while data is skipped, the
//! receive buffer is not looked at by anyone else; `start <= end <= buffer.len()`. What it holds
//! is [`RECEIVE_BYTES`] and the data that [`Inbox::expect`] was asked for.

use crate::limits::{DIRECT_BYTES_MIN, PIECE_BYTES, RECEIVE_BYTES};
use atoll_world::{Buf, BufMut};

pub(super) struct Inbox {
    buffer: BufMut,
    start: usize,
    end: usize,
    /// Bytes still to be dropped unread.
    skip: usize,
    data: Option<Arriving>,
    /// The last write's data came straight into its memory: look for the next head only, or the
    /// first part of the data behind it would be copied once more.
    heads_only: bool,
}

/// The data of one write.
struct Arriving {
    pieces: Vec<BufMut>,
    /// Where the next byte goes: piece, and byte in it.
    piece: usize,
    at: usize,
    missing: usize,
}

/// Enough for a head and a small write behind it.
const HEADS_ONLY_BYTES: usize = 4096;

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            buffer: BufMut::for_overwrite(RECEIVE_BYTES),
            start: 0,
            end: 0,
            skip: 0,
            data: None,
            heads_only: false,
        }
    }

    /// Where the next bytes of the stream belong; never empty as long as every
    /// [`Inbox::head`] that is complete was taken. Follow with [`Inbox::filled`].
    pub(super) fn space(&mut self) -> &mut [u8] {
        self.pull();
        if let Some(data) = &mut self.data
            && data.missing >= DIRECT_BYTES_MIN
        {
            return &mut data.pieces[data.piece][data.at..];
        }
        // What is left is part of a head: moving it costs nothing.
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let upto = if self.heads_only && self.end < HEADS_ONLY_BYTES {
            HEADS_ONLY_BYTES
        } else {
            self.buffer.len()
        };
        &mut self.buffer[self.end..upto]
    }

    /// `count` bytes were put at the front of [`Inbox::space`].
    pub(super) fn filled(&mut self, count: usize) {
        match &mut self.data {
            // The same condition as in `space`: nothing has changed since.
            Some(data) if data.missing >= DIRECT_BYTES_MIN => data.advance(count),
            _ => {
                self.end += count;
                assert!(self.end <= self.buffer.len(), "more was read than there was room");
            }
        }
    }

    /// The next `N` bytes, once they are here; [`Inbox::consume`] takes them.
    pub(super) fn head<const N: usize>(&mut self) -> Option<&[u8; N]> {
        if !self.pull() || self.data.is_some() {
            return None;
        }
        self.buffer[self.start..self.end].first_chunk()
    }

    /// `len` bytes behind the next `after` ones, once they are here.
    pub(super) fn body(&self, after: usize, len: usize) -> Option<&[u8]> {
        self.buffer[self.start..self.end].get(after..after + len)
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        assert!(self.start <= self.end, "more was consumed than came");
    }

    /// Drops the next `count` bytes of the stream.
    pub(super) fn skip(&mut self, count: usize) {
        self.skip += count;
        self.pull();
    }

    /// The next `len` bytes of the stream are a write's data: [`Inbox::data`] gives them.
    pub(super) fn expect(&mut self, len: usize) {
        assert!(self.data.is_none() && self.skip == 0, "one write's data at a time");
        let pieces = (0..len)
            .step_by(PIECE_BYTES)
            .map(|from| BufMut::for_overwrite((len - from).min(PIECE_BYTES)))
            .collect();
        self.data = Some(Arriving { pieces, piece: 0, at: 0, missing: len });
        self.pull();
        self.heads_only = self.data.as_ref().is_some_and(|data| data.missing >= DIRECT_BYTES_MIN);
    }

    /// The data asked for with [`Inbox::expect`], once all of it is here.
    pub(super) fn data(&mut self) -> Option<Vec<Buf>> {
        self.pull();
        let data = self.data.take_if(|data| data.missing == 0)?;
        Some(data.pieces.into_iter().map(BufMut::freeze).collect())
    }

    #[cfg(test)]
    pub(super) fn is_waiting_for_data(&self) -> bool {
        self.data.as_ref().is_some_and(|data| data.missing > 0)
    }

    /// Moves what is in the buffer to where it belongs. False: some is still to be skipped.
    fn pull(&mut self) -> bool {
        if self.skip > 0 {
            let now = self.skip.min(self.end - self.start);
            self.skip -= now;
            self.start += now;
        }
        if let Some(data) = &mut self.data {
            while data.missing > 0 && self.start < self.end {
                let into = &mut data.pieces[data.piece][data.at..];
                let now = into.len().min(self.end - self.start);
                into[..now].copy_from_slice(&self.buffer[self.start..self.start + now]);
                self.start += now;
                data.advance(now);
            }
        }
        self.skip == 0
    }
}

impl Arriving {
    fn advance(&mut self, count: usize) {
        self.missing = self.missing.checked_sub(count).expect("no more than what is missing");
        self.at += count;
        assert!(self.at <= self.pieces[self.piece].len(), "no more than the piece takes");
        if self.at == self.pieces[self.piece].len() {
            self.piece += 1;
            self.at = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Inbox;
    use crate::limits::{PIECE_BYTES, RECEIVE_BYTES};
    use atoll_world::buf::join;
    use proptest::prelude::{Just, any, proptest};

    /// Feeds as much of `stream` as fits into the space offered, at most `step` bytes.
    fn feed(inbox: &mut Inbox, stream: &mut &[u8], step: usize) {
        let space = inbox.space();
        let now = space.len().min(stream.len()).min(step);
        space[..now].copy_from_slice(&stream[..now]);
        inbox.filled(now);
        *stream = &stream[now..];
    }

    proptest! {
        /// A stream of (head, data or skipped bytes) comes out as it went in, however it is cut.
        #[test]
        fn data_and_heads_survive_any_cut(
            frames in proptest::collection::vec(
                (any::<bool>(), proptest::prop_oneof![
                    1usize..200, 4096usize..20_000, Just(RECEIVE_BYTES),
                    Just(2 * PIECE_BYTES + 512),
                ]), 1..6),
            steps in proptest::collection::vec(1usize..400_000, 1..20),
        ) {
            let mut stream = Vec::new();
            for (i, &(kept, len)) in frames.iter().enumerate() {
                stream.extend_from_slice(&[kept as u8, i as u8, 7]);
                stream.extend((0..len).map(|b| (b * 31 + i) as u8));
            }
            let mut rest = &stream[..];
            let mut steps = steps.iter().cycle();
            let mut inbox = Inbox::new();
            for (i, &(kept, len)) in frames.iter().enumerate() {
                let head = loop {
                    if let Some(&head) = inbox.head::<3>() { break head; }
                    feed(&mut inbox, &mut rest, *steps.next().expect("endless"));
                };
                assert_eq!(head, [kept as u8, i as u8, 7]);
                inbox.consume(3);
                if !kept {
                    inbox.skip(len);
                    continue;
                }
                inbox.expect(len);
                let data = loop {
                    if let Some(data) = inbox.data() { break data; }
                    assert!(inbox.is_waiting_for_data());
                    feed(&mut inbox, &mut rest, *steps.next().expect("endless"));
                };
                let want: Vec<u8> = (0..len).map(|b| (b * 31 + i) as u8).collect();
                assert!(*join(&data) == want[..]);
            }
        }
    }
}
