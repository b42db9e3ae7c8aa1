//! A queue that many fill and one empties, until it is closed; the closer gets the rest.
//!
//! This is the way of commands into a lane. A channel would do, were it not for lanes that hang: its receiving end is the hung
//! thread's, and with it all waiting commands, so that a caller waits for as long as the thread hangs. Here the taker owns
//! only the items it has taken, one at a time, and another thread can take the rest.
//!
//! A given item is put on a stack. The taker takes the whole stack, turns it over, and keeps it where the closer finds it, too.
//! Each change of hands is one exchange of a word, after which the list belongs to one thread alone. A closed place holds a mark
//! in place of a list: then no producer adds to it any more, and a taker that held a list meanwhile drops it itself.

use std::marker::PhantomData;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One item of the queue.
pub(crate) struct Node<T> {
    item: T,
    next: *mut Self,
}

/// A word that names a list, so that loom can explore it with its own.
pub(crate) trait Place<T> {
    fn new() -> Self;
    fn load(&self) -> *mut Node<T>;
    /// Puts `list` there if `seen` still is; otherwise returns the list that is.
    fn replace(&self, seen: *mut Node<T>, list: *mut Node<T>) -> Result<(), *mut Node<T>>;
    fn swap(&self, list: *mut Node<T>) -> *mut Node<T>;
}

impl<T> Place<T> for AtomicPtr<Node<T>> {
    fn new() -> Self {
        Self::new(null_mut())
    }

    fn load(&self) -> *mut Node<T> {
        self.load(Ordering::Relaxed)
    }

    fn replace(&self, seen: *mut Node<T>, list: *mut Node<T>) -> Result<(), *mut Node<T>> {
        self.compare_exchange(seen, list, Ordering::AcqRel, Ordering::Relaxed).map(drop)
    }

    fn swap(&self, list: *mut Node<T>) -> *mut Node<T> {
        self.swap(list, Ordering::AcqRel)
    }
}

/// The queue.
#[derive(Debug)]
pub(crate) struct Inbox<T, P: Place<T> = AtomicPtr<Node<T>>> {
    /// Given items, newest first.
    given: P,
    /// Items the taker has turned over, oldest first.
    turned: P,
    _items: PhantomData<fn(T) -> T>,
}

/// No node is at an odd address.
fn closed<T>() -> *mut Node<T> {
    without_provenance_mut(1)
}

fn is_list<T>(place: *mut Node<T>) -> bool {
    !place.is_null() && place != closed()
}

impl<T, P: Place<T>> Inbox<T, P> {
    /// Only for items that may go to another thread: the taker runs on another thread than the sender.
    pub(crate) fn new() -> Self
    where
        T: Send,
    {
        Self { given: P::new(), turned: P::new(), _items: PhantomData }
    }

    /// Gives an item, or gives it back if the queue is closed.
    pub(crate) fn give(&self, item: T) -> Result<(), T> {
        let node = Box::into_raw(Box::new(Node { item, next: null_mut() }));
        let mut seen = self.given.load();
        loop {
            if seen == closed() {
                // SAFETY: the node was made above and is not shared yet.
                return Err(unsafe { Box::from_raw(node) }.item);
            }
            // SAFETY: as above; it is still ours alone.
            unsafe { (*node).next = seen };
            match self.given.replace(seen, node) {
                Ok(()) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// The oldest item. For one thread at a time: two would mix up the order, and no more.
    pub(crate) fn take(&self) -> Option<T> {
        let list = take_list(&self.turned).or_else(|| take_list(&self.given).map(turned_over))?;
        // SAFETY: `take_list` gave us the list, and all nodes of a list are boxes that only its owner knows.
        let Node { item, next: rest } = *unsafe { Box::from_raw(list) };
        if !rest.is_null() && self.turned.replace(null_mut(), rest).is_err() {
            drop(List(rest)); // It was closed while we held the list.
        }
        Some(item)
    }

    /// Takes everything that is left; nothing can be given any more, and nothing taken.
    pub(crate) fn close(&self) -> Vec<T> {
        // The stack of given items first: then the taker finds nothing more to turn over.
        let given = self.given.swap(closed());
        let turned = self.turned.swap(closed());
        let given = if is_list(given) { turned_over(given) } else { null_mut() };
        let turned = if is_list(turned) { turned } else { null_mut() };
        List(turned).chain(List(given)).collect()
    }
}

/// Takes the whole list from a place, if there is one.
fn take_list<T>(place: &impl Place<T>) -> Option<*mut Node<T>> {
    let mut seen = place.load();
    while is_list(seen) {
        match place.replace(seen, null_mut()) {
            Ok(()) => return Some(seen),
            Err(now) => seen = now,
        }
    }
    None
}

/// Turns a list over. It must be the caller's.
fn turned_over<T>(mut list: *mut Node<T>) -> *mut Node<T> {
    let mut turned = null_mut();
    while !list.is_null() {
        // SAFETY: the caller owns the list, so its nodes are alive and no other thread reads them.
        let next = std::mem::replace(unsafe { &mut (*list).next }, turned);
        turned = std::mem::replace(&mut list, next);
    }
    turned
}

/// A list that is ours.
struct List<T>(*mut Node<T>);

impl<T> Iterator for List<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: the list is ours, and every node of it is a box that is taken apart once: we go on behind it.
        let Node { item, next } = *unsafe { Box::from_raw(self.0) };
        self.0 = next;
        Some(item)
    }
}

impl<T> Drop for List<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl<T, P: Place<T>> Drop for Inbox<T, P> {
    fn drop(&mut self) {
        for place in [&self.given, &self.turned] {
            let list = place.swap(closed());
            if is_list(list) {
                drop(List(list));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Give,
        Take,
        Close,
    }

    proptest! {
        #[test]
        fn it_is_a_plain_queue_until_it_is_closed_and_drops_each_item_once(
            steps in prop::collection::vec(
                prop_oneof![8 => Just(Step::Give), 7 => Just(Step::Take), 1 => Just(Step::Close)],
                0..60,
            ),
        ) {
            let (inbox, mut model) = (Inbox::<_>::new(), VecDeque::new());
            let mut items = Vec::new();
            let mut is_closed = false;
            for step in steps {
                match step {
                    Step::Give => {
                        let item = Arc::new(items.len());
                        items.push(Arc::downgrade(&item));
                        prop_assert_eq!(inbox.give(item).is_err(), is_closed);
                        if !is_closed {
                            model.push_back(items.len() - 1);
                        }
                    }
                    Step::Take => prop_assert_eq!(inbox.take().map(|item| *item), model.pop_front()),
                    Step::Close => {
                        let left: Vec<usize> = inbox.close().iter().map(|item| **item).collect();
                        prop_assert_eq!(left, model.drain(..).collect::<Vec<_>>());
                        is_closed = true;
                    }
                }
                let alive = items.iter().filter(|item| item.strong_count() > 0).count();
                prop_assert_eq!(alive, model.len());
            }
            drop(inbox);
            prop_assert!(items.iter().all(|item| item.strong_count() == 0));
        }
    }

    mod explored {
        use loom::cell::UnsafeCell;
        use loom::sync::Arc;
        use loom::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

        use super::super::*;

        /// A place whose exchanges hand over earlier writes, or do not.
        struct Explored<const HANDS_OVER: bool>(AtomicPtr<Node<Item>>);

        impl<const HANDS_OVER: bool> Explored<HANDS_OVER> {
            const ORDERING: Ordering = if HANDS_OVER { Ordering::AcqRel } else { Ordering::Relaxed };
        }

        impl<const HANDS_OVER: bool> Place<Item> for Explored<HANDS_OVER> {
            fn new() -> Self {
                Self(AtomicPtr::new(null_mut()))
            }

            fn load(&self) -> *mut Node<Item> {
                self.0.load(Ordering::Relaxed)
            }

            fn replace(&self, seen: *mut Node<Item>, list: *mut Node<Item>) -> Result<(), *mut Node<Item>> {
                self.0.compare_exchange(seen, list, Self::ORDERING, Ordering::Relaxed).map(drop)
            }

            fn swap(&self, list: *mut Node<Item>) -> *mut Node<Item> {
                self.0.swap(list, Self::ORDERING)
            }
        }

        /// Loom sees every look at it: two threads that have it at once, or one before it is whole, are found.
        struct Item {
            inside: UnsafeCell<()>,
            dropped: Arc<AtomicUsize>,
        }

        impl Item {
            fn new(dropped: &Arc<AtomicUsize>) -> Self {
                let inside = UnsafeCell::new(());
                inside.with_mut(|_| ());
                Self { inside, dropped: dropped.clone() }
            }
        }

        impl Drop for Item {
            fn drop(&mut self) {
                self.inside.with_mut(|_| ());
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }

        /// Two givers, a taker and a closer.
        fn explore<P: Place<Item> + Send + Sync + 'static>() {
            let mut model = loom::model::Builder::new();
            model.preemption_bound = Some(3);
            model.check(|| {
                let inbox = Arc::new(Inbox::<Item, P>::new());
                let dropped = Arc::new(AtomicUsize::new(0));
                assert!(inbox.give(Item::new(&dropped)).is_ok());
                let (giver, counts) = (inbox.clone(), dropped.clone());
                let gives = loom::thread::spawn(move || giver.give(Item::new(&counts)).is_ok());
                assert!(inbox.give(Item::new(&dropped)).is_ok());
                let taker = inbox.clone();
                let takes = loom::thread::spawn(move || std::iter::from_fn(|| taker.take()).take(2).count());
                let left = inbox.close().len();
                let (was_given, taken) = (gives.join().expect("it ends"), takes.join().expect("it ends"));
                assert!(left + taken <= 2 + usize::from(was_given));
                assert_eq!(dropped.load(Ordering::Relaxed), 3, "given back, taken, or left: each is dropped");
                assert!(inbox.take().is_none());
            });
        }

        #[test]
        fn no_interleaving_loses_an_item_or_gives_it_to_two() {
            explore::<Explored<true>>();
        }

        #[test]
        #[should_panic(expected = "Causality violation")]
        fn with_exchanges_that_hand_nothing_over_an_item_is_seen_before_it_is_whole() {
            explore::<Explored<false>>();
        }
    }
}
