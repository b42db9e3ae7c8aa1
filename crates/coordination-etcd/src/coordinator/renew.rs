//! Renew: the holder's deadline moves on. Only the owner key is written, a few dozen bytes, whatever the record holds; and
//! many renewals share a request.

use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::Poll;
use std::collections::BTreeMap;
use std::sync::Arc;

use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::decide::renew::{self, RenewResult};
use tessera_coordination::error::{AccessRefused, InfraError, RenewError};
use tessera_coordination::events::EventKind;
use tessera_coordination::record::lease::Lease;
use tessera_coordination::record::orders::Orders;
use tessera_coordination::record::snapshot::CapacityHint;

use super::stored::{StoredOwner, StoredShard};
use super::{Inner, failed, lock};
use crate::codec::OwnerPart;
use crate::keyspace::Window;
use crate::kv::{Compare, Fate, Kv, Moment, Op, Txn};

/// A renewal that was stored, or did not have to be.
pub(super) struct Renewed {
    deadline: LogicalTime,
    orders: Orders,
    window: Window,
    pub(super) event: Option<EventKind>,
}

impl<K: Kv> Inner<K> {
    /// Renews leases, all of them at once; an answer for each, in their order, and what to tell observers.
    pub(super) async fn renew_all(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        leases: &[Lease],
    ) -> Vec<(Result<RenewResult, RenewError>, Option<(RunId, EventKind)>)> {
        let deadline = self.deadline();
        let renewals = leases.iter().map(|lease| self.renew_one(now, tenant, lease, deadline)).collect();
        let renewals = join_all(renewals).await;
        // One hint per run, not per shard: it is about the run.
        let mut hints: BTreeMap<RunId, CapacityHint> = BTreeMap::new();
        for (lease, renewal) in leases.iter().zip(&renewals) {
            // A settled run has nothing to give.
            if let Ok(renewed) = renewal
                && renewed.orders.cancelled.is_none()
                && !hints.contains_key(&lease.run())
            {
                let hint = match self.kept_hint(tenant, lease.run()) {
                    Some(kept) => kept,
                    None => self.capacity(tenant, lease.run(), renewed.window, now, deadline).await,
                };
                hints.insert(lease.run(), hint);
            }
        }
        let answers = leases.iter().zip(renewals).map(|(lease, renewal)| match renewal {
            Ok(Renewed { deadline, orders, event, .. }) => {
                let open = orders.cancelled.is_none();
                let capacity = hints.get(&lease.run()).copied().filter(|_| open).unwrap_or_default();
                (Ok(RenewResult { new_deadline: deadline, capacity, orders }), event.map(|kind| (lease.run(), kind)))
            }
            Err(error) => (Err(error), None),
        });
        answers.collect()
    }

    async fn renew_one(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        lease: &Lease,
        deadline: Moment,
    ) -> Result<Renewed, RenewError> {
        let operation = "renew";
        let presented = lease.presented_by(tenant)?;
        let key = lease.key();
        let mut stored: StoredShard = self.known::<RenewError>(operation, tenant, key, deadline).await?;
        for attempt in 1..=self.config.attempts_max {
            let renewal = match renew::decide(&stored.view(self), presented, now) {
                Err(_) if !stored.fresh => {
                    stored = self.reload::<RenewError>(operation, tenant, key, deadline).await?;
                    continue;
                }
                decided => decided?,
            };
            let window = self.capacity_window(&stored.run, key.shard);
            let renewed = |event| Renewed { deadline: renewal.deadline, orders: renewal.orders, window, event };
            let Some((_, event)) = renewal.extension else {
                if stored.fresh {
                    return Ok(renewed(None));
                }
                stored = self.reload::<RenewError>(operation, tenant, key, deadline).await?;
                continue;
            };
            let owner = stored.owner.ok_or_else(|| InfraError::contended(operation))?;
            let part = OwnerPart { deadline: renewal.deadline, ..owner.part };
            match self.batcher.submit(stored.paths.hot.clone(), extension(&stored, &owner, part), deadline).await {
                Ok(answer) if answer.succeeded => {
                    let owner = StoredOwner { part, revision: answer.revision, ..owner };
                    stored.owner = Some(owner);
                    if let Some(holder) = &mut Arc::make_mut(&mut stored.record).state.head.lease {
                        holder.deadline = renewal.deadline;
                    }
                    lock(&self.cache).put(stored);
                    return Ok(renewed(Some(event)));
                }
                Ok(answer) => {
                    let fresh = self.reread(operation, &stored, &answer.responses, deadline).await?;
                    stored = fresh.ok_or(AccessRefused::ShardNotFound { key })?;
                }
                // Renewing twice is renewing once: look, and renew again.
                Err(error) if error.fate == Fate::Ambiguous => {
                    stored = self.reload::<RenewError>(operation, tenant, key, deadline).await?;
                }
                // The store has forgotten the session: look, and the decision will say that the lease has ended.
                Err(error) if error.kind == crate::kv::KvErrorKind::LeaseNotFound => {
                    self.sessions.check(owner.lease, deadline).await;
                    stored = self.reload::<RenewError>(operation, tenant, key, deadline).await?;
                }
                Err(error) => return Err(failed(operation, &error).into()),
            }
            self.breathe(attempt).await;
        }
        Err(InfraError::contended(operation).into())
    }
}

/// Writes the owner key anew, if run, record and owner key are what they were seen to be. The owner key too, and not only the
/// session it is attached to: a renewal that arrives late must not put back the deadline that a later one has moved on.
fn extension(stored: &StoredShard, owner: &StoredOwner, part: OwnerPart) -> Txn {
    let paths = &stored.paths;
    Txn {
        compares: vec![
            Compare::unchanged_since(paths.run.clone(), stored.run.revision),
            Compare::unchanged_since(paths.hot.clone(), stored.hot_revision),
            Compare::unchanged_since(paths.owner.clone(), owner.revision),
        ],
        success: vec![Op::put_attached(paths.owner.clone(), part.encode(), owner.lease)],
        failure: paths.reads(),
    }
}

/// Runs futures side by side until each has ended; their outputs in order.
pub(super) async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waiting = false;
        for (future, output) in futures.iter_mut().zip(&mut outputs) {
            if output.is_some() {
                continue;
            }
            match future.as_mut().poll(context) {
                Poll::Ready(ended) => *output = Some(ended),
                Poll::Pending => waiting = true,
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.into_iter().flatten().collect()
}
