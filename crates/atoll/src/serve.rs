//! `atoll serve`: one host's daemon. REST on the thread that starts it, everything about volumes
//! on the shard's own.
//!
//! Invariants: sockets are bound and the data directory is locked before a disk is touched; the
//! process ends when the shard ends; SIGTERM and SIGINT stop it in order.

use crate::bridge::{ShardHandle, bridge};
use crate::cli::args::{Directory, Serve};
use crate::cli::context::{Context, Interrupt};
use crate::cli::out::Run;
use crate::config::{self, Config};
use crate::descriptors::{self, Shares};
use crate::engine::{Bound, Engine, EngineControl};
use crate::lock::DataDir;
use crate::log;
use crate::rest::door::Access;
use crate::rest::listen::Listeners;
use atoll_api::{Code, Problem};
use atoll_format::id::HostId;
use atoll_real::directory::DirectoryServer;
use atoll_real::{Shard, limit_cpu_latency, set_busy_poll_max};
use std::io::Read;
use tokio::sync::{oneshot, watch};

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
    let shares = descriptors::of_host(disks)?;
    let data = DataDir::lock(&config.data_dir)?;
    let host: HostId = {
        let new = random_host()?;
        data.identity("host-id", || new)?
    };
    let listeners = Listeners::bind(config.api, config.api_socket.as_deref()).await?;
    let listeners = listeners.at_most(shares.api);
    let (near, handle) = bridge::<Engine>();
    let (sender, bound) = oneshot::channel();
    let (ended, mut end) = oneshot::channel();
    let (give_up, stop) = stop_signal(&context.interrupt);
    let (shard_config, shard_stop) = (config.clone(), stop.clone());
    let shard = Shard::start("shard-0", move || async move {
        let outcome = shard(shard_config, host, shares, data, handle, sender, shard_stop).await;
        let _ = ended.send(());
        outcome
    })
    .map_err(|e| Problem::new(Code::Failed, format!("the shard cannot be started: {e}")))?;
    match bound.await {
        Ok(Ok(())) => {}
        Ok(Err(problem)) => return Err(problem.into()),
        Err(_) => return Err(Problem::new(Code::Failed, "the shard has ended").into()),
    }
    let control = EngineControl::new(near);
    let access = Access {
        names: config.api_names.clone(),
        writable: config.api_writable,
        socket: config.api_socket.clone(),
    };
    let mut rest = std::pin::pin!(listeners.serve(control, access, stop));
    let shard_ended = tokio::select! {
        biased;
        _ = &mut end => true,
        () = &mut rest => false,
    };
    // Whichever ended first, the other one ends now.
    let _ = give_up.send(true);
    if shard_ended {
        rest.await;
    } else {
        let _ = end.await;
    }
    let outcome = tokio::task::spawn_blocking(move || shard.join()).await;
    match outcome {
        Ok(Ok(done)) => Ok(done?),
        Ok(Err(e)) => Err(Problem::new(Code::Failed, format!("the shard: {e}")).into()),
        Err(_) => Err(Problem::new(Code::Failed, "the shard died; see the log above").into()),
    }
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

async fn shard(
    config: Config,
    host: HostId,
    shares: Shares,
    data: DataDir,
    handle: ShardHandle<Engine>,
    bound: oneshot::Sender<Result<(), Problem>>,
    stop: watch::Receiver<bool>,
) -> Result<(), Problem> {
    set_busy_poll_max(config.busy_poll);
    if config.low_latency_wakeup
        && let Err(error) = limit_cpu_latency()
    {
        tracing::info!(
            "{error}: processors sleep as deeply as the system lets them, clients wait longer"
        );
    }
    let sockets = match Bound::new(&config).await {
        Ok(sockets) => sockets,
        Err(problem) => {
            let _ = bound.send(Err(problem));
            return Ok(());
        }
    };
    let _ = bound.send(Ok(()));
    let engine = Engine::new(config, host, shares.nbd);
    tokio::task::spawn_local(handle.serve(engine.clone()));
    engine.live(sockets, &data, stop).await
}

/// A new identity, from the system's entropy.
fn random_host() -> Result<HostId, Problem> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Problem::new(Code::LocalFile, format!("/dev/urandom: {e}")))?;
    Ok(HostId(u64::from_le_bytes(bytes)))
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
    let served = listening.serve(context.interrupt.wait()).await;
    Ok(served.map_err(|e| failed(format!("the directory: {e}")))?)
}
