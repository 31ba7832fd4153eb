//! Brings the metadata page of a chunk into memory: checked, or with the verdict that it is
//! damaged.
//!
//! Invariant: what goes into the cache is the page that the chunk's entry names when it goes there.

use crate::device::DeviceError;
use crate::group::Group;
use crate::limits;
use crate::state::home::PagePlace;
use crate::state::page_cache::Page;
use atoll_format::chunk::PAGE_LEN;
use atoll_format::id::ComponentId;
use atoll_format::units::BLOCKS_PER_CHUNK;
use atoll_world::components::StoreEvent;
use atoll_world::{Buf, World, mutant, sometimes};
use std::rc::Rc;

/// The page of a chunk, from the cache or its device; none if the chunk has none.
pub(crate) async fn load_page<W: World>(
    group: &Rc<Group<W>>,
    local: u32,
    chunk: u32,
) -> Option<Page> {
    let (entry, place) = {
        let mut state = group.state.borrow_mut();
        let c = state.components.get(local)?;
        let place = state.page_place(c, chunk)?;
        let (id, device, entry) = (c.id, usize::from(c.device), c.table.get(chunk));
        if let Some(page) = state.page_cache.get((local, chunk)) {
            return Some(page.clone());
        }
        let taken = state.capacity.is_page_used(device, entry.page);
        assert!(taken, "page {} of chunk {chunk} of {id} is free", entry.page);
        (entry, place)
    };
    let page = match read_page(group, &place).await {
        Ok(read) => read.map_or(Page::Damaged(entry.max_seq), Page::Good),
        // Says nothing about the page: the caller finds the group or component failed.
        Err(DeviceFailed) => return Some(Page::Damaged(entry.max_seq)),
    };
    let mut state = group.state.borrow_mut();
    let unchanged = state.components.get(local).is_some_and(|c| c.table.get(chunk) == entry);
    if unchanged {
        if matches!(page, Page::Damaged(_)) {
            sometimes!("store.page.damaged");
            let component = place.head.component;
            state.event(StoreEvent::BadBlock { component, block: chunk * BLOCKS_PER_CHUNK });
        }
        state.page_cache.insert((local, chunk), page.clone());
    }
    Some(page)
}

/// Looks at the page of a chunk on its device also where memory has it: what rots there would else
/// be found when memory has it no more, perhaps by the restart of the last copy. It is written anew
/// from memory then.
pub(crate) async fn verify_cached<W: World>(group: &Rc<Group<W>>, id: ComponentId, chunk: u32) {
    let (local, entry, place, cached) = {
        let mut state = group.state.borrow_mut();
        let Ok(c) = state.components.find(id) else { return };
        let (local, entry) = (c.local, c.table.get(chunk));
        let Some(place) = state.page_place(c, chunk).filter(|_| !c.is_lost()) else { return };
        let Some(Page::Good(cached)) = state.page_cache.get((local, chunk)).cloned() else {
            return;
        };
        (local, entry, place, cached)
    };
    let Ok(None) = read_page(group, &place).await else { return };
    for _ in 0..limits::REWRITE_TRIES {
        let now = group.world.now();
        let done = {
            let mut state = group.state.borrow_mut();
            let unchanged =
                state.components.get(local).is_some_and(|c| c.table.get(chunk) == entry);
            let made = if unchanged { state.make_dirty(local, chunk, &cached) } else { None };
            let at = match made {
                // Whatever has taken its place since is written anyway.
                None => return,
                Some(true) => {
                    sometimes!("store.page.rewritten");
                    state.event(StoreEvent::PageRewritten { component: id, chunk });
                    now + limits::REWRITE_AFTER
                }
                Some(false) => now,
            };
            state.rewrite_at = Some(state.rewrite_at.map_or(at, |before| before.min(at)));
            made == Some(true)
        };
        group.mover_work.notify_all();
        if done {
            return;
        }
        // Too much is dirty until the checkpoint that was just asked for.
        group.world.sleep(limits::REWRITE_PAUSE).await;
        if group.failed.borrow().is_some() || group.closing.get() {
            return;
        }
    }
}

struct DeviceFailed;

/// The bytes of a page; none: it is damaged, or its device does not give it.
async fn read_page<W: World>(
    group: &Rc<Group<W>>,
    place: &PagePlace,
) -> Result<Option<Buf>, DeviceFailed> {
    // Twice: a transfer may fail where the medium is good. What the device does not give at all it
    // may give a moment later, and a checkpoint or a round of destage writes this verdict down.
    let (mut wrong, mut not_given) = (0, 0);
    while wrong < 2 && not_given < limits::READ_TRIES {
        if not_given > 0 {
            sometimes!("store.page.not_given");
            group.world.sleep(limits::READ_PAUSE).await;
        }
        match group.devices[place.device].read(place.at, PAGE_LEN as u32).await {
            Ok(bytes) if place.is_of(&bytes) || mutant!("checkpoint.page_not_checked") => {
                return Ok(Some(bytes));
            }
            Ok(_) => {
                wrong += 1;
                group.state.borrow_mut().counters.checksum_errors += 1;
            }
            Err(e @ DeviceError::Failed(_)) => {
                group.device_failed(place.device, &e);
                return Err(DeviceFailed);
            }
            Err(DeviceError::Read(_)) => not_given += 1,
        }
    }
    Ok(None)
}
