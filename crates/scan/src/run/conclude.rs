//! What a run has found, and whether that is all there is.

use tessera_contracts::{RunId, ShardId, ShardKey, TenantId};
use tessera_coordination::RunManagement;
use tessera_coordination::record::shard_record::ShardRecord;
use tessera_coordination::record::status::ParkReason;
use tessera_coordination::run::progress::{RunTerminalEvaluation, ShardCounts, evaluate_run_terminal};
use tessera_coordination::run::summary::{SHARD_PAGE_LIMIT_MAX, ShardFilter, ShardPage, ShardSummary};

use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::findings::{Merged, merge};
use crate::plan::record::{PlanError, PlanRecord};
use crate::plan::target::Target;
use crate::report::by_target;
use crate::report::finding::{Finding, group};
use crate::report::receipt::Receipt;
use crate::run::folder::RunFolder;
use crate::source::git::attribution::Introductions;

/// What a run has found so far, and its account.
pub fn conclude<B: RunManagement>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
    targets: &[Target],
) -> Result<(Vec<Finding>, Receipt), ScanError> {
    conclude_against(&PlanRecord::load(folder.path()), backend, tenant, run, folder, targets)
}

/// The same, held against this plan.
pub(crate) fn conclude_against<B: RunManagement>(
    plan: &Result<PlanRecord, PlanError>,
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
    targets: &[Target],
) -> Result<(Vec<Finding>, Receipt), ScanError> {
    let merged = merged_of(folder)?;
    let receipt = account(backend, tenant, run, &merged)?.against(plan, &merged);
    Ok((found(merged, folder, targets)?, receipt))
}

/// Whether a command may settle the run of this receipt as done: all its shards are, and nothing waits to be compared, which is
/// what the same command does next.
pub(crate) fn may_complete(receipt: &Receipt) -> bool {
    evaluate_run_terminal(&receipt.shards) == RunTerminalEvaluation::AllDone && receipt.plan.uncompared == 0
}

/// What lies in the folder of a run.
pub(crate) fn merged_of(folder: &RunFolder) -> Result<Merged, ScanError> {
    merge(&folder.findings(), folder.key()).map_err(|source| ScanError::Folder { path: folder.findings(), source })
}

/// What was merged, by secret.
pub(crate) fn found(merged: Merged, folder: &RunFolder, targets: &[Target]) -> Result<Vec<Finding>, ScanError> {
    let introductions = Introductions::of_occurrences(targets, folder.path(), merged.occurrences.values())?;
    Ok(group(merged.occurrences.into_values(), &introductions))
}

/// Compares what was made durable with what the coordinator knows.
pub fn account<B: RunManagement>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    merged: &Merged,
) -> Result<Receipt, ScanError> {
    let (mut counts, mut parked, mut short) = (ShardCounts::default(), Vec::new(), 0);
    let mut reached = merged.reached.clone();
    let mut receipt = Receipt::new(merged, ShardCounts::default(), Vec::new(), 0);
    for_each_shard(backend, tenant, run, &ShardFilter::all(), |backend, shard| {
        *counts.of_mut(shard.status) += 1;
        by_target::of_shard(&mut receipt.by_target, shard).add_shard(shard);
        // Findings may be ahead of the cursor (a worker died in between), never behind.
        let known = reached.remove(&shard.shard).flatten();
        if known.as_deref() < shard.last_key.expose() {
            short += 1;
        }
        if let Some(park) = shard.park {
            let record = backend.get_shard(tenant, ShardKey::new(run, shard.shard)).ok();
            parked.push(parked_line(shard.shard, park.reason, record.as_ref()));
        }
        Ok(())
    })?;
    Ok(Receipt { shards: counts, parked, shards_short: short, ..receipt })
}

/// Which target a parked shard is of, why it was parked, and which workers could not reach it.
fn parked_line(shard: ShardId, reason: ParkReason, record: Option<&ShardRecord>) -> String {
    let Some(record) = record else { return format!("shard {shard}: {reason}") };
    let target = Target::decode(record.spec.metadata()).map(|target| format!("{}, ", target.path.display()));
    let mut line = format!("{}shard {shard}: {reason}", target.unwrap_or_default());
    if let Some(detail) = &record.park_detail {
        line.push_str(&format!(" ({detail})"));
    }
    let workers: Vec<String> = record.unreachable.iter().map(|report| report.worker.to_string()).collect();
    match &workers[..] {
        [] => {}
        [worker] => line.push_str(&format!(", reported by worker {worker}")),
        _ => line.push_str(&format!(", reported by workers {}", workers.join(", "))),
    }
    line
}

/// Calls `visit` for every shard of a run, page by page.
pub fn for_each_shard<B: RunManagement>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    filter: &ShardFilter,
    mut visit: impl FnMut(&mut B, &ShardSummary) -> Result<(), ScanError>,
) -> Result<(), ScanError> {
    let mut shards = Vec::new();
    let mut page = Some(ShardPage::first(SHARD_PAGE_LIMIT_MAX));
    while let Some(at) = page {
        page = backend
            .list_shards_into(wall_clock(), tenant, run, filter, at, &mut shards)
            .map_err(ScanError::coordinator)?;
        for shard in &shards {
            visit(backend, shard)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_settled_when_all_its_shards_are_done_and_nothing_waits_to_be_compared() {
        let merged = Merged::default();
        let receipt = |counts| Receipt::new(&merged, counts, Vec::new(), 0);
        let done = receipt(ShardCounts { done: 2, split: 1, ..ShardCounts::default() });
        assert!(may_complete(&done));
        let mut uncompared = done.clone();
        uncompared.plan.uncompared = 1;
        assert!(!may_complete(&uncompared));
        for open in [
            ShardCounts { done: 1, active: 1, ..ShardCounts::default() },
            ShardCounts { done: 1, parked: 1, ..ShardCounts::default() },
        ] {
            assert!(!may_complete(&receipt(open)), "{open:?}");
        }
    }
}
