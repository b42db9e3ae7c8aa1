//! That no operation is left out: every method that the protocol's traits require is called by one of the operations.

use std::collections::BTreeSet;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{
    CursorUpdate, FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId,
    WorkerId,
};
use tessera_coordination::backend::{
    BlockOn, CoordinationBackend, HeldShard, NeverWaits, Ready, RunManagement, ShardClaiming,
};
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::error::{
    AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, GetRunError, GetShardError,
    IdempotentOutcome, OrderError, ParkError, RegisterShardsError, ReleaseError, RenewError, RunTransitionError,
    SplitReplaceError, SplitResidualError, UnparkError,
};
use tessera_coordination::events::EventSink;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::snapshot::AcquireResultView;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::RunProgress;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::{AcquireScratch, CoordinatorRuntimeConfig, InMemoryCoordinator, Lease};

use crate::calls::{Call, OPERATIONS};
use crate::player::Side;
use crate::starts::start;

/// The in-memory coordinator, and what was called.
struct Noted {
    memory: InMemoryCoordinator,
    called: BTreeSet<&'static str>,
}

/// Implements the traits and names their methods. A method that a trait comes to require is missing here until it is named.
macro_rules! noted {
    ($($of:ident { $(
        $name:ident $(<$lifetime:lifetime>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $answer:ty)?;
    )* })*) => {
        const REQUIRED: &[&str] = &[$($(stringify!($name)),*),*];

        $(impl $of for Noted { $(
            fn $name $(<$lifetime>)? (&mut self, $($arg: $ty),*) $(-> $answer)? {
                self.called.insert(stringify!($name));
                self.memory.$name($($arg),*)
            }
        )* })*
    };
}

noted! {
    CoordinationBackend {
        acquire_and_restore_into_with_events<'s>(
            now: LogicalTime, tenant: TenantId, key: ShardKey, worker: WorkerId, scratch: &'s mut AcquireScratch,
            events: &mut dyn EventSink
        ) -> Result<AcquireResultView<'s>, AcquireError>;
        renew_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, events: &mut dyn EventSink
        ) -> Result<RenewResult, RenewError>;
        renew_many_with_events(
            now: LogicalTime, tenant: TenantId, leases: &[Lease], answers: &mut Vec<Result<RenewResult, RenewError>>,
            events: &mut dyn EventSink
        );
        checkpoint_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, cursor: CursorUpdate<'_>, op_id: OpId,
            events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<()>, CheckpointError>;
        complete_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, cursor: CursorUpdate<'_>, op_id: OpId,
            events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<()>, CompleteError>;
        park_shard_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, park: Park<'_>, op_id: OpId, events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<()>, ParkError>;
        split_replace_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, plan: &SplitReplacePlan, op_id: OpId,
            events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<Vec<ShardId>>, SplitReplaceError>;
        split_residual_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, plan: &SplitResidualPlan, op_id: OpId,
            events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<ShardId>, SplitResidualError>;
        release_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, cursor: Option<CursorUpdate<'_>>,
            reason: ReleaseReason<'_>, op_id: OpId, events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<()>, ReleaseError>;
        drain_with_events(
            now: LogicalTime, tenant: TenantId, held: &[HeldShard<'_>],
            answers: &mut Vec<Result<IdempotentOutcome<()>, ReleaseError>>, events: &mut dyn EventSink
        );
    }
    RunManagement {
        create_run_with_events(
            now: LogicalTime, tenant: TenantId, run: RunId, incarnation: RunIncarnation, config: RunConfig,
            events: &mut dyn EventSink
        ) -> Result<(), CreateRunError>;
        register_shards_with_events(
            now: LogicalTime, tenant: TenantId, run: RunId, shards: &[InitialShardInput<'_>], op_id: OpId,
            events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<u32>, RegisterShardsError>;
        settle_run_with_events(
            now: LogicalTime, tenant: TenantId, run: RunId, settlement: Settlement, op_id: OpId,
            events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<()>, RunTransitionError>;
        unpark_shard_with_events(
            now: LogicalTime, tenant: TenantId, key: ShardKey, expected: ShardEpoch, op_id: OpId,
            events: &mut dyn EventSink
        ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError>;
        order_with_events(
            now: LogicalTime, tenant: TenantId, key: ShardKey, epoch: ShardEpoch, order: OrderRequest,
            events: &mut dyn EventSink
        ) -> Result<(), OrderError>;
        retire_runs_with_events(
            now: LogicalTime, tenant: TenantId, settled_until: LogicalTime, limit: usize, events: &mut dyn EventSink
        ) -> Result<usize, GetRunError>;
        retire_run_with_events(
            now: LogicalTime, tenant: TenantId, run: RunId, incarnation: RunIncarnation, events: &mut dyn EventSink
        ) -> Result<bool, GetRunError>;
        get_run(tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError>;
        get_run_progress(now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError>;
        list_runs_into(
            tenant: TenantId, after: Option<RunId>, limit: usize, runs: &mut Vec<RunSummary>
        ) -> Result<(), GetRunError>;
        list_shards_into(
            now: LogicalTime, tenant: TenantId, run: RunId, filter: &ShardFilter, page: ShardPage,
            shards: &mut Vec<ShardSummary>
        ) -> Result<Option<ShardPage>, GetRunError>;
        get_shard(tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError>;
        collect_claim_candidates_into(
            now: LogicalTime, tenant: TenantId, run: RunId, worker: WorkerId, limit: usize,
            candidates: &mut Vec<ShardId>
        ) -> Result<(), GetRunError>;
        explain_claim(
            now: LogicalTime, tenant: TenantId, run: RunId, worker: WorkerId
        ) -> Result<ClaimExplanation, GetRunError>;
    }
    ShardClaiming {
        claim_next_available_with_events<'s>(
            now: LogicalTime, tenant: TenantId, run: RunId, worker: WorkerId, scratch: &'s mut AcquireScratch,
            events: &mut dyn EventSink
        ) -> Result<AcquireResultView<'s>, ClaimError>;
    }
}

/// A call alone shows what an operation is about; some of them end in a refusal here, where they come one after another.
#[test]
fn every_operation_of_the_traits_is_among_those_that_are_interleaved() {
    let memory = InMemoryCoordinator::new(CoordinatorRuntimeConfig::for_shards(200)).expect("valid");
    let mut side = Side::memory(Ready(Noted { memory, called: BTreeSet::new() }));
    let held = start("held").expect("it is there").calls();
    let leases = held.chain([Call::Acquire { worker: 1, shard: 3, at: crate::calls::NOW }]);
    leases.for_each(|call| drop(NeverWaits.block_on(side.play(call))));
    side.backend.0.called.clear();
    let calls = OPERATIONS.iter().flat_map(|(_, calls)| calls.iter().copied());
    calls.filter(|call| call.has_memory_form()).for_each(|call| drop(NeverWaits.block_on(side.play(call))));
    assert_eq!(side.backend.0.called, REQUIRED.iter().copied().collect());
}
