//! A write is acknowledged when the log says that it is safe, and not before.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod net;

use net::{Disk, Net, Stranger};
use tessera_contracts::point::ContentId;
use tessera_dht::node::command::{Answer, Command};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::record::immutable_record;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::wire::message::{ErrorCode, Message, Token, kind};

/// A token of member 1 for `id`, as anybody gets one.
fn token_for(stranger: &mut Stranger, net: &mut Net, id: &ContentId) -> Token {
    let mut token = None;
    stranger.say(net, 1, Message::FindValue { id: *id, sequence_min: 0 }, |reply| {
        if let Message::Value { token: given, .. } = reply {
            token = Some(*given);
        }
    });
    token.unwrap()
}

fn kinds(stranger: &mut Stranger, net: &mut Net) -> Vec<u8> {
    let mut kinds = Vec::new();
    let from = net.members[1].contact.addr;
    stranger.hear(net, from, &mut |reply| kinds.push(reply.kind()));
    kinds
}

fn store(stranger: &mut Stranger, net: &mut Net, token: Token, record: &[u8]) -> Vec<(u8, Option<ErrorCode>)> {
    let mut replies = Vec::new();
    stranger.say(net, 1, Message::Store { token, record }, |reply| {
        let code = if let Message::Error { code, .. } = reply { Some(*code) } else { None };
        replies.push((reply.kind(), code));
    });
    replies
}

#[test]
fn a_store_is_acknowledged_after_the_log_and_so_is_its_repeat() {
    let mut net = Net::of(3, &NodeConfig::default());
    net.members[1].disk = Disk::Waits;
    let mut stranger = Stranger::new(200, net.now);
    let id = ContentId::of_immutable(b"slow disk");
    let token = token_for(&mut stranger, &mut net, &id);
    let record = immutable_record(b"slow disk", 3600).unwrap();
    assert_eq!(store(&mut stranger, &mut net, token, &record), [], "the log has not said anything yet");
    assert_eq!(store(&mut stranger, &mut net, token, &record), [], "held already, and still not safe");
    net.sync(1);
    assert_eq!(kinds(&mut stranger, &mut net), [kind::STORED, kind::STORED]);
    assert_eq!(store(&mut stranger, &mut net, token, &record), [(kind::STORED, None)], "safe by now");
}

#[test]
fn an_earlier_sync_promises_nothing_about_later_writes() {
    let mut net = Net::of(3, &NodeConfig::default());
    net.members[1].disk = Disk::Waits;
    let mut stranger = Stranger::new(200, net.now);
    let before = net.members[1].logged;
    let id = ContentId::of_immutable(b"one");
    let token = token_for(&mut stranger, &mut net, &id);
    store(&mut stranger, &mut net, token, &immutable_record(b"one", 3600).unwrap());
    let now = net.now;
    net.call(1, |lane, out| lane.on_durable(now, before, out));
    assert_eq!(kinds(&mut stranger, &mut net), [], "that was about what came before");
}

#[test]
fn a_log_that_takes_nothing_makes_a_busy_node_that_holds_nothing() {
    let mut net = Net::of(3, &NodeConfig::default());
    net.members[1].disk = Disk::Full;
    let mut stranger = Stranger::new(200, net.now);
    let id = ContentId::of_immutable(b"full disk");
    let token = token_for(&mut stranger, &mut net, &id);
    let record = immutable_record(b"full disk", 3600).unwrap();
    let busy = [(kind::ERROR, Some(ErrorCode::Busy))];
    assert_eq!(store(&mut stranger, &mut net, token, &record), busy);
    assert!(net.members[1].lanes[0].records().is_empty());
    assert_eq!(store(&mut stranger, &mut net, token, &record), busy, "a repeat is not taken for known");
    net.members[1].disk = Disk::Instant;
    assert_eq!(store(&mut stranger, &mut net, token, &record), [(kind::STORED, None)]);
}

#[test]
fn promises_are_bounded_in_number_and_in_time() {
    let config = NodeConfig { promises_max: 2, ..NodeConfig::default() };
    let mut net = Net::of(3, &config);
    net.members[1].disk = Disk::Waits;
    let mut stranger = Stranger::new(200, net.now);
    for (n, expected) in [(0, vec![]), (1, vec![]), (2, vec![(kind::ERROR, Some(ErrorCode::Busy))])] {
        let value = [n; 9];
        let token = token_for(&mut stranger, &mut net, &ContentId::of_immutable(&value));
        let record = immutable_record(&value, 3600).unwrap();
        assert_eq!(store(&mut stranger, &mut net, token, &record), expected, "the {n}-th");
    }
    net.run(4000);
    let token = token_for(&mut stranger, &mut net, &ContentId::of_immutable(b"later"));
    let record = immutable_record(b"later", 3600).unwrap();
    assert_eq!(store(&mut stranger, &mut net, token, &record), [], "there is room again, and no answer yet");
    net.sync(1);
    assert_eq!(kinds(&mut stranger, &mut net), [kind::STORED], "those given up are not answered");
}

#[test]
fn a_put_counts_only_holders_whose_logs_have_spoken() {
    let mut net = Net::of(8, &NodeConfig::default());
    for n in 1..4 {
        net.members[n].disk = Disk::Waits;
    }
    let put = net.ask(0, Command::Put { record: immutable_record(b"half", 3600).unwrap(), keep_alive: false });
    let Answer::Written(written) = put.answer else { panic!("{put:?}") };
    assert_eq!((written.holders, written.acknowledged, written.silent), (7, 4, 3));
}

#[test]
fn a_token_for_one_id_does_not_write_another() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let token = token_for(&mut stranger, &mut net, &ContentId::of_immutable(b"this"));
    let other = immutable_record(b"other", 3600).unwrap();
    let refused = [(kind::ERROR, Some(ErrorCode::BadToken))];
    assert_eq!(store(&mut stranger, &mut net, token, &other), refused);
    let this = immutable_record(b"this", 3600).unwrap();
    assert_eq!(store(&mut stranger, &mut net, token, &this), [(kind::STORED, None)]);
}

#[test]
fn a_region_token_is_no_wider_than_where_the_node_can_be_a_holder() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let scope_given = |net: &mut Net, stranger: &mut Stranger, scope| {
        let mut given = None;
        stranger.say(net, 1, Message::FindNode { target: [7; 32], scope }, |reply| {
            if let Message::Nodes { token, .. } = reply {
                given = Some(Scope::of_token(token));
            }
        });
        given.unwrap()
    };
    // Of three nodes each is a holder of everything.
    assert_eq!(scope_given(&mut net, &mut stranger, Scope::region(0)), Scope::region(0));
    assert_eq!(scope_given(&mut net, &mut stranger, Scope::EXACT), Scope::EXACT);
    // With K = 1 and eight times that as the region, four hundred known peers leave no room for a token of everything.
    let mut config = NodeConfig::default();
    config.lookup.k = 1;
    config.table.k = 20;
    net.members[1].lanes[0] = net::lane(1, &config, &net::map(1), 0, net.now);
    for n in 300..700 {
        use tessera_dht::identity::Crypto as _;
        let key = net::identity(n).public_key();
        let addr = tessera_dht::addr::Addr::v4([11, (n >> 8) as u8, n as u8, 1], 4000);
        let mut payload = [0xff; 54];
        payload[..50].copy_from_slice(&tessera_dht::contact::Contact { key, addr }.to_wire());
        let now = net.now;
        net.call(1, |lane, out| lane.on_message(now, tessera_dht::node::outbox::message_kind::CONTACT, &payload, out));
    }
    let given = scope_given(&mut net, &mut stranger, Scope::region(0));
    assert!(given >= Scope::region(2) && given < Scope::EXACT, "{given:?}");
}
