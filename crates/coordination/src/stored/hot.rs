//! What every operation on a shard changes.

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
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::{Cursor, CursorUpdate, FenceEpoch, OpId, PayloadHash, WorkerId};

use super::{CodecError, Kind, Reader, Writer};

/// The often-written part of a shard's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPart {
    /// Status, fence, lease, orders.
    pub head: Head,
    /// Progress.
    pub cursor: Cursor,
    /// The last operations.
    pub op_log: OpLog,
    /// The last owners.
    pub history: History,
    /// What whoever parked it had to say.
    pub park_detail: Option<String>,
}

impl HotPart {
    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.view().encode()
    }

    fn view(&self) -> HotView<'_> {
        HotView {
            head: &self.head,
            cursor: self.cursor.as_update(),
            op_log: &self.op_log,
            history: &self.history,
            park_detail: self.park_detail.as_deref(),
        }
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a hot shard record of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(Kind::HOT, bytes)?;
        let head = decode_head(&mut reader)?;
        let cursor = reader.cursor("cursor")?;
        let count = reader.length(OP_LOG_CAP, "op_log")?;
        let op_log = (0..count).map(|_| decode_entry(&mut reader)).collect::<Result<OpLog, _>>()?;
        let count = reader.length(HISTORY_CAP, "history")?;
        let history = (0..count).map(|_| decode_ownership(&mut reader)).collect::<Result<History, _>>()?;
        let park_detail = reader.option("park_detail", |reader| {
            let text = reader.bytes(PARK_DETAIL_BYTES_MAX, "park_detail")?;
            let text = core::str::from_utf8(text).map_err(|error| reader.wrong("park_detail", error.to_string()))?;
            Ok(text.to_string())
        })?;
        reader.finish()?;
        Ok(Self { head, cursor, op_log, history, park_detail })
    }
}

/// The often-written part of a record that lies elsewhere, to be written down without a copy of it.
#[derive(Clone, Copy, Debug)]
pub struct HotView<'r> {
    pub(crate) head: &'r Head,
    pub(crate) cursor: CursorUpdate<'r>,
    pub(crate) op_log: &'r OpLog,
    pub(crate) history: &'r History,
    pub(crate) park_detail: Option<&'r str>,
}

impl<'r> HotView<'r> {
    /// The often-written part of a record.
    #[must_use]
    pub fn of(record: &'r ShardRecord) -> Self {
        Self {
            head: &record.state.head,
            cursor: record.cursor.as_update(),
            op_log: &record.state.op_log,
            history: &record.state.history,
            park_detail: record.park_detail.as_deref(),
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
        writer.option(self.park_detail, |writer, detail| writer.bytes(detail.as_bytes()));
        *bytes = writer.finish();
    }
}

/// About as long as the hot part of a shard becomes once its log of operations is full.
pub const HOT_BYTES_USUAL: usize = 1024;

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
    Ok(Head { status, fence, lease, park, freed, stalled_acquisitions, orders })
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
        }
    }

    fn parked() -> HotPart {
        HotPart {
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
        }
    }

    #[test]
    fn hot_records_keep_their_bytes() {
        for (name, hot) in [("hot_leased", leased()), ("hot_parked", parked())] {
            let encoded = hot.encode();
            assert_golden(name, &encoded);
            assert_robust(&encoded, HotPart::decode);
            assert_eq!(HotPart::decode(&encoded), Ok(hot));
        }
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
