//! Waking one of many tasks that sleep on one thread.
//!
//! A thread shared by many lanes sleeps once for all of them, so a waker must tell it for which lane. A caller notes the
//! index it calls in a word, and *then* wakes the thread if it sleeps; the thread announces its sleep, and *then* looks at the
//! words once more. It is the protocol of [`park`](crate::ring::park) with words for rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::ring::park::{ParkedFlag, announce_sleep, needs_wake};

/// How many tasks one thread can have.
pub(crate) const TASKS_PER_THREAD_MAX: usize = 256;
const WORDS: usize = TASKS_PER_THREAD_MAX / u64::BITS as usize;

/// A set of indices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IndexSet([u64; WORDS]);

impl IndexSet {
    pub(crate) fn add(&mut self, index: u8) {
        self.0[usize::from(index / 64)] |= 1 << (index % 64);
    }

    pub(crate) fn remove(&mut self, index: u8) {
        self.0[usize::from(index / 64)] &= !(1 << (index % 64));
    }

    pub(crate) fn add_all(&mut self, others: Self) {
        for (word, other) in self.0.iter_mut().zip(others.0) {
            *word |= other;
        }
    }

    pub(crate) fn has(&self, index: u8) -> bool {
        self.0[usize::from(index / 64)] & (1 << (index % 64)) != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The first that is not in the set.
    pub(crate) fn first_missing(&self) -> Option<u8> {
        let word = self.0.iter().position(|word| *word != u64::MAX)?;
        Some(word as u8 * 64 + self.0[word].trailing_ones() as u8)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u8> {
        self.0.into_iter().enumerate().flat_map(|(at, mut word)| {
            std::iter::from_fn(move || {
                let bit = word.trailing_zeros();
                (word != 0).then(|| word &= word - 1)?;
                Some(at as u8 * 64 + bit as u8)
            })
        })
    }
}

/// The atomic steps on a word of indices, so that loom can run them with its own.
trait Word {
    fn add(&self, bits: u64);
    fn is_empty(&self) -> bool;
    fn take(&self) -> u64;
}

impl Word for AtomicU64 {
    fn add(&self, bits: u64) {
        self.fetch_or(bits, Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        self.load(Ordering::Relaxed) == 0
    }

    fn take(&self) -> u64 {
        self.swap(0, Ordering::Acquire)
    }
}

/// The caller's half: notes the index, and says whether the thread needs a wake-up from us.
fn call(words: &[impl Word], parked: &impl ParkedFlag, index: u8) -> bool {
    words[usize::from(index / 64)].add(1 << (index % 64));
    needs_wake(parked)
}

/// Takes the indices called since the last call.
fn take_called(words: &[impl Word]) -> IndexSet {
    let mut called = IndexSet::default();
    for (word, taken) in words.iter().zip(&mut called.0) {
        // Read first: most of the time no index is set.
        if !word.is_empty() {
            *taken = word.take();
        }
    }
    called
}

/// Wakes a shared thread, and records for which tasks.
#[derive(Debug)]
pub(crate) struct WakeSet {
    called: [AtomicU64; WORDS],
    parked: AtomicU32,
    fd: OwnedFd,
}

impl WakeSet {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { called: Default::default(), parked: AtomicU32::new(0), fd })
    }

    /// Marks the task at this index as called, and wakes the thread if it sleeps.
    pub(crate) fn call(&self, index: u8) {
        if call(&self.called, &self.parked, index) {
            // A counter at its maximum is as readable as one at one.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Takes the indices called since the last call.
    pub(crate) fn take_called(&self) -> IndexSet {
        take_called(&self.called)
    }

    /// Announces sleep; the thread then looks at everything once more, and then waits for the descriptor or unparks.
    pub(crate) fn announce_sleep(&self) {
        announce_sleep(&self.parked);
    }

    /// The thread is awake.
    pub(crate) fn unpark(&self) {
        self.parked.set(false);
    }

    /// Readable once the thread has been woken.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// So that the next wait waits.
    pub(crate) fn silence(&self) {
        let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::park::tests::{LoomFlag, Unfenced};
    use loom::sync::Arc as LoomArc;
    use loom::sync::atomic::{AtomicU64 as LoomU64, AtomicUsize as LoomUsize, Ordering as LoomOrdering};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    struct LoomWord(LoomU64);

    impl Word for LoomWord {
        fn add(&self, bits: u64) {
            self.0.fetch_or(bits, LoomOrdering::Release);
        }
        fn is_empty(&self) -> bool {
            self.0.load(LoomOrdering::Relaxed) == 0
        }
        fn take(&self) -> u64 {
            self.0.swap(0, LoomOrdering::Acquire)
        }
    }

    /// State that a thread with two lanes shares with their producers.
    struct Shared<F> {
        rings: [LoomUsize; 2],
        parkers: [F; 2],
        words: [LoomWord; 1],
        parked: F,
        wakes: LoomUsize,
    }

    /// Producers have a message for each of two lanes, while the lanes park one after the other and their thread goes to sleep.
    /// It must see that a lane was called, or be woken, or the lane must have seen its message while parking.
    fn explore<F: ParkedFlag + Default + Send + Sync + 'static>(looks_again: bool) {
        // With up to three preemptions, which is where such bugs live; without that bound it takes minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = LoomArc::new(Shared {
                rings: [(); 2].map(|()| LoomUsize::new(0)),
                parkers: [(); 2].map(|()| F::default()),
                words: [LoomWord(LoomU64::new(0))],
                parked: F::default(),
                wakes: LoomUsize::new(0),
            });
            let producers = [0, 1].map(|lane: u8| {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    shared.rings[usize::from(lane)].fetch_add(1, LoomOrdering::Release);
                    if needs_wake(&shared.parkers[usize::from(lane)]) && call(&shared.words, &shared.parked, lane) {
                        shared.wakes.fetch_add(1, LoomOrdering::Release);
                    }
                })
            });
            let mut ready = IndexSet::default();
            for (lane, parker) in shared.parkers.iter().enumerate() {
                announce_sleep(parker);
                if shared.rings[lane].load(LoomOrdering::Acquire) > 0 {
                    parker.set(false);
                    ready.add(lane as u8);
                }
            }
            announce_sleep(&shared.parked);
            if looks_again {
                ready.add_all(take_called(&shared.words));
            }
            for producer in producers {
                producer.join().expect("producers do not panic");
            }
            let wakes = shared.wakes.load(LoomOrdering::Acquire);
            assert!(wakes <= 1, "one sleep is ended once");
            // It sleeps if no lane is ready; then a producer woke it. Awake, it looks which lanes were called.
            assert!(!ready.is_empty() || wakes == 1, "asleep with work in a ring");
            ready.add_all(take_called(&shared.words));
            assert_eq!(ready.iter().collect::<Vec<_>>(), [0, 1], "a lane sleeps on with work in its ring");
        });
    }

    #[test]
    fn no_interleaving_loses_a_call() {
        explore::<LoomFlag>(true);
    }

    #[test]
    #[should_panic(expected = "with work in")]
    fn without_the_second_look_a_call_is_lost() {
        explore::<LoomFlag>(false);
    }

    #[test]
    #[should_panic(expected = "with work in")]
    fn without_the_fences_a_call_is_lost() {
        explore::<Unfenced>(true);
    }

    fn is_ringing(wake_set: &WakeSet) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(wake_set.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn places_are_a_set_of_256() {
        let mut indices = IndexSet::default();
        assert!(indices.is_empty());
        for index in 0..=255 {
            assert_eq!((indices.first_missing(), indices.len()), (Some(index), usize::from(index)));
            indices.add(index);
        }
        assert_eq!(indices.first_missing(), None);
        assert!(indices.iter().eq(0..=255));
        for index in [0, 63, 64, 200, 255] {
            indices.remove(index);
        }
        assert_eq!((indices.first_missing(), indices.len()), (Some(0), 251));
        let mut few = IndexSet::default();
        few.add(64);
        few.add_all(few);
        let mut other = IndexSet::default();
        other.add(255);
        few.add_all(other);
        assert_eq!(few.iter().collect::<Vec<_>>(), [64, 255]);
    }

    #[test]
    fn a_called_thread_is_told_once_and_woken_only_if_it_sleeps() {
        let wake_set = WakeSet::new().unwrap();
        for index in [3, 70, 255] {
            wake_set.call(index);
        }
        assert!(!is_ringing(&wake_set), "a thread that is awake costs its callers no system call");
        assert_eq!(wake_set.take_called().iter().collect::<Vec<_>>(), [3, 70, 255]);
        assert!(wake_set.take_called().is_empty());
        wake_set.announce_sleep();
        wake_set.call(70);
        assert!(is_ringing(&wake_set));
        wake_set.silence();
        assert!(!is_ringing(&wake_set));
        wake_set.call(3);
        assert!(!is_ringing(&wake_set), "one sleep is ended once");
        wake_set.unpark();
        assert_eq!(wake_set.take_called().iter().collect::<Vec<_>>(), [3, 70]);
    }
}
