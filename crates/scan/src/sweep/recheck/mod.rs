//! A command that goes on with an interrupted run looks again at what was read before it.
//!
//! The run was planned anew when the command began, so segments that were read earlier name another plan: they are
//! *suspects*. Each is compared with what is there now ([`compare`]). What is still as it was counts, under the new plan;
//! what is not is read again as a whole ([`read_again`]), and its findings take the place of the old ones. Both are written down,
//! so that an interruption here loses nothing.
//!
//! In a fleet a file that is not here may be on another machine. What one machine lacks takes no findings of another away: a
//! segment that met files which are not here stays a suspect, so that the receipt is not complete, and workers of another run tell what
//! is there.
//!
//! This comes last, when all shards are done: then it covers also what other workers of a fleet read before they knew of
//! the new plan. Until it is done the receipt counts suspects as not compared, and the run is not complete.

pub(crate) mod compare;
pub(crate) mod read_again;
mod suspect;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tessera_contracts::{RunId, TenantId, WorkerId};
use tessera_coordination::RunManagement;

use crate::error::ScanError;
use crate::findings::FileSink;
use crate::findings::record::{Compared, Segment};
use crate::op_ids::random_u64;
use crate::plan::ledger::OpenPlan;
use crate::plan::record::{Listed, PlanRecord};
use crate::run::conclude::merged_of;
use crate::run::folder::RunFolder;
use crate::run::job::Job;
use crate::source::Source;
use compare::Verdict;
use suspect::Suspect;
pub(crate) use suspect::spans_of;

/// What is needed to look again.
pub(crate) struct Recheck<'r> {
    pub(crate) plan: &'r OpenPlan,
    pub(crate) sources: &'r [Arc<Source>],
    pub(crate) folder: &'r RunFolder,
    pub(crate) job: &'r Job,
    /// Threads that read again.
    pub(crate) workers: usize,
    /// Whether other machines may see files that are not here.
    pub(crate) is_one_of_many: bool,
    pub(crate) stop: &'r AtomicBool,
}

/// What a look at suspects found.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    /// Those that are not what they were.
    changed: Vec<Suspect>,
    pass: u32,
    /// Items of segments that are still what they were.
    pub(crate) same_items: u64,
    /// Items of those that are not.
    pub(crate) changed_items: u64,
    /// Items of segments that are not what they were, with files that no plan named: they may be on another machine.
    pub(crate) unplanned_items: u64,
}

/// Whether a segment was read under another plan than `plan`, and may be out of date.
pub(crate) fn is_suspect(segment: &Segment, plan: &PlanRecord) -> bool {
    let is_listed = plan.target(segment.target).is_some_and(|target| matches!(target.listed, Listed::Objects { .. }));
    // Objects are named by their content: only those that could not be read may be different now.
    segment.entry.plan != plan.id && (!is_listed || segment.tally.unreadable_total() > 0)
}

impl Recheck<'_> {
    /// Compares all suspects, and writes down which are still what they were.
    pub(crate) fn look<B: RunManagement>(
        &self,
        backend: &mut B,
        tenant: TenantId,
        run: RunId,
    ) -> Result<Looked, ScanError> {
        let merged = merged_of(self.folder)?;
        let mut looked = Looked { pass: merged.last_pass + 1, ..Looked::default() };
        let plan = self.plan.record();
        let suspects = spans_of(backend, tenant, run, merged.segments, |segment| is_suspect(segment, plan))?;
        if suspects.is_empty() {
            return Ok(looked);
        }
        let mut sink = self.sink()?;
        for batch in suspect::batches(&suspects) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let verdicts = compare::batch(self.source_of(batch[0].segment.target)?, self.plan, batch)
                .map_err(ScanError::Source)?;
            let mut same = Vec::new();
            for (suspect, verdict) in batch.iter().zip(verdicts) {
                let items = suspect.segment.tally.enumerated();
                match verdict {
                    Verdict::Same(entry) => {
                        looked.same_items += items;
                        same.push(Compared { span: suspect.segment.span.clone(), pass: looked.pass, entry });
                    }
                    Verdict::Absent if self.is_one_of_many => {}
                    Verdict::Changed if self.is_one_of_many && suspect.segment.entry.coverage.added > 0 => {
                        looked.unplanned_items += items;
                    }
                    Verdict::Unproven | Verdict::Changed | Verdict::Absent => {
                        looked.changed_items += items;
                        looked.changed.push(suspect.clone());
                    }
                }
            }
            sink.compared(&same)?;
        }
        Ok(looked)
    }

    fn sink(&self) -> Result<FileSink, ScanError> {
        Ok(FileSink::create(&self.folder.findings(), self.folder.key(), WorkerId::new(random_u64()), random_u64())?)
    }

    fn source_of(&self, target: u32) -> Result<&Arc<Source>, ScanError> {
        let known = self.sources.iter().find(|source| source.target().number == target);
        known.ok_or_else(|| {
            ScanError::Coordinator(format!("a segment names target {target}, which the run does not have"))
        })
    }
}

/// Whether every segment of a finished run is still what it was, and nothing that was planned is missing.
pub(crate) fn is_unchanged<B: RunManagement>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    folder: &Path,
    sources: &[Arc<Source>],
    segments: Vec<Segment>,
) -> Result<bool, ScanError> {
    let plan = OpenPlan::load(folder.to_path_buf())?;
    let is_tree = |segment: &Segment| {
        plan.record().target(segment.target).is_none_or(|plan| matches!(plan.listed, Listed::Paths { .. }))
    };
    let spans = spans_of(backend, tenant, run, segments, is_tree)?;
    for batch in suspect::batches(&spans) {
        let target = batch[0].segment.target;
        let Some(source) = sources.iter().find(|source| source.target().number == target) else { return Ok(false) };
        let Ok(verdicts) = compare::batch(source, &plan, batch) else { return Ok(false) };
        if !verdicts.iter().all(|verdict| matches!(verdict, Verdict::Same(_))) {
            return Ok(false);
        }
    }
    Ok(true)
}
