//! The ceiling of the object in I/Os per second.

use super::Owner;
use super::resize::ResizeError;
use crate::ctx::Protocol;
use crate::iops_limit::Turns;
use atoll_world::World;

impl<W: World, P: Protocol> Owner<W, P> {
    /// Turns for one open handle, under the ceiling that the record has now.
    pub fn turns(&self, want: u32) -> Turns {
        let limit = self.0.record.borrow().policy.iops_limit;
        self.0.iops.take(limit, want, self.now())
    }

    /// Sets the ceiling of I/Os per second (0: none), for all clients, from now on.
    pub async fn set_iops_limit(&self, limit: u32) -> Result<(), ResizeError> {
        let set = self.change(|record| {
            let changes = record.policy.iops_limit != limit;
            record.policy.iops_limit = limit;
            changes
        });
        set.await.map_err(|_| ResizeError::NotOwner)
    }
}
