//! Runs that never got their shards, for an operator who wants to see before anything is removed.

use tessera_contracts::{LogicalTime, RunId, TenantId};
use tessera_coordination::error::InfraError;
use tessera_coordination::run::status::RunStatus;

use super::{AsyncEtcdCoordinator, failed};
use crate::keyspace::tenant_and_run_of;
use crate::kv::{Kv, RangeRequest};

impl<K: Kv + Clone> AsyncEtcdCoordinator<K> {
    /// Names the runs that [`gc_stale_initializing_runs_into`](Self::gc_stale_initializing_runs_into) would remove, at most
    /// `limit`; they go into `found`, which is cleared first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn stale_initializing_runs_into(
        &self,
        created_before: LogicalTime,
        limit: usize,
        found: &mut Vec<(TenantId, RunId)>,
    ) -> Result<(), InfraError> {
        found.clear();
        let operation = "stale_initializing_runs_into";
        let inner = &self.inner;
        let limit = u32::try_from(limit).unwrap_or(u32::MAX).min(10_000);
        if limit == 0 {
            return Ok(());
        }
        let read = RangeRequest::of(inner.space.new_runs_before(created_before)).keys_only().limit(limit);
        let entries = inner.kv.range(read, inner.deadline()).await.map_err(|error| failed(operation, &error))?;
        for entry in entries.kvs {
            let Some((tenant, run)) = tenant_and_run_of(&entry.key) else { continue };
            let stored = inner.load_run(operation, tenant, run, inner.deadline()).await?;
            if stored.is_some_and(|stored| stored.part.status == RunStatus::Initializing) {
                found.push((tenant, run));
            }
        }
        Ok(())
    }
}
