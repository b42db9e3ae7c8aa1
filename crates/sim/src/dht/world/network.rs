//! The network and the clock: what flies, how long it takes, and what happens when its time has come.

use std::cmp::Reverse;

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::wire::header::slot_of;

use super::effects::{Event, Scheduled};
use super::{Being, World};

impl World {
    /// A datagram leaves `sender`'s wire, claiming to come from `from`.
    pub(crate) fn transmit(&mut self, sender: usize, from: Addr, to: Addr, bytes: Vec<u8>) {
        self.datagrams += 1;
        if let Some(traffic) = self.spoofed.get_mut(&(sender, to)) {
            traffic.answered_bytes += bytes.len() as u64;
        }
        let now_ms = self.now_ms;
        if let Some(nat) = &mut self.nodes[sender].nat {
            nat.insert(to, now_ms);
        }
        let Some(receiver) = self.by_addr.get(&to).copied() else { return };
        if self.chance(self.weather.loss) {
            return;
        }
        if self.partitioned && self.nodes[sender].island != self.nodes[receiver].island {
            return;
        }
        if self.captured.len() < 4096 && self.chance(0.01) {
            self.captured.push((receiver, from, bytes.clone()));
        }
        let copies = if self.chance(self.weather.duplicates) { 2 } else { 1 };
        for _ in 0..copies {
            let delay = self.delay_ms(sender, receiver);
            let bytes = bytes.clone();
            self.schedule(self.now_ms + delay, Event::Datagram { to: receiver, from, bytes });
        }
    }

    fn delay_ms(&mut self, a: usize, b: usize) -> u64 {
        let ((ax, ay, am), (bx, by, bm)) = (self.nodes[a].place, self.nodes[b].place);
        let base = ((ax - bx).powi(2) + (ay - by).powi(2)).sqrt() + am + bm;
        // Jitter with a tail: one in fifty waits in a queue. Enough to reorder.
        let jitter = self.rng.below(8) + if self.rng.below(50) == 0 { self.rng.below(60) } else { 0 };
        base as u64 + jitter
    }

    /// The same, for datagrams that nobody of the network sent.
    pub(crate) fn inject(&mut self, to: usize, from: Addr, bytes: Vec<u8>, after_ms: u64) {
        if let Some(traffic) = self.spoofed.get_mut(&(to, from)) {
            traffic.claimed_bytes += bytes.len() as u64;
        }
        self.schedule(self.now_ms + after_ms, Event::Datagram { to, from, bytes });
    }

    pub(super) fn schedule(&mut self, at_ms: u64, event: Event) {
        self.number += 1;
        self.queue.push(Reverse(Scheduled { at_ms, number: self.number, event }));
    }

    /// Lets `ms` of virtual time pass.
    pub(crate) fn run_for(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while let Some(Reverse(next)) = self.queue.peek() {
            if next.at_ms > until {
                break;
            }
            let Some(Reverse(next)) = self.queue.pop() else { break };
            self.now_ms = next.at_ms.max(self.now_ms);
            self.happen(next.event);
        }
        self.now_ms = until;
    }

    fn happen(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Datagram { to, from, bytes } => {
                let now_ms = self.now_ms;
                let node = &mut self.nodes[to];
                if node.nat.as_ref().is_some_and(|nat| nat.get(&from).is_none_or(|at| now_ms - at > 60_000)) {
                    return;
                }
                if node.slow_ms > 0 {
                    // It handles things late, as if its queue were long.
                    let slow_ms = node.slow_ms;
                    let lane = slot_of(&bytes).map_or(LaneIndex(0), |slot| node.map.lane_of_slot(Slot(slot)));
                    self.schedule(now_ms + slow_ms, Event::Forwarded { to, lane, from, bytes, hops: 0 });
                    return;
                }
                self.deliver(to, from, bytes);
            }
            Event::Forwarded { to, lane, from, mut bytes, hops } => {
                self.call(to, usize::from(lane.0), |node, out| node.on_datagram(now, from, &mut bytes, hops, out));
            }
            Event::LaneMessage { to, lane, kind, payload } => {
                self.call(to, usize::from(lane.0), |node, out| node.on_message(now, kind, &payload, out));
            }
            Event::Wake { node, lane } => {
                if let Being::Honest(lanes) = &mut self.nodes[node].being
                    && let Some(slot) = lanes.get_mut(lane)
                    && slot.wake_ms == self.now_ms
                {
                    slot.wake_ms = u64::MAX;
                    self.call(node, lane, |machine, out| machine.on_time(now, out));
                }
            }
            Event::Synced { node, lane, entries } => {
                // A crash since then has shortened the log: its records are gone, and nobody waits for them.
                if entries <= self.nodes[node].log.len() {
                    self.nodes[node].log_safe = self.nodes[node].log_safe.max(entries);
                    self.call(node, lane, |machine, out| machine.on_durable(now, entries as u64, out));
                }
            }
        }
    }

    fn deliver(&mut self, to: usize, from: Addr, mut bytes: Vec<u8>) {
        let now = self.now();
        let map = &self.nodes[to].map;
        let mut lane = slot_of(&bytes).map_or(0, |slot| usize::from(map.lane_of_slot(Slot(slot)).0));
        match &mut self.nodes[to].being {
            Being::Dead => {}
            Being::Outsider(inbox) => inbox.borrow_mut().push(bytes),
            Being::Honest(lanes) => {
                let count = lanes.len();
                if count > 1 && self.chance(self.weather.misrouted) {
                    lane = self.pick(count);
                }
                self.call(to, lane, |node, out| node.on_datagram(now, from, &mut bytes, 0, out));
            }
            Being::Sybil(sybil) => {
                let replies = sybil.on_datagram(now, from, &mut bytes);
                let own = self.nodes[to].contact.addr;
                for (addr, reply) in replies {
                    self.transmit(to, own, addr, reply);
                }
            }
        }
    }
}
