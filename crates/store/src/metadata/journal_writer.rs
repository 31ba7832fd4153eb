//! Writes batches of the metadata journal. The mover alone writes them, one at a time.

use crate::group::Group;
use crate::metadata::journal::JournalRecords;
use atoll_format::chunk::{JOURNAL_BATCH_MAX, JOURNAL_HEAD_LEN, JOURNAL_RECORD_LEN, JournalHead};
use atoll_world::{Buf, BufMut, Durability, World, mutant};
use std::rc::Rc;

/// Writes a batch; durable on return.
pub(crate) async fn write<W: World>(
    group: &Rc<Group<W>>,
    records: JournalRecords,
    trim_below: u64,
) -> Result<(), ()> {
    assert!(records.body.len() <= JOURNAL_BATCH_MAX, "a journal batch is too large");
    let whole = records.body.len().is_multiple_of(JOURNAL_RECORD_LEN);
    assert!(whole, "records of {} bytes", records.body.len());
    let (head, data, used) = {
        let state = group.state.borrow();
        let position = group.journal.borrow();
        let region = state.geometry.journal;
        let (from, to) = (state.log.trim_below(), state.log.head_segment());
        assert!((from..=to).contains(&trim_below), "{from} to {to} are trimmed to {trim_below}");
        let (durable, next) = (position.durable_seq, position.seq);
        assert!(durable + 1 == next, "batch {next} behind {durable}");
        let mut head = JournalHead {
            salt: state.geometry.salt,
            seq: position.seq,
            at: 0,
            trim_below,
            log_to: group.queue.borrow().next_seq - 1,
            prev_crc: position.prev_crc,
            body_len: records.body.len() as u32,
            next_local: state.components.next_local(),
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
        if group.world.audits() {
            let again = JournalHead::decode(&data, head.at, head.salt);
            assert!(again == Ok((head, &records.body[..])), "a journal batch that cannot be read");
        }
        assert!(at + head.len_bytes() <= region.end(), "a batch at {at}, the journal: {region:?}");
        (head, data.freeze(), used)
    };
    write_batch(group, head.at, data).await?;
    let mut position = group.journal.borrow_mut();
    let (own, next) = (head.seq, position.seq);
    assert!(own == next && position.prev_crc == head.prev_crc, "{own} is written as batch {next}");
    position.at = head.at + head.len_bytes();
    position.used += used;
    position.prev_crc = head.crc;
    position.durable_seq = head.seq;
    position.seq = head.seq + 1;
    group.state.borrow_mut().counters.metadata_bytes += head.len_bytes();
    Ok(())
}

async fn write_batch<W: World>(group: &Group<W>, at: u64, data: Buf) -> Result<(), ()> {
    if mutant!("journal.not_written") {
        return Ok(());
    }
    let done = group.log_device().write(at, vec![data], durability()).await;
    done.map_err(|e| group.device_failed(0, &e))
}

fn durability() -> Durability {
    if mutant!("journal.not_durable") {
        return Durability::Volatile;
    }
    Durability::Durable
}
