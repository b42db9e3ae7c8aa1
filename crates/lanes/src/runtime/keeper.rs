//! One thread for the supervisors of all runtimes of a process.
//!
//! A supervisor has little to do: now and then it looks at its lanes. A thread for each would cost a process of many runtimes more
//! memory than a lane's routing table, and ten wake-ups a second each. So they take turns on one. It is there while there is a
//! runtime. The bargain is that a turn never waits: not for a lane, not for a disk; what takes time is looked at again in the
//! next turn. A supervisor that panics is gone alone.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::runtime::lock;

/// Somebody who is given turns.
pub(super) trait Kept: Send {
    /// Does what there is to do, without waiting for anything, and says after how long it wants the next turn at the latest; none
    /// when it is done for good.
    fn turn(&mut self) -> Option<Duration>;
}

/// The sending end of a kept one's inbox: whoever sends also sees to it that it is read.
pub(super) struct Caller<R> {
    inbox: Sender<R>,
    called: Arc<AtomicBool>,
}

impl<R> Caller<R> {
    /// A way to call somebody, and what it has of it: the flag goes to [`keep`] with it.
    pub(super) fn new() -> (Self, Receiver<R>) {
        let (inbox, receiver) = channel();
        (Self { inbox, called: Arc::default() }, receiver)
    }

    /// Sends, unless nobody will ever read it.
    pub(super) fn send(&self, request: R) -> Result<(), SendError<R>> {
        self.inbox.send(request)?;
        self.called.store(true, Ordering::Release);
        ring();
        Ok(())
    }
}

impl<R> Clone for Caller<R> {
    fn clone(&self) -> Self {
        Self { inbox: self.inbox.clone(), called: self.called.clone() }
    }
}

impl<R> fmt::Debug for Caller<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Caller")
    }
}

/// What the keeper's thread and others know together.
struct Desk {
    arrivals: Vec<Place>,
    rung: bool,
    is_staffed: bool,
}

/// One that is kept, and when its next turn is.
struct Place {
    kept: Box<dyn Kept>,
    called: Arc<AtomicBool>,
    due: Instant,
    /// Dropped after it.
    _leaving: Leaving,
}

/// Tells who waits that one who was kept is gone.
#[derive(Clone, Debug, Default)]
pub(super) struct Departure(Arc<(Mutex<bool>, Condvar)>);

impl Departure {
    /// Waits until it is gone.
    pub(super) fn wait(&self) {
        let (gone, changed) = &*self.0;
        drop(changed.wait_while(lock(gone), |gone| !*gone));
    }
}

struct Leaving(Departure);

impl Drop for Leaving {
    fn drop(&mut self) {
        let (gone, changed) = &*self.0.0;
        *lock(gone) = true;
        changed.notify_all();
    }
}

static DESK: Mutex<Desk> = Mutex::new(Desk { arrivals: Vec::new(), rung: false, is_staffed: false });
static BELL: Condvar = Condvar::new();

fn ring() {
    lock(&DESK).rung = true;
    BELL.notify_one();
}

/// One for whose turns there is no thread, and why.
pub(super) struct NotKept {
    pub(super) kept: Box<dyn Kept>,
    pub(super) error: io::Error,
}

impl fmt::Debug for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotKept({})", self.error)
    }
}

/// Gives `kept` turns from now on: at once, whenever `caller` is used, and when it wants one.
pub(super) fn keep<R>(kept: Box<dyn Kept>, caller: &Caller<R>) -> Result<Departure, NotKept> {
    let departure = Departure::default();
    let _leaving = Leaving(departure.clone());
    let mut desk = lock(&DESK);
    if !desk.is_staffed {
        if let Err(error) = std::thread::Builder::new().name("lanes".to_owned()).spawn(serve) {
            return Err(NotKept { kept, error });
        }
        desk.is_staffed = true;
    }
    desk.arrivals.push(Place { kept, called: caller.called.clone(), due: Instant::now(), _leaving });
    drop(desk);
    ring();
    Ok(departure)
}

/// Gives everybody turns until nobody is left.
fn serve() {
    let origin = Instant::now();
    let mut places: Vec<Place> = Vec::new();
    loop {
        let mut desk = lock(&DESK);
        while !desk.rung
            && let Some(due) = places.iter().map(|place| place.due).min()
        {
            let wait = due.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                break;
            }
            desk = BELL.wait_timeout(desk, wait).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        desk.rung = false;
        places.append(&mut desk.arrivals);
        if places.is_empty() {
            desk.is_staffed = false;
            return;
        }
        drop(desk);
        places.retain_mut(|place| {
            if !place.called.swap(false, Ordering::Acquire) && place.due > Instant::now() {
                return true;
            }
            // One that panics is dropped in the middle of what it did; the others go on.
            let next = catch_unwind(AssertUnwindSafe(|| place.kept.turn())).unwrap_or_default();
            next.is_some_and(|pause| {
                place.due = next_beat(origin, Instant::now(), pause);
                true
            })
        });
    }
}

/// The first multiple of `pause` since `origin` that is after `now`: those who want the same pause are woken for together.
fn next_beat(origin: Instant, now: Instant, pause: Duration) -> Instant {
    let (since, pause) = (now.saturating_duration_since(origin), pause.max(Duration::from_millis(1)));
    let late = Duration::from_nanos((since.as_nanos() % pause.as_nanos()) as u64);
    now + (pause - late)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So long a test waits for something that must happen; it does not measure.
    const PATIENCE: Duration = Duration::from_secs(30);
    /// So long nobody is given a turn without being called.
    const LONG: Duration = Duration::from_secs(3600);

    /// Says on which thread it has its turns, what it was told, and does what it is told.
    struct Told {
        inbox: Receiver<&'static str>,
        says: Sender<(std::thread::ThreadId, Vec<&'static str>)>,
    }

    impl Kept for Told {
        fn turn(&mut self) -> Option<Duration> {
            let told: Vec<&str> = self.inbox.try_iter().collect();
            let _ = self.says.send((std::thread::current().id(), told.clone()));
            assert!(!told.contains(&"panic"), "as it was told");
            (!told.contains(&"leave")).then_some(LONG)
        }
    }

    struct Somebody {
        caller: Caller<&'static str>,
        heard: Receiver<(std::thread::ThreadId, Vec<&'static str>)>,
        departure: Departure,
    }

    impl Somebody {
        fn new() -> Self {
            let (caller, inbox) = Caller::new();
            let (says, heard) = channel();
            let departure = keep(Box::new(Told { inbox, says }), &caller).unwrap();
            Self { caller, heard, departure }
        }

        /// Which thread gives the turn in which it hears `word`.
        fn hears(&self, word: &str) -> std::thread::ThreadId {
            let heard = std::iter::from_fn(|| Some(self.heard.recv_timeout(PATIENCE).unwrap()));
            heard.into_iter().find(|(_, told)| told.contains(&word)).unwrap().0
        }
    }

    #[test]
    fn all_have_their_turns_on_one_thread_when_they_are_called_and_one_that_panics_goes_alone() {
        let [first, second, third] = [(); 3].map(|()| Somebody::new());
        let threads = [&first, &second, &third].map(|somebody| {
            somebody.caller.send("hello").unwrap();
            somebody.hears("hello")
        });
        assert!(threads.iter().all(|thread| *thread == threads[0]), "{threads:?}");
        second.caller.send("panic").unwrap();
        second.departure.wait();
        assert!(second.caller.send("are you there?").is_err(), "what it had is gone with it");
        for somebody in [&first, &third] {
            somebody.caller.send("still there?").unwrap();
            assert_eq!(somebody.hears("still there?"), threads[0]);
        }
        third.caller.send("leave").unwrap();
        third.departure.wait();
        first.caller.send("and you?").unwrap();
        assert_eq!(first.hears("and you?"), threads[0]);
        first.caller.send("leave").unwrap();
        first.departure.wait();
        let late = Somebody::new();
        late.caller.send("leave").unwrap();
        late.departure.wait();
    }

    #[test]
    fn what_was_sent_before_somebody_is_kept_is_heard_in_the_first_turn() {
        let (caller, inbox) = Caller::new();
        caller.send("early").unwrap();
        caller.send("leave").unwrap();
        let (says, heard) = channel();
        keep(Box::new(Told { inbox, says }), &caller).unwrap().wait();
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap().1, ["early", "leave"]);
    }

    #[test]
    fn those_who_want_one_pause_are_woken_for_together() {
        let origin = Instant::now();
        let at = |ms| origin + Duration::from_millis(ms);
        let pause = Duration::from_millis(100);
        assert_eq!([at(1), at(50), at(99)].map(|now| next_beat(origin, now, pause)), [at(100); 3]);
        assert_eq!(next_beat(origin, at(100), pause), at(200), "a pause is never none");
        assert_eq!(next_beat(origin, at(7), Duration::ZERO), at(8));
    }
}
