//! Callers whose answers are there, woken once the thread has done what it has to do.
//!
//! To wake a thread takes as long as two or three requests, and it is mostly one that has more calls under way: woken for each
//! answer, it would also give its next calls one by one. So whoever a lane answers is gathered here and woken with all others when
//! every lane of the thread has had its turn. Where one of them hangs they wait for it, as do all calls that lanes of the
//! thread have taken.
//!
//! Nobody is forgotten: what goes with a lane that panics, or with its thread, is woken as it goes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Who is to be woken. Of each lane no more than it has taken commands.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Vec<Waker>);

impl Wakes {
    pub(crate) fn push(&mut self, waker: Waker) {
        self.0.push(waker);
    }

    /// Takes over whom `lane` was to wake.
    pub(crate) fn take_from(&mut self, lane: &mut Self) {
        self.0.append(&mut lane.0);
    }

    /// Wakes everybody.
    pub(crate) fn wake(&mut self) {
        for waker in self.0.drain(..) {
            // What a waker does is its executor's. One that panics is no reason for others to sleep on, or for a lane to die.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

impl Drop for Wakes {
    fn drop(&mut self) {
        self.wake();
    }
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
    fn everybody_is_woken_once_by_whoever_has_them_last_and_beside_one_that_panics() {
        let counting = Arc::new(Counting::default());
        let (mut lane, mut thread) = (Wakes::default(), Wakes::default());
        lane.push(counting.clone().into());
        lane.push(Arc::new(Panicking).into());
        lane.push(counting.clone().into());
        thread.take_from(&mut lane);
        drop(lane);
        assert_eq!(counting.0.load(Ordering::Relaxed), 0, "the thread has them now");
        thread.wake();
        thread.wake();
        assert_eq!(counting.0.load(Ordering::Relaxed), 2);
        thread.push(counting.clone().into());
        drop(thread);
        assert_eq!(counting.0.load(Ordering::Relaxed), 3, "what goes away forgets nobody");
    }
}
