//! Reads a checkpoint: the newer of its two copies that is whole.

use super::tolerant_read::{meta, read};
use crate::device::Device;
use crate::error::OpenError;
use crate::state::State;
use crate::state::component::Component;
use crate::state::component_record;
use atoll_format::checksum::crc_append;
use atoll_format::chunk::{CheckpointHead, MetaError, RawChunkEntry, RawRun};
use atoll_format::superblock::Region;
use atoll_format::units::{BLOCK, BLOCKS_PER_CHUNK};
use atoll_world::{World, sometimes};
use zerocopy::FromBytes;

pub(super) async fn load_checkpoint<W: World>(
    device: &Device<W>,
    state: &mut State,
) -> Result<(CheckpointHead, usize, bool), OpenError> {
    let mut heads = Vec::new();
    for (copy, region) in state.geometry.checkpoints.into_iter().enumerate() {
        let Some(block) = read(device, region.at, BLOCK).await? else { continue };
        match CheckpointHead::decode(&block, region.at, state.geometry.salt) {
            Ok(head) => heads.push((copy, region, head)),
            Err(MetaError::Newer { what, value }) => {
                return Err(OpenError::Newer(format!("{what} {value}")));
            }
            Err(_) => {}
        }
    }
    heads.sort_by_key(|(copy, _, head)| (std::cmp::Reverse(head.generation), *copy));
    let both_same = heads.len() == 2 && heads[0].2.generation == heads[1].2.generation;
    for (i, &(copy, region, head)) in heads.iter().enumerate() {
        match load_body(device, state, region, &head).await {
            Ok(()) => {
                if i > 0 || !both_same {
                    sometimes!("store.recover.one_checkpoint");
                }
                return Ok((head, 1 - copy, i > 0 || !both_same));
            }
            Err(e @ OpenError::Io(_)) => return Err(e),
            // What a crash has left of two versions of a body can look like anything.
            Err(e @ OpenError::Newer(_)) if is_whole(device, region, &head).await? => {
                return Err(e);
            }
            Err(_) => {
                for c in state.components.values() {
                    state.capacity.entries_changed(c.table.len(), 0);
                }
                state.components.clear();
            }
        }
    }
    Err(OpenError::Metadata("both copies of the checkpoint are damaged".into()))
}

/// Whether the body of a checkpoint is the one that its head was written for.
async fn is_whole<W: World>(
    device: &Device<W>,
    region: Region,
    head: &CheckpointHead,
) -> Result<bool, OpenError> {
    let mut body = CheckpointReader::new(device, region, head);
    while body.left > 0 {
        body.used = body.bytes.len();
        match body.need(1).await {
            Ok(()) => {}
            Err(OpenError::Metadata(_)) => return Ok(false),
            Err(e) => return Err(e),
        }
    }
    Ok(body.crc == head.body_crc)
}

/// Reads a body of bytes that lie in whole blocks, piece by piece.
struct CheckpointReader<'a, W: World> {
    device: &'a Device<W>,
    at: u64,
    left: u64,
    crc: u32,
    bytes: Vec<u8>,
    used: usize,
}

impl<'a, W: World> CheckpointReader<'a, W> {
    fn new(device: &'a Device<W>, region: Region, head: &CheckpointHead) -> Self {
        let at = region.at + BLOCK;
        Self { device, at, left: head.body_len, crc: 0, bytes: Vec::new(), used: 0 }
    }

    /// Makes `n` bytes available.
    async fn need(&mut self, n: usize) -> Result<(), OpenError> {
        let short = || OpenError::Metadata("the checkpoint is cut short".into());
        while self.bytes.len() - self.used < n {
            if self.left == 0 {
                return Err(short());
            }
            self.bytes.drain(..self.used);
            self.used = 0;
            let take = self.left.min(1 << 20);
            let len = take.next_multiple_of(BLOCK);
            let piece = read(self.device, self.at, len).await?.ok_or_else(short)?;
            let piece = &piece[..take as usize];
            self.crc = crc_append(self.crc, piece);
            self.bytes.extend_from_slice(piece);
            self.at += len;
            self.left -= take;
        }
        Ok(())
    }

    /// As much as there is, up to a MiB more than `n`.
    fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }
}

async fn load_body<W: World>(
    device: &Device<W>,
    state: &mut State,
    region: Region,
    head: &CheckpointHead,
) -> Result<(), OpenError> {
    let damaged = || OpenError::Metadata("the checkpoint contradicts itself".into());
    if head.body_len > region.len - BLOCK {
        return Err(damaged());
    }
    let mut body = CheckpointReader::new(device, region, head);
    for _ in 0..head.components {
        let (mut c, runs) = next_component(&mut body).await?;
        for _ in 0..runs {
            body.need(size_of::<RawRun>()).await?;
            let (run, _) = RawRun::ref_from_prefix(body.rest()).map_err(|_| damaged())?;
            let (first, count) = (run.first.get(), run.count.get());
            body.used += size_of::<RawRun>();
            let chunks = c.spec.blocks.div_ceil(BLOCKS_PER_CHUNK);
            if u64::from(first) + u64::from(count) > u64::from(chunks) {
                return Err(damaged());
            }
            for chunk in first..first + count {
                body.need(size_of::<RawChunkEntry>()).await?;
                let (raw, _) =
                    RawChunkEntry::ref_from_prefix(body.rest()).map_err(|_| damaged())?;
                let entry = raw.decode().map_err(|e| meta("a chunk entry", e))?;
                body.used += size_of::<RawChunkEntry>();
                c.table.set(chunk, entry);
            }
        }
        if usize::from(c.device) >= state.capacity.devices()
            || c.local >= head.next_local
            || state.components.get(c.local).is_some()
        {
            return Err(damaged());
        }
        // An id may be there twice: deleted and made again while the checkpoint was taken. The
        // later number is the present one, and the log deletes the other.
        state.capacity.entries_changed(0, c.table.len());
        state.components.take(c);
    }
    if body.left != 0 || body.crc != head.body_crc || !body.rest().is_empty() {
        return Err(damaged());
    }
    Ok(())
}

/// One component record, whose length is known only when it has been read.
async fn next_component<W: World>(
    body: &mut CheckpointReader<'_, W>,
) -> Result<(Component, u32), OpenError> {
    loop {
        let mut bytes = body.rest();
        let before = bytes.len();
        match component_record::decode(&mut bytes) {
            Ok(done) => {
                body.used += before - bytes.len();
                return Ok(done);
            }
            // Possibly only too short: with more bytes it becomes clear.
            Err(MetaError::Damaged) if body.left > 0 => body.need(before + 1).await?,
            Err(e) => return Err(meta("a component of the checkpoint", e)),
        }
    }
}
