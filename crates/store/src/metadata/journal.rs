//! The metadata journal as data: where its ring goes on, and the records of one batch.
//!
//! The journal says what destage has done since the last checkpoint. It is a ring of batches, each
//! one durable write. Its batches are chained by number and checksum, so that old content of the
//! ring is never taken for new.
//!
//! Invariant: batches since the newest complete checkpoint are never overwritten.

use atoll_format::chunk::{
    JOURNAL_HEAD_LEN, JOURNAL_RECORD_LEN, JournalKind, JournalRecord, RawComponent,
};
use atoll_format::superblock::Region;
use atoll_format::units::BLOCK_LEN;
use zerocopy::{FromZeros, IntoBytes};

/// Where the next batch goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct JournalPosition {
    pub at: u64,
    pub seq: u64,
    pub prev_crc: u32,
    /// Bytes of the ring that the newest checkpoint still needs.
    pub used: u64,
    /// The last batch known durable.
    pub durable_seq: u64,
    /// Counts the checkpoints.
    pub generation: u64,
    /// Which checkpoint region is written first: the older one.
    pub older: usize,
}

impl JournalPosition {
    /// Where a batch of `len` bytes goes, and how much of the ring it takes with what is skipped
    /// at the end of the ring.
    pub(crate) fn place(&self, region: Region, len: u64) -> (u64, u64) {
        assert!(len > 0 && len <= region.len, "a journal batch of {len} bytes in {region:?}");
        let inside = (region.at..=region.end()).contains(&self.at);
        assert!(inside, "the journal goes on at {}, it lies at {region:?}", self.at);
        if self.at + len <= region.end() {
            (self.at, len)
        } else {
            (region.at, len + region.end() - self.at)
        }
    }

    /// Whether a batch with so many bytes of records still fits before a checkpoint.
    pub(crate) fn has_room(&self, region: Region, body_len: usize) -> bool {
        let len = (JOURNAL_HEAD_LEN + body_len).next_multiple_of(BLOCK_LEN) as u64;
        self.used + self.place(region, len).1 <= region.len
    }
}

/// The records of one batch.
#[derive(Default)]
pub(crate) struct JournalRecords {
    pub body: Vec<u8>,
}

impl JournalRecords {
    pub(crate) fn push(&mut self, kind: JournalKind, fill: impl FnOnce(&mut JournalRecord)) {
        let mut record = JournalRecord::new_zeroed();
        record.kind = kind as u8;
        fill(&mut record);
        self.body.extend_from_slice(record.as_bytes());
    }

    /// A component record: its head, then its bytes.
    pub(crate) fn push_component(&mut self, local: u32, bytes: &[u8]) {
        let len = bytes.len();
        assert!(len >= size_of::<RawComponent>(), "a record of {len} bytes for number {local}");
        self.push(JournalKind::Component, |r| {
            r.component = local.into();
            r.block = (bytes.len() as u32).into();
        });
        self.body.extend_from_slice(bytes);
        let len = self.body.len().next_multiple_of(JOURNAL_RECORD_LEN);
        self.body.resize(len, 0);
    }
}
