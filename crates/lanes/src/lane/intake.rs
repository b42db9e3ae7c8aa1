//! A lane's inputs and how much of each a turn takes: messages by class, bulk frames, timers, datagrams.

use std::net::SocketAddr;

use tessera_contracts::prefix_map::{MapVersion, Slot};

use crate::ack::Overdue;
use crate::class::{Class, DropCause};
use crate::context::{Arrival, Context, Timer};
use crate::envelope::{Envelope, Flags, Kind};
use crate::handler::{Datagram, Handler, Message, Notice, Record};
use crate::handoff::Import;
use crate::lane::Lane;
use crate::orders::Order;
use crate::ring::bulk::{BULK_BODY_BYTES_MAX, Frame};
use crate::telemetry::trace::TraceWhat;
use crate::wal::Lsn;
use crate::wal::queue::LogSender;

/// Frames taken from one bulk ring in a turn.
const BULK_FRAMES_PER_TURN: usize = 32;
/// Timers fired in a turn; the rest are due in the next, at once.
const TIMERS_PER_TURN: usize = 256;

impl<H: Handler> Lane<H> {
    /// Carries out what the supervisor has ordered, and acknowledges it.
    pub(in crate::lane) fn take_orders(&mut self) -> bool {
        let Some(orders) = &mut self.orders else { return false };
        self.cx.counters.class(Class::Control).depth_high_water.raise(orders.waiting() as u64);
        let mut busy = false;
        while let Some((envelope, order)) =
            self.orders.as_mut().and_then(|orders| orders.take(&mut self.scratch, self.cx.map.selector()))
        {
            busy = true;
            self.work += 1;
            self.cx.note_taken(&envelope);
            match order {
                Some(Order::Map(map)) => self.adopt(map),
                Some(Order::Retire) => self.retiring = true,
                None => {}
            }
            self.cx.counters.class(Class::Control).drained.add(1);
            self.cx.counters.orders_done.set(envelope.correlation_id);
        }
        busy
    }

    pub(super) fn take_messages(&mut self) -> bool {
        if self.inlets.is_empty() {
            return false; // No producer: the counters of waiting messages are zero, and out of the cache.
        }
        let mut taken = [0; 3];
        for class in Class::ALL {
            let counters = &self.cx.counters.classes[class.index()];
            let (mut depth, mut fullest) = (0, 0);
            for inlet in &self.inlets {
                let waiting = inlet.classes[class.index()].depth();
                depth += waiting;
                fullest = fullest.max(waiting * 1000 / inlet.messages_max[class.index()]);
            }
            counters.depth.set(depth as u64);
            counters.depth_high_water.raise(depth as u64);
            counters.fullest_permille.set(fullest as u64);
            if depth == 0 {
                continue;
            }
            if class == Class::Hints {
                for inlet in &mut self.inlets {
                    let skipped = inlet.skip_stale_hints(&mut self.scratch);
                    counters.dropped[DropCause::Superseded as usize].add(skipped as u64);
                }
            }
            let Self { handler, cx, inlets, drain, scratch, .. } = self;
            taken[class.index()] = drain.drain_class(class, inlets.len(), |producer, most| {
                let ring = &mut inlets[producer].classes[class.index()];
                let mut count = 0;
                while count < most
                    && ring
                        .pop_with(scratch, |envelope, payload| handle_message(handler, cx, envelope, payload))
                        .is_some()
                {
                    count += 1;
                }
                count
            });
            self.cx.counters.classes[class.index()].drained.add(taken[class.index()] as u64);
        }
        self.drain.adapt(taken);
        self.work += taken.iter().sum::<usize>() as u64;
        taken != [0; 3]
    }

    pub(super) fn take_bulk(&mut self) -> bool {
        let mut busy = false;
        self.is_held_up_by_log = false;
        for at in 0..self.inlets.len() {
            for _ in 0..BULK_FRAMES_PER_TURN {
                // A record without room here would be in no log once its former owner has let it go.
                if self.inlets[at].bulk.is_record_next() && !self.cx.log.as_ref().is_none_or(LogSender::has_room) {
                    self.is_held_up_by_log = true;
                    break;
                }
                if self.bulk_body.is_empty() && !self.inlets[at].bulk.is_empty() {
                    self.bulk_body.resize(BULK_BODY_BYTES_MAX, 0);
                }
                let Some((frame, len)) = self.inlets[at].bulk.pop(&mut self.bulk_body) else { break };
                busy = true;
                self.work += 1;
                let src = self.inlets[at].src;
                self.cx.arena.reset();
                match frame {
                    Frame::Datagram { from, hops } => {
                        let bytes = &mut self.bulk_body[..len];
                        handle_datagram(&mut self.handler, &mut self.cx, from, bytes, hops);
                    }
                    Frame::Record { kind, slot } => {
                        let record = Record { kind, slot: Slot(slot), payload: &self.bulk_body[..len] };
                        let refused = self.cx.counters.log_refused.get();
                        self.handler.on_import(&mut self.cx, record);
                        self.unlogged[usize::from(slot)] |= self.cx.counters.log_refused.get() != refused;
                    }
                    Frame::SlotDone { slot, map_version } => {
                        let by = MapVersion(map_version);
                        self.arrived[usize::from(slot)] = Some(by);
                        let arrival = &mut self.cx.arrivals[usize::from(slot)];
                        if matches!(*arrival, Arrival::Awaited(since) if by == since || by.is_after(since)) {
                            *arrival = Arrival::Whole(by);
                        }
                        let safe_at = self.cx.log.as_ref().map_or(Lsn(0), |log| log.last());
                        // A record in this lane's memory only is not safe, and stays in the log of its sender.
                        if !std::mem::take(&mut self.unlogged[usize::from(slot)]) {
                            self.handoffs.imports.push(Import { slot: Slot(slot), from: src, by, safe_at });
                        }
                    }
                    Frame::SlotSafe { slot } => self.slot_left(Slot(slot), src),
                }
            }
        }
        busy
    }

    pub(super) fn fire_timers(&mut self) -> bool {
        let tick = self.cx.now.millis();
        for fired in 0..TIMERS_PER_TURN {
            let Some((_, timer)) = self.cx.timers.pop_due(tick) else { return fired > 0 };
            self.cx.arena.reset();
            self.work += 1;
            match timer {
                Timer::Handler(token) => {
                    self.cx.counters.timers_fired.add(1);
                    self.handler.on_timer(&mut self.cx, token);
                }
                Timer::Ack(place) => match self.cx.acks.overdue(place) {
                    Some(Overdue::Retry(envelope)) => self.cx.retry_acked(place, envelope),
                    Some(Overdue::GiveUp(envelope)) => {
                        self.cx.counters.acks_given_up.add(1);
                        let (correlation_id, dst) = (envelope.correlation_id, envelope.dst);
                        self.handler.on_notice(&mut self.cx, Notice::AckGivenUp { correlation_id, dst });
                    }
                    None => {}
                },
            }
        }
        true
    }
}

pub(super) fn handle_datagram<H: Handler>(
    handler: &mut H,
    cx: &mut Context,
    from: SocketAddr,
    bytes: &mut [u8],
    hops: u8,
) {
    if cx.is_fenced() {
        return;
    }
    // The slot byte is a hint for speed: it spares the wrong lane a decryption. It is believed once, and only for that.
    if hops == 0
        && let Some(offset) = cx.steer_offset
        && let Some(&byte) = bytes.get(usize::from(offset))
        && !cx.owns(Slot(byte))
    {
        let owner = cx.owner(Slot(byte));
        let _ = cx.pass_on(owner, from, bytes, hops);
        return;
    }
    if cx.tracer.samples() {
        cx.trace(TraceWhat::Datagram { bytes: bytes.len() as u32 });
    }
    handler.on_datagram(cx, Datagram { from, bytes, hops });
}

#[inline]
fn handle_message<H: Handler>(handler: &mut H, cx: &mut Context, envelope: &Envelope, payload: &[u8]) {
    if cx.is_fenced() {
        return; // Its sender has counted it as lost.
    }
    cx.arena.reset();
    let waited = cx.note_taken(envelope);
    if envelope.kind == Kind::ACK {
        if let Some(timer) = cx.acks.acked(envelope.correlation_id) {
            cx.counters.acks_taken.add(1);
            timer.map(|timer| cx.cancel_timer(timer));
            handler.on_notice(cx, Notice::Acked { correlation_id: envelope.correlation_id });
        }
        return;
    }
    // A sender with a newer map than ours knows better than we do that the slot is ours.
    let newer = |cx: &Context| MapVersion(envelope.map_version).is_after(cx.map.version());
    if envelope.flags.has(Flags::KEYED) && !cx.owns(envelope.slot) && !newer(cx) {
        let _ = cx.forward(envelope, payload);
        return;
    }
    if cx.tracer.samples() {
        let (class, kind, src) = (envelope.class, envelope.kind.get(), envelope.src);
        cx.trace(TraceWhat::Message { class, kind, src, waited });
    }
    handler.on_message(cx, Message { envelope, payload });
    if envelope.flags.has(Flags::ACK_WANTED) {
        cx.acknowledge(envelope);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use tessera_contracts::prefix_map::LaneIndex;

    use super::*;
    use crate::class::{DropReason, Enqueue};
    use crate::context::DATAGRAM_HOPS_MAX;
    use crate::lane::tests::{ANSWER, GIVEN_UP, two_lanes};
    use crate::time::LaneTime;

    fn peer() -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 9], 9))
    }

    #[test]
    fn a_sender_with_a_newer_map_is_believed_that_a_slot_is_ours() {
        let ([mut first, mut second], _log) = two_lanes();
        let slot = (0..=255).map(Slot).find(|slot| second.cx.owner(*slot) == LaneIndex(0)).unwrap();
        first.cx.map = Arc::new(first.cx.map.lent(slot, LaneIndex(1)).unwrap());
        assert!(first.cx.send(Envelope::to_slot(slot, Class::Coordination, ANSWER), &[]).is_accepted());
        assert!(!second.cx.owns(slot), "the new map has not come here yet");
        second.turn(LaneTime(1));
        assert_eq!((second.handler.handled, second.cx.counters.forwarded.get()), (1, 0));
    }

    #[test]
    fn a_datagram_is_passed_on_as_often_as_it_may_be_and_no_more() {
        let ([mut first, mut second], _log) = two_lanes();
        for hops in 0..DATAGRAM_HOPS_MAX {
            assert_eq!(first.cx.pass_on(LaneIndex(1), peer(), b"x", hops), Enqueue::Enqueued);
        }
        let too_often = Enqueue::Dropped(DropReason::TtlExpired);
        assert_eq!(first.cx.pass_on(LaneIndex(1), peer(), b"x", DATAGRAM_HOPS_MAX), too_often);
        assert_eq!(first.cx.pass_on(LaneIndex(0), peer(), b"x", 0), too_often, "not to itself");
        let inlet = second.inlets.iter_mut().find(|inlet| inlet.src == LaneIndex(0)).unwrap();
        let mut hops = || inlet.bulk.pop(&mut [0; 64 << 10]).map(|(frame, _)| frame);
        assert_eq!(hops(), Some(Frame::Datagram { from: peer(), hops: 1 }));
        assert_eq!(hops(), Some(Frame::Datagram { from: peer(), hops: 2 }));
        assert_eq!(hops(), None);
        let counters = &first.cx.counters;
        assert_eq!((counters.misrouted.get(), counters.misrouted_dropped.get()), (2, 2));
    }

    #[test]
    fn a_lane_that_was_given_up_does_nothing_any_more() {
        let ([mut first, mut second], _log) = two_lanes();
        let to_second = |kind| Envelope::to_lane(LaneIndex(1), Class::Coordination, kind);
        second.cx.set_timer(Duration::from_millis(1), 1).unwrap();
        for kind in [ANSWER, GIVEN_UP, ANSWER] {
            assert!(first.cx.send(to_second(kind), &[]).is_accepted());
        }
        // It is given up in the middle of a turn: the second message is its last, and no timer fires.
        assert!(!second.turn(LaneTime(2000)));
        assert_eq!((second.handler.handled, second.handler.timers), (2, 0));
        assert!(first.cx.send(to_second(ANSWER), &[]).is_accepted());
        let turns = second.cx.counters.turns.get();
        assert!(!second.turn(LaneTime(3000)));
        assert_eq!(
            second.cx.counters.turns.get(),
            turns,
            "one thread writes a counter, and that is its successor's now"
        );
        second.datagram(LaneTime(3000), peer(), &mut [0; 8]);
        assert_eq!((second.handler.handled, second.handler.timers, second.cx.sends.len()), (2, 0, 0));
        assert!(second.has_waiting(), "what came since is left where it is");
        let answer = Envelope::to_lane(LaneIndex(0), Class::Control, ANSWER);
        assert_eq!(second.cx.send(answer, &[]), Enqueue::Dropped(DropReason::NoRoute));
        assert_eq!(second.cx.pass_on(LaneIndex(0), peer(), b"x", 0), Enqueue::Dropped(DropReason::NoRoute));
        first.turn(LaneTime(3000));
        assert_eq!(first.handler.handled, 0, "nothing of it leaves the lane");
        second.cx.fence.store(false, Ordering::Relaxed);
        assert!(second.turn(LaneTime(3000)), "only the fence held it back");
    }

    #[test]
    fn a_message_whose_acknowledgement_cannot_be_waited_for_is_refused_and_not_sent() {
        let ([mut first, mut second], _log) = two_lanes();
        let wanted = |id| Envelope { correlation_id: id, ..Envelope::to_lane(LaneIndex(1), Class::Control, ANSWER) };
        let mut timers = Vec::new();
        while let Ok(timer) = first.cx.set_timer(Duration::from_secs(9), 0) {
            timers.push(timer);
        }
        assert_eq!(first.cx.send_acked(wanted(1), b"x"), Enqueue::Dropped(DropReason::Full), "no timer is left");
        first.cx.cancel_timer(timers.pop().unwrap());
        assert_eq!(first.cx.send_acked(wanted(2), b"x"), Enqueue::Enqueued);
        second.turn(LaneTime(1));
        assert_eq!(second.handler.handled, 1);
        first.turn(LaneTime(2));
        assert_eq!(first.cx.send_acked(wanted(3), b"x"), Enqueue::Enqueued, "the acknowledgement gave the timer back");
        let nowhere = Envelope { dst: LaneIndex(9), ..wanted(4) };
        first.turn(LaneTime(3));
        second.turn(LaneTime(3));
        first.turn(LaneTime(4));
        assert_eq!(first.cx.send_acked(nowhere, b"x"), Enqueue::Dropped(DropReason::NoRoute));
        assert!(first.cx.set_timer(Duration::from_secs(9), 0).is_ok(), "a message not sent keeps no timer");
        let dropped = &first.cx.counters.class(Class::Control).dropped;
        assert_eq!(dropped[DropCause::AcksFull as usize].get(), 1);
    }
}
