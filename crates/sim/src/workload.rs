//! Clients that do to a volume whatever a careless guest may do, and write down what they saw.
//!
//! Invariant: every write has a tag of its own, for the whole run.

use crate::activity::{Activities, Activity};
use crate::checker::{History, Kind, OpIndex};
use crate::executor::Executor;
use crate::pattern::{self, SECTOR, Tag};
use crate::rng::Rng;
use atoll_format::units::{BLOCK, CHUNK};
use atoll_world::volume::{ExtentKind, Volume, VolumeError, ZeroFlags};
use atoll_world::{Buf, Nanos, sometimes};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What the clients of one volume do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    /// Percent of operations that write.
    pub write: u8,
    /// Percent that discard.
    pub discard: u8,
    /// Percent that write zeros.
    pub zero: u8,
    /// Percent that go to the hot part.
    pub hot: u8,
    /// The first sector of the hot part, and the one after its last; a volume that ends before has
    /// none.
    pub hot_at: (u64, u64),
    /// The largest operation, in bytes.
    pub len_max: u64,
    /// The shortest and longest pause between two operations of one client.
    pub pause: (Nanos, Nanos),
    /// What else than such a mix; the rest does not matter then.
    pub instead: Option<Instead>,
}

/// What a client does that does no mix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Instead {
    /// Reads only, in order.
    InOrder,
    /// Asks which parts are zeros.
    Looks,
}

impl Mix {
    /// A mix by chance.
    pub fn of(rng: &mut Rng) -> Self {
        Self {
            write: rng.within(20, 70) as u8,
            discard: rng.below(8) as u8,
            zero: rng.below(8) as u8,
            hot: rng.within(0, 90) as u8,
            // Over the end of a strip.
            hot_at: (1984, 2304),
            len_max: *rng.pick(&[4096, 16384, 65536, 262_144, 1 << 20]),
            pause: (Nanos::from_us(50), Nanos::from_ms(*rng.pick(&[20, 100, 400, 1_000]))),
            instead: None,
        }
    }

    /// The same volume, and something else.
    pub fn instead(other: Self, instead: Instead) -> Self {
        Self { instead: Some(instead), ..other }
    }

    /// The same with all others in two or three blocks.
    pub fn crowd(&mut self) {
        self.hot = 95;
        self.hot_at = (1016, 1040);
        self.len_max = self.len_max.min(8192);
    }

    /// Reads only, and often, where `other` is.
    pub fn reader(other: Self) -> Self {
        let pause = (Nanos::from_ms(1), Nanos::from_ms(300));
        Self { write: 0, discard: 0, zero: 0, hot: 90, len_max: 4096, pause, ..other }
    }
}

/// How a range is made zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clear {
    /// Its space is freed.
    Discard,
    /// It may be.
    Zero,
}

/// What all clients of one volume share with the harness; clones are the same.
#[derive(Clone)]
pub struct Book(Rc<Inner>);

/// What one that reads in order reads: so many stretches of so many requests.
const STRETCHES: u32 = 8;
const STRETCH: u32 = 40;

/// What one that asks for zeros asks: so often, of so many blocks at most.
const LOOKS: u32 = 120;
const LOOK_BLOCKS: u32 = 32;
const BLOCK_SECTORS: u64 = BLOCK / SECTOR as u64;

/// The error of a read that brought what nobody wrote.
const WRONG_BYTE: &str = "wrong byte";

struct Inner {
    executor: Executor,
    history: RefCell<History>,
    next_tag: Cell<Tag>,
    next_client: Cell<u32>,
    size: Cell<u64>,
    stop: Cell<bool>,
    ops_left: Cell<u64>,
    running: Cell<u32>,
    writing: Cell<u32>,
    clearing: Cell<u32>,
    errors: Cell<u64>,
    /// Of them those that say that data is lost.
    losses: Cell<u64>,
    /// Bytes that no write can have made: a wrong byte was returned.
    wrong: RefCell<Vec<String>>,
}

impl Book {
    /// For a volume of `size` bytes, and at most `ops` operations.
    pub fn new(executor: &Executor, size: u64, ops: u64) -> Self {
        Self(Rc::new(Inner {
            executor: executor.clone(),
            history: RefCell::default(),
            next_tag: Cell::new(1),
            next_client: Cell::new(0),
            size: Cell::new(size),
            stop: Cell::new(false),
            ops_left: Cell::new(ops),
            running: Cell::new(0),
            writing: Cell::new(0),
            clearing: Cell::new(0),
            errors: Cell::new(0),
            losses: Cell::new(0),
            wrong: RefCell::default(),
        }))
    }

    /// Clients stop after the operation they are at.
    pub fn stop(&self) {
        self.0.stop.set(true);
    }
    /// Whether all operations have been begun, or it was stopped.
    pub fn is_over(&self) -> bool {
        self.0.stop.get() || self.0.ops_left.get() == 0
    }
    /// Bytes of the volume.
    pub fn size(&self) -> u64 {
        self.0.size.get()
    }
    /// Clients that are at work.
    pub fn running(&self) -> u32 {
        self.0.running.get()
    }
    /// Adds what is going on.
    pub fn add_to(&self, now: &mut Activities) {
        now.add(Activity::Write, self.0.writing.get() > 0);
        now.add(Activity::Discard, self.0.clearing.get() > 0);
    }
    /// Operations that failed.
    pub fn errors(&self) -> u64 {
        self.0.errors.get()
    }
    /// Operations that failed because their data is lost.
    pub fn losses(&self) -> u64 {
        self.0.losses.get()
    }
    /// The history so far.
    pub fn history(&self) -> std::cell::Ref<'_, History> {
        self.0.history.borrow()
    }
    /// Wrong bytes that were returned.
    pub fn wrong(&self) -> Vec<String> {
        self.0.wrong.borrow().clone()
    }

    fn now(&self) -> u64 {
        self.0.executor.now().0
    }

    /// Reads a range and writes down what it showed.
    ///
    /// # Errors
    /// The volume's.
    pub async fn read<V: Volume>(
        &self,
        volume: &V,
        client: u32,
        first: u64,
        sectors: u32,
    ) -> Result<Vec<Tag>, VolumeError> {
        let op = self.0.history.borrow_mut().call(
            client,
            Kind::Read(Vec::new()),
            first,
            sectors,
            self.now(),
        );
        let (at, len) = (first * SECTOR as u64, sectors * SECTOR as u32);
        let pieces = match volume.read(at, len).await {
            Ok(pieces) => pieces,
            Err(error) => {
                self.0.history.borrow_mut().failed(op, self.now());
                return Err(error);
            }
        };
        let bytes = atoll_world::buf::join(&pieces);
        assert_eq!(bytes.len(), len as usize, "a read returns what was asked for");
        let mut tags = Vec::with_capacity(sectors as usize);
        for (i, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            match pattern::tag(sector, first + i as u64) {
                Ok(tag) => tags.push(tag),
                Err(why) => {
                    let now = self.0.executor.now();
                    let text = format!("client {client} read a wrong byte: {why}");
                    self.0.executor.trace().fact(now, None, "checker", text.clone());
                    self.0.wrong.borrow_mut().push(text);
                    return Err(VolumeError::Io(WRONG_BYTE.into()));
                }
            }
        }
        self.0.history.borrow_mut().read(op, tags.clone(), self.now());
        Ok(tags)
    }

    /// The tag of the next write.
    pub fn next_tag(&self) -> Tag {
        let tag = self.0.next_tag.get();
        self.0.next_tag.set(tag + 1);
        tag
    }

    /// A range is about to become zeros by other means than a client's.
    pub fn cleared_from(&self, first: u64, sectors: u32) -> OpIndex {
        let client = u32::MAX;
        self.0.history.borrow_mut().call(client, Kind::Zero, first, sectors, self.now())
    }

    /// Now it is.
    pub fn ended(&self, op: OpIndex) {
        self.0.history.borrow_mut().done(op, self.now());
    }

    /// Writes, or clears, a range (first sector, sectors) and writes down how it ended.
    ///
    /// # Errors
    /// The volume's.
    pub async fn change<V: Volume>(
        &self,
        volume: &V,
        client: u32,
        kind: Kind,
        how: Clear,
        (first, sectors): (u64, u32),
        rng: &mut Rng,
    ) -> Result<(), VolumeError> {
        let history = &self.0.history;
        let (at, len) = (first * SECTOR as u64, u64::from(sectors) * SECTOR as u64);
        let op = history.borrow_mut().call(client, kind.clone(), first, sectors, self.now());
        let count = if matches!(kind, Kind::Write(_)) { &self.0.writing } else { &self.0.clearing };
        let _counted = Counted::new(count);
        let result = match (kind, how) {
            (Kind::Write(tag), _) => {
                volume.write(at, cut(pattern::fill(tag, first, sectors), rng)).await
            }
            (_, Clear::Discard) => volume.discard(at, len).await,
            (_, Clear::Zero) => {
                let may_unmap = rng.below(2) == 0;
                volume.zero(at, len, ZeroFlags { may_unmap, fast_only: false }).await
            }
        };
        match &result {
            Ok(()) => history.borrow_mut().done(op, self.now()),
            // Of a longer one the part before an end that has just moved may be done.
            Err(VolumeError::OutOfRange { .. } | VolumeError::ReadOnly)
                if at / CHUNK == (at + len - 1) / CHUNK =>
            {
                history.borrow_mut().refused(op);
            }
            // Anything else may have happened, or may yet.
            Err(_) => history.borrow_mut().failed(op, self.now()),
        }
        result
    }

    /// A client at work until the book is full, it is stopped, or its volume is gone.
    pub async fn client<V: Volume>(self, volume: V, mix: Mix, mut rng: Rng) {
        let inner = &*self.0;
        let client = inner.next_client.get();
        inner.next_client.set(client + 1);
        inner.running.set(inner.running.get() + 1);
        let _running = Running(self.clone());
        match mix.instead {
            Some(Instead::InOrder) => return self.read_in_order(&volume, client, &mut rng).await,
            Some(Instead::Looks) => return self.look_again(&volume, client, mix, &mut rng).await,
            None => {}
        }
        while !self.is_over() {
            inner.ops_left.set(inner.ops_left.get() - 1);
            let (first, sectors) = self.range(&mix, &mut rng);
            let dice = rng.below(100) as u8;
            let kind = if dice < mix.write {
                Kind::Write(self.next_tag())
            } else if dice < mix.write + mix.discard + mix.zero {
                Kind::Zero
            } else {
                Kind::Read(Vec::new())
            };
            let result = if matches!(kind, Kind::Read(_)) {
                self.read(&volume, client, first, sectors).await.map(|_| ())
            } else {
                let how = if dice < mix.write + mix.discard { Clear::Discard } else { Clear::Zero };
                self.change(&volume, client, kind, how, (first, sectors), &mut rng).await
            };
            if let Err(error) = result {
                self.note_error(client, (first, sectors), &error);
                if error == VolumeError::Gone {
                    return;
                }
                // As a guest does: not again at once.
                let wait = rng.span(Nanos::from_ms(1), Nanos::from_ms(200));
                inner.executor.sleep_until(inner.executor.now() + wait).await;
            }
            if rng.below(3) > 0 {
                let pause = rng.span(mix.pause.0, mix.pause.1);
                inner.executor.sleep_until(inner.executor.now() + pause).await;
            }
        }
    }

    fn note_error(&self, client: u32, (first, sectors): (u64, u32), error: &VolumeError) {
        let inner = &*self.0;
        inner.errors.set(inner.errors.get() + 1);
        if matches!(error, VolumeError::Io(why) if why != WRONG_BYTE) {
            inner.losses.set(inner.losses.get() + 1);
        }
        let now = inner.executor.now();
        inner.executor.trace().event(now, None, "client", u64::from(client), || {
            format!("client {client} at {first}+{sectors}: {error}")
        });
    }

    /// Asks what pieces hold, where the others of that mix are.
    async fn look_again<V: Volume>(&self, volume: &V, client: u32, mix: Mix, rng: &mut Rng) {
        let inner = &*self.0;
        for _ in 0..LOOKS {
            if self.is_over() {
                break;
            }
            let (first, sectors) = self.range(&mix, rng);
            let first = first / BLOCK_SECTORS * BLOCK_SECTORS;
            match self.look(volume, client, first, sectors.div_ceil(8).min(LOOK_BLOCKS)).await {
                Ok(()) => {}
                Err(VolumeError::Gone) => return,
                Err(error) => self.note_error(client, (first, sectors), &error),
            }
            let pause = rng.span(Nanos::from_ms(1), Nanos::from_ms(100));
            inner.executor.sleep_until(inner.executor.now() + pause).await;
        }
    }

    /// Asks what blocks hold. What is said to be zeros counts as read, at some moment between the
    /// question and its answer.
    ///
    /// # Errors
    /// The volume's.
    pub async fn look<V: Volume>(
        &self,
        volume: &V,
        client: u32,
        first: u64,
        blocks: u32,
    ) -> Result<(), VolumeError> {
        let len = u64::from(blocks) * BLOCK;
        let at = first * SECTOR as u64;
        if at + len > self.0.size.get() {
            return Ok(());
        }
        let asked: Vec<OpIndex> = (0..u64::from(blocks))
            .map(|block| {
                let at = first + block * BLOCK_SECTORS;
                let kind = Kind::Read(Vec::new());
                self.0.history.borrow_mut().call(client, kind, at, 8, self.now())
            })
            .collect();
        let told = volume.extents(at, len, usize::MAX).await;
        let mut history = self.0.history.borrow_mut();
        let mut asked = asked.into_iter();
        let mut covered = 0;
        for extent in told.iter().flatten() {
            assert!(extent.len > 0 && extent.len % BLOCK == 0, "whole blocks were asked for");
            covered += extent.len;
            for op in asked.by_ref().take((extent.len / BLOCK) as usize) {
                match extent.kind {
                    ExtentKind::Data => history.failed(op, self.now()),
                    ExtentKind::Hole | ExtentKind::Zero => {
                        sometimes!("workload.zeros_were_told");
                        history.read(op, vec![0; 8], self.now());
                    }
                }
            }
        }
        assert!(covered <= len && (covered > 0 || told.is_err()), "{covered} of {len} bytes told");
        asked.for_each(|op| history.failed(op, self.now()));
        drop(history);
        told.map(drop)
    }

    /// Some stretches, with something between two requests at times.
    async fn read_in_order<V: Volume>(&self, volume: &V, client: u32, rng: &mut Rng) {
        let inner = &*self.0;
        for _ in 0..STRETCHES {
            let total = inner.size.get() / SECTOR as u64;
            let sectors = 8 * *rng.pick(&[1, 1, 2, 4, 16]);
            let mut first = rng.below(total) / 8 * 8;
            for _ in 0..STRETCH {
                if self.is_over() || first + u64::from(sectors) > total {
                    break;
                }
                match self.read(volume, client, first, sectors).await {
                    Ok(_) => first += u64::from(sectors),
                    Err(VolumeError::Gone) => return,
                    Err(error) => {
                        self.note_error(client, (first, sectors), &error);
                        break;
                    }
                }
                let span = (Nanos::from_us(20), Nanos::from_ms(*rng.pick(&[1, 1, 1, 100])));
                let pause = rng.span(span.0, span.1);
                inner.executor.sleep_until(inner.executor.now() + pause).await;
            }
            let pause = rng.span(Nanos::from_ms(1), Nanos::from_secs(3));
            inner.executor.sleep_until(inner.executor.now() + pause).await;
        }
    }

    /// A range of a volume: half of them whole blocks, small ones more often than large ones.
    fn range(&self, mix: &Mix, rng: &mut Rng) -> (u64, u32) {
        let total = self.0.size.get() / SECTOR as u64;
        let len = rng.span(Nanos(1), Nanos(mix.len_max / SECTOR as u64)).0.min(total);
        let hot = rng.below(100) < u64::from(mix.hot);
        let (from, to) = if hot && total > mix.hot_at.1 { mix.hot_at } else { (0, total) };
        let first = rng.within(from, to - 1).min(total - len);
        if rng.below(2) == 0 {
            let first = first / 8 * 8;
            // Of the longer ones, a whole chunk: stores write those past their log. From what was
            // drawn already, so that other seeds stay what they are.
            let chunk = CHUNK / SECTOR as u64;
            if len * 4 > chunk && total >= chunk {
                return ((first / chunk).min(total / chunk - 1) * chunk, chunk as u32);
            }
            let len = len.next_multiple_of(8).min(total - first);
            return (first, len as u32);
        }
        (first, len as u32)
    }
}

/// In up to three pieces, as a front end may hand them over.
fn cut(data: Buf, rng: &mut Rng) -> Vec<Buf> {
    let mut pieces = Vec::new();
    let mut rest = data;
    while pieces.len() < 2 && rest.len() > SECTOR && rng.below(3) == 0 {
        let at = rng.within(1, (rest.len() / SECTOR) as u64 - 1) as usize * SECTOR;
        pieces.push(rest.slice(..at));
        rest = rest.slice(at..);
    }
    pieces.push(rest);
    pieces
}

/// One more, until it is dropped.
struct Counted<'a>(&'a Cell<u32>);

impl<'a> Counted<'a> {
    fn new(count: &'a Cell<u32>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

struct Running(Book);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.running.set(self.0.0.running.get() - 1);
    }
}
