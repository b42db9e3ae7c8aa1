//! Runs that survive this process: a coordinator in a file of the run's folder.

use std::path::{Path, PathBuf};

use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::ShardFilter;
use tessera_coordination::{CoordinatorRuntimeConfig, RunManagement};
use tessera_coordination_local::LocalCoordinator;

use crate::clock::wall_clock;
use crate::conclude::for_each_shard;
use crate::error::ScanError;
use crate::folder::RunFolder;
use crate::request::ScanRequest;
use crate::run::{Control, SHARDS_MAX, ScanReport, execute};

/// Runs `request`, or goes on where it was interrupted.
pub(crate) fn scan_kept(
    request: &ScanRequest,
    paths: &[PathBuf],
    run: RunId,
    state_dir: &Path,
    fresh: bool,
    control: &mut Control<'_>,
) -> Result<ScanReport, ScanError> {
    let folder = RunFolder::kept(state_dir, run)?;
    let mut backend = open(&folder)?;
    let status = backend.get_run(request.tenant, run).map(|record| record.status);
    // A run that ended is begun anew, and so is one that was interrupted before it had shards. What else lies in the folder
    // belongs to no run that goes on.
    if fresh || !status.is_ok_and(|status| status == RunStatus::Active) {
        drop(backend);
        folder.clear()?;
        backend = open(&folder)?;
    }
    let clock = clock_after_leases(&mut backend, request.tenant, run)?;
    execute(request, paths, run, backend, &folder, clock, control)
}

/// Opens the coordinator of a run's folder. One process at a time can.
pub fn open(folder: &RunFolder) -> Result<LocalCoordinator, ScanError> {
    let path = folder.path().join("coordinator.redb");
    LocalCoordinator::open(&path, CoordinatorRuntimeConfig::for_shards(SHARDS_MAX)).map_err(ScanError::coordinator)
}

/// A clock that is past every lease in the file.
///
/// The file is open in this process alone, so whoever holds a lease in it is dead. Instead of waiting for the
/// leases to end, time goes on after the last of them.
fn clock_after_leases(
    backend: &mut LocalCoordinator,
    tenant: TenantId,
    run: RunId,
) -> Result<impl Fn() -> LogicalTime + Clone + Send + use<>, ScanError> {
    let mut last = 0;
    if backend.get_run(tenant, run).is_ok() {
        for_each_shard(backend, tenant, run, &ShardFilter::active(), |_, shard| {
            last = last.max(shard.lease_deadline().map_or(0, LogicalTime::get));
            Ok(())
        })?;
    }
    let ahead = last.saturating_sub(wall_clock().get());
    Ok(move || LogicalTime::new(wall_clock().get() + ahead))
}
