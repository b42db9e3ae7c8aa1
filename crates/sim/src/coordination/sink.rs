//! The result store of the simulated workers: it accepts no result of an older fence once a newer one has written.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::ids::{FenceEpoch, ShardId};

use super::config::Config;

/// One result that a worker wants to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultWrite {
    /// The worker.
    pub worker: usize,
    /// The shard it works on.
    pub shard: ShardId,
    /// Under which fence.
    pub fence: FenceEpoch,
    /// The key it processed.
    pub key: u16,
}

/// Durable results.
#[derive(Debug, Default)]
pub struct Sink {
    newest: BTreeMap<ShardId, FenceEpoch>,
    recorded: BTreeSet<u16>,
    /// Breaks the fence on purpose.
    pub unfenced: bool,
}

impl Sink {
    /// The result store of a world; without its fence in a rehearsal.
    pub fn of(config: &Config) -> Self {
        Self { unfenced: config.rehearsal, ..Self::default() }
    }

    /// Whether the result was accepted.
    pub fn write(&mut self, result: &ResultWrite) -> bool {
        let newest = self.newest.entry(result.shard).or_insert(result.fence);
        if result.fence < *newest && !self.unfenced {
            return false;
        }
        *newest = result.fence.max(*newest);
        self.recorded.insert(result.key);
        true
    }

    /// Whether the key has a durable result.
    pub fn has(&self, key: u16) -> bool {
        self.recorded.contains(&key)
    }
}
