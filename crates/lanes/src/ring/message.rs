//! A ring of messages between one producer and one consumer: envelopes in one ring, payload bytes in a second.
//!
//! Two rings, so that a message without payload costs 32 bytes of traffic and not 544. A payload is copied once, by the
//! producer, and read in place by the consumer; only one that wraps around the end is copied a second time.
//! The payload is committed before its envelope, so a visible envelope's payload is always there. That order is all we add to
//! the two rings; [`publish`] and [`take`] hold it, and loom runs these very functions over rings of its own.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::class::RingSize;
use crate::envelope::{Envelope, PAYLOAD_BYTES_MAX};

/// The ring had no slot for the envelope or no room for the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingFull;

/// A ring of the given size.
pub(crate) fn message_ring(size: RingSize) -> (MessageProducer, MessageConsumer) {
    let (envelopes_in, envelopes_out) = RingBuffer::new(size.messages_max.max(1));
    let (payload_in, payload_out) = RingBuffer::new(size.payload_bytes_max.max(PAYLOAD_BYTES_MAX));
    (
        MessageProducer { envelopes: envelopes_in, payload: payload_in },
        MessageConsumer { envelopes: envelopes_out, payload: payload_out },
    )
}

/// The producing end of a ring of `T`, as far as a message needs it.
pub(crate) trait RingIn<T> {
    fn is_full(&self) -> bool;
    fn push(&mut self, item: T) -> Result<(), RingFull>;
    /// Commits all of `items` at once, or none.
    fn push_all(&mut self, items: &[T]) -> Result<(), RingFull>;
}

/// The consuming end.
pub(crate) trait RingOut<T> {
    fn pop(&mut self) -> Option<T>;
    /// Shows the next `len` items, as one slice or as two around the ring's end, and frees them afterwards; `None` if there
    /// are not so many yet.
    fn read<R>(&mut self, len: usize, show: impl FnOnce(&[T], &[T]) -> R) -> Option<R>;
}

impl<T: Copy> RingIn<T> for Producer<T> {
    fn is_full(&self) -> bool {
        Self::is_full(self)
    }

    fn push(&mut self, item: T) -> Result<(), RingFull> {
        Self::push(self, item).map_err(|_| RingFull)
    }

    fn push_all(&mut self, items: &[T]) -> Result<(), RingFull> {
        self.push_entire_slice(items).map_err(|_| RingFull)
    }
}

impl<T> RingOut<T> for Consumer<T> {
    fn pop(&mut self) -> Option<T> {
        Self::pop(self).ok()
    }

    #[inline]
    fn read<R>(&mut self, len: usize, show: impl FnOnce(&[T], &[T]) -> R) -> Option<R> {
        let chunk = self.read_chunk(len).ok()?;
        let (head, tail) = chunk.as_slices();
        let result = show(head, tail);
        chunk.commit_all();
        Some(result)
    }
}

/// Appends a message whose header tells its payload's length, or leaves both rings as they were.
pub(crate) fn publish(
    envelopes: &mut impl RingIn<Envelope>,
    payloads: &mut impl RingIn<u8>,
    envelope: &Envelope,
    payload: &[u8],
) -> Result<(), RingFull> {
    if envelopes.is_full() {
        return Err(RingFull);
    }
    if !payload.is_empty() {
        payloads.push_all(payload)?;
    }
    envelopes.push(*envelope)
}

/// Hands the next message to `handle` and frees its payload afterwards; `None` if there is none.
///
/// `scratch` holds the rare payload that wraps around the ring's end.
pub(crate) fn take<R>(
    envelopes: &mut impl RingOut<Envelope>,
    payloads: &mut impl RingOut<u8>,
    scratch: &mut [u8; PAYLOAD_BYTES_MAX],
    handle: impl FnOnce(&Envelope, &[u8]) -> R,
) -> Option<R> {
    let envelope = envelopes.pop()?;
    let len = usize::from(envelope.payload_len);
    if len == 0 {
        return Some(handle(&envelope, &[]));
    }
    let result = payloads.read(len, |head, tail| {
        if tail.is_empty() {
            return handle(&envelope, head);
        }
        scratch[..head.len()].copy_from_slice(head);
        scratch[head.len()..len].copy_from_slice(tail);
        handle(&envelope, &scratch[..len])
    });
    Some(result.expect("a payload is committed before its envelope"))
}

#[derive(Debug)]
pub(crate) struct MessageProducer {
    envelopes: Producer<Envelope>,
    payload: Producer<u8>,
}

impl MessageProducer {
    /// Appends a message, or leaves the ring as it was.
    #[inline]
    pub(crate) fn try_push(&mut self, envelope: &Envelope, payload: &[u8]) -> Result<(), RingFull> {
        debug_assert_eq!(envelope.payload_len as usize, payload.len(), "the header tells the payload's length");
        publish(&mut self.envelopes, &mut self.payload, envelope, payload)
    }

    /// Messages not yet taken by the consumer, at this moment. Asks the consumer's cache line.
    pub(crate) fn depth(&self) -> usize {
        self.capacity() - self.envelopes.slots()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.envelopes.buffer().capacity()
    }

    /// Whether the consumer is gone for good.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.envelopes.is_abandoned()
    }
}

#[derive(Debug)]
pub(crate) struct MessageConsumer {
    envelopes: Consumer<Envelope>,
    payload: Consumer<u8>,
}

impl MessageConsumer {
    /// Messages waiting now.
    pub(crate) fn depth(&self) -> usize {
        self.envelopes.slots()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.envelopes.is_empty()
    }

    /// Takes the next message: see [`take`].
    #[inline]
    pub(crate) fn pop_with<R>(
        &mut self,
        scratch: &mut [u8; PAYLOAD_BYTES_MAX],
        handle: impl FnOnce(&Envelope, &[u8]) -> R,
    ) -> Option<R> {
        take(&mut self.envelopes, &mut self.payload, scratch, handle)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::class::Class;
    use crate::envelope::Kind;
    use tessera_contracts::prefix_map::LaneIndex;

    fn envelope(id: u64, len: usize) -> Envelope {
        Envelope {
            correlation_id: id,
            payload_len: len as u16,
            ..Envelope::to_lane(LaneIndex(1), Class::Coordination, Kind::new(1))
        }
    }

    #[test]
    fn a_refused_message_leaves_no_payload_behind() {
        let (mut producer, mut consumer) = message_ring(RingSize { messages_max: 1, payload_bytes_max: 512 });
        assert_eq!(producer.try_push(&envelope(1, 3), b"abc"), Ok(()));
        assert_eq!(producer.try_push(&envelope(2, 3), b"def"), Err(RingFull));
        let mut scratch = [0; PAYLOAD_BYTES_MAX];
        assert_eq!(consumer.pop_with(&mut scratch, |_, payload| payload.to_vec()), Some(b"abc".to_vec()));
        assert_eq!(producer.try_push(&envelope(3, 512), &[7; 512]), Ok(()));
        assert_eq!(consumer.pop_with(&mut scratch, |_, payload| payload.to_vec()), Some(vec![7; 512]));
    }

    #[test]
    fn a_payload_is_its_handlers_until_the_call_ends_and_the_rings_again_afterwards() {
        let (mut producer, mut consumer) = message_ring(RingSize { messages_max: 2, payload_bytes_max: 512 });
        assert_eq!(producer.try_push(&envelope(1, 512), &[1; 512]), Ok(()));
        let handled = consumer.pop_with(&mut [0; PAYLOAD_BYTES_MAX], |_, payload| {
            assert_eq!(producer.try_push(&envelope(2, 512), &[2; 512]), Err(RingFull), "not while it is read");
            payload == [1; 512]
        });
        assert_eq!(handled, Some(true));
        assert_eq!(producer.try_push(&envelope(2, 512), &[2; 512]), Ok(()));
    }

    proptest! {
        #[test]
        fn the_ring_is_a_bounded_queue_of_messages(steps in prop::collection::vec((any::<bool>(), 0usize..=40), 1..400)) {
            let (mut producer, mut consumer) = message_ring(RingSize { messages_max: 5, payload_bytes_max: 600 });
            let mut model: VecDeque<(u64, Vec<u8>)> = VecDeque::new();
            let mut scratch = [0; PAYLOAD_BYTES_MAX];
            for (id, (push, len)) in steps.into_iter().enumerate() {
                let len = len * 12; // Up to 480 bytes, so that payloads often wrap.
                if push {
                    let bytes: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(31) ^ id as u8).collect();
                    let used: usize = model.iter().map(|(_, payload)| payload.len()).sum();
                    let fits = model.len() < 5 && used + len <= 600;
                    prop_assert_eq!(producer.try_push(&envelope(id as u64, len), &bytes).is_ok(), fits);
                    if fits {
                        model.push_back((id as u64, bytes));
                    }
                } else {
                    let got = consumer.pop_with(&mut scratch, |e, payload| (e.correlation_id, payload.to_vec()));
                    prop_assert_eq!(got, model.pop_front());
                }
                prop_assert_eq!(producer.depth(), model.len());
                prop_assert_eq!(consumer.depth(), model.len());
            }
        }
    }
}
