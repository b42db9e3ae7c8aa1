//! Putting a lane on its socket and core: rings to all others, a door for commands, and the kernel told who owns what.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use tessera_contracts::prefix_map::LaneIndex;

use crate::context::Context;
use crate::handler::Handler;
use crate::lane::Mail;
use crate::ring::link::link;
use crate::ring::park::Bed;
use crate::ring::pressure::Pressure;
use crate::runtime::Door;
use crate::runtime::lane_thread::{self, Pulse, Seat};
use crate::runtime::supervisor::{State, Supervisor, Watched};
use crate::telemetry::counters::LaneCounters;
use crate::telemetry::trace::Tracer;

impl<H, F> Supervisor<H, F>
where
    H: Handler + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    /// Starts a lane on its socket, new or in place of a dead one, and links it with all others.
    pub(super) fn start_lane(&mut self, index: LaneIndex, restarted: bool, orphans: Vec<LaneIndex>) -> io::Result<()> {
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
            orphans: orphans.clone(),
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
        self.lanes.insert(index, Watched { state, mail, bed, pressure, pulse, log: None, orphans, started, failures });
        if state == State::Retiring {
            self.lanes[&index].tell(Mail::Retire);
        }
        Ok(())
    }

    pub(super) fn set_door(&self, lane: LaneIndex, door: Option<Door<H::Command>>) {
        let mut doors = self.shared.doors.write().unwrap_or_else(PoisonError::into_inner);
        let place = usize::from(lane.0);
        if doors.len() <= place {
            doors.resize_with(place + 1, || None);
        }
        doors[place] = door;
    }

    /// Makes the kernel steer by the map, or notes that lanes will have to.
    pub(super) fn steer(&self) {
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
}
