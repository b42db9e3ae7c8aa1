//! What hides a lookup: a walk towards a false target in the right region, decoys beside the true question, and somebody
//! else who asks first.

use tessera_contracts::point::{ContentId, NodeId, Point as _};

use super::LaneNode;
use super::ask::Purpose;
use super::operation::{Holder, Phase, Task, random_point, within};
use super::outbox::Outbox;
use crate::contact::Contact;
use crate::identity::Crypto;
use crate::lookup::Goal;
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

    /// Somebody who relays, from another part of the space than the target: it should not be among those asked later.
    pub(super) fn pick_relay(&mut self, peer: &NodeId, target: &[u8; 32]) -> Option<Contact> {
        let bucket = self.own.distance_to(&ContentId::from_bytes(*target)).leading_zeros();
        let own = self.own;
        let fits = move |candidate: &crate::routing::Peer| {
            candidate.capabilities & capability::RELAYS != 0
                && candidate.id != *peer
                && own.distance_to(&candidate.id).leading_zeros() != bucket
        };
        let count = self.table.iter_live().filter(|candidate| fits(candidate)).count() as u64;
        let pick = self.rng.below(count) as usize;
        self.table.iter_live().filter(|candidate| fits(candidate)).nth(pick).map(|candidate| candidate.contact)
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
