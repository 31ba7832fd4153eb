//! The directory's server.
//!
//! One thread owns the file: it takes all transactions that wait, decides them in order, writes
//! them as one batch, and only then shows and answers them. Reads and watches look at what has
//! been shown, under a lock that is never held over a wait, so they never wait for the disk.
//!
//! A connection is bounded in requests and in bytes (`limits.rs`): what is over waits in the
//! socket, which slows that client and no other. A watch is a question that waits; the server
//! keeps nothing for a client that is away.

use super::socket::{ListenError, OwnedSocket, listen};
use super::{malformed, read_body, read_head, span};
use atoll_directory::codec::{Reply, Request, VERSION, decode_request, encode_reply};
use atoll_directory::limits::{
    BATCH_TXNS_MAX, CONNECTION_BYTES_MAX, CONNECTIONS_MAX, EVENTS_BYTES, LIST_PART_BYTES,
    POLL_WAIT, REQUEST_DEADLINE, REQUESTS_MAX, VALUE_MAX, WRITE_DEADLINE,
};
use atoll_directory::state::{check_prefix, check_txn};
use atoll_directory::{Batch, DirectoryFile, DirectoryState, FileError, Stored};
use atoll_world::Nanos;
use atoll_world::directory::{DirectoryError, Entry, Listing, Revision, Txn, TxnReply};
use rand::TryRng;
use rand::rngs::SysRng;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

/// Answers are gathered into one write up to this many bytes.
const WRITE_BYTES: usize = 256 << 10;

/// Why a server stopped by itself.
#[derive(Debug)]
pub enum ServeError {
    /// The file failed; what was not answered is unknown until it is opened again.
    File(FileError),
    /// The operating system refuses a thread or a socket.
    Io(io::Error),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(error) => error.fmt(f),
            Self::Io(error) => write!(f, "the directory server cannot go on: {error}"),
        }
    }
}

impl std::error::Error for ServeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File(error) => Some(error),
            Self::Io(error) => Some(error),
        }
    }
}

/// A directory whose file is open and locked.
pub struct DirectoryServer {
    path: PathBuf,
    file: DirectoryFile,
    state: DirectoryState,
}

/// A directory that can be connected to; nothing is answered before
/// [`ListeningDirectory::serve`].
pub struct ListeningDirectory {
    server: DirectoryServer,
    socket: OwnedSocket,
    listener: std::os::unix::net::UnixListener,
}

impl DirectoryServer {
    /// Opens the file, or makes a new directory where there is none.
    ///
    /// # Errors
    /// See [`FileError`]: another server has it, or it is damaged, or not a directory.
    pub fn open(file: &Path) -> Result<Self, FileError> {
        let identity = SysRng.try_next_u64().map_err(|error| FileError::Io {
            path: file.to_owned(),
            source: io::Error::other(error),
        })?;
        let (opened, state) = DirectoryFile::open(file, identity)?;
        Ok(Self { path: file.to_owned(), file: opened, state })
    }

    /// The last transaction that it holds.
    pub fn revision(&self) -> Revision {
        self.state.revision()
    }

    /// Takes the socket, also from a server that died without removing it.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(self, socket: &Path) -> Result<ListeningDirectory, ListenError> {
        let (socket, listener) = listen(socket)?;
        Ok(ListeningDirectory { server: self, socket, listener })
    }
}

/// What connections and the writing thread share.
struct Shared {
    identity: u64,
    state: Mutex<DirectoryState>,
    /// Says that there is something new; what it is, is in the state.
    shown: watch::Sender<Revision>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, DirectoryState> {
        self.state.lock().expect("the state machine does not panic on what was checked")
    }
}

/// A transaction that waits for the writing thread.
struct Job {
    txn: Txn,
    answer: oneshot::Sender<Result<TxnReply, DirectoryError>>,
}

impl ListeningDirectory {
    /// Answers until `stop` ends; then the file is closed and the socket removed.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn serve(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let DirectoryServer { path, file, state } = self.server;
        let shared = Arc::new(Shared {
            identity: file.identity(),
            shown: watch::Sender::new(state.revision()),
            state: Mutex::new(state),
        });
        let listener = UnixListener::from_std(self.listener).map_err(ServeError::Io)?;
        let (jobs, queue) = mpsc::channel(BATCH_TXNS_MAX);
        let (ended, mut end) = oneshot::channel();
        let of_thread = shared.clone();
        std::thread::Builder::new()
            .name("directory".into())
            .spawn(move || {
                // Nobody listens only if the server was dropped.
                let _ = ended.send(write_all(&path, file, &of_thread, queue));
            })
            .map_err(ServeError::Io)?;

        let mut connections = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            tokio::select! {
                biased;
                () = &mut stop => break,
                ended = &mut end => {
                    let died = || ServeError::Io(io::Error::other("its writing thread died"));
                    return ended.map_err(|_| died())?.map_err(ServeError::File);
                }
                // Reaped as they end; an empty set is not ready.
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        let full = connections.len() >= CONNECTIONS_MAX;
                        let (shared, jobs) = (shared.clone(), jobs.clone());
                        connections.spawn(async move {
                            if let Err(error) = serve_one(stream, shared, jobs, full).await {
                                tracing::debug!(%error, "directory connection ended");
                            }
                        });
                    }
                    Err(error) => {
                        // Out of descriptors, most likely: those who are connected go on.
                        tracing::warn!(%error, "the directory cannot accept a connection");
                        tokio::time::sleep(span(Nanos::from_ms(100))).await;
                    }
                }
            }
        }
        // The thread ends after the batch it is at, when the last sender of jobs is gone.
        connections.shutdown().await;
        drop((jobs, self.socket));
        match end.await {
            Ok(result) => result.map_err(ServeError::File),
            Err(_) => Err(ServeError::Io(io::Error::other("its writing thread died"))),
        }
    }
}

/// The writing thread: batch after batch until no sender is left or the file fails.
fn write_all(
    path: &Path,
    mut file: DirectoryFile,
    shared: &Shared,
    mut queue: mpsc::Receiver<Job>,
) -> Result<(), FileError> {
    while let Some(first) = queue.blocking_recv() {
        let mut batch = Batch::default();
        let mut answers = Vec::new();
        {
            let state = shared.state();
            let mut next = Some(first);
            while let Some(job) = next {
                answers.push((job.answer, state.stage(&mut batch, &job.txn)));
                let room = answers.len() < BATCH_TXNS_MAX;
                next = if room { queue.try_recv().ok() } else { None };
            }
        }
        let mut no_effect = None;
        if !batch.is_empty() {
            let before = shared.state().revision();
            if let Err(error) = file.commit(&batch) {
                if !error.is_full() {
                    // Dropped answers are reported as unknown.
                    return Err(error);
                }
                // No room is no damage: see what the file holds and go on. Deletes will help.
                drop(file);
                let (again, state) = DirectoryFile::open(path, 0)?;
                file = again;
                if state.revision() == before {
                    no_effect = Some(error.to_string());
                } else if state.revision() != batch.revision() {
                    let what =
                        format!("it went from revision {} to {}", before.0, state.revision().0);
                    return Err(FileError::Damaged { path: path.to_owned(), what });
                }
            }
        }
        if no_effect.is_none() && !batch.is_empty() {
            let revision = batch.revision();
            shared.state().publish(batch);
            shared.shown.send_replace(revision);
        }
        for (answer, result) in answers {
            // Also a conflict was decided on top of what did not happen.
            let result = match (&no_effect, result) {
                (Some(why), Ok(_)) => Err(DirectoryError::Unavailable(why.clone())),
                (_, result) => result,
            };
            // The client may have gone.
            let _ = answer.send(result);
        }
    }
    Ok(())
}

/// An answer on its way, with the share of the connection's memory that it holds.
struct QueuedReply {
    request: u64,
    what: What,
    _memory: OwnedSemaphorePermit,
}

enum What {
    Reply(Reply),
    /// Cut into parts when it is written, so that a long listing takes no second copy.
    Listing(Vec<(Arc<str>, Stored)>, Revision),
}

async fn serve_one(
    stream: UnixStream,
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    full: bool,
) -> io::Result<()> {
    let (mut from, mut to) = stream.into_split();
    let hello = timeout(span(REQUEST_DEADLINE), welcome(&mut from, &shared, full));
    let (request, reply) = hello.await.map_err(|_| io::ErrorKind::TimedOut)??;
    write_bytes(&mut to, &encode_reply(request, &reply)).await?;
    if let Reply::Refuse(why) = reply {
        return Err(io::Error::other(why));
    }
    // Bounded by REQUESTS_MAX: every answer belongs to a request that holds a permit.
    let (answers, queue) = mpsc::channel(REQUESTS_MAX);
    let reading = read_requests(from, shared, jobs, answers);
    tokio::select! {
        biased;
        result = write_answers(to, queue) => result,
        result = reading => result,
    }
}

async fn welcome(
    from: &mut OwnedReadHalf,
    shared: &Shared,
    full: bool,
) -> io::Result<(u64, Reply)> {
    let head = read_head(from).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if head.body_len > 64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let body = read_body(from, &head).await?;
    let Request::Hello { oldest, newest, directory, seen } =
        decode_request(&head, &body).map_err(malformed)?
    else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the first frame is no hello"));
    };
    let revision = shared.state().revision();
    let reply = if full {
        Reply::Refuse(format!("the directory has {CONNECTIONS_MAX} connections, the most it takes"))
    } else if !(oldest..=newest).contains(&VERSION) {
        Reply::Refuse(format!(
            "the directory speaks version {VERSION}, this program {oldest} to {newest}"
        ))
    } else if directory != 0 && directory != shared.identity {
        Reply::Refuse(format!(
            "this is directory {:016x}, and not {directory:016x} as before: its file was replaced",
            shared.identity
        ))
    } else if seen > revision {
        Reply::Refuse(format!(
            "the directory is at revision {}, and was at {} before: its file is an older copy",
            revision.0, seen.0
        ))
    } else {
        Reply::Welcome { version: VERSION, directory: shared.identity, revision }
    };
    Ok((head.request, reply))
}

async fn read_requests(
    mut from: OwnedReadHalf,
    shared: Arc<Shared>,
    jobs: mpsc::Sender<Job>,
    answers: mpsc::Sender<QueuedReply>,
) -> io::Result<()> {
    let slots = Arc::new(Semaphore::new(REQUESTS_MAX));
    let memory = Arc::new(Semaphore::new(CONNECTION_BYTES_MAX));
    let mut waiting: JoinSet<()> = JoinSet::new();
    let mut polls: BTreeMap<u64, AbortHandle> = BTreeMap::new();
    // Ends when the client closes; a client may be silent for ever.
    while let Some(head) = read_head(&mut from).await? {
        while waiting.try_join_next().is_some() {}
        let slot = slots.clone().acquire_owned().await.expect("never closed");
        let held = take(&memory, head.body_len + VALUE_MAX).await;
        let body = timeout(span(WRITE_DEADLINE), read_body(&mut from, &head));
        let body = body.await.map_err(|_| io::ErrorKind::TimedOut)??;
        let request = decode_request(&head, &body).map_err(malformed)?;
        drop(body);
        let id = head.request;
        let reply = |reply: Reply| What::Reply(reply);
        let failed = |error| What::Reply(Reply::Failed(error));
        let what = match request {
            Request::Hello { .. } => return Err(io::ErrorKind::InvalidData.into()),
            Request::Get(key) => match shared.state().get(&key) {
                Ok(entry) => reply(Reply::Entry(entry)),
                Err(error) => failed(error),
            },
            Request::List(prefix) => match shared.state().list_shared(&prefix) {
                Ok((entries, revision)) => What::Listing(entries, revision),
                Err(error) => failed(error),
            },
            Request::Touch { name, ttl_ms } => match shared.state().touch(now(), &name, ttl_ms) {
                Ok(()) => reply(Reply::Touched),
                Err(error) => failed(error),
            },
            Request::Alive => reply(Reply::Names(shared.state().alive(now()))),
            Request::Cancel => {
                if let Some(poll) = polls.remove(&id) {
                    poll.abort();
                }
                continue;
            }
            Request::Txn(txn) => {
                if let Err(error) = check_txn(&txn) {
                    failed(error)
                } else {
                    // A conflict answers with every compared value.
                    let more = txn.compares.len().saturating_sub(1) * VALUE_MAX;
                    let mut held = held;
                    held.merge(take(&memory, more).await);
                    let (answer, result) = oneshot::channel();
                    // The thread takes them in this order; while it is at the disk, we wait here.
                    if jobs.send(Job { txn, answer }).await.is_err() {
                        return Err(io::Error::other("the directory stops"));
                    }
                    let answers = answers.clone();
                    waiting.spawn(async move {
                        let reply = match result.await {
                            Ok(Ok(reply)) => Reply::Txn(reply),
                            Ok(Err(error)) => Reply::Failed(error),
                            Err(_) => Reply::Failed(DirectoryError::Unknown(
                                "the directory's file failed".into(),
                            )),
                        };
                        let answer =
                            QueuedReply { request: id, what: What::Reply(reply), _memory: held };
                        // The connection may have ended.
                        let _ = answers.send(answer).await;
                        drop(slot);
                    });
                    continue;
                }
            }
            Request::Poll { prefix, after } => {
                if let Err(error) = check_prefix(&prefix) {
                    failed(error)
                } else {
                    drop(held);
                    let (shared, memory) = (shared.clone(), memory.clone());
                    let answers = answers.clone();
                    polls.retain(|_, poll| !poll.is_finished());
                    let poll = waiting.spawn(async move {
                        wait_for_news(&shared, &prefix, after).await;
                        let held = take(&memory, EVENTS_BYTES).await;
                        let reply = match shared.state().events_since(&prefix, after) {
                            Ok(events) => Reply::Events(events),
                            Err(error) => Reply::Failed(error),
                        };
                        let answer =
                            QueuedReply { request: id, what: What::Reply(reply), _memory: held };
                        let _ = answers.send(answer).await;
                        drop(slot);
                    });
                    polls.insert(id, poll);
                    continue;
                }
            }
        };
        let answer = QueuedReply { request: id, what, _memory: held };
        if answers.send(answer).await.is_err() {
            break;
        }
        drop(slot);
    }
    Ok(())
}

/// Returns when there is an event, or an error to tell, or after `POLL_WAIT`.
async fn wait_for_news(shared: &Shared, prefix: &str, after: Revision) {
    let mut shown = shared.shown.subscribe();
    let news = async {
        loop {
            shown.borrow_and_update();
            let found = shared.state().events_since(prefix, after);
            if found.is_err() || found.is_ok_and(|found| !found.events.is_empty()) {
                return;
            }
            if shown.changed().await.is_err() {
                return;
            }
        }
    };
    // Either way the caller looks at the state.
    let _ = timeout(span(POLL_WAIT), news).await;
}

/// Waits for a share of the connection's memory; the writer gives it back, and never waits for us.
async fn take(memory: &Arc<Semaphore>, bytes: usize) -> OwnedSemaphorePermit {
    let bytes = bytes.min(CONNECTION_BYTES_MAX / 2) as u32;
    memory.clone().acquire_many_owned(bytes).await.expect("never closed")
}

async fn write_answers(
    mut to: OwnedWriteHalf,
    mut queue: mpsc::Receiver<QueuedReply>,
) -> io::Result<()> {
    while let Some(first) = queue.recv().await {
        let mut bytes = Vec::new();
        let mut next = Some(first);
        while let Some(QueuedReply { request, what, _memory }) = next {
            match what {
                What::Reply(reply) => bytes.extend(encode_reply(request, &reply)),
                What::Listing(entries, revision) => {
                    write_listing(&mut to, &mut bytes, request, &entries, revision).await?;
                }
            }
            next = if bytes.len() < WRITE_BYTES { queue.try_recv().ok() } else { None };
        }
        write_bytes(&mut to, &bytes).await?;
    }
    Ok(())
}

/// Appends the parts of a listing to `bytes`, writing them out as they fill.
async fn write_listing(
    to: &mut OwnedWriteHalf,
    bytes: &mut Vec<u8>,
    request: u64,
    entries: &[(Arc<str>, Stored)],
    revision: Revision,
) -> io::Result<()> {
    let mut rest = entries;
    loop {
        let mut size = 0;
        let fits = |(key, stored): &&(Arc<str>, Stored)| {
            let before = size;
            // Keys of a few bytes count, too.
            size += key.len() + stored.value.len() + 32;
            before < LIST_PART_BYTES
        };
        let count = rest.iter().take_while(fits).count();
        let (part, more) = rest.split_at(count);
        rest = more;
        let entry = |(key, stored): &(Arc<str>, Stored)| Entry {
            key: key.to_string(),
            value: stored.value.to_vec(),
            modified: stored.modified,
        };
        let part = Listing { entries: part.iter().map(entry).collect(), revision };
        bytes.extend(encode_reply(request, &Reply::Listing { part, more: !rest.is_empty() }));
        if rest.is_empty() {
            return Ok(());
        }
        write_bytes(to, bytes).await?;
        bytes.clear();
    }
}

async fn write_bytes(to: &mut OwnedWriteHalf, bytes: &[u8]) -> io::Result<()> {
    timeout(span(WRITE_DEADLINE), to.write_all(bytes))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Time that hints expire by: goes on while the machine sleeps, unlike what was granted.
fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
