//! Byte strings of many lengths in one block of memory that never grows.
//!
//! A [`ByteSlab`] takes all its memory when it is made, and from then on neither allocates nor frees. Fresh memory is
//! zeroed, which the operating system gives out page by page on first touch, so a large slab costs what it holds.
//!
//! **Size classes.** A value occupies the smallest power of two of bytes that holds it, at least 16. When a class has no
//! free block, the next larger free block is halved until it fits; when a block and its other half are both free they are
//! joined at once. So no class can starve another for good: memory freed by small values serves large ones again. The price
//! is rounding up (less than half of a block above the smallest is unused), and a large value can be refused while enough
//! small holes are free but not adjacent; [`SlabFull`] says how large the largest hole is. Every operation takes at most
//! one step per class, of which there are 28, plus the copy.
//!
//! **Handles.** A [`ByteSlot`] names a value, not a place: it carries the slab it came from and the generation of its
//! block, so a handle that outlived its value, or belongs to another slab, finds nothing rather than someone else's bytes.
//! Generations have 32 bits: only a handle kept while its block was reused exactly 2^32 times, or any multiple of it, would
//! be mistaken for a good one.
//!
//! Besides the stored bytes a slab keeps eight bytes per 16 for generations and block states. The links between free blocks
//! lie in the free blocks themselves.

use alloc::boxed::Box;
use alloc::vec;
use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

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
    /// Per unit, in one word, since whoever checks a handle reads both. Above: what a block that starts here answers to;
    /// grows when its value goes. Below: whether a block starts here, which class it has, and whether it is free.
    units: Box<[u64]>,
    /// Per class, the first free block, or [`NO_BLOCK`].
    free_heads: [u32; CLASSES],
    /// One bit per class that has a free block, so that the smallest that fits is found at once.
    free_classes: u32,
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
        let units = capacity_bytes.div_ceil(UNIT_BYTES).min(u32::MAX / UNIT_BYTES);
        let mut slab = Self {
            storage: vec![0; units as usize * UNIT_BYTES as usize].into_boxed_slice(),
            units: vec![u64::from(INSIDE); units as usize].into_boxed_slice(),
            free_heads: [NO_BLOCK; CLASSES],
            free_classes: 0,
            slab: next_slab_number(),
            len: 0,
            used_bytes: 0,
            occupied_bytes: 0,
        };
        // The largest blocks first: each starts at a multiple of its own size, so its other half is found by one bit.
        let mut unit = 0;
        while unit < units {
            let class = (units - unit).ilog2();
            slab.push_free(unit, class);
            unit += 1 << class;
        }
        slab
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
    /// If `slot` names nothing here: who replaces a value must own it, so a stale handle is the caller's bug, and storing
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

    /// [`replace_parts`](Self::replace_parts), but the first `kept` bytes of the value stay and `parts` follow them. Who
    /// changes the end of a value need not know its beginning, and where the whole fits the block, the beginning is not
    /// even touched.
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

    /// How much room the stored values take: what is left of the capacity is free, though maybe in pieces.
    pub fn occupied_bytes(&self) -> usize {
        self.occupied_bytes as usize
    }

    /// The longest value that [`insert`](Self::insert) would take now.
    pub fn available_bytes(&self) -> usize {
        self.free_classes.checked_ilog2().map_or(0, |class| class_bytes(class) as usize)
    }

    /// The size of the slab.
    pub fn capacity_bytes(&self) -> usize {
        self.storage.len()
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

    /// Finds a free block for `length` bytes and marks it taken; the answer is where it begins, and its class.
    fn take_block(&mut self, length: usize) -> Result<(u32, u32), SlabFull> {
        let full = SlabFull {
            requested_bytes: length,
            available_bytes: self.available_bytes(),
            capacity_bytes: self.capacity_bytes(),
        };
        let class = class_for(length).ok_or(full)?;
        let fitting = self.free_classes & (u32::MAX << class);
        if fitting == 0 {
            return Err(full);
        }
        let class_found = fitting.trailing_zeros();
        let unit = self.free_heads[class_found as usize];
        self.unlink_free(unit, class_found);
        self.trim(unit, class_found, class);
        Ok((unit, class))
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

    fn state(&self, unit: u32) -> BlockState {
        state_in(self.units[unit as usize])
    }

    fn set_state(&mut self, unit: u32, state: BlockState) {
        let word = &mut self.units[unit as usize];
        *word = *word / ONE_GENERATION * ONE_GENERATION + u64::from(state);
    }

    /// Makes the block at `unit` a taken one of `class_new`; the halves it does not need become free.
    fn trim(&mut self, unit: u32, class: u32, class_new: u32) {
        for half in class_new..class {
            self.push_free(unit + (1 << half), half);
        }
        self.set_state(unit, TAKEN | class_new as u8);
    }

    /// Makes the taken block at `unit` free, joined with its other half as often as that is free too.
    fn give_back(&mut self, mut unit: u32, mut class: u32) {
        loop {
            let other = unit ^ (1 << class);
            if other as usize >= self.units.len() || self.state(other) != FREE | class as u8 {
                break;
            }
            self.unlink_free(other, class);
            self.set_state(unit, INSIDE);
            self.set_state(other, INSIDE);
            unit = unit.min(other);
            class += 1;
        }
        self.push_free(unit, class);
    }

    fn push_free(&mut self, unit: u32, class: u32) {
        let head = self.free_heads[class as usize];
        self.set_state(unit, FREE | class as u8);
        self.set_link(unit, Link::Next, head);
        self.set_link(unit, Link::Previous, NO_BLOCK);
        if head != NO_BLOCK {
            self.set_link(head, Link::Previous, unit);
        }
        self.free_heads[class as usize] = unit;
        self.free_classes |= 1 << class;
    }

    fn unlink_free(&mut self, unit: u32, class: u32) {
        let (previous, next) = (self.link(unit, Link::Previous), self.link(unit, Link::Next));
        if next != NO_BLOCK {
            self.set_link(next, Link::Previous, previous);
        }
        if previous != NO_BLOCK {
            self.set_link(previous, Link::Next, next);
            return;
        }
        self.free_heads[class as usize] = next;
        if next == NO_BLOCK {
            self.free_classes &= !(1 << class);
        }
    }

    fn link(&self, unit: u32, link: Link) -> u32 {
        let at = unit as usize * UNIT_BYTES as usize + link as usize;
        let [a, b, c, d] = self.storage[at..at + 4] else { unreachable!("four bytes were taken") };
        u32::from_le_bytes([a, b, c, d])
    }

    fn set_link(&mut self, unit: u32, link: Link, to: u32) {
        let at = unit as usize * UNIT_BYTES as usize + link as usize;
        self.storage[at..at + 4].copy_from_slice(&to.to_le_bytes());
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

/// The smallest block. Two links of a free block fit it.
const UNIT_BYTES: u32 = 16;
/// Classes from one unit up to the largest power of two of units whose bytes a `u32` counts.
const CLASSES: usize = 28;
const NO_BLOCK: u32 = u32::MAX;

/// [`INSIDE`], or [`FREE`] or [`TAKEN`] with the class in the low bits.
type BlockState = u8;
/// What a unit's word grows by when a value goes.
const ONE_GENERATION: u64 = 1 << 32;
/// No block starts at this unit. Zero, so that making a slab touches no memory.
const INSIDE: BlockState = 0;
const FREE: BlockState = 0x40;
const TAKEN: BlockState = 0x80;

#[derive(Clone, Copy)]
enum Link {
    Next = 0,
    Previous = 4,
}

/// How long `parts` are together; more than can be counted is more than fits.
fn total_len(parts: &[&[u8]]) -> usize {
    parts.iter().fold(0, |total, part| total.saturating_add(part.len()))
}

/// The class whose blocks are the smallest that hold `length` bytes. `None` if no slab is that large.
fn class_for(length: usize) -> Option<u32> {
    let units = length.div_ceil(UNIT_BYTES as usize).checked_next_power_of_two()?;
    let class = units.ilog2();
    ((class as usize) < CLASSES).then_some(class)
}

const fn class_bytes(class: u32) -> u32 {
    UNIT_BYTES << class
}

const fn generation_in(word: u64) -> u32 {
    (word / ONE_GENERATION) as u32
}

const fn state_in(word: u64) -> BlockState {
    word as BlockState
}

fn taken_class(state: BlockState) -> Option<u32> {
    (state & TAKEN != 0).then_some((state & !TAKEN) as u32)
}

fn bytes_at(unit: u32, length: u32) -> Range<usize> {
    let start = unit as usize * UNIT_BYTES as usize;
    start..start + length as usize
}

/// Numbers slabs so that each knows its own handles. Only equality matters, so the order in which threads draw does not.
fn next_slab_number() -> u32 {
    static SLABS: AtomicU32 = AtomicU32::new(0);
    SLABS.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;
    use proptest::prelude::*;
    use std::collections::HashMap;

    impl ByteSlab {
        /// Walks all blocks and lists and asserts what must hold between operations.
        fn assert_consistent(&self) {
            let units = self.units.len() as u32;
            let (mut unit, mut taken, mut taken_bytes) = (0, 0, 0);
            let mut free_blocks = Vec::new();
            while unit < units {
                let state = self.state(unit);
                let class = u32::from(state & !(FREE | TAKEN));
                assert_eq!(unit % (1 << class), 0, "a block starts at a multiple of its size");
                assert!(unit + (1 << class) <= units, "a block ends inside the slab");
                assert!((unit + 1..unit + (1 << class)).all(|inside| self.state(inside) == INSIDE));
                match state & (FREE | TAKEN) {
                    FREE => {
                        let other = unit ^ (1 << class);
                        assert!(other >= units || self.state(other) != state, "two free halves are joined");
                        free_blocks.push((class, unit));
                    }
                    TAKEN => {
                        taken += 1;
                        taken_bytes += class_bytes(class);
                    }
                    _ => panic!("no block starts where the one before ends"),
                }
                unit += 1 << class;
            }
            assert_eq!((taken, taken_bytes), (self.len, self.occupied_bytes));
            let mut listed = Vec::new();
            for class in 0..CLASSES as u32 {
                let (mut unit, mut previous) = (self.free_heads[class as usize], NO_BLOCK);
                assert_eq!(unit != NO_BLOCK, self.free_classes & (1 << class) != 0);
                while unit != NO_BLOCK {
                    assert_eq!(self.link(unit, Link::Previous), previous);
                    listed.push((class, unit));
                    (previous, unit) = (unit, self.link(unit, Link::Next));
                }
            }
            listed.sort_unstable();
            free_blocks.sort_unstable();
            assert_eq!(listed, free_blocks, "every free block is in the list of its class, once");
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(Vec<u8>),
        Replace { which: usize, kept: usize, tail: Vec<u8> },
        Remove(usize),
        Stale(usize),
    }

    fn value() -> impl Strategy<Value = Vec<u8>> {
        let length = prop_oneof![
            1 => Just(0),
            6 => 1..40_usize,
            2 => (0..8_u32, 0..3_usize).prop_map(|(class, more)| (16 << class) + more - 1),
            1 => 0..2000_usize,
        ];
        (length, any::<u8>())
            .prop_map(|(length, first)| (0..length).map(|index| first.wrapping_add(index as u8)).collect())
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        prop::collection::vec(
            prop_oneof![
                4 => value().prop_map(Step::Insert),
                3 => (any::<usize>(), prop_oneof![Just(0), any::<usize>()], value())
                    .prop_map(|(which, kept, tail)| Step::Replace { which, kept, tail }),
                3 => any::<usize>().prop_map(Step::Remove),
                1 => any::<usize>().prop_map(Step::Stale),
            ],
            0..150,
        )
    }

    proptest! {
    #[test]
        fn a_slab_behaves_like_a_map_of_handles(capacity in 0..3000_u32, steps in steps()) {
            let mut slab = ByteSlab::with_capacity(capacity);
            let mut other = ByteSlab::with_capacity(capacity);
            let whole = slab.available_bytes();
            let mut model: HashMap<ByteSlot, Vec<u8>> = HashMap::new();
            let (mut live, mut stale): (Vec<ByteSlot>, Vec<ByteSlot>) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Insert(value) => match slab.insert(&value) {
                        Ok(slot) if value.is_empty() => prop_assert_eq!(slot, ByteSlot::EMPTY),
                        Ok(slot) => {
                            prop_assert_eq!(model.insert(slot, value), None);
                            live.push(slot);
                        }
                        Err(full) => {
                            prop_assert_eq!(full.requested_bytes, value.len());
                            prop_assert_eq!(full.available_bytes, slab.available_bytes());
                            prop_assert!(value.len() > slab.available_bytes());
                        }
                    },
                    Step::Replace { which, kept, tail } if !live.is_empty() => {
                        let index = which % live.len();
                        let slot = live[index];
                        let occupied = slab.occupied_bytes();
                        let kept = kept % (slot.len() + 1);
                        let value = [&model[&slot][..kept], &tail].concat();
                        match slab.replace_tail(slot, kept, &[&tail[..tail.len() / 2], &tail[tail.len() / 2..]]) {
                            Ok(slot_new) => {
                                model.remove(&slot);
                                stale.push(slot);
                                if value.is_empty() {
                                    live.swap_remove(index);
                                } else {
                                    prop_assert_eq!(model.insert(slot_new, value), None);
                                    live[index] = slot_new;
                                }
                            }
                            Err(_) => {
                                prop_assert!(class_for(value.len()) > class_for(slot.len()), "what fits in place is taken");
                                prop_assert!(value.len() > slab.available_bytes());
                                prop_assert_eq!(slab.occupied_bytes(), occupied);
                            }
                        }
                    }
                    Step::Remove(which) if !live.is_empty() => {
                        let slot = live.swap_remove(which % live.len());
                        model.remove(&slot);
                        stale.push(slot);
                        prop_assert!(slab.remove(slot));
                    }
                    Step::Stale(which) if !stale.is_empty() => prop_assert!(!slab.remove(stale[which % stale.len()])),
                    _ => {}
                }
                slab.assert_consistent();
                prop_assert_eq!(slab.len(), model.len());
                prop_assert_eq!(slab.used_bytes(), model.values().map(Vec::len).sum::<usize>());
                prop_assert!(model.iter().all(|(slot, value)| slab.get(*slot) == Some(value)));
                prop_assert!(stale.iter().all(|slot| slab.get(*slot).is_none()));
                prop_assert!(live.iter().all(|slot| other.get(*slot).is_none() && !other.remove(*slot)));
            }
            for slot in live {
                prop_assert!(slab.remove(slot));
            }
            slab.assert_consistent();
            prop_assert_eq!((slab.len(), slab.used_bytes(), slab.occupied_bytes()), (0, 0, 0));
            prop_assert_eq!(slab.available_bytes(), whole, "all room is whole again");
        }
    }

    #[test]
    fn a_value_may_fill_the_slab_and_one_byte_more_is_refused() {
        let mut slab = ByteSlab::with_capacity(256);
        let refused = slab.insert(&[1; 257]);
        assert_eq!(refused, Err(SlabFull { requested_bytes: 257, available_bytes: 256, capacity_bytes: 256 }));
        let slot = slab.insert(&[1; 256]).expect("it fits exactly");
        assert_eq!(slab.get(slot), Some(&[1; 256][..]));
        assert_eq!(slab.available_bytes(), 0);
        assert!(slab.insert(&[1]).is_err());
    }

    #[test]
    fn room_freed_by_small_values_serves_a_large_one() {
        let mut slab = ByteSlab::with_capacity(1024);
        let small: Vec<_> = (0..64).map(|value| slab.insert(&[value; 16]).expect("64 times 16 bytes fit")).collect();
        assert!(slab.insert(&[0]).is_err());
        for slot in &small {
            assert!(slab.remove(*slot));
        }
        assert!(slab.insert(&[0; 1024]).is_ok());
    }

    #[test]
    fn holes_that_are_not_adjacent_do_not_add_up() {
        let mut slab = ByteSlab::with_capacity(64);
        let slots: Vec<_> = (0..4).map(|value| slab.insert(&[value; 16]).expect("four fit")).collect();
        slab.remove(slots[0]);
        slab.remove(slots[2]);
        let refused = slab.insert(&[0; 17]).expect_err("32 bytes are free, in two places");
        assert_eq!((refused.available_bytes, slab.occupied_bytes()), (16, 32));
    }

    #[test]
    fn a_refused_replacement_leaves_the_old_value() {
        let mut slab = ByteSlab::with_capacity(64);
        let slot = slab.insert(b"old").expect("there is room");
        assert!(slab.replace(slot, &[1; 64]).is_err(), "the old value is still needed while the new one is written");
        assert_eq!(slab.get(slot), Some(&b"old"[..]));
        assert!(slab.remove(slot));
    }

    #[test]
    fn replacing_in_place_works_in_a_full_slab_and_ends_the_old_handle() {
        let mut slab = ByteSlab::with_capacity(64);
        let slot = slab.insert(&[1; 64]).expect("it fits exactly");
        let same_class = slab.replace(slot, &[2; 33]).expect("the same class");
        let smaller = slab.replace(same_class, &[3; 5]).expect("a smaller class");
        assert_eq!((slab.get(slot), slab.get(same_class), slab.get(smaller)), (None, None, Some(&[3; 5][..])));
        assert_eq!(slab.available_bytes(), 32, "what the smaller value does not need is free");
    }

    #[test]
    fn empty_values_need_no_room_even_in_a_slab_without_any() {
        let mut slab = ByteSlab::with_capacity(0);
        let slot = slab.insert(b"").expect("nothing is needed");
        assert_eq!((slab.get(slot), slab.len()), (Some(&b""[..]), 0));
        assert!(slab.remove(slot));
        assert_eq!(slab.replace(slot, b""), Ok(ByteSlot::EMPTY));
        assert!(slab.insert(b"x").is_err());
    }

    #[test]
    fn an_empty_slot_is_replaced_by_an_insertion_and_back_by_a_removal() {
        let mut slab = ByteSlab::with_capacity(16);
        let slot = slab.replace(ByteSlot::EMPTY, b"x").expect("there is room");
        assert_eq!(slab.len(), 1);
        assert_eq!(slab.replace(slot, b""), Ok(ByteSlot::EMPTY));
        assert_eq!((slab.len(), slab.get(slot)), (0, None));
    }

    #[test]
    fn a_handle_of_another_slab_finds_nothing() {
        let (mut one, mut two) = (ByteSlab::with_capacity(64), ByteSlab::with_capacity(64));
        let slot = one.insert(b"one").expect("there is room");
        two.insert(b"two").expect("there is room");
        assert_eq!(two.get(slot), None);
        assert!(!two.remove(slot));
    }

    #[test]
    fn the_end_of_a_value_changes_in_place_and_the_beginning_moves_along_when_it_must() {
        let mut slab = ByteSlab::with_capacity(128);
        let slot = slab.insert(b"beginning, end").expect("there is room");
        let same = slab.replace_tail(slot, 9, &[b" stays"]).expect("it fits in place");
        assert_eq!((slab.get(same), slab.get(slot)), (Some(&b"beginning stays"[..]), None));
        let longer = slab.replace_tail(same, 9, &[b" moves", b" along"]).expect("there is another block");
        assert_eq!((slab.get(longer), slab.get(same)), (Some(&b"beginning moves along"[..]), None));
        assert_eq!((slab.len(), slab.occupied_bytes()), (1, 32), "the first block is free again");
        assert!(slab.replace_tail(longer, 9, &[&[1; 120]]).is_err());
        assert_eq!(slab.get(longer), Some(&b"beginning moves along"[..]));
    }

    #[test]
    #[should_panic(expected = "the kept bytes are there")]
    fn more_cannot_be_kept_than_there_is() {
        let mut slab = ByteSlab::with_capacity(64);
        let slot = slab.insert(b"four").expect("there is room");
        let _ = slab.replace_tail(slot, 5, &[b"more"]);
    }

    #[test]
    #[should_panic(expected = "names a value of this slab")]
    fn replacing_through_a_stale_handle_is_a_bug() {
        let mut slab = ByteSlab::with_capacity(64);
        let slot = slab.insert(b"gone").expect("there is room");
        slab.remove(slot);
        let _ = slab.replace(slot, b"lost");
    }

    #[test]
    fn the_largest_slab_is_made_without_touching_its_memory() {
        let mut slab = ByteSlab::with_capacity(u32::MAX);
        assert_eq!(slab.capacity_bytes(), (u32::MAX - 15) as usize);
        assert_eq!(slab.available_bytes(), 1 << 31);
        let slot = slab.insert(b"first").expect("there is room");
        assert_eq!(slab.get(slot), Some(&b"first"[..]));
        assert!(slab.remove(slot));
        assert_eq!(slab.available_bytes(), 1 << 31);
    }

    #[test]
    fn no_slab_is_asked_for_more_than_any_could_hold() {
        assert_eq!(class_for(1 << 31), Some(27));
        assert_eq!(class_for((1 << 31) + 1), None);
        assert_eq!(class_for(usize::MAX), None);
    }

    #[test]
    fn a_clone_answers_to_the_handles_made_before_and_then_goes_its_own_way() {
        let mut slab = ByteSlab::with_capacity(64);
        let slot = slab.insert(b"shared").expect("there is room");
        let copy = slab.clone();
        slab.remove(slot);
        assert_eq!((slab.get(slot), copy.get(slot)), (None, Some(&b"shared"[..])));
    }

    #[test]
    fn debug_output_shows_no_stored_bytes() {
        let mut slab = ByteSlab::with_capacity(64);
        let slot = slab.insert(b"hunter2").expect("there is room");
        let shown = format!("{slab:?} {slot:?} {}", slab.insert(&[0; 99]).expect_err("too long"));
        assert!(!shown.contains("hunter2") && !shown.contains("104, 117"), "{shown}");
    }

    #[test]
    fn a_slot_is_sixteen_bytes() {
        assert_eq!(size_of::<ByteSlot>(), 16);
    }

    #[test]
    fn parts_are_one_value_end_to_end() {
        let mut slab = ByteSlab::with_capacity(64);
        let slot = slab.insert_parts(&[b"ab", b"", b"c"]).unwrap();
        assert_eq!((slab.get(slot), slab.len()), (Some(&b"abc"[..]), 1));
        let slot = slab.replace_parts(slot, &[b"a much longer", b" value"]).unwrap();
        assert_eq!((slab.get(slot), slab.len()), (Some(&b"a much longer value"[..]), 1));
        assert_eq!(slab.replace_parts(slot, &[b"", b""]), Ok(ByteSlot::EMPTY));
        assert!(slab.is_empty());
        assert_eq!(slab.insert_parts(&[&[1; 64], &[1; 1]]).unwrap_err().requested_bytes, 65);
    }
}
