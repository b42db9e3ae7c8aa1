//! One lane without its thread: a handler, its rings, its timers, and the turn of its loop.
//!
//! A real runtime turns it on a thread of its own with a socket; [`simulated`](crate::simulated) turns many on one thread.
//! Both run exactly this code.

mod hand_over;
mod intake;
mod logging;

use std::net::SocketAddr;
use std::time::Duration;

use tessera_contracts::prefix_map::{LaneIndex, MapVersion, PrefixMap, Slot};

use crate::class::{Class, DropCause};
use crate::context::{Arrival, Context};
use crate::drain::Drain;
use crate::envelope::PAYLOAD_BYTES_MAX;
use crate::handler::{Handler, Notice, Record};
use crate::handoff::{ExportStep, Handoffs};
use crate::lane::intake::handle_datagram;
use crate::orders::OrderInbox;
use crate::ring::link::{Inlet, Link};
use crate::time::LaneTime;
use crate::wal::Lsn;

/// How soon a lane looks again at something only another lane can move on: a full ring, a slow hand-over.
const RETRY_DELAY: Duration = Duration::from_millis(1);

/// What the supervisor gives a lane that is no plain data: the ends of rings. They come in order.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A way to another lane, new or in place of one to its dead predecessor.
    Link(Box<Link>),
    /// The way from another lane.
    Inlet(Box<Inlet>),
    /// The lane is gone for good.
    Unlink(LaneIndex),
    /// The way of the supervisor's orders.
    Orders(OrderInbox),
}

#[derive(Clone, Copy, Debug)]
enum SnapshotStep {
    Writing(u64),
    Ending,
}

/// A lane.
#[derive(Debug)]
pub(crate) struct Lane<H> {
    handler: H,
    pub(crate) cx: Box<Context>,
    inlets: Vec<Inlet>,
    orders: Option<OrderInbox>,
    drain: Drain,
    handoffs: Handoffs,
    /// By slot, the map version of the last hand-over that came to its end here.
    arrived: Box<[Option<MapVersion>; 256]>,
    /// Slots of which a record came that the log did not take. Their former owners are not told that they are safe.
    unlogged: Box<[bool; 256]>,
    /// Records of slots wait in their rings until the log has room for them.
    is_held_up_by_log: bool,
    /// How far the running snapshot has come.
    snapshot: Option<SnapshotStep>,
    /// The log has records under slots that they no longer have: until a snapshot has taken their place, no slot can be released in it.
    has_former_slots: bool,
    durable_seen: Lsn,
    log_failure_told: bool,
    scratch: Box<[u8; PAYLOAD_BYTES_MAX]>,
    /// Made when the first frame comes.
    bulk_body: Vec<u8>,
    retiring: bool,
    /// Messages, frames and timers handled so far: a simulated turn is charged for them.
    pub(crate) work: u64,
    /// Something is kept back that only another lane can make room for.
    blocked: bool,
}

impl<H: Handler> Lane<H> {
    pub(crate) fn new(handler: H, cx: Box<Context>) -> Self {
        Self {
            handler,
            cx,
            inlets: Vec::new(),
            orders: None,
            drain: Drain::default(),
            handoffs: Handoffs::default(),
            arrived: Box::new([None; 256]),
            unlogged: Box::new([false; 256]),
            is_held_up_by_log: false,
            snapshot: None,
            has_former_slots: false,
            durable_seen: Lsn(0),
            log_failure_told: false,
            scratch: Box::new([0; PAYLOAD_BYTES_MAX]),
            bulk_body: Vec::new(),
            retiring: false,
            work: 0,
            blocked: false,
        }
    }

    /// Hands the handler the records of its log. Slots that belong to other lanes by now are handed to them after the start.
    ///
    /// A lane that is `restarted` may have died while it handed slots over. It cannot know which, so it hands over every slot
    /// that is not its own, most of them empty: their new owners then know that nothing more will come. Slots that were on their way to it when it
    /// died are sent again, and it awaits them again. So are those that came to it by a map of which its predecessor had not heard.
    ///
    /// `former` is the map before the present one, for a lane that takes the place of another.
    pub(crate) fn recover<'r>(&mut self, records: impl IntoIterator<Item = Record<'r>>, former: Option<&PrefixMap>) {
        let version = self.cx.map.version();
        let had_heard = self.cx.counters.map_version.get() == u64::from(version.0);
        let mut foreign = [former.is_some(); 256];
        for record in records {
            let slot = self.handler.slot_of(&record);
            foreign[usize::from(slot.0)] = true;
            self.has_former_slots |= slot != record.slot;
            self.handler.on_recovered(record);
        }
        for slot in (0..=u8::MAX).map(Slot).filter(|slot| foreign[usize::from(slot.0)]) {
            let owner = self.cx.owner(slot);
            if owner != self.cx.lane {
                self.handoffs.export(slot, owner);
            } else if let Some(former) = former {
                let has_moved = !had_heard && former.lane_of_slot(slot) != self.cx.lane;
                let since = self.cx.counters.arriving.get(slot).or(has_moved.then_some(version));
                self.cx.arrivals[usize::from(slot.0)] = since.map_or(Arrival::None, Arrival::Awaited);
            }
        }
        self.publish_handoffs();
        // Not before: if this lane dies while it recovers, its successor has to know as well.
        self.cx.counters.map_version.set(u64::from(version.0));
    }

    pub(crate) fn handler(&self) -> &H {
        &self.handler
    }

    /// A record of a lane that no longer exists. If its slot is not ours either, it is handed on.
    pub(crate) fn import(&mut self, now: LaneTime, record: Record<'_>) {
        self.enter(now);
        let record = Record { slot: self.handler.slot_of(&record), ..record };
        self.handler.on_import(&mut self.cx, record);
        let owner = self.cx.owner(record.slot);
        if owner != self.cx.lane && !self.handoffs.exports.iter().any(|export| export.slot == record.slot) {
            self.handoffs.export(record.slot, owner);
        }
    }

    pub(crate) fn start(&mut self, now: LaneTime) {
        self.enter(now);
        self.handler.on_start(&mut self.cx);
        self.cx.counters.incarnations.add(1);
    }

    pub(crate) fn stop(&mut self, now: LaneTime) {
        self.enter(now);
        self.handler.on_notice(&mut self.cx, Notice::Stopping);
        self.flush();
    }

    fn enter(&mut self, now: LaneTime) {
        self.cx.now = self.cx.now.max(now);
        self.cx.arena.reset();
    }

    /// A datagram from the socket, or from a virtual network.
    pub(crate) fn datagram(&mut self, now: LaneTime, from: SocketAddr, bytes: &mut [u8]) {
        self.enter(now);
        self.cx.counters.datagrams_in.add(1);
        handle_datagram(&mut self.handler, &mut self.cx, from, bytes, 0);
    }

    pub(crate) fn command(&mut self, now: LaneTime, command: H::Command) {
        self.enter(now);
        self.cx.counters.commands.add(1);
        self.handler.on_command(&mut self.cx, command);
    }

    pub(crate) fn mail(&mut self, now: LaneTime, mail: Mail) {
        self.enter(now);
        match mail {
            Mail::Link(link) => self.install_link(link),
            Mail::Inlet(inlet) => {
                for old in self.inlets.iter_mut().filter(|old| old.src == inlet.src) {
                    old.replaced = true;
                }
                self.inlets.push(*inlet);
            }
            Mail::Unlink(lane) => {
                for old in self.inlets.iter_mut().filter(|old| old.src == lane) {
                    old.replaced = true;
                }
                if let Some(link) = self.cx.links.get_mut(usize::from(lane.0)).and_then(Option::take) {
                    let lost = self.count_lost(&link);
                    self.handoffs.lane_died(lane);
                    self.handler.on_notice(&mut self.cx, Notice::LaneDown { lane, lost });
                }
            }
            Mail::Orders(orders) => self.orders = Some(orders),
        }
    }

    fn install_link(&mut self, link: Box<Link>) {
        let lane = link.dst();
        let index = usize::from(lane.0);
        if self.cx.links.len() <= index {
            self.cx.links.resize_with(index + 1, || None);
        }
        if let Some(old) = self.cx.links[index].replace(link) {
            let lost = self.count_lost(&old);
            self.handoffs.lane_died(lane);
            self.handler.on_notice(&mut self.cx, Notice::LaneDown { lane, lost });
        }
        if lane != self.cx.lane {
            self.handler.on_notice(&mut self.cx, Notice::LaneUp { lane });
        }
    }

    /// Counts the messages lost in a link, by class, and returns the total.
    fn count_lost(&self, link: &Link) -> u64 {
        Class::ALL
            .into_iter()
            .map(|class| {
                let lost = link.depth(class) as u64;
                self.cx.counters.class(class).dropped[DropCause::LaneDown as usize].add(lost);
                lost
            })
            .sum()
    }

    /// Carries out orders before the first turn.
    pub(crate) fn obey(&mut self, now: LaneTime) {
        self.enter(now);
        self.take_orders();
    }

    /// One round over everything that is not the socket. Says whether there was anything to do.
    pub(crate) fn turn(&mut self, now: LaneTime) -> bool {
        if self.cx.is_fenced() {
            return false;
        }
        self.enter(now);
        self.cx.counters.turns.add(1);
        self.inlets.extend(self.cx.own_inlet.take());
        let mut busy = false;
        let steps: [fn(&mut Self) -> bool; 7] = [
            Self::take_orders,
            Self::take_messages,
            Self::take_bulk,
            Self::fire_timers,
            Self::watch_log,
            Self::hand_over,
            Self::step_snapshot,
        ];
        for step in steps {
            busy |= step(self);
            if self.cx.is_fenced() {
                return false; // It stalled in that step and was replaced: its successor does the rest.
            }
        }
        let heard_from = self.inlets.len();
        self.inlets.retain(|inlet| !inlet.is_finished());
        if heard_from > 0 && self.inlets.is_empty() {
            // From now on no caller looks.
            for class in &self.cx.counters.classes {
                class.depth.set(0);
                class.fullest_permille.set(0);
            }
        }
        self.flush();
        busy
    }

    /// Moves on messages that were kept back, and wakes every lane that got one.
    fn flush(&mut self) {
        self.blocked = self.handoffs.exports.iter().any(|export| export.step != ExportStep::AwaitingAck);
        self.blocked |= self.snapshot.is_some() || !self.handoffs.imports.is_empty() || self.is_held_up_by_log;
        for link in self.cx.links.iter_mut().flatten() {
            self.blocked |= !link.flush();
            if link.wake_if_touched() {
                self.cx.counters.wakes.add(1);
            }
        }
        if let Some(log) = &mut self.cx.log {
            log.wake_if_touched();
        }
    }

    /// Whether something waits that a turn would take: the second look before sleeping.
    pub(crate) fn has_waiting(&self) -> bool {
        self.inlets.iter().any(|inlet| inlet.has_messages() || (!self.is_held_up_by_log && !inlet.is_empty()))
            || self.cx.own_inlet.is_some()
            || self.orders.as_ref().is_some_and(|orders| orders.waiting() > 0)
            || self.cx.log.as_ref().is_some_and(|log| {
                log.progress.durable() > self.durable_seen || (log.progress.has_failed() && !self.log_failure_told)
            })
            || self.cx.timers.next_wake().is_some_and(|tick| tick <= self.cx.now.millis())
    }

    /// When the lane must turn again though nothing comes in; `None` for never.
    pub(crate) fn next_wake(&self) -> Option<LaneTime> {
        let timer = self.cx.timers.next_wake().map(|tick| LaneTime(tick.saturating_mul(1000)));
        let asked = self.cx.log.as_ref().is_some_and(|log| log.progress.is_snapshot_wanted());
        let retry = (self.blocked || asked).then(|| self.cx.now.after(RETRY_DELAY));
        [timer, retry].into_iter().flatten().min()
    }

    /// Whether the lane was told to retire.
    pub(crate) fn is_retiring(&self) -> bool {
        self.retiring
    }

    /// Whether nothing is on its way from this lane to another or back.
    pub(crate) fn has_nothing_to_hand_over(&self) -> bool {
        self.handoffs.is_empty()
    }

    /// Whether a lane told to retire has nothing left: every slot handed over, every ring empty both ways.
    pub(crate) fn is_retired(&self) -> bool {
        let me = self.cx.lane;
        self.retiring
            && self.handoffs.is_empty()
            && self.inlets.iter().all(|inlet| inlet.is_empty())
            && self
                .cx
                .links
                .iter()
                .flatten()
                .filter(|link| link.dst() != me)
                .all(|link| link.is_drained() || link.is_abandoned())
    }
}

#[cfg(test)]
pub(in crate::lane) mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use tessera_contracts::prefix_map::{PrefixMap, Selector};

    use super::*;
    use crate::class::{DropReason, Enqueue};
    use crate::config::LaneConfig;
    use crate::envelope::{Envelope, Kind};
    use crate::handler::{Datagram, Message, RecordSink, Walk};
    use crate::ring::link::link;
    use crate::ring::park::Parker;
    use crate::ring::pressure::Pressure;
    use crate::wal::Importance;
    use crate::wal::queue::{Entry, LogReceiver, WriterParkers, log_queue};

    /// Does everything a busy handler does: answers, tells the other lane in two classes, logs, sets timers and stops them.
    #[derive(Default)]
    pub(in crate::lane) struct Busy {
        pub(in crate::lane) handled: u64,
        pub(in crate::lane) timers: u64,
        /// Records of a thousand bytes in its snapshot.
        pub(in crate::lane) state: u64,
        /// How far slots have moved since they were logged.
        pub(in crate::lane) moved_by: u8,
        /// Records that came from another lane.
        pub(in crate::lane) imported: u64,
        downs: Vec<(LaneIndex, u64)>,
    }

    const ASK: Kind = Kind::new(1);
    pub(in crate::lane) const ANSWER: Kind = Kind::new(2);
    /// The lane is given up while it handles this.
    pub(in crate::lane) const GIVEN_UP: Kind = Kind::new(3);

    impl Handler for Busy {
        type Command = ();

        fn on_datagram(&mut self, cx: &mut Context, datagram: Datagram<'_>) {
            let span = cx.arena.push(datagram.bytes).unwrap();
            let other = LaneIndex(1 - cx.lane().0);
            let correlation_id = cx.random_u64() | 1;
            let ask = Envelope { correlation_id, ..Envelope::to_lane(other, Class::Coordination, ASK) };
            assert!(cx.send(ask, datagram.bytes).is_accepted());
            assert!(cx.send(Envelope::to_lane(other, Class::Hints, ASK), &[]).is_accepted());
            let control = Envelope { correlation_id, ..Envelope::to_lane(other, Class::Control, ASK) };
            assert!(cx.send_acked(control, b"now").is_accepted());
            cx.log(1, Slot(3), datagram.bytes, Importance::Hard).unwrap();
            let timer = cx.set_timer(Duration::from_millis(500), 1).unwrap();
            cx.cancel_timer(timer);
            cx.set_timer(Duration::from_millis(1), 2).unwrap();
            let kept = cx.keep(datagram.bytes).unwrap();
            assert_eq!(kept, datagram.bytes);
            cx.pool.give(kept);
            assert_eq!(cx.arena.get(span).len(), datagram.bytes.len());
            cx.send_datagram_with(datagram.from, |out| {
                out[..datagram.bytes.len()].copy_from_slice(datagram.bytes);
                datagram.bytes.len()
            })
            .unwrap();
        }

        fn on_message(&mut self, cx: &mut Context, message: Message<'_>) {
            self.handled += 1;
            if message.envelope.kind == GIVEN_UP {
                cx.fence.store(true, Ordering::Relaxed);
            }
            if message.envelope.kind == ASK && message.envelope.class == Class::Coordination {
                let correlation_id = message.envelope.correlation_id;
                let answer =
                    Envelope { correlation_id, ..Envelope::to_lane(message.envelope.src, Class::Coordination, ANSWER) };
                assert!(cx.send(answer, message.payload).is_accepted());
            }
        }

        fn on_timer(&mut self, _: &mut Context, _: u64) {
            self.timers += 1;
        }

        fn on_notice(&mut self, _: &mut Context, notice: Notice) {
            if let Notice::LaneDown { lane, lost } = notice {
                self.downs.push((lane, lost));
            }
        }

        fn slot_of(&self, record: &Record<'_>) -> Slot {
            Slot(record.slot.0.wrapping_add(self.moved_by))
        }

        fn on_import(&mut self, cx: &mut Context, record: Record<'_>) {
            self.imported += 1;
            let _ = cx.log(record.kind, record.slot, record.payload, Importance::Hard);
        }

        fn on_snapshot(&mut self, from: u64, sink: &mut RecordSink<'_>) -> Walk {
            let stopped = (from..self.state).find(|_| !sink.put(1, Slot(3), &[7; 1000]));
            stopped.map_or(Walk::Done, Walk::More)
        }
    }

    pub(in crate::lane) fn two_lanes() -> ([Lane<Busy>; 2], LogReceiver) {
        let config = LaneConfig::default();
        let map = Arc::new(PrefixMap::new(Selector::default(), 2).unwrap());
        let mut lanes = [0, 1].map(|lane| {
            let cx = Context::new(LaneIndex(lane), &config, map.clone(), [lane; 32], LaneTime(0), Arc::default());
            Lane::new(Busy::default(), Box::new(cx))
        });
        for (src, dst) in [(0, 1), (1, 0), (0, 0), (1, 1)] {
            let (src_lane, dst_lane) = (LaneIndex(src as u8), LaneIndex(dst as u8));
            let (out, inlet) =
                link(src_lane, dst_lane, &config.rings, Parker::without_socket(), Arc::new(Pressure::default()));
            lanes[src].mail(LaneTime(0), Mail::Link(Box::new(out)));
            lanes[dst].mail(LaneTime(0), Mail::Inlet(Box::new(inlet)));
        }
        let (sender, receiver) = log_queue(1 << 20, WriterParkers::default());
        lanes[0].cx.log = Some(sender);
        (lanes, receiver)
    }

    #[test]
    fn a_sender_to_a_dead_lane_learns_how_many_messages_were_lost() {
        let ([mut first, _second], _log) = two_lanes();
        let to = Envelope::to_lane(LaneIndex(1), Class::Coordination, ANSWER);
        for envelope in [to, to, to, Envelope { class: Class::Control, ..to }] {
            assert!(first.cx.send(envelope, &[]).is_accepted());
        }
        first.mail(LaneTime(1), Mail::Unlink(LaneIndex(1)));
        assert_eq!(first.handler.downs, [(LaneIndex(1), 4)]);
        let dropped = |class| first.cx.counters.class(class).dropped[DropCause::LaneDown as usize].get();
        assert_eq!(Class::ALL.map(dropped), [1, 3, 0]);
        assert_eq!(first.cx.send(to, &[]), Enqueue::Dropped(DropReason::NoRoute));
    }

    #[test]
    fn a_lane_without_senders_says_that_nothing_waits() {
        let ([mut first, mut second], _log) = two_lanes();
        for _ in 0..3 {
            assert!(first.cx.send(Envelope::to_lane(LaneIndex(1), Class::Coordination, ANSWER), &[]).is_accepted());
        }
        drop(first);
        for lane in [0, 1] {
            second.mail(LaneTime(1), Mail::Unlink(LaneIndex(lane)));
        }
        second.turn(LaneTime(2));
        assert_eq!((second.handler.handled, second.inlets.len()), (3, 0), "what was sent is heard first");
        let counters = second.cx.counters.class(Class::Coordination);
        assert_eq!((counters.depth.get(), counters.depth_high_water.get()), (0, 3));
    }

    #[test]
    fn a_forwarded_message_has_a_hop_less_to_live_and_its_last_hop_is_not_forwarded() {
        let ([mut first, mut second], _log) = two_lanes();
        let slot = (0..=255).map(Slot).find(|slot| first.cx.owner(*slot) == LaneIndex(1)).unwrap();
        let mut forward =
            |ttl| first.cx.forward(&Envelope { ttl, ..Envelope::to_slot(slot, Class::Coordination, ANSWER) }, &[]);
        assert_eq!([3, 2].map(&mut forward), [Enqueue::Enqueued; 2]);
        assert_eq!(forward(1), Enqueue::Dropped(DropReason::TtlExpired));
        let inlet = second.inlets.iter_mut().find(|inlet| inlet.src == LaneIndex(0)).unwrap();
        let ring = &mut inlet.classes[Class::Coordination.index()];
        let mut ttl = || ring.pop_with(&mut [0; PAYLOAD_BYTES_MAX], |envelope, _| envelope.ttl);
        assert_eq!([ttl(), ttl(), ttl()], [Some(2), Some(1), None]);
    }

    #[test]
    fn a_busy_lane_does_not_allocate() {
        let ([mut first, mut second], mut log) = two_lanes();
        let mut payload = Vec::with_capacity(4096);
        let mut datagram = [7u8; 200];
        let from: SocketAddr = "192.0.2.9:9".parse().unwrap();
        let mut serve = |rounds: u64, start: u64| {
            for round in start..start + rounds {
                let now = LaneTime(round * 100);
                for _ in 0..16 {
                    first.datagram(now, from, &mut datagram);
                }
                first.cx.sends.advance(16);
                for _ in 0..2 {
                    first.turn(now);
                    second.turn(now);
                }
                while log.pop(&mut payload).is_some() {}
            }
        };
        serve(100, 0);
        let (allocations, ()) = alloc_counter::count(|| serve(1000, 100));
        assert_eq!(allocations, 0, "per datagram, message, timer, acknowledgement and log record");
        assert_eq!(first.cx.counters.payloads_kept.get(), 1100 * 16, "every copy is counted");
        assert_eq!(first.cx.keep(&[0; 1501]), None, "longer than a buffer: the pool does not grow");
        assert_eq!((first.cx.pool.available(), first.cx.counters.payloads_kept.get()), (64, 1100 * 16));
        assert!(second.handler.handled >= 3 * 16 * 1000, "{}", second.handler.handled);
        assert!(first.handler.timers > 10_000);
    }

    #[test]
    fn a_wish_for_a_snapshot_that_meets_a_full_queue_stands() {
        let ([mut first, _second], mut log) = two_lanes();
        let progress = first.cx.log.as_ref().unwrap().progress.clone();
        for len in [1000, 0] {
            while first.cx.log(1, Slot(3), &vec![0; len], Importance::Hard).is_ok() {}
        }
        progress.want_snapshot();
        first.turn(LaneTime(1));
        assert!(progress.is_snapshot_wanted(), "the writer asks only once");
        assert!(first.next_wake().is_some(), "and the lane looks again by itself");
        let mut payload = Vec::new();
        while log.pop(&mut payload).is_some() {}
        first.turn(LaneTime(2000));
        let queued: Vec<Entry> = std::iter::from_fn(|| log.pop(&mut payload)).map(|(entry, _)| entry).collect();
        assert_eq!(queued, [Entry::SnapshotBegin, Entry::SnapshotEnd]);
        assert!(!progress.is_snapshot_wanted());
    }
}
