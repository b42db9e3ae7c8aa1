//! From a request to a run with shards, or back to one that was interrupted.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tessera_contracts::{LogicalTime, RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::CoordinationFacade;
use tessera_coordination::error::{GetRunError, RegisterShardsError};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::ShardFilter;

use crate::conclude::for_each_shard;
use crate::error::ScanError;
use crate::folder::RunFolder;
use crate::op_ids::OpIds;
use crate::plan::Plan;
use crate::request::{ScanRequest, ScanScope};
use crate::source::Source;
use crate::source::git::list::{ObjectList, Scope};
use crate::target::{Target, TargetKind};

/// A run that can be worked on.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// What it reads.
    pub(crate) sources: Vec<Arc<Source>>,
    /// How it was cut, if that was now.
    pub(crate) plan: Option<Plan>,
    /// Whether it goes on from an interrupted one.
    pub(crate) is_resumed: bool,
}

impl Prepared {
    /// What it reads.
    pub(crate) fn targets(&self) -> Vec<Target> {
        self.sources.iter().map(|source| source.target().clone()).collect()
    }

    /// Items and bytes of the whole run, if they are known.
    pub(crate) fn totals(&self) -> (Option<u64>, Option<u64>) {
        let whole = self.plan.as_ref().filter(|plan| plan.is_whole);
        (whole.map(|plan| plan.items), whole.map(|plan| plan.bytes))
    }
}

/// How a new run is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewRun {
    /// For how many workers it is cut.
    pub(crate) workers: usize,
    /// How long a lease lasts, in milliseconds: a stuck worker's shard is free after it.
    pub(crate) lease_duration: u64,
}

/// Finds the run of `request`, or plans and creates it.
pub(crate) fn prepare<B: CoordinationFacade>(
    request: &ScanRequest,
    paths: &[PathBuf],
    run: RunId,
    backend: &mut B,
    folder: &RunFolder,
    now: LogicalTime,
    new: NewRun,
) -> Result<Prepared, ScanError> {
    let tenant = request.tenant;
    let mut op_ids = OpIds::random();
    let is_active = match backend.get_run(tenant, run) {
        Ok(record) => record.status == RunStatus::Active,
        Err(GetRunError::RunNotFound(_)) => false,
        Err(error) => return Err(ScanError::coordinator(error)),
    };
    if !is_active {
        let sources = new_sources(request, paths, folder)?;
        let plan = Plan::new(&sources, new.workers).map_err(ScanError::Source)?;
        let config = RunConfig { lease_duration: Some(new.lease_duration), ..RunConfig::default() };
        match backend.create_run_with_shards(now, tenant, run, config, &plan.manifest(), op_ids.next_id()) {
            Ok(_) => {
                let sources = sources.into_iter().map(Arc::new).collect();
                return Ok(Prepared { sources, plan: Some(plan), is_resumed: false });
            }
            // The same command was given elsewhere at the same time, and was faster.
            Err(RegisterShardsError::NotInitializing { status: RunStatus::Active, .. }) => {}
            Err(error) => return Err(ScanError::coordinator(error)),
        }
    }
    unpark_all(backend, now, tenant, run, &mut op_ids)?;
    let mut sources = Vec::new();
    for target in stored_targets(backend, tenant, run)? {
        sources.push(Arc::new(Source::of_target(target, folder.path()).map_err(ScanError::Source)?));
    }
    Ok(Prepared { sources, plan: None, is_resumed: true })
}

/// Whoever gives the same command again has perhaps mended what was wrong: parked shards get another try.
fn unpark_all<B: CoordinationFacade>(
    backend: &mut B,
    now: LogicalTime,
    tenant: TenantId,
    run: RunId,
    op_ids: &mut OpIds,
) -> Result<(), ScanError> {
    for_each_shard(backend, tenant, run, &ShardFilter::parked(), |backend, shard| {
        let key = ShardKey::new(run, shard.shard);
        backend.unpark_shard(now, tenant, key, shard.fence, op_ids.next_id()).map_err(ScanError::coordinator).map(drop)
    })
}

fn new_sources(request: &ScanRequest, paths: &[PathBuf], folder: &RunFolder) -> Result<Vec<Source>, ScanError> {
    let mut sources = Vec::new();
    for (path, number) in paths.iter().zip(0..) {
        let kind = match request.scope {
            ScanScope::Files => TargetKind::Tree,
            ScanScope::History | ScanScope::Staged => {
                let scope = if request.scope == ScanScope::History { Scope::History } else { Scope::Staged };
                if !crate::source::git::is_repository(path) {
                    return Err(ScanError::NotARepository(path.clone()));
                }
                TargetKind::Objects { list: ObjectList::build(path, scope, folder.path())? }
            }
        };
        let target = Target { number, path: path.clone(), kind, options: request.options.clone() };
        // Refused now if it does not fit a shard.
        target.encode()?;
        sources.push(Source::of_target(target, folder.path()).map_err(ScanError::Source)?);
    }
    Ok(sources)
}

/// What a run scans, as its shards tell: a repository may have moved on since it was planned.
pub fn stored_targets<B: CoordinationFacade>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
) -> Result<Vec<Target>, ScanError> {
    let mut targets: BTreeMap<u32, Target> = BTreeMap::new();
    let mut roots: Vec<ShardId> = Vec::new();
    for_each_shard(backend, tenant, run, &ShardFilter::all().roots(), |_, shard| {
        roots.push(shard.shard);
        Ok(())
    })?;
    for shard in roots {
        let record = backend.get_shard(tenant, ShardKey::new(run, shard)).map_err(ScanError::coordinator)?;
        let target = Target::decode(record.spec.metadata())?;
        targets.insert(target.number, target);
    }
    Ok(targets.into_values().collect())
}
