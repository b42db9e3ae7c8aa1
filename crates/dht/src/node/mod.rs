//! One lane of a node: everything together, still without a clock, a socket or a thread.
//!
//! A [`LaneNode`] is given what happened and the time, and speaks through an [`Outbox`]. It owns a whole routing table,
//! the records and providers of its share of the id space, and the lookups for ids of that share. Lanes of one node share
//! nothing; they tell each other about contacts and scores, and hand over datagrams that reached the wrong one.
//!
//! # Components
//!
//! Each component owns its fields. Calls go down this list only; a component reports to those above it by an effect (`effects`), which
//! the router takes from a bounded ring before the next event. The time, which lane this is, and where datagrams, messages and log records
//! go are in one `context`.
//!
//! - `router`: which component an event is for, and the consequences of an effect
//! - `republishing`: announced ids, records kept alive, stems, held records that are given on
//! - `server`: records and providers held for others, relays, acknowledgements that wait for the log
//! - `operations`: lookups and writes under way
//! - `peers`: exchanges with other nodes, by the four below
//! - `membership`: routing table, joining, lost contacts, network size, observed address
//! - `admission`: limits, scores, quarantine, cookies and tokens given to others
//! - `requests`: requests in flight, timeouts, late answers, round trips
//! - `link`: sealing, opening and sending; `steering`: which lane a datagram is for
//!
//! [`log`] lists the state that survives a restart; [`command`], [`config`] and [`outbox`] are a lane's interface.

mod admission;
pub mod command;
pub mod config;
mod context;
mod effects;
mod link;
pub mod log;
#[cfg(test)]
mod lone_lane;
mod membership;
mod operations;
pub mod outbox;
mod peers;
mod republishing;
mod requests;
mod router;
mod server;
mod steering;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use tessera_contracts::point::{ContentId, NodeId};
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, Slot};
use tessera_stdx::{Rate, TokenBucket};

use crate::addr::Addr;
use crate::identity::Crypto;
use crate::lookup::LookupTotals;
use crate::rng::LaneRng;
use crate::routing::RoutingTable;
use crate::store::providers::ProviderStore;
use crate::store::records::RecordStore;
use crate::time::Now;

use command::{Command, CommandId};
use config::NodeConfig;
use context::{Context, Place, Timers};
use effects::Effects;
use log::{id_of_record, log_kind};
pub use membership::Health;
use outbox::Outbox;
use router::Router;
pub use steering::steering_slot;

/// A lane's counters. They only grow, except where one says "now".
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
    /// Cookies sent to strangers in place of a key agreement, and cookies that others sent this lane so.
    pub challenges_sent: u64,
    pub challenges_taken: u64,
    /// Opened but shaped badly.
    pub malformed: u64,
    pub requests_served: u64,
    pub requests_limited: u64,
    pub requests_quarantined: u64,
    /// Replies without a waiting request.
    pub replies_unexpected: u64,
    pub requests_sent: u64,
    pub request_timeouts: u64,
    pub lookups_started: u64,
    pub lookups_for_sweeps: u64,
    pub lookups_refused: u64,
    /// Lookups and writes that went around a crowd, or around silence.
    pub lookups_around: u64,
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
    /// The most bytes ever sent to an address without a cookie beyond the bytes received from it. Zero, always.
    pub amplified_bytes: u64,
}

/// One lane of a node.
#[derive(Debug)]
pub struct LaneNode {
    place: Place,
    rng: LaneRng,
    timers: Timers,
    counters: Counters,
    effects: Effects,
    router: Router,
}

impl LaneNode {
    /// A lane that has yet to be started. `seed` must be fresh from the system's randomness at each start of each lane.
    ///
    /// # Panics
    /// If `lane` is none of `map`'s lanes: the caller made both.
    pub fn new(
        config: NodeConfig,
        crypto: impl Crypto + 'static,
        map: PrefixMap,
        lane: LaneIndex,
        seed: [u8; 32],
        now: Now,
    ) -> Self {
        let mut rng = LaneRng::new(seed);
        let mut timers = Timers::new(config.requests_max + config.operations_max + 2, now.mono_ms);
        let place = Place::new(config, crypto.public_key(), lane, map);
        let mut router = Router::new(&place, Box::new(crypto), &mut rng, now);
        if place.config.reserve_memory {
            timers.wheel.reserve_all();
            router.reserve_all(&place.config);
        }
        Self { place, rng, timers, counters: Counters::default(), effects: Effects::default(), router }
    }

    /// The router, and an event's context.
    fn at<'a>(&'a mut self, now: Now, out: &'a mut dyn Outbox) -> (&'a mut Router, Context<'a>) {
        let Self { place, rng, timers, counters, effects, router } = self;
        debug_assert!(effects.is_empty(), "the effects of the last event were dealt with");
        (router, Context { now, place, rng, timers, counters, effects, out })
    }

    /// Starts the lane's upkeep.
    pub fn on_start(&mut self, now: Now, out: &mut impl Outbox) {
        let (router, mut cx) = self.at(now, out);
        router.tick(&mut cx);
    }

    /// A datagram came from `from`, passed on by `hops` lanes of this node. Its bytes are changed in place.
    pub fn on_datagram(&mut self, now: Now, from: Addr, datagram: &mut [u8], hops: u8, out: &mut impl Outbox) {
        let (router, mut cx) = self.at(now, out);
        router.on_datagram(&mut cx, from, datagram, hops);
    }

    /// Another lane of this node says something.
    pub fn on_message(&mut self, now: Now, kind: u8, payload: &[u8], out: &mut impl Outbox) {
        let (router, mut cx) = self.at(now, out);
        router.on_lane_message(&mut cx, kind, payload);
    }

    /// Time has passed: call at [`LaneNode::next_wake_ms`] or later.
    pub fn on_time(&mut self, now: Now, out: &mut impl Outbox) {
        let (router, mut cx) = self.at(now, out);
        router.on_time(&mut cx);
    }

    /// When [`LaneNode::on_time`] has something to do.
    #[must_use]
    pub fn next_wake_ms(&self) -> Option<u64> {
        self.timers.wheel.next_wake()
    }

    /// The program asks for something. Every command completes, possibly at once.
    pub fn on_command(&mut self, now: Now, id: CommandId, command: Command, out: &mut impl Outbox) {
        let (router, mut cx) = self.at(now, out);
        router.on_command(&mut cx, id, command);
    }

    /// The log has made everything up to `number` as safe as it promises: waiting peers and callers are answered.
    pub fn on_durable(&mut self, now: Now, number: u64, out: &mut impl Outbox) {
        let (router, mut cx) = self.at(now, out);
        router.on_durable(&mut cx, number);
    }

    /// Takes back a piece that was logged before a restart, or exported by another lane. Call before
    /// [`LaneNode::on_start`] when recovering.
    pub fn on_record(&mut self, now: Now, kind: u8, payload: &[u8]) {
        let mut out = outbox::Nowhere;
        let (router, mut cx) = self.at(now, &mut out);
        router.on_record(&mut cx, kind, payload);
    }

    /// The map of slots to lanes has changed. State that moved is exported and imported by the caller.
    pub fn on_map(&mut self, map: PrefixMap) {
        self.place.set_map(map);
        self.router.on_map(&self.place, self.timers.wheel.now());
    }

    /// The node is about to stop: tells the peers this lane looks after, so that they need not find out by waiting.
    pub fn leave(&mut self, now: Now, out: &mut impl Outbox) {
        let (router, mut cx) = self.at(now, out);
        router.leave(&mut cx);
    }

    /// The lane's health. "Up" needs live contacts, answers, and, unless this is a client, requests of others.
    #[must_use]
    pub fn health(&self, now: Now) -> Health {
        self.router.peers.members().health(&self.place, now)
    }

    /// Where most of the others see this node, if any said so.
    #[must_use]
    pub fn observed(&self) -> Option<Addr> {
        self.router.peers.members().observed()
    }

    /// This node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.place.own
    }

    /// This lane's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The outcomes of its lookups.
    #[must_use]
    pub fn lookup_totals(&self) -> &LookupTotals {
        self.router.operations.totals()
    }

    /// This lane's routing table.
    #[must_use]
    pub fn table(&self) -> &RoutingTable {
        self.router.peers.members().table()
    }

    /// This lane's records.
    #[must_use]
    pub fn records(&self) -> &RecordStore {
        self.router.server.records()
    }

    /// This lane's providers.
    #[must_use]
    pub fn providers(&self) -> &ProviderStore {
        self.router.server.providers()
    }

    /// About how many nodes there are.
    #[must_use]
    pub fn network_size(&self) -> f64 {
        self.router.peers.members().network_size(self.timers.wheel.now())
    }

    /// Records that are kept alive and are manifests, with the parts they name.
    pub fn manifests_kept_alive(&self) -> impl Iterator<Item = (ContentId, Vec<ContentId>)> {
        self.router.republishing.alive().manifests()
    }

    /// Numbers that have a bound, with their bounds, for a checker or a metric.
    #[must_use]
    pub fn bounds(&self) -> [(&'static str, usize, usize); 23] {
        let Router { peers, operations, server, republishing } = &self.router;
        let (config, sealer, members) = (&self.place.config, peers.sealer(), peers.members());
        let bytes = |what, (used, most)| (what, used, most);
        let (agreements, streams) = sealer.remembered();
        let (promises, unlogged) = server.ledger().waiting();
        let (announced, given_on) = republishing.len();
        [
            ("agreements", agreements, config.seal.agreements_max),
            ("streams", streams, config.seal.streams_max),
            ("table peers", members.table().len(), config.table.peers_max),
            ("records", server.records().len(), config.records.records_max),
            ("record bytes", server.records().bytes(), config.records.bytes_max as usize),
            ("providers", server.providers().len(), config.providers.entries_max),
            ("requests", peers.requests().len(), config.requests_max),
            ("operations", operations.len(), config.operations_max),
            ("published", announced, config.published_max),
            ("kept alive bytes", republishing.alive().bytes(), config.kept_alive_bytes_max),
            ("promises", promises, config.promises_max),
            ("commands waiting for the log", unlogged, config.promises_max),
            ("stems", republishing.stems().len(), republishing::STEMS_MAX),
            ("lost contacts", members.lost_len(), membership::LOST_MAX),
            ("records to republish", given_on, republishing::GIVEN_ON_MAX),
            bytes("seal bytes", sealer.bytes()),
            bytes("table bytes", members.table().bytes()),
            bytes("record index bytes", server.records().index_bytes()),
            bytes("provider bytes", server.providers().bytes()),
            bytes("abuse bytes", peers.admission().bytes()),
            bytes("sequence bytes", operations.sequence_bytes()),
            bytes("token bytes", operations.token_bytes()),
            bytes("request bytes", peers.requests().bytes()),
        ]
    }

    /// The slot that a log record belongs to now; none if it belongs to no slot's owner. It was logged under the slot that it had for
    /// the identity of then: a node that was given another has its ids elsewhere.
    #[must_use]
    pub fn slot_of_record(&self, kind: u8, payload: &[u8]) -> Option<Slot> {
        id_of_record(kind, payload).map(|id| self.place.slot_of(&id))
    }

    /// Writes the state of `slot`, or of all slots, as log records: for a snapshot, or to hand the slot to another lane.
    /// `put` returns false when it takes no more; the walk then ends and the caller starts over with more room.
    pub fn export(&self, slot: Option<Slot>, now: Now, mut put: impl FnMut(u8, Slot, &[u8]) -> bool) -> bool {
        let wanted = |of: Slot| slot.is_none_or(|slot| slot == of);
        self.export_slots(wanted, now, &mut put) && (slot.is_some() || self.export_contacts(put))
    }

    /// As [`LaneNode::export`], of all slots that are `wanted`, without the contacts: those belong to no slot's owner.
    pub fn export_slots(
        &self,
        wanted: impl Fn(Slot) -> bool,
        now: Now,
        mut put: impl FnMut(u8, Slot, &[u8]) -> bool,
    ) -> bool {
        self.router.export(now, |kind, id, payload| {
            let slot = self.place.slot_of(id);
            !wanted(slot) || put(kind, slot, payload)
        })
    }

    /// Writes the live contacts as log records. They belong to the lane that knows them, so they are logged under a slot of
    /// its own: under another's they would be forgotten with it. A lane that gets other slots logs them again.
    pub fn export_contacts(&self, mut put: impl FnMut(u8, Slot, &[u8]) -> bool) -> bool {
        self.table().iter_live().all(|peer| put(log_kind::CONTACT, self.place.home_slot(), &peer.contact.to_wire()))
    }

    /// Forgets the state of `slot`: another lane has it now.
    pub fn drop_slot(&mut self, slot: Slot) {
        self.router.drop_where(|id| self.place.slot_of(id) == slot);
    }
}

/// A lane's share of so many a second for the whole node; a `burst`-th of a second's worth may go at once.
fn pace_of(place: &Place, per_sec: u32, burst: u32, now_ms: u64) -> TokenBucket {
    let ticks = const { NonZeroU32::new(1000).expect("a thousand is not zero") };
    let tokens = (per_sec / place.lanes() as u32).max(1);
    TokenBucket::full(Rate { tokens, ticks }, (tokens / burst).max(1), now_ms)
}

/// Takes the memory of a queue at the start. Some queues hold one more for a moment before they are cut to their length.
fn reserve_queue<T>(queue: &mut VecDeque<T>, len_max: usize) {
    queue.reserve_exact((len_max + 1).saturating_sub(queue.len()));
}
