//! The sockets that `tessera` trusts.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use node_support::{Place, run};
use test_support::skipped;

/// Another user came first: the folder of sockets is there already, and in it a listener.
fn trap(place: &Place, mode: u32, owner: Option<u32>) -> UnixListener {
    let folder = place.path("run");
    fs::create_dir(&folder).unwrap();
    let listener = UnixListener::bind(folder.join("node-trap.sock")).unwrap();
    fs::set_permissions(folder.join("node-trap.sock"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(&folder, owner, None).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener
}

fn no_command_falls_into(trap: &UnixListener, place: &Place, why: &str) {
    let (socket, key) = (place.path("run/node-trap.sock"), place.path("key"));
    let key = key.to_str().unwrap();
    let write = ["put-mutable", "--name", "mine", "--key", key];
    let delete = ["delete", "--name", "mine", "--key", key];
    for args in [&write[..], &delete, &["put"], &["status"]] {
        for named in [&["dht", "--socket", socket.to_str().unwrap()][..], &["dht"]] {
            let refused = run(place.tessera(&[named, args].concat()), b"a secret");
            let error = String::from_utf8(refused.stderr).unwrap();
            assert!(error.contains(why) && error.contains("no node is asked"), "{args:?}: {error}");
            assert!(error.contains("TESSERA_RUNTIME_DIR"), "what to do: {error}");
            assert_eq!(refused.status.code(), Some(2));
        }
    }
    let steered = run(place.tessera(&["node", "set-lanes", "2"]), b"");
    assert!(String::from_utf8(steered.stderr).unwrap().contains(why));
    assert_eq!(trap.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "no command connected");
}

#[test]
fn a_listener_in_a_folder_that_others_may_write_is_told_nothing() {
    let place = Place::new();
    no_command_falls_into(&trap(&place, 0o777, None), &place, "can be written by others (mode 777)");
}

#[test]
fn a_listener_in_a_folder_of_another_user_is_told_nothing() {
    // Only root can give a folder away. Others have the same rule tested with the user's number changed instead, in the library.
    if !rustix::process::geteuid().is_root() {
        return skipped("it needs root, to give a folder to another user");
    }
    let place = Place::new();
    no_command_falls_into(&trap(&place, 0o755, Some(54_321)), &place, "belongs to another user (uid 54321)");
}

#[test]
fn versions_are_signed_by_the_caller_whose_key_the_node_need_not_know() {
    let place = Place::new();
    let node = place.node(&["--lanes", "1"]);
    let key = place.path("key").display().to_string();
    let owned = ["--name", "mine", "--key", &key];
    let ask = |op: &[&str], value: &[u8]| place.json_of(&node, &[op, &owned].concat(), value);
    let versions: Vec<u64> =
        [&b"one"[..], b"two"].map(|value| ask(&["put-mutable"], value)["sequence"].as_u64().unwrap()).to_vec();
    assert_eq!(versions, [1, 2]);
    let fifth = ask(&["put-mutable", "--sequence", "5"], b"five");
    let owner = fifth["owner"].as_str().unwrap().to_owned();
    assert_ne!(node.address().split('@').next(), Some(&owner[..]), "it is not the node's key");
    assert_eq!(place.ask(&node, &["get-mutable", &owner, "--name", "mine"], &[]), "five");
    let outdated = place.dht(&node, &[&["put-mutable", "--sequence", "4"][..], &owned].concat(), b"four").unwrap_err();
    assert!(outdated.contains("version 4 cannot be written: version 5 is out already"), "{outdated}");
    assert_eq!(ask(&["delete"], b"")["sequence"], 6);
    assert!(place.dht(&node, &["get-mutable", &owner, "--name", "mine"], &[]).unwrap_err().contains("deleted"));
}
