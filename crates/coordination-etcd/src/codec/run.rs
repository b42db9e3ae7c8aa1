//! A run's record as a fleet stores it: the shared form, and what tells this creation of the run from any other.

use core::ops::Deref;

use tessera_contracts::{RunId, ShardId, TenantId};
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::stored::{self, Reader, Staging, Writer};

use super::{CodecError, FLEET_RUN};

/// The most a run's record takes: its op-log is bounded and its roots are stored apart.
const RUN_BYTES_MAX: usize = 4_096;

/// A run's record without the list of its roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunPart {
    /// The record in the form that all durable backends share.
    pub shared: stored::RunPart,
    /// Drawn at random by whoever created the run, so that a creator whose answer was lost knows its run from another's.
    pub creation: u64,
}

impl Deref for RunPart {
    type Target = stored::RunPart;

    fn deref(&self) -> &stored::RunPart {
        &self.shared
    }
}

impl RunPart {
    /// The stored part of a record.
    #[must_use]
    pub fn of(record: &RunRecord, creation: u64) -> Self {
        Self { shared: stored::RunPart::of(record, None), creation }
    }

    /// The same with a registration or retirement under way.
    #[must_use]
    pub fn staged(&self, staging: Staging) -> Self {
        Self { shared: stored::RunPart { staging: Some(staging), ..self.shared.clone() }, ..*self }
    }

    /// The whole record again. Without the roots it serves every decision; only who asks for the roots needs them.
    #[must_use]
    pub fn to_record(&self, tenant: TenantId, run: RunId, roots: Vec<ShardId>) -> RunRecord {
        self.shared.clone().into_record(tenant, run, roots)
    }

    /// The stored bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let shared = self.shared.encode();
        let mut writer = Writer::new(FLEET_RUN, shared.len() + 16);
        writer.bytes(&shared);
        writer.u64(self.creation);
        writer.finish()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a fleet's run record of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(FLEET_RUN, bytes)?;
        let shared = stored::RunPart::decode(reader.bytes(RUN_BYTES_MAX, "shared")?)?;
        let creation = reader.u64("creation")?;
        reader.finish()?;
        Ok(Self { shared, creation })
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::LogicalTime;
    use tessera_coordination::run::config::RunConfig;

    use super::*;
    use crate::codec::testing::{assert_golden, assert_robust};

    #[test]
    fn a_fleets_run_record_keeps_its_bytes() {
        let (tenant, run) = (TenantId::from_bytes([1; 32]), RunId::new(4));
        let config = RunConfig { lease_duration: Some(30_000), ..RunConfig::default() };
        let record = RunRecord::newborn(tenant, run, config, LogicalTime::new(1_700_000_000_000));
        let part = RunPart::of(&record, 0x1234_5678).staged(Staging { attempt: 99, reserved: 3 });
        assert_golden("run", &part.encode());
        assert_robust(&part.encode(), RunPart::decode);
        assert_eq!(RunPart::decode(&part.encode()), Ok(part.clone()));
        assert_eq!(part.to_record(tenant, run, Vec::new()), record);
    }
}
