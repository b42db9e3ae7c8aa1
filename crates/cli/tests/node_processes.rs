//! `tessera node` and `tessera dht` as people run them: real processes on loopback, killed and restarted.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use node_support::{Place, exists, run, succeeded, until};
use rustix::process::Signal;
use tessera_dht_node::{Node, PeerAddr};

#[test]
fn a_node_without_flags_prints_the_exact_command_that_joins_it() {
    let place = Place::new();
    let first = place.node(&[]);
    let command = first.greeting.last().unwrap().trim();
    assert!(command.starts_with("tessera node --bootstrap "), "{command}");
    // As a shell would run it, with the program found by its name.
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_tessera")).parent().unwrap();
    let mut shell = std::process::Command::new("sh");
    shell.arg("-c").arg(format!("exec {command}"));
    shell.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    let second = place.start(shell);
    place.until_knows(&second, 1);
    let id = place.ask(&first, &["put"], b"hello");
    assert_eq!(place.ask(&second, &["get", &id], &[]), "hello");
}

#[test]
fn signals_end_a_node_cleanly_and_its_peers_are_told() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let place = Place::new();
        let first = place.node(&["--lanes", "1"]);
        let second = place.node(&["--lanes", "2", "--bootstrap", &first.address()]);
        place.until_knows(&first, 1);
        let socket = second.socket();
        assert!(exists(&socket));
        let (code, log) = second.end(signal);
        assert_eq!(code, Some(0));
        assert!(log.contains("stopping") && log.trim_end().ends_with("stopped"), "{log}");
        assert!(!exists(&socket), "the socket is gone");
        until("the other dropped it", || place.json(&first, &["status"])["contacts"] == 0);
        let timeouts = &place.json(&first, &["status"])["lanes"][0]["counters"]["request_timeouts"];
        assert_eq!(timeouts, 0, "and did not find out by waiting");
    }
}

#[test]
fn a_node_killed_at_any_time_restarts_with_its_state_and_another_number_of_lanes() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let data = place.path("data").display().to_string();
    let victim = place.node(&["--lanes", "2", "--data", &data, "--bootstrap", &first.address()]);
    place.until_knows(&first, 1);
    let identity = victim.id();
    let ids: Vec<String> = (0..12).map(|n| place.ask(&first, &["put"], format!("survives {n}").as_bytes())).collect();
    let film = "ab".repeat(32);
    place.ask(&victim, &["announce", &film], &[]);
    let (code, _) = victim.end(Signal::KILL);
    assert_eq!(code, None, "it had no chance to save anything");
    // The other is gone too: whatever is found now was in the victim's folder.
    drop(first);
    let again = place.node(&["--lanes", "3", "--data", &data]);
    assert_eq!(again.id(), identity);
    for (n, id) in ids.iter().enumerate() {
        assert_eq!(place.ask(&again, &["get", id], &[]), format!("survives {n}"));
    }
    let status = place.json(&again, &["status"]);
    let published: u64 =
        status["lanes"].as_array().unwrap().iter().map(|lane| lane["held"]["published"]["now"].as_u64().unwrap()).sum();
    assert_eq!(published, 1, "what it announced it announces again");
}

#[test]
fn thirty_two_nodes_in_five_processes_put_get_and_announce_through_a_kill() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let seed: PeerAddr = first.address().parse().unwrap();
    let mut processes: Vec<_> = (0..3)
        .map(|n| place.node(&["--lanes", if n == 0 { "2" } else { "1" }, "--bootstrap", &first.address()]))
        .collect();
    let inside: Vec<Node> = (0..28)
        .map(|_| Node::builder().lanes(1).bootstrap([seed]).configure(|config| config.tick_ms = 200).start().unwrap())
        .collect();
    for node in &inside {
        until("it has joined and looked around", || node.peers().wait().unwrap().len() >= 20);
    }
    let by_process = place.ask(&processes[0], &["put"], b"from a process");
    let by_library = inside[3].put(b"from the library".to_vec()).wait().unwrap();
    assert!(by_library.replicas >= 15, "{by_library:?}");
    let film = tessera_dht_node::ContentId::of_immutable(b"a film");
    inside[7].announce([film]).wait().unwrap();
    place.ask(&processes[1], &["announce", &film.to_string()], &[]);
    let (code, _) = processes.remove(2).end(Signal::KILL);
    assert_eq!(code, None);
    for node in &inside {
        assert_eq!(node.get(by_process.parse().unwrap()).wait().unwrap().bytes, b"from a process");
    }
    for process in [&first, &processes[0], &processes[1]] {
        assert_eq!(place.ask(process, &["get", &by_library.id.to_string()], &[]), "from the library");
        until("both providers are found", || {
            place.json(process, &["providers", &film.to_string()])["providers"].as_array().unwrap().len() == 2
        });
    }
}

#[test]
fn lanes_are_changed_and_outlive_a_panic_in_a_running_process() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let data = place.path("data").display().to_string();
    let args = ["--lanes", "1", "--data", &data, "--test-hooks", "--bootstrap", &first.address()];
    let mut node = place.node(&args);
    place.until_knows(&first, 1);
    let ids: Vec<String> = (0..10).map(|n| place.ask(&first, &["put"], format!("value {n}").as_bytes())).collect();
    let steer = |args: &[&str]| {
        let socket = node.socket();
        let mut all = vec!["node"];
        all.extend(args);
        all.extend(["--socket", &socket]);
        succeeded(run(place.tessera(&all), &[]))
    };
    for lanes in ["4", "3"] {
        steer(&["set-lanes", lanes]).unwrap();
        steer(&["inject-panic", "1"]).unwrap();
        for (n, id) in ids.iter().enumerate() {
            assert_eq!(place.ask(&node, &["get", id], &[]), format!("value {n}"));
        }
    }
    assert!(steer(&["relieve", "0", "0"]).unwrap_err().contains("lane 0 cannot help itself"));
    steer(&["relieve", "0", "2"]).unwrap();
    steer(&["merge-back"]).unwrap();
    assert!(steer(&["set-lanes", "0"]).unwrap_err().contains("lanes"));
    let top = String::from_utf8(steer(&["top", "--once", "--every", "0.1"]).unwrap()).unwrap();
    assert_eq!(top.lines().filter(|line| line.starts_with("   ")).count(), 3, "a row for each lane: {top}");
    assert!(node.is_running());
    assert!(
        place.tessera(&["node", "inject-panic", "0", "--socket", &first.socket()]).output().unwrap().status.code()
            == Some(2)
    );
}

#[test]
fn peers_that_hang_delay_a_lookup_but_do_not_fail_it() {
    let place = Place::new();
    let first = place.node(&["--lanes", "1"]);
    let others: Vec<_> = (0..4).map(|_| place.node(&["--lanes", "1", "--bootstrap", &first.address()])).collect();
    for other in &others {
        place.until_knows(other, 4);
    }
    let id = place.ask(&others[0], &["put"], b"still there");
    others[1].signal(Signal::STOP);
    others[2].signal(Signal::STOP);
    let other = place.ask(&others[0], &["put"], b"stored despite them");
    for id in [&id, &other] {
        assert!(place.dht(&others[3], &["get", id], &[]).is_ok());
    }
}
