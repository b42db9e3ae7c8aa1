//! Putting a lane on its socket and core: rings to all others, a endpoint for commands, and the kernel told who owns what.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::rand::{GetRandomFlags, getrandom};
use tessera_contracts::prefix_map::LaneIndex;

use crate::context::{Context, OwnWay};
use crate::handler::Handler;
use crate::lane::Mail;
use crate::orders::{Order, OrderInbox, Orders};
use crate::ring::link::link;
use crate::ring::pressure::Pressure;
use crate::runtime::Endpoint;
use crate::runtime::commands::command_queue;
use crate::runtime::lane_thread::{self, Heartbeat, LanePorts};
use crate::runtime::supervisor::{Start, State, Supervisor, Watched};
use crate::runtime::thread_pool::Reservation;
use crate::telemetry::counters::LaneCounters;
use crate::telemetry::trace::Tracer;

impl<H, F> Supervisor<H, F>
where
    H: Handler + Send + 'static,
    H::Command: Send + 'static,
    F: Fn(LaneIndex) -> H + Send + Sync + 'static,
{
    /// Starts a lane on its socket, new or in place of a dead one, and links it with all others. If the system refuses what the
    /// lane needs, no other lane has been told of it.
    pub(super) fn start_lane(&mut self, index: LaneIndex, start: Start, orphans: Vec<LaneIndex>) -> io::Result<()> {
        let at = usize::from(index.0);
        let counters = {
            let mut counters = self.shared.counters.write().unwrap_or_else(PoisonError::into_inner);
            // The former lane may still hang, and count when it comes back.
            if let Some(before) = counters.get_mut(at) {
                *before = Arc::new((**before).clone());
            }
            while counters.len() <= at {
                counters.push(Arc::new(LaneCounters::default()));
            }
            counters[at].clone()
        };
        let done = counters.orders_done.get();
        let shares = self.config.share_threads && !self.config.pin;
        let shared = shares.then(|| Reservation::take(self.home, at, self.config.stall_bound)).transpose()?;
        let parker = match &shared {
            Some(reservation) => reservation.parker(),
            None => self.spawner.parker(self.sockets.is_some())?,
        };
        let heartbeat = Arc::new(Heartbeat::of(shared.as_ref().map(|reservation| reservation.shared().clone())));
        let pressure = Arc::new(Pressure::default());
        let (mail, mailbox) = channel();
        let (commands, command_inbox) = command_queue(self.config.commands_max);
        let mut seed = [0u8; 32];
        getrandom(&mut seed, GetRandomFlags::empty())?;
        let mut cx = Box::new(Context::new(index, &self.config.lane, self.map.clone(), seed, self.now(), counters));
        let (tracer, traces) = Tracer::new(self.config.lane.trace_every, self.config.traces_max);
        cx.tracer = tracer;
        self.shared.add_trace(traces);
        let alone = self.config.lanes <= self.cores.len() && !shares;
        let ports = Box::new(LanePorts {
            lane: index,
            former: (start == Start::Again).then(|| self.former.clone()),
            on_trial: start == Start::OnTrial,
            home: self.home,
            core: (self.config.pin && !self.cores.is_empty()).then(|| self.cores[at % self.cores.len()]),
            socket: self.sockets.as_ref().map(|sockets| sockets.socket(at)),
            calls: self.calls,
            spin: if alone { self.config.spin } else { Duration::ZERO },
            origin: self.origin,
            parker: parker.clone(),
            heartbeat: heartbeat.clone(),
            mail: mailbox,
            commands: command_inbox,
            log: self.log.as_ref().map(|(directory, config, _)| (directory.clone(), *config)),
            orphans: orphans.clone(),
            reports: self.requests.clone(),
            reservation: shared,
        });
        let (orders, inbox) = Orders::new(done, pressure.clone());
        let _ = mail.send(Mail::Orders(OrderInbox(inbox)));
        // Links first: the lane finds them in its mail before its handler starts. The others get theirs once it lives.
        let sizes = self.config.lane.rings;
        let mut for_others = Vec::new();
        for (there, other) in self.lanes.iter().filter(|(there, other)| **there != index && other.is_up()) {
            let (out, inlet) = link(index, *there, &sizes, other.parker.clone(), other.pressure.clone());
            let _ = mail.send(Mail::Link(Box::new(out)));
            for_others.push((*there, Mail::Inlet(Box::new(inlet))));
            let (out, inlet) = link(*there, index, &sizes, parker.clone(), pressure.clone());
            for_others.push((*there, Mail::Link(Box::new(out))));
            let _ = mail.send(Mail::Inlet(Box::new(inlet)));
        }
        cx.own_way = Some(OwnWay { sizes, parker: parker.clone(), pressure: pressure.clone() });
        let make = self.make.clone();
        let body = move || lane_thread::run(ports, move || make(index), cx);
        self.spawner.thread(format!("lane-{}", index.0), Box::new(body))?;
        for (there, mail) in for_others {
            self.lanes[&there].tell(mail);
        }
        self.set_endpoint(index, Some(Endpoint { commands, parker: parker.clone() }));
        let (failures, last_failure) =
            self.lanes.remove(&index).map_or((0, None), |old| (old.failures, old.last_failure));
        let on_trial = start == Start::OnTrial;
        // One that owns nothing has left its slots to others, and comes back only to see to it that they have them.
        let state = if on_trial || at < self.map.lanes() { State::Running } else { State::Retiring };
        let watched = Watched {
            state,
            mail,
            orders,
            parker,
            pressure,
            heartbeat,
            log: None,
            orphans,
            started: Instant::now(),
            is_open: false,
            on_trial,
            failures,
            last_failure,
        };
        self.lanes.insert(index, watched);
        if state == State::Retiring
            && let Some(watched) = self.lanes.get_mut(&index)
        {
            watched.orders.give(Order::Retire);
        }
        Ok(())
    }

    pub(super) fn set_endpoint(&self, lane: LaneIndex, endpoint: Option<Endpoint<H::Command>>) {
        let mut endpoints = self.shared.endpoints.write().unwrap_or_else(PoisonError::into_inner);
        let at = usize::from(lane.0);
        if endpoints.len() <= at {
            endpoints.resize_with(at + 1, || None);
        }
        let closed = std::mem::replace(&mut endpoints[at], endpoint);
        drop(endpoints);
        discard(closed);
    }

    /// Closes all lanes to commands.
    pub(super) fn close_endpoints(&self) {
        let closed = std::mem::take(&mut *self.shared.endpoints.write().unwrap_or_else(PoisonError::into_inner));
        discard(closed.into_iter().flatten());
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

/// Drops the commands that wait behind closed endpoints, so that their senders learn of it: a lane that hangs would keep
/// them for as long. On a thread of their own, because they may own anything, even another runtime, and the thread of the
/// supervisors must not wait for itself.
fn discard<C: Send + 'static>(endpoints: impl IntoIterator<Item = Endpoint<C>>) {
    let left: Vec<C> = endpoints.into_iter().flat_map(|endpoint| endpoint.commands.close()).collect();
    if !left.is_empty() {
        // Without a thread to be had they are dropped here after all: most own nothing but a way to answer.
        let _ = std::thread::Builder::new().name("lane-left".to_owned()).spawn(move || drop(left));
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use tessera_contracts::prefix_map::{PrefixMap, Selector, Slot};

    use super::*;
    use crate::config::LaneConfig;
    use crate::handler::Datagram;
    use crate::net::group::tests::stranger_at;
    use crate::runtime::{RestartPolicy, Runtime, RuntimeConfig};

    /// Echoes, and panics when it is told to.
    struct Echo;

    impl Handler for Echo {
        type Command = ();

        fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
            let _ = cx.send_datagram(datagram.from, datagram.bytes);
        }

        fn on_command(&mut self, _: &mut Context, (): ()) {
            panic!("a lane was told to panic");
        }
    }

    /// Sends a datagram about every slot and returns how many of them met a lane that was not their owner.
    fn astray(runtime: &Runtime<()>) -> u64 {
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        // A datagram for a lane that is just being restarted may be lost; the next round is another.
        client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let count =
            || ["misrouted", "misrouted_dropped"].map(|name| runtime.snapshot().total(name)).iter().sum::<u64>();
        let before = count();
        for slot in 0..=255u8 {
            client.send_to(&[slot], runtime.address().unwrap()).unwrap();
            let _ = client.recv(&mut [0; 8]);
        }
        count() - before
    }

    #[test]
    fn the_kernel_is_told_again_who_owns_what_when_a_lane_restarts() {
        let config = RuntimeConfig {
            lanes: 3,
            lane: LaneConfig { steer_offset: Some(0), ..LaneConfig::default() },
            bind: Some("127.0.0.1:0".parse().unwrap()),
            spin: Duration::ZERO,
            restart: RestartPolicy { delay_min: Duration::from_millis(1), ..RestartPolicy::default() },
            ..RuntimeConfig::default()
        };
        let runtime = Runtime::start(config, |_| Echo).unwrap();
        assert_eq!(astray(&runtime), 0);
        // Another process on the port replaces the filter: everything goes to lane 0.
        let stranger = stranger_at(runtime.address().unwrap());
        stranger.steer(&PrefixMap::new(Selector::default(), 1).unwrap(), 0).unwrap();
        let map = runtime.map();
        let foreign = (0..=u8::MAX).filter(|slot| map.lane_of_slot(Slot(*slot)) != LaneIndex(0)).count();
        assert_eq!(astray(&runtime), foreign as u64, "lanes make up for it");
        runtime.command(LaneIndex(1), ()).unwrap();
        // A spin_policy, not a measure: the new lane may serve before its supervisor has told the kernel.
        let deadline = Instant::now() + Duration::from_secs(10);
        while astray(&runtime) > 0 {
            assert!(Instant::now() < deadline, "the kernel still steers as the stranger told it");
        }
    }
}
