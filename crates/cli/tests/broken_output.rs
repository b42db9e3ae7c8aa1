//! Output that cannot be written: the disk is full, or the reader is gone.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::fs::File;
use std::process::{Command, Output, Stdio};

use node_support::Place;
use rustix::process::Signal;

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_node_goes_on_without_its_log() {
    let place = Place::new();
    for format in ["text", "json"] {
        for stderr in [full(), Stdio::piped()] {
            let command = place.tessera(&["node", "--lanes", "1", "--log", format]);
            let mut node = place.start_logging_to(command, stderr, place.new_log());
            let id = place.ask(&node, &["put"], b"kept all the same");
            assert_eq!(place.ask(&node, &["get", &id], &[]), "kept all the same");
            assert!(node.is_running());
            let socket = node.socket();
            assert_eq!(node.end(Signal::TERM).0, Some(0));
            assert!(!node_support::exists(&socket), "it ended in good order");
        }
    }
}

#[test]
fn a_node_goes_on_though_no_process_reads_its_greeting() {
    let place = Place::new();
    let mut command = place.tessera(&["node", "--lanes", "1"]);
    let mut node = command.stdout(full()).stderr(Stdio::null()).spawn().unwrap();
    let status = || place.tessera(&["dht", "status"]).output().unwrap();
    node_support::until("it is there", || status().status.success());
    rustix::process::kill_process(rustix::process::Pid::from_child(&node), Signal::TERM).unwrap();
    assert!(node.wait().unwrap().success());
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure_in_words() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let socket = node.socket();
    let id = place.ask(&node, &["put"], b"a value");
    let nothing = "ef".repeat(32);
    let run = |mut command: Command| command.stdin(Stdio::null()).stdout(full()).output().unwrap();
    for args in [
        vec!["dht", "status"],
        vec!["dht", "get", &id],
        vec!["dht", "--json", "status"],
        vec!["dht", "--json", "get", &nothing],
        vec!["node", "set-lanes", "1"],
        vec!["node", "top", "--once", "--every", "0.1"],
        vec!["completions", "bash"],
    ] {
        let mut all = args.clone();
        if args[0] != "completions" {
            all.extend(["--socket", &socket]);
        }
        let output = run(place.tessera(&all));
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot write to standard output"), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn words_beside_an_answer_that_cannot_be_written_are_left_out() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let _second = place.node(&["--lanes", "1", "--bootstrap", &node.address()]);
    let (socket, nothing) = (node.socket(), "ef".repeat(32));
    let code = |args: &[&str]| {
        let output = place.tessera(args).stdin(Stdio::null()).stderr(full()).output().unwrap();
        (output.status.code(), output.stdout)
    };
    assert_eq!(code(&["dht", "--socket", &socket, "put"]).0, Some(0), "how well it is stored is said beside its id");
    assert_eq!(code(&["dht", "status"]).0, Some(0), "which of the nodes is asked is said beside its answer");
    assert_eq!(code(&["dht", "--socket", &socket, "--explain", "get", &nothing]), (Some(1), vec![]));
    let (exit, answer) = code(&["dht", "--socket", &socket, "--json", "get", &nothing]);
    assert_eq!(exit, Some(1));
    assert!(String::from_utf8(answer).unwrap().contains("not_found"));
    assert_eq!(code(&["dht", "--socket", "/no/such/socket", "status"]).0, Some(2));
    assert_eq!(code(&["node", "--config", "/no/such/file"]).0, Some(2));
    assert_eq!(code(&["scan", "/no/such/folder"]).0, Some(2));
}

#[test]
fn a_reader_that_has_seen_enough_ends_a_live_view() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let mut command = place.tessera(&["node", "top", "--every", "0.1", "--socket", &node.socket()]);
    let mut top = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(top.stdout.take());
    assert!(top.wait().unwrap().success());
}
