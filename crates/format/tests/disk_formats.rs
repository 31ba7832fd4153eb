//! The bytes of version 1 of every disk structure, frozen; and decoders that survive anything.
//!
//! To freeze a new version: `ATOLL_WRITE_GOLDEN=1 cargo test -p atoll-format --test disk_formats`,
//! under a new name; a file that exists is never rewritten.

use atoll_format::chunk::{
    BlockEntry, CheckpointHead, ChunkEntry, JOURNAL_HEAD_LEN, JournalHead, JournalKind,
    JournalRecord, NONE, PAGE_LEN, PageHead, RawChunkEntry, check_page, encode_page, page_entry,
};
use atoll_format::id::{ClusterId, ComponentId, DiskId, GroupId, HostId, Seq};
use atoll_format::log::{
    BatchHead, DESCRIPTOR_LEN, Descriptor, FLAG_FORCED, Footer, FooterBuilder, HEAD_LEN, LogKind,
    SegmentHeader, decode_batch, header_blocks, peek_batch, seal_batch,
};
use atoll_format::op::BlockState;
use atoll_format::superblock::{Region, RegionKind, Shape, Superblock};
use std::path::PathBuf;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const SALT: u64 = 0x1122_3344_5566_7788;
const BLOCK: usize = 4096;

/// Lines of 32 bytes in hexadecimal; a run of equal lines is written once with a count.
fn hex(bytes: &[u8]) -> String {
    let lines: Vec<String> = bytes
        .chunks(32)
        .map(|line| line.iter().map(|b| format!("{b:02x}")).collect::<String>())
        .collect();
    let mut text = String::new();
    let mut i = 0;
    while i < lines.len() {
        let same = lines[i..].iter().take_while(|l| **l == lines[i]).count();
        text += &lines[i];
        if same > 1 {
            text += &format!(" x{same}");
        }
        text += "\n";
        i += same;
    }
    text
}

fn frozen(name: &str, bytes: &[u8]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.hex"));
    let text = hex(bytes);
    if std::env::var_os("ATOLL_WRITE_GOLDEN").is_some() && !path.exists() {
        std::fs::write(&path, &text).expect("golden file");
    }
    let known = std::fs::read_to_string(&path).expect("golden file");
    assert!(text == known, "{name} has changed; version 1 is frozen\n{text}");
}

fn label() -> Superblock {
    Superblock {
        compat: 1 << 40,
        ro_compat: 0,
        incompat: 0,
        cluster: ClusterId(0x0101),
        host: HostId(0x0202),
        group: GroupId(0x0303),
        disk: DiskId(0x0405),
        shape: Shape::AllFlash,
        index: 1,
        disks: vec![DiskId(0x0404), DiskId(0x0405)],
        generation: 3,
        size_bytes: 1 << 30,
        segment_len: 4 << 20,
        salt: SALT,
        created_ms: 1_763_640_000_000,
        entries_max: 70_000,
        components_max: 1_024,
        regions: vec![
            Region { kind: RegionKind::Pages, at: 1 << 20, len: 16 << 20 },
            Region { kind: RegionKind::Slots, at: 17 << 20, len: 900 << 20 },
        ],
    }
}

fn batch() -> (BatchHead, Vec<u8>) {
    let mut one = Descriptor::new_zeroed();
    one.component = 3.into();
    one.kind = LogKind::Write as u8;
    one.block = 700.into();
    one.blocks = 1.into();
    one.epoch = 2.into();
    one.seq = 99.into();
    one.crc = 0xdead_beef.into();
    one.number = 17.into();
    one.client = 0xc11e.into();
    one.settled_below = 16.into();
    let mut many = one;
    many.flags = FLAG_FORCED.into();
    many.block = 512.into();
    many.blocks = 3.into();
    many.payload_at = 1.into();
    many.crc = 0.into();
    let mut fence = Descriptor::new_zeroed();
    fence.component = 3.into();
    fence.kind = LogKind::Fence as u8;
    fence.epoch = 5.into();
    let ops = [one, many, fence];
    let crcs: [u32; 3] = [7, 8, 9];
    let mut head = BatchHead {
        salt: SALT,
        generation: 2,
        seq: 77,
        at: 0x10_2000,
        segment: 3,
        durable_to: 76,
        journal_to: 5,
        prev_crc: 0xabcd,
        ops: 3,
        crc_count: 3,
        header_blocks: header_blocks(3, 3),
        payload_blocks: 4,
        head_crc: 0,
    };
    let mut bytes = vec![0; head.header_blocks as usize * BLOCK];
    let list = HEAD_LEN + ops.len() * DESCRIPTOR_LEN;
    bytes[HEAD_LEN..list].copy_from_slice(ops.as_bytes());
    for (to, crc) in bytes[list..].chunks_exact_mut(4).zip(crcs) {
        to.copy_from_slice(&crc.to_le_bytes());
    }
    head.head_crc = seal_batch(&head, &mut bytes);
    (head, bytes)
}

fn segment() -> SegmentHeader {
    SegmentHeader {
        salt: SALT,
        generation: 2,
        segment: 3,
        at: 0x10_0000,
        journal_to: 5,
        first_batch: 70,
    }
}

fn footer() -> Vec<u8> {
    let (head, bytes) = batch();
    let mut builder = FooterBuilder::default();
    builder.push(&head, &bytes);
    builder.encode(SALT, 3, 0x50_0000)
}

fn page_head() -> PageHead {
    PageHead { group: 0x0303, component: ComponentId(0xc0), chunk: 9, page: 44, generation: 6 }
}

fn page() -> (Vec<u8>, u32) {
    let mut blocks = vec![BlockEntry::default(); 256];
    blocks[0] = BlockEntry { crc: 0x1234_5678, seq: Seq(0x0123_4567_89ab), state: BlockState::Raw };
    blocks[1] = BlockEntry { crc: 0, seq: Seq(5), state: BlockState::Zero };
    blocks[255] = BlockEntry { crc: 0, seq: Seq(6), state: BlockState::Bad };
    let mut bytes = vec![0; PAGE_LEN];
    let crc = encode_page(&page_head(), &blocks, &mut bytes);
    (bytes, crc)
}

fn journal() -> Vec<u8> {
    let mut record = JournalRecord::new_zeroed();
    record.kind = JournalKind::Blocks as u8;
    record.state = BlockState::Raw as u8;
    record.count = 1.into();
    record.component = 3.into();
    record.block = 700.into();
    record.crc = 0xfeed.into();
    record.seq = 99.into();
    let mut chunk = record;
    chunk.kind = JournalKind::Chunk as u8;
    chunk.block = 2.into();
    chunk.slot = 31.into();
    let head = JournalHead {
        salt: SALT,
        seq: 12,
        at: 0x20_0000,
        trim_below: 3,
        log_to: 76,
        prev_crc: 0x55,
        body_len: 64,
        next_local: 4,
        crc: 0,
    };
    let mut bytes = vec![0; head.len_bytes() as usize];
    bytes[JOURNAL_HEAD_LEN..JOURNAL_HEAD_LEN + 32].copy_from_slice(record.as_bytes());
    bytes[JOURNAL_HEAD_LEN + 32..JOURNAL_HEAD_LEN + 64].copy_from_slice(chunk.as_bytes());
    head.seal(&mut bytes);
    bytes
}

fn checkpoint() -> CheckpointHead {
    CheckpointHead {
        salt: SALT,
        generation: 8,
        at: 0x30_0000,
        journal_seq: 13,
        journal_at: 0x20_1000,
        journal_crc: 0x66,
        trim_below: 3,
        log_to: 76,
        replay_after: 70,
        next_local: 4,
        components: 2,
        body_len: 4_321,
        body_crc: 0x77,
    }
}

fn entry() -> ChunkEntry {
    ChunkEntry {
        slot: 31,
        page: 44,
        page_generation: 6,
        page_crc: 0x99,
        max_seq: Seq(1 << 47),
        ..ChunkEntry::default()
    }
}

#[test]
fn the_bytes_of_version_1_never_change() {
    frozen("superblock.v1", &label().encode(0));
    frozen("log-segment.v1", &segment().encode());
    frozen("log-batch.v1", &batch().1);
    frozen("log-footer.v1", &footer());
    frozen("chunk-page.v1", &page().0);
    frozen("chunk-entry.v1", entry().encode().as_bytes());
    frozen("journal-batch.v1", &journal());
    frozen("checkpoint.v1", &checkpoint().encode());
}

#[test]
fn what_was_written_is_read() {
    assert_eq!(Superblock::decode(&label().encode(0), 0), Ok(label()));
    assert_eq!(SegmentHeader::decode(&segment().encode(), 0x10_0000, SALT), Ok(segment()));
    let (bytes, crc) = page();
    assert_eq!(check_page(&bytes, &page_head(), crc), Ok(()));
    assert_eq!(page_entry(&bytes, 0).seq, Seq(0x0123_4567_89ab));
    assert_eq!(page_entry(&bytes, 255).state, BlockState::Bad);
    assert!(check_page(&bytes, &PageHead { chunk: 10, ..page_head() }, crc).is_err());
    assert!(check_page(&bytes, &PageHead { generation: 5, ..page_head() }, crc).is_err());
    assert!(check_page(&bytes, &page_head(), crc ^ 1).is_err());
    assert_eq!(entry().encode().decode(), Ok(entry()));
    let uniform = ChunkEntry { base_seq: Seq(4), base_zero: true, ..ChunkEntry::default() };
    assert_eq!(uniform.encode().decode(), Ok(uniform));
    assert_eq!(uniform.slot, NONE);
    let bytes = journal();
    let (head, records) = JournalHead::decode(&bytes, 0x20_0000, SALT).expect("valid");
    assert_eq!((head.seq, records.len()), (12, 64));
    assert_eq!(CheckpointHead::decode(&checkpoint().encode(), 0x30_0000, SALT), Ok(checkpoint()));
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 29)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// Everything that reads bytes from a device, on these bytes.
fn decode_all(bytes: &[u8]) {
    let _ = Superblock::decode(bytes, 0);
    let _ = SegmentHeader::decode(bytes, 0x10_0000, SALT);
    let _ = peek_batch(bytes, 0x10_2000, SALT);
    if let Ok(view) = decode_batch(bytes, 0x10_2000, SALT) {
        for op in view.ops.iter().filter(|op| op.kind == LogKind::Write as u8) {
            assert_eq!(view.crcs(op).count(), usize::from(op.blocks.get()));
        }
    }
    let at = bytes.len().saturating_sub(BLOCK);
    if let Ok(footer) = Footer::decode(&bytes[at..], 0x4f_f000, SALT) {
        let _ = footer.batches(&bytes[..at], SALT);
    }
    if check_page(bytes, &page_head(), 0).is_ok() {
        for index in 0..256 {
            page_entry(bytes, index);
        }
    }
    let _ = JournalHead::decode(bytes, 0x20_0000, SALT);
    let _ = CheckpointHead::decode(bytes, 0x30_0000, SALT);
    if let Ok((raw, _)) = RawChunkEntry::ref_from_prefix(bytes) {
        let _ = raw.decode();
    }
}

#[test]
fn no_bytes_make_a_decoder_panic() {
    let good: [Vec<u8>; 7] = [
        label().encode(0).to_vec(),
        segment().encode().to_vec(),
        batch().1,
        footer(),
        page().0,
        journal(),
        checkpoint().encode().to_vec(),
    ];
    let mut rng = Rng(1);
    for i in 0..100_000 {
        let mut bytes = good[i % good.len()].clone();
        // Mostly in the heads, where the numbers are.
        for _ in 0..1 + rng.below(4) {
            let at = if rng.below(4) == 0 { rng.below(bytes.len()) } else { rng.below(320) };
            bytes[at] = match rng.below(4) {
                0 => 0,
                1 => 0xff,
                2 => bytes[at] ^ (1 << rng.below(8)),
                _ => rng.next() as u8,
            };
        }
        if rng.below(8) == 0 {
            let len = rng.below(bytes.len() + 1);
            bytes.truncate(len);
        }
        decode_all(&bytes);
    }
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..rng.below(600)).map(|_| rng.next() as u8).collect();
        decode_all(&bytes);
    }
}

#[test]
fn absurd_numbers_under_a_right_checksum_are_refused() {
    let mut rng = Rng(2);
    let (head, good) = batch();
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..1 + rng.below(3) {
            let at = HEAD_LEN + rng.below(3 * DESCRIPTOR_LEN + 12);
            bytes[at] = rng.next() as u8;
        }
        // Sealed again: the checksum is right, the descriptors are not.
        bytes[..HEAD_LEN].fill(0);
        seal_batch(&head, &mut bytes);
        accepted += u32::from(decode_batch(&bytes, 0x10_2000, SALT).is_ok());
        decode_all(&bytes);
    }
    assert!(accepted > 0 && accepted < 20_000, "{accepted}");
    for size_bytes in [0, 1, 1 << 20, (1 << 30) + 1, u64::MAX - 4095] {
        let odd = Superblock { size_bytes, regions: vec![], ..label() };
        let fits = size_bytes == u64::MAX - 4095;
        assert_eq!(Superblock::decode(&odd.encode(0), 0).is_ok(), fits, "{size_bytes}");
    }
    for (at, len) in [(0, 4096), (u64::MAX - 4095, 4096), (1 << 20, u64::MAX - 4095), (1 << 20, 0)]
    {
        let regions = vec![Region { kind: RegionKind::Log, at, len }];
        let odd = Superblock { regions, ..label() };
        assert!(Superblock::decode(&odd.encode(0), 0).is_err(), "{at} {len}");
    }
}
