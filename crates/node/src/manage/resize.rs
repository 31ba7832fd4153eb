//! Growing a volume, also in use, and shrinking one that nobody uses.

use crate::admin::message::{AdminReply, AdminRequest};
use crate::error::ManageError;
use crate::manage::create::check_size;
use crate::node::Node;
use crate::transaction::ATTEMPTS_MAX;
use crate::volume_lock::table::Lock;
use crate::volume_view::VolumeView;
use atoll_format::id::ObjectId;
use atoll_format::record::{self, LockPurpose, ObjectRecord, key};
use atoll_format::units::BLOCK;
use atoll_object::promised::promised_bytes;
use atoll_object::{ObjectVolume, placement};
use atoll_world::directory::{Directory, Entry};
use atoll_world::{Components, Nanos, Volume, World, sometimes};

/// How long what an owner does not answer is looked for in the directory.
const ANSWER_WAIT: Nanos = Nanos::from_secs(2);

/// A new size for a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resize {
    /// In bytes, a multiple of 4 KiB.
    pub size_bytes: u64,
    /// It may be smaller than now: what lies beyond is lost.
    pub may_shrink: bool,
    /// Only look whether it could be done.
    pub dry_run: bool,
}

impl<W: World, S: Components> Node<W, S> {
    /// Grows a volume (also in use), or shrinks it (only unused; what lies beyond is lost).
    pub async fn resize_volume(
        &self,
        name: &str,
        resize: Resize,
        expected: Option<u64>,
    ) -> Result<VolumeView, ManageError> {
        let Resize { size_bytes, may_shrink, dry_run } = resize;
        check_size(size_bytes)?;
        let view = self.volume(name).await?;
        Self::check_revision(&view, expected)?;
        assert_eq!(size_bytes % BLOCK, 0, "{size_bytes} bytes end within a block");
        let id = view.record.id;
        if size_bytes < view.record.size_bytes {
            if !may_shrink {
                let (name, before) = (name.into(), view.record.size_bytes);
                return Err(ManageError::WouldShrink { name, size: size_bytes, before });
            }
            if dry_run {
                self.refuse_if_in_use(&view, None, true).await?;
                return Ok(view);
            }
            return self.shrink_volume(&view, size_bytes).await;
        }
        if size_bytes > view.record.size_bytes {
            self.check_growth(&view, size_bytes).await?;
        }
        if dry_run {
            return Ok(view);
        }
        // The view may be an old one, so that also "nothing to do" is the owner's to say.
        let from = view.record.size_bytes;
        assert!(from <= size_bytes, "{name} grows from {from} to {size_bytes} bytes");
        let ask = || AdminRequest::Grow { object: id, from, size_bytes };
        match self.ask_owner(name, id, ask).await {
            Ok(AdminReply::Changed) => Err(ManageError::Conflict(name.into())),
            Ok(_) => self.volume(name).await,
            Err(ManageError::NoAnswer(host)) => self.was_resized(name, id, size_bytes, &host).await,
            Err(error) => Err(error),
        }
    }

    /// Refuses a growth for which there is no room, as [`Self::create_volume`] refuses the size.
    async fn check_growth(&self, view: &VolumeView, size_bytes: u64) -> Result<(), ManageError> {
        let (record, objects) = (&view.record, &self.0.objects);
        let promises = self.promises().await?;
        let grow = || {
            let hosts = self.unreserved(&promises, Some(record.id));
            placement::grow(&hosts, record, size_bytes, |component| objects.used_bytes(component))
        };
        if grow().is_err() {
            // What is known of space may be seconds old.
            self.refresh_statuses().await;
            grow().map_err(ManageError::CannotPlace)?;
        }
        let grown = ObjectRecord { size_bytes, ..record.clone() };
        let more = promised_bytes(&grown) - promised_bytes(record);
        self.check_promise(&promises, more)
    }

    /// A growth that its owner did not answer: done, or nobody knows.
    async fn was_resized(
        &self,
        name: &str,
        id: ObjectId,
        size_bytes: u64,
        host: &str,
    ) -> Result<VolumeView, ManageError> {
        let until = self.world().now() + ANSWER_WAIT;
        loop {
            let view = self.volume(name).await;
            if let Ok(view) = view
                && view.record.id == id
                && view.record.size_bytes == size_bytes
            {
                sometimes!("manage.growth_without_an_answer_was_done");
                return Ok(view);
            }
            if self.world().now() > until {
                return Err(ManageError::Unknown(format!(
                    "host {host}, which owns volume {name}, does not answer: whether the volume \
                     has grown, or will, is not known"
                )));
            }
            self.world().sleep(Nanos::from_ms(250)).await;
        }
    }

    /// Discards what lies beyond the new end, and has the owner shrink the volume: all under a lock
    /// that the owner's change compares. When the owner does not answer, the lock is given back:
    /// then the size says whether it has been done, and it never will be later.
    async fn shrink_volume(
        &self,
        view: &VolumeView,
        size_bytes: u64,
    ) -> Result<VolumeView, ManageError> {
        let (name, before) = (&view.name, view.record.size_bytes);
        assert!(size_bytes < before, "{name} shrinks from {before} to {size_bytes} bytes");
        let held = self.lock_unused(view, LockPurpose::Shrink, false).await?;
        let asked = self.discard_and_shrink(view, size_bytes, &held).await;
        let host = match asked {
            Ok(()) => {
                self.let_go(held).await;
                return self.volume(name).await;
            }
            Err(ManageError::NoAnswer(host)) => host,
            Err(error) => {
                self.let_go(held).await;
                return Err(error);
            }
        };
        let unknown = |why: &str| {
            ManageError::Unknown(format!(
                "host {host}, which owns volume {name}, does not answer, and {why}: whether the \
                 volume was shrunk is not known"
            ))
        };
        if let Err(error) = self.give_back(&held).await {
            return Err(unknown(&error.to_string()));
        }
        sometimes!("manage.shrink_without_an_answer");
        match self.record_without_lock(&held).await {
            Ok(Some(size)) if size == size_bytes => self.volume(name).await,
            Ok(Some(_)) => Err(ManageError::Failed(format!(
                "host {host}, which owns volume {name}, does not answer: the volume was not \
                 shrunk, and will not be; what lay beyond its new end may be gone"
            ))),
            Ok(None) => Err(ManageError::NotFound { what: "volume", name: name.clone() }),
            Err(error) => Err(unknown(&error.to_string())),
        }
    }

    /// The size in an object's record, as it is after a lock was given back: in a view that shows
    /// the lock gone, or a newer one. Views may be old.
    async fn record_without_lock(&self, held: &Lock) -> Result<Option<u64>, ManageError> {
        let (id, directory) = (held.record.object, self.world().directory());
        let (object_key, lock_key) = (key::object(id), key::lock(id));
        for _ in 0..ATTEMPTS_MAX {
            let locks = directory.list(&lock_key).await.map_err(ManageError::Directory)?;
            let is_ours = |entry: &Entry| entry.modified == held.revision();
            let is_gone = locks.revision > held.revision() && !locks.entries.iter().any(is_ours);
            let objects = directory.list(&object_key).await.map_err(ManageError::Directory)?;
            if !is_gone || objects.revision < locks.revision {
                self.world().sleep(Nanos::from_ms(100)).await;
                continue;
            }
            let shown = objects.revision;
            assert!(shown > held.revision(), "{shown:?} is of before {:?}", held.revision());
            let Some(entry) = objects.entries.first() else { return Ok(None) };
            let record = record::decode::<ObjectRecord>(&object_key, &entry.value);
            return Ok(Some(record.map_err(ManageError::Failed)?.size_bytes));
        }
        Err(ManageError::Failed("the directory shows only what was before".into()))
    }

    async fn discard_and_shrink(
        &self,
        view: &VolumeView,
        size_bytes: u64,
        held: &Lock,
    ) -> Result<(), ManageError> {
        let (name, id) = (&view.name, view.record.id);
        assert_eq!(held.record.object, id, "{name} is shrunk under another volume's lock");
        let volume = ObjectVolume::open(self.0.objects.clone(), id).await;
        let volume = volume.map_err(|e| ManageError::Failed(e.to_string()))?;
        // At 50 I/Os a second a TiB would take 6 h.
        volume.set_unlimited();
        let size = Volume::info(&volume).size_bytes;
        // Only the owner changes a record in use, and knows its copies and its size: the view may
        // be an old one. A refusal comes before anything is discarded.
        let ask = || AdminRequest::MayShrink { object: id, from: size };
        match self.ask_owner(name, id, ask).await {
            Ok(AdminReply::Changed) => return Err(ManageError::Conflict(name.clone())),
            Ok(_) => {}
            Err(ManageError::NoAnswer(host)) => return Err(ManageError::Unreachable(host)),
            Err(error) => return Err(error),
        }
        // Zeros first, so that growing again shows none of the old bytes.
        let rest = size.saturating_sub(size_bytes);
        let discarded = Volume::discard(&volume, size_bytes, rest).await;
        discarded.map_err(|e| {
            ManageError::Failed(format!(
                "volume {name} was not shrunk, and will not be; what lay beyond its new end may be \
                 gone: {e}"
            ))
        })?;
        let lock = held.revision().0;
        let ask = || AdminRequest::Shrink { object: id, from: size, size_bytes, lock };
        match self.ask_owner(name, id, ask).await? {
            AdminReply::Changed => Err(ManageError::Conflict(name.clone())),
            _ => Ok(()),
        }
    }
}
