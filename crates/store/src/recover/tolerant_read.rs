//! Reads of recovery, which tell what cannot be read from a device that does not work, and errors
//! of formats as reasons not to open a group.

use crate::device::{Device, DeviceError};
use crate::error::OpenError;
use atoll_format::chunk::MetaError;
use atoll_format::log::LogError;
use atoll_world::{Buf, World};

/// A read that is patient; what stays unreadable is none.
pub(super) async fn read<W: World>(
    device: &Device<W>,
    at: u64,
    len: u64,
) -> Result<Option<Buf>, OpenError> {
    match device.read_patiently(at, len as u32).await {
        Ok(bytes) => Ok(bytes),
        Err(DeviceError::Read(why) | DeviceError::Failed(why)) => Err(OpenError::Io(why)),
    }
}

pub(super) fn meta(what: &str, error: MetaError) -> OpenError {
    match error {
        MetaError::Newer { what, value } => OpenError::Newer(format!("{what} {value}")),
        _ => OpenError::Metadata(what.to_string()),
    }
}

pub(super) fn newer(e: LogError) -> Option<OpenError> {
    match e {
        LogError::Newer { what, value } => Some(OpenError::Newer(format!("{what} {value}"))),
        _ => None,
    }
}
