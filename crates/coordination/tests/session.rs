//! Sessions, sync and async: what they do when a store fails, when an answer is lost, and when orders come.

use std::cell::Cell;

use tessera_contracts::ids::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{plan_split_replace, plan_split_residual, plan_split_residual_at_fraction};
use tessera_contracts::{CursorUpdate, ShardSpec};
use tessera_coordination::backend::{BlockOn, Blocking, HeldShard, NeverWaits, Ready, Wrapper};
use tessera_coordination::error::{CompleteError, InfraError, LeaseRefused, OperationError};
use tessera_coordination::events::EventSink;
use tessera_coordination::record::history::{MoveReason, ReleaseReason};
use tessera_coordination::record::orders::Order;
use tessera_coordination::record::status::{ParkReason, ShardStatus};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::session::SessionFailure;
use tessera_coordination::{
    AcquireScratch, AsyncWorkerSession, CoordinationBackend, IdempotentOutcome, InMemoryCoordinator, RunManagement,
    WorkerSession,
};

const RUN: RunId = RunId::new(1);
const INCARNATION: RunIncarnation = RunIncarnation::new(1);
const SHARD: ShardKey = ShardKey::new(RUN, ShardId::new(1));
const WORKER: WorkerId = WorkerId::new(7);

fn tenant() -> TenantId {
    TenantId::from_name("acme")
}

fn at(time: u64) -> LogicalTime {
    LogicalTime::new(time)
}

fn op(id: u64) -> OpId {
    OpId::new(id)
}

fn key(bytes: &[u8]) -> CursorUpdate<'_> {
    CursorUpdate::at_key(bytes).expect("a short key is a valid cursor")
}

fn coordinator() -> InMemoryCoordinator {
    let mut coordinator = InMemoryCoordinator::default();
    let shards = [InitialShardInput::new(SHARD.shard, b"b", b"m")];
    let config = RunConfig { lease_duration: Some(100), ..RunConfig::default() };
    coordinator
        .create_run_with_shards(at(1), tenant(), RUN, INCARNATION, config, &shards, op(1))
        .expect("a valid manifest");
    coordinator
}

/// A store that fails when told to: before the operation takes effect, or after, so that its answer is lost.
struct Flaky {
    inner: InMemoryCoordinator,
    fail_next: Cell<Option<Failing>>,
    /// How many operations were asked of it.
    asked: u32,
}

#[derive(Clone, Copy)]
enum Failing {
    Before,
    After,
}

impl Flaky {
    fn new() -> Self {
        Self { inner: coordinator(), fail_next: Cell::new(None), asked: 0 }
    }
}

impl Wrapper for Flaky {
    type Inner = InMemoryCoordinator;

    fn pass<T, E: From<InfraError>>(
        &mut self,
        events: &mut dyn EventSink,
        operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
    ) -> Result<T, E> {
        self.asked += 1;
        let lost = || Err(InfraError::transient("test", "connection reset").into());
        match self.fail_next.take() {
            None => operation(&mut self.inner, events),
            Some(Failing::Before) => lost(),
            Some(Failing::After) => {
                operation(&mut self.inner, events)?;
                lost()
            }
        }
    }
}

/// The session that a failed call gave back.
fn kept<S, T, E: std::fmt::Debug>(outcome: Result<T, SessionFailure<S, E>>) -> S {
    outcome.err().and_then(SessionFailure::into_session).expect("the call fails and the session stands")
}

#[test]
fn a_terminal_call_that_fails_for_now_gives_the_session_back_to_be_tried_again() {
    for failing in [Failing::Before, Failing::After] {
        let replayed = matches!(failing, Failing::After);
        let mut store = Flaky::new();
        store.fail_next.set(None);
        let session = WorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).unwrap();
        let session = fail(session, failing);
        let session = kept(session.complete(at(3), key(b"l"), op(2)));
        let done = session.complete(at(4), key(b"l"), op(2)).unwrap();
        assert_eq!(done.is_executed(), !replayed);

        let mut store = Flaky::new();
        let session = WorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).unwrap();
        let session = kept(fail(session, failing).park(at(3), ParkReason::Poisoned, op(2)));
        assert_eq!(session.park(at(4), ParkReason::Poisoned, op(2)).unwrap().is_executed(), !replayed);

        let mut store = Flaky::new();
        let session = WorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).unwrap();
        let plan = plan_split_replace(session.spec(), &[b"f"]).unwrap();
        let session = kept(fail(session, failing).split_replace(at(3), &plan, op(2)));
        let children = session.split_replace(at(4), &plan, op(2)).unwrap();
        assert_eq!((children.is_executed(), children.get().len()), (!replayed, 2));

        let mut store = Flaky::new();
        let session = WorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).unwrap();
        let session = kept(fail(session, failing).drain(at(3), Some(key(b"c")), op(2)));
        assert_eq!(session.drain(at(4), Some(key(b"c")), op(2)).unwrap().is_executed(), !replayed);
        let freed = store.get_shard(tenant(), SHARD).unwrap().state.head.freed;
        assert_eq!(freed, MoveReason::Drained, "the history shows a planned stop");
    }
}

/// Makes the store under the session fail at its next call.
fn fail(session: WorkerSession<'_, Flaky>, failing: Failing) -> WorkerSession<'_, Flaky> {
    session.backend().fail_next.set(Some(failing));
    session
}

#[test]
fn a_wrong_request_keeps_the_session_and_a_lost_lease_ends_it() {
    let mut store = coordinator();
    let session = WorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).unwrap();
    let session = kept(session.complete(at(3), key(b"z"), op(2)));
    let failure = session.complete(at(102), key(b"l"), op(2)).unwrap_err();
    assert!(!failure.is_kept());
    assert!(matches!(failure.error(), CompleteError::Lease(LeaseRefused::Expired { .. })));
    assert!(failure.error().ends_session());
    assert!(failure.to_string().ends_with("the session is over"), "{failure}");
    assert!(failure.into_session().is_none());
}

#[test]
fn a_residual_split_narrows_the_session_even_if_its_first_answer_was_lost() {
    let mut store = Flaky::new();
    let mut session = WorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).unwrap();
    let plan = plan_split_residual(session.spec(), None, b"g").unwrap();
    session.backend().fail_next.set(Some(Failing::After));
    assert!(session.split_residual(at(3), &plan, op(2)).unwrap_err().is_transient());
    assert_eq!(session.spec().end(), b"m", "an unknown outcome changes nothing");
    let replayed = session.split_residual(at(4), &plan, op(2)).unwrap();
    assert!(!replayed.is_executed());
    assert_eq!(session.spec().end(), b"g");

    let narrower = plan_split_residual(session.spec(), None, b"d").unwrap();
    session.split_residual(at(5), &narrower, op(3)).unwrap();
    session.split_residual(at(6), &plan, op(2)).unwrap();
    assert_eq!(session.spec().end(), b"d", "an older split that is replayed does not widen the session again");
}

#[test]
fn a_checkpoint_leaves_the_snapshot_and_a_residual_split_refreshes_it() {
    let mut store = coordinator();
    let mut session = WorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).unwrap();
    let acquired = session.initial_snapshot().clone();
    session.checkpoint(at(3), key(b"c"), op(2)).unwrap();
    assert_eq!(session.initial_snapshot(), &acquired);

    let plan = plan_split_residual(session.spec(), Some(b"c"), b"g").unwrap();
    let residual = session.split_residual(at(4), &plan, op(3)).unwrap().into_inner();
    let refreshed = session.initial_snapshot().clone();
    assert_eq!((refreshed.spec.view().end(), &refreshed.spawned[..]), (&b"g"[..], &[residual][..]));
    assert_eq!(refreshed.cursor, acquired.cursor, "the cursor stays that of the acquisition");
    session.split_residual(at(5), &plan, op(3)).unwrap();
    assert_eq!(session.initial_snapshot(), &refreshed, "a replayed split adds its child once");
}

#[test]
fn a_session_knows_who_it_is_and_what_it_began_with() {
    let mut store = coordinator();
    let mut session = WorkerSession::claim(&mut store, at(2), tenant(), RUN, WORKER).unwrap();
    assert_eq!((session.tenant(), session.worker(), session.shard_key()), (tenant(), WORKER, SHARD));
    assert_eq!(session.lease().deadline(), at(102));
    assert_eq!(session.initial_snapshot().status, ShardStatus::Active);
    session.checkpoint(at(3), key(b"c"), op(2)).unwrap();
    assert!(session.cursor().is_initial(), "the snapshot does not follow checkpoints");
    session.renew(at(50)).unwrap();
    assert_eq!(session.lease().deadline(), at(150));
    assert_eq!(session.capacity().earliest_deadline, Some(at(150)));
    assert!(format!("{session:?}").starts_with("WorkerSession { state: SessionState { lease: "));
    let restored = session.state().restored().unwrap();
    assert_eq!(restored.spec(), ShardSpec::new(b"b", b"m", b"").unwrap().view());
}

#[test]
fn a_yield_order_reaches_the_owner_it_is_for_and_is_answered_with_the_progress_made() {
    let mut store = coordinator();
    let epoch = WorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).unwrap().lease().epoch();
    let mut scratch = AcquireScratch::new();
    store.request_yield(at(3), tenant(), SHARD, epoch).unwrap();
    let record = store.get_shard(tenant(), SHARD).unwrap();
    assert!(record.state.head.orders.yield_requested);

    // The worker's own session hears it with its next renewal.
    let acquired = store.acquire_and_restore_into(at(102), tenant(), SHARD, WORKER, &mut scratch).unwrap();
    let mut session = WorkerSession::from_acquire_result(&mut store, &acquired);
    session.renew(at(103)).unwrap();
    assert_eq!(session.orders().most_urgent(), None, "an order to the owner before does not reach the next");
    let epoch = session.lease().epoch();
    drop(session);
    store.request_yield(at(104), tenant(), SHARD, epoch).unwrap();
    let mut session = WorkerSession::from_acquire_result(&mut store, &acquired);
    session.renew(at(105)).unwrap();
    assert_eq!(session.orders().most_urgent(), Some(Order::PleaseYield));
    session.release(at(106), Some(key(b"e")), ReleaseReason::Yielded, op(5)).unwrap();
    let record = store.get_shard(tenant(), SHARD).unwrap();
    assert!(record.state.head.is_free());
    assert_eq!(record.state.head.freed, MoveReason::Yielded);
    assert_eq!(record.cursor.last_key(), Some(&b"e"[..]));
}

#[test]
fn a_worker_that_has_processed_nothing_yields_without_progress() {
    let mut store = coordinator();
    let mut scratch = AcquireScratch::new();
    let acquired = store.acquire_and_restore_into(at(2), tenant(), SHARD, WORKER, &mut scratch).unwrap();
    store.request_yield(at(3), tenant(), SHARD, acquired.lease.epoch()).unwrap();
    let mut session = WorkerSession::from_acquire_result(&mut store, &acquired);
    session.renew(at(4)).unwrap();
    session.release(at(5), None, ReleaseReason::Yielded, op(2)).unwrap();
    assert!(store.get_shard(tenant(), SHARD).unwrap().state.head.is_free());
}

#[test]
fn a_split_order_is_answered_once_and_the_session_goes_on() {
    let mut store = coordinator();
    let mut scratch = AcquireScratch::new();
    let acquired = store.acquire_and_restore_into(at(2), tenant(), SHARD, WORKER, &mut scratch).unwrap();
    store.request_split(at(3), tenant(), SHARD, acquired.lease.epoch(), Fraction::HALF).unwrap();
    let mut session = WorkerSession::from_acquire_result(&mut store, &acquired);
    session.renew(at(4)).unwrap();
    let Some(Order::PleaseSplit { fraction }) = session.orders().most_urgent() else { panic!("a split was asked for") };
    let plan = plan_split_residual_at_fraction(session.spec(), Some(b"k"), fraction).unwrap();
    assert!(session.split_residual(at(5), &plan, op(2)).unwrap().into_inner().is_derived());
    assert!(session.spec().end() > &b"k"[..] && session.spec().end() < &b"m"[..]);
    assert_eq!(session.orders().most_urgent(), None, "one order is one split, also before the next renewal");
    assert_eq!(session.renew(at(6)).unwrap().orders.most_urgent(), None, "the order is answered");
    session.complete(at(8), key(b"k"), op(4)).unwrap();
}

#[test]
fn a_cancelled_run_stops_the_worker_at_its_next_renewal() {
    let mut store = coordinator();
    let mut scratch = AcquireScratch::new();
    let acquired = store.acquire_and_restore_into(at(2), tenant(), SHARD, WORKER, &mut scratch).unwrap();
    store.cancel_run(at(3), tenant(), RUN, op(9)).unwrap();
    let mut session = WorkerSession::from_acquire_result(&mut store, &acquired);
    let renewed = session.renew(at(4)).unwrap();
    assert_eq!(renewed.new_deadline, at(102), "the lease is not extended");
    assert_eq!(renewed.orders.most_urgent(), Some(Order::Cancelled(RunStatus::Cancelled)));
    assert!(session.checkpoint(at(5), key(b"c"), op(2)).is_err());
}

#[test]
fn an_async_session_does_what_a_sync_one_does() {
    let mut store = Ready(Flaky::new());
    NeverWaits.block_on(async {
        let mut session = AsyncWorkerSession::new(&mut store, at(2), tenant(), SHARD, WORKER).await.unwrap();
        session.renew(at(3)).await.unwrap();
        session.checkpoint(at(3), key(b"c"), op(2)).await.unwrap();
        let plan = plan_split_residual(session.spec(), Some(b"c"), b"g").unwrap();
        session.backend().0.fail_next.set(Some(Failing::After));
        assert!(session.split_residual(at(4), &plan, op(3)).await.is_err());
        session.split_residual(at(5), &plan, op(3)).await.unwrap();
        assert_eq!(session.spec().end(), b"g");
        session.backend().0.fail_next.set(Some(Failing::Before));
        let session = kept(session.complete(at(6), key(b"f"), op(4)).await);
        assert!(session.complete(at(7), key(b"f"), op(4)).await.unwrap().is_executed());
    });
    let record = store.0.inner.get_shard(tenant(), SHARD).unwrap();
    assert_eq!(record.state.head.status, ShardStatus::Done);
}

#[test]
fn an_async_session_answers_orders() {
    let mut store = Ready(coordinator());
    let mut scratch = AcquireScratch::new();
    let acquired = store.0.acquire_and_restore_into(at(2), tenant(), SHARD, WORKER, &mut scratch).unwrap();
    store.0.request_split(at(3), tenant(), SHARD, acquired.lease.epoch(), Fraction::HALF).unwrap();
    NeverWaits.block_on(async {
        let mut session = AsyncWorkerSession::from_acquire_result(&mut store, &acquired);
        session.renew(at(4)).await.unwrap();
        let Some(Order::PleaseSplit { fraction }) = session.orders().most_urgent() else {
            panic!("a split was asked for")
        };
        let plan = plan_split_residual_at_fraction(session.spec(), Some(b"c"), fraction).unwrap();
        session.split_residual(at(5), &plan, op(2)).await.unwrap();
        assert_eq!(session.orders().most_urgent(), None);
    });
    store.0.request_yield(at(6), tenant(), SHARD, acquired.lease.epoch()).unwrap();
    NeverWaits.block_on(async {
        let mut session = AsyncWorkerSession::from_acquire_result(&mut store, &acquired);
        session.renew(at(7)).await.unwrap();
        assert_eq!(session.orders().most_urgent(), Some(Order::PleaseYield));
        session.release(at(8), None, ReleaseReason::Yielded, op(3)).await.unwrap();
        assert!(AsyncWorkerSession::claim(&mut store, at(9), tenant(), RUN, WORKER).await.is_ok());
    });
}

#[test]
fn an_async_session_yields_with_the_progress_made() {
    let mut store = Ready(coordinator());
    let mut scratch = AcquireScratch::new();
    let acquired = store.0.acquire_and_restore_into(at(2), tenant(), SHARD, WORKER, &mut scratch).unwrap();
    store.0.request_yield(at(3), tenant(), SHARD, acquired.lease.epoch()).unwrap();
    NeverWaits.block_on(async {
        let mut session = AsyncWorkerSession::from_acquire_result(&mut store, &acquired);
        session.renew(at(4)).await.unwrap();
        session.release(at(5), Some(key(b"e")), ReleaseReason::Yielded, op(2)).await.unwrap();
    });
    let record = store.0.get_shard(tenant(), SHARD).unwrap();
    assert_eq!(record.cursor.last_key(), Some(&b"e"[..]));
}

#[test]
fn a_backend_is_the_same_through_both_adapters() {
    let mut store = Blocking { backend: Ready(InMemoryCoordinator::default()), executor: NeverWaits };
    let shards = [InitialShardInput::new(SHARD.shard, b"b", b"m")];
    let made =
        store.create_run_with_shards(at(1), tenant(), RUN, INCARNATION, RunConfig::default(), &shards, op(1)).unwrap();
    assert_eq!(made, IdempotentOutcome::Executed(1));
    let session = WorkerSession::claim(&mut store, at(2), tenant(), RUN, WORKER).unwrap();
    session.complete(at(3), key(b"l"), op(2)).unwrap();
    assert_eq!(store.get_run(tenant(), RUN).unwrap().status, RunStatus::Active);
    store.complete_run(at(4), tenant(), RUN, op(3)).unwrap();
    assert_eq!(store.get_run(tenant(), RUN).unwrap().status, RunStatus::Done);
    let explained = store.explain_claim(at(5), tenant(), RUN, WORKER).unwrap();
    assert_eq!(explained.to_string(), "the run is done");
}

#[test]
#[should_panic(expected = "never wait")]
fn an_executor_without_a_waker_refuses_to_wait() {
    NeverWaits.block_on(std::future::pending::<()>());
}

#[test]
fn a_batch_passes_every_adapter_in_one_piece() {
    let mut store = Blocking { backend: Ready(Flaky::new()), executor: NeverWaits };
    let lease =
        store.acquire_and_restore_into(at(2), tenant(), SHARD, WORKER, &mut AcquireScratch::new()).unwrap().lease;
    store.backend.0.asked = 0;

    let mut renewed = Vec::new();
    store.renew_many(at(3), tenant(), &[lease, lease], &mut renewed);
    assert_eq!((renewed.iter().filter(|answer| answer.is_ok()).count(), store.backend.0.asked), (2, 1));

    let held = [4, 5].map(|id| HeldShard { lease: &lease, cursor: None, op_id: op(id) });
    let mut drained = Vec::new();
    store.drain(at(4), tenant(), &held, &mut drained);
    assert!(drained[0].is_ok() && drained[1].is_err(), "it can be given back once: {drained:?}");
    assert_eq!(store.backend.0.asked, 2);
}

#[test]
fn a_batch_that_could_not_pass_answers_for_each_of_its_parts() {
    let mut store = Flaky::new();
    let lease =
        store.acquire_and_restore_into(at(2), tenant(), SHARD, WORKER, &mut AcquireScratch::new()).unwrap().lease;
    let mut renewed = Vec::new();
    store.renew_many(at(3), tenant(), &[lease], &mut renewed);
    assert!(renewed[0].is_ok());
    store.fail_next.set(Some(Failing::Before));
    store.renew_many(at(3), tenant(), &[lease, lease], &mut renewed);
    assert_eq!(renewed.len(), 2, "what was answered before is not answered again");
    assert_eq!(renewed.iter().filter(|answer| answer.as_ref().is_err_and(OperationError::is_transient)).count(), 2);
}
