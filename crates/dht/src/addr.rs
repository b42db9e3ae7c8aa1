//! Where a peer is reached: an IP address and a UDP port, sixteen bytes and two.
//!
//! IPv4 is kept as an IPv4-mapped IPv6 address, so that there is one layout in tables and on the wire, and one program
//! serves dual-stack sockets. [`AddrPrefix`] is the unit in which an operator buys addresses: limits count by it.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A UDP address in its one canonical form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr {
    /// IPv6 octets, or IPv4 mapped into `::ffff:0:0/96`.
    pub ip: [u8; 16],
    /// UDP port, never zero for a contact.
    pub port: u16,
}

impl Addr {
    /// Bytes on the wire: the address, then the port in little-endian order.
    pub const WIRE_BYTES: usize = 18;

    /// The IPv4 address `octets` with `port`.
    #[must_use]
    pub const fn v4(octets: [u8; 4], port: u16) -> Self {
        let [a, b, c, d] = octets;
        Self { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d], port }
    }

    /// Reads the wire form. Any eighteen bytes are an address; whether it can be a contact is [`Addr::is_dialable`].
    #[must_use]
    pub fn from_wire(bytes: &[u8; Self::WIRE_BYTES]) -> Self {
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[..16]);
        Self { ip, port: u16::from_le_bytes([bytes[16], bytes[17]]) }
    }

    /// The wire form.
    #[must_use]
    pub fn to_wire(self) -> [u8; Self::WIRE_BYTES] {
        let mut bytes = [0; Self::WIRE_BYTES];
        bytes[..16].copy_from_slice(&self.ip);
        bytes[16..].copy_from_slice(&self.port.to_le_bytes());
        bytes
    }

    /// The IPv4 octets, if this is an IPv4 address.
    #[must_use]
    pub fn as_v4(&self) -> Option<[u8; 4]> {
        match self.ip {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// Whether a datagram may be sent there at all: a stranger must not make us send to unroutable or broadcast addresses.
    #[must_use]
    pub fn is_dialable(&self) -> bool {
        if self.port == 0 {
            return false;
        }
        match self.as_v4() {
            Some([a, b, c, d]) => a != 0 && a < 224 && [a, b, c, d] != [255; 4],
            None => self.ip[0] != 0xff && self.ip != [0; 16],
        }
    }

    /// The prefix this address is counted under: /24 for IPv4, /48 for IPv6.
    #[must_use]
    pub fn prefix(&self) -> AddrPrefix {
        match self.as_v4() {
            Some([a, b, c, _]) => AddrPrefix(u64::from_be_bytes([0xff, 0xff, 0, 0, 0, a, b, c])),
            None => {
                let [a, b, c, d, e, f, ..] = self.ip;
                AddrPrefix(u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
            }
        }
    }

    /// The socket address the standard library knows.
    #[must_use]
    pub fn to_socket_addr(self) -> SocketAddr {
        match self.as_v4() {
            Some(octets) => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), self.port),
            None => SocketAddr::new(IpAddr::V6(Ipv6Addr::from(self.ip)), self.port),
        }
    }
}

impl From<SocketAddr> for Addr {
    fn from(addr: SocketAddr) -> Self {
        let ip = match addr.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        Self { ip, port: addr.port() }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_socket_addr().fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A block of addresses under one hand: limits and diversity count by it, never by single addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddrPrefix(pub u64);

impl AddrPrefix {
    /// Whether it is a block of a private network, or of this machine. Peers there mostly belong to one owner and share a
    /// block: there is no crowd of strangers to be kept small. Behind a gateway that replaces source addresses all strangers seem to be
    /// there; rate limits hold for them together all the same.
    #[must_use]
    pub fn is_private(self) -> bool {
        match self.0.to_be_bytes() {
            [0xff, 0xff, 0, 0, 0, a, b, _] => {
                matches!((a, b), (10 | 127, _) | (172, 16..=31) | (192, 168) | (169, 254))
            }
            // Unique local and link-local; of ::/48 only the loopback is an address.
            [0, 0, a, b, rest @ ..] => {
                a & 0xfe == 0xfc || (a == 0xfe && b & 0xc0 == 0x80) || (a, b, rest) == (0, 0, [0; 4])
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn wire_form_round_trips_for_both_families() {
        for text in ["192.0.2.7:4433", "[2001:db8::1]:9"] {
            let addr = Addr::from(text.parse::<SocketAddr>().unwrap());
            assert_eq!(Addr::from_wire(&addr.to_wire()), addr);
            assert_eq!(addr.to_socket_addr().to_string(), text);
        }
    }

    #[test]
    fn prefix_joins_a_24_and_parts_neighbours() {
        let a = Addr::v4([10, 1, 2, 3], 1);
        assert_eq!(a.prefix(), Addr::v4([10, 1, 2, 250], 9).prefix());
        assert_ne!(a.prefix(), Addr::v4([10, 1, 3, 3], 1).prefix());
        // An IPv6 block whose six bytes equal an IPv4 prefix is another block.
        let mut ip = [0; 16];
        ip[3..6].copy_from_slice(&[10, 1, 2]);
        assert_ne!(a.prefix(), Addr { ip, port: 1 }.prefix());
    }

    #[test]
    fn private_blocks_are_those_that_no_outsider_can_answer_from() {
        for (text, private) in [
            ("9.255.255.255:1", false),
            ("10.0.0.0:1", true),
            ("11.0.0.1:1", false),
            ("100.64.0.1:1", false),
            ("126.255.255.255:1", false),
            ("127.0.0.1:1", true),
            ("128.0.0.1:1", false),
            ("169.254.7.7:1", true),
            ("172.15.255.255:1", false),
            ("172.16.0.1:1", true),
            ("172.31.255.255:1", true),
            ("172.32.0.1:1", false),
            ("192.167.0.1:1", false),
            ("192.168.0.1:1", true),
            ("192.169.0.1:1", false),
            ("[::1]:1", true),
            ("[0:1::1]:1", false),
            ("[fbff::1]:1", false),
            ("[fc00::1]:1", true),
            ("[fdff::1]:1", true),
            ("[fe7f::1]:1", false),
            ("[fe80::1]:1", true),
            ("[febf::1]:1", true),
            ("[fec0::1]:1", false),
            ("[2001:db8::1]:1", false),
        ] {
            let addr = Addr::from(text.parse::<SocketAddr>().unwrap());
            assert_eq!(addr.prefix().is_private(), private, "{text}");
        }
    }

    #[test]
    fn unspecified_and_broadcast_addresses_are_not_dialable() {
        for (text, dialable) in [
            ("192.0.2.7:1", true),
            ("192.0.2.7:0", false),
            ("0.0.0.0:1", false),
            ("224.0.0.1:1", false),
            ("255.255.255.255:1", false),
            ("[ff02::1]:1", false),
            ("[::]:1", false),
            ("[2001:db8::1]:1", true),
        ] {
            assert_eq!(Addr::from(text.parse::<SocketAddr>().unwrap()).is_dialable(), dialable, "{text}");
        }
    }
}
