//! Nodes in two network namespaces: the cable between them is cut and mended, a node restarts at another address, and a machine gets another
//! one while its node runs.
//!
//! Needs root and `ip`. Without them these tests are skipped, and counted as that.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use node_support::cable::{Cable, ip};
use node_support::{Place, Process, until};
use rustix::process::Signal;

#[test]
fn a_network_that_is_cut_in_two_works_on_both_sides_and_heals_and_a_node_that_restarts_elsewhere_is_found() {
    let Some(cable) = Cable::new() else { return };
    let place = Place::new();
    let first = cable.node(&place, 0, &["--listen", "10.77.0.1:0"]);
    let address = first.address();
    let join = |side: usize, listen: &str, data: &str| {
        let data = place.path(data).display().to_string();
        cable.node(&place, side, &["--listen", listen, "--bootstrap", &address, "--data", &data])
    };
    let near = [join(0, "10.77.0.1:0", "a1"), join(0, "10.77.0.1:0", "a2")];
    let mut far: Vec<Process> = (0..3).map(|n| join(1, "10.77.0.2:0", &format!("b{n}"))).collect();
    for node in near.iter().chain(&far) {
        place.until_knows(node, 5);
    }
    let before = place.ask(&near[0], &["put"], b"before the cut");
    cable.set("down");
    let here = place.ask(&near[1], &["put"], b"on this side");
    let there = place.ask(&far[0], &["put"], b"on that side");
    assert_eq!(place.ask(&near[0], &["get", &here], &[]), "on this side");
    assert_eq!(place.ask(&far[2], &["get", &there], &[]), "on that side");
    assert_eq!(place.ask(&far[1], &["get", &before], &[]), "before the cut", "it was stored on both sides");
    // Those beyond the cut may know of it, as long as they count as nodes that should.
    let nothing = place.dht(&far[1], &["get", &here], &[]).unwrap_err();
    assert!(nothing.contains("was not found") || nothing.contains("too few of those that should know"), "{nothing}");
    cable.set("up");
    until("what was stored on one side is found on the other", || place.dht(&far[1], &["get", &here], &[]).is_ok());
    until("and the other way round", || place.dht(&near[0], &["get", &there], &[]).is_ok());
    // A node is restarted at another address: it is the same, and is found there.
    let moved = far.pop().unwrap();
    let id = moved.id();
    moved.end(Signal::KILL);
    assert!(ip(&["-n", &cable.names[1], "addr", "add", "10.77.0.3/24", "dev", "cable"]));
    let moved = join(1, "10.77.0.3:0", "b2");
    assert_eq!(moved.id(), id);
    until("it is found at its new address", || {
        place.ask(&near[0], &["find-node", &id], &[]).lines().next().is_some_and(|line| line.contains(&moved.listen()))
    });
}

#[test]
fn a_machine_that_gets_another_address_keeps_its_node_which_is_found_there() {
    let Some(cable) = Cable::new() else { return };
    let place = Place::new();
    let first = cable.node(&place, 0, &["--listen", "10.77.0.1:0"]);
    let address = first.address();
    let near = cable.node(&place, 0, &["--listen", "10.77.0.1:0", "--bootstrap", &address]);
    // It listens on all addresses of its machine, as a node that moves between networks does.
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
        until("it is found at its new address", || {
            // The peers it asks find out.
            place.ask(&moved, &["find-node", &id], &[]);
            found_at(node, "10.77.0.3")
        });
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
