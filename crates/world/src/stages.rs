//! Where the time of I/O goes: how long each stage of it took, as histograms.
//!
//! A stage that ends once for many operations is always noted. Of those that every operation goes
//! through, one in [`SAMPLE_EVERY`] is, so that looking costs next to nothing.

use crate::Nanos;
use std::cell::Cell;
use std::rc::Rc;

/// A stage of I/O. Stages overlap: a write is at the other members while it is in the log here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// A read of a client, from its last byte read to its answer queued.
    Read,
    /// A write of a client, the same way.
    Write,
    /// Of a write, until it is sent to its members: permits, locks, slots, edges read.
    Queue,
    /// A data request to another host, until its answer: network and work there.
    Peer,
    /// The work part of [`Stage::Peer`], noted by the host that is asked.
    Serve,
    /// In the queue of the write log, until the batch that takes it begins.
    LogQueue,
    /// Of a log batch, its device write and flush.
    LogWrite,
    /// A read of a device.
    DiskRead,
    /// A write of a device: the log's batches, blocks on their way home, metadata.
    DiskWrite,
    /// Of answers to a client, until the socket has taken them.
    Reply,
}

impl Stage {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::Read,
        Self::Write,
        Self::Queue,
        Self::Peer,
        Self::Serve,
        Self::LogQueue,
        Self::LogWrite,
        Self::DiskRead,
        Self::DiskWrite,
        Self::Reply,
    ];

    /// Its name in metrics and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Queue => "queue",
            Self::Peer => "peer",
            Self::Serve => "serve",
            Self::LogQueue => "log_queue",
            Self::LogWrite => "log_write",
            Self::DiskRead => "disk_read",
            Self::DiskWrite => "disk_write",
            Self::Reply => "reply",
        }
    }

    /// How many times it occurs for each time it is noted.
    pub fn sampled(self) -> u64 {
        match self {
            Self::Queue | Self::Peer | Self::Serve | Self::LogQueue | Self::DiskRead => {
                SAMPLE_EVERY
            }
            _ => 1,
        }
    }
}

/// See [`Stage::sampled`].
pub const SAMPLE_EVERY: u64 = 16;

/// Buckets of a power of two: bounds are at most 25 % apart.
const PARTS_LOG: u32 = 2;
/// Everything up to 1.024 us is in the first bucket.
const FIRST_LOG: u32 = 10;
/// Everything from 17 s on is in the last one.
const LAST_LOG: u32 = 34;
/// Buckets of a [`Histogram`].
pub const BUCKETS: usize = ((LAST_LOG - FIRST_LOG) << PARTS_LOG) as usize + 2;

/// How often something took how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// By [`upper_bound`].
    pub buckets: [u64; BUCKETS],
    /// All of them together.
    pub sum: Nanos,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum: Nanos::ZERO }
    }
}

fn bucket(span: Nanos) -> usize {
    let log = span.0.max(1).ilog2();
    if log < FIRST_LOG {
        return 0;
    }
    let part = (span.0 >> (log - PARTS_LOG)) & ((1 << PARTS_LOG) - 1);
    let index = (u64::from(log - FIRST_LOG) << PARTS_LOG) + part + 1;
    (index as usize).min(BUCKETS - 1)
}

/// Spans in that bucket are shorter; the last one has no bound.
pub fn upper_bound(bucket: usize) -> Nanos {
    if bucket >= BUCKETS - 1 {
        return Nanos::NEVER;
    }
    let (log, part) = (bucket as u32 >> PARTS_LOG, bucket as u64 & ((1 << PARTS_LOG) - 1));
    let octave = 1 << (log + FIRST_LOG);
    Nanos(octave + (octave >> PARTS_LOG) * part)
}

impl Histogram {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Both together.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let buckets = std::array::from_fn(|i| self.buckets[i] + other.buckets[i]);
        Self { buckets, sum: self.sum + other.sum }
    }
}

/// The histograms of one shard. Clones are the same.
#[derive(Clone)]
pub struct Stages(Rc<[Noted; Stage::ALL.len()]>);

struct Noted {
    buckets: [Cell<u64>; BUCKETS],
    sum: Cell<Nanos>,
    /// Occurrences until one is noted.
    skip: Cell<u64>,
}

impl Noted {
    fn new() -> Self {
        let buckets = std::array::from_fn(|_| Cell::new(0));
        Self { buckets, sum: Cell::new(Nanos::ZERO), skip: Cell::new(0) }
    }
}

impl Default for Stages {
    fn default() -> Self {
        Self(Rc::new(std::array::from_fn(|_| Noted::new())))
    }
}

impl Stages {
    /// Whether this occurrence is to be noted.
    pub fn samples(&self, stage: Stage) -> bool {
        let skip = &self.0[stage as usize].skip;
        match skip.get() {
            0 => {
                skip.set(stage.sampled() - 1);
                true
            }
            left => {
                skip.set(left - 1);
                false
            }
        }
    }

    /// It took that long.
    pub fn note(&self, stage: Stage, span: Nanos) {
        let noted = &self.0[stage as usize];
        let bucket = &noted.buckets[bucket(span)];
        bucket.set(bucket.get() + 1);
        noted.sum.set(noted.sum.get() + span);
    }

    /// What was noted since the beginning.
    pub fn histogram(&self, stage: Stage) -> Histogram {
        let noted = &self.0[stage as usize];
        let buckets = std::array::from_fn(|i| noted.buckets[i].get());
        Histogram { buckets, sum: noted.sum.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Histogram, SAMPLE_EVERY, Stage, Stages, bucket, upper_bound};
    use crate::Nanos;

    #[test]
    fn every_span_lies_between_the_bounds_of_its_bucket() {
        let mut spans: Vec<u64> = (0..40).flat_map(|log| [1 << log, (1 << log) + 1]).collect();
        spans.extend([0, 1023, 1_279, 1_280, 999_999, 17_179_869_183, u64::MAX]);
        for span in spans {
            let of = bucket(Nanos(span));
            assert!(Nanos(span) < upper_bound(of) || of == BUCKETS - 1, "{span} in {of}");
            assert!(of == 0 || upper_bound(of - 1) <= Nanos(span), "{span} in {of}");
        }
        for of in 1..BUCKETS - 1 {
            let (low, high) = (upper_bound(of - 1).0, upper_bound(of).0);
            assert!(low < high && high * 4 <= low * 5 + 4, "{low} to {high}");
        }
    }

    #[test]
    fn one_in_so_many_is_noted_of_what_every_operation_goes_through() {
        let stages = Stages::default();
        let noted = (0..10 * SAMPLE_EVERY).filter(|_| stages.samples(Stage::Queue)).count();
        assert_eq!(noted, 10);
        assert!((0..5).all(|_| stages.samples(Stage::LogWrite)));
        stages.note(Stage::Queue, Nanos::from_us(5));
        stages.note(Stage::Queue, Nanos::from_us(7));
        let queue = stages.histogram(Stage::Queue);
        assert_eq!((queue.count(), queue.sum), (2, Nanos::from_us(12)));
        assert_eq!(stages.histogram(Stage::Peer), Histogram::default());
    }

    #[test]
    fn stages_are_stored_where_they_are_looked_for() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
        }
    }
}
