//! Damaged blocks of this host's components: handed to the owners of their objects until they are
//! good.

use crate::admin::message::AdminRequest;
use crate::node::Node;
use atoll_format::id::{ComponentId, ObjectId};
use atoll_format::op::BlockRange;
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_world::{Components, StoreError, World, mutant, sometimes};

/// Chunks that are looked at in one turn.
const CHUNKS_AT_ONCE: usize = 16;

impl<W: World, S: Components> Node<W, S> {
    /// Damaged blocks are repaired by their object's owner; without one, this host becomes it.
    /// They are handed over until they are good: an owner may be on its way out, or unable now.
    pub(crate) async fn hand_over_bad_blocks(&self) {
        if mutant!("care.damage_not_told") {
            return;
        }
        let now = self.world().now();
        for (component, chunk) in self.0.repairs.due(now, CHUNKS_AT_ONCE) {
            let blocks = self.bad_blocks_of(component, chunk).await;
            let object = self.0.objects.members().object_of(component);
            let (Some(object), false) = (object, blocks.is_empty()) else {
                self.0.repairs.remove(component, chunk);
                continue;
            };
            self.0.repairs.postpone(component, chunk, now);
            if !self.0.objects.owns(object) && !self.owner_is_alive(object).await {
                let _ = self.0.objects.adopt(object).await;
            }
            for block in blocks {
                assert_eq!(block / BLOCKS_PER_CHUNK, chunk, "block {block} of {component}");
                if self.0.objects.owns(object) {
                    self.0.objects.on_bad_block(object, component, block);
                } else {
                    self.tell_owner_of_bad_block(object, component, block).await;
                }
            }
        }
    }

    /// The blocks of a chunk on this host that cannot be read now.
    async fn bad_blocks_of(&self, component: ComponentId, chunk: u32) -> Vec<u32> {
        let start = chunk * BLOCKS_PER_CHUNK;
        for store in self.0.objects.members().stores() {
            let Ok(status) = store.status(component) else { continue };
            let end = (start + BLOCKS_PER_CHUNK).min(status.spec.blocks);
            let range = |start, end: u32| BlockRange { start, count: (end - start) as u16 };
            if start >= end || store.read(component, range(start, end)).await.is_ok() {
                return Vec::new();
            }
            assert!(
                end <= status.spec.blocks && end - start <= BLOCKS_PER_CHUNK,
                "blocks {start} to {end} of {component}, which has {}",
                status.spec.blocks
            );
            let mut bad = Vec::new();
            for block in start..end {
                let one = store.read(component, range(block, block + 1)).await;
                if matches!(one, Err(StoreError::Bad(_))) {
                    bad.push(block);
                }
            }
            return bad;
        }
        Vec::new()
    }

    /// The owner finds the damage by reading the block from this member.
    async fn tell_owner_of_bad_block(&self, object: ObjectId, component: ComponentId, block: u32) {
        let Ok(Some((record, _))) = self.object_record(object).await else { return };
        let Some(owner) = record.owner else { return };
        sometimes!("care.bad_block_told_to_owner");
        let _ = self.ask(owner.addr(), AdminRequest::BadBlock { object, component, block }).await;
    }

    async fn owner_is_alive(&self, object: ObjectId) -> bool {
        match self.object_record(object).await {
            Ok(Some((record, _))) => {
                record.owner.is_some_and(|o| self.is_alive_life(o.host, o.incarnation))
            }
            // In doubt leave it alone.
            Ok(None) | Err(_) => true,
        }
    }
}
