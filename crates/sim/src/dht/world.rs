//! The virtual world: nodes, a network between them, and one clock.
//!
//! Events are ordered by time and then by number, everything random comes from one seed, and nothing is hashed in an order
//! that could differ: a run is a function of its arguments.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use tessera_contracts::point::NodeId;
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, PublicKey};
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{Command, CommandId, Outcome};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::rng::LaneRng;
use tessera_dht::time::Now;

use super::crypto::SimCrypto;
use super::outsider::Inbox;
use super::sybil::Sybil;
pub(crate) use effects::Effects;
use effects::{Event, Scheduled};

mod effects;
mod network;

/// The wall clock when a simulation begins.
const UNIX_MS_START: u64 = 1_800_000_000_000;

/// The monotone clock when a simulation begins: any number, but not zero, which reads as "never" in places.
const MONO_MS_START: u64 = 10_000_000;

/// What the network does to datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) loss: f64,
    pub(crate) duplicates: f64,
    /// Share of datagrams that reach another lane than their slot byte names, as where no filter is attached.
    pub(crate) misrouted: f64,
}

impl Default for Weather {
    fn default() -> Self {
        Self { loss: 0.01, duplicates: 0.005, misrouted: 0.0 }
    }
}

/// What lives at an address.
pub(crate) enum Being {
    Honest(Vec<Lane>),
    Sybil(Box<Sybil>),
    /// Collects what comes.
    Outsider(Inbox),
    /// Gone; its address stays a dead end.
    Dead,
}

pub(crate) struct Lane {
    pub(crate) node: LaneNode,
    wake_ms: u64,
}

/// A logged piece of state.
pub(crate) type LogEntry = (u8, Slot, Vec<u8>);

/// How long a disk takes to make a log record safe.
const SYNC_MS: u64 = 4;

pub(crate) struct Node {
    pub(crate) being: Being,
    pub(crate) contact: Contact,
    pub(crate) id: NodeId,
    pub(crate) seed: [u8; 32],
    pub(crate) map: PrefixMap,
    /// Position in a plane of delays, and the delay of the last mile, in milliseconds.
    place: (f64, f64, f64),
    pub(crate) island: u8,
    /// Only those it has written to lately reach it.
    nat: Option<BTreeMap<Addr, u64>>,
    /// Extra delay before it handles anything.
    pub(crate) slow_ms: u64,
    pub(crate) config: NodeConfig,
    /// What a restart finds. A crash takes back what came after `log_safe`.
    pub(crate) log: Vec<LogEntry>,
    log_safe: usize,
    pub(crate) keeps_log: bool,
    pub(crate) born_ms: u64,
}

impl Node {
    pub(crate) fn is_honest(&self) -> bool {
        matches!(self.being, Being::Honest(_))
    }

    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.being, Being::Dead)
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        if let Being::Honest(lanes) = &self.being { lanes } else { &[] }
    }

    pub(crate) fn is_natted(&self) -> bool {
        self.nat.is_some()
    }
}

/// A finished command.
pub(crate) struct Completed {
    pub(crate) node: usize,
    pub(crate) command: CommandId,
    pub(crate) outcome: Outcome,
}

/// Traffic in and out of one pair of addresses, for addresses that a checker watches.
#[derive(Clone, Copy, Default)]
pub(crate) struct Traffic {
    pub(crate) claimed_bytes: u64,
    pub(crate) answered_bytes: u64,
}

/// Everything.
pub(crate) struct World {
    now_ms: u64,
    number: u64,
    queue: BinaryHeap<Reverse<Scheduled>>,
    pub(crate) nodes: Vec<Node>,
    by_addr: BTreeMap<Addr, usize>,
    pub(crate) rng: LaneRng,
    pub(crate) weather: Weather,
    pub(crate) partitioned: bool,
    pub(crate) secret: [u8; 32],
    pub(crate) real_crypto: bool,
    pub(crate) completed: Vec<Completed>,
    next_command: u64,
    pub(crate) datagrams: u64,
    /// Addresses at which nobody lives: a forger's claimed sources. Whatever is sent there was drawn by a forgery.
    pub(crate) spoofed: BTreeMap<(usize, Addr), Traffic>,
    /// A few datagrams as they flew by, for replays.
    pub(crate) captured: Vec<(usize, Addr, Vec<u8>)>,
    next_host: u32,
    /// What is done to the configuration of every node behind the checkers' back: how their test breaks a bound.
    pub(crate) breaks: Option<fn(&mut NodeConfig)>,
}

impl World {
    pub(crate) fn new(seed: u64, real_crypto: bool) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let mut rng = LaneRng::new(bytes);
        Self {
            now_ms: 0,
            number: 0,
            queue: BinaryHeap::new(),
            nodes: Vec::new(),
            by_addr: BTreeMap::new(),
            secret: rng.bytes(),
            rng,
            weather: Weather::default(),
            partitioned: false,
            real_crypto,
            completed: Vec::new(),
            next_command: 0,
            datagrams: 0,
            spoofed: BTreeMap::new(),
            captured: Vec::new(),
            next_host: 0,
            breaks: None,
        }
    }

    /// Milliseconds since the simulation began.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn now(&self) -> Now {
        Now { mono_ms: MONO_MS_START + self.now_ms, unix_ms: UNIX_MS_START + self.now_ms }
    }

    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        (self.rng.below(1 << 32) as f64) < probability * (1_u64 << 32) as f64
    }

    pub(crate) fn pick(&mut self, count: usize) -> usize {
        self.rng.below(count as u64) as usize
    }

    /// An address in a /24 of its own.
    pub(crate) fn fresh_addr(&mut self) -> Addr {
        self.next_host += 1;
        let [_, a, b, c] = self.next_host.to_be_bytes();
        Addr::v4([20 + a, b, c, 1], 4000)
    }

    /// Adds an honest node with `lanes` lanes and starts it.
    pub(crate) fn add_node(&mut self, config: &NodeConfig, lanes: usize, natted: bool, seeds: &[Contact]) -> usize {
        let addr = self.fresh_addr();
        let seed = self.rng.bytes();
        let contact = Contact { key: self.crypto(seed).public_key(), addr };
        let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).expect("24 is a depth"), lanes)
            .expect("the number of lanes is in range");
        let node = Node {
            being: Being::Dead,
            contact,
            id: contact.id(),
            seed,
            map,
            place: self.place(),
            island: 0,
            nat: natted.then(BTreeMap::new),
            slow_ms: 0,
            config: config.clone(),
            log: Vec::new(),
            log_safe: 0,
            keeps_log: false,
            born_ms: 0,
        };
        let at = self.nodes.len();
        self.nodes.push(node);
        self.by_addr.insert(addr, at);
        self.start(at, seeds);
        at
    }

    /// Adds a hostile node.
    pub(crate) fn add_sybil(&mut self, seed: [u8; 32], addr: Addr, sybil: impl FnOnce(SimCrypto) -> Sybil) -> usize {
        let being = Being::Sybil(Box::new(sybil(self.crypto(seed))));
        self.add_being(seed, addr, being)
    }

    /// Adds who is no node of ours at an address.
    pub(crate) fn add_being(&mut self, seed: [u8; 32], addr: Addr, being: Being) -> usize {
        let contact = Contact { key: self.crypto(seed).public_key(), addr };
        let node = Node {
            being,
            contact,
            id: contact.id(),
            seed,
            map: PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).expect("24 is a depth"), 1).expect("one lane"),
            place: self.place(),
            island: 0,
            nat: None,
            slow_ms: 0,
            config: NodeConfig::default(),
            log: Vec::new(),
            log_safe: 0,
            keeps_log: false,
            born_ms: self.now_ms,
        };
        let at = self.nodes.len();
        self.nodes.push(node);
        self.by_addr.insert(addr, at);
        at
    }

    fn place(&mut self) -> (f64, f64, f64) {
        // A square of 120 ms across and last miles of 2 to 30 ms: round trips of 10 to 460 ms, about 175 in the mean.
        let mut unit = || self.rng.below(1 << 20) as f64 / (1_u64 << 20) as f64;
        let (x, y, mile) = (unit() * 120.0, unit() * 120.0, unit());
        (x, y, 2.0 + 28.0 * mile * mile)
    }

    pub(crate) fn crypto(&self, seed: [u8; 32]) -> SimCrypto {
        SimCrypto::new(seed, self.secret, self.real_crypto)
    }

    /// Starts, or starts again, the lanes of a node from its log.
    pub(crate) fn start(&mut self, at: usize, seeds: &[Contact]) {
        let now = self.now();
        let lanes = self.nodes[at].map.lanes();
        let mut started = Vec::with_capacity(lanes);
        for lane in 0..lanes {
            started.push(self.make_lane(at, LaneIndex(lane as u8)));
        }
        self.nodes[at].being = Being::Honest(started);
        self.nodes[at].born_ms = self.now_ms;
        for lane in 0..lanes {
            let seeds = seeds.to_vec();
            self.call(at, lane, |node, out| {
                node.on_start(now, out);
                node.on_command(now, CommandId(u64::MAX), Command::Bootstrap { contacts: seeds }, out);
            });
        }
    }

    /// The bounds of a lane: what it uses, and the most it was told to.
    pub(crate) fn bounds(&self, at: usize, lane: usize) -> impl Iterator<Item = (&'static str, usize, usize)> {
        let bounds = self.nodes[at].lanes()[lane].node.bounds();
        // A lane that was told otherwise behind the checkers' back is held to what a faithful one would say.
        let told = self.breaks.map_or(bounds, |_| {
            let (node, lane) = (&self.nodes[at], LaneIndex(lane as u8));
            let crypto = self.crypto(node.seed);
            LaneNode::new(node.config.clone(), crypto, node.map.clone(), lane, [0; 32], self.now()).bounds()
        });
        bounds.into_iter().zip(told).map(|((what, used, _), (.., most))| (what, used, most))
    }

    fn make_lane(&mut self, at: usize, lane: LaneIndex) -> Lane {
        let now = self.now();
        let seed = self.rng.bytes();
        let node = &self.nodes[at];
        let crypto = SimCrypto::new(node.seed, self.secret, self.real_crypto);
        let mut config = node.config.clone();
        if let Some(breaks) = self.breaks {
            breaks(&mut config);
        }
        let mut machine = LaneNode::new(config, crypto, node.map.clone(), lane, seed, now);
        for (kind, slot, payload) in &node.log {
            // Contacts are everybody's; the rest belongs to the lane that owns its slot now.
            if *kind == tessera_dht::node::log::log_kind::CONTACT || node.map.lane_of_slot(*slot) == lane {
                machine.on_record(now, *kind, payload);
            }
        }
        Lane { node: machine, wake_ms: u64::MAX }
    }

    /// One lane dies and is started again from the log; the others go on.
    pub(crate) fn restart_lane(&mut self, at: usize, lane: usize) {
        self.lose_unsafe(at);
        let fresh = self.make_lane(at, LaneIndex(lane as u8));
        if let Being::Honest(lanes) = &mut self.nodes[at].being {
            lanes[lane] = fresh;
        }
        let now = self.now();
        let contacts = self.nodes[at].lanes()[(lane + 1) % self.nodes[at].lanes().len()]
            .node
            .table()
            .iter_live()
            .map(|peer| peer.contact)
            .collect();
        self.call(at, lane, |node, out| {
            node.on_start(now, out);
            node.on_command(now, CommandId(u64::MAX), Command::Bootstrap { contacts }, out);
        });
    }

    /// Changes a node's number of lanes: slots that move are exported by their old lane and imported by the new one.
    pub(crate) fn resize(&mut self, at: usize, lanes: usize) -> usize {
        let now = self.now();
        let old = self.nodes[at].map.clone();
        let new = old.resized(lanes).expect("the number of lanes is in range");
        let moves: Vec<_> = old.moves_to(&new).collect();
        let mut moved: Vec<(Slot, Vec<LogEntry>)> = Vec::new();
        for change in &moves {
            let mut records = Vec::new();
            self.nodes[at].lanes()[usize::from(change.from.0)].node.export(
                Some(change.slot),
                now,
                |kind, slot, payload| {
                    records.push((kind, slot, payload.to_vec()));
                    true
                },
            );
            moved.push((change.slot, records));
        }
        self.nodes[at].map = new.clone();
        let contacts: Vec<Contact> =
            self.nodes[at].lanes()[0].node.table().iter_live().map(|peer| peer.contact).collect();
        while self.nodes[at].lanes().len() < new.lanes() {
            let lane = self.nodes[at].lanes().len();
            // The log would hand it its records too; here it must get them from the lanes that have them.
            let log = std::mem::take(&mut self.nodes[at].log);
            let fresh = self.make_lane(at, LaneIndex(lane as u8));
            self.nodes[at].log = log;
            if let Being::Honest(lanes) = &mut self.nodes[at].being {
                lanes.push(fresh);
            }
            let contacts = contacts.clone();
            self.call(at, lane, |node, out| {
                node.on_start(now, out);
                node.on_command(now, CommandId(u64::MAX), Command::Bootstrap { contacts }, out);
            });
        }
        if let Being::Honest(lanes) = &mut self.nodes[at].being {
            for lane in lanes.iter_mut() {
                lane.node.on_map(new.clone());
            }
            for (slot, records) in &moved {
                let target = usize::from(new.lane_of_slot(*slot).0);
                for (kind, _, payload) in records {
                    lanes[target].node.on_record(now, *kind, payload);
                }
            }
            for change in &moves {
                lanes[usize::from(change.from.0)].node.drop_slot(change.slot);
            }
            lanes.truncate(new.lanes());
        }
        moves.len()
    }

    pub(crate) fn kill(&mut self, at: usize) {
        self.nodes[at].being = Being::Dead;
        self.lose_unsafe(at);
    }

    /// Puts a snapshot in the place of a node's log.
    pub(crate) fn replace_log(&mut self, at: usize, snapshot: Vec<LogEntry>) {
        self.nodes[at].log_safe = snapshot.len();
        self.nodes[at].log = snapshot;
    }

    /// A crash takes back what the disk had not made safe.
    fn lose_unsafe(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.log.truncate(node.log_safe);
    }

    /// Gives a command to the lane that owns `id`, or to lane 0.
    pub(crate) fn command(&mut self, at: usize, id: Option<&[u8; 32]>, command: Command) -> CommandId {
        self.next_command += 1;
        let number = CommandId(self.next_command);
        let node = &self.nodes[at];
        let lane = id
            .map_or(LaneIndex(0), |id| node.map.lane(&node.id, &tessera_contracts::point::ContentId::from_bytes(*id)));
        let now = self.now();
        self.call(at, usize::from(lane.0), |machine, out| machine.on_command(now, number, command, out));
        number
    }

    /// Calls a lane and lets its effects happen.
    pub(crate) fn call(&mut self, at: usize, lane: usize, act: impl FnOnce(&mut LaneNode, &mut Effects)) {
        let logged_before = self.nodes[at].keeps_log.then_some(self.nodes[at].log.len());
        let Being::Honest(lanes) = &mut self.nodes[at].being else { return };
        let Some(slot) = lanes.get_mut(lane) else { return };
        let mut effects = Effects { logged_before, ..Effects::default() };
        act(&mut slot.node, &mut effects);
        if let Some(wake) = slot.node.next_wake_ms() {
            let wake = wake.saturating_sub(MONO_MS_START).max(self.now_ms);
            if wake < slot.wake_ms || slot.wake_ms <= self.now_ms {
                slot.wake_ms = wake;
                self.schedule(wake, Event::Wake { node: at, lane });
            }
        }
        let from = self.nodes[at].contact.addr;
        for (to, bytes) in effects.sends {
            self.transmit(at, from, to, bytes);
        }
        for (slot, from, bytes, hops) in effects.forwards {
            let lane = self.nodes[at].map.lane_of_slot(slot);
            self.schedule(self.now_ms, Event::Forwarded { to: at, lane, from, bytes, hops });
        }
        for (lane, kind, payload) in effects.messages {
            self.schedule(self.now_ms, Event::LaneMessage { to: at, lane, kind, payload });
        }
        if !effects.logs.is_empty() {
            self.nodes[at].log.extend(effects.logs);
            let entries = self.nodes[at].log.len();
            self.schedule(self.now_ms + SYNC_MS, Event::Synced { node: at, lane, entries });
        }
        for (command, outcome) in effects.completions {
            if command.0 != u64::MAX {
                self.completed.push(Completed { node: at, command, outcome });
            }
        }
    }

    /// The contact of a random live honest node that can be reached.
    pub(crate) fn random_contact(&mut self) -> Option<Contact> {
        (0..100).find_map(|_| {
            let at = self.pick(self.nodes.len());
            let node = &self.nodes[at];
            (node.is_honest() && !node.is_natted()).then_some(node.contact)
        })
    }

    /// A random live honest node.
    pub(crate) fn random_honest(&mut self) -> usize {
        loop {
            let at = self.pick(self.nodes.len());
            if self.nodes[at].is_honest() {
                return at;
            }
        }
    }

    pub(crate) fn honest(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|at| self.nodes[*at].is_honest())
    }

    /// Which node has this key.
    pub(crate) fn node_of(&self, id: &NodeId) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == *id)
    }

    /// The public key of a node.
    pub(crate) fn key(&self, at: usize) -> PublicKey {
        self.nodes[at].contact.key
    }
}
