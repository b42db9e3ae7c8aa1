//! Runs: created, settled, looked up.

use tessera_contracts::{LogicalTime, OpId, RunId, ShardId, TenantId};
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
use super::{Inner, contended, failed, unreadable};
use crate::codec::{RootsPart, RunPart};
use crate::keyspace::{ShardIndex, Window, tenant_and_run_of};
use crate::kv::{Compare, Fate, Kv, Moment, Op, OpResponse, RangeRequest, Revision, Txn};

/// The most runs one page holds.
const RUN_PAGE_MAX: usize = 1_000;

impl<K: Kv> Inner<K> {
    pub(super) async fn create_run(
        &self,
        now: LogicalTime,
        tenant: TenantId,
        run: RunId,
        config: RunConfig,
    ) -> Result<(), CreateRunError> {
        let operation = "create_run";
        let deadline = self.deadline();
        let (path, retired) = (self.space.run(tenant, run), self.space.retired(tenant));
        let mut part = None;
        self.refuse_other_layouts(operation, deadline).await?;
        for attempt in 1..=self.config.attempts_max {
            let reads = vec![Op::get(&path), Op::get(&retired)];
            let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
            let [stored, last_retired] = &read.responses[..] else { return Err(contended(operation).into()) };
            if let (Some(kv), Some(part)) = (found(stored), &part)
                && *decode_run(operation, kv)?.part == *part
            {
                // Not idempotent, but what it writes is like nothing else: an attempt whose answer was lost succeeded.
                return Ok(());
            }
            let record = create_run::decide(found(stored).is_some(), tenant, run, config, now)?;
            let part = part.get_or_insert_with(|| RunPart::of(&record, self.kv.random()));
            // A run that is being retired leaves its shards last; its name is free once they are gone. And a request that
            // was held up on its way must not bring back a run that has come and gone in between.
            let last_retired = found(last_retired).map_or(Revision(0), |kv| kv.mod_revision);
            let txn = Txn {
                compares: vec![
                    Compare::absent(&path),
                    Compare::none_in(self.space.colds_after(tenant, run, None)),
                    Compare::unchanged_since(&retired, last_retired),
                ],
                success: vec![
                    Op::put(&path, part.encode()),
                    Op::put(self.space.open_run(tenant, run), ""),
                    Op::put(self.space.new_run(now, tenant, run), ""),
                ],
                failure: vec![],
            };
            match self.kv.txn(txn, deadline).await {
                Ok(answer) if answer.succeeded => return Ok(()),
                Ok(_) => {}
                Err(error) if error.fate == Fate::Ambiguous => {}
                Err(error) => return Err(failed(operation, &error).into()),
            }
            self.breathe(attempt).await;
        }
        Err(InfraError::transient(operation, "an earlier run of that name is still being removed").into())
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
            }
            let read = self.kv.txn(Txn::of(reads), deadline).await.map_err(|error| failed(operation, &error))?;
            let [stored, roots, answers @ ..] = &read.responses[..] else { return Err(contended(operation).into()) };
            let Some(kv) = found(stored) else { return Err(RunNotFound { run }.into()) };
            let stored = decode_run(operation, kv)?;
            if settlement == Settlement::Complete && counted(answers, 3) > 0 {
                self.finish_hatching(operation, tenant, run, deadline).await?;
            }
            let mut counts = settled_counts(&stored, answers);
            if settlement == Settlement::Complete && counted(answers, 4) > 0 {
                counts.active += self.newborn_count(operation, tenant, run, deadline).await?;
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
            let part = RunPart::of(&next, stored.part.creation);
            let txn = self.settling(tenant, run, &stored, &part, settlement, deadline).await?;
            match self.kv.txn(txn, deadline).await {
                Ok(answer) if answer.succeeded => return Ok(IdempotentOutcome::Executed(())),
                Ok(_) => {}
                Err(error) if error.fate == Fate::Ambiguous => in_doubt = true,
                Err(error) => return Err(failed(operation, &error).into()),
            }
            self.breathe(attempt).await;
        }
        Err(contended(operation).into())
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
            Op::delete(self.space.open_run(tenant, run)),
            Op::Delete(self.space.standings(tenant, run)),
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
        let [run_answer, roots] = &read.responses[..] else { return Err(contended(operation).into()) };
        let Some(kv) = found(run_answer) else {
            self.refuse_other_layouts(operation, deadline).await?;
            return Err(RunNotFound { run }.into());
        };
        let stored = decode_run(operation, kv)?;
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
        let read = RangeRequest::of(self.space.runs_after(tenant, after)).limit(u32::try_from(limit).unwrap_or(1));
        let deadline = self.deadline();
        let answer = self.kv.range(read, deadline).await.map_err(|error| failed(operation, &error))?;
        if answer.kvs.is_empty() {
            self.refuse_other_layouts(operation, deadline).await?;
        }
        let summaries = answer.kvs.iter().map(|kv| {
            let stored = decode_run(operation, kv)?;
            let (_, run) = tenant_and_run_of(&kv.key)
                .ok_or_else(|| InfraError::corruption(operation, "a run's path does not end in its id"))?;
            let (status, created_at) = (stored.part.status, stored.part.created_at);
            let completed_at = stored.part.completed_at;
            Ok(RunSummary { run, status, created_at, completed_at })
        });
        summaries.collect()
    }
}

/// The counts that settling looks at. Which shards are done and which are split does not matter to it, only that there are
/// some: a run is active only with shards.
fn settled_counts(stored: &StoredRun, answers: &[OpResponse]) -> ShardCounts {
    let count = |index: usize| u32::try_from(counted(answers, index)).unwrap_or(u32::MAX);
    let active = count(0).saturating_add(count(1)).saturating_add(count(3));
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
