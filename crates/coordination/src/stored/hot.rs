//! What every operation on a shard changes.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::record::history::{HISTORY_CAP, History, MoveReason, Ownership};
use crate::record::lease::LeaseHolder;
use crate::record::op_log::{OP_LOG_CAP, OpKind, OpLog, OpLogEntry, OpResult};
use crate::record::orders::StandingOrders;
use crate::record::park::{PARK_DETAIL_BYTES_MAX, ParkInfo};
use crate::record::shard_record::ShardRecord;
use crate::record::state::Head;
use crate::record::status::{ParkReason, ShardStatus};
use crate::record::unreachable::{UNREACHABLE_REPORTS_MAX, UnreachableReport};
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::{Cursor, CursorUpdate, FenceEpoch, OpId, PayloadHash, RunIncarnation, WorkerId};

use super::{CodecError, Kind, Reader, Writer};

/// The often-written part of a shard's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPart {
    /// The creation of the run it belongs to, also here: a leftover of a retired run must not pass for progress of this one.
    pub incarnation: RunIncarnation,
    /// Status, fence, lease, orders.
    pub head: Head,
    /// Progress.
    pub cursor: Cursor,
    /// The last operations.
    pub op_log: OpLog,
    /// The last owners.
    pub history: History,
    /// What the worker that parked it, or that last reported it unreachable, had to say.
    pub park_detail: Option<String>,
    /// Who reported that it cannot be reached.
    pub unreachable: Vec<UnreachableReport>,
}

impl HotPart {
    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.view().encode()
    }

    fn view(&self) -> HotView<'_> {
        HotView {
            incarnation: self.incarnation,
            head: &self.head,
            cursor: self.cursor.as_update(),
            op_log: &self.op_log,
            history: &self.history,
            park_detail: self.park_detail.as_deref(),
            unreachable: &self.unreachable,
        }
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a hot shard record of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(Kind::HOT, bytes)?;
        let incarnation = reader.incarnation()?;
        let mut head = decode_head(&mut reader)?;
        let cursor = reader.cursor("cursor")?;
        let count = reader.length(OP_LOG_CAP, "op_log")?;
        let op_log = (0..count).map(|_| decode_entry(&mut reader)).collect::<Result<OpLog, _>>()?;
        let count = reader.length(HISTORY_CAP, "history")?;
        let history = (0..count).map(|_| decode_ownership(&mut reader)).collect::<Result<History, _>>()?;
        let rare = reader.numbered("rare", |number| (number <= HAS_ALL).then_some(number))?;
        let has = |part: u8| rare & part != 0;
        let park_detail = has(HAS_DETAIL).then(|| decode_detail(&mut reader)).transpose()?;
        let unreachable = has(HAS_REPORTS).then(|| decode_reports(&mut reader)).transpose()?.unwrap_or_default();
        head.unparks = has(HAS_UNPARKS).then(|| decode_unparks(&mut reader)).transpose()?.unwrap_or_default();
        reader.finish()?;
        Ok(Self { incarnation, head, cursor, op_log, history, park_detail, unreachable })
    }
}

/// The often-written part of a record that lies elsewhere, to be written down without a copy of it.
#[derive(Clone, Copy, Debug)]
pub struct HotView<'r> {
    pub(crate) incarnation: RunIncarnation,
    pub(crate) head: &'r Head,
    pub(crate) cursor: CursorUpdate<'r>,
    pub(crate) op_log: &'r OpLog,
    pub(crate) history: &'r History,
    pub(crate) park_detail: Option<&'r str>,
    pub(crate) unreachable: &'r [UnreachableReport],
}

impl<'r> HotView<'r> {
    /// The often-written part of a record.
    #[must_use]
    pub fn of(record: &'r ShardRecord) -> Self {
        Self {
            incarnation: record.incarnation,
            head: &record.state.head,
            cursor: record.cursor.as_update(),
            op_log: &record.state.op_log,
            history: &record.state.history,
            park_detail: record.park_detail.as_deref(),
            unreachable: &record.unreachable,
        }
    }

    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HOT_BYTES_USUAL);
        self.append_to(&mut bytes);
        bytes
    }

    /// Writes the stored bytes behind what is there.
    pub fn append_to(&self, bytes: &mut Vec<u8>) {
        let mut writer = Writer::behind(Kind::HOT, core::mem::take(bytes));
        let head = self.head;
        writer.incarnation(self.incarnation);
        writer.u8(head.status.as_u8());
        writer.u64(head.fence.get());
        writer.option(head.lease, |writer, holder| {
            writer.u64(holder.owner.get());
            writer.time(holder.deadline);
        });
        writer.option(head.park, |writer, park| {
            writer.u8(park.reason.as_u8());
            writer.option(park.retry_after, Writer::time);
        });
        writer.u8(head.freed.as_u8());
        writer.u32(head.stalled_acquisitions);
        writer.u8(u8::from(head.orders.yield_requested));
        writer.option(head.orders.split_requested, |writer, fraction| writer.u32(fraction.millionths()));
        writer.cursor(self.cursor);
        writer.length(self.op_log.len());
        for entry in self.op_log.iter() {
            writer.u64(entry.op_id.get());
            writer.u64(entry.payload_hash.get());
            writer.time(entry.executed_at);
            writer.u8(entry.kind.as_u8());
            writer.u8(entry.result.as_u8());
        }
        writer.length(self.history.iter().len());
        for ownership in self.history.iter() {
            writer.u64(ownership.worker.get());
            writer.u64(ownership.fence.get());
            writer.time(ownership.since);
            writer.u8(ownership.reason.as_u8());
        }
        // One byte for all three, so that a shard without them is no longer for them.
        let has = |is_there: bool, part: u8| if is_there { part } else { 0 };
        writer.u8(has(self.park_detail.is_some(), HAS_DETAIL)
            | has(!self.unreachable.is_empty(), HAS_REPORTS)
            | has(head.unparks > 0, HAS_UNPARKS));
        if let Some(detail) = self.park_detail {
            writer.bytes(detail.as_bytes());
        }
        if !self.unreachable.is_empty() {
            writer.length(self.unreachable.len());
            for report in self.unreachable {
                writer.u64(report.worker.get());
                writer.time(report.at);
                writer.option(report.retry_after, Writer::time);
            }
        }
        if head.unparks > 0 {
            writer.u32(head.unparks);
        }
        *bytes = writer.finish();
    }
}

/// What a shard seldom has, in one byte. Programs that do not know a part refuse the record.
const HAS_DETAIL: u8 = 1;
const HAS_REPORTS: u8 = 2;
const HAS_UNPARKS: u8 = 4;
const HAS_ALL: u8 = HAS_DETAIL | HAS_REPORTS | HAS_UNPARKS;

/// About as long as the hot part of a shard becomes once its log of operations is full.
pub const HOT_BYTES_USUAL: usize = 1024;

fn decode_detail(reader: &mut Reader<'_>) -> Result<String, CodecError> {
    let text = reader.bytes(PARK_DETAIL_BYTES_MAX, "park_detail")?;
    let text = core::str::from_utf8(text).map_err(|error| reader.wrong("park_detail", error.to_string()))?;
    Ok(text.to_string())
}

/// At least one, each by another worker.
fn decode_reports(reader: &mut Reader<'_>) -> Result<Vec<UnreachableReport>, CodecError> {
    let count = reader.length(UNREACHABLE_REPORTS_MAX, "unreachable")?;
    let mut reports: Vec<UnreachableReport> = Vec::with_capacity(count);
    for _ in 0..count {
        let worker = WorkerId::new(reader.u64("unreachable")?);
        if reports.iter().any(|report| report.worker == worker) {
            return Err(reader.wrong("unreachable", format!("worker {worker} reported twice")));
        }
        let at = reader.time("unreachable")?;
        let retry_after = reader.option("unreachable", |reader| reader.time("unreachable"))?;
        reports.push(UnreachableReport { worker, at, retry_after });
    }
    if reports.is_empty() {
        return Err(reader.wrong("unreachable", "an empty list is stored as none"));
    }
    Ok(reports)
}

fn decode_unparks(reader: &mut Reader<'_>) -> Result<u32, CodecError> {
    match reader.u32("unparks")? {
        0 => Err(reader.wrong("unparks", "a count of zero is stored as none")),
        unparks => Ok(unparks),
    }
}

fn decode_head(reader: &mut Reader<'_>) -> Result<Head, CodecError> {
    let status = reader.numbered("status", ShardStatus::from_u8)?;
    let fence = FenceEpoch::new(reader.u64("fence")?);
    let lease = reader.option("lease", |reader| {
        Ok(LeaseHolder { owner: WorkerId::new(reader.u64("lease")?), deadline: reader.time("lease")? })
    })?;
    let park = reader.option("park", |reader| {
        let reason = reader.numbered("park", |number| ParkReason::ALL.get(usize::from(number)).copied())?;
        Ok(ParkInfo { reason, retry_after: reader.option("park", |reader| reader.time("park"))? })
    })?;
    let freed = reader.numbered("freed", MoveReason::from_u8)?;
    let stalled_acquisitions = reader.u32("stalled_acquisitions")?;
    let yield_requested = reader.numbered("orders", |number| [false, true].get(usize::from(number)).copied())?;
    let split_requested = reader.option("orders", |reader| {
        let millionths = reader.u32("orders")?;
        Fraction::from_millionths(millionths).map_err(|error| reader.wrong("orders", error.to_string()))
    })?;
    let orders = StandingOrders { yield_requested, split_requested };
    // What few shards have comes last.
    let unparks = 0;
    Ok(Head { status, fence, lease, park, freed, stalled_acquisitions, unparks, orders })
}

fn decode_entry(reader: &mut Reader<'_>) -> Result<OpLogEntry, CodecError> {
    let op_id = OpId::new(reader.u64("op_log")?);
    let hash = reader.u64("op_log")?;
    let payload_hash = PayloadHash::from_stored(hash).ok_or_else(|| reader.wrong("op_log", "a fingerprint is zero"))?;
    Ok(OpLogEntry {
        op_id,
        payload_hash,
        executed_at: reader.time("op_log")?,
        kind: reader.numbered("op_log", OpKind::from_u8)?,
        result: reader.numbered("op_log", OpResult::from_u8)?,
    })
}

fn decode_ownership(reader: &mut Reader<'_>) -> Result<Ownership, CodecError> {
    Ok(Ownership {
        worker: WorkerId::new(reader.u64("history")?),
        fence: FenceEpoch::new(reader.u64("history")?),
        since: reader.time("history")?,
        reason: reader.numbered("history", MoveReason::from_u8)?,
    })
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use tessera_contracts::LogicalTime;

    use super::*;
    use crate::stored::testing::{assert_golden, assert_robust};

    fn entry(op_id: u64) -> OpLogEntry {
        OpLogEntry {
            op_id: OpId::new(op_id),
            payload_hash: PayloadHash::from_stored(op_id ^ 0xffff).expect("not zero"),
            executed_at: LogicalTime::new(1_700_000_000_000 + op_id),
            kind: OpKind::Checkpoint,
            result: OpResult::Completed,
        }
    }

    fn ownership(fence: u64) -> Ownership {
        Ownership {
            worker: WorkerId::new(77),
            fence: FenceEpoch::new(fence),
            since: LogicalTime::new(fence * 1_000),
            reason: MoveReason::SessionLost,
        }
    }

    fn leased() -> HotPart {
        HotPart {
            incarnation: RunIncarnation::new(0x1122_3344_5566_7788),
            head: Head {
                fence: FenceEpoch::new(5),
                lease: Some(LeaseHolder { owner: WorkerId::new(77), deadline: LogicalTime::new(1_700_000_030_000) }),
                freed: MoveReason::Expired,
                stalled_acquisitions: 2,
                orders: StandingOrders { yield_requested: true, split_requested: Some(Fraction::HALF) },
                ..Head::newborn()
            },
            cursor: Cursor::new(Some(b"repo/0042"), Some(b"page-7")).expect("valid"),
            op_log: (1..=3).map(entry).collect(),
            history: (4..=5).map(ownership).collect(),
            park_detail: None,
            unreachable: Vec::new(),
        }
    }

    fn parked() -> HotPart {
        HotPart {
            incarnation: RunIncarnation::new(0x1122_3344_5566_7788),
            head: Head {
                status: ShardStatus::Parked,
                park: Some(ParkInfo {
                    reason: ParkReason::PermissionDenied,
                    retry_after: Some(LogicalTime::new(1_700_000_060_000)),
                }),
                ..Head::newborn()
            },
            cursor: Cursor::initial(),
            op_log: OpLog::new(),
            history: History::new(),
            park_detail: Some("403 für den Schlüssel".to_string()),
            unreachable: Vec::new(),
        }
    }

    fn reported() -> HotPart {
        let report = |worker, retry_after: Option<u64>| UnreachableReport {
            worker: WorkerId::new(worker),
            at: LogicalTime::new(1_700_000_000_000 + worker),
            retry_after: retry_after.map(LogicalTime::new),
        };
        HotPart {
            head: Head { freed: MoveReason::Unreachable, ..Head::newborn() },
            park_detail: Some("mount point is empty".to_string()),
            unreachable: vec![report(7, None), report(8, Some(1_700_000_060_000))],
            ..parked()
        }
    }

    fn unparked() -> HotPart {
        HotPart { head: Head { freed: MoveReason::Unparked, unparks: 3, ..Head::newborn() }, ..reported() }
    }

    #[test]
    fn hot_records_keep_their_bytes() {
        let kinds = [
            ("hot_leased", leased()),
            ("hot_parked", parked()),
            ("hot_reported", reported()),
            ("hot_unparked", unparked()),
        ];
        for (name, hot) in kinds {
            let encoded = hot.encode();
            assert_golden(name, &encoded);
            assert_robust(&encoded, HotPart::decode);
            assert_eq!(HotPart::decode(&encoded), Ok(hot));
        }
    }

    #[test]
    fn a_shard_without_reports_is_no_longer_for_them() {
        let none = HotPart { park_detail: None, unreachable: Vec::new(), ..reported() };
        let words_only = HotPart { unreachable: Vec::new(), ..reported() };
        let added = words_only.encode().len() - none.encode().len();
        assert_eq!(added, 4 + "mount point is empty".len(), "the byte that tells is there anyway");
        let reports_only = HotPart { park_detail: None, ..reported() };
        assert_eq!(reports_only.encode().len() - none.encode().len(), 4 + 17 + 25);
        assert_eq!(HotPart::decode(&reports_only.encode()), Ok(reports_only));
    }

    #[test]
    fn only_a_shard_that_was_unparked_stores_how_often() {
        let never = HotPart { head: Head { unparks: 0, ..unparked().head }, ..unparked() };
        assert_eq!(unparked().encode().len() - never.encode().len(), 4);
        assert_eq!(HotPart::decode(&never.encode()), Ok(never));
        let mut zero = unparked().encode();
        let count = zero.len() - 4;
        zero[count..].fill(0);
        assert_eq!(HotPart::decode(&zero).unwrap_err().field, "unparks");
    }

    #[test]
    fn a_list_of_reports_that_nobody_could_have_written_is_refused() {
        let report = reported().unreachable[0];
        let wrong = |unreachable| HotPart::decode(&HotPart { unreachable, ..reported() }.encode()).unwrap_err();
        assert_eq!(wrong(vec![report, report]).field, "unreachable");
        let distinct = |worker| UnreachableReport { worker: WorkerId::new(worker), ..report };
        assert_eq!(wrong((0..=UNREACHABLE_REPORTS_MAX as u64).map(distinct).collect()).field, "unreachable");
        let full = HotPart { unreachable: (0..UNREACHABLE_REPORTS_MAX as u64).map(distinct).collect(), ..reported() };
        assert_eq!(HotPart::decode(&full.encode()), Ok(full));
        let mut empty = HotPart { unreachable: Vec::new(), park_detail: None, ..reported() }.encode();
        *empty.last_mut().unwrap() = HAS_REPORTS;
        empty.extend([0; 4]);
        assert_eq!(HotPart::decode(&empty).unwrap_err().field, "unreachable");
    }

    #[test]
    fn a_checkpoint_of_a_hundred_bytes_writes_about_a_kilobyte_at_most() {
        let full = HotPart {
            cursor: Cursor::new(Some(&[7; 100]), None).expect("valid"),
            op_log: (1..=OP_LOG_CAP as u64).map(entry).collect(),
            history: (1..=HISTORY_CAP as u64).map(ownership).collect(),
            ..leased()
        };
        assert!(full.encode().len() <= 1024, "{} bytes", full.encode().len());
    }
}
