//! Every operation that changes something says so, once, with the reason an ownership moved: one table of all of them.

use alloc::vec;
use alloc::vec::Vec;

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::redact::RedactedKey;
use tessera_contracts::split::{plan_split_replace, plan_split_residual};

use crate::backend::{CoordinationBackend, HeldShard, RunManagement, ShardClaiming};
use crate::decide::order::OrderRequest;
use crate::decide::settle_run::Settlement;
use crate::events::{EventCollector, EventKind, StateTransitionEvent};
use crate::memory::InMemoryCoordinator;
use crate::record::history::{MoveReason, ReleaseReason};
use crate::record::lease::Lease;
use crate::record::park::Park;
use crate::record::snapshot::AcquireScratch;
use crate::record::status::ParkReason;
use crate::record::unreachable::Unreachable;
use crate::run::config::RunConfig;

const TENANT: TenantId = TenantId::from_bytes([3; 32]);
const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const NEW_RUN: RunId = RunId::new(2);
const WORKER: WorkerId = WorkerId::new(7);
const ONE: ShardId = ShardId::new(1);
const TWO: ShardId = ShardId::new(2);
const CONFIG: RunConfig = RunConfig {
    cursor_semantics: tessera_contracts::CursorSemantics::Completed,
    lease_duration: Some(10),
    max_shard_retries: 2,
};
/// Every operation of a row has this id, so that a second call is a retry.
const OP: OpId = OpId::new(100);

fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

/// Shards 1 over `[a, m)` and 2 over `[m, z)` in an active run, and who listens.
struct Stage {
    memory: InMemoryCoordinator,
    events: EventCollector,
    lease: Option<Lease>,
}

impl Stage {
    fn new() -> Self {
        let mut memory = InMemoryCoordinator::default();
        let shards = [InitialShardInput::new(ONE, b"a", b"m"), InitialShardInput::new(TWO, b"m", b"z")];
        memory.create_run_with_shards(at(1), TENANT, RUN, INCARNATION, CONFIG, &shards, OpId::new(1)).unwrap();
        Self { memory, events: EventCollector::new(), lease: None }
    }

    fn acquire(&mut self, shard: ShardId, now: u64) -> Lease {
        let (key, scratch) = (ShardKey::new(RUN, shard), &mut AcquireScratch::new());
        let acquired =
            self.memory.acquire_and_restore_into_with_events(at(now), TENANT, key, WORKER, scratch, &mut self.events);
        acquired.unwrap().lease
    }

    /// Shard 1, held.
    fn held(&mut self) -> Lease {
        match self.lease {
            Some(lease) => lease,
            None => {
                let lease = self.acquire(ONE, 2);
                self.lease = Some(lease);
                self.events.drain();
                lease
            }
        }
    }

    fn release(&mut self, reason: ReleaseReason<'_>) {
        let lease = self.held();
        self.memory.release_with_events(at(3), TENANT, &lease, None, reason, OP, &mut self.events).unwrap();
    }

    /// Another worker holds shard 1, cannot reach it and gives it back.
    fn unreachable_for_another(&mut self) {
        let (key, scratch) = (ShardKey::new(RUN, ONE), &mut AcquireScratch::new());
        let acquired = self.memory.acquire_and_restore_into(at(2), TENANT, key, WorkerId::new(78), scratch);
        let lease = acquired.unwrap().lease;
        let reason = ReleaseReason::Unreachable(Unreachable::NONE);
        self.memory.release_with_events(at(3), TENANT, &lease, None, reason, OP, &mut self.events).unwrap();
    }

    fn park(&mut self) {
        let lease = self.held();
        let why = Park::because(ParkReason::Poisoned);
        self.memory.park_shard_with_events(at(3), TENANT, &lease, why, OP, &mut self.events).unwrap();
    }

    /// Acquires shard 1, and only that is told.
    fn next_owner(&mut self, now: u64) {
        self.events.drain();
        self.acquire(ONE, now);
    }

    fn settle(&mut self, settlement: Settlement) {
        self.memory.settle_run_with_events(at(4), TENANT, RUN, settlement, OP, &mut self.events).unwrap();
    }

    fn complete_all(&mut self) {
        for (shard, op) in [(ONE, 11), (TWO, 12)] {
            let lease = self.acquire(shard, 2);
            self.memory.complete(at(3), TENANT, &lease, CursorUpdate::initial(), OpId::new(op)).unwrap();
        }
        self.events.drain();
    }
}

fn granted(fence: u64, reason: MoveReason) -> Vec<EventKind> {
    vec![EventKind::ShardAcquired { shard: ONE, worker: WORKER, fence_epoch: FenceEpoch::new(fence), reason }]
}

fn ordered(order: OrderRequest) -> Vec<EventKind> {
    vec![EventKind::ShardOrdered { shard: ONE, order }]
}

/// What a call after the first one tells.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    /// It has an op id: it is a retry, and tells nothing.
    Nothing,
    /// It has none: it is another operation, or is refused.
    NotAsked,
}

type Row = (&'static str, fn(&mut Stage), Vec<EventKind>, Again);

/// What happens, and what is told of it.
fn rows() -> Vec<Row> {
    use Again::{NotAsked, Nothing};
    let released = |reason| vec![EventKind::ShardReleased { shard: ONE, reason }];
    let renewed = |shard, until| EventKind::ShardLeaseRenewed { shard, new_deadline: at(until) };
    vec![
        ("acquire", |stage| stage.next_owner(2), granted(2, MoveReason::FirstAcquire), NotAsked),
        (
            "acquire after expiry",
            |stage| {
                stage.held();
                stage.next_owner(12);
            },
            granted(3, MoveReason::Expired),
            NotAsked,
        ),
        (
            "acquire after release",
            |stage| {
                stage.release(ReleaseReason::Released);
                stage.next_owner(4);
            },
            granted(3, MoveReason::Released),
            NotAsked,
        ),
        (
            "acquire after yield",
            |stage| {
                stage.release(ReleaseReason::Yielded);
                stage.next_owner(4);
            },
            granted(3, MoveReason::Yielded),
            NotAsked,
        ),
        (
            "acquire after drain",
            |stage| {
                stage.release(ReleaseReason::Drained);
                stage.next_owner(4);
            },
            granted(3, MoveReason::Drained),
            NotAsked,
        ),
        (
            "acquire of what another could not reach",
            |stage| {
                stage.acquire(TWO, 2);
                stage.unreachable_for_another();
                stage.next_owner(4);
            },
            granted(3, MoveReason::Unreachable),
            NotAsked,
        ),
        (
            "acquire after unpark",
            |stage| {
                stage.park();
                let (key, seen) = (ShardKey::new(RUN, ONE), ShardEpoch::new(INCARNATION, FenceEpoch::new(2)));
                stage.memory.unpark_shard(at(4), TENANT, key, seen, OpId::new(101)).unwrap();
                stage.next_owner(5);
            },
            granted(4, MoveReason::Unparked),
            NotAsked,
        ),
        (
            "acquire without retries left",
            |stage| {
                stage.acquire(ONE, 2);
                stage.acquire(ONE, 12);
                stage.events.drain();
                let (key, scratch) = (ShardKey::new(RUN, ONE), &mut AcquireScratch::new());
                let refused = stage.memory.acquire_and_restore_into_with_events(
                    at(22),
                    TENANT,
                    key,
                    WORKER,
                    scratch,
                    &mut stage.events,
                );
                assert!(refused.is_err());
            },
            vec![EventKind::ShardParked { shard: ONE, reason: ParkReason::TooManyErrors }],
            NotAsked,
        ),
        (
            "claim",
            |stage| {
                let scratch = &mut AcquireScratch::new();
                let (memory, events) = (&mut stage.memory, &mut stage.events);
                memory.claim_next_available_with_events(at(2), TENANT, RUN, WORKER, scratch, events).unwrap();
            },
            granted(2, MoveReason::FirstAcquire),
            NotAsked,
        ),
        (
            "renew",
            |stage| {
                let lease = stage.held();
                stage.memory.renew_with_events(at(5), TENANT, &lease, &mut stage.events).unwrap();
            },
            vec![renewed(ONE, 15)],
            NotAsked,
        ),
        (
            "renew_many",
            |stage| {
                let leases = [stage.held(), stage.acquire(TWO, 2)];
                stage.events.drain();
                stage.memory.renew_many_with_events(at(5), TENANT, &leases, &mut Vec::new(), &mut stage.events);
            },
            vec![renewed(ONE, 15), renewed(TWO, 15)],
            NotAsked,
        ),
        (
            "checkpoint",
            |stage| {
                let (lease, cursor) = (stage.held(), CursorUpdate::at_key(b"c").unwrap());
                stage.memory.checkpoint_with_events(at(3), TENANT, &lease, cursor, OP, &mut stage.events).unwrap();
            },
            vec![EventKind::ShardCheckpointed { shard: ONE, last_key: RedactedKey::new(Some(b"c")) }],
            Nothing,
        ),
        (
            "complete",
            |stage| {
                let (lease, cursor) = (stage.held(), CursorUpdate::initial());
                stage.memory.complete_with_events(at(3), TENANT, &lease, cursor, OP, &mut stage.events).unwrap();
            },
            vec![EventKind::ShardCompleted { shard: ONE }],
            Nothing,
        ),
        ("park_shard", Stage::park, vec![EventKind::ShardParked { shard: ONE, reason: ParkReason::Poisoned }], Nothing),
        ("release", |stage| stage.release(ReleaseReason::Released), released(MoveReason::Released), Nothing),
        ("release when asked", |stage| stage.release(ReleaseReason::Yielded), released(MoveReason::Yielded), Nothing),
        (
            "release of what another worker may reach",
            |stage| {
                stage.acquire(TWO, 2);
                stage.events.drain();
                stage.unreachable_for_another();
            },
            released(MoveReason::Unreachable),
            NotAsked,
        ),
        (
            "release of what nobody else may reach",
            |stage| stage.release(ReleaseReason::Unreachable(Unreachable::NONE)),
            vec![EventKind::ShardParked { shard: ONE, reason: ParkReason::Unreachable }],
            Nothing,
        ),
        (
            "claim of what nobody else may reach any more",
            |stage| {
                let two = stage.acquire(TWO, 2);
                stage.unreachable_for_another();
                stage.memory.complete(at(3), TENANT, &two, CursorUpdate::initial(), OpId::new(12)).unwrap();
                stage.events.drain();
                let scratch = &mut AcquireScratch::new();
                let (memory, events, other) = (&mut stage.memory, &mut stage.events, WorkerId::new(78));
                let claimed = memory.claim_next_available_with_events(at(11), TENANT, RUN, other, scratch, events);
                assert!(claimed.is_err(), "the other worker may still come for it");
                // A lease duration after it was last heard of, it is taken for gone.
                let claimed = memory.claim_next_available_with_events(at(12), TENANT, RUN, other, scratch, events);
                assert!(claimed.is_err());
            },
            vec![EventKind::ShardParked { shard: ONE, reason: ParkReason::Unreachable }],
            NotAsked,
        ),
        (
            "drain",
            |stage| {
                let lease = stage.held();
                let held = [HeldShard { lease: &lease, cursor: None, op_id: OP }];
                stage.memory.drain_with_events(at(3), TENANT, &held, &mut Vec::new(), &mut stage.events);
            },
            released(MoveReason::Drained),
            Nothing,
        ),
        (
            "unpark_shard",
            |stage| {
                stage.park();
                stage.events.drain();
                let (key, seen, op) =
                    (ShardKey::new(RUN, ONE), ShardEpoch::new(INCARNATION, FenceEpoch::new(2)), OpId::new(101));
                stage.memory.unpark_shard_with_events(at(4), TENANT, key, seen, op, &mut stage.events).unwrap();
            },
            vec![EventKind::ShardUnparked { shard: ONE, new_fence_epoch: FenceEpoch::new(3) }],
            Nothing,
        ),
        (
            "request_yield",
            |stage| {
                let lease = stage.held();
                let (memory, events) = (&mut stage.memory, &mut stage.events);
                memory
                    .order_with_events(at(3), TENANT, lease.key(), lease.epoch(), OrderRequest::Yield, events)
                    .unwrap();
            },
            ordered(OrderRequest::Yield),
            NotAsked,
        ),
        (
            "request_split",
            |stage| {
                let (lease, order) = (stage.held(), OrderRequest::Split(Fraction::HALF));
                let (memory, events) = (&mut stage.memory, &mut stage.events);
                memory.order_with_events(at(3), TENANT, lease.key(), lease.epoch(), order, events).unwrap();
            },
            ordered(OrderRequest::Split(Fraction::HALF)),
            NotAsked,
        ),
        (
            "create_run",
            |stage| {
                stage
                    .memory
                    .create_run_with_events(at(2), TENANT, NEW_RUN, INCARNATION, CONFIG, &mut stage.events)
                    .unwrap();
            },
            vec![EventKind::RunCreated],
            NotAsked,
        ),
        (
            "register_shards",
            |stage| {
                if stage.memory.get_run(TENANT, NEW_RUN).is_err() {
                    stage.memory.create_run(at(2), TENANT, NEW_RUN, INCARNATION, CONFIG).unwrap();
                }
                let (shards, events) = ([InitialShardInput::new(ONE, b"a", b"m")], &mut stage.events);
                stage.memory.register_shards_with_events(at(2), TENANT, NEW_RUN, &shards, OP, events).unwrap();
            },
            vec![EventKind::RunActivated { shard_count: 1 }],
            Nothing,
        ),
        (
            "complete_run",
            |stage| {
                if stage.memory.get_run_progress(at(3), TENANT, RUN).unwrap().counts.active > 0 {
                    stage.complete_all();
                }
                stage.settle(Settlement::Complete);
            },
            vec![EventKind::RunCompleted],
            Nothing,
        ),
        ("fail_run", |stage| stage.settle(Settlement::Fail), vec![EventKind::RunFailed], Nothing),
        ("cancel_run", |stage| stage.settle(Settlement::Cancel), vec![EventKind::RunCancelled], Nothing),
        (
            "retire_runs",
            |stage| {
                stage.settle(Settlement::Cancel);
                stage.events.drain();
                let (memory, events) = (&mut stage.memory, &mut stage.events);
                memory.retire_runs_with_events(at(99), TENANT, at(50), 10, events).unwrap();
            },
            vec![EventKind::RunRetired { shard_count: 2 }],
            NotAsked,
        ),
    ]
}

#[test]
fn every_change_is_told_once_and_a_retry_of_it_is_not() {
    for (operation, act, expected, again) in rows() {
        let mut stage = Stage::new();
        act(&mut stage);
        let told = stage.events.drain();
        assert!(told.iter().all(|StateTransitionEvent { tenant, .. }| *tenant == TENANT), "{operation}");
        let kinds: Vec<_> = told.into_iter().map(|event| event.kind).collect();
        assert_eq!(kinds, expected, "{operation}");
        if again == Again::Nothing {
            act(&mut stage);
            let retried = stage.events.drain();
            assert!(retried.is_empty(), "{operation}, retried, tells {retried:?}");
        }
    }
}

#[test]
fn a_split_is_told_with_the_shards_it_makes() {
    let mut stage = Stage::new();
    let lease = stage.held();
    let spec = stage.memory.get_shard(TENANT, lease.key()).unwrap().spec;
    let plan = plan_split_residual(spec.view(), None, b"g").unwrap();
    for told in [1, 0] {
        let outcome = stage.memory.split_residual_with_events(at(3), TENANT, &lease, &plan, OP, &mut stage.events);
        let residual = outcome.unwrap().into_inner();
        let kind = EventKind::ShardResidualCreated { parent: ONE, residual };
        let event = StateTransitionEvent { tenant: TENANT, run: RUN, at: at(3), kind };
        assert_eq!(stage.events.drain(), vec![event; told]);
    }
    let plan = plan_split_replace(plan.kept().view(), &[b"c", b"e"]).unwrap();
    for told in [1, 0] {
        let op = OpId::new(101);
        let outcome = stage.memory.split_replace_with_events(at(3), TENANT, &lease, &plan, op, &mut stage.events);
        let children = outcome.unwrap().into_inner();
        let kinds: Vec<_> = stage.events.drain().into_iter().map(|event| event.kind).collect();
        assert_eq!(kinds, vec![EventKind::ShardSplit { parent: ONE, children }; told]);
    }
}

#[test]
fn nothing_depends_on_whether_anyone_listens() {
    let mut listening = Stage::new();
    let mut alone = Stage { events: EventCollector::with_max_capacity(0), ..Stage::new() };
    for stage in [&mut listening, &mut alone] {
        stage.release(ReleaseReason::Yielded);
        let lease = stage.acquire(ONE, 4);
        let cursor = CursorUpdate::at_key(b"c").unwrap();
        stage.memory.checkpoint_with_events(at(5), TENANT, &lease, cursor, OpId::new(102), &mut stage.events).unwrap();
        stage.settle(Settlement::Fail);
    }
    assert_eq!((listening.events.is_empty(), alone.events.is_empty()), (false, true));
    let key = ShardKey::new(RUN, ONE);
    assert_eq!(listening.memory.get_shard(TENANT, key), alone.memory.get_shard(TENANT, key));
    assert_eq!(listening.memory.get_run(TENANT, RUN), alone.memory.get_run(TENANT, RUN));
}

/// The number of an event's kind; those with the shards that a split makes are in the test above. A new kind does not
/// compile until it has a number, and then wants a row.
fn number(kind: &EventKind) -> usize {
    match kind {
        EventKind::ShardAcquired { .. } => 0,
        EventKind::ShardCheckpointed { .. } => 1,
        EventKind::ShardUnparked { .. } => 2,
        EventKind::ShardLeaseRenewed { .. } => 3,
        EventKind::ShardReleased { .. } => 4,
        EventKind::ShardOrdered { .. } => 5,
        EventKind::ShardCompleted { .. } => 6,
        EventKind::ShardParked { .. } => 7,
        EventKind::RunCreated => 8,
        EventKind::RunActivated { .. } => 9,
        EventKind::RunCompleted => 10,
        EventKind::RunFailed => 11,
        EventKind::RunCancelled => 12,
        EventKind::RunRetired { .. } => 13,
        EventKind::ShardResidualCreated { .. } | EventKind::ShardSplit { .. } => usize::MAX,
    }
}

#[test]
fn the_table_has_every_event_and_every_reason_that_one_process_can_have() {
    let told: Vec<_> = rows().into_iter().flat_map(|(_, _, expected, _)| expected).collect();
    for wanted in 0..=13 {
        assert!(told.iter().any(|kind| number(kind) == wanted), "no row tells of kind {wanted}");
    }
    for reason in MoveReason::ALL.into_iter().filter(|reason| *reason != MoveReason::SessionLost) {
        let moved = |kind: &EventKind| matches!(kind, EventKind::ShardAcquired { reason: told, .. } if *told == reason);
        assert!(told.iter().any(moved), "no row has an owner because of `{reason}`");
    }
}
