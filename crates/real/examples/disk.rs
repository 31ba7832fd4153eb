//! What an I/O costs: random 4 KiB operations on one file or device, at several depths, by either
//! backend. Writes over the whole of it.
//!
//! `cargo run --release --example disk PATH [seconds per row]` (a file is made, of 1 GiB)

use atoll_real::{Backend, OpenOptions, RealDisk, now, run};
use atoll_world::{Buf, Disk, Durability, Nanos};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::process::ExitCode;

const LEN: u64 = 1 << 30;

/// CPU time of all threads of this process, in nanoseconds; the kernel's own are not in it.
fn cpu() -> u64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Read,
    Write,
    WriteDurable,
    /// Durable, 32 blocks in 32 pieces: what group commit of a log does.
    Append,
}

async fn measure(disk: &RealDisk, work: Work, depth: u32, seconds: u64) {
    let seed = Cell::new(1u64);
    let block = Buf::copy_from(&[7; 4096]);
    let begin = || {
        seed.set(seed.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        let blocks = if let Work::Append = work { 32 } else { 1 };
        let at = (seed.get() >> 33) % (disk.len_bytes() / 4096 / blocks) * 4096 * blocks;
        let pieces = vec![block.clone(); blocks as usize];
        async move {
            match work {
                Work::Read => disk.read(at, 4096).await.map(drop),
                Work::Write => disk.write(at, pieces, Durability::Volatile).await,
                Work::WriteDurable | Work::Append => {
                    disk.write(at, pieces, Durability::Durable).await
                }
            }
        }
    };
    let mut running: FuturesUnordered<_> = (0..depth).map(|_| begin()).collect();
    let (start, before, mut count) = (now(), cpu(), 0u64);
    while now().since(start) < Nanos::from_secs(seconds) {
        running.next().await.expect("never empty").expect("no I/O error");
        running.push(begin());
        count += 1;
    }
    let (took, used) = (now().since(start).as_secs_f64(), cpu() - before);
    println!(
        "{:>8} {:>13} {depth:>6} {:>10.0} {:>10.1} {:>10.2}",
        disk.backend(),
        format!("{work:?}"),
        count as f64 / took,
        took * 1e6 * f64::from(depth) / count as f64,
        used as f64 / 1e3 / count as f64
    );
    while running.next().await.is_some() {}
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(path) = args.next() else {
        eprintln!("usage: disk PATH [seconds per row]");
        return ExitCode::from(2);
    };
    let seconds = args.next().and_then(|s| s.parse().ok()).unwrap_or(2);
    if !std::path::Path::new(&path).exists() {
        let file = std::fs::File::create(&path).expect("a file can be made there");
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, LEN)
            .expect("there is room");
    }
    println!(
        "{:>8} {:>13} {:>6} {:>10} {:>10} {:>10}",
        "backend", "work", "depth", "ops/s", "mean us", "CPU us"
    );
    for backend in [Backend::Uring, Backend::Threads] {
        run(async {
            let disk = RealDisk::open(&path, OpenOptions { backend, read_only: false })
                .unwrap_or_else(|e| panic!("{e}"));
            // So that later writes change no metadata.
            let zeros = Buf::copy_from(&vec![1; 1 << 20]);
            for at in (0..disk.len_bytes()).step_by(1 << 20) {
                let all = vec![zeros.clone()];
                disk.write(at, all, Durability::Volatile).await.expect("no I/O error");
            }
            disk.flush().await.expect("no I/O error");
            for work in [Work::Read, Work::Write, Work::WriteDurable, Work::Append] {
                for depth in [1, 32] {
                    measure(&disk, work, depth, seconds).await;
                }
            }
        })
        .expect("a runtime");
    }
    ExitCode::SUCCESS
}
