//! Runs repeated over kept findings folders, wiped stores and new namespaces: each report is about the tree as it is.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use tessera_coordination_etcd::test_support::EtcdCluster;

use super::fleet::{Fleet, drain, wipe};
use super::truth::cases::{self, Case, Outcome};
use super::truth::command::Running;
use super::truth::compare::compare;
use super::truth::report::Report;
use super::truth::{large, oracle};

/// The fate of the coordinator and the folder between two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Between {
    Nothing,
    WipedStore,
    OtherNamespace,
    FirstNamespace,
    Retired,
    RetiredWithOtherFolder,
    FolderRemoved,
}

impl Between {
    const ALL: [Self; 7] = [
        Self::Nothing,
        Self::WipedStore,
        Self::OtherNamespace,
        Self::FirstNamespace,
        Self::Retired,
        Self::RetiredWithOtherFolder,
        Self::FolderRemoved,
    ];

    /// Does it; returns the fleet that the next run uses.
    fn happen(self, case: &Case, first: &Fleet, now: &Fleet, etcd: &mut EtcdCluster) -> Fleet {
        match self {
            Self::Nothing => return now.clone(),
            Self::WipedStore => wipe(etcd),
            Self::OtherNamespace => return now.in_namespace(&format!("other-{:x}", case.random.clone().next())),
            Self::FirstNamespace => return first.clone(),
            Self::Retired => drop(now.run(&["runs", "retire", "--older-than", "0"])),
            Self::RetiredWithOtherFolder => {
                let other = now.with_findings(case.folder("another-folder"));
                other.run(&["runs", "retire", "--older-than", "0"]);
            }
            Self::FolderRemoved => {
                std::fs::remove_dir_all(&now.findings).unwrap();
                std::fs::create_dir(&now.findings).unwrap();
            }
        }
        now.clone()
    }
}

/// Plants secrets, or removes those there are.
fn change(case: &mut Case, root: &Path) -> &'static str {
    let random = &mut case.random;
    let mut files: Vec<PathBuf> = walk(root);
    files.sort_unstable();
    if random.percent(60) {
        for file in random.some_of(&files, 30) {
            large::plant(random, &file);
        }
        "secrets were planted"
    } else if random.percent(60) {
        for file in files {
            std::fs::write(file, "nothing\n".repeat(200)).unwrap();
        }
        "secrets were removed"
    } else {
        "nothing was changed"
    }
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// A scan during which a worker is killed, so that shards change hands and fences rise.
fn scan_with_change_of_hands(fleet: &Fleet, root: &Path) -> Result<Report, String> {
    let mut follower = fleet.submit(&[], &[root]);
    let first = fleet.worker();
    fleet.wait_for_progress(&mut follower);
    first.signal("-KILL");
    first.end();
    let second = fleet.worker();
    let ended = follower.end();
    drain(second);
    ended.report().map_err(|problem| format!("{problem}\nstderr: {}", ended.stderr))
}

/// A tree without secrets that is large enough to change hands.
fn clean_tree(case: &Case) -> PathBuf {
    let root = case.folder("tree");
    for number in 0..1_500 {
        let dir = root.join(format!("d{:02}", number % 13));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("f{number:04}")), "fn main() { println!(\"hello\"); }\n".repeat(400)).unwrap();
    }
    root
}

/// A clean run over which shards changed hands, then `between`, then secrets in every file: they are found.
fn planted_after(between: Between) {
    let etcd = RefCell::new(EtcdCluster::start(1));
    cases::run(2, |case| {
        let root = clean_tree(case);
        let fleet = Fleet::new(case, &etcd.borrow());
        compare(&scan_with_change_of_hands(&fleet, &root)?, &oracle::tree(&root))?;
        let fleet = between.happen(case, &fleet, &fleet, &mut etcd.borrow_mut());
        // Files keep their sizes, so that the next run is cut into the same shards.
        for file in walk(&root) {
            large::plant(&mut case.random, &file);
        }
        compare(&fleet.scan(&[], &[&root])?, &oracle::tree(&root))
    });
}

#[test]
fn secrets_planted_after_the_store_was_wiped_are_found() {
    planted_after(Between::WipedStore);
}

#[test]
fn secrets_planted_before_a_run_in_another_namespace_are_found() {
    planted_after(Between::OtherNamespace);
}

#[test]
fn secrets_planted_after_a_retirement_with_another_folder_are_found() {
    planted_after(Between::RetiredWithOtherFolder);
}

#[test]
fn secrets_planted_after_a_run_that_ended_are_found() {
    planted_after(Between::Nothing);
}

/// Any sequence of changes to the tree, the store and the folder; workers may live through all of it.
#[test]
fn each_of_several_runs_reports_the_tree_as_it_is() {
    let etcd = RefCell::new(EtcdCluster::start(1));
    cases::run(6, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let first = Fleet::new(case, &etcd.borrow());
        let mut fleet = first.clone();
        let mut told = Vec::new();
        let mut standing: Option<Running> = case.random.percent(50).then(|| fleet.worker());
        let outcome = rounds(case, &root, &first, &mut fleet, &mut etcd.borrow_mut(), &mut standing, &mut told);
        let said = standing.map_or_else(String::new, |worker| drain(worker).stderr);
        outcome.map_err(|problem| format!("after {told:?}: {problem}\nthe standing worker said: {said}"))
    });
}

fn rounds(
    case: &mut Case,
    root: &Path,
    first: &Fleet,
    fleet: &mut Fleet,
    etcd: &mut EtcdCluster,
    standing: &mut Option<Running>,
    told: &mut Vec<String>,
) -> Outcome {
    for round in 0..4 {
        if round > 0 {
            let between = *case.random.pick(&Between::ALL);
            *fleet = between.happen(case, first, fleet, etcd);
            told.push(format!("{between:?}, {}", change(case, root)));
        }
        let truth = oracle::tree(root);
        let report = match case.random.percent(40) {
            true => scan_with_change_of_hands(fleet, root)?,
            false => fleet.scan(&[], &[root])?,
        };
        compare(&report, &truth).map_err(|problem| format!("round {round}: {problem}"))?;
        if standing.as_mut().is_some_and(|worker| !worker.is_running()) {
            let ended = standing.take().unwrap().end();
            return Err(format!("round {round}: the standing worker ended with {:?}: {}", ended.code, ended.stderr));
        }
    }
    Ok(())
}

/// Retirement refuses a folder that is not the run's, and forgets neither the run nor its findings.
#[test]
fn retirement_with_another_folder_is_refused() {
    let etcd = EtcdCluster::start(1);
    cases::run(1, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let fleet = Fleet::new(case, &etcd);
        let report = fleet.scan(&[], &[&root])?;
        let other = fleet.with_findings(case.folder("another-folder"));
        let retired = other.run(&["runs", "retire", "--older-than", "0"]);
        let kept = fleet.runs();
        if retired.code == Some(0) || !kept.contains(&report.run) {
            return Err(format!("exit code {:?}, runs kept: {kept:?}: {}", retired.code, retired.shown()));
        }
        let retired = fleet.run(&["runs", "retire", "--older-than", "0"]);
        let kept = fleet.runs();
        let is_empty = bytes_of_runs(&fleet.findings) == 0;
        if retired.code != Some(0) || !kept.is_empty() || !is_empty {
            return Err(format!(
                "exit code {:?}, runs kept: {kept:?}, folder empty: {is_empty}: {}",
                retired.code,
                retired.shown()
            ));
        }
        Ok(())
    });
}

/// Files that are left in the folders of runs.
fn bytes_of_runs(findings: &Path) -> usize {
    let folders = std::fs::read_dir(findings).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    folders.map(|folder| walk(&folder).len()).sum()
}
