//! A first-in first-out queue of at most `N` items, stored inline.
//!
//! Made for short logs that live inside a record: no heap, no shifting on eviction, and no tag per slot, which an array of
//! `Option<T>` would pay for. `N` is a power of two, so a position wraps by a mask.
//!
//! This is the crate's one module with unsafe code, because a slot that holds no item is uninitialised. Everything rests
//! on one invariant: **the `len` slots from `head` on, wrapping, hold items; no other slot does.** `len` and `head` are
//! changed only in [`RingBuffer::push_back`], [`RingBuffer::push_back_overwrite`] and [`RingBuffer::pop_front`], and no
//! code of `T` runs between touching a slot and restoring the invariant.

use core::fmt;
use core::iter::FusedIterator;
use core::mem::{self, MaybeUninit};

/// A first-in first-out queue of at most `N` items, stored inline. `N` is a power of two.
///
/// ```
/// use tessera_stdx::RingBuffer;
///
/// let mut log: RingBuffer<u32, 2> = RingBuffer::new();
/// assert_eq!(log.push_back(1), Ok(()));
/// assert_eq!(log.push_back(2), Ok(()));
/// assert_eq!(log.push_back(3), Err(3));
/// assert_eq!(log.push_back_overwrite(3), Some(1));
/// assert!(log.iter().eq(&[2, 3]));
/// ```
///
/// A capacity that is not a power of two does not compile:
///
/// ```compile_fail
/// let log: tessera_stdx::RingBuffer<u32, 3> = tessera_stdx::RingBuffer::new();
/// ```
#[repr(C)]
pub struct RingBuffer<T, const N: usize> {
    // Ahead of the slots, and so in one cache line with a record's fields in front of its ring.
    head: u32,
    len: u32,
    slots: [MaybeUninit<T>; N],
}

impl<T, const N: usize> RingBuffer<T, N> {
    /// How many items fit.
    pub const CAPACITY: usize = N;

    /// An empty ring.
    pub const fn new() -> Self {
        const { assert!(N.is_power_of_two() && N <= 1 << 31, "the capacity is a power of two that a u32 counts") };
        Self { slots: [const { MaybeUninit::uninit() }; N], head: 0, len: 0 }
    }

    /// Adds `item` as the newest, or gives it back if the ring is full.
    pub fn push_back(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        let end = self.slot_index(self.len());
        self.slots[end].write(item);
        self.len += 1;
        Ok(())
    }

    /// Adds `item` as the newest; if the ring is full, the oldest makes room and is returned. Constant time.
    pub fn push_back_overwrite(&mut self, item: T) -> Option<T> {
        match self.push_back(item) {
            Ok(()) => None,
            Err(item) => {
                let oldest = self.slot_index(0);
                let evicted = mem::replace(&mut self.slots[oldest], MaybeUninit::new(item));
                self.head = self.slot_index(1) as u32;
                // SAFETY: the ring was full, so the slot at head held an item. It was moved out, and the slot now holds
                // the new item, which is the last of the `len` slots counted from the new head.
                #[allow(unsafe_code)]
                Some(unsafe { evicted.assume_init() })
            }
        }
    }

    /// Takes the oldest item out.
    pub fn pop_front(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let oldest = self.slot_index(0);
        self.head = self.slot_index(1) as u32;
        self.len -= 1;
        // SAFETY: len was above zero, so the slot at the old head held an item. The new head and len no longer count that
        // slot, so the item is read out once only.
        #[allow(unsafe_code)]
        Some(unsafe { self.slots[oldest].assume_init_read() })
    }

    /// The oldest item.
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The newest item.
    pub fn back(&self) -> Option<&T> {
        self.get(self.len().wrapping_sub(1))
    }

    /// The item at `index`, counted from the oldest.
    pub fn get(&self, index: usize) -> Option<&T> {
        if index >= self.len() {
            return None;
        }
        // SAFETY: index < len, so this is one of the len slots from head on, all of which hold items.
        #[allow(unsafe_code)]
        Some(unsafe { self.slots[self.slot_index(index)].assume_init_ref() })
    }

    /// The item at `index`, counted from the oldest, to be changed in place.
    pub fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index >= self.len() {
            return None;
        }
        let slot = self.slot_index(index);
        // SAFETY: index < len, so this is one of the len slots from head on, all of which hold items.
        #[allow(unsafe_code)]
        Some(unsafe { self.slots[slot].assume_init_mut() })
    }

    /// The items from the oldest to the newest.
    pub fn iter(&self) -> RingBufferIter<'_, T, N> {
        RingBufferIter { ring: self, front: 0, back: self.len() }
    }

    /// How many items there are.
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no items.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the next [`push_back`](Self::push_back) would be refused.
    pub const fn is_full(&self) -> bool {
        self.len() == N
    }

    /// Drops all items, the oldest first. If dropping one panics, those after it stay in the ring.
    pub fn clear(&mut self) {
        while let Some(item) = self.pop_front() {
            drop(item);
        }
    }

    /// Where the item at `index` lies. The mask keeps it below `N` for any `index`.
    const fn slot_index(&self, index: usize) -> usize {
        (self.head as usize).wrapping_add(index) & (N - 1)
    }
}

impl<T, const N: usize> Drop for RingBuffer<T, N> {
    fn drop(&mut self) {
        /// Drops the rest when the drop of an earlier item panics, so that one bad item does not leak the others.
        struct Rest<'a, T, const N: usize>(&'a mut RingBuffer<T, N>);
        impl<T, const N: usize> Drop for Rest<'_, T, N> {
            fn drop(&mut self) {
                self.0.clear();
            }
        }
        if mem::needs_drop::<T>() {
            Rest(self).0.clear();
        }
    }
}

impl<T, const N: usize> Default for RingBuffer<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone, const N: usize> Clone for RingBuffer<T, N> {
    fn clone(&self) -> Self {
        let mut clone = Self::new();
        for item in self {
            // The clone has the same capacity, so nothing is evicted.
            clone.push_back_overwrite(item.clone());
        }
        clone
    }
}

/// Equal when they hold equal items in the same order, wherever in the storage those lie.
impl<T: PartialEq, const N: usize, const M: usize> PartialEq<RingBuffer<T, M>> for RingBuffer<T, N> {
    fn eq(&self, other: &RingBuffer<T, M>) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<T: Eq, const N: usize> Eq for RingBuffer<T, N> {}

impl<T: fmt::Debug, const N: usize> fmt::Debug for RingBuffer<T, N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self).finish()
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a RingBuffer<T, N> {
    type Item = &'a T;
    type IntoIter = RingBufferIter<'a, T, N>;

    fn into_iter(self) -> RingBufferIter<'a, T, N> {
        self.iter()
    }
}

/// The items of a [`RingBuffer`] from the oldest to the newest.
pub struct RingBufferIter<'a, T, const N: usize> {
    ring: &'a RingBuffer<T, N>,
    front: usize,
    back: usize,
}

impl<'a, T, const N: usize> Iterator for RingBufferIter<'a, T, N> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        if self.front == self.back {
            return None;
        }
        self.front += 1;
        self.ring.get(self.front - 1)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.back - self.front, Some(self.back - self.front))
    }
}

impl<T, const N: usize> DoubleEndedIterator for RingBufferIter<'_, T, N> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.front == self.back {
            return None;
        }
        self.back -= 1;
        self.ring.get(self.back)
    }
}

impl<T, const N: usize> ExactSizeIterator for RingBufferIter<'_, T, N> {}
impl<T, const N: usize> FusedIterator for RingBufferIter<'_, T, N> {}

impl<T, const N: usize> Clone for RingBufferIter<'_, T, N> {
    fn clone(&self) -> Self {
        Self { ring: self.ring, front: self.front, back: self.back }
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for RingBufferIter<'_, T, N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.clone()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use alloc::format;
    use alloc::rc::Rc;
    use alloc::string::{String, ToString};
    use alloc::vec::Vec;
    use core::cell::RefCell;
    use proptest::prelude::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[derive(Debug, Clone)]
    enum Step {
        Push(u16),
        PushOverwrite(u16),
        Pop,
        Set(usize, u16),
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        prop::collection::vec(
            prop_oneof![
                4 => any::<u16>().prop_map(Step::Push),
                4 => any::<u16>().prop_map(Step::PushOverwrite),
                4 => Just(Step::Pop),
                2 => (0..10_usize, any::<u16>()).prop_map(|(index, value)| Step::Set(index, value)),
                1 => Just(Step::Clear),
            ],
            0..80,
        )
    }

    /// Runs `steps` on a ring and on a `VecDeque` and compares all that can be seen after each. The items are strings, so
    /// that a slot read twice or never dropped is a double free or a leak that a memory checker sees.
    fn behaves_like_a_deque<const N: usize>(steps: &[Step]) -> Result<(), TestCaseError> {
        let mut ring: RingBuffer<String, N> = RingBuffer::new();
        let mut model: VecDeque<String> = VecDeque::new();
        for step in steps {
            match step {
                Step::Push(value) => {
                    let expected = if model.len() < N { Ok(()) } else { Err(value.to_string()) };
                    if expected.is_ok() {
                        model.push_back(value.to_string());
                    }
                    prop_assert_eq!(ring.push_back(value.to_string()), expected);
                }
                Step::PushOverwrite(value) => {
                    let expected = if model.len() == N { model.pop_front() } else { None };
                    model.push_back(value.to_string());
                    prop_assert_eq!(ring.push_back_overwrite(value.to_string()), expected);
                }
                Step::Pop => prop_assert_eq!(ring.pop_front(), model.pop_front()),
                Step::Set(index, value) => {
                    prop_assert_eq!(ring.get_mut(*index).is_some(), *index < model.len());
                    if let (Some(item), Some(expected)) = (ring.get_mut(*index), model.get_mut(*index)) {
                        *item = value.to_string();
                        *expected = value.to_string();
                    }
                }
                Step::Clear => {
                    ring.clear();
                    model.clear();
                }
            }
            prop_assert_eq!(ring.len(), model.len());
            prop_assert_eq!(ring.is_empty(), model.is_empty());
            prop_assert_eq!(ring.is_full(), model.len() == N);
            prop_assert_eq!(ring.front(), model.front());
            prop_assert_eq!(ring.back(), model.back());
            prop_assert_eq!(ring.get(model.len()), None);
            prop_assert_eq!(ring.iter().len(), model.len());
            prop_assert!(ring.iter().eq(&model));
            prop_assert!(ring.iter().rev().eq(model.iter().rev()));
            prop_assert!((0..model.len()).all(|index| ring.get(index) == model.get(index)));
            let clone = ring.clone();
            prop_assert_eq!(&clone, &ring);
            prop_assert_eq!(format!("{clone:?}"), format!("{model:?}"));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_ring_behaves_like_a_deque_with_a_limit(steps in steps()) {
            behaves_like_a_deque::<1>(&steps)?;
            behaves_like_a_deque::<4>(&steps)?;
            behaves_like_a_deque::<8>(&steps)?;
        }

        #[test]
        fn both_ends_of_an_iterator_meet_without_overlap(count in 0..16_usize, turns in prop::collection::vec(any::<bool>(), 20)) {
            let mut ring: RingBuffer<usize, 8> = RingBuffer::new();
            let mut model = VecDeque::new();
            for value in 0..count {
                ring.push_back_overwrite(value);
                model.push_back(value);
                if model.len() > 8 {
                    model.pop_front();
                }
            }
            let (mut ours, mut expected) = (ring.iter(), model.iter());
            for from_front in turns {
                prop_assert_eq!(ours.len(), expected.len());
                if from_front {
                    prop_assert_eq!(ours.next(), expected.next());
                } else {
                    prop_assert_eq!(ours.next_back(), expected.next_back());
                }
            }
        }
    }

    /// Writes its number down when dropped, and panics then if told to.
    struct Witness {
        number: u32,
        panics: bool,
        dropped: Rc<RefCell<Vec<u32>>>,
    }

    impl Drop for Witness {
        fn drop(&mut self) {
            self.dropped.borrow_mut().push(self.number);
            assert!(!self.panics, "told to panic");
        }
    }

    /// A full, wrapped ring of witnesses 2 to 5, of which `panicking` panics when dropped.
    fn witnesses(panicking: u32) -> (RingBuffer<Witness, 4>, Rc<RefCell<Vec<u32>>>) {
        let dropped = Rc::new(RefCell::new(Vec::new()));
        let mut ring = RingBuffer::new();
        for number in 0..6 {
            ring.push_back_overwrite(Witness { number, panics: number == panicking, dropped: dropped.clone() });
        }
        assert_eq!(dropped.take(), [0, 1]);
        (ring, dropped)
    }

    #[test]
    fn each_item_is_dropped_once_in_order() {
        let (ring, dropped) = witnesses(u32::MAX);
        drop(ring);
        assert_eq!(dropped.take(), [2, 3, 4, 5]);
    }

    #[test]
    fn an_item_taken_out_is_not_dropped_again_by_the_ring() {
        let (mut ring, dropped) = witnesses(u32::MAX);
        let taken = ring.pop_front();
        drop(ring);
        assert_eq!(dropped.take(), [3, 4, 5]);
        drop(taken);
        assert_eq!(dropped.take(), [2]);
    }

    #[test]
    fn a_refused_item_comes_back_alive() {
        let (mut ring, dropped) = witnesses(u32::MAX);
        let refused = ring.push_back(Witness { number: 6, panics: false, dropped: dropped.clone() });
        assert_eq!(dropped.take(), []);
        drop(refused);
        assert_eq!(dropped.take(), [6]);
        assert_eq!(ring.len(), 4);
    }

    #[test]
    fn an_item_that_panics_when_dropped_does_not_leak_the_others() {
        for panicking in 2..6 {
            let (ring, dropped) = witnesses(panicking);
            assert!(catch_unwind(AssertUnwindSafe(|| drop(ring))).is_err());
            assert_eq!(dropped.take(), [2, 3, 4, 5]);
        }
    }

    #[test]
    fn clear_interrupted_by_a_panic_leaves_a_ring_of_the_remaining_items() {
        let (mut ring, dropped) = witnesses(3);
        assert!(catch_unwind(AssertUnwindSafe(|| ring.clear())).is_err());
        assert_eq!(dropped.take(), [2, 3]);
        assert_eq!(ring.iter().map(|witness| witness.number).collect::<Vec<_>>(), [4, 5]);
        drop(ring);
        assert_eq!(dropped.take(), [4, 5]);
    }

    #[test]
    fn a_clone_that_panics_half_way_drops_what_it_had_cloned() {
        struct Fragile(Witness);
        impl Clone for Fragile {
            fn clone(&self) -> Self {
                assert!(self.0.number != 4, "told to panic");
                Self(Witness { number: self.0.number + 100, panics: false, dropped: self.0.dropped.clone() })
            }
        }
        let dropped = Rc::new(RefCell::new(Vec::new()));
        let mut ring: RingBuffer<Fragile, 4> = RingBuffer::new();
        for number in 1..6 {
            ring.push_back_overwrite(Fragile(Witness { number, panics: false, dropped: dropped.clone() }));
        }
        dropped.take();
        assert!(catch_unwind(AssertUnwindSafe(|| ring.clone())).is_err());
        assert_eq!(dropped.take(), [102, 103]);
        assert_eq!(ring.len(), 4);
    }

    #[test]
    fn a_ring_equals_one_of_the_same_items_elsewhere_in_storage_but_not_one_that_it_begins_with() {
        let mut wrapped: RingBuffer<u8, 4> = RingBuffer::new();
        for item in 0..6 {
            wrapped.push_back_overwrite(item);
        }
        let mut straight: RingBuffer<u8, 4> = RingBuffer::new();
        for item in 2..5 {
            assert_eq!(straight.push_back(item), Ok(()));
            assert_ne!(straight, wrapped);
            assert_ne!(wrapped, straight);
        }
        assert_eq!(straight.push_back(5), Ok(()));
        assert_eq!(straight, wrapped);
    }

    #[test]
    fn items_without_size_are_counted_all_the_same() {
        let mut ring: RingBuffer<(), 2> = RingBuffer::new();
        assert_eq!([ring.push_back(()), ring.push_back(()), ring.push_back(())], [Ok(()), Ok(()), Err(())]);
        assert_eq!(ring.iter().count(), 2);
    }

    #[test]
    fn a_ring_is_its_slots_and_two_counters() {
        assert_eq!(size_of::<RingBuffer<u64, 16>>(), 16 * 8 + 8);
    }
}
