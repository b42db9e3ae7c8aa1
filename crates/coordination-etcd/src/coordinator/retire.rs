//! The end of runs: settled ones are forgotten by age, and those that never got their shards are collected.

use tessera_contracts::{LogicalTime, RunId, ShardId, TenantId};
use tessera_coordination::error::{GetRunError, InfraError};
use tessera_coordination::run::status::RunStatus;

use super::stored::StoredRun;
use super::{AsyncEtcdCoordinator, Inner, contended, failed};
use crate::codec::Staging;
use crate::keyspace::{ShardIndex, Window, shard_of, tenant_and_run_of};
use crate::kv::{Compare, Fate, Kv, Moment, Op, RangeRequest, Txn};

/// Shards deleted by one request: more would make every other client wait.
const DELETED_AT_ONCE: u32 = 1_000;
/// Runs looked at by one request.
const RUNS_AT_ONCE: usize = 256;

impl<K: Kv + Clone> AsyncEtcdCoordinator<K> {
    /// The tenant's runs that may still change, with ids above `after`, by id, at most `limit`, into `runs`, which is cleared
    /// first.
    ///
    /// # Errors
    /// If the store cannot be read.
    pub async fn list_active_runs_into(
        &self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
        runs: &mut Vec<RunId>,
    ) -> Result<(), InfraError> {
        runs.clear();
        let inner = &self.inner;
        let limit = u32::try_from(limit).unwrap_or(u32::MAX).min(10_000);
        if limit == 0 {
            return Ok(());
        }
        let read = RangeRequest::of(inner.space.open_runs_after(tenant, after)).keys_only().limit(limit);
        let answer = inner.kv.range(read, inner.deadline()).await.map_err(|e| failed("list_active_runs_into", &e))?;
        runs.extend(answer.kvs.iter().filter_map(|kv| tenant_and_run_of(&kv.key)).map(|(_, run)| run));
        Ok(())
    }

    /// Removes runs of any tenant that were created before `created_before` and never got their shards, at most `limit`,
    /// with what a broken-off registration left; their names go into `removed`, which is cleared first.
    ///
    /// # Errors
    /// If the store fails; what was removed until then stays removed.
    pub async fn gc_stale_initializing_runs_into(
        &self,
        created_before: LogicalTime,
        limit: usize,
        removed: &mut Vec<(TenantId, RunId)>,
    ) -> Result<(), InfraError> {
        removed.clear();
        let operation = "gc_stale_initializing_runs_into";
        let inner = &self.inner;
        let limit = u32::try_from(limit).unwrap_or(u32::MAX).min(10_000);
        if limit == 0 {
            return Ok(());
        }
        let read = RangeRequest::of(inner.space.new_runs_before(created_before)).keys_only().limit(limit);
        let entries = inner.kv.range(read, inner.deadline()).await.map_err(|error| failed(operation, &error))?;
        for entry in entries.kvs {
            let Some((tenant, run)) = tenant_and_run_of(&entry.key) else { continue };
            let deadline = inner.deadline();
            match inner.load_run(operation, tenant, run, deadline).await? {
                Some(stored) if stored.part.status == RunStatus::Initializing => {
                    if inner.forget(operation, tenant, run, stored, deadline).await?.is_some() {
                        removed.push((tenant, run));
                    }
                }
                // Its entry outlived it, which a crash of an older version could leave behind.
                Some(_) | None => {
                    inner.repeat(operation, Txn::of(vec![Op::delete(entry.key)]), deadline).await?;
                }
            }
        }
        Ok(())
    }
}

impl<K: Kv> Inner<K> {
    /// Forgets settled runs of a tenant, by id; answers which, and how many shards each had.
    pub(super) async fn retire(
        &self,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
    ) -> Result<Vec<(RunId, u32)>, GetRunError> {
        let operation = "retire_runs";
        let mut retired = Vec::new();
        let mut after = None;
        while retired.len() < limit {
            let page = self.list_runs(tenant, after, RUNS_AT_ONCE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.run);
            for summary in page {
                let due = summary.completed_at.is_some_and(|settled| settled <= settled_until);
                if !due || retired.len() >= limit {
                    continue;
                }
                let deadline = self.deadline();
                let Some(stored) = self.load_run(operation, tenant, summary.run, deadline).await? else { continue };
                let shards = self.forget(operation, tenant, summary.run, stored, deadline).await?;
                retired.extend(shards.map(|shards| (summary.run, shards)));
            }
        }
        Ok(retired)
    }

    /// Removes a run with all its shards and takes them off the counters; answers how many they were, or `None` if somebody
    /// else was first.
    ///
    /// The count is written into the run's record before the first shard goes, so that a crash in the middle neither counts
    /// them twice nor forgets them: whoever comes next finds the number and goes on.
    async fn forget(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        mut stored: StoredRun,
        deadline: Moment,
    ) -> Result<Option<u32>, InfraError> {
        let path = self.space.run(tenant, run);
        let mut attempt = 0;
        let counted = loop {
            if let Some(counted) = stored.part.staging {
                break counted;
            }
            attempt += 1;
            if attempt > self.config.attempts_max {
                return Err(contended(operation));
            }
            self.finish_hatching(operation, tenant, run, deadline).await?;
            let read = RangeRequest::of(self.space.colds_after(tenant, run, None)).count_only();
            let count = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?.count;
            let counted = Staging { attempt: self.kv.random(), reserved: u32::try_from(count).unwrap_or(u32::MAX) };
            let part = stored.part.staged(counted);
            let txn = Txn {
                compares: vec![Compare::unchanged_since(&path, stored.revision)],
                success: vec![Op::put(&path, part.encode())],
                failure: vec![],
            };
            match self.kv.txn(txn, deadline).await {
                Ok(_) => {}
                Err(error) if error.fate == Fate::Ambiguous => {}
                Err(error) => return Err(failed(operation, &error)),
            }
            // Whoever wrote the count, it is the one to go by.
            let Some(now) = self.load_run(operation, tenant, run, deadline).await? else { return Ok(None) };
            stored = now;
            self.breathe(attempt).await;
        };
        self.delete_shards(operation, tenant, run, &stored).await?;
        for attempt in 1..=self.config.attempts_max {
            let tally = self.fresh_tally(operation, tenant, deadline).await?;
            let change = tally.subtract(u64::from(counted.reserved));
            let mut txn = Txn {
                compares: vec![Compare::unchanged_since(&path, stored.revision)],
                success: vec![
                    Op::delete(&path),
                    Op::delete(self.space.roots(tenant, run)),
                    Op::put(self.space.retired(tenant), run.to_string()),
                    Op::delete(self.space.open_run(tenant, run)),
                    Op::delete(self.space.new_run(stored.part.created_at, tenant, run)),
                    Op::Delete(self.space.all_hatching(tenant, run)),
                    Op::Delete(self.space.families(tenant, run, Window::ALL)),
                    Op::Delete(self.space.owners(tenant, run, Window::ALL)),
                    // All but empty by now; but a registration that is being collected may have written since.
                    Op::Delete(self.space.colds_after(tenant, run, None)),
                    Op::Delete(self.space.hots(tenant, run)),
                    Op::Delete(self.space.indexed(ShardIndex::Free, tenant, run, Window::ALL)),
                ],
                failure: vec![],
            };
            for part in [&change.all, &change.of_tenant] {
                txn.compares.extend(part.compares.iter().cloned());
                txn.success.extend(part.ops.iter().cloned());
            }
            let answer = self.kv.txn(txn, deadline).await;
            match answer {
                Ok(answer) if answer.succeeded => {
                    self.tally_changed(tenant, &change, answer.revision);
                    return Ok(Some(counted.reserved));
                }
                Ok(_) => {}
                Err(error) if error.fate == Fate::Ambiguous => {}
                Err(error) => return Err(failed(operation, &error)),
            }
            match self.load_run(operation, tenant, run, deadline).await? {
                None => return Ok(Some(counted.reserved)),
                Some(now) if now.revision != stored.revision => return Ok(None),
                Some(_) => {}
            }
            self.breathe(attempt).await;
        }
        Err(contended(operation))
    }

    /// Deletes a run's shards, some at a time; each request has its own deadline.
    async fn delete_shards(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        stored: &StoredRun,
    ) -> Result<(), InfraError> {
        let unmoved = || vec![Compare::unchanged_since(self.space.run(tenant, run), stored.revision)];
        let mut first = ShardId::new(0);
        loop {
            let read = RangeRequest::of(self.space.colds_after(tenant, run, None)).keys_only().limit(DELETED_AT_ONCE);
            let page = self.kv.range(read, self.deadline()).await.map_err(|error| failed(operation, &error))?;
            let Some(last) = page.kvs.last().and_then(|kv| shard_of(&kv.key)) else { break };
            let success = vec![
                Op::Delete(self.space.colds_between(tenant, run, first, last)),
                Op::Delete(self.space.hots_between(tenant, run, first, last)),
            ];
            let txn = Txn { compares: unmoved(), success, failure: vec![] };
            if !self.repeat(operation, txn, self.deadline()).await?.succeeded {
                return Ok(());
            }
            first = ShardId::new(last.get().saturating_add(1));
        }
        let indexes = ShardIndex::ALL.map(|index| Op::Delete(self.space.indexed(index, tenant, run, Window::ALL)));
        self.repeat(operation, Txn { compares: unmoved(), success: indexes.into(), failure: vec![] }, self.deadline())
            .await?;
        Ok(())
    }
}
