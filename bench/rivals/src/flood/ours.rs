//! Ours: authenticated and encrypted, a cookie checked and answers sealed, as always.

use std::error::Error;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tessera_dht::identity::{Identity, PublicKey};
use tessera_dht::node::steering_slot;
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::{Envelope, Message};
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX};
use tessera_dht_node::{Node, PeerAddr, Point as _};

use super::OTHERS;

/// The node that is asked, the others, and where to ask.
pub(super) fn start() -> Result<(Vec<Node>, String), Box<dyn Error>> {
    // Only this figure asks so much of one address.
    let node = Node::builder()
        .lanes(1)
        .configure(|config| {
            config.abuse.per_peer_per_sec = 100_000_000;
            config.abuse.per_prefix_per_sec = 100_000_000;
        })
        .start()?;
    let mut nodes: Vec<Node> =
        (0..OTHERS).map(|_| Node::builder().lanes(1).bootstrap([node.address()]).start()).collect::<Result<_, _>>()?;
    while node.status().wait()?.contacts() < OTHERS - 4 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let target = node.address().to_string();
    nodes.push(node);
    Ok((nodes, target))
}

pub(super) struct Asker {
    sealer: Sealer<Identity>,
    node: PeerAddr,
    cookie: [u8; 8],
    targets: LaneRng,
    buffer: [u8; DATAGRAM_BYTES_MAX],
}

fn now() -> Now {
    let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    Now { mono_ms: 1, unix_ms }
}

impl Asker {
    /// Says hello first: only an asker that has echoed a cookie gets long answers to short questions.
    pub(super) fn new(node: PeerAddr, socket: &UdpSocket) -> Result<Self, Box<dyn Error>> {
        let mut seed = [0; 32];
        seed[..4].copy_from_slice(&std::process::id().to_le_bytes());
        let mut rng = LaneRng::new(seed);
        let network = NetworkKey::of_name("tessera");
        let limits = SealLimits::default();
        let sealer = Sealer::new(Identity::from_seed(&seed), network, Suite::Aes256Gcm, &limits, &mut rng, now());
        let mut asker = Self { sealer, node, cookie: [0; 8], targets: rng, buffer: [0; DATAGRAM_BYTES_MAX] };
        let len = asker.seal(Message::Ping, BODY_BYTES_MAX);
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.send_to(&asker.buffer[..len], node.addr())?;
        let mut answer = [0; 2048];
        let (len, _) = socket.recv_from(&mut answer)?;
        let body = asker.sealer.open(now(), &mut answer[..len], |_, _| true).map_err(|why| format!("{why:?}"))?.body;
        asker.cookie = Envelope::read(body).map_err(|why| format!("{why:?}"))?.cookie;
        Ok(asker)
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.node.addr()
    }

    pub(super) fn find_node(&mut self, datagram: &mut Vec<u8>) {
        let target = self.targets.bytes();
        let len = self.seal(Message::FindNode { target, scope: Scope::EXACT }, 0);
        datagram.extend_from_slice(&self.buffer[..len]);
    }

    fn seal(&mut self, message: Message<'_>, len_min: usize) -> usize {
        let envelope = Envelope { flags: 1, correlation: 256, cookie: self.cookie, message };
        let body = &mut self.buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX];
        let len = envelope.write(body).expect("a question fits a datagram").max(len_min);
        let slot = steering_slot(&self.node.id(), self.node.id().as_bytes());
        let key = PublicKey(self.node.key());
        self.sealer.seal(now(), &key, slot, &mut self.buffer, len).expect("the node's key is usable")
    }
}
