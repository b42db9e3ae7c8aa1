//! Submitters that follow and workers that wait cost the store little, whatever the size of the run: counted by etcd itself.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tessera_coordination_etcd::test_support::EtcdCluster;

/// How long reads are counted. What is allowed grows with the time that really passed.
const COUNTED: Duration = Duration::from_secs(20);

/// Ranges that etcd has read since it began.
fn ranges(etcd: &EtcdCluster) -> f64 {
    let endpoint = etcd.endpoints()[0].clone();
    let mut stream = TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix("etcd_debugging_mvcc_range_total "));
    value.expect("etcd counts ranges").trim().parse().unwrap()
}

/// Programs that are ended with the test.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_follower_and_idle_workers_read_little_whatever_the_size_of_the_run() {
    let etcd = EtcdCluster::start(1);
    let (tree, findings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for file in 0..48 {
        std::fs::write(tree.path().join(format!("f{file:02}")), "x = 1\n".repeat(200_000)).unwrap();
    }
    let url = format!("{}/fleet", etcd.endpoints()[0].replace("http://", "etcd://"));
    let tessera = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(args).args(["--coordinator", &url, "--findings"]).arg(findings.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut children = Children(vec![tessera(&["scan", "-j", "16", tree.path().to_str().unwrap()])]);
    // Registered: each root has a key, and the plan lies in the folder.
    let shards = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(["runs", "--json", "--coordinator", &url, "--findings"]).arg(findings.path());
        let listed: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        listed["runs"][0]["shards"]["open"].as_u64().unwrap_or(0)
    };
    let begun = Instant::now();
    while shards() < 40 {
        assert!(begun.elapsed() < Duration::from_secs(600), "the run was not registered");
        std::thread::sleep(Duration::from_millis(200));
    }
    // What one follower and two workers of three threads each read together.
    for _ in 0..2 {
        children.0.push(tessera(&["worker", "-j", "3", "--tenant", "other"]));
    }
    // The workers have logged in, and have looked for the first time.
    std::thread::sleep(Duration::from_secs(5));
    let (before, started) = (ranges(&etcd), Instant::now());
    std::thread::sleep(COUNTED);
    let read = ranges(&etcd) - before;
    let seconds = started.elapsed().as_secs_f64();
    let allowed = (2.0 + 1.0 + 1.0) * seconds + 8.0;
    eprintln!("{read} ranges in {seconds:.1} s, {allowed:.0} are allowed");
    assert!(read <= allowed, "{read} ranges in {seconds:.1} s");
    assert!(read >= 1.0, "nothing was counted");
}
