//! One item read while nothing else is, in the whole process.
//!
//! Threads of one process die together. If several read at that moment, nobody can tell whose file it was. So an item that is read with
//! care is read alone, and pages that are read without care hold a share of the same gate. This is state of the process
//! because death is.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Who reads.
#[derive(Debug)]
struct Readers {
    together: usize,
    is_alone: bool,
    /// Those that wait to be alone: nobody else begins before them.
    waiting: usize,
}

static READERS: Mutex<Readers> = Mutex::new(Readers { together: 0, is_alone: false, waiting: 0 });
static CHANGED: Condvar = Condvar::new();

/// How long to wait before a lease is looked after.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A share of the gate.
#[derive(Debug)]
pub(crate) struct Together(());

/// The whole gate.
#[derive(Debug)]
pub(crate) struct Alone(());

/// Waits until nothing is read alone. `None` as soon as `goes_on` is false.
pub(crate) fn together(goes_on: &mut dyn FnMut() -> bool) -> Option<Together> {
    let mut readers = lock();
    while readers.is_alone || readers.waiting > 0 {
        readers = wait(readers, goes_on)?;
    }
    readers.together += 1;
    Some(Together(()))
}

/// Waits until nothing is read at all. `None` as soon as `goes_on` is false.
pub(crate) fn alone(goes_on: &mut dyn FnMut() -> bool) -> Option<Alone> {
    let mut readers = lock();
    readers.waiting += 1;
    while readers.is_alone || readers.together > 0 {
        match wait(readers, goes_on) {
            Some(kept) => readers = kept,
            None => {
                lock().waiting -= 1;
                CHANGED.notify_all();
                return None;
            }
        }
    }
    readers.waiting -= 1;
    readers.is_alone = true;
    Some(Alone(()))
}

fn lock() -> MutexGuard<'static, Readers> {
    // Nothing panics while it is held.
    READERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Lets go of the lock while it waits and while `goes_on` is asked, which may take as long as a coordinator does.
fn wait(
    readers: MutexGuard<'static, Readers>,
    goes_on: &mut dyn FnMut() -> bool,
) -> Option<MutexGuard<'static, Readers>> {
    let (readers, timed) =
        CHANGED.wait_timeout(readers, LOOK_INTERVAL).unwrap_or_else(|poisoned| poisoned.into_inner());
    if !timed.timed_out() {
        return Some(readers);
    }
    drop(readers);
    goes_on().then(lock)
}

impl Drop for Together {
    fn drop(&mut self) {
        lock().together -= 1;
        CHANGED.notify_all();
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        lock().is_alone = false;
        CHANGED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn what_is_read_alone_is_read_alone() {
        let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (inside, most) = (&inside, &most);
                scope.spawn(move || {
                    for round in 0..200 {
                        if (thread + round) % 5 == 0 {
                            let _alone = alone(&mut || true).unwrap();
                            assert_eq!(inside.fetch_add(100, Ordering::SeqCst), 0);
                            std::thread::yield_now();
                            assert_eq!(inside.fetch_sub(100, Ordering::SeqCst), 100);
                        } else {
                            let _together = together(&mut || true).unwrap();
                            let others = inside.fetch_add(1, Ordering::SeqCst);
                            assert!(others < 100);
                            most.fetch_max(others, Ordering::SeqCst);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(inside.into_inner(), 0);
    }

    #[test]
    fn a_reader_whose_lease_is_gone_does_not_wait_on() {
        let share = together(&mut || true).unwrap();
        assert!(alone(&mut || false).is_none());
        drop(share);
        let whole = alone(&mut || true).unwrap();
        assert!(together(&mut || false).is_none());
        drop(whole);
        together(&mut || true).unwrap();
    }
}
