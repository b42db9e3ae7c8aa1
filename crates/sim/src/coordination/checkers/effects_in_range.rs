//! The holder of the current fence writes no result outside its shard's range.

use std::collections::BTreeMap;

use tessera_contracts::ids::ShardId;
use tessera_coordination::record::shard_record::ShardRecord;

use crate::coordination::call::key_bytes;
use crate::coordination::sink::ResultWrite;
use crate::coordination::watch::Checker;

/// See the module.
#[derive(Debug)]
pub(super) struct EffectsInRange;

impl Checker for EffectsInRange {
    fn name(&self) -> &'static str {
        "EffectsInRange"
    }

    fn after_result(&mut self, result: &ResultWrite, records: &BTreeMap<ShardId, ShardRecord>) -> Result<(), String> {
        let Some(record) = records.get(&result.shard) else { return Ok(()) };
        let current = record.incarnation == result.incarnation && record.state.head.fence == result.fence;
        if current && !record.spec.range().contains(&key_bytes(result.key)) {
            let ResultWrite { worker, shard, key, .. } = result;
            return Err(format!("worker {worker} wrote key {key} outside shard {shard}, which it holds"));
        }
        Ok(())
    }
}
