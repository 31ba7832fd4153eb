//! All peers of this host: who they are, how they are, and calls to them.
//!
//! Tasks: one accepts connections; one per accepted connection serves it (`serve`); one per
//! (peer, lane) opens the connection out and reads its replies (`dial`); one pings and finds the
//! silent (`heartbeat`); one watches the deadlines of all calls (`calls`).

use crate::calls::{self, CallFuture, PendingCall};
use crate::error::{CallError, PeerState, TransportCounters};
use crate::identity::{Identity, Refusal, Twin};
use crate::message::{Message, Service};
use crate::state::TransportState;
use crate::{heartbeat, serve};
use atoll_format::id::{Addr, HostId};
use atoll_world::sync::Notify;
use atoll_world::{Lane, Nanos, World};
use std::collections::BTreeSet;
use std::future::Future;
use std::rc::Rc;

/// The peers of this host, and its own service. Clones are the same.
pub struct Peers<W: World, S: Service>(Rc<TransportState<W, S>>);

impl<W: World, S: Service> Clone for Peers<W, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<W: World, S: Service> Peers<W, S> {
    /// Begins to accept connections and to answer requests with `service`. Ends with
    /// [`Peers::stop`].
    pub fn start(world: W, identity: Identity, service: S) -> Self {
        let state = Rc::new(TransportState::new(world.clone(), identity, service));
        world.spawn(serve::accept(state.clone()));
        world.spawn(heartbeat::run(state.clone()));
        world.spawn(calls::watch_deadlines(state.clone()));
        Self(state)
    }

    /// From now on `host` is known: it listens at `endpoints` (first is preferred). A shard of it
    /// that is asked is connected to, again and again until it works, on all lanes; shard 0
    /// connects to shard 0 at once. Replaces its endpoints if it was known. This host itself needs
    /// none.
    pub fn set_peer(&self, host: HostId, endpoints: Vec<String>) {
        let state = &self.0;
        if host == state.identity.host || state.stopped.get() || self.is_removed(host) {
            return;
        }
        state.hosts.borrow_mut().insert(host, endpoints);
        let of_host = Addr::from(host)..=Addr { host, shard: u8::MAX };
        let mut addrs: Vec<Addr> = {
            let peers = state.peers.borrow();
            let dialled = peers.range(of_host).filter(|(_, peer)| peer.dialled.get());
            dialled.map(|(&addr, _)| addr).collect()
        };
        if state.is_kept(host.into()) && !addrs.contains(&host.into()) {
            addrs.push(host.into());
        }
        for addr in addrs {
            state.dial(addr);
        }
    }

    /// These hosts, and no others, belong to the cluster no more: as [`remove_peer`] does, and they
    /// are refused from now on, whatever certificate they show. This host itself is not looked for.
    ///
    /// [`remove_peer`]: Self::remove_peer
    pub fn set_removed(&self, mut removed: BTreeSet<HostId>) {
        removed.remove(&self.0.identity.host);
        let before = self.0.removed.replace(removed.clone());
        for &host in removed.difference(&before) {
            self.remove_peer(host);
        }
    }

    /// Whether a host belongs to the cluster no more, as far as was said.
    pub fn is_removed(&self, host: HostId) -> bool {
        self.0.removed.borrow().contains(&host)
    }

    /// Forgets `host`: its connections are closed, calls in flight fail as `Disconnected`, those
    /// that wait as `Unreachable`. If it connects again it is served again: who does not belong to
    /// the cluster any more is said with [`set_removed`](Self::set_removed).
    pub fn remove_peer(&self, host: HostId) {
        self.0.hosts.borrow_mut().remove(&host);
        let of_host = |addr: &Addr| addr.host == host && !self.0.identity.is_sibling(*addr);
        let addrs: Vec<Addr> = self.0.peers.borrow().keys().copied().filter(of_host).collect();
        for addr in addrs {
            let peer = self.0.peers.borrow_mut().remove(&addr);
            self.0.part(&peer.expect("just seen"), false, "removed");
        }
    }

    /// Asks `to`. The request is queued (or, if `to` is this shard, its handler polled once)
    /// before this returns, so that requests on one (peer, lane) are delivered in the order of
    /// the calls. The request is sent and carried out even if the future is dropped.
    ///
    /// No borrow of state that the service needs may be held while this is called.
    ///
    /// # Errors
    /// See [`CallError`]: only `Disconnected` and `Deadline` leave the outcome open.
    pub fn call<A: Into<Addr>>(
        &self,
        to: A,
        lane: Lane,
        request: S::Request,
        deadline: Nanos,
    ) -> impl Future<Output = Result<S::Reply, CallError>> + 'static + use<W, S, A> {
        let to = to.into();
        assert!(request.may_take(lane), "a request on the {lane:?} lane");
        let pending = if self.0.stopped.get() {
            PendingCall::Ready(Some(Err(self.0.unreachable(CallError::Unreachable))))
        } else if to == self.0.identity.addr() {
            self.0.call_self(request, deadline)
        } else {
            self.0.call_peer(to, lane, request, deadline)
        };
        CallFuture(pending)
    }

    /// What is known of that shard now. Whoever asks is interested in it: it is connected to.
    pub fn peer(&self, addr: impl Into<Addr>) -> PeerState {
        let addr = addr.into();
        let peer = self.0.wanted(addr).or_else(|| self.0.peers.borrow().get(&addr).cloned());
        let Some(peer) = peer else { return PeerState::default() };
        let up = |lane: Lane| peer.lanes[lane as usize].calls.borrow().is_up();
        let connected = up(Lane::Control) && up(Lane::Data);
        let is_known = peer.incarnation.get().is_some() && peer.last_heard.get().is_some();
        assert!(is_known || !connected, "connected to {addr}, of which nothing was heard");
        PeerState {
            connected,
            incarnation: peer.incarnation.get(),
            left: peer.left.get().is_some() && peer.left.get() == peer.incarnation.get(),
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

    /// Connections that were refused since the last call, by either end; bounded, each once.
    pub fn take_refusals(&self) -> Vec<Refusal> {
        self.0.refusals.take()
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
            self.0.part(&peer, true, "stopping");
        }
        let local = self.0.local.take();
        for (_, answer) in local.into_values() {
            answer.send(Err(CallError::Disconnected));
        }
        self.0.stopping.notify_all();
        self.0.watch_sooner.notify_all();
    }
}
