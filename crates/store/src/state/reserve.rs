//! Sets aside, when an operation is queued, what it will need when its blocks go home, so that
//! everything that is acknowledged can be destaged; and gives it back.
//!
//! Invariant: a chunk with bytes in the log has a slot, a page and an entry, or they are set aside
//! for it.

use super::State;
use super::capacity::Needs;
use super::table::is_present;
use atoll_format::chunk::NONE;
use atoll_format::op::BlockRange;
use atoll_format::units::{BLOCKS_PER_CHUNK, CHUNK};
use atoll_world::components::StoreError;
use atoll_world::{Nanos, sometimes};

impl State {
    /// Sets aside what an operation on `range` may need at its destage, and notes that it is
    /// queued. Whether it may leave a trace: a discard of what was never touched does not.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was changed.
    pub(crate) fn reserve(
        &mut self,
        local: u32,
        range: BlockRange,
        writes: bool,
        discards: bool,
    ) -> Result<bool, StoreError> {
        assert!(range.is_valid(), "{range:?}");
        assert!(!(writes && discards), "an operation that only discards writes");
        assert!(!self.recovering, "the maps of slots and pages are not built yet");
        let c = self.components.get_mut(local).expect("the caller has just found it");
        let device = usize::from(c.device);
        let chunk = range.chunk();
        let entry = c.table.get(chunk);
        let known = c.hot.get(&chunk);
        let untouched = !is_present(&entry) && known.is_none();
        let (has_entry, has_page, has_slot) = known.map_or((false, false, false), |h| {
            (h.reserved.has_entry(), h.reserved.has_page(), h.reserved.has_slot())
        });
        let partial = u32::from(range.count) < BLOCKS_PER_CHUNK;
        let leaves_trace = !(discards && untouched);
        let slot_taken = known.is_some_and(|h| h.reserved.is_slot_taken());
        if writes && slot_taken {
            sometimes!("store.append.while_its_slot_is_taken");
        }
        let owns_slot =
            entry.slot != NONE || slot_taken || known.is_some_and(|h| h.extra_slot().is_some());
        let needs = Needs {
            slot: writes && !owns_slot && !has_slot,
            page: leaves_trace && (partial || writes) && entry.page == NONE && !has_page,
            entry: leaves_trace && !is_present(&entry) && !has_entry,
        };
        if !self.capacity.has_room(device, needs) {
            return Err(StoreError::Full);
        }
        let hot = c.hot.entry(chunk).or_default();
        hot.queued += 1;
        hot.held_until = Nanos::ZERO;
        self.capacity.reserve(device, &mut hot.reserved, needs);
        let has_slot = owns_slot || hot.reserved.has_slot();
        assert!(!writes || has_slot, "no slot for a write to chunk {chunk}");
        let has_page = entry.page != NONE || hot.reserved.has_page();
        assert!(!writes || has_page, "no page for a write to chunk {chunk}");
        let has_entry = is_present(&entry) || hot.reserved.has_entry();
        assert!(!leaves_trace || has_entry, "no entry for an operation on chunk {chunk}");
        Ok(leaves_trace)
    }

    /// Takes a slot for a whole chunk that is written past the log: its number, the device of the
    /// group, and the byte where the slot begins.
    pub(crate) fn place(&mut self, local: u32) -> Option<(u32, usize, u64)> {
        let device = usize::from(self.components.get(local)?.device);
        if !self.geometry.places {
            return None;
        }
        let slot = self.capacity.begin_placing(device)?;
        let place = self.geometry.capacity[device];
        let at = place.slots.at + u64::from(slot) * CHUNK;
        assert!(at + CHUNK <= place.slots.end(), "slot {slot} lies outside its region");
        Some((slot, place.device, at))
    }

    /// Sets aside what the next append to a chunk may need, until `until`.
    ///
    /// # Errors
    /// [`StoreError::Full`]: nothing was changed.
    pub(crate) fn hold(&mut self, local: u32, chunk: u32, until: Nanos) -> Result<(), StoreError> {
        assert!(until > Nanos::ZERO, "0 means that nothing is held");
        let range = BlockRange { start: chunk * BLOCKS_PER_CHUNK, count: 1 };
        let held = |state: &Self| {
            let hot = state.components.get(local).and_then(|c| c.hot.get(&chunk));
            hot.is_some_and(|h| h.held_until > Nanos::ZERO)
        };
        let listed = held(self);
        self.reserve(local, range, true, false)?;
        let c = self.components.get_mut(local).expect("it was there a line above");
        let hot = c.hot.get_mut(&chunk).expect("made by `reserve`");
        hot.queued -= 1;
        hot.held_until = until;
        if !listed {
            self.holds.push_back((until, local, chunk));
        }
        Ok(())
    }

    /// Gives back what was set aside for appends that did not come.
    pub(crate) fn expire_holds(&mut self, now: Nanos) {
        while let Some(&(until, local, chunk)) = self.holds.front()
            && until <= now
        {
            self.holds.pop_front();
            let hot = self.components.get_mut(local).and_then(|c| c.hot.get_mut(&chunk));
            match hot {
                Some(hot) if hot.held_until > now => {
                    let until = hot.held_until;
                    self.holds.push_back((until, local, chunk));
                }
                Some(hot) => {
                    hot.held_until = Nanos::ZERO;
                    self.settle(local, chunk);
                }
                None => {}
            }
        }
    }

    /// Sets aside, after a restart, what the blocks in the log will need; the space is there,
    /// because it was set aside when they were accepted.
    pub(crate) fn reserve_again(&mut self) {
        let nothing = self.capacity.is_nothing_reserved();
        assert!(nothing, "set aside before the log was read");
        for c in self.components.values_mut() {
            for (&chunk, hot) in &mut c.hot {
                let taken = hot.reserved.is_slot_taken();
                let waits = hot.queued > 0 || hot.held_until > Nanos::ZERO || taken;
                assert!(!waits, "chunk {chunk} waits for something after a restart");
                let entry = c.table.get(chunk);
                let placed = hot.extra_slot().is_some();
                let partial = !hot.pending.is_empty() || !hot.overlay.is_empty() || placed;
                let needs = Needs {
                    slot: hot.has_bytes_in_log() && entry.slot == NONE && !placed,
                    page: partial && entry.page == NONE,
                    entry: !is_present(&entry),
                };
                let device = usize::from(c.device);
                self.capacity.reserve_given_up(device, &mut hot.reserved, needs);
            }
        }
    }

    /// Sets aside slot and page for what is still in the log or queued, when the chunk has just
    /// lost its own: the space is there, because it was in use until now.
    pub(crate) fn reserve_lost(&mut self, local: u32, chunk: u32) {
        let Some(c) = self.components.get_mut(local) else { return };
        let Some(hot) = c.hot.get_mut(&chunk) else { return };
        let entry = c.table.get(chunk);
        let placed = hot.extra_slot().is_some();
        let owns_slot = entry.slot != NONE || placed;
        let waits = hot.queued > 0;
        let partial = !hot.pending.is_empty() || !hot.overlay.is_empty() || waits || placed;
        let (has_slot, has_page) = (hot.reserved.has_slot(), hot.reserved.has_page());
        let needs = Needs {
            slot: !owns_slot && !has_slot && (hot.has_bytes_in_log() || waits),
            page: entry.page == NONE && !has_page && partial,
            entry: false,
        };
        self.capacity.reserve_given_up(usize::from(c.device), &mut hot.reserved, needs);
    }

    /// Gives back what a chunk no longer needs; forgets a chunk that has nothing in memory.
    pub(crate) fn settle(&mut self, local: u32, chunk: u32) {
        let Some(c) = self.components.get_mut(local) else { return };
        let Some(hot) = c.hot.get_mut(&chunk) else { return };
        let entry = c.table.get(chunk);
        let settled = hot.is_settled();
        let forgotten = settled && hot.overlay.is_empty();
        let owns_slot = entry.slot != NONE || hot.extra_slot().is_some();
        let unneeded = Needs {
            slot: settled || owns_slot,
            page: entry.page != NONE || forgotten,
            entry: is_present(&entry) || settled,
        };
        self.capacity.release(usize::from(c.device), &mut hot.reserved, unneeded);
        if forgotten {
            let kept = !hot.reserved.is_empty();
            assert!(!kept, "chunk {chunk} is forgotten, and what was set aside for it is not");
            assert!(hot.spare.is_empty(), "chunk {chunk} is forgotten with slots: {:?}", hot.spare);
            c.hot.remove(&chunk);
        }
    }

    /// An operation on that chunk is no longer queued.
    pub(crate) fn unqueue(&mut self, local: u32, chunk: u32) {
        if let Some(c) = self.components.get_mut(local)
            && let Some(hot) = c.hot.get_mut(&chunk)
        {
            assert!(hot.queued > 0, "an operation on chunk {chunk} ends that was not queued");
            hot.queued = hot.queued.saturating_sub(1);
            self.settle(local, chunk);
        }
    }
}
