//! Messages between lanes, beside a bare ring that carries the same bytes.

use std::hint::black_box;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use tessera_contracts::prefix_map::LaneIndex;
use tessera_lanes::config::LaneConfig;
use tessera_lanes::handler::Message;
use tessera_lanes::runtime::{Runtime, RuntimeConfig};
use tessera_lanes::simulated::{VirtualConfig, VirtualNode};
use tessera_lanes::{Class, Context, Envelope, Handler, Kind};

use crate::harness::Pair;

/// Messages in one operation between threads.
const MESSAGES: u64 = 65_536;
/// Messages sent before they are taken, on one thread: a usual backlog, in the class's ring.
const BATCH: u64 = 256;

/// Two lanes on one thread, beside a ring whose producer and consumer are one thread: the cost of both sides of a message in
/// instructions, without waiting. An operation is a batch.
pub(super) fn on_one_thread() -> Pair {
    let config = VirtualConfig { lanes: 2, lane: LaneConfig::default(), log: None, seed: 1 };
    let mut node = VirtualNode::new(config, |_| Counted::default()).expect("two lanes are a number of lanes");
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; 6]>::new(1024);
    Pair::new(
        move |times| {
            for _ in 0..times {
                node.command(LaneIndex(0), BATCH);
                node.run_until_idle();
            }
            let taken = node.handler(LaneIndex(1)).map_or(0, |lane| lane.taken);
            assert!(taken.is_multiple_of(BATCH) && taken >= times * BATCH, "none is lost: {taken}");
        },
        move |times| {
            for _ in 0..times {
                for n in 0..BATCH {
                    let pushed = producer.push(black_box([n; 6]));
                    assert!(pushed.is_ok(), "the ring holds a batch");
                }
                while let Ok(message) = consumer.pop() {
                    black_box(message);
                }
            }
        },
    )
}

#[derive(Default)]
struct Counted {
    taken: u64,
}

impl Handler for Counted {
    type Command = u64;

    fn on_command(&mut self, cx: &mut Context, messages: u64) {
        for n in 0..messages {
            let piece = Envelope::to_lane(LaneIndex(1), Class::Coordination, PIECE);
            let sent = cx.send(piece, black_box(&[n as u8; 16]));
            assert!(sent.is_accepted(), "the ring holds a batch");
        }
    }

    fn on_message(&mut self, _: &mut Context, message: Message<'_>) {
        black_box(message.payload);
        self.taken += 1;
    }
}

const GO_ON: Kind = Kind::new(1);
const PIECE: Kind = Kind::new(2);

/// Lane 0 sends as many messages as it is told to lane 1, as fast as the ring takes them; lane 1 says when it has them all.
#[derive(Default)]
pub(super) struct Flood {
    left: u64,
    awaited: u64,
    done: Option<Sender<()>>,
}

pub(super) enum Order {
    Send(u64),
    Await(u64, Sender<()>),
    Answer(SyncSender<()>),
}

impl Flood {
    fn pour(&mut self, cx: &mut Context) {
        while self.left > 0 {
            let piece = Envelope::to_lane(LaneIndex(1), Class::Coordination, PIECE);
            if !cx.send(piece, &[9; 16]).is_accepted() {
                break;
            }
            self.left -= 1;
        }
        if self.left > 0 {
            // A note to self: come back after a turn.
            let _ = cx.send(Envelope::to_lane(cx.lane(), Class::Control, GO_ON), &[]);
        }
    }
}

impl Handler for Flood {
    type Command = Order;

    fn on_command(&mut self, cx: &mut Context, order: Order) {
        match order {
            Order::Send(messages) => {
                self.left = messages;
                self.pour(cx);
            }
            Order::Await(messages, done) => (self.awaited, self.done) = (messages, Some(done)),
            Order::Answer(to) => drop(to.send(())),
        }
    }

    fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
        if message.envelope.kind == GO_ON {
            return self.pour(cx);
        }
        self.awaited -= 1;
        if self.awaited == 0
            && let Some(done) = self.done.take()
        {
            let _ = done.send(());
        }
    }
}

/// Two lanes on two threads, beside a ring between two threads. All of them spin when they wait, and that is counted.
pub(super) fn between_threads() -> Pair {
    let runtime =
        Runtime::start(RuntimeConfig { lanes: 2, pin: false, ..RuntimeConfig::default() }, |_| Flood::default())
            .expect("two lanes start");
    let ring = BareRing::start();
    Pair::new(
        move |times| {
            let (done, finished) = channel();
            let sent = runtime.command(LaneIndex(1), Order::Await(times * MESSAGES, done));
            // Commands to two lanes are not ordered: the receiver must know what to wait for before the first message.
            let (to, answer) = sync_channel(1);
            let ready = runtime.command(LaneIndex(1), Order::Answer(to)).is_ok() && answer.recv().is_ok();
            assert!(sent.is_ok() && ready && runtime.command(LaneIndex(0), Order::Send(times * MESSAGES)).is_ok());
            finished.recv().expect("lane 1 gets them all");
        },
        move |times| ring.carry(times * MESSAGES),
    )
}

/// The least a message can be: 48 bytes through one ring between two threads that spin.
struct BareRing {
    orders: Sender<u64>,
    awaited: Sender<u64>,
    finished: Receiver<()>,
}

impl BareRing {
    fn start() -> Self {
        let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; 6]>::new(1024);
        let (orders, order_inbox) = channel::<u64>();
        let (awaited, await_inbox) = channel::<u64>();
        let (done, finished) = channel();
        std::thread::spawn(move || {
            for times in order_inbox {
                for n in 0..times {
                    while producer.push([n; 6]).is_err() {
                        std::hint::spin_loop();
                    }
                }
            }
        });
        std::thread::spawn(move || {
            for times in await_inbox {
                for _ in 0..times {
                    while consumer.pop().is_err() {
                        std::hint::spin_loop();
                    }
                }
                if done.send(()).is_err() {
                    break;
                }
            }
        });
        Self { orders, awaited, finished }
    }

    fn carry(&self, times: u64) {
        self.awaited.send(times).expect("the consumer lives");
        self.orders.send(times).expect("the producer lives");
        self.finished.recv().expect("the consumer answers");
    }
}
