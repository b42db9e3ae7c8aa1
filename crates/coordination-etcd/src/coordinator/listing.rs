//! Listings, progress and explanations: for operators, page by page.
//!
//! The server walks a range to its end to count it, whatever the limit, so a page that asked for "everything behind this
//! id" would cost time with every shard behind it. Pages therefore ask for spans of ids, and the span adapts to how densely
//! the ids lie: roots usually count from one, children lie scattered over half of all numbers.

use std::sync::Arc;

use tessera_contracts::redact::RedactedKey;
use tessera_contracts::{LogicalTime, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::decide::acquire::is_claimable;
use tessera_coordination::error::{GetRunError, GetShardError, InfraError, RunNotFound};
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::{RunProgress, ShardCounts};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};

use super::stored::{ShardPaths, StoredRun, StoredShard, compose, decode_owner, found};
use super::{Inner, failed, unreadable};
use crate::codec::{ColdPart, HotPart};
use crate::keyspace::shard_of;
use crate::kv::{KeyValue, Kv, Moment, Op, OpResponse, RangeRequest, Revision, Txn};

/// Shards one page reads: with the largest records a few megabytes.
const PAGE: u32 = 64;

/// Walks the shards of a run in the order of their ids.
struct Walk {
    operation: &'static str,
    tenant: TenantId,
    run: RunId,
    /// Where the next page begins; `None` after the last id.
    next: Option<u64>,
    /// How many ids the next page spans.
    span: u64,
}

impl Walk {
    fn new(operation: &'static str, tenant: TenantId, run: RunId, after: Option<ShardId>) -> Self {
        let next = after.map_or(Some(0), |after| after.get().checked_add(1));
        Self { operation, tenant, run, next, span: u64::from(PAGE) }
    }

    /// The next page, in the order of ids; `None` when there are no more.
    async fn page<K: Kv>(
        &mut self,
        inner: &Inner<K>,
        stored_run: &StoredRun,
        deadline: Moment,
    ) -> Result<Option<Vec<StoredShard>>, InfraError> {
        let Some(first) = self.next else { return Ok(None) };
        let last = first.saturating_add(self.span - 1);
        let keys = inner.space.colds_between(self.tenant, self.run, ShardId::new(first), ShardId::new(last));
        let read = RangeRequest::of(keys).limit(PAGE);
        let colds = inner.kv.range(read, deadline).await.map_err(|error| failed(self.operation, &error))?;
        let end = colds.kvs.last().filter(|_| colds.more).and_then(|kv| shard_of(&kv.key)).map(ShardId::get);
        self.next = end.unwrap_or(last).checked_add(1);
        self.span = match colds.count {
            0..16 => self.span.saturating_mul(16),
            257.. => (self.span / 4).max(u64::from(PAGE)),
            _ => self.span,
        };
        self.complete(inner, stored_run, &colds.kvs, deadline).await.map(Some)
    }

    /// Reads the other parts of the shards whose cold parts are given.
    async fn complete<K: Kv>(
        &self,
        inner: &Inner<K>,
        run: &StoredRun,
        colds: &[KeyValue],
        deadline: Moment,
    ) -> Result<Vec<StoredShard>, InfraError> {
        let operation = self.operation;
        let keys: Vec<ShardKey> =
            colds.iter().filter_map(|kv| shard_of(&kv.key)).map(|shard| ShardKey::new(self.run, shard)).collect();
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(Vec::new()) };
        let hots = inner.space.hots_between(self.tenant, self.run, first.shard, last.shard);
        let mut reads = vec![Op::Range(RangeRequest::of(hots))];
        reads.extend(keys.iter().map(|key| Op::get(inner.space.owner(self.tenant, *key))));
        let read = inner.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
        let Some((OpResponse::Range(hots), owners)) = read.responses.split_first() else {
            return Err(InfraError::corruption(operation, "a page was not answered part by part"));
        };
        let mut shards = Vec::with_capacity(keys.len());
        for ((key, kv), owner) in keys.iter().zip(colds).zip(owners) {
            let cold_revision = kv.mod_revision;
            let cold = ColdPart::decode(&kv.value).map_err(|error| unreadable(operation, &error))?;
            let hot = hots.kvs.iter().find(|kv| shard_of(&kv.key) == Some(key.shard));
            let hot_revision = hot.map_or(Revision(0), |kv| kv.mod_revision);
            let hot = hot.map(|kv| HotPart::decode(&kv.value)).transpose().map_err(|e| unreadable(operation, &e))?;
            let owner = found(owner).map(decode_owner).transpose().map_err(|error| unreadable(operation, &error))?;
            let record = compose(self.tenant, *key, &cold, hot, owner.as_ref());
            let paths = Arc::new(ShardPaths::new(&inner.space, self.tenant, *key));
            let (record, run, cold, fresh, pieced) = (record.into(), run.clone(), Arc::new(cold), true, false);
            let stored = StoredShard { paths, record, hot_revision, owner, run, cold, cold_revision, fresh, pieced };
            shards.extend(inner.if_published(operation, Some(stored), deadline).await?);
        }
        Ok(shards)
    }
}

impl<K: Kv> Inner<K> {
    pub(super) async fn list_shards(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        filter: &ShardFilter,
        page: ShardPage,
        shards: &mut Vec<ShardSummary>,
    ) -> Result<Option<ShardPage>, GetRunError> {
        shards.clear();
        let operation = "list_shards_into";
        let deadline = self.deadline();
        let stored = self.visible_run(operation, tenant, run, deadline).await?;
        if stored.part.status == RunStatus::Initializing {
            return Ok(None);
        }
        let mut walk = Walk::new(operation, tenant, run, page.after);
        while let Some(batch) = walk.page(self, &stored, deadline).await? {
            for shard in batch {
                let view = shard.view(self);
                if !filter.admits(&view, is_claimable(&view, now, self.skew())) {
                    continue;
                }
                shards.push(ShardSummary::of(&view));
                if shards.len() >= page.effective_limit() {
                    return Ok(Some(ShardPage { after: Some(view.key.shard), ..page }));
                }
            }
        }
        Ok(None)
    }

    pub(super) async fn progress(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
    ) -> Result<RunProgress, GetRunError> {
        let operation = "get_run_progress";
        let (mut counts, mut leased, mut watermark) = (ShardCounts::default(), 0, None::<Vec<u8>>);
        self.each_shard(operation, tenant, run, |shard| {
            let head = &shard.record.state.head;
            *counts.of_mut(head.status) += 1;
            if head.status != ShardStatus::Active {
                return;
            }
            let held = !is_claimable(&shard.view(self), now, 0);
            leased += u32::from(held && head.lease_live_at(now).is_some());
            if let Some(key) = shard.record.cursor.last_key()
                && watermark.as_deref().is_none_or(|least| key < least)
            {
                watermark = Some(key.to_vec());
            }
        })
        .await?;
        Ok(RunProgress { counts, leased, watermark: RedactedKey::new(watermark.as_deref()) })
    }

    pub(super) async fn explain(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError> {
        let operation = "explain_claim";
        let stored = self.visible_run(operation, tenant, run, self.deadline()).await?;
        let mut explanation = ClaimExplanation::new(stored.part.status);
        self.each_shard(operation, tenant, run, |shard| {
            let view = shard.view(self);
            explanation.add(&view, is_claimable(&view, now, self.skew()));
        })
        .await?;
        explanation.cooldown_until = self.cooldown_until(now, tenant, worker);
        Ok(explanation)
    }

    pub(super) async fn get_shard(&self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        let stored: StoredShard = self.reload::<GetShardError>("get_shard", tenant, key, self.deadline()).await?;
        Ok(Arc::unwrap_or_clone(stored.record))
    }

    /// Shows every shard of a run to `look`. Each page has its own deadline: a long listing is many short calls.
    async fn each_shard(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        mut look: impl FnMut(&StoredShard) + Send,
    ) -> Result<(), GetRunError> {
        let stored = self.visible_run(operation, tenant, run, self.deadline()).await?;
        if stored.part.status == RunStatus::Initializing {
            return Ok(());
        }
        let mut walk = Walk::new(operation, tenant, run, None);
        while let Some(batch) = walk.page(self, &stored, self.deadline()).await? {
            batch.iter().for_each(&mut look);
        }
        Ok(())
    }

    pub(super) async fn visible_run(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        deadline: Moment,
    ) -> Result<StoredRun, GetRunError> {
        Ok(self.load_run(operation, tenant, run, deadline).await?.ok_or(RunNotFound { run })?)
    }
}
