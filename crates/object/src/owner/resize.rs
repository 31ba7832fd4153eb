//! An object's size, which its owner alone changes.
//!
//! Invariant: what lies beyond the end reads as zeros once the object grows over it, whatever a
//! copy has kept there.

use super::Owner;
use crate::ctx::Protocol;
use crate::leg::{Leg, Member, Role};
use crate::limits::{CALL_DEADLINE, PIECES_MAX, RETRY_EVERY};
use crate::member_client::Endpoint;
use atoll_format::id::{HostId, Seq, Session};
use atoll_format::op::{BlockRange, OpKind};
use atoll_format::record::{ObjectRecord, legs_needed};
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK, COMPONENT_MAX};
use atoll_world::directory::Compare;
use atoll_world::{Lane, Nanos, World, sometimes};
use futures_util::{StreamExt, TryStreamExt};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Chunks among which data is looked for at once: 64 GiB.
const LOOK_CHUNKS: usize = 1 << 16;

/// Why a volume was not resized.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ResizeError {
    /// This host does not own the object, or no longer: the next owner is to be asked.
    #[error("the volume's owner has changed")]
    NotOwner,
    /// It has another size than when it was asked for, or nobody waits for it any more.
    #[error("the volume was changed meanwhile")]
    Changed,
    /// A sentence.
    #[error("{0}")]
    Refused(String),
}

impl From<String> for ResizeError {
    fn from(why: String) -> Self {
        Self::Refused(why)
    }
}

impl<W: World, P: Protocol> Owner<W, P> {
    /// Whether the object could be shrunk now: every copy is up to date, and its host answers.
    /// Asked before anything is discarded. `from` is its size as seen by who asks: what a view of
    /// before does not show would not be discarded.
    pub(crate) async fn may_shrink(&self, from: u64) -> Result<(), ResizeError> {
        if self.0.record.borrow().size_bytes != from {
            sometimes!("resize.shrink_by_an_old_view");
            return Err(ResizeError::Changed);
        }
        for leg in self.legs() {
            let members = leg.members.borrow().clone();
            for member in members {
                let is_here = member.role() == Role::Active
                    && matches!(
                        self.members().status(member.endpoint(), RETRY_EVERY * 2).await,
                        Ok(status) if !status.lost
                    );
                if !is_here {
                    return Err(ResizeError::Refused(format!(
                        "the copy on host {} is not up to date: shrink when all copies are",
                        self.0.ctx.host_name(member.host)
                    )));
                }
            }
        }
        if self.is_stopped() { Err(ResizeError::NotOwner) } else { Ok(()) }
    }

    /// Shrinks the object; what lies between `from`, its size as seen by who asks, and the new end
    /// has been discarded. Every copy must be up to date: what one of them lacks is not looked for
    /// beyond the end afterwards. Only as long as `lock` is held: who has given up asking for it
    /// has given that back.
    pub(crate) async fn shrink(
        &self,
        from: u64,
        size_bytes: u64,
        lock: &Compare,
    ) -> Result<(), ResizeError> {
        let behind = |record: &ObjectRecord| {
            record.members().find(|(_, m)| !m.state.is_active()).map(|(_, m)| m.host)
        };
        let edit = |record: &mut ObjectRecord| {
            let is_as_seen = record.size_bytes == from;
            let shrinks = is_as_seen && size_bytes < from && behind(record).is_none();
            if shrinks {
                let all = record.members().all(|(_, m)| m.state.is_active());
                assert!(all && size_bytes < record.size_bytes, "what is away keeps what is beyond");
                record.size_bytes = size_bytes;
            }
            shrinks
        };
        let held = self.change_while(Some(lock), edit).await.map_err(|_| ResizeError::NotOwner)?;
        if !held {
            sometimes!("resize.shrink_that_nobody_waits_for");
            return Err(ResizeError::Changed);
        }
        let record = self.0.record.borrow();
        match behind(&record) {
            _ if record.size_bytes == size_bytes => Ok(()),
            Some(host) if record.size_bytes == from => Err(ResizeError::Refused(format!(
                "the copy on host {} is not up to date: shrink when all copies are",
                self.0.ctx.host_name(host)
            ))),
            _ => Err(ResizeError::Changed),
        }
    }

    /// Grows the object in place: the same legs. `from` is its size as seen by who asked: what is
    /// carried out late grows no volume that has another size since.
    pub(crate) async fn grow(&self, from: u64, size_bytes: u64) -> Result<(), ResizeError> {
        let mut grown = self.0.record.borrow().clone();
        if size_bytes == grown.size_bytes {
            return Ok(());
        }
        if from != grown.size_bytes || size_bytes < from {
            return Err(ResizeError::Changed);
        }
        // One that was shrunk has kept its legs.
        if legs_needed(&grown.policy, size_bytes) > grown.legs.len() {
            let needs = legs_needed(&grown.policy, size_bytes);
            return Err(ResizeError::Refused(too_few_legs(grown.legs.len(), needs)));
        }
        assert!(size_bytes > grown.size_bytes, "{size_bytes} after {}", grown.size_bytes);
        grown.size_bytes = size_bytes;
        for (leg, member) in grown.members() {
            let blocks = grown.leg_chunks(leg) * BLOCKS_PER_CHUNK;
            let bytes = u64::from(blocks) * BLOCK;
            assert!(bytes <= COMPONENT_MAX, "{bytes} bytes of leg {leg}, of {size_bytes}");
            let to = Endpoint {
                host: member.host,
                group: member.group,
                component: member.component,
                session: Session::default(),
            };
            let until = self.now() + CALL_DEADLINE;
            if let Err(error) = self.members().grow(to, blocks, until).await {
                return Err(ResizeError::Refused(format!(
                    "host {} did not grow its copy ({error}): resize when all copies are up",
                    self.0.ctx.host_name(member.host)
                )));
            }
        }
        self.clear_left_over(&grown).await?;
        let edit = |record: &mut ObjectRecord| {
            let grows = record.size_bytes == from;
            if grows {
                record.size_bytes = size_bytes;
            }
            grows
        };
        self.change(edit).await.map_err(|_| ResizeError::NotOwner)?;
        let now = self.0.record.borrow().size_bytes;
        if now == size_bytes { Ok(()) } else { Err(ResizeError::Changed) }
    }

    /// Whether anything but zeros is in the object, as far as that is found out in time: when in
    /// doubt it is.
    pub(crate) async fn holds_data(&self, until: Nanos) -> bool {
        for leg in self.legs() {
            let Some(member) = self.any_active(&leg) else { return true };
            let end = member.endpoint();
            let all = self.0.record.borrow().leg_chunks(leg.index);
            // A part at a time: the first data found is enough.
            let step = self.world().bound(LOOK_CHUNKS, 1);
            for first in (0..all).step_by(step) {
                let part = first..all.min(first + step as u32);
                let Ok(chunks) = self.members().chunks_since(end, Seq(0), part).await else {
                    return true;
                };
                let mut tags = futures_util::stream::iter(chunks)
                    .map(|chunk| self.members().tags(Lane::Bulk, end, chunk))
                    .buffer_unordered(PIECES_MAX);
                while let Some(tags) = tags.next().await {
                    let is_zero = tags.is_ok_and(|t| t.iter().all(|t| t.state.reads_as_zero()));
                    if !is_zero || self.now() > until {
                        return true;
                    }
                }
                if self.now() > until {
                    return true;
                }
            }
            // An owner that was superseded knows nothing of what has been written since.
            if self.await_lease(&leg).await.is_err() {
                return true;
            }
        }
        self.is_stopped()
    }

    /// A shrink discards what lies beyond the new end, and a resync clears it, but a member that
    /// has lost the end of its log since, and was the only one there was, has it again.
    async fn clear_left_over(&self, grown: &ObjectRecord) -> Result<(), String> {
        for leg in self.legs() {
            let first = self.0.record.borrow().leg_chunks(leg.index);
            let end = grown.leg_chunks(leg.index);
            let members = leg.members.borrow().clone();
            // One that is left out would keep it, and comes back without being looked at there.
            if let Some(out) = members.iter().find(|m| !m.role().receives()) {
                return Err(self.not_cleared(out.host));
            }
            let mut chunks = BTreeSet::new();
            for m in &members {
                let listed = self.members().chunks_since(m.endpoint(), Seq(0), first..end).await;
                chunks.extend(listed.map_err(|_| self.not_cleared(m.host))?);
            }
            let (leg, members) = (&leg, members.as_slice());
            futures_util::stream::iter(chunks)
                .map(|chunk| self.clear_chunk(leg, members, chunk))
                .buffer_unordered(PIECES_MAX)
                .try_collect::<Vec<()>>()
                .await?;
        }
        Ok(())
    }

    /// Makes a chunk hold nothing on all members alike, if it is not zeros on one of them.
    /// By operations like those of clients: a member that loses them is found out and brought up
    /// to date. A discard alone would leave no trace on members that never had the chunk, and say
    /// nothing to one that has.
    async fn clear_chunk(
        &self,
        leg: &Rc<Leg>,
        members: &[Member],
        chunk: u32,
    ) -> Result<(), String> {
        let range = BlockRange::of_chunk(chunk);
        let permits = self.permits(0).await;
        let guard = self.0.locks.lock_exclusive(leg.index as u16, range).await;
        if self.is_inside(leg, chunk) {
            sometimes!("grow.another_growth_was_first");
            return Ok(());
        }
        let mut is_zero = true;
        for m in members {
            let tags = self.members().tags(Lane::Bulk, m.endpoint(), chunk).await;
            let tags = tags.map_err(|_| self.not_cleared(m.host))?;
            is_zero &= tags.iter().all(|tag| tag.state.reads_as_zero());
        }
        if is_zero {
            return Ok(());
        }
        sometimes!("grow.clears_what_was_left_over");
        let failed = |_| "the volume's owner has changed: resize again".to_owned();
        self.change_no_client(leg, OpKind::Zero, range, guard, permits).await.map_err(failed)?;
        let permits = self.permits(0).await;
        let guard = self.0.locks.lock_exclusive(leg.index as u16, range).await;
        // It reads as zeros by now, and keeps some space.
        if self.is_inside(leg, chunk) {
            return Ok(());
        }
        self.change_no_client(leg, OpKind::Discard, range, guard, permits).await.map_err(failed)
    }

    /// Whether guests may write to that chunk. Looked at under its lock: another growth may end at
    /// any moment.
    fn is_inside(&self, leg: &Leg, chunk: u32) -> bool {
        chunk < self.0.record.borrow().leg_chunks(leg.index)
    }

    fn not_cleared(&self, host: HostId) -> String {
        let host = self.0.ctx.host_name(host);
        format!("host {host} cannot clear its copy beyond the end: resize when all copies are up")
    }
}

/// The legs of an object are as many as its size needed when it was made.
fn too_few_legs(has: usize, needs: usize) -> String {
    let parts = |n: usize| if n == 1 { "1 part".to_owned() } else { format!("{n} parts") };
    format!(
        "of that size it would be kept in {}, and it was made with {}, which stays: copy it to a \
         new volume of that size",
        parts(needs),
        parts(has)
    )
}

#[cfg(test)]
mod tests {
    use super::too_few_legs;

    #[test]
    fn parts_are_counted_for_people() {
        assert!(too_few_legs(1, 2).contains("2 parts, and it was made with 1 part,"));
    }
}
