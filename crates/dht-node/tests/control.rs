//! Requests to a node over its socket.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use support::{builder, network, until};
use tessera_dht_node::control::client::{CallError, Client};
use tessera_dht_node::control::server::Server;

struct Served {
    server: Server,
    _dir: tempfile::TempDir,
}

impl Served {
    fn new(node: &tessera_dht_node::Node) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(node, &dir.path().join("run/node.sock")).unwrap();
        Self { server, _dir: dir }
    }

    fn ask(&self, request: &Value, body: &[u8]) -> Result<Value, CallError> {
        let mut client = Client::connect(self.server.path()).unwrap();
        client.call(request, body, |_, _| {}).map(|(answer, _)| answer)
    }
}

fn kind(result: Result<Value, CallError>) -> String {
    match result {
        Err(CallError::Refused(refused)) => refused.kind,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn a_key_and_an_unsigned_version_are_refused() {
    let node = network(1, 1).remove(0);
    let served = Served::new(&node);
    let with_seed = json!({ "op": "put-mutable", "name": "motd", "seed": "ab".repeat(32) });
    assert_eq!(kind(served.ask(&with_seed, b"value")), "bad_request");
    use tessera_dht::identity::Identity;
    use tessera_dht_node::mutable::{Version, signed};
    let ttl = std::time::Duration::from_secs(3600);
    let version = Version { name: "motd", sequence: 1, ttl, value: Some(b"value") };
    let record = signed(&Identity::from_seed(&[7; 32]), node.network(), &version).unwrap();
    let put = json!({ "op": "put-signed" });
    for at in [record.len() - 1, record.len() / 2] {
        let mut forged = record.clone();
        forged[at] ^= 1;
        assert_eq!(kind(served.ask(&put, &forged)), "failed");
    }
    let elsewhere = signed(&Identity::from_seed(&[7; 32]), "another", &version).unwrap();
    assert_eq!(kind(served.ask(&put, &elsewhere)), "failed", "it was signed for another network");
    let immutable = tessera_dht::record::immutable_record(b"value", 3600).unwrap();
    assert_eq!(kind(served.ask(&put, &immutable)), "failed");
    assert_eq!(served.ask(&put, &record).unwrap()["sequence"], 1);
    let other = signed(&Identity::from_seed(&[7; 32]), node.network(), &Version { value: Some(b"other"), ..version });
    assert_eq!(kind(served.ask(&put, &other.unwrap())), "outdated");
}

/// Two nodes, of which the second takes so few requests a second that a large value takes long.
fn slow() -> [tessera_dht_node::Node; 2] {
    let holder = builder().lanes(1).configure(|config| {
        config.abuse.per_peer_per_sec = 200;
        config.abuse.burst_secs = 1;
    });
    let holder = holder.start().unwrap();
    let node = builder().lanes(2).bootstrap([holder.address()]).start().unwrap();
    until("they know each other", || node.status().wait().unwrap().contacts() == 1);
    [node, holder]
}

fn large() -> Vec<u8> {
    (0..3_000_000_u32).map(|n| (n ^ n >> 7 ^ n >> 13) as u8).collect()
}

fn kept_alive(node: &tessera_dht_node::Node) -> usize {
    node.status().wait().unwrap().held("kept alive bytes")
}

#[test]
fn a_large_value_whose_caller_went_away_is_given_up_and_leaves_nothing() {
    let [node, _holder] = slow();
    let served = Served::new(&node);
    let (request, value) = (json!({ "op": "put" }).to_string(), large());
    let mut caller = UnixStream::connect(served.server.path()).unwrap();
    caller.write_all(&[(request.len() as u32).to_le_bytes(), (value.len() as u32).to_le_bytes()].concat()).unwrap();
    caller.write_all(request.as_bytes()).unwrap();
    caller.write_all(&value).unwrap();
    until("parts of it are stored", || kept_alive(&node) > 0);
    assert!(caller.read(&mut [0; 8]).unwrap() > 0, "it is told how far it is");
    drop(caller);
    until("nothing is left of it", || kept_alive(&node) == 0);
    // And nothing comes after it: a value that is stored now is there alone.
    let small = node.put(b"small".to_vec()).wait().unwrap();
    assert!(kept_alive(&node) < 200, "{}", kept_alive(&node));
    assert_eq!(node.get(small.id).wait().unwrap().bytes, b"small");
}

#[test]
fn a_call_that_is_dropped_leaves_no_parts_and_the_same_value_can_be_stored_at_once() {
    let node = network(1, 2).remove(0);
    let value = large();
    let mut call = node.put(value.clone());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    until("parts of it are stored", || {
        assert!(std::pin::Pin::new(&mut call).poll(&mut cx).is_pending(), "it is far from done");
        kept_alive(&node) > 0
    });
    drop(call);
    let stored = node.put(value.clone()).wait().unwrap();
    assert!(node.get(stored.id).wait().unwrap().bytes == value, "no part of it was lost to the one that was dropped");
    node.forget(stored.id).wait().unwrap();
    until("nothing is left of it", || kept_alive(&node) == 0);
}

#[test]
fn numbers_that_are_none_are_refused_and_not_taken_for_unset() {
    let node = network(1, 1).remove(0);
    let served = Served::new(&node);
    let id = "ab".repeat(32);
    for (request, body) in [
        (json!({ "op": "put", "ttl_secs": -1 }), b"value"),
        (json!({ "op": "put", "ttl_secs": "x" }), b"value"),
        (json!({ "op": "put", "ttl_secs": 1.5 }), b"value"),
        (json!({ "op": "put-mutable", "sequence": -5 }), b"value"),
        (json!({ "op": "delete", "sequence": "7" }), b"value"),
        (json!({ "op": "providers", "id": id, "limit": -1 }), b"value"),
    ] {
        assert_eq!(kind(served.ask(&request, body)), "bad_request", "{request}");
    }
    assert!(served.ask(&json!({ "op": "put", "ttl_secs": null }), b"value").is_ok());
}

#[test]
fn only_a_socket_without_a_listener_is_taken_over() {
    let node = network(1, 1).remove(0);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    std::fs::write(&path, "not a socket").unwrap();
    assert!(Server::start(&node, &path).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"not a socket");
    std::fs::remove_file(&path).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let served = Server::start(&node, &path).unwrap();
    assert!(Server::start(&node, &path).is_err(), "another server listens");
    drop(served);
    // A datagram socket: the error is neither that no process listens nor that nothing is there.
    let _other = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    assert!(Server::start(&node, &path).is_err());
    assert!(path.exists(), "another program's socket is left alone");
}
