//! The supervisor: one task that owns every child, looks after it, and does what the control
//! socket asks, one thing after the other.

use super::messages::{
    DevProcess, LOOK_EVERY, MESSAGE_MAX, State, SupervisorReply, SupervisorRequest,
};
use super::plan::{self, HostPlan, Plan};
use super::process::{self, DIRECTORY, Process, said};
use crate::cli::context::Context;
use crate::cli::out::Run;
use crate::lock::DataDir;
use atoll_api::client::Call;
use atoll_api::envelope::List;
use atoll_api::routes::{Op, Page};
use atoll_api::shell::quote;
use atoll_api::types::{Disk, DiskState, GroupCreate};
use atoll_api::{Client, Code, Endpoint, Problem};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

/// How long a started process may take until it answers.
const ANSWERS_WAIT: Duration = Duration::from_secs(30);
/// How long a whole new cluster may take until it serves.
const SERVES_WAIT: Duration = Duration::from_secs(60);
/// How long one request to a host may take.
const CALL_WAIT: Duration = Duration::from_secs(30);
/// How long a process that died rests before it is started again.
const RESTART_REST: Duration = Duration::from_secs(1);
/// Questions that wait.
const QUESTIONS_MAX: usize = 16;
/// How long a client of the control socket may take to ask.
const ASK_WAIT: Duration = Duration::from_secs(5);

type Question = (SupervisorRequest, oneshot::Sender<SupervisorReply>);

/// One child and its history.
struct Child {
    name: String,
    dir: PathBuf,
    host: Option<HostPlan>,
    process: Option<Process>,
    state: State,
    detail: String,
    restarts: u32,
    restart_at: Option<tokio::time::Instant>,
}

struct Supervisor<'a> {
    context: &'a Context,
    plan: Plan,
    children: Vec<Child>,
    serving: bool,
    auto_restart: bool,
}

/// Starts everything, looks after it until Ctrl-C or `stop`, and stops everything.
///
/// # Errors
/// What kept the cluster from starting; everything is stopped then too.
pub async fn run(context: &Context, plan: Plan, auto_restart: bool) -> Run {
    crate::log::start("info", false);
    plan.make_dirs()?;
    let _lock = DataDir::lock(&plan.dir).map_err(|problem| match problem.code {
        Code::DataDirInUse => Problem::new(problem.code, problem.detail)
            .hint(format!("atoll dev stop --dir {}", quote(&plan.dir))),
        _ => problem,
    })?;
    plan.check_direct_io()?;
    let left = process::end_leftovers(&plan.dir).await?;
    if left > 0 {
        context.out.note(&format!("{left} processes that a killed supervisor had left were ended"));
    }
    let pid_file = plan.dir.join("dev.pid");
    let local =
        |e: std::io::Error| Problem::new(Code::LocalFile, format!("{}: {e}", plan.dir.display()));
    std::fs::write(&pid_file, format!("{}\n", std::process::id())).map_err(local)?;
    let socket = plan.dir.join(plan::SOCKET);
    let _ = std::fs::remove_file(&socket); // ours by the lock
    let listener =
        atoll_real::listen_unix(&socket, 0o600).and_then(UnixListener::from_std).map_err(local)?;
    let (sender, mut questions) = mpsc::channel(QUESTIONS_MAX);
    let answering = tokio::spawn(answer_all(listener, sender));

    let children = std::iter::once((DIRECTORY.to_owned(), plan.directory_dir(), None))
        .chain(plan.hosts.iter().map(|h| (h.name.clone(), h.dir.clone(), Some(h.clone()))))
        .map(|(name, dir, host)| Child {
            name,
            dir,
            host,
            process: None,
            state: State::Stopped,
            detail: String::new(),
            restarts: 0,
            restart_at: None,
        })
        .collect();
    let mut supervisor = Supervisor { context, plan, children, serving: false, auto_restart };
    let outcome = supervisor.live(&mut questions).await;
    supervisor.stop_all().await;
    answering.abort();
    let _ = std::fs::remove_file(&socket);
    let _ = std::fs::remove_file(&pid_file);
    match outcome {
        Ok(Some(asked)) => {
            let _ = asked.send(supervisor.answer());
            // The answer leaves before the process does.
            tokio::time::sleep(LOOK_EVERY).await;
            Ok(())
        }
        Ok(None) => {
            context.out.note("everything has stopped");
            Ok(())
        }
        Err(problem) => Err(problem.into()),
    }
}

impl Supervisor<'_> {
    /// Until somebody wants it to stop: whoever is to be told, or nobody (Ctrl-C).
    async fn live(
        &mut self,
        questions: &mut mpsc::Receiver<Question>,
    ) -> Result<Option<oneshot::Sender<SupervisorReply>>, Problem> {
        let interrupt = self.context.interrupt.clone();
        let started = tokio::select! {
            biased;
            () = interrupt.wait() => return Ok(None),
            asked = refuse_until_stop(questions) => return Ok(asked),
            started = self.start_all() => started,
        };
        started?;
        self.serving = true;
        let _ = self.context.out.data(&self.plan.summary());
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = interrupt.wait() => return Ok(None),
                question = questions.recv() => match question {
                    Some((SupervisorRequest::StopAll, answer)) => return Ok(Some(answer)),
                    Some((ask, answer)) => {
                        let reply = match self.carry_out(ask).await {
                            Ok(()) => self.answer(),
                            Err(problem) => SupervisorReply::Failed { problem: Box::new(problem) },
                        };
                        let _ = answer.send(reply);
                    }
                    None => return Ok(None),
                },
                _ = tick.tick() => self.look(),
            }
        }
    }

    async fn start_all(&mut self) -> Result<(), Problem> {
        self.start(0).await?;
        let mut new = Vec::new();
        for index in 0..self.plan.hosts.len() {
            let host = &self.plan.hosts[index];
            let config = host.config_file();
            std::fs::write(&config, self.plan.config(host))
                .map_err(|e| Problem::new(Code::LocalFile, format!("{}: {e}", config.display())))?;
            self.plan.make_disks(host)?;
            if !host.formatted().exists() {
                new.push(host.clone());
            }
        }
        for index in 1..self.children.len() {
            self.spawn(index)?;
        }
        for index in 1..self.children.len() {
            self.wait_answers(index).await?;
        }
        for host in new {
            format(&host).await?;
        }
        let deadline = tokio::time::Instant::now() + SERVES_WAIT;
        for index in 1..self.children.len() {
            while self.client(index).bytes(Call::page(Page::Readyz)).await.is_err() {
                self.look();
                self.check_alive(index)?;
                if tokio::time::Instant::now() > deadline {
                    let name = &self.children[index].name;
                    let detail = format!("{name} does not serve after {} s", SERVES_WAIT.as_secs());
                    let log = self.children[index].dir.join("log");
                    return Err(
                        Problem::new(Code::TimedOut, detail).hint(format!("see {}", log.display()))
                    );
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    fn client(&self, index: usize) -> Client {
        let host = self.children[index].host.as_ref().expect("only hosts have an interface");
        Client::new(Endpoint::Unix(host.api_socket()), CALL_WAIT)
    }

    /// Starts a process, without waiting for it.
    fn spawn(&mut self, index: usize) -> Result<(), Problem> {
        let words: Vec<PathBuf> = match &self.children[index].host {
            None => vec![
                "directory".into(),
                "--file".into(),
                self.plan.directory_dir().join("state"),
                "--socket".into(),
                self.plan.directory_socket(),
            ],
            Some(host) => vec!["serve".into(), "--config".into(), host.config_file()],
        };
        let words: Vec<&OsStr> = words.iter().map(|word| word.as_os_str()).collect();
        let child = &mut self.children[index];
        child.process = Some(Process::start(&child.dir, &words)?);
        child.state = State::Running;
        child.detail.clear();
        child.restart_at = None;
        Ok(())
    }

    /// Starts a process and waits until it answers.
    async fn start(&mut self, index: usize) -> Result<(), Problem> {
        self.spawn(index)?;
        self.wait_answers(index).await
    }

    async fn wait_answers(&mut self, index: usize) -> Result<(), Problem> {
        let deadline = tokio::time::Instant::now() + ANSWERS_WAIT;
        loop {
            let answers = match &self.children[index].host {
                None => UnixStream::connect(self.plan.directory_socket()).await.is_ok(),
                Some(_) => self.client(index).bytes(Call::page(Page::Healthz)).await.is_ok(),
            };
            if answers {
                return Ok(());
            }
            self.look();
            self.check_alive(index)?;
            if tokio::time::Instant::now() > deadline {
                let child = &self.children[index];
                let detail =
                    format!("{} does not answer after {} s", child.name, ANSWERS_WAIT.as_secs());
                return Err(Problem::new(Code::TimedOut, detail)
                    .hint(format!("see {}", child.dir.join("log").display())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// # Errors
    /// The process has died; why, as its log says.
    fn check_alive(&self, index: usize) -> Result<(), Problem> {
        let child = &self.children[index];
        if child.state == State::Running {
            return Ok(());
        }
        let why = said(&child.dir.join("log"), &format!("it {}", child.detail));
        let problem = Problem::new(why.code, format!("{}: {}", child.name, why.detail));
        Err(match why.hint {
            Some(hint) => problem.hint(hint),
            None => problem,
        })
    }

    /// Notices who has died, and starts them again if that is wanted.
    fn look(&mut self) {
        for index in 0..self.children.len() {
            let child = &mut self.children[index];
            if let Some(status) = child.process.as_mut().and_then(Process::ended) {
                child.process = None;
                child.state = State::Died;
                child.detail = format!("ended by itself: {status}");
                let log = child.dir.join("log");
                let text = format!("{} {} (see {})", child.name, child.detail, log.display());
                self.context.out.note(&text);
                if self.auto_restart {
                    child.restart_at = Some(tokio::time::Instant::now() + RESTART_REST);
                }
            }
            let due = child.restart_at.is_some_and(|at| at <= tokio::time::Instant::now());
            if due {
                child.restarts += 1;
                if let Err(problem) = self.spawn(index) {
                    self.context.out.note(&problem.to_string());
                }
            }
        }
    }

    async fn carry_out(&mut self, ask: SupervisorRequest) -> Result<(), Problem> {
        self.look();
        let index = |name: &str| {
            self.children.iter().position(|child| child.name == name).ok_or_else(|| {
                let names: Vec<&str> = self.children.iter().map(|c| c.name.as_str()).collect();
                let shown = atoll_api::name::show(name);
                Problem::new(Code::NotFound, format!("there is no process {shown}"))
                    .hint(format!("there are {}", names.join(", ")))
            })
        };
        match ask {
            SupervisorRequest::Status | SupervisorRequest::StopAll => Ok(()),
            SupervisorRequest::Kill { name } => {
                let index = index(&name)?;
                let child = &mut self.children[index];
                let Some(process) = &mut child.process else {
                    return Err(Problem::new(Code::Conflict, format!("{name} does not run")));
                };
                process.kill().await;
                child.process = None;
                child.state = State::Killed;
                child.detail = "killed by command".into();
                Ok(())
            }
            SupervisorRequest::Stop { name } => {
                let index = index(&name)?;
                let child = &mut self.children[index];
                child.restart_at = None;
                if let Some(process) = &mut child.process {
                    process.stop().await;
                }
                child.process = None;
                child.state = State::Stopped;
                child.detail.clear();
                Ok(())
            }
            SupervisorRequest::Start { name } => {
                let index = index(&name)?;
                if self.children[index].process.is_some() {
                    return Err(Problem::new(Code::Conflict, format!("{name} runs already")));
                }
                self.start(index).await
            }
        }
    }

    fn answer(&self) -> SupervisorReply {
        let processes = self.children.iter().map(|child| DevProcess {
            name: child.name.clone(),
            state: child.state,
            pid: child.process.as_ref().and_then(Process::pid),
            detail: child.detail.clone(),
            restarts: child.restarts,
            endpoint: child.host.as_ref().map_or_else(|| "-".into(), HostPlan::endpoint),
            nbd: child.host.as_ref().map_or_else(|| "-".into(), HostPlan::nbd),
            log: child.dir.join("log").display().to_string(),
        });
        SupervisorReply::Done { processes: processes.collect(), serving: self.serving }
    }

    /// Hosts first, all at once; then the directory, which they need until the end.
    async fn stop_all(&mut self) {
        for child in &self.children[1..] {
            if let Some(process) = &child.process {
                process.terminate();
            }
        }
        for child in self.children.iter_mut().rev() {
            if let Some(process) = &mut child.process {
                process.stop().await;
            }
            child.process = None;
            if child.state == State::Running {
                child.state = State::Stopped;
            }
        }
    }
}

/// Labels the new, empty disks of a host: once in their life.
async fn format(host: &HostPlan) -> Result<(), Problem> {
    let client = Client::new(Endpoint::Unix(host.api_socket()), CALL_WAIT);
    let call = Call::to(Op::DiskList, &[&host.name]);
    let disks: List<Disk> = serving(async || client.list(call.clone()).await).await?;
    for disk in disks.items.iter().filter(|disk| disk.state == DiskState::Empty) {
        let request = GroupCreate { host: None, disks: vec![disk.path.clone()] };
        let call = Call::to(Op::GroupCreate, &[]).json(&request);
        client.bytes(call).await?;
    }
    std::fs::write(host.formatted(), "")
        .map_err(|e| Problem::new(Code::LocalFile, format!("{}: {e}", host.dir.display())))
}

/// Repeats a question while the host says that it is still starting.
async fn serving<T>(ask: impl AsyncFn() -> Result<T, Problem>) -> Result<T, Problem> {
    let deadline = tokio::time::Instant::now() + SERVES_WAIT;
    loop {
        match ask().await {
            Err(problem)
                if problem.code == Code::Unavailable && tokio::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            done => return done,
        }
    }
}

/// While everything starts, only a stop is carried out, and the state told.
async fn refuse_until_stop(
    questions: &mut mpsc::Receiver<Question>,
) -> Option<oneshot::Sender<SupervisorReply>> {
    loop {
        match questions.recv().await {
            Some((SupervisorRequest::StopAll, answer)) => return Some(answer),
            Some((SupervisorRequest::Status, answer)) => {
                let _ =
                    answer.send(SupervisorReply::Done { processes: Vec::new(), serving: false });
            }
            Some((_, answer)) => {
                let problem = Problem::new(Code::Unavailable, "the cluster is still starting");
                let _ = answer.send(SupervisorReply::Failed { problem: Box::new(problem) });
            }
            None => std::future::pending().await,
        }
    }
}

/// The control socket: one line asks, one line answers.
async fn answer_all(listener: UnixListener, questions: mpsc::Sender<Question>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(answer_one(stream, questions.clone()));
            }
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

async fn answer_one(stream: UnixStream, questions: mpsc::Sender<Question>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut lines = BufReader::new(read.take(MESSAGE_MAX));
    if !matches!(tokio::time::timeout(ASK_WAIT, lines.read_line(&mut line)).await, Ok(Ok(1..))) {
        return;
    }
    let answer = match serde_json::from_str(&line) {
        Err(e) => {
            let problem = Problem::new(Code::BadRequest, format!("not understood: {e}"));
            SupervisorReply::Failed { problem: Box::new(problem) }
        }
        Ok(ask) => {
            let (sender, receiver) = oneshot::channel();
            if questions.send((ask, sender)).await.is_err() {
                return;
            }
            let Ok(answer) = receiver.await else { return };
            answer
        }
    };
    if let Ok(mut text) = serde_json::to_vec(&answer) {
        text.push(b'\n');
        let _ = write.write_all(&text).await;
    }
}
