//! A put and a get of the DHT among 64 lanes in memory, beside sealing and opening their datagrams alone.
//!
//! The figures of `bench/rivals` for whole nodes depend on the machine's kernel and caches of that day. Here is neither socket nor
//! thread: only our own code for an operation on both sides of every exchange, and its instructions can be counted.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hint::black_box;
use std::rc::Rc;

use tessera_contracts::point::ContentId;
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_dht::abuse::AbuseLimits;
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{Answer, Command, CommandId, Outcome, Privacy};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox};
use tessera_dht::record::{RecordView, TTL_SECS_DEFAULT, immutable_record};
use tessera_dht::time::Now;
use tessera_dht::wire::DATAGRAM_BYTES_MAX;

use crate::harness::Pair;

const NODES: usize = 64;
/// Nodes that hold a record.
const REPLICAS: u16 = 20;
/// So long they have to find each other.
const JOINING_MS: u64 = 30_000;
/// Operations before the first that counts, so that every two have met: meeting costs a key agreement on either side.
const WARM_UP: u64 = 640;

/// Datagrams on their way, and the outcome of the last command.
struct Air {
    /// Whose turn it is.
    from: Addr,
    /// As many as were ever on their way at once; the first `len` are now.
    flying: Vec<Flying>,
    len: usize,
    outcome: Option<Outcome>,
    sent: Sent,
}

struct Flying {
    from: Addr,
    to: Addr,
    bytes: [u8; DATAGRAM_BYTES_MAX],
    len: usize,
}

/// How many datagrams were sent, and their bytes.
#[derive(Clone, Copy, Default)]
struct Sent {
    datagrams: u64,
    bytes: u64,
}

impl Outbox for Air {
    fn send(&mut self, to: Addr, datagram: &[u8]) {
        if self.len == self.flying.len() {
            self.flying.push(Flying { from: to, to, bytes: [0; DATAGRAM_BYTES_MAX], len: 0 });
        }
        let flying = &mut self.flying[self.len];
        (flying.from, flying.to, flying.len) = (self.from, to, datagram.len());
        flying.bytes[..datagram.len()].copy_from_slice(datagram);
        self.len += 1;
        self.sent.datagrams += 1;
        self.sent.bytes += datagram.len() as u64;
    }
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        Logged::Safe
    }
    fn complete(&mut self, _: CommandId, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

/// 64 nodes of one lane that know each other.
struct Network {
    now: Now,
    nodes: Vec<LaneNode>,
    addrs: Vec<Addr>,
    by_addr: HashMap<Addr, usize>,
    /// Datagrams on their way to nodes, and those that were answered with.
    air: Air,
    landing: Vec<Flying>,
    /// Ids of values that were put, and not read by any node.
    unread: Vec<ContentId>,
}

impl Network {
    fn new() -> Self {
        let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).expect("24 is a depth"), 1).expect("one lane");
        let mut config = NodeConfig {
            abuse: AbuseLimits {
                per_peer_per_sec: 1_000_000,
                per_prefix_per_sec: 10_000_000,
                strangers_per_prefix_per_sec: 1_000_000,
                ..AbuseLimits::default()
            },
            ..NodeConfig::default()
        };
        (config.table.per_prefix_in_bucket, config.table.per_prefix_in_table) = (usize::MAX, usize::MAX);
        config.lookup.per_prefix_max = usize::MAX;
        let now = Now { mono_ms: 1_000_000, unix_ms: 1_800_000_000_000 };
        let identities = (0..NODES as u8).map(|n| Identity::from_seed(&[n; 32]));
        let nodes: Vec<_> = identities
            .enumerate()
            .map(|(n, identity)| {
                LaneNode::new(config.clone(), identity, map.clone(), LaneIndex(0), [n as u8 ^ 0x55; 32], now)
            })
            .collect();
        let addrs: Vec<_> = (0..NODES as u16).map(|n| Addr::v4([127, 0, 0, 1], 4000 + n)).collect();
        let by_addr = addrs.iter().copied().enumerate().map(|(n, addr)| (addr, n)).collect();
        let air = Air { from: addrs[0], flying: Vec::new(), len: 0, outcome: None, sent: Sent::default() };
        let mut network = Self { now, nodes, addrs, by_addr, air, landing: Vec::new(), unread: Vec::new() };
        let seed = Contact { key: Identity::from_seed(&[0; 32]).public_key(), addr: network.addrs[0] };
        for n in 0..NODES {
            let contacts = if n == 0 { Vec::new() } else { vec![seed] };
            network.call(n, |node, now, air| {
                node.on_start(now, air);
                node.on_command(now, CommandId(0), Command::Bootstrap { contacts }, air);
            });
        }
        for _ in 0..JOINING_MS {
            network.pass_a_millisecond();
        }
        for n in 0..WARM_UP {
            network.put(n);
        }
        network
    }

    fn call(&mut self, n: usize, act: impl FnOnce(&mut LaneNode, Now, &mut Air)) {
        self.air.from = self.addrs[n];
        act(&mut self.nodes[n], self.now, &mut self.air);
    }

    /// Lets everything that is on its way arrive, and all that comes of it.
    fn settle(&mut self) {
        while self.air.len > 0 {
            std::mem::swap(&mut self.air.flying, &mut self.landing);
            let landed = std::mem::take(&mut self.air.len);
            let mut landing = std::mem::take(&mut self.landing);
            for Flying { from, to, bytes, len } in &mut landing[..landed] {
                let n = self.by_addr[to];
                self.call(n, |node, now, air| node.on_datagram(now, *from, &mut bytes[..*len], 0, air));
            }
            self.landing = landing;
        }
    }

    fn pass_a_millisecond(&mut self) {
        self.now = self.now.later(std::time::Duration::from_millis(1));
        for n in 0..NODES {
            if self.nodes[n].next_wake_ms().is_some_and(|wake| wake <= self.now.mono_ms) {
                self.call(n, |node, now, air| node.on_time(now, air));
            }
        }
        self.settle();
    }

    fn command(&mut self, n: usize, command: Command) -> Answer {
        self.pass_a_millisecond();
        self.air.outcome = None;
        self.call(n, |node, now, air| node.on_command(now, CommandId(1), command, air));
        self.settle();
        self.air.outcome.take().expect("no node is silent, so it is over when all have answered").answer
    }

    /// Puts a value that no node has yet, from one node after another.
    fn put(&mut self, n: u64) {
        let record = immutable_record(format!("value {n}").as_bytes(), TTL_SECS_DEFAULT).expect("it is short");
        self.unread.push(RecordView::read(&record).expect("just written").id());
        match self.command((n * 13) as usize % NODES, Command::Put { record, keep_alive: false }) {
            Answer::Written(written) if written.acknowledged >= REPLICAS => {}
            other => panic!("a put was answered {other:?}"),
        }
    }

    /// Gets a value by a node that has to ask for it.
    fn get(&mut self, n: u64) {
        let id = self.unread.pop().expect("refilled");
        let has_it = |at: &usize| self.nodes[*at].records().peek(&id).is_some();
        let reader = (0..NODES).map(|at| (at + n as usize * 29) % NODES).find(|at| !has_it(at)).expect("20 hold it");
        match self.command(reader, Command::Get { id, mutable: false, privacy: Privacy::None }) {
            Answer::Record(record) => drop(black_box(record)),
            other => panic!("a get was answered {other:?}"),
        }
    }
}

/// Seals and opens `datagrams` of `len` bytes, each with a key that is derived for it, as theirs are from peers met among many.
fn seal_and_open(datagrams: u64, len: u64) -> impl FnMut(u64) {
    use tessera_dht::identity::{PublicKey, SharedSecret};
    use tessera_dht::seal::keys::{NetworkKey, PairRoot};
    use tessera_dht::wire::header::{HEADER_BYTES, Header, Suite};
    let sender = PublicKey([1; 32]);
    let root =
        PairRoot::derive(&SharedSecret::new([3; 32]), &NetworkKey::of_name("bench"), &sender, &PublicKey([2; 32]));
    let header =
        Header { slot: 0, suite: Suite::Aes256Gcm, reply_slot: 0, period: 1, counter: 0, incarnation: [4; 16], sender };
    let mut datagram = [0; DATAGRAM_BYTES_MAX];
    let len = len as usize;
    move |times| {
        for counter in 0..times * datagrams {
            let (clear, rest) = datagram.split_at_mut(HEADER_BYTES);
            let (body, tag) = rest[..len - HEADER_BYTES].split_at_mut(len - HEADER_BYTES - 16);
            tag.copy_from_slice(&root.stream_key(&header).seal(counter, clear, body));
            let opened = root.stream_key(&header).open(counter, clear, &mut rest[..len - HEADER_BYTES]);
            black_box(opened.expect("sealed with this very key"));
        }
    }
}

/// Operations looked at to know what datagrams one sends.
const SAMPLED: u64 = 200;

/// Gets before values to get are put again.
const GETS_MAX: u64 = 2000;

/// So many operations of one kind, counted from `begun` on, and the mean number of datagrams of one.
fn datagrams_of(network: &mut Network, begun: u64, operation: fn(&mut Network, u64)) -> (u64, u64) {
    let before = network.air.sent;
    (begun..begun + SAMPLED).for_each(|n| operation(network, n));
    let (datagrams, bytes) = (network.air.sent.datagrams - before.datagrams, network.air.sent.bytes - before.bytes);
    ((datagrams as f64 / SAMPLED as f64).round() as u64, bytes / datagrams)
}

pub(super) fn put() -> Pair {
    let mut network = Network::new();
    let (datagrams, bytes) = datagrams_of(&mut network, WARM_UP, Network::put);
    let mut done = WARM_UP + SAMPLED;
    let ours = move |times| {
        (done..done + times).for_each(|n| network.put(n));
        done += times;
    };
    Pair::new(ours, seal_and_open(datagrams, bytes))
}

pub(super) fn get() -> Pair {
    let mut network = Network::new();
    let (datagrams, bytes) = datagrams_of(&mut network, 0, Network::get);
    let (network, mut begun) = (Rc::new(RefCell::new(network)), WARM_UP);
    let refilled = network.clone();
    let ours = move |times| (0..times).for_each(|n| network.borrow_mut().get(n));
    Pair::new(ours, seal_and_open(datagrams, bytes)).refilled(GETS_MAX, move |times| {
        let mut network = refilled.borrow_mut();
        network.unread.clear();
        (begun..begun + times).for_each(|n| network.put(n));
        begun += times;
    })
}
