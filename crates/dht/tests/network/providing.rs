//! Announcing and finding providers: pages, refresh, stems, lanes; and records that holders give on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::net::{Disk, Effects, Net, Stranger, identity, lane, map};
use tessera_contracts::point::{ContentId, Point as _};
use tessera_contracts::prefix_map::LaneIndex;
use tessera_dht::addr::Addr;
use tessera_dht::identity::Crypto as _;
use tessera_dht::lookup::LookupConfig;
use tessera_dht::node::command::{Answer, Command};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::node::log::log_kind;
use tessera_dht::node::outbox::message_kind;
use tessera_dht::record::{immutable_record, sign_provider};
use tessera_dht::seal::keys::NetworkKey;
use tessera_dht::store::records::{Class, RecordLimits};
use tessera_dht::wire::message::{Announcement, Contacts, ErrorCode, Message, Providers, SignedProvider, kind};

const ID: [u8; 32] = [0x42; 32];

/// The answer of an impostor in the place of a provider: `key` is at `addr`, as of `issued_secs`, without a signature.
fn unsigned(key: tessera_dht::identity::PublicKey, addr: Addr, issued_secs: u64) -> SignedProvider {
    let provider = tessera_dht::contact::Contact { key, addr };
    SignedProvider { provider, issued_secs, ttl_secs: 3600, signature: [7; 64] }
}

#[test]
fn an_unsigned_provider_is_not_found_whatever_its_time_of_issue() {
    // Beyond the accepted times the signature is not looked at, and neither may the entry be.
    for ahead_secs in [0, 900, 901, 3000] {
        let mut net = Net::of(6, &NodeConfig::default());
        let (id, honest) = (ContentId::from_bytes(ID), net.members[3].contact);
        net.ask(3, Command::Provide { ids: vec![id] });
        net.run(8000);
        let (elsewhere, issued_secs) = (Addr::v4([203, 0, 113, 9], 9), net.now.unix_secs() + ahead_secs);
        let forged = [honest.key, identity(99).public_key()].map(|key| unsigned(key, elsewhere, issued_secs).to_wire());
        let answer = move |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| {
            if let Message::GetProviders { .. } = message {
                let (providers, closer) = (Providers::over(forged.as_flattened()), Contacts::over(&[]));
                reply(Message::Providers { token: [1; 16], total: 2, next: 0, part: 0, parts: 1, providers, closer });
            }
        };
        net.puppets.insert(2, Box::new(answer));
        let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
        let found: Vec<_> = found.iter().map(|found| found.provider).collect();
        assert_eq!(found, [honest], "issued {ahead_secs} s ahead");
    }
}

#[test]
fn a_node_finds_the_providers_that_it_holds_itself_until_their_time_is_over() {
    // Of two, one announces and the other holds the announcement: there is no other node to ask.
    let mut net = Net::of(2, &NodeConfig::default());
    let (id, provider) = (ContentId::from_bytes(ID), net.members[0].contact);
    net.ask(0, Command::Provide { ids: vec![id] });
    net.run(8000);
    let found = |net: &mut Net, n| match net.ask(n, Command::FindProviders { id, limit: 8 }).answer {
        Answer::Providers(found) => found.iter().map(|found| found.provider).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!((found(&mut net, 1), found(&mut net, 0)), (vec![provider], vec![provider]));
    net.ask(0, Command::Unprovide { ids: vec![id] });
    net.run(u64::from(NodeConfig::default().provide_ttl_secs) * 1000);
    assert_eq!(found(&mut net, 1), []);
}

#[test]
fn an_id_that_is_withdrawn_is_announced_to_no_further_holder() {
    let config = NodeConfig { writes_in_flight_max: 4, ..NodeConfig::default() };
    let (id, other) = (ContentId::from_bytes(ID), ContentId::from_bytes([0x43; 32]));
    let holders =
        |net: &Net, id| net.members.iter().filter(|of| of.lanes[0].providers().of(id).next().is_some()).count();
    // It is withdrawn while its holders are looked for; while the first of them are told; and so with another id of its region.
    for (ids, withdrawn_at) in
        [(vec![id], kind::FIND_NODE), (vec![id], kind::ANNOUNCE), (vec![id, other], kind::ANNOUNCE)]
    {
        let mut net = Net::of(30, &config);
        net.tap = Some(Vec::new());
        net.ask(3, Command::Provide { ids: ids.clone() });
        while net.sent_by(3, withdrawn_at) == 0 {
            net.run(10);
        }
        net.ask(3, Command::Unprovide { ids: vec![id] });
        net.run(20_000);
        let told = holders(&net, &id);
        let on_its_way = if withdrawn_at == kind::ANNOUNCE { config.writes_in_flight_max } else { 0 };
        assert!(told <= on_its_way, "{told} of {on_its_way}");
        assert_eq!(holders(&net, &other) >= 20, ids.len() > 1, "ids beside it are announced");
    }
}

/// Gives a member forty providers of one id, as forty announcements would have.
fn with_forty_providers(net: &mut Net, to: usize) {
    let id = ContentId::from_bytes(ID);
    for n in 100..140 {
        let addr = Addr::v4([10, 8, n as u8, 1], 4000);
        let (issued_secs, ttl_secs) = (net.now.unix_secs(), 3600);
        let network = NetworkKey::of_name("tessera");
        let signature = sign_provider(&identity(n), &network, &id, &addr, issued_secs, ttl_secs);
        let contact = tessera_dht::contact::Contact { key: identity(n).public_key(), addr };
        let provider = SignedProvider { provider: contact, issued_secs, ttl_secs, signature };
        let mut payload = ID.to_vec();
        payload.extend_from_slice(&provider.to_wire());
        let now = net.now;
        net.call(to, |lane, _| lane.on_record(now, tessera_dht::node::log::log_kind::PROVIDER, &payload));
    }
}

/// The sizes of the parts of a page, and where it goes on.
fn page(stranger: &mut Stranger, net: &mut Net, page: u32, parts_max: u8) -> (Vec<usize>, u32) {
    let (mut sizes, mut goes_on) = (Vec::new(), 0);
    let message = Message::GetProviders { id: ContentId::from_bytes(ID), page, parts_max };
    stranger.say(net, 1, message, |reply| {
        if let Message::Providers { providers, next, part, parts, total, .. } = reply {
            assert_eq!((usize::from(*part), *total), (sizes.len(), 40));
            sizes.push(providers.len());
            if part + 1 == *parts {
                goes_on = *next;
            }
        }
    });
    (sizes, goes_on)
}

#[test]
fn a_page_is_32_providers_for_a_proven_address_and_one_datagram_for_others() {
    let mut net = Net::of(6, &NodeConfig::default());
    with_forty_providers(&mut net, 1);
    let mut stranger = Stranger::new(200, net.now);
    assert_eq!(page(&mut stranger, &mut net, 0, 5), (vec![6], 6), "no cookie yet: one datagram for one datagram");
    assert_eq!(page(&mut stranger, &mut net, 0, 5), (vec![6, 8, 8, 8, 2], 32));
    assert_eq!(page(&mut stranger, &mut net, 32, 5), (vec![8], 0), "the rest");
    assert_eq!(page(&mut stranger, &mut net, 0, 2), (vec![6, 8], 14), "no more parts than were asked for");
    assert_eq!(page(&mut stranger, &mut net, 0, 0), (vec![6], 6));
    assert_eq!(page(&mut stranger, &mut net, 40, 5), (vec![0], 0));
}

#[test]
fn a_relay_asks_for_the_one_part_that_it_hands_back() {
    let mut net = Net::of(6, &NodeConfig::default());
    with_forty_providers(&mut net, 3);
    let to = net.members[3].contact;
    net.ask(1, Command::Ping { contact: to });
    let mut stranger = Stranger::new(200, net.now);
    stranger.say(&mut net, 1, Message::Ping, |_| ());
    net.flying.clear();
    net.tap = Some(Vec::new());
    let payload = [&ID[..], &0_u32.to_le_bytes(), &[5]].concat();
    stranger.say(&mut net, 1, Message::Relay { to, kind: kind::GET_PROVIDERS, payload: &payload }, |_| ());
    net.run(100);
    let parts = net.seen_by(1).iter().filter(|seen| seen.kind == kind::PROVIDERS).count();
    assert_eq!(parts, 1);
}

#[test]
fn parts_that_are_lost_are_asked_for_again() {
    for lost in [1, 3] {
        let mut net = Net::of(2, &NodeConfig::default());
        with_forty_providers(&mut net, 1);
        // A warm-up, so that the cookie is known and a page comes in parts.
        let id = ContentId::from_bytes(ID);
        net.ask(0, Command::FindProviders { id, limit: 1 });
        net.tap = Some(Vec::new());
        net.lose = Some(if lost == 1 { |seen| seen.part == 1 } else { |seen| seen.part == 3 });
        let command = net.tell(0, Some(&id), Command::FindProviders { id, limit: 100 });
        net.run(600);
        net.lose = None;
        let Answer::Providers(found) = net.wait(command).answer else { panic!() };
        assert_eq!(found.len(), 40, "part {lost} was lost at first");
    }
}

#[test]
fn a_holder_that_always_asks_for_a_pause_does_not_keep_an_announcement_from_its_end() {
    let mut net = Net::of(6, &NodeConfig::default());
    let (asked, refused) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(u32::MAX)));
    let (counted, refusals) = (Rc::clone(&asked), Rc::clone(&refused));
    let pause = move |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
        Message::FindNode { .. } => reply(Message::Nodes { token: [0; 16], contacts: Contacts::over(&[]) }),
        Message::Announce { .. } => {
            counted.set(counted.get() + 1);
            reply(match counted.get() <= refusals.get() {
                true => Message::Error { code: ErrorCode::RateLimited, retry_after_ms: 100 },
                false => Message::Announced { kept: 1 },
            });
        }
        _ => {}
    };
    net.puppets.insert(4, Box::new(pause));
    net.ask(1, Command::Provide { ids: vec![ContentId::from_bytes(ID)] });
    net.run(20_000);
    let operations = |net: &Net| {
        let bounds = net.members[1].lanes[0].bounds();
        bounds.iter().find(|(name, _, _)| *name == "operations").unwrap().1
    };
    assert_eq!((asked.get(), operations(&net)), (8, 0));
    // A holder that is busy for a while gets everything.
    asked.set(0);
    refused.set(7);
    net.ask(1, Command::Provide { ids: vec![ContentId::from_bytes([0x43; 32])] });
    net.run(20_000);
    assert_eq!((asked.get(), operations(&net)), (8, 0), "seven times later, and then it is taken");
}

#[test]
fn announcements_return_before_their_lifetime_ends() {
    let config = NodeConfig { provide_ttl_secs: 600, ..NodeConfig::default() };
    let mut net = Net::of(8, &config);
    let id = ContentId::from_bytes(ID);
    net.ask(3, Command::Provide { ids: vec![id] });
    net.run(2000);
    for _ in 0..20 {
        net.run_quietly(100_000);
        let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
        assert_eq!(found.len(), 1, "announced again in time");
    }
    net.ask(3, Command::Unprovide { ids: vec![id] });
    net.run_quietly(700_000);
    let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
    assert_eq!(found.len(), 0, "and runs out when it is not");
}

#[test]
fn with_a_stem_the_holders_do_not_hear_it_from_the_provider() {
    let config = NodeConfig { stem_hops: 2, ..NodeConfig::default() };
    let mut net = Net::of(12, &config);
    net.run_quietly(90_000); // After a minute the nodes know which of them take stems.
    net.tap = Some(Vec::new());
    let id = ContentId::from_bytes(ID);
    let provider = net.members[3].contact;
    net.ask(3, Command::Provide { ids: vec![id] });
    net.run(8000);
    let seen: Vec<_> = (0..12).flat_map(|n| net.seen_by(n)).collect();
    let stems = seen.iter().filter(|seen| seen.kind == kind::STEM && seen.from == provider.addr).count();
    assert!((1..=2).contains(&stems), "one node is told, and hands it on; it may come around: {stems}");
    let announced: Vec<_> = seen.iter().filter(|seen| seen.kind == kind::ANNOUNCE).collect();
    assert!(!announced.is_empty());
    assert!(announced.iter().all(|seen| seen.from != provider.addr), "it is spread by another node");
    let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
    assert_eq!(found.iter().map(|found| found.provider).collect::<Vec<_>>(), [provider]);
}

#[test]
fn a_provider_that_has_just_joined_asks_which_nodes_take_stems_rather_than_spread_by_itself() {
    // Also where the first that is asked takes none: that is the one it joined by, and the others have yet to say.
    for (lanes, first_takes) in [(1, true), (4, true), (1, false), (4, false)] {
        let mut net = Net::of(12, &NodeConfig::default());
        if !first_takes {
            net.lose_at = Some((0, kind::STEM));
        }
        let provider = net.join(lanes, &NodeConfig { stem_hops: 2, ..NodeConfig::default() });
        net.run(1000);
        net.tap = Some(Vec::new());
        let ids: Vec<_> = (0..8).map(|n| ContentId::from_bytes([n * 31; 32])).collect();
        for id in &ids {
            net.ask(provider, Command::Provide { ids: vec![*id] });
        }
        net.run(15_000);
        let own = net.members[provider].contact.addr;
        let spread =
            (0..12).flat_map(|n| net.seen_by(n)).filter(|seen| seen.kind == kind::ANNOUNCE && seen.from == own);
        assert_eq!(spread.count(), 0, "{lanes} lanes, the first takes stems: {first_takes}");
        for id in ids {
            let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
            assert_eq!(found.len(), 1, "{lanes} lanes, the first takes stems: {first_takes}");
        }
    }
}

#[test]
fn a_stem_returns_at_half_the_lifetime_and_not_before() {
    let config = NodeConfig { stem_hops: 2, provide_ttl_secs: 1200, ..NodeConfig::default() };
    let mut net = Net::of(10, &config);
    net.run_quietly(90_000);
    let (id, provider) = (ContentId::from_bytes(ID), net.members[3].contact.addr);
    net.ask(3, Command::Provide { ids: vec![id] });
    net.run(8000);
    let mut rounds = 0;
    for _ in 0..24 {
        net.tap = Some(Vec::new());
        net.run_quietly(200_000);
        let seen: Vec<_> = (0..10).flat_map(|n| net.seen_by(n)).filter(|seen| seen.from == provider).collect();
        rounds += usize::from(seen.iter().any(|seen| seen.kind == kind::STEM));
        assert!(seen.iter().all(|seen| seen.kind != kind::ANNOUNCE), "it never speaks for itself");
        let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
        assert_eq!(found.len(), 1, "announced again in time");
    }
    // Each jittered by a quarter. Within a round it may be sent twice: to a node that wants a cookie first, or when it comes around.
    assert!((6..=12).contains(&rounds), "{rounds} times in eight half-lives");
}

#[test]
fn a_stem_that_no_node_takes_is_spread_by_the_provider_itself() {
    let config = NodeConfig { stem_hops: 2, ..NodeConfig::default() };
    let mut net = Net::of(8, &config);
    net.run_quietly(90_000);
    net.lose = Some(|seen| seen.kind == kind::STEM);
    let id = ContentId::from_bytes(ID);
    net.ask(3, Command::Provide { ids: vec![id] });
    net.run(8000);
    let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
    assert_eq!(found.len(), 1);
}

#[test]
fn a_stem_that_is_lost_further_on_is_spread_by_its_last_bearer() {
    let config = NodeConfig { stem_hops: 2, ..NodeConfig::default() };
    let mut net = Net::of(8, &config);
    net.run_quietly(90_000);
    // The first node takes it; datagrams of the second are lost.
    net.lose = Some(|seen| seen.kind == kind::STEM && seen.from != Addr::v4([10, 0, 3, 1], 4000));
    assert_eq!(net.members[3].contact.addr, Addr::v4([10, 0, 3, 1], 4000));
    let ids: Vec<_> = (0..8).map(|n| ContentId::from_bytes([n * 31; 32])).collect();
    net.tap = Some(Vec::new());
    net.ask(3, Command::Provide { ids: ids.clone() });
    net.run(8000);
    for id in ids {
        let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
        assert_eq!(found.len(), 1, "{id}");
    }
    let own = net.members[3].contact.addr;
    let spread = (0..8).flat_map(|n| net.seen_by(n)).filter(|seen| seen.kind == kind::ANNOUNCE && seen.from == own);
    assert_eq!(spread.count(), 0, "not by the provider");
}

/// Hands member 3 an announcement of its own, and says whether it took it.
fn comes_around(net: &mut Net) -> bool {
    let (id, provider) = (ContentId::from_bytes(ID), net.members[3].contact);
    let (issued_secs, ttl_secs) = (net.now.unix_secs(), 600);
    let network = NetworkKey::of_name("tessera");
    let mut entry = ID.to_vec();
    entry.extend(sign_provider(&identity(3), &network, &id, &provider.addr, issued_secs, ttl_secs));
    let announcement = Announcement::over(provider, issued_secs, ttl_secs, &entry);
    let mut stranger = Stranger::new(200, net.now);
    stranger.say(net, 3, Message::Ping, |_| ());
    let mut taken = false;
    stranger.say(net, 3, Message::Stem { hops_left: 0, announcement }, |reply| {
        taken = matches!(reply, Message::StemTaken);
    });
    taken
}

#[test]
fn a_stem_that_comes_around_to_its_provider_is_handed_on_and_not_spread_by_it() {
    let mut net = Net::of(8, &NodeConfig::default());
    net.run_quietly(90_000);
    let (id, provider) = (ContentId::from_bytes(ID), net.members[3].contact);
    assert!(comes_around(&mut net));
    net.tap = Some(Vec::new());
    net.run(8000);
    let seen: Vec<_> = (0..8).flat_map(|n| net.seen_by(n)).filter(|seen| seen.from == provider.addr).collect();
    assert!(seen.iter().any(|seen| seen.kind == kind::STEM), "though no hops were left");
    assert!(seen.iter().all(|seen| seen.kind != kind::ANNOUNCE));
    let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
    assert_eq!(found.len(), 1, "another node has spread it");
}

#[test]
fn a_stem_is_handed_on_though_no_node_remembers_its_providers_address() {
    let config = NodeConfig { stem_hops: 2, ..NodeConfig::default() };
    let mut net = Net::of(8, &config);
    net.run_quietly(90_000);
    // Cookies are of a period: at the start of the next no node has one.
    let period_ms = 1000 * tessera_dht::seal::keys::PERIOD_SECS;
    net.run_quietly(period_ms - net.now.unix_ms % period_ms);
    net.tap = Some(Vec::new());
    let (id, own) = (ContentId::from_bytes(ID), net.members[3].contact.addr);
    net.ask(3, Command::Provide { ids: vec![id] });
    net.run(8000);
    let seen: Vec<_> = (0..8).flat_map(|n| net.seen_by(n)).filter(|seen| seen.from == own).collect();
    assert!(seen.iter().filter(|seen| seen.kind == kind::STEM).count() >= 1);
    assert!(seen.iter().all(|seen| seen.kind != kind::ANNOUNCE), "a missing cookie is no reason to spread it itself");
    let Answer::Providers(found) = net.ask(5, Command::FindProviders { id, limit: 8 }).answer else { panic!() };
    assert_eq!(found.len(), 1);
}

/// All but member 3 refuse stems for want of a cookie, with any cookie.
fn no_node_is_content_with_a_cookie(net: &mut Net) {
    for n in (0..8).filter(|n| *n != 3) {
        let refuse = |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
            Message::Ping => reply(Message::Pong { observed: Addr::v4([10, 0, 3, 1], 4000) }),
            Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&[]) }),
            Message::Announce { .. } => reply(Message::Announced { kept: 1 }),
            Message::Stem { .. } => reply(Message::Error { code: ErrorCode::CookieRequired, retry_after_ms: 0 }),
            _ => {}
        };
        net.puppets.insert(n, Box::new(refuse));
    }
    net.tap = Some(Vec::new());
}

#[test]
fn a_stem_is_not_handed_without_end_to_a_node_that_always_wants_a_cookie() {
    let config = NodeConfig { stem_hops: 2, ..NodeConfig::default() };
    let mut net = Net::of(8, &config);
    net.run_quietly(90_000);
    no_node_is_content_with_a_cookie(&mut net);
    net.ask(3, Command::Provide { ids: vec![ContentId::from_bytes(ID)] });
    net.run(30_000);
    assert_eq!(net.sent_by(3, kind::STEM), 2 * 7, "to each once more with the cookie it was given");
    assert!(net.sent_by(3, kind::ANNOUNCE) > 0, "and then it is spread from here");
}

/// Of a network of so many members, only those that are `willing` take the stem of member 3. Returns the members asked to.
fn asked_to_take(count: usize, willing: &[usize]) -> (Net, Vec<usize>) {
    let config = NodeConfig { stem_hops: 2, ..NodeConfig::default() };
    let mut net = Net::of(count, &config);
    net.run_quietly(90_000);
    for n in (0..count).filter(|n| *n != 3) {
        let takes = willing.contains(&n);
        let answer = move |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
            Message::Ping => reply(Message::Pong { observed: Addr::v4([10, 0, 3, 1], 4000) }),
            Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&[]) }),
            Message::Announce { .. } => reply(Message::Announced { kept: 1 }),
            Message::Stem { .. } if takes => reply(Message::StemTaken),
            Message::Stem { .. } => reply(Message::Error { code: ErrorCode::Busy, retry_after_ms: 0 }),
            _ => {}
        };
        net.puppets.insert(n, Box::new(answer));
    }
    net.tap = Some(Vec::new());
    net.ask(3, Command::Provide { ids: vec![ContentId::from_bytes(ID)] });
    net.run(30_000);
    let own = net.members[3].contact.addr;
    let asked = |n: &usize| net.seen_by(*n).iter().filter(|seen| seen.kind == kind::STEM && seen.from == own).count();
    let asked = (0..count).flat_map(|n| std::iter::repeat_n(n, asked(&n))).collect();
    (net, asked)
}

#[test]
fn a_refused_stem_is_not_spread_by_its_provider_while_another_node_takes_it() {
    let willing = 6;
    let (net, asked) = asked_to_take(8, &[willing]);
    assert!(asked.contains(&willing), "{asked:?} were asked");
    assert_eq!(net.sent_by(3, kind::ANNOUNCE), 0, "{asked:?} were asked");
}

#[test]
fn a_stem_is_offered_to_eight_nodes_once_each_and_then_spread_by_its_provider() {
    let (net, asked) = asked_to_take(12, &[]);
    let mut different = asked.clone();
    different.dedup();
    assert_eq!((asked.len(), different.len()), (8, 8), "{asked:?} were asked");
    assert!((0..12).flat_map(|n| net.seen_by(n)).any(|seen| seen.kind == kind::ANNOUNCE));
}

#[test]
fn an_id_that_no_stem_takes_is_spread_without_those_beside_it_that_went_by_one() {
    let config = NodeConfig { stem_hops: 2, ..NodeConfig::default() };
    let mut net = Net::of(8, &config);
    net.run_quietly(90_000);
    // Among so few everything is one region.
    let (taken, refused) = (ContentId::from_bytes(ID), ContentId::from_bytes([0x43; 32]));
    let spread = Rc::new(RefCell::new(BTreeSet::new()));
    for n in (0..8).filter(|n| *n != 3) {
        let heard = Rc::clone(&spread);
        let answer = move |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
            Message::Ping => reply(Message::Pong { observed: Addr::v4([10, 0, 3, 1], 4000) }),
            Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&[]) }),
            Message::Announce { announcement, .. } => {
                heard.borrow_mut().extend(announcement.ids().map(|(id, _)| id));
                reply(Message::Announced { kept: 1 });
            }
            Message::Stem { announcement, .. } => reply(match announcement.ids().any(|(id, _)| id == taken) {
                true => Message::StemTaken,
                false => Message::Error { code: ErrorCode::Busy, retry_after_ms: 0 },
            }),
            _ => {}
        };
        net.puppets.insert(n, Box::new(answer));
    }
    for id in [taken, refused] {
        net.ask(3, Command::Provide { ids: vec![id] });
        net.run(15_000);
    }
    assert_eq!(spread.take(), BTreeSet::from([refused]));
}

#[test]
fn a_stem_that_came_around_is_not_offered_without_end() {
    let mut net = Net::of(8, &NodeConfig::default());
    net.run_quietly(90_000);
    assert!(comes_around(&mut net));
    no_node_is_content_with_a_cookie(&mut net);
    net.run(60_000);
    let stems = net.sent_by(3, kind::STEM);
    assert!((2..=16).contains(&stems), "{stems} in a minute");
    assert_eq!(net.sent_by(3, kind::ANNOUNCE), 0, "that would say whose it is");
}

#[test]
fn a_provider_record_lives_with_the_lane_that_owns_its_id() {
    let mut net = Net::of_lanes(6, 3, &NodeConfig::default());
    let ids: Vec<_> = (0..24).map(|n| ContentId::from_bytes([n * 7; 32])).collect();
    for id in &ids {
        net.ask(1, Command::Provide { ids: vec![*id] });
    }
    net.run(6000);
    let mut held = 0;
    for (n, member) in net.members.iter().enumerate().filter(|(n, _)| *n != 1) {
        for id in &ids {
            let owner = usize::from(member.map.lane(&member.lanes[0].id(), id).0);
            for (at, lane) in member.lanes.iter().enumerate() {
                let count = lane.providers().count(id);
                assert_eq!(count, usize::from(at == owner), "member {n}, lane {at}, owner {owner}");
                held += count;
            }
        }
    }
    assert_eq!(held, 5 * ids.len());
}

#[test]
fn lookups_of_many_lanes_need_no_message_between_them() {
    let mut net = Net::of_lanes(8, 3, &NodeConfig::default());
    net.messages_lost = true;
    for n in 0..12_u8 {
        let value = [n; 20];
        let record = immutable_record(&value, 3600).unwrap();
        let put = net.put(usize::from(n) % 8, record.clone());
        assert!(matches!(&put.answer, Answer::Written(written) if written.has_quorum()), "{put:?}");
        let got = net.get(usize::from(n + 3) % 8, ContentId::of_immutable(&value), false);
        assert_eq!(got.answer, Answer::Record(record));
    }
}

#[test]
fn lanes_hint_to_each_other_which_peers_they_met_and_lost() {
    let known = |net: &Net, n: usize| {
        let id = net.members[n].contact.id();
        net.members[0].lanes.iter().filter(|lane| lane.table().get(&id).is_some()).count()
    };
    let mut net = Net::of_lanes(2, 4, &NodeConfig::default());
    let n = net.join(1, &NodeConfig::default());
    net.run(3000);
    assert_eq!(known(&net, n), 4, "one lane asked it, and all know it");
    let now = net.now;
    net.call(n, |lane, out| lane.leave(now, out));
    net.by_addr.retain(|_, member| *member != n);
    net.run(50);
    assert_eq!(known(&net, n), 0, "it told one lane, and all know");
    net.messages_lost = true;
    let n = net.join(1, &NodeConfig::default());
    net.run(3000);
    assert!(known(&net, n) < 4, "without messages a lane knows only the nodes it has asked itself");
}

#[test]
fn messages_between_lanes_may_come_twice_and_in_any_order() {
    let mut net = Net::empty();
    net.messages_mixed = true;
    for _ in 0..6 {
        net.join(3, &NodeConfig::default());
        net.run(300);
    }
    net.run(20_000);
    let ids: Vec<_> = (0..24).map(|n| ContentId::from_bytes([n * 7; 32])).collect();
    for id in &ids {
        net.ask(1, Command::Provide { ids: vec![*id] });
    }
    net.run(6000);
    for (n, member) in net.members.iter().enumerate().filter(|(n, _)| *n != 1) {
        for id in &ids {
            let owner = usize::from(member.map.lane(&member.lanes[0].id(), id).0);
            let counts: Vec<_> = member.lanes.iter().map(|lane| lane.providers().count(id)).collect();
            let expected: Vec<_> = (0..3).map(|at| usize::from(at == owner)).collect();
            assert_eq!(counts, expected, "member {n}");
        }
        let kept: u64 = member.lanes.iter().map(|lane| lane.counters().providers_stored).sum();
        let logged = member.log.iter().filter(|(kind, _)| *kind == log_kind::PROVIDER).count();
        assert_eq!((kept, logged), (24, 24), "member {n}: what comes twice is kept and logged once");
        for lane in &member.lanes {
            assert!(lane.health(net.now).is_up, "member {n}: {:?}", lane.health(net.now));
            assert_eq!(lane.table().live_len(), 5, "member {n} still knows all others");
        }
    }
    for id in &ids {
        let Answer::Providers(found) = net.ask(4, Command::FindProviders { id: *id, limit: 8 }).answer else {
            panic!()
        };
        assert_eq!(found.len(), 1);
    }
}

#[test]
fn a_message_that_is_overtaken_does_not_bring_an_older_provider_back() {
    let mut net = Net::of_lanes(2, 3, &NodeConfig::default());
    let (id, now) = (ContentId::from_bytes([3; 32]), net.now);
    let own = net.members[1].lanes[0].id();
    let owner = usize::from(net.members[1].map.lane(&own, &id).0);
    let (provider, network) = (identity(0), NetworkKey::of_name("tessera"));
    let said = |issued_secs: u64| {
        let contact = net.members[0].contact;
        let signature = sign_provider(&provider, &network, &id, &contact.addr, issued_secs, 600);
        let provider = SignedProvider { provider: contact, issued_secs, ttl_secs: 600, signature };
        // The last eight bytes say whose announcement it was.
        [&id.as_bytes()[..], &provider.to_wire(), &[7; 8]].concat()
    };
    let (older, newer) = (said(now.unix_secs() - 60), said(now.unix_secs()));
    for payload in [&newer, &older, &newer] {
        net.call_lane(1, owner, |lane, out| lane.on_message(now, message_kind::PROVIDERS, payload, out));
    }
    let held: Vec<_> = net.members[1].lanes[owner].providers().of(&id).map(|held| held.issued_secs).collect();
    assert_eq!(held, [now.unix_secs()]);
    assert_eq!(net.members[1].log.iter().filter(|(kind, _)| *kind == log_kind::PROVIDER).count(), 1);
}

#[test]
fn a_provider_that_the_runtime_brings_here_is_kept_and_not_sent_on_with_a_new_time_to_live() {
    // The runtime delivers to the owner by the newest map it has heard of, of which this lane may have yet to be told.
    let (config, now, map) = (NodeConfig::default(), Net::empty().now, map(2));
    let mut lane = lane(1, &config, &map, 0, now);
    let is_foreign = |id: &ContentId| map.lane(&lane.id(), id) != LaneIndex(0);
    let id = (0..=255).map(|n| ContentId::from_bytes([n; 32])).find(is_foreign).unwrap();
    let provider = unsigned(identity(9).public_key(), Addr::v4([10, 0, 9, 1], 9), now.unix_secs());
    let payload = [&id.as_bytes()[..], &provider.to_wire(), &[0; 8]].concat();
    let mut effects = Effects::new(Disk::Instant, 0);
    lane.on_message(now, message_kind::PROVIDERS, &payload, &mut effects);
    assert_eq!((lane.providers().of(&id).count(), effects.messages.len()), (1, 0));
}

#[test]
fn a_command_for_another_lanes_id_is_sent_back() {
    let mut net = Net::of_lanes(2, 4, &NodeConfig::default());
    let own = net.members[1].lanes[0].id();
    let foreign =
        (0..=255).map(|n| ContentId::from_bytes([n; 32])).find(|id| net.members[1].map.lane(&own, id).0 != 0).unwrap();
    let command = net.tell(1, None, Command::FindProviders { id: foreign, limit: 1 });
    assert_eq!(net.wait(command).answer, Answer::WrongLane);
}

#[test]
fn unanswered_announcements_leave_a_quarter_of_the_requests_to_lookups() {
    let mut net = Net::of(12, &NodeConfig::default());
    let n = net.join(1, &NodeConfig { requests_max: 8, ..NodeConfig::default() });
    net.run(10_000);
    net.lose = Some(|seen| seen.kind == kind::ANNOUNCE);
    net.tap = Some(Vec::new());
    let sent = |net: &Net, kind: u8| (0..12).flat_map(|m| net.seen_by(m)).filter(|seen| seen.kind == kind).count();
    net.ask(n, Command::Provide { ids: vec![ContentId::from_bytes(ID)] });
    for _ in 0..500 {
        if sent(&net, kind::ANNOUNCE) > 0 {
            break;
        }
        net.run(10);
    }
    assert_eq!(sent(&net, kind::ANNOUNCE), 6, "of twelve holders");
    // While all six are still waited for.
    net.tell(n, None, Command::FindProviders { id: ContentId::from_bytes([7; 32]), limit: 1 });
    assert_eq!(sent(&net, kind::GET_PROVIDERS), 2);
}

/// Four holders of each record, given on after ten minutes.
fn republishing() -> NodeConfig {
    NodeConfig {
        lookup: LookupConfig { k: 4, widen: false, ..LookupConfig::default() },
        records: RecordLimits { republish_ms: 600_000, ..RecordLimits::default() },
        ..NodeConfig::default()
    }
}

fn holders(net: &Net, id: &ContentId) -> Vec<usize> {
    let held = |n: &usize| {
        net.members[*n].lanes[0].records().peek(id).is_some_and(|kept| kept.class == Class::Held)
            && !net.silent.contains(n)
    };
    (0..net.members.len()).filter(held).collect()
}

#[test]
fn a_record_outlives_its_first_holders_and_its_owner_but_not_its_lifetime() {
    let mut net = Net::of(14, &republishing());
    net.put(1, immutable_record(b"handed on", 6000).unwrap());
    let expires = net.now.unix_secs() + 6000;
    let id = ContentId::of_immutable(b"handed on");
    let first = holders(&net, &id);
    assert!(first.len() >= 4, "{first:?}");
    net.silent.insert(1);
    // All but one of the first holders go for good.
    net.silent.extend(&first[1..]);
    net.run_quietly(1_500_000);
    let later = holders(&net, &id);
    assert!(later.len() >= 4, "the last holder gave it to those nearest today: {later:?}");
    for n in &later {
        let kept = net.members[*n].lanes[0].records().peek(&id).unwrap();
        assert!(kept.expires_secs <= expires + 2, "member {n} keeps it until {}, not {expires}", kept.expires_secs);
    }
    net.silent.insert(first[0]);
    let reader = (0..14).find(|n| !net.silent.contains(n) && !later.contains(n)).unwrap();
    assert!(matches!(net.get(reader, id, false).answer, Answer::Record(_)));
    net.run_quietly(5_000_000);
    assert_eq!(holders(&net, &id), [], "no node prolongs it");
}

#[test]
fn one_holder_gives_a_record_on_and_the_others_leave_it_at_that() {
    let mut net = Net::of(10, &republishing());
    net.put(1, immutable_record(b"once", 36_000).unwrap());
    net.run_quietly(3_000_000);
    let given: u64 = net.members.iter().map(|member| member.lanes[0].counters().records_republished).sum();
    // Five intervals, jittered by a quarter, and four holders: twenty if each did it by itself.
    assert!((3..=8).contains(&given), "{given} times in five intervals");
}
