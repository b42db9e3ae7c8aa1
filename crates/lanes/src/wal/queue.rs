//! The way from a lane to the writer of its log: a ring of records, bounded in bytes, that the lane never waits on.
//!
//! When the writer lags, soft records are refused first, from half full on; hard ones only when nothing fits. The
//! writer's reports come back in a few words of shared memory that the lane reads once a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};
use tessera_contracts::prefix_map::Slot;

use crate::ring::park::Parker;
use crate::wal::{Lsn, RECORD_PAYLOAD_BYTES_MAX};

const HEADER_BYTES: usize = 16;

/// How much a record matters when the disk cannot keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Importance {
    /// Can be lost: a contact, a score. Refused first.
    Soft,
    /// A caller was, or will be, promised that it is kept.
    Hard,
}

/// Why a record was not logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRefused {
    /// The writer lags: a soft record was dropped, or there is no room even for a hard one. Answer "busy".
    Lagging,
    /// The payload is longer than a record may be.
    TooLong,
    /// The lane keeps no log.
    NoLog,
    /// The log has failed, or the lane was given up and its successor writes the log now. Promise nothing.
    Failed,
}

impl core::fmt::Display for LogRefused {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Lagging => f.write_str("the log's writer lags behind: try again later"),
            Self::TooLong => write!(f, "a record has at most {RECORD_PAYLOAD_BYTES_MAX} bytes"),
            Self::NoLog => f.write_str("the lane keeps no log"),
            Self::Failed => f.write_str("the lane's log has failed: nothing can be promised any more"),
        }
    }
}

impl std::error::Error for LogRefused {}

/// An entry for the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Record {
        kind: u8,
        slot: Slot,
    },
    /// Every earlier record of the slot is another lane's business now.
    Released {
        slot: Slot,
    },
    SnapshotBegin,
    SnapshotRecord {
        kind: u8,
        slot: Slot,
    },
    SnapshotEnd,
}

/// The writer's reports to its lane.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    durable: AtomicU64,
    synced: AtomicU64,
    syncs: AtomicU64,
    sync_wanted: AtomicBool,
    failed: AtomicBool,
    snapshot_wanted: AtomicBool,
}

impl Progress {
    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn set_durable(&self, lsn: Lsn) {
        self.durable.store(lsn.0, Ordering::Release);
    }

    /// The last record that is on disk, under every durability.
    pub(crate) fn synced(&self) -> Lsn {
        Lsn(self.synced.load(Ordering::Acquire))
    }

    pub(crate) fn set_synced(&self, lsn: Lsn) {
        self.synced.store(lsn.0, Ordering::Release);
    }

    /// Whether the lane wants its records on disk before their time; asked once for each wish.
    pub(crate) fn take_sync_wanted(&self) -> bool {
        self.sync_wanted.swap(false, Ordering::Relaxed)
    }

    /// How often the writer has synced.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// The writer has synced once more; only it may say so.
    pub(crate) fn count_sync(&self) {
        self.syncs.store(self.syncs() + 1, Ordering::Relaxed);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn want_snapshot(&self) {
        self.snapshot_wanted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.load(Ordering::Relaxed)
    }

    /// The lane has begun the snapshot, or never can.
    pub(crate) fn clear_snapshot_wanted(&self) {
        self.snapshot_wanted.store(false, Ordering::Relaxed);
    }
}

/// Where a writer sleeps. Two parkers, because a lane that logs in every turn would otherwise wake, in every turn, a writer that
/// only waits for its group to become large enough.
#[derive(Clone, Debug)]
pub(crate) struct WriterParkers {
    /// With nothing to do: any record wakes it.
    pub(crate) idle: Arc<Parker>,
    /// With a group to sync when it is time: only a queue that fills up wakes it.
    pub(crate) gathering: Arc<Parker>,
}

impl Default for WriterParkers {
    fn default() -> Self {
        Self { idle: Parker::without_socket(), gathering: Parker::without_socket() }
    }
}

/// Both ends of the way from a lane to its writer.
pub(crate) fn log_queue(bytes_max: usize, parkers: WriterParkers) -> (LogSender, LogReceiver) {
    let (producer, consumer) = RingBuffer::new(bytes_max.max(2 * (HEADER_BYTES + RECORD_PAYLOAD_BYTES_MAX)));
    let progress = Arc::new(Progress::default());
    (
        LogSender { ring: producer, last: Lsn(0), progress: progress.clone(), parkers, touched: false },
        LogReceiver { ring: consumer, progress },
    )
}

/// The lane's end.
#[derive(Debug)]
pub(crate) struct LogSender {
    ring: Producer<u8>,
    last: Lsn,
    pub(crate) progress: Arc<Progress>,
    parkers: WriterParkers,
    touched: bool,
}

impl LogSender {
    /// Hands an entry to the writer. The number of a record says when it is durable; other entries have none.
    pub(crate) fn push(&mut self, entry: Entry, payload: &[u8], importance: Importance) -> Result<Lsn, LogRefused> {
        if payload.len() > RECORD_PAYLOAD_BYTES_MAX {
            return Err(LogRefused::TooLong);
        }
        if self.progress.has_failed() || self.ring.is_abandoned() {
            return Err(LogRefused::Failed);
        }
        let needed = HEADER_BYTES + payload.len();
        let reserve = match importance {
            Importance::Soft => self.ring.buffer().capacity() / 2,
            Importance::Hard => 0,
        };
        if self.ring.slots() < needed + reserve {
            return Err(LogRefused::Lagging);
        }
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(payload.len() as u32).to_ne_bytes());
        let (code, kind, slot) = match entry {
            Entry::Record { kind, slot } => (0, kind, slot),
            Entry::Released { slot } => (1, 0, slot),
            Entry::SnapshotBegin => (2, 0, Slot(0)),
            Entry::SnapshotRecord { kind, slot } => (3, kind, slot),
            Entry::SnapshotEnd => (4, 0, Slot(0)),
        };
        header[4..7].copy_from_slice(&[code, kind, slot.0]);
        if matches!(entry, Entry::Record { .. } | Entry::Released { .. }) {
            self.last = Lsn(self.last.0 + 1);
        }
        header[8..].copy_from_slice(&self.last.0.to_ne_bytes());
        self.ring.push_entire_slice(&header).map_err(|_| LogRefused::Lagging)?;
        self.ring.push_entire_slice(payload).map_err(|_| LogRefused::Lagging)?;
        self.touched = true;
        Ok(self.last)
    }

    /// Whether a hard record of any length would be taken, or none ever will be.
    pub(crate) fn has_room(&self) -> bool {
        self.ring.slots() >= HEADER_BYTES + RECORD_PAYLOAD_BYTES_MAX
            || self.progress.has_failed()
            || self.ring.is_abandoned()
    }

    /// Asks the writer to sync at its next turn.
    pub(crate) fn want_sync(&mut self) {
        self.progress.sync_wanted.store(true, Ordering::Relaxed);
        self.touched = true;
    }

    /// The number of the last record taken.
    pub(crate) fn last(&self) -> Lsn {
        self.last
    }

    /// Wakes the writer if it sleeps and has something to do. Once per turn.
    pub(crate) fn wake_if_touched(&mut self) {
        if !std::mem::take(&mut self.touched) || self.parkers.idle.wake() {
            return;
        }
        let capacity = self.ring.buffer().capacity();
        if is_filling(capacity - self.ring.slots(), capacity) {
            self.parkers.gathering.wake();
        }
    }
}

/// Whether a writer that gathers should write now: from a quarter on, well before soft records are refused.
fn is_filling(queued: usize, capacity: usize) -> bool {
    queued >= capacity / 4
}

/// The writer's end.
#[derive(Debug)]
pub(crate) struct LogReceiver {
    ring: Consumer<u8>,
    pub(crate) progress: Arc<Progress>,
}

impl LogReceiver {
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Whether so much is queued that it should be written at once.
    pub(crate) fn is_filling(&self) -> bool {
        is_filling(self.ring.slots(), self.ring.buffer().capacity())
    }

    /// Whether the lane is gone; records it sent before are still here.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Takes the next entry, its payload into `payload`.
    pub(crate) fn pop(&mut self, payload: &mut Vec<u8>) -> Option<(Entry, Lsn)> {
        let mut header = [0; HEADER_BYTES];
        let chunk = self.ring.read_chunk(HEADER_BYTES).ok()?;
        let (head, tail) = chunk.as_slices();
        header[..head.len()].copy_from_slice(head);
        header[head.len()..].copy_from_slice(tail);
        let len = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let chunk = self.ring.read_chunk(HEADER_BYTES + len).ok()?;
        let (head, tail) = chunk.as_slices();
        payload.clear();
        let in_head = head.get(HEADER_BYTES..).unwrap_or(&[]);
        payload.extend_from_slice(in_head);
        payload.extend_from_slice(&tail[tail.len() - (len - in_head.len())..]);
        chunk.commit_all();
        let (kind, slot) = (header[5], Slot(header[6]));
        let entry = match header[4] {
            0 => Entry::Record { kind, slot },
            1 => Entry::Released { slot },
            2 => Entry::SnapshotBegin,
            3 => Entry::SnapshotRecord { kind, slot },
            4 => Entry::SnapshotEnd,
            other => unreachable!("no lane writes entry code {other}"),
        };
        let mut lsn = [0; 8];
        lsn.copy_from_slice(&header[8..]);
        Some((entry, Lsn(u64::from_ne_bytes(lsn))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_records_are_refused_first_and_hard_ones_when_nothing_fits() {
        let (mut sender, mut receiver) = log_queue(0, WriterParkers::default());
        let record = Entry::Record { kind: 1, slot: Slot(2) };
        let mut soft = 0;
        while sender.push(record, &[0; 4096], Importance::Soft).is_ok() {
            soft += 1;
        }
        let mut hard = 0;
        while sender.push(record, &[0; 4096], Importance::Hard).is_ok() {
            hard += 1;
        }
        assert!(soft >= 10 && hard >= soft - 1, "soft {soft}, hard {hard}");
        assert_eq!(sender.push(record, &[0; 4096], Importance::Hard), Err(LogRefused::Lagging));
        let mut payload = Vec::new();
        for lsn in 1..=soft + hard {
            assert_eq!(receiver.pop(&mut payload), Some((record, Lsn(lsn))));
        }
        assert_eq!(receiver.pop(&mut payload), None);
        assert!(sender.push(record, b"again", Importance::Soft).is_ok());
    }

    #[test]
    fn a_writer_that_gathers_is_woken_by_a_queue_that_fills_and_an_idle_one_by_any_record() {
        let parkers = WriterParkers::default();
        let (mut sender, mut receiver) = log_queue(1 << 20, parkers.clone());
        let mut log = |bytes: usize| {
            sender.push(Entry::Record { kind: 1, slot: Slot(2) }, &vec![0; bytes], Importance::Hard).unwrap();
            sender.wake_if_touched();
        };
        parkers.idle.announce_sleep();
        log(1);
        assert!(!parkers.idle.wake(), "it was woken");
        parkers.gathering.announce_sleep();
        for _ in 0..4 {
            log(60_000);
        }
        assert!(!receiver.is_filling());
        log(30_000);
        assert!(receiver.is_filling());
        assert!(!parkers.gathering.wake(), "it was woken");
        while receiver.pop(&mut Vec::new()).is_some() {}
        parkers.gathering.announce_sleep();
        log(1);
        assert!(parkers.gathering.wake(), "it slept on");
    }

    #[test]
    fn entries_survive_every_wrap() {
        let (mut sender, mut receiver) = log_queue(0, WriterParkers::default());
        let mut payload = Vec::new();
        for round in 0..5000usize {
            let bytes: Vec<u8> = (0..(round * 131) % 3000).map(|at| at as u8 ^ round as u8).collect();
            let entry = Entry::SnapshotRecord { kind: round as u8, slot: Slot(!(round as u8)) };
            sender.push(entry, &bytes, Importance::Hard).unwrap();
            assert_eq!(receiver.pop(&mut payload).map(|(entry, _)| entry), Some(entry));
            assert_eq!(payload, bytes);
        }
    }

    #[test]
    fn a_record_longer_than_allowed_is_refused_by_its_length() {
        let (mut sender, _receiver) = log_queue(0, WriterParkers::default());
        let record = Entry::Record { kind: 1, slot: Slot(2) };
        assert_eq!(sender.push(record, &[0; RECORD_PAYLOAD_BYTES_MAX + 1], Importance::Hard), Err(LogRefused::TooLong));
        assert!(sender.push(record, &[0; RECORD_PAYLOAD_BYTES_MAX], Importance::Hard).is_ok());
    }
}
