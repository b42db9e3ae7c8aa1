//! What a lane does unasked: join, ping, refresh, expire; and what lanes tell each other.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::LaneNode;
use super::ask::{Purpose, Timer};
use super::command::{Answer, CommandId, Privacy};
use super::operation::Task;
use super::outbox::{MessageClass, Outbox, message_kind};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{Crypto, PublicKey};
use crate::lookup::Goal;
use crate::routing::Placed;
use crate::time::Now;
use crate::wire::message::{CONTACT_BYTES, Message, PROVIDER_BYTES, SignedProvider};

/// Configured seeds, and contacts remembered from before the last start: so many of each.
pub(super) const SEEDS_MAX: usize = 256;

/// Contacts asked in one round of joining.
const ASKED_PER_ROUND: usize = 8;

/// Pause between rounds of joining: doubled after each, up to the most.
const JOIN_PAUSE_MS_MIN: u64 = 1000;
const JOIN_PAUSE_MS_MAX: u64 = 60 * 1000;

/// Pings of one tick.
const PINGS_PER_TICK: usize = 8;

/// A contact that another lane looks after is pinged by this one if it has not been heard of for so many times as long.
const UNTOLD_PINGS: u64 = 4;

/// Between two tries of a configured seed that is not in the table.
const SEED_PAUSE_MS: u64 = 10 * 60 * 1000;

/// An answer or a request within this time counts as being in touch.
const IN_TOUCH_MS: u64 = 5 * 60 * 1000;

/// Whoever asks from elsewhere is asked where it is known, at most so often.
const STILL_THERE_MS: u64 = 1000;

/// Records waiting to be given to their holders again.
pub(super) const REPUBLISH_MAX: usize = 1024;

/// How far joining has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Join {
    next_ms: u64,
    pause_ms: u64,
    next_remembered: usize,
    next_seed: usize,
    /// A lookup for our own id has run since the table was last empty.
    pub(super) joined: bool,
    looking: bool,
    /// After joining, buckets from this one down to zero are filled, one a tick.
    fill_from: Option<u32>,
    /// When a seed that is not in the table is tried next; zero for not yet known.
    seed_next_ms: u64,
    seed_tried: Option<Contact>,
    /// Who is asked first in the next look around: it is back, and may know others whom nobody in the table knows.
    pub(super) ask_first: Option<Contact>,
    next_lost: usize,
}

impl Join {
    /// Whether a look around is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.looking || self.fill_from.is_some()
    }
}

/// Whether the node is of any use right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Live peers in the table.
    pub live_peers: usize,
    /// Someone answered us lately.
    pub answered_lately: bool,
    /// Someone asked us lately; a client cannot expect that.
    pub asked_lately: bool,
    /// Whether this lane has found its place in the network.
    pub joined: bool,
    /// All of it together: connected in both directions, not merely running.
    pub is_up: bool,
}

impl<C: Crypto> LaneNode<C> {
    /// The lane's health. "Up" needs live contacts, answers, and, unless this is a client, requests of others.
    #[must_use]
    pub fn health(&self, now: Now) -> Health {
        let lately = |at_ms: u64| at_ms > 0 && now.mono_ms.saturating_sub(at_ms) < IN_TOUCH_MS;
        let live_peers = self.table.live_len();
        let (answered_lately, asked_lately) = (lately(self.last_answer_ms), lately(self.last_inbound_ms));
        let reached = asked_lately || self.config.client;
        let is_up = live_peers > 0 && answered_lately && reached && self.join.joined;
        Health { live_peers, answered_lately, asked_lately, joined: self.join.joined, is_up }
    }

    pub(super) fn take_seeds(&mut self, contacts: Vec<Contact>) {
        for contact in contacts {
            if contact.key != self.own_key && !self.seeds.contains(&contact) && self.seeds.len() < SEEDS_MAX {
                self.seeds.push(contact);
            }
        }
    }

    /// Takes a contact of before the last start. The log tells them in order: the newest are kept.
    pub(super) fn remember(&mut self, contact: Contact) {
        if contact.key == self.own_key || self.remembered.contains(&contact) {
            return;
        }
        if self.remembered.len() == SEEDS_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back(contact);
    }

    /// Moves the next tick to now.
    pub(super) fn tick_soon(&mut self, now: Now) {
        if let Some(timer) = self.tick_timer.take() {
            self.timers.cancel(timer);
        }
        self.tick_timer = self.timers.insert(now.mono_ms, Timer::Tick).ok();
    }

    pub(super) fn tick(&mut self, now: Now, out: &mut impl Outbox) {
        if let Some(timer) = self.tick_timer.take() {
            self.timers.cancel(timer);
        }
        let next_ms = now.mono_ms + self.rng.jittered_ms(self.config.tick_ms.max(10));
        self.tick_timer = self.timers.insert(next_ms, Timer::Tick).ok();
        let republish = &mut self.republish;
        self.records.expire(now, &mut self.rng, |id| {
            // What finds no room is due again later, here and at the other holders.
            if republish.len() < REPUBLISH_MAX {
                republish.push_back(super::alive::Due { id: *id, refusals: 0 });
            }
        });
        self.providers.expire(now);
        self.drop_idle_operations();
        self.drop_old_promises(now, out);
        self.keep_joined(now, out);
        self.try_lost(now, out);
        self.ping_idle(now, out);
        self.refresh_idle(now, out);
        self.publish_due(now, out);
    }

    /// Joins, and joins again whenever the table has run dry: for ever, with growing pauses.
    fn keep_joined(&mut self, now: Now, out: &mut impl Outbox) {
        if self.table.live_len() == 0 {
            self.join.joined = false;
            let nobody = self.seeds.is_empty() && self.remembered.is_empty() && self.lost.is_empty();
            if now.mono_ms < self.join.next_ms || nobody {
                return;
            }
            // Half of a round for those who were there last: it may have been we who were cut off.
            let of_lost = self.lost.len().min(ASKED_PER_ROUND / 2);
            let others_max = ASKED_PER_ROUND - of_lost;
            // Remembered contacts first. From the second round on seeds have half of each: a node that was away for
            // long remembers hundreds who are gone.
            let remembered_max = if self.join.pause_ms == 0 { others_max } else { others_max / 2 };
            self.join.pause_ms = (self.join.pause_ms * 2).clamp(JOIN_PAUSE_MS_MIN, JOIN_PAUSE_MS_MAX);
            self.join.next_ms = now.mono_ms + self.rng.jittered_ms(self.join.pause_ms);
            let of_seeds = self.seeds.len().min(others_max - self.remembered.len().min(remembered_max));
            let of_remembered = self.remembered.len().min(others_max - of_seeds);
            for _ in 0..of_lost {
                let contact = self.lost[self.join.next_lost % self.lost.len()].contact;
                self.join.next_lost += 1;
                self.ask_to_join(now, contact, out);
            }
            for _ in 0..of_remembered {
                let contact = self.remembered[self.join.next_remembered % self.remembered.len()];
                self.join.next_remembered += 1;
                self.ask_to_join(now, contact, out);
            }
            for _ in 0..of_seeds {
                let contact = self.seeds[self.join.next_seed % self.seeds.len()];
                self.join.next_seed += 1;
                self.ask_to_join(now, contact, out);
            }
            return;
        }
        self.join.pause_ms = 0;
        if !self.join.joined && !self.join.looking && now.mono_ms >= self.join.next_ms && self.may_work_unasked() {
            self.join.next_ms = now.mono_ms + JOIN_PAUSE_MS_MIN;
            self.look_around(now, out);
        }
        if self.may_work_unasked()
            && let Some(bucket) = self.join.fill_from.take()
        {
            self.join.fill_from = bucket.checked_sub(1);
            self.refresh_bucket(now, bucket, out);
        }
        self.try_seed(now, out);
    }

    /// Tries a configured seed that is not in the table now and then. It may be on the other side of a split that everybody else there has
    /// been forgotten since; if it answers, there is more to be found. It is asked itself: where its bucket is full it only waits for a
    /// place, and nobody else here knows whom it knows.
    fn try_seed(&mut self, now: Now, out: &mut impl Outbox) {
        let is_there = |seed: &Contact| self.table.get(&self.sealer.node_id(&seed.key)).is_some();
        if !self.join.is_busy()
            && self.may_work_unasked()
            && let Some(seed) = self.join.seed_tried.take_if(|seed| is_there(seed))
        {
            self.join.ask_first = Some(seed);
            self.look_around(now, out);
        }
        if now.mono_ms < self.join.seed_next_ms {
            return;
        }
        let is_first = self.join.seed_next_ms == 0;
        self.join.seed_next_ms = now.mono_ms + self.rng.jittered_ms(SEED_PAUSE_MS);
        let tried = if is_first { 0 } else { self.seeds.len() };
        for _ in 0..tried {
            let contact = self.seeds[self.join.next_seed % self.seeds.len()];
            self.join.next_seed += 1;
            let id = self.sealer.node_id(&contact.key);
            if self.looks_after(&id) && self.table.get(&id).is_none() {
                self.join.seed_tried = Some(contact);
                self.verify(now, contact, id, out);
                return;
            }
        }
    }

    fn ask_to_join(&mut self, now: Now, contact: Contact, out: &mut impl Outbox) {
        let id = self.sealer.node_id(&contact.key);
        self.verify(now, contact, id, out);
    }

    /// Looks for our own neighbours.
    pub(super) fn look_around(&mut self, now: Now, out: &mut impl Outbox) {
        // Said first: a lookup that finds nobody to send to is over before `begin` returns.
        self.join.looking = true;
        let own = *self.own.as_bytes();
        if self.begin(now, Task::Join, None, own, Goal::Nodes, Privacy::None, out).is_some() {
            self.join.looking = false;
        }
    }

    /// The lookup for our own neighbours has ended; now the table is filled.
    pub(super) fn on_join_done(&mut self, now: Now, answered: bool) {
        self.join.looking = false;
        // Who heard from nobody has found no place: it looks again soon.
        if answered && self.table.live_len() > 0 {
            self.join.joined = true;
            let closest = self.table.closest(&self.own, self.table.k(), |_| true);
            let deepest = self.table.peers_of(&closest).last().map(|peer| self.own.distance_to(&peer.id));
            self.join.fill_from = deepest.map(|distance| distance.leading_zeros().min(64));
            self.tick_soon(now);
        }
    }

    /// Somebody asks or answers where it is not known: for the lane that owns contacts like it to look into.
    pub(super) fn introduce(&mut self, now: Now, contact: Contact, id: NodeId, out: &mut impl Outbox) {
        let owner = self.map.lane(&self.own, &id);
        if owner == self.lane {
            self.meet(now, contact, id, out);
        } else {
            out.message(owner, MessageClass::Hint, message_kind::CANDIDATE, id.prefix_u64(), &contact.to_wire());
        }
    }

    /// Somebody is where it is not known, and this lane owns contacts like it.
    pub(super) fn meet(&mut self, now: Now, contact: Contact, id: NodeId, out: &mut impl Outbox) {
        let Some(peer) = self.table.get(&id) else {
            if self.table.would_take(&id, contact.addr.prefix()) {
                self.verify(now, contact, id, out);
            }
            return;
        };
        let (known, is_silent) = (peer.contact, peer.silences > 0);
        let is_quiet = now.mono_ms.saturating_sub(peer.answered_ms) >= STILL_THERE_MS;
        if known.addr == contact.addr {
            return;
        }
        // As long as it answers where it is known, nothing changes: a machine may have two addresses, and be reached by all at one only.
        if is_silent {
            self.verify(now, contact, id, out);
        } else if is_quiet && self.in_flight_to(&id) == 0 {
            let purpose = Purpose::StillThere { or_at: contact.addr };
            self.request(now, known, id, id.as_bytes(), &Message::Ping, purpose, out);
        }
    }

    /// Asks a peer whether it is there and what it can do.
    pub(super) fn verify(&mut self, now: Now, contact: Contact, id: NodeId, out: &mut impl Outbox) {
        if self.in_flight_to(&id) == 0 && id != self.own && !self.abuse.is_quarantined(now.mono_ms, &contact.key) {
            let message = Message::Negotiate(self.capabilities());
            self.request(now, contact, id, id.as_bytes(), &message, Purpose::Verify, out);
        }
    }

    /// Pings a node on behalf of a command.
    pub(super) fn command_ping(
        &mut self,
        now: Now,
        command: CommandId,
        contact: Contact,
        out: &mut impl Outbox,
    ) -> Option<Answer> {
        if contact.key == self.own_key {
            return Some(Answer::Pong { rtt_ms: 0, observed: None });
        }
        if !self.sealer.agrees_with(&contact.key) {
            return Some(Answer::UnusableKey);
        }
        let id = self.sealer.node_id(&contact.key);
        let sent = self.request(now, contact, id, id.as_bytes(), &Message::Ping, Purpose::Ping(command), out);
        (!sent).then_some(Answer::TooBusy)
    }

    /// Pings those of our contacts that have been quiet for long. Each contact has one lane that does so, and tells the others; if nothing
    /// has been heard from that one for several times as long, this lane sees for itself.
    fn ping_idle(&mut self, now: Now, out: &mut impl Outbox) {
        let untold_ms = self.config.ping_idle_ms.saturating_mul(UNTOLD_PINGS);
        for _ in 0..PINGS_PER_TICK {
            let Self { table, map, own, lane, outstanding, .. } = self;
            let stalest = table.stalest(now.mono_ms, self.config.ping_idle_ms, |peer| {
                let is_untold = now.mono_ms.saturating_sub(peer.answered_ms) >= untold_ms;
                (is_untold || map.lane(own, &peer.id) == *lane) && outstanding.peek(peer.id.as_bytes()).is_none()
            });
            let Some((contact, id, known)) = stalest.map(|peer| (peer.contact, peer.id, peer.capabilities != 0)) else {
                return;
            };
            if known {
                self.request(now, contact, id, id.as_bytes(), &Message::Ping, Purpose::Verify, out);
            } else {
                self.verify(now, contact, id, out);
            }
        }
    }

    fn refresh_idle(&mut self, now: Now, out: &mut impl Outbox) {
        if self.join.joined
            && self.join.fill_from.is_none()
            && self.may_work_unasked()
            && let Some(bucket) = self.table.bucket_due(now.mono_ms)
        {
            // Lanes have tables of their own but hear of each other's finds: they take buckets in turn.
            if bucket as usize % self.map.lanes() == usize::from(self.lane.0) {
                self.refresh_bucket(now, bucket, out);
            } else {
                let target = self.point_in_bucket(bucket);
                let due_ms = now.mono_ms + self.rng.jittered_ms(self.config.refresh_ms);
                self.table.refreshed(&ContentId::from_bytes(target), due_ms);
            }
        }
    }

    fn refresh_bucket(&mut self, now: Now, bucket: u32, out: &mut impl Outbox) {
        let target = self.point_in_bucket(bucket);
        self.begin(now, Task::Upkeep, None, target, Goal::Nodes, Privacy::None, out);
    }

    /// A random point that shares exactly `bucket` leading bits with our own id.
    fn point_in_bucket(&mut self, bucket: u32) -> [u8; 32] {
        let own = *self.own.as_bytes();
        let mut point: [u8; 32] = self.rng.bytes();
        for bit in 0..=bucket.min(255) as usize {
            let mask = 0x80 >> (bit % 8);
            let wanted = if bit == bucket as usize { !own[bit / 8] } else { own[bit / 8] };
            point[bit / 8] = point[bit / 8] & !mask | wanted & mask;
        }
        point
    }

    pub(super) fn on_lane_message(&mut self, now: Now, kind: u8, payload: &[u8], out: &mut impl Outbox) {
        match kind {
            message_kind::CONTACT => {
                let Some((contact, rest)) = payload.split_first_chunk::<CONTACT_BYTES>() else { return };
                let contact = Contact::from_wire(contact);
                let rtt_ms = rest.first_chunk().map(|rtt| u32::from_le_bytes(*rtt)).filter(|rtt| *rtt != u32::MAX);
                if !self.abuse.is_quarantined(now.mono_ms, &contact.key) {
                    let id = self.sealer.node_id(&contact.key);
                    let placed = self.table.answered(now.mono_ms, id, contact, rtt_ms.map(u64::from));
                    self.last_answer_ms = now.mono_ms;
                    if let Placed::Replaced(Some(gone)) = placed {
                        self.lose(now, gone, self.sealer.node_id(&gone.key), out);
                    }
                }
            }
            message_kind::CANDIDATE => {
                let Some(contact) = payload.first_chunk::<CONTACT_BYTES>().map(Contact::from_wire) else { return };
                let id = self.sealer.node_id(&contact.key);
                self.meet(now, contact, id, out);
            }
            message_kind::SILENT => {
                let Some(contact) = payload.first_chunk::<CONTACT_BYTES>().map(Contact::from_wire) else { return };
                let id = self.sealer.node_id(&contact.key);
                self.hear_of_silence(now, contact, id, out);
            }
            message_kind::LEFT => {
                if let Some(id) = payload.first_chunk() {
                    self.table.expel(&NodeId::from_bytes(*id));
                }
            }
            message_kind::OBSERVED => {
                if let Some(addr) = payload.first_chunk() {
                    self.seen_at.believe(Addr::from_wire(addr));
                }
            }
            message_kind::SCORE => {
                let Some((key, rest)) = payload.split_first_chunk() else { return };
                if let Some(score) = rest.first_chunk() {
                    let key = PublicKey(*key);
                    self.abuse.hearsay(now.mono_ms, &key, f64::from_le_bytes(*score));
                    // What it answers is not noted any more: it would be pinged all the time, before all others.
                    if self.abuse.is_quarantined(now.mono_ms, &key) {
                        self.table.expel(&self.sealer.node_id(&key));
                    }
                }
            }
            message_kind::PROVIDERS => {
                for entry in payload.as_chunks::<{ 32 + PROVIDER_BYTES }>().0 {
                    let (id, provider) = entry.split_first_chunk().expect("an id is a part of it");
                    let provider = SignedProvider::from_wire(provider.try_into().expect("the rest is the provider"));
                    self.keep_provider(now, &ContentId::from_bytes(*id), &provider, out);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abuse::Offence;
    use crate::identity::Identity;
    use crate::node::command::Command;
    use crate::node::config::NodeConfig;
    use crate::node::lone_lane::{Sent, T, contact, lane, lane_among, lane_with};
    use alloc::vec;

    /// Where a lane asks when a contact it knows asks from elsewhere, `ms` after it last answered.
    fn asked_at(ms: u64, is_silent: bool) -> Vec<Addr> {
        let (mut lane, known) = (lane(), contact(10));
        lane.table.answered(T.mono_ms, known.id(), known, Some(10));
        if is_silent {
            lane.table.silent(&known.id());
        }
        let now = Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms };
        let mut out = Sent::default();
        for _ in 0..2 {
            lane.meet(now, Contact { addr: ELSEWHERE, ..known }, known.id(), &mut out);
            lane.meet(now, known, known.id(), &mut out);
        }
        out.0.into_iter().map(|(to, _)| to).collect()
    }

    const ELSEWHERE: Addr = Addr::v4([10, 0, 99, 1], 1);

    #[test]
    fn a_contact_that_asks_from_elsewhere_is_asked_once_where_it_is_known_unless_it_just_answered_there() {
        assert_eq!(asked_at(STILL_THERE_MS - 1, false), []);
        assert_eq!(asked_at(STILL_THERE_MS, false), [contact(10).addr]);
    }

    #[test]
    fn half_of_a_round_of_joining_is_for_the_lost_however_many_are_remembered() {
        // So many lost and remembered contacts, and how many of each are asked in the first round.
        for (lost, remembered, of_lost, of_remembered) in
            [(0, 50, 0, 8), (1, 50, 1, 7), (4, 50, 4, 4), (50, 50, 4, 4), (50, 2, 4, 2)]
        {
            let mut lane = lane();
            let (lost, remembered) = (100..100 + lost, 200..200 + remembered);
            for contact in lost.clone().map(contact) {
                lane.remember_lost(T, contact, contact.id());
            }
            for contact in remembered.clone().map(contact) {
                lane.remember(contact);
            }
            let mut out = Sent::default();
            lane.keep_joined(T, &mut out);
            let is_asked = |n: &u8| out.0.iter().any(|(to, _)| *to == contact(*n).addr);
            let asked = (lost.filter(is_asked).count(), remembered.filter(is_asked).count());
            assert_eq!(asked, (of_lost, of_remembered));
        }
    }

    #[test]
    fn lanes_refresh_their_nodes_buckets_in_turn() {
        let refreshed = |at: u8, lanes: usize| {
            let mut lane = lane_among(1, at, lanes);
            lane.join.joined = true;
            for contact in (10..60).map(contact) {
                lane.table.answered(T.mono_ms, contact.id(), contact, Some(10));
            }
            for _ in 0..32 {
                lane.refresh_idle(T, &mut Sent::default());
            }
            assert_eq!(lane.table.bucket_due(T.mono_ms), None);
            lane.counters.lookups_started
        };
        let buckets = refreshed(0, 1);
        assert!(buckets >= 4);
        assert_eq!((refreshed(0, 2), refreshed(1, 2)), (buckets.div_ceil(2), buckets / 2));
    }

    #[test]
    fn a_seed_that_is_not_in_the_table_is_tried_after_a_pause_and_not_at_the_start() {
        let (mut lane, mut out) = (lane(), Sent::default());
        lane.take_seeds(vec![contact(99)]);
        let mut asked = |ms: u64| {
            lane.try_seed(Now { mono_ms: T.mono_ms + ms, ..T }, &mut out);
            out.0.len()
        };
        assert_eq!([asked(0), asked(SEED_PAUSE_MS / 2), asked(SEED_PAUSE_MS * 2)], [0, 0, 1]);
    }

    #[test]
    fn pings_may_be_put_off_for_ever() {
        let (mut lane, known) = (lane(), contact(10));
        lane.config.ping_idle_ms = u64::MAX;
        lane.table.answered(T.mono_ms, known.id(), known, Some(10));
        let mut out = Sent::default();
        lane.ping_idle(T, &mut out);
        assert!(out.0.is_empty());
    }

    #[test]
    fn a_silent_contact_that_asks_from_elsewhere_is_asked_there_at_once() {
        assert_eq!(asked_at(0, true), [ELSEWHERE]);
    }

    #[test]
    fn whom_another_lanes_word_brings_into_quarantine_is_not_in_the_table() {
        let (mut lane, known) = (lane(), contact(10));
        lane.table.answered(T.mono_ms, known.id(), known, Some(10));
        lane.offence(T, &known.key, Offence::InvalidRecord, &mut Sent::default());
        lane.offence(T, &known.key, Offence::Malformed, &mut Sent::default());
        assert!(lane.table.get(&known.id()).is_some(), "that alone is not enough");
        let mut payload = [0; 40];
        payload[..32].copy_from_slice(&known.key.0);
        payload[32..].copy_from_slice(&10.0_f64.to_le_bytes());
        lane.on_message(T, message_kind::SCORE, &payload, &mut Sent::default());
        assert!(lane.abuse.is_quarantined(T.mono_ms, &known.key));
        assert!(lane.table.get(&known.id()).is_none());
    }

    #[test]
    fn joining_and_refreshing_begin_when_there_is_more_than_the_four_operations_for_commands() {
        type Act = fn(&mut LaneNode<Identity>);
        let works: [(&str, Act, Act); 5] = [
            ("joining", |_| {}, |lane| lane.keep_joined(T, &mut Sent::default())),
            (
                "filling buckets",
                |lane| (lane.join.joined, lane.join.fill_from) = (true, Some(3)),
                |lane| lane.keep_joined(T, &mut Sent::default()),
            ),
            ("refreshing", |lane| lane.join.joined = true, |lane| lane.refresh_idle(T, &mut Sent::default())),
            (
                "looking around after a split",
                |lane| (100..103).for_each(|n| lane.remember_lost(T, contact(n), contact(n).id())),
                |lane| lane.try_lost(T, &mut Sent::default()),
            ),
            (
                "looking around by a seed",
                |lane| lane.join.seed_tried = Some(contact(100)),
                |lane| lane.try_seed(T, &mut Sent::default()),
            ),
        ];
        for (what, work, act) in works {
            let mut lane = lane_with(NodeConfig { operations_max: 10, ..NodeConfig::default() });
            for contact in (100..=255).map(contact) {
                lane.table.answered(T.mono_ms, contact.id(), contact, Some(10));
            }
            work(&mut lane);
            for n in 0..6 {
                lane.on_command(T, CommandId(n), Command::FindNode { target: [7; 32] }, &mut Sent::default());
            }
            act(&mut lane);
            assert_eq!(lane.counters.lookups_started, 6, "{what} waits");
            assert_eq!(lane.cancel(T, CommandId(0), &mut Sent::default()), Answer::Noted);
            act(&mut lane);
            assert_eq!(lane.counters.lookups_started, 7, "and is not forgotten: {what}");
        }
    }
}
