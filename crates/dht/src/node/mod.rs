//! One lane of a node: everything together, still without a clock, a socket or a thread.
//!
//! A [`LaneNode`] is given what happened and the time, and speaks through an [`Outbox`]. It owns a whole routing table,
//! the records and providers of its share of the id space, and the lookups for ids of that share. Lanes of one node share
//! nothing; they tell each other about contacts and scores, and hand over datagrams that reached the wrong one.
//!
//! - `ask`: requests in flight, replies and timeouts
//! - `serve`: other nodes' requests; `keep`: their writes; `relay`: what is asked for them
//! - `begin`: commands that become operations; `operation`: lookups and writes on behalf of commands and of upkeep;
//!   `fall_back`: whom a lookup asks that knows nobody; `privacy`: what hides it; `answers`: what replies to it mean;
//!   `writes`: telling the holders that it found; `tokens`: what spares it asking them first
//! - `alive`: records stored again
//! - `publish`: announcing ids, alone or in sweeps; `stem`: through others
//! - `seen_at`: where others see this node
//! - `upkeep`: joining, pinging, refreshing, hints between lanes, health; `lost`: whoever fell silent, and comes back
//! - [`log`]: what survives a restart; `reserve`: memory that is taken at the start

// Time, what came, and where effects go are arguments everywhere: bundling them would only rename them.
#![allow(clippy::too_many_arguments)]

mod alive;
mod answers;
mod ask;
mod begin;
pub mod command;
pub mod config;
mod fall_back;
mod keep;
pub mod log;
#[cfg(test)]
mod lone_lane;
mod lost;
mod operation;
pub mod outbox;
mod privacy;
mod publish;
mod relay;
mod reserve;
mod seen_at;
mod serve;
mod stem;
mod tokens;
mod upkeep;
mod writes;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::cell::Cell;
use core::num::NonZeroU32;

use tessera_contracts::point::{ContentId, Distance, NodeId, Point as _};
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_stdx::{Rate, TimerHandle, TimingWheel, TokenBucket};

use crate::abuse::{Abuse, Offence};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{Crypto, PublicKey};
use crate::keyed_lru::{KeyedLru, sum};
use crate::lookup::LookupTotals;
use crate::rng::LaneRng;
use crate::routing::{RoundTrip, RoutingTable};
use crate::seal::cookie::Proofs;
use crate::seal::keys::NetworkKey;
use crate::seal::{OpenRefused, Sealer};
use crate::store::providers::ProviderStore;
use crate::store::records::RecordStore;
use crate::time::Now;
use crate::wire::DATAGRAM_BYTES_MAX;
use crate::wire::header::slot_of;
use crate::wire::message::{Envelope, Message};

use ask::{Request, Timer};
use command::{Answer, Budget, Command, CommandId, Outcome};
use config::NodeConfig;
use operation::Operation;
use outbox::{Logged, MessageClass, Outbox, message_kind};
use publish::Published;
pub use upkeep::Health;

/// What a lane counts. Only ever grows, except where it says "now".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub struct Counters {
    pub datagrams_in: u64,
    pub bytes_in: u64,
    pub datagrams_out: u64,
    pub bytes_out: u64,
    /// Datagrams handed to the lane that owns them.
    pub forwarded: u64,
    /// Datagrams not opened: not ours, too old, or forged.
    pub refused_header: u64,
    pub refused_period: u64,
    pub refused_replay: u64,
    pub refused_stranger: u64,
    pub refused_forged: u64,
    /// Opened but shaped badly.
    pub malformed: u64,
    pub requests_served: u64,
    pub requests_limited: u64,
    pub requests_quarantined: u64,
    /// Replies nobody waited for.
    pub replies_unexpected: u64,
    pub requests_sent: u64,
    pub request_timeouts: u64,
    pub lookups_started: u64,
    pub lookups_for_sweeps: u64,
    pub lookups_refused: u64,
    pub announces_sent: u64,
    /// Announcements that a holder refused, or did not answer even when asked again.
    pub announces_refused: u64,
    pub announces_unanswered: u64,
    /// Ids of announcements that were answered but not kept.
    pub announces_not_kept: u64,
    pub records_stored: u64,
    /// Held records given to their holders of today.
    pub records_republished: u64,
    pub providers_stored: u64,
    pub records_invalid: u64,
    /// The most bytes ever sent beyond what had been received from an address without a cookie. Zero, always.
    pub amplified_bytes: u64,
}

/// One lane of a node.
#[derive(Debug)]
pub struct LaneNode<C> {
    config: NodeConfig,
    own: NodeId,
    own_key: PublicKey,
    lane: LaneIndex,
    map: PrefixMap,
    home_slot: Slot,
    sealer: Sealer<C>,
    proofs: Proofs,
    rng: LaneRng,
    table: RoutingTable,
    records: RecordStore,
    providers: ProviderStore,
    abuse: Abuse,
    timers: TimingWheel<Timer>,
    requests: KeyedLru<u64, Request>,
    /// Requests of our own in flight by peer; as many entries as requests at most.
    outstanding: KeyedLru<[u8; 32], u16>,
    #[expect(
        clippy::vec_box,
        reason = "one that is done gives its kilobyte back: a node that has joined seldom has any"
    )]
    operations: Vec<Box<Operation>>,
    /// The lane's idea of a round trip, for peers it does not know.
    round_trip: RoundTrip,
    /// The same of writes, which are acknowledged when the holder's log has them.
    write_trip: RoundTrip,
    /// The newest in front.
    late: VecDeque<ask::Late>,
    /// Highest sequences seen, so that a reader here never goes back.
    sequences: KeyedLru<[u8; 32], u64>,
    tokens: tokens::HeldTokens,
    published: BTreeMap<ContentId, Published>,
    published_due: BTreeSet<(u64, ContentId)>,
    kept_alive: BTreeMap<ContentId, alive::KeptAlive>,
    kept_alive_due: BTreeSet<(u64, ContentId)>,
    kept_alive_bytes: usize,
    stems: VecDeque<stem::Stemmed>,
    stems_handed_on: u32,
    /// Until when announcements of ours wait for somebody who takes stems.
    takers_awaited_ms: Option<u64>,
    /// Held records due to be given to their holders again.
    republish: VecDeque<alive::Due>,
    republish_pace: TokenBucket,
    announce_pace: TokenBucket,
    /// What the command being taken may spend.
    budget: Budget,
    /// Configured contacts.
    seeds: Vec<Contact>,
    /// Contacts of before the last start.
    remembered: VecDeque<Contact>,
    join: upkeep::Join,
    lost: VecDeque<lost::Lost>,
    healing: lost::Healing,
    /// Estimates of the network's size from lookups at points all over; the median is believed.
    size_samples: [(u64, f64); SIZE_SAMPLES],
    size_samples_len: usize,
    /// The estimate that came of them, and what it was made from.
    size_estimate: Cell<Option<SizeEstimate>>,
    seen_at: seen_at::SeenAt,
    relays: usize,
    /// Acknowledgements that wait for the log, in its order.
    promises: VecDeque<keep::Promise>,
    /// Our own commands that wait for it, likewise.
    unlogged: VecDeque<keep::Unlogged>,
    last_logged: Logged,
    durable: u64,
    last_inbound_ms: u64,
    last_answer_ms: u64,
    tick_timer: Option<TimerHandle>,
    counters: Counters,
    lookup_totals: LookupTotals,
    buffer: Box<[u8; DATAGRAM_BYTES_MAX]>,
}

/// Acknowledgements for which room is reserved at the start; a larger queue grows when it is needed.
const PROMISES_RESERVED_MAX: usize = 64;

/// The same for requests: a few lookups' worth.
const FIRST_REQUESTS: usize = 64;

const SIZE_SAMPLES: usize = 16;

/// An estimate of the network's size is good for so long: every write that is served asks for one, and it hardly changes.
const SIZE_ESTIMATE_MS: u64 = 1000;

/// An estimate of the network's size, made at a time from so many samples and peers.
#[derive(Debug, Clone, Copy)]
struct SizeEstimate {
    made_ms: u64,
    samples: usize,
    peers: usize,
    size: f64,
}

/// An estimate older than this says nothing about a network that grows or shrinks.
const SIZE_SAMPLE_MS_MAX: u64 = 120_000;

impl<C: Crypto> LaneNode<C> {
    /// A lane that has yet to be started. `seed` must be fresh from the system's randomness at each start of each lane.
    ///
    /// # Panics
    /// If `lane` is none of `map`'s lanes: the caller made both.
    pub fn new(config: NodeConfig, crypto: C, map: PrefixMap, lane: LaneIndex, seed: [u8; 32], now: Now) -> Self {
        let mut rng = LaneRng::new(seed);
        let network = NetworkKey::of_name(&config.network);
        let own_key = crypto.public_key();
        let own = own_key.node_id();
        let proofs = Proofs::new(&crypto, &network);
        let timers_max = config.requests_max + config.operations_max + 2;
        let home_slot = home_slot(&map, lane);
        let mut node = Self {
            own,
            own_key,
            lane,
            home_slot,
            proofs,
            sealer: Sealer::new(crypto, network, config.suite, &config.seal, &mut rng, now),
            table: RoutingTable::new(own, config.table),
            records: RecordStore::new(own, config.records, &mut rng, now),
            providers: ProviderStore::new(own, config.providers, &mut rng, now),
            abuse: Abuse::new(config.abuse, map.lanes(), &mut rng),
            timers: TimingWheel::growing(timers_max as u32, now.mono_ms),
            requests: KeyedLru::with_room(FIRST_REQUESTS, config.requests_max, rng.u64()),
            outstanding: KeyedLru::with_room(FIRST_REQUESTS, config.requests_max, rng.u64()),
            operations: Vec::with_capacity(config.operations_max),
            round_trip: RoundTrip::default(),
            write_trip: RoundTrip::default(),
            late: VecDeque::new(),
            sequences: KeyedLru::new(config.sequences_max, rng.u64()),
            tokens: tokens::HeldTokens::new(rng.u64()),
            published: BTreeMap::new(),
            published_due: BTreeSet::new(),
            kept_alive: BTreeMap::new(),
            kept_alive_due: BTreeSet::new(),
            kept_alive_bytes: 0,
            stems: VecDeque::new(),
            stems_handed_on: 0,
            takers_awaited_ms: None,
            republish: VecDeque::new(),
            republish_pace: alive::republish_pace(&map, now.mono_ms),
            announce_pace: announce_pace(&config, &map, now.mono_ms),
            budget: Budget::default(),
            seeds: Vec::new(),
            remembered: VecDeque::new(),
            join: upkeep::Join::default(),
            lost: VecDeque::new(),
            healing: lost::Healing::default(),
            size_samples: [(0, 0.0); SIZE_SAMPLES],
            size_samples_len: 0,
            size_estimate: Cell::new(None),
            seen_at: seen_at::SeenAt::default(),
            relays: 0,
            promises: VecDeque::with_capacity(config.promises_max.min(PROMISES_RESERVED_MAX)),
            unlogged: VecDeque::new(),
            last_logged: Logged::Safe,
            durable: 0,
            last_inbound_ms: 0,
            last_answer_ms: 0,
            tick_timer: None,
            counters: Counters::default(),
            lookup_totals: LookupTotals::default(),
            buffer: Box::new([0; DATAGRAM_BYTES_MAX]),
            config,
            map,
            rng,
        };
        if node.config.reserve_memory {
            node.reserve_all();
        }
        node
    }

    /// Starts the lane's upkeep.
    pub fn on_start(&mut self, now: Now, out: &mut impl Outbox) {
        self.tick(now, out);
    }

    /// A datagram came from `from`, passed on by `hops` lanes of this node. Its bytes are changed in place.
    pub fn on_datagram(&mut self, now: Now, from: Addr, datagram: &mut [u8], hops: u8, out: &mut impl Outbox) {
        self.counters.datagrams_in += 1;
        self.counters.bytes_in += datagram.len() as u64;
        let Some(slot) = slot_of(datagram) else {
            self.counters.refused_header += 1;
            return;
        };
        // The byte is a hint: it chooses who looks first, once.
        if hops == 0 && self.map.lane_of_slot(Slot(slot)) != self.lane {
            self.counters.forwarded += 1;
            out.forward(Slot(slot), from, datagram, 1);
            return;
        }
        // Opening is in place, and a datagram that then turns out to belong to another lane must be handed on sealed.
        let len = datagram.len();
        let sealed = (hops < 2 && self.map.lanes() > 1).then(|| {
            let mut sealed = [0; DATAGRAM_BYTES_MAX];
            let kept = len.min(DATAGRAM_BYTES_MAX);
            sealed[..kept].copy_from_slice(&datagram[..kept]);
            sealed
        });
        let Self { sealer, abuse, .. } = self;
        let opened = sealer.open(now, datagram, || abuse.admit_stranger(now.mono_ms, from.prefix()));
        let (header, body) = match opened {
            Ok(opened) => opened,
            Err(refused) => {
                *match refused {
                    OpenRefused::Header(_) | OpenRefused::Echo => &mut self.counters.refused_header,
                    OpenRefused::Period(_) => &mut self.counters.refused_period,
                    OpenRefused::Replayed => &mut self.counters.refused_replay,
                    OpenRefused::StrangerLimit => &mut self.counters.refused_stranger,
                    OpenRefused::UnusableKey | OpenRefused::Forged => &mut self.counters.refused_forged,
                } += 1;
                return;
            }
        };
        let sender = header.sender;
        let envelope = match Envelope::read(body) {
            Ok(envelope) => envelope,
            Err(_) => {
                self.counters.malformed += 1;
                self.offence(now, &sender, Offence::Malformed, out);
                return;
            }
        };
        // Asked only where there are others: the id of a record is its hash.
        let owner_slot = || {
            if envelope.message.is_reply() {
                Some(Slot(envelope.correlation as u8))
            } else {
                self.owned_id(&envelope.message).map(|id| self.map.slot(&self.own, &id))
            }
        };
        if let Some(sealed) = &sealed
            && let Some(owner) = owner_slot()
            && self.map.lane_of_slot(owner) != self.lane
        {
            self.counters.forwarded += 1;
            out.forward(owner, from, &sealed[..len], 2);
            return;
        }
        if envelope.message.is_reply() {
            self.on_reply(now, from, sender, &envelope, out);
        } else {
            self.last_inbound_ms = now.mono_ms;
            self.on_request(now, from, sender, &envelope, len, out);
        }
    }

    /// Another lane of this node says something.
    pub fn on_message(&mut self, now: Now, kind: u8, payload: &[u8], out: &mut impl Outbox) {
        self.on_lane_message(now, kind, payload, out);
    }

    /// Time has passed: call at [`LaneNode::next_wake_ms`] or later.
    pub fn on_time(&mut self, now: Now, out: &mut impl Outbox) {
        while let Some((_, timer)) = self.timers.pop_due(now.mono_ms) {
            match timer {
                Timer::Request(correlation) => self.on_request_timeout(now, correlation, out),
                Timer::Operation { at, generation } => self.on_operation_timer(now, at, generation, out),
                Timer::Tick => self.tick(now, out),
            }
        }
    }

    /// When [`LaneNode::on_time`] has something to do.
    #[must_use]
    pub fn next_wake_ms(&self) -> Option<u64> {
        self.timers.next_wake()
    }

    /// The program asks for something. Every command completes, possibly at once.
    pub fn on_command(&mut self, now: Now, id: CommandId, mut command: Command, out: &mut impl Outbox) {
        self.budget = Budget::default();
        while let Command::Within { budget, command: inner } = command {
            self.budget = budget;
            command = *inner;
        }
        let is_logged = matches!(command, Command::Forget { .. } | Command::Provide { .. } | Command::Unprovide { .. });
        let answer = match command {
            Command::Within { .. } => unreachable!("unwrapped above"),
            Command::Bootstrap { contacts } => {
                self.take_seeds(contacts);
                self.tick_soon(now);
                Some(Answer::Noted)
            }
            Command::Ping { contact } => self.command_ping(now, id, contact, out),
            Command::Forget { id: content } => Some(self.forget(&content, out)),
            Command::Cancel { command } => Some(self.cancel(now, command, out)),
            Command::Unprovide { ids } => Some(self.unprovide(&ids, out)),
            Command::Provide { ids } => Some(self.provide(now, &ids, out)),
            Command::FindNode { target } => self.command_find_node(now, id, target, out),
            Command::Get { id: content, mutable, privacy } => self.command_get(now, id, content, mutable, privacy, out),
            Command::Put { record, keep_alive } => self.command_put(now, id, record, keep_alive, out),
            Command::FindProviders { id: content, limit } => self.command_find_providers(now, id, content, limit, out),
        };
        match answer.map(Outcome::local) {
            Some(outcome) if is_logged => self.complete_when_safe(now, id, outcome, out),
            Some(outcome) => out.complete(id, outcome),
            None => {}
        }
    }

    /// The map of slots to lanes has changed. State that moved is exported and imported by the caller.
    pub fn on_map(&mut self, map: PrefixMap) {
        self.home_slot = home_slot(&map, self.lane);
        self.abuse.set_lanes(map.lanes());
        self.announce_pace = announce_pace(&self.config, &map, self.timers.now());
        self.republish_pace = alive::republish_pace(&map, self.timers.now());
        self.map = map;
    }

    /// The node is about to stop: tells the peers this lane looks after, so that they need not find out by waiting.
    pub fn leave(&mut self, now: Now, out: &mut impl Outbox) {
        let Self { table, map, own, lane, .. } = self;
        let told: Vec<_> = table
            .iter_live()
            .filter(|peer| map.lane(own, &peer.id) == *lane)
            .map(|peer| (peer.contact, peer.id))
            .collect();
        for (contact, id) in told {
            self.notify(now, contact, &id, id.as_bytes(), &Message::Leaving, out);
        }
    }

    /// Where most of the others see this node, if any said so.
    #[must_use]
    pub fn observed(&self) -> Option<Addr> {
        self.seen_at.believed()
    }

    /// This node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.own
    }

    /// This lane's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What its lookups came to.
    #[must_use]
    pub fn lookup_totals(&self) -> &LookupTotals {
        &self.lookup_totals
    }

    /// This lane's routing table.
    #[must_use]
    pub fn table(&self) -> &RoutingTable {
        &self.table
    }

    /// This lane's records.
    #[must_use]
    pub fn records(&self) -> &RecordStore {
        &self.records
    }

    /// This lane's providers.
    #[must_use]
    pub fn providers(&self) -> &ProviderStore {
        &self.providers
    }

    /// Numbers that have a bound, with their bounds, for a checker or a metric.
    #[must_use]
    pub fn bounds(&self) -> [(&'static str, usize, usize); 23] {
        let bytes = |what, (used, most)| (what, used, most);
        let (agreements, streams) = self.sealer.remembered();
        [
            ("agreements", agreements, self.config.seal.agreements_max),
            ("streams", streams, self.config.seal.streams_max),
            ("table peers", self.table.len(), self.config.table.peers_max),
            ("records", self.records.len(), self.config.records.records_max),
            ("record bytes", self.records.bytes(), self.config.records.bytes_max as usize),
            ("providers", self.providers.len(), self.config.providers.entries_max),
            ("requests", self.requests.len(), self.config.requests_max),
            ("operations", self.config.operations_max - self.spare_operations(), self.config.operations_max),
            ("published", self.published.len(), self.config.published_max),
            ("kept alive bytes", self.kept_alive_bytes, self.config.kept_alive_bytes_max),
            ("promises", self.promises.len(), self.config.promises_max),
            ("commands waiting for the log", self.unlogged.len(), self.config.promises_max),
            ("stems", self.stems.len(), stem::STEMS_MAX),
            ("lost contacts", self.lost.len(), lost::LOST_MAX),
            ("records to republish", self.republish.len(), upkeep::REPUBLISH_MAX),
            bytes("seal bytes", self.sealer.bytes()),
            bytes("table bytes", self.table.bytes()),
            bytes("record index bytes", self.records.index_bytes()),
            bytes("provider bytes", self.providers.bytes()),
            bytes("abuse bytes", self.abuse.bytes()),
            bytes("sequence bytes", self.sequences.bytes()),
            bytes("token bytes", self.tokens.bytes()),
            bytes("request bytes", sum([self.requests.bytes(), self.outstanding.bytes()])),
        ]
    }

    /// The content id a request needs the owner of; requests any lane can answer have none.
    fn owned_id(&self, message: &Message<'_>) -> Option<ContentId> {
        match message {
            Message::FindValue { id, .. } | Message::GetProviders { id, .. } => Some(*id),
            Message::Store { record, .. } | Message::CacheHint { record, .. } => {
                crate::record::RecordView::read(record).ok().map(|view| view.id())
            }
            _ => None,
        }
    }

    fn owns(&self, id: &ContentId) -> bool {
        self.map.lane(&self.own, id) == self.lane
    }

    fn offence(&mut self, now: Now, peer: &PublicKey, offence: Offence, out: &mut impl Outbox) {
        if let Some(score) = self.abuse.offence(now.mono_ms, peer, offence) {
            let id = self.sealer.node_id(peer);
            self.table.expel(&id);
            let mut payload = [0; 40];
            payload[..32].copy_from_slice(&peer.0);
            payload[32..].copy_from_slice(&score.to_le_bytes());
            self.tell_lanes(message_kind::SCORE, id.prefix_u64(), &payload, out);
        }
    }

    /// Tells all other lanes.
    fn tell_lanes(&mut self, kind: u8, prefix: u64, payload: &[u8], out: &mut impl Outbox) {
        for lane in 0..self.map.lanes() {
            let lane = LaneIndex(lane as u8);
            if lane != self.lane {
                out.message(lane, MessageClass::Hint, kind, prefix, payload);
            }
        }
    }

    /// About how many nodes there are: the median of what recent lookups all over the space say, so that a crowd in one
    /// place does not fool us; without enough of them, what our own neighbourhood says.
    #[must_use]
    pub fn network_size(&self) -> f64 {
        let (made_ms, samples, peers) = (self.timers.now(), self.size_samples_len, self.table.live_len());
        let is_good = |known: &SizeEstimate| {
            (known.samples, known.peers) == (samples, peers) && made_ms - known.made_ms < SIZE_ESTIMATE_MS
        };
        if let Some(known) = self.size_estimate.get().filter(is_good) {
            return known.size;
        }
        let size = self.estimated_size(made_ms);
        self.size_estimate.set(Some(SizeEstimate { made_ms, samples, peers, size }));
        size
    }

    fn estimated_size(&self, now_ms: u64) -> f64 {
        let mut samples = [0.0; SIZE_SAMPLES];
        let mut len = 0;
        for (at_ms, sample) in &self.size_samples[..self.size_samples_len.min(SIZE_SAMPLES)] {
            if now_ms.saturating_sub(*at_ms) <= SIZE_SAMPLE_MS_MAX {
                samples[len] = *sample;
                len += 1;
            }
        }
        if len < 3 {
            return self.table.network_size();
        }
        samples[..len].sort_by(f64::total_cmp);
        samples[len / 2].max(1.0)
    }

    /// The distance within which `count` nodes are expected around any point.
    fn radius_of(&self, count: usize) -> Distance {
        let share = count as f64 / self.network_size();
        if share >= 1.0 {
            return Distance::MAX;
        }
        distance_with_prefix((share * 18_446_744_073_709_551_615.0) as u64)
    }
}

/// This lane's share of the pace of announcements; a tenth of a second's worth may go at once.
fn announce_pace(config: &NodeConfig, map: &PrefixMap, now_ms: u64) -> TokenBucket {
    let ticks = const { NonZeroU32::new(1000).expect("a thousand is not zero") };
    let tokens = (config.announces_per_sec / map.lanes() as u32).max(1);
    TokenBucket::full(Rate { tokens, ticks }, (tokens / 10).max(1), now_ms)
}

/// The distance whose first 64 bits are `prefix`, the rest zero.
fn distance_with_prefix(prefix: u64) -> Distance {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&prefix.to_be_bytes());
    NodeId::from_bytes([0; 32]).distance_to(&NodeId::from_bytes(bytes))
}

/// The slot by which a request about `id` is steered at the node `to`. Part of the wire format: always 24 bits deep,
/// whatever the receiver's own map looks like.
pub fn steering_slot(to: &NodeId, id: &[u8; 32]) -> u8 {
    let Ok(selector) = Selector::striped(STRIPED_BITS_DEFAULT) else { return 0 };
    selector.slot(to.distance_to(&ContentId::from_bytes(*id))).0
}

/// The first slot that `lane` owns: replies to its requests are steered there.
fn home_slot(map: &PrefixMap, lane: LaneIndex) -> Slot {
    let at = map.table().iter().position(|owner| *owner == lane).unwrap_or(0);
    Slot(at as u8)
}
