//! Two network namespaces with a cable between them. They need root and `ip`.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Place, Process};
use test_support::skipped;

/// Two namespaces with a cable between them; removed when dropped.
pub(crate) struct Cable {
    pub(crate) names: [String; 2],
}

pub(crate) fn ip(args: &[&str]) -> bool {
    Command::new("ip")
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Cable {
    /// `None` where there can be none: the test is skipped then.
    pub(crate) fn new() -> Option<Self> {
        let cable = Self::laid();
        if cable.is_none() {
            skipped("it needs root, `ip` and network namespaces");
        }
        cable
    }

    fn laid() -> Option<Self> {
        // Tests of one program may run at the same time.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let which = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let cable = Self { names: [format!("tessera-a-{which}"), format!("tessera-b-{which}")] };
        let [a, b] = cable.names.each_ref().map(String::as_str);
        let ends = [format!("ta{which}"), format!("tb{which}")];
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

    pub(crate) fn set(&self, state: &str) {
        assert!(ip(&["-n", &self.names[0], "link", "set", "cable", state]));
    }

    /// Takes an address from one side and gives it another.
    pub(crate) fn readdress(&self, side: usize, from: &str, to: &str) {
        let name = &self.names[side];
        assert!(ip(&["-n", name, "addr", "del", from, "dev", "cable"]));
        assert!(ip(&["-n", name, "addr", "add", to, "dev", "cable"]));
    }

    pub(crate) fn node(&self, place: &Place, side: usize, args: &[&str]) -> Process {
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
