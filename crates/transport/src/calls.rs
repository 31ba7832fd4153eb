//! Calls, to a peer and to this host's own service, and their deadlines.
//!
//! Invariants: a call is answered exactly once, at its deadline at the latest; a request to this
//! host itself is handled to its end even if its caller no longer waits.

use crate::error::CallError;
use crate::limits::LOCAL_CALLS_MAX;
use crate::message::{Message, Service, audit_encoded};
use crate::outgoing::{Call, cost};
use crate::state::TransportState;
use atoll_format::frame::{BODY_MAX, PAYLOAD_MAX};
use atoll_format::id::Addr;
use atoll_world::buf::total_len;
use atoll_world::sync::{Receiver, oneshot};
use atoll_world::{Lane, Nanos, Persist, Stage, World};
use futures_util::future::{pending, select};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

impl<W: World, S: Service> TransportState<W, S> {
    /// The watcher of deadlines has to look at `deadline` or before.
    fn watch_until(&self, deadline: Nanos) {
        if deadline < self.watch_at.get() {
            self.watch_at.set(deadline);
            self.watch_sooner.notify_all();
        }
        assert!(self.watch_at.get() <= deadline, "{deadline} passes unseen");
    }

    pub(crate) fn call_peer(
        self: &Rc<Self>,
        to: Addr,
        lane: Lane,
        request: S::Request,
        deadline: Nanos,
    ) -> PendingCall<W, S::Reply> {
        let refuse = |error| PendingCall::Ready(Some(Err(self.unreachable(error))));
        self.count(|c| c.calls_remote += 1);
        let Some(peer) = self.wanted(to) else {
            return refuse(CallError::Unreachable);
        };
        let (reply_bytes, leads_on) = (request.reply_bytes(), request.leads_on());
        let message = request.encode();
        let (body, payload) = (message.body.len() as u64, total_len(&message.payload) as u64);
        if body > u64::from(BODY_MAX) || payload > u64::from(PAYLOAD_MAX) {
            return refuse(CallError::TooLarge);
        }
        if self.world.audits() {
            // Both sides count the same against the window.
            let read = audit_encoded::<S::Request>(&message);
            let counted = (read.reply_bytes(), read.leads_on());
            assert_eq!(counted, (reply_bytes, leads_on), "of message {}", message.kind);
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
        PendingCall::Waiting(receiver)
    }

    pub(crate) fn call_self(
        self: &Rc<Self>,
        request: S::Request,
        deadline: Nanos,
    ) -> PendingCall<W, S::Reply> {
        self.count(|c| c.calls_local += 1);
        if self.local.borrow().len() >= LOCAL_CALLS_MAX {
            return PendingCall::Ready(Some(Err(self.unreachable(CallError::Unreachable))));
        }
        let id = self.local_next.get();
        self.local_next.set(id + 1);
        let (answer, late) = oneshot();
        let taken = self.local.borrow_mut().insert(id, (deadline, answer)).is_some();
        let calls = self.local.borrow().len();
        assert!(!taken && calls <= LOCAL_CALLS_MAX, "call {id}, {calls} to this host itself");
        self.watch_until(deadline);
        let state = self.clone();
        // To its end, as a remote one would. Made where it stays: it is large.
        let mut handled = self.world.persist(async move {
            let reply = state.service.handle(state.identity.addr(), request).await;
            let in_time = state.local.borrow_mut().remove(&id).is_some();
            state.count(|c| c.replies_late += u64::from(!in_time));
            in_time.then_some(reply)
        });
        // Whatever wakes it now is not missed: the caller polls it again first.
        match Pin::new(&mut handled).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(reply)) => PendingCall::Ready(Some(Ok(reply))),
            // The caller has been answered meanwhile.
            Poll::Ready(None) => PendingCall::Waiting(late),
            Poll::Pending => PendingCall::Local(Some(handled), late),
        }
    }

    /// Fails the calls whose deadline has passed; the earliest deadline that has not.
    fn expire(&self, now: Nanos) -> Nanos {
        let mut earliest = Nanos::NEVER;
        let mut failed = Vec::new();
        for peer in self.peers.borrow().values() {
            for lane in Lane::ALL {
                let calls = &peer.lanes[lane as usize].calls;
                let late = calls.borrow_mut().expire(now);
                // One that waited for the window may have held back others that fit.
                if !late.is_empty() {
                    self.pump(peer, lane);
                }
                failed.extend(late);
                earliest = earliest.min(calls.borrow().earliest());
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
        assert!(earliest > now, "what ended at {earliest} is not answered at {now}");
        self.tell(failed);
        earliest
    }
}

/// What a caller waits on.
pub(crate) enum PendingCall<W: World, T: 'static> {
    Ready(Option<Result<T, CallError>>),
    Waiting(Receiver<Result<T, CallError>>),
    /// This host's own service, while it works, and what comes first if that takes too long.
    Local(Option<Persist<W, Option<T>>>, Receiver<Result<T, CallError>>),
}

pub(crate) struct CallFuture<W: World, T: 'static>(pub(crate) PendingCall<W, T>);

impl<W: World, T> Unpin for CallFuture<W, T> {}

impl<W: World, T> Future for CallFuture<W, T> {
    type Output = Result<T, CallError>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            PendingCall::Ready(result) => Poll::Ready(result.take().expect("polled after its end")),
            // The answer is dropped unsent only with the whole of `Peers`.
            PendingCall::Waiting(receiver) => Pin::new(receiver)
                .poll(cx)
                .map(|answer| answer.unwrap_or(Err(CallError::Disconnected))),
            PendingCall::Local(handled, late) => {
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
pub(crate) async fn watch_deadlines<W: World, S: Service>(state: Rc<TransportState<W, S>>) {
    while !state.stopped.get() {
        let sooner = pin!(state.watch_sooner.notified());
        let timer = async {
            match state.watch_at.get() {
                // The next call or `stop` ends this.
                Nanos::NEVER => pending().await,
                at => state.world.sleep_until(at).await,
            }
        };
        select(sooner, pin!(timer)).await;
        let now = state.world.now();
        if now >= state.watch_at.get() {
            // Calls made while it looks cannot be missed: there is no await between these.
            let earliest = state.expire(now);
            state.watch_at.set(earliest);
        }
    }
}
