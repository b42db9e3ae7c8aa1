//! Claim: a worker asks for any shard of a run.
//!
//! A claim is a choice of candidates followed by an acquire, which is the atomic step and decides alone. What is decided
//! here is who may ask and in which order candidates are tried, so that a herd of workers does not run at one shard.

use tessera_contracts::ids::{LogicalTime, RunId, WorkerId};

use crate::error::{AccessRefused, AcquireError, ClaimError, RunNotFound};
use crate::run::status::{RunGate, RunStatus};

/// How many candidates one claim tries before it gives up: each was snatched by another or turned out to be used up.
pub const CLAIM_ATTEMPTS_MAX: usize = 16;

/// Whether the run gives out work at all.
pub fn check_run(run: RunId, gate: &RunGate) -> Result<(), ClaimError> {
    match gate.status {
        RunStatus::Active => Ok(()),
        status => Err(ClaimError::RunNotActive { run, status }),
    }
}

/// Whether a worker whose last successful claim was at `last` may claim again at `now`; an interval of 0 is no cooldown.
pub fn check_cooldown(last: Option<LogicalTime>, interval: u64, now: LogicalTime) -> Result<(), ClaimError> {
    match cooldown_until(last, interval, now) {
        Some(retry_after) => Err(ClaimError::Throttled { retry_after }),
        None => Ok(()),
    }
}

/// When the worker may claim again, if not now. Without a cooldown that is always now, also for a clock set back behind the
/// last claim.
pub fn cooldown_until(last: Option<LogicalTime>, interval: u64, now: LogicalTime) -> Option<LogicalTime> {
    last.map(|last| last.saturating_add(interval)).filter(|until| interval > 0 && now < *until)
}

/// The place in a list of `candidates` where this worker starts, so that workers start at different ones.
pub fn start_position(worker: WorkerId, candidates: usize) -> usize {
    if candidates == 0 { 0 } else { (worker.get() % candidates as u64) as usize }
}

/// What a failed acquire of a candidate means for the claim: try the next one, or stop.
pub fn after_failed_acquire(run: RunId, error: AcquireError) -> Result<(), ClaimError> {
    match error {
        AcquireError::AlreadyLeased(_)
        | AcquireError::Terminal { .. }
        | AcquireError::RetriesExhausted { .. }
        | AcquireError::ReportedUnreachable { .. }
        | AcquireError::HeldBack { .. }
        | AcquireError::Access(AccessRefused::ShardNotFound { .. }) => Ok(()),
        AcquireError::Access(AccessRefused::RunNotActive { run, status }) => {
            Err(ClaimError::RunNotActive { run, status })
        }
        // An acquire presents no lease, so neither can come from it.
        AcquireError::Access(AccessRefused::TenantMismatch { .. } | AccessRefused::OtherIncarnation { .. }) => {
            Err(RunNotFound { run }.into())
        }
        AcquireError::UnassignedWorker => Err(ClaimError::UnassignedWorker),
        AcquireError::BackendError(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use tessera_contracts::ids::{ShardId, ShardKey, TenantId};

    use super::*;
    use crate::error::{AlreadyLeased, InfraError};
    use crate::record::status::ShardStatus;

    #[test]
    fn a_cooldown_ends_at_its_last_tick_and_not_before() {
        let at = LogicalTime::new;
        assert_eq!(check_cooldown(None, 10, at(5)), Ok(()));
        assert_eq!(check_cooldown(Some(at(5)), 10, at(14)), Err(ClaimError::Throttled { retry_after: at(15) }));
        assert_eq!(check_cooldown(Some(at(5)), 10, at(15)), Ok(()));
        assert_eq!(check_cooldown(Some(at(5)), 0, at(5)), Ok(()));
        assert_eq!(check_cooldown(Some(at(5)), 0, at(4)), Ok(()));
    }

    #[test]
    fn workers_start_at_different_candidates() {
        assert_eq!(start_position(WorkerId::new(7), 0), 0);
        assert_eq!(start_position(WorkerId::new(7), 5), 2);
        assert_eq!(start_position(WorkerId::new(8), 5), 3);
    }

    #[test]
    fn a_candidate_that_is_gone_is_passed_over_and_what_stops_every_candidate_stops_the_claim() {
        let key = ShardKey::new(RunId::new(1), ShardId::new(2));
        let after = |error| after_failed_acquire(RunId::new(1), error);
        for gone in [
            AlreadyLeased::new(key, LogicalTime::new(9), WorkerId::new(3)).into(),
            AcquireError::Terminal { status: ShardStatus::Done },
            AcquireError::RetriesExhausted { key, acquisitions: 3 },
            AcquireError::ReportedUnreachable { key },
            AcquireError::HeldBack { key, until: LogicalTime::new(9) },
            AccessRefused::ShardNotFound { key }.into(),
        ] {
            assert_eq!(after(gone), Ok(()));
        }
        let (run, status) = (RunId::new(1), RunStatus::Cancelled);
        let settled = AccessRefused::RunNotActive { run, status };
        assert_eq!(after(settled.into()), Err(ClaimError::RunNotActive { run, status }));
        let foreign = AccessRefused::TenantMismatch { expected: TenantId::from_bytes([1; 32]) };
        assert_eq!(after(foreign.into()), Err(RunNotFound { run }.into()));
        assert_eq!(after(AcquireError::UnassignedWorker), Err(ClaimError::UnassignedWorker));
        let failed = InfraError::transient("acquire.txn", "timeout");
        assert_eq!(after(failed.clone().into()), Err(failed.into()));
    }
}
