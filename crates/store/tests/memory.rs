//! The memory that a store really takes, against the formula of `docs/formats.md`.
//!
//! The worst there is: single blocks at random, one and then a second in a chunk. A test binary
//! alone, so that nothing else allocates; with the allocator of the program, on a disk that is a
//! file.

mod common;

use atoll_format::id::{ComponentId, OpId, Seq, Session, Ticket};
use atoll_format::superblock::Shape;
use atoll_store::{FormatSpec, OpenSpec, Store, format_group};
use atoll_world::components::{ComponentOp, Components};
use atoll_world::{Nanos, World};
use cap::Cap;
use common::{MIB, MemDisk, Rng, TestWorld, make, spec, write_op};
use futures_util::future::join_all;
use std::alloc::System;
use std::cell::Cell;
use std::rc::Rc;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const ID: ComponentId = ComponentId(1);
const CHUNKS: u32 = 64_000;
const DISK: u64 = 80 << 30;
const LOG: u64 = 2 << 30;
/// What recovery read last and a destage round, in flight or kept for reuse: 8 MiB each, and the
/// rest of what is written at once.
const BUFFERS: u64 = 20 * MIB;

/// Bytes that are allocated now.
fn allocated() -> u64 {
    ALLOCATOR.allocated() as u64
}

fn one_block(seq: u64, start: u32) -> ComponentOp {
    let op = write_op(seq, start, &[seq]);
    let number = seq as u32;
    let ticket = Ticket { number, settled_below: number.saturating_sub(300), ..op.ticket };
    ComponentOp {
        id: OpId { seq: Seq(seq), ..op.id },
        ticket,
        committed: Seq(seq.saturating_sub(300)),
        ..op
    }
}

/// A block of each of these chunks; one of its own in each round.
async fn write(
    store: &Store<TestWorld>,
    session: Session,
    chunks: &[u32],
    round: u64,
    seq: &mut u64,
) {
    for some in chunks.chunks(256) {
        let all = some.iter().map(|chunk| {
            *seq += 1;
            store.append(ID, session, one_block(*seq, chunk * 256 + ((*seq + round) % 256) as u32))
        });
        for done in join_all(all).await {
            done.expect("written");
        }
    }
}

#[test]
fn memory_stays_within_the_stated_formula() {
    let world = TestWorld::new(1);
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("memory-{}", std::process::id()));
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path);
    let disks = vec![MemDisk::in_file(&world, file.expect("a file"), DISK)];
    std::fs::remove_file(&path).expect("it is open, that is enough");
    let spec = FormatSpec { log_bytes: Some(LOG), ..spec(Shape::SingleTier) };
    world.run(format_group(&world, &disks, spec)).expect("runs").expect("formats");
    let mut chunks: Vec<u32> = (0..CHUNKS).collect();
    let mut rng = Rng(9);
    for i in 0..chunks.len() {
        chunks.swap(i, rng.below(u64::from(CHUNKS)) as usize);
    }

    let before = allocated();
    let small = OpenSpec { cache_bytes: Some(0), ..OpenSpec::default() };
    let store = world.run(Store::open(world.clone(), disks, small)).expect("runs").expect("opens");
    let peak = Rc::new(Cell::new(0));
    let (clock, highest) = (world.clone(), peak.clone());
    world.spawn(async move {
        loop {
            highest.set(allocated().max(highest.get()));
            clock.sleep(Nanos::from_us(200)).await;
        }
    });
    let (mut seq, mut seen) = (0, Vec::new());
    let session = world.run(make(&store, ID.0, CHUNKS * 256)).expect("runs").expect("made");
    world.run(async {
        let (all, quarter) = (&chunks[..], chunks.len() / 4);
        // Then a second block, far behind the first in the log, for some of them.
        for (n, part) in all.chunks(quarter).chain([&all[..quarter]]).enumerate() {
            write(&store, session, part, n as u64, &mut seq).await;
            seen.push((allocated() - before, store.memory_bytes()));
        }
    });
    // All of it lies in the log. Buffers are the same from here on; what is left is the index.
    assert_eq!(store.counters().destaged_bytes, 0);
    for to in [3, 4] {
        let (real, stated) = (seen[to].0 - seen[0].0, seen[to].1 - seen[0].1);
        assert!(real <= stated, "{to}: {real} bytes for what is said to take {stated}");
        assert!(real * 3 > stated * 2, "{to}: {stated} is said, and {real} are taken");
    }

    // Now it goes home, and its metadata, a minute later, to a checkpoint.
    for wait in [5, 30, 120] {
        world.pass(Nanos::from_secs(wait));
        seen.push((allocated() - before, store.memory_bytes()));
    }
    assert_eq!(store.counters().destaged_bytes, u64::from(CHUNKS + CHUNKS / 4) * 4096);
    seen.push((peak.get() - before, seen.iter().map(|s| s.1).max().expect("some")));
    for (n, (real, stated)) in seen.iter().enumerate() {
        assert!(real <= &(stated + BUFFERS), "{n}: {real} bytes, said to be {stated}");
    }
}
