//! A lane's part in slots that change owner: see [`handoff`](crate::handoff) for the protocol.

use std::sync::Arc;

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, Slot};

use crate::context::{Arrival, link_to};
use crate::handler::{Handler, Notice, Record, RecordSink, Walk};
use crate::handoff::{ExportStep, Import};
use crate::lane::Lane;
use crate::ring::bulk::Frame;
use crate::wal::queue::Entry;
use crate::wal::{Importance, Lsn};

impl<H: Handler> Lane<H> {
    pub(super) fn adopt(&mut self, map: Arc<PrefixMap>) {
        if !map.version().is_after(self.cx.map.version()) {
            return; // Mail is in order, so this is the map we started with.
        }
        let me = self.cx.lane;
        let old = std::mem::replace(&mut self.cx.map, map);
        for moved in old.moves_to(&self.cx.map) {
            if moved.from == me {
                self.cx.arrivals[usize::from(moved.slot.0)] = Arrival::None;
                self.handoffs.export(moved.slot, moved.to);
            } else if moved.to == me {
                // If it comes back before it was all gone, our copy is still whole.
                self.handoffs.cancel(moved.slot);
                // Its former owner may have learnt of the map before us, and be done already.
                let done = self.arrived[usize::from(moved.slot.0)];
                let version = self.cx.map.version();
                let is_done = done.is_some_and(|done| done == version || done.is_after(version));
                self.cx.arrivals[usize::from(moved.slot.0)] =
                    if is_done { Arrival::None } else { Arrival::Awaited(version) };
            } else if let Some(export) = self.handoffs.exports.iter().find(|export| export.slot == moved.slot) {
                let slot = export.slot;
                self.handoffs.export(slot, moved.to);
            }
        }
        let version = self.cx.map.version();
        self.publish_handoffs();
        self.cx.counters.map_version.set(u64::from(version.0));
        self.handler.on_notice(&mut self.cx, Notice::MapChanged { version });
    }

    pub(super) fn publish_handoffs(&self) {
        let mut arriving = 0;
        for (slot, arrival) in (0..=u8::MAX).map(Slot).zip(self.cx.arrivals.iter()) {
            let since = match arrival {
                Arrival::None => None,
                // Records that have come and are not known to be safe go with the lane.
                Arrival::Awaited(since) | Arrival::Whole(since) => Some(*since),
            };
            arriving += usize::from(since.is_some());
            self.cx.counters.arriving.set(slot, since);
        }
        self.cx.counters.handoffs_pending.set((self.handoffs.exports.len() + arriving) as u64);
    }

    pub(super) fn slot_left(&mut self, slot: Slot, to: LaneIndex) {
        if !self.handoffs.acked(slot, to) {
            return;
        }
        if let Some(log) = self.cx.log.as_mut().filter(|_| !self.has_former_slots) {
            // If there is no room, a restart hands the slot over once more: dearer, not wrong. So it does where the log has other
            // records under this slot's present number, which would go with it.
            let _ = log.push(Entry::Released { slot }, &[], Importance::Hard);
        }
        self.publish_handoffs();
        self.handler.on_notice(&mut self.cx, Notice::SlotLeft { slot });
    }

    /// Tells former owners which slots are safe here.
    pub(super) fn settle_imports(&mut self) -> bool {
        let mut busy = false;
        let mut at = 0;
        // On disk, under every durability: records that its former owner had there for long must survive the next power failure.
        let synced = self.cx.log.as_ref().map_or(Lsn(0), |log| log.progress.synced());
        while at < self.handoffs.imports.len() {
            let import = self.handoffs.imports[at];
            // By a newer map the slot is the sender's again, and goes back to it. If it were told that its records are safe here, and had not
            // heard of that map, it would drop the slot with the records that came back already. It keeps it when it hears.
            if self.cx.owner(import.slot) == import.from && self.cx.map.version().is_after(import.by) {
                self.handoffs.imports.swap_remove(at);
                continue;
            }
            let told = import.safe_at <= synced
                && link_to(&mut self.cx.links, import.from).is_some_and(|link| {
                    link.touch();
                    link.bulk.try_push(Frame::SlotSafe { slot: import.slot.0 }, &[])
                });
            if !told {
                at += 1;
                continue;
            }
            self.handoffs.imports.swap_remove(at);
            let arrival = &mut self.cx.arrivals[usize::from(import.slot.0)];
            if *arrival == Arrival::Whole(import.by) {
                *arrival = Arrival::None;
            }
            self.publish_handoffs();
            self.handler.on_notice(&mut self.cx, Notice::SlotArrived { slot: import.slot });
            busy = true;
        }
        let is_late = |import: &Import| import.safe_at > synced && import.safe_at <= self.durable_seen;
        if let Some(log) = self.cx.log.as_mut().filter(|_| self.handoffs.imports.iter().any(is_late)) {
            log.want_sync();
        }
        busy
    }

    /// Sends as much of the slot being handed over as its bulk ring takes.
    pub(super) fn hand_over(&mut self) -> bool {
        let Some(export) = self.handoffs.active() else { return false };
        let Some(link) = link_to(&mut self.cx.links, export.to) else { return false };
        link.touch();
        let mut sent = 0;
        if let ExportStep::Sending(from) = export.step {
            let bulk = &mut link.bulk;
            let mut put = |record: Record<'_>| {
                // A record that can never fit would stop the hand-over for ever; the log has the same bound, so it cannot be.
                assert!(bulk.can_ever_fit(record.payload.len()), "an exported record fits the bulk ring");
                let taken = bulk.try_push(Frame::Record { kind: record.kind, slot: record.slot.0 }, record.payload);
                sent += usize::from(taken);
                taken
            };
            export.step = match self.handler.on_export(export.slot, from, &mut RecordSink { put: &mut put }) {
                Walk::More(next) => ExportStep::Sending(next),
                Walk::Done => ExportStep::Closing,
            };
        }
        let done = Frame::SlotDone { slot: export.slot.0, map_version: self.cx.map.version().0 };
        if export.step == ExportStep::Closing && link.bulk.try_push(done, &[]) {
            export.step = ExportStep::AwaitingAck;
            sent += 1;
        }
        sent > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::lane::Mail;
    use crate::lane::tests::{Busy, two_lanes};
    use crate::time::LaneTime;
    use crate::wal::queue::LogReceiver;

    #[test]
    fn a_slot_is_released_in_the_log_once_nothing_else_is_there_under_its_number() {
        for moved_by in [0, 1] {
            let ([mut first, mut second], mut log) = two_lanes();
            first.handler.moved_by = moved_by;
            let foreign = (1..=u8::MAX).map(Slot).find(|slot| first.cx.owner(*slot) == LaneIndex(1)).unwrap();
            let mut entries = |first: &mut Lane<_>| {
                first.turn(LaneTime(1));
                let mut payload = Vec::new();
                std::iter::from_fn(|| log.pop(&mut payload)).map(|(entry, _)| entry).collect::<Vec<_>>()
            };
            let logged = Record { kind: 1, slot: Slot(foreign.0 - moved_by), payload: &[7] };
            first.recover([logged], None);
            first.handoffs.exports[0].step = ExportStep::AwaitingAck;
            first.slot_left(foreign, LaneIndex(1));
            let released = Entry::Released { slot: foreign };
            let before = entries(&mut first);
            assert_eq!(before.contains(&released), moved_by == 0, "records under it would go with it");
            assert_eq!(before.contains(&Entry::SnapshotEnd), moved_by == 1, "all is written anew, as it is now");
            first.handoffs.export(foreign, LaneIndex(1));
            first.handoffs.exports[0].step = ExportStep::AwaitingAck;
            first.slot_left(foreign, LaneIndex(1));
            assert!(entries(&mut first).contains(&released), "and there is nothing else any more");
            second.turn(LaneTime(2));
        }
    }

    #[test]
    fn a_slot_that_goes_back_to_its_sender_is_not_dropped_there() {
        for goes_back_first in [false, true] {
            let ([mut first, mut second], _log) = two_lanes();
            first.cx.log = None;
            let slot = (0..=u8::MAX).map(Slot).find(|slot| first.cx.owner(*slot) == LaneIndex(0)).unwrap();
            let lent = Arc::new(first.cx.map.lent(slot, LaneIndex(1)).unwrap());
            second.handoffs.export(slot, LaneIndex(0));
            second.turn(LaneTime(1));
            assert_eq!(second.handoffs.exports[0].step, ExportStep::AwaitingAck);
            if goes_back_first {
                first.adopt(lent.clone());
            } else {
                first.take_bulk();
                first.adopt(lent.clone());
            }
            first.turn(LaneTime(2));
            first.turn(LaneTime(3));
            assert!(first.handoffs.imports.is_empty());
            second.turn(LaneTime(4));
            assert_eq!(second.handoffs.exports.len(), 1, "it was not told to drop it");
            second.adopt(lent);
            assert!(second.handoffs.exports.is_empty(), "and now it knows better");
        }
    }

    /// The second lane hands a slot with so many records of a thousand bytes to the first, which has a log.
    fn handed_over(records: u64) -> ([Lane<Busy>; 2], LogReceiver) {
        let ([first, mut second], log) = two_lanes();
        let slot = (0..=u8::MAX).map(Slot).find(|slot| first.cx.owner(*slot) == LaneIndex(0)).unwrap();
        second.handoffs.export(slot, LaneIndex(0));
        second.handoffs.exports[0].step = ExportStep::AwaitingAck;
        let version = second.cx.map.version().0;
        let link = link_to(&mut second.cx.links, LaneIndex(0)).unwrap();
        for _ in 0..records {
            assert!(link.bulk.try_push(Frame::Record { kind: 1, slot: slot.0 }, &[7; 1000]));
        }
        assert!(link.bulk.try_push(Frame::SlotDone { slot: slot.0, map_version: version }, &[]));
        ([first, second], log)
    }

    #[test]
    fn records_wait_for_a_log_that_lags_and_their_slot_is_safe_when_they_are_in_it() {
        let ([mut first, mut second], mut log) = handed_over(3);
        let progress = first.cx.log.as_ref().unwrap().progress.clone();
        while first.cx.log(1, Slot(3), &[0; 1000], Importance::Hard).is_ok() {}
        let all_is_safe = |first: &Lane<Busy>| {
            let last = first.cx.log.as_ref().unwrap().last();
            progress.set_synced(last);
            progress.set_durable(last);
        };
        all_is_safe(&first);
        for turn in 1..5 {
            first.turn(LaneTime(turn));
            second.turn(LaneTime(turn));
        }
        assert_eq!(second.handoffs.exports.len(), 1, "a record in no log is not safe");
        assert!(!first.has_waiting() && first.next_wake().is_some(), "it looks again now and then, and does not spin");
        let mut payload = Vec::new();
        while log.pop(&mut payload).is_some() {}
        first.turn(LaneTime(5000));
        let queued = std::iter::from_fn(|| log.pop(&mut payload)).count();
        assert_eq!((first.handler.imported, queued), (3, 3), "all of it is on its way to the log");
        second.turn(LaneTime(5001));
        assert_eq!(second.handoffs.exports.len(), 1, "and not there yet");
        all_is_safe(&first);
        first.turn(LaneTime(5002));
        second.turn(LaneTime(5003));
        assert!(second.handoffs.is_empty());
    }

    #[test]
    fn a_record_that_a_failed_log_did_not_take_stays_in_the_log_of_its_former_owner() {
        let ([mut first, mut second], _log) = handed_over(3);
        // It failed with nothing on its way: all that was logged before is durable.
        first.cx.log.as_ref().unwrap().progress.fail();
        for turn in 1..5 {
            first.turn(LaneTime(turn));
            second.turn(LaneTime(turn));
        }
        assert_eq!(first.handler.imported, 3, "it serves them from memory");
        assert_eq!(second.handoffs.exports.len(), 1);
    }

    #[test]
    fn a_lane_that_dies_while_a_slot_arrives_awaits_it_again() {
        for had_come in [false, true] {
            let ([mut first, mut second], _log) = two_lanes();
            let slot = (0..=u8::MAX).map(Slot).find(|slot| first.cx.owner(*slot) == LaneIndex(1)).unwrap();
            let former = first.cx.map.clone();
            let lent = Arc::new(former.lent(slot, LaneIndex(0)).unwrap());
            first.adopt(lent.clone());
            second.adopt(lent);
            if had_come {
                let link = link_to(&mut second.cx.links, LaneIndex(0)).unwrap();
                assert!(link.bulk.try_push(Frame::Record { kind: 1, slot: slot.0 }, &[7; 100]));
                second.turn(LaneTime(1));
                first.turn(LaneTime(2));
                assert!(first.cx.is_settled(slot), "all of it has come, and its log does not have it yet");
            }
            let ([mut fresh, _], _log) = two_lanes();
            let Context { map, counters, .. } = *first.cx;
            fresh.cx.map = map;
            fresh.cx.counters = Arc::new((*counters).clone());
            let mut died = second;
            died.mail(LaneTime(3), Mail::Unlink(LaneIndex(0)));
            fresh.recover([], Some(&former));
            assert!(!fresh.cx.is_settled(slot), "it may have been lost on its way: {had_come}");
            let others = (0..=u8::MAX).map(Slot).filter(|other| fresh.cx.owns(*other) && *other != slot);
            assert!(others.into_iter().all(|other| fresh.cx.is_settled(other)));
        }
    }

    #[test]
    fn a_lane_that_dies_before_it_hears_that_a_slot_is_its_own_has_a_successor_that_awaits_it() {
        let ([mut first, _], _log) = two_lanes();
        let former = first.cx.map.clone();
        first.recover([], None);
        let slot = (0..=u8::MAX).map(Slot).find(|slot| former.lane_of_slot(*slot) == LaneIndex(1)).unwrap();
        let lent = Arc::new(former.lent(slot, LaneIndex(0)).unwrap());
        // The first successor dies, too: while it recovers, and then when it has.
        let mut counters = first.cx.counters.clone();
        for dies_while_it_recovers in [true, false, false] {
            let ([mut fresh, _], _log) = two_lanes();
            fresh.cx.map = lent.clone();
            fresh.cx.counters = Arc::new((*counters).clone());
            if !dies_while_it_recovers {
                fresh.recover([], Some(&former));
                assert!(!fresh.cx.is_settled(slot), "its former owner has begun to send it");
                let awaited = (0..=u8::MAX).map(Slot).filter(|slot| !fresh.cx.is_settled(*slot)).count();
                assert_eq!(awaited, 1, "no lane sends the others");
            }
            counters = fresh.cx.counters.clone();
        }
    }

    #[test]
    fn a_slot_is_settled_once_all_of_it_has_come_though_no_lane_was_told_yet() {
        let ([mut first, mut second], _log) = two_lanes();
        let slot = (0..=u8::MAX).map(Slot).find(|slot| first.cx.owner(*slot) == LaneIndex(1)).unwrap();
        let before = first.cx.map.version().0;
        let lent = Arc::new(first.cx.map.lent(slot, LaneIndex(0)).unwrap());
        assert!(first.cx.is_settled(slot));
        first.adopt(lent.clone());
        assert!(!first.cx.is_settled(slot), "nothing of it is here");
        let link = link_to(&mut second.cx.links, LaneIndex(0)).unwrap();
        assert!(link.bulk.try_push(Frame::SlotDone { slot: slot.0, map_version: before }, &[]));
        assert!(link.bulk.try_push(Frame::Record { kind: 1, slot: slot.0 }, &[7; 100]));
        first.take_bulk();
        assert!(!first.cx.is_settled(slot), "that was the end of an earlier hand-over");
        second.adopt(lent);
        second.turn(LaneTime(1));
        first.turn(LaneTime(2));
        assert!(first.cx.is_settled(slot));
        first.turn(LaneTime(3));
        assert_eq!(first.cx.counters.handoffs_pending.get(), 1, "the log does not have it yet");
    }
}
