//! Calling one of many who sleep on one thread.
//!
//! A thread that carries many lanes sleeps once for all of them, so it must be told whom it was woken for. A caller notes the
//! place it calls in a word, and *then* wakes the thread if it sleeps; the thread announces its sleep, and *then* looks at the
//! words once more. It is the protocol of [`park`](crate::ring::park) with words for rings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use crate::ring::park::{ParkedFlag as _, announce_sleep, needs_wake};

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

    pub(crate) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    pub(crate) fn len(&self) -> usize {
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
        self.called[usize::from(place / 64)].fetch_or(1 << (place % 64), Ordering::Release);
        self.ring();
    }

    /// Wakes the thread if it sleeps, for something it looks at anyway.
    pub(crate) fn ring(&self) {
        if needs_wake(&self.parked) {
            // A counter at its maximum is as readable as one at one.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    /// Who was called since this was last asked.
    pub(crate) fn take_called(&self) -> Places {
        let mut called = Places::default();
        for (word, taken) in self.called.iter().zip(&mut called.0) {
            // Read first: most of the time there is nobody.
            if word.load(Ordering::Relaxed) != 0 {
                *taken = word.swap(0, Ordering::Acquire);
            }
        }
        called
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
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

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
