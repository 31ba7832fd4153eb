//! What every record of an object keeps: asked of what is read, asserted of every change before it
//! is sent to the directory.

use crate::layout::Layout;
use crate::limits::MEMBERS_MAX;
use atoll_format::id::{Epoch, ObjectId, Seq};
use atoll_format::record::{MemberState, ObjectRecord, Policy, legs_needed};
use atoll_format::units::OBJECT_MAX;
use std::collections::BTreeSet;

/// What this program can work with: a record may have been changed by hand.
///
/// # Errors
/// A sentence.
pub(crate) fn check_shape(object: ObjectId, record: &ObjectRecord) -> Result<(), String> {
    if record.id != object {
        return Err(format!("it is the record of {}", record.id));
    }
    record.policy.check()?;
    if record.size_bytes > OBJECT_MAX {
        return Err(format!(
            "size_bytes is {}, and must be at most {OBJECT_MAX}",
            record.size_bytes
        ));
    }
    let needed = legs_needed(&record.policy, record.size_bytes);
    if record.legs.len() < needed {
        return Err(format!("it has {} legs of {needed}", record.legs.len()));
    }
    if record.epoch == Epoch(u32::MAX) || record.seq_base.0 > u64::MAX / 2 {
        return Err("its epoch, or its seq_base, is beyond all that can be used".into());
    }
    let mut components = BTreeSet::new();
    for (leg, of) in record.legs.iter().enumerate() {
        if of.members.len() > MEMBERS_MAX {
            return Err(format!("leg {leg} has {} members", of.members.len()));
        }
        if let Some(twice) = of.members.iter().find(|m| !components.insert(m.component)) {
            return Err(format!("component {} is in it twice", twice.component));
        }
    }
    Ok(())
}

/// What a change of the record keeps, whoever makes it: an owner, or a takeover after it has raised
/// the epoch.
///
/// # Panics
/// It does not.
pub(crate) fn check_change(before: &ObjectRecord, after: &ObjectRecord) {
    let of = after.id;
    assert_eq!((before.id, before.state), (of, after.state), "only management ends objects");
    assert_eq!((before.epoch, before.owner), (after.epoch, after.owner), "{of} in one epoch");
    // Its ceiling is of no account for what members have.
    let kept = Policy { iops_limit: after.policy.iops_limit, ..before.policy.clone() };
    assert_eq!(kept, after.policy, "{of} keeps its policy");
    assert_eq!(before.legs.len(), after.legs.len(), "{of} keeps its legs");
    assert!(before.seq_base <= after.seq_base, "sequence numbers of {of} rise");
    let needed = legs_needed(&after.policy, after.size_bytes);
    let fits = after.size_bytes <= before.size_bytes || needed <= after.legs.len();
    assert!(fits, "{of} of {} bytes needs {needed} legs", after.size_bytes);
    let layout = Layout::of(&after.policy);
    for (before, after) in before.legs.iter().zip(&after.legs) {
        let (before, after) = (&before.members, &after.members);
        let active = after.iter().filter(|m| m.state.is_active()).count();
        assert!(layout.is_enough(active), "the last active member stays (R20): {before:?}");
        assert!(after.len() <= MEMBERS_MAX, "{} members", after.len());
        for (i, m) in after.iter().enumerate() {
            let is_twice = after[..i].iter().any(|o| o.component == m.component);
            assert!(!is_twice, "a member twice: {after:?}");
            let Some(was) = before.iter().find(|o| o.component == m.component) else {
                let nothing = MemberState::Resyncing { from: Seq(0) };
                assert_eq!(m.state, nothing, "a new member has nothing yet");
                continue;
            };
            assert_eq!((was.host, was.group), (m.host, m.group), "a member stays where it is");
            check_step(was.state, m.state);
        }
    }
    let wanted = layout.members();
    for (leg, gone) in before.members() {
        let left = &after.legs[leg].members;
        if left.iter().any(|m| m.component == gone.component) {
            continue;
        }
        let active = left.iter().filter(|m| m.state.is_active()).count();
        let is_absent = matches!(gone.state, MemberState::Absent { .. });
        assert!(is_absent || active >= wanted, "{gone:?} was let go, {active} are active");
    }
}

/// One member's next state in the record: what it may lack is never more than was said (R4, R14).
fn check_step(was: MemberState, now: MemberState) {
    let (is_active, is_resyncing) = (now.is_active(), now.is_resyncing());
    assert!(!was.is_active() || !is_resyncing, "an active member is dropped first");
    assert!(!is_active || was.is_active() || was.is_resyncing(), "{was:?} is not up to date");
    if let MemberState::Absent { since: had, .. } | MemberState::Resyncing { from: had } = was
        && let MemberState::Absent { since: has, .. } | MemberState::Resyncing { from: has } = now
    {
        assert!(has <= had, "{was:?} became {now:?}: it was never known to have more");
    }
}

#[cfg(test)]
mod tests {
    use super::{check_shape, check_step};
    use atoll_format::id::{Epoch, ObjectId, Seq};
    use atoll_format::record::{
        LegRecord, MemberState, ObjectRecord, ObjectState, Policy, RECORD_VERSION,
    };

    fn absent(since: u64) -> MemberState {
        MemberState::Absent { since: Seq(since), at_ms: 0, lost: false }
    }
    fn resyncing(from: u64) -> MemberState {
        MemberState::Resyncing { from: Seq(from) }
    }

    #[test]
    fn a_record_that_nobody_can_work_with_is_refused() {
        let good = ObjectRecord {
            version: RECORD_VERSION,
            id: ObjectId(7),
            name: "v".into(),
            state: ObjectState::Ready,
            size_bytes: 1 << 30,
            policy: Policy::DEFAULT,
            epoch: Epoch(1),
            owner: None,
            seq_base: Seq(0),
            legs: vec![LegRecord { members: vec![] }],
            attached: None,
            served: None,
            nonce: 0,
        };
        assert_eq!(check_shape(ObjectId(7), &good), Ok(()));
        assert!(check_shape(ObjectId(8), &good).is_err(), "another's");
        let narrow = Policy { stripe_width: 0, ..Policy::DEFAULT };
        for bad in [
            ObjectRecord { size_bytes: u64::MAX, ..good.clone() },
            ObjectRecord { policy: narrow, ..good.clone() },
            ObjectRecord { epoch: Epoch(u32::MAX), ..good.clone() },
            ObjectRecord { seq_base: Seq(u64::MAX), ..good.clone() },
            ObjectRecord { legs: vec![], ..good.clone() },
        ] {
            assert!(check_shape(ObjectId(7), &bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_member_goes_round_and_may_be_in_more_doubt() {
        let active = MemberState::Active;
        for (was, now) in [
            (active, active),
            (active, absent(9)),
            (absent(9), resyncing(9)),
            (absent(9), absent(0)),
            (resyncing(9), resyncing(0)),
            (resyncing(9), absent(9)),
            (resyncing(0), active),
        ] {
            check_step(was, now);
        }
    }

    #[test]
    #[should_panic(expected = "never known to have more")]
    fn nobody_says_that_an_absent_member_has_more() {
        check_step(absent(9), resyncing(10));
    }

    #[test]
    #[should_panic(expected = "not up to date")]
    fn an_absent_member_is_not_made_active() {
        check_step(absent(9), MemberState::Active);
    }

    #[test]
    #[should_panic(expected = "is dropped first")]
    fn an_active_member_is_not_made_resyncing() {
        check_step(MemberState::Active, resyncing(0));
    }
}
