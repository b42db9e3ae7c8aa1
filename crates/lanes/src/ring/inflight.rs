//! What a producer knows of the messages still in its ring: enough to recognise a duplicate exactly.
//!
//! The consumer reports nothing. The ring's free count tells how many of the oldest have been taken, so a queue of identities
//! beside the ring stays exact; a small open-addressing table finds one in it. The free count is asked for only when a
//! duplicate is suspected or the table is full, so the usual message costs the producer no foreign cache line.

use crate::envelope::{Envelope, Kind};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// Zero for a message that has no identity, and for a place without a message.
    correlation_id: u64,
    key_prefix: u64,
    kind: Kind,
}

const NO_IDENTITY: Identity = Identity { correlation_id: 0, key_prefix: 0, kind: Kind::new(0) };

/// Identities of the messages in one ring, oldest first.
#[derive(Debug)]
pub(crate) struct Inflight {
    /// A circle of identities; a message without one still takes its turn in the queue.
    queue: Box<[Identity]>,
    /// Sequence numbers of the oldest and of the next message.
    head: u64,
    tail: u64,
    /// Sequence number + 1 of a message, or zero; linear probing with backward shift on removal.
    table: Box<[u64]>,
}

impl Inflight {
    pub(crate) fn new(messages_max: usize) -> Self {
        let capacity = messages_max.max(1).next_power_of_two();
        Self {
            queue: vec![NO_IDENTITY; capacity].into_boxed_slice(),
            head: 0,
            tail: 0,
            table: vec![0; capacity * 2].into_boxed_slice(),
        }
    }

    /// Messages that may still be in the ring.
    pub(crate) fn len(&self) -> usize {
        (self.tail - self.head) as usize
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.queue.len()
    }

    /// Whether a message like `envelope` may still be in the ring.
    #[inline]
    pub(crate) fn contains(&self, envelope: &Envelope) -> bool {
        identity(envelope).is_some_and(|identity| self.find(&identity).is_some())
    }

    /// Notes a message just pushed.
    #[inline]
    pub(crate) fn push(&mut self, envelope: &Envelope) {
        assert!(!self.is_full(), "the caller reclaims before the queue is full");
        let sequence = self.tail;
        self.tail += 1;
        // A message without identity leaves its place as it is: empty, since whoever was there has been reclaimed.
        if let Some(identity) = identity(envelope) {
            self.enter(sequence, identity);
        }
    }

    fn enter(&mut self, sequence: u64, identity: Identity) {
        // A second message of the same identity can be here only if the caller let it pass; the first then answers for both.
        if self.find(&identity).is_none() {
            let mut at = self.home(&identity);
            while self.table[at] != 0 {
                at = (at + 1) & (self.table.len() - 1);
            }
            self.table[at] = sequence + 1;
        }
        let slot = self.slot_of(sequence);
        self.queue[slot] = identity;
    }

    /// Forgets the oldest until `depth` are left, the number the ring says are still there.
    pub(crate) fn reclaim_to(&mut self, depth: usize) {
        while self.len() > depth {
            let sequence = self.head;
            let slot = self.slot_of(sequence);
            if self.queue[slot].correlation_id != 0 {
                let identity = std::mem::replace(&mut self.queue[slot], NO_IDENTITY);
                if let Some(at) = self.find_sequence(&identity, sequence) {
                    self.erase(at);
                }
            }
            self.head += 1;
        }
    }

    fn slot_of(&self, sequence: u64) -> usize {
        sequence as usize & (self.queue.len() - 1)
    }

    fn home(&self, identity: &Identity) -> usize {
        // Correlation ids are random or sequential; a multiply spreads both.
        let mixed = (identity.correlation_id ^ identity.key_prefix.rotate_left(32) ^ u64::from(identity.kind.get()))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.table.len() - 1)
    }

    fn find(&self, identity: &Identity) -> Option<usize> {
        let mut at = self.home(identity);
        while self.table[at] != 0 {
            if self.queue[self.slot_of(self.table[at] - 1)] == *identity {
                return Some(at);
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        None
    }

    /// The entry of exactly this message, whose queue place is already vacated.
    fn find_sequence(&self, identity: &Identity, sequence: u64) -> Option<usize> {
        let mut at = self.home(identity);
        while self.table[at] != 0 {
            if self.table[at] == sequence + 1 {
                return Some(at);
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        None
    }

    fn erase(&mut self, mut hole: usize) {
        let mask = self.table.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.table[at];
            if entry == 0 {
                break;
            }
            let identity = &self.queue[self.slot_of(entry - 1)];
            debug_assert_ne!(*identity, NO_IDENTITY, "a tabled message is still queued");
            // An entry may fill the hole only if its home is not between the hole and itself.
            let home = self.home(identity);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = entry;
                hole = at;
            }
        }
        self.table[hole] = 0;
    }
}

fn identity(envelope: &Envelope) -> Option<Identity> {
    (envelope.correlation_id != 0).then_some(Identity {
        correlation_id: envelope.correlation_id,
        key_prefix: envelope.key_prefix,
        kind: envelope.kind,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::class::Class;
    use tessera_contracts::prefix_map::LaneIndex;

    fn envelope(id: u64) -> Envelope {
        Envelope { correlation_id: id, ..Envelope::to_lane(LaneIndex(0), Class::Coordination, Kind::new(1)) }
    }

    proptest! {
        #[test]
        fn knows_exactly_what_is_in_flight(steps in prop::collection::vec((0u64..12, 0usize..4), 1..300)) {
            let mut inflight = Inflight::new(8);
            let mut model: VecDeque<u64> = VecDeque::new();
            for (id, taken) in steps {
                prop_assert_eq!(inflight.contains(&envelope(id)), id != 0 && model.contains(&id));
                if !inflight.is_full() && (id == 0 || !model.contains(&id)) {
                    inflight.push(&envelope(id));
                    model.push_back(id);
                }
                for _ in 0..taken {
                    model.pop_front();
                }
                inflight.reclaim_to(model.len());
                prop_assert_eq!(inflight.len(), model.len());
            }
            inflight.reclaim_to(0);
            prop_assert!(inflight.table.iter().all(|entry| *entry == 0));
        }
    }
}
