//! Serves volumes in memory over NBD on a Unix socket, until it is told to end (SIGTERM, SIGINT):
//! `nbd_memory SOCKET [SIZE_BYTES]`, then `nbdinfo --list 'nbd+unix:///?socket=SOCKET'`.
//!
//! Exports: `disk`; `readonly`; `slow` (every operation takes 200 ms); `stuck` (an hour); `failing`
//! (reads from 1 MiB on fail, writes there find no space, nothing is flushed); `small` (1 MiB).
//! Asked by SIGHUP, it doubles the size of `small`; by SIGUSR1, it prints what it has done.

#[path = "../tests/support/mod.rs"]
mod support;

use atoll_front::filter::{Delay, Fail, Kind};
use atoll_front::limits::Limits;
use atoll_front::memory::{Fixed, MemoryVolume};
use atoll_front::nbd::Server;
use atoll_world::volume::{Volume, VolumeError};
use atoll_world::{Nanos, World};
use std::process::ExitCode;
use support::{Halves, TokioWorld};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(socket) = arguments.next() else {
        eprintln!("usage: nbd_memory SOCKET [SIZE_BYTES]");
        return ExitCode::from(2);
    };
    let size_bytes = arguments.next().map_or(Ok(1 << 30), |size| size.parse());
    let Ok(size_bytes) = size_bytes else {
        eprintln!("nbd_memory: SIZE_BYTES is a number of bytes, such as 1073741824");
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a thread of its own is all it needs");
    match tokio::task::LocalSet::new().block_on(&runtime, serve(&socket, size_bytes)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nbd_memory: {socket}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(socket: &str, size_bytes: u64) -> std::io::Result<()> {
    let world = TokioWorld::new();
    let volume = |size_bytes, span| {
        let inner = Delay::new(world.clone(), MemoryVolume::new(size_bytes), span);
        (Fail::new(inner, |_, _, _| None), size_bytes)
    };
    let read_only = MemoryVolume::new(size_bytes);
    read_only.set_info(atoll_world::volume::VolumeInfo { read_only: true, ..read_only.info() });
    let read_only = Delay::new(world.clone(), read_only, Nanos::ZERO);
    let small = MemoryVolume::new(1 << 20);
    let failing = Delay::new(world.clone(), MemoryVolume::new(size_bytes), Nanos::ZERO);
    let failing = Fail::new(failing, |kind, at, len| match kind {
        Kind::Flush => Some(VolumeError::Io("the test says so".to_owned())),
        _ if at + len <= 1 << 20 => None,
        Kind::Read => Some(VolumeError::Io("block unreadable on all copies".to_owned())),
        Kind::Write => Some(VolumeError::NoSpace("all disk groups are full".to_owned())),
        Kind::Discard => Some(VolumeError::TimedOut("no owner".to_owned())),
        Kind::Zero => Some(VolumeError::Unsupported),
        Kind::Extents => Some(VolumeError::Gone),
    });
    let plain = |delayed| Fail::new(delayed, |_, _, _| None);
    let entry = |name: &str, volume, text: &str| (name.to_owned(), volume, text.to_owned());
    let volumes = Fixed::new([
        entry("disk", volume(size_bytes, Nanos::ZERO).0, "a volume in memory"),
        entry("readonly", plain(read_only), "never written"),
        entry("slow", volume(size_bytes, Nanos::from_ms(200)).0, "200 ms an operation"),
        entry("stuck", volume(size_bytes, Nanos::from_secs(3600)).0, "an hour an operation"),
        entry("failing", failing, "fails from 1 MiB on"),
        entry("small", plain(Delay::new(world.clone(), small.clone(), Nanos::ZERO)), "it grows"),
    ]);
    let server = Server::new(world.clone(), volumes, Limits::default());
    let listener = UnixListener::bind(socket)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut grow = signal(SignalKind::hangup())?;
    let mut report = signal(SignalKind::user_defined1())?;
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = grow.recv() => {
                let info = small.info();
                let size_bytes = info.size_bytes * 2;
                small.set_info(atoll_world::volume::VolumeInfo { size_bytes, ..info });
            }
            _ = report.recv() => println!("{:?}", server.stats()),
            client = listener.accept() => {
                let (read, write) = client?.0.into_split();
                let server = server.clone();
                world.spawn(async move {
                    server.serve(Halves(read, write)).await;
                });
            }
        }
    }
    server.stop();
    server.idle().await;
    println!("{:?}", server.stats());
    std::fs::remove_file(socket)
}
