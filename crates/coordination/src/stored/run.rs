//! A run's record, and apart from it the list of its roots, which is large and seldom wanted.

use alloc::string::ToString;
use alloc::vec::Vec;

use crate::run::config::RunConfig;
use crate::run::record::{RUN_OP_LOG_CAP, RunOpKind, RunOpLogEntry, RunRecord};
use crate::run::status::RunStatus;
use tessera_contracts::limits::MAX_INITIAL_SHARDS;
use tessera_contracts::{CursorSemantics, LogicalTime, OpId, PayloadHash, RunId, RunIncarnation, ShardId, TenantId};

use super::{CodecError, Kind, Reader, Writer};

/// The stored part of a run's record: everything but the list of its roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPart {
    /// Which creation of the run.
    pub incarnation: RunIncarnation,
    /// What its creator chose.
    pub config: RunConfig,
    /// Where it stands.
    pub status: RunStatus,
    /// When it was created.
    pub created_at: LogicalTime,
    /// When it was settled.
    pub completed_at: Option<LogicalTime>,
    /// The last operations, oldest first.
    pub op_log: Vec<RunOpLogEntry>,
    /// How many roots it has.
    pub root_count: u32,
    /// A registration under way.
    pub staging: Option<Staging>,
}

/// A registration whose shards are being written and which no reader sees yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staging {
    /// Tells this attempt from any other, so that only one may write and publish.
    pub attempt: u64,
    /// Shards already counted against the limits for it.
    pub reserved: u32,
}

/// The ids of a run's roots.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RootsPart {
    /// In the order they were registered.
    pub roots: Vec<ShardId>,
}

impl RunPart {
    /// The stored part of a record.
    #[must_use]
    pub fn of(record: &RunRecord, staging: Option<Staging>) -> Self {
        Self {
            incarnation: record.incarnation,
            config: record.config,
            status: record.status,
            created_at: record.created_at,
            completed_at: record.completed_at,
            op_log: record.op_log.iter().copied().collect(),
            root_count: u32::try_from(record.root_shards.len()).unwrap_or(u32::MAX),
            staging,
        }
    }

    /// The whole record again. Without the roots it serves every decision; only who asks for the roots needs them.
    #[must_use]
    pub fn into_record(self, tenant: TenantId, run: RunId, roots: Vec<ShardId>) -> RunRecord {
        let mut record = RunRecord::newborn(tenant, run, self.incarnation, self.config, self.created_at);
        record.status = self.status;
        record.completed_at = self.completed_at;
        record.root_shards = roots;
        for entry in self.op_log {
            record.op_log.push_back_overwrite(entry);
        }
        record
    }

    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(Kind::RUN, 256);
        writer.incarnation(self.incarnation);
        writer.u8(self.config.cursor_semantics as u8);
        writer.option(self.config.lease_duration, Writer::u64);
        writer.u32(self.config.max_shard_retries);
        writer.u8(self.status.as_u8());
        writer.time(self.created_at);
        writer.option(self.completed_at, Writer::time);
        writer.length(self.op_log.len());
        for entry in &self.op_log {
            writer.u64(entry.op_id.get());
            writer.u8(entry.kind.as_u8());
            writer.u64(entry.payload_hash.get());
            writer.time(entry.executed_at);
        }
        writer.u32(self.root_count);
        writer.option(self.staging, |writer, staging| {
            writer.u64(staging.attempt);
            writer.u32(staging.reserved);
        });
        writer.finish()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a run record of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(Kind::RUN, bytes)?;
        let incarnation = reader.incarnation()?;
        let config = RunConfig {
            cursor_semantics: reader.numbered("cursor_semantics", CursorSemantics::from_stored)?,
            lease_duration: reader.option("lease_duration", |reader| reader.u64("lease_duration"))?,
            max_shard_retries: reader.u32("max_shard_retries")?,
        };
        config.validate().map_err(|error| reader.wrong("lease_duration", error.to_string()))?;
        let status = reader.numbered("status", RunStatus::from_u8)?;
        let created_at = reader.time("created_at")?;
        let completed_at = reader.option("completed_at", |reader| reader.time("completed_at"))?;
        let count = reader.length(RUN_OP_LOG_CAP, "op_log")?;
        let op_log = (0..count).map(|_| decode_entry(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        let root_count = reader.u32("root_count")?;
        let staging = reader.option("staging", |reader| {
            Ok(Staging { attempt: reader.u64("staging")?, reserved: reader.u32("staging")? })
        })?;
        reader.finish()?;
        Ok(Self { incarnation, config, status, created_at, completed_at, op_log, root_count, staging })
    }
}

impl RootsPart {
    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(Kind::ROOTS, self.roots.len() * 8 + 6);
        writer.length(self.roots.len());
        self.roots.iter().for_each(|root| writer.u64(root.get()));
        writer.finish()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a list of roots of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(Kind::ROOTS, bytes)?;
        let count = reader.length(MAX_INITIAL_SHARDS, "roots")?;
        let roots = (0..count).map(|_| reader.u64("roots").map(ShardId::new)).collect::<Result<Vec<_>, _>>()?;
        reader.finish()?;
        Ok(Self { roots })
    }
}

fn decode_entry(reader: &mut Reader<'_>) -> Result<RunOpLogEntry, CodecError> {
    let op_id = OpId::new(reader.u64("op_log")?);
    let kind = reader.numbered("op_log", RunOpKind::from_u8)?;
    let hash = reader.u64("op_log")?;
    let payload_hash = PayloadHash::from_stored(hash).ok_or_else(|| reader.wrong("op_log", "a fingerprint is zero"))?;
    Ok(RunOpLogEntry { op_id, kind, payload_hash, executed_at: reader.time("op_log")? })
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::stored::testing::{assert_golden, assert_robust};

    fn example() -> RunPart {
        RunPart {
            incarnation: RunIncarnation::new(0x1122_3344_5566_7788),
            config: RunConfig {
                cursor_semantics: CursorSemantics::Completed,
                lease_duration: Some(30_000),
                max_shard_retries: 10,
            },
            status: RunStatus::Cancelled,
            created_at: LogicalTime::new(1_700_000_000_000),
            completed_at: Some(LogicalTime::new(1_700_000_100_000)),
            op_log: vec![RunOpLogEntry {
                op_id: OpId::new(11),
                kind: RunOpKind::Cancel,
                payload_hash: PayloadHash::from_stored(12).expect("not zero"),
                executed_at: LogicalTime::new(1_700_000_100_000),
            }],
            root_count: 3,
            staging: Some(Staging { attempt: 99, reserved: 3 }),
        }
    }

    #[test]
    fn a_run_record_keeps_its_bytes() {
        let encoded = example().encode();
        assert_golden("run", &encoded);
        assert_robust(&encoded, RunPart::decode);
        assert_eq!(RunPart::decode(&encoded), Ok(example()));
    }

    #[test]
    fn a_stored_run_whose_leases_would_last_no_time_is_refused() {
        let config = RunConfig { lease_duration: Some(0), ..example().config };
        let refused = RunPart::decode(&RunPart { config, ..example() }.encode()).unwrap_err();
        assert_eq!(refused.field, "lease_duration");
    }

    #[test]
    fn a_list_of_roots_keeps_its_bytes_up_to_the_largest() {
        let roots = RootsPart { roots: vec![ShardId::new(1), ShardId::new(2)] };
        assert_golden("roots", &roots.encode());
        assert_robust(&roots.encode(), RootsPart::decode);
        let largest = RootsPart { roots: (0..MAX_INITIAL_SHARDS as u64).map(ShardId::new).collect() };
        assert_eq!(RootsPart::decode(&largest.encode()), Ok(largest.clone()));
        let beyond = RootsPart { roots: vec![ShardId::new(1); MAX_INITIAL_SHARDS + 1] };
        assert!(RootsPart::decode(&beyond.encode()).is_err());
    }

    #[test]
    fn a_record_comes_back_whole() {
        let (tenant, run) = (TenantId::from_bytes([1; 32]), RunId::new(4));
        let roots = vec![ShardId::new(1), ShardId::new(2), ShardId::new(3)];
        let record = RunPart { staging: None, ..example() }.into_record(tenant, run, roots);
        assert_eq!(RunPart::of(&record, None), RunPart { staging: None, ..example() });
    }

    #[test]
    fn a_list_of_roots_is_written_into_memory_of_its_own_size() {
        for count in [0, 1, 2, 3, 1_000] {
            let encoded = RootsPart { roots: vec![ShardId::new(1); count] }.encode();
            assert_eq!(encoded.capacity(), encoded.len(), "{count} roots");
        }
    }
}
