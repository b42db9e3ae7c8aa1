//! The result store of the simulated workers: it accepts no result of an older fence once a newer one has written, and none
//! of another incarnation of the run than the one it was opened for.

use std::collections::{BTreeMap, BTreeSet};

use tessera_contracts::ids::{FenceEpoch, RunIncarnation, ShardId};
use tessera_coordination::Lease;

use super::config::Config;

/// One result that a worker wants to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultWrite {
    /// The worker.
    pub worker: usize,
    /// The shard it works on.
    pub shard: ShardId,
    /// Of which incarnation of the run.
    pub incarnation: RunIncarnation,
    /// Under which fence.
    pub fence: FenceEpoch,
    /// The key it processed.
    pub key: u16,
}

impl ResultWrite {
    /// What `worker` found at `key`, under this lease.
    pub const fn under(lease: &Lease, worker: usize, key: u16) -> Self {
        Self { worker, shard: lease.shard(), incarnation: lease.incarnation(), fence: lease.fence(), key }
    }
}

/// Durable results.
#[derive(Debug, Default)]
pub struct Sink {
    /// The incarnation whose results it takes; none while there is no run.
    incarnation: Option<RunIncarnation>,
    newest: BTreeMap<ShardId, FenceEpoch>,
    recorded: BTreeSet<u16>,
    /// Breaks the fence on purpose.
    pub unfenced: bool,
    /// Takes results of former incarnations, on purpose.
    pub mixed: bool,
}

impl Sink {
    /// The result store of a world; without its fence in a rehearsal.
    pub fn of(config: &Config) -> Self {
        Self { unfenced: config.rehearsal, ..Self::default() }
    }

    /// Starts empty for this incarnation of the run; the results of the one before went with it.
    pub fn open(&mut self, incarnation: Option<RunIncarnation>) {
        self.incarnation = incarnation;
        self.newest.clear();
        self.recorded.clear();
    }

    /// Whether the result was accepted.
    pub fn write(&mut self, result: &ResultWrite) -> bool {
        if Some(result.incarnation) != self.incarnation && !self.mixed {
            return false;
        }
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
