//! A stranger on the network that is no node: seals datagrams by hand, and sends any bytes it likes.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::net::UdpSocket;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tessera_dht::identity::{Crypto as _, Identity, PublicKey};
use tessera_dht::node::steering_slot;
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::header::{Challenge, HEADER_BYTES, Suite};
use tessera_dht::wire::message::{Envelope, Message};
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX};
use tessera_dht_node::{Node, Point as _};

pub(crate) struct Stranger {
    sealer: Sealer<Identity>,
    pub(crate) socket: UdpSocket,
    correlation: u64,
}

pub(crate) fn now() -> Now {
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    Now { mono_ms: 1, unix_ms }
}

impl Stranger {
    pub(crate) fn new(seed: [u8; 32], network: &str) -> Self {
        let mut rng = LaneRng::new(seed);
        let network = NetworkKey::of_name(network);
        let identity = Identity::from_seed(&seed);
        let sealer = Sealer::new(identity, network, Suite::Aes256Gcm, &SealLimits::default(), &mut rng, now());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Self { sealer, socket, correlation: 0 }
    }

    pub(crate) fn key(&self) -> PublicKey {
        self.sealer.crypto().public_key()
    }

    /// A sealed datagram for `node`, padded like a first request.
    pub(crate) fn datagram(&mut self, node: &Node, message: Message<'_>) -> Vec<u8> {
        self.datagram_about(node, node.id().as_bytes(), message)
    }

    /// The same, steered to the lane that owns the id it is about.
    pub(crate) fn datagram_about(&mut self, node: &Node, about: &[u8; 32], message: Message<'_>) -> Vec<u8> {
        self.correlation += 256;
        let key = PublicKey(node.address().key());
        let cookie = self.sealer.cookie_of(now(), &key);
        let envelope = Envelope { flags: 1, correlation: self.correlation, cookie, message };
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        envelope.write(&mut buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]).unwrap();
        let slot = steering_slot(&node.id(), about);
        let len = self.sealer.seal(now(), &key, slot, &mut buffer, BODY_BYTES_MAX).unwrap();
        buffer[..len].to_vec()
    }

    /// Asks until it is answered, keeps the cookie, and hears the answer.
    pub(crate) fn ask<R>(
        &mut self,
        node: &Node,
        about: &[u8; 32],
        message: &Message<'_>,
        hear: impl Fn(&Message<'_>) -> Option<R>,
    ) -> R {
        let mut buffer = [0; 2048];
        loop {
            let datagram = self.datagram_about(node, about, *message);
            self.send(node, &datagram);
            while let Ok((len, _)) = self.socket.recv_from(&mut buffer) {
                let Ok(opened) = self.sealer.open(now(), &mut buffer[..len], |_, _| true) else { continue };
                let Ok(envelope) = Envelope::read(opened.body) else { continue };
                let (sender, cookie, heard) = (opened.header.sender, envelope.cookie, hear(&envelope.message));
                self.sealer.keep_cookie(now(), &sender, cookie);
                if let Some(heard) = heard {
                    return heard;
                }
            }
        }
    }

    pub(crate) fn send(&self, node: &Node, datagram: &[u8]) {
        self.socket.send_to(datagram, node.listen_addr()).unwrap();
    }

    /// Datagrams that come within a while: all of them, or the first if that is enough. A challenge is no answer: a node that is sent much by
    /// strangers sends one in place of any work.
    pub(crate) fn answers(&self, enough: usize) -> usize {
        let (mut count, deadline) = (0, Instant::now() + Duration::from_millis(400));
        let mut buffer = [0; 2048];
        while count < enough && Instant::now() < deadline {
            let came = self.socket.recv_from(&mut buffer).map(|(len, _)| len);
            count += usize::from(came.is_ok_and(|len| Challenge::read(&buffer[..len]).is_none()));
        }
        count
    }

    /// Whether the node answers a proper ping now.
    pub(crate) fn is_served(&mut self, node: &Node) -> bool {
        let ping = self.datagram(node, Message::Ping);
        self.send(node, &ping);
        self.answers(1) == 1
    }
}
