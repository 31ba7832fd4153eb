//! One device of a group: every request has a deadline, and a device that failed stays failed.
//!
//! A failed write or flush leaves nothing known of unflushed data, so neither is ever tried again:
//! a flush that is tried again may succeed although what was cached is lost. A failed read is the
//! caller's to judge, as long as the device's label can be read: damage is of a place, and a device
//! that gives nothing at all is not damaged, but gone.
//! A request that does not come back in time fails the device; its late completion is ignored,
//! because its future is dropped and its buffers belong to the world.

use crate::limits;
use crate::readahead::buffer::{Buffered, ReadaheadBuffer};
use atoll_format::superblock::SECOND_FROM_END;
use atoll_format::units::{BLOCK, CHUNK, iec};
use atoll_world::components::FailureCause;
use atoll_world::sync::Notify;
use atoll_world::{Buf, Disk, Durability, Nanos, Stage, World, mutant};
use std::cell::{Cell, RefCell, RefMut};
use std::pin::pin;
use std::rc::Rc;

/// Why a request gave no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DeviceError {
    /// The device answered with an error to a read; it may still be good elsewhere.
    Read(String),
    /// The device is out of use.
    Failed(String),
}

/// See the file. Clones are the same device.
pub(crate) struct Device<W: World>(Rc<DeviceState<W>>);

impl<W: World> Clone for Device<W> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct DeviceState<W: World> {
    world: W,
    disk: W::Disk,
    name: String,
    deadline: Nanos,
    failed: RefCell<Option<String>>,
    /// What took it out of use.
    cause: Cell<FailureCause>,
    /// It failed by giving no answer: what it holds may be there again after a restart.
    gone: Cell<bool>,
    /// It has just failed, and whether it is gone is being found out.
    probing: Cell<bool>,
    /// Notified when any device of the group fails.
    changed: Notify,
    errors: Cell<u64>,
    /// Smoothed latency of writes, in ns, quick and slow to follow.
    quick: Cell<u64>,
    slow: Cell<u64>,
    slow_told: Cell<bool>,
    readahead: RefCell<ReadaheadBuffer>,
    /// Pauses that are left to [`Device::read_patiently`].
    pauses_left: Cell<u32>,
}

impl<W: World> Device<W> {
    pub(crate) fn new(
        world: W,
        disk: W::Disk,
        name: String,
        deadline: Nanos,
        changed: Notify,
    ) -> Self {
        Self(Rc::new(DeviceState {
            world,
            disk,
            name,
            deadline,
            failed: RefCell::new(None),
            cause: Cell::default(),
            gone: Cell::new(false),
            probing: Cell::new(false),
            changed,
            errors: Cell::new(0),
            quick: Cell::new(0),
            slow: Cell::new(0),
            slow_told: Cell::new(false),
            readahead: RefCell::default(),
            pauses_left: Cell::new(limits::READ_PAUSES_MAX),
        }))
    }

    /// Errors it has answered with.
    pub(crate) fn errors(&self) -> u64 {
        self.0.errors.get()
    }

    /// Takes it out of use for good.
    pub(crate) fn fail(&self, why: &str) -> DeviceError {
        let text = self
            .0
            .failed
            .borrow_mut()
            .get_or_insert_with(|| format!("{}: {why}", self.0.name))
            .clone();
        self.0.changed.notify_all();
        DeviceError::Failed(text)
    }

    fn vanish(&self, why: &str) -> DeviceError {
        if self.0.failed.borrow().is_none() {
            self.0.gone.set(true);
        }
        self.fail(why)
    }

    /// Fails if less of it is left than the label says. As a device that gives no answer: what is
    /// still there stays as it is, and nothing is called lost for good (fault 47).
    pub(crate) fn check_len(&self, size_bytes: u64) -> Result<(), DeviceError> {
        let len_bytes = self.0.disk.len_bytes();
        if len_bytes >= size_bytes || self.0.failed.borrow().is_some() {
            return Ok(());
        }
        Err(self.vanish(&format!(
            "it has shrunk: {} of {} are left",
            iec(len_bytes),
            iec(size_bytes)
        )))
    }

    /// What took it out of use, if anything has.
    pub(crate) fn cause(&self) -> FailureCause {
        self.0.cause.get()
    }

    /// Whether it failed by giving no answer, rather than by refusing a write.
    pub(crate) fn is_gone(&self) -> bool {
        let gone = self.0.gone.get();
        assert!(!gone || self.0.failed.borrow().is_some(), "gone, and in use: {}", self.0.name);
        gone
    }

    /// Whether either copy of its label can be read, whatever it says.
    async fn answers(&self) -> bool {
        let inner = &*self.0;
        let len = inner.disk.len_bytes();
        for at in [0, (len / CHUNK * CHUNK).saturating_sub(SECOND_FROM_END)] {
            let by = inner.world.now() + inner.deadline;
            let read = inner.world.timeout_at(by, inner.disk.read(at, BLOCK as u32)).await;
            if matches!(read, Ok(Ok(bytes)) if bytes.len() as u64 == BLOCK) {
                return true;
            }
        }
        false
    }

    async fn usable(&self) -> Result<(), DeviceError> {
        while self.0.probing.get() {
            self.0.changed.notified().await;
        }
        match &*self.0.failed.borrow() {
            Some(text) => Err(DeviceError::Failed(text.clone())),
            None => Ok(()),
        }
    }

    pub(crate) async fn read(&self, at: u64, len: u32) -> Result<Buf, DeviceError> {
        self.usable().await?;
        let inner = &*self.0;
        assert!(len > 0 && u64::from(len).is_multiple_of(BLOCK), "{len} bytes are read at {at}");
        let by = inner.world.now() + inner.deadline;
        let begun = inner.world.stage(Stage::DiskRead);
        let request = pin!(inner.disk.read(at, len));
        let done = inner.world.timeout_at(by, request).await;
        inner.world.end_stage(Stage::DiskRead, begun);
        match done {
            Ok(Ok(bytes)) if bytes.len() == len as usize => Ok(bytes),
            Ok(Ok(bytes)) => {
                inner.errors.set(inner.errors.get() + 1);
                Err(DeviceError::Read(format!("short read at {at}: {} of {len}", bytes.len())))
            }
            Ok(Err(e)) => {
                inner.errors.set(inner.errors.get() + 1);
                let why = format!("read at {at} failed: {e}");
                if Box::pin(self.answers()).await {
                    return Err(DeviceError::Read(why));
                }
                Err(self.vanish(&format!("{why}, and so does its label")))
            }
            Err(_) => {
                inner.errors.set(inner.errors.get() + 1);
                Err(self.vanish(&format!("read at {at} did not return in {}", inner.deadline)))
            }
        }
    }

    /// As [`Device::read`], for recovery: what the device does not give it may give a moment later,
    /// and what stays unread counts as damaged, perhaps the last copy of it. None: not given
    /// [`limits::READ_TRIES`] times, [`limits::READ_PAUSE`] apart while there are pauses left.
    pub(crate) async fn read_patiently(
        &self,
        at: u64,
        len: u32,
    ) -> Result<Option<Buf>, DeviceError> {
        for attempt in 0..limits::READ_TRIES {
            let pauses_left = self.0.pauses_left.get();
            if attempt > 0 && pauses_left > 0 {
                self.0.pauses_left.set(pauses_left - 1);
                self.0.world.sleep(limits::READ_PAUSE).await;
            }
            match self.read(at, len).await {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(DeviceError::Read(_)) => {}
                Err(failed) => return Err(failed),
            }
        }
        Ok(None)
    }

    /// What has been read ahead.
    pub(crate) fn readahead(&self) -> RefMut<'_, ReadaheadBuffer> {
        self.0.readahead.borrow_mut()
    }

    /// As [`Device::read`], or what has been read ahead. None: it is to be read.
    pub(crate) async fn take_readahead(
        &self,
        at: u64,
        len: u32,
    ) -> Result<Option<Buf>, DeviceError> {
        if self.readahead().is_empty() {
            return Ok(None);
        }
        self.usable().await?;
        let found = self.readahead().take(at, len);
        let Buffered::Reading(ended) = found else { return Ok(found.bytes()) };
        ended.notified().await;
        self.usable().await?;
        let found = self.readahead().take(at, len);
        Ok(found.bytes())
    }

    pub(crate) async fn write(
        &self,
        at: u64,
        data: Vec<Buf>,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        self.usable().await?;
        let inner = &*self.0;
        let begun = inner.world.now();
        let len: u64 = data.iter().map(|piece| piece.len() as u64).sum();
        assert!(
            at.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK) && len > 0,
            "whole blocks are written, not {len} bytes at {at}"
        );
        self.readahead().written(at, len);
        let request = pin!(inner.disk.write(at, data, durability));
        let done = inner.world.timeout_at(begun + inner.deadline, request).await;
        self.readahead().written(at, len);
        match done {
            Ok(Ok(())) => self.usable().await?,
            done => Box::pin(self.judge(&format!("write at {at}"), done)).await?,
        }
        let took = inner.world.now().since(begun);
        if let Some(stages) = inner.world.stages() {
            stages.note(Stage::DiskWrite, took);
        }
        self.note_latency(took);
        Ok(())
    }

    pub(crate) async fn flush(&self) -> Result<(), DeviceError> {
        self.usable().await?;
        let inner = &*self.0;
        let by = inner.world.now() + inner.deadline;
        let request = pin!(inner.disk.flush());
        let done = inner.world.timeout_at(by, request).await;
        Box::pin(self.judge("flush", done)).await
    }

    async fn judge(
        &self,
        what: &str,
        done: Result<std::io::Result<()>, atoll_world::Elapsed>,
    ) -> Result<(), DeviceError> {
        let why = match done {
            // Failed while this request was under way: what it says no longer counts.
            Ok(Ok(())) => return self.usable().await,
            Ok(Err(_)) if is_error_ignored(what) => return Ok(()),
            Ok(Err(e)) => {
                self.0.errors.set(self.0.errors.get() + 1);
                let why = format!("{what} failed: {e}");
                // At once: nothing that comes after may rely on what this one was to write.
                let first = self.0.failed.borrow().is_none();
                assert!(!first || !self.0.probing.get(), "{} failed before it did", self.0.name);
                if first {
                    self.0.cause.set(FailureCause::from(&e));
                }
                let failed = self.fail(&why);
                // Another error does not end the probe of the first.
                if first {
                    self.0.probing.set(true);
                    self.0.gone.set(!Box::pin(self.answers()).await);
                    self.0.probing.set(false);
                    self.0.changed.notify_all();
                }
                self.usable().await?;
                return Err(failed);
            }
            Err(_) => format!("{what} did not return in {}", self.0.deadline),
        };
        self.0.errors.set(self.0.errors.get() + 1);
        Err(self.vanish(&why))
    }

    /// Follows the latency of writes: 1/16 of the way at once, 1/1024 of it for comparison.
    fn note_latency(&self, took: Nanos) {
        let inner = &*self.0;
        let follow = |old: u64, shift: u32| {
            if old == 0 { took.0 } else { old - (old >> shift) + (took.0 >> shift) }
        };
        inner.quick.set(follow(inner.quick.get(), 4));
        inner.slow.set(follow(inner.slow.get(), 10));
    }

    /// Says once per spell that the device is ten times slower than it was, and above 20 ms.
    pub(crate) fn slow_news(&self) -> Option<String> {
        let inner = &*self.0;
        let (quick, slow) = (inner.quick.get(), inner.slow.get());
        let is_slow = quick > 20_000_000 && quick > 10 * slow;
        if !is_slow {
            if quick < 2 * slow {
                inner.slow_told.set(false);
            }
            return None;
        }
        if inner.slow_told.replace(true) {
            return None;
        }
        Some(format!("{}: writes take {}, before {}", inner.name, Nanos(quick), Nanos(slow)))
    }
}

/// The flaws of a device whose errors are not believed.
fn is_error_ignored(what: &str) -> bool {
    match what {
        "flush" => mutant!("device.flush_error_ignored"),
        _ => mutant!("device.write_error_ignored"),
    }
}
