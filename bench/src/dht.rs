//! Serving one FIND_NODE: open, decode, route, encode, seal; beside the two AEAD operations alone.
//!
//! The asker's sealing is part of both sides, because a datagram can be opened once only. The reference opens the same
//! request and seals a body as long as the answer with the same library, so the difference is all the rest of the lane.

use std::hint::black_box;

use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_dht::abuse::AbuseLimits;
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::node::command::{CommandId, Outcome};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox, message_kind};
use tessera_dht::node::{LaneNode, steering_slot};
use tessera_dht::rng::LaneRng;
use tessera_dht::seal::cookie::{Proofs, Scope};
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::DATAGRAM_BYTES_MAX;
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::{CONTACT_BYTES, Contacts, Envelope, Message, PREAMBLE_BYTES};

use crate::harness::{Figure, Pair};

pub(crate) fn figures() -> Vec<Figure> {
    vec![
        Figure::cost(
            "dht/serve-find-node",
            "ask + serve FIND_NODE, 16 contacts, beside ask + AEAD alone",
            serve_find_node,
        ),
        Figure::cost("dht/decode-nodes", "decode a reply of 16 contacts, beside copying its bytes", decode_nodes),
    ]
}

const T: Now = Now { mono_ms: 1_000_000, unix_ms: 1_800_000_000_000 };
const ASKER: Addr = Addr::v4([192, 0, 2, 1], 5000);

struct Sink(usize);

impl Outbox for Sink {
    fn send(&mut self, _: Addr, datagram: &[u8]) {
        self.0 = black_box(datagram).len();
    }
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        Logged::Safe
    }
    fn complete(&mut self, _: CommandId, _: Outcome) {}
}

fn server() -> Identity {
    Identity::from_seed(&[1; 32])
}

fn sealer(identity: Identity, start: u8) -> Sealer<Identity> {
    let network = NetworkKey::of_name(&NodeConfig::default().network);
    Sealer::new(identity, network, Suite::Aes256Gcm, &SealLimits::default(), &mut LaneRng::new([start; 32]), T)
}

fn serve_find_node() -> Pair {
    let unlimited = AbuseLimits {
        per_peer_per_sec: u32::MAX / 4,
        per_prefix_per_sec: u32::MAX / 4,
        burst_secs: 1,
        ..AbuseLimits::default()
    };
    let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).expect("24 is a depth"), 1).expect("one lane");
    let config = NodeConfig { abuse: unlimited, ..NodeConfig::default() };
    let mut node = LaneNode::new(config, server(), map, LaneIndex(0), [3; 32], T);
    for n in 0..2000_u16 {
        let mut seed = [9; 32];
        seed[..2].copy_from_slice(&n.to_le_bytes());
        let [a, b] = n.to_le_bytes();
        let contact = Contact { key: Identity::from_seed(&seed).public_key(), addr: Addr::v4([10, a, b, 1], 4000) };
        let mut payload = [0xff; CONTACT_BYTES + 4];
        payload[..CONTACT_BYTES].copy_from_slice(&contact.to_wire());
        node.on_message(T, message_kind::CONTACT, &payload, &mut Sink(0));
    }
    let id = node.id();
    let cookie =
        Proofs::new(&server(), &NetworkKey::of_name(&NodeConfig::default().network)).cookie(&ASKER, T.unix_secs());
    let (mut client, mut other_client) =
        (sealer(Identity::from_seed(&[2; 32]), 2), sealer(Identity::from_seed(&[2; 32]), 4));
    let mut reference = sealer(server(), 5);
    let client_key = Identity::from_seed(&[2; 32]).public_key();
    let reply_len = PREAMBLE_BYTES + 17 + 16 * CONTACT_BYTES;
    let mut targets = LaneRng::new([6; 32]);
    let mut same_targets = LaneRng::new([6; 32]);
    let server_key = server().public_key();
    // Carries the server's cookie, as every request but the first does.
    let request = move |client: &mut Sealer<Identity>, target: [u8; 32], buffer: &mut [u8; DATAGRAM_BYTES_MAX]| {
        let envelope = Envelope { flags: 1, correlation: 7, cookie, message: Message::FindNode { target, scope: Scope::EXACT } };
        let len = envelope.write(&mut buffer[HEADER_BYTES..]).expect("a small request");
        client.seal(T, &server_key, steering_slot(&id, &target), buffer, len).expect("a usable key")
    };
    Pair::new(
        move |times| {
            let mut sink = Sink(0);
            let mut buffer = [0; DATAGRAM_BYTES_MAX];
            for _ in 0..times {
                let len = request(&mut client, targets.bytes(), &mut buffer);
                node.on_datagram(T, ASKER, &mut buffer[..len], 0, &mut sink);
                assert!(sink.0 > 16 * CONTACT_BYTES, "a full answer");
                sink.0 = 0;
            }
        },
        move |times| {
            let mut buffer = [0; DATAGRAM_BYTES_MAX];
            let mut reply = [0; DATAGRAM_BYTES_MAX];
            for _ in 0..times {
                let len = request(&mut other_client, same_targets.bytes(), &mut buffer);
                let opened = reference.open(T, &mut buffer[..len], || true).expect("authentic");
                black_box(opened.1);
                let len = reference.seal(T, &client_key, 0, &mut reply, reply_len).expect("a usable key");
                black_box(&reply[..len]);
            }
        },
    )
}

fn decode_nodes() -> Pair {
    let list = [0x5a; 16 * CONTACT_BYTES];
    let message = Message::Nodes { token: [1; 16], contacts: Contacts::over(&list) };
    let envelope = Envelope { flags: 0, correlation: 1, cookie: [0; 8], message };
    let mut body = [0; DATAGRAM_BYTES_MAX];
    let len = envelope.write(&mut body).expect("a reply fits a datagram");
    let copied = body;
    Pair::new(
        move |times| {
            for _ in 0..times {
                let envelope = Envelope::read(black_box(&body[..len])).expect("well-formed");
                black_box(&envelope);
            }
        },
        move |times| {
            let mut out = [0; DATAGRAM_BYTES_MAX];
            for _ in 0..times {
                out[..len].copy_from_slice(black_box(&copied[..len]));
                black_box(&out);
            }
        },
    )
}
