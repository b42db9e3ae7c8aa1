//! Collecting what submitters left that died before their run began: folders that no run names.
//!
//! A submitter makes its folder before the run. If it dies in between, nothing else ever refers to the folder. It is removed
//! if it is old enough for its submitter to be dead, if its label names this coordinator and tenant, if the coordinator does
//! not know that creation of the run, and if no worker wrote findings into it. A folder with findings whose run is unknown (the
//! coordinator's store was lost, say) is named and kept: what it holds may be all that is left of a scan.
//!
//! A submitter that is merely slow may register its run at this very moment. So the folder is moved aside before the
//! coordinator is asked, and moved back if the run is there after all; and a submitter that does not find its folder after it
//! has registered calls its run off.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tessera_contracts::{LogicalTime, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::error::GetRunError;

use crate::error::ScanError;
use crate::run::coordinator_name::CoordinatorName;
use crate::run::folder::{run_dir, runs_in};
use crate::run::label::{RunKey, RunLabel};

/// Which folders are looked at.
#[derive(Debug, Clone)]
pub struct Collecting {
    /// The coordinator that is asked.
    pub coordinator: CoordinatorName,
    /// Whose runs.
    pub tenant: TenantId,
    /// The folder for findings.
    pub findings: PathBuf,
    /// Folders that were made before.
    pub created_before: LogicalTime,
    /// Say what would be removed, and remove nothing.
    pub dry_run: bool,
}

/// What became of folders that no run names.
#[derive(Debug, Default)]
pub struct Collected {
    /// Folders of runs that never began: removed, or to be removed.
    pub removed: Vec<PathBuf>,
    /// Folders with findings of runs that the coordinator does not know: kept.
    pub kept: Vec<PathBuf>,
}

/// How a folder is called while the coordinator is asked about it.
const ASIDE: &str = "collecting";

/// Removes folders that no run names.
pub fn collect<B: RunManagement>(collecting: &Collecting, backend: &mut B) -> Result<Collected, ScanError> {
    let root = &collecting.findings;
    let mut collected = Collected::default();
    for run in runs_in(root).map_err(|source| ScanError::Folder { path: root.clone(), source })? {
        let dir = run_dir(root, run);
        for name in names_in(&dir).map_err(|source| ScanError::Folder { path: dir.clone(), source })? {
            let path = dir.join(name);
            // Without a label it cannot be told whose it is.
            let Ok(label) = RunLabel::load(&path) else { continue };
            let is_ours = label.coordinator == collecting.coordinator && label.tenant == collecting.tenant;
            if !is_ours || label.created_at >= collecting.created_before || label.key.run != run {
                continue;
            }
            // Asked twice, so that the folder of a run that is known is not even touched.
            let is_aside = path.extension().is_some_and(|end| end == ASIDE);
            if is_known(backend, &label)? {
                if is_aside && !collecting.dry_run {
                    restore(&path, &label)?;
                }
                continue;
            }
            let has_findings = path.join("findings").read_dir().is_ok_and(|mut files| files.next().is_some());
            if has_findings {
                collected.kept.push(path);
            } else if collecting.dry_run || remove_unless_known(backend, &path, &label)? {
                collected.removed.push(path);
            }
        }
    }
    Ok(collected)
}

fn names_in(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// Whether the coordinator knows this creation of the run.
pub(crate) fn is_known<B: RunManagement>(backend: &mut B, label: &RunLabel) -> Result<bool, ScanError> {
    match backend.get_run(label.tenant, label.key.run) {
        Ok(record) => Ok(RunKey::new(record.run, record.incarnation) == label.key),
        Err(GetRunError::RunNotFound(_)) => Ok(false),
        Err(error) => Err(ScanError::coordinator(error)),
    }
}

fn remove_unless_known<B: RunManagement>(backend: &mut B, path: &Path, label: &RunLabel) -> Result<bool, ScanError> {
    let failed = |source| ScanError::Folder { path: path.to_path_buf(), source };
    let aside = path.with_extension(ASIDE);
    if path != aside {
        fs::rename(path, &aside).map_err(failed)?;
    }
    let known = is_known(backend, label);
    if matches!(known, Ok(false)) {
        fs::remove_dir_all(&aside).map_err(failed)?;
        // Other creations of the run may still have a folder beside it.
        let _ = path.parent().map(fs::remove_dir);
        return Ok(true);
    }
    restore(&aside, label)?;
    known.map(|_| false)
}

/// Gives a folder its name back.
fn restore(aside: &Path, label: &RunLabel) -> Result<(), ScanError> {
    let named = aside.with_file_name(label.key.incarnation.to_string());
    fs::rename(aside, named).map_err(|source| ScanError::Folder { path: aside.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use tessera_contracts::{RunId, RunIncarnation};
    use tessera_coordination::InMemoryCoordinator;
    use tessera_coordination::backend::Wrapper;
    use tessera_coordination::error::InfraError;
    use tessera_coordination::events::EventSink;
    use tessera_coordination::run::config::RunConfig;

    use super::*;
    use crate::run::folder::RunFolder;

    fn tenant() -> TenantId {
        TenantId::from_name("t")
    }

    fn label(run: u64, incarnation: u64, created_at: u64) -> RunLabel {
        RunLabel {
            coordinator: CoordinatorName::Etcd { namespace: "fleet".into() },
            tenant: tenant(),
            key: RunKey::new(RunId::new(run), RunIncarnation::new(incarnation)),
            created_at: LogicalTime::new(created_at),
        }
    }

    #[test]
    fn only_old_folders_of_runs_that_are_not_known_and_never_began_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let mut memory = InMemoryCoordinator::default();
        let known = label(1, 10, 5);
        let created = memory.create_run(
            LogicalTime::new(5),
            tenant(),
            known.key.run,
            known.key.incarnation,
            RunConfig::default(),
        );
        created.unwrap();
        let elsewhere = CoordinatorName::Etcd { namespace: "other".into() };
        let kept = [
            known,
            label(2, 10, 100),
            RunLabel { coordinator: elsewhere, ..label(3, 10, 5) },
            RunLabel { tenant: TenantId::from_name("u"), ..label(4, 10, 5) },
        ];
        let kept: Vec<RunFolder> = kept.map(|label| RunFolder::create(root.path(), label).unwrap()).into();
        let found = RunFolder::create(root.path(), label(5, 10, 5)).unwrap();
        fs::create_dir(found.findings()).unwrap();
        fs::write(found.findings().join("x.findings"), "").unwrap();
        // Another creation of a known run, a run of its own, and one that a collection left aside.
        let gone = [label(1, 20, 5), label(6, 10, 5), label(7, 10, 5)];
        let gone: Vec<RunFolder> = gone.map(|label| RunFolder::create(root.path(), label).unwrap()).into();
        fs::rename(gone[2].path(), gone[2].path().with_extension(ASIDE)).unwrap();
        let nobodys = root.path().join("0000000000000008/000000000000000a");
        fs::create_dir_all(&nobodys).unwrap();

        let mut collecting = Collecting {
            coordinator: CoordinatorName::Etcd { namespace: "fleet".into() },
            tenant: tenant(),
            findings: root.path().to_path_buf(),
            created_before: LogicalTime::new(100),
            dry_run: true,
        };
        let told = collect(&collecting, &mut memory).unwrap();
        assert_eq!((told.removed.len(), told.kept.as_slice()), (3, &[found.path().to_path_buf()][..]));
        assert!(gone[0].path().exists() && gone[1].path().exists(), "nothing is removed yet");
        collecting.dry_run = false;
        let removed = collect(&collecting, &mut memory).unwrap();
        assert_eq!((removed.removed, removed.kept), (told.removed, told.kept));
        for folder in &gone {
            assert!(!folder.path().exists() && !folder.path().with_extension(ASIDE).exists(), "{:?}", folder.path());
        }
        assert!(!root.path().join("0000000000000006").exists(), "nothing of it is left");
        for folder in kept.iter().chain([&found]) {
            RunFolder::open(root.path(), folder.label().clone()).unwrap();
        }
        assert!(nobodys.exists(), "whose it is cannot be told");
        assert_eq!(collect(&collecting, &mut memory).unwrap().removed.len(), 0);
    }

    /// A coordinator at which a submitter creates its run before the second question about it.
    struct Overtaken {
        memory: InMemoryCoordinator,
        creates: Option<RunKey>,
        asked: u32,
    }

    impl Wrapper for Overtaken {
        type Inner = InMemoryCoordinator;

        fn pass<T, E: From<InfraError>>(
            &mut self,
            events: &mut dyn EventSink,
            operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
        ) -> Result<T, E> {
            self.asked += 1;
            if self.asked == 2
                && let Some(key) = self.creates
            {
                let (now, config) = (LogicalTime::new(5), RunConfig::default());
                self.memory.create_run(now, tenant(), key.run, key.incarnation, config).unwrap();
            }
            operation(&mut self.memory, events)
        }
    }

    #[test]
    fn a_folder_whose_run_is_created_at_this_very_moment_is_put_back() {
        let root = tempfile::tempdir().unwrap();
        let label = label(1, 10, 5);
        RunFolder::create(root.path(), label.clone()).unwrap();
        let mut backend = Overtaken { memory: InMemoryCoordinator::default(), creates: Some(label.key), asked: 0 };
        let collecting = Collecting {
            coordinator: label.coordinator.clone(),
            tenant: tenant(),
            findings: root.path().to_path_buf(),
            created_before: LogicalTime::new(100),
            dry_run: false,
        };
        assert!(collect(&collecting, &mut backend).unwrap().removed.is_empty());
        assert_eq!(backend.asked, 2);
        RunFolder::open(root.path(), label).unwrap();
    }

    #[test]
    fn a_folder_that_a_collection_left_aside_is_put_back_if_its_run_is_known() {
        let root = tempfile::tempdir().unwrap();
        let label = label(1, 10, 5);
        let folder = RunFolder::create(root.path(), label.clone()).unwrap();
        // Left aside by a collection that died, before the submitter registered.
        fs::rename(folder.path(), folder.path().with_extension(ASIDE)).unwrap();
        let mut memory = InMemoryCoordinator::default();
        let (run, incarnation) = (label.key.run, label.key.incarnation);
        memory.create_run(LogicalTime::new(5), tenant(), run, incarnation, RunConfig::default()).unwrap();
        let collecting = Collecting {
            coordinator: label.coordinator.clone(),
            tenant: tenant(),
            findings: root.path().to_path_buf(),
            created_before: LogicalTime::new(100),
            dry_run: false,
        };
        assert!(collect(&collecting, &mut memory).unwrap().removed.is_empty());
        RunFolder::open(root.path(), label).unwrap();
    }
}
