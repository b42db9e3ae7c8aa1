//! Two real workers share runs: a small one that is submitted beside a huge one is begun in the middle of the huge one's shards.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tessera_contracts::TenantId;
use tessera_coordination::RunManagement as _;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};
use tessera_coordination_etcd::test_support::EtcdCluster;
use tessera_coordination_etcd::{EtcdConfig, sync};
use tessera_scan::clock::wall_clock;
use tessera_scan::run::request::TENANT_DEFAULT;

const PATIENCE: Duration = Duration::from_secs(600);

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

/// As many files of so many lines each, which take no more room than one.
fn files(dir: &Path, count: usize, lines: usize) {
    let first = dir.join("f0");
    std::fs::write(&first, "fn main() { println!(\"hello, world\"); }\n".repeat(lines)).unwrap();
    for file in 1..count {
        std::fs::hard_link(&first, dir.join(format!("f{file}"))).unwrap();
    }
}

#[test]
fn a_small_run_beside_a_huge_one_does_not_wait_for_the_end_of_a_shard() {
    let etcd = EtcdCluster::start(1);
    let [huge, small, findings] = [0; 3].map(|_| tempfile::tempdir().unwrap());
    files(huge.path(), 20_000, 25_000);
    files(small.path(), 5, 100);
    let url = format!("{}/fleet", etcd.endpoints()[0].replace("http://", "etcd://"));
    let command = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(args).args(["--coordinator", &url, "--findings"]).arg(findings.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let path = |dir: &tempfile::TempDir| dir.path().canonicalize().unwrap().to_str().unwrap().to_owned();
    let run_of = |target: &str| -> Option<Value> {
        let listed = command(&["runs", "--json"]).stdout(Stdio::piped()).output().unwrap();
        let listed: Value = serde_json::from_slice(&listed.stdout).ok()?;
        listed["runs"].as_array()?.iter().find(|run| run["targets"][0] == target).cloned()
    };
    let mut children = Children(Vec::new());
    children.0.push(command(&["scan", "-q", "-j", "8", &path(&huge)]).spawn().unwrap());
    for _ in 0..2 {
        children.0.push(command(&["worker", "-j", "1"]).spawn().unwrap());
    }
    let begun = Instant::now();
    while run_of(&path(&huge)).is_none_or(|run| run["items"].as_u64().unwrap_or(0) == 0) {
        assert!(begun.elapsed() < PATIENCE, "the huge run did not begin");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ended = command(&["scan", "-q", "-j", "1", &path(&small)]).status().unwrap();
    assert_eq!(ended.code(), Some(0));
    let shards = shards_of(&url, run_of(&path(&huge)).unwrap()["run"].as_str().unwrap());
    assert_eq!(run_of(&path(&small)).unwrap()["state"], "done");
    let left = run_of(&path(&huge)).unwrap();
    assert!(left["shards"]["open"].as_u64().unwrap() > 0, "the small one had to wait for it: {left}");
    // No worker stopped or died. So a shard that was acquired and is not held, or that was acquired again, was handed back.
    let handed_back = |shard: &&ShardSummary| {
        let is_free = shard.status == ShardStatus::Active && shard.lease.is_none();
        shard.acquire_count > u64::from(!is_free)
    };
    let handed_back: Vec<_> = shards.iter().filter(handed_back).collect();
    assert!(!handed_back.is_empty(), "a thread finished its shard first: {shards:#?}");
    // It goes on where it was.
    assert!(handed_back.iter().all(|shard| shard.stalled_acquisitions <= 1), "{handed_back:#?}");
}

/// The shards of a run.
fn shards_of(url: &str, run: &str) -> Vec<ShardSummary> {
    let mut backend = sync::connect(EtcdConfig::from_url(url).unwrap()).unwrap();
    let (tenant, page, mut shards) = (TenantId::from_name(TENANT_DEFAULT), ShardPage::first(1_000), Vec::new());
    let (now, filter) = (wall_clock(), ShardFilter::default());
    backend.list_shards_into(now, tenant, run.parse().unwrap(), &filter, page, &mut shards).unwrap();
    shards
}
