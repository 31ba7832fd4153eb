//! What goes out: answers to requests in the form that was negotiated, gathered until the pump
//! writes them all at once.
//!
//! Invariants: pieces leave in the order in which they were put in; every answer is counted once;
//! data is passed on, never copied.

use super::codec::{self, Errno, chunk};
use crate::limits::{MESSAGE_BYTES_MAX, WRITE_STEP_BYTES};
use atoll_world::Buf;
use atoll_world::buf::{is_zero, total_len};
use atoll_world::stream::Piece;

/// Answers that wait to be written.
#[derive(Default)]
pub(super) struct Outbox {
    pieces: Vec<Piece>,
    /// Heads since the last data piece.
    tail: Vec<u8>,
    replies: usize,
    charge: usize,
}

/// Everything an [`Outbox`] held at one moment.
pub(super) struct Batch {
    pieces: Vec<Piece>,
    /// Answers in it.
    pub replies: usize,
    /// Bytes that their requests were charged with.
    pub charge: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.tail.is_empty()
    }
    /// Answers that wait here.
    pub(super) fn replies(&self) -> usize {
        self.replies
    }
    /// Where small things are appended.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }
    /// The answer to a request that was charged `charge` bytes has been put in.
    pub(super) fn count(&mut self, charge: usize) {
        self.replies += 1;
        self.charge += charge;
    }
    fn data(&mut self, data: Buf) {
        if !self.tail.is_empty() {
            self.pieces.push(Piece::Bytes(std::mem::take(&mut self.tail)));
        }
        self.pieces.push(Piece::Buf(data));
    }
    pub(super) fn take(&mut self) -> Batch {
        let mut pieces = std::mem::take(&mut self.pieces);
        if !self.tail.is_empty() {
            pieces.push(Piece::Bytes(std::mem::take(&mut self.tail)));
        }
        Batch {
            pieces,
            replies: std::mem::take(&mut self.replies),
            charge: std::mem::take(&mut self.charge),
        }
    }
}

impl Batch {
    /// The pieces in steps of at most [`WRITE_STEP_BYTES`] (headers may exceed it by themselves).
    pub(super) fn steps(self) -> impl Iterator<Item = Vec<Piece>> {
        let mut rest = self.pieces.into_iter();
        let mut held = None;
        std::iter::from_fn(move || {
            // Nearly always everything is one step: the vector is then passed on as it is.
            if held.is_none() && size(rest.as_slice()) <= WRITE_STEP_BYTES {
                let all: Vec<Piece> = std::mem::take(&mut rest).collect();
                return (!all.is_empty()).then_some(all);
            }
            let (mut step, mut left) = (Vec::new(), WRITE_STEP_BYTES);
            while left > 0
                && let Some(piece) = held.take().or_else(|| rest.next())
            {
                let piece = match piece {
                    Piece::Buf(buf) if buf.len() > left => {
                        held = Some(Piece::Buf(buf.slice(left..)));
                        Piece::Buf(buf.slice(..left))
                    }
                    whole => whole,
                };
                left = left.saturating_sub(piece.as_slice().len());
                step.push(piece);
            }
            (!step.is_empty()).then_some(step)
        })
    }
}

fn size(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.as_slice().len()).sum()
}

/// Why a request failed, as the client hears it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failure {
    pub errno: Errno,
    /// For people.
    pub message: String,
    /// The first byte that is concerned, where that says more than the request's own offset.
    pub at: Option<u64>,
}

/// A range of one kind: its length, and its flags in `base:allocation`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Status {
    pub len: u32,
    pub flags: u32,
}

/// The form of answers that was negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Replies {
    pub structured: bool,
}

/// Ranges of zeros are found at this grain, in bytes; smaller reads are sent as they are.
const ZERO_GRAIN: usize = 64 << 10;

impl Replies {
    /// Success without data. A simple reply is allowed in both forms, and is the shortest.
    pub(super) fn done(self, out: &mut Outbox, cookie: u64) {
        codec::put_simple_reply(out.bytes(), cookie, 0);
    }

    pub(super) fn failed(self, out: &mut Outbox, cookie: u64, failure: &Failure) {
        let bytes = out.bytes();
        if !self.structured {
            codec::put_simple_reply(bytes, cookie, failure.errno as u32);
            return;
        }
        let text = codec::shortened(&failure.message, MESSAGE_BYTES_MAX).as_bytes();
        let kind = if failure.at.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
        let len = 6 + text.len() + failure.at.map_or(0, |_| 8);
        codec::put_chunk(bytes, true, kind, cookie, len);
        codec::put32(bytes, failure.errno as u32);
        codec::put16(bytes, u16::try_from(text.len()).expect("messages are at most 512 bytes"));
        bytes.extend_from_slice(text);
        if let Some(at) = failure.at {
            codec::put64(bytes, at);
        }
    }

    /// All the bytes of a read from `at` on. `whole`: in one chunk, holes or not.
    pub(super) fn data(self, out: &mut Outbox, cookie: u64, at: u64, data: Vec<Buf>, whole: bool) {
        let len = total_len(&data);
        if !self.structured {
            codec::put_simple_reply(out.bytes(), cookie, 0);
            data.into_iter().for_each(|piece| out.data(piece));
        } else if whole || len < ZERO_GRAIN {
            data_chunk(out, cookie, at, data, len, true);
        } else {
            let mut at = at;
            let mut runs = runs(at, data).into_iter().peekable();
            while let Some(run) = runs.next() {
                let last = runs.peek().is_none();
                if run.zero {
                    let bytes = out.bytes();
                    codec::put_chunk(bytes, last, chunk::OFFSET_HOLE, cookie, 12);
                    codec::put64(bytes, at);
                    let len = u32::try_from(run.len).expect("reads are at most 32 MiB");
                    codec::put32(bytes, len);
                } else {
                    data_chunk(out, cookie, at, run.data, run.len, last);
                }
                at += run.len as u64;
            }
        }
    }

    /// What a range holds: at least one status.
    pub(super) fn status(self, out: &mut Outbox, cookie: u64, ranges: &[Status]) {
        let bytes = out.bytes();
        codec::put_chunk(bytes, true, chunk::BLOCK_STATUS, cookie, 4 + 8 * ranges.len());
        codec::put32(bytes, codec::ALLOCATION_ID);
        for range in ranges {
            codec::put32(bytes, range.len);
            codec::put32(bytes, range.flags);
        }
    }
}

fn data_chunk(out: &mut Outbox, cookie: u64, at: u64, data: Vec<Buf>, len: usize, last: bool) {
    let bytes = out.bytes();
    codec::put_chunk(bytes, last, chunk::OFFSET_DATA, cookie, 8 + len);
    codec::put64(bytes, at);
    data.into_iter().for_each(|piece| out.data(piece));
}

/// Bytes that are all zero, or are to be sent.
#[derive(Default)]
struct Run {
    zero: bool,
    len: usize,
    data: Vec<Buf>,
}

/// Splits a read into runs of zeros and of data, along multiples of [`ZERO_GRAIN`].
fn runs(at: u64, data: Vec<Buf>) -> Vec<Run> {
    let grain = ZERO_GRAIN as u64;
    let mut runs: Vec<Run> = Vec::new();
    let mut at = at;
    for piece in data {
        let mut from = 0;
        while from < piece.len() {
            let to_next = (grain - at % grain) as usize;
            let upto = piece.len().min(from + to_next);
            let part = piece.slice(from..upto);
            let zero = is_zero(&part);
            at += part.len() as u64;
            from = upto;
            if runs.last().is_none_or(|run| run.zero != zero) {
                runs.push(Run { zero, ..Run::default() });
            }
            let run = runs.last_mut().expect("just made sure of it");
            run.len += part.len();
            if !zero {
                run.data.push(part);
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::{Batch, Failure, Outbox, Replies, Status};
    use crate::limits::{MESSAGE_BYTES_MAX, WRITE_STEP_BYTES};
    use crate::nbd::codec::{Errno, chunk, status};
    use atoll_world::{Buf, BufMut};

    const SIMPLE: Replies = Replies { structured: false };
    const STRUCTURED: Replies = Replies { structured: true };

    fn bytes(batch: Batch) -> Vec<u8> {
        batch.steps().flatten().flat_map(|piece| piece.as_slice().to_vec()).collect()
    }

    #[test]
    fn a_read_is_answered_in_the_negotiated_form() {
        let mut out = Outbox::default();
        SIMPLE.data(&mut out, 9, 512, vec![Buf::copy_from(&[5; 512])], false);
        let simple = bytes(out.take());
        assert_eq!(simple[..16], *b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x09");
        assert_eq!(simple[16..], [5; 512]);
        STRUCTURED.data(&mut out, 9, 512, vec![Buf::copy_from(&[5; 512])], false);
        let chunked = bytes(out.take());
        assert_eq!(chunked[..8], *b"\x66\x8e\x33\xef\0\x01\0\x01");
        assert_eq!(chunked[16..28], *b"\0\0\x02\x08\0\0\0\0\0\0\x02\0");
        assert_eq!(chunked[28..], [5; 512]);
    }

    #[test]
    fn zeros_of_a_long_read_become_holes_unless_it_must_be_whole() {
        let mut data = BufMut::zeroed(256 << 10);
        data[70 << 10] = 1;
        let data = data.freeze();
        let mut out = Outbox::default();
        STRUCTURED.data(&mut out, 1, 0, vec![data.clone()], false);
        let sent = bytes(out.take());
        // 64 KiB of hole, 64 KiB of data, 128 KiB of hole.
        assert_eq!(sent.len(), 32 + 28 + (64 << 10) + 32);
        assert_eq!(sent[4..8], [0, 0, 0, chunk::OFFSET_HOLE as u8]);
        assert_eq!(sent[sent.len() - 28..][..4], [0, 1, 0, chunk::OFFSET_HOLE as u8]);
        STRUCTURED.data(&mut out, 1, 0, vec![data], true);
        assert_eq!(bytes(out.take()).len(), 28 + (256 << 10));
    }

    #[test]
    fn errors_carry_a_bounded_message_and_the_place() {
        let mut out = Outbox::default();
        let message = "\u{e4}".repeat(MESSAGE_BYTES_MAX);
        let failure = Failure { errno: Errno::Io, message, at: Some(77) };
        STRUCTURED.failed(&mut out, 3, &failure);
        let sent = bytes(out.take());
        assert_eq!(sent.len(), 20 + 6 + MESSAGE_BYTES_MAX + 8);
        assert_eq!(sent[sent.len() - 1], 77);
        SIMPLE.failed(&mut out, 3, &failure);
        assert_eq!(bytes(out.take())[..8], *b"\x67\x44\x66\x98\0\0\0\x05");
        STRUCTURED.status(&mut out, 3, &[Status { len: 512, flags: status::HOLE_ZERO }]);
        assert_eq!(bytes(out.take())[20..], [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 3]);
    }

    #[test]
    fn a_long_answer_leaves_in_steps_without_losing_a_byte() {
        let mut data = BufMut::zeroed(3 * WRITE_STEP_BYTES + 5);
        data.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i / 1000) as u8 | 1);
        let data = data.freeze();
        let mut out = Outbox::default();
        SIMPLE.data(&mut out, 1, 0, vec![data.clone()], false);
        SIMPLE.done(&mut out, 2);
        let batch = out.take();
        let steps: Vec<_> = batch.steps().collect();
        assert_eq!(steps.len(), 4);
        assert!(steps.iter().all(|step| super::size(step) <= WRITE_STEP_BYTES + 16));
        let sent: Vec<u8> = steps.iter().flatten().flat_map(|p| p.as_slice().to_vec()).collect();
        assert!(sent[16..16 + data.len()] == data[..] && sent.len() == data.len() + 32);
    }
}
