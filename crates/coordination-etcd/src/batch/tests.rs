//! Batches over the simulated store, polled by hand.

use core::future::Future;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use super::*;
use crate::kv::{Compare, EtcdLeaseId, RangeRequest};
use crate::sim_kv::faults::{CallKind, Fault};
use crate::sim_kv::{SimKv, block_on};

const FAR: Moment = Moment(Duration::from_secs(1_000));

fn batcher(in_flight_max: usize) -> (SimKv, Batcher<SimKv>) {
    let kv = SimKv::new(1);
    let limits = BatchLimits { ops_max: 64, txn_ops_max: 128, bytes_max: 1_000_000, in_flight_max, company_min: 16 };
    (kv.clone(), Batcher::new(kv, limits))
}

fn put_once(key: &str) -> Txn {
    Txn {
        compares: vec![Compare::absent(key.to_owned())],
        success: vec![Op::put(key.to_owned(), "v")],
        failure: vec![Op::get(key.to_owned())],
    }
}

/// Polls all futures in turn until each has ended.
fn run_all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10_000 {
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_none()
                && let Poll::Ready(ended) = future.as_mut().poll(&mut context)
            {
                *output = Some(ended);
            }
        }
        if outputs.iter().all(Option::is_some) {
            return outputs.into_iter().flatten().collect();
        }
    }
    panic!("some operations never ended");
}

#[test]
fn the_first_to_arrive_takes_along_whoever_is_ready_too() {
    let (kv, batcher) = batcher(1);
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let calls = keys.iter().map(|key| batcher.submit(key.clone().into(), put_once(key), FAR)).collect();
    let answers = run_all(calls);
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.succeeded)));
    assert_eq!(kv.calls(), 1);
    assert_eq!(kv.inspect(|store| store.keys().count()), 40);
}

/// How many requests `late` operations take that arrive while another is under way.
fn requests_beside_one_under_way(in_flight_max: usize, late: usize) -> u64 {
    let (kv, batcher) = batcher(in_flight_max);
    let mut context = Context::from_waker(Waker::noop());
    let mut early = Box::pin(batcher.submit("early".into(), put_once("early"), FAR));
    // Once to let others speak, once to send.
    assert!(early.as_mut().poll(&mut context).is_pending() && early.as_mut().poll(&mut context).is_pending());
    let keys: Vec<String> = (0..late).map(|n| format!("k{n}")).collect();
    let mut calls: Vec<_> =
        keys.iter().map(|key| Box::pin(batcher.submit(key.clone().into(), put_once(key), FAR))).collect();
    // The store acts on the poll after the one that brings a request, and nobody polls the early one again.
    for _ in 0..4 {
        for call in &mut calls {
            let ended = call.as_mut().poll(&mut context).is_ready();
            assert!(!ended || in_flight_max > 1);
        }
    }
    kv.calls()
}

#[test]
fn another_request_goes_out_beside_one_under_way_only_in_company() {
    assert_eq!(requests_beside_one_under_way(1, 40), 0);
    assert_eq!(requests_beside_one_under_way(2, 15), 0);
    assert_eq!(requests_beside_one_under_way(2, 16), 1);
}

#[test]
fn what_all_compare_is_compared_once_and_each_still_gets_its_own_answer() {
    for run_moved in [false, true] {
        let (kv, batcher) = batcher(1);
        let run = block_on(kv.txn(Txn::of(vec![Op::put("run", "1"), Op::put("b", "x")]), FAR)).expect("written");
        if run_moved {
            block_on(kv.txn(Txn::of(vec![Op::put("run", "2")]), FAR)).expect("written");
        }
        let before = kv.calls();
        let keys = ["a", "b", "c"];
        let txn = |key: &'static str| {
            let mut txn = put_once(key);
            txn.compares.push(Compare::unchanged_since("run", run.revision));
            txn.failure.push(Op::get("run"));
            txn
        };
        let calls = keys.iter().map(|key| batcher.submit(Bytes::from_static(key.as_bytes()), txn(key), FAR));
        let answers: Vec<TxnResponse> =
            run_all(calls.collect()).into_iter().map(|answer| answer.expect("answered")).collect();
        let succeeded: Vec<bool> = answers.iter().map(|answer| answer.succeeded).collect();
        assert_eq!(succeeded, [!run_moved, false, !run_moved]);
        // One for all, one more with all compares if that fails, and one that reads for those who lost.
        assert_eq!(kv.calls() - before, if run_moved { 3 } else { 2 });
        let [OpResponse::Range(own), OpResponse::Range(run)] = &answers[1].responses[..] else {
            panic!("a member that lost hears what it needs to decide again: {:?}", answers[1])
        };
        assert_eq!((own.kvs.len(), &run.kvs[0].value[..]), (1, if run_moved { &b"2"[..] } else { b"1" }));
    }
}

#[test]
fn each_operation_gets_its_own_answer() {
    let (kv, batcher) = batcher(1);
    block_on(kv.txn(Txn::of(vec![Op::put("taken", "x")]), FAR)).expect("written");
    let keys = ["first", "a", "taken", "b"];
    let calls = keys.iter().map(|key| batcher.submit(Bytes::from_static(key.as_bytes()), put_once(key), FAR)).collect();
    let succeeded: Vec<bool> = run_all(calls).into_iter().map(|answer| answer.expect("answered").succeeded).collect();
    assert_eq!(succeeded, [true, true, false, true]);
}

#[test]
fn a_subject_is_in_a_batch_once_and_in_order() {
    let (kv, batcher) = batcher(1);
    let put = |value: &'static str| Txn::of(vec![Op::put("same", value)]);
    let calls = ["1", "2", "3"].map(|value| batcher.submit("same".into(), put(value), FAR));
    assert!(run_all(calls.into()).iter().all(Result::is_ok));
    let stored = kv.inspect(|store| store.range(&RangeRequest::one("same")).expect("read").into_one());
    let stored = stored.expect("written");
    assert_eq!((&stored.value[..], stored.version), (&b"3"[..], 3));
}

#[test]
fn one_impossible_operation_does_not_fail_its_neighbours() {
    let (_, batcher) = batcher(1);
    let lost = Txn::of(vec![Op::put_attached("own", "w", EtcdLeaseId(404))]);
    let calls = vec![
        batcher.submit("first".into(), put_once("first"), FAR),
        batcher.submit("own".into(), lost, FAR),
        batcher.submit("good".into(), put_once("good"), FAR),
    ];
    let answers = run_all(calls);
    assert!(answers[0].is_ok() && answers[2].is_ok());
    assert_eq!(answers[1].as_ref().expect_err("no such lease").kind, KvErrorKind::LeaseNotFound);
}

#[test]
fn a_lost_answer_is_ambiguous_to_every_author_in_the_batch() {
    let (kv, batcher) = batcher(1);
    kv.inject(CallKind::Write, 0, Fault::LoseAnswer);
    let keys = ["a", "b", "c"];
    let calls = keys.iter().map(|key| batcher.submit(Bytes::from_static(key.as_bytes()), put_once(key), FAR)).collect();
    let answers = run_all(calls);
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(|e| e.fate == Fate::Ambiguous)));
}

#[test]
fn authors_that_go_away_at_any_point_leave_nobody_hanging() {
    // Every pattern of three callers of which some are dropped after some number of polls.
    for pattern in 0..4u32.pow(3) {
        let (_, batcher) = batcher(1);
        let mut context = Context::from_waker(Waker::noop());
        let keys: Vec<String> = (0..6).map(|n| format!("k{n}")).collect();
        let mut calls: Vec<_> =
            keys.iter().map(|key| Some(Box::pin(batcher.submit(key.clone().into(), put_once(key), FAR)))).collect();
        for polls in 0..3 {
            for (index, call) in calls.iter_mut().enumerate() {
                if index < 3 && pattern / 4u32.pow(index as u32) % 4 == polls {
                    *call = None;
                }
                let ended = call.as_mut().is_some_and(|call| call.as_mut().poll(&mut context).is_ready());
                if ended {
                    *call = None;
                }
            }
        }
        let survivors: Vec<_> = calls.into_iter().flatten().collect();
        let answers = run_all(survivors);
        for answer in answers {
            assert!(answer.is_ok() || answer.is_err_and(|error| error.fate == Fate::Ambiguous), "pattern {pattern}");
        }
        let queue = batcher.lock();
        assert!(queue.waiting.is_empty() && queue.in_flight == 0 && queue.heir.is_none(), "pattern {pattern}");
    }
}

#[test]
fn a_batch_stays_within_the_servers_limits() {
    let (kv, batcher) = batcher(1);
    // A hundred reads each: a nested transaction of that width leaves room for 28 in the outer one.
    let wide = |key: &str| {
        let mut txn = put_once(key);
        txn.failure = vec![Op::get("x"); 100];
        txn
    };
    let keys: Vec<String> = (0..100).map(|n| format!("k{n}")).collect();
    let calls = keys.iter().map(|key| batcher.submit(key.clone().into(), wide(key), FAR)).collect();
    assert!(run_all(calls).iter().all(Result::is_ok));
    assert!(kv.calls() > 99 / 28, "{} requests", kv.calls());
}

#[test]
fn operations_that_share_no_request_wait_for_room_only_and_one_given_up_makes_room() {
    let (kv, mut batcher) = batcher(2);
    batcher.limits.ops_max = 1;
    batcher.limits.company_min = 1;
    kv.inject(CallKind::Write, 0, Fault::Delay(Duration::from_secs(1)));
    let mut given_up = Box::pin(batcher.submit("gone".into(), put_once("gone"), FAR));
    let mut context = Context::from_waker(Waker::noop());
    assert!(given_up.as_mut().poll(&mut context).is_pending());
    assert_eq!(batcher.lock().in_flight, 1);
    drop(given_up);
    assert_eq!(batcher.lock().in_flight, 0);
    let before = kv.calls();
    let keys: Vec<String> = (0..10).map(|n| format!("k{n}")).collect();
    let calls = keys.iter().map(|key| batcher.submit(key.clone().into(), put_once(key), FAR)).collect();
    assert!(run_all(calls).iter().all(|answer| answer.as_ref().is_ok_and(|answer| answer.succeeded)));
    assert_eq!(kv.calls() - before, 10);
    assert_eq!(batcher.lock().in_flight, 0);
}

/// Adds to a counter that many share, and writes a key of its own.
fn counted(key: &str, stripe: &str) -> Txn {
    Txn {
        compares: vec![Compare::absent(key.to_owned()), Compare::absent(stripe.to_owned()), Compare::absent("guard")],
        success: vec![Op::put(key.to_owned(), "v"), Op::put(stripe.to_owned(), "1")],
        failure: vec![],
    }
}

#[test]
fn large_operations_share_requests_and_those_that_would_meet_on_a_key_do_not() {
    let kv = SimKv::new(1);
    let batcher = Batcher::new(kv.clone(), BatchLimits::of_large(&EtcdConfig::default()));
    let shared = |stripes: [&'static str; 4]| {
        let before = kv.calls();
        let keys =
            stripes.iter().enumerate().map(|(at, stripe)| (format!("{before}/{at}"), format!("{before}/{stripe}")));
        let calls = keys.map(|(key, stripe)| batcher.submit(key.clone().into(), counted(&key, &stripe), FAR));
        let won = run_all(calls.collect()).into_iter().map(|answer| answer.expect("answered").succeeded).collect();
        (won, kv.calls() - before)
    };
    let all: (Vec<bool>, u64) = (vec![true; 4], 1);
    assert_eq!(shared(["s0", "s1", "s2", "s3"]), all);
    // The second finds what the first has written, as it would if each were alone.
    assert_eq!(shared(["s0", "s0", "s1", "s2"]), (vec![true, false, true, true], 2));
}

#[test]
fn two_requests_of_large_operations_are_under_way_and_the_next_takes_all_who_wait() {
    let kv = SimKv::new(1);
    let batcher = Batcher::new(kv.clone(), BatchLimits::of_large(&EtcdConfig::default()));
    let mut context = Context::from_waker(Waker::noop());
    let keys: Vec<String> = (0..6).map(|n| format!("k{n}")).collect();
    let mut calls: Vec<_> =
        keys.iter().map(|key| Box::pin(batcher.submit(key.clone().into(), put_once(key), FAR))).collect();
    let mut under_way = Vec::new();
    for call in &mut calls {
        // Once to let others speak, once to send.
        assert!(call.as_mut().poll(&mut context).is_pending() && call.as_mut().poll(&mut context).is_pending());
        let queue = batcher.lock();
        under_way.push((queue.in_flight, queue.waiting.len()));
    }
    assert_eq!(under_way, [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)]);
    let answers = run_all(calls);
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(kv.calls(), 3);
}

#[test]
fn where_nothing_is_to_be_shared_large_operations_share_nothing_either() {
    let config = EtcdConfig { batch_ops_max: 1, batches_in_flight_max: 7, ..EtcdConfig::default() };
    let limits = BatchLimits::of_large(&config);
    assert_eq!((limits.ops_max, limits.in_flight_max, limits.company_min), (1, 7, 1));
}

#[test]
fn few_large_operations_share_a_request_and_no_more_requests_are_under_way_than_are_allowed() {
    let kv = SimKv::new(1);
    let batcher = Batcher::new(kv.clone(), BatchLimits::of_large(&EtcdConfig::default()));
    let keys: Vec<String> = (0..20).map(|n| format!("k{n}")).collect();
    run_all(keys.iter().map(|key| batcher.submit(key.clone().into(), put_once(key), FAR)).collect());
    assert_eq!(kv.calls(), 3, "eight, eight and four");
    let modest = EtcdConfig { batches_in_flight_max: 1, batch_ops_max: 3, ..EtcdConfig::default() };
    let limits = BatchLimits::of_large(&modest);
    assert_eq!((limits.ops_max, limits.in_flight_max), (3, 1));
}

#[test]
fn a_request_has_no_more_bytes_than_it_may() {
    let kv = SimKv::new(1);
    let limits = BatchLimits { bytes_max: 1_000, ..BatchLimits::of_large(&EtcdConfig::default()) };
    let batcher = Batcher::new(kv.clone(), limits);
    let keys: Vec<String> = (0..4).map(|n| format!("k{n}")).collect();
    let large = |key: &String| Txn::of(vec![Op::put(key.clone(), vec![7; 400])]);
    run_all(keys.iter().map(|key| batcher.submit(key.clone().into(), large(key), FAR)).collect());
    assert_eq!(kv.calls(), 2, "two fit");
}

#[test]
fn a_request_has_the_time_of_whoever_has_least_and_the_others_are_sent_again() {
    let (kv, batcher) = batcher(1);
    let soon = Moment(Duration::from_secs(1));
    kv.advance(Duration::from_secs(1));
    let calls = vec![
        batcher.submit("late".into(), put_once("late"), soon),
        batcher.submit("early".into(), put_once("early"), FAR),
        batcher.submit("late too".into(), put_once("late too"), soon),
    ];
    let answers = run_all(calls);
    let ended: Vec<_> =
        answers.iter().map(|answer| answer.as_ref().map_err(|error| (error.fate, error.kind))).collect();
    assert!(matches!(
        ended[..],
        [
            Err((Fate::Unsent, KvErrorKind::Deadline)),
            Ok(TxnResponse { succeeded: true, .. }),
            Err((Fate::Unsent, KvErrorKind::Deadline))
        ]
    ));
    assert_eq!(kv.inspect(|store| store.keys().count()), 1);
}

#[test]
fn who_waits_behind_one_that_does_not_go_on_ends_in_time_and_knows_whether_it_was_sent() {
    let (kv, batcher) = batcher(1);
    let mut context = Context::from_waker(Waker::noop());
    let soon = Moment(Duration::from_secs(1));
    let mut sender = Box::pin(batcher.submit("a".into(), put_once("a"), FAR));
    assert!(sender.as_mut().poll(&mut context).is_pending(), "lets others speak");
    let mut taken = Box::pin(batcher.submit("b".into(), put_once("b"), soon));
    assert!(taken.as_mut().poll(&mut context).is_pending());
    assert!(sender.as_mut().poll(&mut context).is_pending(), "sends both");
    let mut waits = Box::pin(batcher.submit("c".into(), put_once("c"), soon));
    assert!(waits.as_mut().poll(&mut context).is_pending());
    kv.advance(Duration::from_secs(1));
    let fate = |poll: Poll<Result<TxnResponse, KvError>>| match poll {
        Poll::Ready(Err(error)) => error.fate,
        other => panic!("{other:?}"),
    };
    assert_eq!(fate(taken.as_mut().poll(&mut context)), Fate::Ambiguous);
    assert_eq!(fate(waits.as_mut().poll(&mut context)), Fate::Unsent);
    drop((taken, waits));
    assert_eq!(run_all(vec![sender]).len(), 1);
    let queue = batcher.lock();
    assert_eq!((queue.in_flight, queue.waiting.len(), queue.heir), (0, 0, None));
}

#[test]
fn a_store_that_refuses_is_not_asked_again_for_each_who_shared_the_request() {
    for fault in [Fault::Refuse, Fault::Unreachable] {
        let (kv, batcher) = batcher(1);
        (0..10).for_each(|call| kv.inject(CallKind::Write, call, fault));
        let keys: Vec<String> = (0..4).map(|n| format!("k{n}")).collect();
        let deadlines = (1..).map(|secs| Moment(Duration::from_secs(secs)));
        let calls = keys.iter().zip(deadlines).map(|(key, by)| batcher.submit(key.clone().into(), put_once(key), by));
        assert!(run_all(calls.collect()).iter().all(Result::is_err), "{fault:?}");
        assert_eq!(kv.calls(), 1, "{fault:?}");
    }
}
