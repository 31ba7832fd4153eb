//! What a service says and hears: the seam between calls and what they mean.
//!
//! Transport hands a message over as it came; it never looks inside.

use atoll_format::id::Addr;
use atoll_world::buf::total_len;
use atoll_world::{Buf, Lane};
use std::future::Future;

/// A message in pieces, ready for a frame.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// Which message of the service it is.
    pub kind: u16,
    /// Small and structured, at most `format::frame::BODY_MAX` bytes.
    pub body: Vec<u8>,
    /// Large and opaque, at most `format::frame::PAYLOAD_MAX` bytes; received as at most one
    /// aligned buffer.
    pub payload: Vec<Buf>,
    /// The body carries checksums of the payload and `decode` (or the service) checks them, so
    /// the transport does not.
    pub payload_checked_by_receiver: bool,
}

/// A request or a reply of a service.
pub trait Message: Sized + 'static {
    /// The message in pieces.
    fn encode(self) -> Encoded;

    /// The message that was sent as these pieces; the body has been checked by its CRC.
    ///
    /// # Errors
    /// It is none: the sender is refused, nothing is acted upon.
    fn decode(kind: u16, body: &[u8], payload: Vec<Buf>) -> Result<Self, BadMessage>;

    /// For a request: how many bytes of payload its reply may have. They count against the
    /// window of the connection as if they had been sent, so that answers are bounded too. Both
    /// sides ask, so it must be a function of the content.
    fn reply_bytes(&self) -> u64 {
        0
    }

    /// For a request: whether it may be sent on that lane. A call on another one is a mistake of
    /// the caller.
    fn may_take(&self, lane: Lane) -> bool {
        let _ = lane;
        true
    }

    /// For a request: whether its handler may call other hosts before it answers. Such requests
    /// take half of a window at most, so that hosts which fill each other's windows with them do
    /// not wait for each other: what they wait for has the rest. That should not lead on itself:
    /// else only deadlines end such a wait.
    fn leads_on(&self) -> bool {
        false
    }
}

/// The message in pieces is the one that its receiver reads. In simulation only: it is read anew.
///
/// # Panics
/// It is not.
pub(crate) fn audit_encoded<M: Message>(message: &Encoded) -> M {
    let Encoded { kind, body, payload, payload_checked_by_receiver } = message;
    let read = || M::decode(*kind, body, payload.clone());
    let again = match read() {
        Ok(read) => read.encode(),
        Err(e) => panic!("message {kind} of {} bytes is not understood: {e}", body.len()),
    };
    assert_eq!((again.kind, &again.body), (*kind, body), "a message reads as another one");
    assert_eq!(total_len(&again.payload), total_len(payload), "bytes of message {kind}");
    assert_eq!(again.payload_checked_by_receiver, *payload_checked_by_receiver, "message {kind}");
    read().expect("it was read before")
}

/// What was received is not a message of this service; says what is wrong with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadMessage(pub &'static str);

/// Who answers requests.
pub trait Service: Clone + 'static {
    /// What it is asked.
    type Request: Message;
    /// What it answers.
    type Reply: Message;

    /// Answers one request of `from`. The future is polled once, in the order in which requests
    /// arrive on their connection, before the next one is looked at: what it does up to its first
    /// wait is ordered. After that requests overlap freely. It always runs to its end, even if
    /// nobody waits for the answer any more.
    fn handle(
        &self,
        from: Addr,
        request: Self::Request,
    ) -> impl Future<Output = Self::Reply> + 'static;
}
