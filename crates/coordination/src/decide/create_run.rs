//! Create run: a run comes to be, without shards.

use tessera_contracts::ids::{LogicalTime, RunId, TenantId};

use crate::error::CreateRunError;
use crate::run::config::RunConfig;
use crate::run::record::RunRecord;

/// Decides whether the run is made. `exists` is whether the id is taken; whoever stores the record checks it again in
/// the same step.
pub fn decide(
    exists: bool,
    tenant: TenantId,
    run: RunId,
    config: RunConfig,
    now: LogicalTime,
) -> Result<RunRecord, CreateRunError> {
    if tenant.is_unassigned() {
        return Err(CreateRunError::UnassignedTenant);
    }
    if run.is_unassigned() {
        return Err(CreateRunError::UnassignedRun);
    }
    config.validate()?;
    if exists {
        return Err(CreateRunError::AlreadyExists { run });
    }
    Ok(RunRecord::newborn(tenant, run, config, now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::ConfigError;
    use crate::run::status::RunStatus;

    #[test]
    fn a_new_run_is_initializing_and_has_no_shards() {
        let (tenant, run, now) = (TenantId::from_bytes([1; 32]), RunId::new(1), LogicalTime::new(5));
        let record = decide(false, tenant, run, RunConfig::default(), now).unwrap();
        assert_eq!((record.status, record.created_at, record.completed_at), (RunStatus::Initializing, now, None));
        assert!(record.root_shards.is_empty());
        record.assert_invariants();
        let taken = decide(true, tenant, run, RunConfig::default(), now);
        assert_eq!(taken, Err(CreateRunError::AlreadyExists { run }));
    }

    #[test]
    fn names_and_configuration_must_mean_something() {
        let (tenant, run, now) = (TenantId::from_bytes([1; 32]), RunId::new(1), LogicalTime::new(5));
        let config = RunConfig { lease_duration: Some(0), ..RunConfig::default() };
        assert_eq!(decide(false, tenant, run, config, now), Err(ConfigError::ZeroLeaseDuration.into()));
        let nobody = decide(false, TenantId::UNASSIGNED, run, RunConfig::default(), now);
        assert_eq!(nobody, Err(CreateRunError::UnassignedTenant));
        let nothing = decide(false, tenant, RunId::UNASSIGNED, RunConfig::default(), now);
        assert_eq!(nothing, Err(CreateRunError::UnassignedRun));
    }
}
