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
    if run.is_unassigned() {
        return Err(CreateRunError::UnassignedRun);
    }
    config.validate()?;
    if exists {
        return Err(CreateRunError::AlreadyExists { run });
    }
    Ok(RunRecord::newborn(tenant, run, config, now))
}
