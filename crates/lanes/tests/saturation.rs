//! All classes between all lanes at once, far beyond what the rings hold: nothing deadlocks, Control loses nothing, every
//! message is accounted for.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::class::{DropCause, RingSize, RingSizes};
use tessera_lanes::config::{LaneConfig, RateCap};
use tessera_lanes::handler::{Message, Notice};
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::simulated::{VirtualConfig, VirtualNode};
use tessera_lanes::{Class, Context, Enqueue, Envelope, Handler, Kind};

const LANES: usize = 4;
const CONTROL_KINDS: u8 = 5;

/// Sends bursts of every class to every lane from a timer, and remembers the last word of each sender in each control kind.
#[derive(Default)]
struct Shouter {
    rounds: u32,
    round: u32,
    last_word: BTreeMap<(u8, u8), u32>,
    offered: [u64; 3],
    accepted: [u64; 3],
    handled: [u64; 3],
}

struct Report {
    last_word: BTreeMap<(u8, u8), u32>,
    offered: [u64; 3],
    accepted: [u64; 3],
    handled: [u64; 3],
    done: bool,
}

enum Ask {
    Shout(u32),
    Report(Sender<Report>),
}

impl Handler for Shouter {
    type Command = Ask;

    fn on_command(&mut self, cx: &mut Context, ask: Ask) {
        match ask {
            Ask::Shout(rounds) => {
                self.rounds = rounds;
                cx.set_timer(Duration::ZERO, 0).unwrap();
            }
            Ask::Report(to) => {
                let report = Report {
                    last_word: self.last_word.clone(),
                    offered: self.offered,
                    accepted: self.accepted,
                    handled: self.handled,
                    done: self.round == self.rounds,
                };
                let _ = to.send(report);
            }
        }
    }

    fn on_timer(&mut self, cx: &mut Context, _: u64) {
        self.round += 1;
        let payload = [&self.round.to_le_bytes()[..], &[0; 96]].concat();
        for lane in (0..cx.map().lanes()).map(|lane| LaneIndex(lane as u8)) {
            for (class, burst) in [(Class::Control, 20u64), (Class::Coordination, 80), (Class::Hints, 200)] {
                for n in 0..burst {
                    let kind = Kind::new((n % u64::from(CONTROL_KINDS)) as u8);
                    let envelope =
                        Envelope { correlation_id: n % 50, key_prefix: n % 50, ..Envelope::to_lane(lane, class, kind) };
                    let sent = cx.send(envelope, &payload);
                    self.offered[class.index()] += 1;
                    self.accepted[class.index()] += u64::from(sent.is_accepted());
                    assert!(class != Class::Control || sent.is_accepted(), "Control is never refused: {sent:?}");
                }
            }
        }
        if self.round < self.rounds {
            cx.set_timer(Duration::from_millis(1), 0).unwrap();
        }
    }

    fn on_message(&mut self, _: &mut Context, message: Message<'_>) {
        let envelope = message.envelope;
        self.handled[envelope.class.index()] += 1;
        if envelope.class == Class::Control {
            let round = u32::from_le_bytes(message.payload[..4].try_into().unwrap());
            let last = self.last_word.entry((envelope.src.0, envelope.kind.get())).or_insert(0);
            assert!(*last <= round, "control messages of a kind keep their order");
            *last = round;
        }
    }
}

fn tiny_rings() -> LaneConfig {
    let ring = RingSize { messages_max: 16, payload_bytes_max: 2048 };
    LaneConfig { rings: RingSizes { classes: [ring; 3], bulk_bytes_max: 4096 }, ..LaneConfig::default() }
}

#[test]
fn saturated_lanes_neither_deadlock_nor_lose_control_nor_miscount() {
    const ROUNDS: u32 = 200;
    let config = RuntimeConfig { lanes: LANES, lane: tiny_rings(), spin: Duration::ZERO, ..RuntimeConfig::default() };
    let runtime = Runtime::start(config, |_| Shouter::default()).unwrap();
    for lane in 0..LANES {
        assert!(runtime.command(LaneIndex(lane as u8), Ask::Shout(ROUNDS)).is_ok());
    }
    let ask_all = || -> Vec<Report> {
        (0..LANES)
            .map(|lane| {
                let (to, from) = channel();
                while runtime.command(LaneIndex(lane as u8), Ask::Report(to.clone())).is_err() {}
                from.recv().unwrap()
            })
            .collect()
    };
    loop {
        let reports = ask_all();
        let heard = reports.iter().all(|report| {
            report.last_word.values().filter(|round| **round == ROUNDS).count() == LANES * usize::from(CONTROL_KINDS)
        });
        if heard && reports.iter().all(|report| report.done) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // Let what is still in the rings arrive.
    let snapshot = loop {
        let before = runtime.snapshot();
        std::thread::sleep(Duration::from_millis(50));
        let after = runtime.snapshot();
        let drained = |snapshot: &tessera_lanes::telemetry::snapshot::Snapshot| -> u64 {
            snapshot.lanes.iter().flat_map(|lane| &lane.classes).map(|class| class.drained).sum()
        };
        if drained(&before) == drained(&after) {
            break after;
        }
    };
    let reports = ask_all();
    let sum = |of: fn(&Report, usize) -> u64, class: Class| -> u64 {
        reports.iter().map(|report| of(report, class.index())).sum()
    };
    for class in Class::ALL {
        let classes: Vec<_> = snapshot.lanes.iter().map(|lane| &lane.classes[class.index()]).collect();
        let (mut enqueued, mut coalesced, mut dropped, mut superseded, mut drained) = (0, 0, 0, 0, 0);
        for counters in classes {
            enqueued += counters.enqueued;
            coalesced += counters.coalesced;
            superseded += counters.dropped[DropCause::Superseded as usize];
            dropped += counters.dropped_total() - counters.dropped[DropCause::Superseded as usize];
            drained += counters.drained;
        }
        let name = class.name();
        assert_eq!(sum(|r, c| r.offered[c], class), enqueued + coalesced + dropped, "{name}: every offer has a fate");
        assert_eq!(sum(|r, c| r.accepted[c], class), enqueued + coalesced, "{name}: and its sender was told");
        assert_eq!(enqueued, drained + superseded, "{name}: every accepted message was handled or gave way to a newer");
        match class {
            Class::Control => assert_eq!((dropped, superseded), (0, 0), "Control is never dropped"),
            // Whether they found a full ring or were shed before it depends on who ran when; both are drops with a reason.
            Class::Coordination => assert!(dropped > 0, "{name} was saturated"),
            Class::Hints => assert!(superseded + dropped > 0, "{name} was saturated"),
        }
    }
    let shed: u64 = snapshot
        .lanes
        .iter()
        .flat_map(|lane| &lane.classes[1..])
        .map(|class| class.dropped[DropCause::Shed as usize])
        .sum();
    assert!(shed > 0, "a full control ring made the lower classes give way");
    assert!(sum(|r, c| r.handled[c], Class::Control) > 0, "Control was handled throughout");
}

/// Sends one acknowledged message when told to, and counts what comes.
#[derive(Default)]
struct Caller {
    received: u32,
    outcome: Vec<Notice>,
    refused: [u32; 3],
}

enum Call {
    Acked(LaneIndex),
    Burst(u32),
}

impl Handler for Caller {
    type Command = Call;

    fn on_command(&mut self, cx: &mut Context, call: Call) {
        match call {
            Call::Acked(to) => {
                let envelope = Envelope { correlation_id: 77, ..Envelope::to_lane(to, Class::Control, Kind::new(1)) };
                assert_eq!(cx.send_acked(envelope, b"do it"), Enqueue::Enqueued);
            }
            Call::Burst(messages) => {
                for n in 0..messages {
                    for class in Class::ALL {
                        let sent = cx.send(
                            Envelope {
                                key_prefix: u64::from(n),
                                ..Envelope::to_lane(LaneIndex(1), class, Kind::new(2))
                            },
                            &[],
                        );
                        self.refused[class.index()] += u32::from(!sent.is_accepted());
                    }
                }
            }
        }
    }

    fn on_message(&mut self, _: &mut Context, _: Message<'_>) {
        self.received += 1;
    }

    fn on_notice(&mut self, _: &mut Context, notice: Notice) {
        if !matches!(notice, Notice::LaneUp { .. }) {
            self.outcome.push(notice);
        }
    }
}

fn callers(lane: LaneConfig) -> VirtualNode<Caller> {
    VirtualNode::new(VirtualConfig { lanes: 2, lane, log: None, seed: 1 }, |_| Caller::default()).unwrap()
}

#[test]
fn an_acknowledged_message_is_repeated_as_often_as_it_may_live_and_then_given_up() {
    let mut node = callers(LaneConfig::default());
    node.command(LaneIndex(0), Call::Acked(LaneIndex(1)));
    node.run_until_idle();
    assert_eq!(node.handler(LaneIndex(1)).unwrap().received, 1);
    assert_eq!(node.handler(LaneIndex(0)).unwrap().outcome, [Notice::Acked { correlation_id: 77 }]);

    let mut node = callers(LaneConfig::default());
    node.stall_lane(LaneIndex(1), tessera_lanes::LaneTime(10_000_000));
    node.command(LaneIndex(0), Call::Acked(LaneIndex(1)));
    node.run_until(tessera_lanes::LaneTime(9_000_000));
    let given_up = Notice::AckGivenUp { correlation_id: 77, dst: LaneIndex(1) };
    assert_eq!(node.handler(LaneIndex(0)).unwrap().outcome, [given_up]);
    node.run_until(tessera_lanes::LaneTime(11_000_000));
    assert_eq!(node.handler(LaneIndex(1)).unwrap().received, 3, "sent as often as its time to live, and no more");
    assert_eq!(node.handler(LaneIndex(0)).unwrap().outcome, [given_up], "a late acknowledgement changes nothing");
}

#[test]
fn a_producer_over_its_rate_is_dropped_in_its_class_and_control_is_exempt() {
    let cap = RateCap { per_second: 1000, burst: 10 };
    let mut node = callers(LaneConfig { coordination_cap: Some(cap), ..LaneConfig::default() });
    node.command(LaneIndex(0), Call::Burst(30));
    assert_eq!(node.handler(LaneIndex(0)).unwrap().refused, [0, 20, 0]);
    node.run_until(tessera_lanes::LaneTime(5_000));
    node.command(LaneIndex(0), Call::Burst(30));
    assert_eq!(node.handler(LaneIndex(0)).unwrap().refused, [0, 45, 0], "five more after five milliseconds");
    let dropped = &node.counters(LaneIndex(0)).unwrap().class(Class::Coordination).dropped;
    assert_eq!(dropped[DropCause::RateCapped as usize].get(), 45);
}
