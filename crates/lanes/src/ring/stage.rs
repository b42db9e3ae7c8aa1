//! Where messages wait when their ring is full: a few places at the producer, in which newer replaces older.
//!
//! A producer cannot take a message back out of a ring it shares with a consumer, so what "drop the oldest" and "coalesce"
//! act on is kept here, before the ring. Memory is taken at construction and touched only under pressure.

use crate::envelope::{Envelope, PAYLOAD_BYTES_MAX};

/// What [`Stage::put`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Staged {
    Added,
    /// Took the place of an older duplicate.
    Replaced,
    /// Added, and an older one was dropped for it.
    Displaced,
}

/// A bounded queue of messages with replacement.
#[derive(Debug)]
pub(crate) struct Stage {
    envelopes: Vec<Envelope>,
    /// The place of each envelope's payload, in the order of `envelopes`.
    places: Vec<u16>,
    free: Vec<u16>,
    payload: Box<[u8]>,
}

impl Stage {
    pub(crate) fn new(messages_max: u16) -> Self {
        let capacity = usize::from(messages_max);
        Self {
            envelopes: Vec::with_capacity(capacity),
            places: Vec::with_capacity(capacity),
            free: (0..messages_max).rev().collect(),
            payload: vec![0; capacity * PAYLOAD_BYTES_MAX].into_boxed_slice(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.envelopes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.envelopes.len()
    }

    /// Keeps the message: in the place of one that `same` calls the same, else at the end, else instead of the oldest.
    pub(crate) fn put(&mut self, envelope: &Envelope, payload: &[u8], same: impl Fn(&Envelope) -> bool) -> Staged {
        if let Some(at) = self.envelopes.iter().position(same) {
            self.envelopes[at] = *envelope;
            self.write(self.places[at], payload);
            return Staged::Replaced;
        }
        let displaced = self.free.is_empty();
        if displaced {
            self.pop();
        }
        let place = self.free.pop().expect("popping the oldest freed a place");
        self.envelopes.push(*envelope);
        self.places.push(place);
        self.write(place, payload);
        if displaced { Staged::Displaced } else { Staged::Added }
    }

    /// Puts a message that nothing may lose. While there is a place every word is kept, a repeated one once; without one, older
    /// words of a kind give way to newer ones. As many places as kinds are enough for the last word of each.
    pub(crate) fn reserve(&mut self, envelope: &Envelope, payload: &[u8]) -> Staged {
        let repeated = |other: &Envelope| {
            (other.kind, other.key_prefix, other.correlation_id)
                == (envelope.kind, envelope.key_prefix, envelope.correlation_id)
        };
        if !self.free.is_empty() || self.envelopes.iter().any(repeated) {
            return self.put(envelope, payload, repeated);
        }
        let oldest_of = |kind| self.envelopes.iter().position(|other| other.kind == kind);
        let spoken_twice = |kind| self.envelopes.iter().filter(|other| other.kind == kind).count() > 1;
        let outdated = oldest_of(envelope.kind)
            .or_else(|| self.envelopes.iter().position(|other| spoken_twice(other.kind)))
            .expect("a place per kind: if this kind has none, another has two");
        self.remove(outdated);
        let _ = self.put(envelope, payload, |_| false);
        Staged::Displaced
    }

    /// The oldest message.
    pub(crate) fn front(&self) -> Option<(&Envelope, &[u8])> {
        let envelope = self.envelopes.first()?;
        let start = usize::from(self.places[0]) * PAYLOAD_BYTES_MAX;
        Some((envelope, &self.payload[start..start + usize::from(envelope.payload_len)]))
    }

    /// Forgets the oldest message.
    pub(crate) fn pop(&mut self) {
        if !self.envelopes.is_empty() {
            self.remove(0);
        }
    }

    fn remove(&mut self, at: usize) {
        self.envelopes.remove(at);
        self.free.push(self.places.remove(at));
    }

    fn write(&mut self, place: u16, payload: &[u8]) {
        let start = usize::from(place) * PAYLOAD_BYTES_MAX;
        self.payload[start..start + payload.len()].copy_from_slice(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::Class;
    use crate::envelope::Kind;
    use tessera_contracts::prefix_map::LaneIndex;

    fn envelope(prefix: u64, payload: &[u8]) -> Envelope {
        Envelope {
            key_prefix: prefix,
            payload_len: payload.len() as u16,
            ..Envelope::to_lane(LaneIndex(0), Class::Hints, Kind::new(1))
        }
    }

    fn put(stage: &mut Stage, prefix: u64, payload: &[u8]) -> Staged {
        stage.put(&envelope(prefix, payload), payload, |other| other.key_prefix == prefix)
    }

    #[test]
    fn newest_says_it_and_oldest_gives_way() {
        let mut stage = Stage::new(2);
        assert_eq!(put(&mut stage, 1, b"one"), Staged::Added);
        assert_eq!(put(&mut stage, 2, b"two"), Staged::Added);
        assert_eq!(put(&mut stage, 1, b"one again"), Staged::Replaced);
        assert_eq!(put(&mut stage, 3, b"three"), Staged::Displaced);
        let mut seen = Vec::new();
        while let Some((_, payload)) = stage.front() {
            seen.push(payload.to_vec());
            stage.pop();
        }
        assert_eq!(seen, [b"two".to_vec(), b"three".to_vec()]);
    }
}
