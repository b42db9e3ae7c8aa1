//! Many shard specs in one block of memory, named by small handles.
//!
//! A planner that makes thousands of specs, or a listing that shows them, keeps handles of 20 bytes instead of three
//! boxes each, and looks at the bytes where they lie. The arena has a fixed capacity and says when it is full. A handle
//! that outlived its spec finds nothing.

use tessera_stdx::{ByteSlab, ByteSlot, SlabFull};

use crate::shard_spec::{KeyRange, ShardSpecRef};

/// A fixed amount of memory for shard specs.
#[derive(Debug)]
pub struct ShardArena {
    slab: ByteSlab,
}

/// Names one spec in one [`ShardArena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ShardSpecHandle {
    slot: ByteSlot,
    start_len: u16,
    end_len: u16,
}

impl ShardArena {
    /// An arena of `capacity_bytes`; all its memory is taken now.
    pub fn with_capacity(capacity_bytes: u32) -> Self {
        Self { slab: ByteSlab::with_capacity(capacity_bytes) }
    }

    /// Stores a copy of `spec`.
    pub fn insert(&mut self, spec: ShardSpecRef<'_>) -> Result<ShardSpecHandle, SlabFull> {
        let slot = self.slab.insert_parts(&[spec.start(), spec.end(), spec.metadata()])?;
        // A valid spec has keys within the limit, which fits these widths.
        Ok(ShardSpecHandle { slot, start_len: spec.start().len() as u16, end_len: spec.end().len() as u16 })
    }

    /// The spec that `handle` names, or `None` if it was removed or is another arena's.
    pub fn get(&self, handle: ShardSpecHandle) -> Option<ShardSpecRef<'_>> {
        let joined = self.slab.get(handle.slot)?;
        let (start, rest) = joined.split_at(usize::from(handle.start_len));
        let (end, metadata) = rest.split_at(usize::from(handle.end_len));
        Some(ShardSpecRef::stored(KeyRange::stored(start, end), metadata))
    }

    /// Gives the room of a spec back. Returns whether the handle named one.
    ///
    /// The spec of every key without metadata has no bytes; it takes no room and is always there.
    pub fn remove(&mut self, handle: ShardSpecHandle) -> bool {
        self.slab.remove(handle.slot)
    }

    /// How many specs take room.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Whether no spec takes any room.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// The largest spec, in bytes, that [`insert`](Self::insert) would take now.
    pub fn available_bytes(&self) -> usize {
        self.slab.available_bytes()
    }
}

const _: () = assert!(size_of::<ShardSpecHandle>() == 20);

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::limits::{MAX_KEY_SIZE, MAX_METADATA_SIZE};

    #[test]
    fn specs_of_every_shape_are_seen_as_they_were_stored() {
        let mut arena = ShardArena::with_capacity(1 << 16);
        let (low, high, metadata) = (vec![1; MAX_KEY_SIZE], vec![2; MAX_KEY_SIZE], vec![3; MAX_METADATA_SIZE]);
        for (start, end, metadata) in [
            (&b"a"[..], &b"b"[..], &b"m"[..]),
            (b"", b"b", b""),
            (b"a", b"", b""),
            (b"", b"", b"m"),
            (&low, &high, &metadata),
        ] {
            let spec = ShardSpecRef::new(start, end, metadata).unwrap();
            let handle = arena.insert(spec).unwrap();
            assert_eq!(arena.get(handle), Some(spec));
        }
        assert_eq!(arena.len(), 5);
    }

    #[test]
    fn a_handle_of_a_removed_spec_finds_nothing_even_when_its_place_is_taken_again() {
        let mut arena = ShardArena::with_capacity(16);
        let spec = ShardSpecRef::new(b"a", b"b", b"").unwrap();
        let old = arena.insert(spec).unwrap();
        assert!(arena.insert(spec).is_err(), "one block is all there is");
        assert!(arena.remove(old) && !arena.remove(old));
        let new = arena.insert(spec).unwrap();
        assert_eq!((arena.get(old), arena.get(new)), (None, Some(spec)));
        assert_eq!(ShardArena::with_capacity(16).get(new), None);
        assert_eq!(arena.available_bytes(), 0);
    }
}
