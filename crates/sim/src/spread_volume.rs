//! A volume of a few chunks that lie far apart in a large one: what a guest sees of a thin volume,
//! which is larger than any disk, while its clients and its book know the few chunks only.

use atoll_format::units::CHUNK;
use atoll_world::Buf;
use atoll_world::buf;
use atoll_world::volume::{Extent, Volume, VolumeError, VolumeInfo, ZeroFlags};

/// Chunk `n` of it is chunk `n * stride` of `volume`.
#[derive(Clone)]
pub(crate) struct SpreadVolume<V> {
    pub(crate) volume: V,
    /// At least 1: then it is `volume`.
    pub(crate) stride: u64,
}

/// The size of a volume that shows `bytes` in that way.
pub(crate) fn spread_bytes(bytes: u64, stride: u64) -> u64 {
    let last = bytes.saturating_sub(1) / CHUNK;
    last * (stride - 1) * CHUNK + bytes
}

/// How much of a volume of `bytes` is shown.
pub(crate) fn shown_bytes(bytes: u64, stride: u64) -> u64 {
    let last = bytes.saturating_sub(1) / CHUNK / stride;
    last * CHUNK + (bytes - last * stride * CHUNK).min(CHUNK)
}

impl<V: Volume> SpreadVolume<V> {
    /// Where the bytes of a range lie, and how many of them, chunk by chunk.
    fn pieces(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + use<V> {
        let (mut at, end, stride) = (at, at + len, self.stride);
        std::iter::from_fn(move || {
            let here = (CHUNK - at % CHUNK).min(end - at);
            let place = at / CHUNK * stride * CHUNK + at % CHUNK;
            at += here;
            (here > 0).then_some((place, here))
        })
    }
}

impl<V: Volume> Volume for SpreadVolume<V> {
    fn info(&self) -> VolumeInfo {
        let info = self.volume.info();
        VolumeInfo { size_bytes: shown_bytes(info.size_bytes, self.stride), ..info }
    }

    async fn read(&self, at: u64, len: u32) -> Result<Vec<Buf>, VolumeError> {
        let mut all = Vec::new();
        for (at, len) in self.pieces(at, u64::from(len)) {
            all.extend(self.volume.read(at, len as u32).await?);
        }
        Ok(all)
    }

    async fn write(&self, at: u64, data: Vec<Buf>) -> Result<(), VolumeError> {
        let (data, mut from) = (buf::join(&data), 0);
        for (at, len) in self.pieces(at, data.len() as u64) {
            let piece = data.slice(from..from + len as usize);
            self.volume.write(at, vec![piece]).await?;
            from += len as usize;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        self.volume.flush().await
    }

    async fn discard(&self, at: u64, len: u64) -> Result<(), VolumeError> {
        for (at, len) in self.pieces(at, len) {
            self.volume.discard(at, len).await?;
        }
        Ok(())
    }

    async fn zero(&self, at: u64, len: u64, flags: ZeroFlags) -> Result<(), VolumeError> {
        for (at, len) in self.pieces(at, len) {
            self.volume.zero(at, len, flags).await?;
        }
        Ok(())
    }

    async fn extents(&self, at: u64, len: u64, most: usize) -> Result<Vec<Extent>, VolumeError> {
        let (at, len) = self.pieces(at, len).next().expect("a range has bytes");
        self.volume.extents(at, len, most).await
    }
}

#[cfg(test)]
mod tests {
    use super::{shown_bytes, spread_bytes};
    use atoll_format::units::{BLOCK, CHUNK};

    #[test]
    fn what_is_shown_has_the_size_it_was_made_with() {
        assert_eq!(spread_bytes(3 * CHUNK, 100), 201 * CHUNK);
        assert_eq!(spread_bytes(2 * CHUNK + BLOCK, 100), 200 * CHUNK + BLOCK);
        for stride in [1, 7, 300] {
            for bytes in [BLOCK, CHUNK, CHUNK + BLOCK, 6 * CHUNK] {
                assert_eq!(shown_bytes(spread_bytes(bytes, stride), stride), bytes);
            }
        }
    }
}
