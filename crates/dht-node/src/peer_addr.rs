//! A node's address as people write it: `<public key in hex>@<host:port>`.
//!
//! The key is part of the address because datagrams are sealed to it from the very first one: with a host and a port alone a node
//! cannot say hello, and so no impostor can answer it.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

use tessera_contracts::point::{NodeId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::PublicKey;

/// A node's address and the identity it must prove.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PeerAddr(pub Contact);

impl PeerAddr {
    /// The node with `key` at `addr`.
    #[must_use]
    pub fn new(key: [u8; 32], addr: SocketAddr) -> Self {
        Self(Contact { key: PublicKey(key), addr: Addr::from(addr) })
    }

    /// The node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.0.id()
    }

    /// The node's public key.
    #[must_use]
    pub fn key(&self) -> [u8; 32] {
        self.0.key.0
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.0.addr.to_socket_addr()
    }
}

/// A contact that answered lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LivePeer {
    /// Who and where.
    pub peer: PeerAddr,
    /// The round trip, if it is known.
    pub rtt: Option<Duration>,
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", NodeId::from_bytes(self.key()), self.addr())
    }
}

impl fmt::Debug for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a text is no address of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadPeerAddr {
    text: String,
    why: String,
}

impl fmt::Display for BadPeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, why } = self;
        write!(f, "`{text}` is no address of a node: {why}; expected KEY@HOST:PORT, as the other node prints it")
    }
}

impl std::error::Error for BadPeerAddr {}

impl FromStr for PeerAddr {
    type Err = BadPeerAddr;

    fn from_str(text: &str) -> Result<Self, BadPeerAddr> {
        let bad = |why: String| BadPeerAddr { text: text.chars().take(120).collect(), why };
        let (key, host) = text.split_once('@').ok_or_else(|| bad("there is no `@` in it".to_owned()))?;
        let key: NodeId = key.parse().map_err(|_| bad("the key is not 64 hex digits".to_owned()))?;
        let addr = host
            .to_socket_addrs()
            .map_err(|error| bad(format!("`{host}` cannot be resolved ({error})")))?
            .next()
            .ok_or_else(|| bad(format!("`{host}` resolves to nothing")))?;
        let peer = Self::new(*key.as_bytes(), addr);
        if peer.0.addr.is_dialable() { Ok(peer) } else { Err(bad("nothing can be sent to it".to_owned())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_round_trips() {
        for addr in ["127.0.0.1:4000", "[2001:db8::7]:9"] {
            let text = format!("{}@{addr}", "ab".repeat(32));
            assert_eq!(text.parse::<PeerAddr>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn a_malformed_address_is_refused_with_the_reason() {
        let key = "ab".repeat(32);
        for (text, why) in [
            ("127.0.0.1:4000".to_owned(), "no `@`"),
            ("abc@127.0.0.1:4000".to_owned(), "64 hex digits"),
            (format!("{key}@127.0.0.1"), "cannot be resolved"),
            (format!("{key}@0.0.0.0:4000"), "nothing can be sent"),
            (format!("{key}@127.0.0.1:0"), "nothing can be sent"),
        ] {
            let error = text.parse::<PeerAddr>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("KEY@HOST:PORT"), "{error}");
        }
    }
}
