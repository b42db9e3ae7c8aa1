//! A coordinator whose calls bear outages: what a submitter and an operator's commands use.
//!
//! Each call is tried again while its failure can pass. All of them may be repeated: reads change nothing, and what changes
//! something carries an operation id or (creating a run) is followed by a look at what is there.

use std::error::Error;

use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_coordination::RunManagement;
use tessera_coordination::decide::order::OrderRequest;
use tessera_coordination::decide::settle_run::Settlement;
use tessera_coordination::error::{
    CreateRunError, GetRunError, GetShardError, IdempotentOutcome, InfraError, OrderError, RegisterShardsError,
    RunTransitionError, UnparkError,
};
use tessera_coordination::events::EventSink;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::RunProgress;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};

use super::patience::{Patience, infra_of};

/// A backend that is asked again while it fails in a way that can pass.
#[derive(Debug)]
pub struct Patient<'p, B> {
    inner: B,
    patience: Patience<'p>,
}

impl<'p, B> Patient<'p, B> {
    /// Bears failures of `inner` as `patience` says.
    pub const fn new(inner: B, patience: Patience<'p>) -> Self {
        Self { inner, patience }
    }

    /// The backend itself, for operations of its own.
    pub const fn inner(&mut self) -> &mut B {
        &mut self.inner
    }

    /// Asks until there is an answer, the protocol refuses, the failure cannot pass, or patience ends.
    pub fn ask<T, E: Error + From<InfraError> + 'static>(
        &mut self,
        mut operation: impl FnMut(&mut B) -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let error = match operation(&mut self.inner) {
                Ok(answer) => {
                    self.patience.succeeded();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            match infra_of(&error).filter(|infra| infra.is_transient()) {
                Some(infra) => {
                    let waited = self.patience.failed(infra.message());
                    waited.map_err(|said| InfraError::transient(infra.operation(), said))?;
                }
                None => return Err(error),
            }
        }
    }
}

impl<B: RunManagement> RunManagement for Patient<'_, B> {
    fn create_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
        events: &mut dyn EventSink,
    ) -> Result<(), CreateRunError> {
        self.ask(|inner| inner.create_run_with_events(now, tenant, run, incarnation, config, events))
    }

    fn register_shards_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        shards: &[InitialShardInput<'_>],
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<u32>, RegisterShardsError> {
        self.ask(|inner| inner.register_shards_with_events(now, tenant, run, shards, op_id, events))
    }

    fn settle_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        settlement: Settlement,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, RunTransitionError> {
        self.ask(|inner| inner.settle_run_with_events(now, tenant, run, settlement, op_id, events))
    }

    fn unpark_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        expected: ShardEpoch,
        op_id: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError> {
        self.ask(|inner| inner.unpark_shard_with_events(now, tenant, key, expected, op_id, events))
    }

    fn order_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        epoch: ShardEpoch,
        order: OrderRequest,
        events: &mut dyn EventSink,
    ) -> Result<(), OrderError> {
        self.ask(|inner| inner.order_with_events(now, tenant, key, epoch, order, events))
    }

    fn retire_runs_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
        events: &mut dyn EventSink,
    ) -> Result<usize, GetRunError> {
        self.ask(|inner| inner.retire_runs_with_events(now, tenant, settled_until, limit, events))
    }

    fn retire_run_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        events: &mut dyn EventSink,
    ) -> Result<bool, GetRunError> {
        self.ask(|inner| inner.retire_run_with_events(now, tenant, run, incarnation, events))
    }

    fn get_run(&mut self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError> {
        self.ask(|inner| inner.get_run(tenant, run))
    }

    fn get_run_progress(&mut self, now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError> {
        self.ask(|inner| inner.get_run_progress(now, tenant, run))
    }

    fn list_runs_into(
        &mut self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunSummary>,
    ) -> Result<(), GetRunError> {
        self.ask(|inner| inner.list_runs_into(tenant, after, limit, runs))
    }

    fn list_shards_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        filter: &ShardFilter,
        page: ShardPage,
        shards: &mut Vec<ShardSummary>,
    ) -> Result<Option<ShardPage>, GetRunError> {
        self.ask(|inner| inner.list_shards_into(now, tenant, run, filter, page, shards))
    }

    fn get_shard(&mut self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        self.ask(|inner| inner.get_shard(tenant, key))
    }

    fn collect_claim_candidates_into(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        limit: usize,
        candidates: &mut Vec<ShardId>,
    ) -> Result<(), GetRunError> {
        self.ask(|inner| inner.collect_claim_candidates_into(now, tenant, run, worker, limit, candidates))
    }

    fn explain_claim(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError> {
        self.ask(|inner| inner.explain_claim(now, tenant, run, worker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use tessera_coordination::InMemoryCoordinator;
    use tessera_coordination::backend::Wrapper;

    use super::*;

    /// Answers with these failures before it does what it is asked.
    struct Failing {
        inner: InMemoryCoordinator,
        failures: Vec<InfraError>,
        asked: u32,
    }

    impl Wrapper for Failing {
        type Inner = InMemoryCoordinator;

        fn pass<T, E: From<InfraError>>(
            &mut self,
            events: &mut dyn EventSink,
            operation: impl FnOnce(&mut InMemoryCoordinator, &mut dyn EventSink) -> Result<T, E>,
        ) -> Result<T, E> {
            self.asked += 1;
            match self.failures.pop() {
                Some(failure) => Err(failure.into()),
                None => operation(&mut self.inner, events),
            }
        }
    }

    fn asked(failures: Vec<InfraError>, give_up_after: Duration) -> (u32, GetRunError) {
        let stop = AtomicBool::new(false);
        let failing = Failing { inner: InMemoryCoordinator::default(), failures, asked: 0 };
        let mut patient = Patient::new(failing, Patience::new(give_up_after, &stop, &|_| {}));
        let error = patient.get_run(TenantId::from_name("t"), RunId::new(1)).unwrap_err();
        (patient.inner().asked, error)
    }

    #[test]
    fn failures_that_can_pass_are_borne_and_the_answer_is_that_of_the_backend() {
        let away = InfraError::transient("get_run", "away");
        let (times, error) = asked(vec![away.clone(), away], Duration::from_secs(3_600));
        assert_eq!(times, 3);
        assert!(matches!(error, GetRunError::RunNotFound(_)), "{error}");
    }

    #[test]
    fn a_failure_that_cannot_pass_is_told_at_once() {
        for last in [InfraError::refused("get_run", "wrong password"), InfraError::corruption("get_run", "rubbish")] {
            let (times, error) = asked(vec![last.clone()], Duration::from_secs(3_600));
            assert_eq!((times, error), (1, GetRunError::BackendError(last)));
        }
    }

    #[test]
    fn patience_ends_with_the_cause() {
        let (times, error) = asked(vec![InfraError::transient("get_run", "away"); 9], Duration::ZERO);
        assert_eq!(times, 1);
        assert!(error.to_string().contains("away; gave up after 0 s"), "{error}");
    }
}
