//! A volume that is locked while an image is copied in.

use crate::admin::message::{AdminReply, AdminRequest};
use crate::error::ManageError;
use crate::event_log::{About, Severity};
use crate::node::Node;
use crate::volume_lock::table::{Import, export_name};
use crate::volume_view::VolumeView;
use atoll_format::record::LockPurpose;
use atoll_object::ObjectVolume;
use atoll_world::{Components, Nanos, Volume, World, sometimes};
use std::cell::Cell;
use std::rc::Rc;

/// How long a lock for an import outlives its last client.
pub const IDLE_MAX: Nanos = Nanos::from_secs(60);
/// How often that is looked at.
const IDLE_LOOK: Nanos = Nanos::from_secs(5);

const _: () = assert!(IDLE_LOOK.0 < IDLE_MAX.0);

/// A volume that is locked for an import.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportLock {
    /// The volume, empty now.
    pub volume: VolumeView,
    /// By what name a client of this host opens it meanwhile: `NAME:TOKEN`.
    pub export: String,
    /// Ends the lock.
    pub token: u64,
}

impl<W: World, S: Components> Node<W, S> {
    /// Locks a volume for an import and empties it. `replace`: though it holds data.
    ///
    /// # Errors
    /// It is smaller than `min_size_bytes`; somebody uses it, or may; it holds data, or may, and
    /// nobody said that it is to be replaced: then nothing was changed and nothing is locked.
    pub async fn lock_for_import(
        &self,
        name: &str,
        replace: bool,
        min_size_bytes: u64,
        dry_run: bool,
    ) -> Result<ImportLock, ManageError> {
        let view = self.volume(name).await?;
        let size = view.record.size_bytes;
        if size < min_size_bytes {
            return Err(ManageError::TooSmall { name: name.into(), size, wanted: min_size_bytes });
        }
        if dry_run {
            self.refuse_if_in_use(&view, None, true).await?;
            let export = export_name(name, 0);
            return Ok(ImportLock { volume: view, export, token: 0 });
        }
        let held = self.lock_unused(&view, LockPurpose::Import, false).await?;
        if let Err(error) = self.empty(&view, replace).await {
            self.let_go(held).await;
            return Err(error);
        }
        let token = held.record.token;
        let idle_since = Cell::new(self.world().now());
        let import = Rc::new(Import { lock: held, clients: Cell::new(0), idle_since });
        let before = self.0.imports.borrow_mut().insert(token, import.clone());
        assert!(before.is_none(), "two imports by one token");
        self.world().spawn(self.clone().end_when_idle(import));
        sometimes!("lock.volume_is_locked_for_an_import");
        Ok(ImportLock { export: export_name(name, token), volume: view, token })
    }

    /// Whether a volume holds data is the owner's to say: figures of space are seconds old.
    async fn empty(&self, view: &VolumeView, replace: bool) -> Result<(), ManageError> {
        let id = view.record.id;
        let ask = || AdminRequest::HoldsData { object: id };
        let answer = match self.ask_owner(&view.name, id, ask).await {
            // It was only asked something: nothing has been done.
            Err(ManageError::NoAnswer(host)) => return Err(ManageError::Unreachable(host)),
            other => other?,
        };
        if answer == (AdminReply::HoldsData { holds: false }) {
            return Ok(());
        }
        if !replace {
            return Err(ManageError::HoldsData { name: view.name.clone() });
        }
        let volume = ObjectVolume::open(self.0.objects.clone(), id).await;
        let volume = volume.map_err(|e| ManageError::Failed(e.to_string()))?;
        // As for a shrink: guests wait for their turns, not the administrator.
        volume.set_unlimited();
        let emptied = volume.discard(0, view.record.size_bytes).await;
        emptied.map_err(|e| {
            let what = format!("volume {} could not be emptied whole: {e}", view.name);
            ManageError::Failed(what)
        })
    }

    /// Ends an import's lock. Repeating it is no error.
    ///
    /// # Errors
    /// A client still uses it; there is no such lock of that volume here; the directory.
    pub async fn unlock_import(&self, name: &str, token: u64) -> Result<(), ManageError> {
        let import = self.0.imports.borrow().get(&token).cloned();
        let Some(import) = import.filter(|i| i.lock.record.name == name) else {
            // Its token is as good as the lock, and not repeated.
            return Err(ManageError::NotFound { what: "import lock", name: name.into() });
        };
        if import.clients.get() > 0 {
            let hosts = self.0.config.name.clone();
            return Err(ManageError::InUse { name: name.into(), hosts });
        }
        let removed = self.0.imports.borrow_mut().remove(&token);
        let is_it = removed.is_some_and(|removed| Rc::ptr_eq(&removed, &import));
        assert!(is_it && import.lock.record.token == token, "another import of {name} has ended");
        self.give_back(&import.lock).await
    }

    /// A lock that nobody uses ends: whoever asked for it has died.
    async fn end_when_idle(self, import: Rc<Import>) {
        let token = import.lock.record.token;
        loop {
            self.world().sleep(IDLE_LOOK).await;
            if !self.0.imports.borrow().contains_key(&token) {
                return;
            }
            let idle = self.world().now().since(import.idle_since.get());
            if import.clients.get() > 0 || idle < IDLE_MAX {
                continue;
            }
            sometimes!("lock.ends_by_itself");
            let name = import.lock.record.name.clone();
            if self.unlock_import(&name, token).await.is_ok() {
                let message = "an import was given up by whoever began it: the volume is free";
                let about = About::object(import.lock.record.object);
                self.note(Severity::Warning, "import-given-up", about, message);
            }
            return;
        }
    }
}
