//! A command that is given again to a fleet: while its run goes on, when it has ended, and when the input has changed.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod stage;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use stage::fleet::Fleet;
use stage::{Essence, Stage, git, token, write};
use tessera_coordination::backend::Wrapper;
use tessera_coordination::error::{InfraError, RunTransitionError};
use tessera_coordination::events::EventSink;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::ShardFilter;
use tessera_coordination::{InMemoryCoordinator, RunManagement};
use tessera_scan::findings::merge;
use tessera_scan::fleet::{Connect, Serving, serve};
use tessera_scan::run::coordinator_name::CoordinatorName;
use tessera_scan::run::folder::RunFolder;
use tessera_scan::run::locked::Locked;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{ExitStatus, Origin, ScanReport};

const FILES: usize = 40;

fn status(fleet: &Fleet, report: &ScanReport, request: &ScanRequest) -> RunStatus {
    fleet.backend.clone().get_run(request.tenant, report.run).unwrap().status
}

/// Lets a worker read the small files, and takes it away while it reads the large one.
fn begun(fleet: &Fleet, stage: &Stage) -> ScanReport {
    let request = stage.request();
    let submitted = fleet.submit(&request);
    let progress = std::sync::Arc::<tessera_scan::sweep::worker::WorkerProgress>::default();
    fleet.with_watched_worker(&request, &progress, || {
        fleet.wait_until("too few items", |_| progress.items.load(Ordering::Relaxed) >= FILES as u64);
    });
    let record = fleet.backend.clone().get_run(request.tenant, submitted.run).unwrap();
    let folder = RunFolder::of_run(fleet.findings.path(), CoordinatorName::Memory, &record).unwrap();
    let merged = merge(&folder.findings(), folder.key()).unwrap();
    assert!(merged.tally.enumerated() >= FILES as u64, "what the worker had read it made durable");
    assert!(fleet.shards(&submitted, request.tenant, &ShardFilter::active()) > 0, "and it did not finish");
    submitted
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
    write(stage.root(), "a/gone.env", format!("TOKEN={}\n", token(1)));
    let request = stage.request();
    let submitted = begun(&fleet, &stage);
    std::fs::remove_file(stage.root().join("a/gone.env")).unwrap();
    write(stage.root(), "a/f000.txt", format!("TOKEN={}\n", token(2)));
    write(stage.root(), "0-first/of/all", format!("TOKEN={}\n", token(3)));
    let resumed = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_eq!(resumed.run, submitted.run);
    assert!(matches!(resumed.origin, Origin::Resumed(before) if before.read_again > 0), "{:?}", resumed.origin);
    let essence = Essence::of(&resumed);
    assert_eq!(essence, Essence::of(&stage.fresh()));
    assert_eq!(essence.paths(), BTreeSet::from(["a/f000.txt", "0-first/of/all"]));
}

#[test]
fn a_run_of_an_older_history_is_cancelled_and_another_one_begun() {
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
    assert_eq!(status(&fleet, &submitted, &request), RunStatus::Cancelled);
    // With the heads it was made for it is followed.
    let again = fleet.follow(&request);
    assert_eq!((again.origin, again.run), (Origin::Known, report.run));
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
