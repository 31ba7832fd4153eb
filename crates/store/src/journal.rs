//! The metadata journal: what destage has done since the last checkpoint.
//!
//! A ring of batches, each one durable write, written by the mover alone. Its batches are chained
//! by number and checksum, so that old content of the ring is never taken for new.
//!
//! Invariant: batches since the newest complete checkpoint are never overwritten.

use crate::group::Group;
use atoll_format::chunk::{
    JOURNAL_BATCH_MAX, JOURNAL_HEAD_LEN, JOURNAL_RECORD_LEN, JournalHead, JournalKind,
    JournalRecord,
};
use atoll_format::superblock::Region;
use atoll_format::units::BLOCK_LEN;
use atoll_world::{BufMut, Durability, World, mutant};
use std::rc::Rc;
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
    fn place(&self, region: Region, len: u64) -> (u64, u64) {
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
pub(crate) struct Records {
    pub body: Vec<u8>,
}

impl Records {
    pub(crate) fn push(&mut self, kind: JournalKind, fill: impl FnOnce(&mut JournalRecord)) {
        let mut record = JournalRecord::new_zeroed();
        record.kind = kind as u8;
        fill(&mut record);
        self.body.extend_from_slice(record.as_bytes());
    }

    /// A component record: its head, then its bytes.
    pub(crate) fn push_component(&mut self, local: u32, bytes: &[u8]) {
        self.push(JournalKind::Component, |r| {
            r.component = local.into();
            r.block = (bytes.len() as u32).into();
        });
        self.body.extend_from_slice(bytes);
        let len = self.body.len().next_multiple_of(JOURNAL_RECORD_LEN);
        self.body.resize(len, 0);
    }
}

/// Writes a batch; durable on return.
pub(crate) async fn write<W: World>(
    group: &Rc<Group<W>>,
    records: Records,
    trim_below: u64,
) -> Result<(), ()> {
    assert!(records.body.len() <= JOURNAL_BATCH_MAX, "a journal batch is too large");
    let (head, data, used) = {
        let state = group.state.borrow();
        let position = group.journal.borrow();
        let region = state.geometry.journal;
        let mut head = JournalHead {
            salt: state.geometry.salt,
            seq: position.seq,
            at: 0,
            trim_below,
            log_to: group.queue.borrow().next_seq - 1,
            prev_crc: position.prev_crc,
            body_len: records.body.len() as u32,
            next_local: state.next_local,
            crc: 0,
        };
        let (at, used) = position.place(region, head.len_bytes());
        assert!(position.used + used <= region.len, "the journal would overwrite itself");
        head.at = at;
        let mut data = BufMut::for_overwrite(head.len_bytes() as usize);
        let body_end = JOURNAL_HEAD_LEN + records.body.len();
        data[JOURNAL_HEAD_LEN..body_end].copy_from_slice(&records.body);
        data[body_end..].fill(0);
        head.crc = head.seal(&mut data);
        (head, data.freeze(), used)
    };
    let volatile = mutant!("journal.not_durable");
    let durability = if volatile { Durability::Volatile } else { Durability::Durable };
    if !mutant!("journal.not_written")
        && let Err(e) = group.log_device().write(head.at, vec![data], durability).await
    {
        group.device_failed(0, &e);
        return Err(());
    }
    let mut position = group.journal.borrow_mut();
    position.at = head.at + head.len_bytes();
    position.used += used;
    position.prev_crc = head.crc;
    position.durable_seq = head.seq;
    position.seq = head.seq + 1;
    group.state.borrow_mut().counters.metadata_bytes += head.len_bytes();
    Ok(())
}
