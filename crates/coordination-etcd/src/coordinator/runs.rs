//! Runs: created, settled, looked up.

use tessera_contracts::{LogicalTime, OpId, RunId, RunIncarnation, ShardId, TenantId};
use tessera_coordination::decide::settle_run::{self, Settlement};
use tessera_coordination::decide::{Verdict, create_run};
use tessera_coordination::error::{
    CreateRunError, GetRunError, IdempotentOutcome, InfraError, RunNotFound, RunTransitionError,
};
use tessera_coordination::run::config::RunConfig;
use tessera_coordination::run::progress::ShardCounts;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;
use tessera_coordination::run::summary::RunSummary;

use super::stored::{StoredRun, decode_run, found};
use super::{Inner, failed, unreadable};
use crate::codec::{RootsPart, RunPart};
use crate::keyspace::{ShardIndex, Window, tenant_and_run_of};
use crate::kv::{Compare, Fate, KeyValue, Kv, Moment, Op, OpResponse, RangeRequest, Revision, Txn};

/// The most runs one page holds.
const RUN_PAGE_MAX: usize = 1_000;

impl<K: Kv> Inner<K> {
    pub(super) async fn create_run(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        incarnation: RunIncarnation,
        config: RunConfig,
    ) -> Result<(), CreateRunError> {
        let operation = "create_run";
        let deadline = self.deadline();
        let (path, retired) = (self.space.run(tenant, run), self.space.retired(tenant));
        let mut part = None;
        let mut in_doubt = false;
        self.refuse_other_layouts(operation, deadline).await?;
        for attempt in 1..=self.config.attempts_max {
            let reads = vec![Op::get(&path), Op::get(&retired)];
            let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
            let [stored, last_retired] = &read.responses[..] else {
                return Err(InfraError::contended(operation).into());
            };
            let stored = found(stored).map(|kv| decode_run(operation, kv)).transpose()?;
            if let Some(stored) = &stored
                && let Some(removal) = stored.part.removal
            {
                // No reader sees that run any more; its id is free once the last of it is gone.
                self.finish_removal(operation, tenant, run, &stored.part, removal).await?;
                continue;
            }
            if let (Some(stored), Some(part), true) = (&stored, &part, in_doubt)
                && *stored.part == *part
            {
                // Not idempotent, but no other creator has this incarnation: an attempt whose answer was lost succeeded.
                return Ok(());
            }
            let record = create_run::decide(stored.is_some(), tenant, run, incarnation, config, now)?;
            let part = part.get_or_insert_with(|| RunPart::of(&record));
            // A request that was held up on its way must not bring back a run that has come and gone in between.
            let last_retired = found(last_retired).map_or(Revision(0), |kv| kv.mod_revision);
            let txn = Txn {
                compares: vec![
                    Compare::absent(&path),
                    Compare::none_in(self.space.colds_after(tenant, run, None)),
                    Compare::unchanged_since(&retired, last_retired),
                ],
                success: vec![Op::put(&path, part.encode()), Op::put(self.space.new_run(now, tenant, run), "")],
                failure: vec![],
            };
            match self.kv.txn(txn, deadline).await {
                Ok(answer) if answer.succeeded => return Ok(()),
                Ok(_) => {}
                Err(error) if error.fate == Fate::Ambiguous => in_doubt = true,
                Err(error) => return Err(failed(operation, &error).into()),
            }
            self.breathe(attempt).await;
        }
        Err(InfraError::contended(operation).into())
    }

    pub(super) async fn settle_run(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        settlement: Settlement,
        op_id: OpId,
    ) -> Result<IdempotentOutcome<()>, RunTransitionError> {
        let operation = "settle_run";
        let deadline = self.deadline();
        let (path, roots) = (self.space.run(tenant, run), self.space.roots(tenant, run));
        let open = [ShardIndex::Free, ShardIndex::Held, ShardIndex::Parked]
            .map(|index| self.space.indexed(index, tenant, run, Window::ALL));
        let hatching = self.space.all_hatching(tenant, run);
        let families = self.space.families(tenant, run, Window::ALL);
        let mut in_doubt = false;
        for attempt in 1..=self.config.attempts_max {
            let mut reads = vec![Op::get(&path), Op::get(&roots)];
            if settlement == Settlement::Complete {
                // Counting costs time with every open shard; the run that can be completed has none.
                reads.extend(open.iter().map(|keys| Op::Range(RangeRequest::of(keys.clone()).count_only())));
                let born = [&hatching, &families].map(|keys| RangeRequest::of(keys.clone()).count_only());
                reads.extend(born.map(Op::Range));
                let reported = self.space.indexed(ShardIndex::Reported, tenant, run, Window::ALL);
                reads.push(Op::Range(RangeRequest::of(reported).count_only()));
            }
            let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
            let [stored, roots, answers @ ..] = &read.responses[..] else {
                return Err(InfraError::contended(operation).into());
            };
            let stored = found(stored).map(|kv| decode_run(operation, kv)).transpose()?;
            let stored = stored.and_then(StoredRun::visible).ok_or(RunNotFound { run })?;
            let mut counts = settled_counts(&stored, answers);
            if settlement == Settlement::Complete && counted(answers, 3) > 0 {
                let unindexed = self.unindexed_children(operation, tenant, run, read.revision, deadline).await?;
                counts.active += unindexed.len() as u32;
                self.finish_hatching(operation, tenant, run, deadline).await?;
            }
            if settlement == Settlement::Complete && counted(answers, 4) > 0 {
                counts.active += self.newborn_count(operation, tenant, run, read.revision, deadline).await?;
            }
            let record = stored.part.to_record(tenant, run, decode_roots(operation, roots)?);
            let change = match settle_run::decide(&record, settlement, &counts, op_id, now)? {
                Verdict::Replay(IdempotentOutcome::Replayed(())) if in_doubt => {
                    return Ok(IdempotentOutcome::Executed(()));
                }
                Verdict::Replay(outcome) => return Ok(outcome),
                Verdict::Execute(change) => change,
            };
            let mut next = record;
            next.apply(&change, []);
            let part = RunPart::of(&next);
            let txn = self.settling(tenant, run, &stored, &part, settlement, deadline).await?;
            match self.kv.txn(txn, deadline).await {
                Ok(answer) if answer.succeeded => return Ok(IdempotentOutcome::Executed(())),
                Ok(_) => {}
                Err(error) if error.fate == Fate::Ambiguous => in_doubt = true,
                Err(error) => return Err(failed(operation, &error).into()),
            }
            self.breathe(attempt).await;
        }
        Err(InfraError::contended(operation).into())
    }

    async fn settling(
        &self,
        tenant: TenantId,
        run: RunId,
        stored: &StoredRun,
        part: &RunPart,
        settlement: Settlement,
        deadline: Moment,
    ) -> Result<Txn, InfraError> {
        let path = self.space.run(tenant, run);
        let mut compares = vec![Compare::unchanged_since(&path, stored.revision)];
        if settlement == Settlement::Complete {
            compares.extend(ShardIndex::ALL.map(|i| Compare::none_in(self.space.indexed(i, tenant, run, Window::ALL))));
            compares.push(Compare::none_in(self.space.all_hatching(tenant, run)));
            compares.push(Compare::none_in(self.space.families(tenant, run, Window::ALL)));
        }
        let mut success = vec![
            Op::put(&path, part.encode()),
            Op::delete(self.space.active_run(tenant, run)),
            Op::Delete(self.space.standings(tenant, run)),
            Op::Delete(self.space.all_abstentions(tenant, run)),
        ];
        if stored.part.status == RunStatus::Initializing {
            success.push(Op::delete(self.space.new_run(stored.part.created_at, tenant, run)));
        }
        if let Some(staging) = stored.part.staging {
            // A registration was under way: its shards go, and what was counted for them.
            success.push(Op::Delete(self.space.colds_after(tenant, run, None)));
            success.push(Op::Delete(self.space.indexed(ShardIndex::Free, tenant, run, Window::ALL)));
            let tally = self.fresh_tally("settle_run", tenant, deadline).await?;
            let change = tally.subtract(u64::from(staging.reserved));
            for part in [change.all, change.of_tenant] {
                compares.extend(part.compares);
                success.extend(part.ops);
            }
        }
        Ok(Txn { compares, success, failure: vec![] })
    }

    pub(super) async fn get_run(&self, tenant: TenantId, run: RunId) -> Result<RunRecord, GetRunError> {
        let operation = "get_run";
        let reads = vec![Op::get(self.space.run(tenant, run)), Op::get(self.space.roots(tenant, run))];
        let deadline = self.deadline();
        let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
        let [run_answer, roots] = &read.responses[..] else { return Err(InfraError::contended(operation).into()) };
        let stored = found(run_answer).map(|kv| decode_run(operation, kv)).transpose()?;
        let Some(stored) = stored.and_then(StoredRun::visible) else {
            self.refuse_other_layouts(operation, deadline).await?;
            return Err(RunNotFound { run }.into());
        };
        Ok(stored.part.to_record(tenant, run, decode_roots(operation, roots)?))
    }

    pub(super) async fn list_runs(
        &self,
        tenant: TenantId,
        after: Option<RunId>,
        limit: usize,
    ) -> Result<Vec<RunSummary>, GetRunError> {
        let operation = "list_runs_into";
        let limit = limit.min(RUN_PAGE_MAX);
        if limit == 0 {
            return Ok(Vec::new());
        }
        let deadline = self.deadline();
        let mut summaries = Vec::new();
        let mut keys = self.space.runs_after(tenant, after);
        let mut revision = Revision(0);
        loop {
            let wanted = u32::try_from(limit - summaries.len()).unwrap_or(1);
            let read = RangeRequest::of(keys).limit(wanted).at(revision);
            let page = self.stored_runs(operation, read, deadline).await?;
            let visible = page.runs.into_iter().filter_map(|(run, stored)| Some((run, stored.visible()?)));
            summaries.extend(visible.map(|(run, stored)| summary(run, &stored)));
            // Runs that are being removed take up room in a page and are not shown.
            let (Some(rest), true) = (page.rest, summaries.len() < limit) else { break };
            (keys, revision) = (self.space.runs_after(tenant, Some(rest)), page.revision);
        }
        if summaries.is_empty() {
            self.refuse_other_layouts(operation, deadline).await?;
        }
        Ok(summaries)
    }

    /// Reads some runs, also those that are being removed.
    pub(super) async fn stored_runs(
        &self,
        operation: &'static str,
        read: RangeRequest,
        deadline: Moment,
    ) -> Result<RunsPage, InfraError> {
        let answer = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?;
        let named = |kv: &KeyValue| {
            let (_, run) = tenant_and_run_of(&kv.key)
                .ok_or_else(|| InfraError::corruption(operation, "a run's path does not end in its id"))?;
            Ok((run, decode_run(operation, kv)?))
        };
        let runs = answer.kvs.iter().map(named).collect::<Result<Vec<_>, InfraError>>()?;
        let rest = runs.last().map(|(run, _)| *run).filter(|_| answer.more);
        Ok(RunsPage { runs, rest, revision: answer.revision })
    }
}

/// Some runs of a tenant, by id.
pub(super) struct RunsPage {
    pub(super) runs: Vec<(RunId, StoredRun)>,
    /// The last of them, if there are more behind it.
    pub(super) rest: Option<RunId>,
    /// When they were read.
    revision: Revision,
}

fn summary(run: RunId, stored: &StoredRun) -> RunSummary {
    let (incarnation, status) = (stored.part.incarnation, stored.part.status);
    let (created_at, completed_at) = (stored.part.created_at, stored.part.completed_at);
    RunSummary { run, incarnation, status, created_at, completed_at }
}

/// The counts that settling looks at, but for shards that are in no index. Which shards are done and which are split does not matter to it, only that there are
/// some: a run is active only with shards.
fn settled_counts(stored: &StoredRun, answers: &[OpResponse]) -> ShardCounts {
    let count = |index: usize| u32::try_from(counted(answers, index)).unwrap_or(u32::MAX);
    let active = [0, 1, 5].into_iter().fold(0_u32, |active, index| active.saturating_add(count(index)));
    ShardCounts { active, done: u32::from(stored.part.root_count > 0), split: 0, parked: count(2) }
}

fn counted(answers: &[OpResponse], index: usize) -> i64 {
    match answers.get(index) {
        Some(OpResponse::Range(range)) => range.count,
        Some(OpResponse::Put | OpResponse::Delete { .. } | OpResponse::Txn(_)) | None => 0,
    }
}

/// The list of roots, which is written when a run becomes active.
fn decode_roots(operation: &'static str, answer: &OpResponse) -> Result<Vec<ShardId>, InfraError> {
    let roots = found(answer).map(|kv| RootsPart::decode(&kv.value)).transpose();
    Ok(roots.map_err(|error| unreadable(operation, &error))?.unwrap_or_default().roots)
}
