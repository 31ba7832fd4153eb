//! The connections of the peers: what happens to them and to their calls when one comes, is heard
//! from, or goes.
//!
//! Invariants: a connection of a life that is over is closed before one of the next life is used;
//! calls are sent only on a connection that is up, within its window.

use crate::error::CallError;
use crate::identity::Twin;
use crate::message::Service;
use crate::outgoing::{ReplySender, Window};
use crate::state::{Link, Peer, TransportState};
use atoll_format::frame::{FOR_GOOD, FrameHead, FrameKind};
use atoll_format::id::Incarnation;
use atoll_world::{Conn, Lane, World, sometimes};
use std::rc::Rc;

impl<W: World, S: Service> TransportState<W, S> {
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
                self.twin(Twin::Alternates { host: peer.addr.host });
            }
        }
        let is_later = last.is_none_or(|(_, serial)| serial < link.serial);
        assert!(is_later, "connection {} of a life before {last:?}", link.serial);
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
            let is_linked = || Lane::ALL.into_iter().any(|lane| peer.is_linked(lane));
            let was_linked = is_linked();
            self.close_all(peer, false, "another life of this host has connected");
            assert!(!is_linked(), "a connection of {} outlives {last:?}", peer.addr);
            // It is up: nothing waits for the pause that the attempts to reach the last one took.
            // But where the last one was reached, there may be two: they are to have time to show.
            if !was_linked {
                peer.kick.notify_all();
            }
        }
        self.changed.notify_all();
    }

    /// A connection out is ready.
    pub(crate) fn lane_up(&self, peer: &Peer<W, S>, lane: Lane, link: Link<W>, window: Window) {
        let out = &peer.lanes[lane as usize];
        assert_eq!(peer.incarnation.get(), Some(link.life), "the life that shook hands last");
        assert!(!peer.removed.get(), "a connection to {}, which was removed", peer.addr);
        let before = out.link.borrow_mut().replace(link);
        assert!(before.is_none(), "two connections to {} on one lane", peer.addr);
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

    pub(crate) fn tell(&self, failed: Vec<(ReplySender<S::Reply>, CallError)>) {
        for (answer, error) in failed {
            self.count(|c| c.deadlines_missed += u64::from(error == CallError::Deadline));
            answer.send(Err(self.unreachable(error)));
        }
    }

    /// A connection in is ready; it replaces the one before.
    pub(crate) fn accepted(&self, peer: &Peer<W, S>, lane: Lane, link: Link<W>) {
        let (serial, life) = (link.serial, link.life);
        assert_eq!(peer.incarnation.get(), Some(life), "the life that shook hands last");
        let before = peer.accepted.borrow_mut()[lane as usize].replace(link);
        if let Some(before) = before {
            assert!(before.serial < serial, "{serial} takes the place of {}", before.serial);
            assert_eq!(before.life, life, "a life whose connections were all closed");
            self.close(&before, false, "replaced by a newer connection");
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
        let now = accepted[lane as usize].as_ref().map(|l| l.serial);
        assert!(now.is_none_or(|now| now > serial), "{now:?} follows {serial}, which has ended");
        // One that nobody asked for, and that has left: forget it.
        if accepted.iter().all(Option::is_none) && !peer.dialled.get() {
            let mut peers = self.peers.borrow_mut();
            if peers.get(&peer.addr).is_some_and(|p| Rc::ptr_eq(p, peer)) {
                peers.remove(&peer.addr);
            }
        }
    }

    /// The peer says over that connection that it closes it.
    pub(crate) fn on_goodbye(&self, peer: &Peer<W, S>, link: &Link<W>, head: &FrameHead) {
        if head.request_id == FOR_GOOD {
            sometimes!("peers.one_has_left_for_good");
            peer.left.set(Some(link.life));
        }
    }

    fn goodbye(&self, link: &Link<W>, for_good: bool, why: &str) {
        let id = if for_good { FOR_GOOD } else { 0 };
        self.send_text(&link.conn, link.version, FrameKind::Goodbye, id, why);
    }

    fn close(&self, link: &Link<W>, for_good: bool, why: &str) {
        self.goodbye(link, for_good, why);
        link.conn.close();
    }

    /// `for_good`: this life serves nobody any more.
    pub(crate) fn close_all(&self, peer: &Peer<W, S>, for_good: bool, why: &str) {
        for lane in Lane::ALL {
            let out = peer.lanes[lane as usize].link.borrow().clone();
            if let Some(link) = out {
                self.goodbye(&link, for_good, why);
                self.lane_down(peer, lane, link.serial);
            }
            let accepted = peer.accepted.borrow_mut()[lane as usize].take();
            if let Some(link) = accepted {
                self.close(&link, for_good, why);
            }
        }
    }

    /// Ends all relations with a peer that is no longer in the table.
    /// `for_good`: see [`close_all`](Self::close_all).
    pub(crate) fn part(&self, peer: &Peer<W, S>, for_good: bool, why: &str) {
        let known = self.peers.borrow().get(&peer.addr).is_some_and(|p| std::ptr::eq(&**p, peer));
        assert!(!known, "host {} is parted with and still in the table", peer.addr);
        peer.removed.set(true);
        self.close_all(peer, for_good, why);
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
        assert!(out.calls.borrow().is_up(), "a connection to {} that carries nothing", peer.addr);
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
}
