//! A ring of messages between one producer and one consumer: envelopes with short payloads in one ring, the bytes of longer
//! payloads in a second.
//!
//! An id fits beside its envelope, so the usual message is one cache line and one ring. Two rings, so that a message without
//! payload does not cost 544 bytes of traffic. A payload is copied once, by the producer; a long one is read in place by the
//! consumer, and only one that wraps around the end is copied a second time.
//! A long payload is committed before its envelope, so a visible envelope's payload is always there. That order is all we add
//! to the two rings; [`publish`] and [`take`] hold it, and loom runs these very functions over rings of its own.

use rtrb::{Consumer, Producer, RingBuffer};

use crate::class::RingSize;
use crate::envelope::{Envelope, PAYLOAD_BYTES_MAX};

/// Payloads up to this length travel beside their envelope: an id does, and both fill a cache line.
pub(crate) const SHORT_BYTES_MAX: usize = 32;

/// An entry of the first ring.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Cell<const SHORT: usize = SHORT_BYTES_MAX> {
    pub(crate) envelope: Envelope,
    /// The payload, if it is at most `SHORT` bytes long.
    pub(crate) short: [u8; SHORT],
}

const _: () = assert!(size_of::<Cell>() == 64, "a message with a short payload is one cache line");

/// The ring had no slot for the envelope or no room for the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingFull;

/// A ring of the given size.
pub(crate) fn message_ring(size: RingSize) -> (MessageProducer, MessageConsumer) {
    let (cells_in, cells_out) = RingBuffer::new(size.messages_max.max(1));
    let (payload_in, payload_out) = RingBuffer::new(size.payload_bytes_max.max(PAYLOAD_BYTES_MAX));
    (
        MessageProducer { cells: cells_in, payload: payload_in },
        MessageConsumer { cells: cells_out, payload: payload_out },
    )
}

/// The producing end of a ring of `T`, as far as a message needs it.
pub(crate) trait RingIn<T> {
    fn is_full(&self) -> bool;
    fn push(&mut self, item: &T) -> Result<(), RingFull>;
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
    #[inline]
    fn is_full(&self) -> bool {
        Self::is_full(self)
    }

    #[inline]
    fn push(&mut self, item: &T) -> Result<(), RingFull> {
        Self::push(self, *item).map_err(|_| RingFull)
    }

    fn push_all(&mut self, items: &[T]) -> Result<(), RingFull> {
        self.push_entire_slice(items).map_err(|_| RingFull)
    }
}

impl<T: Copy> RingOut<T> for Consumer<T> {
    #[inline]
    fn pop(&mut self) -> Option<T> {
        // Copied from its place and then freed: what `Consumer::pop` returns is moved twice more before it is used.
        let item = *self.peek().ok()?;
        let _ = Self::pop(self);
        Some(item)
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
#[inline]
pub(crate) fn publish<const SHORT: usize>(
    cells: &mut impl RingIn<Cell<SHORT>>,
    payloads: &mut impl RingIn<u8>,
    envelope: &Envelope,
    payload: &[u8],
) -> Result<(), RingFull> {
    let mut cell = Cell { envelope: *envelope, short: [0; SHORT] };
    if let Some(place) = cell.short.get_mut(..payload.len()) {
        place.copy_from_slice(payload);
    } else {
        if cells.is_full() {
            return Err(RingFull);
        }
        payloads.push_all(payload)?;
    }
    cells.push(&cell)
}

/// Hands the next message to `handle` and frees its payload afterwards; `None` if there is none.
///
/// `scratch` holds the rare payload that wraps around the ring's end.
#[inline]
pub(crate) fn take<const SHORT: usize, R>(
    cells: &mut impl RingOut<Cell<SHORT>>,
    payloads: &mut impl RingOut<u8>,
    scratch: &mut [u8; PAYLOAD_BYTES_MAX],
    handle: impl FnOnce(&Envelope, &[u8]) -> R,
) -> Option<R> {
    let cell = cells.pop()?;
    let len = usize::from(cell.envelope.payload_len);
    if let Some(payload) = cell.short.get(..len) {
        return Some(handle(&cell.envelope, payload));
    }
    let result = payloads.read(len, |head, tail| {
        if tail.is_empty() {
            return handle(&cell.envelope, head);
        }
        scratch[..head.len()].copy_from_slice(head);
        scratch[head.len()..len].copy_from_slice(tail);
        handle(&cell.envelope, &scratch[..len])
    });
    Some(result.expect("a payload is committed before its envelope"))
}

#[derive(Debug)]
pub(crate) struct MessageProducer {
    cells: Producer<Cell>,
    payload: Producer<u8>,
}

impl MessageProducer {
    /// Appends a message, or leaves the ring as it was.
    #[inline]
    pub(crate) fn try_push(&mut self, envelope: &Envelope, payload: &[u8]) -> Result<(), RingFull> {
        debug_assert_eq!(envelope.payload_len as usize, payload.len(), "the header tells the payload's length");
        publish(&mut self.cells, &mut self.payload, envelope, payload)
    }

    /// Messages not yet taken by the consumer, at this moment. Asks the consumer's cache line.
    pub(crate) fn depth(&self) -> usize {
        self.capacity() - self.cells.slots()
    }

    pub(crate) fn capacity(&self) -> usize {
        self.cells.buffer().capacity()
    }

    /// Whether the consumer is gone for good.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.cells.is_abandoned()
    }
}

#[derive(Debug)]
pub(crate) struct MessageConsumer {
    cells: Consumer<Cell>,
    payload: Consumer<u8>,
}

impl MessageConsumer {
    /// Messages waiting now.
    pub(crate) fn depth(&self) -> usize {
        self.cells.slots()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Takes the next message: see [`take`].
    #[inline]
    pub(crate) fn pop_with<R>(
        &mut self,
        scratch: &mut [u8; PAYLOAD_BYTES_MAX],
        handle: impl FnOnce(&Envelope, &[u8]) -> R,
    ) -> Option<R> {
        take(&mut self.cells, &mut self.payload, scratch, handle)
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
        assert_eq!(producer.try_push(&envelope(1, 33), &[1; 33]), Ok(()));
        assert_eq!(producer.try_push(&envelope(2, 33), &[2; 33]), Err(RingFull));
        let mut scratch = [0; PAYLOAD_BYTES_MAX];
        assert_eq!(consumer.pop_with(&mut scratch, |_, payload| payload.to_vec()), Some(vec![1; 33]));
        assert_eq!(producer.try_push(&envelope(3, 512), &[7; 512]), Ok(()));
        assert_eq!(consumer.pop_with(&mut scratch, |_, payload| payload.to_vec()), Some(vec![7; 512]));
    }

    #[test]
    fn a_payload_of_an_id_needs_no_room_but_its_envelopes() {
        let (mut producer, mut consumer) = message_ring(RingSize { messages_max: 64, payload_bytes_max: 0 });
        for id in 0..64u8 {
            assert_eq!(producer.try_push(&envelope(id.into(), SHORT_BYTES_MAX), &[id; SHORT_BYTES_MAX]), Ok(()));
        }
        for id in 0..64u8 {
            let whole = |envelope: &Envelope, payload: &[u8]| {
                assert_eq!((envelope.correlation_id, payload), (id.into(), &[id; SHORT_BYTES_MAX][..]));
            };
            assert_eq!(consumer.pop_with(&mut [0; PAYLOAD_BYTES_MAX], whole), Some(()));
        }
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
                let len = len * 12; // Up to 480 bytes, so that long payloads often wrap.
                if push {
                    let bytes: Vec<u8> = (0..len).map(|at| (at as u8).wrapping_mul(31) ^ id as u8).collect();
                    let long = |len: usize| if len > SHORT_BYTES_MAX { len } else { 0 };
                    let used: usize = model.iter().map(|(_, payload)| long(payload.len())).sum();
                    let fits = model.len() < 5 && used + long(len) <= 600;
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
