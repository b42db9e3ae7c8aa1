//! A command that is given again to a fleet: while its run goes on, when it has ended, and when the input has changed.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod stage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use stage::fleet::{Fleet, mount, unmount, unmount_part};
use stage::{Essence, Stage, git, token, write};
use tessera_coordination::backend::Wrapper;
use tessera_coordination::error::{InfraError, RunTransitionError};
use tessera_coordination::events::EventSink;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::ShardFilter;
use tessera_coordination::{InMemoryCoordinator, RunManagement};
use tessera_scan::findings::merge;
use tessera_scan::fleet::{Connect, Serving, serve};
use tessera_scan::run::conclude::conclude;
use tessera_scan::run::coordinator_name::CoordinatorName;
use tessera_scan::run::folder::RunFolder;
use tessera_scan::run::locked::Locked;
use tessera_scan::run::prepare::stored_targets;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{ExitStatus, Origin, ScanReport};

const FILES: usize = 40;

fn status(fleet: &Fleet, report: &ScanReport, request: &ScanRequest) -> RunStatus {
    fleet.backend.clone().get_run(request.tenant, report.run).unwrap().status
}

/// Lets a worker read the small files, and takes it away while it reads the large one.
fn begun(fleet: &Fleet, stage: &Stage) -> ScanReport {
    let submitted = fleet.submit(&stage.request());
    partly_read(fleet, stage, &submitted);
    submitted
}

fn partly_read(fleet: &Fleet, stage: &Stage, submitted: &ScanReport) {
    let request = stage.request();
    let progress = std::sync::Arc::<tessera_scan::sweep::worker::WorkerProgress>::default();
    fleet.with_watched_worker(&request, &progress, || {
        fleet.wait_until("too few items", |_| progress.items.load(Ordering::Relaxed) >= FILES as u64);
    });
    let record = fleet.backend.clone().get_run(request.tenant, submitted.run).unwrap();
    let folder = RunFolder::of_run(fleet.findings.path(), CoordinatorName::Memory, &record).unwrap();
    let merged = merge(&folder.findings(), folder.key()).unwrap();
    assert!(merged.tally.enumerated() >= FILES as u64, "what the worker had read it made durable");
    assert!(fleet.shards(submitted, request.tenant, &ShardFilter::active()) > 0, "and it did not finish");
}

#[test]
fn a_submitter_that_leaves_before_a_worker_joins_reports_a_run_that_was_submitted() {
    let (stage, fleet) = (Stage::tree(1), Fleet::new());
    let report = fleet.submit(&stage.request());
    assert_eq!((report.exit_status(), report.receipt.tally.enumerated()), (ExitStatus::Incomplete, 0));
    assert_eq!(status(&fleet, &report, &stage.request()), RunStatus::Active);
}

#[test]
fn the_report_of_a_finished_run_is_given_again_until_something_changes() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "a/secret.env", format!("TOKEN={}\n", token(1)));
    stage.settle();
    let request = stage.request();
    let first = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_eq!((first.exit_status(), &first.origin), (ExitStatus::Findings, &Origin::Scanned));
    // Without a worker: nothing is scanned.
    let again = fleet.follow(&request);
    assert_eq!((&again.origin, again.run), (&Origin::Known, first.run));
    assert!(again.ended.is_some());
    assert_eq!(Essence::of(&again), Essence::of(&first));
    write(stage.root(), "a/f000.txt", format!("TOKEN={}\n", token(2)));
    let changed = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_ne!(changed.run, first.run, "a new run");
    assert_eq!(Essence::of(&changed), Essence::of(&stage.fresh()));
}

#[test]
fn what_changed_before_the_command_was_given_again_is_read_again() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "a/changed.env", format!("TOKEN={}\n", token(1)));
    let request = stage.request();
    let submitted = begun(&fleet, &stage);
    write(stage.root(), "a/changed.env", "nothing\n");
    write(stage.root(), "a/f000.txt", format!("TOKEN={}\n", token(2)));
    write(stage.root(), "0-first/of/all", format!("TOKEN={}\n", token(3)));
    let resumed = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_eq!(resumed.run, submitted.run);
    assert!(matches!(resumed.origin, Origin::Resumed(before) if before.read_again > 0), "{:?}", resumed.origin);
    let essence = Essence::of(&resumed);
    assert_eq!(essence, Essence::of(&stage.fresh()));
    assert_eq!(essence.paths(), BTreeSet::from(["a/f000.txt", "0-first/of/all"]));
}

/// Which machine is right about a file, a submitter cannot know: workers look again.
#[test]
fn a_removed_file_of_a_run_that_goes_on_is_left_to_a_run_of_its_own() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "a/gone.env", format!("TOKEN={}\n", token(1)));
    write(stage.root(), "b/stays.env", format!("TOKEN={}\n", token(2)));
    let request = stage.request();
    let submitted = begun(&fleet, &stage);
    std::fs::remove_file(stage.root().join("a/gone.env")).unwrap();
    let report = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_ne!(report.run, submitted.run);
    let Origin::ScannedAnew { because } = &report.origin else { panic!("{:?}", report.origin) };
    assert!(because.starts_with("1 planned file is not below /"), "{because}");
    let essence = Essence::of(&report);
    assert_eq!((essence.paths(), essence.is_complete), (BTreeSet::from(["b/stays.env"]), true));
    assert_eq!(essence, Essence::of(&stage.fresh()));
}

/// The plan of a run as it lies in its folder.
fn plan_of(fleet: &Fleet, report: &ScanReport, request: &ScanRequest) -> Vec<u8> {
    std::fs::read(folder_of(fleet, report, request).path().join("plan")).unwrap()
}

fn folder_of(fleet: &Fleet, report: &ScanReport, request: &ScanRequest) -> RunFolder {
    let record = fleet.backend.clone().get_run(request.tenant, report.run).unwrap();
    RunFolder::of_run(fleet.findings.path(), CoordinatorName::Memory, &record).unwrap()
}

/// Where a run found secrets so far, and whether its receipt is complete.
fn so_far(fleet: &Fleet, report: &ScanReport, request: &ScanRequest) -> (BTreeSet<String>, bool) {
    let (mut backend, folder) = (fleet.backend.clone(), folder_of(fleet, report, request));
    let targets = stored_targets(&mut backend, request.tenant, report.run).unwrap();
    let (findings, receipt) = conclude(&mut backend, request.tenant, report.run, &folder, &targets).unwrap();
    let places = findings.iter().flat_map(|finding| &finding.locations);
    let paths = places.map(|at| String::from_utf8_lossy(&at.occurrence.path).into_owned()).collect();
    (paths, receipt.is_complete())
}

#[test]
fn a_submitter_that_sees_an_empty_folder_changes_no_report_of_others() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "a/secret.env", format!("TOKEN={}\n", token(1)));
    let request = stage.request();
    let submitted = begun(&fleet, &stage);
    let before = plan_of(&fleet, &submitted, &request);
    let aside = unmount(stage.root());
    let refused = fleet.follow_until(&request, &AtomicBool::new(true)).unwrap_err().to_string();
    let root = stage.root().canonicalize().unwrap();
    for part in [root.to_str().unwrap(), "is empty here, and 42 files were planned", "not mounted?", "--fresh"] {
        assert!(refused.contains(part), "{refused} lacks {part}");
    }
    assert!(plan_of(&fleet, &submitted, &request) == before, "the plan is left alone");
    mount(stage.root(), &aside);
    let report = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_eq!((report.run, report.exit_status()), (submitted.run, ExitStatus::Findings));
    assert_eq!(Essence::of(&report), Essence::of(&stage.fresh()));
}

#[test]
fn a_submitter_that_lacks_a_part_of_the_tree_changes_no_report_of_others() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "a/secret.env", format!("TOKEN={}\n", token(1)));
    let request = stage.request();
    let submitted = begun(&fleet, &stage);
    let before = plan_of(&fleet, &submitted, &request);
    let aside = unmount_part(stage.root(), "a");
    let blind = fleet.submit(&request);
    assert_ne!(blind.run, submitted.run, "a run of its own");
    assert_eq!(blind.receipt.plan.planned, FILES as u64 / 2 + 1);
    assert!(plan_of(&fleet, &submitted, &request) == before, "the plan is left alone");
    assert_eq!(status(&fleet, &submitted, &request), RunStatus::Active, "and so is the run");
    mount(&stage.root().join("a"), &aside);
    let report = fleet.with_worker(&request, 1, || {
        let report = fleet.follow(&request);
        let is_done = |_: &mut _| status(&fleet, &submitted, &request) == RunStatus::Done;
        fleet.wait_until("the first run goes on", is_done);
        report
    });
    let fresh = Essence::of(&stage.fresh());
    assert_eq!(so_far(&fleet, &submitted, &request), (BTreeSet::from(["a/secret.env".to_owned()]), true));
    assert!(report.run == blind.run && fresh == Essence::of(&report), "workers read files that the submitter lacks");
}

#[test]
fn files_that_vanish_before_they_are_compared_keep_their_findings_and_the_report_is_incomplete() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "a/secret.env", format!("TOKEN={}\n", token(1)));
    let request = stage.request();
    let submitted = begun(&fleet, &stage);
    let before = plan_of(&fleet, &submitted, &request);
    let aside = std::cell::OnceCell::new();
    let report = std::thread::scope(|scope| {
        let follower = scope.spawn(|| fleet.follow(&request));
        fleet.wait_until("no new plan", |_| plan_of(&fleet, &submitted, &request) != before);
        aside.set(unmount_part(stage.root(), "a")).unwrap();
        fleet.with_worker(&request, 1, || follower.join().unwrap())
    });
    let essence = Essence::of(&report);
    assert_eq!((report.run, essence.paths()), (submitted.run, BTreeSet::from(["a/secret.env"])));
    assert_eq!((essence.is_complete, essence.exit), (false, ExitStatus::Findings));
    assert!(report.receipt.plan.uncompared > FILES as u64 / 2, "{:?}", report.receipt.plan);
    mount(&stage.root().join("a"), aside.get().unwrap());
    let again = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_eq!(Essence::of(&again), Essence::of(&stage.fresh()));
}

/// Neither plan names them, so only the segments tell that they were there.
#[test]
fn files_that_only_workers_ever_saw_are_not_taken_for_removed_ones() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "a/secret.env", format!("TOKEN={}\n", token(1)));
    let request = stage.request();
    let aside = unmount_part(stage.root(), "a");
    let submitted = fleet.submit(&request);
    mount(&stage.root().join("a"), &aside);
    partly_read(&fleet, &stage, &submitted);
    let aside = unmount_part(stage.root(), "a");
    let report = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_ne!(report.run, submitted.run, "it is scanned anew by workers");
    let (paths, _) = so_far(&fleet, &submitted, &request);
    assert_eq!(paths, BTreeSet::from(["a/secret.env".to_owned()]), "nothing that was found before is gone");
    mount(&stage.root().join("a"), &aside);
    let again = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_eq!(Essence::of(&again), Essence::of(&stage.fresh()));
}

/// All of them are here and look as they did; only their stamps prove nothing.
#[test]
fn young_files_that_workers_met_as_new_are_read_again_by_the_same_run() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "a/secret.env", format!("TOKEN={}\n", token(1)));
    stage.make_young("a/secret.env");
    let request = stage.request();
    let aside = unmount_part(stage.root(), "a");
    let submitted = fleet.submit(&request);
    mount(&stage.root().join("a"), &aside);
    partly_read(&fleet, &stage, &submitted);
    let report = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert!(matches!(report.origin, Origin::Resumed(before) if before.read_again > 0), "{:?}", report.origin);
    assert_eq!((report.run, Essence::of(&report)), (submitted.run, Essence::of(&stage.fresh())));
}

#[test]
fn a_run_of_an_older_history_is_left_alone_and_another_one_begun() {
    let (stage, fleet) = (Stage::empty(ScanScope::History), Fleet::new());
    git(stage.root(), &["init", "-q", "-b", "main"]);
    write(stage.root(), "a", "text\n");
    git(stage.root(), &["add", "-A"]);
    git(stage.root(), &["commit", "-q", "-m", "first"]);
    let request = stage.request();
    let submitted = fleet.submit(&request);
    write(stage.root(), "new.env", format!("TOKEN={}\n", token(1)));
    git(stage.root(), &["add", "-A"]);
    git(stage.root(), &["commit", "-q", "-m", "secret"]);
    let report = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert!(matches!(&report.origin, Origin::ScannedAnew { because } if because.contains("has changed since")));
    assert_eq!(Essence::of(&report), Essence::of(&stage.fresh()));
    assert_ne!(status(&fleet, &submitted, &request), RunStatus::Cancelled, "its submitter may follow it");
    // With the heads it was made for it is followed.
    let again = fleet.follow(&request);
    assert_eq!((again.origin, again.run), (Origin::Known, report.run));
}

#[test]
fn a_submitter_with_a_stale_clone_leaves_the_run_of_a_newer_one_alone() {
    let (stage, fleet) = (Stage::empty(ScanScope::History), Fleet::new());
    git(stage.root(), &["init", "-q", "-b", "main"]);
    let secrets = [("old.env", token(1)), ("new.env", token(2))];
    for (path, secret) in &secrets {
        write(stage.root(), path, format!("TOKEN={secret}\n"));
        git(stage.root(), &["add", "-A"]);
        git(stage.root(), &["commit", "-q", "-m", path]);
    }
    let request = stage.request();
    let submitted = fleet.submit(&request);
    let newest = git(stage.root(), &["rev-parse", "HEAD"]);
    git(stage.root(), &["reset", "-q", "--hard", "HEAD~1"]);
    let stale = fleet.submit(&request);
    assert_ne!(stale.run, submitted.run, "a run of its own");
    assert_eq!(status(&fleet, &submitted, &request), RunStatus::Active);
    git(stage.root(), &["reset", "-q", "--hard", &newest]);
    fleet.with_worker(&request, 1, || {
        fleet.wait_until("both runs", |_| {
            [&submitted, &stale].iter().all(|run| status(&fleet, run, &request) == RunStatus::Done)
        });
    });
    let paths = BTreeSet::from(["old.env".to_owned(), "new.env".to_owned()]);
    assert_eq!(so_far(&fleet, &submitted, &request), (paths, true));
    // Asked to begin anew, a command ends the run that goes on.
    let active = fleet.submit_fresh(&request);
    let anew = fleet.submit_fresh(&request);
    assert_ne!(anew.run, active.run);
    assert_eq!(status(&fleet, &active, &request), RunStatus::Cancelled);
}

#[test]
fn two_commands_that_follow_one_run_report_the_same() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    write(stage.root(), "b/secret.env", format!("TOKEN={}\n", token(4)));
    let request = stage.request();
    let reports = std::thread::scope(|scope| {
        let first = scope.spawn(|| fleet.follow(&request));
        fleet.wait_until("no run", |backend| {
            let mut runs = Vec::new();
            backend.list_runs_into(request.tenant, None, 10, &mut runs).unwrap();
            runs.iter().any(|run| run.status == RunStatus::Active)
        });
        let second = scope.spawn(|| fleet.follow(&request));
        fleet.with_worker(&request, 2, || [first.join().unwrap(), second.join().unwrap()])
    });
    let fresh = Essence::of(&stage.fresh());
    for report in &reports {
        assert_eq!(Essence::of(report), fresh);
    }
}

#[test]
fn a_tree_of_which_too_much_has_changed_is_scanned_anew_by_the_fleet() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet { read_again_max: 10, ..Fleet::new() });
    let request = stage.request();
    let submitted = begun(&fleet, &stage);
    for i in 0..FILES {
        write(stage.root(), &Stage::file(i), "other\n");
    }
    let report = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_ne!(report.run, submitted.run);
    assert!(matches!(&report.origin, Origin::ScannedAnew { because } if because.contains("items have changed")));
    assert_eq!(Essence::of(&report), Essence::of(&stage.fresh()));
}

#[test]
fn a_stop_while_a_run_goes_on_leaves_it_to_the_fleet() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    let request = stage.request();
    let report = fleet.follow_until(&request, &AtomicBool::new(true)).unwrap();
    assert_eq!(report.receipt.plan.planned, FILES as u64 + 1);
    let done = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_eq!((done.run, done.exit_status()), (report.run, ExitStatus::CleanComplete));
}

/// A coordinator whose next settlements fail in a way that can pass.
#[derive(Clone)]
struct Unsettling {
    inner: Locked<InMemoryCoordinator>,
    failures: Arc<AtomicU32>,
}

impl Wrapper for Unsettling {
    type Inner = Locked<InMemoryCoordinator>;

    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut Self::Inner, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        let settles = std::any::type_name::<E>() == std::any::type_name::<RunTransitionError>();
        let left = |failures: u32| failures.checked_sub(1);
        if settles && self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_ok() {
            return Err(InfraError::transient("settle_run", "away").into());
        }
        operation(&mut self.inner, events)
    }
}

struct UnsettlingFleet(Unsettling);

impl Connect for UnsettlingFleet {
    type Backend = Unsettling;

    fn connect(&self) -> Result<Unsettling, String> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_worker_that_ends_when_all_is_done_settles_the_run_also_if_that_fails_at_first() {
    let (stage, fleet) = (Stage::tree(FILES), Fleet::new());
    let request = stage.request();
    let submitted = fleet.submit(&request);
    let unsettling = Unsettling { inner: fleet.backend.clone(), failures: Arc::new(AtomicU32::new(2)) };
    let serving = Serving { until_done: true, ..fleet.serving(request.tenant, 2) };
    let stop = AtomicBool::new(false);
    serve(&serving, &UnsettlingFleet(unsettling.clone()), &stop, &Arc::default(), &|_| {}).unwrap();
    assert_eq!(unsettling.failures.load(Ordering::Relaxed), 0, "it was tried");
    assert_eq!(status(&fleet, &submitted, &request), RunStatus::Done);
}

/// A coordinator that does not answer before it is released.
#[derive(Clone)]
struct Silent {
    calls: Arc<AtomicU32>,
    released: Arc<AtomicBool>,
}

impl Wrapper for Silent {
    type Inner = Locked<InMemoryCoordinator>;

    fn pass<T, E: From<InfraError>>(
        &mut self,
        _: &mut dyn EventSink,
        _: impl FnOnce(&mut Self::Inner, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        while !self.released.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        Err(InfraError::transient("call", "away").into())
    }
}

struct SilentFleet(Silent);

impl Connect for SilentFleet {
    type Backend = Silent;

    fn connect(&self) -> Result<Silent, String> {
        Ok(self.0.clone())
    }
}

#[test]
fn a_worker_of_many_threads_that_is_told_to_stop_waits_for_one_call_of_a_silent_coordinator() {
    let fleet = Fleet::new();
    let silent = Silent { calls: Arc::default(), released: Arc::default() };
    let serving = fleet.serving(Stage::tree(1).request().tenant, 8);
    let (calls, released) = (Arc::clone(&silent.calls), Arc::clone(&silent.released));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let served = scope.spawn(|| serve(&serving, &SilentFleet(silent), &stop, &Arc::default(), &|_| {}));
        while calls.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        released.store(true, Ordering::Relaxed);
        let _ = served.join().unwrap();
    });
    assert_eq!(calls.load(Ordering::Relaxed), 1, "the other threads did not queue for calls of their own");
}
