//! The directory as a shard of another process sees it.
//!
//! One task per client keeps the connection: it connects, says hello, sends what waits, hands out
//! answers, and does so again when the connection breaks, waiting longer each time. A request that
//! was not yet begun to be sent waits for the next connection, within its deadline; one that was
//! has failed: its outcome is unknown if it was a transaction.
//!
//! Invariants: a request that was reported `Unavailable` is never sent afterwards. A client stays
//! with one directory and never goes back to an older state of it: hello says what it has seen.

use super::{malformed, read_body, read_head, span};
use atoll_directory::codec::{Reply, Request, VERSION, decode_reply, encode_request};
use atoll_directory::limits::{
    CLIENT_REQUESTS_MAX, POLL_WAIT, RECONNECT_MAX, RECONNECT_MIN, REQUEST_DEADLINE, WRITE_DEADLINE,
};
use atoll_directory::state::{check_key, check_prefix, check_txn};
use atoll_world::Nanos;
use atoll_world::directory::{
    Directory, DirectoryError, Entry, Listing, Revision, Txn, TxnReply, Watch, WatchEvent,
};
use atoll_world::sync::{Notify, Semaphore, Sender, oneshot};
use futures_util::future::{Either, select};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// Requests are gathered into one write up to this many bytes.
const WRITE_BYTES: usize = 256 << 10;

/// In the queue: nobody waits for an answer to it.
const CANCEL: u64 = 0;

/// The directory behind a Unix socket. Clones are the same client, on one shard; the connection
/// is closed when the last one is dropped.
#[derive(Clone)]
pub struct DirectoryClient(Rc<Handle>);

struct Handle(Rc<ClientState>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.closed.set(true);
        self.0.work.notify_all();
    }
}

/// What the clones of a client share, and its tasks.
struct ClientState {
    path: PathBuf,
    /// Requests that were not begun to be sent, in order; at most one per slot, and cancels.
    queue: RefCell<VecDeque<(u64, Vec<u8>)>>,
    /// Requests that somebody waits for.
    open: RefCell<BTreeMap<u64, Open>>,
    next: Cell<u64>,
    /// There is something in the queue, or the client was closed.
    work: Notify,
    closed: Cell<bool>,
    slots: Semaphore,
    /// Which directory it is, once known, and the highest revision seen there.
    directory: Cell<u64>,
    seen: Cell<Revision>,
    connected: Cell<bool>,
    /// Why there is no connection.
    trouble: RefCell<String>,
}

struct Open {
    sent: bool,
    answer: Sender<Outcome>,
    /// Parts of a listing that have come.
    listed: Vec<Entry>,
}

enum Outcome {
    Reply(Reply),
    /// The connection broke after it was sent (true) or was refused before.
    Lost(bool, String),
}

impl DirectoryClient {
    /// Connects to the server at `socket`. Needs a tokio `LocalSet` (or local runtime): the
    /// connection is kept by a task of this thread.
    ///
    /// # Errors
    /// `Unavailable`: no server answered within 5 s, or it refuses, and why.
    pub async fn connect(socket: &Path) -> Result<Self, DirectoryError> {
        let state = Rc::new(ClientState {
            path: socket.to_owned(),
            queue: RefCell::default(),
            open: RefCell::default(),
            next: Cell::new(1),
            work: Notify::default(),
            closed: Cell::new(false),
            slots: Semaphore::new(CLIENT_REQUESTS_MAX),
            directory: Cell::new(0),
            seen: Cell::new(Revision(0)),
            connected: Cell::new(false),
            trouble: RefCell::new("not connected yet".into()),
        });
        let client = Self(Rc::new(Handle(state.clone())));
        tokio::task::spawn_local(keep_connected(state));
        // Proves that the server answers, and not only that it accepts.
        client.alive().await?;
        Ok(client)
    }

    /// Whether there is a connection now.
    pub fn is_connected(&self) -> bool {
        self.0.0.connected.get()
    }

    /// Asks and waits, at most for `deadline`.
    async fn call(&self, request: Request, deadline: Nanos) -> Result<Reply, DirectoryError> {
        let state = &self.0.0;
        let decides = matches!(request, Request::Txn(_));
        let waits = matches!(request, Request::Poll { .. });
        let id = state.next.replace(state.next.get() + 1);
        let call = Call { state, id, waits };
        let answer = async {
            let slot = state.slots.acquire(1).await;
            let (sender, receiver) = oneshot();
            let open = Open { sent: false, answer: sender, listed: Vec::new() };
            state.open.borrow_mut().insert(id, open);
            state.queue.borrow_mut().push_back((id, encode_request(id, &request)));
            state.work.notify_all();
            let outcome = receiver.await.expect("an open request is answered or removed by us");
            drop(slot);
            outcome
        };
        let outcome = timeout(span(deadline), answer).await;
        let lost = |sent: bool, why: String| match sent && decides {
            true => Err(DirectoryError::Unknown(why)),
            false => Err(DirectoryError::Unavailable(why)),
        };
        match outcome {
            Ok(Outcome::Reply(Reply::Failed(error))) => Err(error),
            Ok(Outcome::Reply(reply)) => Ok(reply),
            Ok(Outcome::Lost(sent, why)) => lost(sent, why),
            Err(_) => {
                let sent = state.open.borrow().get(&id).is_some_and(|open| open.sent);
                let seconds = deadline.as_secs_f64();
                if sent {
                    lost(true, format!("{} gave no answer in {seconds} s", state.path.display()))
                } else {
                    let trouble = state.trouble.borrow();
                    lost(false, format!("{}: {trouble} (for {seconds} s)", state.path.display()))
                }
            }
        }
        .inspect(|reply| call.state.saw(reply))
    }
}

/// Forgets the request when nobody waits for it any more, answered or not.
struct Call<'a> {
    state: &'a ClientState,
    id: u64,
    waits: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let Some(open) = self.state.open.borrow_mut().remove(&self.id) else { return };
        let mut queue = self.state.queue.borrow_mut();
        if !open.sent {
            queue.retain(|(id, _)| *id != self.id);
        } else if self.waits {
            queue.push_back((CANCEL, encode_request(self.id, &Request::Cancel)));
            self.state.work.notify_all();
        }
    }
}

impl ClientState {
    fn saw(&self, reply: &Reply) {
        let revision = match reply {
            Reply::Welcome { revision, .. } | Reply::Txn(TxnReply::Done(revision)) => *revision,
            Reply::Listing { part, .. } => part.revision,
            Reply::Events(events) => events.up_to,
            _ => return,
        };
        self.seen.set(self.seen.get().max(revision));
    }

    /// No request that was sent will be answered.
    fn lose_sent(&self, why: &str) {
        self.queue.borrow_mut().retain(|(id, _)| *id != CANCEL);
        let open = std::mem::take(&mut *self.open.borrow_mut());
        let (sent, waiting): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, o)| o.sent);
        self.open.borrow_mut().extend(waiting);
        for (_, open) in sent {
            open.answer.send(Outcome::Lost(true, why.to_owned()));
        }
    }

    /// Nobody can be served: the server says so itself.
    fn lose_all(&self, why: &str) {
        self.queue.borrow_mut().clear();
        for (_, open) in std::mem::take(&mut *self.open.borrow_mut()) {
            open.answer.send(Outcome::Lost(open.sent, why.to_owned()));
        }
    }

    /// The next request; from now on it counts as sent.
    fn take_next(&self) -> Option<Vec<u8>> {
        let (id, frame) = self.queue.borrow_mut().pop_front()?;
        if let Some(open) = self.open.borrow_mut().get_mut(&id) {
            open.sent = true;
        }
        Some(frame)
    }

    fn on_frame(&self, id: u64, reply: Reply) -> io::Result<()> {
        let mut open = self.open.borrow_mut();
        // Late: its deadline has passed.
        let Some(request) = open.get_mut(&id) else { return Ok(()) };
        let reply = match reply {
            Reply::Listing { part, more: true } => {
                request.listed.extend(part.entries);
                return Ok(());
            }
            Reply::Listing { mut part, more: false } if !request.listed.is_empty() => {
                let mut entries = std::mem::take(&mut request.listed);
                entries.append(&mut part.entries);
                Reply::Listing { part: Listing { entries, ..part }, more: false }
            }
            Reply::Welcome { .. } | Reply::Refuse(_) => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a second welcome"));
            }
            reply => reply,
        };
        let request = open.remove(&id).expect("just looked at");
        drop(open);
        request.answer.send(Outcome::Reply(reply));
        Ok(())
    }
}

/// The task behind a client: ends when the last clone is dropped.
async fn keep_connected(state: Rc<ClientState>) {
    let mut wait = RECONNECT_MIN;
    while !state.closed.get() {
        let trouble = match connect(&state).await {
            Ok((from, to)) => {
                wait = RECONNECT_MIN;
                state.connected.set(true);
                *state.trouble.borrow_mut() = "the server takes no requests".into();
                let (reading, writing) =
                    (pin!(read_all(&state, from)), pin!(write_all(&state, to)));
                let end = select(reading, writing).await;
                state.connected.set(false);
                let why = match end {
                    Either::Left((Err(error), _)) | Either::Right((Err(error), _)) => {
                        format!("the connection broke: {error}")
                    }
                    Either::Left((Ok(()), _)) => "the server closed the connection".into(),
                    Either::Right((Ok(()), _)) => return,
                };
                state.lose_sent(&format!("{}: {why}", state.path.display()));
                why
            }
            Err(Failure::Refused(why)) => {
                state.lose_all(&format!("{} refuses: {why}", state.path.display()));
                why
            }
            Err(Failure::Io(error)) => error.to_string(),
        };
        *state.trouble.borrow_mut() = trouble;
        let closed = async {
            while !state.closed.get() {
                state.work.notified().await;
            }
        };
        select(pin!(tokio::time::sleep(span(wait))), pin!(closed)).await;
        wait = (wait * 2).min(RECONNECT_MAX);
    }
}

enum Failure {
    Refused(String),
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

async fn connect(state: &ClientState) -> Result<(OwnedReadHalf, OwnedWriteHalf), Failure> {
    let hello = async {
        let (mut from, mut to) = UnixStream::connect(&state.path).await?.into_split();
        let hello = Request::Hello {
            oldest: VERSION,
            newest: VERSION,
            directory: state.directory.get(),
            seen: state.seen.get(),
        };
        to.write_all(&encode_request(0, &hello)).await?;
        let head = read_head(&mut from).await?;
        let head = head.ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))?;
        let body = read_body(&mut from, &head).await?;
        let reply = decode_reply(&head, &body).map_err(malformed)?;
        match &reply {
            Reply::Welcome { version: VERSION, directory, .. } => {
                state.directory.set(*directory);
                state.saw(&reply);
                Ok((from, to))
            }
            Reply::Refuse(why) => Err(Failure::Refused(why.clone())),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    };
    let silent = || io::Error::new(io::ErrorKind::TimedOut, "the server does not say hello");
    timeout(span(REQUEST_DEADLINE), hello).await.map_err(|_| silent())?
}

/// Hands out answers until the connection ends; the server may be silent for ever.
async fn read_all(state: &ClientState, mut from: OwnedReadHalf) -> io::Result<()> {
    while let Some(head) = read_head(&mut from).await? {
        let body = read_body(&mut from, &head).await?;
        let reply = decode_reply(&head, &body).map_err(malformed)?;
        state.on_frame(head.request, reply)?;
    }
    Ok(())
}

/// Sends what waits until the client is closed.
async fn write_all(state: &ClientState, mut to: OwnedWriteHalf) -> io::Result<()> {
    loop {
        let work = state.work.notified();
        if state.closed.get() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        while bytes.len() < WRITE_BYTES {
            let Some(frame) = state.take_next() else { break };
            bytes.extend(frame);
        }
        if bytes.is_empty() {
            work.await;
        } else {
            timeout(span(WRITE_DEADLINE), to.write_all(&bytes))
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        }
    }
}

fn unexpected() -> DirectoryError {
    DirectoryError::Unknown("the server answered another question".into())
}

impl Directory for DirectoryClient {
    type Watch = DirectoryWatch;

    async fn txn(&self, txn: Txn) -> Result<TxnReply, DirectoryError> {
        check_txn(&txn)?;
        match self.call(Request::Txn(txn), REQUEST_DEADLINE).await? {
            Reply::Txn(reply) => Ok(reply),
            _ => Err(unexpected()),
        }
    }

    async fn get(&self, key: &str) -> Result<Option<Entry>, DirectoryError> {
        check_key(key)?;
        match self.call(Request::Get(key.to_owned()), REQUEST_DEADLINE).await? {
            Reply::Entry(entry) => Ok(entry),
            _ => Err(unexpected()),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Listing, DirectoryError> {
        check_prefix(prefix)?;
        match self.call(Request::List(prefix.to_owned()), REQUEST_DEADLINE).await? {
            Reply::Listing { part, .. } => Ok(part),
            _ => Err(unexpected()),
        }
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<DirectoryWatch, DirectoryError> {
        check_prefix(prefix)?;
        Ok(DirectoryWatch { client: self.clone(), prefix: prefix.to_owned(), after })
    }

    async fn touch(&self, name: &str, ttl_ms: u32) -> Result<(), DirectoryError> {
        check_key(name)?;
        let request = Request::Touch { name: name.to_owned(), ttl_ms };
        match self.call(request, REQUEST_DEADLINE).await? {
            Reply::Touched => Ok(()),
            _ => Err(unexpected()),
        }
    }

    async fn alive(&self) -> Result<Vec<String>, DirectoryError> {
        match self.call(Request::Alive, REQUEST_DEADLINE).await? {
            Reply::Names(names) => Ok(names),
            _ => Err(unexpected()),
        }
    }
}

/// A watch over a connection: a question that waits at the server, asked again with the revision
/// that the last answer reached. After an error it may be asked again, or dropped.
pub struct DirectoryWatch {
    client: DirectoryClient,
    prefix: String,
    after: Revision,
}

impl Watch for DirectoryWatch {
    async fn next(&mut self) -> Result<Vec<WatchEvent>, DirectoryError> {
        loop {
            let poll = Request::Poll { prefix: self.prefix.clone(), after: self.after };
            // The server answers within POLL_WAIT, so that one that hangs is noticed.
            match self.client.call(poll, POLL_WAIT + REQUEST_DEADLINE).await? {
                Reply::Events(events) => {
                    self.after = events.up_to;
                    if !events.events.is_empty() {
                        return Ok(events.events);
                    }
                }
                _ => return Err(unexpected()),
            }
        }
    }
}
