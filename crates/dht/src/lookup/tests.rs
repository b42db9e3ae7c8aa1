//! One lookup by itself, against peers that answer whatever a test says.

use super::*;
use crate::addr::Addr;
use crate::identity::PublicKey;
use crate::rng::LaneRng;
use alloc::collections::BTreeSet;
use proptest::prelude::*;
use tessera_contracts::point::{ContentId, Point as _};

fn node(n: u16) -> (NodeId, Contact) {
    let mut key = [0; 32];
    key[..2].copy_from_slice(&n.to_le_bytes());
    let [a, b] = n.to_le_bytes();
    let contact = Contact { key: PublicKey(key), addr: Addr::v4([10, a, b, 1], 1) };
    (contact.id(), contact)
}

const TARGET: [u8; 32] = [0x77; 32];

fn started(config: LookupConfig, goal: Goal, seeds: impl Iterator<Item = u16>) -> Lookup {
    let mut lookup = Lookup::new();
    lookup.start(0, config, TARGET, goal, Distance::ZERO);
    for n in seeds {
        let (id, contact) = node(n);
        lookup.offer(id, contact, Some(100));
    }
    lookup
}

fn small() -> LookupConfig {
    LookupConfig { k: 4, ..LookupConfig::default() }
}

fn ask(lookup: &mut Lookup, now: u64) -> NodeId {
    lookup.next(now, |_| true).expect("a node to ask").id
}

/// Runs a lookup to its end against nodes that know `knows` and answer at once.
fn run(lookup: &mut Lookup, knows: impl Fn(&NodeId) -> Vec<(NodeId, Contact)>) -> (Finish, BTreeSet<NodeId>) {
    let mut asked = BTreeSet::new();
    for now in 0.. {
        if let Some(finish) = lookup.finished(now) {
            return (finish, asked);
        }
        let batch: Vec<_> = core::iter::from_fn(|| lookup.next(now, |_| true)).collect();
        for ask in batch {
            assert!(asked.insert(ask.id), "nobody is asked twice");
            lookup.answered(now, &ask.id, [0; 16], knows(&ask.id).into_iter());
        }
    }
    unreachable!()
}

#[test]
fn it_lacks_as_many_of_k_as_were_silent_and_only_then() {
    let mut lookup = started(small(), Goal::Nodes, 0..3);
    assert_eq!((lookup.lacking(), lookup.unheard()), (0, 3), "nobody was silent: those who answer name others");
    let (answers, is_silent) = (ask(&mut lookup, 0), ask(&mut lookup, 0));
    lookup.answered(10, &answers, [0; 16], core::iter::empty());
    lookup.timed_out(10, &is_silent);
    assert_eq!((lookup.lacking(), lookup.unheard()), (2, 1), "one of four, and one that may");
    let newcomers: Vec<_> = (10..20).map(node).filter(|(id, _)| !lookup.knows(id)).collect();
    newcomers.iter().take(2).for_each(|(id, contact)| lookup.offer(*id, *contact, None));
    assert_eq!((lookup.lacking(), lookup.unheard()), (0, 3));
}

#[test]
fn a_record_that_was_not_answered_is_followed_by_a_question_after_all_who_were_never_asked() {
    let config = LookupConfig { alpha_min: 1, alpha_max: 1, ..small() };
    let mut lookup = started(config, Goal::Nodes, 0..4);
    let is_slow = ask(&mut lookup, 0);
    lookup.writes_to(&is_slow);
    lookup.write_timed_out(&is_slow);
    let asked: Vec<_> = (1..=4)
        .map(|now| {
            let id = ask(&mut lookup, now);
            lookup.answered(now, &id, [0; 16], core::iter::empty());
            id
        })
        .collect();
    assert_eq!(asked.iter().position(|id| *id == is_slow), Some(3), "it is the nearest, and comes last");
    assert_eq!(lookup.finished(5), Some(Finish::Exhausted));
}

#[test]
fn for_each_that_is_silent_one_more_has_to_say_whom_it_knows() {
    let config = LookupConfig { alpha_min: 8, ..small() };
    let mut lookup = started(LookupConfig { k: 20, ..config }, Goal::Nodes, 0..10);
    let asked: Vec<_> = (0..6).map(|_| ask(&mut lookup, 0)).collect();
    assert_eq!(lookup.well_informed(), 6, "all of them may");
    lookup.answered(10, &asked[0], [0; 16], core::iter::empty());
    assert_eq!(lookup.well_informed(), 6, "one of them has");
    lookup.timed_out(10, &asked[1]);
    assert_eq!(lookup.well_informed(), 4);
    lookup.writes_to(&asked[2]);
    lookup.write_timed_out(&asked[2]);
    assert_eq!(lookup.well_informed(), 2);
    lookup.refused(&asked[3], ErrorCode::Busy);
    assert_eq!(lookup.well_informed(), 1, "who refuses names nobody, and nobody named it in vain");
}

#[test]
fn who_answers_from_farther_than_k_that_have_yet_to_stands_in_for_them() {
    let config = LookupConfig { alpha_min: 8, ..small() };
    let mut lookup = started(config, Goal::Nodes, 0..4);
    let mut far: Vec<_> = (0..4).map(|_| ask(&mut lookup, 0)).collect();
    far.sort_by_key(|id| id.distance_to(&ContentId::from_bytes(TARGET)));
    let mut near: Vec<_> = (10..200).map(node).collect();
    near.sort_by_key(|(id, _)| id.distance_to(&ContentId::from_bytes(TARGET)));
    near.truncate(3);
    far.iter().for_each(|id| assert!(lookup.answered(10, id, [0; 16], near.iter().copied())));
    let stand_ins = |lookup: &Lookup| lookup.holders().filter(|holder| lookup.stands_in(holder)).count();
    assert_eq!((lookup.unheard(), lookup.holders().count(), stand_ins(&lookup)), (3, 4, 3));
    let silent = ask(&mut lookup, 10);
    lookup.timed_out(20, &silent);
    assert_eq!((lookup.unheard(), stand_ins(&lookup)), (2, 2), "nobody looks for who is gone");
}

#[test]
fn finds_exactly_the_nearest_k_of_a_connected_network() {
    let all: Vec<_> = (0..300).map(node).collect();
    let near = |point: &NodeId, count: usize| {
        let mut sorted = all.clone();
        sorted.sort_by_key(|(id, _)| id.distance_to(point));
        sorted.truncate(count);
        sorted
    };
    let mut lookup = started(LookupConfig::default(), Goal::Nodes, 0..3);
    // Every node knows those nearest to the target among a random half.
    let knows = |id: &NodeId| {
        let mut rng = LaneRng::new(*id.as_bytes());
        let mut half: Vec<_> = all.iter().filter(|_| rng.below(2) == 0).copied().collect();
        half.sort_by_key(|(id, _)| id.distance_to(&NodeId::from_bytes(TARGET)));
        half.truncate(16);
        half
    };
    assert_eq!(run(&mut lookup, knows).0, Finish::Exhausted);
    let found: Vec<_> = lookup.holders().take(20).map(|candidate| candidate.id).collect();
    let expected: Vec<_> = near(&NodeId::from_bytes(TARGET), 20).into_iter().map(|(id, _)| id).collect();
    assert_eq!(found, expected);
}

#[test]
fn no_more_than_alpha_are_in_flight_and_alpha_grows_with_silence() {
    let mut lookup = started(LookupConfig::default(), Goal::Nodes, 0..40);
    let first: Vec<_> = core::iter::from_fn(|| lookup.next(0, |_| true)).map(|ask| ask.id).collect();
    assert_eq!(first.len(), 3);
    lookup.timed_out(100, &first[0]);
    lookup.timed_out(100, &first[1]);
    let more = core::iter::from_fn(|| lookup.next(100, |_| true)).count();
    assert_eq!(more, 4, "two were lost and two more are allowed: five in flight");
    assert_eq!(lookup.stats(100).alpha_peak, 5);
}

#[test]
fn k_writes_are_in_flight_beside_the_questions_and_no_more() {
    let config = LookupConfig { k: 6, alpha_min: 2, alpha_max: 2, ..LookupConfig::default() };
    let mut lookup = started(config, Goal::Nodes, 0..30);
    for now in 0..3 {
        let both = [ask(&mut lookup, now), ask(&mut lookup, now)];
        both.iter().for_each(|id| lookup.writes_to(id));
        assert!(lookup.next(now, |_| true).is_none(), "few know yet who is near");
        lookup.answered(now, &both[0], [0; 16], core::iter::empty());
        if now < 2 {
            lookup.refused(&both[1], ErrorCode::Full);
        } else {
            lookup.answered(now, &both[1], [0; 16], core::iter::empty());
        }
    }
    lookup.radius = Distance::MAX;
    let asked = write_to_all(&mut lookup);
    assert_eq!(asked.len(), 6 + 2, "K, and as many more as may be asked at once");
    lookup.answered(1, &asked[0], [0; 16], core::iter::empty());
    ask(&mut lookup, 1);
    assert!(lookup.next(1, |_| true).is_none(), "an answer makes room for one");
    // Who did not take the record is asked a question, which counts as one.
    for id in &asked[1..] {
        lookup.requeue(id);
    }
    assert_eq!(core::iter::from_fn(|| lookup.next(2, |_| true)).count(), 1, "one was in flight already");
}

fn write_to_all(lookup: &mut Lookup) -> Vec<NodeId> {
    core::iter::from_fn(|| {
        let ask = lookup.next(0, |_| true)?;
        lookup.writes_to(&ask.id);
        Some(ask.id)
    })
    .collect()
}

#[test]
fn who_lies_within_the_radius_is_written_to_before_anybody_has_answered() {
    let config = LookupConfig { k: 6, alpha_min: 2, alpha_max: 2, ..LookupConfig::default() };
    for within in [0_usize, 1, 3, 4] {
        let mut lookup = started(config, Goal::Nodes, 0..30);
        lookup.radius = within.checked_sub(1).map_or(Distance::ZERO, |last| lookup.candidates()[last].distance);
        assert_eq!(write_to_all(&mut lookup).len(), within.max(2), "these, or as many as may be asked at once");
    }
}

#[test]
fn four_quick_answers_take_alpha_back_down() {
    let mut lookup = started(LookupConfig::default(), Goal::Nodes, 0..40);
    let first = ask(&mut lookup, 0);
    lookup.timed_out(100, &first);
    for _ in 0..4 {
        let id = ask(&mut lookup, 100);
        lookup.answered(150, &id, [0; 16], core::iter::empty());
    }
    assert_eq!(lookup.stats(150).alpha_end, 3);
    assert_eq!(lookup.stats(150).alpha.values(), [3, 4, 3], "and the way there is told");
}

#[test]
fn among_equally_near_peers_the_fast_one_is_asked_first() {
    let mut lookup = Lookup::new();
    let nearest = |n: u16| node(n).0.distance_to(&NodeId::from_bytes(TARGET)).leading_zeros();
    let equal: Vec<u16> = (0..400).filter(|n| nearest(*n) == 3).take(2).collect();
    let [a, b] = equal[..] else { panic!("of 400 nodes some are equally near") };
    for (slow, fast) in [(a, b), (b, a)] {
        lookup.start(0, LookupConfig::default(), TARGET, Goal::Nodes, Distance::ZERO);
        for (n, srtt) in [(slow, 202), (fast, 100)] {
            lookup.offer(node(n).0, node(n).1, Some(srtt));
        }
        assert_eq!(ask(&mut lookup, 0), node(fast).0, "less than half the round trip outweighs a little distance");
    }
}

#[test]
fn a_peer_that_may_not_be_asked_now_is_passed_over_and_asked_later() {
    let mut lookup = started(small(), Goal::Nodes, 0..4);
    let nearest = lookup.candidates()[0].id;
    let first = lookup.next(0, |candidate| candidate.id != nearest).expect("another node").id;
    assert_ne!(first, nearest);
    assert_eq!(ask(&mut lookup, 0), nearest, "it has a token again");
}

#[test]
fn who_is_to_be_asked_first_is_however_far_and_however_slow() {
    let mut lookup = started(LookupConfig::default(), Goal::Nodes, 0..40);
    let farthest = (40..400).map(node).max_by_key(|(id, _)| id.distance_to(&NodeId::from_bytes(TARGET))).unwrap();
    assert!(!lookup.meets_silence(), "nobody has been asked");
    for silent in [false, false, true] {
        let id = ask(&mut lookup, 0);
        lookup.timed_out(100, &id);
        assert_eq!(lookup.meets_silence(), silent);
    }
    lookup.offer_first(farthest.0, farthest.1);
    assert_eq!(ask(&mut lookup, 100), farthest.0);
    lookup.answered(110, &farthest.0, [0; 16], core::iter::empty());
    assert!(!lookup.meets_silence(), "a node has answered");
    assert_ne!(ask(&mut lookup, 110), farthest.0);
}

#[test]
fn no_more_providers_are_collected_than_there_is_room_for() {
    let mut lookup = started(small(), Goal::Providers { limit: 1000 }, 0..10);
    let id = ask(&mut lookup, 0);
    lookup.answered(1, &id, [0; 16], core::iter::empty());
    for n in 0..2 * PROVIDERS_FOUND_MAX as u16 {
        let provider = SignedProvider { provider: node(n).1, issued_secs: 1, ttl_secs: 1, signature: [0; 64] };
        lookup.found_provider(&id, &provider);
    }
    assert_eq!(lookup.providers().len(), PROVIDERS_FOUND_MAX);
}

#[test]
fn a_part_of_an_answer_is_used_at_once_and_a_gap_is_asked_for_again() {
    let mut lookup = started(small(), Goal::Providers { limit: 9 }, 0..1);
    let id = ask(&mut lookup, 0);
    assert!(lookup.heard(&id, [7; 16], core::iter::once(node(50))));
    assert!(lookup.candidates().iter().any(|candidate| candidate.id == node(50).0));
    assert_eq!(lookup.finished(5), None, "the rest is still waited for");
    lookup.heard_enough(6, &id, 14);
    assert_eq!(lookup.next(6, |candidate| candidate.id == id).map(|ask| ask.page), Some(14));
}

#[test]
fn a_silent_peer_holds_nobody_up_and_is_asked_once_more_only_if_something_is_missing() {
    let mut lookup = started(small(), Goal::Immutable, 0..4);
    let silent = ask(&mut lookup, 0);
    lookup.timed_out(50, &silent);
    for _ in 0..3 {
        let id = ask(&mut lookup, 60);
        lookup.answered(70, &id, [0; 16], core::iter::empty());
    }
    assert_eq!(lookup.next(80, |_| true), None, "its pause is not over");
    assert_eq!((lookup.finished(80), lookup.wake_ms()), (None, 150));
    assert_eq!(ask(&mut lookup, 150), silent);
    lookup.timed_out(250, &silent);
    assert_eq!(lookup.finished(250), Some(Finish::Exhausted));
    assert_eq!((lookup.stats(250).requests, lookup.stats(250).timeouts), (5, 2));
}

#[test]
fn the_first_valid_immutable_record_ends_the_lookup() {
    let mut lookup = started(small(), Goal::Immutable, 0..10);
    let id = ask(&mut lookup, 0);
    lookup.answered(5, &id, [0; 16], core::iter::empty());
    assert_eq!(lookup.finished(5), None);
    lookup.found_record(&id, b"record", 0);
    assert_eq!(lookup.finished(5), Some(Finish::Found));
    assert_eq!(lookup.record(), Some(&b"record"[..]));
}

#[test]
fn a_mutable_lookup_ends_early_on_a_quorum_of_the_highest_sequence_only() {
    let config = LookupConfig { sequence_quorum: 2, ..LookupConfig::default() };
    let mut lookup = started(config, Goal::Mutable { sequence_min: 0 }, 0..20);
    for (sequence, over) in [(5, false), (7, false), (5, false), (6, false), (7, true)] {
        let id = ask(&mut lookup, 0);
        lookup.answered(1, &id, [0; 16], core::iter::empty());
        lookup.found_record(&id, &[sequence as u8], sequence);
        assert_eq!(lookup.finished(1).is_some(), over, "after {sequence}");
    }
    assert_eq!(lookup.record(), Some(&[7][..]));
}

/// Whether a node lies in the innermost sixteenth of the whole space around the target.
fn is_inner((id, _): &(NodeId, Contact)) -> bool {
    id.distance_to(&ContentId::from_bytes(TARGET)).leading_zeros() >= 4
}

#[test]
fn a_quorum_ends_no_mutable_lookup_while_somebody_crowds_in() {
    // Up to twice K within the radius of K are chance; one more is a crowd, and may be the quorum.
    for (within, over) in [(8, true), (9, false)] {
        let mut lookup = Lookup::new();
        let config = LookupConfig { sequence_quorum: 2, ..small() };
        lookup.start(0, config, TARGET, Goal::Mutable { sequence_min: 0 }, Distance::MAX);
        for (id, contact) in (0..2000).map(node).filter(|seen| !is_inner(seen)).take(within) {
            lookup.offer(id, contact, None);
        }
        for _ in 0..2 {
            let id = ask(&mut lookup, 0);
            lookup.answered(1, &id, [0; 16], core::iter::empty());
            lookup.found_record(&id, &[7], 7);
        }
        assert_eq!(lookup.finished(1).is_some(), over, "{within} within the radius");
    }
}

#[test]
fn a_quorum_of_a_crowd_beside_the_target_ends_no_mutable_lookup_though_few_are_in_view() {
    // Of four within the radius a quarter of one lies in its innermost sixteenth. One there may be chance; two are a quorum.
    for (within, over) in [(1, true), (2, false)] {
        let mut lookup = Lookup::new();
        let config = LookupConfig { sequence_quorum: 2, ..small() };
        lookup.start(0, config, TARGET, Goal::Mutable { sequence_min: 0 }, Distance::MAX);
        let inner = (0..2000).map(node).filter(is_inner).take(within);
        let others = (0..2000).map(node).filter(|seen| !is_inner(seen)).take(6 - within);
        for (id, contact) in inner.chain(others) {
            lookup.offer(id, contact, None);
        }
        for _ in 0..2 {
            let id = ask(&mut lookup, 0);
            lookup.answered(1, &id, [0; 16], core::iter::empty());
            lookup.found_record(&id, &[7], 7);
        }
        assert_eq!(lookup.finished(1).is_some(), over, "{within} in the innermost part");
    }
}

#[test]
fn a_liar_is_not_believed_and_not_asked_again() {
    let mut lookup = started(small(), Goal::Nodes, 0..2);
    let liar = ask(&mut lookup, 0);
    lookup.lied(&liar);
    let honest = ask(&mut lookup, 0);
    assert!(!lookup.answered(1, &liar, [0; 16], core::iter::once(node(99))), "it is too late to be honest");
    lookup.answered(1, &honest, [0; 16], core::iter::empty());
    assert_eq!(lookup.finished(1), Some(Finish::Exhausted));
    assert!(lookup.holders().all(|candidate| candidate.id != liar));
}

#[test]
fn budgets_stop_a_lookup_that_would_go_on() {
    let mut lookup = started(small(), Goal::Nodes, 0..10);
    ask(&mut lookup, 0);
    assert_eq!(lookup.finished(1999), None);
    assert_eq!(lookup.finished(2000), Some(Finish::OutOfTime));
    let mut lookup = started(LookupConfig { requests_max: 1, ..small() }, Goal::Nodes, 0..10);
    let id = ask(&mut lookup, 0);
    assert_eq!(lookup.next(0, |_| true), None);
    lookup.answered(1, &id, [0; 16], core::iter::empty());
    assert_eq!(lookup.finished(1), Some(Finish::OutOfRequests));
    let lookup = started(small(), Goal::Nodes, 0..0);
    assert_eq!(lookup.finished(0), Some(Finish::Alone));
    let mut lookup = started(small(), Goal::Nodes, 0..10);
    lookup.cancel();
    assert_eq!(lookup.finished(0), Some(Finish::Cancelled));
}

#[test]
fn a_relay_that_wants_to_see_us_is_asked_again_once_and_then_gone_around() {
    let mut lookup = started(small(), Goal::Nodes, 0..1);
    let relay = node(9).0;
    let asked: Vec<_> = core::iter::from_fn(|| {
        let ask = lookup.next(0, |_| true)?;
        lookup.requeue_through(&ask.id, relay);
        Some((ask.first_leg, ask.relay))
    })
    .take(9)
    .collect();
    assert_eq!(asked, [(true, None), (true, Some(relay)), (false, Some(relay))]);
    assert_eq!(lookup.finished(0), Some(Finish::Exhausted));
}

/// A lookup in which two were asked, and both name a third, which is somewhere else each time.
fn named_twice(there: [Addr; 2]) -> (Lookup, NodeId) {
    let mut lookup = started(LookupConfig { k: 8, ..small() }, Goal::Nodes, 0..2);
    let (id, contact) = node(9);
    let asked = [ask(&mut lookup, 0), ask(&mut lookup, 0)];
    for (from, addr) in asked.iter().zip(there) {
        lookup.answered(0, from, [0; 16], core::iter::once((id, Contact { addr, ..contact })));
    }
    (lookup, id)
}

#[test]
fn who_is_named_where_it_is_not_is_asked_where_others_say_it_is() {
    let [nowhere, there, far] = [1, 2, 3].map(|n| Addr::v4([203, 0, n, 9], 9));
    let (mut lookup, id) = named_twice([nowhere, there]);
    let asked_at = |lookup: &mut Lookup| lookup.next(0, |_| true).map(|ask| (ask.id, ask.contact.addr));
    assert_eq!(asked_at(&mut lookup), Some((id, nowhere)));
    lookup.timed_out(0, &id);
    assert_eq!(asked_at(&mut lookup), Some((id, there)), "at once");
    lookup.timed_out(0, &id);
    assert_eq!(asked_at(&mut lookup), None);
    // A node that says so only now is believed too; but not for ever.
    for (n, addr, asked) in [(20, far, true), (21, nowhere, false)] {
        let (another, contact) = node(n);
        lookup.offer(another, contact, None);
        assert_eq!(asked_at(&mut lookup), Some((another, contact.addr)));
        let named = Contact { addr, ..node(9).1 };
        lookup.answered(0, &another, [0; 16], core::iter::once((id, named)));
        assert_eq!(asked_at(&mut lookup), asked.then_some((id, addr)));
        lookup.timed_out(0, &id);
    }
}

#[test]
fn who_was_silent_once_and_is_named_elsewhere_is_asked_there_and_then_again_where_it_was() {
    let [there, nowhere] = [1, 2].map(|n| Addr::v4([203, 0, n, 9], 9));
    let mut lookup = started(small(), Goal::Nodes, 0..1);
    let (id, contact) = node(9);
    lookup.offer(id, Contact { addr: there, ..contact }, None);
    let asked: Vec<_> = core::iter::from_fn(|| lookup.next(0, |_| true)).map(|ask| ask.id).collect();
    lookup.timed_out(0, &id);
    let other = asked.into_iter().find(|asked| *asked != id).unwrap();
    lookup.answered(0, &other, [0; 16], core::iter::once((id, Contact { addr: nowhere, ..contact })));
    for addr in [nowhere, there] {
        assert_eq!(lookup.next(0, |_| true).map(|ask| (ask.id, ask.contact.addr)), Some((id, addr)));
        lookup.timed_out(0, &id);
    }
}

#[test]
fn who_answers_is_not_asked_where_others_say_it_is() {
    let (mut lookup, id) = named_twice([1, 2].map(|n| Addr::v4([203, 0, n, 9], 9)));
    assert_eq!(ask(&mut lookup, 0), id);
    lookup.answered(0, &id, [0; 16], core::iter::empty());
    assert!(lookup.next(0, |_| true).is_none());
    assert_eq!(lookup.finished(0), Some(Finish::Exhausted));
}

#[test]
fn nobody_comes_into_a_full_prefix_by_being_silent_elsewhere_first() {
    let (mut lookup, id) = named_twice([Addr::v4([203, 0, 1, 9], 9), Addr::v4([203, 0, 2, 9], 9)]);
    for n in 30..32 {
        let (other, contact) = node(n);
        lookup.offer(other, Contact { addr: Addr::v4([203, 0, 2, n as u8], 9), ..contact }, None);
    }
    while let Some(ask) = lookup.next(0, |_| true) {
        assert_ne!(ask.contact.addr, Addr::v4([203, 0, 2, 9], 9));
        lookup.timed_out(0, &ask.id);
    }
    assert!(lookup.knows(&id));
}

#[test]
fn one_prefix_has_two_places_and_they_go_to_its_nearest() {
    let mut lookup = started(small(), Goal::Nodes, 0..0);
    let same_24 = |n: u16| {
        let (id, contact) = node(n);
        (id, Contact { addr: Addr::v4([192, 0, 2, n as u8], 1), ..contact })
    };
    let mut all: Vec<_> = (0..50).map(same_24).collect();
    for (id, contact) in &all {
        lookup.offer(*id, *contact, None);
    }
    all.sort_by_key(|(id, _)| id.distance_to(&NodeId::from_bytes(TARGET)));
    let kept: Vec<_> = lookup.candidates().iter().map(|candidate| candidate.id).collect();
    assert_eq!(kept, [all[0].0, all[1].0]);
    // Those of a private network belong to a network of their own.
    let mut lookup = started(small(), Goal::Nodes, 0..0);
    for (id, contact) in &all {
        let [_, _, _, last] = contact.addr.as_v4().unwrap();
        lookup.offer(*id, Contact { addr: Addr::v4([10, 0, 2, last], 1), ..*contact }, None);
    }
    assert_eq!(lookup.candidates().len(), all.len());
}

#[test]
fn a_crowd_near_the_target_makes_the_lookup_wider() {
    let mut lookup = Lookup::new();
    lookup.start(0, small(), TARGET, Goal::Nodes, Distance::MAX);
    for n in 0..30 {
        let (id, contact) = node(n);
        lookup.offer(id, contact, None);
    }
    let (_, asked) = run(&mut lookup, |_| Vec::new());
    assert_eq!(asked.len(), 30, "all within the radius, not only k = 4");
    assert_eq!(lookup.holders().count(), 30);
}

#[test]
fn disjoint_paths_share_no_node_and_each_gets_its_share() {
    let config = LookupConfig { paths: 2, ..LookupConfig::default() };
    let mut lookup = started(config, Goal::Nodes, 0..2);
    // Path 0 meets a ring of liars who name only each other; path 1 still reaches the honest rest.
    let liars: Vec<_> = (100..140).map(node).collect();
    let honest: Vec<_> = (200..240).map(node).collect();
    let start = lookup.candidates().iter().find(|c| c.path == 0).unwrap().id;
    let liar_ids: BTreeSet<_> = liars.iter().map(|(id, _)| *id).chain([start]).collect();
    let (_, asked) = run(&mut lookup, |id| if liar_ids.contains(id) { liars.clone() } else { honest.clone() });
    let honest_asked = honest.iter().filter(|(id, _)| asked.contains(id)).count();
    assert!(honest_asked >= 9, "path 1 asks its ten nearest whatever path 0 found: {honest_asked}");
}

#[test]
fn providers_are_merged_by_key_and_the_newest_statement_wins() {
    let mut lookup = started(small(), Goal::Providers { limit: 2 }, 0..10);
    let id = ask(&mut lookup, 0);
    let provider =
        |n, issued_secs| SignedProvider { provider: node(n).1, issued_secs, ttl_secs: 1, signature: [0; 64] };
    lookup.answered(1, &id, [0; 16], core::iter::empty());
    for (n, issued) in [(1, 5), (1, 9), (1, 7)] {
        lookup.found_provider(&id, &provider(n, issued));
    }
    assert_eq!((lookup.providers().len(), lookup.providers()[0].issued_secs), (1, 9));
    lookup.more_pages(&id, 6);
    assert_eq!(lookup.next(2, |other| other.id == id).map(|ask| ask.page), Some(6));
    lookup.found_provider(&id, &provider(2, 1));
    assert_eq!(lookup.finished(2), Some(Finish::Found));
}

proptest! {
    #[test]
    fn bounds_hold_and_it_always_ends(seeds in prop::collection::vec(0..2000_u16, 1..30), script in prop::collection::vec((0..6_u8, 0..2000_u16), 0..400), paths in 1..4_usize) {
        let config = LookupConfig { paths, per_prefix_max: 3, ..LookupConfig::default() };
        let mut lookup = started(config, Goal::Immutable, seeds.into_iter());
        let mut script = script.into_iter();
        let mut in_flight: Vec<NodeId> = Vec::new();
        let mut now = 0;
        while lookup.finished(now).is_none() {
            while let Some(ask) = lookup.next(now, |_| true) { in_flight.push(ask.id); }
            prop_assert!(in_flight.len() <= 8);
            prop_assert!(lookup.candidates().len() <= FRONTIER_MAX);
            prop_assert!(lookup.candidates().is_sorted_by(|a, b| a.distance < b.distance));
            prop_assert!(lookup.stats(now).requests <= 128);
            now += 7;
            let Some(id) = in_flight.pop() else { now = lookup.wake_ms().max(now); continue };
            match script.next() {
                Some((0, _)) => lookup.timed_out(now, &id),
                Some((1, _)) => lookup.lied(&id),
                Some((2, _)) => lookup.refused(&id, ErrorCode::Busy),
                Some((_, n)) => { lookup.answered(now, &id, [0; 16], (n..n.saturating_add(16)).map(node)); }
                None => lookup.timed_out(now, &id),
            }
        }
    }
}

/// The nearest of many nodes from `from` on, nearest first.
fn nearest(from: u16, count: usize) -> Vec<(NodeId, Contact)> {
    let mut near: Vec<_> = (from..from + 3000).map(node).collect();
    near.sort_by_key(|(id, _)| id.distance_to(&ContentId::from_bytes(TARGET)));
    near.truncate(count);
    near
}

/// A lookup that has asked the first of `seeds`; it names `named`.
fn told(config: LookupConfig, named: &[(NodeId, Contact)]) -> (Lookup, NodeId) {
    let config = LookupConfig { alpha_min: 8, per_prefix_max: usize::MAX, ..config };
    let mut lookup = started(config, Goal::Immutable, 0..3);
    let namer = ask(&mut lookup, 0);
    assert!(lookup.answered(1, &namer, [0; 16], named.iter().copied()));
    (lookup, namer)
}

#[test]
fn a_namer_brings_no_more_into_view_than_its_share() {
    let named = nearest(1000, 16);
    for per_namer_max in [3, 8] {
        let (lookup, namer) = told(LookupConfig { per_namer_max, ..small() }, &named);
        let taken = lookup.candidates().iter().filter(|candidate| candidate.via == Some(namer)).count();
        assert_eq!(taken, per_namer_max);
    }
}

#[test]
fn a_namer_with_two_more_silent_contacts_than_live_ones_is_not_believed_about_the_others() {
    let named = nearest(1000, 8);
    for doubt_namers in [true, false] {
        let (mut lookup, _) = told(LookupConfig { doubt_namers, ..small() }, &named);
        let is_named = |id: &NodeId| named.iter().any(|(named, _)| named == id);
        let silent = [(); 2].map(|()| {
            let silent = ask(&mut lookup, 2);
            assert!(is_named(&silent), "the nearest are those that were named, and one may be lost");
            lookup.timed_out(3, &silent);
            silent
        });
        let honest = ask(&mut lookup, 4);
        assert_eq!(is_named(&honest), !doubt_namers);
        if doubt_namers {
            // Another namer that is believed names one of them as well.
            let again = named.iter().find(|(id, _)| !silent.contains(id)).copied().unwrap();
            lookup.answered(5, &honest, [0; 16], [again].into_iter());
            assert_eq!(ask(&mut lookup, 6), again.0);
        }
    }
}

#[test]
fn hearsay_displaces_no_holder_that_answered_and_those_that_were_silent_make_room_first() {
    let config = LookupConfig { per_namer_max: usize::MAX, per_prefix_max: usize::MAX, k: 8, alpha_min: 8, ..small() };
    for evict_silent_first in [true, false] {
        let mut lookup = started(LookupConfig { evict_silent_first, ..config }, Goal::Nodes, 0..8);
        let asked: Vec<_> = (0..8).filter_map(|_| lookup.next(0, |_| true)).map(|ask| ask.id).collect();
        let (silent, live) = asked.split_at(2);
        silent.iter().for_each(|id| lookup.timed_out(1, id));
        let near = nearest(1000, 200);
        for id in live {
            lookup.answered(2, id, [0; 16], near.iter().copied());
        }
        let is_in_view = |id: &&NodeId| lookup.knows(id);
        assert!(lookup.candidates().len() == FRONTIER_MAX);
        let held = live.iter().filter(is_in_view).count();
        assert_eq!(
            (live.len(), held == live.len()),
            (6, evict_silent_first),
            "{held} of those that answered are in view"
        );
        assert_eq!(silent.iter().filter(is_in_view).count(), 0);
    }
}

#[test]
fn nothing_found_is_conclusive_only_if_most_of_the_expected_answered_and_no_crowd_is_in_front() {
    let config = LookupConfig { k: 4, alpha_min: 8, alpha_max: 8, ..small() };
    let conclusive = |answering: usize, expected: usize, finish: Finish| {
        let mut lookup = started(config, Goal::Immutable, 0..4);
        let asked: Vec<_> = (0..4).filter_map(|_| lookup.next(0, |_| true)).map(|ask| ask.id).collect();
        for (n, id) in asked.iter().enumerate() {
            if n < answering {
                lookup.answered(1, id, [0; 16], core::iter::empty());
            } else {
                lookup.timed_out(1, id);
            }
        }
        lookup.is_conclusive(finish, expected)
    };
    assert!(conclusive(3, 4, Finish::Exhausted));
    assert!(!conclusive(2, 4, Finish::Exhausted), "half of them are not most");
    assert!(!conclusive(4, 4, Finish::OutOfTime));
    let mut alone = started(config, Goal::Immutable, 0..0);
    assert_eq!(alone.finished(0), Some(Finish::Alone));
    assert!(alone.is_conclusive(Finish::Alone, 0), "a network of one");
    // As many as make a quorum, nearer than anybody is expected to be.
    alone.start(0, LookupConfig { k: 20, ..config }, TARGET, Goal::Immutable, Distance::MAX);
    for n in 0..20_u8 {
        let (_, contact) = node(u16::from(n));
        let mut id = TARGET;
        id[31] ^= n + 1;
        alone.offer(NodeId::from_bytes(id), Contact { addr: Addr::v4([10, n, 0, 1], 1), ..contact }, None);
    }
    while let Some(ask) = alone.next(0, |_| true) {
        alone.answered(1, &ask.id, [0; 16], core::iter::empty());
    }
    assert!(!alone.is_conclusive(Finish::Exhausted, 20));
}
