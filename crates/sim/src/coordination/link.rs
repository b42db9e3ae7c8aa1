//! A backend as a session sees it over the simulated network: every call is judged on the [`Stage`], may be lost on the way
//! there or back, and may arrive again later.

use std::cell::RefCell;
use std::rc::Rc;

use tessera_contracts::CursorUpdate;
use tessera_contracts::ids::{LogicalTime, OpId, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_contracts::split::{SplitReplacePlan, SplitResidualPlan};
use tessera_coordination::decide::renew::RenewResult;
use tessera_coordination::error::{
    AcquireError, CheckpointError, ClaimError, CompleteError, IdempotentOutcome, InfraError, ParkError, ReleaseError,
    RenewError, SplitReplaceError, SplitResidualError,
};
use tessera_coordination::events::EventSink;
use tessera_coordination::record::history::ReleaseReason;
use tessera_coordination::record::park::Park;
use tessera_coordination::record::snapshot::{AcquireResultView, AcquireScratch};
use tessera_coordination::{CoordinationBackend, Lease, ShardClaiming};

use super::call::{Answer, Backend, Call, Caller, Request, answered, granted, key_number, plain};
use super::refusal::refused;
use super::sessions::Air;
use super::stage::Stage;

/// See the module.
#[derive(Debug)]
pub(super) struct Link<B> {
    pub(super) stage: Rc<RefCell<Stage<B>>>,
    pub(super) air: Rc<RefCell<Air>>,
    pub(super) worker: usize,
}

impl<B: Backend> Link<B> {
    fn ask<T, E: From<InfraError>>(
        &self,
        at: LogicalTime,
        request: Request,
        ask: impl FnOnce(&mut B) -> (Result<T, E>, Answer),
    ) -> Result<T, E> {
        let lost = || Err(InfraError::transient("sim.link", "no answer").into());
        let call = Call { at, caller: Caller::Worker(self.worker), request };
        let is_calm = {
            let mut air = self.air.borrow_mut();
            if air.happens(|rates| rates.lose_request) || air.happens(|rates| rates.fail_before) {
                return lost();
            }
            if air.happens(|rates| rates.duplicate) {
                air.late.push(call.clone());
            }
            air.is_calm
        };
        let answer = self.stage.borrow_mut().perform_as(&call, !is_calm, ask);
        let mut air = self.air.borrow_mut();
        match answer {
            Err(violation) => {
                air.broken = Some(violation);
                lost()
            }
            Ok(_) if air.happens(|rates| rates.lose_reply) || air.happens(|rates| rates.fail_after) => lost(),
            Ok(answer) => answer,
        }
    }
}

fn last(cursor: CursorUpdate<'_>) -> Option<u16> {
    cursor.last_key().map(key_number)
}

impl<B: Backend> CoordinationBackend for Link<B> {
    fn acquire_and_restore_into_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, AcquireError> {
        self.ask(now, Request::Acquire { key }, |backend| {
            let view = backend.acquire_and_restore_into_with_events(now, tenant, key, worker, scratch, events);
            let answer = view.as_ref().map_or_else(|error| refused(error.clone()), granted);
            (view, answer)
        })
    }

    fn renew_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        events: &mut dyn EventSink,
    ) -> Result<RenewResult, RenewError> {
        self.ask(now, Request::Renew { lease: *lease }, |backend| {
            let renewed = backend.renew_with_events(now, tenant, lease, events);
            let answer = renewed.clone().map_or_else(refused, Answer::Renewed);
            (renewed, answer)
        })
    }

    fn checkpoint_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, CheckpointError> {
        self.ask(now, Request::Checkpoint { lease: *lease, last: last(cursor), op }, |backend| {
            let done = backend.checkpoint_with_events(now, tenant, lease, cursor, op, events);
            (done.clone(), plain(done))
        })
    }

    fn complete_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: CursorUpdate<'_>,
        op: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, CompleteError> {
        self.ask(now, Request::Complete { lease: *lease, last: last(cursor), op }, |backend| {
            let done = backend.complete_with_events(now, tenant, lease, cursor, op, events);
            (done.clone(), plain(done))
        })
    }

    fn park_shard_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        park: Park<'_>,
        op: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ParkError> {
        self.ask(now, Request::Park { lease: *lease, reason: park.reason, op }, |backend| {
            let done = backend.park_shard_with_events(now, tenant, lease, park, op, events);
            (done.clone(), plain(done))
        })
    }

    fn split_replace_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitReplacePlan,
        op: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<Vec<ShardId>>, SplitReplaceError> {
        self.ask(now, Request::SplitReplace { lease: *lease, plan: plan.clone(), op }, |backend| {
            let done = backend.split_replace_with_events(now, tenant, lease, plan, op, events);
            (done.clone(), answered(done, |children| children))
        })
    }

    fn split_residual_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        plan: &SplitResidualPlan,
        op: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<ShardId>, SplitResidualError> {
        self.ask(now, Request::SplitResidual { lease: *lease, plan: plan.clone(), op }, |backend| {
            let done = backend.split_residual_with_events(now, tenant, lease, plan, op, events);
            (done.clone(), answered(done, |child| vec![child]))
        })
    }

    fn release_with_events(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        cursor: Option<CursorUpdate<'_>>,
        reason: ReleaseReason<'_>,
        op: OpId,
        events: &mut dyn EventSink,
    ) -> Result<IdempotentOutcome<()>, ReleaseError> {
        self.ask(
            now,
            Request::Release { lease: *lease, last: cursor.and_then(last), why: reason.into(), op },
            |backend| {
                let done = backend.release_with_events(now, tenant, lease, cursor, reason, op, events);
                (done.clone(), plain(done))
            },
        )
    }
}

impl<B: Backend> ShardClaiming for Link<B> {
    fn claim_next_available_with_events<'s>(
        &mut self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
        scratch: &'s mut AcquireScratch,
        events: &mut dyn EventSink,
    ) -> Result<AcquireResultView<'s>, ClaimError> {
        self.ask(now, Request::Claim, |backend| {
            let view = backend.claim_next_available_with_events(now, tenant, run, worker, scratch, events);
            let answer = view.as_ref().map_or_else(|error| refused(error.clone()), granted);
            (view, answer)
        })
    }
}
