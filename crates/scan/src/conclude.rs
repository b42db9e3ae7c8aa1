//! What a run has found, and whether that is all there is.

use tessera_contracts::{RunId, ShardKey, TenantId};
use tessera_coordination::CoordinationFacade;
use tessera_coordination::run::progress::ShardCounts;
use tessera_coordination::run::summary::{SHARD_PAGE_LIMIT_MAX, ShardFilter, ShardPage, ShardSummary};

use crate::clock::wall_clock;
use crate::error::ScanError;
use crate::finding::{Finding, group};
use crate::folder::RunFolder;
use crate::receipt::Receipt;
use crate::sink::{Merged, merge};
use crate::source::git::attribution::Introductions;
use crate::target::Target;

/// What a run has found so far, and its account.
pub fn conclude<B: CoordinationFacade>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    folder: &RunFolder,
    targets: &[Target],
) -> Result<(Vec<Finding>, Receipt), ScanError> {
    let merged = merge(&folder.findings()).map_err(|source| ScanError::Folder { path: folder.findings(), source })?;
    let receipt = account(backend, tenant, run, &merged)?;
    let introductions = Introductions::of_occurrences(targets, folder.path(), merged.occurrences.values())?;
    Ok((group(merged.occurrences.into_values(), &introductions), receipt))
}

/// Compares what was made durable with what the coordinator knows.
fn account<B: CoordinationFacade>(
    backend: &mut B,
    tenant: TenantId,
    run: RunId,
    merged: &Merged,
) -> Result<Receipt, ScanError> {
    let (mut counts, mut parked, mut short) = (ShardCounts::default(), Vec::new(), 0);
    let mut reached = merged.reached.clone();
    for_each_shard(backend, tenant, run, &ShardFilter::all(), |backend, shard| {
        *counts.of_mut(shard.status) += 1;
        // Findings may be ahead of the cursor (a worker died in between), never behind.
        let known = reached.remove(&shard.shard).flatten();
        if known.as_deref() < shard.last_key.expose() {
            short += 1;
        }
        if let Some(park) = shard.park {
            let record = backend.get_shard(tenant, ShardKey::new(run, shard.shard));
            let detail = record.ok().and_then(|record| record.park_detail);
            parked.push(format!("shard {}: {} ({})", shard.shard, park.reason, detail.unwrap_or_default()));
        }
        Ok(())
    })?;
    Ok(Receipt::new(merged, counts, parked, short))
}

/// Calls `visit` for every shard of a run, page by page.
pub fn for_each_shard<B: CoordinationFacade>(
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
