//! Counts what clients do to volumes: a `Volume` around a volume, and who has it open.
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
pub struct SessionInfo {
    /// Counts the clients since the start of the process.
    pub id: u64,
    /// Which volume.
    pub volume: String,
    /// Who.
    pub peer: Rc<str>,
    /// Milliseconds since 1970.
    pub since_ms: u64,
    totals: Cell<Totals>,
    in_flight: Cell<u32>,
}

impl SessionInfo {
    /// What it has done.
    pub fn totals(&self) -> Totals {
        self.totals.get()
    }
    /// Operations under way.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }
}

#[derive(Default)]
struct VolumeMeter {
    totals: Cell<Totals>,
    /// At the last sample, and when.
    sampled: Cell<(Totals, Nanos)>,
    rate: Cell<Io>,
}

/// All counters of one host. Clones are the same.
#[derive(Clone, Default)]
pub struct Meter(Rc<MeterState>);

/// What all clones of a meter share.
#[derive(Default)]
struct MeterState {
    volumes: RefCell<BTreeMap<String, Rc<VolumeMeter>>>,
    sessions: RefCell<BTreeMap<u64, Rc<SessionInfo>>>,
    next_session: Cell<u64>,
}

impl Meter {
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

    /// The present load of a volume on this host.
    pub fn rate(&self, volume: &str) -> Io {
        self.0.volumes.borrow().get(volume).map(|meter| meter.rate.get()).unwrap_or_default()
    }

    /// Totals of every volume that was ever open here, by name.
    pub fn totals(&self) -> Vec<(String, Totals)> {
        let volumes = self.0.volumes.borrow();
        volumes.iter().map(|(name, meter)| (name.clone(), meter.totals.get())).collect()
    }

    /// Clients at present.
    pub fn sessions(&self) -> Vec<Rc<SessionInfo>> {
        self.0.sessions.borrow().values().cloned().collect()
    }

    /// Load and clients of the volumes that have either at present, by name.
    pub fn in_use(&self) -> Vec<VolumeUse> {
        let volumes = self.0.volumes.borrow();
        let mut all: BTreeMap<&str, (Io, u32)> =
            volumes.iter().map(|(name, meter)| (&**name, (meter.rate.get(), 0))).collect();
        let sessions = self.0.sessions.borrow();
        for session in sessions.values() {
            all.entry(&session.volume).or_default().1 += 1;
        }
        let used = all.into_iter().filter(|&(_, used)| used != (Io::default(), 0));
        used.map(|(volume, (io, sessions))| VolumeUse { volume: volume.into(), io, sessions })
            .collect()
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
        let id = self.meter.0.next_session.get();
        self.meter.0.next_session.set(id + 1);
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
    use super::{Meter, SessionInfo, VolumeMeter, VolumeUse, add};
    use atoll_api::types::Io;
    use std::rc::Rc;

    #[test]
    fn a_volume_is_in_use_while_it_has_clients_or_load() {
        let meter = Meter::default();
        let loaded = Io { read_iops: 3, ..Io::default() };
        for (name, io) in [("idle", Io::default()), ("loaded", loaded), ("both", loaded)] {
            let volume = VolumeMeter::default();
            volume.rate.set(io);
            meter.0.volumes.borrow_mut().insert(name.into(), Rc::new(volume));
        }
        for (id, volume) in [(1, "both"), (2, "open"), (3, "both")] {
            let session = SessionInfo {
                id,
                volume: volume.into(),
                peer: "p".into(),
                since_ms: 0,
                totals: Default::default(),
                in_flight: Default::default(),
            };
            meter.0.sessions.borrow_mut().insert(id, Rc::new(session));
        }
        let used = |volume: &str, io, sessions| VolumeUse { volume: volume.into(), io, sessions };
        let expected =
            [used("both", loaded, 2), used("loaded", loaded, 0), used("open", Io::default(), 1)];
        assert_eq!(meter.in_use(), expected);
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
