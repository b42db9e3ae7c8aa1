//! A fleet on a real etcd: workers that are killed, drained and put to sleep, and a coordinator that goes away.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tessera_contracts::RunId;
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_scan::sink::merge;

/// A tree, a folder for findings, and an etcd in a namespace of its own.
struct Stage {
    etcd: EtcdCluster,
    tree: tempfile::TempDir,
    findings: tempfile::TempDir,
    url: String,
}

const FILES: u64 = 1_500;
const SECRETS: usize = 30;

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
        Self { etcd, tree, findings, url }
    }

    fn tessera(&self, verb: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(verb).args(["--coordinator", &self.url, "--findings"]).arg(self.findings.path());
        command.args(["--give-up-after", "2"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn submit(&self) -> Child {
        self.tessera(&["scan", "--format", "json", "--lease", "2", "-j", "8"]).arg(self.tree.path()).spawn().unwrap()
    }

    fn worker(&self) -> Child {
        self.tessera(&["worker", "-j", "1"]).spawn().unwrap()
    }

    /// The folder of the only run, once it is there.
    fn run_folder(&self) -> std::path::PathBuf {
        let started = Instant::now();
        loop {
            let entries = std::fs::read_dir(self.findings.path()).unwrap().flatten();
            if let Some(folder) = entries.map(|entry| entry.path()).find(|path| path.join("findings").is_dir()) {
                return folder.join("findings");
            }
            assert!(started.elapsed() < Duration::from_secs(60), "no run after a minute");
            std::thread::sleep(Duration::from_millis(5));
        }
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
            assert!(started.elapsed() < Duration::from_secs(60), "{} of {count} wrote after a minute", writers());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What one uninterrupted run on this machine reports.
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

/// What must not depend on who did the work, and how often it was interrupted.
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
        if watched.recv_timeout(Duration::from_secs(100)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
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
    let expected = stage.expected();
    assert_eq!(expected["findings"].as_array().unwrap().len(), SECRETS);
    let follower = stage.submit();
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
    // What the drained one did counts; only the killed one can leave a segment that was not checkpointed.
    let merged = merge(&stage.run_folder()).unwrap();
    assert!(merged.superseded <= 1, "{} segments were done again", merged.superseded);
    assert_eq!((merged.tally.scanned, merged.occurrences.len()), (FILES, SECRETS));
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
    // Nobody has begun. For whoever claims a shard now, its target is gone.
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
        assert!(started.elapsed() < Duration::from_secs(60), "no answer after a minute");
        std::thread::sleep(Duration::from_millis(50));
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
    // Ended runs are forgotten by age, with what they found.
    let (code, said) = say(&["runs", "retire", "--older-than", "0"]);
    assert!(code == Some(0) && said.starts_with('1'), "{said}");
    assert!(!say(&["runs"]).1.contains(run));
    assert!(!stage.findings.path().join(run).exists());
}
