//! What the tasks of a transport share: the table of peers, with the calls and connections of each,
//! and the totals.
//!
//! A peer is a shard. Which ones there are is not known: those that are asked for are connected to,
//! of the hosts that are known; shard 0 looks after shard 0 of every host in any case.
//!
//! Invariants: at most [`PEERS_MAX`] peers, none of them this shard; a peer has at most one
//! connection a lane in each direction, all of one life of its process; no unanswered call has an
//! earlier deadline than the one that the watcher of deadlines looks at next.

use crate::error::{CallError, TransportCounters};
use crate::identity::{Identity, Refusal, Twin};
use crate::limits::{
    PEERS_MAX, REFUSALS_MAX, TWINS_MAX, WINDOW_BYTES, WINDOW_BYTES_SMALL, WINDOW_REQUESTS,
    WINDOW_REQUESTS_SMALL,
};
use crate::message::Service;
use crate::outgoing::{Outgoing, ReplySender, Window};
use atoll_format::frame::Hello;
use atoll_format::id::{Addr, HostId, Incarnation};
use atoll_world::sync::Notify;
use atoll_world::{Lane, Nanos, Net, World};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A connection in the world `W`.
pub(crate) type ConnOf<W> = <<W as World>::Net as Net>::Conn;

/// What all tasks of one transport share.
pub(crate) struct TransportState<W: World, S: Service> {
    pub(crate) world: W,
    pub(crate) identity: Identity,
    pub(crate) service: S,
    /// Where each known host listens.
    pub(crate) hosts: RefCell<BTreeMap<HostId, Vec<String>>>,
    /// Hosts that belong to the cluster no more.
    pub(crate) removed: RefCell<BTreeSet<HostId>>,
    pub(crate) peers: RefCell<BTreeMap<Addr, Rc<Peer<W, S>>>>,
    pub(crate) changed: Notify,
    pub(crate) counters: RefCell<TransportCounters>,
    pub(crate) stopped: Cell<bool>,
    pub(crate) stopping: Notify,
    /// Calls to this host's own service that are not answered yet.
    pub(crate) local: RefCell<LocalCalls<S::Reply>>,
    pub(crate) local_next: Cell<u64>,
    /// When the watcher of deadlines looks next.
    pub(crate) watch_at: Cell<Nanos>,
    pub(crate) watch_sooner: Notify,
    /// Requests of peers being handled.
    pub(crate) serving: Cell<u32>,
    pub(crate) handshakes: Cell<usize>,
    serial: Cell<u64>,
    pub(crate) twins: RefCell<Vec<Twin>>,
    pub(crate) refusals: RefCell<Vec<Refusal>>,
}

/// By number: the deadline and who waits.
type LocalCalls<T> = BTreeMap<u64, (Nanos, ReplySender<T>)>;

/// One other shard, of another host or of this one.
pub(crate) struct Peer<W: World, S: Service> {
    pub(crate) addr: Addr,
    /// Empty: it connected to us but nobody has told us where it listens.
    pub(crate) endpoints: RefCell<Vec<String>>,
    /// Its connections out are being looked after.
    pub(crate) dialled: Cell<bool>,
    /// Somebody has asked it, or for it, since the last beat.
    pub(crate) wanted: Cell<bool>,
    /// The last beat before which somebody had.
    pub(crate) wanted_at: Cell<Nanos>,
    pub(crate) removed: Cell<bool>,
    /// Ends the pause before the next attempt to connect.
    pub(crate) kick: Notify,
    pub(crate) lanes: [LaneOut<W, S>; 3],
    /// What it opened to us.
    pub(crate) accepted: RefCell<[Option<Link<W>>; 3]>,
    pub(crate) incarnation: Cell<Option<Incarnation>>,
    /// The life that has said that it stops.
    pub(crate) left: Cell<Option<Incarnation>>,
    /// The life that has spoken behind a handshake last, the first connection over which it did,
    /// and the life before it.
    pub(crate) spoke: Cell<Option<(Incarnation, u64)>>,
    pub(crate) spoke_before: Cell<Option<Incarnation>>,
    pub(crate) last_heard: Cell<Option<Nanos>>,
    /// Silence is counted from here.
    pub(crate) silent_since: Cell<Nanos>,
    pub(crate) round_trip: Cell<Option<Nanos>>,
    pub(crate) load: Cell<u8>,
}

/// The calls of one lane and the connection they go over.
pub(crate) struct LaneOut<W: World, S: Service> {
    pub(crate) calls: RefCell<Outgoing<S::Reply>>,
    pub(crate) link: RefCell<Option<Link<W>>>,
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

impl<W: World, S: Service> TransportState<W, S> {
    pub(crate) fn new(world: W, identity: Identity, service: S) -> Self {
        Self {
            world,
            identity,
            service,
            hosts: RefCell::default(),
            removed: RefCell::default(),
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
            refusals: RefCell::default(),
        }
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut TransportCounters)) {
        change(&mut self.counters.borrow_mut());
    }

    pub(crate) fn serial(&self) -> u64 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    pub(crate) fn unreachable(&self, error: CallError) -> CallError {
        self.count(|c| c.unreachable += u64::from(error == CallError::Unreachable));
        error
    }

    /// What this host says of itself to `to`.
    pub(crate) fn hello(&self, to: Addr, lane: Lane) -> Hello {
        self.identity.hello(to, lane)
    }

    /// Remembers that two lives of one host show themselves.
    pub(crate) fn twin(&self, twin: Twin) {
        let mut twins = self.twins.borrow_mut();
        if twins.len() < TWINS_MAX && !twins.contains(&twin) {
            twins.push(twin);
        }
        assert!(twins.len() <= TWINS_MAX, "{} hosts that live twice", twins.len());
    }

    /// Counts a connection that was refused, and remembers it for people.
    pub(crate) fn refused(&self, with: &str, why: &str) {
        self.count(|c| c.handshakes_refused += 1);
        let mut refusals = self.refusals.borrow_mut();
        let refusal = Refusal { with: with.into(), why: why.into() };
        if refusals.len() < REFUSALS_MAX && !refusals.contains(&refusal) {
            refusals.push(refusal);
        }
        assert!(refusals.len() <= REFUSALS_MAX, "{} refusals are remembered", refusals.len());
    }

    /// What the peers may have unanswered here at once, over each connection.
    pub(crate) fn window(&self) -> Window {
        let bound = |usual, small| self.world.bound(usual, small) as u64;
        let window = Window {
            requests: bound(WINDOW_REQUESTS as usize, WINDOW_REQUESTS_SMALL) as u32,
            bytes: bound(WINDOW_BYTES as usize, WINDOW_BYTES_SMALL),
        };
        assert!(
            window.requests <= WINDOW_REQUESTS && window.bytes >= WINDOW_BYTES_SMALL as u64,
            "a window of {} requests, {} bytes",
            window.requests,
            window.bytes
        );
        window
    }

    /// How busy this host is, 0-255.
    pub(crate) fn load(&self) -> u8 {
        let load = u64::from(self.serving.get()) * 255 / u64::from(WINDOW_REQUESTS);
        u8::try_from(load).unwrap_or(u8::MAX)
    }

    /// Whether a peer is connected to although nobody asks it: the cluster's hosts look after each
    /// other, one shard of each.
    pub(crate) fn is_kept(&self, addr: Addr) -> bool {
        self.identity.shard == 0 && addr.shard == 0
    }

    /// The peer at that address, made if it is new; none if there are too many.
    pub(crate) fn peer_or_new(&self, addr: Addr) -> Option<Rc<Peer<W, S>>> {
        let mut peers = self.peers.borrow_mut();
        if let Some(peer) = peers.get(&addr) {
            return Some(peer.clone());
        }
        if peers.len() >= PEERS_MAX {
            return None;
        }
        assert_ne!(addr, self.identity.addr(), "a shard is no peer of itself");
        assert!(!self.stopped.get(), "a peer that nobody would part with");
        let lane = || LaneOut { calls: RefCell::new(Outgoing::new()), link: RefCell::new(None) };
        let peer = Rc::new(Peer {
            addr,
            endpoints: RefCell::default(),
            dialled: Cell::new(false),
            wanted: Cell::new(true),
            wanted_at: Cell::new(self.world.now()),
            removed: Cell::new(false),
            kick: Notify::default(),
            lanes: [lane(), lane(), lane()],
            accepted: RefCell::new([None, None, None]),
            incarnation: Cell::new(None),
            left: Cell::new(None),
            spoke: Cell::new(None),
            spoke_before: Cell::new(None),
            last_heard: Cell::new(None),
            silent_since: Cell::new(self.world.now()),
            round_trip: Cell::new(None),
            load: Cell::new(0),
        });
        peers.insert(addr, peer.clone());
        assert!(peers.len() <= PEERS_MAX, "{} peers", peers.len());
        Some(peer)
    }

    /// What must hold of the table of peers at every moment, looked at now and then in simulation
    /// (see [`World::audits`]).
    pub(crate) fn audit(&self) {
        if !self.world.audits() {
            return;
        }
        let (now, watch_at) = (self.world.now(), self.watch_at.get());
        let peers = self.peers.borrow();
        let removed = self.removed.borrow();
        for (&host, peer) in peers.iter() {
            assert!(!removed.contains(&host.host), "{host} belongs to the cluster no more");
            assert_eq!(host, peer.addr, "a peer under another one's id");
            assert!(!peer.removed.get(), "{host} was removed and is in the table");
            assert!(peer.silent_since.get() <= now, "{host} was heard at a moment to come");
            let spoke = peer.spoke.get().map_or(0, |(_, serial)| serial);
            assert!(spoke <= self.serial.get(), "{host} spoke over {spoke}, not opened yet");
            for (out, accepted) in peer.lanes.iter().zip(peer.accepted.borrow().iter()) {
                let (link, calls) = (out.link.borrow(), out.calls.borrow());
                assert_eq!(link.is_some(), calls.is_up(), "calls to {host} and their connection");
                for link in link.iter().chain(accepted) {
                    let life = peer.incarnation.get();
                    assert_eq!(Some(link.life), life, "{host} is connected as two lives");
                    assert!(link.heard.get() <= now, "{host} was heard at a moment to come");
                }
                assert!(watch_at <= calls.earliest(), "a call to {host} ends unseen");
                calls.audit();
            }
        }
        let local = self.local.borrow();
        let last = local.last_key_value().map_or(0, |(&id, _)| id + 1);
        assert!(last <= self.local_next.get(), "call {last} to this host was not made yet");
        let earliest = local.values().map(|call| call.0).min();
        assert!(earliest.is_none_or(|at| watch_at <= at), "a call to this host ends unseen");
    }
}

impl<W: World, S: Service> Peer<W, S> {
    /// Whether there is a connection of that lane, in either direction.
    pub(crate) fn is_linked(&self, lane: Lane) -> bool {
        let lane = lane as usize;
        self.lanes[lane].link.borrow().is_some() || self.accepted.borrow()[lane].is_some()
    }
}
