//! A lane that takes its memory at the start takes no more under any datagrams of strangers.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

use alloc_counter::{CountingAllocator, count};
use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::{LaneIndex, PrefixMap, STRIPED_BITS_DEFAULT, Selector, Slot};
use tessera_dht::abuse::AbuseLimits;
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{CommandId, Outcome};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::outbox::{Importance, Logged, MessageClass, Outbox};
use tessera_dht::record::{RecordView, immutable_record, sign_provider};
use tessera_dht::rng::LaneRng;
use tessera_dht::routing::TableLimits;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::seal::{SealLimits, Sealer};
use tessera_dht::store::providers::ProviderLimits;
use tessera_dht::store::records::RecordLimits;
use tessera_dht::time::Now;
use tessera_dht::wire::header::{HEADER_BYTES, Suite};
use tessera_dht::wire::message::{Announcement, Cookie, Envelope, ErrorCode, Message, Token};
use tessera_dht::wire::{BODY_BYTES_MAX, DATAGRAM_BYTES_MAX};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// As many strangers come, and each table has room for half of them: all fill up and go on to forget.
const STRANGERS: u16 = 1200;
const REMEMBERED: usize = 600;
/// Between two strangers.
const PAUSE_MS: u64 = 20;

fn at(stranger: u16) -> Now {
    let ms = u64::from(stranger) * PAUSE_MS;
    Now { mono_ms: 1_000_000 + ms, unix_ms: 1_800_000_000_000 + ms }
}

/// Catches a lane's datagrams in room made beforehand: those for the stranger, and the count of all.
struct Room {
    sent: usize,
    to: Addr,
    caught: [([u8; DATAGRAM_BYTES_MAX], usize); 8],
    caught_len: usize,
    logged: u64,
}

impl Room {
    fn new() -> Self {
        let caught = [([0; DATAGRAM_BYTES_MAX], 0); 8];
        Self { sent: 0, to: Addr::v4([0; 4], 0), caught, caught_len: 0, logged: 0 }
    }
}

impl Outbox for Room {
    fn send(&mut self, to: Addr, datagram: &[u8]) {
        self.sent += 1;
        if to == self.to && self.caught_len < self.caught.len() {
            let (bytes, len) = &mut self.caught[self.caught_len];
            bytes[..datagram.len()].copy_from_slice(datagram);
            *len = datagram.len();
            self.caught_len += 1;
        }
    }
    fn forward(&mut self, _: Slot, _: Addr, _: &[u8], _: u8) {}
    fn message(&mut self, _: LaneIndex, _: MessageClass, _: u8, _: u64, _: &[u8]) {}
    fn log(&mut self, _: u8, _: Slot, _: &[u8], _: Importance) -> Logged {
        self.logged += 1;
        Logged::At(self.logged)
    }
    fn complete(&mut self, _: CommandId, _: Outcome) {}
}

fn own() -> Identity {
    Identity::from_seed(&[1; 32])
}

fn lane(reserve_memory: bool) -> LaneNode {
    let map = PrefixMap::new(Selector::striped(STRIPED_BITS_DEFAULT).unwrap(), 1).unwrap();
    let config = NodeConfig {
        seal: SealLimits { agreements_max: REMEMBERED, streams_max: REMEMBERED, ..SealLimits::default() },
        abuse: AbuseLimits { remembered_max: REMEMBERED, ..AbuseLimits::default() },
        table: TableLimits { peers_max: REMEMBERED, ..TableLimits::default() },
        records: RecordLimits { records_max: REMEMBERED, bytes_max: 1 << 17, ..RecordLimits::default() },
        providers: ProviderLimits { entries_max: REMEMBERED, ..ProviderLimits::default() },
        reserve_memory,
        ..NodeConfig::default()
    };
    LaneNode::new(config, own(), map, LaneIndex(0), [3; 32], at(0))
}

/// A node the lane has never heard of.
struct Stranger {
    sealer: Sealer<Identity>,
    addr: Addr,
    /// The lane's cookie, which proves its address.
    cookie: Cookie,
    now: Now,
}

impl Stranger {
    fn new(n: u16) -> Self {
        let [a, b] = n.to_le_bytes();
        let mut seed = [9; 32];
        seed[..2].copy_from_slice(&[a, b]);
        let network = NetworkKey::of_name(&NodeConfig::default().network);
        let identity = Identity::from_seed(&seed);
        let limits = SealLimits::default();
        let sealer = Sealer::new(identity, network, Suite::Aes256Gcm, &limits, &mut LaneRng::new(seed), at(n));
        // Four of a network each: of the networks that have most in a full store something makes way for others.
        let [net, nets] = (n / 4).to_le_bytes();
        Self { sealer, addr: Addr::v4([20, nets, net, 1 + a % 4], 4000), cookie: Cookie::default(), now: at(n) }
    }

    /// Sends a padded request, and answers if it is asked for its capabilities. Returns how many allocations that cost the lane, and the
    /// token of its answer if it has one.
    fn asks(&mut self, node: &mut LaneNode, room: &mut Room, message: Message<'_>) -> (usize, Option<Token>) {
        (room.to, room.caught_len) = (self.addr, 0);
        let mut token = None;
        let mut allocations = self.sends(node, room, 0, message);
        let mut next = 0;
        while next < room.caught_len {
            let (mut bytes, len) = room.caught[next];
            next += 1;
            let body = self.sealer.open(self.now, &mut bytes[..len], |_, _| true).unwrap().body;
            let Envelope { correlation, cookie, message: said, .. } = Envelope::read(body).unwrap();
            if !matches!(said, Message::Negotiate(_)) {
                self.cookie = cookie; // An answer brings one; a question would show one of ours.
            }
            match said {
                Message::Nodes { token: given, .. } => token = Some(given),
                Message::Negotiate(capabilities) => {
                    let observed = Addr::v4([10, 0, 0, 1], 4000);
                    let here = Message::Negotiated { capabilities, observed };
                    allocations += self.sends(node, room, correlation, here);
                }
                // Of a full store those that are nearer keep their places, and stems that no node takes pile up.
                Message::Error { code, .. } => {
                    assert!(matches!(code, ErrorCode::Full | ErrorCode::Busy), "{code:?} to {message:?}");
                }
                _ => {}
            }
        }
        (allocations, token)
    }

    fn sends(&mut self, node: &mut LaneNode, room: &mut Room, correlation: u64, message: Message<'_>) -> usize {
        let mut datagram = [0; DATAGRAM_BYTES_MAX];
        let envelope = Envelope { flags: 0, correlation, cookie: self.cookie, message };
        envelope.write(&mut datagram[HEADER_BYTES..HEADER_BYTES + BODY_BYTES_MAX]).unwrap();
        let to = own().public_key();
        self.sealer.seal(self.now, &to, 0, &mut datagram, BODY_BYTES_MAX).unwrap();
        count(|| node.on_datagram(self.now, self.addr, &mut datagram, 0, room)).0
    }

    /// Sends a well-sealed datagram without meaning.
    fn rambles(&mut self, node: &mut LaneNode, room: &mut Room) -> usize {
        let mut datagram = [0xff; DATAGRAM_BYTES_MAX];
        self.sealer.seal(self.now, &own().public_key(), 0, &mut datagram, BODY_BYTES_MAX).unwrap();
        count(|| node.on_datagram(self.now, self.addr, &mut datagram, 0, room)).0
    }
}

/// A value whose id is near the lane's own, so that the lane keeps it however many it knows.
fn near(n: u16) -> (ContentId, Vec<u8>) {
    let own = own().node_id();
    (0_u32..)
        .map(|draw| immutable_record(format!("{n} {draw}").as_bytes(), 3600).unwrap())
        .map(|record| (RecordView::read(&record).unwrap().id(), record))
        .find(|(id, _)| own.distance_to(id).leading_zeros() >= 7)
        .unwrap()
}

/// How often a lane allocates when every stranger asks, stores, announces and misbehaves, and time passes meanwhile.
fn allocations_of_strangers(node: &mut LaneNode) -> usize {
    let mut room = Room::new();
    let network = NetworkKey::of_name(&NodeConfig::default().network);
    let (mut sum, ()) = count(|| node.on_start(at(0), &mut room));
    for n in 0..STRANGERS {
        let mut stranger = Stranger::new(n);
        let (id, record) = near(n);
        let (asked, token) =
            stranger.asks(node, &mut room, Message::FindNode { target: *id.as_bytes(), scope: Scope::EXACT });
        let token = token.expect("an answer has a token");
        let store = Message::Store { token, closer_max: 4, record: &record };
        let (stored, _) = stranger.asks(node, &mut room, store);
        let secs = at(n).unix_secs();
        let crypto = stranger.sealer.crypto();
        let signature = sign_provider(crypto, &network, &id, &stranger.addr, secs, 3600);
        let provider = Contact { key: crypto.public_key(), addr: stranger.addr };
        let entry = [&id.as_bytes()[..], &signature[..]].concat();
        let announcement = Announcement::over(provider, secs, 3600, &entry);
        let (announced, _) = stranger.asks(node, &mut room, Message::Announce { token, announcement });
        let rambled = stranger.rambles(node, &mut room);
        let (waited, ()) = count(|| {
            node.on_time(at(n + 1), &mut room);
            // The disk is slow: many wait for it.
            if n % 50 == 0 {
                let logged = room.logged;
                node.on_durable(at(n + 1), logged, &mut room);
            }
        });
        sum += asked + stored + announced + rambled + waited;
    }
    assert!(room.sent > usize::from(STRANGERS) * 2, "all were answered, and some looked for: {}", room.sent);
    for (what, used, most) in node.bounds() {
        assert!(used <= most, "{what}: {used} of {most}");
    }
    sum
}

#[test]
fn whatever_strangers_send_takes_no_memory_where_it_was_reserved() {
    let mut node = lane(true);
    assert_eq!(allocations_of_strangers(&mut node), 0);
    assert!(node.counters().records_stored > REMEMBERED as u64, "more records came than there is room for");
    assert!(node.counters().providers_stored > REMEMBERED as u64, "and providers");
    // Unanswered peers fell silent, lookups ended, and records ran out.
    let mut room = Room::new();
    for step in 1..15_000 {
        let (begun, ms) = (at(STRANGERS), step * 400);
        let now = Now { mono_ms: begun.mono_ms + ms, unix_ms: begun.unix_ms + ms };
        let (allocations, ()) = count(|| node.on_time(now, &mut room));
        assert_eq!(allocations, 0, "after {ms} ms");
    }
    let counters = node.counters();
    assert!(counters.request_timeouts > 100 && counters.lookups_started > 10, "{counters:?}");
}

#[test]
fn where_it_was_not_reserved_tables_grow_with_what_comes() {
    assert!(allocations_of_strangers(&mut lane(false)) > 20);
}
