//! The event loop of one lane on its thread.
//!
//! A turn takes what the supervisor, the outside, the socket and the rings have, in batches, and sends what came of it. An idle
//! lane spins briefly and then sleeps until its socket or another thread wakes it. A lane that was given up because it stalled
//! finds its fence raised when it comes back, and leaves without touching anything.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver as Inbox;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use tessera_contracts::prefix_map::LaneIndex;

use crate::context::Context;
use crate::handler::Handler;
use crate::lane::{Lane, Mail};
use crate::net::batch::{Receiver, send_all};
use crate::net::calls::Calls;
use crate::ring::park::Bed;
use crate::runtime::commands::CommandInbox;
use crate::runtime::keeper::Caller;
use crate::runtime::log_thread::LogThread;
use crate::runtime::patience::Patience;
use crate::runtime::supervisor::Request;
use crate::time::{LaneTime, micros};
use crate::wal::LogConfig;
use crate::wal::log::{Recovered, Wal, remove_lane};
use crate::wal::queue::{WriterBeds, log_queue};
use crate::wal::storage::Directory;
use crate::wal::writer::Writer;

/// Commands taken in a turn.
const COMMANDS_PER_TURN: usize = 64;
/// Datagrams written before they are sent, unless the turn ends first.
const SEND_BATCH: usize = 64;
/// A socket that was empty is not asked again sooner, while the rings keep the lane busy.
const EMPTY_SOCKET_PAUSE: Duration = Duration::from_micros(20);
/// A lane that uses no more than so much of its buffers for datagrams has little to do. If that is so for a while, it gives back to
/// the system what it does not need, but for a page: a burst would have most lanes of a process hold many times that for ever.
const LITTLE_BYTES: usize = 4096;
const KEPT_BYTES: usize = 2048;
const IDLE: Duration = Duration::from_millis(250);
/// The longest sleep: so late a lane sees a fence that was raised without a wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// Everything a lane's thread needs.
pub(super) struct Seat<C> {
    pub(super) lane: LaneIndex,
    pub(super) restarted: bool,
    /// Where it may run if it has no core of its own. It may be started by a thread that serves other runtimes, too.
    pub(super) home: Option<CpuSet>,
    pub(super) core: Option<usize>,
    pub(super) socket: Option<Arc<UdpSocket>>,
    pub(super) datagram_bytes_max: usize,
    pub(super) calls: Calls,
    pub(super) spin: Duration,
    pub(super) origin: Instant,
    pub(super) bed: Arc<Bed>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) mail: Inbox<Mail>,
    pub(super) commands: CommandInbox<C>,
    pub(super) log: Option<(Directory, LogConfig)>,
    /// Lanes that no longer exist, whose logs this lane takes over.
    pub(super) orphans: Vec<LaneIndex>,
    pub(super) reports: Caller<Request>,
}

impl<C> Seat<C> {
    fn now(&self) -> LaneTime {
        LaneTime(micros(self.origin.elapsed()))
    }

    /// Tells the supervisor that the lane gets on, and returns the time.
    fn beat(&self) -> LaneTime {
        let now = self.now();
        self.pulse.beat(now);
        now
    }

    /// Waits for the disk, which only a lane that does not serve yet may do. It is no stall: a replacement would wait for the
    /// same disk, and two must not open one log. But the supervisor knows of it.
    fn at_the_disk<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.pulse.disk_wait_began.store(self.now().0 + 1, Ordering::Relaxed);
        self.pulse.rest();
        let result = wait();
        self.pulse.disk_wait_began.store(0, Ordering::Relaxed);
        self.beat();
        result
    }
}

/// What the supervisor sees of a lane's loop, and the flags by which it ends it.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// When the current turn, or step of starting, began, in microseconds plus one; zero while the lane sleeps, waits for its
    /// disk before it serves, or has ended.
    turn_began: AtomicU64,
    /// When the lane began to wait for its disk before it serves, in microseconds plus one; zero if it does not.
    disk_wait_began: AtomicU64,
    /// The lane was given up: it must not touch anything any more.
    pub(super) fenced: Arc<AtomicBool>,
    pub(super) stop: AtomicBool,
}

impl Pulse {
    fn beat(&self, now: LaneTime) {
        self.turn_began.store(now.0 + 1, Ordering::Relaxed);
    }

    fn rest(&self) {
        self.turn_began.store(0, Ordering::Relaxed);
    }

    /// How long the lane has been in its current turn.
    pub(super) fn busy_for(&self, now: LaneTime) -> Duration {
        since(&self.turn_began, now)
    }

    /// How long the lane has waited for its disk before it serves.
    pub(super) fn at_the_disk_for(&self, now: LaneTime) -> Duration {
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

/// Runs a lane to its end and reports it. What it needs comes in boxes: every frame below the loop that held it would keep its
/// stack for as long as the lane lives.
pub(super) fn run<H: Handler>(seat: Box<Seat<H::Command>>, handler: impl FnOnce() -> H, cx: Box<Context>) {
    let (lane, reports, pulse) = (seat.lane, seat.reports.clone(), seat.pulse.clone());
    let ending = catch_unwind(AssertUnwindSafe(move || live(seat, handler, cx))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
        let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
        Ok(Ending::Panicked(said.unwrap_or_else(|| "without a message".to_owned())))
    });
    let ending = ending.unwrap_or_else(|error| Ending::Failed(error.to_string()));
    pulse.rest();
    // If the supervisor is gone, so is everybody who would want to know.
    let _ = reports.send(Request::Ended { lane, pulse, ending });
}

fn live<H: Handler>(seat: Box<Seat<H::Command>>, handler: impl FnOnce() -> H, cx: Box<Context>) -> io::Result<Ending> {
    pin(&seat);
    match opened(&seat, handler, cx)? {
        Some(mut lane) => turn_for_ever(&seat, &mut lane),
        None => Ok(Ending::Fenced),
    }
}

/// Makes the lane, recovers and starts it; none if it was given up meanwhile. A call of its own, so that the turns use the stack
/// again that making and moving large things has taken.
#[inline(never)]
fn opened<H: Handler>(
    seat: &Seat<H::Command>,
    handler: impl FnOnce() -> H,
    mut cx: Box<Context>,
) -> io::Result<Option<Box<Lane<H>>>> {
    cx.fence = seat.pulse.fenced.clone();
    let mut recovered = Vec::new();
    if let Some((directory, config)) = &seat.log {
        let mut open = |lane| {
            let salt = cx.random_u64();
            seat.at_the_disk(|| Wal::open(directory.clone(), lane, salt))
        };
        for orphan in &seat.orphans {
            recovered.push(open(*orphan)?.1);
        }
        let (wal, found) = open(seat.lane)?;
        recovered.push(found);
        let beds = WriterBeds::default();
        let (sender, receiver) = log_queue(config.queue_bytes_max, beds.clone());
        let writer = Writer::new(wal, receiver, *config, seat.bed.clone(), cx.random_u64());
        let log = LogThread::start(writer, beds, seat.origin, format!("log-{}", seat.lane.0))?;
        cx.log = Some(sender);
        let findings = recovered.iter().flat_map(|found| &found.findings).map(ToString::to_string).collect();
        let report = Request::Logging { lane: seat.lane, pulse: seat.pulse.clone(), log, findings };
        let _ = seat.reports.send(report);
    }
    seat.beat();
    let mut lane = Box::new(Lane::new(handler(), cx));
    let orphaned = recovered.len().saturating_sub(1);
    let (orphans, own) = recovered.split_at(orphaned);
    let own = own.iter().flat_map(|found| found.records()).inspect(|_| {
        seat.beat();
    });
    lane.recover(own, seat.restarted);
    // The links wait in the mail, so that what the handler does first reaches somebody.
    let now = seat.beat();
    while let Ok(mail) = seat.mail.try_recv() {
        lane.mail(now, mail);
    }
    adopt(seat, &mut lane, orphans)?;
    if lane.cx.is_fenced() {
        return Ok(None);
    }
    lane.start(seat.beat());
    Ok(Some(lane))
}

/// Takes over the records of lanes that no longer exist, and removes their files once the records are safe in our own log.
fn adopt<H: Handler>(seat: &Seat<H::Command>, lane: &mut Lane<H>, orphans: &[Recovered]) -> io::Result<()> {
    let Some((directory, _)) = &seat.log else { return Ok(()) };
    let mut safe = !seat.orphans.is_empty();
    for (orphan, found) in seat.orphans.iter().zip(orphans) {
        for (count, record) in found.records().enumerate() {
            lane.import(seat.beat(), record);
            if count % 64 == 63 {
                seat.at_the_disk(|| lane.wait_for_log()); // The queue to its log is bounded.
            }
        }
        seat.at_the_disk(|| lane.wait_for_log());
        if lane.cx.is_fenced() {
            return Ok(()); // Its successor imports them.
        }
        safe &= lane.is_log_intact();
        if safe {
            remove_lane(directory, *orphan)?;
        }
    }
    if safe {
        let _ = seat.reports.send(Request::Adopted { lane: seat.lane, pulse: seat.pulse.clone() });
    }
    Ok(())
}

fn turn_for_ever<H: Handler>(seat: &Seat<H::Command>, lane: &mut Lane<H>) -> io::Result<Ending> {
    let counters = lane.cx.counters.clone();
    let is_v6 = seat.socket.as_ref().map(|socket| socket.local_addr()).transpose()?.is_some_and(|at| at.is_ipv6());
    let mut receiver = Receiver::new(seat.datagram_bytes_max, seat.calls);
    let mut patience = Patience::new(seat.spin);
    let mut spin_until = LaneTime(0);
    let mut socket_empty_until = LaneTime(0);
    // When more than a little of the buffers was last in use; none once the rest is given back.
    let mut last_burst = Some(LaneTime(0));
    let mut woken = None;
    loop {
        let mut now = woken.take().unwrap_or_else(|| seat.beat());
        if seat.pulse.fenced.load(Ordering::Relaxed) {
            return Ok(Ending::Fenced);
        }
        let mut busy = false;
        while let Ok(mail) = seat.mail.try_recv() {
            lane.mail(now, mail);
            busy = true;
        }
        for _ in 0..COMMANDS_PER_TURN {
            let Ok(command) = seat.commands.try_recv() else { break };
            lane.command(now, command);
            busy = true;
            if seat.pulse.fenced.load(Ordering::Relaxed) {
                return Ok(Ending::Fenced);
            }
        }
        let (mut socket_is_empty, mut drained) = (true, false);
        if let Some(socket) = &seat.socket {
            if now >= socket_empty_until {
                let received = receiver.receive(socket, &counters, |from, bytes| {
                    lane.datagram(now, from, bytes);
                    if lane.cx.sends.len() >= SEND_BATCH && !seat.pulse.fenced.load(Ordering::Relaxed) {
                        send_all(socket, seat.calls, is_v6, &mut lane.cx.sends, &counters);
                    }
                });
                match received {
                    Ok(0) => socket_empty_until = now.after(EMPTY_SOCKET_PAUSE),
                    Ok(_) => {
                        socket_is_empty = false;
                        // Drained, and nothing more is expected soon: to sleep on the socket is to ask it.
                        drained = receiver.has_drained() && !patience.pays() && !lane.is_retired();
                        busy |= !drained;
                        if drained {
                            socket_empty_until = now.after(EMPTY_SOCKET_PAUSE);
                        }
                    }
                    // An ICMP answer to something we sent: not ours to handle, and gone once read.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            } else {
                socket_is_empty = false;
            }
        }
        busy |= lane.turn(now);
        if seat.pulse.fenced.load(Ordering::Relaxed) {
            return Ok(Ending::Fenced);
        }
        if let Some(socket) = &seat.socket {
            send_all(socket, seat.calls, is_v6, &mut lane.cx.sends, &counters);
        }
        if seat.pulse.stop.load(Ordering::Relaxed) {
            lane.stop(now);
            if let Some(socket) = &seat.socket {
                send_all(socket, seat.calls, is_v6, &mut lane.cx.sends, &counters);
            }
            return Ok(Ending::Stopped);
        }
        if busy {
            spin_until = now.after(patience.look());
            continue;
        }
        if drained {
            // Nothing but datagrams came. To sleep is to look at everything once more; only what has become of the socket in a
            // longer while is better asked than slept on.
            now = seat.beat();
            if now >= socket_empty_until {
                woken = Some(now);
                continue;
            }
        }
        if lane.is_retired() && socket_is_empty {
            lane.stop(now);
            return Ok(Ending::Retired);
        }
        if now < spin_until {
            std::hint::spin_loop();
            continue;
        }
        if receiver.take_reached().max(lane.cx.sends.take_reached()) > LITTLE_BYTES {
            last_burst = Some(now);
        } else if last_burst.is_some_and(|burst| now.since(burst) >= IDLE) {
            receiver.give_back(KEPT_BYTES);
            lane.cx.sends.give_back(KEPT_BYTES);
            last_burst = None;
        }
        sleep(seat, lane, now)?;
        socket_empty_until = LaneTime(0);
        let risen = seat.beat();
        patience.slept(risen.since(now));
        spin_until = risen.after(patience.look());
        woken = Some(risen);
    }
}

/// Sleeps until the socket, another lane, the outside or a timer has something.
fn sleep<H: Handler>(seat: &Seat<H::Command>, lane: &mut Lane<H>, now: LaneTime) -> io::Result<()> {
    seat.bed.announce_sleep();
    // The second look, now that wakers know. What is found is handled: it cannot be put back.
    let mut found =
        lane.has_waiting() || seat.pulse.stop.load(Ordering::Relaxed) || seat.pulse.fenced.load(Ordering::Relaxed);
    if let Ok(mail) = seat.mail.try_recv() {
        lane.mail(now, mail);
        found = true;
    }
    if let Ok(command) = seat.commands.try_recv() {
        lane.command(now, command);
        found = true;
    }
    let wait = lane.next_wake().map_or(SLEEP_MAX, |wake| wake.since(now)).min(SLEEP_MAX);
    if found || wait.is_zero() {
        seat.bed.rise();
        return Ok(());
    }
    lane.cx.counters.sleeps.add(1);
    seat.pulse.rest();
    seat.bed.sleep(wait, seat.socket.as_ref().map(|socket| socket.as_fd()))
}

fn pin<C>(seat: &Seat<C>) {
    let Some(core) = seat.core else {
        // Where it started is as good, if this is refused.
        let _ = seat.home.map(|home| sched_setaffinity(None, &home));
        return;
    };
    let mut cores = CpuSet::new();
    cores.set(core);
    if let Err(error) = sched_setaffinity(None, &cores) {
        let what = format!(
            "could not be pinned to core {core} ({error}): it runs wherever the system puts it, and may be slower. \
             Allow the core in the process's affinity or cpuset, or switch pinning off"
        );
        let _ = seat.reports.send(Request::Event { lane: seat.lane, what });
    }
}
