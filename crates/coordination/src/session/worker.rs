//! A worker's session, on a sync and on an async backend: written once, with or without waiting.

use alloc::vec::Vec;
use core::fmt;

use tessera_contracts::ids::{LogicalTime, OpId, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_contracts::{CursorUpdate, ShardSpecRef};

use super::failure::SessionFailure;
use super::state::SessionState;
use crate::backend::{AsyncCoordinationBackend, AsyncShardClaiming, CoordinationBackend, ShardClaiming};
use crate::decide::renew::RenewResult;
use crate::error::{
    AcquireError, CheckpointError, ClaimError, CompleteError, IdempotentOutcome, ParkError, ReleaseError, RenewError,
    SplitReplaceError, SplitResidualError,
};
use crate::record::history::ReleaseReason;
use crate::record::lease::Lease;
use crate::record::orders::Orders;
use crate::record::park::Park;
use crate::record::snapshot::{AcquireResultView, AcquireScratch, CapacityHint, ShardSnapshot};

/// Declares a session. `waiting` says what makes a function of it one that waits, and a call one that is waited for.
macro_rules! session {
    (
        $(#[$doc:meta])*
        $Session:ident on $Backend:ident and $Claiming:ident, waiting [$($async:ident)?] [$($wait:tt)*]
    ) => {
        $(#[$doc])*
        pub struct $Session<'b, B> {
            backend: &'b mut B,
            state: SessionState,
        }

        impl<'b, B> $Session<'b, B> {
            /// A session on a shard that was acquired before.
            pub fn from_acquire_result(backend: &'b mut B, acquired: &AcquireResultView<'_>) -> Self {
                Self { backend, state: SessionState::begin(acquired) }
            }

            /// The backend, for what is not about this shard.
            pub const fn backend(&self) -> &B {
                self.backend
            }

            /// What the session knows.
            pub const fn state(&self) -> &SessionState {
                &self.state
            }

            /// The lease, with the deadline of the last renewal.
            pub const fn lease(&self) -> &Lease {
                self.state.lease()
            }

            /// The shard as it was when it was acquired. Checkpoints leave it; a residual split narrows its range and adds
            /// the new child.
            pub const fn initial_snapshot(&self) -> &ShardSnapshot {
                self.state.snapshot()
            }

            /// Range and metadata; follows residual splits.
            pub fn spec(&self) -> ShardSpecRef<'_> {
                self.state.spec()
            }

            /// Progress at acquisition; does not follow checkpoints.
            pub fn cursor(&self) -> CursorUpdate<'_> {
                self.state.cursor()
            }

            /// Whose shard it is.
            pub const fn tenant(&self) -> TenantId {
                self.state.tenant()
            }

            /// Who holds it.
            pub const fn worker(&self) -> WorkerId {
                self.state.worker()
            }

            /// Which shard it is.
            pub const fn shard_key(&self) -> ShardKey {
                self.state.shard_key()
            }

            /// How much of the run was waiting at the last acquire or renewal.
            pub const fn capacity(&self) -> CapacityHint {
                self.state.capacity()
            }

            /// What the last renewal asked for and is not answered yet.
            pub const fn orders(&self) -> &Orders {
                self.state.orders()
            }
        }

        impl<B> fmt::Debug for $Session<'_, B> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($Session)).field("state", &self.state).finish_non_exhaustive()
            }
        }

        impl<'b, B: $Claiming> $Session<'b, B> {
            /// Claims whichever shard of the run can be had.
            ///
            /// Makes room for the largest shard first; a worker that claims often keeps an [`AcquireScratch`] and uses
            /// [`Self::from_acquire_result`].
            pub $($async)? fn claim(
                backend: &'b mut B,
                now: LogicalTime,
                tenant: TenantId,
                run: RunId,
                worker: WorkerId,
            ) -> Result<Self, ClaimError> {
                let mut scratch = AcquireScratch::new();
                let acquired = backend.claim_next_available(now, tenant, run, worker, &mut scratch)$($wait)*?;
                Ok(Self::from_acquire_result(backend, &acquired))
            }
        }

        impl<'b, B: $Backend> $Session<'b, B> {
            /// Acquires a shard by name. Makes room for the largest shard first, see [`Self::claim`].
            pub $($async)? fn new(
                backend: &'b mut B,
                now: LogicalTime,
                tenant: TenantId,
                key: ShardKey,
                worker: WorkerId,
            ) -> Result<Self, AcquireError> {
                let mut scratch = AcquireScratch::new();
                let acquired = backend.acquire_and_restore_into(now, tenant, key, worker, &mut scratch)$($wait)*?;
                Ok(Self::from_acquire_result(backend, &acquired))
            }

            /// Extends the lease and hears what is asked.
            pub $($async)? fn renew(&mut self, now: LogicalTime) -> Result<RenewResult, RenewError> {
                let answer = self.backend.renew(now, self.state.tenant(), self.state.lease())$($wait)*?;
                self.state.renewed(&answer);
                Ok(answer)
            }

            /// Records progress.
            pub $($async)? fn checkpoint(
                &mut self,
                now: LogicalTime,
                cursor: CursorUpdate<'_>,
                op_id: OpId,
            ) -> Result<IdempotentOutcome<()>, CheckpointError> {
                self.backend.checkpoint(now, self.state.tenant(), self.state.lease(), cursor, op_id)$($wait)*
            }

            /// Splits off the rest and goes on with what is kept.
            pub $($async)? fn split_residual(
                &mut self,
                now: LogicalTime,
                plan: &SplitResidualPlan,
                op_id: OpId,
            ) -> Result<IdempotentOutcome<ShardId>, SplitResidualError> {
                let outcome =
                    self.backend.split_residual(now, self.state.tenant(), self.state.lease(), plan, op_id)$($wait)*?;
                self.state.narrowed(plan, *outcome.get());
                Ok(outcome)
            }

            /// Settles the shard as done.
            pub $($async)? fn complete(
                self,
                now: LogicalTime,
                cursor: CursorUpdate<'_>,
                op_id: OpId,
            ) -> Result<IdempotentOutcome<()>, SessionFailure<Self, CompleteError>> {
                let done = self.backend.complete(now, self.state.tenant(), self.state.lease(), cursor, op_id)$($wait)*;
                done.map_err(|error| SessionFailure::sort(self, error))
            }

            /// Halts the shard.
            pub $($async)? fn park<'a>(
                self,
                now: LogicalTime,
                park: impl Into<Park<'a>>,
                op_id: OpId,
            ) -> Result<IdempotentOutcome<()>, SessionFailure<Self, ParkError>> {
                let done =
                    self.backend.park_shard(now, self.state.tenant(), self.state.lease(), park.into(), op_id)$($wait)*;
                done.map_err(|error| SessionFailure::sort(self, error))
            }

            /// Replaces the shard by children.
            pub $($async)? fn split_replace(
                self,
                now: LogicalTime,
                plan: &SplitReplacePlan,
                op_id: OpId,
            ) -> Result<IdempotentOutcome<Vec<ShardId>>, SessionFailure<Self, SplitReplaceError>> {
                let done =
                    self.backend.split_replace(now, self.state.tenant(), self.state.lease(), plan, op_id)$($wait)*;
                done.map_err(|error| SessionFailure::sort(self, error))
            }

            /// Gives the shard back, with progress if there is any since the last checkpoint.
            pub $($async)? fn release(
                self,
                now: LogicalTime,
                cursor: Option<CursorUpdate<'_>>,
                reason: ReleaseReason<'_>,
                op_id: OpId,
            ) -> Result<IdempotentOutcome<()>, SessionFailure<Self, ReleaseError>> {
                let done =
                    self.backend.release(now, self.state.tenant(), self.state.lease(), cursor, reason, op_id)$($wait)*;
                done.map_err(|error| SessionFailure::sort(self, error))
            }

            /// Gives the shard back before a planned stop.
            pub $($async)? fn drain(
                self,
                now: LogicalTime,
                cursor: Option<CursorUpdate<'_>>,
                op_id: OpId,
            ) -> Result<IdempotentOutcome<()>, SessionFailure<Self, ReleaseError>> {
                self.release(now, cursor, ReleaseReason::Drained, op_id)$($wait)*
            }
        }
    };
}

session! {
    /// One worker's hold on one shard. It borrows the backend, so there is one session per reference to it.
    ///
    /// A second session while the first is in use does not compile, and neither does a session that is used after a terminal
    /// call took it:
    ///
    /// ```
    /// # use tessera_contracts::*;
    /// # use tessera_coordination::{InMemoryCoordinator, WorkerSession};
    /// # fn one_after_the_other(memory: &mut InMemoryCoordinator, now: LogicalTime, tenant: TenantId, key: ShardKey) {
    /// let first = WorkerSession::new(memory, now, tenant, key, WorkerId::new(1)).unwrap();
    /// first.complete(now, CursorUpdate::initial(), OpId::new(1)).unwrap();
    /// let second = WorkerSession::new(memory, now, tenant, key, WorkerId::new(1)).unwrap();
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0499
    /// # use tessera_contracts::*;
    /// # use tessera_coordination::{InMemoryCoordinator, WorkerSession};
    /// # fn both_at_once(memory: &mut InMemoryCoordinator, now: LogicalTime, tenant: TenantId, key: ShardKey) {
    /// let first = WorkerSession::new(memory, now, tenant, key, WorkerId::new(1)).unwrap();
    /// let second = WorkerSession::new(memory, now, tenant, key, WorkerId::new(1)).unwrap();
    /// first.complete(now, CursorUpdate::initial(), OpId::new(1)).unwrap();
    /// # }
    /// ```
    ///
    /// ```compile_fail,E0382
    /// # use tessera_contracts::*;
    /// # use tessera_coordination::{InMemoryCoordinator, WorkerSession};
    /// # fn after_the_end(memory: &mut InMemoryCoordinator, now: LogicalTime, tenant: TenantId, key: ShardKey) {
    /// let mut first = WorkerSession::new(memory, now, tenant, key, WorkerId::new(1)).unwrap();
    /// first.complete(now, CursorUpdate::initial(), OpId::new(1)).unwrap();
    /// first.renew(now).unwrap();
    /// # }
    /// ```
    WorkerSession on CoordinationBackend and ShardClaiming, waiting [] []
}

session! {
    /// A [`WorkerSession`] on a backend that waits on I/O.
    AsyncWorkerSession on AsyncCoordinationBackend and AsyncShardClaiming, waiting [async] [.await]
}
