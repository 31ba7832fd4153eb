//! When a read is asked of a second member, and which disk groups are asked last. Pure.
//!
//! A slow disk costs one read a hedge now and then, not every read; where all disks are slow
//! because they have much to do, nobody is asked twice.
//!
//! Invariant: a second member is asked after [`HEDGE`] at the earliest, after [`HEDGE_MAX`] at the
//! latest.

use crate::limits::{AVOID, HEDGE, HEDGE_MAX};
use atoll_format::id::GroupId;
use atoll_world::{Nanos, sometimes};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// How the disk groups of all hosts have answered reads of this one.
#[derive(Default)]
pub(crate) struct HedgePolicy {
    /// Groups that another copy overtook lately, and until when they are asked last.
    overtaken: RefCell<BTreeMap<GroupId, Nanos>>,
    /// Smoothed time until an answer; of groups that take long.
    usual: RefCell<BTreeMap<GroupId, Nanos>>,
}

impl HedgePolicy {
    pub fn overtook(&self, group: GroupId, now: Nanos) {
        let mut until = self.overtaken.borrow_mut();
        until.retain(|_, &mut until| until > now);
        until.insert(group, now + AVOID);
    }

    pub fn is_overtaken(&self, group: GroupId, now: Nanos) -> bool {
        self.overtaken.borrow().get(&group).is_some_and(|&until| until > now)
    }

    /// A read of that group that nobody overtook took so long.
    pub fn took(&self, group: GroupId, span: Nanos) {
        let mut usual = self.usual.borrow_mut();
        let before = usual.get(&group).copied().unwrap_or_default();
        let smoothed = (before * 7 + span) / 8;
        let between = before.min(span)..=before.max(span);
        assert!(between.contains(&smoothed), "{smoothed} after {before} and {span}");
        if smoothed >= HEDGE / 32 {
            usual.insert(group, smoothed);
        } else if before > Nanos::ZERO {
            usual.remove(&group);
        }
    }

    /// After how long another copy is asked too.
    pub fn patience(&self, group: GroupId) -> Nanos {
        let usual = self.usual.borrow().get(&group).copied().unwrap_or_default();
        let patience = (usual * 4).max(HEDGE).min(HEDGE_MAX);
        assert!((HEDGE..=HEDGE_MAX).contains(&patience), "{patience} of patience");
        if patience > HEDGE {
            sometimes!("owner.patient_with_a_busy_group");
        }
        patience
    }
}

#[cfg(test)]
mod tests {
    use super::HedgePolicy;
    use crate::limits::{HEDGE, HEDGE_MAX};
    use atoll_format::id::GroupId;
    use atoll_world::Nanos;

    #[test]
    fn where_reads_usually_take_long_nobody_asks_twice_and_not_much_later_when_they_no_longer_do() {
        let hedge = HedgePolicy::default();
        let (busy, other) = (GroupId(1), GroupId(2));
        hedge.took(busy, Nanos::from_us(200));
        assert_eq!(hedge.patience(busy), HEDGE);
        for _ in 0..50 {
            hedge.took(busy, Nanos::from_ms(120));
        }
        assert!(hedge.patience(busy) > Nanos::from_ms(400));
        assert_eq!(hedge.patience(other), HEDGE);
        for _ in 0..50 {
            hedge.took(busy, Nanos::from_secs(3));
        }
        assert_eq!(hedge.patience(busy), HEDGE_MAX, "one that hangs is not waited for longer");
        for _ in 0..60 {
            hedge.took(busy, Nanos::from_us(200));
        }
        assert_eq!(hedge.patience(busy), HEDGE);
        assert!(hedge.usual.borrow().is_empty());
    }
}
