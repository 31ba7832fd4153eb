//! One operation in flight: what it is, which members have acknowledged it, and the calls that
//! were made for it.
//!
//! Invariant: answers are looked at in the order in which the calls were made, and who waits for
//! one is woken by nothing else.

use crate::member_client::MemberError;
use atoll_format::id::{ClientId, OpId, Seq, Session, Ticket};
use atoll_format::op::{BlockRange, OpKind};
use atoll_world::components::ComponentOp;
use atoll_world::sync::Notify;
use atoll_world::{Buf, Nanos};
use futures_util::future::LocalBoxFuture;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::Poll;

/// Names an operation of a client: who asked for it, and its number there.
pub(crate) type TicketKey = (ClientId, u32);

/// The operation that a ticket names.
pub(crate) fn key(ticket: Ticket) -> TicketKey {
    (ticket.client, ticket.number)
}

/// One operation in flight.
#[derive(Debug)]
pub(crate) struct Op {
    pub id: OpId,
    pub ticket: Ticket,
    pub kind: OpKind,
    pub range: BlockRange,
    pub crcs: Vec<u32>,
    pub payload: Vec<Buf>,
    pub started: Nanos,
    /// One bit per member slot.
    pub acked: Cell<u32>,
    pub decided: Cell<bool>,
    /// Wakes the task that drives it: membership or session changed.
    pub poke: Notify,
    /// Calls that were made for it elsewhere, for the task that drives it.
    pub fresh: RefCell<AppendCalls>,
}

impl Op {
    pub fn to_component_op(&self, committed: Seq) -> ComponentOp {
        ComponentOp {
            id: self.id,
            ticket: self.ticket,
            kind: self.kind,
            range: self.range,
            committed,
            crcs: self.crcs.clone(),
            checked: true,
            payload: self.payload.clone(),
        }
    }
}

/// The answer of one member to one append.
pub(crate) type AppendAnswer = (u8, Session, Result<(), MemberError>);

/// Calls in flight of one operation: one a member, so that all are looked at when one has ended.
#[derive(Default)]
pub(crate) struct AppendCalls(Vec<LocalBoxFuture<'static, AppendAnswer>>);

impl std::fmt::Debug for AppendCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AppendCalls({})", self.0.len())
    }
}

impl AppendCalls {
    /// One more call.
    pub fn push(&mut self, call: LocalBoxFuture<'static, AppendAnswer>) {
        self.0.push(call);
    }

    /// Takes all calls of `others`, behind those that are here.
    pub fn append(&mut self, others: &mut Self) {
        self.0.append(&mut others.0);
    }

    /// Whether every call has been answered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next answer; there must be a call.
    pub async fn next(&mut self) -> AppendAnswer {
        poll_fn(|cx| {
            for i in 0..self.0.len() {
                if let Poll::Ready(answer) = self.0[i].as_mut().poll(cx) {
                    // In the order in which they were made: the others keep theirs.
                    drop(self.0.remove(i));
                    return Poll::Ready(answer);
                }
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::{AppendAnswer, AppendCalls};
    use atoll_format::id::Session;
    use atoll_world::sync::oneshot;
    use futures_util::FutureExt;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Poll, Wake};

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request that wakes itself for nothing lets the answers and packets of a batch leave alone.
    #[test]
    fn waiting_for_answers_wakes_nobody_until_there_is_one() {
        let mut calls = AppendCalls::default();
        let mut ends: Vec<_> = (0..3u8)
            .map(|slot| {
                let (end, ends) = oneshot::<()>();
                let answer = move |_| -> AppendAnswer { (slot, Session::default(), Ok(())) };
                calls.push(ends.map(answer).boxed_local());
                Some(end)
            })
            .collect();
        let wakings = Arc::<Count>::default();
        let waker = wakings.clone().into();
        for (turn, slot) in [1u8, 0, 2].into_iter().enumerate() {
            let mut next = pin!(calls.next());
            assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!(wakings.0.load(Ordering::Relaxed), turn as u32);
            drop(ends[usize::from(slot)].take());
            let Poll::Ready((from, ..)) = next.poll(&mut Context::from_waker(&waker)) else {
                panic!("its answer is there");
            };
            assert_eq!(from, slot);
        }
    }
}
