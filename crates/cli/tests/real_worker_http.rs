//! What a worker serves over HTTP, with a real etcd that goes away and comes back.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use prometheus_parse::{Scrape, Value};
use tessera_coordination_etcd::test_support::EtcdCluster;

const PATIENCE: Duration = Duration::from_secs(600);

struct Stage {
    etcd: EtcdCluster,
    findings: tempfile::TempDir,
}

/// A worker that is ended with the test, and where it serves.
struct Worker {
    child: Child,
    address: String,
    log: BufReader<ChildStderr>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Stage {
    fn new() -> Self {
        Self { etcd: EtcdCluster::start(1), findings: tempfile::tempdir().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let url = format!("{}/fleet", self.etcd.endpoints()[0].replace("http://", "etcd://"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tessera"));
        command.args(args).args(["--give-up-after", "600", "--coordinator", &url, "--findings"]);
        command.arg(self.findings.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn worker(&self, args: &[&str]) -> Worker {
        let args =
            [&["worker", "-j", "1", "--http", "127.0.0.1:0", "--log", "json", "--name", "rack3-\"b\""], args].concat();
        let mut child = self.command(&args).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let address = loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended");
            let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(entry["worker"], "rack3-\"b\"");
            let message = entry["message"].as_str().unwrap();
            if let Some(address) = message.strip_prefix("metrics at http://") {
                break address.split('/').next().unwrap().to_owned();
            }
        };
        Worker { child, address, log }
    }
}

impl Worker {
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn scrape(&self) -> Scrape {
        let (status, text) = self.get("/metrics");
        assert_eq!(status, 200);
        Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap()
    }

    fn counter(&self, name: &str) -> f64 {
        let scrape = self.scrape();
        let sample = scrape.samples.iter().find(|sample| sample.metric == name).unwrap_or_else(|| panic!("{name}"));
        match sample.value {
            Value::Counter(value) | Value::Gauge(value) => value,
            ref other => panic!("{name}: {other:?}"),
        }
    }

    /// Reads the log until an entry with these words.
    fn wait_for(&mut self, words: &str) -> serde_json::Value {
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "it ended without saying: {words}");
            let entry: serde_json::Value = serde_json::from_str(&line).unwrap();
            if entry["message"].as_str().unwrap().contains(words) {
                return entry;
            }
        }
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn metrics_have_the_documented_names_and_types_and_a_parser_reads_them() {
    let stage = Stage::new();
    let worker = stage.worker(&[]);
    until("it is ready", || worker.get("/ready").0 == 200);
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("a"), "plain text\n").unwrap();
    let scanned = stage.command(&["scan", tree.path().to_str().unwrap()]).output().unwrap();
    assert_eq!(scanned.status.code(), Some(0), "{}", String::from_utf8_lossy(&scanned.stderr));
    until("its one shard is counted", || worker.counter("tessera_worker_items_total") >= 1.0);

    let (_, text) = worker.get("/metrics");
    let page = include_str!("../../../docs/METRICS.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `tessera_worker_"));
    let documented: BTreeSet<(String, String)> = rows
        .map(|row| {
            let mut cells = row.split('|');
            let name = format!("tessera_worker_{}", cells.next().unwrap().trim().trim_end_matches('`'));
            (name, cells.next().unwrap().trim().to_owned())
        })
        .collect();
    let served: BTreeSet<(String, String)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    assert_eq!(served, documented, "served names, and those of docs/METRICS.md");
    for (name, kind) in &served {
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} {kind}");
    }
    let scrape = worker.scrape();
    let read: BTreeSet<&str> = scrape.samples.iter().map(|sample| sample.metric.as_str()).collect();
    for (name, kind) in &served {
        assert!(read.contains(name.as_str()), "the parser does not see the {kind} {name}");
    }
    let untyped = scrape.samples.iter().find(|sample| {
        matches!(sample.value, Value::Untyped(_))
            && !sample.metric.ends_with("_sum")
            && !sample.metric.ends_with("_count")
    });
    assert!(untyped.is_none(), "{untyped:?}");
    let info = scrape.samples.iter().find(|sample| sample.metric == "tessera_worker_info").unwrap();
    assert!(info.labels.get("name").unwrap().contains("rack3-"));
    assert_eq!(worker.counter("tessera_worker_invariant_panics_total"), 0.0);
    assert_eq!((worker.get("/health").0, worker.get("/nothing").0), (200, 404));
}

#[test]
fn a_worker_is_not_ready_while_its_coordinator_or_its_folder_cannot_be_used_and_says_so() {
    let mut stage = Stage::new();
    let mut worker = stage.worker(&[]);
    until("it is ready", || worker.get("/ready").0 == 200);
    stage.etcd.kill(0);
    until("the outage shows", || worker.get("/ready").0 == 503);
    assert!(worker.get("/ready").1.contains("coordinator"), "{:?}", worker.get("/ready"));
    assert_eq!(worker.get("/health").0, 200, "it lives, and must not be restarted for it");
    assert_eq!(worker.wait_for("the coordinator cannot be used")["level"], "warning");
    stage.etcd.restart(0);
    until("the end of the outage shows", || worker.get("/ready").0 == 200);
    worker.wait_for("the coordinator answers again");
    assert!(worker.counter("tessera_worker_coordinator_outages_total") >= 1.0);
    assert!(worker.counter("tessera_worker_coordinator_retries_total") >= 1.0);

    let moved = stage.findings.path().with_extension("moved");
    std::fs::rename(stage.findings.path(), &moved).unwrap();
    let (status, why) = worker.get("/ready");
    assert_eq!((status, why.contains("the folder for findings")), (503, true), "{why}");
    std::fs::rename(&moved, stage.findings.path()).unwrap();
    assert_eq!(worker.get("/ready").0, 200);
    // For root every folder is writable.
    if !rustix::process::geteuid().is_root() {
        std::fs::set_permissions(stage.findings.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
        let (status, why) = worker.get("/ready");
        std::fs::set_permissions(stage.findings.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!((status, why.contains("mode 0500")), (503, true), "{why}");
    }
}

#[test]
fn a_taken_port_is_an_error_that_names_it() {
    let stage = Stage::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let ended = stage.command(&["worker", "--http", &address]).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(said.contains(&address) && said.contains("another port with --http"), "{said}");
}
