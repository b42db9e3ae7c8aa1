//! Every key of the run has exactly one home among the shards that are not split.

use tessera_coordination::record::status::ShardStatus;

use crate::coordination::call::{Request, edge_number};
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct SplitTiles;

impl Checker for SplitTiles {
    fn name(&self) -> &'static str {
        "SplitTiles"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        if sight.records.is_empty() {
            return Ok(());
        }
        let split = matches!(sight.call.request, Request::SplitReplace { .. } | Request::SplitResidual { .. });
        if !(split && sight.is_executed()) && sight.changes.len() < sight.records.len() {
            return Ok(());
        }
        let homes = sight.records.values().filter(|record| record.state.head.status != ShardStatus::Split);
        let mut ranges: Vec<(u16, u16)> =
            homes.map(|record| (edge_number(record.spec.start()), edge_number(record.spec.end()))).collect();
        ranges.sort_unstable();
        let mut reached = 0;
        for (start, end) in ranges {
            if start != reached {
                return Err(format!("keys from {reached} to {start} have no home, or two"));
            }
            reached = end;
        }
        if reached != sight.config.keys {
            return Err(format!("keys from {reached} on have no home"));
        }
        Ok(())
    }
}
