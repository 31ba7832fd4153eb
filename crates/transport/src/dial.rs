//! The way out: to a peer that is asked, opens the connection of each lane, again and again, and
//! reads its replies.
//!
//! ```text
//!   opening --ok--> up --lost--> opening (at once if it had lived long, else after a pause)
//!      |  ^
//!   failed |  pause: BACKOFF_MIN doubling to BACKOFF_MAX, times 0.5..1; ended by new endpoints,
//!      +--+          and by a new life of a peer that could not be reached
//! ```

use crate::error::CallError;
use crate::limits::{
    BACKOFF_FORGOTTEN_AFTER, BACKOFF_MAX, BACKOFF_MIN, CONNECT_WITHIN, CPU_PER_FRAME, CPU_PER_KIB,
};
use crate::message::{Message, Service};
use crate::outgoing::{Found, Window};
use crate::serve::is_somebody_else;
use crate::state::{ConnOf, Link, Peer, TransportState};
use atoll_format::frame::{
    FrameHead, FrameKind, Hello, VERSION_HANDSHAKE, VERSION_MAX, VERSION_MIN,
};
use atoll_format::id::Addr;
use atoll_world::{Conn, Lane, Nanos, Net, Packet, Stage, World};
use futures_util::future::select;
use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::rc::Rc;

impl<W: World, S: Service> TransportState<W, S> {
    /// The peer at that address, which is connected to from now on; none if its host is not known,
    /// or has no such shard, as far as is known, or there are too many.
    pub(crate) fn wanted(self: &Rc<Self>, addr: Addr) -> Option<Rc<Peer<W, S>>> {
        let known = self.peers.borrow().get(&addr).filter(|peer| peer.dialled.get()).cloned();
        let peer = match known {
            Some(peer) => peer,
            None => self.dial(addr)?,
        };
        peer.wanted.set(true);
        Some(peer)
    }

    /// Begins to connect to a peer, if it is known how.
    pub(crate) fn dial(self: &Rc<Self>, addr: Addr) -> Option<Rc<Peer<W, S>>> {
        let endpoints = match self.identity.is_sibling(addr) {
            true => Vec::new(),
            false => self.hosts.borrow().get(&addr.host)?.clone(),
        };
        if self.stopped.get() {
            return None;
        }
        let peer = self.peer_or_new(addr)?;
        if *peer.endpoints.borrow() != endpoints {
            *peer.endpoints.borrow_mut() = endpoints;
            peer.kick.notify_all();
        }
        if !peer.dialled.replace(true) {
            for lane in Lane::ALL {
                self.world.spawn(run(self.clone(), peer.clone(), lane));
            }
        }
        Some(peer)
    }
}

/// Runs until the peer is removed.
async fn run<W: World, S: Service>(
    state: Rc<TransportState<W, S>>,
    peer: Rc<Peer<W, S>>,
    lane: Lane,
) {
    let mut backoff = BACKOFF_MIN;
    while !peer.removed.get() {
        let kicked = peer.kick.notified();
        match open(&state, &peer, lane).await {
            Ok((link, welcome)) if !peer.removed.get() => {
                let since = state.world.now();
                let window =
                    Window { requests: welcome.window_requests, bytes: welcome.window_bytes };
                state.met(&peer, welcome.incarnation);
                state.lane_up(&peer, lane, link.clone(), window);
                read(&state, &peer, lane, &link).await;
                state.lane_down(&peer, lane, link.serial);
                if state.world.now().since(since) >= BACKOFF_FORGOTTEN_AFTER {
                    backoff = BACKOFF_MIN;
                    continue;
                }
            }
            Ok((link, _)) => {
                link.conn.close();
                return;
            }
            Err(error) => {
                state.count(|c| c.connects_failed += 1);
                state.lane_failed(&peer, lane, error);
            }
        }
        // Jitter, so that hosts that lost each other at once do not come back at once.
        assert!((BACKOFF_MIN..=BACKOFF_MAX).contains(&backoff), "a pause of {backoff}");
        let span = Nanos(backoff.0 / 2 + state.world.random() % (backoff.0 / 2));
        assert!(BACKOFF_MIN / 2 <= span && span < BACKOFF_MAX, "{span} of a pause of {backoff}");
        backoff = (backoff * 2).min(BACKOFF_MAX);
        let timer = pin!(state.world.sleep(span));
        select(pin!(kicked), timer).await;
    }
}

/// A connection to the first endpoint that gives one, after its handshake.
async fn open<W: World, S: Service>(
    state: &TransportState<W, S>,
    peer: &Peer<W, S>,
    lane: Lane,
) -> Result<(Link<W>, Hello), CallError> {
    let sibling = state.identity.is_sibling(peer.addr).then_some(peer.addr.shard);
    let endpoints = match sibling {
        Some(shard) => vec![format!("shard {shard}")],
        None => peer.endpoints.borrow().clone(),
    };
    let mut error = CallError::Unreachable;
    for endpoint in endpoints {
        let until = state.world.now() + CONNECT_WITHIN;
        let connecting = async {
            match sibling {
                Some(shard) => state.world.net().connect_shard(shard, lane).await,
                None => state.world.net().connect(&endpoint, lane).await,
            }
        };
        let Ok(Ok(conn)) = state.world.timeout_at(until, connecting).await else { continue };
        // Whoever answers was alive after that, not when its answer comes.
        let serial = state.serial();
        let greeting = greet(state, peer, lane, &endpoint, &conn);
        let until = state.world.now() + CONNECT_WITHIN;
        match state.world.timeout_at(until, greeting).await {
            Ok(Ok(welcome)) if state.is_over(peer, welcome.incarnation, serial) => {}
            Ok(Ok(welcome)) => {
                let version = welcome.version_max;
                assert!(
                    (welcome.cluster, welcome.from) == (state.identity.cluster, peer.addr),
                    "host {} was greeted, and {} welcomes",
                    peer.addr,
                    welcome.from
                );
                let heard = Rc::new(Cell::new(state.world.now()));
                let life = welcome.incarnation;
                return Ok((Link { conn, serial, life, version, heard }, welcome));
            }
            Ok(Err(Some(refused))) => {
                state.refused(&endpoint, &refused);
                error = CallError::Refused(refused);
            }
            Ok(Err(None)) | Err(_) => {}
        }
        conn.close();
    }
    Err(error)
}

/// The peer's welcome; or why there is none, if it can be said.
async fn greet<W: World, S: Service>(
    state: &TransportState<W, S>,
    peer: &Peer<W, S>,
    lane: Lane,
    endpoint: &str,
    conn: &ConnOf<W>,
) -> Result<Hello, Option<String>> {
    let hello = state.hello(peer.addr, lane);
    let body = hello.encode();
    let head = FrameHead::new(VERSION_HANDSHAKE, FrameKind::Hello, 0, &body);
    state.send(conn, head, body, Vec::new());
    let refused = |e: io::Error| {
        (e.kind() == io::ErrorKind::PermissionDenied).then(|| format!("{endpoint}: {e}"))
    };
    let packet = conn.recv().await.map_err(refused)?;
    let head = state.checked(&packet).ok_or(None)?;
    state.heard(peer, head.load);
    match head.kind {
        FrameKind::Refuse if head.request_id == 0 => {
            let text = String::from_utf8_lossy(&packet.body);
            return Err(Some(format!("{endpoint} refused the connection: {text}")));
        }
        FrameKind::Welcome => {}
        _ => {
            state.count(|c| c.frames_bad += 1);
            return Err(None);
        }
    }
    let welcome = Hello::decode(&packet.body).map_err(|e| Some(format!("{endpoint}: {e}")))?;
    let me = &state.identity;
    if welcome.cluster != me.cluster {
        return Err(Some(format!(
            "{endpoint} is host '{}' of cluster {}, this is host '{}' of cluster {}",
            welcome.name, welcome.cluster, me.name, me.cluster
        )));
    }
    if welcome.from != peer.addr || welcome.to != me.addr() {
        return Err(Some(format!(
            "{endpoint} is host '{}' ({}), and host {} was looked for",
            welcome.name, welcome.from, peer.addr
        )));
    }
    if let Some(why) = is_somebody_else(conn, &welcome) {
        return Err(Some(format!("{endpoint}: {why}")));
    }
    let version = welcome.version_max;
    if welcome.version_min != version || !(VERSION_MIN..=VERSION_MAX).contains(&version) {
        return Err(Some(format!(
            "{endpoint} chose wire version {version}, which host '{}' does not speak",
            me.name
        )));
    }
    if welcome.lane != lane as u8 || welcome.window_requests == 0 || welcome.window_bytes == 0 {
        return Err(Some(format!("{endpoint} answered with another lane or an empty window")));
    }
    Ok(welcome)
}

/// Reads what the peer answers until the connection ends.
async fn read<W: World, S: Service>(
    state: &TransportState<W, S>,
    peer: &Peer<W, S>,
    lane: Lane,
    link: &Link<W>,
) {
    while let Ok(packet) = link.conn.recv().await {
        let Some(head) = state.checked(&packet) else { return };
        state.heard_over(link, peer, head.load);
        link.heard.set(state.world.now());
        let kib = u64::from(head.payload_len >> 10);
        state.world.charge(CPU_PER_FRAME + CPU_PER_KIB * kib).await;
        let in_place = match head.kind {
            FrameKind::Reply if head.version == link.version => {
                on_answer(state, peer, lane, &head, packet, link)
            }
            FrameKind::Refuse if head.request_id != 0 => {
                on_answer(state, peer, lane, &head, packet, link)
            }
            FrameKind::Pong if head.version == link.version => {
                // On the other lanes it waits behind data.
                if lane == Lane::Control {
                    peer.round_trip.set(Some(state.world.now().since(Nanos(head.request_id))));
                }
                true
            }
            FrameKind::Goodbye => return state.on_goodbye(peer, link, &head),
            _ => false,
        };
        if !in_place {
            state.count(|c| c.frames_bad += 1);
            return;
        }
    }
}

/// A request was answered. False: no such request is open.
fn on_answer<W: World, S: Service>(
    state: &TransportState<W, S>,
    peer: &Peer<W, S>,
    lane: Lane,
    head: &FrameHead,
    packet: Packet,
    link: &Link<W>,
) -> bool {
    // The connection may have been given up while this packet was on its way through: then the
    // ids are another connection's.
    if !state.is_current(peer, lane, link.serial) {
        return true;
    }
    let found = peer.lanes[lane as usize].calls.borrow_mut().on_reply(head.request_id);
    match found {
        Found::Caller(answer, begun) => {
            state.world.end_stage(Stage::Peer, begun);
            let result = if head.kind == FrameKind::Refuse {
                Err(String::from_utf8_lossy(&packet.body).into_owned())
            } else {
                S::Reply::decode(head.message_kind, &packet.body, packet.payload)
                    .map_err(|e| format!("the reply was not understood: {e}"))
            };
            answer.send(result.map_err(|text| {
                state.count(|c| c.messages_refused += 1);
                CallError::Refused(text)
            }));
        }
        Found::Late => state.count(|c| c.replies_late += 1),
        Found::Unknown => return false,
    }
    state.pump(peer, lane);
    if state.world.audits() {
        peer.lanes[lane as usize].calls.borrow().audit();
    }
    true
}
