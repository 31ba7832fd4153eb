//! A modelled disk: queues in time, sectors in content, and every way in which a disk lies.
//!
//! Time: `channels` servers with a base time an operation, and one bus with a bandwidth. Content:
//! pages of 4 KiB, as reads see them, and beside them what is durable of the pages that have
//! unflushed writes. A power loss decides for each unflushed write and each write in flight by
//! itself whether it was made, lost, or torn at the grain of 512 bytes.
//!
//! Invariants: an operation takes effect at its completion and whether or not anybody still waits
//! for it; after a clean flush the durable content equals what reads see.

use crate::executor::Executor;
use crate::fault::{DiskRates, FaultKind, Faults};
use crate::rng::Rng;
use crate::step::Step;
use atoll_format::superblock::{Region, Superblock};
use atoll_world::disk::{Disk, Durability};
use atoll_world::sync::{Sender, oneshot};
use atoll_world::{Buf, BufMut, Nanos};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::io;
use std::rc::Rc;

const PAGE: usize = 4096;
const SECTOR: usize = 512;
const ZEROS: [u8; PAGE] = [0; PAGE];
const EIO: i32 = 5;
const ENODEV: i32 = 19;
const ENOSPC: i32 = 28;

/// What a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskProfile {
    /// Operations served at once.
    pub channels: u16,
    /// Time of a read, its transfer left out.
    pub read: Nanos,
    /// Time of a write into the device's cache, its transfer left out.
    pub write: Nanos,
    /// Time of a flush, and what a durable write takes on top.
    pub flush: Nanos,
    /// Time that an operation takes more if it does not follow the last one.
    pub seek: Nanos,
    /// Transfer rate, in bytes per microsecond (= MB/s).
    pub bytes_per_us: u64,
}

impl DiskProfile {
    /// A data-centre NVMe disk with a protected cache.
    pub const NVME: Self = Self {
        channels: 32,
        read: Nanos(75_000),
        write: Nanos(12_000),
        flush: Nanos(3_000),
        seek: Nanos(0),
        bytes_per_us: 3_000,
    };
    /// A SATA SSD.
    pub const SATA: Self = Self {
        channels: 8,
        read: Nanos(120_000),
        write: Nanos(50_000),
        flush: Nanos(800_000),
        seek: Nanos(0),
        bytes_per_us: 500,
    };
    /// A hard disk.
    pub const HDD: Self = Self {
        channels: 1,
        read: Nanos(200_000),
        write: Nanos(200_000),
        flush: Nanos(8_000_000),
        seek: Nanos(8_000_000),
        bytes_per_us: 180,
    };
}

/// An unflushed write, and the durable content under it is in `Media::base`.
struct Unflushed {
    /// Counts completed writes: a flush covers those that had completed when it was asked for.
    id: u64,
    at: u64,
    data: Buf,
}

enum Op {
    Read { at: u64, len: u32, reply: Sender<io::Result<Buf>> },
    Write { at: u64, data: Vec<Buf>, durable: bool, reply: Sender<io::Result<()>> },
    Flush { upto: u64, reply: Sender<io::Result<()>> },
}

/// Shared between what reads see, what is durable and images until one of them changes.
type Page = Rc<[u8; PAGE]>;

/// What a medium holds, with everything unflushed taken as made.
#[derive(Clone, Default)]
pub struct Image(BTreeMap<u64, Page>);

struct Media {
    executor: Executor,
    name: String,
    host: u16,
    number: u64,
    profile: DiskProfile,
    len_bytes: u64,
    /// As reads see it; no entry: zeros.
    pages: BTreeMap<u64, Page>,
    /// Durable content of the pages that have unflushed writes; none: zeros.
    base: BTreeMap<u64, Option<Page>>,
    unflushed: Vec<Unflushed>,
    latent: BTreeSet<u64>,
    pending: BTreeMap<u64, Op>,
    /// What lies where, once a store is on it.
    regions: Vec<Region>,
    /// Operations whose time has come while the device hangs.
    held: Vec<u64>,
    next: u64,
    completions: u64,
    channels: Vec<Nanos>,
    bus: Nanos,
    /// What was asked of all channels, and of the bus, so far.
    booked: (Nanos, Nanos),
    head: u64,
    rates: DiskRates,
    slow_factor: u64,
    hung: bool,
    gone: bool,
    /// How often it has disappeared.
    times_gone: u32,
    /// It is in another disk's place.
    misplaced: bool,
    wipes: u32,
    rng: Rng,
    faults: Faults,
    counts: DiskCounts,
}

/// What a device has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskCounts {
    /// Reads completed.
    pub reads: u64,
    /// Writes completed.
    pub writes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Buffers that direct I/O could not take as they are.
    pub unaligned_pieces: u64,
}

/// How long a disk that has healed may still be busy with what it was asked before.
const HEALED_QUEUE: Nanos = Nanos::from_secs(1);

/// A disk of a host; clones are the same disk, and it outlives the lives of its host.
#[derive(Clone)]
pub struct SimDisk(Rc<RefCell<Media>>, Opened);

/// How the disk was opened: a file descriptor of a disk that went is of no use when it is back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    /// Not by a host: whatever is there now.
    Place,
    /// When it had gone so many times.
    After(u32),
}

fn os<T>(code: i32) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(code))
}

/// Puts `data` into `pages` from `at` on (both multiples of a sector).
fn put(pages: &mut BTreeMap<u64, Page>, at: u64, data: &[u8]) {
    let (mut at, mut data) = (at, data);
    while !data.is_empty() {
        let (page, from) = (at / PAGE as u64, (at % PAGE as u64) as usize);
        let len = (PAGE - from).min(data.len());
        if len == PAGE && data[..PAGE] == ZEROS {
            pages.remove(&page);
            at += PAGE as u64;
            data = &data[PAGE..];
            continue;
        }
        match (<&[u8; PAGE]>::try_from(&data[..len]), pages.entry(page)) {
            (Ok(whole), Entry::Occupied(mut old)) => match Rc::get_mut(old.get_mut()) {
                Some(bytes) => *bytes = *whole,
                None => *old.get_mut() = Rc::new(*whole),
            },
            (Ok(whole), Entry::Vacant(place)) => _ = place.insert(Rc::new(*whole)),
            (Err(_), entry) => {
                let bytes = Rc::make_mut(entry.or_insert_with(|| Rc::new(ZEROS)));
                bytes[from..from + len].copy_from_slice(&data[..len]);
            }
        }
        at += len as u64;
        data = &data[len..];
    }
}

impl Media {
    /// When an operation submitted now is done.
    fn served(&mut self, base: Nanos, at: u64, bytes: u64) -> Nanos {
        let now = self.executor.now();
        let mut base = if at == self.head { base } else { base + self.profile.seek };
        if self.rng.happens(self.rates.slow) {
            self.faults.reached(FaultKind::DiskSlow);
            base = base * self.rng.within(10, 1000);
        }
        base = base * self.slow_factor;
        if self.slow_factor > 1 {
            self.faults.reached(FaultKind::DiskSlow);
        }
        let transfer = Nanos(bytes * 1000 / self.profile.bytes_per_us);
        let channel = self.channels.iter_mut().min().expect("a disk has a channel");
        *channel = (*channel).max(now) + base + transfer;
        self.bus = self.bus.max(now) + transfer;
        self.booked.0 += base + transfer;
        self.booked.1 += transfer;
        self.head = at + bytes;
        (*channel).max(self.bus)
    }

    fn note(&self, what: u64, at: u64, text: impl FnOnce() -> String) {
        let fact = what << 56 ^ self.number << 48 ^ at;
        let name = &self.name;
        self.executor.trace().event(self.executor.now(), Some(self.host), "disk", fact, || {
            format!("{name} {}", text())
        });
    }

    fn submit(&mut self, this: &SimDisk, done: Nanos, op: Op) {
        self.next += 1;
        let id = self.next;
        self.pending.insert(id, op);
        let this = this.clone();
        self.executor.call_at(done, move || this.complete(id));
    }

    /// What an operation that changes something is for; none before a store is on the device.
    fn step(&self, op: &Op) -> Option<Step> {
        match op {
            _ if self.regions.is_empty() => None,
            Op::Read { .. } => None,
            Op::Write { at, .. } => Some(Step::of_write(&self.regions, *at)),
            Op::Flush { .. } => Some(Step::Flush),
        }
    }

    fn note_crash(&self) {
        let steps: BTreeSet<Step> = self.pending.values().filter_map(|op| self.step(op)).collect();
        for step in steps {
            self.faults.crashed_before(self.host, step);
        }
    }

    fn keep_base(&mut self, at: u64, len: usize) {
        for page in at / PAGE as u64..(at + len as u64).div_ceil(PAGE as u64) {
            self.base.entry(page).or_insert_with(|| self.pages.get(&page).cloned());
        }
    }

    /// The medium changes under whatever is durable: bytes that were asked for or not.
    fn apply(&mut self, at: u64, data: &Buf, durable: bool) {
        for page in at / PAGE as u64..(at + data.len() as u64).div_ceil(PAGE as u64) {
            self.latent.remove(&page);
        }
        if durable {
            if !self.base.is_empty() {
                self.put_base(at, data);
            }
        } else {
            self.keep_base(at, data.len());
            self.completions += 1;
            let id = self.completions;
            self.unflushed.push(Unflushed { id, at, data: data.clone() });
        }
        put(&mut self.pages, at, data);
    }

    /// Puts durable bytes under the unflushed ones, where there are any. An older unflushed write
    /// of the same place is settled with it: it cannot come back.
    fn put_base(&mut self, at: u64, data: &[u8]) {
        for (i, sector) in data.chunks(SECTOR).enumerate() {
            let place = at + (i * SECTOR) as u64;
            let page = place / PAGE as u64;
            if let Some(base) = self.base.get_mut(&page) {
                let bytes = Rc::make_mut(base.get_or_insert_with(|| Rc::new(ZEROS)));
                let from = (place % PAGE as u64) as usize;
                bytes[from..from + sector.len()].copy_from_slice(sector);
            }
        }
        let end = at + data.len() as u64;
        let mut kept = Vec::with_capacity(self.unflushed.len());
        for write in self.unflushed.drain(..) {
            let write_end = write.at + write.data.len() as u64;
            if write_end <= at || end <= write.at {
                kept.push(write);
                continue;
            }
            // What sticks out on either side is still unflushed.
            if write.at < at {
                let data = write.data.slice(..(at - write.at) as usize);
                kept.push(Unflushed { id: write.id, at: write.at, data });
            }
            if write_end > end {
                let data = write.data.slice((end - write.at) as usize..);
                kept.push(Unflushed { id: write.id, at: end, data });
            }
        }
        self.unflushed = kept;
    }

    /// Everything up to `upto` is durable.
    fn settle(&mut self, upto: u64) {
        let (settled, left): (Vec<_>, Vec<_>) =
            self.unflushed.drain(..).partition(|w| w.id <= upto);
        self.unflushed = left;
        if self.unflushed.is_empty() {
            self.base.clear();
            return;
        }
        for write in settled {
            for (i, sector) in write.data.chunks(SECTOR).enumerate() {
                let place = write.at + (i * SECTOR) as u64;
                let base = self.base.get_mut(&(place / PAGE as u64)).expect("kept at its write");
                let bytes = Rc::make_mut(base.get_or_insert_with(|| Rc::new(ZEROS)));
                let from = (place % PAGE as u64) as usize;
                bytes[from..from + SECTOR].copy_from_slice(sector);
            }
        }
    }

    /// Back to what is durable, with each unflushed write kept, lost or torn.
    fn lose_unflushed(&mut self, all: bool) {
        for (page, bytes) in std::mem::take(&mut self.base) {
            match bytes {
                Some(bytes) => self.pages.insert(page, bytes),
                None => self.pages.remove(&page),
            };
        }
        let mut gap = false;
        for write in std::mem::take(&mut self.unflushed) {
            let made = self.maybe_make(write.at, &write.data, all);
            if made && gap {
                self.faults.reached(FaultKind::UnflushedReordered);
            }
            gap |= !made;
        }
    }

    /// Whether it was made, whole.
    fn maybe_make(&mut self, at: u64, data: &[u8], lose_all: bool) -> bool {
        match if lose_all { 9 } else { self.rng.below(10) } {
            0..3 => {
                put(&mut self.pages, at, data);
                return true;
            }
            3..6 => {
                self.faults.reached(FaultKind::UnflushedTorn);
                if self.rng.below(2) == 0 {
                    // Cut off at a sector.
                    let sectors = self.rng.below((data.len() / SECTOR) as u64 + 1) as usize;
                    put(&mut self.pages, at, &data[..sectors * SECTOR]);
                } else {
                    // Any subset of its sectors.
                    for (i, sector) in data.chunks(SECTOR).enumerate() {
                        if self.rng.below(2) == 0 {
                            put(&mut self.pages, at + (i * SECTOR) as u64, sector);
                        }
                    }
                }
            }
            _ => self.faults.reached(FaultKind::UnflushedLost),
        }
        false
    }

    fn copy(&self, at: u64, len: u32) -> Buf {
        let mut out = BufMut::for_overwrite(len as usize);
        for (i, to) in out.chunks_mut(PAGE).enumerate() {
            match self.pages.get(&(at / PAGE as u64 + i as u64)) {
                Some(page) => to.copy_from_slice(&page[..]),
                None => to.fill(0),
            }
        }
        out.freeze()
    }

    /// Another place of the same length, near enough to hold something.
    fn elsewhere(&mut self, at: u64, len: u64) -> u64 {
        let last = (self.len_bytes - len) / PAGE as u64;
        let here = at / PAGE as u64;
        let far = self.rng.within(1, 64);
        let there = if self.rng.below(2) == 0 { here.saturating_sub(far) } else { here + far };
        there.min(last) * PAGE as u64
    }
}

impl SimDisk {
    /// An empty disk of `len_bytes` (rounded down to 4 KiB) in `host`.
    pub fn new(
        executor: &Executor,
        host: u16,
        name: &str,
        profile: DiskProfile,
        len_bytes: u64,
        rng: Rng,
        faults: Faults,
    ) -> Self {
        let number = name.bytes().fold(0u64, |n, b| (n * 31 + u64::from(b)) & 0xff);
        Self(
            Rc::new(RefCell::new(Media {
                executor: executor.clone(),
                name: name.to_owned(),
                host,
                number,
                profile,
                len_bytes: len_bytes / PAGE as u64 * PAGE as u64,
                pages: BTreeMap::new(),
                base: BTreeMap::new(),
                unflushed: Vec::new(),
                latent: BTreeSet::new(),
                pending: BTreeMap::new(),
                regions: Vec::new(),
                held: Vec::new(),
                next: 0,
                completions: 0,
                channels: vec![Nanos::ZERO; usize::from(profile.channels)],
                bus: Nanos::ZERO,
                booked: (Nanos::ZERO, Nanos::ZERO),
                head: 0,
                rates: DiskRates::default(),
                slow_factor: 1,
                hung: false,
                gone: false,
                times_gone: 0,
                misplaced: false,
                wipes: 0,
                rng,
                faults,
                counts: DiskCounts::default(),
            })),
            Opened::Place,
        )
    }

    /// Whether the end of an operation is where its host is to crash, and has done so.
    fn host_crashes_before(&self, id: u64) -> bool {
        let media = self.0.borrow();
        let step = media.pending.get(&id).filter(|_| !media.hung).and_then(|op| media.step(op));
        let (host, faults) = (media.host, media.faults.clone());
        drop(media);
        step.is_some_and(|step| faults.crashes_before(host, step))
    }

    fn complete(&self, id: u64) {
        if self.host_crashes_before(id) {
            return;
        }
        let mut m = self.0.borrow_mut();
        let media = &mut *m;
        if media.hung {
            media.held.push(id);
            return;
        }
        let Some(op) = media.pending.remove(&id) else {
            return; // the power went first
        };
        // Replies wake tasks, which run later: nothing is re-entered while this is borrowed.
        match op {
            Op::Read { at, len, reply } => {
                media.counts.reads += 1;
                media.counts.read_bytes += u64::from(len);
                let pages = at / PAGE as u64..(at + u64::from(len)) / PAGE as u64;
                if media.latent.range(pages).next().is_some() {
                    media.faults.reached(FaultKind::LatentSector);
                    media.note(1, at, || format!("read {at}+{len}: latent sector error"));
                    return reply.send(os(EIO));
                }
                if media.rng.happens(media.rates.read_error) {
                    media.faults.reached(FaultKind::ReadError);
                    media.note(2, at, || format!("read {at}+{len}: EIO"));
                    return reply.send(os(EIO));
                }
                let mut from = at;
                if media.rng.happens(media.rates.misdirected_read) {
                    media.faults.reached(FaultKind::MisdirectedRead);
                    from = media.elsewhere(at, u64::from(len));
                    media.note(3, at, || format!("read {at}+{len}: misdirected to {from}"));
                } else {
                    media.note(4, at, || format!("read {at}+{len}"));
                }
                reply.send(Ok(media.copy(from, len)));
            }
            Op::Write { at, data, durable, reply } => {
                let len: u64 = data.iter().map(|b| b.len() as u64).sum();
                media.counts.writes += 1;
                media.counts.written_bytes += len;
                if media.rng.happens(media.rates.full) {
                    media.faults.reached(FaultKind::DiskFull);
                    media.note(5, at, || format!("write {at}+{len}: ENOSPC"));
                    return reply.send(os(ENOSPC));
                }
                let bytes = atoll_world::buf::join(&data);
                if media.rng.happens(media.rates.write_error) {
                    media.faults.reached(FaultKind::WriteError);
                    media.note(6, at, || format!("write {at}+{len}: EIO"));
                    // Part of it may be there.
                    let sectors = media.rng.below(len / SECTOR as u64 + 1) as usize;
                    media.apply(at, &bytes.slice(..sectors * SECTOR), false);
                    return reply.send(os(EIO));
                }
                if media.rng.happens(media.rates.lost) {
                    media.faults.reached(FaultKind::LostWrite);
                    media.note(7, at, || format!("write {at}+{len}: lost"));
                } else if media.rng.happens(media.rates.torn) {
                    media.faults.reached(FaultKind::TornWrite);
                    let sectors = media.rng.below(len / SECTOR as u64) as usize;
                    media.note(8, at, || format!("write {at}+{len}: torn after {sectors} sectors"));
                    media.apply(at, &bytes.slice(..sectors * SECTOR), durable);
                } else if media.rng.happens(media.rates.misdirected_write) {
                    media.faults.reached(FaultKind::MisdirectedWrite);
                    let to = media.elsewhere(at, len);
                    media.note(9, at, || format!("write {at}+{len}: misdirected to {to}"));
                    media.apply(to, &bytes, durable);
                } else {
                    let how = if durable { "durable" } else { "cached" };
                    media.note(10, at, || format!("write {at}+{len} {how}"));
                    media.apply(at, &bytes, durable);
                }
                reply.send(Ok(()));
            }
            Op::Flush { upto, reply } => {
                media.counts.flushes += 1;
                if media.rng.happens(media.rates.flush_error) {
                    media.faults.reached(FaultKind::FlushError);
                    media.note(11, 0, || "flush: EIO, unflushed writes are gone".into());
                    media.lose_unflushed(true);
                    return reply.send(os(EIO));
                }
                media.note(12, 0, || "flush".into());
                media.settle(upto);
                reply.send(Ok(()));
            }
        }
    }

    /// The process that used it has died; the device has power. What it was doing it completes,
    /// or had not begun.
    pub fn process_died(&self) {
        let mut media = self.0.borrow_mut();
        media.note_crash();
        for (_, op) in std::mem::take(&mut media.pending) {
            if let Op::Write { at, data, durable, .. } = op
                && !media.gone
                && media.rng.below(2) == 0
            {
                let bytes = atoll_world::buf::join(&data);
                media.apply(at, &bytes, durable);
            }
        }
        media.held.clear();
    }

    /// The power is gone: what was unflushed or in flight was made, lost or torn, each by itself.
    pub fn power_lost(&self) {
        let mut media = self.0.borrow_mut();
        let media = &mut *media;
        media.note_crash();
        media.lose_unflushed(false);
        for (_, op) in std::mem::take(&mut media.pending) {
            if let Op::Write { at, data, .. } = op
                && !media.gone
            {
                let bytes = atoll_world::buf::join(&data);
                media.maybe_make(at, &bytes, false);
            }
        }
        media.held.clear();
        media.hung = false;
        media.channels.fill(Nanos::ZERO);
        media.bus = Nanos::ZERO;
    }

    /// A store has been opened on it: where what lies is in its label.
    pub fn look_at_label(&self) {
        let mut media = self.0.borrow_mut();
        let first = media.pages.get(&0).and_then(|page| Superblock::decode(&page[..], 0).ok());
        media.regions = first.map(|label| label.regions).unwrap_or_default();
    }

    /// From now on operations fail at these rates.
    pub fn set_rates(&self, rates: DiskRates) {
        self.0.borrow_mut().rates = rates;
    }

    /// From now on operations take that many times as long.
    pub fn set_slow(&self, factor: u64) {
        self.0.borrow_mut().slow_factor = factor.max(1);
    }

    /// Works from now on as one does that has never had a fault. What a slow operation left in its
    /// queue for longer than [`HEALED_QUEUE`] is done at once: single slow operations of a slow
    /// disk last for minutes, and a disk with those still before it has not healed.
    pub fn heal(&self) {
        self.set_rates(DiskRates::default());
        self.set_slow(1);
        self.set_gone(false);
        self.set_hung(false);
        let late: Vec<u64> = {
            let mut media = self.0.borrow_mut();
            let now = media.executor.now();
            let last = media.channels.iter().copied().fold(media.bus, Nanos::max);
            if last.since(now) <= HEALED_QUEUE {
                return;
            }
            let booked = media.channels.iter().fold(Nanos::ZERO, |sum, free| sum + free.since(now));
            media.booked.0 = media.booked.0 - booked;
            media.booked.1 = media.booked.1 - media.bus.since(now);
            media.channels.iter_mut().for_each(|free| *free = now.min(*free));
            media.bus = now.min(media.bus);
            media.pending.keys().copied().collect()
        };
        late.into_iter().for_each(|id| self.complete(id));
    }

    /// Stops answering, or goes on with what it was asked meanwhile.
    pub fn set_hung(&self, hung: bool) {
        let held = {
            let mut media = self.0.borrow_mut();
            media.hung = hung;
            if hung {
                return media.faults.reached(FaultKind::DiskHang);
            }
            std::mem::take(&mut media.held)
        };
        for id in held {
            self.complete(id);
        }
    }

    /// Disappears (its power with it), or is there again with what was durable.
    pub fn set_gone(&self, gone: bool) {
        let pending = {
            let mut media = self.0.borrow_mut();
            if media.gone == gone {
                return;
            }
            media.gone = gone;
            if !gone {
                return;
            }
            media.times_gone += 1;
            media.faults.reached(FaultKind::DiskGone);
            media.lose_unflushed(false);
            media.held.clear();
            std::mem::take(&mut media.pending)
        };
        for (_, op) in pending {
            match op {
                Op::Read { reply, .. } => reply.send(os(ENODEV)),
                Op::Write { reply, .. } | Op::Flush { reply, .. } => reply.send(os(ENODEV)),
            }
        }
    }

    /// Whether it has disappeared.
    pub fn is_gone(&self) -> bool {
        self.0.borrow().gone
    }

    /// As a host opens it: once the disk disappears, this gives errors for ever.
    #[must_use]
    pub fn opened(&self) -> Self {
        Self(self.0.clone(), Opened::After(self.0.borrow().times_gone))
    }

    /// Whether operations of whoever opened it before have not ended. A real disk cannot be opened
    /// until then.
    pub fn is_in_use(&self) -> bool {
        !self.0.borrow().pending.is_empty()
    }

    /// Whether it has disappeared since this was opened.
    pub fn is_lost(&self) -> bool {
        self.is_lost_to(&self.0.borrow())
    }

    fn is_lost_to(&self, media: &Media) -> bool {
        let was_there = self.1 == Opened::Place || self.1 == Opened::After(media.times_gone);
        media.gone || !was_there
    }

    /// A page that was ever written becomes unreadable until it is written again. False if there
    /// is none.
    pub fn make_latent(&self) -> bool {
        let mut media = self.0.borrow_mut();
        let media = &mut *media;
        let Some(page) = some_page(&media.pages, &mut media.rng) else { return false };
        media.latent.insert(page);
        media.note(13, page, || format!("page {page} becomes unreadable"));
        true
    }

    /// Flips a bit of a page that was ever written. False if there is none.
    pub fn flip(&self) -> bool {
        let mut media = self.0.borrow_mut();
        let media = &mut *media;
        let Some(page) = some_page(&media.pages, &mut media.rng) else { return false };
        let bit = media.rng.below(PAGE as u64 * 8);
        flip_bit(media, page, bit);
        true
    }

    /// Flips a bit of the byte at `at`.
    pub fn flip_at(&self, at: u64) {
        let mut media = self.0.borrow_mut();
        flip_bit(&mut media, at / PAGE as u64, at % PAGE as u64 * 8);
    }

    /// The page at `at` becomes unreadable until it is written again.
    pub fn make_latent_at(&self, at: u64) {
        let mut media = self.0.borrow_mut();
        media.latent.insert(at / PAGE as u64);
        media.note(13, at / PAGE as u64, || format!("the page at {at} becomes unreadable"));
    }

    /// Where the pages are that hold what `wanted` looks for, in order; pages of zeros are not
    /// asked about.
    pub fn find(&self, mut wanted: impl FnMut(u64, &[u8]) -> bool) -> Vec<u64> {
        let media = self.0.borrow();
        let pages = media.pages.iter().map(|(page, bytes)| (page * PAGE as u64, bytes));
        pages.filter(|(at, bytes)| wanted(*at, &bytes[..])).map(|(at, _)| at).collect()
    }

    /// Its end is cut off, with what was there.
    pub fn truncate(&self, len_bytes: u64) {
        let mut media = self.0.borrow_mut();
        media.len_bytes = len_bytes / PAGE as u64 * PAGE as u64;
        let end = media.len_bytes / PAGE as u64;
        media.pages.split_off(&end);
        media.base.split_off(&end);
        media.unflushed.retain(|w| w.at + w.data.len() as u64 <= len_bytes);
    }

    /// What it holds, everything unflushed taken as made.
    pub fn image(&self) -> Image {
        Image(self.0.borrow().pages.clone())
    }

    /// Puts an earlier content back, durable: a stale clone.
    pub fn restore(&self, image: Image) {
        let mut media = self.0.borrow_mut();
        media.pages = image.0;
        media.base.clear();
        media.unflushed.clear();
        media.latent.clear();
        media.faults.reached(FaultKind::StaleDisk);
    }

    /// Exchanges the contents of two disks: they were put into each other's place.
    pub fn swap(&self, other: &Self) {
        let (mut a, mut b) = (self.0.borrow_mut(), other.0.borrow_mut());
        let (a, b) = (&mut *a, &mut *b);
        a.lose_unflushed(false);
        b.lose_unflushed(false);
        std::mem::swap(&mut a.pages, &mut b.pages);
        std::mem::swap(&mut a.latent, &mut b.latent);
        std::mem::swap(&mut a.rates, &mut b.rates);
        (a.misplaced, b.misplaced) = (!a.misplaced, !b.misplaced);
        if a.misplaced {
            a.faults.reached(FaultKind::SwappedDisks);
        }
    }

    /// Whether it holds what another one should.
    pub fn is_misplaced(&self) -> bool {
        self.0.borrow().misplaced
    }

    /// How often it was made empty.
    pub fn wipes(&self) -> u32 {
        self.0.borrow().wipes
    }

    /// Makes it empty.
    pub fn wipe(&self) {
        let mut media = self.0.borrow_mut();
        media.wipes += 1;
        media.pages.clear();
        media.base.clear();
        media.unflushed.clear();
        media.latent.clear();
    }

    /// What it has done.
    pub fn counts(&self) -> DiskCounts {
        self.0.borrow().counts
    }

    /// For how long its channels (each as much as the others) and its bus have been at work.
    pub fn busy(&self) -> (Nanos, Nanos) {
        let media = self.0.borrow();
        let now = media.executor.now();
        let ahead = media.channels.iter().fold(Nanos::ZERO, |sum, free| sum + free.since(now));
        let channels = (media.booked.0 - ahead) / media.channels.len() as u64;
        (channels, media.booked.1 - media.bus.since(now))
    }

    /// Bytes that it holds (pages that were ever written).
    pub fn stored_bytes(&self) -> u64 {
        (self.0.borrow().pages.len() * PAGE) as u64
    }

    /// Its name.
    pub fn name(&self) -> String {
        self.0.borrow().name.clone()
    }
}

fn some_page(pages: &BTreeMap<u64, Page>, rng: &mut Rng) -> Option<u64> {
    let (first, last) = (*pages.first_key_value()?.0, *pages.last_key_value()?.0);
    // Anywhere between the ends, then the next page that holds something: a run of pages after a
    // gap is met more often than its share, which does no harm.
    if rng.below(2) == 0 {
        let n = rng.below(pages.len() as u64) as usize;
        return pages.keys().nth(n).copied();
    }
    pages.range(rng.within(first, last)..).next().map(|(page, _)| *page)
}

fn flip_bit(media: &mut Media, page: u64, bit: u64) {
    let flip = |page: &mut Page| Rc::make_mut(page)[(bit / 8) as usize] ^= 1 << (bit % 8);
    flip(media.pages.entry(page).or_insert_with(|| Rc::new(ZEROS)));
    if let Some(base) = media.base.get_mut(&page) {
        flip(base.get_or_insert_with(|| Rc::new(ZEROS)));
    }
    media.faults.reached(FaultKind::BitFlip);
    media.note(14, page, || format!("bit {bit} of page {page} flips"));
}

impl Disk for SimDisk {
    fn len_bytes(&self) -> u64 {
        self.0.borrow().len_bytes
    }

    async fn read(&self, at: u64, len: u32) -> io::Result<Buf> {
        let wait = {
            let mut media = self.0.borrow_mut();
            check(&media, at, u64::from(len));
            if self.is_lost_to(&media) {
                return os(ENODEV);
            }
            if at + u64::from(len) > media.len_bytes {
                return os(EIO);
            }
            let base = media.profile.read;
            let done = media.served(base, at, u64::from(len));
            let (reply, wait) = oneshot();
            media.submit(self, done, Op::Read { at, len, reply });
            wait
        };
        wait.await.unwrap_or_else(|_| os(EIO))
    }

    async fn write(&self, at: u64, data: Vec<Buf>, durability: Durability) -> io::Result<()> {
        let wait = {
            let mut media = self.0.borrow_mut();
            let len: u64 = data.iter().map(|b| b.len() as u64).sum();
            check(&media, at, len);
            // Direct I/O would need a copy of each of these first.
            let odd = data.iter().filter(|b| !b.is_aligned()).count();
            media.counts.unaligned_pieces += odd as u64;
            if self.is_lost_to(&media) {
                return os(ENODEV);
            }
            if at + len > media.len_bytes {
                return os(ENOSPC);
            }
            let durable = durability == Durability::Durable;
            let extra = if durable { media.profile.flush } else { Nanos::ZERO };
            let base = media.profile.write + extra;
            let done = media.served(base, at, len);
            let (reply, wait) = oneshot();
            media.submit(self, done, Op::Write { at, data, durable, reply });
            wait
        };
        wait.await.unwrap_or_else(|_| os(EIO))
    }

    async fn flush(&self) -> io::Result<()> {
        let wait = {
            let mut media = self.0.borrow_mut();
            if self.is_lost_to(&media) {
                return os(ENODEV);
            }
            let upto = media.completions;
            let base = media.profile.flush;
            let head = media.head;
            let done = media.served(base, head, 0);
            let (reply, wait) = oneshot();
            media.submit(self, done, Op::Flush { upto, reply });
            wait
        };
        wait.await.unwrap_or_else(|_| os(EIO))
    }

    async fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        let media = self.0.borrow();
        check(&media, at, len);
        if self.is_lost_to(&media) { os(ENODEV) } else { Ok(()) }
    }
}

fn check(media: &Media, at: u64, len: u64) {
    let page = PAGE as u64;
    assert!(
        at.is_multiple_of(page) && len.is_multiple_of(page) && len > 0,
        "{}: unaligned access at {at}+{len}",
        media.name
    );
}

#[cfg(test)]
mod tests {
    use super::{DiskProfile, SimDisk};
    use crate::executor::{Executor, LifeId};
    use crate::fault::{DiskRates, FaultKind, Faults};
    use crate::rng::Rng;
    use crate::trace::Trace;
    use atoll_world::disk::{Disk, Durability};
    use atoll_world::{Buf, BufMut, Nanos};
    use std::future::Future;

    struct Bench {
        ex: Executor,
        disk: SimDisk,
        faults: Faults,
    }

    fn bench(seed: u64) -> Bench {
        let ex = Executor::new(seed, Trace::new(false));
        let faults = Faults::default();
        let rng = Rng::named(seed, "disk");
        let disk = SimDisk::new(&ex, 0, "d0", DiskProfile::NVME, 1 << 30, rng, faults.clone());
        Bench { ex, disk, faults }
    }

    impl Bench {
        fn run<T: 'static>(&self, f: impl Future<Output = T> + 'static) -> T {
            let end = self.ex.now() + Nanos::from_secs(100);
            self.ex.block_on(end, f).expect("it ends")
        }
        fn write(&self, page: u64, fill: u8, durability: Durability) {
            let d = self.disk.clone();
            self.run(async move { d.write(page * 4096, vec![filled(fill)], durability).await })
                .unwrap();
        }
        fn read(&self, page: u64) -> Vec<u8> {
            let d = self.disk.clone();
            self.run(async move { d.read(page * 4096, 4096).await }).unwrap().to_vec()
        }
    }

    impl Drop for Bench {
        fn drop(&mut self) {
            self.ex.shutdown();
        }
    }

    fn filled(fill: u8) -> Buf {
        let mut b = BufMut::for_overwrite(4096);
        b.fill(fill);
        b.freeze()
    }

    #[test]
    fn times_are_the_sum_of_base_and_transfer_and_queues_form() {
        let b = bench(1);
        let d = b.disk.clone();
        let t0 = b.ex.now();
        b.run(async move { d.write(0, vec![filled(1)], Durability::Volatile).await }).unwrap();
        // 12 us + 4096 B at 3000 B/us.
        assert_eq!(b.ex.now().since(t0), Nanos(12_000 + 1_365));
        let t0 = b.ex.now();
        b.write(0, 1, Durability::Durable);
        assert_eq!(b.ex.now().since(t0), Nanos(12_000 + 3_000 + 1_365));
        // 3000 reads of 64 KiB at once: the bus, not the channels, is the limit.
        let (d, t0) = (b.disk.clone(), b.ex.now());
        b.run(async move {
            let reads = (0..3000).map(|i| d.read(i % 100 * (1 << 16), 1 << 16));
            futures_util::future::join_all(reads).await;
        });
        let rate = 3000.0 * 65536.0 / b.ex.now().since(t0).as_us() as f64;
        assert!((2980.0..3001.0).contains(&rate), "{rate} bytes per us");
    }

    #[test]
    fn a_power_loss_keeps_what_was_flushed_and_plays_with_the_rest() {
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let b = bench(seed);
            b.write(1, 1, Durability::Volatile);
            b.write(2, 1, Durability::Durable);
            let d = b.disk.clone();
            b.run(async move { d.flush().await }).unwrap();
            b.write(1, 2, Durability::Volatile);
            b.write(3, 3, Durability::Volatile);
            assert_eq!(b.read(1), [2; 4096], "reads see the cache");
            b.disk.power_lost();
            assert_eq!(b.read(2), [1; 4096]);
            let page = b.read(1);
            match (page.contains(&1), page.contains(&2)) {
                (true, false) => lost += 1,
                (false, true) => kept += 1,
                _ => torn += 1,
            }
            for sector in page.chunks(512) {
                assert!(sector == [1; 512] || sector == [2; 512], "torn inside a sector");
            }
            let third = b.read(3);
            assert!(third.iter().all(|&x| x == 0 || x == 3));
        }
        assert!(kept > 30 && lost > 30 && torn > 20, "{kept} {lost} {torn}");
    }

    #[test]
    fn a_durable_write_over_an_unflushed_one_cannot_be_undone() {
        for seed in 0..50 {
            let b = bench(seed);
            b.write(1, 1, Durability::Volatile);
            b.write(1, 2, Durability::Durable);
            b.write(5, 9, Durability::Volatile);
            b.disk.power_lost();
            assert_eq!(b.read(1), [2; 4096]);
        }
    }

    #[test]
    fn a_write_in_flight_happens_even_if_nobody_waits_and_may_be_torn_by_power_loss() {
        let b = bench(1);
        let d = b.disk.clone();
        b.ex.spawn(LifeId::HARNESS, async move {
            let write = std::pin::pin!(d.write(4096, vec![filled(7)], Durability::Durable));
            let nothing = std::pin::pin!(async {});
            futures_util::future::select(write, nothing).await;
        });
        b.ex.run_until(Nanos::from_ms(1));
        assert_eq!(b.read(1), [7; 4096]);
        let mut outcomes = [0; 3];
        for seed in 0..100 {
            let b = bench(seed);
            let d = b.disk.clone();
            b.ex.spawn(LifeId::HARNESS, async move {
                let _ = d.write(4096, vec![filled(7)], Durability::Durable).await;
            });
            b.ex.run_until(Nanos(5_000));
            b.disk.power_lost();
            b.ex.run_until(Nanos::from_ms(1));
            let page = b.read(1);
            outcomes[usize::from(page.contains(&7)) + usize::from(!page.contains(&0))] += 1;
        }
        assert!(outcomes.iter().all(|&n| n > 5), "{outcomes:?}");
    }

    #[test]
    fn a_failed_flush_takes_the_unflushed_writes_with_it() {
        let b = bench(1);
        b.write(1, 1, Durability::Durable);
        b.write(1, 2, Durability::Volatile);
        b.disk.set_rates(DiskRates { flush_error: 1_000_000, ..DiskRates::default() });
        let d = b.disk.clone();
        assert!(b.run(async move { d.flush().await }).is_err());
        assert_eq!(b.read(1), [1; 4096]);
        assert_eq!(b.faults.count(FaultKind::FlushError), 1);
    }

    #[test]
    fn media_lies_are_counted_when_told() {
        let b = bench(1);
        b.write(1, 1, Durability::Durable);
        assert!(b.disk.flip());
        let flipped = b.read(1);
        assert_eq!(flipped.iter().map(|x| (x ^ 1).count_ones()).sum::<u32>(), 1);
        b.disk.set_rates(DiskRates { lost: 1_000_000, ..DiskRates::default() });
        b.write(1, 5, Durability::Durable);
        assert_eq!(b.read(1), flipped);
        b.disk.set_rates(DiskRates { misdirected_write: 1_000_000, ..DiskRates::default() });
        b.write(70, 6, Durability::Durable);
        b.disk.set_rates(DiskRates::default());
        assert_eq!(b.read(70), [0; 4096]);
        assert!((0..200).filter(|p| b.read(*p) == [6; 4096]).count() == 1);
        let d = b.disk.clone();
        assert!(b.disk.make_latent());
        let bad = b.run(async move {
            let mut bad = 0;
            for p in 0..200 {
                bad += u32::from(d.read(p * 4096, 4096).await.is_err());
            }
            bad
        });
        assert_eq!(bad, 1);
        for kind in [FaultKind::BitFlip, FaultKind::LostWrite, FaultKind::MisdirectedWrite] {
            assert_eq!(b.faults.count(kind), 1, "{kind:?}");
        }
    }

    #[test]
    fn a_healed_disk_has_nothing_of_minutes_left_in_its_queue() {
        let b = bench(1);
        b.disk.set_rates(DiskRates { slow: 1_000_000, ..DiskRates::default() });
        b.disk.set_slow(700);
        let d = b.disk.clone();
        let slow = async move { d.read(0, 4096).await };
        let end = b.ex.now() + Nanos::from_ms(500);
        assert!(b.ex.block_on(end, slow).is_err());
        let reads = b.disk.counts().reads;
        b.disk.heal();
        assert_eq!(b.disk.counts().reads, reads + 1);
        for page in 0..64 {
            let t0 = b.ex.now();
            b.read(page);
            assert!(b.ex.now().since(t0) < Nanos::from_ms(1));
        }
    }

    #[test]
    fn a_hung_disk_goes_on_where_it_was_and_a_gone_one_fails_at_once() {
        let b = bench(1);
        b.disk.set_hung(true);
        let d = b.disk.clone();
        let write = async move { d.write(0, vec![filled(3)], Durability::Durable).await };
        let end = b.ex.now() + Nanos::from_secs(5);
        assert!(b.ex.block_on(end, write).is_err());
        b.disk.set_hung(false);
        b.ex.run_until(b.ex.now() + Nanos::from_ms(1));
        assert_eq!(b.read(0), [3; 4096]);
        let before = b.disk.opened();
        b.disk.set_gone(true);
        let d = b.disk.clone();
        let error = b.run(async move { d.read(0, 4096).await }).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(19));
        b.disk.set_gone(false);
        assert_eq!(b.read(0), [3; 4096]);
        // Nobody asked it anything meanwhile; what was unflushed is lost all the same.
        let error = b.run(async move { before.flush().await }).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(19));
        let again = b.disk.opened();
        assert!(b.run(async move { again.flush().await }).is_ok());
        let old = b.disk.image();
        b.write(0, 4, Durability::Durable);
        b.disk.restore(old);
        assert_eq!(b.read(0), [3; 4096]);
    }
}
