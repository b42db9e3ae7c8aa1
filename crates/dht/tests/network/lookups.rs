//! Lookups in a lane, around the pure machine: caps, penalties, privacy, caching, budgets, clean-up.

use std::collections::BTreeSet;

use crate::net::{self, Net, identity};
use tessera_contracts::point::{ContentId, NodeId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::Crypto as _;
use tessera_dht::lookup::{Finish, LookupConfig, Standing};
use tessera_dht::node::LaneNode;
use tessera_dht::node::command::{Answer, Budget, Command, Privacy};
use tessera_dht::node::config::{Defences, NodeConfig};
use tessera_dht::record::{RecordView, immutable_record};
use tessera_dht::seal::keys::PERIOD_SECS;
use tessera_dht::store::records::Class;
use tessera_dht::wire::message::{Contacts, Message, Providers, capability, kind};

/// Few holders, so that most members have to ask.
fn few_holders() -> NodeConfig {
    NodeConfig { lookup: LookupConfig { k: 4, widen: false, ..LookupConfig::default() }, ..NodeConfig::default() }
}

/// A member that does not hold `id`.
fn outsider(net: &Net, id: &ContentId) -> usize {
    (1..net.members.len()).find(|n| net.members[*n].lanes[0].records().peek(id).is_none()).unwrap()
}

#[test]
fn no_peer_has_more_requests_in_flight_than_its_cap_however_many_lookups_run() {
    let config = NodeConfig { requests_per_peer_max: 2, ..NodeConfig::default() };
    let mut net = Net::of(4, &config);
    let commands: Vec<_> = (0..10).map(|n| net.tell(1, None, Command::FindNode { target: [n; 32] })).collect();
    for to in [0, 2, 3] {
        let addr = net.members[to].contact.addr;
        let in_flight = net.flying.iter().filter(|(_, to, _)| *to == addr).count();
        assert_eq!(in_flight, 2, "to member {to}");
    }
    for command in commands {
        assert_eq!(net.wait(command).stats.answers, 3, "and in the end all nodes answer every lookup");
    }
}

#[test]
fn lookups_wait_for_room_among_the_requests_and_write_no_peer_off() {
    let mut net = Net::of(8, &NodeConfig::default());
    let n = net.join(1, &NodeConfig { requests_max: 2, ..NodeConfig::default() });
    net.run(20_000);
    let commands: Vec<_> = (0..3).map(|at| net.tell(n, None, Command::FindNode { target: [at; 32] })).collect();
    for command in commands {
        let outcome = net.wait(command);
        assert_eq!(outcome.stats.answers, 8, "{outcome:?}");
    }
}

#[test]
fn a_lookup_leaves_a_copy_that_serves_the_next_one_and_goes_soon() {
    let mut net = Net::of(14, &few_holders());
    let record = immutable_record(b"popular", 3600).unwrap();
    net.put(1, record.clone());
    let id = ContentId::of_immutable(b"popular");
    let reader = outsider(&net, &id);
    assert!(net.get(reader, id, false).stats.requests > 0);
    let kept = net.members[reader].lanes[0].records().peek(&id).unwrap();
    assert_eq!(kept.class, Class::Cached);
    assert!(kept.expires_secs <= net.now.unix_secs() + 600, "a copy is kept for minutes, not for the record's hour");
    let again = net.get(reader, id, false);
    assert_eq!((again.answer, again.stats.requests), (Answer::Record(record), 0));
    net.run_quietly(700_000);
    assert!(net.members[reader].lanes[0].records().peek(&id).is_none());
}

#[test]
fn the_nearest_node_that_lacked_the_record_is_told_of_it() {
    let mut net = Net::of(14, &few_holders());
    net.put(1, immutable_record(b"popular", 3600).unwrap());
    let id = ContentId::of_immutable(b"popular");
    // The nearest holder loses it, as after a crash.
    let holds = |net: &Net, n: usize| net.members[n].lanes[0].records().peek(&id).map(|kept| kept.class);
    let nearest = (0..14)
        .filter(|n| holds(&net, *n) == Some(Class::Held))
        .min_by_key(|n| net.members[*n].contact.id().distance_to(&id))
        .unwrap();
    net.ask(nearest, Command::Forget { id });
    assert_eq!(holds(&net, nearest), None);
    let reader = (0..14).find(|n| *n != nearest && holds(&net, *n).is_none()).unwrap();
    net.tap = Some(Vec::new());
    assert!(matches!(net.get(reader, id, false).answer, Answer::Record(_)));
    net.run(50);
    let hints: Vec<_> = (0..14).filter(|n| net.seen_by(*n).iter().any(|seen| seen.kind == kind::CACHE_HINT)).collect();
    assert_eq!(hints, [nearest]);
    assert_eq!(holds(&net, nearest), Some(Class::Cached));
}

#[test]
fn a_peer_that_returns_a_forged_record_is_not_believed_is_scored_and_soon_shunned() {
    let mut net = Net::of(8, &NodeConfig::default());
    let record = immutable_record(b"true", 3600).unwrap();
    let forged = immutable_record(b"false", 3600).unwrap();
    let id = ContentId::of_immutable(b"true");
    let accomplice = Contact { key: identity(200).public_key(), addr: Addr::v4([10, 77, 77, 1], 4000) };
    let liar = 2;
    net.puppets.insert(
        liar,
        Box::new(move |asked, reply| {
            if let Message::FindValue { .. } = asked {
                let closer = accomplice.to_wire();
                reply(Message::Value { token: [1; 16], record: Some(&forged), closer: Contacts::over(&closer) });
            }
        }),
    );
    let liar_id = net.members[liar].contact.id();
    let mut lies = 0;
    for _ in 0..4 {
        // A mutable lookup asks all nodes, so it meets the liar while it is known.
        let outcome = net.get(1, id, true);
        assert_eq!(outcome.answer, Answer::NoRecord, "{outcome:?}");
        let standing = outcome.asked.iter().find(|asked| asked.id == liar_id).map(|asked| asked.standing);
        assert!(standing.is_none() || standing == Some(Standing::Lied), "{standing:?}");
        lies += usize::from(outcome.stats.lies);
        assert!(outcome.asked.iter().all(|asked| asked.addr != accomplice.addr), "what a liar names is not followed");
    }
    assert!((2..=3).contains(&lies), "two forgeries at once, or three in a while, are enough: {lies}");
    assert!(net.members[1].lanes[0].table().get(&liar_id).is_none(), "it has lost its place");
    net.put(1, record.clone());
    assert_eq!(net.get(3, id, false).answer, Answer::Record(record));
}

#[test]
fn a_reply_that_does_not_fit_its_question_costs_its_sender() {
    let mut net = Net::of(4, &NodeConfig::default());
    net.puppets.insert(2, Box::new(|_, reply| reply(Message::Stored { closer: Contacts::default() })));
    let id = net.members[2].contact.id();
    for target in 0..8 {
        net.ask(1, Command::FindNode { target: [target; 32] });
    }
    assert!(net.members[1].lanes[0].table().get(&id).is_none(), "five such answers are quarantine");
}

#[test]
fn a_blind_lookup_shows_its_target_to_the_region_only_and_among_others() {
    let mut net = Net::of(30, &few_holders());
    let record = immutable_record(b"private", 3600).unwrap();
    net.put(1, record.clone());
    let id = ContentId::of_immutable(b"private");
    let reader = outsider(&net, &id);
    net.tap = Some(Vec::new());
    let outcome = net.ask(reader, Command::Get { id, mutable: false, privacy: Privacy::Blind });
    assert_eq!(outcome.answer, Answer::Record(record));
    let asker = net.members[reader].contact.addr;
    let seen: Vec<_> = (0..30).flat_map(|n| net.seen_by(n)).filter(|seen| seen.from == asker).collect();
    let walked: Vec<_> = seen.iter().filter(|seen| seen.kind == kind::FIND_NODE).collect();
    assert!(!walked.is_empty() && walked.iter().all(|seen| seen.about != Some(*id.as_bytes())), "the walk hides it");
    let asked = seen.iter().filter(|seen| seen.kind == kind::FIND_VALUE && seen.about == Some(*id.as_bytes())).count();
    let decoys = seen.iter().filter(|seen| seen.kind == kind::FIND_VALUE && seen.about != Some(*id.as_bytes())).count();
    assert!(asked >= 1 && decoys >= 3, "{asked} true questions, {decoys} others");
}

/// A network in which the reader knows all capabilities, so that it can pick relays.
fn with_relays(config: &NodeConfig) -> (Net, ContentId, usize, Vec<u8>) {
    let mut net = Net::of(20, config);
    let record = immutable_record(b"relayed", 3600).unwrap();
    net.put(1, record.clone());
    let id = ContentId::of_immutable(b"relayed");
    // Capabilities are asked for when a peer has been quiet for a minute.
    net.run_quietly(90_000);
    let reader = outsider(&net, &id);
    (net, id, reader, record)
}

#[test]
fn a_relay_comes_from_another_bucket_and_the_peers_asked_first_do_not_see_the_asker() {
    let (mut net, id, reader, record) = with_relays(&few_holders());
    assert_eq!(ask_through_relays(&mut net, id, reader), Answer::Record(record));
}

/// Asks through relays, checks that no peer of the reader's own table was asked directly, and returns the answer.
fn ask_through_relays(net: &mut Net, id: ContentId, reader: usize) -> Answer {
    net.tap = Some(Vec::new());
    let outcome = net.ask(reader, Command::Get { id, mutable: false, privacy: Privacy::Relay });
    let (own, asker) = (net.members[reader].lanes[0].id(), net.members[reader].contact.addr);
    let bucket = own.distance_to(&id).leading_zeros();
    let mut relayed = 0;
    for n in 0..20 {
        for seen in net.seen_by(n).iter().filter(|seen| seen.from == asker) {
            if seen.kind == kind::RELAY {
                relayed += 1;
                let relay = net.members[n].lanes[0].id();
                assert_ne!(own.distance_to(&relay).leading_zeros(), bucket, "from the target's own bucket");
                assert_ne!(seen.about, Some(*relay.as_bytes()), "a relay is not asked to ask itself");
            } else if seen.about == Some(*id.as_bytes()) {
                let peer: NodeId = net.members[n].lanes[0].id();
                let asked = outcome.asked.iter().find(|asked| asked.id == peer).unwrap();
                assert!(asked.hops > 1, "a first leg went to {peer} directly");
            }
        }
    }
    assert!(relayed > 0);
    outcome.answer
}

#[test]
fn relays_that_want_to_see_the_asker_first_are_asked_again_and_not_gone_around() {
    let (mut net, id, reader, record) = with_relays(&few_holders());
    // No cookie is good for sure when a new period has begun.
    let period = |net: &Net| net.now.unix_secs() / PERIOD_SECS;
    let before = period(&net);
    while period(&net) == before {
        net.run(10);
    }
    assert_eq!(ask_through_relays(&mut net, id, reader), Answer::Record(record));
}

#[test]
fn a_node_that_moved_is_not_seen_by_those_it_asks_through_relays() {
    let (mut net, id, reader, record) = with_relays(&few_holders());
    let moved = Addr::v4([10, 77, 7, 7], 4000);
    let before = std::mem::replace(&mut net.members[reader].contact.addr, moved);
    net.by_addr.remove(&before);
    net.by_addr.insert(moved, reader);
    assert_eq!(ask_through_relays(&mut net, id, reader), Answer::Record(record));
}

#[test]
fn a_relay_that_fails_is_gone_around() {
    for silent in [false, true] {
        let (mut net, id, reader, record) = with_relays(&few_holders());
        // Everybody refuses, or ignores, to relay; all else is answered.
        if silent {
            net.lose = Some(|seen| seen.kind == kind::RELAY);
        } else {
            for n in 0..20 {
                let config = NodeConfig { relays_max: 0, ..few_holders() };
                if n != reader {
                    net.members[n].lanes[0] = restarted(&net, n, &config);
                }
            }
        }
        let outcome = net.ask(reader, Command::Get { id, mutable: false, privacy: Privacy::Relay });
        assert_eq!(outcome.answer, Answer::Record(record), "silent: {silent}");
        assert_eq!(
            (outcome.stats.timeouts, outcome.stats.refusals),
            (0, 0),
            "those behind the relay were not to blame"
        );
    }
}

/// The lane of a member with another configuration and the state it had.
fn restarted(net: &Net, n: usize, config: &NodeConfig) -> tessera_dht::node::LaneNode {
    let mut lane = net::lane(n, config, &net::map(1), 0, net.now);
    net.members[n].lanes[0].export(None, net.now, |kind, _, payload| {
        lane.on_record(net.now, kind, payload);
        true
    });
    for peer in net.members[n].lanes[0].table().iter_live() {
        let mut payload = [0xff; 54];
        payload[..50].copy_from_slice(&peer.contact.to_wire());
        let mut effects = net::Effects::new(net::Disk::Instant, 0);
        lane.on_message(net.now, tessera_dht::node::outbox::message_kind::CONTACT, &payload, &mut effects);
    }
    lane
}

#[test]
fn capabilities_say_which_nodes_relay() {
    let net = Net::of(4, &NodeConfig::default());
    let table = net.members[1].lanes[0].table();
    let known: Vec<_> = table.iter_live().map(|peer| peer.capabilities).filter(|bits| *bits != 0).collect();
    assert!(!known.is_empty() && known.iter().all(|bits| bits & capability::RELAYS != 0));
}

#[test]
fn a_command_within_a_budget_keeps_to_it() {
    let mut net = Net::of(14, &NodeConfig::default());
    let within = |budget, command| Command::Within { budget, command: Box::new(command) };
    let find = || Command::FindNode { target: [3; 32] };
    let free = net.ask(1, find());
    assert_eq!((free.stats.requests, free.finish), (13, Some(Finish::Exhausted)));
    let few = net.ask(1, within(Budget { requests_max: Some(4), ..Budget::default() }, find()));
    assert_eq!((few.stats.requests, few.finish), (4, Some(Finish::OutOfRequests)));
    let narrow = Budget { alpha_max: Some(1), ..Budget::default() };
    let command = net.tell(1, None, within(narrow, find()));
    let from = net.members[1].contact.addr;
    assert_eq!(net.flying.iter().filter(|(sender, _, _)| *sender == from).count(), 1, "one at a time");
    net.wait(command);
    let short = Budget { time_ms: Some(30), ..Budget::default() };
    let short = net.ask(1, within(short, find()));
    assert_eq!(short.finish, Some(Finish::OutOfTime), "a second round of answers would take 40 ms");
    assert_eq!(net.ask(1, find()).stats.requests, 13, "the budget was that command's");
}

#[test]
fn a_command_may_be_given_all_the_time_there_is() {
    let mut net = Net::of(6, &NodeConfig::default());
    let budget = Budget { time_ms: Some(u64::MAX), ..Budget::default() };
    let command = Box::new(Command::FindNode { target: [7; 32] });
    let outcome = net.ask(1, Command::Within { budget, command });
    assert!(matches!(&outcome.answer, Answer::Nodes(nodes) if nodes.len() == 5), "{outcome:?}");
}

#[test]
fn a_lookup_that_is_over_leaves_nothing_in_flight() {
    let mut net = Net::of(12, &NodeConfig::default());
    let requests = |net: &Net| {
        let bounds = net.members[1].lanes[0].bounds();
        bounds.iter().find(|(name, _, _)| *name == "requests").unwrap().1
    };
    let command = net.tell(1, None, Command::FindNode { target: [9; 32] });
    assert_eq!(requests(&net), 3);
    net.ask(1, Command::Cancel { command });
    assert_eq!(requests(&net), 0, "cancelled with the command");
    let unexpected = net.members[1].lanes[0].counters().replies_unexpected;
    net.run(100);
    assert_eq!(net.members[1].lanes[0].counters().replies_unexpected - unexpected, 3, "late answers find no request");
    assert!(net.members[1].lanes[0].table().live_len() >= 11, "and no peer is scored for them");
}

#[test]
fn a_write_that_is_given_up_leaves_nothing_in_flight() {
    let mut net = Net::of(12, &NodeConfig { requests_per_peer_max: 1, ..NodeConfig::default() });
    let requests = |net: &Net| {
        let bounds = net.members[1].lanes[0].bounds();
        bounds.iter().find(|(name, _, _)| *name == "requests").unwrap().1
    };
    net.run_quietly(PERIOD_SECS * 1000); // So that it has no tokens of before, and asks first.
    let record = immutable_record(b"given up", 3600).unwrap();
    let id = ContentId::of_immutable(b"given up");
    let command = net.tell(1, Some(&id), Command::Put { record, keep_alive: false });
    // More than eight at a time are no longer questions.
    while requests(&net) <= 8 {
        net.run(10);
    }
    assert_eq!(requests(&net), 11, "all nodes are written to");
    net.ask(1, Command::Cancel { command });
    assert_eq!(requests(&net), 0, "cancelled with the command");
    let outcome = net.wait(command);
    assert_eq!(outcome.finish, Some(Finish::Cancelled));
    assert!(matches!(&outcome.answer, Answer::Written(written) if written.holders == 11), "{outcome:?}");
    let next = net.tell(1, None, Command::FindNode { target: [9; 32] });
    assert_eq!(requests(&net), 3, "the peers are free to be asked");
    assert_eq!(net.wait(next).stats.answers, 11);
}

#[test]
fn disjoint_paths_find_the_same_nearest_nodes_as_one_path() {
    let mut config = few_holders();
    config.lookup.paths = 3;
    let mut net = Net::of(16, &config);
    let outcome = net.ask(1, Command::FindNode { target: [0x42; 32] });
    assert_eq!(outcome.finish, Some(Finish::Exhausted));
    let Answer::Nodes(found) = outcome.answer else { panic!() };
    let mut all: Vec<_> = (0..16).filter(|n| *n != 1).map(|n| net.members[n].contact).collect();
    let target = NodeId::from_bytes([0x42; 32]);
    all.sort_by_key(|contact| contact.id().distance_to(&target));
    assert_eq!(found, all[..4], "three paths find the same four as one would");
}

#[test]
fn a_record_stored_behind_a_border_is_found_at_once_when_the_border_is_gone() {
    let mut net = Net::of(30, &NodeConfig::default());
    net.cut = Some(15);
    net.run_quietly(120_000);
    let knows_nobody = net.members[20].lanes[0]
        .table()
        .iter_live()
        .all(|peer| (15..30).any(|n| net.members[n].contact == peer.contact));
    assert!(knows_nobody, "of the other side");
    net.put(2, immutable_record(b"stored behind a border", 3600).unwrap());
    let id = ContentId::of_immutable(b"stored behind a border");
    let lost = net.get(20, id, false);
    assert_eq!(lost.answer, Answer::NoRecord);
    net.cut = None;
    let got = net.get(20, id, false);
    assert!(matches!(&got.answer, Answer::Record(record) if record.ends_with(b"stored behind a border")), "{got:?}");
    // And it is given to its current holders.
    net.run(40_000);
    let mut nearest: Vec<usize> = (0..30).collect();
    nearest.sort_by_key(|n| net.members[*n].lanes[0].id().distance_to(&id));
    let held = nearest[..20]
        .iter()
        .filter(|n| net.members[**n].lanes[0].records().peek(&id).is_some_and(|kept| kept.class == Class::Held));
    assert_eq!(held.count(), 20);
}

#[test]
fn a_lookup_in_vain_asks_each_lost_contact_once() {
    let mut net = Net::of(30, &NodeConfig::default());
    net.silent.extend(0..6);
    net.run_quietly(200_000);
    net.tap = Some(Vec::new());
    let outcome = net.get(20, ContentId::of_immutable(b"nowhere"), false);
    let from = net.members[20].contact.addr;
    let times = |n: usize| {
        let to = net.members[n].contact.addr;
        net.tap.iter().flatten().filter(|sent| (sent.0, sent.1) == (from, to)).count()
    };
    let times: Vec<_> = (0..6).map(times).collect();
    assert!(
        times.iter().all(|times| *times <= 1) && times.iter().sum::<usize>() >= 4,
        "{times:?}: {:?}",
        outcome.stats
    );
}

#[test]
fn a_relayed_answer_says_nothing_about_the_relays_round_trip() {
    for silent in [false, true] {
        let (mut net, _, reader, _) = with_relays(&few_holders());
        // Not found, so that all answers are waited for.
        let id = ContentId::of_immutable(b"nowhere");
        let others = |net: &Net| (0..20).filter(|n| *n != reader && !net.silent.contains(n)).collect::<Vec<_>>();
        if silent {
            let distance = |n: &usize| net.members[*n].lanes[0].id().distance_to(&id);
            let nearest = others(&net).into_iter().min_by_key(distance).unwrap();
            net.silent.insert(nearest);
        }
        net.ask(reader, Command::Get { id, mutable: false, privacy: Privacy::Relay });
        for n in others(&net) {
            let peer = net.members[reader].lanes[0].table().get(&net.members[n].lanes[0].id());
            let round_trip_ms = peer.and_then(|peer| peer.round_trip.srtt_ms());
            assert!(round_trip_ms.is_none_or(|ms| ms <= 20), "{round_trip_ms:?}, silent: {silent}");
        }
    }
}

#[test]
fn a_reader_that_has_seen_a_version_calls_silence_inconclusive_and_denial_no_record() {
    for silent in [15, 0] {
        let mut net = Net::of(20, &NodeConfig::default());
        let record = net::mutable(7, 5, Some(b"seen"), net.now);
        let id = RecordView::read(&record).unwrap().id();
        net.put(1, record);
        assert!(matches!(net.get(2, id, true).answer, Answer::Record(_)));
        for n in 0..20 {
            net.ask(n, Command::Forget { id });
        }
        net.silent.extend(20 - silent..20);
        let outcome = net.get(2, id, true);
        let expected = if silent > 0 { Answer::Inconclusive } else { Answer::NoRecord };
        assert_eq!(outcome.answer, expected, "{silent} of nineteen holders are silent: {:?}", outcome.stats);
    }
}

/// Forty nodes, of which few hold a record and know of a provider, and eight in front of them that answer and know of nothing but themselves.
fn with_crowd(retry_by_region: bool, is_stored: bool) -> (Net, ContentId, usize) {
    let lookup = LookupConfig { k: 4, retry_by_region, ..LookupConfig::default() };
    let mut net = Net::of(40, &NodeConfig { lookup, ..NodeConfig::default() });
    let id = ContentId::of_immutable(b"behind a crowd");
    if is_stored {
        net.put(1, immutable_record(b"behind a crowd", 3600).unwrap());
        net.ask(1, Command::Forget { id });
        net.ask(1, Command::Provide { ids: vec![id] });
        net.run(20_000);
    }
    let mut ground: Vec<usize> = (1000..5000).collect();
    ground.sort_by_cached_key(|who| identity(*who).public_key().node_id().distance_to(&id));
    ground.truncate(8);
    let addr = |who: usize| Addr::v4([10, 99, (who >> 8) as u8, who as u8], 4000);
    let contact = |who: &usize| Contact { key: identity(*who).public_key(), addr: addr(*who) };
    let crowd: Vec<u8> = ground.iter().flat_map(|who| contact(who).to_wire()).collect();
    for who in ground {
        let closer = crowd.clone();
        net.play(
            who,
            Box::new(move |asked, reply| match asked {
                Message::Ping => reply(Message::Pong { observed: Addr::v4([10, 0, 0, 1], 4000) }),
                Message::FindNode { .. } => {
                    reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&closer) });
                }
                Message::FindValue { .. } => {
                    reply(Message::Value { token: [255; 16], record: None, closer: Contacts::over(&closer) });
                }
                Message::GetProviders { .. } => {
                    let (providers, closer) = (Providers::over(&[]), Contacts::over(&closer));
                    let (token, total, next, part, parts) = ([255; 16], 0, 0, 0, 1);
                    reply(Message::Providers { token, total, next, part, parts, providers, closer });
                }
                _ => {}
            }),
        );
    }
    net.run(20_000);
    let knows = |lane: &LaneNode| lane.records().peek(&id).is_some() || lane.providers().of(&id).next().is_some();
    let reader = (2..40).rfind(|n| !knows(&net.members[*n].lanes[0])).unwrap();
    (net, id, reader)
}

fn walks_around(net: &Net, n: usize) -> u64 {
    net.members[n].lanes[0].counters().lookups_around
}

/// Everything that a lookup can be after.
fn questions(id: ContentId) -> [Command; 4] {
    let get = |mutable, privacy| Command::Get { id, mutable, privacy };
    let providers = Command::FindProviders { id, limit: 3 };
    [get(false, Privacy::None), get(true, Privacy::None), get(false, Privacy::Blind), providers]
}

#[test]
fn a_crowd_that_denies_is_gone_around_once_and_not_believed() {
    let (mut net, id, reader) = with_crowd(true, false);
    for question in questions(id) {
        let before = walks_around(&net, reader);
        let outcome = net.ask(reader, question.clone());
        assert_eq!(outcome.answer, Answer::Inconclusive, "{question:?}: {outcome:?}");
        assert_eq!(walks_around(&net, reader) - before, 1, "{question:?}");
    }
}

#[test]
fn holders_behind_a_crowd_are_found_by_way_of_the_region_and_not_without() {
    let [get, _, _, providers] = questions(ContentId::of_immutable(b"behind a crowd"));
    for (question, retry_by_region) in [(&get, true), (&get, false), (&providers, true), (&providers, false)] {
        let (mut net, _, reader) = with_crowd(retry_by_region, true);
        let answer = net.ask(reader, question.clone()).answer;
        match &answer {
            Answer::Record(_) => assert!(retry_by_region, "{question:?}"),
            Answer::Providers(found) => assert!(retry_by_region && found.len() == 1, "{question:?}: {found:?}"),
            other => assert!(!retry_by_region && *other == Answer::Inconclusive, "{question:?}: {other:?}"),
        }
        assert_eq!(walks_around(&net, reader), u64::from(retry_by_region), "{question:?}");
    }
}

/// Points other than `id` that a member asks others about nodes near, while it does what a command says.
fn points_asked_about(net: &mut Net, n: usize, id: &ContentId, command: Command) -> BTreeSet<[u8; 32]> {
    net.tap = Some(Vec::new());
    let before = walks_around(net, n);
    net.ask(n, command);
    assert_eq!(walks_around(net, n) - before, 1);
    let seen = (0..net.members.len()).flat_map(|to| net.seen_by(to));
    let asked = seen.filter(|seen| seen.kind == kind::FIND_NODE && seen.from == net.members[n].contact.addr);
    asked.filter_map(|seen| seen.about).filter(|about| about != id.as_bytes()).collect()
}

#[test]
fn a_write_that_goes_around_a_crowd_asks_about_several_points_and_a_read_about_one() {
    let (mut net, id, reader) = with_crowd(true, false);
    let read = Command::Get { id, mutable: false, privacy: Privacy::None };
    assert_eq!(points_asked_about(&mut net, reader, &id, read).len(), 1);
    let record = immutable_record(b"behind a crowd", 3600).unwrap();
    let points = points_asked_about(&mut net, reader, &id, Command::Put { record, keep_alive: false });
    assert!(points.len() >= 5, "{} points", points.len());
    let shared = points.iter().map(|point| ContentId::from_bytes(*point).distance_to(&id).leading_zeros()).min();
    assert!(shared >= Some(2), "all of them in the region of the target: {shared:?}");
}

#[test]
fn a_public_node_sends_nothing_to_a_private_address_that_another_names() {
    for refuse_private in [true, false] {
        let defences = Defences { refuse_private, ..Defences::default() };
        let public_addr = Some(Addr::v4([51, 15, 1, 1], 4000));
        let mut net = Net::of(1, &NodeConfig::default());
        let public = net.join(1, &NodeConfig { public_addr, defences, ..NodeConfig::default() });
        net.run(20_000);
        let hosts = [[10, 77, 77, 1], [192, 168, 7, 1], [51, 15, 9, 9]].map(|host| Addr::v4(host, 4000));
        let named = |(n, addr): (usize, &Addr)| Contact { key: identity(700 + n).public_key(), addr: *addr };
        let list: Vec<u8> = hosts.iter().enumerate().flat_map(|host| named(host).to_wire()).collect();
        net.puppets.insert(
            0,
            Box::new(move |asked, reply| match asked {
                Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&list) }),
                Message::FindValue { .. } => {
                    reply(Message::Value { token: [255; 16], record: None, closer: Contacts::over(&list) });
                }
                Message::Store { .. } => reply(Message::Stored { closer: Contacts::over(&list) }),
                _ => {}
            }),
        );
        net.tap = Some(Vec::new());
        net.ask(public, Command::FindNode { target: [7; 32] });
        net.get(public, ContentId::of_immutable(b"nowhere"), false);
        net.put(public, immutable_record(b"somewhere", 3600).unwrap());
        net.put(public, immutable_record(b"and again", 3600).unwrap());
        net.run(60_000);
        let is_sent_to = |host: &Addr| net.tap.iter().flatten().any(|(_, to, _)| to == host);
        assert_eq!(hosts.iter().map(is_sent_to).collect::<Vec<_>>(), [!refuse_private, !refuse_private, true]);
    }
}
