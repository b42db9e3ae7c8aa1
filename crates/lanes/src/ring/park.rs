//! Going to sleep without missing a message, and waking a sleeper only if there is one.
//!
//! A wake-up costs the waker two to three whole requests, so a lane that runs is never woken: it polls its rings every turn.
//! Before it sleeps it raises a flag, and *then* looks at its rings once more; a producer pushes, and *then* looks at the
//! flag. A full fence between the two steps on either side makes it impossible that both look too early.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// The two atomic steps of the protocol, so that loom can run it with its own.
pub(crate) trait ParkedFlag {
    fn set(&self, parked: bool);
    /// Clears the flag and says whether it was set.
    fn take(&self) -> bool;
    fn is_set(&self) -> bool;
    fn full_fence(&self);
}

impl ParkedFlag for AtomicBool {
    fn set(&self, parked: bool) {
        self.store(parked, Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.swap(false, Ordering::Relaxed)
    }

    fn is_set(&self) -> bool {
        self.load(Ordering::Relaxed)
    }

    fn full_fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The sleeper's half: after this, look at every source of work once more, and sleep only if all are empty.
pub(crate) fn announce_sleep(flag: &impl ParkedFlag) {
    flag.set(true);
    flag.full_fence();
}

/// The waker's half, after work was published: whether the sleeper needs a wake-up from us.
pub(crate) fn needs_wake(flag: &impl ParkedFlag) -> bool {
    flag.full_fence();
    // Read first: the swap would take the cache line from a lane that is wide awake. Of several wakers one wins it.
    flag.is_set() && flag.take()
}

/// A lane's bed: the flag and, in a real runtime, the eventfd that ends its wait.
#[derive(Debug)]
pub(crate) struct Bed {
    parked: AtomicBool,
    eventfd: Option<OwnedFd>,
}

impl Bed {
    /// For lanes with a thread of their own.
    pub(crate) fn with_eventfd() -> std::io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self { parked: AtomicBool::new(false), eventfd: Some(fd) }))
    }

    /// For lanes that are stepped by a simulator and never sleep.
    pub(crate) fn never_sleeps() -> Arc<Self> {
        Arc::new(Self { parked: AtomicBool::new(false), eventfd: None })
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.eventfd.as_ref().map(AsFd::as_fd)
    }

    /// Wakes the lane if it sleeps. Call once per batch, after the work is in its ring. Says whether it had to.
    pub(crate) fn wake(&self) -> bool {
        if !needs_wake(&self.parked) {
            return false;
        }
        if let Some(fd) = &self.eventfd {
            // Cannot fail in a way that matters: a counter at its maximum is as readable as one at one.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
        true
    }

    /// Announces sleep; the caller then checks its sources once more.
    pub(crate) fn announce_sleep(&self) {
        announce_sleep(&self.parked);
    }

    /// Called after sleeping, or instead of it when the second look found work.
    pub(crate) fn rise(&self) {
        self.parked.set(false);
    }

    /// Empties the eventfd, so that the next wait waits. Writes coalesce: one read takes them all.
    pub(crate) fn drain_eventfd(&self) {
        if let Some(fd) = &self.eventfd {
            let mut counter = [0u8; 8];
            let _ = rustix::io::read(fd, &mut counter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic::{
        AtomicBool as LoomBool, AtomicUsize as LoomUsize, Ordering as LoomOrdering, fence as loom_fence,
    };

    struct LoomFlag(LoomBool);

    impl ParkedFlag for LoomFlag {
        fn set(&self, parked: bool) {
            self.0.store(parked, LoomOrdering::Relaxed);
        }
        fn take(&self) -> bool {
            self.0.swap(false, LoomOrdering::Relaxed)
        }
        fn is_set(&self) -> bool {
            self.0.load(LoomOrdering::Relaxed)
        }
        fn full_fence(&self) {
            loom_fence(LoomOrdering::SeqCst);
        }
    }

    /// The same flag without the fence, to show that the model can see the bug it guards against.
    struct Unfenced(LoomFlag);

    impl ParkedFlag for Unfenced {
        fn set(&self, parked: bool) {
            self.0.set(parked);
        }
        fn take(&self) -> bool {
            self.0.take()
        }
        fn is_set(&self) -> bool {
            self.0.is_set()
        }
        fn full_fence(&self) {}
    }

    /// Two producers publish one message each while the lane goes to sleep once. The lane must see a message
    /// on its second look, or be woken.
    fn explore<F: ParkedFlag + Send + Sync + 'static>(make: fn() -> F) {
        loom::model(move || {
            let flag = loom::sync::Arc::new(make());
            let ring = loom::sync::Arc::new(LoomUsize::new(0));
            let wakes = loom::sync::Arc::new(LoomUsize::new(0));
            let producers: Vec<_> = (0..2)
                .map(|_| {
                    let (flag, ring, wakes) = (flag.clone(), ring.clone(), wakes.clone());
                    loom::thread::spawn(move || {
                        ring.fetch_add(1, LoomOrdering::Release);
                        if needs_wake(&*flag) {
                            wakes.fetch_add(1, LoomOrdering::Release);
                        }
                    })
                })
                .collect();
            announce_sleep(&*flag);
            let seen = ring.load(LoomOrdering::Acquire);
            for producer in producers {
                producer.join().expect("producers do not panic");
            }
            let wakes = wakes.load(LoomOrdering::Acquire);
            // It sleeps if it saw nothing; then somebody woke it, and only one did.
            assert!(seen > 0 || wakes == 1, "asleep with work in the ring");
            assert!(wakes <= 1, "one sleep is ended once");
        });
    }

    #[test]
    fn no_interleaving_loses_a_wake_up() {
        explore(|| LoomFlag(LoomBool::new(false)));
    }

    #[test]
    #[should_panic(expected = "asleep with work")]
    fn without_the_fence_a_wake_up_is_lost() {
        explore(|| Unfenced(LoomFlag(LoomBool::new(false))));
    }

    #[test]
    fn a_lane_that_is_awake_costs_its_waker_no_system_call() {
        let bed = Bed::with_eventfd().unwrap();
        assert!(!bed.wake());
        bed.announce_sleep();
        assert!(bed.wake());
        assert!(!bed.wake(), "the second waker of the same sleep does nothing");
    }
}
