//! When a shard is full and another is not: which volume's owner moves. A pure function.

use atoll_format::id::ObjectId;
use atoll_world::Nanos;
use std::collections::BTreeMap;

/// A shard is full from this part of its core on, in thousandths.
const FULL: u64 = 850;
/// A shard takes a volume up to this part of its core, in thousandths.
const HAS_ROOM: u64 = 500;
/// The fuller of the two must have so much less to do afterwards, in thousandths of a core: a move
/// costs clients a few milliseconds, and what members do stays where their disks are.
const GAIN_MIN: u64 = 100;

/// What a shard has done so far.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ShardWork {
    /// How long its core has worked.
    pub core_time: Nanos,
    /// Operations of clients on each volume that it owns, ever.
    pub ops: BTreeMap<ObjectId, u64>,
}

/// An owner that is to live on another shard of its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    pub object: ObjectId,
    pub from: u8,
    pub to: u8,
}

/// The move that evens out best what was done within `span`, between two looks at all shards; the
/// one that was `wanted` before, if it does that about as well: of two volumes with the same load
/// another one is ahead each time.
pub(crate) fn next_move(
    before: &BTreeMap<u8, ShardWork>,
    after: &BTreeMap<u8, ShardWork>,
    span: Nanos,
    wanted: Option<Move>,
) -> Option<Move> {
    assert!(span > Nanos::ZERO, "two looks at the same time");
    let busy = |shard: &u8| {
        let spent = after[shard].core_time.since(before.get(shard)?.core_time);
        Some(spent.0.saturating_mul(1_000) / span.0)
    };
    let all: Vec<(u64, u8)> = after.keys().filter_map(|s| busy(s).map(|b| (b, *s))).collect();
    let &(full, from) = all.iter().max()?;
    let &(room, to) = all.iter().min()?;
    if full < FULL || room > HAS_ROOM || from == to {
        return None;
    }
    let (was, is) = (&before[&from].ops, &after[&from].ops);
    let done = |id: &ObjectId| is[id].saturating_sub(was.get(id).copied().unwrap_or(is[id]));
    let total: u64 = is.keys().map(done).sum();
    let fuller = |id: &ObjectId| {
        let share = full.saturating_mul(done(id)).checked_div(total)?;
        Some((full - share).max(room + share))
    };
    let best = is.keys().filter_map(|id| Some((fuller(id)?, *id))).min()?;
    let again = wanted.filter(|wanted| (wanted.from, wanted.to) == (from, to));
    let again = again.filter(|wanted| is.contains_key(&wanted.object));
    let again = again.and_then(|wanted| Some((fuller(&wanted.object)?, wanted.object)));
    let best = again.filter(|again| again.0 <= best.0 + GAIN_MIN).unwrap_or(best);
    (best.0 + GAIN_MIN <= full).then_some(Move { object: best.1, from, to })
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, Move, Nanos, ObjectId, ShardWork, next_move};

    const SPAN: Nanos = Nanos::from_secs(5);

    /// Shards by thousandths of a core in [`SPAN`], with the operations of each volume in it.
    fn looks(shards: &[(u64, &[(u64, u64)])]) -> [BTreeMap<u8, ShardWork>; 2] {
        let work = |&(busy, ops): &(u64, &[(u64, u64)]), so_far: u64| ShardWork {
            core_time: Nanos(7) + SPAN * busy / 1_000 * so_far,
            ops: ops.iter().map(|&(id, ops)| (ObjectId(id), 1_000 + ops * so_far)).collect(),
        };
        [0, 1].map(|so_far| (0..).zip(shards.iter().map(|shard| work(shard, so_far))).collect())
    }

    fn chosen(shards: &[(u64, &[(u64, u64)])]) -> Option<(u64, u8, u8)> {
        let [before, after] = looks(shards);
        let chosen = next_move(&before, &after, SPAN, None);
        chosen.map(|Move { object, from, to }| (object.0, from, to))
    }

    #[test]
    fn a_volume_moves_from_a_full_shard_to_one_with_room_if_that_evens_them_out() {
        let equal: &[(u64, u64)] = &[(1, 500), (2, 500)];
        assert_eq!(chosen(&[(1_000, equal), (100, &[])]), Some((1, 0, 1)));
        assert_eq!(chosen(&[(100, &[]), (1_000, equal)]), Some((1, 1, 0)));
        assert_eq!(chosen(&[(840, equal), (0, &[])]), None, "it is not full");
        assert_eq!(chosen(&[(1_000, equal), (510, &[])]), None, "no shard has room");
        assert_eq!(chosen(&[(1_000, &[(1, 500)]), (0, &[])]), None, "the other would be as full");
        assert_eq!(chosen(&[(1_000, &[(1, 999), (2, 1)]), (0, &[])]), None, "nothing is gained");
        // Whichever leaves the fuller one with least: 300 of 1,000 are moved to 200.
        let three: &[(u64, u64)] = &[(1, 600), (2, 300), (3, 100)];
        assert_eq!(chosen(&[(1_000, three), (200, &[]), (450, &[])]), Some((2, 0, 1)));
        // Idle volumes, or work that is no owner's: a move would change nothing.
        assert_eq!(chosen(&[(1_000, &[(1, 0), (2, 0)]), (0, &[])]), None);
        assert_eq!(chosen(&[(1_000, &[]), (0, &[])]), None);
        assert_eq!(chosen(&[(1_000, equal)]), None, "there is one shard");
    }

    #[test]
    fn of_two_that_are_about_equal_the_one_that_was_wanted_stays_wanted() {
        let chosen = |ops: &[(u64, u64)], wanted: u64| {
            let [before, after] = looks(&[(1_000, ops), (200, &[])]);
            let wanted = Move { object: ObjectId(wanted), from: 0, to: 1 };
            next_move(&before, &after, SPAN, Some(wanted)).map(|found| found.object.0)
        };
        assert_eq!(chosen(&[(1, 510), (2, 490)], 1), Some(1));
        assert_eq!(chosen(&[(1, 510), (2, 490)], 2), Some(2));
        assert_eq!(chosen(&[(1, 700), (2, 300)], 1), Some(2), "900 and 700: it is better");
        assert_eq!(chosen(&[(1, 510), (2, 490)], 3), Some(2), "it is owned elsewhere now");
    }

    #[test]
    fn what_was_not_seen_before_does_not_count() {
        let [mut before, after] = looks(&[(1_000, &[(1, 500), (2, 500)]), (100, &[])]);
        // A volume that came since: what it has done is not all of this span.
        before.get_mut(&0).unwrap().ops.remove(&ObjectId(1));
        assert_eq!(next_move(&before, &after, SPAN, None), None);
        let [mut before, after] = looks(&[(1_000, &[(1, 500), (2, 500)]), (100, &[])]);
        before.remove(&1);
        assert_eq!(next_move(&before, &after, SPAN, None), None, "the other has just begun");
    }
}
