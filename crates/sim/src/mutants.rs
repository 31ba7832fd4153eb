//! Every deliberate flaw (`mutant!` in the code), what it breaks, and the rule that says so.
//!
//! `examples/mutants.rs` switches them on one after the other and runs seeds until something is
//! found; `docs/simulation.md` keeps what it found. A flaw that nothing finds means that a fault or
//! a check is missing.
//!
//! Not here are flaws that cannot be seen from outside, because a second rule stops them too.

use crate::fault::{FaultKind, FaultSet, Plan};
use crate::run;

/// One deliberate flaw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mutant {
    /// As in the code.
    pub name: &'static str,
    /// A rule of the protocol (R), of the store (S), or a promise (P).
    pub rule: &'static str,
    /// What it does wrong.
    pub broken: &'static str,
    /// Faults without which it hardly shows: seeds that lack one are passed over, to save time.
    pub needs: &'static [FaultKind],
}

impl Mutant {
    /// Whether that seed has the faults that it needs.
    pub fn may_show_in(&self, seed: u64) -> bool {
        let plan = Plan::of_seed(seed, run::hosts_of_seed(seed), FaultSet::ALL);
        self.needs.iter().all(|kind| plan.on.has(*kind))
    }
}

macro_rules! mutants {
    ($($name:literal, $rule:literal, [$($kind:ident),*], $broken:literal;)*) => {
        /// All of them, by area.
        pub const ALL: &[Mutant] = &[$(Mutant {
            name: $name,
            rule: $rule,
            broken: $broken,
            needs: &[$(FaultKind::$kind),*],
        },)*];
    };
}

mutants! {
    "member.session_not_checked", "R19", [StaleDisk],
        "reads, tags and lists of changes are answered for sessions that are over";
    "leg.one_ack_is_enough", "R4", [Kill],
        "a write is acknowledged when one member has it";
    "leg.nothing_is_sent_again", "R2", [ConnectionLost],
        "what is in flight is not sent again in a new session";
    "leg.lease_of_one_member", "R11", [Partition],
        "reads need the lease of one member, not of all";
    "leg.promoting_is_not_awaited", "R15", [DirectoryLate],
        "a member being promoted is not awaited";
    "ranges.exclusive_is_shared", "R8", [],
        "overlapping writes, copies and reads run together";
    "owner.merges_without_lock", "R8", [],
        "a read-modify-write locks out nothing but its like";
    "owner.resyncing_gets_nothing", "R14", [Kill],
        "operations are not sent to a resyncing member";
    "owner.superseded_goes_on", "R21", [Partition],
        "an owner that sees a newer epoch goes on";
    "owner.retry_joins_nothing", "R21", [ConnectionLost],
        "a retry runs beside its first attempt, or after it";
    "owner.retry_is_applied", "R21", [ConnectionLost, Kill],
        "nobody is asked whether a retry was applied already";
    "client.retry_is_new", "R21", [ConnectionLost, Kill],
        "a client does not say that a request is a retry";
    "outgoing.sent_counts_as_unsent", "R21", [ConnectionLost],
        "a call whose answer was lost counts as not sent";
    "component.tickets_not_noted", "R21", [ConnectionLost, Kill],
        "a member does not remember what it has applied";
    "store.not_incomplete", "S18", [],
        "a copy that is being brought up to date does not say so once it is put back";
    "resync.whole_is_not_noted", "S18", [],
        "a copy that is compared whole notes only that it lacks what is new";
    "member.lacks_what_is_asked_for", "S18", [],
        "a copy that is brought up to date keeps silent about what it lacks besides";
    "tickets.undone_is_remembered", "R21", [],
        "a member that is promoted goes on remembering what copies have undone in it";
    "tickets.not_made_equal", "R21", [ConnectionLost, Kill],
        "a takeover does not make the members' tickets equal";
    "tickets.not_with_the_copy", "R21", [],
        "a takeover brings what was written and, later, that it was";
    "tickets.not_brought", "R21", [ConnectionLost],
        "a promoted member does not know the tickets before it";
    "objects.any_admission", "R21", [],
        "what a client left on the wire is carried out later";
    "member.fence_waits_for_nobody", "R9", [Partition],
        "a fence is answered while an older lease runs";
    "member.goes_on_after_a_refusal", "R2", [FrameDamaged],
        "what comes behind a refused operation is taken";
    "member.serves_an_earlier_life", "R2", [TornWrite, Kill],
        "a member that restarted serves the session before";
    "grants.nothing_before_the_start", "R9", [Partition, Kill],
        "a member that restarted answers fences at once";
    "grants.whoever_served_is_dead", "R9", [Partition, Kill],
        "a member that restarted waits for no owner, not even for one that lives";
    "grants.own_older_life_binds", "R9", [Kill],
        "an owner that restarted waits for the lease of its old life";
    "grants.renewed_while_fencing", "R10", [Partition],
        "a fenced owner is still granted leases";
    "grants.grace_below_the_lease", "R9", [Partition],
        "a member honours a lease for less than it is trusted";
    "objects.refused_lease_counts", "R11", [Partition],
        "a lease that was refused counts as granted";
    "objects.lease_from_the_answer", "R9", [PacketDelayed, Partition],
        "a lease counts from its answer, not from the question";
    "read.without_lease", "R11", [Partition],
        "a read is answered without a lease";
    "read.without_lock", "R8", [],
        "a read overlaps writes in flight";
    "read.from_the_resyncing", "R19", [Kill],
        "a read asks a copy that is not up to date";
    "read.from_a_broken_session", "R19", [TornWrite, Kill],
        "a copy is read from that has lost something and is to be left out";
    "read.bad_is_zeros", "P3", [BitFlip],
        "a damaged block reads as zeros";
    "read.repairs_nothing", "P5", [BitFlip],
        "a damaged block is not rewritten from the other copy";
    "read.repairs_without_lock", "R17", [BitFlip],
        "a repair races the writes of its block";
    "read.late_repair_counts", "R17", [BitFlip, Kill],
        "a repair without an answer may arrive after a newer write";
    "change.without_revision", "R12", [DirectoryLate],
        "a change of the record does not compare its revision";
    "change.unknown_is_done", "R12", [DirectoryUnavailable],
        "a change without an answer counts as confirmed";
    "mend.acks_before_the_change", "R12", [DirectorySlow, Partition],
        "writes are acknowledged before a drop is confirmed";
    "mend.drops_the_last", "R20", [Kill],
        "the last active member is dropped";
    "mend.gaps_in_a_session", "R2", [ConnectionLost],
        "after a loss a session goes on, and what a member has is taken to be without gaps";
    "mend.from_rises", "R4", [Kill],
        "a resyncing member that fails is recorded as further than it was";
    "mend.lost_end_unnoticed", "S18", [TornWrite, Kill],
        "a member that lost what it acknowledged stays active";
    "takeover.epoch_stays", "R5", [Kill],
        "a new owner takes the epoch of the old one";
    "takeover.does_not_fence", "R6", [Partition],
        "a new owner opens sessions without fencing";
    "takeover.drops_all", "R6", [Kill],
        "members are dropped although none answered the fence";
    "takeover.settles_for_less", "S18", [TornWrite, ClusterPowerLoss],
        "a copy whose log is damaged is taken because its host is up first";
    "takeover.since_the_newest", "R6", [Kill],
        "a dropped member is recorded as having the newest";
    "takeover.seqs_come_again", "S7", [Kill],
        "an epoch uses the sequence numbers of the one before";
    "takeover.doubt_is_ignored", "S18", [TornWrite, Kill],
        "a member whose log was damaged counts as sound";
    "takeover.resyncing_is_active", "R16", [Kill],
        "a takeover takes a resyncing member for an active one";
    "takeover.rolls_nothing_forward", "R7", [Kill],
        "operations above W stay on some members only";
    "resync.copies_nothing", "R14", [Kill],
        "a member is promoted without the copy";
    "resync.own_past_stays", "R18", [Kill],
        "what only the returning member has is not compared";
    "resync.newer_wins", "R18", [Kill],
        "a returning member keeps blocks that are newer there";
    "resync.without_lock", "R17", [Kill],
        "a chunk is copied without its lock";
    "resync.discards_stay_behind", "R18", [Kill],
        "discards and zeros are not copied";
    "resync.lost_end_unnoticed", "S18", [TornWrite, Kill],
        "a returning member that lost its end keeps its `from`";
    "resync.stays_small", "R14", [StaleDisk],
        "a copy that is back as it was before the object grew stays that small";
    "resync.doubt_stays", "S18", [TornWrite, Kill],
        "a copy whose log was damaged stays in doubt after it has been compared whole";
    "resync.no_barrier", "R14", [ConnectionLost],
        "a member is promoted with operations unacknowledged";
    "resync.bad_becomes_zeros", "P3", [BitFlip],
        "a block without a good copy is copied as zeros";
    "store.session_not_checked", "R1", [Partition],
        "messages of older epochs and sessions are carried out";
    "store.fence_not_durable", "S19", [Partition, Kill],
        "fences and sessions are answered before they are durable";
    "store.commits_too_much", "R7", [],
        "each operation counts as committed when it arrives";
    "component.newest_not_saved", "R7", [Kill],
        "operations above W are forgotten when the log is trimmed";
    "state.discard_marks_nothing", "S10", [],
        "a discard is acknowledged and has no effect";
    "state.zero_is_forgotten", "P1", [],
        "a zeroing is acknowledged and has no effect";
    "state.slot_freed_early", "S14", [PowerLoss],
        "a superseded slot is free before the journal knows it";
    "log.answers_before_the_write", "P1", [],
        "an operation is answered before its batch is written";
    "log.batch_not_durable", "P1", [ClusterPowerLoss],
        "an operation is answered before its batch is flushed";
    "log.placed_not_awaited", "S14", [ClusterPowerLoss],
        "a placed write is answered before its bytes are there";
    "log.placed_not_durable", "S14", [ClusterPowerLoss],
        "a placed write is answered before its bytes are flushed";
    "log.overwrites_what_is_needed", "S12", [],
        "a full log overwrites a segment that is not free";
    "log.head_before_its_header", "S12", [],
        "a full segment may be trimmed before the header of the next is written";
    "recover.block_records_skipped", "S16", [Kill],
        "the journal's records of blocks are not replayed";
    "recover.placed_not_claimed", "S14", [PowerLoss],
        "slots of placed writes count as free after a restart";
    "recover.discards_forgotten", "S10", [Kill],
        "discards in the log are not replayed";
    "recover.last_batch_dropped", "S5", [ClusterPowerLoss],
        "the last batch of the log is dropped, whole or not";
    "recover.torn_batch_counts", "S5", [ClusterPowerLoss],
        "a torn batch is replayed";
    "recover.no_doubt", "S5", [TornWrite, Kill],
        "a member whose log was damaged does not say so";
    "journal.not_written", "S11", [Kill],
        "destage does not write its journal batch";
    "journal.not_durable", "S11", [PowerLoss],
        "destage does not flush its journal batch";
    "destage.growth_not_recorded", "P1", [],
        "blocks beyond a component's old end go home before its new size is journaled";
    "open.cache_is_believed", "P1", [WriteError, PowerLoss],
        "recovery builds on what only a device's cache has";
    "destage.trims_too_far", "S12", [],
        "the log is trimmed before its blocks are home";
    "destage.home_not_flushed", "S11", [PowerLoss],
        "the log is trimmed before its blocks at home are flushed";
    "destage.slot_given_up", "S13", [],
        "a slot is freed that still has blocks";
    "destage.whole_not_recorded", "S10", [Kill],
        "discards of whole chunks are not journaled";
    "destage.rest_forgotten", "S13", [],
        "what a round leaves of a chunk is not destaged until the next restart";
    "destage.the_older_wins", "S11", [],
        "destage forgets what was written meanwhile";
    "checkpoint.pages_not_flushed", "S15", [PowerLoss],
        "a checkpoint names pages that are not flushed";
    "checkpoint.second_copy_saves", "S16", [PowerLoss],
        "what only the second copy of a checkpoint holds counts as saved";
    "checkpoint.ends_the_log", "S16", [Kill],
        "a checkpoint ends the replay of a log that is still needed";
    "checkpoint.sum_forgets_a_byte", "S16", [Kill],
        "the checksum of a checkpoint forgets one byte";
    "checkpoint.body_not_flushed", "S16", [PowerLoss],
        "the head of a checkpoint is durable before its body";
    "checkpoint.page_not_checked", "S15", [BitFlip],
        "the checksum of a page is not compared";
    "read.not_checked", "S17", [BitFlip],
        "the checksum of a block is not compared";
    "read.beside_a_page_not_checked", "S17", [BitFlip],
        "the same when its page is read with it";
    "device.write_error_ignored", "P1", [WriteError],
        "a write that failed counts as done";
    "device.flush_error_ignored", "P1", [FlushError],
        "a flush that failed counts as done";
    "space.slot_given_twice", "S22", [],
        "a slot is given to two chunks";
    "outgoing.reply_to_the_oldest", "P3", [],
        "a reply is handed to the oldest call, not to its own";
    "peers.frames_not_checked", "P3", [FrameDamaged],
        "the checksums of a frame are not compared";
    "message.blocks_not_checked", "P3", [FrameDamaged],
        "a member's blocks are not compared with their checksums";
    "message.data_not_checked", "P3", [FrameDamaged],
        "an owner's data is not compared with its checksums";
    "care.adopts_nothing", "P6", [Kill],
        "nobody takes over an object that has no client";
    "objects.takes_over_as_it_rejoins", "R5", [PartitionFull],
        "a host that was cut off takes over before its connections are back";
    "objects.adopts_by_an_old_route", "P6", [LongPause],
        "a host believes that an object without a client is owned where it once found it";
    "takeover.epoch_for_nothing", "R5", [PartitionPair],
        "a host that reaches no copy raises the epoch";
    "state.loss_noted_late", "S18", [FlushError],
        "the log of a component whose device has failed is trimmed before its loss is written down";
    "care.failed_group_not_told", "P5", [WriteError],
        "a disk group that fails while nobody asks it for anything is not told to owners";
    "care.damage_not_told", "P5", [BitFlip],
        "damage that a scrub finds is not told to the owner";
    "care.old_view_is_believed", "P5", [DirectoryStaleRead],
        "a component that an old view of the directory does not name is removed at once";
}
