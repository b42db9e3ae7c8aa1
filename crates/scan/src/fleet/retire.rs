//! Retiring: a fleet forgets runs that have ended, with everything they found.
//!
//! The folder goes first and the run after it, since a run that is forgotten can no longer say which folder is its own. In
//! between lies a crash window: the run is known and its folder is gone. So that the next retirement can tell this from a
//! wrong `--findings`, a *marker* is written beside the folder before anything is removed: the folder's label, under the name
//! `INCARNATION.retiring`. It is removed last.

use std::fs;
use std::path::{Path, PathBuf};

use tessera_contracts::{LogicalTime, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::run::summary::RunSummary;

use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::fleet::collect::is_known;
use crate::run::coordinator_name::CoordinatorName;
use crate::run::folder::{FolderRefused, RunFolder, remove_dir, run_dir, runs_in};
use crate::run::label::{RunKey, RunLabel};

/// How the names of markers end.
const MARKER: &str = "retiring";

/// What is to be retired.
#[derive(Debug, Clone)]
pub struct Retiring {
    /// The coordinator that is asked.
    pub coordinator: CoordinatorName,
    /// Whose runs.
    pub tenant: TenantId,
    /// The folder for findings.
    pub findings: PathBuf,
    /// Runs that ended then or before.
    pub ended_until: LogicalTime,
    /// Also runs whose folder is not there. One that is another run's is never touched.
    pub without_folder: bool,
}

/// Retires runs and answers which. Nothing is removed if the folder of one of them is not there, or is another run's.
pub fn retire<B: RunManagement>(retiring: &Retiring, backend: &mut B) -> Result<Vec<RunKey>, ScanError> {
    let ended: Vec<RunSummary> = all_runs(backend, retiring.tenant)?
        .into_iter()
        .filter(|run| run.completed_at.is_some_and(|at| at <= retiring.ended_until))
        .collect();
    let mut removals = Vec::new();
    for run in &ended {
        removals.extend(Removal::plan(retiring, run, backend)?);
    }
    for removal in &removals {
        removal.mark_and_remove()?;
    }
    // One by one and by name: a run that ends now keeps its folder and so must stay known, whatever the clock says that ended it.
    for removal in &removals {
        let RunKey { run, incarnation } = removal.label.key;
        backend.retire_run(wall_clock(), retiring.tenant, run, incarnation).map_err(ScanError::coordinator)?;
    }
    // No run settled at the beginning of time: this lets the coordinator finish what retirements that died there have left.
    backend
        .retire_runs(wall_clock(), retiring.tenant, LogicalTime::new(0), usize::MAX)
        .map_err(ScanError::coordinator)?;
    let left: Vec<RunKey> = all_runs(backend, retiring.tenant)?.iter().map(key_of).collect();
    unmark(retiring, &left)?;
    Ok(removals.iter().map(|removal| removal.label.key).filter(|key| !left.contains(key)).collect())
}

/// Removes the markers of runs that are forgotten, also those of a retirement that died right after the coordinator's last word.
fn unmark(retiring: &Retiring, known: &[RunKey]) -> Result<(), ScanError> {
    let root = &retiring.findings;
    for run in runs_in(root).map_err(|source| ScanError::Folder { path: root.clone(), source })? {
        let dir = run_dir(root, run);
        let failed = |source| ScanError::Folder { path: dir.clone(), source };
        for entry in fs::read_dir(&dir).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let is_marker = path.extension().is_some_and(|end| end == MARKER);
            let Some(label) = is_marker.then(|| RunLabel::load_from(&path).ok()).flatten() else { continue };
            let is_ours = label.coordinator == retiring.coordinator && label.tenant == retiring.tenant;
            if is_ours && !known.contains(&label.key) {
                fs::remove_file(&path).map_err(failed)?;
            }
        }
        // Creations of the run that are known still have a folder in it.
        let _ = fs::remove_dir(&dir);
    }
    Ok(())
}

/// Every run of a tenant.
pub fn all_runs<B: RunManagement>(backend: &mut B, tenant: TenantId) -> Result<Vec<RunSummary>, ScanError> {
    let (mut all, mut page) = (Vec::new(), Vec::new());
    loop {
        let after = all.last().map(|run: &RunSummary| run.run);
        backend.list_runs_into(tenant, after, 1_000, &mut page).map_err(ScanError::coordinator)?;
        if page.is_empty() {
            return Ok(all);
        }
        all.append(&mut page);
    }
}

pub(super) fn key_of(run: &RunSummary) -> RunKey {
    RunKey::new(run.run, run.incarnation)
}

/// A run whose folder may be removed.
#[derive(Debug)]
struct Removal {
    label: RunLabel,
    /// `None` if it is gone already.
    folder: Option<RunFolder>,
    /// The folder of all creations of the run.
    dir: PathBuf,
}

impl Removal {
    /// `None` if another retirement has forgotten the run meanwhile.
    fn plan<B: RunManagement>(
        retiring: &Retiring,
        run: &RunSummary,
        backend: &mut B,
    ) -> Result<Option<Self>, ScanError> {
        let label = RunLabel {
            coordinator: retiring.coordinator.clone(),
            tenant: retiring.tenant,
            key: key_of(run),
            created_at: run.created_at,
        };
        let dir = run_dir(&retiring.findings, run.run);
        let folder = match RunFolder::open(&retiring.findings, label.clone()) {
            Ok(folder) => Some(folder),
            Err(FolderRefused::Missing { .. }) if retiring.without_folder || is_marked(&dir, &label) => None,
            Err(FolderRefused::Missing { .. }) if !is_known(backend, &label)? => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(Self { label, folder, dir }))
    }

    fn mark_and_remove(&self) -> Result<(), ScanError> {
        let Some(folder) = &self.folder else {
            // A retirement that died in the middle of it may have left the folder aside.
            return remove_dir(&self.dir.join(self.label.key.incarnation.to_string()));
        };
        let stored = self.label.store_as(&self.dir, &marker_name(self.label.key));
        match stored {
            // Another retirement has forgotten the run since its folder was found, and removed all there was.
            Err(error) if error.is_missing() => return Ok(()),
            stored => stored.map_err(|source| FolderRefused::Unreadable { path: self.dir.clone(), source })?,
        }
        folder.remove()
    }
}

fn marker_name(key: RunKey) -> String {
    format!("{}.{MARKER}", key.incarnation)
}

/// Whether a retirement of this run has removed its folder.
fn is_marked(dir: &Path, label: &RunLabel) -> bool {
    RunLabel::load_from(&dir.join(marker_name(label.key))).is_ok_and(|marker| marker.names_same_run(label))
}

#[cfg(test)]
mod tests {
    use tessera_contracts::manifest::InitialShardInput;
    use tessera_contracts::{OpId, RunId, RunIncarnation, ShardId};
    use tessera_coordination::InMemoryCoordinator;
    use tessera_coordination::backend::Wrapper;
    use tessera_coordination::error::InfraError;
    use tessera_coordination::events::EventSink;
    use tessera_coordination::run::config::RunConfig;

    use super::*;

    fn tenant() -> TenantId {
        TenantId::from_name("t")
    }

    fn at(time: u64) -> LogicalTime {
        LogicalTime::new(time)
    }

    /// A coordinator whose caller dies at some call: before it, or after it took effect.
    struct Mortal {
        memory: InMemoryCoordinator,
        calls_left: usize,
        takes_effect: bool,
    }

    impl Wrapper for Mortal {
        type Inner = InMemoryCoordinator;

        fn pass<T, E: From<InfraError>>(
            &mut self,
            events: &mut dyn EventSink,
            operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
        ) -> Result<T, E> {
            let killed = || InfraError::refused("test", "killed").into();
            match self.calls_left.checked_sub(1) {
                Some(0) if self.takes_effect => {
                    self.calls_left = 0;
                    return operation(&mut self.memory, events).and_then(|_| Err(killed()));
                }
                Some(left) => self.calls_left = left,
                None => return Err(killed()),
            }
            operation(&mut self.memory, events)
        }
    }

    struct Stage {
        root: tempfile::TempDir,
        backend: Mortal,
    }

    impl Stage {
        /// Runs 1 and 2 ended at 10 and 20, each with a folder; run 3 goes on.
        fn new() -> Self {
            let root = tempfile::tempdir().unwrap();
            let memory = InMemoryCoordinator::default();
            let mut backend = Mortal { memory, calls_left: usize::MAX, takes_effect: false };
            for run in 1..=3 {
                let shards = [InitialShardInput::new(ShardId::new(1), b"a", b"b")];
                let (id, incarnation) = (RunId::new(run), RunIncarnation::new(run * 100));
                let (config, op) = (RunConfig::default(), OpId::new(run));
                backend.create_run_with_shards(at(1), tenant(), id, incarnation, config, &shards, op).unwrap();
                if run < 3 {
                    backend.cancel_run(at(run * 10), tenant(), id, OpId::new(9)).unwrap();
                }
                RunFolder::create(root.path(), label(run)).unwrap();
            }
            Self { root, backend }
        }

        fn retire(&mut self) -> Result<Vec<RunKey>, ScanError> {
            self.retire_from(self.root.path().to_path_buf(), false)
        }

        fn retire_from(&mut self, findings: PathBuf, without_folder: bool) -> Result<Vec<RunKey>, ScanError> {
            retire(&retiring(findings, without_folder), &mut self.backend)
        }

        fn is_known(&mut self, run: u64) -> bool {
            self.backend.calls_left = usize::MAX;
            self.backend.get_run(tenant(), RunId::new(run)).is_ok()
        }

        fn has_folder(&self, run: u64) -> bool {
            RunFolder::open(self.root.path(), label(run)).is_ok()
        }
    }

    fn retiring(findings: PathBuf, without_folder: bool) -> Retiring {
        let coordinator = label(1).coordinator;
        Retiring { coordinator, tenant: tenant(), findings, ended_until: at(20), without_folder }
    }

    fn label(run: u64) -> RunLabel {
        RunLabel {
            coordinator: CoordinatorName::Etcd { namespace: "fleet".into() },
            tenant: tenant(),
            key: RunKey::new(RunId::new(run), RunIncarnation::new(run * 100)),
            created_at: at(1),
        }
    }

    #[test]
    fn ended_runs_go_with_their_folders_and_leave_nothing_behind() {
        let mut stage = Stage::new();
        assert_eq!(stage.retire().unwrap(), [label(1).key, label(2).key]);
        assert_eq!([1, 2, 3].map(|run| stage.is_known(run)), [false, false, true]);
        assert_eq!([1, 2, 3].map(|run| stage.has_folder(run)), [false, false, true]);
        assert_eq!(stage.root.path().read_dir().unwrap().count(), 1, "no marker and no empty folder");
        assert_eq!(stage.retire().unwrap(), []);
    }

    #[test]
    fn no_run_is_forgotten_while_its_folder_is_there_and_a_retirement_that_died_is_finished() {
        let mut deaths = 0;
        for (calls, takes_effect) in (0..20).flat_map(|calls| [(calls, false), (calls, true)]) {
            let case = format!("at call {calls}, took effect: {takes_effect}");
            let mut stage = Stage::new();
            (stage.backend.calls_left, stage.backend.takes_effect) = (calls, takes_effect);
            deaths += u32::from(stage.retire().is_err());
            stage.backend.takes_effect = false;
            for run in [1, 2] {
                assert!(stage.is_known(run) || !stage.has_folder(run), "{case}: run {run}");
            }
            stage.retire().unwrap();
            assert_eq!([1, 2, 3].map(|run| stage.is_known(run)), [false, false, true], "{case}");
            assert_eq!([1, 2, 3].map(|run| stage.has_folder(run)), [false, false, true], "{case}");
            assert_eq!(stage.root.path().read_dir().unwrap().count(), 1, "{case}: no marker and no empty folder");
        }
        assert!(deaths >= 10, "{deaths}: before and after each call");
    }

    /// A coordinator at which another retirement runs to its end inside a call of the first: before the call, or after it took
    /// effect.
    struct Raced {
        memory: InMemoryCoordinator,
        findings: PathBuf,
        calls: usize,
        at: Option<usize>,
        takes_effect: bool,
    }

    impl Raced {
        fn retire_elsewhere(&mut self) {
            retire(&retiring(self.findings.clone(), false), &mut self.memory).unwrap();
        }
    }

    impl Wrapper for Raced {
        type Inner = InMemoryCoordinator;

        fn pass<T, E: From<InfraError>>(
            &mut self,
            events: &mut dyn EventSink,
            operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
        ) -> Result<T, E> {
            let is_raced = self.at == Some(self.calls);
            self.calls += 1;
            if is_raced && !self.takes_effect {
                self.retire_elsewhere();
            }
            let answer = operation(&mut self.memory, events);
            if is_raced && self.takes_effect {
                self.retire_elsewhere();
            }
            answer
        }
    }

    #[test]
    fn two_retirements_at_once_both_succeed_and_leave_nothing_behind() {
        let raced = |at, takes_effect| {
            let Stage { root, backend: Mortal { memory, .. } } = Stage::new();
            let findings = root.path().to_path_buf();
            let mut raced = Raced { memory, findings: findings.clone(), calls: 0, at, takes_effect };
            let case = format!("at call {at:?}, took effect: {takes_effect}");
            retire(&retiring(findings, false), &mut raced).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert_eq!(root.path().read_dir().unwrap().count(), 1, "{case}: no marker and no empty folder");
            let known = [1, 2, 3].map(|run| raced.memory.get_run(tenant(), RunId::new(run)).is_ok());
            assert_eq!(known, [false, false, true], "{case}");
            raced.calls
        };
        let calls = raced(None, false);
        assert!(calls >= 3, "look, forget, look again: {calls}");
        for at in 0..calls {
            raced(Some(at), false);
            raced(Some(at), true);
        }
    }

    /// A coordinator at which, before some call of the retirement, another one forgets run 2, and run 3 settles by the word of a
    /// process whose clock lags.
    struct Settling {
        memory: InMemoryCoordinator,
        calls_left: usize,
    }

    impl Wrapper for Settling {
        type Inner = InMemoryCoordinator;

        fn pass<T, E: From<InfraError>>(
            &mut self,
            events: &mut dyn EventSink,
            operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
        ) -> Result<T, E> {
            if self.calls_left == 0 {
                self.memory.retire_run(at(30), tenant(), RunId::new(2), RunIncarnation::new(200)).unwrap();
                self.memory.cancel_run(at(5), tenant(), RunId::new(3), OpId::new(9)).unwrap();
            }
            self.calls_left = self.calls_left.wrapping_sub(1);
            operation(&mut self.memory, events)
        }
    }

    #[test]
    fn a_run_that_settles_while_others_are_retired_stays_known_as_long_as_it_has_a_folder() {
        for calls_left in 0..8 {
            let Stage { root, backend: Mortal { memory, .. } } = Stage::new();
            let mut settling = Settling { memory, calls_left };
            retire(&retiring(root.path().to_path_buf(), false), &mut settling).unwrap();
            let is_known = settling.memory.get_run(tenant(), RunId::new(3)).is_ok();
            let has_folder = RunFolder::open(root.path(), label(3)).is_ok();
            assert_eq!(is_known, has_folder, "settled at call {calls_left}");
        }
    }

    #[test]
    fn a_folder_of_which_half_was_removed_is_removed_whole_before_its_run_is_forgotten() {
        let mut stage = Stage::new();
        let folder = RunFolder::open(stage.root.path(), label(1)).unwrap();
        fs::create_dir(folder.findings()).unwrap();
        // The first retirement moved the folder aside, removed its label, and died.
        let dir = run_dir(stage.root.path(), RunId::new(1));
        label(1).store_as(&dir, &marker_name(label(1).key)).unwrap();
        let aside = folder.path().with_extension("gone");
        fs::rename(folder.path(), &aside).unwrap();
        fs::remove_file(aside.join("run")).unwrap();
        assert_eq!(stage.retire().unwrap(), [label(1).key, label(2).key]);
        assert!(!aside.exists(), "what was found goes with the run");
        assert_eq!(stage.root.path().read_dir().unwrap().count(), 1, "no marker and no empty folder");
    }

    #[test]
    fn a_folder_that_is_not_the_runs_is_refused_before_anything_is_removed() {
        // The wrong folder for findings.
        let mut stage = Stage::new();
        let elsewhere = tempfile::tempdir().unwrap();
        let refused = stage.retire_from(elsewhere.path().to_path_buf(), false).unwrap_err();
        assert!(refused.to_string().contains("--findings"), "{refused}");
        assert!(stage.is_known(1) && stage.has_folder(1));
        // Another coordinator's folder in its place: not even by force.
        let foreign = CoordinatorName::Etcd { namespace: "other".into() };
        RunFolder::create(elsewhere.path(), RunLabel { coordinator: foreign, ..label(2) }).unwrap();
        let refused = stage.retire_from(elsewhere.path().to_path_buf(), true).unwrap_err();
        assert!(refused.to_string().contains("belongs to run"), "{refused}");
        assert!(stage.is_known(1) && stage.is_known(2) && stage.has_folder(1) && stage.has_folder(2));
        // A folder that was lost: by force.
        RunFolder::open(stage.root.path(), label(1)).unwrap().remove().unwrap();
        assert!(stage.retire().is_err());
        assert!(stage.is_known(1) && stage.has_folder(2));
        let root = stage.root.path().to_path_buf();
        assert_eq!(stage.retire_from(root, true).unwrap().len(), 2);
    }
}
