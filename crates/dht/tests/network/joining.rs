//! Joining: remembered contacts first, configured seeds next, again and again with growing pauses, for ever.

use crate::net::{self, Net, identity};
use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::Crypto as _;
use tessera_dht::lookup::LookupConfig;
use tessera_dht::node::command::{Answer, Command};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::log::log_kind;
use tessera_dht::node::outbox::message_kind;
use tessera_dht::record::immutable_record;
use tessera_dht::routing::TableLimits;
use tessera_dht::wire::message::Message;

fn absent(n: usize) -> Contact {
    Contact { key: identity(n).public_key(), addr: Addr::v4([10, 200 + (n >> 8) as u8, n as u8, 1], 4000) }
}

/// A lone node that remembers contacts and is given seeds, none of which answers. The times, in milliseconds, and addresses of its requests.
fn asked_in(remembered: usize, seeds: usize, minutes: u64) -> Vec<(u64, Addr)> {
    let mut net = Net::empty();
    let config = NodeConfig::default();
    net.members.push(net::Member {
        who: 0,
        lanes: vec![net::lane(0, &config, &net::map(1), 0, net.now)],
        map: net::map(1),
        contact: absent(0),
        log: Vec::new(),
        disk: net::Disk::Instant,
        logged: 0,
    });
    let (began, now) = (net.now.mono_ms, net.now);
    for n in 0..remembered {
        net.call(0, |lane, _| lane.on_record(now, log_kind::CONTACT, &absent(10 + n).to_wire()));
    }
    net.tap = Some(Vec::new());
    net.start(0, (0..seeds).map(|n| absent(2000 + n)).collect());
    let mut asked = Vec::new();
    for _ in 0..minutes * 600 {
        net.run_quietly(100);
        for (_, to, _) in net.tap.as_mut().map(std::mem::take).unwrap() {
            asked.push((net.now.mono_ms - began, to));
        }
    }
    asked
}

#[test]
fn remembered_contacts_are_asked_before_configured_seeds() {
    let asked = asked_in(8, 2, 1);
    let first: Vec<_> = asked.iter().take(8).map(|(_, addr)| *addr).collect();
    assert_eq!(first, (0..8).map(|n| absent(10 + n).addr).collect::<Vec<_>>());
    assert!(asked.iter().any(|(_, addr)| *addr == absent(2000).addr), "the seeds have their turn");
}

#[test]
fn a_node_that_finds_no_peer_tries_for_ever_with_growing_pauses() {
    let asked = asked_in(0, 1, 60);
    let gaps: Vec<_> = asked.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(gaps[0] <= 4000, "soon at first: {gaps:?}");
    assert!(gaps.iter().all(|gap| *gap <= 80_000), "a minute, jittered, at most: {gaps:?}");
    assert!(asked.last().unwrap().0 > 58 * 60 * 1000, "and no end to it");
    assert!(asked.len() < 100, "no hurry either: {}", asked.len());
}

#[test]
fn a_lookup_that_could_send_nothing_does_not_end_joining() {
    // One request at a time, and pings keep taking it while the node would look for its neighbours.
    let config = NodeConfig { requests_max: 1, ..NodeConfig::default() };
    let mut net = Net::of(6, &NodeConfig::default());
    let n = net.join(1, &config);
    net.run(30);
    for _ in 0..300 {
        net.tell(n, None, Command::Ping { contact: absent(99) });
        net.run(10);
    }
    net.run(30_000);
    let health = net.members[n].lanes[0].health(net.now);
    assert!(health.joined, "{health:?}");
}

#[test]
fn a_node_that_got_no_answer_while_looking_around_has_not_joined() {
    let mut net = Net::of(6, &NodeConfig::default());
    let n = net.join(1, &NodeConfig::default());
    net.run(30);
    assert!(net.members[n].lanes[0].table().live_len() > 0, "the seed is there");
    net.silent.extend(0..6);
    net.run(4000);
    let health = net.members[n].lanes[0].health(net.now);
    assert!(!health.joined, "{health:?}");
    net.silent.clear();
    net.run(10_000);
    assert!(net.members[n].lanes[0].health(net.now).joined);
}

#[test]
fn a_node_whose_peers_all_vanish_is_not_up_and_joins_again_when_they_return() {
    let mut net = Net::of(6, &NodeConfig::default());
    assert!(net.members[5].lanes[0].health(net.now).is_up);
    net.silent.extend(0..5);
    net.run_quietly(900_000);
    let health = net.members[5].lanes[0].health(net.now);
    assert!(!health.is_up && !health.answered_lately, "{health:?}");
    net.silent.clear();
    net.run_quietly(300_000);
    let health = net.members[5].lanes[0].health(net.now);
    assert!(health.is_up, "{health:?}");
}

#[test]
fn buckets_are_refreshed_when_no_lookup_went_through_them_each_at_its_own_time() {
    let config = NodeConfig { refresh_ms: 600_000, ..NodeConfig::default() };
    let mut net = Net::of(8, &config);
    let started = |net: &Net| net.members[3].lanes[0].counters().lookups_started;
    let begun = started(&net);
    net.run_quietly(400_000);
    assert_eq!(started(&net), begun, "all buckets are fresh from joining");
    let mut times = Vec::new();
    for second in 0..2000 {
        let before = started(&net);
        net.run_quietly(1000);
        times.extend((before..started(&net)).map(|_| second));
    }
    let buckets = times.len() / 3;
    assert!(buckets >= 2, "about three times in half an hour, each bucket: {times:?}");
    times.dedup();
    assert!(times.len() > buckets, "and not all at once: {times:?}");
}

/// Member 5 starts again, with the contacts of its log and no answer yet.
fn start_again(net: &mut Net) {
    let mut again = net::lane_again(5, net.now);
    for (kind, payload) in net.members[5].log.iter().filter(|(kind, _)| *kind == log_kind::CONTACT) {
        again.on_record(net.now, *kind, payload);
    }
    net.members[5].lanes[0] = again;
    let now = net.now;
    net.call(5, |lane, out| lane.on_start(now, out));
    assert_eq!(net.members[5].lanes[0].table().live_len(), 0, "no peer has answered yet");
}

#[test]
fn a_lane_that_has_just_started_again_finds_and_writes_by_the_contacts_of_its_log() {
    let mut net = Net::of(6, &NodeConfig::default());
    net.put(0, immutable_record(b"found at once", 3600).unwrap());
    let id = ContentId::of_immutable(b"found at once");
    start_again(&mut net);
    let got = net.get(5, id, false);
    assert!(matches!(&got.answer, Answer::Record(record) if record.ends_with(b"found at once")), "{got:?}");
    start_again(&mut net);
    let put = net.put(5, immutable_record(b"written at once", 3600).unwrap());
    assert!(matches!(&put.answer, Answer::Written(written) if written.acknowledged == 5), "{put:?}");
}

/// Member 7 of eight starts again and remembers a hundred contacts that are gone; member 0 is its configured seed.
fn long_away(net: &mut Net) {
    net.members[7].lanes[0] = net::lane_again(7, net.now);
    let now = net.now;
    for n in 0..100 {
        net.call(7, |lane, _| lane.on_record(now, log_kind::CONTACT, &absent(1000 + n).to_wire()));
    }
    let seed = net.members[0].contact;
    net.start(7, vec![seed]);
}

#[test]
fn commands_of_a_node_whose_remembered_contacts_are_all_gone_are_served_by_its_seed() {
    let mut net = Net::of(8, &NodeConfig::default());
    net.put(0, immutable_record(b"still there", 3600).unwrap());
    long_away(&mut net);
    let got = net.get(7, ContentId::of_immutable(b"still there"), false);
    assert!(matches!(&got.answer, Answer::Record(record) if record.ends_with(b"still there")), "{got:?}");
    assert!(got.stats.elapsed_ms < 50, "before the first of the others has been waited for: {got:?}");
    long_away(&mut net);
    let put = net.put(7, immutable_record(b"written though", 3600).unwrap());
    assert!(matches!(&put.answer, Answer::Written(written) if written.acknowledged == 7), "{put:?}");
}

#[test]
fn joining_gets_to_the_seeds_soon_however_many_are_remembered() {
    let asked = asked_in(400, 1, 1);
    let seed = asked.iter().find(|(_, addr)| *addr == absent(2000).addr).expect("the seed is asked");
    assert!(seed.0 < 4000, "in the second round: {seed:?}");
}

#[test]
fn a_lookup_through_a_table_of_the_dead_falls_back_to_the_seeds_and_else_ends_in_time() {
    for seed_lives in [true, false] {
        let mut net = Net::of(8, &NodeConfig::default());
        net.put(0, immutable_record(b"still there", 3600).unwrap());
        net.members[7].lanes[0] = net::lane_again(7, net.now);
        let now = net.now;
        for n in 0..100 {
            let mut payload = [0xff; 54];
            payload[..50].copy_from_slice(&absent(1000 + n).to_wire());
            net.call(7, |lane, out| lane.on_message(now, message_kind::CONTACT, &payload, out));
        }
        assert!(net.members[7].lanes[0].table().live_len() > 40);
        let seed = net.members[0].contact;
        net.start(7, vec![seed]);
        if !seed_lives {
            net.silent.extend(0..7);
        }
        let got = net.get(7, ContentId::of_immutable(b"still there"), false);
        assert_eq!(matches!(got.answer, Answer::Record(_)), seed_lives, "{got:?}");
        assert!(got.stats.elapsed_ms <= NodeConfig::default().lookup.budget_ms, "{:?}", got.stats);
        let at_seed = got.asked.iter().filter(|asked| asked.addr == seed.addr).count();
        assert_eq!(at_seed, 1);
    }
}

/// Member 5 gets another address, which it is not told. Nothing reaches it at the old one.
fn move_away(net: &mut Net) -> Addr {
    let new = Addr::v4([10, 77, 7, 7], 4000);
    move_to(net, new);
    new
}

fn move_to(net: &mut Net, new: Addr) {
    let old = core::mem::replace(&mut net.members[5].contact.addr, new);
    net.by_addr.remove(&old);
    net.by_addr.insert(new, 5);
}

#[test]
fn a_node_that_moved_finds_with_the_first_command_from_its_new_address() {
    let few = NodeConfig {
        table: TableLimits { k: 4, ..TableLimits::default() },
        lookup: LookupConfig { k: 4, ..LookupConfig::default() },
        ..NodeConfig::default()
    };
    let mut net = Net::of(60, &few);
    let films: Vec<_> = (0..8).map(|n| ContentId::of_immutable(format!("film {n}").as_bytes())).collect();
    net.ask(1, Command::Provide { ids: films.clone() });
    net.run(10_000);
    for (n, film) in films.into_iter().enumerate() {
        let value = format!("value {n}");
        let id = ContentId::of_immutable(value.as_bytes());
        net.put(1, immutable_record(value.as_bytes(), 3600).unwrap());
        let go = |net: &mut Net, at: u8| move_to(net, Addr::v4([10, 100 + n as u8, at, 7], 4000));
        go(&mut net, 1);
        let got = net.get(5, id, false);
        assert!(matches!(got.answer, Answer::Record(_)), "{n}: {got:?}");
        go(&mut net, 2);
        let found = net.ask(5, Command::FindProviders { id: film, limit: 1 });
        assert!(matches!(&found.answer, Answer::Providers(providers) if providers.len() == 1), "{n}: {found:?}");
        go(&mut net, 3);
        let mut nearest: Vec<_> = (0..60).filter(|m| *m != 5).map(|m| net.members[m].contact).collect();
        nearest.sort_by_key(|contact| contact.id().distance_to(&id));
        let nodes = net.ask(5, Command::FindNode { target: *id.as_bytes() });
        assert_eq!(nodes.answer, Answer::Nodes(nearest[..4].to_vec()), "{n}: {nodes:?}");
    }
    let amplified = net.members.iter().map(|member| member.lanes[0].counters().amplified_bytes).max();
    assert_eq!(amplified, Some(0), "and no node sends more than it was sent");
}

/// Where the others know member 5 to be.
fn known_at(net: &Net) -> Vec<Addr> {
    let id = net.members[5].lanes[0].id();
    let others = net.members.iter().filter(|member| member.lanes[0].id() != id).flat_map(|member| &member.lanes);
    others.filter_map(|lane| lane.table().get(&id)).map(|peer| peer.contact.addr).collect()
}

#[test]
fn a_node_that_moved_is_known_at_its_new_address_as_soon_as_it_asks() {
    let mut net = Net::of_lanes(8, 2, &NodeConfig::default());
    let new = move_away(&mut net);
    net.run(2000);
    assert!(known_at(&net).iter().all(|addr| *addr != new), "no peer has heard from it");
    // The first answer says that it is seen elsewhere, and has the cookie that proves its new address.
    let target = *net.members[5].lanes[0].id().as_bytes();
    net.ask(5, Command::FindNode { target });
    net.run(2000);
    assert_eq!(known_at(&net), [new; 14], "in both lanes of seven");
    let logged =
        net.members[0].log.iter().filter(|(kind, _)| *kind == log_kind::CONTACT).filter(|(_, contact)| {
            contact.first_chunk().is_some_and(|contact| Contact::from_wire(contact).addr == new)
        });
    assert!(logged.count() > 0, "and after a restart");
}

#[test]
fn an_idle_node_that_moved_is_known_at_its_new_address_after_the_next_ping() {
    let mut net = Net::of(8, &NodeConfig::default());
    let new = move_away(&mut net);
    net.run_quietly(100_000);
    assert_eq!(known_at(&net), [new; 7]);
}

#[test]
fn a_peer_that_answers_at_its_known_address_stays_there_though_it_asks_from_elsewhere() {
    let mut net = Net::of(8, &NodeConfig::default());
    let old = net.members[5].contact.addr;
    // Both addresses are its own, and its datagrams leave from the second.
    move_away(&mut net);
    net.by_addr.insert(old, 5);
    let point = *net.members[5].lanes[0].id().as_bytes();
    for _ in 0..3 {
        net.run(2000);
        net.ask(5, Command::FindNode { target: point });
    }
    net.run(2000);
    assert_eq!(known_at(&net), [old; 7]);
}

#[test]
fn one_that_lies_about_where_it_sees_a_node_is_not_believed() {
    let mut net = Net::of_lanes(8, 2, &NodeConfig::default());
    let elsewhere = Addr::v4([203, 0, 113, 9], 9);
    let lie = move |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| {
        if matches!(message, Message::Ping) {
            reply(Message::Pong { observed: elsewhere });
        }
    };
    net.puppets.insert(2, Box::new(lie));
    let (contact, own) = (net.members[2].contact, net.members[1].contact.addr);
    for _ in 0..10 {
        assert!(matches!(net.ask(1, Command::Ping { contact }).answer, Answer::Pong { .. }));
        let observed: Vec<_> = net.members[1].lanes.iter().map(|lane| lane.observed()).collect();
        assert_eq!(observed, [Some(own); 2]);
    }
}

#[test]
fn a_peer_with_a_new_cookie_in_every_answer_is_asked_once_more_and_not_without_end() {
    let mut net = Net::of(2, &NodeConfig::default());
    let observed = net.members[1].contact.addr;
    let mut cookie = 0;
    net.cookies = Some(Box::new(move || {
        cookie += 1_u64;
        cookie.to_le_bytes()
    }));
    net.puppets.insert(
        0,
        Box::new(move |message, reply| {
            if matches!(message, Message::Ping) {
                reply(Message::Pong { observed });
            }
        }),
    );
    let contact = net.members[0].contact;
    net.tap = Some(Vec::new());
    for _ in 0..10 {
        net.ask(1, Command::Ping { contact });
        net.run(500);
    }
    let pings = net.tap.as_ref().unwrap().iter().filter(|(_, to, _)| *to == contact.addr).count();
    assert!((11..=22).contains(&pings), "{pings} of ten that were asked for");
}
