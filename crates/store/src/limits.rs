//! Every bound of the store, with the arithmetic behind it.

use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, CHUNK};
use atoll_world::Nanos;
use atoll_world::components::COPY_TICKETS_MAX;

/// Smallest device that is accepted.
pub const DEVICE_MIN: u64 = 1 << 30;
/// Devices are smaller: blocks of a device have 32-bit numbers.
pub const DEVICE_END: u64 = (u32::MAX as u64 + 1) * BLOCK;
/// Segments of the log are this long, and shorter only where fewer than [`SEGMENTS_WANTED`] fit.
pub const SEGMENT_MAX: u64 = 64 << 20;
/// Shortest segment: four of the largest batches.
pub const SEGMENT_MIN: u64 = 4 << 20;
/// So many segments make trimming smooth: one is 1/16 of the log.
pub const SEGMENTS_WANTED: u64 = 16;
/// With fewer, sealing and trimming would stall each other.
pub const SEGMENTS_MIN: u64 = 4;
/// Largest log by default: 32 GiB hold 60 s of 500 MB/s.
pub const LOG_MAX_DEFAULT: u64 = 32 << 30;

/// Payload blocks in one batch: 2 MiB, where a durable write costs about what its bytes cost.
pub const BATCH_BLOCKS: u32 = 512;
/// CRCs in one batch: those of the payload and of 16 placed chunks, 18 KiB.
pub const BATCH_CRCS: u32 = BATCH_BLOCKS + 16 * BLOCKS_PER_CHUNK;
/// Operations in one batch: their descriptors are 32 KiB.
pub const BATCH_OPS: u32 = 512;
/// Committed hints that ride in one batch.
pub const BATCH_HINTS: usize = 64;
/// Without new operations for so long, the last batch is covered by an empty one, so that the
/// log itself proves it durable.
pub const MARKER_AFTER: Nanos = Nanos::from_ms(250);
/// Bytes of a footer that are written together: a batch behind them waits for no more.
pub const FOOTER_PIECE: usize = 64 << 10;
/// Operations waiting for the log. Callers bound what is in flight; this stops one that does not.
pub const QUEUE_OPS_MAX: usize = 65_536;

/// Components of one group; scaled down on small devices.
pub const COMPONENTS_MAX: u32 = 4_096;
/// Bytes of the checkpoint set aside per component for their records together: clients and
/// operations above committed of an ordinary one take 200 to 2 000.
pub const COMPONENT_RECORD_BYTES: u64 = 16_384;
/// What one operation can add to its component's record: itself (40), a new client (24 and 8).
pub const RECORD_GROWTH: u64 = 72;
/// Clients that are remembered per component; the one used longest ago is forgotten.
pub const CLIENTS_MAX: usize = 64;
/// A client's numbers above its settled ones.
pub const CLIENT_NUMBERS_MAX: u32 = 4_096;
/// Operations above committed, per component: `OPS_IN_FLIGHT_MAX` of the format.
pub const UNCOMMITTED_MAX: usize = atoll_format::units::OPS_IN_FLIGHT_MAX as usize;

/// Metadata journal per TiB of capacity.
pub const JOURNAL_PER_TIB: u64 = 128 << 20;
/// Smallest journal: four of its largest batches; 64 MiB on devices of 16 GiB and more.
pub const JOURNAL_MIN: u64 = 16 << 20;
/// See [`JOURNAL_MIN`].
pub const JOURNAL_MIN_LARGE: u64 = 64 << 20;

/// Blocks moved in one destage round: 8 MiB in memory.
pub const ROUND_BLOCKS: usize = 2_048;
/// Chunks of one destage round: random blocks lie in as many.
pub const ROUND_CHUNKS: usize = ROUND_BLOCKS;
/// A round takes all that begins within so many blocks of the log, and goes on behind these if that
/// was little: what it takes is read together.
pub const ROUND_SPAN: u32 = ROUND_BLOCKS as u32 - NOTE_SPAN;
/// Blocks of a chunk that lie this close together in the log are noted once; at least twice what
/// one operation brings.
pub const NOTE_SPAN: u32 = 2 * BLOCKS_PER_CHUNK;
/// Device requests of destage, scrub and checkpoint in flight.
pub const BACKGROUND_DEPTH: usize = 16;
/// Reads of destage in flight while guests write.
pub const PACED_DEPTH: usize = 2;
/// Blocks that destage moves per second at least, once it has begun.
pub const DESTAGE_PER_SECOND_MIN: u64 = 256;
/// How often destage looks whether writers have become faster.
pub const PACE_LOOK: Nanos = Nanos::from_ms(50);
/// Over which time the speed of writers is taken.
pub const INCOMING_WINDOW: Nanos = Nanos::from_ms(100);
/// Writes of destage that are begun together while guests write: few enough that an operation
/// behind them does not wait long, also at a device that ends everything at once. With 32 the
/// longest waits at half load were a third longer.
pub const PACED_WRITES: usize = 8;
/// And while it does not pause: half a millisecond of a fast device.
pub const BACKGROUND_WRITES: usize = 32;
/// Log reads of destage are joined over gaps of so many blocks: to read these takes less than
/// another request does.
pub const READ_GAP_BLOCKS: u32 = 8;
/// What is joined is at most so many times what is wanted: as long as one block of it is on its
/// way home all of it stays in memory.
pub const READ_WASTE: u32 = 4;
/// And up to so many blocks: what guests read or write behind one waits for 256 KiB.
pub const READ_BLOCKS: u32 = 64;
/// A block of the log that the device does not give is asked for so often by itself before destage
/// takes it for bad: one read in 500 that fails where the medium is good would lose one block of a
/// failed read of [`READ_BLOCKS`] in eight with one, and one in a billion with four.
pub const READ_TRIES: u32 = 4;
/// The pause before each but the first; in destage of a round, not of a block. Pages likewise.
pub const READ_PAUSE: Nanos = Nanos::from_ms(100);
/// Pauses that recovery makes for one device: a device with much damage holds the start of its
/// group up by 10 s at most.
pub const READ_PAUSES_MAX: u32 = 100;

/// The log may be three eighths full before destage starts while guests write: bursts go to the log
/// alone, and blocks that are overwritten soon never leave it. Of 255.
pub const FILL_DESTAGE: u8 = 96;
/// From here on destage does not pause: five eighths.
pub const FILL_URGENT: u8 = 160;
/// From here on writers are slowed: 72 %.
pub const FILL_SLOW: u8 = 184;
/// Largest delay of one write.
pub const DELAY_MAX: Nanos = Nanos::from_ms(100);
/// That writers are slowed is told again only after none was for so long.
pub const SLOWED_QUIET: Nanos = Nanos::from_secs(60);
/// Without writes for so long, the log is destaged to its end.
pub const IDLE_DESTAGE: Nanos = Nanos::from_secs(2);
/// Without writes for so long, a checkpoint is taken.
pub const IDLE_CHECKPOINT: Nanos = Nanos::from_secs(60);
/// So long after the scrub found a page damaged that memory has, a checkpoint writes it anew, with
/// those that it has found since.
pub const REWRITE_AFTER: Nanos = Nanos::from_secs(5);
/// How often the scrub asks for a checkpoint first where too much is dirty for one more page; it
/// finds the page again in its next pass.
pub const REWRITE_TRIES: u32 = 10;
/// Between two of them.
pub const REWRITE_PAUSE: Nanos = Nanos::from_ms(500);

/// Processor time of one batch and of one operation or block, for the simulator's model of it:
/// measured order of magnitude, CRC-32C of 4 KiB included.
pub const CPU_BATCH: Nanos = Nanos(2_000);
/// See [`CPU_BATCH`].
pub const CPU_BLOCK: Nanos = Nanos(500);

/// Readers in order that are known at once.
pub const STREAMS: usize = 4;
/// And those that may be about to be.
pub const STREAM_CANDIDATES: usize = 16;
/// So many requests one behind the other are in order: two are chance.
pub const IN_ORDER: u32 = 3;
/// Blocks of the longest request that is helped: 256 KiB. Devices are about as fast with longer
/// ones as they are with several.
pub const READAHEAD_HELPED_MAX: u32 = 64;
/// Blocks read ahead at first; then twice as many each time.
pub const READAHEAD_BLOCKS_FIRST: u32 = 16;
/// Blocks read ahead together at most: 512 KiB, of a fast device half a millisecond. The next are
/// asked for when half of them are left.
pub const READAHEAD_BLOCKS: u32 = 128;
/// Blocks of one request made ahead.
pub const READAHEAD_REQUEST: u32 = READAHEAD_HELPED_MAX;
/// Such requests, made or in memory, of one device: 4 MiB.
pub const READAHEAD_REQUESTS: usize = 16;

/// A device that does not answer for so long has failed.
pub const IO_DEADLINE: Nanos = Nanos::from_secs(5);
/// How often the sizes of the devices are looked at: one system call each.
pub const SIZES_EVERY: Nanos = Nanos::from_secs(5);
/// What is set aside for an announced append is kept for so long.
pub const HOLD: Nanos = Nanos::from_secs(10);
/// Reads that find their place changed under them try again; each change is an operation that
/// became durable or a destage round, so a few are enough.
pub const READ_RETRIES: usize = 16;
/// Blocks remembered as bad per component; more are found again when they are read.
pub const BAD_BLOCKS_MAX: usize = 65_536;
/// Events kept until they are taken.
pub const EVENTS_MAX: usize = 1_024;

/// Memory of the page cache, by default, per TiB of capacity.
pub const CACHE_PER_TIB: u64 = 128 << 20;
/// Smallest page cache.
pub const CACHE_MIN: u64 = 4 << 20;
/// Smallest page cache by default: the pages of 8 GiB. A read whose page is not in memory costs
/// the device two.
pub const CACHE_DEFAULT_MIN: u64 = 32 << 20;
/// Dirty block records in memory per TiB (16 bytes each: 64 MiB).
pub const OVERLAY_PER_TIB: u64 = 4 << 20;
/// Smallest bound of dirty block records: 1 MiB.
pub const OVERLAY_MIN: u64 = 64 << 10;
/// The least of both in simulation, now and then: pages and blocks.
pub const CACHE_SMALL: usize = 256 << 10;
/// As above.
pub const OVERLAY_SMALL: usize = 4 << 10;
/// Bytes of memory of one block in the log's index.
pub const INDEX_ENTRY_BYTES: u64 = 16;
/// And what its chunk's list of them may take for it: one that has just grown is half empty.
pub const INDEX_BLOCK_BYTES: u64 = 2 * INDEX_ENTRY_BYTES;
/// Bytes of memory of a note that a chunk has something at that place of the log; at most one for
/// each block of it.
pub const NOTE_BYTES: u64 = 12;
/// Bytes of memory of a chunk that has blocks in the log or dirty, beside those blocks: its entry
/// in a tree whose nodes may be little more than half full.
pub const HOT_CHUNK_BYTES: u64 = 272;
/// What a placed chunk counts for in the log's index: its 256 CRCs and their head.
pub const PLACED_WEIGHT: u64 = (4 * BLOCKS_PER_CHUNK as u64 + 16) / INDEX_ENTRY_BYTES;
/// What a placed chunk counts for in a destage round: 256 journal records, and no bytes moved.
pub const PLACED_BLOCKS: usize = 64;
/// Bytes of memory of one dirty block record.
pub const OVERLAY_ENTRY_BYTES: u64 = 16;
/// Bytes of memory of one chunk table entry.
pub const CHUNK_ENTRY_BYTES: u64 = 32;

/// Memory of a group of that capacity and log when everything is full at once, and every chunk
/// has blocks in the log or dirty: the formula of `docs/formats.md`.
pub fn memory_max(capacity_bytes: u64, log_bytes: u64) -> u64 {
    let per_tib = |amount: u64| ((u128::from(amount) * u128::from(capacity_bytes)) >> 40) as u64;
    let chunks = capacity_bytes / CHUNK;
    chunks * (CHUNK_ENTRY_BYTES + HOT_CHUNK_BYTES)
        + per_tib(CACHE_PER_TIB).max(CACHE_DEFAULT_MIN)
        + per_tib(OVERLAY_PER_TIB).max(OVERLAY_MIN) * OVERLAY_ENTRY_BYTES
        + log_bytes / BLOCK * (INDEX_BLOCK_BYTES + NOTE_BYTES)
        + (chunks + u64::from(pages_for(chunks as u32))) / 8
}

/// Slots kept back when the group is full: 1 %, 64 on ordinary devices.
pub fn reserve_slots(slots: u32) -> u32 {
    (slots / 100).max((slots / 16).min(64))
}

/// Chunk table entries for so many slots: three tombstones for each slot.
pub fn entries_for(slots: u64) -> u64 {
    4 * slots + 65_536
}

/// Pages that may be dirty, and so twice on the device, at once.
pub fn dirty_pages_max(slots: u32) -> u32 {
    (slots / 2).max(1_024)
}

/// Pages for so many slots: one each, a quarter more for chunks without a slot, and the dirty
/// ones twice.
pub fn pages_for(slots: u32) -> u32 {
    slots + slots / 4 + 1_024 + dirty_pages_max(slots)
}

const _: () = {
    assert!(SEGMENT_MIN >= 4 * (BATCH_BLOCKS as u64 / 2) * BLOCK);
    assert!(BATCH_BLOCKS >= BLOCKS_PER_CHUNK);
    assert!(BATCH_OPS >= BLOCKS_PER_CHUNK + COPY_TICKETS_MAX as u32);
    assert!(BATCH_OPS + BATCH_HINTS as u32 <= atoll_format::log::BATCH_OPS_MAX);
    assert!(BATCH_CRCS <= atoll_format::log::BATCH_CRCS_MAX);
    assert!(BATCH_BLOCKS <= atoll_format::log::BATCH_BLOCKS_MAX);
    assert!(FILL_DESTAGE < FILL_URGENT && FILL_URGENT < FILL_SLOW);
    assert!(ROUND_BLOCKS >= BLOCKS_PER_CHUNK as usize);
    assert!(DEVICE_MIN > 16 * CHUNK + JOURNAL_MIN);
    assert!(JOURNAL_MIN >= 4 * atoll_format::chunk::JOURNAL_BATCH_MAX as u64);
    // What an operation brings, and what lies less than this behind a note, is in one window.
    assert!(NOTE_SPAN >= 2 * BLOCKS_PER_CHUNK && ROUND_SPAN > NOTE_SPAN);
    // Bits of a client's numbers are written in words.
    assert!(CLIENT_NUMBERS_MAX.is_multiple_of(64));
    // One block's record in the journal, its chunk's and one of a whole chunk: half a batch.
    assert!(ROUND_BLOCKS * 3 * 32 <= atoll_format::chunk::JOURNAL_BATCH_MAX / 2);
    assert!(PLACED_BLOCKS * 4 >= BLOCKS_PER_CHUNK as usize);
    assert!(
        READAHEAD_REQUEST >= READAHEAD_HELPED_MAX && READAHEAD_BLOCKS_FIRST <= READAHEAD_BLOCKS
    );
    assert!(PACED_WRITES <= BACKGROUND_WRITES && PACED_DEPTH <= BACKGROUND_DEPTH);
};

#[cfg(test)]
mod tests {
    use super::memory_max;

    /// What the document says of whole disks is what its formula gives.
    #[test]
    fn the_documented_figures_are_those_of_the_formula() {
        let text = include_str!("../../../docs/formats.md");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let tib = ("1 TiB with its default log (32 GiB) takes ", 1 << 40, 32 << 30);
        let test = ("16 GiB of test disk with a log of 800 MiB take ", 16 << 30, 800 << 20);
        for (what, capacity_bytes, log_bytes) in [tib, test] {
            let mib = memory_max(capacity_bytes, log_bytes).div_ceil(1 << 20);
            assert!(text.contains(&format!("{what}{mib} MiB")), "not '{what}{mib} MiB'");
        }
    }
}
