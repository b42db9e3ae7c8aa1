//! Serving a request and stepping a lookup allocate nothing.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use alloc_counter::{CountingAllocator, count};
use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::lookup::{Goal, Lookup, LookupConfig};
use tessera_dht::node::command::{Command, CommandId, Outcome, Privacy};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox, message_kind};
use tessera_dht::node::{LaneNode, steering_slot};
use tessera_dht::rng::LaneRng;
use tessera_dht::routing::RoutingTable;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::time::Now;
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::{Contacts, Envelope, Message};
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const T: Now = Now { mono_ms: 1_000_000, unix_ms: 1_800_000_000_000 };

/// Takes effects without keeping them.
#[derive(Default)]
struct Sink {
    sent: usize,
    bytes: usize,
}

impl Outbox for Sink {
    fn send(&mut self, _: Addr, datagram: &[u8]) {
        self.sent += 1;
        self.bytes += datagram.len();
    }
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        Logged::Safe
    }
    fn complete(&mut self, _: CommandId, _: Outcome) {}
}

fn identity(n: u16) -> Identity {
    let mut seed = [9; 32];
    seed[..2].copy_from_slice(&n.to_le_bytes());
    Identity::from_seed(&seed)
}

fn contact(n: u16) -> Contact {
    let [a, b] = n.to_le_bytes();
    Contact { key: identity(n).public_key(), addr: Addr::v4([10, a, b, 1], 4000) }
}

/// Which contact lives at an address.
fn number_at(addr: Addr) -> u16 {
    (0..400).find(|n| contact(*n).addr == addr).unwrap()
}

/// A lane with a full table.
fn lane() -> LaneNode {
    let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).unwrap(), 1).unwrap();
    let identity = Identity::from_seed(&[1; 32]);
    let mut node = LaneNode::new(NodeConfig::default(), identity, map, LaneIndex(0), [3; 32], T);
    for n in 0..200 {
        let mut payload = [0xff; 54];
        payload[..50].copy_from_slice(&contact(n).to_wire());
        node.on_message(T, message_kind::CONTACT, &payload, &mut Sink::default());
    }
    assert!(node.table().live_len() > 50);
    node
}

/// A peer that asks the lane.
struct Client {
    sealer: Sealer<Identity>,
    to: Contact,
}

impl Client {
    fn new() -> Self {
        let mut rng = LaneRng::new([4; 32]);
        let network = NetworkKey::of_name(&NodeConfig::default().network);
        let identity = Identity::from_seed(&[2; 32]);
        let sealer = Sealer::new(identity, network, Suite::Aes256Gcm, &SealLimits::default(), &mut rng, T);
        let key = Identity::from_seed(&[1; 32]).public_key();
        Self { sealer, to: Contact { key, addr: Addr::v4([10, 0, 0, 1], 4000) } }
    }

    /// A padded request, so that its answer may be of any size.
    fn request(&mut self, message: Message<'_>) -> [u8; DATAGRAM_BYTES_MAX] {
        let mut buffer = [0; DATAGRAM_BYTES_MAX];
        let envelope = Envelope { flags: 1, correlation: 0, cookie: [0; 8], message };
        envelope.write(&mut buffer[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]).unwrap();
        let slot = steering_slot(&self.to.id(), &[7; 32]);
        self.sealer.seal(T, &self.to.key, slot, &mut buffer, BODY_BYTES_MAX).unwrap();
        buffer
    }
}

const FROM: Addr = Addr::v4([192, 0, 2, 1], 5000);

#[test]
fn opening_routing_and_answering_a_request_allocates_nothing() {
    let (mut node, mut client) = (lane(), Client::new());
    let id = ContentId::from_bytes([7; 32]);
    let messages = [
        Message::FindNode { target: [7; 32], scope: Scope::EXACT },
        Message::FindValue { id, sequence_min: 0 },
        Message::GetProviders { id, page: 0, parts_max: 5 },
        Message::Ping,
    ];
    let mut sink = Sink::default();
    // The first datagram of a stranger makes an agreement; memory for it was reserved at the start.
    for message in messages {
        let mut datagram = client.request(message);
        let (allocations, ()) = count(|| node.on_datagram(T, FROM, &mut datagram, 0, &mut sink));
        assert_eq!(allocations, 0, "{message:?}");
    }
    assert_eq!(sink.sent, messages.len(), "every request was answered");
    assert!(sink.bytes > 16 * 50, "with contacts");
    assert_eq!(node.counters().requests_served, messages.len() as u64);
}

#[test]
fn forgeries_and_replays_allocate_nothing_and_draw_no_answer() {
    let (mut node, mut client) = (lane(), Client::new());
    let mut sink = Sink::default();
    let original = client.request(Message::Ping);
    let mut forged = original;
    forged[700] ^= 1;
    let (allocations, ()) = count(|| node.on_datagram(T, FROM, &mut forged, 0, &mut sink));
    assert_eq!(allocations, 0);
    node.on_datagram(T, FROM, &mut original.clone(), 0, &mut sink);
    let (allocations, ()) = count(|| node.on_datagram(T, FROM, &mut original.clone(), 0, &mut sink));
    assert_eq!((allocations, sink.sent), (0, 1));
    assert_eq!((node.counters().refused_forged, node.counters().refused_replay), (1, 1));
}

#[test]
fn a_lookup_step_allocates_nothing_and_starting_over_neither() {
    let contacts: Vec<_> = (0..300).map(|n| (contact(n).id(), contact(n))).collect();
    let mut lookup = Lookup::new();
    for round in 0..2 {
        let (allocations, steps) = count(|| {
            let mut steps = 0;
            let radius = contacts[0].0.distance_to(&contacts[1].0);
            lookup.start(0, LookupConfig::default(), [round; 32], Goal::Nodes, radius);
            for (id, contact) in contacts.iter().take(20) {
                lookup.offer(*id, *contact, Some(100));
            }
            while lookup.finished(steps).is_none() {
                steps += 1;
                if let Some(ask) = lookup.next(steps, |_| true) {
                    let from = (steps as usize * 16) % 280;
                    if steps % 5 == 0 {
                        lookup.timed_out(steps, &ask.id);
                    } else {
                        lookup.answered(steps, &ask.id, [0; 16], contacts[from..from + 16].iter().copied());
                    }
                }
            }
            steps
        });
        assert!(steps > 20);
        assert_eq!(allocations, 0);
    }
}

/// Catches a lane's datagrams in room made beforehand.
struct Catch {
    sent: [(Addr, [u8; DATAGRAM_BYTES_MAX], usize); 16],
    len: usize,
    completed: usize,
}

impl Outbox for Catch {
    fn send(&mut self, to: Addr, datagram: &[u8]) {
        let (addr, bytes, len) = &mut self.sent[self.len];
        (*addr, *len) = (to, datagram.len());
        bytes[..datagram.len()].copy_from_slice(datagram);
        self.len += 1;
    }
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        Logged::Safe
    }
    fn complete(&mut self, _: CommandId, _: Outcome) {
        self.completed += 1;
    }
}

#[test]
fn a_reply_that_moves_a_lookup_on_allocates_nothing_in_the_whole_lane() {
    let steps = replies_without_allocation(Command::FindNode { target: [7; 32] });
    assert!(steps >= 10, "{steps} steps");
}

#[test]
fn neither_does_the_second_half_of_a_blind_lookup() {
    let id = ContentId::from_bytes([7; 32]);
    let steps = replies_without_allocation(Command::Get { id, mutable: true, privacy: Privacy::Blind });
    assert!(steps >= 40, "the region first, and then the id: {steps} steps");
}

#[test]
fn neither_does_a_lookup_that_ends_in_vain_and_asks_lost_contacts() {
    let mut node = lane();
    let silent: Vec<_> = node.table().iter_live().map(|peer| (peer.id, peer.contact)).step_by(2).collect();
    for (id, contact) in &silent {
        // A peer in no table that fell silent to another lane is remembered as lost.
        node.on_message(T, message_kind::LEFT, id.as_bytes(), &mut Sink::default());
        node.on_message(T, message_kind::SILENT, &contact.to_wire(), &mut Sink::default());
    }
    let get = Command::Get { id: ContentId::from_bytes([7; 32]), mutable: false, privacy: Privacy::None };
    let mut asked = Vec::with_capacity(128);
    replies_of(&mut node, get, |addr| asked.push(addr));
    let lost = silent.iter().filter(|(_, contact)| asked.contains(&contact.addr)).count();
    assert!(lost >= 4, "{lost} of those lost were asked");
}

/// Answers a command's requests until it completes, or a hundred replies have come, and says how many there were.
fn replies_without_allocation(command: Command) -> u8 {
    replies_of(&mut lane(), command, |_| {})
}

fn replies_of(node: &mut LaneNode, command: Command, mut asked: impl FnMut(Addr)) -> u8 {
    let mut out = Catch { sent: [(FROM, [0; DATAGRAM_BYTES_MAX], 0); 16], len: 0, completed: 0 };
    node.on_command(T, CommandId(1), command, &mut out);
    let own = Identity::from_seed(&[1; 32]).public_key();
    let network = NetworkKey::of_name(&NodeConfig::default().network);
    let mut named: [u8; 16 * 50] = [0; 16 * 50];
    let (mut steps, mut next_named) = (0_u8, 200);
    while steps < 100 && out.len > 0 {
        out.len -= 1;
        let (addr, mut bytes, len) = out.sent[out.len];
        asked(addr);
        let n = number_at(addr);
        // The peer answers with sixteen contacts that the lane has never heard of.
        let mut rng = LaneRng::new([n as u8 ^ steps.wrapping_mul(3); 32]);
        let mut peer = Sealer::new(identity(n), network, Suite::Aes256Gcm, &SealLimits::default(), &mut rng, T);
        let body = peer.open(T, &mut bytes[..len], |_, _| true).unwrap().body;
        let question = Envelope::read(body).unwrap();
        let (correlation, for_a_value) = (question.correlation, matches!(question.message, Message::FindValue { .. }));
        for (entry, m) in named.as_chunks_mut::<50>().0.iter_mut().zip(next_named..) {
            *entry = contact(200 + m % 200).to_wire();
        }
        next_named += 16;
        let message = if for_a_value {
            Message::Value { token: [255; 16], record: None, closer: Contacts::over(&named[..8 * 50]) }
        } else {
            Message::Nodes { token: [255; 16], contacts: Contacts::over(&named) }
        };
        let envelope = Envelope { flags: 0, correlation, cookie: [7; 8], message };
        let mut reply = [0; DATAGRAM_BYTES_MAX];
        let len = envelope.write(&mut reply[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]).unwrap();
        let len = peer.seal(T, &own, correlation as u8, &mut reply, len).unwrap();
        let before = out.completed;
        let (allocations, ()) = count(|| node.on_datagram(T, addr, &mut reply[..len], 0, &mut out));
        if out.completed > before {
            break; // An outcome is handed over, and that is memory.
        }
        assert_eq!(allocations, 0, "step {steps}");
        steps += 1;
    }
    steps
}

#[test]
fn touching_a_bucket_allocates_nothing() {
    let contacts: Vec<_> = (0..300).map(|n| (contact(n).id(), contact(n))).collect();
    let own = Identity::from_seed(&[1; 32]).node_id();
    let mut table = RoutingTable::new(own, NodeConfig::default().table);
    let (allocations, ()) = count(|| {
        for round in 0..3 {
            for (id, contact) in &contacts {
                table.answered(round * 40_000, *id, *contact, Some(50 + round));
                table.silent(id);
            }
        }
    });
    assert_eq!(allocations, 0);
    assert!(table.live_len() > 50);
}
