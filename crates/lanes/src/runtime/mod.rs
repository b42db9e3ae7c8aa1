//! Lanes on threads: event loops with sockets, logs on disk, and a supervisor that restarts lanes that fail.
//!
//! [`Runtime::start`] starts S lanes and a supervisor. Lanes share nothing but rings; the supervisor owns the sockets, hands out
//! links and maps by mail, and watches. Everything outside the lanes (commands, changes, counters) goes through [`Runtime`].

mod buffers;
mod commands;
mod cores;
mod lane_task;
mod lane_thread;
mod log_thread;
mod observer;
mod relief;
mod settings;
mod shared;
mod shared_thread;
mod spawner;
mod spin_policy;
mod supervisor;
mod supervisor_thread;
mod thread_pool;
mod workload;

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{TrySendError, sync_channel};
use std::sync::{Arc, PoisonError};

use tessera_contracts::prefix_map::{LaneIndex, MapError, PrefixMap, Slot};

use crate::handler::Handler;
pub use crate::runtime::relief::ReliefPolicy;
pub use crate::runtime::settings::{RestartPolicy, RuntimeConfig};
use crate::runtime::shared::{Endpoint, Shared, lock};
use crate::telemetry::alarms::Alarm;
use crate::telemetry::counters::LaneCounters;
use crate::telemetry::snapshot::Snapshot;
use crate::telemetry::trace::TraceEvent;

/// Something an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Which lane, if it is about one.
    pub lane: Option<LaneIndex>,
    /// The event, in words.
    pub what: String,
}

/// A running set of lanes. Dropping it stops them and waits for them, but only for five seconds: lanes that hang, or share
/// a thread with one that does, are left behind and do nothing more if they come back. A handler that drops a runtime holds up
/// its own thread, and for all of that time if a lane of the other has its turns there.
#[derive(Debug)]
pub struct Runtime<C: Send + 'static> {
    shared: Arc<Shared<C>>,
    requests: supervisor_thread::TaskSender<supervisor::Request>,
    supervisor: Option<supervisor_thread::Ended>,
    observer: Option<observer::Observer>,
    /// Held so that the owner of the runtime drops it: it may own anything, even another runtime, and the thread of the
    /// supervisors must not wait for itself.
    _make: Arc<dyn Any + Send + Sync>,
}

/// Why a runtime did not start.
#[derive(Debug)]
pub enum StartError {
    /// The number of lanes is not one to 256.
    Lanes(MapError),
    /// A socket, thread or file could not be had.
    Io {
        /// The operation that failed.
        doing: String,
        /// The system's error.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// Another change is under way, or a lane still takes over the log of one there is no more; wait for it.
    InProgress,
    /// The change asked for makes no sense.
    Map(MapError),
    /// The sockets for more lanes could not be bound.
    Sockets,
    /// A lane that has to be there did not start, for this reason: the system refused a resource, its log could not be opened,
    /// or it took longer than [`RuntimeConfig::change_patience`]. Nothing has moved, and new lanes are gone again, or will be once
    /// they can be.
    NoLane(String),
    /// Slots have begun to move and are not all there in time, for this reason. The change goes on, and comes to its end when the
    /// lanes that hold it up are well again; until then there is no other.
    Unfinished(String),
    /// The runtime has stopped.
    Stopped,
}

impl std::fmt::Display for ChangeRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InProgress => f.write_str("lanes are being changed already: wait until that is done"),
            Self::Map(error) => error.fmt(f),
            Self::Sockets => f.write_str("no more sockets could be bound to the port: see the events"),
            Self::NoLane(why) => write!(f, "a lane could not be started, so everything stays as it was: {why}"),
            Self::Unfinished(why) => {
                write!(f, "the change of lanes is not done in time; slots have begun to move, and it goes on: {why}")
            }
            Self::Stopped => f.write_str("the runtime has stopped"),
        }
    }
}

impl std::error::Error for ChangeRefused {}

impl<C: Send + 'static> Runtime<C> {
    /// Starts lanes that run what `make` makes, for each lane and after each failure.
    pub fn start<H, F>(config: RuntimeConfig, make: F) -> Result<Self, StartError>
    where
        H: Handler<Command = C> + Send + 'static,
        F: Fn(LaneIndex) -> H + Send + Sync + 'static,
    {
        Self::start_with(config, make, Arc::new(spawner::System))
    }

    fn start_with<H, F>(config: RuntimeConfig, make: F, spawner: Arc<dyn spawner::Spawner>) -> Result<Self, StartError>
    where
        H: Handler<Command = C> + Send + 'static,
        F: Fn(LaneIndex) -> H + Send + Sync + 'static,
    {
        let make = Arc::new(make);
        let (shared, requests, supervisor) = supervisor::opening::start(&config, make.clone(), spawner)?;
        let mut runtime = Self { shared, requests, supervisor: Some(supervisor), observer: None, _make: make };
        if observer::Observer::is_wanted(&config) {
            runtime.observer = Some(observer::Observer::start(&config, runtime.shared.clone())?);
        }
        Ok(runtime)
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
        self.shared.steering.load(Ordering::Relaxed)
    }

    /// Whether the restart policy gave up and the lanes have stopped.
    #[must_use]
    pub fn has_given_up(&self) -> bool {
        self.shared.failed.load(Ordering::Relaxed)
    }

    /// The map as the supervisor last set it; lanes may still be on their way to it.
    #[must_use]
    pub fn map(&self) -> Arc<PrefixMap> {
        self.shared.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives a lane a command. Never waits.
    ///
    /// A lane that goes down drops the commands it has not taken, and those that it has with its state: a caller that waits for an
    /// answer finds the channel closed, may ask again, and reaches the successor. So it is with a lane that hangs and is given up,
    /// except for commands it has taken: the one in which it hangs, and those whose answers its handler owes, are the hung
    /// thread's until that comes back.
    pub fn command(&self, lane: LaneIndex, command: C) -> Result<(), CommandRefused<C>> {
        let endpoints = self.shared.endpoints.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Some(endpoint)) = endpoints.get(usize::from(lane.0)) else {
            return Err(CommandRefused::Down(command));
        };
        match endpoint.commands.try_send(command) {
            Ok(()) => {
                endpoint.parker.wake();
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

    /// Whether every lane runs and knows the map, and no slot is on its way from one to another.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let (map, counters) = (self.map(), self.counters());
        let endpoints = self.shared.endpoints.read().unwrap_or_else(PoisonError::into_inner);
        let is_up = |lane: usize| endpoints.get(lane).is_some_and(Option::is_some);
        let knows_map = |lane: &LaneCounters| lane.map_version.get() == u64::from(map.version().0);
        (0..map.lanes()).all(is_up)
            && counters.iter().take(map.lanes()).all(|lane| lane.incarnations.get() > 0)
            // Leaving lanes, too: a lane that has not heard of the map has not begun to hand over.
            && counters.iter().enumerate().all(|(lane, counters)| !is_up(lane) || knows_map(counters))
            && counters.iter().all(|lane| lane.handoffs_pending.get() == 0)
    }

    /// All counters, read now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.counters())
    }

    /// Lanes that have waited for their disk for longer than the stall bound and cannot serve before it answers.
    #[must_use]
    pub fn waiting_for_disk(&self) -> Vec<LaneIndex> {
        lock(&self.shared.waiting_for_disk).clone()
    }

    /// Alarms that stand.
    #[must_use]
    pub fn alarms(&self) -> Vec<Alarm> {
        lock(&self.shared.alarms).clone()
    }

    /// Events since the last call.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *lock(&self.shared.events))
    }

    /// Trace events since this was last called, of all lanes; none if they are written to files.
    pub fn take_traces(&self) -> Vec<TraceEvent> {
        let mut taken = Vec::new();
        self.shared.take_traces(|event| taken.push(event));
        taken
    }

    /// Changes the number of lanes while they run, and waits until every slot is with its new owner, but no longer than
    /// [`RuntimeConfig::change_patience`]. No slot moves before all lanes are open, the new ones with their logs: if one cannot be,
    /// everything stays as it was.
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

    /// Tells all lanes to stop and waits for nothing: for a runtime that others hold, too. A caller that waits for a change of lanes is
    /// told at once; the lanes are gone when the last holder has [shut it down](Self::shutdown) or dropped it.
    pub fn begin_stop(&self) {
        let _ = self.requests.send(supervisor::Request::Stop);
    }

    /// Stops all lanes after their last call, and waits for them, as dropping it does.
    pub fn shutdown(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        self.begin_stop();
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.wait();
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
