//! Deleting a volume that nobody uses.

use crate::error::ManageError;
use crate::node::Node;
use crate::volume_lock::table::Lock;
use crate::volume_view::VolumeView;
use atoll_format::record::{LockPurpose, ObjectState, key};
use atoll_world::directory::{Compare, Revision};
use atoll_world::{Components, World};

impl<W: World, S: Components> Node<W, S> {
    pub(crate) fn check_revision(
        view: &VolumeView,
        expected: Option<u64>,
    ) -> Result<(), ManageError> {
        match expected {
            Some(revision) if revision != view.revision => {
                Err(ManageError::Conflict(view.name.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Deletes a volume that nobody has open; `force`: that nobody is known to have open.
    pub async fn delete_volume(
        &self,
        name: &str,
        expected: Option<u64>,
        force: bool,
        dry_run: bool,
    ) -> Result<(), ManageError> {
        let view = self.volume(name).await?;
        Self::check_revision(&view, expected)?;
        if dry_run {
            return match self.refuse_if_in_use(&view, None, true).await {
                Err(ManageError::MayBeInUse { .. }) if force => Ok(()),
                other => other,
            };
        }
        let held = match self.lock_unused(&view, LockPurpose::Delete, force).await {
            // It never became ready, so that nobody has it open.
            Err(ManageError::NotFound { .. }) if view.record.state == ObjectState::Creating => None,
            other => Some(other?),
        };
        let mut guards: Vec<Compare> = held.iter().map(Lock::guard).collect();
        let at = |revision| Compare { key: key::object(view.record.id), modified: revision };
        guards.extend(expected.map(|revision| at(Revision(revision))));
        let deleted = self.start_delete(view.record.id, &guards, |_| true).await;
        if let (Err(_), Some(held)) = (&deleted, held) {
            self.let_go(held).await;
        }
        deleted
    }
}
