//! Republishing: ids that this node announces, records that it keeps alive, and held records that it gives to their current holders.
//!
//! Ids are announced in sweeps by region, so that ids near each other share one lookup. The nodes nearest to an id share its leading bits.
//! One lookup that asks all nodes within a region learns the holders of *every* id in that region, however many there are, so announcing a
//! hundred thousand ids takes about as many lookups as the network has regions. Each holder is then told its ids, ten to a datagram, at a
//! bounded pace. Announcements return at half their lifetime, each region at its own jittered time, and due times survive a restart.
//! `stems` has the other way.

mod agenda;
mod alive;
mod stems;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Point as _};
use tessera_stdx::TokenBucket;

use super::command::Answer;
use super::context::{Context, Place};
use super::log::log_kind;
use super::operations::{Announcing, WriteEnd};
use super::peers::Peers;
use super::requests::{Purpose, TIMEOUT_MS_MAX};
use super::server::Ledger;
use super::{pace_of, reserve_queue};
use crate::contact::Contact;
use crate::record::{RecordRefused, RecordView, sign_provider, with_lifetime_left};
use crate::retry::REGIVEN_MAX;
use crate::store::records::{Class, RecordStore};
use crate::wire::message::{ErrorCode, Message, SignedProvider};

use agenda::Agenda;
use alive::KeptAlive;
use stems::{Handed, hand_to, pick_taker};
pub(super) use stems::{NextStem, Refusers, STEMS_MAX, Stems};

/// Held records waiting to be given to their holders again.
pub(super) const GIVEN_ON_MAX: usize = 1024;

/// Held records given on in a second, all lanes together: after a split has healed many are due at once, and their holders have others to
/// serve that are just as busy.
const GIVEN_ON_PER_SEC: u32 = 20;

/// Work that fell due while the node was away is spread over this time: others restart at the same time.
const RESTART_MS: u64 = 60_000;

/// An id that this node announces.
#[derive(Debug, Clone, Copy)]
struct Announced {
    /// Whether the next announcement may go through a stem.
    stem: bool,
}

/// Whether an announcement of ours was offered to a node that takes stems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Offered {
    Sent,
    /// There is a node, but nothing can be sent now. That is no reason to spread it from here.
    NotNow,
    /// No node takes stems that has not refused it.
    ToNobody,
}

/// What to do with the next id that is due to be announced.
#[derive(Debug)]
pub(super) enum NextAnnounced {
    /// It was offered to a node that takes stems.
    Offered,
    /// It is spread from here, with all that are spread from its region.
    Sweep(ContentId, Box<Announcing>),
    /// Nothing is due, or nothing can be done now.
    Nothing,
}

/// A held record that is due to be given to its holders.
#[derive(Debug, Clone, Copy)]
struct GivenOn {
    id: ContentId,
    /// So many times a holder refused it for being asked too often.
    refusals: u8,
}

/// A lane's periodic publications.
#[derive(Debug)]
pub(super) struct Republishing {
    announced: Agenda<Announced>,
    alive: KeptAlive,
    stems: Stems,
    given_on: VecDeque<GivenOn>,
    given_on_pace: TokenBucket,
}

impl Republishing {
    pub(super) fn new(place: &Place, now_ms: u64) -> Self {
        Self {
            announced: Agenda::default(),
            alive: KeptAlive::default(),
            stems: Stems::default(),
            given_on: VecDeque::new(),
            given_on_pace: given_on_pace(place, now_ms),
        }
    }

    pub(super) fn reserve_all(&mut self) {
        self.stems.reserve_all();
        reserve_queue(&mut self.given_on, GIVEN_ON_MAX);
    }

    /// The number of lanes changed, and with it this lane's share of the pace.
    pub(super) fn set_lanes(&mut self, place: &Place, now_ms: u64) {
        self.given_on_pace = given_on_pace(place, now_ms);
    }

    /// Ids that are announced, and held records that wait to be given on.
    pub(super) fn len(&self) -> (usize, usize) {
        (self.announced.len(), self.given_on.len())
    }

    pub(super) fn alive(&self) -> &KeptAlive {
        &self.alive
    }

    pub(super) fn alive_mut(&mut self) -> &mut KeptAlive {
        &mut self.alive
    }

    pub(super) fn stems(&self) -> &Stems {
        &self.stems
    }

    pub(super) fn stems_mut(&mut self) -> &mut Stems {
        &mut self.stems
    }

    /// Announces ids from now on.
    pub(super) fn provide(&mut self, cx: &mut Context<'_>, ledger: &mut Ledger, ids: &[ContentId]) -> Answer {
        if ids.iter().any(|id| !cx.place.owns(id)) {
            return Answer::WrongLane;
        }
        let new = ids.iter().filter(|id| self.announced.get(id).is_none()).count();
        if self.announced.len() + new > cx.place.config.published_max {
            return Answer::NoRoom;
        }
        for id in ids {
            if self.announced.get(id).is_none() {
                let mut payload = [0; 40];
                payload[..32].copy_from_slice(id.as_bytes());
                payload[32..].copy_from_slice(&cx.now.unix_secs().to_le_bytes());
                if !ledger.log(cx, log_kind::PUBLISHED, id, &payload) {
                    return Answer::NotLogged;
                }
                self.schedule(id, cx.now.mono_ms, cx.place.config.stem_hops > 0);
            }
        }
        cx.tick_soon();
        Answer::Providing(self.announced.len())
    }

    /// Announces ids no more.
    pub(super) fn unprovide(&mut self, cx: &mut Context<'_>, ledger: &mut Ledger, ids: &[ContentId]) -> Answer {
        let mut logged = true;
        for id in ids {
            if self.announced.remove(id).is_some() {
                logged &= ledger.log(cx, log_kind::UNPUBLISHED, id, id.as_bytes());
            }
        }
        if logged { Answer::Providing(self.announced.len()) } else { Answer::NotLogged }
    }

    fn schedule(&mut self, id: &ContentId, due_ms: u64, stem: bool) {
        self.announced.set(id, due_ms, Announced { stem });
    }

    /// Stores a record again at half its lifetime.
    pub(super) fn keep_alive(
        &mut self,
        cx: &mut Context<'_>,
        ledger: &mut Ledger,
        id: &ContentId,
        record: &[u8],
    ) -> Result<(), Answer> {
        if !self.alive.make_room(cx.now, cx.place, id, record) {
            return Err(Answer::NoRoom);
        }
        // First: a record that the log does not take must not replace the one that a restart would bring back.
        if !ledger.log(cx, log_kind::KEPT_ALIVE, id, record) {
            return Err(Answer::NotLogged);
        }
        self.alive.set(cx, id, record);
        Ok(())
    }

    /// Notes held records that are due to be given on. A record that finds no room is due again later, here and at the other holders.
    pub(super) fn give_on(&mut self, id: &ContentId) {
        if self.given_on.len() < GIVEN_ON_MAX {
            self.given_on.push_back(GivenOn { id: *id, refusals: 0 });
        }
    }

    /// The next held record to give to its current holders, and how often it was refused: holders come and go while the
    /// owner may be away. No record's lifetime grows by it.
    pub(super) fn next_given_on(
        &mut self,
        cx: &mut Context<'_>,
        records: &RecordStore,
    ) -> Option<(ContentId, u8, Vec<u8>)> {
        while let Some(due) = self.given_on.pop_front() {
            let Some(kept) = records.peek(&due.id).filter(|kept| kept.class == Class::Held) else { continue };
            let left = kept.expires_secs.saturating_sub(cx.now.unix_secs());
            let Some(record) = with_lifetime_left(kept.bytes, left) else { continue };
            if self.given_on_pace.take(cx.now.mono_ms, 1).is_err() {
                self.given_on.push_front(due);
                return None;
            }
            return Some((due.id, due.refusals, record));
        }
        None
    }

    /// The next id that is due to be announced.
    pub(super) fn next_announced(&mut self, cx: &mut Context<'_>, peers: &mut Peers) -> NextAnnounced {
        let Some(id) = self.announced.first_due(cx.now.mono_ms) else { return NextAnnounced::Nothing };
        if peers.members().public_addr(cx.place).is_none() {
            return NextAnnounced::Nothing;
        }
        if self.announced.get(&id).is_some_and(|announced| announced.stem) {
            match self.offer_stem(cx, peers, &id, Refusers::default()) {
                Offered::Sent => return NextAnnounced::Offered,
                Offered::NotNow => return NextAnnounced::Nothing,
                // All that are due now are in the same case.
                Offered::ToNobody if self.stems.awaits_takers(cx, peers) => return NextAnnounced::Nothing,
                Offered::ToNobody => {}
            }
        }
        self.sweep(cx, peers, &id).map_or(NextAnnounced::Nothing, |(id, sweep)| NextAnnounced::Sweep(id, sweep))
    }

    /// Collects all ids of the region around `first` that are spread from here. Returns the point to look around, and what to announce.
    fn sweep(
        &mut self,
        cx: &mut Context<'_>,
        peers: &Peers,
        first: &ContentId,
    ) -> Option<(ContentId, Box<Announcing>)> {
        let addr = peers.members().public_addr(cx.place)?;
        // A region is a prefix short enough that about twice K nodes share it: every id in it finds its K holders there.
        let k = cx.place.config.lookup.k;
        let bits = peers.members().radius_of(cx, k * 2).leading_zeros().min(255);
        let (low, high) = region(first, bits);
        // An id that no stem took says nothing about those beside it: spread with it, they would show their provider. Only where no node takes
        // stems at all are those that are due in the same case.
        let none_takes = self.announced.get(first).is_some_and(|announced| announced.stem);
        let is_spread = |due_ms: u64, stem: bool| !stem || none_takes && due_ms <= cx.now.mono_ms;
        let of_region = self.announced.range(low, high).filter(|(_, due_ms, entry)| is_spread(*due_ms, entry.stem));
        let ids: Vec<_> = of_region.map(|(id, ..)| *id).collect();
        let again_ms = half_life_from_now(cx);
        for id in &ids {
            self.schedule(id, again_ms, cx.place.config.stem_hops > 0);
        }
        let provider = Contact { key: cx.place.own_key, addr };
        let signed: Vec<_> = ids.iter().map(|id| sign(cx, peers, id, provider)).collect();
        // A lone id needs its own holders only; a region needs all nodes in it, seen from its middle.
        let (target, radius) = match &ids[..] {
            [alone] => (*alone, peers.members().radius_of(cx, k)),
            _ => (ids[ids.len() / 2], low.distance_to(&high)),
        };
        cx.counters.lookups_for_sweeps += 1;
        let signatures = signed.iter().map(|provider| provider.signature).collect();
        Some((target, Box::new(Announcing::new(radius, ids, signatures, signed.first()?))))
    }

    /// Offers one of our ids to a node that takes stems and has not refused it.
    fn offer_stem(&mut self, cx: &mut Context<'_>, peers: &mut Peers, id: &ContentId, refusers: Refusers) -> Offered {
        match pick_taker(cx, peers, &refusers) {
            Some(to) => self.offer_stem_to(cx, peers, to, Purpose::Stem { id: *id, attempt: 1, refusers }),
            None => Offered::ToNobody,
        }
    }

    fn offer_stem_to(&mut self, cx: &mut Context<'_>, peers: &mut Peers, to: Contact, purpose: Purpose) -> Offered {
        let Purpose::Stem { id, .. } = purpose else { return Offered::NotNow };
        let Some(addr) = peers.members().public_addr(cx.place) else { return Offered::NotNow };
        let provider = sign(cx, peers, &id, Contact { key: cx.place.own_key, addr });
        if !hand_to(cx, peers, to, (&id, &provider, cx.place.config.stem_hops), purpose) {
            return Offered::NotNow;
        }
        // An answer, or the silence, says before that when it is due.
        self.schedule(&id, cx.now.mono_ms + 2 * TIMEOUT_MS_MAX, true);
        Offered::Sent
    }

    /// The answer, or the silence, of the first node of a stem.
    pub(super) fn on_stem_answer(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        purpose: &Purpose,
        of: Contact,
        answer: Option<&Message<'_>>,
    ) {
        let Purpose::Stem { id, attempt, refusers } = *purpose else { return };
        if self.announced.get(&id).is_none() {
            return;
        }
        let offered = match Handed::of(answer, attempt) {
            Handed::Taken => {
                self.stems.taken();
                let again_ms = half_life_from_now(cx);
                return self.schedule(&id, again_ms, true);
            }
            Handed::NotYet => self.offer_stem_to(cx, peers, of, Purpose::Stem { id, attempt: attempt + 1, refusers }),
            Handed::Refused => match refusers.with(&peers.node_id(&of.key)) {
                Some(refusers) => match self.offer_stem(cx, peers, &id, refusers) {
                    Offered::ToNobody if self.stems.awaits_takers(cx, peers) => {
                        return self.schedule(&id, cx.now.mono_ms + cx.place.config.tick_ms, true);
                    }
                    offered => offered,
                },
                None => Offered::ToNobody,
            },
        };
        if offered != Offered::Sent {
            self.schedule(&id, cx.now.mono_ms, offered == Offered::NotNow);
        }
    }

    /// A write has ended: a record that no holder took is due again soon, and a record with a newer version elsewhere is given up.
    pub(super) fn on_write_ended(&mut self, cx: &mut Context<'_>, ledger: &mut Ledger, end: &mut WriteEnd) {
        if let Some(ids) = end.untaken.take().and_then(|announcing| announcing.into_ids_of(&cx.place.own_key)) {
            let again_ms = cx.now.mono_ms + cx.rng.jittered_ms(10 * cx.place.config.tick_ms);
            for id in ids {
                if self.announced.get(&id).is_some() {
                    self.schedule(&id, again_ms, false);
                }
            }
        }
        let WriteEnd { id, written, record, refusals, .. } = end;
        // A holder that was asked too often is given the record again soon, and not for ever.
        if let Some(refusals) = refusals
            && written.refused.iter().any(|(code, _)| *code == ErrorCode::RateLimited)
            && *refusals + 1 < REGIVEN_MAX
            && self.given_on.len() < GIVEN_ON_MAX
        {
            self.given_on.push_back(GivenOn { id: *id, refusals: *refusals + 1 });
        }
        let Some(record) = record.as_ref().filter(|_| written.acknowledged == 0) else { return };
        // One holder may say so to be rid of it; and of a record that has no versions none can.
        let is_mutable = RecordView::read(record).is_ok_and(|view| view.mutable.is_some());
        let is_outdated =
            |(code, _): &&(ErrorCode, u16)| matches!(code, ErrorCode::StaleSequence | ErrorCode::Equivocation);
        let say_so: u32 = written.refused.iter().filter(is_outdated).map(|(_, count)| u32::from(*count)).sum();
        if !is_mutable || say_so * 2 <= u32::from(written.holders) {
            self.alive.hurry(cx, id);
        } else if self.alive.get(id) == Some(record) {
            // Another version is out. To go on storing this one would only draw the same answer, and blame.
            self.alive.remove(id);
            // A log that does not take it brings the record back once, to be given up again.
            ledger.log(cx, log_kind::NOT_KEPT_ALIVE, id, id.as_bytes());
        }
    }

    /// Takes back an announced id that was logged.
    pub(super) fn restore_announced(&mut self, cx: &mut Context<'_>, payload: &[u8]) {
        let Some((id, due)) = payload.split_first_chunk::<32>() else { return };
        let due_secs = due.first_chunk().map_or(0, |due| u64::from_le_bytes(*due));
        if self.announced.len() >= cx.place.config.published_max {
            return;
        }
        // Nothing is due later than a lifetime from now, even if the log says so.
        let wait_secs = due_secs.saturating_sub(cx.now.unix_secs()).min(u64::from(cx.place.config.provide_ttl_secs));
        let wait_ms = wait_secs * 1000 + cx.rng.below(RESTART_MS);
        // A restart, or another lane, is no reason to show whose it is.
        self.schedule(&ContentId::from_bytes(*id), cx.now.mono_ms + wait_ms, cx.place.config.stem_hops > 0);
    }

    /// Takes back that an id is not announced any more.
    pub(super) fn restore_unannounced(&mut self, id: &ContentId) {
        self.announced.remove(id);
    }

    /// Takes back a record that is kept alive.
    pub(super) fn restore_alive(&mut self, cx: &mut Context<'_>, record: &[u8]) {
        if let Ok(view) = RecordView::read(record)
            // One whose time is over, or has yet to come, may say that the clock is wrong.
            && !matches!(view.check_times(cx.now.unix_secs()), Err(RecordRefused::Lifetime(_)))
        {
            self.alive.set(cx, &view.id(), record);
        }
    }

    /// Writes announced ids and records kept alive as log records. `put` returns false when it takes no more.
    pub(super) fn export(&self, now: crate::time::Now, mut put: impl FnMut(u8, &ContentId, &[u8]) -> bool) -> bool {
        self.announced.iter().all(|(id, due_ms, _)| {
            let due_secs = now.unix_secs() + due_ms.saturating_sub(now.mono_ms) / 1000;
            let mut payload = [0; 40];
            payload[..32].copy_from_slice(id.as_bytes());
            payload[32..].copy_from_slice(&due_secs.to_le_bytes());
            put(log_kind::PUBLISHED, id, &payload)
        }) && self.alive.iter().all(|(id, record)| put(log_kind::KEPT_ALIVE, id, record))
    }

    /// Drops ids that another lane owns now.
    pub(super) fn drop_where(&mut self, is_gone: impl Fn(&ContentId) -> bool) {
        self.announced.retain(&is_gone);
        self.alive.drop_where(is_gone);
    }
}

/// A lane's share of the pace at which held records are given on.
fn given_on_pace(place: &Place, now_ms: u64) -> TokenBucket {
    pace_of(place, GIVEN_ON_PER_SEC, 1, now_ms)
}

/// Half of the lifetime of an announcement from now, jittered.
fn half_life_from_now(cx: &mut Context<'_>) -> u64 {
    let half_life_ms = u64::from(cx.place.config.provide_ttl_secs) * 500;
    cx.now.mono_ms + cx.rng.jittered_ms(half_life_ms.max(1000))
}

/// Signs that `provider`, which is this node, provides `id`.
fn sign(cx: &Context<'_>, peers: &Peers, id: &ContentId, provider: Contact) -> SignedProvider {
    let (issued_secs, ttl_secs) = (cx.now.unix_secs(), cx.place.config.provide_ttl_secs);
    let (crypto, network) = (peers.sealer().crypto(), peers.sealer().network());
    let signature = sign_provider(crypto, network, id, &provider.addr, issued_secs, ttl_secs);
    SignedProvider { provider, issued_secs, ttl_secs, signature }
}

/// The first and the last id that share the first `bits` bits of `id`.
fn region(id: &ContentId, bits: u32) -> (ContentId, ContentId) {
    let (mut low, mut high) = (*id.as_bytes(), *id.as_bytes());
    for bit in bits as usize..256 {
        let mask = 0x80 >> (bit % 8);
        low[bit / 8] &= !mask;
        high[bit / 8] |= mask;
    }
    (ContentId::from_bytes(low), ContentId::from_bytes(high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::identity::Identity;
    use crate::lookup::Goal;
    use crate::lookup::LookupConfig;
    use crate::node::LaneNode;
    use crate::node::command::CommandId;
    use crate::node::config::NodeConfig;
    use crate::node::lone_lane::{Sent, T, contact, lane_with};
    use crate::node::operations::Task;
    use crate::record::{RecordView, immutable_record};
    use crate::store::records::Class;
    use crate::wire::message::Announcement;

    /// Background work of a lane, the n-th of its kind, due now.
    type Work = fn(&mut LaneNode, u8);

    fn value(n: u8) -> (ContentId, Vec<u8>) {
        let record = immutable_record(&[n], 100).unwrap();
        (RecordView::read(&record).unwrap().id(), record)
    }

    fn keep_alive(lane: &mut LaneNode, n: u8) {
        let (id, record) = value(n);
        lane.router.republishing.alive_mut().set_due(&id, T.mono_ms, &record);
    }

    fn give_on(lane: &mut LaneNode, n: u8) {
        let ((id, record), giver) = (value(n), contact(9).key);
        let view = RecordView::read(&record).unwrap();
        lane.act(T, |lane, cx| lane.server.records_mut().keep(T, &id, &view, Class::Held, 100, giver, cx.rng)).unwrap();
        lane.router.republishing.give_on(&id);
    }

    /// Ids so far apart that each has a region of its own.
    fn announce(lane: &mut LaneNode, n: u8) {
        lane.act(T, |lane, cx| {
            lane.republishing.provide(cx, lane.server.ledger_mut(), &[ContentId::from_bytes([n * 16; 32])])
        });
    }

    fn spread_for_another(lane: &mut LaneNode, n: u8) {
        let (id, stranger) = (ContentId::from_bytes([n; 32]), Identity::from_seed(&[200; 32]));
        let provider = contact(200);
        let signature = sign_provider(&stranger, lane.network(), &id, &provider.addr, T.unix_secs(), 600);
        let entry = [&id.as_bytes()[..], &signature[..]].concat();
        lane.router
            .republishing
            .stems_mut()
            .take(0, &Announcement::over(provider, T.unix_secs(), 600, &entry))
            .unwrap();
    }

    #[test]
    fn whatever_is_to_be_done_in_the_background_leaves_four_operations_for_commands() {
        let works: [(&str, Work); 4] = [
            ("kept alive", keep_alive),
            ("given on", give_on),
            ("announced", announce),
            ("announced for another", spread_for_another),
        ];
        for (what, work) in works {
            let mut lane = lane_with(NodeConfig {
                operations_max: 10,
                public_addr: Some(Addr::v4([10, 0, 0, 1], 1)),
                lookup: LookupConfig { k: 1, ..LookupConfig::default() },
                ..NodeConfig::default()
            });
            for contact in (100..=255).map(contact) {
                lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
            }
            for n in 0..16 {
                work(&mut lane, n);
            }
            let mut sent = Sent::default();
            lane.with(T, &mut sent, |lane, cx| lane.publish_due(cx));
            assert_eq!(lane.counters.lookups_started, 6, "{what}");
            let mut command =
                || lane.with(T, &mut sent, |lane, cx| lane.begin_for(cx, Task::FindNode, None, [7; 32], Goal::Nodes));
            let answers: [_; 5] = core::array::from_fn(|_| command());
            assert_eq!(answers, [None, None, None, None, Some(Answer::TooBusy)], "{what}");
        }
    }

    /// A lane that knows all nodes, and has background work.
    fn busy_lane(config: NodeConfig, work: Work) -> LaneNode {
        let mut lane = lane_with(NodeConfig { public_addr: Some(Addr::v4([10, 0, 0, 1], 1)), ..config });
        for contact in (100..=255).map(contact) {
            lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        for n in 0..16 {
            work(&mut lane, n);
        }
        lane
    }

    fn find(lane: &mut LaneNode, command: u64) -> Option<Answer> {
        let command = Some(CommandId(command));
        lane.act(T, |lane, cx| lane.begin_for(cx, Task::FindNode, command, [7; 32], Goal::Nodes))
    }

    #[test]
    fn a_lane_of_few_operations_does_all_its_work_and_leaves_half_of_them_for_commands() {
        for (operations_max, at_once) in [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4), (9, 5)] {
            let mut lane = busy_lane(NodeConfig { operations_max, ..NodeConfig::default() }, keep_alive);
            lane.act(T, |lane, cx| lane.publish_due(cx));
            assert_eq!(lane.counters.lookups_started, at_once, "of {operations_max}");
        }
    }

    #[test]
    fn whatever_is_asked_in_the_background_leaves_a_quarter_of_the_requests_for_commands() {
        let works: [(&str, Work); 5] = [
            ("kept alive", keep_alive),
            ("given on", give_on),
            ("announced", announce),
            ("announced for another", spread_for_another),
            ("asked whether it is there", |lane, n| {
                lane.act(T, |lane, cx| lane.peers.verify(cx, contact(n), contact(n).id()))
            }),
        ];
        for (what, work) in works {
            let mut lane = busy_lane(NodeConfig { requests_max: 8, ..NodeConfig::default() }, work);
            lane.act(T, |lane, cx| lane.publish_due(cx));
            assert_eq!(lane.router.peers.requests().len(), 6, "{what}");
            assert_eq!(find(&mut lane, 1), None);
            assert_eq!(lane.router.peers.requests().len(), 8, "{what}");
        }
    }

    #[test]
    fn a_region_is_all_ids_of_a_prefix() {
        let id = ContentId::from_bytes([0b1010_1010; 32]);
        let (low, high) = region(&id, 3);
        assert_eq!((low.as_bytes()[0], low.as_bytes()[31]), (0b1010_0000, 0));
        assert_eq!((high.as_bytes()[0], high.as_bytes()[31]), (0b1011_1111, 0xff));
        assert_eq!(low.distance_to(&high).leading_zeros(), 3);
        assert_eq!(region(&id, 256), (id, id));
    }
}
