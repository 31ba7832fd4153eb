//! The shards of this host and the board between them: shard 0 takes over what the others have to
//! tell, the others what it knows.

use crate::facts::shard_balance::ShardWork;
use crate::host_board::Noted;
use crate::node::Node;
use crate::status::HostStatus;
use atoll_object::Settings;
use atoll_world::{Components, Nanos, World};
use std::sync::Arc;

/// How often the board is looked at.
pub(crate) const BOARD_EVERY: Nanos = Nanos::from_ms(250);

impl<W: World, S: Components> Node<W, S> {
    /// Shard 0: keeps the events of the others, publishes their disk groups when these change, and
    /// tells them what has been set.
    pub(crate) async fn look_after_shards(self) {
        assert!(self.is_first_shard() && self.0.place.shards > 1, "nobody to look after");
        let board = &self.0.place.board;
        let mut published = None;
        loop {
            board.set_settings(self.0.objects.settings());
            let groups = board.groups(self.0.place.shards);
            if groups != published {
                published = groups;
                self.0.publish_now.notify_all();
            }
            for Noted { severity, kind, about, message } in board.take_events() {
                self.note(severity, &kind, about, message);
            }
            // Until all have told of themselves, the host is not published.
            let every = if published.is_some() { BOARD_EVERY } else { BOARD_EVERY / 10 };
            self.world().sleep(every).await;
        }
    }

    /// Any other shard: says how it is.
    pub(crate) fn tell_board(&self) {
        let (place, groups) = (&self.0.place, self.0.groups.borrow().clone());
        place.board.tell(place.shard, groups, self.status(), self.work());
    }

    /// What this shard has done so far.
    pub(crate) fn work(&self) -> ShardWork {
        let owned = self.0.objects.owned().into_iter();
        let ops = owned.map(|object| (object.record.id, object.guest_ops)).collect();
        ShardWork { core_time: self.world().core_time(), ops }
    }

    /// Any other shard: says what it has, and takes over what shard 0 knows and was set there.
    pub(crate) async fn follow_first_shard(self) {
        assert!(!self.is_first_shard(), "shard 0 follows nobody");
        let (place, objects) = (&self.0.place, &self.0.objects);
        let (mut last, mut last_hosts) = (None, None);
        loop {
            self.tell_board();
            let seen = place.board.seen();
            if let Some(seen) = seen.filter(|seen| !is_same(last_hosts.as_ref(), &seen.hosts)) {
                self.take_hosts(&seen);
                last_hosts = Some(seen.hosts);
            }
            if let Some(settings) = place.board.settings() {
                objects.set_settings(share(settings, place.shards));
            }
            let known = place.board.known();
            if !is_same(last.as_ref(), &known) {
                objects.set_inventory(known.hosts.clone(), known.used.clone());
                last = Some(known);
            }
            self.world().sleep(BOARD_EVERY).await;
        }
    }
}

/// Whether nothing new was put on the board.
fn is_same<T>(last: Option<&Arc<T>>, now: &Arc<T>) -> bool {
    last.is_some_and(|last| Arc::ptr_eq(last, now))
}

/// What of the host's settings each of its shards keeps to: a limit is the host's.
fn share(settings: Settings, shards: u8) -> Settings {
    let resync_limit = settings.resync_limit.div_ceil(u64::from(shards));
    assert!(resync_limit <= settings.resync_limit, "a part is more than the whole");
    assert!((resync_limit == 0) == (settings.resync_limit == 0), "0 is no limit");
    Settings { resync_limit, ..settings }
}

/// What a host says of itself, of what its shards say.
pub(crate) fn merged(first: HostStatus, others: Vec<HostStatus>) -> HostStatus {
    others.into_iter().fold(first, |mut host, shard| {
        assert_eq!(host.id, shard.id, "a shard of another host");
        host.groups.extend(shard.groups);
        host.objects.extend(shard.objects);
        host.components.extend(shard.components);
        for (object, clients) in shard.open_volumes {
            *host.open_volumes.entry(object).or_default() += clients;
        }
        host
    })
}
