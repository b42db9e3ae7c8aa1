//! What one machine cannot reach is left to others, and nothing is said about it that was not seen.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod stage;

use stage::fleet::{Fleet, mount, unmount};
use stage::{Essence, Stage, git, token, write};
use tessera_coordination::run::summary::ShardFilter;
use tessera_scan::run::request::{ScanRequest, ScanScope};
use tessera_scan::run::{ExitStatus, ScanReport};

/// A tree of small files, with a secret in one of them.
fn tree() -> Stage {
    let stage = Stage::empty(ScanScope::Files);
    for i in 0..20 {
        write(stage.root(), &Stage::file(i), format!("file {i}\n"));
    }
    write(stage.root(), "b/secret.env", format!("TOKEN={}\n", token(1)));
    stage
}

/// A history of some files, with a secret in one of them.
fn history() -> Stage {
    let stage = Stage::empty(ScanScope::History);
    git(stage.root(), &["init", "-q", "-b", "main"]);
    for i in 0..20 {
        write(stage.root(), &Stage::file(i), format!("blob {i}\n"));
    }
    write(stage.root(), "b/secret.env", format!("TOKEN={}\n", token(1)));
    git(stage.root(), &["add", "-A"]);
    git(stage.root(), &["commit", "-q", "-m", "all"]);
    stage
}

/// Submits, then lets a machine try that cannot read the target while `hide` hides it; `show` shows it again.
fn beside_another(stage: &Stage, hide: impl FnOnce(), show: impl FnOnce()) -> (ScanReport, Fleet) {
    let (fleet, request) = (Fleet::new(), stage.request());
    let submitted = fleet.submit(&request);
    fleet.takes_part(&submitted, request.tenant);
    hide();
    fleet.with_worker(&request, 4, || {
        fleet.wait_until("no report", |_| fleet.reports(&submitted, request.tenant) > 0);
    });
    assert_eq!(fleet.shards(&submitted, request.tenant, &ShardFilter::parked()), 0, "another worker may reach it");
    assert_eq!(fleet.reports(&submitted, request.tenant), 1, "a machine of four threads reports once");
    show();
    (fleet.with_worker(&request, 2, || fleet.follow(&request)), fleet)
}

#[test]
fn an_empty_mount_point_on_one_machine_costs_nothing_if_another_reaches_the_tree() {
    let stage = tree();
    let aside = std::cell::OnceCell::new();
    let hide = || aside.set(unmount(stage.root())).unwrap();
    let (report, _fleet) = beside_another(&stage, hide, || mount(stage.root(), aside.get().unwrap()));
    assert_eq!(report.exit_status(), ExitStatus::Findings);
    assert_eq!(Essence::of(&report), Essence::of(&stage.fresh()));
}

#[test]
fn a_repository_that_one_machine_lacks_is_not_called_corrupt() {
    let stage = history();
    let aside = std::cell::OnceCell::new();
    let hide = || {
        aside.set(unmount(stage.root())).unwrap();
        git(stage.root(), &["init", "-q", "-b", "main"]);
        git(stage.root(), &["commit", "-q", "--allow-empty", "-m", "another repository"]);
    };
    let show = || {
        std::fs::remove_dir_all(stage.root().join(".git")).unwrap();
        mount(stage.root(), aside.get().unwrap());
    };
    let (report, _fleet) = beside_another(&stage, hide, show);
    assert_eq!(report.receipt.tally.unreadable_total(), 0, "{:?}", report.receipt.tally);
    assert_eq!(Essence::of(&report), Essence::of(&stage.fresh()));
}

#[test]
fn an_object_that_one_clone_lacks_is_left_to_others() {
    let stage = history();
    let oid = git(stage.root(), &["rev-parse", "HEAD:b/secret.env"]);
    let object = stage.root().join(".git/objects").join(&oid[..2]).join(&oid[2..]);
    let aside = object.with_extension("aside");
    let (hide, show) = (|| std::fs::rename(&object, &aside).unwrap(), || std::fs::rename(&aside, &object).unwrap());
    let (report, _fleet) = beside_another(&stage, hide, show);
    assert_eq!(report.exit_status(), ExitStatus::Findings);
    assert_eq!(Essence::of(&report), Essence::of(&stage.fresh()));
}

#[test]
fn what_no_machine_reaches_is_parked_and_the_report_names_target_reason_and_worker() {
    let (stage, fleet) = (tree(), Fleet::new());
    let request: ScanRequest = stage.request();
    let aside = std::cell::OnceCell::new();
    let report = std::thread::scope(|scope| {
        let follower = scope.spawn(|| fleet.follow(&request));
        fleet.wait_for_run(request.tenant);
        aside.set(unmount(stage.root())).unwrap();
        fleet.with_worker(&request, 2, || follower.join().unwrap())
    });
    assert_eq!((report.exit_status(), report.receipt.tally.enumerated()), (ExitStatus::Incomplete, 0));
    let [line] = &report.receipt.parked[..] else { panic!("{:?}", report.receipt.parked) };
    let root = stage.root().canonicalize().unwrap();
    for part in
        [root.to_str().unwrap(), "unreachable", "is empty here, and 21 files were planned", "reported by worker "]
    {
        assert!(line.contains(part), "{line} lacks {part}");
    }
    // Mended, the same command finishes it.
    mount(stage.root(), aside.get().unwrap());
    let again = fleet.with_worker(&request, 1, || fleet.follow(&request));
    assert_eq!(Essence::of(&again), Essence::of(&stage.fresh()));
    assert_eq!(again.run, report.run);
}
