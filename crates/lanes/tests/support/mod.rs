//! A small service over lanes for the tests: a ledger of versions by key, spread over the lanes by the key's low byte.
//!
//! Any lane takes an order to raise a key to a version. The owner of the key's slot logs it, and once it is durable tells the
//! lane that took the order, which tells the caller. So an order that was answered must never be lost.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod virtual_client;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::Sender;

use tessera_contracts::prefix_map::{LaneIndex, Slot};
use tessera_lanes::handler::{Datagram, Message, Notice, Record, RecordSink, Walk};
use tessera_lanes::wal::{Importance, Lsn};
use tessera_lanes::{Class, Context, Enqueue, Envelope, Handler, Kind};

const RAISE: Kind = Kind::new(1);
const RAISED: Kind = Kind::new(2);

pub fn slot_of(key: u64) -> Slot {
    Slot(key as u8)
}

/// A command to a ledger.
#[derive(Debug)]
pub enum Order {
    /// Raise `key` to `version` and say so when it is safe.
    Raise { key: u64, version: u64, done: Sender<(u64, u64)> },
    /// List this lane's records.
    List(Sender<(LaneIndex, BTreeMap<u64, u64>)>),
    /// Panic.
    Panic,
    /// Block the lane for so many milliseconds.
    Block(u64),
    /// Send so many hints to every other lane.
    Chatter(u32),
}

/// An order taken: key, version, and the caller to tell.
type Taken = (u64, u64, Sender<(u64, u64)>);

#[derive(Default)]
pub struct Ledger {
    pub versions: BTreeMap<u64, u64>,
    /// Orders this lane took, by correlation id.
    orders: BTreeMap<u64, Taken>,
    /// Raises logged and not yet durable.
    unsafe_yet: VecDeque<(Lsn, LaneIndex, u64)>,
    pub hints: u64,
    pub notices: Vec<Notice>,
}

impl Ledger {
    fn raise(&mut self, key: u64, version: u64) {
        let held = self.versions.entry(key).or_insert(version);
        *held = (*held).max(version);
    }

    fn answer(cx: &mut Context, to: LaneIndex, correlation_id: u64) {
        let envelope = Envelope { correlation_id, ..Envelope::to_lane(to, Class::Coordination, RAISED) };
        let _ = cx.send(envelope, &[]);
    }
}

fn encode(key: u64, version: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> (u64, u64) {
    (u64::from_le_bytes(bytes[..8].try_into().unwrap()), u64::from_le_bytes(bytes[8..16].try_into().unwrap()))
}

impl Handler for Ledger {
    type Command = Order;

    fn on_recovered(&mut self, record: Record<'_>) {
        let (key, version) = decode(record.payload);
        self.raise(key, version);
    }

    fn on_command(&mut self, cx: &mut Context, order: Order) {
        match order {
            Order::Raise { key, version, done } => {
                let correlation_id = cx.random_u64() | 1;
                let envelope = Envelope {
                    correlation_id,
                    key_prefix: key,
                    ..Envelope::to_slot(slot_of(key), Class::Coordination, RAISE)
                };
                if cx.send(envelope, &encode(key, version)) == Enqueue::Enqueued {
                    self.orders.insert(correlation_id, (key, version, done));
                }
            }
            Order::List(to) => {
                let owned = self.versions.iter().filter(|(key, _)| cx.owns(slot_of(**key)));
                let _ = to.send((cx.lane(), owned.map(|(key, version)| (*key, *version)).collect()));
            }
            Order::Panic => panic!("a lane was told to panic"),
            Order::Block(millis) => std::thread::sleep(std::time::Duration::from_millis(millis)),
            Order::Chatter(count) => {
                for at in 0..count {
                    for lane in 0..cx.map().lanes() {
                        let to = LaneIndex(lane as u8);
                        let hint =
                            Envelope { key_prefix: u64::from(at), ..Envelope::to_lane(to, Class::Hints, Kind::new(9)) };
                        let _ = cx.send(hint, &at.to_le_bytes());
                    }
                }
            }
        }
    }

    fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
        let envelope = message.envelope;
        match envelope.kind {
            RAISE => {
                let (key, version) = decode(message.payload);
                match cx.log(1, slot_of(key), message.payload, Importance::Hard) {
                    Ok(lsn) => {
                        self.raise(key, version);
                        self.unsafe_yet.push_back((lsn, envelope.src, envelope.correlation_id));
                    }
                    // Without a log the lane's memory is all there is.
                    Err(tessera_lanes::wal::LogRefused::NoLog) => {
                        self.raise(key, version);
                        Self::answer(cx, envelope.src, envelope.correlation_id);
                    }
                    Err(_) => {}
                }
            }
            RAISED => {
                if let Some((key, version, done)) = self.orders.remove(&envelope.correlation_id) {
                    let _ = done.send((key, version));
                }
            }
            _ => self.hints += 1,
        }
    }

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        // Byte 0 is the slot the sender claims, byte 1 the slot it really is about.
        let slot = Slot(datagram.bytes.get(1).copied().unwrap_or(0));
        if !cx.owns(slot) {
            let _ = cx.forward_datagram(slot, datagram.from, datagram.bytes, datagram.hops);
            return;
        }
        let (lane, from, hops) = (cx.lane().0, datagram.from, datagram.hops);
        let _ = cx.send_datagram_with(from, |out| {
            let len = datagram.bytes.len();
            out[..len].copy_from_slice(datagram.bytes);
            out[len] = lane;
            out[len + 1] = hops;
            len + 2
        });
    }

    fn on_notice(&mut self, cx: &mut Context, notice: Notice) {
        self.notices.push(notice);
        match notice {
            Notice::Durable { upto } => {
                while self.unsafe_yet.front().is_some_and(|(lsn, ..)| *lsn <= upto) {
                    let (_, to, correlation_id) = self.unsafe_yet.pop_front().unwrap();
                    Self::answer(cx, to, correlation_id);
                }
            }
            Notice::SlotLeft { slot } => self.versions.retain(|key, _| slot_of(*key) != slot),
            _ => {}
        }
    }

    fn on_snapshot(&mut self, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        for (key, version) in self.versions.range(from..) {
            if !sink.put(1, slot_of(*key), &encode(*key, *version)) {
                return Walk::More(*key);
            }
        }
        Walk::Done
    }

    fn on_export(&mut self, slot: Slot, from: u64, sink: &mut RecordSink<'_>) -> Walk {
        for (key, version) in self.versions.range(from..).filter(|(key, _)| slot_of(**key) == slot) {
            if !sink.put(1, slot, &encode(*key, *version)) {
                return Walk::More(*key);
            }
        }
        Walk::Done
    }

    fn on_import(&mut self, cx: &mut Context, record: Record<'_>) {
        let (key, version) = decode(record.payload);
        self.raise(key, version);
        let _ = cx.log(1, record.slot, record.payload, Importance::Hard);
    }
}
