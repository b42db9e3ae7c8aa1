//! A lane's work for its log: it looks how far the writer has come, and writes snapshots a piece a turn.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::handler::{Handler, Notice, Record, RecordSink, Walk};
use crate::lane::{Lane, SnapshotStep};
use crate::wal::queue::Entry;
use crate::wal::{Importance, LogRefused};

impl<H: Handler> Lane<H> {
    /// Waits until everything logged is durable, the log has failed or the lane was given up. Only before a lane serves.
    pub(crate) fn wait_for_log(&mut self) {
        let Some(log) = &mut self.cx.log else { return };
        log.wake_if_touched();
        while log.progress.durable() < log.last()
            && !log.progress.has_failed()
            && !self.cx.fence.load(Ordering::Relaxed)
        {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// The same until it is on disk, under every durability.
    pub(crate) fn wait_for_disk(&mut self) {
        let Some(log) = &mut self.cx.log else { return };
        while log.progress.synced() < log.last() && !log.progress.has_failed() && !self.cx.fence.load(Ordering::Relaxed)
        {
            log.want_sync();
            log.wake_if_touched();
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub(crate) fn is_log_intact(&self) -> bool {
        self.cx.log.as_ref().is_some_and(|log| !log.progress.has_failed()) && self.cx.counters.log_refused.get() == 0
    }

    pub(super) fn watch_log(&mut self) -> bool {
        let Some(log) = &self.cx.log else { return self.settle_imports() };
        let (durable, syncs, failed) = (log.progress.durable(), log.progress.syncs(), log.progress.has_failed());
        if self.snapshot.is_none() && (log.progress.is_snapshot_wanted() || self.has_former_slots) {
            self.begin_snapshot();
        }
        let mut busy = false;
        if durable > self.durable_seen {
            self.durable_seen = durable;
            self.cx.counters.log_durable.set(durable.0);
            self.cx.counters.log_syncs.set(syncs);
            self.handler.on_notice(&mut self.cx, Notice::Durable { upto: durable });
            busy = true;
        }
        if failed && !self.log_failure_told {
            self.log_failure_told = true;
            self.handler.on_notice(&mut self.cx, Notice::LogFailed);
        }
        self.settle_imports() || busy
    }

    pub(super) fn begin_snapshot(&mut self) {
        let Some(log) = &mut self.cx.log else { return };
        let begun = log.push(Entry::SnapshotBegin, &[], Importance::Hard);
        if begun == Err(LogRefused::Lagging) {
            return; // The writer asks once, so the wish stands until there is room.
        }
        log.progress.clear_snapshot_wanted();
        self.snapshot = begun.is_ok().then_some(SnapshotStep::Writing(0));
    }

    /// Writes as much of a running snapshot as the log's queue takes without crowding out new records.
    pub(super) fn step_snapshot(&mut self) -> bool {
        let (Some(step), Some(log)) = (self.snapshot, &mut self.cx.log) else { return false };
        let mut sent = 0;
        let mut unavailable = false;
        let mut next = step;
        if let SnapshotStep::Writing(from) = step {
            let mut put = |record: Record<'_>| {
                let entry = Entry::SnapshotRecord { kind: record.kind, slot: record.slot };
                // Soft, so that half of the queue stays free for the lane's new records.
                match log.push(entry, record.payload, Importance::Soft) {
                    Ok(_) => sent += 1,
                    Err(LogRefused::Lagging) => return false,
                    Err(_) => unavailable = true,
                }
                true
            };
            next = match self.handler.on_snapshot(from, &mut RecordSink { put: &mut put }) {
                Walk::More(place) => SnapshotStep::Writing(place),
                Walk::Done => SnapshotStep::Ending,
            };
        }
        let ended = matches!(next, SnapshotStep::Ending) && log.push(Entry::SnapshotEnd, &[], Importance::Hard).is_ok();
        self.snapshot = if ended || unavailable { None } else { Some(next) };
        self.has_former_slots &= !ended;
        sent > 0 || ended
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::prefix_map::Slot;

    use super::*;
    use crate::lane::tests::two_lanes;
    use crate::time::LaneTime;

    #[test]
    fn a_snapshot_leaves_half_of_the_queue_to_what_happens_meanwhile() {
        let ([mut first, _second], mut log) = two_lanes();
        first.handler.state = 10_000;
        first.cx.log.as_ref().unwrap().progress.want_snapshot();
        first.turn(LaneTime(1));
        let mut hard = 0;
        while first.cx.log(1, Slot(3), &[0; 1000], Importance::Hard).is_ok() {
            hard += 1;
        }
        let mut payload = Vec::new();
        let snapshot = std::iter::from_fn(|| log.pop(&mut payload))
            .filter(|(entry, _)| matches!(entry, Entry::SnapshotRecord { .. }))
            .count();
        assert!(snapshot > 400 && hard > 400, "of a mebibyte, {snapshot} kB snapshot and {hard} kB new");
    }
}
