//! The contract of every backend, for runs as a whole and for operators.
//!
//! Apart from [`CoordinationBackend`](super::CoordinationBackend) because nothing here needs a lease: these are actions of
//! the operator of a fleet, not of a worker on its shard.
//!
//! A run id may be used again once its run is retired. Each creation is told from the others by an *incarnation*, drawn at
//! random by the creator. Requests about a run name its id and mean the run that has it today; requests about one ownership
//! of a shard name a [`ShardEpoch`], which no other run of that id has.

use alloc::vec::Vec;

use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::manifest::InitialShardInput;

use crate::decide::order::OrderRequest;
use crate::decide::settle_run::Settlement;
use crate::error::{
    CreateRunError, GetRunError, GetShardError, IdempotentOutcome, OrderError, RegisterShardsError, RunTransitionError,
    UnparkError,
};
use crate::events::{EventSink, NoEvents};
use crate::record::shard_record::ShardRecord;
use crate::run::config::RunConfig;
use crate::run::explain::ClaimExplanation;
use crate::run::progress::RunProgress;
use crate::run::record::RunRecord;
use crate::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};

/// Operations on runs, and on shards from outside.
pub trait RunManagement {
    /// [`Self::create_run`], telling `events`.
    fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError>;

    /// [`Self::register_shards`], telling `events`.
    fn register_shards_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        shards: &[InitialShardInput<'_>],
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<u32>, RegisterShardsError>;

    /// [`Self::complete_run`], [`Self::fail_run`] or [`Self::cancel_run`], telling `events`.
    fn settle_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        settlement: Settlement,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, RunTransitionError>;

    /// [`Self::unpark_shard`], telling `events`.
    fn unpark_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        expected: ShardEpoch,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError>;

    /// [`Self::request_yield`] or [`Self::request_split`], telling `events`.
    fn order_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        epoch: ShardEpoch,
        order: OrderRequest,
        events: &mut dyn EventSink,
    ) -> Result<(), OrderError>;

    /// Forgets runs of the tenant that settled at or before `settled_until`, with all their shards: at most `limit`, oldest
    /// id first. Answers how many. What is forgotten frees its share of the shard limits.
    fn retire_runs_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
        events: &mut dyn EventSink,
    ) -> Result<usize, GetRunError>;

    /// [`Self::retire_run`], telling `events`.
    fn retire_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        events: &mut dyn EventSink,
    ) -> Result<bool, GetRunError>;

    /// The run's record.
    fn get_run(&mut self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError>;

    /// How far the run has come at `now`.
    fn get_run_progress(&mut self, now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError>;

    /// Runs of the tenant with ids above `after`, by id, at most `limit`, into `runs`, which is cleared first.
    fn list_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunSummary>,
    ) -> Result<(), GetRunError>;

    /// Shards of the run that `filter` admits, by id, one page into `shards`, which is cleared first. Answers where the
    /// next page begins, if there may be one; a page can be short, or empty, although more follow.
    fn list_shards_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        filter: &ShardFilter,
        page: ShardPage,
        shards: &mut Vec<ShardSummary>,
    ) -> Result<Option<ShardPage>, GetRunError>;

    /// One shard's whole record: who held it, when and why it moved, what is parked and with which words.
    fn get_shard(&mut self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError>;

    /// Shards of the run that `worker` could claim at `now`, at most `limit`, into `candidates`, which is cleared first.
    fn collect_claim_candidates_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        limit: usize,
        candidates: &mut Vec<ShardId>,
    ) -> Result<(), GetRunError>;

    /// What stands between `worker` and a shard of the run. Looks at every shard: for operators, not for polling.
    fn explain_claim(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError>;

    /// Creates a run without shards. Not idempotent: a taken id is refused. `incarnation` is a number that no other
    /// creation of the run has: draw it at random, never zero.
    fn create_run(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
    ) -> Result<(), CreateRunError> {
        self.create_run_with_events(now, tenant, run, incarnation, config, &mut NoEvents)
    }

    /// Gives a run its shards and makes it active; answers how many. All or none of them are seen.
    fn register_shards(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        shards: &[InitialShardInput<'_>],
        op_id: OpId,
    ) -> Result<IdempotentOutcome<u32>, RegisterShardsError> {
        self.register_shards_with_events(now, tenant, run, shards, op_id, &mut NoEvents)
    }

    /// Creates a run with its shards. Idempotent by `op_id`: if an earlier attempt got halfway, this finishes it. The run
    /// that is there keeps its incarnation, also if a retry drew another: [`Self::get_run`] tells which it is.
    #[expect(clippy::too_many_arguments, reason = "the protocol's arguments, each with its own type")]
    fn create_run_with_shards(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
        shards: &[InitialShardInput<'_>],
        op_id: OpId,
    ) -> Result<IdempotentOutcome<u32>, RegisterShardsError> {
        match self.create_run(now, tenant, run, incarnation, config) {
            Ok(()) => {}
            Err(CreateRunError::AlreadyExists { run }) => {
                after_existing_run(run, config, self.get_run(tenant, run))?;
            }
            Err(error) => return Err(error.into()),
        }
        self.register_shards(now, tenant, run, shards, op_id)
    }

    /// Settles an active run as done. Refused while a shard is open or parked.
    fn complete_run(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<()>, RunTransitionError> {
        self.settle_run_with_events(now, tenant, run, Settlement::Complete, op_id, &mut NoEvents)
    }

    /// Settles an active run as failed.
    fn fail_run(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<()>, RunTransitionError> {
        self.settle_run_with_events(now, tenant, run, Settlement::Fail, op_id, &mut NoEvents)
    }

    /// Settles a run that is not settled yet as cancelled. Workers learn of it at their next renewal.
    fn cancel_run(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<()>, RunTransitionError> {
        self.settle_run_with_events(now, tenant, run, Settlement::Cancel, op_id, &mut NoEvents)
    }

    /// Revives a parked shard that is still at `expected`; answers the new fence epoch.
    fn unpark_shard(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        expected: ShardEpoch,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError> {
        self.unpark_shard_with_events(now, tenant, key, expected, op_id, &mut NoEvents)
    }

    /// Asks the owner at `epoch` to give the shard back at its next safe point.
    fn request_yield(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        epoch: ShardEpoch,
    ) -> Result<(), OrderError> {
        self.order_with_events(now, tenant, key, epoch, OrderRequest::Yield, &mut NoEvents)
    }

    /// Asks the owner at `epoch` to keep `fraction` of what remains and to split off the rest.
    fn request_split(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        epoch: ShardEpoch,
        fraction: tessera_contracts::keyspace::Fraction,
    ) -> Result<(), OrderError> {
        self.order_with_events(now, tenant, key, epoch, OrderRequest::Split(fraction), &mut NoEvents)
    }

    /// Forgets this creation of the run, with all its shards, if it has settled; answers whether this call did. For a caller that
    /// has prepared for the end of certain runs, and must not have another one forgotten that settled meanwhile.
    fn retire_run(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
    ) -> Result<bool, GetRunError> {
        self.retire_run_with_events(now, tenant, run, incarnation, &mut NoEvents)
    }

    /// [`Self::retire_runs_with_events`] with nobody listening.
    fn retire_runs(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
    ) -> Result<usize, GetRunError> {
        self.retire_runs_with_events(now, tenant, settled_until, limit, &mut NoEvents)
    }
}

/// Whether a run that was found to exist is the one that was to be created.
pub(super) fn after_existing_run(
    run: RunId,
    config: RunConfig,
    found: Result<RunRecord, GetRunError>,
) -> Result<(), RegisterShardsError> {
    match found {
        Ok(record) if record.config == config => Ok(()),
        Ok(_) => Err(RegisterShardsError::ConfigMismatch { run }),
        Err(GetRunError::RunNotFound(missing)) => Err(missing.into()),
        Err(GetRunError::BackendError(error)) => Err(error.into()),
    }
}
