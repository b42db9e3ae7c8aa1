//! Who owns the sockets, starts lanes, watches them, replaces those that fail, and changes which lane owns what.
//!
//! In its turn on the [`supervisor_thread`](crate::runtime::supervisor_thread)'s thread it works off requests and looks at the lanes' pulses. It never
//! touches a lane's state: all it can do to a lane is send it mail, raise its fence, or tell it to stop. And it never waits:
//! others have turns on that thread too.

mod change;
mod launch;
pub(super) mod opening;
mod relieving;
mod stopping;

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender};
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap};

use crate::handler::Handler;
use crate::lane::Mail;
use crate::net::calls::Calls;
use crate::net::group::SocketGroup;
use crate::orders::Orders;
use crate::ring::park::Parker;
use crate::ring::pressure::Pressure;
use crate::runtime::lane_thread::{Ending, Heartbeat};
use crate::runtime::log_thread::LogThread;
use crate::runtime::observer::AlarmWatch;
use crate::runtime::spawner::Spawner;
use crate::runtime::supervisor::relieving::ReliefWatch;
use crate::runtime::supervisor_thread::{SupervisorTask, TaskSender};
use crate::runtime::{ChangeRefused, RuntimeConfig, Shared, lock};
use crate::time::{LaneTime, micros};
use crate::wal::storage::Directory;

/// How often the supervisor looks at the lanes while one is down or slots move; and the most it lets pass otherwise.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const LOOK_SELDOM: Duration = Duration::from_millis(100);

/// What the supervisor is told and asked.
pub(super) enum Request {
    Change {
        change: Change,
        reply: SyncSender<Result<(), ChangeRefused>>,
    },
    /// A lane has a log now, found in this state.
    Logging {
        lane: LaneIndex,
        heartbeat: Arc<Heartbeat>,
        log: LogThread,
        findings: Vec<String>,
    },
    /// A lane has its log and what that remembers: it starts, unless it is on trial.
    Opened {
        lane: LaneIndex,
        heartbeat: Arc<Heartbeat>,
    },
    Ended {
        lane: LaneIndex,
        heartbeat: Arc<Heartbeat>,
        ending: Ending,
    },
    /// A lane has the records of all the lanes whose logs it was to take over safe in its own.
    Adopted {
        lane: LaneIndex,
        heartbeat: Arc<Heartbeat>,
    },
    Event {
        lane: LaneIndex,
        what: String,
    },
    /// The files of a lane that had retired are gone, or why not.
    Removed {
        lane: LaneIndex,
        outcome: std::io::Result<()>,
    },
    Stop,
}

/// Why a lane is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Its runtime starts.
    First,
    /// The last one in its place failed.
    Again,
    /// It is to own something once all lanes of a change are open.
    OnTrial,
}

/// A change of which lane owns what.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Resize(usize),
    Relieve { lane: LaneIndex, helper: LaneIndex },
    MergeBack,
}

struct Supervisor<H: Handler, F> {
    config: RuntimeConfig,
    make: Arc<F>,
    spawner: Arc<dyn Spawner>,
    shared: Arc<Shared<H::Command>>,
    requests: TaskSender<Request>,
    inbox: Receiver<Request>,
    map: Arc<PrefixMap>,
    /// The one before it. A lane that dies may not have heard of the last change, and none begins before all have.
    former: Arc<PrefixMap>,
    sockets: Option<SocketGroup>,
    log: Option<(Directory, crate::wal::LogConfig, File)>,
    origin: Instant,
    cores: Vec<usize>,
    /// Where the thread that started the runtime may run, and so its lanes if they are not pinned.
    home: Option<CpuSet>,
    calls: Calls,
    lanes: BTreeMap<LaneIndex, Watched>,
    /// Writers of lanes that were given up before they had said that they have one.
    logs_left: Vec<LogThread>,
    change: Option<ChangeInProgress>,
    /// A change that was asked for while one was under way that nobody asked for: it is next.
    next_change: Option<(Change, SyncSender<Result<(), ChangeRefused>>)>,
    relief: Option<ReliefWatch>,
    alarms: Option<AlarmWatch>,
    stopping: bool,
    /// When lanes that have not stopped by themselves are left behind, once they were told to stop.
    stop_by: Option<Instant>,
}

/// A lane as the supervisor sees it.
struct Watched {
    state: State,
    mail: Sender<Mail>,
    orders: Orders,
    parker: Arc<Parker>,
    pressure: Arc<Pressure>,
    heartbeat: Arc<Heartbeat>,
    log: Option<LogThread>,
    /// Lanes that no longer exist, whose logs it has yet to take over.
    orphans: Vec<LaneIndex>,
    started: Instant,
    /// It has said that it is open.
    is_open: bool,
    /// It waits for a change that has not begun to move anything, and is let go if it fails.
    on_trial: bool,
    failures: u32,
    /// What became of the last that failed in this place.
    last_failure: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Failed; starts again then.
    Down {
        restart_at: Instant,
    },
    Retiring,
    /// It owns nothing and its thread is gone; its writer has yet to end.
    Retired {
        at: Instant,
    },
    /// Its writer has ended, and its files are being removed since then.
    Removing {
        at: Instant,
    },
    /// It has stopped with the runtime.
    Stopped,
}

struct ChangeInProgress {
    /// `None` once the requester has been told.
    reply: Option<SyncSender<Result<(), ChangeRefused>>>,
    /// It relieves a lane, and was not asked for.
    is_unasked: bool,
    begun: Instant,
    stage: Stage,
    /// What is said when it is done: a change that is undone ends like any other, with lanes that retire.
    outcome: Result<(), ChangeRefused>,
}

/// How far a change has come.
enum Stage {
    /// All lanes, old and new, must be open before any lane receives this map. Up to here nothing has happened that would have
    /// to be undone.
    Opening(Arc<PrefixMap>),
    /// All know the map, and slots move. From here on there is no way back.
    Moving,
    /// Lanes that own nothing leave.
    Retiring,
}

impl<H, F> SupervisorTask for Supervisor<H, F>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    fn turn(&mut self) -> Option<Duration> {
        // All requests before a lane is judged: a log that was opened must be known before its lane is replaced.
        while let Ok(request) = self.inbox.try_recv() {
            self.handle(request);
        }
        if !self.stopping {
            self.look();
            self.relieve_hot_lanes();
            if let Some(alarms) = &mut self.alarms {
                alarms.look(&self.shared);
            }
        }
        if self.stopping { self.stop() } else { Some(self.next_look()) }
    }
}

impl<H, F> Supervisor<H, F>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    /// When to look again although no message arrives: soon if something is to be moved on, else often enough that a stall is
    /// seen an eighth of its bound late at most.
    fn next_look(&self) -> Duration {
        let moving =
            self.change.is_some() || !self.logs_left.is_empty() || self.lanes.values().any(|watched| !watched.is_up());
        if moving { LOOK_EVERY } else { (self.config.stall_bound / 8).clamp(LOOK_EVERY, LOOK_SELDOM) }
    }

    fn now(&self) -> LaneTime {
        LaneTime(micros(self.origin.elapsed()))
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Change { change, reply } => self.begin(change, reply),
            Request::Logging { lane, heartbeat, log, findings } => {
                for finding in findings {
                    self.shared.event(Some(lane), finding);
                }
                match self.lanes.get_mut(&lane).filter(|watched| Arc::ptr_eq(&watched.heartbeat, &heartbeat)) {
                    Some(watched) => watched.log = Some(log),
                    None => self.logs_left.push(log), // It opened its log after it was given up.
                }
            }
            Request::Opened { lane, heartbeat } => {
                if let Some(watched) =
                    self.lanes.get_mut(&lane).filter(|watched| Arc::ptr_eq(&watched.heartbeat, &heartbeat))
                {
                    watched.is_open = true;
                }
            }
            Request::Ended { lane, heartbeat, ending } => self.ended(lane, &heartbeat, ending),
            Request::Adopted { lane, heartbeat } => {
                if let Some(watched) =
                    self.lanes.get_mut(&lane).filter(|watched| Arc::ptr_eq(&watched.heartbeat, &heartbeat))
                {
                    watched.orphans.clear();
                }
            }
            Request::Event { lane, what } => self.shared.event(Some(lane), what),
            Request::Removed { lane, outcome } => self.removed(lane, outcome),
            Request::Stop => self.stopping = true,
        }
    }

    fn ended(&mut self, lane: LaneIndex, heartbeat: &Arc<Heartbeat>, ending: Ending) {
        let current = self.lanes.get(&lane).is_some_and(|watched| Arc::ptr_eq(&watched.heartbeat, heartbeat));
        match ending {
            _ if self.stop_by.is_some() => {
                if let Some(watched) = self.lanes.get_mut(&lane).filter(|_| current) {
                    watched.state = State::Stopped;
                }
            }
            Ending::Fenced => self.shared.event(Some(lane), "a lane that had stalled came back and left"),
            _ if !current => {}
            Ending::Retired => self.retired(lane),
            Ending::Stopped => {}
            Ending::Panicked(said) => self.down(lane, &format!("panicked: {said}")),
            Ending::Failed(why) => self.down(lane, &format!("failed: {why}")),
        }
    }

    /// A lane is gone without wanting to: tell the others, and plan its return.
    fn down(&mut self, lane: LaneIndex, why: &str) {
        let Some(watched) = self.lanes.get_mut(&lane) else { return };
        if watched.on_trial {
            self.let_go(lane, why);
            return;
        }
        watched.last_failure = Some(why.to_owned());
        watched.failures = if watched.started.elapsed() >= self.config.restart.healthy_after {
            1
        } else {
            watched.failures.saturating_add(1)
        };
        let failures = watched.failures;
        let delay = self.config.restart.delay(failures);
        watched.state = State::Down { restart_at: Instant::now() + delay };
        self.shared.event(Some(lane), format!("{why}; restarts in {} ms (failure {failures})", delay.as_millis()));
        self.set_endpoint(lane, None);
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

    /// Looks at every lane's heartbeat, restarts what is due, and moves a running change on.
    fn look(&mut self) {
        let now = self.now();
        let stalled: Vec<LaneIndex> = self
            .lanes
            .iter()
            .filter(|(_, watched)| watched.is_up())
            .filter(|(_, watched)| watched.heartbeat.busy_for(now) > self.config.stall_bound)
            .map(|(lane, _)| *lane)
            .collect();
        for lane in stalled {
            self.lanes[&lane].heartbeat.fenced.store(true, Ordering::Relaxed);
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
        self.see_off();
        self.send_orders();
        self.watch_disks(now);
        self.move_on();
    }

    fn restart(&mut self, lane: LaneIndex) {
        let Some(watched) = self.lanes.get_mut(&lane) else { return };
        // The old writer ends first: two of them must not write one log. It may have to wait for its disk; we do not.
        if let Some(log) = watched.log.take_if(|log| log.has_stopped())
            && let Err(error) = log.join()
        {
            self.shared.event(Some(lane), format!("its log could not be written: {error}"));
        }
        if watched.log.is_some() {
            return;
        }
        let orphans = watched.orphans.clone();
        match self.start_lane(lane, Start::Again, orphans) {
            // The sockets outlive the lane, so the kernel should still steer. A process that shares our port could have changed that.
            Ok(()) => self.steer(),
            Err(error) => self.down(lane, &format!("could not be restarted: {error}")),
        }
    }

    fn watch_logs(&mut self) {
        self.logs_left.retain(|log| !log.has_stopped());
        for (lane, watched) in &mut self.lanes {
            if watched.state == State::Running
                && watched.log.as_ref().is_some_and(LogThread::is_finished)
                && let Some(log) = watched.log.take()
                && let Err(error) = log.join()
            {
                let what = format!("its log cannot be written any more: {error}");
                watched.last_failure = Some(what.clone());
                self.shared.event(Some(*lane), what);
            }
        }
    }

    /// Notes which lanes cannot serve because their disk does not answer, and says so once for each wait.
    fn watch_disks(&mut self, now: LaneTime) {
        let bound = self.config.stall_bound;
        let waiting: Vec<LaneIndex> = self
            .lanes
            .iter()
            .filter(|(_, watched)| watched.waiting_for_disk_for(now, Instant::now()) > bound)
            .map(|(lane, _)| *lane)
            .collect();
        let before = std::mem::replace(&mut *lock(&self.shared.waiting_for_disk), waiting.clone());
        for lane in waiting.iter().filter(|lane| !before.contains(lane)) {
            let what = format!(
                "its disk has not answered for more than {} ms: it serves when it does. Check the disk of the logs",
                bound.as_millis()
            );
            self.shared.event(Some(*lane), what);
        }
        for lane in before.iter().filter(|lane| !waiting.contains(lane)) {
            self.shared.event(Some(*lane), "its disk answers again");
        }
    }
}

impl Watched {
    fn is_up(&self) -> bool {
        matches!(self.state, State::Running | State::Retiring)
    }

    /// How long the lane has waited for a disk: to read its log, to see its predecessor's writer end, or to be gone.
    fn waiting_for_disk_for(&self, now: LaneTime, instant: Instant) -> Duration {
        match self.state {
            State::Down { restart_at } if self.log.is_some() => instant.saturating_duration_since(restart_at),
            State::Retired { at } | State::Removing { at } => instant.saturating_duration_since(at),
            State::Down { .. } | State::Stopped => Duration::ZERO,
            State::Running | State::Retiring => self.heartbeat.waiting_for_disk_for(now),
        }
    }

    fn tell(&self, mail: Mail) {
        // A lane that is gone is about to be reported as ended; its successor gets mail of its own.
        if self.mail.send(mail).is_ok() {
            self.parker.wake();
        }
    }
}
