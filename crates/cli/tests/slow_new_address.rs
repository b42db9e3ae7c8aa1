//! A machine gets another address while its node runs. The others notice after a minute, when the node has noticed that it hears from nobody.
//!
//! Needs root and `ip`. Without them this shows nothing, and says so.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use node_support::cable::Cable;
use node_support::{Place, Process, until};

#[test]
fn a_machine_that_gets_another_address_keeps_its_node_which_is_found_there() {
    let Some(cable) = Cable::new() else { return };
    let place = Place::new();
    let first = cable.node(&place, 0, &["--listen", "10.77.0.1:0"]);
    let address = first.address();
    let near = cable.node(&place, 0, &["--listen", "10.77.0.1:0", "--bootstrap", &address]);
    // It listens on whatever addresses its machine has, as one that moves between networks does.
    let mut moved = cable.node(&place, 1, &["--listen", "0.0.0.0:0", "--bootstrap", &address]);
    for node in [&first, &near, &moved] {
        place.until_knows(node, 2);
    }
    let (id, port) = (moved.id(), moved.listen().rsplit_once(':').unwrap().1.to_owned());
    let found_at = |node: &Process, address: &str| {
        let found = place.dht(node, &["find-node", &id], &[]).unwrap_or_default();
        let at = format!("{id}  {address}:{port}");
        String::from_utf8(found).unwrap().lines().any(|line| line == at)
    };
    until("it is found where it is", || found_at(&near, "10.77.0.2"));
    let before = place.ask(&near, &["put"], b"before it moved");
    cable.readdress(1, "10.77.0.2/24", "10.77.0.3/24");
    // Nothing tells it that it has moved, and it can be used at once.
    let after = place.ask(&moved, &["put"], b"after it moved");
    for node in [&first, &near] {
        until("it is found at its new address", || found_at(node, "10.77.0.3"));
        assert!(!found_at(node, "10.77.0.2"), "and no longer at the old one");
        assert_eq!(place.ask(node, &["get", &after], &[]), "after it moved");
        let peer = format!("{}@10.77.0.3:{port}", moved.address().split_once('@').unwrap().0);
        assert!(place.ask(node, &["ping", &peer], &[]).starts_with("it is there"));
    }
    assert_eq!(place.ask(&moved, &["get", &before], &[]), "before it moved");
    let later = place.ask(&near, &["put"], b"to where it is now");
    assert_eq!(place.ask(&moved, &["get", &later], &[]), "to where it is now");
    assert!(moved.is_running(), "all the while");
}
