//! Splits that come together share requests, each hears what became of its own, and none is let through by the others.

use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use crate::fixtures::{self, NOW, RUN, TENANT, acquire, bounds, inputs, register};
use crate::roots;
use tessera_contracts::{OpId, ShardId, ShardKey, WorkerId};
use tessera_coordination::backend::{AsyncCoordinationBackend, CoordinationBackend, RunManagement};
use tessera_coordination::error::SplitError;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::{AcquireScratch, Lease};
use tessera_coordination_etcd::EtcdConfig;
use tessera_coordination_etcd::sim_kv::faults::{CallKind, Fault};
use tessera_coordination_etcd::sim_kv::{SimKv, block_on};
use tessera_coordination_etcd::sync::{self, SimEtcdCoordinator};

/// Children of most splits here.
const EIGHT: u16 = 8;
/// More of them than one transaction carries.
const STAGED: u16 = 150;

/// A coordinator that holds so many roots. One more was split by eight already, so that it has seen the counters.
struct World {
    kv: SimKv,
    backend: SimEtcdCoordinator,
    leases: Vec<Lease>,
}

/// A split under way, and what becomes of it.
type Split<'l> = Pin<Box<dyn Future<Output = Result<bool, SplitError>> + 'l>>;

impl World {
    fn of(roots: usize) -> Self {
        Self::with(roots, EtcdConfig::default())
    }

    fn with(roots: usize, config: EtcdConfig) -> Self {
        let kv = SimKv::new(1);
        let config = EtcdConfig { skew_tolerance: Duration::ZERO, ..config };
        let mut backend = sync::simulate(kv.clone(), config).expect("valid");
        register(&mut backend, &inputs(&bounds(roots + 1)));
        let mut leases: Vec<Lease> = (1..=roots as u64 + 1).map(|n| acquire(&mut backend, ShardId::new(n))).collect();
        let known = leases.pop().expect("one more");
        let world = Self { kv, backend, leases };
        assert_eq!(done(&run(vec![world.split(&known, EIGHT)])), [true]);
        world
    }

    /// The split of a root; tells whether it was executed by this call.
    fn split<'l>(&self, lease: &'l Lease, children: u16) -> Split<'l> {
        let mut coordinator = self.backend.backend.clone();
        let plan = roots::plan(lease.shard(), children);
        Box::pin(async move {
            let born = coordinator.split_replace(NOW, TENANT, lease, &plan, OpId::new(9)).await?;
            let executed = born.is_executed();
            assert_eq!(born.into_inner().len(), usize::from(children));
            Ok(executed)
        })
    }

    fn splits(&self, children: u16) -> Vec<Split<'_>> {
        self.leases.iter().map(|lease| self.split(lease, children)).collect()
    }

    /// Splits all roots side by side. Tells what became of each, and how many calls it took.
    fn split_all(&self, children: u16) -> (Vec<Result<bool, SplitError>>, u64) {
        let before = self.kv.calls();
        let answers = run(self.splits(children));
        (answers, self.kv.calls() - before)
    }

    fn shards(&mut self) -> u64 {
        self.backend.get_run_progress(NOW, TENANT, RUN).expect("there").counts.total().into()
    }

    /// How many shards there are once so many of the roots have been split.
    fn expected(&self, splits: usize, children: u16) -> u64 {
        self.leases.len() as u64 + 1 + u64::from(EIGHT) + splits as u64 * u64::from(children)
    }
}

/// Lets all go on in turn until each has ended.
fn run(splits: Vec<Split<'_>>) -> Vec<Result<bool, SplitError>> {
    let mut splits: Vec<_> = splits.into_iter().map(|split| (split, None)).collect();
    block_on(poll_fn(|context| {
        for (split, answer) in splits.iter_mut().filter(|(_, answer)| answer.is_none()) {
            if let Poll::Ready(ended) = split.as_mut().poll(context) {
                *answer = Some(ended);
            }
        }
        if splits.iter().all(|(_, answer)| answer.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    }));
    splits.into_iter().filter_map(|(_, answer)| answer).collect()
}

fn poll(split: &mut Split<'_>) -> Poll<Result<bool, SplitError>> {
    split.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Which of them were executed.
fn done(answers: &[Result<bool, SplitError>]) -> Vec<bool> {
    answers.iter().map(|answer| matches!(answer, Ok(true))).collect()
}

#[test]
fn eight_splits_take_one_request() {
    let mut world = World::of(8);
    let (answers, calls) = world.split_all(EIGHT);
    assert_eq!((done(&answers), calls), (vec![true; 8], 1));
    assert_eq!(world.shards(), world.expected(8, EIGHT));
}

#[test]
fn a_second_request_of_splits_goes_out_beside_the_first() {
    let world = World::of(8);
    let mut splits = world.splits(EIGHT);
    let mut first = splits.remove(0);
    // Once to let others speak, once to send.
    assert!(poll(&mut first).is_pending() && poll(&mut first).is_pending());
    let mut left = splits;
    for _ in 0..100 {
        left.retain_mut(|split| poll(split).is_pending());
    }
    assert_eq!(left.len(), 0, "they do not wait for an answer that nobody has looked at yet");
    assert_eq!(done(&run(vec![first])), [true]);
}

#[test]
fn more_splits_than_there_are_stripes_to_count_them_on_take_turns_and_lose_no_race() {
    let mut world = World::of(40);
    let (answers, calls) = world.split_all(EIGHT);
    assert_eq!(done(&answers), [true; 40]);
    assert!(calls <= 40 / 8 + 1, "{calls} calls");
    assert_eq!(world.shards(), world.expected(40, EIGHT));
}

#[test]
fn as_many_share_a_request_as_the_store_counts_operations_in_it() {
    // Two by 119 have 126 writes and two more that hold them, which is what a store takes; what both compare is not counted
    // on top.
    let (answers, calls) = World::of(8).split_all(119);
    assert_eq!((done(&answers), calls), (vec![true; 8], 4));
}

/// Near the limit each split compares what the others write, and the store compares for all before it writes for any.
#[test]
fn splits_that_share_a_request_never_pass_the_limit_together() {
    for (children, room) in [(2, 2), (3, 7), (EIGHT, 8), (EIGHT, 20), (EIGHT, 40), (STAGED, 200)] {
        let limit = World::of(8).expected(0, children) + room;
        let limits = EtcdConfig { shards_total_max: limit, shards_per_tenant_max: limit, ..EtcdConfig::default() };
        let mut world = World::with(8, limits);
        let (answers, _) = world.split_all(children);
        let won = done(&answers).into_iter().filter(|won| *won).count();
        assert!(won >= 1, "by {children}, room for {room}: {answers:?}");
        let refused = answers.iter().filter(|answer| matches!(answer, Err(SplitError::LimitExceeded(_)))).count();
        assert_eq!(won + refused, 8, "by {children}, room for {room}: {answers:?}");
        let shards = world.shards();
        assert_eq!(shards, world.expected(won, children));
        assert!(shards <= limit, "by {children}, room for {room}: {shards} of {limit}");
    }
}

#[test]
fn splits_whose_shared_answer_was_lost_are_each_known_by_their_op_id() {
    for fault in [Fault::LoseAnswer, Fault::LoseRequest] {
        let mut world = World::of(8);
        world.kv.inject(CallKind::Write, 0, fault);
        let (answers, _) = world.split_all(EIGHT);
        assert_eq!(done(&answers), [true; 8], "{fault:?}");
        assert_eq!(world.shards(), world.expected(8, EIGHT), "{fault:?}");
    }
}

#[test]
fn one_that_holds_its_shard_no_longer_is_refused_and_its_neighbours_are_not() {
    let mut world = World::of(8);
    let mut other = fixtures::coordinator(&world.kv);
    let lost = &world.leases[3];
    other.release(NOW, TENANT, lost, None, ReleaseReason::Drained, OpId::new(5)).expect("released");
    let (key, mut scratch) = (ShardKey::new(RUN, lost.shard()), AcquireScratch::new());
    other.acquire_and_restore_into(NOW, TENANT, key, WorkerId::new(2), &mut scratch).expect("free");
    let (answers, _) = world.split_all(EIGHT);
    let expected: Vec<bool> = (0..8).map(|at| at != 3).collect();
    assert_eq!(done(&answers), expected);
    assert_eq!(world.shards(), world.expected(7, EIGHT));
}

#[test]
fn one_whose_time_is_up_takes_nobody_elses() {
    let world = World::of(8);
    let mut splits = world.splits(EIGHT);
    let mut old = splits.remove(0);
    assert!(poll(&mut old).is_pending(), "it is to send, and lets others speak first");
    world.kv.advance(EtcdConfig::default().call_timeout);
    // As they are made now, their time begins now.
    splits.push(old);
    let answers = run(splits);
    let expected: Vec<bool> = (0..8).map(|at| at < 7).collect();
    assert_eq!(done(&answers), expected, "{answers:?}");
}

#[test]
fn those_that_wait_for_their_turn_end_by_their_deadline_too() {
    let world = World::of(40);
    (0..1_000).for_each(|call| world.kv.inject(CallKind::Write, call, Fault::LoseRequest));
    let begun = world.backend.backend.store_now();
    let (answers, _) = world.split_all(EIGHT);
    assert_eq!(done(&answers), [false; 40]);
    let EtcdConfig { call_timeout, attempt_timeout, .. } = EtcdConfig::default();
    let ended = world.backend.backend.store_now();
    assert!(ended <= begun.after(call_timeout + attempt_timeout), "{begun:?} to {ended:?}");
    assert!(ended >= begun.after(call_timeout / 2), "nobody answered: {begun:?} to {ended:?}");
}

/// A program may begin splits and go on with something else before it looks at them again.
#[test]
fn nobody_waits_for_ever_for_those_that_do_not_go_on() {
    for begun in [1, 8] {
        let world = World::of(begun + 1);
        let mut splits = world.splits(EIGHT);
        let mut last = splits.pop().expect("one more");
        assert!(splits.iter_mut().all(|split| poll(split).is_pending()));
        let mut waited = Duration::ZERO;
        while poll(&mut last).is_pending() {
            waited += Duration::from_millis(100);
            assert!(waited <= EtcdConfig::default().call_timeout, "{begun} are begun");
            world.kv.advance(Duration::from_millis(100));
        }
        // Those that were begun go on, and whatever they come to is an answer.
        assert_eq!(run(splits).len(), begun);
    }
}

#[test]
fn a_staged_split_that_was_given_up_and_happened_all_the_same_is_known_when_it_is_made_again() {
    let mut given_up_late = 0;
    for polls in 1..200 {
        let mut world = World::of(3);
        let mut splits = world.splits(STAGED);
        let mut ended = [false; 3];
        for at in (0..polls).map(|turn| turn % 3) {
            ended[at] = ended[at] || poll(&mut splits[at]).is_ready();
        }
        if ended[2] {
            break;
        }
        drop(splits.pop());
        let others = splits.into_iter().zip(ended).filter(|(_, ended)| !ended).map(|(split, _)| split).collect();
        assert!(run(others).iter().all(Result::is_ok), "given up after {polls}");
        // A look at the run's progress finishes what was left.
        let completed = fixtures::coordinator(&world.kv).complete_run(NOW, TENANT, RUN, OpId::new(10));
        completed.expect_err("nobody has begun");
        let again = run(vec![world.split(&world.leases[2], STAGED)]);
        assert!(again[0].is_ok(), "given up after {polls}: {again:?}");
        given_up_late += u32::from(matches!(again[0], Ok(false)));
        assert_eq!(world.shards(), world.expected(3, STAGED), "given up after {polls}");
    }
    assert!(given_up_late > 0, "none had happened all the same");
}

#[test]
fn a_staged_split_whose_parent_moved_on_meanwhile_is_decided_again() {
    let mut world = World::of(1);
    // Its marker is written, and the first of its children finds another parent.
    world.kv.inject(CallKind::Write, 1, Fault::CompareMiss);
    let (answers, _) = world.split_all(STAGED);
    assert_eq!(done(&answers), [true]);
    assert_eq!(world.shards(), world.expected(1, STAGED), "no child is missing");
}

#[test]
fn staged_splits_do_not_do_each_others_work() {
    let one = World::of(1).split_all(STAGED).1;
    let (answers, eight) = World::of(8).split_all(STAGED);
    assert_eq!(done(&answers), [true; 8]);
    assert!(eight <= 8 * one, "{eight} calls, and {one} for one");
}

#[test]
fn looking_again_at_what_was_remembered_is_no_attempt() {
    let world = World::with(1, EtcdConfig { attempts_max: 1, ..EtcdConfig::default() });
    let (answers, _) = world.split_all(STAGED);
    assert_eq!(done(&answers), [true]);
}
