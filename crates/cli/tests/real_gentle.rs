//! Submitters that follow and workers that wait cost the store little, whatever the size of the run: counted by etcd itself.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tessera_contracts::{TenantId, WorkerId};
use tessera_coordination::record::snapshot::AcquireScratch;
use tessera_coordination::{RunManagement as _, ShardClaiming as _};
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_coordination_etcd::{EtcdConfig, sync};
use tessera_scan::clock::wall_clock;
use tessera_scan::run::request::TENANT_DEFAULT;

/// How long reads are counted. What is allowed grows with the time that really passed.
const COUNTED: Duration = Duration::from_secs(20);

fn metrics(etcd: &EtcdCluster) -> String {
    let endpoint = etcd.endpoints()[0].clone();
    let mut stream = TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Ranges that etcd has read since it began.
fn ranges(etcd: &EtcdCluster) -> f64 {
    let text = metrics(etcd);
    let value = text.lines().find_map(|line| line.strip_prefix("etcd_debugging_mvcc_range_total "));
    value.expect("etcd counts ranges").trim().parse().unwrap()
}

/// Requests about keys that etcd has been sent since it began.
fn requests(etcd: &EtcdCluster) -> f64 {
    let of_keys = |line: &&str| line.starts_with("grpc_server_started_total{") && line.contains("etcdserverpb.KV\"");
    let values = metrics(etcd);
    values.lines().filter(of_keys).map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
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

/// A worker of three threads beside a run of so many shards, all of which another worker holds: requests a second, once it has
/// waited for a while.
fn requests_of_an_idle_worker(roots: &str, shards_min: usize) -> f64 {
    let etcd = EtcdCluster::start(1);
    let (tree, findings) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for file in 0..3 * roots.parse::<usize>().unwrap() {
        std::fs::write(tree.path().join(format!("f{file:02}")), "x = 1\n".repeat(200_000)).unwrap();
    }
    let url = format!("{}/fleet", etcd.endpoints()[0].replace("http://", "etcd://"));
    let tessera = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(args).args(["--coordinator", &url, "--findings"]).arg(findings.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let submitter = Children(vec![tessera(&["scan", "--lease", "3600", "-j", roots, tree.path().to_str().unwrap()])]);
    let mut holder = sync::connect(EtcdConfig::from_url(&url).unwrap()).unwrap();
    let (tenant, me, begun) = (TenantId::from_name(TENANT_DEFAULT), WorkerId::new(7), Instant::now());
    let (mut held, mut runs, mut scratch) = (0, Vec::new(), AcquireScratch::new());
    while held < shards_min {
        assert!(begun.elapsed() < Duration::from_secs(600), "{held} shards were registered");
        std::thread::sleep(Duration::from_millis(100));
        holder.list_runs_into(tenant, None, 1, &mut runs).unwrap();
        let Some(run) = runs.first() else { continue };
        while holder.claim_next_available(wall_clock(), tenant, run.run, me, &mut scratch).is_ok() {
            held += 1;
        }
    }
    drop(submitter);
    let _idle = Children(vec![tessera(&["worker", "-j", "3"])]);
    // By then it looks as rarely as it ever does.
    std::thread::sleep(Duration::from_secs(36));
    let (before, started) = (requests(&etcd), Instant::now());
    std::thread::sleep(Duration::from_secs(48));
    (requests(&etcd) - before) / started.elapsed().as_secs_f64()
}

#[test]
fn an_idle_worker_in_a_run_that_others_hold_asks_once_a_second_whatever_the_size_of_the_run() {
    let [small, large] = std::thread::scope(|scope| {
        [("1", 1), ("40", 60)]
            .map(|(roots, shards)| scope.spawn(move || requests_of_an_idle_worker(roots, shards)))
            .map(|counted| counted.join().unwrap())
    });
    eprintln!("{small:.2} requests a second beside a few shards, {large:.2} beside many");
    assert!(small > 0.0 && small <= 1.0, "{small} requests a second");
    assert!(large > 0.0 && large <= 1.0, "{large} requests a second");
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
