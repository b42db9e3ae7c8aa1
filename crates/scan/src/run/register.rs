//! From a folder that is ready to a run that workers see.
//!
//! The folder comes first: a worker that sees the run finds its label, its job and its lists. A submitter may die after any
//! step. Before the run is created it leaves a folder that no run names (`tessera runs collect` removes it); after that, a run
//! without shards, which the next submitter of the same request takes over together with its folder.

use tessera_contracts::LogicalTime;
use tessera_contracts::manifest::InitialShardInput;
use tessera_coordination::RunManagement;
use tessera_coordination::error::{CreateRunError, RegisterShardsError};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;

use crate::error::ScanError;
use crate::op_ids::OpIds;
use crate::run::folder::{FolderRefused, RunFolder};
use crate::run::label::RunLabel;

/// Who gave a run its shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registered {
    /// This program.
    Now,
    /// The same command, given elsewhere at the same time.
    ByAnother,
}

/// Creates the run of `folder` with these shards.
///
/// # Errors
/// [`ScanError::OtherIncarnation`] if the run was created by another: its folder is another one.
pub(crate) fn register<B: RunManagement>(
    backend: &mut B,
    now: LogicalTime,
    folder: &RunFolder,
    config: RunConfig,
    shards: &[InitialShardInput<'_>],
    op_ids: &mut OpIds,
) -> Result<Registered, ScanError> {
    let (tenant, key) = (folder.label().tenant, folder.key());
    match backend.create_run(now, tenant, key.run, key.incarnation, config) {
        Ok(()) => {}
        // By another, by a submitter of this folder that died, or by this very call, whose first answer was lost.
        Err(CreateRunError::AlreadyExists { .. }) => check_current(backend, folder)?,
        Err(error) => return Err(ScanError::coordinator(error)),
    }
    match backend.register_shards(now, tenant, key.run, shards, op_ids.next_id()) {
        Ok(_) => {}
        Err(RegisterShardsError::NotInitializing { status: RunStatus::Active, .. }) => {
            check_current(backend, folder)?;
            return Ok(Registered::ByAnother);
        }
        Err(error) => return Err(ScanError::coordinator(error)),
    }
    // A registration names the run by its id alone.
    check_current(backend, folder)?;
    if let Err(error) = RunLabel::load(folder.path()) {
        // Taken away as that of a dead submitter. No worker could take part in the run, and nothing waits for it.
        let cancelled = backend.cancel_run(now, tenant, key.run, op_ids.next_id());
        cancelled.map_err(ScanError::coordinator)?;
        return Err(FolderRefused::Unreadable { path: folder.path().to_path_buf(), source: error }.into());
    }
    Ok(Registered::Now)
}

fn check_current<B: RunManagement>(backend: &mut B, folder: &RunFolder) -> Result<(), ScanError> {
    let record = backend.get_run(folder.label().tenant, folder.key().run).map_err(ScanError::coordinator)?;
    check_incarnation(&record, folder)
}

/// Whether the run that the coordinator knows is the one that `folder` belongs to.
pub(crate) fn check_incarnation(record: &RunRecord, folder: &RunFolder) -> Result<(), ScanError> {
    if record.incarnation == folder.key().incarnation {
        Ok(())
    } else {
        Err(ScanError::OtherIncarnation { prepared: folder.key(), current: record.incarnation })
    }
}
