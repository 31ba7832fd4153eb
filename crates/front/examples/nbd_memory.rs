//! Serves volumes in memory over NBD on a Unix socket, until it is told to end (SIGTERM, SIGINT):
//! `nbd_memory SOCKET [SIZE_BYTES]`, then `nbdinfo --list 'nbd+unix:///?socket=SOCKET'`.
//!
//! Exports: `disk`; `readonly`; `slow` (200 ms an operation); `stuck` (an hour); `failing` (from
//! 1 MiB on, and at every flush); `small` (1 MiB).
//! Asked by SIGHUP, it doubles the size of `small`; by SIGUSR1, it prints what it has done.

#[path = "../tests/support/mod.rs"]
mod support;

use atoll_front::limits::Limits;
use atoll_front::nbd::Server;
use atoll_world::World;
use std::process::ExitCode;
use support::{Halves, TokioWorld, exports, grow};
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
    let (volumes, small) = exports(&world, size_bytes);
    let server = Server::new(world.clone(), volumes, Limits::default());
    let listener = UnixListener::bind(socket)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut report = signal(SignalKind::user_defined1())?;
    loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => grow(&small),
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
