//! What a takeover makes of the record and of the answers of its members: decisions, and nothing
//! else. No message, no clock, no directory.

use crate::layout::Layout;
use crate::record_rules::check_change;
use atoll_format::id::{ComponentId, HostId, Incarnation, Seq, Session};
use atoll_format::op::Promise;
use atoll_format::record::{MemberRecord, MemberState, ObjectRecord, OwnerRecord, ServedRecord};
use atoll_format::units::{OPS_IN_FLIGHT_MAX, SEQ_EPOCH_GAP};
use atoll_world::{mutant, sometimes};
use std::collections::{BTreeMap, BTreeSet};

/// What one active member answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FenceAnswer {
    pub promise: Promise,
    pub doubtful: bool,
    pub session: Session,
    /// Of its host, as it answered.
    pub life: Option<Incarnation>,
}

/// The answers of members, by component.
pub(super) type FenceAnswers = BTreeMap<ComponentId, FenceAnswer>;

/// Why the members that have answered are not enough.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NotEnough {
    /// No active member of that leg has answered (R6).
    NoneAnswered {
        /// Which one.
        leg: usize,
    },
    /// Those of that leg that have answered lack some of what they had acknowledged, and others
    /// may still come (S18).
    OthersMayCome {
        /// Which one.
        leg: usize,
        /// On which hosts.
        on: Vec<HostId>,
    },
}

/// Whether a takeover may go on with the active members that have answered. `lost`: members whose
/// content is known to be gone. `settles_for_less`: the others have been waited for long enough.
///
/// # Errors
/// What is missing.
pub(super) fn are_enough(
    record: &ObjectRecord,
    fenced: &FenceAnswers,
    lost: &BTreeSet<ComponentId>,
    settles_for_less: bool,
) -> Result<(), NotEnough> {
    let layout = Layout::of(&record.policy);
    for (leg, recorded) in record.legs.iter().enumerate() {
        let active = || recorded.members.iter().filter(|m| m.state.is_active());
        let answer = |m: &MemberRecord| fenced.get(&m.component);
        let any = layout.is_enough(active().filter(|m| answer(m).is_some()).count());
        if !any && !mutant!("takeover.drops_all") {
            sometimes!("takeover.inaccessible");
            return Err(NotEnough::NoneAnswered { leg });
        }
        // What was acknowledged may be on one that is not up yet (S18): a damaged log must not win
        // because its host started first.
        let sound = active().filter(|m| answer(m).is_some_and(|a| !a.doubtful));
        let any_sound = layout.is_enough(sound.count());
        let may_come = active().filter(|m| answer(m).is_none() && !lost.contains(&m.component));
        let on: Vec<HostId> = may_come.map(|m| m.host).collect();
        let settles = settles_for_less || mutant!("takeover.settles_for_less");
        if any && !any_sound && !on.is_empty() && !settles {
            sometimes!("takeover.waits_for_a_better_copy");
            return Err(NotEnough::OthersMayCome { leg, on });
        }
    }
    Ok(())
}

/// Decides who stays active, and the record that says so. Returns each leg's watermark too.
/// `at_ms`: the time since which those that are left out are away, in milliseconds since 1970.
pub(super) fn settle(
    mut record: ObjectRecord,
    fenced: &FenceAnswers,
    lost: &BTreeSet<ComponentId>,
    resyncing: &FenceAnswers,
    at_ms: u64,
) -> (ObjectRecord, Vec<Seq>) {
    let mut newest = record.seq_base;
    let mut committed = Vec::new();
    for leg in &mut record.legs {
        let answers = || leg.members.iter().filter_map(|m| fenced.get(&m.component));
        // The highest watermark that any fenced member knows, before roll-forward (R4).
        let mut watermark = answers().map(|a| a.promise.committed).max().unwrap_or_default();
        if mutant!("takeover.since_the_newest") {
            watermark = answers().map(|a| a.promise.newest).max().unwrap_or_default();
        }
        newest = newest.max(answers().map(|a| a.promise.newest).max().unwrap_or_default());
        let doubtful = |a: &FenceAnswer| a.doubtful && !mutant!("takeover.doubt_is_ignored");
        let sound = |a: &FenceAnswer| !doubtful(a) && a.promise.newest >= watermark;
        let any_sound = answers().any(sound);
        // Without one, what is left is what there is: others are compared with it whole.
        let none_sound = !any_sound && answers().next().is_some();
        let behind = |since: Seq| if none_sound { Seq(0) } else { since };
        for member in &mut leg.members {
            let lost = lost.contains(&member.component);
            match (member.state, fenced.get(&member.component)) {
                (MemberState::Active, None) => {
                    sometimes!("takeover.drops_an_unreachable_member");
                    member.state = MemberState::Absent { since: behind(watermark), at_ms, lost };
                }
                (MemberState::Absent { since, at_ms, lost }, _) => {
                    member.state = MemberState::Absent { since: behind(since), at_ms, lost };
                }
                // It lacks what is known to be committed: its disk has lost the end of what it had
                // acknowledged, and has all below what it knows to be committed itself. One that
                // is doubtful may lack anything.
                (MemberState::Active, Some(a)) if !sound(a) && any_sound => {
                    sometimes!("takeover.drops_a_stale_member");
                    let own = a.promise.committed.min(a.promise.newest);
                    let since = if doubtful(a) { Seq(0) } else { own };
                    member.state = MemberState::Absent { since, at_ms, lost };
                }
                (MemberState::Resyncing { from }, _) => match resyncing.get(&member.component) {
                    None => {
                        member.state = MemberState::Absent { since: behind(from), at_ms, lost };
                    }
                    Some(_) if mutant!("takeover.resyncing_is_active") => {
                        member.state = MemberState::Active;
                    }
                    // Not with this session: in it the member has noted that it lacks only what is
                    // newer than `from`.
                    Some(a)
                        if from > Seq(0)
                            && (doubtful(a) || a.promise.newest < from || none_sound) =>
                    {
                        member.state = MemberState::Absent { since: Seq(0), at_ms, lost };
                    }
                    Some(_) => {}
                },
                _ => {}
            }
        }
        committed.push(watermark);
    }
    for answer in resyncing.values() {
        newest = newest.max(answer.promise.newest);
    }
    // Never below what any earlier epoch can have used, also towards members that are away now
    // (S7).
    let gap = if mutant!("takeover.seqs_come_again") { 0 } else { SEQ_EPOCH_GAP };
    record.attached = Some(1);
    record.seq_base = if gap == 0 { record.seq_base } else { Seq(newest.0 + gap) };
    // Whoever was left out holds leases of nobody who could still read (R9).
    record.served = record.owner.map(|OwnerRecord { host, incarnation, .. }| ServedRecord {
        epoch: record.epoch,
        host,
        incarnation,
    });
    (record, committed)
}

/// What a takeover makes of the record, whoever answered what.
pub(super) fn check_settled(
    before: &ObjectRecord,
    after: &ObjectRecord,
    fenced: &FenceAnswers,
    resyncing: &FenceAnswers,
) {
    check_change(before, after);
    let served = after.served.expect("who settles it serves it");
    assert_eq!(served.epoch, after.epoch, "its own epoch");
    let members = before.members().zip(after.members());
    for ((leg, was), (_, now)) in members {
        assert_eq!(was.component, now.component, "leg {leg} keeps its members, in their order");
        // R19, R20: nobody serves who did not before, or did not promise (R6).
        let may_serve = was.state.is_active() && fenced.contains_key(&now.component);
        assert!(may_serve || !now.state.is_active(), "{now:?} may not serve");
        let is_attached = resyncing.contains_key(&now.component);
        assert!(is_attached || !now.state.is_resyncing(), "{now:?} was not attached (R3)");
    }
    for answer in fenced.values().chain(resyncing.values()) {
        assert_eq!(answer.session.epoch, after.epoch, "an answer to another epoch");
        // S7.
        let beyond = answer.promise.newest.0 + OPS_IN_FLIGHT_MAX;
        assert!(beyond < after.seq_base.0, "{answer:?} may have used {:?}", after.seq_base);
    }
    let gap = before.seq_base.0 + OPS_IN_FLIGHT_MAX;
    assert!(gap < after.seq_base.0, "{:?} after {:?}", after.seq_base, before.seq_base);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use atoll_format::id::{Epoch, GroupId, ObjectId};
    use atoll_format::record::{LegRecord, ObjectState, OwnerRecord, Policy, RECORD_VERSION};

    const BASE: Seq = Seq(100);
    const NOW: u64 = 77;

    /// A record of one leg with members 0, 1, ... in these states, in epoch 3.
    pub fn record(states: &[MemberState]) -> ObjectRecord {
        let member = |(i, &state): (usize, &MemberState)| {
            let n = i as u64;
            MemberRecord { component: ComponentId(n), host: HostId(n), group: GroupId(n), state }
        };
        ObjectRecord {
            version: RECORD_VERSION,
            id: ObjectId(1),
            name: "v".into(),
            state: ObjectState::Ready,
            size_bytes: 1 << 20,
            policy: Policy { failures_to_tolerate: states.len() as u8 - 1, ..Policy::DEFAULT },
            epoch: Epoch(3),
            owner: Some(OwnerRecord { host: HostId(9), shard: 0, incarnation: Incarnation(1) }),
            seq_base: BASE,
            legs: vec![LegRecord { members: states.iter().enumerate().map(member).collect() }],
            attached: None,
            served: None,
            nonce: 0,
        }
    }

    fn answer(committed: u64, newest: u64, doubtful: bool) -> FenceAnswer {
        let promise = Promise { fenced: Epoch(3), committed: Seq(committed), newest: Seq(newest) };
        let session = Session { epoch: Epoch(3), attach: 1 };
        FenceAnswer { promise, doubtful, session, life: None }
    }

    type Answers<'a> = &'a [(u64, FenceAnswer)];

    fn answers(all: Answers<'_>) -> FenceAnswers {
        all.iter().map(|&(n, a)| (ComponentId(n), a)).collect()
    }

    /// The states after a takeover, its watermark, and its base of sequence numbers; the general
    /// rules hold.
    fn settled(
        states: &[MemberState],
        fenced: Answers<'_>,
        lost: &[u64],
        resyncing: Answers<'_>,
    ) -> (Vec<MemberState>, Seq, Seq) {
        let before = record(states);
        let (fenced, resyncing) = (answers(fenced), answers(resyncing));
        let lost = lost.iter().map(|&n| ComponentId(n)).collect();
        let (after, committed) = settle(before.clone(), &fenced, &lost, &resyncing, NOW);
        check_settled(&before, &after, &fenced, &resyncing);
        (after.members().map(|(_, m)| m.state).collect(), committed[0], after.seq_base)
    }

    const ACTIVE: MemberState = MemberState::Active;

    fn absent(since: u64) -> MemberState {
        MemberState::Absent { since: Seq(since), at_ms: NOW, lost: false }
    }

    fn resyncing(from: u64) -> MemberState {
        MemberState::Resyncing { from: Seq(from) }
    }

    #[test]
    fn who_answers_with_all_that_is_committed_stays() {
        let both = [(0, answer(200, 210, false)), (1, answer(205, 205, false))];
        let (states, watermark, base) = settled(&[ACTIVE, ACTIVE], &both, &[], &[]);
        assert_eq!(states, [ACTIVE, ACTIVE]);
        assert_eq!(watermark, Seq(205), "the highest that any of them knows (R4)");
        assert_eq!(base, Seq(210 + SEQ_EPOCH_GAP), "above all that was ever used (S7)");
    }

    #[test]
    fn who_does_not_answer_is_absent_since_the_watermark() {
        let one = [(0, answer(200, 210, false))];
        let (states, ..) = settled(&[ACTIVE, ACTIVE], &one, &[], &[]);
        assert_eq!(states, [ACTIVE, absent(200)]);
        let (states, ..) = settled(&[ACTIVE, ACTIVE], &one, &[1], &[]);
        let gone = MemberState::Absent { since: Seq(200), at_ms: NOW, lost: true };
        assert_eq!(states, [ACTIVE, gone], "known to be lost");
    }

    #[test]
    fn who_lacks_what_is_committed_is_stale_as_long_as_another_does_not() {
        let two = |lacks| [(0, answer(200, 210, false)), (1, lacks)];
        let (states, ..) = settled(&[ACTIVE, ACTIVE], &two(answer(150, 160, false)), &[], &[]);
        assert_eq!(states, [ACTIVE, absent(150)], "it has all that it knows to be committed");
        let (states, ..) = settled(&[ACTIVE, ACTIVE], &two(answer(150, 140, false)), &[], &[]);
        assert_eq!(states, [ACTIVE, absent(140)], "not even that");
        let (states, ..) = settled(&[ACTIVE, ACTIVE], &two(answer(200, 210, true)), &[], &[]);
        assert_eq!(states, [ACTIVE, absent(0)], "in doubt it may lack anything");
    }

    #[test]
    fn what_is_left_is_what_there_is_and_others_are_compared_with_it_whole() {
        let states = [ACTIVE, ACTIVE, absent(50), resyncing(40)];
        let (after, ..) =
            settled(&states, &[(0, answer(200, 210, true))], &[], &[(3, answer(0, 220, false))]);
        assert_eq!(after, [ACTIVE, absent(0), absent(0), absent(0)]);
        let (after, ..) =
            settled(&states, &[(0, answer(200, 210, false))], &[], &[(3, answer(0, 220, false))]);
        assert_eq!(after, [ACTIVE, absent(200), absent(50), resyncing(40)]);
    }

    #[test]
    fn a_resync_goes_on_only_in_a_session_and_with_what_it_had() {
        let one = [(0, answer(200, 210, false))];
        for (answered, expected) in [
            (vec![], absent(40)),
            (vec![(1, answer(0, 300, false))], resyncing(40)),
            (vec![(1, answer(0, 39, false))], absent(0)),
            (vec![(1, answer(0, 300, true))], absent(0)),
        ] {
            let (states, _, base) = settled(&[ACTIVE, resyncing(40)], &one, &[], &answered);
            assert_eq!(states[1], expected, "{answered:?}");
            let newest = answered.iter().map(|(_, a)| a.promise.newest.0).max().unwrap_or(0);
            assert!(base.0 >= newest.max(210) + SEQ_EPOCH_GAP, "also above its own (S7)");
        }
        let (states, ..) = settled(&[ACTIVE, resyncing(0)], &one, &[], &[(1, answer(0, 0, true))]);
        assert_eq!(states[1], resyncing(0), "it is compared whole already");
    }

    #[test]
    fn a_takeover_waits_for_who_may_have_more() {
        let two = record(&[ACTIVE, ACTIVE]);
        let (sound, doubtful) = (answer(5, 5, false), answer(5, 5, true));
        let none = BTreeSet::new();
        let lost = BTreeSet::from([ComponentId(1)]);
        let may_come = Err(NotEnough::OthersMayCome { leg: 0, on: vec![HostId(1)] });
        for (fenced, lost, settles, expected) in [
            (vec![], &none, false, Err(NotEnough::NoneAnswered { leg: 0 })),
            (vec![], &none, true, Err(NotEnough::NoneAnswered { leg: 0 })),
            (vec![(0, sound)], &none, false, Ok(())),
            (vec![(0, doubtful)], &none, false, may_come),
            (vec![(0, doubtful)], &none, true, Ok(())),
            (vec![(0, doubtful)], &lost, false, Ok(())),
            (vec![(0, doubtful), (1, doubtful)], &none, false, Ok(())),
            (vec![(0, doubtful), (1, sound)], &none, false, Ok(())),
        ] {
            let enough = are_enough(&two, &answers(&fenced), lost, settles);
            assert_eq!(enough, expected, "{fenced:?} {lost:?} {settles}");
        }
        let one = record(&[absent(3), ACTIVE]);
        let of_absent = answers(&[(0, sound)]);
        let enough = are_enough(&one, &of_absent, &none, true);
        assert_eq!(enough, Err(NotEnough::NoneAnswered { leg: 0 }), "an absent one serves nothing");
    }
}
