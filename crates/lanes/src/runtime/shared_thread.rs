//! A thread on which lanes of many runtimes take turns.
//!
//! A thread for each lane is right where each has a core. A process of many small runtimes has more lanes than cores: there every
//! datagram from one to another would cost two changes of threads, and every lane a stack. So unpinned lanes may share: a thread
//! waits for the sockets of all its lanes at once and gives a turn to each that is ready. They share the thread and
//! nothing else. A lane that panics goes alone. A lane that hangs holds up the others, whose supervisors see that: all of them are
//! given up and start again elsewhere, and when the thread comes back it finds their fences raised and lets them go.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::ring::wake_set::{IndexSet, TASKS_PER_THREAD_MAX, WakeSet};
use crate::runtime::buffers::{Buffers, Needs};
use crate::runtime::lane_task::{Next, Socket};
use crate::runtime::lane_thread::Ending;
use crate::runtime::workload::Workload;
use crate::time::{LaneTime, micros};

/// Sockets that have something, looked at in one round.
const EVENTS_MAX: usize = 64;
/// The epoll token of the wake set; sockets use their index.
const WAKE_TOKEN: u64 = TASKS_PER_THREAD_MAX as u64;

/// A lane that takes turns on a thread with other lanes.
pub(super) trait Task: Send {
    /// The socket it waits for besides being woken.
    fn socket(&self) -> Option<BorrowedFd<'_>>;
    /// Tasks with the same needs share buffers.
    fn needs(&self) -> Needs;
    fn turn(&mut self, buffers: &mut Buffers, socket: Socket) -> io::Result<Next>;
    /// Its sleep is over.
    fn unpark(&mut self);
    /// Ends the task and reports it. Never panics.
    fn end(self: Box<Self>, ending: Ending);
}

/// State that a shared thread shares with the threads that give it tasks.
#[derive(Debug)]
pub(super) struct SharedThread {
    wake_set: Arc<WakeSet>,
    origin: Instant,
    /// When the turn under way began, in microseconds plus one; zero between rounds.
    turn_began: AtomicU64,
    /// How much of its time the thread works, as it said last.
    worked_percent: AtomicU8,
    arrivals: Sender<Arrival>,
}

/// A new task and its index.
type Arrival = (u8, Box<dyn Task>);

/// The parts that only the thread itself uses.
pub(super) struct ThreadParts {
    epoll: OwnedFd,
    arrivals: Inbox<Arrival>,
}

impl SharedThread {
    pub(super) fn new() -> io::Result<(Self, ThreadParts)> {
        let (wake_set, epoll) = (Arc::new(WakeSet::new()?), epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, wake_set.fd(), EventData::new_u64(WAKE_TOKEN), EventFlags::IN)?;
        let (sender, arrivals) = std::sync::mpsc::channel();
        let thread = Self {
            wake_set,
            origin: Instant::now(),
            turn_began: AtomicU64::new(0),
            worked_percent: AtomicU8::new(0),
            arrivals: sender,
        };
        Ok((thread, ThreadParts { epoll, arrivals }))
    }

    pub(super) fn wake_set(&self) -> &Arc<WakeSet> {
        &self.wake_set
    }

    /// How long the turn under way has taken.
    pub(super) fn busy_for(&self) -> Duration {
        match self.turn_began.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            began => self.origin.elapsed().saturating_sub(Duration::from_micros(began - 1)),
        }
    }

    /// How many of a hundred parts of its time the thread has worked lately.
    pub(super) fn worked_percent(&self) -> u8 {
        self.worked_percent.load(Ordering::Relaxed)
    }

    /// Gives turns to `arrival` from now on.
    pub(super) fn take(&self, index: u8, arrival: Box<dyn Task>) -> io::Result<()> {
        self.arrivals.send((index, arrival)).map_err(|_| io::Error::other("the thread for it has ended"))?;
        self.wake_set.call(index);
        Ok(())
    }

    fn begin_turn(&self) {
        self.turn_began.store(micros(self.origin.elapsed()) + 1, Ordering::Relaxed);
    }

    fn end_turns(&self) {
        self.turn_began.store(0, Ordering::Relaxed);
    }

    /// Gives every task turns until none is left and `may_leave` says that none will come.
    pub(super) fn run(&self, parts: ThreadParts, may_leave: impl Fn() -> bool) {
        // The tasks are lost with the thread: then all of them are seen to have stalled.
        let _mark = MarkIfPanicking(self);
        let mut tasks = TaskSet::new(parts.epoll);
        loop {
            if tasks.len == 0 && may_leave() {
                return;
            }
            self.wait(&mut tasks, &parts.arrivals);
            let ready = std::mem::take(&mut tasks.ready);
            for index in ready.iter() {
                self.begin_turn();
                tasks.turn(index);
            }
            tasks.wake_callers();
            self.end_turns();
        }
    }

    /// Waits until a task has work, and notes which.
    fn wait(&self, tasks: &mut TaskSet, arrivals: &Inbox<Arrival>) {
        let parked_at = Instant::now();
        let mut wait = tasks.next_due().map(|due| due.saturating_duration_since(parked_at));
        if tasks.ready.is_empty() {
            self.wake_set.announce_sleep();
        }
        // The second look, now that callers know.
        tasks.ready.add_all(self.wake_set.take_called());
        while let Ok((index, arrival)) = arrivals.try_recv() {
            // A former task, or this one, may end here, which may take as long as a turn.
            self.begin_turn();
            tasks.insert(index, arrival);
            tasks.wake_callers();
        }
        self.end_turns();
        let sleeps = tasks.ready.is_empty();
        if sleeps {
            tasks.rest(LaneTime(micros(self.origin.elapsed())));
        } else {
            wait = Some(Duration::ZERO);
        }
        tasks.look_at_sockets(wait, &self.wake_set);
        self.wake_set.unpark();
        tasks.ready.add_all(self.wake_set.take_called());
        let unparked_at = Instant::now();
        tasks.note_due(unparked_at);
        if let Some(percent) = tasks.workload.note_sleep(if sleeps { parked_at } else { unparked_at }, unparked_at) {
            self.worked_percent.store(percent, Ordering::Relaxed);
        }
    }
}

struct MarkIfPanicking<'a>(&'a SharedThread);

impl Drop for MarkIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.turn_began.store(1, Ordering::Relaxed);
        }
    }
}

/// The tasks of one thread.
struct TaskSet {
    epoll: OwnedFd,
    events: Vec<Event>,
    /// By index.
    entries: Vec<Option<Entry>>,
    /// When each that sleeps wants a turn though nothing has come; by index.
    dues: Vec<Option<Instant>>,
    ready: IndexSet,
    /// Those of them whose sockets have something.
    readable: IndexSet,
    buffers: Vec<Buffers>,
    /// How many it is.
    len: usize,
    workload: Workload,
}

struct Entry {
    task: Box<dyn Task>,
    sleeps: bool,
    /// Which of the buffers it uses.
    buffers: usize,
}

impl TaskSet {
    fn new(epoll: OwnedFd) -> Self {
        Self {
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
            entries: Vec::new(),
            dues: Vec::new(),
            ready: IndexSet::default(),
            readable: IndexSet::default(),
            buffers: Vec::new(),
            len: 0,
            workload: Workload::new(Instant::now()),
        }
    }

    fn insert(&mut self, index: u8, task: Box<dyn Task>) {
        let mut watched = self.watch(index, &*task);
        if watched == Err(Errno::EXIST) {
            // Its predecessor was given up and sleeps: it leaves in its next turn, which is now.
            let socket = raw(&*task);
            let has_it = |ports: &Option<Entry>| ports.as_ref().is_some_and(|entry| raw(&*entry.task) == socket);
            let there = self.entries.iter().position(has_it);
            let _ = there.map(|there| self.turn(there as u8));
            watched = self.watch(index, &*task);
        }
        if let Err(error) = watched {
            task.end(Ending::Failed(format!("its socket could not be waited for: {error}")));
            return;
        }
        let buffers = self.buffers_for(task.needs());
        let at = usize::from(index);
        if self.entries.len() <= at {
            self.entries.resize_with(at + 1, || None);
            self.dues.resize(at + 1, None);
        }
        self.entries[at] = Some(Entry { task, sleeps: false, buffers });
        self.len += 1;
        self.ready.add(index);
    }

    fn watch(&self, index: u8, task: &dyn Task) -> Result<(), Errno> {
        let Some(socket) = task.socket() else { return Ok(()) };
        epoll::add(&self.epoll, socket, EventData::new_u64(u64::from(index)), EventFlags::IN)
    }

    /// The buffers for a lane with such needs. There are never more of them than lanes.
    fn buffers_for(&mut self, needs: Needs) -> usize {
        if let Some(at) = self.buffers.iter().position(|had| had.needs == needs) {
            return at;
        }
        let is_used = |at: &usize| self.entries.iter().flatten().any(|entry| entry.buffers == *at);
        let at = (0..self.buffers.len()).find(|at| !is_used(at)).unwrap_or(self.buffers.len());
        match self.buffers.get_mut(at) {
            Some(unused) => *unused = Buffers::new(needs),
            None => self.buffers.push(Buffers::new(needs)),
        }
        at
    }

    /// No task has work.
    fn rest(&mut self, now: LaneTime) {
        for buffers in &mut self.buffers {
            buffers.rest(now);
        }
    }

    /// The earliest time at which a task wants a turn although nothing has come.
    fn next_due(&self) -> Option<Instant> {
        self.dues.iter().flatten().min().copied()
    }

    fn note_due(&mut self, now: Instant) {
        for (index, due) in self.dues.iter().enumerate() {
            if due.is_some_and(|due| due <= now) {
                self.ready.add(index as u8);
            }
        }
    }

    /// Notes whose sockets have something, and waits until one has if no task is ready.
    fn look_at_sockets(&mut self, wait: Option<Duration>, wake_set: &WakeSet) {
        let wait = wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) });
        self.events.clear();
        self.readable = IndexSet::default();
        // Interrupted, or told something odd: everything is looked at again in the next round.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut self.events), wait.as_ref());
        for event in &self.events {
            match u8::try_from(event.data.u64()) {
                Ok(index) => {
                    self.ready.add(index);
                    self.readable.add(index);
                }
                Err(_) => wake_set.silence(),
            }
        }
    }

    /// Gives one a turn.
    fn turn(&mut self, index: u8) {
        let at = usize::from(index);
        // An index may be called before a task has it, and after.
        let Some(Some(entry)) = self.entries.get_mut(at) else { return };
        let has_something = self.readable.has(index);
        let buffers = &mut self.buffers[entry.buffers];
        let turned = catch_unwind(AssertUnwindSafe(|| {
            if std::mem::take(&mut entry.sleeps) {
                entry.task.unpark();
            }
            entry.task.turn(buffers, if has_something { Socket::HasSomething } else { Socket::IsEmpty })
        }));
        self.dues[at] = None;
        let ending = match turned {
            Ok(Ok(Next::Again)) => {
                self.ready.add(index);
                return;
            }
            Ok(Ok(Next::Sleep(wait))) => {
                entry.sleeps = true;
                self.dues[at] = Some(Instant::now() + wait);
                return;
            }
            Ok(Ok(Next::End(ending))) => ending,
            Ok(Err(error)) => Ending::Failed(error.to_string()),
            Err(panic) => Ending::of(&*panic),
        };
        self.remove(at, ending);
    }

    /// Wakes the callers that lanes have answered in their turns.
    fn wake_callers(&mut self) {
        for buffers in &mut self.buffers {
            buffers.wakes.wake();
        }
    }

    fn remove(&mut self, at: usize, ending: Ending) {
        let Some(Entry { task, .. }) = self.entries[at].take() else { return };
        self.len -= 1;
        // The socket outlives the lane, so the kernel would go on telling.
        if let Some(socket) = task.socket() {
            let _ = epoll::delete(&self.epoll, socket);
        }
        task.end(ending);
    }
}

fn raw(task: &dyn Task) -> Option<RawFd> {
    task.socket().map(|socket| socket.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd as _;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::channel;
    use std::thread::JoinHandle;

    use super::*;
    use crate::net::calls::Calls;

    /// So long a test waits for something that must happen; it does not measure.
    const PATIENCE: Duration = Duration::from_secs(600);
    const LONG: Duration = Duration::from_secs(3600);

    /// Does as its test says, and reports its calls.
    struct Fake<T> {
        socket: Option<Arc<UdpSocket>>,
        datagram_bytes_max: usize,
        turn: T,
        says: Sender<String>,
        /// Reports the state of its socket in each turn.
        knew: Option<Sender<Socket>>,
    }

    fn fake<T: FnMut() -> Next + Send>(
        socket: Option<&Arc<UdpSocket>>,
        says: &Sender<String>,
        turn: T,
    ) -> Box<Fake<T>> {
        Box::new(Fake { socket: socket.cloned(), datagram_bytes_max: 100, turn, says: says.clone(), knew: None })
    }

    impl<T: FnMut() -> Next + Send> Task for Fake<T> {
        fn socket(&self) -> Option<BorrowedFd<'_>> {
            self.socket.as_ref().map(|socket| socket.as_fd())
        }

        fn needs(&self) -> Needs {
            Needs { calls: Calls::Single, datagram_bytes_max: self.datagram_bytes_max, send_queue_max: 1 }
        }

        fn turn(&mut self, _: &mut Buffers, socket: Socket) -> io::Result<Next> {
            let _ = self.knew.as_ref().map(|knew| knew.send(socket));
            Ok((self.turn)())
        }

        fn unpark(&mut self) {
            let _ = self.says.send("rises".to_owned());
        }

        fn end(self: Box<Self>, ending: Ending) {
            let _ = self.says.send(format!("{ending:?}"));
        }
    }

    fn socket() -> Arc<UdpSocket> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        Arc::new(socket)
    }

    fn task_set() -> TaskSet {
        TaskSet::new(epoll::create(CreateFlags::CLOEXEC).unwrap())
    }

    /// A shared thread that runs until the test is done.
    struct Thread {
        thread: Arc<SharedThread>,
        done: Arc<AtomicBool>,
        handle: Option<JoinHandle<()>>,
    }

    impl Thread {
        fn new() -> Self {
            let (thread, parts) = SharedThread::new().unwrap();
            let (thread, done) = (Arc::new(thread), Arc::new(AtomicBool::new(false)));
            let (runs, ends) = (thread.clone(), done.clone());
            let handle = std::thread::spawn(move || runs.run(parts, || ends.load(Ordering::Relaxed)));
            Self { thread, done, handle: Some(handle) }
        }

        /// Waits until the thread has ended all its tasks.
        fn leave(mut self) {
            self.done.store(true, Ordering::Relaxed);
            self.thread.wake_set().call(0);
            self.handle.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn a_parked_task_is_unparked_before_its_turn_and_one_that_is_awake_does_not() {
        let (says, said) = channel();
        let turns = says.clone();
        let mut nexts = [Next::Again, Next::Sleep(LONG), Next::Again, Next::End(Ending::Stopped)].into_iter();
        let turn = move || {
            let _ = turns.send("turn".to_owned());
            nexts.next().unwrap()
        };
        let mut tasks = task_set();
        tasks.insert(3, fake(None, &says, turn));
        let dues: Vec<bool> = (0..4)
            .map(|_| {
                tasks.turn(3);
                tasks.next_due().is_some()
            })
            .collect();
        assert_eq!(dues, [false, true, false, false], "only a sleeper is waited for");
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["turn", "turn", "rises", "turn", "turn", "Stopped"]);
        // An index may be called after a task had it, and before.
        tasks.turn(3);
        tasks.turn(200);
        assert_eq!((tasks.len, said.try_iter().count()), (0, 0));
    }

    #[test]
    fn a_lane_that_has_left_is_not_waited_for_though_its_socket_is_still_there() {
        let (says, _) = channel();
        let (socket, wake_set) = (socket(), WakeSet::new().unwrap());
        let mut tasks = task_set();
        tasks.insert(5, fake(Some(&socket), &says, || Next::End(Ending::Retired)));
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        tasks.ready = IndexSet::default();
        tasks.look_at_sockets(Some(Duration::ZERO), &wake_set);
        assert_eq!(std::mem::take(&mut tasks.ready).iter().collect::<Vec<_>>(), [5]);
        tasks.turn(5);
        tasks.look_at_sockets(Some(Duration::ZERO), &wake_set);
        assert!(tasks.ready.is_empty(), "the thread would be woken for ever");
    }

    #[test]
    fn each_turn_knows_whether_its_socket_has_something() {
        let (says, _) = channel();
        let (tells, told) = channel();
        let (socket, wake_set) = (socket(), WakeSet::new().unwrap());
        let mut tasks = task_set();
        tasks.insert(70, Box::new(Fake { knew: Some(tells), ..*fake(Some(&socket), &says, || Next::Again) }));
        for (sent, knew) in [(0, Socket::IsEmpty), (1, Socket::HasSomething), (0, Socket::IsEmpty)] {
            (0..sent).for_each(|_| drop(socket.send_to(b"x", socket.local_addr().unwrap())));
            tasks.look_at_sockets(Some(Duration::ZERO), &wake_set);
            tasks.turn(70);
            assert_eq!(told.try_iter().collect::<Vec<_>>(), [knew]);
            while socket.recv(&mut [0; 8]).is_ok() {}
        }
    }

    #[test]
    fn a_thread_that_was_woken_sleeps_again() {
        let (wake_set, mut tasks) = (WakeSet::new().unwrap(), task_set());
        epoll::add(&tasks.epoll, wake_set.fd(), EventData::new_u64(WAKE_TOKEN), EventFlags::IN).unwrap();
        wake_set.announce_sleep();
        wake_set.call(9);
        tasks.look_at_sockets(Some(PATIENCE), &wake_set);
        assert_eq!((tasks.events.len(), tasks.ready.is_empty()), (1, true), "the wake set belongs to no task");
        tasks.look_at_sockets(Some(Duration::ZERO), &wake_set);
        assert!(tasks.events.is_empty(), "it would be woken for ever");
    }

    #[test]
    fn a_successor_gets_its_seat_though_its_predecessor_was_given_up_in_its_sleep() {
        let (says, said) = channel();
        let socket = socket();
        let mut tasks = task_set();
        tasks.insert(1, fake(None, &says, || panic!("it was not called")));
        let mut nexts = [Next::Sleep(LONG), Next::End(Ending::Fenced)].into_iter();
        tasks.insert(4, fake(Some(&socket), &says, move || nexts.next().unwrap()));
        tasks.turn(4);
        tasks.insert(2, fake(Some(&socket), &says, || Next::Sleep(LONG)));
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["rises", "Fenced"]);
        assert_eq!(tasks.len, 2);
        tasks.turn(2);
        tasks.ready = IndexSet::default();
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        tasks.look_at_sockets(Some(Duration::ZERO), &WakeSet::new().unwrap());
        assert_eq!(tasks.ready.iter().collect::<Vec<_>>(), [2], "it is the successor that is told");
        // A lane that is no predecessor keeps its socket.
        tasks.insert(7, fake(Some(&socket), &says, || panic!("it has no ports")));
        assert_eq!(tasks.len, 2);
        assert!(said.try_iter().any(|said| said.contains("its socket could not be waited for")));
    }

    #[test]
    fn there_are_never_more_buffers_than_lanes_whatever_those_before_them_needed() {
        let (says, _) = channel();
        let mut tasks = task_set();
        tasks.insert(0, fake(None, &says, || Next::Again));
        for datagram_bytes_max in 1..100 {
            let task = Fake { datagram_bytes_max, ..*fake(None, &says, || Next::End(Ending::Stopped)) };
            tasks.insert(1, Box::new(task));
            assert_eq!(
                tasks.buffers[tasks.entries[1].as_ref().unwrap().buffers].needs.datagram_bytes_max,
                datagram_bytes_max
            );
            assert_eq!(tasks.buffers[tasks.entries[0].as_ref().unwrap().buffers].needs.datagram_bytes_max, 100);
            tasks.turn(1);
        }
        assert!(tasks.buffers.len() <= 2, "{}", tasks.buffers.len());
    }

    #[test]
    fn everybody_is_reached_beside_one_that_always_has_something_to_do() {
        let (says, said) = channel();
        let thread = Thread::new();
        let done = thread.done.clone();
        let busy = move || if done.load(Ordering::Relaxed) { Next::End(Ending::Stopped) } else { Next::Again };
        thread.thread.take(0, fake(None, &says, busy)).unwrap();
        // More than are told of at once, and no task takes more than one datagram in a turn.
        let sockets: Vec<_> = (1..=255).map(|_| socket()).collect();
        for (at, socket) in sockets.iter().enumerate() {
            for _ in 0..3 {
                socket.send_to(&[at as u8], socket.local_addr().unwrap()).unwrap();
            }
            let (hears, turns, done) = (socket.clone(), says.clone(), thread.done.clone());
            let turn = move || {
                if let Ok(len) = hears.recv(&mut [0; 8]) {
                    let _ = turns.send(format!("{at} heard {len}"));
                }
                if done.load(Ordering::Relaxed) { Next::End(Ending::Stopped) } else { Next::Sleep(LONG) }
            };
            thread.thread.take(at as u8 + 1, fake(Some(socket), &says, turn)).unwrap();
        }
        let mut heard = vec![0; sockets.len()];
        while heard.iter().any(|count| *count < 3) {
            let said = said.recv_timeout(PATIENCE).expect("every task is reached");
            if let Some((at, _)) = said.split_once(" heard 1") {
                heard[at.parse::<usize>().unwrap()] += 1;
            }
        }
        // Calls and due times, too.
        thread.done.store(true, Ordering::Relaxed);
        (1..=255).for_each(|index| thread.thread.wake_set().call(index));
        let mut ended = 0;
        while ended < 256 {
            ended += usize::from(said.recv_timeout(PATIENCE).expect("every task is reached") == "Stopped");
        }
        thread.leave();
    }

    #[test]
    fn a_due_time_comes_beside_one_that_always_has_something_to_do() {
        let (says, said) = channel();
        let thread = Thread::new();
        let done = thread.done.clone();
        let busy = move || if done.load(Ordering::Relaxed) { Next::End(Ending::Stopped) } else { Next::Again };
        thread.thread.take(0, fake(None, &says, busy)).unwrap();
        let mut nexts = [Next::Sleep(Duration::from_millis(1)), Next::End(Ending::Retired)].into_iter();
        thread.thread.take(255, fake(None, &says, move || nexts.next().unwrap())).unwrap();
        while said.recv_timeout(PATIENCE).expect("its time comes") != "Retired" {}
        thread.leave();
    }
}
