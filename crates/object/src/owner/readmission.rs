//! When a member whose resync failed is tried again. Pure.
//!
//! Invariant: the pause after a failure is [`READMIT_FIRST`] at first, never shorter than the one
//! before, and never longer than [`READMIT_LAST`].

use crate::limits::{READMIT_FIRST, READMIT_LAST};
use atoll_format::id::ComponentId;
use atoll_world::Nanos;
use std::collections::BTreeMap;

/// The members of one object that are left alone for now.
#[derive(Default)]
pub(super) struct Readmissions(BTreeMap<ComponentId, Readmission>);

#[derive(Clone, Copy)]
struct Readmission {
    /// When the member is tried again.
    at: Nanos,
    /// How long it is left alone after the next failure.
    after: Nanos,
}

impl Readmissions {
    /// A resync of the member has failed. A full disk group, or a source that fails, refuses for a
    /// while: the member is left alone, the longer the more often that happens.
    pub fn put_off(&mut self, component: ComponentId, now: Nanos) {
        let after = self.0.get(&component).map_or(READMIT_FIRST, |last| last.after);
        let next = Readmission { at: now + after, after: (after * 2).min(READMIT_LAST) };
        assert!(next.at >= now + READMIT_FIRST && next.after <= READMIT_LAST, "{after} for now");
        assert!(next.after >= after.min(READMIT_LAST), "a pause is never shorter than the last");
        self.0.insert(component, next);
    }

    /// Whether the member is left alone at that moment.
    pub fn is_put_off(&self, component: ComponentId, now: Nanos) -> bool {
        self.0.get(&component).is_some_and(|next| now < next.at)
    }

    /// The member is up to date.
    pub fn forget(&mut self, component: ComponentId) {
        self.0.remove(&component);
    }
}

#[cfg(test)]
mod tests {
    use super::Readmissions;
    use crate::limits::{READMIT_FIRST, READMIT_LAST};
    use atoll_format::id::ComponentId;
    use atoll_world::Nanos;

    #[test]
    fn a_member_is_left_alone_longer_with_every_failure_but_not_for_ever() {
        let (component, mut all, mut now) = (ComponentId(1), Readmissions::default(), Nanos::ZERO);
        assert!(!all.is_put_off(component, now));
        let mut pause = READMIT_FIRST;
        for _ in 0..6 {
            all.put_off(component, now);
            assert!(all.is_put_off(component, now + pause - Nanos(1)));
            now += pause;
            assert!(!all.is_put_off(component, now));
            pause = (pause * 2).min(READMIT_LAST);
        }
        assert_eq!(pause, READMIT_LAST);
        all.put_off(component, now);
        all.forget(component);
        assert!(!all.is_put_off(component, now), "it was up to date meanwhile");
    }
}
