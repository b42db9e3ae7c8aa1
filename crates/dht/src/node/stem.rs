//! Announcing through a stem: an id is first handed along a few nodes, one id at a time, and the last one spreads it.
//!
//! Those who hold the announcement do not see where it came from. A stem that is not taken is spread by whoever has it; one
//! that comes around to its provider is handed on again. Its provider offers it to one node after the other, eight at most, before
//! it spreads it itself: a refusal of one would else be enough to have it show whose the announcement is. For the same reason it asks
//! those who have not said yet whether they take stems, as most have not in its first minute, and waits a little for what they say.

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::LaneNode;
use super::ask::{Purpose, TIMEOUT_MS_MAX};
use super::command::Privacy;
use super::operation::Task;
use super::outbox::Outbox;
use super::publish::Spread;
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::lookup::Goal;
use crate::record::{check_provider, sign_provider};
use crate::routing::Peer;
use crate::seal::cookie::NO_COOKIE;
use crate::time::Now;
use crate::wire::message::{ANNOUNCED_BYTES, Announcement, ErrorCode, Message, SignedProvider, capability};

/// Announcements of strangers waiting to be handed on or spread.
pub(super) const STEMS_MAX: usize = 256;

/// Nodes to which an announcement of our own is offered, one after the other. If none of them takes it, a new one is spread from here, and
/// one that came around is left until it is due again. They are drawn from all who take stems: whoever wants to see it spread from here
/// has to be every one of them, which half of all are once in 256 times.
const OWN_OFFERS_MAX: u8 = 8;

/// How long an announcement of ours waits for somebody to turn out to take stems, and how many are asked at a time. It is not put off
/// again before one was taken: else whoever never says what it can do would put off all of them for ever.
const TAKERS_AWAITED_MS: u64 = 15_000;
const ASKED_AT_ONCE: usize = 8;

/// Who did not take an announcement of ours, by the first bytes of their ids, which tell so few apart.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Refusers {
    ids: [u32; OWN_OFFERS_MAX as usize],
    len: u8,
}

impl Refusers {
    fn has(&self, id: &NodeId) -> bool {
        self.ids[..usize::from(self.len)].contains(&brief(id))
    }

    /// With one more. None if nobody else is asked after that one.
    fn with(mut self, id: &NodeId) -> Option<Self> {
        *self.ids.get_mut(usize::from(self.len))? = brief(id);
        self.len += 1;
        (self.len < OWN_OFFERS_MAX).then_some(self)
    }
}

fn brief(id: &NodeId) -> u32 {
    (id.prefix_u64() >> 32) as u32
}

/// Whether an announcement of ours was offered to anybody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offered {
    Sent,
    /// There is somebody, but nothing can be sent now. That is no reason to spread it from here.
    NotNow,
    /// Nobody takes stems who has not refused it.
    ToNobody,
}

/// A stranger's announcement of one id.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stemmed {
    id: ContentId,
    provider: SignedProvider,
    hops_left: u8,
    /// The number under which it was handed on; kept until somebody has taken it.
    handed_on: Option<u32>,
    /// So many did not take it.
    refusals: u8,
}

impl Stemmed {
    /// As whoever has it next gets it.
    fn with_a_hop_less(&self) -> Self {
        Self { hops_left: self.hops_left.saturating_sub(1), ..*self }
    }
}

/// What became of a stem that was handed to somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handed {
    Taken,
    /// Not before we have shown where we are. Its cookie came with that, and it is asked again.
    NotYet,
    Refused,
}

impl Handed {
    /// What an answer means; if it is asked `again`, the cookie it wants is the one it was shown, and would be for ever.
    pub(super) fn of(answer: &Message<'_>, again: bool) -> Self {
        match answer {
            Message::StemTaken => Self::Taken,
            Message::Error { code: ErrorCode::CookieRequired, .. } if !again => Self::NotYet,
            _ => Self::Refused,
        }
    }
}

impl<C: Crypto> LaneNode<C> {
    /// Offers one of our ids to somebody who takes stems and has not refused it.
    pub(super) fn offer_stem(
        &mut self,
        now: Now,
        id: &ContentId,
        refusers: Refusers,
        out: &mut impl Outbox,
    ) -> Offered {
        match self.pick_stem(now, &refusers) {
            Some(to) => self.offer_stem_to(now, id, to, false, refusers, out),
            None => Offered::ToNobody,
        }
    }

    fn offer_stem_to(
        &mut self,
        now: Now,
        id: &ContentId,
        to: Contact,
        again: bool,
        refusers: Refusers,
        out: &mut impl Outbox,
    ) -> Offered {
        let Some(addr) = self.public_addr() else { return Offered::NotNow };
        let (issued_secs, ttl_secs) = (now.unix_secs(), self.config.provide_ttl_secs);
        let signature = sign_provider(self.sealer.crypto(), self.sealer.network(), id, &addr, issued_secs, ttl_secs);
        let provider = Contact { key: self.own_key, addr };
        let provider = SignedProvider { provider, issued_secs, ttl_secs, signature };
        let stemmed = Stemmed { id: *id, provider, hops_left: self.config.stem_hops, handed_on: None, refusals: 0 };
        if !self.hand_on(now, to, &stemmed, Purpose::Stem { id: *id, again, refusers }, out) {
            return Offered::NotNow;
        }
        // An answer, or the silence, says before that when it is due.
        self.schedule(id, now.mono_ms + 2 * TIMEOUT_MS_MAX, true);
        Offered::Sent
    }

    fn hand_on(&mut self, now: Now, to: Contact, stemmed: &Stemmed, purpose: Purpose, out: &mut impl Outbox) -> bool {
        let mut entry = [0; ANNOUNCED_BYTES];
        entry[..32].copy_from_slice(stemmed.id.as_bytes());
        entry[32..].copy_from_slice(&stemmed.provider.signature);
        let SignedProvider { provider, issued_secs, ttl_secs, .. } = stemmed.provider;
        let announcement = Announcement::over(provider, issued_secs, ttl_secs, &entry);
        let message = Message::Stem { hops_left: stemmed.hops_left, announcement };
        let to_id = self.sealer.node_id(&to.key);
        self.request(now, to, to_id, to_id.as_bytes(), &message, purpose, out)
    }

    /// The answer, or the silence, of the first node of a stem.
    pub(super) fn on_stem_answer(
        &mut self,
        now: Now,
        id: &ContentId,
        of: Contact,
        handed: Handed,
        refusers: Refusers,
        out: &mut impl Outbox,
    ) {
        if !self.published.contains_key(id) {
            return;
        }
        let offered = match handed {
            Handed::Taken => {
                self.takers_awaited_ms = None;
                let half_life_ms = u64::from(self.config.provide_ttl_secs) * 500;
                let wait_ms = self.rng.jittered_ms(half_life_ms.max(1000));
                self.schedule(id, now.mono_ms + wait_ms, true);
                return;
            }
            Handed::NotYet => self.offer_stem_to(now, id, of, true, refusers, out),
            Handed::Refused => match refusers.with(&self.sealer.node_id(&of.key)) {
                Some(refusers) => match self.offer_stem(now, id, refusers, out) {
                    Offered::ToNobody if self.awaits_takers(now, out) => {
                        self.schedule(id, now.mono_ms + self.config.tick_ms, true);
                        return;
                    }
                    offered => offered,
                },
                None => Offered::ToNobody,
            },
        };
        if offered != Offered::Sent {
            self.schedule(id, now.mono_ms, offered == Offered::NotNow);
        }
    }

    /// Whether somebody may yet turn out to take stems, if it is worth waiting for: those who have not said what they can do are asked, and
    /// who has just joined has yet to meet most.
    pub(super) fn awaits_takers(&mut self, now: Now, out: &mut impl Outbox) -> bool {
        let has_not_said = |peer: &&Peer| peer.capabilities == 0;
        if self.join.joined && !self.table.iter_live().any(|peer| has_not_said(&peer)) {
            return false;
        }
        if now.mono_ms >= *self.takers_awaited_ms.get_or_insert(now.mono_ms + TAKERS_AWAITED_MS) {
            return false;
        }
        let unasked = self.table.iter_live().filter(has_not_said).filter(|peer| self.in_flight_to(&peer.id) == 0);
        let asked: Vec<_> = unasked.take(ASKED_AT_ONCE).map(|peer| (peer.contact, peer.id)).collect();
        for (contact, id) in asked {
            self.verify(now, contact, id, out);
        }
        true
    }

    /// The answer, or the silence, of the next node of a stranger's stem.
    pub(super) fn on_stem_handed_on(
        &mut self,
        now: Now,
        number: u32,
        of: Contact,
        handed: Handed,
        out: &mut impl Outbox,
    ) {
        let Some(at) = self.stems.iter().position(|stemmed| stemmed.handed_on == Some(number)) else { return };
        let stemmed = self.stems[at];
        if handed == Handed::Taken {
            self.stems.swap_remove_back(at);
            return;
        }
        if handed == Handed::NotYet
            && self.hand_on(now, of, &stemmed.with_a_hop_less(), Purpose::StemOn { number, again: true }, out)
        {
            return;
        }
        self.stems[at] = Stemmed { handed_on: None, hops_left: 0, refusals: stemmed.refusals + 1, ..stemmed };
    }

    /// Somebody who takes stems and has not refused this one; better somebody who knows where we are.
    fn pick_stem(&mut self, now: Now, refusers: &Refusers) -> Option<Contact> {
        let Self { table, sealer, rng, .. } = self;
        let takes = |peer: &&Peer| peer.capabilities & capability::STEMS != 0 && !refusers.has(&peer.id);
        let knows_us = |peer: &&Peer| sealer.cookie_of(now, &peer.contact.key) != NO_COOKIE;
        let knowing = table.iter_live().filter(takes).filter(knows_us).count() as u64;
        if knowing > 0 {
            let pick = rng.below(knowing) as usize;
            return table.iter_live().filter(takes).filter(knows_us).nth(pick).map(|peer| peer.contact);
        }
        let pick = rng.below(table.iter_live().filter(takes).count() as u64) as usize;
        table.iter_live().filter(takes).nth(pick).map(|peer| peer.contact)
    }

    /// Takes a stranger's stem to hand on or spread at the next tick.
    pub(super) fn take_stem(&mut self, hops_left: u8, announcement: &Announcement<'_>) -> Result<(), ErrorCode> {
        // No holder would keep it.
        if !announcement.provider.addr.is_dialable() {
            return Err(ErrorCode::Invalid);
        }
        for (id, signature) in announcement.ids() {
            if self.stems.len() >= STEMS_MAX {
                return Err(ErrorCode::Busy);
            }
            let provider = SignedProvider {
                provider: announcement.provider,
                issued_secs: announcement.issued_secs,
                ttl_secs: announcement.ttl_secs,
                signature: *signature,
            };
            // More hops than anybody needs would only be a way to keep the network busy.
            self.stems.push_back(Stemmed { id, provider, hops_left: hops_left.min(8), handed_on: None, refusals: 0 });
        }
        Ok(())
    }

    pub(super) fn serve_stems(&mut self, now: Now, out: &mut impl Outbox) {
        for _ in 0..self.stems.len() {
            let Some(stemmed) = self.stems.pop_front() else { return };
            if stemmed.handed_on.is_some() {
                self.stems.push_back(stemmed);
                continue;
            }
            let (crypto, network) = (self.sealer.crypto(), self.sealer.network());
            if check_provider(&stemmed.provider, &stemmed.id, crypto, network, now.unix_secs()).is_err() {
                continue;
            }
            // One in four stops being a stem, so that the number of hops left says little about who started it. What was
            // ours to begin with and came back around is not for us to spread.
            let is_own = stemmed.provider.provider.key == self.own_key;
            if is_own && stemmed.refusals == OWN_OFFERS_MAX {
                continue;
            }
            if (is_own || stemmed.hops_left > 0 && self.rng.below(4) > 0)
                && let Some(to) = self.pick_stem(now, &Refusers::default())
            {
                self.stems_handed_on = self.stems_handed_on.wrapping_add(1);
                let number = self.stems_handed_on;
                let purpose = Purpose::StemOn { number, again: false };
                if self.hand_on(now, to, &stemmed.with_a_hop_less(), purpose, out) {
                    self.stems.push_back(Stemmed { handed_on: Some(number), ..stemmed });
                    continue;
                }
            }
            if is_own {
                continue; // It is announced again at half its lifetime.
            }
            if !self.may_work_unasked() {
                self.stems.push_front(stemmed);
                return;
            }
            let Some(at) = self.reserve() else { return };
            let radius = self.radius_of(self.config.lookup.k);
            self.operations[usize::from(at)].spread = Spread::of_one(radius, stemmed.id, &stemmed.provider);
            self.start(now, at, Task::Spread, None, *stemmed.id.as_bytes(), Goal::Nodes, Privacy::None, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::identity::Identity;
    use crate::node::config::NodeConfig;
    use crate::node::log::log_kind;
    use crate::node::lone_lane::{Sent, T, contact, lane, lane_with};
    use alloc::collections::BTreeSet;

    /// Hands a lane so many announcements of strangers, each with so many hops left.
    fn take_stems(lane: &mut LaneNode<Identity>, count: u8, hops_left: u8) {
        let (stranger, ttl_secs) = (Identity::from_seed(&[200; 32]), 600);
        let provider = Contact { key: stranger.public_key(), ..contact(200) };
        for n in 0..count {
            let (id, network) = (ContentId::from_bytes([n; 32]), lane.sealer.network());
            let signature = sign_provider(&stranger, network, &id, &provider.addr, T.unix_secs(), ttl_secs);
            let entry = [&id.as_bytes()[..], &signature[..]].concat();
            let announcement = Announcement::over(provider, T.unix_secs(), ttl_secs, &entry);
            assert_eq!(lane.take_stem(hops_left, &announcement), Ok(()));
        }
    }

    #[test]
    fn what_its_provider_did_not_sign_is_neither_handed_on_nor_spread() {
        for hops_left in [0, 3] {
            let (mut lane, taker) = (lane(), contact(10));
            lane.table.answered(T.mono_ms, taker.id(), taker, Some(10));
            lane.table.get_mut(&taker.id()).unwrap().capabilities = capability::STEMS;
            let announcement = Announcement::over(contact(200), T.unix_secs(), 600, &[7; ANNOUNCED_BYTES]);
            assert_eq!(lane.take_stem(hops_left, &announcement), Ok(()));
            let mut sent = Sent::default();
            lane.serve_stems(T, &mut sent);
            assert_eq!((sent.0.len(), lane.stems.len(), lane.counters.lookups_started), (0, 0, 0));
        }
    }

    #[test]
    fn what_no_holder_would_keep_is_not_taken() {
        let mut lane = lane();
        let provider = Contact { addr: Addr::v4([224, 0, 0, 1], 1), ..contact(200) };
        let announcement = Announcement::over(provider, T.unix_secs(), 600, &[7; ANNOUNCED_BYTES]);
        assert_eq!((lane.take_stem(2, &announcement), lane.stems.len()), (Err(ErrorCode::Invalid), 0));
    }

    #[test]
    fn so_many_stems_wait_and_no_more_are_taken() {
        let mut lane = lane();
        let announcement = Announcement::over(contact(200), T.unix_secs(), 600, &[7; ANNOUNCED_BYTES]);
        assert!((0..STEMS_MAX).all(|_| lane.take_stem(3, &announcement).is_ok()));
        assert_eq!((lane.take_stem(3, &announcement), lane.stems.len()), (Err(ErrorCode::Busy), STEMS_MAX));
    }

    #[test]
    fn no_stem_goes_on_for_more_than_eight_hops_whatever_it_says() {
        for (said, taken) in [(0, 0), (8, 8), (9, 8), (255, 8)] {
            let mut lane = lane();
            take_stems(&mut lane, 1, said);
            assert_eq!(lane.stems[0].hops_left, taken);
        }
    }

    #[test]
    fn what_a_provider_reads_back_from_its_log_goes_by_a_stem_again() {
        for (stem_hops, lookups) in [(2, 0), (0, 1)] {
            let public_addr = Some(Addr::v4([10, 0, 0, 1], 1));
            let mut lane = lane_with(NodeConfig { stem_hops, public_addr, ..NodeConfig::default() });
            let taker = contact(10);
            lane.table.answered(T.mono_ms, taker.id(), taker, Some(10));
            lane.table.get_mut(&taker.id()).unwrap().capabilities = capability::STEMS;
            lane.on_record(T, log_kind::PUBLISHED, &[[7; 32], [0; 32]].concat()[..40]);
            let mut sent = Sent::default();
            lane.publish_due(T.later(core::time::Duration::from_secs(60)), &mut sent);
            assert_eq!((sent.0.len(), sent.0[0].0, lane.counters.lookups_started), (1, taker.addr, lookups));
        }
    }

    #[test]
    fn who_never_says_whether_it_takes_stems_is_waited_for_once_and_not_for_long() {
        let public_addr = Some(Addr::v4([10, 0, 0, 1], 1));
        let mut lane = lane_with(NodeConfig { stem_hops: 2, public_addr, ..NodeConfig::default() });
        lane.join.joined = true;
        for peer in (10..30).map(contact) {
            lane.table.answered(T.mono_ms, peer.id(), peer, Some(10));
        }
        let after = |ms: u64| T.later(core::time::Duration::from_millis(ms));
        let spread = |lane: &mut LaneNode<_>, ms| {
            let mut sent = Sent::default();
            lane.publish_due(after(ms), &mut sent);
            (sent.0.len(), lane.counters.lookups_for_sweeps)
        };
        lane.provide(T, &[ContentId::from_bytes([7; 32])], &mut Sent::default());
        assert_eq!(spread(&mut lane, 0), (ASKED_AT_ONCE, 0), "they are asked");
        assert_eq!(spread(&mut lane, TAKERS_AWAITED_MS - 1).1, 0);
        assert_eq!(spread(&mut lane, TAKERS_AWAITED_MS).1, 1);
        // What comes later is not put off again, unless somebody has taken one meanwhile.
        for (id, waits) in [([77; 32], false), ([177; 32], true)] {
            let id = ContentId::from_bytes(id);
            let before = lane.counters.lookups_for_sweeps;
            lane.provide(T, &[id], &mut Sent::default());
            if waits {
                let (taker, refusers) = (contact(10), Refusers::default());
                lane.on_stem_answer(T, &id, taker, Handed::Taken, refusers, &mut Sent::default());
                lane.schedule(&id, T.mono_ms, true);
            }
            assert_eq!(spread(&mut lane, 20_000).1, before + u64::from(!waits));
        }
    }

    #[test]
    fn where_all_have_said_that_they_take_no_stems_nothing_is_waited_for() {
        let public_addr = Some(Addr::v4([10, 0, 0, 1], 1));
        let mut lane = lane_with(NodeConfig { stem_hops: 2, public_addr, ..NodeConfig::default() });
        lane.join.joined = true;
        for peer in (10..30).map(contact) {
            lane.table.answered(T.mono_ms, peer.id(), peer, Some(10));
            lane.table.get_mut(&peer.id()).unwrap().capabilities = capability::STORES;
        }
        lane.provide(T, &[ContentId::from_bytes([7; 32])], &mut Sent::default());
        lane.publish_due(T, &mut Sent::default());
        assert_eq!(lane.counters.lookups_for_sweeps, 1);
    }

    #[test]
    fn what_came_around_is_not_spread_by_its_provider_though_nobody_takes_it() {
        let (mut lane, own) = (lane(), Identity::from_seed(&[1; 32]));
        assert_eq!(lane.own_key, own.public_key());
        let (id, provider) = (ContentId::from_bytes([7; 32]), Contact { key: lane.own_key, ..contact(1) });
        let signature = sign_provider(&own, lane.sealer.network(), &id, &provider.addr, T.unix_secs(), 600);
        let entry = [&id.as_bytes()[..], &signature[..]].concat();
        let peer = contact(10);
        lane.table.answered(T.mono_ms, peer.id(), peer, Some(10));
        lane.take_stem(2, &Announcement::over(provider, T.unix_secs(), 600, &entry)).unwrap();
        let mut sent = Sent::default();
        lane.serve_stems(T, &mut sent);
        assert_eq!((sent.0.len(), lane.stems.len(), lane.counters.lookups_started), (0, 0, 0));
    }

    #[test]
    fn one_stem_in_four_is_spread_though_it_has_hops_left() {
        let (mut lane, taker) = (lane(), contact(10));
        lane.table.answered(T.mono_ms, taker.id(), taker, Some(10));
        lane.table.get_mut(&taker.id()).unwrap().capabilities = capability::STEMS;
        take_stems(&mut lane, 100, 3);
        lane.serve_stems(T, &mut Sent::default());
        let (handed_on, spread) = (lane.stems.len(), lane.counters.lookups_started as usize);
        assert_eq!(handed_on + spread, 100);
        assert!((10..=45).contains(&spread), "{spread} of a hundred");
    }

    #[test]
    fn a_stem_goes_to_who_knows_where_we_are_and_without_one_to_any_that_takes_stems() {
        let mut lane = lane();
        let all: Vec<Contact> = (10..30).map(contact).collect();
        let (takers, others) = all.split_at(15);
        for peer in &all {
            lane.table.answered(T.mono_ms, peer.id(), *peer, Some(10));
        }
        for peer in takers {
            lane.table.get_mut(&peer.id()).unwrap().capabilities = capability::STEMS;
        }
        let picked = |lane: &mut LaneNode<_>| {
            (0..200).map(|_| lane.pick_stem(T, &Refusers::default()).unwrap().addr).collect::<BTreeSet<_>>()
        };
        assert_eq!(picked(&mut lane), takers.iter().map(|peer| peer.addr).collect());
        let knowing = &takers[5..8];
        for peer in knowing.iter().chain(others) {
            lane.verify(T, *peer, peer.id(), &mut Sent::default());
            lane.sealer.keep_cookie(T, &peer.key, [7; 8]);
        }
        assert_eq!(picked(&mut lane), knowing.iter().map(|peer| peer.addr).collect());
    }
}
