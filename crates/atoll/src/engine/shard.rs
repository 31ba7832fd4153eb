//! One shard of this host: the disk groups, owners and clients that its thread serves. Shard 0 is
//! one of them; what it does for the host beyond that is the [`Engine`](super::Engine).
//!
//! Invariants: everything here lives on the shard's thread; its disks are opened, then it starts,
//! then it serves, once each.

use super::directory::HostDirectory;
use super::disks::{self, Identity, Slots, Started};
use super::host::{HostNode, HostStore, HostWorld};
use super::meter::{Figures, Meter, MeteredVolumes, PEER};
use crate::audit::AuditLog;
use crate::bridge::ShardHandle;
use crate::config::Config;
use crate::trust::HostTrust;
use atoll_api::types::Group;
use atoll_api::{Code, Problem};
use atoll_format::id::GroupId;
use atoll_front::admission::limits::AdmissionLimits;
use atoll_front::limits::Limits;
use atoll_front::nbd::{Server, Stats, Suspended};
use atoll_node::{About, FirstShard, Node, Severity};
use atoll_object::promised::promised_bytes;
use atoll_real::{
    DetachedStream, RealNet, RealStream, RealWorld, Siblings, limit_cpu_latency, set_busy_poll_max,
};
use atoll_trust::PeerTls;
use atoll_world::stages::Histogram;
use atoll_world::stream::ByteStream;
use atoll_world::{Components, Nanos, Stage, World};
use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::watch;

/// Where a shard's NBD clients are served.
pub type NbdServer = Server<HostWorld, MeteredVolumes<HostWorld, HostNode>>;

/// Between attempts to reach the directory.
pub const RETRY_EVERY: Duration = Duration::from_millis(250);
/// How long a stop waits for clients, and for what is handed over.
pub const STOP_WAIT: Duration = Duration::from_secs(4);
/// How often load is measured.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

/// Bytes of data that clients of a shard may hold at least: two requests of the largest size.
const SERVER_BYTES_MIN: usize = 64 << 20;

/// What all shards of a process are made with.
#[derive(Clone)]
pub struct Plan {
    pub config: Arc<Config>,
    pub slots: Arc<Slots>,
    /// This host's certificate; none: without TLS.
    pub trust: Option<Arc<HostTrust>>,
    /// Who has changed what.
    pub audit: Arc<AuditLog>,
    pub siblings: Siblings,
    /// NBD clients of the host at once.
    pub nbd_connections: usize,
    next_session: Arc<AtomicU64>,
    /// NBD clients of the host now.
    clients: Arc<AtomicUsize>,
}

/// One of the NBD clients that a host may have, wherever it is served.
pub struct ClientPermit(Arc<AtomicUsize>);

impl ClientPermit {
    /// None: there are `most` already.
    fn take(clients: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let more = |count| (count < most).then_some(count + 1);
        clients.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(clients.clone()))
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "more clients have gone than came");
    }
}

impl Plan {
    /// For a process with so many shards.
    pub fn new(
        config: Config,
        trust: Option<Arc<HostTrust>>,
        audit: Arc<AuditLog>,
        shards: u8,
        nbd_connections: usize,
    ) -> Self {
        let slots = Arc::new(Slots::all(&config, shards));
        let siblings = Siblings::of(shards);
        let (next_session, clients) = (Arc::default(), Arc::default());
        let config = Arc::new(config);
        Self { config, slots, trust, audit, siblings, nbd_connections, next_session, clients }
    }

    /// What each shard's NBD server keeps to: data of clients is the host's, as far as each has
    /// room for the largest request.
    fn limits(&self) -> Limits {
        let limits = Limits { connections: self.nbd_connections, ..Limits::default() };
        let share = limits.admission.server_bytes / usize::from(self.shards());
        let server_bytes = share.max(SERVER_BYTES_MIN);
        Limits { admission: AdmissionLimits { server_bytes, ..limits.admission }, ..limits }
    }

    /// What connections with other hosts are made with.
    pub fn peer_tls(&self) -> Option<PeerTls> {
        self.trust.as_ref().map(|trust| trust.tls().clone())
    }

    /// How many shards.
    pub fn shards(&self) -> u8 {
        self.siblings.count()
    }
}

/// One shard.
pub struct Shard {
    pub number: u8,
    plan: Plan,
    meter: Meter,
    /// Clients that were refused because the host had too many.
    refused: Cell<u64>,
    /// Disks that were opened, until it starts.
    opened: RefCell<Option<Opened>>,
    serving: OnceCell<Serving>,
}

struct Opened {
    world: HostWorld,
    groups: Vec<Started>,
    /// Why others do not run.
    problems: Vec<Problem>,
}

/// What runs once it has started.
struct Serving {
    world: HostWorld,
    node: HostNode,
    nbd: NbdServer,
}

/// What a shard has counted: plain data, for another thread.
#[derive(Default)]
pub struct ShardFigures {
    pub used: Figures,
    pub nbd: Stats,
    /// By [`Stage::ALL`].
    pub stages: Vec<Histogram>,
    /// What the volumes that it owns may take on disks.
    pub promised_bytes: u64,
}

impl ShardFigures {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let (a, b) = (self.nbd, other.nbd);
        let nbd = Stats {
            connections: a.connections + b.connections,
            held_bytes: a.held_bytes + b.held_bytes,
            accepted: a.accepted + b.accepted,
            resumed: a.resumed + b.resumed,
            refused: a.refused + b.refused,
            handshakes_expired: a.handshakes_expired + b.handshakes_expired,
            stalled: a.stalled + b.stalled,
            violations: a.violations + b.violations,
            requests: a.requests + b.requests,
            failures: a.failures + b.failures,
            invalid: a.invalid + b.invalid,
        };
        let stages = match (self.stages, other.stages) {
            (stages, none) if none.is_empty() => stages,
            (none, stages) if none.is_empty() => stages,
            (a, b) => a.into_iter().zip(b).map(|(a, b)| a.and(&b)).collect(),
        };
        let promised_bytes = self.promised_bytes.saturating_add(other.promised_bytes);
        Self { used: self.used.and(other.used), nbd, stages, promised_bytes }
    }
}

impl Shard {
    /// A shard that has opened nothing.
    pub fn new(number: u8, plan: Plan) -> Rc<Self> {
        assert!(number < plan.shards(), "shard {number} of {}", plan.shards());
        let meter = Meter::new(plan.next_session.clone());
        let (refused, opened, serving) = (Cell::new(0), RefCell::default(), OnceCell::new());
        Rc::new(Self { number, plan, meter, refused, opened, serving })
    }

    /// The life of a shard other than 0: does what shard 0 asks for, until that is gone or `over`.
    pub async fn live(self: Rc<Self>, handle: ShardHandle<Self>, mut over: watch::Receiver<bool>) {
        assert!(self.number > 0, "shard 0 is the engine's");
        self.prepare_thread();
        tokio::select! {
            biased;
            _ = over.wait_for(|over| *over) => {}
            () = handle.serve(self.clone()) => {}
        }
    }

    /// What is set for a thread; on the shard's.
    pub fn prepare_thread(self: &Rc<Self>) {
        set_busy_poll_max(self.plan.config.busy_poll);
        if self.plan.config.low_latency_wakeup
            && let Err(error) = limit_cpu_latency()
            && self.number == 0
        {
            tracing::info!(
                "{error}: processors sleep as deeply as the system lets them, clients wait longer"
            );
        }
        let shard = self.clone();
        // Ends with the shard.
        tokio::task::spawn_local(async move {
            loop {
                shard.meter.sample(atoll_real::now());
                tokio::time::sleep(SAMPLE_EVERY).await;
            }
        });
    }

    /// Opens its disks as part of that host, whose shard 0 listens at `addresses`. Any but shard 0,
    /// whose world is there before.
    ///
    /// # Errors
    /// The system gives no entropy.
    pub async fn open(
        self: Rc<Self>,
        identity: Identity,
        addresses: Vec<SocketAddr>,
    ) -> Result<(), Problem> {
        let net =
            RealNet::of_shard(self.number, &addresses, &self.plan.siblings, self.plan.peer_tls());
        let directory = loop {
            match HostDirectory::connect(&self.plan.config.directory).await {
                Ok(directory) => break directory,
                // Shard 0, which is connected, says it when it stays away.
                Err(error) => tracing::debug!("shard {}: {error}", self.number),
            }
            tokio::time::sleep(RETRY_EVERY).await;
        };
        self.open_in(world(net, directory)?, identity).await;
        Ok(())
    }

    /// Opens its disks in that world. Returns when every shard has opened its own.
    pub async fn open_in(&self, world: HostWorld, identity: Identity) {
        let Plan { config, slots, .. } = &self.plan;
        let (groups, problems) =
            disks::start_all(&world, slots, self.number, identity, config.backend).await;
        slots.all_tried().await;
        let before = self.opened.replace(Some(Opened { world, groups, problems }));
        assert!(before.is_none() && self.serving.get().is_none(), "a shard opens its disks once");
    }

    /// Starts it beside shard 0.
    pub fn start(&self, first: &FirstShard) {
        let Opened { world, groups, problems } = self.opened.take().expect("its disks are open");
        first.set_lacks_disks(self.number, self.lacks_disks());
        let node = Node::start_shard(world.clone(), first, self.number, groups);
        self.serve(world, node, problems);
    }

    /// The disk groups of shard 0, with which its node is started.
    pub fn take_groups(&self) -> Vec<Started> {
        let mut opened = self.opened.borrow_mut();
        std::mem::take(&mut opened.as_mut().expect("its disks are open").groups)
    }

    /// Serves through the node that was started on shard 0.
    pub fn start_first(&self, node: HostNode) {
        let Opened { world, problems, .. } = self.opened.take().expect("its disks are open");
        node.objects().members().set_lacks_disks(self.lacks_disks());
        self.serve(world, node, problems);
    }

    fn lacks_disks(&self) -> bool {
        self.plan.slots.lack_disks(self.number)
    }

    fn serve(&self, world: HostWorld, node: HostNode, problems: Vec<Problem>) {
        let config = &self.plan.config;
        let days = Nanos::from_secs(config.scrub_every_days * 86_400);
        node.schedule_scrubs(days, config.scrub_rate);
        for Problem { code, detail, hint, .. } in problems {
            let hint = hint.unwrap_or_default();
            // An empty disk waits for a command; anything else is not as it should be.
            let (severity, kind) = if code == Code::Conflict {
                tracing::warn!(hint, "{detail}");
                (Severity::Warning, "disk-empty")
            } else {
                tracing::error!(hint, "{detail}");
                (Severity::Error, "disk-unusable")
            };
            let slot = self.plan.slots.of_shard(self.number).find(|s| s.trouble() == detail);
            let about = About {
                disks: slot.map(|slot| slot.paths()).unwrap_or_default(),
                cause: detail.clone(),
                ..About::host(node.id())
            };
            node.note(severity, kind, about, detail);
        }
        let volumes = MeteredVolumes::new(world.clone(), node.clone(), self.meter.clone());
        let limits = self.plan.limits();
        let nbd = Server::new(world.clone(), volumes, limits);
        let first = self.serving.set(Serving { world, node, nbd }).is_ok();
        assert!(first, "a shard starts once");
    }

    fn serving(&self) -> Result<&Serving, Problem> {
        let starting = || Problem::new(Code::Unavailable, "this host is starting");
        self.serving.get().ok_or_else(|| starting().hint("try again in a few seconds"))
    }

    /// Where its clients are served, once it has started.
    pub fn nbd(&self) -> Result<&NbdServer, Problem> {
        self.serving().map(|serving| &serving.nbd)
    }

    /// A client has come; none: the host has too many.
    pub fn admit(&self) -> Option<ClientPermit> {
        let permit = ClientPermit::take(&self.plan.clients, self.plan.nbd_connections);
        if permit.is_none() {
            self.refused.set(self.refused.get() + 1);
        }
        permit
    }

    /// Goes on with a client that another shard has accepted.
    ///
    /// # Errors
    /// It has not started, or the client has gone.
    pub fn resume(
        &self,
        stream: DetachedStream,
        session: Suspended,
        permit: ClientPermit,
    ) -> Result<(), Problem> {
        let nbd = self.nbd()?.clone();
        let gone = |e: std::io::Error| Problem::new(Code::Failed, e.to_string());
        let stream = RealStream::attach(stream).map_err(gone)?;
        let peer = stream.peer();
        // Ends with the connection, or when the server stops.
        tokio::task::spawn_local(PEER.scope(peer.as_str().into(), async move {
            let ended = nbd.resume(stream, session).await;
            tracing::debug!(%peer, ?ended, "an NBD client has gone");
            drop(permit);
        }));
        Ok(())
    }

    /// What it has counted.
    pub fn figures(&self) -> ShardFigures {
        let used = self.meter.figures();
        let Some(Serving { world, node, nbd }) = self.serving.get() else {
            return ShardFigures { used, ..ShardFigures::default() };
        };
        let stages = world.stages().map(|stages| Stage::ALL.map(|stage| stages.histogram(stage)));
        let owned = node.objects().owned();
        let promised = owned.iter().map(|object| promised_bytes(&object.record));
        ShardFigures {
            used,
            nbd: Stats { refused: nbd.stats().refused + self.refused.get(), ..nbd.stats() },
            stages: stages.into_iter().flatten().collect(),
            promised_bytes: promised.fold(0, u64::saturating_add),
        }
    }

    /// Forgets the load of all volumes but these, and of those that are not in use.
    pub fn keep_figures(&self, wanted: impl Fn(&str) -> bool) {
        self.meter.keep(wanted);
    }

    /// A volume is gone: nothing of it is shown any more.
    pub fn forget_figures(&self, volume: &str) {
        self.meter.forget(volume);
    }

    /// Makes a disk group of the disks of a slot of this shard; `group` as it is then.
    ///
    /// # Errors
    /// As [`disks::create`].
    pub async fn create_group(
        &self,
        mut group: Group,
        identity: Identity,
        dry_run: bool,
    ) -> Result<Group, Problem> {
        let Serving { world, node, .. } = self.serving()?;
        let Plan { config, slots, .. } = &self.plan;
        let mut own = slots.of_shard(self.number);
        let slot = own.find(|slot| slot.paths() == group.disks).expect("it is one of this shard");
        let made = disks::create(world, slot, identity, config.backend, dry_run).await?;
        if let Some((store, record)) = made {
            let space = store.space();
            group.id = record.id.to_string();
            group.log_bytes = Some(space.log_bytes);
            group.log_fill_percent = Some(0);
            group.components = Some(0);
            group.space = Some(atoll_api::types::Space {
                capacity_bytes: space.capacity_bytes,
                used_bytes: space.used_bytes,
                free_bytes: space.free_bytes,
            });
            let message = format!("disk group {} on {}", record.id, slot.paths().join(", "));
            let about = About {
                group: Some(record.id),
                disks: slot.paths(),
                numbers: vec![("capacity_bytes", space.capacity_bytes)],
                ..About::host(node.id())
            };
            node.add_group(store, record);
            node.note(Severity::Info, "group-created", about, message);
        }
        Ok(group)
    }

    /// Starts a scrub of one of its disk groups; rate 0 stops it.
    ///
    /// # Errors
    /// [`Code::NotFound`]: it has no such group.
    pub fn scrub(&self, group: GroupId, rate: u64) -> Result<(), Problem> {
        let stores = self.serving()?.node.objects().members().stores();
        let store = stores.iter().find(|store| store.group() == group);
        let none = || Problem::not_found("group", &group.to_string());
        store.ok_or_else(none)?.scrub(None, rate);
        Ok(())
    }

    /// From now on it takes no client.
    pub fn stop_clients(&self) {
        if let Some(serving) = self.serving.get() {
            serving.nbd.stop();
        }
    }

    /// Stops in order: clients, what it owns, disks; shard 0 last of all.
    pub async fn stop(&self) {
        let opened = self.opened.take();
        let mut stores: Vec<HostStore> =
            opened.into_iter().flat_map(|opened| opened.groups).map(|(store, _)| store).collect();
        if let Some(Serving { node, nbd, .. }) = self.serving.get() {
            nbd.stop();
            let _ = tokio::time::timeout(STOP_WAIT, nbd.idle()).await;
            // Those that were created since it started are among them.
            stores.extend(node.objects().members().stores());
            let _ = tokio::time::timeout(STOP_WAIT, node.stop()).await;
        }
        for store in stores {
            let _ = tokio::time::timeout(STOP_WAIT, store.close()).await;
        }
    }
}

/// A world on this machine.
///
/// # Errors
/// The system gives no entropy.
pub fn world(net: RealNet, directory: HostDirectory) -> Result<HostWorld, Problem> {
    RealWorld::new(net, directory)
        .map_err(|e| Problem::new(Code::Failed, format!("no entropy: {e}")))
}

#[cfg(test)]
mod tests {
    use super::{ClientPermit, ShardFigures, Stats};
    use std::sync::Arc;

    #[test]
    fn a_host_has_so_many_clients_wherever_they_are_served() {
        let clients = Arc::default();
        let first = ClientPermit::take(&clients, 2).unwrap();
        let second = ClientPermit::take(&clients, 2).unwrap();
        assert!(ClientPermit::take(&clients, 2).is_none());
        std::thread::Builder::new().spawn(move || drop(first)).unwrap().join().unwrap();
        assert!(ClientPermit::take(&clients, 2).is_some());
        drop(second);
    }

    #[test]
    fn figures_of_shards_add_up() {
        let shard = |accepted, promised_bytes| ShardFigures {
            nbd: Stats { accepted, resumed: 1, ..Stats::default() },
            promised_bytes,
            ..ShardFigures::default()
        };
        let both = shard(2, 10).and(shard(3, 20));
        assert_eq!((both.nbd.accepted, both.nbd.resumed, both.promised_bytes), (5, 2, 30));
    }
}
