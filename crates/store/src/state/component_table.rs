//! The components of a group, by local number and by id, and what of them the journal or the log
//! still has to learn.
//!
//! Local numbers are never used twice, also not after a restart: records of two components would
//! meet under one.
//!
//! Invariants: an id leads to the component that has it; every component has a number below
//! `next_local`; tombstones are in the order of the log.

use super::component::Component;
use crate::limits;
use atoll_format::id::{ComponentId, Seq};
use atoll_world::FixedMap;
use atoll_world::components::{ComponentSpec, StoreError};
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};
use std::ops::RangeFrom;

/// See the file.
#[derive(Default)]
pub(crate) struct ComponentTable {
    by_local: BTreeMap<u32, Component>,
    by_id: FixedMap<ComponentId, u32>,
    next_local: u32,
    /// Components deleted in the log whose end the journal does not know yet: segment, number.
    tombstones: VecDeque<(u64, u32)>,
    /// Components whose committed seq is newer than the log says.
    hints: BTreeSet<u32>,
    /// Upper bound of the bytes that component records take in a checkpoint.
    record_bytes: u64,
}

impl ComponentTable {
    pub(crate) fn len(&self) -> usize {
        self.by_local.len()
    }

    pub(crate) fn get(&self, local: u32) -> Option<&Component> {
        self.by_local.get(&local)
    }

    pub(crate) fn get_mut(&mut self, local: u32) -> Option<&mut Component> {
        self.by_local.get_mut(&local)
    }

    /// All of them, by local number.
    pub(crate) fn values(&self) -> btree_map::Values<'_, u32, Component> {
        self.by_local.values()
    }

    pub(crate) fn values_mut(&mut self) -> btree_map::ValuesMut<'_, u32, Component> {
        self.by_local.values_mut()
    }

    /// Those from that local number on.
    pub(crate) fn range_mut(
        &mut self,
        from: RangeFrom<u32>,
    ) -> btree_map::RangeMut<'_, u32, Component> {
        self.by_local.range_mut(from)
    }

    /// The component, if it exists and is not being deleted.
    ///
    /// # Errors
    /// [`StoreError::NoComponent`].
    pub(crate) fn find(&self, id: ComponentId) -> Result<&Component, StoreError> {
        let found = self.by_id.get(&id).and_then(|local| self.by_local.get(local));
        let c = found.filter(|c| !c.deleting).ok_or(StoreError::NoComponent(id))?;
        assert!(c.id == id, "{id} is to be number {}, which is {}", c.local, c.id);
        Ok(c)
    }

    /// As [`ComponentTable::find`].
    pub(crate) fn find_mut(&mut self, id: ComponentId) -> Result<&mut Component, StoreError> {
        let found = self.by_id.get(&id).and_then(|local| self.by_local.get_mut(local));
        let c = found.filter(|c| !c.deleting).ok_or(StoreError::NoComponent(id))?;
        assert!(c.id == id, "{id} is to be number {}, which is {}", c.local, c.id);
        Ok(c)
    }

    // ---- making and deleting ----

    /// The number that the next component will have.
    pub(crate) fn next_local(&self) -> u32 {
        self.next_local
    }

    /// Numbers below that one have been given away.
    pub(crate) fn given_away_below(&mut self, next_local: u32) {
        self.next_local = self.next_local.max(next_local);
    }

    /// Makes a component under a new number, which is returned. It takes the place of one with the
    /// same id that is being deleted.
    pub(crate) fn make(&mut self, id: ComponentId, spec: ComponentSpec, device: u8) -> u32 {
        let local = self.next_local;
        self.next_local += 1;
        self.by_id.insert(id, local);
        let before = self.by_local.insert(local, Component::new(local, id, spec, device));
        assert!(before.is_none(), "number {local} of {id} is given away twice: {before:?}");
        local
    }

    /// Takes a component that recovery has found. The log may repeat the making of one that was
    /// deleted and made again: the later number counts.
    pub(crate) fn take(&mut self, c: Component) {
        let known = self.by_id.get(&c.id).copied().unwrap_or(0);
        self.by_id.insert(c.id, known.max(c.local));
        let local = c.local;
        let before = self.by_local.insert(local, c);
        assert!(before.is_none(), "number {local} is found twice: {before:?}");
    }

    /// Takes a component out; its id may lead to a later one by now.
    pub(crate) fn remove(&mut self, local: u32) -> Option<Component> {
        let c = self.by_local.remove(&local)?;
        if self.by_id.get(&c.id) == Some(&local) {
            self.by_id.remove(&c.id);
        }
        self.hints.remove(&local);
        Some(c)
    }

    /// Forgets everything: the checkpoint that it came from is damaged.
    pub(crate) fn clear(&mut self) {
        self.by_local.clear();
        self.by_id.clear();
    }

    // ---- what the journal has to learn ----

    /// A component that journal or checkpoint know was deleted in that segment of the log.
    pub(crate) fn add_tombstone(&mut self, segment: u64, local: u32) {
        let last = self.tombstones.back().map_or(0, |&(last, _)| last);
        assert!(last <= segment, "a tombstone of segment {segment} behind one of {last}");
        self.tombstones.push_back((segment, local));
    }

    /// Segment and number of each deleted component, in the order of the log.
    pub(crate) fn tombstones(&self) -> &VecDeque<(u64, u32)> {
        &self.tombstones
    }

    /// The journal knows those of segments below `segment`.
    pub(crate) fn forget_tombstones_below(&mut self, segment: u64) {
        while self.tombstones.front().is_some_and(|&(of, _)| of < segment) {
            self.tombstones.pop_front();
        }
    }

    /// A checkpoint is durable that was begun when there were `count` of them.
    pub(crate) fn forget_tombstones(&mut self, count: usize) {
        assert!(count <= self.tombstones.len(), "tombstones were forgotten during a checkpoint");
        self.tombstones.drain(..count);
    }

    // ---- what the log has to learn ----

    /// More is committed than the log says; false if that was known.
    pub(crate) fn hint(&mut self, local: u32) -> bool {
        self.hints.insert(local)
    }

    /// Takes the first of those of which more is committed: its number, and that seq if its making
    /// is durable.
    pub(crate) fn take_hint(&mut self) -> Option<(u32, Option<Seq>)> {
        let local = self.hints.pop_first()?;
        let c = self.by_local.get(&local).filter(|c| c.durable);
        Some((local, c.map(|c| c.promise.committed)))
    }

    pub(crate) fn hints(&self) -> &BTreeSet<u32> {
        &self.hints
    }

    // ---- room for records ----

    /// Whether one more operation can be remembered until it is committed, when at most so many
    /// components share the checkpoint.
    pub(crate) fn record_fits(&mut self, components_max: u32) -> bool {
        let max = u64::from(components_max) * limits::COMPONENT_RECORD_BYTES * 3 / 4;
        self.record_bytes += limits::RECORD_GROWTH;
        if self.record_bytes < max {
            return true;
        }
        // The sum only grows above, so it is an upper bound; it is counted anew when it matters.
        self.record_bytes = self.by_local.values().map(|c| c.encoded_len() as u64).sum();
        self.record_bytes < max
    }

    /// Every id leads to a component that has it.
    ///
    /// # Errors
    /// One that does not.
    pub(crate) fn audit(&self) -> Result<(), String> {
        for (id, local) in self.by_id.iter() {
            if self.by_local.get(local).is_none_or(|c| c.id != *id) {
                return Err(format!("component {id} is to be number {local}, and is not"));
            }
        }
        Ok(())
    }
}
