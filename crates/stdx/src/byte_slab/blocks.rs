//! Blocks of power-of-two sizes: how a free one is found, halved, given back and joined with its other half.

use core::ops::Range;

use super::{ByteSlab, SlabFull};

/// The smallest block. Two links of a free block fit it.
pub(super) const UNIT_BYTES: u32 = 16;
/// Classes from one unit up to the largest power of two of units whose bytes a `u32` counts.
pub(super) const CLASSES: usize = 28;
pub(super) const NO_BLOCK: u32 = u32::MAX;

/// [`INSIDE`], or [`FREE`] or [`TAKEN`] with the class in the low bits.
pub(super) type BlockState = u8;
/// A unit's word grows by this when a value goes.
pub(super) const ONE_GENERATION: u64 = 1 << 32;
/// No block starts at this unit. Zero, so that making a slab touches no memory.
pub(super) const INSIDE: BlockState = 0;
pub(super) const FREE: BlockState = 0x40;
pub(super) const TAKEN: BlockState = 0x80;

#[derive(Clone, Copy)]
pub(super) enum Link {
    Next = 0,
    Previous = 4,
}

impl ByteSlab {
    /// Finds a free block for `length` bytes and marks it taken; the answer is where it begins, and its class.
    pub(super) fn take_block(&mut self, length: usize) -> Result<(u32, u32), SlabFull> {
        let full = SlabFull {
            requested_bytes: length,
            available_bytes: self.available_bytes(),
            capacity_bytes: self.capacity_bytes(),
        };
        let class = class_for(length).ok_or(full)?;
        if self.fresh {
            self.mark_first_blocks();
        }
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

    /// The largest blocks first: each starts at a multiple of its own size, so its other half is found by one bit.
    #[cold]
    fn mark_first_blocks(&mut self) {
        self.fresh = false;
        if self.units.is_empty() {
            self.take_memory();
        }
        let (mut unit, units) = (0, self.capacity_units);
        while unit < units {
            let class = (units - unit).ilog2();
            self.push_free(unit, class);
            unit += 1 << class;
        }
    }

    pub(super) fn state(&self, unit: u32) -> BlockState {
        state_in(self.units[unit as usize])
    }

    fn set_state(&mut self, unit: u32, state: BlockState) {
        let word = &mut self.units[unit as usize];
        *word = *word / ONE_GENERATION * ONE_GENERATION + u64::from(state);
    }

    /// Makes the block at `unit` a taken one of `class_new`; the halves it does not need become free.
    pub(super) fn trim(&mut self, unit: u32, class: u32, class_new: u32) {
        for half in class_new..class {
            self.push_free(unit + (1 << half), half);
        }
        self.set_state(unit, TAKEN | class_new as u8);
    }

    /// Makes the taken block at `unit` free, joined with its other half as often as that is free too.
    pub(super) fn give_back(&mut self, mut unit: u32, mut class: u32) {
        loop {
            let other = unit ^ (1 << class);
            if other >= self.capacity_units || self.state(other) != FREE | class as u8 {
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

    pub(super) fn push_free(&mut self, unit: u32, class: u32) {
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

    pub(super) fn link(&self, unit: u32, link: Link) -> u32 {
        let at = unit as usize * UNIT_BYTES as usize + link as usize;
        let [a, b, c, d] = self.storage[at..at + 4] else { unreachable!("four bytes were taken") };
        u32::from_le_bytes([a, b, c, d])
    }

    fn set_link(&mut self, unit: u32, link: Link, to: u32) {
        let at = unit as usize * UNIT_BYTES as usize + link as usize;
        self.storage[at..at + 4].copy_from_slice(&to.to_le_bytes());
    }
}

/// The class whose blocks are the smallest that hold `length` bytes. `None` if no slab is that large.
pub(super) fn class_for(length: usize) -> Option<u32> {
    let units = length.div_ceil(UNIT_BYTES as usize).checked_next_power_of_two()?;
    let class = units.ilog2();
    ((class as usize) < CLASSES).then_some(class)
}

pub(super) const fn class_bytes(class: u32) -> u32 {
    UNIT_BYTES << class
}

pub(super) const fn generation_in(word: u64) -> u32 {
    (word / ONE_GENERATION) as u32
}

pub(super) const fn state_in(word: u64) -> BlockState {
    word as BlockState
}

pub(super) fn taken_class(state: BlockState) -> Option<u32> {
    (state & TAKEN != 0).then_some((state & !TAKEN) as u32)
}

pub(super) fn bytes_at(unit: u32, length: u32) -> Range<usize> {
    let start = unit as usize * UNIT_BYTES as usize;
    start..start + length as usize
}
