//! No cursor passes a key whose result is not durable, and a finished run has them all.

use tessera_coordination::record::status::ShardStatus;
use tessera_coordination::run::record::RunRecord;
use tessera_coordination::run::status::RunStatus;

use crate::coordination::call::{edge_number, key_number};
use crate::coordination::watch::{Checker, Sight};

/// See the module.
#[derive(Debug)]
pub(super) struct Coverage;

impl Checker for Coverage {
    fn name(&self) -> &'static str {
        "Coverage"
    }

    fn after_call(&mut self, sight: &Sight<'_>) -> Result<(), String> {
        for change in sight.changes {
            let record = &change.after;
            let (Some(last), false) = (record.cursor.last_key(), record.state.head.status == ShardStatus::Split) else {
                continue;
            };
            let passed = edge_number(record.spec.start())..=key_number(last);
            if let Some(missed) = passed.into_iter().find(|key| !sight.sink.has(*key)) {
                return Err(format!("shard {} passed key {missed}, which has no result", record.key));
            }
        }
        let is_done = |run: Option<&RunRecord>| run.is_some_and(|run| run.status == RunStatus::Done);
        let is_done_now = is_done(sight.run) && !is_done(sight.run_before);
        match (0..sight.config.keys).find(|key| is_done_now && !sight.sink.has(*key)) {
            Some(missed) => Err(format!("the run is done and key {missed} has no result")),
            None => Ok(()),
        }
    }
}
