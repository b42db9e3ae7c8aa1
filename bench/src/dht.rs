//! The cost of the DHT's own code, without sockets and threads.
//!
//! Serving one FIND_NODE: open, decode, route, encode, seal; beside the two AEAD operations alone.
//!
//! A datagram can be opened once only, so requests are sealed beforehand, outside the time that counts. The reference opens
//! a request and seals a body as long as the answer with the same library and the same key, so the difference is all the rest
//! of the lane: replay window, limits, cookie, routing table, token, encoding.

mod network;

use std::cell::RefCell;
use std::hint::black_box;
use std::rc::Rc;

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
use tessera_dht::seal::keys::{NetworkKey, PairRoot};
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::header::{CLEAR_BYTES, HEADER_BYTES, Header, Suite};
use tessera_dht::wire::message::{CONTACT_BYTES, Contacts, Envelope, Message, PREAMBLE_BYTES};
use tessera_dht::wire::{DATAGRAM_BYTES_MAX, TAG_BYTES};

use crate::harness::{Figure, Pair};

pub(crate) fn figures() -> Vec<Figure> {
    vec![
        Figure::cost(
            "dht/serve-find-node",
            "serve FIND_NODE, 16 contacts: open, decode, route, encode, seal; beside AEAD open + seal alone",
            serve_find_node,
        ),
        Figure::cost(
            "dht/put",
            "a put to 20 of 64 lanes in memory, all sides of it; beside deriving keys for and sealing and opening its datagrams",
            network::put,
        )
        .gated(2.6),
        Figure::cost("dht/get", "a get among 64 lanes in memory, likewise", network::get),
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
    let network = NetworkKey::of_name(&NodeConfig::default().network);
    let cookie = Proofs::new(&server(), &network).cookie(&client().public_key(), &ASKER, T.unix_secs());
    let server_key = server().public_key();
    let mut client = sealer(client(), 2);
    let mut targets = LaneRng::new([6; 32]);
    // Carries the server's cookie, as every request but the first does.
    let mut request = move || {
        let (target, mut buffer) = (targets.bytes(), [0; REQUEST_BYTES]);
        let message = Message::FindNode { target, scope: Scope::EXACT };
        let envelope = Envelope { flags: 1, correlation: 7, cookie, message };
        let len = envelope.write(&mut buffer[HEADER_BYTES..]).expect("a small request");
        let len = client.seal(T, &server_key, steering_slot(&id, &target), &mut buffer, len).expect("a usable key");
        assert_eq!(len, REQUEST_BYTES);
        buffer
    };
    let sample = request();
    let sealed = Rc::new(RefCell::new(Vec::<[u8; REQUEST_BYTES]>::new()));
    let refilled = Rc::clone(&sealed);
    let agreed = client_agreement();
    let header = Header::read(&sample).expect("just written");
    let (opens, seals) = (agreed.stream_key(&header), agreed.stream_key(&Header { sender: server_key, ..header }));
    // Of the preamble, the cookie stays in clear.
    let reply_len = PREAMBLE_BYTES + 17 + 16 * CONTACT_BYTES - (CLEAR_BYTES - HEADER_BYTES);
    let ours = move |times| {
        let mut sink = Sink(0);
        let mut requests = sealed.borrow_mut();
        for buffer in requests.iter_mut().take(times as usize) {
            node.on_datagram(T, ASKER, buffer, 0, &mut sink);
            assert!(sink.0 > 16 * CONTACT_BYTES, "a full answer");
            sink.0 = 0;
        }
    };
    let reference = move |times| {
        let mut reply = [0; DATAGRAM_BYTES_MAX];
        for counter in 0..times {
            let mut buffer = black_box(sample);
            let (clear, body) = buffer.split_at_mut(CLEAR_BYTES);
            black_box(opens.open(header.counter, clear, body).expect("authentic"));
            let (clear, body) = reply.split_at_mut(CLEAR_BYTES);
            let tag = seals.seal(counter, clear, &mut body[..reply_len]);
            body[reply_len..][..TAG_BYTES].copy_from_slice(&tag);
            black_box(&reply);
        }
    };
    Pair::new(ours, reference).refilled(REQUESTS_MAX, move |times| {
        let mut requests = refilled.borrow_mut();
        requests.clear();
        requests.extend((0..times).map(|_| request()));
    })
}

/// A request as it comes: header, preamble, target and scope, tag.
const REQUEST_BYTES: usize = HEADER_BYTES + PREAMBLE_BYTES + 33 + TAG_BYTES;

/// Requests sealed beforehand for one sample.
const REQUESTS_MAX: u64 = 1 << 15;

fn client() -> Identity {
    Identity::from_seed(&[2; 32])
}

/// The secret of client and server.
fn client_agreement() -> PairRoot {
    let secret = client().agree(&server().public_key()).expect("usable keys");
    let network = NetworkKey::of_name(&NodeConfig::default().network);
    PairRoot::derive(&secret, &network, &client().public_key(), &server().public_key())
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
