//! All classes from all lanes to one that stands still, far beyond the rings' room: no producer waits, Control loses
//! nothing, and every message has exactly the fate its class promises.
#![allow(clippy::unwrap_used, reason = "a test stops at what it did not expect")]

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::class::{DropCause, DropReason, RingSize, RingSizes};
use tessera_lanes::config::{LaneConfig, RateCap};
use tessera_lanes::handler::{Message, Notice};
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::simulated::{VirtualConfig, VirtualNode};
use tessera_lanes::telemetry::snapshot::ClassSnapshot;
use tessera_lanes::telemetry::trace::TraceWhat;
use tessera_lanes::{Class, Context, Enqueue, Envelope, Handler, Kind};

/// So long a test waits for something that must happen; it does not measure.
const PATIENCE: Duration = Duration::from_secs(600);
/// The lane whose loop stands still while the others send to it.
const HELD: LaneIndex = LaneIndex(1);
const PRODUCERS: [LaneIndex; 3] = [LaneIndex(0), LaneIndex(2), LaneIndex(3)];
const RING: usize = 16;
const STAGE: u64 = 64;

/// The kind, prefix and word of a message.
type Said = (u8, u64, u32);

/// Sends messages to the held lane as told, and remembers those it got, by sender.
#[derive(Default)]
struct Shouter {
    heard: BTreeMap<(Class, u8), Vec<Said>>,
}

/// Answers to a batch of messages: enqueued, coalesced, dropped.
type Fates = [u64; 3];

enum Ask {
    /// The lane stands still until the other end of the channel is gone.
    Hold(SyncSender<()>, Receiver<()>),
    /// Send messages of a class, each with its kind, prefix and word, and report their fates.
    Send(Class, Vec<Said>, Sender<Fates>),
    /// Report the messages of a class from a lane.
    Heard(Class, u8, Sender<Vec<Said>>),
}

impl Handler for Shouter {
    type Command = Ask;

    fn on_command(&mut self, cx: &mut Context, ask: Ask) {
        match ask {
            Ask::Hold(held, gate) => {
                held.send(()).unwrap();
                let _ = gate.recv();
            }
            Ask::Send(class, messages, answer) => {
                let mut fates = [0; 3];
                for (kind, prefix, word) in messages {
                    let to = Envelope::to_lane(HELD, class, Kind::new(kind));
                    let envelope = Envelope { correlation_id: prefix + 1, key_prefix: prefix, ..to };
                    let fate = match cx.send(envelope, &[&word.to_le_bytes()[..], &[0; 96]].concat()) {
                        Enqueue::Enqueued => 0,
                        Enqueue::Coalesced => 1,
                        Enqueue::Dropped(_) => 2,
                    };
                    fates[fate] += 1;
                }
                answer.send(fates).unwrap();
            }
            Ask::Heard(class, from, answer) => {
                answer.send(self.heard.get(&(class, from)).cloned().unwrap_or_default()).unwrap();
            }
        }
    }

    fn on_message(&mut self, _: &mut Context, message: Message<'_>) {
        let envelope = message.envelope;
        let word = u32::from_le_bytes(message.payload[..4].try_into().unwrap());
        let heard = self.heard.entry((envelope.class, envelope.src.0)).or_default();
        heard.push((envelope.kind.get(), envelope.key_prefix, word));
    }
}

/// Lets every producer send the same messages to the held lane, all at once, and checks each producer's outcome.
fn shout(runtime: &Runtime<Ask>, class: Class, messages: &[Said], fates: Fates, at: &str) {
    let answers = PRODUCERS.map(|lane| {
        let (to, from) = channel();
        assert!(runtime.command(lane, Ask::Send(class, messages.to_vec(), to)).is_ok());
        from
    });
    for (lane, answer) in PRODUCERS.into_iter().zip(answers) {
        assert_eq!(answer.recv_timeout(PATIENCE), Ok(fates), "{at}: what lane {} was told", lane.0);
    }
}

fn heard(runtime: &Runtime<Ask>, class: Class, from: LaneIndex) -> Vec<Said> {
    let (to, answer) = channel();
    assert!(runtime.command(HELD, Ask::Heard(class, from.0, to)).is_ok());
    answer.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn saturated_lanes_neither_deadlock_nor_lose_control_nor_miscount() {
    let ring = RingSize { messages_max: RING, payload_bytes_max: 2048 };
    let config = RuntimeConfig {
        lanes: 4,
        lane: LaneConfig { rings: RingSizes { classes: [ring; 3], bulk_bytes_max: 4096 }, ..LaneConfig::default() },
        spin: Duration::ZERO,
        stall_bound: Duration::from_secs(3600), // The held lane is not to be taken for a dead one.
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::start(config, |_| Shouter::default()).unwrap();
    let (held_to, held) = sync_channel(1);
    let (open, gate) = channel();
    assert!(runtime.command(HELD, Ask::Hold(held_to, gate)).is_ok());
    held.recv_timeout(PATIENCE).unwrap();

    // Coordination: the ring takes 16, repeats of those are in flight, everything else finds it full.
    let coordination: Vec<_> = (0..80u64).map(|n| (1, n % 50, n as u32)).collect();
    shout(&runtime, Class::Coordination, &coordination, [16, 16, 48], "Coordination");
    // Hints: the ring takes 16, the stage 64, the oldest of the stage give way to 20 more; then the newest 40 are said again.
    let hints: Vec<_> = (0..100u64).chain(60..100).enumerate().map(|(n, prefix)| (2, prefix, n as u32)).collect();
    shout(&runtime, Class::Hints, &hints, [100, 40, 0], "Hints");
    // Control: the ring takes 16, the reserve keeps the others; a repeated word replaces the one that still waits there.
    let control: Vec<_> = (0..40u64).map(|n| ((n % 5) as u8, n, n as u32)).collect();
    shout(&runtime, Class::Control, &control, [40, 0, 0], "Control");
    let again: Vec<_> = (0..40u64).map(|n| ((n % 5) as u8, n, 100 + n as u32)).collect();
    shout(&runtime, Class::Control, &again, [16, 24, 0], "Control said again");
    // From now on Control is under pressure, and all producers spare the lane.
    shout(&runtime, Class::Coordination, &[(3, 900, 0); 7], [0, 0, 7], "Coordination under pressure");
    shout(&runtime, Class::Hints, &[(3, 900, 0); 9], [0, 0, 9], "Hints under pressure");
    shout(&runtime, Class::Control, &[(0, 0, 777)], [0, 1, 0], "Control under pressure");

    drop(open);
    // The ring's eight oldest hints are skipped, down to half a ring, because newer ones wait.
    let hints_heard: Vec<u64> = (8..RING as u64).chain(100 - STAGE..100).collect();
    let deadline = Instant::now() + PATIENCE;
    while PRODUCERS.iter().any(|lane| {
        heard(&runtime, Class::Hints, *lane).len() < hints_heard.len()
            || heard(&runtime, Class::Control, *lane).len() < 56
    }) {
        assert!(Instant::now() < deadline, "what was kept back arrives: {:?}", runtime.snapshot());
        std::thread::sleep(Duration::from_millis(1));
    }
    for lane in PRODUCERS {
        let prefixes =
            |class| -> Vec<u64> { heard(&runtime, class, lane).iter().map(|(_, prefix, _)| *prefix).collect() };
        assert_eq!(prefixes(Class::Coordination), (0..16).collect::<Vec<_>>(), "the first to come, in order");
        assert_eq!(prefixes(Class::Hints), hints_heard, "the freshest, in order");
        let newest = heard(&runtime, Class::Hints, lane).into_iter().filter(|(_, prefix, _)| *prefix >= 60);
        assert!(newest.eq((60..100).map(|prefix| (2, prefix, 40 + prefix as u32))), "and they say the newest");
        let words: Vec<_> =
            heard(&runtime, Class::Control, lane).iter().map(|(kind, _, word)| (*kind, *word)).collect();
        let ring = 0..16u32;
        let waited = (16..40).map(|n| (n, 100 + n)).chain([(0, 777)]).chain((1..16).map(|n| (n, 100 + n)));
        let expected: Vec<_> = ring.map(|n| (n, n)).chain(waited).map(|(n, word)| ((n % 5) as u8, word)).collect();
        assert_eq!(words, expected, "the ring, then what waited, in order and with its newest word");
    }
    let drops = runtime.take_traces();
    let traced = |class, cause| {
        let dropped = |what| matches!(what, TraceWhat::Dropped { class: c, cause: w, .. } if (c, w) == (class, cause));
        drops.iter().filter(|event| dropped(event.what)).count()
    };
    assert_eq!(traced(Class::Coordination, DropCause::RingFull), 3 * 48, "drops at capacity are traced");
    assert_eq!(traced(Class::Coordination, DropCause::Shed) + traced(Class::Hints, DropCause::Shed), 3 * (7 + 9));
    let snapshot = runtime.snapshot();
    let held = &snapshot.lanes[usize::from(HELD.0)];
    let depths =
        Class::ALL.map(|class| (held.classes[class.index()].depth, held.classes[class.index()].depth_high_water));
    assert_eq!(depths, [(0, 48); 3], "three full rings of every class, and nothing is left");
    for class in Class::ALL {
        let sum = |of: &dyn Fn(&ClassSnapshot) -> u64| -> u64 {
            snapshot.lanes.iter().map(|lane| of(&lane.classes[class.index()])).sum()
        };
        let dropped = DropCause::ALL.map(|cause| sum(&|class| class.dropped[cause as usize]));
        let expected = |full: u64, shed: u64, superseded: u64| {
            let mut causes = [0; DropCause::ALL.len()];
            causes[DropCause::RingFull as usize] = 3 * full;
            causes[DropCause::Shed as usize] = 3 * shed;
            causes[DropCause::Superseded as usize] = 3 * superseded;
            causes
        };
        let (enqueued, coalesced, drops) = match class {
            Class::Control => (56, 25, expected(0, 0, 0)),
            Class::Coordination => (16, 16, expected(48, 7, 0)),
            Class::Hints => (100, 40, expected(0, 9, 20 + 8)),
        };
        assert_eq!(sum(&|class| class.enqueued), 3 * enqueued, "{class:?}");
        assert_eq!(sum(&|class| class.coalesced), 3 * coalesced, "{class:?}");
        assert_eq!(dropped, drops, "{class:?}: by cause");
        let gave_way = dropped[DropCause::Superseded as usize];
        assert_eq!(sum(&|class| class.drained) + gave_way, 3 * enqueued, "{class:?}: every message has one fate");
    }
}

/// Sends itself nothing but what the test says: so many messages of each class to lane 1.
#[derive(Default)]
struct Feeder {
    taken: [u64; 3],
}

impl Handler for Feeder {
    type Command = [u32; 3];

    fn on_command(&mut self, cx: &mut Context, messages: [u32; 3]) {
        for class in Class::ALL {
            for n in 0..messages[class.index()] {
                let to = Envelope::to_lane(LaneIndex(1), class, Kind::new(1));
                assert_eq!(cx.send(Envelope { key_prefix: u64::from(n), ..to }, &[]), Enqueue::Enqueued);
            }
        }
    }

    fn on_message(&mut self, _: &mut Context, message: Message<'_>) {
        self.taken[message.envelope.class.index()] += 1;
    }
}

#[test]
fn a_flood_of_the_higher_classes_never_starves_the_lowest() {
    let ring = RingSize { messages_max: 4096, payload_bytes_max: 512 };
    let lane = LaneConfig { rings: RingSizes { classes: [ring; 3], bulk_bytes_max: 4096 }, ..LaneConfig::default() };
    let mut node =
        VirtualNode::new(VirtualConfig { lanes: 2, lane, log: None, seed: 3 }, |_| Feeder::default()).unwrap();
    // More than a turn can take of every class: 8:4:1 of batches that grow from 16 to 64.
    let mut before = [0; 3];
    node.command(LaneIndex(0), [512, 256, 64]);
    for batch in [16, 32, 64, 64, 64, 64] {
        node.command(LaneIndex(0), [512, 256, 64]);
        node.turn();
        let taken = node.handler(LaneIndex(1)).unwrap().taken;
        let turn = [taken[0] - before[0], taken[1] - before[1], taken[2] - before[2]];
        assert_eq!(turn, [8 * batch, 4 * batch, batch], "the shares of one turn");
        before = taken;
    }
    // A trickle of hints beside a flood of the others is taken in the very turn it comes.
    node.run_until_idle();
    for _ in 0..50 {
        node.command(LaneIndex(0), [512, 256, 3]);
        let before = node.handler(LaneIndex(1)).unwrap().taken[2];
        node.turn();
        node.turn();
        assert_eq!(node.handler(LaneIndex(1)).unwrap().taken[2], before + 3);
    }
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

/// Reports the fate of a message to a lane or a slot, with a time to live.
struct Messenger;

impl Handler for Messenger {
    type Command = (Envelope, Sender<Enqueue>, usize);

    fn on_command(&mut self, cx: &mut Context, (envelope, answer, bytes): Self::Command) {
        answer.send(cx.send(envelope, &vec![0; bytes])).unwrap();
    }
}

#[test]
fn a_message_that_can_go_nowhere_or_lives_no_longer_is_dropped_with_that_reason() {
    let config = VirtualConfig { lanes: 2, lane: LaneConfig::default(), log: None, seed: 1 };
    let mut node = VirtualNode::new(config, |_| Messenger).unwrap();
    let mut send = |envelope, bytes| {
        let (to, answer) = channel();
        assert!(node.command(LaneIndex(0), (envelope, to, bytes)));
        answer.recv().unwrap()
    };
    let to = |lane| Envelope::to_lane(LaneIndex(lane), Class::Coordination, Kind::new(1));
    assert_eq!(send(to(1), 512), Enqueue::Enqueued);
    assert_eq!(send(to(1), 513), Enqueue::Dropped(DropReason::NoRoute), "longer than a payload may be");
    assert_eq!(send(to(2), 0), Enqueue::Dropped(DropReason::NoRoute), "no such lane");
    assert_eq!(send(Envelope { ttl: 1, ..to(1) }, 0), Enqueue::Enqueued);
    assert_eq!(send(Envelope { ttl: 0, ..to(1) }, 0), Enqueue::Dropped(DropReason::TtlExpired));
    let dropped = &node.counters(LaneIndex(0)).unwrap().class(Class::Coordination).dropped;
    assert_eq!(dropped[DropCause::NoRoute as usize].get(), 2);
    assert_eq!(dropped[DropCause::TtlExpired as usize].get(), 1);
}
