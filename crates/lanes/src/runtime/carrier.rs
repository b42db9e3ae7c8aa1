//! A thread on which lanes of many runtimes take turns.
//!
//! A thread for each lane is right where each has a core. A process of many small runtimes has more lanes than cores: there every
//! datagram from one to another would cost two changes of threads, and every lane a stack. So unpinned lanes may share: a thread
//! waits for the sockets of all it carries at once and gives a turn to each that has something. They share the thread and
//! nothing else. A lane that panics goes alone. One that hangs holds up the others, whose supervisors see that: all of them are
//! given up and start again elsewhere, and when the thread comes back it finds their fences raised and lets them go.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::ring::bell::{Bell, PLACES, Places};
use crate::runtime::buffers::{Buffers, Needs};
use crate::runtime::lane_thread::Ending;
use crate::runtime::turning::Next;
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
    fn turn(&mut self, buffers: &mut Buffers) -> io::Result<Next>;
    /// Its sleep is over.
    fn rise(&mut self);
    /// It takes no more turns. Says so to whom it concerns, once it is gone.
    fn end(self: Box<Self>, ending: Ending);
}

/// What a carrying thread and others know together.
#[derive(Debug)]
pub(super) struct Carrier {
    bell: Arc<Bell>,
    origin: Instant,
    /// When the turn under way began, in microseconds plus one; zero between rounds.
    turn_began: AtomicU64,
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
        let carrier = Self { bell, origin: Instant::now(), turn_began: AtomicU64::new(0), arrivals: sender };
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

    /// Gives turns to `arrival` from now on.
    pub(super) fn take(&self, place: u8, arrival: Box<dyn Carried>) -> io::Result<()> {
        self.arrivals.send((place, arrival)).map_err(|_| io::Error::other("the thread for it has ended"))?;
        self.bell.ring();
        Ok(())
    }

    /// Gives everybody turns until nobody is left and `may_leave` says that nobody will come.
    pub(super) fn carry(&self, wheels: Wheels, may_leave: impl Fn() -> bool) {
        // Whoever is carried is lost with the thread: then they are all seen to have stalled.
        let _mark = MarkIfPanicking(self);
        let mut load = Load::new(wheels.epoll);
        loop {
            self.turn_began.store(0, Ordering::Relaxed);
            if load.carried == 0 && may_leave() {
                return;
            }
            self.wait(&mut load, &wheels.arrivals);
            let ready = std::mem::take(&mut load.ready);
            for place in ready.iter() {
                self.turn_began.store(micros(self.origin.elapsed()) + 1, Ordering::Relaxed);
                load.turn(place);
            }
        }
    }

    /// Waits until somebody has something to do, and notes who.
    fn wait(&self, load: &mut Load, arrivals: &Inbox<Arrival>) {
        let mut wait = load.next_due().map(|due| due.saturating_duration_since(Instant::now()));
        if load.ready.is_empty() {
            self.bell.announce_sleep();
        }
        // The second look, now that callers know.
        load.ready.add_all(self.bell.take_called());
        while let Ok((place, arrival)) = arrivals.try_recv() {
            load.seat(place, arrival);
        }
        if load.ready.is_empty() {
            load.rest(LaneTime(micros(self.origin.elapsed())));
        } else {
            wait = Some(Duration::ZERO);
        }
        load.look_at_sockets(wait, &self.bell);
        self.bell.rise();
        load.ready.add_all(self.bell.take_called());
        load.note_due(Instant::now());
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
    buffers: Vec<Buffers>,
    /// How many it is.
    carried: usize,
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
            buffers: Vec::new(),
            carried: 0,
        }
    }

    fn seat(&mut self, place: u8, carried: Box<dyn Carried>) {
        let watched = carried.socket().map_or(Ok(()), |socket| {
            epoll::add(&self.epoll, socket, EventData::new_u64(u64::from(place)), EventFlags::IN)
        });
        if let Err(error) = watched {
            carried.end(Ending::Failed(format!("its socket could not be waited for: {error}")));
            return;
        }
        let needs = carried.needs();
        let buffers = self.buffers.iter().position(|had| had.needs == needs).unwrap_or_else(|| {
            self.buffers.push(Buffers::new(needs));
            self.buffers.len() - 1
        });
        let at = usize::from(place);
        if self.seats.len() <= at {
            self.seats.resize_with(at + 1, || None);
            self.dues.resize(at + 1, None);
        }
        self.seats[at] = Some(Seated { carried, sleeps: false, buffers });
        self.carried += 1;
        self.ready.add(place);
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
        // Interrupted, or told something odd: everything is looked at again in the next round.
        let _ = epoll::wait(&self.epoll, spare_capacity(&mut self.events), wait.as_ref());
        for event in &self.events {
            match u8::try_from(event.data.u64()) {
                Ok(place) => self.ready.add(place),
                Err(_) => bell.silence(),
            }
        }
    }

    /// Gives one a turn.
    fn turn(&mut self, place: u8) {
        let at = usize::from(place);
        // A place may be called before somebody has it, and after.
        let Some(Some(seated)) = self.seats.get_mut(at) else { return };
        let buffers = &mut self.buffers[seated.buffers];
        let turned = catch_unwind(AssertUnwindSafe(|| {
            if std::mem::take(&mut seated.sleeps) {
                seated.carried.rise();
            }
            seated.carried.turn(buffers)
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

    fn unseat(&mut self, at: usize, ending: Ending) {
        let Some(Seated { carried, .. }) = self.seats[at].take() else { return };
        self.carried -= 1;
        // The socket outlives the lane, so the kernel would go on telling.
        if let Some(socket) = carried.socket() {
            let _ = epoll::delete(&self.epoll, socket);
        }
        // What one that panicked leaves behind may panic again.
        let _ = catch_unwind(AssertUnwindSafe(|| carried.end(ending)));
    }
}
