//! The floor of sealed datagrams on lanes: a put and a get that only exchange them, as long as ours and sealed as ours are.
//!
//! As many runtimes of one lane as there are nodes. Every datagram is opened and another sealed with the cipher that nodes use, and
//! with a key derived anew, as theirs are from peers met among many. Nothing is looked up, judged or stored: the cost of our node
//! beyond this is the protocol, and the cost of this beyond bare datagrams is sealing, batches, and a caller on a thread of its own.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use tessera_contracts::prefix_map::LaneIndex;
use tessera_dht::identity::{PublicKey, SharedSecret};
use tessera_dht::seal::keys::{NetworkKey, PairRoot};
use tessera_dht::wire::header::{HEADER_BYTES, Header, Suite};
use tessera_dht::wire::{DATAGRAM_BYTES_MAX, TAG_BYTES};
use tessera_lanes::Context;
use tessera_lanes::config::LaneConfig;
use tessera_lanes::handler::{Datagram, Handler};
use tessera_lanes::runtime::{Runtime, RuntimeConfig};

use crate::network::{Got, Network};

/// Nodes a put writes to, and nodes a get asks.
const REPLICAS: usize = 20;
const ASKED: usize = 3;
/// Bytes of a STORE of a short value, and of answers that name sixteen contacts, four, and none.
const QUESTION_BYTES: usize = 150;
const ANSWER_BYTES: [usize; 3] = [900, 300, 110];

/// The nodes to ask, and the caller to tell when all have answered.
type Ask = (Vec<SocketAddr>, Sender<()>);

/// The kinds of questions are those of the answers they want; an answer is none of them.
const ANSWER: u8 = 9;

struct Lane {
    root: PairRoot,
    asking: Option<Ask>,
    answers: usize,
}

impl Lane {
    fn new() -> Self {
        let (here, there) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let root = PairRoot::derive(&SharedSecret::new([3; 32]), &NetworkKey::of_name("floor"), &here, &there);
        Self { root, asking: None, answers: 0 }
    }

    /// One header for all: the opener must derive the sealer's key.
    fn header() -> Header {
        let sender = PublicKey([1; 32]);
        Header { slot: 0, reply_slot: 0, suite: Suite::Aes256Gcm, period: 1, counter: 0, incarnation: [4; 16], sender }
    }

    fn send(&self, cx: &mut Context, to: SocketAddr, kind: u8, len: usize) {
        let header = Self::header();
        let mut datagram = [kind; DATAGRAM_BYTES_MAX];
        let (clear, rest) =
            datagram.split_first_chunk_mut::<HEADER_BYTES>().expect("a datagram is longer than its header");
        header.write(clear);
        let (body, tag) = rest.split_at_mut(len - HEADER_BYTES - TAG_BYTES);
        tag[..TAG_BYTES].copy_from_slice(&self.root.stream_key(&header).seal(header.counter, clear, body));
        // A datagram that finds no room is missed by its waiting asker.
        let _ = cx.send_datagram(to, &datagram[..len]);
    }
}

impl Handler for Lane {
    type Command = Ask;

    fn on_command(&mut self, cx: &mut Context, (to, done): Ask) {
        self.answers = 0;
        for (rank, to) in to.iter().enumerate() {
            let kind = if rank < 3 { 0 } else { 1 + u8::from(rank >= 8) };
            self.send(cx, *to, kind, QUESTION_BYTES);
        }
        self.asking = Some((to, done));
    }

    fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
        let header = Self::header();
        let (clear, sealed) = datagram.bytes.split_at_mut(HEADER_BYTES);
        let opened = self.root.stream_key(&header).open(header.counter, clear, sealed);
        let kind = opened.expect("it was sealed with this very key")[0];
        if let Some(len) = ANSWER_BYTES.get(usize::from(kind)) {
            self.send(cx, datagram.from, ANSWER, *len);
            return;
        }
        self.answers += 1;
        if let Some((_, done)) = self.asking.take_if(|(to, _)| to.len() == self.answers) {
            let _ = done.send(());
        }
    }
}

pub(crate) struct Sealed {
    /// Each has one exchange under way at most.
    lanes: Vec<Mutex<Runtime<Ask>>>,
    addrs: Vec<SocketAddr>,
}

impl Sealed {
    /// Asks `count` of the others, and waits for all of them.
    fn exchange(&self, node: usize, count: usize) -> Result<(), Box<dyn Error>> {
        let others = (1..=count).map(|other| self.addrs[(node + other * 3) % self.addrs.len()]);
        let (done, all_answered) = channel();
        let lane = self.lanes[node].lock().map_err(|_| "another caller panicked")?;
        let asked = lane.command(LaneIndex(0), (others.collect(), done));
        asked.map_err(|_| "a lane takes no command")?;
        Ok(all_answered.recv_timeout(Duration::from_secs(5))?)
    }
}

impl Network for Sealed {
    type Id = ();
    const BLOCKS: bool = true;

    fn start(count: usize) -> Result<Self, Box<dyn Error>> {
        let config = RuntimeConfig {
            lanes: 1,
            pin: false,
            spin: Duration::ZERO,
            bind: Some("127.0.0.1:0".parse()?),
            lane: LaneConfig { datagram_bytes_max: DATAGRAM_BYTES_MAX + 1, pool_buffers: 0, ..LaneConfig::default() },
            ..RuntimeConfig::default()
        };
        let (mut lanes, mut addrs) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let lane = Runtime::start(config.clone(), |_| Lane::new())?;
            addrs.push(lane.address().ok_or("a lane without an address")?);
            lanes.push(Mutex::new(lane));
        }
        Ok(Self { lanes, addrs })
    }

    async fn put(&self, node: usize, _: Vec<u8>) -> Result<(), Box<dyn Error>> {
        self.exchange(node, REPLICAS)
    }

    async fn get(&self, node: usize, (): &()) -> Result<Got, Box<dyn Error>> {
        self.exchange(node, ASKED)?;
        Ok(Got::Asked)
    }
}
