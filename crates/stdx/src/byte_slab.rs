//! Byte strings of many lengths in one block of memory that never grows.
//!
//! A [`ByteSlab`] takes all its memory when it is made, or with its first value, and from then on neither allocates nor frees.
//! Fresh memory is zeroed, which the operating system gives out page by page on first touch, so a large slab costs what it holds.
//!
//! **Size classes.** A value occupies the smallest power of two of bytes that holds it, at least 16. When a class has no
//! free block, the next larger free block is halved until it fits; when a block and its other half are both free they are
//! joined at once. So no class can starve another for good: memory freed by small values serves large ones again. The price
//! is rounding up (less than half of a block above the smallest is unused), and a large value can be refused while enough
//! small holes are free but not adjacent; [`SlabFull`] says how large the largest hole is. Every operation takes at most
//! one step per class, of which there are 28, plus the copy.
//!
//! **Handles.** A [`ByteSlot`] names a value, not a place: it carries the slab it came from and the generation of its
//! block, so a handle that outlived its value, or belongs to another slab, finds nothing rather than another value's bytes.
//! Generations have 32 bits: only a handle kept while its block was reused exactly 2^32 times, or any multiple of it, would
//! be mistaken for a good one.
//!
//! Besides the stored bytes a slab keeps eight bytes per 16 for generations and block states. The links between free blocks
//! lie in the free blocks themselves.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

use blocks::{
    CLASSES, INSIDE, NO_BLOCK, ONE_GENERATION, UNIT_BYTES, bytes_at, class_bytes, class_for, generation_in, state_in,
    taken_class,
};

mod blocks;

/// Byte strings of many lengths in one block of memory that never grows.
///
/// ```
/// use tessera_stdx::ByteSlab;
///
/// let mut slab = ByteSlab::with_capacity(64);
/// let key = slab.insert(b"key").unwrap();
/// let longer = slab.replace(key, b"a longer key that moves").unwrap();
/// assert_eq!(slab.get(key), None);
/// assert_eq!(slab.get(longer), Some(&b"a longer key that moves"[..]));
/// assert!(slab.insert(&[0; 64]).is_err());
/// assert!(slab.remove(longer));
/// assert!(slab.insert(&[0; 64]).is_ok());
/// ```
///
/// A value takes the smallest power of two of bytes that holds it, at least 16, and free neighbours are joined. Removed
/// bytes are not wiped; they stay in memory until written over.
///
/// A clone is a copy of the same slab: handles that were good before are good in both. Handles made after that belong to
/// the copy that made them, but the two copies cannot tell them apart.
#[derive(Clone)]
pub struct ByteSlab {
    storage: Box<[u8]>,
    /// Per unit, in one word, since checking a handle reads both. Above: the generation of the block that starts here;
    /// grows when its value goes. Below: whether a block starts here, which class it has, and whether it is free.
    units: Box<[u64]>,
    capacity_units: u32,
    /// Per class, the first free block, or [`NO_BLOCK`].
    free_heads: [u32; CLASSES],
    /// One bit per class that has a free block, so that the smallest that fits is found at once.
    free_classes: u32,
    /// Nothing was ever stored: the blocks that the slab begins with are not marked yet, so that it touches no memory at all.
    fresh: bool,
    slab: u32,
    len: u32,
    used_bytes: u32,
    occupied_bytes: u32,
}

/// Names one value in one [`ByteSlab`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteSlot {
    slab: u32,
    unit: u32,
    generation: u32,
    length: u32,
}

/// No free block of the slab is large enough. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabFull {
    /// How long the refused value is.
    pub requested_bytes: usize,
    /// The longest value that would have been taken.
    pub available_bytes: usize,
    /// The size of the slab.
    pub capacity_bytes: usize,
}

impl ByteSlab {
    /// A slab of `capacity_bytes`, rounded up to a multiple of 16 (or down, if that would not fit a `u32`).
    ///
    /// With a power of two, one value may fill the slab; otherwise the longest value is the largest power of two below.
    pub fn with_capacity(capacity_bytes: u32) -> Self {
        let mut slab = Self::on_demand(capacity_bytes);
        slab.reserve_all();
        slab
    }

    /// The same, that takes its memory with its first value: for many slabs of which some never hold one.
    pub fn on_demand(capacity_bytes: u32) -> Self {
        Self {
            storage: Box::default(),
            units: Box::default(),
            capacity_units: capacity_bytes.div_ceil(UNIT_BYTES).min(u32::MAX / UNIT_BYTES),
            free_heads: [NO_BLOCK; CLASSES],
            free_classes: 0,
            fresh: true,
            slab: next_slab_number(),
            len: 0,
            used_bytes: 0,
            occupied_bytes: 0,
        }
    }

    /// Takes the slab's memory now, if it has none yet.
    pub fn reserve_all(&mut self) {
        if self.units.is_empty() {
            self.take_memory();
        }
    }

    fn take_memory(&mut self) {
        self.storage = vec![0; self.capacity_bytes()].into_boxed_slice();
        self.units = vec![u64::from(INSIDE); self.capacity_units as usize].into_boxed_slice();
    }

    /// Stores a copy of `value`. An empty value takes no room and always succeeds.
    pub fn insert(&mut self, value: &[u8]) -> Result<ByteSlot, SlabFull> {
        self.insert_parts(&[value])
    }

    /// Stores the `parts` as one value, end to end. A record of several fields is then found, checked and replaced at once.
    pub fn insert_parts(&mut self, parts: &[&[u8]]) -> Result<ByteSlot, SlabFull> {
        let length = total_len(parts);
        if length == 0 {
            return Ok(ByteSlot::EMPTY);
        }
        let (unit, class) = self.take_block(length)?;
        Ok(self.fill(unit, class, 0, parts, length))
    }

    /// The value that `slot` names, or `None` if it was removed or replaced, or is another slab's.
    pub fn get(&self, slot: ByteSlot) -> Option<&[u8]> {
        if slot.is_empty() {
            return Some(&[]);
        }
        self.class_of(slot)?;
        Some(&self.storage[bytes_at(slot.unit, slot.length)])
    }

    /// Stores a copy of `value` in place of the one that `slot` names. The old handle is then stale.
    ///
    /// A value of the same class, or of a smaller one, is written where the old one was and cannot fail. A larger one
    /// needs a block of its own before the old one is given back; if there is none, nothing changes and `slot` stays good.
    ///
    /// # Panics
    ///
    /// If `slot` names nothing here: the caller that replaces a value must own it, so a stale handle is its bug, and storing
    /// the value beside the one it meant to replace would leak.
    pub fn replace(&mut self, slot: ByteSlot, value: &[u8]) -> Result<ByteSlot, SlabFull> {
        self.replace_parts(slot, &[value])
    }

    /// [`replace`](Self::replace) by `parts` stored as one value, end to end.
    ///
    /// # Panics
    ///
    /// If `slot` names nothing here, as [`replace`](Self::replace) does.
    pub fn replace_parts(&mut self, slot: ByteSlot, parts: &[&[u8]]) -> Result<ByteSlot, SlabFull> {
        self.replace_tail(slot, 0, parts)
    }

    /// [`replace_parts`](Self::replace_parts), but the first `kept` bytes of the value stay and `parts` follow them. A
    /// caller that changes the end of a value need not know its beginning, and where the whole fits the block, the beginning
    /// is not even touched.
    ///
    /// # Panics
    ///
    /// If `slot` names nothing here, as [`replace`](Self::replace) does, or a value of fewer than `kept` bytes.
    #[inline]
    pub fn replace_tail(&mut self, slot: ByteSlot, kept: usize, parts: &[&[u8]]) -> Result<ByteSlot, SlabFull> {
        assert!(kept <= slot.len(), "the kept bytes are there");
        if slot.is_empty() {
            return self.insert_parts(parts);
        }
        let class = self.class_of(slot).expect("the slot to replace names a value of this slab");
        let length = total_len(parts).saturating_add(kept);
        match class_for(length) {
            Some(class_new) if class_new <= class && length > 0 => {
                self.release(slot, class);
                if class_new < class {
                    self.trim(slot.unit, class, class_new);
                }
                Ok(self.fill(slot.unit, class_new, kept, parts, length))
            }
            _ => self.move_tail(slot, kept, parts, length),
        }
    }

    /// Makes a value of `length` bytes from the first `kept` of another and `parts`, in a block of its own, and gives the
    /// other's back.
    fn move_tail(&mut self, slot: ByteSlot, kept: usize, parts: &[&[u8]], length: usize) -> Result<ByteSlot, SlabFull> {
        let mut slot_new = ByteSlot::EMPTY;
        if length > 0 {
            let (unit, class) = self.take_block(length)?;
            let old = bytes_at(slot.unit, slot.length).start;
            self.storage.copy_within(old..old + kept, bytes_at(unit, 0).start);
            slot_new = self.fill(unit, class, kept, parts, length);
        }
        self.remove(slot);
        Ok(slot_new)
    }

    /// Gives back the room of the value that `slot` names. Returns whether it named one.
    ///
    /// The empty value has no room to give back and any number of owners, so for it the answer is always `true`.
    pub fn remove(&mut self, slot: ByteSlot) -> bool {
        if slot.is_empty() {
            return true;
        }
        let Some(class) = self.class_of(slot) else { return false };
        self.release(slot, class);
        self.give_back(slot.unit, class);
        true
    }

    /// How many values there are, not counting empty ones.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether no value takes any room.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How long the stored values are together.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes as usize
    }

    /// How much room the stored values take: the rest of the capacity is free, though maybe in pieces.
    pub fn occupied_bytes(&self) -> usize {
        self.occupied_bytes as usize
    }

    /// The longest value that [`insert`](Self::insert) would take now.
    pub fn available_bytes(&self) -> usize {
        let class = if self.fresh { self.capacity_units.checked_ilog2() } else { self.free_classes.checked_ilog2() };
        class.map_or(0, |class| class_bytes(class) as usize)
    }

    /// The size of the slab.
    pub fn capacity_bytes(&self) -> usize {
        self.capacity_units as usize * UNIT_BYTES as usize
    }

    /// The class of the block that `slot` names, if it still does.
    #[inline]
    fn class_of(&self, slot: ByteSlot) -> Option<u32> {
        let word = *self.units.get(slot.unit as usize)?;
        if slot.slab != self.slab || generation_in(word) != slot.generation {
            return None;
        }
        taken_class(state_in(word))
    }

    /// Makes a value of `length` bytes of a taken block that is large enough: the first `kept` bytes are there already,
    /// `parts` follow.
    #[inline]
    fn fill(&mut self, unit: u32, class: u32, kept: usize, parts: &[&[u8]], length: usize) -> ByteSlot {
        let length = length as u32; // It fits the block, and a block's size fits a u32.
        let mut rest = &mut self.storage[bytes_at(unit, length)][kept..];
        for part in parts {
            let (place, after) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = after;
        }
        self.len += 1;
        self.used_bytes += length;
        self.occupied_bytes += class_bytes(class);
        ByteSlot { slab: self.slab, unit, generation: generation_in(self.units[unit as usize]), length }
    }

    /// Ends the life of the value that `slot` names, and leaves its block taken.
    #[inline]
    fn release(&mut self, slot: ByteSlot, class: u32) {
        let word = &mut self.units[slot.unit as usize];
        *word = word.wrapping_add(ONE_GENERATION);
        self.len -= 1;
        self.used_bytes -= slot.length;
        self.occupied_bytes -= class_bytes(class);
    }
}

impl ByteSlot {
    /// The empty value. It takes no room, so it is good in every slab and never stale.
    pub const EMPTY: Self = Self { slab: 0, unit: 0, generation: 0, length: 0 };

    /// How long the value is.
    pub const fn len(self) -> usize {
        self.length as usize
    }

    /// Whether the value is the empty one.
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }
}

impl Default for ByteSlot {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// Numbers only: the values may be customers' keys.
impl fmt::Debug for ByteSlot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ByteSlot({} bytes at {}:{}.{})", self.length, self.slab, self.unit, self.generation)
    }
}

/// Numbers only: the values may be customers' keys.
impl fmt::Debug for ByteSlab {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ByteSlab")
            .field("len", &self.len)
            .field("used_bytes", &self.used_bytes)
            .field("occupied_bytes", &self.occupied_bytes)
            .field("capacity_bytes", &self.capacity_bytes())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for SlabFull {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requested_bytes, available_bytes, capacity_bytes } = self;
        write!(
            formatter,
            "no room for {requested_bytes} bytes: the largest free block of this {capacity_bytes}-byte slab holds \
             {available_bytes}; remove values or make the slab larger"
        )
    }
}

impl core::error::Error for SlabFull {}

/// How long `parts` are together; more than can be counted is more than fits.
fn total_len(parts: &[&[u8]]) -> usize {
    parts.iter().fold(0, |total, part| total.saturating_add(part.len()))
}

/// Numbers slabs so that each knows its own handles. Only equality matters, so the order in which threads draw does not.
fn next_slab_number() -> u32 {
    static SLABS: AtomicU32 = AtomicU32::new(0);
    SLABS.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests;
