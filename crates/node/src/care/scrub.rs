//! Scrubs that nobody asked for: every disk group is looked at as a whole again and again, so that
//! damage is found while there still is another copy.
//!
//! When a group was last looked at is not kept on disk: after a start it is due at a moment of its
//! own within the first interval. A scrub that runs is never disturbed.

use crate::node::Node;
use atoll_format::id::GroupId;
use atoll_world::components::ScrubProgress;
use atoll_world::{Components, Nanos, World, sometimes};
use std::collections::BTreeMap;

/// How often groups are looked for that are due.
const LOOK_EVERY: Nanos = Nanos::from_secs(60);
/// After a scrub that was stopped, or looked at a part only, the next whole one waits so long.
const REST: Nanos = Nanos::from_secs(86_400);

impl<W: World, S: Components> Node<W, S> {
    /// Scrubs every disk group of this host once in `every` (0: never), at that rate.
    pub fn schedule_scrubs(&self, every: Nanos, bytes_per_second: u64) {
        if every > Nanos::ZERO && bytes_per_second > 0 {
            let node = self.clone();
            self.world().spawn(async move { node.scrub_when_due(every, bytes_per_second).await });
        }
    }

    async fn scrub_when_due(&self, every: Nanos, bytes_per_second: u64) {
        assert!(every > Nanos::ZERO && bytes_per_second > 0, "a scrub at no rate ends another one");
        let mut first: BTreeMap<GroupId, Nanos> = BTreeMap::new();
        loop {
            let now = self.world().now();
            for store in self.0.objects.members().stores() {
                let first = *first
                    .entry(store.group())
                    .or_insert_with(|| now + Nanos(self.world().random() % every.0));
                let progress = store.scrub_progress();
                if progress.idle && due(&progress, first, every) <= now {
                    sometimes!("scrub.by_itself");
                    store.scrub(None, bytes_per_second);
                }
            }
            self.world().sleep(LOOK_EVERY).await;
        }
    }
}

fn due(progress: &ScrubProgress, first: Nanos, every: Nanos) -> Nanos {
    let whole = progress.everything_at.map_or(first, |at| at + every);
    let rest = Nanos(REST.0.min(every.0));
    let due = progress.ended.map_or(whole, |at| whole.max(at + rest));
    assert!(due >= whole, "due at {due}, and the interval ends at {whole}");
    assert!(progress.ended.is_none_or(|at| due > at), "no rest before {due}");
    due
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_pass_counts_and_a_stopped_one_is_not_begun_again_at_once() {
        let day = |n: u64| Nanos(REST.0 * n);
        let (first, every) = (day(7), day(30));
        let fresh = ScrubProgress { idle: true, ..ScrubProgress::default() };
        assert_eq!(due(&fresh, first, every), first);
        let stopped = ScrubProgress { ended: Some(day(8)), ..fresh };
        assert_eq!(due(&stopped, first, every), day(9));
        let whole = ScrubProgress { everything_at: Some(day(10)), ended: Some(day(10)), ..fresh };
        assert_eq!(due(&whole, first, every), day(40));
        let part = ScrubProgress { ended: Some(day(20)), ..whole };
        assert_eq!(due(&part, first, every), day(40), "one volume's scrub changes nothing");
    }
}
