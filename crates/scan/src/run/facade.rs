//! A scan in a few lines: the entry point for programs that embed one.
//!
//! Everything else in this crate is a part of it, or takes part in a fleet.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use crate::error::ScanError;
use crate::plan::target::ReadOptions;
use crate::run::request::{ScanRequest, ScanScope};
use crate::run::{Control, Keeping, Progress, ScanReport, scan};

/// A scan that is about to run.
///
/// ```
/// use tessera_scan::Scan;
///
/// let dir = tempfile::tempdir()?;
/// std::fs::write(dir.path().join("notes.txt"), "nothing to see here\n")?;
/// let report = Scan::of([dir.path()]).workers(1).run()?;
/// assert!(report.findings.is_empty());
/// assert!(report.receipt.is_complete(), "everything was read");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is read before `run`"]
pub struct Scan {
    request: ScanRequest,
    keeping: Keeping,
}

impl Scan {
    /// A scan of these directories, files or repositories, with all defaults. Without a path it is one of the current directory.
    pub fn of<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Self {
        let paths = paths.into_iter().map(Into::into).collect();
        Self { request: ScanRequest::of_paths(paths), keeping: Keeping::Nothing }
    }

    /// Scans every version of every file that a ref of a repository leads to, or what is staged, instead of files as they lie
    /// there.
    pub fn scope(mut self, scope: ScanScope) -> Self {
        self.request.scope = scope;
        self
    }

    /// Leaves out what `options` says.
    pub fn options(mut self, options: ReadOptions) -> Self {
        self.request.options = options;
        self
    }

    /// Uses so many threads; 0 for one a core.
    pub fn workers(mut self, workers: usize) -> Self {
        self.request.workers = workers;
        self
    }

    /// Keeps the run below this folder: if it is interrupted, the same scan goes on with it.
    pub fn kept_in(mut self, state_dir: impl Into<PathBuf>) -> Self {
        self.keeping = Keeping::In { state_dir: state_dir.into(), fresh: false };
        self
    }

    /// Reads everything.
    pub fn run(&self) -> Result<ScanReport, ScanError> {
        self.run_until(&AtomicBool::new(false), &mut |_| {})
    }

    /// The same, until `stop` is set. `progress` is told now and then how far it is.
    pub fn run_until(&self, stop: &AtomicBool, progress: &mut dyn FnMut(&Progress)) -> Result<ScanReport, ScanError> {
        scan(&self.request, &self.keeping, &mut Control { stop, progress })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::ExitStatus;

    #[test]
    fn a_run_is_kept_where_it_is_asked_to_be_and_progress_is_told() {
        let (dir, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(dir.path().join("a"), "plain\n").unwrap();
        let scan = Scan::of([dir.path()]).workers(1);
        let (stop, mut items) = (AtomicBool::new(false), 0);
        let report = scan.run_until(&stop, &mut |progress| items = progress.items).unwrap();
        assert_eq!((report.exit_status(), items), (ExitStatus::CleanComplete, 1));
        assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
        scan.kept_in(state.path()).run().unwrap();
        assert_ne!(std::fs::read_dir(state.path()).unwrap().count(), 0);
    }

    #[test]
    fn options_and_scope_reach_the_scan() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "plain\n").unwrap();
        let options = ReadOptions { exclude: vec!["*.txt".into()], ..ReadOptions::default() };
        let report = Scan::of([dir.path()]).workers(1).options(options).run().unwrap();
        assert_eq!((report.receipt.tally.scanned, report.receipt.tally.skipped_total()), (0, 1));
        let history = Scan::of([dir.path()]).workers(1).scope(ScanScope::History).run();
        assert!(matches!(history, Err(ScanError::NotARepository(_))), "{history:?}");
    }
}
