//! The end of runs: settled ones are retired by age, and those that never got their shards are collected.
//!
//! A removal first writes a marker of its own into the run's record, in a transaction that compares the record as it was read:
//! the same incarnation, in a status that permits the removal. From then on no reader sees the run, no other operation can
//! write in it, and its shards are deleted, some at a time; every such transaction compares the whole marked record. The last
//! one deletes the record and takes the shards off the counters. So several coordinators may remove a run together, each of
//! them may die anywhere, and whichever finds the marker goes on; but the removal is that of the coordinator that marked it.

use tessera_contracts::{LogicalTime, RunId, RunIncarnation, ShardId, TenantId};
use tessera_coordination::error::{GetRunError, InfraError};
use tessera_coordination::run::status::RunStatus;

use super::stored::{StoredRun, found};
use super::{AsyncEtcdCoordinator, Inner, failed};
use crate::codec::{Removal, RunPart};
use crate::keyspace::{ShardIndex, Window, shard_of, tenant_and_run_of};
use crate::kv::{Compare, Fate, Kv, Moment, Op, OpResponse, RangeRequest, Revision, Txn};

/// Shards deleted by one request: more would make every other client wait.
const DELETED_AT_ONCE: u32 = 1_000;
/// Runs looked at by one request.
const RUNS_AT_ONCE: u32 = 256;

/// Why a run may be removed.
#[derive(Clone, Copy, Debug)]
enum Removable {
    /// It was settled by then.
    SettledBy(LogicalTime),
    /// It is this creation of the run, and settled.
    Settled(RunIncarnation),
    /// It was created before then and has no shards yet.
    NewBefore(LogicalTime),
}

impl Removable {
    fn permits(self, run: &RunPart) -> bool {
        match self {
            Self::SettledBy(time) => {
                run.status.is_terminal() && run.completed_at.is_some_and(|settled| settled <= time)
            }
            Self::Settled(incarnation) => run.status.is_terminal() && run.incarnation == incarnation,
            Self::NewBefore(time) => run.status == RunStatus::Initializing && run.created_at < time,
        }
    }
}

impl<K: Kv + Clone> AsyncEtcdCoordinator<K> {
    /// The tenant's active runs with ids above `after`, by id, at most `limit`, into `runs`, which is cleared first. A run
    /// without shards is not active yet, and a settled one no longer.
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
        let read = RangeRequest::of(inner.space.active_runs_after(tenant, after)).keys_only().limit(limit);
        let answer = inner.kv.range(read, inner.deadline()).await.map_err(|e| failed("list_active_runs_into", &e))?;
        runs.extend(answer.kvs.iter().filter_map(|kv| tenant_and_run_of(&kv.key)).map(|(_, run)| run));
        Ok(())
    }

    /// Removes runs of any tenant that were created before `created_before` and never got their shards, at most `limit`,
    /// with what a broken-off registration left; their names go into `removed`, which is cleared first. A registration that is
    /// under way in such a run is refused: the run is gone.
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
            if inner.remove(operation, tenant, run, Removable::NewBefore(created_before), deadline).await?.is_some() {
                removed.push((tenant, run));
            }
        }
        Ok(())
    }
}

impl<K: Kv> Inner<K> {
    /// Retires settled runs of a tenant, by id; answers which, and how many shards each had.
    pub(super) async fn retire(
        &self,
        tenant: TenantId,
        settled_until: LogicalTime,
        limit: usize,
    ) -> Result<Vec<(RunId, u32)>, GetRunError> {
        let (operation, why) = ("retire_runs", Removable::SettledBy(settled_until));
        let mut retired = Vec::new();
        let mut next = (limit > 0).then_some(None);
        while let Some(after) = next {
            let read = RangeRequest::of(self.space.runs_after(tenant, after)).limit(RUNS_AT_ONCE);
            let page = self.stored_runs(operation, read, self.deadline()).await?;
            next = page.rest.map(Some);
            for (run, stored) in page.runs {
                if retired.len() >= limit {
                    return Ok(retired);
                }
                // A removal that was broken off is finished by the way; it was the other coordinator's.
                if stored.part.removal.is_some() || why.permits(&stored.part) {
                    let shards = self.remove(operation, tenant, run, why, self.deadline()).await?;
                    retired.extend(shards.map(|shards| (run, shards)));
                }
            }
        }
        Ok(retired)
    }

    /// Retires this creation of a run, if it has settled; answers how many shards it had.
    pub(super) async fn retire_one(
        &self,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
    ) -> Result<Option<u32>, GetRunError> {
        Ok(self.remove("retire_run", tenant, run, Removable::Settled(incarnation), self.deadline()).await?)
    }

    /// Removes a run if that is permitted, with all its shards; answers how many they were, or `None` if it was not this
    /// removal that marked the run. A removal that another coordinator has begun is finished.
    async fn remove(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        why: Removable,
        deadline: Moment,
    ) -> Result<Option<u32>, InfraError> {
        let path = self.space.run(tenant, run);
        let attempt_id = self.kv.random();
        for attempt in 1..=self.config.attempts_max {
            let (stored, read_at) = self.find_run(operation, tenant, run, deadline).await?;
            let Some(stored) = stored else { return Ok(None) };
            if let Some(removal) = stored.part.removal {
                self.finish_removal(operation, tenant, run, &stored.part, removal).await?;
                // One of its own whose answer was lost; one that another has finished meanwhile is not known any more.
                return Ok((removal.attempt == attempt_id).then_some(removal.counted));
            }
            if !why.permits(&stored.part) {
                return Ok(None);
            }
            let counted = self.counted_shards(operation, tenant, run, &stored, read_at, deadline).await?;
            let removal = Removal { attempt: attempt_id, counted };
            let marked = stored.part.being_removed(removal);
            let txn = Txn {
                compares: vec![Compare::unchanged_since(&path, stored.revision)],
                success: vec![Op::put(&path, marked.encode())],
                failure: vec![],
            };
            match self.kv.txn(txn, deadline).await {
                Ok(answer) if answer.succeeded => {
                    self.finish_removal(operation, tenant, run, &marked, removal).await?;
                    return Ok(Some(counted));
                }
                // Another wrote first: the run is looked at again, since it may not be one to remove any more.
                Ok(_) => {}
                Err(error) if error.fate == Fate::Ambiguous => {}
                Err(error) => return Err(failed(operation, &error)),
            }
            self.breathe(attempt).await;
        }
        Err(InfraError::contended(operation))
    }

    /// How many of a run's shards the counters count. Nothing can change that while the run's record stays as it was read.
    async fn counted_shards(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        stored: &StoredRun,
        read_at: Revision,
        deadline: Moment,
    ) -> Result<u32, InfraError> {
        if stored.part.status == RunStatus::Initializing {
            return Ok(stored.part.staging.map_or(0, |staging| staging.reserved));
        }
        let reads = vec![
            Op::Range(RangeRequest::of(self.space.colds_after(tenant, run, None)).count_only().at(read_at)),
            Op::Range(RangeRequest::of(self.space.all_hatching(tenant, run)).at(read_at)),
        ];
        let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
        let [OpResponse::Range(colds), OpResponse::Range(markers)] = &read.responses[..] else {
            return Err(InfraError::corruption(operation, "a run was not answered part by part"));
        };
        let mut count = u32::try_from(colds.count).unwrap_or(u32::MAX);
        for marker in &markers.kvs {
            // Those of a split that was broken off before it happened were never counted.
            let staged = self.staged_children(operation, tenant, run, marker, read_at, deadline).await?;
            count -= staged.iter().filter(|child| !child.is_listed).count() as u32;
        }
        Ok(count)
    }

    /// Deletes all of a run that was marked, whichever coordinator marked it.
    pub(super) async fn finish_removal(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        marked: &RunPart,
        removal: Removal,
    ) -> Result<(), InfraError> {
        let path = self.space.run(tenant, run);
        // Incarnation, status and marker, all of them: a later run of that id has another record.
        let is_marked = Compare::value_is(&path, marked.encode());
        if !self.delete_shards(operation, tenant, run, &is_marked).await? {
            return Ok(());
        }
        let deadline = self.deadline();
        for attempt in 1..=self.config.attempts_max {
            let tally = self.fresh_tally(operation, tenant, deadline).await?;
            let change = tally.subtract(u64::from(removal.counted));
            let mut txn = Txn {
                compares: vec![is_marked.clone()],
                success: vec![
                    Op::delete(&path),
                    Op::delete(self.space.roots(tenant, run)),
                    Op::put(self.space.retired(tenant), run.to_string()),
                    Op::delete(self.space.new_run(marked.created_at, tenant, run)),
                    Op::Delete(self.space.all_hatching(tenant, run)),
                    Op::Delete(self.space.families(tenant, run, Window::ALL)),
                    Op::Delete(self.space.owners(tenant, run, Window::ALL)),
                ],
                failure: vec![Op::get(&path)],
            };
            for part in [&change.all, &change.of_tenant] {
                txn.compares.extend(part.compares.iter().cloned());
                txn.success.extend(part.ops.iter().cloned());
            }
            match self.kv.txn(txn, deadline).await {
                Ok(answer) if answer.succeeded => {
                    self.tally_changed(tenant, &change, answer.revision);
                    return Ok(());
                }
                Ok(answer) => {
                    let stored = answer.responses.first().and_then(found);
                    if stored.is_none_or(|kv| kv.value != marked.encode()) {
                        return Ok(());
                    }
                }
                Err(error) if error.fate == Fate::Ambiguous => {
                    let (stored, _) = self.find_run(operation, tenant, run, deadline).await?;
                    if stored.is_none_or(|stored| *stored.part != *marked) {
                        return Ok(());
                    }
                }
                Err(error) => return Err(failed(operation, &error)),
            }
            self.breathe(attempt).await;
        }
        Err(InfraError::contended(operation))
    }

    /// Deletes the shards of a run that is marked, some at a time; each request has its own deadline. Whether the run is still
    /// there, as marked.
    async fn delete_shards(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        is_marked: &Compare,
    ) -> Result<bool, InfraError> {
        let mut first = ShardId::new(0);
        loop {
            let read = RangeRequest::of(self.space.colds_after(tenant, run, None)).keys_only().limit(DELETED_AT_ONCE);
            let page = self.kv.range(read, self.deadline()).await.map_err(|error| failed(operation, &error))?;
            let Some(last) = page.kvs.last().and_then(|kv| shard_of(&kv.key)) else { break };
            let success = vec![
                Op::Delete(self.space.colds_between(tenant, run, first, last)),
                Op::Delete(self.space.hots_between(tenant, run, first, last)),
            ];
            let txn = Txn { compares: vec![is_marked.clone()], success, failure: vec![] };
            if !self.repeat(operation, txn, self.deadline()).await?.succeeded {
                return Ok(false);
            }
            first = ShardId::new(last.get().saturating_add(1));
        }
        let indexes = ShardIndex::ALL.map(|index| Op::Delete(self.space.indexed(index, tenant, run, Window::ALL)));
        let txn = Txn { compares: vec![is_marked.clone()], success: indexes.into(), failure: vec![] };
        Ok(self.repeat(operation, txn, self.deadline()).await?.succeeded)
    }
}
