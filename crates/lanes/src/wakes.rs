//! Callers whose answers are there: the first is woken at once, and the others when the thread has done its round.
//!
//! To wake a thread takes as long as two or three requests, and the thread mostly has more calls under way: woken for each
//! answer, it would also give its next calls one by one. So of all callers answered in a round the first is woken at once, which
//! is all of them where calls come one after the other, and the rest together when every lane of the thread has had its turn. Where
//! one of them hangs they wait for it, as do all calls that lanes of the thread have taken.
//!
//! No waiter is forgotten: those that go with a lane that panics, or with its thread, are woken as they go.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Callers to wake. Of each lane no more than it has taken commands.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    waiting: Vec<Waker>,
    /// A waiter was woken in this round.
    has_woken: bool,
}

impl Wakes {
    /// Wakes the first of a round, and keeps the others.
    pub(crate) fn push(&mut self, waker: Waker) {
        if self.has_woken {
            self.waiting.push(waker);
        } else {
            self.has_woken = true;
            wake(waker);
        }
    }

    /// A lane's turn begins in the round of `thread`.
    pub(crate) fn follow(&mut self, thread: &Self) {
        self.has_woken |= thread.has_woken;
    }

    /// The turn of `lane` is over: takes over the callers it has kept.
    pub(crate) fn take_from(&mut self, lane: &mut Self) {
        self.waiting.append(&mut lane.waiting);
        self.has_woken |= std::mem::take(&mut lane.has_woken);
    }

    /// The round is over: wakes all waiters.
    pub(crate) fn wake(&mut self) {
        self.has_woken = false;
        self.waiting.drain(..).for_each(wake);
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake();
    }
}

/// A waker runs the executor's code. Its panic must not let others sleep on, or end a lane.
fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Panicking;

    impl Wake for Panicking {
        fn wake(self: Arc<Self>) {
            panic!("an executor is at fault");
        }
    }

    #[test]
    fn every_waker_is_woken_once_by_its_last_owner_also_beside_one_that_panics() {
        let counting = Arc::new(Counting::default());
        let woken = || counting.0.load(Ordering::Relaxed);
        let (mut lane, mut other, mut thread) = (Wakes::default(), Wakes::default(), Wakes::default());
        for round in 0..2 {
            lane.follow(&thread);
            lane.push(counting.clone().into());
            assert_eq!(woken(), round * 4 + 1, "the first of a round");
            lane.push(Arc::new(Panicking).into());
            lane.push(counting.clone().into());
            thread.take_from(&mut lane);
            other.follow(&thread);
            other.push(counting.clone().into());
            thread.take_from(&mut other);
            assert_eq!(woken(), round * 4 + 1, "the thread has them now");
            thread.wake();
            thread.wake();
            assert_eq!(woken(), round * 4 + 3);
            lane.push(Arc::new(Panicking).into());
            lane.push(counting.clone().into());
            assert_eq!(woken(), round * 4 + 3);
            drop(std::mem::take(&mut lane));
            assert_eq!(woken(), round * 4 + 4, "a dropped queue wakes its waiters");
        }
    }
}
