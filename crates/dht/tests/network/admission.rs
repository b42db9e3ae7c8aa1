//! Attacks on what a lane remembers and whom it serves: each must leave those alone who are not part of it.

use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::abuse::AbuseLimits;
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity};
use tessera_dht::node::command::Command;
use tessera_dht::node::config::NodeConfig;
use tessera_dht::record::{immutable_record, sign_provider};
use tessera_dht::seal::SealLimits;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::store::providers::ProviderLimits;
use tessera_dht::store::records::RecordLimits;
use tessera_dht::wire::DATAGRAM_BYTES_MAX;
use tessera_dht::wire::header::{CLEAR_BYTES, Challenge, HEADER_BYTES, Header};
use tessera_dht::wire::message::{Announcement, Envelope, ErrorCode, Message, Token, kind};

use crate::net::{Net, Stranger, identity, sealer, sealer_from};

/// A datagram of a stranger to a member, with the cookie that it has.
fn sealed(stranger: &mut Stranger, net: &Net, to: usize, message: Message<'_>) -> Vec<u8> {
    let contact = net.members[to].contact;
    let cookie = stranger.cookies.get(&contact.addr).copied().unwrap_or_default();
    let envelope = Envelope { flags: stranger.flags, correlation: 0x500, cookie, message };
    let mut datagram = [0; DATAGRAM_BYTES_MAX];
    let room = DATAGRAM_BYTES_MAX - HEADER_BYTES - 16;
    envelope.write(&mut datagram[HEADER_BYTES..HEADER_BYTES + room]).unwrap();
    let len = stranger.sealer.seal(net.now, &contact.key, 0, &mut datagram, room).unwrap();
    datagram[..len].to_vec()
}

/// Hands a member a datagram, and counts what it sends to where that seems to come from.
fn deliver(net: &mut Net, to: usize, from: Addr, datagram: &[u8]) -> usize {
    let (now, mut bytes) = (net.now, datagram.to_vec());
    net.call(to, |lane, out| lane.on_datagram(now, from, &mut bytes, 0, out));
    let before = net.flying.len();
    net.flying.retain(|(_, addr, _)| *addr != from);
    before - net.flying.len()
}

/// The codes and kinds of what member 1 answers.
fn answers(stranger: &mut Stranger, net: &mut Net, message: Message<'_>) -> Vec<(u8, Option<ErrorCode>)> {
    let mut answers = Vec::new();
    stranger.say(net, 1, message, |reply| {
        let code = if let Message::Error { code, .. } = reply { Some(*code) } else { None };
        answers.push((reply.kind(), code));
    });
    answers
}

/// A stranger that has shown its address to member 1.
fn proven(seed: u8, addr: Addr, net: &mut Net) -> Stranger {
    let mut stranger = Stranger { addr, ..Stranger::new(seed, net.now) };
    assert_eq!(answers(&mut stranger, net, Message::Ping), [(kind::PONG, None)]);
    stranger
}

const FEW_STREAMS: SealLimits = SealLimits {
    agreements_max: 64,
    streams_max: 64,
    streams_per_peer_max: 8,
    prefix_share: 8,
    keys_max: 16,
    stranger_agreements_per_sec: 100_000,
    stranger_agreements_burst: 100_000,
};

fn few_streams() -> NodeConfig {
    let abuse = AbuseLimits {
        strangers_per_prefix_per_sec: 10_000,
        unproven_strangers_per_sec: 10_000,
        ..AbuseLimits::default()
    };
    NodeConfig { seal: FEW_STREAMS, abuse, ..NodeConfig::default() }
}

/// A member of the network `few_streams` and a datagram that it has answered.
fn answered_once(net: &mut Net) -> (Addr, Vec<u8>) {
    let addr = Addr::v4([198, 51, 100, 7], 9);
    let mut peer = proven(90, addr, net);
    let datagram = sealed(&mut peer, net, 1, Message::Ping);
    assert_eq!(deliver(net, 1, addr, &datagram), 1);
    assert_eq!(deliver(net, 1, addr, &datagram), 0, "a replay");
    (addr, datagram)
}

#[test]
fn one_identity_with_ever_new_incarnations_does_not_bring_back_what_others_sent() {
    let mut net = Net::of(2, &few_streams());
    let (addr, datagram) = answered_once(&mut net);
    let attacker = Addr::v4([203, 0, 113, 5], 9);
    let mut cookie = None;
    for n in 0..200_u8 {
        let sealer = sealer_from(Identity::from_seed(&[91; 32]), net.now, [n; 32]);
        let mut lane = Stranger { sealer, addr: attacker, ..Stranger::new(91, net.now) };
        // It has shown its address: that does not change what it may displace.
        lane.cookies.extend(cookie.map(|cookie| (net.members[1].contact.addr, cookie)));
        answers(&mut lane, &mut net, Message::Ping);
        cookie = lane.cookies.into_values().next();
    }
    assert_eq!(deliver(&mut net, 1, addr, &datagram), 0, "a replay is never answered");
}

#[test]
fn identities_at_made_up_addresses_do_not_bring_back_what_others_sent() {
    let mut net = Net::of(2, &few_streams());
    let (addr, datagram) = answered_once(&mut net);
    for n in 0..200 {
        let sealer = sealer(identity(1000 + n), net.now);
        let from = Addr::v4([203, n as u8, 113, 5], 9);
        let mut stranger = Stranger { sealer, addr: from, ..Stranger::new(92, net.now) };
        let knock = sealed(&mut stranger, &net, 1, Message::Ping);
        deliver(&mut net, 1, from, &knock);
    }
    assert_eq!(deliver(&mut net, 1, addr, &datagram), 0, "a replay is never answered");
}

#[test]
fn identities_of_one_network_do_not_bring_back_what_others_sent() {
    let mut net = Net::of(2, &few_streams());
    let (addr, datagram) = answered_once(&mut net);
    for n in 0..200 {
        let from = Addr::v4([203, 0, 113, n as u8], 9);
        let mut stranger = Stranger { addr: from, ..Stranger::new(93, net.now) };
        stranger.sealer = sealer(identity(1000 + n), net.now);
        for _ in 0..2 {
            answers(&mut stranger, &mut net, Message::Ping);
        }
    }
    assert_eq!(deliver(&mut net, 1, addr, &datagram), 0, "a replay is never answered");
}

#[test]
fn a_good_bye_counts_only_from_where_the_contact_has_shown_to_be() {
    let mut net = Net::of(6, &NodeConfig::default());
    let leaver = net.members[5].contact;
    let knows = |net: &Net| net.members[1].lanes[0].table().get(&leaver.id()).is_some();
    let mut forger = Stranger { sealer: sealer(identity(5), net.now), flags: 0, ..Stranger::new(94, net.now) };
    for from in [forger.addr, leaver.addr] {
        let good_bye = sealed(&mut forger, &net, 1, Message::Leaving);
        deliver(&mut net, 1, from, &good_bye);
        assert!(knows(&net), "without a cookie, from {from}");
    }
    // It shows that it is elsewhere: that is not where it is known.
    answers(&mut forger, &mut net, Message::Ping);
    let good_bye = sealed(&mut forger, &net, 1, Message::Leaving);
    deliver(&mut net, 1, forger.addr, &good_bye);
    assert!(knows(&net), "from elsewhere");
}

#[test]
fn made_up_addresses_do_not_spend_the_limit_of_a_network() {
    let abuse = AbuseLimits { per_prefix_per_sec: 10, burst_secs: 1, ..AbuseLimits::default() };
    let mut net = Net::of(3, &NodeConfig { abuse, ..NodeConfig::default() });
    let mut honest = proven(200, Addr::v4([198, 51, 100, 7], 9), &mut net);
    let spoofed = Addr { port: 10, ..honest.addr };
    let mut spoofer = Stranger::new(201, net.now);
    for _ in 0..20 {
        let knock = sealed(&mut spoofer, &net, 1, Message::Ping);
        deliver(&mut net, 1, spoofed, &knock);
    }
    assert_eq!(answers(&mut honest, &mut net, Message::Ping), [(kind::PONG, None)]);
}

#[test]
fn neither_one_asker_nor_one_network_takes_all_relays() {
    let mut net = Net::of(4, &NodeConfig { relays_max: 16, ..NodeConfig::default() });
    let nowhere = Contact { addr: Addr::v4([203, 0, 113, 9], 9), ..net.members[3].contact };
    let relay = Message::Relay { to: nowhere, kind: kind::FIND_NODE, payload: &[0xff; 33] };
    let mut greedy = proven(200, Addr::v4([198, 51, 100, 7], 9), &mut net);
    let mut taken = (0..16).filter(|_| answers(&mut greedy, &mut net, relay).is_empty()).count();
    assert_eq!(taken, 2, "by one asker");
    for n in 0..8 {
        let mut neighbour = proven(210 + n, Addr::v4([198, 51, 100, 10 + n], 9), &mut net);
        taken += usize::from(answers(&mut neighbour, &mut net, relay).is_empty());
    }
    assert_eq!(taken, 4, "by one network");
    let mut honest = proven(201, Addr::v4([192, 0, 2, 7], 9), &mut net);
    assert_eq!(answers(&mut honest, &mut net, relay), [], "it is being asked");
}

#[test]
fn a_public_node_asks_no_private_address_for_others() {
    let public = Addr::v4([198, 51, 100, 1], 4000);
    for (public_addr, relayed) in [(Some(public), false), (None, true)] {
        let mut net = Net::of(4, &NodeConfig { public_addr, ..NodeConfig::default() });
        let mut asker = proven(200, Addr::v4([192, 0, 2, 7], 9), &mut net);
        let inside = Contact { addr: Addr::v4([10, 200, 1, 9], 9), key: identity(77).public_key() };
        let relay = Message::Relay { to: inside, kind: kind::FIND_NODE, payload: &[0xff; 33] };
        assert_eq!(answers(&mut asker, &mut net, relay).is_empty(), relayed);
        assert_eq!(net.flying.iter().any(|(_, to, _)| *to == inside.addr), relayed);
    }
}

fn token_for(stranger: &mut Stranger, net: &mut Net, id: &ContentId) -> Token {
    let mut token = [0; 16];
    let question = Message::FindNode { target: *id.as_bytes(), scope: Scope::EXACT };
    stranger.say(net, 1, question, |reply| {
        if let Message::Nodes { token: given, .. } = reply {
            token = *given;
        }
    });
    token
}

/// Says that the stranger provides `id`. Whether it was kept.
fn announce(seed: u8, addr: Addr, net: &mut Net, id: &ContentId, ttl_secs: u32) -> bool {
    let mut stranger = proven(seed, addr, net);
    let token = token_for(&mut stranger, net, id);
    let (identity, network) = (Identity::from_seed(&[seed; 32]), NetworkKey::of_name("tessera"));
    let issued_secs = net.now.unix_secs();
    let signature = sign_provider(&identity, &network, id, &addr, issued_secs, ttl_secs);
    let entry = [&id.as_bytes()[..], &signature].concat();
    let provider = Contact { key: identity.public_key(), addr };
    let announcement = Announcement::over(provider, issued_secs, ttl_secs, &entry);
    let mut kept = false;
    stranger.say(net, 1, Message::Announce { token, announcement }, |reply| {
        kept |= matches!(reply, Message::Announced { kept: 1 });
    });
    kept
}

#[test]
fn many_identities_do_not_evict_an_ids_providers() {
    let providers = ProviderLimits { per_id_max: 8, ..ProviderLimits::default() };
    let mut net = Net::of(2, &NodeConfig { providers, ..NodeConfig::default() });
    let id = ContentId::of_immutable(b"provided");
    for n in 0..4 {
        assert!(announce(100 + n, Addr::v4([192, 0, n, 7], 9), &mut net, &id, 3600));
    }
    // They stay longer, and come from two networks.
    for n in 0..64 {
        announce(110 + n, Addr::v4([203, 0, n % 2, 7 + n], 9), &mut net, &id, 7200);
    }
    let held: Vec<_> = net.members[1].lanes[0].providers().of(&id).map(|provider| provider.provider).collect();
    for n in 0..4 {
        let honest = Identity::from_seed(&[100 + n; 32]).public_key();
        assert!(held.iter().any(|provider| provider.key == honest), "provider {n} is still held");
    }
}

#[test]
fn what_is_stored_near_a_node_on_purpose_does_not_evict_what_others_gave() {
    let records = RecordLimits { records_max: 16, ..RecordLimits::default() };
    let mut net = Net::of(2, &NodeConfig { records, ..NodeConfig::default() });
    let own = net.members[1].lanes[0].id();
    let mut store = |stranger: &mut Stranger, value: &[u8]| {
        let id = ContentId::of_immutable(value);
        let token = token_for(stranger, &mut net, &id);
        let record = immutable_record(value, 3600).unwrap();
        answers(stranger, &mut net, Message::Store { token, closer_max: 0, record: &record });
        (id, net.members[1].lanes[0].records().peek(&id).is_some())
    };
    let mut strangers: Vec<Stranger> = Vec::new();
    let start = Net::empty().now;
    for n in 0..4 {
        strangers.push(Stranger { addr: Addr::v4([192, 0, n, 7], 9), ..Stranger::new(100 + n, start) });
    }
    let given: Vec<_> = (0..8_u8).map(|n| store(&mut strangers[usize::from(n) % 4], &[n, 1]).0).collect();
    // An attacker of two networks tries values until their ids are nearer than all that is held.
    let nearest = given.iter().map(|id| own.distance_to(id)).min().unwrap();
    let mut ground =
        (0..u64::MAX).map(u64::to_le_bytes).filter(|value| own.distance_to(&ContentId::of_immutable(value)) < nearest);
    for n in 0..64 {
        let addr = Addr::v4([203, 0, n % 2, 7 + n], 9);
        let mut attacker = Stranger { addr, ..Stranger::new(110 + n, start) };
        store(&mut attacker, &ground.next().unwrap());
    }
    let records = net.members[1].lanes[0].records();
    let left = given.iter().filter(|id| records.peek(id).is_some()).count();
    assert_eq!(left, given.len(), "of what the others gave");
}

#[test]
fn a_newcomer_that_is_challenged_asks_again_with_the_cookie_and_joins() {
    let abuse = AbuseLimits { unproven_strangers_per_sec: 1, ..AbuseLimits::default() };
    let config = NodeConfig { abuse, ..NodeConfig::default() };
    for lanes in [1, 3] {
        let mut net = Net::of(6, &config);
        for n in 0..10 {
            let mut stranger = Stranger { sealer: sealer(identity(1000 + n), net.now), ..Stranger::new(95, net.now) };
            let knock = sealed(&mut stranger, &net, 0, Message::Ping);
            deliver(&mut net, 0, stranger.addr, &knock);
        }
        let newcomer = net.join(lanes, &config);
        net.run(5000);
        let seed = net.members[0].contact.id();
        let lanes = &net.members[newcomer].lanes;
        assert!(lanes.iter().map(|lane| lane.counters().challenges_taken).sum::<u64>() > 0, "its first request");
        for (at, lane) in lanes.iter().enumerate() {
            assert_eq!(lane.counters().request_timeouts, 0, "lane {at} was not left waiting");
            assert!(lane.table().get(&seed).is_some() && lane.health(net.now).joined, "lane {at}");
        }
    }
}

#[test]
fn a_challenge_counts_once_and_only_for_a_request_in_flight_to_who_sends_it() {
    let mut net = Net::of(2, &NodeConfig::default());
    let asked = Contact { key: identity(50).public_key(), addr: Addr::v4([10, 9, 9, 9], 9) };
    net.tell(1, None, Command::Ping { contact: asked });
    let sent = |net: &mut Net| {
        let all = std::mem::take(&mut net.flying);
        all.into_iter().filter(|(_, to, _)| *to == asked.addr).map(|(.., bytes)| bytes).collect::<Vec<_>>()
    };
    let first = sent(&mut net).pop().unwrap();
    let header = Header::read(&first).unwrap();
    let challenge = Challenge::to(&header, &first, asked.key, [7; 8]).unwrap();
    let mut answer = |challenge: Challenge, from: Addr| {
        let (now, mut bytes) = (net.now, challenge.to_wire());
        net.call(1, |lane, out| lane.on_datagram(now, from, &mut bytes, 0, out));
        sent(&mut net).iter().map(|again| again[HEADER_BYTES..CLEAR_BYTES].to_vec()).collect::<Vec<_>>()
    };
    let nothing: [Vec<u8>; 0] = [];
    assert_eq!(answer(Challenge { tag: [0; 16], ..challenge }, asked.addr), nothing, "it has not seen the datagram");
    assert_eq!(answer(Challenge { counter: challenge.counter + 64, ..challenge }, asked.addr), nothing);
    assert_eq!(answer(Challenge { incarnation: [0; 16], ..challenge }, asked.addr), nothing);
    assert_eq!(answer(Challenge { sender: identity(51).public_key(), ..challenge }, asked.addr), nothing);
    assert_eq!(answer(challenge, Addr { port: 10, ..asked.addr }), nothing);
    assert_eq!(answer(challenge, asked.addr), [[7; 8]], "asked again with the cookie");
    assert_eq!(answer(challenge, asked.addr), nothing);
}
