//! What this host says of itself.

use crate::membership::shards::merged;
use crate::node::Node;
use crate::status::{CopyStatus, GroupStatus, HostStatus, ObjectStatus, RunningCopy};
use atoll_format::level::Level;
use atoll_format::units::BLOCK;
use atoll_object::CopyProgress;
use atoll_world::{Components, Nanos, World};

impl<W: World, S: Components> Node<W, S> {
    /// What this host says of itself: all of its shards, the others as of a moment ago.
    pub fn host_status(&self) -> HostStatus {
        merged(self.status(), self.0.place.board.statuses())
    }

    /// What this shard says of itself.
    pub(crate) fn status(&self) -> HostStatus {
        let stores = self.0.objects.members().stores();
        let causes = self.0.failure_causes.borrow();
        let now = self.world().now();
        let groups = stores.iter().map(|store| {
            let (space, counters) = (store.space(), store.counters());
            let scrub = store.scrub_progress();
            // A wall clock may have been put back since, to before this host began.
            let unix_ms = |at: Nanos| self.world().unix_ms().saturating_sub(now.since(at).as_ms());
            let failure = self
                .0
                .groups
                .borrow()
                .iter()
                .find(|g| g.id == store.group())
                .map(|g| g.failure.clone())
                .unwrap_or_default();
            let cause = causes.get(&store.group()).map(|&cause| cause.into());
            let fails = !failure.is_empty();
            assert_eq!(fails, cause.is_some(), "disk group {}: {failure:?}", store.group());
            let components = store.list();
            let unwritten = components.iter().map(|c| {
                let bytes = u64::from(c.spec.blocks) * BLOCK;
                bytes.saturating_sub(c.used_bytes)
            });
            GroupStatus {
                id: store.group(),
                capacity_bytes: space.capacity_bytes,
                device_bytes: Some(space.device_bytes),
                unwritten_bytes: unwritten.sum(),
                used_bytes: space.used_bytes,
                free_bytes: space.free_bytes,
                log_bytes: space.log_bytes,
                log_fill: f64::from(space.log_fill) / 255.0,
                failure,
                cause,
                checksum_errors: counters.checksum_errors,
                device_errors: counters.device_errors,
                ops_written: counters.ops_written,
                bytes_written: counters.bytes_written,
                blocks_read: counters.blocks_read,
                blocks_read_ahead: counters.blocks_read_ahead,
                log_batches: counters.log_batches,
                log_bytes_written: counters.log_bytes,
                destaged_bytes: counters.destaged_bytes,
                metadata_bytes: counters.metadata_bytes,
                blocks_copied_in: counters.blocks_copied_in,
                scrub_checked: scrub.blocks_checked,
                scrub_total: scrub.blocks_total,
                scrub_bad: scrub.blocks_bad,
                scrub_running: !scrub.idle,
                scrub_began_ms: scrub.began.map_or(0, unix_ms),
                scrub_ended_ms: scrub.ended.map(unix_ms),
                scrub_whole: scrub.whole,
                components: components.len() as u32,
                free_components: Some(space.free_components),
            }
        });
        let has_old = self.level() < Level::COPIES_ONLY;
        let objects = self.0.objects.owned().into_iter().map(|o| {
            let copy = |c: &CopyProgress| CopyStatus {
                component: c.component,
                running: c.running,
                bytes_left: c.bytes_left,
                bytes_done: c.bytes_done,
                bytes_copied: c.bytes_copied,
                done_per_second: c.done_per_second,
                copied_per_second: c.copied_per_second,
                seconds: c.since.as_secs_f64(),
            };
            let runs = o.resync.iter().find(|c| c.running);
            let running_copy = has_old.then(|| RunningCopy {
                resync_bytes_done: runs.map_or(0, |c| c.bytes_done),
                resync_component: runs.map(|c| c.component),
                resync_bytes_copied: runs.map_or(0, |c| c.bytes_copied),
                resync_seconds: runs.map_or(0.0, |c| c.since.as_secs_f64()),
            });
            ObjectStatus {
                id: o.record.id,
                epoch: o.record.epoch,
                resyncing: runs.is_some(),
                resync_bytes_left: o.resync.iter().map(|c| c.bytes_left).sum(),
                running_copy,
                copies: o.resync.iter().map(copy).collect(),
                no_space: o.no_space,
                no_space_answers: o.no_space_answers,
                guest_ops: o.guest_ops,
            }
        });
        let (resync_paused, resync_limit) = self.0.objects.resync_settings();
        HostStatus {
            id: self.0.config.host,
            groups: groups.collect(),
            objects: objects.collect(),
            components: stores
                .iter()
                .flat_map(|s| s.list())
                .map(|c| (c.id, c.used_bytes))
                .collect(),
            open_volumes: self.0.open_volumes.borrow().clone(),
            reaches: self.reached(),
            resync_paused,
            resync_limit,
            uptime_s: now.since(self.0.objects.started()).as_secs_f64(),
        }
    }
}
