//! A fleet of two worker processes on a real etcd, and a file that kills each of them whenever it is opened.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

mod poison;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tessera_coordination_etcd::test_support::EtcdCluster;

/// Longer than a fleet takes that dies again and again, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(600);

#[test]
fn a_file_that_kills_all_workers_is_named_and_all_other_places_are_reported() {
    let (dir, findings, tree) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let library = poison::library(dir.path());
    let places = poison::tree(tree.path(), 1_200);
    let killers = ["d03/f0300-killer", "d17/f0900-killer"].map(|path| poison::killer(tree.path(), path));
    let etcd = EtcdCluster::start(1);
    let url = format!("{}/poison", etcd.endpoints()[0].replace("http://", "etcd://"));
    let tessera = |verb: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(verb).args(["--coordinator", &url, "--findings"]).arg(findings.path());
        command.stdin(Stdio::null());
        command
    };
    let worker = || start_worker(tessera(&["worker", "-j", "2"]), &library);

    let mut submit = tessera(&["scan", "--format", "json", "--lease", "2", "-j", "4"]);
    let report = dir.path().join("report");
    submit.arg(tree.path()).stdout(std::fs::File::create(&report).unwrap()).stderr(Stdio::inherit());
    let mut submit = submit.spawn().unwrap();
    let mut workers = [worker(), worker()];
    let (started, mut deaths) = (Instant::now(), 0);
    let code = loop {
        if let Some(status) = submit.try_wait().unwrap() {
            break status.code().unwrap();
        }
        for dead in workers.iter_mut() {
            if dead.try_wait().unwrap().is_some() {
                deaths += 1;
                *dead = worker();
            }
        }
        if started.elapsed() > PATIENCE {
            submit.kill().unwrap();
            workers.iter_mut().for_each(|worker| worker.kill().unwrap());
            panic!("no report after {deaths} deaths");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let receipt = &report["receipt"];
    assert_eq!(poison::places(&report), places, "after {deaths} deaths: {receipt:#}");
    assert_eq!(poison::named(&report), killers.iter().cloned().collect(), "after {deaths} deaths: {receipt:#}");
    assert_eq!((&receipt["complete"], &receipt["shards"]["parked"]), (&false.into(), &0.into()), "{receipt:#}");
    assert_eq!(code, 1);
    assert!(deaths >= 4, "only {deaths} workers died");
}

fn start_worker(mut command: Command, library: &Path) -> Child {
    command.env("LD_PRELOAD", library).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
