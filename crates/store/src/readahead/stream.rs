//! Tells from read requests which readers go through a component in order, and how far ahead of
//! each to read. No I/O.
//!
//! Invariant: no block is named twice to the same reader, and none that it has already asked for.

use crate::limits;
use atoll_format::op::BlockRange;
use std::ops::Range;

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
pub(crate) struct StreamDetector {
    in_order: [Stream; limits::STREAMS],
    others: [Stream; limits::STREAM_CANDIDATES],
    /// Which of each is forgotten next.
    turns: (usize, usize),
}

impl StreamDetector {
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
        if self.requests < limits::IN_ORDER || count > limits::READAHEAD_HELPED_MAX || enough {
            return None;
        }
        self.window = (self.window * 2)
            .max(count * 4)
            .clamp(limits::READAHEAD_BLOCKS_FIRST, limits::READAHEAD_BLOCKS);
        let from = self.ahead;
        self.ahead = from.saturating_add(self.window);
        assert!(
            from >= self.next && self.ahead - from <= limits::READAHEAD_BLOCKS,
            "{from} to {} are read ahead of {}",
            self.ahead,
            self.next
        );
        Some(from..self.ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::StreamDetector;
    use crate::limits;
    use atoll_format::op::BlockRange;

    fn ask(streams: &mut StreamDetector, local: u32, start: u32, count: u16) -> Option<(u32, u32)> {
        let ahead = streams.on_read(local, BlockRange { start, count });
        ahead.map(|blocks| (blocks.start, blocks.end))
    }

    #[test]
    fn who_reads_in_order_gets_more_and_more_ahead_and_never_waits_for_the_end_of_it() {
        let mut streams = StreamDetector::default();
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
        assert_eq!(windows.last(), Some(&limits::READAHEAD_BLOCKS));
    }

    #[test]
    fn two_in_order_are_chance_and_large_ones_need_no_help() {
        let mut streams = StreamDetector::default();
        for at in (0..10_000).step_by(100) {
            assert_eq!(ask(&mut streams, 7, at, 1), None);
            assert_eq!(ask(&mut streams, 7, at + 1, 1), None);
        }
        let large = limits::READAHEAD_HELPED_MAX as u16 + 1;
        for i in 0..20 {
            assert_eq!(ask(&mut streams, 7, 20_000 + i * u32::from(large), large), None);
        }
        for i in 0..20 {
            assert_eq!(ask(&mut streams, i, i, 1), None, "each in another component");
        }
    }

    #[test]
    fn random_readers_beside_do_not_make_it_forgotten() {
        let mut streams = StreamDetector::default();
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
}
