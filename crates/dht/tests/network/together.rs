//! The parts together: joining, storing, finding, restarting.

use crate::net::{self, Net, Stranger, identity, lane, map, mutable};
use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::abuse::{AbuseLimits, WRITE_COST};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::Crypto as _;
use tessera_dht::lookup::Finish;
use tessera_dht::node::command::{Answer, Command, CommandId, Privacy};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::record::{RecordView, immutable_record, mutable_id};
use tessera_dht::wire::DATAGRAM_BYTES_MAX;
use tessera_dht::wire::header::HEADER_BYTES;
use tessera_dht::wire::message::{ANNOUNCED_BYTES, Announcement, Contacts, ErrorCode, Message, kind};

#[test]
fn nodes_that_know_one_seed_come_to_know_each_other_and_are_healthy() {
    let net = Net::of(12, &NodeConfig::default());
    for member in &net.members {
        let health = member.lanes[0].health(net.now);
        assert!(health.is_up, "{health:?}");
        assert_eq!(health.live_peers, 11);
    }
}

#[test]
fn a_lone_node_is_not_up() {
    let net = Net::of(1, &NodeConfig::default());
    assert!(!net.members[0].lanes[0].health(net.now).is_up);
}

#[test]
fn a_value_that_one_node_puts_another_gets_and_the_outcome_says_how() {
    let mut net = Net::of(12, &NodeConfig::default());
    let record = immutable_record(b"a value", 3600).unwrap();
    let put = net.put(1, record.clone());
    let Answer::Written(written) = put.answer else { panic!("{put:?}") };
    assert_eq!((written.holders, written.acknowledged, written.silent), (11, 11, 0));
    assert_eq!(put.asked.iter().filter(|asked| asked.useful).count(), 11);
    // A member that holds a record answers from its store, without asking.
    let got = net.get(2, ContentId::of_immutable(b"a value"), false);
    assert_eq!((got.answer, got.stats.requests), (Answer::Record(record), 0));
    let missing = net.get(3, ContentId::of_immutable(b"no such value"), false);
    assert_eq!(missing.answer, Answer::NoRecord);
    assert_eq!(missing.stats.answers, 11, "all who should know were asked");
    assert_eq!(missing.asked.len(), 11);
}

#[test]
fn counters_of_lookups_are_added_up_by_their_lane() {
    let mut net = Net::of(30, &NodeConfig::default());
    net.put(1, immutable_record(b"a value", 3600).unwrap());
    let sums = |net: &Net| {
        let totals = net.members[3].lanes[0].lookup_totals();
        let of = |wanted| totals.ended().filter(|(finish, _)| *finish == wanted).map(|(_, count)| count).sum::<u64>();
        let sums = [totals.hops, totals.milliseconds, totals.parallel].map(|histogram| histogram.sum());
        (totals.hops.count(), of(Finish::Found), of(Finish::Exhausted), sums)
    };
    let before = sums(&net);
    let missing = net.get(3, ContentId::of_immutable(b"no such value"), false);
    assert_eq!((&missing.answer, missing.finish), (&Answer::NoRecord, Some(Finish::Exhausted)));
    let stats = missing.stats;
    let [hops, milliseconds, parallel] = before.3;
    let more = [hops + u64::from(stats.hops), milliseconds + stats.elapsed_ms, parallel + u64::from(stats.alpha_peak)];
    assert!(stats.hops > 0 && stats.elapsed_ms > 0 && stats.alpha_peak > 0, "{stats:?}");
    assert_eq!(sums(&net), (before.0 + 1, before.1, before.2 + 1, more));
}

#[test]
fn a_newer_mutable_record_replaces_an_older_one_and_a_tombstone_ends_it() {
    let mut net = Net::of(10, &NodeConfig::default());
    let id = mutable_id(&identity(1).public_key(), &[0; 32]);
    for (sequence, value) in [(1, Some(&b"one"[..])), (2, Some(b"two")), (3, None)] {
        let record = mutable(1, sequence, value, net.now);
        let outcome = net.put(1, record);
        assert!(matches!(&outcome.answer, Answer::Written(written) if written.has_quorum()), "{outcome:?}");
        let Answer::Record(bytes) = net.get(4, id, true).answer else { panic!("{sequence}") };
        let view = RecordView::read(&bytes).unwrap();
        assert_eq!((view.sequence(), view.value), (sequence, value.unwrap_or_default()));
    }
    let stale = net.put(1, mutable(1, 2, Some(b"two"), net.now));
    let Answer::Written(written) = stale.answer else { panic!() };
    assert_eq!(written.acknowledged, 0, "no holder goes back");
    assert_eq!(written.refused.len(), 1, "{:?}", written.refused);
}

#[test]
fn the_highest_sequence_there_is_can_be_read() {
    let id = mutable_id(&identity(1).public_key(), &[0; 32]);
    for value in [Some(&b"last"[..]), None] {
        let mut net = Net::of(6, &NodeConfig::default());
        net.put(1, mutable(1, u64::MAX - 1, Some(b"last but one"), net.now));
        let last = mutable(1, u64::MAX, value, net.now);
        net.put(1, last.clone());
        // A member that holds nothing learns it from the others alone.
        net.ask(4, Command::Forget { id });
        assert!(net.members[4].lanes[0].records().peek(&id).is_none());
        assert_eq!(net.get(4, id, true).answer, Answer::Record(last));
    }
}

#[test]
fn a_reader_does_not_go_back_to_what_others_still_say() {
    let mut net = Net::of(1, &NodeConfig::default());
    let (older, newer) = (mutable(7, 1, Some(b"older"), net.now), mutable(7, 2, Some(b"newer"), net.now));
    let id = RecordView::read(&newer).unwrap().id();
    net.put(0, newer.clone());
    for _ in 0..4 {
        net.join(1, &NodeConfig::default());
        net.run(300);
    }
    net.run(20_000);
    net.put(2, older);
    assert_eq!(net.get(0, id, true).answer, Answer::Record(newer), "what it has itself");
    net.ask(0, Command::Forget { id });
    assert_eq!(net.get(0, id, true).answer, Answer::NoRecord, "nothing older is asked for");
}

#[test]
fn holders_that_lie_about_what_is_newest_do_not_take_a_reader_back() {
    let mut net = Net::of(4, &NodeConfig::default());
    let (older, newer) = (mutable(7, 1, Some(b"older"), net.now), mutable(7, 2, Some(b"newer"), net.now));
    let id = RecordView::read(&newer).unwrap().id();
    net.put(1, newer.clone());
    for liar in [0, 2, 3] {
        let older = older.clone();
        let lie = move |asked: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| {
            // With any sequence number in the request.
            if let Message::FindValue { .. } = asked {
                reply(Message::Value { token: [1; 16], record: Some(&older), closer: Contacts::over(&[]) });
            }
        };
        net.puppets.insert(liar, Box::new(lie));
    }
    assert_eq!(net.get(1, id, true).answer, Answer::Record(newer), "what it has seen outranks what all others say");
    net.ask(1, Command::Forget { id });
    for _ in 0..2 {
        assert_eq!(net.get(1, id, true).answer, Answer::OnlyStale { seen: 2, found: 1 }, "and it says why not");
    }
    assert!(net.members[1].lanes[0].records().is_empty(), "nor is it kept here for others");
}

#[test]
fn an_owner_that_signs_two_values_for_one_sequence_is_refused() {
    let mut net = Net::of(10, &NodeConfig::default());
    net.put(1, mutable(1, 5, Some(b"one"), net.now));
    let second = net.put(1, mutable(1, 5, Some(b"other"), net.now));
    let Answer::Written(written) = second.answer else { panic!() };
    assert_eq!(written.acknowledged, 0);
    assert_eq!(written.refused[0].0, ErrorCode::Equivocation);
}

#[test]
fn providers_are_found_by_others_in_the_order_of_pages() {
    let mut net = Net::of(14, &NodeConfig::default());
    let id = ContentId::from_bytes([0x42; 32]);
    for n in 1..13 {
        net.ask(n, Command::Provide { ids: vec![id] });
    }
    net.run(5000);
    let Answer::Providers(found) = net.ask(13, Command::FindProviders { id, limit: 100 }).answer else { panic!() };
    let mut keys: Vec<_> = found.iter().map(|provider| provider.provider.key).collect();
    keys.sort();
    let mut expected: Vec<_> = (1..13).map(|n| identity(n).public_key()).collect();
    expected.sort();
    assert_eq!(keys, expected, "twelve providers are more than one part of a page");
}

#[test]
fn records_and_contacts_survive_a_restart_from_the_log() {
    let config = NodeConfig::default();
    let mut net = Net::of(10, &config);
    let record = immutable_record(b"durable", 3600).unwrap();
    net.put(1, record.clone());
    let id = ContentId::of_immutable(b"durable");
    let log = std::mem::take(&mut net.members[5].log);
    let now = net.now;
    net.members[5].lanes[0] = lane(5, &NodeConfig::default(), &map(1), 0, now);
    for (kind, payload) in &log {
        net.members[5].lanes[0].on_record(now, *kind, payload);
    }
    let kept: Vec<_> = net.members[5].lanes[0].records().iter().map(|(id, _)| id).collect();
    assert_eq!(kept, [id]);
    net.start(5, Vec::new());
    net.run(5000);
    assert_eq!(net.members[5].lanes[0].health(net.now).live_peers, 9, "found again without a seed");
}

#[test]
fn a_log_that_says_anything_breaks_nothing() {
    use tessera_dht::node::log::log_kind;
    let mut net = Net::of(2, &NodeConfig::default());
    let now = net.now;
    for kind in 0..=9 {
        for len in [0, 1, 31, 32, 39, 40, 49, 50, 157, 158, 159, 500] {
            net.call(1, |lane, _| lane.on_record(now, kind, &vec![0xff; len]));
        }
    }
    net.call(1, |lane, _| lane.on_record(now, log_kind::PUBLISHED, &[0xff; 40]));
    let mut exported = Vec::new();
    net.members[1].lanes[0].export(None, now, |kind, _, payload| {
        exported.push((kind, payload.to_vec()));
        true
    });
    let due = exported.iter().find(|(kind, _)| *kind == log_kind::PUBLISHED).map(|(_, payload)| &payload[32..40]);
    let due_secs = u64::from_le_bytes(due.unwrap().try_into().unwrap());
    assert!(due_secs <= now.unix_secs() + 24 * 3600 + 60, "due within a lifetime, even if the log says later");
}

#[test]
fn blind_and_relayed_lookups_find_what_direct_ones_do() {
    let mut net = Net::of(14, &NodeConfig { cache_hints: false, ..NodeConfig::default() });
    let record = immutable_record(b"private", 3600).unwrap();
    net.put(1, record.clone());
    for privacy in [Privacy::Blind, Privacy::Relay] {
        // A newcomer holds nothing, so it has to ask.
        let n = net.join(1, &NodeConfig { client: true, ..NodeConfig::default() });
        net.run(70_000);
        let id = ContentId::of_immutable(b"private");
        let outcome = net.ask(n, Command::Get { id, mutable: false, privacy });
        assert_eq!(outcome.answer, Answer::Record(record.clone()), "{privacy:?}");
        assert!(outcome.stats.requests > 0);
    }
}

#[test]
fn a_command_can_be_given_up() {
    let mut net = Net::of(5, &NodeConfig::default());
    let (id, now) = (CommandId(77), net.now);
    net.call(1, |lane, out| lane.on_command(now, id, Command::FindNode { target: [9; 32] }, out));
    let noted = net.ask(1, Command::Cancel { command: id });
    assert_eq!(noted.answer, Answer::Noted);
    assert_eq!(net.completions[&id].finish, Some(tessera_dht::lookup::Finish::Cancelled));
    assert_eq!(net.ask(1, Command::Cancel { command: id }).answer, Answer::NotUnderWay);
}

#[test]
fn a_write_without_a_token_is_refused() {
    let mut net = Net::of(3, &NodeConfig::default());
    let record = immutable_record(b"uninvited", 3600).unwrap();
    let mut stranger = Stranger::new(200, net.now);
    let mut refused = None;
    stranger.say(&mut net, 1, Message::Store { token: [0; 16], closer_max: 0, record: &record }, |reply| {
        if let Message::Error { code, .. } = reply {
            refused = Some(*code);
        }
    });
    assert_eq!(refused, Some(ErrorCode::BadToken));
    assert!(net.members[1].lanes[0].records().is_empty());
}

/// The datagrams of member 1 to a stranger that sends `message`.
fn answers(stranger: &mut Stranger, net: &mut Net, message: Message<'_>) -> Vec<(u8, Option<ErrorCode>)> {
    let mut answers = Vec::new();
    stranger.say(net, 1, message, |reply| {
        let code = if let Message::Error { code, .. } = reply { Some(*code) } else { None };
        answers.push((reply.kind(), code));
    });
    answers
}

#[test]
fn an_unproven_address_is_answered_and_not_asked() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger { flags: 0, ..Stranger::new(200, net.now) };
    assert_eq!(answers(&mut stranger, &mut net, Message::Ping), [(kind::PONG, None)]);
    let asked = [(kind::PONG, None), (kind::NEGOTIATE, None)];
    assert_eq!(answers(&mut stranger, &mut net, Message::Ping), asked, "with its cookie it is worth knowing");
}

#[test]
fn a_stem_of_an_unproven_address_costs_no_signature_check() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let provider = Contact { key: identity(9).public_key(), addr: stranger.addr };
    let entries = [7; 2 * ANNOUNCED_BYTES];
    let announcement = Announcement::over(provider, net.now.unix_secs(), 600, &entries);
    let waiting = |net: &Net| {
        let bounds = net.members[1].lanes[0].bounds();
        bounds.iter().find(|(name, _, _)| *name == "stems").unwrap().1
    };
    let stem = Message::Stem { hops_left: 2, announcement };
    let refused = [(kind::ERROR, Some(ErrorCode::CookieRequired))];
    assert_eq!((answers(&mut stranger, &mut net, stem), waiting(&net)), (refused.to_vec(), 0));
    let taken = [(kind::STEM_TAKEN, None)];
    assert_eq!((answers(&mut stranger, &mut net, stem), waiting(&net)), (taken.to_vec(), 2), "to be checked");
}

#[test]
fn a_peer_whose_neighbours_ask_too_much_is_told_to_wait_and_not_scored() {
    let abuse = AbuseLimits { per_prefix_per_sec: 10, burst_secs: 1, ..AbuseLimits::default() };
    let mut net = Net::of(3, &NodeConfig { abuse, ..NodeConfig::default() });
    let (mut honest, mut neighbour) = (Stranger::new(200, net.now), Stranger::new(201, net.now));
    neighbour.addr = Addr { port: 10, ..honest.addr };
    // The first of each shows no address yet, and is not counted for it.
    assert_eq!(answers(&mut honest, &mut net, Message::Ping), [(kind::PONG, None)]);
    for _ in 0..11 {
        assert_eq!(answers(&mut neighbour, &mut net, Message::Ping), [(kind::PONG, None)]);
    }
    let limited = [(kind::ERROR, Some(ErrorCode::RateLimited))];
    for _ in 0..300 {
        assert_eq!(answers(&mut honest, &mut net, Message::Ping), limited);
    }
    net.run(1000);
    assert_eq!(answers(&mut honest, &mut net, Message::Ping), [(kind::PONG, None)], "it is not in quarantine");
}

#[test]
fn a_peer_that_goes_on_asking_above_its_own_limit_is_scored() {
    let abuse = AbuseLimits { per_peer_per_sec: 10, burst_secs: 1, ..AbuseLimits::default() };
    let mut net = Net::of(3, &NodeConfig { abuse, ..NodeConfig::default() });
    let mut stranger = Stranger::new(200, net.now);
    for _ in 0..300 {
        answers(&mut stranger, &mut net, Message::Ping);
    }
    assert_eq!(answers(&mut stranger, &mut net, Message::Ping), [], "not even a refusal");
}

#[test]
fn a_stem_costs_as_much_as_all_its_ids() {
    // Eight units are two ids.
    let abuse = AbuseLimits { per_peer_per_sec: 2 * WRITE_COST, burst_secs: 1, ..AbuseLimits::default() };
    for (ids, taken) in [(1, 2), (2, 1), (3, 0)] {
        let mut net = Net::of(3, &NodeConfig { abuse, ..NodeConfig::default() });
        let mut stranger = Stranger::new(200, net.now);
        answers(&mut stranger, &mut net, Message::Ping);
        let provider = Contact { key: identity(9).public_key(), addr: stranger.addr };
        let entries = vec![7; ids * ANNOUNCED_BYTES];
        let announcement = Announcement::over(provider, net.now.unix_secs(), 600, &entries);
        let said = (0..4).flat_map(|_| answers(&mut stranger, &mut net, Message::Stem { hops_left: 2, announcement }));
        assert_eq!(said.filter(|(answer, _)| *answer == kind::STEM_TAKEN).count(), taken, "of {ids} ids");
    }
}

#[test]
fn a_page_of_providers_costs_as_much_as_the_parts_it_may_have() {
    // The first ping shows no address yet, and is not counted for it.
    let abuse = AbuseLimits { per_peer_per_sec: 10, burst_secs: 1, ..AbuseLimits::default() };
    for (parts_max, served) in [(0, 10), (1, 10), (5, 2), (255, 2)] {
        let mut net = Net::of(3, &NodeConfig { abuse, ..NodeConfig::default() });
        let mut stranger = Stranger::new(200, net.now);
        answers(&mut stranger, &mut net, Message::Ping);
        let question = Message::GetProviders { id: ContentId::from_bytes([7; 32]), page: 0, parts_max };
        let said = (0..20).flat_map(|_| answers(&mut stranger, &mut net, question));
        assert_eq!(said.filter(|(answer, _)| *answer == kind::PROVIDERS).count(), served, "{parts_max} parts");
    }
}

#[test]
fn strangers_that_come_fast_are_sent_a_cookie_and_those_of_one_network_cost_few_agreements() {
    let abuse = AbuseLimits {
        strangers_per_prefix_per_sec: 6,
        unproven_strangers_per_sec: 4,
        challenges_per_sec: 17,
        ..AbuseLimits::default()
    };
    let mut net = Net::of(3, &NodeConfig { abuse, ..NodeConfig::default() });
    net.run(2000);
    let challenged = |net: &Net| net.members[1].lanes[0].counters().challenges_sent;
    let mut strangers: Vec<_> =
        (100..120).map(|n| Stranger { addr: Addr::v4([192, 0, 2, n], 9), ..Stranger::new(n, net.now) }).collect();
    let served = |net: &mut Net, stranger: &mut Stranger| answers(stranger, net, Message::Ping).len();
    let at_once = strangers.iter_mut().map(|stranger| served(&mut net, stranger)).sum::<usize>();
    assert_eq!((at_once, challenged(&net)), (4, 16), "the others are sent a cookie");
    let with_cookie = strangers[4..].iter_mut().map(|stranger| served(&mut net, stranger)).sum::<usize>();
    assert_eq!(with_cookie, 6, "of one network");
    let mut other = Stranger { addr: Addr::v4([192, 0, 3, 1], 9), ..Stranger::new(120, net.now) };
    assert_eq!(served(&mut net, &mut other), 0);
    assert_eq!(served(&mut net, &mut other), 1, "another network has its own");
    let mut last = Stranger { addr: Addr::v4([192, 0, 3, 1], 9), ..Stranger::new(121, net.now) };
    assert_eq!((served(&mut net, &mut last), challenged(&net)), (0, 17), "and no more than so many are sent");
}

#[test]
fn a_peer_that_goes_on_writing_with_forged_tokens_is_scored() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let record = immutable_record(b"uninvited", 3600).unwrap();
    let store = Message::Store { token: [0; 16], closer_max: 0, record: &record };
    let said: Vec<_> = (0..30).map(|_| answers(&mut stranger, &mut net, store).len()).collect();
    assert_eq!(said.iter().sum::<usize>(), 20, "{said:?}");
}

#[test]
fn a_well_sealed_malformed_datagram_is_not_answered_and_scores_its_sender() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let (now, contact, from) = (net.now, net.members[1].contact, stranger.addr);
    for before in 0..5 {
        assert_eq!(answers(&mut stranger, &mut net, Message::Ping), [(kind::PONG, None)], "after {before}");
        let mut datagram = [99; DATAGRAM_BYTES_MAX];
        let len = stranger.sealer.seal(now, &contact.key, 0, &mut datagram, 50).unwrap();
        net.flying.clear();
        net.call(1, |lane, out| lane.on_datagram(now, from, &mut datagram[..len], 0, out));
        assert!(net.flying.is_empty());
    }
    assert_eq!(answers(&mut stranger, &mut net, Message::Ping), [], "five are quarantine");
}

#[test]
fn a_client_keeps_nothing_for_others() {
    let mut net = Net::of(3, &NodeConfig { client: true, ..NodeConfig::default() });
    let mut stranger = Stranger::new(200, net.now);
    let (record, id) = (immutable_record(b"value", 3600).unwrap(), ContentId::of_immutable(b"value"));
    let mut token = [0; 16];
    stranger.say(&mut net, 1, Message::FindValue { id, sequence_min: 0 }, |reply| {
        if let Message::Value { token: given, .. } = reply {
            token = *given;
        }
    });
    let unsupported = [(kind::ERROR, Some(ErrorCode::Unsupported))];
    assert_eq!(answers(&mut stranger, &mut net, Message::Store { token, closer_max: 0, record: &record }), unsupported);
    assert!(net.members[1].lanes[0].records().is_empty());
}

/// A request to ask `to` about a point.
fn relay_to(to: Contact) -> Message<'static> {
    Message::Relay { to, kind: kind::FIND_NODE, payload: &[0xff; 33] }
}

#[test]
fn no_peer_loses_its_place_because_a_stranger_named_it_at_a_wrong_address() {
    let mut net = Net::of(8, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    answers(&mut stranger, &mut net, Message::Ping);
    let honest = net.members[5].contact;
    let nowhere = Contact { addr: Addr::v4([203, 0, 113, 9], 9), ..honest };
    for before in 0..8 {
        assert_eq!(answers(&mut stranger, &mut net, relay_to(nowhere)), [], "it is being asked");
        net.run(2000);
        let peer = net.members[1].lanes[0].table().get(&honest.id());
        assert_eq!(peer.map(|peer| (peer.contact, peer.silences)), Some((honest, 0)), "after {before} before");
    }
    let bounds = net.members[1].lanes[0].bounds();
    assert_eq!(bounds.iter().find(|(name, _, _)| *name == "lost contacts").unwrap().1, 0);
}

/// Datagrams to this address reach member 5, as long as its owner forwards them.
const BY_WAY: Addr = Addr::v4([203, 0, 113, 9], 9);

/// Where member 1 knows member 5 to be.
fn known_at(net: &Net) -> Vec<Addr> {
    let id = net.members[5].contact.id();
    net.members[1].lanes.iter().filter_map(|lane| lane.table().get(&id)).map(|peer| peer.contact.addr).collect()
}

#[test]
fn a_node_that_forwards_a_contacts_datagrams_does_not_come_between_it_and_its_peers() {
    // Asked there for a stranger, and because a peer names it there.
    for by_relay in [true, false] {
        let mut net = Net::of_lanes(8, 2, &NodeConfig::default());
        let honest = net.members[5].contact;
        assert_eq!(known_at(&net), [honest.addr; 2]);
        net.by_addr.insert(BY_WAY, 5);
        let by_way = Contact { addr: BY_WAY, ..honest };
        if by_relay {
            let mut stranger = Stranger::new(200, net.now);
            answers(&mut stranger, &mut net, Message::Ping);
            assert_eq!(answers(&mut stranger, &mut net, relay_to(by_way)), [], "it is being asked");
        } else {
            net.ask(1, Command::Ping { contact: by_way });
        }
        net.run(2000);
        assert_eq!(known_at(&net), [honest.addr; 2], "by a relay: {by_relay}");
        // Should it fall silent where it is known, it is known where it answers.
        net.by_addr.remove(&honest.addr);
        for _ in 0..3 {
            net.run(1500);
            net.ask(1, Command::Ping { contact: by_way });
        }
        net.run(2000);
        assert_eq!(known_at(&net), [BY_WAY; 2], "by a relay: {by_relay}");
    }
}

#[test]
fn no_peer_is_kept_from_being_asked_because_a_stranger_has_it_asked_all_the_time() {
    let mut net = Net::of(3, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    answers(&mut stranger, &mut net, Message::Ping);
    let honest = net.members[2].contact;
    let nowhere = Contact { addr: Addr::v4([203, 0, 113, 9], 9), ..honest };
    for _ in 0..NodeConfig::default().requests_per_peer_max {
        assert_eq!(answers(&mut stranger, &mut net, relay_to(nowhere)), [], "it is being asked");
    }
    net.tap = Some(Vec::new());
    net.tell(1, None, Command::FindNode { target: *honest.id().as_bytes() });
    assert!(net.tap.iter().flatten().any(|(_, to, _)| *to == honest.addr));
}

#[test]
fn a_peer_that_does_not_answer_a_strangers_relayed_question_keeps_its_standing() {
    let mut net = Net::of(8, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    answers(&mut stranger, &mut net, Message::Ping);
    net.lose = Some(|seen| seen.kind == kind::FIND_NODE);
    let honest = net.members[5].contact;
    for _ in 0..8 {
        assert_eq!(answers(&mut stranger, &mut net, relay_to(honest)), [], "it is being asked");
        net.run(700);
        assert_eq!(net.members[1].lanes[0].table().get(&honest.id()).map(|peer| peer.silences), Some(0));
    }
}

#[test]
fn only_lookups_are_relayed_and_only_for_an_asker_that_sends_as_many_bytes_as_that_may_cost() {
    let room = DATAGRAM_BYTES_MAX - HEADER_BYTES - 16;
    let mut net = Net::of(4, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    answers(&mut stranger, &mut net, Message::Ping);
    let [relay, to] = [1, 3].map(|n| net.members[n].contact);
    let lookup = |to| Message::Relay { to, kind: kind::FIND_NODE, payload: &[0xff; 33] };
    let nested = [&to.to_wire()[..], &[kind::FIND_NODE], &[0xff; 33]].concat();
    let stem = [&[3][..], &to.to_wire(), &[0; 13]].concat();
    let other = |kind, payload| Message::Relay { to, kind, payload };
    let unsupported = vec![(kind::ERROR, Some(ErrorCode::Unsupported))];
    for (message, body_bytes, answered) in [
        (lookup(to), room, vec![]),
        (lookup(to), room - 1, vec![(kind::ERROR, Some(ErrorCode::Malformed))]),
        (lookup(relay), room, unsupported.clone()),
        (other(kind::PING, &[]), room, unsupported.clone()),
        (other(kind::STORE, &[0; 19]), room, unsupported.clone()),
        (other(kind::RELAY, &nested), room, unsupported.clone()),
        (other(kind::STEM, &stem), room, unsupported.clone()),
        (other(kind::LEAVING, &[]), room, unsupported),
    ] {
        net.flying.clear();
        stranger.body_bytes = Some(body_bytes);
        let is_asked = answered.is_empty();
        assert_eq!(answers(&mut stranger, &mut net, message), answered, "{message:?} of {body_bytes} bytes");
        assert_eq!(net.flying.iter().any(|(from, ..)| *from == relay.addr), is_asked, "{message:?}");
    }
}

#[test]
fn no_more_is_relayed_at_once_than_is_configured() {
    let mut net =
        Net::of(4, &NodeConfig { relays_max: 2, relay_asker_share: 1, relay_prefix_share: 1, ..NodeConfig::default() });
    let mut stranger = Stranger::new(200, net.now);
    answers(&mut stranger, &mut net, Message::Ping);
    let nowhere = Contact { addr: Addr::v4([203, 0, 113, 9], 9), ..net.members[3].contact };
    let busy = vec![(kind::ERROR, Some(ErrorCode::Busy))];
    for _ in 0..2 {
        let said: Vec<_> = (0..3).map(|_| answers(&mut stranger, &mut net, relay_to(nowhere))).collect();
        assert_eq!(said, [vec![], vec![], busy.clone()]);
        net.run(2000);
        let (from, mut heard) = (net.members[1].contact.addr, Vec::new());
        stranger.hear(&mut net, from, &mut |reply: &Message<'_>| heard.push(reply.kind()));
    }
}

#[test]
fn a_relayed_question_that_is_answered_in_many_parts_is_answered_once() {
    let mut net = Net::of(4, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    answers(&mut stranger, &mut net, Message::Ping);
    let in_parts = |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| {
        if matches!(message, Message::FindNode { .. }) {
            (0..4).for_each(|part| reply(net::part_of_many(part)));
        }
    };
    net.puppets.insert(3, Box::new(in_parts));
    let to = net.members[3].contact;
    for _ in 0..3 {
        assert_eq!(answers(&mut stranger, &mut net, relay_to(to)), [], "it is being asked");
        net.run(20);
        let (from, mut heard) = (net.members[1].contact.addr, Vec::new());
        stranger.hear(&mut net, from, &mut |reply: &Message<'_>| heard.push(reply.kind()));
        assert_eq!(heard, [kind::RELAYED]);
    }
}

#[test]
fn nothing_is_relayed_for_an_address_that_may_be_made_up() {
    let mut net = Net::of(4, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let to = net.members[3].contact;
    net.flying.clear();
    let refused = [(kind::ERROR, Some(ErrorCode::CookieRequired))];
    assert_eq!(answers(&mut stranger, &mut net, relay_to(to)), refused);
    assert_eq!(net.flying.len(), 0, "no node was asked");
    assert_eq!(answers(&mut stranger, &mut net, relay_to(to)), []);
    assert_eq!(net.flying.len(), 1);
}

#[test]
fn a_first_request_that_is_padded_is_answered_in_full_and_a_short_one_is_told_to_come_again() {
    let mut net = Net::of(20, &NodeConfig::default());
    let id = ContentId::of_immutable(b"whatever");
    let questions = [
        Message::FindNode { target: [7; 32], scope: tessera_dht::seal::cookie::Scope::EXACT },
        Message::FindValue { id, sequence_min: 0 },
        Message::GetProviders { id, page: 0, parts_max: 5 },
    ];
    for question in questions {
        let mut stranger = Stranger::new(200, net.now);
        stranger.sealer = net::sealer(identity(700 + usize::from(question.kind())), net.now);
        let named = |reply: &Message<'_>| match reply {
            Message::Nodes { contacts: named, .. } => named.iter().count(),
            Message::Value { closer: named, .. } | Message::Providers { closer: named, .. } => named.iter().count(),
            _ => 0,
        };
        let (mut full, mut short) = (Vec::new(), Vec::new());
        stranger.say(&mut net, 1, question, |reply| full.push((reply.kind(), named(reply))));
        assert!(matches!(full[..], [(_, 8 | 16)]), "{question:?}: {full:?}");
        stranger.cookies.clear();
        stranger.body_bytes = Some(60);
        stranger.say(&mut net, 1, question, |reply| short.push((reply.kind(), named(reply))));
        assert_eq!(short, [(kind::ERROR, 0)], "{question:?}");
        stranger.say(&mut net, 1, question, |reply| short.push((reply.kind(), named(reply))));
        assert_eq!(short[1..], full[..], "{question:?}, with the cookie that came");
    }
}

#[test]
fn a_lone_node_refuses_versions_that_it_would_not_keep() {
    let mut net = Net::of(1, &NodeConfig::default());
    let put = |net: &mut Net, sequence, value: &[u8]| {
        let record = net::mutable(7, sequence, Some(value), net.now);
        match net.ask(0, Command::Put { record, keep_alive: false }).answer {
            Answer::Written(written) => written.refused,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(put(&mut net, 5, b"five"), []);
    assert_eq!(put(&mut net, 5, b"five"), [], "the same again is no other version");
    assert_eq!(put(&mut net, 5, b"FIVE"), [(ErrorCode::Equivocation, 1)]);
    assert_eq!(put(&mut net, 4, b"four"), [(ErrorCode::StaleSequence, 1)]);
    assert_eq!(put(&mut net, 6, b"six"), []);
}

#[test]
fn a_lone_node_holds_its_value_and_stores_it_with_others_when_they_come() {
    let config = NodeConfig::default();
    let mut net = Net::of(1, &config);
    let record = immutable_record(b"alone", 24 * 3600).unwrap();
    let id = RecordView::read(&record).unwrap().id();
    net.ask(0, Command::Put { record: record.clone(), keep_alive: true });
    net.run(1000 * (u64::from(config.cache_ttl_secs) + 60));
    assert_eq!(net.get(0, id, false).answer, Answer::Record(record), "longer than a copy for reading would be kept");
    net.join(1, &config);
    net.run(60_000);
    assert_eq!(net.members[1].lanes[0].records().len(), 1, "long before half its lifetime");
}

#[test]
fn a_ping_measures_the_round_trip_or_ends_in_silence() {
    let mut net = Net::of(3, &NodeConfig::default());
    let there = net.members[2].contact;
    let outcome = net.ask(1, Command::Ping { contact: there });
    let Answer::Pong { rtt_ms, observed } = outcome.answer else { panic!("{outcome:?}") };
    assert_eq!((rtt_ms, observed), (20, Some(net.members[1].contact.addr)));
    let absent = Contact { addr: Addr::v4([10, 9, 9, 9], 4000), ..there };
    assert_eq!(net.ask(1, Command::Ping { contact: absent }).answer, Answer::Silence);
}

#[test]
fn a_node_that_says_good_bye_is_dropped_at_once() {
    let mut net = Net::of(6, &NodeConfig::default());
    let (now, leaver) = (net.now, net.members[5].contact.id());
    assert!(net.members[1].lanes[0].table().get(&leaver).is_some());
    net.call(5, |lane, out| lane.leave(now, out));
    net.by_addr.retain(|_, n| *n != 5);
    net.run(50);
    for member in &net.members[..5] {
        assert!(member.lanes[0].table().get(&leaver).is_none(), "long before a ping would have timed out");
    }
}

#[test]
fn a_record_forgotten_is_not_stored_again_and_the_log_says_so() {
    let mut net = Net::of(6, &NodeConfig::default());
    let record = immutable_record(b"not for ever", 600).unwrap();
    let id = RecordView::read(&record).unwrap().id();
    net.ask(0, Command::Put { record, keep_alive: true });
    assert_eq!(net.ask(0, Command::Forget { id }).answer, Answer::Noted);
    net.run(1_300_000);
    assert_eq!(net.get(1, id, false).answer, Answer::NoRecord);
    let log = net.members[0].log.clone();
    let config = NodeConfig::default();
    let mut again = lane(0, &config, &map(1), 0, net.now);
    for (kind, payload) in &log {
        again.on_record(net.now, *kind, payload);
    }
    let mut exported = Vec::new();
    again.export(None, net.now, |kind, _, payload: &[u8]| {
        exported.push((kind, payload.to_vec()));
        true
    });
    assert!(!exported.iter().any(|(kind, _)| *kind == tessera_dht::node::log::log_kind::KEPT_ALIVE), "{exported:?}");
}

#[test]
fn an_outcome_tells_which_peer_named_which_and_when_each_was_asked() {
    let mut net = Net::of(12, &NodeConfig::default());
    let outcome = net.ask(3, Command::FindNode { target: [0x5a; 32] });
    for asked in outcome.asked.iter().filter(|asked| asked.took_ms.is_some()) {
        assert_eq!(asked.took_ms, Some(20), "datagrams fly for ten milliseconds each way");
        assert!(asked.asked_after_ms <= outcome.stats.elapsed_ms);
        assert_eq!(asked.via.is_some(), asked.hops > 1, "a peer of our own table was not named by another: {asked:?}");
    }
}
