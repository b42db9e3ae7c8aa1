//! A bounded number of callers served side by side.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Between two looks for a free place.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The places there are.
#[derive(Debug)]
pub(crate) struct Places {
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// One of them, free again when this is dropped: also by a caller's thread that panics.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self { taken: Arc::default(), most }
    }

    /// Takes a place, for which it waits; `None` once `stop` is raised. For one thread: two might take the last place.
    pub(crate) fn take(&self, stop: &AtomicBool) -> Option<Place> {
        while self.taken.load(Ordering::Relaxed) >= self.most {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Place(self.taken.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_after_a_panic_and_no_thread_waits_for_one_after_the_end() {
        let (places, stop) = (Places::new(1), AtomicBool::new(false));
        let place = places.take(&stop).unwrap();
        let served = std::thread::spawn(move || {
            let _place = place;
            panic!("on purpose");
        });
        assert!(served.join().is_err());
        let _place = places.take(&stop).unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(places.take(&stop).is_none());
    }
}
