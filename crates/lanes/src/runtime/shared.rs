//! State that the supervisor shares with threads outside the lanes.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap};

use crate::ring::park::Parker;
use crate::runtime::Event;
use crate::runtime::commands::CommandSender;
use crate::telemetry::alarms::Alarm;
use crate::telemetry::counters::LaneCounters;
use crate::telemetry::trace::TraceEvent;

/// State shared by the supervisor and the runtime's callers. Lanes do not see it.
#[derive(Debug)]
pub(super) struct Shared<C> {
    /// Where to send commands, by lane; `None` while a lane is down.
    pub(super) endpoints: RwLock<Vec<Option<Endpoint<C>>>>,
    pub(super) counters: RwLock<Vec<Arc<LaneCounters>>>,
    pub(super) map: RwLock<Arc<PrefixMap>>,
    pub(super) events: Mutex<Vec<Event>>,
    pub(super) traces: Mutex<Vec<rtrb::Consumer<TraceEvent>>>,
    pub(super) alarms: Mutex<Vec<Alarm>>,
    /// Lanes that wait for their disk for too long, in order.
    pub(super) waiting_for_disk: Mutex<Vec<LaneIndex>>,
    pub(super) address: Option<SocketAddr>,
    /// Whether the kernel steers, as far as we were asked to make it.
    pub(super) steering: AtomicBool,
    pub(super) failed: AtomicBool,
}

/// Events kept until they are read; the oldest are dropped first.
const EVENTS_MAX: usize = 1024;
/// Traces kept in all before those of dead lanes are thrown away unread.
const TRACES_OF_THE_DEAD_MAX: usize = 512;

impl<C> Shared<C> {
    pub(super) fn new(map: Arc<PrefixMap>, address: Option<SocketAddr>) -> Self {
        Self {
            endpoints: RwLock::default(),
            counters: RwLock::default(),
            map: RwLock::new(map),
            events: Mutex::default(),
            traces: Mutex::default(),
            alarms: Mutex::default(),
            waiting_for_disk: Mutex::default(),
            address,
            steering: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

    pub(super) fn event(&self, lane: Option<LaneIndex>, what: impl Into<String>) {
        let mut events = lock(&self.events);
        if events.len() == EVENTS_MAX {
            events.remove(0);
        }
        events.push(Event { lane, what: what.into() });
    }

    /// A lane starts with this trace. Unread traces of dead lanes do not pile up.
    pub(super) fn add_trace(&self, trace: rtrb::Consumer<TraceEvent>) {
        let mut traces = lock(&self.traces);
        traces.retain(|old| !(old.is_abandoned() && old.is_empty()));
        if traces.len() >= TRACES_OF_THE_DEAD_MAX
            && let Some(oldest) = traces.iter().position(rtrb::Consumer::is_abandoned)
        {
            traces.remove(oldest);
        }
        traces.push(trace);
    }

    pub(super) fn take_traces(&self, mut each: impl FnMut(TraceEvent)) {
        let mut traces = lock(&self.traces);
        for ring in traces.iter_mut() {
            while let Ok(event) = ring.pop() {
                each(event);
            }
        }
        traces.retain(|ring| !ring.is_abandoned());
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(super) struct Endpoint<C> {
    pub(super) commands: CommandSender<C>,
    pub(super) parker: Arc<Parker>,
}
