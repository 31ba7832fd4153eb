//! What has been read of one device before anybody asked for it.
//!
//! Invariant: what is handed out is what the device holds: a write drops what it overlaps when it
//! begins, and again when it has ended, as what was read meanwhile may be neither.

use crate::limits;
use atoll_world::sync::Notify;
use atoll_world::{Buf, sometimes};
use std::collections::VecDeque;

/// One device request made ahead.
struct Prefetched {
    name: u64,
    at: u64,
    len: u32,
    /// None: it is being read.
    bytes: Option<Buf>,
    /// Told when it has been read, and when it is dropped.
    ended: Notify,
}

impl Prefetched {
    fn end(&self) -> u64 {
        self.at + u64::from(self.len)
    }
}

/// What there is of a range.
pub(crate) enum Buffered {
    Bytes(Buf),
    /// It is being read: look again when this is told.
    Reading(Notify),
    Nothing,
}

impl Buffered {
    pub(crate) fn bytes(self) -> Option<Buf> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// What has been read of one device before anybody asked for it, oldest first.
#[derive(Default)]
pub(crate) struct ReadaheadBuffer {
    parts: VecDeque<Prefetched>,
    names: u64,
}

impl ReadaheadBuffer {
    /// A request is about to be made; none, if some of it is there. Returns its name.
    pub(crate) fn begin(&mut self, at: u64, len: u32) -> Option<u64> {
        assert!(len > 0, "nothing is read ahead at {at}");
        if self.parts.iter().any(|p| overlaps(p, at, u64::from(len))) {
            return None;
        }
        while self.parts.len() >= limits::READAHEAD_REQUESTS {
            let oldest = self.parts.pop_front().expect("there are some");
            oldest.ended.notify_all();
        }
        self.names += 1;
        let name = self.names;
        self.parts.push_back(Prefetched { name, at, len, bytes: None, ended: Notify::default() });
        Some(name)
    }

    /// The request has ended, with nothing if it failed.
    pub(crate) fn end(&mut self, name: u64, bytes: Option<Buf>) {
        // Not there any more: it was written over, or is the oldest of too many.
        let Some(i) = self.parts.iter().position(|p| p.name == name) else { return };
        self.parts[i].ended.notify_all();
        let (len, wanted) = (bytes.as_ref().map(|b| b.len()), self.parts[i].len);
        assert!(len.is_none_or(|len| len == wanted as usize), "{len:?} bytes, {wanted} wanted");
        assert!(self.parts[i].bytes.is_none(), "a request ends twice");
        if bytes.is_some() {
            self.parts[i].bytes = bytes;
        } else {
            self.parts.remove(i);
        }
    }

    /// Takes a range out, if all of it is in one request. What is read in order is read once.
    pub(crate) fn take(&mut self, at: u64, len: u32) -> Buffered {
        let end = at + u64::from(len);
        let Some(i) = self.parts.iter().position(|p| p.at <= at && end <= p.end()) else {
            return Buffered::Nothing;
        };
        let part = &self.parts[i];
        let Some(bytes) = &part.bytes else { return Buffered::Reading(part.ended.clone()) };
        let from = (at - part.at) as usize;
        let bytes = bytes.slice(from..from + len as usize);
        if end == part.end() {
            self.parts.remove(i);
        }
        Buffered::Bytes(bytes)
    }

    /// These bytes of the device become others.
    pub(crate) fn written(&mut self, at: u64, len: u64) {
        self.parts.retain(|part| {
            let stays = !overlaps(part, at, len);
            if !stays {
                sometimes!("store.ahead.written_over");
                part.ended.notify_all();
            }
            stays
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

fn overlaps(part: &Prefetched, at: u64, len: u64) -> bool {
    part.at < at + len && at < part.end()
}

#[cfg(test)]
mod tests {
    use super::{Buffered, ReadaheadBuffer};
    use crate::limits;
    use atoll_world::Buf;

    fn bytes(ahead: &mut ReadaheadBuffer, at: u64, len: u32) -> Option<Vec<u8>> {
        ahead.take(at, len).bytes().map(|bytes| bytes.to_vec())
    }

    #[test]
    fn what_was_read_is_handed_out_once_and_not_after_a_write_to_it() {
        let mut ahead = ReadaheadBuffer::default();
        let data: Vec<u8> = (0..16_384u32).map(|i| (i / 64) as u8).collect();
        let one = ahead.begin(40_960, 16_384).expect("new");
        assert!(ahead.begin(53_248, 8_192).is_none(), "its last block is being read");
        assert!(matches!(ahead.take(40_960, 4_096), Buffered::Reading(_)));
        ahead.end(one, Some(Buf::copy_from(&data)));
        assert_eq!(bytes(&mut ahead, 45_056, 4_096).as_deref(), Some(&data[4_096..8_192]));
        assert!(bytes(&mut ahead, 53_248, 8_192).is_none(), "half of it");
        assert_eq!(bytes(&mut ahead, 53_248, 4_096).as_deref(), Some(&data[12_288..]));
        assert!(ahead.is_empty(), "read to its end");

        for (at, len) in [(36_864, 4_097), (57_343, 1), (0, 1 << 20), (45_056, 4_096)] {
            let one = ahead.begin(40_960, 16_384).expect("gone");
            ahead.written(at, len);
            ahead.end(one, Some(Buf::copy_from(&data)));
            assert!(ahead.is_empty(), "written while it was read: {at}, {len}");
            let one = ahead.begin(40_960, 16_384).expect("gone");
            ahead.end(one, Some(Buf::copy_from(&data)));
            ahead.written(at, len);
            assert!(ahead.is_empty(), "written after it was read: {at}, {len}");
        }
        let one = ahead.begin(40_960, 16_384).expect("gone");
        ahead.end(one, Some(Buf::copy_from(&data)));
        ahead.written(36_864, 4_096);
        ahead.written(57_344, 4_096);
        assert!(!ahead.is_empty(), "its neighbours were");
        let one = ahead.begin(0, 4_096).expect("new");
        ahead.end(one, None);
        assert!(matches!(ahead.take(0, 4_096), Buffered::Nothing), "the device gave nothing");
    }

    #[test]
    fn it_stays_small() {
        let mut ahead = ReadaheadBuffer::default();
        for i in 0..100 {
            let name = ahead.begin(i * 4_096, 4_096).expect("new");
            ahead.end(name, Some(Buf::zeros(4_096)));
        }
        assert_eq!(ahead.parts.len(), limits::READAHEAD_REQUESTS);
        assert!(bytes(&mut ahead, 0, 4_096).is_none(), "the oldest went");
        assert!(bytes(&mut ahead, 99 * 4_096, 4_096).is_some());
    }
}
