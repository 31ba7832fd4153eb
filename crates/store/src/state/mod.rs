//! All of a group's state in memory. No I/O, no waiting.
//!
//! Each number has one owner, a file whose fields are private: [`log_index`] counts what lies in
//! the log, [`capacity`] what is used and set aside on the capacity devices, [`component_table`]
//! who there is, [`table`] the chunks of one component. Above them lie the changes that touch
//! several of them at once: [`reserve`], [`home`] and [`apply`].
//!
//! Invariant: the newest record of a block in the log is at least as new as its home.

pub(crate) mod apply;
pub(crate) mod audit;
pub(crate) mod bitmap;
pub(crate) mod capacity;
pub(crate) mod chunk;
pub(crate) mod client_history;
pub(crate) mod component;
pub(crate) mod component_record;
pub(crate) mod component_table;
pub(crate) mod home;
pub(crate) mod log_index;
pub(crate) mod pace;
pub(crate) mod page_cache;
pub(crate) mod place;
pub(crate) mod reserve;
pub(crate) mod resolve;
pub(crate) mod table;

use crate::geometry::Geometry;
use crate::limits;
use atoll_format::units::BLOCK;
use atoll_world::Nanos;
use atoll_world::components::{GroupSpace, ScrubProgress, StoreCounters, StoreEvent};
use capacity::CapacityMap;
use component_table::ComponentTable;
use log_index::LogIndex;
use pace::Pace;
use page_cache::PageCache;
use std::collections::VecDeque;

/// See the file.
pub(crate) struct State {
    pub geometry: Geometry,
    pub components: ComponentTable,
    pub log: LogIndex,
    pub capacity: CapacityMap,
    /// Chunks for which an append was announced, in the order in which that ends: when, number,
    /// chunk.
    pub holds: VecDeque<(Nanos, u32, u32)>,
    pub page_cache: PageCache,
    pub pace: Pace,
    pub counters: StoreCounters,
    pub events: VecDeque<StoreEvent>,
    pub scrub: ScrubProgress,
    /// When a checkpoint is to write pages anew that their device has lost.
    pub rewrite_at: Option<Nanos>,
    /// The maps of slots and pages are not built yet.
    pub recovering: bool,
}

impl State {
    /// The state of a group of which nothing was read yet. `page_cache_bytes`, `dirty_blocks_max`
    /// and `log_blocks_max` bound its memory.
    pub(crate) fn new(
        geometry: Geometry,
        page_cache_bytes: u64,
        dirty_blocks_max: u64,
        log_blocks_max: u64,
    ) -> Self {
        let entries_max = u64::from(geometry.entries_max);
        let devices = geometry.capacity.iter().map(|c| (c.slot_count(), c.page_count()));
        Self {
            components: ComponentTable::default(),
            log: LogIndex::new(geometry.log, log_blocks_max),
            capacity: CapacityMap::new(devices, entries_max, dirty_blocks_max),
            holds: VecDeque::new(),
            page_cache: PageCache::new(page_cache_bytes),
            pace: Pace::default(),
            counters: StoreCounters::default(),
            events: VecDeque::new(),
            scrub: ScrubProgress { idle: true, ..ScrubProgress::default() },
            rewrite_at: None,
            recovering: true,
            geometry,
        }
    }

    pub(crate) fn event(&mut self, event: StoreEvent) {
        if self.events.len() >= limits::EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// A block's bytes do not match: remembered, counted, reported once.
    pub(crate) fn mark_bad(&mut self, local: u32, block: u32) {
        let Some(c) = self.components.get_mut(local) else { return };
        if c.bad.contains(&block) {
            return;
        }
        if c.bad.len() < limits::BAD_BLOCKS_MAX {
            c.bad.insert(block);
        }
        let component = c.id;
        self.counters.checksum_errors += 1;
        self.event(StoreEvent::BadBlock { component, block });
    }

    pub(crate) fn group_space(&self) -> GroupSpace {
        let components = u32::try_from(self.components.len()).unwrap_or(u32::MAX);
        let mut space = GroupSpace {
            free_components: self.geometry.components_max.saturating_sub(components),
            log_bytes: self.geometry.log.bytes(),
            log_fill: self.log.fill(),
            ..GroupSpace::default()
        };
        self.capacity.add_to(&mut space);
        space
    }

    /// How long the answer to a write to that component waits, so that the log does not fill up.
    pub(crate) fn write_delay(&self, local: u32) -> Nanos {
        let fill = self.log.fill();
        if fill < limits::FILL_SLOW {
            return Nanos::ZERO;
        }
        let with_blocks = self.components.values().filter(|c| c.log_share.blocks() > 0);
        let fair = self.log.blocks() / with_blocks.count().max(1) as u64;
        let mine = self.components.get(local).map_or(0, |c| c.log_share.blocks());
        pace::write_delay(fill, mine, fair)
    }

    /// Blocks written to the log, ever.
    pub(crate) fn log_blocks_written(&self) -> u64 {
        self.counters.log_bytes / BLOCK
    }

    /// Bytes of memory in use or promised to caches, the formula of `docs/formats.md`.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let tables: u64 = self.components.values().map(|c| c.table.memory_bytes()).sum();
        let hot: u64 = self.components.values().map(|c| c.hot.len() as u64).sum();
        tables
            + hot * limits::HOT_CHUNK_BYTES
            + self.capacity.memory_bytes()
            + self.log.memory_bytes()
            + self.page_cache.memory_max()
    }
}
