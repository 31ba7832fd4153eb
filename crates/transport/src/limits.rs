//! Every bound and every period of this crate, with the arithmetic behind it.

use atoll_format::frame::{BODY_MAX, PAYLOAD_MAX};
use atoll_world::Nanos;

/// Requests of one connection that may be unanswered at once. At 100 us a request that is ten
/// million requests a second: never the bottleneck. Half of them for requests that lead on.
pub const WINDOW_REQUESTS: u32 = 1024;
/// Bytes that the unanswered requests of one connection and their replies may have together.
/// 64 MiB are 20 ms of a 25 Gbit/s link, many times what its round trip needs. 64 hosts on three
/// lanes could ask for 12 GiB only if every one of them filled every window of one host.
pub const WINDOW_BYTES: u64 = 64 << 20;
/// And in simulation, now and then: full at every step. Bytes for the largest request.
pub(crate) const WINDOW_REQUESTS_SMALL: usize = 2;
/// As above.
pub(crate) const WINDOW_BYTES_SMALL: usize = (5 << 20) + REQUEST_OVERHEAD as usize;
/// Calls to one (peer, lane) that wait for the window or the connection; more are refused.
pub const WAITING_CALLS_MAX: usize = 4 * WINDOW_REQUESTS as usize;
/// Bytes of those calls.
pub const WAITING_BYTES_MAX: u64 = 2 * WINDOW_BYTES;
/// What a request costs of the window beside its body and payload: the head and the tables.
pub const REQUEST_OVERHEAD: u64 = 256;
/// Calls to this host's own service that may be unanswered at once: callers are bounded
/// themselves, this only keeps a fault of theirs from taking all memory.
pub const LOCAL_CALLS_MAX: usize = 1 << 16;
/// Connections whose handshake is under way. 64 hosts restarting at once open 192, and more for the
/// shards that they ask.
pub const HANDSHAKES_MAX: usize = 256;
/// Shards known at once, those included that connected without having been asked for: 64 hosts of
/// 16 shards.
pub const PEERS_MAX: usize = 1024;
/// A shard that nobody has asked anything for so long, and that asks nothing, is left: its
/// connections are closed, and opened again when it is asked.
pub const PEER_IDLE: Nanos = Nanos::from_secs(30);
/// Hosts that live twice, told at once.
pub const TWINS_MAX: usize = 16;
/// Refused connections that are remembered until they are taken; more are only counted.
pub const REFUSALS_MAX: usize = 16;

/// Between two pings on the control lane of a peer.
pub const PING_EVERY: Nanos = Nanos::from_ms(250);
/// Without any frame for that long, a peer counts as lost and its connections are closed.
pub const LOST_AFTER: Nanos = Nanos::from_ms(1500);
/// A connection with unanswered requests on which nothing came for that long, pongs included, is
/// opened anew, though its peer is there: something on the way has forgotten it.
pub const LANE_LOST_AFTER: Nanos = Nanos::from_ms(3000);
/// For opening a connection, and again for its handshake.
pub const CONNECT_WITHIN: Nanos = Nanos::from_ms(1000);
/// After the first failure to connect; doubles with each further one.
pub const BACKOFF_MIN: Nanos = Nanos::from_ms(20);
/// Never more than this between two attempts.
pub const BACKOFF_MAX: Nanos = Nanos::from_ms(1000);
/// A connection that lived that long starts the backoff anew.
pub const BACKOFF_FORGOTTEN_AFTER: Nanos = Nanos::from_ms(500);
/// After a failure to accept (no file descriptors left).
pub const ACCEPT_PAUSE: Nanos = Nanos::from_ms(100);

/// CPU time that a frame costs who receives it and later answers, for the modelled core:
/// measured, batched (`docs/performance.md`).
pub const CPU_PER_FRAME: Nanos = Nanos(800);
/// CPU time per KiB received: a 1 MiB hop costs about 300 us on both sides together.
pub const CPU_PER_KIB: Nanos = Nanos(150);

const _: () = {
    // The largest request and the largest reply fit into the window together, or a call could
    // wait for ever.
    assert!(
        REQUEST_OVERHEAD + BODY_MAX as u64 + 2 * PAYLOAD_MAX as u64 <= WINDOW_BYTES
            && WINDOW_BYTES <= WAITING_BYTES_MAX
    );
    // So does one that leads on, into the half that such requests have.
    assert!(REQUEST_OVERHEAD + BODY_MAX as u64 + 2 * PAYLOAD_MAX as u64 <= WINDOW_BYTES / 2);
    // One that leads on, and one for what it waits for.
    assert!(WINDOW_REQUESTS_SMALL >= 2 && WINDOW_REQUESTS as usize >= WINDOW_REQUESTS_SMALL);
    // A lane's pongs wait behind its data: it is given up later than a silent peer.
    assert!(LANE_LOST_AFTER.0 >= LOST_AFTER.0);
    assert!(BACKOFF_MIN.0 > 1 && BACKOFF_MIN.0 < BACKOFF_MAX.0);
    // Five pings may be lost before the peer is.
    assert!(LOST_AFTER.0 >= 5 * PING_EVERY.0);
};
