//! The ceiling of a volume in I/Os per second, also while it is in use.

use crate::admin::message::{AdminReply, AdminRequest};
use crate::error::ManageError;
use crate::node::Node;
use crate::volume_view::VolumeView;
use atoll_world::{Components, World};

impl<W: World, S: Components> Node<W, S> {
    /// Sets the ceiling of a volume for all its clients together; 0: none. Clients keep to it
    /// within five seconds, those with a ceiling before at their next turns.
    ///
    /// # Errors
    /// There is no such volume, it is not as expected, or its owner gives no answer: then it is
    /// set, or will be, or not.
    pub async fn limit_iops(
        &self,
        name: &str,
        limit: u32,
        expected: Option<u64>,
        dry_run: bool,
    ) -> Result<VolumeView, ManageError> {
        let view = self.volume(name).await?;
        Self::check_revision(&view, expected)?;
        if dry_run || view.record.policy.iops_limit == limit {
            return Ok(view);
        }
        let id = view.record.id;
        match self.ask_owner(name, id, || AdminRequest::LimitIops { object: id, limit }).await {
            Ok(AdminReply::Failed { why }) => Err(ManageError::Failed(why)),
            Ok(_) => self.volume(name).await,
            Err(ManageError::NoAnswer(host)) => Err(ManageError::Unknown(format!(
                "host {host}, which owns volume {name}, does not answer: whether the limit was \
                 set, or will be, is not known; set it again, that changes nothing twice"
            ))),
            Err(error) => Err(error),
        }
    }
}
