//! All peers of this host: who they are, how they are, and calls to them.
//!
//! Tasks: one accepts connections; one per accepted connection serves it (`serve`); one per
//! (peer, lane) opens the connection out and reads its replies (`dial`); one pings and finds the
//! silent; one watches the deadlines of all calls.

use crate::error::{CallError, PeerState, TransportCounters};
use crate::limits::{
    LANE_LOST_AFTER, LOCAL_CALLS_MAX, LOST_AFTER, PEERS_MAX, PING_EVERY, REQUEST_OVERHEAD,
    TWINS_MAX, WINDOW_BYTES, WINDOW_BYTES_SMALL, WINDOW_REQUESTS, WINDOW_REQUESTS_SMALL,
};
use crate::message::{Message, Service};
use crate::outgoing::{Answer, Call, Outgoing, Window};
use crate::{dial, serve};
use atoll_format::frame::{BODY_MAX, FrameHead, FrameKind, Hello, PAYLOAD_MAX, VERSION_HANDSHAKE};
use atoll_format::id::{ClusterId, HostId, Incarnation};
use atoll_world::buf::total_len;
use atoll_world::sync::{Notify, Receiver, oneshot};
use atoll_world::{Conn, Lane, Nanos, Net, Packet, Persist, Stage, World, mutant};
use futures_util::future::{pending, select};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

pub(crate) type ConnOf<W> = <<W as World>::Net as Net>::Conn;

/// Who this host is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Peers of another cluster are refused.
    pub cluster: ClusterId,
    /// Its id.
    pub host: HostId,
    /// This life of its process.
    pub incarnation: Incarnation,
    /// For people, in messages.
    pub name: String,
}

/// A host that lives twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Twin {
    /// A process with this host's own identity connected, and was told that this host lives.
    Refused {
        /// What it is called.
        name: String,
        /// Where it came from.
        from: String,
    },
    /// Two lives of another host connect in turn.
    Alternates {
        /// Which.
        host: HostId,
    },
}

/// The peers of this host, and its own service. Clones are the same.
pub struct Peers<W: World, S: Service>(pub(crate) Rc<Inner<W, S>>);

impl<W: World, S: Service> Clone for Peers<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

pub(crate) struct Inner<W: World, S: Service> {
    pub(crate) world: W,
    pub(crate) identity: Identity,
    pub(crate) service: S,
    peers: RefCell<BTreeMap<HostId, Rc<Peer<W, S>>>>,
    changed: Notify,
    counters: RefCell<TransportCounters>,
    pub(crate) stopped: Cell<bool>,
    pub(crate) stopping: Notify,
    /// Calls to this host's own service that are not answered yet.
    local: RefCell<LocalCalls<S::Reply>>,
    local_next: Cell<u64>,
    /// When the watcher of deadlines looks next.
    watch_at: Cell<Nanos>,
    watch_sooner: Notify,
    /// Requests of peers being handled.
    pub(crate) serving: Cell<u32>,
    pub(crate) handshakes: Cell<usize>,
    serial: Cell<u64>,
    twins: RefCell<Vec<Twin>>,
}

/// By number: the deadline and who waits.
type LocalCalls<T> = BTreeMap<u64, (Nanos, Answer<T>)>;

/// One other host.
pub(crate) struct Peer<W: World, S: Service> {
    pub(crate) host: HostId,
    /// Empty: it connected to us but nobody has told us where it listens.
    pub(crate) endpoints: RefCell<Vec<String>>,
    /// Its connections out are being looked after.
    dialled: Cell<bool>,
    pub(crate) removed: Cell<bool>,
    /// Ends the pause before the next attempt to connect.
    pub(crate) kick: Notify,
    pub(crate) lanes: [LaneOut<W, S>; 3],
    /// What it opened to us.
    accepted: RefCell<[Option<Link<W>>; 3]>,
    incarnation: Cell<Option<Incarnation>>,
    /// The life that has spoken behind a handshake last, the first connection over which it did,
    /// and the life before it.
    spoke: Cell<Option<(Incarnation, u64)>>,
    spoke_before: Cell<Option<Incarnation>>,
    last_heard: Cell<Option<Nanos>>,
    /// Silence is counted from here.
    silent_since: Cell<Nanos>,
    pub(crate) round_trip: Cell<Option<Nanos>>,
    load: Cell<u8>,
}

/// The calls of one lane and the connection they go over.
pub(crate) struct LaneOut<W: World, S: Service> {
    pub(crate) calls: RefCell<Outgoing<S::Reply>>,
    link: RefCell<Option<Link<W>>>,
}

/// A connection after its handshake.
pub(crate) struct Link<W: World> {
    pub(crate) conn: ConnOf<W>,
    /// Tells connections apart.
    pub(crate) serial: u64,
    /// Of the peer's process, as it said itself.
    pub(crate) life: Incarnation,
    /// What the handshake agreed on.
    pub(crate) version: u16,
    /// When something last came, or was not yet due.
    pub(crate) heard: Rc<Cell<Nanos>>,
}

impl<W: World> Clone for Link<W> {
    fn clone(&self) -> Self {
        Self { conn: self.conn.clone(), heard: self.heard.clone(), ..*self }
    }
}

impl<W: World, S: Service> Peers<W, S> {
    /// Begins to accept connections and to answer requests with `service`. Ends with
    /// [`Peers::stop`].
    pub fn start(world: W, identity: Identity, service: S) -> Self {
        let inner = Rc::new(Inner {
            world: world.clone(),
            identity,
            service,
            peers: RefCell::default(),
            changed: Notify::default(),
            counters: RefCell::default(),
            stopped: Cell::new(false),
            stopping: Notify::default(),
            local: RefCell::default(),
            local_next: Cell::new(0),
            watch_at: Cell::new(Nanos::NEVER),
            watch_sooner: Notify::default(),
            serving: Cell::new(0),
            handshakes: Cell::new(0),
            serial: Cell::new(0),
            twins: RefCell::default(),
        });
        world.spawn(serve::accept(inner.clone()));
        world.spawn(heart(inner.clone()));
        world.spawn(watch_deadlines(inner.clone()));
        Self(inner)
    }

    /// From now on `host` is connected to at one of `endpoints` (first is preferred), again and
    /// again until it works, on all lanes. Replaces its endpoints if it was known.
    /// This host itself needs none.
    pub fn set_peer(&self, host: HostId, endpoints: Vec<String>) {
        let inner = &self.0;
        if host == inner.identity.host || inner.stopped.get() {
            return;
        }
        let Some(peer) = inner.peer_or_new(host) else { return };
        if *peer.endpoints.borrow() == endpoints {
            return;
        }
        *peer.endpoints.borrow_mut() = endpoints;
        peer.kick.notify_all();
        if !peer.dialled.replace(true) {
            for lane in Lane::ALL {
                inner.world.spawn(dial::run(inner.clone(), peer.clone(), lane));
            }
        }
    }

    /// Forgets `host`: its connections are closed, calls in flight fail as `Disconnected`, those
    /// that wait as `Unreachable`. If it connects again it is served again: whether it still
    /// belongs to the cluster is not decided here.
    pub fn remove_peer(&self, host: HostId) {
        let peer = self.0.peers.borrow_mut().remove(&host);
        if let Some(peer) = peer {
            self.0.part(&peer, "removed");
        }
    }

    /// Asks `to`. The request is queued (or, if `to` is this host, its handler polled once)
    /// before this returns, so that requests on one (peer, lane) are delivered in the order of
    /// the calls. The request is sent and carried out even if the future is dropped.
    ///
    /// No borrow of state that the service needs may be held while this is called.
    ///
    /// # Errors
    /// See [`CallError`]: only `Disconnected` and `Deadline` leave the outcome open.
    pub fn call(
        &self,
        to: HostId,
        lane: Lane,
        request: S::Request,
        deadline: Nanos,
    ) -> impl Future<Output = Result<S::Reply, CallError>> + 'static + use<W, S> {
        let pending = if self.0.stopped.get() {
            Pending::Ready(Some(Err(self.0.unreachable(CallError::Unreachable))))
        } else if to == self.0.identity.host {
            self.0.call_self(request, deadline)
        } else {
            self.0.call_peer(to, lane, request, deadline)
        };
        CallFuture(pending)
    }

    /// What is known of `host` now.
    pub fn peer(&self, host: HostId) -> PeerState {
        let peers = self.0.peers.borrow();
        let Some(peer) = peers.get(&host) else { return PeerState::default() };
        let up = |lane: Lane| peer.lanes[lane as usize].calls.borrow().is_up();
        PeerState {
            connected: up(Lane::Control) && up(Lane::Data),
            incarnation: peer.incarnation.get(),
            last_heard: peer.last_heard.get(),
            round_trip: peer.round_trip.get(),
            load: peer.load.get(),
        }
    }

    /// Wakes when a connection to any peer comes or goes, or a peer shows a new incarnation.
    pub fn changed(&self) -> Notify {
        self.0.changed.clone()
    }

    /// What was seen since the last call of hosts that live twice; bounded, each once.
    pub fn take_twins(&self) -> Vec<Twin> {
        self.0.twins.take()
    }

    /// Totals since the start.
    pub fn counters(&self) -> TransportCounters {
        *self.0.counters.borrow()
    }

    /// Says goodbye, closes every connection, fails every call and ends all tasks but the
    /// handlers that still run. Calls fail as `Unreachable` from now on.
    pub fn stop(&self) {
        self.0.stopped.set(true);
        let peers = self.0.peers.take();
        for peer in peers.into_values() {
            self.0.part(&peer, "stopping");
        }
        let local = self.0.local.take();
        for (_, answer) in local.into_values() {
            answer.send(Err(CallError::Disconnected));
        }
        self.0.stopping.notify_all();
        self.0.watch_sooner.notify_all();
    }
}

impl<W: World, S: Service> Inner<W, S> {
    pub(crate) fn count(&self, change: impl FnOnce(&mut TransportCounters)) {
        change(&mut self.counters.borrow_mut());
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    fn unreachable(&self, error: CallError) -> CallError {
        self.count(|c| c.unreachable += u64::from(error == CallError::Unreachable));
        error
    }

    /// What this host says of itself to `to`.
    pub(crate) fn hello(&self, to: HostId, lane: Lane) -> Hello {
        self.identity.hello(to, lane)
    }

    /// Remembers that two lives of one host show themselves.
    pub(crate) fn twin(&self, twin: Twin) {
        let mut twins = self.twins.borrow_mut();
        if twins.len() < TWINS_MAX && !twins.contains(&twin) {
            twins.push(twin);
        }
    }

    /// What the peers may have unanswered here at once, over each connection.
    pub(crate) fn window(&self) -> Window {
        let bound = |usual, small| self.world.bound(usual, small) as u64;
        Window {
            requests: bound(WINDOW_REQUESTS as usize, WINDOW_REQUESTS_SMALL) as u32,
            bytes: bound(WINDOW_BYTES as usize, WINDOW_BYTES_SMALL),
        }
    }

    /// How busy this host is, 0-255.
    fn load(&self) -> u8 {
        let load = u64::from(self.serving.get()) * 255 / u64::from(WINDOW_REQUESTS);
        u8::try_from(load).unwrap_or(u8::MAX)
    }

    /// Sends a frame; whether the connection is broken shows when it is read.
    pub(crate) fn send(
        &self,
        conn: &ConnOf<W>,
        mut head: FrameHead,
        body: Vec<u8>,
        payload: Vec<atoll_world::Buf>,
    ) {
        head.load = self.load();
        let bytes = (head.encode().len() + body.len() + total_len(&payload)) as u64;
        let sent = conn.send(Packet { head: head.encode(), body, payload });
        if sent.is_ok() {
            self.count(|c| {
                c.frames_sent += 1;
                c.bytes_sent += bytes;
            });
        }
    }

    /// Sends a frame without body or payload, or with a text.
    pub(crate) fn send_text(
        &self,
        conn: &ConnOf<W>,
        version: u16,
        kind: FrameKind,
        id: u64,
        text: &str,
    ) {
        let mut end = text.len().min(atoll_format::frame::TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let version = if kind.is_handshake() { VERSION_HANDSHAKE } else { version };
        let body = text.as_bytes()[..end].to_vec();
        self.send(conn, FrameHead::new(version, kind, id, &body), body, Vec::new());
    }

    /// The head of a packet that is what it says it is; every frame of a peer passes here.
    pub(crate) fn checked(&self, packet: &Packet) -> Option<FrameHead> {
        let payload = packet.payload.iter().map(|p| &p[..]);
        let checked = FrameHead::decode(&packet.head).and_then(|head| {
            match head.verify(&packet.body, payload) {
                Err(_) if mutant!("peers.frames_not_checked") => Ok(head),
                verified => verified.map(|()| head),
            }
        });
        match checked {
            Ok(head) => {
                let bytes = u64::from(head.body_len) + u64::from(head.payload_len);
                self.count(|c| {
                    c.frames_received += 1;
                    c.bytes_received += packet.head.len() as u64 + bytes;
                });
                Some(head)
            }
            Err(_) => {
                self.count(|c| c.frames_bad += 1);
                None
            }
        }
    }

    /// The peer of that id, made if it is new; none if there are too many.
    pub(crate) fn peer_or_new(&self, host: HostId) -> Option<Rc<Peer<W, S>>> {
        let mut peers = self.peers.borrow_mut();
        if let Some(peer) = peers.get(&host) {
            return Some(peer.clone());
        }
        if peers.len() >= PEERS_MAX {
            return None;
        }
        let lane = || LaneOut { calls: RefCell::new(Outgoing::new()), link: RefCell::new(None) };
        let peer = Rc::new(Peer {
            host,
            endpoints: RefCell::default(),
            dialled: Cell::new(false),
            removed: Cell::new(false),
            kick: Notify::default(),
            lanes: [lane(), lane(), lane()],
            accepted: RefCell::new([None, None, None]),
            incarnation: Cell::new(None),
            spoke: Cell::new(None),
            spoke_before: Cell::new(None),
            last_heard: Cell::new(None),
            silent_since: Cell::new(self.world.now()),
            round_trip: Cell::new(None),
            load: Cell::new(0),
        });
        peers.insert(host, peer.clone());
        Some(peer)
    }

    /// A valid frame of `peer` arrived behind the handshake of `link`.
    pub(crate) fn heard_over(&self, link: &Link<W>, peer: &Peer<W, S>, load: u8) {
        self.heard(peer, load);
        let last = peer.spoke.get();
        if last.is_some_and(|(life, _)| life == link.life) {
            return;
        }
        // A process that has ended does not come back. Its part of a handshake may: it was on the
        // way, or waited here, since before. What it says after our part of it was said alive.
        if let Some((life, serial)) = last {
            if link.serial < serial {
                return;
            }
            if peer.spoke_before.replace(Some(life)) == Some(link.life) {
                self.twin(Twin::Alternates { host: peer.host });
            }
        }
        peer.spoke.set(Some((link.life, link.serial)));
    }

    /// A valid frame of `peer` arrived.
    pub(crate) fn heard(&self, peer: &Peer<W, S>, load: u8) {
        let now = self.world.now();
        peer.last_heard.set(Some(now));
        peer.silent_since.set(now);
        peer.load.set(load);
    }

    /// Whether another life of `peer` has spoken since this one was greeted, over the connection
    /// with that serial. Its answer was on the way all the time: to believe it would close the
    /// connections of the life that there is now.
    pub(crate) fn is_over(&self, peer: &Peer<W, S>, greeted: Incarnation, serial: u64) -> bool {
        peer.spoke.get().is_some_and(|(life, since)| life != greeted && serial < since)
    }

    /// `peer` shook hands as this life of its process: connections of another one are dead.
    pub(crate) fn met(&self, peer: &Peer<W, S>, incarnation: Incarnation) {
        let last = peer.incarnation.replace(Some(incarnation));
        if last.is_some_and(|last| last != incarnation) {
            self.close_all(peer, "another life of this host has connected");
        }
        self.changed.notify_all();
    }

    /// A connection out is ready.
    pub(crate) fn lane_up(&self, peer: &Peer<W, S>, lane: Lane, link: Link<W>, window: Window) {
        let out = &peer.lanes[lane as usize];
        *out.link.borrow_mut() = Some(link);
        out.calls.borrow_mut().on_up(window);
        self.count(|c| c.connects += 1);
        self.pump(peer, lane);
        self.changed.notify_all();
    }

    /// The connection out with that serial is not used any more. Nothing happens if it is gone.
    pub(crate) fn lane_down(&self, peer: &Peer<W, S>, lane: Lane, serial: u64) {
        let out = &peer.lanes[lane as usize];
        if out.link.borrow().as_ref().is_none_or(|l| l.serial != serial) {
            return;
        }
        let link = out.link.borrow_mut().take().expect("just looked at");
        link.conn.close();
        self.count(|c| c.disconnects += 1);
        let failed = out.calls.borrow_mut().on_lost();
        self.tell(failed);
        self.changed.notify_all();
    }

    /// Whether the connection out with that serial is the one in use.
    pub(crate) fn is_current(&self, peer: &Peer<W, S>, lane: Lane, serial: u64) -> bool {
        peer.lanes[lane as usize].link.borrow().as_ref().is_some_and(|l| l.serial == serial)
    }

    /// No connection out could be opened.
    pub(crate) fn lane_failed(&self, peer: &Peer<W, S>, lane: Lane, error: CallError) {
        let failed = peer.lanes[lane as usize].calls.borrow_mut().on_failed(error);
        self.tell(failed);
    }

    fn tell(&self, failed: Vec<(Answer<S::Reply>, CallError)>) {
        for (answer, error) in failed {
            self.count(|c| c.deadlines_missed += u64::from(error == CallError::Deadline));
            answer.send(Err(self.unreachable(error)));
        }
    }

    /// A connection in is ready; it replaces the one before.
    pub(crate) fn accepted(&self, peer: &Peer<W, S>, lane: Lane, link: Link<W>) {
        let before = peer.accepted.borrow_mut()[lane as usize].replace(link);
        if let Some(before) = before {
            self.close(&before, "replaced by a newer connection");
        }
        self.count(|c| c.connects += 1);
    }

    /// The connection in with that serial has ended.
    pub(crate) fn accepted_ended(&self, peer: &Rc<Peer<W, S>>, lane: Lane, serial: u64) {
        self.count(|c| c.disconnects += 1);
        let mut accepted = peer.accepted.borrow_mut();
        if accepted[lane as usize].as_ref().is_some_and(|l| l.serial == serial) {
            accepted[lane as usize] = None;
        }
        // A host that nobody named, and that has left: forget it.
        if accepted.iter().all(Option::is_none) && peer.endpoints.borrow().is_empty() {
            let mut peers = self.peers.borrow_mut();
            if peers.get(&peer.host).is_some_and(|p| Rc::ptr_eq(p, peer)) {
                peers.remove(&peer.host);
            }
        }
    }

    fn close(&self, link: &Link<W>, why: &str) {
        self.send_text(&link.conn, link.version, FrameKind::Goodbye, 0, why);
        link.conn.close();
    }

    fn close_all(&self, peer: &Peer<W, S>, why: &str) {
        for lane in Lane::ALL {
            let out = peer.lanes[lane as usize].link.borrow().clone();
            if let Some(link) = out {
                self.send_text(&link.conn, link.version, FrameKind::Goodbye, 0, why);
                self.lane_down(peer, lane, link.serial);
            }
            let accepted = peer.accepted.borrow_mut()[lane as usize].take();
            if let Some(link) = accepted {
                self.close(&link, why);
            }
        }
    }

    /// Ends all relations with a peer that is no longer in the table.
    fn part(&self, peer: &Peer<W, S>, why: &str) {
        peer.removed.set(true);
        self.close_all(peer, why);
        for lane in Lane::ALL {
            self.lane_failed(peer, lane, CallError::Unreachable);
        }
        peer.kick.notify_all();
        self.changed.notify_all();
    }

    /// Sends what the window of the lane allows.
    pub(crate) fn pump(&self, peer: &Peer<W, S>, lane: Lane) {
        let out = &peer.lanes[lane as usize];
        let link = out.link.borrow();
        let Some(link) = &*link else { return };
        loop {
            let next = out.calls.borrow_mut().next();
            let Some((id, message)) = next else { return };
            let head = FrameHead::message(
                link.version,
                FrameKind::Request,
                id,
                message.kind,
                &message.body,
                message.payload.iter().map(|p| &p[..]),
                message.payload_checked_by_receiver,
            )
            .expect("lengths were checked when the call was made");
            self.send(&link.conn, head, message.body, message.payload);
        }
    }

    /// The watcher of deadlines has to look at `deadline` or before.
    fn watch_until(&self, deadline: Nanos) {
        if deadline < self.watch_at.get() {
            self.watch_at.set(deadline);
            self.watch_sooner.notify_all();
        }
    }

    fn call_peer(
        &self,
        to: HostId,
        lane: Lane,
        request: S::Request,
        deadline: Nanos,
    ) -> Pending<W, S::Reply> {
        let refuse = |error| Pending::Ready(Some(Err(self.unreachable(error))));
        self.count(|c| c.calls_remote += 1);
        let peer = self.peers.borrow().get(&to).cloned();
        let Some(peer) = peer.filter(|p| !p.endpoints.borrow().is_empty()) else {
            return refuse(CallError::Unreachable);
        };
        let (reply_bytes, leads_on) = (request.reply_bytes(), request.leads_on());
        let message = request.encode();
        let (body, payload) = (message.body.len() as u64, total_len(&message.payload) as u64);
        if body > u64::from(BODY_MAX) || payload > u64::from(PAYLOAD_MAX) {
            return refuse(CallError::TooLarge);
        }
        let begun = if lane == Lane::Data { self.world.stage(Stage::Peer) } else { None };
        let (answer, receiver) = oneshot();
        let cost = cost(body, payload, reply_bytes);
        let pushed = {
            let mut calls = peer.lanes[lane as usize].calls.borrow_mut();
            calls.push(Call { message, cost, leads_on, deadline, answer, begun })
        };
        if let Err((_, error)) = pushed {
            return refuse(error);
        }
        self.pump(&peer, lane);
        self.watch_until(deadline);
        Pending::Waiting(receiver)
    }

    fn call_self(self: &Rc<Self>, request: S::Request, deadline: Nanos) -> Pending<W, S::Reply> {
        self.count(|c| c.calls_local += 1);
        if self.local.borrow().len() >= LOCAL_CALLS_MAX {
            return Pending::Ready(Some(Err(self.unreachable(CallError::Unreachable))));
        }
        let id = self.local_next.get();
        self.local_next.set(id + 1);
        let (answer, late) = oneshot();
        self.local.borrow_mut().insert(id, (deadline, answer));
        self.watch_until(deadline);
        let inner = self.clone();
        // To its end, as a remote one would. Made where it stays: it is large.
        let mut handled = self.world.persist(async move {
            let reply = inner.service.handle(inner.identity.host, request).await;
            let in_time = inner.local.borrow_mut().remove(&id).is_some();
            inner.count(|c| c.replies_late += u64::from(!in_time));
            in_time.then_some(reply)
        });
        // Whatever wakes it now is not missed: the caller polls it again first.
        match Pin::new(&mut handled).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(reply)) => Pending::Ready(Some(Ok(reply))),
            // The caller has been answered meanwhile.
            Poll::Ready(None) => Pending::Waiting(late),
            Poll::Pending => Pending::Local(Some(handled), late),
        }
    }

    /// Fails the calls whose deadline has passed; the earliest deadline that has not.
    fn expire(&self, now: Nanos) -> Nanos {
        let mut earliest = Nanos::NEVER;
        let mut failed = Vec::new();
        for peer in self.peers.borrow().values() {
            for lane in &peer.lanes {
                let mut calls = lane.calls.borrow_mut();
                failed.extend(calls.expire(now));
                earliest = earliest.min(calls.earliest());
            }
        }
        let mut local = self.local.borrow_mut();
        let late: Vec<u64> =
            local.iter().filter(|(_, call)| call.0 <= now).map(|(&id, _)| id).collect();
        for id in late {
            let (_, answer) = local.remove(&id).expect("just seen");
            failed.push((answer, CallError::Deadline));
        }
        earliest = local.values().map(|call| call.0).fold(earliest, Nanos::min);
        drop(local);
        self.tell(failed);
        earliest
    }
}

/// What a request takes of the window of its connection.
pub(crate) fn cost(body: u64, payload: u64, reply_bytes: u64) -> u64 {
    REQUEST_OVERHEAD + body + payload + reply_bytes.min(u64::from(PAYLOAD_MAX))
}

/// What a caller waits on.
enum Pending<W: World, T: 'static> {
    Ready(Option<Result<T, CallError>>),
    Waiting(Receiver<Result<T, CallError>>),
    /// This host's own service, while it works, and what comes first if that takes too long.
    Local(Option<Persist<W, Option<T>>>, Receiver<Result<T, CallError>>),
}

struct CallFuture<W: World, T: 'static>(Pending<W, T>);

impl<W: World, T> Unpin for CallFuture<W, T> {}

impl<W: World, T> Future for CallFuture<W, T> {
    type Output = Result<T, CallError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Pending::Ready(result) => Poll::Ready(result.take().expect("polled after its end")),
            // The answer is dropped unsent only with the whole of `Peers`.
            Pending::Waiting(receiver) => Pin::new(receiver)
                .poll(cx)
                .map(|answer| answer.unwrap_or(Err(CallError::Disconnected))),
            Pending::Local(handled, late) => {
                if let Some(working) = handled
                    && let Poll::Ready(done) = Pin::new(working).poll(cx)
                {
                    *handled = None;
                    if let Some(reply) = done {
                        return Poll::Ready(Ok(reply));
                    }
                }
                Pin::new(late).poll(cx).map(|error| error.unwrap_or(Err(CallError::Disconnected)))
            }
        }
    }
}

/// Looks after deadlines. One timer for all calls: it is set to the earliest deadline there was
/// when it last looked, so a call that is answered in time costs one comparison.
async fn watch_deadlines<W: World, S: Service>(inner: Rc<Inner<W, S>>) {
    while !inner.stopped.get() {
        let sooner = pin!(inner.watch_sooner.notified());
        let timer = async {
            match inner.watch_at.get() {
                // The next call or `stop` ends this.
                Nanos::NEVER => pending().await,
                at => inner.world.sleep_until(at).await,
            }
        };
        select(sooner, pin!(timer)).await;
        let now = inner.world.now();
        if now >= inner.watch_at.get() {
            // Calls made while it looks cannot be missed: there is no await between these.
            let earliest = inner.expire(now);
            inner.watch_at.set(earliest);
        }
    }
}

/// Pings every peer and closes the connections of those that have been silent for too long.
async fn heart<W: World, S: Service>(inner: Rc<Inner<W, S>>) {
    let mut tick = inner.world.now();
    loop {
        tick += PING_EVERY;
        {
            let stopping = pin!(inner.stopping.notified());
            let timer = pin!(inner.world.sleep_until(tick));
            select(stopping, timer).await;
        }
        if inner.stopped.get() {
            return;
        }
        let now = inner.world.now();
        // This host itself was paused: the silence may be its own. Judge from now on.
        let paused = now.since(tick) > PING_EVERY;
        if paused {
            tick = now;
        }
        let peers: Vec<_> = inner.peers.borrow().values().cloned().collect();
        for peer in peers {
            inner.beat(&peer, now, paused);
        }
    }
}

impl<W: World, S: Service> Inner<W, S> {
    fn beat(&self, peer: &Peer<W, S>, now: Nanos, paused: bool) {
        let linked = peer.lanes.iter().any(|l| l.link.borrow().is_some())
            || peer.accepted.borrow().iter().any(Option::is_some);
        if paused || !linked {
            peer.silent_since.set(now);
        } else if now.since(peer.silent_since.get()) >= LOST_AFTER {
            self.count(|c| c.peers_lost += 1);
            self.close_all(peer, "silent for too long");
            return;
        }
        for lane in Lane::ALL {
            let out = &peer.lanes[lane as usize];
            let Some(link) = out.link.borrow().clone() else { continue };
            let waits = out.calls.borrow().awaits_replies();
            if paused || !waits {
                link.heard.set(now);
            } else if now.since(link.heard.get()) >= LANE_LOST_AFTER {
                self.lane_down(peer, lane, link.serial);
                continue;
            }
            if waits || lane == Lane::Control {
                // The id is the moment: the answer tells the round trip.
                let head = FrameHead::new(link.version, FrameKind::Ping, now.0, &[]);
                self.send(&link.conn, head, Vec::new(), Vec::new());
            }
        }
    }
}
