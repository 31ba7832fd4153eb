//! The record of an object as a takeover reads and changes it.

use super::error::TakeoverError;
use crate::limits::{DIRECTORY_DEADLINE, RETRY_EVERY};
use crate::owner::record_cas::{Swapped, swap};
use crate::record_rules::check_shape;
use atoll_format::id::ObjectId;
use atoll_format::record::{self, ObjectRecord, ObjectState, key};
use atoll_world::directory::Revision;
use atoll_world::{Directory, DirectoryError, World};

/// The directory's record of an object, possibly stale.
pub(crate) async fn load<W: World>(
    world: &W,
    object: ObjectId,
) -> Result<(ObjectRecord, Revision), TakeoverError> {
    let key = key::object(object);
    let deadline = world.now() + DIRECTORY_DEADLINE;
    let got = world
        .timeout_at(deadline, world.directory().get(&key))
        .await
        .unwrap_or_else(|_| Err(DirectoryError::Unavailable("no answer in time".into())));
    let entry = got.map_err(|e| TakeoverError::NotNow(e.to_string()))?;
    let entry = entry.ok_or(TakeoverError::Gone)?;
    let record: ObjectRecord = record::decode(&key, &entry.value).map_err(TakeoverError::NotNow)?;
    check_shape(object, &record)
        .map_err(|why| TakeoverError::NotNow(format!("directory key '{key}': {why}")))?;
    match record.state {
        ObjectState::Ready => Ok((record, entry.modified)),
        ObjectState::Creating | ObjectState::Deleting => Err(TakeoverError::Gone),
    }
}

/// Confirms `edit` of the record in the directory; only this host's own later writes may have
/// happened meanwhile.
pub(super) async fn confirm<W: World>(
    world: &W,
    mut record: ObjectRecord,
    revision: Revision,
) -> Result<(ObjectRecord, Revision), TakeoverError> {
    let until = world.now() + DIRECTORY_DEADLINE * 2;
    let mut nonces = Vec::new();
    loop {
        record.nonce = world.random();
        let swapped = swap(world, revision, &record, &nonces, None).await;
        nonces.push(record.nonce);
        match swapped {
            Ok(Swapped::Done(revision)) => return Ok((record, revision)),
            Ok(Swapped::Earlier(record, revision)) => return Ok((*record, revision)),
            Ok(Swapped::Other(..) | Swapped::GuardGone) => return Err(TakeoverError::Lost),
            Ok(Swapped::Gone) => return Err(TakeoverError::Gone),
            Err(error) if world.now() > until => {
                return Err(TakeoverError::NotNow(error.to_string()));
            }
            Err(_) => world.sleep(RETRY_EVERY).await,
        }
    }
}
