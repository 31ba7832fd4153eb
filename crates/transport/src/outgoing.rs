//! The calls of one lane to one peer, from the moment they are made until they are answered.
//! Pure bookkeeping: no clock, no connection, no await.
//!
//! ```text
//!   call -> waiting -(link up, window open)-> sent -(reply)-> answered
//!              |                                |
//!              +- link lost: Unreachable        +- link lost: Disconnected
//!              +- deadline:  Unreachable        +- deadline: Deadline, and it stays in `sent`
//! ```
//!
//! Invariants: `sent` <= window, in number and bytes; `waiting` <= `WAITING_*`; calls are sent in
//! the order in which they were made; a call is answered exactly once. A call whose deadline has
//! passed keeps its part of the window until its late reply, because the peer still works on it.

use crate::error::CallError;
use crate::limits::{REQUEST_OVERHEAD, WAITING_BYTES_MAX, WAITING_CALLS_MAX, WINDOW_BYTES};
use crate::message::Encoded;
use atoll_format::frame::PAYLOAD_MAX;
use atoll_world::sync::Sender;
use atoll_world::{Nanos, mutant};
use std::collections::{BTreeMap, VecDeque};

/// Takes the reply to one call, or why there is none.
pub(crate) type ReplySender<T> = Sender<Result<T, CallError>>;

/// A call that is to be sent.
pub(crate) struct Call<T> {
    pub(crate) message: Encoded,
    /// What it takes of the window.
    pub(crate) cost: u64,
    /// See [`Message::leads_on`](crate::message::Message::leads_on).
    pub(crate) leads_on: bool,
    pub(crate) deadline: Nanos,
    pub(crate) answer: ReplySender<T>,
    /// Of its stage, if that is noted.
    pub(crate) begun: Option<Nanos>,
}

struct Sent<T> {
    cost: u64,
    leads_on: bool,
    deadline: Nanos,
    begun: Option<Nanos>,
    /// None once its deadline has passed.
    answer: Option<ReplySender<T>>,
}

/// How much may be unanswered at once, as the peer's `Welcome` said.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    pub(crate) requests: u32,
    pub(crate) bytes: u64,
}

/// What a request takes of the window of its connection.
pub(crate) fn cost(body: u64, payload: u64, reply_bytes: u64) -> u64 {
    let most = REQUEST_OVERHEAD + body + payload + reply_bytes;
    let cost = REQUEST_OVERHEAD + body + payload + reply_bytes.min(u64::from(PAYLOAD_MAX));
    assert!(cost <= most && cost <= WINDOW_BYTES, "{cost} of the window for {most} bytes");
    cost
}
/// Whether calls can go out.
enum Link {
    /// Being opened, and the last attempt did not fail: calls wait.
    Opening,
    /// Calls are sent, within the window.
    Up(Window),
    /// The last attempt failed, with this for every call.
    Failing(CallError),
}

pub(crate) struct Outgoing<T> {
    link: Link,
    /// Calls that lead on are the second of each pair.
    waiting: [VecDeque<Call<T>>; 2],
    waiting_bytes: u64,
    sent: BTreeMap<u64, Sent<T>>,
    /// How many of them, and what they take of the window.
    taken: [(usize, u64); 2],
    /// Of the next request; starts at 1 on each connection.
    next_id: u64,
    /// No call has an earlier deadline.
    earliest: Nanos,
}

/// What a reply found.
pub(crate) enum Found<T> {
    /// Who waits for it, and when its stage began if that is noted.
    Caller(ReplySender<T>, Option<Nanos>),
    /// Its deadline has passed.
    Late,
    /// No request of that id is unanswered: the peer is confused.
    Unknown,
}

impl<T> Outgoing<T> {
    pub(crate) fn new() -> Self {
        Self {
            link: Link::Opening,
            waiting: [VecDeque::new(), VecDeque::new()],
            waiting_bytes: 0,
            sent: BTreeMap::new(),
            taken: [(0, 0); 2],
            next_id: 1,
            earliest: Nanos::NEVER,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Whether nothing waits to be sent or to be answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.sent.is_empty() && self.waiting_calls() == 0
    }

    /// Whether a request has been sent that has no reply yet.
    pub(crate) fn awaits_replies(&self) -> bool {
        !self.sent.is_empty()
    }

    /// Takes a call, to be sent by [`Outgoing::next`]; or gives back its answer and an error.
    pub(crate) fn push(&mut self, call: Call<T>) -> Result<(), (ReplySender<T>, CallError)> {
        assert!(call.cost > 0, "what takes nothing of the window is not bounded by it");
        if let Link::Failing(error) = &self.link {
            return Err((call.answer, error.clone()));
        }
        if self.waiting_calls() >= WAITING_CALLS_MAX
            || self.waiting_bytes + call.cost > WAITING_BYTES_MAX
        {
            return Err((call.answer, CallError::Unreachable));
        }
        self.waiting_bytes += call.cost;
        self.earliest = self.earliest.min(call.deadline);
        assert!(self.earliest <= call.deadline, "a deadline that nobody looks after");
        self.waiting[usize::from(call.leads_on)].push_back(call);
        let calls = self.waiting_calls();
        assert!(calls <= WAITING_CALLS_MAX, "{calls} calls wait");
        assert!(self.waiting_bytes <= WAITING_BYTES_MAX, "{} bytes wait", self.waiting_bytes);
        Ok(())
    }

    fn waiting_calls(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// The next call to send now, if the link and the window allow one, with its request id.
    pub(crate) fn next(&mut self) -> Option<(u64, Encoded)> {
        let Link::Up(window) = self.link else { return None };
        // Those that lead on come first, one always and else up to half of the window: the others
        // have at least the rest. They wait for nobody but their own handlers, so whatever is full
        // becomes free again.
        let is_next = |call: &Call<T>| {
            let (requests, bytes) = self.taken[1];
            let half = Window { requests: window.requests / 2, bytes: window.bytes / 2 };
            requests == 0 || requests < half.requests as usize && bytes + call.cost <= half.bytes
        };
        let of = usize::from(self.waiting[1].front().is_some_and(is_next));
        let cost = self.waiting[of].front()?.cost;
        let bytes = self.taken[0].1 + self.taken[1].1 + cost;
        // One request always fits: a peer with a tiny window gets them one by one.
        let full = self.sent.len() >= window.requests as usize || bytes > window.bytes;
        if full && !self.sent.is_empty() {
            return None;
        }
        let call = self.waiting[of].pop_front().expect("just looked at");
        let id = self.next_id;
        self.next_id += 1;
        self.waiting_bytes -= call.cost;
        self.taken[of] = (self.taken[of].0 + 1, self.taken[of].1 + call.cost);
        let Call { message, cost, leads_on, deadline, answer, begun } = call;
        assert_eq!(usize::from(leads_on), of, "a call that waited among the others");
        let before = self.sent.last_key_value().map(|(&id, _)| id);
        assert!(before.is_none_or(|before| before < id), "request {id} after {before:?}");
        self.sent.insert(id, Sent { cost, leads_on, deadline, begun, answer: Some(answer) });
        self.check_window(window);
        Some((id, message))
    }

    /// What the peer allows holds after every request that is sent.
    fn check_window(&self, window: Window) {
        let [(others, other_bytes), (leading, leading_bytes)] = self.taken;
        let (requests, bytes) = (others + leading, other_bytes + leading_bytes);
        assert_eq!(requests, self.sent.len(), "requests sent, and what they take of the window");
        assert!(
            requests == 1 || requests <= window.requests as usize && bytes <= window.bytes,
            "{requests} requests of {bytes} bytes in a window of {} and {}",
            window.requests,
            window.bytes
        );
        // What they wait for has the other half.
        assert!(
            leading <= 1
                || leading <= window.requests as usize / 2 && leading_bytes <= window.bytes / 2,
            "{leading} requests of {leading_bytes} bytes lead on"
        );
        assert!(
            self.waiting_bytes > 0 || self.waiting_calls() == 0,
            "{} calls wait and take nothing",
            self.waiting_calls()
        );
    }

    /// A reply (or a refusal) of that request arrived: its part of the window is free again.
    pub(crate) fn on_reply(&mut self, id: u64) -> Found<T> {
        let first = self.sent.keys().next().copied().unwrap_or(id);
        let id = if mutant!("outgoing.reply_to_the_oldest") { first } else { id };
        let Some(sent) = self.sent.remove(&id) else { return Found::Unknown };
        let taken = &mut self.taken[usize::from(sent.leads_on)];
        *taken = (taken.0 - 1, taken.1 - sent.cost);
        assert!(
            !self.sent.is_empty() || self.taken == [(0, 0); 2],
            "nothing is unanswered, and {:?} of the window is taken",
            self.taken
        );
        match sent.answer {
            Some(answer) => Found::Caller(answer, sent.begun),
            None => Found::Late,
        }
    }

    /// A connection is there; what waits may go.
    pub(crate) fn on_up(&mut self, window: Window) {
        assert!(self.sent.is_empty(), "requests belong to one connection");
        assert_eq!(self.taken, [(0, 0); 2], "the window of a new connection is free");
        assert!(!self.is_up(), "a connection takes the place of one that is in use");
        assert!(window.requests > 0 && window.bytes > 0, "a window that nothing fits into");
        self.link = Link::Up(window);
        self.next_id = 1;
    }

    /// The connection is lost and a new one is being opened: whoever has an answer coming gets
    /// the error next to it.
    pub(crate) fn on_lost(&mut self) -> Vec<(ReplySender<T>, CallError)> {
        assert!(self.is_up(), "what is lost was there");
        self.link = Link::Opening;
        self.drain(&CallError::Unreachable)
    }

    /// No connection could be opened: calls fail with `error` until one is there.
    pub(crate) fn on_failed(&mut self, error: CallError) -> Vec<(ReplySender<T>, CallError)> {
        assert!(!self.is_up() && self.sent.is_empty(), "requests are sent over a link only");
        // What was never sent must not look as if it might have been carried out.
        assert!(
            matches!(error, CallError::Unreachable | CallError::Refused(_)),
            "calls that were not sent fail: {error}"
        );
        let out = self.drain(&error);
        self.link = Link::Failing(error);
        out
    }

    fn drain(&mut self, unsent: &CallError) -> Vec<(ReplySender<T>, CallError)> {
        let in_flight = self.sent.values().filter(|s| s.answer.is_some()).count();
        let open = in_flight + self.waiting_calls();
        let sent = std::mem::take(&mut self.sent).into_values();
        let mut out: Vec<_> =
            sent.filter_map(|s| s.answer).map(|a| (a, CallError::Disconnected)).collect();
        if mutant!("outgoing.sent_counts_as_unsent") {
            out.iter_mut().for_each(|(_, error)| *error = CallError::Unreachable);
        }
        let waiting = self.waiting.iter_mut().flat_map(|waiting| waiting.drain(..));
        out.extend(waiting.map(|c| (c.answer, unsent.clone())));
        (self.taken, self.waiting_bytes) = ([(0, 0); 2], 0);
        self.earliest = Nanos::NEVER;
        assert_eq!(out.len(), open, "every call that is open is answered when its link ends");
        let left = self.waiting_calls() + self.sent.len();
        assert_eq!(left, 0, "calls without a link, and nobody who answers them");
        out
    }

    /// No call has an earlier deadline than this; it may be that none has this one.
    pub(crate) fn earliest(&self) -> Nanos {
        self.earliest
    }

    /// The calls whose deadline is at or before `now`.
    pub(crate) fn expire(&mut self, now: Nanos) -> Vec<(ReplySender<T>, CallError)> {
        if self.earliest > now {
            return Vec::new();
        }
        let mut out = Vec::new();
        self.earliest = Nanos::NEVER;
        for sent in self.sent.values_mut().filter(|s| s.answer.is_some()) {
            if sent.deadline <= now {
                out.extend(sent.answer.take().map(|a| (a, CallError::Deadline)));
            } else {
                self.earliest = self.earliest.min(sent.deadline);
            }
        }
        let (in_flight, waiting) = (out.len(), self.waiting_calls());
        for call in self.waiting.iter_mut().flat_map(std::mem::take).collect::<Vec<_>>() {
            if call.deadline <= now {
                self.waiting_bytes -= call.cost;
                out.push((call.answer, CallError::Unreachable));
            } else {
                self.earliest = self.earliest.min(call.deadline);
                self.waiting[usize::from(call.leads_on)].push_back(call);
            }
        }
        let given_up = out.len() - in_flight;
        assert_eq!(waiting, self.waiting_calls() + given_up, "a call waits or is answered");
        assert!(self.earliest > now, "{} has passed at {now}", self.earliest);
        out
    }

    /// # Panics
    /// What the counts say is not what is there. In simulation only: it looks at every call.
    pub(crate) fn audit(&self) {
        let mut taken = [(0, 0); 2];
        for (&id, sent) in &self.sent {
            assert!(0 < id && id < self.next_id, "request {id} of {}", self.next_id);
            let of = &mut taken[usize::from(sent.leads_on)];
            *of = (of.0 + 1, of.1 + sent.cost);
            let is_seen = sent.answer.is_none() || self.earliest <= sent.deadline;
            assert!(is_seen, "request {id} ends at {}, not {}", sent.deadline, self.earliest);
        }
        assert_eq!(taken, self.taken, "the window is taken by what is unanswered");
        let mut bytes = 0;
        for (leads_on, waiting) in [false, true].into_iter().zip(&self.waiting) {
            for call in waiting {
                bytes += call.cost;
                assert_eq!(call.leads_on, leads_on, "a call waits among the others");
                assert!(self.earliest <= call.deadline, "a call waits beyond its deadline");
            }
        }
        assert_eq!(bytes, self.waiting_bytes, "bytes of what waits");
        match self.link {
            Link::Up(_) => {}
            Link::Opening => assert!(self.sent.is_empty(), "requests without a connection"),
            Link::Failing(_) => assert_eq!(self.waiting_calls(), 0, "calls wait for nothing"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, Found, Outgoing, ReplySender, Window};
    use crate::error::CallError;
    use crate::limits::{WAITING_BYTES_MAX, WAITING_CALLS_MAX};
    use crate::message::Encoded;
    use atoll_world::Nanos;
    use atoll_world::sync::{Receiver, oneshot};
    use futures_util::FutureExt;

    type Heard = Receiver<Result<u8, CallError>>;

    fn call(cost: u64, deadline: u64) -> (Call<u8>, Heard) {
        let (answer, heard) = oneshot();
        let message = Encoded {
            kind: u16::try_from(deadline).unwrap(),
            body: vec![],
            payload: vec![],
            payload_checked_by_receiver: false,
        };
        let deadline = Nanos(deadline);
        (Call { message, cost, leads_on: false, deadline, answer, begun: None }, heard)
    }

    fn push(out: &mut Outgoing<u8>, cost: u64, deadline: u64) -> Heard {
        let (call, heard) = call(cost, deadline);
        assert!(out.push(call).is_ok());
        heard
    }

    fn tell(failed: Vec<(ReplySender<u8>, CallError)>) {
        failed.into_iter().for_each(|(a, e)| a.send(Err(e)));
    }

    fn error(heard: Heard) -> Option<CallError> {
        heard.now_or_never().map(|r| r.unwrap().unwrap_err())
    }

    #[test]
    fn the_window_holds_in_number_and_in_bytes_and_replies_open_it() {
        let mut out = Outgoing::new();
        let _heard: Vec<_> = [60, 30, 20, 1].map(|cost| push(&mut out, cost, 9)).into();
        assert!(out.next().is_none(), "not up yet");
        out.on_up(Window { requests: 2, bytes: 100 });
        assert_eq!(out.next().unwrap().0, 1);
        assert_eq!(out.next().unwrap().0, 2);
        assert!(out.next().is_none(), "two are sent");
        assert!(matches!(out.on_reply(2), Found::Caller(..)));
        assert_eq!(out.next().unwrap().0, 3);
        assert!(matches!(out.on_reply(3), Found::Caller(..)));
        assert!(matches!(out.on_reply(3), Found::Unknown));
        assert_eq!(out.next().unwrap().0, 4);
        let _big = push(&mut out, 100, 9);
        assert!(matches!(out.on_reply(1), Found::Caller(..)));
        assert!(out.next().is_none(), "1 + 100 bytes are too many");
        assert!(matches!(out.on_reply(4), Found::Caller(..)));
        assert_eq!(out.next().unwrap().0, 5);
    }

    #[test]
    fn a_late_reply_gives_its_credit_back_only_when_it_comes() {
        let mut out = Outgoing::new();
        out.on_up(Window { requests: 1, bytes: 100 });
        let first = push(&mut out, 1, 10);
        let second = push(&mut out, 1, 20);
        let third = push(&mut out, 1, 30);
        assert!(out.next().is_some());
        assert_eq!(out.earliest(), Nanos(10));
        tell(out.expire(Nanos(20)));
        assert_eq!(error(first), Some(CallError::Deadline));
        assert_eq!(error(second), Some(CallError::Unreachable), "it was never sent");
        assert_eq!(out.earliest(), Nanos(30));
        assert!(out.next().is_none(), "the peer still works on the first");
        assert!(matches!(out.on_reply(1), Found::Late));
        let (id, message) = out.next().unwrap();
        assert_eq!((id, message.kind), (2, 30));
        assert_eq!(error(third), None);
    }

    #[test]
    fn a_lost_link_tells_sent_from_unsent_and_a_failing_one_refuses_at_once() {
        let mut out = Outgoing::new();
        out.on_up(Window { requests: 1, bytes: 100 });
        let sent = push(&mut out, 1, 10);
        let unsent = push(&mut out, 1, 10);
        assert!(out.next().is_some());
        tell(out.on_lost());
        assert_eq!(error(sent), Some(CallError::Disconnected));
        assert_eq!(error(unsent), Some(CallError::Unreachable));
        let waits = push(&mut out, 1, 10);
        let why = CallError::Refused("another cluster".into());
        tell(out.on_failed(why.clone()));
        assert_eq!(error(waits), Some(why.clone()));
        assert_eq!(out.push(call(1, 10).0).unwrap_err().1, why);
        out.on_up(Window { requests: 1, bytes: 1 });
        let again = push(&mut out, 50, 10);
        assert_eq!(out.next().unwrap().0, 1, "ids start anew, and one request always fits");
        assert_eq!(error(again), None);
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut out = Outgoing::new();
        let _kept: Vec<_> = (0..WAITING_CALLS_MAX).map(|_| push(&mut out, 1, 1)).collect();
        assert_eq!(out.push(call(1, 1).0).unwrap_err().1, CallError::Unreachable);
        let mut out = Outgoing::new();
        let _kept = push(&mut out, WAITING_BYTES_MAX, 1);
        assert_eq!(out.push(call(1, 1).0).unwrap_err().1, CallError::Unreachable);
    }

    #[test]
    fn what_leads_on_leaves_half_of_the_window_to_what_it_waits_for() {
        let mut out = Outgoing::new();
        out.on_up(Window { requests: 4, bytes: 200 });
        let mut push = |leads_on, cost| {
            let (mut call, _) = call(cost, 9);
            call.leads_on = leads_on;
            assert!(out.push(call).is_ok());
            std::iter::from_fn(|| out.next()).count()
        };
        assert_eq!((push(true, 60), push(true, 60), push(true, 10)), (1, 0, 0));
        assert_eq!((push(false, 100), push(false, 40), push(false, 1)), (1, 1, 0));
        // They are next when there is room for them, whatever else waits.
        assert!(matches!(out.on_reply(1), Found::Caller(..)));
        assert_eq!(out.next().map(|(id, _)| id), Some(4));
        assert_eq!(out.taken, [(2, 140), (1, 60)]);
        assert!(out.next().is_none(), "a third one does not fit, and its half has room");
    }
}
