//! Reports to an operator: traces in files, and alarms in every view.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use node_support::{PATIENCE, Place, run, succeeded, until};
use rustix::process::Signal;

#[test]
fn a_lane_that_hangs_is_replaced_and_what_died_with_it_raises_an_alarm_everywhere() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let address = first.address();
    let mut node = place.node(&["--lanes", "3", "--metrics", "127.0.0.1:0", "--test-hooks", "--bootstrap", &address]);
    place.until_knows(&node, 1);
    let id = place.ask(&node, &["put"], b"outlives it");
    let steer = |args: &[&str]| {
        let socket = node.socket();
        let mut all = vec!["node"];
        all.extend(args);
        all.extend(["--socket", &socket]);
        String::from_utf8(succeeded(run(place.tessera(&all), &[])).unwrap()).unwrap()
    };
    let status = || place.json(&node, &["status"]);
    assert_eq!(status()["alarms"], serde_json::json!([]), "all is well");
    // While lane 1 hangs, lane 2's successor introduces itself to it: these messages are lost with lane 1.
    steer(&["inject-stall", "1", "3000"]);
    steer(&["inject-panic", "2"]);
    until("the alarm stands", || status()["alarms"].as_array().unwrap().len() == 1);
    let alarm = status()["alarms"][0].as_str().unwrap().to_owned();
    assert!(alarm.contains("control messages were dropped"), "{alarm}");
    let top = steer(&["top", "--once", "--every", "0.1"]);
    assert!(top.contains("ALARM  ") && top.contains("control messages were dropped"), "{top}");
    let url = node.metrics();
    let fetch = |path: &str| {
        let mut stream = TcpStream::connect(url.trim_start_matches("http://").trim_end_matches("/metrics")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let metrics = fetch("/metrics");
    assert!(metrics.lines().any(|line| line == "tessera_lane_alarms 1"), "{metrics}");
    let health = fetch("/health");
    assert!(health.lines().any(|line| line.starts_with("alarm: ") && line.contains("were dropped")), "{health}");
    assert_eq!(place.ask(&node, &["get", &id], &[]), "outlives it");
    assert!(node.is_running());
    let log = || std::fs::read_to_string(&node.log).unwrap();
    until("the log says so too", || log().contains("alarm: "));
    assert!(log().contains("stalled for more than"), "{}", log());
}

#[test]
fn a_lane_that_hangs_does_not_keep_a_node_from_ending() {
    let place = Place::new();
    let node = place.node(&["--lanes", "2", "--test-hooks"]);
    let stall = place.tessera(&["node", "inject-stall", "1", "3600000", "--socket", &node.socket()]);
    succeeded(run(stall, &[])).unwrap();
    // The node asks its lanes how they are once a second: by now it waits for this one, which hangs for longer than any test does.
    std::thread::sleep(Duration::from_millis(1500));
    let log = node.log.clone();
    assert_eq!(node.ends_within(PATIENCE, Signal::TERM), Some(0));
    assert!(std::fs::read_to_string(&log).unwrap().contains("stopping"));
}

#[test]
fn traces_are_written_to_files_and_name_no_node() {
    let place = Place::new();
    let (config, traces) = (place.path("node.toml"), place.path("traces"));
    let text = format!("lanes = 1\ntrace-every = 1\ntrace-dir = \"{}\"\n", traces.display());
    std::fs::write(&config, text).unwrap();
    let node = place.node(&["--config", config.to_str().unwrap()]);
    let other = place.node(&["--lanes", "1", "--bootstrap", &node.address()]);
    place.until_knows(&other, 1);
    place.ask(&other, &["put"], b"a confidential business plan");
    let written = || std::fs::read_to_string(traces.join("trace.jsonl")).unwrap();
    until("datagrams are traced", || written().contains("\"event\":\"datagram\""));
    let (code, log) = node.end(Signal::TERM);
    assert_eq!(code, Some(0));
    let written = written();
    for line in written.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(event["at_us"].is_u64() && event["lane"] == 0, "{line}");
    }
    for secret in ["127.0.0.1", &other.id(), "business"] {
        assert!(!written.contains(secret) && !log.contains(secret), "{secret} in {written}\n{log}");
    }
}
