//! Metrics and health of a node, and that scrapers cannot hold it up.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::JoinHandle;
use std::time::Duration;

use node_support::{PATIENCE, Place, Process, run_within, until};
use rustix::process::Signal;

fn address(node: &Process) -> String {
    node.metrics().trim_start_matches("http://").trim_end_matches("/metrics").to_owned()
}

/// Sends these bytes and reads the answer, for as long as any test waits.
fn asked(addr: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn fetch(addr: &str, path: &str) -> String {
    asked(addr, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

/// A request that comes a byte now and then and has no end; it ends when the other side does.
fn drip(addr: &str) -> JoinHandle<()> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ").unwrap();
    std::thread::spawn(move || {
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    })
}

#[test]
fn metrics_and_health_are_served_with_the_documented_names() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let node = place.node(&["--lanes", "2", "--metrics", "127.0.0.1:0", "--bootstrap", &first.address()]);
    let addr = address(&node);
    until("it is healthy", || fetch(&addr, "/health").starts_with("HTTP/1.1 200"));
    let metrics = fetch(&addr, "/metrics");
    let served: BTreeSet<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_whitespace().next()).collect();
    let page = include_str!("../../../docs/METRICS.md");
    let documented: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let documented: BTreeSet<&str> =
        documented.into_iter().filter(|name| !name.starts_with("tessera_worker_")).collect();
    assert_eq!(served, documented, "served names, and those of docs/METRICS.md");
    assert!(served.contains("tessera_dht_requests_served_total") && served.len() > 30, "{served:?}");
    // Of a lane, unless the page says that it is of the node.
    for name in served {
        let sample = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` "))).unwrap();
        let is_of_node = row.contains("(of the node)");
        assert_eq!(!sample.is_empty() && !sample.contains("lane=\""), is_of_node, "{row} {sample}");
    }
    assert!(fetch(&addr, "/nothing").starts_with("HTTP/1.1 404"));
}

#[test]
fn requests_of_simple_clients_are_understood() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1", "--metrics", "127.0.0.1:0"]);
    let addr = address(&node);
    for request in
        ["GET /metrics HTTP/1.0\n\n", "GET /metrics HTTP/1.1\nHost: x\n\n", "GET /metrics?x=1 HTTP/1.1\r\n\r\n"]
    {
        // Its end is seen: one whose end is waited for until its time is over gets no answer.
        let answer = asked(&addr, request);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("tessera_dht_up "), "{request:?}: {answer}");
    }
    assert!(asked(&addr, "GET /health HTTP/1.0\n\n").contains("no live contacts"));
}

#[test]
fn slow_clients_delay_neither_others_nor_the_end_and_are_given_up() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1", "--metrics", "127.0.0.1:0"]);
    let addr = address(&node);
    let scrape = || assert!(fetch(&addr, "/metrics").starts_with("HTTP/1.1 200"));
    let given_up = |slow: Vec<JoinHandle<()>>| slow.into_iter().for_each(|slow| slow.join().unwrap());
    // A few are served beside others: none of them has had its time when the next one has its answer.
    until("one is served beside the slow", || {
        let few: Vec<_> = (0..3).map(|_| drip(&addr)).collect();
        scrape();
        let beside = few.iter().all(|slow| !slow.is_finished());
        given_up(few);
        beside
    });
    // Many have had theirs after a while. Each is given up, whether it says a little or nothing.
    let many: Vec<_> = (0..12).map(|_| drip(&addr)).collect();
    scrape();
    given_up(many);
    let mut silent = TcpStream::connect(&addr).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(silent.read(&mut [0; 1]).unwrap_or(0), 0);
    let slow: Vec<_> = (0..12).map(|_| drip(&addr)).collect();
    assert_eq!(node.ends_within(PATIENCE, Signal::TERM), Some(0));
    given_up(slow);
}

#[test]
fn a_port_that_is_taken_is_told_with_a_way_out() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let (code, error) = run_within(place.tessera(&["node", "--lanes", "1", "--metrics", &addr]), PATIENCE);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains(&addr) && error.contains("choose another address with --metrics"), "{error}");
    assert_eq!(error.matches("--metrics").count(), 1, "it is told once: {error}");
}
