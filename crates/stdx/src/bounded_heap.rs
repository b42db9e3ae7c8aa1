//! A binary heap that never grows: the greatest item is at the top, and the caller chooses what a full heap does.
//!
//! With [`BoundedHeap::push`] a full heap refuses, which suits a work list. With [`BoundedHeap::push_evict`] the greatest
//! item makes room for a lesser one, so the heap ends up with the least of all it has seen, which suits "the `n` nearest".
//! For the opposite order, wrap the items in [`core::cmp::Reverse`].
//!
//! A heap that pops the best and also evicts the worst is deliberately not here: one of the two would take linear time.

use alloc::collections::BinaryHeap;
use alloc::vec::Vec;

/// At most a fixed number of items, the greatest of which is at hand. No allocation after construction.
///
/// ```
/// use tessera_stdx::BoundedHeap;
///
/// let mut nearest = BoundedHeap::with_capacity(2);
/// assert_eq!(nearest.push_evict(30), None);
/// assert_eq!(nearest.push_evict(10), None);
/// assert_eq!(nearest.push_evict(20), Some(30));
/// assert_eq!(nearest.push_evict(40), Some(40));
/// assert_eq!(nearest.into_sorted_vec(), [10, 20]);
/// ```
#[derive(Debug)]
pub struct BoundedHeap<T> {
    items: BinaryHeap<T>,
    capacity: usize,
}

impl<T: Ord> BoundedHeap<T> {
    /// A heap for at most `capacity` items; their memory is taken now.
    ///
    /// # Panics
    ///
    /// If so many items are more than memory can be asked for. A capacity is a setting, not something a peer sends.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { items: BinaryHeap::with_capacity(capacity), capacity }
    }

    /// Adds `item`, or gives it back if the heap is full.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        self.items.push(item);
        Ok(())
    }

    /// Adds `item`; if the heap is full, the greatest of the items in it and of `item` is left out and returned.
    /// Among equals `item` is the one left out.
    pub fn push_evict(&mut self, item: T) -> Option<T> {
        let Err(item) = self.push(item) else { return None };
        match self.items.peek_mut() {
            Some(mut greatest) if item < *greatest => Some(core::mem::replace(&mut *greatest, item)),
            _ => Some(item),
        }
    }

    /// Takes the greatest item out.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop()
    }

    /// The greatest item.
    pub fn peek(&self) -> Option<&T> {
        self.items.peek()
    }

    /// The items from the least to the greatest, in the memory of the heap.
    pub fn into_sorted_vec(self) -> Vec<T> {
        self.items.into_sorted_vec()
    }
}

impl<T> BoundedHeap<T> {
    /// The items in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.items.iter()
    }

    /// How many items there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Whether the next push would be refused or evict.
    pub fn is_full(&self) -> bool {
        self.items.len() == self.capacity
    }

    /// How many items fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Drops all items and keeps the memory.
    pub fn clear(&mut self) {
        self.items.clear();
    }
}

/// A clone has room for as many items as the original, so it does not allocate afterwards either.
impl<T: Clone + Ord> Clone for BoundedHeap<T> {
    fn clone(&self) -> Self {
        let mut clone = Self::with_capacity(self.capacity);
        clone.items.extend(self.items.iter().cloned());
        clone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cmp::Reverse;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push(u8),
        PushEvict(u8),
        Pop,
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        prop::collection::vec(
            prop_oneof![
                6 => any::<u8>().prop_map(Step::Push),
                6 => any::<u8>().prop_map(Step::PushEvict),
                4 => Just(Step::Pop),
                1 => Just(Step::Clear),
            ],
            0..100,
        )
    }

    proptest! {
        #[test]
        fn a_heap_behaves_like_a_sorted_list_with_a_limit(capacity in 0..10_usize, steps in steps()) {
            let mut heap = BoundedHeap::with_capacity(capacity);
            let mut model: Vec<u8> = Vec::new();
            for step in steps {
                match step {
                    Step::Push(item) => {
                        let expected = if model.len() < capacity { Ok(()) } else { Err(item) };
                        if expected.is_ok() {
                            model.push(item);
                        }
                        prop_assert_eq!(heap.push(item), expected);
                    }
                    Step::PushEvict(item) => {
                        model.push(item);
                        model.sort_unstable();
                        let expected = if model.len() > capacity { model.pop() } else { None };
                        prop_assert_eq!(heap.push_evict(item), expected);
                    }
                    Step::Pop => {
                        model.sort_unstable();
                        prop_assert_eq!(heap.pop(), model.pop());
                    }
                    Step::Clear => {
                        heap.clear();
                        model.clear();
                    }
                }
                model.sort_unstable();
                prop_assert_eq!(heap.peek(), model.last());
                prop_assert_eq!((heap.len(), heap.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(heap.is_full(), model.len() == capacity);
                prop_assert_eq!(heap.iter().len(), model.len());
                prop_assert_eq!(heap.clone().into_sorted_vec(), model.clone());
            }
        }

        #[test]
        fn evicting_keeps_the_least_of_all_that_were_pushed(capacity in 1..20_usize, items in prop::collection::vec(any::<u16>(), 0..200)) {
            let mut heap = BoundedHeap::with_capacity(capacity);
            for item in &items {
                heap.push_evict(*item);
            }
            let mut expected = items;
            expected.sort_unstable();
            expected.truncate(capacity);
            prop_assert_eq!(heap.into_sorted_vec(), expected);
        }
    }

    #[test]
    fn among_equals_the_newcomer_is_left_out() {
        #[derive(Debug)]
        struct Candidate(u8, &'static str);
        impl PartialEq for Candidate {
            fn eq(&self, other: &Self) -> bool {
                self.0 == other.0
            }
        }
        impl Eq for Candidate {}
        impl PartialOrd for Candidate {
            fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        impl Ord for Candidate {
            fn cmp(&self, other: &Self) -> core::cmp::Ordering {
                self.0.cmp(&other.0)
            }
        }
        let mut heap = BoundedHeap::with_capacity(1);
        heap.push_evict(Candidate(1, "resident"));
        assert_eq!(heap.push_evict(Candidate(1, "newcomer")).map(|candidate| candidate.1), Some("newcomer"));
    }

    #[test]
    fn reversed_items_keep_the_greatest() {
        let mut heap = BoundedHeap::with_capacity(2);
        for item in [3, 9, 1, 7] {
            heap.push_evict(Reverse(item));
        }
        assert_eq!(heap.into_sorted_vec(), [Reverse(9), Reverse(7)]);
    }
}
