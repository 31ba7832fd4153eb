//! A whole cluster on one machine: the embedded directory and several hosts, each a process of its
//! own on its own loopback address, with files as disks, all below one directory.
//!
//! ```text
//! DIR/lock, dev.pid, dev.sock, dev.log     the supervisor (dev.log with --detach)
//! DIR/authority/                           who signs the certificates of the hosts
//! DIR/directory/{pid,log,state,socket}     the directory
//! DIR/host1/{pid,log,atoll.toml,disk1.img,api.sock,nbd.sock,data/}
//! ```
//!
//! Invariants: one supervisor per directory; every process that it started is ended before it
//! ends, or recognised (pid and start time) and ended by the next one; a process is only ever
//! signalled by a pid that is certainly its own; disks are formatted once, when they are made.

mod messages;
mod plan;
mod process;
mod supervisor;

use crate::cli::args::{DevCommand, DevName, DevStart, DevStop};
use crate::cli::context::{Context, interrupted};
use crate::cli::out::{Failure, Row, Run};
use crate::config;
use crate::lock::DataDir;
use atoll_api::envelope::List;
use atoll_api::{Code, Problem};
use messages::{LOOK_EVERY, MESSAGE_MAX, SupervisorReply, SupervisorRequest};
use plan::Plan;
use process::said;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// How long a command waits for the supervisor: a stop of everything takes up to 20 s.
const ANSWER_WAIT: Duration = Duration::from_secs(50);
/// How long `--detach` waits until every host serves.
const DETACH_WAIT: Duration = Duration::from_secs(90);

/// Runs `atoll dev`.
///
/// # Errors
/// Its failure, to be printed by the caller.
pub async fn run(context: &Context, command: Option<DevCommand>, start: DevStart) -> Run {
    match command {
        None => {
            config::refuse_host_variables("atoll dev, which starts several")?;
            let plan = Plan::new(&start)?;
            if start.detach && !start.background {
                return detach(context, &plan, &start).await;
            }
            if start.background {
                // Its own session: the terminal that started it may go.
                let _ = rustix::process::setsid();
            }
            supervisor::run(context, plan, start.auto_restart).await
        }
        Some(DevCommand::Status(dir)) => {
            let answer = ask(&dir.dir, SupervisorRequest::Status).await?;
            print(context, answer)
        }
        Some(DevCommand::Kill(DevName { name, dir })) => told(
            context,
            ask(&dir.dir, SupervisorRequest::Kill { name: name.clone() }).await?,
            &name,
        ),
        Some(DevCommand::Start(DevName { name, dir })) => told(
            context,
            ask(&dir.dir, SupervisorRequest::Start { name: name.clone() }).await?,
            &name,
        ),
        Some(DevCommand::Restart(DevName { name, dir })) => {
            ask(&dir.dir, SupervisorRequest::Stop { name: name.clone() }).await?;
            told(
                context,
                ask(&dir.dir, SupervisorRequest::Start { name: name.clone() }).await?,
                &name,
            )
        }
        Some(DevCommand::StopHost(DevName { name, dir })) => {
            stop(context, Some(name), &dir.dir).await
        }
        Some(DevCommand::Stop(DevStop { name, dir })) => stop(context, name, &dir.dir).await,
    }
}

async fn stop(context: &Context, name: Option<String>, dir: &Path) -> Run {
    if let Some(name) = name {
        return told(
            context,
            ask(dir, SupervisorRequest::Stop { name: name.clone() }).await?,
            &name,
        );
    }
    match ask(dir, SupervisorRequest::StopAll).await {
        Ok(_) => {
            await_end(&plan::absolute(dir)?).await;
            context.out.note("everything has stopped");
            Ok(())
        }
        // A supervisor that was killed may have left its processes.
        Err(problem) if problem.code == Code::CannotConnect => {
            let dir = plan::absolute(dir)?;
            let ended = process::end_leftovers(&dir).await?;
            let many = match ended {
                0 => "nothing runs there".into(),
                n => format!("{n} processes that a killed supervisor had left were ended"),
            };
            context.out.note(&many);
            Ok(())
        }
        Err(problem) => Err(problem.into()),
    }
}

/// Returns when the supervisor, which has answered, has let go of its directory too: a start right
/// after is not refused.
async fn await_end(dir: &Path) {
    for _ in 0..500 {
        match DataDir::lock(dir) {
            Err(problem) if problem.code == Code::DataDirInUse => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            _ => return,
        }
    }
}

fn told(context: &Context, answer: SupervisorReply, name: &str) -> Run {
    if let SupervisorReply::Done { processes, .. } = answer
        && let Some(process) = processes.iter().find(|process| process.name == name)
    {
        context.out.note(&process.cells().join("  "));
    }
    Ok(())
}

fn print(context: &Context, answer: SupervisorReply) -> Run {
    let SupervisorReply::Done { processes, .. } = answer else { return Ok(()) };
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    context.out.list(&List::new(processes, None, now))
}

/// One question and its answer.
async fn ask(dir: &Path, ask: SupervisorRequest) -> Result<SupervisorReply, Problem> {
    let socket = dir.join(plan::SOCKET);
    let connect = async {
        let stream = UnixStream::connect(&socket).await?;
        let (read, mut write) = stream.into_split();
        let mut line = serde_json::to_vec(&ask).map_err(std::io::Error::other)?;
        line.push(b'\n');
        write.write_all(&line).await?;
        let mut reply = String::new();
        BufReader::new(read.take(MESSAGE_MAX)).read_line(&mut reply).await?;
        Ok::<_, std::io::Error>(reply)
    };
    let cannot = |why: String| {
        let detail = format!("no supervisor answers at {}: {why}", socket.display());
        Problem::new(Code::CannotConnect, detail).hint("'atoll dev --dir DIR' starts one")
    };
    let reply = tokio::time::timeout(ANSWER_WAIT, connect)
        .await
        .map_err(|_| Problem::new(Code::TimedOut, "the supervisor does not answer"))?
        .map_err(|e| cannot(e.to_string()))?;
    match serde_json::from_str(&reply) {
        Ok(SupervisorReply::Failed { problem }) => Err(*problem),
        Ok(answer) => Ok(answer),
        Err(e) => Err(cannot(format!("an odd answer ({e})"))),
    }
}

/// Starts the supervisor in the background and waits until every host serves.
async fn detach(context: &Context, plan: &Plan, start: &DevStart) -> Run {
    plan.make_dirs()?;
    let log = plan.dir.join("dev.log");
    let failed =
        |e: std::io::Error| Problem::new(Code::LocalFile, format!("{}: {e}", log.display()));
    let out = std::fs::File::create(&log).map_err(failed)?;
    let err = out.try_clone().map_err(failed)?;
    let program = std::env::current_exe()
        .map_err(|e| Problem::new(Code::Failed, format!("this program's file: {e}")))?;
    let mut command = tokio::process::Command::new(program);
    command.arg("dev").arg("--dir").arg(&plan.dir).arg("--background");
    command.args(["--hosts", &start.hosts.to_string()]);
    command.args(["--disk-size", &start.disk_size.to_string()]);
    command.args(["--disks-per-host", &start.disks_per_host.to_string()]);
    command.args(["--shards", &start.shards.to_string()]);
    command.args(["--base-port", &start.base_port.to_string()]);
    command.args(["--backend", &start.backend, "--tls", &start.tls]);
    if start.auto_restart {
        command.arg("--auto-restart");
    }
    command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let mut child = command.spawn().map_err(|e| {
        Problem::new(Code::Failed, format!("the supervisor cannot be started: {e}"))
    })?;
    let ready = async {
        loop {
            if let Ok(Some(status)) = child.try_wait() {
                return Err(said(&log, &format!("the supervisor ended: {status}")));
            }
            if let Ok(SupervisorReply::Done { serving: true, processes }) =
                ask(&plan.dir, SupervisorRequest::Status).await
            {
                return Ok(processes);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    let waited = tokio::select! {
        biased;
        () = context.interrupt.wait() => None,
        ready = tokio::time::timeout(DETACH_WAIT, ready) => Some(ready),
    };
    let failure: Failure = match waited {
        Some(Ok(Ok(_))) => {
            context.out.data(&plan.summary())?;
            return Ok(());
        }
        Some(Ok(Err(problem))) => return Err(problem.into()),
        Some(Err(_)) => said(&log, "not every host serves in time").into(),
        None => interrupted(None),
    };
    // Half a cluster is no use to anybody: it ends as it would at Ctrl-C.
    if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let _ = child.wait().await;
    Err(failure)
}
