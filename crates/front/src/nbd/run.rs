//! Carries out one request on a volume.
//!
//! Invariants: what a volume is asked for is at most its `max_len` long; at most
//! [`SPLIT_PARALLEL`] parts of one request are under way; success is reported only when every
//! part has succeeded.

use super::codec::{Errno, status};
use super::reply::{Failure, Outbox, Replies, Status};
use super::session::{Op, Request};
use crate::admission::write_barrier::{WriteBarrier, WriteUnderWay};
use crate::limits::{CACHE_BYTES_MAX, EXTENTS_MAX, SPLIT_PARALLEL};
use atoll_world::volume::{Extent, ExtentKind, Volume, VolumeError};
use atoll_world::{Buf, Nanos, World};
use futures_util::stream::{self, StreamExt, TryStreamExt};

/// CPU time of one request on its way through the front end, for the simulated core.
const REQUEST_CPU: Nanos = Nanos(2_000);

/// A request that has ended.
pub(super) struct Done {
    pub cookie: u64,
    pub charge: usize,
    pub outcome: Outcome,
}

pub(super) enum Outcome {
    Nothing,
    Data {
        at: u64,
        data: Vec<Buf>,
        whole: bool,
    },
    Status(Vec<Status>),
    Failed(Failure),
    /// The volume is gone: deleted, or its host is stopping.
    Gone(Failure),
}

impl Done {
    /// Puts the answer in `out`.
    pub(super) fn answer(self, replies: Replies, out: &mut Outbox) {
        let cookie = self.cookie;
        match self.outcome {
            Outcome::Nothing => replies.done(out, cookie),
            Outcome::Data { at, data, whole } => replies.data(out, cookie, at, data, whole),
            Outcome::Status(ranges) => replies.status(out, cookie, &ranges),
            Outcome::Failed(failure) | Outcome::Gone(failure) => {
                replies.failed(out, cookie, &failure);
            }
        }
        out.count(self.charge);
    }
}

/// Lets the barrier know of `request`, if it changes the volume; the result goes to [`run`].
pub(super) fn start(barrier: &WriteBarrier, request: &Request) -> Option<WriteUnderWay> {
    match request.op {
        Op::Write { .. } | Op::Trim { .. } | Op::Zero { .. } => Some(barrier.enter()),
        Op::Read { .. } | Op::Flush | Op::Cache { .. } | Op::Status { .. } => None,
    }
}

/// Carries it out; `running` is given back when nothing of it is under way any more.
pub(super) async fn run<W: World, V: Volume>(
    world: &W,
    volume: &V,
    request: Request,
    running: Option<WriteUnderWay>,
) -> Done {
    world.charge(REQUEST_CPU).await;
    let Request { cookie, op, charge } = request;
    let outcome = match op {
        Op::Read { at, len, whole } => read(volume, at, len)
            .await
            .map(|data| Outcome::Data { at, data, whole })
            .map_err(|(error, part)| failed(volume, &error, Some(part), false)),
        Op::Write { at, data } => write(volume, at, data)
            .await
            .map(|()| Outcome::Nothing)
            .map_err(|(error, part)| failed(volume, &error, Some(part), true)),
        Op::Flush => plain(volume, volume.flush().await, false),
        Op::Trim { at, len } => plain(volume, volume.discard(at, u64::from(len)).await, false),
        Op::Zero { at, len, flags } => {
            plain(volume, volume.zero(at, u64::from(len), flags).await, true)
        }
        Op::Cache { at, len } => plain(volume, cache(volume, at, u64::from(len)).await, false),
        Op::Status { at, len, one } => extents(volume, at, u64::from(len), one)
            .await
            .map(Outcome::Status)
            .map_err(|error| failed(volume, &error, None, false)),
    };
    drop(running);
    Done { cookie, charge, outcome: outcome.unwrap_or_else(|failed| failed) }
}

fn plain<V: Volume>(
    volume: &V,
    result: Result<(), VolumeError>,
    writes: bool,
) -> Result<Outcome, Outcome> {
    match result {
        Ok(()) => Ok(Outcome::Nothing),
        Err(error) => Err(failed(volume, &error, None, writes)),
    }
}

/// The ranges that make up a range, cut at multiples of `max`: what is cut has no more parts that
/// begin in the middle of a block than what was asked for.
fn parts(at: u64, len: u64, max: u32) -> impl Iterator<Item = (u64, u32)> {
    let (mut from, end, max) = (at, at + len, u64::from(max));
    std::iter::from_fn(move || {
        let part = (max - from % max).min(end - from);
        let at = from;
        from += part;
        (part > 0).then(|| (at, u32::try_from(part).expect("at most `max`")))
    })
}

async fn read<V: Volume>(volume: &V, at: u64, len: u32) -> Result<Vec<Buf>, (VolumeError, u64)> {
    let max = volume.info().max_len;
    if len <= max {
        return checked(volume.read(at, len).await, len).map_err(|error| (error, at));
    }
    let part = async |(at, len)| checked(volume.read(at, len).await, len).map_err(|e| (e, at));
    stream::iter(parts(at, u64::from(len), max).map(part))
        .buffered(SPLIT_PARALLEL)
        .try_fold(Vec::new(), async |mut all, more| {
            all.extend(more);
            Ok(all)
        })
        .await
}

/// A volume that returns another length than asked for would shift every later byte: refuse.
fn checked(data: Result<Vec<Buf>, VolumeError>, len: u32) -> Result<Vec<Buf>, VolumeError> {
    let data = data?;
    let got = atoll_world::buf::total_len(&data);
    assert_eq!(got, len as usize, "a volume returns what it was asked for");
    Ok(data)
}

async fn write<V: Volume>(volume: &V, at: u64, data: Vec<Buf>) -> Result<(), (VolumeError, u64)> {
    let max = volume.info().max_len;
    if atoll_world::buf::total_len(&data) <= max as usize {
        return volume.write(at, data).await.map_err(|error| (error, at));
    }
    let part = async |(at, data)| volume.write(at, data).await.map_err(|error| (error, at));
    // Every part ends before the answer, also after an error: nothing of this write is under way
    // when the barrier lets go of it.
    stream::iter(split(at, data, max).into_iter().map(part))
        .buffered(SPLIT_PARALLEL)
        .fold(Ok(()), async |all, part| all.and(part))
        .await
}

/// The data in groups, cut as in [`parts`], each with the place where it belongs.
fn split(at: u64, data: Vec<Buf>, max: u32) -> Vec<(u64, Vec<Buf>)> {
    let mut pieces = data.into_iter();
    let mut piece = pieces.next().unwrap_or_else(|| Buf::zeros(0));
    let len = piece.len() + atoll_world::buf::total_len(pieces.as_slice());
    let group = |(at, part)| {
        let (mut left, mut group) = (part as usize, Vec::new());
        while left > 0 {
            if piece.is_empty() {
                piece = pieces.next().expect("together they are `len` long");
            }
            let now = left.min(piece.len());
            group.push(piece.slice(..now));
            piece = piece.slice(now..);
            left -= now;
        }
        (at, group)
    };
    parts(at, len as u64, max).map(group).collect()
}

/// Reads and drops: what lies below keeps it at hand. One part at a time: it is only a hint.
async fn cache<V: Volume>(volume: &V, at: u64, len: u64) -> Result<(), VolumeError> {
    for (at, len) in parts(at, len.min(CACHE_BYTES_MAX), volume.info().max_len) {
        volume.read(at, len).await?;
    }
    Ok(())
}

/// What the range holds, neighbours of one kind merged, at most [`EXTENTS_MAX`] of them.
async fn extents<V: Volume>(
    volume: &V,
    at: u64,
    len: u64,
    one: bool,
) -> Result<Vec<Status>, VolumeError> {
    let most = if one { 1 } else { EXTENTS_MAX };
    let mut ranges: Vec<Status> = Vec::new();
    let mut covered = 0;
    while covered < len {
        let found = volume.extents(at + covered, len - covered, most - ranges.len()).await?;
        let before = covered;
        for Extent { len: extent, kind } in found {
            let extent = extent.min(len - covered);
            if extent == 0 {
                break;
            }
            let flags = match kind {
                ExtentKind::Data => status::DATA,
                ExtentKind::Zero => status::ZERO,
                ExtentKind::Hole => status::HOLE_ZERO,
            };
            let extent32 = u32::try_from(extent).expect("requests are below 4 GiB");
            let full = ranges.len() == most;
            match ranges.last_mut() {
                Some(last) if last.flags == flags => last.len += extent32,
                _ if full => return Ok(ranges),
                _ => ranges.push(Status { len: extent32, flags }),
            }
            covered += extent;
        }
        assert!(covered > before, "extents cover at least one block");
    }
    Ok(ranges)
}

/// The protocol's error for a volume's.
fn failed<V: Volume>(volume: &V, error: &VolumeError, part: Option<u64>, writes: bool) -> Outcome {
    let errno = match error {
        VolumeError::OutOfRange { at, len } => {
            let end = at.checked_add(*len);
            let behind = end.is_none_or(|end| end > volume.info().size_bytes);
            if writes && behind { Errno::NoSpace } else { Errno::Invalid }
        }
        VolumeError::NoSpace(_) => Errno::NoSpace,
        VolumeError::ReadOnly | VolumeError::Locked(_) => Errno::Perm,
        VolumeError::Io(_) | VolumeError::TimedOut(_) => Errno::Io,
        VolumeError::Gone => Errno::Shutdown,
        VolumeError::Unsupported => Errno::NotSupported,
    };
    let failure = Failure { errno, message: error.to_string(), at: part };
    if *error == VolumeError::Gone { Outcome::Gone(failure) } else { Outcome::Failed(failure) }
}

#[cfg(test)]
mod tests {
    use super::{parts, split};
    use atoll_world::Buf;
    use proptest::prelude::proptest;

    proptest! {
        #[test]
        fn parts_cover_a_range_once(
            at in 0u64..1 << 40, len in 1u64..1 << 26, max in 1u32..1 << 22,
        ) {
            let max = max.max(65536);
            let mut end = at;
            for (from, part) in parts(at, len, max) {
                assert!(from == end && part > 0 && part <= max);
                assert!(from == at || from.is_multiple_of(u64::from(max)));
                end += u64::from(part);
            }
            assert_eq!(end, at + len);
        }

        #[test]
        fn groups_hold_the_data_in_order(
            lens in proptest::collection::vec(1usize..9000, 1..20), max in 1u32..20_000,
            from in 0u64..100_000,
        ) {
            let pieces: Vec<Buf> = lens.iter().enumerate()
                .map(|(i, &len)| Buf::copy_from(&vec![i as u8; len])).collect();
            let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
            let mut got = Vec::new();
            for (at, group) in split(from, pieces, max) {
                let before = got.len();
                assert_eq!(at, from + before as u64);
                assert!(before == 0 || at.is_multiple_of(u64::from(max)));
                assert!(group.iter().all(|piece| !piece.is_empty()));
                group.iter().for_each(|piece| got.extend_from_slice(piece));
                assert!(got.len() - before <= max as usize && got.len() > before);
            }
            assert!(got == all);
        }
    }
}
