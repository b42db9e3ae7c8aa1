//! What the workers of a machine read with: one kind of source for each machine that serves.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::error::ScanError;
use crate::plan::ledger::OpenPlan;
use crate::run::folder::RunFolder;
use crate::run::job::Job;
use crate::source::open::Connector;
use crate::sweep::worker::driver::Site;
use crate::sweep::worker::{Equipment, LocalSite, OpenSite, WorkerProgress};

/// What the workers of a machine read with.
pub trait Sites: Sync {
    /// What one worker reads with.
    type Site<'s>: Site
    where
        Self: 's;

    /// A site for one worker of a run. What it cannot do is said once, and the run is left to others.
    fn site<'s>(&'s self, place: &Place<'_, 's>) -> Result<Self::Site<'s>, ScanError>;
}

/// Where a worker takes part.
#[derive(Debug)]
pub struct Place<'p, 's> {
    /// The folder of its run.
    pub folder: &'p RunFolder,
    /// What its items are held against.
    pub plan: Arc<OpenPlan>,
    /// Where it says how far it is.
    pub progress: Arc<WorkerProgress>,
    /// Set to make it end.
    pub stop: &'s AtomicBool,
}

/// Files and repositories.
#[derive(Debug)]
pub struct LocalSites;

impl Sites for LocalSites {
    type Site<'s> = LocalSite<'s>;

    fn site<'s>(&'s self, place: &Place<'_, 's>) -> Result<LocalSite<'s>, ScanError> {
        let job = Job::load(place.folder.path())?;
        let detectors = job.detectors().map_err(ScanError::Rules)?;
        let equipment = Equipment {
            plan: Some(Arc::clone(&place.plan)),
            progress: Arc::clone(&place.progress),
            ..Equipment::new(job.reader(detectors), place.folder.path().to_path_buf())
        };
        Ok(LocalSite::new(equipment, place.stop, true))
    }
}

/// What a connector finds, see [`crate::source::open`].
#[derive(Debug)]
pub struct OpenSites<'c, C>(pub &'c C);

impl<C: Connector> Sites for OpenSites<'_, C> {
    type Site<'s>
        = OpenSite<'s, C>
    where
        Self: 's;

    fn site<'s>(&'s self, place: &Place<'_, 's>) -> Result<OpenSite<'s, C>, ScanError> {
        let dir = place.folder.path();
        let site = OpenSite::new(self.0, dir, Arc::clone(&place.plan), Arc::clone(&place.progress));
        site.map_err(|source| ScanError::Folder { path: dir.to_path_buf(), source })
    }
}
