//! Volumes as front ends open them: each knows that it is in use.

use crate::node::{Node, OpenVolume};
use atoll_format::units::iec;
use atoll_object::ObjectVolume;
use atoll_world::buf::total_len;
use atoll_world::volume::{ExportName, Extent, VolumeInfo, Volumes, ZeroFlags};
use atoll_world::{Buf, Components, Volume, VolumeError, World};
use std::ops::Deref;
use std::rc::Rc;

/// An object's volume together with the knowledge that it is in use.
pub struct CountedVolume<W: World, S: Components> {
    volume: ObjectVolume<W, S>,
    _open: Rc<OpenVolume>,
}

impl<W: World, S: Components> Clone for CountedVolume<W, S> {
    fn clone(&self) -> Self {
        Self { volume: self.volume.clone(), _open: self._open.clone() }
    }
}

impl<W: World, S: Components> Deref for CountedVolume<W, S> {
    type Target = ObjectVolume<W, S>;
    fn deref(&self) -> &Self::Target {
        &self.volume
    }
}

impl<W: World, S: Components> Volume for CountedVolume<W, S> {
    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }
    async fn read(&self, at: u64, len: u32) -> Result<Vec<Buf>, VolumeError> {
        let data = self.volume.read(at, len).await?;
        let found = total_len(&data);
        assert_eq!(found, len as usize, "bytes read at {at}, and asked for");
        Ok(data)
    }
    async fn write(&self, at: u64, data: Vec<Buf>) -> Result<(), VolumeError> {
        self.volume.write(at, data).await
    }
    async fn flush(&self) -> Result<(), VolumeError> {
        self.volume.flush().await
    }
    async fn discard(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        self.volume.discard(at, len).await
    }
    async fn zero(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), VolumeError> {
        self.volume.zero(at, len, flags).await
    }
    async fn extents(&self, at: u64, len: u64, most: usize) -> Result<Vec<Extent>, VolumeError> {
        self.volume.extents(at, len, most).await
    }
}

impl<W: World, S: Components> Volumes for Node<W, S> {
    type Volume = CountedVolume<W, S>;

    async fn open(&self, name: &str) -> Result<Self::Volume, VolumeError> {
        let (volume, open) = self.open_export(name).await?;
        Ok(CountedVolume { volume, _open: Rc::new(open) })
    }

    async fn elsewhere(&self, name: &str) -> Option<u8> {
        self.shard_for_client(name).await
    }

    async fn list(&self, max: usize) -> Result<Vec<ExportName>, VolumeError> {
        let volumes = self.volumes().await;
        let volumes = volumes.map_err(|e| VolumeError::TimedOut(e.to_string()))?;
        let names = volumes.into_iter().take(max).map(|v| ExportName {
            description: format!(
                "{}, {} copies",
                iec(v.record.size_bytes),
                v.record.policy.members()
            ),
            name: v.name,
        });
        Ok(names.collect())
    }
}
