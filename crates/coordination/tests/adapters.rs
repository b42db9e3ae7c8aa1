//! A backend behind an adapter is the same backend: what it is asked arrives as asked, and what it tells is heard.
#![allow(clippy::unwrap_used, reason = "a test whose stage cannot be set should fail")]

use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_coordination::backend::{
    AsyncCoordinationBackend, AsyncRunManagement, BlockOn, Blocking, NeverWaits, Ready, Wrapper,
};
use tessera_coordination::error::{CreateRunError, InfraError, RegisterShardsError};
use tessera_coordination::events::{EventCollector, EventKind, EventSink};
use tessera_coordination::record::orders::StandingOrders;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::{
    AcquireScratch, CoordinationBackend, IdempotentOutcome, InMemoryCoordinator, RunManagement,
};

const TENANT: TenantId = TenantId::from_bytes([7; 32]);
const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const SHARD: ShardKey = ShardKey::new(RUN, ShardId::new(1));
const SHARDS: [InitialShardInput<'static>; 1] = [InitialShardInput::new(SHARD.shard, b"b", b"m")];

fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

fn op(id: u64) -> OpId {
    OpId::new(id)
}

/// Passes everything on, and listens.
#[derive(Default)]
struct Listening {
    inner: InMemoryCoordinator,
    heard: usize,
}

impl Wrapper for Listening {
    type Inner = InMemoryCoordinator;

    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut own = EventCollector::new();
        let answer = operation(&mut self.inner, &mut own);
        self.heard += own.len();
        own.drain_with(|event| {
            events.emit(event);
        });
        answer
    }
}

fn held(store: &mut InMemoryCoordinator) -> tessera_coordination::Lease {
    store.create_run_with_shards(at(1), TENANT, RUN, INCARNATION, RunConfig::default(), &SHARDS, op(1)).unwrap();
    let scratch = &mut AcquireScratch::new();
    store.acquire_and_restore_into(at(2), TENANT, SHARD, WorkerId::new(3), scratch).unwrap().lease
}

#[test]
fn whoever_listens_hears_through_every_adapter_what_happened_and_so_does_a_wrapper() {
    let mut store = Blocking { backend: Ready(Listening::default()), executor: NeverWaits };
    let mut events = EventCollector::new();
    store.create_run_with_events(at(1), TENANT, RUN, INCARNATION, RunConfig::default(), &mut events).unwrap();
    store.register_shards_with_events(at(1), TENANT, RUN, &SHARDS, op(1), &mut events).unwrap();
    let scratch = &mut AcquireScratch::new();
    let granted =
        store.acquire_and_restore_into_with_events(at(2), TENANT, SHARD, WorkerId::new(3), scratch, &mut events);
    let leases = [granted.unwrap().lease];
    let mut answers = Vec::new();
    store.renew_many_with_events(at(3), TENANT, &leases, &mut answers, &mut events);
    assert!(answers[0].is_ok());
    let told: Vec<EventKind> = events.drain().into_iter().map(|event| event.kind).collect();
    assert!(
        matches!(
            told[..],
            [
                EventKind::RunCreated,
                EventKind::RunActivated { shard_count: 1 },
                EventKind::ShardAcquired { .. },
                EventKind::ShardLeaseRenewed { .. }
            ]
        ),
        "{told:?}"
    );
    assert_eq!(store.backend.0.heard, 4);
}

#[test]
fn an_async_run_is_created_with_its_shards_once_and_only_as_it_was_asked_for_first() {
    let mut store = Ready(InMemoryCoordinator::default());
    NeverWaits.block_on(async {
        let (config, other) = (RunConfig::default(), RunConfig { max_shard_retries: 99, ..RunConfig::default() });
        for answer in [IdempotentOutcome::Executed(1), IdempotentOutcome::Replayed(1)] {
            let made = store.create_run_with_shards(at(1), TENANT, RUN, INCARNATION, config, &SHARDS, op(1)).await;
            assert_eq!(made, Ok(answer));
        }
        let made = store.create_run_with_shards(at(1), TENANT, RUN, INCARNATION, other, &SHARDS, op(1)).await;
        assert_eq!(made, Err(RegisterShardsError::ConfigMismatch { run: RUN }));
        let made =
            store.create_run_with_shards(at(1), TENANT, RunId::new(0), INCARNATION, config, &SHARDS, op(1)).await;
        assert_eq!(made, Err(CreateRunError::UnassignedRun.into()));
    });
}

#[test]
fn an_async_run_ends_as_it_was_asked_to() {
    for status in [RunStatus::Done, RunStatus::Failed, RunStatus::Cancelled] {
        let mut store = Ready(InMemoryCoordinator::default());
        let lease = held(&mut store.0);
        store.0.complete(at(3), TENANT, &lease, tessera_contracts::CursorUpdate::initial(), op(2)).unwrap();
        NeverWaits.block_on(async {
            let settled = match status {
                RunStatus::Done => store.complete_run(at(4), TENANT, RUN, op(3)).await,
                RunStatus::Failed => store.fail_run(at(4), TENANT, RUN, op(3)).await,
                _ => store.cancel_run(at(4), TENANT, RUN, op(3)).await,
            };
            assert_eq!(settled, Ok(IdempotentOutcome::Executed(())));
            assert_eq!(AsyncRunManagement::get_run(&mut store, TENANT, RUN).await.unwrap().status, status);
        });
    }
}

#[test]
fn an_async_order_is_the_one_that_was_given_and_a_batch_is_carried_out() {
    let mut store = Ready(InMemoryCoordinator::default());
    let lease = held(&mut store.0);
    let mut orders = |yields: bool| {
        NeverWaits.block_on(async {
            let given = match yields {
                true => store.request_yield(at(3), TENANT, SHARD, lease.epoch()).await,
                false => store.request_split(at(3), TENANT, SHARD, lease.epoch(), Fraction::HALF).await,
            };
            assert_eq!(given, Ok(()));
            let mut answers = Vec::new();
            store.renew_many(at(3), TENANT, &[lease, lease], &mut answers).await;
            assert_eq!(answers.len(), 2);
            answers.remove(0).unwrap().orders.standing
        })
    };
    let split = StandingOrders { yield_requested: false, split_requested: Some(Fraction::HALF) };
    assert_eq!(orders(false), split);
    assert_eq!(orders(true), StandingOrders { yield_requested: true, ..split });
}
