//! Every interleaving of a producer and a consumer over what we add to single-producer rings: a payload before its envelope,
//! and the reserved places of Control.
//!
//! `rtrb` itself is not explored here: a ring of loom's atomics with the same promise (an item is seen whole once the index
//! behind it is) stands in for it. Items are relaxed atomics, so a reader that looks too early sees an old one.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tessera_contracts::prefix_map::LaneIndex;

use crate::class::Class;
use crate::envelope::{Envelope, Kind, PAYLOAD_BYTES_MAX};
use crate::ring::link::{flush, push_or_reserve};
use crate::ring::message::{Cell, RingFull, RingIn, RingOut, publish, take};
use crate::ring::stage::Stage;

struct Ring<T> {
    slots: Vec<AtomicU64>,
    head: AtomicUsize,
    tail: AtomicUsize,
    encode: fn(&T) -> u64,
    decode: fn(u64) -> T,
}

struct In<T>(Arc<Ring<T>>);
struct Out<T>(Arc<Ring<T>>);

fn ring<T>(capacity: usize, encode: fn(&T) -> u64, decode: fn(u64) -> T) -> (In<T>, Out<T>) {
    let slots = (0..capacity).map(|_| AtomicU64::new(u64::MAX)).collect();
    let ring = Arc::new(Ring { slots, head: AtomicUsize::new(0), tail: AtomicUsize::new(0), encode, decode });
    (In(ring.clone()), Out(ring))
}

impl<T> RingIn<T> for In<T> {
    fn is_full(&self) -> bool {
        self.0.tail.load(Ordering::Relaxed) - self.0.head.load(Ordering::Acquire) == self.0.slots.len()
    }

    fn push(&mut self, item: &T) -> Result<(), RingFull> {
        self.push_all(std::slice::from_ref(item))
    }

    fn push_all(&mut self, items: &[T]) -> Result<(), RingFull> {
        let tail = self.0.tail.load(Ordering::Relaxed);
        if tail + items.len() - self.0.head.load(Ordering::Acquire) > self.0.slots.len() {
            return Err(RingFull);
        }
        for (at, item) in items.iter().enumerate() {
            self.0.slots[(tail + at) % self.0.slots.len()].store((self.0.encode)(item), Ordering::Relaxed);
        }
        self.0.tail.store(tail + items.len(), Ordering::Release);
        Ok(())
    }
}

impl<T> RingOut<T> for Out<T> {
    fn pop(&mut self) -> Option<T> {
        let head = self.0.head.load(Ordering::Relaxed);
        if self.0.tail.load(Ordering::Acquire) == head {
            return None;
        }
        let item = (self.0.decode)(self.0.slots[head % self.0.slots.len()].load(Ordering::Relaxed));
        self.0.head.store(head + 1, Ordering::Release);
        Some(item)
    }

    fn read<R>(&mut self, len: usize, show: impl FnOnce(&[T], &[T]) -> R) -> Option<R> {
        let head = self.0.head.load(Ordering::Relaxed);
        if self.0.tail.load(Ordering::Acquire) < head + len {
            return None;
        }
        let items: Vec<T> = (head..head + len)
            .map(|at| (self.0.decode)(self.0.slots[at % self.0.slots.len()].load(Ordering::Relaxed)))
            .collect();
        let result = show(&items, &[]);
        self.0.head.store(head + len, Ordering::Release);
        Some(result)
    }
}

/// A message that carries a word, in its payload and in its header.
fn message(kind: u8, word: u8, payload: &[u8]) -> Envelope {
    Envelope {
        correlation_id: u64::from(word),
        payload_len: payload.len() as u16,
        ..Envelope::to_lane(LaneIndex(1), Class::Control, Kind::new(kind))
    }
}

/// Cells without room for a payload, so that every payload takes the second ring.
type Header = Cell<0>;

fn headers(capacity: usize) -> (In<Header>, Out<Header>) {
    ring(
        capacity,
        |Cell { envelope, .. }| {
            envelope.correlation_id | u64::from(envelope.kind.get()) << 8 | u64::from(envelope.payload_len) << 16
        },
        |bits| Cell {
            envelope: Envelope { payload_len: (bits >> 16) as u16, ..message((bits >> 8) as u8, bits as u8, &[]) },
            short: [],
        },
    )
}

fn bytes(capacity: usize) -> (In<u8>, Out<u8>) {
    ring(capacity, |byte| u64::from(*byte), |bits| bits as u8)
}

/// Explores all interleavings with up to three preemptions, which is where such bugs live.
fn explore(body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(body);
}

type Publish = fn(&mut In<Header>, &mut In<u8>, &Envelope, &[u8]) -> Result<(), RingFull>;

/// Three messages through rings that hold two; each must come out with its own payload.
fn carry(publish: Publish) {
    explore(move || {
        let ((mut headers_in, mut headers_out), (mut bytes_in, mut bytes_out)) = (headers(2), bytes(4));
        let producer = loom::thread::spawn(move || {
            for word in 1..=3u8 {
                let payload = [word, word + 100];
                while publish(&mut headers_in, &mut bytes_in, &message(1, word, &payload), &payload).is_err() {
                    loom::thread::yield_now();
                }
            }
        });
        let mut scratch = [0; PAYLOAD_BYTES_MAX];
        let mut seen = 0;
        while seen < 3 {
            let taken = take(&mut headers_out, &mut bytes_out, &mut scratch, |envelope, payload| {
                seen += 1;
                assert_eq!((envelope.correlation_id, payload), (u64::from(seen), &[seen, seen + 100][..]));
            });
            if taken.is_none() {
                loom::thread::yield_now();
            }
        }
        producer.join().expect("the producer does not panic");
    });
}

#[test]
fn no_interleaving_shows_an_envelope_without_its_payload() {
    carry(publish);
}

#[test]
#[should_panic(expected = "a payload is committed before its envelope")]
fn with_the_envelope_first_one_is_seen_without_its_payload() {
    carry(|headers, payloads, envelope, payload| {
        if headers.is_full() {
            return Err(RingFull);
        }
        headers.push(&Cell { envelope: *envelope, short: [] })?;
        payloads.push_all(payload)
    });
}

/// Two kinds of Control, two words each, through a ring that holds one message. `reserve` keeps messages that find it full.
fn never_lost(reserve: bool) {
    explore(move || {
        let ((mut headers_in, mut headers_out), (mut bytes_in, mut bytes_out)) = (headers(1), bytes(2));
        let done = Arc::new(AtomicBool::new(false));
        let say_done = done.clone();
        let producer = loom::thread::spawn(move || {
            let mut stage = Stage::new(2);
            let mut push =
                |envelope: &Envelope, payload: &[u8]| publish(&mut headers_in, &mut bytes_in, envelope, payload);
            for (kind, word) in [(1, 1), (2, 1), (1, 2), (2, 2)] {
                let (envelope, payload) = (message(kind, word, &[word]), [word]);
                flush(&mut stage, &mut push);
                if reserve {
                    push_or_reserve(&mut stage, &mut push, &envelope, &payload);
                } else {
                    let _ = push(&envelope, &payload);
                }
            }
            while !stage.is_empty() {
                loom::thread::yield_now();
                flush(&mut stage, &mut push);
            }
            say_done.store(true, Ordering::Release);
        });
        let mut scratch = [0; PAYLOAD_BYTES_MAX];
        let mut last = [0u8; 3];
        loop {
            let finished = done.load(Ordering::Acquire);
            let taken = take(&mut headers_out, &mut bytes_out, &mut scratch, |envelope, payload| {
                let word = &mut last[usize::from(envelope.kind.get())];
                assert!(*word < payload[0], "words of a kind keep their order");
                *word = payload[0];
            });
            match taken {
                Some(()) => {}
                None if finished => break,
                None => loom::thread::yield_now(),
            }
        }
        producer.join().expect("the producer does not panic");
        assert_eq!(last[1..], [2, 2], "the last word of every kind arrives");
    });
}

#[test]
fn no_interleaving_loses_the_last_word_of_a_control_kind() {
    never_lost(true);
}

#[test]
#[should_panic(expected = "the last word of every kind arrives")]
fn without_the_reserved_place_a_control_message_is_lost() {
    never_lost(false);
}
