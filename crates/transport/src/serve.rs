//! The way in: accepts connections, checks who is there, and has requests answered.
//!
//! Requests are handled in one task per connection. Each new handler is polled once, in the order
//! of arrival, before the next packet is taken; replies of one turn leave together.

use crate::identity::Twin;
use crate::limits::{ACCEPT_PAUSE, CONNECT_WITHIN, CPU_PER_FRAME, CPU_PER_KIB, HANDSHAKES_MAX};
use crate::message::{Message, Service, audit_encoded};
use crate::outgoing::cost;
use crate::state::{ConnOf, Link, Peer, TransportState};
use atoll_format::frame::{
    FEATURES, FrameHead, FrameKind, Hello, VERSION_HANDSHAKE, VERSION_MAX, VERSION_MIN,
};
use atoll_format::id::Addr;
use atoll_world::task_set::TaskSet;
use atoll_world::{Conn, Lane, Nanos, Net, Packet, Stage, World};
use futures_util::future::{Either, poll_fn, select};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

/// Accepts connections until the end.
pub(crate) async fn accept<W: World, S: Service>(state: Rc<TransportState<W, S>>) {
    loop {
        let next = {
            let stopping = pin!(state.stopping.notified());
            if state.stopped.get() {
                return;
            }
            match select(stopping, pin!(state.world.net().accept())).await {
                Either::Left(_) => return,
                Either::Right((next, _)) => next,
            }
        };
        match next {
            Ok(conn) if state.handshakes.get() < HANDSHAKES_MAX => {
                state.handshakes.set(state.handshakes.get() + 1);
                assert!(state.handshakes.get() <= HANDSHAKES_MAX, "handshakes under way");
                state.world.spawn(welcome(state.clone(), conn));
            }
            Ok(conn) => conn.close(),
            Err(_) => state.world.sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Shakes hands on a new connection, then serves it.
async fn welcome<W: World, S: Service>(state: Rc<TransportState<W, S>>, conn: ConnOf<W>) {
    let until = state.world.now() + CONNECT_WITHIN;
    let first = state.world.timeout_at(until, conn.recv()).await;
    assert!(state.handshakes.get() > 0, "a handshake that was not counted ends");
    state.handshakes.set(state.handshakes.get() - 1);
    if state.stopped.get() {
        return conn.close();
    }
    let packet = match first {
        Ok(Ok(packet)) => packet,
        Ok(Err(e)) => {
            if e.kind() == io::ErrorKind::PermissionDenied {
                state.refused(&whence(&conn), &e.to_string());
            }
            return conn.close();
        }
        Err(_) => return conn.close(),
    };
    let Some(head) = state.checked(&packet) else { return conn.close() };
    let hello = match Hello::decode(&packet.body) {
        Ok(hello) if head.kind == FrameKind::Hello => hello,
        _ => {
            state.count(|c| c.frames_bad += 1);
            return conn.close();
        }
    };
    let me = &state.identity;
    if let Some(why) = is_somebody_else(&conn, &hello) {
        return refuse(&state, &conn, &why).await;
    }
    if state.removed.borrow().contains(&hello.from.host) {
        let why = format!(
            "host '{}' ({}) was removed from the cluster, says host '{}'",
            hello.name, hello.from.host, me.name
        );
        return refuse(&state, &conn, &why).await;
    }
    let is_sibling = me.is_sibling(hello.from) && hello.incarnation == me.incarnation;
    let is_ours = (hello.cluster, hello.to.host) == (me.cluster, me.host);
    if is_ours && hello.from.host == me.host && !is_sibling {
        return answer_twin(&state, &conn, hello).await;
    }
    if is_ours && me.is_sibling(hello.to) {
        // A host listens once for all its shards.
        let handed = state.world.net().hand_over(&conn, packet, hello.to.shard);
        if handed.is_err() {
            conn.close();
        }
        return;
    }
    let (version, lane) = match judge(&state, &hello) {
        Ok(agreed) => agreed,
        Err(why) => return refuse(&state, &conn, &why).await,
    };
    assert!(
        hello.cluster == me.cluster && hello.to == me.addr() && hello.from != me.addr(),
        "host {} of cluster {} is welcome here",
        hello.from,
        hello.cluster
    );
    let Some(peer) = state.peer_or_new(hello.from) else {
        let why = format!("host '{}' knows too many hosts already", state.identity.name);
        return refuse(&state, &conn, &why).await;
    };
    let heard = Rc::new(Cell::new(state.world.now()));
    let (serial, life) = (state.serial(), hello.incarnation);
    let link = Link { conn: conn.clone(), serial, life, version, heard };
    state.met(&peer, hello.incarnation);
    state.heard(&peer, head.load);
    state.accepted(&peer, lane, link.clone());
    let answer = Hello {
        version_min: version,
        version_max: version,
        features: FEATURES & hello.features,
        window_requests: state.window().requests,
        window_bytes: state.window().bytes,
        ..state.hello(hello.from, lane)
    };
    let body = answer.encode();
    let head = FrameHead::new(VERSION_HANDSHAKE, FrameKind::Welcome, 0, &body);
    state.send(&conn, head, body, Vec::new());
    serve(&state, &peer, lane, &link).await;
}

/// Says so if the other end of a connection is not who has proved to be there.
pub(crate) fn is_somebody_else(conn: &impl Conn, them: &Hello) -> Option<String> {
    let (cluster, host) = conn.proven()?;
    ((cluster, host) != (them.cluster, them.from.host)).then(|| {
        format!(
            "host '{}' says that it is {} of cluster {}, and shows the certificate of {host} of \
             cluster {cluster}",
            them.name, them.from.host, them.cluster
        )
    })
}

/// The version and lane to use with this host; or why it is not talked to. Names both sides.
fn judge<W: World, S: Service>(
    state: &TransportState<W, S>,
    hello: &Hello,
) -> Result<(u16, Lane), String> {
    let (me, them) = (&state.identity, hello);
    if them.cluster != me.cluster {
        return Err(format!(
            "host '{}' is of cluster {}, host '{}' of cluster {}",
            me.name, me.cluster, them.name, them.cluster
        ));
    }
    if them.to != me.addr() {
        return Err(format!(
            "this is host '{}' ({}, shards: {}), and host '{}' was looking for {}",
            me.name, me.host, me.shards, them.name, them.to
        ));
    }
    let version = them.version_max.min(VERSION_MAX);
    if version < them.version_min.max(VERSION_MIN) {
        return Err(format!(
            "host '{}' speaks wire versions {VERSION_MIN} to {VERSION_MAX}, host '{}' {} to {}",
            me.name, them.name, them.version_min, them.version_max
        ));
    }
    let both = (VERSION_MIN.max(them.version_min), VERSION_MAX.min(them.version_max));
    assert!(both.0 <= version && version <= both.1, "version {version} of {both:?}");
    let lane = Lane::from_code(them.lane)
        .ok_or_else(|| format!("lane {} is unknown to host '{}'", them.lane, me.name))?;
    Ok((version, lane))
}

/// Another process asks as this host: it is told that this one lives, and nothing else.
async fn answer_twin<W: World, S: Service>(
    state: &TransportState<W, S>,
    conn: &ConnOf<W>,
    hello: Hello,
) {
    state.count(|c| c.handshakes_refused += 1);
    if hello.incarnation != state.identity.incarnation {
        let name = hello.name.chars().filter(|c| !c.is_control()).collect();
        state.twin(Twin::Refused { name, from: conn.peer() });
    }
    let body = state.hello(hello.from, Lane::Control).encode();
    let head = FrameHead::new(VERSION_HANDSHAKE, FrameKind::Welcome, 0, &body);
    state.send(conn, head, body, Vec::new());
    let until = state.world.now() + CONNECT_WITHIN;
    let _ = state.world.timeout_at(until, conn.recv()).await;
    conn.close();
}

/// Where a connection came from: without its port, which is another one each time.
fn whence(conn: &impl Conn) -> String {
    let peer = conn.peer();
    peer.rsplit_once(':').map_or(peer.as_str(), |(address, _)| address).to_owned()
}

/// Says why not, and gives the peer time to read it before the connection breaks.
async fn refuse<W: World, S: Service>(state: &TransportState<W, S>, conn: &ConnOf<W>, why: &str) {
    state.refused(&whence(conn), why);
    state.send_text(conn, VERSION_HANDSHAKE, FrameKind::Refuse, 0, why);
    let until = state.world.now() + CONNECT_WITHIN;
    let _ = state.world.timeout_at(until, conn.recv()).await;
    conn.close();
}

/// A handler at work.
struct Running<T> {
    id: u64,
    cost: u64,
    /// Of its data and its reply's.
    data: usize,
    begun: Option<Nanos>,
    handler: Pin<Box<dyn Future<Output = T>>>,
}

/// A handler has finished.
struct Done<T> {
    id: u64,
    cost: u64,
    data: usize,
    begun: Option<Nanos>,
    reply: T,
}

impl<T> Future for Running<T> {
    type Output = Done<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done<T>> {
        let Self { id, cost, data, begun, .. } = *self;
        self.handler.as_mut().poll(cx).map(|reply| Done { id, cost, data, begun, reply })
    }
}

/// One connection in, while it lives.
struct Serving<'a, W: World, S: Service> {
    state: &'a TransportState<W, S>,
    peer: &'a Peer<W, S>,
    link: &'a Link<W>,
    from: Addr,
    lane: Lane,
    running: RefCell<TaskSet<Running<S::Reply>>>,
    /// Requests and bytes of the window in use, as this side sees it.
    requests: Cell<u32>,
    bytes: Cell<u64>,
}

/// Answers the requests of a connection until it ends and every handler has.
async fn serve<W: World, S: Service>(
    state: &TransportState<W, S>,
    peer: &Rc<Peer<W, S>>,
    lane: Lane,
    link: &Link<W>,
) {
    let serving = Serving {
        state,
        peer,
        link,
        from: peer.addr,
        lane,
        running: RefCell::default(),
        requests: Cell::new(0),
        bytes: Cell::new(0),
    };
    {
        let mut reader = pin!(async {
            while let Ok(packet) = link.conn.recv().await {
                let Some(head) = state.checked(&packet) else { break };
                state.heard_over(link, peer, head.load);
                if serving.on_packet(&head, packet).await.is_err() {
                    break;
                }
            }
            link.conn.close();
            state.accepted_ended(peer, lane, link.serial);
        });
        let mut reading = true;
        poll_fn(|cx| {
            reading = reading && reader.as_mut().poll(cx).is_pending();
            loop {
                let next = serving.running.borrow_mut().poll_next(cx);
                match next {
                    Poll::Ready(Some(done)) => serving.finish(done),
                    Poll::Ready(None) if !reading => return Poll::Ready(()),
                    Poll::Ready(None) | Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await;
    }
    assert_eq!((serving.requests.get(), serving.bytes.get()), (0, 0), "every request was freed");
}

/// The connection is of no use any more.
struct Ended;

impl<W: World, S: Service> Serving<'_, W, S> {
    async fn on_packet(&self, head: &FrameHead, packet: Packet) -> Result<(), Ended> {
        let kib = u64::from(head.payload_len >> 10);
        self.state.world.charge(CPU_PER_FRAME + CPU_PER_KIB * kib).await;
        let in_place = head.version == self.link.version;
        match head.kind {
            FrameKind::Request if in_place => self.on_request(head, packet).await,
            FrameKind::Ping if in_place => {
                let pong = FrameHead::new(self.link.version, FrameKind::Pong, head.request_id, &[]);
                self.state.send(&self.link.conn, pong, Vec::new(), Vec::new());
                Ok(())
            }
            FrameKind::Goodbye => {
                self.state.on_goodbye(self.peer, self.link, head);
                Err(Ended)
            }
            _ => self.bad(),
        }
    }

    fn bad(&self) -> Result<(), Ended> {
        self.state.count(|c| c.frames_bad += 1);
        Err(Ended)
    }

    async fn on_request(&self, head: &FrameHead, packet: Packet) -> Result<(), Ended> {
        let (body, payload) = (u64::from(head.body_len), u64::from(head.payload_len));
        let id = head.request_id;
        let request = match S::Request::decode(head.message_kind, &packet.body, packet.payload) {
            Ok(request) => request,
            Err(e) => {
                let text = format!("message {}: {e}", head.message_kind);
                self.refuse(id, &text);
                return Ok(());
            }
        };
        let reply_bytes = request.reply_bytes();
        let cost = cost(body, payload, reply_bytes);
        let data = (payload + reply_bytes) as usize;
        let (requests, bytes) = (self.requests.get() + 1, self.bytes.get() + cost);
        let window = self.state.window();
        if requests > window.requests || bytes > window.bytes {
            // More than this side has ever allowed.
            return self.bad();
        }
        self.requests.set(requests);
        self.bytes.set(bytes);
        self.state.serving.set(self.state.serving.get() + 1);
        self.state.count(|c| c.requests_served += 1);
        let handler = Box::pin(self.state.service.handle(self.from, request));
        let begun = match self.lane {
            Lane::Data => {
                self.state.world.request_begins(data);
                self.state.world.stage(Stage::Serve)
            }
            _ => None,
        };
        let first =
            self.running.borrow_mut().push_polled(Running { id, cost, data, begun, handler });
        if let Poll::Ready(done) = first {
            self.finish(done);
        }
        let running = self.running.borrow().len();
        assert_eq!(running, self.requests.get() as usize, "handlers at work, requests counted");
        Ok(())
    }

    fn refuse(&self, id: u64, text: &str) {
        self.state.count(|c| c.messages_refused += 1);
        let text = format!("host '{}': {text}", self.state.identity.name);
        self.state.send_text(&self.link.conn, VERSION_HANDSHAKE, FrameKind::Refuse, id, &text);
    }

    /// Sends the reply, and with it the credit of its request.
    fn finish(&self, done: Done<S::Reply>) {
        let (requests, bytes) = (self.requests.get(), self.bytes.get());
        assert!(requests > 0 && bytes >= done.cost, "{requests} requests of {bytes} bytes");
        // Those of this connection are among those of all.
        assert!(self.state.serving.get() >= requests, "requests at work on this host");
        self.requests.set(requests - 1);
        self.bytes.set(bytes - done.cost);
        self.state.serving.set(self.state.serving.get() - 1);
        assert!(
            self.requests.get() > 0 || self.bytes.get() == 0,
            "{} bytes are left of no request",
            self.bytes.get()
        );
        if self.lane == Lane::Data {
            self.state.world.request_ends(done.data);
        }
        self.state.world.end_stage(Stage::Serve, done.begun);
        let message = done.reply.encode();
        if self.state.world.audits() {
            audit_encoded::<S::Reply>(&message);
        }
        let head = FrameHead::message(
            self.link.version,
            FrameKind::Reply,
            done.id,
            message.kind,
            &message.body,
            message.payload.iter().map(|p| &p[..]),
            message.payload_checked_by_receiver,
        );
        match head {
            Ok(head) => {
                self.state.send(&self.link.conn, head, message.body, message.payload);
            }
            Err(e) => self.refuse(done.id, &format!("the request was carried out, but: {e}")),
        }
    }
}
