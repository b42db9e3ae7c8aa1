//! Workers and submitters that see other files than the submitter that planned the run: another worker reads the planned
//! items, or the report is incomplete.
//!
//! A process with another view runs in a mount namespace of its own, in which empty file systems or other folders lie over folders; or
//! without the permission to read folders of others.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tessera_coordination::backend::BlockOn as _;
use tessera_coordination_etcd::client::EtcdClient;
use tessera_coordination_etcd::keyspace::LAYOUT;
use tessera_coordination_etcd::kv::{Keys, Kv as _, RangeRequest};
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_coordination_etcd::{EtcdConfig, sync};

use super::fleet::{Fleet, drain, until};
use super::truth::cases::{self, Case, Outcome};
use super::truth::command::Running;
use super::truth::compare::{Truth, compare};
use super::truth::git::commit_all;
use super::truth::token::token;
use super::truth::{history, large, oracle};

/// The worker's view in place of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    /// The folder is there, and empty: a mount that is not mounted.
    Empty,
    /// The folder is not there.
    Missing,
    /// The repository lacks the newest commits: a mirror that was not fetched.
    Stale,
    /// The folder is there and belongs to another user, who lets no other user read it.
    Denied,
}

/// The owner of folders that a worker may not read.
const ANOTHER_USER: u32 = 65_534;

/// As root without the permission to read what belongs to others.
fn setpriv() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-dac_override,-dac_read_search", "--bounding-set=-dac_override,-dac_read_search"]);
    command
}

/// Whether this process may make mount namespaces, and give up permissions.
fn can_hide() -> bool {
    let can = |mut command: Command| command.stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "true"]);
    let mut setpriv = setpriv();
    setpriv.arg("true");
    rustix::process::geteuid().is_root() && can(unshare) && can(setpriv)
}

/// Starts a worker that sees an empty folder in place of `hidden`, or `instead` if it is given.
fn blind_worker(fleet: &Fleet, hidden: &Path, instead: Option<&Path>) -> Running {
    blind(fleet, &fleet.args(&["worker", "-j", "2"]), &[(hidden, instead)])
}

/// Starts a command that sees an empty folder in place of each that is hidden, or another one if it is given.
fn blind(fleet: &Fleet, args: &[OsString], hidden: &[(&Path, Option<&Path>)]) -> Running {
    // It becomes the command rather than start it, so that signals reach the command.
    let script =
        "while [ \"$1\" != -- ]; do mount \"$1\" \"$2\" \"$3\" \"$4\" || exit 99; shift 4; done; shift; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]);
    for (hidden, instead) in hidden {
        match instead {
            Some(instead) => command.args(["--bind", "--"]).arg(instead).arg(hidden),
            None => command.args(["-t", "tmpfs", "none"]).arg(hidden),
        };
    }
    command.arg("--");
    start_by(fleet, command, args, format!("a command that does not see {hidden:?}"))
}

/// Starts a worker that may not read `folder`, which is closed to all but another user.
fn denied_worker(fleet: &Fleet, folder: &Path) -> Running {
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(folder, Some(ANOTHER_USER), None).unwrap();
    let args = fleet.args(&["worker", "-j", "2"]);
    start_by(fleet, setpriv(), &args, format!("a worker that may not read {}", folder.display()))
}

/// Starts our program by a command that becomes the one which is named behind it.
fn start_by(fleet: &Fleet, mut command: Command, args: &[OsString], said: String) -> Running {
    let inner = fleet.tessera.command(args);
    command.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.current_dir(&fleet.tessera.cwd).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::of(command.spawn().unwrap(), said)
}

/// Targets, of which the one in `holder` can be hidden.
struct Input {
    targets: Vec<PathBuf>,
    holder: PathBuf,
    /// A clone of the hidden one before its newest commit.
    stale: PathBuf,
    truth: Truth,
    scope: &'static [&'static str],
}

fn input(case: &mut Case, is_history: bool) -> Input {
    let (seen, holder) = (case.folder("seen"), case.folder("holder"));
    let (hidden, stale) = (holder.join("hidden"), case.dir().join("stale"));
    std::fs::create_dir_all(&hidden).unwrap();
    let mut truth = Truth::counted();
    if is_history {
        large::history(&mut case.random, &hidden);
        history::clone_plainly(&hidden, &stale);
        std::fs::write(hidden.join("newest"), format!("token: {}\n", token(&mut case.random))).unwrap();
        commit_all(&hidden, "newest");
        std::fs::remove_dir(&seen).unwrap();
        history::clone_plainly(&hidden, &seen);
    } else {
        large::tree(&mut case.random, &seen);
        large::tree(&mut case.random, &hidden);
    }
    for target in [&seen, &hidden] {
        truth.join(if is_history { oracle::history(target, oracle::ALL) } else { oracle::tree(target) });
    }
    let scope: &[&str] = if is_history { &["--history"] } else { &[] };
    Input { targets: vec![seen, hidden], holder, stale, truth, scope }
}

impl Input {
    /// Starts a worker that sees the hidden target so.
    fn worker(&self, fleet: &Fleet, view: View) -> Running {
        match view {
            View::Empty => blind_worker(fleet, &self.holder.join("hidden"), None),
            View::Missing => blind_worker(fleet, &self.holder, None),
            View::Stale => blind_worker(fleet, &self.holder.join("hidden"), Some(&self.stale)),
            // Git refuses a repository that belongs to another user; so the folder around it does.
            View::Denied if !self.scope.is_empty() => denied_worker(fleet, &self.holder),
            View::Denied => denied_worker(fleet, &self.holder.join("hidden")),
        }
    }
}

fn each_view(body: impl Fn(&mut Case, &EtcdCluster, View, bool) -> Outcome) {
    if !can_hide() {
        return test_support::skipped("it takes root, unshare and setpriv to hide a folder from a process");
    }
    let etcd = EtcdCluster::start(1);
    const VIEWS: [(View, bool); 7] = [
        (View::Denied, false),
        (View::Denied, true),
        (View::Empty, false),
        (View::Missing, false),
        (View::Empty, true),
        (View::Missing, true),
        (View::Stale, true),
    ];
    cases::run(VIEWS.len() as u64, |case| {
        let (view, is_history) = VIEWS[case.number as usize % VIEWS.len()];
        body(case, &etcd, view, is_history).map_err(|problem| format!("{view:?}, history: {is_history}: {problem}"))
    });
}

#[test]
fn a_target_that_no_worker_sees_is_not_clean() {
    each_view(|case, etcd, view, is_history| {
        let input = input(case, is_history);
        let fleet = Fleet::new(case, etcd);
        let worker = input.worker(&fleet, view);
        let ended = fleet.submit(input.scope, &input.targets[1..]).end();
        drain(worker);
        let report = ended.report()?;
        if report.receipt.complete || report.code != Some(3) {
            return Err(format!("exit {:?}, {:?}", report.code, report.receipt));
        }
        // Nothing of it is called unreadable or damaged: it was not looked at.
        let parked = report.json["receipt"]["parked"].to_string();
        let says = if view == View::Denied { "ermission denied" } else { "unreachable" };
        if !parked.contains("unreachable")
            || !parked.contains(says)
            || report.json["receipt"]["unreadable"] != json!({})
        {
            return Err(format!("{}", report.json["receipt"]));
        }
        Ok(())
    });
}

/// Waits until the fleet's coordinator knows so many sessions of workers.
fn until_present(fleet: &Fleet, sessions: i64) {
    let (server, namespace) = fleet.url.strip_prefix("etcd://").unwrap().rsplit_once('/').unwrap();
    let config = EtcdConfig { endpoints: vec![format!("http://{server}")], ..EtcdConfig::default() };
    let coordinator = sync::connect(config.clone()).unwrap();
    let executor = &coordinator.executor;
    let client = executor.block_on(async { EtcdClient::new(&config) }).unwrap();
    let presences = Keys::with_prefix(format!("{namespace}/{LAYOUT}/present/"));
    until("the workers are known", || {
        let read = RangeRequest::of(presences.clone()).count_only();
        let found = executor.block_on(client.range(read, client.now().after(Duration::from_secs(60))));
        found.is_ok_and(|found| found.count >= sessions).then_some(())
    });
}

/// The rule: while a healthy worker is connected, no shard is given up because another cannot reach it. The healthy one
/// has met no run yet, or has done another.
#[test]
fn a_target_that_one_worker_does_not_see_is_read_by_another() {
    each_view(|case, etcd, view, is_history| {
        let input = input(case, is_history);
        let fleet = Fleet::new(case, etcd);
        let healthy = fleet.worker();
        until_present(&fleet, 1);
        if case.random.percent(50) {
            let small = case.folder("small");
            std::fs::write(small.join("a"), "nothing\n").unwrap();
            let first = fleet.submit(&[], &[&small]).end().report()?;
            compare(&first, &oracle::tree(&small))?;
        }
        let blind = input.worker(&fleet, view);
        until_present(&fleet, 3);
        let follower = fleet.submit(input.scope, &input.targets);
        let ended = follower.end();
        let said = drain(blind).stderr;
        drain(healthy);
        compare(&ended.report()?, &input.truth).map_err(|problem| format!("{problem}\nthe blind worker said: {said}"))
    });
}

/// A worker that cannot take part in the run at all, because it has another folder for findings, is not waited for.
#[test]
fn a_worker_that_cannot_take_part_keeps_no_run_from_its_end() {
    each_view(|case, etcd, view, is_history| {
        let input = input(case, is_history);
        let fleet = Fleet::new(case, etcd);
        let elsewhere = fleet.with_findings(case.folder("other-findings")).worker();
        until_present(&fleet, 1);
        let blind = input.worker(&fleet, view);
        until_present(&fleet, 3);
        let ended = fleet.submit(input.scope, &input.targets).end();
        drain(blind);
        drain(elsewhere);
        let report = ended.report()?;
        if report.receipt.complete || report.places.len() >= input.truth.places.len() {
            return Err(format!("exit {:?}, {:?}", report.code, report.receipt));
        }
        Ok(())
    });
}

/// A file system that should be mounted inside the tree is missing on one worker: another worker reads its
/// files, or they are *planned, not read*.
#[test]
fn paths_that_were_planned_and_are_missing_are_not_called_read() {
    if !can_hide() {
        return test_support::skipped("it takes root to hide a folder from a process");
    }
    let etcd = EtcdCluster::start(1);
    cases::run(4, |case| {
        let root = case.folder("tree");
        large::tree(&mut case.random, &root);
        let has_secrets = case.number % 4 < 2;
        if !has_secrets {
            // Secrets are where the mount is missing, and nowhere else: without them the report would be clean.
            for (place, _) in oracle::tree(&root).places {
                if !place.path.starts_with("d05/") {
                    std::fs::write(root.join(&place.path), "nothing\n").unwrap();
                }
            }
        }
        let fleet = Fleet::new(case, &etcd);
        let blind = blind_worker(&fleet, &root.join("d05"), None);
        let healthy = (case.number % 2 == 1).then(|| fleet.worker());
        let ended = fleet.submit(&[], &[&root]).end();
        drain(blind);
        let is_alone = healthy.is_none();
        healthy.map(drain);
        let report = ended.report()?;
        let truth = oracle::tree(&root);
        if !is_alone && report.receipt.complete {
            return compare(&report, &truth);
        }
        let below = |path: &str| path.starts_with("d05/");
        let hidden = truth.places.keys().filter(|place| below(&place.path)).count();
        let planned = std::fs::read_dir(root.join("d05")).unwrap().count() as u64;
        let not_read = report.json["receipt"]["planned"]["not_read"].as_u64().unwrap_or(0);
        let seen = report.places.keys().filter(|place| !below(&place.path)).count();
        let code = if report.places.is_empty() { 3 } else { 1 };
        let holds = !report.receipt.complete
            && report.code == Some(code)
            && seen == truth.places.len() - hidden
            && if is_alone { not_read == planned } else { (1..=planned).contains(&not_read) };
        if !holds {
            return Err(format!(
                "exit {:?}, {seen} of {} places, {hidden} hidden, {not_read} of {planned} not read, {:?}",
                report.code,
                truth.places.len(),
                report.receipt
            ));
        }
        Ok(())
    });
}

/// The plan of the only run in a folder of findings.
fn plan_in(findings: &Path) -> Option<Vec<u8>> {
    let below = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    below(findings.into()).flat_map(below).find_map(|folder| std::fs::read(folder.join("plan")).ok())
}

/// The view of a second submitter that gives the same command while the run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Second {
    EmptyRoot,
    LacksPart,
    StaleClone,
}

#[test]
fn a_submitter_that_sees_less_than_another_changes_no_report_of_it() {
    if !can_hide() {
        return test_support::skipped("it takes root to hide a folder from a process");
    }
    let etcd = EtcdCluster::start(1);
    const VIEWS: [Second; 3] = [Second::EmptyRoot, Second::LacksPart, Second::StaleClone];
    cases::run(VIEWS.len() as u64, |case| {
        let view = VIEWS[case.number as usize % VIEWS.len()];
        beside_a_second_submitter(case, &etcd, view).map_err(|problem| format!("{view:?}: {problem}"))
    });
}

fn beside_a_second_submitter(case: &mut Case, etcd: &EtcdCluster, view: Second) -> Outcome {
    let (root, stale) = (case.folder("tree"), case.dir().join("stale"));
    let is_history = view == Second::StaleClone;
    let truth = if is_history {
        large::history(&mut case.random, &root);
        history::clone_plainly(&root, &stale);
        std::fs::write(root.join("newest"), format!("token: {}\n", token(&mut case.random))).unwrap();
        commit_all(&root, "newest");
        oracle::history(&root, oracle::ALL)
    } else {
        large::tree(&mut case.random, &root);
        oracle::tree(&root)
    };
    let scope: &[&str] = if is_history { &["--history"] } else { &[] };
    let fleet = Fleet::new(case, etcd);
    let mut healthy = fleet.submit(scope, &[&root]);
    let worker = fleet.worker();
    fleet.wait_for_progress(&mut healthy);
    // The run stays active while the second command is given.
    worker.signal("-STOP");
    let planned = plan_in(&fleet.findings);
    let part = root.join("d05");
    let hidden = match view {
        Second::EmptyRoot => (root.as_path(), None),
        Second::LacksPart => (part.as_path(), None),
        Second::StaleClone => (root.as_path(), Some(stale.as_path())),
    };
    let mut second = blind(&fleet, &fleet.submit_args(scope, &[&root]), &[hidden]);
    until("the second command has looked", || {
        let has_looked = !second.is_running() || fleet.runs().len() > 1 || plan_in(&fleet.findings) != planned;
        has_looked.then_some(())
    });
    worker.signal("-CONT");
    let (healthy, second) = (healthy.end(), second.end());
    drain(worker);
    compare(&healthy.report()?, &truth)?;
    match view {
        Second::EmptyRoot if second.code == Some(2) && second.stderr.contains("is empty here") => Ok(()),
        Second::EmptyRoot => Err(format!("exit {:?}: {}", second.code, second.stderr)),
        // Workers read files that the submitter does not see.
        Second::LacksPart => compare(&second.report()?, &truth),
        Second::StaleClone => {
            let (report, old) = (second.report()?, oracle::history(&stale, oracle::ALL));
            let is_true = report.places.keys().all(|place| truth.places.contains_key(place));
            if !is_true || report.places.len() != old.places.len() || !report.receipt.complete {
                return Err(format!("{} places of {}, {:?}", report.places.len(), old.places.len(), report.receipt));
            }
            Ok(())
        }
    }
}

/// One of three targets is not there on a worker, another is empty there, and another worker dies in the middle.
#[test]
fn one_worker_that_lacks_two_targets_of_three_and_one_that_dies_cost_no_finding() {
    if !can_hide() {
        return test_support::skipped("it takes root to hide a folder from a process");
    }
    let etcd = EtcdCluster::start(1);
    cases::run(2, |case| {
        let is_history = case.number % 2 == 1;
        let (seen, empty, holder) = (case.folder("seen"), case.folder("empty"), case.folder("holder"));
        let absent = holder.join("absent");
        let mut truth = Truth::counted();
        for target in [&seen, &empty, &absent] {
            std::fs::create_dir_all(target).unwrap();
            if is_history {
                large::history(&mut case.random, target);
                truth.join(oracle::history(target, oracle::ALL));
            } else {
                large::tree(&mut case.random, target);
                truth.join(oracle::tree(target));
            }
        }
        let fleet = Fleet::new(case, &etcd);
        let (healthy, dying) = (fleet.worker(), fleet.worker());
        until_present(&fleet, 2);
        let blind = blind(&fleet, &fleet.args(&["worker", "-j", "2"]), &[(&empty, None), (&holder, None)]);
        until_present(&fleet, 4);
        let scope: &[&str] = if is_history { &["--history"] } else { &[] };
        let mut follower = fleet.submit(scope, &[&seen, &empty, &absent]);
        fleet.wait_for_progress(&mut follower);
        dying.signal("-KILL");
        dying.end();
        let ended = follower.end();
        let said = drain(blind).stderr;
        drain(healthy);
        compare(&ended.report()?, &truth).map_err(|problem| format!("{problem}\nthe blind worker said: {said}"))
    });
}
