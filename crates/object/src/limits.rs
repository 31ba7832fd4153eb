//! Every bound and every wait of the object layer, in one place.

use atoll_world::Nanos;

/// How long an owner trusts a lease, from before it asked.
pub const LEASE: Nanos = Nanos::from_ms(2_500);
/// How long a member honours what it granted: the lease and 10 % for drifting clocks (R9).
pub const GRACE: Nanos = Nanos::from_ms(2_750);
/// How often an owner renews.
pub const RENEW_EVERY: Nanos = Nanos::from_ms(500);
/// A member that has not acknowledged for this long, while another has, is dropped. With the
/// directory's answer the stall stays under the 2 s promised for a lost member.
pub const LATE: Nanos = Nanos::from_ms(1_300);
/// How long a broken connection to a member may take to come back before it is dropped.
pub const MEND: Nanos = Nanos::from_ms(1_000);
/// For how long after its start a host is patient with others that it cannot reach when it takes
/// an object over: a round of looking for hosts, and connecting.
pub const START_PATIENCE: Nanos = Nanos::from_secs(6);
/// How often an owner looks for late operations and lost leases.
pub const WATCH_EVERY: Nanos = Nanos::from_ms(100);
/// How long an append may stay unanswered before its connection is given up. Longer than `LATE`:
/// when all members are slow alike (one overloaded machine), nobody is dropped for it.
pub const APPEND_DEADLINE: Nanos = Nanos::from_secs(20);
/// How long a read of a member may take.
pub const READ_DEADLINE: Nanos = Nanos::from_secs(4);
/// A read that takes longer is asked of another member too, where reads do not usually take long.
pub const HEDGE: Nanos = Nanos::from_ms(40);
/// A read that takes longer is asked of another member in any case.
pub const HEDGE_MAX: Nanos = Nanos::from_ms(1_000);
/// For how long a disk group that was overtaken so is asked last.
pub const AVOID: Nanos = Nanos::from_secs(10);
/// How long an operation waits for slots to be set aside for it; it goes on without, and with what
/// it waits for a member then ([`LATE`]) the whole stays under the 2 s promised for a lost one.
pub const RESERVE_DEADLINE: Nanos = Nanos::from_ms(400);
/// Small calls: attach, tags.
pub const CALL_DEADLINE: Nanos = Nanos::from_secs(3);
/// How long a client's I/O is held while no owner or too few members can be reached.
pub const HOLD: Nanos = Nanos::from_secs(30);
/// How long one attempt of a client at a remote owner may take before the owner is asked again.
pub const CLIENT_DEADLINE: Nanos = Nanos::from_secs(25);
/// How long a host that owned an object, and has restarted, may take to take it back.
pub const TAKE_BACK_MAX: Nanos = Nanos::from_secs(2);
/// How long an owner that cannot be reached is left alone before another host takes over.
pub const TAKEOVER_AFTER: Nanos = Nanos::from_ms(600);
/// The same after this host could not reach the directory either: it was cut off, and making its
/// connections anew takes as long as the longest pause between two attempts, an attempt and a
/// handshake.
pub const REJOIN_PATIENCE: Nanos = Nanos::from_secs(3);
/// After a takeover that failed the next one waits for this long at first, and at most.
pub const TAKEOVER_PAUSE_FIRST: Nanos = Nanos::from_ms(100);
/// See [`TAKEOVER_PAUSE_FIRST`]; short, because guests wait for it.
pub const TAKEOVER_PAUSE_LAST: Nanos = Nanos::from_ms(1_600);
/// How long a shard that has given up an object leaves it to the one that is to take it: a takeover
/// from a shard of the same host takes milliseconds.
pub const HAND_OVER_MAX: Nanos = Nanos::from_secs(2);
/// For how long what a shard has said of where a disk group is outweighs what the inventory says:
/// longer than a host that has started takes to publish itself. It may have been an answer of an
/// earlier life, which came late.
pub const TOLD_MAX: Nanos = Nanos::from_secs(30);
/// Between attempts of whatever waits for the cluster to change.
pub const RETRY_EVERY: Nanos = Nanos::from_ms(100);
/// After a resync that failed the member is left alone for this long at first, and at most.
pub const READMIT_FIRST: Nanos = Nanos::from_secs(2);
/// See [`READMIT_FIRST`]: a disk group that was full is tried again within this.
pub const READMIT_LAST: Nanos = Nanos::from_secs(16);
/// How long a call to the directory may take.
pub const DIRECTORY_DEADLINE: Nanos = Nanos::from_secs(5);

/// Operations of one object in flight at its owner: far below the 2^16 that sequence numbers
/// allow (S7 of `docs/store.md`), and enough for 64 clients at depth 64.
pub const OPS_MAX: usize = 4096;
/// The same where bounds are small, in simulation.
pub(crate) const OPS_FEW: usize = 3;
/// Members of a leg: four copies, and one that takes the place of another.
pub(crate) const MEMBERS_MAX: usize = 5;
/// Payload of one object in flight at its owner, in bytes.
pub const BYTES_MAX: usize = 64 << 20;
/// Pieces of one client operation in flight at once.
pub const PIECES_MAX: usize = 16;
/// The largest read or write that a volume accepts at once, in bytes.
pub const IO_MAX: u32 = 32 << 20;
/// Chunks compared at once while two members are brought together.
pub const RECONCILE_AT_ONCE: usize = 8;
/// Chunks in one answer.
pub const CHUNKS_PER_REPLY: usize = 16 << 10;
/// Operations in one answer.
pub const OPS_PER_REPLY: usize = 8 << 10;
/// Tickets in one answer.
pub const TICKETS_PER_REPLY: usize = 16 << 10;

const _: () = assert!(LEASE.0 * 105 / 100 < GRACE.0, "grace covers the lease and 5 % of drift");
const _: () = assert!(RENEW_EVERY.0 * 4 < LEASE.0, "a lease survives three lost renewals");
const _: () = assert!((OPS_MAX as u64) < atoll_format::units::OPS_IN_FLIGHT_MAX);
const _: () = assert!(WATCH_EVERY.0 < LATE.0, "a late member is seen about when it is late");
const _: () = assert!(MEND.0 <= LATE.0, "a broken connection is given up before it is late");
const _: () = assert!(LATE.0 + RESERVE_DEADLINE.0 < 2_000_000_000, "the promise of a lost member");
const _: () = assert!(LATE.0 < APPEND_DEADLINE.0, "a late member is dropped, not its connection");
const _: () = assert!(HEDGE.0 < HEDGE_MAX.0 && HEDGE_MAX.0 < READ_DEADLINE.0);
const _: () = assert!(READ_DEADLINE.0 < HOLD.0 && CLIENT_DEADLINE.0 < HOLD.0);
const _: () = assert!(TAKEOVER_PAUSE_FIRST.0 <= TAKEOVER_PAUSE_LAST.0);
const _: () = assert!(READMIT_FIRST.0 <= READMIT_LAST.0);
const _: () = assert!(TAKEOVER_AFTER.0 < REJOIN_PATIENCE.0);
const _: () = assert!(IO_MAX as usize <= BYTES_MAX, "the largest write is let in");
const _: () = assert!(PIECES_MAX as u64 * atoll_format::units::CHUNK <= BYTES_MAX as u64);
const _: () = assert!(OPS_PER_REPLY * 35 < BODY_LEN_MAX && TICKETS_PER_REPLY * 16 < BODY_LEN_MAX);
const _: () = assert!(CHUNKS_PER_REPLY * 12 < BODY_LEN_MAX, "a page fits a body");

/// Of a page of a list with its count and flag.
const BODY_LEN_MAX: usize = atoll_format::frame::BODY_MAX as usize - 8;
