//! Acquire: one transaction that raises the fence and ties the shard to the worker's session.

use std::sync::Arc;

use tessera_contracts::{LogicalTime, ShardKey, TenantId, WorkerId};
use tessera_coordination::decide::acquire;
use tessera_coordination::error::{AccessRefused, AcquireError, InfraError};
use tessera_coordination::events::EventKind;
use tessera_coordination::operation::Guard;
use tessera_coordination::record::lease::Lease;
use tessera_coordination::record::snapshot::CapacityHint;

use super::commit::{Commit, OwnerWrite, Transition};
use super::standings::BeingWritten;
use super::stored::StoredShard;
use super::{Inner, failed, span};
use crate::codec::OwnerPart;
use crate::kv::Kv;

/// What an acquire answered, and what to tell observers: it has something to tell even if it was refused.
pub(super) struct Acquired {
    pub(super) outcome: Result<Granted, AcquireError>,
    pub(super) event: Option<EventKind>,
}

/// A granted shard.
pub(super) struct Granted {
    pub(super) lease: Lease,
    pub(super) shard: Box<StoredShard>,
    pub(super) capacity: CapacityHint,
}

impl From<AcquireError> for Acquired {
    fn from(error: AcquireError) -> Self {
        Self { outcome: Err(error), event: None }
    }
}

impl<K: Kv> Inner<K> {
    pub(super) async fn acquire(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
    ) -> Acquired {
        self.try_acquire(now, tenant, key, worker).await.unwrap_or_else(Acquired::from)
    }

    async fn try_acquire(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        key: ShardKey,
        worker: WorkerId,
    ) -> Result<Acquired, AcquireError> {
        let operation = "acquire_and_restore_into";
        let deadline = self.deadline();
        let mut stored: StoredShard = self.known::<AcquireError>(operation, tenant, key, deadline).await?;
        for attempt in 1..=self.config.attempts_max {
            let acquisition = match acquire::decide(&stored.view(self), worker, now, self.skew()) {
                Err(_) if !stored.fresh => {
                    stored = self.reload::<AcquireError>(operation, tenant, key, deadline).await?;
                    continue;
                }
                decided => decided?,
            };
            let mut next = (*stored.record).clone();
            next.apply(&acquisition.change, &[]);
            let next = Arc::new(next);
            let window = self.capacity_window(&stored.run, key.shard);
            let kept = self.kept_hint(tenant, key.run);
            let mut transition = Transition::new(&stored, &next, Guard::Untouched);
            let (mut standing, mut presence) = (None, None);
            if let Ok(lease) = &acquisition.outcome {
                let length = span(stored.run.gate(self.lease_duration_default()).lease_duration);
                let session =
                    self.sessions.open(worker, length, deadline).await.map_err(|error| failed(operation, &error))?;
                let part = OwnerPart { worker, fence: lease.fence(), deadline: lease.deadline() };
                transition.owner = OwnerWrite::Put(part, session.lease);
                standing = self.take_standing(tenant, key.run, &session);
                presence = self.take_presence(tenant, &session);
                transition.ops.extend([&standing, &presence].into_iter().flatten().map(BeingWritten::write));
                if kept.is_none() {
                    transition.reads = self.capacity_reads(tenant, key.run, window);
                }
            }
            let owner = transition.owner;
            match self.commit(operation, transition, deadline).await {
                Ok(Commit::Won { shard, extra }) => {
                    [standing, presence].into_iter().flatten().for_each(BeingWritten::stored);
                    let event = Some(acquisition.event);
                    let lease = match acquisition.outcome {
                        Ok(lease) => lease,
                        Err(refused) => return Ok(Acquired { outcome: Err(refused), event }),
                    };
                    let run = key.run;
                    let capacity = match kept {
                        Some(kept) => self.taken_from_hint(tenant, run, kept),
                        None if extra.is_empty() => self.capacity(tenant, run, window, now, deadline).await,
                        None => self.capacity_from(&extra, tenant, run, window, now, deadline).await,
                    };
                    return Ok(Acquired { outcome: Ok(Granted { lease, shard, capacity }), event });
                }
                Ok(Commit::Lost(fresh) | Commit::Doubtful(fresh)) => {
                    stored = *fresh.ok_or(AccessRefused::ShardNotFound { key })?;
                }
                Err(error) => {
                    // The store may have forgotten the session we meant to tie the shard to: ask for a new one.
                    let OwnerWrite::Put(_, lease) = owner else { return Err(error.into()) };
                    if self.sessions.check(lease, deadline).await {
                        return Err(error.into());
                    }
                    stored = self.reload::<AcquireError>(operation, tenant, key, deadline).await?;
                }
            }
            self.breathe(attempt).await;
        }
        Err(InfraError::contended(operation).into())
    }
}
