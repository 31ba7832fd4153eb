//! The harness itself, on a toy: a "cluster" of one host that keeps a volume on one disk. A careful
//! version survives every crash; each careless version is caught.

use atoll_sim::disk::{DiskProfile, SimDisk};
use atoll_sim::executor::LifeId;
use atoll_sim::fault::{FaultKind, FaultSet, Plan};
use atoll_sim::machines::{Hardware, Machines};
use atoll_sim::net::NetProfile;
use atoll_sim::rng::Rng;
use atoll_sim::trace::Trace;
use atoll_sim::workload::{Book, Mix};
use atoll_world::disk::{Disk, Durability};
use atoll_world::sync::Semaphore;
use atoll_world::volume::{Extent, Volume, VolumeError, VolumeInfo, ZeroFlags};
use atoll_world::{Buf, BufMut, Nanos, World};

const SIZE: u64 = 2 << 20;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Careless {
    No,
    /// Acknowledges what is in the disk's cache.
    NoFlush,
    /// Reads while somebody writes.
    NoLock,
}

/// A volume straight on a disk. Blocks are not atomic on a real disk, so it keeps a copy of what
/// it is about to write (a journal of one) and writes it again when it starts.
#[derive(Clone)]
struct Toy {
    disk: SimDisk,
    lock: Semaphore,
    careless: Careless,
}

const JOURNAL: u64 = SIZE;

impl Toy {
    async fn open(disk: SimDisk, careless: Careless) -> Self {
        let head = disk.read(JOURNAL, 4096).await.unwrap();
        let word = |i: usize| u64::from_le_bytes(head[i..i + 8].try_into().unwrap());
        let (at, len, sum) = (word(0), word(8), word(16));
        if len > 0 && at + len <= SIZE {
            let data = disk.read(JOURNAL + 4096, len as u32).await.unwrap();
            if sum == checksum(&data) {
                disk.write(at, vec![data], Durability::Durable).await.unwrap();
            }
        }
        Self { disk, lock: Semaphore::new(1), careless }
    }

    async fn change(&self, at: u64, data: &[u8]) -> Result<(), VolumeError> {
        let _held = self.lock.acquire(1).await;
        let io = |e: std::io::Error| VolumeError::Io(e.to_string());
        let from = at / 4096 * 4096;
        let to = (at + data.len() as u64).next_multiple_of(4096);
        let old = self.disk.read(from, (to - from) as u32).await.map_err(io)?;
        let mut new = BufMut::for_overwrite(old.len());
        new.copy_from_slice(&old);
        new[(at - from) as usize..][..data.len()].copy_from_slice(data);
        let new = new.freeze();
        let durable = match self.careless {
            Careless::NoFlush => Durability::Volatile,
            _ => Durability::Durable,
        };
        let mut head = BufMut::zeroed(4096);
        self.disk.write(JOURNAL, vec![Buf::zeros(4096)], durable).await.map_err(io)?;
        self.disk.write(JOURNAL + 4096, vec![new.clone()], durable).await.map_err(io)?;
        for (i, word) in [from, new.len() as u64, checksum(&new)].into_iter().enumerate() {
            head[i * 8..i * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        self.disk.write(JOURNAL, vec![head.freeze()], durable).await.map_err(io)?;
        if self.careless == Careless::NoLock {
            // First half of the sectors of the first block: who reads without the lock may see it.
            let mut half = BufMut::for_overwrite(4096);
            half.copy_from_slice(&old[..4096]);
            half[..2048].copy_from_slice(&new[..2048]);
            self.disk.write(from, vec![half.freeze()], durable).await.map_err(io)?;
        }
        self.disk.write(from, vec![new], durable).await.map_err(io)
    }
}

fn checksum(data: &[u8]) -> u64 {
    let words = data.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    words.fold(1, |h: u64, w| (h.rotate_left(5) ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

impl Volume for Toy {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: SIZE,
            min_block: 512,
            preferred_block: 4096,
            max_len: 1 << 20,
            read_only: false,
        }
    }
    async fn read(&self, at: u64, len: u32) -> Result<Vec<Buf>, VolumeError> {
        let _held = match self.careless {
            Careless::NoLock => None,
            _ => Some(self.lock.acquire(1).await),
        };
        let from = at / 4096 * 4096;
        let to = (at + u64::from(len)).next_multiple_of(4096);
        let bytes = self.disk.read(from, (to - from) as u32).await;
        let bytes = bytes.map_err(|e| VolumeError::Io(e.to_string()))?;
        let skip = (at - from) as usize;
        Ok(vec![bytes.slice(skip..skip + len as usize)])
    }
    async fn write(&self, at: u64, data: Vec<Buf>) -> Result<(), VolumeError> {
        self.change(at, &atoll_world::buf::join(&data)).await
    }
    async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }
    async fn discard(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        self.change(at, &Buf::zeros(len as usize)).await
    }
    async fn zero(&self, at: u64, len: u64, _: ZeroFlags) -> Result<(), VolumeError> {
        self.change(at, &Buf::zeros(len as usize)).await
    }
    async fn extents(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>, VolumeError> {
        Err(VolumeError::Unsupported)
    }
}

/// Ok(hash) or what was found.
fn run(seed: u64, careless: Careless, faults: FaultSet) -> Result<u64, String> {
    let spec = Hardware {
        hosts: 1,
        cores: 1,
        disks: 1,
        disk_bytes: 16 << 20,
        disk: DiskProfile::NVME,
        net: NetProfile::GBIT_25,
    };
    let machines = Machines::new(seed, spec, Trace::new(false));
    let book = Book::new(machines.executor(), SIZE, 150);
    let mut rng = Rng::named(seed, "workload");
    let mix = Mix { pause: (Nanos::from_us(10), Nanos::from_ms(2)), ..Mix::of(&mut rng) };
    let of_boot = book.clone();
    machines.set_boot(move |_, disks, world| {
        let (w, book) = (world.clone(), of_boot.clone());
        world.spawn(async move {
            let toy = Toy::open(disks[0].clone(), careless).await;
            for _ in 0..4 {
                let rng = Rng::named(w.random(), "client");
                w.spawn(book.clone().client(toy.clone(), mix, rng));
            }
        });
    });
    let mut plan = Plan::of_seed(seed, 1, faults);
    plan.event_every = Nanos::from_ms(3);
    if faults.has(FaultKind::LostWrite) {
        plan.victim = Some(0);
        plan.medium.lost = 5_000;
        plan.medium.misdirected_write = 5_000;
    }
    machines.set_rates(&plan);
    machines.start(0);
    machines.executor().spawn(LifeId::HARNESS, machines.clone().befall(plan));
    let (b, r) = (book.clone(), machines.clone());
    let end = machines.executor().block_on(Nanos::from_secs(4000), async move {
        while !b.is_over() || b.running() > 0 {
            let ex = r.executor();
            ex.sleep_until(ex.now() + Nanos::from_ms(50)).await;
        }
        r.heal();
        // What is there in the end is one more read, after a last crash.
        r.kill(0, true);
        let disk = r.disks(0)[0].clone();
        let toy = Toy::open(disk, Careless::No).await;
        b.read(&toy, 9999, 0, (SIZE / 512) as u32).await.map(|_| ())
    });
    let hash = machines.executor().trace().hash();
    machines.shutdown();
    end.map_err(|s| format!("{s:?}"))?.map_err(|e| e.to_string())?;
    if let Some(wrong) = book.wrong().first() {
        return Err(wrong.clone());
    }
    book.history().check().map_err(|v| v.text)?;
    Ok(hash)
}

fn crashes() -> FaultSet {
    FaultSet::NONE
        .with(FaultKind::Kill)
        .with(FaultKind::KillAtAwait)
        .with(FaultKind::PowerLoss)
        .with(FaultKind::ShortPause)
}

#[test]
fn a_careful_volume_survives_every_crash_and_a_seed_repeats() {
    for seed in 0..60 {
        let once = run(seed, Careless::No, crashes()).unwrap_or_else(|e| panic!("{seed}: {e}"));
        assert_eq!(run(seed, Careless::No, crashes()), Ok(once), "seed {seed} differs");
    }
}

#[test]
fn a_volume_that_does_not_flush_loses_writes_and_is_caught() {
    let caught = (0..60).filter(|s| run(*s, Careless::NoFlush, crashes()).is_err()).count();
    assert!(caught > 5, "{caught} of 60");
}

#[test]
fn a_volume_that_does_not_lock_shows_half_a_write_and_is_caught() {
    let caught = (0..60).filter(|s| run(*s, Careless::NoLock, FaultSet::NONE).is_err()).count();
    assert!(caught > 5, "{caught} of 60");
}

#[test]
fn a_disk_that_lies_is_caught() {
    let lies = FaultSet::NONE.with(FaultKind::LostWrite).with(FaultKind::MisdirectedWrite);
    let caught = (0..60).filter(|s| run(*s, Careless::No, lies).is_err()).count();
    assert!(caught > 5, "{caught} of 60");
}
