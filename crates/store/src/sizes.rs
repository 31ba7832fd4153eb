//! Looks from time to time whether the devices of a group still have their size.
//!
//! A device that has lost its end (a logical volume that was made smaller, a file that was cut off)
//! works well at its beginning. Nobody would know until I/O comes to what is gone, and a write to a
//! file even seems to bring it back, full of zeros.
//!
//! Invariant: keeps no group alive; it ends with it, or with its failure.

use crate::group::Group;
use crate::limits;
use atoll_world::World;
use std::rc::Weak;

/// Looks until the group has failed or is no longer used.
pub(crate) async fn watch<W: World>(world: W, group: Weak<Group<W>>, sizes_bytes: Vec<u64>) {
    loop {
        world.sleep(limits::SIZES_EVERY).await;
        let Some(group) = group.upgrade() else { return };
        if group.failed.borrow().is_some() || group.closing.get() {
            return;
        }
        let (devices, sizes) = (group.devices.len(), sizes_bytes.len());
        assert!(devices == sizes, "{devices} devices and {sizes} sizes");
        for (n, (device, &size_bytes)) in group.devices.iter().zip(&sizes_bytes).enumerate() {
            if let Err(error) = device.check_len(size_bytes) {
                group.device_failed(n, &error);
            }
        }
    }
}
