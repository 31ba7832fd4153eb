//! Which shard of this host serves the clients of a volume: the one that its owner is on, so that
//! an I/O stays on one thread; where this host has no owner of it, the one with the least to do.
//!
//! Invariants: all clients of a volume are served by one shard as long as it has any; where clients
//! are served changes what their I/O costs, never what it does.

use crate::node::Node;
use crate::volume_lock::table::split_export;
use atoll_format::id::ObjectId;
use atoll_format::record::ObjectRecord;
use atoll_world::{Components, Nanos, World, sometimes};
use std::collections::BTreeSet;

/// How long a choice is kept to before the shard itself tells that it has the volume open.
const CHOICE_LASTS: Nanos = Nanos::from_secs(10);

/// What a shard has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ShardLoad {
    /// Its number.
    pub shard: u8,
    /// Volumes that it owns, or serves clients of.
    pub volumes: BTreeSet<ObjectId>,
    /// Of those, the ones that it serves clients of.
    pub open: BTreeSet<ObjectId>,
    /// A copy of the volume in question is on its disks.
    pub has_copy: bool,
}

/// The shard for clients of a volume whose owner is on `owner`, if on this host at all.
pub(crate) fn choose(object: ObjectId, owner: Option<u8>, loads: &[ShardLoad]) -> u8 {
    assert!(!loads.is_empty(), "every host has shard 0");
    let serves = loads.iter().find(|load| load.open.contains(&object)).map(|load| load.shard);
    let known = |shard: &u8| loads.iter().any(|load| load.shard == *shard);
    owner.filter(known).or(serves).unwrap_or_else(|| {
        let least =
            loads.iter().min_by_key(|load| (load.volumes.len(), !load.has_copy, load.shard));
        least.expect("every host has shard 0").shard
    })
}

impl<W: World, S: Components> Node<W, S> {
    /// Another shard of this host that is to serve a client which has come to this one, by the name
    /// that it asks for; none: this one is. An import's export is served where its lock is: here.
    pub(crate) async fn shard_for_client(&self, export: &str) -> Option<u8> {
        let place = &self.0.place;
        if place.shards == 1 || !self.is_first_shard() || split_export(export).is_some() {
            return None;
        }
        // Whoever opens it is told what is wrong.
        let object = self.find_volume(export).await.ok()?;
        let (record, _) = self.object_record(object).await.ok()??;
        let owner = record.owner.as_ref().filter(|owner| {
            owner.host == self.0.config.host && owner.incarnation == self.0.incarnation
        });
        let chosen = choose(object, owner.map(|owner| owner.shard), &self.loads(&record));
        assert!(chosen < place.shards, "shard {chosen} of {}", place.shards);
        self.0.chosen.borrow_mut().insert(object, (chosen, self.world().now()));
        if chosen == place.shard {
            return None;
        }
        sometimes!("client.goes_to_another_shard");
        Some(chosen)
    }

    /// What each shard of this host has to do: what it last told, and what was chosen since.
    fn loads(&self, record: &ObjectRecord) -> Vec<ShardLoad> {
        let place = &self.0.place;
        let groups: BTreeSet<_> = record.members().map(|(_, member)| member.group).collect();
        let own = self.0.open_volumes.borrow().keys().copied().collect::<BTreeSet<_>>();
        let owned = self.0.objects.owned().into_iter().map(|object| object.record.id);
        let mut of_others = place.board.volumes();
        let mut loads: Vec<ShardLoad> = (0..place.shards)
            .map(|shard| {
                let (open, owned) = match shard == place.shard {
                    true => (own.clone(), owned.clone().collect()),
                    false => of_others.remove(&shard).unwrap_or_default(),
                };
                let volumes = open.union(&owned).copied().collect();
                ShardLoad { shard, volumes, open, has_copy: false }
            })
            .collect();
        let here = self.0.groups.borrow().clone();
        let there = place.board.groups(place.shards).unwrap_or_default();
        for group in here.iter().chain(&there).filter(|group| groups.contains(&group.id)) {
            loads[usize::from(group.shard)].has_copy = true;
        }
        let (now, mut chosen) = (self.world().now(), self.0.chosen.borrow_mut());
        chosen.retain(|_, (_, at)| now.since(*at) < CHOICE_LASTS);
        for (&object, &(shard, _)) in chosen.iter() {
            let load = &mut loads[usize::from(shard)];
            load.volumes.insert(object);
            load.open.insert(object);
        }
        loads
    }
}

#[cfg(test)]
mod tests {
    use super::{BTreeSet, ObjectId, ShardLoad, choose};

    const WANTED: ObjectId = ObjectId(1);

    fn load(shard: u8, volumes: &[u64], open: &[u64], has_copy: bool) -> ShardLoad {
        let set = |ids: &[u64]| ids.iter().map(|&id| ObjectId(id)).collect::<BTreeSet<_>>();
        ShardLoad { shard, volumes: set(volumes), open: set(open), has_copy }
    }

    #[test]
    fn clients_go_to_the_owner_then_to_each_other_then_where_there_is_least_to_do() {
        let idle = [load(0, &[], &[], false), load(1, &[], &[], true), load(2, &[], &[], true)];
        assert_eq!(choose(WANTED, None, &idle), 1, "the first that has a copy");
        assert_eq!(choose(WANTED, Some(2), &idle), 2, "its owner");
        let busy = [load(0, &[5], &[], false), load(1, &[5, 6], &[5], true)];
        assert_eq!(choose(WANTED, None, &busy), 0, "fewer volumes, also without a copy");
        let open = [load(0, &[], &[], true), load(1, &[1, 6, 7], &[1], false)];
        assert_eq!(choose(WANTED, None, &open), 1, "where its other clients are");
        assert_eq!(choose(WANTED, Some(0), &open), 0, "its owner, also without its clients");
        // A shard that it was on in an earlier life with more shards.
        assert_eq!(choose(WANTED, Some(9), &idle), 1);
        // Eight volumes, opened one after the other, are spread evenly.
        let mut loads = [load(0, &[], &[], false), load(1, &[], &[], true)];
        for id in 1..=8 {
            let shard = choose(ObjectId(id), None, &loads);
            loads[usize::from(shard)].volumes.insert(ObjectId(id));
        }
        assert_eq!(loads.map(|load| load.volumes.len()), [4, 4]);
    }
}
