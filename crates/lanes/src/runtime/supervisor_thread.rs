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

/// Client who is given turns.
pub(super) trait SupervisorTask: Send {
    /// Does what there is to do, without waiting for anything, and says after how long it wants the next turn at the latest; none
    /// when it is done for good.
    fn turn(&mut self) -> Option<Duration>;
}

/// The sending end of a task's inbox: a send also gives the task a turn in which it reads.
pub(super) struct TaskSender<R> {
    inbox: Sender<R>,
    called: Arc<AtomicBool>,
}

impl<R> TaskSender<R> {
    /// A sender and the receiver of the task it wakes; the sender's flag goes to [`register`] with the task.
    pub(super) fn new() -> (Self, Receiver<R>) {
        let (inbox, receiver) = channel();
        (Self { inbox, called: Arc::default() }, receiver)
    }

    /// Sends, unless the task has ended.
    pub(super) fn send(&self, request: R) -> Result<(), SendError<R>> {
        self.inbox.send(request)?;
        self.called.store(true, Ordering::Release);
        signal();
        Ok(())
    }
}

impl<R> Clone for TaskSender<R> {
    fn clone(&self) -> Self {
        Self { inbox: self.inbox.clone(), called: self.called.clone() }
    }
}

impl<R> fmt::Debug for TaskSender<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskSender")
    }
}

/// State that the supervisor thread shares with the threads that register tasks.
struct Registry {
    arrivals: Vec<Entry>,
    signalled: bool,
    is_running: bool,
}

/// A task and the time of its next turn.
struct Entry {
    task: Box<dyn SupervisorTask>,
    called: Arc<AtomicBool>,
    due: Instant,
    /// Dropped after it.
    _guard: EndGuard,
}

/// Lets a thread wait until a task has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended(Arc<(Mutex<bool>, Condvar)>);

impl Ended {
    /// Waits until it is gone.
    pub(super) fn wait(&self) {
        let (gone, changed) = &*self.0;
        drop(changed.wait_while(lock(gone), |gone| !*gone));
    }
}

struct EndGuard(Ended);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let (gone, changed) = &*self.0.0;
        *lock(gone) = true;
        changed.notify_all();
    }
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { arrivals: Vec::new(), signalled: false, is_running: false });
static CHANGED: Condvar = Condvar::new();

fn signal() {
    lock(&REGISTRY).signalled = true;
    CHANGED.notify_one();
}

/// A task that no thread could be started for, and the reason.
pub(super) struct NotRegistered {
    pub(super) task: Box<dyn SupervisorTask>,
    pub(super) error: io::Error,
}

impl fmt::Debug for NotRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NotRegistered({})", self.error)
    }
}

/// Gives `task` turns from now on: at once, whenever `caller` is used, and when it wants one.
pub(super) fn register<R>(task: Box<dyn SupervisorTask>, caller: &TaskSender<R>) -> Result<Ended, NotRegistered> {
    let ended = Ended::default();
    let _guard = EndGuard(ended.clone());
    let mut registry = lock(&REGISTRY);
    if !registry.is_running {
        if let Err(error) = std::thread::Builder::new().name("lanes".to_owned()).spawn(serve) {
            return Err(NotRegistered { task, error });
        }
        registry.is_running = true;
    }
    registry.arrivals.push(Entry { task, called: caller.called.clone(), due: Instant::now(), _guard });
    drop(registry);
    signal();
    Ok(ended)
}

/// Gives every task turns until none is left.
fn serve() {
    let origin = Instant::now();
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let mut registry = lock(&REGISTRY);
        while !registry.signalled
            && let Some(due) = entries.iter().map(|entry| entry.due).min()
        {
            let wait = due.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                break;
            }
            registry = CHANGED.wait_timeout(registry, wait).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        registry.signalled = false;
        entries.append(&mut registry.arrivals);
        if entries.is_empty() {
            registry.is_running = false;
            return;
        }
        drop(registry);
        entries.retain_mut(|entry| {
            if !entry.called.swap(false, Ordering::Acquire) && entry.due > Instant::now() {
                return true;
            }
            // One that panics is dropped in the middle of what it did; the others go on.
            let next = catch_unwind(AssertUnwindSafe(|| entry.task.turn())).unwrap_or_default();
            next.is_some_and(|pause| {
                entry.due = next_beat(origin, Instant::now(), pause);
                true
            })
        });
    }
}

/// The first multiple of `pause` since `origin` that is after `now`: tasks with the same pause share a wake-up.
fn next_beat(origin: Instant, now: Instant, pause: Duration) -> Instant {
    let (since, pause) = (now.saturating_duration_since(origin), pause.max(Duration::from_millis(1)));
    let late = Duration::from_nanos((since.as_nanos() % pause.as_nanos()) as u64);
    now + (pause - late)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So long a test waits for something that must happen; it does not measure.
    const PATIENCE: Duration = Duration::from_secs(600);
    /// A task gets no turn for this long unless it is called.
    const LONG: Duration = Duration::from_secs(3600);

    /// Says on which thread it has its turns, what it was told, and does what it is told.
    struct Told {
        inbox: Receiver<&'static str>,
        says: Sender<(std::thread::ThreadId, Vec<&'static str>)>,
    }

    impl SupervisorTask for Told {
        fn turn(&mut self) -> Option<Duration> {
            let told: Vec<&str> = self.inbox.try_iter().collect();
            let _ = self.says.send((std::thread::current().id(), told.clone()));
            assert!(!told.contains(&"panic"), "as it was told");
            (!told.contains(&"leave")).then_some(LONG)
        }
    }

    struct Client {
        caller: TaskSender<&'static str>,
        heard: Receiver<(std::thread::ThreadId, Vec<&'static str>)>,
        ended: Ended,
    }

    impl Client {
        fn new() -> Self {
            let (caller, inbox) = TaskSender::new();
            let (says, heard) = channel();
            let ended = register(Box::new(Told { inbox, says }), &caller).unwrap();
            Self { caller, heard, ended }
        }

        /// Which thread gives the turn in which it hears `word`.
        fn hears(&self, word: &str) -> std::thread::ThreadId {
            let heard = std::iter::from_fn(|| Some(self.heard.recv_timeout(PATIENCE).unwrap()));
            heard.into_iter().find(|(_, told)| told.contains(&word)).unwrap().0
        }
    }

    #[test]
    fn all_have_their_turns_on_one_thread_when_they_are_called_and_one_that_panics_goes_alone() {
        let [first, second, third] = [(); 3].map(|()| Client::new());
        let threads = [&first, &second, &third].map(|client| {
            client.caller.send("hello").unwrap();
            client.hears("hello")
        });
        assert!(threads.iter().all(|thread| *thread == threads[0]), "{threads:?}");
        second.caller.send("panic").unwrap();
        second.ended.wait();
        assert!(second.caller.send("are you there?").is_err(), "what it had is gone with it");
        for client in [&first, &third] {
            client.caller.send("still there?").unwrap();
            assert_eq!(client.hears("still there?"), threads[0]);
        }
        third.caller.send("leave").unwrap();
        third.ended.wait();
        first.caller.send("and you?").unwrap();
        assert_eq!(first.hears("and you?"), threads[0]);
        first.caller.send("leave").unwrap();
        first.ended.wait();
        let late = Client::new();
        late.caller.send("leave").unwrap();
        late.ended.wait();
    }

    #[test]
    fn what_was_sent_before_somebody_is_kept_is_heard_in_the_first_turn() {
        let (caller, inbox) = TaskSender::new();
        caller.send("early").unwrap();
        caller.send("leave").unwrap();
        let (says, heard) = channel();
        register(Box::new(Told { inbox, says }), &caller).unwrap().wait();
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
