//! Counts what clients do to volumes: a `Volume` around a volume, and who has it open. Each shard
//! counts what it serves; what all of them have counted is added up as [`Figures`].
//!
//! Invariant: it adds no wait and changes no answer; what it counts is what the client saw.

use atoll_api::types::Io;
use atoll_world::volume::{
    ExportName, Extent, Volume, VolumeError, VolumeInfo, Volumes, ZeroFlags,
};
use atoll_world::{Buf, Nanos, Stage, World, buf::total_len};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

tokio::task_local! {
    /// The client that the running task serves.
    pub static PEER: Rc<str>;
}

/// What was done, since the start of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Reads.
    pub reads: u64,
    /// Writes, discards and zeroes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written; discards and zeroes carry none.
    pub write_bytes: u64,
    /// Time that reads took, all together, in nanoseconds.
    pub read_ns: u64,
    /// The same of writes.
    pub write_ns: u64,
    /// Operations that failed.
    pub errors: u64,
}

impl Totals {
    fn and(self, other: Self) -> Self {
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            read_bytes: self.read_bytes + other.read_bytes,
            write_bytes: self.write_bytes + other.write_bytes,
            read_ns: self.read_ns + other.read_ns,
            write_ns: self.write_ns + other.write_ns,
            errors: self.errors + other.errors,
        }
    }
}

/// What the clients of one host do with a volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct VolumeUse {
    /// Its name.
    pub volume: String,
    /// Their load.
    pub io: Io,
    /// How many there are.
    pub sessions: u32,
}

/// One client of one volume.
struct SessionInfo {
    /// Counts the clients of all shards since the start of the process.
    id: u64,
    volume: String,
    peer: Rc<str>,
    /// Milliseconds since 1970.
    since_ms: u64,
    totals: Cell<Totals>,
    in_flight: Cell<u32>,
}

/// One client, and what it has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionFigures {
    /// Counts the clients since the start of the process.
    pub id: u64,
    /// Which volume.
    pub volume: String,
    /// Who.
    pub peer: String,
    /// Milliseconds since 1970.
    pub since_ms: u64,
    /// What it has done.
    pub totals: Totals,
    /// Operations under way.
    pub in_flight: u32,
}

/// What was counted, by one shard or by several together.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figures {
    /// Of every volume that was ever open, by name: what was done, and the present load.
    pub volumes: BTreeMap<String, (Totals, Io)>,
    /// Clients at present.
    pub sessions: Vec<SessionFigures>,
}

impl Figures {
    /// Both together.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for (name, (totals, io)) in other.volumes {
            let (all, load) = self.volumes.entry(name).or_default();
            (*all, *load) = (all.and(totals), add(*load, io));
        }
        self.sessions.extend(other.sessions);
        self
    }

    /// The load of all volumes.
    pub fn io(&self) -> Io {
        self.volumes.values().fold(Io::default(), |sum, &(_, io)| add(sum, io))
    }

    /// The load and the clients of one volume.
    pub fn of(&self, volume: &str) -> (Io, u32) {
        let io = self.volumes.get(volume).map(|&(_, io)| io).unwrap_or_default();
        (io, self.sessions.iter().filter(|session| session.volume == volume).count() as u32)
    }

    /// Load and clients of the volumes that have either, by name.
    pub fn in_use(&self) -> Vec<VolumeUse> {
        let mut all: BTreeMap<&str, (Io, u32)> =
            self.volumes.iter().map(|(name, &(_, io))| (&**name, (io, 0))).collect();
        for session in &self.sessions {
            all.entry(&session.volume).or_default().1 += 1;
        }
        let used = all.into_iter().filter(|&(_, used)| used != (Io::default(), 0));
        used.map(|(volume, (io, sessions))| VolumeUse { volume: volume.into(), io, sessions })
            .collect()
    }
}

#[derive(Default)]
struct VolumeMeter {
    totals: Cell<Totals>,
    /// At the last sample, and when.
    sampled: Cell<(Totals, Nanos)>,
    rate: Cell<Io>,
}

/// All counters of one shard. Clones are the same.
#[derive(Clone, Default)]
pub struct Meter(Rc<MeterState>);

/// What all clones of a meter share.
#[derive(Default)]
struct MeterState {
    volumes: RefCell<BTreeMap<String, Rc<VolumeMeter>>>,
    sessions: RefCell<BTreeMap<u64, Rc<SessionInfo>>>,
    /// Of all shards.
    next_session: Arc<AtomicU64>,
}

impl Meter {
    /// A shard that has counted nothing; `next_session` is the same for all of a host.
    pub fn new(next_session: Arc<AtomicU64>) -> Self {
        Self(Rc::new(MeterState { next_session, ..MeterState::default() }))
    }

    /// Rates since the last call become the present ones. Call it about once a second.
    pub fn sample(&self, now: Nanos) {
        for meter in self.0.volumes.borrow().values() {
            let (before, at) = meter.sampled.get();
            let totals = meter.totals.get();
            meter.sampled.set((totals, now));
            let span = now.since(at).as_secs_f64();
            if at == Nanos::ZERO || span <= 0.0 {
                continue;
            }
            let per_second = |now: u64, before: u64| ((now - before) as f64 / span).round() as u64;
            let mean_us = |ns: u64, ops: u64| ns.checked_div(ops).unwrap_or(0) / 1_000;
            meter.rate.set(Io {
                read_iops: per_second(totals.reads, before.reads),
                write_iops: per_second(totals.writes, before.writes),
                read_bytes_per_second: per_second(totals.read_bytes, before.read_bytes),
                write_bytes_per_second: per_second(totals.write_bytes, before.write_bytes),
                read_latency_us: mean_us(
                    totals.read_ns - before.read_ns,
                    totals.reads - before.reads,
                ),
                write_latency_us: mean_us(
                    totals.write_ns - before.write_ns,
                    totals.writes - before.writes,
                ),
            });
        }
    }

    /// What was counted so far.
    pub fn figures(&self) -> Figures {
        let volumes = self.0.volumes.borrow();
        let volume = |(name, meter): (&String, &Rc<VolumeMeter>)| {
            (name.clone(), (meter.totals.get(), meter.rate.get()))
        };
        let sessions = self.0.sessions.borrow();
        let session = |session: &Rc<SessionInfo>| SessionFigures {
            id: session.id,
            volume: session.volume.clone(),
            peer: session.peer.to_string(),
            since_ms: session.since_ms,
            totals: session.totals.get(),
            in_flight: session.in_flight.get(),
        };
        Figures {
            volumes: volumes.iter().map(volume).collect(),
            sessions: sessions.values().map(session).collect(),
        }
    }

    /// Keeps what is known of the `wanted` volumes, and of those in use; the others are gone.
    pub fn keep(&self, wanted: impl Fn(&str) -> bool) {
        let sessions = self.0.sessions.borrow();
        let open: BTreeSet<&str> = sessions.values().map(|session| &*session.volume).collect();
        self.0.volumes.borrow_mut().retain(|name, _| wanted(name) || open.contains(&**name));
    }

    /// A volume is gone: nothing of it is shown any more.
    pub fn forget(&self, volume: &str) {
        self.0.volumes.borrow_mut().remove(volume);
    }
}

/// The sum of two loads; latencies are means, weighted by operations.
pub fn add(a: Io, b: Io) -> Io {
    let mean = |x, n, y, m| u64::checked_div(x * n + y * m, n + m).unwrap_or(0);
    Io {
        read_iops: a.read_iops + b.read_iops,
        write_iops: a.write_iops + b.write_iops,
        read_bytes_per_second: a.read_bytes_per_second + b.read_bytes_per_second,
        write_bytes_per_second: a.write_bytes_per_second + b.write_bytes_per_second,
        read_latency_us: mean(a.read_latency_us, a.read_iops, b.read_latency_us, b.read_iops),
        write_latency_us: mean(a.write_latency_us, a.write_iops, b.write_latency_us, b.write_iops),
    }
}

/// Volumes whose use is counted.
#[derive(Clone)]
pub struct MeteredVolumes<W, V> {
    world: W,
    inner: V,
    meter: Meter,
}

impl<W: World, V: Volumes> MeteredVolumes<W, V> {
    /// Around `inner`.
    pub fn new(world: W, inner: V, meter: Meter) -> Self {
        Self { world, inner, meter }
    }
}

impl<W: World, V: Volumes> Volumes for MeteredVolumes<W, V> {
    type Volume = MeteredVolume<W, V::Volume>;

    async fn open(&self, name: &str) -> Result<Self::Volume, VolumeError> {
        let inner = self.inner.open(name).await?;
        // An import's export is called NAME:TOKEN, and is a client of NAME.
        let name = name.split(':').next().unwrap_or(name);
        let id = self.meter.0.next_session.fetch_add(1, Ordering::Relaxed);
        let peer = PEER.try_with(Rc::clone).unwrap_or_else(|_| "unknown".into());
        let session = Rc::new(SessionInfo {
            id,
            volume: name.to_owned(),
            peer,
            since_ms: self.world.unix_ms(),
            totals: Cell::default(),
            in_flight: Cell::new(0),
        });
        self.meter.0.sessions.borrow_mut().insert(id, session.clone());
        let meter = self.meter.0.volumes.borrow_mut().entry(name.to_owned()).or_default().clone();
        let open = Rc::new(Open { meter: self.meter.clone(), id });
        Ok(MeteredVolume { world: self.world.clone(), inner, session, meter, _open: open })
    }

    async fn list(&self, max: usize) -> Result<Vec<ExportName>, VolumeError> {
        self.inner.list(max).await
    }

    async fn elsewhere(&self, name: &str) -> Option<u8> {
        self.inner.elsewhere(name).await
    }
}

/// Ends the session when the last clone of its volume is dropped.
struct Open {
    meter: Meter,
    id: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.meter.0.sessions.borrow_mut().remove(&self.id);
    }
}

/// A volume whose use is counted.
pub struct MeteredVolume<W, V> {
    world: W,
    inner: V,
    session: Rc<SessionInfo>,
    meter: Rc<VolumeMeter>,
    _open: Rc<Open>,
}

impl<W: Clone, V: Clone> Clone for MeteredVolume<W, V> {
    fn clone(&self) -> Self {
        Self {
            world: self.world.clone(),
            inner: self.inner.clone(),
            session: self.session.clone(),
            meter: self.meter.clone(),
            _open: self._open.clone(),
        }
    }
}

/// An operation of a client; under way until this is dropped.
struct Running<'a, W, V> {
    of: &'a MeteredVolume<W, V>,
    begun: Nanos,
}

impl<W, V> Drop for Running<'_, W, V> {
    fn drop(&mut self) {
        let in_flight = &self.of.session.in_flight;
        in_flight.set(in_flight.get() - 1);
    }
}

impl<W: World, V: Volume> Running<'_, W, V> {
    /// It has ended; `add` says what it was.
    fn end<T>(
        self,
        stage: Stage,
        done: Result<T, VolumeError>,
        add: impl Fn(&mut Totals, u64),
    ) -> Result<T, VolumeError> {
        let span = self.of.world.now().since(self.begun);
        let ns = span.0;
        if let Some(stages) = self.of.world.stages() {
            stages.note(stage, span);
        }
        for cell in [&self.of.session.totals, &self.of.meter.totals] {
            let mut totals = cell.get();
            add(&mut totals, ns);
            totals.errors += u64::from(done.is_err());
            cell.set(totals);
        }
        done
    }
}

impl<W: World, V: Volume> MeteredVolume<W, V> {
    fn begin(&self) -> Running<'_, W, V> {
        self.session.in_flight.set(self.session.in_flight.get() + 1);
        Running { of: self, begun: self.world.now() }
    }
}

impl<W: World, V: Volume> Volume for MeteredVolume<W, V> {
    fn info(&self) -> VolumeInfo {
        self.inner.info()
    }
    async fn read(&self, at: u64, len: u32) -> Result<Vec<Buf>, VolumeError> {
        let add = |totals: &mut Totals, ns| {
            totals.reads += 1;
            totals.read_bytes += u64::from(len);
            totals.read_ns += ns;
        };
        let running = self.begin();
        running.end(Stage::Read, self.inner.read(at, len).await, add)
    }
    async fn write(&self, at: u64, data: Vec<Buf>) -> Result<(), VolumeError> {
        let len = total_len(&data) as u64;
        let add = |totals: &mut Totals, ns| {
            totals.writes += 1;
            totals.write_bytes += len;
            totals.write_ns += ns;
        };
        let running = self.begin();
        running.end(Stage::Write, self.inner.write(at, data).await, add)
    }
    async fn flush(&self) -> Result<(), VolumeError> {
        self.inner.flush().await
    }
    async fn discard(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        let add = |totals: &mut Totals, ns| {
            totals.writes += 1;
            totals.write_ns += ns;
        };
        let running = self.begin();
        running.end(Stage::Write, self.inner.discard(at, len).await, add)
    }
    async fn zero(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), VolumeError> {
        let add = |totals: &mut Totals, ns| {
            totals.writes += 1;
            totals.write_ns += ns;
        };
        let running = self.begin();
        running.end(Stage::Write, self.inner.zero(at, len, flags).await, add)
    }
    async fn extents(&self, at: u64, len: u64, most: usize) -> Result<Vec<Extent>, VolumeError> {
        self.inner.extents(at, len, most).await
    }
}

#[cfg(test)]
mod tests {
    use super::{Figures, Meter, SessionFigures, Totals, VolumeMeter, VolumeUse, add};
    use atoll_api::types::Io;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    fn session(id: u64, volume: &str) -> SessionFigures {
        let (peer, totals) = ("p".to_owned(), Totals::default());
        SessionFigures { id, volume: volume.into(), peer, since_ms: 0, totals, in_flight: 0 }
    }

    #[test]
    fn a_volume_is_in_use_while_it_has_clients_or_load() {
        let loaded = Io { read_iops: 3, ..Io::default() };
        let volumes = [("idle", Io::default()), ("loaded", loaded), ("both", loaded)];
        let figures = Figures {
            volumes: volumes.map(|(name, io)| (name.into(), (Totals::default(), io))).into(),
            sessions: [(1, "both"), (2, "open"), (3, "both")].map(|(id, v)| session(id, v)).into(),
        };
        let used = |volume: &str, io, sessions| VolumeUse { volume: volume.into(), io, sessions };
        let expected =
            [used("both", loaded, 2), used("loaded", loaded, 0), used("open", Io::default(), 1)];
        assert_eq!(figures.in_use(), expected);
        assert_eq!(figures.of("both"), (loaded, 2));
        assert_eq!(figures.of("none"), (Io::default(), 0));
        assert_eq!(figures.io().read_iops, 6);
    }

    #[test]
    fn what_shards_have_counted_adds_up_and_no_client_is_counted_twice() {
        let ids = Arc::default();
        let shards = [Meter::new(Arc::clone(&ids)), Meter::new(ids)];
        for (at, (meter, reads)) in shards.iter().zip([2, 5]).enumerate() {
            let volume = VolumeMeter::default();
            volume.totals.set(Totals { reads, errors: 1, ..Totals::default() });
            volume.rate.set(Io { read_iops: reads, ..Io::default() });
            meter.0.volumes.borrow_mut().insert("v".into(), Rc::new(volume));
            let id = meter.0.next_session.fetch_add(1, Ordering::Relaxed);
            assert_eq!(id, at as u64);
        }
        let [a, b] = shards.map(|meter| meter.figures());
        let both = a.and(b);
        let (totals, io) = both.volumes["v"];
        assert_eq!((totals.reads, totals.errors, io.read_iops), (7, 2, 7));
    }

    #[test]
    fn loads_add_up_and_latencies_are_weighted() {
        let a = Io { read_iops: 1, read_latency_us: 100, write_iops: 5, ..Io::default() };
        let b =
            Io { read_iops: 3, read_latency_us: 200, write_bytes_per_second: 7, ..Io::default() };
        let sum = add(a, b);
        assert_eq!((sum.read_iops, sum.read_latency_us), (4, 175));
        assert_eq!((sum.write_iops, sum.write_bytes_per_second), (5, 7));
        assert_eq!(add(Io::default(), Io::default()), Io::default());
    }
}
