//! All peers of this host: who they are, how they are, and calls to them.
//!
//! Tasks: one accepts connections; one per accepted connection serves it (`serve`); one per
//! (peer, lane) opens the connection out and reads its replies (`dial`); one pings and finds the
//! silent (`heartbeat`); one watches the deadlines of all calls (`calls`).

use crate::calls::{self, CallFuture, PendingCall};
use crate::error::{CallError, PeerState, TransportCounters};
use crate::identity::{Identity, Twin};
use crate::message::{Message, Service};
use crate::state::TransportState;
use crate::{dial, heartbeat, serve};
use atoll_format::id::HostId;
use atoll_world::sync::Notify;
use atoll_world::{Lane, Nanos, World};
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

    /// From now on `host` is connected to at one of `endpoints` (first is preferred), again and
    /// again until it works, on all lanes. Replaces its endpoints if it was known.
    /// This host itself needs none.
    pub fn set_peer(&self, host: HostId, endpoints: Vec<String>) {
        let state = &self.0;
        if host == state.identity.host || state.stopped.get() {
            return;
        }
        let Some(peer) = state.peer_or_new(host) else { return };
        if *peer.endpoints.borrow() == endpoints {
            return;
        }
        *peer.endpoints.borrow_mut() = endpoints;
        peer.kick.notify_all();
        if !peer.dialled.replace(true) {
            for lane in Lane::ALL {
                state.world.spawn(dial::run(state.clone(), peer.clone(), lane));
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
        assert!(request.may_take(lane), "a request on the {lane:?} lane");
        let pending = if self.0.stopped.get() {
            PendingCall::Ready(Some(Err(self.0.unreachable(CallError::Unreachable))))
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
        let connected = up(Lane::Control) && up(Lane::Data);
        let is_known = peer.incarnation.get().is_some() && peer.last_heard.get().is_some();
        assert!(is_known || !connected, "connected to {host}, of which nothing was heard");
        PeerState {
            connected,
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
