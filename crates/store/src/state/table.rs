//! The chunk table of one component: sparse, 32 bytes per chunk, in groups of 64.

use atoll_format::chunk::{ChunkEntry, NONE};
use atoll_format::units::{CHUNK, COMPONENT_MAX};

const GROUP: u32 = 64;

/// Chunk number to entry; a chunk that was never touched has the default entry.
#[derive(Default, Debug)]
pub(crate) struct ChunkTable {
    groups: Vec<Option<Box<[ChunkEntry; GROUP as usize]>>>,
    present: u32,
    slots_used: u32,
    memory_groups: u32,
}

/// Whether an entry says anything.
pub(crate) fn is_present(entry: &ChunkEntry) -> bool {
    entry.slot != NONE || entry.page != NONE || entry.max_seq.0 != 0 || entry.base_zero
}

impl ChunkTable {
    pub(crate) fn get(&self, chunk: u32) -> ChunkEntry {
        match self.groups.get((chunk / GROUP) as usize) {
            Some(Some(group)) => group[(chunk % GROUP) as usize],
            _ => ChunkEntry::default(),
        }
    }

    pub(crate) fn set(&mut self, chunk: u32, entry: ChunkEntry) {
        assert!(u64::from(chunk) < COMPONENT_MAX / CHUNK, "chunk {chunk} of a component");
        let (g, i) = ((chunk / GROUP) as usize, (chunk % GROUP) as usize);
        if self.groups.len() <= g {
            self.groups.resize_with(g + 1, || None);
        }
        let group = self.groups[g].get_or_insert_with(|| {
            self.memory_groups += 1;
            Box::new([ChunkEntry::default(); GROUP as usize])
        });
        self.present -= u32::from(is_present(&group[i]));
        self.present += u32::from(is_present(&entry));
        self.slots_used -= u32::from(group[i].slot != NONE);
        self.slots_used += u32::from(entry.slot != NONE);
        group[i] = entry;
        let (present, room) = (self.present, self.memory_groups * GROUP);
        assert!(present <= room, "{present} entries in groups for {room}");
        let slots = self.slots_used;
        assert!(slots <= present, "{slots} entries name a slot, {present} say anything");
    }

    /// The first chunk from `from` on that has an entry.
    pub(crate) fn next(&self, from: u32) -> Option<(u32, ChunkEntry)> {
        let mut chunk = from;
        while let Some(group) = self.groups.get((chunk / GROUP) as usize) {
            match group {
                None => chunk = (chunk / GROUP + 1) * GROUP,
                Some(group) => {
                    let first = chunk % GROUP;
                    let found = (first..GROUP).find(|&i| is_present(&group[i as usize]));
                    if let Some(i) = found {
                        assert!(chunk - first + i >= from, "an entry before chunk {from}");
                        return Some((chunk - first + i, group[i as usize]));
                    }
                    chunk = chunk - first + GROUP;
                }
            }
        }
        None
    }

    /// All entries, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, ChunkEntry)> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let found = self.next(from)?;
            from = found.0 + 1;
            Some(found)
        })
    }

    /// Chunks that have an entry.
    pub(crate) fn len(&self) -> u32 {
        self.present
    }

    /// Chunks that have a slot.
    pub(crate) fn slots_used(&self) -> u32 {
        self.slots_used
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.groups.len() as u64 * 8
            + u64::from(self.memory_groups) * u64::from(GROUP) * size_of::<ChunkEntry>() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::ChunkTable;
    use atoll_format::chunk::ChunkEntry;
    use atoll_format::id::Seq;

    #[test]
    fn entries_are_found_in_order_and_counted() {
        let mut table = ChunkTable::default();
        for chunk in [5, 64, 200_000, 6] {
            table.set(chunk, ChunkEntry { max_seq: Seq(1), ..ChunkEntry::default() });
        }
        table.set(6, ChunkEntry::default());
        assert_eq!(table.iter().map(|(c, _)| c).collect::<Vec<_>>(), [5, 64, 200_000]);
        assert_eq!(table.len(), 3);
        assert_eq!(size_of::<ChunkEntry>() as u64, crate::limits::CHUNK_ENTRY_BYTES);
    }
}
