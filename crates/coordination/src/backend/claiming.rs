//! Claiming: any shard of a run will do.

use alloc::vec::Vec;

use tessera_contracts::ids::{LogicalTime, RunId, ShardId, ShardKey, TenantId, WorkerId};

use super::run_ops::RunManagement;
use super::shard_ops::CoordinationBackend;
use crate::decide::claim::{CLAIM_ATTEMPTS_MAX, after_failed_acquire, start_position};
use crate::error::{ClaimError, GetRunError};
use crate::events::{EventSink, NoEvents};
use crate::record::snapshot::{AcquireResultView, AcquireScratch};

/// Gives out whichever shard of a run can be had.
pub trait ShardClaiming {
    /// [`Self::claim_next_available`], telling `events`.
    fn claim_next_available_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, ClaimError>;

    /// Grants the worker a shard of the run that can be claimed at `now`, and copies where to resume into `scratch`.
    fn claim_next_available<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
    ) -> Result<AcquireResultView<'s>, ClaimError> {
        self.claim_next_available_with_events(now, tenant, run, worker, scratch, &mut NoEvents)
    }
}

/// Everything a worker and an operator need from one backend.
pub trait CoordinationFacade: CoordinationBackend + RunManagement + ShardClaiming {}

impl<B: CoordinationBackend + RunManagement + ShardClaiming> CoordinationFacade for B {}

/// A claim in two steps, for backends without an index of their own: list candidates, then acquire one after the other,
/// beginning at a place that differs from worker to worker. Another may take a candidate in between; acquire notices.
/// The caller has checked the run's status and the cooldown.
#[expect(clippy::too_many_arguments, reason = "the protocol's arguments, each with its own type")]
pub fn claim_from_candidates<'s, B: CoordinationBackend + RunManagement>(
    backend: &mut B,
    now: LogicalTime,
    tenant: TenantId,
    run: RunId,
    worker: WorkerId,
    scratch: &'s mut AcquireScratch,
    candidates: &mut Vec<ShardId>,
    events: &mut dyn EventSink,
) -> Result<AcquireResultView<'s>, ClaimError> {
    let listed = backend.collect_claim_candidates_into(now, tenant, run, worker, CLAIM_ATTEMPTS_MAX, candidates);
    listed.map_err(|error| match error {
        GetRunError::RunNotFound(missing) => ClaimError::RunNotFound(missing),
        GetRunError::BackendError(error) => ClaimError::BackendError(error),
    })?;
    let start = start_position(worker, candidates.len());
    let mut earliest_deadline: Option<LogicalTime> = None;
    for step in 0..candidates.len() {
        let key = ShardKey::new(run, candidates[(start + step) % candidates.len()]);
        match backend.acquire_and_restore_into_with_events(now, tenant, key, worker, scratch, events) {
            Ok(AcquireResultView { lease, capacity, .. }) => return Ok(scratch.granted(lease, capacity)),
            Err(error) => {
                if let crate::error::AcquireError::AlreadyLeased(held) = &error {
                    earliest_deadline = Some(earliest_deadline.map_or(held.until, |soonest| soonest.min(held.until)));
                }
                after_failed_acquire(run, error)?;
            }
        }
    }
    Err(ClaimError::NoneAvailable { earliest_deadline })
}

#[cfg(test)]
mod tests {
    use tessera_contracts::ids::{OpId, RunIncarnation};
    use tessera_contracts::manifest::InitialShardInput;

    use super::*;
    use crate::events::{EventCollector, EventKind};
    use crate::memory::InMemoryCoordinator;
    use crate::run::config::RunConfig;

    const TENANT: TenantId = TenantId::from_bytes([4; 32]);
    const RUN: RunId = RunId::new(1);
    const INCARNATION: RunIncarnation = RunIncarnation::new(1);

    /// Five shards whose one try was spent at time 1, so that a claim from time 11 on finds it used up.
    fn used_up() -> InMemoryCoordinator {
        let mut memory = InMemoryCoordinator::default();
        let edges = [[0], [1], [2], [3], [4], [5]];
        let shards = [1, 2, 3, 4, 5]
            .map(|id| InitialShardInput::new(ShardId::new(id), &edges[id as usize - 1], &edges[id as usize]));
        let config = RunConfig { lease_duration: Some(10), max_shard_retries: 1, ..RunConfig::default() };
        memory
            .create_run_with_shards(LogicalTime::new(1), TENANT, RUN, INCARNATION, config, &shards, OpId::new(1))
            .unwrap();
        let scratch = &mut AcquireScratch::new();
        (0..5).for_each(|_| {
            memory.claim_next_available(LogicalTime::new(1), TENANT, RUN, WorkerId::new(9), scratch).unwrap();
        });
        memory
    }

    #[test]
    fn a_claim_tries_every_candidate_once_from_the_workers_own_place_on() {
        for worker in [5, 7, 9] {
            let (mut memory, mut tried) = (used_up(), EventCollector::new());
            let (mut listed, mut again) = (Vec::new(), Vec::new());
            let now = LogicalTime::new(11);
            memory.collect_claim_candidates_into(now, TENANT, RUN, WorkerId::new(worker), 100, &mut listed).unwrap();
            let scratch = &mut AcquireScratch::new();
            let worker_id = WorkerId::new(worker);
            let claimed =
                claim_from_candidates(&mut memory, now, TENANT, RUN, worker_id, scratch, &mut again, &mut tried);
            assert_eq!(claimed.map(|_| ()), Err(ClaimError::NoneAvailable { earliest_deadline: None }));
            let tried: Vec<ShardId> = tried
                .iter()
                .map(|event| match event.kind {
                    EventKind::ShardParked { shard, .. } => shard,
                    ref other => panic!("a used-up shard is parked and nothing else: {other:?}"),
                })
                .collect();
            listed.rotate_left(worker as usize % 5);
            assert_eq!((listed.len(), tried), (5, listed));
        }
    }
}
