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
        | AcquireError::Access(AccessRefused::ShardNotFound { .. }) => Ok(()),
        AcquireError::Access(AccessRefused::RunNotActive { run, status }) => {
            Err(ClaimError::RunNotActive { run, status })
        }
        AcquireError::Access(AccessRefused::TenantMismatch { .. }) => Err(RunNotFound { run }.into()),
        AcquireError::UnassignedWorker => Err(ClaimError::UnassignedWorker),
        AcquireError::BackendError(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
