//! A node with tokens of a region writes there without asking first, and loses nothing by it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::net::{self, Disk, Net, Puppet, Stranger, identity};
use tessera_contracts::point::{ContentId, Point as _};
use tessera_dht::addr::Addr;
use tessera_dht::contact::Contact;
use tessera_dht::identity::{Crypto as _, PublicKey};
use tessera_dht::lookup::LookupConfig;
use tessera_dht::node::command::{Answer, Command, Written};
use tessera_dht::node::config::NodeConfig;
use tessera_dht::record::immutable_record;
use tessera_dht::seal::cookie::Scope;
use tessera_dht::seal::keys::PERIOD_SECS;
use tessera_dht::store::records::RecordLimits;
use tessera_dht::wire::message::{Contacts, ErrorCode, Message, Token, kind};

fn put(net: &mut Net, value: &[u8]) -> Written {
    let outcome = net.put(1, immutable_record(value, 3600).unwrap());
    let Answer::Written(written) = outcome.answer else { panic!("{outcome:?}") };
    written
}

/// The kinds of messages about writes that member 1 sends each other member while it writes `value`.
fn said_while_writing(net: &mut Net, value: &[u8]) -> Vec<Vec<u8>> {
    net.tap = Some(Vec::new());
    let written = put(net, value);
    let others: Vec<_> = (0..net.members.len()).filter(|n| *n != 1).collect();
    assert_eq!(usize::from(written.acknowledged), others.len());
    let writer = net.members[1].contact.addr;
    let about = [kind::FIND_NODE, kind::STORE];
    let said = |n: usize| {
        let seen = net.seen_by(n).into_iter();
        seen.filter(|seen| seen.from == writer && about.contains(&seen.kind)).map(|seen| seen.kind).collect()
    };
    others.into_iter().map(said).collect()
}

/// Members that have found each other, so long ago that no token of then is good any more.
fn settled(count: usize) -> Net {
    let mut net = Net::of(count, &NodeConfig::default());
    net.run_quietly(PERIOD_SECS * 1000);
    net
}

#[test]
fn the_second_write_is_one_exchange_with_each_holder_until_tokens_may_have_ended() {
    let mut net = settled(12);
    let (asks, writes) = (vec![vec![kind::FIND_NODE, kind::STORE]; 11], vec![vec![kind::STORE]; 11]);
    assert_eq!(said_while_writing(&mut net, b"first"), asks);
    assert_eq!(said_while_writing(&mut net, b"second"), writes);
    assert!(net.members.iter().all(|member| member.lanes[0].records().len() == 2), "all nodes hold both");
    net.run_quietly(PERIOD_SECS * 1000);
    assert_eq!(said_while_writing(&mut net, b"third"), asks);
    net.run_quietly(PERIOD_SECS * 1000);
    net.ask(1, Command::FindNode { target: [9; 32] });
    assert_eq!(said_while_writing(&mut net, b"fourth"), writes, "any lookup of nodes brings tokens");
}

/// Gives tokens for everything, answers writes by `store`, and notes the kinds it was sent.
fn holder(seen: &Rc<RefCell<Vec<u8>>>, mut store: impl FnMut(u8, &mut dyn FnMut(Message<'_>)) + 'static) -> Puppet {
    let seen = seen.clone();
    Box::new(move |message, reply| {
        if matches!(message, Message::FindNode { .. } | Message::Store { .. }) {
            seen.borrow_mut().push(message.kind());
        }
        match message {
            Message::FindNode { .. } => {
                reply(Message::Nodes { token: [Scope::WIDEST.to_wire(); 16], contacts: Contacts::default() });
            }
            Message::Store { closer_max, .. } => store(*closer_max, reply),
            _ => {}
        }
    })
}

#[test]
fn a_write_that_was_sent_instead_of_a_question_still_finds_closer_nodes() {
    let mut net = settled(5);
    let unknown = Contact { key: identity(99).public_key(), addr: Addr::v4([10, 9, 9, 9], 4000) };
    let seen = Rc::default();
    let names = move |closer_max: u8, reply: &mut dyn FnMut(Message<'_>)| {
        let list = unknown.to_wire();
        reply(Message::Stored { closer: Contacts::over(if closer_max > 0 { &list } else { &[] }) });
    };
    net.puppets.insert(2, holder(&seen, names));
    assert_eq!(put(&mut net, b"first").acknowledged, 4);
    net.tap = Some(Vec::new());
    assert_eq!(put(&mut net, b"second").acknowledged, 4);
    assert_eq!(*seen.borrow(), [kind::FIND_NODE, kind::STORE, kind::STORE]);
    assert!(net.tap.iter().flatten().any(|(_, to, _)| *to == unknown.addr), "the node that the answer named is asked");
}

#[test]
fn a_token_that_is_not_honoured_costs_a_question_and_not_the_write() {
    for code in [ErrorCode::BadToken, ErrorCode::TooFar, ErrorCode::CookieRequired] {
        let mut net = settled(5);
        let seen = Rc::default();
        let refuses_once = move |closer_max: u8, reply: &mut dyn FnMut(Message<'_>)| match closer_max {
            0 => reply(Message::Stored { closer: Contacts::default() }),
            _ => reply(Message::Error { code, retry_after_ms: 0 }),
        };
        net.puppets.insert(2, holder(&seen, refuses_once));
        assert_eq!(put(&mut net, b"first").acknowledged, 4);
        seen.borrow_mut().clear();
        let written = put(&mut net, b"second");
        assert_eq!((written.holders, written.acknowledged, written.refused.len()), (4, 4, 0));
        assert_eq!(*seen.borrow(), [kind::STORE, kind::FIND_NODE, kind::STORE], "{code:?}");
    }
}

#[test]
fn a_holder_that_will_not_keep_a_record_has_refused_and_is_left_alone() {
    for code in [ErrorCode::RateLimited, ErrorCode::Busy, ErrorCode::Full, ErrorCode::StaleSequence] {
        let mut net = settled(5);
        let seen = Rc::default();
        let refuses = move |closer_max: u8, reply: &mut dyn FnMut(Message<'_>)| match closer_max {
            0 => reply(Message::Stored { closer: Contacts::default() }),
            _ => reply(Message::Error { code, retry_after_ms: 1000 }),
        };
        net.puppets.insert(2, holder(&seen, refuses));
        assert_eq!(put(&mut net, b"first").acknowledged, 4);
        seen.borrow_mut().clear();
        let written = put(&mut net, b"second");
        assert_eq!((written.holders, written.acknowledged), (4, 3));
        assert_eq!(written.refused, [(code, 1)]);
        assert_eq!(*seen.borrow(), [kind::STORE]);
    }
}

#[test]
fn holders_whose_disks_are_slow_are_still_holders() {
    let mut net = settled(8);
    assert_eq!(put(&mut net, b"first").acknowledged, 7);
    for n in 2..5 {
        net.members[n].disk = Disk::Waits;
    }
    let written = put(&mut net, b"second");
    assert_eq!((written.holders, written.acknowledged, written.silent), (7, 4, 3));
}

#[test]
fn a_holders_answer_to_a_question_is_no_acknowledgement() {
    let mut net = settled(5);
    let lies: Puppet = Box::new(|_, reply| reply(Message::Stored { closer: Contacts::default() }));
    net.puppets.insert(2, lies);
    let written = put(&mut net, b"first");
    assert_eq!((written.holders, written.acknowledged), (4, 3), "one of four was never sent the record");
}

/// How many contacts the answers to a write name.
fn named(stranger: &mut Stranger, net: &mut Net, token: Token, closer_max: u8, value: &[u8]) -> Vec<usize> {
    let (record, mut named) = (immutable_record(value, 3600).unwrap(), Vec::new());
    stranger.say(net, 1, Message::Store { token, closer_max, record: &record }, |reply| {
        if let Message::Stored { closer } = reply {
            named.push(closer.iter().count());
        }
    });
    named
}

#[test]
fn as_many_contacts_are_named_as_were_wanted_and_after_the_log_as_well() {
    let mut net = Net::of(24, &NodeConfig::default());
    let mut stranger = Stranger::new(200, net.now);
    let mut token = None;
    for _ in 0..2 {
        let find = Message::FindNode { target: [3; 32], scope: Scope::WIDEST };
        stranger.say(&mut net, 1, find, |reply| {
            if let Message::Nodes { token: given, .. } = reply {
                token = Some(*given);
            }
        });
    }
    let token = token.unwrap();
    for (closer_max, count) in [(0, 0), (1, 1), (16, 16), (17, 16), (255, 16)] {
        assert_eq!(named(&mut stranger, &mut net, token, closer_max, &[closer_max]), [count]);
    }
    net.members[1].disk = Disk::Waits;
    assert_eq!(named(&mut stranger, &mut net, token, 5, b"slow"), []);
    net.sync(1);
    let (from, mut late) = (net.members[1].contact.addr, Vec::new());
    stranger.hear(&mut net, from, &mut |reply| {
        if let Message::Stored { closer } = reply {
            late.push(closer.iter().count());
        }
    });
    assert_eq!(late, [5]);
}

#[test]
fn where_two_in_three_are_gone_a_write_looks_further_for_the_remaining_nodes() {
    let mut net = settled(45);
    put(&mut net, b"so that there are tokens");
    let gone = |n: &usize| n % 3 != 1;
    net.silent = (0..net.members.len()).filter(gone).collect();
    let written = put(&mut net, b"among those who are left");
    // Of the fourteen it may not know one or two. Among the twenty that were nearest before, there are eight.
    assert!(written.acknowledged >= 12 && written.has_quorum(), "{written:?}");
}

#[test]
fn a_write_that_runs_out_of_time_does_not_take_the_few_it_met_for_a_quorum() {
    let hurried = LookupConfig { budget_ms: 15, alpha_min: 2, alpha_max: 2, ..LookupConfig::default() };
    let mut net = Net::of(12, &NodeConfig { lookup: hurried, ..NodeConfig::default() });
    net.run_quietly(PERIOD_SECS * 1000);
    let outcome = net.put(1, immutable_record(b"in haste", 3600).unwrap());
    let Answer::Written(written) = &outcome.answer else { panic!("{outcome:?}") };
    // Those that answered name eight at most.
    assert!((9..=11).contains(&written.holders) && !written.has_quorum(), "{written:?}");
    assert!((1..=4).contains(&written.acknowledged), "{written:?}");
    assert_eq!(written.silent, written.holders - written.acknowledged, "{written:?}");
}

#[test]
fn substitutes_for_nearer_nodes_that_were_not_heard_in_time_are_no_quorum() {
    let target = ContentId::of_immutable(b"near whom nobody knows");
    let mut strangers: Vec<_> = (100..400).map(|n| identity(n).public_key()).collect();
    strangers.sort_by_key(|key| key.node_id().distance_to(&target));
    let contact = |(n, key): (usize, &PublicKey)| Contact { key: *key, addr: Addr::v4([10, 9, n as u8, 9], 4000) };
    let list: Vec<u8> = strangers[..3].iter().enumerate().flat_map(|named| contact(named).to_wire()).collect();
    // Twice that for a write: enough for two exchanges, and not for a timeout after the first.
    let hurried = LookupConfig { k: 4, budget_ms: 30, widen: false, ..LookupConfig::default() };
    let mut net = Net::of(5, &NodeConfig { lookup: hurried, ..NodeConfig::default() });
    net.run_quietly(PERIOD_SECS * 1000);
    let names: Puppet = Box::new(move |message, reply| match message {
        Message::FindNode { .. } => {
            reply(Message::Nodes { token: [Scope::EXACT.to_wire(); 16], contacts: Contacts::over(&list) });
        }
        Message::Store { .. } => reply(Message::Stored { closer: Contacts::default() }),
        _ => {}
    });
    net.puppets.insert(2, names);
    let written = put(&mut net, b"near whom nobody knows");
    assert!(!written.has_quorum(), "{written:?}");
    assert_eq!((written.holders, written.acknowledged, written.silent), (4, 1, 3), "the nearest four");
    let holders = net.members.iter().filter(|member| !member.lanes[0].records().is_empty());
    assert_eq!(holders.count(), 4, "all who answered hold it, and so does the writer; one is played");
}

#[test]
fn a_holder_that_was_asked_too_often_is_given_the_record_again_soon_and_not_for_ever() {
    for (refusals, stores) in [(0, 1), (1, 2), (9, 3)] {
        let records = RecordLimits { republish_ms: 60_000, ..RecordLimits::default() };
        let mut net = Net::of(2, &NodeConfig { records, ..NodeConfig::default() });
        net.put(0, immutable_record(b"given on", 36_000).unwrap());
        let (observed, asked) = (net.members[0].contact.addr, Rc::new(Cell::new(0)));
        let counted = Rc::clone(&asked);
        let refuse = move |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
            Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&[]) }),
            Message::Store { .. } => {
                counted.set(counted.get() + 1);
                if counted.get() <= refusals {
                    reply(Message::Error { code: ErrorCode::RateLimited, retry_after_ms: 10 });
                } else {
                    reply(Message::Stored { closer: Contacts::over(&[]) });
                }
            }
            _ => reply(Message::Pong { observed }),
        };
        net.puppets.insert(1, Box::new(refuse));
        while asked.get() == 0 {
            net.run(1000);
        }
        net.run(10_000);
        assert_eq!(asked.get(), stores, "refused {refusals} times");
    }
}

#[test]
fn a_version_that_is_out_already_takes_the_place_of_nothing_that_is_kept_alive() {
    let mut net = Net::of(26, &NodeConfig::default());
    let put = |net: &mut Net, n: usize, sequence, value: &[u8]| {
        let record = net::mutable(7, sequence, Some(value), net.now);
        match net.ask(n, Command::Put { record, keep_alive: true }).answer {
            Answer::Written(written) => written,
            other => panic!("{other:?}"),
        }
    };
    let kept = |net: &Net, n: usize| {
        let bounds = net.members[n].lanes[0].bounds();
        bounds.iter().find(|(name, _, _)| *name == "kept alive bytes").unwrap().1
    };
    assert!(put(&mut net, 1, 5, b"five").has_quorum());
    let bytes = kept(&net, 1);
    // Its copy is gone by then, and the record it keeps alive is not.
    net.run_quietly(11 * 60 * 1000);
    for (sequence, code) in [(5, ErrorCode::Equivocation), (3, ErrorCode::StaleSequence)] {
        let written = put(&mut net, 1, sequence, b"another, longer");
        assert_eq!((written.holders, &written.refused[..]), (0, &[(code, 1)][..]), "no other node was asked");
        assert_eq!(kept(&net, 1), bytes);
    }
    // A writer that does not know of it is refused by all, and stops.
    let written = put(&mut net, 2, 4, b"four");
    assert!(written.acknowledged == 0 && written.refused[0].0 == ErrorCode::StaleSequence, "{written:?}");
    assert_eq!(kept(&net, 2), 0);
}

#[test]
fn a_holder_that_answers_a_write_in_many_parts_has_answered_once() {
    let mut net = settled(12);
    let in_parts = |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
        Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&[]) }),
        Message::Store { .. } => (0..4).for_each(|part| reply(net::part_of_many(part))),
        _ => {}
    };
    net.puppets.insert(4, Box::new(in_parts));
    let written = put(&mut net, b"whole");
    assert_eq!((written.holders, written.acknowledged, written.silent), (11, 10, 0));
    assert_eq!(written.refused, [(ErrorCode::Malformed, 1)]);
}

#[test]
fn a_record_kept_alive_is_not_given_up_because_one_of_many_claims_another_version() {
    for (is_mutable, says_so, kept) in [(true, 1, true), (true, 2, false), (false, 3, true)] {
        let mut net = Net::of(4, &NodeConfig::default());
        for n in 1..4 {
            let code = if n <= says_so { ErrorCode::StaleSequence } else { ErrorCode::Busy };
            let refuse = move |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
                Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::over(&[]) }),
                _ => reply(Message::Error { code, retry_after_ms: 0 }),
            };
            net.puppets.insert(n, Box::new(refuse));
        }
        let record = match is_mutable {
            true => net::mutable(7, 5, Some(b"five"), net.now),
            false => immutable_record(b"for ever", 3600).unwrap(),
        };
        let outcome = net.ask(0, Command::Put { record, keep_alive: true });
        let Answer::Written(written) = outcome.answer else { panic!("{outcome:?}") };
        assert_eq!((written.holders, written.acknowledged), (3, 0));
        let bounds = net.members[0].lanes[0].bounds();
        let bytes = bounds.iter().find(|(name, _, _)| *name == "kept alive bytes").unwrap().1;
        assert_eq!(bytes > 0, kept, "mutable: {is_mutable}, {says_so} of three say so");
    }
}

#[test]
fn a_node_that_has_read_a_newer_version_writes_no_older_one_though_its_copy_is_gone() {
    let mut net = Net::of(26, &NodeConfig::default());
    let put = |net: &mut Net, n: usize, sequence| {
        let record = net::mutable(7, sequence, Some(b"a version"), net.now);
        let outcome = net.ask(n, Command::Put { record, keep_alive: false });
        let Answer::Written(written) = outcome.answer else { panic!("{outcome:?}") };
        written
    };
    assert!(put(&mut net, 1, 5).has_quorum());
    let id = tessera_dht::record::RecordView::read(&net::mutable(7, 5, Some(b"a version"), net.now)).unwrap().id();
    let reader = (2..26).find(|n| net.members[*n].lanes[0].records().peek(&id).is_none()).unwrap();
    assert!(matches!(net.get(reader, id, true).answer, Answer::Record(_)));
    net.run_quietly(11 * 60 * 1000);
    assert!(net.members[reader].lanes[0].records().peek(&id).is_none(), "its copy is gone");
    let written = put(&mut net, reader, 4);
    assert_eq!((written.holders, &written.refused[..]), (0, &[(ErrorCode::StaleSequence, 1)][..]));
}

#[test]
fn a_writer_that_is_shown_two_of_forty_nodes_has_no_quorum() {
    let mut net = settled(40);
    net.silent.extend((0..38).filter(|n| *n != 1));
    let written = put(&mut net, b"shown to two");
    assert_eq!((written.holders, written.acknowledged), (20, 2), "{written:?}");
    assert!(!written.has_quorum(), "{written:?}");
}

/// What member 0 of `count` that hold all there is is told of a write that one of the others has no room for.
fn written_beside_a_full_node(count: usize, config: &NodeConfig) -> Written {
    let mut net = Net::of(count, config);
    let full = |message: &Message<'_>, reply: &mut dyn FnMut(Message<'_>)| match message {
        Message::FindNode { .. } => reply(Message::Nodes { token: [255; 16], contacts: Contacts::default() }),
        Message::Store { .. } => reply(Message::Error { code: ErrorCode::Full, retry_after_ms: 0 }),
        _ => {}
    };
    net.puppets.insert(count - 1, Box::new(full));
    let outcome = net.put(0, immutable_record(b"few hold it", 3600).unwrap());
    let Answer::Written(written) = outcome.answer else { panic!("{outcome:?}") };
    assert_eq!(written.refused, [(ErrorCode::Full, 1)]);
    assert_eq!((usize::from(written.holders), usize::from(written.acknowledged)), (count - 1, count - 2));
    written
}

#[test]
fn the_copy_of_a_writer_that_is_a_holder_counts_towards_the_quorum() {
    let written = written_beside_a_full_node(3, &NodeConfig::default());
    assert!(written.has_quorum() && written.quorum == 1, "two of three hold it: {written:?}");
    let written = written_beside_a_full_node(2, &NodeConfig::default());
    assert!(!written.has_quorum() && written.quorum == 1, "one of two holds it: {written:?}");
    let client = NodeConfig { client: true, ..NodeConfig::default() };
    let mut net = Net::of(2, &NodeConfig::default());
    let writer = net.join(1, &client);
    net.run(20_000);
    net.members[1].disk = Disk::Full;
    let outcome = net.put(writer, immutable_record(b"a client holds nothing", 3600).unwrap());
    let Answer::Written(written) = outcome.answer else { panic!("{outcome:?}") };
    assert!(!written.has_quorum() && written.quorum == 2, "one of two holds it: {written:?}");
}
