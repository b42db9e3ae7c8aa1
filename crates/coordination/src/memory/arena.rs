//! Where the in-memory coordinator keeps its shards: numbered slots in chunks that never move.
//!
//! A record is about a kilobyte. In chunks, a coordinator that grows to a million of them never copies what it has, and a
//! slot number stays good for as long as its shard lives.

use alloc::vec::Vec;

use super::claim_index::{Place, Slot};
use super::pooled_record::PooledRecord;

const CHUNK: usize = 256;

/// Records by slot, and each one's place in its run's claim index.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: Vec<Vec<Option<PooledRecord>>>,
    vacant: Vec<Slot>,
    pub(super) places: Vec<Place>,
}

impl Arena {
    pub(super) fn insert(&mut self, record: PooledRecord) -> Slot {
        if let Some(slot) = self.vacant.pop() {
            *self.entry(slot) = Some(record);
            return slot;
        }
        let slot = self.places.len();
        if slot.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[slot / CHUNK].push(Some(record));
        self.places.push(Place::Nowhere);
        slot as Slot
    }

    pub(super) fn get(&self, slot: Slot) -> &PooledRecord {
        let slot = slot as usize;
        self.chunks[slot / CHUNK][slot % CHUNK].as_ref().expect("a slot in use holds a record")
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut PooledRecord {
        self.entry(slot).as_mut().expect("a slot in use holds a record")
    }

    pub(super) fn remove(&mut self, slot: Slot) -> PooledRecord {
        let record = self.entry(slot).take().expect("a slot in use holds a record");
        self.vacant.push(slot);
        record
    }

    fn entry(&mut self, slot: Slot) -> &mut Option<PooledRecord> {
        let slot = slot as usize;
        &mut self.chunks[slot / CHUNK][slot % CHUNK]
    }
}
