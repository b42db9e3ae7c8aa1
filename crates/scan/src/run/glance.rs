//! What a run's folder says about it, without its coordinator: for lists, and for a run that another process works on.

use std::path::Path;

use tessera_contracts::RunId;
use tessera_coordination::run::progress::ShardCounts;

use crate::error::ScanError;
use crate::findings::watch::Watch;
use crate::plan::record::{Listed, PlanRecord};
use crate::report::receipt::Receipt;
use crate::run::conclude::{found, merged_of};
use crate::run::folder::{RunFolder, incarnations_in, run_dir};
use crate::run::job::Job;
use crate::run::label::RunLabel;
use crate::run::{Origin, ScanReport};

/// How far a run is, as its folder tells.
#[derive(Debug)]
pub struct Glance {
    /// What it was to read.
    pub plan: PlanRecord,
    /// Items that became something.
    pub items: u64,
    /// Places of secrets, as workers wrote them: one that was found twice counts twice.
    pub findings: u64,
}

impl Glance {
    /// Looks into a folder. `None` while there is no plan, or none that this version reads.
    pub fn of(folder: &RunFolder) -> Option<Self> {
        let plan = PlanRecord::load(folder.path()).ok()?;
        let mut watch = Watch::default();
        watch.look_to_the_end(&folder.findings()).ok()?;
        Some(Self { plan, items: watch.tally.enumerated(), findings: watch.findings })
    }

    /// What kind of thing is scanned.
    pub fn kind(&self) -> &'static str {
        match self.plan.targets.first().map(|target| &target.listed) {
            Some(Listed::Objects { heads: Some(_), .. }) => "history",
            Some(Listed::Objects { heads: None, .. }) => "staged",
            Some(Listed::Paths { .. }) | None => "tree",
        }
    }

    /// Items to be read.
    pub fn items_total(&self) -> u64 {
        self.plan.targets.iter().fold(0, |sum, target| sum.saturating_add(target.items))
    }
}

/// The folder of a run of this machine that was made last.
pub fn latest_folder(state_dir: &Path, run: RunId) -> Option<RunFolder> {
    let dir = run_dir(state_dir, run);
    let folders =
        incarnations_in(state_dir, run).ok()?.into_iter().map(|incarnation| dir.join(incarnation.to_string()));
    let labels = folders.filter_map(|folder| RunLabel::load(&folder).ok()).filter(|label| label.key.run == run);
    let latest = labels.max_by_key(|label| label.created_at)?;
    RunFolder::open(state_dir, latest).ok()
}

/// What the run in a folder has found so far, when its coordinator cannot be asked: how many of its shards are done is not known,
/// and it is told as one that goes on.
pub fn report_so_far(folder: &RunFolder) -> Result<(ScanReport, Job), ScanError> {
    let job = Job::load(folder.path())?;
    let plan = PlanRecord::load(folder.path());
    let targets: Vec<_> = plan.iter().flat_map(|plan| &plan.targets).map(|target| target.described()).collect();
    let merged = merged_of(folder)?;
    let open = ShardCounts { active: 1, ..ShardCounts::default() };
    let mut receipt = Receipt::new(&merged, open, Vec::new(), 0).against(&plan, &merged);
    for account in receipt.by_target.values_mut() {
        account.shards.active = 1;
        // What is not accounted for may be under way.
        account.is_short = false;
    }
    let findings = found(merged, folder, &targets)?;
    let report = ScanReport {
        run: folder.key().run,
        further_runs: Vec::new(),
        origin: Origin::Scanned,
        ended: None,
        targets,
        findings,
        receipt,
        elapsed: std::time::Duration::ZERO,
    };
    Ok((report, job))
}
