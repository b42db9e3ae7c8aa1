//! From a request to a run with shards, or back to one that was interrupted.
//!
//! A run that goes on is planned anew, so that its receipt is compared with what is there when the command is given. One
//! whose repository has moved on does not go on (`moved_on`): its list of objects is that of an older history.
//!
//! The plan of a run is shared. Before a command replaces it, it holds its own view against the plan: a root that is empty
//! here and was not when it was planned is an error, on one machine too. A file that is not here was removed, if there is one machine only;
//! in a fleet it may lie on a file system that is not mounted here. A submitter therefore never takes planned files out of the
//! plan of a run: it leaves the run alone and begins another, and workers tell what is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tessera_contracts::{LogicalTime, RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::error::GetRunError;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::ShardFilter;

use crate::error::ScanError;
use crate::op_ids::OpIds;
use crate::plan::heads::Heads;
use crate::plan::ledger::OpenPlan;
use crate::plan::record::{Listed, PlanRecord, program};
use crate::plan::target::{Target, TargetKind};
use crate::plan::{self, Plan, Surveyed, gone};
use crate::run::conclude::for_each_shard;
use crate::run::folder::RunFolder;
use crate::run::left_out::LeftOut;
use crate::run::register::{Registered, check_incarnation, register};
use crate::run::request::{ScanRequest, ScanScope};
use crate::source::Source;
use crate::source::git::GitError;
use crate::source::git::list::{ObjectList, Presence, Scope};
use crate::sweep::worker::reachable;

/// A run that can be worked on.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// What it reads.
    pub(crate) sources: Vec<Arc<Source>>,
    /// What there is to read.
    pub(crate) plan: Arc<OpenPlan>,
    /// Whether it goes on from an interrupted one.
    pub(crate) is_resumed: bool,
}

impl Prepared {
    /// What it reads.
    pub(crate) fn targets(&self) -> Vec<Target> {
        self.sources.iter().map(|source| source.target().clone()).collect()
    }

    /// Takes over the plan of a command that was given elsewhere and went on with this run. Whether there is one.
    pub(crate) fn adopt_plan(&mut self, folder: &RunFolder) -> Result<bool, ScanError> {
        let latest = PlanRecord::load(folder.path())?;
        let is_other = latest.id != self.plan.record().id;
        if is_other {
            self.plan = Arc::new(OpenPlan::new(latest, folder.path().to_path_buf()));
        }
        Ok(is_other)
    }

    /// Items and bytes of the whole run, if they are known.
    pub(crate) fn totals(&self) -> (Option<u64>, Option<u64>) {
        let record = self.plan.record();
        // A run that goes on was partly read before: what is left of it is not known.
        if self.is_resumed {
            return (None, None);
        }
        let sum = |number: fn(&plan::record::TargetPlan) -> u64| Some(record.targets.iter().map(number).sum());
        (sum(|target| target.items), sum(|target| target.bytes))
    }
}

/// What came of the attempt to prepare a run.
#[derive(Debug)]
pub(crate) enum Preparation {
    Ready(Prepared),
    /// The run goes on, and has planned files that are not here. It was left alone.
    NotAllHere {
        /// Which, as the end of a sentence.
        because: String,
    },
}

/// How a run is made, or gone on with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewRun {
    /// For how many workers it is cut.
    pub(crate) workers: usize,
    /// How long a lease lasts, in milliseconds: a stuck worker's shard is free after it.
    pub(crate) lease_duration: u64,
    /// Whether other machines may see files that are not here.
    pub(crate) is_one_of_many: bool,
}

/// Finds the run of `request` that `folder` is for, or plans and creates it.
pub(crate) fn prepare<B: RunManagement>(
    request: &ScanRequest,
    paths: &[PathBuf],
    backend: &mut B,
    folder: &RunFolder,
    now: LogicalTime,
    new: NewRun,
) -> Result<Preparation, ScanError> {
    let (tenant, run) = (request.tenant, folder.key().run);
    let mut op_ids = OpIds::random();
    let is_active = match backend.get_run(tenant, run) {
        Ok(record) => {
            check_incarnation(&record, folder)?;
            record.status == RunStatus::Active
        }
        Err(GetRunError::RunNotFound(_)) => false,
        Err(error) => return Err(ScanError::coordinator(error)),
    };
    if !is_active {
        let (sources, left_out) = survey(request, paths, folder)?;
        let plan = Plan::new(&sources, new.workers, left_out);
        // Before the run exists: a worker that sees the run finds its plan.
        plan.record.store(folder.path())?;
        let config = RunConfig { lease_duration: Some(new.lease_duration), ..RunConfig::default() };
        match register(backend, now, folder, config, &plan.manifest(), &mut op_ids)? {
            Registered::Now => {
                let sources = sources.into_iter().map(|surveyed| Arc::new(surveyed.source)).collect();
                let plan = Arc::new(OpenPlan::new(plan.record, folder.path().to_path_buf()));
                return Ok(Preparation::Ready(Prepared { sources, plan, is_resumed: false }));
            }
            Registered::ByAnother => {}
        }
    }
    let sources = stored_sources(backend, tenant, run, folder)?;
    let before = PlanRecord::load(folder.path())?;
    for source in &sources {
        reachable::check(source.target(), Some(&before)).map_err(ScanError::NotReachable)?;
    }
    let record = plan::again(&before, sources.iter().map(|source| &**source), folder.path())?;
    if new.is_one_of_many {
        // The walk takes long: another submitter may have planned the run anew meanwhile.
        for before in [before, PlanRecord::load(folder.path())?] {
            if let Some(because) = not_all_here(&before, &record, folder)? {
                return Ok(Preparation::NotAllHere { because });
            }
        }
    }
    record.store(folder.path())?;
    // Last: a command that leaves the run alone gives nothing in it another try.
    unpark_all(backend, now, tenant, run, &mut op_ids)?;
    let plan = Arc::new(OpenPlan::new(record, folder.path().to_path_buf()));
    Ok(Preparation::Ready(Prepared { sources, plan, is_resumed: true }))
}

/// Which files of `before` are not in `now`, as the end of a sentence.
fn not_all_here(before: &PlanRecord, now: &PlanRecord, folder: &RunFolder) -> Result<Option<String>, ScanError> {
    let failed = |source| ScanError::Folder { path: folder.path().to_path_buf(), source };
    let gone = gone::first_gone(before, now, folder.path()).map_err(failed)?;
    Ok(gone.map(|gone| {
        let files =
            if gone.files == 1 { "1 planned file is".into() } else { format!("{} planned files are", gone.files) };
        format!("{files} not below {} here", gone.root.display())
    }))
}

/// What a run reads, opened.
pub(crate) fn stored_sources<B: RunManagement>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
) -> Result<Vec<Arc<Source>>, ScanError> {
    let targets = stored_targets(backend, tenant, run)?;
    let open = |target| Source::of_target(target, folder.path()).map(Arc::new).map_err(ScanError::Source);
    targets.into_iter().map(open).collect()
}

/// Why the run in `folder` cannot go on, in words that end a sentence, if it cannot: its histories, ranges or indexes are others
/// now, or another program began it. Trees can go on: what changed in them is read again.
pub(crate) fn moved_on(request: &ScanRequest, folder: &Path, paths: &[PathBuf]) -> Option<String> {
    let record = match PlanRecord::load(folder) {
        Ok(record) => record,
        Err(error) => return Some(format!("its plan cannot be used ({error})")),
    };
    if record.program != program() {
        return Some(format!("it was begun by {}", record.program));
    }
    for plan in &record.targets {
        // Targets are numbered in the order of the paths; those that were left out have a number and no plan.
        let Some(path) = paths.get(plan.target as usize) else { continue };
        let Listed::Objects { name, heads } = &plan.listed else { continue };
        let moved = match heads {
            Some(heads) => Heads::of(path).map(|now| now != *heads || !is_listed_alike(path, name, folder)),
            // No heads speak for an index or a range: its list is made anew.
            None => list_objects(request, path, folder).map(|today| today != *name),
        };
        let what = if request.scope == ScanScope::Staged { "index" } else { "history" };
        match moved {
            Ok(false) => {}
            Ok(true) => return Some(format!("the {what} of {} has changed since", path.display())),
            Err(error) => return Some(format!("the {what} of {} cannot be read ({error})", path.display())),
        }
    }
    None
}

/// Whether a list would be the same today. It would with the same heads, unless objects were missing that are there now.
fn is_listed_alike(repository: &Path, name: &[u8; 16], folder: &Path) -> bool {
    let has_holes = || -> std::io::Result<bool> {
        let (list, mut first) = (ObjectList::open(folder, name)?, 0);
        loop {
            let entries = list.read(first, 4_096)?;
            if entries.is_empty() {
                return Ok(false);
            }
            if entries.iter().any(|entry| entry.presence != Presence::Present) {
                return Ok(true);
            }
            first += entries.len() as u64;
        }
    };
    match has_holes() {
        Ok(false) => true,
        Ok(true) => ObjectList::build(repository, Scope::History, folder).is_ok_and(|today| today == *name),
        Err(_) => false,
    }
}

/// A user who gives the same command again has perhaps mended what was wrong: parked shards get another try.
fn unpark_all<B: RunManagement>(
    backend: &mut B,
    now: LogicalTime,
    tenant: TenantId,
    run: RunId,
    op_ids: &mut OpIds,
) -> Result<(), ScanError> {
    for_each_shard(backend, tenant, run, &ShardFilter::parked(), |backend, shard| {
        let key = ShardKey::new(run, shard.shard);
        backend
            .unpark_shard(now, tenant, key, shard.epoch(), op_ids.next_id())
            .map_err(ScanError::coordinator)
            .map(drop)
    })
}

/// Opens and walks what is to be scanned. What cannot be is left out, if the request allows that.
fn survey(
    request: &ScanRequest,
    paths: &[PathBuf],
    folder: &RunFolder,
) -> Result<(Vec<Surveyed>, Vec<LeftOut>), ScanError> {
    let (mut surveyed, mut left_out) = (Vec::new(), request.left_out.clone());
    let mut first = None;
    for (path, number) in paths.iter().zip(0..) {
        match survey_one(request, path, number, folder.path()) {
            Ok(one) => surveyed.push(one),
            Err(error) if request.tolerant && error.is_of_a_target() => {
                left_out.push(LeftOut::found(path, &error));
                first = first.or(Some(error));
            }
            Err(error) => return Err(error),
        }
    }
    match first {
        // Nothing is left of a list: that is no scan.
        Some(error) if surveyed.is_empty() => Err(error),
        _ => Ok((surveyed, left_out)),
    }
}

fn survey_one(request: &ScanRequest, path: &Path, number: u32, folder: &Path) -> Result<Surveyed, ScanError> {
    let mut heads = None;
    let kind = match request.scope {
        ScanScope::Files => {
            if let (true, Err(source)) = (request.tolerant, std::fs::metadata(path)) {
                return Err(ScanError::Path { path: path.to_path_buf(), source });
            }
            TargetKind::Tree
        }
        ScanScope::History | ScanScope::Staged => {
            if !crate::source::git::is_repository(path)? {
                return Err(ScanError::NotARepository(path.to_path_buf()));
            }
            // Before the list: a ref that moves in between makes the heads too old, which is noticed later.
            if request.scope == ScanScope::History && request.range.is_none() {
                heads = Some(Heads::of(path)?);
            }
            TargetKind::Objects { list: list_objects(request, path, folder)? }
        }
    };
    let rules = request.rules.number_for(path);
    let target = Target { number, path: path.to_path_buf(), kind, rules, options: request.options.clone() };
    // Refused now if it does not fit a shard.
    target.encode()?;
    Surveyed::of(Source::of_target(target, folder).map_err(ScanError::Source)?, heads, folder)
}

/// Lists the objects of a repository that a request is for; the name of the list.
fn list_objects(request: &ScanRequest, path: &Path, folder: &Path) -> Result<[u8; 16], GitError> {
    match (request.scope, &request.range) {
        (ScanScope::Staged, _) => ObjectList::build(path, Scope::Staged, folder),
        (_, Some(range)) => ObjectList::build_range(path, range, folder),
        (_, None) => ObjectList::build(path, Scope::History, folder),
    }
}

/// What a run scans, as its shards tell: a repository may have moved on since it was planned.
pub fn stored_targets<B: RunManagement>(
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
