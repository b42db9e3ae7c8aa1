//! The calls of a sweep, made on any coordinator.

use tessera_contracts::keyspace::Fraction;
use tessera_contracts::{CursorUpdate, FenceEpoch, LogicalTime, RunId, ShardKey, TenantId, WorkerId};
use tessera_coordination::error::{ClaimError, GetRunError, OperationError};
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::lease::Lease;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::unreachable::Unreachable;
use tessera_coordination::run::summary::{ShardFilter, ShardPage};
use tessera_coordination::session::SessionState;
use tessera_coordination::{AcquireScratch, CoordinationFacade};

use super::driver::Calls;
use crate::sweep::{Answer, Call, CallFailure, Granted, HandBack, Held, WorkerConfig};

/// Shards looked at to find one to share.
const ASK_AMONG: usize = 100;

/// One worker's calls to a coordinator.
pub struct BackendCalls<'b, B> {
    backend: &'b mut B,
    tenant: TenantId,
    run: RunId,
    worker: WorkerId,
    scratch: &'b mut AcquireScratch,
}

impl<'b, B: CoordinationFacade> BackendCalls<'b, B> {
    /// Calls to `backend` by the worker that was told `config`; `scratch` is where grants are copied to.
    pub fn new(backend: &'b mut B, config: &WorkerConfig, scratch: &'b mut AcquireScratch) -> Self {
        let WorkerConfig { tenant, run, worker, .. } = *config;
        Self { backend, tenant, run, worker, scratch }
    }

    fn claim(&mut self, now: LogicalTime) -> Answer {
        let claimed = self.backend.claim_next_available(now, self.tenant, self.run, self.worker, self.scratch);
        match claimed {
            Ok(acquired) => {
                let session = SessionState::begin(&acquired);
                let has_stalled = has_stalled(self.backend, self.tenant, session.lease());
                Answer::Granted(Box::new(Granted { session, has_stalled }))
            }
            Err(ClaimError::NoneAvailable { .. } | ClaimError::Throttled { .. }) => Answer::NothingToClaim,
            Err(ClaimError::RunNotActive { .. } | ClaimError::RunNotFound(_)) => Answer::RunSettled,
            Err(error) => failed(&error, error.is_transient()),
        }
    }

    fn count_open(&mut self, now: LogicalTime) -> Answer {
        match self.backend.get_run_progress(now, self.tenant, self.run) {
            Ok(progress) => Answer::Open(progress.counts.active.into()),
            Err(error) => run_failed(&error),
        }
    }

    fn list_held(&mut self, now: LogicalTime) -> Answer {
        let (mut shards, page) = (Vec::new(), ShardPage::first(ASK_AMONG));
        let filter = ShardFilter::active();
        if let Err(error) = self.backend.list_shards_into(now, self.tenant, self.run, &filter, page, &mut shards) {
            return run_failed(&error);
        }
        // An idle worker holds nothing: what is held, another worker holds, be it a thread of the same process.
        let held = shards.iter().filter(|shard| shard.lease.is_some_and(|lease| lease.deadline > now));
        Answer::Held(held.map(|shard| Held { shard: shard.shard, epoch: shard.epoch() }).collect())
    }

    fn about(&mut self, now: LogicalTime, call: &Call, held: &SessionState) -> Answer {
        let (tenant, lease) = (held.tenant(), held.lease());
        match call {
            Call::Renew => answer(self.backend.renew(now, tenant, lease), Answer::Renewed),
            Call::Checkpoint { cursor, op_id } => {
                done(self.backend.checkpoint(now, tenant, lease, cursor_at(cursor), *op_id))
            }
            Call::Complete { cursor, op_id } => {
                done(self.backend.complete(now, tenant, lease, cursor_at(cursor), *op_id))
            }
            Call::Release { reason, op_id } => {
                let reason = match reason {
                    HandBack::Foreign => ReleaseReason::Released,
                    HandBack::Stopping => ReleaseReason::Drained,
                    HandBack::Asked | HandBack::GivingWay => ReleaseReason::Yielded,
                    HandBack::Unreachable(detail) => ReleaseReason::Unreachable(Unreachable::because(detail)),
                };
                done(self.backend.release(now, tenant, lease, None, reason, *op_id))
            }
            Call::Park { reason, detail, op_id } => {
                let park = Park::because(*reason).with_detail(detail);
                done(self.backend.park_shard(now, tenant, lease, park, *op_id))
            }
            Call::SplitResidual { plan, op_id } => {
                let split = self.backend.split_residual(now, tenant, lease, plan, *op_id);
                answer(split, |outcome| Answer::Split(outcome.into_inner()))
            }
            Call::SplitReplace { plan, op_id } => done(self.backend.split_replace(now, tenant, lease, plan, *op_id)),
            Call::Claim | Call::CountOpen | Call::ListHeld | Call::RequestSplit { .. } => {
                unreachable!("{call:?} is about no shard that is held")
            }
        }
    }
}

impl<B: CoordinationFacade> Calls for BackendCalls<'_, B> {
    fn call(&mut self, now: LogicalTime, call: &Call, held: Option<&SessionState>) -> Answer {
        match (call, held) {
            (Call::Claim, _) => self.claim(now),
            (Call::CountOpen, _) => self.count_open(now),
            (Call::ListHeld, _) => self.list_held(now),
            (Call::RequestSplit { shard, epoch }, _) => {
                let key = ShardKey::new(self.run, *shard);
                // Refused if it has just changed hands or ended: then there is another one to ask next time.
                let _ = self.backend.request_split(now, self.tenant, key, *epoch, Fraction::HALF);
                Answer::Done
            }
            (call, Some(held)) => self.about(now, call, held),
            (call, None) => unreachable!("{call:?} without a shard"),
        }
    }
}

impl<B> std::fmt::Debug for BackendCalls<'_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendCalls").field("run", &self.run).field("worker", &self.worker).finish_non_exhaustive()
    }
}

fn cursor_at(key: &Option<Vec<u8>>) -> CursorUpdate<'_> {
    CursorUpdate::new(key.as_deref(), None).expect("a checked item's key is a cursor")
}

fn done<T, E: OperationError>(outcome: Result<T, E>) -> Answer {
    answer(outcome, |_| Answer::Done)
}

fn answer<T, E: OperationError>(outcome: Result<T, E>, good: impl FnOnce(T) -> Answer) -> Answer {
    match outcome {
        Ok(outcome) => good(outcome),
        Err(error) if error.ends_session() => Answer::Lost,
        Err(error) => failed(&error, error.is_transient()),
    }
}

fn run_failed(error: &GetRunError) -> Answer {
    match error {
        GetRunError::RunNotFound(_) => Answer::RunSettled,
        GetRunError::BackendError(infra) => failed(error, infra.is_transient()),
    }
}

fn failed(error: &dyn std::fmt::Display, is_transient: bool) -> Answer {
    Answer::Failed(CallFailure { message: error.to_string(), is_transient })
}

/// Whether the shard of this lease was acquired before without progress.
fn has_stalled<B: CoordinationFacade>(backend: &mut B, tenant: TenantId, lease: &Lease) -> bool {
    // The first owner of a shard has no predecessor: most shards are asked about no further.
    if FenceEpoch::INITIAL.next() == Some(lease.fence()) {
        return false;
    }
    let record = backend.get_shard(tenant, ShardKey::new(lease.key().run, lease.shard()));
    // The acquisition that was just granted counts too. What cannot be known is taken for the worse.
    record.map_or(true, |record| record.state.head.stalled_acquisitions > 1)
}
