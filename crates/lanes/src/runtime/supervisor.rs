//! The thread that owns the sockets, starts lanes, watches them, replaces those that fail, and changes which lane owns what.
//!
//! One at a time it works off requests and looks at the lanes' pulses. It never touches a lane's state: all it can do to a lane
//! is send it mail, raise its fence, or tell it to stop.

mod change;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap};

use crate::context::Context;
use crate::handler::Handler;
use crate::lane::Mail;
use crate::net::calls::Calls;
use crate::net::group::SocketGroup;
use crate::ring::link::link;
use crate::ring::park::Bed;
use crate::ring::pressure::Pressure;
use crate::runtime::lane_thread::{self, Ending, Pulse, Seat};
use crate::runtime::log_thread::LogThread;
use crate::runtime::{ChangeRefused, Door, RuntimeConfig, Shared, StartError, cores};
use crate::telemetry::counters::LaneCounters;
use crate::telemetry::trace::Tracer;
use crate::time::{LaneTime, micros};
use crate::wal::log::lanes_with_files;
use crate::wal::storage::Directory;

/// How often the supervisor looks at the lanes' pulses.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long lanes are given to stop before their threads are left behind.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// What the supervisor is told and asked.
pub(super) enum Request {
    Change {
        change: Change,
        reply: SyncSender<Result<(), ChangeRefused>>,
    },
    /// A lane has a log now, found in this state.
    Logging {
        lane: LaneIndex,
        pulse: Arc<Pulse>,
        log: LogThread,
        findings: Vec<String>,
    },
    Ended {
        lane: LaneIndex,
        pulse: Arc<Pulse>,
        ending: Ending,
    },
    Event {
        lane: LaneIndex,
        what: String,
    },
    Stop,
}

/// A change of which lane owns what.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Resize(usize),
    Relieve { lane: LaneIndex, helper: LaneIndex },
    MergeBack,
}

type Made<C> = (Arc<Shared<C>>, JoinHandle<()>);

/// Starts the supervisor and all lanes.
pub(super) fn start<H, F>(
    config: &RuntimeConfig,
    make: F,
    requests: Sender<Request>,
    inbox: Receiver<Request>,
) -> Result<Made<H::Command>, StartError>
where
    H: Handler + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    let io = |doing: &str| {
        let doing = doing.to_owned();
        move |error| StartError::Io { doing, error }
    };
    let map = Arc::new(PrefixMap::new(config.selector, config.lanes).map_err(StartError::Lanes)?);
    let log = match &config.log {
        None => None,
        Some((path, log)) => {
            let directory =
                Directory::open(path).map_err(io(&format!("opening the log directory {}", path.display())))?;
            let lock = File::create(path.join("lanes.lock")).map_err(io("creating the lock of the log directory"))?;
            // A second process would join the socket group and write the same logs.
            lock.try_lock().map_err(|error| StartError::Io {
                doing: format!("locking {}: is another process using it?", path.display()),
                error: error.into(),
            })?;
            Some((directory, *log, lock))
        }
    };
    let sockets = config
        .bind
        .map(|at| SocketGroup::bind(at, config.lanes, config.socket_buffer_bytes).map_err(io(&format!("binding {at}"))))
        .transpose()?;
    let shared = Arc::new(Shared {
        doors: RwLock::default(),
        counters: RwLock::default(),
        map: RwLock::new(map.clone()),
        events: Mutex::default(),
        traces: Mutex::default(),
        alarms: Mutex::default(),
        address: sockets.as_ref().map(SocketGroup::address),
        steering: AtomicBool::new(false),
        failed: AtomicBool::new(false),
    });
    let cores = config.cores.clone().unwrap_or_else(cores::allowed);
    let calls = match sockets.as_ref().map(SocketGroup::probe_batches) {
        Some(Err(error)) => {
            let what = format!(
                "datagrams cannot be moved in batches ({error}): every one costs a system call, which is slower. \
                 Allow recvmmsg and sendmmsg in the sandbox of the process"
            );
            shared.event(None, what);
            Calls::Single
        }
        _ if config.batched_calls => Calls::Batched { slot_at: config.lane.steer_offset },
        _ => Calls::Single,
    };
    let mut supervisor = Supervisor {
        config: config.clone(),
        make: Arc::new(make),
        shared: shared.clone(),
        requests,
        map,
        sockets,
        log,
        origin: Instant::now(),
        cores,
        calls,
        lanes: BTreeMap::new(),
        change: None,
        stopping: false,
    };
    supervisor.steer();
    let orphans = supervisor.find_orphans().map_err(io("listing the log directory"))?;
    for lane in 0..supervisor.config.lanes {
        let adopted = orphans.iter().copied().filter(|orphan| usize::from(orphan.0) % supervisor.config.lanes == lane);
        let adopted = adopted.collect();
        supervisor.start_lane(LaneIndex(lane as u8), false, adopted).map_err(io("starting a lane"))?;
    }
    let thread = std::thread::Builder::new()
        .name("lanes".to_owned())
        .spawn(move || supervisor.run(&inbox))
        .map_err(io("starting the supervisor"))?;
    Ok((shared, thread))
}

struct Supervisor<H: Handler, F> {
    config: RuntimeConfig,
    make: Arc<F>,
    shared: Arc<Shared<H::Command>>,
    requests: Sender<Request>,
    map: Arc<PrefixMap>,
    sockets: Option<SocketGroup>,
    log: Option<(Directory, crate::wal::LogConfig, File)>,
    origin: Instant,
    cores: Vec<usize>,
    calls: Calls,
    lanes: BTreeMap<LaneIndex, Watched>,
    change: Option<ChangeInProgress>,
    stopping: bool,
}

/// A lane as the supervisor sees it.
struct Watched {
    state: State,
    mail: Sender<Mail>,
    bed: Arc<Bed>,
    pressure: Arc<Pressure>,
    pulse: Arc<Pulse>,
    log: Option<LogThread>,
    started: Instant,
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Failed; starts again then.
    Down {
        restart_at: Instant,
    },
    Retiring,
}

struct ChangeInProgress {
    reply: SyncSender<Result<(), ChangeRefused>>,
    retiring: bool,
}

impl<H, F> Supervisor<H, F>
where
    H: Handler + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    fn run(mut self, inbox: &Receiver<Request>) {
        while !self.stopping {
            match inbox.recv_timeout(LOOK_EVERY) {
                Ok(request) => self.handle(request),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look();
        }
        self.stop(inbox);
    }

    fn now(&self) -> LaneTime {
        LaneTime(micros(self.origin.elapsed()))
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Change { change, reply } => self.begin(change, reply),
            Request::Logging { lane, pulse, log, findings } => {
                for finding in findings {
                    self.shared.event(Some(lane), finding);
                }
                match self.lanes.get_mut(&lane).filter(|watched| Arc::ptr_eq(&watched.pulse, &pulse)) {
                    Some(watched) => watched.log = Some(log),
                    None => drop(log.join()), // It opened its log after it was given up.
                }
            }
            Request::Ended { lane, pulse, ending } => self.ended(lane, &pulse, ending),
            Request::Event { lane, what } => self.shared.event(Some(lane), what),
            Request::Stop => self.stopping = true,
        }
    }

    fn ended(&mut self, lane: LaneIndex, pulse: &Arc<Pulse>, ending: Ending) {
        let current = self.lanes.get(&lane).is_some_and(|watched| Arc::ptr_eq(&watched.pulse, pulse));
        match ending {
            Ending::Fenced => self.shared.event(Some(lane), "a lane that had stalled came back and left"),
            _ if !current => {}
            Ending::Retired => self.remove(lane),
            Ending::Stopped => {}
            Ending::Panicked(said) => self.down(lane, &format!("panicked: {said}")),
            Ending::Failed(why) => self.down(lane, &format!("failed: {why}")),
        }
    }

    /// A lane is gone without wanting to: tell the others, and plan its return.
    fn down(&mut self, lane: LaneIndex, why: &str) {
        let Some(watched) = self.lanes.get_mut(&lane) else { return };
        watched.failures = if watched.started.elapsed() >= self.config.restart.healthy_after {
            1
        } else {
            watched.failures.saturating_add(1)
        };
        let failures = watched.failures;
        let delay = self.config.restart.delay(failures);
        watched.state = State::Down { restart_at: Instant::now() + delay };
        self.shared.event(Some(lane), format!("{why}; restarts in {} ms (failure {failures})", delay.as_millis()));
        self.set_door(lane, None);
        self.tell_others(lane, |_| Mail::Unlink(lane));
        if self.config.restart.failures_max.is_some_and(|most| failures > most) {
            self.shared
                .event(Some(lane), format!("failed {failures} times in a row: the runtime stops, as configured"));
            self.shared.failed.store(true, Ordering::Relaxed);
            self.stopping = true;
        }
    }

    fn tell_others(&mut self, lane: LaneIndex, mail: impl Fn(LaneIndex) -> Mail) {
        for (other, watched) in self.lanes.iter().filter(|(other, _)| **other != lane) {
            watched.tell(mail(*other));
        }
    }

    /// Looks at every lane's pulse, restarts what is due, and moves a running change on.
    fn look(&mut self) {
        let now = self.now();
        let stalled: Vec<LaneIndex> = self
            .lanes
            .iter()
            .filter(|(_, watched)| !matches!(watched.state, State::Down { .. }))
            .filter(|(_, watched)| watched.pulse.busy_for(now) > self.config.stall_bound)
            .map(|(lane, _)| *lane)
            .collect();
        for lane in stalled {
            self.lanes[&lane].pulse.fenced.store(true, Ordering::Relaxed);
            let bound = self.config.stall_bound.as_millis();
            self.down(lane, &format!("stalled for more than {bound} ms and was given up"));
        }
        let due: Vec<LaneIndex> = self
            .lanes
            .iter()
            .filter(|(_, watched)| matches!(watched.state, State::Down { restart_at } if restart_at <= Instant::now()))
            .map(|(lane, _)| *lane)
            .collect();
        for lane in due {
            self.restart(lane);
        }
        self.watch_logs();
        self.move_on();
    }

    fn restart(&mut self, lane: LaneIndex) {
        // The old writer ends first: two of them must not write one log.
        if let Some(log) = self.lanes.get_mut(&lane).and_then(|watched| watched.log.take())
            && let Err(error) = log.join()
        {
            self.shared.event(Some(lane), format!("its log could not be written: {error}"));
        }
        match self.start_lane(lane, true, Vec::new()) {
            Ok(()) => self.steer(),
            Err(error) => self.down(lane, &format!("could not be restarted: {error}")),
        }
    }

    fn watch_logs(&mut self) {
        for (lane, watched) in &mut self.lanes {
            if watched.state == State::Running
                && watched.log.as_ref().is_some_and(LogThread::is_finished)
                && let Some(log) = watched.log.take()
                && let Err(error) = log.join()
            {
                self.shared.event(Some(*lane), format!("its log cannot be written any more: {error}"));
            }
        }
    }

    /// Starts a lane on its socket, new or in place of a dead one, and links it with all others.
    fn start_lane(&mut self, index: LaneIndex, restarted: bool, orphans: Vec<LaneIndex>) -> io::Result<()> {
        let place = usize::from(index.0);
        let counters = {
            let mut counters = self.shared.counters.write().unwrap_or_else(PoisonError::into_inner);
            while counters.len() <= place {
                counters.push(Arc::new(LaneCounters::default()));
            }
            if restarted {
                counters[place] = Arc::new((*counters[place]).clone());
            }
            counters[place].clone()
        };
        let (bed, pressure, pulse) = (Bed::with_eventfd()?, Arc::new(Pressure::default()), Arc::new(Pulse::default()));
        let (mail, mailbox) = channel();
        let (commands, command_inbox) = sync_channel(self.config.commands_max);
        let mut seed = [0u8; 32];
        getrandom(&mut seed, GetRandomFlags::empty())?;
        let mut cx = Context::new(index, &self.config.lane, self.map.clone(), seed, self.now(), counters);
        let (tracer, traces) = Tracer::new(self.config.lane.trace_every, self.config.traces_max);
        cx.tracer = tracer;
        self.shared.add_trace(traces);
        let alone = self.config.lanes <= self.cores.len();
        let seat = Seat {
            lane: index,
            restarted,
            core: (self.config.pin && !self.cores.is_empty()).then(|| self.cores[place % self.cores.len()]),
            socket: self.sockets.as_ref().map(|sockets| sockets.socket(place)),
            datagram_bytes_max: self.config.lane.datagram_bytes_max,
            calls: self.calls,
            spin: if alone { self.config.spin } else { Duration::ZERO },
            origin: self.origin,
            bed: bed.clone(),
            pulse: pulse.clone(),
            mail: mailbox,
            commands: command_inbox,
            log: self.log.as_ref().map(|(directory, config, _)| (directory.clone(), *config)),
            orphans,
            reports: self.requests.clone(),
        };
        // Links first: the lane finds them in its mail before its handler starts.
        let sizes = self.config.lane.rings;
        for (there, other) in self.lanes.iter().filter(|(there, other)| **there != index && other.is_up()) {
            let (out, inlet) = link(index, *there, &sizes, other.bed.clone(), other.pressure.clone());
            let _ = mail.send(Mail::Link(Box::new(out)));
            other.tell(Mail::Inlet(Box::new(inlet)));
            let (out, inlet) = link(*there, index, &sizes, bed.clone(), pressure.clone());
            other.tell(Mail::Link(Box::new(out)));
            let _ = mail.send(Mail::Inlet(Box::new(inlet)));
        }
        let (out, inlet) = link(index, index, &sizes, bed.clone(), pressure.clone());
        let _ = mail.send(Mail::Link(Box::new(out)));
        let _ = mail.send(Mail::Inlet(Box::new(inlet)));
        let make = self.make.clone();
        std::thread::Builder::new()
            .name(format!("lane-{}", index.0))
            .spawn(move || lane_thread::run(seat, move || make(index), cx))?;
        self.set_door(index, Some(Door { commands, bed: bed.clone() }));
        let failures = self.lanes.get(&index).map_or(0, |old| old.failures);
        let state = if place < self.config.lanes { State::Running } else { State::Retiring };
        let started = Instant::now();
        self.lanes.insert(index, Watched { state, mail, bed, pressure, pulse, log: None, started, failures });
        if state == State::Retiring {
            self.lanes[&index].tell(Mail::Retire);
        }
        Ok(())
    }

    fn set_door(&self, lane: LaneIndex, door: Option<Door<H::Command>>) {
        let mut doors = self.shared.doors.write().unwrap_or_else(PoisonError::into_inner);
        let place = usize::from(lane.0);
        if doors.len() <= place {
            doors.resize_with(place + 1, || None);
        }
        doors[place] = door;
    }

    /// Makes the kernel steer by the map, or notes that lanes will have to.
    fn steer(&self) {
        let (Some(sockets), Some(offset)) = (&self.sockets, self.config.lane.steer_offset) else { return };
        let steered = self.config.kernel_steering
            && match sockets.steer(&self.map, offset) {
                Ok(()) => true,
                Err(error) => {
                    let what =
                        format!("the kernel does not steer datagrams ({error}): lanes pass them on, which is slower");
                    self.shared.event(None, what);
                    false
                }
            };
        self.shared.steering.store(steered, Ordering::Relaxed);
    }

    /// Lanes that have a log here and no longer exist.
    fn find_orphans(&self) -> io::Result<Vec<LaneIndex>> {
        let Some((directory, ..)) = &self.log else { return Ok(Vec::new()) };
        let lanes = lanes_with_files(directory)?.into_iter();
        Ok(lanes.filter(|lane| usize::from(lane.0) >= self.config.lanes).collect())
    }

    fn stop(mut self, inbox: &Receiver<Request>) {
        for watched in self.lanes.values() {
            watched.pulse.stop.store(true, Ordering::Relaxed);
            watched.bed.wake();
        }
        let mut running = self.lanes.values().filter(|watched| watched.is_up()).count();
        let deadline = Instant::now() + STOP_PATIENCE;
        while running > 0 {
            match inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Request::Ended { lane, pulse, .. }) => {
                    let current = self.lanes.get(&lane).is_some_and(|watched| Arc::ptr_eq(&watched.pulse, &pulse));
                    running -= usize::from(current);
                }
                Ok(request) => self.handle(request),
                Err(_) => {
                    self.shared.event(None, format!("{running} lanes did not stop in time and were left behind"));
                    break;
                }
            }
        }
        self.shared.doors.write().unwrap_or_else(PoisonError::into_inner).clear();
        for (lane, watched) in &mut self.lanes {
            if let Some(log) = watched.log.take()
                && let Err(error) = log.join()
            {
                self.shared.event(Some(*lane), format!("its log could not be written to the end: {error}"));
            }
        }
    }
}

impl Watched {
    fn is_up(&self) -> bool {
        !matches!(self.state, State::Down { .. })
    }

    fn tell(&self, mail: Mail) {
        // A lane that is gone is about to be reported as ended; its successor gets mail of its own.
        if self.mail.send(mail).is_ok() {
            self.bed.wake();
        }
    }
}
