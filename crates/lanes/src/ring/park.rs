//! Going to sleep without missing a message, and waking a sleeper only if there is one.
//!
//! A wake-up costs the waker two to three whole requests, so a lane that runs is never woken: it polls its rings every turn.
//! Before it sleeps it raises a flag, and *then* looks at its rings once more; a producer pushes, and *then* looks at the
//! flag. A full fence between the two steps on either side makes it impossible that both look too early.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::thread::futex;

use crate::ring::wake_set::WakeSet;

/// The two atomic steps of the protocol, so that loom can run it with its own.
pub(crate) trait ParkedFlag {
    fn set(&self, parked: bool);
    /// Clears the flag and says whether it was set.
    fn take(&self) -> bool;
    fn is_set(&self) -> bool;
    fn full_fence(&self);
}

impl ParkedFlag for AtomicU32 {
    fn set(&self, parked: bool) {
        self.store(u32::from(parked), Ordering::Relaxed);
    }

    fn take(&self) -> bool {
        self.swap(0, Ordering::Relaxed) != 0
    }

    fn is_set(&self) -> bool {
        self.load(Ordering::Relaxed) != 0
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

/// Parks a thread: the flag, and the object that ends its wait.
#[derive(Debug)]
pub(crate) struct Parker {
    /// A word and not a bool because the kernel can wait on it.
    parked: AtomicU32,
    woken_by: WokenBy,
}

#[derive(Debug)]
enum WokenBy {
    /// For a thread that waits for sockets too: a wait over several things needs a descriptor of each.
    Eventfd(OwnedFd),
    /// For a thread that waits for nothing else: half the system calls of a wake-up by descriptor, and none to open.
    Flag,
    /// For a lane that shares its thread with others: the thread is woken, and told for which lane.
    WakeSet(Arc<WakeSet>, u8),
}

impl Parker {
    /// For a thread that also waits for a socket.
    pub(crate) fn with_socket() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self::woken_by(WokenBy::Eventfd(fd)))
    }

    /// For a thread that waits for nothing but to be woken, and for lanes that a simulator steps, which never sleep.
    pub(crate) fn without_socket() -> Arc<Self> {
        Self::woken_by(WokenBy::Flag)
    }

    /// For a lane at this index of a shared thread.
    pub(crate) fn shared(wake_set: Arc<WakeSet>, index: u8) -> Arc<Self> {
        Self::woken_by(WokenBy::WakeSet(wake_set, index))
    }

    fn woken_by(woken_by: WokenBy) -> Arc<Self> {
        Arc::new(Self { parked: AtomicU32::new(0), woken_by })
    }

    /// Wakes the thread if it sleeps. Call once per batch, after the work is in its ring. Says whether it had to.
    pub(crate) fn wake(&self) -> bool {
        if !needs_wake(&self.parked) {
            return false;
        }
        // Neither can fail in a way that matters: a counter at its maximum is as readable as one at one, and a sleeper that is
        // not yet in the kernel finds its flag down and does not go there.
        match &self.woken_by {
            WokenBy::Eventfd(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            WokenBy::Flag => drop(futex::wake(&self.parked, futex::Flags::PRIVATE, 1)),
            WokenBy::WakeSet(wake_set, index) => wake_set.call(*index),
        }
        true
    }

    /// Announces sleep; the caller then checks its sources once more, and then sleeps or unparks.
    pub(crate) fn announce_sleep(&self) {
        announce_sleep(&self.parked);
    }

    /// Sleeps until woken, until `wait` is over, or until there is something to read from `socket`, and unparks.
    pub(crate) fn sleep(&self, wait: Duration, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let slept = match &self.woken_by {
            WokenBy::Eventfd(fd) => sleep_on(fd.as_fd(), socket, &timeout),
            WokenBy::Flag => futex::wait(&self.parked, futex::Flags::PRIVATE, 1, Some(&timeout)),
            // The shared thread sleeps for all its lanes.
            WokenBy::WakeSet(..) => Ok(()),
        };
        self.unpark();
        match slept {
            // Over, interrupted, or woken before the kernel had us: the caller looks again in each case.
            Ok(()) | Err(Errno::TIMEDOUT | Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Called instead of sleeping when the second look found work.
    pub(crate) fn unpark(&self) {
        self.parked.set(false);
    }
}

fn sleep_on(eventfd: BorrowedFd<'_>, socket: Option<BorrowedFd<'_>>, timeout: &Timespec) -> Result<(), Errno> {
    let waker = PollFd::from_borrowed_fd(eventfd, PollFlags::IN);
    let mut fds = [waker.clone(), socket.map_or(waker, |socket| PollFd::from_borrowed_fd(socket, PollFlags::IN))];
    let waited_on = 1 + usize::from(socket.is_some());
    poll(&mut fds[..waited_on], Some(timeout))?;
    if !fds[0].revents().is_empty() {
        // So that the next wait waits. Writes add up: one read takes them all.
        let _ = rustix::io::read(eventfd, &mut [0u8; 8]);
    }
    Ok(())
}

#[cfg(test)]
pub(in crate::ring) mod tests {
    use super::*;
    use loom::sync::atomic::{
        AtomicBool as LoomBool, AtomicUsize as LoomUsize, Ordering as LoomOrdering, fence as loom_fence,
    };

    pub(in crate::ring) struct LoomFlag(LoomBool);

    impl Default for LoomFlag {
        fn default() -> Self {
            Self(LoomBool::new(false))
        }
    }

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
    #[derive(Default)]
    pub(in crate::ring) struct Unfenced(LoomFlag);

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
            // It sleeps if it saw nothing; then exactly one producer woke it.
            assert!(seen > 0 || wakes == 1, "asleep with work in the ring");
            assert!(wakes <= 1, "one sleep is ended once");
        });
    }

    #[test]
    fn no_interleaving_loses_a_wake_up() {
        explore(LoomFlag::default);
    }

    #[test]
    #[should_panic(expected = "asleep with work")]
    fn without_the_fence_a_wake_up_is_lost() {
        explore(Unfenced::default);
    }

    fn parkers() -> [Arc<Parker>; 2] {
        [Parker::with_socket().unwrap(), Parker::without_socket()]
    }

    #[test]
    fn a_lane_that_is_awake_costs_its_waker_no_system_call() {
        for parker in parkers() {
            assert!(!parker.wake());
            parker.announce_sleep();
            assert!(parker.wake());
            assert!(!parker.wake(), "the second waker of the same sleep does nothing");
        }
    }

    /// The longest wait there is, which a test that hangs would wait for.
    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_thread_woken_between_announcing_and_sleeping_does_not_sleep() {
        for parker in parkers() {
            for _ in 0..3 {
                parker.announce_sleep();
                assert!(parker.wake());
                parker.sleep(LONG, None).unwrap();
                assert!(!parker.wake(), "it has risen");
            }
        }
    }

    #[test]
    fn a_sleeper_rises_when_it_is_woken_and_when_its_time_is_over() {
        for parker in parkers() {
            let sleeper = parker.clone();
            let thread = std::thread::spawn(move || {
                sleeper.announce_sleep();
                sleeper.sleep(LONG, None).unwrap();
            });
            while !parker.wake() {
                std::thread::yield_now();
            }
            thread.join().unwrap();
            parker.announce_sleep();
            parker.sleep(Duration::from_millis(1), None).unwrap();
            assert!(!parker.wake(), "it has risen");
        }
    }

    #[test]
    fn a_datagram_ends_the_sleep_beside_a_socket() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        let parker = Parker::with_socket().unwrap();
        parker.announce_sleep();
        parker.sleep(LONG, Some(socket.as_fd())).unwrap();
    }
}
