//! The same contract for backends that wait on I/O, and the ways between the two.
//!
//! Nothing is decided here. Each async trait lists the operations of its sync twin with the same arguments and answers, and
//! the adapters are generated from that one list: [`Ready`] offers a sync backend as an async one, [`Blocking`] offers
//! an async backend as a sync one, driven by an executor that the caller supplies; a [`Wrapper`] passes everything on to the
//! backend inside it. So a backend is written once, in whichever form suits its store. Futures are `Send`, to be spawned on
//! any executor.

use alloc::vec::Vec;
use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{
    FenceEpoch, LogicalTime, OpId, RunId, RunIncarnation, ShardEpoch, ShardId, ShardKey, TenantId, WorkerId,
};
use tessera_contracts::keyspace::Fraction;
use tessera_contracts::manifest::InitialShardInput;
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};

use super::run_ops::after_existing_run;
use super::{CoordinationBackend, HeldShard, RunManagement, ShardClaiming, Wrapper};
use crate::decide::order::OrderRequest;
use crate::decide::renew::RenewResult;
use crate::decide::settle_run::Settlement;
use crate::error::{
    AcquireError, CheckpointError, ClaimError, CompleteError, CreateRunError, GetRunError, GetShardError,
    IdempotentOutcome, InfraError, OrderError, ParkError, RegisterShardsError, ReleaseError, RenewError,
    RunTransitionError, SplitReplaceError, SplitResidualError, UnparkError,
};
use crate::events::{EventSink, NoEvents};
use crate::record::history::ReleaseReason;
use crate::record::lease::Lease;
use crate::record::park::Park;
use crate::record::shard_record::ShardRecord;
use crate::record::snapshot::{AcquireResultView, AcquireScratch};
use crate::run::config::RunConfig;
use crate::run::explain::ClaimExplanation;
use crate::run::progress::RunProgress;
use crate::run::record::RunRecord;
use crate::run::summary::{RunSummary, ShardFilter, ShardPage, ShardSummary};

/// A sync backend as an async one whose futures are ready at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ready<B>(pub B);

/// An async backend as a sync one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blocking<A, X> {
    /// The backend.
    pub backend: A,
    /// What runs its futures.
    pub executor: X,
}

/// Runs a future to its end on the calling thread.
pub trait BlockOn {
    /// Waits for `future`.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

/// For futures that never wait: those of [`Ready`], and of backends over a simulated store.
#[derive(Clone, Copy, Debug, Default)]
pub struct NeverWaits;

impl BlockOn for NeverWaits {
    /// # Panics
    ///
    /// If the future has to wait for something: there is nobody here to wake it.
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("this executor is for futures that never wait"),
        }
    }
}

/// Declares the async twin of a trait, and the adapters. An operation under `mutates` has a plain form and one that tells
/// an [`EventSink`]; one under `batches` has them too, and an answer for each of the things it is given; one under `reads`
/// has only itself. What is under `provided` is built from the others.
macro_rules! twins {
    (
        $(#[$trait_doc:meta])*
        $Async:ident of $Sync:ident;
        mutates { $(
            $(#[$doc:meta])*
            $plain:ident, $told:ident $(<$lifetime:lifetime>)? ($($arg:ident: $ty:ty),*) -> $answer:ty;
        )* }
        batches { $(
            $(#[$batch_doc:meta])*
            $batch:ident, $batch_told:ident(
                now: LogicalTime, tenant: TenantId, $each:ident: $each_ty:ty, answers: $answers:ty
            );
        )* }
        reads { $(
            $(#[$read_doc:meta])*
            $read:ident ($($read_arg:ident: $read_ty:ty),*) -> $read_answer:ty;
        )* }
        provided { $($provided:tt)* }
    ) => {
        $(#[$trait_doc])*
        pub trait $Async: Send {
            $(
                #[doc = concat!("[`Self::", stringify!($plain), "`], telling `events`.")]
                #[allow(clippy::too_many_arguments, reason = "the protocol's arguments, each with its own type")]
                fn $told $(<$lifetime>)? (&mut self, $($arg: $ty,)* events: &mut dyn EventSink)
                    -> impl Future<Output = $answer> + Send;

                $(#[$doc])*
                fn $plain $(<$lifetime>)? (&mut self, $($arg: $ty),*) -> impl Future<Output = $answer> + Send {
                    async move { self.$told($($arg,)* &mut NoEvents).await }
                }
            )*
            $(
                #[doc = concat!("[`Self::", stringify!($batch), "`], telling `events`.")]
                fn $batch_told(
                    &mut self, now: LogicalTime, tenant: TenantId, $each: $each_ty, answers: $answers,
                    events: &mut dyn EventSink,
                ) -> impl Future<Output = ()> + Send;

                $(#[$batch_doc])*
                fn $batch(&mut self, now: LogicalTime, tenant: TenantId, $each: $each_ty, answers: $answers)
                    -> impl Future<Output = ()> + Send {
                    async move { self.$batch_told(now, tenant, $each, answers, &mut NoEvents).await }
                }
            )*
            $(
                $(#[$read_doc])*
                fn $read(&mut self, $($read_arg: $read_ty),*) -> impl Future<Output = $read_answer> + Send;
            )*
            $($provided)*
        }

        impl<B: $Sync + Send> $Async for Ready<B> {
            $(
                async fn $told $(<$lifetime>)? (&mut self, $($arg: $ty,)* events: &mut dyn EventSink) -> $answer {
                    self.0.$told($($arg,)* events)
                }
            )*
            $(
                async fn $batch_told(
                    &mut self, now: LogicalTime, tenant: TenantId, $each: $each_ty, answers: $answers,
                    events: &mut dyn EventSink,
                ) {
                    self.0.$batch_told(now, tenant, $each, answers, events);
                }
            )*
            $(
                async fn $read(&mut self, $($read_arg: $read_ty),*) -> $read_answer {
                    self.0.$read($($read_arg),*)
                }
            )*
        }

        impl<A: $Async, X: BlockOn> $Sync for Blocking<A, X> {
            $(
                fn $told $(<$lifetime>)? (&mut self, $($arg: $ty,)* events: &mut dyn EventSink) -> $answer {
                    self.executor.block_on(self.backend.$told($($arg,)* events))
                }
            )*
            $(
                fn $batch_told(
                    &mut self, now: LogicalTime, tenant: TenantId, $each: $each_ty, answers: $answers,
                    events: &mut dyn EventSink,
                ) {
                    self.executor.block_on(self.backend.$batch_told(now, tenant, $each, answers, events));
                }
            )*
            $(
                fn $read(&mut self, $($read_arg: $read_ty),*) -> $read_answer {
                    self.executor.block_on(self.backend.$read($($read_arg),*))
                }
            )*
        }

        impl<W: Wrapper<Inner: $Sync>> $Sync for W {
            $(
                fn $told $(<$lifetime>)? (&mut self, $($arg: $ty,)* events: &mut dyn EventSink) -> $answer {
                    self.pass(events, |inner, events| inner.$told($($arg,)* events))
                }
            )*
            $(
                fn $batch_told(
                    &mut self, now: LogicalTime, tenant: TenantId, $each: $each_ty, answers: $answers,
                    events: &mut dyn EventSink,
                ) {
                    let passed = self.pass(events, |inner, events| {
                        inner.$batch_told(now, tenant, $each, answers, events);
                        Ok::<(), InfraError>(())
                    });
                    if let Err(error) = passed {
                        answers.clear();
                        answers.extend($each.iter().map(|_| Err(error.clone().into())));
                    }
                }
            )*
            $(
                fn $read(&mut self, $($read_arg: $read_ty),*) -> $read_answer {
                    self.pass(&mut NoEvents, |inner, _| inner.$read($($read_arg),*))
                }
            )*
        }
    };
}

twins! {
    /// [`CoordinationBackend`] for backends that wait on I/O.
    AsyncCoordinationBackend of CoordinationBackend;
    mutates {
        /// See [`CoordinationBackend::acquire_and_restore_into`].
        acquire_and_restore_into, acquire_and_restore_into_with_events<'s>(
            now: LogicalTime, tenant: TenantId, key: ShardKey, worker: WorkerId, scratch: &'s mut AcquireScratch
        ) -> Result<AcquireResultView<'s>, AcquireError>;
        /// See [`CoordinationBackend::renew`].
        renew, renew_with_events(now: LogicalTime, tenant: TenantId, lease: &Lease) -> Result<RenewResult, RenewError>;
        /// See [`CoordinationBackend::checkpoint`].
        checkpoint, checkpoint_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, cursor: CursorUpdate<'_>, op_id: OpId
        ) -> Result<IdempotentOutcome<()>, CheckpointError>;
        /// See [`CoordinationBackend::complete`].
        complete, complete_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, cursor: CursorUpdate<'_>, op_id: OpId
        ) -> Result<IdempotentOutcome<()>, CompleteError>;
        /// See [`CoordinationBackend::park_shard`].
        park_shard, park_shard_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, park: Park<'_>, op_id: OpId
        ) -> Result<IdempotentOutcome<()>, ParkError>;
        /// See [`CoordinationBackend::split_replace`].
        split_replace, split_replace_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, plan: &SplitReplacePlan, op_id: OpId
        ) -> Result<IdempotentOutcome<Vec<ShardId>>, SplitReplaceError>;
        /// See [`CoordinationBackend::split_residual`].
        split_residual, split_residual_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, plan: &SplitResidualPlan, op_id: OpId
        ) -> Result<IdempotentOutcome<ShardId>, SplitResidualError>;
        /// See [`CoordinationBackend::release`].
        release, release_with_events(
            now: LogicalTime, tenant: TenantId, lease: &Lease, cursor: Option<CursorUpdate<'_>>,
            reason: ReleaseReason<'_>, op_id: OpId
        ) -> Result<IdempotentOutcome<()>, ReleaseError>;
    }
    batches {
        /// See [`CoordinationBackend::renew_many`].
        renew_many, renew_many_with_events(
            now: LogicalTime, tenant: TenantId, leases: &[Lease], answers: &mut Vec<Result<RenewResult, RenewError>>
        );
        /// See [`CoordinationBackend::drain`].
        drain, drain_with_events(
            now: LogicalTime, tenant: TenantId, held: &[HeldShard<'_>],
            answers: &mut Vec<Result<IdempotentOutcome<()>, ReleaseError>>
        );
    }
    reads {}
    provided {}
}

twins! {
    /// [`RunManagement`] for backends that wait on I/O.
    AsyncRunManagement of RunManagement;
    mutates {
        /// See [`RunManagement::create_run`].
        create_run, create_run_with_events(
            now: LogicalTime, tenant: TenantId, run: RunId, incarnation: RunIncarnation, config: RunConfig
        ) -> Result<(), CreateRunError>;
        /// See [`RunManagement::register_shards`].
        register_shards, register_shards_with_events(
            now: LogicalTime, tenant: TenantId, run: RunId, shards: &[InitialShardInput<'_>], op_id: OpId
        ) -> Result<IdempotentOutcome<u32>, RegisterShardsError>;
        /// See [`RunManagement::complete_run`], [`RunManagement::fail_run`] and [`RunManagement::cancel_run`].
        settle_run, settle_run_with_events(
            now: LogicalTime, tenant: TenantId, run: RunId, settlement: Settlement, op_id: OpId
        ) -> Result<IdempotentOutcome<()>, RunTransitionError>;
        /// See [`RunManagement::unpark_shard`].
        unpark_shard, unpark_shard_with_events(
            now: LogicalTime, tenant: TenantId, key: ShardKey, expected: ShardEpoch, op_id: OpId
        ) -> Result<IdempotentOutcome<FenceEpoch>, UnparkError>;
        /// See [`RunManagement::request_yield`] and [`RunManagement::request_split`].
        order, order_with_events(
            now: LogicalTime, tenant: TenantId, key: ShardKey, epoch: ShardEpoch, order: OrderRequest
        ) -> Result<(), OrderError>;
        /// See [`RunManagement::retire_runs`].
        retire_runs, retire_runs_with_events(
            now: LogicalTime, tenant: TenantId, settled_until: LogicalTime, limit: usize
        ) -> Result<usize, GetRunError>;
        /// See [`RunManagement::retire_run`].
        retire_run, retire_run_with_events(
            now: LogicalTime, tenant: TenantId, run: RunId, incarnation: RunIncarnation
        ) -> Result<bool, GetRunError>;
    }
    batches {}
    reads {
        /// See [`RunManagement::get_run`].
        get_run(tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError>;
        /// See [`RunManagement::get_run_progress`].
        get_run_progress(now: LogicalTime, tenant: TenantId, run: RunId) -> Result<RunProgress, GetRunError>;
        /// See [`RunManagement::list_runs_into`].
        list_runs_into(tenant: TenantId, after: Option<RunId>, limit: usize, runs: &mut Vec<RunSummary>)
            -> Result<(), GetRunError>;
        /// See [`RunManagement::list_shards_into`].
        list_shards_into(
            now: LogicalTime, tenant: TenantId, run: RunId, filter: &ShardFilter, page: ShardPage,
            shards: &mut Vec<ShardSummary>
        ) -> Result<Option<ShardPage>, GetRunError>;
        /// See [`RunManagement::get_shard`].
        get_shard(tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError>;
        /// See [`RunManagement::collect_claim_candidates_into`].
        collect_claim_candidates_into(
            now: LogicalTime, tenant: TenantId, run: RunId, worker: WorkerId, limit: usize, candidates: &mut Vec<ShardId>
        ) -> Result<(), GetRunError>;
        /// See [`RunManagement::explain_claim`].
        explain_claim(now: LogicalTime, tenant: TenantId, run: RunId, worker: WorkerId)
            -> Result<ClaimExplanation, GetRunError>;
    }
    provided {
        /// See [`RunManagement::create_run_with_shards`].
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
        ) -> impl Future<Output = Result<IdempotentOutcome<u32>, RegisterShardsError>> + Send {
            async move {
                match self.create_run(now, tenant, run, incarnation, config).await {
                    Ok(()) => {}
                    Err(CreateRunError::AlreadyExists { run }) => {
                        after_existing_run(run, config, self.get_run(tenant, run).await)?;
                    }
                    Err(error) => return Err(error.into()),
                }
                self.register_shards(now, tenant, run, shards, op_id).await
            }
        }

        /// See [`RunManagement::complete_run`].
        fn complete_run(&mut self, now: LogicalTime, tenant: TenantId, run: RunId, op_id: OpId)
            -> impl Future<Output = Result<IdempotentOutcome<()>, RunTransitionError>> + Send {
            self.settle_run(now, tenant, run, Settlement::Complete, op_id)
        }

        /// See [`RunManagement::fail_run`].
        fn fail_run(&mut self, now: LogicalTime, tenant: TenantId, run: RunId, op_id: OpId)
            -> impl Future<Output = Result<IdempotentOutcome<()>, RunTransitionError>> + Send {
            self.settle_run(now, tenant, run, Settlement::Fail, op_id)
        }

        /// See [`RunManagement::cancel_run`].
        fn cancel_run(&mut self, now: LogicalTime, tenant: TenantId, run: RunId, op_id: OpId)
            -> impl Future<Output = Result<IdempotentOutcome<()>, RunTransitionError>> + Send {
            self.settle_run(now, tenant, run, Settlement::Cancel, op_id)
        }

        /// See [`RunManagement::request_yield`].
        fn request_yield(&mut self, now: LogicalTime, tenant: TenantId, key: ShardKey, epoch: ShardEpoch)
            -> impl Future<Output = Result<(), OrderError>> + Send {
            self.order(now, tenant, key, epoch, OrderRequest::Yield)
        }

        /// See [`RunManagement::request_split`].
        fn request_split(
            &mut self,
            now: LogicalTime,
            tenant: TenantId,
            key: ShardKey,
            epoch: ShardEpoch,
            fraction: Fraction,
        ) -> impl Future<Output = Result<(), OrderError>> + Send {
            self.order(now, tenant, key, epoch, OrderRequest::Split(fraction))
        }
    }
}

twins! {
    /// [`ShardClaiming`] for backends that wait on I/O.
    AsyncShardClaiming of ShardClaiming;
    mutates {
        /// See [`ShardClaiming::claim_next_available`].
        claim_next_available, claim_next_available_with_events<'s>(
            now: LogicalTime, tenant: TenantId, run: RunId, worker: WorkerId, scratch: &'s mut AcquireScratch
        ) -> Result<AcquireResultView<'s>, ClaimError>;
    }
    batches {}
    reads {}
    provided {}
}

/// [`CoordinationFacade`](super::CoordinationFacade) for backends that wait on I/O.
pub trait AsyncCoordinationFacade: AsyncCoordinationBackend + AsyncRunManagement + AsyncShardClaiming {}

impl<A: AsyncCoordinationBackend + AsyncRunManagement + AsyncShardClaiming> AsyncCoordinationFacade for A {}
