//! Announcing through a stem: an id is first handed along a few nodes, one id at a time, and the last one spreads it.
//!
//! The nodes that hold the announcement do not see where it came from. A stem that is not taken is spread by the node that has it; a stem
//! that comes around to its provider is handed on again. Its provider offers it to one node after the other, eight at most, before
//! it spreads it itself: else one refusal would be enough to make it show that the announcement is its own. For the same reason it asks
//! peers that have not said yet whether they take stems, as most have not in its first minute, and waits a little for their answers.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use crate::contact::Contact;
use crate::node::context::Context;
use crate::node::operations::Announcing;
use crate::node::peers::{Peers, Question};
use crate::node::requests::Purpose;
use crate::node::reserve_queue;
use crate::record::check_provider;
use crate::retry::may_repeat;
use crate::wire::message::{ANNOUNCED_BYTES, Announcement, ErrorCode, Message, SignedProvider, capability};

/// Announcements of other nodes waiting to be handed on or spread.
pub(crate) const STEMS_MAX: usize = 256;

/// Nodes to which an announcement of our own is offered, one after the other. If none of them takes it, a new one is spread from here, and
/// one that came around is left until it is due again. They are drawn from all that take stems: an attacker that wants to see it spread from
/// here has to be every one of them, which half of all are once in 256 times.
const OWN_OFFERS_MAX: u8 = 8;

/// How long an announcement of ours waits for a node that takes stems, and how many are asked at a time. It is not put off
/// again before one was taken: else a node that never announces its capabilities would put off all of them for ever.
const TAKERS_AWAITED_MS: u64 = 15_000;
const ASKED_AT_ONCE: usize = 8;

/// More hops than a stem needs would only be a way to keep the network busy.
const HOPS_MAX: u8 = 8;

/// Nodes that did not take an announcement of ours, by the first bytes of their ids, which tell so few apart.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Refusers {
    ids: [u32; OWN_OFFERS_MAX as usize],
    len: u8,
}

impl Refusers {
    fn has(&self, id: &NodeId) -> bool {
        self.ids[..usize::from(self.len)].contains(&brief(id))
    }

    /// With one more. None if no other node is asked after that one.
    pub(super) fn with(mut self, id: &NodeId) -> Option<Self> {
        *self.ids.get_mut(usize::from(self.len))? = brief(id);
        self.len += 1;
        (self.len < OWN_OFFERS_MAX).then_some(self)
    }
}

fn brief(id: &NodeId) -> u32 {
    (id.prefix_u64() >> 32) as u32
}

/// Another node's announcement of one id.
#[derive(Debug, Clone, Copy)]
struct Stemmed {
    id: ContentId,
    provider: SignedProvider,
    hops_left: u8,
    /// The number under which it was handed on; kept until a node has taken it.
    handed_on: Option<u32>,
    /// So many did not take it.
    refusals: u8,
}

/// The fate of a stem that was handed to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handed {
    Taken,
    /// Not before we have shown where we are. Its cookie came with that, and it is asked again.
    NotYet,
    Refused,
}

impl Handed {
    /// The fate shown by an answer, or silence, after so many attempts with the same node.
    pub(crate) fn of(answer: Option<&Message<'_>>, attempt: u8) -> Self {
        match answer {
            Some(Message::StemTaken) => Self::Taken,
            Some(Message::Error { code: ErrorCode::CookieRequired, .. }) if may_repeat(attempt) => Self::NotYet,
            _ => Self::Refused,
        }
    }
}

/// What to do with the next stem.
#[derive(Debug)]
pub(crate) enum NextStem {
    /// It was dealt with.
    Done,
    /// It is to be spread from here.
    Spread(ContentId, Box<Announcing>),
    /// It is to be spread from here, and waits until another operation may begin.
    Waits,
}

/// Stems that this lane hands on.
#[derive(Debug, Default)]
pub(crate) struct Stems {
    queue: VecDeque<Stemmed>,
    handed_on: u32,
    /// Until when announcements of ours wait for a node that takes stems.
    takers_awaited_ms: Option<u64>,
}

impl Stems {
    pub(super) fn reserve_all(&mut self) {
        reserve_queue(&mut self.queue, STEMS_MAX);
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// A stem of ours was taken.
    pub(super) fn taken(&mut self) {
        self.takers_awaited_ms = None;
    }

    /// Whether a node may yet turn out to take stems, if it is worth waiting for: those that have not announced their capabilities are asked,
    /// and a node that has just joined has yet to meet most.
    pub(super) fn awaits_takers(&mut self, cx: &mut Context<'_>, peers: &mut Peers) -> bool {
        let members = peers.members();
        if members.has_joined() && !members.table().iter_live().any(|peer| peer.capabilities == 0) {
            return false;
        }
        if cx.now.mono_ms >= *self.takers_awaited_ms.get_or_insert(cx.now.mono_ms + TAKERS_AWAITED_MS) {
            return false;
        }
        peers.verify_unknown(cx, ASKED_AT_ONCE);
        true
    }

    /// Takes another node's stem to hand on or spread at the next tick.
    pub(crate) fn take(&mut self, hops_left: u8, announcement: &Announcement<'_>) -> Result<(), ErrorCode> {
        // No holder would keep it.
        if !announcement.provider.addr.is_dialable() {
            return Err(ErrorCode::Invalid);
        }
        for (id, provider) in announcement.providers() {
            if self.queue.len() >= STEMS_MAX {
                return Err(ErrorCode::Busy);
            }
            let hops_left = hops_left.min(HOPS_MAX);
            self.queue.push_back(Stemmed { id, provider, hops_left, handed_on: None, refusals: 0 });
        }
        Ok(())
    }

    /// The answer, or the silence, of the next node of another node's stem.
    pub(crate) fn on_answer(
        &mut self,
        cx: &mut Context<'_>,
        peers: &mut Peers,
        (number, attempt): (u32, u8),
        of: Contact,
        answer: Option<&Message<'_>>,
    ) {
        let Some(at) = self.queue.iter().position(|stemmed| stemmed.handed_on == Some(number)) else { return };
        let stemmed = self.queue[at];
        let handed = Handed::of(answer, attempt);
        if handed == Handed::Taken {
            self.queue.swap_remove_back(at);
            return;
        }
        if handed == Handed::NotYet && hand_on(cx, peers, of, &stemmed, number, attempt + 1) {
            return;
        }
        self.queue[at] = Stemmed { handed_on: None, hops_left: 0, refusals: stemmed.refusals + 1, ..stemmed };
    }

    /// Deals with the next stem of the queue; `may_begin` says whether another operation could begin.
    pub(crate) fn next(&mut self, cx: &mut Context<'_>, peers: &mut Peers, may_begin: bool) -> NextStem {
        let Some(stemmed) = self.queue.pop_front() else { return NextStem::Done };
        if stemmed.handed_on.is_some() {
            self.queue.push_back(stemmed);
            return NextStem::Done;
        }
        let Stemmed { id, provider, .. } = stemmed;
        let (crypto, network) = (peers.sealer().crypto(), peers.sealer().network());
        if check_provider(&provider, &id, crypto, network, cx.now.unix_secs()).is_err() {
            return NextStem::Done;
        }
        // One in four stops being a stem, so that the number of hops left says little about its origin. Our own
        // announcement that came back around is not for us to spread.
        let is_own = provider.provider.key == cx.place.own_key;
        if is_own && stemmed.refusals == OWN_OFFERS_MAX {
            return NextStem::Done;
        }
        if (is_own || stemmed.hops_left > 0 && cx.rng.below(4) > 0)
            && let Some(to) = pick_taker(cx, peers, &Refusers::default())
        {
            self.handed_on = self.handed_on.wrapping_add(1);
            let number = self.handed_on;
            if hand_on(cx, peers, to, &stemmed, number, 1) {
                self.queue.push_back(Stemmed { handed_on: Some(number), ..stemmed });
                return NextStem::Done;
            }
        }
        if is_own {
            return NextStem::Done; // It is announced again at half its lifetime.
        }
        if !may_begin {
            self.queue.push_front(stemmed);
            return NextStem::Waits;
        }
        let radius = peers.members().radius_of(cx, cx.place.config.lookup.k);
        let announcing = Announcing::new(radius, vec![id], vec![provider.signature], &provider);
        NextStem::Spread(id, Box::new(announcing))
    }
}

/// Hands another node's stem on, with a hop less.
fn hand_on(cx: &mut Context<'_>, peers: &mut Peers, to: Contact, stemmed: &Stemmed, number: u32, attempt: u8) -> bool {
    let hops_left = stemmed.hops_left.saturating_sub(1);
    hand_to(cx, peers, to, (&stemmed.id, &stemmed.provider, hops_left), Purpose::StemOn { number, attempt })
}

/// Hands a stem to a node.
pub(super) fn hand_to(
    cx: &mut Context<'_>,
    peers: &mut Peers,
    to: Contact,
    (id, provider, hops_left): (&ContentId, &SignedProvider, u8),
    purpose: Purpose,
) -> bool {
    let mut entry = [0; ANNOUNCED_BYTES];
    entry[..32].copy_from_slice(id.as_bytes());
    entry[32..].copy_from_slice(&provider.signature);
    let SignedProvider { provider, issued_secs, ttl_secs, .. } = *provider;
    let announcement = Announcement::over(provider, issued_secs, ttl_secs, &entry);
    let to_id = peers.node_id(&to.key);
    peers.ask(cx, Question::to(to, &to_id, Message::Stem { hops_left, announcement }, purpose)).is_some()
}

/// A node that takes stems and has not refused this one; better one to which our address is proven.
pub(super) fn pick_taker(cx: &mut Context<'_>, peers: &Peers, refusers: &Refusers) -> Option<Contact> {
    peers.pick(cx, |peer| peer.capabilities & capability::STEMS != 0 && !refusers.has(&peer.id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::identity::{Crypto as _, Identity};
    use crate::node::LaneNode;
    use crate::node::config::NodeConfig;
    use crate::node::log::log_kind;
    use crate::node::lone_lane::{Sent, T, contact, lane, lane_with};
    use crate::record::sign_provider;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    /// Hands a lane so many announcements of strangers, each with so many hops left.
    fn take_stems(lane: &mut LaneNode, count: u8, hops_left: u8) {
        let (stranger, ttl_secs) = (Identity::from_seed(&[200; 32]), 600);
        let provider = Contact { key: stranger.public_key(), ..contact(200) };
        for n in 0..count {
            let (id, network) = (ContentId::from_bytes([n; 32]), lane.network());
            let signature = sign_provider(&stranger, network, &id, &provider.addr, T.unix_secs(), ttl_secs);
            let entry = [&id.as_bytes()[..], &signature[..]].concat();
            let announcement = Announcement::over(provider, T.unix_secs(), ttl_secs, &entry);
            assert_eq!(lane.router.republishing.stems_mut().take(hops_left, &announcement), Ok(()));
        }
    }

    #[test]
    fn an_announcement_without_its_providers_signature_is_neither_handed_on_nor_spread() {
        for hops_left in [0, 3] {
            let (mut lane, taker) = (lane(), contact(10));
            lane.table_mut().answered(T.mono_ms, taker.id(), taker, Some(10));
            lane.table_mut().get_mut(&taker.id()).unwrap().capabilities = capability::STEMS;
            let announcement = Announcement::over(contact(200), T.unix_secs(), 600, &[7; ANNOUNCED_BYTES]);
            assert_eq!(lane.router.republishing.stems_mut().take(hops_left, &announcement), Ok(()));
            let mut sent = Sent::default();
            lane.with(T, &mut sent, |lane, cx| lane.serve_stems(cx));
            assert_eq!(
                (sent.0.len(), lane.router.republishing.stems().queue.len(), lane.counters.lookups_started),
                (0, 0, 0)
            );
        }
    }

    #[test]
    fn an_announcement_that_no_holder_would_keep_is_not_taken() {
        let mut lane = lane();
        let provider = Contact { addr: Addr::v4([224, 0, 0, 1], 1), ..contact(200) };
        let announcement = Announcement::over(provider, T.unix_secs(), 600, &[7; ANNOUNCED_BYTES]);
        assert_eq!(
            (lane.router.republishing.stems_mut().take(2, &announcement), lane.router.republishing.stems().queue.len()),
            (Err(ErrorCode::Invalid), 0)
        );
    }

    #[test]
    fn so_many_stems_wait_and_no_more_are_taken() {
        let mut lane = lane();
        let announcement = Announcement::over(contact(200), T.unix_secs(), 600, &[7; ANNOUNCED_BYTES]);
        assert!((0..STEMS_MAX).all(|_| lane.router.republishing.stems_mut().take(3, &announcement).is_ok()));
        assert_eq!(
            (lane.router.republishing.stems_mut().take(3, &announcement), lane.router.republishing.stems().queue.len()),
            (Err(ErrorCode::Busy), STEMS_MAX)
        );
    }

    #[test]
    fn no_stem_goes_on_for_more_than_eight_hops_whatever_it_says() {
        for (said, taken) in [(0, 0), (8, 8), (9, 8), (255, 8)] {
            let mut lane = lane();
            take_stems(&mut lane, 1, said);
            assert_eq!(lane.router.republishing.stems().queue[0].hops_left, taken);
        }
    }

    #[test]
    fn an_announcement_read_back_from_its_providers_log_goes_by_a_stem_again() {
        for (stem_hops, lookups) in [(2, 0), (0, 1)] {
            let public_addr = Some(Addr::v4([10, 0, 0, 1], 1));
            let mut lane = lane_with(NodeConfig { stem_hops, public_addr, ..NodeConfig::default() });
            let taker = contact(10);
            lane.table_mut().answered(T.mono_ms, taker.id(), taker, Some(10));
            lane.table_mut().get_mut(&taker.id()).unwrap().capabilities = capability::STEMS;
            lane.on_record(T, log_kind::PUBLISHED, &[[7; 32], [0; 32]].concat()[..40]);
            let mut sent = Sent::default();
            lane.with(T.later(core::time::Duration::from_secs(60)), &mut sent, |lane, cx| lane.publish_due(cx));
            assert_eq!((sent.0.len(), sent.0[0].0, lane.counters.lookups_started), (1, taker.addr, lookups));
        }
    }

    #[test]
    fn a_peer_that_never_says_whether_it_takes_stems_is_waited_for_once_and_not_for_long() {
        let public_addr = Some(Addr::v4([10, 0, 0, 1], 1));
        let mut lane = lane_with(NodeConfig { stem_hops: 2, public_addr, ..NodeConfig::default() });
        lane.router.peers.members_mut().set_joined();
        for peer in (10..30).map(contact) {
            lane.table_mut().answered(T.mono_ms, peer.id(), peer, Some(10));
        }
        let after = |ms: u64| T.later(core::time::Duration::from_millis(ms));
        let spread = |lane: &mut LaneNode, ms| {
            let mut sent = Sent::default();
            lane.with(after(ms), &mut sent, |lane, cx| lane.publish_due(cx));
            (sent.0.len(), lane.counters.lookups_for_sweeps)
        };
        lane.act(T, |lane, cx| {
            lane.republishing.provide(cx, lane.server.ledger_mut(), &[ContentId::from_bytes([7; 32])])
        });
        assert_eq!(spread(&mut lane, 0), (ASKED_AT_ONCE, 0), "they are asked");
        assert_eq!(spread(&mut lane, TAKERS_AWAITED_MS - 1).1, 0);
        assert_eq!(spread(&mut lane, TAKERS_AWAITED_MS).1, 1);
        // A later announcement is not put off again, unless a node has taken one meanwhile.
        for (id, waits) in [([77; 32], false), ([177; 32], true)] {
            let id = ContentId::from_bytes(id);
            let before = lane.counters.lookups_for_sweeps;
            lane.act(T, |lane, cx| lane.republishing.provide(cx, lane.server.ledger_mut(), &[id]));
            if waits {
                let (taker, refusers) = (contact(10), Refusers::default());
                lane.act(T, |lane, cx| {
                    let purpose = Purpose::Stem { id, attempt: 1, refusers };
                    lane.republishing.on_stem_answer(cx, &mut lane.peers, &purpose, taker, Some(&Message::StemTaken));
                });
                lane.router.republishing.schedule(&id, T.mono_ms, true);
            }
            assert_eq!(spread(&mut lane, 20_000).1, before + u64::from(!waits));
        }
    }

    #[test]
    fn where_all_have_said_that_they_take_no_stems_nothing_is_waited_for() {
        let public_addr = Some(Addr::v4([10, 0, 0, 1], 1));
        let mut lane = lane_with(NodeConfig { stem_hops: 2, public_addr, ..NodeConfig::default() });
        lane.router.peers.members_mut().set_joined();
        for peer in (10..30).map(contact) {
            lane.table_mut().answered(T.mono_ms, peer.id(), peer, Some(10));
            lane.table_mut().get_mut(&peer.id()).unwrap().capabilities = capability::STORES;
        }
        lane.act(T, |lane, cx| {
            lane.republishing.provide(cx, lane.server.ledger_mut(), &[ContentId::from_bytes([7; 32])])
        });
        lane.act(T, |lane, cx| lane.publish_due(cx));
        assert_eq!(lane.counters.lookups_for_sweeps, 1);
    }

    #[test]
    fn an_announcement_that_came_around_is_not_spread_by_its_provider_though_no_node_takes_it() {
        let (mut lane, own) = (lane(), Identity::from_seed(&[1; 32]));
        assert_eq!(lane.place.own_key, own.public_key());
        let (id, provider) = (ContentId::from_bytes([7; 32]), Contact { key: lane.place.own_key, ..contact(1) });
        let signature = sign_provider(&own, lane.network(), &id, &provider.addr, T.unix_secs(), 600);
        let entry = [&id.as_bytes()[..], &signature[..]].concat();
        let peer = contact(10);
        lane.table_mut().answered(T.mono_ms, peer.id(), peer, Some(10));
        lane.router
            .republishing
            .stems_mut()
            .take(2, &Announcement::over(provider, T.unix_secs(), 600, &entry))
            .unwrap();
        let mut sent = Sent::default();
        lane.with(T, &mut sent, |lane, cx| lane.serve_stems(cx));
        assert_eq!(
            (sent.0.len(), lane.router.republishing.stems().queue.len(), lane.counters.lookups_started),
            (0, 0, 0)
        );
    }

    #[test]
    fn one_stem_in_four_is_spread_though_it_has_hops_left() {
        let (mut lane, taker) = (lane(), contact(10));
        lane.table_mut().answered(T.mono_ms, taker.id(), taker, Some(10));
        lane.table_mut().get_mut(&taker.id()).unwrap().capabilities = capability::STEMS;
        take_stems(&mut lane, 100, 3);
        lane.act(T, |lane, cx| lane.serve_stems(cx));
        let (handed_on, spread) =
            (lane.router.republishing.stems().queue.len(), lane.counters.lookups_started as usize);
        assert_eq!(handed_on + spread, 100);
        assert!((10..=45).contains(&spread), "{spread} of a hundred");
    }

    #[test]
    fn a_stem_goes_to_a_node_that_knows_our_address_or_else_to_any_that_takes_stems() {
        let mut lane = lane();
        let all: Vec<Contact> = (10..30).map(contact).collect();
        let (takers, others) = all.split_at(15);
        for peer in &all {
            lane.table_mut().answered(T.mono_ms, peer.id(), *peer, Some(10));
        }
        for peer in takers {
            lane.table_mut().get_mut(&peer.id()).unwrap().capabilities = capability::STEMS;
        }
        let picked = |lane: &mut LaneNode| {
            (0..200)
                .map(|_| lane.act(T, |lane, cx| pick_taker(cx, &lane.peers, &Refusers::default())).unwrap().addr)
                .collect::<BTreeSet<_>>()
        };
        assert_eq!(picked(&mut lane), takers.iter().map(|peer| peer.addr).collect());
        let knowing = &takers[5..8];
        for peer in knowing.iter().chain(others) {
            lane.act(T, |lane, cx| lane.peers.verify(cx, *peer, peer.id()));
            lane.keep_cookie(&peer.key, [7; 8]);
        }
        assert_eq!(picked(&mut lane), knowing.iter().map(|peer| peer.addr).collect());
    }
}
