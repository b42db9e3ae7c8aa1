//! One side is silent: a node that hangs, or callers that hold a connection and ask for nothing.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::io::Write as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;

use node_support::{PATIENCE, Place, run_within};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;

/// Every one of these ends by itself and says which node does not answer.
fn all_report_silence(commands: Vec<Command>, socket: &str) {
    std::thread::scope(|scope| {
        for command in commands {
            scope.spawn(move || {
                let asked = format!("{command:?}");
                let (code, error) = run_within(command, PATIENCE);
                assert_eq!(code, Some(2), "{asked}: {error}");
                assert!(error.contains(&format!("the node at {socket} does not answer")), "{asked}: {error}");
                assert!(error.contains("start it again"), "it says what to do: {error}");
            });
        }
    });
}

#[test]
fn a_call_to_a_stopped_node_is_told_so() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let (socket, large) = (node.socket(), place.path("large"));
    std::fs::write(&large, vec![7; 4 << 20]).unwrap();
    node.signal(Signal::STOP);
    let commands = vec![
        place.tessera(&["dht", "status"]),
        place.tessera(&["dht", "status", "--socket", &socket]),
        place.tessera(&["dht", "put", large.to_str().unwrap(), "--socket", &socket]),
        place.tessera(&["node", "set-lanes", "2", "--socket", &socket]),
        place.tessera(&["node", "top", "--once", "--socket", &socket]),
        place.tessera(&["node", "top", "--socket", &socket]),
    ];
    all_report_silence(commands, &socket);
    node.signal(Signal::CONT);
    assert!(place.ask(&node, &["status"], &[]).contains("lanes "), "it is none the worse for it");
}

#[test]
fn a_socket_whose_owner_never_answers_is_given_up() {
    let place = Place::new();
    let silent = place.path("silent.sock").display().to_string();
    let _silent = UnixListener::bind(&silent).unwrap();
    all_report_silence(vec![place.tessera(&["dht", "status", "--socket", &silent])], &silent);
    // Worse: not even a connection is to be had.
    let full = place.path("full.sock").display().to_string();
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(full.as_str()).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let _waiting = UnixStream::connect(&full).unwrap();
    all_report_silence(vec![place.tessera(&["dht", "status", "--socket", &full])], &full);
}

#[test]
fn connections_without_a_request_do_not_keep_others_out() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let mut idle: Vec<UnixStream> = (0..64).map(|_| UnixStream::connect(node.socket()).unwrap()).collect();
    // Some have begun to ask and go no further.
    for caller in &mut idle[..8] {
        caller.write_all(&[9]).unwrap();
    }
    let status = place.tessera(&["dht", "status", "--socket", &node.socket()]);
    let (code, error) = run_within(status, PATIENCE);
    assert_eq!(code, Some(0), "{error}");
}
