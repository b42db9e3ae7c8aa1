//! Everything one lane can send to another, with the drop policy of each class.
//!
//! | class | ring has room | ring is full |
//! | --- | --- | --- |
//! | Control | push | keep it at the producer, where only older words of its kind can give way, and count as dropped; raise the pressure flag until it is flushed |
//! | Coordination | push, unless a duplicate is in flight | drop the new one |
//! | Hints | push | keep the newest of each prefix at the producer, the oldest give way; ask the consumer to skip its oldest |
//!
//! A [`Link`] is the producer's end and an [`Inlet`] the consumer's. A link dies with either lane; the lane that still holds the
//! producer's end learns how many messages died in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tessera_contracts::prefix_map::LaneIndex;

use crate::class::{Class, DropCause, RingSizes};
use crate::envelope::{Envelope, PAYLOAD_BYTES_MAX};
use crate::ring::bulk::{BulkConsumer, BulkProducer, bulk_ring};
use crate::ring::inflight::{Identity, Inflight};
use crate::ring::message::{MessageConsumer, MessageProducer, RingFull, message_ring};
use crate::ring::park::Parker;
use crate::ring::pressure::{Pressure, PressureHold};
use crate::ring::stage::{Stage, Staged};

/// Hints a producer keeps back while the ring is full.
const HINTS_STAGED_MAX: u16 = 64;
/// Every kind has its reserved place, which is why Control cannot run out of them.
const CONTROL_STAGED_MAX: u16 = 256;

/// The fate of a message at its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Enqueued,
    Coalesced,
    /// Enqueued, and an older hint or control message was dropped for it.
    Displaced,
    Dropped(DropCause),
}

/// Both ends of a new link to a lane that sleeps in `parker` under `pressure`.
pub(crate) fn link(
    src: LaneIndex,
    dst: LaneIndex,
    sizes: &RingSizes,
    parker: Arc<Parker>,
    pressure: Arc<Pressure>,
) -> (Link, Inlet) {
    let (control_in, control_out) = message_ring(sizes.of(Class::Control));
    let (coordination_in, coordination_out) = message_ring(sizes.of(Class::Coordination));
    let (hints_in, hints_out) = message_ring(sizes.of(Class::Hints));
    let (bulk_in, bulk_out) = bulk_ring(sizes.bulk_bytes_max);
    let skip = Arc::new(AtomicU32::new(0));
    let inflight = Inflight::new(coordination_in.capacity());
    let link = Link {
        dst,
        control: control_in,
        control_stage: Stage::new(CONTROL_STAGED_MAX),
        coordination: coordination_in,
        inflight,
        hints: hints_in,
        hints_stage: Stage::new(HINTS_STAGED_MAX),
        skip: skip.clone(),
        bulk: bulk_in,
        pressure: PressureHold::new(pressure),
        parker,
        touched: false,
    };
    let inlet = Inlet {
        src,
        classes: [control_out, coordination_out, hints_out],
        messages_max: Class::ALL.map(|class| sizes.of(class).messages_max.max(1)),
        skip,
        bulk: bulk_out,
        replaced: false,
    };
    (link, inlet)
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Link {
    dst: LaneIndex,
    control: MessageProducer,
    control_stage: Stage,
    coordination: MessageProducer,
    inflight: Inflight,
    hints: MessageProducer,
    hints_stage: Stage,
    /// Hints the consumer is asked to skip, oldest first.
    skip: Arc<AtomicU32>,
    pub(crate) bulk: BulkProducer,
    pressure: PressureHold,
    parker: Arc<Parker>,
    /// Something was pushed since the receiver was last offered a wake-up.
    touched: bool,
}

impl Link {
    pub(crate) fn dst(&self) -> LaneIndex {
        self.dst
    }

    /// Sends by the policy of the message's class. The envelope's `payload_len` is already right.
    #[inline]
    pub(crate) fn send(&mut self, envelope: &Envelope, payload: &[u8]) -> Sent {
        debug_assert!(payload.len() <= PAYLOAD_BYTES_MAX);
        self.touched = true;
        match envelope.class {
            Class::Control => self.send_control(envelope, payload),
            _ if self.pressure.is_raised_by_anyone() => Sent::Dropped(DropCause::Shed),
            Class::Coordination => self.send_coordination(envelope, payload),
            Class::Hints => self.send_hint(envelope, payload),
        }
    }

    fn send_control(&mut self, envelope: &Envelope, payload: &[u8]) -> Sent {
        self.flush_control();
        let push = |envelope: &Envelope, payload: &[u8]| self.control.try_push(envelope, payload);
        match push_or_reserve(&mut self.control_stage, push, envelope, payload) {
            None => Sent::Enqueued,
            Some(staged) => {
                self.pressure.set(true);
                match staged {
                    Staged::Added => Sent::Enqueued,
                    Staged::Replaced => Sent::Coalesced,
                    Staged::Displaced => Sent::Displaced,
                }
            }
        }
    }

    #[inline]
    fn send_coordination(&mut self, envelope: &Envelope, payload: &[u8]) -> Sent {
        let identity = Identity::of(envelope);
        // The consumer's progress is worth a cache miss only when it decides something.
        if let Some(identity) = &identity
            && (self.inflight.is_full() || self.inflight.contains(identity))
        {
            self.inflight.reclaim_to(self.coordination.depth());
            if self.inflight.contains(identity) {
                return Sent::Coalesced;
            }
            if self.inflight.is_full() {
                return Sent::Dropped(DropCause::RingFull);
            }
        }
        if self.coordination.try_push(envelope, payload).is_err() {
            return Sent::Dropped(DropCause::RingFull);
        }
        self.inflight.push(identity);
        Sent::Enqueued
    }

    fn send_hint(&mut self, envelope: &Envelope, payload: &[u8]) -> Sent {
        self.flush_hints();
        if self.hints_stage.is_empty() && self.hints.try_push(envelope, payload).is_ok() {
            return Sent::Enqueued;
        }
        let same = |other: &Envelope| other.key_prefix == envelope.key_prefix && other.kind == envelope.kind;
        match self.hints_stage.put(envelope, payload, same) {
            Staged::Replaced => return Sent::Coalesced,
            Staged::Displaced => return Sent::Displaced,
            Staged::Added => {}
        }
        // The ring's oldest is older than anything staged: it should be the one to go.
        self.skip.fetch_add(1, Ordering::Relaxed);
        Sent::Enqueued
    }

    fn flush_control(&mut self) {
        flush(&mut self.control_stage, |envelope, payload| self.control.try_push(envelope, payload));
        // Healthy again at half: a flag that falls at "not full" would flutter with every message.
        if self.control_stage.is_empty() && self.control.depth() * 2 <= self.control.capacity() {
            self.pressure.set(false);
        }
    }

    fn flush_hints(&mut self) {
        flush(&mut self.hints_stage, |envelope, payload| self.hints.try_push(envelope, payload));
    }

    /// Moves messages that were kept back into the rings as far as they fit. False while something is left.
    pub(crate) fn flush(&mut self) -> bool {
        if !self.hints_stage.is_empty() {
            self.touched = true;
            self.flush_hints();
        }
        if !self.control_stage.is_empty() || self.pressure.is_raised_by_anyone() {
            self.touched = true;
            self.flush_control();
        }
        self.control_stage.is_empty() && self.hints_stage.is_empty()
    }

    /// Marks that the bulk ring was written.
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    /// Offers the receiver a wake-up if anything was pushed since the last offer. Says whether it slept.
    pub(crate) fn wake_if_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched) && self.parker.wake()
    }

    /// Messages of `class` not yet taken by the receiver, staged ones included.
    pub(crate) fn depth(&self, class: Class) -> usize {
        match class {
            Class::Control => self.control.depth() + self.control_stage.len(),
            Class::Coordination => self.coordination.depth(),
            Class::Hints => self.hints.depth() + self.hints_stage.len(),
        }
    }

    /// Whether everything sent has been taken.
    pub(crate) fn is_drained(&self) -> bool {
        Class::ALL.into_iter().all(|class| self.depth(class) == 0) && self.bulk.is_drained()
    }

    /// Whether the receiver dropped its end.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.control.is_abandoned()
    }
}

/// Sends a control message that nothing may lose: into the ring, or, behind earlier waiting ones, into a reserved place.
/// Returns its fate there.
pub(super) fn push_or_reserve(
    stage: &mut Stage,
    push: impl FnOnce(&Envelope, &[u8]) -> Result<(), RingFull>,
    envelope: &Envelope,
    payload: &[u8],
) -> Option<Staged> {
    if stage.is_empty() && push(envelope, payload).is_ok() {
        return None;
    }
    Some(stage.reserve(envelope, payload))
}

/// Moves waiting messages into the ring, oldest first, as far as there is room.
pub(super) fn flush(stage: &mut Stage, mut push: impl FnMut(&Envelope, &[u8]) -> Result<(), RingFull>) {
    while let Some((envelope, payload)) = stage.front() {
        if push(envelope, payload).is_err() {
            break;
        }
        stage.pop();
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inlet {
    pub(crate) src: LaneIndex,
    pub(crate) classes: [MessageConsumer; 3],
    pub(crate) messages_max: [usize; 3],
    skip: Arc<AtomicU32>,
    pub(crate) bulk: BulkConsumer,
    /// The lane at the other end has a newer link; this one is emptied and then closed.
    pub(crate) replaced: bool,
}

impl Inlet {
    /// Whether nothing is left here and nothing can come any more.
    pub(crate) fn is_finished(&self) -> bool {
        (self.replaced || self.bulk.is_abandoned()) && self.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_messages() && self.bulk.is_empty()
    }

    /// Whether a message of any class waits.
    pub(crate) fn has_messages(&self) -> bool {
        !self.classes.iter().all(MessageConsumer::is_empty)
    }

    /// Skips the oldest hints that the producer gave up for newer ones, and says how many.
    ///
    /// Only while the ring is more than half full: if we caught up meanwhile, there is room for all.
    pub(crate) fn skip_stale_hints(&mut self, scratch: &mut [u8; PAYLOAD_BYTES_MAX]) -> usize {
        if self.skip.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let asked = self.skip.swap(0, Ordering::Relaxed) as usize;
        let hints = &mut self.classes[Class::Hints.index()];
        let spare = hints.depth().saturating_sub(self.messages_max[Class::Hints.index()] / 2);
        let skipped = asked.min(spare);
        for _ in 0..skipped {
            let _ = hints.pop_with(scratch, |_, _| ());
        }
        skipped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::RingSize;
    use crate::envelope::Kind;

    fn tiny() -> RingSizes {
        RingSizes { classes: [RingSize { messages_max: 4, payload_bytes_max: 2048 }; 3], bulk_bytes_max: 4096 }
    }

    fn pair() -> (Link, Inlet, Arc<Pressure>) {
        let pressure = Arc::new(Pressure::default());
        let (link, inlet) = link(LaneIndex(0), LaneIndex(1), &tiny(), Parker::without_socket(), pressure.clone());
        (link, inlet, pressure)
    }

    fn message(class: Class, kind: u8, id: u64, prefix: u64, payload: &[u8]) -> Envelope {
        Envelope {
            correlation_id: id,
            key_prefix: prefix,
            payload_len: payload.len() as u16,
            ..Envelope::to_lane(LaneIndex(1), class, Kind::new(kind))
        }
    }

    fn drain(inlet: &mut Inlet, class: Class) -> Vec<(u8, u64, Vec<u8>)> {
        let mut scratch = [0; PAYLOAD_BYTES_MAX];
        let mut seen = Vec::new();
        while let Some(one) = inlet.classes[class.index()]
            .pop_with(&mut scratch, |envelope, payload| (envelope.kind.get(), envelope.key_prefix, payload.to_vec()))
        {
            seen.push(one);
        }
        seen
    }

    #[test]
    fn control_is_never_dropped_and_keeps_the_newest_of_each_kind() {
        let (mut link, mut inlet, pressure) = pair();
        for round in 0..100u8 {
            for kind in 0..200u8 {
                let sent = link.send(&message(Class::Control, kind, 0, 0, &[round]), &[round]);
                assert!(matches!(sent, Sent::Enqueued | Sent::Coalesced), "{sent:?}");
            }
        }
        assert!(pressure.is_raised());
        let mut last = [None; 200];
        let mut seen = 0;
        while {
            let batch = drain(&mut inlet, Class::Control);
            seen += batch.len();
            for (kind, _, payload) in &batch {
                last[usize::from(*kind)] = Some(payload[0]);
            }
            link.flush();
            !batch.is_empty()
        } {}
        assert!(last.iter().all(|newest| *newest == Some(99)), "the last word of every kind arrives");
        assert_eq!(seen, 4 + 200, "four in the ring, then one of each kind");
        assert!(!pressure.is_raised(), "healthy again");
    }

    #[test]
    fn control_words_of_one_kind_about_different_things_all_arrive_up_to_the_reserve() {
        let (mut link, mut inlet, _pressure) = pair();
        let reserve = u64::from(CONTROL_STAGED_MAX);
        for id in 1..=4 + reserve {
            assert_eq!(link.send(&message(Class::Control, 7, id, id, b""), b""), Sent::Enqueued, "{id}");
        }
        assert_eq!(
            link.send(&message(Class::Control, 7, 9, 9, b""), b""),
            Sent::Coalesced,
            "a repeat says nothing new"
        );
        let other = message(Class::Control, 8, 1, 5000, b"");
        assert_eq!(link.send(&other, b""), Sent::Displaced, "another kind takes the place of the oldest word");
        let mut seen = Vec::new();
        while {
            let batch = drain(&mut inlet, Class::Control);
            seen.extend(batch.iter().map(|(_, prefix, _)| *prefix));
            link.flush();
            !batch.is_empty()
        } {}
        let expected: Vec<u64> = (1..=4).chain(6..=4 + reserve).chain([5000]).collect();
        assert_eq!(seen, expected, "in order, and only the oldest of those that waited is gone");
    }

    #[test]
    fn a_full_control_ring_sheds_the_lower_classes_until_it_is_healthy() {
        let (mut link, mut inlet, _pressure) = pair();
        for _ in 0..4 {
            assert_eq!(link.send(&message(Class::Control, 1, 0, 0, b""), b""), Sent::Enqueued);
        }
        assert_eq!(link.send(&message(Class::Hints, 1, 0, 0, b""), b""), Sent::Enqueued, "full is not yet overfull");
        assert_eq!(link.send(&message(Class::Control, 1, 0, 0, b""), b""), Sent::Enqueued);
        for class in [Class::Coordination, Class::Hints] {
            assert_eq!(link.send(&message(class, 1, 0, 0, b""), b""), Sent::Dropped(DropCause::Shed));
        }
        drain(&mut inlet, Class::Control);
        link.flush();
        for class in [Class::Coordination, Class::Hints] {
            assert_eq!(link.send(&message(class, 1, 0, 0, b""), b""), Sent::Enqueued);
        }
    }

    #[test]
    fn a_coordination_duplicate_is_dropped_only_while_its_first_is_in_flight() {
        let (mut link, mut inlet, _pressure) = pair();
        let first = message(Class::Coordination, 1, 77, 5, b"x");
        assert_eq!(link.send(&first, b"x"), Sent::Enqueued);
        assert_eq!(link.send(&first, b"x"), Sent::Coalesced);
        assert_eq!(link.send(&message(Class::Coordination, 1, 77, 6, b"x"), b"x"), Sent::Enqueued, "another key");
        assert_eq!(drain(&mut inlet, Class::Coordination).len(), 2);
        assert_eq!(link.send(&first, b"x"), Sent::Enqueued, "taken: a repeat is news again");
    }

    #[test]
    fn coordination_is_accepted_to_capacity_and_then_dropped() {
        let (mut link, mut inlet, _pressure) = pair();
        for id in 1..=4 {
            assert_eq!(link.send(&message(Class::Coordination, 1, id, 0, b""), b""), Sent::Enqueued);
        }
        assert_eq!(link.send(&message(Class::Coordination, 1, 5, 0, b""), b""), Sent::Dropped(DropCause::RingFull));
        assert_eq!(drain(&mut inlet, Class::Coordination).len(), 4);
        assert_eq!(link.send(&message(Class::Coordination, 1, 5, 0, b""), b""), Sent::Enqueued);
    }

    #[test]
    fn under_pressure_the_freshest_hints_survive() {
        let (mut link, mut inlet, _pressure) = pair();
        let total: u64 = 4 + 64 + 3;
        for prefix in 0..total {
            let bytes = prefix.to_le_bytes();
            let sent = link.send(&message(Class::Hints, 1, 0, prefix, &bytes), &bytes);
            assert_eq!(sent, if prefix < 68 { Sent::Enqueued } else { Sent::Displaced });
        }
        assert_eq!(link.send(&message(Class::Hints, 1, 0, 70, b"newer"), b"newer"), Sent::Coalesced);
        // The ring's two oldest are skipped (down to half), the three oldest of the stage were displaced.
        assert_eq!(inlet.skip_stale_hints(&mut [0; PAYLOAD_BYTES_MAX]), 2);
        let mut seen = Vec::new();
        loop {
            let batch = drain(&mut inlet, Class::Hints);
            if batch.is_empty() {
                break;
            }
            seen.extend(batch);
            link.flush();
        }
        let prefixes: Vec<u64> = seen.iter().map(|(_, prefix, _)| *prefix).collect();
        let expected: Vec<u64> = [2, 3].into_iter().chain(7..total).collect();
        assert_eq!(prefixes, expected);
        assert_eq!(seen.last().unwrap().2, b"newer");
    }

    #[test]
    fn a_consumer_that_caught_up_skips_nothing() {
        let (mut link, mut inlet, _pressure) = pair();
        for prefix in 0..6 {
            let _ = link.send(&message(Class::Hints, 1, 0, prefix, b""), b"");
        }
        assert_eq!(drain(&mut inlet, Class::Hints).len(), 4);
        link.flush();
        assert_eq!(inlet.skip_stale_hints(&mut [0; PAYLOAD_BYTES_MAX]), 0);
        assert_eq!(drain(&mut inlet, Class::Hints).len(), 2);
    }
}
