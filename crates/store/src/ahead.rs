//! Read-ahead: who reads a component in order, one request after the other, finds the next bytes in
//! memory. Guests' systems do this for files; backups, tools and firmware do not.
//!
//! [`Streams`] tells from the requests who reads in order. [`Ahead`] holds, per device, what was
//! read before anybody asked. Only what lies at its home is read ahead, and the reader finds the
//! place and compares the checksum of every block as ever: what is saved is the wait for the
//! device.
//!
//! Invariant: what is handed out is what the device holds: a write drops what it overlaps when it
//! begins, and again when it has ended, as what was read meanwhile may be neither.

use crate::checkpoint;
use crate::group::Group;
use crate::limits;
use crate::read::read_device;
use crate::state::{Source, State};
use atoll_format::op::BlockRange;
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK};
use atoll_world::sync::Notify;
use atoll_world::{Buf, World, sometimes};
use futures_util::future::join_all;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

/// Who seems to read a component in order.
#[derive(Clone, Copy, Default)]
struct Stream {
    local: u32,
    /// The block that is asked for next, if it is so.
    next: u32,
    /// Requests in order so far; 0: nobody.
    requests: u32,
    /// Everything before this block has been asked for, by the reader or for it.
    ahead: u32,
    /// Blocks that were read ahead together the last time.
    window: u32,
}

/// The readers of one disk group. Those that read in order have places of their own: any number of
/// others does not make them forgotten.
#[derive(Default)]
pub(crate) struct Streams {
    in_order: [Stream; limits::STREAMS],
    others: [Stream; limits::STREAM_CANDIDATES],
    /// Which of each is forgotten next.
    turns: (usize, usize),
}

impl Streams {
    /// Notes a request, and says which blocks are to be read ahead now.
    pub(crate) fn on_read(&mut self, local: u32, range: BlockRange) -> Option<Range<u32>> {
        let goes_on = |s: &&mut Stream| s.requests > 0 && s.local == local && s.next == range.start;
        if let Some(stream) = self.in_order.iter_mut().find(goes_on) {
            return stream.go_on(range);
        }
        let Some(other) = self.others.iter_mut().find(goes_on) else {
            let place = self.turns.1 % self.others.len();
            self.turns.1 += 1;
            self.others[place] =
                Stream { local, next: range.end(), requests: 1, ahead: range.end(), window: 0 };
            return None;
        };
        let ahead = other.go_on(range);
        if other.requests >= limits::IN_ORDER {
            let place = self.turns.0 % self.in_order.len();
            self.turns.0 += 1;
            self.in_order[place] = std::mem::take(other);
        }
        ahead
    }
}

impl Stream {
    fn go_on(&mut self, range: BlockRange) -> Option<Range<u32>> {
        let count = u32::from(range.count);
        self.requests = self.requests.saturating_add(1);
        self.next = range.end();
        self.ahead = self.ahead.max(range.end());
        let enough = self.ahead - range.end() > self.window / 2;
        if self.requests < limits::IN_ORDER || count > limits::AHEAD_REQUEST_MAX || enough {
            return None;
        }
        self.window = (self.window * 2)
            .max(count * 4)
            .clamp(limits::AHEAD_BLOCKS_FIRST, limits::AHEAD_BLOCKS);
        let from = self.ahead;
        self.ahead = from.saturating_add(self.window);
        Some(from..self.ahead)
    }
}

/// One device request made ahead.
struct Part {
    name: u64,
    at: u64,
    len: u32,
    /// None: it is being read.
    bytes: Option<Buf>,
    /// Told when it has been read, and when it is dropped.
    ended: Notify,
}

impl Part {
    fn end(&self) -> u64 {
        self.at + u64::from(self.len)
    }
}

/// What there is of a range.
pub(crate) enum Found {
    Bytes(Buf),
    /// It is being read: look again when this is told.
    Reading(Notify),
    Nothing,
}

impl Found {
    pub(crate) fn bytes(self) -> Option<Buf> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// What has been read of one device before anybody asked for it, oldest first.
#[derive(Default)]
pub(crate) struct Ahead {
    parts: VecDeque<Part>,
    names: u64,
}

impl Ahead {
    /// A request is about to be made; none, if some of it is there. Returns its name.
    pub(crate) fn begin(&mut self, at: u64, len: u32) -> Option<u64> {
        if self.parts.iter().any(|p| overlaps(p, at, u64::from(len))) {
            return None;
        }
        while self.parts.len() >= limits::AHEAD_PARTS {
            let oldest = self.parts.pop_front().expect("there are some");
            oldest.ended.notify_all();
        }
        self.names += 1;
        let name = self.names;
        self.parts.push_back(Part { name, at, len, bytes: None, ended: Notify::default() });
        Some(name)
    }

    /// The request has ended, with nothing if it failed.
    pub(crate) fn end(&mut self, name: u64, bytes: Option<Buf>) {
        // Not there any more: it was written over, or is the oldest of too many.
        let Some(i) = self.parts.iter().position(|p| p.name == name) else { return };
        self.parts[i].ended.notify_all();
        if bytes.is_some() {
            self.parts[i].bytes = bytes;
        } else {
            self.parts.remove(i);
        }
    }

    /// Takes a range out, if all of it is in one request. What is read in order is read once.
    pub(crate) fn take(&mut self, at: u64, len: u32) -> Found {
        let end = at + u64::from(len);
        let Some(i) = self.parts.iter().position(|p| p.at <= at && end <= p.end()) else {
            return Found::Nothing;
        };
        let part = &self.parts[i];
        let Some(bytes) = &part.bytes else { return Found::Reading(part.ended.clone()) };
        let from = (at - part.at) as usize;
        let bytes = bytes.slice(from..from + len as usize);
        if end == part.end() {
            self.parts.remove(i);
        }
        Found::Bytes(bytes)
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

fn overlaps(part: &Part, at: u64, len: u64) -> bool {
    part.at < at + len && at < part.end()
}

/// Begins to read blocks of a component ahead, for one whose requests are `count` blocks long.
pub(crate) fn begin<W: World>(group: &Rc<Group<W>>, local: u32, blocks: Range<u32>, count: u32) {
    let mut from = blocks.start;
    while from < blocks.end {
        let to = blocks.end.min((from / BLOCKS_PER_CHUNK + 1) * BLOCKS_PER_CHUNK);
        group.world.spawn(read_chunk(group.clone(), local, from..to, count));
        from = to;
    }
}

/// The part of it that lies in one chunk.
async fn read_chunk<W: World>(group: Rc<Group<W>>, local: u32, blocks: Range<u32>, count: u32) {
    // The reader would wait for the page too.
    checkpoint::load_page(&group, local, blocks.start / BLOCKS_PER_CHUNK).await;
    let (device, pieces) = {
        let mut state = group.state.borrow_mut();
        let Some(c) = state.components.get(&local) else { return };
        let (end, device) = (c.spec.blocks, usize::from(c.device));
        let device = state.geometry.capacity[device].device;
        (device, at_home(&mut state, local, blocks.start..blocks.end.min(end), count))
    };
    let requests = pieces.into_iter().map(async |(first, n)| {
        let (at, len) = (u64::from(first) * BLOCK, n * BLOCK as u32);
        let Some(name) = group.devices[device].ahead().begin(at, len) else { return };
        let bytes = read_device(&group, device, at, len).await.ok();
        group.devices[device].ahead().end(name, bytes);
    });
    join_all(requests).await;
}

/// What lies together at home, as blocks of the device: first and number. In pieces that hold whole
/// requests of the reader's.
fn at_home(state: &mut State, local: u32, blocks: Range<u32>, count: u32) -> Vec<(u32, u32)> {
    let longest = limits::AHEAD_PART / count * count;
    let mut pieces: Vec<(u32, u32)> = Vec::new();
    for (i, block) in (0..).zip(blocks) {
        let Source::Home(at) = state.resolve(local, block).source else { continue };
        match pieces.last_mut() {
            Some((first, n)) if *first + *n == at && i % longest != 0 => *n += 1,
            _ => pieces.push((at, 1)),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::{Ahead, Found, Streams};
    use crate::limits;
    use atoll_format::op::BlockRange;
    use atoll_world::Buf;

    fn ask(streams: &mut Streams, local: u32, start: u32, count: u16) -> Option<(u32, u32)> {
        let ahead = streams.on_read(local, BlockRange { start, count });
        ahead.map(|blocks| (blocks.start, blocks.end))
    }

    #[test]
    fn who_reads_in_order_gets_more_and_more_ahead_and_never_waits_for_the_end_of_it() {
        let mut streams = Streams::default();
        let mut ahead = 0;
        let mut windows = Vec::new();
        for at in 0..1000 {
            if let Some((from, to)) = ask(&mut streams, 7, at, 1) {
                assert_eq!(from, ahead.max(at + 1), "nothing twice, nothing left out");
                windows.push(to - from);
                ahead = to;
            }
            assert!(at < 2 || ahead > at + 1, "{at}: the next is on its way");
        }
        assert_eq!(windows[..4], [16, 32, 64, 128]);
        assert_eq!(windows.last(), Some(&limits::AHEAD_BLOCKS));
    }

    #[test]
    fn two_in_order_are_chance_and_large_ones_need_no_help() {
        let mut streams = Streams::default();
        for at in (0..10_000).step_by(100) {
            assert_eq!(ask(&mut streams, 7, at, 1), None);
            assert_eq!(ask(&mut streams, 7, at + 1, 1), None);
        }
        let large = limits::AHEAD_REQUEST_MAX as u16 + 1;
        for i in 0..20 {
            assert_eq!(ask(&mut streams, 7, 20_000 + i * u32::from(large), large), None);
        }
        for i in 0..20 {
            assert_eq!(ask(&mut streams, i, i, 1), None, "each in another component");
        }
    }

    #[test]
    fn random_readers_beside_do_not_make_it_forgotten() {
        let mut streams = Streams::default();
        for at in 0..3 {
            ask(&mut streams, 7, at, 1);
        }
        let others = limits::STREAM_CANDIDATES as u32 * 3;
        let mut helped = 0;
        for at in 3..100 {
            helped += u32::from(ask(&mut streams, 7, at, 1).is_some());
            for i in 0..others {
                assert_eq!(ask(&mut streams, 7, 1_000_000 - (at * others + i) * 3, 1), None);
            }
        }
        assert!(helped > 2, "{helped}");
    }

    fn bytes(ahead: &mut Ahead, at: u64, len: u32) -> Option<Vec<u8>> {
        ahead.take(at, len).bytes().map(|bytes| bytes.to_vec())
    }

    #[test]
    fn what_was_read_is_handed_out_once_and_not_after_a_write_to_it() {
        let mut ahead = Ahead::default();
        let data: Vec<u8> = (0..16_384u32).map(|i| (i / 64) as u8).collect();
        let one = ahead.begin(40_960, 16_384).expect("new");
        assert!(ahead.begin(53_248, 8_192).is_none(), "its last block is being read");
        assert!(matches!(ahead.take(40_960, 4_096), Found::Reading(_)));
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
        assert!(matches!(ahead.take(0, 4_096), Found::Nothing), "the device gave nothing");
    }

    #[test]
    fn it_stays_small() {
        let mut ahead = Ahead::default();
        for i in 0..100 {
            let name = ahead.begin(i * 4_096, 4_096).expect("new");
            ahead.end(name, Some(Buf::zeros(4_096)));
        }
        assert_eq!(ahead.parts.len(), limits::AHEAD_PARTS);
        assert!(bytes(&mut ahead, 0, 4_096).is_none(), "the oldest went");
        assert!(bytes(&mut ahead, 99 * 4_096, 4_096).is_some());
    }
}
