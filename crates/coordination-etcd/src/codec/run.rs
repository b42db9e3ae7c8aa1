//! A run's record as a fleet stores it: the shared form, and beside it the marker of a removal.

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
    /// Set once the run is being removed, and never by a registration: from then on no reader sees it.
    pub removal: Option<Removal>,
}

/// A run that is being retired or collected. Its shards may be gone already; its id is free once its record is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removal {
    /// Tells the removal that marked the run from any other.
    pub attempt: u64,
    /// Shards to take off the counters, which the last step does: counted before the first of them was deleted.
    pub counted: u32,
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
    pub fn of(record: &RunRecord) -> Self {
        Self { shared: stored::RunPart::of(record, None), removal: None }
    }

    /// The same with a registration under way.
    #[must_use]
    pub fn staged(&self, staging: Staging) -> Self {
        Self { shared: stored::RunPart { staging: Some(staging), ..self.shared.clone() }, removal: self.removal }
    }

    /// The same with a removal under way, in place of any registration.
    #[must_use]
    pub fn being_removed(&self, removal: Removal) -> Self {
        Self { shared: stored::RunPart { staging: None, ..self.shared.clone() }, removal: Some(removal) }
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
        let mut writer = Writer::new(FLEET_RUN, shared.len() + 24);
        writer.bytes(&shared);
        writer.option(self.removal, |writer, removal| {
            writer.u64(removal.attempt);
            writer.u32(removal.counted);
        });
        writer.finish()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// If they are not a fleet's run record of a known version.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(FLEET_RUN, bytes)?;
        let shared = stored::RunPart::decode(reader.bytes(RUN_BYTES_MAX, "shared")?)?;
        let removal = reader.option("removal", |reader| {
            Ok(Removal { attempt: reader.u64("removal")?, counted: reader.u32("removal")? })
        })?;
        reader.finish()?;
        Ok(Self { shared, removal })
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::{LogicalTime, RunIncarnation};
    use tessera_coordination::run::config::RunConfig;

    use super::*;
    use crate::codec::testing::{assert_golden, assert_robust};

    #[test]
    fn a_fleets_run_record_keeps_its_bytes() {
        let (tenant, run) = (TenantId::from_bytes([1; 32]), RunId::new(4));
        let config = RunConfig { lease_duration: Some(30_000), ..RunConfig::default() };
        let record = RunRecord::newborn(
            tenant,
            run,
            RunIncarnation::new(0x1234_5678),
            config,
            LogicalTime::new(1_700_000_000_000),
        );
        let part = RunPart::of(&record).staged(Staging { attempt: 99, reserved: 3 });
        assert_golden("run", &part.encode());
        assert_robust(&part.encode(), RunPart::decode);
        assert_eq!(RunPart::decode(&part.encode()), Ok(part.clone()));
        assert_eq!(part.to_record(tenant, run, Vec::new()), record);
        let removed = part.being_removed(Removal { attempt: 7, counted: 3 });
        assert_golden("run_removed", &removed.encode());
        assert_robust(&removed.encode(), RunPart::decode);
        assert_eq!(RunPart::decode(&removed.encode()), Ok(removed.clone()));
        assert_eq!(removed.staging, None, "the registration is over");
    }
}
