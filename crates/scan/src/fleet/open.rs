//! A fleet that sweeps what this crate does not know, see [`crate::source::open`].
//!
//! The submitter plans and registers a run as [`follow()`](super::follow()) does; any number of machines work on it, each with its
//! own [`OpenFleet`] and a connector of the same name; anyone who sees the folder for findings concludes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tessera_contracts::{CursorSemantics, RunId, TenantId};
use tessera_coordination::InMemoryCoordinator;
use tessera_coordination::run::config::RunConfig;

use super::Connect;
use super::serve::{Serving, serve_sites};
use super::sites::OpenSites;
use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::op_ids::{OpIds, random_incarnation, random_u64};
use crate::plan::Plan;
use crate::plan::target::{ReadOptions, Target, TargetKind};
use crate::report::finding::Finding;
use crate::report::receipt::Receipt;
use crate::run::conclude::conclude;
use crate::run::coordinator_name::CoordinatorName;
use crate::run::folder::RunFolder;
use crate::run::label::{RunKey, RunLabel};
use crate::run::locked::Locked;
use crate::run::prepare::stored_targets;
use crate::run::register::register;
use crate::source::open::Connector;

/// How a machine takes part in sweeping sources of its own kind.
#[derive(Debug)]
pub struct OpenFleet<K> {
    /// How to reach the coordinator.
    pub connect: K,
    /// Which coordinator that is.
    pub coordinator: CoordinatorName,
    /// Whose runs.
    pub tenant: TenantId,
    /// The folder that all machines reach under this path.
    pub findings: PathBuf,
    /// Threads; each is a worker.
    pub workers: usize,
    /// A lease lasts this long, in milliseconds: a dead worker's shard is free after it.
    pub lease_duration: u64,
}

impl OpenFleet<Locked<InMemoryCoordinator>> {
    /// A fleet of this process alone, which lasts as long as it.
    pub fn in_memory(findings: impl Into<PathBuf>) -> Self {
        Self {
            connect: Locked::new(InMemoryCoordinator::default()),
            coordinator: CoordinatorName::Memory,
            tenant: TenantId::from_name("open"),
            findings: findings.into(),
            workers: 2,
            lease_duration: 30_000,
        }
    }
}

impl<K: Connect + Sync> OpenFleet<K> {
    /// Walks over what lies at `path`, cuts it into shards and registers them. `cursors` says what a cursor means to the
    /// handlers of the run.
    pub fn submit<C: Connector>(
        &self,
        connector: &C,
        path: &Path,
        cursors: CursorSemantics,
    ) -> Result<RunFolder, ScanError> {
        let kind = TargetKind::Open { family: connector.name().into() };
        let target = Target { number: 0, path: path.to_path_buf(), kind, rules: 0, options: ReadOptions::default() };
        let key = RunKey::new(RunId::new(random_u64()), random_incarnation());
        let label =
            RunLabel { coordinator: self.coordinator.clone(), tenant: self.tenant, key, created_at: wall_clock() };
        let folder = RunFolder::create(&self.findings, label)?;
        let plan = Plan::of_family(&target, connector, self.workers, folder.path())?;
        plan.record.store(folder.path())?;
        let config =
            RunConfig { cursor_semantics: cursors, lease_duration: Some(self.lease_duration), ..RunConfig::default() };
        let mut backend = self.connect.connect().map_err(ScanError::Coordinator)?;
        register(&mut backend, folder.label().created_at, &folder, config, &plan.manifest(), &mut OpIds::random())?;
        Ok(folder)
    }

    /// Works until no run of the tenant has anything open, or `stop` is set.
    pub fn work<C: Connector>(&self, connector: &C, stop: &AtomicBool) -> Result<(), ScanError> {
        let serving = Serving {
            coordinator: self.coordinator.clone(),
            tenant: self.tenant,
            findings: self.findings.clone(),
            threads: self.workers,
            give_up_after: Duration::from_secs(60),
            until_done: true,
        };
        serve_sites(&serving, &self.connect, &OpenSites(connector), stop, &Arc::default(), &|_| {})
    }

    /// What the run has found so far, and what became of everything else.
    pub fn conclude(&self, folder: &RunFolder) -> Result<(Vec<Finding>, Receipt), ScanError> {
        let mut backend = self.connect.connect().map_err(ScanError::Coordinator)?;
        let run = folder.key().run;
        let targets = stored_targets(&mut backend, self.tenant, run)?;
        conclude(&mut backend, self.tenant, run, folder, &targets)
    }
}
