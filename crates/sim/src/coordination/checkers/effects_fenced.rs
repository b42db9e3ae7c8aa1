//! No result under fence f is accepted after one under f+1, and one worker has effects under a fence.

use std::collections::BTreeMap;

use tessera_contracts::ids::{FenceEpoch, RunIncarnation, ShardId};
use tessera_coordination::record::shard_record::ShardRecord;

use crate::coordination::sink::ResultWrite;
use crate::coordination::watch::Checker;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct EffectsFenced {
    newest: BTreeMap<(RunIncarnation, ShardId), (FenceEpoch, usize)>,
}

impl Checker for EffectsFenced {
    fn name(&self) -> &'static str {
        "EffectsFenced"
    }

    fn after_result(&mut self, result: &ResultWrite, _: &BTreeMap<ShardId, ShardRecord>) -> Result<(), String> {
        let ResultWrite { worker, shard, incarnation, fence, key } = *result;
        let (newest, writer) = *self.newest.entry((incarnation, shard)).or_insert((fence, worker));
        if fence < newest {
            return Err(format!("key {key} of shard {shard} was recorded under fence {fence} after {newest} wrote"));
        }
        if fence == newest && worker != writer {
            return Err(format!("workers {writer} and {worker} both wrote to shard {shard} under fence {fence}"));
        }
        self.newest.insert((incarnation, shard), (fence, worker));
        Ok(())
    }
}
