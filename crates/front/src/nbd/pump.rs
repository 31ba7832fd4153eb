//! Moves one client's bytes: stream to session, requests to the volume, answers to the stream.
//!
//! One task a connection. Its turn: whatever has ended is answered, and all the answers leave in
//! one vectored write; whatever has come is understood and started. Requests of one
//! connection run at once and are answered as they end.
//!
//! Invariants: requests taken on and not yet answered in full stay within what
//! [`admission`](crate::admission) allows; when they do not, nothing is read, and the client waits.
//! A started request runs to its end unless its client vanishes: then it is dropped, so that it is
//! not tried again for long and lands after what the client, started anew elsewhere, has written
//! since. Nothing here waits for a client longer than [`Limits::handshake`] or [`Limits::stall`].
//!
//! Absent: sockets, and what requests mean.

use super::reply::{Outbox, Replies};
use super::run::{self, Done, Outcome};
use super::session::{End, Event, NbdSession, Op, Open, Refused, Request, Why};
use crate::admission::client::{ClientAdmission, Room};
use crate::admission::control::AdmissionControl;
use crate::admission::limits::SHALLOW_BYTES;
use crate::admission::write_barrier::{WriteBarrier, WriteUnderWay};
use crate::limits::{LIST_EXPORTS_MAX, Limits};
use atoll_world::stream::{ByteRead, ByteStream, ByteWrite};
use atoll_world::sync::Notify;
use atoll_world::task_set::TaskSet;
use atoll_world::volume::{Volume, VolumeError, Volumes};
use atoll_world::{Elapsed, Nanos, Stage, World, sometimes};
use futures_util::future::{Either, FutureExt, select};
use futures_util::select_biased;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

/// An NBD server: what the connections of one shard share. Clones are the same server.
pub struct Server<W, V>(Rc<Shared<W, V>>);

impl<W, V> Clone for Server<W, V> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Shared<W, V> {
    world: W,
    volumes: V,
    limits: Limits,
    connections: Cell<usize>,
    admission: AdmissionControl,
    stopping: Cell<Option<Nanos>>,
    /// `stopping` or `connections` has changed.
    changed: Notify,
    stats: RefCell<Stats>,
}

/// What a server has done since it began; for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Connections now.
    pub connections: usize,
    /// Bytes of data held for clients now.
    pub held_bytes: usize,
    /// Connections accepted, ever; one that was handed over, where it arrived.
    pub accepted: u64,
    /// Connections of other shards that were served on here, ever.
    pub resumed: u64,
    /// Connections closed at once because there were too many.
    pub refused: u64,
    /// Connections that chose no export in time.
    pub handshakes_expired: u64,
    /// Clients that took or sent nothing for too long.
    pub stalled: u64,
    /// Connections closed for breaking the protocol.
    pub violations: u64,
    /// Requests carried out, successfully or not.
    pub requests: u64,
    /// Of those, the ones that the volume failed.
    pub failures: u64,
    /// Requests refused by the protocol's rules.
    pub invalid: u64,
}

/// How a connection ended.
#[derive(Debug)]
pub enum Ended {
    /// The client said goodbye, or just closed with nothing left to answer.
    Goodbye,
    /// There are [`Limits::connections`] already.
    TooMany,
    /// No export was chosen within [`Limits::handshake`].
    HandshakeExpired,
    /// An `EXPORT_NAME` named none that can be opened; the protocol has no other answer.
    NoExport,
    /// The client broke the protocol; says how.
    Violation(&'static str),
    /// The client took or sent nothing for [`Limits::stall`].
    Stalled,
    /// The connection broke.
    Broken(io::Error),
    /// [`Server::stop`] was called.
    Stopped,
}

/// What became of a connection.
pub enum Served<S> {
    /// It was served here, to its end.
    Ended(Ended),
    /// It is to be served by another shard.
    HandOver(Box<HandOver<S>>),
}

/// A connection whose export another shard serves. Dropping it closes the connection.
pub struct HandOver<S> {
    /// That shard: what [`Volumes::elsewhere`] said.
    pub shard: u8,
    /// The client, who was sent every answer but the one to the choice of its export.
    pub stream: S,
    /// For [`Server::resume`].
    pub session: Suspended,
}

/// A handshake that has come to the choice of its export, and all bytes behind that which have
/// come. Plain data: it may go to another thread.
pub struct Suspended {
    session: NbdSession,
    /// When the handshake has to be over, by the clock that all threads of a process have.
    deadline: Nanos,
}

const _: () = {
    const fn may_go_to_another_thread<T: Send>() {}
    may_go_to_another_thread::<Suspended>();
};

impl<W: World, V: Volumes> Server<W, V> {
    /// A server without connections.
    ///
    /// # Panics
    /// If a request of the largest size would not fit into `limits` and wait for ever.
    pub fn new(world: W, volumes: V, limits: Limits) -> Self {
        Self(Rc::new(Shared {
            world,
            volumes,
            limits,
            connections: Cell::new(0),
            admission: AdmissionControl::new(limits.admission),
            stopping: Cell::new(None),
            changed: Notify::default(),
            stats: RefCell::default(),
        }))
    }

    /// Serves one client to its end, or up to its choice of an export that another shard serves
    /// ([`Volumes::elsewhere`]). Run it as a task of its own; dropping it drops requests under way.
    pub async fn serve<S: ByteStream>(&self, stream: S) -> Served<S> {
        let shared = &*self.0;
        let Some(_permit) = ConnectionPermit::take(shared) else {
            return Served::Ended(Ended::TooMany);
        };
        shared.stats.borrow_mut().accepted += 1;
        let mut out = Outbox::default();
        let session = NbdSession::new(shared.limits.options, &mut out);
        let deadline = shared.world.now() + shared.limits.handshake;
        shared.connection(stream, Suspended { session, deadline }, out, true).await
    }

    /// Serves a client to its end that another shard's [`Server::serve`] handed over: goes on
    /// exactly where that one stopped. What the client chooses is opened here, whatever
    /// [`Volumes::elsewhere`] says by now: shards that do not agree must not pass a client on for
    /// ever. A server that was told to stop opens nothing.
    pub async fn resume<S: ByteStream>(&self, stream: S, suspended: Suspended) -> Ended {
        let shared = &*self.0;
        if shared.stopping.get().is_some() {
            return Ended::Stopped;
        }
        let Some(_permit) = ConnectionPermit::take(shared) else { return Ended::TooMany };
        shared.stats.borrow_mut().resumed += 1;
        match shared.connection(stream, suspended, Outbox::default(), false).await {
            Served::Ended(ended) => ended,
            Served::HandOver(_) => unreachable!("it may not leave"),
        }
    }

    /// From now on no request is taken on. Those under way are finished and answered, for at most
    /// [`Limits::stop`]; then every connection is closed without a word: that is what a client
    /// such as QEMU with `reconnect-delay` takes as "come back", while an error would reach the
    /// guest.
    pub fn stop(&self) {
        let shared = &self.0;
        if shared.stopping.get().is_none() {
            shared.stopping.set(Some(shared.world.now() + shared.limits.stop));
            shared.changed.notify_all();
        }
    }

    /// Returns when there is no connection (any more). Ends soon after [`Server::stop`].
    pub async fn idle(&self) {
        loop {
            let changed = self.0.changed.notified();
            if self.0.connections.get() == 0 {
                return;
            }
            changed.await;
        }
    }

    /// What it has done.
    pub fn stats(&self) -> Stats {
        Stats {
            connections: self.0.connections.get(),
            held_bytes: self.0.admission.held_bytes(),
            ..*self.0.stats.borrow()
        }
    }
}

/// A request that is being worked on, until it is dropped.
struct UnderWay<W: World>(W, usize);

impl<W: World> UnderWay<W> {
    fn begin(world: &W, bytes: usize) -> Self {
        world.request_begins(bytes);
        Self(world.clone(), bytes)
    }
}

impl<W: World> Drop for UnderWay<W> {
    fn drop(&mut self) {
        self.0.request_ends(self.1);
    }
}

/// Whether a small request writes or reads; nothing for others.
fn small_change(request: &Request) -> Option<bool> {
    match request.op {
        _ if request.charge > SHALLOW_BYTES => None,
        Op::Write { .. } => Some(true),
        Op::Read { .. } => Some(false),
        _ => None,
    }
}

/// One of the connections that are allowed.
struct ConnectionPermit<'a, W, V>(&'a Shared<W, V>);

impl<'a, W, V> ConnectionPermit<'a, W, V> {
    fn take(shared: &'a Shared<W, V>) -> Option<Self> {
        let before = shared.connections.get();
        if before >= shared.limits.connections {
            shared.stats.borrow_mut().refused += 1;
            sometimes!("nbd.connection.refused");
            return None;
        }
        shared.connections.set(before + 1);
        Some(Self(shared))
    }
}

impl<W, V> Drop for ConnectionPermit<'_, W, V> {
    fn drop(&mut self) {
        self.0.connections.set(self.0.connections.get() - 1);
        self.0.admission.barriers.forget_unused();
        self.0.changed.notify_all();
    }
}

/// Where the export is served that a client has chosen.
enum Chosen<V> {
    Here(V, WriteBarrier),
    Elsewhere(u8),
}

impl<W: World, V: Volumes> Shared<W, V> {
    /// Goes on from there, with what waits in `out`. `may_leave`: it may be handed over.
    async fn connection<S: ByteStream>(
        &self,
        stream: S,
        suspended: Suspended,
        out: Outbox,
        may_leave: bool,
    ) -> Served<S> {
        let Suspended { mut session, deadline } = suspended;
        let mut out = out;
        let (mut read, mut write) = stream.split();
        let chosen = {
            let handshake =
                self.handshake(&mut session, &mut out, &mut read, &mut write, may_leave);
            let handshake = pin!(self.world.timeout_at(deadline, handshake));
            match select(handshake, pin!(self.stopped())).await {
                Either::Left((Ok(chosen), _)) => chosen,
                Either::Left((Err(Elapsed), _)) => Err(Ended::HandshakeExpired),
                Either::Right(((), _)) => Err(Ended::Stopped),
            }
        };
        let ended = match chosen {
            Ok(Chosen::Elsewhere(shard)) => {
                assert!(out.is_empty(), "its answers were sent");
                let stream = S::unite(read, write);
                let session = Suspended { session, deadline };
                return Served::HandOver(Box::new(HandOver { shard, stream, session }));
            }
            Ok(Chosen::Here(volume, barrier)) => {
                let transmission = Transmission {
                    shared: self,
                    client: ClientAdmission::new(&self.admission),
                    replies: session.replies(),
                    barrier,
                    start: |request: Request, running, timed: Option<Nanos>| {
                        let under_way = UnderWay::begin(&self.world, request.charge);
                        let timed = timed.and_then(|begun| Some((begun, small_change(&request)?)));
                        run::run(&self.world, &volume, request, running).inspect(move |_| {
                            drop(under_way);
                            if let Some((begun, writes)) = timed {
                                self.admission.took(begun, self.world.now(), writes);
                            }
                        })
                    },
                    requests: RefCell::default(),
                    out: RefCell::new(out),
                    sending: Cell::new(0),
                    sending_since: Cell::new(None),
                    arriving_since: Cell::new(None),
                    arriving: Cell::new(0),
                    closing: Cell::new(false),
                    paused: Cell::new(false),
                };
                transmission.run(session, read, write).await
            }
            Err(ended) => ended,
        };
        let mut stats = self.stats.borrow_mut();
        match &ended {
            Ended::HandshakeExpired => stats.handshakes_expired += 1,
            Ended::Stalled => stats.stalled += 1,
            Ended::Violation(_) => stats.violations += 1,
            _ => {}
        }
        Served::Ended(ended)
    }

    /// Returns once [`Server::stop`] was called; whoever serves the connection ends the wait.
    async fn stopped(&self) {
        loop {
            let changed = self.changed.notified();
            if self.stopping.get().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Returns when requests under way at [`Server::stop`] have had their time.
    async fn stop_expired(&self) {
        self.stopped().await;
        let until = self.stopping.get().expect("set once and for all");
        self.world.sleep_until(until).await;
    }

    /// From the greeting to the choice of an export; one thing after the other, so that what is
    /// held is one option and its answer. The caller sets the deadline.
    async fn handshake(
        &self,
        session: &mut NbdSession,
        out: &mut Outbox,
        read: &mut impl ByteRead,
        write: &mut impl ByteWrite,
        may_leave: bool,
    ) -> Result<Chosen<V::Volume>, Ended> {
        let room = Room { requests: 0, bytes: 0 };
        loop {
            match session.next(room, out) {
                Event::More => {
                    flush(out, write).await?;
                    match read.read(session.space()).await {
                        Ok(0) => return Err(Ended::Goodbye),
                        Ok(count) => session.filled(count),
                        Err(error) => return Err(Ended::Broken(error)),
                    }
                }
                Event::Open(open) => {
                    // First, since the connection may leave here, or end without an answer.
                    flush(out, write).await?;
                    if may_leave
                        && open.why == Why::Use
                        && let Some(shard) = self.volumes.elsewhere(&open.name).await
                    {
                        return Ok(Chosen::Elsewhere(shard));
                    }
                    if let Some((volume, barrier)) = self.open(&open, session, out).await? {
                        // The answer that ends the handshake leaves with those to requests.
                        return Ok(Chosen::Here(volume, barrier));
                    }
                    flush(out, write).await?;
                }
                Event::List => {
                    match self.volumes.list(LIST_EXPORTS_MAX + 1).await {
                        Ok(mut exports) => {
                            let complete = exports.len() <= LIST_EXPORTS_MAX;
                            exports.truncate(LIST_EXPORTS_MAX);
                            session.on_listed(&exports, complete, out);
                        }
                        Err(error) => session.on_not_listed(&error.to_string(), out),
                    }
                    flush(out, write).await?;
                }
                Event::Ended(end) => {
                    flush(out, write).await?;
                    return Err(ended(end));
                }
                Event::Request(_) | Event::Full(_) => unreachable!("no export is chosen"),
            }
        }
    }

    async fn open(
        &self,
        open: &Open,
        session: &mut NbdSession,
        out: &mut Outbox,
    ) -> Result<Option<(V::Volume, WriteBarrier)>, Ended> {
        let mut opened = None;
        let found = match self.volumes.open(&open.name).await {
            Ok(volume) => {
                let description =
                    if open.describe { self.describe(&open.name).await } else { None };
                if open.why == Why::Use {
                    let barrier = self.admission.barriers.of(&open.name);
                    barrier.wait_for_earlier().await;
                    opened = Some((volume.clone(), barrier));
                }
                Ok((volume.info(), description))
            }
            Err(VolumeError::Gone) => Err(Refused::Unknown),
            Err(error) => Err(Refused::Policy(error.to_string())),
        };
        match session.on_opened(found, out) {
            Some(end) => Err(ended(end)),
            None => {
                assert_eq!(session.is_transmitting(), opened.is_some(), "both know what was asked");
                Ok(opened)
            }
        }
    }

    async fn describe(&self, name: &str) -> Option<String> {
        // Only a courtesy: without it the export is as good.
        let exports = self.volumes.list(LIST_EXPORTS_MAX).await.ok()?;
        let found = exports.into_iter().find(|export| export.name == name)?;
        Some(found.description).filter(|text| !text.is_empty())
    }
}

async fn flush(out: &mut Outbox, write: &mut impl ByteWrite) -> Result<(), Ended> {
    for step in out.take().steps() {
        write.write_all(step).await.map_err(Ended::Broken)?;
    }
    Ok(())
}

fn ended(end: End) -> Ended {
    match end {
        End::Goodbye => Ended::Goodbye,
        End::NoExport => Ended::NoExport,
        End::Violation(how) => Ended::Violation(how),
    }
}

/// Why a connection goes on.
enum Woken {
    /// Something was answered, or there is room again.
    Turn,
    Read(io::Result<usize>),
    Stopped,
}

/// A connection that uses an export: what the halves of its task share.
struct Transmission<'a, W, V, S, F> {
    shared: &'a Shared<W, V>,
    client: ClientAdmission<'a>,
    replies: Replies,
    barrier: WriteBarrier,
    /// Makes a future of a request; of one whose time is wanted with when it began.
    start: S,
    /// Requests under way; polled in [`Transmission::collect`] only.
    requests: RefCell<TaskSet<F>>,
    out: RefCell<Outbox>,
    /// Answers taken from `out` and not yet written.
    sending: Cell<usize>,
    sending_since: Cell<Option<Nanos>>,
    /// Since when a write's data is arriving.
    arriving_since: Cell<Option<Nanos>>,
    /// Bytes held for the write whose data is arriving.
    arriving: Cell<usize>,
    /// Nothing more will be put in `out`.
    closing: Cell<bool>,
    /// The reading half waits only for the writing half to have had its turn.
    paused: Cell<bool>,
}

impl<W, V, S, F> Transmission<'_, W, V, S, F>
where
    W: World,
    V: Volumes,
    S: Fn(Request, Option<WriteUnderWay>, Option<Nanos>) -> F,
    F: Future<Output = Done>,
{
    async fn run(
        self,
        mut session: NbdSession,
        mut read: impl ByteRead,
        mut write: impl ByteWrite,
    ) -> Ended {
        let ended = {
            let mut reading = pin!(self.reading(&mut session, &mut read));
            let mut writing = pin!(self.writing(&mut write));
            let mut stalled = pin!(self.stalled());
            let mut expired = pin!(self.shared.stop_expired());
            let mut result = None;
            // The reading half first: what it answers in this turn, the writing half takes in the
            // same turn, before more is read. That is why the outbox wakes nobody.
            poll_fn(|cx| {
                loop {
                    self.paused.set(false);
                    if result.is_none()
                        && let Poll::Ready(ended) = reading.as_mut().poll(cx)
                    {
                        self.closing.set(true);
                        result = Some(ended);
                    }
                    match writing.as_mut().poll(cx) {
                        Poll::Ready(Ok(())) => {
                            let ended = result.take().expect("it ends when the other half has");
                            return Poll::Ready(ended);
                        }
                        Poll::Ready(Err(error)) => return Poll::Ready(Ended::Broken(error)),
                        Poll::Pending => {}
                    }
                    if !self.paused.get() {
                        break;
                    }
                }
                if stalled.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Ended::Stalled);
                }
                expired.as_mut().poll(cx).map(|()| Ended::Stopped)
            })
            .await
        };
        // The client sees the end at once.
        drop((read, write));
        if !self.requests.borrow().is_empty() {
            sometimes!("nbd.connection.ended_with_requests");
        }
        if matches!(ended, Ended::Broken(_) | Ended::Stalled) {
            self.requests.borrow_mut().clear();
        }
        select(pin!(self.finish()), pin!(self.shared.stop_expired())).await;
        ended
    }

    /// Understands and starts requests and collects answers, until the client or the server wants
    /// no more; then until every request has ended.
    async fn reading(&self, session: &mut NbdSession, read: &mut impl ByteRead) -> Ended {
        let ended = loop {
            // Here, too: a client that never pauses must not keep the server from stopping.
            if self.shared.stopping.get().is_some() {
                break Ended::Stopped;
            }
            let need = match self.understand(session) {
                Ok(need) => need,
                Err(end) => break ended(end),
            };
            match self.something(need, session, read).await {
                Woken::Turn => self.pause().await,
                // Without a goodbye: nobody is there any more.
                Woken::Read(Ok(0)) if !self.requests.borrow().is_empty() => {
                    return Ended::Broken(io::ErrorKind::UnexpectedEof.into());
                }
                Woken::Read(Ok(0)) => break Ended::Goodbye,
                Woken::Read(Ok(count)) => session.filled(count),
                Woken::Read(Err(error)) => return Ended::Broken(error),
                Woken::Stopped => break Ended::Stopped,
            }
        };
        self.finish().await;
        ended
    }

    /// The next thing that happens. With a `need`, a request waits for room, and nobody reads for
    /// a client that is owed as much as it may be.
    async fn something(
        &self,
        need: Option<usize>,
        session: &mut NbdSession,
        read: &mut impl ByteRead,
    ) -> Woken {
        let mut collected = pin!(self.collect().fuse());
        let mut stopped = pin!(self.shared.stopped().fuse());
        let more = async {
            match need {
                Some(need) => {
                    self.roomy(need).await;
                    Woken::Turn
                }
                None => Woken::Read(read.read(session.space()).await),
            }
        };
        let mut more = pin!(more.fuse());
        select_biased! {
            () = collected => Woken::Turn,
            woken = more => woken,
            () = stopped => Woken::Stopped,
        }
    }

    /// Starts every request that has come. The bytes that the next one has to wait for, if there
    /// is one and no room for it.
    fn understand(&self, session: &mut NbdSession) -> Result<Option<usize>, End> {
        let under_way = self.requests.borrow().len();
        let now = self.shared.world.now();
        self.client.renew_share(now, under_way);
        let timed = self.client.wants_times().then_some(now);
        loop {
            let mut out = self.out.borrow_mut();
            let before = out.replies();
            let event = session.next(self.room(&out), &mut out);
            let refused = out.replies() - before;
            drop(out);
            let mut stats = self.shared.stats.borrow_mut();
            stats.invalid += refused as u64;
            match event {
                Event::Request(request) => {
                    stats.requests += 1;
                    let ahead = self.arriving.take();
                    self.client.hold(request.charge - ahead);
                    self.arriving_since.set(None);
                    let running = run::start(&self.barrier, &request);
                    let bytes = request.charge;
                    let mut requests = self.requests.borrow_mut();
                    requests.push((self.start)(request, running, timed));
                    self.client.begins(bytes, requests.len());
                }
                Event::More => {
                    let arriving = session.arriving();
                    if arriving > 0 && self.arriving_since.get().is_none() {
                        self.client.hold(arriving);
                        self.arriving.set(arriving);
                        self.arriving_since.set(Some(self.shared.world.now()));
                    }
                    return Ok(None);
                }
                Event::Full(need) => {
                    sometimes!("nbd.connection.full");
                    return Ok(Some(need));
                }
                Event::Ended(end) => return Err(end),
                Event::Open(_) | Event::List => unreachable!("the export is chosen"),
            }
        }
    }

    fn room(&self, out: &Outbox) -> Room {
        let taken = self.requests.borrow().len() + out.replies() + self.sending.get();
        self.client.room(taken)
    }

    /// Returns when a request of `need` bytes may be taken on. Ended by a client that takes its
    /// answers, or by the deadline for one that does not.
    async fn roomy(&self, need: usize) {
        loop {
            let freed = self.shared.admission.freed();
            let room = self.room(&self.out.borrow());
            if room.requests > 0 && room.bytes >= need {
                return;
            }
            freed.await;
        }
    }

    /// Answers what has ended; returns once there was something.
    fn collect(&self) -> impl Future<Output = ()> {
        poll_fn(|cx| {
            let mut any = false;
            let mut requests = self.requests.borrow_mut();
            while let Poll::Ready(Some(done)) = requests.poll_next(cx) {
                any = true;
                self.answer(done);
            }
            if any { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Lets the writing half go first.
    async fn pause(&self) {
        self.paused.set(true);
        poll_fn(|_| if self.paused.get() { Poll::Pending } else { Poll::Ready(()) }).await;
    }

    fn answer(&self, done: Done) {
        match done.outcome {
            Outcome::Gone(_) if self.shared.stopping.get().is_some() => {
                // Left open: the client repeats it elsewhere, where an error would be final.
                self.client.release(done.charge);
                return;
            }
            Outcome::Gone(_) | Outcome::Failed(_) => {
                self.shared.stats.borrow_mut().failures += 1;
            }
            _ => {}
        }
        done.answer(self.replies, &mut self.out.borrow_mut());
    }

    /// Returns once no request is under way.
    async fn finish(&self) {
        while !self.requests.borrow().is_empty() {
            self.collect().await;
        }
    }

    /// Writes what is answered, all of it at once, until nothing more will come.
    async fn writing(&self, write: &mut impl ByteWrite) -> io::Result<()> {
        loop {
            let batch = poll_fn(|_| {
                let mut out = self.out.borrow_mut();
                match (out.is_empty(), self.closing.get()) {
                    (false, _) => Poll::Ready(Some(out.take())),
                    (true, true) => Poll::Ready(None),
                    // Polled again in every turn, after the reading half.
                    (true, false) => Poll::Pending,
                }
            });
            let Some(batch) = batch.await else { return Ok(()) };
            let (replies, charge) = (batch.replies, batch.charge);
            self.sending.set(replies);
            let begun = self.shared.world.stage(Stage::Reply);
            for step in batch.steps() {
                self.sending_since.set(Some(self.shared.world.now()));
                write.write_all(step).await?;
            }
            self.shared.world.end_stage(Stage::Reply, begun);
            self.sending_since.set(None);
            self.sending.set(0);
            self.client.release(charge);
            self.shared.admission.has_freed();
        }
    }

    /// Returns when the client has taken or sent nothing for too long.
    async fn stalled(&self) {
        let stall = self.shared.limits.stall;
        loop {
            // A quarter: a stall is seen at most that much late.
            self.shared.world.sleep(stall / 4).await;
            let now = self.shared.world.now();
            let since = [self.sending_since.get(), self.arriving_since.get()];
            if since.into_iter().flatten().any(|since| now.since(since) >= stall) {
                sometimes!("nbd.connection.stalled");
                return;
            }
        }
    }
}
