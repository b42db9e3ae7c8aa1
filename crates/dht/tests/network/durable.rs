//! A write is acknowledged when the log says that it is safe, and not before.

use crate::net::{self, Disk, Net, Stranger};
use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, Identity, PublicKey};
use tessera_dht::node::command::{Answer, Command};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::log::log_kind;
use tessera_dht::record::{MutableDraft, RecordView, immutable_record, mutable_record, sign_provider};
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::store::records::{Class, RecordLimits};
use tessera_dht::wire::message::{Announcement, Contacts, ErrorCode, Message, Token, kind};

/// A token of member 1 for `id`, as any asker gets one.
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
    stranger.say(net, 1, Message::Store { token, closer_max: 0, record }, |reply| {
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

/// Member 1's entry of `id`: sequence, class, expiry, and giver.
fn kept(net: &Net, id: &ContentId) -> Option<(u64, Class, u64, PublicKey)> {
    let kept = net.members[1].lanes[0].records().peek(id)?;
    Some((RecordView::read(kept.bytes).unwrap().sequence(), kept.class, kept.expires_secs, kept.giver))
}

/// Member 1 starts again from its log.
fn restart(net: &mut Net) {
    let now = net.now;
    net.members[1].lanes[0] = net::lane_again(1, now);
    for (kind, payload) in net.members[1].log.clone() {
        net.call(1, |lane, _| lane.on_record(now, kind, &payload));
    }
}

#[test]
fn a_version_that_the_log_refuses_leaves_the_one_before_it_held() {
    let mut net = Net::of(3, &NodeConfig::default());
    let (mut first, mut second) = (Stranger::new(200, net.now), Stranger::new(201, net.now));
    let versions = [5, 6].map(|sequence| net::mutable(7, sequence, Some(b"value"), net.now));
    let id = RecordView::read(&versions[0]).unwrap().id();
    let token = token_for(&mut first, &mut net, &id);
    store(&mut first, &mut net, token, &versions[0]);
    let before = kept(&net, &id);
    let expires_secs = net.now.unix_secs() + 3600;
    assert_eq!(before, Some((5, Class::Held, expires_secs, Identity::from_seed(&[200; 32]).public_key())));
    net.members[1].disk = Disk::Full;
    let token = token_for(&mut second, &mut net, &id);
    assert_eq!(store(&mut second, &mut net, token, &versions[1]), [(kind::ERROR, Some(ErrorCode::Busy))]);
    assert_eq!(kept(&net, &id), before, "the log has it");
    // As for a version that the node puts itself.
    net.put(1, versions[1].clone());
    assert_eq!(kept(&net, &id), before);
    net.members[1].disk = Disk::Instant;
    assert_eq!(store(&mut second, &mut net, token, &versions[1]), [(kind::STORED, None)]);
    assert_eq!(kept(&net, &id).map(|(sequence, ..)| sequence), Some(6));
}

#[test]
fn a_record_that_the_log_refuses_takes_the_place_of_nothing() {
    let records = RecordLimits { records_max: 1, ..RecordLimits::default() };
    let mut net = Net::of(3, &NodeConfig { records, ..NodeConfig::default() });
    let mut stranger = Stranger::new(200, net.now);
    let own = net.members[1].contact.id();
    let mut values: Vec<[u8; 1]> = (0..8).map(|n| [n]).collect();
    values.sort_by_key(|value| own.distance_to(&ContentId::of_immutable(value)));
    let (near, far) = (ContentId::of_immutable(&values[0]), ContentId::of_immutable(&values[7]));
    let [near_token, far_token] = [&near, &far].map(|id| token_for(&mut stranger, &mut net, id));
    let [near_record, far_record] = [values[0], values[7]].map(|value| immutable_record(&value, 3600).unwrap());
    assert_eq!(store(&mut stranger, &mut net, far_token, &far_record), [(kind::STORED, None)]);
    net.members[1].disk = Disk::Full;
    let busy = [(kind::ERROR, Some(ErrorCode::Busy))];
    assert_eq!(store(&mut stranger, &mut net, near_token, &near_record), busy);
    assert_eq!((kept(&net, &near), kept(&net, &far).is_some()), (None, true));
    net.members[1].disk = Disk::Instant;
    assert_eq!(store(&mut stranger, &mut net, near_token, &near_record), [(kind::STORED, None)]);
    assert_eq!((kept(&net, &near).is_some(), kept(&net, &far)), (true, None), "the farther one makes way");
}

#[test]
fn an_announcement_that_the_log_refuses_leaves_the_one_before_it_held() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let (id, provider) = (ContentId::from_bytes([0x42; 32]), Identity::from_seed(&[200; 32]));
    let token = token_for(&mut stranger, &mut net, &id);
    let mut announce = |net: &mut Net, issued_secs: u64| {
        let contact = Contact { key: provider.public_key(), addr: stranger.addr };
        let network = NetworkKey::of_name("tessera");
        let mut entry = id.as_bytes().to_vec();
        entry.extend(sign_provider(&provider, &network, &id, &contact.addr, issued_secs, 600));
        let announcement = Announcement::over(contact, issued_secs, 600, &entry);
        let mut bits = None;
        stranger.say(net, 1, Message::Announce { token, announcement }, |reply| {
            if let Message::Announced { kept } = reply {
                bits = Some(*kept);
            }
        });
        let held: Vec<_> = net.members[1].lanes[0].providers().of(&id).map(|held| held.issued_secs).collect();
        (bits, held)
    };
    let secs = net.now.unix_secs();
    assert_eq!(announce(&mut net, secs), (Some(1), vec![secs]));
    net.members[1].disk = Disk::Full;
    assert_eq!(announce(&mut net, secs + 1), (Some(0), vec![secs]));
    net.members[1].disk = Disk::Instant;
    assert_eq!(announce(&mut net, secs + 1), (Some(1), vec![secs + 1]));
}

#[test]
fn a_copy_is_held_once_it_is_given_to_be_held() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let giver = Identity::from_seed(&[200; 32]).public_key();
    for record in [net::mutable(7, 5, Some(b"five"), net.now), immutable_record(b"value", 3600).unwrap()] {
        let view = RecordView::read(&record).unwrap();
        let (id, sequence) = (view.id(), view.sequence());
        let token = token_for(&mut stranger, &mut net, &id);
        stranger.say(&mut net, 1, Message::CacheHint { token, record: &record }, |_| ());
        assert_eq!(kept(&net, &id), Some((sequence, Class::Cached, net.now.unix_secs() + 600, giver)));
        assert_eq!(store(&mut stranger, &mut net, token, &record), [(kind::STORED, None)]);
        assert_eq!(kept(&net, &id), Some((sequence, Class::Held, net.now.unix_secs() + 3600, giver)));
        restart(&mut net);
        assert!(kept(&net, &id).is_some(), "that was promised");
    }
}

#[test]
fn a_newer_version_that_comes_as_a_copy_is_held_like_the_one_that_it_replaces() {
    // By a hint, and by a lookup of the holder's own.
    for by_hint in [true, false] {
        let mut net = Net::of(6, &NodeConfig::default());
        let [older, newer] = [5, 6].map(|sequence| net::mutable(7, sequence, Some(b"value"), net.now));
        let ends_secs = net.now.unix_secs() + 3600;
        let id = RecordView::read(&older).unwrap().id();
        let mut stranger = Stranger::new(200, net.now);
        let token = token_for(&mut stranger, &mut net, &id);
        store(&mut stranger, &mut net, token, &older);
        if by_hint {
            stranger.say(&mut net, 1, Message::CacheHint { token, record: &newer }, |_| ());
        } else {
            let answer = move |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| {
                if let Message::FindValue { .. } = message {
                    reply(Message::Value { token: [1; 16], record: Some(&newer), closer: Contacts::over(&[]) });
                }
            };
            net.puppets.insert(3, Box::new(answer));
            net.get(1, id, true);
        }
        let (sequence, class, expires_secs, _) = kept(&net, &id).unwrap();
        assert_eq!((sequence, class, expires_secs), (6, Class::Held, ends_secs), "by a hint: {by_hint}");
        restart(&mut net);
        assert_eq!(kept(&net, &id).map(|(sequence, ..)| sequence), Some(6), "by a hint: {by_hint}");
    }
}

#[test]
fn a_copy_of_what_is_held_does_not_prolong_it() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let id = ContentId::of_immutable(b"short");
    let token = token_for(&mut stranger, &mut net, &id);
    store(&mut stranger, &mut net, token, &immutable_record(b"short", 60).unwrap());
    let record = immutable_record(b"short", 172_800).unwrap();
    stranger.say(&mut net, 1, Message::CacheHint { token, record: &record }, |_| ());
    let ends_secs = net.now.unix_secs() + 60;
    assert_eq!(
        kept(&net, &id).map(|(_, class, expires_secs, _)| (class, expires_secs)),
        Some((Class::Held, ends_secs))
    );
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
fn our_own_commands_wait_for_our_own_log() {
    let mut net = Net::of(4, &NodeConfig::default());
    let id = ContentId::from_bytes([5; 32]);
    let record = immutable_record(b"kept", 3600).unwrap();
    let kept = ContentId::of_immutable(b"kept");
    let commands = [
        (Command::Provide { ids: vec![id] }, Answer::Providing(1)),
        (Command::Unprovide { ids: vec![id] }, Answer::Providing(0)),
        (Command::Put { record, keep_alive: true }, Answer::Noted),
        (Command::Forget { id: kept }, Answer::Noted),
    ];
    for (command, expected) in commands {
        net.members[0].disk = Disk::Waits;
        let number = net.tell(0, None, command.clone());
        net.run(3000);
        assert!(!net.completions.contains_key(&number), "{command:?} before the log");
        net.sync(0);
        let answer = net.wait(number).answer;
        let is_written = matches!(&answer, Answer::Written(written) if written.acknowledged == 3);
        assert!(answer == expected || is_written, "{command:?}: {answer:?}");
    }
    let provide = Command::Provide { ids: vec![id] };
    let number = net.tell(0, None, provide.clone());
    net.run(12_000);
    assert_eq!(net.completions.remove(&number).unwrap().answer, Answer::NotLogged, "a log that hangs");
    net.members[0].disk = Disk::Full;
    let other = ContentId::from_bytes([6; 32]);
    assert_eq!(net.ask(0, Command::Provide { ids: vec![other] }).answer, Answer::NotLogged);
    let record = immutable_record(b"more", 3600).unwrap();
    assert_eq!(net.ask(0, Command::Put { record, keep_alive: true }).answer, Answer::NotLogged);
    assert_eq!(bound(&net, "published"), 1, "what was not logged is not provided");
    assert_eq!(bound(&net, "kept alive bytes"), 0);
}

fn bound(net: &Net, name: &str) -> usize {
    let bounds = net.members[0].lanes[0].bounds();
    bounds.iter().find(|(held, ..)| *held == name).unwrap().1
}

#[test]
fn kept_records_and_announcements_have_a_bound_and_the_caller_is_told() {
    let record = |n: u8| immutable_record(&[n; 100], 3600).unwrap();
    let kept_alive_bytes_max = 2 * record(0).len();
    let mut net = Net::of(3, &NodeConfig { kept_alive_bytes_max, published_max: 2, ..NodeConfig::default() });
    let mut put = |n| net.ask(0, Command::Put { record: record(n), keep_alive: true }).answer;
    assert!(matches!((put(0), put(1), put(1)), (Answer::Written(_), Answer::Written(_), Answer::Written(_))));
    assert_eq!(put(2), Answer::NoRoom);
    let ids = |n: u8| (0..n).map(|n| ContentId::from_bytes([n; 32])).collect::<Vec<_>>();
    assert_eq!(net.ask(0, Command::Provide { ids: ids(2) }).answer, Answer::Providing(2));
    assert_eq!(net.ask(0, Command::Provide { ids: ids(2) }).answer, Answer::Providing(2), "they are known");
    assert_eq!(net.ask(0, Command::Provide { ids: ids(3) }).answer, Answer::NoRoom);
    net.ask(0, Command::Forget { id: ContentId::of_immutable(&[0; 100]) });
    assert!(matches!(net.ask(0, Command::Put { record: record(2), keep_alive: true }).answer, Answer::Written(_)));
}

#[test]
fn a_log_that_says_a_thing_many_times_means_it_once() {
    let mut net = Net::of(3, &NodeConfig::default());
    let record = immutable_record(b"said often", 20).unwrap();
    let now = net.now;
    net.call(0, |lane, _| {
        for _ in 0..20 {
            lane.on_record(now, log_kind::KEPT_ALIVE, &record);
        }
    });
    let lookups = |net: &Net| net.members[0].lanes[0].counters().lookups_started;
    let before = lookups(&net);
    net.run(60_000);
    // Every ten seconds, jittered; and some upkeep.
    let stores = lookups(&net) - before;
    assert!((4..=20).contains(&stores), "once each time, not twenty times: {stores}");
}

#[test]
fn a_forgotten_record_is_not_held_again_after_a_restart() {
    let mut net = Net::of(3, &NodeConfig::default());
    net.put(0, immutable_record(b"held here too", 3600).unwrap());
    assert_eq!(net.members[0].lanes[0].records().len(), 1, "of three nodes each is a holder");
    net.ask(0, Command::Forget { id: ContentId::of_immutable(b"held here too") });
    let mut again = net::lane(0, &NodeConfig::default(), &net::map(1), 0, net.now);
    for (kind, payload) in &net.members[0].log {
        again.on_record(net.now, *kind, payload);
    }
    assert!(again.records().is_empty());
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

/// Member 1 gets K = 1 and four hundred peers.
fn crowd(net: &mut Net) {
    let mut config = NodeConfig::default();
    config.lookup.k = 1;
    config.table.k = 20;
    net.members[1].lanes[0] = net::lane(1, &config, &net::map(1), 0, net.now);
    for n in 300..700 {
        let key = net::identity(n).public_key();
        let addr = tessera_dht::addr::Addr::v4([11, (n >> 8) as u8, n as u8, 1], 4000);
        let mut payload = [0xff; 54];
        payload[..50].copy_from_slice(&tessera_dht::contact::Contact { key, addr }.to_wire());
        let now = net.now;
        net.call(1, |lane, out| lane.on_message(now, tessera_dht::node::outbox::message_kind::CONTACT, &payload, out));
    }
}

#[test]
fn a_store_for_an_id_that_many_are_nearer_to_is_refused() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    crowd(&mut net);
    let own = net.members[1].lanes[0].id();
    let shared = |value: &[u8; 2]| own.distance_to(&ContentId::of_immutable(value)).leading_zeros();
    let mut values = (0..u16::MAX).map(u16::to_le_bytes);
    let far = values.find(|value| shared(value) == 0).unwrap();
    let near = values.find(|value| shared(value) >= 10).unwrap();
    let refused = vec![(kind::ERROR, Some(ErrorCode::TooFar))];
    for (value, expected) in [(far, refused), (near, vec![(kind::STORED, None)])] {
        let token = token_for(&mut stranger, &mut net, &ContentId::of_immutable(&value));
        let record = immutable_record(&value, 3600).unwrap();
        assert_eq!(store(&mut stranger, &mut net, token, &record), expected);
    }
}

/// The answers of member 1 to a stranger that announces `ids` at `addr`.
fn announce(stranger: &mut Stranger, net: &mut Net, token: Token, addr: Addr, ids: &[ContentId]) -> Vec<String> {
    let (provider, network) = (Identity::from_seed(&[200; 32]), NetworkKey::of_name("tessera"));
    let (issued_secs, ttl_secs) = (net.now.unix_secs(), 600);
    let signed = |id: &ContentId| sign_provider(&provider, &network, id, &addr, issued_secs, ttl_secs);
    let entries: Vec<u8> = ids.iter().flat_map(|id| [&id.as_bytes()[..], &signed(id)].concat()).collect();
    let contact = Contact { key: provider.public_key(), addr };
    let announcement = Announcement::over(contact, issued_secs, ttl_secs, &entries);
    let mut said = Vec::new();
    stranger.say(net, 1, Message::Announce { token, announcement }, |reply| {
        said.push(match reply {
            Message::Announced { kept } => format!("kept {kept:b}"),
            Message::Error { code, .. } => format!("{code:?}"),
            _ => String::from("something else"),
        });
    });
    said
}

#[test]
fn ids_are_announced_with_a_token_for_each_of_them_by_a_provider_that_can_be_dialled() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let [one, other] = [7, 9].map(|n| ContentId::from_bytes([n; 32]));
    let token = token_for(&mut stranger, &mut net, &one);
    let addr = stranger.addr;
    assert_eq!(announce(&mut stranger, &mut net, token, addr, &[one, other]), ["BadToken"]);
    assert_eq!(announce(&mut stranger, &mut net, token, Addr::v4([224, 0, 0, 1], 9), &[one]), ["Invalid"]);
    assert!(net.members[1].lanes[0].providers().is_empty());
    assert_eq!(announce(&mut stranger, &mut net, token, addr, &[one]), ["kept 1"]);
}

#[test]
fn announcements_wait_for_the_log_in_the_same_bounded_queue_as_records() {
    let mut net = Net::of(3, &NodeConfig { promises_max: 2, ..NodeConfig::default() });
    net.members[1].disk = Disk::Waits;
    let mut stranger = Stranger::new(200, net.now);
    let addr = stranger.addr;
    for (n, expected) in [(0, vec![]), (1, vec![]), (2, vec!["Busy"])] {
        let id = ContentId::from_bytes([n; 32]);
        let token = token_for(&mut stranger, &mut net, &id);
        assert_eq!(announce(&mut stranger, &mut net, token, addr, &[id]), expected, "the {n}-th");
    }
}

#[test]
fn an_id_that_many_are_nearer_to_is_not_kept_for_its_provider() {
    let mut net = Net::of(3, &NodeConfig::default());
    crowd(&mut net);
    let mut stranger = Stranger::new(200, net.now);
    let own = net.members[1].contact.id();
    let addr = stranger.addr;
    let far = ContentId::from_bytes(own.as_bytes().map(|byte| !byte));
    for (id, kept) in [(far, "kept 0"), (ContentId::from_bytes(*own.as_bytes()), "kept 1")] {
        let token = token_for(&mut stranger, &mut net, &id);
        assert_eq!(announce(&mut stranger, &mut net, token, addr, &[id]), [kept]);
    }
}

#[test]
fn only_a_second_value_that_the_owner_signed_is_equivocation() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let [first, second] = [b"one", b"two"].map(|value| net::mutable(7, 5, Some(value), net.now));
    let id = RecordView::read(&first).unwrap().id();
    let token = token_for(&mut stranger, &mut net, &id);
    assert_eq!(store(&mut stranger, &mut net, token, &first), [(kind::STORED, None)]);
    let mut forged = second.clone();
    *forged.last_mut().unwrap() ^= 1;
    let invalid = [(kind::ERROR, Some(ErrorCode::Invalid))];
    assert_eq!(store(&mut stranger, &mut net, token, &forged), invalid, "the owner did not say that");
    let equivocation = [(kind::ERROR, Some(ErrorCode::Equivocation))];
    assert_eq!(store(&mut stranger, &mut net, token, &second), equivocation);
}

#[test]
fn two_forged_second_values_are_quarantine_and_two_signed_ones_are_not() {
    for forge in [false, true] {
        let mut net = Net::of(3, &NodeConfig::default());
        let mut stranger = Stranger::new(200, net.now);
        let first = net::mutable(7, 5, Some(b"first"), net.now);
        let id = RecordView::read(&first).unwrap().id();
        let token = token_for(&mut stranger, &mut net, &id);
        store(&mut stranger, &mut net, token, &first);
        for value in [b"one", b"two"] {
            let mut second = net::mutable(7, 5, Some(value), net.now);
            *second.last_mut().unwrap() ^= u8::from(forge);
            let code = if forge { ErrorCode::Invalid } else { ErrorCode::Equivocation };
            assert_eq!(store(&mut stranger, &mut net, token, &second), [(kind::ERROR, Some(code))]);
        }
        let expected = if forge { vec![] } else { vec![(kind::STORED, None)] };
        assert_eq!(store(&mut stranger, &mut net, token, &first), expected, "forged: {forge}");
        let invalid = net.members[1].lanes[0].counters().records_invalid;
        assert_eq!(invalid, if forge { 2 } else { 0 });
    }
}

#[test]
fn a_second_value_that_is_expired_or_not_yet_valid_scores_no_peer() {
    // Both sides of a network that fell apart hold one in good faith, and clocks disagree.
    for issued_secs in [|secs: u64| secs - 3600, |secs| secs + 901] {
        let mut net = Net::of(3, &NodeConfig::default());
        let mut stranger = Stranger::new(200, net.now);
        let first = net::mutable(7, 5, Some(b"first"), net.now);
        let token = token_for(&mut stranger, &mut net, &RecordView::read(&first).unwrap().id());
        store(&mut stranger, &mut net, token, &first);
        for value in [b"one", b"two", b"thr"] {
            let (issued_secs, value) = (issued_secs(net.now.unix_secs()), Some(&value[..]));
            let draft = MutableDraft { salt: [0; 32], sequence: 5, issued_secs, ttl_secs: 3600, value };
            let second = mutable_record(&draft, &net::identity(7), &NetworkKey::of_name("tessera")).unwrap();
            let invalid = [(kind::ERROR, Some(ErrorCode::Invalid))];
            assert_eq!(store(&mut stranger, &mut net, token, &second), invalid);
        }
        assert_eq!(store(&mut stranger, &mut net, token, &first), [(kind::STORED, None)], "it is not in quarantine");
        assert_eq!(net.members[1].lanes[0].counters().records_invalid, 0);
    }
}

#[test]
fn an_owner_that_signs_many_second_values_is_quarantined_and_another_bearer_is_not() {
    for brings_its_own in [false, true] {
        let mut net = Net::of(3, &NodeConfig::default());
        let mut stranger = Stranger::new(200, net.now);
        let owner = Identity::from_seed(&[if brings_its_own { 200 } else { 201 }; 32]);
        let signed = |value: &[u8], net: &Net| {
            let (sequence, issued_secs, value) = (5, net.now.unix_secs(), Some(value));
            let draft = MutableDraft { salt: [0; 32], sequence, issued_secs, ttl_secs: 3600, value };
            mutable_record(&draft, &owner, &NetworkKey::of_name("tessera")).unwrap()
        };
        let first = signed(b"first", &net);
        let token = token_for(&mut stranger, &mut net, &RecordView::read(&first).unwrap().id());
        store(&mut stranger, &mut net, token, &first);
        for value in [b"one", b"two", b"thr", b"fou"] {
            let second = signed(value, &net);
            let equivocation = [(kind::ERROR, Some(ErrorCode::Equivocation))];
            assert_eq!(store(&mut stranger, &mut net, token, &second), equivocation);
        }
        let expected = if brings_its_own { vec![] } else { vec![(kind::STORED, None)] };
        assert_eq!(store(&mut stranger, &mut net, token, &first), expected, "its own: {brings_its_own}");
    }
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
    crowd(&mut net);
    let given = scope_given(&mut net, &mut stranger, Scope::region(0));
    assert!(given >= Scope::region(2) && given < Scope::EXACT, "{given:?}");
}

#[test]
fn an_acknowledgement_that_waited_for_the_log_names_as_many_contacts_as_one_that_did_not() {
    for disk in [Disk::Instant, Disk::Waits] {
        let mut net = Net::of(12, &NodeConfig::default());
        net.members[1].disk = disk;
        let mut stranger = Stranger::new(200, net.now);
        let record = immutable_record(b"written", 3600).unwrap();
        let token = token_for(&mut stranger, &mut net, &ContentId::of_immutable(b"written"));
        stranger.cookies.clear();
        let mut named = Vec::new();
        let mut read = |reply: &Message<'_>| {
            if let Message::Stored { closer } = reply {
                named.push(closer.iter().count());
            }
        };
        let store = Message::Store { token, closer_max: 16, record: &record };
        stranger.say(&mut net, 1, store, &mut read);
        net.sync(1);
        let at = net.members[1].contact.addr;
        stranger.hear(&mut net, at, &mut read);
        assert_eq!(named, [11], "{disk:?}");
    }
}

#[test]
fn an_acknowledgement_that_waited_for_the_log_is_no_longer_than_the_write_of_an_unproven_address() {
    let mut net = Net::of(12, &NodeConfig::default());
    net.members[1].disk = Disk::Waits;
    let mut stranger = Stranger::new(200, net.now);
    let record = immutable_record(b"written", 3600).unwrap();
    let token = token_for(&mut stranger, &mut net, &ContentId::of_immutable(b"written"));
    stranger.cookies.clear();
    stranger.body_bytes = Some(120);
    stranger.say(&mut net, 1, Message::Store { token, closer_max: 16, record: &record }, |_| ());
    net.sync(1);
    let sent = 64 + 120 + 16;
    let answer: Vec<_> =
        net.flying.iter().filter(|(_, to, _)| *to == stranger.addr).map(|(.., bytes)| bytes.len()).collect();
    assert!(matches!(answer[..], [len] if len <= sent && len > sent - 50), "{answer:?} of {sent}");
}

#[test]
fn an_announcement_that_its_provider_did_not_sign_scores_its_bearer() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let id = ContentId::from_bytes([7; 32]);
    let token = token_for(&mut stranger, &mut net, &id);
    let provider = Contact { key: net::identity(9).public_key(), addr: stranger.addr };
    let entry = [&id.as_bytes()[..], &[7; 64]].concat();
    let mut said = Vec::new();
    for _ in 0..4 {
        let announcement = Announcement::over(provider, net.now.unix_secs(), 600, &entry);
        stranger.say(&mut net, 1, Message::Announce { token, announcement }, |reply| said.push(reply.kind()));
    }
    assert_eq!(said, [kind::ERROR; 2], "two are quarantine");
    assert!(net.members[1].lanes[0].providers().is_empty());
}

#[test]
fn a_version_that_is_given_up_is_not_kept_alive_again_after_a_restart_and_what_is_held_is() {
    let mut net = Net::of(4, &NodeConfig::default());
    let kept_alive = |net: &Net| bound(net, "kept alive bytes");
    for n in 1..4 {
        let refuse = |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
            Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&[]) }),
            _ => reply(Message::Error { code: ErrorCode::StaleSequence, retry_after_ms: 0 }),
        };
        net.puppets.insert(n, Box::new(refuse));
    }
    let record = net::mutable(7, 5, Some(b"five"), net.now);
    net.ask(0, Command::Put { record, keep_alive: true });
    assert_eq!((kept_alive(&net), net.members[0].lanes[0].records().len()), (0, 1));
    net.members[0].lanes[0] = net::lane_again(0, net.now);
    for (kind, payload) in net.members[0].log.clone() {
        let now = net.now;
        net.call(0, |lane, _| lane.on_record(now, kind, &payload));
    }
    assert_eq!((kept_alive(&net), net.members[0].lanes[0].records().len()), (0, 1));
}
