//! A world in a few hundred lines: virtual time, one thread, disks in memory that lose what was
//! not flushed, tear what was in flight, flip bits and fail on demand. Deterministic.

#![allow(dead_code, reason = "each test file uses its own part of it")]

use atoll_format::id::{
    ClientId, ClusterId, ComponentId, Epoch, GroupId, HostId, ObjectId, OpId, Seq, Session, Ticket,
};
use atoll_format::op::{BlockRange, OpKind};
use atoll_format::superblock::Shape;
use atoll_store::{FormatSpec, OpenError, OpenSpec, Store, format_group};
use atoll_world::components::{ComponentOp, ComponentSpec, Components, StoreError};
use atoll_world::directory::{Entry, Listing, Txn, TxnReply, Watch, WatchEvent};
use atoll_world::{
    Buf, BufMut, Conn, Directory, DirectoryError, Disk, Durability, Lane, Nanos, Net, Packet, World,
};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::io;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// splitmix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    flag: Arc<Flag>,
}

#[derive(Default)]
struct Inner {
    now: Cell<u64>,
    count: Cell<u64>,
    timers: RefCell<BTreeMap<(u64, u64), Waker>>,
    tasks: RefCell<Vec<Option<Task>>>,
    random: Cell<u64>,
    /// Device operations completed, and after how many the machine stops.
    ops: Cell<u64>,
    crash_at: Cell<Option<u64>>,
}

#[derive(Clone)]
pub struct TestWorld(Rc<Inner>);

impl TestWorld {
    pub fn new(seed: u64) -> Self {
        let inner = Inner::default();
        inner.random.set(seed);
        Self(Rc::new(inner))
    }

    pub fn ops(&self) -> u64 {
        self.0.ops.get()
    }

    pub fn crash_at(&self, ops: u64) {
        self.0.crash_at.set(Some(ops));
    }

    pub fn crashed(&self) -> bool {
        self.0.crash_at.get().is_some_and(|at| self.0.ops.get() >= at)
    }

    /// Runs `main` and every task until `main` is done; none if the machine stopped before.
    pub fn run<F: Future>(&self, main: F) -> Option<F::Output> {
        let mut main = std::pin::pin!(main);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        loop {
            if self.crashed() {
                return None;
            }
            let mut any = false;
            if flag.0.swap(false, Ordering::Relaxed) {
                any = true;
                if let Poll::Ready(out) = main.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Some(out);
                }
            }
            let mut i = 0;
            while i < self.0.tasks.borrow().len() && !self.crashed() {
                let task = self.0.tasks.borrow_mut()[i].take();
                if let Some(mut task) = task {
                    let mut done = false;
                    if task.flag.0.swap(false, Ordering::Relaxed) {
                        any = true;
                        let waker = Waker::from(task.flag.clone());
                        let cx = &mut Context::from_waker(&waker);
                        done = task.future.as_mut().poll(cx).is_ready();
                    }
                    if !done {
                        self.0.tasks.borrow_mut()[i] = Some(task);
                    }
                }
                i += 1;
            }
            if !any {
                let next = self.0.timers.borrow_mut().pop_first();
                let ((at, _), waker) = next.expect("everything waits and nothing will come");
                self.0.now.set(self.0.now.get().max(at));
                waker.wake();
            }
        }
    }

    /// Lets `span` pass.
    pub fn pass(&self, span: Nanos) {
        self.run(self.sleep(span));
    }

    fn finish_op(&self) -> bool {
        self.0.ops.set(self.0.ops.get() + 1);
        !self.crashed()
    }
}

/// Ends with the future that sleeps: its waker would keep the memory of whoever waited.
struct Timer {
    inner: Rc<Inner>,
    key: Option<(u64, u64)>,
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.inner.timers.borrow_mut().remove(&key);
        }
    }
}

impl World for TestWorld {
    type Disk = MemDisk;
    type Net = NoNet;
    type Directory = NoDirectory;

    fn now(&self) -> Nanos {
        Nanos(self.0.now.get())
    }
    fn unix_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.now.get() / 1_000_000
    }
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> {
        let mut timer = Timer { inner: self.0.clone(), key: None };
        poll_fn(move |cx| {
            let inner = &timer.inner;
            if inner.now.get() >= at.0 {
                return Poll::Ready(());
            }
            if at == Nanos::NEVER {
                return Poll::Pending;
            }
            let key = *timer.key.get_or_insert_with(|| {
                inner.count.set(inner.count.get() + 1);
                (at.0, inner.count.get())
            });
            inner.timers.borrow_mut().insert(key, cx.waker().clone());
            Poll::Pending
        })
    }
    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        self.0.tasks.borrow_mut().push(Some(Task { future: Box::pin(task), flag }));
    }
    fn random(&self) -> u64 {
        let mut rng = Rng(self.0.random.get());
        let out = rng.next();
        self.0.random.set(rng.0);
        out
    }
    async fn charge(&self, _cpu: Nanos) {}
    fn net(&self) -> &NoNet {
        unreachable!("a store has no network")
    }
    fn directory(&self) -> &NoDirectory {
        unreachable!("a store has no directory")
    }
}

#[derive(Clone)]
pub struct NoNet;
#[derive(Clone)]
pub struct NoDirectory;
pub struct NoWatch;

impl Net for NoNet {
    type Conn = NoNet;
    async fn connect(&self, _: &str, _: Lane) -> io::Result<NoNet> {
        unreachable!()
    }
    async fn connect_shard(&self, _: u8, _: Lane) -> io::Result<NoNet> {
        unreachable!()
    }
    fn hand_over(&self, _: &NoNet, _: Packet, _: u8) -> io::Result<()> {
        unreachable!()
    }
    async fn accept(&self) -> io::Result<NoNet> {
        unreachable!()
    }
}
impl Conn for NoNet {
    fn send(&self, _: Packet) -> io::Result<()> {
        unreachable!()
    }
    async fn recv(&self) -> io::Result<Packet> {
        unreachable!()
    }
    fn close(&self) {}
    fn peer(&self) -> String {
        String::new()
    }
    fn proven(&self) -> Option<(ClusterId, HostId)> {
        None
    }
}
impl Directory for NoDirectory {
    type Watch = NoWatch;
    async fn txn(&self, _: Txn) -> Result<TxnReply, DirectoryError> {
        unreachable!()
    }
    async fn get(&self, _: &str) -> Result<Option<Entry>, DirectoryError> {
        unreachable!()
    }
    async fn list(&self, _: &str) -> Result<Listing, DirectoryError> {
        unreachable!()
    }
    async fn watch(
        &self,
        _: &str,
        _: atoll_world::directory::Revision,
    ) -> Result<NoWatch, DirectoryError> {
        unreachable!()
    }
    async fn touch(&self, _: &str, _: u32) -> Result<(), DirectoryError> {
        unreachable!()
    }
    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        unreachable!()
    }
}
impl Watch for NoWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        unreachable!()
    }
}

const BLOCK: usize = 4096;
type Block = Rc<[u8; BLOCK]>;

/// What is on a medium: blocks that are not all zero.
#[derive(Clone, Default)]
pub struct Image {
    pub len: u64,
    blocks: BTreeMap<u64, Block>,
}

impl Image {
    pub fn new(len: u64) -> Self {
        Self { len, blocks: BTreeMap::new() }
    }
    fn set(&mut self, block: u64, bytes: Block) {
        if bytes.iter().all(|&b| b == 0) {
            self.blocks.remove(&block);
        } else {
            self.blocks.insert(block, bytes);
        }
    }
    pub fn get(&self, block: u64) -> [u8; BLOCK] {
        self.blocks.get(&block).map_or([0; BLOCK], |b| **b)
    }
    pub fn put(&mut self, block: u64, bytes: [u8; BLOCK]) {
        self.set(block, Rc::new(bytes));
    }
    pub fn flip(&mut self, at: u64, mask: u8) {
        let mut bytes = self.get(at / BLOCK as u64);
        bytes[(at % BLOCK as u64) as usize] ^= mask;
        self.set(at / BLOCK as u64, Rc::new(bytes));
    }
    pub fn zero(&mut self, at: u64, len: u64) {
        let first = at / BLOCK as u64;
        let last = (at + len).div_ceil(BLOCK as u64);
        let gone: Vec<u64> = self.blocks.range(first..last).map(|(&b, _)| b).collect();
        for block in gone {
            self.blocks.remove(&block);
        }
    }
    /// Blocks that are not zero.
    pub fn used(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }
}

#[derive(Clone)]
struct Write {
    at: u64,
    blocks: Vec<Block>,
}

#[derive(Default)]
struct Medium {
    /// What reads see.
    current: Image,
    durable: Image,
    /// Done, not flushed, in order.
    cached: Vec<Write>,
    /// Writes that were cached and no longer are, since the beginning.
    flushed: usize,
    /// Under way.
    flying: BTreeMap<u64, Write>,
    next_id: u64,
    fail_reads: Option<(u64, u64)>,
    /// How many more reads there fail; none: all.
    fail_reads_left: Option<u32>,
    /// The next read of more than a block brings zeros there.
    hidden: Option<(u64, u64)>,
    fail_writes: bool,
    /// What failed writes say instead of EIO.
    refusal: Option<io::ErrorKind>,
    fail_flush: bool,
    hang: bool,
    /// Where a write does not end.
    held: Option<u64>,
    last_durable_at: u64,
    writes: u64,
    /// Where its bytes are instead, for tests that count memory.
    file: Option<Rc<File>>,
}

/// A disk in memory, or in a file that loses nothing.
#[derive(Clone)]
pub struct MemDisk {
    world: TestWorld,
    medium: Rc<RefCell<Medium>>,
}

impl MemDisk {
    pub fn new(world: &TestWorld, image: Image) -> Self {
        let medium = Medium { current: image.clone(), durable: image, ..Medium::default() };
        Self { world: world.clone(), medium: Rc::new(RefCell::new(medium)) }
    }
    /// A disk of `len` bytes in a file, which is sparse.
    pub fn in_file(world: &TestWorld, file: File, len: u64) -> Self {
        file.set_len(len).expect("sparse");
        let disk = Self::new(world, Image::new(len));
        disk.medium.borrow_mut().file = Some(Rc::new(file));
        disk
    }
    fn file(&self) -> Option<Rc<File>> {
        self.medium.borrow().file.clone()
    }
    pub fn fail_reads(&self, at: u64, len: u64) {
        self.medium.borrow_mut().fail_reads = Some((at, at + len));
    }
    /// The next `times` reads there fail, then it can be read again.
    pub fn fail_reads_for(&self, at: u64, len: u64, times: u32) {
        self.fail_reads(at, len);
        self.medium.borrow_mut().fail_reads_left = Some(times);
    }
    /// The next read of more than a block that overlaps this brings zeros there, and no error.
    pub fn hide_once(&self, at: u64, len: u64) {
        self.medium.borrow_mut().hidden = Some((at, at + len));
    }
    /// Whether such a read is still to come.
    pub fn hides(&self) -> bool {
        self.medium.borrow().hidden.is_some()
    }
    pub fn fail_writes(&self) {
        self.medium.borrow_mut().fail_writes = true;
    }
    pub fn refuse_writes(&self, kind: io::ErrorKind) {
        let mut medium = self.medium.borrow_mut();
        (medium.fail_writes, medium.refusal) = (true, Some(kind));
    }
    pub fn fail_flush(&self) {
        self.medium.borrow_mut().fail_flush = true;
    }
    pub fn hang(&self) {
        self.medium.borrow_mut().hang = true;
    }
    /// Writes that begin there do not end.
    pub fn hold_writes(&self, at: u64) {
        self.medium.borrow_mut().held = Some(at);
    }
    /// Where the last durable write began.
    pub fn last_durable_at(&self) -> u64 {
        self.medium.borrow().last_durable_at
    }
    pub fn writes(&self) -> u64 {
        self.medium.borrow().writes
    }
    /// Flips bits under the running store.
    pub fn flip(&self, at: u64, mask: u8) {
        let mut medium = self.medium.borrow_mut();
        medium.current.flip(at, mask);
        medium.durable.flip(at, mask);
    }
    /// What reads see now.
    pub fn image(&self) -> Image {
        self.medium.borrow().current.clone()
    }

    /// What is left after the power went: everything durable, and of the rest, sector by sector,
    /// what chance leaves.
    pub fn crash(&self, rng: &mut Rng) -> Image {
        let medium = self.medium.borrow();
        let mut image = medium.durable.clone();
        let mode = rng.below(3);
        for write in medium.cached.iter().chain(medium.flying.values()) {
            // All, nothing, or a mixture of sectors of this write.
            let mode = if mode == 2 { rng.below(3) } else { mode };
            for (i, new) in write.blocks.iter().enumerate() {
                let block = write.at / BLOCK as u64 + i as u64;
                let mut bytes = image.get(block);
                for sector in 0..8 {
                    let keep = match mode {
                        0 => false,
                        1 => true,
                        _ => rng.one_in(2),
                    };
                    if keep {
                        let part = sector * 512..(sector + 1) * 512;
                        bytes[part.clone()].copy_from_slice(&new[part]);
                    }
                }
                image.set(block, Rc::new(bytes));
            }
        }
        image
    }

    /// Lengths, in sectors, of the writes that are not durable: done and not flushed, then under
    /// way.
    pub fn unsettled(&self) -> Vec<usize> {
        let medium = self.medium.borrow();
        medium.cached.iter().chain(medium.flying.values()).map(|w| w.blocks.len() * 8).collect()
    }

    /// What is left after the power went: everything durable, the first `sectors` sectors of the
    /// unsettled write number `torn`, and the other unsettled ones or none of them.
    pub fn crash_torn(&self, torn: Option<(usize, usize)>, others: bool) -> Image {
        let medium = self.medium.borrow();
        let mut image = medium.durable.clone();
        for (n, write) in medium.cached.iter().chain(medium.flying.values()).enumerate() {
            let whole = write.blocks.len() * 8;
            let sectors = match torn {
                Some((which, sectors)) if which == n => sectors,
                _ => {
                    if others {
                        whole
                    } else {
                        0
                    }
                }
            };
            for (i, new) in write.blocks.iter().enumerate().take(sectors.div_ceil(8)) {
                let block = write.at / BLOCK as u64 + i as u64;
                let mut bytes = image.get(block);
                let end = (sectors - i * 8).min(8) * 512;
                bytes[..end].copy_from_slice(&new[..end]);
                image.set(block, Rc::new(bytes));
            }
        }
        image
    }

    async fn wait(&self, us: u64) -> io::Result<()> {
        self.world.sleep(Nanos::from_us(us)).await;
        if self.medium.borrow().hang || !self.world.finish_op() {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

fn eio(what: &str) -> io::Error {
    io::Error::other(what.to_string())
}

impl Disk for MemDisk {
    fn len_bytes(&self) -> u64 {
        self.medium.borrow().current.len / BLOCK as u64 * BLOCK as u64
    }

    async fn read(&self, at: u64, len: u32) -> io::Result<Buf> {
        assert!(at.is_multiple_of(BLOCK as u64) && (len as usize).is_multiple_of(BLOCK) && len > 0);
        self.wait(50).await?;
        if let Some(file) = self.file() {
            let mut out = BufMut::for_overwrite(len as usize);
            file.read_exact_at(&mut out, at)?;
            return Ok(out.freeze());
        }
        let mut medium = self.medium.borrow_mut();
        if at + u64::from(len) > medium.current.len {
            return Err(eio("read beyond the end"));
        }
        if let Some((from, to)) = medium.fail_reads
            && at < to
            && from < at + u64::from(len)
            && medium.fail_reads_left != Some(0)
        {
            medium.fail_reads_left = medium.fail_reads_left.map(|left| left - 1);
            return Err(eio("medium error"));
        }
        let mut out = BufMut::zeroed(len as usize);
        let first = at / BLOCK as u64;
        let blocks = medium.current.blocks.range(first..first + u64::from(len) / BLOCK as u64);
        for (block, bytes) in blocks {
            let to = (block - first) as usize * BLOCK;
            out[to..to + BLOCK].copy_from_slice(&**bytes);
        }
        if let Some((from, to)) = medium.hidden
            && (at < to && from < at + u64::from(len) && len as usize > BLOCK)
        {
            medium.hidden = None;
            let inside = from.max(at) - at..(to - at).min(u64::from(len));
            out[inside.start as usize..inside.end as usize].fill(0);
        }
        Ok(out.freeze())
    }

    async fn write(&self, at: u64, data: Vec<Buf>, durability: Durability) -> io::Result<()> {
        assert!(at.is_multiple_of(BLOCK as u64));
        if let Some(file) = self.file() {
            let mut end = at;
            for piece in &data {
                file.write_all_at(piece, end)?;
                end += piece.len() as u64;
            }
            return self.wait(20).await;
        }
        let mut blocks = Vec::new();
        for piece in &data {
            assert!(piece.len().is_multiple_of(BLOCK) && (piece.is_empty() || piece.is_aligned()));
            for block in piece.chunks_exact(BLOCK) {
                blocks.push(Rc::new(block.try_into().expect("4 KiB")));
            }
        }
        assert!(!blocks.is_empty(), "an empty write");
        let id = {
            let mut medium = self.medium.borrow_mut();
            assert!(
                at + (blocks.len() * BLOCK) as u64 <= medium.current.len,
                "write beyond the end"
            );
            medium.writes += 1;
            medium.next_id += 1;
            let id = medium.next_id;
            if !medium.fail_writes {
                medium.flying.insert(id, Write { at, blocks });
            }
            id
        };
        if self.medium.borrow().held == Some(at) {
            std::future::pending::<()>().await;
        }
        self.wait(if durability == Durability::Durable { 100 } else { 20 }).await?;
        let mut medium = self.medium.borrow_mut();
        if medium.fail_writes {
            return Err(medium.refusal.map_or_else(|| eio("write error"), Into::into));
        }
        let write = medium.flying.remove(&id).expect("put in above");
        let medium = &mut *medium;
        let first = write.at / BLOCK as u64;
        for (block, bytes) in (first..).zip(&write.blocks) {
            medium.current.set(block, bytes.clone());
            if durability == Durability::Durable {
                medium.last_durable_at = write.at;
                medium.durable.set(block, bytes.clone());
            }
        }
        if durability == Durability::Volatile {
            medium.cached.push(write);
        }
        Ok(())
    }

    async fn flush(&self) -> io::Result<()> {
        let begun = {
            let medium = self.medium.borrow();
            medium.flushed + medium.cached.len()
        };
        self.wait(80).await?;
        let mut medium = self.medium.borrow_mut();
        if medium.fail_flush {
            return Err(eio("flush error"));
        }
        let medium = &mut *medium;
        // Another flush may have taken some of them meanwhile.
        let until = begun.saturating_sub(medium.flushed);
        medium.flushed += until;
        for write in medium.cached.drain(..until) {
            for (block, bytes) in (write.at / BLOCK as u64..).zip(write.blocks) {
                medium.durable.set(block, bytes);
            }
        }
        Ok(())
    }

    async fn discard(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
}

// ---- what the tests share ----

pub const CLUSTER: ClusterId = ClusterId(0xc1);
pub const MIB: u64 = 1 << 20;
pub const SIZE: u64 = 1 << 30;

pub fn spec(shape: Shape) -> FormatSpec {
    FormatSpec {
        cluster: CLUSTER,
        host: HostId(1),
        group: GroupId(0x61),
        shape,
        log_bytes: Some(16 * MIB),
    }
}

/// Formatted devices: one of 1 GiB, or a log device and `devices - 1` for capacity.
pub fn formatted(devices: usize) -> Vec<Image> {
    let world = TestWorld::new(7);
    let disks: Vec<MemDisk> =
        (0..devices).map(|_| MemDisk::new(&world, Image::new(SIZE))).collect();
    let shape = if devices == 1 { Shape::SingleTier } else { Shape::AllFlash };
    world.run(format_group(&world, &disks, spec(shape))).expect("runs").expect("formats");
    disks.iter().map(MemDisk::image).collect()
}

/// One formatted device with so much log.
pub fn formatted_with_log(log_bytes: u64) -> Vec<Image> {
    let world = TestWorld::new(7);
    let disks = [MemDisk::new(&world, Image::new(SIZE))];
    let spec = FormatSpec { log_bytes: Some(log_bytes), ..spec(Shape::SingleTier) };
    world.run(format_group(&world, &disks, spec)).expect("runs").expect("formats");
    disks.iter().map(MemDisk::image).collect()
}

pub struct Machine {
    pub world: TestWorld,
    pub disks: Vec<MemDisk>,
}

/// Its tasks and what they run on hold each other.
impl Drop for Machine {
    fn drop(&mut self) {
        let tasks = std::mem::take(&mut *self.world.0.tasks.borrow_mut());
        drop(tasks);
    }
}

impl Machine {
    pub fn new(seed: u64, images: &[Image]) -> Self {
        let world = TestWorld::new(seed);
        let disks = images.iter().map(|i| MemDisk::new(&world, i.clone())).collect();
        Self { world, disks }
    }
    pub fn open(&self) -> Option<Result<Store<TestWorld>, OpenError>> {
        let small = OpenSpec { cache_bytes: Some(0), ..OpenSpec::default() };
        self.world.run(Store::open(self.world.clone(), self.disks.clone(), small))
    }
    pub fn store(&self) -> Store<TestWorld> {
        self.open().expect("runs").expect("opens")
    }
    pub fn crash(&self, rng: &mut Rng) -> Vec<Image> {
        self.disks.iter().map(|d| d.crash(rng)).collect()
    }
}

pub fn component_spec(blocks: u32) -> ComponentSpec {
    ComponentSpec { object: ObjectId(0x0b), leg: 0, blocks, epoch: Epoch(1) }
}

/// The bytes of version `id` of a block.
pub fn content(id: u64) -> Buf {
    let mut bytes = BufMut::zeroed(BLOCK);
    let mut rng = Rng(id);
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next().to_le_bytes());
    }
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes.freeze()
}

/// Which version those bytes are; zero for zeros; a panic for anything torn or foreign.
pub fn version(bytes: &[u8]) -> u64 {
    let id = u64::from_le_bytes(bytes[..8].try_into().expect("8"));
    if id == 0 {
        assert!(bytes.iter().all(|&b| b == 0), "neither zeros nor a version");
        return 0;
    }
    assert!(*bytes == *content(id), "torn bytes of version {id}");
    id
}

pub fn write_op(seq: u64, start: u32, ids: &[u64]) -> ComponentOp {
    let payload: Vec<Buf> = ids.iter().map(|&id| content(id)).collect();
    ComponentOp {
        id: OpId { epoch: Epoch(1), seq: Seq(seq) },
        ticket: Ticket { client: ClientId(5), number: seq as u32, settled_below: 1 },
        kind: OpKind::Write,
        range: BlockRange { start, count: ids.len() as u16 },
        committed: Seq(0),
        crcs: payload.iter().map(|b| atoll_format::checksum::crc(b)).collect(),
        checked: false,
        payload,
    }
}

pub fn plain_op(kind: OpKind, seq: u64, start: u32, count: u16) -> ComponentOp {
    ComponentOp {
        kind,
        range: BlockRange { start, count },
        crcs: vec![],
        payload: vec![],
        ..write_op(seq, start, &[1])
    }
}

/// Makes component `id` and opens its first session.
pub async fn make(store: &Store<TestWorld>, id: u64, blocks: u32) -> Result<Session, StoreError> {
    let id = ComponentId(id);
    store.create(id, component_spec(blocks)).await?;
    let session = Session { epoch: Epoch(1), attach: 1 };
    store.attach(id, session).await?;
    Ok(session)
}

/// The version of every block of a range; blocks without good bytes are an error.
pub async fn versions(
    store: &Store<TestWorld>,
    id: u64,
    start: u32,
    count: u16,
) -> Result<Vec<u64>, StoreError> {
    let read = store.read(ComponentId(id), BlockRange { start, count }).await?;
    let bytes = atoll_world::buf::join(&read.payload);
    assert_eq!(bytes.len(), usize::from(count) * BLOCK);
    Ok(bytes.chunks_exact(BLOCK).map(version).collect())
}
