//! How far resync is, and how long it may take yet.

use super::ClusterFacts;
use atoll_format::id::{ComponentId, HostId};

/// What is being brought up to date in the whole cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResyncFacts {
    /// It is paused on a host.
    pub paused: bool,
    /// The highest limit of a host, in bytes per second; 0: none has one.
    pub limit_bytes_per_second: u64,
    /// Upper bound of what is left, of copies that have been begun.
    pub bytes_left: u64,
    /// Copied per second of late.
    pub bytes_per_second: u64,
    /// How long it takes at that pace; none if nothing is left, or moves.
    pub seconds_left: Option<u64>,
    /// Copies that are behind.
    pub copies: Vec<ResyncCopy>,
}

/// A copy that is behind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResyncCopy {
    /// Its volume.
    pub volume: String,
    /// Its leg, from 0.
    pub leg: usize,
    /// Which.
    pub component: ComponentId,
    /// Where.
    pub host: HostId,
    /// An attempt is under way.
    pub running: bool,
    /// Upper bound of what is left; none: it waits for its turn.
    pub bytes_left: Option<u64>,
    /// Copied so far.
    pub bytes_done: u64,
}

impl ClusterFacts {
    /// What is being brought up to date.
    pub fn resync(&self) -> ResyncFacts {
        let statuses = || self.hosts.iter().filter_map(|(.., status)| status.as_ref());
        let mut resync = ResyncFacts {
            paused: statuses().any(|status| status.resync_paused),
            limit_bytes_per_second: statuses().map(|s| s.resync_limit).max().unwrap_or(0),
            bytes_left: 0,
            bytes_per_second: 0,
            seconds_left: None,
            copies: Vec::new(),
        };
        let (mut slowest, mut done_per_second) = (0, 0);
        for volume in &self.volumes {
            let (mut left, mut rate) = (0, 0);
            for (leg, member) in volume.record.members() {
                let copies = volume.owner.iter().flat_map(|owner| &owner.copies);
                let copy = copies.into_iter().find(|copy| copy.component == member.component);
                // One that was begun is behind until it is done, whether an attempt runs or not.
                if !member.state.is_resyncing() && copy.is_none() {
                    continue;
                }
                resync.copies.push(ResyncCopy {
                    volume: volume.name.clone(),
                    leg,
                    component: member.component,
                    host: member.host,
                    running: copy.is_some_and(|copy| copy.running),
                    bytes_left: copy.map(|copy| copy.bytes_left),
                    bytes_done: copy.map_or(0, |copy| copy.bytes_copied),
                });
                left += copy.map_or(0, |copy| copy.bytes_left);
                rate += copy.map_or(0, |copy| copy.done_per_second);
                resync.bytes_per_second += copy.map_or(0, |copy| copy.copied_per_second);
            }
            resync.bytes_left += left;
            done_per_second += rate;
            slowest = slowest.max(left.checked_div(rate).unwrap_or(0));
        }
        let begun = resync.copies.iter().filter_map(|copy| copy.bytes_left);
        assert_eq!(begun.sum::<u64>(), resync.bytes_left, "left of the copies, and in all");
        if resync.bytes_left > 0 && done_per_second > 0 && !resync.paused {
            resync.seconds_left = Some((resync.bytes_left / done_per_second).max(slowest));
        }
        resync
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::tests::{cluster, resyncing_twice};

    #[test]
    fn bytes_of_a_resync_are_shown_once_at_the_copy_that_is_written() {
        let mut facts = cluster(3, vec![resyncing_twice()]);
        let resync = facts.resync();
        let bytes: Vec<(Option<u64>, u64)> =
            resync.copies.iter().map(|copy| (copy.bytes_left, copy.bytes_done)).collect();
        assert_eq!(bytes, [(None, 0), (Some(30), 5)], "the first waits, and is not counted yet");
        assert_eq!((resync.bytes_left, resync.bytes_per_second), (30, 2));
        assert_eq!(resync.seconds_left, Some(6), "what is left falls by 5 a second");
        let status = facts.hosts[2].2.as_mut().expect("it told");
        (status.resync_paused, status.resync_limit) = (true, 9);
        let resync = facts.resync();
        assert_eq!((resync.paused, resync.limit_bytes_per_second), (true, 9));
        assert_eq!(resync.seconds_left, None, "nothing moves while it is paused");
    }
}
