//! The life of one lane: it is opened on a thread of its own, takes its turns there or on one that it shares, and reports its end.

use std::any::Any;
use std::io;
use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Inbox, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use tessera_contracts::prefix_map::{LaneIndex, MapVersion, PrefixMap};

use crate::context::Context;
use crate::handler::Handler;
use crate::lane::{Lane, Mail};
use crate::net::calls::Calls;
use crate::ring::park::Parker;
use crate::runtime::commands::CommandInbox;
use crate::runtime::lane_task::LaneTask;
use crate::runtime::log_thread::LogThread;
use crate::runtime::shared_thread::SharedThread;
use crate::runtime::supervisor::Request;
use crate::runtime::supervisor_thread::TaskSender;
use crate::runtime::thread_pool::Reservation;
use crate::time::{LaneTime, micros};
use crate::wal::LogConfig;
use crate::wal::log::{Recovered, Wal, remove_lane};
use crate::wal::queue::{WriterParkers, log_queue};
use crate::wal::storage::Directory;
use crate::wal::writer::Writer;

/// How often a lane that waits to be told that it owns something looks whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Everything a lane's thread needs.
pub(super) struct LanePorts<C> {
    pub(super) lane: LaneIndex,
    /// The map before the present one, if it takes the place of a lane that is gone.
    pub(super) former: Option<Arc<PrefixMap>>,
    /// It starts when it is told that it owns something, or leaves if it never will.
    pub(super) on_trial: bool,
    /// Where it may run if it has no core of its own. It may be started by a thread that serves other runtimes, too.
    pub(super) home: Option<CpuSet>,
    pub(super) core: Option<usize>,
    pub(super) socket: Option<Arc<UdpSocket>>,
    pub(super) calls: Calls,
    pub(super) spin: Duration,
    pub(super) origin: Instant,
    pub(super) parker: Arc<Parker>,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) mail: Inbox<Mail>,
    pub(super) commands: CommandInbox<C>,
    pub(super) log: Option<(Directory, LogConfig)>,
    /// Lanes that no longer exist, whose logs this lane takes over.
    pub(super) orphans: Vec<LaneIndex>,
    pub(super) reports: TaskSender<Request>,
    /// Where it takes its turns, if not on a thread of its own.
    pub(super) reservation: Option<Reservation>,
}

impl<C> LanePorts<C> {
    fn now(&self) -> LaneTime {
        LaneTime(micros(self.origin.elapsed()))
    }

    /// Tells the supervisor that the lane gets on, and returns the time.
    pub(super) fn beat(&self) -> LaneTime {
        let now = self.now();
        self.heartbeat.beat(now);
        now
    }

    /// Waits for the disk, which only a lane that does not serve yet may do. It is no stall: a replacement would wait for the
    /// same disk, and two must not open one log. But the supervisor knows of it.
    fn waiting_for_disk<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.heartbeat.disk_wait_began.store(self.now().0 + 1, Ordering::Relaxed);
        self.heartbeat.rest();
        let result = wait();
        self.heartbeat.disk_wait_began.store(0, Ordering::Relaxed);
        self.beat();
        result
    }
}

/// The supervisor's view of a lane's loop, and the flags by which it ends it.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    /// When the current turn, or step of starting, began, in microseconds plus one; zero while the lane sleeps, waits for its
    /// disk before it serves, or has ended.
    turn_began: AtomicU64,
    /// When the lane began to wait for its disk before it serves, in microseconds plus one; zero if it does not.
    disk_wait_began: AtomicU64,
    /// The lane was given up: it must not touch anything any more.
    pub(super) fenced: Arc<AtomicBool>,
    pub(super) stop: AtomicBool,
    /// The thread that the lane shares with others, whose turns it has to wait for once it is there.
    shared: Option<Arc<SharedThread>>,
    is_shared: AtomicBool,
}

impl Heartbeat {
    /// Of a lane that takes its turns on that thread, or on one of its own.
    pub(super) fn of(shared: Option<Arc<SharedThread>>) -> Self {
        Self { shared, ..Self::default() }
    }

    fn beat(&self, now: LaneTime) {
        self.turn_began.store(now.0 + 1, Ordering::Relaxed);
    }

    pub(super) fn rest(&self) {
        self.turn_began.store(0, Ordering::Relaxed);
    }

    /// How long the lane has been in its current turn, or the one it waits for on a thread that it shares. Many turns of others
    /// are no stall, however long they are together; nor is one that the lane does not wait for yet, because it is still opened.
    pub(super) fn busy_for(&self, now: LaneTime) -> Duration {
        match &self.shared {
            Some(shared) if self.is_shared.load(Ordering::Relaxed) => shared.busy_for(),
            _ => since(&self.turn_began, now),
        }
    }

    /// How long the lane has waited for its disk before it serves.
    pub(super) fn waiting_for_disk_for(&self, now: LaneTime) -> Duration {
        since(&self.disk_wait_began, now)
    }
}

fn since(began: &AtomicU64, now: LaneTime) -> Duration {
    match began.load(Ordering::Relaxed) {
        0 => Duration::ZERO,
        began => now.since(LaneTime(began - 1)),
    }
}

/// How a lane ended.
#[derive(Debug)]
pub(super) enum Ending {
    Panicked(String),
    Failed(String),
    /// It was given up and came back.
    Fenced,
    Retired,
    Stopped,
}

impl Ending {
    /// The end of a lane that panicked.
    pub(super) fn of(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        Self::Panicked(said.unwrap_or_else(|| "without a message".to_owned()))
    }
}

/// Runs a lane to its end, or until it takes its turns elsewhere, and reports its end. Its state comes in boxes: every frame
/// below the loop that held it would keep its stack for as long as the lane lives.
pub(super) fn run<H: Handler + Send + 'static>(
    ports: Box<LanePorts<H::Command>>,
    handler: impl FnOnce() -> H,
    cx: Box<Context>,
) where
    H::Command: Send,
{
    let (lane, reports, heartbeat) = (ports.lane, ports.reports.clone(), ports.heartbeat.clone());
    let ending = catch_unwind(AssertUnwindSafe(move || live(ports, handler, cx))).map_err(|panic| Ending::of(&*panic));
    match ending {
        Ok(Ok(None)) => {} // It lives on; the thread that sees its end reports it.
        Ok(Ok(Some(ending))) | Err(ending) => report(lane, &reports, heartbeat, ending),
        Ok(Err(error)) => report(lane, &reports, heartbeat, Ending::Failed(error.to_string())),
    }
}

/// Tells the supervisor that a lane is gone, once it is.
pub(super) fn report(lane: LaneIndex, reports: &TaskSender<Request>, heartbeat: Arc<Heartbeat>, ending: Ending) {
    heartbeat.rest();
    // If the supervisor is gone, no receiver is left.
    let _ = reports.send(Request::Ended { lane, heartbeat, ending });
}

/// The whole life of a lane with a thread of its own; of others, until a shared thread takes them.
fn live<H: Handler + Send + 'static>(
    ports: Box<LanePorts<H::Command>>,
    handler: impl FnOnce() -> H,
    cx: Box<Context>,
) -> io::Result<Option<Ending>>
where
    H::Command: Send,
{
    pin(&ports);
    let lane = match opened(&ports, handler, cx)? {
        Ok(lane) => lane,
        Err(ending) => return Ok(Some(ending)),
    };
    let elsewhere = ports.reservation.as_ref().map(|reservation| (reservation.shared().clone(), reservation.number()));
    let heartbeat = ports.heartbeat.clone();
    let mut task = Box::new(LaneTask::new(ports, lane)?);
    match elsewhere {
        Some((shared, index)) => {
            heartbeat.is_shared.store(true, Ordering::Relaxed);
            shared.take(index, task).map(|()| None)
        }
        None => task.run().map(Some),
    }
}

/// Makes the lane, recovers and starts it; or says how it ended before that. A call of its own, so that the turns use the stack
/// again that making and moving large things has taken.
#[inline(never)]
fn opened<H: Handler>(
    ports: &LanePorts<H::Command>,
    handler: impl FnOnce() -> H,
    mut cx: Box<Context>,
) -> io::Result<Result<Box<Lane<H>>, Ending>> {
    let version = cx.map.version();
    cx.fence = ports.heartbeat.fenced.clone();
    let mut recovered = Vec::new();
    if let Some((directory, config)) = &ports.log {
        let mut open = |lane| {
            let salt = cx.random_u64();
            ports.waiting_for_disk(|| Wal::open(directory.clone(), lane, salt))
        };
        for orphan in &ports.orphans {
            recovered.push(open(*orphan)?.1);
        }
        let (wal, found) = open(ports.lane)?;
        recovered.push(found);
        let parkers = WriterParkers::default();
        let (sender, receiver) = log_queue(config.queue_bytes_max, parkers.clone());
        let writer = Writer::new(wal, receiver, *config, ports.parker.clone(), cx.random_u64());
        let log = LogThread::start(writer, parkers, ports.origin, format!("log-{}", ports.lane.0))?;
        cx.log = Some(sender);
        let findings = recovered.iter().flat_map(|found| &found.findings).map(ToString::to_string).collect();
        let report = Request::Logging { lane: ports.lane, heartbeat: ports.heartbeat.clone(), log, findings };
        let _ = ports.reports.send(report);
    }
    ports.beat();
    let mut lane = Box::new(Lane::new(handler(), cx));
    let orphaned = recovered.len().saturating_sub(1);
    let (orphans, own) = recovered.split_at(orphaned);
    let own = own.iter().flat_map(|found| found.records()).inspect(|_| {
        ports.beat();
    });
    lane.recover(own, ports.former.as_deref());
    // The links wait in the mail, so that the handler's first messages have receivers.
    let now = ports.beat();
    while let Ok(mail) = ports.mail.try_recv() {
        lane.mail(now, mail);
    }
    lane.obey(now);
    adopt(ports, &mut lane, orphans)?;
    if lane.cx.is_fenced() {
        return Ok(Err(Ending::Fenced));
    }
    let _ = ports.reports.send(Request::Opened { lane: ports.lane, heartbeat: ports.heartbeat.clone() });
    if ports.on_trial
        && let Some(ending) = wait_for_a_map_after(version, ports, &mut lane)
    {
        return Ok(Err(ending));
    }
    lane.start(ports.beat());
    Ok(Ok(lane))
}

/// Waits until the lane owns something by a newer map, and says how it ended if that does not come.
fn wait_for_a_map_after<H: Handler>(
    version: MapVersion,
    ports: &LanePorts<H::Command>,
    lane: &mut Lane<H>,
) -> Option<Ending> {
    loop {
        if lane.cx.is_fenced() {
            return Some(Ending::Fenced);
        }
        if ports.heartbeat.stop.load(Ordering::Relaxed) {
            return Some(Ending::Stopped);
        }
        if lane.is_retiring() {
            // With an old log in its place it starts all the same: the log's records are handed on before it leaves.
            return lane.has_nothing_to_hand_over().then_some(Ending::Retired);
        }
        if lane.cx.map.version() != version {
            return None;
        }
        ports.heartbeat.rest();
        let mail = ports.mail.recv_timeout(LOOK_EVERY);
        let now = ports.beat();
        match mail {
            Ok(mail) => lane.mail(now, mail),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Some(Ending::Stopped),
        }
        lane.obey(now);
    }
}

/// Takes over the records of lanes that no longer exist, and removes their files once the records are safe in our own log.
fn adopt<H: Handler>(ports: &LanePorts<H::Command>, lane: &mut Lane<H>, orphans: &[Recovered]) -> io::Result<()> {
    let Some((directory, _)) = &ports.log else { return Ok(()) };
    let mut safe = !ports.orphans.is_empty();
    for (orphan, found) in ports.orphans.iter().zip(orphans) {
        for (count, record) in found.records().enumerate() {
            lane.import(ports.beat(), record);
            if count % 64 == 63 {
                ports.waiting_for_disk(|| lane.wait_for_log()); // The queue to its log is bounded.
            }
        }
        ports.waiting_for_disk(|| lane.wait_for_disk());
        if lane.cx.is_fenced() {
            return Ok(()); // Its successor imports them.
        }
        safe &= lane.is_log_intact();
        if safe {
            remove_lane(directory, *orphan)?;
        }
    }
    if safe {
        let _ = ports.reports.send(Request::Adopted { lane: ports.lane, heartbeat: ports.heartbeat.clone() });
    }
    Ok(())
}

fn pin<C>(ports: &LanePorts<C>) {
    let Some(core) = ports.core else {
        // Where it started is as good, if this is refused.
        let _ = ports.home.map(|home| sched_setaffinity(None, &home));
        return;
    };
    let mut cores = CpuSet::new();
    cores.set(core);
    if let Err(error) = sched_setaffinity(None, &cores) {
        let what = format!(
            "could not be pinned to core {core} ({error}): it runs wherever the system puts it, and may be slower. \
             Allow the core in the process's affinity or cpuset, or switch pinning off"
        );
        let _ = ports.reports.send(Request::Event { lane: ports.lane, what });
    }
}
