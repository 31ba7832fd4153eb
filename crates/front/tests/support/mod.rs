//! A world for tests and examples of front ends: tokio's clock and sockets, one thread, no disks,
//! no other hosts, no directory. With tokio's paused clock, time is virtual.

#![allow(dead_code, reason = "every test uses a part of it")]

use atoll_format::id::{ClusterId, HostId};
use atoll_front::filter::{Delay, Fail, Kind};
use atoll_front::memory::{Fixed, MemoryVolume};
use atoll_front::nbd::{Ended, Served};
use atoll_world::directory::{Entry, Listing, Revision, Txn, TxnReply, WatchEvent};
use atoll_world::stream::{ByteRead, ByteStream, ByteWrite, Piece};
use atoll_world::volume::{Volume, VolumeError, VolumeInfo};
use atoll_world::{
    Buf, Conn, Directory, DirectoryError, Disk, Durability, Lane, Nanos, Net, Packet, World,
};
use std::io::{self, IoSlice};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Duration, Instant};

/// The world. Tasks run on the current `LocalSet`.
#[derive(Clone)]
pub struct TokioWorld {
    began: Instant,
    nothing: Nothing,
}

impl TokioWorld {
    pub fn new() -> Self {
        Self { began: Instant::now(), nothing: Nothing(()) }
    }
}

/// What a front end never asks for.
#[derive(Clone)]
pub struct Nothing(());

/// A connection of [`Nothing`]: there is none.
#[derive(Clone)]
pub enum Never {}

impl World for TokioWorld {
    type Disk = Never;
    type Net = Nothing;
    type Directory = Nothing;

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.began.elapsed().as_nanos()).expect("584 years are enough"))
    }
    fn unix_ms(&self) -> u64 {
        0
    }
    async fn sleep_until(&self, at: Nanos) {
        tokio::time::sleep_until(self.began + Duration::from_nanos(at.0)).await;
    }
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        tokio::task::spawn_local(task);
    }
    fn random(&self) -> u64 {
        0
    }
    async fn charge(&self, _: Nanos) {}
    fn net(&self) -> &Nothing {
        &self.nothing
    }
    fn directory(&self) -> &Nothing {
        &self.nothing
    }
}

impl Disk for Never {
    fn len_bytes(&self) -> u64 {
        match *self {}
    }
    async fn read(&self, _: u64, _: u32) -> io::Result<Buf> {
        match *self {}
    }
    async fn write(&self, _: u64, _: Vec<Buf>, _: Durability) -> io::Result<()> {
        match *self {}
    }
    async fn flush(&self) -> io::Result<()> {
        match *self {}
    }
    async fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        match *self {}
    }
}

impl Net for Nothing {
    type Conn = Never;
    async fn connect(&self, _: &str, _: Lane) -> io::Result<Never> {
        Err(io::ErrorKind::Unsupported.into())
    }
    async fn connect_shard(&self, _: u8, _: Lane) -> io::Result<Never> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn hand_over(&self, _: &Never, _: Packet, _: u8) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    async fn accept(&self) -> io::Result<Never> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl Conn for Never {
    fn send(&self, _: Packet) -> io::Result<()> {
        match *self {}
    }
    async fn recv(&self) -> io::Result<Packet> {
        match *self {}
    }
    fn close(&self) {
        match *self {}
    }
    fn peer(&self) -> String {
        match *self {}
    }
    fn proven(&self) -> Option<(ClusterId, HostId)> {
        match *self {}
    }
}

fn no_directory<T>() -> Result<T, DirectoryError> {
    Err(DirectoryError::Unavailable("there is none in this world".to_owned()))
}

impl Directory for Nothing {
    type Watch = Never;
    async fn txn(&self, _: Txn) -> Result<TxnReply, DirectoryError> {
        no_directory()
    }
    async fn get(&self, _: &str) -> Result<Option<Entry>, DirectoryError> {
        no_directory()
    }
    async fn list(&self, _: &str) -> Result<Listing, DirectoryError> {
        no_directory()
    }
    async fn watch(&self, _: &str, _: Revision) -> Result<Never, DirectoryError> {
        no_directory()
    }
    async fn touch(&self, _: &str, _: u32) -> Result<(), DirectoryError> {
        no_directory()
    }
    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        no_directory()
    }
}

impl atoll_world::directory::Watch for Never {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        match *self {}
    }
}

/// Any pair of tokio halves as a client's stream.
pub struct Halves<R, W>(pub R, pub W);

impl<R, W> ByteStream for Halves<R, W>
where
    R: AsyncRead + Unpin + 'static,
    W: AsyncWrite + Unpin + 'static,
{
    type Read = ReadHalf<R>;
    type Write = WriteHalf<W>;
    fn split(self) -> (Self::Read, Self::Write) {
        (ReadHalf(self.0), WriteHalf(self.1))
    }
    fn unite(read: Self::Read, write: Self::Write) -> Self {
        Self(read.0, write.0)
    }
    fn peer(&self) -> String {
        "a test".to_owned()
    }
}

pub struct ReadHalf<R>(R);
pub struct WriteHalf<W>(W);

impl<R: AsyncRead + Unpin + 'static> ByteRead for ReadHalf<R> {
    async fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into).await
    }
}

impl<W: AsyncWrite + Unpin + 'static> ByteWrite for WriteHalf<W> {
    async fn write_all(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        let mut slices: Vec<_> = pieces.iter().map(|p| IoSlice::new(p.as_slice())).collect();
        let mut left = &mut slices[..];
        while !left.is_empty() {
            // The kernel takes at most 1,024 slices a call.
            let now = left.len().min(1024);
            let count = self.0.write_vectored(&left[..now]).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut left, count);
        }
        Ok(())
    }
}

/// How a connection ended that was to be served where it arrived.
pub fn ended<S>(served: Served<S>) -> Ended {
    match served {
        Served::Ended(ended) => ended,
        Served::HandOver(to) => panic!("handed over to shard {}", to.shard),
    }
}

/// A volume of the example: in memory, with trouble around it.
pub type Troubled = Fail<Delay<TokioWorld, MemoryVolume>>;

/// The exports of the example, all of `size_bytes` but one: `disk`; `readonly`; `slow` (200 ms an
/// operation); `stuck` (an hour); `failing` (from 1 MiB on, and at every flush); `small`, which is
/// returned as well, to be resized.
pub fn exports(world: &TokioWorld, size_bytes: u64) -> (Fixed<Troubled>, MemoryVolume) {
    let delayed = |volume, span| Delay::new(world.clone(), volume, span);
    let plain = |volume, span| Fail::new(delayed(volume, span), |_, _, _| None);
    let memory = || MemoryVolume::new(size_bytes);
    let read_only = memory();
    read_only.set_info(VolumeInfo { read_only: true, ..read_only.info() });
    let failing = Fail::new(delayed(memory(), Nanos::ZERO), |kind, at, len| match kind {
        Kind::Flush => Some(VolumeError::Io("the test says so".to_owned())),
        _ if at + len <= 1 << 20 => None,
        Kind::Read => Some(VolumeError::Io("unreadable on all copies".to_owned())),
        Kind::Write => Some(VolumeError::NoSpace("all disk groups are full".to_owned())),
        Kind::Discard => Some(VolumeError::TimedOut("no owner".to_owned())),
        Kind::Zero => Some(VolumeError::Unsupported),
        Kind::Extents => Some(VolumeError::Gone),
    });
    let small = MemoryVolume::new(1 << 20);
    let all = [
        ("disk", plain(memory(), Nanos::ZERO), "a volume in memory"),
        ("readonly", plain(read_only, Nanos::ZERO), "never written"),
        ("slow", plain(memory(), Nanos::from_ms(200)), "200 ms an operation"),
        ("stuck", plain(memory(), Nanos::from_secs(3600)), "an hour an operation"),
        ("failing", failing, "fails from 1 MiB on"),
        ("small", plain(small.clone(), Nanos::ZERO), "it grows"),
    ];
    let named = all.map(|(name, disk, text)| (name.to_owned(), disk, text.to_owned()));
    (Fixed::new(named), small)
}

/// Doubles the size of a volume.
pub fn grow(volume: &MemoryVolume) {
    let info = volume.info();
    volume.set_info(VolumeInfo { size_bytes: info.size_bytes * 2, ..info });
}

/// Runs `test` in virtual time; no test takes an hour of it.
pub fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().expect("a clock");
    let hour = Duration::from_secs(3600);
    let all = async { tokio::time::timeout(hour, test).await.expect("it hangs") };
    tokio::task::LocalSet::new().block_on(&runtime, all);
}

/// Lets so many milliseconds pass.
pub async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
