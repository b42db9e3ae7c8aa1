//! Orders of the supervisor to a lane: who owns what from now on, and to retire.
//!
//! They are messages of the Control class on a ring of the supervisor's own, in the format of the bus: with the version of the map, a time to live and
//! an acknowledgement. The supervisor keeps an order until it is acknowledged; a full ring keeps no order from it and sheds the lower
//! classes, like any ring of that class. An order that is carried out twice does no more than once.
//!
//! The ends of new rings do not go this way: they are no plain data, and a lane gets them by mail.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tessera_contracts::prefix_map::{LaneIndex, MapVersion, PrefixMap, SLOTS, Selector};

use crate::class::{Class, RingSize};
use crate::envelope::{Envelope, Flags, Kind, PAYLOAD_BYTES_MAX, TTL_DEFAULT};
use crate::ring::message::{MessageConsumer, MessageProducer, message_ring};
use crate::ring::pressure::{Pressure, PressureHold};
use crate::time::LaneTime;

/// Orders that a lane's ring holds. They are rare, and the supervisor keeps those that find no room.
const ORDERS_MAX: usize = 2;
/// How long an acknowledgement is waited for. A lane's turn takes less, unless the lane is in trouble.
const ACK_TIMEOUT: Duration = Duration::from_millis(200);

const _: () = assert!(2 * SLOTS <= PAYLOAD_BYTES_MAX, "a map fits one message");

/// What a lane is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Slots are owned like this from now on.
    Map(Arc<PrefixMap>),
    /// Empty the rings and stop.
    Retire,
}

impl Order {
    fn write(&self, envelope: Envelope) -> (Envelope, [u8; 2 * SLOTS]) {
        let mut payload = [0; 2 * SLOTS];
        let envelope = match self {
            Self::Retire => Envelope { kind: Kind::RETIRE, ..envelope },
            Self::Map(map) => {
                let (home, serving) = payload.split_at_mut(SLOTS);
                for slot in 0..SLOTS {
                    (home[slot], serving[slot]) = (map.home()[slot].0, map.table()[slot].0);
                }
                let (key_prefix, map_version) = (map.lanes() as u64, map.version().0);
                Envelope { kind: Kind::MAP, key_prefix, map_version, payload_len: 2 * SLOTS as u16, ..envelope }
            }
        };
        (envelope, payload)
    }

    /// The order in a message.
    fn read(envelope: &Envelope, payload: &[u8], selector: Selector) -> Option<Self> {
        if envelope.kind == Kind::RETIRE {
            return Some(Self::Retire);
        }
        let (home, serving) = payload.split_first_chunk::<SLOTS>()?;
        let [home, serving] = [home, serving.first_chunk()?].map(|table: &[u8; SLOTS]| table.map(LaneIndex));
        let (version, lanes) = (MapVersion(envelope.map_version), envelope.key_prefix as usize);
        let map = PrefixMap::of_tables(selector, version, lanes, home, serving).ok()?;
        Some(Self::Map(Arc::new(map)))
    }
}

#[derive(Debug)]
struct Pending {
    number: u64,
    order: Order,
    sent: Option<LaneTime>,
    ttl: u8,
}

/// What [`Orders::step`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    Nothing,
    /// Something was sent: the lane is to be woken.
    Sent,
    /// An order was not acknowledged though it was sent as often as it may be. It is sent on, since it cannot be taken back.
    NotAcknowledged,
}

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Orders {
    ring: MessageProducer,
    pressure: PressureHold,
    pending: VecDeque<Pending>,
    given: u64,
}

impl Orders {
    /// Both ends, for a lane of which a predecessor has carried out so many orders.
    pub(crate) fn new(done: u64, pressure: Arc<Pressure>) -> (Self, MessageConsumer) {
        let size = RingSize { messages_max: ORDERS_MAX, payload_bytes_max: ORDERS_MAX * PAYLOAD_BYTES_MAX };
        let (ring, consumer) = message_ring(size);
        (Self { ring, pressure: PressureHold::new(pressure), pending: VecDeque::new(), given: done }, consumer)
    }

    /// Has the lane do something, with the next [`step`](Self::step). A map takes the place of an older one that was not sent yet.
    pub(crate) fn give(&mut self, order: Order) {
        if let Some(last) = self.pending.back_mut() {
            if last.order == order {
                return;
            }
            if last.sent.is_none() && matches!((&last.order, &order), (Order::Map(_), Order::Map(_))) {
                last.order = order;
                return;
            }
        }
        self.given += 1;
        self.pending.push_back(Pending { number: self.given, order, sent: None, ttl: TTL_DEFAULT });
    }

    /// Sends what is to be sent, for the first time or again; `done` is the last order that the lane has acknowledged.
    pub(crate) fn step(&mut self, lane: LaneIndex, now: LaneTime, done: u64) -> Stepped {
        while self.pending.pop_front_if(|order| order.number <= done).is_some() {}
        let (mut stepped, mut is_full) = (Stepped::Nothing, false);
        for pending in &mut self.pending {
            if let Some(sent) = pending.sent {
                // As long as it waits in the ring, it is not lost.
                if now.since(sent) < ACK_TIMEOUT || self.ring.depth() > 0 {
                    continue;
                }
                pending.ttl -= 1;
                if pending.ttl == 0 {
                    (pending.ttl, stepped) = (TTL_DEFAULT, Stepped::NotAcknowledged);
                }
            }
            let envelope = Envelope {
                correlation_id: pending.number,
                queued_at: now.stamp(),
                src: lane,
                ttl: pending.ttl,
                flags: Flags::ACK_WANTED,
                ..Envelope::to_lane(lane, Class::Control, Kind::RETIRE)
            };
            let (envelope, payload) = pending.order.write(envelope);
            if self.ring.try_push(&envelope, &payload[..usize::from(envelope.payload_len)]).is_err() {
                is_full = true;
                break;
            }
            pending.sent = Some(now);
            if stepped == Stepped::Nothing {
                stepped = Stepped::Sent;
            }
        }
        self.pressure.set(is_full);
        stepped
    }
}

/// The lane's end.
#[derive(Debug)]
pub(crate) struct OrderInbox(pub(crate) MessageConsumer);

impl OrderInbox {
    pub(crate) fn waiting(&self) -> usize {
        self.0.depth()
    }

    /// The next order with its header.
    pub(crate) fn take(
        &mut self,
        scratch: &mut [u8; PAYLOAD_BYTES_MAX],
        selector: Selector,
    ) -> Option<(Envelope, Option<Order>)> {
        self.0.pop_with(scratch, |envelope, payload| (*envelope, Order::read(envelope, payload, selector)))
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::prefix_map::Slot;

    use super::*;

    const LANE: LaneIndex = LaneIndex(1);

    fn map() -> Arc<PrefixMap> {
        let map = PrefixMap::new(Selector::default(), 256).unwrap();
        Arc::new(map.lent(Slot(9), LaneIndex(200)).unwrap())
    }

    fn ends(done: u64) -> (Orders, OrderInbox, Arc<Pressure>) {
        let pressure = Arc::new(Pressure::default());
        let (orders, inbox) = Orders::new(done, pressure.clone());
        (orders, OrderInbox(inbox), pressure)
    }

    fn take(inbox: &mut OrderInbox) -> Option<(u64, u8, Order)> {
        let (envelope, order) = inbox.take(&mut [0; PAYLOAD_BYTES_MAX], Selector::default())?;
        Some((envelope.correlation_id, envelope.ttl, order.unwrap()))
    }

    #[test]
    fn a_map_of_as_many_lanes_as_there_may_be_arrives_as_it_was() {
        let (mut orders, mut inbox, _) = ends(7);
        orders.give(Order::Map(map()));
        orders.give(Order::Retire);
        assert_eq!(orders.step(LANE, LaneTime(0), 7), Stepped::Sent);
        assert_eq!(take(&mut inbox), Some((8, TTL_DEFAULT, Order::Map(map()))));
        assert_eq!(take(&mut inbox), Some((9, TTL_DEFAULT, Order::Retire)));
        assert_eq!(orders.step(LANE, LaneTime(9_000_000), 9), Stepped::Nothing, "both are acknowledged");
        assert_eq!(take(&mut inbox), None);
    }

    #[test]
    fn an_order_is_sent_again_until_it_is_acknowledged_and_costs_time_to_live() {
        let (mut orders, mut inbox, _) = ends(0);
        orders.give(Order::Retire);
        orders.give(Order::Retire);
        let timeout = ACK_TIMEOUT.as_micros() as u64;
        let mut taken = Vec::new();
        for time in 0..8 {
            let stepped = orders.step(LANE, LaneTime(time * timeout / 2), 0);
            assert_eq!(stepped == Stepped::NotAcknowledged, time == 6, "{stepped:?} at {time}");
            taken.extend(take(&mut inbox).map(|(number, ttl, _)| (number, ttl)));
        }
        assert_eq!(taken, [(1, 3), (1, 2), (1, 1), (1, 3)], "once, however often it is given");
    }

    #[test]
    fn orders_that_find_no_room_wait_and_the_lower_classes_are_shed_until_they_are_sent() {
        let (mut orders, mut inbox, pressure) = ends(0);
        let maps: Vec<_> = (1..5).map(|lanes| Arc::new(PrefixMap::new(Selector::default(), lanes).unwrap())).collect();
        for map in &maps {
            orders.give(Order::Map(map.clone()));
            let stepped = orders.step(LANE, LaneTime(0), 0);
            assert_eq!(stepped == Stepped::Sent, map.lanes() <= ORDERS_MAX);
        }
        assert!(pressure.is_raised());
        assert_eq!(orders.step(LANE, LaneTime(u64::from(u32::MAX)), 0), Stepped::Nothing, "none is lost: all wait");
        let mut taken = Vec::new();
        for _ in 0..2 {
            taken.extend(std::iter::from_fn(|| take(&mut inbox)).map(|(_, _, order)| order));
            orders.step(LANE, LaneTime(0), taken.len() as u64);
        }
        taken.extend(std::iter::from_fn(|| take(&mut inbox)).map(|(_, _, order)| order));
        let expected = [&maps[0], &maps[1], &maps[3]].map(|map| Order::Map(map.clone()));
        assert_eq!(taken, expected, "the third gave way to the fourth");
        assert!(!pressure.is_raised());
    }
}
