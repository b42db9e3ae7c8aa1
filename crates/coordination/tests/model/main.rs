//! Random sequences of operations on the in-memory coordinator and on a naive model of the specification: every answer,
//! every record and every hint must agree after every step.

mod naive;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{
    CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, ShardSpec,
    TenantId, WorkerId,
};
use tessera_coordination::error::{AcquireError, CoordError, OperationError};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::snapshot::CapacityHint;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, IdempotentOutcome, InMemoryCoordinator, Lease, RunManagement, ShardClaiming,
};

const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);

fn epoch(fence: u64) -> ShardEpoch {
    ShardEpoch::new(INCARNATION, FenceEpoch::new(fence))
}

/// The op id of the registration; the model's own ids are below.
const REGISTRATION: u64 = 1000;

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Acquire {
        worker: u64,
        shard: usize,
    },
    Claim {
        worker: u64,
    },
    Renew {
        lease: usize,
    },
    Checkpoint {
        lease: usize,
        key: Option<u8>,
        token: bool,
        op: u64,
    },
    Complete {
        lease: usize,
        key: Option<u8>,
        op: u64,
    },
    Park {
        lease: usize,
        reason: u8,
        op: u64,
    },
    Release {
        lease: usize,
        key: Option<u8>,
        op: u64,
    },
    SplitReplace {
        lease: usize,
        at: u8,
        stale: bool,
        op: u64,
    },
    SplitResidual {
        lease: usize,
        at: u8,
        stale: bool,
        op: u64,
    },
    Unpark {
        shard: usize,
        behind: u64,
        op: u64,
    },
    Yield {
        shard: usize,
        behind: u64,
    },
    Settle {
        how: u8,
        op: u64,
    },
    /// An earlier step arrives once more, with the lease and plan it had then: a retry, or a duplicate from the network.
    Again {
        back: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    // Few ids and few leases, so that retries, conflicts and zombies are common.
    let lease = || 0..6_usize;
    let shard = || 0..8_usize;
    let worker = || 1..4_u64;
    let op = || 1..40_u64;
    let key = || b'a'..=b'n';
    prop_oneof![
        4 => (1..15_u64).prop_map(Step::Wait),
        6 => (worker(), shard()).prop_map(|(worker, shard)| Step::Acquire { worker, shard }),
        6 => worker().prop_map(|worker| Step::Claim { worker }),
        4 => lease().prop_map(|lease| Step::Renew { lease }),
        12 => (lease(), prop::option::weighted(0.9, key()), any::<bool>(), op())
            .prop_map(|(lease, key, token, op)| Step::Checkpoint { lease, key, token, op }),
        3 => (lease(), prop::option::weighted(0.7, key()), op())
            .prop_map(|(lease, key, op)| Step::Complete { lease, key, op }),
        2 => (lease(), 0..3_u8, op()).prop_map(|(lease, reason, op)| Step::Park { lease, reason, op }),
        3 => (lease(), prop::option::of(key()), op()).prop_map(|(lease, key, op)| Step::Release { lease, key, op }),
        3 => (lease(), key(), prop::bool::weighted(0.2), op())
            .prop_map(|(lease, at, stale, op)| Step::SplitReplace { lease, at, stale, op }),
        5 => (lease(), key(), prop::bool::weighted(0.2), op())
            .prop_map(|(lease, at, stale, op)| Step::SplitResidual { lease, at, stale, op }),
        3 => (shard(), 0..3_u64, op()).prop_map(|(shard, behind, op)| Step::Unpark { shard, behind, op }),
        2 => (shard(), 0..2_u64).prop_map(|(shard, behind)| Step::Yield { shard, behind }),
        6 => (0..30_usize).prop_map(|back| Step::Again { back }),
        1 => (0..12_u8, op()).prop_map(|(how, op)| Step::Settle { how, op }),
    ]
}

/// The name of the reason for a refusal, as the model gives it.
fn reason(error: &(impl OperationError + 'static)) -> String {
    let text = match error.refusal() {
        Some(refusal) => format!("{:?}", CoordError::from(refusal)),
        None => format!("{error:?}"),
    };
    text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
}

fn outcome<T>(answer: &IdempotentOutcome<T>) -> &'static str {
    match answer {
        IdempotentOutcome::Executed(_) => "executed",
        IdempotentOutcome::Replayed(_) => "replayed",
        IdempotentOutcome::Superseded(_) => "superseded",
    }
}

fn told<T, E: OperationError + 'static>(answer: &Result<IdempotentOutcome<T>, E>) -> Result<&'static str, String> {
    answer.as_ref().map(outcome).map_err(reason)
}

#[derive(Clone, Debug)]
struct Taken {
    step: Step,
    lease: Option<(Lease, naive::Lease)>,
    cut: Option<(u8, u8, u8)>,
}

struct Pair {
    real: InMemoryCoordinator,
    model: naive::World,
    tenant: TenantId,
    now: u64,
    scratch: AcquireScratch,
    /// Leases handed out, old ones included.
    leases: Vec<(Lease, naive::Lease)>,
    /// Shards in the order they came to be.
    names: Vec<u64>,
    /// What each split answered first, to compare with its replays.
    splits: Vec<(u64, u64, Vec<u64>)>,
    /// Every step with the lease and the cut it was taken with.
    past: Vec<Taken>,
    /// The lease and cut of the step that is taken now, if it is an earlier one.
    again: Option<Taken>,
    /// Every answer met, by operation.
    met: BTreeSet<String>,
}

impl Pair {
    fn new() -> Self {
        let tenant = TenantId::from_name("acme");
        let mut real = InMemoryCoordinator::default();
        let shards =
            [InitialShardInput::new(ShardId::new(1), b"b", b"g"), InitialShardInput::new(ShardId::new(2), b"g", b"m")];
        let config =
            RunConfig { lease_duration: Some(naive::LEASE), max_shard_retries: naive::RETRIES, ..RunConfig::default() };
        real.create_run_with_shards(
            LogicalTime::new(1),
            tenant,
            RUN,
            INCARNATION,
            config,
            &shards,
            OpId::new(REGISTRATION),
        )
        .expect("the manifest is valid");
        Self {
            real,
            model: naive::World::new(&[(1, b'b', b'g'), (2, b'g', b'm')]),
            tenant,
            now: 1,
            scratch: AcquireScratch::new(),
            leases: Vec::new(),
            names: vec![1, 2],
            splits: Vec::new(),
            past: Vec::new(),
            again: None,
            met: BTreeSet::new(),
        }
    }

    fn at(&self) -> LogicalTime {
        LogicalTime::new(self.now)
    }

    /// Counts back from the newest, so that zombies are met too.
    fn lease(&mut self, index: usize) -> Option<(Lease, naive::Lease)> {
        let newest = || Some(self.leases[self.leases.len().checked_sub(index + 1)?]);
        let lease = self.again.as_ref().map_or_else(newest, |taken| taken.lease);
        self.past.last_mut()?.lease = lease;
        lease
    }

    fn shard(&self, index: usize) -> u64 {
        self.names[index % self.names.len()]
    }

    /// Compares the two answers and remembers that this one was met.
    fn agree(&mut self, operation: &str, real: Result<&'static str, String>, model: naive::Answer) {
        assert_eq!(real, model.map_err(String::from), "{operation}");
        self.met.insert(format!("{operation}: {}", model.unwrap_or_else(|reason| reason)));
    }

    fn check_hint(&self, hint: CapacityHint) {
        assert_eq!(hint.available_count as usize, self.model.available(self.now));
        assert_eq!(hint.earliest_deadline.map(LogicalTime::get), self.model.soonest_deadline(self.now));
    }

    fn take(&mut self, step: &Step) {
        if let Step::Again { back } = *step {
            let Some(index) = self.past.len().checked_sub(back + 1) else { return };
            let taken = self.past[index].clone();
            let step = taken.step.clone();
            self.again = Some(taken);
            self.take_now(&step);
            self.again = None;
        } else {
            self.take_now(step);
        }
    }

    fn take_now(&mut self, step: &Step) {
        self.past.push(Taken { step: step.clone(), lease: None, cut: None });
        let (now, tenant) = (self.at(), self.tenant);
        match *step {
            Step::Again { .. } => unreachable!("resolved above"),
            Step::Wait(time) => self.now += time,
            Step::Acquire { worker, shard } => {
                let id = self.shard(shard);
                let key = ShardKey::new(RUN, ShardId::new(id));
                let worker_id = WorkerId::new(worker);
                let real = self.real.acquire_and_restore_into(now, tenant, key, worker_id, &mut self.scratch);
                let real = real.map(|acquired| (acquired.lease, acquired.capacity));
                let model = self.model.acquire(worker, id, self.now);
                self.granted(real, model);
            }
            Step::Claim { worker } => self.claim(worker),
            Step::Renew { lease } => {
                let Some((real, model)) = self.lease(lease) else { return };
                let answer = self.real.renew(now, tenant, &real);
                let expected = self.model.renew(model, self.now);
                if let Ok(renewed) = &answer {
                    self.check_hint(renewed.capacity);
                }
                let answer = answer.map_err(|error| reason(&error)).map(|renewed| match renewed.orders {
                    orders if orders.cancelled.is_some() => "cancelled",
                    orders if orders.standing.yield_requested => "please yield",
                    _ => "renewed",
                });
                self.agree("renew", answer, expected);
            }
            Step::Checkpoint { lease, key, token, op } => {
                let Some((real, model)) = self.lease(lease) else { return };
                let key = key.as_ref().map(std::slice::from_ref);
                let token = key.filter(|_| token);
                let cursor = CursorUpdate::new(key, token).expect("short keys are valid");
                let answer = self.real.checkpoint(now, tenant, &real, cursor, OpId::new(op));
                let expected = (key.map(|key| key[0]), token.map(|token| token[0]));
                let expected = self.model.checkpoint(model, expected, op, self.now);
                self.agree("checkpoint", told(&answer), expected);
            }
            Step::Complete { lease, key, op } => {
                let Some((real, model)) = self.lease(lease) else { return };
                let slice = key.as_ref().map(std::slice::from_ref);
                let cursor = CursorUpdate::new(slice, None).expect("short keys are valid");
                let answer = self.real.complete(now, tenant, &real, cursor, OpId::new(op));
                let expected = self.model.complete(model, (key, None), op, self.now);
                self.agree("complete", told(&answer), expected);
            }
            Step::Park { lease, reason, op } => {
                let Some((real, model)) = self.lease(lease) else { return };
                let why = Park::because(ParkReason::ALL[usize::from(reason)]);
                let answer = self.real.park_shard(now, tenant, &real, why, OpId::new(op));
                let expected = self.model.park(model, reason, op, self.now);
                self.agree("park", told(&answer), expected);
            }
            Step::Release { lease, key, op } => {
                let Some((real, model)) = self.lease(lease) else { return };
                let cursor =
                    key.as_ref().map(|key| CursorUpdate::at_key(std::slice::from_ref(key)).expect("a valid key"));
                let answer = self.real.release(now, tenant, &real, cursor, ReleaseReason::Released, OpId::new(op));
                let expected = self.model.release(model, key, op, self.now);
                self.agree("release", told(&answer), expected);
            }
            Step::SplitReplace { lease, at, stale, op } => {
                let Some((real, model)) = self.lease(lease) else { return };
                let Some((start, at, end)) = self.cut(model.shard, at, stale) else { return };
                let children = [(start, at), (at, end)];
                let plan = SplitReplacePlan::new(children.iter().map(|&(start, end)| spec(start, end)).collect());
                let plan = plan.expect("two children are a plan");
                let answer = self.real.split_replace(now, tenant, &real, &plan, OpId::new(op));
                let named = answer.as_ref().map(|answer| answer.get().iter().map(|id| id.get()).collect());
                let named: Vec<u64> = named.unwrap_or_default();
                let expected = self.model.split_replace(model, &children, op, self.now, &named);
                self.agree("split_replace", told(&answer), expected);
                self.named(model.shard, op, named, expected == Ok("executed"));
            }
            Step::SplitResidual { lease, at, stale, op } => {
                let Some((real, model)) = self.lease(lease) else { return };
                let Some((start, at, end)) = self.cut(model.shard, at, stale) else { return };
                let plan = SplitResidualPlan::new(spec(start, at), spec(at, end));
                let answer = self.real.split_residual(now, tenant, &real, &plan, OpId::new(op));
                let named: Vec<u64> = answer.as_ref().map(|answer| answer.get().get()).into_iter().collect();
                let expected = self.model.split_residual(model, (start, at, end), op, self.now, &named);
                self.agree("split_residual", told(&answer), expected);
                self.named(model.shard, op, named, expected == Ok("executed"));
            }
            Step::Unpark { shard, behind, op } => {
                let id = self.shard(shard);
                let fence = self.model.shards[&id].fence.saturating_sub(behind);
                let key = ShardKey::new(RUN, ShardId::new(id));
                let answer = self.real.unpark_shard(now, tenant, key, epoch(fence), OpId::new(op));
                if let Ok(answer) = &answer {
                    assert_eq!(answer.get().get(), fence + 1);
                }
                let expected = self.model.unpark(id, fence, op);
                self.agree("unpark", told(&answer), expected);
            }
            Step::Yield { shard, behind } => {
                let id = self.shard(shard);
                let fence = self.model.shards[&id].fence.saturating_sub(behind);
                let key = ShardKey::new(RUN, ShardId::new(id));
                let answer = self.real.request_yield(now, tenant, key, epoch(fence));
                let expected = self.model.request_yield(id, fence, self.now);
                let answer = answer.map(|()| "executed").map_err(|error| reason(&error));
                self.agree("yield", answer, expected);
            }
            Step::Settle { how, op } => {
                let op_id = OpId::new(op);
                let (answer, to) = match how {
                    0 => (self.real.cancel_run(now, tenant, RUN, op_id), "cancelled"),
                    1 => (self.real.fail_run(now, tenant, RUN, op_id), "failed"),
                    _ => (self.real.complete_run(now, tenant, RUN, op_id), "done"),
                };
                let answer = answer
                    .as_ref()
                    .map(outcome)
                    .map_err(|error| format!("{error:?}").split(['(', ' ']).next().unwrap_or_default().to_owned());
                let expected = self.model.settle(to, op);
                self.agree("settle", answer, expected);
            }
        }
    }

    /// Which shard is claimed is the coordinator's choice; that it could be claimed is not. Shards that used up their
    /// retries are parked on the way.
    fn claim(&mut self, worker: u64) {
        let (now, tenant) = (self.at(), self.tenant);
        let answer = self.real.claim_next_available(now, tenant, RUN, WorkerId::new(worker), &mut self.scratch);
        let answer = answer.map(|claimed| (claimed.lease, claimed.capacity));
        for id in self.names.clone() {
            let record = self.real.get_shard(tenant, ShardKey::new(RUN, ShardId::new(id))).expect("it exists");
            let parked = record.state.head.park.is_some() && self.model.shards[&id].status == "active";
            if parked {
                assert_eq!(self.model.acquire(worker, id, self.now).err(), Some("RetriesExhausted"));
            }
        }
        match answer {
            Ok((lease, capacity)) => {
                let model = self.model.acquire(worker, lease.shard().get(), self.now);
                self.granted(Ok((lease, capacity)), model);
            }
            Err(_) => assert_eq!(self.model.available(self.now), 0),
        }
    }

    fn granted(
        &mut self,
        real: Result<(Lease, CapacityHint), AcquireError>,
        model: Result<naive::Lease, &'static str>,
    ) {
        match (real, model) {
            (Ok((real, capacity)), Ok(model)) => {
                assert_eq!((real.fence().get(), real.shard().get()), (model.fence, model.shard));
                assert_eq!(real.deadline().get(), self.now + naive::LEASE);
                let snapshot = self.scratch.snapshot().expect("a granted shard was copied");
                let shard = &self.model.shards[&model.shard];
                assert_eq!(snapshot.cursor.last_key(), shard.last_key.as_ref().map(std::slice::from_ref));
                assert_eq!((snapshot.spec.start(), snapshot.spec.end()), (&[shard.start][..], &[shard.end][..]));
                self.check_hint(capacity);
                self.leases.push((real, model));
            }
            (real, model) => {
                let real = real.map(|_| "granted").map_err(|error| reason(&error));
                self.agree("acquire", real, model.map(|_| "granted"));
            }
        }
    }

    /// A plan for the shard as it is, or for the range it once had; `None` if the cut does not lie inside.
    fn cut(&mut self, shard: u64, at: u8, stale: bool) -> Option<(u8, u8, u8)> {
        let shard = &self.model.shards[&shard];
        let (start, end) = if stale { (b'b', b'g') } else { (shard.start, shard.end) };
        let now = (start < at && at < end).then_some((start, at, end));
        let cut = self.again.as_ref().map_or(now, |taken| taken.cut);
        self.past.last_mut()?.cut = cut;
        cut
    }

    fn named(&mut self, parent: u64, op: u64, names: Vec<u64>, executed: bool) {
        if executed {
            assert!(names.iter().all(|name| ShardId::new(*name).is_derived() && !self.names.contains(name)));
            self.names.extend(&names);
            self.splits.push((parent, op, names));
        } else if !names.is_empty() {
            let first = self.splits.iter().find(|(of, by, _)| (*of, *by) == (parent, op));
            assert_eq!(first.map(|(.., first)| first), Some(&names), "a replay answers what the first call answered");
        }
    }

    fn check_state(&mut self) {
        let tenant = self.tenant;
        for (id, expected) in &self.model.shards {
            let record = self.real.get_shard(tenant, ShardKey::new(RUN, ShardId::new(*id))).expect("it exists");
            record.check_invariants().expect("no invariant is violated");
            let head = record.state.head;
            assert_eq!(head.status.as_str(), expected.status, "status of {id}");
            assert_eq!(head.fence.get(), expected.fence, "fence of {id}");
            let holder = head.lease.map(|holder| (holder.owner.get(), holder.deadline.get()));
            assert_eq!(holder, expected.holder, "holder of {id}");
            assert_eq!(head.stalled_acquisitions, expected.fruitless, "fruitless acquisitions of {id}");
            assert_eq!(record.cursor.last_key(), expected.last_key.as_ref().map(std::slice::from_ref));
            assert_eq!(record.cursor.token(), expected.token.as_ref().map(std::slice::from_ref));
            assert_eq!((record.spec.start(), record.spec.end()), (&[expected.start][..], &[expected.end][..]));
            let children: Vec<u64> = record.spawned.iter().map(|child| child.id.get()).collect();
            assert_eq!(children, expected.children.iter().map(|child| child.0).collect::<Vec<_>>());
            let log: Vec<u64> = record.state.op_log.iter().map(|entry| entry.op_id.get()).collect();
            assert_eq!(log, expected.log.iter().map(|entry| entry.0).collect::<Vec<_>>());
        }
        let (now, mut listed) = (self.at(), Vec::new());
        let filter = ShardFilter::available();
        self.real
            .list_shards_into(now, tenant, RUN, &filter, ShardPage::first(1000), &mut listed)
            .expect("the run exists");
        let listed: Vec<u64> = listed.iter().map(|summary| summary.shard.get()).collect();
        let open = self.model.run == "active";
        let claimable = self.model.shards.keys().filter(|id| open && self.model.claimable(**id, self.now));
        assert_eq!(listed, claimable.copied().collect::<Vec<_>>());
        let progress = self.real.get_run_progress(now, tenant, RUN).expect("the run exists");
        let count = |status| self.model.shards.values().filter(|shard| shard.status == status).count() as u32;
        let counts = progress.counts;
        assert_eq!(
            (counts.active, counts.done, counts.split, counts.parked),
            (count("active"), count("done"), count("split"), count("parked"))
        );
        let open = self.model.shards.values().filter(|shard| shard.status == "active");
        let least = open.filter_map(|shard| shard.last_key).min();
        assert_eq!(progress.watermark.expose(), least.as_ref().map(std::slice::from_ref));
    }
}

fn spec(start: u8, end: u8) -> ShardSpec {
    ShardSpec::new(&[start], &[end], b"").expect("the cut lies inside")
}

/// A test that never meets an answer says nothing about it. So: over a few hundred sequences, every answer is met.
#[test]
fn the_sequences_meet_every_answer() {
    let mut runner = TestRunner::deterministic();
    let sequences = prop::collection::vec(step(), 160);
    let mut met = BTreeSet::new();
    for _ in 0..300 {
        let steps = sequences.new_tree(&mut runner).expect("a sequence can be made").current();
        let mut pair = Pair::new();
        steps.iter().for_each(|step| pair.take(step));
        met.append(&mut pair.met);
    }
    let leased = ["executed", "replayed", "OpIdConflict", "RunNotActive", "ShardTerminal", "StaleFence"];
    let lapsed = ["LeaseExpired", "OwnerDivergence"];
    let cursor = ["CursorRegression", "CursorOutOfBounds"];
    let expected = [
        ("acquire", &["AlreadyLeased", "RetriesExhausted", "RunNotActive", "ShardTerminal"][..]),
        ("renew", &["renewed", "please yield", "cancelled", "ShardTerminal", "StaleFence"]),
        ("renew", &lapsed),
        ("checkpoint", &leased),
        ("checkpoint", &lapsed),
        ("checkpoint", &cursor),
        ("checkpoint", &["CheckpointMissingKey"]),
        ("complete", &leased),
        ("complete", &lapsed),
        ("complete", &cursor),
        ("park", &leased),
        ("park", &["superseded"]),
        ("release", &leased),
        ("release", &cursor),
        ("split_replace", &leased),
        ("split_replace", &["SplitInvalid"]),
        ("split_residual", &leased),
        ("split_residual", &["SplitInvalid"]),
        ("unpark", &["executed", "replayed", "OpIdConflict", "RunNotActive", "NotParked", "FenceMoved"]),
        ("yield", &["executed", "RunNotActive", "ShardTerminal", "StaleFence", "NotLeased"]),
        ("settle", &["executed", "replayed", "OpIdConflict", "Illegal", "ShardsOpen"]),
    ];
    for (operation, answers) in expected {
        for answer in answers {
            assert!(met.contains(&format!("{operation}: {answer}")), "{operation} never answered {answer}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_coordinator_answers_as_the_specification_says(steps in prop::collection::vec(step(), 1..160)) {
        let mut pair = Pair::new();
        for step in &steps {
            pair.take(step);
            pair.check_state();
        }
    }
}
