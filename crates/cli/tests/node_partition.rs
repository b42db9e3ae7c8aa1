//! Nodes in two network namespaces: the cable between them is cut and mended, and a machine gets another address.
//!
//! Needs root and `ip`; without them it says so and ends.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod node_support;

use std::process::{Command, Stdio};

use node_support::{Place, Process, until};
use rustix::process::Signal;

/// Two namespaces with a cable between them; removed when dropped.
struct Cable {
    names: [String; 2],
}

fn ip(args: &[&str]) -> bool {
    Command::new("ip")
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Cable {
    fn new() -> Option<Self> {
        let pid = std::process::id();
        let cable = Self { names: [format!("tessera-a-{pid}"), format!("tessera-b-{pid}")] };
        let [a, b] = cable.names.each_ref().map(String::as_str);
        let ends = [format!("ta{pid}"), format!("tb{pid}")];
        let made = ip(&["netns", "add", a])
            && ip(&["netns", "add", b])
            && ip(&["link", "add", &ends[0], "netns", a, "type", "veth", "peer", "name", &ends[1], "netns", b]);
        for (name, end, address) in [(a, &ends[0], "10.77.0.1/24"), (b, &ends[1], "10.77.0.2/24")] {
            let up = made
                && ip(&["-n", name, "link", "set", end, "name", "cable"])
                && ip(&["-n", name, "addr", "add", address, "dev", "cable"])
                && ip(&["-n", name, "link", "set", "cable", "up"])
                && ip(&["-n", name, "link", "set", "lo", "up"]);
            if !up {
                return None;
            }
        }
        Some(cable)
    }

    fn set(&self, state: &str) {
        assert!(ip(&["-n", &self.names[0], "link", "set", "cable", state]));
    }

    fn node(&self, place: &Place, side: usize, args: &[&str]) -> Process {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.names[side], env!("CARGO_BIN_EXE_tessera"), "node", "--lanes", "1"])
            .args(args);
        place.start(command)
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

#[test]
fn a_network_that_is_cut_in_two_works_on_both_sides_and_heals() {
    let Some(cable) = Cable::new() else {
        eprintln!("skipped: this test needs root and network namespaces");
        return;
    };
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
    // A machine gets another address: the node is the same, and is found there.
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
