//! What a store promises while nothing goes wrong, and which requests it refuses.

mod common;

use atoll_format::id::{ClientId, ComponentId, Epoch, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, BlockState, BlockTag, OpKind};
use atoll_store::{Store, check};
use atoll_world::Nanos;
use atoll_world::components::{Components, Copy, CopyBlock, SetTickets, StoreError};
use common::{
    MIB, Machine, Rng, content, formatted, formatted_with_log, make, plain_op, versions, write_op,
};

const ID: ComponentId = ComponentId(1);

#[test]
fn what_was_written_is_read_from_the_log_from_home_and_after_a_restart() {
    for devices in [1, 3] {
        let m = Machine::new(1, &formatted(devices));
        let store = m.store();
        m.world.run(async {
            let session = make(&store, 1, 1_000).await.expect("made");
            store.append(ID, session, write_op(1, 5, &[101, 102, 103])).await.expect("written");
            store.append(ID, session, write_op(2, 6, &[104])).await.expect("written");
            store.append(ID, session, plain_op(OpKind::Zero, 3, 7, 1)).await.expect("zeroed");
            assert_eq!(versions(&store, 1, 4, 5).await.expect("read"), [0, 101, 104, 0, 0]);
        });
        store.audit().expect("adds up");
        m.world.pass(Nanos::from_secs(5));
        store.audit().expect("adds up");
        assert!(store.counters().destaged_bytes == 8192, "{:?}", store.counters());
        m.world.run(async {
            assert_eq!(versions(&store, 1, 4, 5).await.expect("read"), [0, 101, 104, 0, 0]);
        });
        m.world.run(store.close());
        let images: Vec<_> = m.disks.iter().map(|d| d.image()).collect();
        let m = Machine::new(2, &images);
        let report = m.world.run(check(&m.world, m.disks.clone())).expect("runs").expect("opens");
        assert_eq!(report.faults, Vec::<String>::new());
        assert_eq!((report.blocks_home, report.slots_used, report.blocks_bad), (2, 1, 0));
        let store = m.store();
        m.world.run(async {
            assert_eq!(versions(&store, 1, 4, 5).await.expect("read"), [0, 101, 104, 0, 0]);
            let tags = store.tags(ID, 0).await.expect("tags");
            assert_eq!(tags[5].seq, Seq(1));
            assert_eq!(tags[6].seq, Seq(2));
            assert_eq!(tags[7], BlockTag { seq: Seq(3), state: BlockState::Zero, crc: 0 });
            assert_eq!(tags[8], BlockTag::default());
            assert_eq!(tags[5].crc, atoll_format::checksum::crc(&content(101)));
        });
        assert_eq!(store.chunks_since(ID, Seq(2), 0, 9), Ok(vec![(0, Seq(3))]));
        assert_eq!(store.chunks_since(ID, Seq(3), 0, 9), Ok(vec![]));
    }
}

#[test]
fn who_reads_in_order_finds_the_next_blocks_in_memory_and_always_the_newest() {
    let m = Machine::new(1, &formatted(2));
    let store = m.store();
    let ids: Vec<u64> = (1..=600).collect();
    let session = m.world.run(make(&store, 1, 1_000)).expect("runs").expect("made");
    let write = async |seq: u64, first: u32, ids: &[u64]| {
        store.append(ID, session, write_op(seq, first, ids)).await.expect("written");
    };
    m.world.run(async {
        for (seq, some) in (1..).zip(ids.chunks(64)) {
            write(seq, (seq as u32 - 1) * 64, some).await;
        }
    });
    m.world.pass(Nanos::from_secs(5));
    let read = |from: u32, to: u32, step: u16| {
        let before = (m.world.ops(), store.counters());
        let mut got = Vec::new();
        m.world.run(async {
            for start in (from..to).step_by(usize::from(step)) {
                got.extend(versions(&store, 1, start, step).await.expect("read"));
            }
        });
        let (now, then) = (store.counters(), before.1);
        assert_eq!(now.blocks_read - then.blocks_read, u64::from(to - from));
        (got, m.world.ops() - before.0, now.blocks_read_ahead - then.blocks_read_ahead)
    };
    // No step goes over the end of a chunk: 256 is a multiple of each. Those are missing that come
    // before the first request ahead is made, or before the world makes the next.
    for (to, step, least) in [(600, 1, 585), (600, 2, 576), (596, 4, 556), (576, 64, 256)] {
        let (got, requests, ahead) = read(0, to, step);
        assert_eq!(got, ids[..to as usize]);
        assert!(ahead >= least, "steps of {step}: {ahead} of {to} blocks");
        assert!(requests < 25, "steps of {step}: {requests} requests to the device");
    }
    let (_, requests, ahead) = read(0, 512, 256);
    assert!((requests, ahead) == (2, 0), "large ones need no help: {requests}, {ahead}");

    // The reader has come to block 300; some of what lies before it goes home anew.
    assert_eq!(read(0, 300, 1).0, ids[..300]);
    m.world.run(write(11, 310, &[910, 911, 912]));
    let (got, ..) = read(300, 312, 1);
    assert_eq!(got[..10], ids[300..310]);
    assert_eq!(got[10..], [910, 911], "from the log");
    m.world.pass(Nanos::from_secs(5));
    let (got, _, ahead) = read(312, 330, 1);
    assert_eq!(got[0], 912, "at home by now");
    assert_eq!(got[1..], ids[313..330]);
    assert!(ahead > 0);
    m.world.run(write(12, 335, &[935]));
    m.world.pass(Nanos::from_secs(5));
    let (got, _, ahead) = read(330, 340, 1);
    assert_eq!(got[5], 935);
    assert_eq!(ahead, 0, "what was read with the old block 335 is not even looked at");
}

#[test]
fn requests_out_of_epoch_session_order_or_range_are_refused() {
    let m = Machine::new(1, &formatted(1));
    let store = m.store();
    m.world.run(async {
        let session = make(&store, 1, 300).await.expect("made");
        let append = |session, op| store.append(ID, session, op);
        append(session, write_op(5, 0, &[1])).await.expect("written");
        let again = append(session, write_op(5, 0, &[2])).await;
        assert_eq!(again, Err(StoreError::Session { open: session }));
        for (start, count) in [(299, 2), (255, 2), (300, 1), (0, 0)] {
            let op = plain_op(OpKind::Zero, 6, start, count);
            assert!(matches!(append(session, op).await, Err(StoreError::Malformed(_))), "{start}");
        }
        let mut damaged = write_op(6, 0, &[1, 2]);
        damaged.crcs[1] ^= 1;
        assert_eq!(append(session, damaged).await, Err(StoreError::Damaged { block: 1 }));
        let mut short = write_op(6, 0, &[1, 2]);
        short.payload.pop();
        assert!(matches!(append(session, short).await, Err(StoreError::Malformed(_))));

        let later = Session { epoch: Epoch(1), attach: 2 };
        store.attach(ID, later).await.expect("attached");
        assert_eq!(
            append(session, write_op(7, 0, &[1])).await,
            Err(StoreError::Session { open: later })
        );
        append(later, write_op(4, 0, &[3])).await.expect("a new session may begin lower");
        let promise = store.fence(ID, Epoch(9)).await.expect("fenced");
        assert_eq!((promise.fenced, promise.newest), (Epoch(9), Seq(5)));
        let fenced = Err(StoreError::Fenced { fenced: Epoch(9) });
        assert_eq!(append(later, write_op(8, 0, &[1])).await, fenced);
        assert_eq!(store.fence(ID, Epoch(8)).await, fenced.clone().map(|()| promise));
        assert_eq!(store.attach(ID, later).await, fenced.map(|()| promise));
        store.fence(ID, Epoch(9)).await.expect("the same again");
        assert_eq!(versions(&store, 1, 0, 1).await, Ok(vec![3]));
        assert_eq!(store.status(ComponentId(2)), Err(StoreError::NoComponent(ComponentId(2))));
    });
}

#[test]
fn what_is_being_brought_up_to_date_says_so_until_it_is_complete_whatever_happens() {
    let session = |attach| Session { epoch: Epoch(1), attach };
    let mut images = formatted(1);
    let mut rng = Rng(7);
    let newest = std::cell::Cell::new(Seq(0));
    // Power is lost at once, after the log has gone home, and after a checkpoint.
    for (round, pass) in (0u32..).zip([0, 5, 70]) {
        let at = |step| session(2 + 10 * round + step);
        let next = |attach: Session, images: &[_], above: Option<u64>, rng: &mut _| {
            let m = Machine::new(u64::from(round), images);
            let store = m.store();
            m.world.run(async {
                if !store.list().iter().any(|c| c.id == ID) {
                    make(&store, 1, 600).await.expect("made");
                }
                if attach == at(4) {
                    let open = store.status(ID).expect("there").session;
                    let old = store.complete(ID, attach, Seq(0)).await;
                    assert_eq!(old, Err(StoreError::Session { open }), "not in another one");
                    newest.set(Seq((1 << 40) + u64::from(round)));
                    store.complete(ID, open, newest.get()).await.expect("complete");
                } else {
                    store.open_session(ID, attach, above.map(Seq)).await.expect("attached");
                }
            });
            m.world.pass(Nanos::from_secs(pass));
            let images = m.crash(rng);
            let m = Machine::new(99, &images);
            let status = m.store().status(ID).expect("there");
            assert_eq!(status.promise.newest, newest.get(), "all up to that has come");
            (status.incomplete, images)
        };
        // A session for something else changes nothing; the lowest stays.
        let steps = [
            (Some(70), Some(70)),
            (None, Some(70)),
            (Some(50), Some(50)),
            (Some(90), Some(50)),
            (None, None),
        ];
        for (step, (above, expected)) in (0..).zip(steps) {
            let (incomplete, after) = next(at(step), &images, above, &mut rng);
            assert_eq!(incomplete.map(|seq| seq.0), expected, "{pass} s, step {step}");
            images = after;
        }
    }
}

#[test]
fn uncommitted_operations_and_tickets_outlive_restarts_and_trimming() {
    let m = Machine::new(1, &formatted(1));
    let store = m.store();
    m.world.run(async {
        let session = make(&store, 1, 10_000).await.expect("made");
        make(&store, 2, 10_000).await.expect("made");
        for seq in 1..=10 {
            let mut op = write_op(seq, seq as u32, &[seq]);
            op.committed = Seq(seq.saturating_sub(5));
            store.append(ID, session, op).await.expect("written");
        }
        // Component 2 wraps the log several times.
        let session = Session { epoch: Epoch(1), attach: 1 };
        for round in 0..80u64 {
            let ids: Vec<u64> = (1..=256).map(|i| round * 1_000 + i).collect();
            let op = write_op(round + 1, (round as u32 % 30) * 256, &ids);
            store.append(ComponentId(2), session, op).await.expect("written");
        }
    });
    store.audit().expect("adds up");
    let images: Vec<_> = m.disks.iter().map(|d| d.image()).collect();
    let m = Machine::new(2, &images);
    let store = m.store();
    let seqs: Vec<u64> =
        store.uncommitted(ID).expect("there").iter().map(|op| op.id.seq.0).collect();
    assert_eq!(seqs, [6, 7, 8, 9, 10]);
    let ticket = |number| Ticket { client: ClientId(5), number, settled_below: 0 };
    assert_eq!(store.applied(ID, ticket(7)), Ok(true));
    assert_eq!(store.applied(ID, ticket(11)), Ok(false));
    let status = store.status(ID).expect("there");
    assert_eq!(status.promise.committed, Seq(5));
    assert_eq!(status.promise.newest, Seq(10));
    assert_eq!(status.session, Session { epoch: Epoch(1), attach: 1 });
    assert!(!status.doubtful);
    store.committed(ID, Seq(9));
    assert_eq!(store.uncommitted(ID).expect("there").len(), 1);
    m.world.run(async {
        for seq in 1..=10u64 {
            assert_eq!(versions(&store, 1, seq as u32, 1).await, Ok(vec![seq]));
        }
        for chunk in 0..30u64 {
            let last = if chunk < 20 { 60 + chunk } else { 30 + chunk };
            let got = versions(&store, 2, chunk as u32 * 256, 256).await.expect("read");
            assert_eq!(got, (1..=256).map(|i| last * 1_000 + i).collect::<Vec<_>>());
        }
    });
}

#[test]
fn discards_free_space_and_leave_tombstones() {
    let m = Machine::new(1, &formatted(1));
    let store = m.store();
    let used = |store: &Store<_>| store.space().used_bytes >> 20;
    let session = m
        .world
        .run(async {
            let session = make(&store, 1, 2_560).await.expect("made");
            for chunk in 0..4u64 {
                let ids: Vec<u64> = (1..=256).map(|i| chunk * 256 + i).collect();
                let op = write_op(chunk + 1, chunk as u32 * 256, &ids);
                store.append(ID, session, op).await.expect("written");
            }
            session
        })
        .expect("runs");
    m.world.pass(Nanos::from_secs(5));
    assert_eq!(used(&store), 4);
    m.world.run(async {
        let whole = plain_op(OpKind::Discard, 5, 0, 256);
        store.append(ID, session, whole).await.expect("discarded");
        // Chunk 1 in two halves, chunk 2 but for one block.
        for (seq, start, count) in [(6, 256, 128), (7, 384, 128), (8, 512, 255)] {
            let kind = if seq == 6 { OpKind::Zero } else { OpKind::Discard };
            let op = plain_op(kind, seq, start, count);
            store.append(ID, session, op).await.expect("discarded");
        }
        // What was never written leaves no trace.
        let nothing = plain_op(OpKind::Discard, 9, 2_304, 256);
        store.append(ID, session, nothing).await.expect("discarded");
    });
    m.world.pass(Nanos::from_secs(5));
    store.audit().expect("adds up");
    assert_eq!(used(&store), 2);
    assert_eq!(
        store.chunks_since(ID, Seq(4), 0, 9),
        Ok(vec![(0, Seq(5)), (1, Seq(7)), (2, Seq(8))])
    );
    m.world.run(store.close());
    let images: Vec<_> = m.disks.iter().map(|d| d.image()).collect();
    let m = Machine::new(2, &images);
    let store = m.store();
    assert_eq!(used(&store), 2);
    m.world.run(async {
        assert_eq!(versions(&store, 1, 0, 256).await, Ok(vec![0; 256]));
        assert_eq!(versions(&store, 1, 767, 1).await, Ok(vec![768]));
        let tags = store.tags(ID, 1).await.expect("tags");
        assert_eq!(tags[0], BlockTag { seq: Seq(6), state: BlockState::Zero, crc: 0 });
        assert_eq!(tags[128], BlockTag { seq: Seq(7), state: BlockState::Absent, crc: 0 });
        store.delete(ID).await.expect("deleted");
        store.delete(ID).await.expect("deleting nothing is no error");
    });
    assert_eq!(used(&store), 0);
    store.audit().expect("adds up");
    assert_eq!(store.list(), []);
}

/// Writers that bring so many blocks a second find the mover at work at every moment and never in a
/// burst, and the log neither fills nor empties.
#[test]
fn blocks_go_home_as_fast_as_writers_bring_new_ones_and_evenly() {
    const WRITERS: u64 = 16;
    const TICK: Nanos = Nanos::from_ms(1);
    const WINDOW: u64 = 250;
    let m = Machine::new(1, &formatted_with_log(64 * MIB));
    let store = m.store();
    let session = m.world.run(make(&store, 1, 20_000)).expect("runs").expect("made");
    let mut seq = 0;
    let mut moved = Vec::new();
    let mut most_writes = 0;
    for tick in 0..5_000u64 {
        let appends = (0..WRITERS).map(|i| {
            seq += 1;
            // Scattered: one block of a chunk after the other chunks.
            let block = (seq * 7919 % 20_000) as u32;
            let mut op = write_op(seq, block, &[seq % 7 + 1]);
            // Those of the ticks before are done with.
            op.committed = Seq(seq - i - 1);
            op.ticket.settled_below = (seq - i) as u32;
            store.append(ID, session, op)
        });
        let all = appends.collect::<Vec<_>>();
        let done = m.world.run(futures_util::future::join_all(all)).expect("runs");
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        let before = m.disks[0].writes();
        m.world.pass(TICK);
        if tick > 2_500 {
            most_writes = most_writes.max(m.disks[0].writes() - before);
        }
        if tick % WINDOW == 0 {
            moved.push((store.counters().destaged_bytes / 4096, store.space().log_fill));
        }
    }
    store.audit().expect("adds up");
    // From when it has found its balance on.
    let settled = &moved[moved.len() / 2..];
    let brought = WRITERS * WINDOW;
    for pair in settled.windows(2) {
        let (blocks, fill) = (pair[1].0 - pair[0].0, pair[1].1);
        assert!((brought / 4..brought * 2).contains(&blocks), "{blocks} of {brought}: {moved:?}");
        // Half way between where it begins to move and where it stops for nobody.
        assert!((108..148).contains(&fill), "{fill} of 255: {moved:?}");
    }
    assert!(most_writes <= 4 * 32, "{most_writes} in {TICK:?}: a burst");
}

#[test]
fn a_full_group_still_reads_overwrites_discards_and_deletes() {
    let m = Machine::new(1, &formatted(1));
    let store = m.store();
    let free = store.space().free_bytes >> 20;
    let mut seq = 0;
    m.world.run(async {
        let session = make(&store, 1, 1 << 20).await.expect("made");
        let mut chunk = 0u32;
        let full = loop {
            seq += 1;
            let op = write_op(seq, chunk * 256, &[seq]);
            if let Err(e) = store.append(ID, session, op).await {
                break e;
            }
            chunk += 1;
        };
        assert_eq!(full, StoreError::Full);
        assert_eq!(u64::from(chunk), free);
        store.append(ID, session, write_op(seq + 1, 7 * 256, &[9])).await.expect("overwritten");
        store.append(ID, session, write_op(seq + 2, 8 * 256 + 1, &[9])).await.expect("its slot");
        assert_eq!(versions(&store, 1, 7 * 256, 1).await, Ok(vec![9]));
        let discard = plain_op(OpKind::Discard, seq + 3, 0, 256);
        store.append(ID, session, discard).await.expect("discarded");
        store.audit().expect("adds up");
    });
    m.world.pass(Nanos::from_secs(20));
    m.world.run(async {
        let session = Session { epoch: Epoch(1), attach: 1 };
        assert_eq!(store.reserve(ID, 5_000), Err(StoreError::Malformed("chunk")));
        store.reserve(ID, 4_000).expect("one is free");
        assert_eq!(store.reserve(ID, 4_001), Err(StoreError::Full));
        store.append(ID, session, write_op(seq + 4, 4_000 * 256, &[77])).await.expect("written");
        assert_eq!(versions(&store, 1, 4_000 * 256, 1).await, Ok(vec![77]));
    });
    store.audit().expect("adds up");
    m.world.run(store.close());
    let images: Vec<_> = m.disks.iter().map(|d| d.image()).collect();
    let m = Machine::new(2, &images);
    let store = m.store();
    store.audit().expect("adds up");
    assert_eq!(store.space().free_bytes, 0);
    m.world.run(async {
        assert_eq!(versions(&store, 1, 7 * 256, 1).await, Ok(vec![9]));
        store.delete(ID).await.expect("deleted");
    });
    assert_eq!(store.space().free_bytes >> 20, free);
}

#[test]
fn an_announced_append_keeps_its_slot_for_ten_seconds() {
    let m = Machine::new(1, &formatted(1));
    let store = m.store();
    m.world.run(async { make(&store, 1, 5_000).await.expect("made") });
    let free = store.space().free_bytes;
    store.reserve(ID, 3).expect("free");
    store.reserve(ID, 3).expect("the same again");
    assert_eq!(store.space().free_bytes, free - (1 << 20));
    m.world.pass(Nanos::from_secs(9));
    assert_eq!(store.space().free_bytes, free - (1 << 20));
    m.world.pass(Nanos::from_secs(2));
    assert_eq!(store.space().free_bytes, free);
    store.audit().expect("adds up");
}

#[test]
fn copies_of_other_members_overwrite_also_downwards_or_only_what_they_expect() {
    let m = Machine::new(1, &formatted(1));
    let store = m.store();
    m.world.run(async {
        let session = make(&store, 1, 512).await.expect("made");
        for seq in 1..=6u64 {
            store.append(ID, session, write_op(seq, seq as u32, &[seq])).await.expect("written");
        }
        let raw = |block, seq, id| CopyBlock {
            block,
            tag: BlockTag {
                seq: Seq(seq),
                state: BlockState::Raw,
                crc: atoll_format::checksum::crc(&content(id)),
            },
            bytes: Some(content(id)),
        };
        let without = |block, seq, state| CopyBlock {
            block,
            tag: BlockTag { seq: Seq(seq), state, crc: 0 },
            bytes: None,
        };
        let blocks = vec![
            raw(1, 10, 110),
            without(2, 0, BlockState::Absent),
            raw(3, 2, 90),
            without(4, 4, BlockState::Bad),
        ];
        let copy = Copy { chunk: 0, blocks, only_if: None, tickets: SetTickets::default() };
        assert_eq!(store.copy_in(ID, session, copy).await, Ok(4));
        assert_eq!(versions(&store, 1, 1, 3).await, Ok(vec![110, 0, 90]));
        assert_eq!(versions(&store, 1, 4, 2).await, Err(StoreError::Bad(vec![4])));
        let repair = Copy {
            chunk: 0,
            blocks: vec![raw(4, 4, 4), raw(5, 4, 4)],
            only_if: Some(Seq(4)),
            tickets: SetTickets::default(),
        };
        assert_eq!(store.copy_in(ID, session, repair.clone()).await, Ok(1));
        assert_eq!(versions(&store, 1, 4, 2).await, Ok(vec![4, 5]));
        let other = Session { epoch: Epoch(1), attach: 7 };
        assert!(store.copy_in(ID, other, repair).await.is_err());
        let uncommitted = store.uncommitted(ID).expect("there");
        assert_eq!(uncommitted.len(), 6, "copies are not operations");
        let mut wrong = raw(6, 7, 8);
        wrong.tag.crc ^= 1;
        let copy =
            Copy { chunk: 0, blocks: vec![wrong], only_if: None, tickets: SetTickets::default() };
        assert_eq!(store.copy_in(ID, session, copy).await, Err(StoreError::Damaged { block: 6 }));
        // Tickets come and go with blocks, or not at all.
        let ticket = |number| Ticket { client: ClientId(9), number, settled_below: 0 };
        let copy = |blocks: &[CopyBlock], add: &[u32], forget: &[u32], only_if| Copy {
            chunk: 0,
            blocks: blocks.to_vec(),
            only_if,
            tickets: SetTickets {
                add: add.iter().map(|&n| ticket(n)).collect(),
                forget: forget.iter().map(|&n| ticket(n)).collect(),
            },
        };
        let (one, many) = ([raw(7, 7, 7)], (1..=257).collect::<Vec<u32>>());
        let refused = Err(StoreError::Malformed("tickets of a copy"));
        for wrong in [
            copy(&one, &many, &[], None),
            copy(&[], &[1], &[], None),
            copy(&one, &[1], &[], Some(Seq(7))),
        ] {
            assert_eq!(store.copy_in(ID, session, wrong).await, refused);
        }
        assert_eq!(store.applied(ID, ticket(1)), Ok(false));
        assert_eq!(store.copy_in(ID, session, copy(&one, &many[..256], &[], None)).await, Ok(1));
        assert_eq!(store.copy_in(ID, session, copy(&one, &[], &[3], None)).await, Ok(1));
        let applied = [1, 3, 256].map(|number| store.applied(ID, ticket(number)));
        assert_eq!(applied, [Ok(true), Ok(false), Ok(true)]);
    });
    m.world.pass(Nanos::from_secs(5));
    store.audit().expect("adds up");
    m.world.run(async {
        assert_eq!(versions(&store, 1, 1, 5).await, Ok(vec![110, 0, 90, 4, 5]));
        let tags = store.tags(ID, 0).await.expect("tags");
        assert_eq!(tags[2], BlockTag::default());
        assert_eq!(tags[3].seq, Seq(2));
    });
}

/// A member that was away when a chunk was discarded learns of it from a copy that was made since.
#[test]
fn a_copied_discard_of_a_chunk_that_was_never_here_is_listed_as_a_change() {
    let m = Machine::new(1, &formatted(1));
    let store = m.store();
    let discard = |chunk: u32, seq| Copy {
        chunk,
        blocks: (chunk * 256..(chunk + 1) * 256)
            .map(|block| CopyBlock {
                block,
                tag: BlockTag { seq: Seq(seq), state: BlockState::Absent, crc: 0 },
                bytes: None,
            })
            .collect(),
        only_if: None,
        tickets: SetTickets::default(),
    };
    m.world.run(async {
        let session = make(&store, 1, 1024).await.expect("made");
        assert_eq!(store.copy_in(ID, session, discard(1, 50)).await, Ok(256));
        assert_eq!(store.copy_in(ID, session, discard(2, 0)).await, Ok(256));
        store
            .append(ID, session, plain_op(OpKind::Discard, 60, 768, 256))
            .await
            .expect("discarded");
    });
    let listed = |store: &Store<common::TestWorld>, what: &str| {
        assert_eq!(store.chunks_since(ID, Seq(49), 0, 9), Ok(vec![(1, Seq(50))]), "{what}");
        assert_eq!(store.chunks_since(ID, Seq(50), 0, 9), Ok(vec![]), "{what}");
        store.audit().expect("adds up");
    };
    listed(&store, "at once");
    let images = m.crash(&mut Rng(0));
    listed(&Machine::new(2, &images).store(), "from the log");
    m.world.pass(Nanos::from_secs(65));
    listed(&store, "at home");
    let images = m.crash(&mut Rng(0));
    listed(&Machine::new(3, &images).store(), "after a restart");
}

#[test]
fn a_batch_takes_all_that_waited_and_large_writes_fit() {
    let m = Machine::new(1, &formatted(1));
    let store = m.store();
    m.world.run(async {
        let session = make(&store, 1, 100_000).await.expect("made");
        let before = store.counters().log_batches;
        let writes =
            (1..=600u64).map(|seq| store.append(ID, session, write_op(seq, seq as u32, &[seq])));
        let done = futures_util::future::join_all(writes).await;
        assert!(done.iter().all(Result::is_ok));
        let batches = store.counters().log_batches - before;
        assert!(batches <= 5, "{batches} batches for 600 writes");
        let range = BlockRange { start: 1, count: 255 };
        let read = store.read(ID, range).await.expect("read");
        assert_eq!(read.payload.iter().map(|b| b.len()).sum::<usize>(), 255 * 4096);
    });
}

/// A discard outlives in the log what it has superseded, and is all that says that its chunk has
/// changed since.
#[test]
fn a_discard_whose_chunk_has_left_the_log_is_still_listed_as_a_change() {
    // A crash after each operation of the devices while the log is moved home.
    let mut left_the_log = 0;
    for more in 0.. {
        let m = Machine::new(1, &formatted_with_log(64 << 20));
        let store = m.store();
        let written = m.world.run(async {
            let session = make(&store, 1, 100_000).await.expect("made");
            let write = async |seq: u64, start: u32| {
                let ids: Vec<u64> = (0..128).map(|b| seq * 1000 + b).collect();
                store.append(ID, session, write_op(seq, start, &ids)).await.expect("written");
            };
            write(50, 256).await;
            // More of other chunks than is moved home in one round.
            for n in 0..32 {
                write(51 + n, 1024 + n as u32 * 256).await;
            }
            let discard = plain_op(OpKind::Discard, 90, 256, 256);
            store.append(ID, session, discard).await.expect("discarded");
        });
        written.expect("no crash yet");
        m.world.crash_at(m.world.ops() + more);
        m.world.pass(Nanos::from_secs(5));
        let after = Machine::new(2, &m.crash(&mut Rng(more))).store();
        let listed = after.chunks_since(ID, Seq(89), 0, 9);
        assert_eq!(listed, Ok(vec![(1, Seq(90))]), "after {more} operations");
        after.audit().expect("adds up");
        left_the_log += u32::from((20..60).contains(&after.space().log_fill));
        if !m.world.crashed() {
            break;
        }
    }
    assert!(left_the_log > 0, "everything went home in one go");
}

/// What a growth does to chunks that a shrink may have left on another copy.
#[test]
fn a_chunk_that_was_zeroed_and_discarded_is_listed_as_a_change_though_it_was_never_written() {
    let mut crashes = 0;
    for more in 0.. {
        let m = Machine::new(1, &formatted_with_log(64 << 20));
        let store = m.store();
        let written = m.world.run(async {
            let session = make(&store, 1, 100_000).await.expect("made");
            for (seq, kind) in [(90, OpKind::Zero), (91, OpKind::Discard)] {
                let op = plain_op(kind, seq, 256, 256);
                store.append(ID, session, op).await.expect("cleared");
            }
            store.append(ID, session, write_op(92, 1024, &[1])).await.expect("written");
        });
        written.expect("no crash yet");
        m.world.crash_at(m.world.ops() + more);
        m.world.pass(Nanos::from_secs(5));
        let after = Machine::new(2, &m.crash(&mut Rng(more))).store();
        let listed = after.chunks_since(ID, Seq(89), 0, 1);
        assert_eq!(listed, Ok(vec![(1, Seq(91))]), "after {more} operations");
        after.audit().expect("adds up");
        crashes += u32::from(m.world.crashed());
        if !m.world.crashed() {
            break;
        }
    }
    assert!(crashes > 3, "nothing went home");
}
