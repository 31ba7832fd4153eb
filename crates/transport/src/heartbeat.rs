//! Pings, by which silent peers and connections that carry nothing any more are found.

use crate::limits::{LANE_LOST_AFTER, LOST_AFTER, PEER_IDLE, PING_EVERY};
use crate::message::Service;
use crate::state::{Peer, TransportState};
use atoll_format::frame::{FrameHead, FrameKind};
use atoll_world::{Lane, Nanos, World};
use futures_util::future::select;
use std::pin::pin;
use std::rc::Rc;

/// Pings every peer and closes the connections of those that have been silent for too long.
pub(crate) async fn run<W: World, S: Service>(state: Rc<TransportState<W, S>>) {
    let mut tick = state.world.now();
    loop {
        tick += PING_EVERY;
        {
            let stopping = pin!(state.stopping.notified());
            let timer = pin!(state.world.sleep_until(tick));
            select(stopping, timer).await;
        }
        if state.stopped.get() {
            return;
        }
        let now = state.world.now();
        // This host itself was paused: the silence may be its own. Judge from now on.
        let paused = now.since(tick) > PING_EVERY;
        if paused {
            tick = now;
        }
        let peers: Vec<_> = state.peers.borrow().values().cloned().collect();
        for peer in peers {
            if state.is_idle(&peer, now) {
                state.peers.borrow_mut().remove(&peer.addr);
                state.part(&peer, false, "idle");
            } else {
                state.beat(&peer, now, paused);
            }
        }
        state.audit();
    }
}

impl<W: World, S: Service> TransportState<W, S> {
    /// Whether nobody has asked a peer for long, nor it this shard.
    fn is_idle(&self, peer: &Peer<W, S>, now: Nanos) -> bool {
        if peer.wanted.take() {
            peer.wanted_at.set(now);
        }
        let is_asked = peer.lanes.iter().any(|lane| !lane.calls.borrow().is_idle());
        let asks = peer.accepted.borrow().iter().any(Option::is_some);
        let is_recent = now.since(peer.wanted_at.get()) < PEER_IDLE;
        peer.dialled.get() && !(self.is_kept(peer.addr) || is_asked || asks || is_recent)
    }

    fn beat(&self, peer: &Peer<W, S>, now: Nanos, paused: bool) {
        let linked = peer.lanes.iter().any(|l| l.link.borrow().is_some())
            || peer.accepted.borrow().iter().any(Option::is_some);
        if paused || !linked {
            peer.silent_since.set(now);
        } else if now.since(peer.silent_since.get()) >= LOST_AFTER {
            self.count(|c| c.peers_lost += 1);
            self.close_all(peer, false, "silent for too long");
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
