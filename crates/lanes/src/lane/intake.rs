//! What comes to a lane and how much of it a turn takes: messages by class, bulk frames, timers, datagrams.

use std::net::SocketAddr;

use tessera_contracts::prefix_map::{MapVersion, Slot};

use crate::ack::Overdue;
use crate::class::{Class, DropCause};
use crate::context::{Context, Timer};
use crate::envelope::{Envelope, Flags, Kind};
use crate::handler::{Datagram, Handler, Message, Notice, Record};
use crate::handoff::Import;
use crate::lane::Lane;
use crate::ring::bulk::Frame;
use crate::telemetry::trace::TraceWhat;
use crate::wal::Lsn;

/// Frames taken from one bulk ring in a turn.
const BULK_FRAMES_PER_TURN: usize = 32;
/// Timers fired in a turn; the rest are due in the next, at once.
const TIMERS_PER_TURN: usize = 256;

impl<H: Handler> Lane<H> {
    pub(super) fn take_messages(&mut self) -> bool {
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
        for at in 0..self.inlets.len() {
            for _ in 0..BULK_FRAMES_PER_TURN {
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
                        self.handler.on_import(&mut self.cx, record);
                    }
                    Frame::SlotDone { slot, map_version } => {
                        self.arrived[usize::from(slot)] = Some(MapVersion(map_version));
                        let safe_at = self.cx.log.as_ref().map_or(Lsn(0), |log| log.last());
                        self.handoffs.imports.push(Import { slot: Slot(slot), from: src, safe_at });
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

fn handle_message<H: Handler>(handler: &mut H, cx: &mut Context, envelope: &Envelope, payload: &[u8]) {
    if cx.is_fenced() {
        return; // Its sender has counted it as lost.
    }
    cx.arena.reset();
    let waited = cx.now.stamp().wrapping_sub(envelope.queued_at);
    // A sender's clock read may be a moment after ours: that is no wait of 71 minutes.
    let waited = if waited > u32::MAX / 2 { 0 } else { waited };
    cx.counters.class(envelope.class).latency.record(waited);
    if envelope.kind == Kind::ACK {
        if let Some(timer) = cx.acks.acked(envelope.correlation_id) {
            timer.map(|timer| cx.cancel_timer(timer));
            handler.on_notice(cx, Notice::Acked { correlation_id: envelope.correlation_id });
        }
        return;
    }
    // A sender with a newer map than ours knows better than we do that the slot is ours.
    let newer = MapVersion(envelope.map_version).is_after(cx.map.version());
    if envelope.flags.has(Flags::KEYED) && !newer && !cx.owns(envelope.slot) {
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
