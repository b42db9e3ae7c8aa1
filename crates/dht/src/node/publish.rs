//! Announcing ids in sweeps by region, so that ids near each other share one lookup. `stem` has the other way.
//!
//! The nodes nearest to an id share its leading bits. One lookup that asks everybody within a region learns the holders
//! of *every* id in that region, however many there are, so announcing a hundred thousand ids takes about as many lookups
//! as the network has regions. Each holder is then told its ids, ten to a datagram, at a bounded pace. Announcements
//! return at half their lifetime, each region at its own jittered time, and what was due survives a restart.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Distance, Point as _};

use super::LaneNode;
use super::ask::Purpose;
use super::command::{Answer, Privacy};
use super::log::log_kind;
use super::operation::Task;
use super::outbox::Outbox;
use super::stem::{Offered, Refusers};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::identity::{Crypto, Signature};
use crate::lookup::{FRONTIER_MAX, Goal};
use crate::record::sign_provider;
use crate::time::Now;
use crate::wire::ANNOUNCED_IDS_MAX;
use crate::wire::message::{ANNOUNCED_BYTES, Announcement, ErrorCode, Message, SignedProvider};

/// An id this node provides.
#[derive(Debug, Clone, Copy)]
pub(super) struct Published {
    /// When it is announced next.
    pub(super) due_ms: u64,
    /// Whether the next announcement may go through a stem.
    stem: bool,
}

/// Announcing the ids of one region.
#[derive(Debug)]
pub(super) struct Spread {
    /// How far from the target everybody is asked.
    pub(super) radius: Distance,
    ids: Vec<ContentId>,
    signatures: Vec<Signature>,
    /// For each id, which of the operation's holders get it.
    holders: Vec<u64>,
    provider: Option<Contact>,
    issued_secs: u64,
    ttl_secs: u32,
    /// For each holder, the first id not yet sent to it. Holders take turns, so that none is hurried.
    cursors: [u32; FRONTIER_MAX],
    turn: usize,
}

impl Default for Spread {
    fn default() -> Self {
        Self {
            radius: Distance::ZERO,
            ids: Vec::new(),
            signatures: Vec::new(),
            holders: Vec::new(),
            provider: None,
            issued_secs: 0,
            ttl_secs: 0,
            cursors: [0; FRONTIER_MAX],
            turn: 0,
        }
    }
}

impl Spread {
    /// Announcing one id for `provider`.
    pub(super) fn of_one(radius: Distance, id: ContentId, provider: &SignedProvider) -> Self {
        Self {
            radius,
            ids: alloc::vec![id],
            signatures: alloc::vec![provider.signature],
            provider: Some(provider.provider),
            issued_secs: provider.issued_secs,
            ttl_secs: provider.ttl_secs,
            ..Self::default()
        }
    }

    /// Whether everybody of a region is wanted, not only the holders of one id.
    pub(super) fn is_regional(&self) -> bool {
        self.ids.len() > 1
    }
}

impl<C: Crypto> LaneNode<C> {
    /// Announces ids from now on.
    pub(super) fn provide(&mut self, now: Now, ids: &[ContentId], out: &mut impl Outbox) -> Answer {
        if ids.iter().any(|id| !self.owns(id)) {
            return Answer::WrongLane;
        }
        let new = ids.iter().filter(|id| !self.published.contains_key(id)).count();
        if self.published.len() + new > self.config.published_max {
            return Answer::NoRoom;
        }
        for id in ids {
            if !self.published.contains_key(id) {
                if !self.log_published(now, id, out) {
                    return Answer::NotLogged;
                }
                self.schedule(id, now.mono_ms, self.config.stem_hops > 0);
            }
        }
        self.tick_soon(now);
        Answer::Providing(self.published.len())
    }

    /// Announces ids no more.
    pub(super) fn unprovide(&mut self, ids: &[ContentId], out: &mut impl Outbox) -> Answer {
        let mut logged = true;
        for id in ids {
            if let Some(published) = self.published.remove(id) {
                self.published_due.remove(&(published.due_ms, *id));
                logged &= self.log_hard(log_kind::UNPUBLISHED, id, id.as_bytes(), out);
            }
        }
        if logged { Answer::Providing(self.published.len()) } else { Answer::NotLogged }
    }

    pub(super) fn schedule(&mut self, id: &ContentId, due_ms: u64, stem: bool) {
        if let Some(old) = self.published.insert(*id, Published { due_ms, stem }) {
            self.published_due.remove(&(old.due_ms, *id));
        }
        self.published_due.insert((due_ms, *id));
    }

    /// Starts what is due: at each tick, as far as operations and pace allow.
    pub(super) fn publish_due(&mut self, now: Now, out: &mut impl Outbox) {
        if self.table.is_empty() {
            return; // Announcing to nobody would only use up the schedule.
        }
        self.keep_alive_due(now, out);
        self.republish_due(now, out);
        while let Some((due_ms, id)) = self.published_due.first().copied()
            && due_ms <= now.mono_ms
            && self.may_work_unasked()
            && self.public_addr().is_some()
        {
            if self.published.get(&id).is_some_and(|published| published.stem) {
                match self.offer_stem(now, &id, Refusers::default(), out) {
                    Offered::Sent => continue,
                    Offered::NotNow => break,
                    // All that are due now are in the same case.
                    Offered::ToNobody if self.awaits_takers(now, out) => break,
                    Offered::ToNobody => {}
                }
            }
            self.begin_sweep(now, &id, out);
        }
        self.serve_stems(now, out);
    }

    /// Where others reach us: as configured, or as they see us.
    pub(super) fn public_addr(&self) -> Option<Addr> {
        self.config.public_addr.or(self.seen_at.believed())
    }

    /// Announces all ids of the region around `first` that are spread from here.
    fn begin_sweep(&mut self, now: Now, first: &ContentId, out: &mut impl Outbox) {
        let Some(addr) = self.public_addr() else { return };
        let Some(at) = self.reserve() else { return };
        // A region is a prefix short enough that about twice K nodes share it: every id in it finds its K holders there.
        let bits = self.radius_of(self.config.lookup.k * 2).leading_zeros().min(255);
        let (low, high) = region(first, bits);
        // One that no stem took says nothing about those beside it: spread with it, they would show whose they are. Only where nobody takes
        // stems at all are those that are due in the same case.
        let nobody_takes = self.published.get(first).is_some_and(|published| published.stem);
        let is_spread = |published: &Published| !published.stem || nobody_takes && published.due_ms <= now.mono_ms;
        let of_region = self.published.range(low..=high).filter(|(_, published)| is_spread(published));
        let ids: Vec<_> = of_region.map(|(id, _)| *id).collect();
        let half_life_ms = u64::from(self.config.provide_ttl_secs) * 500;
        let again_ms = now.mono_ms + self.rng.jittered_ms(half_life_ms.max(1000));
        for id in &ids {
            self.schedule(id, again_ms, self.config.stem_hops > 0);
        }
        let issued_secs = now.unix_secs();
        let ttl_secs = self.config.provide_ttl_secs;
        let (crypto, network) = (self.sealer.crypto(), self.sealer.network());
        let signatures =
            ids.iter().map(|id| sign_provider(crypto, network, id, &addr, issued_secs, ttl_secs)).collect();
        let alone = ids.len() == 1;
        // A lone id needs its own holders only; a region needs everybody in it, seen from its middle.
        let k = self.config.lookup.k;
        let radius = if alone { self.radius_of(k) } else { low.distance_to(&high) };
        let target = if alone { *first.as_bytes() } else { *ids[ids.len() / 2].as_bytes() };
        self.operations[usize::from(at)].spread = Spread {
            radius,
            ids,
            signatures,
            provider: Some(Contact { key: self.own_key, addr }),
            issued_secs,
            ttl_secs,
            ..Spread::default()
        };
        self.counters.lookups_for_sweeps += 1;
        self.start(now, at, Task::Spread, None, target, Goal::Nodes, Privacy::None, out);
    }

    /// The region's nodes are known: which of them are the K nearest to each id?
    pub(super) fn plan_spread(&mut self, _now: Now, at: u16) {
        let k = self.config.lookup.k;
        let operation = &mut self.operations[usize::from(at)];
        let mut by_distance: Vec<(Distance, u8)> = Vec::with_capacity(operation.holders.len());
        operation.spread.holders.clear();
        for id in &operation.spread.ids {
            by_distance.clear();
            by_distance
                .extend(operation.holders.iter().enumerate().map(|(i, holder)| (holder.id.distance_to(id), i as u8)));
            by_distance.sort_unstable();
            let mask = by_distance.iter().take(k).fold(0_u64, |mask, (_, i)| mask | 1 << i);
            operation.spread.holders.push(mask);
        }
    }

    /// Sends the next datagram of announcements. `Pace` says what to do if none was sent.
    pub(super) fn send_next_batch(&mut self, now: Now, at: u16, out: &mut impl Outbox) -> Pace {
        let operation = &mut self.operations[usize::from(at)];
        let spread = &mut operation.spread;
        let count = operation.holders.len();
        let mut waiting = false;
        for step in 0..count {
            let holder = (spread.turn + step) % count;
            let target = &operation.holders[holder];
            let start = next_for(&spread.holders, holder, spread.cursors[holder] as usize);
            if start == spread.ids.len() || target.silences >= 3 {
                continue;
            }
            if target.resume_ms > now.mono_ms || self.announce_pace.take(now.mono_ms, 1).is_err() {
                waiting = true;
                continue;
            }
            spread.cursors[holder] = batch_end(&spread.holders, holder, start) as u32;
            spread.turn = holder + 1;
            operation.written.holders += 1;
            self.send_batch(now, at, holder, start, 1, out);
            return Pace::Sent;
        }
        if waiting { Pace::Later } else { Pace::Done }
    }

    /// A holder asked for a pause: it gets the batch again after it. Not for ever: it gets nothing more if it never does anything else.
    pub(super) fn pause_holder(&mut self, now: Now, at: u16, holder: usize, start: u32, retry_after_ms: u32) {
        let operation = &mut self.operations[usize::from(at)];
        let target = &mut operation.holders[holder];
        // What was under way when it asked says nothing new.
        if target.resume_ms <= now.mono_ms {
            target.pauses += 1;
        }
        if target.pauses >= PAUSES_MAX {
            operation.spread.cursors[holder] = operation.spread.ids.len() as u32;
            operation.written.refuse(ErrorCode::RateLimited);
            return;
        }
        let pause_ms = u64::from(retry_after_ms).clamp(100, 10_000);
        operation.holders[holder].resume_ms = now.mono_ms + pause_ms;
        let cursor = &mut operation.spread.cursors[holder];
        *cursor = start.min(*cursor);
    }

    /// How many ids the batch that begins at `start` has.
    pub(super) fn sent_in_batch(&self, at: u16, holder: usize, start: u32) -> u32 {
        let holders = &self.operations[usize::from(at)].spread.holders;
        let end = batch_end(holders, holder, start as usize);
        (start as usize..end).filter(|i| holders[*i] >> holder & 1 == 1).count() as u32
    }

    pub(super) fn resend_batch(&mut self, now: Now, at: u16, holder: usize, start: u32, out: &mut impl Outbox) {
        self.send_batch(now, at, holder, start as usize, 2, out);
    }

    fn send_batch(&mut self, now: Now, at: u16, holder: usize, start: usize, attempt: u8, out: &mut impl Outbox) {
        let operation = &mut self.operations[usize::from(at)];
        let spread = &operation.spread;
        let Some(provider) = spread.provider else { return };
        let end = batch_end(&spread.holders, holder, start);
        let mut list = [0; ANNOUNCED_IDS_MAX * ANNOUNCED_BYTES];
        let mut count = 0;
        for i in (start..end).filter(|i| spread.holders[*i] >> holder & 1 == 1) {
            let entry = &mut list[count * ANNOUNCED_BYTES..][..ANNOUNCED_BYTES];
            entry[..32].copy_from_slice(spread.ids[i].as_bytes());
            entry[32..].copy_from_slice(&spread.signatures[i]);
            count += 1;
        }
        let target = operation.holders[holder];
        let about = *spread.ids[start].as_bytes();
        let announcement =
            Announcement::over(provider, spread.issued_secs, spread.ttl_secs, &list[..count * ANNOUNCED_BYTES]);
        let message = Message::Announce { token: target.token, announcement };
        let purpose =
            Purpose::Write { at, generation: operation.generation, target: holder as u8, batch: start as u32, attempt };
        self.counters.announces_sent += 1;
        let sent = self.request(now, target.contact, target.id, &about, &message, purpose, out);
        let operation = &mut self.operations[usize::from(at)];
        if sent {
            operation.writes_in_flight += 1;
        } else {
            operation.written.silent += 1;
        }
    }

    /// A region is done. If nobody took it, it is due again soon rather than in half a lifetime.
    pub(super) fn spread_done(&mut self, now: Now, at: u16) {
        let spread = core::mem::take(&mut self.operations[usize::from(at)].spread);
        let own = spread.provider.is_some_and(|provider| provider.key == self.own_key);
        let taken = self.operations[usize::from(at)].holders.iter().any(|holder| holder.acknowledged);
        if own && !taken {
            let again_ms = now.mono_ms + self.rng.jittered_ms(10 * self.config.tick_ms);
            for id in &spread.ids {
                if self.published.contains_key(id) {
                    self.schedule(id, again_ms, false);
                }
            }
        }
    }
}

/// Pauses that a holder is granted beyond what it takes, before it is given up: else one that always asks for another would keep the
/// operation for itself, and such operations would soon be all there are.
const PAUSES_MAX: u8 = 8;

/// Whether there is more to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    Sent,
    /// Not now: the pace or the holders forbid it for a moment.
    Later,
    Done,
}

/// The first id for `holder` from `start` on.
fn next_for(holders: &[u64], holder: usize, start: usize) -> usize {
    (start..holders.len()).find(|i| holders[*i] >> holder & 1 == 1).unwrap_or(holders.len())
}

/// One past the last id of the datagram for `holder` that begins at `start`: as many ids as fit one datagram.
fn batch_end(holders: &[u64], holder: usize, start: usize) -> usize {
    let mut taken = 0;
    for (i, mask) in holders.iter().enumerate().skip(start) {
        if mask >> holder & 1 == 1 {
            if taken == ANNOUNCED_IDS_MAX {
                return i;
            }
            taken += 1;
        }
    }
    holders.len()
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
    use crate::identity::Identity;
    use crate::lookup::LookupConfig;
    use crate::node::alive::Due;
    use crate::node::command::CommandId;
    use crate::node::config::NodeConfig;
    use crate::node::lone_lane::{Sent, T, contact, lane_with};
    use crate::record::{RecordView, immutable_record};
    use crate::store::records::Class;

    /// Something that a lane has to do in the background, the n-th of its kind, due now.
    type Work = fn(&mut LaneNode<Identity>, u8);

    fn value(n: u8) -> (ContentId, Vec<u8>) {
        let record = immutable_record(&[n], 100).unwrap();
        (RecordView::read(&record).unwrap().id(), record)
    }

    fn keep_alive(lane: &mut LaneNode<Identity>, n: u8) {
        let (id, record) = value(n);
        assert!(lane.set_alive(&id, T.mono_ms, &record));
    }

    fn give_on(lane: &mut LaneNode<Identity>, n: u8) {
        let ((id, record), giver) = (value(n), contact(9).key);
        let view = RecordView::read(&record).unwrap();
        lane.records.keep(T, &id, &view, Class::Held, 100, giver, &mut lane.rng).unwrap();
        lane.republish.push_back(Due { id, refusals: 0 });
    }

    /// Ids so far apart that each has a region of its own.
    fn announce(lane: &mut LaneNode<Identity>, n: u8) {
        lane.provide(T, &[ContentId::from_bytes([n * 16; 32])], &mut Sent::default());
    }

    fn spread_for_another(lane: &mut LaneNode<Identity>, n: u8) {
        let (id, stranger) = (ContentId::from_bytes([n; 32]), Identity::from_seed(&[200; 32]));
        let provider = contact(200);
        let signature = sign_provider(&stranger, lane.sealer.network(), &id, &provider.addr, T.unix_secs(), 600);
        let entry = [&id.as_bytes()[..], &signature[..]].concat();
        lane.take_stem(0, &Announcement::over(provider, T.unix_secs(), 600, &entry)).unwrap();
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
                lane.table.answered(T.mono_ms, contact.id(), contact, Some(10));
            }
            for n in 0..16 {
                work(&mut lane, n);
            }
            let mut sent = Sent::default();
            lane.publish_due(T, &mut sent);
            assert_eq!(lane.counters.lookups_started, 6, "{what}");
            let mut command = || lane.begin(T, Task::FindNode, None, [7; 32], Goal::Nodes, Privacy::None, &mut sent);
            let answers: [_; 5] = core::array::from_fn(|_| command());
            assert_eq!(answers, [None, None, None, None, Some(Answer::TooBusy)], "{what}");
        }
    }

    /// A lane that knows everybody, and has something to do in the background.
    fn busy_lane(config: NodeConfig, work: Work) -> LaneNode<Identity> {
        let mut lane = lane_with(NodeConfig { public_addr: Some(Addr::v4([10, 0, 0, 1], 1)), ..config });
        for contact in (100..=255).map(contact) {
            lane.table.answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        for n in 0..16 {
            work(&mut lane, n);
        }
        lane
    }

    fn find(lane: &mut LaneNode<Identity>, command: u64) -> Option<Answer> {
        let command = Some(CommandId(command));
        lane.begin(T, Task::FindNode, command, [7; 32], Goal::Nodes, Privacy::None, &mut Sent::default())
    }

    #[test]
    fn a_lane_of_few_operations_does_all_its_work_and_leaves_half_of_them_for_commands() {
        for (operations_max, at_once) in [(1, 1), (2, 1), (3, 2), (4, 2), (8, 4), (9, 5)] {
            let mut lane = busy_lane(NodeConfig { operations_max, ..NodeConfig::default() }, keep_alive);
            lane.publish_due(T, &mut Sent::default());
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
            ("asked whether it is there", |lane, n| lane.verify(T, contact(n), contact(n).id(), &mut Sent::default())),
        ];
        for (what, work) in works {
            let mut lane = busy_lane(NodeConfig { requests_max: 8, ..NodeConfig::default() }, work);
            lane.publish_due(T, &mut Sent::default());
            assert_eq!(lane.requests.len(), 6, "{what}");
            assert_eq!(find(&mut lane, 1), None);
            assert_eq!(lane.requests.len(), 8, "{what}");
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

    #[test]
    fn batches_cut_a_holders_ids_at_the_size_of_a_datagram() {
        let holders: Vec<u64> = (0..25).map(|i| if i % 2 == 0 { 0b10 } else { 0b01 }).collect();
        assert_eq!(batch_end(&holders, 1, 0), 20, "ids 0, 2, .. 18 are ten");
        assert_eq!(batch_end(&holders, 1, 20), 25);
        assert_eq!(batch_end(&holders, 5, 0), 25, "none for this holder");
    }
}
