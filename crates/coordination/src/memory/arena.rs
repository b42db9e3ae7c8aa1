//! Where the in-memory coordinator keeps its shards: numbered slots in chunks that never move.
//!
//! A record is about a kilobyte. In chunks, a coordinator that grows to a million of them never copies what it has, and a
//! slot number stays good for as long as its shard lives. Each chunk is twice as large as the one before, so that there are
//! few, and finding one costs nothing.

use alloc::vec::Vec;

use super::place::{Place, Slot};
use super::pooled_record::PooledRecord;

/// Records in the first chunk.
const FIRST_CHUNK: usize = 256;

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
        let slot = self.places.len() as Slot;
        let (chunk, _) = position(slot);
        if chunk == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(FIRST_CHUNK << chunk));
        }
        self.chunks[chunk].push(Some(record));
        self.places.push(Place::Nowhere);
        slot
    }

    #[inline]
    pub(super) fn get(&self, slot: Slot) -> &PooledRecord {
        let (chunk, place) = position(slot);
        self.chunks[chunk][place].as_ref().expect("a slot in use holds a record")
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut PooledRecord {
        self.entry(slot).as_mut().expect("a slot in use holds a record")
    }

    pub(super) fn remove(&mut self, slot: Slot) -> PooledRecord {
        let record = self.entry(slot).take().expect("a slot in use holds a record");
        self.vacant.push(slot);
        record
    }

    #[inline]
    fn entry(&mut self, slot: Slot) -> &mut Option<PooledRecord> {
        let (chunk, place) = position(slot);
        &mut self.chunks[chunk][place]
    }
}

/// The chunk of a slot, and the place in it.
#[inline]
fn position(slot: Slot) -> (usize, usize) {
    let from_one = slot as usize + FIRST_CHUNK;
    let chunk = (from_one / FIRST_CHUNK).ilog2();
    (chunk as usize, from_one - (FIRST_CHUNK << chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_fill_each_chunk_and_then_the_next() {
        let mut expected = (0, 0);
        for slot in 0..5_000 {
            assert_eq!(position(slot), expected);
            expected.1 += 1;
            if expected.1 == FIRST_CHUNK << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }
}
