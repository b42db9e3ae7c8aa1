//! Contacts that fell silent. The silence may have been the network's: a partition must be able to heal, and a node that forgets all contacts on
//! the other side never hears of them again.
//!
//! All lanes of a node remember the contacts that one of them lost: each has lookups that may ask them, and records to give on when they
//! come back. Only the lane that looks after a contact tries it again. Lanes hear of each other's losses by messages that may be lost, come
//! late or twice.

use alloc::collections::VecDeque;

use tessera_contracts::point::{NodeId, Point as _};

use crate::addr::AddrPrefix;
use crate::contact::Contact;
use crate::node::context::{Context, Place};
use crate::node::reserve_queue;
use crate::retry::{LOOK, LOST, LOST_TRIES_MAX};
use crate::routing::RoutingTable;
use crate::time::Now;

/// Contacts that fell silent and are tried again.
pub(crate) const LOST_MAX: usize = 256;

/// So many of our neighbours are tried for ever: a split may last for days, and it takes few to find all the others again.
const LOST_KEPT: usize = 16;

/// If a quarter of the table comes back within this time, a split has healed.
const HEALING_MS: u64 = 60_000;

/// Then held records are given on, and not twice within this time.
const REGIVEN_AGAIN_MS: u64 = 10 * 60 * 1000;

/// After so many tries a contact has been lost for about ten minutes.
const LOST_LATELY_TRIES: u8 = 5;

/// So many lost contacts that come back mean that it was the network that was silent: look around again, and try the other lost at once.
/// The latter not twice within this time: contacts that come and go on purpose would have us ask absent ones without end.
const REGAINED_TO_REJOIN: usize = 3;
const HURRIED_AGAIN_MS: u64 = 10 * 60 * 1000;

/// After a quiet time the first look around is made at once: a split that heals is noticed promptly.
const LOOK_QUIET_MS: u64 = 2 * LOOK.max_ms;

/// Contacts that keep the pause between looks long by coming and going must not hide a split that heals meanwhile: those that come back for
/// the first time in a quiet time are news, and as many of them have us look after this pause, however long the other is. So many are
/// remembered; with more contacts than that to spare, an attacker has us look once in this pause.
const NEWS_PAUSE_MS: u64 = 2 * 60 * 1000;
const BACK_LATELY_MAX: usize = 128;

/// A contact that lost its place by silence.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lost {
    pub(crate) contact: Contact,
    pub(crate) id: NodeId,
    next_ms: u64,
    tries: u8,
}

impl Lost {
    /// Whether it fell silent in the last minutes.
    pub(crate) fn is_fresh(&self) -> bool {
        self.tries <= LOST_LATELY_TRIES
    }
}

/// The consequences of lost contacts that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Returned {
    /// A split has healed: records that were stored on one side of it are to be given to their holders of now.
    pub(crate) is_healed: bool,
    /// Enough came back to look for our neighbours again.
    pub(crate) look_around: bool,
    /// A contact that came back and found its place taken. Lookups begin with members only, so it would not be asked for its contacts.
    pub(crate) ask_first: Option<Contact>,
}

/// Contacts that fell silent, and conclusions from their return.
#[derive(Debug, Default)]
pub(crate) struct LostContacts {
    contacts: VecDeque<Lost>,
    healing: Healing,
}

impl LostContacts {
    pub(crate) fn reserve_all(&mut self) {
        reserve_queue(&mut self.contacts, LOST_MAX);
        self.healing.reserve_all();
    }

    pub(crate) fn len(&self) -> usize {
        self.contacts.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lost> {
        self.contacts.iter()
    }

    pub(crate) fn contains(&self, id: &NodeId) -> bool {
        self.contacts.iter().any(|lost| lost.id == *id)
    }

    /// The `turn`-th contact, around and around. There must be one.
    pub(crate) fn in_turn(&self, turn: usize) -> Contact {
        self.contacts[turn % self.contacts.len()].contact
    }

    /// Remembers a contact that lost its place, if there is room for it.
    pub(crate) fn remember(&mut self, cx: &Context<'_>, contact: Contact, id: NodeId) {
        let known = self.contacts.iter().position(|lost| lost.id == id).and_then(|at| self.contacts.remove(at));
        if self.makes_room(cx.place, contact.addr.prefix()) {
            let new = Lost { contact, id, next_ms: cx.now.mono_ms + LOST.min_ms, tries: 0 };
            self.contacts.push_back(known.map_or(new, |known| Lost { contact, ..known }));
        }
    }

    /// Makes room for a contact. If there are too many, the one that was tried most often is forgotten; of several, the farthest. No
    /// address prefix has more places than it has in the table: one of those that are there already makes room for the next. Those that are
    /// tried for ever stay: else an attacker that makes us meet and lose many would have us forget them.
    fn makes_room(&mut self, place: &Place, prefix: AddrPrefix) -> bool {
        let is_near = |lost: &Lost| !prefix.is_private() && lost.contact.addr.prefix() == prefix;
        let near = self.contacts.iter().filter(|lost| is_near(lost)).count();
        let has_its_share = near >= place.config.table.per_prefix_in_table;
        if !has_its_share && self.contacts.len() < LOST_MAX {
            return true;
        }
        let may_go = |lost: &Lost| {
            (!has_its_share || is_near(lost)) && (lost.tries < LOST_TRIES_MAX || !self.is_kept(place, lost))
        };
        let all = self.contacts.iter().enumerate().filter(|(_, lost)| may_go(lost));
        let least = all.max_by_key(|(_, lost)| (lost.tries, place.own.distance_to(&lost.id))).map(|(at, _)| at);
        least.and_then(|at| self.contacts.remove(at)).is_some()
    }

    /// Takes out the contacts that are in the table again. `may_look` says whether a look around could begin now.
    pub(crate) fn take_returned(&mut self, cx: &Context<'_>, table: &RoutingTable, may_look: bool) -> Returned {
        let Self { contacts, healing } = self;
        let (before, mut returned) = (contacts.len(), Returned::default());
        contacts.retain(|lost| {
            let back = table.get(&lost.id);
            if back.is_some() {
                healing.regain(cx.now, &lost.id);
            }
            if back.is_some_and(|peer| !peer.is_live()) {
                returned.ask_first = Some(lost.contact);
            }
            back.is_none()
        });
        returned.is_healed = healing.is_done(cx.now, before - contacts.len(), table.live_len());
        returned.look_around = may_look && healing.may_look(cx.now);
        // It was the network that was silent: the others will be back as well. Our neighbours first: others will ask us for them.
        if returned.look_around && healing.may_hurry(cx.now) {
            contacts.make_contiguous().sort_unstable_by_key(|lost| cx.place.own.distance_to(&lost.id));
            for lost in contacts.iter_mut() {
                lost.next_ms = lost.next_ms.min(cx.now.mono_ms);
            }
        }
        returned
    }

    /// Looks at the next contact: returns it if it is due, `may_try`, and this lane looks after it.
    pub(crate) fn next_due(&mut self, cx: &mut Context<'_>, may_try: bool) -> Option<(Contact, NodeId)> {
        let mut lost = self.contacts.pop_front()?;
        if lost.next_ms > cx.now.mono_ms || !may_try {
            self.contacts.push_back(lost);
            return None;
        }
        lost.tries = (lost.tries + 1).min(LOST_TRIES_MAX);
        if lost.tries < LOST_TRIES_MAX || self.is_kept(cx.place, &lost) {
            lost.next_ms = cx.now.mono_ms + cx.rng.jittered_ms(LOST.after_tries(lost.tries));
            self.contacts.push_back(lost);
        }
        cx.place.looks_after(&lost.id).then_some((lost.contact, lost.id))
    }

    /// Whether a contact is tried for ever: it is one of the nearest of those that have been tried in vain.
    fn is_kept(&self, place: &Place, lost: &Lost) -> bool {
        let distance = place.own.distance_to(&lost.id);
        let in_vain = self.contacts.iter().filter(|other| other.tries == LOST_TRIES_MAX);
        in_vain.filter(|other| place.own.distance_to(&other.id) < distance).count() < LOST_KEPT
    }
}

/// Lost contacts that came back.
#[derive(Debug, Default)]
struct Healing {
    /// So many since the last look around, and of those so many that had not come back shortly before.
    regained: usize,
    news: usize,
    /// Contacts that came back lately and when, the newest in front, by the first bytes of their ids.
    back_lately: VecDeque<(u64, u64)>,
    /// So many since then.
    came_back: usize,
    since_ms: u64,
    /// When records were last given on because of it.
    regiven_ms: Option<u64>,
    /// When all lost contacts were last tried because of it.
    hurried_ms: Option<u64>,
    /// When we last looked around because of it, and the pause after that.
    looked_ms: Option<u64>,
    look_pause_ms: u64,
}

impl Healing {
    fn reserve_all(&mut self) {
        reserve_queue(&mut self.back_lately, BACK_LATELY_MAX);
    }

    /// Counts contacts that came back, and says whether they are so much of the table that a split must have healed. Once for a split.
    fn is_done(&mut self, now: Now, came_back: usize, live: usize) -> bool {
        if now.mono_ms.saturating_sub(self.since_ms) >= HEALING_MS {
            (self.came_back, self.since_ms) = (0, now.mono_ms);
        }
        self.came_back += came_back;
        let is_much = self.came_back >= REGAINED_TO_REJOIN && self.came_back * 4 >= live;
        let is_first = self.regiven_ms.is_none_or(|at_ms| now.mono_ms.saturating_sub(at_ms) >= REGIVEN_AGAIN_MS);
        if is_much && is_first {
            self.regiven_ms = Some(now.mono_ms);
        }
        is_much && is_first
    }

    /// Whether all lost contacts may be tried at once, as they may now and then.
    fn may_hurry(&mut self, now: Now) -> bool {
        let may = self.hurried_ms.is_none_or(|at_ms| now.mono_ms.saturating_sub(at_ms) >= HURRIED_AGAIN_MS);
        if may {
            self.hurried_ms = Some(now.mono_ms);
        }
        may
    }

    /// Notes a contact that came back.
    fn regain(&mut self, now: Now, id: &NodeId) {
        let is_over = |(_, at_ms): &mut (u64, u64)| now.mono_ms.saturating_sub(*at_ms) >= LOOK_QUIET_MS;
        while self.back_lately.pop_back_if(is_over).is_some() {}
        let known = self.back_lately.iter().position(|(known, _)| *known == id.prefix_u64());
        let is_news = known.and_then(|at| self.back_lately.remove(at)).is_none();
        self.back_lately.truncate(BACK_LATELY_MAX - 1);
        self.back_lately.push_front((id.prefix_u64(), now.mono_ms));
        self.regained += 1;
        self.news += usize::from(is_news);
    }

    /// Whether enough came back to look around and we may, as we may ever more seldom if others come and go all the time.
    fn may_look(&mut self, now: Now) -> bool {
        let since_ms = self.looked_ms.map_or(u64::MAX, |at_ms| now.mono_ms.saturating_sub(at_ms));
        let pause_ms = if self.news >= REGAINED_TO_REJOIN { NEWS_PAUSE_MS } else { u64::MAX };
        if self.regained < REGAINED_TO_REJOIN || since_ms < self.look_pause_ms.min(pause_ms) {
            return false;
        }
        (self.regained, self.news) = (0, 0);
        self.look_pause_ms = LOOK.after_pause(if since_ms < LOOK_QUIET_MS { self.look_pause_ms } else { 0 });
        self.looked_ms = Some(now.mono_ms);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Addr;
    use crate::identity::{Crypto as _, Identity};
    use crate::node::LaneNode;
    use crate::node::lone_lane::{Sent, T, contact, lane, lane_among};
    use crate::node::membership::JUST_ANSWERED_MS;
    use crate::node::outbox::message_kind;
    use crate::node::peers::LOST_PER_TICK;
    use alloc::collections::BTreeSet;
    use alloc::vec;
    use alloc::vec::Vec;
    use tessera_contracts::prefix_map::{PrefixMap, STRIPED_BITS_DEFAULT, Selector};

    fn after(ms: u64) -> Now {
        Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
    }

    #[test]
    fn a_quarter_of_the_table_back_within_a_minute_is_a_split_that_healed_and_counts_once_in_ten_minutes() {
        let mut healing = Healing::default();
        assert!(!healing.is_done(after(0), 2, 4), "two of four are still few");
        assert!(!healing.is_done(after(1000), 1, 13), "three of thirteen are less than a quarter");
        assert!(!healing.is_done(after(61_000), 1, 13), "and those of a minute ago no longer count");
        assert!(healing.is_done(after(62_000), 3, 13));
        assert!(!healing.is_done(after(63_000), 13, 13), "the same split");
        assert!(!healing.is_done(after(62_000 + REGIVEN_AGAIN_MS - 1), 13, 13));
        assert!(healing.is_done(after(62_000 + REGIVEN_AGAIN_MS), 13, 13));
    }

    #[test]
    fn pauses_between_looks_around_grow_to_ten_minutes_and_start_over_after_twenty_quiet_ones() {
        let mut healing = Healing::default();
        // The same come back all the time, so that it is never for want of them.
        let mut may_look = |ms| {
            (healing.regained, healing.news) = (REGAINED_TO_REJOIN, 0);
            healing.may_look(after(ms))
        };
        let mut at_ms = 0;
        assert!(may_look(at_ms));
        for pause_secs in [15, 30, 60, 120, 240, 480, 600, 600] {
            at_ms += pause_secs * 1000;
            assert!(!may_look(at_ms - 1), "{pause_secs} s");
            assert!(may_look(at_ms), "{pause_secs} s");
        }
        for (quiet_ms, pause_ms) in [(LOOK_QUIET_MS - 1, LOOK.max_ms), (LOOK_QUIET_MS, LOOK.min_ms)] {
            at_ms += quiet_ms;
            assert!(may_look(at_ms));
            at_ms += pause_ms;
            assert!(!may_look(at_ms - 1));
            assert!(may_look(at_ms));
        }
    }

    #[test]
    fn when_three_come_back_the_other_lost_are_tried_at_once_our_neighbours_first() {
        let mut lane = lane();
        let all: Vec<Contact> = (10..40).map(contact).collect();
        for contact in &all {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        let tried = |lane: &mut LaneNode, ms| {
            let mut out = Sent::default();
            lane.with(after(ms), &mut out, |lane, cx| lane.heal(cx));
            out.0.into_iter().map(|(to, _)| to).collect::<BTreeSet<_>>()
        };
        assert_eq!(tried(&mut lane, 1000), BTreeSet::new(), "none is due");
        let (back, away) = all.split_at(3);
        for contact in back {
            lane.table_mut().answered(T.mono_ms, contact.id(), *contact, Some(10));
        }
        let mut nearest = away.to_vec();
        nearest.sort_by_key(|contact| lane.place.own.distance_to(&contact.id()));
        let addrs = |contacts: &[Contact]| contacts.iter().map(|contact| contact.addr).collect::<BTreeSet<_>>();
        // Contacts that are back are asked for nodes near us.
        let first = tried(&mut lane, 2000);
        assert_eq!(&first - &addrs(back), addrs(&nearest[..LOST_PER_TICK]));
        assert_eq!(tried(&mut lane, 3000), addrs(&nearest[LOST_PER_TICK..2 * LOST_PER_TICK]));
        assert_eq!(lane.router.peers.members_mut().lost.contacts.len(), away.len(), "and are tried again later");
    }

    /// A peer other than any [`contact`].
    fn stranger(n: u16) -> Contact {
        let [low, high] = n.to_le_bytes();
        let mut seed = [0x5a; 32];
        seed[..2].copy_from_slice(&[low, high]);
        Contact { key: Identity::from_seed(&seed).public_key(), addr: Addr::v4([10, 1 + high, low, 1], 1) }
    }

    fn nearest_first(lane: &LaneNode, contacts: &[Contact]) -> Vec<Contact> {
        let mut sorted = contacts.to_vec();
        sorted.sort_by_key(|contact| lane.place.own.distance_to(&contact.id()));
        sorted
    }

    fn is_lost(lane: &LaneNode, contact: &Contact) -> bool {
        lane.router.peers.members().lost.contacts.iter().any(|lost| lost.contact == *contact)
    }

    #[test]
    fn three_contacts_that_come_and_go_at_most_double_the_questions_to_absent_ones() {
        let asked = |come_and_go: bool| {
            let mut lane = lane();
            let gone = contact(200);
            let others: Vec<Contact> = (10..13).map(contact).collect();
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, gone, gone.id()));
            let mut asked = 0;
            for second in 0..7200 {
                let now = after(second * 1000);
                for other in others.iter().filter(|_| come_and_go) {
                    match second % 10 {
                        0 => {
                            lane.table_mut().expel(&other.id());
                            lane.act(now, |lane, cx| lane.peers.members_mut().remember_lost(cx, *other, other.id()));
                        }
                        5 => drop(lane.table_mut().answered(now.mono_ms, other.id(), *other, Some(10))),
                        _ => {}
                    }
                }
                let mut out = Sent::default();
                lane.on_time(now, &mut out);
                lane.with(now, &mut out, |lane, cx| lane.heal(cx));
                asked += out.0.iter().filter(|(to, _)| *to == gone.addr).count();
            }
            asked
        };
        let (quietly, harried) = (asked(false), asked(true));
        assert!((12..24).contains(&quietly), "{quietly} times in two hours");
        assert!(harried <= 2 * quietly, "{harried} times instead of {quietly}");
    }

    #[test]
    fn of_too_many_lost_those_tried_most_go_first_and_then_the_farthest() {
        let mut lane = lane();
        let all: Vec<Contact> = (0..LOST_MAX as u16).map(stranger).collect();
        for contact in &all {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        lane.act(after(LOST.min_ms), |lane, cx| lane.heal(cx));
        let (tried, rest) = all.split_at(LOST_PER_TICK);
        for n in 0..LOST_PER_TICK as u16 {
            let new = stranger(1000 + n);
            lane.act(after(LOST.min_ms), |lane, cx| lane.peers.members_mut().remember_lost(cx, new, new.id()));
        }
        assert!(
            tried.iter().all(|contact| !is_lost(&lane, contact)) && rest.iter().all(|contact| is_lost(&lane, contact))
        );
        let mut waiting: Vec<Contact> =
            lane.router.peers.members_mut().lost.contacts.iter().map(|lost| lost.contact).collect();
        waiting = nearest_first(&lane, &waiting);
        let new = stranger(2000);
        lane.act(after(LOST.min_ms), |lane, cx| lane.peers.members_mut().remember_lost(cx, new, new.id()));
        let (farthest, others) = waiting.split_last().unwrap();
        assert!(!is_lost(&lane, farthest) && others.iter().all(|contact| is_lost(&lane, contact)));
        assert_eq!(lane.router.peers.members_mut().lost.contacts.len(), LOST_MAX);
    }

    #[test]
    fn a_contact_lost_again_is_remembered_once_and_at_its_last_address() {
        let mut lane = lane();
        let before = contact(10);
        let moved = Contact { addr: Addr::v4([10, 0, 99, 1], 1), ..before };
        lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, before, before.id()));
        lane.act(after(1000), |lane, cx| lane.peers.members_mut().remember_lost(cx, moved, moved.id()));
        assert_eq!(
            lane.router.peers.members_mut().lost.contacts.iter().map(|lost| lost.contact).collect::<Vec<_>>(),
            [moved]
        );
    }

    #[test]
    fn a_lost_contact_counts_as_lost_lately_for_five_tries() {
        let mut lane = lane();
        let gone = contact(10);
        lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, gone, gone.id()));
        for tries in 0..8_u8 {
            assert_eq!(
                lane.router.peers.members_mut().lost.contacts[0].is_fresh(),
                tries <= LOST_LATELY_TRIES,
                "{tries} tries"
            );
            lane.act(after((u64::from(tries) + 1) * 2 * LOST.max_ms), |lane, cx| lane.heal(cx));
        }
    }

    #[test]
    fn of_those_tried_in_vain_our_sixteen_nearest_are_tried_for_ever() {
        let mut lane = lane();
        let all: Vec<Contact> = (0..40).map(stranger).collect();
        for contact in &all {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        let asked_in = |lane: &mut LaneNode, hours: core::ops::Range<u64>| {
            let mut out = Sent::default();
            for second in (hours.start * 3600..hours.end * 3600).step_by(10) {
                lane.on_time(after(second * 1000), &mut out);
                lane.with(after(second * 1000), &mut out, |lane, cx| lane.heal(cx));
            }
            out.0.into_iter().map(|(to, _)| to).collect::<Vec<_>>()
        };
        asked_in(&mut lane, 0..24);
        let kept = &nearest_first(&lane, &all)[..LOST_KEPT];
        let asked = asked_in(&mut lane, 24..25);
        for contact in &all {
            let times = asked.iter().filter(|to| **to == contact.addr).count();
            let expected = if kept.contains(contact) { 4..=8 } else { 0..=0 };
            assert!(expected.contains(&times), "{times} times in an hour, every ten minutes for those kept");
        }
    }

    /// One of two lanes.
    fn one_of_two() -> LaneNode {
        let mut lane = lane();
        lane.on_map(PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).unwrap(), 2).unwrap());
        lane
    }

    #[test]
    fn a_lane_tries_those_it_looks_after_and_only_remembers_the_others() {
        let mut lane = one_of_two();
        let all: Vec<Contact> = (0..40).map(stranger).collect();
        for contact in &all {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        let mut out = Sent::default();
        for second in 16..30 {
            lane.with(after(second * 1000), &mut out, |lane, cx| lane.heal(cx));
        }
        let asked: BTreeSet<_> = out.0.into_iter().map(|(to, _)| to).collect();
        let looked_after =
            all.iter().filter(|contact| lane.place.looks_after(&contact.id())).map(|contact| contact.addr);
        assert_eq!(asked, looked_after.collect());
        assert!((1..40).contains(&asked.len()) && lane.router.peers.members_mut().lost.contacts.len() == 40);
    }

    #[test]
    fn a_contact_that_another_lane_lost_is_dropped_or_asked_by_its_own_lane_unless_it_answered_since_or_moved() {
        // Whether it is dropped, remembered and asked: the last moment at which it is believed to be there, and the first at which it is not.
        let heard = |looked_after: bool, ms: u64, addr: Option<Addr>| {
            let mut lane = one_of_two();
            let known =
                (0..).map(stranger).find(|contact| lane.place.looks_after(&contact.id()) == looked_after).unwrap();
            lane.table_mut().answered(T.mono_ms, known.id(), known, Some(10));
            let said = Contact { addr: addr.unwrap_or(known.addr), ..known };
            let mut out = Sent::default();
            for _ in 0..2 {
                lane.with(after(ms), &mut out, |lane, cx| {
                    lane.peers.on_lane_message(cx, message_kind::SILENT, &said.to_wire())
                });
            }
            (lane.table().get(&known.id()).is_none(), lane.router.peers.members_mut().lost.contacts.len(), out.0.len())
        };
        assert_eq!(heard(false, JUST_ANSWERED_MS - 1, None), (false, 0, 0));
        assert_eq!(heard(false, JUST_ANSWERED_MS, None), (true, 1, 0));
        assert_eq!(heard(false, JUST_ANSWERED_MS, Some(Addr::v4([10, 9, 9, 9], 1))), (false, 0, 0));
        assert_eq!(
            heard(true, JUST_ANSWERED_MS, None),
            (false, 0, 1),
            "asked once, and its own answer or silence counts"
        );
    }

    #[test]
    fn the_lane_that_looks_after_a_contact_tells_all_that_it_lost_it_and_any_other_tells_that_one() {
        let gone = contact(10);
        let told = |at: u8| {
            let (mut lane, mut out) = (lane_among(1, at, 3), Sent::default());
            lane.with(T, &mut out, |lane, cx| lane.peers.members_mut().lose(cx, gone, gone.id()));
            assert!(is_lost(&lane, &gone));
            let told = out.1.into_iter().map(|(to, kind, payload)| {
                assert_eq!((kind, &payload[..]), (message_kind::SILENT, &gone.to_wire()[..]));
                to.0
            });
            (lane.place.looks_after(&gone.id()), told.collect::<Vec<_>>())
        };
        let owner = (0..3).find(|at| told(*at).0).unwrap();
        for at in 0..3 {
            let others: Vec<u8> = (0..3).filter(|other| *other != at).collect();
            assert_eq!(told(at).1, if at == owner { others } else { vec![owner] });
        }
    }

    #[test]
    fn a_silent_member_that_gives_way_to_a_contact_of_another_lane_is_lost() {
        let mut lane = lane();
        let top = lane.place.own.as_bytes()[0] & 0x80;
        let mut far = (0..).map(stranger).filter(|contact| contact.id().as_bytes()[0] & 0x80 != top);
        let members: Vec<Contact> = far.by_ref().take(lane.table().k()).collect();
        for contact in &members {
            lane.table_mut().answered(T.mono_ms, contact.id(), *contact, Some(10));
        }
        lane.table_mut().silent(&members[3].id());
        lane.table_mut().silent(&members[3].id());
        let mut payload = [0xff; 54];
        payload[..50].copy_from_slice(&far.next().unwrap().to_wire());
        lane.on_message(T, message_kind::CONTACT, &payload, &mut Sent::default());
        assert_eq!(
            lane.router.peers.members_mut().lost.contacts.iter().map(|lost| lost.contact).collect::<Vec<_>>(),
            [members[3]]
        );
    }

    #[test]
    fn a_contact_that_comes_back_and_finds_its_place_taken_is_asked_for_its_contacts() {
        let mut lane = lane();
        let top = lane.place.own.as_bytes()[0] & 0x80;
        let mut far = (0..=255).map(contact).filter(|contact| contact.id().as_bytes()[0] & 0x80 != top);
        for contact in far.by_ref().take(lane.table().k()) {
            lane.table_mut().answered(T.mono_ms, contact.id(), contact, Some(10));
        }
        let back: Vec<Contact> = far.take(REGAINED_TO_REJOIN).collect();
        for contact in &back {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
            lane.table_mut().answered(T.mono_ms, contact.id(), *contact, Some(10));
        }
        let mut out = Sent::default();
        lane.with(after(1000), &mut out, |lane, cx| lane.heal(cx));
        assert!(out.0.iter().any(|(to, _)| back.iter().any(|contact| contact.addr == *to)));
    }

    #[test]
    fn however_many_are_lost_those_tried_for_ever_are_not_forgotten() {
        let mut lane = lane();
        let kept: Vec<Contact> = (0..LOST_KEPT as u16).map(stranger).collect();
        for contact in &kept {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        lane.router.peers.members_mut().lost.contacts.iter_mut().for_each(|lost| lost.tries = LOST_TRIES_MAX);
        for n in 0..300 {
            let new = stranger(1000 + n);
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, new, new.id()));
        }
        assert_eq!(lane.router.peers.members_mut().lost.contacts.len(), LOST_MAX);
        assert_eq!(kept.iter().filter(|contact| is_lost(&lane, contact)).count(), LOST_KEPT);
    }

    #[test]
    fn of_more_tried_in_vain_than_are_tried_for_ever_the_farthest_are_forgotten_first() {
        let mut lane = lane();
        let all: Vec<Contact> = (0..LOST_MAX as u16).map(stranger).collect();
        for contact in &all {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        let in_vain = nearest_first(&lane, &all[..LOST_KEPT + 3]);
        for lost in
            lane.router.peers.members_mut().lost.contacts.iter_mut().filter(|lost| in_vain.contains(&lost.contact))
        {
            lost.tries = LOST_TRIES_MAX;
        }
        for n in 0..3 {
            let new = stranger(1000 + n);
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, new, new.id()));
        }
        let (kept, rest) = in_vain.split_at(LOST_KEPT);
        assert!(kept.iter().all(|contact| is_lost(&lane, contact)));
        assert!(rest.iter().all(|contact| !is_lost(&lane, contact)));
    }

    #[test]
    fn ten_contacts_that_come_and_go_cause_a_look_around_at_once_and_then_ever_more_seldom() {
        let mut lane = lane();
        let others: Vec<Contact> = (10..20).map(contact).collect();
        let mut looked = Vec::new();
        for second in 0..3600 {
            let now = after(second * 1000);
            for other in &others {
                match second % 10 {
                    0 => {
                        lane.table_mut().expel(&other.id());
                        lane.act(now, |lane, cx| lane.peers.members_mut().remember_lost(cx, *other, other.id()));
                    }
                    5 => drop(lane.table_mut().answered(now.mono_ms, other.id(), *other, Some(10))),
                    _ => {}
                }
            }
            let before = lane.counters.lookups_started;
            lane.on_time(now, &mut Sent::default());
            lane.act(now, |lane, cx| lane.heal(cx));
            looked.extend((lane.counters.lookups_started > before).then_some(second));
        }
        assert_eq!(looked[0], 5, "it may be a split that healed");
        assert!((6..=12).contains(&looked.len()), "{looked:?}");
    }

    /// When a lane looks around, in seconds, among contacts that come and go in each ten seconds; and when the network heals, if it does.
    fn looks(seconds: u64, come_and_go: impl Fn(u64) -> Vec<Contact>, heals_at: Option<u64>) -> Vec<u64> {
        let (mut lane, mut looked) = (lane(), Vec::new());
        let other_side: Vec<Contact> = (500..503).map(stranger).collect();
        for second in 0..seconds {
            let now = after(second * 1000);
            for other in come_and_go(second / 10) {
                match second % 10 {
                    0 => {
                        lane.table_mut().expel(&other.id());
                        lane.act(now, |lane, cx| lane.peers.members_mut().remember_lost(cx, other, other.id()));
                    }
                    5 => drop(lane.table_mut().answered(now.mono_ms, other.id(), other, Some(10))),
                    9 => lane.table_mut().expel(&other.id()),
                    _ => {}
                }
            }
            for other in &other_side {
                if heals_at == Some(second + 60) {
                    lane.act(now, |lane, cx| lane.peers.members_mut().remember_lost(cx, *other, other.id()));
                } else if heals_at == Some(second) {
                    lane.table_mut().answered(now.mono_ms, other.id(), *other, Some(10));
                }
            }
            let before = lane.counters.lookups_started;
            lane.on_time(now, &mut Sent::default());
            lane.act(now, |lane, cx| lane.heal(cx));
            looked.extend((lane.counters.lookups_started > before).then_some(second));
        }
        looked
    }

    #[test]
    fn a_split_that_heals_is_noticed_at_once_though_others_come_and_go_all_the_time() {
        let ten = |_| (10..20).map(contact).collect();
        let without = looks(3600, ten, None);
        assert!((6..=12).contains(&without.len()), "{without:?}");
        // In the middle of a pause of ten minutes.
        let heals_at = without.iter().find(|at| **at > 1800).unwrap() + 303;
        assert!(without.iter().all(|at| at.abs_diff(heals_at) > 200));
        let with = looks(3600, ten, Some(heals_at));
        assert!(with.contains(&heals_at), "{heals_at} is not among {with:?}");
        assert!(with.len() <= without.len() + 1, "{with:?} instead of {without:?}");
    }

    #[test]
    fn however_many_others_come_and_go_we_look_around_once_in_two_minutes_at_most() {
        // Three new contacts every time.
        let looked = looks(3600, |round| (0..3).map(|n| stranger((round * 3) as u16 + n)).collect(), None);
        let pauses = looked.windows(2).map(|pair| pair[1] - pair[0]);
        let seldom: Vec<u64> = pauses.skip_while(|pause| pause * 1000 < NEWS_PAUSE_MS).collect();
        assert!(seldom.len() > 20 && seldom.iter().all(|pause| pause * 1000 >= NEWS_PAUSE_MS), "{looked:?}");
        assert!(looked.len() <= 40, "{looked:?}");
    }

    #[test]
    fn returned_contacts_are_remembered_up_to_a_number_and_for_a_time() {
        let mut healing = Healing::default();
        for n in 0..500 {
            healing.regain(after(0), &stranger(n).id());
            healing.regain(after(0), &stranger(n).id());
        }
        assert_eq!((healing.news, healing.back_lately.len()), (500, BACK_LATELY_MAX), "each is news once");
        healing.regain(after(LOOK_QUIET_MS - 1), &stranger(499).id());
        assert_eq!(healing.news, 500);
        healing.regain(after(2 * LOOK_QUIET_MS - 1), &stranger(499).id());
        assert_eq!((healing.news, healing.back_lately.len()), (501, 1));
    }

    /// A peer in one block of public addresses.
    fn neighbour(n: u16) -> Contact {
        Contact { addr: Addr::v4([203, 0, 113, 1], n + 1), ..stranger(n) }
    }

    #[test]
    fn one_block_of_addresses_has_a_share_of_the_memory_and_takes_no_others() {
        let mut lane = lane();
        let share = lane.place.config.table.per_prefix_in_table;
        let others: Vec<Contact> = (1000..1100).map(stranger).collect();
        for contact in &others {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, *contact, contact.id()));
        }
        // Of all, they have the least hope.
        lane.router.peers.members_mut().lost.contacts.iter_mut().for_each(|lost| lost.tries = LOST_TRIES_MAX - 1);
        let of_block = |lane: &LaneNode| {
            let block = neighbour(0).addr.prefix();
            lane.router.peers.members().lost.contacts.iter().filter(|lost| lost.contact.addr.prefix() == block).count()
        };
        for n in 0..300 {
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, neighbour(n), neighbour(n).id()));
            assert_eq!(of_block(&lane), share.min(usize::from(n) + 1));
        }
        assert!(others.iter().all(|contact| is_lost(&lane, contact)));
        let before = lane.router.peers.members_mut().lost.contacts.len();
        let moved = Contact { addr: neighbour(999).addr, ..others[0] };
        lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, moved, moved.id()));
        assert_eq!(
            (of_block(&lane), lane.router.peers.members_mut().lost.contacts.len()),
            (share, before - 1),
            "a contact that moves there takes one of its places"
        );
    }

    #[test]
    fn a_private_network_is_remembered_whole() {
        let mut lane = lane();
        for n in 0..100 {
            let contact = Contact { addr: Addr::v4([192, 168, 0, 1], n + 1), ..stranger(n) };
            lane.act(T, |lane, cx| lane.peers.members_mut().remember_lost(cx, contact, contact.id()));
        }
        assert_eq!(lane.router.peers.members_mut().lost.contacts.len(), 100);
    }
}
