//! A producer's view of the messages still in its ring: enough to recognise a duplicate exactly.
//!
//! The consumer reports nothing. The ring's free count tells how many of the oldest have been taken, so a queue of identities
//! beside the ring stays exact; a small open-addressing table finds one in it. The free count is asked for only when a
//! duplicate is suspected or the queue is full, so the usual message costs the producer no foreign cache line. A message
//! without identity is only counted.

use crate::envelope::{Envelope, Kind};

/// The identity by which two messages are duplicates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Not zero.
    correlation_id: u64,
    key_prefix: u64,
    kind: Kind,
}

impl Identity {
    /// The identity of a message, if it has one.
    #[inline]
    pub(crate) fn of(envelope: &Envelope) -> Option<Self> {
        (envelope.correlation_id != 0).then_some(Self {
            correlation_id: envelope.correlation_id,
            key_prefix: envelope.key_prefix,
            kind: envelope.kind,
        })
    }
}

/// A message in the ring: its identity, and how many were sent before it.
#[derive(Clone, Copy, Debug)]
struct Queued {
    sequence: u64,
    identity: Identity,
}

const NOTHING: Queued =
    Queued { sequence: 0, identity: Identity { correlation_id: 0, key_prefix: 0, kind: Kind::new(0) } };

/// Identities of the messages in one ring, oldest first.
#[derive(Debug)]
pub(crate) struct Inflight {
    /// A circle of messages that have an identity.
    queue: Box<[Queued]>,
    /// Numbers of the oldest of them and of the next.
    head: u64,
    tail: u64,
    /// Messages sent so far, with and without identity.
    sent: u64,
    /// Number + 1 of a message in the queue, or zero; linear probing with backward shift on removal.
    table: Box<[u64]>,
}

impl Inflight {
    pub(crate) fn new(messages_max: usize) -> Self {
        let capacity = messages_max.max(1).next_power_of_two();
        Self {
            queue: vec![NOTHING; capacity].into_boxed_slice(),
            head: 0,
            tail: 0,
            sent: 0,
            table: vec![0; capacity * 2].into_boxed_slice(),
        }
    }

    /// Whether there is no place for another message with an identity.
    pub(crate) fn is_full(&self) -> bool {
        self.tail - self.head == self.queue.len() as u64
    }

    /// Whether a message like this may still be in the ring.
    #[inline]
    pub(crate) fn contains(&self, identity: &Identity) -> bool {
        self.find(identity).is_some()
    }

    /// Notes a message just pushed.
    #[inline]
    pub(crate) fn push(&mut self, identity: Option<Identity>) {
        let sequence = self.sent;
        self.sent += 1;
        if let Some(identity) = identity {
            self.enter(sequence, identity);
        }
    }

    fn enter(&mut self, sequence: u64, identity: Identity) {
        assert!(!self.is_full(), "the caller reclaims before the queue is full");
        let number = self.tail;
        self.tail += 1;
        // A second message of the same identity can be here only if the caller let it pass; the first then answers for both.
        if self.find(&identity).is_none() {
            let mut at = self.home(&identity);
            while self.table[at] != 0 {
                at = (at + 1) & (self.table.len() - 1);
            }
            self.table[at] = number + 1;
        }
        let slot = self.slot_of(number);
        self.queue[slot] = Queued { sequence, identity };
    }

    /// Forgets the oldest until `depth` are left, the number the ring says are still there.
    pub(crate) fn reclaim_to(&mut self, depth: usize) {
        let taken = self.sent - depth as u64;
        while self.head < self.tail {
            let number = self.head;
            let oldest = self.queue[self.slot_of(number)];
            if oldest.sequence >= taken {
                break;
            }
            if let Some(at) = self.find_number(&oldest.identity, number) {
                self.erase(at);
            }
            self.head += 1;
        }
    }

    fn slot_of(&self, number: u64) -> usize {
        number as usize & (self.queue.len() - 1)
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
            if self.queue[self.slot_of(self.table[at] - 1)].identity == *identity {
                return Some(at);
            }
            at = (at + 1) & (self.table.len() - 1);
        }
        None
    }

    /// The entry of exactly this message.
    fn find_number(&self, identity: &Identity, number: u64) -> Option<usize> {
        let mut at = self.home(identity);
        while self.table[at] != 0 {
            if self.table[at] == number + 1 {
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
            debug_assert!((self.head..self.tail).contains(&(entry - 1)), "a tabled message is still queued");
            let identity = &self.queue[self.slot_of(entry - 1)].identity;
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

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::class::Class;
    use tessera_contracts::prefix_map::LaneIndex;

    fn identity(id: u64) -> Option<Identity> {
        let to = Envelope::to_lane(LaneIndex(0), Class::Coordination, Kind::new(1));
        Identity::of(&Envelope { correlation_id: id, ..to })
    }

    proptest! {
        #[test]
        fn knows_exactly_what_is_in_flight(steps in prop::collection::vec((0u64..12, 0usize..4), 1..300)) {
            let mut inflight = Inflight::new(8);
            let mut model: VecDeque<u64> = VecDeque::new();
            for (id, taken) in steps {
                let this = identity(id);
                prop_assert_eq!(this.is_some_and(|this| inflight.contains(&this)), id != 0 && model.contains(&id));
                if id == 0 || (!inflight.is_full() && !model.contains(&id)) {
                    inflight.push(this);
                    model.push_back(id);
                }
                for _ in 0..taken {
                    model.pop_front();
                }
                inflight.reclaim_to(model.len());
                let queued = (inflight.tail - inflight.head) as usize;
                prop_assert_eq!(queued, model.iter().filter(|id| **id != 0).count());
            }
            inflight.reclaim_to(0);
            prop_assert!(inflight.table.iter().all(|entry| *entry == 0));
        }
    }
}
