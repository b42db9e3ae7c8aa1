//! A network of its own for a cluster: each member in a network namespace, on a bridge, so that it can be cut off.
//!
//! A member that is cut off runs on and knows nothing; its peers and clients get neither an answer nor a refusal. That needs
//! the right to make namespaces (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN); who has not, hears why.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// A bridge with one namespace per member. Removed when dropped.
#[derive(Debug)]
pub(super) struct Network {
    /// Tells the interfaces of this network from those of others: names may be fifteen bytes at most.
    tag: String,
    subnet: u8,
    members: usize,
}

impl Network {
    /// Makes a network for so many members.
    ///
    /// # Errors
    /// What could not be made; nothing is left behind.
    pub(super) fn new(members: usize) -> Result<Self, String> {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let tag = format!("{process:x}{number:x}");
        // Other processes of this machine make networks too: their numbers differ.
        let subnet = u8::try_from((process + u32::from(number)) % 250).unwrap_or(0);
        let network = Self { tag, subnet, members };
        network.build()?;
        Ok(network)
    }

    fn build(&self) -> Result<(), String> {
        let (bridge, subnet) = (self.bridge(), self.subnet);
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add 10.213.{subnet}.1/24 dev {bridge}"))?;
        ip(&format!("link set {bridge} up"))?;
        for member in 0..self.members {
            let (name, outer, address) = (self.namespace(member), self.outer(member), self.address(member));
            ip(&format!("netns add {name}"))?;
            ip(&format!("link add {outer} type veth peer name eth0 netns {name}"))?;
            ip(&format!("link set {outer} master {bridge} up"))?;
            ip(&format!("-n {name} addr add {address}/24 dev eth0"))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(())
    }

    /// The namespace that a member runs in.
    pub(super) fn namespace(&self, member: usize) -> String {
        format!("tess-{}-{member}", self.tag)
    }

    /// Where a member listens.
    pub(super) fn address(&self, member: usize) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 213, self.subnet, u8::try_from(member + 10).unwrap_or(u8::MAX)))
    }

    /// Takes a member off the network, or puts it back.
    ///
    /// # Errors
    /// If the interface cannot be switched.
    pub(super) fn connect(&self, member: usize, connected: bool) -> Result<(), String> {
        ip(&format!("link set {} {}", self.outer(member), if connected { "up" } else { "down" }))
    }

    fn bridge(&self) -> String {
        format!("tb{}", self.tag)
    }

    fn outer(&self, member: usize) -> String {
        format!("tv{}{member}", self.tag)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Whatever of it was made goes; the pairs of interfaces go with their namespaces.
        for member in 0..self.members {
            let _ = ip(&format!("netns del {}", self.namespace(member)));
            let _ = ip(&format!("link del {}", self.outer(member)));
        }
        let _ = ip(&format!("link del {}", self.bridge()));
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output: io::Result<_> = Command::new("ip").args(arguments.split(' ')).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("ip {arguments}: {error}")),
    }
}
