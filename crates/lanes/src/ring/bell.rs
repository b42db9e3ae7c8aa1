//! Calling one of many who sleep on one thread.
//!
//! A thread that carries many lanes sleeps once for all of them, so it must be told whom it was woken for. A caller notes the
//! place it calls in a word, and *then* wakes the thread if it sleeps; the thread announces its sleep, and *then* looks at the
//! words once more. It is the protocol of [`park`](crate::ring::park) with words for rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::ring::park::{ParkedFlag, announce_sleep, needs_wake};

/// How many can sleep on one thread.
pub(crate) const PLACES: usize = 256;
const WORDS: usize = PLACES / u64::BITS as usize;

/// A set of places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places([u64; WORDS]);

impl Places {
    pub(crate) fn add(&mut self, place: u8) {
        self.0[usize::from(place / 64)] |= 1 << (place % 64);
    }

    pub(crate) fn remove(&mut self, place: u8) {
        self.0[usize::from(place / 64)] &= !(1 << (place % 64));
    }

    pub(crate) fn add_all(&mut self, others: Self) {
        for (word, other) in self.0.iter_mut().zip(others.0) {
            *word |= other;
        }
    }

    pub(crate) fn has(&self, place: u8) -> bool {
        self.0[usize::from(place / 64)] & (1 << (place % 64)) != 0
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

/// The atomic steps on a word of places, so that loom can run them with its own.
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

/// The caller's half: notes the place, and says whether the thread needs a wake-up from us.
fn call(words: &[impl Word], parked: &impl ParkedFlag, place: u8) -> bool {
    words[usize::from(place / 64)].add(1 << (place % 64));
    needs_wake(parked)
}

/// Who was called since this was last asked.
fn take_called(words: &[impl Word]) -> Places {
    let mut called = Places::default();
    for (word, taken) in words.iter().zip(&mut called.0) {
        // Read first: most of the time there is nobody.
        if !word.is_empty() {
            *taken = word.take();
        }
    }
    called
}

/// What a thread that carries many is woken by, and where it reads whom for.
#[derive(Debug)]
pub(crate) struct Bell {
    called: [AtomicU64; WORDS],
    parked: AtomicU32,
    fd: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { called: Default::default(), parked: AtomicU32::new(0), fd })
    }

    /// Calls whoever has this place.
    pub(crate) fn call(&self, place: u8) {
        if call(&self.called, &self.parked, place) {
            // A counter at its maximum is as readable as one at one.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Who was called since this was last asked.
    pub(crate) fn take_called(&self) -> Places {
        take_called(&self.called)
    }

    /// Announces sleep; the thread then looks at everything once more, and then waits for the descriptor or rises.
    pub(crate) fn announce_sleep(&self) {
        announce_sleep(&self.parked);
    }

    /// The thread is awake.
    pub(crate) fn rise(&self) {
        self.parked.set(false);
    }

    /// What is readable once somebody has woken the thread.
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

    /// What a thread that carries two lanes shares with those who have something for them.
    struct Shared<F> {
        rings: [LoomUsize; 2],
        beds: [F; 2],
        words: [LoomWord; 1],
        parked: F,
        wakes: LoomUsize,
    }

    /// Somebody has a message for each of two lanes, while the lanes lie down one after the other and their thread goes to sleep.
    /// It must see that a lane was called, or be woken, or the lane must have seen its message as it lay down.
    fn explore<F: ParkedFlag + Default + Send + Sync + 'static>(looks_again: bool) {
        // With up to three preemptions, which is where such bugs live; without that bound it takes minutes.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = LoomArc::new(Shared {
                rings: [(); 2].map(|()| LoomUsize::new(0)),
                beds: [(); 2].map(|()| F::default()),
                words: [LoomWord(LoomU64::new(0))],
                parked: F::default(),
                wakes: LoomUsize::new(0),
            });
            let producers = [0, 1].map(|lane: u8| {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    shared.rings[usize::from(lane)].fetch_add(1, LoomOrdering::Release);
                    if needs_wake(&shared.beds[usize::from(lane)]) && call(&shared.words, &shared.parked, lane) {
                        shared.wakes.fetch_add(1, LoomOrdering::Release);
                    }
                })
            });
            let mut ready = Places::default();
            for (lane, bed) in shared.beds.iter().enumerate() {
                announce_sleep(bed);
                if shared.rings[lane].load(LoomOrdering::Acquire) > 0 {
                    bed.set(false);
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
            // It sleeps if nobody is ready; then somebody woke it. Awake, it looks who was called.
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

    fn is_ringing(bell: &Bell) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn places_are_a_set_of_256() {
        let mut places = Places::default();
        assert!(places.is_empty());
        for place in 0..=255 {
            assert_eq!((places.first_missing(), places.len()), (Some(place), usize::from(place)));
            places.add(place);
        }
        assert_eq!(places.first_missing(), None);
        assert!(places.iter().eq(0..=255));
        for place in [0, 63, 64, 200, 255] {
            places.remove(place);
        }
        assert_eq!((places.first_missing(), places.len()), (Some(0), 251));
        let mut few = Places::default();
        few.add(64);
        few.add_all(few);
        let mut other = Places::default();
        other.add(255);
        few.add_all(other);
        assert_eq!(few.iter().collect::<Vec<_>>(), [64, 255]);
    }

    #[test]
    fn who_is_called_is_told_once_and_only_a_sleeper_is_woken() {
        let bell = Bell::new().unwrap();
        for place in [3, 70, 255] {
            bell.call(place);
        }
        assert!(!is_ringing(&bell), "a thread that is awake costs its callers no system call");
        assert_eq!(bell.take_called().iter().collect::<Vec<_>>(), [3, 70, 255]);
        assert!(bell.take_called().is_empty());
        bell.announce_sleep();
        bell.call(70);
        assert!(is_ringing(&bell));
        bell.silence();
        assert!(!is_ringing(&bell));
        bell.call(3);
        assert!(!is_ringing(&bell), "one sleep is ended once");
        bell.rise();
        assert_eq!(bell.take_called().iter().collect::<Vec<_>>(), [3, 70]);
    }
}
