//! The context of every event: the time, this lane's place, and the outbox for effects.

use tessera_contracts::point::{ContentId, NodeId, Point};
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, Slot};
use tessera_stdx::{TimerHandle, TimingWheel};

use super::Counters;
use super::config::NodeConfig;
use super::effects::Effects;
use super::outbox::{MessageClass, Outbox};
use super::requests::Timer;
use crate::addr::Addr;
use crate::identity::PublicKey;
use crate::rng::LaneRng;
use crate::time::Now;

/// The context of one event.
pub(super) struct Context<'a> {
    pub(super) now: Now,
    pub(super) place: &'a Place,
    pub(super) rng: &'a mut LaneRng,
    pub(super) timers: &'a mut Timers,
    pub(super) counters: &'a mut Counters,
    pub(super) effects: &'a mut Effects,
    pub(super) out: &'a mut dyn Outbox,
}

/// Which lane of which node this is, and how it is configured.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) config: NodeConfig,
    pub(super) own: NodeId,
    pub(super) own_key: PublicKey,
    pub(super) lane: LaneIndex,
    map: PrefixMap,
    /// The first slot that this lane owns: replies to its requests are steered there.
    home_slot: Slot,
}

impl Place {
    pub(super) fn new(config: NodeConfig, own_key: PublicKey, lane: LaneIndex, map: PrefixMap) -> Self {
        let home_slot = home_slot(&map, lane);
        Self { config, own: own_key.node_id(), own_key, lane, map, home_slot }
    }

    pub(super) fn set_map(&mut self, map: PrefixMap) {
        self.home_slot = home_slot(&map, self.lane);
        self.map = map;
    }

    #[cfg(test)]
    pub(super) fn map(&self) -> &PrefixMap {
        &self.map
    }

    pub(super) fn lanes(&self) -> usize {
        self.map.lanes()
    }

    pub(super) fn home_slot(&self) -> Slot {
        self.home_slot
    }

    /// The lane of this node that owns a content id, or that pings a contact.
    pub(super) fn lane_of(&self, point: &impl Point) -> LaneIndex {
        self.map.lane(&self.own, point)
    }

    /// The slot of a content id at this node.
    pub(super) fn slot_of(&self, id: &ContentId) -> Slot {
        self.map.slot(&self.own, id)
    }

    pub(super) fn owns(&self, id: &ContentId) -> bool {
        self.lane_of(id) == self.lane
    }

    pub(super) fn owns_slot(&self, slot: Slot) -> bool {
        self.map.lane_of_slot(slot) == self.lane
    }

    /// Whether this is the lane that pings a contact, and tries it again when it is lost.
    pub(super) fn looks_after(&self, id: &NodeId) -> bool {
        self.lane_of(id) == self.lane
    }
}

fn home_slot(map: &PrefixMap, lane: LaneIndex) -> Slot {
    let at = map.table().iter().position(|owner| *owner == lane).unwrap_or(0);
    Slot(at as u8)
}

/// The timers of a lane. One wheel for all components, so that timers of one deadline fire in the order in which they were set.
#[derive(Debug)]
pub(super) struct Timers {
    pub(super) wheel: TimingWheel<Timer>,
    tick: Option<TimerHandle>,
}

impl Timers {
    pub(super) fn new(timers_max: usize, now_ms: u64) -> Self {
        Self { wheel: TimingWheel::growing(timers_max as u32, now_ms), tick: None }
    }

    /// Sets the time of the next tick.
    pub(super) fn tick_at(&mut self, at_ms: u64) {
        if let Some(timer) = self.tick.take() {
            self.wheel.cancel(timer);
        }
        self.tick = self.wheel.insert(at_ms, Timer::Tick).ok();
    }
}

impl Context<'_> {
    /// Moves the next tick to now.
    pub(super) fn tick_soon(&mut self) {
        self.timers.tick_at(self.now.mono_ms);
    }

    /// Hands a datagram as it came to the lane that owns `slot`.
    pub(super) fn forward(&mut self, slot: Slot, from: Addr, datagram: &[u8], hops: u8) {
        self.counters.forwarded += 1;
        self.out.forward(slot, from, datagram, hops);
    }

    #[inline]
    pub(super) fn transmit(&mut self, to: Addr, datagram: &[u8]) {
        self.counters.datagrams_out += 1;
        self.counters.bytes_out += datagram.len() as u64;
        self.out.send(to, datagram);
    }

    /// Tells the lane of this node that owns `point`, which is another one.
    pub(super) fn tell_owner(&mut self, point: &impl Point, class: MessageClass, kind: u8, payload: &[u8]) {
        let slot = self.place.map.slot(&self.place.own, point);
        let owner = self.place.map.lane_of_slot(slot);
        self.out.message_to_owner((owner, slot), class, kind, point.prefix_u64(), payload);
    }

    /// Tells all other lanes of this node.
    pub(super) fn tell_lanes(&mut self, class: MessageClass, kind: u8, prefix: u64, payload: &[u8]) {
        for lane in (0..self.place.lanes()).map(|lane| LaneIndex(lane as u8)) {
            if lane != self.place.lane {
                self.out.message(lane, class, kind, prefix, payload);
            }
        }
    }
}
