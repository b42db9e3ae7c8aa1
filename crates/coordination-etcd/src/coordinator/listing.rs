//! Listings, progress and explanations: for operators, page by page.
//!
//! All pages of one answer are read at one revision, so that an answer is true of one moment: pages of different moments
//! would count a shard and the shard it was split from, or neither.
//!
//! The server walks a range to its end to count it, whatever the limit, so a page that asked for "everything behind this
//! id" would cost time with every shard behind it. Pages therefore ask for spans of ids, and the span adapts to how densely
//! the ids lie: roots usually count from one, children lie scattered over half of all numbers.

use core::ops::ControlFlow;
use std::sync::Arc;

use tessera_contracts::redact::RedactedKey;
use tessera_contracts::{FenceEpoch, LogicalTime, RunId, ShardId, ShardKey, TenantId, WorkerId};
use tessera_coordination::decide::acquire::{is_claimable, is_open};
use tessera_coordination::error::{GetRunError, GetShardError, InfraError, RunNotFound};
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::record::view::OwnerSignal;
use tessera_coordination::run::explain::ClaimExplanation;
use tessera_coordination::run::progress::{RunProgress, ShardCounts};
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::{ShardFilter, ShardPage, ShardSummary};
use tessera_coordination::stored::check_same_incarnation;

use super::stored::{ShardPaths, StoredRun, StoredShard, compose, decode_owner, found, lists};
use super::{Inner, failed, unreadable};
use crate::codec::{CodecError, ColdPart, HotPart};
use crate::keyspace::{Window, shard_of};
use crate::kv::{KeyValue, Kv, KvError, KvErrorKind, Moment, Op, OpResponse, RangeRequest, Revision, Txn};

/// Shards one page reads at most: with the largest records a few megabytes.
const PAGE: u32 = 64;

/// How often a walk begins anew because its revision was compacted meanwhile: each time it reads at the latest one.
const WALKS_MAX: u32 = 3;

/// Walks the shards of a run in the order of their ids, as they were at one revision.
struct Walk {
    operation: &'static str,
    tenant: TenantId,
    run: RunId,
    revision: Revision,
    /// Where the next page begins; `None` after the last id.
    next: Option<u64>,
    /// How many ids the next page spans.
    span: u64,
}

/// Why a page could not be read.
enum PageError {
    /// The store no longer keeps the revision of the walk.
    Compacted,
    Failed(InfraError),
}

impl From<InfraError> for PageError {
    fn from(error: InfraError) -> Self {
        Self::Failed(error)
    }
}

impl Walk {
    fn begin(
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        after: Option<ShardId>,
        revision: Revision,
    ) -> Self {
        let next = after.map_or(Some(0), |after| after.get().checked_add(1));
        Self { operation, tenant, run, revision, next, span: u64::from(PAGE) }
    }

    fn failed(&self, error: &KvError) -> PageError {
        match error.kind {
            KvErrorKind::Compacted => PageError::Compacted,
            _ => failed(self.operation, error).into(),
        }
    }

    fn unreadable(&self, error: &CodecError) -> PageError {
        unreadable(self.operation, error).into()
    }

    /// The next page, in the order of ids; `None` when there are no more.
    async fn page<K: Kv>(
        &mut self,
        inner: &Inner<K>,
        stored_run: &StoredRun,
        deadline: Moment,
    ) -> Result<Option<Vec<StoredShard>>, PageError> {
        let Some(first) = self.next else { return Ok(None) };
        let last = first.saturating_add(self.span - 1);
        let keys = inner.space.colds_between(self.tenant, self.run, ShardId::new(first), ShardId::new(last));
        // One transaction reads all of their owner keys, and their hot parts as one range.
        let limit = PAGE.min(u32::try_from(inner.config.txn_ops_max - 1).unwrap_or(PAGE));
        let read = RangeRequest::of(keys).limit(limit).at(self.revision);
        let colds = inner.kv.range(read, deadline).await.map_err(|error| self.failed(&error))?;
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
    ) -> Result<Vec<StoredShard>, PageError> {
        let operation = self.operation;
        let keys: Vec<ShardKey> =
            colds.iter().filter_map(|kv| shard_of(&kv.key)).map(|shard| ShardKey::new(self.run, shard)).collect();
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(Vec::new()) };
        let hots = inner.space.hots_between(self.tenant, self.run, first.shard, last.shard);
        let mut reads = vec![Op::Range(RangeRequest::of(hots).at(self.revision))];
        let owner = |key: &ShardKey| RangeRequest::one(inner.space.owner(self.tenant, *key)).at(self.revision);
        reads.extend(keys.iter().map(|key| Op::Range(owner(key))));
        let read = inner.kv.txn(Txn::of(reads), deadline).await.map_err(|error| self.failed(&error))?;
        let Some((OpResponse::Range(hots), owners)) = read.responses.split_first() else {
            return Err(InfraError::corruption(operation, "a page was not answered part by part").into());
        };
        let mut shards = Vec::with_capacity(keys.len());
        for ((key, kv), owner) in keys.iter().zip(colds).zip(owners) {
            let cold_revision = kv.mod_revision;
            let cold = ColdPart::decode(&kv.value).map_err(|error| self.unreadable(&error))?;
            if !self.is_published(inner, *key, &cold, deadline).await? {
                continue;
            }
            let hot = hots.kvs.iter().find(|kv| shard_of(&kv.key) == Some(key.shard));
            let hot_revision = hot.map_or(Revision(0), |kv| kv.mod_revision);
            let hot = hot.map(|kv| HotPart::decode(&kv.value)).transpose().map_err(|error| self.unreadable(&error))?;
            let owner = found(owner).map(decode_owner).transpose().map_err(|error| self.unreadable(&error))?;
            // Run and parts are of one revision, so they are of one incarnation.
            let whole = check_same_incarnation(run.part.incarnation, cold.incarnation);
            let whole = whole.and_then(|()| compose(self.tenant, *key, &cold, hot, owner.as_ref()));
            let mixed = |mismatch| InfraError::corruption(operation, format!("shard {key}: {mismatch}"));
            let record = Arc::new(whole.map_err(mixed)?);
            let paths = Arc::new(ShardPaths::new(&inner.space, self.tenant, *key));
            let (run, cold, fresh, pieced) = (run.clone(), Arc::new(cold), true, false);
            shards.push(StoredShard { paths, record, hot_revision, owner, run, cold, cold_revision, fresh, pieced });
        }
        Ok(shards)
    }

    /// Whether the shard existed for readers: one of a split that was staged did only if its parent listed it.
    async fn is_published<K: Kv>(
        &self,
        inner: &Inner<K>,
        key: ShardKey,
        cold: &ColdPart,
        deadline: Moment,
    ) -> Result<bool, PageError> {
        let (true, Some(parent)) = (cold.staged, cold.parent) else { return Ok(true) };
        let parent = RangeRequest::one(inner.space.cold(self.tenant, ShardKey::new(self.run, parent)));
        let read = inner.kv.range(parent.at(self.revision), deadline).await.map_err(|error| self.failed(&error))?;
        read.into_one().map_or(Ok(false), |parent| Ok(lists(self.operation, &parent, key.shard)?))
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
        let operation = "list_shards_into";
        let (_, (listed, rest)) = self
            .each_shard(operation, tenant, run, page.after, |(listed, rest): &mut (Vec<ShardSummary>, _), shard| {
                let view = shard.view(self);
                if !filter.admits(&view, is_claimable(&view, now, self.skew())) {
                    return ControlFlow::Continue(());
                }
                listed.push(ShardSummary::of(&view));
                if listed.len() < page.effective_limit() {
                    return ControlFlow::Continue(());
                }
                *rest = Some(ShardPage { after: Some(view.key.shard), ..page });
                ControlFlow::Break(())
            })
            .await
            .inspect_err(|_| shards.clear())?;
        shards.clear();
        shards.extend(listed);
        Ok(rest)
    }

    /// Up to so many shards of a run that are held, each with its owner's fence epoch: one request.
    pub(super) async fn held(
        &self,
        tenant: TenantId,
        run: RunId,
        limit: u32,
    ) -> Result<Vec<(ShardId, FenceEpoch)>, InfraError> {
        let operation = "held";
        let read = RangeRequest::of(self.space.owners(tenant, run, Window::ALL)).limit(limit);
        let owners = self.kv.range(read, self.deadline()).await.map_err(|error| failed(operation, &error))?;
        let held = owners.kvs.iter().filter_map(|kv| Some((shard_of(&kv.key)?, kv)));
        held.map(|(shard, kv)| {
            let owner = decode_owner(kv).map_err(|error| unreadable(operation, &error))?;
            Ok((shard, owner.part.fence))
        })
        .collect()
    }

    pub(super) async fn progress(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
    ) -> Result<RunProgress, GetRunError> {
        #[derive(Default)]
        struct Seen {
            counts: ShardCounts,
            leased: u32,
            watermark: Option<Vec<u8>>,
        }
        let (_, seen) = self
            .each_shard("get_run_progress", tenant, run, None, |seen: &mut Seen, shard| {
                let head = &shard.record.state.head;
                *seen.counts.of_mut(head.status) += 1;
                if head.status != ShardStatus::Active {
                    return ControlFlow::Continue(());
                }
                let held = !is_open(&shard.view(self), now, 0);
                seen.leased += u32::from(held && head.lease_live_at(now).is_some());
                if let Some(key) = shard.record.cursor.last_key()
                    && seen.watermark.as_deref().is_none_or(|least| key < least)
                {
                    seen.watermark = Some(key.to_vec());
                }
                ControlFlow::Continue(())
            })
            .await?;
        let Seen { counts, leased, watermark } = seen;
        Ok(RunProgress { counts, leased, watermark: RedactedKey::new(watermark.as_deref()) })
    }

    pub(super) async fn explain(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        worker: WorkerId,
    ) -> Result<ClaimExplanation, GetRunError> {
        // The run's status is known once its shards have been read, so it is put in at the end.
        let begin = || ClaimExplanation::new(RunStatus::Initializing, worker);
        let (status, seen) = self
            .each_shard("explain_claim", tenant, run, None, |seen: &mut Option<ClaimExplanation>, shard| {
                let (view, explanation) = (shard.view(self), seen.get_or_insert_with(begin));
                let available = explanation.available;
                explanation.add(&view, now, self.skew());
                // The one sign of life that depends on no clock.
                let is_connected = view.state.head.lease.is_some() && view.owner == OwnerSignal::Alive;
                explanation.overdue += u32::from(explanation.available > available && is_connected);
                ControlFlow::Continue(())
            })
            .await?;
        let cooldown_until = self.cooldown_until(now, tenant, worker);
        Ok(ClaimExplanation { run: status, cooldown_until, ..seen.unwrap_or_else(begin) })
    }

    pub(super) async fn get_shard(&self, tenant: TenantId, key: ShardKey) -> Result<ShardRecord, GetShardError> {
        let stored: StoredShard = self.reload::<GetShardError>("get_shard", tenant, key, self.deadline()).await?;
        Ok(Arc::unwrap_or_clone(stored.record))
    }

    /// Shows the shards of a run behind `after` to `look`, all of them as they were at one revision, until it has seen enough.
    /// Answers the run's status at that revision and what `look` gathered, which begins anew if the revision was compacted
    /// meanwhile. Each page has its own deadline: a long listing is many short calls.
    async fn each_shard<Seen: Default + Send>(
        &self,
        operation: &'static str,
        tenant: TenantId,
        run: RunId,
        after: Option<ShardId>,
        look: impl Fn(&mut Seen, &StoredShard) -> ControlFlow<()> + Send + Sync,
    ) -> Result<(RunStatus, Seen), GetRunError> {
        for _ in 0..WALKS_MAX {
            let (stored, revision) = self.load_run_at(operation, tenant, run, self.deadline()).await?;
            let stored = stored.ok_or(RunNotFound { run })?;
            let mut seen = Seen::default();
            let mut walk = Walk::begin(operation, tenant, run, after, revision);
            match self.walk(&mut walk, &stored, |shard| look(&mut seen, shard)).await {
                Ok(()) => return Ok((stored.part.status, seen)),
                Err(PageError::Compacted) => {}
                Err(PageError::Failed(error)) => return Err(error.into()),
            }
        }
        let message = "etcd was compacted again and again while the run was read: compact it less often";
        Err(InfraError::transient(operation, message).into())
    }

    async fn walk(
        &self,
        walk: &mut Walk,
        stored: &StoredRun,
        mut look: impl FnMut(&StoredShard) -> ControlFlow<()> + Send,
    ) -> Result<(), PageError> {
        if stored.part.status == RunStatus::Initializing {
            return Ok(());
        }
        while let Some(page) = walk.page(self, stored, self.deadline()).await? {
            for shard in &page {
                if look(shard).is_break() {
                    return Ok(());
                }
            }
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
