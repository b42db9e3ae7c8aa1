//! What hides a lookup: a walk towards a false target in the right region, decoys beside the true question, and somebody
//! else who asks first.

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::LaneNode;
use super::ask::Purpose;
use super::operation::{Holder, Phase, Task, random_point, within};
use super::outbox::Outbox;
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::lookup::{Ask, Goal};
use crate::seal::cookie::NO_COOKIE;
use crate::time::Now;
use crate::wire::message::{Message, capability};

/// Requests for other ids of the region that accompany a blind lookup's real ones.
const NEIGHBOUR_PROBES: usize = 3;

impl<C: Crypto> LaneNode<C> {
    /// A point that shares only the target's region: what it lies in, not what it is.
    pub(super) fn blinded(&mut self, target: &[u8; 32]) -> [u8; 32] {
        let shared = self.radius_of(self.config.lookup.k * 2).leading_zeros();
        random_point(&mut self.rng, target, shared)
    }

    /// Who asks in our place: the relay that has just seen where we are, or any that fits.
    pub(super) fn relay_for(&mut self, now: Now, ask: &Ask, target: &[u8; 32]) -> Option<Contact> {
        let known = ask.relay.and_then(|id| self.table.get(&id)).map(|peer| peer.contact);
        known.or_else(|| self.pick_relay(now, &ask.id, target))
    }

    /// Somebody who relays, from another part of the space than the target: it should not be among those asked later. Better somebody
    /// who knows where we are: others do not relay for us yet.
    fn pick_relay(&mut self, now: Now, peer: &NodeId, target: &[u8; 32]) -> Option<Contact> {
        let bucket = self.own.distance_to(&ContentId::from_bytes(*target)).leading_zeros();
        let own = self.own;
        let fits = move |candidate: &crate::routing::Peer| {
            candidate.capabilities & capability::RELAYS != 0
                && candidate.id != *peer
                && own.distance_to(&candidate.id).leading_zeros() != bucket
        };
        let Self { table, sealer, rng, .. } = self;
        let knows_us = |peer: &&crate::routing::Peer| sealer.cookie_of(now, &peer.contact.key) != NO_COOKIE;
        let fitting = || table.iter_live().filter(|candidate| fits(candidate));
        let knowing = fitting().filter(knows_us).count() as u64;
        if knowing > 0 {
            let pick = rng.below(knowing) as usize;
            return fitting().filter(knows_us).nth(pick).map(|candidate| candidate.contact);
        }
        let pick = rng.below(fitting().count() as u64) as usize;
        fitting().nth(pick).map(|candidate| candidate.contact)
    }

    /// The region is known; now ask those in it for the id itself, among requests for other ids near it.
    pub(super) fn unblind(&mut self, now: Now, at: u16, out: &mut impl Outbox) {
        let operation = &mut self.operations[usize::from(at)];
        let target = operation.target;
        // Nobody is written to: the holders' places are free to remember who was found.
        operation.holders.clear();
        operation.holders.extend(operation.lookup.holders().map(Holder::of));
        let goal = match operation.task {
            Task::Get { mutable: true } => {
                let seen = self.sequences.peek(&target).copied().unwrap_or(0);
                Goal::Mutable { sequence_min: seen }
            }
            _ => Goal::Immutable,
        };
        operation.phase = Phase::Walking;
        let radius = self.radius_of(self.config.lookup.k);
        let operation = &mut self.operations[usize::from(at)];
        let config = within(self.config.lookup, operation.budget);
        operation.lookup.start(now.mono_ms, config, target, goal, radius);
        for holder in &operation.holders {
            operation.lookup.offer(holder.id, holder.contact, None);
        }
        for _ in 0..NEIGHBOUR_PROBES {
            let Some(Holder { id, contact, .. }) = self.operations[usize::from(at)].holders.pop() else { break };
            let decoy = self.blinded(&target);
            let message = Message::FindValue { id: ContentId::from_bytes(decoy), sequence_min: 0 };
            self.request(now, contact, id, &decoy, &message, Purpose::Verify, out);
        }
        self.operations[usize::from(at)].holders.clear();
        self.drive(now, at, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::lone_lane::{Sent, T, contact, lane};
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn relays_that_know_where_we_are_come_first_and_without_one_any_will_do() {
        let mut lane = lane();
        // Nobody is in the bucket of the nearest ids.
        let (target, asked) = (*lane.own.as_bytes(), contact(9).id());
        let relays: Vec<Contact> = (10..30).map(contact).collect();
        for relay in &relays {
            lane.table.answered(T.mono_ms, relay.id(), *relay, Some(10));
            lane.table.get_mut(&relay.id()).unwrap().capabilities = capability::RELAYS;
        }
        let picked = |lane: &mut LaneNode<_>| {
            (0..200).map(|_| lane.pick_relay(T, &asked, &target).unwrap().addr).collect::<BTreeSet<_>>()
        };
        assert_eq!(picked(&mut lane).len(), relays.len());
        let knowing = &relays[5..8];
        for relay in knowing {
            lane.verify(T, *relay, relay.id(), &mut Sent::default());
            lane.sealer.keep_cookie(T, &relay.key, [7; 8]);
        }
        assert_eq!(picked(&mut lane), knowing.iter().map(|relay| relay.addr).collect());
    }
}
