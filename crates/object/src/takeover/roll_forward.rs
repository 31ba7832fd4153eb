//! Makes what is above the watermark the same on all active members, before anything is served
//! (R7).

use super::settle::FenceAnswers;
use crate::ctx::Protocol;
use crate::failure::Interrupted;
use crate::leg::{Member, Role};
use crate::limits::{CALL_DEADLINE, READ_DEADLINE, RECONCILE_AT_ONCE};
use crate::member_client::{Endpoint, MemberError};
use crate::operation::{TicketKey, key};
use crate::owner::Owner;
use crate::owner::tickets::Tables;
use atoll_format::id::{Seq, Ticket};
use atoll_format::op::{BlockRange, BlockState, BlockTag};
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_world::components::{Copy, CopyBlock};
use atoll_world::{Buf, Lane, StoreError, World, mutant, sometimes};
use futures_util::StreamExt;
use std::collections::{BTreeMap, BTreeSet};

/// Brings every operation above the watermark to all active members.
pub(super) async fn roll_forward<W: World, P: Protocol>(
    owner: &Owner<W, P>,
    fenced: &FenceAnswers,
) -> Result<(), Interrupted> {
    for leg in owner.legs() {
        let active: Vec<Member> =
            leg.members.borrow().iter().filter(|m| m.role() == Role::Active).cloned().collect();
        assert!(!active.is_empty(), "leg {} has no active member (R20)", leg.index);
        let mut chunks = BTreeSet::new();
        let mut beyond = BTreeSet::new();
        let mut ops: BTreeMap<u32, BTreeMap<Seq, Ticket>> = BTreeMap::new();
        // A shrink has discarded what lies beyond, and a member may have lost the discards.
        let end = owner.0.record.borrow().leg_chunks(leg.index);
        for member in &active {
            let answer = fenced.get(&member.component).ok_or(Interrupted)?;
            // What this member knows as committed may be less than others know: listing more
            // than needed is only work.
            for op in owner.members().uncommitted(member.endpoint()).await? {
                if op.range.chunk() >= end {
                    beyond.insert(op.range.chunk());
                    continue;
                }
                chunks.insert(op.range.chunk());
                if op.ticket.number != 0 {
                    ops.entry(op.range.chunk()).or_default().insert(op.id.seq, op.ticket);
                }
            }
            if answer.doubtful && !mutant!("takeover.doubt_is_ignored") {
                for other in active.iter().map(Member::endpoint) {
                    chunks.extend(owner.chunks_since(&leg, other, Seq(0)).await?);
                    let of_all = owner.members().chunks_since(other, Seq(0), end..u32::MAX);
                    beyond.extend(of_all.await?);
                }
            }
        }
        if mutant!("takeover.rolls_nothing_forward") {
            chunks.clear();
        }
        let trusted: Vec<bool> =
            active.iter().map(|m| fenced.get(&m.component).is_some_and(|a| !a.doubtful)).collect();
        let ends: Vec<Endpoint> = active.iter().map(Member::endpoint).collect();
        let (ends, trusted, none) = (&ends, &trusted, &BTreeMap::new());
        let tables = &owner.tables_of(ends).await?;
        let work = futures_util::stream::iter(chunks)
            .map(|chunk| {
                let ops = ops.get(&chunk).unwrap_or(none);
                reconcile(owner, chunk, (ends, trusted), (tables, ops))
            })
            .buffer_unordered(owner.world().bound(RECONCILE_AT_ONCE, 1));
        assert_eq!((ends.len(), trusted.len()), (active.len(), active.len()));
        let mut work = std::pin::pin!(work);
        let mut rolled_back = BTreeSet::new();
        while let Some(result) = work.next().await {
            rolled_back.extend(result?);
        }
        for &end in ends {
            clear(owner, end, &beyond).await?;
        }
        owner.agree_on_tickets(ends, &rolled_back).await?;
        // Now every active member has the same. The watermark is one that all of them hold, so
        // that a member that falls behind it later is known to have lost something.
        let mut watermark = None;
        for &end in ends {
            let status = owner.members().status(end, CALL_DEADLINE).await?;
            let newest = status.promise.newest;
            // It is below all that this owner gives out (S7).
            if newest >= owner.next_seq() {
                return Err(Interrupted);
            }
            watermark = Some(watermark.map_or(newest, |w: Seq| w.min(newest)));
        }
        leg.start_from(watermark.unwrap_or_default());
    }
    Ok(())
}

/// Makes those chunks of one member hold nothing, which are beyond the object's end. One that was
/// made after the object shrank ends before them, and is not asked for them.
async fn clear<W: World, P: Protocol>(
    owner: &Owner<W, P>,
    end: Endpoint,
    beyond: &BTreeSet<u32>,
) -> Result<(), Interrupted> {
    let (Some(&first), Some(&last)) = (beyond.first(), beyond.last()) else { return Ok(()) };
    let here = owner.members().chunks_since(end, Seq(0), first..last + 1).await?;
    for &chunk in here.intersection(beyond) {
        if owner.clear_chunk_beyond_the_end(end, chunk).await? {
            sometimes!("takeover.clears_what_is_beyond_the_end");
        }
    }
    Ok(())
}

/// Makes one chunk equal on all active members: per block the highest seq wins (R7). `ops` are
/// those that wrote it. Returns which of them had to be rolled back instead.
async fn reconcile<W: World, P: Protocol>(
    owner: &Owner<W, P>,
    chunk: u32,
    (ends, trusted): (&[Endpoint], &[bool]),
    (tables, ops): (&Tables, &BTreeMap<Seq, Ticket>),
) -> Result<Vec<TicketKey>, Interrupted> {
    let mut rolled_back = BTreeSet::new();
    let mut tags = Vec::new();
    for &end in ends {
        tags.push(owner.members().tags(Lane::Bulk, end, chunk).await?);
    }
    assert_eq!(tags.len(), ends.len(), "the tags of every active member");
    let mut wanted: Vec<Vec<CopyBlock>> = vec![Vec::new(); ends.len()];
    for i in 0..BLOCKS_PER_CHUNK as usize {
        let here: Vec<BlockTag> = tags.iter().map(|t| t[i]).collect();
        let highest = here.iter().map(|t| t.seq).max().unwrap_or_default();
        if here.iter().all(|t| t.seq == highest && t.state != BlockState::Bad) {
            continue;
        }
        let block = chunk * BLOCKS_PER_CHUNK + i as u32;
        let (tag, bytes) = best(owner, block, &here, ends, trusted).await?;
        assert!(tag.seq <= highest, "{tag:?} of block {block}, {highest:?} is the highest (R7)");
        assert!(
            tag.seq == Seq(0) || here.iter().any(|t| t.seq == tag.seq),
            "nobody had {tag:?} of block {block}"
        );
        rolled_back.extend(here.iter().map(|t| t.seq).filter(|&seq| seq > tag.seq));
        for (n, t) in here.iter().enumerate() {
            if t.seq != tag.seq || (t.state == BlockState::Bad && tag.state != BlockState::Bad) {
                wanted[n].push(CopyBlock { block, tag, bytes: bytes.clone() });
            }
        }
    }
    for (place, (&end, blocks)) in ends.iter().zip(wanted).enumerate() {
        if blocks.is_empty() {
            continue;
        }
        sometimes!("takeover.rolled_forward");
        let tickets = tables.with_copy(place, ops, &rolled_back);
        let copy = Copy { chunk, blocks, only_if: None, tickets };
        owner.members().copy_in(end, copy, READ_DEADLINE * 2).await?;
    }
    Ok(rolled_back.iter().filter_map(|seq| ops.get(seq)).copied().map(key).collect())
}

/// The version of a block that all members are to have, with its bytes.
async fn best<W: World, P: Protocol>(
    owner: &Owner<W, P>,
    block: u32,
    here: &[BlockTag],
    ends: &[Endpoint],
    trusted: &[bool],
) -> Result<(BlockTag, Option<Buf>), Interrupted> {
    assert_eq!((here.len(), trusted.len()), (ends.len(), ends.len()), "each of every member");
    for step in steps(here, trusted) {
        match step {
            Step::Take(tag) => return Ok((tag, None)),
            Step::Read { member, seq } => {
                let range = BlockRange { start: block, count: 1 };
                match owner.members().read(Lane::Bulk, ends[member], range).await {
                    Ok(b) if b.tags.first().is_some_and(|t| t.seq == seq) => {
                        return Ok((b.tags[0], b.payload.into_iter().next()));
                    }
                    Err(MemberError::Store(StoreError::Bad(_))) => {}
                    _ => return Err(Interrupted),
                }
            }
            Step::MarkBad(seq) => {
                sometimes!("takeover.block_without_a_good_copy");
                return Ok((BlockTag { seq, state: BlockState::Bad, crc: 0 }, None));
            }
            Step::RollBack => sometimes!("takeover.damaged_operation_rolled_back"),
        }
    }
    Ok((BlockTag::default(), None))
}

/// One attempt to find the version of a block that all members are to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// This one, which reads as zeros.
    Take(BlockTag),
    /// That of this member, if its bytes are good.
    Read { member: usize, seq: Seq },
    /// Nobody has good bytes of this operation, and it may have been acknowledged: it must not be
    /// papered over, so the block is marked on all.
    MarkBad(Seq),
    /// Nobody has good bytes of it, and a member that has lost nothing lacks it: it was never
    /// acknowledged, and the version before it stands.
    RollBack,
}

/// What to try for a block of which each member has a version, in this order, until one succeeds;
/// if none does, no member ever had anything. `trusted`: the members that have lost nothing. Pure.
fn steps(here: &[BlockTag], trusted: &[bool]) -> Vec<Step> {
    let mut seqs: Vec<Seq> = here.iter().map(|t| t.seq).collect();
    seqs.sort_unstable();
    seqs.dedup();
    let mut steps = Vec::new();
    while let Some(seq) = seqs.pop() {
        for (member, tag) in here.iter().enumerate() {
            if tag.seq != seq || tag.state == BlockState::Bad {
                continue;
            }
            if tag.state.reads_as_zero() {
                steps.push(Step::Take(*tag));
                return steps;
            }
            steps.push(Step::Read { member, seq });
        }
        let never_acknowledged =
            here.iter().zip(trusted).any(|(t, &trusted)| trusted && t.seq < seq);
        if !never_acknowledged {
            steps.push(Step::MarkBad(seq));
            return steps;
        }
        steps.push(Step::RollBack);
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(seq: u64, state: BlockState) -> BlockTag {
        BlockTag { seq: Seq(seq), state, crc: 0 }
    }

    fn read(member: usize, seq: u64) -> Step {
        Step::Read { member, seq: Seq(seq) }
    }

    #[test]
    fn the_newest_version_with_good_bytes_wins_and_nothing_acknowledged_is_papered_over() {
        let (raw, bad, zero) = (BlockState::Raw, BlockState::Bad, BlockState::Zero);
        let cases: Vec<(Vec<BlockTag>, [bool; 2], Vec<Step>)> = vec![
            // Equal but for one that is damaged: from the other.
            (vec![tag(7, bad), tag(7, raw)], [true, true], vec![read(1, 7), Step::MarkBad(Seq(7))]),
            // One has more: its bytes, else the older version, for the other never acknowledged.
            (
                vec![tag(7, raw), tag(5, raw)],
                [true, true],
                vec![read(0, 7), Step::RollBack, read(1, 5), Step::MarkBad(Seq(5))],
            ),
            // The same, and the one that lacks it may have lost it.
            (
                vec![tag(7, raw), tag(5, raw)],
                [true, false],
                vec![read(0, 7), Step::MarkBad(Seq(7))],
            ),
            (vec![tag(7, bad), tag(5, raw)], [true, false], vec![Step::MarkBad(Seq(7))]),
            (
                vec![tag(7, bad), tag(5, zero)],
                [true, true],
                vec![Step::RollBack, Step::Take(tag(5, zero))],
            ),
            // Zeros need no bytes.
            (vec![tag(7, zero), tag(5, raw)], [true, true], vec![Step::Take(tag(7, zero))]),
            // Damaged on all.
            (vec![tag(7, bad), tag(7, bad)], [true, true], vec![Step::MarkBad(Seq(7))]),
        ];
        for (here, trusted, expected) in cases {
            assert_eq!(steps(&here, &trusted), expected, "{here:?} {trusted:?}");
        }
    }
}
