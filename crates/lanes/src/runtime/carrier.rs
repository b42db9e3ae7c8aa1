//! A thread on which lanes of many runtimes take turns.
//!
//! A thread for each lane is right where each has a core. A process of many small runtimes has more lanes than cores: there every
//! datagram from one to another would cost two changes of threads, and every lane a stack. So unpinned lanes may share: a thread
//! waits for the sockets of all it carries at once and gives a turn to each that has something. They share the thread and
//! nothing else. A lane that panics goes alone. One that hangs holds up the others, whose supervisors see that: all of them are
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

use crate::ring::bell::{Bell, PLACES, Places};
use crate::runtime::buffers::{Buffers, Needs};
use crate::runtime::lane_thread::Ending;
use crate::runtime::turning::{Next, Socket};
use crate::runtime::workload::Workload;
use crate::time::{LaneTime, micros};

/// Sockets that have something, looked at in one round.
const EVENTS_MAX: usize = 64;
/// What the bell is called among the sockets, which are called by their places.
const BELL: u64 = PLACES as u64;

/// Somebody who takes turns on a thread with others.
pub(super) trait Carried: Send {
    /// What it waits for besides being called.
    fn socket(&self) -> Option<BorrowedFd<'_>>;
    /// Those who need the same share it.
    fn needs(&self) -> Needs;
    fn turn(&mut self, buffers: &mut Buffers, socket: Socket) -> io::Result<Next>;
    /// Its sleep is over.
    fn rise(&mut self);
    /// It takes no more turns. Says so to whom it concerns, once it is gone. Never panics.
    fn end(self: Box<Self>, ending: Ending);
}

/// What a carrying thread and others know together.
#[derive(Debug)]
pub(super) struct Carrier {
    bell: Arc<Bell>,
    origin: Instant,
    /// When the turn under way began, in microseconds plus one; zero between rounds.
    turn_began: AtomicU64,
    /// How much of its time the thread works, as it said last.
    worked_percent: AtomicU8,
    arrivals: Sender<Arrival>,
}

/// Somebody new, and its place.
type Arrival = (u8, Box<dyn Carried>);

/// What a carrying thread needs.
pub(super) struct Wheels {
    epoll: OwnedFd,
    arrivals: Inbox<Arrival>,
}

impl Carrier {
    pub(super) fn new() -> io::Result<(Self, Wheels)> {
        let (bell, epoll) = (Arc::new(Bell::new()?), epoll::create(CreateFlags::CLOEXEC)?);
        epoll::add(&epoll, bell.fd(), EventData::new_u64(BELL), EventFlags::IN)?;
        let (sender, arrivals) = std::sync::mpsc::channel();
        let carrier = Self {
            bell,
            origin: Instant::now(),
            turn_began: AtomicU64::new(0),
            worked_percent: AtomicU8::new(0),
            arrivals: sender,
        };
        Ok((carrier, Wheels { epoll, arrivals }))
    }

    pub(super) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// How long the turn under way has taken, whoever has it.
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
    pub(super) fn take(&self, place: u8, arrival: Box<dyn Carried>) -> io::Result<()> {
        self.arrivals.send((place, arrival)).map_err(|_| io::Error::other("the thread for it has ended"))?;
        self.bell.call(place);
        Ok(())
    }

    fn begin_turn(&self) {
        self.turn_began.store(micros(self.origin.elapsed()) + 1, Ordering::Relaxed);
    }

    fn end_turns(&self) {
        self.turn_began.store(0, Ordering::Relaxed);
    }

    /// Gives everybody turns until nobody is left and `may_leave` says that nobody will come.
    pub(super) fn carry(&self, wheels: Wheels, may_leave: impl Fn() -> bool) {
        // Whoever is carried is lost with the thread: then they are all seen to have stalled.
        let _mark = MarkIfPanicking(self);
        let mut load = Load::new(wheels.epoll);
        loop {
            if load.carried == 0 && may_leave() {
                return;
            }
            self.wait(&mut load, &wheels.arrivals);
            let ready = std::mem::take(&mut load.ready);
            for place in ready.iter() {
                self.begin_turn();
                load.turn(place);
            }
            load.wake_callers();
            self.end_turns();
        }
    }

    /// Waits until somebody has something to do, and notes who.
    fn wait(&self, load: &mut Load, arrivals: &Inbox<Arrival>) {
        let lies_down = Instant::now();
        let mut wait = load.next_due().map(|due| due.saturating_duration_since(lies_down));
        if load.ready.is_empty() {
            self.bell.announce_sleep();
        }
        // The second look, now that callers know.
        load.ready.add_all(self.bell.take_called());
        while let Ok((place, arrival)) = arrivals.try_recv() {
            // Somebody may be let go for it, or it itself, which is theirs to do and may take as long as a turn.
            self.begin_turn();
            load.seat(place, arrival);
            load.wake_callers();
        }
        self.end_turns();
        let sleeps = load.ready.is_empty();
        if sleeps {
            load.rest(LaneTime(micros(self.origin.elapsed())));
        } else {
            wait = Some(Duration::ZERO);
        }
        load.look_at_sockets(wait, &self.bell);
        self.bell.rise();
        load.ready.add_all(self.bell.take_called());
        let risen = Instant::now();
        load.note_due(risen);
        if let Some(percent) = load.workload.note_sleep(if sleeps { lies_down } else { risen }, risen) {
            self.worked_percent.store(percent, Ordering::Relaxed);
        }
    }
}

struct MarkIfPanicking<'a>(&'a Carrier);

impl Drop for MarkIfPanicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.turn_began.store(1, Ordering::Relaxed);
        }
    }
}

/// All that one thread carries.
struct Load {
    epoll: OwnedFd,
    events: Vec<Event>,
    /// By place.
    seats: Vec<Option<Seated>>,
    /// When each that sleeps wants a turn though nothing has come; by place.
    dues: Vec<Option<Instant>>,
    ready: Places,
    /// Those of them whose sockets have something.
    readable: Places,
    buffers: Vec<Buffers>,
    /// How many it is.
    carried: usize,
    workload: Workload,
}

struct Seated {
    carried: Box<dyn Carried>,
    sleeps: bool,
    /// Which of the buffers it uses.
    buffers: usize,
}

impl Load {
    fn new(epoll: OwnedFd) -> Self {
        Self {
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
            seats: Vec::new(),
            dues: Vec::new(),
            ready: Places::default(),
            readable: Places::default(),
            buffers: Vec::new(),
            carried: 0,
            workload: Workload::new(Instant::now()),
        }
    }

    fn seat(&mut self, place: u8, carried: Box<dyn Carried>) {
        let mut watched = self.watch(place, &*carried);
        if watched == Err(Errno::EXIST) {
            // Its predecessor was given up and sleeps: it leaves in its next turn, which is now.
            let socket = raw(&*carried);
            let has_it = |seat: &Option<Seated>| seat.as_ref().is_some_and(|seated| raw(&*seated.carried) == socket);
            let there = self.seats.iter().position(has_it);
            let _ = there.map(|there| self.turn(there as u8));
            watched = self.watch(place, &*carried);
        }
        if let Err(error) = watched {
            carried.end(Ending::Failed(format!("its socket could not be waited for: {error}")));
            return;
        }
        let buffers = self.buffers_for(carried.needs());
        let at = usize::from(place);
        if self.seats.len() <= at {
            self.seats.resize_with(at + 1, || None);
            self.dues.resize(at + 1, None);
        }
        self.seats[at] = Some(Seated { carried, sleeps: false, buffers });
        self.carried += 1;
        self.ready.add(place);
    }

    fn watch(&self, place: u8, carried: &dyn Carried) -> Result<(), Errno> {
        let Some(socket) = carried.socket() else { return Ok(()) };
        epoll::add(&self.epoll, socket, EventData::new_u64(u64::from(place)), EventFlags::IN)
    }

    /// Which buffers one with such needs uses. There are never more than there are lanes, whatever those before them needed.
    fn buffers_for(&mut self, needs: Needs) -> usize {
        if let Some(at) = self.buffers.iter().position(|had| had.needs == needs) {
            return at;
        }
        let is_used = |at: &usize| self.seats.iter().flatten().any(|seated| seated.buffers == *at);
        let at = (0..self.buffers.len()).find(|at| !is_used(at)).unwrap_or(self.buffers.len());
        match self.buffers.get_mut(at) {
            Some(unused) => *unused = Buffers::new(needs),
            None => self.buffers.push(Buffers::new(needs)),
        }
        at
    }

    /// Nobody has anything to do.
    fn rest(&mut self, now: LaneTime) {
        for buffers in &mut self.buffers {
            buffers.rest(now);
        }
    }

    /// When somebody wants a turn though nothing has come.
    fn next_due(&self) -> Option<Instant> {
        self.dues.iter().flatten().min().copied()
    }

    fn note_due(&mut self, now: Instant) {
        for (place, due) in self.dues.iter().enumerate() {
            if due.is_some_and(|due| due <= now) {
                self.ready.add(place as u8);
            }
        }
    }

    /// Notes whose sockets have something, and waits until one has if nobody else has anything.
    fn look_at_sockets(&mut self, wait: Option<Duration>, bell: &Bell) {
        let wait = wait.map(|wait| Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) });
        self.events.clear();
        self.readable = Places::default();
        // Interrupted, or told something odd: everything is looked at again in the next round.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut self.events), wait.as_ref());
        for event in &self.events {
            match u8::try_from(event.data.u64()) {
                Ok(place) => {
                    self.ready.add(place);
                    self.readable.add(place);
                }
                Err(_) => bell.silence(),
            }
        }
    }

    /// Gives one a turn.
    fn turn(&mut self, place: u8) {
        let at = usize::from(place);
        // A place may be called before somebody has it, and after.
        let Some(Some(seated)) = self.seats.get_mut(at) else { return };
        let has_something = self.readable.has(place);
        let buffers = &mut self.buffers[seated.buffers];
        let turned = catch_unwind(AssertUnwindSafe(|| {
            if std::mem::take(&mut seated.sleeps) {
                seated.carried.rise();
            }
            seated.carried.turn(buffers, if has_something { Socket::HasSomething } else { Socket::IsEmpty })
        }));
        self.dues[at] = None;
        let ending = match turned {
            Ok(Ok(Next::Again)) => {
                self.ready.add(place);
                return;
            }
            Ok(Ok(Next::Sleep(wait))) => {
                seated.sleeps = true;
                self.dues[at] = Some(Instant::now() + wait);
                return;
            }
            Ok(Ok(Next::End(ending))) => ending,
            Ok(Err(error)) => Ending::Failed(error.to_string()),
            Err(panic) => Ending::of(&*panic),
        };
        self.unseat(at, ending);
    }

    /// Wakes whom those who had turns have answered.
    fn wake_callers(&mut self) {
        for buffers in &mut self.buffers {
            buffers.wakes.wake();
        }
    }

    fn unseat(&mut self, at: usize, ending: Ending) {
        let Some(Seated { carried, .. }) = self.seats[at].take() else { return };
        self.carried -= 1;
        // The socket outlives the lane, so the kernel would go on telling.
        if let Some(socket) = carried.socket() {
            let _ = epoll::delete(&self.epoll, socket);
        }
        carried.end(ending);
    }
}

fn raw(carried: &dyn Carried) -> Option<RawFd> {
    carried.socket().map(|socket| socket.as_raw_fd())
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
    const PATIENCE: Duration = Duration::from_secs(30);
    const LONG: Duration = Duration::from_secs(3600);

    /// Does as its test says, and tells what it is told.
    struct Fake<T> {
        socket: Option<Arc<UdpSocket>>,
        datagram_bytes_max: usize,
        turn: T,
        says: Sender<String>,
        /// Where it tells what it knew of its socket in each turn.
        knew: Option<Sender<Socket>>,
    }

    fn fake<T: FnMut() -> Next + Send>(
        socket: Option<&Arc<UdpSocket>>,
        says: &Sender<String>,
        turn: T,
    ) -> Box<Fake<T>> {
        Box::new(Fake { socket: socket.cloned(), datagram_bytes_max: 100, turn, says: says.clone(), knew: None })
    }

    impl<T: FnMut() -> Next + Send> Carried for Fake<T> {
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

        fn rise(&mut self) {
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

    fn load() -> Load {
        Load::new(epoll::create(CreateFlags::CLOEXEC).unwrap())
    }

    /// A thread that carries whom it is given until the test is done.
    struct Thread {
        carrier: Arc<Carrier>,
        done: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Thread {
        fn new() -> Self {
            let (carrier, wheels) = Carrier::new().unwrap();
            let (carrier, done) = (Arc::new(carrier), Arc::new(AtomicBool::new(false)));
            let (carries, ends) = (carrier.clone(), done.clone());
            let thread = std::thread::spawn(move || carries.carry(wheels, || ends.load(Ordering::Relaxed)));
            Self { carrier, done, thread: Some(thread) }
        }

        /// Waits until the thread has let everybody go.
        fn leave(mut self) {
            self.done.store(true, Ordering::Relaxed);
            self.carrier.bell().call(0);
            self.thread.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn a_sleeper_rises_before_its_turn_and_one_that_is_awake_does_not() {
        let (says, said) = channel();
        let turns = says.clone();
        let mut nexts = [Next::Again, Next::Sleep(LONG), Next::Again, Next::End(Ending::Stopped)].into_iter();
        let turn = move || {
            let _ = turns.send("turn".to_owned());
            nexts.next().unwrap()
        };
        let mut load = load();
        load.seat(3, fake(None, &says, turn));
        let dues: Vec<bool> = (0..4)
            .map(|_| {
                load.turn(3);
                load.next_due().is_some()
            })
            .collect();
        assert_eq!(dues, [false, true, false, false], "only a sleeper is waited for");
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["turn", "turn", "rises", "turn", "turn", "Stopped"]);
        // A place may be called after somebody had it, and before.
        load.turn(3);
        load.turn(200);
        assert_eq!((load.carried, said.try_iter().count()), (0, 0));
    }

    #[test]
    fn who_has_left_is_not_waited_for_though_its_socket_is_still_there() {
        let (says, _) = channel();
        let (socket, bell) = (socket(), Bell::new().unwrap());
        let mut load = load();
        load.seat(5, fake(Some(&socket), &says, || Next::End(Ending::Retired)));
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        load.ready = Places::default();
        load.look_at_sockets(Some(Duration::ZERO), &bell);
        assert_eq!(std::mem::take(&mut load.ready).iter().collect::<Vec<_>>(), [5]);
        load.turn(5);
        load.look_at_sockets(Some(Duration::ZERO), &bell);
        assert!(load.ready.is_empty(), "a thread would be woken for nobody, for ever");
    }

    #[test]
    fn each_turn_knows_whether_its_socket_has_something() {
        let (says, _) = channel();
        let (tells, told) = channel();
        let (socket, bell) = (socket(), Bell::new().unwrap());
        let mut load = load();
        load.seat(70, Box::new(Fake { knew: Some(tells), ..*fake(Some(&socket), &says, || Next::Again) }));
        for (sent, knew) in [(0, Socket::IsEmpty), (1, Socket::HasSomething), (0, Socket::IsEmpty)] {
            (0..sent).for_each(|_| drop(socket.send_to(b"x", socket.local_addr().unwrap())));
            load.look_at_sockets(Some(Duration::ZERO), &bell);
            load.turn(70);
            assert_eq!(told.try_iter().collect::<Vec<_>>(), [knew]);
            while socket.recv(&mut [0; 8]).is_ok() {}
        }
    }

    #[test]
    fn a_thread_that_was_woken_sleeps_again() {
        let (bell, mut load) = (Bell::new().unwrap(), load());
        epoll::add(&load.epoll, bell.fd(), EventData::new_u64(BELL), EventFlags::IN).unwrap();
        bell.announce_sleep();
        bell.call(9);
        load.look_at_sockets(Some(PATIENCE), &bell);
        assert_eq!((load.events.len(), load.ready.is_empty()), (1, true), "the bell is nobody's socket");
        load.look_at_sockets(Some(Duration::ZERO), &bell);
        assert!(load.events.is_empty(), "it would be woken for ever");
    }

    #[test]
    fn a_successor_gets_its_seat_though_its_predecessor_was_given_up_in_its_sleep() {
        let (says, said) = channel();
        let socket = socket();
        let mut load = load();
        load.seat(1, fake(None, &says, || panic!("it was not called")));
        let mut nexts = [Next::Sleep(LONG), Next::End(Ending::Fenced)].into_iter();
        load.seat(4, fake(Some(&socket), &says, move || nexts.next().unwrap()));
        load.turn(4);
        load.seat(2, fake(Some(&socket), &says, || Next::Sleep(LONG)));
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["rises", "Fenced"]);
        assert_eq!(load.carried, 2);
        load.turn(2);
        load.ready = Places::default();
        socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
        load.look_at_sockets(Some(Duration::ZERO), &Bell::new().unwrap());
        assert_eq!(load.ready.iter().collect::<Vec<_>>(), [2], "it is the successor that is told");
        // One that is no predecessor keeps its socket.
        load.seat(7, fake(Some(&socket), &says, || panic!("it has no seat")));
        assert_eq!(load.carried, 2);
        assert!(said.try_iter().any(|said| said.contains("its socket could not be waited for")));
    }

    #[test]
    fn there_are_never_more_buffers_than_lanes_whatever_those_before_them_needed() {
        let (says, _) = channel();
        let mut load = load();
        load.seat(0, fake(None, &says, || Next::Again));
        for datagram_bytes_max in 1..100 {
            let carried = Fake { datagram_bytes_max, ..*fake(None, &says, || Next::End(Ending::Stopped)) };
            load.seat(1, Box::new(carried));
            assert_eq!(
                load.buffers[load.seats[1].as_ref().unwrap().buffers].needs.datagram_bytes_max,
                datagram_bytes_max
            );
            assert_eq!(load.buffers[load.seats[0].as_ref().unwrap().buffers].needs.datagram_bytes_max, 100);
            load.turn(1);
        }
        assert!(load.buffers.len() <= 2, "{}", load.buffers.len());
    }

    #[test]
    fn everybody_is_reached_beside_one_that_always_has_something_to_do() {
        let (says, said) = channel();
        let thread = Thread::new();
        let done = thread.done.clone();
        let busy = move || if done.load(Ordering::Relaxed) { Next::End(Ending::Stopped) } else { Next::Again };
        thread.carrier.take(0, fake(None, &says, busy)).unwrap();
        // More than are told of at once, and nobody takes more than one datagram in a turn.
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
            thread.carrier.take(at as u8 + 1, fake(Some(socket), &says, turn)).unwrap();
        }
        let mut heard = vec![0; sockets.len()];
        while heard.iter().any(|count| *count < 3) {
            let said = said.recv_timeout(PATIENCE).expect("everybody is reached");
            if let Some((at, _)) = said.split_once(" heard 1") {
                heard[at.parse::<usize>().unwrap()] += 1;
            }
        }
        // Calls and due times, too.
        thread.done.store(true, Ordering::Relaxed);
        (1..=255).for_each(|place| thread.carrier.bell().call(place));
        let mut ended = 0;
        while ended < 256 {
            ended += usize::from(said.recv_timeout(PATIENCE).expect("everybody is reached") == "Stopped");
        }
        thread.leave();
    }

    #[test]
    fn a_due_time_comes_beside_one_that_always_has_something_to_do() {
        let (says, said) = channel();
        let thread = Thread::new();
        let done = thread.done.clone();
        let busy = move || if done.load(Ordering::Relaxed) { Next::End(Ending::Stopped) } else { Next::Again };
        thread.carrier.take(0, fake(None, &says, busy)).unwrap();
        let mut nexts = [Next::Sleep(Duration::from_millis(1)), Next::End(Ending::Retired)].into_iter();
        thread.carrier.take(255, fake(None, &says, move || nexts.next().unwrap())).unwrap();
        while said.recv_timeout(PATIENCE).expect("its time comes") != "Retired" {}
        thread.leave();
    }
}
