//! `atoll serve`: one host's daemon. REST on the thread that starts it, everything about volumes
//! on the shards' own.
//!
//! Invariants: sockets are bound and the data directory is locked before a disk is touched; the
//! process ends when a shard ends; SIGTERM and SIGINT stop it in order; the service manager is told
//! that the host serves once it does, and that it lives by a round trip through every shard.

use crate::audit::AuditLog;
use crate::bridge::{Bridge, ShardHandle, bridge};
use crate::cli::args::{Directory, Serve};
use crate::cli::certificate::random_id;
use crate::cli::context::{Context, Interrupt};
use crate::cli::out::Run;
use crate::config::{self, Config};
use crate::descriptors;
use crate::engine::{Bound, Engine, EngineControl, Plan, Shard};
use crate::lock::DataDir;
use crate::log;
use crate::rest::door::Access;
use crate::rest::listen::Listeners;
use crate::service::ServiceManager;
use crate::trust::HostTrust;
use atoll_api::{Code, Problem};
use atoll_format::id::HostId;
use atoll_real::Shard as Thread;
use atoll_real::directory::{DirectoryClient, DirectoryServer};
use atoll_world::Directory as _;
use std::cell::OnceCell;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// What keeps it from starting; nothing was changed then.
pub async fn serve(context: &Context, serve: Serve) -> Run {
    let config = Config::load(&serve.config, config::environment()?)?;
    if serve.check_config {
        context.out.note(&format!("{}: good", serve.config.display()));
        return Ok(());
    }
    log::start(&config.log_level, config.log_json);
    let disks = config.groups.iter().map(|group| group.disks.len()).sum();
    let shards = config.shards(std::thread::available_parallelism().map_or(1, usize::from));
    let shares = descriptors::of_host(disks, shards)?;
    let data = DataDir::lock(&config.data_dir)?;
    let trust = HostTrust::of(&config, &data)?;
    let host: HostId = {
        // Who has a certificate is the host that it names.
        let new = match &trust {
            Some(trust) => trust.identity().host,
            None => HostId(random_id()?),
        };
        data.identity("host-id", || new)?
    };
    let audit = Arc::new(AuditLog::open(&config.data_dir));
    let listeners = Listeners::bind(config.api, config.api_socket.as_deref()).await?;
    let listeners = listeners.at_most(shares.api);
    let tls = trust.as_ref().map(|trust| trust.tls().clone());
    let plan = Plan::new(config.clone(), trust, audit.clone(), shards, shares.nbd);
    let (near, handle) = bridge::<Engine>();
    let (sender, bound) = oneshot::channel();
    let (ended, mut end) = oneshot::channel();
    let (give_up, stop) = stop_signal(&context.interrupt);
    let others = Others::start(&plan)?;
    let (bridges, shard_stop) = (others.bridges.clone(), stop.clone());
    let first = start_thread(0, move || async move {
        let outcome = first(plan, host, data, bridges, handle, sender, shard_stop).await;
        let _ = ended.send(());
        outcome
    })?;
    match bound.await {
        Ok(Ok(())) => {}
        Ok(Err(problem)) => return Err(problem.into()),
        Err(_) => return Err(Problem::new(Code::Failed, "the shard has ended").into()),
    }
    let manager = ServiceManager::of_environment();
    let mut telling = std::pin::pin!(tell(manager.as_ref(), near.clone()));
    let control = EngineControl::new(near, audit.clone());
    let access = Access {
        names: config.api_names.clone(),
        writable: config.api_writable,
        tls,
        socket: config.api_socket.clone(),
    };
    let mut rest = std::pin::pin!(listeners.serve(control, access, stop));
    let mut dead = others.dead;
    let shard_ended = tokio::select! {
        biased;
        _ = &mut end => true,
        // They end when they are told to, below: one has died.
        Some(()) = dead.recv() => false,
        () = &mut rest => false,
        () = &mut telling => unreachable!("it goes on for as long as it is polled"),
    };
    if let Some(manager) = &manager {
        manager.stopping();
    }
    // Whichever ended first, the other ones end now.
    let _ = give_up.send(true);
    if shard_ended {
        rest.await;
    } else {
        let _ = end.await;
    }
    audit.flush().await;
    let _ = others.over.send(true);
    let outcome = tokio::task::spawn_blocking(move || {
        let of_others: Vec<_> = others.threads.into_iter().map(Thread::join).collect();
        of_others
            .into_iter()
            .fold(first.join(), |all, other| all.and_then(|done| other.map(|()| done)))
    });
    match outcome.await {
        Ok(Ok(done)) => Ok(done?),
        Ok(Err(e)) => Err(Problem::new(Code::Failed, format!("a shard: {e}")).into()),
        Err(_) => Err(Problem::new(Code::Failed, "a shard died; see the log above").into()),
    }
}

/// Tells the service manager of the host, for as long as it is polled. On the thread of REST.
async fn tell(manager: Option<&ServiceManager>, host: Bridge<Engine>) {
    if let Some(manager) = manager {
        let ask = || host.call(|engine| async move { engine.round_trip().await });
        manager.tell(|| async { ask().await.map_err(|problem| problem.detail) }).await;
    }
    std::future::pending().await
}

/// The threads of all shards but 0.
struct Others {
    bridges: Vec<Bridge<Shard>>,
    threads: Vec<Thread<()>>,
    /// Tells them to end.
    over: watch::Sender<bool>,
    /// Says that one has ended.
    dead: mpsc::Receiver<()>,
}

impl Others {
    fn start(plan: &Plan) -> Result<Self, Problem> {
        let (over, is_over) = watch::channel(false);
        let (alive, dead) = mpsc::channel(1);
        let (mut bridges, mut threads) = (Vec::new(), Vec::new());
        for number in 1..plan.shards() {
            let (near, handle) = bridge::<Shard>();
            let (plan, is_over, alive) = (plan.clone(), is_over.clone(), Alive(alive.clone()));
            let thread = start_thread(number, move || async move {
                let _alive = alive;
                Shard::new(number, plan).live(handle, is_over).await;
            })?;
            bridges.push(near);
            threads.push(thread);
        }
        Ok(Self { bridges, threads, over, dead })
    }
}

/// Says at its end, also by a panic, that a thread has ended.
struct Alive(mpsc::Sender<()>);

impl Drop for Alive {
    fn drop(&mut self) {
        // It has been said, or nobody listens any more.
        let _ = self.0.try_send(());
    }
}

fn start_thread<F, M, T>(number: u8, main: M) -> Result<Thread<T>, Problem>
where
    T: Send + 'static,
    F: Future<Output = T>,
    M: FnOnce() -> F + Send + 'static,
{
    Thread::start(&format!("shard-{number}"), main).map_err(|error| {
        Problem::new(Code::Failed, format!("shard {number} cannot be started: {error}"))
    })
}

/// Becomes true at SIGTERM, at SIGINT, or when the first half is told so.
fn stop_signal(interrupt: &Interrupt) -> (watch::Sender<bool>, watch::Receiver<bool>) {
    let (sender, receiver) = watch::channel(false);
    let (forward, interrupt) = (sender.clone(), interrupt.clone());
    // Ends with the process.
    tokio::spawn(async move {
        interrupt.wait().await;
        let _ = forward.send(true);
        std::future::pending::<()>().await;
    });
    (sender, receiver)
}

/// The life of shard 0, and of the host.
async fn first(
    plan: Plan,
    host: HostId,
    data: DataDir,
    others: Vec<Bridge<Shard>>,
    handle: ShardHandle<Engine>,
    bound: oneshot::Sender<Result<(), Problem>>,
    stop: watch::Receiver<bool>,
) -> Result<(), Problem> {
    let sockets = match Bound::new(&plan).await {
        Ok(sockets) => sockets,
        Err(problem) => {
            let _ = bound.send(Err(problem));
            return Ok(());
        }
    };
    let _ = bound.send(Ok(()));
    let engine = Engine::new(plan, host, others);
    tokio::task::spawn_local(handle.serve(engine.clone()));
    engine.live(sockets, &data, stop).await
}

/// Runs the embedded directory until it is told to stop.
///
/// # Errors
/// Why it cannot start, or had to stop.
pub async fn directory(context: &Context, directory: Directory) -> Run {
    log::start("info", false);
    descriptors::of_directory()?;
    let failed = |why: String| Problem::new(Code::LocalFile, why);
    let server = DirectoryServer::open(&directory.file)
        .map_err(|e| failed(format!("the directory: {e}")))?;
    let listening = server
        .listen(&directory.socket)
        .map_err(|e| Problem::new(Code::AddressInUse, format!("the directory: {e}")))?;
    tracing::info!(socket = %directory.socket.display(), "the directory serves");
    let manager = ServiceManager::of_environment();
    let stop = async {
        tokio::select! {
            biased;
            () = context.interrupt.wait() => {}
            () = tell_of_directory(manager.as_ref(), &directory.socket) => {}
        }
        if let Some(manager) = &manager {
            manager.stopping();
        }
    };
    let served = tokio::task::LocalSet::new().run_until(listening.serve(stop)).await;
    Ok(served.map_err(|e| failed(format!("the directory: {e}")))?)
}

/// Tells the service manager of the directory, as its clients see it, for as long as it is polled.
async fn tell_of_directory(manager: Option<&ServiceManager>, socket: &Path) {
    let client = OnceCell::new();
    let ask = || async {
        if client.get().is_none() {
            let _ = client.set(DirectoryClient::connect(socket).await?);
        }
        client.get().expect("just set").alive().await.map(|_| None)
    };
    let ask = || async { ask().await.map_err(|e| e.to_string()) };
    if let Some(manager) = manager {
        manager.tell(ask).await;
    }
    std::future::pending().await
}
