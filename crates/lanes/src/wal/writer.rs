//! The writer of one lane's log: takes the lane's queue, writes it in one go, syncs when the durability says so, and
//! reports how far it has come.
//!
//! It is turned by a thread of its own, or by a simulation. It never makes the lane wait: the lane looks at its progress.

use std::io;
use std::sync::Arc;

use crate::ring::park::Parker;
use crate::time::LaneTime;
use crate::wal::log::Wal;
use crate::wal::queue::{Entry, LogReceiver};
use crate::wal::record::RecordType;
use crate::wal::storage::Storage;
use crate::wal::{Durability, LogConfig, Lsn};

/// Bytes written in one go.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// The writer.
#[derive(Debug)]
pub(crate) struct Writer<S: Storage> {
    wal: Wal<S>,
    receiver: LogReceiver,
    config: LogConfig,
    lane_bed: Arc<Parker>,
    /// Random numbers for new segments, in place of a source of them: a salt need only differ from its predecessor's.
    salt: u64,
    batch: Vec<u8>,
    payload: Vec<u8>,
    written: Lsn,
    unsynced_since: Option<LaneTime>,
    snapshot_asked: bool,
}

impl<S: Storage> Writer<S> {
    pub(crate) fn new(wal: Wal<S>, receiver: LogReceiver, config: LogConfig, lane_bed: Arc<Parker>, salt: u64) -> Self {
        Self {
            wal,
            receiver,
            config,
            lane_bed,
            salt,
            batch: Vec::with_capacity(BATCH_BYTES_MAX + (64 << 10)),
            payload: Vec::with_capacity(64 << 10),
            written: Lsn(0),
            unsynced_since: None,
            snapshot_asked: false,
        }
    }

    /// Whether the lane is gone and everything it queued is dealt with.
    pub(crate) fn is_finished(&self) -> bool {
        self.receiver.is_abandoned() && self.receiver.is_empty()
    }

    /// Whether nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    /// Whether queued records can wait for their group: a sync comes later anyway, no caller is told before that, and there is
    /// room for more.
    pub(crate) fn gathers(&self) -> bool {
        matches!(self.config.durability, Durability::Group { .. })
            && self.unsynced_since.is_some()
            && !self.receiver.is_filling()
    }

    /// Whether something is queued, or written and not yet synced.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.receiver.is_empty() || self.unsynced_since.is_some()
    }

    /// Works off the queue. Returns when to call again though nothing comes, or `None` for never. A failure is final: the lane
    /// is told, and nothing more is written.
    pub(crate) fn turn(&mut self, now: LaneTime) -> io::Result<Option<LaneTime>> {
        let result = self.try_turn(now);
        if result.is_err() {
            self.receiver.progress.fail();
            self.lane_bed.wake();
        }
        result
    }

    fn try_turn(&mut self, now: LaneTime) -> io::Result<Option<LaneTime>> {
        let before = self.written;
        while !self.receiver.is_empty() {
            self.batch.clear();
            let wrote_to = self.gather()?;
            if !self.batch.is_empty() {
                self.wal.append(&self.batch)?;
                self.unsynced_since.get_or_insert(now);
            }
            self.written = self.written.max(wrote_to);
            if self.batch.len() >= BATCH_BYTES_MAX {
                break; // Long enough: sync, then come back.
            }
        }
        let deadline = self.unsynced_since.map(|since| match self.config.durability {
            Durability::Strict => since,
            Durability::Group { delay } => since.after(delay),
            Durability::Async { interval } => since.after(interval),
        });
        if matches!(self.config.durability, Durability::Async { .. }) && self.written > before {
            self.report(self.written);
        }
        if self.receiver.progress.take_sync_wanted() || deadline.is_some_and(|deadline| deadline <= now) {
            self.sync()?;
        }
        self.ask_for_snapshot();
        Ok(if self.receiver.is_empty() { self.unsynced_since.and(deadline) } else { Some(now) })
    }

    /// Fills the batch from the queue until it is large, the queue is empty, or a snapshot begins or ends.
    fn gather(&mut self) -> io::Result<Lsn> {
        let mut last = self.written;
        while self.batch.len() < BATCH_BYTES_MAX {
            let Some((entry, lsn)) = self.receiver.pop(&mut self.payload) else { break };
            match entry {
                Entry::Record { kind, slot } => {
                    self.wal.encode(&mut self.batch, RecordType::State, kind, slot, &self.payload);
                    last = lsn;
                }
                Entry::Released { slot } => {
                    self.wal.encode(&mut self.batch, RecordType::Released, 0, slot, &[]);
                    last = lsn;
                }
                Entry::SnapshotBegin => {
                    // The batch was encoded for the old log.
                    let batch = std::mem::take(&mut self.batch);
                    self.wal.append(&batch)?;
                    self.batch = batch;
                    self.batch.clear();
                    self.salt =
                        self.salt.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    self.wal.begin_snapshot(self.salt)?;
                    // That synced the old log. Say so now: perhaps nothing follows that would make us sync again.
                    self.written = last;
                    self.unsynced_since = None;
                    self.report_synced(last);
                }
                Entry::SnapshotRecord { kind, slot } => self.wal.snapshot_record(kind, slot, &self.payload)?,
                Entry::SnapshotEnd => {
                    self.wal.end_snapshot()?;
                    self.snapshot_asked = false;
                }
            }
        }
        Ok(last)
    }

    /// Puts everything written on disk, under every durability.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if !self.wal.is_synced() {
            self.receiver.progress.count_sync();
        }
        self.wal.sync()?;
        self.unsynced_since = None;
        self.report_synced(self.written);
        Ok(())
    }

    /// Puts everything that is queued and written on disk, and ends.
    ///
    /// The thread that ends a writer has seen its lane end before; the lane may have queued its last words while the writer was at the disk.
    /// A lane that was given up may queue for ever: of that no more is written than a queue holds.
    pub(crate) fn finish(mut self, now: LaneTime) -> io::Result<()> {
        for _ in 0..self.config.queue_bytes_max / BATCH_BYTES_MAX + 2 {
            if self.is_empty() {
                break;
            }
            self.turn(now)?;
        }
        self.sync()?;
        self.wal.close()
    }

    fn report_synced(&self, lsn: Lsn) {
        self.receiver.progress.set_synced(lsn);
        self.report(lsn);
    }

    fn report(&self, lsn: Lsn) {
        if lsn > self.receiver.progress.durable() {
            self.receiver.progress.set_durable(lsn);
            self.lane_bed.wake();
        }
    }

    fn ask_for_snapshot(&mut self) {
        let (log, snapshot) = self.wal.sizes();
        let due = log >= self.config.compact_bytes_min && log >= 2 * snapshot;
        if (due || self.wal.is_damaged()) && !self.snapshot_asked {
            self.snapshot_asked = true;
            self.receiver.progress.want_snapshot();
            self.lane_bed.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tessera_contracts::prefix_map::{LaneIndex, Slot};

    use super::*;
    use crate::wal::faulty::FaultyDirectory;
    use crate::wal::queue::{Importance, LogSender, WriterParkers, log_queue};

    fn logged(durability: Durability) -> (LogSender, Writer<FaultyDirectory>) {
        let (wal, _) = Wal::open(FaultyDirectory::default(), LaneIndex(0), 1).unwrap();
        let (sender, receiver) = log_queue(0, WriterParkers::default());
        let config = LogConfig { durability, ..LogConfig::default() };
        (sender, Writer::new(wal, receiver, config, Parker::without_socket(), 2))
    }

    #[test]
    fn records_queued_while_the_writer_is_at_the_disk_are_written_before_it_ends() {
        let disk = FaultyDirectory::default();
        let (wal, _) = Wal::open(disk.clone(), LaneIndex(0), 1).unwrap();
        let (mut sender, receiver) = log_queue(0, WriterParkers::default());
        let mut writer = Writer::new(wal, receiver, LogConfig::default(), Parker::without_socket(), 2);
        let entry = Entry::Record { kind: 1, slot: Slot(9) };
        sender.push(entry, b"first", Importance::Hard).unwrap();
        writer.turn(LaneTime(0)).unwrap();
        sender.push(entry, b"last", Importance::Hard).unwrap();
        drop(sender);
        writer.finish(LaneTime(1)).unwrap();
        let (_, recovered) = Wal::open(disk, LaneIndex(0), 3).unwrap();
        let payloads: Vec<&[u8]> = recovered.records().map(|record| record.payload).collect();
        assert_eq!(payloads, [&b"first"[..], b"last"]);
    }

    /// A lane may log, begin a snapshot and fall silent, all while the writer is elsewhere. Nothing comes afterwards that
    /// would make the writer sync, so it must speak by itself: a caller that waits for the record waits for ever otherwise.
    #[test]
    fn a_record_gathered_together_with_a_snapshot_is_reported_though_nothing_follows() {
        let delay = Duration::from_micros(200);
        for durability in [Durability::Strict, Durability::Group { delay }, Durability::Async { interval: delay }] {
            for (before, after) in [(1, 0), (3, 0), (0, 2), (2, 2)] {
                let (mut sender, mut writer) = logged(durability);
                for _ in 0..before {
                    sender.push(Entry::Record { kind: 1, slot: Slot(9) }, b"x", Importance::Hard).unwrap();
                }
                sender.push(Entry::SnapshotBegin, &[], Importance::Hard).unwrap();
                let entry = Entry::SnapshotRecord { kind: 1, slot: Slot(9) };
                sender.push(entry, b"x", Importance::Soft).unwrap();
                for _ in 0..after {
                    sender.push(Entry::Record { kind: 1, slot: Slot(9) }, b"x", Importance::Hard).unwrap();
                }
                sender.push(Entry::SnapshotEnd, &[], Importance::Hard).unwrap();
                let mut now = LaneTime(0);
                while let Some(next) = writer.turn(now).unwrap() {
                    now = next;
                }
                assert_eq!(sender.progress.durable(), sender.last(), "{durability:?}: {before} before, {after} after");
            }
        }
    }
}
