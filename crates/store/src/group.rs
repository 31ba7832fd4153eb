//! What the parts of a running store share: its devices, its state, its wake-ups.
//!
//! Invariant: no borrow of the state lives across an await.

use crate::device::{Device, DeviceError};
use crate::limits;
use crate::log::queue::LogQueue;
use crate::metadata::journal::JournalPosition;
use crate::readahead::stream::StreamDetector;
use crate::state::State;
use crate::state::pace::DestageStart;
use atoll_format::id::GroupId;
use atoll_world::components::{FailureCause, StoreError, StoreEvent};
use atoll_world::sync::Notify;
use atoll_world::{Buf, Nanos, World, sometimes};
use std::cell::{Cell, RefCell};

/// See the file.
pub(crate) struct Group<W: World> {
    pub world: W,
    pub id: GroupId,
    pub devices: Vec<Device<W>>,
    pub state: RefCell<State>,
    /// Who reads in order.
    pub streams: RefCell<StreamDetector>,
    pub queue: RefCell<LogQueue>,
    pub journal: RefCell<JournalPosition>,
    /// Why nothing works any more.
    pub failed: RefCell<Option<String>>,
    /// Told when a device or the group fails.
    pub health: Notify,
    /// Told when the log has something to write.
    pub log_work: Notify,
    /// Told when destage may have something to do, or is asked to stop.
    pub mover_work: Notify,
    /// Told when segments of the log became free.
    pub trimmed: Notify,
    /// Told when a background task has ended.
    pub ended: Notify,
    /// Close was called: no new operations, tasks end when they are done.
    pub closing: Cell<bool>,
    /// See [`crate::OpenSpec`].
    pub destage_start: DestageStart,
    pub checkpoint_at: u64,
    /// When a writer was last slowed by a full log.
    pub slowed_at: Cell<Option<Nanos>>,
    /// A footer is being written.
    pub writes_footer: Cell<bool>,
    /// Told when it is no longer.
    pub footer_written: Notify,
    pub log_ended: Cell<bool>,
    pub mover_ended: Cell<bool>,
}

impl<W: World> Group<W> {
    /// Closed in order: nothing waits, and the checkpoint says all.
    pub(crate) fn assert_at_rest(&self) {
        let (queue, state) = (self.queue.borrow(), self.state.borrow());
        let waiting = queue.items.len() + queue.in_flight.len();
        assert!(waiting == 0, "closed while {waiting} operations wait for the log");
        let used = self.journal.borrow().used;
        assert!(used == 0, "closed without a checkpoint of {used} bytes of the journal");
        let dirty = state.capacity.dirty_blocks();
        assert!(
            dirty == 0 && state.components.tombstones().is_empty(),
            "closed while {dirty} blocks are dirty"
        );
        assert!(!self.writes_footer.get(), "closed while a footer is being written");
        let saved = state.components.values().all(|c| c.is_saved() && c.unsaved_from.is_none());
        assert!(saved, "closed while promises are in the log only");
    }

    /// The device of the log.
    pub(crate) fn log_device(&self) -> &Device<W> {
        &self.devices[0]
    }

    /// Reads from a device, and judges it if it fails.
    ///
    /// # Errors
    /// See [`DeviceError`].
    pub(crate) async fn read(&self, device: usize, at: u64, len: u32) -> Result<Buf, DeviceError> {
        let result = self.devices[device].read(at, len).await;
        if let Err(e) = &result {
            self.device_failed(device, e);
        }
        result
    }

    /// Refuses calls to a store that has failed or is closed.
    pub(crate) fn usable(&self) -> Result<(), StoreError> {
        match &*self.failed.borrow() {
            Some(why) => Err(StoreError::Failed(why.clone())),
            None if self.closing.get() => Err(StoreError::Failed("it is being closed".into())),
            None => Ok(()),
        }
    }

    /// A writer is slowed by a full log; said once for as long as that lasts.
    pub(crate) fn slowed(&self) {
        sometimes!("store.append.slowed");
        let now = self.world.now();
        let before = self.slowed_at.replace(Some(now));
        if before.is_none_or(|at| now.since(at) > limits::SLOWED_QUIET) {
            let mut state = self.state.borrow_mut();
            let percent = u32::from(state.log.fill()) * 100 / 255;
            state.event(StoreEvent::LogFull(format!(
                "the log is {percent} % full and writers are slowed: blocks come in faster than \
                 its disks take them from there"
            )));
        }
    }

    /// The error of a call that was waiting when the store failed or closed.
    pub(crate) fn gone(&self) -> StoreError {
        let why = self.failed.borrow().clone();
        StoreError::Failed(why.unwrap_or_else(|| "it is being closed".into()))
    }

    /// Takes the group out of use for good: everything queued is answered with the reason.
    pub(crate) fn fail(&self, why: &str, cause: FailureCause) {
        {
            let mut failed = self.failed.borrow_mut();
            if failed.is_some() {
                return;
            }
            *failed = Some(why.to_string());
        }
        self.state.borrow_mut().event(StoreEvent::Failed { why: why.to_string(), cause });
        // Dropping the operations drops their senders, and so answers them.
        let dropped = self.queue.borrow_mut().clear();
        drop(dropped);
        self.health.notify_all();
        self.log_work.notify_all();
        self.mover_work.notify_all();
        self.trimmed.notify_all();
    }

    /// Judges a failed request: the log's device takes the group with it, a capacity device that
    /// refuses a write takes its components. One that gives no answer takes the group too, until
    /// its host restarts: it may come back, and calling its components lost would be final.
    pub(crate) fn device_failed(&self, device: usize, error: &DeviceError) {
        let DeviceError::Failed(why) = error else { return };
        if device == 0 || self.devices[device].is_gone() {
            return self.fail(why, self.devices[device].cause());
        }
        self.fail_capacity(device, why);
    }

    fn fail_capacity(&self, device: usize, why: &str) {
        let mut state = self.state.borrow_mut();
        let Some(index) = state.geometry.capacity.iter().position(|c| c.device == device) else {
            return;
        };
        if !state.capacity.fail(index) {
            return;
        }
        let cause = self.devices[device].cause();
        state.event(StoreEvent::Failed { why: why.to_string(), cause });
        // What waits in the log for that device will never get there: it must not pin the log.
        // The loss is written down before the log is trimmed; until then a restart with a device
        // that works again finds everything.
        let locals: Vec<u32> = state
            .components
            .values()
            .filter(|c| usize::from(c.device) == index)
            .map(|c| c.local)
            .collect();
        for local in locals {
            state.lose(local);
        }
        let mut there = state.components.values().filter(|c| usize::from(c.device) == index);
        let all =
            there.all(|c| c.is_lost() && c.log_share.blocks() == 0 && c.unsaved_from.is_some());
        assert!(all, "{why}: a component of that device is not lost");
        let dirty = state.capacity.dirty_chunks(index);
        assert!(dirty == 0, "{dirty} chunks of a device that has failed are dirty");
        drop(state);
        self.mover_work.notify_all();
    }
}
