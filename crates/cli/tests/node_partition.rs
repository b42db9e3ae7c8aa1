//! Nodes in two network namespaces: the cable between them is cut and mended, and a node restarts at another address.
//!
//! Needs root and `ip`. Without them this shows nothing, and says so.

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
    assert!(place.dht(&far[1], &["get", &here], &[]).unwrap_err().contains("not found"));
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
