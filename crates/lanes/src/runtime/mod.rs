//! Lanes on threads: pinned event loops with sockets, logs on disk, and a supervisor that restarts what fails.
//!
//! [`Runtime::start`] starts S lanes and a supervisor. Lanes share nothing but rings; the supervisor owns the sockets, hands out
//! links and maps by mail, and watches. Everything outside the lanes (commands, changes, counters) goes through [`Runtime`].

mod cores;
mod lane_thread;
mod log_thread;
mod observer;
mod supervisor;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_contracts::prefix_map::{LaneIndex, MapError, PrefixMap, Selector, Slot};

use crate::config::LaneConfig;
use crate::handler::Handler;
use crate::ring::park::Bed;
use crate::telemetry::alarms::Alarm;
use crate::telemetry::counters::LaneCounters;
use crate::telemetry::snapshot::Snapshot;
use crate::telemetry::trace::TraceEvent;
use crate::telemetry::trace_file::TraceFiles;
use crate::wal::LogConfig;

/// What a runtime is made of.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// How many lanes; by default one per physical core that the process may use.
    pub lanes: usize,
    /// Which bits of a distance pick the slot. The runtime itself never looks at ids; handlers read it from their map.
    pub selector: Selector,
    /// The bounds of each lane.
    pub lane: LaneConfig,
    /// Where lanes listen for datagrams; `None` for lanes without a network.
    pub bind: Option<SocketAddr>,
    /// What the kernel is asked to buffer for each socket.
    pub socket_buffer_bytes: usize,
    /// Whether the kernel is asked to steer datagrams by their slot byte. Without it, lanes pass them on over rings.
    pub kernel_steering: bool,
    /// Whether datagrams are moved in batches (recvmmsg, sendmmsg). Without, or where the system refuses it, a call moves one.
    pub batched_calls: bool,
    /// Where lanes keep their logs, and how; `None` for lanes that forget.
    pub log: Option<(PathBuf, LogConfig)>,
    /// Whether lanes are pinned to cores.
    pub pin: bool,
    /// The cores lanes are pinned to, in turn; `None` for all the process may use when the runtime starts.
    pub cores: Option<Vec<usize>>,
    /// How long an idle lane looks for work before it sleeps. Zero if there are more lanes than cores.
    pub spin: Duration,
    /// A lane that spends longer than this in one turn is given up and replaced.
    pub stall_bound: Duration,
    /// What happens to lanes that fail.
    pub restart: RestartPolicy,
    /// Commands that may wait for a lane.
    pub commands_max: usize,
    /// Where metrics are served as Prometheus text, at `/metrics`; `None` for nowhere.
    pub metrics: Option<SocketAddr>,
    /// Trace events kept for each lane until somebody takes them.
    pub traces_max: usize,
    /// Where traces are written; `None` leaves them to [`Runtime::take_traces`].
    pub trace_files: Option<TraceFiles>,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        Self {
            lanes: cores::lanes_by_default(),
            selector: Selector::default(),
            lane: LaneConfig::default(),
            bind: None,
            socket_buffer_bytes: 4 << 20,
            kernel_steering: true,
            batched_calls: true,
            log: None,
            pin: true,
            cores: None,
            spin: Duration::from_micros(50),
            stall_bound: Duration::from_secs(2),
            restart: RestartPolicy::default(),
            commands_max: 1024,
            metrics: None,
            traces_max: 1024,
            trace_files: None,
        }
    }
}

/// How lanes that fail are restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// The wait before the first restart; it doubles with every failure.
    pub delay_min: Duration,
    /// The longest wait.
    pub delay_max: Duration,
    /// A lane that ran this long counts as healthy: its next failure is the first again.
    pub healthy_after: Duration,
    /// After this many failures in a row the whole runtime stops; `None` to try for ever.
    pub failures_max: Option<u32>,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_millis(10),
            delay_max: Duration::from_secs(5),
            healthy_after: Duration::from_secs(30),
            failures_max: None,
        }
    }
}

impl RestartPolicy {
    /// How long to wait before restarting a lane after its `failures`-th failure in a row.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(20);
        self.delay_min.saturating_mul(1 << doublings).min(self.delay_max)
    }
}

/// Something an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which lane, if it is about one.
    pub lane: Option<LaneIndex>,
    /// What happened.
    pub what: String,
}

/// A running set of lanes. Dropping it stops them.
#[derive(Debug)]
pub struct Runtime<C: Send + 'static> {
    shared: Arc<Shared<C>>,
    requests: Sender<supervisor::Request>,
    supervisor: Option<JoinHandle<()>>,
    observer: Option<observer::Observer>,
}

/// What the outside and the supervisor know together. Lanes do not see it.
#[derive(Debug)]
struct Shared<C> {
    /// Where to send commands, by lane; `None` while a lane is down.
    doors: RwLock<Vec<Option<Door<C>>>>,
    counters: RwLock<Vec<Arc<LaneCounters>>>,
    map: RwLock<Arc<PrefixMap>>,
    events: Mutex<Vec<Event>>,
    traces: Mutex<Vec<rtrb::Consumer<TraceEvent>>>,
    alarms: Mutex<Vec<Alarm>>,
    address: Option<SocketAddr>,
    /// Whether the kernel steers, as far as we were asked to make it.
    steering: std::sync::atomic::AtomicBool,
    failed: std::sync::atomic::AtomicBool,
}

/// Events kept until somebody takes them; the oldest go first.
const EVENTS_MAX: usize = 1024;
/// Traces kept in all before those of dead lanes are thrown away unread.
const TRACES_OF_THE_DEAD_MAX: usize = 512;

impl<C> Shared<C> {
    fn event(&self, lane: Option<LaneIndex>, what: impl Into<String>) {
        let mut events = lock(&self.events);
        if events.len() == EVENTS_MAX {
            events.remove(0);
        }
        events.push(Event { lane, what: what.into() });
    }
}

impl<C> Shared<C> {
    /// A lane starts with this trace. Those of dead lanes that nobody reads do not pile up.
    fn add_trace(&self, trace: rtrb::Consumer<TraceEvent>) {
        let mut traces = lock(&self.traces);
        traces.retain(|old| !(old.is_abandoned() && old.is_empty()));
        if traces.len() >= TRACES_OF_THE_DEAD_MAX
            && let Some(oldest) = traces.iter().position(rtrb::Consumer::is_abandoned)
        {
            traces.remove(oldest);
        }
        traces.push(trace);
    }

    fn take_traces(&self, mut each: impl FnMut(TraceEvent)) {
        let mut traces = lock(&self.traces);
        for ring in traces.iter_mut() {
            while let Ok(event) = ring.pop() {
                each(event);
            }
        }
        traces.retain(|ring| !ring.is_abandoned());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Door<C> {
    commands: SyncSender<C>,
    bed: Arc<Bed>,
}

/// Why a runtime did not start.
#[derive(Debug)]
pub enum StartError {
    /// The number of lanes is not one to 256.
    Lanes(MapError),
    /// A socket, thread or file could not be had.
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        error: io::Error,
    },
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lanes(error) => error.fmt(f),
            Self::Io { doing, error } => write!(f, "{doing}: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// Why a command did not reach its lane; it comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum CommandRefused<C> {
    /// As many commands wait as may.
    Busy(C),
    /// The lane is down, or there is none of that number.
    Down(C),
}

/// Why lanes were not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// Another change is under way; wait for it.
    InProgress,
    /// The change asked for makes no sense.
    Map(MapError),
    /// The sockets for more lanes could not be bound.
    Sockets,
    /// The runtime has stopped.
    Stopped,
}

impl std::fmt::Display for ChangeRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InProgress => f.write_str("lanes are being changed already: wait until that is done"),
            Self::Map(error) => error.fmt(f),
            Self::Sockets => f.write_str("no more sockets could be bound to the port: see the events"),
            Self::Stopped => f.write_str("the runtime has stopped"),
        }
    }
}

impl std::error::Error for ChangeRefused {}

impl<C: Send + 'static> Runtime<C> {
    /// Starts lanes that run what `make` makes, for each lane and after each failure.
    pub fn start<H, F>(config: RuntimeConfig, make: F) -> Result<Self, StartError>
    where
        H: Handler<Command = C> + 'static,
        F: Fn(LaneIndex) -> H + Send + Sync + 'static,
    {
        let (requests, inbox) = channel();
        let (shared, supervisor) = supervisor::start(&config, make, requests.clone(), inbox)?;
        let observer = observer::Observer::start(&config, shared.clone())?;
        Ok(Self { shared, requests, supervisor: Some(supervisor), observer: Some(observer) })
    }

    /// The address the lanes listen on.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.shared.address
    }

    /// Where metrics are served.
    #[must_use]
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.observer.as_ref().and_then(observer::Observer::address)
    }

    /// Whether the kernel steers datagrams; if not, lanes pass them on.
    #[must_use]
    pub fn is_kernel_steered(&self) -> bool {
        self.shared.steering.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Whether the restart policy gave up and the lanes have stopped.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        self.shared.failed.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// The map as the supervisor last set it; lanes may still be on their way to it.
    #[must_use]
    pub fn map(&self) -> Arc<PrefixMap> {
        self.shared.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks something of a lane. Never waits.
    pub fn command(&self, lane: LaneIndex, command: C) -> Result<(), CommandRefused<C>> {
        let doors = self.shared.doors.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(door)) = doors.get(usize::from(lane.0)) else { return Err(CommandRefused::Down(command)) };
        match door.commands.try_send(command) {
            Ok(()) => {
                door.bed.wake();
                Ok(())
            }
            Err(TrySendError::Full(command)) => Err(CommandRefused::Busy(command)),
            Err(TrySendError::Disconnected(command)) => Err(CommandRefused::Down(command)),
        }
    }

    /// Asks something of the lane that owns `slot`.
    pub fn command_owner(&self, slot: Slot, command: C) -> Result<(), CommandRefused<C>> {
        let lane = self.map().lane_of_slot(slot);
        self.command(lane, command)
    }

    /// The counters of every lane there ever was. A lane that is restarted goes on from a copy, so ask again and keep none.
    #[must_use]
    pub fn counters(&self) -> Vec<Arc<LaneCounters>> {
        self.shared.counters.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether every lane runs and no slot is on its way from one to another.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let counters = self.counters();
        let doors = self.shared.doors.read().unwrap_or_else(PoisonError::into_inner);
        (0..self.map().lanes()).all(|lane| doors.get(lane).is_some_and(Option::is_some))
            && counters.iter().take(self.map().lanes()).all(|lane| lane.incarnations.get() > 0)
            && counters.iter().all(|lane| lane.handoffs_pending.get() == 0)
    }

    /// All counters, read now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.counters())
    }

    /// Alarms that stand.
    #[must_use]
    pub fn alarms(&self) -> Vec<Alarm> {
        lock(&self.shared.alarms).clone()
    }

    /// What happened since this was last called.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *lock(&self.shared.events))
    }

    /// Trace events since this was last called, of all lanes; none if they are written to files.
    pub fn take_traces(&self) -> Vec<TraceEvent> {
        let mut taken = Vec::new();
        self.shared.take_traces(|event| taken.push(event));
        taken
    }

    /// Changes the number of lanes while they run, and waits until every slot is with its new owner.
    pub fn resize(&self, lanes: usize) -> Result<(), ChangeRefused> {
        self.change(supervisor::Change::Resize(lanes))
    }

    /// Lends every other slot of `lane` to `helper`, to relieve it.
    pub fn relieve(&self, lane: LaneIndex, helper: LaneIndex) -> Result<(), ChangeRefused> {
        self.change(supervisor::Change::Relieve { lane, helper })
    }

    /// Takes all lent slots back.
    pub fn merge_back(&self) -> Result<(), ChangeRefused> {
        self.change(supervisor::Change::MergeBack)
    }

    fn change(&self, change: supervisor::Change) -> Result<(), ChangeRefused> {
        let (reply, answer) = sync_channel(1);
        self.requests.send(supervisor::Request::Change { change, reply }).map_err(|_| ChangeRefused::Stopped)?;
        answer.recv().unwrap_or(Err(ChangeRefused::Stopped))
    }

    /// Stops all lanes after their last call, and waits for them.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let _ = self.requests.send(supervisor::Request::Stop);
        if let Some(supervisor) = self.supervisor.take() {
            let _ = supervisor.join();
        }
        drop(self.observer.take());
    }
}

impl<C: Send + 'static> Drop for Runtime<C> {
    fn drop(&mut self) {
        if self.supervisor.is_some() {
            self.stop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_delays_double_up_to_their_bound() {
        let policy = RestartPolicy::default();
        let delays: Vec<u128> = [1, 2, 3, 10, u32::MAX].map(|failures| policy.delay(failures).as_millis()).to_vec();
        assert_eq!(delays, [10, 20, 40, 5000, 5000]);
    }
}
