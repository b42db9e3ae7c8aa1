//! Create run: a run comes to be, without shards.

use tessera_contracts::ids::{LogicalTime, RunId, RunIncarnation, TenantId};

use crate::error::CreateRunError;
use crate::run::config::RunConfig;
use crate::run::record::RunRecord;

/// Decides whether the run is made. `exists` is whether the id is taken; the backend that stores the record checks it again
/// in the same step. `incarnation` is drawn at random by the creator.
pub fn decide(
    exists: bool,
    tenant: TenantId,
    run: RunId,
    incarnation: RunIncarnation,
    config: RunConfig,
    now: LogicalTime,
) -> Result<RunRecord, CreateRunError> {
    if tenant.is_unassigned() {
        return Err(CreateRunError::UnassignedTenant);
    }
    if run.is_unassigned() {
        return Err(CreateRunError::UnassignedRun);
    }
    if incarnation.is_unassigned() {
        return Err(CreateRunError::UnassignedIncarnation);
    }
    config.validate()?;
    if exists {
        return Err(CreateRunError::AlreadyExists { run });
    }
    Ok(RunRecord::newborn(tenant, run, incarnation, config, now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::ConfigError;
    use crate::run::status::RunStatus;

    const INCARNATION: RunIncarnation = RunIncarnation::new(77);

    #[test]
    fn a_new_run_is_initializing_and_has_no_shards() {
        let (tenant, run, now) = (TenantId::from_bytes([1; 32]), RunId::new(1), LogicalTime::new(5));
        let record = decide(false, tenant, run, INCARNATION, RunConfig::default(), now).unwrap();
        assert_eq!((record.status, record.created_at, record.completed_at), (RunStatus::Initializing, now, None));
        assert!(record.root_shards.is_empty());
        assert_eq!(record.incarnation, INCARNATION);
        record.assert_invariants();
        let taken = decide(true, tenant, run, INCARNATION, RunConfig::default(), now);
        assert_eq!(taken, Err(CreateRunError::AlreadyExists { run }));
    }

    #[test]
    fn names_and_configuration_must_mean_something() {
        let (tenant, run, now) = (TenantId::from_bytes([1; 32]), RunId::new(1), LogicalTime::new(5));
        let config = RunConfig { lease_duration: Some(0), ..RunConfig::default() };
        assert_eq!(decide(false, tenant, run, INCARNATION, config, now), Err(ConfigError::ZeroLeaseDuration.into()));
        let nobody = decide(false, TenantId::UNASSIGNED, run, INCARNATION, RunConfig::default(), now);
        assert_eq!(nobody, Err(CreateRunError::UnassignedTenant));
        let nothing = decide(false, tenant, RunId::UNASSIGNED, INCARNATION, RunConfig::default(), now);
        assert_eq!(nothing, Err(CreateRunError::UnassignedRun));
        let undrawn = decide(false, tenant, run, RunIncarnation::UNASSIGNED, RunConfig::default(), now);
        assert_eq!(undrawn, Err(CreateRunError::UnassignedIncarnation));
    }
}
