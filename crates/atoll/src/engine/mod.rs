//! The engine of one host, from the first connection to the directory to the last acknowledgement.
//!
//! A [`Shard`] is what one thread serves: disk groups, owners, clients. [`Shards`] are all of a
//! host's. The [`Engine`] lives on the thread of shard 0 and does what is done once a host: joining
//! the cluster, listening, management.
//!
//! Invariants: nothing here is touched from another thread but through a bridge; until the host
//! serves, every request hears why it does not yet; disks that cannot be used keep nothing else
//! from starting.

mod admin;
mod cluster;
mod control;
mod directory;
mod directory_health;
mod disks;
mod etcd_members;
mod event_files;
mod host;
mod host_request;
mod items;
mod joining;
pub mod meter;
mod profile;
mod room;
mod shard;
mod shards;
mod tokens;
#[cfg(test)]
mod two_releases;

pub use control::EngineControl;
pub use host::HostNode;
pub use shard::{Plan, Shard};

use crate::audit::AuditLog;
use crate::bridge::Bridge;
use crate::config::Config;
use crate::etcd_member;
use crate::lock::DataDir;
use crate::rest::listen::cannot_bind;
use crate::trust::{self, HostTrust};
use atoll_api::envelope::rfc3339;
use atoll_api::{Code, Problem};
use atoll_format::id::{ClusterId, HostId, Incarnation};
use atoll_format::level::{Level, Levels};
use atoll_format::record::{ClusterRecord, key};
use atoll_front::nbd::{HandOver, Served};
use atoll_node::{
    About, Before, Ended, EventMark, EventsKept, JoinError, Life, Node, NodeConfig, OtherLife,
    RemovedHost, Severity, TaskBook, before, check_belongs, check_host_name, find_or_found,
};
use atoll_real::{RealNet, RealStream, StreamListener};
use atoll_world::stream::ByteStream;
use atoll_world::{Directory, Nanos, World};
use directory::HostDirectory;
use disks::Slots;
use event_files::EventFiles;
use futures_util::future::{FutureExt, try_join};
use host::HostWorld;
use meter::PEER;
use room::Kept;
use shard::{RETRY_EVERY, STOP_WAIT};
use shards::Shards;
use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// How often tasks are looked at while there are any: as often as hosts tell of themselves.
const TASKS_EVERY: Duration = Duration::from_secs(2);
/// How long to rest when a client cannot be accepted (no file descriptors).
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// What runs once the host serves.
pub struct Running {
    /// Of shard 0: it speaks for the host.
    pub node: HostNode,
    pub world: HostWorld,
    pub cluster: ClusterRecord,
}

/// One host, on the thread of its shard 0.
pub struct Engine {
    pub config: Arc<Config>,
    pub host: HostId,
    pub slots: Arc<Slots>,
    pub shards: Shards,
    /// None: without TLS.
    pub trust: Option<Arc<HostTrust>>,
    /// Who has changed what.
    pub audit: Arc<AuditLog>,
    /// Whoever reads the authority that this host keeps: one at a time.
    authority_reads: Arc<Semaphore>,
    tasks: RefCell<TaskBook>,
    /// When this process began.
    began: Nanos,
    running: OnceCell<Running>,
    /// Where its events last, from when it starts.
    events: OnceCell<Rc<EventFiles>>,
    /// Why it does not serve yet.
    phase: RefCell<String>,
}

/// Sockets that were bound before anything else was touched.
pub struct Bound {
    net: RealNet,
    nbd: Vec<StreamListener>,
}

impl Bound {
    /// Binds what the configuration names. On shard 0.
    ///
    /// # Errors
    /// [`Code::AddressInUse`] names the address and its key.
    pub async fn new(plan: &Plan) -> Result<Self, Problem> {
        let config = &plan.config;
        let peers: Vec<String> = config.peers.iter().map(ToString::to_string).collect();
        let net = RealNet::bind_for(&config.peers, &plan.siblings, plan.peer_tls())
            .map_err(|e| cannot_bind(&e, &peers.join(", "), "network.peer"))?;
        let mut nbd = Vec::new();
        if let Some(path) = &config.nbd_socket {
            let shown = path.display().to_string();
            let named = |e: std::io::Error| cannot_bind(&e, &shown, "frontends.nbd.unix");
            nbd.push(StreamListener::unix(path).map_err(named)?);
        }
        if let Some(address) = config.nbd_tcp {
            let listener = StreamListener::tcp(address).await;
            let named =
                |e: std::io::Error| cannot_bind(&e, &address.to_string(), "frontends.nbd.tcp");
            nbd.push(listener.map_err(named)?);
        }
        Ok(Self { net, nbd })
    }
}

impl Engine {
    /// A host that does not serve yet; `others` lead to its shards but 0, in their order.
    pub fn new(plan: Plan, host: HostId, others: Vec<Bridge<Shard>>) -> Rc<Self> {
        assert_eq!(others.len() + 1, usize::from(plan.shards()), "a bridge to each other shard");
        Rc::new(Self {
            config: plan.config.clone(),
            host,
            slots: plan.slots.clone(),
            trust: plan.trust.clone(),
            audit: plan.audit.clone(),
            authority_reads: Arc::new(Semaphore::new(1)),
            shards: Shards::new(Shard::new(0, plan), others),
            tasks: RefCell::default(),
            began: atoll_real::now(),
            running: OnceCell::new(),
            events: OnceCell::new(),
            phase: RefCell::new("this host is starting".into()),
        })
    }

    /// What runs.
    ///
    /// # Errors
    /// [`Code::Unavailable`] says why the host does not serve yet.
    pub fn running(&self) -> Result<&Running, Problem> {
        self.running.get().ok_or_else(|| {
            Problem::new(Code::Unavailable, self.phase.borrow().clone())
                .hint("try again in a few seconds")
        })
    }

    /// A round trip through the thread of every shard: none once the host serves, else what it is
    /// at.
    ///
    /// # Errors
    /// A shard has ended, or takes no calls.
    pub async fn round_trip(&self) -> Result<Option<String>, Problem> {
        self.shards.all_others(|_| async { Ok(()) }).await?;
        Ok(self.running().err().map(|starting| starting.detail))
    }

    fn say(&self, phase: String) {
        if *self.phase.borrow() != phase {
            tracing::info!("{phase}");
            *self.phase.borrow_mut() = phase;
        }
    }

    /// Starts the host, serves until `stop`, and stops in order.
    ///
    /// # Errors
    /// The host can never serve as it is configured; nothing was changed.
    pub async fn live(
        self: Rc<Self>,
        bound: Bound,
        data: &DataDir,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Problem> {
        self.shards.own().prepare_thread();
        let listeners = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            started = self.start(bound, data) => started?,
        };
        let running = self.running().expect("just started");
        for listener in listeners {
            tokio::task::spawn_local(accept(listener, self.clone()));
        }
        let tasks = self.clone();
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(TASKS_EVERY).await;
                if tasks.may_have_tasks() {
                    // What the directory does not tell now is seen the next time.
                    let _ = tasks.tasks().await;
                }
            }
        });
        tracing::info!(host = %self.config.host_name, "serving");
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            ended = running.node.ended() => {
                // As after a crash: what goes on now belongs to others.
                self.shards.own().stop_clients();
                return Err(match ended {
                    Ended::Twin(other) => {
                        lives_twice(&other, "has this host's identity now", data.path())
                    }
                    Ended::Removed(host) => was_removed(&host, data.path()),
                    Ended::Level(level) => wrong_level(level),
                });
            }
        }
        tracing::info!("stopping");
        self.shards.own().stop_clients();
        let others = self.shards.on_others(|shard| async move {
            shard.stop().await;
            Ok(())
        });
        // Each of its steps has a bound, unless its thread hangs.
        let _ = tokio::time::timeout(4 * STOP_WAIT, others).await;
        self.shards.own().stop().await;
        if let Some(events) = self.events.get() {
            events.flush();
        }
        Ok(())
    }

    /// Whose labels this host takes for its own.
    fn identity(&self, cluster: &ClusterRecord) -> disks::Identity {
        disks::Identity { cluster: cluster.id, host: self.host }
    }

    /// Where clients connect, once every shard has started.
    async fn start(
        self: &Rc<Self>,
        bound: Bound,
        data: &DataDir,
    ) -> Result<Vec<StreamListener>, Problem> {
        let Bound { net, nbd } = bound;
        let addresses = net.addresses().to_vec();
        if self.config.managed
            && let Err(problem) = etcd_member::recall(&self.config)
        {
            tracing::warn!("where the members of etcd were is not known: {}", problem.detail);
        }
        let world = shard::world(net, self.directory().await)?;
        let cluster = self.join(&world, data).await?;
        let config = NodeConfig {
            cluster: cluster.id,
            host: self.host,
            name: self.config.host_name.clone(),
            fault_domain: self.config.fault_domain.clone(),
            peers: self.config.peers.iter().map(ToString::to_string).collect(),
            api: self.config.api.map(|address| address.to_string()).unwrap_or_default(),
            release: env!("CARGO_PKG_VERSION").into(),
            levels: Levels::KNOWN,
        };
        let over = self.check_alone(&world, &config, data).await?;
        self.say("this host is opening its disks".into());
        let (identity, shards) = (self.identity(&cluster), self.shards.count());
        let own = self.shards.own();
        // Each waits for all to have opened theirs, but not if one of them cannot.
        let others = self.shards.all_others(move |shard| shard.open(identity, addresses));
        let own_disks = own.open_in(world.clone(), identity).map(Ok);
        try_join(own_disks, others).await?;
        let (files, earlier, said) = EventFiles::open(data.path(), self.host);
        let files = self.events.get_or_init(|| Rc::new(files)).clone();
        let kept = EventsKept { events: earlier, sink: files.clone() };
        let incarnation = Incarnation(world.random());
        // Noted before it is granted any lease.
        let life = Life { incarnation, outlived: data.begin_life(incarnation) };
        let (node, first) =
            Node::start_first(world.clone(), config, life, shards, own.take_groups(), kept);
        if let Some(incarnation) = over {
            node.is_over(incarnation);
        }
        node.objects().set_repair_delay(cluster.repair_delay_s);
        node.objects().set_resync_floor(cluster.resync_floor_bytes);
        for sentence in said {
            tracing::warn!("{sentence}");
            let about = About::host(node.id());
            node.note(Severity::Warning, "events-damaged", about, sentence);
        }
        for sentence in self.audit.said() {
            tracing::warn!("{sentence}");
            let about = About::host(node.id());
            node.note(Severity::Warning, "audit-damaged", about, sentence.clone());
        }
        own.start_first(node.clone());
        let start = move |shard: Rc<Shard>| async move {
            shard.start(&first);
            Ok(())
        };
        self.shards.all_others(start).await?;
        let started = format!("started, version {}", env!("CARGO_PKG_VERSION"));
        let about = About::host(node.id());
        node.note(Severity::Info, "host-started", about, started);
        // What was noted so far is in the log already. Ends with the shard.
        tokio::task::spawn_local(log_events(node.clone(), node.events_end()));
        tokio::task::spawn_local(room::watch(node.clone(), self.config.data_dir.clone()));
        let events = move || (files.trouble(), files.dropped());
        tokio::task::spawn_local(Kept::EVENTS.watch(node.clone(), events));
        let audit = self.audit.clone();
        let audit = move || (audit.trouble(), audit.lost());
        tokio::task::spawn_local(Kept::AUDIT.watch(node.clone(), audit));
        if let Some(trust) = &self.trust {
            tokio::task::spawn_local(trust::watch(node.clone(), trust.clone()));
            self.begin_renewals(trust);
        }
        node.set_manager(self.manager());
        node.arrive().await;
        let first = self.running.set(Running { node, world, cluster }).is_ok();
        assert!(first, "a host is started once");
        if self.config.managed {
            self.begin_etcd_members();
        }
        Ok(nbd)
    }

    /// Makes sure that no other process lives as this host, before a disk is touched: the life
    /// that is over.
    async fn check_alone(
        &self,
        world: &HostWorld,
        config: &NodeConfig,
        data: &DataDir,
    ) -> Result<Option<Incarnation>, Problem> {
        loop {
            match before(world, config).await {
                Ok(Before::New) => return Ok(None),
                Ok(Before::Over(incarnation)) => return Ok(Some(incarnation)),
                Ok(Before::Lives(other)) => {
                    return Err(lives_twice(&other, "lives already", data.path()));
                }
                Err(e) => self.say(format!("this host waits for the directory: {e}")),
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    /// Connects to the directory; waits for as long as it takes.
    async fn directory(&self) -> HostDirectory {
        let config = &self.config.directory;
        loop {
            match HostDirectory::connect(config).await {
                Ok(directory) => return directory,
                Err(e) => self.say(format!("this host waits for the directory at {config}: {e}")),
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    /// Finds the cluster, or founds it; makes sure that this host belongs to it.
    async fn join(&self, world: &HostWorld, data: &DataDir) -> Result<ClusterRecord, Problem> {
        let known: Option<ClusterId> = data.known("cluster-id")?;
        let trusted = self.trust.as_ref().map(|trust| trust.identity().cluster);
        let which = "directory.socket, or directory.endpoints and prefix, name the directory; \
                     host.data_dir is this host's identity";
        let cluster = loop {
            // Who belongs to a cluster founds no other one in a directory that is lost, or wrong.
            if let (Some(known), Ok(None)) = (known, world.directory().get(key::CLUSTER).await) {
                let detail = format!(
                    "this host belongs to cluster {known}, and its directory, {}, holds no cluster",
                    self.config.directory
                );
                return Err(Problem::new(Code::Conflict, detail).hint(which));
            }
            match find_or_found(world, trusted, Levels::KNOWN).await {
                Ok((cluster, is_new)) => {
                    if is_new {
                        tracing::info!(cluster = %cluster.id, "a new cluster");
                    }
                    break cluster;
                }
                Err(JoinError::Level { level, .. }) => return Err(wrong_level(level)),
                Err(why) => self.say(format!("this host waits for the directory: {why}")),
            }
            tokio::time::sleep(RETRY_EVERY).await;
        };
        if let Some(trust) = self.trust.as_ref().filter(|t| t.identity().cluster != cluster.id) {
            return Err(trust.of_another_cluster(cluster.id));
        }
        let known: ClusterId = data.identity("cluster-id", || cluster.id)?;
        if known != cluster.id {
            return Err(Problem::new(
                Code::Conflict,
                format!(
                    "this host belongs to cluster {known}, its directory holds cluster {}",
                    cluster.id
                ),
            )
            .hint(which));
        }
        loop {
            let name = &self.config.host_name;
            let checked = match check_belongs(world, self.host, name).await {
                Ok(()) => check_host_name(world, self.host, name).await,
                removed => removed,
            };
            match checked {
                Ok(()) => break,
                Err(JoinError::Removed(host)) => return Err(was_removed(&host, data.path())),
                Err(JoinError::Level { level, .. }) => return Err(wrong_level(level)),
                Err(JoinError::Directory(e)) => {
                    self.say(format!("this host waits for the directory: {e}"));
                }
                Err(JoinError::Unreadable(why)) => return Err(Problem::new(Code::Conflict, why)),
                Err(taken @ JoinError::NameTaken { .. }) => {
                    return Err(Problem::new(Code::Exists, taken.to_string())
                        .hint("host.name in the configuration must be unique in the cluster"));
                }
            }
            tokio::time::sleep(RETRY_EVERY).await;
        }
        Ok(cluster)
    }
}

/// Why this release cannot serve the cluster.
fn wrong_level(level: Level) -> Problem {
    let (release, known) = (env!("CARGO_PKG_VERSION"), Levels::KNOWN);
    let which = if level > known.newest { "newer" } else { "older" };
    let detail = format!(
        "the cluster is at feature level {level}, and this release, {release}, knows {known}: what \
         other hosts have written may be what it cannot read"
    );
    Problem::new(Code::Conflict, detail).hint(format!(
        "install a {which} release on this host ('atoll cluster upgrade', on another one, shows \
         what the hosts run); its disks keep what they hold"
    ))
}

/// Why this process must not live as a host of the cluster.
fn was_removed(host: &RemovedHost, data: &Path) -> Problem {
    let (data, name) = (data.display(), &host.name);
    let when = if host.at_ms == 0 { String::new() } else { format!(" at {}", rfc3339(host.at_ms)) };
    let detail = format!(
        "host {name} was removed from the cluster{when}: what its disks hold counts no more"
    );
    Problem::new(Code::Conflict, detail).hint(format!(
        "to use this machine again, join it as a new host: remove {data}/host-id and {data}/trust, \
         give it a new certificate, start it, and wipe its disks (docs/operations.md, 'A host \
         that goes for good')"
    ))
}

/// Why this process must not live as this host.
fn lives_twice(other: &OtherLife, how: &str, data: &Path) -> Problem {
    let OtherLife { name, endpoint } = other;
    let (data, detail) = (data.display(), format!("host {name}, at {endpoint}, {how}"));
    Problem::new(
        Code::Conflict,
        format!("{detail}: {data} is a copy of its data directory, or the other way round"),
    )
    .hint(format!(
        "stop one of the two for good; to make another host of a copy, remove {data}/host-id \
             and wipe its disks (docs/operations.md, 'Copies of a host')"
    ))
}

/// Writes every event of this host after that mark into its own log, at its level.
async fn log_events(node: HostNode, mut after: EventMark) {
    loop {
        let event = node.next_event();
        for event in node.local_events(after, usize::MAX) {
            after = event.mark();
            let object = event.object.map(|id| id.to_string()).unwrap_or_default();
            let (kind, message) = (&event.kind, &event.message);
            match event.severity {
                Severity::Info => tracing::info!(kind, object, "{message}"),
                Severity::Warning => tracing::warn!(kind, object, "{message}"),
                Severity::Error => tracing::error!(kind, object, "{message}"),
            }
        }
        event.await;
    }
}

/// Serves clients of one listener until the shard ends.
async fn accept(listener: StreamListener, engine: Rc<Engine>) {
    loop {
        match listener.accept().await {
            // Ends with the connection, or when the server stops.
            Ok(stream) => drop(tokio::task::spawn_local(engine.clone().serve_client(stream))),
            Err(e) => {
                tracing::warn!("cannot accept an NBD client: {e}");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
}

impl Engine {
    /// Serves a client that has just connected, here or on the shard that is to.
    async fn serve_client(self: Rc<Self>, stream: RealStream) {
        let peer = stream.peer();
        let Some(permit) = self.shards.own().admit() else {
            return tracing::debug!(%peer, "an NBD client too many");
        };
        let nbd = self.shards.own().nbd().expect("it listens once it has started");
        let HandOver { shard, stream, session } =
            match PEER.scope(peer.as_str().into(), nbd.serve(stream)).await {
                Served::Ended(ended) => {
                    return tracing::debug!(%peer, ?ended, "an NBD client has gone");
                }
                Served::HandOver(hand_over) => *hand_over,
            };
        let handed = match stream.detach() {
            Ok(stream) => {
                let resume =
                    move |shard: Rc<Shard>| async move { shard.resume(stream, session, permit) };
                self.shards.on(shard, resume).await
            }
            Err(error) => Err(Problem::new(Code::Failed, error.to_string())),
        };
        if let Err(why) = handed {
            // It is disconnected, and comes back as after any other break.
            tracing::debug!(%peer, %why, "an NBD client was not handed to shard {shard}");
        }
    }
}

/// Nanoseconds of the world as whole seconds.
fn seconds(span: Nanos) -> u64 {
    span.0 / 1_000_000_000
}
