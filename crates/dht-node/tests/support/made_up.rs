//! Attackers near a target that answer like anybody else, but name only made-up contacts: ground keys at addresses where nothing listens.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tessera_contracts::point::Distance;
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity, PublicKey};
use tessera_dht::node::steering_slot;
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{Opened, SealLimits, Sealer};
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::{CONTACT_BYTES, Capabilities, Contacts, Envelope, Message, capability};
use tessera_dht::wire::{BODY_BYTES_MAX, CONTACTS_MAX, DATAGRAM_BYTES_MAX};
use tessera_dht_node::{ContentId, Node, Point as _};

use super::stranger::now;

/// Made-up contacts that each attacker has to name.
const MADE_UP: usize = 100;

/// Attackers at work, until dropped.
pub(crate) struct MadeUp {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for MadeUp {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

impl MadeUp {
    /// So many attackers nearer to `target` than all of `nodes`, which knock at every node until they are known.
    pub(crate) fn around(target: &ContentId, nodes: &[Node], attackers: usize) -> Self {
        let nearest = nodes.iter().map(|node| node.id().distance_to(target)).min().unwrap();
        let victims: Vec<(PublicKey, SocketAddr)> =
            nodes.iter().map(|node| (PublicKey(node.address().key()), node.listen_addr())).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..attackers as u64).map(|n| {
            let mut attacker = Attacker::new(n, target, nearest);
            let (stop, victims) = (stop.clone(), victims.clone());
            std::thread::spawn(move || attacker.work(&stop, &victims))
        });
        Self { threads: threads.collect(), stop }
    }
}

struct Attacker {
    sealer: Sealer<Identity>,
    socket: UdpSocket,
    rng: LaneRng,
    list: Vec<u8>,
    /// So that nothing else listens there.
    _nowhere: UdpSocket,
}

impl Attacker {
    fn new(n: u64, target: &ContentId, nearest: Distance) -> Self {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&n.to_le_bytes());
        let mut rng = LaneRng::new(seed);
        let identity = loop {
            let identity = Identity::from_seed(&rng.bytes());
            if identity.node_id().distance_to(target) < nearest {
                break identity;
            }
        };
        let nowhere = UdpSocket::bind("127.0.0.1:0").unwrap();
        let addr = Addr::v4([127, 0, 0, 1], nowhere.local_addr().unwrap().port());
        let mut list = Vec::new();
        while list.len() < MADE_UP * CONTACT_BYTES {
            let contact = Contact { key: PublicKey(rng.bytes()), addr };
            if contact.id().distance_to(target) < nearest && identity.agree(&contact.key).is_some() {
                list.extend(contact.to_wire());
            }
        }
        let network = NetworkKey::of_name("tessera");
        let sealer = Sealer::new(identity, network, Suite::Aes256Gcm, &SealLimits::default(), &mut rng, now());
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Self { sealer, socket, rng, list, _nowhere: nowhere }
    }

    fn work(&mut self, stop: &AtomicBool, victims: &[(PublicKey, SocketAddr)]) {
        let mut buffer = [0; 2048];
        for round in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            // One victim a turn, so that those it knocks at are not flooded.
            let (key, addr) = victims[round % victims.len()];
            let target = self.rng.bytes();
            let (correlation, cookie) = (self.rng.u64(), self.sealer.cookie_of(now(), &key));
            let message = Message::FindNode { target, scope: Scope::EXACT };
            let question = Envelope { flags: 0, correlation, cookie, message };
            self.send(&key, steering_slot(&key.node_id(), &target), addr, &question, true);
            for _ in 0..20 {
                let Ok((len, from)) = self.socket.recv_from(&mut buffer) else { break };
                self.answer(&mut buffer[..len], from);
            }
        }
    }

    fn answer(&mut self, datagram: &mut [u8], from: SocketAddr) {
        let Ok(Opened { header, body, .. }) = self.sealer.open(now(), datagram, |_, _| true) else { return };
        let Ok(envelope) = Envelope::read(body) else { return };
        let sender = header.sender;
        if envelope.message.is_reply() {
            let cookie = envelope.cookie;
            self.sealer.keep_cookie(now(), &sender, cookie);
            return;
        }
        let first = self.rng.below((MADE_UP - CONTACTS_MAX) as u64) as usize * CONTACT_BYTES;
        let mut list = [0; CONTACTS_MAX * CONTACT_BYTES];
        list.copy_from_slice(&self.list[first..first + CONTACTS_MAX * CONTACT_BYTES]);
        let named = |count: usize| Contacts::over(&list[..count * CONTACT_BYTES]);
        let (token, correlation) = ([7; 16], envelope.correlation);
        let observed = Addr::from(from);
        let capabilities = Capabilities {
            version_min: 1,
            version_max: 1,
            datagram_bytes_max: DATAGRAM_BYTES_MAX as u16,
            bits: capability::STORES | 3,
        };
        let message = match envelope.message {
            Message::Ping => Message::Pong { observed },
            Message::Negotiate(_) => Message::Negotiated { capabilities, observed },
            Message::FindNode { .. } => Message::Nodes { token, contacts: named(CONTACTS_MAX) },
            Message::FindValue { .. } => Message::Value { token, record: None, closer: named(8) },
            Message::Store { .. } => Message::Stored { closer: Contacts::default() },
            _ => return,
        };
        let reply = Envelope { flags: 0, correlation, cookie: [9; 8], message };
        self.send(&sender, correlation as u8, from, &reply, false);
    }

    fn send(&mut self, to: &PublicKey, slot: u8, addr: SocketAddr, envelope: &Envelope<'_>, pad: bool) {
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        let len = envelope.write(&mut buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]).unwrap();
        let len = self.sealer.seal(now(), to, slot, &mut buffer, if pad { BODY_BYTES_MAX } else { len }).unwrap();
        let _ = self.socket.send_to(&buffer[..len], addr);
    }
}
