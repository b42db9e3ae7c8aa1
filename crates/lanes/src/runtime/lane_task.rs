//! The turns of one lane.
//!
//! A turn takes the input of the supervisor, the outside, the socket and the rings, in batches, and sends the output. An idle
//! lane spins briefly and then sleeps until its socket or another thread wakes it. A lane that was given up because it stalled
//! finds its fence raised when it comes back, and leaves without touching anything.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::handler::Handler;
use crate::lane::Lane;
use crate::net::batch::{Receiver, send_all};
use crate::runtime::buffers::{Buffers, Needs};
use crate::runtime::lane_thread::{Ending, LanePorts, report};
use crate::runtime::shared_thread::Task;
use crate::runtime::spin_policy::SpinPolicy;
use crate::telemetry::counters::LaneCounters;
use crate::time::LaneTime;

/// Commands taken in a turn.
const COMMANDS_PER_TURN: usize = 64;
/// Datagrams written before they are sent, unless the turn ends first.
const SEND_BATCH: usize = 64;
/// A socket that was empty is not asked again sooner, while the rings keep the lane busy.
const EMPTY_SOCKET_PAUSE: Duration = Duration::from_micros(20);
/// The longest sleep: so late a lane sees a fence that was raised without a wake-up.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// A lane's wish after a turn.
#[derive(Debug)]
pub(super) enum Next {
    /// Another one at once.
    Again,
    /// None before something comes or this has passed. Senders know that it sleeps.
    Sleep(Duration),
    /// None ever.
    End(Ending),
}

/// The known state of a lane's socket before a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Socket {
    /// Nothing: to know, the lane asks it.
    Unknown,
    /// The shared thread watches the sockets of all its lanes, and has just seen whether this one has something.
    HasSomething,
    IsEmpty,
}

/// A lane that runs, between two turns.
pub(super) struct LaneTask<H: Handler> {
    ports: Box<LanePorts<H::Command>>,
    lane: Box<Lane<H>>,
    counters: Arc<LaneCounters>,
    is_v6: bool,
    spin_policy: SpinPolicy,
    spin_until: LaneTime,
    socket_empty_until: LaneTime,
    fell_asleep: LaneTime,
    /// When the last turn began, if it had something to do.
    busy_since: Option<LaneTime>,
    woken: Option<LaneTime>,
}

impl<H: Handler> LaneTask<H> {
    pub(super) fn new(ports: Box<LanePorts<H::Command>>, lane: Box<Lane<H>>) -> io::Result<Self> {
        let local = ports.socket.as_ref().map(|socket| socket.local_addr()).transpose()?;
        Ok(Self {
            counters: lane.cx.counters.clone(),
            is_v6: local.is_some_and(|at| at.is_ipv6()),
            spin_policy: SpinPolicy::new(ports.spin),
            spin_until: LaneTime(0),
            socket_empty_until: LaneTime(0),
            fell_asleep: LaneTime(0),
            busy_since: None,
            woken: None,
            ports,
            lane,
        })
    }

    /// Turns on this thread until the lane ends.
    pub(super) fn run(&mut self) -> io::Result<Ending> {
        let mut buffers = Buffers::new(self.needs());
        loop {
            match self.turn(&mut buffers, Socket::Unknown)? {
                Next::Again => {}
                Next::Sleep(wait) => {
                    buffers.rest(self.fell_asleep);
                    self.ports.parker.sleep(wait, self.socket())?;
                    self.unpark();
                }
                Next::End(ending) => return Ok(ending),
            }
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.ports.socket.as_ref().map(|socket| socket.as_fd())
    }

    fn is_fenced(&self) -> bool {
        self.ports.heartbeat.fenced.load(Ordering::Relaxed)
    }

    fn send(&mut self) {
        if let Some(socket) = &self.ports.socket {
            send_all(socket, self.ports.calls, self.is_v6, &mut self.lane.cx.sends, &self.counters);
        }
    }

    fn needs(&self) -> Needs {
        let (send_queue_max, datagram_bytes_max) = self.lane.cx.sends.bounds();
        Needs { calls: self.ports.calls, datagram_bytes_max, send_queue_max }
    }

    /// One turn, with buffers that another lane may use next.
    fn turn(&mut self, buffers: &mut Buffers, socket: Socket) -> io::Result<Next> {
        // Datagrams the lane has written before its first turn go from its own buffers.
        let lent = self.lane.cx.sends.len() == 0;
        if lent {
            std::mem::swap(&mut self.lane.cx.sends, &mut buffers.sends);
        }
        let next = self.turn_with(&mut buffers.receiver, socket);
        if lent {
            match next {
                // It found work while parking.
                Ok(Next::Again | Next::Sleep(_)) if !self.is_fenced() => self.send(),
                // A lane that was given up must not send any more.
                _ => self.lane.cx.sends.advance(usize::MAX),
            }
            std::mem::swap(&mut self.lane.cx.sends, &mut buffers.sends);
        }
        next
    }

    fn turn_with(&mut self, receiver: &mut Receiver, known: Socket) -> io::Result<Next> {
        let is_watched = known != Socket::Unknown;
        let mut now = self.woken.take().unwrap_or_else(|| self.ports.beat());
        if self.is_fenced() {
            return Ok(Next::End(Ending::Fenced));
        }
        if let Some(since) = self.busy_since.take() {
            self.counters.busy_micros.add(now.0.saturating_sub(since.0));
        }
        let mut busy = false;
        while let Ok(mail) = self.ports.mail.try_recv() {
            self.lane.mail(now, mail);
            busy = true;
        }
        for taken in 1..=COMMANDS_PER_TURN {
            let Some(command) = self.ports.commands.take() else { break };
            self.lane.command(now, command);
            // To park is to look for more of them, and a socket that is watched need not be asked before.
            busy |= !is_watched || self.spin_policy.pays() || taken == COMMANDS_PER_TURN;
            if self.is_fenced() {
                return Ok(Next::End(Ending::Fenced));
            }
        }
        let (mut socket_is_empty, mut drained) = (true, false);
        let Self { ports, lane, counters, is_v6, spin_policy, .. } = self;
        if let Some(socket) = ports.socket.as_ref().filter(|_| known != Socket::IsEmpty) {
            if is_watched || now >= self.socket_empty_until {
                let received = receiver.receive(socket, counters, |from, bytes| {
                    lane.datagram(now, from, bytes);
                    if lane.cx.sends.len() >= SEND_BATCH && !ports.heartbeat.fenced.load(Ordering::Relaxed) {
                        send_all(socket, ports.calls, *is_v6, &mut lane.cx.sends, counters);
                    }
                });
                match received {
                    Ok(0) => self.socket_empty_until = now.after(EMPTY_SOCKET_PAUSE),
                    Ok(_) => {
                        socket_is_empty = false;
                        // Drained, and nothing more is expected soon: to sleep on the socket is to ask it.
                        drained = receiver.has_drained() && !spin_policy.pays() && !lane.is_retired();
                        busy |= !drained;
                        if drained && !is_watched {
                            self.socket_empty_until = now.after(EMPTY_SOCKET_PAUSE);
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
        busy |= self.lane.turn(now);
        if self.is_fenced() {
            return Ok(Next::End(Ending::Fenced));
        }
        self.send();
        if !is_watched {
            // No other lane has a turn on this thread. A waker may take its time, and must not where the lane is known to sleep.
            self.lane.cx.wakes.wake();
        }
        if self.ports.heartbeat.stop.load(Ordering::Relaxed) {
            self.lane.stop(now);
            self.send();
            return Ok(Next::End(Ending::Stopped));
        }
        if busy {
            // The next turn follows at once, and knows when this one ended.
            self.busy_since = Some(now);
            self.spin_until = now.after(self.spin_policy.look());
            return Ok(Next::Again);
        }
        if drained && !is_watched {
            // Nothing but datagrams came. To sleep is to look at everything once more; only after a longer while the socket is
            // better polled first.
            let began = std::mem::replace(&mut now, self.ports.beat());
            self.counters.busy_micros.add(now.0.saturating_sub(began.0));
            if now >= self.socket_empty_until {
                self.woken = Some(now);
                return Ok(Next::Again);
            }
        }
        if self.lane.is_retired() && socket_is_empty {
            self.lane.stop(now);
            return Ok(Next::End(Ending::Retired));
        }
        if now < self.spin_until {
            std::hint::spin_loop();
            return Ok(Next::Again);
        }
        self.fell_asleep = now;
        Ok(match self.park(now) {
            Some(wait) => Next::Sleep(wait),
            None => {
                self.unpark();
                Next::Again
            }
        })
    }

    /// Makes it known that the lane sleeps, and says for how long at most; none if there is something after all.
    fn park(&mut self, now: LaneTime) -> Option<Duration> {
        let Self { ports, lane, .. } = self;
        ports.parker.announce_sleep();
        // The second look, now that wakers know. Input found is handled: it cannot be put back.
        let mut found = lane.has_waiting()
            || ports.heartbeat.stop.load(Ordering::Relaxed)
            || ports.heartbeat.fenced.load(Ordering::Relaxed);
        if let Ok(mail) = ports.mail.try_recv() {
            lane.mail(now, mail);
            found = true;
        }
        if let Some(command) = ports.commands.take() {
            lane.command(now, command);
            found = true;
        }
        let wait = lane.next_wake().map_or(SLEEP_MAX, |wake| wake.since(now)).min(SLEEP_MAX);
        if found || wait.is_zero() {
            return None;
        }
        lane.cx.counters.sleeps.add(1);
        ports.heartbeat.rest();
        Some(wait)
    }

    /// Something came, or the time has passed.
    fn unpark(&mut self) {
        self.ports.parker.unpark();
        self.socket_empty_until = LaneTime(0);
        let risen = self.ports.beat();
        self.spin_policy.slept(risen.since(self.fell_asleep));
        self.spin_until = risen.after(self.spin_policy.look());
        self.woken = Some(risen);
    }
}

impl<H: Handler + Send> Task for LaneTask<H>
where
    H::Command: Send,
{
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket()
    }

    fn needs(&self) -> Needs {
        self.needs()
    }

    fn turn(&mut self, buffers: &mut Buffers, socket: Socket) -> io::Result<Next> {
        self.lane.cx.wakes.follow(&buffers.wakes);
        let next = self.turn(buffers, socket);
        buffers.wakes.take_from(&mut self.lane.cx.wakes);
        next
    }

    fn unpark(&mut self) {
        self.unpark();
    }

    fn end(self: Box<Self>, ending: Ending) {
        let (lane, reports, heartbeat) = (self.ports.lane, self.ports.reports.clone(), self.ports.heartbeat.clone());
        // Dropping a handler that panicked may panic again, and its end is to be reported all the same.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(self)));
        report(lane, &reports, heartbeat, ending);
    }
}
