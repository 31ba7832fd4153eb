//! An object's size, which its owner alone changes.
//!
//! Invariant: what lies beyond the end reads as zeros once the object grows over it, whatever a
//! copy has kept there.

use crate::leg::{Leg, Member};
use crate::limits::{CALL_DEADLINE, PIECES_MAX};
use crate::message::{Reply, Request};
use crate::owner::Owner;
use crate::resync::End;
use atoll_format::id::{HostId, Seq};
use atoll_format::op::{BlockRange, BlockTag};
use atoll_format::record::{ObjectRecord, legs_needed};
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_world::components::{Copy, CopyBlock, SetTickets};
use atoll_world::{Components, Lane, World, sometimes};
use futures_util::{StreamExt, TryStreamExt};
use std::collections::BTreeSet;

const OWNER_CHANGED: &str = "the volume's owner has changed: try again";

impl<W: World, S: Components> Owner<W, S> {
    /// Shrinks the object; what lies beyond has been discarded. Every copy must be up to date: what
    /// one of them lacks is not looked for beyond the end afterwards.
    pub(crate) async fn shrink(&self, size_bytes: u64) -> Result<(), String> {
        let behind = |record: &ObjectRecord| {
            record.members().find(|(_, m)| !m.state.is_active()).map(|(_, m)| m.host)
        };
        let edit = |record: &mut ObjectRecord| {
            let shrinks = size_bytes < record.size_bytes && behind(record).is_none();
            if shrinks {
                record.size_bytes = size_bytes;
            }
            shrinks
        };
        self.change(edit).await.map_err(|_| OWNER_CHANGED)?;
        let record = self.0.record.borrow();
        match behind(&record) {
            Some(host) if record.size_bytes > size_bytes => Err(format!(
                "the copy on host {} is not up to date: shrink when all copies are",
                self.0.ctx.host_name(host)
            )),
            _ => Ok(()),
        }
    }

    /// Grows the object in place: the same legs.
    pub(crate) async fn grow(&self, size_bytes: u64) -> Result<(), String> {
        let mut grown = self.0.record.borrow().clone();
        if size_bytes < grown.size_bytes {
            return Err("the volume would shrink".into());
        }
        if size_bytes == grown.size_bytes {
            return Ok(());
        }
        // One that was shrunk has kept its legs.
        if legs_needed(&grown.policy, size_bytes) > grown.legs.len() {
            return Err(format!(
                "the volume would need {} legs and has {}: copy it to a new volume of that size",
                legs_needed(&grown.policy, size_bytes),
                grown.legs.len()
            ));
        }
        grown.size_bytes = size_bytes;
        for (leg, member) in grown.members() {
            let blocks = grown.leg_chunks(leg) * BLOCKS_PER_CHUNK;
            let (component, epoch) = (member.component, self.0.epoch);
            let request = Request::Grow { component, epoch, blocks };
            match self.call(member.host, Lane::Control, request, CALL_DEADLINE).await {
                Ok(Reply::Done) => {}
                other => {
                    return Err(format!(
                        "host {} did not grow its copy ({other:?}): resize when all copies are up",
                        self.0.ctx.host_name(member.host)
                    ));
                }
            }
        }
        self.clear_left_over(&grown).await?;
        let edit = |record: &mut ObjectRecord| {
            let grows = record.size_bytes < size_bytes;
            record.size_bytes = record.size_bytes.max(size_bytes);
            grows
        };
        self.change(edit).await.map_err(|_| OWNER_CHANGED.into())
    }

    /// A shrink discards what lies beyond the new end, but a member that has lost the end of its
    /// log since has it again, and resyncs look no further than the end.
    async fn clear_left_over(&self, grown: &ObjectRecord) -> Result<(), String> {
        for leg in self.legs() {
            let first = self.0.record.borrow().leg_chunks(leg.index);
            let end = grown.leg_chunks(leg.index);
            let members = leg.members.borrow().clone();
            // One that is left out would keep it, and comes back without being looked at there.
            if let Some(out) = members.iter().find(|m| !m.role.receives()) {
                return Err(self.not_cleared(out.host));
            }
            let mut chunks = BTreeSet::new();
            for m in &members {
                let listed = self.list_chunks(&End::of(m), Seq(0), first..end).await;
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
    async fn clear_chunk(&self, leg: &Leg, members: &[Member], chunk: u32) -> Result<(), String> {
        let start = chunk * BLOCKS_PER_CHUNK;
        let range = BlockRange { start, count: BLOCKS_PER_CHUNK as u16 };
        let _guard = self.0.locks.lock_exclusive(leg.index as u16, range).await;
        let mut is_zero = true;
        for m in members {
            let tags = self.tags_of(&End::of(m), chunk).await;
            let tags = tags.map_err(|_| self.not_cleared(m.host))?;
            is_zero &= tags.iter().all(|tag| tag.state.reads_as_zero());
        }
        if is_zero {
            return Ok(());
        }
        sometimes!("grow.clears_what_was_left_over");
        for m in members {
            let absent = |block| CopyBlock { block, tag: BlockTag::default(), bytes: None };
            let blocks = (start..start + BLOCKS_PER_CHUNK).map(absent).collect();
            let copy = Copy { chunk, blocks, only_if: None, tickets: SetTickets::default() };
            let request = Request::CopyIn { component: m.component, session: m.session, copy };
            match self.call(m.host, Lane::Bulk, request, CALL_DEADLINE).await {
                Ok(Reply::Copied(_)) => {}
                _ => return Err(self.not_cleared(m.host)),
            }
        }
        Ok(())
    }

    fn not_cleared(&self, host: HostId) -> String {
        let host = self.0.ctx.host_name(host);
        format!("host {host} cannot clear its copy beyond the end: resize when all copies are up")
    }
}
