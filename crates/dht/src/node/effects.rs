//! Effects: a component's reports to those above it.
//!
//! Calls go down the list of components; effects go up. The router drains the ring before the next event, and at the points of a tick at
//! which an operation may have ended, so that its end is dealt with before anything else begins.

use super::operations::OperationId;
use crate::lookup::Finish;

/// A report of a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// The lookup for our own neighbours has ended; whether any node answered.
    LookedAround { is_answered: bool },
    /// A lookup has ended, and its command is to be answered.
    LookupEnded { operation: OperationId, finish: Finish },
    /// A write has ended.
    WriteEnded { operation: OperationId, finish: Finish },
}

/// An event drives one operation, which ends once; dealing with that end may drive another.
pub(super) const EFFECTS_PER_EVENT_MAX: usize = 2;

/// The effects of one event, in their order. No allocation.
#[derive(Debug, Default)]
pub(super) struct Effects {
    ring: [Option<Effect>; EFFECTS_PER_EVENT_MAX],
    first: usize,
    len: usize,
}

impl Effects {
    /// # Panics
    /// If an event produces more effects than [`EFFECTS_PER_EVENT_MAX`]: a bug of ours, as the bound is that of our own code.
    pub(super) fn push(&mut self, effect: Effect) {
        assert!(self.len < EFFECTS_PER_EVENT_MAX, "an event had too many effects: {:?} before {effect:?}", self.ring);
        self.ring[(self.first + self.len) % EFFECTS_PER_EVENT_MAX] = Some(effect);
        self.len += 1;
    }

    pub(super) fn pop(&mut self) -> Option<Effect> {
        let effect = self.ring[self.first].take()?;
        self.first = (self.first + 1) % EFFECTS_PER_EVENT_MAX;
        self.len -= 1;
        Some(effect)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFECT: Effect = Effect::LookedAround { is_answered: true };

    #[test]
    fn effects_come_out_in_their_order_however_often_the_ring_is_used() {
        let mut effects = Effects::default();
        for is_answered in [true, false, true] {
            effects.push(Effect::LookedAround { is_answered });
            assert_eq!((effects.pop(), effects.pop()), (Some(Effect::LookedAround { is_answered }), None));
            assert!(effects.is_empty());
        }
    }

    #[test]
    #[should_panic(expected = "too many effects")]
    fn more_effects_than_an_event_may_have_are_a_bug() {
        let mut effects = Effects::default();
        for _ in 0..=EFFECTS_PER_EVENT_MAX {
            effects.push(EFFECT);
        }
    }
}
