//! Membership: which nodes this lane knows, and how it finds and keeps its place among them.
//!
//! It owns the routing table, the contacts to join by, those that fell silent (`lost`), the estimate of the network's size
//! (`network_size`) and the address at which others see this node (`seen_at`). It sends nothing: it names the contacts to ask.

mod join;
mod lost;
mod network_size;
mod seen_at;

use alloc::vec::Vec;

use tessera_contracts::point::{ContentId, Distance, NodeId, Point};

use super::context::{Context, Place};
use super::log::log_kind;
use super::outbox::{Importance, MessageClass, message_kind};
use crate::addr::Addr;
use crate::contact::Contact;
use crate::lookup::Lookup;
use crate::routing::{Peer, Placed, RoutingTable};
use crate::time::Now;
use crate::wire::message::CONTACT_BYTES;

use join::Join;
pub(super) use lost::{LOST_MAX, LostContacts, Returned};
use network_size::NetworkSize;
use seen_at::SeenAt;

/// A contact that another lane looks after is pinged by this one if it has not been heard of for so many times as long.
const UNTOLD_PINGS: u64 = 4;

/// An answer or a request within this time counts as being in touch.
const IN_TOUCH_MS: u64 = 5 * 60 * 1000;

/// A peer that asks from elsewhere is asked where it is known, at most so often.
pub(super) const STILL_THERE_MS: u64 = 1000;

/// A contact that answered within this time is there, even if another lane reports its silence: that report came late.
const JUST_ANSWERED_MS: u64 = 2000;

/// Configured seeds that a lookup falls back to.
const SEEDS_PER_LOOKUP: usize = 4;

/// Contacts that fell silent lately which a lookup asks in one round before it says that there is nothing.
pub(super) const LOST_PER_ROUND: usize = 4;

/// Lost and remembered contacts that a lookup begins with: so few that it is not lost in waiting if they are gone.
const REMEMBERED_PER_LOOKUP: usize = 16;

/// Whether the node is of any use right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// Live peers in the table.
    pub live_peers: usize,
    /// A peer answered us lately.
    pub answered_lately: bool,
    /// A peer asked us lately; a client cannot expect that.
    pub asked_lately: bool,
    /// Whether this lane has found its place in the network.
    pub joined: bool,
    /// All of it together: connected in both directions, not merely running.
    pub is_up: bool,
}

/// What to do about a peer that is seen where it is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sighting {
    Ignore,
    /// Ask it at the new address.
    Verify,
    /// Ask it where it is known, and at the new address if it is silent there.
    StillThere(Contact),
}

/// The nodes that this lane knows.
#[derive(Debug)]
pub(super) struct Membership {
    table: RoutingTable,
    join: Join,
    lost: LostContacts,
    size: NetworkSize,
    seen_at: SeenAt,
    last_request_ms: u64,
    last_answer_ms: u64,
}

impl Membership {
    pub(super) fn new(place: &Place) -> Self {
        Self {
            table: RoutingTable::new(place.own, place.config.table),
            join: Join::default(),
            lost: LostContacts::default(),
            size: NetworkSize::default(),
            seen_at: SeenAt::default(),
            last_request_ms: 0,
            last_answer_ms: 0,
        }
    }

    pub(super) fn reserve_all(&mut self) {
        self.table.reserve_all();
        self.join.reserve_all();
        self.lost.reserve_all();
    }

    pub(super) fn table(&self) -> &RoutingTable {
        &self.table
    }

    pub(super) fn lost_len(&self) -> usize {
        self.lost.len()
    }

    /// The lane's health. "Up" needs live contacts, answers, and, unless this is a client, requests of others.
    pub(super) fn health(&self, place: &Place, now: Now) -> Health {
        let lately = |at_ms: u64| at_ms > 0 && now.mono_ms.saturating_sub(at_ms) < IN_TOUCH_MS;
        let (live_peers, joined) = (self.table.live_len(), self.join.joined);
        let (answered_lately, asked_lately) = (lately(self.last_answer_ms), lately(self.last_request_ms));
        let is_up = live_peers > 0 && answered_lately && (asked_lately || place.config.client) && joined;
        Health { live_peers, answered_lately, asked_lately, joined, is_up }
    }

    /// About how many nodes there are.
    pub(super) fn network_size(&self, now_ms: u64) -> f64 {
        self.size.at(now_ms, &self.table)
    }

    /// What a lookup around a point says about the size of the network.
    pub(super) fn sample_size(&mut self, now: Now, around: &[u8; 32], size: f64) {
        self.size.sample(now.mono_ms, around, size);
    }

    /// The distance within which `count` nodes are expected around any point.
    #[inline]
    pub(super) fn radius_of(&self, cx: &Context<'_>, count: usize) -> Distance {
        let share = count as f64 / self.network_size(cx.timers.wheel.now());
        if share >= 1.0 {
            return Distance::MAX;
        }
        distance_with_prefix((share * 18_446_744_073_709_551_615.0) as u64)
    }

    /// Whether this node is one of the K that its own records belong to.
    pub(super) fn holds_its_own(&self, place: &Place) -> bool {
        !place.config.client && self.table.live_len() < place.config.lookup.k
    }

    /// Writes up to `count` live contacts nearest to `target`, leaving out the asker, and returns the bytes written.
    #[inline]
    pub(super) fn write_closest(&self, target: &[u8; 32], count: usize, asker: &NodeId, list: &mut [u8]) -> usize {
        if count == 0 {
            return 0;
        }
        let target = ContentId::from_bytes(*target);
        let closest = self.table.closest(&target, count, |peer| peer.silences == 0 && peer.id != *asker);
        let mut written = 0;
        for (entry, peer) in list.as_chunks_mut::<CONTACT_BYTES>().0.iter_mut().zip(self.table.peers_of(&closest)) {
            *entry = peer.contact.to_wire();
            written += CONTACT_BYTES;
        }
        written
    }

    /// Where others see this node.
    pub(super) fn observed(&self) -> Option<Addr> {
        self.seen_at.believed()
    }

    /// Where others reach us: as configured, or as they see us.
    pub(super) fn public_addr(&self, place: &Place) -> Option<Addr> {
        place.config.public_addr.or(self.seen_at.believed())
    }

    /// A peer says where it sees us.
    pub(super) fn note_observed(&mut self, cx: &mut Context<'_>, by: &Contact, id: &NodeId, observed: Addr) {
        if observed.is_dialable()
            && self.seen_at.say(by, id, observed)
            && let Some(believed) = self.seen_at.believed()
        {
            // Every lane announces ids of its own, and not every lane has asked a peer that says.
            cx.tell_lanes(MessageClass::Control, message_kind::OBSERVED, 0, &believed.to_wire());
        }
    }

    /// Another lane says where others see us.
    pub(super) fn believe_observed(&mut self, addr: Addr) {
        self.seen_at.believe(addr);
    }

    /// A peer asked us something.
    #[inline]
    pub(super) fn note_request(&mut self, now: Now) {
        self.last_request_ms = now.mono_ms;
    }

    /// A peer answered something.
    pub(super) fn note_reply(&mut self, now: Now) {
        self.last_answer_ms = now.mono_ms;
    }

    /// Notes the capabilities that a peer announced.
    pub(super) fn note_capabilities(&mut self, id: &NodeId, capabilities: u64) {
        if let Some(peer) = self.table.get_mut(id) {
            peer.capabilities = capabilities;
        }
    }

    /// A peer acknowledged a write.
    pub(super) fn note_write(&mut self, id: &NodeId, took_ms: u64) {
        if let Some(peer) = self.table.get_mut(id) {
            peer.write_trip.record(took_ms);
        }
    }

    /// A peer answered: it deserves its place in the table, and the other lanes may hear of it. Returns a member that should prove itself.
    pub(super) fn answered(
        &mut self,
        cx: &mut Context<'_>,
        id: NodeId,
        contact: Contact,
        rtt_ms: Option<u64>,
    ) -> Option<Contact> {
        let placed = self.table.answered(cx.now.mono_ms, id, contact, rtt_ms);
        let is_news = matches!(placed, Placed::Added | Placed::Replaced(_) | Placed::Moved);
        if is_news {
            cx.out.log(log_kind::CONTACT, cx.place.home_slot(), &contact.to_wire(), Importance::Soft);
        }
        // News go to all; the owner's pings keep the others' tables fresh too.
        if is_news || cx.place.looks_after(&id) {
            let mut payload = [0; 54];
            payload[..50].copy_from_slice(&contact.to_wire());
            payload[50..].copy_from_slice(&rtt_ms.map_or(u32::MAX, |ms| ms as u32).to_le_bytes());
            cx.tell_lanes(MessageClass::Hint, message_kind::CONTACT, id.prefix_u64(), &payload);
        }
        match placed {
            Placed::Replaced(Some(gone)) => self.lose(cx, gone, gone.id()),
            Placed::Spare(oldest) => return oldest,
            _ => {}
        }
        None
    }

    /// A peer answered another lane.
    pub(super) fn answered_elsewhere(
        &mut self,
        cx: &mut Context<'_>,
        id: NodeId,
        contact: Contact,
        rtt_ms: Option<u64>,
    ) {
        let placed = self.table.answered(cx.now.mono_ms, id, contact, rtt_ms);
        self.last_answer_ms = cx.now.mono_ms;
        if let Placed::Replaced(Some(gone)) = placed {
            self.lose(cx, gone, gone.id());
        }
    }

    /// A peer was silent at `addr`. That says something about it only if that is where it is known to be: any node can name it at an address
    /// where it is not.
    pub(super) fn silent(&mut self, cx: &mut Context<'_>, id: NodeId, addr: Addr) {
        let known = self.table.get(&id).map(|peer| (peer.contact, peer.is_live()));
        let Some((known, was_live)) = known.filter(|(known, _)| known.addr == addr) else { return };
        if !self.table.silent(&id) {
            return;
        }
        if was_live {
            self.lose(cx, known, id);
        } else {
            // A spare goes at its first silence, which may be one datagram that was lost. Other lanes may have it as a member: that is
            // not reason enough for them.
            self.lost.remember(cx, known, id);
        }
    }

    /// A contact has lost its place by silence. The lane that looks after it tells the others, which drop it too; any other tells that one,
    /// which sees for itself.
    fn lose(&mut self, cx: &mut Context<'_>, contact: Contact, id: NodeId) {
        self.lost.remember(cx, contact, id);
        let payload = contact.to_wire();
        if cx.place.looks_after(&id) {
            cx.tell_lanes(MessageClass::Hint, message_kind::SILENT, id.prefix_u64(), &payload);
        } else {
            cx.tell_owner(&id, MessageClass::Hint, message_kind::SILENT, &payload);
        }
    }

    /// Another lane has lost a contact. Says whether this lane is to see for itself.
    pub(super) fn silent_elsewhere(&mut self, cx: &mut Context<'_>, contact: Contact, id: NodeId) -> bool {
        if let Some(peer) = self.table.get(&id) {
            let is_back = cx.now.mono_ms.saturating_sub(peer.answered_ms) < JUST_ANSWERED_MS;
            if is_back || peer.contact.addr != contact.addr {
                return false;
            }
            if cx.place.looks_after(&id) {
                return true;
            }
            self.table.expel(&id);
        }
        self.lost.remember(cx, contact, id);
        false
    }

    /// A peer has left, or is in quarantine.
    pub(super) fn expel(&mut self, id: &NodeId) {
        self.table.expel(id);
    }

    /// Whether a peer is known, and at this address.
    pub(super) fn is_at(&self, id: &NodeId, addr: &Addr) -> bool {
        self.table.get(id).is_some_and(|peer| peer.contact.addr == *addr)
    }

    /// Whether this node sends to an address that another node named. A public node does not send into its own private network at the
    /// request of others: a datagram there may reach hosts that no outsider can.
    pub(super) fn may_be_named(&self, place: &Place, addr: &Addr) -> bool {
        let is_private = |addr: &Addr| addr.prefix().is_private();
        let is_inside = || self.public_addr(place).is_none_or(|own| is_private(&own));
        addr.is_dialable() && (!is_private(addr) || !place.config.defences.refuse_private || is_inside())
    }

    /// Whether a contact may be asked: the configured seeds, and those that answer where they are known, at private addresses too.
    pub(super) fn may_dial(&self, place: &Place, contact: &Contact, id: &NodeId) -> bool {
        self.may_be_named(place, &contact.addr)
            || contact.addr.is_dialable() && (self.is_at(id, &contact.addr) || self.join.seeds().contains(contact))
    }

    /// Whether a peer is worth a look: it is not known at this address, and there would be a place for it.
    #[inline]
    pub(super) fn is_news(&self, id: &NodeId, addr: &Addr) -> bool {
        match self.table.get(id) {
            None => self.table.would_take(id, addr.prefix()),
            Some(peer) => peer.contact.addr != *addr,
        }
    }

    /// Whether a peer is known at another address than `addr`, and answers there.
    pub(super) fn answers_elsewhere(&self, id: &NodeId, addr: &Addr) -> bool {
        self.table.get(id).is_some_and(|peer| peer.silences == 0 && peer.contact.addr != *addr)
    }

    /// What to do about a peer that is where it is not known, if this lane looks after contacts like it.
    pub(super) fn sighted(&self, now: Now, contact: &Contact, id: &NodeId) -> Sighting {
        let Some(peer) = self.table.get(id) else {
            let takes = self.table.would_take(id, contact.addr.prefix());
            return if takes { Sighting::Verify } else { Sighting::Ignore };
        };
        // As long as it answers where it is known, nothing changes: a machine may have two addresses, and be reached by all at one only.
        match peer.contact.addr == contact.addr {
            false if peer.silences > 0 => Sighting::Verify,
            false if now.mono_ms.saturating_sub(peer.answered_ms) >= STILL_THERE_MS => {
                Sighting::StillThere(peer.contact)
            }
            _ => Sighting::Ignore,
        }
    }

    /// The contact that has been quiet for longest, if it is time to ping it. Each contact has one lane that does so, and tells the others;
    /// if nothing has been heard from that one for several times as long, this lane sees for itself.
    pub(super) fn stalest(&self, cx: &Context<'_>, is_free: impl Fn(&NodeId) -> bool) -> Option<&Peer> {
        let idle_ms = cx.place.config.ping_idle_ms;
        let untold_ms = idle_ms.saturating_mul(UNTOLD_PINGS);
        self.table.stalest(cx.now.mono_ms, idle_ms, |peer| {
            let is_untold = cx.now.mono_ms.saturating_sub(peer.answered_ms) >= untold_ms;
            (is_untold || cx.place.looks_after(&peer.id)) && is_free(&peer.id)
        })
    }

    /// A lookup around a point has begun: its bucket is due for a refresh after a while.
    pub(super) fn refreshed(&mut self, cx: &mut Context<'_>, point: &impl Point) {
        let due_ms = cx.now.mono_ms + cx.rng.jittered_ms(cx.place.config.refresh_ms);
        self.table.refreshed(point, due_ms);
    }

    /// A point of the bucket that this lane is to refresh now.
    pub(super) fn point_to_refresh(&mut self, cx: &mut Context<'_>) -> Option<[u8; 32]> {
        if !self.join.is_settled() {
            return None;
        }
        let bucket = self.table.bucket_due(cx.now.mono_ms)?;
        let point = point_in_bucket(cx, bucket);
        // Lanes have tables of their own but hear of each other's finds: they take buckets in turn.
        if bucket as usize % cx.place.lanes() == usize::from(cx.place.lane.0) {
            return Some(point);
        }
        self.refreshed(cx, &ContentId::from_bytes(point));
        None
    }

    /// Gives a lookup without live contacts some of the configured seeds, to be asked first.
    pub(super) fn offer_seeds(&self, cx: &mut Context<'_>, lookup: &mut Lookup, is_usable: impl Fn(&Contact) -> bool) {
        let seeds = self.join.seeds();
        let start = cx.rng.below(seeds.len() as u64) as usize;
        let usable = seeds.iter().cycle().skip(start).take(seeds.len()).filter(|seed| is_usable(seed));
        for seed in usable.take(SEEDS_PER_LOOKUP) {
            lookup.offer_first(seed.id(), *seed);
        }
    }

    /// Gives a lookup the `count` nearest of the table that it does not know: where many are gone at once, as behind a border, those that
    /// are left cannot all be named by the few that answer, and a write would end with those few.
    pub(super) fn offer_next(&self, lookup: &mut Lookup, count: usize, is_usable: impl Fn(&Contact) -> bool) {
        let target = ContentId::from_bytes(*lookup.target());
        let next = self.table.closest(&target, count, |peer| !lookup.knows(&peer.id) && is_usable(&peer.contact));
        for peer in self.table.peers_of(&next) {
            lookup.offer(peer.id, peer.contact, peer.round_trip.srtt_ms());
        }
    }

    /// Gives a lookup that has found nothing the nearest contacts that fell silent lately, or that came back and found their places taken. The
    /// silence may have been the network's, and they hold the records stored on their side. Says whether there are any.
    pub(super) fn offer_lost(&self, lookup: &mut Lookup, is_usable: impl Fn(&Contact) -> bool) -> bool {
        let target = ContentId::from_bytes(*lookup.target());
        let lost = self.lost.iter().filter(|lost| lost.is_fresh()).map(|lost| (lost.id, lost.contact));
        let spares = self.table.iter_spares().map(|peer| (peer.id, peer.contact));
        let unasked = lost.chain(spares).filter(|(id, contact)| !lookup.knows(id) && is_usable(contact));
        let mut nearest: [Option<(Distance, NodeId, Contact)>; LOST_PER_ROUND] = [None; LOST_PER_ROUND];
        for (id, contact) in unasked {
            // A contact that has just come back is on both lists for a moment.
            if nearest.iter().flatten().any(|(_, known, _)| *known == id) {
                continue;
            }
            // Each takes the place of the first that is farther, which goes on to the next.
            let mut moving = Some((id.distance_to(&target), id, contact));
            for place in &mut nearest {
                let is_nearer = |(distance, ..): &(Distance, NodeId, Contact)| {
                    place.as_ref().is_none_or(|(farther, ..)| distance < farther)
                };
                if moving.as_ref().is_some_and(is_nearer) {
                    core::mem::swap(place, &mut moving);
                }
            }
        }
        for (_, id, contact) in nearest.iter().flatten() {
            lookup.offer(*id, *contact, None);
        }
        nearest[0].is_some()
    }

    /// Whether a contact fell silent.
    pub(super) fn is_lost(&self, id: &NodeId) -> bool {
        self.lost.contains(id)
    }

    /// Gives a lookup the nearest contacts that are not in the table: half of them lost ones, which were there last, and half remembered
    /// contacts and seeds, as all that were lost may be gone together. If there are few of one kind, the other takes the places.
    pub(super) fn offer_remembered(&self, lookup: &mut Lookup, is_usable: impl Fn(&Contact) -> bool) {
        let target = ContentId::from_bytes(*lookup.target());
        let nearest_first = |mut contacts: Vec<(NodeId, Contact)>| {
            contacts.retain(|(id, contact)| !lookup.knows(id) && is_usable(contact));
            contacts.sort_unstable_by_key(|(id, _)| id.distance_to(&target));
            contacts.dedup_by_key(|(id, _)| *id);
            contacts
        };
        let older = nearest_first(self.join.older().filter(|(id, _)| !self.is_lost(id)).collect());
        let lost = nearest_first(self.lost.iter().map(|lost| (lost.id, lost.contact)).collect());
        let of_lost = REMEMBERED_PER_LOOKUP - older.len().min(REMEMBERED_PER_LOOKUP / 2);
        for (id, contact) in lost.into_iter().take(of_lost).chain(older).take(REMEMBERED_PER_LOOKUP) {
            lookup.offer(id, contact, None);
        }
    }

    /// Looks at lost contacts that came back.
    pub(super) fn take_returned(&mut self, cx: &Context<'_>, may_look: bool) -> Returned {
        let returned = self.lost.take_returned(cx, &self.table, may_look && !self.join.is_busy());
        if let Some(contact) = returned.ask_first {
            self.join.ask_first(contact);
        }
        returned
    }

    pub(super) fn take_seeds(&mut self, place: &Place, contacts: Vec<Contact>) {
        self.join.take_seeds(place, contacts);
    }

    /// Takes a contact of before the last start.
    pub(super) fn remember(&mut self, place: &Place, contact: Contact) {
        self.join.remember(place, contact);
    }

    pub(super) fn has_joined(&self) -> bool {
        self.join.joined
    }

    /// Contacts to join by, if the table has run dry and it is time to ask some.
    pub(super) fn join_round(&mut self, cx: &mut Context<'_>) -> impl Iterator<Item = Contact> + use<> {
        self.join.round(cx, &self.lost).into_iter().flatten()
    }

    /// Whether this lane is to look for its neighbours now. `may_begin` says whether it could.
    pub(super) fn starts_looking(&mut self, now: Now, may_begin: bool) -> bool {
        let starts = self.join.starts_looking(now) && may_begin;
        if starts {
            self.join.looks(now);
        }
        starts
    }

    /// A look around begins, or could not begin.
    pub(super) fn set_looking(&mut self, looking: bool) {
        self.join.set_looking(looking);
    }

    /// The contact that a look around asks first.
    pub(super) fn take_first(&mut self) -> Option<Contact> {
        self.join.take_first()
    }

    /// The lookup for our own neighbours has ended; now the table is filled. Without any answer it found no place: it is
    /// made again soon. Says whether we have joined.
    pub(super) fn looked_around(&mut self, place: &Place, is_answered: bool) -> bool {
        self.join.set_looking(false);
        let joined = is_answered && self.table.live_len() > 0;
        if joined {
            self.join.done(join::deepest_bucket(place, &self.table));
        }
        joined
    }

    /// A point of the next bucket to fill after joining.
    pub(super) fn point_to_fill(&mut self, cx: &mut Context<'_>) -> Option<[u8; 32]> {
        self.join.next_bucket().map(|bucket| point_in_bucket(cx, bucket))
    }

    /// Whether a seed that was tried has answered, and there is time to look around by it.
    pub(super) fn seed_is_back(&mut self, may_begin: bool) -> bool {
        !self.join.is_busy() && may_begin && self.join.seed_is_back(&self.table)
    }

    /// A configured seed that is to be tried now.
    pub(super) fn seed_to_try(&mut self, cx: &mut Context<'_>) -> Option<(Contact, NodeId)> {
        self.join.seed_to_try(cx, &self.table)
    }

    /// Looks at the next lost contact: returns it if it is to be tried now.
    pub(super) fn next_lost(&mut self, cx: &mut Context<'_>, may_try: bool) -> Option<(Contact, NodeId)> {
        self.lost.next_due(cx, may_try)
    }
}

/// The distance whose first 64 bits are `prefix`, the rest zero.
fn distance_with_prefix(prefix: u64) -> Distance {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&prefix.to_be_bytes());
    NodeId::from_bytes([0; 32]).distance_to(&NodeId::from_bytes(bytes))
}

/// A random point that shares exactly `bucket` leading bits with our own id.
fn point_in_bucket(cx: &mut Context<'_>, bucket: u32) -> [u8; 32] {
    let own = *cx.place.own.as_bytes();
    let mut point: [u8; 32] = cx.rng.bytes();
    for bit in 0..=bucket.min(255) as usize {
        let mask = 0x80 >> (bit % 8);
        let wanted = if bit == bucket as usize { !own[bit / 8] } else { own[bit / 8] };
        point[bit / 8] = point[bit / 8] & !mask | wanted & mask;
    }
    point
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Views for tests of other components.
    impl Membership {
        pub(crate) fn table_mut(&mut self) -> &mut RoutingTable {
            &mut self.table
        }

        pub(crate) fn remember_lost(&mut self, cx: &Context<'_>, contact: Contact, id: NodeId) {
            self.lost.remember(cx, contact, id);
        }

        pub(crate) fn lost_contacts(&self) -> Vec<Contact> {
            self.lost.iter().map(|lost| lost.contact).collect()
        }

        pub(crate) fn set_joined(&mut self) {
            self.join.joined = true;
        }
    }
}
