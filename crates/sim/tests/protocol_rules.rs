//! R22: every rule of the mirror protocol is necessary, and together they suffice.
//!
//! One test a rule, named for the flaw that it closes (F1-F19 are those of the protocol's design
//! page): the model without the rule has a violation of the expected kind, whose shortest trace
//! is printed; the same bounded space with all rules has none. Then the larger spaces, complete,
//! and random walks with every trouble at once, all rules on.
//!
//! Rules without a flaw of their own in here: "one change in flight" (R12) is built into the model;
//! "a lease is held" at promotion (R14) is covered by the lease check of every read (R13). R22 is
//! this file. `cargo test -p atoll-sim --test protocol_rules -- --nocapture` prints traces and
//! counts.

use atoll_sim::model::{Budget, Config, Outcome, Rule, Rules, Start, Wrong, check, walk};
use atoll_sim::model::{lease, restart, ticket};

/// More states than any space below has.
const LIMIT: u64 = 8_000_000;
const NONE: Budget = Config::QUIET.budget;
/// One owner for ever.
const QUIET: Config = Config::QUIET;
/// Host 1 may take over once.
const TAKEOVER: Config = Config { epochs: 2, ..QUIET };
/// C (here the last of two members, B) is resyncing and lacks nothing.
const RESYNCING: Config = Config { start: Start::Resyncing, ..QUIET };
/// It lacks an acknowledged write.
const BEHIND: Config = Config { start: Start::Behind, ..QUIET };

fn sound(name: &str, outcome: &Outcome) {
    println!("{name}: {} states, complete, no violation", outcome.states);
    if let Some(trace) = &outcome.violation {
        panic!("{name}: violation with all rules on:\n{trace}");
    }
    assert!(outcome.complete, "{name}: cut off at {} states", outcome.states);
    assert_eq!(outcome.overflows, 0, "{name}: the modelled network was full");
}

fn flawed(rule: Rule, wrong: Wrong, outcome: &Outcome) {
    let Some(trace) = &outcome.violation else {
        panic!("without {rule:?} the model finds nothing in {} states: blind", outcome.states);
    };
    println!("without {rule:?}, after {} states:\n{trace}", outcome.states);
    assert_eq!(trace.wrong, wrong, "another flaw than expected");
}

/// Without `rule` something is `wrong`; with it nothing is.
fn needs(rule: Rule, wrong: Wrong, config: Config) {
    flawed(rule, wrong, &check(config, Rules::without(rule), LIMIT));
    sound(&format!("with {rule:?}"), &check(config, Rules::ALL, LIMIT));
}

// Fencing, sessions, op ids

#[test]
fn r1_f3_a_restarted_member_forgets_the_fence() {
    let budget = Budget { reads: 2, restarts: 1, ..NONE };
    needs(Rule::R1FencedEpochDurable, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

#[test]
fn r2_f2_a_late_message_of_the_same_epoch_reverts_a_block() {
    let budget = Budget { reads: 1, reattaches: 1, ..NONE };
    let config = Config { writes: 2, budget, ..QUIET };
    needs(Rule::R2Sessions, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r2_f8_an_ack_of_an_older_session_counts_as_delivery() {
    let budget = Budget { reads: 2, reattaches: 1, promotes: 1, copies: 1, ..NONE };
    let config = Config { lock_free_copy: true, budget, ..RESYNCING };
    needs(Rule::R2AcksOfThisSession, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r2_f10_an_op_in_flight_at_attach_is_never_sent() {
    let budget = Budget { reads: 2, reattaches: 1, promotes: 1, copies: 1, ..NONE };
    let config = Config { budget, ..RESYNCING };
    needs(Rule::R2PendingSentAgain, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r3_f4_a_resyncing_member_takes_writes_of_the_old_owner() {
    let budget = Budget { reads: 2, promotes: 1, ..NONE };
    let config = Config { epochs: 2, budget, ..RESYNCING };
    needs(Rule::R3AttachResyncing, Wrong::NotLinearizable, config);
}

#[test]
fn r4_f11_since_is_higher_than_what_all_members_hold() {
    let budget = Budget { drops: 1, readmits: 1, promotes: 1, copies: 1, ..NONE };
    let config = Config { budget, ..QUIET };
    needs(Rule::R4SinceIsWatermark, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r4_roll_forward_with_new_ids_raises_the_watermark() {
    // A flaw of our own: W counted from the new ids says that everything of older epochs is
    // everywhere, while some of it still waits to be rolled forward.
    let budget = Budget { reads: 2, crashes: 1, ..NONE };
    let config = Config { epochs: 3, writes: 2, blocks: [0, 1, 0], new_ids: true, budget, ..QUIET };
    needs(Rule::R4RolledHoldWatermark, Wrong::NotLinearizable, config);
}

#[test]
fn r4_f12_since_rises_on_the_second_failure() {
    let budget = Budget { drops: 1, readmits: 1, promotes: 1, copies: 1, ..NONE };
    needs(Rule::R4KeepFrom, Wrong::ActiveLacksAcknowledged, Config { budget, ..BEHIND });
}

#[test]
fn r5_f14_a_restarted_owner_goes_on_in_its_epoch() {
    let budget = Budget { reads: 2, crashes: 1, ..NONE };
    needs(Rule::R5NewEpoch, Wrong::NotLinearizable, Config { budget, ..QUIET });
}

// Takeover

#[test]
fn r6_f11_roll_forward_does_not_hear_every_active_member() {
    let budget = Budget { reads: 2, ..NONE };
    needs(Rule::R6AllActiveAnswer, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

#[test]
fn r6_f11_a_takeover_drops_with_a_since_of_its_own_epoch() {
    let budget = Budget { reads: 2, drops: 1, readmits: 1, promotes: 1, copies: 1, ..NONE };
    needs(Rule::R6SinceFromAnswers, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

#[test]
fn r6_f18_a_takeover_drops_before_anyone_answered() {
    let budget = Budget { drops: 1, deaths: 1, ..NONE };
    let config = Config { budget, ..TAKEOVER };
    needs(Rule::R6FenceBeforeDrop, Wrong::NeedlesslyInaccessible, config);
}

#[test]
fn r7_f11_an_uncommitted_write_stays_on_one_member() {
    let budget = Budget { reads: 2, ..NONE };
    needs(Rule::R7RollForward, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

#[test]
fn r7_f1_a_block_is_served_while_it_is_rolled_forward() {
    let budget = Budget { reads: 2, drops: 1, crashes: 1, ..NONE };
    let config = Config { epochs: 3, budget, ..QUIET };
    needs(Rule::R7BlockLocked, Wrong::NotLinearizable, config);
}

#[test]
fn r7_a20_a_restarted_member_lists_too_few_uncommitted_ops() {
    let budget = Budget { reads: 2, restarts: 1, ..NONE };
    needs(Rule::R7DescriptorsDurable, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

// Reads and leases

#[test]
fn r8_f1_a_read_sees_a_write_in_flight() {
    let budget = Budget { reads: 2, ..NONE };
    needs(Rule::R8ReadsWait, Wrong::NotLinearizable, Config { budget, ..QUIET });
}

#[test]
fn r8_a_write_gives_its_lock_back_before_its_fate_is_decided() {
    let budget = Budget { reads: 2, ..NONE };
    needs(Rule::R8LockUntilDecided, Wrong::NotLinearizable, Config { budget, ..QUIET });
}

#[test]
fn r8_a_late_reply_answers_a_later_read() {
    let budget = Budget { reads: 2, ..NONE };
    needs(Rule::R8LateReplies, Wrong::NotLinearizable, Config { budget, ..QUIET });
}

#[test]
fn r9_f5_a_restarted_member_forgets_its_grant() {
    let budget = Budget { reads: 1, drops: 1, restarts: 1, ..NONE };
    needs(Rule::R9RestartGrace, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

#[test]
fn r9_f17_a_late_give_back_ends_a_newer_lease() {
    let budget = Budget { reads: 1, drops: 1, give_backs: 1, ..NONE };
    needs(Rule::R9Serials, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

#[test]
fn r9_a_fence_is_answered_before_the_lease_ends() {
    let budget = Budget { reads: 1, drops: 1, ..NONE };
    needs(Rule::R9GraceOutlivesLease, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

#[test]
fn r9_a_grace_of_one_lease_forgets_the_drift_of_clocks() {
    let rule = Rule::R9GraceOutlivesLease;
    flawed(rule, Wrong::LeaseOutlivesFence, &lease::check(Rules::without(rule)));
}

#[test]
fn r9_a_restarted_member_waits_unless_only_a_dead_life_can_have_leases() {
    sound("restart", &restart::check(Rules::ALL));
    for rule in [Rule::R9OnlyDeadLives, Rule::R9DeathIsProved, Rule::R9ServedIsSettled] {
        flawed(rule, Wrong::LeaseOutlivesFence, &restart::check(Rules::without(rule)));
    }
}

#[test]
fn r10_f18_a_living_host_pair_lease_blocks_a_takeover_for_ever() {
    let rule = Rule::R10LeaveOut;
    flawed(rule, Wrong::FenceWaitsTooLong, &lease::check(Rules::without(rule)));
    sound("host pair lease", &lease::check(Rules::ALL));
}

#[test]
fn r11_f6_a_read_under_the_lease_of_one_member_only() {
    let budget = Budget { reads: 1, drops: 1, ..NONE };
    needs(Rule::R11EveryLease, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

#[test]
fn r11_f6_a_read_is_answered_after_the_lease() {
    let budget = Budget { reads: 1, drops: 1, ..NONE };
    needs(Rule::R11CheckWhenAnswering, Wrong::NotLinearizable, Config { budget, ..TAKEOVER });
}

// Membership changes

#[test]
fn r12_f15_an_ack_before_the_drop_is_confirmed() {
    let budget = Budget { drops: 1, ..NONE };
    let config = Config { budget, ..QUIET };
    needs(Rule::R12Confirmed, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r12_f16_a_delayed_change_is_applied_to_a_changed_record() {
    let budget = Budget { promotes: 1, overdue: 1, ..NONE };
    let config = Config { budget, ..RESYNCING };
    needs(Rule::R12CompareRevision, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r12_f7c_a_plain_read_is_believed_and_the_change_comes_after() {
    let budget = Budget { promotes: 1, overdue: 1, ..NONE };
    let config = Config { budget, ..RESYNCING };
    needs(Rule::R12ResolveByWriting, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r13_f7a_no_lease_from_the_member_being_promoted() {
    let budget = Budget { promotes: 1, reads: 1, drops: 1, overdue: 1, ..NONE };
    let config = Config { epochs: 2, budget, ..RESYNCING };
    needs(Rule::R13StricterOfBoth, Wrong::NotLinearizable, config);
}

#[test]
fn r14_f8_promotion_without_the_forwarded_ops() {
    let budget = Budget { promotes: 1, ..NONE };
    let config = Config { budget, ..RESYNCING };
    needs(Rule::R14OpsAcked, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r14_promotion_without_the_chunks() {
    let config = Config { writes: 0, budget: Budget { promotes: 1, ..NONE }, ..BEHIND };
    needs(Rule::R14ChunksCopied, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r14_f10_a_copy_is_under_way_at_promotion() {
    let budget = Budget { promotes: 1, copies: 2, ..NONE };
    let config = Config { lanes: true, budget, ..BEHIND };
    needs(Rule::R14NoCopyUnderWay, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r15_f7b_new_writes_do_not_await_the_member_being_promoted() {
    let budget = Budget { promotes: 1, ..NONE };
    let config = Config { budget, ..RESYNCING };
    needs(Rule::R15AwaitPromoted, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r16_f9_an_equal_chunk_id_is_taken_as_proof() {
    let config = Config { blocks: [1; 3], budget: Budget { promotes: 1, ..NONE }, ..BEHIND };
    needs(Rule::R16BehindMark, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r17_f10_a_copy_lands_on_a_newer_write() {
    let budget = Budget { promotes: 1, copies: 1, ..NONE };
    needs(Rule::R17CopyLock, Wrong::ActiveLacksAcknowledged, Config { budget, ..BEHIND });
}

#[test]
fn r17b_f10_a_lock_free_copy_lands_on_a_newer_write() {
    let budget = Budget { promotes: 1, copies: 1, ..NONE };
    let config = Config { lock_free_copy: true, budget, ..BEHIND };
    needs(Rule::R17CopyLock, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r17_f10_a_repair_that_timed_out_lands_on_a_newer_write() {
    // Both members are active; the copy repairs bad bytes, and travels on a lane of its own.
    let config = Config { lanes: true, budget: Budget { copies: 1, ..NONE }, ..QUIET };
    needs(Rule::R17LockUntilAcked, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r18_f13_a_stale_members_own_write_survives_its_resync() {
    let budget = Budget { readmits: 1, promotes: 1, copies: 1, reads: 2, ..NONE };
    let config = Config { start: Start::OwnPast, budget, ..TAKEOVER };
    needs(Rule::R18OwnPast, Wrong::NotLinearizable, config);
}

#[test]
fn r19_an_absent_member_serves_a_read() {
    let config = Config { start: Start::Absent, budget: Budget { reads: 1, ..NONE }, ..QUIET };
    needs(Rule::R19OnlyActiveServe, Wrong::NotLinearizable, config);
}

#[test]
fn r20_the_last_active_member_is_dropped() {
    let config = Config { budget: Budget { drops: 2, ..NONE }, ..QUIET };
    needs(Rule::R20KeepLastActive, Wrong::NoActiveMember, config);
}

#[test]
fn r20_a18_an_absent_member_is_served_because_it_is_there() {
    let config = Config { start: Start::AbsentBehind, ..TAKEOVER };
    needs(Rule::R20DirectoryDecides, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r21_a_deposed_owner_goes_on_changing_the_record() {
    let config = Config { epochs: 2, budget: Budget { promotes: 2, ..NONE }, ..RESYNCING };
    needs(Rule::R21Stop, Wrong::ActiveLacksAcknowledged, config);
}

#[test]
fn r21_f19_a_write_sent_again_lands_after_a_newer_one() {
    for rule in [
        Rule::R21Tickets,
        Rule::R21TicketsUntilSettled,
        Rule::R21EveryRequest,
        Rule::R21SettledRefused,
    ] {
        flawed(rule, Wrong::NotLinearizable, &ticket::check(Rules::without(rule)));
    }
    sound("retries with tickets", &ticket::check(Rules::ALL));
}

// All rules on

fn complete(name: &str, config: Config) {
    sound(name, &check(config, Rules::ALL, LIMIT));
}

#[test]
fn complete_takeover_drop_and_crashes() {
    let budget = Budget { reads: 1, drops: 1, crashes: 1, ..NONE };
    let three = Config { epochs: 3, budget, ..QUIET };
    complete("takeover, drop, owner crash, 2 writes", Config { writes: 2, ..three });
    complete("takeover, drop, owner crash, late acks", Config { acks_travel: true, ..three });
    complete("takeover, drop, owner crash, new ids", Config { new_ids: true, ..three });
    let budget = Budget { restarts: 1, ..budget };
    complete("takeover, drop, owner crash, member restart", Config { budget, ..three });
    let budget = Budget { reads: 2, drops: 1, give_backs: 1, restarts: 1, ..NONE };
    complete("takeover, drop, give-back, member restart", Config { budget, ..TAKEOVER });
    let budget = Budget { reads: 2, drops: 1, deaths: 1, ..NONE };
    complete("takeover, drop, member dead for good", Config { budget, ..TAKEOVER });
}

#[test]
fn complete_resync_with_lost_directory_answers() {
    let budget = Budget { reads: 1, drops: 1, promotes: 1, copies: 1, overdue: 1, ..NONE };
    let config = Config { epochs: 2, writes: 2, budget, ..BEHIND };
    complete("takeover, copy, promote, lost answers, 2 writes", config);
    let config = Config { lock_free_copy: true, ..config };
    complete("the same with a lock-free copy", config);
}

#[test]
fn complete_resync_with_lost_messages() {
    let budget = Budget { promotes: 1, copies: 2, reattaches: 2, restarts: 1, reads: 1, ..NONE };
    let config = Config { writes: 2, blocks: [0, 1, 0], budget, ..BEHIND };
    complete("copy, promote, sessions opened again, restart", config);
    let lock_free = Config { lock_free_copy: true, ..config };
    complete("the same with a lock-free copy", lock_free);
    let lanes = Config { lanes: true, ..config };
    complete("the same with copies on a lane of their own", lanes);
    let lanes = Config { lanes: true, ..lock_free };
    complete("the same with lock-free copies on a lane of their own", lanes);
    let budget = Budget { reads: 1, promotes: 1, copies: 1, reattaches: 1, ..NONE };
    let config = Config { epochs: 2, acks_travel: true, budget, ..BEHIND };
    complete("takeover, copy, promote, lost messages, late acks", config);
}

#[test]
fn complete_leave_and_return() {
    let budget = Budget { reads: 1, drops: 1, readmits: 1, promotes: 1, copies: 1, ..NONE };
    complete("drop, return, copy, promote", Config { writes: 2, budget, ..TAKEOVER });
    let config = Config { start: Start::OwnPast, epochs: 3, writes: 2, budget, ..QUIET };
    complete("return of a member with a write of its own", config);
    let budget = Budget { readmits: 0, ..budget };
    let config = Config { members: 3, epochs: 2, budget, ..BEHIND };
    complete("three members, one behind", config);
}

/// All troubles at once, in spaces far too large to search.
const STORM: Config = Config {
    start: Start::Healthy,
    members: 3,
    epochs: 4,
    writes: 3,
    blocks: [0, 1, 0],
    acks_travel: true,
    lock_free_copy: false,
    lanes: false,
    new_ids: false,
    budget: Budget {
        reads: 3,
        drops: 2,
        readmits: 2,
        promotes: 2,
        copies: 3,
        reattaches: 2,
        crashes: 2,
        restarts: 2,
        deaths: 0,
        overdue: 2,
        duplicates: 2,
        give_backs: 1,
    },
};

#[test]
fn walks_with_every_trouble_find_nothing() {
    let pair = Config { members: 2, blocks: [0; 3], ..STORM };
    let storms = [
        ("healthy", STORM),
        ("healthy, new ids in roll-forward", Config { new_ids: true, ..STORM }),
        ("resyncing", Config { start: Start::Resyncing, ..STORM }),
        ("behind", Config { start: Start::Behind, ..STORM }),
        ("behind, lock-free copy", Config { start: Start::Behind, lock_free_copy: true, ..STORM }),
        ("behind, lanes", Config { start: Start::Behind, lanes: true, ..STORM }),
        (
            "behind, lanes, lock-free copy",
            Config { start: Start::Behind, lanes: true, lock_free_copy: true, ..pair },
        ),
        ("absent, lanes", Config { start: Start::AbsentBehind, lanes: true, ..pair }),
        ("absent", Config { start: Start::AbsentBehind, ..pair }),
        ("own past", Config { start: Start::OwnPast, ..pair }),
    ];
    for (seed, (name, config)) in storms.into_iter().enumerate() {
        let outcome = walk(config, Rules::ALL, seed as u64, 80_000, 150);
        println!("walks, {name}: {} steps, no violation", outcome.states);
        if let Some(trace) = outcome.violation {
            panic!("walks, {name}: violation with all rules on:\n{trace}");
        }
        assert!(outcome.states > 1_000_000, "{name}: walks end early, {} steps", outcome.states);
    }
}

#[test]
fn walks_see_flaws_that_take_long() {
    // The walks are no blind stroll: without one rule they meet a violation, from a start that
    // was not chosen for it.
    for rule in [Rule::R2Sessions, Rule::R5NewEpoch, Rule::R7RollForward, Rule::R17CopyLock] {
        let outcome = walk(STORM, Rules::without(rule), 0, 80_000, 150);
        assert!(outcome.violation.is_some(), "without {rule:?}: {} steps", outcome.states);
    }
}
