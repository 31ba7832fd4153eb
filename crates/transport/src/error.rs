//! What callers are told: why a call failed, how a peer is doing, what was counted.

use atoll_format::id::Incarnation;
use atoll_world::Nanos;

/// Why a call has no reply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// It was never sent and has no effect: no connection, too many calls waiting, or its
    /// deadline passed while it waited.
    #[error("the peer cannot be reached")]
    Unreachable,
    /// The connection was lost after it was sent: the outcome is unknown.
    #[error("the connection was lost; the outcome is unknown")]
    Disconnected,
    /// It was sent and not answered in time: the outcome is unknown. A later reply is thrown away.
    #[error("no reply within the deadline; the outcome is unknown")]
    Deadline,
    /// The peer does not talk to this host (another cluster, another host, no common version), or
    /// does not understand the request: no effect. Or its reply was not understood: then the
    /// request was carried out. Says which.
    #[error("refused: {0}")]
    Refused(String),
    /// Longer than a frame may be; never sent.
    #[error("the request is longer than a frame may be")]
    TooLarge,
}

/// What is known of a peer now; hints, never proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PeerState {
    /// Calls on the control lane and the data lane would be sent at once.
    pub connected: bool,
    /// The life of the peer's process that last shook hands with this one.
    pub incarnation: Option<Incarnation>,
    /// That life has said that it stops: it serves nobody any more, whether it is heard of or not.
    pub left: bool,
    /// When the last frame of it arrived.
    pub last_heard: Option<Nanos>,
    /// Of the last ping that was answered.
    pub round_trip: Option<Nanos>,
    /// How busy it said it was, 0-255 of 255.
    pub load: u8,
}

/// Totals since `Peers::start`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TransportCounters {
    /// Calls that went to other hosts.
    pub calls_remote: u64,
    /// Calls to this host's own service.
    pub calls_local: u64,
    /// Requests of other hosts that were handled.
    pub requests_served: u64,
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Bytes of those sent.
    pub bytes_sent: u64,
    /// Bytes of those received.
    pub bytes_received: u64,
    /// Connections opened or accepted, with a finished handshake.
    pub connects: u64,
    /// Attempts to open one that failed.
    pub connects_failed: u64,
    /// Connections lost after their handshake.
    pub disconnects: u64,
    /// Peers found silent for too long.
    pub peers_lost: u64,
    /// Handshakes refused by this host or by a peer.
    pub handshakes_refused: u64,
    /// Messages that were not understood, here or by a peer.
    pub messages_refused: u64,
    /// Frames that were damaged, or out of place; each cost its connection.
    pub frames_bad: u64,
    /// Calls that were not answered in time.
    pub deadlines_missed: u64,
    /// Replies that came after their deadline.
    pub replies_late: u64,
    /// Calls that failed as [`CallError::Unreachable`].
    pub unreachable: u64,
}
