//! The receipt covers the plan: what was planned and is not there is never called clean.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod stage;

use stage::fleet::{Fleet, unmount};
use stage::{Essence, Stage, findings_below, git, run, token, write};
use tessera_contracts::{ShardId, ShardKey};
use tessera_coordination::RunManagement;
use tessera_scan::report::{Format, Written};
use tessera_scan::run::job::Job;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{ExitStatus, Keeping, ScanReport};
use tessera_scan::source::item::UnreadableReason;

fn written(report: &ScanReport, format: Format) -> String {
    let written = Written {
        report,
        job: &Job::of(&ScanRequest::of_paths(Vec::new())),
        suppressed: 0,
        colours: false,
        redacted_percent: 0,
    };
    let mut out = Vec::new();
    written.write(format, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// A tree of small files, with a secret in one of them.
fn tree() -> Stage {
    let stage = Stage::empty(ScanScope::Files);
    for i in 0..20 {
        write(stage.root(), &Stage::file(i), format!("file {i}\n"));
    }
    write(stage.root(), "b/secret.env", format!("TOKEN={}\n", token(1)));
    stage
}

#[test]
fn what_is_unmounted_between_plan_and_sweep_is_not_clean() {
    let (stage, fleet) = (tree(), Fleet::new());
    let request = stage.request();
    let report = std::thread::scope(|scope| {
        let follower = scope.spawn(|| fleet.follow(&request));
        fleet.wait_until("no run", |backend| has_run(backend, &request));
        let _aside = unmount(stage.root());
        fleet.with_worker(&request, 2, || follower.join().unwrap())
    });
    assert_eq!(report.exit_status(), ExitStatus::Incomplete);
    assert!(!report.receipt.parked.is_empty() && report.receipt.parked[0].contains("is empty here"), "{report:?}");
    assert_eq!((report.receipt.plan.planned, report.receipt.plan.met), (21, 0));
    let text = written(&report, Format::Human);
    assert!(!text.contains("clean") && text.contains("planned"), "{text}");
}

fn has_run(backend: &mut impl tessera_coordination::RunManagement, request: &ScanRequest) -> bool {
    let mut runs = Vec::new();
    backend.list_runs_into(request.tenant, None, 10, &mut runs).unwrap();
    runs.iter().any(|run| run.status == tessera_coordination::run::status::RunStatus::Active)
}

#[test]
fn a_planned_path_that_is_gone_is_named_and_one_that_is_new_is_read() {
    let (stage, fleet) = (tree(), Fleet::new());
    let request = stage.request();
    let report = std::thread::scope(|scope| {
        let follower = scope.spawn(|| fleet.follow(&request));
        fleet.wait_until("no run", |backend| has_run(backend, &request));
        std::fs::remove_file(stage.root().join("a/f000.txt")).unwrap();
        std::fs::remove_dir_all(stage.root().join("b")).unwrap();
        write(stage.root(), "a/new.txt", "new\n");
        fleet.with_worker(&request, 2, || follower.join().unwrap())
    });
    let (receipt, tally) = (&report.receipt, &report.receipt.tally);
    assert_eq!(report.exit_status(), ExitStatus::Incomplete);
    assert_eq!((tally.scanned, receipt.planned_not_read()), (10, 12));
    assert_eq!((receipt.plan.planned, receipt.plan.met, receipt.plan.added), (21, 21, 1));
    let named: Vec<&[u8]> = receipt.notes.iter().map(|note| &note.path[..]).collect();
    assert!(named.contains(&&b"a/f000.txt"[..]) && named.contains(&&b"b/secret.env"[..]), "{named:?}");
    assert!(receipt.notes.iter().all(|note| note.reason == UnreadableReason::PlannedNotRead));
    let human = written(&report, Format::Human);
    assert!(human.contains("a/f000.txt: planned, not read") && human.contains("1 new"), "{human}");
    let json: serde_json::Value = serde_json::from_str(&written(&report, Format::Json)).unwrap();
    let planned = &json["receipt"]["planned"];
    assert_eq!((&planned["items"], &planned["not_read"], &planned["new"]), (&21.into(), &12.into(), &1.into()));
    assert_eq!(json["receipt"]["complete"], false);
    let sarif: serde_json::Value = serde_json::from_str(&written(&report, Format::Sarif)).unwrap();
    let properties = &sarif["runs"][0]["properties"];
    assert_eq!((&properties["planned"], &properties["planned_not_read"]), (&21.into(), &12.into()));
}

#[test]
fn findings_beside_missing_paths_are_findings_of_an_incomplete_run() {
    let (stage, fleet) = (tree(), Fleet::new());
    let request = stage.request();
    let report = std::thread::scope(|scope| {
        let follower = scope.spawn(|| fleet.follow(&request));
        fleet.wait_until("no run", |backend| has_run(backend, &request));
        std::fs::remove_file(stage.root().join("a/f000.txt")).unwrap();
        fleet.with_worker(&request, 1, || follower.join().unwrap())
    });
    assert_eq!((report.exit_status(), report.receipt.is_complete()), (ExitStatus::Findings, false));
}

#[test]
fn an_empty_folder_is_planned_as_nothing_and_the_report_says_so() {
    let stage = Stage::empty(ScanScope::Files);
    let report = stage.fresh();
    assert_eq!((report.exit_status(), report.receipt.plan.planned), (ExitStatus::CleanComplete, 0));
    let text = written(&report, Format::Human);
    assert!(text.contains("receipt  0 items") && text.contains("there was nothing to read"), "{text}");
    assert!(!text.contains("everything was read"), "{text}");
}

#[test]
fn lost_findings_files_of_a_run_that_met_nothing_are_noticed() {
    // A shard without items has no cursor, so no cursor can tell that its records are gone.
    let stage = Stage::empty(ScanScope::Files);
    write(stage.root(), "a", "text\n");
    stage.settle();
    assert!(stage.again().receipt.is_complete());
    let findings = findings_below(stage.state.path());
    let before = stage.again();
    assert_eq!(before.receipt.plan.met, 1);
    std::fs::remove_dir_all(&findings).unwrap();
    let after = stage.again();
    assert!(!matches!(after.origin, tessera_scan::run::Origin::Known), "what is lost is read again");
    assert_eq!(Essence::of(&after), Essence::of(&stage.fresh()));
}

#[test]
fn plans_are_covered_whoever_shares_the_work() {
    let stage = Stage::empty(ScanScope::Files);
    for i in 0..400 {
        write(stage.root(), &format!("d{}/f{i:03}", i % 3), "some text\n".repeat(6_000));
    }
    let request = ScanRequest { workers: 4, ..stage.request() };
    let report = run(&request, &Keeping::Nothing);
    let plan = &report.receipt.plan;
    assert!(report.receipt.is_complete(), "{:?}", report.receipt);
    assert_eq!((plan.planned, plan.met, plan.added), (400, 400, 0));
}

#[test]
fn the_plan_of_a_history_is_its_list() {
    let stage = Stage::empty(ScanScope::History);
    git(stage.root(), &["init", "-q", "-b", "main"]);
    for i in 0..5 {
        write(stage.root(), &format!("f{i}"), format!("text {i}\n"));
    }
    git(stage.root(), &["add", "-A"]);
    git(stage.root(), &["commit", "-q", "-m", "all"]);
    let report = stage.fresh();
    assert_eq!((report.receipt.plan.planned, report.receipt.plan.met), (5, 5));
    assert!(report.receipt.is_complete());
}

#[test]
fn threads_of_one_machine_are_one_worker() {
    let (stage, fleet) = (Stage::empty(ScanScope::Files), Fleet::new());
    for i in 0..300 {
        write(stage.root(), &format!("f{i:03}"), "some text\n".repeat(5_000));
    }
    let request = stage.request();
    let report = fleet.with_worker(&request, 3, || fleet.follow(&request));
    assert!(report.receipt.is_complete());
    let owners = fleet.owners(&report, request.tenant);
    assert_eq!(owners.iter().collect::<std::collections::BTreeSet<_>>().len(), 1, "{owners:?}");
}

#[test]
fn why_a_shard_was_parked_is_stored_without_the_secrets_that_the_reason_quotes() {
    let (outside, fleet) = (tempfile::tempdir().unwrap(), Fleet::new());
    let root = outside.path().join(format!("key-{}", token(7)));
    write(&root, "a", "nothing\n");
    let request = ScanRequest { workers: 1, ..ScanRequest::of_paths(vec![root.clone()]) };
    let report = std::thread::scope(|scope| {
        let follower = scope.spawn(|| fleet.follow(&request));
        fleet.wait_until("no run", |backend| has_run(backend, &request));
        let _aside = unmount(&root);
        fleet.with_worker(&request, 1, || follower.join().unwrap())
    });
    let key = ShardKey::new(report.run, ShardId::new(1));
    let stored = fleet.backend.clone().get_shard(request.tenant, key).unwrap().park_detail.unwrap();
    assert!(stored.contains("key-ghp_****") && !stored.contains(&token(7)), "{stored}");
    assert!(report.receipt.parked[0].contains(&stored[..20]), "{:?}", report.receipt.parked);
}
