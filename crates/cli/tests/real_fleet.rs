//! A fleet on a real etcd: workers that are killed, drained and put to sleep, and a coordinator that goes away.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tessera_contracts::RunId;
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_scan::findings::merge;
use tessera_scan::run::coordinator_name::CoordinatorName;
use tessera_scan::run::folder::RunFolder;
use tessera_scan::run::label::{RunKey, RunLabel};

/// A tree, a folder for findings, and an etcd in a namespace of its own.
struct Stage {
    etcd: EtcdCluster,
    tree: tempfile::TempDir,
    findings: tempfile::TempDir,
    url: String,
    /// How many seconds without a coordinator every command bears.
    give_up_after: &'static str,
}

/// How long to wait for what must come: only a broken program takes as long, however slow and busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);
const FILES: u64 = 1_500;
const SECRETS: usize = 30;
/// Large files of the test that needs three workers at work.
const FILLERS: u64 = 200;

impl Stage {
    fn new() -> Self {
        let (tree, findings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for i in 0..FILES {
            let dir = tree.path().join(format!("d{:02}", i % 23));
            std::fs::create_dir_all(&dir).unwrap();
            let mut seed = tessera_detect::template::Seed::new(i);
            let token = tessera_detect::template::expand("ghp_<<github 30>>", &mut seed).unwrap();
            let secret = if i % 50 == 0 { format!("token: {token}\n") } else { String::new() };
            let text = format!("{}{secret}", "fn main() { println!(\"hello, world\"); }\n".repeat(1_500));
            std::fs::write(dir.join(format!("f{i:04}.rs")), text).unwrap();
        }
        let etcd = EtcdCluster::start(1);
        let url = format!("{}/fleet", etcd.endpoints()[0].replace("http://", "etcd://"));
        // A busy machine keeps etcd from answering for a while.
        Self { etcd, tree, findings, url, give_up_after: "600" }
    }

    fn tessera(&self, verb: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(verb).args(["--coordinator", &self.url, "--findings"]).arg(self.findings.path());
        if !verb.contains(&"--give-up-after") {
            command.args(["--give-up-after", self.give_up_after]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn submit(&self) -> Child {
        self.tessera(&["scan", "--format", "json", "--lease", "2", "-j", "8"]).arg(self.tree.path()).spawn().unwrap()
    }

    fn worker(&self) -> Child {
        self.tessera(&["worker", "-j", "1"]).spawn().unwrap()
    }

    /// The findings of the only run, once there are some.
    fn run_folder(&self) -> std::path::PathBuf {
        let below = |dir: &std::path::Path| -> Vec<std::path::PathBuf> {
            std::fs::read_dir(dir).map_or_else(|_| Vec::new(), |found| found.flatten().map(|at| at.path()).collect())
        };
        until(|| {
            let runs = below(self.findings.path());
            let folders = runs.iter().flat_map(|run| below(run));
            folders.map(|folder| folder.join("findings")).find(|findings| findings.is_dir())
        })
    }

    /// Waits until the run has shards that can be claimed.
    fn wait_for_shards(&self) {
        until(|| {
            let listed = self.tessera(&["runs", "--json"]).output().unwrap();
            let listed: Value = serde_json::from_slice(&listed.stdout).ok()?;
            listed["runs"][0]["shards"]["open"].as_u64().filter(|open| *open > 0)
        });
    }

    /// Waits until so many workers have made something durable.
    fn wait_for_writers(&self, count: usize) {
        let folder = self.run_folder();
        let started = Instant::now();
        let writers = || {
            let files = std::fs::read_dir(&folder).unwrap().flatten();
            // Longer than a header and the first grant: a segment is in it.
            files.filter(|file| file.metadata().is_ok_and(|metadata| metadata.len() > 200)).count()
        };
        while writers() < count {
            assert!(started.elapsed() < PATIENCE, "{} of {count} wrote", writers());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The report of one uninterrupted run on this machine.
    fn expected(&self) -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        let output = command.args(["scan", "--no-resume", "--format", "json"]).arg(self.tree.path()).output().unwrap();
        report(&output)
    }
}

fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The part of a report that must not depend on the workers and on interruptions.
fn essence(report: &Value) -> (BTreeSet<String>, Vec<Value>) {
    let findings = report["findings"].as_array().unwrap();
    let places = findings.iter().flat_map(|finding| {
        let locations = finding["locations"].as_array().unwrap();
        locations.iter().map(move |at| format!("{} {} {}", finding["secret_id"], at["path"], at["start"]))
    });
    let receipt = &report["receipt"];
    let counts = ["enumerated", "scanned", "scanned_bytes", "skipped", "unreadable", "complete"];
    (places.collect(), counts.map(|name| receipt[name].clone()).to_vec())
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Waits for the end, but not for ever: a child that hangs is ended, and its output tells how far it came.
fn end_of(child: Child) -> Output {
    let (id, (ended, watched)) = (child.id().to_string(), std::sync::mpsc::channel::<()>());
    let watch = std::thread::spawn(move || {
        if watched.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            Command::new("kill").args(["-KILL", &id]).status().unwrap();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watch.join().unwrap();
    output
}

/// Tells a worker to stop, which it does at once and without complaint.
fn drain(child: Child) {
    signal(&child, "-TERM");
    let output = end_of(child);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn with_one_of_three_workers_killed_and_one_drained_the_findings_are_those_of_one_run() {
    let stage = Stage::new();
    // Work for seconds, so that all three come to write; it takes no more room than one file.
    let first = stage.tree.path().join("d00/filler0.rs");
    std::fs::write(&first, "fn main() { println!(\"hello, world\"); }\n".repeat(50_000)).unwrap();
    for file in 1..FILLERS {
        let dir = stage.tree.path().join(format!("d{:02}", file % 23));
        std::fs::hard_link(&first, dir.join(format!("filler{file}.rs"))).unwrap();
    }
    let expected = stage.expected();
    assert_eq!(expected["findings"].as_array().unwrap().len(), SECRETS);
    let follower = stage.submit();
    stage.wait_for_shards();
    // The run is there before the workers are, so the first look of each one sees it.
    let mut workers: Vec<Child> = (0..3).map(|_| stage.worker()).collect();
    stage.wait_for_writers(3);
    let drained = workers.remove(1);
    let mut killed = workers.remove(0);
    killed.kill().unwrap();
    killed.wait().unwrap();
    drain(drained);
    let found = report(&end_of(follower));
    assert_eq!(essence(&found), essence(&expected));
    drain(workers.remove(0));
    // The drained worker's findings count; only the killed one can leave a segment that was not checkpointed.
    let findings = stage.run_folder();
    let merged = merge(&findings, RunLabel::load(findings.parent().unwrap()).unwrap().key).unwrap();
    assert!(merged.superseded <= 1, "{} segments were done again", merged.superseded);
    assert_eq!((merged.tally.scanned, merged.occurrences.len()), (FILES + FILLERS, SECRETS));
    assert!(merged.damage.iter().all(|damage| !damage.loses_findings()), "{:?}", merged.damage);
}

#[test]
fn a_worker_that_sleeps_through_its_lease_changes_nothing_when_it_wakes() {
    let stage = Stage::new();
    let expected = stage.expected();
    let follower = stage.submit();
    let sleeper = stage.worker();
    stage.wait_for_writers(1);
    signal(&sleeper, "-STOP");
    let other = stage.worker();
    let found = report(&end_of(follower));
    assert_eq!(essence(&found), essence(&expected));
    drain(other);
    signal(&sleeper, "-CONT");
    drain(sleeper);
    let run = found["run"].as_str().unwrap();
    let shown = stage.tessera(&["runs", "show", run, "--format", "json"]).output().unwrap();
    let again: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(essence(&again), essence(&expected), "its late words were not heard");
}

#[test]
fn without_its_coordinator_everyone_ends_with_a_message_and_later_goes_on() {
    let mut stage = Stage::new();
    let expected = stage.expected();
    stage.give_up_after = "10";
    let (follower, worker) = (stage.submit(), stage.worker());
    stage.wait_for_writers(1);
    stage.etcd.kill(0);
    for (who, child) in [("follower", follower), ("worker", worker)] {
        let output = end_of(child);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{who}: {said}");
        assert!(said.contains("error: the coordinator cannot be used") && said.contains("gave up"), "{who}: {said}");
        assert!(output.stdout.is_empty(), "{who} reports nothing as if it were all");
    }
    stage.etcd.restart(0);
    let (follower, worker) = (stage.submit(), stage.worker());
    let output = end_of(follower);
    assert!(String::from_utf8_lossy(&output.stderr).contains("continued"), "{:?}", output.stderr);
    assert_eq!(essence(&report(&output)), essence(&expected));
    drain(worker);
}

/// A file that a child's standard error goes to, to be read while the child runs.
fn heard(command: &mut Command, place: &tempfile::TempDir, name: &str) -> (Child, impl Fn() -> String + use<>) {
    let path = place.path().join(name);
    let child = command.stderr(std::fs::File::create(&path).unwrap()).spawn().unwrap();
    (child, move || std::fs::read_to_string(&path).unwrap())
}

#[test]
fn a_command_that_starts_without_its_coordinator_waits_for_it_as_long_as_asked() {
    let mut stage = Stage::new();
    let expected = stage.expected();
    stage.etcd.kill(0);
    // Not asked to wait, a command ends; the cause comes first.
    let impatient = stage.tessera(&["scan", "--give-up-after", "0"]).arg(stage.tree.path()).output().unwrap();
    let said = String::from_utf8_lossy(&impatient.stderr).into_owned();
    assert_eq!(impatient.status.code(), Some(2), "{said}");
    assert!(said.contains("no etcd endpoint accepted a connection") && said.contains("gave up after 0 s"), "{said}");
    // Asked to wait for an hour, each says so, and until when.
    let place = tempfile::tempdir().unwrap();
    let asked = |verb: &[&str]| stage.tessera(&[verb, &["--give-up-after", "3600"]].concat());
    let mut scan = asked(&["scan", "--format", "json", "--lease", "2"]);
    let (follower, follower_says) = heard(scan.arg(stage.tree.path()), &place, "scan");
    let (worker, worker_says) = heard(&mut asked(&["worker", "-j", "1"]), &place, "worker");
    let (runs, runs_says) = heard(&mut asked(&["runs"]), &place, "runs");
    let is_told = |said: String| said.contains("trying again until 2") && said.contains("Z (--give-up-after 3600)");
    until(|| (is_told(follower_says()) && is_told(worker_says()) && is_told(runs_says())).then_some(()));
    stage.etcd.restart(0);
    assert_eq!(end_of(runs).status.code(), Some(0), "{}", runs_says());
    let output = end_of(follower);
    assert_eq!(output.status.code(), Some(1), "{}", follower_says());
    assert_eq!(essence(&serde_json::from_slice(&output.stdout).unwrap()), essence(&expected));
    signal(&worker, "-TERM");
    assert_eq!(end_of(worker).status.code(), Some(0), "{}", worker_says());
}

#[test]
fn hints_are_whole_commands_and_no_other_coordinator_knows_the_run() {
    let stage = Stage::new();
    let place = tempfile::tempdir().unwrap();
    // A scan of the same path on this machine, whose run must not be taken for that of the fleet.
    let local = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.env("TESSERA_STATE_DIR", place.path()).env_remove("TESSERA_COORDINATOR").stdin(Stdio::null());
        command
    };
    let kept = local().args(["scan", "--format", "json"]).arg(stage.tree.path()).output().unwrap();
    let kept = report(&kept)["run"].as_str().unwrap().to_owned();
    let mut scan = stage.tessera(&["scan", "--format", "json", "--tenant", "it's us"]);
    let (follower, says) = heard(scan.arg(stage.tree.path()), &place, "scan");
    // No worker is there: the hint starts one, in the right place.
    let command_in = |said: String, verb: &str| {
        let start = said.find(&format!("`tessera {verb}"))? + 1;
        said[start..].split('`').next().map(str::to_owned)
    };
    let worker = until(|| command_in(says(), "worker"));
    signal(&follower, "-INT");
    let output = end_of(follower);
    assert_eq!(output.status.code(), Some(3), "submitted, and nothing was read: {}", says());
    let run = serde_json::from_slice::<Value>(&output.stdout).unwrap()["run"].as_str().unwrap().to_owned();
    assert_ne!(run, kept, "each coordinator has its own ids");
    let cancel = command_in(says(), "runs cancel").unwrap();
    assert!(cancel.contains(&run), "{cancel}");
    assert!(says().contains(&format!("run {run} was submitted")), "{}", says());
    let show = command_in(says(), "runs show").unwrap();
    // Pasted without a place, it finds nothing that it could cancel, and says where it looked.
    let pasted = local().args(["runs", "cancel", &run]).output().unwrap();
    let said = String::from_utf8_lossy(&pasted.stderr).into_owned();
    assert!(pasted.status.code() == Some(2) && said.contains(place.path().to_str().unwrap()), "{said}");
    let elsewhere = stage.tessera(&["runs", "cancel", &kept]).output().unwrap();
    let said = String::from_utf8_lossy(&elsewhere.stderr).into_owned();
    assert!(elsewhere.status.code() == Some(2) && said.contains("namespace fleet knows no run"), "{said}");
    // Pasted whole, it does what it says.
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_tessera")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let shell = |line: &str| Command::new("sh").args(["-c", line]).env("PATH", &path).output().unwrap();
    let shown = shell(&show);
    assert!(String::from_utf8_lossy(&shown.stdout).contains("receipt  0 items"), "{shown:?}");
    let helped = shell(&format!("{worker} --until-done"));
    assert_eq!(helped.status.code(), Some(0), "{}", String::from_utf8_lossy(&helped.stderr));
    let listed = shell(&cancel.replace(&format!("cancel {run}"), ""));
    assert!(
        String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.starts_with(&run) && line.contains(" done ")),
        "{listed:?}"
    );
    let cancelled = shell(&cancel);
    assert!(String::from_utf8_lossy(&cancelled.stderr).contains("cannot become cancelled"), "{cancelled:?}");
}

#[test]
fn shards_that_were_parked_are_done_after_they_are_unparked() {
    let stage = Stage::new();
    let expected = stage.expected();
    let follower = stage.submit();
    let say = |verb: &[&str]| {
        let output = stage.tessera(verb).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let run_of = |runs: &str| runs.split_whitespace().find(|word| word.parse::<RunId>().is_ok()).map(str::to_owned);
    let run = until(|| run_of(&say(&["runs"]).1).filter(|run| say(&["shards", run]).1.contains("nothing yet")));
    // No worker has begun. For a worker that claims a shard now, its target is gone.
    let away = stage.tree.path().with_extension("away");
    std::fs::rename(stage.tree.path(), &away).unwrap();
    let worker = stage.worker();
    let output = end_of(follower);
    std::fs::rename(&away, stage.tree.path()).unwrap();
    assert_eq!(output.status.code(), Some(3), "nothing was found, and nothing was read");
    let parked: Vec<String> = {
        let shards = say(&["shards", &run]).1;
        assert!(shards.starts_with("[!"), "{shards}");
        let lines = shards.lines().filter(|line| line.contains(" parked "));
        lines.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect()
    };
    assert!(!parked.is_empty());
    for shard in &parked {
        assert_eq!(say(&["shards", "unpark", &run, shard]).0, Some(0), "{shard}");
    }
    assert_eq!(say(&["shards", "unpark", &run, &parked[0]]).0, Some(2), "it is not parked any more, or done");
    until(|| say(&["runs"]).1.contains("done").then_some(()));
    let shown = stage.tessera(&["runs", "show", &run, "--format", "json"]).output().unwrap();
    assert_eq!(essence(&serde_json::from_slice(&shown.stdout).unwrap()), essence(&expected));
    drain(worker);
}

/// Asks again until there is an answer, but not for ever.
fn until<T>(mut answer: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(started.elapsed() < PATIENCE, "no answer");
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Stage {
    /// A fleet scans the tree, which has no secrets, and one worker is killed on the way, so that shards change hands and the
    /// folder holds high fence epochs.
    fn clean_run_with_a_killed_worker(&self) -> Value {
        for entry in std::fs::read_dir(self.tree.path()).unwrap().flatten() {
            for file in std::fs::read_dir(entry.path()).unwrap().flatten() {
                std::fs::write(file.path(), "fn main() { println!(\"hello, world\"); }\n".repeat(1_500)).unwrap();
            }
        }
        let follower = self.submit();
        let mut killed = self.worker();
        self.wait_for_writers(1);
        killed.kill().unwrap();
        killed.wait().unwrap();
        let other = self.worker();
        let output = end_of(follower);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        drain(other);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Plants secrets in all files, gives the same command again, and expects all of them.
    fn planted_secrets_are_listed(&self, case: &str) {
        for i in 0..FILES {
            let mut seed = tessera_detect::template::Seed::new(i);
            let token = tessera_detect::template::expand("ghp_<<github 30>>", &mut seed).unwrap();
            let file = self.tree.path().join(format!("d{:02}/f{i:04}.rs", i % 23));
            std::fs::write(file, format!("token: {token}\n")).unwrap();
        }
        let (follower, worker) = (self.submit(), self.worker());
        let output = end_of(follower);
        assert_eq!(output.status.code(), Some(1), "{case}: {}", String::from_utf8_lossy(&output.stderr));
        let found = report(&output);
        assert_eq!(found["findings"].as_array().unwrap().len() as u64, FILES, "{case}");
        assert_eq!(found["receipt"]["complete"], true, "{case}");
        drain(worker);
    }
}

#[test]
fn after_the_store_was_wiped_a_kept_folder_hides_nothing() {
    let mut stage = Stage::new();
    let before = stage.clean_run_with_a_killed_worker();
    stage.etcd.kill(0);
    std::fs::remove_dir_all(stage.etcd.directory().join("member0")).unwrap();
    stage.etcd.restart(0);
    stage.planted_secrets_are_listed("wiped");
    let runs = stage.tessera(&["runs"]).output().unwrap();
    let runs = String::from_utf8_lossy(&runs.stdout).into_owned();
    assert!(runs.contains(before["run"].as_str().unwrap()), "the id is used again: {runs}");
}

#[test]
fn in_another_namespace_a_kept_folder_hides_nothing() {
    let mut stage = Stage::new();
    stage.clean_run_with_a_killed_worker();
    stage.url = stage.url.replace("/fleet", "/other");
    stage.planted_secrets_are_listed("another namespace");
}

#[test]
fn retire_refuses_a_folder_that_is_not_the_runs_and_a_kept_folder_hides_nothing() {
    let stage = Stage::new();
    let before = stage.clean_run_with_a_killed_worker();
    let run = before["run"].as_str().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let retire = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(["runs", "retire", "--older-than", "0", "--coordinator", &stage.url, "--findings"]);
        let output = command.arg(elsewhere.path()).args(more).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &said)
    };
    let runs = || String::from_utf8_lossy(&stage.tessera(&["runs"]).output().unwrap().stdout).into_owned();
    let (code, said) = retire(&[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(run) && said.contains("Nothing was retired"), "{said}");
    assert!(runs().contains(run) && stage.findings.path().join(run).exists());
    // By force, the run is forgotten and its folder stays. The next run has the same id.
    let (code, said) = retire(&["--without-folder"]);
    assert_eq!((code, said.as_str()), (Some(0), "1 run forgotten\n"));
    assert!(!runs().contains(run) && stage.findings.path().join(run).exists());
    stage.planted_secrets_are_listed("retired with another folder");
    assert!(runs().contains(run), "the id is used again: {}", runs());
}

#[test]
fn a_worker_that_outlives_its_run_serves_the_next_of_the_same_id() {
    let stage = Stage::new();
    for entry in std::fs::read_dir(stage.tree.path()).unwrap().flatten() {
        for file in std::fs::read_dir(entry.path()).unwrap().flatten() {
            std::fs::write(file.path(), "nothing to see\n").unwrap();
        }
    }
    let place = tempfile::tempdir().unwrap();
    let (worker, says) = heard(&mut stage.tessera(&["worker", "-j", "2"]), &place, "worker");
    let clean = end_of(stage.submit());
    assert_eq!(clean.status.code(), Some(0), "{}", String::from_utf8_lossy(&clean.stderr));
    for round in 0..3 {
        let retired = stage.tessera(&["runs", "retire", "--older-than", "0"]).output().unwrap();
        assert_eq!(retired.stdout, b"1 run forgotten\n", "{}", String::from_utf8_lossy(&retired.stderr));
        for i in 0..FILES {
            let mut seed = tessera_detect::template::Seed::new(i + round);
            let token = tessera_detect::template::expand("ghp_<<github 30>>", &mut seed).unwrap();
            let file = stage.tree.path().join(format!("d{:02}/f{i:04}.rs", i % 23));
            std::fs::write(file, format!("token: {token}\n")).unwrap();
        }
        let output = end_of(stage.submit());
        assert_eq!(output.status.code(), Some(1), "round {round}: {}", String::from_utf8_lossy(&output.stderr));
        let found = report(&output);
        assert_eq!(found["findings"].as_array().unwrap().len() as u64, FILES, "round {round}");
        assert_eq!(found["receipt"]["complete"], true, "round {round}");
    }
    signal(&worker, "-TERM");
    assert_eq!(end_of(worker).status.code(), Some(0), "{}", says());
    assert!(!says().contains("cannot"), "{}", says());
}

#[test]
fn leftovers_of_dead_submitters_are_collected_when_they_are_old_enough() {
    use tessera_coordination::RunManagement;
    let stage = Stage::new();
    let tenant = tessera_contracts::TenantId::from_name("local");
    let config = tessera_coordination_etcd::EtcdConfig::from_url(&stage.url).unwrap();
    let mut etcd = tessera_coordination_etcd::sync::connect(config).unwrap();
    let now = tessera_scan::clock::wall_clock();
    // Died before the run was created, and after.
    let label = |run: u64| RunLabel {
        coordinator: CoordinatorName::Etcd { namespace: "fleet".into() },
        tenant,
        key: RunKey::new(RunId::new(run), tessera_contracts::RunIncarnation::new(7)),
        created_at: now,
    };
    let folders = [1, 2].map(|run| RunFolder::create(stage.findings.path(), label(run)).unwrap());
    let key = label(2).key;
    etcd.create_run(now, tenant, key.run, key.incarnation, Default::default()).unwrap();
    let collect = |age: &[&str]| {
        let verb = [&["runs", "collect", "--older-than"], age].concat();
        let output = stage.tessera(&verb).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let exist = || folders.each_ref().map(|folder| folder.path().exists());
    assert_eq!(collect(&["12h"]), "there is nothing to collect\n", "it may still be under way");
    let told = collect(&["0s", "--dry-run"]);
    assert!(told.contains("run 0000000000000002 never got its shards: would be removed"), "{told}");
    assert!(told.contains("0000000000000001/") && exist() == [true, true], "{told}");
    let told = collect(&["0s"]);
    assert!(told.contains("run 0000000000000002 never got its shards: removed"), "{told}");
    assert_eq!(exist(), [false, false], "{told}");
    assert_eq!(collect(&["0s"]), "there is nothing to collect\n");
    // Nothing but a run, which its folder has outlived.
    etcd.create_run(now, tenant, key.run, key.incarnation, Default::default()).unwrap();
    assert_eq!(collect(&["0s", "--dry-run"]), "run 0000000000000002 never got its shards: would be removed\n");
    assert_eq!(collect(&["0s"]), "run 0000000000000002 never got its shards: removed\n");
    assert!(etcd.get_run(tenant, key.run).is_err());
    // Runs that have begun are left alone.
    let (follower, worker) = (stage.submit(), stage.worker());
    stage.wait_for_writers(1);
    assert_eq!(collect(&["0s"]), "there is nothing to collect\n");
    report(&end_of(follower));
    drain(worker);
}

/// Throws dice with so many sides; a failing test tells the seed.
fn dice() -> impl FnMut(u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut random = now.as_nanos() as u64;
    println!("seed {random}");
    move |sides| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % sides
    }
}

#[test]
fn submitters_that_are_killed_at_random_leave_a_run_that_the_fleet_finishes() {
    let mut stage = Stage::new();
    let expected = essence(&stage.expected());
    let mut dice = dice();
    for round in 0..5 {
        // A run of its own, over the same folder.
        let namespace = stage.url.rfind('/').unwrap();
        stage.url = format!("{}/round{round}", &stage.url[..namespace]);
        for _ in 0..3 {
            let mut racing = [stage.submit(), stage.submit()];
            for submitter in &mut racing {
                std::thread::sleep(Duration::from_millis(dice(120)));
                submitter.kill().unwrap();
            }
            for mut submitter in racing {
                submitter.wait().unwrap();
            }
        }
        let (follower, worker) = (stage.submit(), stage.worker());
        assert_eq!(essence(&report(&end_of(follower))), expected, "round {round}");
        drain(worker);
        let collect = stage.tessera(&["runs", "collect", "--older-than", "0s"]).output().unwrap();
        assert_eq!(collect.status.code(), Some(0), "{}", String::from_utf8_lossy(&collect.stderr));
        let told = String::from_utf8_lossy(&collect.stdout).into_owned();
        assert!(!told.contains("holds findings"), "round {round}: {told}");
    }
}

/// Submitters, workers and operators of one fleet, each of them a process of its own, all at once: runs are called off, retired
/// and collected while others register and sweep them, and half of the processes are killed. Whatever that did, the next scan
/// reports everything, and no run is forgotten whose findings are still there.
#[test]
fn operators_who_tidy_up_while_a_fleet_is_killed_at_random_lose_nothing_and_forget_nothing() {
    let stage = Stage::new();
    let expected = essence(&stage.expected());
    let mut dice = dice();
    let run_of = |list: &Output| {
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        list.split_whitespace().find(|word| word.parse::<RunId>().is_ok()).map(str::to_owned)
    };
    for round in 0..5 {
        let mut racing = vec![stage.worker()];
        for _ in 0..24 {
            racing.push(match dice(8) {
                0..3 => stage.submit(),
                3 => stage.worker(),
                4 => stage.tessera(&["runs", "retire", "--older-than", "0"]).spawn().unwrap(),
                5 => stage.tessera(&["runs", "collect", "--older-than", "0s"]).spawn().unwrap(),
                _ => {
                    let Some(run) = run_of(&stage.tessera(&["runs"]).output().unwrap()) else { continue };
                    stage.tessera(&["runs", "cancel", &run]).spawn().unwrap()
                }
            });
            std::thread::sleep(Duration::from_millis(dice(150)));
            if dice(2) == 0 {
                let mut killed = racing.swap_remove(dice(racing.len() as u64) as usize);
                killed.kill().unwrap();
                killed.wait().unwrap();
            }
        }
        for mut left in racing {
            left.kill().unwrap();
            left.wait().unwrap();
        }
        let (follower, worker) = (stage.submit(), stage.worker());
        let found = end_of(follower);
        assert_eq!(essence(&report(&found)), expected, "round {round}");
        drain(worker);
        // An active run that no submitter follows any more is called off; then all there is can be removed.
        while let Some(run) = run_of(&stage.tessera(&["runs"]).output().unwrap()) {
            stage.tessera(&["runs", "cancel", &run]).output().unwrap();
            // A submitter whose folder was collected under its hands calls its run off: that run has no folder.
            let collect: &[&str] = &["runs", "collect", "--older-than", "0s"];
            let retire: &[&str] = &["runs", "retire", "--older-than", "0", "--without-folder"];
            for verb in [collect, retire] {
                let ended = stage.tessera(verb).output().unwrap();
                let said =
                    [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
                assert_eq!(ended.status.code(), Some(0), "round {round}: {verb:?}: {said}");
                assert!(!said.contains("holds findings"), "round {round}: {said}");
            }
        }
        let collect = stage.tessera(&["runs", "collect", "--older-than", "0s"]).output().unwrap();
        let told = String::from_utf8_lossy(&collect.stdout).into_owned();
        assert!(!told.contains("holds findings"), "round {round}: {told}");
    }
}

#[test]
fn runs_and_shards_of_a_fleet_are_seen_by_their_tenant_alone() {
    let stage = Stage::new();
    let follower = stage.submit();
    let worker = stage.worker();
    let found = report(&end_of(follower));
    drain(worker);
    let run = found["run"].as_str().unwrap();
    let say = |verb: &[&str]| {
        let output = stage.tessera(verb).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, runs) = say(&["runs"]);
    assert!(code == Some(0) && runs.contains(run) && runs.contains("done"), "{runs}");
    let (code, shards) = say(&["shards", run]);
    assert!(code == Some(0) && shards.contains("[#") && shards.contains("# done"), "{shards}");
    assert_eq!(say(&["shards", "explain", run]).0, Some(0));
    assert_eq!(say(&["shards", "history", run, "0000000000000001"]).0, Some(0));
    let (_, others) = say(&["runs", "--tenant", "other"]);
    assert!(!others.contains(run), "{others}");
    assert_eq!(say(&["shards", run, "--tenant", "other"]).0, Some(2));
    // Ended runs are forgotten by age, with their findings.
    let (code, said) = say(&["runs", "retire", "--older-than", "0"]);
    assert!(code == Some(0) && said.starts_with('1'), "{said}");
    assert!(!say(&["runs"]).1.contains(run));
    assert!(!stage.findings.path().join(run).exists());
}

/// A worker for which something else is mounted over `path`: an empty file system, as where a mount is missing.
fn worker_with_empty(stage: &Stage, path: &std::path::Path) -> Child {
    let plain = stage.tessera(&["worker", "-j", "4"]);
    let mut command = Command::new("unshare");
    command.args(["-r", "-m", "sh", "-c", "mount -t tmpfs none \"$0\" && exec \"$@\""]).arg(path);
    command.arg(plain.get_program()).args(plain.get_args());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_worker_at_an_empty_mount_point_costs_nothing_beside_a_healthy_one() {
    let can_mount = Command::new("unshare").args(["-r", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]).output();
    if !can_mount.is_ok_and(|output| output.status.success()) {
        return test_support::skipped("this machine allows no mounts in a namespace of its own");
    }
    let stage = Stage::new();
    let expected = stage.expected();
    let follower = stage.submit();
    let blind = worker_with_empty(&stage, stage.tree.path());
    let say = |verb: &[&str]| String::from_utf8_lossy(&stage.tessera(verb).output().unwrap().stdout).into_owned();
    // Alone, it leaves items it cannot read to workers that may come; nothing counts as read.
    let run = until(|| say(&["runs"]).split_whitespace().find(|word| word.parse::<RunId>().is_ok()).map(str::to_owned));
    let healthy = stage.worker();
    let output = end_of(follower);
    let found = match output.status.code() {
        Some(1) => report(&output),
        // It was alone for long enough that everything was put aside: never clean, and the reason is told.
        code => {
            let told: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!((code, &told["receipt"]["complete"]), (Some(3), &Value::Bool(false)), "{told}");
            let parked = told["receipt"]["parked"][0].as_str().unwrap();
            assert!(parked.contains("is empty here") && parked.contains("reported by worker"), "{parked}");
            report(&end_of(stage.submit()))
        }
    };
    assert_eq!(essence(&found), essence(&expected), "run {run}");
    drain(healthy);
    drain(blind);
}
